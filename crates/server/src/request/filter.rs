//! The way of an answer's body from its handler to the session: a chain of filters, each of which may change,
//! hold back or add. Nothing here waits; the handler flushes between pieces.

use super::include::Include;
use super::phases::Verdict;
use super::{Request, flow};
use crate::request::chunk::{Chunk, PIECE};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

/// What came to a filter while it could not take it.
pub enum Held {
    /// Bytes, and whether they are the last.
    Piece(Vec<u8>, bool),
    /// An answer that has its place here.
    Include(Include),
}

/// One filter, with its state for one answer.
pub trait BodyFilter {
    /// Takes a piece and hands what becomes of it to `rest`. `last`: nothing follows.
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, rest: Rest<'_>) -> io::Result<()>;

    /// The answer of a subrequest comes here: what is held back goes before it.
    fn include(&mut self, r: &mut Request, include: Include, mut rest: Rest<'_>) -> io::Result<()> {
        rest.include(r, include)
    }

    /// Whether it keeps everything until the includes before it have been answered.
    fn is_waiting(&self) -> bool {
        false
    }

    /// They have; or there is room for more ([`BodyFilter::is_stuffed`]).
    fn resume(&mut self, _r: &mut Request, _rest: Rest<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Whether it holds bytes back because it has made much of those before them already: it is to be resumed once the
    /// client has taken that. Until then it should be given no more than is under way.
    fn is_stuffed(&self) -> bool {
        false
    }

    /// Ready when it can be resumed: one that is stuffed for want of something that is made beside the request is not yet.
    fn poll_resumable(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Whether this is where answers of subrequests come in.
    fn is_postpone(&self) -> bool {
        false
    }
}

/// The filters that follow, and the session behind them.
pub struct Rest<'a>(&'a mut [Box<dyn BodyFilter>]);

impl Rest<'_> {
    /// Whether no filter follows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Hands a piece on.
    pub fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
        match self.0.split_first_mut() {
            Some((filter, rest)) => filter.push(r, chunk, last, Rest(rest)),
            None => r.queue(chunk, last),
        }
    }

    /// Hands an include on.
    pub fn include(&mut self, r: &mut Request, include: Include) -> io::Result<()> {
        match self.0.split_first_mut() {
            Some((filter, rest)) => filter.include(r, include, Rest(rest)),
            None => Ok(()),
        }
    }
}

/// Sends a piece through all filters of the answer.
pub fn run(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    if r.answer.body_filters.is_empty() {
        return r.queue(chunk, last);
    }
    run_from(r, 0, chunk, last)
}

/// Sends a piece through the filters from number `at` on.
pub fn run_from(r: &mut Request, at: usize, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    let mut filters = std::mem::take(&mut r.answer.body_filters);
    let result = Rest(&mut filters[at..]).push(r, chunk, last);
    r.answer.body_filters = filters;
    result
}

/// Sends a piece through the filters behind another answer's includes (see `include`).
pub fn run_tail(r: &mut Request, chunk: Chunk<'_>) -> io::Result<()> {
    let mut tail = std::mem::take(&mut r.answer.tail);
    let result = Rest(&mut tail).push(r, chunk, false);
    r.answer.tail = tail;
    result
}

/// Lets a filter that waits go on.
pub fn resume(r: &mut Request, at: usize) -> io::Result<()> {
    let mut filters = std::mem::take(&mut r.answer.body_filters);
    let result = resume_in(r, &mut filters, at);
    r.answer.body_filters = filters;
    result
}

fn resume_in(r: &mut Request, filters: &mut [Box<dyn BodyFilter>], at: usize) -> io::Result<()> {
    let (filter, rest) = filters[at..].split_first_mut().expect("the caller has found it");
    filter.resume(r, Rest(rest))
}

/// Whether a filter between the request and the client holds back what would be too much at once.
pub fn is_stuffed(r: &Request) -> bool {
    r.answer.body_filters.iter().chain(&r.answer.tail).any(|f| f.is_stuffed())
}

/// Lets the one of them that is nearest to the client go on: by about [`PIECE`] of what it makes.
pub fn resume_stuffed(r: &mut Request) -> io::Result<()> {
    if let Some(at) = r.answer.tail.iter().rposition(|f| f.is_stuffed()) {
        let mut tail = std::mem::take(&mut r.answer.tail);
        let result = resume_in(r, &mut tail, at);
        r.answer.tail = tail;
        return result;
    }
    match r.answer.body_filters.iter().rposition(|f| f.is_stuffed()) {
        Some(at) => resume(r, at),
        None => Ok(()),
    }
}

/// Ready when the one that [`resume_stuffed`] takes can be resumed.
pub(super) fn poll_stuffed(r: &mut Request, cx: &mut Context<'_>) -> Poll<()> {
    let stuffed = |filters: &mut [Box<dyn BodyFilter>], cx: &mut Context<'_>| {
        filters.iter_mut().rfind(|f| f.is_stuffed()).map(|f| f.poll_resumable(cx))
    };
    let found = stuffed(&mut r.answer.tail, cx).or_else(|| stuffed(&mut r.answer.body_filters, cx));
    found.unwrap_or(Poll::Ready(()))
}

/// Lets filters go on until none holds anything back, as fast as the client takes it.
pub async fn settle(r: &mut Request) -> Result<(), Verdict> {
    while is_stuffed(r) {
        if r.unsent_bytes() > PIECE {
            flow::flush_now(r).await?;
        }
        poll_fn(|cx| poll_stuffed(r, cx)).await;
        resume_stuffed(r).map_err(|e| r.broken(&e))?;
        runtime::yield_now().await;
    }
    Ok(())
}
