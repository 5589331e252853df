//! `@detectSQLi`: libinjection, with a bound on what it costs. It folds what stands between an attack's words (blanks, comments, operands of one another)
//! and goes on until it has five tokens that do not fold, so that an attack may stand behind any number of bytes that fold. A long value is
//! therefore written anew without most of what folds, once for each way in which libinjection reads it, and libinjection is given that. What is too
//! long even so, and has not given it five tokens by then, is not decided: only an attack is made so.

use super::rx::Found;
use crate::limits::{MAX_INJECTION_BYTES, MAX_WORD_BYTES, MAX_WORD_DOTS, MAX_WORD_END_BYTES};
use crate::prefilter::ByteSet;
use libinjectionrs::sqli::sqli_data::{CharType, get_char_type, lookup_word};
use libinjectionrs::sqli::{LIBINJECTION_SQLI_MAX_TOKENS, SqliTokenizer, TokenType};
use libinjectionrs::{SqliFlags, SqliState};
use std::borrow::Cow;

/// Operands that fold into the one before them, and signs of one kind that fold into one, of which so many are kept in a row.
const KEPT: usize = 16;
/// Bytes of a string, a name or a comment that libinjection sees; it compares 31 at most.
const SHOWN: usize = 32;
/// What ends libinjection's words.
const ENDS: &[u8] = b" []{}<>:\\?=@!#~+-*/&|^%(),';\t\n\x0b\x0c\r\"\xa0\0";
/// What ends its variables.
const VARIABLE_ENDS: &[u8] = b" <>:\\?=@!#~+-*/&|^%(),;'\t\n\x0b\x0c\r`\"";

/// What libinjection says of a value, and what it calls the form of an injection.
pub(super) fn judge(value: &[u8]) -> (Found, Vec<u8>) {
    if value.len() > MAX_INJECTION_BYTES {
        return judge_long(value);
    }
    let said = libinjectionrs::detect_sqli(&without_dots(value));
    let found = if said.is_injection() { Found::Yes } else { Found::No };
    (found, said.fingerprint.map(|f| f.to_string().into_bytes()).unwrap_or_default())
}

/// As `detect_sqli` goes about it: as it stands, then as if behind a quote; by ANSI's rules, and by MySQL's where comments are read otherwise there.
fn judge_long(value: &[u8]) -> (Found, Vec<u8>) {
    let mut found = Found::No;
    for quote in [None, Some(b'\''), Some(b'"')] {
        if quote.is_some_and(|quote| memchr::memchr(quote, value).is_none()) {
            continue;
        }
        let dialects = if quote == Some(b'"') { &[true][..] } else { &[false, true] };
        for is_mysql in dialects {
            let short = Short::of(value, quote, *is_mysql);
            let context = match quote {
                None => SqliFlags::FLAG_QUOTE_NONE,
                Some(b'\'') => SqliFlags::FLAG_QUOTE_SINGLE,
                Some(_) => SqliFlags::FLAG_QUOTE_DOUBLE,
            };
            let dialect = if *is_mysql { SqliFlags::FLAG_SQL_MYSQL } else { SqliFlags::FLAG_SQL_ANSI };
            let mut state = SqliState::new(&short.out, context | dialect);
            if state.is_sqli() {
                return (Found::Yes, state.fingerprint_string().into_bytes());
            }
            if short.is_cut && !is_decided(&state, &short.out, context | dialect) {
                found = Found::Exhausted;
            }
            if state.stats_comment_ddx == 0 && state.stats_comment_hash == 0 {
                break;
            }
        }
    }
    (found, Vec::new())
}

/// Whether libinjection had what it wanted before a text came to its end.
fn is_decided(state: &SqliState<'_>, text: &[u8], flags: SqliFlags) -> bool {
    let mut tokens = SqliTokenizer::new(text, flags);
    state.tokens.len() >= LIBINJECTION_SQLI_MAX_TOKENS
        && (0..state.stats_tokens).all(|_| tokens.next_token().is_some())
        && tokens.next_token().is_some()
}

