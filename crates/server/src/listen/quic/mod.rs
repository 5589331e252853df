//! Datagrams of a QUIC socket: each goes to its connection, begins one, or is answered at once. From: the kernel. To:
//! `connection::http3`.
//!
//! ```text
//! mod.rs         the endpoint: socket <-> connections
//! bursts.rs      when a connection goes on sending
//! ids.rs         connection ids that name their thread
//! mail.rs        datagrams that came to another thread
//! keys.rs        what `quic_host_key` is good for
//! tokens.rs      addresses that need no check
//! transport.rs   limits
//! ```

mod bursts;
pub(super) mod ids;
mod keys;
mod mail;
mod tokens;
mod transport;

use super::Listener;
use crate::connection::{self, Address};
use crate::log::error::Level;
use crate::modules::http3::Conf;
use crate::process_settings::ListenAddress;
use crate::snapshot::ThreadSnapshot;
use crate::tls::quic::with_client;
use bytes::BytesMut;
use ids::{Ids, Owner, ServerId};
pub use ids::{LEN as ID_LEN, SOCKET as ID_SOCKET};
use mail::{Letter, Mailbox};
use quinn_proto::{
    ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointConfig, EndpointEvent, Incoming,
    ServerConfig, Transmit,
};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use runtime::TaskId;
use runtime::io::Interest;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Reads of one turn, before connections get theirs.
const READS: usize = 4;
/// Messages of one read. Each may hold datagrams of one sender that the kernel has put together.
const MESSAGES: usize = 8;
/// Room for such a message: the longest there is.
const ROOM: usize = 65536;
/// After so much work on new connections a thread looks at those it has: an RSA key of 2048 bits takes this and more.
const ADMIT: Duration = Duration::from_micros(300);
/// With more handshakes under way than this, a client's address is checked first whatever `quic_retry` says.
const CALM: usize = 256;
/// Bytes of one connection's datagrams that one call sends: with their headers the kernel takes 64 kB.
const AT_ONCE: usize = 65_000;

/// The QUIC side of one listening socket.
pub struct Endpoint {
    listener: Rc<Listener>,
    udp: UdpSocketState,
    proto: RefCell<quinn_proto::Endpoint>,
    links: RefCell<Vec<Option<Rc<QuicLink>>>>,
    incoming: RefCell<VecDeque<Incoming>>,
    ids: Ids,
    mailbox: Arc<Mailbox>,
    /// The configuration that new connections begin with, by its snapshot's number.
    generation: Cell<u64>,
    /// The same for those of clients on this machine.
    inside: RefCell<Option<Arc<ServerConfig>>>,
    retry: Cell<bool>,
    gso: Cell<bool>,
    /// Connections whose handshake is under way.
    pub shaking: Cell<usize>,
    /// Connections that found no room in the socket's buffer.
    blocked: RefCell<Vec<TaskId>>,
    task: Cell<TaskId>,
}

