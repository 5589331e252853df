//! Local ports: used up by TIME_WAIT, and taken by a client from a service.

use super::{Bench, Outcome, Stop, failed};
use crate::configuration::{Configuration, Listen};
use crate::facts::Facts;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const RANGE: &str = "net.ipv4.ip_local_port_range";
const PORTS: usize = 100;

/// A client that closes its connections itself: each keeps its port for a minute.
pub(super) fn used_up(bench: &mut Bench) -> Outcome {
    let server = TcpListener::bind(("127.0.0.1", 80)).map_err(failed("listen"))?;
    let address = server.local_addr().map_err(failed("listen"))?;
    bench.set(RANGE, "40000 40099")?;
    // On loopback the kernel uses such ports again after a second, unless it is told not to.
    bench.set("net.ipv4.tcp_tw_reuse", "0")?;
    let mut made = 0;
    let error = loop {
        match once(&server, address) {
            Ok(()) => made += 1,
            Err(e) => break e,
        }
        if made > PORTS {
            return Err(Stop::Failed(format!("{made} connections had a port, of {PORTS}")));
        }
    };
    bench.say(&format!("  {made} connections, each closed by the client; the next one: {error}"));
    if error.kind() != ErrorKind::AddrNotAvailable {
        return Err(failed("connect")(error));
    }
    bench.found("local-ports-used-up", &[])?;
    bench.set("net.ipv4.tcp_tw_reuse", "1")?;
    bench.wait("no port can be used again", || once(&server, address).is_ok())?;
    bench.say("  connections are made again");
    bench.set(RANGE, "20000 60999")?;
    once(&server, address).map_err(failed("connect"))?;
    bench.gone("local-ports-used-up", &[])
}

/// A connection that the client ends first.
fn once(server: &TcpListener, address: SocketAddr) -> std::io::Result<()> {
    let client = TcpStream::connect(address)?;
    let (accepted, _) = server.accept()?;
    drop(client);
    drop(accepted);
    Ok(())
}

/// The client that took 5191: a service was down while somebody connected.
pub(super) fn thief(bench: &mut Bench) -> Outcome {
    const PORT: u16 = 5191;
    let other = TcpListener::bind(("127.0.0.1", 80)).map_err(failed("listen"))?;
    let address = other.local_addr().map_err(failed("listen"))?;
    bench.set(RANGE, "5191 5191")?;
    let client = TcpStream::connect(address).map_err(failed("connect"))?;
    bench.say(&format!("  a client of {address} was given the port {PORT}"));
    let service = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(SocketAddr::from(([0, 0, 0, 0], PORT))))?;
        socket.listen(16)?;
        Ok::<Socket, std::io::Error>(socket)
    };
    match service() {
        Err(e) => bench.say(&format!("  the service of port {PORT} starts: {e}")),
        Ok(_) => return Err(Stop::Failed("the service has its port all the same".into())),
    }
    let listen =
        Listen { address: PORT.to_string(), port: PORT, place: "the lab's configuration".into(), ..Listen::default() };
    let conf = [Configuration { listens: vec![listen], ..Configuration::default() }];
    let finding = bench.found("port-taken", &conf)?;
    if !finding.what.contains(&format!("process {}", std::process::id())) {
        return Err(Stop::Failed(format!("it names another process: {}", finding.what)));
    }
    // The kernel has no other port to give, and does not give this one.
    bench.set("net.ipv4.ip_local_reserved_ports", "5191")?;
    // It ends with a reset: TIME_WAIT would keep the port from the service for another minute.
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).map_err(failed("linger"))?;
    drop(client);
    drop(other.accept());
    match TcpStream::connect(address) {
        Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {
            bench.say("  another client gets no port at all rather than this one")
        }
        Err(e) => return Err(failed("connect")(e)),
        Ok(_) => return Err(Stop::Failed("a reserved port was given to a client".into())),
    }
    bench.set(RANGE, "5190 5195")?;
    let others: Vec<u16> =
        (0..4).filter_map(|_| TcpStream::connect(address).ok()?.local_addr().ok()).map(|a| a.port()).collect();
    bench.say(&format!("  with more ports, clients get {others:?}"));
    if others.is_empty() || others.contains(&PORT) {
        return Err(Stop::Failed("clients get none, or the reserved one".into()));
    }
    let _service = service().map_err(failed("the service's start"))?;
    if !Facts::takers(&conf).is_empty() {
        return Err(Stop::Failed("a client still has the port".into()));
    }
    bench.say("  the service listens; no client has its port");
    bench.gone("ports-unreserved", &conf)
}
