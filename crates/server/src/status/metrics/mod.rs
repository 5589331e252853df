//! All numbers as Prometheus reads them. One row of a table for each metric: its name, what it is, and where its samples
//! come from. From: `modules::prometheus`.

mod guards;
mod kernel;
mod upstreams;

use crate::balancer::heard;
use crate::snapshot::Snapshot;
use crate::status::caches;
use crate::status::codes::Responses;
use crate::status::latency::{self, Histogram};
use crate::status::limits::Event;
use crate::status::requests::{self, Totals};
use crate::status::ssl::{self, Event as Handshake};
use crate::status::zones::{self, Kind};
use crate::status::{listeners, processes, rules, slot, turns};
use crate::tls::expiry::{self, Held, Ordered};
use crate::worker::counters;
use std::fmt::{Display, Write};

/// Upper bounds of the histogram of all requests, ms.
const REQUEST_BOUNDS_MS: [u64; 13] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000];

/// Rules that are shown each for itself: those that matched most.
const SHOWN_RULES: usize = 100;

/// A page under way. Samples of one metric stand together, below what is said of it.
#[derive(Default)]
pub struct Page {
    /// What is there of it.
    pub text: String,
}

/// A metric of things of one kind: its name or the end of it, kind, help, and the number of a thing.
type Metric<T, N = u64> = (&'static str, &'static str, &'static str, fn(&T) -> N);

/// The labels of a sample.
pub type Labels<'l> = &'l [(&'l str, &'l str)];

impl Page {
    /// Says what the samples that follow are.
    pub fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample.
    pub fn sample(&mut self, name: &str, labels: Labels, value: impl Display) {
        self.text.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.text.push(if i == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            escape(text, &mut self.text);
            self.text.push('"');
        }
        self.text.push_str(if labels.is_empty() { " " } else { "} " });
        let _ = writeln!(self.text, "{value}");
    }

    /// A metric of one sample.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        self.sample(name, &[], value);
    }

    /// A metric with a sample for each thing of a list.
    pub fn each<T, V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        things: &[T],
        sample: impl Fn(&T) -> Option<(Vec<(&'static str, String)>, V)>,
    ) {
        let samples: Vec<_> = things.iter().filter_map(sample).collect();
        if samples.is_empty() {
            return;
        }
        self.metric(name, kind, help);
        for (labels, value) in samples {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(n, v)| (*n, v.as_str())).collect();
            self.sample(name, &labels, value);
        }
    }

    /// A histogram from counts by upper bound; times in seconds, as Prometheus wants them.
    pub fn buckets(&mut self, name: &str, labels: Labels, bounds_ms: &[u64], counts: &[u64], sum_ms: Option<u64>) {
        let bucket = format!("{name}_bucket");
        let mut seen = 0;
        let bounds = bounds_ms.iter().map(|ms| (*ms as f64 / 1000.0).to_string()).chain(["+Inf".to_owned()]);
        for (bound, n) in bounds.zip(counts) {
            seen += n;
            let mut all = labels.to_vec();
            all.push(("le", &bound));
            self.sample(&bucket, &all, seen);
        }
        if let Some(sum) = sum_ms {
            self.sample(&format!("{name}_sum"), labels, sum as f64 / 1000.0);
        }
        self.sample(&format!("{name}_count"), labels, seen);
    }
}

/// `\`, `"` and line ends, as the format wants them.
fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// All of it.
pub fn page(snapshot: &Snapshot) -> String {
    let mut page = Page { text: String::with_capacity(16 * 1024) };
    general(&mut page, snapshot);
    requests_of_zones(&mut page, Kind::Server, "server_zone");
    requests_of_zones(&mut page, Kind::Location, "location_zone");
    sessions(&mut page);
    handshakes(&mut page);
    certificates(&mut page, snapshot);
    caches(&mut page, snapshot);
    limits(&mut page, snapshot);
    judged(&mut page);
    guards::add(&mut page, snapshot);
    upstreams::add(&mut page, snapshot, "upstream_server");
    if let Some(stream) = &snapshot.stream {
        upstreams::add(&mut page, stream, "stream_upstream_server");
    }
    kernel::add(&mut page);
    threads(&mut page);
    queues(&mut page);
    page.text
}

