//! `zstd`, `zstd_static`: answers compressed with Zstandard (RFC 8878), as the `zstd-nginx-module` has them. What it shares
//! with other codings is in `encoded`.

use super::encoded::{self, Coder, Encode, Op, Rules};
use super::gzip_static::Mode;
use super::ignored;
use crate::config::setters;
use crate::config::types::TypeSet;
use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http};
use crate::request::Request;
use crate::request::phases::Verdict;
use crate::request::respond::Filtered;
use crate::{inherited, merged_values};
use ::zstd::stream::raw::{CParameter, Encoder, Operation, OutBuffer};
use conf::{Node, Problem, value};
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("zstd", |s, n| setters::flag(&mut s.level.conf.zstd.zstd, n)),
    http("zstd_static", |s, n| setters::one_of(&mut s.level.conf.zstd.zstd_static, n, &Mode::WORDS)),
    http("zstd_types", |s, n| TypeSet::set(&mut s.level.conf.zstd.zstd_types, s.build, n, "text/html")),
    http("zstd_comp_level", comp_level),
    http("zstd_min_length", |s, n| setters::size(&mut s.level.conf.zstd.zstd_min_length, n)),
    http("zstd_buffers", ignored::buffers),
    http("zstd_dict_file", dictionary),
];

/// The variables.
pub const VARIABLES: &[Builtin] =
    &[Builtin { name: "zstd_ratio", evaluate: |r| encoded::ratio(r, CODING), volatile: false, assign: None }];

const CODING: &str = "zstd";
/// Levels that the library has, those below zero being faster than 1.
const LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;
/// Browsers unpack with windows of at most 8 MB (RFC 9659 section 3).
const MAX_WINDOW_BITS: u32 = 23;
/// The level from which the library would take a larger window.
const LARGE_WINDOWS: i32 = 20;
/// Compressed bytes are taken from the library in pieces of this size.
const ROOM: usize = 16 * 1024;
/// Compressors that a thread keeps for later answers.
const KEPT: usize = 8;
/// Larger dictionaries are refused.
const MAX_DICTIONARY: usize = 10 * 1024 * 1024;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether answers are compressed.
        zstd: bool = false,
        /// Whether `FILE.zst` is sent.
        zstd_static: Mode = Mode::Off,
        /// 1 to 22, and below 0.
        zstd_comp_level: i32 = 1,
        /// Shorter answers, where the length is known, are left alone.
        zstd_min_length: u64 = 20,
        /// The types that are worth it.
        zstd_types: TypeSet = TypeSet::of(&["text/html"]),
        /// What the compressor begins with; clients need the same.
        zstd_dict_file: Option<Arc<[u8]>> = None,
    }
}

inherited!(Conf, |_| true);

fn comp_level(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = &node.args[0].text;
    let level = match text.strip_prefix(b"-") {
        Some(digits) => value::number(digits).and_then(|n| i32::try_from(n).ok()).map(|n| -n),
        None => value::number(text).and_then(|n| i32::try_from(n).ok()),
    };
    match level.filter(|n| *n != 0 && LEVELS.contains(n)) {
        Some(level) => setters::value(&mut scope.level.conf.zstd.zstd_comp_level, node, level),
        None => Err(node.problem("value must be between 1 and 22, or below 0".to_owned())),
    }
}

fn dictionary(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let path = scope.build.conf_path(&node.args[0].text);
    let bytes =
        scope.build.files.read(&path).map_err(|e| {
            node.problem(format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e)))
        })?;
    if bytes.is_empty() || bytes.len() > MAX_DICTIONARY {
        let text = format!("dictionary \"{}\" must have 1 to {MAX_DICTIONARY} bytes", path.display());
        return Err(node.problem(text));
    }
    setters::value(&mut scope.level.conf.zstd.zstd_dict_file, node, Some(bytes.into()))
}

