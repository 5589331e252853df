//! The HTTP/3 session: one task drives a QUIC connection, every stream is a request of its own that goes the way of all
//! requests (as in `connection::http2`). From: `listen::quic`. Around: `request`. The protocols themselves are
//! `quinn_proto` and `wire::http3`, which know no socket.
//!
//! ```text
//! driver.rs     datagrams <-> streams; when the connection ends
//! wait.rs       what is waited for, and how long
//! handshake.rs  what the handshake came to
//! receive.rs    what streams bring: requests and the client's one-way streams
//! stream.rs     what a request sees of its stream: body in, answer out
//! answer.rs     head, body and trailers of an answer as frames
//! ```

mod answer;
mod driver;
mod handshake;
mod receive;
mod stream;
mod wait;

pub use answer::{informational, queue, write_head};
pub use driver::serve;
pub use handshake::failed;
pub use stream::Http3Stream;

use crate::connection::Client;
use crate::connection::order::Row;
use crate::connection::output::Output;
use crate::log::error::Level;
use bytes::Bytes;
use hashbrown::HashMap;
use quinn_proto::{Connection, Dir, StreamId, VarInt};
use runtime::TaskId;
use runtime::timer::Timer;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::http2::flood::{Counters, Flood};
use wire::http2::hpack::decoder::Limits;
use wire::http3::qpack::{self, table::Table};
use wire::http3::{ConnectionError, ErrorCode, control, request};
use wire::priority::Priority;

/// What the driver and the streams of a connection share.
pub struct Http3Session {
    state: RefCell<State>,
    /// The driver is at work and will look at everything before it rests: it need not be woken.
    driving: Cell<bool>,
    /// HTTP/0.9: no frames, no heads.
    hq: Cell<bool>,
    /// What heads may be.
    limits: Limits,
    /// `extended_connect`
    extended_connect: bool,
    /// What the client has done wrong while a request looked at its stream.
    error: RefCell<Option<ConnectionError>>,
    /// The same, where it costs a stream only: a line for the log.
    note: Cell<Option<&'static str>>,
}

struct State {
    quic: Connection,
    streams: HashMap<StreamId, StreamState>,
    /// The client's one-way streams.
    oneway: Vec<(StreamId, control::Reader)>,
    /// Streams with something to send, in turn.
    ready: Row<StreamId>,
    /// Our control stream.
    control: OneWay,
    /// What we say about the client's table.
    decoder: OneWay,
    table: Table,
    /// How many of its entries we have confirmed.
    confirmed: u64,
    /// Streams whose heads wait for entries of the table.
    blocked: Vec<StreamId>,
    /// Requests from this stream on are not worked on: we said so.
    goaway: Option<u64>,
    /// One more than the last request's stream.
    next: u64,
    /// The driver's.
    task: TaskId,
    /// The connection is gone.
    dead: bool,
    flood: Counters,
}

/// A stream of ours that lasts as long as the connection.
#[derive(Default)]
struct OneWay {
    /// Once it is open.
    id: Option<StreamId>,
    /// What waits to be sent.
    output: Vec<u8>,
}

/// The client's table may be so large, as in nginx, in bytes.
const TABLE: usize = 4096;
/// So many streams may wait for it.
const MAX_BLOCKED: usize = 100;

/// What is kept for a request's stream.
#[derive(Default)]
struct StreamState {
    reader: request::Reader,
    /// What was taken from QUIC and not looked at yet.
    rest: Bytes,
    /// Body that came and was not read yet.
    input: Vec<u8>,
    /// What `Content-Length` said.
    length: Option<u64>,
    /// A field section of it waits for the client's table.
    blocked: bool,
    /// The client has said all.
    ended: bool,
    /// Nothing more is wanted of it.
    stopped: bool,
    /// The client's encoder was told so.
    unread: bool,
    /// The client wants no answer, or has given up.
    reset: bool,
    /// A request works on it.
    owned: bool,
    /// Frames ready to go, and what QUIC did not take of those before.
    frames: Vec<u8>,
    partial: Bytes,
    /// Body that is in no frame yet.
    output: Output,
    /// The end of the answer stands behind `output`.
    last: bool,
    /// They stand behind `output` too: a frame.
    trailers: Vec<u8>,
    /// All is handed to QUIC.
    finished: bool,
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
    /// When a rate limit began to count, ms.
    rate_start_ms: u64,
    /// The deadline of whatever the request waits for.
    timer: Option<Timer>,
    /// The request was malformed, or took too long: its stream ends with this whatever is answered.
    failed: Option<ErrorCode>,
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

    /// The client has given it up: nothing more goes out.
    fn give_up(&mut self) {
        self.reset = true;
        self.output = Output::default();
        (self.frames, self.partial, self.trailers) = (Vec::new(), Bytes::new(), Vec::new());
        self.last = false;
        self.wake();
    }

    /// Bytes of body that QUIC has taken.
    fn taken(&self) -> u64 {
        self.output.written.saturating_sub((self.frames.len() + self.partial.len()) as u64)
    }

    fn has_output(&self) -> bool {
        !self.partial.is_empty() || !self.frames.is_empty() || !self.output.is_empty() || (self.last && !self.finished)
    }
}

