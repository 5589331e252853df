//! One client thread: its share of the connections on one epoll. From: `run`, which starts it. To: its `Sample`.
//!
//! A turn waits for events, and answers each with at most one read and one write. Nothing is allocated or shared for a
//! request; once a second the thread sends what it counted.

pub(crate) mod answer;
mod connection;
mod datagrams;
pub(crate) mod dial;
mod http1;
pub(crate) mod http2;
pub(crate) mod http3;
mod lane;
mod pace;
pub(crate) mod quic;
mod scripted;
pub(crate) mod streams;
pub(crate) mod tls;
mod turn;

use crate::plan::{Load, Part, Plan};
use crate::sample::{Sample, Second, Tally};
use crate::script::State;
use crate::system::{Epoll, sharpen_timers};
use answer::HeadReader;
use connection::Connection;
use dial::Dialer;
use lane::Lane;
use pace::Pace;
use rustix::time::{ClockId, clock_gettime};
use scripted::Scripted;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use streams::Streams;

/// Between two looks at time-outs, and two samples of the rate. wrk's.
const TICK_NS: u64 = 100_000_000;
/// One read's bytes: large bodies in few reads, small enough for the CPU's cache.
const BUFFER: usize = 64 * 1024;
/// A wait before the common start is known.
const START_POLL_NS: u64 = 500_000;

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn thread_cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// What the threads of a run share: looked at once a turn.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// The run is over.
    pub stop: AtomicBool,
    /// When it began, by the monotonic clock; 0: not yet.
    pub start_ns: AtomicU64,
    /// Threads whose connections stand, or failed to.
    pub ready: AtomicUsize,
    /// Threads that have ended.
    pub done: AtomicUsize,
}

/// What a thread sends.
#[derive(Debug)]
pub(crate) enum Message {
    /// A second is over.
    Second(Second),
    /// The thread ends.
    End(Box<Ending>),
}

/// A thread's last word.
#[derive(Debug)]
pub(crate) struct Ending {
    pub thread: usize,
    pub sample: Sample,
    /// Answers by the planned end; the sample's may include some that came after it.
    pub on_time: u64,
    pub facts: ThreadFacts,
}

/// How a thread fared on its CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadFacts {
    /// CPU time used.
    pub cpu_ns: u64,
    /// Time spent ready to run, but not running.
    pub delay_ns: u64,
    /// From the common start to its end.
    pub wall_ns: u64,
    /// From the common start to its first turn.
    pub lag_ns: u64,
}

/// A thread's state.
pub(crate) struct Client<'p> {
    plan: &'p Plan,
    thread: usize,
    epoll: Epoll,
    dialer: Dialer<'p>,
    heads: HeadReader,
    connections: Vec<Connection>,
    lanes: Vec<Lane>,
    streams: Streams,
    pace: Pace,
    tally: Tally,
    second: Second,
    buffer: Box<[u8]>,
    /// Deciphered bytes; empty without TLS.
    plain: Box<[u8]>,
    /// The time of the last look at the clock.
    now: u64,
    /// Established connections.
    open: u64,
    /// Connections that were closed.
    closed: u64,
    /// Requests that may still be sent (`-n`).
    left: u64,
    /// Requests that are assigned to a lane.
    in_flight: u64,
    /// The next request's index.
    next_request: usize,
    /// Lanes that wait for the next tick before their connection is tried again.
    resting: Vec<u32>,
    /// No request is sent any more.
    is_draining: bool,
    script: Option<&'p State>,
    /// With a script: what each lane has to do with it.
    scripted: Vec<Scripted>,
    script_has_failed: bool,
    /// Lanes whose next request a script has put off: when, and which.
    delayed: BinaryHeap<Reverse<(u64, u32)>>,
    answers_at_tick: u64,
    cpu_at_second: u64,
}

