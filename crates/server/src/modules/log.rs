//! The access log (nginx's `ngx_http_log_module`): formats, targets, conditions. What becomes of the lines is in
//! `log::lines` (files), `log::opened` (files named by variables) and `log::syslog`.

use super::log_format::{Escape, Format};
use super::root;
use crate::config::complex::Complex;
use crate::config::setters::duplicate;
use crate::config::setting::Setting;
use crate::config::{Build, ConfigLevel, Directive, Scope, both};
use crate::log::lines::{self, Buffering, LineFile};
use crate::log::opened::CacheSpec;
use crate::log::syslog::{self, Syslog};
use crate::log_error;
use crate::request::Request;
use crate::snapshot::ThreadSnapshot;
use conf::{Contexts, Node, Problem, Word, value};
use runtime::clock;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The format called `combined`.
const COMBINED: &[u8] = b"$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                          \"$http_referer\" \"$http_user_agent\"";
/// `buffer=` where only `gzip` is given.
const GZIP_BUFFER: usize = 64 * 1024;

/// The directives.
pub const DIRECTIVES: &[Directive] =
    &[both("log_format", log_format), both("access_log", access_log), both("open_log_file_cache", open_log_file_cache)];

/// What all levels share.
#[derive(Debug, Default)]
pub struct Main {
    formats: Vec<(Vec<u8>, Arc<Format>)>,
    /// The files that access logs write to.
    pub files: Vec<LineFile>,
    /// The log of servers that name none.
    default: Option<Arc<AccessLog>>,
    /// How many `open_log_file_cache`s there are.
    caches: usize,
}

/// The logs of one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    logs: Vec<Arc<AccessLog>>,
    off: bool,
    cache: Setting<Option<Arc<CacheSpec>>>,
}

impl Conf {
    /// A line is written somewhere.
    pub fn is_on(&self) -> bool {
        !self.off && !self.logs.is_empty()
    }

    /// A level without `access_log` has its parent's.
    pub fn merge(&mut self, parent: &Conf) {
        self.cache.inherit(&parent.cache);
        if self.logs.is_empty() && !self.off {
            self.logs.clone_from(&parent.logs);
            self.off = parent.off;
        }
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
    /// Index in `Main::files`.
    File(usize),
    /// A path with variables.
    Path(Complex),
    Syslog(Arc<Syslog>),
}

fn log_format(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = &node.args[0];
    let formats = &scope.build.main.log.formats;
    let reserved = name.text == b"combined" && !scope.build.subsystem.is_stream();
    if reserved || formats.iter().any(|(n, _)| *n == name.text) {
        return Err(node.problem(format!("duplicate \"log_format\" name \"{}\"", name.as_str())));
    }
    let mut words = &node.args[1..];
    let mut escape = Escape::default();
    if let Some(kind) = words[0].text.strip_prefix(b"escape=") {
        let unknown = || format!("unknown log format escaping \"{}\"", String::from_utf8_lossy(kind));
        escape = Escape::named(kind).ok_or_else(|| node.problem(unknown()))?;
        words = &words[1..];
    }
    let mut format = Format::new(escape);
    for word in words {
        format.add(scope.build, &word.text).map_err(|t| node.problem(t))?;
    }
    scope.build.main.log.formats.push((name.text.clone(), Arc::new(format)));
    Ok(())
}

fn access_log(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if node.args[0].text == b"off" {
        scope.level.conf.log.off = true;
        return match node.args.get(1) {
            Some(more) => Err(node.problem(format!("invalid parameter \"{}\"", more.as_str()))),
            None => Ok(()),
        };
    }
    let target = target(scope.build, node)?;
    let format = match node.args.get(1) {
        None if scope.build.subsystem.is_stream() => return Err(node.problem("log format is not specified".to_owned())),
        None => named(scope.build, b"combined"),
        Some(word) => named(scope.build, &word.text),
    };
    let Some(format) = format else {
        return Err(node.problem(format!("unknown log format \"{}\"", node.args[1].as_str())));
    };
    let mut options = Options::default();
    for word in node.args.iter().skip(2) {
        options.read(scope.build, word).map_err(|t| node.problem(t))?;
    }
    options.apply(scope.build, &target, &node.args[0]).map_err(|t| node.problem(t))?;
    scope.level.conf.log.logs.push(Arc::new(AccessLog { target, format, condition: options.condition }));
    Ok(())
}

fn target(build: &mut Build<'_>, node: &Node) -> Result<Target, Problem> {
    let word = &node.args[0];
    if let Some(parameters) = word.text.strip_prefix(b"syslog:") {
        let parameters = String::from_utf8_lossy(parameters);
        let spec = syslog::parse(&parameters, super::process::resolve_syslog).map_err(|t| node.problem(t))?;
        return Ok(Target::Syslog(Arc::new(Syslog::new(spec))));
    }
    let path = build.full_path(&word.text);
    if memchr::memchr(b'$', &word.text).is_none() {
        return Ok(Target::File(file_number(build, path)));
    }
    use std::os::unix::ffi::OsStrExt;
    let path = Complex::compile_bytes(build, path.as_os_str().as_bytes()).map_err(|t| node.problem(t))?;
    Ok(Target::Path(path))
}

fn file_number(build: &mut Build<'_>, path: PathBuf) -> usize {
    lines::number_of(&mut build.main.log.files, path)
}

/// What may follow the format's name.
#[derive(Default)]
struct Options {
    size: usize,
    flush: Option<Duration>,
    gzip: Option<u32>,
    condition: Option<Complex>,
}

impl Options {
    fn read(&mut self, build: &mut Build<'_>, word: &Word) -> Result<(), String> {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        if let Some(text) = word.text.strip_prefix(b"buffer=") {
            let size = value::size(text).filter(|n| *n > 0);
            self.size = size.ok_or_else(|| format!("invalid buffer size \"{}\"", shown(text)))? as usize;
        } else if let Some(text) = word.text.strip_prefix(b"flush=") {
            let time = value::milliseconds(text).filter(|n| *n > 0);
            let time = time.ok_or_else(|| format!("invalid flush time \"{}\"", shown(text)))?;
            self.flush = Some(Duration::from_millis(time));
        } else if word.text == b"gzip" || word.text.starts_with(b"gzip=") {
            if self.size == 0 {
                self.size = GZIP_BUFFER;
            }
            self.gzip = Some(match word.text.get(5..) {
                None => 1,
                Some(text) => match value::number(text) {
                    Some(level @ 1..=9) => level as u32,
                    _ => return Err(format!("invalid compression level \"{}\"", shown(text))),
                },
            });
        } else if let Some(text) = word.text.strip_prefix(b"if=") {
            self.condition = Some(Complex::compile_bytes(build, text)?);
        } else {
            return Err(format!("invalid parameter \"{}\"", word.as_str()));
        }
        Ok(())
    }

