//! Runs a plan on this machine: starts the threads, collects their seconds, watches the machine, judges.
//! From: `plan`. To: `report`.

use crate::client::{Client, Control, Ending, Message, now_ns};
use crate::plan::{Address, Http, Load, Plan};
use crate::sample::{Sample, Second};
use crate::script::State;
use crate::verdict::{Evidence, Verdict, judge};
use machine::neighbour::{self, Endpoint, Neighbour};
use machine::own::{self, Counters};
use machine::probe::Probe;
use machine::queue;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, SystemTime};

/// How long connections may take to open before an open-loop run starts without those that are missing.
const OPENING: Duration = Duration::from_secs(2);
/// Between the last preparation and the common start.
const LEAD_NS: u64 = 2_000_000;
/// Between two looks at whether the run was told to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Descriptors that are no connections: files, epolls, probes.
const OTHER_DESCRIPTORS: u64 = 64;

/// A run and what it came to.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it began.
    pub began: SystemTime,
    /// From the common start to the end, seconds.
    pub seconds: f64,
    /// All threads together.
    pub sample: Sample,
    /// Answers by the end; `sample.answers` may include some that came after it.
    pub on_time: u64,
    /// Second by second.
    pub series: Vec<Second>,
    /// What it rests on.
    pub evidence: Evidence,
    /// The judgement.
    pub verdict: Verdict,
    /// If it is not whole: why, and what it carried all the same.
    pub partial: Option<String>,
    /// Its user ended it.
    pub was_ended: bool,
    /// How many agents it ran on; 0: on this machine.
    pub agents: usize,
    /// How long after the common start the last thread began, nanoseconds.
    pub start_lag_ns: u64,
}

impl Record {
    /// Answers a second.
    pub fn rate(&self) -> f64 {
        self.on_time as f64 / self.seconds.max(1e-9)
    }
}

/// What a run tells while it lasts. Called on the thread that called [`run`].
pub trait Watch {
    /// The threads have their common start.
    fn start(&mut self) {}
    /// A second is over on all threads.
    fn second(&mut self, second: &Second) {
        let _ = second;
    }
    /// Called about 20 times a second; false ends the run.
    fn goes_on(&mut self) -> bool {
        true
    }
}

/// Watches nothing.
impl Watch for () {}

/// Runs a plan to its end.
///
/// # Errors
/// If it could not begin.
pub fn run(plan: &Plan, watch: &mut dyn Watch) -> Result<Record, String> {
    run_at(plan, watch, None)
}

/// Like [`run`], at a given start (monotonic clock, nanoseconds): one of several machines.
pub(crate) fn run_at(plan: &Plan, watch: &mut dyn Watch, start_ns: Option<u64>) -> Result<Record, String> {
    let descriptors = own::raise_descriptor_limit(plan.connections as u64 + OTHER_DESCRIPTORS);
    let control = Arc::new(Control::default());
    let probe = Probe::start(handshakes(plan));
    let queue = queue::Watch::start(handshakes(plan).filter(|_| is_local(plan)));
    let interface = interface(plan);
    let before = Counters::read(interface.as_deref());
    let began = SystemTime::now();
    let (out, messages) = channel();
    let (mut collected, end_ns) = std::thread::scope(|scope| {
        let started = start_clients(plan, scope, &control, out);
        if let Err(text) = started {
            control.stop.store(true, Ordering::Relaxed);
            return Err(text);
        }
        let start = wait_for_start(plan, &control, start_ns, watch);
        control.start_ns.store(start, Ordering::Release);
        watch.start();
        Ok(collect(plan, &control, &messages, start, watch))
    })?;
    if let Some(text) = plan.script.as_ref().and_then(|script| script.failure()) {
        return Err(format!("script: {text}"));
    }
    let counters = Counters::read(interface.as_deref()).since(&before);
    let seconds = (end_ns.saturating_sub(control.start_ns.load(Ordering::Relaxed))) as f64 / 1e9;
    collected.endings.sort_by_key(|e| e.thread);
    let mut sample = Sample::new(plan.urls.len());
    collected.endings.iter().for_each(|e| sample.merge(&e.sample));
    let on_time = collected.endings.iter().map(|e| e.on_time).sum();
    let start_lag_ns = collected.endings.iter().map(|e| e.facts.lag_ns).max().unwrap_or(0);
    let evidence = Evidence {
        wanted: wanted(plan, seconds).map(|w| w / plan.part.of as u64),
        on_time,
        threads: collected.endings.iter().map(|e| e.facts.parts()).collect(),
        counters,
        seconds,
        speed: interface.as_deref().filter(|i| own::is_physical(i)).and_then(own::speed),
        way_us: probe.finish(),
        is_local: is_local(plan),
        shares_cpus: is_local(plan) && neighbour(plan).is_none_or(|n| !n.shared.is_empty()),
        is_loopback: interface.as_deref() == Some("lo"),
        ports: own::local_ports().map(|p| u64::from(p) * plan.sources.len().max(1) as u64),
        time_waits: own::time_waits(),
        descriptors,
        connections: plan.connections as u64,
        queue: queue.finish(),
        turned_away: 0,
    };
    let verdict = judge(&sample, &evidence);
    let series = collected.series.into_values().collect();
    let was_ended = !watch.goes_on();
    Ok(Record {
        began,
        seconds,
        sample,
        on_time,
        series,
        evidence,
        verdict,
        partial: None,
        was_ended,
        agents: 0,
        start_lag_ns,
    })
}

