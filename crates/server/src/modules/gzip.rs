//! Compresses answers (nginx's `ngx_http_gzip_filter_module`). Who may be sent such answers is in `gzip_rules`.

use super::gzip_rules;
use super::ignored;
use crate::config::setters::{self, invalid};
use crate::config::types::TypeSet;
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http};
use crate::request::chunk::Chunk;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::respond::Filtered;
use crate::request::{Request, Text};
use crate::{merged_values, text};
use conf::{Node, Problem, value};
use flate2::{Compress, Compression, FlushCompress, Status};
use std::cell::RefCell;
use std::io;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("gzip", |s, n| setters::flag(&mut s.level.conf.gzip.gzip, n)),
    http("gzip_comp_level", comp_level),
    http("gzip_min_length", |s, n| setters::size(&mut s.level.conf.gzip.gzip_min_length, n)),
    http("gzip_types", |s, n| TypeSet::set(&mut s.level.conf.gzip.gzip_types, s.build, n, "text/html")),
    http("gzip_window", |s, n| {
        let bits = window_bits(n)?;
        setters::value(&mut s.level.conf.gzip.gzip_window, n, bits)
    }),
    http("gzip_hash", hash),
    http("gzip_buffers", ignored::buffers),
    http("gzip_no_buffer", ignored::any),
    http("postpone_gzipping", ignored::size),
];

/// What the module knows.
pub const VARIABLES: &[Builtin] = &[Builtin { name: "gzip_ratio", evaluate: ratio, volatile: false, assign: None }];

/// Compressed bytes are handed on in pieces of at most this size: large enough for one write, small enough to keep one
/// per answer.
const ROOM: usize = 16 * 1024;
/// Compressors, about 350 kB each with their buffers, that a thread keeps for later answers.
const KEPT: usize = 16;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether answers are compressed at all.
        gzip: bool = false,
        /// 1 to 9.
        gzip_comp_level: u64 = 1,
        /// Shorter answers, where the length is known, are left alone.
        gzip_min_length: u64 = 20,
        /// The types that are worth it.
        gzip_types: TypeSet = TypeSet::of(&["text/html"]),
        /// The binary logarithm of the window's size.
        gzip_window: u8 = 15,
    }
}

/// How many bytes a finished answer had before and after.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    before: u64,
    after: u64,
}

fn comp_level(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let level = &mut scope.level.conf.gzip.gzip_comp_level;
    setters::number(level, node)?;
    if !(1..=9).contains(&**level) {
        return Err(node.problem("value must be between 1 and 9".to_owned()));
    }
    Ok(())
}

fn window_bits(node: &Node) -> Result<u8, Problem> {
    let size = value::size(&node.args[0].text).ok_or_else(|| invalid(node))?;
    if size.is_power_of_two() && (512..=32 * 1024).contains(&size) {
        return Ok(size.trailing_zeros() as u8);
    }
    Err(node.problem("\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k".to_owned()))
}

fn hash(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let size = value::size(&node.args[0].text).ok_or_else(|| invalid(node))?;
    if !size.is_power_of_two() || !(512..=128 * 1024).contains(&size) {
        let text = "\"gzip_hash\" directive must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k";
        return Err(node.problem(text.to_owned()));
    }
    ignored::any(scope, node)
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let conf = &r.conf().gzip;
    if !*conf.gzip || !is_worth_it(r) {
        return Filtered::Next;
    }
    let (level, window) = (*conf.gzip_comp_level as u8, *conf.gzip_window);
    r.ctx.gzip.vary = true;
    if !gzip_rules::is_ok(r) {
        return Filtered::Next;
    }
    r.answer.headers.add(K::ContentEncoding, "Content-Encoding", "gzip");
    r.answer.headers.content_length = None;
    r.answer.headers.remove(K::AcceptRanges);
    r.answer.allow_ranges = false;
    r.answer.in_memory = true;
    r.weaken_etag();
    r.answer.body_filters.push(Box::new(Gzip { level, window, tools: None }));
    Filtered::Next
}

fn is_worth_it(r: &Request) -> bool {
    let (h, conf) = (&r.answer.headers, &r.conf().gzip);
    matches!(h.status, 200 | 403 | 404)
        && !r.answer.header_only
        && h.find(K::ContentEncoding).is_none_or(|v| r.get(v).is_empty())
        && h.content_length.is_none_or(|n| n >= *conf.gzip_min_length)
        && conf.gzip_types.fits(r)
}

