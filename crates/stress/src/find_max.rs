//! `--find-max`: the highest rate at which the objectives hold, and at which the kernel turns nobody away. The search is pure; a caller
//! tries the rates.

use crate::condition::Condition;
use crate::plan::{Load, Plan};
use crate::report::time;
use crate::run::Record;
use crate::sample::Sample;
use crate::schedule::Schedule;
use crate::verdict::{Evidence, LOSS, LOSS_LEAST, SYN_LOST_NS};
use machine::queue::Watched;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Steps, the first look included.
pub const MAX_STEPS: usize = 12;
/// Done when the lowest rate that failed is so close to the highest that held.
const CLOSE: f64 = 1.03;
/// What `safe` keeps free below `best`: a peak above the mean, a peer that fails.
const SAFE_PART: f64 = 0.85;
/// Around the rate of the first look, which is a good guess but not more.
const FIRST_BELOW: f64 = 0.97;
/// How far the search leaps while it knows no rate that fails, or none that holds.
const LEAPS: [f64; 4] = [1.06, 1.2, 1.6, 3.0];
/// A rate below this is not looked for.
const LEAST_RATE: f64 = 1.0;
/// Of each step this part only warms up.
const WARM_UP: f64 = 0.25;
/// Less than this part of the wanted rate answered: the rate does not hold, whatever the objectives say.
const REACHED: f64 = 0.985;
/// So many of the answers were the quickest: they did not wait for others.
const QUICK: f64 = 0.1;
/// An accept queue that is filled to this part turns users away at the next peak.
const QUEUE_FULL: f64 = 0.9;

/// Where the search is. Rates are requests a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Search {
    /// The highest that held.
    pub held: Option<f64>,
    /// The lowest that failed.
    pub failed: Option<f64>,
    guess: f64,
    leaps: usize,
}

impl Search {
    /// Begins near what a closed loop carried.
    pub fn new(guess: f64) -> Search {
        Search { guess: guess.max(LEAST_RATE), ..Search::default() }
    }

    /// The next rate; nothing: it is found.
    pub fn next_rate(&mut self) -> Option<f64> {
        match (self.held, self.failed) {
            (None, None) => Some(self.guess * FIRST_BELOW),
            (Some(held), Some(failed)) if failed <= held * CLOSE => None,
            (Some(held), Some(failed)) => Some((held * failed).sqrt()),
            (Some(held), None) => Some(held * self.leap()),
            (None, Some(failed)) if failed <= LEAST_RATE => None,
            (None, Some(failed)) => Some((failed / self.leap()).max(LEAST_RATE)),
        }
    }

    fn leap(&mut self) -> f64 {
        let leap = LEAPS[self.leaps.min(LEAPS.len() - 1)];
        self.leaps += 1;
        leap
    }

    /// What came of a rate.
    pub fn note(&mut self, rate: f64, held: bool) {
        if held {
            self.held = Some(self.held.map_or(rate, |h| h.max(rate)));
        } else {
            self.failed = Some(self.failed.map_or(rate, |f| f.min(rate)));
        }
    }
}

/// One rate that was tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Requests a second; what was reached in the first look, which has no schedule.
    pub rate: f64,
    /// Whether all objectives held.
    pub held: bool,
    /// What it came to, in words.
    pub why: String,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct HighestRate {
    /// The highest rate that held.
    pub best: Option<f64>,
    /// With room above it.
    pub safe: Option<f64>,
    /// The objective that failed at the lowest rate that did not hold.
    pub bound: Option<String>,
    /// Some rate failed because of the generator or the way: `best` is a lower bound.
    pub is_lower_bound: bool,
    /// All steps.
    pub steps: Vec<Step>,
    /// The run at the best rate.
    pub record: Option<Record>,
    /// Why it ended before it was done; what was found until then holds.
    pub ended: Option<String>,
}

/// One try: what it replaces of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Requests a second; `None`: as fast as it goes.
    pub rate: Option<f64>,
    /// How long.
    pub length: Duration,
}

impl Trial {
    /// The plan of the try.
    pub fn of(self, plan: &Plan) -> Plan {
        let load = self.rate.map_or(Load::Closed, |rate| Load::Open(Schedule::constant(rate, self.length)));
        Plan { total: None, duration: Some(self.length), load, ..plan.clone() }
    }
}

/// Searches. `step` is the length of one try, `connections` what the first look, without a rate, goes as fast as. `run` makes a
/// try, `told` hears of each as it is done.
///
/// # Errors
/// That of the first look. Later ones end the search with what was found.
pub fn find(
    connections: usize,
    slo: &[Condition],
    step: Duration,
    mut run: impl FnMut(Trial) -> Result<Record, String>,
    mut told: impl FnMut(&Step),
) -> Result<HighestRate, String> {
    let mut found = HighestRate::default();
    let first = run(Trial { rate: None, length: step })?;
    let good = first.sample.answers.saturating_sub(first.sample.bad_statuses());
    let guess = good as f64 / first.seconds.max(1e-9);
    let mut note = |found: &mut HighestRate, step: Step| {
        told(&step);
        found.steps.push(step);
    };
    let why = format!("first look: as fast as {connections} connections go");
    note(&mut found, Step { rate: guess, held: true, why });
    let mut search = Search::new(guess);
    while found.steps.len() < MAX_STEPS
        && let Some(rate) = search.next_rate()
    {
        let record = match run(Trial { rate: Some(rate), length: step }) {
            Ok(record) => settled(record),
            Err(text) => {
                found.ended = Some(text);
                break;
            }
        };
        let failed = failure(&record, slo, rate);
        search.note(rate, failed.is_none());
        let p99 = time(record.sample.latency.quantile(0.99) as f64);
        let why =
            failed.clone().unwrap_or_else(|| format!("p99 {p99}, errors {:.3}%", record.sample.error_part() * 100.0));
        note(&mut found, Step { rate, held: failed.is_none(), why });
        match failed {
            None => found.record = Some(record),
            Some(failed) if search.failed == Some(rate) => {
                found.is_lower_bound = !record.verdict.limit.is_valid();
                found.bound = Some(failed);
            }
            Some(_) => {}
        }
    }
    found.best = search.held;
    found.safe = search.held.map(|b| b * SAFE_PART);
    Ok(found)
}

