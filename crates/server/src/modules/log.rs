//! The access log (nginx's `ngx_http_log_module`): formats, targets, conditions. Lines of a loop turn leave together.

use crate::config::complex::Complex;
use crate::config::set::duplicate;
use crate::config::{Build, Directive, Level, Scope, http};
use crate::log::file::LogFile;
use crate::log::syslog::{self, Syslog};
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use conf::{Node, Problem};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A thread's lines for one file are written when they reach this size, or at the end of the loop turn.
const TURN_BUFFER: usize = 64 * 1024;
/// The format called `combined`.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                        \"$http_referer\" \"$http_user_agent\"";

pub const DIRECTIVES: &[Directive] = &[http("log_format", log_format), http("access_log", access_log)];

/// `log_format`s by name.
#[derive(Debug, Default)]
pub struct Main {
    formats: HashMap<Vec<u8>, Arc<Format>>,
}

/// The logs of one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    logs: Vec<Arc<AccessLog>>,
    off: bool,
}

impl Conf {
    /// A level without `access_log` has its parent's.
    pub fn merge(&mut self, parent: &Conf) {
        if self.logs.is_empty() && !self.off {
            self.clone_from(parent);
        }
    }

    /// The files that the logs need.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.logs.iter().filter_map(|l| match &l.target {
            Target::File(path) => Some(path),
            _ => None,
        })
    }
}

/// One `access_log`.
#[derive(Debug)]
struct AccessLog {
    target: Target,
    format: Arc<Format>,
    condition: Option<Complex>,
}

#[derive(Debug)]
enum Target {
    File(PathBuf),
    Syslog(Arc<Syslog>),
}

/// A compiled `log_format`.
#[derive(Debug)]
pub struct Format {
    parts: Vec<Part>,
    escape: Escape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    Default,
    Json,
    None,
}

#[derive(Debug)]
enum Part {
    Text(Box<[u8]>),
    Variable(VariableId),
}

fn log_format(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = &node.args[0];
    if scope.build.main.log.formats.contains_key(&name.text) {
        return Err(node.problem(format!("duplicate \"log_format\" name \"{}\"", name.as_str())));
    }
    let mut words = &node.args[1..];
    let mut escape = Escape::Default;
    if let Some(kind) = words[0].text.strip_prefix(b"escape=") {
        escape = match kind {
            b"default" => Escape::Default,
            b"json" => Escape::Json,
            b"none" => Escape::None,
            other => {
                let other = String::from_utf8_lossy(other).into_owned();
                return Err(node.problem(format!("unknown log format escaping \"{other}\"")));
            }
        };
        words = &words[1..];
    }
    let text: Vec<u8> = words.iter().flat_map(|w| w.text.iter().copied()).collect();
    let format = compile(scope.build, &text, escape).map_err(|t| node.problem(t))?;
    scope.build.main.log.formats.insert(name.text.clone(), Arc::new(format));
    Ok(())
}

fn compile(build: &mut Build<'_>, text: &[u8], escape: Escape) -> Result<Format, String> {
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
        let braced = text.get(at) == Some(&b'{');
        at += braced as usize;
        let start = at;
        while at < text.len() && (text[at].is_ascii_alphanumeric() || text[at] == b'_') {
            at += 1;
        }
        let name = &text[start..at];
        if braced {
            if text.get(at) != Some(&b'}') {
                let name = String::from_utf8_lossy(name);
                return Err(format!("the closing bracket in \"{name}\" variable is missing"));
            }
            at += 1;
        }
        if name.is_empty() {
            let rest = String::from_utf8_lossy(text).into_owned();
            return Err(format!("invalid parameter \"{rest}\""));
        }
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal).into()));
        }
        parts.push(Part::Variable(build.variables.index(name)));
    }
    if !literal.is_empty() {
        parts.push(Part::Text(literal.into()));
    }
    Ok(Format { parts, escape })
}

fn access_log(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = node.args[0].as_str().into_owned();
    if word == "off" && node.args.len() == 1 {
        if scope.level.conf.log.off || !scope.level.conf.log.logs.is_empty() {
            return Err(duplicate(node));
        }
        scope.level.conf.log.off = true;
        return Ok(());
    }
    let target = if let Some(parameters) = word.strip_prefix("syslog:") {
        let spec = syslog::parse(parameters, super::process::resolve_syslog).map_err(|t| node.problem(t))?;
        Target::Syslog(Arc::new(Syslog::new(spec)))
    } else {
        Target::File(scope.build.full_path(&node.args[0].text))
    };
    let mut format = None;
    let mut condition = None;
    for word in &node.args[1..] {
        let text = word.as_str();
        if let Some(rest) = text.strip_prefix("if=") {
            condition = Some(Complex::compile_bytes(scope.build, rest.as_bytes()).map_err(|t| node.problem(t))?);
        } else if format.is_none() {
            format = Some(named(scope.build, &word.text).ok_or_else(|| {
                node.problem(format!("unknown log format \"{text}\""))
            })?);
        } else {
            return Err(node.problem(format!("invalid parameter \"{text}\"")));
        }
    }
    let format = match format {
        Some(f) => f,
        None => named(scope.build, b"combined").expect("combined is always known"),
    };
    scope.level.conf.log.logs.push(Arc::new(AccessLog { target, format, condition }));
    Ok(())
}

