//! The way of an answer's body from its handler to the session: a chain of filters, each of which may change,
//! hold back or add. Nothing here waits; the handler flushes between pieces.

use super::include::Include;
use super::phases::Verdict;
use super::{Request, flow};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// What is read of a file at once when its bytes are needed: some pieces fit a socket's buffer, and the other requests of
/// the thread do not wait long.
pub const PIECE: u64 = 64 * 1024;

/// What came to a filter while it could not take it.
pub enum Held {
    /// Bytes, and whether they are the last.
    Piece(Vec<u8>, bool),
    /// An answer that has its place here.
    Include(Include),
}

/// A piece of a body.
#[derive(Clone, Copy)]
pub enum Chunk<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// A stretch of an open file.
    File {
        /// The file.
        file: &'a Rc<OwnedFd>,
        /// Where it starts.
        offset: u64,
        /// How long it is.
        len: u64,
    },
}

impl<'a> Chunk<'a> {
    /// The bytes `from..to` of it; what lies behind its end is left out.
    pub fn cut(self, from: u64, to: u64) -> Chunk<'a> {
        let to = to.min(self.len());
        let from = from.min(to);
        match self {
            Chunk::Bytes(b) => Chunk::Bytes(&b[from as usize..to as usize]),
            Chunk::File { file, offset, .. } => Chunk::File { file, offset: offset + from, len: to - from },
        }
    }

    /// Its bytes, read into `room` where they are in a file, in pieces of at most [`PIECE`]. `last` goes with the last of
    /// them; a chunk without bytes is one empty piece. Error `UnexpectedEof`: the file has become shorter.
    pub fn pieces(
        self,
        last: bool,
        room: &mut Vec<u8>,
        mut take: impl FnMut(&[u8], bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let (file, mut offset, mut left) = match self {
            Chunk::Bytes(bytes) => return take(bytes, last),
            Chunk::File { len: 0, .. } => return take(b"", last),
            Chunk::File { file, offset, len } => (file, offset, len),
        };
        while left > 0 {
            room.resize(left.min(PIECE) as usize, 0);
            let n = rustix::io::pread(&**file, &mut room[..], offset)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            offset += n as u64;
            left -= n as u64;
            take(&room[..n], last && left == 0)?;
        }
        Ok(())
    }

    /// Appends its bytes to `out`, read where they are in a file. Error `UnexpectedEof`: the file has become shorter.
    pub fn copy_to(self, out: &mut Vec<u8>) -> io::Result<()> {
        let (file, offset, len) = match self {
            Chunk::Bytes(bytes) => {
                out.extend_from_slice(bytes);
                return Ok(());
            }
            Chunk::File { file, offset, len } => (file, offset, len),
        };
        let (start, mut got) = (out.len(), 0);
        out.resize(start + len as usize, 0);
        while got < len {
            match rustix::io::pread(&**file, &mut out[start + got as usize..], offset + got) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => got += n as u64,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Chunk::Bytes(b) => b.len() as u64,
            Chunk::File { len, .. } => *len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
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

    /// Whether this is where answers of subrequests come in.
    fn is_postpone(&self) -> bool {
        false
    }
}

/// The filters that follow, and the session behind them.
pub struct Rest<'a>(&'a mut [Box<dyn BodyFilter>]);

impl Rest<'_> {
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

/// Lets filters go on until none holds anything back, as fast as the client takes it.
pub async fn settle(r: &mut Request) -> Result<(), Verdict> {
    while is_stuffed(r) {
        if r.unsent_bytes() > PIECE {
            flow::flush_now(r).await?;
        }
        resume_stuffed(r).map_err(|e| r.broken(&e))?;
        runtime::yield_now().await;
    }
    Ok(())
}
