//! A listener that does not keep up, with a backlog of 16; then with one of 4096.

use super::{Bench, Outcome, Stop, failed};
use rustix::net::listen;
use socket2::{Domain, SockAddr, Socket, Type};
use std::net::SocketAddr;

const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 8080);
/// Clients that come at once.
const CLIENTS: usize = 64;
const SHORT: i32 = 16;
const LONG: i32 = 4096;

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let address = SockAddr::from(SocketAddr::from(ADDRESS));
    let server = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(failed("socket"))?;
    server.bind(&address).and_then(|()| server.listen(SHORT)).map_err(failed("listen"))?;
    bench.say(&format!("  a server listens with a backlog of {SHORT} and is busy; {CLIENTS} clients come"));
    let clients: Vec<Socket> = (0..CLIENTS).map(|_| client(&address)).collect::<Result<_, _>>()?;
    bench
        .wait("no connection was dropped", || machine::counters::Moving::read().count("TcpExt.ListenOverflows") > 0)?;
    let connected = clients.iter().filter(|c| c.peer_addr().is_ok()).count();
    bench.say(&format!("  {connected} of {CLIENTS} clients are connected"));
    let finding = bench.found("accept-queue-full", &[])?;
    if !finding.cure.iter().any(|c| c.contains("backlog=4096")) {
        return Err(Stop::Failed("the finding names no cure".into()));
    }
    // listen() on a socket that listens sets its backlog.
    listen(&server, LONG).map_err(|e| Stop::Failed(format!("listen: {e}")))?;
    bench.say(&format!("  the backlog is {LONG} now; clients send their SYNs again"));
    bench.wait("not all clients are connected", || clients.iter().all(|c| c.peer_addr().is_ok()))?;
    bench.say(&format!("  {CLIENTS} of {CLIENTS} clients are connected"));
    bench.gone("accept-queue-full", &[])
}

/// A client whose handshake the kernel makes while we look.
fn client(address: &SockAddr) -> Result<Socket, Stop> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(failed("socket"))?;
    socket.set_nonblocking(true).map_err(failed("socket"))?;
    match socket.connect(address) {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(socket),
        Err(e) => Err(failed("connect")(e)),
        Ok(()) => Ok(socket),
    }
}