fn general(page: &mut Page, snapshot: &Snapshot) {
    let sum = crate::listen::silent::with(&snapshot.listens);
    let all = requests::totals(&requests::ALL);
    page.metric("ironweir_build_info", "gauge", "Version of Ironweir and of the nginx it stands for.");
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("nginx_version", crate::NGINX_VERSION)];
    page.sample("ironweir_build_info", &labels, 1);
    page.one("nginxplus_connections_accepted", "counter", "Accepted client connections.", sum.accepted);
    page.one("nginxplus_connections_dropped", "counter", "Client connections closed for lack of room.", sum.dropped());
    page.one(
        "nginxplus_connections_active",
        "gauge",
        "Client connections with a request.",
        (sum.active - sum.waiting).max(0),
    );
    page.one("nginxplus_connections_idle", "gauge", "Client connections without a request.", sum.waiting.max(0));
    page.one("nginxplus_http_requests_total", "counter", "Requests of clients.", sum.requests);
    page.one("nginxplus_http_requests_current", "gauge", "Requests under way.", all.processing);
    page.one("nginxplus_processes_respawned", "counter", "Worker processes that died.", processes::respawned());
    page.one("ironweir_config_generation", "gauge", "Configurations since the start.", snapshot.generation);
    page.one(
        "ironweir_config_load_time_seconds",
        "gauge",
        "When the configuration came.",
        snapshot.loaded_ms as f64 / 1000.0,
    );
    let classes = class_samples(&all.responses);
    page.each(("ironweir_http_responses_total", "counter", "Answers by class."), &classes, |(class, n)| {
        Some((vec![("class", class.clone())], *n))
    });
    page.one("ironweir_http_discarded_total", "counter", "Requests without an answer.", all.discarded);
    page.one("ironweir_http_received_bytes_total", "counter", "Bytes of requests.", all.received);
    page.one("ironweir_http_sent_bytes_total", "counter", "Bytes of answers.", all.sent);
    let name = "ironweir_http_request_duration_seconds";
    page.metric(name, "histogram", "From the first byte of a head to the last of its answer, by the clock of turns.");
    let counts = by_bounds(&Histogram::read(&latency::REQUESTS_MS.sums()));
    page.buckets(name, &[], &REQUEST_BOUNDS_MS, &counts, None);
}

/// What `modsecurity` has found, once there was anything to judge.
fn judged(page: &mut Page) {
    let all = rules::totals();
    if all.judged == 0 {
        return;
    }
    page.one("ironweir_modsecurity_judged_total", "counter", "Requests under rules.", all.judged);
    page.one("ironweir_modsecurity_matched_total", "counter", "Requests that some rule spoke of.", all.matched);
    page.one("ironweir_modsecurity_refused_total", "counter", "Requests that were refused.", all.refused);
    page.one("ironweir_modsecurity_given_up_total", "counter", "Requests that cost too much to judge.", all.given_up);
    let each = rules::matches();
    let name = "ironweir_modsecurity_rule_matches_total";
    page.each((name, "counter", "Matches by the rule's id."), &each[..each.len().min(SHOWN_RULES)], |(id, n)| {
        Some((vec![("rule", id.to_string())], *n))
    });
}

/// The counts between the bounds, and above the last.
fn by_bounds(histogram: &Histogram) -> Vec<u64> {
    let mut counts = vec![0; REQUEST_BOUNDS_MS.len() + 1];
    for (top, n) in histogram.steps() {
        let at = REQUEST_BOUNDS_MS.iter().position(|bound| top <= *bound).unwrap_or(REQUEST_BOUNDS_MS.len());
        counts[at] += n;
    }
    counts
}

fn class_samples(responses: &Responses) -> Vec<(String, u64)> {
    responses.classes.iter().enumerate().map(|(i, n)| (format!("{}xx", i + 1), *n)).collect()
}