/// libinjection looks a word up anew at each full stop, from its beginning, for keywords of 31 bytes at most: what follows [`MAX_WORD_DOTS`] of them in one
/// word says nothing, and would cost the square of its length.
pub(super) fn without_dots(value: &[u8]) -> Cow<'_, [u8]> {
    let ends = ByteSet::of(ENDS);
    if value.len() <= MAX_WORD_DOTS || memchr::memchr2_iter(b'.', b'`', value).nth(MAX_WORD_DOTS).is_none() {
        return Cow::Borrowed(value);
    }
    let mut dots = 0;
    let keep = |b: &u8| {
        if ends.contains(*b) {
            dots = 0;
        } else if matches!(b, b'.' | b'`') {
            dots += 1;
        }
        dots <= MAX_WORD_DOTS
    };
    Cow::Owned(value.iter().copied().filter(keep).collect())
}

/// What a token is for those around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// None of these.
    Other,
    /// A number, or a word that means nothing to SQL.
    Operand,
    /// A string, which folds into an operand in a list only, and into a string before it.
    String,
    /// What stands between operands that fold: an operator of one character.
    Operator,
    /// And a comma.
    Comma,
}

/// What waits to be written before the next token: of blanks and comments in a row one is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    None,
    Blank(u8),
    Comment,
}

/// A value without most of what libinjection folds.
struct Short<'a> {
    text: &'a [u8],
    at: usize,
    is_mysql: bool,
    out: Vec<u8>,
    /// It ends before the value does.
    is_cut: bool,
    gap: Gap,
    last: Kind,
    /// Operands in a row are being read that fold, and into what.
    folds_into: Option<Kind>,
    /// How many of them are kept, by how they are joined to what is before: not all ways fold everywhere. Which of these the last one is, and a sign is before it.
    kept: [usize; 8],
    way: usize,
    is_signed: bool,
    /// Where the last one and the one that is being read begin, each with what joins it.
    before: usize,
    begin: usize,
    /// How often the last sign has come in a row.
    sign: (u8, usize),
    /// Where a comment up to the end of a line begins that is the last token, and which kind it is.
    line: Option<(usize, u8)>,
    word_ends: ByteSet,
    variable_ends: ByteSet,
}

