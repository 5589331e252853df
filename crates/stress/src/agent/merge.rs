//! Puts together what agents measured: exactly, since all histograms have one layout. From: `fleet`. To: the reports.

use super::Part;
use super::fleet::{Outcome, Remote};
use crate::hold::{HoldPlan, HoldRecord, HoldSecond};
use crate::plan::Plan;
use crate::run::{Record, wanted};
use crate::sample::{Latencies, Sample, Second};
use crate::verdict::{Evidence, Limit, Verdict, judge};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Why a result is not whole.
fn partial(lost: &[String]) -> Option<String> {
    (!lost.is_empty()).then(|| lost.join("; "))
}

/// The parts of a run.
pub(super) fn runs(
    plan: &Plan,
    remotes: &[Remote],
    outcomes: Vec<Outcome<Second, Part>>,
    began: SystemTime,
) -> Result<Record, String> {
    let mut sample = Sample::new(plan.urls.len());
    let mut series: BTreeMap<u32, Second> = BTreeMap::new();
    let mut evidence = Evidence { connections: plan.connections as u64, ..Evidence::default() };
    let (mut on_time, mut seconds, mut lag_ns, mut lost) = (0, 0.0_f64, 0, Vec::new());
    for (remote, outcome) in remotes.iter().zip(&outcomes) {
        for second in &outcome.seconds {
            let number = second.number;
            series.entry(number).or_insert_with(|| Second { number, ..Second::default() }).merge(second);
        }
        if let Some(part) = &outcome.part {
            sample.merge(&part.sample);
            on_time += part.on_time;
            seconds = seconds.max(part.seconds);
            lag_ns = lag_ns.max(part.start_lag_ns + remote.doubt_ns);
            evidence.add(&part.evidence);
            continue;
        }
        // What it carried before it was lost is known by its seconds.
        let carried: u64 = outcome.seconds.iter().map(|s| s.answers).sum();
        on_time += carried;
        sample.answers += carried;
        sample.bytes_read += outcome.seconds.iter().map(|s| s.bytes).sum::<u64>();
        outcome.seconds.iter().for_each(|s| sample.latency.merge(&s.latency));
        // Where all were lost nobody has said how long the run was.
        seconds = seconds.max(outcome.seconds.len() as f64);
        let (why, length) = (outcome.lost.as_deref().unwrap_or_default(), outcome.seconds.len());
        lost.push(format!("agent {} was lost ({why}) after {length} s and {carried} answers", remote.name));
    }
    if outcomes.iter().all(|o| o.part.is_none()) && sample.answers == 0 {
        return Err(lost.join("; "));
    }
    evidence.wanted = wanted(plan, seconds);
    evidence.on_time = on_time;
    evidence.seconds = seconds;
    let mut verdict = judge(&sample, &evidence);
    if !lost.is_empty() {
        // Whatever is missing may be what the lost agents did not send.
        verdict.limit = Limit::Generator;
        verdict.evidence.insert(0, format!("{} of {} agents were lost", lost.len(), remotes.len()));
    }
    let spread = crate::report::time(lag_ns as f64);
    verdict.evidence.push(format!("{} agents began within {spread} of each other", remotes.len()));
    Ok(Record {
        began,
        seconds,
        sample,
        on_time,
        series: series.into_values().collect(),
        evidence,
        verdict,
        partial: partial(&lost),
        was_ended: false,
        agents: remotes.len(),
        start_lag_ns: lag_ns,
    })
}

/// The parts of held connections.
pub(super) fn holds(
    plan: &HoldPlan,
    remotes: &[Remote],
    outcomes: Vec<Outcome<HoldSecond, HoldRecord>>,
) -> Result<HoldRecord, String> {
    let mut all = HoldRecord {
        seconds: 0.0,
        tried: 0,
        opened: 0,
        most: 0,
        held: 0,
        lost: 0,
        messages: 0,
        sample: Sample::new(1),
        ready: Latencies::default(),
        beat: Latencies::default(),
        memory_each: 0.0,
        series: Vec::new(),
        partial: None,
        verdict: Verdict { limit: Limit::None, evidence: Vec::new() },
    };
    let (mut memory, mut lost, mut evidence) = (0.0, Vec::new(), Vec::new());
    for (remote, outcome) in remotes.iter().zip(&outcomes) {
        let Some(part) = &outcome.part else {
            let last = outcome.seconds.last().copied().unwrap_or_default();
            let why = outcome.lost.as_deref().unwrap_or_default();
            lost.push(format!(
                "agent {} was lost ({why}) after {} s, when it held {}",
                remote.name, last.number, last.held
            ));
            continue;
        };
        all.seconds = all.seconds.max(part.seconds);
        all.tried += part.tried;
        all.opened += part.opened;
        all.held += part.held;
        all.lost += part.lost;
        all.messages += part.messages;
        all.sample.merge(&part.sample);
        all.ready.merge(&part.ready);
        all.beat.merge(&part.beat);
        memory += part.memory_each * part.held as f64;
        all.series.resize(all.series.len().max(part.series.len()), 0);
        all.series.iter_mut().zip(&part.series).for_each(|(sum, held)| *sum += held);
        // A generator's limit hides the target's.
        if all.verdict.limit != Limit::Generator && part.verdict.limit != Limit::None {
            all.verdict.limit = part.verdict.limit;
        }
        evidence.extend(part.verdict.evidence.iter().map(|sentence| format!("agent {}: {sentence}", remote.name)));
    }
    if lost.len() == remotes.len() {
        return Err(lost.join("; "));
    }
    all.most = all.series.iter().copied().max().unwrap_or(0).max(all.held);
    all.memory_each = memory / all.held.max(1) as f64;
    all.partial = partial(&lost);
    let (held, gone, agents) = (all.held, all.lost, remotes.len());
    all.verdict.evidence =
        vec![format!("{held} of {} connections held at the end, {gone} were lost, on {agents} agents", plan.count)];
    all.verdict.evidence.extend(evidence);
    Ok(all)
}