fn requests_of_zones(page: &mut Page, kind: Kind, label: &'static str) {
    let all: Vec<(String, Totals)> =
        zones::all(kind).iter().map(|z| (z.name.to_string(), requests::totals(&z.counts))).collect();
    durations(page, kind, label);
    let prefix = format!("nginxplus_{label}");
    let numbers: [Metric<Totals>; 4] = [
        ("requests", "counter", "Requests.", |t| t.requests),
        ("discarded", "counter", "Requests without an answer.", |t| t.discarded),
        ("received", "counter", "Bytes of requests.", |t| t.received),
        ("sent", "counter", "Bytes of answers.", |t| t.sent),
    ];
    for (what, kind, help, number) in numbers {
        let name = format!("{prefix}_{what}");
        page.each((&name, kind, help), &all, |(zone, t)| Some((vec![(label, zone.clone())], number(t))));
    }
    if kind == Kind::Server {
        page.each(("nginxplus_server_zone_processing", "gauge", "Requests under way."), &all, |(zone, t)| {
            Some((vec![(label, zone.clone())], t.processing))
        });
    }
    let answers: Vec<_> = all
        .iter()
        .flat_map(|(zone, t)| class_samples(&t.responses).into_iter().map(move |(class, n)| (zone.clone(), class, n)))
        .collect();
    let name = format!("{prefix}_responses");
    page.each((&name, "counter", "Answers by class."), &answers, |(zone, class, n)| {
        Some((vec![(label, zone.clone()), ("code", class.clone())], *n))
    });
}

fn durations(page: &mut Page, kind: Kind, label: &'static str) {
    let all: Vec<_> = zones::all(kind).iter().map(|z| (z.name.to_string(), z.times.read())).collect();
    let seen: Vec<_> = all.iter().filter(|(_, (steps, _))| steps.iter().any(|n| *n > 0)).collect();
    if seen.is_empty() {
        return;
    }
    let name = format!("ironweir_{label}_response_seconds");
    page.metric(&name, "histogram", "From the first byte of a head to the last of its answer.");
    for (zone, (steps, sum_ms)) in seen {
        page.buckets(&name, &[(label, zone)], &latency::BOUNDS_MS, steps, Some(*sum_ms));
    }
}

/// Certificates shown to clients, and what becomes of those that are ordered.
fn certificates(page: &mut Page, snapshot: &Snapshot) {
    let held = expiry::certificates(snapshot);
    let labels =
        |c: &Held| vec![("certificate", c.name.clone()), ("host", c.hosts.first().cloned().unwrap_or_default())];
    let numbers: [Metric<Held, i64>; 2] = [
        ("ironweir_certificate_not_before_seconds", "gauge", "When a certificate begins to be valid.", |c| {
            c.not_before
        }),
        ("ironweir_certificate_not_after_seconds", "gauge", "When it ceases.", |c| c.not_after),
    ];
    for (name, kind, help, number) in numbers {
        page.each((name, kind, help), &held, |c| Some((labels(c), number(c))));
    }
    let orders = expiry::orders(snapshot);
    let numbers: [Metric<Ordered, i64>; 3] = [
        ("ironweir_acme_issued", "gauge", "1 if there is a certificate to show.", |s| i64::from(s.issued)),
        ("ironweir_acme_failures", "gauge", "Tries in a row that failed.", |s| s.failures),
        (
            "ironweir_acme_next_step_seconds",
            "gauge",
            "When the authority is asked again; 0: that is not known yet.",
            |s| s.next_s,
        ),
    ];
    for (name, kind, help, number) in numbers {
        page.each((name, kind, help), &orders, |s| Some((vec![("certificate", s.name.clone())], number(s))));
    }
}

/// The kernel's flows are sessions of the same server.
fn with_kernel(zone: &str, mut totals: Totals) -> Totals {
    let done = heard::of_zone(zone);
    totals.requests += done.counts.flows;
    totals.processing += done.active;
    totals.received += done.counts.in_bytes;
    totals.sent += done.counts.out_bytes;
    totals
}

