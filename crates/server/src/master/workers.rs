//! The master's worker processes: one that serves, others that finish what they began. Started by fork without exec;
//! with `master_process off` the worker is a thread and the rest is the same.

use super::bans::{self, Ban};
use super::cycle::Master;
use super::link::MasterLink;
use super::message::{self, Known, ToMaster};
use super::start::Start;
use super::sys::{self, Ended, Forked, Pid, Signals};
use super::{FATAL, Outliving, WorkerStart, process, signals, title};
use crate::log::error::Errno;
use crate::master::channel::{Channel, Handle};
use crate::server_log;
use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A worker that lived shorter than this died of its start.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// Waits before the second and further starts of workers that die at once: doubled up to the longest.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// After so many workers in a row that died at once, what is left of them may be why.
const SUSPICIOUS: u32 = 4;

/// A running worker.
pub(super) struct Child {
    pub(super) pid: Pid,
    pub(super) channel: Option<Channel>,
    /// With `master_process off`.
    thread: Option<JoinHandle<i32>>,
    /// It was told to go.
    pub(super) exiting: bool,
    started: Instant,
    /// The newest configuration it was given.
    pub(super) generation: u64,
    pub(super) known: Known,
    /// Memory of it that outlives it.
    memory: Option<Arc<OwnedFd>>,
}

impl Child {
    /// Sends a message. A worker that cannot be reached is about to be reaped.
    pub(super) fn tell(&mut self, (bytes, fds): (Vec<u8>, Vec<Handle>)) {
        let Some(channel) = &mut self.channel else { return };
        channel.queue(&bytes, fds);
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        if let Err(e) = channel.flush() {
            if e.kind() != std::io::ErrorKind::BrokenPipe {
                server_log!(Alert, "sendmsg() to worker process {} failed {}", self.pid, Errno(&e));
            }
            self.channel = None;
        }
    }
}

/// When the next worker may start.
#[derive(Debug, Default)]
pub(super) struct Respawn {
    /// Workers in a row that died at once.
    failures: u32,
    pub(super) at: Option<Instant>,
}

impl Respawn {
    /// A worker died that lived for `lived`: at once, later if that happens again and again.
    pub(super) fn schedule(&mut self, lived: Duration) {
        self.failures = if lived < STABLE_AFTER { self.failures + 1 } else { 0 };
        let delay = match self.failures {
            0 | 1 => Duration::ZERO,
            n => (FIRST_DELAY * 2_u32.pow((n - 2).min(10))).min(LONGEST_DELAY),
        };
        self.at = Some(Instant::now() + delay);
    }
}

