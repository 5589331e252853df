//! The process of the kernel's balancer: forked by the master, whose rights it keeps, while a configuration has packets for it.
//! The master passes on what the worker says of real servers, and to the worker what was counted; it reads neither.

use super::channel::Channel;
use super::cycle::Master;
use super::message::{self, End, ToMaster};
use super::sys::{self, Forked, Pid};
use super::title;
use crate::log::error::Errno;
use crate::server_log;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The process, as the master knows it.
pub(super) struct Balancer {
    pub(super) pid: Pid,
    pub(super) channel: Option<Channel>,
    started: Instant,
    /// The newest configuration it was given.
    setup: Arc<[u8]>,
    /// It was told to end.
    ending: bool,
    /// It was told to end with its last flow, since a configuration came that has no packets for it: it may be wanted again.
    draining: bool,
}

impl Balancer {
    /// A process that cannot be reached is about to be reaped.
    fn tell(&mut self, bytes: &[u8]) {
        if let Some(channel) = &mut self.channel {
            channel.queue(bytes, Vec::new());
        }
        self.flush();
    }

    fn flush(&mut self) {
        if self.channel.as_mut().is_some_and(|channel| channel.flush().is_err()) {
            self.channel = None;
        }
    }
}

impl Master<'_> {
    /// Brings the process in line with the running configuration: it is started, told, or ended.
    pub(super) fn balance(&mut self) {
        let plan = &self.running.plan;
        let report = plan.balancer_report.as_deref().map(<[u8]>::to_vec);
        self.report = report.or(self.report.take().filter(|_| plan.balancer.is_some()));
        let Some(setup) = plan.balancer.clone() else { return self.drain_balancer() };
        match &mut self.balancer {
            // Another configuration wants it before its last flow has ended.
            Some(balancer) if balancer.draining => {
                balancer.tell(&message::setup(&setup));
                balancer.setup = setup;
                (balancer.ending, balancer.draining) = (false, false);
            }
            // Started anew once it has ended.
            Some(balancer) if balancer.ending => {}
            Some(balancer) if balancer.setup == setup => {}
            Some(balancer) => {
                balancer.tell(&message::setup(&setup));
                balancer.setup = setup;
            }
            None => self.start_balancer(setup),
        }
    }

    fn start_balancer(&mut self, setup: Arc<[u8]>) {
        let pair = Channel::pair();
        let started = pair.and_then(|(ours, theirs)| Ok((ours, theirs, sys::fork()?)));
        match started {
            Ok((ours, theirs, Forked::Child)) => {
                drop(ours);
                // Its end is to be that of the worker whose it is.
                self.predecessor = None;
                let code = catch_unwind(AssertUnwindSafe(|| self.be_balancer(theirs))).unwrap_or(1);
                std::process::exit(code)
            }
            Ok((ours, _, Forked::Parent(pid))) => {
                server_log!(Notice, "start balancer process {pid}");
                let (channel, started) = (Some(ours), Instant::now());
                let mut balancer =
                    Balancer { pid, channel, started, setup: setup.clone(), ending: false, draining: false };
                balancer.tell(&message::setup(&setup));
                if let Some(reals) = &self.reals {
                    balancer.tell(&message::reals(reals));
                }
                self.balancer = Some(balancer);
            }
            Err(e) => {
                server_log!(Alert, "fork() failed while spawning \"balancer process\" {}", Errno(&e));
                self.balancer_respawn.schedule(Duration::ZERO);
            }
        }
    }

    /// In the child: lets go of what is the master's, above all its sockets, on which nobody would accept here.
    fn be_balancer(&mut self, channel: Channel) -> i32 {
        title::set("balancer process");
        self.children.clear();
        self.pending = None;
        self.balancer = None;
        self.running.listeners.list.clear();
        self.running.plan.payload = Default::default();
        self.service.balancer()(BalancerLine { channel: Some(channel) })
    }

    /// A configuration has come that has no packets for the process: its flows go on as sessions of old workers do.
    fn drain_balancer(&mut self) {
        if self.balancer.as_ref().is_none_or(|balancer| balancer.ending) {
            self.balancer_respawn.at = None;
            return;
        }
        self.end_balancer(End::Drain(self.running.plan.process.worker_shutdown_timeout));
        if let Some(balancer) = &mut self.balancer {
            balancer.draining = true;
        }
    }

    /// Tells the process to end, if there is one. What another binary balances stays.
    pub(super) fn end_balancer(&mut self, end: End) {
        let others = self.new_binary.is_some() || self.parent_is_old_binary();
        self.balancer_respawn.at = None;
        if let Some(balancer) = &mut self.balancer {
            // A quick end overtakes a slow one.
            (balancer.ending, balancer.draining) = (true, false);
            balancer.tell(&message::end(if others { End::Leave } else { end }));
        }
    }

    /// What the newest worker says of real servers. Kept, since the process may be started anew.
    pub(super) fn tell_balancer_reals(&mut self, bytes: Vec<u8>) {
        if let Some(balancer) = &mut self.balancer {
            balancer.tell(&message::reals(&bytes));
        }
        self.reals = Some(bytes);
    }

    /// Passes the newest report on to workers that have read the one before.
    pub(super) fn hear_balancer(&mut self) {
        let Some(balancer) = &mut self.balancer else { return };
        balancer.flush();
        let mut newest = None;
        while let Some(channel) = &mut balancer.channel {
            match channel.receive() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    if let Some(ToMaster::Report(bytes)) = ToMaster::read(&frame) {
                        newest = Some(bytes);
                    }
                }
                Err(_) => balancer.channel = None,
            }
        }
        let Some(report) = newest else { return };
        for child in self.children.iter_mut().filter(|child| !child.exiting) {
            if child.channel.as_ref().is_some_and(|channel| !channel.is_waiting()) {
                child.tell(message::report(&report));
            }
        }
        self.report = Some(report);
    }

    /// The process is gone. Packets go on; it is started anew if the configuration still wants it.
    pub(super) fn balancer_ended(&mut self) {
        let Some(balancer) = self.balancer.take() else { return };
        if self.is_stopping() || self.not_accepting || self.running.plan.balancer.is_none() {
            return;
        }
        let lived = if balancer.ending { Duration::MAX } else { balancer.started.elapsed() };
        self.balancer_respawn.schedule(lived);
    }
}