fn sessions(page: &mut Page) {
    let all: Vec<(String, Totals)> = zones::all(Kind::Stream)
        .iter()
        .map(|z| (z.name.to_string(), with_kernel(&z.name, requests::totals(&z.counts))))
        .collect();
    let numbers: [Metric<Totals>; 4] = [
        ("nginxplus_stream_server_zone_connections", "counter", "Connections.", |t| t.requests),
        ("nginxplus_stream_server_zone_processing", "gauge", "Connections under way.", |t| t.processing),
        ("nginxplus_stream_server_zone_received", "counter", "Bytes from clients.", |t| t.received),
        ("nginxplus_stream_server_zone_sent", "counter", "Bytes to clients.", |t| t.sent),
    ];
    for (name, kind, help, number) in numbers {
        page.each((name, kind, help), &all, |(zone, t)| Some((vec![("server_zone", zone.clone())], number(t))));
    }
}

fn handshakes(page: &mut Page) {
    let all = ssl::Totals::of(&ssl::ALL);
    let numbers = [
        ("nginxplus_ssl_handshakes", "Completed handshakes.", Handshake::Handshake),
        ("nginxplus_ssl_handshakes_failed", "Failed handshakes.", Handshake::Failed),
        ("nginxplus_ssl_session_reuses", "Handshakes that went on with an earlier session.", Handshake::Reuse),
    ];
    for (name, help, event) in numbers {
        page.one(name, "counter", help, all.count(event));
    }
    let causes: [(_, _, &[_]); 2] = [
        ("ironweir_ssl_failures_total", "Failed handshakes of which the cause is known.", &ssl::CAUSES),
        (
            "ironweir_ssl_verify_failures_total",
            "Certificates of clients and peers that were not accepted.",
            &ssl::VERIFY_FAILURES,
        ),
    ];
    for (name, help, rows) in causes {
        page.each((name, "counter", help), rows, |(cause, event)| {
            Some((vec![("cause", (*cause).to_owned())], all.count(*event)))
        });
    }
}

fn caches(page: &mut Page, snapshot: &Snapshot) {
    let all = &snapshot.main.cache.caches;
    let name = |c: &std::sync::Arc<crate::cache::Cache>| String::from_utf8_lossy(&c.zone.name).into_owned();
    page.each(("nginxplus_cache_size", "gauge", "Bytes of a cache."), all, |c| {
        Some((vec![("cache", name(c))], c.zone.index.blocks() * c.zone.block()))
    });
    let answers: Vec<_> = all
        .iter()
        .flat_map(|c| {
            caches::totals(&c.zone.counts).map(|(status, t)| (name(c), status.text().to_ascii_lowercase(), t))
        })
        .collect();
    let labels = |cache: &String, status: &String| vec![("cache", cache.clone()), ("status", status.clone())];
    page.each(
        ("ironweir_cache_responses_total", "counter", "Answers by what the cache said."),
        &answers,
        |(c, s, t)| Some((labels(c, s), t.responses)),
    );
    page.each(("ironweir_cache_bytes_total", "counter", "Bytes of those answers."), &answers, |(c, s, t)| {
        Some((labels(c, s), t.bytes))
    });
}

fn limits(page: &mut Page, snapshot: &Snapshot) {
    let events = [
        ("passed", Event::Passed),
        ("delayed", Event::Delayed),
        ("rejected", Event::Rejected),
        ("delayed_dry_run", Event::DelayedDryRun),
        ("rejected_dry_run", Event::RejectedDryRun),
    ];
    let requests: Vec<_> = snapshot.main.limit_req.counts().map(|(n, c)| (n, c.sums())).collect();
    let connections: Vec<_> = snapshot.main.limit_conn.counts().map(|(n, c)| (n, c.sums())).collect();
    for (kind, zones, delays) in [("request", requests, true), ("connection", connections, false)] {
        for (word, event) in
            events.iter().filter(|(_, e)| delays || !matches!(e, Event::Delayed | Event::DelayedDryRun))
        {
            let name = format!("nginxplus_limit_{kind}_{word}");
            page.each((&name, "counter", "What a zone of limits said."), &zones, |(zone, n)| {
                Some((vec![("zone", String::from_utf8_lossy(zone).into_owned())], n[*event as usize]))
            });
        }
    }
}