impl<'a> Short<'a> {
    fn of(text: &'a [u8], quote: Option<u8>, is_mysql: bool) -> Short<'a> {
        let mut short = Short {
            text,
            at: 0,
            is_mysql,
            out: Vec::new(),
            is_cut: false,
            gap: Gap::None,
            last: Kind::Other,
            folds_into: None,
            kept: [0; 8],
            way: 0,
            is_signed: false,
            before: 0,
            begin: 0,
            sign: (0, 0),
            line: None,
            word_ends: ByteSet::of(ENDS),
            variable_ends: ByteSet::of(VARIABLE_ENDS),
        };
        if let Some(quote) = quote {
            short.string(0, quote);
            short.last = Kind::String;
        }
        while short.at < text.len() && short.out.len() < MAX_INJECTION_BYTES {
            if !short.token() {
                // Read otherwise by libinjection than here: the rest is left as it is.
                let rest = &text[short.at..];
                short.flush();
                short.out.extend_from_slice(&without_dots(&rest[..rest.len().min(MAX_INJECTION_BYTES)]));
                short.is_cut = rest.len() > MAX_INJECTION_BYTES;
                break;
            }
        }
        short.is_cut |= short.out.len() >= MAX_INJECTION_BYTES && short.at < text.len();
        if short.gap == Gap::Comment {
            short.flush();
        }
        short
    }

    /// Writes what stands between the last token and the next.
    fn flush(&mut self) {
        match std::mem::replace(&mut self.gap, Gap::None) {
            Gap::None => {}
            Gap::Blank(byte) => self.out.push(byte),
            Gap::Comment => self.out.extend_from_slice(b"/**/"),
        }
    }

    /// Begins a token; returns where what belongs to it begins.
    fn begin(&mut self) -> usize {
        let begin = self.out.len();
        self.flush();
        self.line = None;
        begin
    }

    /// Ends a token that began at a place of what is written.
    fn end(&mut self, kind: Kind, begin: usize) {
        let folds = match (self.last, kind) {
            (Kind::Operator | Kind::Comma, Kind::Operand) | (Kind::Comma, Kind::String) => self.folds_into.is_some(),
            (Kind::String, Kind::String) if self.folds_into != Some(Kind::Operand) => {
                self.folds_into = Some(kind);
                self.begin = begin;
                true
            }
            (Kind::Operand, Kind::Operator) | (Kind::Operand | Kind::String, Kind::Comma)
                if self.folds_into != Some(Kind::String) || kind == Kind::Comma =>
            {
                self.folds_into = self.folds_into.or(Some(self.last));
                (self.last, self.begin, self.is_signed) = (kind, begin, false);
                return;
            }
            (Kind::Operator | Kind::Comma, Kind::Operator) if matches!(self.out.last(), Some(b'+' | b'-')) => {
                self.is_signed = true;
                return;
            }
            _ => false,
        };
        let way = usize::from(self.last == Kind::Comma)
            | usize::from(self.is_signed) << 1
            | usize::from(kind == Kind::String) << 2;
        self.last = kind;
        if !folds {
            (self.folds_into, self.kept) = (None, [0; 8]);
            return;
        }
        // The last one stays: what follows may make something else of it.
        if self.kept[self.way] > KEPT {
            self.kept[self.way] -= 1;
            self.out.drain(self.before..self.begin);
            self.begin = self.before;
        }
        self.kept[way] += 1;
        (self.way, self.before) = (way, self.begin);
    }

    fn other(&mut self, upto: usize) {
        let begin = self.begin();
        let upto = upto.min(self.text.len());
        self.out.extend_from_slice(&self.text[self.at..upto]);
        self.at = upto;
        self.end(Kind::Other, begin);
    }

    /// Reads one token. False: it is one that libinjection may read otherwise.
    fn token(&mut self) -> bool {
        let (text, at) = (self.text, self.at);
        let byte = text[at];
        let next = text.get(at + 1).copied();
        let (sign, _) = self.sign;
        if sign != byte && !is_white(byte) {
            self.sign = (byte, 0);
        }
        match get_char_type(byte) {
            CharType::White => {
                let is_end = byte == b'\n';
                match self.gap {
                    // libinjection looks for what follows a first number as if nothing stood before it.
                    Gap::None if self.out.len() < SHOWN && self.out.iter().all(|b| is_white(*b)) => self.out.push(byte),
                    Gap::None => self.gap = Gap::Blank(byte),
                    Gap::Blank(_) if is_end => self.gap = Gap::Blank(byte),
                    _ => {}
                }
                self.at += 1;
            }
            CharType::String => {
                let begin = self.begin();
                self.out.push(byte);
                self.string(at + 1, byte);
                self.end(Kind::String, begin);
            }
            CharType::Tick => {
                let begin = self.begin();
                self.out.push(byte);
                self.string(at + 1, byte);
                self.end(Kind::Other, begin);
            }
            CharType::Slash if next == Some(b'*') => self.comment(),
            CharType::Dash if next == Some(b'-') => {
                let is_blank = text.get(at + 2).is_none_or(|b| is_white(*b));
                if is_blank || !self.is_mysql {
                    self.line_comment(if is_blank { b'w' } else { b'x' });
                } else {
                    self.sign(Kind::Other);
                }
            }
            CharType::Hash if self.is_mysql => self.line_comment(b'#'),
            CharType::Number
            | CharType::Word
            | CharType::BString
            | CharType::EString
            | CharType::NQString
            | CharType::QString
            | CharType::UString
            | CharType::XString => return self.word(),
            CharType::Money => {
                let letters = text[at + 1..].iter().take_while(|b| b.is_ascii_alphabetic()).count();
                if text.get(at + 1 + letters) == Some(&b'$') {
                    return false;
                }
                self.other(at + 1);
            }
            CharType::BWord => {
                let end = memchr::memchr(b']', &text[at..]).map_or(text.len(), |end| at + end);
                let begin = self.begin();
                self.out.extend_from_slice(&text[at..end.min(at + SHOWN)]);
                if end < text.len() {
                    self.out.push(b']');
                }
                self.at = (end + 1).min(text.len());
                self.end(Kind::Other, begin);
            }
            CharType::Variable => {
                let name = at + 1 + usize::from(next == Some(b'@'));
                let end = text[name..].iter().position(|b| self.variable_ends.contains(*b));
                let end = end.map_or(text.len(), |end| name + end);
                let begin = self.begin();
                self.out.extend_from_slice(&text[at..end.min(at + SHOWN)]);
                self.at = end;
                self.end(Kind::Other, begin);
            }
            CharType::Backslash => self.other(at + 1 + usize::from(next == Some(b'N'))),
            CharType::Comma => self.sign(Kind::Comma),
            _ => {
                // Two of these may be one operator.
                let is_single = next.is_none_or(|b| {
                    is_white(b) || b.is_ascii_alphanumeric() || b >= 0x80 || matches!(b, b'_' | b'+' | b'-')
                });
                let is_operator = b"+-*/%^=<>|&".contains(&byte) && is_single;
                self.sign(if is_operator { Kind::Operator } else { Kind::Other });
            }
        }
        true
    }

    /// A token of one character.
    fn sign(&mut self, kind: Kind) {
        let byte = self.text[self.at];
        self.sign.1 += 1;
        if self.sign.1 > KEPT && b"();+-!~".contains(&byte) && self.gap != Gap::Comment {
            self.gap = Gap::None;
            self.at += 1;
            return;
        }
        let begin = self.begin();
        self.out.push(byte);
        self.at += 1;
        self.end(kind, begin);
    }

    /// A string whose content begins at a place: its first bytes, and its end if it has one.
    fn string(&mut self, from: usize, delimiter: u8) {
        let text = self.text;
        let mut at = from;
        let end = loop {
            let Some(found) = text.get(at..).and_then(|rest| memchr::memchr(delimiter, rest)) else { break None };
            let place = at + found;
            let escapes = text[..place].iter().rev().take_while(|b| **b == b'\\').count();
            if escapes % 2 == 1 {
                at = place + 1;
            } else if text.get(place + 1) == Some(&delimiter) {
                at = place + 2;
            } else {
                break Some(place);
            }
        };
        let content = &text[from.min(text.len())..end.unwrap_or(text.len())];
        let plain = content.iter().take(SHOWN).take_while(|b| **b != delimiter && **b != b'\\');
        let before = self.out.len();
        self.out.extend(plain);
        if self.out.len() == before && !content.is_empty() {
            // An empty name means something else.
            self.out.push(b'x');
        }
        if end.is_some() {
            self.out.push(delimiter);
        }
        self.at = end.map_or(text.len(), |end| end + 1);
    }

    /// `/* ... */`
    fn comment(&mut self) {
        let (text, at) = (self.text, self.at);
        let inside = &text[(at + 2).min(text.len())..];
        let end = memchr::memmem::find(inside, b"*/");
        let nested =
            end.is_some_and(|end| memchr::memmem::find(&inside[..(end + 1).min(inside.len())], b"/*").is_some());
        if nested || inside.first() == Some(&b'!') {
            let begin = self.begin();
            self.out.extend_from_slice(b"/*!*/");
            self.end(Kind::Other, begin);
        } else if end.is_none() {
            self.begin();
            self.out.extend_from_slice(&text[at..text.len().min(at + SHOWN)]);
        } else {
            self.gap = Gap::Comment;
        }
        self.at = end.map_or(text.len(), |end| at + 2 + end + 2);
    }

    /// `-- ...` or `# ...` up to the line's end. One that follows another one of its kind takes its place.
    fn line_comment(&mut self, kind: u8) {
        let (text, at) = (self.text, self.at);
        let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |end| at + end + 1);
        match self.line {
            Some((begin, known)) if known == kind => {
                self.gap = Gap::None;
                self.out.truncate(begin);
            }
            _ => {
                let begin = self.begin();
                self.end(Kind::Other, begin);
            }
        }
        self.line = Some((self.out.len(), kind));
        let comment = &text[at..end];
        self.out.extend_from_slice(&comment[..comment.len().min(SHOWN)]);
        if comment.len() > SHOWN && comment.ends_with(b"\n") {
            self.out.push(b'\n');
        }
        self.at = end;
    }

