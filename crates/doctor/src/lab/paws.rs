//! Two clients behind one NAT address: the server closes first and remembers the first one's timestamps for a minute; the second one, whose
//! clock is behind, comes from the same port and is turned away (PAWS, RFC 7323 section 5). The server answers with an ACK, upon which a Linux client
//! resets what it does not know and sends its SYN again after some milliseconds; a client that does not get that ACK (a firewall takes it for a stray
//! one), or is no Linux, comes a second later. So it is the kernel's counter that tells, and not the time.

use super::{Bench, Outcome, Stop, failed};
use socket2::{Domain, SockAddr, Socket, Type};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

const SETTING: &str = "net.ipv4.tcp_timestamps";
/// The NAT's ports: of each half of them, where clocks are drawn for each port, half are behind.
const PORTS: std::ops::Range<u16> = 41_000..41_400;
/// Ports of each half that are looked at for one whose clock is behind: that all of them are not is chance once in 4,096.
const TRIED: usize = 12;
/// SYNs that were turned away.
const COUNTER: &str = "TcpExt.PAWSTimewait";
/// A handshake on loopback that takes longer is not at once.
const AT_ONCE: Duration = Duration::from_millis(500);

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let server = TcpListener::bind(("127.0.0.1", 80)).map_err(failed("listen"))?;
    // Timestamps of 1 have an offset, for each pair of addresses or, since Linux 6.18, of addresses and ports; those of 2 have none: two clocks. Which
    // is behind is chance, and as long as the machine runs the same: what decides is kept from its start on.
    let orders = [("1", "2"), ("2", "1")];
    let first_behind =
        |bench: &mut Bench, (first, second): (&str, &str), ports: &[u16]| -> Result<Option<usize>, Stop> {
            bench.set(SETTING, first)?;
            ports.iter().try_for_each(|port| closed_by_the_server(&server, *port))?;
            bench.set(SETTING, second)?;
            for (at, port) in ports.iter().enumerate().take(TRIED) {
                let before = turned_away();
                connects_in(*port)?;
                if turned_away() > before {
                    return Ok(Some(at));
                }
            }
            Ok(None)
        };
    let ports: Vec<u16> = PORTS.collect();
    let (some, others) = ports.split_at(ports.len() / 2);
    bench.say("  the server closes connections from ports of the NAT; then another client has these ports");
    let left = if let Some(at) = first_behind(bench, orders[0], some)? {
        &some[at + 1..]
    } else if let Some(at) = first_behind(bench, orders[1], others)? {
        &others[at + 1..]
    } else {
        return Err(Stop::LeftOut("this kernel turns none of them away".into()));
    };
    bench.say("  a client whose clock is behind: its first SYN is turned away");
    let clients = left.to_vec();
    // A look is short: while the clients come, it is repeated.
    let found = std::thread::scope(|scope| {
        let coming = scope.spawn(|| clients.iter().for_each(|port| drop(begin(*port))));
        loop {
            match bench.found("timestamps-behind-nat", &[]) {
                Err(Stop::Failed(_)) if !coming.is_finished() => {}
                other => break other,
            }
        }
    });
    found?;
    bench.set(SETTING, "0")?;
    let next = PORTS.end;
    closed_by_the_server(&server, next)?;
    let (before, time) = (turned_away(), connects_in(next)?);
    if time > AT_ONCE || turned_away() > before {
        return Err(Stop::Failed(format!("without timestamps it is turned away all the same ({time:?})")));
    }
    bench.say("  without timestamps the next client of the port is connected at once");
    bench.gone("timestamps-behind-nat", &[])
}

fn turned_away() -> u64 {
    machine::counters::Moving::read().count(COUNTER)
}

fn socket(port: u16) -> Result<Socket, Stop> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(failed("socket"))?;
    socket.set_reuse_address(true).map_err(failed("socket"))?;
    socket.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 2], port)))).map_err(failed("bind"))?;
    Ok(socket)
}

fn server_address() -> SockAddr {
    SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 80)))
}

/// A connection that leaves its TIME_WAIT at the server.
fn closed_by_the_server(server: &TcpListener, port: u16) -> Outcome {
    let client = socket(port)?;
    client.connect(&server_address()).map_err(failed("connect"))?;
    // Others that nobody waited for may be in the queue before it.
    while server.accept().map_err(failed("accept"))?.1.port() != port {}
    // The server's FIN is there before the client closes: the first to close is who waits.
    let mut end = [std::mem::MaybeUninit::uninit(); 1];
    client.recv(&mut end).map_err(failed("the server's end"))?;
    Ok(())
}

/// How long a handshake takes from a port of the NAT.
fn connects_in(port: u16) -> Result<Duration, Stop> {
    let (client, began) = (socket(port)?, Instant::now());
    client.connect_timeout(&server_address(), Duration::from_secs(5)).map_err(failed("connect"))?;
    Ok(began.elapsed())
}

/// A handshake that nobody waits for.
fn begin(port: u16) -> Result<Socket, Stop> {
    let client = socket(port)?;
    client.set_nonblocking(true).map_err(failed("socket"))?;
    let _ = client.connect(&server_address());
    std::thread::sleep(Duration::from_millis(2));
    Ok(client)
}
