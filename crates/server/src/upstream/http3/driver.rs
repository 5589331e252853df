//! The task of a connection: its socket's datagrams in and out, QUIC's deadlines, and what streams have to send. Never waits for a
//! request: what one does not take stays in its window.

use super::{Http3PeerConnection, Shaken, code};
use crate::connection::socket::Socket;
use crate::log::error::Level;
use crate::upstream::sharing::Shared;
use crate::upstream::streams::Trouble;
use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, Event, StreamEvent, StreamId, Transmit,
};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use runtime::timer::Timer;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use wire::http3::ErrorCode;

/// Reads of one turn, and calls to send, before other connections of the thread get theirs.
const STEPS: usize = 8;
/// Messages of one read. Each may hold datagrams that the kernel has put together.
const MESSAGES: usize = 4;
/// Room for such a message: the longest there is.
const ROOM: usize = 65_536;
/// Bytes of datagrams that one call sends.
const AT_ONCE: usize = 65_000;
/// Deadlines are kept in whole milliseconds.
const TICK: Duration = Duration::from_millis(1);
/// Nobody needs to be told of later deadlines exactly.
const LATEST: Duration = Duration::from_secs(3600);

thread_local! {
    static RECEIVED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static PACKETS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Driver {
    session: Rc<Http3PeerConnection>,
    socket: Socket,
    udp: UdpSocketState,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    /// QUIC's deadline, and what it is.
    timer: Timer,
    due: Option<Instant>,
    /// How long it may be idle.
    patience: Timer,
    idle: bool,
    /// Datagrams that found no room.
    unsent: Option<(Transmit, Vec<u8>)>,
    drained: bool,
}

/// A task drives the connection from now on.
pub(super) fn start(
    session: &Rc<Http3PeerConnection>,
    socket: Socket,
    udp: UdpSocketState,
    endpoint: Endpoint,
    handle: ConnectionHandle,
) {
    let mut driver = Driver {
        session: session.clone(),
        socket,
        udp,
        endpoint,
        handle,
        timer: Timer::new(),
        due: None,
        patience: Timer::new(),
        idle: false,
        unsent: None,
        drained: false,
    };
    runtime::spawn(async move { poll_fn(|cx| driver.turn(cx)).await });
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.session.retire();
        self.session.state.borrow_mut().end_all(&Trouble::closed());
    }
}