/// A connection as its endpoint knows it.
pub struct QuicLink {
    /// Where it belongs.
    pub endpoint: Rc<Endpoint>,
    handle: ConnectionHandle,
    inbox: RefCell<Vec<ConnectionEvent>>,
    task: Cell<TaskId>,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves a socket until its listener is closed and the last connection is over.
pub async fn serve(listener: Rc<Listener>) {
    listener.task.set(Some(runtime::current()));
    let endpoint = match Endpoint::new(listener) {
        Ok(endpoint) => Rc::new(endpoint),
        Err(e) => {
            let text = crate::log::os_error(&e);
            return crate::log::process_line(Level::Alert, format_args!("a QUIC socket could not be served ({text})"));
        }
    };
    poll_fn(|cx| endpoint.turn(cx)).await;
    endpoint.listener.registration.remove(&endpoint.listener.fd);
}

impl Endpoint {
    fn new(listener: Rc<Listener>) -> io::Result<Endpoint> {
        let udp = UdpSocketState::new(UdpSockRef::from(&listener.fd))?;
        let snapshot = crate::worker::snapshot();
        let conf = settings(&snapshot, &listener);
        let server = Arc::new(ServerId::new(*conf.quic_server_id));
        let host_key = conf.quic_host_key.clone();
        let host_key = host_key.as_deref().unwrap_or(keys::own());
        let (number, mailbox) = mail::open().ok_or_else(|| io::Error::other("too many QUIC sockets"))?;
        let owner = Owner { socket: listener.place as u16, endpoint: number };
        let ids = Ids { owner, keys: Arc::new(keys::Ring::new(host_key)), server };
        let mut config = EndpointConfig::new(ids.keys.clone());
        let maker = ids.clone();
        config.cid_generator(move || Box::new(maker.clone()));
        config.supported_versions(vec![1]);
        let proto = quinn_proto::Endpoint::new(Arc::new(config), None, !udp.may_fragment(), None);
        Ok(Endpoint {
            listener,
            udp,
            proto: RefCell::new(proto),
            links: RefCell::default(),
            incoming: RefCell::default(),
            ids,
            mailbox,
            generation: Cell::new(0),
            inside: RefCell::default(),
            retry: Cell::new(false),
            gso: Cell::new(true),
            shaking: Cell::new(0),
            blocked: RefCell::default(),
            task: Cell::new(TaskId::NOBODY),
        })
    }

    fn turn(self: &Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.task.set(runtime::current());
        self.adopt();
        for letter in self.mailbox.take(cx.waker()) {
            self.handle(Instant::now(), letter);
        }
        let all_read = self.receive();
        let all_admitted = self.admit();
        if !self.blocked.borrow().is_empty() && self.listener.registration.poll_writable().is_ready() {
            self.watch(Interest::Read);
            self.blocked.take().into_iter().for_each(runtime::wake);
        }
        if self.listener.closed.get() && self.is_idle() {
            return Poll::Ready(());
        }
        if !(all_read && all_admitted) {
            runtime::wake(runtime::current());
        }
        Poll::Pending
    }

    fn is_idle(&self) -> bool {
        self.links.borrow().iter().all(Option::is_none)
    }

    /// New connections begin with the current configuration.
    fn adopt(&self) {
        let snapshot = crate::worker::snapshot();
        if self.generation.replace(snapshot.generation) == snapshot.generation {
            return;
        }
        let conf = settings(&snapshot, &self.listener);
        self.ids.keys.turn(conf.quic_host_key.as_deref().unwrap_or(keys::own()));
        self.ids.server.set(*conf.quic_server_id);
        self.retry.set(*conf.quic_retry);
        self.gso.set(*conf.quic_gso);
        let core = &snapshot.location(root(&snapshot, &self.listener)).conf.core;
        let configs = transport::configs(conf, core);
        self.proto.borrow_mut().set_server_config(configs.outside);
        self.inside.replace(configs.inside);
    }

