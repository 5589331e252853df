//! The task of a connection: reads, lets the protocol and the streams work, writes all that came of it in one call.

mod wait;

use self::wait::Wait;
use super::link::FrameSocket;
use super::{Http2Session, Http2Stream, OUTPUT_LIMIT, parked};
use crate::connection::fields::{self, Arrived};
use crate::connection::http1::Http1;
use crate::connection::parked::Whose;
use crate::connection::slow::Watch;
use crate::connection::socket::Socket;
use crate::connection::{Client, Downstream, pool, stream};
use crate::log::error::Level;
use crate::modules::core::Conf;
use crate::request::Version;
use crate::snapshot::{LocationId, ServerId, ThreadSnapshot};
use crate::worker::{counters, departure};
use runtime::clock;
use runtime::timer::Timer;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use wire::http2::ErrorCode;
use wire::http2::connection::{Config, Connection, ConnectionError, Event, Role};
use wire::http2::hpack::HeaderBlock;
use wire::http2::hpack::decoder::Limits;

/// Reads and writes of one turn, before other connections of the thread get theirs.
const STEPS: usize = 8;

thread_local! {
    /// Room for the fields of one header block.
    static FIELDS: RefCell<HeaderBlock> = RefCell::default();
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client is gone.
    Gone,
    /// All is said: the client reads it, then closes.
    Said,
    /// Not yet: it is idle, and better parked.
    Park,
}

pub(super) struct Driver {
    session: Rc<Http2Session>,
    client: Rc<Client>,
    link: FrameSocket,
    timer: Timer,
    wait: Wait,
    /// See `State::unread`.
    unread_timer: Option<Timer>,
    started: bool,
    /// The client broke the protocol: only what is written still goes out.
    failed: bool,
    counted_idle: bool,
    /// A head came below its least rate.
    too_slow: bool,
    /// It was idle for long enough to give everything back, and no request has come since.
    rested: bool,
    /// What was read was left for later, for the same reason.
    held: bool,
    /// Nothing was read because too much waits for the client.
    full: bool,
    /// `client_header_min_rate` while the rest of a head is waited for, `send_min_rate` while the socket takes no more: which wait, and how the client does.
    watch: Option<(Wait, Box<Watch>)>,
}

/// Serves a connection on which HTTP/2 is spoken; what came already is in `http`.
pub async fn serve(mut http: Box<Http1>, client: Rc<Client>) {
    let driver = Driver::new(&mut http, client);
    drop(http);
    drive(driver).await;
}

/// Goes on with a connection that was parked, which may wait so long for its next request.
pub(super) async fn resume(session: Rc<Http2Session>, client: Rc<Client>, socket: Socket, wait: Duration) {
    let mut driver = Driver::on(session, client, FrameSocket::new(socket, Vec::new(), 0));
    (driver.started, driver.rested, driver.wait) = (true, true, Wait::Idle);
    driver.timer.set(wait);
    drive(driver).await;
}

async fn drive(mut driver: Driver) {
    let end = loop {
        match poll_fn(|cx| driver.turn(cx)).await {
            End::Park => match parked::try_park(driver) {
                Ok(()) => return,
                Err(back) => driver = back,
            },
            end => break end,
        }
        driver.client.cannot_park();
    };
    driver.end_streams();
    driver.count_idle(false);
    if end == End::Said && !crate::worker::draining() {
        driver.linger().await;
    }
}

