//! Endpoints that nginx Plus does not have: what the dashboard and `ironweir top` show beside the others.

use super::error::Failure;
use super::http::RESPONSES;
use super::render;
use super::schema::{Field, Schema, field, maybe, number};
use super::table::Context;
use super::{Call, Outcome, Verb, table};
use crate::config::Subsystem;
use crate::process_settings::SocketKind;
use crate::snapshot::Snapshot;
use crate::status::latency::{self, Histogram};
use crate::status::{history, listeners, requests, rules, slot, spent, trial, turns};
use crate::tls::expiry::{self, Held};
use crate::worker::counters;
use doctor::why::{Watch, known_wake_costs};
use runtime::clock;
use serde_json::{Map, Value, json};
use std::sync::{Mutex, PoisonError};

/// `/ironweir/access`
pub static ACCESS: Schema = Schema::Object(&[field("write", Schema::Flag)]);

/// `/ironweir/access`
pub fn access(context: &Context) -> Result<Value, Failure> {
    Ok(json!({"write": context.call.write}))
}

/// `/ironweir/latency`
pub static LATENCY: Schema = Schema::Object(&[
    number("count"),
    maybe("p50_ms", Schema::Number),
    maybe("p90_ms", Schema::Number),
    maybe("p99_ms", Schema::Number),
    maybe("p999_ms", Schema::Number),
    field("steps_ms", Schema::Map(&Schema::Number)),
]);

/// Quantiles of all since the start, and the histogram, so that a reader can make those of any time between two looks.
pub fn latency(_: &Context) -> Result<Value, Failure> {
    let histogram = Histogram::read(&latency::REQUESTS_MS.sums());
    let mut all = Map::new();
    all.insert("count".to_owned(), json!(histogram.total()));
    for (name, part) in [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999)] {
        if let Some(ms) = histogram.quantile(part) {
            all.insert(name.to_owned(), json!(ms));
        }
    }
    let steps: Map<_, _> = histogram.steps().map(|(top, n)| (top.to_string(), json!(n))).collect();
    all.insert("steps_ms".to_owned(), steps.into());
    Ok(all.into())
}

/// `DELETE /ironweir/latency`
pub fn reset_latency(_: &Snapshot) {
    latency::REQUESTS_MS.reset(&[]);
}

/// `/ironweir/modsecurity`
pub static MODSECURITY: Schema = Schema::Object(&[
    number("judged"),
    number("matched"),
    number("refused"),
    number("given_up"),
    field("rules", Schema::Map(&Schema::Number)),
]);

/// What rules have found, and how often each that is logged has matched.
pub fn modsecurity(_: &Context) -> Result<Value, Failure> {
    let rules::Totals { judged, matched, refused, given_up } = rules::totals();
    let each: Map<_, _> = rules::matches().into_iter().map(|(id, n)| (id.to_string(), json!(n))).collect();
    Ok(json!({"judged": judged, "matched": matched, "refused": refused, "given_up": given_up, "rules": each}))
}

/// `DELETE /ironweir/modsecurity`
pub fn reset_modsecurity(_: &Snapshot) {
    rules::reset();
}

const STATES: Schema = Schema::Object(&[number("reading"), number("writing"), number("idle")]);
const TOTAL_FIELDS: &[Field] = &[
    number("processing"),
    number("requests"),
    field("responses", RESPONSES),
    number("discarded"),
    number("received"),
    number("sent"),
    field("connections", STATES),
    field("time", Schema::Time),
];
/// `/ironweir/totals`
pub static TOTALS: Schema = Schema::Object(TOTAL_FIELDS);

/// `/ironweir/totals`: what `/http/server_zones` shows, of all requests.
pub fn totals(_: &Context) -> Result<Value, Failure> {
    let mut value = render::requests(&requests::totals(&requests::ALL), true);
    let sum = counters::sum();
    value["connections"] = json!({"reading": sum.reading.max(0), "writing": sum.writing, "idle": sum.waiting.max(0)});
    value["time"] = json!(render::time(clock::wall_ms()));
    Ok(value)
}