    fn word(&mut self) -> bool {
        let (text, at) = (self.text, self.at);
        let length = text[at..].iter().position(|b| self.word_ends.contains(*b)).unwrap_or(text.len() - at);
        if length == 0 {
            self.other(at + 1);
            return true;
        }
        let word = &text[at..at + length];
        let is_quoted = text.get(at + length) == Some(&b'\'');
        // A name in it may end where no word does, as `q'(...)'` where no string does; and a number or a keyword before a full stop ends where `$$` begins.
        let has = |byte: u8| memchr::memchr(byte, word).is_some();
        if has(b'`')
            || is_quoted && matches!(word.last(), Some(b'q' | b'Q'))
            || has(b'$') && (!word[0].is_ascii_alphabetic() || has(b'.'))
        {
            return false;
        }
        let begin = self.begin();
        let seen = memchr::memchr_iter(b'.', word).nth(MAX_WORD_DOTS).map_or(word, |at| &word[..at]);
        if seen.len() > MAX_WORD_BYTES + MAX_WORD_END_BYTES {
            self.out.extend_from_slice(&seen[..MAX_WORD_BYTES]);
            self.out.extend_from_slice(&seen[seen.len() - MAX_WORD_END_BYTES..]);
        } else {
            self.out.extend_from_slice(seen);
        }
        self.at += length;
        let is_operand = !is_quoted && (is_number(word) || is_name(word));
        self.end(if is_operand { Kind::Operand } else { Kind::Other }, begin);
        true
    }
}

