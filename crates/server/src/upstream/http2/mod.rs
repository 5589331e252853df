//! HTTP/2 towards peers: connections that the requests of a thread share. One task drives a connection; requests hold a stream
//! of it. Both are on one thread and talk through the session they share, without channels or locks. How, and what becomes
//! of a request when its connection ends: docs/decisions/0009-http2-upstream.md.
//!
//! ```text
//! open.rs     a request gets its stream, and its head goes out
//! stream.rs   what comes, as the request reads it
//! head.rs     the answer's head and trailers
//! fields.rs   a request's head before it is packed
//! driver.rs   socket <-> frames
//! ```
//! Which connection a request gets is `super::sharing`, how its body goes out `super::upload`.

pub(super) mod driver;
pub mod fields;
pub mod head;
pub(super) mod open;
mod stream;

pub use open::open;
pub use stream::Stream;

use super::group::Keepalive;
use super::sharing::{self, STREAMS_AT_ONCE, Shared, Table};
use runtime::TaskId;
use runtime::clock;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread::LocalKey;
use wire::http2::ErrorCode;
use wire::http2::connection::Connection;
use wire::http2::hpack::decoder::Limits;

/// What a peer may send on a stream before its request takes it, bytes: five times as much a second over a way of 200 ms.
const STREAM_WINDOW: u32 = 256 * 1024;
/// So much waits for a peer at most before requests keep their bodies and nothing more is read.
const OUTPUT_LIMIT: usize = 256 * 1024;
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
    /// When it stood, ms of the monotonic clock.
    began_ms: u64,
    keepalive: Keepalive,
}

struct State {
    wire: Connection<StreamState>,
    /// The driver's.
    task: TaskId,
    /// No further streams.
    retired: bool,
    /// Streams so far.
    opened: u64,
    /// When something came last, ms.
    heard_ms: u64,
    /// A stream waits for room in the output.
    crowded: bool,
}

/// What is kept for a stream beside what the protocol knows of it.
#[derive(Default)]
struct StreamState {
    /// Heads as text and what follows of the body, not read yet.
    input: Vec<u8>,
    /// Why nothing more comes, if that is not the answer's end.
    trouble: Option<Trouble>,
    /// What the answer's `Content-Length` leaves to come.
    left: Option<u64>,
    /// The answer has no body whatever its head says.
    is_head: bool,
    /// The answer is complete.
    complete: bool,
    /// Something of an answer has come.
    heard: bool,
    trailers: Trailers,
    /// The request's, while it waits.
    task: Option<TaskId>,
}

/// Names and values of trailers, in order.
pub(super) type Trailers = Vec<(Box<[u8]>, Box<[u8]>)>;

/// Why a stream came to nothing.
#[derive(Clone, Debug)]
enum Trouble {
    /// The connection ended.
    Closed,
    /// The connection failed: the log's words.
    Failed(Rc<str>),
    /// RST_STREAM
    Rejected(ErrorCode),
    /// GOAWAY, and the stream is above its last.
    Goaway(ErrorCode),
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
        !state.retired && state.wire.streams().len() < STREAMS_AT_ONCE && state.wire.can_open()
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

impl Session {
    /// Something is to be written, or nobody is left: the driver has to look.
    fn changed(&self, state: &State) {
        if !self.driving.get() {
            runtime::wake(state.task);
        }
    }

    fn allowed_streams(&self) -> u32 {
        self.state.borrow().wire.allowed_streams()
    }

    /// `keepalive_requests`, `keepalive_time`
    fn is_worn(&self, state: &State) -> bool {
        let age = clock::monotonic_ms() - self.began_ms;
        state.opened >= self.keepalive.requests || age > self.keepalive.time.as_millis() as u64
    }
}
