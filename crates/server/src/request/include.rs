//! Answers that other answers are put into: what a subrequest says goes to the client in its place (nginx's
//! `ngx_http_postpone_filter`). Body filters do not wait, so from the first include on an answer is queued here; `drive`
//! begins them all (`aside`) and sends in their order what they say and what stands between them. Filters before [`Postpone`] see the
//! request's own body, filters after it see the whole.

use super::aside::{self, Child, Next};
use super::filter::{BodyFilter, Chunk, PIECE, Rest};
use super::phases::Verdict;
use super::{MAX_SUBREQUESTS, Request, Text, flow};
use crate::log_error;
use crate::request::respond::Filtered;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// So much may wait for the client before the next piece of the queue is looked at.
const FLUSH: u64 = 64 * 1024;
/// Subrequests of one request in all, so that a page cannot ask for endless work (nginx has 65535 less a reserve).
const MAX_INCLUDES: u16 = 64_000;

/// Includes of one answer that are under way at once.
const MAX_TOGETHER: usize = 64;

/// A subrequest whose answer has a place in another one.
pub struct Include {
    /// Its uri.
    pub uri: Text,
    /// Its arguments.
    pub args: Text,
    /// Its body is a variable's value, and the client sees nothing of it.
    pub set: Option<Box<[u8]>>,
    /// What is sent if it fails or has no body.
    pub stub: Option<Rc<Vec<u8>>>,
}

/// The text that stands in for a subrequest without an answer.
pub struct Stub {
    text: Rc<Vec<u8>>,
    content_type: Option<Text>,
}

/// What of an answer waits for its includes.
#[derive(Default)]
pub struct Deferred(VecDeque<Piece>);

enum Piece {
    Bytes(Vec<u8>),
    File { file: Rc<OwnedFd>, offset: u64, len: u64 },
    Include(Include),
    Child(Child),
    End,
}

impl Deferred {
    pub(super) fn add(&mut self, chunk: Chunk<'_>, last: bool) {
        match chunk {
            _ if chunk.is_empty() => {}
            Chunk::Bytes(bytes) => match self.0.back_mut() {
                Some(Piece::Bytes(before)) => before.extend_from_slice(bytes),
                _ => self.0.push_back(Piece::Bytes(bytes.to_vec())),
            },
            Chunk::File { file, offset, len } => self.0.push_back(Piece::File { file: file.clone(), offset, len }),
        }
        if last {
            self.0.push_back(Piece::End);
        }
    }
}

/// The header filter: behind all filters that may include.
pub fn filter(r: &mut Request) -> Filtered {
    if r.deferred.is_some() {
        r.body_filters.push(Box::new(Postpone));
    }
    Filtered::Next
}

/// The place in the chain where answers of subrequests come in.
struct Postpone;

impl BodyFilter for Postpone {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        match &mut r.deferred {
            Some(deferred) if !deferred.0.is_empty() => {
                deferred.add(chunk, last);
                Ok(())
            }
            _ => rest.push(r, chunk, last),
        }
    }

    fn include(&mut self, r: &mut Request, include: Include, _rest: Rest<'_>) -> io::Result<()> {
        r.deferred.get_or_insert_default().0.push_back(Piece::Include(include));
        Ok(())
    }

    fn is_postpone(&self) -> bool {
        true
    }
}

/// Puts an include behind what an answer has sent so far; [`drive`] runs it. The head must have gone out with `deferred` set.
pub fn add(r: &mut Request, include: Include) {
    r.deferred.get_or_insert_default().0.push_back(Piece::Include(include));
}

/// Whether the request may make another subrequest; logs why not.
pub fn is_allowed(r: &Request, uri: Text) -> bool {
    if r.depth < MAX_SUBREQUESTS && r.subrequests < MAX_INCLUDES {
        return true;
    }
    log_error!(r, Error, "subrequests cycle while processing \"{}\"", String::from_utf8_lossy(r.get(uri)));
    false
}