    /// Reads datagrams. True: there are no more for now.
    fn receive(&self) -> bool {
        if self.listener.registration.poll_readable().is_pending() {
            return true;
        }
        let mut buffer = BUFFER.take();
        buffer.resize(MESSAGES * ROOM, 0);
        let mut done = false;
        let mut metas = [RecvMeta::default(); MESSAGES];
        for _ in 0..READS {
            let mut rooms = buffer.chunks_mut(ROOM).map(IoSliceMut::new);
            let mut slices: [IoSliceMut<'_>; MESSAGES] =
                std::array::from_fn(|_| rooms.next().expect("as many rooms as messages"));
            match self.udp.recv(UdpSockRef::from(&self.listener.fd), &mut slices, &mut metas) {
                Ok(n) => {
                    let now = Instant::now();
                    for (room, meta) in buffer.chunks(ROOM).zip(&metas[..n]) {
                        self.take(now, &room[..meta.len], meta);
                    }
                    // A read that was not full has found the end; the next datagram is an event of its own.
                    if n < MESSAGES {
                        done = true;
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    if e.kind() != io::ErrorKind::WouldBlock {
                        let e = crate::log::os_error(&e);
                        crate::log::process_line(Level::Alert, format_args!("recvmsg() failed ({e})"));
                    }
                    done = true;
                    break;
                }
            }
        }
        if done {
            self.listener.registration.clear_readable();
            // What comes from now on wakes the task.
            let _ = self.listener.registration.poll_readable();
        }
        BUFFER.set(buffer);
        done
    }

    /// A message: one datagram or several of one length.
    fn take(&self, now: Instant, bytes: &[u8], meta: &RecvMeta) {
        let mut rest = BytesMut::from(bytes);
        let ecn = meta.ecn.and_then(|e| EcnCodepoint::from_bits(e as u8));
        while !rest.is_empty() {
            let bytes = rest.split_to(meta.stride.clamp(1, rest.len()));
            let letter = Letter { bytes, from: meta.addr, to: meta.dst_ip, ecn };
            let left = match self.ids.foreign(&letter.bytes) {
                Some(owner) => mail::send(owner, letter),
                None => Some(letter),
            };
            if let Some(letter) = left {
                self.handle(now, letter);
            }
        }
    }

    fn handle(&self, now: Instant, letter: Letter) {
        let mut answer = ANSWER.take();
        answer.clear();
        let Letter { bytes, from, to, ecn } = letter;
        let event = self.proto.borrow_mut().handle(now, from, to, ecn, bytes, &mut answer);
        match event {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(Some(link)) = self.links.borrow().get(handle.0) {
                    link.inbox.borrow_mut().push(event);
                    runtime::wake_first(link.task.get());
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming.borrow_mut().push_back(incoming),
            Some(DatagramEvent::Response(transmit)) => self.reply(&transmit, &answer),
            None => {}
        }
        ANSWER.set(answer);
    }

    /// Answers that belong to no connection are lost where there is no room for them.
    fn reply(&self, transmit: &Transmit, bytes: &[u8]) {
        let _ = self.send(transmit, bytes);
    }

    /// Begins connections. True: none waits.
    fn admit(self: &Rc<Self>) -> bool {
        let started = Instant::now();
        loop {
            let next = self.incoming.borrow_mut().pop_front();
            let Some(incoming) = next else { return true };
            self.begin(started, incoming);
            if started.elapsed() >= ADMIT {
                return self.incoming.borrow().is_empty();
            }
        }
    }

    fn begin(self: &Rc<Self>, now: Instant, incoming: Incoming) {
        if crate::modules::guard::state::is_banned(&Address::Inet(plain(incoming.remote_address()))) {
            return self.proto.borrow_mut().ignore(incoming);
        }
        let mut answer = ANSWER.take();
        answer.clear();
        let over = self.listener.closed.get() || crate::worker::draining();
        let checked = incoming.remote_address_validated();
        // Who may not be at the address it names takes no seat from those that are.
        let suspicious = self.retry.get() || self.shaking.get() >= CALM || connection::reuse::is_full();
        let reply = if over {
            Some(self.proto.borrow_mut().refuse(incoming, &mut answer))
        } else if !checked && suspicious && incoming.may_retry() {
            self.proto.borrow_mut().retry(incoming, &mut answer).ok()
        } else {
            self.accept(now, incoming, &mut answer)
        };
        if let Some(transmit) = reply {
            self.reply(&transmit, &answer);
        }
        ANSWER.set(answer);
    }

    fn accept(self: &Rc<Self>, now: Instant, incoming: Incoming, answer: &mut Vec<u8>) -> Option<Transmit> {
        let remote = Address::Inet(plain(incoming.remote_address()));
        let local = match (incoming.local_ip(), &self.listener.address) {
            (Some(ip), ListenAddress::Inet(a)) => Address::Inet((ip.to_canonical(), a.port()).into()),
            (_, ListenAddress::Inet(a)) => Address::Inet(*a),
            (_, ListenAddress::Unix(path)) => Address::Unix(path.clone()),
        };
        let Some(client) = connection::begin::new_quic(remote, local, self.listener.number) else {
            return Some(self.proto.borrow_mut().refuse(incoming, answer));
        };
        let config = transport::is_inside(&incoming).then(|| self.inside.borrow().clone()).flatten();
        let accept = || self.proto.borrow_mut().accept(incoming, now, answer, config).map_err(Box::new);
        let accepted = with_client(&client, accept);
        match accepted {
            Ok((handle, connection)) => {
                let link = Rc::new(QuicLink {
                    endpoint: self.clone(),
                    handle,
                    inbox: RefCell::default(),
                    task: Cell::new(TaskId::NOBODY),
                });
                let mut links = self.links.borrow_mut();
                if links.len() <= handle.0 {
                    links.resize(handle.0 + 1, None);
                }
                links[handle.0] = Some(link.clone());
                drop(links);
                connection::begin::start_quic(link, connection, client);
                None
            }
            Err(e) => {
                connection::http3::failed(&client, &e.cause);
                e.response
            }
        }
    }

    /// Sends datagrams.
    ///
    /// # Errors
    /// `WouldBlock`: there is no room. What else may be wrong is a loss, as on the way.
    pub fn send(&self, transmit: &Transmit, bytes: &[u8]) -> io::Result<()> {
        let message = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|e| quinn_udp::EcnCodepoint::from_bits(e as u8)),
            contents: &bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.udp.try_send(UdpSockRef::from(&self.listener.fd), &message) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.listener.registration.clear_writable();
                self.watch(Interest::Both);
                Err(e)
            }
            _ => Ok(()),
        }
    }

