//! Texts with variables, compiled when the configuration is read: `http://$host$request_uri`.

use super::Build;
use crate::request::Request;
use crate::request::arena::Text;
use crate::snapshot::VariableId;
use conf::{Node, Problem, Word};

/// A part of a compiled text.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// Itself.
    Text(Box<[u8]>),
    /// A variable's value.
    Variable(VariableId),
    /// A group of the last pattern that matched.
    Capture(usize),
}

impl Part {
    /// The value of a part that is no text.
    fn value(&self, r: &mut Request) -> Text {
        let value = match self {
            Part::Text(_) => None,
            Part::Variable(id) => r.variable(*id),
            Part::Capture(n) => r.capture(*n),
        };
        value.unwrap_or(Text::EMPTY)
    }
}

/// A compiled text.
#[derive(Clone, Debug, Default)]
pub struct Complex {
    parts: Box<[Part]>,
}

impl Complex {
    /// A text without variables.
    pub fn fixed(text: &[u8]) -> Complex {
        let parts = if text.is_empty() { Box::default() } else { Box::new([Part::Text(text.into())]) as Box<[Part]> };
        Complex { parts }
    }

    /// Compiles a word. Errors: `invalid variable name`, `the closing bracket in "x" variable is missing`.
    pub fn compile(build: &mut Build<'_>, word: &Word) -> Result<Complex, Problem> {
        Complex::compile_bytes(build, &word.text).map_err(|text| word.problem(text))
    }

    /// Compiles the value of a header field. Line breaks that the operator has written, with the white space around them, become a space each
    /// (RFC 9112 section 5.2), with a warning: sent as they are they would end the field.
    pub fn compile_field(build: &mut Build<'_>, node: &Node, value: &[u8]) -> Result<Complex, Problem> {
        if !value.iter().any(|b| matches!(b, b'\r' | b'\n')) {
            return Complex::compile_bytes(build, value).map_err(|text| node.problem(text));
        }
        build.problems.push(
            node.warning(format!(
                "line breaks in the value of a header of \"{}\" are sent as spaces",
                node.name.as_str()
            )),
        );
        let lines = value.split(|b| matches!(b, b'\r' | b'\n')).map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
        Complex::compile_bytes(build, &lines.collect::<Vec<_>>().join(&b' ')).map_err(|text| node.problem(text))
    }

    /// Compiles bytes; an error is nginx's text for it.
    pub fn compile_bytes(build: &mut Build<'_>, text: &[u8]) -> Result<Complex, String> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut at = 0;
        while at < text.len() {
            if text[at] != b'$' {
                literal.push(text[at]);
                at += 1;
                continue;
            }
            at += 1;
            if let Some(d) = text.get(at).filter(|c| (b'1'..=b'9').contains(c)) {
                flush(&mut literal, &mut parts);
                parts.push(Part::Capture((d - b'0') as usize));
                at += 1;
                continue;
            }
            let name = variable_name(text, &mut at)?;
            if name.is_empty() {
                return Err("invalid variable name".into());
            }
            flush(&mut literal, &mut parts);
            match name {
                [d] if d.is_ascii_digit() && *d != b'0' => parts.push(Part::Capture((d - b'0') as usize)),
                _ => parts.push(Part::Variable(build.variables.index(name))),
            }
        }
        flush(&mut literal, &mut parts);
        Ok(Complex { parts: parts.into() })
    }