impl<'p> Client<'p> {
    pub(crate) fn new(plan: &'p Plan, thread: usize, script: Option<&'p State>) -> io::Result<Client<'p>> {
        let connections = plan.share(thread);
        let pace = match &plan.load {
            Load::Closed => Pace::closed(),
            Load::Open(schedule) => {
                let Part { index, of } = plan.part;
                Pace::open(schedule.clone(), (thread * of + index) as u64, (plan.threads * of) as u64)
            }
        };
        Ok(Client {
            plan,
            thread,
            epoll: Epoll::new()?,
            dialer: Dialer::new(plan, thread)?,
            heads: HeadReader::new(plan.backend_header.as_deref()),
            connections: (0..connections).map(|_| Connection::default()).collect(),
            lanes: (0..connections * plan.streams).map(|lane| Lane::of((lane / plan.streams) as u32)).collect(),
            streams: Streams::new(plan),
            pace,
            tally: Tally::new(plan.urls.len()),
            second: Second::default(),
            buffer: vec![0; BUFFER].into(),
            plain: vec![0; if plan.tls.is_some() { BUFFER } else { 0 }].into(),
            now: now_ns(),
            open: 0,
            closed: 0,
            left: plan.total_of(thread).unwrap_or(u64::MAX),
            in_flight: 0,
            next_request: plan.requests.len() * thread / plan.threads,
            resting: Vec::new(),
            is_draining: false,
            script,
            scripted: (0..script.map_or(0, |_| connections * plan.streams)).map(|_| Scripted::default()).collect(),
            script_has_failed: false,
            delayed: BinaryHeap::new(),
            answers_at_tick: 0,
            cpu_at_second: 0,
        })
    }

    /// Runs until the end; all that was measured goes through `out`.
    pub(crate) fn run(mut self, control: &Control, out: &Sender<Message>) {
        sharpen_timers();
        let start = self.prepare(control);
        let end = self.plan.duration.map_or(u64::MAX, |d| start.saturating_add(d.as_nanos() as u64));
        let before = thread_facts();
        self.cpu_at_second = before.cpu_ns;
        self.pace.begin(start);
        let lag_ns = now_ns().saturating_sub(start);
        self.begin();
        self.drive(control, start, end, out);
        let on_time = self.tally.sample.answers;
        let wall_ns = now_ns().saturating_sub(start);
        if self.tally.sample.rates.is_empty() {
            self.tally.sample.rates.push(on_time as f64 * 1e9 / wall_ns.max(1) as f64);
        }
        if self.pace.is_open() {
            self.drain(control, end.min(self.now));
        }
        let after = thread_facts();
        let facts = ThreadFacts {
            cpu_ns: after.cpu_ns - before.cpu_ns,
            delay_ns: after.delay_ns.saturating_sub(before.delay_ns),
            wall_ns,
            lag_ns,
        };
        self.count_retransmits();
        self.send_second(self.second.number, out);
        let ending = Ending { thread: self.thread, sample: self.tally.finish(), on_time, facts };
        control.done.fetch_add(1, Ordering::Relaxed);
        let _ = out.send(Message::End(Box::new(ending)));
    }

    /// Open loop with kept connections: opens them before the start. Gives the common start.
    fn prepare(&mut self, control: &Control) -> u64 {
        if self.pace.is_open() && self.plan.close.is_none() {
            for id in 0..self.connections.len() as u32 {
                self.dial(id);
            }
        }
        let mut is_ready = false;
        loop {
            let start = control.start_ns.load(Ordering::Acquire);
            self.now = now_ns();
            if (start != 0 && self.now >= start) || control.stop.load(Ordering::Relaxed) {
                return if start == 0 { self.now } else { start };
            }
            if !is_ready && !self.connections.iter().any(|c| c.stage.is_opening()) {
                is_ready = true;
                control.ready.fetch_add(1, Ordering::Relaxed);
            }
            let wait = if start == 0 { START_POLL_NS } else { (start - self.now).min(START_POLL_NS) };
            self.events(wait);
        }
    }

    fn drive(&mut self, control: &Control, start: u64, end: u64, out: &Sender<Message>) {
        let mut next_tick = start + TICK_NS;
        loop {
            self.now = now_ns();
            if self.now >= end || control.stop.load(Ordering::Relaxed) || self.is_finished() || self.is_script_done() {
                return;
            }
            if self.now >= next_tick {
                self.tick(start, out);
                next_tick += TICK_NS * (1 + (self.now - next_tick) / TICK_NS);
            }
            self.send_due();
            self.send_delayed();
            self.flush_streams();
            let until = next_tick.min(end).min(self.pace.wake_at()).min(self.next_delayed());
            self.events(until.saturating_sub(self.now));
        }
    }

    /// `-n` requests are done.
    fn is_finished(&self) -> bool {
        self.in_flight == 0 && (self.left == 0 || (self.pace.is_open() && self.pace.next_due() == u64::MAX))
    }

    /// After the end: what is out may still be answered; what was due and not sent is counted with its age.
    fn drain(&mut self, control: &Control, end: u64) {
        self.send_due();
        self.flush_streams();
        self.is_draining = true;
        while self.left > 0
            && let Some(due) = self.pace.take_due(end)
        {
            self.left -= 1;
            self.tally.sample.unanswered += 1;
            self.second.latency.record(end - due);
        }
        let last = end.saturating_add(self.plan.timeout.as_nanos() as u64);
        while self.in_flight > 0 && !control.stop.load(Ordering::Relaxed) {
            self.now = now_ns();
            if self.now >= last {
                break;
            }
            self.events((last - self.now).min(TICK_NS));
        }
        for lane in self.lanes.iter().filter(|l| l.has_request) {
            self.tally.sample.unanswered += 1;
            self.second.latency.record(self.now.saturating_sub(lane.counted_from));
        }
    }

    /// Every 100 ms.
    fn tick(&mut self, start: u64, out: &Sender<Message>) {
        self.check_timeouts();
        self.wake_resting();
        let answers = self.tally.sample.answers;
        self.tally.sample.rates.push((answers - self.answers_at_tick) as f64 * (1e9 / TICK_NS as f64));
        self.answers_at_tick = answers;
        let number = ((self.now - start) / 1_000_000_000) as u32;
        if number != self.second.number {
            self.send_second(number, out);
        }
    }

    /// Sends the second that is over; `number` is the next one's.
    fn send_second(&mut self, number: u32, out: &Sender<Message>) {
        let cpu = thread_cpu_ns();
        self.second.cpu_ns = cpu - self.cpu_at_second;
        self.cpu_at_second = cpu;
        self.second.open = self.open;
        self.tally.sample.latency.merge(&self.second.latency);
        let next = Second { number, ..Second::default() };
        let _ = out.send(Message::Second(std::mem::replace(&mut self.second, next)));
    }
}

/// CPU time and waiting for a CPU, from the kernel's scheduler.
fn thread_facts() -> ThreadFacts {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let delay_ns = text.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    ThreadFacts { cpu_ns: thread_cpu_ns(), delay_ns, wall_ns: 0, lag_ns: 0 }
}
