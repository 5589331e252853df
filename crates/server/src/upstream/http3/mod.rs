//! HTTP/3 towards peers: QUIC connections that the requests of a thread share, as those of HTTP/2 are (`super::http2`). One task drives
//! a connection and its UDP socket; requests hold a stream of it. The protocols are `quinn_proto` and `wire::http3`, which know no socket.
//!
//! ```text
//! carry.rs    streams as requests hold them
//! connect.rs  a connection: its socket, its handshake, whether the peer is who it must be
//! receive.rs  what streams bring: answers and the peer's one-way streams
//! driver.rs   socket <-> datagrams <-> streams
//! ```
//! Which connection a request gets is `super::sharing`, how it holds its stream `super::streams`, how its body goes out `super::upload`,
//! how an answer's head becomes text `super::http2::head`.

mod carry;
mod connect;
mod driver;
mod receive;

use super::sharing::{Life, STREAMS_AT_ONCE, Shared, Table};
use super::streams::{Answer, Trouble};
use bytes::Bytes;
use hashbrown::HashMap;
use quinn_proto::{Connection, StreamId, VarInt};
use runtime::TaskId;
use std::cell::RefCell;
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
pub struct Http3PeerConnection {
    life: Life,
    state: RefCell<State>,
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
    /// The peer allows no further streams for now.
    exhausted: bool,
    /// Nothing more is sent or read.
    dead: bool,
    /// The peer takes no further requests.
    leaving: bool,
    /// What went wrong while nobody was there to say it.
    unsaid: Option<Rc<str>>,
}

/// What is kept for a request's stream.
#[derive(Default)]
struct StreamState {
    reader: request::Reader,
    /// What was taken from QUIC and not looked at yet.
    rest: Bytes,
    answer: Answer,
    /// Frames on their way out.
    output: Vec<u8>,
    /// The end stands behind them, and whether QUIC has been told.
    last: bool,
    finished: bool,
    /// The peer wants no more of the request.
    stopped: bool,
}

thread_local! {
    static TABLE: RefCell<Table<Http3PeerConnection>> = RefCell::default();
}

impl Shared for Http3PeerConnection {
    fn table() -> &'static LocalKey<RefCell<Table<Http3PeerConnection>>> {
        &TABLE
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn has_room(&self) -> bool {
        let state = self.state.borrow();
        !state.dead && !state.exhausted && state.streams.len() < STREAMS_AT_ONCE
    }
}

impl State {
    /// Nothing more comes for anybody.
    fn end_all(&mut self, trouble: &Trouble) {
        self.dead = true;
        self.streams.values_mut().map(|s| &mut s.answer).filter(|a| !a.complete).for_each(|a| a.fail(trouble.clone()));
        if let (Shaken::Not, Trouble::Lost(text) | Trouble::Refused(text) | Trouble::Invalid(text)) =
            (&self.shaken, trouble)
        {
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
            s.answer.wake();
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