    /// The text when it has no variables.
    pub fn as_fixed(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Text(t)] => Some(t),
            _ => None,
        }
    }

    /// The variable's name index when the text is just one variable.
    pub fn as_variable(&self) -> Option<VariableId> {
        match &*self.parts {
            [Part::Variable(id)] => Some(*id),
            _ => None,
        }
    }

    /// Whether it is the empty text.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The highest capture number used, 0 without any.
    pub fn captures(&self) -> usize {
        self.parts.iter().map(|p| if let Part::Capture(n) = p { *n } else { 0 }).max().unwrap_or(0)
    }

    /// The text for a request, in its arena.
    pub fn eval(&self, r: &mut Request) -> Text {
        if let [one] = &*self.parts {
            return match one {
                Part::Text(t) => Text::Own(r.arena.push(t)),
                Part::Variable(id) => r.variable(*id).unwrap_or(Text::EMPTY),
                Part::Capture(n) => r.capture(*n).unwrap_or(Text::EMPTY),
            };
        }
        // What is kept is evaluated first: it finds the room for texts free. What is not would be evaluated twice, and twice
        // as often with each level below.
        let snapshot = r.snapshot.clone();
        for p in &self.parts {
            if let Part::Variable(id) = p
                && !snapshot.variables[id.0 as usize].volatile
            {
                r.variable(*id);
            }
        }
        let mark = r.arena.mark();
        let mut built = std::mem::take(&mut r.scratch);
        built.clear();
        self.write(r, &mut built);
        let span = r.arena.push(&built);
        r.note_made(built.len());
        r.scratch = built;
        debug_assert!(span.start as usize >= mark);
        Text::Own(span)
    }

    /// Appends the text for a request to `out`, up to what a value may be long.
    pub fn write(&self, r: &mut Request, out: &mut Vec<u8>) {
        let start = out.len();
        for p in &self.parts {
            if let Part::Text(t) = p {
                out.extend_from_slice(t);
                continue;
            }
            let value = p.value(r);
            if !r.may_grow(out.len() - start, r.get(value).len(), p) {
                return;
            }
            out.extend_from_slice(r.get(value));
        }
    }

    /// The same with captures that are not the request's.
    pub fn write_with<'c>(&self, r: &mut Request, capture: impl Fn(usize) -> &'c [u8], out: &mut Vec<u8>) {
        let start = out.len();
        for p in &self.parts {
            match p {
                Part::Text(t) => out.extend_from_slice(t),
                Part::Capture(n) => out.extend_from_slice(capture(*n)),
                Part::Variable(_) => {
                    let value = p.value(r);
                    if !r.may_grow(out.len() - start, r.get(value).len(), p) {
                        return;
                    }
                    out.extend_from_slice(r.get(value));
                }
            }
        }
    }

    /// Appends the text as `rewrite` makes it: captures after a `?` (or all, for a redirect) are escaped when the uri they
    /// came from was. Gives where the arguments begin.
    pub fn write_rewritten(&self, r: &mut Request, escape: bool, escape_all: bool, out: &mut Vec<u8>) -> Option<usize> {
        let mut args_at = None;
        for p in &self.parts {
            if let Part::Text(t) = p {
                if args_at.is_none()
                    && let Some(i) = memchr::memchr(b'?', t)
                {
                    args_at = Some(out.len() + i + 1);
                }
                out.extend_from_slice(t);
                continue;
            }
            let value = p.value(r);
            if !r.may_grow(out.len(), r.get(value).len(), p) {
                return args_at;
            }
            if matches!(p, Part::Capture(_)) && escape && (escape_all || args_at.is_some()) {
                wire::http1::escape::escape_uri(r.get(value), wire::http1::escape::Escape::Args, out);
            } else {
                out.extend_from_slice(r.get(value));
            }
        }
        args_at
    }

    /// Whether the text is something other than empty and `0`: what `if=`, `proxy_cache_bypass` and others ask.
    pub fn is_true(&self, r: &mut Request) -> bool {
        let value = self.eval(r);
        let value = r.get(value);
        !value.is_empty() && value != b"0"
    }

    /// Whether one of several is (`ngx_http_test_predicates`).
    pub fn any_is_true(r: &mut Request, all: &[Complex]) -> bool {
        all.iter().any(|text| text.is_true(r))
    }
}

/// The name of a variable, with or without braces; `at` stands behind the `$` and is moved behind the name.
pub fn variable_name<'t>(text: &'t [u8], at: &mut usize) -> Result<&'t [u8], String> {
    let braced = text.get(*at) == Some(&b'{');
    let start = *at + usize::from(braced);
    let rest = &text[start..];
    let len = rest.iter().position(|b| !b.is_ascii_alphanumeric() && *b != b'_').unwrap_or(rest.len());
    let name = &rest[..len];
    if braced && rest.get(len) != Some(&b'}') {
        let name = String::from_utf8_lossy(name);
        return Err(format!("the closing bracket in \"{name}\" variable is missing"));
    }
    *at = start + len + usize::from(braced);
    Ok(name)
}

fn flush(literal: &mut Vec<u8>, parts: &mut Vec<Part>) {
    if !literal.is_empty() {
        parts.push(Part::Text(std::mem::take(literal).into()));
    }
}
