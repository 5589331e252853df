//! What content codings beside gzip have in common (`brotli`, `zstd`): who takes them, `FILE.br` beside `FILE`, the filters
//! that compress. One that is on comes before gzip, and caches are told as with gzip (`gzip_vary`).

use super::gzip_static::Mode;
use super::{root, static_files};
use crate::config::types::TypeSet;
use crate::files::{self, Kind};
use crate::log::error::Level;
use crate::request::chunk::{Chunk, PIECE};
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, Text};
use crate::text;
use std::io;

/// How many bytes a finished answer had before and after.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// By which coding.
    coding: &'static str,
    before: u64,
    after: u64,
}

/// What a coder is to do with what it has been given so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Keep what waits for company.
    Go,
    /// Hand out all of it.
    Flush,
    /// Hand out all of it, and the end.
    Finish,
}

/// One compressor at work on one answer.
pub trait Coder {
    /// Takes bytes, at most [`PIECE`] of them; what is ready is appended to `out`.
    fn encode(&mut self, input: &[u8], op: Op, out: &mut Vec<u8>) -> io::Result<()>;
}

/// When an answer is compressed.
pub struct Rules<'c> {
    /// The coding's name in `Content-Encoding`.
    pub coding: &'static str,
    /// Shorter answers are left alone.
    pub min_length: u64,
    /// Types that are worth it.
    pub types: &'c TypeSet,
}

/// A part of a header filter: whether the answer is to be compressed. If so its head says so already.
pub fn begins(r: &mut Request, rules: &Rules<'_>) -> bool {
    let h = &r.answer.headers;
    let worth = matches!(h.status, 200 | 403 | 404)
        && !r.answer.header_only
        && h.find(K::ContentEncoding).is_none_or(|v| r.get(v).is_empty())
        && h.content_length.is_none_or(|n| n >= rules.min_length)
        && rules.types.fits(r);
    if !worth {
        return false;
    }
    r.ctx.gzip.vary = true;
    if !is_accepted(r, rules.coding) {
        return false;
    }
    r.answer.headers.remove(K::ContentEncoding);
    r.answer.headers.add(K::ContentEncoding, "Content-Encoding", rules.coding);
    r.clear_content_length();
    r.clear_accept_ranges();
    r.answer.in_memory = true;
    r.weaken_etag();
    true
}

/// Whether the client takes a coding, by its name. Answers of subrequests become parts of others and stay as they are.
pub fn is_accepted(r: &Request, coding: &str) -> bool {
    let mut lines = r.head.headers.lines().iter().filter(|l| l.known == K::AcceptEncoding);
    r.is_main() && lines.any(|l| accepts(r.get(l.value), coding.as_bytes()))
}

/// Whether a value of `Accept-Encoding` names a coding with a weight above zero (RFC 9110 section 12.5.3).
fn accepts(value: &[u8], coding: &[u8]) -> bool {
    value.split(|b| *b == b',').any(|item| {
        let mut parts = item.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(coding));
        let weight = parts.find_map(|p| p.strip_prefix(b"q=").or(p.strip_prefix(b"Q=")));
        named && weight.is_none_or(is_positive)
    })
}

/// A weight is a number between 0 and 1 with at most three digits behind the point.
fn is_positive(weight: &[u8]) -> bool {
    let plain = weight.iter().enumerate().all(|(at, b)| if at == 1 { *b == b'.' } else { b.is_ascii_digit() });
    plain
        && weight.len() <= 5
        && matches!(weight.first(), Some(b'0' | b'1'))
        && weight.iter().any(|b| b.is_ascii_digit() && *b != b'0')
}