/// `$gzip_ratio`: two digits after the point, rounded.
fn ratio(r: &mut Request) -> Option<Text> {
    let Totals { before, after } = r.ctx.gzip_totals;
    if after == 0 {
        return None;
    }
    let hundredths = (before * 1000 / after + 5) / 10;
    Some(text!(r, "{}.{:02}", hundredths / 100, hundredths % 100))
}

/// The body filter.
struct Gzip {
    level: u8,
    window: u8,
    /// Taken with the first piece.
    tools: Option<Tools>,
}

/// What an answer is compressed with; kept by the thread for the next one.
struct Tools {
    level: u8,
    window: u8,
    compress: Compress,
    /// What is compressed and has not been handed on.
    room: Vec<u8>,
    /// Where pieces of files are read to.
    file: Vec<u8>,
}

impl BodyFilter for Gzip {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        let tools = self.tools.get_or_insert_with(|| Tools::take(self.level, self.window));
        let mut file = std::mem::take(&mut tools.file);
        let result = chunk.pieces(last, &mut file, |piece, last| {
            let flush = match (last, r.answer.unbuffered) {
                (true, _) => FlushCompress::Finish,
                (false, true) => FlushCompress::Sync,
                (false, false) => FlushCompress::None,
            };
            if piece.is_empty() && !last { Ok(()) } else { tools.deflate(r, piece, flush, &mut rest) }
        });
        tools.file = file;
        result
    }
}

impl Drop for Gzip {
    fn drop(&mut self) {
        if let Some(tools) = self.tools.take() {
            tools.give_back();
        }
    }
}

thread_local! {
    static POOL: RefCell<Vec<Tools>> = const { RefCell::new(Vec::new()) };
}

/// The library's level for one of `gzip_comp_level`. Its first has fixed codes and stores nothing as it is: a quarter more bytes than zlib's first,
/// and more than the file where that is random. Its second takes zlib's time at the first and makes a little less of it.
fn library_level(level: u8) -> Compression {
    Compression::new(u32::from(level.max(2)))
}

impl Tools {
    fn take(level: u8, window: u8) -> Tools {
        let kept = POOL.with_borrow_mut(|pool| {
            let at = pool.iter().rposition(|t| t.level == level && t.window == window)?;
            Some(pool.swap_remove(at))
        });
        match kept {
            Some(mut tools) => {
                tools.compress.reset();
                tools.room.clear();
                tools
            }
            None => Tools {
                level,
                window,
                compress: Compress::new_gzip(library_level(level), window),
                room: Vec::with_capacity(ROOM),
                file: Vec::new(),
            },
        }
    }

    fn give_back(self) {
        // A thread that is ending has no pool any more.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < KEPT {
                pool.push(self);
            }
        });
    }

    fn deflate(
        &mut self,
        r: &mut Request,
        mut input: &[u8],
        flush: FlushCompress,
        rest: &mut Rest<'_>,
    ) -> io::Result<()> {
        let Tools { compress, room, .. } = self;
        loop {
            let before = compress.total_in();
            let status = compress.compress_vec(input, room, flush).map_err(io::Error::other)?;
            input = &input[(compress.total_in() - before) as usize..];
            let full = room.len() == room.capacity();
            let end = status == Status::StreamEnd;
            if end {
                r.ctx.gzip_totals = Totals { before: compress.total_in(), after: compress.total_out() };
            }
            // What was not asked to leave yet waits for company.
            if full || end || (flush != FlushCompress::None && !room.is_empty()) {
                rest.push(r, Chunk::Bytes(room), end)?;
                room.clear();
            }
            if end || (input.is_empty() && !full) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressors_are_used_again() {
        let body = b"abcabcabc".repeat(100);
        for _ in 0..2 {
            let mut tools = Tools::take(1, 15);
            let mut out = Vec::with_capacity(4096);
            let status = tools.compress.compress_vec(&body, &mut out, FlushCompress::Finish);
            assert_eq!(status.ok(), Some(Status::StreamEnd));
            assert_eq!(out[..2], [0x1f, 0x8b]);
            let mut text = Vec::new();
            io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&out[..]), &mut text).expect("it is gzip");
            assert_eq!(text, body);
            tools.give_back();
        }
    }
}
