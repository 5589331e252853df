//! `limit_conn` and `limit_req`: what their zones said of requests.

use super::tally::Tally;

/// What a zone said; the numbers' places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It may go on.
    Passed,
    /// It has to wait first.
    Delayed,
    /// It is refused.
    Rejected,
    /// It would have to wait.
    DelayedDryRun,
    /// It would be refused.
    RejectedDryRun,
}

/// What is counted of a zone.
pub type Counts = Tally<5>;

impl Event {
    /// A refusal.
    pub fn rejected(dry_run: bool) -> Event {
        if dry_run { Event::RejectedDryRun } else { Event::Rejected }
    }

    /// A delay.
    pub fn delayed(dry_run: bool) -> Event {
        if dry_run { Event::DelayedDryRun } else { Event::Delayed }
    }
}