fn threads(page: &mut Page) {
    let all = slot::workers();
    let label = |t: &slot::Thread| vec![("thread", t.worker.unwrap_or_default().to_string())];
    page.each(("ironweir_thread_requests_total", "counter", "Requests by thread."), &all, |t| {
        Some((label(t), counters::of_thread(t.slot).requests))
    });
    page.each(("ironweir_thread_connections", "gauge", "Open connections by thread."), &all, |t| {
        Some((label(t), counters::of_thread(t.slot).active.max(0)))
    });
    let schedules: Vec<_> = all.iter().filter_map(|t| Some((t, turns::schedule(t.tid)?))).collect();
    page.each(("ironweir_thread_cpu_seconds_total", "counter", "Time on a CPU."), &schedules, |(t, s)| {
        Some((label(t), s.running_ns as f64 / 1e9))
    });
    page.each(
        ("ironweir_thread_run_delay_seconds_total", "counter", "Ready to run, and waiting for a CPU."),
        &schedules,
        |(t, s)| Some((label(t), s.waiting_ns as f64 / 1e9)),
    );
    let delays: Vec<_> =
        all.iter().filter_map(|t| Some((t, Histogram::read(&turns::TURNS_US.of(t.slot)).quantile(0.99)?))).collect();
    page.each(
        ("ironweir_thread_turn_p99_seconds", "gauge", "Turns of the loop, p99 since the start."),
        &delays,
        |(t, us)| Some((label(t), *us as f64 / 1e6)),
    );
}

fn queues(page: &mut Page) {
    let all = listeners::all();
    let label = |f: &listeners::Facts| vec![("listen", f.address.clone())];
    page.each(("ironweir_listen_accepted_total", "counter", "Connections taken."), &all, |f| {
        Some((label(f), f.accepted))
    });
    let numbers: [Metric<listeners::Queue, Option<u32>>; 3] = [
        ("ironweir_listen_queue_length", "gauge", "Connections that wait to be taken (datagrams: bytes).", |q| {
            Some(q.waiting)
        }),
        ("ironweir_listen_queue_limit", "gauge", "How many may wait.", |q| Some(q.limit)),
        ("ironweir_listen_drops_total", "counter", "What the kernel dropped here.", |q| q.drops),
    ];
    for (name, kind, help, number) in numbers {
        page.each((name, kind, help), &all, |f| {
            let sum = f.sockets.iter().map(|q| number(q).map(u64::from)).sum::<Option<u64>>();
            sum.filter(|_| !f.sockets.is_empty()).map(|n| (label(f), n))
        });
    }
    if let Some((overflows, drops)) = listeners::of_namespace() {
        let help = "Full accept queues of all listeners of the network namespace.";
        page.one("ironweir_netns_listen_overflows_total", "counter", help, overflows);
        let help = "Connections dropped by all listeners of the network namespace.";
        page.one("ironweir_netns_listen_drops_total", "counter", help, drops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_as_the_format_says() {
        let mut page = Page { text: String::new() };
        page.metric("a", "counter", "What.");
        page.sample("a", &[("x", "q\"\\\n"), ("y", "")], 1);
        page.sample("a", &[], 2.5);
        assert_eq!(page.text, "# HELP a What.\n# TYPE a counter\na{x=\"q\\\"\\\\\\n\",y=\"\"} 1\na 2.5\n");
        page.text.clear();
        page.buckets("h", &[("s", "1")], &[5, 10], &[1, 2, 3], Some(1500));
        let expected = "h_bucket{s=\"1\",le=\"0.005\"} 1\nh_bucket{s=\"1\",le=\"0.01\"} 3\nh_bucket{s=\"1\",le=\"+Inf\"} 6\n\
                        h_sum{s=\"1\"} 1.5\nh_count{s=\"1\"} 6\n";
        assert_eq!(page.text, expected);
    }
}
