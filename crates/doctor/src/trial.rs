//! Whether a new configuration serves worse than the one before, both seen side by side (`ironweir canary`). Pure: counts in, a verdict out.
//! From: the server's counts of both populations. To: the server, which takes the new configuration back or keeps it.

use crate::statistics::{fisher, mann_whitney};
use serde::Serialize;

/// One look may call a good configuration bad with this probability. Looks follow a growth of [`GROWTH`], so there are fewer than 50
/// between 20 and a million requests: all together stay below one in a hundred.
const P_LOOK: f64 = 0.0002;
/// The last look, when the time is over, need not be one of many.
const P_LAST: f64 = 0.01;
/// The next look comes when the canary has seen so many times the requests of the last one.
const GROWTH: f64 = 1.25;
/// A share of failures that is higher by less is no reason, however sure it is.
const MEANT_SHARE: f64 = 0.001;
/// Answers that take this many times longer, and ...
const MEANT_FACTOR: f64 = 1.2;
/// ... this much longer, in milliseconds, are slower; what is less is no reason.
const MEANT_MS: u64 = 5;

/// What was seen of the requests under one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Population {
    /// Connections that were given to it.
    pub connections: u64,
    /// Requests that ended, and handshakes that failed.
    pub requests: u64,
    /// Of these, answers with 5xx, ends without an answer, and failed handshakes.
    pub failed: u64,
    /// Of these, answers with 4xx.
    pub refused: u64,
    /// How long requests took: milliseconds (the upper end of a step) and how many, rising.
    #[serde(skip)]
    pub times: Vec<(u64, u64)>,
}

impl Population {
    /// A time that this part (0 to 1) of the requests do not exceed, milliseconds; 0 without requests.
    pub fn quantile(&self, part: f64) -> u64 {
        let all: u64 = self.times.iter().map(|(_, n)| n).sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.times.iter().find(|(_, n)| {
            seen += n;
            seen >= wanted
        });
        found.map_or(0, |(ms, _)| *ms)
    }

    /// For people: `412 requests, 0 failed, 3 refused, half of them within 2 ms, 95 % within 9 ms`.
    pub fn shown(&self) -> String {
        let Population { requests, failed, refused, .. } = self;
        let (half, most) = (self.quantile(0.5), self.quantile(0.95));
        format!("{requests} requests, {failed} failed, {refused} refused, half within {half} ms, 95 % within {most} ms")
    }
}

/// What is said of a canary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too early: nothing is said yet.
    Wait,
    /// It is worse: in words, with numbers and the test.
    Worse(String),
    /// The time is over and nothing is worse.
    Good,
    /// The time is over, and too few requests came to judge by.
    Unproven(String),
}

/// Looks at a canary again and again.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Fewer requests, of either population, say nothing.
    minimum: u64,
    next_look: u64,
}

impl Watch {
    /// Begins. `minimum`: requests of each population before anything is judged.
    pub fn new(minimum: u64) -> Watch {
        Watch { minimum: minimum.max(1), next_look: minimum.max(1) }
    }

    /// Looks while the time runs.
    pub fn look(&mut self, new: &Population, old: &Population) -> Verdict {
        if new.requests < self.next_look || old.requests < self.minimum {
            return Verdict::Wait;
        }
        self.next_look = ((new.requests as f64 * GROWTH) as u64).max(new.requests + 1);
        worse(new, old, P_LOOK).map_or(Verdict::Wait, Verdict::Worse)
    }

    /// Looks when the time is over.
    pub fn last_look(&self, new: &Population, old: &Population) -> Verdict {
        let (a, b, least) = (new.requests, old.requests, self.minimum);
        if a < least || b < least {
            return Verdict::Unproven(format!(
                "{a} requests under the new configuration and {b} under the old one are too few to judge by (at least {least} each)"
            ));
        }
        worse(new, old, P_LAST).map_or(Verdict::Good, Verdict::Worse)
    }
}

