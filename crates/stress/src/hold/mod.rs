//! Hold mode: opens N connections at a steady rate and keeps them, idle or with a heartbeat. From: options. To: its own summary.

mod client;
pub mod report;
pub mod talk;

use crate::client::now_ns;
use crate::options::Options;
use crate::plan::url::Scheme;
use crate::plan::{Part, Plan, TOO_FEW, cpus};
use crate::run::is_local;
use crate::sample::{Failure, Latencies, Sample};
use crate::verdict::{Limit, Verdict};
use client::{Holder, Outcome, Shared};
use machine::own;
use rings::Rings;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use talk::Protocol;
use wire::{mqtt, websocket};

/// New connections a second unless `--ramp` says otherwise: fast, but below what fills a listen queue of 511.
const DEFAULT_RAMP: f64 = 1000.0;
/// How long all are kept after the last was opened.
const DEFAULT_KEEP: Duration = Duration::from_secs(10);
/// Descriptors of a thread that are no connections.
const OTHER_DESCRIPTORS: u64 = 64;
/// Between two lines.
const SECOND: Duration = Duration::from_secs(1);
/// Between two looks at Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// More losses than this are the target's limit.
const LOST: f64 = 0.001;

/// What will be held.
#[derive(Clone, Debug)]
pub struct HoldPlan {
    /// Addresses, TLS, threads.
    pub base: Plan,
    /// How many connections.
    pub count: usize,
    /// New ones a second.
    pub ramp: f64,
    /// Between two signs of life on a connection.
    pub heartbeat: Option<Duration>,
    /// What is spoken.
    pub protocol: Protocol,
    /// How long all are kept after the last was opened.
    pub keep: Duration,
    /// What is sent first, but for MQTT, where each client has a name.
    opening: Vec<u8>,
    client_prefix: String,
    /// There are more connections than descriptors: how that is.
    beyond: Beyond,
    /// Descriptors for connections.
    descriptors: usize,
}

/// What is done about connections for which there are no descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// There are none.
    Nothing,
    /// Those that are held are parked: their files stand in io_uring's tables.
    Parked,
    /// Each thread has a table of descriptors of its own.
    OwnTables,
}

impl HoldPlan {
    /// Decides what options mean together. Of `count` connections, and of the ramp, one of several machines has its part.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn new(options: &Options, count: usize, part: Part) -> Result<HoldPlan, String> {
        let count = part.share(count as u64) as usize;
        if count == 0 {
            return Err(TOO_FEW.to_owned());
        }
        let needed = count as u64 + OTHER_DESCRIPTORS;
        let limit = own::raise_descriptor_limit(needed);
        let beyond = match needed > limit {
            false => Beyond::Nothing,
            // TLS has state of its own; what is parked is plain.
            true if !is_secure(options) && Rings::open(1).is_ok() => Beyond::Parked,
            true => Beyond::OwnTables,
        };
        let mut threads = options.threads.unwrap_or(cpus()).min(count);
        if beyond == Beyond::OwnTables {
            let room = limit.saturating_sub(OTHER_DESCRIPTORS).max(1);
            threads = threads.max((count as u64).div_ceil(room) as usize);
        }
        let mut others = OTHER_DESCRIPTORS;
        if beyond == Beyond::Parked {
            // A ring takes a descriptor, and each thread's next one is opened before the last is full.
            others += (count as u64).div_ceil(rings::files_each(limit).into()) + 2 * threads as u64;
        }
        let base_options = Options {
            threads: Some(threads),
            connections: Some(count),
            duration: None,
            requests: None,
            rate: None,
            stages: Vec::new(),
            ..options.clone()
        };
        let mut base = Plan::new(&base_options)?;
        if beyond == Beyond::OwnTables {
            base.notes.push(format!(
                "{count} connections are more than this process's limit of {limit} descriptors: {threads} threads with a table \
                 of their own each; ulimit -n {needed} (LimitNOFILE= in a unit) does without"
            ));
        }
        let protocol = protocol(options, base.url.scheme)?;
        Ok(HoldPlan {
            opening: opening(&base, &protocol, options),
            base,
            count,
            ramp: options.ramp.unwrap_or(DEFAULT_RAMP) / part.of as f64,
            heartbeat: options.heartbeat.filter(|h| !h.is_zero()),
            protocol,
            keep: options.duration.unwrap_or(DEFAULT_KEEP),
            client_prefix: format!("ironweir-{}-{}", std::process::id(), part.index),
            beyond,
            descriptors: usize::try_from(limit.saturating_sub(others)).unwrap_or(usize::MAX),
        })
    }

    fn share(&self, thread: usize) -> usize {
        self.base.share(thread)
    }
}

