//! What SSI commands do: `include`, `echo`, `config`, `set`, `if` and its branches, `block`.

use super::ssi::{Conditional, Encoding, Shared, State};
use super::ssi_parse::Command;
use crate::config::Subsystem;
use crate::log_error;
use crate::modules;
use crate::request::Request;
use crate::request::evaluate::MAX_VALUE;
use crate::request::include::Include;
use crate::request::subrequest;
use pcre2::bytes::RegexBuilder;
use std::rc::Rc;
use wire::http1::escape::{Escape, escape_html, escape_uri};

/// Parameters a command may have (`NGX_HTTP_SSI_MAX_PARAMS`).
const MAX_PARAMETERS: usize = 16;

/// What became of a command.
pub enum Outcome {
    /// It is done.
    Done,
    /// Its place takes the error message; the log has the reason.
    Failed,
    /// Another answer comes here.
    Include {
        /// What it is.
        include: Include,
        /// Whether what follows depends on it.
        wait: bool,
    },
}

/// A row of the table of commands.
struct Kind {
    name: &'static str,
    /// Names of parameters, and whether each must be there.
    parameters: &'static [(&'static str, bool)],
    /// In which `if`s it belongs, if in any.
    conditional: Conditional,
    /// It ends a block, so it is done while text is not sent.
    block: bool,
    run: fn(&mut Request, &mut State, &Call) -> Result<Outcome, Failed>,
}

/// The reason is in the log.
struct Failed;

/// A command with its parameters sorted out.
struct Call<'a> {
    name: &'a [u8],
    kind: &'static Kind,
    values: Vec<Option<&'a [u8]>>,
}

impl<'a> Call<'a> {
    fn value(&self, name: &str) -> Option<&'a [u8]> {
        let at = self.kind.parameters.iter().position(|(n, _)| *n == name)?;
        self.values[at]
    }

    /// One that the table says is there.
    fn needed(&self, name: &str) -> &'a [u8] {
        self.value(name).unwrap_or_default()
    }
}

const fn kind(
    name: &'static str,
    parameters: &'static [(&'static str, bool)],
    run: fn(&mut Request, &mut State, &Call) -> Result<Outcome, Failed>,
) -> Kind {
    Kind { name, parameters, conditional: Conditional::None, block: false, run }
}

const KINDS: &[Kind] = &[
    kind(
        "include",
        &[("virtual", false), ("file", false), ("wait", false), ("set", false), ("stub", false)],
        include_command,
    ),
    kind("echo", &[("var", true), ("default", false), ("encoding", false)], echo),
    kind("config", &[("errmsg", false), ("timefmt", false)], config),
    kind("set", &[("var", true), ("value", true)], set),
    kind("if", &[("expr", true)], if_command),
    Kind { conditional: Conditional::If, ..kind("elif", &[("expr", true)], if_command) },
    Kind { conditional: Conditional::If, ..kind("else", &[], else_command) },
    Kind { conditional: Conditional::Else, ..kind("endif", &[], endif) },
    kind("block", &[("name", true)], block),
    Kind { block: true, ..kind("endblock", &[], endblock) },
];

/// Does a command.
pub fn run(r: &mut Request, state: &mut State, command: Command) -> Outcome {
    let name = show(&command.name);
    let Some(kind) = KINDS.iter().find(|k| k.name.as_bytes() == command.name) else {
        if !state.output {
            return Outcome::Done;
        }
        log_error!(r, Error, "invalid SSI command: \"{name}\"");
        return Outcome::Failed;
    };
    if !state.output && !kind.block {
        if state.block {
            let text = written(&command);
            state.text(r, &text);
            return Outcome::Done;
        }
        if kind.conditional == Conditional::None {
            return Outcome::Done;
        }
    }
    if kind.conditional != Conditional::None
        && (state.conditional == Conditional::None || state.conditional > kind.conditional)
    {
        log_error!(r, Error, "invalid context of SSI command: \"{name}\"");
        return Outcome::Failed;
    }
    match sort(r, kind, &command) {
        Ok(call) => (kind.run)(r, state, &call).unwrap_or(Outcome::Failed),
        Err(Failed) => Outcome::Failed,
    }
}

/// A command as text again, for a block.
fn written(command: &Command) -> Vec<u8> {
    let mut out = b"<!--#".to_vec();
    out.extend_from_slice(&command.name);
    for (name, value) in &command.parameters {
        for part in [b" ", name.as_slice(), b"=\"", value, b"\""] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b" -->");
    out
}

