//! When to try: renewal within a window, and pauses after failures that grow. Knows no clock; random numbers are arguments.

use std::time::Duration;

/// After the first, second, third failure in a row; then the last again and again.
const PAUSES_S: [u64; 4] = [60, 600, 6000, 24 * 3600];
/// Certificates that live longer are renewed after two thirds of their life, others after half of it.
const LONG_LIFE_S: i64 = 10 * 24 * 3600;
/// Half of the width of the window that follows from a certificate's life, in percent of it.
const WINDOW_PERCENT: i64 = 2;
/// A renewal is never sooner after the one before, whatever a certificate or an authority says.
pub(super) const SHORTEST_S: i64 = 60;

/// From when to when to renew, in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The beginning.
    pub(super) start: i64,
    /// The end; not before the beginning.
    pub(super) end: i64,
}

impl Window {
    /// What follows from a certificate's own life.
    pub(super) fn of_life(not_before: i64, not_after: i64) -> Window {
        let life = (not_after - not_before).max(0);
        let at = not_before + if life > LONG_LIFE_S { life * 2 / 3 } else { life / 2 };
        let half = life * WINDOW_PERCENT / 100;
        Window { start: at - half, end: at + half }
    }

    /// One moment of it, the same for the same number.
    pub(super) fn moment(self, random: u64) -> i64 {
        let width = (self.end - self.start).max(0) as u64 + 1;
        self.start + (random % width) as i64
    }
}

/// How long to wait after the failure with this number, counted from 1. `asked`: what the authority wants.
pub(super) fn pause(failures: u32, asked: Option<Duration>, random: u64) -> Duration {
    let at = (failures.max(1) as usize - 1).min(PAUSES_S.len() - 1);
    let pause = PAUSES_S[at];
    // Those who failed together should not come back together.
    let pause = pause + random % (pause / 10);
    Duration::from_secs(pause).max(asked.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows() {
        const DAY: i64 = 86_400;
        assert_eq!(Window::of_life(0, 90 * DAY), Window { start: 60 * DAY - 155_520, end: 60 * DAY + 155_520 });
        let short = Window::of_life(DAY, 7 * DAY);
        assert_eq!((short.start + short.end) / 2, 4 * DAY);
        for random in [0, 1, 77, u64::MAX] {
            let moment = short.moment(random);
            assert!(short.start <= moment && moment <= short.end);
        }
        assert_eq!(Window::of_life(10, 0).moment(5), 10);
    }

    #[test]
    fn pauses_grow_and_end() {
        let seconds = |failures, asked| pause(failures, asked, 0).as_secs();
        assert_eq!([1, 2, 3, 4, 5, 1000].map(|n| seconds(n, None)), [60, 600, 6000, 86_400, 86_400, 86_400]);
        assert_eq!(seconds(1, Some(Duration::from_secs(3600))), 3600);
        assert_eq!(seconds(4, Some(Duration::from_secs(5))), 86_400);
        assert!((60..66).contains(&pause(1, None, u64::MAX).as_secs()));
    }
}
