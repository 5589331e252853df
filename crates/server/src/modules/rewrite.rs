//! `rewrite`, `if`, `set`, `break`, `return` (nginx's `ngx_http_rewrite_module`). A level's directives run in the order
//! of the text, in the server-rewrite phase for `server` and in the rewrite phase for `location`.

use crate::config::complex::Complex;
use crate::config::pattern::Pattern;
use crate::config::setters;
use crate::config::{Build, Directive, Scope, http};
use crate::log_error;
use crate::modules::lua::chunk::Chunk;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{self, Verdict};
use crate::request::{Request, Text};
use crate::snapshot::{LocationId, VariableId};
use crate::{merged_values, reads_as_settings};
use conf::{Contexts, Node, Problem, Word, value};
use std::sync::Arc;
use wire::http1::escape::{Unescape, unescape};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("rewrite", rewrite),
    http("return", return_),
    http("set", set_),
    http("if", if_),
    http("break", |s, _| push(s, Code::Break)),
    http("rewrite_log", |s, n| setters::flag(&mut s.level.conf.rewrite.rewrite_log, n)),
    http("uninitialized_variable_warn", |s, n| setters::flag(&mut s.level.conf.rewrite.uninitialized_variable_warn, n)),
];

merged_values! {
    /// Values that merge.
    pub struct Settings {
        /// Say at notice what was rewritten.
        rewrite_log: bool = false,
        /// Say when a variable is used before it is set.
        uninitialized_variable_warn: bool = true,
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// What runs, in order. Not inherited.
    codes: Arc<Vec<Code>>,
}

impl Conf {
    /// Takes the parent's switches; what runs is never inherited.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
    }

    /// Whether nothing runs here.
    pub fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }
}

reads_as_settings!(Conf);

/// Makes a value of texts, for modules that add to what `set` does. `None`: it is not found.
pub type Make = fn(&mut Request, &[Text]) -> Option<Text>;

#[derive(Debug)]
enum Code {
    Set {
        variable: VariableId,
        hook: Option<crate::config::variables::Assign>,
        value: Complex,
    },
    /// `set_md5` and its like: the value is made of texts.
    Make {
        variable: VariableId,
        hook: Option<crate::config::variables::Assign>,
        args: Box<[Complex]>,
        make: Make,
    },
    Rewrite(Rewrite),
    If {
        condition: Condition,
        codes: Arc<Vec<Code>>,
        location: LocationId,
        in_location: bool,
    },
    Return {
        status: u16,
        text: Option<Complex>,
    },
    Program {
        variable: VariableId,
        hook: Option<crate::config::variables::Assign>,
        chunk: Arc<Chunk>,
        args: Vec<Complex>,
    },
    Break,
}

#[derive(Debug)]
struct Rewrite {
    pattern: Pattern,
    source: Box<str>,
    replacement: Complex,
    /// 301 or 302 to the client.
    redirect: Option<u16>,
    /// `break`: the location stays.
    stay: bool,
    /// `last`, `break` and redirects end the list.
    last: bool,
    /// The request's arguments are added.
    add_args: bool,
}

#[derive(Debug)]
enum Condition {
    True(VariableId),
    Equal { variable: VariableId, value: Complex, not: bool },
    Match { variable: VariableId, pattern: Pattern, not: bool },
    File { path: Complex, test: FileTest, not: bool },
}

#[derive(Clone, Copy, Debug)]
enum FileTest {
    File,
    Directory,
    Exists,
    Executable,
}

fn push(scope: &mut Scope<'_, '_>, code: Code) -> Result<(), Problem> {
    let codes = &mut scope.level.conf.rewrite.codes;
    Arc::get_mut(codes).expect("a level's list has one owner while it is read").push(code);
    Ok(())
}

