//! HTTP/3 towards peers: QUIC connections that the requests of a thread share, as those of HTTP/2 are (`super::http2`). One task drives
//! a connection and its UDP socket; requests hold a stream of it. The protocols are `quinn_proto` and `wire::http3`, which know no socket.
//!
//! ```text
//! open.rs     a request gets its stream, and its head goes out
//! connect.rs  a connection: its socket, its handshake, whether the peer is who it must be
//! stream.rs   what comes, as the request reads it; its body out
//! receive.rs  what streams bring: answers and the peer's one-way streams
//! driver.rs   socket <-> datagrams <-> streams
//! ```
//! Which connection a request gets is `super::sharing`, how its body goes out `super::upload`, how an answer's head becomes text
//! `super::http2::head`.

mod connect;
mod driver;
mod open;
mod receive;
mod stream;

pub use open::open;

use super::group::Keepalive;
use super::http2::Trailers;
use super::sharing::{self, STREAMS_AT_ONCE, Shared, Table};
use bytes::Bytes;
use hashbrown::HashMap;
use quinn_proto::{Connection, StreamId, VarInt};
use runtime::TaskId;
use runtime::clock;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread::LocalKey;
use wire::http2::hpack::decoder::Limits;
use wire::http3::{ErrorCode, control, qpack, request};

/// What a peer may send on a stream before its request takes it, bytes: five times as much a second over a way of 200 ms.
const STREAM_WINDOW: usize = 256 * 1024;
/// The same for all streams of a connection.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// So much of a request's body waits in its stream at most.
const OUTPUT_LIMIT: usize = 64 * 1024;
/// An answer's head at most, whatever `proxy_buffer_size` says: larger ones cost the connection.
const HEADERS: Limits = Limits { field: 64 * 1024, block: 256 * 1024 };

/// A connection as its driver and its requests see it.
pub struct Session {
    state: RefCell<State>,
    /// The driver is at work and will look at everything before it rests: it need not be woken.
    driving: Cell<bool>,
    /// Where it stands in the table; none: it is one request's own.
    key: Option<sharing::Key>,
    /// The peer's name, for the log.
    peer: Box<str>,
    /// When it was begun, ms of the monotonic clock.
    began_ms: u64,
    keepalive: Keepalive,
}

/// How far the handshake has come.
#[derive(Clone, Debug, Default)]
enum Shaken {
    #[default]
    Not,
    Done,
    Failed(Rc<str>),
}

struct State {
    quic: Connection,
    streams: HashMap<StreamId, StreamState>,
    /// The peer's one-way streams.
    oneway: Vec<(StreamId, control::Reader)>,
    /// We announce no table, so none is ever filled.
    table: qpack::table::Table,
    /// Our control stream, and what of its beginning waits.
    control: Option<StreamId>,
    settings: Vec<u8>,
    shaken: Shaken,
    /// Who waits for the handshake.
    waiter: Option<TaskId>,
    /// The driver's.
    task: TaskId,
    /// No further streams.
    retired: bool,
    /// The peer allows no further streams for now.
    exhausted: bool,
    /// Nothing more is sent or read.
    dead: bool,
    /// The peer takes no further requests.
    leaving: bool,
    /// What went wrong while nobody was there to say it.
    unsaid: Option<Rc<str>>,
    /// Streams so far.
    opened: u64,
    /// When something came last, ms.
    heard_ms: u64,
}

/// What is kept for a request's stream.
#[derive(Default)]
struct StreamState {
    reader: request::Reader,
    /// What was taken from QUIC and not looked at yet.
    rest: Bytes,
    /// The head as text and what follows of the body, not read yet.
    input: Vec<u8>,
    /// Frames on their way out.
    output: Vec<u8>,
    /// The end stands behind them, and whether QUIC has been told.
    last: bool,
    finished: bool,
    /// The peer wants no more of the request.
    stopped: bool,
    /// Why nothing more comes, if that is not the answer's end.
    trouble: Option<Trouble>,
    /// What the answer's `Content-Length` leaves to come.
    left: Option<u64>,
    /// The answer has no body whatever its head says.
    is_head: bool,
    head_seen: bool,
    /// The answer is complete.
    complete: bool,
    /// Something of an answer has come.
    heard: bool,
    trailers: Trailers,
    /// The request's, while it waits.
    task: Option<TaskId>,
}

