//! From the command line to a running master: everything that can fail does so while standard error is still seen.
//! From: command line. To: `cycle`.

use super::cycle::{Master, Running};
use super::directories::{create_directories, prepare_for_files};
use super::sys::{self, Forked, Signals};
use super::upgrade::LINE_VARIABLE;
use super::{Options, Plan, Service, pidfile, signals, title};
use crate::listen::socket::{INHERIT_VARIABLE, Listeners, NotOpened};
use crate::log::error::{self, Errno, ErrorLog};
use crate::log::file::{Moved, OpenFiles};
use crate::process_settings::ErrorLogTarget;
use crate::server_log;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, getrlimit, setsid};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) fn run(service: &mut dyn Service, options: Options) -> ExitCode {
    let inherited_value = std::env::var(INHERIT_VARIABLE).ok();
    let old = inherited_value.as_deref().map(Listeners::inherited).unwrap_or_default();
    let files = OpenFiles::default();
    let Ok((first, _)) = prepare(service, &files, &old, 1) else { return ExitCode::FAILURE };
    // Unix sockets the new configuration lacks keep their files: the old binary may have to come back.
    drop(old);
    error::set_default_log(first.log.clone());
    announce(&options);
    let process = &first.plan.process;
    let mut parent = None;
    if inherited_value.is_none() && process.daemon {
        match daemonize() {
            Ok(waiting) => parent = Some(waiting),
            Err((step, e)) => {
                server_log!(Emerg, "{step} failed {}", Errno(&e));
                return ExitCode::FAILURE;
            }
        }
    }
    let signals = match Signals::open(&signals::HANDLED) {
        Ok(signals) => signals,
        Err(e) => {
            server_log!(Emerg, "signalfd() failed {}", Errno(&e));
            return ExitCode::FAILURE;
        }
    };
    if pidfile::write(&process.pid).is_err() {
        return ExitCode::FAILURE;
    }
    first.log.redirect_stderr();
    error::mirror_to_stderr(false);
    if process.master_process {
        title::begin(&options.arguments);
    }
    let daemonized = parent.is_some() || inherited_value.is_some();
    let predecessor = std::env::var(LINE_VARIABLE).ok().filter(|_| inherited_value.is_some());
    let predecessor = predecessor.and_then(|number| sys::inherited(number.parse().ok()?).ok());
    // What this master starts in its turn is not to have it.
    let predecessor = predecessor.filter(|line| fcntl_setfd(line, FdFlags::CLOEXEC).is_ok());
    let started = Started { inherited: inherited_value.is_some(), daemonized, predecessor, parent };
    Master::new(service, options, signals, files, first, started).run()
}

/// How this process came to be.
#[derive(Debug)]
pub(super) struct Started {
    /// Another binary handed over its sockets.
    pub(super) inherited: bool,
    /// No terminal belongs to it.
    pub(super) daemonized: bool,
    /// The line to the worker of the binary before.
    pub(super) predecessor: Option<OwnedFd>,
    /// The process that was started by hand, while it waits for how the start goes.
    pub(super) parent: Option<UnixStream>,
}

impl Started {
    /// The process that was started by hand leaves, with success or without. If it was killed meanwhile, nobody waits.
    pub(super) fn tell_parent(&mut self, outcome: Start) {
        if let Some(mut parent) = self.parent.take() {
            let _ = parent.write_all(&[outcome as u8]);
        }
    }
}

/// How a start goes, as the process that was started by hand is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Start {
    /// A worker serves, or it is tried again until one does.
    Good = b'.',
    /// No worker can serve: standard error is the log file by now, where the reason is.
    Failed = b'!',
}

/// A configuration that cannot be run. The reasons are in the log; what was open before still is.
#[derive(Debug)]
pub struct Refused;

/// Loads the configuration and opens everything it needs; changes nothing of what runs. Also the log files that are open
/// under a path which means another file by now.
pub(super) fn prepare(
    service: &mut dyn Service,
    files: &OpenFiles,
    old: &Listeners,
    generation: u64,
) -> Result<(Running, Vec<Moved>), Refused> {
    let plan = service.load().map_err(|texts| {
        texts.iter().for_each(|text| server_log!(Emerg, "{text}"));
        Refused
    })?;
    let (Prepared { plan, log, paths }, moved) = open_files(plan, files)?;
    let listeners = old.open(&plan.listens, plan.process.threads).map_err(|NotOpened| Refused)?;
    Ok((Running { generation, plan, listeners, log, paths }, moved))
}