/// `Accept-Encoding: br` gets `FILE.br` in place of `FILE`: for GET and HEAD, when it is there.
pub fn serve_file(r: &mut Request, mode: Mode, suffix: &[u8], coding: &'static str) -> Verdict {
    if mode == Mode::Off || !matches!(r.head.method, Method::Get | Method::Head) || r.get(r.head.uri).ends_with(b"/") {
        return Verdict::Decline;
    }
    let accepted = is_accepted(r, coding);
    if mode == Mode::On && !accepted && !*r.conf().gzip_rules.gzip_vary {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let mut path = std::mem::take(&mut r.scratch);
    path.clear();
    root::write_path(r, r.head.uri, &mut path);
    path.extend_from_slice(suffix);
    let verdict = open_file(r, &path, mode, accepted, coding);
    r.scratch = path;
    verdict
}

fn open_file(r: &mut Request, path: &[u8], mode: Mode, accepted: bool, coding: &'static str) -> Verdict {
    let found = match files::open(r, path) {
        Ok(found) => found,
        Err(failure) => {
            if !failure.is_not_found() {
                failure.log(r, if failure.is_forbidden() { Level::Error } else { Level::Crit }, path);
            }
            return Verdict::Decline;
        }
    };
    if mode == Mode::On {
        r.ctx.gzip.vary = true;
        if !accepted {
            return Verdict::Decline;
        }
    }
    match found.facts.kind {
        Kind::Directory => return Verdict::Decline,
        Kind::File => {}
        Kind::Other => return static_files::not_regular(r, path),
    }
    r.answer.headers.add(K::ContentEncoding, "Content-Encoding", coding);
    static_files::respond(r, &found)
}

/// The value of `$brotli_ratio` and `$zstd_ratio`: two digits behind the point, rounded; none if another coding was used.
pub fn ratio(r: &mut Request, coding: &str) -> Option<Text> {
    let Totals { coding: used, before, after } = r.ctx.encoded;
    if after == 0 || used != coding {
        return None;
    }
    let hundredths = (before * 1000 / after + 5) / 10;
    Some(text!(r, "{}.{:02}", hundredths / 100, hundredths % 100))
}

/// The body filter.
pub struct Encode {
    coder: Box<dyn Coder>,
    totals: Totals,
    /// What is compressed and has not been handed on.
    out: Vec<u8>,
    /// Where pieces of files are read to.
    file: Vec<u8>,
}

impl Encode {
    /// With a coder for one answer.
    pub fn new(coding: &'static str, coder: Box<dyn Coder>) -> Encode {
        Encode { coder, totals: Totals { coding, ..Totals::default() }, out: Vec::new(), file: Vec::new() }
    }

    fn piece(&mut self, r: &mut Request, mut input: &[u8], last: bool, rest: &mut Rest<'_>) -> io::Result<()> {
        loop {
            let (now, later) = input.split_at(input.len().min(PIECE as usize));
            let last = last && later.is_empty();
            let op = match last {
                true => Op::Finish,
                false if r.answer.unbuffered && later.is_empty() => Op::Flush,
                false => Op::Go,
            };
            self.coder.encode(now, op, &mut self.out)?;
            self.totals.before += now.len() as u64;
            self.totals.after += self.out.len() as u64;
            if last {
                r.ctx.encoded = self.totals;
            }
            if last || !self.out.is_empty() {
                rest.push(r, Chunk::Bytes(&self.out), last)?;
                self.out.clear();
            }
            if later.is_empty() {
                return Ok(());
            }
            input = later;
        }
    }
}

impl BodyFilter for Encode {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        let mut file = std::mem::take(&mut self.file);
        let result = chunk.pieces(last, &mut file, |piece, last| match piece.is_empty() && !last {
            true => Ok(()),
            false => self.piece(r, piece, last, &mut rest),
        });
        self.file = file;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_a_coding() {
        for yes in ["br", "gzip, br", "gzip;q=1, BR ; q=0.001", "br;q=1.000", "br;q=0.5,gzip", "x, br;v=1"] {
            assert!(accepts(yes.as_bytes(), b"br"), "{yes}");
        }
        for no in ["", "gzip", "brr", "xbr", "br;q=0", "br;q=0.000", "br;q=2", "br;q=0.0001", "br;q=", "b r", "br;q=1x"]
        {
            assert!(!accepts(no.as_bytes(), b"br"), "{no}");
        }
    }
}
