//! Regular expressions. PCRE2 with compiled code runs them, as in libmodsecurity, with a limit of steps. Its steps are counted anew
//! at every place of a value, so long values are given to a second engine that takes linear time, and so is everything once a
//! transaction has had its share, and a value on which an expression runs out of steps. What the second one cannot express
//! (look-around, back references) stays with PCRE2; running out of steps there counts as exhausted.

use crate::limits::{
    LINEAR_CACHE_BYTES, LINEAR_SIZE_BYTES, LONG_VALUE_BYTES, MAX_BACKTRACKED_BYTES, PCRE_MATCH_LIMIT, PCRE_STACK_BYTES,
};
use crate::names::CAPTURES;
use crate::prefilter::{Need, portable};
use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};
use std::sync::OnceLock;

/// Where a match and its groups stand in a value.
pub(crate) type Spans = [Option<(u32, u32)>; CAPTURES];

/// What an expression says of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It does not match.
    No,
    /// It matches.
    Yes,
    /// Nothing can be said within the limits.
    Exhausted,
}

/// A compiled expression.
#[derive(Debug)]
pub struct Rx {
    regex: Regex,
    groups: usize,
    caseless: bool,
    /// The expression as the second engine reads it.
    portable: Option<String>,
    linear: OnceLock<Option<regex::bytes::Regex>>,
    shape: Shape,
    /// Bytes that a match has at least; found out when a name is first asked about.
    least: OnceLock<usize>,
}

/// Expressions that need no engine.
#[derive(Debug, PartialEq, Eq)]
enum Shape {
    /// None of these.
    Any,
    /// It matches every value, all of it: `^.*$`.
    All,
    /// It matches values that begin so, or of which a line does: `^word`.
    Begins(Box<[u8]>),
}

impl Shape {
    fn of(pattern: &[u8]) -> Shape {
        match pattern {
            b"^.*$" | b"^.*" => Shape::All,
            [b'^', word @ ..] if !word.is_empty() && word.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_') => {
                Shape::Begins(word.into())
            }
            _ => Shape::Any,
        }
    }
}

/// Room for PCRE2's results, and its stack: one for each transaction, made from the expression with most groups.
#[derive(Debug)]
pub struct Scratch {
    locations: CaptureLocations,
    /// Bytes that PCRE2 has looked through.
    pub spent: u64,
    /// How often an expression ran out of steps.
    pub slow: u32,
    /// How often nothing else could judge then.
    pub exhausted: u32,
}

impl Rx {
    /// Compiles an expression. `.` matches line ends and `^` and `$` match at each, as in libmodsecurity.
    pub fn compile(pattern: &[u8], caseless: bool) -> Result<Rx, String> {
        let source = printable(pattern);
        let limited = format!("(*LIMIT_MATCH={PCRE_MATCH_LIMIT}){source}");
        let regex = RegexBuilder::new()
            .caseless(caseless)
            .dotall(true)
            .multi_line(true)
            .jit_if_available(true)
            .max_jit_stack_size(Some(PCRE_STACK_BYTES))
            .build(&limited)
            .map_err(|e| format!("the expression \"{source}\" cannot be compiled: {e}"))?;
        let groups = regex.captures_len();
        Ok(Rx {
            regex,
            groups,
            caseless,
            portable: portable(&source),
            linear: OnceLock::new(),
            shape: Shape::of(pattern),
            least: OnceLock::new(),
        })
    }

    /// How many groups it has, the whole match included.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// What a value must have for it to match.
    pub fn need(&self) -> Need {
        self.portable.as_ref().map(|p| Need::of_pattern(p, self.caseless)).unwrap_or_default()
    }

    /// Room for the results of any expression with at most as many groups.
    pub fn scratch(&self) -> Scratch {
        Scratch { locations: self.regex.capture_locations(), spent: 0, slow: 0, exhausted: 0 }
    }