const SAMPLE: Schema = Schema::Object(&[
    field("time", Schema::Time),
    number("span_ms"),
    field("answers", Schema::List(&Schema::Number)),
    field("latency_ms", Schema::List(&Schema::Number)),
    field("connections", Schema::List(&Schema::Number)),
]);
/// `/ironweir/history`
pub static HISTORY: Schema = Schema::Object(&[number("step_s"), field("samples", Schema::List(&SAMPLE))]);

/// `/ironweir/history`: the last hour. Of each step its length, answers (all, 4xx, 5xx), latency (p50, p90, p99; empty without
/// requests), and connections (writing, idle, reading) at its end.
pub fn history(_: &Context) -> Result<Value, Failure> {
    let show = |s: history::Sample| {
        let latency: Vec<u64> = s.latency_ms.into_iter().flatten().collect();
        json!({
            "time": render::time(s.time_ms), "span_ms": s.span_ms, "answers": s.answers, "latency_ms": latency, "connections": s.connections,
        })
    };
    let samples: Vec<Value> = history::samples().into_iter().map(show).collect();
    Ok(json!({"step_s": history::STEP_S, "samples": samples}))
}

const LISTENER_SCHEMA: Schema = Schema::Object(&[
    field("address", Schema::Text),
    field("kind", Schema::Text),
    number("accepted"),
    maybe("waiting", Schema::Number),
    maybe("limit", Schema::Number),
    maybe("drops", Schema::Number),
    maybe("fullest", Schema::Number),
    number("sockets"),
]);
/// `/ironweir/listeners`
pub static LISTENERS: Schema = Schema::Object(&[
    field("listeners", Schema::List(&LISTENER_SCHEMA)),
    field("namespace", Schema::Object(&[maybe("overflows", Schema::Number), maybe("drops", Schema::Number)])),
]);

/// `/ironweir/listeners`: of each address, what waits in the queues of its sockets, the queues' limits together, drops, and
/// the fullest queue in percent. `namespace`: the kernel's counts for all listeners of the machine or container.
pub fn listeners(_: &Context) -> Result<Value, Failure> {
    let show = |f: listeners::Facts| {
        let kind = if f.kind == SocketKind::Stream { "stream" } else { "datagram" };
        let mut value = json!({
            "address": f.address, "kind": kind, "accepted": f.accepted, "sockets": f.sockets.len(),
        });
        if !f.sockets.is_empty() {
            let sum = |of: fn(&listeners::Queue) -> u32| f.sockets.iter().map(|q| u64::from(of(q))).sum::<u64>();
            let part = |q: &listeners::Queue| u64::from(q.waiting) * 100 / u64::from(q.limit.max(1));
            value["waiting"] = json!(sum(|q| q.waiting));
            value["limit"] = json!(sum(|q| q.limit));
            if let Some(drops) = f.sockets.iter().map(|q| q.drops.map(u64::from)).sum::<Option<u64>>() {
                value["drops"] = json!(drops);
            }
            value["fullest"] = json!(f.sockets.iter().map(part).max().unwrap_or(0));
        }
        value
    };
    let all: Vec<_> = listeners::all().into_iter().map(show).collect();
    let namespace = match listeners::of_namespace() {
        Some((overflows, drops)) => json!({"overflows": overflows, "drops": drops}),
        None => json!({}),
    };
    Ok(json!({"listeners": all, "namespace": namespace}))
}

const CERTIFICATE: Schema = Schema::Object(&[
    field("name", Schema::Text),
    field("hosts", Schema::List(&Schema::Text)),
    field("not_before", Schema::Time),
    field("not_after", Schema::Time),
]);
/// `/ironweir/certificates`
pub static CERTIFICATES: Schema = Schema::Object(&[field("certificates", Schema::List(&CERTIFICATE))]);

