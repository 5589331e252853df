//! Unpacks answers that are compressed already for clients that cannot (nginx's `ngx_http_gunzip_filter_module`). Who can is in
//! `gzip_rules`.

use super::gzip_rules;
use super::ignored;
use crate::config::{Directive, http, setters};
use crate::merged_values;
use crate::request::Request;
use crate::request::chunk::{Chunk, PIECE};
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::respond::Filtered;
use flate2::{Decompress, FlushDecompress, Status};
use std::io;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("gunzip", |s, n| setters::flag(&mut s.level.conf.gunzip.gunzip, n)),
    http("gunzip_buffers", ignored::buffers),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The directive.
        gunzip: bool = false,
    }
}

/// Unpacked bytes are handed on in pieces of at most this size, and some of them at a time: what comes in at once can become a
/// thousand times as much (deflate cannot say it shorter), for which a client that takes it has to be there.
const ROOM: usize = 16 * 1024;
/// The largest window, 32 kB: who packed it need not say.
const WINDOW_BITS: u8 = 15;

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let packed =
        |r: &Request| r.answer.headers.find(K::ContentEncoding).is_some_and(|v| r.get(v).eq_ignore_ascii_case(b"gzip"));
    if !*r.conf().gunzip.gunzip || !packed(r) {
        return Filtered::Next;
    }
    r.ctx.gzip.vary = true;
    if gzip_rules::is_ok(r) {
        return Filtered::Next;
    }
    r.answer.headers.remove(K::ContentEncoding);
    r.answer.headers.content_length = None;
    r.answer.headers.remove(K::AcceptRanges);
    r.answer.allow_ranges = false;
    r.answer.in_memory = true;
    r.weaken_etag();
    r.answer.body_filters.push(Box::new(Gunzip::new()));
    Filtered::Next
}

fn member() -> Decompress {
    Decompress::new_gzip(WINDOW_BITS)
}

/// The body filter.
struct Gunzip {
    member: Decompress,
    /// The member is complete. Another one may follow (RFC 1952 section 2.2).
    ended: bool,
    /// What is unpacked and has not been handed on.
    room: Vec<u8>,
    /// It took all the room there was: the library may have more, without further input.
    full: bool,
    /// What has come and is not unpacked yet, and whether nothing follows it.
    held: Option<(Vec<u8>, bool)>,
    /// Where pieces of files are read to.
    file: Vec<u8>,
}

impl Gunzip {
    fn new() -> Gunzip {
        Gunzip { member: member(), ended: false, room: Vec::new(), full: false, held: None, file: Vec::new() }
    }
}

impl BodyFilter for Gunzip {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        let mut file = std::mem::take(&mut self.file);
        let result = chunk.pieces(last, &mut file, |piece, last| match &mut self.held {
            Some((held, over)) => {
                held.extend_from_slice(piece);
                *over = last;
                Ok(())
            }
            None => self.piece(r, piece, last, &mut rest),
        });
        self.file = file;
        result
    }

    fn is_stuffed(&self) -> bool {
        self.held.is_some()
    }

    fn resume(&mut self, r: &mut Request, mut rest: Rest<'_>) -> io::Result<()> {
        let Some((held, last)) = self.held.take() else { return Ok(()) };
        self.piece(r, &held, last, &mut rest)
    }
}

impl Gunzip {
    /// Hands on what becomes of a piece, as much as is good for now; the rest of the piece is held.
    fn piece(&mut self, r: &mut Request, piece: &[u8], last: bool, rest: &mut Rest<'_>) -> io::Result<()> {
        let used = self.inflate(r, piece, rest)?;
        if used < piece.len() || self.full {
            self.held = Some((piece[used..].to_vec(), last));
            return Ok(());
        }
        if last && !self.ended {
            return Err(invalid("inflate() returned -5 on response end"));
        }
        if last || (r.answer.unbuffered && !self.room.is_empty()) {
            rest.push(r, Chunk::Bytes(&self.room), last)?;
            self.room.clear();
        }
        Ok(())
    }

    /// Unpacks until the input is used up or [`PIECE`] bytes have come of it. Gives how much was used.
    fn inflate(&mut self, r: &mut Request, input: &[u8], rest: &mut Rest<'_>) -> io::Result<usize> {
        let (mut used, mut made) = (0, 0);
        while (self.full || used < input.len()) && made < PIECE {
            if std::mem::take(&mut self.ended) {
                self.member = member();
            }
            if self.room.capacity() == 0 {
                self.room.reserve_exact(ROOM);
            }
            let before = self.member.total_in();
            let status = self.member.decompress_vec(&input[used..], &mut self.room, FlushDecompress::None);
            used += (self.member.total_in() - before) as usize;
            self.ended = status.map_err(|e| invalid(&format!("inflate() failed: {e}")))? == Status::StreamEnd;
            let full = self.room.len() == self.room.capacity();
            self.full = full && !self.ended;
            if full {
                made += self.room.len() as u64;
                rest.push(r, Chunk::Bytes(&self.room), false)?;
                self.room.clear();
            }
        }
        Ok(used)
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