fn sort<'a>(r: &Request, kind: &'static Kind, command: &'a Command) -> Result<Call<'a>, Failed> {
    let name = show(&command.name);
    if command.parameters.len() > MAX_PARAMETERS {
        log_error!(r, Error, "too many SSI command parameters: \"{name}\"");
        return Err(Failed);
    }
    let mut values = vec![None; kind.parameters.len()];
    for (key, value) in &command.parameters {
        let Some(at) = kind.parameters.iter().position(|(n, _)| n.as_bytes() == key) else {
            log_error!(r, Error, "invalid parameter name: \"{}\" in \"{name}\" SSI command", show(key));
            return Err(Failed);
        };
        if values[at].replace(value.as_slice()).is_some() {
            log_error!(r, Error, "duplicate \"{}\" parameter in \"{name}\" SSI command", show(key));
            return Err(Failed);
        }
    }
    for (value, (parameter, needed)) in values.iter().zip(kind.parameters) {
        if *needed && value.is_none() {
            log_error!(r, Error, "mandatory \"{parameter}\" parameter is absent in \"{name}\" SSI command");
            return Err(Failed);
        }
    }
    Ok(Call { name: &command.name, kind, values })
}

fn include_command(r: &mut Request, _state: &mut State, call: &Call) -> Result<Outcome, Failed> {
    let (uri, file) = (call.value("virtual"), call.value("file"));
    let (set, stub) = (call.value("set"), call.value("stub"));
    let target = match (uri, file) {
        (Some(uri), Some(file)) => {
            let (uri, file) = (show(uri), show(file));
            log_error!(r, Error, "inclusion may be either virtual=\"{uri}\" or file=\"{file}\"");
            return Err(Failed);
        }
        (None, None) => {
            log_error!(r, Error, "no parameter in \"include\" SSI command");
            return Err(Failed);
        }
        (uri, file) => uri.or(file).unwrap_or_default(),
    };
    if set.is_some() && stub.is_some() {
        log_error!(r, Error, "\"set\" and \"stub\" cannot be used together in \"include\" SSI command");
        return Err(Failed);
    }
    let mut wait = uri.is_none() || set.is_some();
    if let Some(word) = call.value("wait") {
        if let Some(file) = file {
            log_error!(r, Error, "\"wait\" cannot be used with file=\"{}\"", show(file));
            return Err(Failed);
        }
        if word.eq_ignore_ascii_case(b"yes") {
            wait = true;
        } else if !word.eq_ignore_ascii_case(b"no") {
            log_error!(r, Error, "invalid value \"{}\" in the \"wait\" parameter", show(word));
            return Err(Failed);
        }
    }
    let (uri, args) = target_of(r, target)?;
    let stub = match stub {
        None => None,
        Some(name) => Some(block_named(r, name)?),
    };
    let set: Option<Box<[u8]>> = set.map(|name| name.to_ascii_lowercase().into());
    if let Some(name) = &set
        && r.ctx.ssi_shared.get_or_insert_default().borrow().variable(name).is_none()
    {
        r.ctx.ssi_shared.get_or_insert_default().borrow_mut().set(name, Vec::new());
    }
    if !subrequest::is_allowed(r, &uri[..]) {
        return Err(Failed);
    }
    Ok(Outcome::Include { include: Include { uri, args, set, stub, own: None }, wait })
}

/// A path and its arguments.
type Target = (Box<[u8]>, Box<[u8]>);

fn target_of(r: &mut Request, target: &[u8]) -> Result<Target, Failed> {
    let raw = evaluate(r, target, true)?;
    let mut path = Vec::new();
    let Ok(parts) = wire::http1::target::parse_unsafe_uri(&raw, &mut path) else {
        log_error!(r, Error, "unsafe URI \"{}\" was detected", show(&raw));
        return Err(Failed);
    };
    let args = parts.args.map_or(&b""[..], |a| &raw[a.range()]);
    Ok((path[parts.path.range()].into(), args.into()))
}

fn block_named(r: &Request, name: &[u8]) -> Result<Rc<Vec<u8>>, Failed> {
    let of = |s: &Shared| s.blocks.iter().find(|(n, _)| **n == *name).map(|(_, text)| text.clone());
    let known = r.ctx.ssi_shared.as_ref().and_then(|s| of(&s.borrow()));
    match known {
        Some(text) => Ok(text),
        None => {
            log_error!(r, Error, "\"stub\"=\"{}\" for \"include\" not found", show(name));
            Err(Failed)
        }
    }
}

