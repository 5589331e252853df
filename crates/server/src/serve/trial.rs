//! A canary in the worker: looks at what both configurations did, has it judged (`doctor::trial`), tells the master.

use crate::master::{MasterLink, Tried, Try};
use crate::status::trial;
use doctor::trial::{Verdict, Watch};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Between two lines about how it goes.
const SAY: Duration = Duration::from_secs(1);

/// See the module's head.
pub(super) struct Trial {
    generation: u64,
    watch: Watch,
    ends: Instant,
    says: Instant,
    /// It is to be kept: the master's reload is waited for.
    good: bool,
}

impl Trial {
    /// Begins to count.
    pub(super) fn begin(order: &Try) -> Trial {
        trial::begin(order.generation, u64::from(order.terms.share));
        let now = Instant::now();
        Trial {
            generation: order.generation,
            watch: Watch::new(order.terms.minimum),
            ends: now + Duration::from_millis(order.terms.ms),
            says: now + SAY,
            good: false,
        }
    }

    /// How long until it is to be looked at; none: nothing is looked for any more.
    pub(super) fn next_look(&self) -> Option<Duration> {
        (!self.good).then(|| LOOK.min(self.ends.saturating_duration_since(Instant::now())))
    }

    /// Its number.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Looks, and tells the master how it goes. Why, if it is to be taken back: who looks does that first and tells the master then.
    pub(super) fn look(&mut self, link: &MasterLink) -> Option<String> {
        let ([old, new], now) = (trial::seen(), Instant::now());
        let numbers = || format!("new: {}; old: {}", new.shown(), old.shown());
        let verdict = if now < self.ends { self.watch.look(&new, &old) } else { self.watch.last_look(&new, &old) };
        match verdict {
            Verdict::Wait => {
                if now >= self.says {
                    self.says = now + SAY;
                    link.tried(self.generation, Tried::Goes, &numbers());
                }
                None
            }
            Verdict::Worse(why) | Verdict::Unproven(why) => Some(why),
            Verdict::Good => {
                self.good = true;
                link.tried(self.generation, Tried::Good, &format!("nothing is worse; {}", numbers()));
                None
            }
        }
    }
}