/// QUIC sends what streams have given it in this order, those of one number in turn. Of those that come one after the other each has
/// its own.
fn rank(id: StreamId, priority: Priority) -> i32 {
    /// More streams than a client opens before those before them are forgotten.
    const TURN: i32 = 1 << 20;
    let place = match priority.incremental {
        true => 0,
        false => TURN - (id.index() % (TURN as u64 - 1)) as i32,
    };
    i32::from(wire::priority::LEAST - priority.urgency) * 2 * TURN + place
}

impl State {
    /// The client says how urgent an answer is, perhaps one that it has not asked for yet.
    fn prioritize(&mut self, id: StreamId, priority: Priority) {
        let Some(s) = self.streams.get_mut(&id) else {
            if id.index() * 4 >= self.next {
                self.ready.note_early(id, priority);
            }
            return;
        };
        s.priority = Some(priority);
        self.ready.change(id, priority);
        let _ = self.quic.send_stream(id).set_priority(rank(id, priority));
    }

    /// Puts a stream in the row of those that send.
    fn make_ready(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id)
            && !s.is_ready
            && !s.reset
            && s.has_output()
        {
            s.is_ready = true;
            let priority = s.priority.unwrap_or(Priority::UNSAID);
            self.ready.push(id, priority);
        }
    }

    /// Nothing more is read of a stream: what it refers to in the table need not be kept for it. Said of every such stream, once: its
    /// references may be on their way (RFC 9204 section 2.2.2.2).
    fn unread(&mut self, id: StreamId) {
        self.blocked.retain(|blocked| *blocked != id);
        if let Some(s) = self.streams.get_mut(&id)
            && std::mem::replace(&mut s.unread, true)
        {
            return;
        }
        qpack::cancel(u64::from(id), &mut self.decoder.output);
    }

    /// The client has given up a request that is being answered. Those who do nothing else are attackers (rapid reset).
    fn cancel(&mut self, id: StreamId) -> Result<(), ConnectionError> {
        let Some(s) = self.streams.get_mut(&id).filter(|s| !s.reset) else { return Ok(()) };
        s.give_up();
        self.flood.reset().map_err(flood)
    }

    /// Windows are the client's: who opens them by crumbs wants nothing but work done.
    fn is_crumbling(&self) -> Option<ConnectionError> {
        (!self.dead && self.flood.is_crumbling()).then(|| flood(Flood))
    }

    /// Bytes have come that ask for nothing yet and carry nothing.
    fn idle(&mut self) -> Result<(), ConnectionError> {
        self.flood.idle_frame().map_err(flood)
    }

    /// A stream of ours that goes before all answers.
    fn open_oneway(&mut self) -> Option<StreamId> {
        let id = self.quic.streams().open(Dir::Uni)?;
        let _ = self.quic.send_stream(id).set_priority(i32::MAX);
        Some(id)
    }

    /// Whether the client has not confirmed all of an answer.
    fn is_sending(&mut self) -> bool {
        // Our one-way streams have no end, and requests under way are known.
        let oneway = usize::from(self.control.id.is_some()) + usize::from(self.decoder.id.is_some());
        let unfinished = self.streams.values().filter(|s| !s.finished).count();
        self.quic.streams().send_streams() > oneway + unfinished
    }

    /// The fields of a stream were read with the table's help.
    fn acknowledge(&mut self, id: StreamId) {
        qpack::acknowledge(u64::from(id), &mut self.decoder.output);
    }

    /// Requests under way.
    fn requests(&self) -> usize {
        self.streams.len()
    }
}

impl Http3Session {
    /// Bytes that have come on the connection; or those that the client has taken, as far as its acknowledgements tell.
    fn moved(&self, up: bool) -> u64 {
        /// A client that takes packets sends at least one byte for so many that it gets.
        const ACKNOWLEDGED: u64 = 50;
        let stats = self.state.borrow().quic.stats();
        let came = stats.udp_rx.bytes;
        if up { came } else { stats.udp_tx.bytes.min(came.saturating_mul(ACKNOWLEDGED)) }
    }

    /// Something is to be written or read: the driver has to look.
    fn changed(&self, state: &State) {
        if !self.driving.get() {
            runtime::wake(state.task);
        }
    }
}

fn flood(_: Flood) -> ConnectionError {
    ConnectionError::new(ErrorCode::EXCESSIVE_LOAD, "http3 flood detected")
}

fn code(code: ErrorCode) -> VarInt {
    VarInt::from_u32(code.0)
}

/// Writes a line about a connection.
fn log(client: &Rc<Client>, level: Level, text: &str) {
    let snapshot = crate::worker::snapshot_for(client);
    let root = snapshot.server(default_server(&snapshot, client)).root;
    let log = &snapshot.location(root).conf.core.error_log;
    if log.enabled(level) || client.debug.get() {
        let remote = client.remote.borrow();
        let (host, server) = (remote.host(), crate::worker::local_address(client));
        let port = server.port();
        let message =
            format_args!("{text} while processing QUIC connection, client: {host}, server: {}:{port}", server.host());
        log.write(level, Some(client.number), message);
    }
}

fn default_server(snapshot: &crate::snapshot::ThreadSnapshot, client: &Client) -> crate::snapshot::ServerId {
    snapshot.ports[crate::worker::port_of(snapshot, client.listener)].site(client).default
}
