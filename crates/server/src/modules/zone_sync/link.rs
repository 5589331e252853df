//! Tells another node what has changed here: everything once it is there, then every `zone_sync_interval` what is new. On the service thread.

use super::{Cluster, NODE, Place, Server, say};
use crate::log::error::Level;
use crate::tls::client::Secure;
use crate::upstream::names;
use crate::zone::synced::{self, COUNTS, Member, Pending};
use resolve::ResolverConfig;
use runtime::clock;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use wire::zone_sync::{Frame, HELLO, Parsed, parse, read_hello, write_hello};

/// How often names are looked up again; their answers are kept for as long as they say.
const LOOK: Duration = Duration::from_secs(1);
/// Nodes that are told at most.
const MAX_NODES: usize = 128;
/// What a node may say without having been asked, bytes.
const MAX_SAID: usize = 4096;

/// Where a node is, once its name has been looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Target {
    Inet(SocketAddr),
    Unix(PathBuf),
}

/// A connection of whichever kind.
trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// Why a conversation ends.
enum End {
    /// The configuration is gone.
    Over,
    /// It is this process that answers.
    Itself,
    Lost(String),
}

/// The addresses of each server, by its name, as far as they are known.
#[derive(Default)]
struct Found {
    targets: RefCell<HashMap<Box<str>, Vec<Target>>>,
    changed: Notify,
}

/// Keeps a link to each address of each server, for as long as the configuration holds.
pub(super) async fn run(cluster: Weak<Cluster>) {
    let found = Rc::<Found>::default();
    let mut links: HashMap<Target, Rc<Cell<bool>>> = HashMap::new();
    let Some(servers) = cluster.upgrade().map(|cluster| cluster.servers.clone()) else { return };
    // Each for itself: a name whose server does not answer holds up nobody else.
    for number in 0..servers.len() {
        tokio::task::spawn_local(look_up(cluster.clone(), number, found.clone()));
    }
    while cluster.strong_count() > 0 {
        let targets = found.targets.borrow().clone();
        links.retain(|target, is_wanted| {
            let stays = targets.values().flatten().any(|t| t == target);
            is_wanted.set(stays);
            stays
        });
        for server in servers.iter() {
            for target in targets.get(&server.name).into_iter().flatten() {
                if links.len() < MAX_NODES && !links.contains_key(target) {
                    let is_wanted = Rc::new(Cell::new(true));
                    links.insert(target.clone(), is_wanted.clone());
                    let link = Link { cluster: cluster.clone(), target: target.clone(), name: host(server), is_wanted };
                    tokio::task::spawn_local(link.run());
                }
            }
        }
        let _ = timeout(LOOK, found.changed.notified()).await;
    }
}

/// Looks a server up: until it is found, or with `resolve` again and again.
async fn look_up(cluster: Weak<Cluster>, number: usize, found: Rc<Found>) {
    // That it cannot be found is said once.
    let mut is_unknown = false;
    loop {
        let Some((server, resolver)) = cluster.upgrade().map(|c| (c.servers[number].clone(), c.resolver.clone()))
        else {
            return;
        };
        match targets(resolver, &server).await {
            Ok(all) => {
                is_unknown = false;
                let before = found.targets.borrow_mut().insert(server.name.clone(), all.clone());
                if before.as_ref() != Some(&all) {
                    found.changed.notify_one();
                }
                if !server.resolve {
                    return;
                }
            }
            // The addresses that are known stay.
            Err(why) => {
                if !std::mem::replace(&mut is_unknown, true) {
                    say(Level::Error, &format!("zone_sync_server \"{}\": {why}", server.name));
                }
            }
        }
        sleep(LOOK).await;
    }
}

fn host(server: &Server) -> Box<str> {
    match &server.place {
        Place::Host(host, _) => host.clone(),
        Place::Unix(_) => "localhost".into(),
    }
}

async fn targets(resolver: Option<(Arc<ResolverConfig>, Duration)>, server: &Server) -> Result<Vec<Target>, String> {
    let (host, port) = match &server.place {
        Place::Unix(path) => return Ok(vec![Target::Unix(path.clone())]),
        Place::Host(host, port) => (host, *port),
    };
    if let Ok(ip) = host.parse() {
        return Ok(vec![Target::Inet(SocketAddr::new(ip, port))]);
    }
    if let Some((config, patience)) = resolver.filter(|_| server.resolve) {
        let ips = names::resolver(&config).resolve(host.as_bytes(), patience).await;
        let ips = ips.map_err(|e| format!("{host} could not be resolved ({e})"))?;
        return Ok(ips.iter().map(|ip| Target::Inet(SocketAddr::new(ip, port))).collect());
    }
    let all = tokio::net::lookup_host((&**host, port)).await;
    let all = all.map_err(|e| format!("{host} could not be resolved ({e})"))?;
    Ok(all.map(Target::Inet).collect())
}