impl Driver {
    fn new(http: &mut Http1, client: Rc<Client>) -> Driver {
        let snapshot = crate::worker::snapshot_for(&client);
        let (server, root) = default_server(&snapshot, &client);
        let conf = &snapshot.location(root).conf.http2;
        let core = &snapshot.server(server).conf.core;
        let (number, size) = *core.large_client_header_buffers;
        let config = Config {
            role: Role::Server,
            max_streams: (*conf.http2_max_concurrent_streams).min(u64::from(u32::MAX)) as u32,
            stream_window: (*conf.http2_body_preread_size).min(u64::from(wire::http2::MAX_WINDOW)) as u32,
            headers: Limits { field: size, block: number * size },
            extended_connect: *conf.extended_connect,
        };
        let mut wire = Connection::new(config);
        if crate::worker::draining() {
            wire.goaway(ErrorCode::NO_ERROR);
        }
        let socket = std::mem::replace(&mut http.incoming.socket, Socket::none());
        let session = Http2Session::of(wire);
        let (input, at) = http.incoming.take_input();
        let link = FrameSocket::new(socket, input, at);
        Driver::on(Rc::new(session), client, link)
    }

    fn on(session: Rc<Http2Session>, client: Rc<Client>, link: FrameSocket) -> Driver {
        Driver {
            session,
            client,
            link,
            timer: Timer::new(),
            wait: Wait::Streams,
            unread_timer: None,
            started: false,
            failed: false,
            counted_idle: false,
            too_slow: false,
            full: false,
            held: false,
            rested: false,
            watch: None,
        }
    }

    /// Whether nothing is under way in either direction.
    pub(super) fn is_at_rest(&self) -> bool {
        let state = self.session.state.borrow();
        let is_empty = state.wire.streams().is_empty() && state.unread.is_empty() && state.ready.is_empty();
        let is_said = state.wire.output().is_empty() && state.wire.is_between_frames() && !state.wire.is_going_away();
        let is_read = self.link.at == self.link.input.len() && !self.failed && !self.held;
        is_empty && is_said && is_read && Rc::strong_count(&self.session) == 1
    }

    /// Whether another process is to go on with it, and can.
    pub(super) fn is_to_depart(&mut self) -> bool {
        let stays = self.session.stays.get() || self.client.programs.get().is_some();
        departure::is_open() && !stays && self.is_at_rest() && self.link.socket.may_freeze()
    }

    /// It could not go, and need not try again.
    pub(super) fn stays(&self) {
        self.session.stays.set(self.session.stays.get() || departure::is_open());
    }

    pub(super) fn socket_mut(&mut self) -> &mut Socket {
        &mut self.link.socket
    }

    /// What the protocol knows of it; none: something is under way.
    pub(super) fn save(&self) -> Option<Vec<u8>> {
        self.session.state.borrow().wire.save()
    }

    /// Whose it is, whether another process has no place for it, and how long it may wait for its next request.
    pub(super) fn parts(&mut self) -> (Whose, bool, Duration) {
        self.count_idle(false);
        (Whose::of(&self.client), self.session.stays.get(), self.timer.left())
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.session.driving.set(true);
        {
            let mut state = self.session.state.borrow_mut();
            state.task = runtime::current();
            state.wire.begin_turn();
        }
        let end = self.work(cx);
        self.session.driving.set(false);
        end
    }

    fn work(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.client.is_taken() {
            return Poll::Ready(self.make_room(cx));
        }
        if crate::worker::draining() {
            self.session.state.borrow_mut().wire.goaway(ErrorCode::NO_ERROR);
        }
        if self.link.at < self.link.input.len() && !self.failed {
            self.process(cx);
        }
        let mut steps = 0;
        loop {
            if let Poll::Ready(end) = self.read(cx) {
                return Poll::Ready(end);
            }
            self.stop_unread(cx);
            self.session.state.borrow_mut().pump();
            let blocked = match self.write(cx) {
                Ok(blocked) => blocked,
                Err(()) => return Poll::Ready(End::Gone),
            };
            steps += 1;
            let more = !blocked && (self.full || self.held || !self.session.state.borrow().ready.is_empty());
            if more && steps < STEPS && !runtime::turn_is_spent() {
                continue;
            }
            if more {
                runtime::wake(runtime::current());
            }
            match self.rest(cx, blocked) {
                Some(end) => return end,
                None => continue,
            }
        }
    }