    /// The buffer belongs to the file: all logs that name it share it.
    fn apply(&self, build: &mut Build<'_>, target: &Target, word: &Word) -> Result<(), String> {
        if self.size == 0 {
            return match self.flush {
                Some(_) => Err(format!("no buffer is defined for access_log \"{}\"", word.as_str())),
                None => Ok(()),
            };
        }
        let file = match target {
            Target::File(number) => &mut build.main.log.files[*number],
            Target::Path(_) => return Err("buffered logs cannot have variables in name".to_owned()),
            Target::Syslog(_) => return Err("logs to syslog cannot be buffered".to_owned()),
        };
        let buffering = Buffering { size: self.size, flush: self.flush, gzip: self.gzip };
        if file.buffering.replace(buffering).is_some_and(|b| b != buffering) {
            let text = format!("access_log \"{}\" already defined with conflicting parameters", word.as_str());
            return Err(text);
        }
        Ok(())
    }
}

fn named(build: &mut Build<'_>, name: &[u8]) -> Option<Arc<Format>> {
    let formats = &build.main.log.formats;
    if let Some((_, format)) = formats.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
        return Some(format.clone());
    }
    if build.subsystem.is_stream() || !name.eq_ignore_ascii_case(b"combined") {
        return None;
    }
    let mut format = Format::new(Escape::Default);
    format.add(build, COMBINED).expect("the built-in format compiles");
    let format = Arc::new(format);
    build.main.log.formats.push((b"combined".to_vec(), format.clone()));
    Some(format)
}

fn open_log_file_cache(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.log.cache.is_set() {
        return Err(duplicate(node));
    }
    let mut spec = CacheSpec { index: scope.build.main.log.caches, max: 0, inactive: 10, valid: 60, min_uses: 1 };
    let mut off = false;
    for word in &node.args {
        let (name, text) = match memchr::memchr(b'=', &word.text) {
            Some(at) => (&word.text[..at], &word.text[at + 1..]),
            None => (&word.text[..], &b""[..]),
        };
        let read = match name {
            b"max" => value::number(text).map(|n| spec.max = n as usize),
            b"inactive" => value::seconds(text).map(|n| spec.inactive = n),
            b"min_uses" => value::number(text).map(|n| spec.min_uses = n),
            b"valid" => value::seconds(text).map(|n| spec.valid = n),
            b"off" if word.text == b"off" => {
                off = true;
                Some(())
            }
            _ => None,
        };
        if read.is_none() {
            let text = format!("invalid \"open_log_file_cache\" parameter \"{}\"", word.as_str());
            return Err(node.problem(text));
        }
    }
    if !off && spec.max == 0 {
        return Err(node.problem("\"open_log_file_cache\" must have \"max\" parameter".to_owned()));
    }
    scope.build.main.log.caches += 1;
    scope.level.conf.log.cache.force((!off).then(|| Arc::new(spec)));
    Ok(())
}

