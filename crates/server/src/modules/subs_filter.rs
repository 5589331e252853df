//! `subs_filter`: strings and patterns in answers are replaced, line by line (yaoweibin's
//! `ngx_http_substitutions_filter_module`). Beside `sub_filter` it has patterns, and replacements of what a group matched.

use super::ignored;
use crate::config::complex::Complex;
use crate::config::pattern::{Pattern, Places};
use crate::config::setters;
use crate::config::types::TypeSet;
use crate::config::{Directive, Scope, http};
use crate::request::Request;
use crate::request::chunk::{Chunk, PIECE};
use crate::request::filter::{BodyFilter, Rest};
use crate::request::headers::KnownHeader as K;
use crate::request::include::Include;
use crate::request::respond::{Filtered, refused};
use crate::{inherited, log_error, merged_values};
use conf::{Node, Problem};
use memchr::{memchr, memmem};
use std::io;
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("subs_filter", subs_filter),
    http("subs_filter_types", |s, n| {
        TypeSet::set(&mut s.level.conf.subs_filter.subs_filter_types, s.build, n, "text/html")
    }),
    http("subs_filter_bypass", |s, n| {
        setters::conditions(s.build, &mut s.level.conf.subs_filter.subs_filter_bypass, n)
    }),
    http("subs_line_buffer_size", |s, n| setters::size(&mut s.level.conf.subs_filter.subs_line_buffer_size, n)),
    http("subs_buffers", ignored::buffers),
];

/// Replacements of one level.
const MAX_PAIRS: usize = 1024;
/// A line may grow by what replaces its parts to this at most.
const MAX_GROWN: usize = 16 * 1024 * 1024;

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// `subs_filter`, in order.
        pairs: Arc<Vec<Pair>> = Arc::default(),
        /// The types of answers that are searched.
        subs_filter_types: TypeSet = TypeSet::of(&["text/html"]),
        /// When one of them is true, the answer is left alone.
        subs_filter_bypass: Arc<Vec<Complex>> = Arc::default(),
        /// A longer line is cut there.
        subs_line_buffer_size: u64 = 128 * 1024,
    }
}

inherited!(Conf, |_| true);

/// One `subs_filter`.
#[derive(Clone, Debug)]
pub struct Pair {
    what: What,
    by: Complex,
    /// `o`: only the first in the answer.
    once: bool,
}

/// What is looked for.
#[derive(Clone, Debug)]
enum What {
    Text(Complex),
    /// The same in lower case, letters of either case matching.
    Caseless(Complex),
    Pattern(Pattern),
}

fn subs_filter(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let [what, by, flags @ ..] = node.args.as_slice() else { unreachable!("the table says two or three") };
    let (mut regex, mut caseless, mut once) = (false, false, false);
    for flag in flags.iter().flat_map(|word| word.text.iter()) {
        match flag {
            b'g' => once = false,
            b'o' => once = true,
            b'i' => caseless = true,
            b'r' => regex = true,
            other => return Err(node.problem(format!("invalid flag \"{}\"", char::from(*other)))),
        }
    }
    if what.text.is_empty() {
        return Err(node.problem("empty search pattern".to_owned()));
    }
    let text = |e: String| node.problem(e);
    let what = match (regex, caseless) {
        (true, _) => What::Pattern(Pattern::compile(scope.build, &what.text, caseless).map_err(text)?),
        (false, true) => What::Caseless(Complex::compile_bytes(scope.build, &what.text).map_err(text)?),
        (false, false) => What::Text(Complex::compile(scope.build, what)?),
    };
    let by = Complex::compile(scope.build, by)?;
    let pairs = Arc::make_mut(scope.level.conf.subs_filter.pairs.entry());
    if pairs.len() == MAX_PAIRS {
        return Err(node.problem(format!("number of search patterns exceeds {MAX_PAIRS}")));
    }
    pairs.push(Pair { what, by, once });
    Ok(())
}

/// The header filter.
pub fn filter(r: &mut Request) -> Filtered {
    let conf = &r.conf().subs_filter;
    if conf.pairs.is_empty()
        || r.answer.headers.content_length == Some(0)
        || !conf.subs_filter_types.fits(r)
        || r.is_body_unwanted()
        || r.is_refusal()
    {
        return Filtered::Next;
    }
    if r.answer.headers.find(K::ContentEncoding).is_some_and(|v| !r.get(v).is_empty()) {
        log_error!(r, Warn, "subs_filter: the answer is compressed and left as it is");
        return Filtered::Next;
    }
    let (pairs, bypass) = (Arc::clone(&conf.pairs), Arc::clone(&conf.subs_filter_bypass));
    let longest = *conf.subs_line_buffer_size as usize;
    if Complex::any_is_true(r, &bypass) {
        return Filtered::Next;
    }
    let rules = pairs.iter().map(|pair| Rule::new(r, pair)).collect();
    if r.is_main() {
        r.clear_content_length();
        r.clear_accept_ranges();
        r.clear_validators(false);
    }
    r.answer.in_memory = true;
    r.answer.body_filters.push(Box::new(Subs {
        pairs,
        rules,
        longest,
        line: Vec::new(),
        other: Vec::new(),
        room: Vec::new(),
    }));
    Filtered::Next
}

