//! The way to the place where a server bends. Pure: what was measured goes in, the next share comes out. From and to: `redline`.

use machine::queue::Watched;
use serde::Serialize;

/// Each step gives the server so much more of the traffic than the one before.
const GROWTH: f64 = 1.25;
/// A server with this share has all of the traffic, as far as weights go.
pub(super) const ALL: f64 = 0.99;
/// So often the place between the last good and the first bad share is halved: a quarter becomes less than two in a hundred.
const HALVINGS: u32 = 4;
/// Fewer answers in a step say nothing.
pub(super) const FEWEST: u64 = 20;
/// An answer that takes this little longer is not slow, whatever the factor says, microseconds.
const NOTICEABLE_US: f64 = 2_000.0;
/// A server that bends goes on with about what it carries. One whose good answers fall below this part of what it has carried is broken.
const BROKEN: f64 = 0.5;

/// A queue this full, with so many in it, is about to overflow.
const FULL: f64 = 0.8;
const FEW: u32 = 8;
/// A server that uses so much of its CPUs has none for more requests.
const BUSY: f64 = 0.95;

/// A step as it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Step {
    /// The share of the traffic that the server was given.
    pub share: f64,
    /// Its good answers a second.
    pub rate: f64,
    /// Those of all other servers together.
    pub others: f64,
    /// How long they took on average, microseconds.
    pub mean_us: f64,
    /// The part of them that failed: 5xx, broken connections, timeouts.
    pub failed: f64,
    /// How many answers that is of.
    pub answers: u64,
    /// Its accept queue, where it runs on this machine.
    pub queue: Option<Watched>,
    /// The part of the CPUs that it can use, likewise.
    pub cpu: Option<f64>,
}

/// What is too much.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The part of answers that may fail.
    pub failed: f64,
    /// How many times longer than at first answers may take.
    pub slower: f64,
}

/// Why a step was too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bend {
    /// Answers fail.
    Failures,
    /// Answers take longer.
    Latency,
    /// Its accept queue fills: connections wait, or are dropped.
    Queue,
    /// It has no CPU time left.
    Cpu,
}

/// How far it has come.
#[derive(Debug)]
pub struct Search {
    limits: Limits,
    first: Option<Step>,
    best: Option<Step>,
    most: f64,
    bad: Option<(f64, Bend)>,
    halved: u32,
}

impl Search {
    /// Nothing has been measured.
    pub fn new(limits: Limits) -> Search {
        Search { limits, first: None, best: None, most: 0.0, bad: None, halved: 0 }
    }

    /// The highest rate without a bend.
    pub fn best(&self) -> Option<f64> {
        self.best.map(|b| b.rate)
    }

    /// The highest rate of good answers in any step without failures, however long they took: where its queue is never empty, that is what
    /// it can do.
    pub fn most(&self) -> Option<f64> {
        (self.most > 0.0).then_some(self.most)
    }

    /// What bends beyond.
    pub fn bend(&self) -> Option<Bend> {
        self.bad.map(|b| b.1)
    }

    /// Whether a step was too much.
    pub fn bends(&self, step: &Step) -> Option<Bend> {
        if step.failed > self.limits.failed {
            return Some(Bend::Failures);
        }
        let slower = |first: f64| step.mean_us > first * self.limits.slower && step.mean_us > first + NOTICEABLE_US;
        if self.first.is_some_and(|first| slower(first.mean_us)) {
            return Some(Bend::Latency);
        }
        let is_full = |q: &Watched| q.dropped > 0 || q.most >= FEW && f64::from(q.most) >= f64::from(q.backlog) * FULL;
        if step.queue.as_ref().is_some_and(is_full) {
            return Some(Bend::Queue);
        }
        step.cpu.is_some_and(|cpu| cpu >= BUSY).then_some(Bend::Cpu)
    }

    /// Whether the server has broken between two looks, though it is given no less than when it was well; in words.
    pub fn breaks(&self, share: f64, look: &Step, seconds: f64) -> Option<String> {
        let best = self.best.filter(|b| share >= b.share && b.rate * seconds >= FEWEST as f64)?;
        // All of the traffic may have become less. What the others get says so.
        let expected = best.others * (1.0 - share) / (1.0 - best.share).max(f64::EPSILON);
        if look.rate >= best.rate * BROKEN || look.others < expected * BROKEN {
            return None;
        }
        Some(format!(
            "its good answers fell to {:.0} a second, of {:.0} that it had carried: that is no bend, something broke",
            look.rate, best.rate
        ))
    }

