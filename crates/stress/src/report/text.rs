//! The summary: wrk's, line by line, then what wrk does not say.

use super::{binary, metric, time};
use crate::plan::{Load, Plan};
use crate::run::Record;
use crate::sample::Failure;
use std::fmt::Write;

/// Statuses, URLs and backends that are listed; the rest is summed up.
const LISTED: usize = 12;

/// The first lines, before the run.
pub fn head(plan: &Plan) -> String {
    let how_long = match (plan.duration, plan.total) {
        (_, Some(total)) => format!("{total} requests"),
        (Some(duration), None) => format!("{} test", short_time(duration.as_nanos() as f64)),
        (None, None) => "test".to_owned(),
    };
    let mut out = format!("Running {how_long} @ {}\n", plan.url);
    let _ = writeln!(out, "  {} threads and {} connections", plan.threads, plan.connections);
    if plan.http.has_streams() {
        let _ = writeln!(out, "  HTTP/{}, at most {} streams a connection", plan.http.name(), plan.streams);
    }
    if let Load::Open(schedule) = &plan.load {
        let seconds = schedule.end_ns() as f64 / 1e9;
        let _ = writeln!(
            out,
            "  open loop: {} requests a second, on a schedule",
            metric(schedule.count() as f64 / seconds)
        );
    }
    out
}