fn is_secure(o: &Options) -> bool {
    let secure = ["https://", "wss://", "mqtts://"];
    o.url.iter().any(|url| secure.iter().any(|scheme| url.to_ascii_lowercase().starts_with(scheme)))
}

fn protocol(o: &Options, scheme: Scheme) -> Result<Protocol, String> {
    let by_scheme = match scheme {
        Scheme::Http | Scheme::Https => "http",
        Scheme::Ws | Scheme::Wss => "websocket",
        Scheme::Mqtt | Scheme::Mqtts => "mqtt",
    };
    let version = match o.mqtt.as_deref() {
        None | Some("5") => mqtt::Version::V5,
        Some("3.1.1" | "3") => mqtt::Version::V3,
        Some(other) => return Err(format!("--mqtt {other}: 3.1.1 or 5")),
    };
    Ok(match o.hold_protocol.as_deref().unwrap_or(by_scheme) {
        "http" => Protocol::Http,
        "longpoll" | "long-poll" => Protocol::LongPoll,
        "sse" => Protocol::Sse,
        "websocket" | "ws" => Protocol::WebSocket,
        "mqtt" => Protocol::Mqtt { version, topic: o.topic.clone(), qos: o.qos },
        other => return Err(format!("--hold-protocol {other}: http, longpoll, sse, websocket or mqtt")),
    })
}

fn opening(base: &Plan, protocol: &Protocol, o: &Options) -> Vec<u8> {
    let headers: String = o.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    match protocol {
        Protocol::WebSocket => websocket::upgrade(&base.url.path, &base.url.authority, &headers),
        Protocol::Sse => format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n{headers}\r\n",
            base.url.path, base.url.authority
        )
        .into_bytes(),
        _ => base.requests.first().map(|r| r.bytes.to_vec()).unwrap_or_default(),
    }
}

/// Where it is at the end of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldSecond {
    /// Which, from 1.
    pub number: u32,
    /// Connections that were tried.
    pub tried: u64,
    /// Connections that are held.
    pub held: u64,
    /// Connections that ended before they were held.
    #[serde(default)]
    pub failed: u64,
    /// Connections that were held, and are not any more.
    pub lost: u64,
    /// Messages, events, answers so far.
    pub messages: u64,
}

impl HoldSecond {
    /// Adds another machine's.
    pub fn merge(&mut self, other: &HoldSecond) {
        self.tried += other.tried;
        self.held += other.held;
        self.failed += other.failed;
        self.lost += other.lost;
        self.messages += other.messages;
    }
}

