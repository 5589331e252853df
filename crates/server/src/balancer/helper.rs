//! The process that has the rights for the kernel's balancer. It hears the configuration from the master and news of real
//! servers from the worker, by the master; it says what was counted. It reads nothing that a client sent.

use super::load::Hearing;
use crate::log::error::Level;
use crate::log::process_line;
use crate::master::balancer::{BalancerLine, Order};
use l4::keeper::BEAT;
use l4::plan::Reals;
use l4::runner::{Reports, Setup};
use l4::{Report, Runner};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Between two reports.
const REPORT: Duration = Duration::from_millis(500);
/// Between two tries to listen for real servers' reports: an older binary has the address until it goes.
const HEAR_AGAIN: Duration = Duration::from_millis(500);

struct Helper {
    link: BalancerLine,
    runner: Option<Runner>,
    /// Real servers' reports of their accept queues, where they are wanted.
    hearing: Option<Hearing>,
    heard_at: Option<Reports>,
    /// When that is tried again, where it could not be had.
    hear_again: Option<Instant>,
    /// Why there is none.
    problem: Option<String>,
    reported: Option<Vec<u8>>,
    report_at: Instant,
    /// No flows begin any more; the end comes with the last one, or then.
    draining: Option<Option<Instant>>,
}

/// Serves until it is told to end, or the master is gone: packets go on then by what is pinned.
pub fn run(link: BalancerLine) -> i32 {
    let (runner, hearing, heard_at, hear_again, problem, reported, draining) = Default::default();
    let report_at = Instant::now();
    let mut helper = Helper { link, runner, hearing, heard_at, hear_again, problem, reported, report_at, draining };
    loop {
        while let Some(order) = helper.link.order() {
            match order {
                Order::Setup(bytes) => helper.take_setup(&bytes),
                Order::Reals(bytes) => helper.take_reals(&bytes),
                Order::Drain(at_most) => helper.drain(at_most),
                Order::Clear => {
                    helper.clear();
                    return 0;
                }
                Order::Leave => return 0,
            }
        }
        helper.beat();
        if helper.is_drained() {
            helper.clear();
            return 0;
        }
        let ears = helper.runner.as_ref().map(Runner::ear).into_iter().chain(helper.hearing.as_ref().map(AsFd::as_fd));
        helper.link.wait(BEAT, &ears.collect::<Vec<_>>());
    }
}

impl Helper {
    fn take_setup(&mut self, bytes: &[u8]) {
        let setup: Setup = match serde_json::from_slice(bytes) {
            Ok(setup) => setup,
            Err(e) => return self.complain(format!("the configuration cannot be read: {e}")),
        };
        if self.heard_at != setup.reports {
            self.heard_at.clone_from(&setup.reports);
            // The one before has the address perhaps.
            (self.hearing, self.hear_again) = (None, None);
            if let Err(text) = self.open_hearing() {
                process_line(
                    Level::Alert,
                    format_args!("accept queues are not heard of: {text}; it is tried again until it can be had"),
                );
            }
        }
        self.draining = None;
        let done = match &mut self.runner {
            Some(runner) => runner.take_plan(setup),
            None => Runner::start(setup).map(|runner| self.runner = Some(runner)),
        };
        self.note(done);
    }

    fn open_hearing(&mut self) -> Result<(), String> {
        self.hear_again = Some(Instant::now() + HEAR_AGAIN);
        self.hearing = self.heard_at.as_ref().map(Hearing::open).transpose()?;
        self.hear_again = None;
        Ok(())
    }

    fn take_reals(&mut self, bytes: &[u8]) {
        let Ok(reals) = serde_json::from_slice::<Vec<Reals>>(bytes) else { return };
        if let Some(runner) = &mut self.runner {
            let done = runner.take_reals(reals);
            self.note(done);
        }
    }

    fn drain(&mut self, at_most: Option<Duration>) {
        self.draining = Some(at_most.map(|time| Instant::now() + time));
        if let Some(runner) = &mut self.runner {
            let done = runner.drain();
            self.note(done);
        }
    }

    fn is_drained(&mut self) -> bool {
        let Some(end) = self.draining else { return false };
        let flows = self.runner.as_ref().and_then(|r| r.flows().ok()).unwrap_or(0);
        flows == 0 || end.is_some_and(|end| Instant::now() >= end)
    }

    fn beat(&mut self) {
        if self.hear_again.is_some_and(|at| Instant::now() >= at) && self.open_hearing().is_ok() {
            process_line(Level::Notice, format_args!("accept queues are heard of"));
        }
        let Some(runner) = &mut self.runner else { return self.tell(&Report::default()) };
        let mut done = runner.beat();
        if let Some(hearing) = &mut self.hearing {
            done = done.and(runner.avoid(hearing.hear(&runner.reals())));
        }
        for text in runner.warnings() {
            process_line(Level::Warn, format_args!("XDP: {text}"));
        }
        let report = (Instant::now() >= self.report_at).then(|| runner.report());
        if let Err(text) = done {
            self.complain(text);
        }
        match report {
            Some(Ok(report)) => {
                self.report_at = Instant::now() + REPORT;
                self.tell(&report);
            }
            Some(Err(text)) => self.complain(text),
            None => {}
        }
    }

    /// Says what is new.
    fn tell(&mut self, report: &Report) {
        let report = Report { problem: self.problem.clone(), ..report.clone() };
        let Ok(bytes) = serde_json::to_vec(&report) else { return };
        if self.reported.as_ref() != Some(&bytes) && self.link.report(&bytes) {
            self.reported = Some(bytes);
        }
    }

    fn note(&mut self, done: Result<(), String>) {
        match done {
            Ok(()) => self.problem = None,
            Err(text) => self.complain(text),
        }
    }

    /// Said once, not with each beat.
    fn complain(&mut self, text: String) {
        if self.problem.as_ref() != Some(&text) {
            let what = match self.runner {
                Some(_) => "the kernel's balancer stays as it was",
                None => "the kernel balances nothing, the ordinary proxy serves \"xdp=nat\"",
            };
            process_line(Level::Alert, format_args!("XDP: {what}: {text}"));
            self.problem = Some(text);
        }
    }

    fn clear(&mut self) {
        if let Some(Err(text)) = self.runner.take().map(Runner::clear) {
            process_line(Level::Alert, format_args!("XDP: {text}"));
        }
    }
}