fn echo(r: &mut Request, state: &mut State, call: &Call) -> Result<Outcome, Failed> {
    let name = call.needed("var").to_ascii_lowercase();
    let value = variable(r, &name);
    let value = value.as_deref().or(call.value("default")).unwrap_or(b"(none)");
    if value.is_empty() {
        return Ok(Outcome::Done);
    }
    match call.value("encoding") {
        None => {}
        Some(b"none") => state.encoding = Encoding::None,
        Some(b"url") => state.encoding = Encoding::Url,
        Some(b"entity") => state.encoding = Encoding::Entity,
        Some(other) => {
            log_error!(r, Error, "unknown encoding \"{}\" in the \"echo\" command", show(other));
        }
    }
    match state.encoding {
        Encoding::None => state.out.extend_from_slice(value),
        Encoding::Url => escape_uri(value, Escape::Html, &mut state.out),
        Encoding::Entity => escape_html(value, &mut state.out),
    }
    Ok(Outcome::Done)
}

fn config(r: &mut Request, state: &mut State, call: &Call) -> Result<Outcome, Failed> {
    if let Some(format) = call.value("timefmt") {
        r.ctx.ssi.time_format = Some(format.into());
    }
    if let Some(message) = call.value("errmsg") {
        state.error_message = message.to_vec();
    }
    Ok(Outcome::Done)
}

fn set(r: &mut Request, _state: &mut State, call: &Call) -> Result<Outcome, Failed> {
    let value = evaluate(r, call.needed("value"), false)?;
    let name = call.needed("var").to_ascii_lowercase();
    let shared = r.ctx.ssi_shared.get_or_insert_default().clone();
    let mut shared = shared.borrow_mut();
    shared.set(&name, value);
    if shared.size() > MAX_VALUE {
        shared.set(&name, Vec::new());
        log_error!(r, Error, "variables of more than {MAX_VALUE} bytes while evaluating variable \"{}\"", show(&name));
        return Err(Failed);
    }
    Ok(Outcome::Done)
}

fn if_command(r: &mut Request, state: &mut State, call: &Call) -> Result<Outcome, Failed> {
    if call.name == b"if" && state.conditional != Conditional::None {
        log_error!(r, Error, "the \"if\" command inside the \"if\" command");
        return Err(Failed);
    }
    if state.chosen {
        state.output = false;
        return Ok(Outcome::Done);
    }
    let holds = condition(r, call.needed("expr"))?;
    state.output = holds;
    state.chosen = holds;
    state.conditional = Conditional::If;
    Ok(Outcome::Done)
}

/// `$a`, `$a = b`, `$a != b`, `$a = /b/`
fn condition(r: &mut Request, expression: &[u8]) -> Result<bool, Failed> {
    let left_end = expression
        .iter()
        .position(|b| !b.is_ascii_alphanumeric() && !matches!(b, b'$' | b'{' | b'}' | b'_' | b'"' | b'\''))
        .unwrap_or(expression.len());
    let left = evaluate(r, &expression[..left_end].to_ascii_lowercase(), false)?;
    let (negative, right) = match skip_spaces(&expression[left_end..]) {
        [] => return Ok(!left.is_empty()),
        [b'=', rest @ ..] => (false, skip_spaces(rest)),
        [b'!', b'=', rest @ ..] => (true, skip_spaces(rest)),
        _ => return Err(invalid_expression(r, expression)),
    };
    let equal = match right {
        [b'/', pattern @ .., b'/'] => {
            let pattern = evaluate(r, pattern, false)?;
            matches(r, &pattern, &left)?
        }
        [b'/', _, ..] => return Err(invalid_expression(r, expression)),
        [b'\\', b'/', ..] => evaluate(r, &right[1..], false)? == left,
        text => evaluate(r, text, false)? == left,
    };
    Ok(equal != negative)
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    &text[text.iter().position(|b| *b != b' ').unwrap_or(text.len())..]
}

fn invalid_expression(r: &Request, expression: &[u8]) -> Failed {
    log_error!(r, Error, "invalid expression in \"{}\"", show(expression));
    Failed
}