/// `/ironweir/certificates`: those that `http` shows to clients, and until when they are good. Without those of which the
/// names have variables.
pub fn certificates(context: &Context) -> Result<Value, Failure> {
    let time = |seconds: i64| render::time(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    let show = |c: Held| json!({"name": c.name, "hosts": c.hosts, "not_before": time(c.not_before), "not_after": time(c.not_after)});
    let held = context.subsystem(Subsystem::Http).map(expiry::certificates).unwrap_or_default();
    Ok(json!({"certificates": held.into_iter().map(show).collect::<Vec<_>>()}))
}

const THREAD: Schema = Schema::Object(&[
    number("id"),
    number("tid"),
    number("accepted"),
    number("connections"),
    number("requests"),
    maybe("running_ns", Schema::Number),
    maybe("waiting_ns", Schema::Number),
    maybe("switches", Schema::Number),
    maybe("cpus", Schema::List(&Schema::Number)),
    field(
        "turns_us",
        Schema::Object(&[
            maybe("p50", Schema::Number),
            maybe("p99", Schema::Number),
            maybe("max", Schema::Number),
            field("steps", Schema::Map(&Schema::Number)),
        ]),
    ),
    field("work", WORK),
]);
const WAKE: Schema =
    Schema::Object(&[number("sleep_ns"), field("stretches", Schema::List(&Schema::List(&Schema::Number)))]);
const WORK: Schema = Schema::Object(&[
    number("turns"),
    number("timed"),
    number("polls"),
    number("polls_squared"),
    number("ns"),
    number("polls_ns"),
    number("squared"),
]);
/// `/ironweir/threads`
pub static THREADS: Schema =
    Schema::Object(&[field("threads", Schema::List(&THREAD)), maybe("wake", WAKE), field("time", Schema::Time)]);

/// `/ironweir/threads`: what each thread has done, how long it ran and was ready without running (nanoseconds, by the
/// kernel), how long the turns of its loop take (one of seventeen is timed), and what was done in those; and what a sleep cost a thread when the process started.
pub fn threads(_: &Context) -> Result<Value, Failure> {
    let show = |t: slot::Thread| {
        let sum = counters::of_thread(t.slot);
        let histogram = Histogram::read(&turns::TURNS_US.of(t.slot));
        let mut times = Map::new();
        for (name, part) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            histogram.quantile(part).map(|us| times.insert(name.to_owned(), json!(us)));
        }
        let steps: Map<_, _> = histogram.steps().map(|(top, n)| (top.to_string(), json!(n))).collect();
        times.insert("steps".to_owned(), steps.into());
        let work = turns::work(t.slot);
        let mut value = json!({
            "id": t.worker,
            "tid": t.tid,
            "accepted": sum.accepted,
            "connections": sum.active.max(0),
            "requests": sum.requests,
            "turns_us": times,
            "work": {
                "turns": work.turns,
                "timed": work.timed,
                "polls": work.polls,
                "polls_squared": work.polls_squared,
                "ns": work.ns,
                "polls_ns": work.polls_ns,
                "squared": work.squared,
            },
        });
        if let Some(schedule) = turns::schedule(t.tid) {
            value["running_ns"] = json!(schedule.running_ns);
            value["waiting_ns"] = json!(schedule.waiting_ns);
            value["switches"] = json!(schedule.switches);
        }
        if let Some(cpus) = turns::cpus(t.tid) {
            value["cpus"] = json!(cpus);
        }
        value
    };
    let all: Vec<_> = slot::workers().into_iter().map(show).collect();
    let mut value = json!({"threads": all, "time": render::time(clock::wall_ms())});
    if let Some(costs) = known_wake_costs() {
        value["wake"] = json!({"sleep_ns": costs.sleep_ns, "stretches": costs.stretches});
    }
    Ok(value)
}

const WRITES: Schema = Schema::Object(&[number("timed"), number("us")]);
/// `/ironweir/time`
pub static TIME: Schema =
    Schema::Object(&[number("requests"), field("parts_us", Schema::Map(&Schema::Number)), field("log_writes", WRITES)]);

/// `/ironweir/time`: what requests that are done waited for, microseconds of all of them together; and how long writes to
/// access logs take (one of sixteen is timed, and all of them while they are slow).
pub fn time(_: &Context) -> Result<Value, Failure> {
    let (requests, sums) = spent::sums();
    let (timed, us) = crate::log::timed::sums();
    let parts: Map<_, _> = spent::NAMES.iter().zip(sums).map(|(name, us)| ((*name).to_owned(), json!(us))).collect();
    Ok(json!({"requests": requests, "parts_us": parts, "log_writes": {"timed": timed, "us": us}}))
}

