//! What was measured. Each thread fills one of its own; they are merged at the end, and second by second for the curves.

mod failure;
mod latencies;

pub use failure::Failure;
pub use latencies::Latencies;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// URLs with numbers of their own; more are counted together under the last.
const MAX_URLS: usize = 1000;
/// Backends told apart; more are counted under the last name. A header with more values names no backend.
pub(crate) const MAX_BACKENDS: usize = 1000;
/// Statuses have three digits.
const STATUSES: usize = 1000;

/// Everything one thread, one machine or one run measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Answers that came whole, whatever their status.
    pub answers: u64,
    /// Requests that were sent, in full or not.
    pub sent: u64,
    /// Open loop: due by the end but neither answered nor failed.
    pub unanswered: u64,
    /// Bytes read and written.
    pub bytes_read: u64,
    /// See `bytes_read`.
    pub bytes_written: u64,
    /// Connections that were established.
    pub connects: u64,
    /// Of those, with a resumed TLS session.
    pub resumed: u64,
    /// Kept connections that the target closed between two requests.
    pub reconnects: u64,
    /// Segments that this side sent again on its connections.
    pub retransmits: u64,
    /// Failures by [`Failure`].
    pub failures: [u64; Failure::ALL.len()],
    /// From the start (closed loop) or due time (open loop) to the last byte; of all statuses, time-outs included.
    pub latency: Latencies,
    /// Open loop: from sending to the last byte, for comparison; what waiting for a connection cost is not in it.
    pub service: Latencies,
    /// To the first byte, from the same time as `latency`.
    pub first_byte: Latencies,
    /// From `connect` to an established connection.
    pub connect: Latencies,
    /// TLS handshakes, from the established connection.
    pub tls: Latencies,
    /// Open loop: how late this side was.
    pub lateness: Latencies,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// By the plan's URLs.
    pub urls: Vec<UrlSample>,
    /// By the value of the backend header.
    pub backends: BTreeMap<String, u64>,
    /// Each thread's answers a second, taken every 100 ms.
    pub rates: Vec<f64>,
}

/// What one URL did.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct UrlSample {
    /// Answers.
    pub answers: u64,
    /// Answers of status 400 and above.
    pub bad: u64,
    /// All latencies added up, nanoseconds.
    pub total_ns: u64,
    /// The largest latency, nanoseconds.
    pub max_ns: u64,
}

impl Sample {
    /// Nothing measured yet, for a plan with `urls` URLs.
    pub fn new(urls: usize) -> Sample {
        Sample {
            answers: 0,
            sent: 0,
            unanswered: 0,
            bytes_read: 0,
            bytes_written: 0,
            connects: 0,
            resumed: 0,
            reconnects: 0,
            retransmits: 0,
            failures: [0; Failure::ALL.len()],
            latency: Latencies::default(),
            service: Latencies::default(),
            first_byte: Latencies::default(),
            connect: Latencies::default(),
            tls: Latencies::default(),
            lateness: Latencies::default(),
            statuses: BTreeMap::new(),
            urls: vec![UrlSample::default(); urls.min(MAX_URLS)],
            backends: BTreeMap::new(),
            rates: Vec::new(),
        }
    }

    /// Adds what another measured.
    pub fn merge(&mut self, other: &Sample) {
        self.answers += other.answers;
        self.sent += other.sent;
        self.unanswered += other.unanswered;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.connects += other.connects;
        self.resumed += other.resumed;
        self.reconnects += other.reconnects;
        self.retransmits += other.retransmits;
        self.failures.iter_mut().zip(other.failures).for_each(|(a, b)| *a += b);
        self.latency.merge(&other.latency);
        self.service.merge(&other.service);
        self.first_byte.merge(&other.first_byte);
        self.connect.merge(&other.connect);
        self.tls.merge(&other.tls);
        self.lateness.merge(&other.lateness);
        for (&status, count) in &other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.urls.resize(self.urls.len().max(other.urls.len()), UrlSample::default());
        for (a, b) in self.urls.iter_mut().zip(&other.urls) {
            a.answers += b.answers;
            a.bad += b.bad;
            a.total_ns += b.total_ns;
            a.max_ns = a.max_ns.max(b.max_ns);
        }
        for (name, count) in &other.backends {
            let known = self.backends.contains_key(name) || self.backends.len() < MAX_BACKENDS;
            let name = if known { name.clone() } else { "(others)".to_owned() };
            *self.backends.entry(name).or_default() += count;
        }
        self.rates.extend_from_slice(&other.rates);
    }