/// Matches an expression; its groups are `$0` to `$9`, named ones are variables.
fn matches(r: &mut Request, pattern: &[u8], subject: &[u8]) -> Result<bool, Failed> {
    let shown = show(pattern);
    let regex = match RegexBuilder::new().build(&shown) {
        Ok(regex) => regex,
        Err(e) => {
            log_error!(r, Error, "pcre2_compile() failed: {e} in \"{shown}\"");
            return Err(Failed);
        }
    };
    let groups = match regex.captures(subject) {
        Ok(Some(groups)) => groups,
        Ok(None) => return Ok(false),
        Err(e) => {
            runtime::spend_turn();
            log_error!(r, Alert, "pcre2_match() failed: {e} on \"{}\" using \"{shown}\"", show(subject));
            return Err(Failed);
        }
    };
    let group = |n| groups.get(n).map_or(Vec::new(), |m: pcre2::bytes::Match<'_>| m.as_bytes().to_vec());
    let mut shared = r.ctx.ssi_shared.get_or_insert_default().borrow_mut();
    shared.captures = (0..groups.len()).map(group).collect();
    for (n, name) in regex.capture_names().iter().enumerate() {
        if let Some(name) = name {
            shared.set(&name.to_ascii_lowercase().into_bytes(), group(n));
        }
    }
    Ok(true)
}

fn else_command(_r: &mut Request, state: &mut State, _call: &Call) -> Result<Outcome, Failed> {
    state.output = !state.chosen;
    state.conditional = Conditional::Else;
    Ok(Outcome::Done)
}

fn endif(_r: &mut Request, state: &mut State, _call: &Call) -> Result<Outcome, Failed> {
    state.output = true;
    state.chosen = false;
    state.conditional = Conditional::None;
    Ok(Outcome::Done)
}

fn block(r: &mut Request, state: &mut State, call: &Call) -> Result<Outcome, Failed> {
    r.ctx.ssi_shared.get_or_insert_default().borrow_mut().blocks.push((call.needed("name").into(), Rc::default()));
    state.output = false;
    state.block = true;
    Ok(Outcome::Done)
}

fn endblock(_r: &mut Request, state: &mut State, _call: &Call) -> Result<Outcome, Failed> {
    state.output = true;
    state.block = false;
    Ok(Outcome::Done)
}

/// A variable's value: one of the page, one of the configuration, or one that the server knows.
fn variable(r: &mut Request, name: &[u8]) -> Option<Vec<u8>> {
    if let Some(value) = r.ctx.ssi_shared.as_ref().and_then(|s| s.borrow().variable(name).map(<[u8]>::to_vec)) {
        return Some(value);
    }
    let name = std::str::from_utf8(name).ok()?;
    let value = if r.snapshot.variables.iter().any(|v| &*v.name == name) {
        let value = r.variable_named(name);
        // A page goes on without a value that cannot be made: it has begun.
        r.take_fault();
        value?
    } else if let Some(known) = modules::builtins(Subsystem::Http).find(|v| v.name == name) {
        (known.evaluate)(r)?
    } else {
        let prefix = modules::prefixes(Subsystem::Http).find(|p| name.starts_with(p.name))?;
        (prefix.evaluate)(r, &name[prefix.name.len()..])?
    };
    Some(r.get(value).to_vec())
}

/// A text with variables (`ngx_http_ssi_evaluate_string`). With `directory`, one that does not begin with a slash goes
/// behind the directory of the request's uri.
fn evaluate(r: &mut Request, text: &[u8], directory: bool) -> Result<Vec<u8>, Failed> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'$' => {
                let name = variable_name(r, text, &mut at)?;
                if let Some(value) = variable(r, &name) {
                    if out.len() + value.len() > MAX_VALUE {
                        let name = show(&name);
                        log_error!(
                            r,
                            Error,
                            "value of more than {MAX_VALUE} bytes while evaluating variable \"{name}\""
                        );
                        return Err(Failed);
                    }
                    out.extend_from_slice(&value);
                }
            }
            b'\\' => {
                let Some(&next) = text.get(at) else { break };
                if !matches!(next, b'\\' | b'\'' | b'"' | b'$') {
                    out.push(b'\\');
                }
                out.push(next);
                at += 1;
            }
            other => out.push(other),
        }
    }
    if directory && !out.is_empty() && out[0] != b'/' {
        let uri = r.get(r.head.uri);
        let end = memchr::memrchr(b'/', uri).map_or(0, |i| i + 1);
        let before = uri[..end].to_vec();
        out.splice(0..0, before);
    }
    Ok(out)
}

/// The name after a `$`, in lower case.
fn variable_name(r: &Request, text: &[u8], at: &mut usize) -> Result<Vec<u8>, Failed> {
    let braced = text.get(*at) == Some(&b'{');
    *at += braced as usize;
    let rest = &text[*at..];
    let len = rest.iter().position(|b| !b.is_ascii_alphanumeric() && *b != b'_').unwrap_or(rest.len());
    let name = &rest[..len];
    *at += len;
    if braced {
        if rest.get(len) != Some(&b'}') {
            log_error!(r, Error, "the closing bracket in \"{}\" variable is missing", show(name));
            return Err(Failed);
        }
        *at += 1;
    }
    if name.is_empty() {
        log_error!(r, Error, "invalid variable name in \"{}\"", show(text));
        return Err(Failed);
    }
    Ok(name.to_ascii_lowercase())
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