/// A server without any `access_log` has one: `logs/access.log`, combined.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    let conf = &mut level.conf.log;
    if !level.context.intersects(Contexts::SERVER) || !conf.logs.is_empty() || conf.off {
        return;
    }
    let log = build.main.log.default.clone().unwrap_or_else(|| {
        let format = named(build, b"combined").expect("combined is always known");
        let path = build.full_path(b"logs/access.log");
        let target = Target::File(file_number(build, path));
        Arc::new(AccessLog { target, format, condition: None })
    });
    build.main.log.default = Some(log.clone());
    conf.logs.push(log);
}

/// A part of a line, for who reads lines (`plan`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A text.
    Text(Box<[u8]>),
    /// A variable by its name; empty: one that says nothing of where a request goes.
    Variable(Box<str>),
}

/// A file that requests are logged to, and the form of its lines.
#[derive(Debug)]
pub struct Readable {
    /// The file.
    pub path: PathBuf,
    /// A line.
    pub shape: Vec<Shape>,
    /// The server whose requests alone are in it, by its name; none: several servers'.
    pub server: Option<Box<[u8]>>,
}

/// The files of a configuration's access logs, each once, in the form that the first server has that uses it.
pub fn readable(snapshot: &crate::snapshot::Snapshot) -> Vec<Readable> {
    let mut all: Vec<(usize, Readable)> = Vec::new();
    for server in &snapshot.servers {
        for log in &snapshot.location(server.root).conf.log.logs {
            let Target::File(number) = &log.target else { continue };
            match all.iter_mut().find(|(n, _)| n == number) {
                Some((_, known)) => known.server = known.server.take().filter(|name| *name == server.name),
                None => {
                    let path = snapshot.main.log.files[*number].path.clone();
                    let shape = log.format.shape(&snapshot.variables);
                    all.push((*number, Readable { path, shape, server: Some(server.name.clone()) }));
                }
            }
        }
    }
    all.into_iter().map(|(_, readable)| readable).collect()
}

/// Writes the request's lines.
pub fn logger(r: &mut Request) {
    if std::mem::replace(&mut r.flow.logged, true) {
        return;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.log;
    if conf.off {
        return;
    }
    for log in &conf.logs {
        if let Some(condition) = &log.condition
            && !condition.is_true(r)
        {
            continue;
        }
        match &log.target {
            Target::File(number) => {
                let mut bytes = snapshot.lines.take(*number);
                let start = bytes.len();
                log.format.write(r, &mut bytes);
                bytes.push(b'\n');
                lines::add(&snapshot, *number, bytes, start);
            }
            Target::Path(path) => write_to_path(r, &snapshot, log, path, conf.cache.as_deref()),
            Target::Syslog(syslog) => {
                let mut line = std::mem::take(&mut r.scratch);
                line.clear();
                log.format.write(r, &mut line);
                syslog.send(&line);
                r.scratch = line;
            }
        }
    }
}

/// A path with variables could be led anywhere: lines are written only while the request's root is there
/// (`ngx_http_log_script_write`).
fn write_to_path(
    r: &mut Request,
    snapshot: &Rc<ThreadSnapshot>,
    log: &AccessLog,
    path: &Complex,
    cache: Option<&CacheSpec>,
) {
    if r.ctx.stream.is_none() && !has_root(r) {
        return;
    }
    let path = path.eval(r);
    let mut line = std::mem::take(&mut r.scratch);
    line.clear();
    log.format.write(r, &mut line);
    line.push(b'\n');
    let now = clock::monotonic_ms() / 1000;
    if let Err((call, e)) = snapshot.lines.opened.append(cache, r.get(path), &line, now) {
        let (path, e) = (String::from_utf8_lossy(r.get(path)), crate::log::os_error(&e.into()));
        if call == "write()" {
            log_error!(r, Alert, "{call} to \"{path}\" failed ({e})");
        } else {
            log_error!(r, Crit, "{call} \"{path}\" failed ({e})");
        }
    }
    r.scratch = line;
}

fn has_root(r: &mut Request) -> bool {
    let root = root::document_root(r);
    let error = match rustix::fs::stat(r.get(root)) {
        Ok(s) if rustix::fs::FileType::from_raw_mode(s.st_mode).is_dir() => return true,
        Ok(_) => rustix::io::Errno::NOTDIR,
        Err(e) => e,
    };
    let (root, e) = (String::from_utf8_lossy(r.get(root)), crate::log::os_error(&error.into()));
    log_error!(r, Error, "testing \"{root}\" existence failed ({e})");
    false
}
