//! Operators: what a rule asks of a value. An operator is a pure function of the value and of its parameter, whose macros the
//! transaction has filled in.

pub(crate) mod ip;
pub(crate) mod pm;
pub(crate) mod rx;
mod sqli;
mod verify;

use crate::expand::Text;
use crate::names::{CAPTURES, Names};
use crate::prefilter::{ByteSet, Need};
use ip::IpSet;
use pm::Pm;
use rx::{Found, Rx, Scratch, Spans};
use std::sync::Arc;

/// A rule's question.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    /// `!`: the rule matches what the operator does not.
    pub negated: bool,
    /// The question.
    pub kind: Kind,
    /// Its name and parameter as written, for logs.
    pub shown: Box<str>,
}

/// The operators.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// `@unconditionalMatch`
    Always,
    /// `@noMatch`
    Never,
    /// `@rx`; true: `@rxGlobal`.
    Rx(Arc<Rx>, bool),
    /// `@rx` with macros, compiled when it is asked.
    RxOf(Text),
    /// `@pm`, `@pmFromFile`
    Pm(Arc<Pm>),
    /// `@eq`, `@ge`, `@gt`, `@le`, `@lt`
    Number(Order, Text),
    /// `@contains` and the like.
    Compare(Compare, Text),
    /// `@ipMatch`, `@ipMatchFromFile`
    Ip(Arc<IpSet>),
    /// `@detectSQLi`
    Sqli,
    /// `@detectXSS`
    Xss,
    /// `@validateByteRange`: a byte outside.
    ByteRange(ByteSet),
    /// `@validateUrlEncoding`
    UrlEncoding,
    /// `@validateUtf8Encoding`
    Utf8,
    /// `@verifyCC` and the like: what the expression finds and the sum confirms.
    Verify(Verify, Arc<Rx>),
    /// `@geoLookup`, which the transaction answers: it has the rule set's database, and sets `GEO`.
    Geo,
}

/// How numbers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SecLang's own")]
pub(crate) enum Order {
    Eq,
    Ge,
    Gt,
    Le,
    Lt,
}

/// How texts compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SecLang's own")]
pub(crate) enum Compare {
    BeginsWith,
    Contains,
    ContainsWord,
    EndsWith,
    StrEq,
    Within,
}

/// Which sum confirms a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SecLang's own")]
pub(crate) enum Verify {
    Card,
    Cpf,
    Ssn,
    Svnr,
}

/// Operators that libmodsecurity documents and this engine refuses, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("rbl", "a request never waits for a name server"),
    ("inspectFile", "no program is started for a request"),
    ("fuzzyHash", "there is no ssdeep here"),
    ("gsbLookup", "there is no Google Safe Browsing database"),
    ("rsub", "answers are not rewritten"),
    ("validateDTD", "no schema is loaded"),
    ("validateSchema", "no schema is loaded"),
    ("validateHash", "links are not signed"),
];

/// Where operators with files get them.
pub(crate) trait Phrases {
    /// Reads a file that a rule names.
    fn read(&mut self, name: &str) -> Result<Vec<u8>, String>;
}

impl Operator {
    /// Reads `!@name parameter`; what has no name is an expression.
    pub(crate) fn parse(text: &[u8], names: &mut Names, files: &mut dyn Phrases) -> Result<Operator, String> {
        let shown = String::from_utf8_lossy(text).into();
        let text = text.trim_ascii();
        let (negated, text) = match text.strip_prefix(b"!") {
            Some(rest) => (true, rest.trim_ascii_start()),
            None => (false, text),
        };
        let Some(named) = text.strip_prefix(b"@") else {
            return Ok(Operator { negated, kind: expression(text, false, names)?, shown });
        };
        let end = named.iter().position(|b| b.is_ascii_whitespace()).unwrap_or(named.len());
        let name = String::from_utf8_lossy(&named[..end]).into_owned();
        let kind = kind(&name, named[end..].trim_ascii(), names, files)?;
        Ok(Operator { negated, kind, shown })
    }

