//! The error log: `2026/11/20 20:41:09 [error] pid#tid: *connection text`, to files, standard error and syslog.
//! Used by everything. A line is one write; a level nobody wants costs one comparison.

use crate::log::captured;
use crate::log::file::{LogFile, OpenFiles};
use crate::log::floods;
use crate::log::memory::MemoryLog;
use crate::log::syslog::Syslog;
use crate::master::sys;
use crate::process_settings::{ErrorLogSpec, ErrorLogTarget};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// Longest line in bytes, its end included (nginx's `NGX_MAX_ERROR_STR`).
pub const MAX_LINE: usize = 2048;

/// Severity of a line, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Nothing is less severe than this: a log of this level writes nothing.
    Stderr,
    /// The server cannot run.
    Emerg,
    /// Something that must not happen did.
    Alert,
    /// A system call failed that should not.
    Crit,
    /// A request could not be served.
    Error,
    /// Worth a look.
    Warn,
    /// Normal but significant: starts, signals, ends.
    Notice,
    /// What clients did.
    Info,
    /// For those who look for a fault.
    Debug,
}

impl Level {
    /// nginx's name.
    pub fn name(self) -> &'static str {
        ["stderr", "emerg", "alert", "crit", "error", "warn", "notice", "info", "debug"][self as usize]
    }

    /// Reads a name of the `error_log` directive; `debug_http` and its like are debug.
    pub fn from_name(name: &str) -> Option<Level> {
        Some(match name {
            "emerg" => Level::Emerg,
            "alert" => Level::Alert,
            "crit" => Level::Crit,
            "error" => Level::Error,
            "warn" => Level::Warn,
            "notice" => Level::Notice,
            "info" => Level::Info,
            "debug" | "debug_core" | "debug_alloc" | "debug_mutex" | "debug_event" | "debug_http" | "debug_mail"
            | "debug_stream" => Level::Debug,
            _ => return None,
        })
    }

    /// The one of nginx's number.
    pub fn of_number(number: i64) -> Option<Level> {
        use Level::{Alert, Crit, Debug, Emerg, Error, Info, Notice, Stderr, Warn};
        let all = [Stderr, Emerg, Alert, Crit, Error, Warn, Notice, Info, Debug];
        usize::try_from(number).ok().and_then(|number| all.get(number).copied())
    }

    /// RFC 3164 severity.
    fn syslog(self) -> u8 {
        (self as u8).saturating_sub(1)
    }
}

/// Where lines of one place in the configuration go. A clone is the same log.
#[derive(Clone, Debug)]
pub struct ErrorLog {
    log: Arc<Targets>,
}

#[derive(Debug)]
struct Targets {
    /// The least severe level any target takes.
    level: Level,
    targets: Vec<(Level, Target)>,
}

#[derive(Debug)]
enum Target {
    File(Arc<LogFile>),
    Stderr,
    Syslog(Arc<Syslog>),
    Memory(Arc<MemoryLog>),
}

impl Default for ErrorLog {
    /// A log that takes nothing, until the real one is opened.
    fn default() -> ErrorLog {
        static NONE: LazyLock<ErrorLog> = LazyLock::new(|| ErrorLog::of(Vec::new()));
        NONE.clone()
    }
}

impl ErrorLog {
    /// The log `specs` describe; files are taken from (or opened in) `files`. The error names the path.
    pub fn open(specs: &[ErrorLogSpec], files: &OpenFiles) -> Result<ErrorLog, (PathBuf, io::Error)> {
        let mut targets = Vec::with_capacity(specs.len());
        for spec in specs {
            let target = match &spec.target {
                ErrorLogTarget::File(path) => Target::File(files.open(path).map_err(|e| (path.clone(), e))?),
                ErrorLogTarget::Stderr => Target::Stderr,
                ErrorLogTarget::Syslog(spec) => Target::Syslog(Arc::new(Syslog::new(spec.clone()))),
                ErrorLogTarget::Memory(size) => {
                    Target::Memory(Arc::new(MemoryLog::open(*size).map_err(|e| ("memory".into(), e))?))
                }
            };
            targets.push((spec.level, target));
        }
        Ok(ErrorLog::of(targets))
    }

