//! `brotli`, `brotli_static`: answers compressed with Brotli (RFC 7932), as Google's `ngx_brotli` has them. What it shares
//! with other codings is in `encoded`.

use super::encoded::{self, Coder, Encode, Op, Rules};
use super::gzip_static::Mode;
use super::ignored;
use crate::config::setters::{self, invalid};
use crate::config::types::TypeSet;
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http};
use crate::request::Request;
use crate::request::phases::Verdict;
use crate::request::respond::Filtered;
use crate::{inherited, merged_values};
use brotlic::encode::{BrotliEncoder, BrotliEncoderOptions, BrotliOperation};
use brotlic::{Quality, WindowSize};
use conf::{Node, Problem, value};
use std::io;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("brotli", |s, n| setters::flag(&mut s.level.conf.brotli.brotli, n)),
    http("brotli_static", |s, n| setters::one_of(&mut s.level.conf.brotli.brotli_static, n, &Mode::WORDS)),
    http("brotli_types", |s, n| TypeSet::set(&mut s.level.conf.brotli.brotli_types, s.build, n, "text/html")),
    http("brotli_comp_level", comp_level),
    http("brotli_min_length", |s, n| setters::size(&mut s.level.conf.brotli.brotli_min_length, n)),
    http("brotli_window", window),
    http("brotli_buffers", ignored::buffers),
];

/// The variables.
pub const VARIABLES: &[Builtin] =
    &[Builtin { name: "brotli_ratio", evaluate: |r| encoded::ratio(r, CODING), volatile: false, assign: None }];

const CODING: &str = "br";
/// Windows are 2^10 to 2^24 bytes (RFC 7932 section 9.1).
const WINDOW_BITS: std::ops::RangeInclusive<u32> = 10..=24;
/// Windows of answers whose length is known get no smaller, unless so configured: with a window of 2^16 or less the library takes other
/// tables, and 180 us in place of 26 for a page of 10 kB.
const SMALL_WINDOW: u32 = 17;
/// What the library is given room for at once.
const ROOM: usize = 16 * 1024;
/// After so much input a block ends. The library gathers the double of the window before it writes any, with all commands for it: 10 MB
/// for each answer under way, where this is 5, and answers are some 1.5 % longer.
const BLOCK: usize = 256 * 1024;
/// From this length on the library takes a table of 4 MB in place of 2.
const LARGE_HINT: u64 = 1 << 20;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether answers are compressed.
        brotli: bool = false,
        /// Whether `FILE.br` is sent.
        brotli_static: Mode = Mode::Off,
        /// 0 to 11.
        brotli_comp_level: u64 = 6,
        /// Shorter answers, where the length is known, are left alone.
        brotli_min_length: u64 = 20,
        /// The types that are worth it.
        brotli_types: TypeSet = TypeSet::of(&["text/html"]),
        /// The binary logarithm of the window's size.
        brotli_window: u32 = 19,
    }
}

inherited!(Conf, |_| true);

fn comp_level(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let level = &mut scope.level.conf.brotli.brotli_comp_level;
    setters::number(level, node)?;
    if **level > 11 {
        return Err(node.problem("value must be between 0 and 11".to_owned()));
    }
    Ok(())
}

fn window(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let size = value::size(&node.args[0].text).ok_or_else(|| invalid(node))?;
    if !size.is_power_of_two() || !WINDOW_BITS.contains(&size.trailing_zeros()) {
        return Err(node.problem("value must be 1k, 2k, 4k, and so on, up to 16m".to_owned()));
    }
    setters::value(&mut scope.level.conf.brotli.brotli_window, node, size.trailing_zeros())
}

