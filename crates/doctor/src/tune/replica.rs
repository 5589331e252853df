//! Where settings are tried without anybody noticing: a network namespace with this machine's network settings, and three small workloads
//! on its loopback. What a setting does to packets on real wires it cannot show; `live` can.

use super::Place;
use machine::facts;
use machine::namespace::{self, Namespace};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long the workloads with rates run for one measurement.
const SHORT: Duration = Duration::from_millis(120);
const BULK: Duration = Duration::from_millis(80);
/// Clients of the first one.
const CLIENTS: usize = 3;
/// Connections that come at once in the second, and how long they may take. A SYN that is lost comes again after a second.
const BURST: usize = 1_000;
const BURST_PATIENCE: Duration = Duration::from_millis(60);
/// What its server asks for; `net.core.somaxconn` cuts it.
const BACKLOG: i32 = 65_535;
/// Folders of `/proc/sys` that are replicated.
const FOLDERS: [&str; 2] = ["net/ipv4", "net/core"];

/// Runs something with a replica of this machine's network settings.
pub(super) fn with<T: Send>(run: impl FnOnce(&mut dyn Place) -> Result<T, String> + Send) -> Result<T, String> {
    let host = Namespace::current().map_err(|e| format!("this network namespace: {e}"))?;
    let settings = settings();
    let inside = move || {
        for (name, value) in settings {
            if facts::setting(&name).is_some_and(|here| here != value) {
                // What cannot be set in a namespace is the whole machine's, and as it is there.
                let _ = facts::set(&name, &value);
            }
        }
        run(&mut Replica { host })
    };
    namespace::inside(inside)
        .unwrap_or_else(|| Err("a replica needs root, for a network namespace of its own".to_owned()))
}

fn settings() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for folder in FOLDERS {
        let entries = std::fs::read_dir(format!("/proc/sys/{folder}")).into_iter().flatten().flatten();
        for entry in entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file())) {
            let name = format!("{}.{}", folder.replace('/', "."), entry.file_name().to_string_lossy());
            facts::setting(&name).into_iter().for_each(|value| drop(all.insert(name.clone(), value)));
        }
    }
    all
}

struct Replica {
    host: Namespace,
}

impl Replica {
    /// A setting's value outside.
    fn outside<T: Send>(&self, look: impl FnOnce() -> T + Send) -> Result<T, String> {
        let look = || self.host.enter().map(|()| look());
        let looked = std::thread::scope(|scope| scope.spawn(look).join());
        looked.map_err(|_| "a look outside failed".to_owned())?.map_err(|e| format!("back to the machine: {e}"))
    }
}

impl Place for Replica {
    fn workloads(&self) -> &'static [&'static str] {
        &["short connections, per second", "of 1,000 connects at once, in time", "one connection, MB per second"]
    }

    fn value(&self, name: &str) -> Option<String> {
        // Others are the whole machine's.
        facts::setting(name).filter(|_| name.starts_with("net."))
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let before = self.outside(|| facts::setting(name))?;
        facts::set(name, value).map_err(|e| format!("{name} = {value}: {e}"))?;
        let after = self.outside(|| facts::setting(name))?;
        if before == after {
            return Ok(());
        }
        // It is shared after all: the machine gets its own back at once.
        let restored = self.outside(|| before.as_ref().map_or(Ok(()), |old| facts::set(name, old)))?;
        restored.map_err(|e| format!("{name} should be {before:?} again: {e}"))?;
        Err(format!("{name} belongs to the whole machine: only --live can prove it"))
    }

    fn measure(&mut self) -> Result<Vec<f64>, String> {
        let failed = |e: std::io::Error| format!("a workload: {e}");
        Ok(vec![short().map_err(failed)?, burst().map_err(failed)?, bulk().map_err(failed)?])
    }
}

/// Connections with a small request and a small answer, one after the other in each of some clients.
fn short() -> std::io::Result<f64> {
    let listener = listen()?;
    let address = listener.local_addr()?;
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((mut stream, _)) = listener.accept() {
                if over.load(Relaxed) {
                    return;
                }
                let _ = stream.read(&mut [0; 128]).and_then(|_| stream.write_all(&[b'x'; 512]));
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    while began.elapsed() < SHORT {
                        if ask(address).is_ok() {
                            done.fetch_add(1, Relaxed);
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|c| drop(c.join()));
        over.store(true, Relaxed);
        drop(TcpStream::connect(address));
    });
    Ok(done.into_inner() as f64 / began.elapsed().as_secs_f64())
}

fn ask(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(&[b'x'; 64])?;
    stream.read_exact(&mut [0; 512])?;
    // It ends with a reset: what one measurement leaves behind must not slow the next one.
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

/// Many connections at once to a server that is busy: how many stand before a SYN would have to come again.
fn burst() -> std::io::Result<f64> {
    let listener = listen()?;
    let address = SockAddr::from(listener.local_addr()?);
    let mut clients = Vec::with_capacity(BURST);
    for _ in 0..BURST {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&address) {
            Err(e) if e.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => return Err(e),
            _ => clients.push(socket),
        }
    }
    let (began, mut stand) = (Instant::now(), 0);
    while stand < BURST && began.elapsed() < BURST_PATIENCE {
        // A client believes that it is connected before the server's queue has it: what is accepted counts.
        listener.set_nonblocking(true)?;
        match listener.accept() {
            Ok((stream, _)) => {
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                stand += 1;
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(e) => return Err(e),
        }
    }
    clients.iter().try_for_each(|c| c.set_linger(Some(Duration::ZERO)))?;
    Ok(stand as f64)
}

/// As much as one connection carries.
fn bulk() -> std::io::Result<f64> {
    let listener = listen()?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut all, mut buffer) = (0_u64, vec![0; 256 * 1024]);
            while let Ok(n @ 1..) = server.read(&mut buffer) {
                all += n as u64;
            }
            all
        });
        let (began, block) = (Instant::now(), vec![b'x'; 256 * 1024]);
        while began.elapsed() < BULK {
            client.write_all(&block)?;
        }
        drop(client);
        let all = reader.join().unwrap_or(0);
        Ok(all as f64 / 1e6 / began.elapsed().as_secs_f64())
    })
}

fn listen() -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 0))))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