    /// Whether a short text matches: names that selectors choose.
    pub fn is_match(&self, text: &[u8]) -> bool {
        match &self.shape {
            Shape::All => return true,
            Shape::Begins(word) if memchr::memchr(b'\n', text).is_none() => {
                let start = text.get(..word.len());
                return start.is_some_and(|s| if self.caseless { s.eq_ignore_ascii_case(word) } else { s == &**word });
            }
            _ if text.len() < *self.least.get_or_init(|| self.need().length) => return false,
            _ => {}
        }
        self.regex.is_match(text).unwrap_or(false)
    }

    /// Looks for a match from a place on; `spans` gets its groups.
    pub fn search(&self, text: &[u8], from: usize, scratch: &mut Scratch, spans: &mut Spans) -> Found {
        if from == 0 && self.shape == Shape::All {
            *spans = Spans::default();
            spans[0] = Some((0, text.len() as u32));
            return Found::Yes;
        }
        let len = text.len() - from;
        if len > LONG_VALUE_BYTES || scratch.spent > MAX_BACKTRACKED_BYTES {
            let found = self.search_linear(text, from, spans);
            if found != Found::Exhausted {
                return found;
            }
        }
        scratch.spent += len as u64;
        match self.regex.captures_read_at(&mut scratch.locations, text, from) {
            Ok(None) => Found::No,
            Ok(Some(_)) => {
                for (group, span) in spans.iter_mut().enumerate() {
                    let found = if group < self.groups { scratch.locations.get(group) } else { None };
                    *span = found.map(|(from, to)| (from as u32, to as u32));
                }
                Found::Yes
            }
            Err(_) => {
                scratch.slow += 1;
                self.search_linear(text, from, spans)
            }
        }
    }

    /// Looks for all matches; `spans` gets the groups of each, one after the other, as far as there is room.
    pub fn search_all(&self, text: &[u8], scratch: &mut Scratch, spans: &mut Spans) -> Found {
        let (mut from, mut next) = (0, 0);
        let mut found = Spans::default();
        while from <= text.len() && next < CAPTURES {
            match self.search(text, from, scratch, &mut found) {
                Found::Yes => {}
                Found::No => break,
                Found::Exhausted => return Found::Exhausted,
            }
            for span in found.iter().take(self.groups).flatten() {
                if next < CAPTURES {
                    spans[next] = Some(*span);
                    next += 1;
                }
            }
            from = found[0].map_or(text.len(), |(start, end)| end.max(start + 1) as usize);
        }
        if next > 0 { Found::Yes } else { Found::No }
    }

    /// Compiles it for the second engine. Whoever asks first pays for that: a millisecond and more, for each expression.
    pub fn prepare(&self) {
        self.linear();
    }

    #[cfg(test)]
    pub(crate) fn is_prepared(&self) -> bool {
        self.linear.get().is_some()
    }

    fn linear(&self) -> Option<&regex::bytes::Regex> {
        let compile = || {
            regex::bytes::RegexBuilder::new(self.portable.as_deref()?)
                .unicode(false)
                .case_insensitive(self.caseless)
                .dot_matches_new_line(true)
                .multi_line(true)
                .size_limit(LINEAR_SIZE_BYTES)
                .dfa_size_limit(LINEAR_CACHE_BYTES)
                .build()
                .ok()
        };
        self.linear.get_or_init(compile).as_ref()
    }

    fn search_linear(&self, text: &[u8], from: usize, spans: &mut Spans) -> Found {
        let Some(linear) = self.linear() else { return Found::Exhausted };
        let Some(whole) = linear.find_at(text, from) else { return Found::No };
        // Groups need an engine that is slower by far: it gets the match and nothing else.
        let Some(found) = linear.captures_at(&text[..whole.end()], whole.start()) else {
            // Cut there, an assertion at the end may see something else.
            *spans = Spans::default();
            spans[0] = Some((whole.start() as u32, whole.end() as u32));
            return Found::Yes;
        };
        for (group, span) in spans.iter_mut().enumerate() {
            *span = found.get(group).map(|m| (m.start() as u32, m.end() as u32));
        }
        Found::Yes
    }
}

