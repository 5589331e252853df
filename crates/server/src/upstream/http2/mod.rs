//! HTTP/2 towards peers: connections that the requests of a thread share. One task drives a connection; requests hold a stream
//! of it. Both are on one thread and talk through the session they share, without channels or locks. How, and what becomes
//! of a request when its connection ends: docs/decisions/0009-http2-upstream.md.
//!
//! ```text
//! carry.rs    streams as requests hold them
//! head.rs     the answer's head and trailers
//! fields.rs   a request's head before it is packed
//! driver.rs   socket <-> frames
//! ```
//! Which connection a request gets is `super::sharing`, how it holds its stream `super::streams`, how its body goes out `super::upload`.

mod carry;
pub(super) mod driver;
pub mod fields;
pub mod head;

use super::sharing::{Life, STREAMS_AT_ONCE, Shared, Table};
use super::streams::Answer;
use std::cell::RefCell;
use std::thread::LocalKey;
use wire::http2::connection::Connection;
use wire::http2::hpack::decoder::Limits;

/// What a peer may send on a stream before its request takes it, bytes: five times as much a second over a way of 200 ms.
const STREAM_WINDOW: u32 = 256 * 1024;
/// So much waits for a peer at most before requests keep their bodies and nothing more is read.
const OUTPUT_LIMIT: usize = 256 * 1024;
/// An answer's head at most, whatever `proxy_buffer_size` says: larger ones cost the connection.
const HEADERS: Limits = Limits { field: 64 * 1024, block: 256 * 1024 };

/// A connection as its driver and its requests see it.
pub struct Http2PeerConnection {
    life: Life,
    state: RefCell<State>,
}

struct State {
    wire: Connection<Answer>,
    /// A stream waits for room in the output.
    crowded: bool,
}

thread_local! {
    static TABLE: RefCell<Table<Http2PeerConnection>> = RefCell::default();
}

impl Shared for Http2PeerConnection {
    fn table() -> &'static LocalKey<RefCell<Table<Http2PeerConnection>>> {
        &TABLE
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn has_room(&self) -> bool {
        let state = self.state.borrow();
        state.wire.streams().len() < STREAMS_AT_ONCE && state.wire.can_open()
    }
}

impl Http2PeerConnection {
    fn allowed_streams(&self) -> u32 {
        self.state.borrow().wire.allowed_streams()
    }
}
