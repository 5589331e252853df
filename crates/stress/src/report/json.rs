//! The results for programs. Published as `docs/stress.schema.json`; names are added, never changed.

use crate::find_max::{HighestRate, Step};
use crate::plan::{Load, Plan};
use crate::run::Record;
use crate::sample::{Failure, Latencies};
use crate::verdict::Limit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

/// The version of the schema.
const SCHEMA: u32 = 1;

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The schema's version.
    pub schema: u32,
    /// The target.
    pub url: String,
    /// The command that made the run, without what is secret.
    #[serde(default)]
    pub command: String,
    /// The tool's version.
    #[serde(default)]
    pub version: String,
    /// Start, seconds since 1970.
    pub began_unix: f64,
    /// Threads.
    pub threads: usize,
    /// Connections.
    pub connections: usize,
    /// What was spoken: 1.1, 2 or 3.
    #[serde(default)]
    pub http: String,
    /// Requests that a connection carried at a time.
    #[serde(default)]
    pub streams: usize,
    /// Open loop: the mean rate that was wanted.
    pub wanted_rps: Option<f64>,
    /// Answers.
    pub requests: u64,
    /// Length of the run.
    pub duration_s: f64,
    /// Answers a second; a lower bound only if `verdict.valid` is false.
    pub rps: f64,
    /// Bytes.
    pub bytes_read: u64,
    /// Bytes.
    pub bytes_written: u64,
    /// Failed requests by kind, all kinds; and `status` for answers that are neither 2xx nor 3xx, `unanswered`, `total`.
    pub errors: BTreeMap<String, u64>,
    /// From sending (closed loop) or from when it was due (open loop).
    pub latency_us: Times,
    /// Open loop: from sending, without the waiting for a connection.
    pub service_us: Times,
    /// To the first byte.
    pub first_byte_us: Times,
    /// Connecting; QUIC's handshake has TLS in it.
    pub connect_us: Times,
    /// TLS handshakes.
    pub tls_us: Times,
    /// How late the generator was.
    pub lateness_us: Times,
    /// Answers by status.
    pub statuses: BTreeMap<String, u64>,
    /// By URL, if there are several.
    pub urls: Vec<UrlSummary>,
    /// By the value of `--backend-header`.
    pub backends: BTreeMap<String, u64>,
    /// Connections: established, of them resumed, closed by the target while kept.
    pub connects: u64,
    /// See `connects`.
    pub resumed: u64,
    /// See `connects`.
    pub reconnects: u64,
    /// Each thread's part of the time that it ran, and that it waited for a CPU.
    pub generator: Vec<ThreadSummary>,
    /// What limited the run.
    pub verdict: VerdictSummary,
    /// `--find-max`: what was found; the other numbers are those of its best step.
    #[serde(default)]
    pub find_max: Option<FoundSummary>,
    /// Each second.
    pub series: Vec<SecondSummary>,
    /// What was noticed before the run.
    pub preflight: Vec<String>,
    /// How many agents it ran on; 0: on one machine.
    #[serde(default)]
    pub agents: usize,
    /// How far apart they began at most, microseconds.
    #[serde(default)]
    pub start_spread_us: f64,
    /// Why the result is not whole; null if it is.
    pub partial: Option<String>,
}

/// Microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Times {
    pub count: u64,
    pub mean: f64,
    pub stdev: f64,
    pub min: f64,
    pub p50: f64,
    pub p75: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
}

/// One URL.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct UrlSummary {
    pub url: String,
    pub requests: u64,
    pub bad: u64,
    pub mean_us: f64,
    pub max_us: f64,
}

/// One generator thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ThreadSummary {
    pub cpu: f64,
    pub waited: f64,
}

/// The judgement.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct VerdictSummary {
    pub limit: Limit,
    pub valid: bool,
    pub evidence: Vec<String>,
}

/// A search.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct FoundSummary {
    pub best_rps: Option<f64>,
    pub safe_rps: Option<f64>,
    /// Something else than the target failed at the next higher rate.
    pub is_lower_bound: bool,
    pub bound: Option<String>,
    pub steps: Vec<Step>,
}

impl FoundSummary {
    /// Puts a search into the published form.
    pub fn new(found: &HighestRate) -> FoundSummary {
        FoundSummary {
            best_rps: found.best,
            safe_rps: found.safe,
            is_lower_bound: found.is_lower_bound,
            bound: found.bound.clone(),
            steps: found.steps.clone(),
        }
    }
}

