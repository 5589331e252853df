//! The task of a connection: takes its datagrams, lets the protocols and the streams work, sends all that came of it.

use super::handshake::Check;
use super::wait::Wait;
use super::{Http3Session, MAX_BLOCKED, OneWay, State, TABLE, code, default_server, log};
use crate::connection::order::Row;
use crate::connection::slow::Watch;
use crate::connection::{Address, Client};
use crate::listen::quic::{self, QuicLink};
use crate::log::error::Level;
use crate::modules::core::Conf;
use crate::snapshot::ThreadSnapshot;
use crate::tls::quic::with_client;
use bytes::Bytes;
use hashbrown::HashMap;
use quinn_proto::{Connection, Dir, Event, StreamEvent, StreamId, Transmit};
use runtime::clock;
use runtime::timer::Timer;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use wire::http2::hpack::decoder::Limits;
use wire::http3::frame::{self, setting};
use wire::http3::qpack::table::Table;
use wire::http3::{ConnectionError, ErrorCode};

/// Calls to send of one turn, before other connections of the thread get theirs.
const SENDS: usize = 16;
/// Pieces of answers handed to QUIC between two calls: as many as one call sends.
const PIECES: usize = 4;
/// Deadlines are kept in whole milliseconds.
const TICK: Duration = Duration::from_millis(1);
/// No client needs to be told of later deadlines exactly.
const LATEST: Duration = Duration::from_secs(3600);
/// How long a client may hold an acknowledgement back unless it says otherwise (RFC 9000 section 18.2).
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

