//! Binary upgrade, USR2: the program is started again with the listening sockets, beside the one that runs.
//! Its worker gets what the old worker has open, on a line between the two that the masters make (`crate::upgrade`). WINCH and QUIT to the
//! old one end it; if the new one fails, everything is as before.

use super::ask::Reply;
use super::channel::Handle;
use super::cycle::Master;
use super::{message, pidfile, process, sys};
use crate::listen::socket::INHERIT_VARIABLE;
use crate::log::error::Errno;
use crate::server_log;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// The environment variable that names the line to the old binary's worker, for the new one's. Others do not know it.
pub(super) const LINE_VARIABLE: &str = "IRONWEIR_PREDECESSOR";

/// A line between two workers.
fn line() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Master<'_> {
    /// Starts the new binary.
    pub(super) fn change_binary(&mut self) {
        server_log!(Notice, "changing binary");
        let pid = &self.running.plan.process.pid;
        let old = pidfile::old(pid);
        let program = self.program.display();
        if let Err(e) = std::fs::rename(pid, &old) {
            let (pid, old) = (pid.display(), old.display());
            server_log!(
                Alert,
                "rename() {pid} to {old} failed before executing new binary process \"{program}\" {}",
                Errno(&e)
            );
            return;
        }
        let started = line().and_then(|(ours, theirs)| {
            let new = self.execute(theirs.as_fd())?;
            Ok((new, ours))
        });
        match started {
            Ok((new, ours)) => {
                server_log!(Notice, "start new binary process {new}");
                self.new_binary = Some(new);
                self.succeed(ours);
            }
            Err(e) => {
                server_log!(Alert, "execve() failed while executing new binary process \"{program}\" {}", Errno(&e));
                self.rename_back();
            }
        }
    }

    /// The worker that serves is to hand what it has to the one at the other end.
    fn succeed(&mut self, line: OwnedFd) {
        let line: Handle = Arc::new(line);
        if let Some(child) = self.children.iter_mut().rev().find(|child| !child.exiting) {
            child.tell(message::hand_over(line));
        }
    }

    /// The next worker that is started goes on with what the one that serves has open.
    pub(super) fn prepare_succession(&mut self) {
        if let Ok((ours, theirs)) = line() {
            self.succeed(ours);
            self.predecessor = Some(theirs);
        }
    }

    /// A worker has handed over a part of what it has: whoever waits for all of it hears that it goes on.
    pub(super) fn handing_over(&mut self, count: u64) {
        if let Some(new) = self.new_binary {
            let text =
                format!("process {new} serves, {count} connections of before are there, and more are on their way");
            self.asking.tell_upgrader_meanwhile(&Reply::Says(text));
        }
    }

    /// A worker has handed over what it had. Whoever waits for that ends this binary.
    pub(super) fn handed_over(&mut self, pid: sys::Pid, count: u64) {
        server_log!(Notice, "worker process {pid} has handed over {count} connections");
        let Some(new) = self.new_binary else { return };
        if self.asking.tell_upgrader(&Reply::Kept(format!("process {new} serves, with {count} connections of before")))
        {
            self.quit();
        }
    }

    fn execute(&self, line: BorrowedFd<'_>) -> std::io::Result<sys::Pid> {
        let (value, fds) = self.running.listeners.to_inherit();
        let (name, arguments) = self.options.arguments.split_first().map_or((OsStr::new(""), &[][..]), |(n, a)| (n, a));
        let mut command = Command::new(&self.program);
        command.arg0(name).args(arguments).env_clear();
        command.envs(process::environment(&self.running.plan.process, &self.environment));
        command.env(INHERIT_VARIABLE, value);
        command.env(LINE_VARIABLE, line.as_raw_fd().to_string());
        // The master has no other thread that could fork meanwhile and leak them.
        let keep = |flags| {
            fcntl_setfd(line, flags)?;
            fds.iter().try_for_each(|fd| fcntl_setfd(&**fd, flags))
        };
        keep(FdFlags::empty())?;
        let child = command.spawn();
        keep(FdFlags::CLOEXEC)?;
        Ok(child?.id() as sys::Pid)
    }

    /// The new binary is gone: this one is in charge again.
    pub(super) fn new_binary_ended(&mut self) {
        self.rename_back();
        self.new_binary = None;
        self.asking.tell_upgrader(&Reply::Refused(
            "the new binary ended again, and this one serves on: the error log says why".to_owned(),
        ));
        if std::mem::take(&mut self.not_accepting) && !self.is_stopping() {
            self.balance();
            self.start_worker();
        }
    }

    fn rename_back(&self) {
        let pid = &self.running.plan.process.pid;
        let old = pidfile::old(pid);
        if let Err(e) = std::fs::rename(&old, pid) {
            let (pid, old, program) = (pid.display(), old.display(), self.program.display());
            server_log!(
                Alert,
                "rename() {old} back to {pid} failed after the new binary process \"{program}\" exited {}",
                Errno(&e)
            );
        }
    }
}

/// The program's path as it was started, made absolute: the environment of a new binary may have no `PATH`.
pub(super) fn program_path(name: Option<&OsString>) -> PathBuf {
    let name = PathBuf::from(name.cloned().unwrap_or_default());
    if name.components().count() > 1 || name.is_absolute() {
        return std::path::absolute(&name).unwrap_or(name);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(&name)).find(|file| file.is_file()).unwrap_or(name)
}