    /// What the kernel tells of the socket.
    fn watch(&self, interest: Interest) {
        if let Err(e) = self.listener.registration.change(self.listener.fd.as_fd(), interest) {
            let e = crate::log::os_error(&e);
            crate::log::process_line(Level::Alert, format_args!("epoll_ctl() failed ({e})"));
        }
    }

    /// Wakes the running task when there is room to send.
    pub fn wait_for_room(&self) {
        self.blocked.borrow_mut().push(runtime::current());
        runtime::wake(self.task.get());
    }

    /// How many datagrams of so many bytes one call may send.
    pub fn segments(&self, bytes: u16) -> usize {
        if self.gso.get() { (AT_ONCE / usize::from(bytes)).clamp(1, self.udp.max_gso_segments()) } else { 1 }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        mail::close(self.ids.owner.endpoint);
        for incoming in self.incoming.take() {
            self.proto.borrow_mut().ignore(incoming);
        }
    }
}

impl QuicLink {
    /// The running task is the connection: it is woken by its datagrams.
    pub fn adopt(&self) {
        self.task.set(runtime::current());
    }

    /// What has come for the connection.
    pub fn take_events(&self) -> Vec<ConnectionEvent> {
        self.inbox.take()
    }

    /// What the connection has to say to its endpoint; perhaps there is an answer.
    pub fn tell(&self, event: EndpointEvent) -> Option<ConnectionEvent> {
        self.endpoint.proto.borrow_mut().handle_event(self.handle, event)
    }

    /// The connection is over. `drained`: the endpoint's state of it is gone already.
    pub fn end(&self, drained: bool) {
        if !drained {
            self.tell(EndpointEvent::drained());
        }
        self.endpoint.links.borrow_mut()[self.handle.0] = None;
        if self.endpoint.listener.closed.get() {
            runtime::wake(self.endpoint.task.get());
        }
    }
}

/// IPv4 addresses as such, also on a socket for both.
pub fn plain(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

fn root(snapshot: &ThreadSnapshot, listener: &Listener) -> crate::snapshot::LocationId {
    let port = &snapshot.ports[crate::worker::port_of(snapshot, listener.number)];
    snapshot.server(port.any.default).root
}

fn settings<'s>(snapshot: &'s ThreadSnapshot, listener: &Listener) -> &'s Conf {
    &snapshot.location(root(snapshot, listener)).conf.http3
}
