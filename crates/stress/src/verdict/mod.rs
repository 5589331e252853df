//! What limited a run. From: everything that was seen. To: the reports. Pure.

mod evidence;

pub use evidence::Evidence;

use crate::sample::{Failure, Sample};
use serde::{Deserialize, Serialize};

/// A thread that is busier than this has no time to answer at once: queues begin in front of it.
const BUSY: f64 = 0.90;
/// A thread that runs or wants to run nearly always, and waits for its turn this much, is short of CPU.
const RUNNABLE: f64 = 0.95;
const WAITING: f64 = 0.20;
/// A thread that waits for its turn for longer than it runs, and for more than a trifle, measures its neighbours.
const STARVED: f64 = 0.15;
const STARVED_TIMES: f64 = 1.5;
/// A shorter run has not shown how its threads fare.
const LEAST_SECONDS: f64 = 0.3;
/// A lost SYN is sent again after a second: handshakes that took this long were.
pub(crate) const SYN_LOST_NS: u64 = 900_000_000;
/// Open loop: the latest percent of requests was sent so late, nanoseconds, and that is so much of their latency.
const LATE_NS: u64 = 1_000_000;
const LATE_PART: f64 = 0.25;
/// So many requests failed for want of ports or descriptors that the rate is not the target's.
const STARVED_REQUESTS: f64 = 0.001;
/// Lost segments above this show in latencies (one in a hundred costs its request 200 ms).
pub(crate) const LOSS: f64 = 0.01;
/// Fewer are chance.
pub(crate) const LOSS_LEAST: u64 = 20;
/// An interface this full drops.
const FULL: f64 = 0.90;
/// A bare handshake that takes this part of an answer's median time: the answer's time is the way's.
const WAY_PART: f64 = 0.5;
/// Ways shorter than this are none: loopback, one switch.
const WAY_US: f64 = 1_000.0;
/// Open loop: less than this of the wanted requests was answered in time.
const REACHED: f64 = 0.99;
/// More failures than this are the target's limit.
const FAILED: f64 = 0.01;

/// What limited the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// All that was asked for was sent and answered.
    None,
    /// The target.
    Target,
    /// This process, or this machine.
    Generator,
    /// What lies between.
    Path,
}

impl Limit {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Limit::None => "none",
            Limit::Target => "target",
            Limit::Generator => "generator",
            Limit::Path => "path",
        }
    }

    /// Whether the rate may be called the target's.
    pub fn is_valid(self) -> bool {
        matches!(self, Limit::None | Limit::Target)
    }
}

/// The judgement on a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What limited it.
    pub limit: Limit,
    /// Why, in sentences; the deciding one first.
    pub evidence: Vec<String>,
}

/// Judges.
pub fn judge(sample: &Sample, evidence: &Evidence) -> Verdict {
    let mut all = Vec::new();
    let mut limit = None;
    let sources: [(Limit, Vec<String>); 4] = [
        (Limit::Generator, starvation(sample, evidence)),
        (Limit::Target, listen_queue(sample, evidence)),
        // A handshake is the kernel's: it takes no longer when this process lacks CPU, so it decides first.
        (Limit::Path, path(sample, evidence)),
        (Limit::Generator, own_cpu(sample, evidence)),
    ];
    for (which, found) in sources {
        if !found.is_empty() {
            limit = limit.or(Some(which));
            all.extend(found);
        }
    }
    let target = target(sample, evidence);
    let limit = limit.unwrap_or(if target.is_empty() { Limit::None } else { Limit::Target });
    all.extend(target);
    all.extend(facts(sample, evidence));
    Verdict { limit, evidence: all }
}

/// Ports and descriptors.
fn starvation(sample: &Sample, e: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    let enough = |kind| {
        let count = sample.failures_of(kind);
        count > 0 && count as f64 >= (sample.answers as f64 * STARVED_REQUESTS).max(1.0)
    };
    if enough(Failure::NoPort) {
        let (ports, waits) = (e.ports.unwrap_or(0), e.time_waits.unwrap_or(0));
        found.push(format!(
            "{} connections found no local port: {ports} ports to one target, {waits} sockets in TIME_WAIT; more with \
             --source, --close rst, a wider net.ipv4.ip_local_port_range",
            sample.failures_of(Failure::NoPort)
        ));
    }
    if enough(Failure::NoDescriptor) {
        let limit = e.descriptors;
        found.push(format!(
            "{} connections found no descriptor: the limit is {limit}; raise it with ulimit -n",
            sample.failures_of(Failure::NoDescriptor)
        ));
    }
    found
}

