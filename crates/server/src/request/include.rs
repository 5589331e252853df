//! Answers that other answers are put into: what a subrequest says goes to the client in its place (nginx's
//! `ngx_http_postpone_filter`). Body filters do not wait, so from the first include on an answer is queued here; `drive`
//! runs the includes one after the other and sends what stands between them. Filters before [`Postpone`] see the
//! request's own body, filters after it see the whole.

use super::filter::{BodyFilter, Chunk, PIECE, Rest};
use super::phases::{self, From, Verdict};
use super::subrequest::{self, Mode, Options, SubSession};
use super::{MAX_SUBREQUESTS, Request, Text, end, flow};
use crate::connection::Session;
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
    End,
}

impl Deferred {
    fn add(&mut self, chunk: Chunk<'_>, last: bool) {
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

/// Whether the request may make another subrequest; logs why not.
pub fn is_allowed(r: &Request, uri: Text) -> bool {
    if r.depth < MAX_SUBREQUESTS && r.subrequests < MAX_INCLUDES {
        return true;
    }
    log_error!(r, Error, "subrequests cycle while processing \"{}\"", String::from_utf8_lossy(r.get(uri)));
    false
}

/// Runs the includes of an answer and sends what stands between them, until nothing is left that can be sent now.
pub async fn drive(r: &mut Request) -> Result<(), Verdict> {
    while let Some(deferred) = &mut r.deferred {
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
                run(r, include).await?;
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
fn has_filters_behind(r: &Request) -> bool {
    !r.tail.is_empty() || r.body_filters.last().is_some_and(|f| !f.is_postpone())
}

/// Sends a piece through the filters behind [`Postpone`].
fn behind(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    match r.body_filters.iter().position(|f| f.is_postpone()) {
        Some(at) => super::filter::run_from(r, at + 1, chunk, last),
        None => r.queue(chunk, last),
    }
}

/// Runs one include. While it runs it has the way to the client.
async fn run(r: &mut Request, include: Include) -> Result<(), Verdict> {
    r.subrequests += 1;
    let mut child = Request::new(r.shot.clone(), r.client.clone(), Session::None);
    let (rate, after) = flow::rate(r);
    (child.limit_rate, child.limit_rate_after) = (Some(rate), Some(after));
    child.swap_shared(r);
    let options = Options { mode: Mode::Capture, with_body: true, get: true };
    subrequest::prepare(&mut child, r, include.uri, include.args, &options);
    child.stub = include.stub.map(|text| Box::new(Stub { text, content_type: r.headers_out.content_type }));
    if include.set.is_some() {
        child.session = Session::Sub(SubSession::new(Mode::Capture));
    } else {
        lend(r, &mut child);
    }
    Box::pin(phases::conclude(&mut child, Verdict::Restart(From::ServerRewrite))).await;
    if child.stub.is_some() && !child.output_begun && !child.aborted {
        child.response_done = false;
        let verdict = answer_stub(&mut child);
        Box::pin(phases::conclude(&mut child, verdict)).await;
    }
    end(&mut child);
    r.subrequests = child.subrequests;
    child.swap_shared(r);
    match include.set {
        None => take_back(r, &mut child),
        Some(name) => {
            if let Session::Sub(sub) = std::mem::take(&mut child.session)
                && child.headers_out.status < 300
                && child.output_begun
            {
                r.ctx.ssi_shared.get_or_insert_default().set(&name, sub.captured);
            }
        }
    }
    if child.aborted { Err(Verdict::Broken) } else { Ok(()) }
}

fn lend(r: &mut Request, child: &mut Request) {
    child.session = std::mem::take(&mut r.session);
    child.tail = if r.is_main() {
        let at = r.body_filters.iter().position(|f| f.is_postpone()).map_or(r.body_filters.len(), |at| at + 1);
        r.body_filters.split_off(at)
    } else {
        std::mem::take(&mut r.tail)
    };
}

fn take_back(r: &mut Request, child: &mut Request) {
    r.session = std::mem::take(&mut child.session);
    let tail = std::mem::take(&mut child.tail);
    if r.is_main() {
        r.body_filters.extend(tail);
    } else {
        r.tail = tail;
    }
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