struct Link {
    cluster: Weak<Cluster>,
    target: Target,
    /// Whom TLS asks for.
    name: Box<str>,
    is_wanted: Rc<Cell<bool>>,
}

/// A zone as this link tells of it.
struct Told {
    number: u16,
    member: Member,
    pending: Arc<Pending>,
}

impl Link {
    fn shown(&self) -> String {
        match &self.target {
            Target::Inet(address) => address.to_string(),
            Target::Unix(path) => format!("unix:{}", path.display()),
        }
    }

    async fn run(self) {
        let mut is_down = false;
        loop {
            let Some(cluster) = self.cluster.upgrade().filter(|_| self.is_wanted.get()) else { return };
            let retry = cluster.connect_retry_interval;
            let end = match timeout(cluster.connect_timeout, self.connect(&cluster)).await {
                Ok(Ok(stream)) => {
                    drop(cluster);
                    say(Level::Notice, &format!("zone_sync: node {} is online", self.shown()));
                    is_down = false;
                    COUNTS.online.fetch_add(1, Relaxed);
                    let end = self.talk(stream).await;
                    COUNTS.online.fetch_sub(1, Relaxed);
                    end
                }
                Ok(Err(end)) => end,
                Err(_) => End::Lost("connection timed out".to_owned()),
            };
            match end {
                End::Over => return,
                // Every node may have the same list.
                End::Itself => return say(Level::Info, &format!("zone_sync: {} is this node", self.shown())),
                End::Lost(why) => {
                    if !std::mem::replace(&mut is_down, true) {
                        say(Level::Error, &format!("zone_sync: node {} is offline: {why}", self.shown()));
                    }
                }
            }
            sleep(retry).await;
        }
    }

    /// A connection on which both sides have said hello.
    async fn connect(&self, cluster: &Cluster) -> Result<Box<dyn Stream>, End> {
        let lost = |e: std::io::Error| End::Lost(crate::log::os_error(&e));
        let secure = cluster.tls.as_ref().map(|tls| tls.for_checks(self.name.as_bytes(), &[]));
        let mut stream: Box<dyn Stream> = match &self.target {
            Target::Unix(path) => shake(secure, UnixStream::connect(path).await.map_err(lost)?).await?,
            Target::Inet(address) => {
                let stream = TcpStream::connect(address).await.map_err(lost)?;
                let _ = stream.set_nodelay(true);
                shake(secure, stream).await?
            }
        };
        let mut hello = Vec::new();
        write_hello(*NODE, &mut hello);
        stream.write_all(&hello).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        let mut input = Vec::new();
        loop {
            match read_hello(&input) {
                Ok(Some(node)) if node == *NODE => return Err(End::Itself),
                Ok(Some(_)) => return Ok(stream),
                Ok(None) => {}
                Err(invalid) => return Err(End::Lost(invalid.0.to_owned())),
            }
            let mut piece = [0; HELLO];
            let room = HELLO - input.len();
            match stream.read(&mut piece[..room]).await.map_err(lost)? {
                0 => return Err(End::Lost("it has closed the connection".to_owned())),
                n => input.extend_from_slice(&piece[..n]),
            }
        }
    }

