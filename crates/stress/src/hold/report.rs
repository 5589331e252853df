//! What people and programs read of held connections.

use super::{HoldPlan, HoldRecord, HoldSecond};
use crate::report::{binary, time};
use crate::sample::{Failure, Latencies};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The first lines.
pub fn head(plan: &HoldPlan) -> String {
    let beat = plan.heartbeat.map(|h| format!(", a heartbeat every {}", time(h.as_nanos() as f64))).unwrap_or_default();
    format!(
        "Holding {} {} connections @ {}\n  {} new ones a second, {} threads{beat}\n",
        plan.count,
        plan.protocol.name(),
        plan.base.url,
        plan.ramp,
        plan.base.threads
    )
}

/// One second.
pub fn line(count: usize, second: &HoldSecond) -> String {
    let HoldSecond { number, tried, held, failed, lost, messages } = second;
    format!("{number:>5}s  held {held} of {count}  opened {tried}  failed {failed}  lost {lost}  messages {messages}\n")
}

/// The whole summary.
pub fn summary(r: &HoldRecord) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "  {} held at the end, {} at most, {} opened, {} lost", r.held, r.most, r.opened, r.lost);
    for (name, times) in [("Connect", &r.sample.connect), ("Ready", &r.ready), ("Heartbeat", &r.beat)] {
        if times.count() > 0 {
            let [a, b, c] = [0.5, 0.99, 1.0].map(|q| time(times.quantile(q) as f64));
            let _ = writeln!(out, "  {name:<12} p50 {a}, p99 {b}, max {c} ({} times)", times.count());
        }
    }
    let _ = writeln!(out, "  {} messages, {}B read", r.messages, binary(r.sample.bytes_read as f64));
    for kind in Failure::ALL.into_iter().filter(|&k| r.sample.failures_of(k) > 0) {
        let _ = writeln!(out, "    {:>10}  {}", r.sample.failures_of(kind), kind.name());
    }
    let _ = writeln!(out, "  User memory: {:.0} bytes a connection", r.memory_each);
    let bound = if r.verdict.limit.is_valid() { "" } else { ">= " };
    let _ = writeln!(out, "Held: {bound}{}", r.held);
    let _ = writeln!(out, "Verdict: {}", r.verdict.limit.name());
    for sentence in &r.verdict.evidence {
        let _ = writeln!(out, "  {sentence}");
    }
    if let Some(partial) = &r.partial {
        let _ = writeln!(out, "PARTIAL: {partial}");
    }
    out
}

/// For programs.
pub fn json(plan: &HoldPlan, r: &HoldRecord) -> Value {
    let times = |l: &Latencies| {
        let us = |q: f64| l.quantile(q) as f64 / 1e3;
        json!({ "count": l.count(), "p50": us(0.5), "p90": us(0.9), "p99": us(0.99), "max": us(1.0) })
    };
    let errors: Map<String, Value> =
        Failure::ALL.iter().map(|&k| (k.name().to_owned(), r.sample.failures_of(k).into())).collect();
    json!({
        "schema": 1,
        "url": plan.base.url.to_string(),
        "protocol": plan.protocol.name(),
        "wanted": plan.count,
        "held": r.held,
        "most": r.most,
        "opened": r.opened,
        "lost": r.lost,
        "messages": r.messages,
        "duration_s": r.seconds,
        "bytes_read": r.sample.bytes_read,
        "errors": errors,
        "connect_us": times(&r.sample.connect),
        "ready_us": times(&r.ready),
        "heartbeat_us": times(&r.beat),
        "memory_bytes_each": r.memory_each,
        "verdict": { "limit": r.verdict.limit, "valid": r.verdict.limit.is_valid(), "evidence": r.verdict.evidence },
        "series": r.series,
        "partial": r.partial,
    })
}