/// Lets the includes of an answer run and sends what they say and what stands between them, until nothing is left that can be sent now.
pub async fn drive(r: &mut Request) -> Result<(), Verdict> {
    while r.deferred.is_some() {
        begin_waiting(r);
        let Some(deferred) = &mut r.deferred else { return Ok(()) };
        let done = match deferred.0.pop_front() {
            // The one nearest to the client: what those before it still have would only come on top.
            None => match r.body_filters.iter().rposition(|f| f.is_waiting() || f.is_stuffed()) {
                None => return Ok(()),
                Some(at) => {
                    let done = super::filter::resume(r, at);
                    runtime::yield_now().await;
                    done
                }
            },
            Some(Piece::Bytes(bytes)) => behind(r, Chunk::Bytes(&bytes), false),
            Some(Piece::File { file, offset, len }) => {
                let n = if has_filters_behind(r) { len.min(PIECE) } else { len };
                if n < len {
                    let rest = Piece::File { file: file.clone(), offset: offset + n, len: len - n };
                    r.deferred.get_or_insert_default().0.push_front(rest);
                }
                behind(r, Chunk::File { file: &file, offset, len: n }, false)
            }
            Some(Piece::End) => behind(r, Chunk::Bytes(b""), true),
            Some(Piece::Include(include)) => {
                // There were too many before it.
                let child = aside::begin(r, include);
                Box::pin(go_on(r, child)).await?;
                Ok(())
            }
            Some(Piece::Child(child)) => {
                Box::pin(go_on(r, child)).await?;
                Ok(())
            }
        };
        done.map_err(|e| r.broken(&e))?;
        if r.unsent_bytes() > FLUSH {
            flow::flush_now(r).await?;
        }
    }
    Ok(())
}

/// Whether filters see what is sent behind [`Postpone`].
pub(super) fn has_filters_behind(r: &Request) -> bool {
    !r.tail.is_empty() || r.body_filters.last().is_some_and(|f| !f.is_postpone())
}

/// Sends a piece through the filters behind [`Postpone`].
fn behind(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    match r.body_filters.iter().position(|f| f.is_postpone()) {
        Some(at) => super::filter::run_from(r, at + 1, chunk, last),
        None => r.queue(chunk, last),
    }
}

/// Begins the includes that wait, as many as may be under way at once, in their order.
fn begin_waiting(r: &mut Request) {
    let Some(deferred) = &r.deferred else { return };
    let under_way = deferred.0.iter().filter(|piece| matches!(piece, Piece::Child(_))).count();
    let waits = |(at, piece): (usize, &Piece)| matches!(piece, Piece::Include(_)).then_some(at);
    let waiting: Vec<usize> = deferred.0.iter().enumerate().filter_map(waits).collect();
    for at in waiting.into_iter().take(MAX_TOGETHER.saturating_sub(under_way)) {
        let Some(slot) = r.deferred.as_mut().and_then(|deferred| deferred.0.get_mut(at)) else { return };
        if let Piece::Include(include) = std::mem::replace(slot, Piece::End) {
            let child = aside::begin(r, include);
            if let Some(slot) = r.deferred.as_mut().and_then(|deferred| deferred.0.get_mut(at)) {
                *slot = Piece::Child(child);
            }
        }
    }
}

/// Sends what the include whose turn it is has said; then it has its turn again, until it is over.
async fn go_on(r: &mut Request, mut child: Child) -> Result<(), Verdict> {
    match aside::next(r, &child).await? {
        Next::Pieces(pieces) => {
            let queue = &mut r.deferred.get_or_insert_default().0;
            queue.push_front(Piece::Child(child));
            pieces.0.into_iter().rev().for_each(|piece| queue.push_front(piece));
            Ok(())
        }
        Next::Done(done) => aside::end_child(r, &mut child, done),
    }
}

/// What stands in for an answer.
pub(super) fn stub(text: Rc<Vec<u8>>, content_type: Option<Text>) -> Box<Stub> {
    Box::new(Stub { text, content_type })
}

/// Answers a subrequest that has failed with its stub, if it has one.
pub fn answer_stub(r: &mut Request) -> Verdict {
    let Some(stub) = r.stub.take() else { return Verdict::Answered };
    if !r.header_sent {
        r.headers_out.status = 200;
        r.headers_out.content_type = stub.content_type;
        r.headers_out.content_length = None;
        if let Err(verdict) = r.send_header() {
            return verdict;
        }
    }
    match r.send_body(Chunk::Bytes(&stub.text), true) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}
