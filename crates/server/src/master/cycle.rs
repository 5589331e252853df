//! The master's life: it waits for signals and for its worker, and acts on both. Never blocks elsewhere but while
//! a configuration is read or an address is in use.
//!
//! ```text
//! HUP -> prepare -> Reload to the worker -> Applied: the new configuration is the running one, old sockets close
//!           |   (after Reopen, if logs       Failed: the old one runs on
//!           |   were moved away)
//!           `- settings a running process cannot take: a new worker starts, the old one finishes and goes
//! ```

use super::balancer::Balancer;
use super::canary::Asking;
use super::message::End;
use super::start::{Refused, Start, Started, prepare};
use super::sys::{self, Pid, Signal, Signals};
use super::workers::{Child, Respawn};
use super::{Options, Plan, Service, message, pidfile, signals, upgrade};
use crate::listen::socket::Listeners;
use crate::log::error::{self, Errno, ErrorLog};
use crate::log::file::{LogFile, Moved, OpenFiles};
use crate::server_log;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a worker may take to end after TERM, before it is killed: about nginx's 50 + 100 + ... + 800 ms.
const KILL_AFTER: Duration = Duration::from_millis(1500);

/// A worker that has not taken a new configuration for so long is named in the log.
const PATIENCE: Duration = Duration::from_secs(5);

/// A configuration with everything it needs open.
#[derive(Clone)]
pub(super) struct Running {
    pub(super) generation: u64,
    pub(super) plan: Plan,
    pub(super) listeners: Listeners,
    pub(super) log: ErrorLog,
    /// All its log files.
    pub(super) paths: Vec<PathBuf>,
}

/// A configuration the worker has not answered for yet.
pub(super) struct Pending {
    pub(super) worker: Pid,
    next: Running,
    /// When the log names a worker that has not answered; nothing once it has been named.
    complain_at: Option<Instant>,
}

/// The master.
pub(super) struct Master<'a> {
    pub(super) service: &'a mut dyn Service,
    pub(super) options: Options,
    /// Where the program is, for an upgrade.
    pub(super) program: PathBuf,
    /// The environment it was started with.
    pub(super) environment: Vec<(OsString, OsString)>,
    signals: Signals,
    pub(super) files: OpenFiles,
    pub(super) running: Running,
    pub(super) pending: Option<Pending>,
    pub(super) children: Vec<Child>,
    /// Commands that ask for something, and the canary.
    pub(super) asking: Asking,
    pub(super) respawn: Respawn,
    /// The process of the kernel's balancer, if there is one.
    pub(super) balancer: Option<Balancer>,
    pub(super) balancer_respawn: Respawn,
    /// What workers said last of real servers.
    pub(super) reals: Option<Vec<u8>>,
    /// What was said last of what the kernel does.
    pub(super) report: Option<Vec<u8>>,
    /// The kernel took no ban the last time: said once.
    pub(super) bans_fail: bool,
    pub(super) new_binary: Option<Pid>,
    /// The line to a worker whose connections the next one that is started goes on with.
    pub(super) predecessor: Option<OwnedFd>,
    /// Memory of a worker that has crashed, for the next one.
    pub(super) remains: Option<Arc<OwnedFd>>,
    /// WINCH came: the workers went, the sockets are a new binary's.
    pub(super) not_accepting: bool,
    pub(super) exit_code: i32,
    /// Number of the newest configuration that was prepared.
    pub(super) generation: u64,
    pub(super) started: Started,
    /// A worker has come so far that it serves.
    pub(super) has_served: bool,
    parent: u32,
    reload_again: bool,
    quitting: bool,
    /// When what still runs is killed.
    terminating: Option<Instant>,
}

