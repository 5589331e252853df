//! How fast each of many keys comes, in a table of fixed size that all threads share: a count-min sketch whose cells are leaky buckets.
//!
//! A cell is the time at which its bucket will be empty. A key has a cell in each row; the emptiest of them is what is known of the key, so that another key
//! makes it look busier only by sharing all of its cells. Only cells that say less than that are raised (conservative update): a load and a store for each
//! row, without a locked instruction. Two threads that count the same key at the same moment may count it once, which an atomic maximum would not
//! change: both have begun from the same level.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rows of the table.
const ROWS: usize = 4;
/// How full a bucket may be above its burst, µs: so long after the last excess it is still seen.
const HOT_US: u64 = 2_000_000;
/// Columns at least and at most.
const COLUMNS: (usize, usize) = (64, 1 << 20);

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// One event in so many µs.
    pub interval_us: u64,
    /// Events that may come at once above that.
    pub burst: u64,
}

impl Rate {
    /// `per_second` events a second, in thousandths; at least one in an hour.
    pub fn new(milli_per_second: u64, burst: u64) -> Rate {
        Rate { interval_us: (1_000_000_000 / milli_per_second.max(1)).clamp(1, 3_600_000_000), burst }
    }

    fn burst_us(self) -> u64 {
        self.burst.saturating_mul(self.interval_us)
    }
}

/// What becomes of events above the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// They do not take place: what is left comes to the rate.
    Dropped,
    /// They count, up to some: the excess lasts as long as the events themselves.
    Counted,
}

/// The table.
#[derive(Debug)]
pub struct Rates {
    cells: Box<[AtomicU64]>,
    mask: u64,
}

impl Rates {
    /// A table with this many columns, rounded up to a power of two; 32 bytes each. With `n` busy keys and four times as many columns a key is mistaken for
    /// busy once in some hundred times.
    pub fn new(columns: usize) -> Rates {
        let columns = columns.clamp(COLUMNS.0, COLUMNS.1).next_power_of_two();
        let cells = (0..columns * ROWS).map(|_| AtomicU64::new(0)).collect();
        Rates { cells, mask: columns as u64 - 1 }
    }

    /// Where the key's cells are, row by row.
    #[inline]
    fn cells(&self, key: u64) -> [&AtomicU64; ROWS] {
        let (mut column, step) = (key & 0xffff_ffff, key >> 32 | 1);
        let (mut found, mut row) = ([&self.cells[0]; ROWS], 0);
        for cell in &mut found {
            column = column.wrapping_add(step);
            *cell = &self.cells[row + (column & self.mask) as usize];
            row += self.mask as usize + 1;
        }
        found
    }

    #[inline]
    fn level(cells: [&AtomicU64; ROWS], now_us: u64) -> u64 {
        let mut until = u64::MAX;
        for cell in cells {
            until = until.min(cell.load(Relaxed));
        }
        until.saturating_sub(now_us)
    }

    #[inline]
    fn raise(cells: [&AtomicU64; ROWS], until_us: u64) {
        for cell in cells {
            if cell.load(Relaxed) < until_us {
                cell.store(until_us, Relaxed);
            }
        }
    }

    /// How full a key's bucket is, µs of its rate.
    pub fn level_us(&self, key: u64, now_us: u64) -> u64 {
        Rates::level(self.cells(key), now_us)
    }

    /// Counts an event of a key, a good hash. Gives the events by which it is above the rate; none: it is within.
    pub fn count(&self, key: u64, rate: Rate, above: Above, now_us: u64) -> Option<u64> {
        let cells = self.cells(key);
        let level = Rates::level(cells, now_us);
        let burst = rate.burst_us();
        let exceeds = level > burst;
        if exceeds && above == Above::Dropped {
            return Some((level - burst).div_ceil(rate.interval_us));
        }
        let most = burst.saturating_add(HOT_US.max(rate.interval_us));
        let until = now_us.saturating_add(level.saturating_add(rate.interval_us).min(most.max(level)));
        Rates::raise(cells, until);
        exceeds.then(|| (level - burst).div_ceil(rate.interval_us))
    }

    /// Marks a key until a time, for [`Rates::level_us`].
    pub fn mark(&self, key: u64, until_us: u64) {
        Rates::raise(self.cells(key), until_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> u64 {
        let n = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (n ^ n >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn a_burst_passes_and_what_is_dropped_does_not_count() {
        let (rates, rate) = (Rates::new(64), Rate::new(10_000, 5));
        let count = |now_us| rates.count(key(1), rate, Above::Dropped, now_us);
        assert_eq!((0..6).filter_map(|_| count(1)).count(), 0, "one and a burst of five");
        assert_eq!(count(1), Some(1));
        assert_eq!(count(1), Some(1), "it was not counted");
        assert_eq!(count(100_001), None, "one has leaked");
        assert_eq!(count(100_001), Some(1));
        assert_eq!(rates.count(key(2), rate, Above::Dropped, 1), None, "another key");
    }

    #[test]
    fn what_counts_stays_above_while_it_comes_and_leaves_soon_after() {
        let (rates, rate) = (Rates::new(64), Rate::new(10_000, 5));
        // Twenty a second, for a minute.
        let excess = (0..1200).filter(|n| rates.count(key(1), rate, Above::Counted, n * 50_000).is_some()).count();
        assert!(excess > 1180, "{excess}");
        let end = 1200 * 50_000;
        assert!(rates.level_us(key(1), end) <= HOT_US + 500_000);
        assert_eq!(rates.count(key(1), rate, Above::Counted, end + 3_000_000), None);
    }

    #[test]
    fn busy_keys_do_not_make_others_look_busy() {
        let (rates, rate) = (Rates::new(4096), Rate::new(1_000, 1));
        for round in 0..20 {
            for n in 0..1000 {
                let _ = rates.count(key(n), rate, Above::Counted, round * 1000);
            }
        }
        let wrong = (10_000..20_000).filter(|n| rates.level_us(key(*n), 20_000) > 1_000_000).count();
        assert!(wrong < 100, "{wrong} of 10000");
        assert!((0..1000).all(|n| rates.level_us(key(n), 20_000) > 1_000_000), "it never says less than there was");
    }

    #[test]
    fn slow_rates_have_no_overflow() {
        let rate = Rate::new(0, u64::MAX);
        assert_eq!(Rates::new(1).count(1, rate, Above::Counted, u64::MAX - 5), None);
        assert_eq!(Rate::new(u64::MAX, 1).interval_us, 1);
    }
}
