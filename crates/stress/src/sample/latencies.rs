//! Times, counted in an HDR histogram. All have one layout, so merging loses nothing.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The smallest time told apart, nanoseconds: far below what a socket can do.
const LOWEST_NS: u64 = 64;
/// The largest: an hour. Longer ones count as this.
const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Decimal digits that are exact.
const DIGITS: u8 = 3;

/// Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Latencies(Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS).expect("the bounds are valid"))
    }
}

impl Latencies {
    /// Counts one time.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("one layout");
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time, nanoseconds, that a part (0 to 1) of all does not exceed; 0 if there are none.
    pub fn quantile(&self, part: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(part).min(self.0.max()) }
    }

    /// The largest, nanoseconds; 0 if there are none.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// The smallest, nanoseconds; 0 if there are none.
    pub fn min(&self) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.min() }
    }

    /// The mean, nanoseconds.
    pub fn mean(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.mean() }
    }

    /// The standard deviation, nanoseconds.
    pub fn stdev(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.stdev() }
    }

    /// The part (0 to 1) that lies within `n` standard deviations of the mean.
    pub fn within_stdev(&self, n: f64) -> f64 {
        let (mean, reach) = (self.mean(), self.stdev() * n);
        let near = |v: u64| (v as f64 - mean).abs() <= reach;
        let inside: u64 = self.pairs().filter(|&(v, _)| near(v)).map(|(_, c)| c).sum();
        if self.0.is_empty() { 0.0 } else { inside as f64 / self.count() as f64 }
    }

    /// Each time that occurred, nanoseconds (as exact as the histogram is), with how often.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value()))
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.max(), self.pairs().collect::<Vec<_>>()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (_, pairs) = <(u64, Vec<(u64, u64)>)>::deserialize(deserializer)?;
        let mut all = Latencies::default();
        for (value, count) in pairs {
            let _ = all.0.record_n(value.min(HIGHEST_NS), count);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_and_sending_lose_nothing() {
        let (mut a, mut b, mut both) = (Latencies::default(), Latencies::default(), Latencies::default());
        for i in 1..20_000_u64 {
            let ns = i * i * 37;
            if i % 3 == 0 {
                a.record(ns)
            } else {
                b.record(ns)
            }
            both.record(ns);
        }
        a.merge(&b);
        let sent: Latencies = serde_json::from_str(&serde_json::to_string(&a).unwrap()).unwrap();
        for q in [0.0, 0.5, 0.9, 0.999, 1.0] {
            assert_eq!((a.quantile(q), sent.quantile(q)), (both.quantile(q), both.quantile(q)), "{q}");
        }
        assert_eq!((a.count(), sent.count()), (19_999, 19_999));
    }

    #[test]
    fn three_digits() {
        let mut l = Latencies::default();
        assert_eq!((l.quantile(0.5), l.max(), l.min(), l.mean()), (0, 0, 0, 0.0));
        l.record(1_234_567);
        assert!(l.quantile(0.5).abs_diff(1_234_567) < 1_300);
        l.record(u64::MAX);
        assert!(l.quantile(1.0) >= HIGHEST_NS / 1000 * 999);
    }
}