/// What holding connections tells while it lasts.
pub trait HoldWatch {
    /// A second is over.
    fn second(&mut self, second: &HoldSecond);
    /// Called about 20 times a second; false ends it.
    fn goes_on(&mut self) -> bool;
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HoldRecord {
    /// From the first `connect` to the end, seconds.
    pub seconds: f64,
    /// Connections that were tried.
    pub tried: u64,
    /// Connections that came to be held.
    pub opened: u64,
    /// The most at a time.
    pub most: u64,
    /// Held at the end.
    pub held: u64,
    /// Held, and then ended by the target.
    pub lost: u64,
    /// Messages, events, answers.
    pub messages: u64,
    /// Failures, bytes, connect times.
    pub sample: Sample,
    /// From the established connection to what it is for.
    pub ready: Latencies,
    /// From a heartbeat to its answer.
    pub beat: Latencies,
    /// User memory of this process for each held connection, bytes.
    pub memory_each: f64,
    /// Held connections at the end of each second.
    pub series: Vec<u64>,
    /// If it is not whole: why.
    pub partial: Option<String>,
    /// The judgement.
    pub verdict: Verdict,
}

/// Opens and holds, from `start_ns` on (monotonic clock, nanoseconds) if that is given.
///
/// # Errors
/// If it could not begin.
pub fn run(plan: &HoldPlan, watch: &mut dyn HoldWatch, start_ns: Option<u64>) -> Result<HoldRecord, String> {
    let shared = Shared::default();
    // Threads and their buffers are there before the first connection, and no connection's memory.
    let ready = Barrier::new(plan.base.threads + 1);
    let end = Duration::from_secs_f64(plan.count as f64 / plan.ramp) + plan.keep;
    let (mut series, mut most, mut held) = (Vec::new(), 0, 0);
    let mut seconds = 0.0;
    let mut memory = 0;
    let outcomes = std::thread::scope(|scope| {
        let holder = |thread: usize| {
            let (shared, ready) = (&shared, &ready);
            move || {
                let holder = Holder::new(plan, shared, thread);
                ready.wait();
                holder.map(|h| h.run(start_ns.unwrap_or_else(now_ns)))
            }
        };
        let threads: Vec<_> = (0..plan.base.threads).map(|t| scope.spawn(holder(t))).collect();
        ready.wait();
        if let Some(start) = start_ns {
            std::thread::sleep(Duration::from_nanos(start.saturating_sub(now_ns())));
        }
        let (began, memory_before) = (Instant::now(), own::resident_bytes());
        while began.elapsed() < end && !threads.iter().any(|t| t.is_finished()) {
            std::thread::sleep(LOOK);
            held = shared.held.load(Ordering::Relaxed);
            most = most.max(held);
            if began.elapsed() >= SECOND * (series.len() as u32 + 1) {
                series.push(held);
                watch.second(&shared.second(series.len() as u32));
            }
            if !watch.goes_on() {
                break;
            }
        }
        memory = own::resident_bytes().saturating_sub(memory_before);
        seconds = began.elapsed().as_secs_f64();
        shared.stop.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|t| t.join().expect("a holder does not panic"));
        joined.collect::<Result<Vec<Outcome>, _>>().map_err(|e| format!("a thread: {e}"))
    })?;
    let tried = shared.tried.load(Ordering::Relaxed);
    let mut record = HoldRecord {
        seconds,
        tried,
        opened: 0,
        most,
        held,
        lost: 0,
        messages: 0,
        sample: Sample::new(1),
        ready: Latencies::default(),
        beat: Latencies::default(),
        // The list may lie in pages that were there before.
        memory_each: if held == 0 { 0.0 } else { (memory as f64 / held as f64).max(client::LEAST_MEMORY as f64) },
        series,
        partial: None,
        verdict: Verdict { limit: Limit::None, evidence: Vec::new() },
    };
    for outcome in outcomes {
        record.opened += outcome.opened;
        record.lost += outcome.lost;
        record.messages += outcome.messages;
        record.ready.merge(&outcome.ready);
        record.beat.merge(&outcome.beat);
        record.sample.merge(&outcome.tally.finish());
    }
    record.verdict = judge(plan, &record);
    Ok(record)
}

impl Shared {
    fn second(&self, number: u32) -> HoldSecond {
        let [tried, held, failed, lost, messages] =
            [&self.tried, &self.held, &self.failed, &self.lost, &self.messages].map(|n| n.load(Ordering::Relaxed));
        HoldSecond { number, tried, held, failed, lost, messages }
    }
}

fn judge(plan: &HoldPlan, r: &HoldRecord) -> Verdict {
    let mut evidence = vec![format!("{} of {} connections held at the end, {} were lost", r.held, plan.count, r.lost)];
    let of = |kind| r.sample.failures_of(kind);
    let mut limit = Limit::None;
    let missing = plan.count as u64 - r.held.min(plan.count as u64);
    if missing as f64 > plan.count as f64 * LOST {
        limit = Limit::Target;
        let kinds = Failure::ALL.iter().filter(|&&k| of(k) > 0).map(|&k| format!("{} {}", of(k), k.name()));
        let kinds: Vec<String> = kinds.collect();
        evidence.push(match kinds.is_empty() {
            true => format!("{missing} were not answered until the end"),
            false => format!("failures: {}", kinds.join(", ")),
        });
        if is_local(&plan.base) {
            evidence.push(
                "the target is on this machine: its descriptor limit and memory are this machine's too".to_owned(),
            );
        }
    }
    if of(Failure::NoPort) > 0 {
        limit = Limit::Generator;
        let ports = own::local_ports().map_or(0, u64::from) * plan.base.sources.len().max(1) as u64;
        evidence.push(format!(
            "{} connections found no local port: there are {ports} to one target; --source 127.0.1.0/26 (addresses of this \
             machine) gives as many again for each",
            of(Failure::NoPort)
        ));
    }
    if of(Failure::NoDescriptor) > 0 {
        limit = Limit::Generator;
        evidence.push(format!(
            "{} connections found no descriptor: raise the limit with ulimit -n {}",
            of(Failure::NoDescriptor),
            plan.count as u64 + OTHER_DESCRIPTORS
        ));
    }
    if r.tried < plan.count as u64 {
        limit = Limit::Generator;
        evidence.push(format!("only {} of {} connections were opened by the end", r.tried, plan.count));
    }
    Verdict { limit, evidence }
}