impl Master<'_> {
    /// Starts a worker with the running configuration.
    pub(super) fn start_worker(&mut self) {
        self.respawn.at = None;
        let (ours, theirs) = match Channel::pair() {
            Ok(pair) => pair,
            Err(e) => {
                server_log!(Alert, "socketpair() failed while spawning \"worker process\" {}", Errno(&e));
                return self.respawn.schedule(Duration::ZERO);
            }
        };
        let memory = self.outliving();
        let own = memory.as_ref().map(|memory| memory.own.clone());
        let started = if self.running.plan.process.master_process {
            self.start_process(theirs, memory)
        } else {
            self.start_thread(theirs)
        };
        // The worker has it now: it closes when that one ends.
        self.predecessor = None;
        match started {
            Ok((pid, thread)) => self.children.push(Child {
                pid,
                channel: Some(ours),
                thread,
                exiting: false,
                started: Instant::now(),
                generation: self.running.generation,
                known: self.known(),
                memory: own,
            }),
            Err(e) => {
                server_log!(Alert, "fork() failed while spawning \"worker process\" {}", Errno(&e));
                self.respawn.schedule(Duration::ZERO);
            }
        }
    }

    fn known(&self) -> Known {
        Known::of(&self.running.listeners.list, &self.files.all())
    }

    /// Memory for a worker that outlives it, with that of the one before if it has crashed. With `master_process off` nobody would be left
    /// to have it.
    fn outliving(&mut self) -> Option<Outliving> {
        // Whoever comes behind a predecessor, or dies of what is there, begins with nothing.
        let before = self.remains.take().filter(|_| self.predecessor.is_none() && self.respawn.failures < SUSPICIOUS);
        if !self.running.plan.process.master_process {
            return None;
        }
        match memfd_create("worker", MemfdFlags::CLOEXEC) {
            Ok(own) => Some(Outliving { own: Arc::new(own), before }),
            Err(e) => {
                server_log!(Alert, "memfd_create() failed {}", Errno(&e.into()));
                None
            }
        }
    }

    fn start_process(
        &mut self,
        channel: Channel,
        memory: Option<Outliving>,
    ) -> std::io::Result<(Pid, Option<JoinHandle<i32>>)> {
        match sys::fork()? {
            Forked::Parent(pid) => {
                server_log!(Notice, "start worker process {pid}");
                Ok((pid, None))
            }
            Forked::Child => {
                let code = catch_unwind(AssertUnwindSafe(|| self.be_worker(channel, memory))).unwrap_or(1);
                std::process::exit(code)
            }
        }
    }

    /// In the child: lets go of what is the master's and runs the worker.
    fn be_worker(&mut self, channel: Channel, memory: Option<Outliving>) -> i32 {
        title::set("worker process");
        self.children.clear();
        self.balancer = None;
        self.pending = None;
        self.asking = Default::default();
        self.started.parent = None;
        let worker = self.service.worker();
        let predecessor = self.predecessor.take();
        let running = self.running.clone();
        self.running.listeners.list.clear();
        self.running.plan.payload = Default::default();
        if process::settle(&running.plan.process, &self.environment).is_err() {
            return FATAL;
        }
        let listeners = running.listeners.list;
        let link = Signals::open(&signals::HANDLED)
            .and_then(|signals| MasterLink::new(channel, Some(signals), self.files.clone(), &listeners));
        let link = match link {
            Ok(link) => link,
            Err(e) => {
                server_log!(Alert, "the worker's channel could not be opened {}", Errno(&e));
                return FATAL;
            }
        };
        let code = worker(WorkerStart {
            generation: running.generation,
            process: running.plan.process,
            payload: running.plan.payload,
            listeners,
            files: self.files.clone(),
            predecessor,
            memory,
            link,
        });
        server_log!(Notice, "exiting");
        server_log!(Notice, "exit");
        code
    }

    fn start_thread(&mut self, channel: Channel) -> std::io::Result<(Pid, Option<JoinHandle<i32>>)> {
        let socket = channel.socket();
        let worker = self.service.worker();
        let running = self.running.clone();
        let listeners = running.listeners.list;
        sys::set_environment(&process::environment(&running.plan.process, &self.environment));
        let start = WorkerStart {
            generation: running.generation,
            process: running.plan.process,
            payload: running.plan.payload,
            files: self.files.clone(),
            predecessor: self.predecessor.take(),
            memory: None,
            link: MasterLink::new(channel, None, self.files.clone(), &listeners)?,
            listeners,
        };
        let body = move || {
            let code = catch_unwind(AssertUnwindSafe(|| worker(start))).unwrap_or(1);
            // The end is heard even if somebody still holds a reporter.
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
            code
        };
        let thread = std::thread::Builder::new().name("worker".to_owned()).spawn(body)?;
        Ok((std::process::id() as Pid, Some(thread)))
    }

    /// Tells every worker that was not told yet to finish and go.
    pub(super) fn quit_workers(&mut self) {
        for child in self.children.iter_mut().filter(|child| !child.exiting) {
            child.exiting = true;
            child.tell(message::quit());
        }
        self.respawn.at = None;
    }

    /// Reads what the workers say.
    pub(super) fn hear_workers(&mut self) {
        let mut said = Vec::new();
        for child in &mut self.children {
            child.flush();
            while let Some(channel) = &mut child.channel {
                match channel.receive() {
                    Ok(None) => break,
                    Ok(Some(frame)) => said.extend(ToMaster::read(&frame).map(|message| (child.pid, message))),
                    Err(_) => child.channel = None,
                }
            }
        }
        for (pid, message) in said {
            match message {
                ToMaster::Applied(generation) => self.applied(pid, generation),
                ToMaster::Failed(generation, reason) => self.failed(generation, &reason),
                ToMaster::Tried(generation, tried, text) => self.tried(generation, tried, &text),
                ToMaster::Ban(ban) => self.ban(&ban),
                ToMaster::Done(generation) => {
                    server_log!(Notice, "configuration {generation} of worker process {pid} exited with code 0");
                }
                ToMaster::Reals(bytes) => {
                    let newest = self.children.iter().rev().find(|child| !child.exiting);
                    if newest.is_some_and(|child| child.pid == pid) {
                        self.tell_balancer_reals(bytes);
                    }
                }
                ToMaster::HandedOver(count) => self.handed_over(pid, count),
                ToMaster::HandingOver(count) => self.handing_over(count),
                ToMaster::Report(_) => {}
            }
        }
        self.join_threads();
    }

    /// Does what a worker asks for the kernel's sets, if the configuration names that set.
    fn ban(&mut self, ban: &Ban) {
        if !self.running.plan.ban_sets.contains(&ban.set) {
            return;
        }
        let (done, set) = (bans::put(ban), &ban.set);
        match done {
            Ok(()) => self.bans_fail = false,
            Err(e) if !std::mem::replace(&mut self.bans_fail, true) => {
                let text = match ban.address.is_ipv6() && e.raw_os_error() == Some(libc::EINVAL) {
                    true => {
                        "it needs \"flags interval\" for networks of IPv6; bans hold where connections are accepted"
                    }
                    false => "bans hold where connections are accepted",
                };
                server_log!(
                    Warn,
                    "set \"{}\" of nftables' table \"{}\" takes no address {}, {text}",
                    set.name,
                    set.table,
                    Errno(&e)
                );
            }
            Err(_) => {}
        }
    }

    fn join_threads(&mut self) {
        while let Some(i) = self.children.iter().position(|c| c.channel.is_none() && c.thread.is_some()) {
            let child = self.children.remove(i);
            let code = child.thread.and_then(|thread| thread.join().ok());
            if !child.exiting && !self.is_stopping() {
                // nginx in one process would be gone as well.
                self.exit_code = code.filter(|code| *code != 0).unwrap_or(FATAL);
                self.terminate();
            }
        }
    }

    /// The next process that ended. In one process with the workers the children of their programs are theirs to ask for.
    fn next_ended(&self) -> Option<(Pid, Ended)> {
        if self.running.plan.process.master_process {
            return sys::reap(None).unwrap_or(None);
        }
        let own = [self.new_binary, self.balancer.as_ref().map(|balancer| balancer.pid)];
        own.into_iter().flatten().find_map(|pid| sys::reap(Some(pid)).unwrap_or(None))
    }

    /// Takes note of every process that ended, in nginx's words.
    pub(super) fn reap(&mut self) {
        while let Some((pid, ended)) = self.next_ended() {
            let index = self.children.iter().position(|child| child.pid == pid);
            let is_new_binary = self.new_binary == Some(pid);
            let is_balancer = self.balancer.as_ref().is_some_and(|balancer| balancer.pid == pid);
            let name = match index {
                Some(_) => "worker process",
                None if is_balancer => "balancer process",
                None if is_new_binary => "new binary process",
                None => "unknown process",
            };
            match ended {
                Ended::Signaled { signal, core } => {
                    let core = if core { " (core dumped)" } else { "" };
                    server_log!(Alert, "{name} {pid} exited on signal {signal}{core}");
                }
                Ended::Exited(code) => server_log!(Notice, "{name} {pid} exited with code {code}"),
            }
            if is_new_binary {
                self.new_binary_ended();
            }
            if is_balancer {
                self.balancer_ended();
            }
            if let Some(index) = index {
                self.hear_workers();
                // Hearing a process removes none, so the index still holds.
                let child = self.children.remove(index);
                self.worker_ended(&child, ended);
            }
        }
    }

    fn worker_ended(&mut self, child: &Child, ended: Ended) {
        self.trial_lost(child.pid);
        if child.exiting || self.is_stopping() {
            return;
        }
        let fatal = ended == Ended::Exited(FATAL);
        if fatal {
            let pid = child.pid;
            server_log!(Alert, "worker process {pid} exited with fatal code {FATAL} and cannot be respawned");
            if !self.has_served {
                // Nobody is served yet who would lose by it, and addresses where nothing answers are of no use to anybody.
                self.started.tell_parent(Start::Failed);
                self.exit_code = 1;
                return self.terminate();
            }
        }
        // It is tried again, which whoever started the server need not wait for.
        self.started.tell_parent(Start::Good);
        if self.pending.as_ref().is_some_and(|pending| pending.worker == child.pid) {
            if fatal {
                self.failed(child.generation, "the worker process ended before it took the new configuration");
            } else {
                self.orphaned(child.pid);
            }
        }
        let replaced = self.children.iter().any(|other| !other.exiting && other.generation >= child.generation);
        if !fatal && !replaced {
            self.remains.clone_from(&child.memory);
            crate::status::processes::died();
            self.respawn.schedule(child.started.elapsed());
        }
    }
}