fn own_cpu(sample: &Sample, e: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    // What was asked for was done: a thread's trouble, if it had any, is seen in its lateness.
    let is_judged = !reached(e) && e.seconds >= LEAST_SECONDS;
    let threads = if is_judged { &e.threads[..] } else { &[][..] };
    for (number, &(busy, delay)) in threads.iter().enumerate() {
        if busy >= BUSY
            || (busy + delay >= RUNNABLE && delay >= WAITING)
            || (delay >= STARVED && delay >= busy * STARVED_TIMES)
        {
            found.push(format!(
                "generator thread {number} ran {} of the time and waited {} of it for a CPU",
                percent(busy),
                percent(delay)
            ));
        }
    }
    let late = sample.lateness.quantile(0.99);
    let latency = sample.latency.quantile(0.99);
    if e.wanted.is_some() && late >= LATE_NS && late as f64 >= latency as f64 * LATE_PART {
        found.push(format!(
            "the generator itself sent late: 99 % within {}, when answers took {}",
            crate::report::time(late as f64),
            crate::report::time(latency as f64)
        ));
    }
    if !found.is_empty() && e.shares_cpus {
        found.push("the target runs on this machine and shares its CPUs with the generator".to_owned());
    }
    found
}

fn listen_queue(sample: &Sample, e: &Evidence) -> Vec<String> {
    let c = &e.counters;
    let mut found = Vec::new();
    // The counters are those of the whole machine: they count if this run felt it.
    let late = sample.connect.max() >= SYN_LOST_NS;
    // A full queue answers nothing; who refuses has none.
    if !late && sample.failures_of(Failure::ConnectTimeout) == 0 {
        return found;
    }
    if e.is_local && c.listen_overflows > 0 {
        found.push(format!(
            "a listen queue on this machine overflowed {} times: raise the target's backlog",
            c.listen_overflows
        ));
    } else if c.syn_retransmits >= LOSS_LEAST && c.syn_retransmits * 2 > c.retransmits {
        found.push(format!(
            "{} handshakes had to be sent again, but hardly any data: the target's listen queue is full",
            c.syn_retransmits
        ));
    }
    found
}

fn path(sample: &Sample, e: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    let c = &e.counters;
    // Loopback loses and delays nothing.
    if e.is_loopback {
        return found;
    }
    let segments = sample.sent + sample.connects;
    let loss = sample.retransmits as f64 / segments.max(1) as f64;
    if sample.retransmits >= LOSS_LEAST && loss >= LOSS {
        found.push(format!(
            "{} of about {segments} segments had to be sent again ({})",
            sample.retransmits,
            percent(loss)
        ));
    }
    if let Some(speed) = e.speed.filter(|_| !e.is_local) {
        let bits = c.interface.rx_bytes.max(c.interface.tx_bytes) as f64 * 8.0 / e.seconds.max(1e-9);
        if bits >= speed as f64 * FULL {
            found.push(format!("the interface is full: {:.0} of {:.0} Mbit/s", bits / 1e6, speed as f64 / 1e6));
        }
    }
    let times = if e.wanted.is_some() { &sample.service } else { &sample.latency };
    let median_us = times.quantile(0.5) as f64 / 1e3;
    if let Some((before, during)) = e.way_us
        && during >= WAY_US
        && during >= median_us * WAY_PART
        && median_us > 0.0
        && !reached(e)
    {
        found.push(format!(
            "a bare handshake took {} during the run ({} before it), an answer {}: the time goes on the way",
            crate::report::time(during * 1e3),
            crate::report::time(before * 1e3),
            crate::report::time(median_us * 1e3)
        ));
    }
    found
}

fn target(sample: &Sample, e: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    if sample.answers == 0 {
        found.push("the target answered nothing".to_owned());
    }
    let all = (sample.answers + sample.failed() + sample.unanswered).max(1) as f64;
    for kind in [Failure::Timeout, Failure::ConnectTimeout, Failure::Refused, Failure::Reset, Failure::Closed] {
        let count = sample.failures_of(kind);
        if count as f64 / all >= FAILED {
            found.push(format!("{count} requests failed: {}", kind.name()));
        }
    }
    let overloaded: u64 = sample.statuses.range(500..).map(|(_, c)| c).sum();
    if overloaded as f64 / all >= FAILED {
        found.push(format!("{overloaded} answers had a status of 500 or above"));
    }
    match e.wanted {
        Some(wanted) if !reached(e) => found.push(format!(
            "of {wanted} requests that were due, {} were answered in time; {} had no answer at the end",
            e.on_time, sample.unanswered
        )),
        Some(_) => {}
        None if sample.answers > 0 => found.push(format!(
            "all {} connections waited for answers, and the generator for them: it ran {} of the time, and waited {} of it for \
             a CPU",
            e.connections,
            percent(mean(e, |t| t.0)),
            percent(mean(e, |t| t.1))
        )),
        None => {}
    }
    found
}