fn named(build: &mut Build<'_>, name: &[u8]) -> Option<Arc<Format>> {
    if let Some(f) = build.main.log.formats.get(name) {
        return Some(f.clone());
    }
    if name != b"combined" {
        return None;
    }
    let f = Arc::new(compile(build, COMBINED.as_bytes(), Escape::Default).expect("the built-in format compiles"));
    build.main.log.formats.insert(name.to_vec(), f.clone());
    Some(f)
}

/// Without any `access_log` there is one: `logs/access.log`, combined.
pub fn finish_http(build: &mut Build<'_>, level: &mut Level) {
    let conf = &mut level.conf.log;
    if conf.logs.is_empty() && !conf.off {
        let format = named(build, b"combined").expect("combined is always known");
        let target = Target::File(build.full_path(b"logs/access.log"));
        conf.logs.push(Arc::new(AccessLog { target, format, condition: None }));
    }
}

thread_local! {
    static TURN: RefCell<Vec<(Arc<LogFile>, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// Writes the request's lines.
pub fn write(r: &mut Request) {
    if std::mem::replace(&mut r.logged, true) {
        return;
    }
    let shot = r.shot.clone();
    for log in &shot.location(r.location).conf.log.logs {
        if let Some(condition) = &log.condition
            && !condition.is_true(r)
        {
            continue;
        }
        let mut line = std::mem::take(&mut r.scratch);
        line.clear();
        format(r, &log.format, &mut line);
        match &log.target {
            Target::File(path) => {
                line.push(b'\n');
                if let Some(file) = shot.log_files.get(path) {
                    append(file, &line);
                }
            }
            Target::Syslog(syslog) => syslog.send(&line),
        }
        r.scratch = line;
    }
}

fn append(file: &Arc<LogFile>, line: &[u8]) {
    TURN.with_borrow_mut(|turn| {
        let index = match turn.iter().position(|(f, _)| Arc::ptr_eq(f, file)) {
            Some(i) => i,
            None => {
                turn.push((file.clone(), Vec::new()));
                turn.len() - 1
            }
        };
        let (file, buffer) = &mut turn[index];
        buffer.extend_from_slice(line);
        if buffer.len() >= TURN_BUFFER {
            let _ = file.append(buffer, crate::worker::clock::wall_seconds());
            buffer.clear();
        }
    });
}

/// Writes what the thread collected in this loop turn.
pub fn end_of_turn() {
    let _ = TURN.try_with(|turn| {
        for (file, buffer) in turn.borrow_mut().iter_mut().filter(|(_, b)| !b.is_empty()) {
            let _ = file.append(buffer, crate::worker::clock::wall_seconds());
            buffer.clear();
        }
    });
}

/// Lets go of the files of a former snapshot.
pub fn forget_files() {
    end_of_turn();
    TURN.with_borrow_mut(Vec::clear);
}

fn format(r: &mut Request, format: &Format, out: &mut Vec<u8>) {
    for part in &format.parts {
        match part {
            Part::Text(t) => out.extend_from_slice(t),
            Part::Variable(id) => {
                let value = r.variable(*id);
                write_value(r, value, format.escape, out);
            }
        }
    }
}

fn write_value(r: &Request, value: Option<Text>, escape: Escape, out: &mut Vec<u8>) {
    let Some(value) = value else {
        if escape == Escape::Default {
            out.push(b'-');
        }
        return;
    };
    let bytes = r.get(value);
    match escape {
        Escape::None => out.extend_from_slice(bytes),
        Escape::Json => wire::http1::escape::escape_json(bytes, out),
        Escape::Default => escape_default(bytes, out),
    }
}

/// `"`, `\` and bytes outside printable ASCII become `\xXX` (`ngx_http_log_escape`).
fn escape_default(bytes: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &b in bytes {
        if b < 0x20 || b >= 0x7f || b == b'"' || b == b'\\' {
            out.extend_from_slice(&[b'\\', b'x', HEX[(b >> 4) as usize], HEX[(b & 15) as usize]]);
        } else {
            out.push(b);
        }
    }
}