/// `set_by_lua*`: a program that gives a variable its value, in the order of the text.
pub fn push_program(
    scope: &mut Scope<'_, '_>,
    name: &[u8],
    variable: VariableId,
    chunk: Arc<Chunk>,
    args: Vec<Complex>,
) -> Result<(), Problem> {
    let hook = scope.build.variables.assign_hook(name);
    push(scope, Code::Program { variable, hook, chunk, args })
}

fn is_url(text: &[u8]) -> bool {
    [&b"http://"[..], b"https://", b"$scheme"].iter().any(|p| text.starts_with(p))
}

fn rewrite(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let source = node.args[0].as_str().into_owned();
    let pattern = Pattern::compile(scope.build, &node.args[0].text, false).map_err(|t| node.problem(t))?;
    let mut text = node.args[1].text.clone();
    if text.is_empty() {
        return Err(node.problem("empty replacement".to_owned()));
    }
    let mut redirect = is_url(&text).then_some(302);
    let (mut last, mut stay) = (redirect.is_some(), false);
    if let Some(flag) = node.args.get(2) {
        match &*flag.as_str() {
            "last" => last = true,
            "break" => (last, stay) = (true, true),
            "redirect" => (last, redirect) = (true, Some(302)),
            "permanent" => (last, redirect) = (true, Some(301)),
            other => return Err(node.problem(format!("invalid parameter \"{other}\""))),
        }
    }
    let add_args = if text.last() == Some(&b'?') {
        text.pop();
        false
    } else {
        true
    };
    let replacement = Complex::compile_bytes(scope.build, &text).map_err(|t| node.problem(t))?;
    push(scope, Code::Rewrite(Rewrite { pattern, source: source.into(), replacement, redirect, stay, last, add_args }))
}

fn return_(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let first = &node.args[0];
    let (status, text) = match value::number(&first.text) {
        None if node.args.len() == 1 && is_url(&first.text) => (302, Some(Complex::compile(scope.build, first)?)),
        None => return Err(node.problem(format!("invalid return code \"{}\"", first.as_str()))),
        Some(n) if n > 999 => return Err(node.problem(format!("invalid return code \"{}\"", first.as_str()))),
        Some(n) => {
            let text = node.args.get(1).map(|w| Complex::compile(scope.build, w)).transpose()?;
            (n as u16, text)
        }
    };
    push(scope, Code::Return { status, text })
}

/// The variable that the first word names, and what setting it does.
fn target(
    scope: &mut Scope<'_, '_>,
    node: &Node,
) -> Result<(VariableId, Option<crate::config::variables::Assign>), Problem> {
    let Some(name) = node.args[0].text.strip_prefix(b"$").filter(|n| !n.is_empty()) else {
        return Err(node.problem(format!("invalid variable name \"{}\"", node.args[0].as_str())));
    };
    let variable = scope.build.variables.declare(name).map_err(|t| node.problem(t))?;
    Ok((variable, scope.build.variables.assign_hook(name)))
}

/// Sets the variable of the first word to what a module makes of texts, in its turn among the level's rewrites.
pub fn set_to(scope: &mut Scope<'_, '_>, node: &Node, args: Vec<Complex>, make: Make) -> Result<(), Problem> {
    let (variable, hook) = target(scope, node)?;
    push(scope, Code::Make { variable, hook, args: args.into(), make })
}

fn set_(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (variable, hook) = target(scope, node)?;
    let value = Complex::compile(scope.build, &node.args[1])?;
    push(scope, Code::Set { variable, hook, value })
}

fn if_(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let condition = condition(scope.build, node)?;
    let in_location = !scope.level.context.intersects(Contexts::SERVER);
    let context = if in_location { Contexts::IF_IN_LOCATION } else { Contexts::IF_IN_SERVER };
    let child = scope.child(node, context);
    let (codes, location) = (child.conf.rewrite.codes.clone(), child.id);
    scope.level.children.push(child);
    push(scope, Code::If { condition, codes, location, in_location })
}