/// What libinjection takes for a blank.
fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | 0xa0 | 0)
}

/// A number and nothing else: `12`, `1.5`, `1e5`, `0x41`.
fn is_number(word: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
    if let [b'0', b'x' | b'X', hex @ ..] = word {
        return !hex.is_empty() && hex.iter().all(u8::is_ascii_hexdigit);
    }
    let whole = digits(word);
    let mut rest = &word[whole..];
    if let Some(behind) = rest.strip_prefix(b".") {
        rest = &behind[digits(behind)..];
    }
    if let [b'e' | b'E', power @ ..] = rest {
        rest = if power.is_empty() { rest } else { &power[digits(power)..] };
    }
    whole > 0 && rest.is_empty()
}

/// A word that SQL does not know, nor any part of it up to a full stop.
fn is_name(word: &[u8]) -> bool {
    if !word[0].is_ascii_alphabetic() && word[0] != b'_' && word[0] < 0x80 {
        return false;
    }
    // The shortest words that it knows have two letters.
    if word.len() == 1 {
        return true;
    }
    let known = |part: &[u8]| {
        part.len() < SHOWN && std::str::from_utf8(part).is_ok_and(|part| lookup_word(part) != TokenType::Bareword)
    };
    let mut dots = memchr::memchr_iter(b'.', word);
    !dots.by_ref().take(4).any(|at| known(&word[..at])) && dots.next().is_none() && !known(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: &str) -> Found {
        judge(value.as_bytes()).0
    }

    /// What folds, and what does not stand in an attack's way.
    const PADS: &[&str] = &[
        " ", "\t", "\n", "\r\n ", "/**/", "/* a */ ", "-- a\n", "1,", "+1", "1+1+", "a=b,", "a=", "((", "/*'*/",
        "'a','b',", "\u{a0}", "--x\n", "1.5,-2,", "\"a\",", "a.b,", "/*\n*/\t", "+", "- ", "0x41,", ";",
    ];

    #[test]
    fn an_attack_behind_what_folds_is_found() {
        for attack in
            ["x' or 2>1-- -", "1 union select password from users", "x' group by 1 having 1=1", "\" or \"1\"=\"1"]
        {
            assert_eq!(found(attack), Found::Yes, "{attack}");
            // Before it, and before its second word.
            let behind = attack.find(' ').map_or(0, |at| at + 1);
            for pad in PADS {
                let many = pad.repeat(9_000 / pad.len());
                for at in [0, behind] {
                    let value = format!("{}{many}{}", &attack[..at], &attack[at..]);
                    let whole = libinjectionrs::detect_sqli(value.as_bytes()).is_injection();
                    assert!(!whole || found(&value) != Found::No, "{pad:?} x {} at {at} of {attack}", many.len());
                }
            }
            for blank in [" ", "\t", "\n", "/**/", "/* a */ "] {
                let value = attack.replacen(' ', &blank.repeat(5_000), 1);
                assert_eq!(found(&value), Found::Yes, "{blank:?} in {attack}");
            }
        }
        let long = "x".repeat(5_000);
        for value in [format!("{long}' or 2>1-- -"), format!("1{} union select a from b", "+1".repeat(5_000))] {
            assert_eq!(found(&value), Found::Yes);
        }
        assert_eq!(found(&format!("{}' or 2>1-- -", "don\\'t ".repeat(1_000))), Found::Yes);
        for number in [format!("   1-- {}", "$".repeat(5_000)), format!("\r\n \t1e5{}", "-".repeat(5_000))] {
            assert!(libinjectionrs::detect_sqli(number.as_bytes()).is_injection());
            assert_eq!(found(&number), Found::Yes);
        }
    }

    #[test]
    fn what_people_send_is_decided() {
        let rows = (0..2_000).map(|n| format!("{n},{}.5,-{n}", n * 7)).collect::<Vec<_>>().join(",\n");
        let quoted = (0..2_000).map(|n| format!("\"name {n}\",\"street, {n}\"")).collect::<Vec<_>>().join("\n");
        let pairs = (0..2_000).map(|n| format!("field{n}=value{n}")).collect::<Vec<_>>().join("&");
        let base64 = "iVBORw0KGgoAAAANSUhEUgAA+AAEsC/AYAAADo9X0Z8Bz7mPqQ+".repeat(200);
        let prose =
            "It isn't what \"they\" said -- the time, the place; all of it (or most) went on & on. ".repeat(200);
        for value in [rows, quoted, pairs, base64, prose, "f00d".repeat(20_000), "-".repeat(20_000), " ".repeat(20_000)]
        {
            assert_eq!(found(&value), Found::No, "{}", &value[..40]);
        }
    }

    #[test]
    fn long_values_are_judged_as_libinjection_judges_all_of_them() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize % below
        };
        let pieces = [
            "'",
            "\"",
            "`",
            " or ",
            " and ",
            "1",
            "a",
            "=",
            "<",
            "union select ",
            "--",
            "-- ",
            "#",
            "/*",
            "*/",
            "/*!",
            "\\",
            "\n",
            "(",
            ")",
            ",",
            ";",
            "@a",
            "@",
            "$1",
            "$a$",
            "$$",
            "[a]",
            "[",
            "q'(",
            "e'",
            "x'41'",
            "b'01'",
            "{",
            "}",
            "select ",
            "from ",
            " ",
            "\t",
            "+",
            "- ",
            "!",
            "~",
            ".",
            "a.b",
            "1e5",
            "0x",
            ":",
            "::int",
            "null",
            "in",
            "not ",
            "like ",
            "user(",
            "%",
            "\u{a0}",
            "\0",
            "\\N",
            "''",
            "\\'",
            "having ",
            "sleep(",
        ];
        let (mut attacks, mut undecided) = (0, 0);
        for _ in 0..1_000 {
            let (mut value, mut parts) = (String::new(), Vec::new());
            while value.len() <= MAX_INJECTION_BYTES {
                // Most of it is what folds.
                let piece = if next(4) == 0 { pieces[next(pieces.len())] } else { PADS[next(PADS.len())] };
                let times = if next(6) == 0 { next(3_000) / piece.len() } else { 1 + next(3) };
                value.push_str(&piece.repeat(times));
                parts.push((piece, times));
            }
            let whole = libinjectionrs::detect_sqli(value.as_bytes()).is_injection();
            let said = found(&value);
            attacks += usize::from(whole);
            undecided += usize::from(said == Found::Exhausted);
            assert!(!whole || said != Found::No, "{parts:?}");
        }
        assert!(attacks > 30, "{attacks} of them are attacks, {undecided} undecided");
    }

    #[test]
    fn libinjection_gets_no_word_of_many_parts() {
        let dots = "a.".repeat(MAX_WORD_DOTS + 9);
        assert_eq!(without_dots(b"a.b").as_ref(), b"a.b");
        let text = format!("{dots} union {dots}' or 1=1");
        let short = format!("{0} union {0}' or 1=1", format!("{}a", "a.".repeat(MAX_WORD_DOTS)));
        assert_eq!(String::from_utf8_lossy(&without_dots(text.as_bytes())), short);
    }
}