/// What a pair looks for in one answer.
struct Rule {
    text: Vec<u8>,
    places: Option<Places>,
    done: bool,
}

impl Rule {
    fn new(r: &mut Request, pair: &Pair) -> Rule {
        let (text, places) = match &pair.what {
            What::Text(text) => (text.eval(r), None),
            What::Caseless(text) => (text.eval(r), None),
            What::Pattern(pattern) => (crate::request::Text::EMPTY, Some(pattern.places())),
        };
        let mut text = r.get(text).to_vec();
        if matches!(pair.what, What::Caseless(_)) {
            text.make_ascii_lowercase();
        }
        // A string that a variable has made empty is found nowhere.
        let done = text.is_empty() && places.is_none();
        Rule { text, places, done }
    }
}

/// The body filter.
struct Subs {
    pairs: Arc<Vec<Pair>>,
    rules: Vec<Rule>,
    longest: usize,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// Where a line is written with its replacements.
    other: Vec<u8>,
    /// Where pieces of files are read to.
    room: Vec<u8>,
}

impl Subs {
    fn piece(&mut self, r: &mut Request, mut piece: &[u8], last: bool, rest: &mut Rest<'_>) -> io::Result<()> {
        let mut out = Vec::new();
        while !piece.is_empty() {
            let end = memchr(b'\n', piece).map(|at| at + 1);
            let room = self.longest.saturating_sub(self.line.len()).max(1);
            let taken = end.unwrap_or(piece.len()).min(room);
            self.line.extend_from_slice(&piece[..taken]);
            piece = &piece[taken..];
            if end == Some(taken) || self.line.len() >= self.longest {
                self.finish_line(r, &mut out)?;
            }
            if out.len() as u64 >= PIECE {
                rest.push(r, Chunk::Bytes(&out), false)?;
                out.clear();
            }
        }
        if last {
            self.finish_line(r, &mut out)?;
        }
        if last || !out.is_empty() { rest.push(r, Chunk::Bytes(&out), last) } else { Ok(()) }
    }

    /// Replaces what is to be replaced in the line so far, one pair after the other.
    fn finish_line(&mut self, r: &mut Request, out: &mut Vec<u8>) -> io::Result<()> {
        let pairs = self.pairs.clone();
        for (pair, rule) in pairs.iter().zip(&mut self.rules) {
            if !rule.done && !self.line.is_empty() {
                self.other.clear();
                let changed = replace(r, pair, rule, &self.line, &mut self.other)?;
                if changed {
                    std::mem::swap(&mut self.line, &mut self.other);
                }
            }
        }
        out.append(&mut self.line);
        Ok(())
    }
}

/// Writes `line` with its replacements to `out`; whether there were any.
fn replace(r: &mut Request, pair: &Pair, rule: &mut Rule, line: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
    let (mut from, mut at) = (0, 0);
    while at <= line.len() {
        let found = match (&pair.what, &mut rule.places) {
            (What::Pattern(pattern), Some(places)) => match pattern.find_at(line, at, places) {
                Ok(true) => places.get(0),
                Ok(false) => None,
                Err(e) => {
                    log_error!(r, Alert, "{e}");
                    return Err(refused(r));
                }
            },
            (What::Caseless(_), _) => {
                find_caseless(&line[at..], &rule.text).map(|n| (at + n, at + n + rule.text.len()))
            }
            _ => memmem::find(&line[at..], &rule.text).map(|n| (at + n, at + n + rule.text.len())),
        };
        let Some((start, end)) = found else { break };
        out.extend_from_slice(&line[from..start]);
        let groups = rule.places.as_ref();
        pair.by.write_with(r, |n| groups.and_then(|g| g.get(n)).map_or(b"", |(a, b)| &line[a..b]), out);
        if r.has_fault() {
            return Err(refused(r));
        }
        from = end;
        // A match of nothing is not found again at its place.
        at = if end == start { end + 1 } else { end };
        if out.len() > MAX_GROWN {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "subs_filter: a line has become too long"));
        }
        if pair.once {
            rule.done = true;
            break;
        }
    }
    if from == 0 && out.is_empty() {
        return Ok(false);
    }
    out.extend_from_slice(&line[from..]);
    Ok(true)
}

fn find_caseless(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part.eq_ignore_ascii_case(what))
}

impl BodyFilter for Subs {
    fn push(&mut self, r: &mut Request, chunk: Chunk<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        let mut room = std::mem::take(&mut self.room);
        let result = chunk.pieces(last, &mut room, |piece, last| self.piece(r, piece, last, &mut rest));
        self.room = room;
        result
    }

    /// An include comes behind what was held before it.
    fn include(&mut self, r: &mut Request, include: Include, mut rest: Rest<'_>) -> io::Result<()> {
        let mut out = Vec::new();
        self.finish_line(r, &mut out)?;
        if !out.is_empty() {
            rest.push(r, Chunk::Bytes(&out), false)?;
        }
        rest.include(r, include)
    }
}