fn condition(build: &mut Build<'_>, node: &Node) -> Result<Condition, Problem> {
    let bad = |w: &Word| node.problem(format!("invalid condition \"{}\"", w.as_str()));
    let mut words: Vec<Word> = node.args.clone();
    let (first, final_) = (node.args[0].clone(), node.args[node.args.len() - 1].clone());
    match words[0].text.strip_prefix(b"(") {
        Some(rest) => words[0].text = rest.to_vec(),
        None => return Err(bad(&first)),
    }
    let end = words.len() - 1;
    match words[end].text.strip_suffix(b")") {
        Some(rest) => words[end].text = rest.to_vec(),
        None => return Err(bad(&final_)),
    }
    words.retain(|w| !w.text.is_empty() || w.quoted);
    let words: Vec<&Word> = words.iter().filter(|w| !w.text.is_empty() || w.quoted).collect();
    let Some(start) = words.first() else { return Err(bad(&first)) };
    if let Some(name) = start.text.strip_prefix(b"$") {
        if name.is_empty() {
            return Err(bad(start));
        }
        let variable = build.variables.index(name);
        return match words.as_slice() {
            [_] => Ok(Condition::True(variable)),
            [_, op, value] => comparison(build, node, variable, op, value),
            [_, op] if matches!(op.text.as_slice(), b"=" | b"!=") => {
                Ok(Condition::Equal { variable, value: Complex::default(), not: op.text[0] == b'!' })
            }
            [_, op, ..] => Err(node.problem(format!("unexpected \"{}\" in condition", op.as_str()))),
            [] => Err(bad(&first)),
        };
    }
    let (not, test) = match start.text.strip_prefix(b"!") {
        Some(t) => (true, t),
        None => (false, start.text.as_slice()),
    };
    let test = match test {
        b"-f" => FileTest::File,
        b"-d" => FileTest::Directory,
        b"-e" => FileTest::Exists,
        b"-x" => FileTest::Executable,
        _ => return Err(bad(start)),
    };
    match words.as_slice() {
        [_, path] => Ok(Condition::File { path: Complex::compile(build, path)?, test, not }),
        _ => Err(bad(start)),
    }
}

fn comparison(
    build: &mut Build<'_>,
    node: &Node,
    variable: VariableId,
    op: &Word,
    value: &Word,
) -> Result<Condition, Problem> {
    let (not, op_text) = match op.text.strip_prefix(b"!") {
        Some(t) => (true, t),
        None => (false, op.text.as_slice()),
    };
    match op_text {
        b"=" => Ok(Condition::Equal { variable, value: Complex::compile(build, value)?, not }),
        b"~" | b"~*" => {
            let pattern = Pattern::compile(build, &value.text, op_text.len() == 2).map_err(|t| node.problem(t))?;
            Ok(Condition::Match { variable, pattern, not })
        }
        _ => Err(node.problem(format!("unexpected \"{}\" in condition", op.as_str()))),
    }
}

/// The server-rewrite phase.
pub fn server_handler(r: &mut Request) -> Verdict {
    run_level(r)
}

/// The rewrite phase; a server without locations has run its list already.
pub fn handler(r: &mut Request) -> Verdict {
    if r.location == r.server().root { Verdict::Decline } else { run_level(r) }
}

fn run_level(r: &mut Request) -> Verdict {
    let codes = r.conf().rewrite.codes.clone();
    match run(r, &codes, &mut Quoting::default()) {
        Went::Answer(v) => v,
        Went::Next | Went::Stop => Verdict::Decline,
    }
}

/// Whether captures in values are escaped as arguments are: in nginx they are until the first `rewrite` of the list
/// that matched (`ngx_http_script_engine_t`'s `quote`).
struct Quoting(bool);

impl Default for Quoting {
    fn default() -> Quoting {
        Quoting(true)
    }
}

impl Quoting {
    fn value(&self, r: &mut Request, value: &Complex) -> Text {
        if !self.0 || !is_escaped(r) || value.captures() == 0 {
            return value.eval(r);
        }
        let mut built = Vec::new();
        value.write_rewritten(r, true, true, &mut built);
        r.text(&built)
    }
}

