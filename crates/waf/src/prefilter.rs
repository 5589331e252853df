//! What a value must have for an expression to match it at all: a length, bytes of some sets, one of some literals. Most
//! expressions of a rule set need what honest values lack, so that they never run.
//!
//! A [`Need`] is taken from an expression's syntax tree. All literals of a rule set are looked for in one pass over a value
//! ([`Literals`]), whose result is a set of bits, one for each operator.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, MatchKind};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

/// Strings of a set that is still multiplied out.
const MAX_EXACT: usize = 24;
/// Bytes of one literal: longer ones are cut, which only makes them less choosy.
const MAX_LITERAL: usize = 24;
/// Literals of one expression.
const MAX_LITERALS: usize = 600;
/// Byte sets of one expression.
const MAX_SETS: usize = 3;
/// From how many bytes on a text's set of bytes is made by a table.
const LONG: usize = 256;
/// So many literals are looked for by a table of all transitions: several times as fast as the compact automaton, and half a megabyte at most.
const FEW_LITERALS: usize = 64;
/// How likely a literal may be to stand in an honest value for it to be worth looking for.
const WORTH: f64 = 0.6;

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSet([u64; 4]);

impl ByteSet {
    /// Adds a byte.
    pub fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    /// Whether the byte is in it.
    pub fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }

    /// All bytes but letters, digits and the underscore.
    pub(crate) fn beyond_words() -> ByteSet {
        let mut set = ByteSet::default();
        (0..=255_u8).filter(|b| !b.is_ascii_alphanumeric() && *b != b'_').for_each(|b| set.insert(b));
        set
    }

    /// The bytes of a text.
    pub fn of(text: &[u8]) -> ByteSet {
        let mut set = ByteSet::default();
        if text.len() < LONG {
            text.iter().for_each(|b| set.insert(*b));
            return set;
        }
        // Stores that do not wait for one another; the bits are gathered at the end.
        let mut seen = [0_u8; 256];
        text.iter().for_each(|b| seen[usize::from(*b)] = 1);
        for (word, bytes) in set.0.iter_mut().zip(seen.chunks_exact(64)) {
            *word = bytes.iter().rev().fold(0, |bits, seen| bits << 1 | u64::from(*seen));
        }
        set
    }

    /// Whether the sets have a byte in common.
    pub fn meets(&self, other: &ByteSet) -> bool {
        (self.0[0] & other.0[0]) | (self.0[1] & other.0[1]) | (self.0[2] & other.0[2]) | (self.0[3] & other.0[3]) != 0
    }

    fn join(&mut self, other: &ByteSet) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }

    fn weight(&self) -> f64 {
        (0..=255).filter(|b| self.contains(*b)).map(frequency).sum()
    }
}

/// How often a byte stands in honest values, roughly: arguments, paths, headers.
fn frequency(byte: u8) -> f64 {
    match byte {
        b'a'..=b'z' => 0.05,
        b'0'..=b'9' => 0.03,
        b'A'..=b'Z' => 0.02,
        b' ' | b'/' | b'.' | b'-' | b'_' | b'=' | b',' | b':' | b';' => 0.02,
        b'(' | b')' | b'*' | b'+' | b'&' | b'?' | b'%' => 0.008,
        _ => 0.002,
    }
}

/// What a value must have for an expression to match.
#[derive(Clone, Debug, Default)]
pub struct Need {
    /// The fewest bytes.
    pub length: usize,
    /// Sets of which the value must have a byte each.
    pub sets: Vec<ByteSet>,
    /// Literals of which it must have one, in small letters. Empty: nothing is known.
    pub literals: Vec<Vec<u8>>,
}

