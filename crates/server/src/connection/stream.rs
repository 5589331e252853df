//! A stream of HTTP/2 or HTTP/3 as its request sees it: where the answer goes, where the body comes from.

use super::{Downstream, pool};
use crate::request::{Request, end, flow, phases};
use crate::status::requests;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use wire::priority::Priority;

/// What has come of a stream's body.
pub struct Arrived<'a> {
    /// Bytes that nobody has read yet.
    pub bytes: &'a mut Vec<u8>,
    /// Nothing follows them.
    pub ended: bool,
}

/// A request's hold on its stream. When it is dropped the stream ends.
pub trait Stream {
    /// Whether the client has given the stream up, or is gone.
    fn is_gone(&self) -> bool;

    /// Whether the client has said all that it will say.
    fn has_ended(&self) -> bool;

    /// Whether the TLS handshake of the connection is not complete yet.
    fn is_handshaking(&self) -> bool;

    /// Ready when the stream is gone; otherwise the task is woken then.
    fn poll_gone(&self) -> Poll<()>;

    /// Bytes that wait until the client lets them come.
    fn waiting(&self) -> u64;

    /// Bytes that went out of the queue since the answer began.
    fn written(&self) -> u64;

    /// Bytes of all frames of the stream, and of its head's.
    fn sent(&self) -> (u64, u64);

    /// When a rate limit began to count, ms.
    fn rate_start_ms(&self) -> u64;

    /// Sets the deadline of what the request waits for.
    fn arm(&self, timeout: Duration);

    /// Whether the deadline has passed; otherwise the task is woken then.
    fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Lets up to `limit` bytes of what waits go out. Ready when nothing waits.
    ///
    /// # Errors
    /// `ConnectionAborted`: the client has given the stream up.
    fn poll_write(&self, limit: u64) -> Poll<io::Result<()>>;

    /// The length that the head has announced for the body.
    fn expect(&self, length: Option<u64>);

    /// What the request's head says of its answer's urgency, unless the client has said otherwise since.
    fn prioritize(&self, priority: Priority);

    /// What the answer's own `Priority` header says of it.
    fn refine_priority(&self, value: &[u8]);

    /// What has come of the body, given to `take`, after which the client may send more: without limit (`all`: everything is
    /// taken as it comes), or so much that `window` bytes may lie here. False: the stream is gone.
    fn read(&self, all: bool, window: u32, take: &mut dyn FnMut(Arrived<'_>)) -> bool;

    /// Wakes the task when more of the body comes.
    fn watch(&self);

    /// Throws away what has come of the body and what still comes.
    fn skip_body(&self);

    /// The request is malformed: whatever is answered, the stream ends with an error.
    fn refuse(&self);

    /// The client took too long: the stream ends with an error.
    fn time_out(&self);

    /// The other end of the tunnel that the stream is has failed (RFC 9113 section 8.5).
    fn cut(&self);

    /// Bytes that the connection has brought, and bytes that its client has taken, where the stream's session knows better than the kernel.
    fn moved(&self) -> Option<(u64, u64)> {
        None
    }
}

/// Works on one request from its head to its log line. Its stream ends with it.
pub async fn answer(mut r: Box<Request>, accepted: Result<(), u16>) {
    requests::begin(&mut r);
    match accepted {
        Ok(()) => phases::process(&mut r).await,
        Err(status) => {
            if status == 400
                && let Some(stream) = r.downstream.stream()
            {
                stream.refuse();
            }
            phases::answer_status(&mut r, status).await;
        }
    }
    if !r.flow.aborted && flow::flush_rest(&mut r).await.is_err() {
        r.flow.aborted = true;
    }
    end::conclude(&mut r).await;
    r.downstream = Downstream::None;
    pool::give_request(r);
}