/// Whether the uri that the client sent had escapes.
fn is_escaped(r: &Request) -> bool {
    r.head.headers.head.quoted || r.head.headers.head.plus
}

enum Went {
    Next,
    Stop,
    Answer(Verdict),
}

/// A value could not be made: the log says why.
const FAILED: Went = Went::Answer(Verdict::Status(500));

fn run(r: &mut Request, codes: &[Code], quoting: &mut Quoting) -> Went {
    for code in codes {
        match code {
            Code::Break => {
                r.flow.valid_location &= !r.flow.uri_changed;
                r.flow.uri_changed = false;
                return Went::Stop;
            }
            Code::Set { variable, hook, value } => {
                let value = quoting.value(r, value);
                if r.has_fault() {
                    return FAILED;
                }
                match hook {
                    Some(hook) => hook(r, value),
                    None => r.assign(*variable, Some(value)),
                }
            }
            Code::Make { variable, hook, args, make } => {
                let texts: Vec<Text> = args.iter().map(|arg| quoting.value(r, arg)).collect();
                let value = make(r, &texts);
                if r.has_fault() {
                    return FAILED;
                }
                match hook {
                    Some(hook) => hook(r, value.unwrap_or(Text::EMPTY)),
                    None => r.assign(*variable, value),
                }
            }
            Code::Program { variable, hook, chunk, args } => {
                let Some(value) = super::lua::set(r, chunk, args) else { return FAILED };
                match hook {
                    Some(hook) => hook(r, value),
                    None => r.assign(*variable, Some(value)),
                }
            }
            Code::Return { status, text } => {
                // The location was found by another uri than the text may name.
                r.flow.valid_location &= !r.flow.uri_changed;
                return Went::Answer(answer(r, *status, text.as_ref()));
            }
            Code::If { condition, codes, location, in_location } => {
                let holds = holds(r, condition, quoting);
                if r.has_fault() {
                    return FAILED;
                }
                if holds {
                    if *in_location {
                        r.location = *location;
                        phases::enter_location(r);
                    }
                    match run(r, codes, quoting) {
                        Went::Next => {}
                        other => return other,
                    }
                }
            }
            Code::Rewrite(rewrite) => match apply(r, rewrite, quoting) {
                Went::Next => {}
                other => return other,
            },
        }
    }
    Went::Next
}

fn answer(r: &mut Request, status: u16, text: Option<&Complex>) -> Verdict {
    match text {
        Some(text) if status >= 400 && text.is_empty() => Verdict::Status(status),
        None if status >= 400 => Verdict::Status(status),
        None => r.respond_complex(status, None, &Complex::default()),
        Some(text) => r.respond_complex(status, None, text),
    }
}

fn holds(r: &mut Request, condition: &Condition, quoting: &Quoting) -> bool {
    match condition {
        Condition::True(id) => {
            let value = r.variable(*id);
            value.is_some_and(|v| !matches!(r.get(v), b"" | b"0"))
        }
        Condition::Equal { variable, value, not } => {
            let left = r.variable(*variable).unwrap_or(Text::EMPTY);
            let right = quoting.value(r, value);
            (r.get(left) == r.get(right)) != *not
        }
        Condition::Match { variable, pattern, not } => {
            let subject = r.variable(*variable).unwrap_or(Text::EMPTY);
            // One that gives up is a fault: neither this nor its opposite holds.
            let hit = pattern.exec(r, subject).unwrap_or(false);
            if !hit {
                r.captures.clear();
            }
            hit != *not
        }
        Condition::File { path, test, not } => {
            let path = quoting.value(r, path);
            test_file(r, path, *test) != *not
        }
    }
}