/// What is worth knowing even if it decided nothing.
fn facts(sample: &Sample, e: &Evidence) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(wanted) = e.wanted {
        let late = crate::report::time(sample.lateness.quantile(0.99) as f64);
        found.push(format!("{} of {wanted} requests answered in time; 99 % were sent at most {late} late", e.on_time));
    }
    if e.counters.interface.drops > 0 {
        found.push(format!("the interface dropped {} packets", e.counters.interface.drops));
    }
    if sample.retransmits > 0 {
        found.push(format!("{} segments or packets of these connections were lost and sent again", sample.retransmits));
    }
    if e.counters.datagram_overflows > 0 && sample.retransmits > 0 {
        let count = e.counters.datagram_overflows;
        found.push(format!("sockets of this machine had no room for {count} datagrams (net.core.rmem_max)"));
    }
    found
}

/// Open loop: all that was due was answered in time.
pub(crate) fn reached(e: &Evidence) -> bool {
    e.wanted.is_some_and(|wanted| e.on_time as f64 >= wanted as f64 * REACHED)
}

/// Over all threads.
fn mean(e: &Evidence, pick: fn(&(f64, f64)) -> f64) -> f64 {
    e.threads.iter().map(pick).fold(0.0, |a, v| a + v) / e.threads.len().max(1) as f64
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Tally;
    use machine::own::Counters;

    fn sample(answers: u64, latency_ms: u64) -> Sample {
        let mut tally = Tally::new(1);
        for _ in 0..answers {
            tally.answer(200, 0, None, 0);
            tally.sample.latency.record(latency_ms * 1_000_000);
        }
        tally.finish()
    }

    fn closed() -> Evidence {
        Evidence { threads: vec![(0.3, 0.01)], seconds: 1.0, connections: 64, on_time: 1000, ..Evidence::default() }
    }

    fn limit(sample: &Sample, evidence: &Evidence) -> Limit {
        judge(sample, evidence).limit
    }

    #[test]
    fn a_closed_loop_is_the_targets() {
        assert_eq!(limit(&sample(1000, 50), &closed()), Limit::Target);
    }

    #[test]
    fn an_open_loop_that_was_answered_has_no_limit() {
        let e = Evidence { wanted: Some(1000), threads: vec![(0.95, 0.04)], ..closed() };
        assert_eq!(limit(&sample(1000, 1), &e), Limit::None);
        let e = Evidence { on_time: 900, threads: vec![(0.1, 0.0)], ..e };
        assert_eq!(limit(&sample(900, 1), &e), Limit::Target);
    }

    #[test]
    fn a_generator_without_cpu_ports_or_punctuality() {
        for thread in [(0.97, 0.01), (0.22, 0.77), (0.1, 0.6)] {
            let e = Evidence { threads: vec![(0.2, 0.0), thread], ..closed() };
            assert_eq!(limit(&sample(1000, 1), &e), Limit::Generator, "{thread:?}");
        }
        let mut s = sample(1000, 1);
        s.failures[Failure::NoPort as usize] = 700;
        assert_eq!(limit(&s, &closed()), Limit::Generator);
        let mut s = sample(1000, 10);
        (0..1000).for_each(|_| s.lateness.record(9_000_000));
        assert_eq!(limit(&s, &Evidence { wanted: Some(1000), ..closed() }), Limit::Generator);
    }

    #[test]
    fn a_path_that_loses_or_queues() {
        let lossy = Sample { sent: 1000, retransmits: 40, ..sample(1000, 1) };
        assert_eq!(limit(&lossy, &closed()), Limit::Path);
        let e = Evidence { way_us: Some((80.0, 42_000.0)), ..closed() };
        assert_eq!(limit(&sample(1000, 45), &e), Limit::Path);
        assert_eq!(limit(&sample(1000, 450), &e), Limit::Target, "the way is a tenth of it");
    }

    #[test]
    fn who_refuses_has_no_queue() {
        let counters = Counters { listen_overflows: 40, syn_retransmits: 80, retransmits: 90, ..Counters::default() };
        let mut s = sample(1000, 1);
        s.failures[Failure::Refused as usize] = 500;
        let judged = judge(&s, &Evidence { counters, is_local: true, ..closed() });
        assert!(judged.limit == Limit::Target && !judged.evidence.join(" ").contains("queue"), "{judged:?}");
    }

    #[test]
    fn a_full_listen_queue_is_the_targets() {
        let counters = Counters { listen_overflows: 40, retransmits: 90, out_segments: 900, ..Counters::default() };
        let e = Evidence { counters, is_local: true, ..closed() };
        let mut s = sample(1000, 1);
        s.connect.record(1_020_000_000);
        let text = judge(&s, &e).evidence.join("\n");
        assert!(judge(&s, &e).limit == Limit::Target && text.contains("overflowed 40 times"), "{text}");
        let counters = Counters { syn_retransmits: 80, listen_overflows: 0, ..counters };
        assert_eq!(limit(&s, &Evidence { counters, ..closed() }), Limit::Target, "far away");
    }
}