/// What the process is told.
#[derive(Debug)]
pub enum Order {
    /// Balance by this configuration.
    Setup(Vec<u8>),
    /// Real servers are like this now.
    Reals(Vec<u8>),
    /// Begin no flow any more, and end with the last one, or after this time.
    Drain(Option<Duration>),
    /// End, and let the kernel balance nothing any more.
    Clear,
    /// End; packets go on.
    Leave,
}

/// The process' end of the line to the master.
pub struct BalancerLine {
    /// None: the master is gone.
    channel: Option<Channel>,
}

impl BalancerLine {
    /// The next order, if there is one. A master that is gone has said [`Order::Leave`].
    pub fn order(&mut self) -> Option<Order> {
        let Some(channel) = &mut self.channel else { return Some(Order::Leave) };
        match channel.receive() {
            Ok(None) => None,
            // What cannot be read is no order of this version's.
            Ok(Some(frame)) => message::read_to_balancer(&frame),
            Err(_) => {
                self.channel = None;
                Some(Order::Leave)
            }
        }
    }

    /// Waits until there may be an order, or something to read on one of `others`, or for this long.
    pub fn wait(&mut self, timeout: Duration, others: &[BorrowedFd<'_>]) {
        let Some(channel) = &mut self.channel else { return };
        if channel.flush().is_err() {
            self.channel = None;
            return;
        }
        let mut wanted = vec![(channel.as_fd(), channel.is_waiting())];
        wanted.extend(others.iter().map(|fd| (*fd, false)));
        if sys::poll(&wanted, Some(timeout)).is_err() {
            std::thread::sleep(timeout);
        }
    }

    /// Says what was done, unless what was said before still waits to be heard.
    pub fn report(&mut self, bytes: &[u8]) -> bool {
        let Some(channel) = &mut self.channel else { return false };
        if channel.is_waiting() {
            return false;
        }
        channel.queue(&ToMaster::Report(bytes.to_vec()).write(), Vec::new());
        if channel.flush().is_err() {
            self.channel = None;
        }
        true
    }
}