/// Rewrites what PCRE2 and `regex-syntax` read differently, so that both mean the same. None: it cannot be said in both.
pub(crate) fn portable(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut chars = pattern.chars().peekable();
    // Where in a class: None outside, else how many characters it has so far.
    let mut class: Option<usize> = None;
    while let Some(c) = chars.next() {
        if c == '\\' {
            match chars.next()? {
                'h' => out.push_str(if class.is_some() { r"\t " } else { r"[\t ]" }),
                'v' => out.push_str(if class.is_some() { r"\n-\r\x85" } else { r"[\n-\r\x85]" }),
                '<' => out.push('<'),
                '>' => out.push('>'),
                // Words for assertions and references that only one of the two has.
                'e' => out.push_str(r"\x1b"),
                'Z' | 'G' | 'K' | 'R' | 'X' | 'C' | 'N' | 'Q' | 'E' | 'p' | 'P' | 'u' | 'U' => return None,
                'b' if class.is_some() => out.push_str(r"\x08"),
                next => {
                    out.push('\\');
                    out.push(next);
                }
            }
            class = class.map(|n| n + 1);
            continue;
        }
        match class {
            None => match c {
                '[' => {
                    out.push('[');
                    class = Some(0);
                    if chars.peek() == Some(&'^') {
                        out.extend(chars.next());
                    }
                }
                '{' if chars.peek() == Some(&',') => return None,
                _ => out.push(c),
            },
            Some(count) => match c {
                ']' if count > 0 => {
                    out.push(']');
                    class = None;
                }
                ']' => {
                    out.push_str(r"\]");
                    class = Some(1);
                }
                '[' if chars.peek() == Some(&':') => {
                    out.push('[');
                    for c in chars.by_ref() {
                        out.push(c);
                        if c == ']' {
                            break;
                        }
                    }
                    class = Some(count + 1);
                }
                '[' | '&' | '~' => {
                    out.push('\\');
                    out.push(c);
                    class = Some(count + 1);
                }
                '-' if chars.peek() == Some(&'-') || count == 0 => {
                    out.push_str(r"\-");
                    class = Some(count + 1);
                }
                _ => {
                    out.push(c);
                    class = Some(count + 1);
                }
            },
        }
    }
    Some(out)
}

impl Need {
    /// What a (portable) expression needs; nothing if it cannot be read.
    pub fn of_pattern(pattern: &str, caseless: bool) -> Need {
        let parsed = ParserBuilder::new()
            .utf8(false)
            .unicode(false)
            .dot_matches_new_line(true)
            .multi_line(true)
            .case_insensitive(caseless)
            .build()
            .parse(pattern);
        let Ok(hir) = parsed else { return Need::default() };
        let info = Info::of(&hir);
        let length = hir.properties().minimum_len().unwrap_or(0);
        let literals = info.best().filter(|l| cost(l) < WORTH).unwrap_or_default();
        Need { length, sets: info.sets, literals }
    }

    /// What a list of phrases needs, of which any may stand anywhere.
    pub fn of_phrases<'a>(phrases: impl Iterator<Item = &'a [u8]>) -> Need {
        let literals: Vec<Vec<u8>> = phrases.map(|p| cut(p.to_ascii_lowercase())).collect();
        let length = literals.iter().map(Vec::len).min().unwrap_or(0);
        if length < 2 {
            return Need { length, ..Need::default() };
        }
        Need { length, sets: Vec::new(), literals }
    }
}

fn cut(mut literal: Vec<u8>) -> Vec<u8> {
    literal.truncate(MAX_LITERAL);
    literal
}

/// How likely one of these literals stands in an honest value.
fn cost(literals: &[Vec<u8>]) -> f64 {
    literals.iter().map(|l| l.iter().map(|b| frequency(*b) * 3.0).product::<f64>() * 20.0).sum()
}

/// What is known of a part of an expression.
#[derive(Default)]
struct Info {
    /// All strings that it matches, in small letters.
    exact: Option<Vec<Vec<u8>>>,
    /// Literals of which each match has one.
    need: Option<Vec<Vec<u8>>>,
    /// Sets of which each match has a byte.
    sets: Vec<ByteSet>,
}