    /// What a value must have for the operator to match it. A negated one needs nothing.
    pub(crate) fn need(&self) -> Need {
        match &self.kind {
            _ if self.negated => Need::default(),
            Kind::Rx(rx, _) => rx.need(),
            Kind::Pm(pm) => pm.need(),
            // libinjection finds markup by its tags and by attributes with values.
            Kind::Xss => Need { length: 2, sets: vec![ByteSet::of(b"<=")], literals: Vec::new() },
            // One word, or one number, is one token, and no form of an injection has only one.
            Kind::Sqli => Need { length: 2, sets: vec![ByteSet::beyond_words()], literals: Vec::new() },
            _ => Need::default(),
        }
    }

    /// The parameter that has macros to fill in before [`Operator::test`].
    pub(crate) fn parameter(&self) -> Option<&Text> {
        match &self.kind {
            Kind::RxOf(text) | Kind::Number(_, text) | Kind::Compare(_, text) => Some(text),
            _ => None,
        }
    }

    /// Asks; `parameter` is the filled-in [`Operator::parameter`]. The answer is before negation.
    pub(crate) fn test(&self, value: &[u8], parameter: &[u8], scratch: &mut Scratch, spans: &mut Spans) -> Found {
        let yes = match &self.kind {
            Kind::Always => {
                spans[0] = Some((0, value.len() as u32));
                true
            }
            Kind::Never | Kind::Geo => false,
            Kind::Rx(rx, false) => return rx.search(value, 0, scratch, spans),
            Kind::Rx(rx, true) => return rx.search_all(value, scratch, spans),
            Kind::RxOf(_) => {
                let Ok(rx) = Rx::compile(parameter, false) else { return Found::No };
                return rx.search(value, 0, &mut rx.scratch(), spans);
            }
            Kind::Pm(pm) => {
                let found = pm.find(value);
                spans[0] = found;
                found.is_some()
            }
            Kind::Number(order, _) => order.holds(number(value), number(parameter)),
            Kind::Compare(compare, _) => {
                let yes = compare.holds(value, parameter);
                spans[0] = yes.then_some((0, value.len() as u32));
                yes
            }
            Kind::Ip(set) => set.contains(value),
            Kind::Sqli => return sqli::judge(value).0,
            Kind::Xss => libinjectionrs::detect_xss(value).is_injection(),
            Kind::ByteRange(allowed) => value.iter().any(|b| !allowed.contains(*b)),
            Kind::UrlEncoding => verify::has_invalid_url_encoding(value),
            Kind::Utf8 => std::str::from_utf8(value).is_err(),
            Kind::Verify(verify, rx) => return verify.search(rx, value, scratch, spans),
        };
        if yes { Found::Yes } else { Found::No }
    }

    /// What libinjection calls the form of an injection, for `TX:0`.
    pub(crate) fn fingerprint(&self, value: &[u8]) -> Option<Vec<u8>> {
        match self.kind {
            Kind::Sqli => Some(sqli::judge(value).1),
            Kind::Xss => Some(value.to_vec()),
            _ => None,
        }
    }
}

impl Order {
    pub(crate) fn holds(self, value: i64, parameter: i64) -> bool {
        match self {
            Order::Eq => value == parameter,
            Order::Ge => value >= parameter,
            Order::Gt => value > parameter,
            Order::Le => value <= parameter,
            Order::Lt => value < parameter,
        }
    }
}

impl Compare {
    fn holds(self, value: &[u8], parameter: &[u8]) -> bool {
        let find = |hay: &[u8], needle: &[u8]| memchr::memmem::find(hay, needle).is_some();
        match self {
            Compare::BeginsWith => value.starts_with(parameter),
            Compare::Contains => find(value, parameter),
            Compare::EndsWith => value.ends_with(parameter),
            Compare::StrEq => value == parameter,
            Compare::Within => find(parameter, value),
            Compare::ContainsWord => memchr::memmem::find_iter(value, parameter).any(|at| {
                let word = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
                !word(at.checked_sub(1).and_then(|before| value.get(before))) && !word(value.get(at + parameter.len()))
            }),
        }
    }
}