thread_local! {
    static PACKETS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The client's packets come from another address. Requests are said to come from the old one until it is certain that the client is
/// there (RFC 9000 section 9.3): the library goes back to the old address when its challenge is not answered within three
/// timeouts, and says nothing of it, so that time has to have passed.
struct Move {
    remote: SocketAddr,
    /// The library has given up by then, if it has to.
    sure: Instant,
    /// PATH_RESPONSE frames that had come before.
    responses: u64,
}

impl Move {
    fn begin(remote: SocketAddr, quic: &Connection, now: Instant) -> Move {
        // A timeout is the round trip and four times its deviation, and the time an acknowledgement may be held back (RFC 9002
        // section 6.2.1); a deviation is hardly ever above the round trip.
        let timeout = quic.rtt() * 6 + MAX_ACK_DELAY;
        Move { remote, sure: now + 3 * timeout, responses: quic.stats().frame_rx.path_response }
    }

    fn is_sure(&self, quic: &Connection, now: Instant) -> bool {
        now >= self.sure && quic.stats().frame_rx.path_response > self.responses
    }
}

pub(super) struct Driver {
    pub(super) session: Rc<Http3Session>,
    pub(super) client: Rc<Client>,
    pub(super) link: Rc<QuicLink>,
    /// QUIC's deadline, and what it is.
    timer: Timer,
    due: Option<Instant>,
    /// Ours.
    pub(super) patience: Timer,
    pub(super) wait: Wait,
    /// `client_header_min_rate` while the rest of a head is waited for, `send_min_rate` while acknowledgements are.
    pub(super) watch: Option<(Wait, Box<Watch>)>,
    pub(super) shaking: bool,
    /// The client's certificate is asked about: its requests wait.
    pub(super) check: Option<Check>,
    /// Requests are left for later: the others are to run first.
    pub(super) held: bool,
    drained: bool,
    move_to: Option<Move>,
    pub(super) counted_idle: bool,
    /// The estimate of the round trip when it was looked at the last time.
    pub(super) round_trip: Duration,
    /// Datagrams that found no room.
    unsent: Option<(Transmit, Vec<u8>)>,
}

/// Serves a QUIC connection.
pub async fn serve(link: Rc<QuicLink>, connection: Connection, client: Rc<Client>) {
    let mut driver = Driver::new(link, connection, client);
    poll_fn(|cx| driver.turn(cx)).await;
}

impl Driver {
    fn new(link: Rc<QuicLink>, quic: Connection, client: Rc<Client>) -> Driver {
        let snapshot = crate::worker::snapshot_for(&client);
        let server = snapshot.server(default_server(&snapshot, &client));
        let (number, size) = *server.conf.core.large_client_header_buffers;
        let state = State {
            quic,
            streams: HashMap::new(),
            oneway: Vec::new(),
            ready: Row::default(),
            control: OneWay::default(),
            decoder: OneWay::default(),
            table: Table::with_longest(TABLE, size),
            confirmed: 0,
            blocked: Vec::new(),
            goaway: None,
            next: 0,
            task: runtime::current(),
            dead: false,
            flood: Default::default(),
        };
        let session = Http3Session {
            state: RefCell::new(state),
            driving: Cell::new(false),
            hq: Cell::new(false),
            limits: Limits { field: size, block: number * size },
            extended_connect: *snapshot.location(server.root).conf.http2.extended_connect,
            error: RefCell::default(),
            note: Cell::default(),
        };
        link.endpoint.shaking.set(link.endpoint.shaking.get() + 1);
        let patience = Timer::new();
        patience.set(*server.conf.core.client_header_timeout);
        Driver {
            session: Rc::new(session),
            client,
            link,
            timer: Timer::new(),
            due: None,
            patience,
            wait: Wait::Handshake,
            watch: None,
            shaking: true,
            check: None,
            held: false,
            drained: false,
            move_to: None,
            counted_idle: false,
            round_trip: Duration::ZERO,
            unsent: None,
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.link.adopt();
        self.session.driving.set(true);
        self.session.state.borrow_mut().task = runtime::current();
        let over = self.work(cx);
        self.session.driving.set(false);
        over
    }

    fn work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        self.receive(now);
        if crate::worker::draining() {
            self.go_away();
        }
        self.verify(cx);
        self.events(cx);
        self.wait_for(cx);
        let mut more = self.send(now);
        if !more && self.farewell() {
            more = self.send(now);
        }
        self.tell_endpoint();
        if self.drained {
            return Poll::Ready(());
        }
        self.set_timer(cx, now);
        if more {
            runtime::wake(runtime::current());
        }
        Poll::Pending
    }

    /// Datagrams, and deadlines that have passed.
    fn receive(&mut self, now: Instant) {
        let events = self.link.take_events();
        let mut state = self.session.state.borrow_mut();
        if !events.is_empty() {
            let work = || events.into_iter().for_each(|event| state.quic.handle_event(event));
            if self.shaking { with_client(&self.client, work) } else { work() }
        }
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            state.quic.handle_timeout(now);
        }
        let remote = quic::plain(state.quic.remote_address());
        if *self.client.remote.borrow() == Address::Inet(remote) {
            self.move_to = None;
        } else if self.move_to.as_ref().is_none_or(|m| m.remote != remote) {
            self.move_to = Some(Move::begin(remote, &state.quic, now));
        } else if self.move_to.as_ref().is_some_and(|m| m.is_sure(&state.quic, now)) {
            self.move_to = None;
            self.client.remote.replace(Address::Inet(remote));
        }
    }

    /// What the library has to say.
    fn events(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.held)
            && let Err(e) = self.accept_streams(cx, Dir::Bi)
        {
            self.fail(&e);
        }
        loop {
            if runtime::turn_is_spent() {
                runtime::wake(runtime::current());
                break;
            }
            let Some(event) = self.session.state.borrow_mut().quic.poll() else { break };
            let done = match event {
                Event::HandshakeDataReady => Ok(()),
                Event::Connected => {
                    self.connected(cx);
                    Ok(())
                }
                Event::ConnectionLost { reason } => {
                    self.lost(&reason);
                    Ok(())
                }
                Event::Stream(StreamEvent::Opened { dir }) => {
                    self.shaken();
                    if self.check.is_none() { self.accept_streams(cx, dir) } else { Ok(()) }
                }
                Event::Stream(StreamEvent::Readable { id }) => self.readable(cx, id),
                Event::Stream(StreamEvent::Writable { id }) => {
                    self.session.state.borrow_mut().make_ready(id);
                    Ok(())
                }
                Event::Stream(StreamEvent::Stopped { id, .. }) => self.stopped(id),
                _ => Ok(()),
            };
            if let Err(e) = done {
                self.fail(&e);
            }
        }
        if let Some(text) = self.session.note.take() {
            self.note(text);
        }
        let error = self.session.error.take().or_else(|| self.session.state.borrow().is_crumbling());
        if let Some(e) = error {
            self.fail(&e);
        }
    }

    /// The client wants no more of an answer.
    fn stopped(&mut self, id: StreamId) -> Result<(), ConnectionError> {
        let mut state = self.session.state.borrow_mut();
        if [state.control.id, state.decoder.id].contains(&Some(id)) {
            let text = "client stopped a stream that the connection needs";
            return Err(ConnectionError::new(ErrorCode::CLOSED_CRITICAL_STREAM, text));
        }
        let _ = state.quic.send_stream(id).reset(code(ErrorCode::REQUEST_CANCELLED));
        state.cancel(id)
    }

    /// Our settings.
    pub(super) fn open_control(&mut self) {
        let mut state = self.session.state.borrow_mut();
        if self.session.hq.get() || state.control.id.is_some() {
            return;
        }
        state.control.id = state.open_oneway();
        let settings = [
            (setting::QPACK_MAX_TABLE_CAPACITY, TABLE as u64),
            (setting::MAX_FIELD_SECTION_SIZE, self.session.limits.block as u64),
            (setting::QPACK_BLOCKED_STREAMS, MAX_BLOCKED as u64),
            (setting::ENABLE_CONNECT_PROTOCOL, 1),
        ];
        let settings = &settings[..if self.session.extended_connect { 4 } else { 3 }];
        let goaway = state.goaway;
        frame::write_control(settings, &mut state.control.output);
        if let Some(end) = goaway {
            frame::write_goaway(end, &mut state.control.output);
        }
    }

    pub(super) fn note(&self, text: &str) {
        log(&self.client, Level::Info, text);
    }

    /// The client broke the protocol.
    pub(super) fn fail(&mut self, error: &ConnectionError) {
        let text = wire::said_of("client", &error.text);
        self.note(&text);
        self.close(error.code, &text);
    }

    pub(super) fn close(&mut self, why: ErrorCode, text: &str) {
        let reason = Bytes::copy_from_slice(text.as_bytes());
        self.session.state.borrow_mut().quic.close(Instant::now(), code(why), reason);
        self.end_streams();
    }

    pub(super) fn end_streams(&mut self) {
        let mut state = self.session.state.borrow_mut();
        state.dead = true;
        state.ready.clear();
        state.streams.retain(|_, s| {
            s.give_up();
            s.owned
        });
    }

    /// No new requests are taken; those under way are answered.
    fn go_away(&mut self) {
        let mut state = self.session.state.borrow_mut();
        let state = &mut *state;
        if state.goaway.is_none() {
            state.goaway = Some(state.next);
            if state.control.id.is_some() {
                frame::write_goaway(state.next, &mut state.control.output);
            }
        }
    }

    /// `keepalive_requests`, `keepalive_time`, `keepalive_timeout 0`: this stream is the last.
    pub(super) fn limit_requests(&mut self, snapshot: &ThreadSnapshot) {
        let core = self.settings(snapshot);
        let age = clock::wall_ms().saturating_sub(self.client.started_ms);
        if core.keepalive_timeout.is_zero()
            || self.client.requests.get() >= *core.keepalive_requests
            || age > core.keepalive_time.as_millis() as u64
        {
            self.go_away();
        }
    }

    pub(super) fn settings<'a>(&self, snapshot: &'a ThreadSnapshot) -> &'a Conf {
        &snapshot.location(snapshot.server(default_server(snapshot, &self.client)).root).conf.core
    }

    /// Whether all that was to be said is said, and nothing may follow: then the connection is closed.
    fn farewell(&mut self) -> bool {
        let over = {
            let mut state = self.session.state.borrow_mut();
            let said = state.control.output.is_empty() && !state.is_sending();
            state.goaway.is_some() && state.requests() == 0 && !state.dead && said
        };
        if over {
            self.close(ErrorCode::NO_ERROR, "");
        }
        over
    }

    /// Sends what there is. True: there is more.
    fn send(&mut self, now: Instant) -> bool {
        if let Some((transmit, bytes)) = self.unsent.take()
            && self.link.endpoint.send(&transmit, &bytes).is_err()
        {
            self.unsent = Some((transmit, bytes));
            self.link.endpoint.wait_for_room();
            return false;
        }
        let segments = self.link.endpoint.segments(self.session.state.borrow().quic.current_mtu());
        let hq = self.session.hq.get();
        let mut packets = PACKETS.take();
        let mut more = true;
        for _ in 0..SENDS {
            let mut state = self.session.state.borrow_mut();
            let waiting = state.pump(hq, PIECES);
            packets.clear();
            let Some(transmit) = state.quic.poll_transmit(now, segments, &mut packets) else {
                more = waiting;
                break;
            };
            drop(state);
            if self.link.endpoint.send(&transmit, &packets).is_err() {
                self.unsent = Some((transmit, packets.clone()));
                self.link.endpoint.wait_for_room();
                more = false;
                break;
            }
        }
        PACKETS.set(packets);
        more
    }

    fn tell_endpoint(&mut self) {
        loop {
            let Some(event) = self.session.state.borrow_mut().quic.poll_endpoint_events() else { return };
            self.drained |= event.is_drained();
            if let Some(answer) = self.link.tell(event) {
                self.session.state.borrow_mut().quic.handle_event(answer);
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

impl Drop for Driver {
    fn drop(&mut self) {
        self.calm();
        self.count_idle(false);
        self.end_streams();
        self.link.end(self.drained);
    }
}
