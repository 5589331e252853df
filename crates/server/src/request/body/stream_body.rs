//! The body of a request that came in a stream of HTTP/2 or HTTP/3: its length is the stream's, and the window says how much of it may
//! be here before it is read. Part of `request::body`.

use super::{BodyError, Framing};
use crate::log_error;
use crate::request::Request;
use std::task::{Context, Poll};

/// What the client has done wrong.
enum Wrong {
    More,
    Less { received: u64, length: u64 },
}

/// Takes what is there. `Ok(true)`: the body is complete.
pub(super) fn take(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, BodyError> {
    let all = !r.body.streamed;
    let conf = r.conf();
    let window = (*conf.core.client_body_buffer_size).max(*conf.http2.http2_body_preread_size);
    let window = window.min(u64::from(wire::http2::MAX_WINDOW)) as u32;
    let Some(stream) = r.downstream.stream() else { return Ok(true) };
    let Framing::Stream(length) = r.body.framing else { return Ok(true) };
    let received = &mut r.body.received;
    let mut taken = None;
    stream.read(all, window, &mut |arrived| {
        *received += arrived.bytes.len() as u64;
        r.body.uncounted += arrived.bytes.len() as u64;
        if out.is_empty() {
            std::mem::swap(out, arrived.bytes);
        } else {
            out.extend_from_slice(arrived.bytes);
            arrived.bytes.clear();
        }
        taken = Some(match length {
            Some(length) if *received > length => Err(Wrong::More),
            Some(length) if arrived.ended && *received < length => Err(Wrong::Less { received: *received, length }),
            _ => Ok(arrived.ended),
        });
    });
    match taken {
        None => Err(gone(r)),
        Some(Ok(complete)) => {
            if complete {
                r.body.framing = Framing::Ended;
            }
            Ok(complete)
        }
        Some(Err(wrong)) => {
            stream.refuse();
            match wrong {
                Wrong::More => log_error!(r, Info, "client intended to send body data larger than declared"),
                Wrong::Less { received, length } => log_error!(
                    r,
                    Info,
                    "client prematurely closed stream: only {received} out of {length} bytes of request body received"
                ),
            }
            Err(BodyError::Status(400))
        }
    }
}

/// Takes what is there, or waits for it.
pub(super) fn poll(r: &mut Request, out: &mut Vec<u8>) -> Poll<Result<bool, BodyError>> {
    let before = r.body.received;
    if r.downstream.stream().is_some_and(|stream| stream.is_gone()) {
        return Poll::Ready(Err(gone(r)));
    }
    match take(r, out) {
        Ok(false) if r.body.received == before => {}
        other => return Poll::Ready(other),
    }
    let Some(stream) = r.downstream.stream() else { return Poll::Ready(Ok(true)) };
    stream.watch();
    Poll::Pending
}

/// Ready when the clock that the caller has armed has run out.
pub(super) fn poll_clock(r: &mut Request, cx: &mut Context<'_>) -> Poll<BodyError> {
    let Some(stream) = r.downstream.stream() else { return Poll::Pending };
    std::task::ready!(stream.poll_expired(cx));
    Poll::Ready(time_out(r))
}

fn gone(r: &mut Request) -> BodyError {
    log_error!(r, Info, "client prematurely closed stream");
    r.answer.headers.status = 499;
    r.flow.aborted = true;
    BodyError::Gone
}

/// Nothing is answered: the stream is reset.
fn time_out(r: &mut Request) -> BodyError {
    log_error!(r, Info, "client timed out (110: Connection timed out)");
    end(r)
}

/// The client takes too long.
pub(super) fn end(r: &mut Request) -> BodyError {
    if let Some(stream) = r.downstream.stream() {
        stream.time_out();
    }
    r.answer.headers.status = 408;
    r.flow.aborted = true;
    BodyError::Gone
}