/// One second.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct SecondSummary {
    pub second: u32,
    pub rps: f64,
    pub errors: u64,
    pub bytes: u64,
    pub connections: u64,
    pub cpu: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Times {
    fn of(l: &Latencies) -> Times {
        let us = |q: f64| l.quantile(q) as f64 / 1e3;
        Times {
            count: l.count(),
            mean: l.mean() / 1e3,
            stdev: l.stdev() / 1e3,
            min: l.min() as f64 / 1e3,
            p50: us(0.5),
            p75: us(0.75),
            p90: us(0.9),
            p95: us(0.95),
            p99: us(0.99),
            p99_9: us(0.999),
            p99_99: us(0.9999),
            max: l.max() as f64 / 1e3,
        }
    }
}

impl Summary {
    /// Puts a record into the published form.
    pub fn new(plan: &Plan, record: &Record, preflight: &[String]) -> Summary {
        let s = &record.sample;
        let mut errors: BTreeMap<String, u64> =
            Failure::ALL.iter().map(|&k| (k.name().to_owned(), s.failures_of(k))).collect();
        errors.insert("status".to_owned(), s.bad_statuses());
        errors.insert("unanswered".to_owned(), s.unanswered);
        errors.insert("total".to_owned(), s.failed() + s.bad_statuses() + s.unanswered);
        let wanted_rps = match &plan.load {
            Load::Open(schedule) => Some(schedule.count() as f64 * 1e9 / schedule.end_ns().max(1) as f64),
            Load::Closed => None,
        };
        Summary {
            schema: SCHEMA,
            url: plan.url.to_string(),
            command: String::new(),
            version: String::new(),
            began_unix: record.began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            threads: plan.threads,
            connections: plan.connections,
            http: plan.http.name().to_owned(),
            streams: plan.streams,
            wanted_rps,
            requests: s.answers,
            duration_s: record.seconds,
            rps: record.rate(),
            bytes_read: s.bytes_read,
            bytes_written: s.bytes_written,
            errors,
            latency_us: Times::of(&s.latency),
            service_us: Times::of(&s.service),
            first_byte_us: Times::of(&s.first_byte),
            connect_us: Times::of(&s.connect),
            tls_us: Times::of(&s.tls),
            lateness_us: Times::of(&s.lateness),
            statuses: s.statuses.iter().map(|(status, &count)| (status.to_string(), count)).collect(),
            urls: urls(plan, record),
            backends: s.backends.clone(),
            connects: s.connects,
            resumed: s.resumed,
            reconnects: s.reconnects,
            generator: record.evidence.threads.iter().map(|&(cpu, waited)| ThreadSummary { cpu, waited }).collect(),
            verdict: VerdictSummary {
                limit: record.verdict.limit,
                valid: record.verdict.limit.is_valid(),
                evidence: record.verdict.evidence.clone(),
            },
            find_max: None,
            series: series(plan, record),
            preflight: preflight.to_vec(),
            agents: record.agents,
            start_spread_us: record.start_lag_ns as f64 / 1e3,
            partial: record.partial.clone(),
        }
    }
}

fn urls(plan: &Plan, record: &Record) -> Vec<UrlSummary> {
    if record.sample.urls.len() < 2 {
        return Vec::new();
    }
    let rows = plan.urls.iter().zip(&record.sample.urls);
    let row = |(url, u): (&String, &crate::sample::UrlSample)| UrlSummary {
        url: url.clone(),
        requests: u.answers,
        bad: u.bad,
        mean_us: u.total_ns as f64 / 1e3 / u.answers.max(1) as f64,
        max_us: u.max_ns as f64 / 1e3,
    };
    rows.map(row).collect()
}

/// The last second may be a part of one: its rate counts for the part.
fn series(plan: &Plan, record: &Record) -> Vec<SecondSummary> {
    let threads = record.evidence.threads.len().max(plan.threads).max(1) as f64;
    let row = |s: &crate::sample::Second| {
        let length = (record.seconds - f64::from(s.number)).min(1.0);
        let us = |q: f64| s.latency.quantile(q) as f64 / 1e3;
        SecondSummary {
            second: s.number,
            rps: if length > 0.0 { s.answers as f64 / length } else { 0.0 },
            errors: s.errors,
            bytes: s.bytes,
            connections: s.open,
            cpu: s.cpu_ns as f64 / 1e9 / threads,
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            max_us: s.latency.max() as f64 / 1e3,
        }
    };
    record.series.iter().filter(|s| f64::from(s.number) < record.seconds - 0.05).map(row).collect()
}

/// One line a second.
pub fn csv(summary: &Summary) -> String {
    let mut out = "second,rps,errors,bytes,connections,cpu,p50_us,p90_us,p99_us,max_us\n".to_owned();
    for s in &summary.series {
        out.push_str(&format!(
            "{},{:.1},{},{},{},{:.3},{:.1},{:.1},{:.1},{:.1}\n",
            s.second, s.rps, s.errors, s.bytes, s.connections, s.cpu, s.p50_us, s.p90_us, s.p99_us, s.max_us
        ));
    }
    out
}
