//! Commands that ask the master for something, and the canary that one of them may have asked for: a configuration that serves a share of
//! new connections until it is judged (`worker` does that), kept by an ordinary reload or taken back.
//!
//! ```text
//! Canary -> load, open logs -> Trial to the worker -> Worse, Unproven: taken back · Good: its addresses are opened, Reload to the worker
//!               the command ends, a reload or a shutdown is asked for, the worker dies: taken back
//! ```

use super::ask::{self, Reply, Request};
use super::channel::Channel;
use super::cycle::{Master, Running};
use super::message::{self, Tried};
use super::start::{Prepared, prepare_other};
use super::sys::Pid;
use crate::log::error::Errno;
use crate::log::file::LogFile;
use crate::server_log;
use std::path::Path;
use std::sync::Arc;

/// Commands that are listened to at once.
const MOST_GUESTS: usize = 8;
/// The longest canary.
const MOST_SECONDS: f64 = 7.0 * 86_400.0;

/// What a canary is to be, beside its file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Ten-thousandths of new connections.
    pub share: u32,
    /// Requests of either configuration before anything is judged.
    pub minimum: u64,
    /// How long, in milliseconds.
    pub ms: u64,
}

/// A command that has asked.
pub(super) struct Guest {
    number: u64,
    pub(super) channel: Channel,
}

/// A canary.
pub(super) struct Trial {
    guest: u64,
    worker: Pid,
    generation: u64,
    next: Prepared,
}

/// All of it that the master keeps.
#[derive(Default)]
pub(super) struct Asking {
    pub(super) guests: Vec<Guest>,
    next_guest: u64,
    trial: Option<Trial>,
    /// The guests who wait for these configurations to be taken.
    waiting: Vec<(u64, u64)>,
    /// The guest who waits for another binary to have taken over.
    upgrader: Option<u64>,
}

impl Asking {
    fn tell(&mut self, number: u64, reply: &Reply) {
        let Some(guest) = self.guests.iter_mut().find(|g| g.number == number) else { return };
        if guest.channel.is_waiting() && matches!(reply, Reply::Says(_)) {
            // How it goes is said again soon.
            return;
        }
        if let Ok(bytes) = serde_json::to_vec(reply) {
            guest.channel.queue(&bytes, Vec::new());
            // Who is gone is seen when it is heard.
            let _ = guest.channel.flush();
        }
    }

    /// Tells whoever waits for another binary how it goes.
    pub(super) fn tell_upgrader_meanwhile(&mut self, reply: &Reply) {
        if let Some(number) = self.upgrader {
            self.tell(number, reply);
        }
    }

    /// Tells whoever waits for another binary how it went. False: nobody does.
    pub(super) fn tell_upgrader(&mut self, reply: &Reply) -> bool {
        let Some(number) = self.upgrader.take() else { return false };
        self.tell(number, reply);
        true
    }
}

impl Asking {
    /// The first guest that waits for nothing leaves, so that another may come; false: all of them do.
    fn let_one_go(&mut self) -> bool {
        let busy = |number| {
            [self.trial.as_ref().map(|t| t.guest), self.upgrader].contains(&Some(number))
                || self.waiting.iter().any(|(guest, _)| *guest == number)
        };
        let idle = self.guests.iter().position(|g| !busy(g.number) && !g.channel.is_waiting());
        idle.map(|at| self.guests.remove(at)).is_some()
    }
}

