//! One QUIC connection on a UDP socket of its own: datagrams in, datagrams out. The library is the protocol, without sockets or
//! clocks. What it carries: `http3`.

use super::now_ns;
use crate::plan::tls::Tls;
use crate::plan::verifier;
use crate::sample::Failure;
use bytes::{Bytes, BytesMut};
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointConfig, Transmit,
    TransportErrorCode, VarInt,
};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::http3::ErrorCode;

/// Messages of one read; each may be several datagrams that the kernel has put together.
const MESSAGES: usize = 4;
/// Room for such a message: the longest there is.
const ROOM: usize = 64 * 1024;
/// Datagrams made at once: at most 64 kB together.
const SEGMENTS: usize = 40;

/// The time of the library, from ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    ns: u64,
    instant: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { ns: now_ns(), instant: Instant::now() }
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        self.instant + Duration::from_nanos(ns.saturating_sub(self.ns))
    }

    pub(crate) fn ns(&self, instant: Instant) -> u64 {
        self.ns + instant.saturating_duration_since(self.instant).as_nanos() as u64
    }
}

/// What the QUIC connections of a thread share: room for datagrams.
pub(crate) struct Rooms {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Rooms {
    pub(crate) fn new() -> Rooms {
        Rooms { incoming: vec![0; MESSAGES * ROOM], outgoing: Vec::new() }
    }
}

/// A connection and its way through the socket. Dropping it says nothing to the target; [`Quic::close`] does.
pub(crate) struct Quic {
    pub connection: Connection,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    udp: UdpSocketState,
    /// What found no room in the socket's buffer.
    unsent: Option<(Transmit, Vec<u8>)>,
    /// A certificate was looked at in the handshake.
    has_looked: bool,
}

impl Quic {
    /// Begins a handshake on a socket that is connected to `target`. [`Quic::send`] sends its first packet.
    pub(crate) fn new(socket: &OwnedFd, tls: &Tls, target: SocketAddr, now: Instant) -> io::Result<Quic> {
        let udp = UdpSocketState::new(UdpSockRef::from(socket))?;
        let config = tls.quic.clone().ok_or(ErrorKind::Unsupported)?;
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, !udp.may_fragment(), None);
        let begun = endpoint.connect(now, config, target, &tls.name.to_str());
        let (handle, connection) = begun.map_err(io::Error::other)?;
        Ok(Quic { connection, endpoint, handle, udp, unsent: None, has_looked: false })
    }

    /// Reads what has come; how many bytes.
    pub(crate) fn receive(&mut self, socket: &OwnedFd, now: Instant, rooms: &mut Rooms) -> io::Result<usize> {
        let mut sum = 0;
        loop {
            let mut metas = [RecvMeta::default(); MESSAGES];
            let mut places = rooms.incoming.chunks_mut(ROOM).map(IoSliceMut::new);
            let mut slices: [IoSliceMut<'_>; MESSAGES] =
                std::array::from_fn(|_| places.next().expect("as many rooms as messages"));
            let count = match self.udp.recv(UdpSockRef::from(socket), &mut slices, &mut metas) {
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(sum),
                Err(e) => return Err(e),
            };
            for (room, meta) in rooms.incoming.chunks(ROOM).zip(&metas[..count]) {
                sum += meta.len;
                self.take(now, &room[..meta.len], meta);
            }
            // A read that was not full has emptied the socket.
            if count < MESSAGES {
                return Ok(sum);
            }
        }
    }

    fn take(&mut self, now: Instant, bytes: &[u8], meta: &RecvMeta) {
        let ecn = meta.ecn.and_then(|e| EcnCodepoint::from_bits(e as u8));
        let mut rest = BytesMut::from(bytes);
        let mut answer = Vec::new();
        while !rest.is_empty() {
            let datagram = rest.split_to(meta.stride.clamp(1, rest.len()));
            let event = self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, datagram, &mut answer);
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                verifier::has_looked();
                self.connection.handle_event(event);
                self.has_looked |= verifier::has_looked();
            }
        }
    }

    /// Sends what there is to send, as far as the socket takes it; how many bytes.
    pub(crate) fn send(&mut self, socket: &OwnedFd, now: Instant, rooms: &mut Rooms) -> io::Result<usize> {
        let mut sum = 0;
        if let Some((transmit, bytes)) = self.unsent.take() {
            sum += transmit.size;
            if !self.transmit(socket, &transmit, &bytes)? {
                self.unsent = Some((transmit, bytes));
                return Ok(0);
            }
        }
        let segments = self.udp.max_gso_segments().clamp(1, SEGMENTS);
        loop {
            rooms.outgoing.clear();
            let Some(transmit) = self.connection.poll_transmit(now, segments, &mut rooms.outgoing) else { break };
            if !self.transmit(socket, &transmit, &rooms.outgoing)? {
                self.unsent = Some((transmit, rooms.outgoing.clone()));
                break;
            }
            sum += transmit.size;
        }
        self.tell_endpoint();
        Ok(sum)
    }

    /// False: there is no room now.
    fn transmit(&self, socket: &OwnedFd, transmit: &Transmit, bytes: &[u8]) -> io::Result<bool> {
        let message = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|e| quinn_udp::EcnCodepoint::from_bits(e as u8)),
            contents: &bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.udp.try_send(UdpSockRef::from(socket), &message) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            // A probe for a larger packet than the way takes: lost, as it may be.
            Err(e) if quinn_udp::is_msg_size_err(&e) => Ok(true),
            other => other.map(|()| true),
        }
    }

    fn tell_endpoint(&mut self) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if event.is_drained() {
                return;
            }
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(answer);
            }
        }
    }

    /// The handshake took up a former session.
    pub(crate) fn is_resumed(&self) -> bool {
        !self.has_looked
    }

    /// Packets that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.connection.stats().path.lost_packets
    }

    /// Ends the connection; the next [`Quic::send`] says so.
    pub(crate) fn close(&mut self, now: Instant, code: ErrorCode) {
        self.connection.close(now, VarInt::from_u32(code.0), Bytes::new());
    }
}

/// Why a connection is lost.
pub(crate) fn failure(reason: &ConnectionError) -> Failure {
    let is_tls = |code: TransportErrorCode| (0x100..0x200).contains(&u64::from(code));
    match reason {
        ConnectionError::TransportError(e) if is_tls(e.code) => Failure::Tls,
        ConnectionError::ConnectionClosed(e) if is_tls(e.error_code) => Failure::Tls,
        ConnectionError::ConnectionClosed(e) if e.error_code == TransportErrorCode::CONNECTION_REFUSED => {
            Failure::Refused
        }
        ConnectionError::Reset => Failure::Reset,
        ConnectionError::VersionMismatch | ConnectionError::TransportError(_) => Failure::Protocol,
        _ => Failure::Closed,
    }
}