/// Why a stream came to nothing.
#[derive(Clone, Debug)]
enum Trouble {
    /// The connection ended, or failed: the log's words.
    Failed(Rc<str>),
    /// RESET_STREAM
    Rejected(u64),
    /// GOAWAY, and the stream is not below its number.
    Goaway,
    /// What came makes no sense: the log's words.
    Invalid(Rc<str>),
}

thread_local! {
    static TABLE: RefCell<Table<Session>> = RefCell::default();
}

impl Shared for Session {
    fn table() -> &'static LocalKey<RefCell<Table<Session>>> {
        &TABLE
    }

    fn key(&self) -> Option<&sharing::Key> {
        self.key.as_ref()
    }

    fn began_ms(&self) -> u64 {
        self.began_ms
    }

    fn has_room(&self) -> bool {
        let state = self.state.borrow();
        !state.retired && !state.dead && !state.exhausted && state.streams.len() < STREAMS_AT_ONCE
    }

    fn retire(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if std::mem::replace(&mut state.retired, true) {
            return;
        }
        self.changed(&state);
        drop(state);
        sharing::remove(self);
    }
}

impl Session {
    /// Something is to be written or read, or nobody is left: the driver has to look.
    fn changed(&self, state: &State) {
        if !self.driving.get() {
            runtime::wake(state.task);
        }
    }

    /// `keepalive_requests`, `keepalive_time`
    fn is_worn(&self, state: &State) -> bool {
        let age = clock::monotonic_ms() - self.began_ms;
        state.opened >= self.keepalive.requests || age > self.keepalive.time.as_millis() as u64
    }
}

impl StreamState {
    fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            runtime::wake_first(task);
        }
    }

    fn fail(&mut self, trouble: Trouble) {
        self.trouble.get_or_insert(trouble);
        self.wake();
    }
}

impl State {
    /// Nothing more comes for anybody.
    fn end_all(&mut self, trouble: &Trouble) {
        self.dead = true;
        self.streams.values_mut().filter(|s| !s.complete).for_each(|s| s.fail(trouble.clone()));
        if let (Shaken::Not, Trouble::Failed(text) | Trouble::Invalid(text)) = (&self.shaken, trouble) {
            self.shaken = Shaken::Failed(text.clone());
        }
        self.waiter.take().into_iter().for_each(runtime::wake);
    }

    /// Hands QUIC what a stream has to send, as much as it takes.
    fn pump(&mut self, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        if s.stopped {
            s.output.clear();
        }
        let mut stream = self.quic.send_stream(id);
        while !s.output.is_empty() {
            match stream.write(&s.output) {
                Ok(n) => drop(s.output.drain(..n)),
                Err(quinn_proto::WriteError::Blocked) => break,
                // The peer has stopped it, or it is gone: its answer says what becomes of it.
                Err(_) => {
                    s.stopped = true;
                    s.output.clear();
                }
            }
        }
        if s.last && s.output.is_empty() && !s.finished {
            s.finished = true;
            let _ = stream.finish();
        }
        if s.output.len() < OUTPUT_LIMIT / 2 {
            s.wake();
        }
    }

    /// Sends our settings: none but how large heads may be.
    fn open_control(&mut self) {
        use wire::http3::frame::{self, setting};
        if self.control.is_none() {
            self.control = self.quic.streams().open(quinn_proto::Dir::Uni);
            frame::write_control(&[(setting::MAX_FIELD_SECTION_SIZE, HEADERS.block as u64)], &mut self.settings);
        }
        if let Some(id) = self.control
            && !self.settings.is_empty()
            && let Ok(n) = self.quic.send_stream(id).write(&self.settings)
        {
            self.settings.drain(..n);
        }
    }
}

fn code(code: ErrorCode) -> VarInt {
    VarInt::from_u32(code.0)
}