    /// Takes a step, and gives the share of the next one; none: it is over.
    pub fn next(&mut self, step: Step) -> Option<f64> {
        let bend = self.bends(&step);
        // A step that fails is cut short: its rate is that of a moment.
        if bend != Some(Bend::Failures) {
            self.most = self.most.max(step.rate);
        }
        match bend {
            Some(bend) => self.bad = Some((step.share, bend)),
            None => {
                self.first.get_or_insert(step);
                if self.best.is_none_or(|b| step.rate >= b.rate) {
                    self.best = Some(step);
                }
            }
        }
        let good = self.best?.share;
        match self.bad {
            None if good >= ALL => None,
            None => Some((good * GROWTH).min(1.0)),
            Some(_) if self.halved == HALVINGS => None,
            Some((bad, _)) => {
                self.halved += 1;
                Some((good + bad) / 2.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that carries so much, behind so much traffic.
    fn server(carries: f64, traffic: f64) -> impl Fn(f64) -> Step {
        move |share| {
            let offered = traffic * share;
            let failed = ((offered - carries) / offered).max(0.0);
            let others = traffic - offered;
            Step {
                share,
                rate: offered.min(carries),
                others,
                mean_us: 1_000.0,
                failed,
                answers: 1_000,
                ..Step::default()
            }
        }
    }

    fn run(search: &mut Search, mut share: f64, server: impl Fn(f64) -> Step) -> usize {
        for n in 1..100 {
            match search.next(server(share)) {
                Some(next) => share = next,
                None => return n,
            }
        }
        panic!("no end: {search:?}");
    }

    const LIMITS: Limits = Limits { failed: 0.001, slower: 2.0 };

    #[test]
    fn the_bend_is_closed_in_on() {
        for carries in [500.0, 777.0, 1_000.0, 1_900.0] {
            let mut search = Search::new(LIMITS);
            let steps = run(&mut search, 0.1, server(carries, 2_000.0));
            let best = search.best().unwrap();
            assert!(best <= carries && best > carries * 0.98, "{best} of {carries} after {steps} steps");
            assert_eq!(search.bend(), Some(Bend::Failures));
        }
    }

    #[test]
    fn a_server_that_carries_all_has_no_bend() {
        let mut search = Search::new(LIMITS);
        run(&mut search, 0.25, server(5_000.0, 2_000.0));
        assert_eq!((search.best().unwrap(), search.bend()), (2_000.0, None));
    }

    #[test]
    fn answers_that_take_longer_are_a_bend_too() {
        let mut search = Search::new(LIMITS);
        let slow = |share: f64| Step {
            share,
            rate: 1_000.0 * share,
            mean_us: if share > 0.6 { 9_000.0 } else { 3_000.0 },
            answers: 99,
            ..Step::default()
        };
        run(&mut search, 0.2, slow);
        assert!(search.most() >= Some(600.0) && search.most() > search.best(), "{search:?}");
        let best = search.best.unwrap().share;
        assert!(best > 0.5 && best <= 0.6 && search.bend() == Some(Bend::Latency), "{search:?}");
        let mut search = Search::new(LIMITS);
        assert_eq!(search.next(Step { failed: 0.5, answers: 99, ..Step::default() }), None, "it bends as it is");
        assert_eq!(search.best, None);
    }

    #[test]
    fn a_queue_and_a_cpu_bend_before_users_notice() {
        let with = |queue: fn(f64) -> Option<Watched>, cpu: fn(f64) -> Option<f64>| {
            let mut search = Search::new(LIMITS);
            let at = server(5_000.0, 2_000.0);
            run(&mut search, 0.2, |share| Step { queue: queue(share), cpu: cpu(share), ..at(share) });
            (search.best().unwrap() / 2_000.0, search.bend())
        };
        let (share, bend) = with(|_| None, |share| Some(share / 0.6));
        assert!(share < 0.57 && share > 0.5 && bend == Some(Bend::Cpu), "{share} {bend:?}");
        let drops = |share: f64| Some(Watched { most: 1, backlog: 100, dropped: u64::from(share > 0.6) });
        let (share, bend) = with(drops, |_| Some(0.2));
        assert!(share <= 0.6 && share > 0.5 && bend == Some(Bend::Queue), "{share} {bend:?}");
        let fills = |share: f64| Some(Watched { most: if share > 0.6 { 90 } else { 7 }, backlog: 100, dropped: 0 });
        assert_eq!(with(fills, |_| None).1, Some(Bend::Queue));
        let short = |_| Some(Watched { most: 5, backlog: 5, dropped: 0 });
        assert_eq!(with(short, |_| None).1, None, "a few that wait are no sign");
    }

    #[test]
    fn a_server_that_breaks_is_told_from_one_that_bends_and_from_less_traffic() {
        let mut search = Search::new(LIMITS);
        let at = server(500.0, 2_000.0);
        assert_eq!(search.breaks(0.2, &at(0.0), 1.0), None, "nothing is known yet");
        search.next(at(0.2));
        assert_eq!(search.breaks(0.4, &at(0.4), 0.2), None, "it carries what it can");
        let dead = |share: f64| Step { rate: 0.0, ..at(share) };
        assert!(
            search.breaks(0.25, &dead(0.25), 0.2).unwrap().starts_with("its good answers fell to 0 a second, of 400")
        );
        assert_eq!(search.breaks(0.25, &dead(0.25), 0.01), None, "too short to say");
        assert_eq!(search.breaks(0.1, &dead(0.1), 0.2), None, "it is given less");
        assert_eq!(search.breaks(0.25, &Step { rate: 10.0, others: 60.0, ..at(0.25) }, 0.2), None, "it is night");
    }
}
