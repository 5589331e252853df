//! How fast each of many keys comes, in a table of fixed size that all threads share: a count-min sketch whose cells are leaky buckets.
//!
//! A cell is the time at which its bucket will be empty. A key has a cell in each row; the emptiest of them is what is known of the key, so that another key
//! makes it look busier only by sharing all of its cells. Only cells that say less than that are raised (conservative update): a load and a store for each
//! row, without a locked instruction. Two threads that count the same key at the same moment may count it once, which an atomic maximum would not
//! change: both have begun from the same level.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Rows of the table. Each has a column of its own choice for a key, by bits of the hash that no other row looks at.
const ROWS: usize = 3;
/// Columns of the table. A number that the compiler knows, so that it need not compare a column with it.
const COLUMNS: usize = 1 << 13;
/// Between the bits of one row and those of the next.
const APART: usize = 21;
/// How full a bucket may be above its burst, µs: so long after the last excess it is still seen.
const HOT_US: u64 = 2_000_000;

const _: () = assert!(
    (ROWS - 1) * APART + COLUMNS.ilog2() as usize <= 64 && COLUMNS <= 1 << APART,
    "rows have bits of their own"
);

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// One event in so many µs.
    interval_us: u64,
    /// How full a bucket may be, µs.
    burst_us: u64,
}

impl Rate {
    /// `milli_per_second` thousandths of an event a second, at least one event in an hour. `burst` events may come at once above that.
    pub fn new(milli_per_second: u64, burst: u64) -> Rate {
        Rate::every((1_000_000_000 / milli_per_second.max(1)).clamp(1, 3_600_000_000), burst)
    }

    /// One event in so many µs, at least one.
    pub fn every(interval_us: u64, burst: u64) -> Rate {
        let interval_us = interval_us.max(1);
        Rate { interval_us, burst_us: burst.saturating_mul(interval_us) }
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

/// The table: 192 kB. Of a thousand busy keys it makes one in some seven hundred others look busy, of two thousand one in a hundred.
#[derive(Debug)]
pub struct Rates {
    rows: Box<[Row; ROWS]>,
}

type Row = [AtomicU64; COLUMNS];

impl Default for Rates {
    fn default() -> Rates {
        let rows: Vec<Row> = (0..ROWS).map(|_| [const { AtomicU64::new(0) }; COLUMNS]).collect();
        Rates { rows: rows.into_boxed_slice().try_into().expect("there are as many rows as were made") }
    }
}

impl Rates {
    /// Where the key's cells are, row by row. Written out: what is asked for each request is not to depend on what the compiler makes of an array's closures.
    #[inline]
    fn cells(&self, key: u64) -> [&AtomicU64; ROWS] {
        let [first, second, third] = &*self.rows;
        let column = |row: usize| (key >> (row * APART)) as usize % COLUMNS;
        [&first[column(0)], &second[column(1)], &third[column(2)]]
    }

    /// When the emptiest of the cells will be empty.
    #[inline]
    fn until(cells: [&AtomicU64; ROWS]) -> u64 {
        let mut until = u64::MAX;
        for cell in cells {
            until = until.min(cell.load(Relaxed));
        }
        until
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
        Rates::until(self.cells(key)).saturating_sub(now_us)
    }

    /// Counts an event of a key, a good hash. Gives the events by which it is above the rate; none: it is within.
    #[inline]
    pub fn count(&self, key: u64, rate: Rate, above: Above, now_us: u64) -> Option<u64> {
        // Each cell is read once.
        let [first, second, third] = self.cells(key);
        let (a, b, c) = (first.load(Relaxed), second.load(Relaxed), third.load(Relaxed));
        let begin = a.min(b).min(c).max(now_us);
        if begin - now_us > rate.burst_us {
            return Some(self.count_excess(key, rate, above, (begin, now_us)));
        }
        let until = begin.saturating_add(rate.interval_us);
        for (cell, before) in [(first, a), (second, b), (third, c)] {
            if before < until {
                cell.store(until, Relaxed);
            }
        }
        None
    }

    #[cold]
    fn count_excess(&self, key: u64, rate: Rate, above: Above, (begin_us, now_us): (u64, u64)) -> u64 {
        let level = begin_us - now_us;
        if above == Above::Counted {
            let most = rate.burst_us.saturating_add(HOT_US.max(rate.interval_us)).max(level);
            Rates::raise(self.cells(key), now_us.saturating_add(level.saturating_add(rate.interval_us).min(most)));
        }
        (level - rate.burst_us).div_ceil(rate.interval_us)
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
        crate::hash::Keyed::fixed(1).number(n.into())
    }

    #[test]
    fn a_burst_passes_and_what_is_dropped_does_not_count() {
        let (rates, rate) = (Rates::default(), Rate::new(10_000, 5));
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
        let (rates, rate) = (Rates::default(), Rate::new(10_000, 5));
        // Twenty a second, for a minute.
        let excess = (0..1200).filter(|n| rates.count(key(1), rate, Above::Counted, n * 50_000).is_some()).count();
        assert!(excess > 1180, "{excess}");
        let end = 1200 * 50_000;
        assert!(rates.level_us(key(1), end) <= HOT_US + 500_000);
        assert_eq!(rates.count(key(1), rate, Above::Counted, end + 3_000_000), None);
    }

    /// As many of 100,000 others as look busy beside so many that are.
    fn mistaken(busy: u64) -> usize {
        let (rates, rate) = (Rates::default(), Rate::new(1_000, 1));
        for round in 0..20 {
            for n in 0..busy {
                let _ = rates.count(key(n), rate, Above::Counted, round * 1000);
            }
        }
        assert!((0..busy).all(|n| rates.level_us(key(n), 20_000) > 1_000_000), "it never says less than there was");
        (100_000..200_000).filter(|n| rates.level_us(key(*n), 20_000) > 1_000_000).count()
    }

    #[test]
    fn busy_keys_do_not_make_others_look_busy() {
        // By calculation: 0.2, 5, 152, 1,020.
        for (busy, most) in [(100, 3), (300, 20), (1000, 220), (2000, 1200)] {
            let wrong = mistaken(busy);
            assert!(wrong <= most, "{wrong} of 100,000 beside {busy}");
        }
    }

    #[test]
    fn slow_rates_have_no_overflow() {
        let rate = Rate::new(0, u64::MAX);
        assert_eq!(Rates::default().count(1, rate, Above::Counted, u64::MAX - 5), None);
        assert_eq!(Rate::new(u64::MAX, 1).interval_us, 1);
    }
}