const POPULATION: Schema = Schema::Object(&[
    number("connections"),
    number("requests"),
    number("failed"),
    number("refused"),
    number("p50_ms"),
    number("p95_ms"),
]);
/// `/ironweir/canary`
pub static CANARY: Schema = Schema::Object(&[
    field("running", Schema::Flag),
    maybe("generation", Schema::Number),
    maybe("share", Schema::Ratio),
    field("old", POPULATION),
    field("new", POPULATION),
]);

/// `/ironweir/canary`: the configuration that is tried out (`share`: percent of new connections), and what was seen under it and under
/// the old one; of the last one if there is none now.
pub fn canary(_: &Context) -> Result<Value, Failure> {
    let [old, new] = trial::seen().map(|p| {
        json!({
            "connections": p.connections, "requests": p.requests, "failed": p.failed, "refused": p.refused,
            "p50_ms": p.quantile(0.5), "p95_ms": p.quantile(0.95),
        })
    });
    let mut value = json!({"running": false, "old": old, "new": new});
    if let Some((generation, share)) = trial::now() {
        value["running"] = json!(true);
        value["generation"] = json!(generation);
        value["share"] = json!(share as f64 / 100.0);
    }
    Ok(value)
}

const FINDING: Schema = Schema::Object(&[
    field("id", Schema::Text),
    field("weight", Schema::Text),
    field("what", Schema::Text),
    field("evidence", Schema::List(&Schema::Object(&[field("what", Schema::Text), field("from", Schema::Text)]))),
    field("why", Schema::Text),
    field("cure", Schema::List(&Schema::Text)),
    field("sure", Schema::Text),
]);
const RESOURCE: Schema =
    Schema::Object(&[field("name", Schema::Text), field("used", Schema::Ratio), field("evidence", Schema::Text)]);
const HEADROOM: Schema =
    Schema::Object(&[field("rate", Schema::Ratio), field("more", Schema::Ratio), field("then", RESOURCE)]);
const INTERFACE: Schema = Schema::Object(&[
    field("name", Schema::Text),
    field("rx_bits", Schema::Ratio),
    field("tx_bits", Schema::Ratio),
    field("rx_packets", Schema::Ratio),
    field("tx_packets", Schema::Ratio),
    field("drops", Schema::Ratio),
    field("errors", Schema::Ratio),
    maybe("speed", Schema::Number),
]);
/// `/ironweir/why`
pub static WHY: Schema = Schema::Object(&[
    field("seconds", Schema::Ratio),
    maybe("sentence", Schema::Text),
    maybe("finding", FINDING),
    maybe("others", Schema::List(&FINDING)),
    maybe("headroom", HEADROOM),
    maybe("parts_us", Schema::Map(&Schema::Ratio)),
    maybe("interfaces", Schema::List(&INTERFACE)),
]);

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

/// `/ironweir/why`: what is in the way, as of the time since it was asked before (at least a second); `seconds` is 0 for the first time.
pub fn why(context: &Context) -> Result<Value, Failure> {
    let ask = |endpoint: &str| {
        let (path, query) = endpoint.split_once('?').unwrap_or((endpoint, ""));
        let segments: Vec<String> = path.split('/').map(str::to_owned).collect();
        let call = Call {
            verb: Some(Verb::Get),
            path: String::new(),
            query: query.to_owned(),
            body: Vec::new(),
            write: false,
            snapshot: context.call.snapshot.clone(),
            address: String::new(),
            request_id: String::new(),
        };
        match table::find_and_call(&call, context.version, &segments) {
            Ok(Outcome::Found(value)) => Ok(Some(value)),
            _ => Ok(None),
        }
    };
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = watch.get_or_insert_default().ask(&ask);
    let answer = answer.map_err(|text| Failure::new(500, "WhyUnknown", &text))?;
    let Some((answer, seconds)) = answer else { return Ok(json!({"seconds": 0})) };
    let parts: Map<_, _> = answer.parts_us.into_iter().map(|(name, us)| (name, json!(us))).collect();
    let mut value =
        json!({"seconds": seconds, "sentence": answer.sentence, "others": answer.others, "parts_us": parts});
    if let Some(finding) = answer.finding {
        value["finding"] = json!(finding);
    }
    if let Some(headroom) = answer.headroom {
        value["headroom"] = json!(headroom);
    }
    if !answer.interfaces.is_empty() {
        value["interfaces"] = json!(answer.interfaces);
    }
    Ok(value)
}
