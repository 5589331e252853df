//! Buffers and requests that wait for their next use in a thread. Bounded; what is too large is not kept.

use super::{Client, Downstream};
use crate::request::Request;
use crate::snapshot::ThreadSnapshot;
use crate::status::Tally;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Size of the buffers that requests are read into.
pub const BUFFER: usize = 16 * 1024;
/// Buffers and requests kept at most, each: as many as a busy thread has in use at once.
const KEEP: usize = 1024;
/// A buffer that grew over this is freed.
const KEEP_CAPACITY: usize = 64 * 1024;
/// Buffers that grew at all are kept so many at most, 4 MB: those of a crowd of slow clients go back to the system.
const KEEP_GROWN: usize = 64;

thread_local! {
    static GROWN: Cell<usize> = const { Cell::new(0) };
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    // Boxed: a request is moved around by its box, in the pool as outside.
    #[allow(clippy::vec_box)]
    static REQUESTS: RefCell<Vec<Box<Request>>> = const { RefCell::new(Vec::new()) };
    /// Bytes of what is kept: requests with their arenas, buffers.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that threads keep, as of one of their last turns ([`note`]).
static KEPT_BYTES: Tally<1> = Tally::new();

/// Says how much the thread keeps. Not at each use: a store that others see is dear there, and nobody asks so often.
pub fn note() {
    KEPT_BYTES.mine().set(0, BYTES.get() as u64);
}

/// Bytes that all threads keep for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Requests and buffers that wait for their next use.
    pub pools: u64,
    /// Contents of small files.
    pub files: u64,
}

/// See [`Kept`].
pub fn kept() -> Kept {
    Kept { pools: KEPT_BYTES.sums()[0], files: crate::files::small::bytes() }
}

/// What a request under way takes at least, with the buffer that it is read into.
pub const REQUEST: usize = size_of::<Request>() + BUFFER;

/// What a request takes that is kept.
fn bytes_of(r: &Request) -> usize {
    size_of::<Request>() + r.arena.capacity()
}

/// An empty buffer with at least [`BUFFER`] bytes of room.
pub fn take_buffer() -> Vec<u8> {
    let Some(buffer) = BUFFERS.with_borrow_mut(Vec::pop) else { return Vec::with_capacity(BUFFER) };
    if buffer.capacity() > BUFFER {
        GROWN.set(GROWN.get() - 1);
    }
    BYTES.set(BYTES.get() - buffer.capacity());
    buffer
}

/// Gives a buffer back.
pub fn give_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() < BUFFER || buffer.capacity() > KEEP_CAPACITY {
        return;
    }
    let grown = GROWN.get() + usize::from(buffer.capacity() > BUFFER);
    buffer.clear();
    BUFFERS.with_borrow_mut(|all| {
        if all.len() < KEEP && grown <= KEEP_GROWN {
            GROWN.set(grown);
            BYTES.set(BYTES.get() + buffer.capacity());
            all.push(buffer);
        }
    });
}

/// An empty request.
pub fn take_request(snapshot: Rc<ThreadSnapshot>, client: Rc<Client>, session: Downstream) -> Box<Request> {
    match REQUESTS.with_borrow_mut(Vec::pop) {
        Some(mut r) => {
            BYTES.set(BYTES.get() - bytes_of(&r));
            r.reset(snapshot, client, session);
            r
        }
        None => Request::new(snapshot, client, session),
    }
}

/// Gives a request back. What it holds of shared zones is free at once, its tries are counted, and sockets of its programs are closed.
pub fn give_request(mut r: Box<Request>) {
    r.ctx.limit_conn.release();
    r.ctx.lua = None;
    r.attempts.clear();
    REQUESTS.with_borrow_mut(|all| {
        if all.len() < KEEP {
            BYTES.set(BYTES.get() + bytes_of(&r));
            all.push(r);
        }
    });
}

/// Drops what is kept: before a snapshot goes, its last users must.
pub fn clear() {
    BUFFERS.with_borrow_mut(Vec::clear);
    GROWN.set(0);
    REQUESTS.with_borrow_mut(Vec::clear);
    BYTES.set(0);
    note();
}