/// `zstd_static`, in the content phase.
pub fn handler(r: &mut Request) -> Verdict {
    let mode = *r.conf().zstd.zstd_static;
    encoded::serve_file(r, mode, b".zst", CODING)
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    if !*r.conf().zstd.zstd {
        return Filtered::Next;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.zstd;
    let rules = Rules { coding: CODING, min_length: *conf.zstd_min_length, types: &conf.zstd_types };
    if encoded::begins(r, &rules) {
        match Zstd::take(*conf.zstd_comp_level, (*conf.zstd_dict_file).clone()) {
            Ok(coder) => r.answer.body_filters.push(Box::new(Encode::new(CODING, Box::new(coder)))),
            Err(e) => {
                crate::log_error!(r, Alert, "zstd: no compressor: {e}");
                return Filtered::Refuse(500);
            }
        }
    }
    Filtered::Next
}

/// A compressor; kept by the thread for the next answer.
struct Tools {
    level: i32,
    dictionary: Option<Arc<[u8]>>,
    encoder: Encoder<'static>,
    room: Box<[u8]>,
}

thread_local! {
    static POOL: RefCell<Vec<Tools>> = const { RefCell::new(Vec::new()) };
}

/// A compressor at work.
struct Zstd(Option<Tools>);

impl Zstd {
    fn take(level: i32, dictionary: Option<Arc<[u8]>>) -> io::Result<Zstd> {
        let same = |a: &Option<Arc<[u8]>>, b: &Option<Arc<[u8]>>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let kept = POOL.with_borrow_mut(|pool| {
            let at = pool.iter().rposition(|t| t.level == level && same(&t.dictionary, &dictionary))?;
            Some(pool.swap_remove(at))
        });
        if let Some(mut tools) = kept {
            tools.encoder.reinit()?;
            return Ok(Zstd(Some(tools)));
        }
        let mut encoder = Encoder::with_dictionary(level, dictionary.as_deref().unwrap_or_default())?;
        if level >= LARGE_WINDOWS {
            encoder.set_parameter(CParameter::WindowLog(MAX_WINDOW_BITS))?;
        }
        Ok(Zstd(Some(Tools { level, dictionary, encoder, room: vec![0; ROOM].into() })))
    }
}

impl Drop for Zstd {
    fn drop(&mut self) {
        let Some(tools) = self.0.take() else { return };
        // A thread that is ending has no pool any more.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < KEPT {
                pool.push(tools);
            }
        });
    }
}

impl Coder for Zstd {
    fn encode(&mut self, mut input: &[u8], op: Op, out: &mut Vec<u8>) -> io::Result<()> {
        let Some(Tools { encoder, room, .. }) = &mut self.0 else { return Ok(()) };
        while !input.is_empty() {
            let status = encoder.run_on_buffers(input, room)?;
            input = &input[status.bytes_read..];
            out.extend_from_slice(&room[..status.bytes_written]);
        }
        loop {
            let mut piece = OutBuffer::around(&mut room[..]);
            let left = match op {
                Op::Go => break,
                Op::Finish => encoder.finish(&mut piece, true)?,
                Op::Flush => encoder.flush(&mut piece)?,
            };
            out.extend_from_slice(piece.as_slice());
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_comes_out_again_and_compressors_are_used_again() {
        let dictionary: Arc<[u8]> = Arc::from(&b"0123456789abcdefghijklmnopqrstuvwxyz"[..]);
        for (level, dictionary) in [(1, None), (-5, None), (1, None), (22, None), (3, Some(dictionary))] {
            let mut coder = Zstd::take(level, dictionary.clone()).expect("there is a compressor");
            let (text, mut packed, mut plain) = (b"0123456789".repeat(3000), Vec::new(), Vec::new());
            coder.encode(&text[..100], Op::Flush, &mut packed).expect("it compresses");
            assert!(!packed.is_empty());
            coder.encode(&text[100..], Op::Go, &mut packed).expect("it compresses");
            coder.encode(b"", Op::Finish, &mut packed).expect("it ends");
            let dictionary = dictionary.as_deref().unwrap_or_default();
            let mut decoder =
                ::zstd::stream::read::Decoder::with_dictionary(&packed[..], dictionary).expect("a decoder");
            std::io::Read::read_to_end(&mut decoder, &mut plain).expect("it is Zstandard");
            assert!(plain == text && packed.len() < 1000, "{level}");
        }
    }
}