impl Master<'_> {
    /// SIGURG: somebody asks for something.
    pub(super) fn meet(&mut self, asker: Pid) {
        if asker == 0 {
            return;
        }
        if self.asking.guests.len() >= MOST_GUESTS && !self.asking.let_one_go() {
            return server_log!(Warn, "process {asker} asks for something, but {MOST_GUESTS} others are listened to");
        }
        match ask::meet(&self.running.plan.process.pid, asker) {
            Ok(channel) => {
                self.asking.next_guest += 1;
                self.asking.guests.push(Guest { number: self.asking.next_guest, channel });
            }
            Err(e) => server_log!(Error, "process {asker} asks for something, but cannot be reached {}", Errno(&e)),
        }
    }

    /// Reads what commands ask, and sees those go that have ended.
    pub(super) fn hear_guests(&mut self) {
        let (mut asked, mut gone) = (Vec::new(), Vec::new());
        for guest in &mut self.asking.guests {
            let sent = guest.channel.flush();
            if sent.is_ok() && guest.channel.is_waiting() {
                // Who does not take answers asks nothing more: what waits for it stays bounded.
                continue;
            }
            match guest.channel.receive() {
                Ok(Some(frame)) => asked.push((guest.number, serde_json::from_slice::<Request>(&frame.bytes))),
                Ok(None) if sent.is_ok() => {}
                _ => gone.push(guest.number),
            }
        }
        for number in gone {
            self.asking.guests.retain(|g| g.number != number);
            self.asking.upgrader.take_if(|upgrader| *upgrader == number);
            self.asking.waiting.retain(|(guest, _)| *guest != number);
            if self.asking.trial.as_ref().is_some_and(|t| t.guest == number) {
                self.take_back("the command that asked for it is gone");
            }
        }
        for (guest, request) in asked {
            match request {
                Ok(Request::Show) => self.show(guest),
                Ok(Request::Reload) => self.reload_for(guest),
                Ok(Request::Upgrade) => self.upgrade_for(guest),
                Ok(Request::Canary { file, .. }) if !file.is_absolute() => {
                    let why = format!(
                        "{}: the master has another working directory: an absolute path is needed",
                        file.display()
                    );
                    self.tell_guest(guest, &Reply::Refused(why));
                }
                Ok(Request::Canary { file, share, minimum, seconds }) => {
                    let ms = (seconds.clamp(0.0, MOST_SECONDS) * 1000.0) as u64;
                    let terms = Terms { share: share.min(10_000), minimum, ms };
                    if let Err(why) = self.begin_trial(guest, &file, terms) {
                        self.tell_guest(guest, &Reply::Refused(why));
                    }
                }
                Err(e) => self.tell_guest(guest, &Reply::Refused(format!("what was asked cannot be read: {e}"))),
            }
        }
    }

    fn tell_guest(&mut self, number: u64, reply: &Reply) {
        self.asking.tell(number, reply);
    }

    fn show(&mut self, number: u64) {
        self.tell_guest(number, &Reply::Shown(self.running.generation));
        if let Some(guest) = self.asking.guests.iter_mut().find(|g| g.number == number) {
            guest.channel.queue(&self.running.plan.payload, Vec::new());
            let _ = guest.channel.flush();
        }
    }

    fn upgrade_for(&mut self, guest: u64) {
        if self.is_stopping() {
            return self.tell_guest(guest, &Reply::Refused("the server is shutting down".to_owned()));
        }
        if self.new_binary.is_some() || self.parent_is_old_binary() {
            return self.tell_guest(guest, &Reply::NotYet("another upgrade is under way".to_owned()));
        }
        self.asking.upgrader = Some(guest);
        self.change_binary();
        if self.new_binary.is_none() {
            self.asking.upgrader = None;
            self.tell_guest(guest, &Reply::Refused("the new binary cannot be started".to_owned()));
        }
    }

    fn reload_for(&mut self, guest: u64) {
        if self.is_stopping() {
            return self.tell_guest(guest, &Reply::Refused("the server is shutting down".to_owned()));
        }
        // While another reload is under way this one is the next.
        self.asking.waiting.push((guest, self.generation + 1));
        self.reconfigure();
    }

    fn begin_trial(&mut self, guest: u64, file: &Path, terms: Terms) -> Result<(), String> {
        if self.is_stopping() || self.not_accepting {
            return Err("the server is shutting down".to_owned());
        }
        if self.asking.trial.is_some() || !self.asking.waiting.is_empty() {
            return Err("there is a canary already".to_owned());
        }
        if self.pending.is_some() {
            return Err("a reload is under way".to_owned());
        }
        let shown = file.display();
        self.generation += 1;
        let generation = self.generation;
        let refused = || format!("{shown} cannot be run: the error log says why");
        let (next, moved) = prepare_other(self.service, file, &self.files).map_err(|_| refused())?;
        self.follow(moved);
        let (old, new) = (&self.running.plan.process, &next.plan.process);
        if new.master_process != old.master_process || (new.master_process && new.needs_new_process(old)) {
            self.files.retain(&self.running.paths);
            return Err(
                "it needs a new worker process (user, limits, environment, working directory or priority change), and two cannot share \
                 a part of the connections: reload instead"
                    .to_owned(),
            );
        }
        let files: Vec<Arc<LogFile>> = next.paths.iter().filter_map(|path| self.files.find(path)).collect();
        let Some(child) = self.children.iter_mut().rev().find(|child| !child.exiting) else {
            self.files.retain(&self.running.paths);
            return Err("there is no worker process now".to_owned());
        };
        child.tell(message::trial(generation, &next.plan.payload, terms, &files, &child.known.clone()));
        let worker = child.pid;
        self.asking.trial = Some(Trial { guest, worker, generation, next });
        let (percent, seconds) = (f64::from(terms.share) / 100.0, terms.ms as f64 / 1000.0);
        let text =
            format!("configuration {generation} of {shown} serves {percent} % of new connections for {seconds} s");
        server_log!(Notice, "canary: {text}");
        self.tell_guest(guest, &Reply::Says(text));
        Ok(())
    }

    /// What the worker says of a canary.
    pub(super) fn tried(&mut self, generation: u64, tried: Tried, text: &str) {
        let Some(trial) = self.asking.trial.as_ref().filter(|t| t.generation == generation) else { return };
        match tried {
            Tried::Goes => {
                let guest = trial.guest;
                self.tell_guest(guest, &Reply::Says(text.to_owned()));
            }
            Tried::Over => self.take_back(text),
            Tried::Good => self.keep(text),
        }
    }

    /// The old configuration has all connections again.
    pub(super) fn take_back(&mut self, why: &str) {
        let Some(trial) = self.asking.trial.take() else { return };
        if let Some(child) = self.children.iter_mut().find(|c| c.pid == trial.worker) {
            child.tell(message::end_trial());
        }
        self.files.retain(&self.running.paths);
        server_log!(Warn, "canary: configuration {} is taken back: {why}", trial.generation);
        self.tell_guest(trial.guest, &Reply::TakenBack(why.to_owned()));
    }

    /// The canary becomes what runs, by a reload.
    fn keep(&mut self, text: &str) {
        let Some(trial) = &self.asking.trial else { return };
        let plan = &trial.next.plan;
        let Ok(listeners) = self.running.listeners.open(&plan.listens, plan.process.threads) else {
            return self
                .take_back("nothing was worse, but its addresses cannot be listened on: the error log says why");
        };
        let Some(Trial { guest, generation: tried, next, .. }) = self.asking.trial.take() else { return };
        self.generation += 1;
        let generation = self.generation;
        server_log!(Notice, "canary: configuration {tried} is kept, as configuration {generation}: {text}");
        self.asking.waiting.push((guest, generation));
        let Prepared { plan, log, paths } = next;
        self.offer(Running { generation, plan, listeners, log, paths });
    }

    /// A reload that somebody waits for is done, or failed.
    pub(super) fn kept(&mut self, generation: u64, outcome: Result<(), &str>) {
        for (guest, _) in self.asking.waiting.extract_if(.., |(_, waited)| *waited == generation).collect::<Vec<_>>() {
            let reply = match outcome {
                Ok(()) => Reply::Kept(format!("configuration {generation} runs")),
                Err(why) => Reply::TakenBack(why.to_owned()),
            };
            self.tell_guest(guest, &reply);
        }
    }

    /// A worker process has ended: its canary is over.
    pub(super) fn trial_lost(&mut self, worker: Pid) {
        if self.asking.trial.as_ref().is_some_and(|t| t.worker == worker) {
            self.take_back("the worker process ended");
        }
    }
}