    /// Another connection has this one's seat: the client is told, as far as it can be at once.
    fn make_room(&mut self, cx: &mut Context<'_>) -> End {
        if self.wait.is_owed() {
            self.log(Level::Info, "client is too slow, its connection makes room for another");
        }
        let mut state = self.session.state.borrow_mut();
        state.wire.goaway(ErrorCode::NO_ERROR);
        let _ = self.link.write(cx, &mut state.wire);
        End::Gone
    }

    /// Reads and works on what comes, unless too much waits for the client already.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..STEPS {
            self.full = self.session.state.borrow().wire.output().len() >= OUTPUT_LIMIT;
            if self.failed || self.full || (self.held && runtime::turn_is_spent()) {
                return Poll::Pending;
            }
            if std::mem::take(&mut self.held) {
                self.process(cx);
                continue;
            }
            match self.link.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(n)) if n > 0 => self.process(cx),
                Poll::Ready(result) => {
                    let state = self.session.state.borrow();
                    if result.is_ok() && (!state.wire.streams().is_empty() || !state.wire.is_between_frames()) {
                        self.log(Level::Info, "client prematurely closed connection");
                    }
                    return Poll::Ready(End::Gone);
                }
            }
        }
        runtime::wake(runtime::current());
        Poll::Pending
    }

    fn stop_unread(&mut self, cx: &mut Context<'_>) {
        let mut state = self.session.state.borrow_mut();
        if state.unread.is_empty() {
            return;
        }
        while let Some(wait) = state.stop_unread() {
            let timer = self.unread_timer.get_or_insert_with(Timer::new);
            timer.set(Duration::from_millis(wait));
            if timer.poll_expired(cx).is_pending() {
                return;
            }
        }
        self.unread_timer = None;
    }

    /// Works on what has come.
    fn process(&mut self, cx: &mut Context<'_>) {
        if let Some(tls) = self.link.socket.tls() {
            self.session.handshaking.set(tls.is_handshaking());
        }
        let mut fields = FIELDS.take();
        let input = std::mem::take(&mut self.link.input);
        loop {
            let mut state = self.session.state.borrow_mut();
            if state.wire.output().len() >= OUTPUT_LIMIT || runtime::turn_is_spent() {
                // What comes out of the next request would only wait, and be copied once more; or the others are to run first.
                self.held = true;
                break;
            }
            state.wire.lend_buffer(pool::take_buffer);
            let event = state.wire.next(&input, &mut self.link.at, &mut fields);
            let note = state.wire.note.take();
            if let Some(note) = &note {
                self.log(Level::Info, &wire::said_of("client", note));
            }
            match event {
                Ok(Event::More) => break,
                Ok(Event::Head { stream, end, len }) => {
                    if let Some(early) = state.ready.take_early(stream) {
                        state.prioritize(stream, early);
                    }
                    drop(state);
                    let version = Version::HTTP20;
                    self.open(cx, stream, &Arrived { version, end, len, block: Ok(&fields) });
                }
                Ok(Event::Data { stream, span, end }) => {
                    state.take_data(stream, span.of(&input), end);
                }
                Ok(Event::Trailers { stream }) => {
                    let fault = fields::trailers_fault(&fields);
                    if let Some(text) = fault {
                        self.log(Level::Info, text);
                    }
                    state.end_body(stream, fault.is_some());
                }
                Ok(Event::Reset { stream, code, ours }) => {
                    if !ours {
                        self.log(Level::Info, &reset_text(stream, code));
                    }
                    state.end_stream(stream);
                }
                Ok(Event::Window { stream: 0 }) => {
                    for i in 0..state.wire.streams().len() {
                        let id = state.wire.streams()[i].id;
                        state.make_ready(id);
                    }
                }
                Ok(Event::Window { stream }) => state.make_ready(stream),
                Ok(Event::Priority { stream, priority }) => state.prioritize(stream, priority),
                Ok(Event::Refused | Event::Goaway { .. }) => {}
                Err(error) => {
                    drop(state);
                    self.fail(error);
                    break;
                }
            }
        }
        self.link.input = input;
        FIELDS.set(fields);
    }

    fn fail(&mut self, error: ConnectionError) {
        self.log(Level::Info, &wire::said_of("client", &error.text));
        self.session.state.borrow_mut().wire.goaway(error.code);
        self.failed = true;
        self.end_streams();
    }

    /// All streams are over.
    fn end_streams(&mut self) {
        let mut state = self.session.state.borrow_mut();
        state.dead = true;
        state.ready.clear();
        state.wire.streams_mut().iter_mut().for_each(|s| s.data.end());
    }

    /// A request has come: it is worked on at once, and gets a task of its own if it has to wait.
    fn open(&mut self, cx: &mut Context<'_>, id: u32, arrived: &Arrived<'_>) {
        (self.started, self.rested) = (true, false);
        // Among the idle it stands behind all others from now on.
        self.client.works();
        counters::request();
        let snapshot = crate::worker::snapshot_for(&self.client);
        let way = Downstream::Http2(Http2Stream { session: self.session.clone(), id });
        let (r, accepted) = fields::open(way, &self.client, snapshot.clone(), arrived);
        self.limit_requests(&snapshot);
        let mut work = Box::pin(stream::answer(r, accepted));
        if work.as_mut().poll(cx).is_pending() {
            runtime::spawn(work);
        }
    }

    /// `keepalive_requests`, `keepalive_time`, `keepalive_timeout 0`: this stream is the last.
    fn limit_requests(&self, snapshot: &ThreadSnapshot) {
        let core = self.settings(snapshot);
        let age = clock::wall_ms().saturating_sub(self.client.started_ms);
        if core.keepalive_timeout.is_zero()
            || self.client.requests.get() >= *core.keepalive_requests
            || age > core.keepalive_time.as_millis() as u64
        {
            self.session.state.borrow_mut().wire.goaway(ErrorCode::NO_ERROR);
        }
    }

    fn settings<'a>(&self, snapshot: &'a ThreadSnapshot) -> &'a Conf {
        &snapshot.location(default_server(snapshot, &self.client).1).conf.core
    }

    /// Writes what waits. True: the socket takes no more now.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, ()> {
        let mut state = self.session.state.borrow_mut();
        let waiting = state.wire.output().len();
        let blocked = self.link.write(cx, &mut state.wire).map_err(drop)?;
        if self.wait == Wait::Write && state.wire.output().len() < waiting {
            self.wait = Wait::Streams;
        }
        Ok(blocked)
    }

    fn log(&self, level: Level, text: &str) {
        let snapshot = crate::worker::snapshot_for(&self.client);
        let log = &self.settings(&snapshot).error_log;
        if log.enabled(level) || self.client.debug.get() {
            let remote = self.client.remote.borrow();
            let (client, server) = (remote.host(), crate::worker::local_address(&self.client));
            let port = server.port();
            let message = format_args!(
                "{text} while processing HTTP/2 connection, client: {client}, server: {}:{port}",
                server.host()
            );
            log.write(level, Some(self.client.number), message);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        crate::log::lines::close_after_lines(std::mem::replace(&mut self.link.socket, Socket::none()));
    }
}

fn default_server(snapshot: &ThreadSnapshot, client: &Client) -> (ServerId, LocationId) {
    let server = snapshot.ports[crate::worker::port_of(snapshot, client.listener)].site(client).default;
    (server, snapshot.server(server).root)
}

fn reset_text(stream: u32, code: ErrorCode) -> String {
    match code {
        ErrorCode::CANCEL => format!("client canceled stream {stream}"),
        ErrorCode::INTERNAL_ERROR => format!("client terminated stream {stream} due to internal error"),
        ErrorCode(code) => format!("client terminated stream {stream} with status {code}"),
    }
}