    /// Tells the node everything, and from then on what changes.
    async fn talk(&self, stream: Box<dyn Stream>) -> End {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut told: Vec<Told> = Vec::new();
        let (mut next, mut heard, mut said) = (0u16, Instant::now(), Vec::new());
        // What a node that is new, or far behind, is told of: the zones' numbers and keys.
        let mut whole: VecDeque<(u16, Box<[u8]>)> = VecDeque::new();
        let mut out = Vec::new();
        loop {
            let Some(cluster) = self.cluster.upgrade().filter(|_| self.is_wanted.get()) else { return End::Over };
            let (batch, interval, patience) = (cluster.batch, cluster.interval, cluster.timeout);
            drop(cluster);
            told.retain(|t| t.member.contents().is_some());
            for member in synced::members() {
                let is_known = |t: &Told| Arc::ptr_eq(&t.member.changes, &member.changes);
                let Some(contents) = member.contents().filter(|_| !told.iter().any(is_known)) else { continue };
                next = next.wrapping_add(1);
                let pending = member.changes.link();
                let zone = Frame::Zone { number: next, kind: Some(member.kind), name: &member.name };
                if zone.write(&mut out) {
                    COUNTS.messages_out.fetch_add(1, Relaxed);
                    whole.extend(contents.keys().into_iter().map(|key| (next, key)));
                }
                told.push(Told { number: next, member, pending });
            }
            for told in &told {
                let (keys, is_behind) = told.pending.take();
                let Some(contents) = told.member.contents() else { continue };
                if is_behind {
                    whole.extend(contents.keys().into_iter().map(|key| (told.number, key)));
                }
                for (key, times) in keys {
                    record(told, &key, times, &mut out);
                    if out.len() >= batch
                        && let Err(end) = send(&mut writer, &mut out, patience).await
                    {
                        return end;
                    }
                }
            }
            while let Some((number, key)) = whole.pop_front() {
                if let Some(told) = told.iter().find(|t| t.number == number) {
                    record(told, &key, 1, &mut out);
                }
                if out.len() >= batch {
                    break;
                }
            }
            Frame::Beat.write(&mut out);
            COUNTS.messages_out.fetch_add(1, Relaxed);
            if let Err(end) = send(&mut writer, &mut out, patience).await {
                return end;
            }
            // There is more to say: at once, but what changes meanwhile comes in between.
            let pause = if whole.is_empty() { interval } else { Duration::ZERO };
            let until = Instant::now() + pause;
            loop {
                let mut piece = [0; 512];
                tokio::select! {
                    biased;
                    read = reader.read(&mut piece) => match read {
                        Ok(0) => return End::Lost("it has closed the connection".to_owned()),
                        Err(e) => return End::Lost(crate::log::os_error(&e)),
                        Ok(n) => {
                            said.extend_from_slice(&piece[..n]);
                            if let Err(end) = listen(&mut said) {
                                return end;
                            }
                            heard = Instant::now();
                        }
                    },
                    () = tokio::time::sleep_until(until) => break,
                }
            }
            if heard.elapsed() > patience.max(interval * 2) {
                return End::Lost("it says nothing any more (110: Connection timed out)".to_owned());
            }
        }
    }
}

/// Takes the beats that come back.
fn listen(said: &mut Vec<u8>) -> Result<(), End> {
    loop {
        match parse(said) {
            Ok(Parsed::Complete(_, len)) => drop(said.drain(..len)),
            Ok(Parsed::Partial) if said.len() <= MAX_SAID => return Ok(()),
            Ok(Parsed::Partial) => return Err(End::Lost("it says more than it was asked".to_owned())),
            Err(invalid) => return Err(End::Lost(invalid.0.to_owned())),
        }
    }
}

fn record(told: &Told, key: &[u8], times: u32, out: &mut Vec<u8>) {
    let Some(value) = told.member.contents().and_then(|contents| contents.value(key, times)) else { return };
    let frame = Frame::Record { number: told.number, key, value: &value };
    if frame.write(out) {
        COUNTS.messages_out.fetch_add(1, Relaxed);
    } else {
        let name = String::from_utf8_lossy(&told.member.name);
        say(Level::Error, &format!("zone_sync: a record of zone \"{name}\" is too long for other nodes"));
    }
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), out: &mut Vec<u8>, patience: Duration) -> Result<(), End> {
    let all = async {
        writer.write_all(out).await?;
        writer.flush().await
    };
    match timeout(patience, all).await {
        Ok(Ok(())) => {
            COUNTS.bytes_out.fetch_add(out.len() as u64, Relaxed);
            out.clear();
            Ok(())
        }
        Ok(Err(e)) => Err(End::Lost(crate::log::os_error(&e))),
        Err(_) => Err(End::Lost("it takes nothing any more (110: Connection timed out)".to_owned())),
    }
}

/// With TLS: the node is who it must be when this has gone well.
async fn shake<S: Stream + 'static>(secure: Option<Secure>, stream: S) -> Result<Box<dyn Stream>, End> {
    let Some(secure) = secure else { return Ok(Box::new(stream)) };
    let shaken = TlsConnector::from(secure.config()).connect(secure.server_name(), stream).await;
    let stream = shaken.map_err(|e| End::Lost(format!("SSL_do_handshake() failed (SSL: {e})")))?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    secure.verify(chain, clock::wall_seconds()).map_err(|distrust| End::Lost(distrust.to_string()))?;
    Ok(Box::new(stream))
}