impl Verify {
    /// The first place that the expression finds and the sum confirms. `@verifyCC` is for one expression that finds candidates.
    fn search(self, rx: &Rx, value: &[u8], scratch: &mut Scratch, spans: &mut Spans) -> Found {
        let mut from = 0;
        while from <= value.len() {
            match rx.search(value, from, scratch, spans) {
                Found::Yes => {}
                other => return other,
            }
            let Some((start, end)) = spans[0] else { return Found::No };
            let text = &value[start as usize..end as usize];
            let confirmed = match self {
                Verify::Card => verify::is_card(text),
                Verify::Cpf => verify::is_cpf(text),
                Verify::Ssn => verify::is_ssn(text),
                Verify::Svnr => verify::is_svnr(text),
            };
            if confirmed {
                spans[1..].fill(None);
                return Found::Yes;
            }
            from = start as usize + 1;
        }
        Found::No
    }
}

fn expression(text: &[u8], global: bool, names: &mut Names) -> Result<Kind, String> {
    // `%{` is also what an expression for macros looks like: only what names a variable is a macro.
    if memchr::memmem::find(text, b"%{").is_some()
        && let Ok(with_macros) = Text::parse(text, names)
    {
        return Ok(Kind::RxOf(with_macros));
    }
    Ok(Kind::Rx(Arc::new(Rx::compile(text, false)?), global))
}

fn kind(name: &str, text: &[u8], names: &mut Names, files: &mut dyn Phrases) -> Result<Kind, String> {
    let shown = String::from_utf8_lossy(text);
    let mut compare = |how| Ok(Kind::Compare(how, Text::parse(text, names)?));
    Ok(match name.to_ascii_lowercase().as_str() {
        "beginswith" => return compare(Compare::BeginsWith),
        "contains" | "strmatch" => return compare(Compare::Contains),
        "containsword" => return compare(Compare::ContainsWord),
        "endswith" => return compare(Compare::EndsWith),
        "streq" => return compare(Compare::StrEq),
        "within" => return compare(Compare::Within),
        "eq" => Kind::Number(Order::Eq, Text::parse(text, names)?),
        "ge" => Kind::Number(Order::Ge, Text::parse(text, names)?),
        "gt" => Kind::Number(Order::Gt, Text::parse(text, names)?),
        "le" => Kind::Number(Order::Le, Text::parse(text, names)?),
        "lt" => Kind::Number(Order::Lt, Text::parse(text, names)?),
        "unconditionalmatch" => Kind::Always,
        "nomatch" => Kind::Never,
        "geolookup" if text.is_empty() => Kind::Geo,
        "geolookup" => return Err("\"@geoLookup\" takes no parameter".to_owned()),
        "rx" => expression(text, false, names)?,
        "rxglobal" => expression(text, true, names)?,
        "pm" => Kind::Pm(Arc::new(Pm::words(text)?)),
        "pmfromfile" | "pmf" => {
            let read: Result<Vec<_>, _> = shown.split_whitespace().map(|name| files.read(name)).collect();
            Kind::Pm(Arc::new(Pm::lines(&read?)?))
        }
        "ipmatch" => Kind::Ip(Arc::new(ip_set(shown.split(','))?)),
        "ipmatchfromfile" | "ipmatchf" => {
            let text = files.read(&shown)?;
            let text = String::from_utf8_lossy(&text);
            let lines = text.lines().map(|l| l.split('#').next().unwrap_or_default());
            Kind::Ip(Arc::new(ip_set(lines)?))
        }
        "detectsqli" => Kind::Sqli,
        "detectxss" => Kind::Xss,
        "validatebyterange" => {
            Kind::ByteRange(verify::byte_ranges(&shown).ok_or_else(|| format!("invalid byte ranges \"{shown}\""))?)
        }
        "validateurlencoding" => Kind::UrlEncoding,
        "validateutf8encoding" => Kind::Utf8,
        "verifycc" => Kind::Verify(Verify::Card, Arc::new(Rx::compile(text, false)?)),
        "verifycpf" => Kind::Verify(Verify::Cpf, Arc::new(Rx::compile(text, false)?)),
        "verifyssn" => Kind::Verify(Verify::Ssn, Arc::new(Rx::compile(text, false)?)),
        "verifysvnr" => Kind::Verify(Verify::Svnr, Arc::new(Rx::compile(text, false)?)),
        _ => {
            let known = REFUSED.iter().find(|(refused, _)| refused.eq_ignore_ascii_case(name));
            return Err(match known {
                Some((_, why)) => format!("operator \"@{name}\" is not supported: {why}"),
                None => format!("unknown operator \"@{name}\""),
            });
        }
    })
}