impl<'a> Master<'a> {
    pub(super) fn new(
        service: &'a mut dyn Service,
        options: Options,
        signals: Signals,
        files: OpenFiles,
        running: Running,
        mut started: Started,
    ) -> Master<'a> {
        Master {
            predecessor: started.predecessor.take(),
            remains: None,
            program: upgrade::program_path(options.arguments.first()),
            environment: std::env::vars_os().collect(),
            parent: parent_id(),
            generation: running.generation,
            service,
            options,
            signals,
            files,
            running,
            pending: None,
            children: Vec::new(),
            asking: Asking::default(),
            respawn: Respawn::default(),
            balancer: None,
            balancer_respawn: Respawn::default(),
            reals: None,
            report: None,
            bans_fail: false,
            new_binary: None,
            not_accepting: false,
            exit_code: 0,
            started,
            has_served: false,
            reload_again: false,
            quitting: false,
            terminating: None,
        }
    }

    /// Starts the worker and serves until the last one is gone after TERM or QUIT.
    pub(super) fn run(mut self) -> ExitCode {
        if self.running.plan.process.master_process {
            server_log!(Notice, "start worker processes");
        }
        self.balance();
        self.start_worker();
        while !(self.is_stopping() && self.children.is_empty() && self.balancer.is_none()) {
            self.wait();
            while let Some(signal) = self.signals.next() {
                self.on_signal(signal);
            }
            self.hear_workers();
            self.hear_balancer();
            self.hear_guests();
            self.on_time();
        }
        self.exit()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.quitting || self.terminating.is_some()
    }

    fn wait(&self) {
        let mut wanted = vec![(self.signals.as_fd(), false)];
        let channels = self.children.iter().filter_map(|child| child.channel.as_ref());
        let channels = channels.chain(self.balancer.as_ref().and_then(|balancer| balancer.channel.as_ref()));
        wanted.extend(channels.map(|channel| (channel.as_fd(), channel.is_waiting())));
        wanted.extend(self.asking.guests.iter().map(|g| (g.channel.as_fd(), g.channel.is_waiting())));
        let late = self.pending.as_ref().and_then(|pending| pending.complain_at);
        let next = [self.respawn.at, self.balancer_respawn.at, self.terminating, late].into_iter().flatten().min();
        let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
        if let Err(e) = sys::poll(&wanted, timeout) {
            server_log!(Alert, "poll() failed {}", Errno(&e));
        }
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if self.respawn.at.is_some_and(|at| at <= now) && !self.is_stopping() {
            self.start_worker();
        }
        if self.balancer_respawn.at.is_some_and(|at| at <= now) && !self.is_stopping() {
            self.balancer_respawn.at = None;
            self.balance();
        }
        if let Some(pending) = self.pending.as_mut().filter(|p| p.complain_at.is_some_and(|at| at <= now)) {
            pending.complain_at = None;
            let (worker, generation) = (pending.worker, pending.next.generation);
            let state = if sys::is_stopped(worker) { "it is stopped" } else { "it runs, but does not answer" };
            let seconds = PATIENCE.as_secs();
            server_log!(
                Alert,
                "worker process {worker} has not taken configuration {generation} for {seconds} seconds: {state}; \
                 the one before runs on"
            );
        }
        if self.terminating.is_some_and(|at| at <= now) {
            self.terminating = Some(now + KILL_AFTER);
            if !self.running.plan.process.master_process {
                // A thread cannot be killed; the process ends with it.
                self.children.clear();
            }
            self.children.iter().for_each(|child| drop(sys::kill(child.pid, libc::SIGKILL)));
            self.balancer.iter().for_each(|balancer| drop(sys::kill(balancer.pid, libc::SIGKILL)));
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        let busy_upgrading = self.new_binary.is_some() || self.parent_is_old_binary();
        let action = match signal.number {
            libc::SIGTERM | libc::SIGINT => ", exiting",
            libc::SIGQUIT => ", shutting down",
            libc::SIGWINCH if self.started.daemonized => ", stop accepting connections",
            libc::SIGHUP => ", reconfiguring",
            libc::SIGUSR1 => ", reopening logs",
            libc::SIGURG => ", a command asks for something",
            libc::SIGUSR2 if busy_upgrading => ", ignoring",
            libc::SIGUSR2 => ", changing binary",
            _ => "",
        };
        signals::log_received(signal, action);
        match signal.number {
            libc::SIGTERM | libc::SIGINT => self.terminate(),
            libc::SIGQUIT => self.quit(),
            libc::SIGWINCH if self.started.daemonized => {
                self.not_accepting = true;
                self.quit_workers();
                self.end_balancer(End::Leave);
            }
            libc::SIGHUP => self.reconfigure(),
            libc::SIGUSR1 => self.reopen(),
            libc::SIGUSR2 if busy_upgrading => server_log!(
                Crit,
                "the changing binary signal is ignored: you should shutdown or terminate before either old or new binary's process"
            ),
            libc::SIGUSR2 => self.change_binary(),
            libc::SIGCHLD => self.reap(),
            libc::SIGURG => self.meet(signal.sender),
            _ => {}
        }
    }

    pub(super) fn parent_is_old_binary(&self) -> bool {
        self.started.inherited && parent_id() == self.parent
    }

    /// Everyone is to go now.
    pub(super) fn terminate(&mut self) {
        if self.terminating.is_some() {
            return;
        }
        self.terminating = Some(Instant::now() + KILL_AFTER);
        self.respawn.at = None;
        self.end_balancer(End::Clear);
        for child in &mut self.children {
            child.exiting = true;
            child.tell(message::terminate());
        }
    }

    pub(super) fn quit(&mut self) {
        if std::mem::replace(&mut self.quitting, true) {
            return;
        }
        self.pending = None;
        self.quit_workers();
        self.end_balancer(End::Drain(self.running.plan.process.worker_shutdown_timeout));
        self.close_listeners();
    }

    fn close_listeners(&mut self) {
        let listeners = std::mem::take(&mut self.running.listeners);
        if self.new_binary.is_none() && !self.parent_is_old_binary() {
            listeners.unlink_except(&Listeners::default());
        }
    }

    pub(super) fn reconfigure(&mut self) {
        if self.is_stopping() {
            return;
        }
        if self.not_accepting {
            // Back from an upgrade: this binary serves again, with the configuration it has.
            self.not_accepting = false;
            self.balance();
            self.kept(self.generation + 1, Ok(()));
            return self.start_worker();
        }
        if self.pending.is_some() {
            self.reload_again = true;
            return;
        }
        self.take_back("a reload was asked for");
        server_log!(Notice, "reconfiguring");
        self.generation += 1;
        match prepare(self.service, &self.files, &self.running.listeners, self.generation) {
            Ok((next, moved)) => {
                self.follow(moved);
                self.offer(next);
            }
            Err(Refused) => {
                self.files.retain(&self.running.paths);
                self.kept(self.generation, Err("the new one is refused, and the error log says why"));
            }
        }
    }

    /// Lets all processes go on in the files that logs' paths mean now, before the new configuration is theirs: what was moved
    /// away (logrotate) gets no further line.
    pub(super) fn follow(&mut self, moved: Vec<Moved>) {
        let mut followed = Vec::with_capacity(moved.len());
        for moved in moved {
            let path = moved.path().to_owned();
            match moved.follow() {
                Ok(file) => followed.push(file),
                Err(e) => server_log!(Emerg, "open() \"{}\" failed {}", path.display(), Errno(&e)),
            }
        }
        if !followed.is_empty() {
            self.running.log.redirect_stderr();
            self.children.iter_mut().for_each(|child| child.tell(message::reopen(&followed)));
        }
    }

    /// Gives the new configuration to the worker, or to a new one.
    pub(super) fn offer(&mut self, next: Running) {
        let (old, new) = (&self.running.plan.process, &next.plan.process);
        let takes = old.master_process == new.master_process && (!new.master_process || !new.needs_new_process(old));
        let Some(child) = self.children.iter_mut().rev().find(|child| !child.exiting).filter(|_| takes) else {
            self.commit(next);
            server_log!(Notice, "start worker processes");
            self.prepare_succession();
            return self.start_worker();
        };
        let files: Vec<Arc<LogFile>> = next.paths.iter().filter_map(|path| self.files.find(path)).collect();
        let listeners = &next.listeners.list;
        child.generation = next.generation;
        child.tell(message::reload(next.generation, &next.plan.payload, listeners, &files, &child.known.clone()));
        let complain_at = Some(Instant::now() + PATIENCE);
        self.pending = Some(Pending { worker: child.pid, next, complain_at });
    }

    /// A worker runs this configuration.
    pub(super) fn applied(&mut self, pid: Pid, generation: u64) {
        self.has_served = true;
        self.started.tell_parent(Start::Good);
        if let Some(pending) = self.pending.take_if(|p| p.worker == pid && p.next.generation == generation) {
            self.commit(pending.next);
        }
        self.kept(generation, Ok(()));
        // A worker that replaces others serves now.
        let newest = self.children.iter().map(|child| child.generation).max();
        if Some(generation) == newest {
            for child in self.children.iter_mut().filter(|child| !child.exiting && child.pid != pid) {
                child.exiting = true;
                child.tell(message::quit());
            }
        }
        let known = message::Known::of(&self.running.listeners.list, &self.files.all());
        let report = self.report.clone();
        if let Some(child) = self.children.iter_mut().find(|child| child.pid == pid) {
            child.known = known;
            report.iter().for_each(|report| child.tell(message::report(report)));
        }
        self.reload_if_asked();
    }

    /// The worker that was to take this configuration died first: the next one starts with it.
    pub(super) fn orphaned(&mut self, pid: Pid) {
        if let Some(pending) = self.pending.take_if(|pending| pending.worker == pid) {
            let generation = pending.next.generation;
            server_log!(
                Notice,
                "configuration {generation} is for the next worker process: {pid} ended before it took it"
            );
            self.commit(pending.next);
            self.kept(generation, Ok(()));
            self.reload_if_asked();
        }
    }

    /// The worker could not take this configuration.
    pub(super) fn failed(&mut self, generation: u64, reason: &str) {
        server_log!(Emerg, "configuration {generation} was not taken: {reason}");
        self.kept(generation, Err(reason));
        if self.pending.take_if(|pending| pending.next.generation == generation).is_some() {
            self.files.retain(&self.running.paths);
        }
        self.reload_if_asked();
    }

    fn reload_if_asked(&mut self) {
        if self.pending.is_none() && std::mem::take(&mut self.reload_again) {
            self.reconfigure();
        }
    }

    /// From now on `next` is what runs; what only the old one needed is closed.
    fn commit(&mut self, next: Running) {
        let old = std::mem::replace(&mut self.running, next);
        let (pid, old_pid) = (&self.running.plan.process.pid, &old.plan.process.pid);
        if pid != old_pid && pidfile::write(pid).is_ok() {
            pidfile::remove(old_pid);
        }
        error::set_default_log(self.running.log.clone());
        self.running.log.redirect_stderr();
        old.listeners.unlink_except(&self.running.listeners);
        self.balance();
        self.files.retain(&self.running.paths);
    }

    fn reopen(&mut self) {
        server_log!(Notice, "reopening logs");
        let files = self.files.all();
        for file in &files {
            if let Err(e) = file.reopen() {
                server_log!(Emerg, "open() \"{}\" failed {}", file.path().display(), Errno(&e));
            }
        }
        self.running.log.redirect_stderr();
        self.children.iter_mut().for_each(|child| child.tell(message::reopen(&files)));
    }

    fn exit(mut self) -> ExitCode {
        self.close_listeners();
        let pid = &self.running.plan.process.pid;
        match self.new_binary {
            Some(_) => pidfile::remove(&pidfile::old(pid)),
            None => pidfile::remove(pid),
        }
        server_log!(Notice, "exit");
        ExitCode::from(self.exit_code as u8)
    }
}
