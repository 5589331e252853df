//! A process of its own that puts back what a command changes for a while (weights, settings): when the command is done, when it is killed, and
//! when it says nothing for too long. From: `redline`, `tune`. Each side knows what is put back, this file does not.
//!
//! ```text
//! command ──the order (a line of JSON), then notes now and then──> guard ── end of the pipe, or silence ──> puts back
//! ```

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, StdinLock, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The longest order that is read: weights of thousands of servers.
const MOST_BYTES: u64 = 1 << 20;

/// The process, from the command's side.
pub(crate) struct Guard(Child);

impl Guard {
    /// Starts `ironweir WORDS`, and tells it what to put back, and for how long silence is no reason to.
    pub(crate) fn start(words: &[&str], order: Value, patience: Duration) -> Result<Guard, String> {
        let program = std::env::current_exe().map_err(|e| format!("the program's own path is not known ({e})"))?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::null());
        // A group of its own: Ctrl-C is for the one that is waited for.
        let child = command.process_group(0).spawn();
        let mut guard =
            Guard(child.map_err(|e| format!("the process that puts everything back does not start ({e})"))?);
        guard.tell(&json!({ "order": order, "patience_ms": patience.as_millis() as u64 }).to_string())?;
        Ok(guard)
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let gone =
            |e: std::io::Error| format!("the process that puts everything back is gone ({e}): nothing more is changed");
        let pipe = self.0.stdin.as_mut().ok_or("no pipe to the process that puts everything back")?;
        pipe.write_all(format!("{line}\n").as_bytes()).map_err(gone)
    }

    /// A sign of life, with what is about to be changed. An error: it is gone. If it had heard nothing for too long, all is as it was; if it was
    /// killed, the command has to put everything back itself.
    pub(crate) fn alive(&mut self, note: &Value) -> Result<(), String> {
        self.tell(&note.to_string())
    }

    /// Has it put everything back, and waits for that.
    pub(crate) fn end(mut self) -> Result<(), String> {
        drop(self.0.stdin.take());
        match self.0.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("the process that puts everything back has ended ({status})")),
            Err(e) => Err(format!("the process that puts everything back cannot be waited for ({e})")),
        }
    }
}

/// What the guard knows when it is time.
pub(crate) struct Ended {
    /// The order.
    pub(crate) order: Value,
    /// The last notes, oldest first.
    pub(crate) notes: Vec<Value>,
}

/// Notes that are kept: the last one may not have been followed yet.
const KEPT_NOTES: usize = 2;

/// On the guard's side: gives the order once it is time to follow it.
pub(crate) fn wait_for_the_end() -> Result<Ended, String> {
    let stdin = std::io::stdin();
    let mut input = BufReader::new(stdin.lock());
    let mut line = String::new();
    (&mut input).take(MOST_BYTES).read_line(&mut line).map_err(|e| e.to_string())?;
    let mut told: Value = serde_json::from_str(&line).map_err(|e| format!("nothing to put back ({e})"))?;
    let patience = Duration::from_millis(told["patience_ms"].as_u64().unwrap_or(0));
    let mut notes = Vec::new();
    while is_heard(&input, patience) {
        line.clear();
        // Nothing to read is the end of whoever wrote.
        if (&mut input).take(MOST_BYTES).read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
        if let Ok(note) = serde_json::from_str(&line) {
            notes.push(note);
            notes.drain(..notes.len().saturating_sub(KEPT_NOTES));
        }
    }
    Ok(Ended { order: told["order"].take(), notes })
}

fn is_heard(input: &BufReader<StdinLock<'_>>, patience: Duration) -> bool {
    if !input.buffer().is_empty() {
        return true;
    }
    let stdin = std::io::stdin();
    let limit = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    loop {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok_and(|n| n > 0),
        }
    }
}

/// The guard's exit status, or what it could not put back.
pub(crate) fn outcome(failures: Vec<String>) -> Result<u8, String> {
    if failures.is_empty() { Ok(0) } else { Err(failures.join("; ")) }
}
