//! The HTTP/2 session: one task reads frames, hands requests on, and writes all frames of a loop turn at once. Every stream
//! is a request of its own that goes the way of all requests. From: `connection`. Around: `request`.
//! The protocol itself is `wire::http2`, which knows no socket.
//!
//! ```text
//! agree.rs    whether it is spoken at all
//! link.rs     the socket, and what was read from it; connections to peers have the same
//! driver.rs   bytes <-> frames; when the connection ends, or is given up
//! driver/wait.rs  what is waited for, and how long; when it is idle
//! parked.rs   a connection without streams that waits without a task
//! body.rs     bodies as they come, and those that nobody reads
//! stream.rs   what a request sees of its stream: body in, answer out
//! answer.rs   head, body and trailers of an answer as frames
//! ```

mod agree;
mod answer;
mod body;
mod driver;
pub mod link;
pub mod parked;
mod stream;

pub use agree::{is_agreed, is_preface, is_wanted};
pub use answer::{informational, queue, write_head};
pub use driver::serve;
pub use stream::Http2Stream;

use crate::connection::order::Row;
use crate::connection::output::Output;
use runtime::TaskId;
use runtime::timer::Timer;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use wire::http2::connection::Connection;
use wire::priority::Priority;

/// How long a client may go on sending a body after its answer is complete, ms: most bodies that nobody reads are short and
/// on the way already, and then the client need not be told to stop. A large one meets its window first.
const UNREAD_PATIENCE_MS: u64 = 100;
/// So much waits for the socket at most before answers stay with their streams and nothing more is read.
const OUTPUT_LIMIT: usize = 256 * 1024;

/// What the driver and the streams of a connection share.
pub struct Http2Session {
    state: RefCell<State>,
    /// The driver is at work and will look at everything before it rests: it need not be woken.
    driving: Cell<bool>,
    /// What comes now comes before the TLS handshake is complete.
    handshaking: Cell<bool>,
    /// Another process is not to go on with it, or has no place for it.
    stays: Cell<bool>,
}

struct State {
    wire: Connection<StreamState>,
    /// Streams with something to send, in turn.
    ready: Row<u32>,
    /// Streams whose answer is complete while the client still sends, with the time until which it may do so, ms.
    unread: VecDeque<(u64, u32)>,
    /// The driver's.
    task: TaskId,
    /// The connection is gone.
    dead: bool,
}

/// What is kept for a stream beside what the protocol knows of it.
#[derive(Default)]
struct StreamState {
    /// Body that came and was not read yet.
    input: Vec<u8>,
    /// Nobody wants the body.
    skip: bool,
    /// What `Content-Length` said, and how much has come.
    length: Option<u64>,
    received: u64,
    /// The request is done.
    ownerless: bool,
    /// What the windows did not let out yet.
    output: Output,
    /// The end of the answer stands behind `output`.
    last: bool,
    /// They stand behind `output` too: name and value.
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// `output.written` may come up to here (`limit_rate`).
    allowed: u64,
    /// Stands in `State::ready`.
    is_ready: bool,
    /// What the client has said of it.
    priority: Option<Priority>,
    /// The request's task.
    task: Option<TaskId>,
    /// Bytes of frames sent, and how many of them were no body.
    sent: u64,
    header_size: u64,
    /// `http2_chunk_size`
    chunk: usize,
    /// When a rate limit began to count, ms.
    rate_start_ms: u64,
    /// The deadline of whatever the request waits for.
    timer: Option<Timer>,
    /// The request was malformed: its stream ends with an error whatever is answered.
    malformed: bool,
    /// The client took too long.
    timed_out: bool,
    /// It was a tunnel, and its other end has failed.
    cut: bool,
}

impl StreamState {
    fn wake(&mut self) {
        if let Some(task) = self.task.take() {
            runtime::wake(task);
        }
    }

    fn timer(&mut self) -> &Timer {
        self.timer.get_or_insert_with(Timer::new)
    }

    /// The stream is over: nothing more goes out.
    fn end(&mut self) {
        self.output = Output::default();
        self.last = false;
        self.wake();
    }
}

impl State {
    /// The client says how urgent an answer is, perhaps one that it has not asked for yet.
    fn prioritize(&mut self, id: u32, priority: Priority) {
        match self.wire.stream(id) {
            Some(s) => {
                s.data.priority = Some(priority);
                self.ready.change(id, priority);
            }
            None => self.ready.note_early(id, priority),
        }
    }

    /// Puts a stream in the row of those that send.
    fn make_ready(&mut self, id: u32) {
        if let Some(s) = self.wire.stream(id)
            && !s.data.is_ready
            && !s.reset
            && (!s.data.output.is_empty() || s.data.last)
        {
            s.data.is_ready = true;
            let priority = s.data.priority.unwrap_or(Priority::UNSAID);
            self.ready.push(id, priority);
        }
    }
}

impl Http2Session {
    /// Of what the protocol knows.
    fn of(wire: Connection<StreamState>) -> Http2Session {
        let state = State { wire, ready: Row::default(), unread: VecDeque::new(), task: TaskId::NOBODY, dead: false };
        let [driving, handshaking, stays] = [(); 3].map(|()| Cell::new(false));
        Http2Session { state: RefCell::new(state), driving, handshaking, stays }
    }

    /// Of what was saved of another one.
    fn restore(saved: &[u8]) -> Option<Http2Session> {
        Connection::restore(saved).map(Http2Session::of)
    }

    /// Something is to be written or read: the driver has to look.
    fn changed(&self, state: &State) {
        if !self.driving.get() {
            runtime::wake(state.task);
        }
    }
}
