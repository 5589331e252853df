//! Open loop: when each request is due, in nanoseconds after the start, fixed before the run. Pure.
//!
//! Request `i` (from 0) is due when the wanted rate, added up over time, reaches `i`. It depends on nothing that happens in
//! the run, so threads and machines can each take every n-th request without talking to each other.

use crate::options::value::Stage;
use std::time::Duration;

/// The rates over time, as straight pieces.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// When it begins, nanoseconds after the start.
    start_ns: u64,
    length_ns: u64,
    /// Requests that are due before it.
    before: f64,
    /// Requests a second at its start and its end.
    from: f64,
    to: f64,
}

impl Piece {
    /// Requests that are due in it.
    fn count(&self) -> f64 {
        (self.from + self.to) / 2.0 * (self.length_ns as f64 / 1e9)
    }

    /// When `wanted` of its requests are due, nanoseconds after its start.
    fn time_of(&self, wanted: f64) -> u64 {
        let seconds = self.length_ns as f64 / 1e9;
        let slope = (self.to - self.from) / seconds;
        // wanted = from t + slope t^2 / 2, solved so that no difference of nearly equal numbers is formed.
        let root = (self.from * self.from + 2.0 * slope * wanted).max(0.0).sqrt();
        let time = if wanted <= 0.0 { 0.0 } else { 2.0 * wanted / (self.from + root) };
        ((time * 1e9).round() as u64).min(self.length_ns)
    }
}

impl Schedule {
    /// `rate` requests a second for a time.
    pub fn constant(rate: f64, duration: Duration) -> Schedule {
        let length_ns = duration.as_nanos() as u64;
        Schedule { pieces: vec![Piece { start_ns: 0, length_ns, before: 0.0, from: rate, to: rate }] }
    }

    /// One stage after the other.
    ///
    /// # Errors
    /// If nothing is ever due.
    pub fn stages(stages: &[Stage]) -> Result<Schedule, String> {
        let (mut start_ns, mut before) = (0_u64, 0.0);
        let mut pieces = Vec::with_capacity(stages.len());
        for stage in stages.iter().filter(|s| !s.duration.is_zero()) {
            let length_ns = stage.duration.as_nanos() as u64;
            let piece = Piece { start_ns, length_ns, before, from: stage.from, to: stage.to };
            start_ns += length_ns;
            before += piece.count();
            pieces.push(piece);
        }
        if before < 1.0 { Err("no request is due in these stages".to_owned()) } else { Ok(Schedule { pieces }) }
    }

    /// Nanoseconds after the start at which request `index` is due; `None`: it is not part of the schedule.
    pub fn due_ns(&self, index: u64) -> Option<u64> {
        let wanted = index as f64;
        let at = self.pieces.partition_point(|p| p.before <= wanted);
        let piece = self.pieces.get(at.checked_sub(1)?)?;
        // The last request is due before the end, not at it.
        if at == self.pieces.len() && wanted >= piece.before + piece.count() - 1e-6 {
            return None;
        }
        Some(piece.start_ns + piece.time_of(wanted - piece.before))
    }

    /// Its end, nanoseconds after the start.
    pub fn end_ns(&self) -> u64 {
        self.pieces.last().map_or(0, |p| p.start_ns + p.length_ns)
    }

    /// All requests that are due in it.
    pub fn count(&self) -> u64 {
        self.pieces.last().map_or(0, |p| (p.before + p.count() - 1e-6).ceil() as u64)
    }

    /// The part of one of `of` machines that share the load: the same times, a part of the rate.
    pub fn part(&self, of: usize) -> Schedule {
        let share = 1.0 / of.max(1) as f64;
        let piece = |p: &Piece| Piece { before: p.before * share, from: p.from * share, to: p.to * share, ..*p };
        Schedule { pieces: self.pieces.iter().map(piece).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(seconds: u64, from: f64, to: f64) -> Stage {
        Stage { duration: Duration::from_secs(seconds), from, to }
    }

    #[test]
    fn a_constant_rate_is_evenly_spaced() {
        let s = Schedule::constant(1000.0, Duration::from_secs(2));
        assert_eq!((s.due_ns(0), s.due_ns(1), s.due_ns(1999)), (Some(0), Some(1_000_000), Some(1_999_000_000)));
        assert_eq!((s.due_ns(2000), s.count(), s.end_ns()), (None, 2000, 2_000_000_000));
        let s = Schedule::constant(3.0, Duration::from_secs(1));
        assert_eq!([s.due_ns(1), s.due_ns(2), s.due_ns(3)], [Some(333_333_333), Some(666_666_667), None]);
    }

    #[test]
    fn no_drift_after_hours() {
        let s = Schedule::constant(30_000.0, Duration::from_secs(24 * 3600));
        let last = 30_000 * 24 * 3600 - 30_000;
        assert_eq!(s.due_ns(last), Some((24 * 3600 - 1) * 1_000_000_000));
    }

    #[test]
    fn a_ramp_a_step_and_a_pause() {
        let s = Schedule::stages(&[stage(10, 0.0, 100.0), stage(2, 0.0, 0.0), stage(1, 1000.0, 1000.0)]).unwrap();
        assert_eq!(s.count(), 1500);
        // 50 t^2 / 10 = 125 at t = 5.
        assert_eq!(s.due_ns(125), Some(5_000_000_000));
        assert_eq!(s.due_ns(500), Some(12_000_000_000), "after the pause");
        assert_eq!(s.due_ns(1499), Some(12_999_000_000));
        assert_eq!(s.due_ns(1500), None);
        assert!(Schedule::stages(&[stage(1, 0.0, 0.0)]).is_err());
    }

    #[test]
    fn times_never_go_back() {
        let s = Schedule::stages(&[stage(1, 10.0, 500.0), stage(1, 500.0, 3.0), stage(1, 7.0, 7.0)]).unwrap();
        let times: Vec<u64> = (0..s.count()).map(|i| s.due_ns(i).unwrap()).collect();
        assert!(times.windows(2).all(|w| w[0] <= w[1]) && *times.last().unwrap() < s.end_ns());
    }

    #[test]
    fn parts_add_up() {
        let s = Schedule::constant(1000.0, Duration::from_secs(1)).part(4);
        assert_eq!((s.count(), s.due_ns(1)), (250, Some(4_000_000)));
    }
}