    /// Requests without an answer, for whatever reason.
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// Answers that are neither 2xx nor 3xx, as wrk counts them.
    pub fn bad_statuses(&self) -> u64 {
        self.statuses.iter().filter(|(s, _)| !(200..400).contains(*s)).map(|(_, c)| c).sum()
    }

    /// The part (0 to 1) of requests that failed or were answered badly.
    pub fn error_part(&self) -> f64 {
        let all = self.answers + self.failed() + self.unanswered;
        let bad = self.bad_statuses() + self.failed() + self.unanswered;
        if all == 0 { 0.0 } else { bad as f64 / all as f64 }
    }

    /// Failures of one kind.
    pub fn failures_of(&self, kind: Failure) -> u64 {
        self.failures[kind as usize]
    }
}

/// What is counted at every answer, as arrays; becomes part of a [`Sample`] at the end.
pub(crate) struct Tally {
    pub sample: Sample,
    statuses: Box<[u64]>,
    backends: Vec<(String, u64)>,
}

impl Tally {
    pub(crate) fn new(urls: usize) -> Tally {
        Tally { sample: Sample::new(urls), statuses: vec![0; STATUSES].into(), backends: Vec::new() }
    }

    /// One whole answer.
    pub(crate) fn answer(&mut self, status: u16, url: u32, backend: Option<u16>, latency_ns: u64) {
        self.sample.answers += 1;
        self.statuses[usize::from(status).min(STATUSES - 1)] += 1;
        if let Some(backend) = backend.and_then(|b| self.backends.get_mut(usize::from(b))) {
            backend.1 += 1;
        }
        if self.sample.urls.len() > 1 {
            let at = (url as usize).min(self.sample.urls.len() - 1);
            let url = &mut self.sample.urls[at];
            url.answers += 1;
            url.bad += u64::from(status >= 400);
            url.total_ns += latency_ns;
            url.max_ns = url.max_ns.max(latency_ns);
        }
    }

    pub(crate) fn fail(&mut self, kind: Failure) {
        self.sample.failures[kind as usize] += 1;
    }

    /// The number under which a backend is counted.
    pub(crate) fn backend(&mut self, name: &[u8]) -> u16 {
        let name = String::from_utf8_lossy(name);
        if let Some(at) = self.backends.iter().position(|(n, _)| *n == name) {
            return at as u16;
        }
        if self.backends.len() < MAX_BACKENDS {
            self.backends.push((name.into_owned(), 0));
        }
        (self.backends.len() - 1) as u16
    }

    pub(crate) fn finish(mut self) -> Sample {
        for (status, &count) in self.statuses.iter().enumerate().filter(|(_, c)| **c > 0) {
            self.sample.statuses.insert(status as u16, count);
        }
        self.sample.backends = self.backends.into_iter().collect();
        self.sample
    }
}

/// One second of one thread, or of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Second {
    /// Which, from 0.
    pub number: u32,
    /// Answers.
    pub answers: u64,
    /// Failures and answers of status 400 and above.
    pub errors: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Established connections at its end.
    pub open: u64,
    /// CPU time of the threads in it, nanoseconds.
    pub cpu_ns: u64,
    /// Latencies of the answers.
    pub latency: Latencies,
}

impl Second {
    /// Adds another thread's.
    pub fn merge(&mut self, other: &Second) {
        self.answers += other.answers;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.open += other.open;
        self.cpu_ns += other.cpu_ns;
        self.latency.merge(&other.latency);
    }
}