/// Leaves the warm-up out of the latencies, where there are enough seconds to do so.
fn settled(mut record: Record) -> Record {
    let skip = (record.series.len() as f64 * WARM_UP) as usize;
    let Some(rest) = record.series.get(skip..).filter(|r| skip > 0 && r.iter().any(|s| s.answers > 0)) else {
        return record;
    };
    record.sample.latency.clear();
    for second in rest {
        record.sample.latency.merge(&second.latency);
    }
    record
}

/// What did not hold. A rate that holds does so however the generator fared.
fn failure(record: &Record, slo: &[Condition], rate: f64) -> Option<String> {
    let reached = record.rate();
    // What was asked last could not be answered before the end: so much is under way where nothing waits, by the quickest answers.
    let under_way = rate * record.sample.service.quantile(QUICK) as f64 / 1e9;
    let wanted = rate * REACHED * record.seconds;
    let kernel = kernel(&record.evidence, &record.sample);
    let failed = match slo.iter().find(|c| !c.holds(record)) {
        Some(condition) => condition.explain(record),
        None if record.on_time as f64 + under_way < wanted => {
            format!("the rate was not reached (it is {reached:.0}/s)")
        }
        None => return kernel,
    };
    let failed = kernel.map_or(failed.clone(), |kernel| format!("{failed}; {kernel}"));
    let limit = record.verdict.limit;
    Some(if limit.is_valid() { failed } else { format!("{failed}; limited by the {}", limit.name()) })
}

/// What the kernel saw though all objectives held: users were turned away, and came again.
fn kernel(e: &Evidence, sample: &Sample) -> Option<String> {
    // A socket's drops are of other things, too (bare ACKs where accepting is deferred), the machine's overflows of other sockets.
    let dropped = |q: &Watched| q.dropped.min(e.counters.listen_overflows);
    if let Some(queue) = e.queue.filter(|q| dropped(q) > 0) {
        let (count, backlog) = (dropped(&queue), queue.backlog);
        return Some(format!("kernel: {count} connections found the accept queue full (backlog {backlog})"));
    }
    if e.turned_away > 0 {
        return Some(format!("kernel, by the target's API: {} connections found the accept queue full", e.turned_away));
    }
    if let Some(q) = e.queue.filter(|q| q.backlog > 0 && f64::from(q.most) >= f64::from(q.backlog) * QUEUE_FULL) {
        return Some(format!("kernel: {} connections waited to be accepted, of {} that may", q.most, q.backlog));
    }
    if sample.connect.max() >= SYN_LOST_NS {
        let longest = time(sample.connect.max() as f64);
        return Some(format!("kernel: a handshake took {longest}: its SYN was not answered and had to be sent again"));
    }
    let segments = (sample.sent + sample.connects).max(1);
    (sample.retransmits >= LOSS_LEAST && sample.retransmits as f64 / segments as f64 >= LOSS)
        .then(|| format!("kernel: {} of about {segments} segments had to be sent again", sample.retransmits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps and result of a search against a target with a sharp limit.
    fn search(guess: f64, limit: f64) -> (usize, f64) {
        let (mut search, mut steps) = (Search::new(guess), 1);
        while steps < MAX_STEPS
            && let Some(rate) = search.next_rate()
        {
            search.note(rate, rate <= limit);
            steps += 1;
        }
        (steps, search.held.unwrap_or(0.0))
    }

    #[test]
    fn within_five_percent_in_twelve_steps() {
        for off in [0.3, 0.5, 0.8, 0.95, 1.0, 1.02, 1.1, 1.3, 2.0, 4.0] {
            let (steps, best) = search(1000.0 * off, 1000.0);
            assert!(steps <= MAX_STEPS && (950.0..=1000.0).contains(&best), "{off}: {best} after {steps}");
        }
    }

    #[test]
    fn the_kernel_is_believed_where_two_of_its_counts_agree() {
        let queue = |most, dropped| Some(Watched { most, backlog: 16, dropped });
        let seen = |queue, overflows, turned_away| {
            let counters = machine::own::Counters { listen_overflows: overflows, ..Default::default() };
            let e = Evidence { queue, counters, turned_away, ..Evidence::default() };
            kernel(&e, &Sample::new(1)).unwrap_or_default()
        };
        assert_eq!(seen(queue(3, 0), 9, 0), "", "another socket's");
        assert_eq!(seen(queue(3, 9), 0, 0), "", "no overflow");
        assert_eq!(seen(queue(17, 9), 5, 0), "kernel: 5 connections found the accept queue full (backlog 16)");
        assert_eq!(seen(queue(15, 0), 0, 0), "kernel: 15 connections waited to be accepted, of 16 that may");
        assert!(seen(None, 0, 3).starts_with("kernel, by the target's API: 3 connections"));
    }

    #[test]
    fn nothing_holds() {
        assert_eq!(search(10.0, 0.0).1, 0.0);
    }
}