impl Info {
    fn of(hir: &Hir) -> Info {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Info { exact: Some(vec![Vec::new()]), ..Info::default() },
            HirKind::Literal(literal) => Info::literal(&literal.0),
            HirKind::Class(Class::Bytes(class)) => {
                let mut set = ByteSet::default();
                for range in class.ranges() {
                    (range.start()..=range.end()).for_each(|b| set.insert(b));
                }
                Info::class(set)
            }
            HirKind::Class(Class::Unicode(_)) => Info::default(),
            HirKind::Capture(capture) => Info::of(&capture.sub),
            HirKind::Repetition(repetition) => {
                let sub = Info::of(&repetition.sub);
                match (repetition.min, repetition.max) {
                    (0, Some(1)) => {
                        let exact = sub.exact.filter(|e| e.len() < MAX_EXACT).map(|mut e| {
                            e.push(Vec::new());
                            e
                        });
                        Info { exact, ..Info::default() }
                    }
                    (0, _) => Info::default(),
                    (1, Some(1)) => sub,
                    _ => Info { need: sub.best(), exact: None, sets: sub.sets },
                }
            }
            HirKind::Concat(parts) => Info::concat(parts),
            HirKind::Alternation(parts) => Info::alternation(parts),
        }
    }

    fn literal(bytes: &[u8]) -> Info {
        let mut info = Info { exact: Some(vec![bytes.to_ascii_lowercase()]), ..Info::default() };
        for byte in bytes {
            let mut set = ByteSet::default();
            set.insert(*byte);
            info.add_set(set);
        }
        info
    }

    fn class(set: ByteSet) -> Info {
        let mut exact: Vec<Vec<u8>> = Vec::new();
        for byte in (0..=255_u8).filter(|b| set.contains(*b)) {
            let one = vec![byte.to_ascii_lowercase()];
            if !exact.contains(&one) {
                exact.push(one);
            }
        }
        let mut info = Info { exact: (exact.len() <= 8).then_some(exact), ..Info::default() };
        info.add_set(set);
        info
    }

    /// Keeps the rarest sets.
    fn add_set(&mut self, set: ByteSet) {
        if self.sets.contains(&set) {
            return;
        }
        self.sets.push(set);
        self.sets.sort_by(|a, b| a.weight().total_cmp(&b.weight()));
        self.sets.truncate(MAX_SETS);
    }

    /// The choosier of what is exactly matched and what is needed.
    fn best(&self) -> Option<Vec<Vec<u8>>> {
        let usable = |l: &&Vec<Vec<u8>>| l.len() <= MAX_LITERALS && l.iter().all(|l| l.len() >= 2);
        let exact = self.exact.as_ref().filter(usable);
        let need = self.need.as_ref().filter(usable);
        match (exact, need) {
            (Some(a), Some(b)) => Some(if cost(a) <= cost(b) { a } else { b }.clone()),
            (a, b) => a.or(b).cloned(),
        }
    }

    fn concat(parts: &[Hir]) -> Info {
        let mut whole = Info { exact: Some(vec![Vec::new()]), ..Info::default() };
        // The strings that the parts so far end in, as far back as they are known.
        let mut tail: Vec<Vec<u8>> = vec![Vec::new()];
        let flush = |whole: &mut Info, tail: &mut Vec<Vec<u8>>| {
            let known = std::mem::replace(tail, vec![Vec::new()]);
            whole.offer(known);
        };
        for part in parts {
            let info = Info::of(part);
            info.sets.iter().for_each(|set| whole.add_set(*set));
            if let Some(need) = &info.need {
                whole.offer(need.clone());
            }
            match info.exact {
                Some(exact) if tail.len() * exact.len() <= MAX_EXACT => {
                    tail = tail.iter().flat_map(|t| exact.iter().map(move |e| [&t[..], &e[..]].concat())).collect();
                }
                Some(exact) => {
                    whole.exact = None;
                    flush(&mut whole, &mut tail);
                    tail = exact;
                    if tail.len() > MAX_EXACT {
                        flush(&mut whole, &mut tail);
                    }
                }
                None => {
                    whole.exact = None;
                    flush(&mut whole, &mut tail);
                }
            }
        }
        if whole.exact.is_some() {
            whole.exact = Some(tail);
        } else {
            whole.offer(tail);
        }
        whole
    }

    /// Takes a set of needed literals if it is choosier than the one known.
    fn offer(&mut self, mut literals: Vec<Vec<u8>>) {
        literals.iter_mut().for_each(|l| l.truncate(MAX_LITERAL));
        let usable = literals.len() <= MAX_LITERALS && literals.iter().all(|l| l.len() >= 2);
        if usable && self.need.as_ref().is_none_or(|known| cost(&literals) < cost(known)) {
            self.need = Some(literals);
        }
    }

    fn alternation(parts: &[Hir]) -> Info {
        let infos: Vec<Info> = parts.iter().map(Info::of).collect();
        let mut info = Info::default();
        let exact: Option<Vec<Vec<u8>>> =
            infos.iter().map(|i| i.exact.clone()).collect::<Option<Vec<_>>>().map(|all| all.concat());
        info.exact = exact.filter(|e| e.len() <= MAX_LITERALS);
        let need = infos.iter().map(Info::best).collect::<Option<Vec<_>>>().map(|all| all.concat());
        if let Some(mut need) = need {
            need.sort_unstable();
            need.dedup();
            info.offer(need);
        }
        let mut set = ByteSet::default();
        if infos.iter().all(|i| i.sets.first().map(|rarest| set.join(rarest)).is_some()) {
            info.add_set(set);
        }
        info
    }
}

/// All literals of a rule set's operators, found in one pass.
#[derive(Debug)]
pub(crate) struct Literals {
    automaton: Option<AhoCorasick>,
    /// The operators that each literal speaks for.
    speaks_for: Vec<Vec<u32>>,
    /// Bits that are always set: operators without literals.
    always: Vec<u64>,
}