/// PCRE2's crate wants UTF-8: bytes that are none are written as escapes.
fn printable(pattern: &[u8]) -> String {
    let mut text = String::with_capacity(pattern.len());
    for chunk in pattern.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|b| text.push_str(&format!("\\x{b:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(pattern: &str, text: &[u8]) -> (Found, Spans) {
        let rx = Rx::compile(pattern.as_bytes(), false).unwrap();
        let mut spans = Spans::default();
        (rx.search(text, 0, &mut rx.scratch(), &mut spans), spans)
    }

    #[test]
    fn groups_are_found() {
        let (found, spans) = search("a(b)?(c)", b"xac");
        assert_eq!(found, Found::Yes);
        assert_eq!(spans[..4], [Some((1, 3)), None, Some((2, 3)), None]);
    }

    #[test]
    fn simple_ones_say_what_the_engine_says() {
        for (pattern, caseless) in [("^.*$", false), ("^.*", false), ("^ab_1", false), ("^ab_1", true)] {
            let quick = Rx::compile(pattern.as_bytes(), caseless).unwrap();
            assert_ne!(quick.shape, Shape::Any, "{pattern}");
            let slow = Rx::compile(format!("(?:{pattern})").as_bytes(), caseless).unwrap();
            assert_eq!(slow.shape, Shape::Any);
            for text in ["", "ab", "ab_1", "ab_12", "AB_1", "xab_1", "x\nab_1", "\n", "ab_1\n", "a\nb"] {
                assert_eq!(quick.is_match(text.as_bytes()), slow.is_match(text.as_bytes()), "{pattern} {text:?}");
                for from in 0..=text.len().min(2) {
                    let (mut of_quick, mut of_slow) = (Spans::default(), Spans::default());
                    let found = quick.search(text.as_bytes(), from, &mut quick.scratch(), &mut of_quick);
                    assert_eq!(found, slow.search(text.as_bytes(), from, &mut slow.scratch(), &mut of_slow));
                    assert!(found != Found::Yes || of_quick == of_slow, "{pattern} {text:?} {from}");
                }
            }
        }
        assert_eq!(Shape::of(b"^a|b"), Shape::Any);
        assert_eq!(Shape::of(b"^"), Shape::Any);
    }

    #[test]
    fn one_that_runs_out_of_steps_is_judged_by_the_linear_engine() {
        let hard = format!("{}!", "a".repeat(64));
        assert_eq!(search(r"^(a+)+$", hard.as_bytes()).0, Found::No);
        assert_eq!(search(r"(x+x+)+y|!", format!("{}!", "x".repeat(64)).as_bytes()).0, Found::Yes);
    }

    #[test]
    fn long_values_and_many_short_ones_go_to_the_linear_engine() {
        let rx = Rx::compile(b"(?:a|b|ab)+=", false).unwrap();
        let (mut scratch, mut spans) = (rx.scratch(), Spans::default());
        let long = "ab".repeat(LONG_VALUE_BYTES);
        assert_eq!(rx.search(long.as_bytes(), 0, &mut scratch, &mut spans), Found::No);
        assert_eq!(scratch.spent, 0);
        assert_eq!(rx.search(format!("{long}=").as_bytes(), 0, &mut scratch, &mut spans), Found::Yes);
        assert_eq!(spans[0], Some((0, long.len() as u32 + 1)));
        rx.search(b"ab", 0, &mut scratch, &mut spans);
        assert_eq!(scratch.spent, 2);
        scratch.spent = MAX_BACKTRACKED_BYTES + 1;
        assert_eq!(rx.search(b"ab=", 0, &mut scratch, &mut spans), Found::Yes);
        assert_eq!(scratch.spent, MAX_BACKTRACKED_BYTES + 1);
    }

    #[test]
    fn what_is_prepared_is_not_compiled_while_it_is_asked() {
        for pattern in ["(?:a|b)+=", r"^(a+)+(?!x)$"] {
            let rx = Rx::compile(pattern.as_bytes(), false).unwrap();
            assert!(!rx.is_prepared());
            rx.prepare();
            assert!(rx.is_prepared(), "{pattern}");
        }
    }

    #[test]
    fn what_only_pcre2_can_express_is_exhausted() {
        let hard = format!("{}!", "a".repeat(64));
        assert_eq!(search(r"^(a+)+(?!x)$", hard.as_bytes()).0, Found::Exhausted);
    }
}