/// `brotli_static`, in the content phase.
pub fn handler(r: &mut Request) -> Verdict {
    let mode = *r.conf().brotli.brotli_static;
    encoded::serve_file(r, mode, b".br", CODING)
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    if !*r.conf().brotli.brotli {
        return Filtered::Next;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.brotli;
    let length = r.answer.headers.content_length;
    let rules = Rules { coding: CODING, min_length: *conf.brotli_min_length, types: &conf.brotli_types };
    if encoded::begins(r, &rules) {
        let coder = Brotli::new(*conf.brotli_comp_level as u8, *conf.brotli_window, length);
        r.answer.body_filters.push(Box::new(Encode::new(CODING, Box::new(coder))));
    }
    Filtered::Next
}

struct Brotli {
    encoder: BrotliEncoder,
    /// How much the block under way has of the input.
    block: usize,
}

impl Brotli {
    /// A window that is larger than the answer would only cost memory.
    fn new(quality: u8, window: u32, length: Option<u64>) -> Brotli {
        let needed = length.map_or(window, |n| n.next_power_of_two().trailing_zeros() + 1);
        let bits = window.min(needed.max(SMALL_WINDOW));
        let mut options = BrotliEncoderOptions::new();
        options.quality(Quality::new(quality).expect("the directive takes 0 to 11"));
        options.window_size(WindowSize::new(bits as u8).expect("the directive takes 10 to 24 bits"));
        options.size_hint(length.unwrap_or(0).min(LARGE_HINT - 1) as u32);
        Brotli { encoder: options.build().expect("each of the parameters is within its bounds"), block: 0 }
    }

    fn run(&mut self, mut input: &[u8], op: BrotliOperation, out: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let start = out.len();
            out.resize(start + ROOM, 0);
            let done = self.encoder.compress(input, &mut out[start..], op).map_err(io::Error::other)?;
            out.truncate(start + done.bytes_written);
            input = &input[done.bytes_read..];
            if input.is_empty() && !self.encoder.has_output() {
                return Ok(());
            }
        }
    }
}

impl Coder for Brotli {
    fn encode(&mut self, input: &[u8], op: Op, out: &mut Vec<u8>) -> io::Result<()> {
        for piece in input.chunks(BLOCK) {
            self.run(piece, BrotliOperation::Process, out)?;
            self.block += piece.len();
            if self.block >= BLOCK {
                self.run(b"", BrotliOperation::Flush, out)?;
                self.block = 0;
            }
        }
        match op {
            Op::Go => Ok(()),
            Op::Flush => self.run(b"", BrotliOperation::Flush, out),
            Op::Finish => self.run(b"", BrotliOperation::Finish, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn unpacked(packed: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        brotlic::DecompressorReader::new(packed).read_to_end(&mut plain).expect("it is Brotli");
        plain
    }

    #[test]
    fn what_is_compressed_comes_out_again() {
        for (quality, length) in [(0, None), (5, Some(30_000)), (11, Some(1))] {
            let mut coder = Brotli::new(quality, 19, length);
            let (text, mut packed) = (b"0123456789".repeat(3000), Vec::new());
            coder.encode(&text[..100], Op::Flush, &mut packed).expect("it compresses");
            assert!(!packed.is_empty());
            coder.encode(&text[100..], Op::Go, &mut packed).expect("it compresses");
            coder.encode(b"", Op::Finish, &mut packed).expect("it ends");
            assert!(unpacked(&packed) == text && packed.len() < 1000, "{quality}");
        }
    }

    /// What the compressor keeps to itself is memory for each client that reads slowly.
    #[test]
    fn a_block_comes_out_when_it_is_full() {
        let mut coder = Brotli::new(1, 24, Some(1 << 30));
        let (piece, mut packed) = ([b'x'; 64 * 1024], Vec::new());
        for _ in 0..BLOCK / piece.len() - 1 {
            coder.encode(&piece, Op::Go, &mut packed).expect("it compresses");
        }
        let before = packed.len();
        coder.encode(&piece, Op::Go, &mut packed).expect("it compresses");
        assert!(packed.len() > before);
        coder.encode(b"", Op::Finish, &mut packed).expect("it ends");
        assert_eq!(unpacked(&packed).len(), BLOCK);
    }
}