/// `30s`, as wrk writes the planned time.
fn short_time(ns: f64) -> String {
    let text = time(ns);
    let digits = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// The whole summary.
pub fn summary(plan: &Plan, record: &Record, with_latency: bool) -> String {
    let mut out = String::new();
    thread_stats(&mut out, record);
    if with_latency {
        distribution(&mut out, record);
    }
    totals(&mut out, record);
    details(&mut out, plan, record);
    rates(&mut out, record);
    verdict(&mut out, record);
    out
}

fn thread_stats(out: &mut String, record: &Record) {
    let latency = &record.sample.latency;
    out.push_str("  Thread Stats   Avg      Stdev     Max   +/- Stdev\n");
    let mut row = |name: &str, numbers: [String; 3], within: f64| {
        let [a, b, c] = numbers;
        let _ = writeln!(out, "    {name:<10}{}{}{}{:8.2}%", unit(&a, 8), unit(&b, 10), unit(&c, 9), within * 100.0);
    };
    let numbers = [latency.mean(), latency.stdev(), latency.max() as f64].map(time);
    row("Latency", numbers, latency.within_stdev(1.0));
    let (mean, stdev, max, within) = spread(&record.sample.rates);
    row("Req/Sec", [mean, stdev, max].map(metric), within);
}

/// wrk's columns: numbers end at the same place, units stand behind them.
fn unit(text: &str, width: usize) -> String {
    let letters = text.bytes().rev().take(2).take_while(u8::is_ascii_alphabetic).count();
    let pad = 2 - letters;
    format!("{text:>width$}{:pad$}", "", width = width - pad)
}

/// Mean, standard deviation, maximum, and the part within one deviation.
fn spread(values: &[f64]) -> (f64, f64, f64, f64) {
    let count = values.len().max(1) as f64;
    // The sum of nothing is -0.
    let mean = values.iter().fold(0.0, |a, v| a + v) / count;
    let stdev = (values.iter().fold(0.0, |a, v| a + (v - mean).powi(2)) / count).sqrt();
    let within = values.iter().filter(|v| (*v - mean).abs() <= stdev).count() as f64 / count;
    (mean, stdev, values.iter().copied().fold(0.0, f64::max), within)
}

fn distribution(out: &mut String, record: &Record) {
    out.push_str("  Latency Distribution\n");
    let more = [99.9, 99.99];
    for percent in [50.0, 75.0, 90.0, 99.0].into_iter().chain(more) {
        let value = record.sample.latency.quantile(percent / 100.0);
        let name = if more.contains(&percent) { format!("{percent:>7}") } else { format!("{percent:7.0}") };
        let _ = writeln!(out, "{name}%{}", unit(&time(value as f64), 10));
    }
}

fn totals(out: &mut String, record: &Record) {
    let s = &record.sample;
    let (duration, bytes) = (time(record.seconds * 1e9), binary(s.bytes_read as f64));
    let _ = writeln!(out, "  {} requests in {duration}, {bytes}B read", s.answers);
    if s.failed() > 0 {
        let sum = |kinds: &[Failure]| kinds.iter().map(|&k| s.failures_of(k)).sum::<u64>();
        use Failure::*;
        let _ = writeln!(
            out,
            "  Socket errors: connect {}, read {}, write {}, timeout {}",
            sum(&[Refused, ConnectTimeout, Connect, NoPort, NoDescriptor, Tls]),
            sum(&[Reset, Closed, Protocol]),
            sum(&[Write]),
            sum(&[Timeout])
        );
    }
    if s.bad_statuses() > 0 {
        let _ = writeln!(out, "  Non-2xx or 3xx responses: {}", s.bad_statuses());
    }
}

fn details(out: &mut String, plan: &Plan, record: &Record) {
    let s = &record.sample;
    if s.failed() > 0 {
        let kinds = Failure::ALL.iter().map(|&k| (k.name().to_owned(), s.failures_of(k))).filter(|(_, c)| *c > 0);
        list(out, "Failures", kinds.collect());
    }
    if s.unanswered > 0 {
        let _ = writeln!(out, "  Due but unanswered at the end: {}", s.unanswered);
    }
    if s.statuses.len() > 1 || s.bad_statuses() > 0 {
        list(out, "Statuses", s.statuses.iter().map(|(status, &count)| (status.to_string(), count)).collect());
    }
    if !s.backends.is_empty() {
        let mut backends: Vec<_> = s.backends.iter().map(|(name, &count)| (name.clone(), count)).collect();
        backends.sort_by_key(|b| std::cmp::Reverse(b.1));
        let largest = backends.first().map_or(0, |b| b.1) as f64;
        let even = s.answers as f64 / backends.len() as f64;
        list(out, &format!("Backends (the busiest has {:.2} times its even share)", largest / even.max(1.0)), backends);
    }
    urls(out, plan, record);
    let parts = [("Connect", &s.connect), ("TLS", &s.tls), ("First byte", &s.first_byte), ("From sending", &s.service)];
    for (name, times) in parts.into_iter().filter(|(_, t)| t.count() > 0) {
        let [a, b, c] = [0.5, 0.99, 1.0].map(|q| time(times.quantile(q) as f64));
        let _ = writeln!(out, "  {name:<12} p50 {a}, p99 {b}, max {c} ({} times)", times.count());
    }
    if s.lateness.count() > 0 {
        let [a, b, c] = [0.5, 0.99, 1.0].map(|q| time(s.lateness.quantile(q) as f64));
        let _ = writeln!(out, "  Sent late by the generator itself: p50 {a}, p99 {b}, max {c}");
    }
    if s.reconnects > 0 {
        let _ = writeln!(out, "  Kept connections that the target closed: {}", s.reconnects);
    }
}

fn urls(out: &mut String, plan: &Plan, record: &Record) {
    let urls = &record.sample.urls;
    if urls.len() < 2 {
        return;
    }
    out.push_str("  URLs, the slowest first\n");
    let mut order: Vec<usize> = (0..urls.len()).filter(|&u| urls[u].answers > 0).collect();
    let mean = |u: usize| urls[u].total_ns as f64 / urls[u].answers.max(1) as f64;
    order.sort_by(|&a, &b| mean(b).total_cmp(&mean(a)));
    for &u in order.iter().take(LISTED) {
        let (name, url) = (plan.urls.get(u).map_or("", String::as_str), urls[u]);
        let (mean, max) = (time(mean(u)), time(url.max_ns as f64));
        let _ = writeln!(out, "    {:>10}  mean {mean}, max {max}, 4xx and 5xx {}  {name}", url.answers, url.bad);
    }
    if order.len() > LISTED {
        let _ = writeln!(out, "    ... and {} more", order.len() - LISTED);
    }
}

fn list(out: &mut String, title: &str, rows: Vec<(String, u64)>) {
    let _ = writeln!(out, "  {title}");
    let all: u64 = rows.iter().map(|r| r.1).sum();
    for (name, count) in rows.iter().take(LISTED) {
        let _ = writeln!(out, "    {count:>10}  {:5.1}%  {name}", *count as f64 * 100.0 / all.max(1) as f64);
    }
    if rows.len() > LISTED {
        let _ = writeln!(out, "    ... and {} more", rows.len() - LISTED);
    }
}

fn rates(out: &mut String, record: &Record) {
    let rate = record.rate();
    if record.verdict.limit.is_valid() {
        let _ = writeln!(out, "Requests/sec: {rate:9.2}");
    } else if crate::verdict::reached(&record.evidence) {
        // The rate is what was asked for; what is in doubt is how long it took.
        let name = record.verdict.limit.name();
        let _ = writeln!(out, "Requests/sec: {rate:9.2}  INVALID: its latencies are those of the {name}");
    } else {
        let _ = writeln!(out, "Requests/sec: >= {rate:.2}/s  INVALID: limited by the {}", record.verdict.limit.name());
    }
    let bytes = binary(record.sample.bytes_read as f64 / record.seconds.max(1e-9));
    let _ = writeln!(out, "Transfer/sec: {bytes:>10}B");
}

fn verdict(out: &mut String, record: &Record) {
    let _ = writeln!(out, "Verdict: {}", record.verdict.limit.name());
    for sentence in &record.verdict.evidence {
        let _ = writeln!(out, "  {sentence}");
    }
    if let Some(partial) = &record.partial {
        let _ = writeln!(out, "PARTIAL: {partial}");
    }
}
