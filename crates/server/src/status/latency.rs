//! How long things take: a histogram with steps that grow by at most an eighth, and what it says of percentiles.

use super::tally::{Mine, Tally, tally_of_program};

/// Steps of one below this, eight for each doubling above.
const EXACT: u64 = 16;
const PER_DOUBLING: u64 = 8;
/// Doublings above `EXACT`: up to 2^(4 + 18) = 4,194,304 units (of milliseconds: 70 minutes). What takes longer is in the last.
const DOUBLINGS: u64 = 18;
/// How many numbers a histogram takes.
pub const WIDTH: usize = (EXACT + PER_DOUBLING * DOUBLINGS) as usize;

/// The step of a value.
#[inline]
fn step(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let doubling = u64::from(value.ilog2()) - u64::from(EXACT.ilog2());
    let eighth = (value >> (doubling + 1)) - PER_DOUBLING;
    ((EXACT + doubling * PER_DOUBLING + eighth) as usize).min(WIDTH - 1)
}

/// The highest value of a step.
fn top(step: usize) -> u64 {
    let step = step as u64;
    if step < EXACT {
        return step;
    }
    let (doubling, eighth) = ((step - EXACT) / PER_DOUBLING, (step - EXACT) % PER_DOUBLING);
    ((PER_DOUBLING + eighth + 1) << (doubling + 1)) - 1
}

/// Counts one value, in the numbers from `at` on.
#[inline]
pub fn count<const N: usize>(mine: Mine<'_, N>, at: usize, value: u64) {
    mine.add(at + step(value), 1);
}

/// A histogram as it was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// From the numbers that [`count`] made.
    pub fn read(numbers: &[u64]) -> Histogram {
        Histogram(numbers[..WIDTH].to_vec())
    }

    /// What came to it since.
    pub fn since(&self, before: &Histogram) -> Histogram {
        Histogram(self.0.iter().zip(&before.0).map(|(now, was)| now.saturating_sub(*was)).collect())
    }

    /// How many values there were.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Steps with values: the highest value of each, and how many.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (top(i), *n))
    }

    /// A value that this part (0 to 1) of all values do not exceed; none if there are no values.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let total = self.total();
        let wanted = ((total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        self.steps()
            .find(|(_, n)| {
                seen += n;
                seen >= wanted
            })
            .map(|(top, _)| top)
    }
}

/// Upper bounds of the steps that times of zones and peers are shown in.
pub const BOUNDS_MS: [u64; 14] = [5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000];
/// One number for each, one for what took longer.
pub const STEPS: usize = BOUNDS_MS.len() + 1;

/// Times in such steps, and their sum: what a histogram of Prometheus is.
#[derive(Debug, Default)]
pub struct Times(Tally<{ STEPS + 1 }>);

impl Times {
    /// Counts one.
    #[inline]
    pub fn count(&self, ms: u64) {
        let step = BOUNDS_MS.iter().position(|bound| ms <= *bound).unwrap_or(BOUNDS_MS.len());
        let mine = self.0.mine();
        mine.add(step, 1);
        mine.add(STEPS, ms);
    }

    /// Sets all to zero.
    pub fn reset(&self) {
        self.0.reset(&[]);
    }

    /// The numbers of all threads: by step, and the sum in ms.
    pub fn read(&self) -> ([u64; STEPS], u64) {
        let all = self.0.sums();
        (std::array::from_fn(|i| all[i]), all[STEPS])
    }
}

tally_of_program! {
    /// How long requests of all threads took, ms, from the first byte of the head to the last of the answer. As exact as the
    /// clock of the thread's turns: what begins and ends within one took 0.
    pub static REQUESTS_MS: [WIDTH], of_requests
}

/// A client's request is done.
#[inline]
pub fn count_request(ms: u64) {
    count(of_requests(), 0, ms);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_an_eighth_at_most() {
        let mut before = 0;
        for value in (0..5000).chain([65_535, 65_536, 4_000_000]) {
            let step = step(value);
            assert!(step >= before && top(step) >= value, "{value}");
            assert!(top(step) - value <= value / 8, "{value} is in a step up to {}", top(step));
            before = step;
        }
        assert_eq!(step(u64::MAX), WIDTH - 1);
        assert_eq!(top(WIDTH - 1), 4_194_303);
    }

    #[test]
    fn percentiles_are_found() {
        let tally: Tally<WIDTH> = Tally::new();
        let read = || Histogram::read(&tally.sums());
        assert_eq!(read().quantile(0.5), None);
        (1..=100).for_each(|ms| count(tally.mine(), 0, ms));
        assert_eq!(read().quantile(0.1), Some(10));
        assert!((50..=56).contains(&read().quantile(0.5).unwrap()));
        assert!((99..=111).contains(&read().quantile(0.99).unwrap()));
        assert_eq!(read().total(), 100);
    }
}
