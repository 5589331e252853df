//! The signals of nginx: their names, what is logged of them, and `-s`.
//! Used by the master and by the worker's link.

use super::ask;
use super::sys::{self, Signal};
use crate::log::error::Errno;
use crate::server_log;
use std::path::Path;

/// The signals that are read one by one and never interrupt.
pub(super) const HANDLED: [i32; 11] = [
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGWINCH,
    libc::SIGTERM,
    libc::SIGQUIT,
    libc::SIGUSR2,
    libc::SIGINT,
    libc::SIGCHLD,
    // Logged, and nothing else: they end nobody.
    libc::SIGALRM,
    libc::SIGIO,
    // A command asks for something (`ask`). Whoever does not know it is not ended by it.
    libc::SIGURG,
];

fn name(number: i32) -> &'static str {
    match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGWINCH => "SIGWINCH",
        libc::SIGTERM => "SIGTERM",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGINT => "SIGINT",
        libc::SIGCHLD => "SIGCHLD",
        libc::SIGALRM => "SIGALRM",
        libc::SIGIO => "SIGIO",
        libc::SIGURG => "SIGURG",
        _ => "unknown",
    }
}

/// Writes nginx's line about a signal.
pub(super) fn log_received(signal: Signal, action: &str) {
    let (number, name) = (signal.number, name(signal.number));
    match signal.sender {
        0 => server_log!(Notice, "signal {number} ({name}) received{action}"),
        sender => server_log!(Notice, "signal {number} ({name}) received from {sender}{action}"),
    }
}

/// The number of a `-s` word: `stop`, `quit`, `reopen`, `reload`.
pub fn number_of(word: &str) -> Option<i32> {
    Some(match word {
        "stop" => libc::SIGTERM,
        "quit" => libc::SIGQUIT,
        "reopen" => libc::SIGUSR1,
        "reload" => libc::SIGHUP,
        _ => return None,
    })
}

/// `-s word`: signals the master whose id is in `pid_file`. The reason of a failure is in the log, and on standard
/// error while that is mirrored. False: it failed, exit with 1.
pub fn send(word: &str, pid_file: &Path) -> bool {
    server_log!(Notice, "signal process started");
    let text = match std::fs::read_to_string(pid_file) {
        Ok(text) => text,
        Err(e) => {
            server_log!(Error, "open() \"{}\" failed {}", pid_file.display(), Errno(&e));
            return false;
        }
    };
    let text = text.trim_end_matches(['\r', '\n']);
    let Some(pid) = text.parse::<sys::Pid>().ok().filter(|pid| *pid > 0) else {
        server_log!(Error, "invalid PID number \"{text}\" in \"{}\"", pid_file.display());
        return false;
    };
    let Some(number) = number_of(word) else { return false };
    if number == libc::SIGHUP
        && let Some(taken) = ask::reload(pid_file)
    {
        return taken;
    }
    match sys::kill(pid, number) {
        Ok(()) => true,
        Err(e) => {
            server_log!(Alert, "kill({pid}, {number}) failed {}", Errno(&e));
            false
        }
    }
}