/// A configuration with all that it needs open, but its addresses.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    pub(super) log: ErrorLog,
    /// All its log files.
    pub(super) paths: Vec<PathBuf>,
}

/// The same for a canary, from another file. It listens where the running configuration does.
pub(super) fn prepare_other(
    service: &mut dyn Service,
    file: &std::path::Path,
    files: &OpenFiles,
) -> Result<(Prepared, Vec<Moved>), Refused> {
    let plan = service.load_other(file).map_err(|texts| {
        texts.iter().for_each(|text| server_log!(Emerg, "{text}"));
        Refused
    })?;
    open_files(plan, files)
}

fn open_files(plan: Plan, files: &OpenFiles) -> Result<(Prepared, Vec<Moved>), Refused> {
    prepare_for_files(&plan.state_files, &plan.process)?;
    create_directories(&plan.directories, &plan.process)?;
    let paths = log_paths(&plan);
    let moved = open_all(&paths, files)?;
    // The files are open, so this cannot fail.
    let log = ErrorLog::open(&plan.error_logs, files).map_err(|_| Refused)?;
    Ok((Prepared { plan, log, paths }, moved))
}

/// Tries everything that a start would open, for `-t`: all that fails is logged. A server that runs notices nothing.
pub(super) fn try_out(plan: &Plan) -> Result<(), Refused> {
    let outcomes = [
        pidfile::try_out(&plan.process.pid).map_err(|_| Refused),
        prepare_for_files(&plan.state_files, &plan.process),
        create_directories(&plan.directories, &plan.process),
        open_all(&log_paths(plan), &OpenFiles::default()).map(drop),
        Listeners::try_out(&plan.listens).map_err(|NotOpened| Refused),
    ];
    outcomes.into_iter().collect()
}

/// Opens what is not open yet, and finds what was moved away meanwhile.
fn open_all(paths: &[PathBuf], files: &OpenFiles) -> Result<Vec<Moved>, Refused> {
    let mut outcome = Ok(Vec::new());
    for path in paths {
        match (files.open_anew(path), &mut outcome) {
            (Ok(moved), Ok(all)) => all.extend(moved),
            (Ok(_), Err(Refused)) => {}
            (Err(e), _) => {
                server_log!(Emerg, "open() \"{}\" failed {}", path.display(), Errno(&e));
                outcome = Err(Refused);
            }
        }
    }
    outcome
}

fn log_paths(plan: &Plan) -> Vec<PathBuf> {
    let mut paths = plan.log_files.clone();
    paths.extend(plan.error_logs.iter().filter_map(|spec| match &spec.target {
        ErrorLogTarget::File(path) => Some(path.clone()),
        _ => None,
    }));
    paths.sort();
    paths.dedup();
    paths
}

/// The notices nginx writes at start.
fn announce(options: &Options) {
    let system = |name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    server_log!(Notice, "{}", options.version);
    server_log!(Notice, "OS: {} {}", system("ostype").trim_end(), system("osrelease").trim_end());
    let limit = getrlimit(Resource::Nofile);
    let show = |value: Option<u64>| value.map_or("unlimited".to_owned(), |value| value.to_string());
    server_log!(Notice, "getrlimit(RLIMIT_NOFILE): {}:{}", show(limit.current), show(limit.maximum));
}

/// Goes on in a new process without a terminal. The old one exits when the new one writes a byte to the stream
/// that is returned (0), or ends without (1).
fn daemonize() -> Result<UnixStream, (&'static str, io::Error)> {
    let (mut waiting, child_end) = UnixStream::pair().map_err(|e| ("socketpair()", e))?;
    if let Forked::Parent(_) = sys::fork().map_err(|e| ("fork()", e))? {
        drop(child_end);
        let mut outcome = [0];
        let is_told = waiting.read(&mut outcome).unwrap_or(0) == 1;
        if is_told && outcome[0] == Start::Failed as u8 {
            eprintln!("ironweir: [emerg] no worker process can serve, the error log says why");
        }
        std::process::exit(i32::from(outcome[0] != Start::Good as u8));
    }
    setsid().map_err(|e| ("setsid()", e.into()))?;
    rustix::process::umask(rustix::fs::Mode::empty());
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let null = OwnedFd::from(null.map_err(|e| ("open(\"/dev/null\")", e))?);
    sys::replace(io::stdin().as_fd(), null.as_fd()).map_err(|e| ("dup2(STDIN)", e))?;
    sys::replace(io::stdout().as_fd(), null.as_fd()).map_err(|e| ("dup2(STDOUT)", e))?;
    Ok(child_end)
}