fn ip_set<'a>(texts: impl Iterator<Item = &'a str>) -> Result<IpSet, String> {
    let mut set = IpSet::default();
    for text in texts.map(str::trim).filter(|t| !t.is_empty()) {
        set.add(text).ok_or_else(|| format!("invalid network \"{text}\""))?;
    }
    Ok(set)
}

/// For fuzz targets: an injection that libinjection finds in all of a value is never overlooked.
pub(crate) fn sqli_agrees(value: &[u8]) {
    let is_found = sqli::judge(value).0 != Found::No;
    let is_whole = matches!(sqli::without_dots(value), std::borrow::Cow::Borrowed(_));
    assert!(is_found || !is_whole || !libinjectionrs::detect_sqli(value).is_injection());
}

/// A number as C's `atoi` reads it: what is none is 0.
pub(crate) fn number(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (sign, digits) = match text.first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    let value = digits
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .fold(0_i64, |sum, b| sum.saturating_mul(10).saturating_add(i64::from(b - b'0')));
    sign * value
}

/// The value of two hexadecimal digits.
fn hex_pair(bytes: &[u8]) -> Option<u8> {
    let digit = |at: usize| bytes.get(at).and_then(|b| (*b as char).to_digit(16));
    Some((digit(0)? << 4 | digit(1)?) as u8)
}

/// No groups.
pub(crate) const NO_SPANS: Spans = [None; CAPTURES];

#[cfg(test)]
mod tests {
    use super::*;

    struct NoFiles;
    impl Phrases for NoFiles {
        fn read(&mut self, name: &str) -> Result<Vec<u8>, String> {
            Err(format!("no {name}"))
        }
    }

    fn ask(operator: &str, value: &[u8]) -> bool {
        let parsed = Operator::parse(operator.as_bytes(), &mut Names::default(), &mut NoFiles).unwrap();
        let parameter = parsed.parameter().and_then(Text::constant).unwrap_or_default();
        let mut scratch = Rx::compile(b"(a)(b)(c)", false).unwrap().scratch();
        (parsed.test(value, parameter, &mut scratch, &mut NO_SPANS.clone()) == Found::Yes) != parsed.negated
    }

    #[test]
    fn operators_ask() {
        for (operator, yes, no) in [
            ("@rx ^a+$", "aaa", "b"),
            ("^a+$", "aaa", "b"),
            ("!@rx a", "b", "a"),
            ("!^a", "b", "a"),
            ("@pm foo bar", "a FOO", "f"),
            ("@contains oo", "foo", "fo"),
            ("@containsWord cat", "a cat.", "concat"),
            ("@beginsWith fo", "foo", "ofo"),
            ("@endsWith oo", "foo", "oof"),
            ("@streq foo", "foo", "Foo"),
            ("@within GET,POST", "GET", "PUT"),
            ("@eq 5", "5", "6"),
            ("@eq 0", "abc", "1"),
            ("@lt 5", "-1", "5"),
            ("@ge 5", "5x", "4"),
            ("@ipMatch 10.0.0.0/8,::1", "10.1.1.1", "11.1.1.1"),
            ("@validateByteRange 97-99", "abcd", "abc"),
            ("@validateUtf8Encoding", "", "abc"),
            ("@verifyCC \\d{16}", "x 4111111111111111", "x 4111111111111112"),
            ("@detectSQLi", "1' or '1'='1", "hello"),
            ("@detectXSS", "<script>alert(1)</script>", "hello"),
            ("@unconditionalMatch", "x", ""),
        ] {
            if !yes.is_empty() {
                assert!(ask(operator, yes.as_bytes()), "{operator} on {yes}");
            }
            if operator != "@unconditionalMatch" {
                assert!(!ask(operator, no.as_bytes()), "{operator} on {no}");
            }
        }
        assert!(ask("@validateUtf8Encoding", b"\xff"));
    }

    #[test]
    fn unknown_ones_are_refused() {
        let refuse = |text: &str| Operator::parse(text.as_bytes(), &mut Names::default(), &mut NoFiles).unwrap_err();
        assert_eq!(refuse("@nonsense 1"), "unknown operator \"@nonsense\"");
        assert!(refuse("@rbl example.org").contains("not supported"));
        assert!(refuse("@rx (").contains("cannot be compiled"));
        assert!(refuse("@pmFromFile x").contains("no x"));
    }
}