/// In what way the new one is worse, if chance explains it with less than `p`.
fn worse(new: &Population, old: &Population, p: f64) -> Option<String> {
    let share = |n: u64, of: &Population| n as f64 / of.requests.max(1) as f64;
    for (what, a, b) in [("fail", new.failed, old.failed), ("are refused (4xx)", new.refused, old.refused)] {
        let (now, before) = (share(a, new), share(b, old));
        let chance = fisher(a, new.requests, b, old.requests);
        if now - before >= MEANT_SHARE && chance < p {
            return Some(format!(
                "{:.1} % of its {} requests {what}, {:.1} % of {} under the old one (Fisher's exact test: p = {})",
                now * 100.0,
                new.requests,
                before * 100.0,
                old.requests,
                small(chance)
            ));
        }
    }
    let chance = mann_whitney(&new.times, &old.times);
    if chance >= p {
        return None;
    }
    let slower = |part: f64| {
        let (now, before) = (new.quantile(part), old.quantile(part));
        (now >= before + MEANT_MS && now as f64 >= before as f64 * MEANT_FACTOR).then_some((part, now, before))
    };
    let (part, now, before) = slower(0.5).or_else(|| slower(0.95))?;
    Some(format!(
        "{:.0} % of its {} requests take up to {now} ms, under the old one {before} ms (Mann-Whitney U test: p = {})",
        part * 100.0,
        new.requests,
        small(chance)
    ))
}

/// A probability for people.
fn small(p: f64) -> String {
    if p < 1e-6 { "below 0.000001".to_owned() } else { format!("{p:.6}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population(requests: u64, failed: u64, ms: u64) -> Population {
        Population {
            connections: requests,
            requests,
            failed,
            refused: 0,
            times: vec![(ms, requests / 2), (ms + 2, requests - requests / 2)],
        }
    }

    #[test]
    fn failures_are_seen_at_the_first_look() {
        let mut watch = Watch::new(20);
        assert_eq!(watch.look(&population(19, 19, 1), &population(400, 0, 1)), Verdict::Wait, "below the minimum");
        let Verdict::Worse(text) = watch.look(&population(20, 20, 1), &population(400, 0, 1)) else { panic!() };
        assert!(text.starts_with("100.0 % of its 20 requests fail, 0.0 % of 400"), "{text}");
    }

    #[test]
    fn failures_of_both_are_nobodys() {
        let mut watch = Watch::new(20);
        assert_eq!(watch.look(&population(50, 5, 1), &population(1_000, 100, 1)), Verdict::Wait);
        assert_eq!(watch.last_look(&population(50, 5, 1), &population(1_000, 100, 1)), Verdict::Good);
    }

    #[test]
    fn refusals_count_as_well() {
        let new = Population { refused: 40, ..population(40, 0, 1) };
        let Verdict::Worse(text) = Watch::new(20).look(&new, &population(800, 0, 1)) else { panic!() };
        assert!(text.contains("are refused (4xx)"), "{text}");
    }

    #[test]
    fn slow_answers_are_seen_and_small_differences_are_not() {
        let mut watch = Watch::new(20);
        let Verdict::Worse(text) = watch.look(&population(40, 0, 60), &population(800, 0, 3)) else { panic!() };
        assert!(text.contains("take up to 60 ms, under the old one 3 ms (Mann-Whitney"), "{text}");
        assert_eq!(Watch::new(20).last_look(&population(4_000, 0, 7), &population(80_000, 0, 5)), Verdict::Good);
    }

    #[test]
    fn looks_become_rarer_and_too_few_prove_nothing() {
        let mut watch = Watch::new(20);
        assert_eq!(watch.look(&population(100, 0, 1), &population(100, 0, 1)), Verdict::Wait);
        assert_eq!(watch.next_look, 125);
        let Verdict::Unproven(text) = watch.last_look(&population(3, 0, 1), &population(100, 0, 1)) else { panic!() };
        assert!(text.contains("3 requests under the new configuration and 100"), "{text}");
    }
}