    /// A log to standard error alone.
    pub fn stderr(level: Level) -> ErrorLog {
        ErrorLog::of(vec![(level, Target::Stderr)])
    }

    /// A log to one file at level notice: `-e`, before the configuration is read. Standard error where that fails.
    pub fn initial(path: Option<&Path>) -> ErrorLog {
        let Some(path) = path else { return ErrorLog::stderr(Level::Notice) };
        match LogFile::open(path) {
            Ok(file) => ErrorLog::of(vec![(Level::Notice, Target::File(Arc::new(file)))]),
            Err(e) => {
                eprintln!(
                    "nginx: [alert] could not open error log file: open() \"{}\" failed {}",
                    path.display(),
                    Errno(&e)
                );
                ErrorLog::stderr(Level::Notice)
            }
        }
    }

    fn of(targets: Vec<(Level, Target)>) -> ErrorLog {
        let level = targets.iter().map(|(level, _)| *level).max().unwrap_or(Level::Stderr);
        ErrorLog { log: Arc::new(Targets { level, targets }) }
    }

    /// Whether a line of `level` would be written anywhere.
    #[inline]
    pub fn enabled(&self, level: Level) -> bool {
        level <= self.log.level
    }

    /// Writes one line, with the number of the connection it is about.
    #[cold]
    pub fn write(&self, level: Level, connection: Option<u64>, message: fmt::Arguments<'_>) {
        if !self.enabled(level) {
            return;
        }
        if let (Level::Info, Some(number)) = (level, connection) {
            match floods::count(number, message, now()) {
                floods::Count::Few => {}
                floods::Count::Many => return,
                floods::Count::Over(number, left_out) => self.put(
                    level,
                    Some(number),
                    format_args!("{left_out} more lines of one kind about this connection were left out"),
                    level,
                ),
            }
        }
        self.put(level, connection, message, level);
    }

    /// Writes one line to all targets, whatever their levels: for clients named by `debug_connection`.
    #[cold]
    pub fn write_to_all(&self, level: Level, connection: Option<u64>, message: fmt::Arguments<'_>) {
        self.put(level, connection, message, Level::Stderr);
    }

    /// Writes a line of `level` to the targets that take lines of level `reach`.
    fn put(&self, level: Level, connection: Option<u64>, message: fmt::Arguments<'_>, reach: Level) {
        let mut line = Line { bytes: [0; MAX_LINE], len: 0 };
        let second = now();
        line.push(&time_text(second));
        // As nginx, whose table of names has none for this.
        let label = if level == Level::Stderr { "" } else { level.name() };
        let _ = write!(line, " [{label}] {}#{}: ", pid(), tid());
        if let Some(number) = connection {
            let _ = write!(line, "*{number} ");
        }
        let start = line.len;
        let _ = line.write_fmt(message);
        let text = line.end();
        captured::note(level, text);
        let mut on_stderr = false;
        for (_, target) in self.log.targets.iter().filter(|(wanted, _)| reach <= *wanted) {
            match target {
                Target::File(file) => drop(file.append(text, second)),
                Target::Memory(log) => log.append(text),
                Target::Syslog(log) => log.send_with(level.syslog(), &text[..text.len() - 1]),
                Target::Stderr => {
                    on_stderr = true;
                    drop(io::stderr().write(text));
                }
            }
        }
        if level <= Level::Warn && !on_stderr && MIRROR.load(Ordering::Relaxed) {
            console(level, &text[start..]);
        }
    }

    /// Makes standard error write to the first file, so that a panic's text is found there.
    pub(crate) fn redirect_stderr(&self) {
        if STDERR_WANTED.load(Ordering::Relaxed) {
            return;
        }
        let file = self.log.targets.iter().find_map(|(_, target)| match target {
            Target::File(file) => Some(file),
            _ => None,
        });
        if let Some(file) = file {
            let _ = sys::replace(io::stderr().as_fd(), file.as_fd());
        }
    }
}

/// Notes that the configuration names standard error (nginx's `log_use_stderr`).
pub fn keep_stderr() {
    STDERR_WANTED.store(true, Ordering::Relaxed);
}

/// A line under way: what exceeds the limit is cut.
struct Line {
    bytes: [u8; MAX_LINE],
    len: usize,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(MAX_LINE - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }

    fn end(&mut self) -> &[u8] {
        self.bytes[self.len] = b'\n';
        &self.bytes[..=self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

fn console(level: Level, text: &[u8]) {
    let mut line = Line { bytes: [0; MAX_LINE], len: 0 };
    let _ = write!(line, "nginx: [{}] ", level.name());
    line.push(text.strip_suffix(b"\n").unwrap_or(text));
    let _ = io::stderr().write(line.end());
}

/// The system's error as nginx writes it: `(98: Address already in use)`.
#[derive(Debug)]
pub struct Errno<'a>(pub &'a io::Error);

impl fmt::Display for Errno<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match self.0.raw_os_error() {
            Some(number) => {
                let end = text.rfind(" (os error").unwrap_or(text.len());
                write!(f, "({number}: {})", &text[..end])
            }
            None => write!(f, "({text})"),
        }
    }
}

static DEFAULT: LazyLock<RwLock<ErrorLog>> = LazyLock::new(|| RwLock::new(ErrorLog::stderr(Level::Notice)));
static DEFAULT_LEVEL: AtomicU8 = AtomicU8::new(Level::Notice as u8);
/// Some `error_log` of the configuration writes to standard error: it stays what it was when the server was started.
static STDERR_WANTED: AtomicBool = AtomicBool::new(false);
static MIRROR: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);

/// The log of the main level of the configuration.
pub fn default_log() -> ErrorLog {
    DEFAULT.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Replaces the main log, at start and on reload.
pub fn set_default_log(log: ErrorLog) {
    DEFAULT_LEVEL.store(log.log.level as u8, Ordering::Relaxed);
    *DEFAULT.write().unwrap_or_else(PoisonError::into_inner) = log;
}

/// Whether the main log takes lines of `level`; asks without a lock.
#[inline]
pub fn default_enabled(level: Level) -> bool {
    level as u8 <= DEFAULT_LEVEL.load(Ordering::Relaxed)
}

/// While on, lines of level warn and above are also shown on standard error as `nginx: [emerg] text`: until the start is over.
pub fn mirror_to_stderr(on: bool) {
    MIRROR.store(on, Ordering::Relaxed);
}

/// Writes a line to the main log: `server_log!(Notice, "start {}", name)`.
#[macro_export]
macro_rules! server_log {
    ($level:ident, $($message:tt)*) => {
        if $crate::log::error::default_enabled($crate::log::error::Level::$level) {
            $crate::log::error::default_log().write($crate::log::error::Level::$level, None, format_args!($($message)*));
        }
    };
}

/// Writes a line about a connection: `error_log!(log, Info, number, "client closed {}", what)`.
#[macro_export]
macro_rules! error_log {
    ($log:expr, $level:ident, $connection:expr, $($message:tt)*) => {{
        let log: &$crate::log::error::ErrorLog = &$log;
        if log.enabled($crate::log::error::Level::$level) {
            log.write($crate::log::error::Level::$level, Some($connection), format_args!($($message)*));
        }
    }};
}

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
    static TIME: Cell<(i64, [u8; 19])> = const { Cell::new((i64::MIN, [0; 19])) };
}

/// The child of a fork has another process and thread id.
pub(crate) fn after_fork() {
    PID.store(std::process::id(), Ordering::Relaxed);
    TID.set(sys::thread_id());
}

fn pid() -> u32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            PID.store(std::process::id(), Ordering::Relaxed);
            std::process::id()
        }
        pid => pid,
    }
}

fn tid() -> u32 {
    if TID.get() == 0 {
        TID.set(sys::thread_id());
    }
    TID.get()
}

/// Seconds since 1970 of the coarse clock.
pub(crate) fn now() -> i64 {
    clock_gettime(ClockId::RealtimeCoarse).tv_sec
}

/// `YYYY/MM/DD HH:MM:SS` in local time, formatted once a second and thread.
fn time_text(second: i64) -> [u8; 19] {
    let (at, text) = TIME.get();
    if at == second {
        return text;
    }
    let text = wire::date::format_error_log(second, sys::local_time(second).offset_minutes);
    TIME.set((second, text));
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "error_tests.rs"]
mod tests;
