//! The way to the name servers: one connected UDP socket each, opened when first needed, and a TCP connection for each truncated
//! answer. Hands every message to the engine; a broken socket is closed, opened anew at the next query, and its queries move on.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::{Rc, Weak};

use tokio::net::{TcpStream, UdpSocket};
use tokio::task::AbortHandle;

use super::engine::Engine;
use super::message::Transport;

/// Largest UDP answer read; nginx's number. Without EDNS servers send 512 at most.
const UDP_SIZE: usize = 4096;

/// One configured server.
pub(super) struct NameServer {
    pub(super) address: SocketAddr,
    udp: RefCell<Option<Udp>>,
}

struct Udp {
    socket: Rc<UdpSocket>,
    reader: AbortHandle,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        if let Some(udp) = self.udp.take() {
            udp.reader.abort();
        }
    }
}

impl NameServer {
    pub(super) fn new(address: SocketAddr) -> Self {
        NameServer { address, udp: RefCell::new(None) }
    }

    /// The socket of server number `index`; opens it and starts its reader.
    pub(super) fn udp(&self, engine: &Weak<Engine>, index: usize) -> io::Result<Rc<UdpSocket>> {
        if let Some(udp) = &*self.udp.borrow() {
            return Ok(udp.socket.clone());
        }
        let any: SocketAddr = match self.address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        socket.connect(self.address)?;
        socket.set_nonblocking(true)?;
        let socket = Rc::new(UdpSocket::from_std(socket)?);
        let reader = tokio::task::spawn_local(read_udp(engine.clone(), index, socket.clone())).abort_handle();
        *self.udp.borrow_mut() = Some(Udp { socket: socket.clone(), reader });
        Ok(socket)
    }

    /// Forgets the socket and ends its reader.
    pub(super) fn close_udp(&self) {
        if let Some(udp) = self.udp.take() {
            udp.reader.abort();
        }
    }
}

async fn read_udp(engine: Weak<Engine>, index: usize, socket: Rc<UdpSocket>) {
    let mut buffer = vec![0; UDP_SIZE];
    loop {
        let received = socket.recv(&mut buffer).await;
        let Some(engine) = engine.upgrade() else { return };
        match received {
            Ok(length) => engine.receive(&buffer[..length], Transport::Udp),
            Err(error) => return engine.udp_failed(index, &error),
        }
    }
}

/// Sends one query and hands in one answer; the time allowed is the engine's.
pub(super) async fn ask_over_tcp(engine: Weak<Engine>, index: usize, address: SocketAddr, query: Rc<[u8]>) {
    let Some(allowed) = engine.upgrade().map(|engine| engine.timing.tcp) else { return };
    let exchanged = tokio::time::timeout(allowed, exchange(address, &query)).await;
    let Some(engine) = engine.upgrade() else { return };
    match exchanged {
        Ok(Ok(answer)) => engine.receive(&answer, Transport::Tcp),
        // As in nginx, a silent server is left by the resend timer.
        Err(_) => {}
        Ok(Err((call, error))) => engine.server_failed(index, &call, &error),
    }
}

/// RFC 1035 section 4.2.2: each message follows its length in two bytes, so a message ends at 65535 bytes.
async fn exchange(address: SocketAddr, query: &[u8]) -> Result<Vec<u8>, (String, io::Error)> {
    let failed = |call: &str| {
        let call = call.to_owned();
        move |error| (call, error)
    };
    let stream = TcpStream::connect(address).await.map_err(failed(&format!("connect() to {address}")))?;
    let mut framed = Vec::with_capacity(2 + query.len());
    let length = u16::try_from(query.len()).expect("a query is at most a name and 18 bytes");
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(query);
    write_all(&stream, &framed).await.map_err(failed("send()"))?;
    let mut length = [0; 2];
    read_exact(&stream, &mut length).await.map_err(failed("recv()"))?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    read_exact(&stream, &mut answer).await.map_err(failed("recv()"))?;
    Ok(answer)
}

// tokio's own `read_exact` and `write_all` need its feature `io-util`, which nothing else here needs.
pub(super) async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) async fn read_exact(stream: &TcpStream, mut room: &mut [u8]) -> io::Result<()> {
    while !room.is_empty() {
        stream.readable().await?;
        match stream.try_read(room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => room = &mut room[read..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An I/O error as nginx writes it: `(111: Connection refused)`.
pub(super) fn error_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            format!("({number}: {text})")
        }
        None => format!("({error})"),
    }
}