fn test_file(r: &mut Request, path: Text, test: FileTest) -> bool {
    use crate::files::{self, Kind};
    use std::os::unix::ffi::OsStrExt;
    let path = r.snapshot.prefix.join(std::ffi::OsStr::from_bytes(r.get(path)));
    let path = path.as_os_str().as_bytes();
    match files::test(r, path) {
        Ok(facts) => match test {
            FileTest::File => facts.kind == Kind::File,
            FileTest::Directory => facts.kind == Kind::Directory,
            FileTest::Exists => true,
            FileTest::Executable => facts.executable,
        },
        Err(failure) => {
            if !failure.is_not_found() {
                failure.log(r, crate::log::error::Level::Crit, path);
            }
            false
        }
    }
}

/// One `rewrite` (`ngx_http_script_regex_start_code` and `..._end_code`).
fn apply(r: &mut Request, rewrite: &Rewrite, quoting: &mut Quoting) -> Went {
    let log = *r.conf().rewrite.rewrite_log;
    let Ok(hit) = rewrite.pattern.exec(r, r.head.uri) else { return FAILED };
    if !hit {
        r.captures.clear();
        if log {
            let uri = String::from_utf8_lossy(r.get(r.head.uri)).into_owned();
            log_error!(r, Notice, "\"{}\" does not match \"{uri}\"", rewrite.source);
        }
        return Went::Next;
    }
    if log {
        let uri = String::from_utf8_lossy(r.get(r.head.uri)).into_owned();
        log_error!(r, Notice, "\"{}\" matches \"{uri}\"", rewrite.source);
    }
    r.flow.internal = true;
    r.head.valid_target = false;
    r.head.plain_uri = false;
    if rewrite.stay {
        r.flow.valid_location = false;
        r.flow.uri_changed = false;
    } else {
        r.flow.uri_changed = true;
    }
    let escape_all = rewrite.redirect.is_some();
    let mut built = Vec::new();
    let escape = is_escaped(r);
    quoting.0 = false;
    let args_at = rewrite.replacement.write_rewritten(r, escape, escape_all, &mut built);
    if r.has_fault() {
        return FAILED;
    }
    if let Some(status) = rewrite.redirect {
        return redirect(r, rewrite, &built, args_at, status, log);
    }
    let old_args = r.get(r.head.args).to_vec();
    let uri = match args_at {
        Some(at) => {
            let mut args = built[at..].to_vec();
            if rewrite.add_args && !old_args.is_empty() {
                args.push(b'&');
                args.extend_from_slice(&old_args);
            }
            r.head.args = r.text(&args);
            &built[..at - 1]
        }
        None => {
            if !rewrite.add_args {
                r.head.args = Text::EMPTY;
            }
            &built[..]
        }
    };
    if uri.is_empty() {
        log_error!(r, Error, "the rewritten URI has a zero length");
        return Went::Answer(Verdict::Status(500));
    }
    r.head.uri = r.text(uri);
    if log {
        let (uri, args) = (String::from_utf8_lossy(r.get(r.head.uri)), String::from_utf8_lossy(r.get(r.head.args)));
        log_error!(r, Notice, "rewritten data: \"{uri}\", args: \"{args}\"");
    }
    if rewrite.last { Went::Stop } else { Went::Next }
}

fn redirect(r: &mut Request, rewrite: &Rewrite, built: &[u8], args_at: Option<usize>, status: u16, log: bool) -> Went {
    let mut to = Vec::with_capacity(built.len());
    let read = unescape(built, Unescape::Redirect, &mut to);
    to.extend_from_slice(&built[read..]);
    if rewrite.add_args && !r.get(r.head.args).is_empty() {
        to.push(if args_at.is_some() { b'&' } else { b'?' });
        to.extend_from_slice(r.get(r.head.args));
    }
    let to = r.text(&to);
    if log {
        log_error!(r, Notice, "rewritten redirect: \"{}\"", String::from_utf8_lossy(r.get(to)));
    }
    r.answer.headers.set(K::Location, "Location", to);
    r.flow.uri_changed = false;
    Went::Answer(Verdict::Status(status))
}