impl Literals {
    /// Builds the automaton for operators 0, 1, 2 ... with these literals each.
    pub(crate) fn build(operators: &[&[Vec<u8>]]) -> Result<Literals, String> {
        let mut always = vec![0_u64; operators.len().div_ceil(64)];
        let mut known = std::collections::HashMap::new();
        let mut texts: Vec<&[u8]> = Vec::new();
        let mut speaks_for: Vec<Vec<u32>> = Vec::new();
        for (operator, literals) in operators.iter().enumerate() {
            if literals.is_empty() {
                always[operator / 64] |= 1 << (operator % 64);
            }
            for literal in literals.iter() {
                let at = *known.entry(literal.as_slice()).or_insert_with(|| {
                    texts.push(literal);
                    speaks_for.push(Vec::new());
                    texts.len() - 1
                });
                if speaks_for[at].last() != Some(&(operator as u32)) {
                    speaks_for[at].push(operator as u32);
                }
            }
        }
        let automaton = if texts.is_empty() {
            None
        } else {
            let kind = if texts.len() <= FEW_LITERALS { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
            let built = AhoCorasickBuilder::new()
                .kind(Some(kind))
                .match_kind(MatchKind::Standard)
                .ascii_case_insensitive(true)
                .build(&texts);
            Some(built.map_err(|e| e.to_string())?)
        };
        Ok(Literals { automaton, speaks_for, always })
    }

    /// How many literals it looks for.
    pub(crate) fn count(&self) -> usize {
        self.speaks_for.len()
    }

    /// How many words of bits a result has.
    pub(crate) fn words(&self) -> usize {
        self.always.len()
    }

    /// Looks at a value; `bits` has [`Literals::words`] words, of which each operator that may match gets its bit set.
    pub(crate) fn scan(&self, text: &[u8], bits: &mut [u64]) {
        bits.copy_from_slice(&self.always);
        let Some(automaton) = &self.automaton else { return };
        let mut last = usize::MAX;
        for found in automaton.find_overlapping_iter(text) {
            // A value that repeats one word must not cost what the word speaks for each time.
            let literal = found.pattern().as_usize();
            if std::mem::replace(&mut last, literal) == literal {
                continue;
            }
            for operator in &self.speaks_for[literal] {
                bits[*operator as usize / 64] |= 1 << (operator % 64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(pattern: &str) -> Need {
        Need::of_pattern(&portable(pattern).expect("a portable pattern"), false)
    }

    #[test]
    fn literals_are_those_that_every_match_has() {
        let texts = |n: &Need| n.literals.iter().map(|l| String::from_utf8_lossy(l).into_owned()).collect::<Vec<_>>();
        assert_eq!(texts(&need(r"(?i)\bunion\s+select\b")), ["select"]);
        assert_eq!(texts(&need(r"a.*(?:curl|wget)x")), ["curlx", "wgetx"]);
        assert!(need(r"\w+").literals.is_empty());
        assert!(need(r"(?:foo)?").literals.is_empty());
        assert!(need(r"foobar|x").literals.is_empty(), "one branch is too common");
    }

    #[test]
    fn sets_are_the_rarest() {
        let need = need(r"[<>]\s*script");
        assert_eq!(need.length, 7);
        assert!(need.sets[0].contains(b'<') && need.sets[0].contains(b'>') && !need.sets[0].contains(b's'));
    }

    #[test]
    fn what_the_engines_read_differently_is_rewritten() {
        assert_eq!(portable(r"[[a&&b]\<\v[]x]").as_deref(), Some(r"[\[a\&\&b]<[\n-\r\x85][\]x]"));
        assert_eq!(portable(r"[[:alpha:]-]").as_deref(), Some(r"[[:alpha:]-]"));
        assert_eq!(portable(r"a\Z"), None);
    }

    #[test]
    fn long_texts_have_the_same_sets_as_short_ones() {
        let text: Vec<u8> = (0..600_u32).map(|n| (n * n % 251) as u8 | 1).collect();
        let mut set = ByteSet::default();
        text.iter().for_each(|b| set.insert(*b));
        assert_eq!(ByteSet::of(&text), set);
    }

    #[test]
    fn one_pass_finds_the_operators_that_may_match() {
        let lists: [Vec<Vec<u8>>; 3] = [vec![b"select".to_vec()], vec![], vec![b"elect".to_vec(), b"zz".to_vec()]];
        let literals = Literals::build(&lists.each_ref().map(Vec::as_slice)).unwrap();
        let mut bits = vec![0; literals.words()];
        literals.scan(b"a SELECT b", &mut bits);
        assert_eq!(bits, [0b111]);
        literals.scan(b"nothing", &mut bits);
        assert_eq!(bits, [0b010]);
    }
}