/// Requests that the schedule had by the end.
pub(crate) fn wanted(plan: &Plan, seconds: f64) -> Option<u64> {
    let Load::Open(schedule) = &plan.load else { return None };
    let end_ns = (seconds * 1e9) as u64;
    let (mut low, mut high) = (0, schedule.count());
    while low < high {
        let middle = low + (high - low) / 2;
        if schedule.due_ns(middle).is_some_and(|due| due < end_ns) { low = middle + 1 } else { high = middle }
    }
    Some(low.min(plan.total.unwrap_or(u64::MAX)))
}

/// Starts a client on each thread; those of a script are where its states are. Comes back when all are made, or one could not be.
fn start_clients<'s>(
    plan: &'s Plan,
    scope: &'s Scope<'s, '_>,
    control: &'s Arc<Control>,
    out: Sender<Message>,
) -> Result<(), String> {
    let (told, made) = channel();
    let shared = plan.script.as_ref().map(|script| (script, Arc::new(plan.clone())));
    for number in 0..plan.threads {
        let (out, told) = (out.clone(), told.clone());
        match &shared {
            Some((script, plan)) => {
                let (plan, control) = (plan.clone(), control.clone());
                script.run(number, move |state| serve(&plan, number, Some(state), &control, &told, &out))?;
            }
            None => {
                let serve = move || serve(plan, number, None, control, &told, &out);
                let spawned = std::thread::Builder::new().name(format!("client {number}")).spawn_scoped(scope, serve);
                spawned.map_err(|e| format!("thread {number}: {e}"))?;
            }
        }
    }
    drop(told);
    // A thread that is gone has told nothing.
    (0..plan.threads).try_for_each(|_| made.recv().map_err(|_| "a client has not begun".to_owned())?)
}

/// A thread's part. `told`: whether it could begin.
fn serve(
    plan: &Plan,
    number: usize,
    state: Option<&State>,
    control: &Control,
    told: &Sender<Result<(), String>>,
    out: &Sender<Message>,
) {
    match Client::new(plan, number, state) {
        Ok(client) => {
            let _ = told.send(Ok(()));
            client.run(control, out);
        }
        Err(e) => {
            let _ = told.send(Err(format!("thread {number}: {e}")));
        }
    }
}

fn wait_for_start(plan: &Plan, control: &Control, start_ns: Option<u64>, watch: &mut dyn Watch) -> u64 {
    if let Some(start) = start_ns {
        return start;
    }
    let limit = now_ns() + OPENING.as_nanos() as u64;
    while control.ready.load(Ordering::Relaxed) < plan.threads && now_ns() < limit && watch.goes_on() {
        std::thread::sleep(Duration::from_millis(1));
    }
    now_ns() + LEAD_NS
}

struct Collected {
    endings: Vec<Ending>,
    series: BTreeMap<u32, Second>,
}

/// Takes the threads' messages until all have ended. Gives the time of the end: the planned one, or when they stopped.
fn collect(
    plan: &Plan,
    control: &Control,
    messages: &Receiver<Message>,
    start: u64,
    watch: &mut dyn Watch,
) -> (Collected, u64) {
    let mut collected = Collected { endings: Vec::new(), series: BTreeMap::new() };
    let mut counted: BTreeMap<u32, usize> = BTreeMap::new();
    let mut wall = 0;
    loop {
        match messages.recv_timeout(LOOK) {
            Ok(Message::Second(second)) => {
                let number = second.number;
                let whole = collected.series.entry(number).or_insert_with(|| Second { number, ..Second::default() });
                whole.merge(&second);
                let seen = counted.entry(number).or_default();
                *seen += 1;
                if *seen == plan.threads {
                    watch.second(whole);
                }
            }
            Ok(Message::End(ending)) => {
                wall = wall.max(ending.facts.wall_ns);
                collected.endings.push(*ending);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !watch.goes_on() {
            control.stop.store(true, Ordering::Relaxed);
        }
    }
    let planned = plan.duration.map_or(u64::MAX, |d| d.as_nanos() as u64);
    (collected, start + wall.min(planned))
}

pub(crate) fn interface(plan: &Plan) -> Option<String> {
    match &plan.address {
        Address::Tcp(address) => own::interface_to(address.ip()),
        Address::Unix(_) => None,
    }
}

/// Whose handshakes tell of the way. QUIC's is the application's: it tells nothing.
fn handshakes(plan: &Plan) -> Option<SocketAddr> {
    match plan.address {
        Address::Tcp(address) if plan.http != Http::Three => Some(address),
        _ => None,
    }
}

/// The program behind the target, if it is on this machine.
pub(crate) fn neighbour(plan: &Plan) -> Option<Neighbour> {
    neighbour::of(match &plan.address {
        Address::Tcp(address) if plan.http == Http::Three => Endpoint::Udp(*address),
        Address::Tcp(address) => Endpoint::Tcp(*address),
        Address::Unix(path) => Endpoint::Unix(path),
    })
}

pub(crate) fn is_local(plan: &Plan) -> bool {
    match &plan.address {
        Address::Tcp(address) => own::is_local(address.ip()),
        Address::Unix(_) => true,
    }
}