impl Driver {
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.session.life.begin_turn();
        if crate::worker::draining() {
            self.session.retire();
        }
        let over = self.work(cx);
        self.session.life.end_turn();
        over
    }

    fn work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let mut more = match self.receive(cx, now) {
            Ok(more) => more,
            Err(e) => return self.lost(&crate::log::os_error(&e)),
        };
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.session.state.borrow_mut().quic.handle_timeout(now);
        }
        self.events();
        self.look();
        self.pump();
        if self.rest(cx) {
            self.session.state.borrow_mut().quic.close(now, code(ErrorCode::NO_ERROR), Bytes::new());
        }
        match self.send(cx, now) {
            Ok(left) => more |= left,
            Err(e) => return self.lost(&crate::log::os_error(&e)),
        }
        self.tell_endpoint();
        // What is closed by us needs no answer: a peer that did not hear of it asks in vain.
        if self.drained || (self.session.state.borrow().quic.is_closed() && self.unsent.is_none()) {
            return Poll::Ready(());
        }
        self.set_timer(cx, now);
        if more {
            runtime::wake(runtime::current());
        }
        Poll::Pending
    }

    /// The socket says that nobody is there.
    fn lost(&self, text: &str) -> Poll<()> {
        self.session.state.borrow_mut().end_all(&Trouble::Lost(format!("recvmsg() failed ({text})").into()));
        Poll::Ready(())
    }

    /// Datagrams. True: there may be more.
    fn receive(&mut self, cx: &mut Context<'_>, now: Instant) -> io::Result<bool> {
        let mut buffer = RECEIVED.take();
        buffer.resize(MESSAGES * ROOM, 0);
        let mut more = true;
        for _ in 0..STEPS {
            let mut metas = [RecvMeta::default(); MESSAGES];
            let mut rooms = buffer.chunks_mut(ROOM).map(IoSliceMut::new);
            let mut slices: [IoSliceMut<'_>; MESSAGES] =
                std::array::from_fn(|_| rooms.next().expect("as many rooms as messages"));
            let udp = &self.udp;
            let read = self.socket.poll_read_with(cx, |s| udp.recv(UdpSockRef::from(s), &mut slices, &mut metas));
            match read {
                Poll::Ready(Ok(n)) => {
                    for (room, meta) in buffer.chunks(ROOM).zip(&metas[..n]) {
                        self.take(now, &room[..meta.len], meta);
                    }
                }
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(e)) => {
                    RECEIVED.set(buffer);
                    return Err(e);
                }
                Poll::Pending => {
                    more = false;
                    break;
                }
            }
        }
        RECEIVED.set(buffer);
        Ok(more)
    }

    /// A message: one datagram or several of one length.
    fn take(&mut self, now: Instant, bytes: &[u8], meta: &RecvMeta) {
        let mut rest = BytesMut::from(bytes);
        let ecn = meta.ecn.and_then(|e| EcnCodepoint::from_bits(e as u8));
        let mut answer = Vec::new();
        let mut state = self.session.state.borrow_mut();
        self.session.life.note_heard();
        while !rest.is_empty() {
            let datagram = rest.split_to(meta.stride.clamp(1, rest.len()));
            // Answers (to versions and connections that nobody here knows) are for servers to give.
            if let Some(DatagramEvent::ConnectionEvent(_, event)) =
                self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, datagram, &mut answer)
            {
                state.quic.handle_event(event);
            }
        }
    }

    /// What the library has to say.
    fn events(&self) {
        let mut state = self.session.state.borrow_mut();
        while let Some(event) = state.quic.poll() {
            match event {
                Event::Connected => {
                    state.shaken = Shaken::Done;
                    state.waiter.take().into_iter().for_each(runtime::wake);
                }
                Event::ConnectionLost { reason } => {
                    let text = format!("upstream connection was lost: {reason}");
                    state.end_all(&Trouble::Lost(text.into()));
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => state.accept_oneway(),
                Event::Stream(StreamEvent::Readable { id }) if id.dir() == Dir::Uni => state.read_oneway(id),
                Event::Stream(StreamEvent::Readable { id }) => state.read_answer(id),
                Event::Stream(StreamEvent::Stopped { id, .. }) => {
                    if let Some(s) = state.streams.get_mut(&id) {
                        s.stopped = true;
                        s.answer.wake();
                    }
                }
                Event::Stream(StreamEvent::Available { dir: Dir::Bi }) => state.exhausted = false,
                _ => {}
            }
        }
    }

    /// What came of it for the connection.
    fn look(&self) {
        let (leaves, unsaid) = {
            let mut state = self.session.state.borrow_mut();
            (state.leaving || state.dead, state.unsaid.take())
        };
        if let Some(text) = unsaid {
            // No request will say it.
            let peer = &self.session.life.peer;
            crate::log::process_line(Level::Error, format_args!("{text}, upstream: \"{peer}\""));
        }
        if leaves {
            self.session.retire();
        }
    }

    /// Gives QUIC what streams have to send.
    fn pump(&self) {
        let mut state = self.session.state.borrow_mut();
        if state.dead || matches!(state.shaken, Shaken::Not) {
            return;
        }
        state.open_control();
        let ready =
            |(id, s): (&StreamId, &super::StreamState)| (!s.output.is_empty() || s.last && !s.finished).then_some(*id);
        let ready: Vec<StreamId> = state.streams.iter().filter_map(ready).collect();
        ready.into_iter().for_each(|id| state.pump(id));
    }

    /// Whether the connection is of no use any more.
    fn rest(&mut self, cx: &mut Context<'_>) -> bool {
        let state = self.session.state.borrow();
        if state.dead {
            return !state.quic.is_closed();
        }
        let idle = state.streams.is_empty() && !matches!(state.shaken, Shaken::Not);
        if state.streams.is_empty() && self.session.life.is_retired() {
            return !state.quic.is_closed();
        }
        if std::mem::replace(&mut self.idle, idle) != idle {
            match idle {
                true => self.patience.set(self.session.life.keepalive.timeout),
                false => self.patience.clear(),
            }
        }
        let over = idle && self.patience.poll_expired(cx).is_ready();
        drop(state);
        if over {
            self.session.retire();
        }
        over
    }

    /// Sends what there is. True: there is more.
    fn send(&mut self, cx: &mut Context<'_>, now: Instant) -> io::Result<bool> {
        if let Some((transmit, bytes)) = self.unsent.take()
            && !self.send_one(cx, transmit, &bytes)?
        {
            return Ok(false);
        }
        let mut packets = PACKETS.take();
        let mut more = true;
        for _ in 0..STEPS {
            packets.clear();
            let mut state = self.session.state.borrow_mut();
            let mtu = usize::from(state.quic.current_mtu());
            let segments = (AT_ONCE / mtu).clamp(1, self.udp.max_gso_segments());
            let Some(transmit) = state.quic.poll_transmit(now, segments, &mut packets) else {
                more = false;
                break;
            };
            drop(state);
            if !self.send_one(cx, transmit, &packets)? {
                more = false;
                break;
            }
        }
        PACKETS.set(packets);
        Ok(more)
    }

    /// Sends some datagrams. False: there is no room, they are kept.
    fn send_one(&mut self, cx: &mut Context<'_>, transmit: Transmit, bytes: &[u8]) -> io::Result<bool> {
        let message = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|e| quinn_udp::EcnCodepoint::from_bits(e as u8)),
            contents: &bytes[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        let udp = &self.udp;
        let sent =
            self.socket.poll_write_with(cx, |s| udp.try_send(UdpSockRef::from(&*s), &message).map(|()| transmit.size));
        match sent {
            Poll::Ready(Ok(_)) => Ok(true),
            // Nobody listens there.
            Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::ConnectionRefused => Err(e),
            // What else may be wrong is a loss, as on the way.
            Poll::Ready(Err(_)) => Ok(true),
            Poll::Pending => {
                self.unsent = Some((transmit, bytes.to_vec()));
                Ok(false)
            }
        }
    }

    fn tell_endpoint(&mut self) {
        let mut state = self.session.state.borrow_mut();
        while let Some(event) = state.quic.poll_endpoint_events() {
            self.drained |= event.is_drained();
            if let Some(answer) = self.endpoint.handle_event(self.handle, event) {
                state.quic.handle_event(answer);
                runtime::wake(runtime::current());
            }
        }
    }

    fn set_timer(&mut self, cx: &mut Context<'_>, now: Instant) {
        let due = self.session.state.borrow_mut().quic.poll_timeout();
        // The thread's clock is coarse, so its deadline may pass a little before QUIC's.
        if due != self.due || self.timer.expired() {
            self.due = due;
            match due {
                None => self.timer.clear(),
                Some(at) => self.timer.set(at.saturating_duration_since(now).min(LATEST) + TICK),
            }
        }
        // None is so short that it has passed.
        let _ = self.timer.poll_expired(cx);
    }
}
