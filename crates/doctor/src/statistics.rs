//! Whether a difference between two samples is more than chance: three tests, each one-sided ("is the first one worse?"), each giving the
//! probability of seeing so much or more if there were no difference. And a line through pairs of numbers. Pure functions; used by `trial`
//! (canaries), `tune` and `headroom`.

use serde::{Deserialize, Serialize};

/// Terms of a sum that are smaller than this part of it add nothing.
const NEGLIGIBLE: f64 = 1e-15;
/// So many pairs are compared by trying all signs (2^16 sums); of more, the first ones count.
pub const MOST_PAIRS: usize = 16;

/// Fisher's exact test: are `bad_a` of `all_a` more than one would expect beside `bad_b` of `all_b`?
pub fn fisher(bad_a: u64, all_a: u64, bad_b: u64, all_b: u64) -> f64 {
    let (bad, all) = (bad_a + bad_b, all_a + all_b);
    if all_a == 0 || all_b == 0 || bad == 0 {
        return 1.0;
    }
    let choose = |n: u64, k: u64| ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k);
    let whole = choose(all, all_a);
    let mut sum = 0.0;
    for hits in bad_a..=bad.min(all_a) {
        if all_a - hits > all - bad {
            continue;
        }
        let term = (choose(bad, hits) + choose(all - bad, all_a - hits) - whole).exp();
        sum += term;
        // Beyond the middle terms only fall.
        if term < sum * NEGLIGIBLE && hits as f64 > bad as f64 * all_a as f64 / all as f64 {
            break;
        }
    }
    sum.min(1.0)
}

/// The Mann-Whitney U test, by its normal approximation with a correction for ties: are the values of `a` larger than those of `b`? Both
/// are histograms: a value and how many there are of it, values rising.
pub fn mann_whitney(a: &[(u64, u64)], b: &[(u64, u64)]) -> f64 {
    let count = |side: &[(u64, u64)]| side.iter().map(|(_, n)| *n).sum::<u64>() as f64;
    let (n_a, n_b) = (count(a), count(b));
    if n_a == 0.0 || n_b == 0.0 {
        return 1.0;
    }
    let all = n_a + n_b;
    let (mut below, mut ranks, mut ties) = (0.0, 0.0, 0.0);
    let mut values: Vec<u64> = a.iter().chain(b).map(|(value, _)| *value).collect();
    values.sort_unstable();
    values.dedup();
    for value in values {
        let of = |side: &[(u64, u64)]| side.iter().filter(|(v, _)| *v == value).map(|(_, n)| *n).sum::<u64>() as f64;
        let (from_a, tied) = (of(a), of(a) + of(b));
        ranks += from_a * (below + (tied + 1.0) / 2.0);
        ties += tied * tied * tied - tied;
        below += tied;
    }
    let u = ranks - n_a * (n_a + 1.0) / 2.0;
    let variance = n_a * n_b / 12.0 * ((all + 1.0) - ties / (all * (all - 1.0)).max(1.0));
    if variance <= 0.0 {
        return 1.0;
    }
    upper_tail((u - n_a * n_b / 2.0 - 0.5) / variance.sqrt())
}

/// The exact paired permutation test: are `better` larger than `worse`, pair by pair? Under chance each difference could as well have the
/// other sign; of all signs, the part that gives a sum as large is the probability. Fewer than seven pairs can never go below 0.01.
pub fn paired(better: &[f64], worse: &[f64]) -> f64 {
    let pairs = better.iter().zip(worse).take(MOST_PAIRS);
    let differences: Vec<f64> = pairs.map(|(b, w)| b - w).collect();
    if differences.is_empty() {
        return 1.0;
    }
    let seen: f64 = differences.iter().sum();
    // What is equal but for rounding is as large.
    let slack = differences.iter().map(|d| d.abs()).sum::<f64>() * 1e-12;
    let all = 1_u32 << differences.len();
    let sum_of = |signs: u32| -> f64 {
        differences.iter().enumerate().map(|(i, d)| if signs >> i & 1 == 1 { -d.abs() } else { d.abs() }).sum()
    };
    let as_large = (0..all).filter(|signs| sum_of(*signs) >= seen - slack).count();
    as_large as f64 / f64::from(all)
}

/// The middle of some values; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Pairs of numbers, as sums over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// How many pairs.
    pub count: f64,
    /// The first numbers, their squares.
    pub x: f64,
    /// See `x`.
    pub xx: f64,
    /// The second numbers, their squares.
    pub y: f64,
    /// See `y`.
    pub yy: f64,
    /// The products of both.
    pub xy: f64,
}

/// A line: how much y grows with x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// For each 1 of x.
    pub slope: f64,
    /// The slope's standard error.
    pub error: f64,
}

impl Sums {
    /// The line whose squared distances from the pairs are least in sum; none where there are too few pairs, or only one x.
    pub fn line(&self) -> Option<Line> {
        let spread = self.count * self.xx - self.x * self.x;
        if self.count < 3.0 || spread <= 0.0 {
            return None;
        }
        let slope = (self.count * self.xy - self.x * self.y) / spread;
        let of_y = self.count * self.yy - self.y * self.y;
        // What the line leaves of the spread of y; rounding may make it less than nothing.
        let left = (of_y - slope * slope * spread).max(0.0);
        Some(Line { slope, error: (left / spread / (self.count - 2.0)).sqrt() })
    }
}

/// The logarithm of n!: summed for small n, by Stirling's series beyond (its error is below 1e-12 there).
fn ln_factorial(n: u64) -> f64 {
    /// Up to here terms are added up.
    const SMALL: u64 = 32;
    if n <= SMALL {
        return (2..=n).map(|i| (i as f64).ln()).sum();
    }
    let x = n as f64;
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    x * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI * x).ln() + series
}

/// The part of a standard normal distribution above `z`.
fn upper_tail(z: f64) -> f64 {
    if z < 0.0 {
        return 1.0 - upper_tail(-z);
    }
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if z > 3.0 {
        // Laplace's continued fraction converges fast out here.
        let fraction = (1..=40).rev().fold(z, |below, k| z + f64::from(k) / below);
        return density / fraction;
    }
    // The power series of the distribution's middle part.
    let (mut term, mut sum) = (z, z);
    for k in 1..120 {
        term *= z * z / f64::from(2 * k + 1);
        sum += term;
    }
    0.5 - density * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= b.abs() * 1e-3 + 1e-12
    }

    #[test]
    fn tails_are_those_of_the_tables() {
        for (z, p) in
            [(0.0, 0.5), (1.0, 0.158_655), (1.96, 0.024_998), (3.0, 0.001_349_9), (4.0, 3.167e-5), (6.0, 9.866e-10)]
        {
            assert!(near(upper_tail(z), p), "{z}: {}", upper_tail(z));
        }
        assert!(near(upper_tail(-1.0), 0.841_345));
    }

    #[test]
    fn fisher_is_exact() {
        // The lady who tastes tea: 3 of 4 right, and 4 of 4.
        assert!(near(fisher(3, 4, 1, 4), 17.0 / 70.0));
        assert!(near(fisher(4, 4, 0, 4), 1.0 / 70.0));
        assert_eq!(fisher(0, 10, 0, 10), 1.0);
        assert!(fisher(20, 20, 0, 380) < 1e-20);
        assert!(fisher(50, 1_000, 1_000, 20_000) > 0.4);
        assert!(fisher(500, 100_000, 4_000, 1_900_000) < 1e-9);
    }

    #[test]
    fn larger_values_are_told_from_equal_ones() {
        let fast = [(1, 50), (2, 40), (3, 10)];
        let slow = [(11, 50), (12, 40), (13, 10)];
        assert!(mann_whitney(&slow, &fast) < 1e-6);
        assert!(mann_whitney(&fast, &slow) > 0.999);
        assert!((mann_whitney(&fast, &fast) - 0.5).abs() < 0.01);
        assert_eq!(mann_whitney(&[(0, 9)], &[(0, 9)]), 1.0, "all the same");
        assert_eq!(mann_whitney(&[], &fast), 1.0);
    }

    #[test]
    fn pairs_are_compared_exactly() {
        let worse = [10.0; 8];
        let better = [11.0, 11.5, 12.0, 10.5, 11.0, 12.5, 11.0, 10.2];
        assert!(near(paired(&better, &worse), 1.0 / 256.0));
        assert!(paired(&worse, &better) > 0.99);
        assert_eq!(paired(&worse, &worse), 1.0);
        let mixed = [9.0, 11.0, 10.5, 9.5, 10.2, 9.8, 10.1, 9.9];
        assert!(paired(&mixed, &worse) > 0.3);
        assert_eq!(paired(&[], &[]), 1.0);
    }

    #[test]
    fn a_line_has_the_slope_of_its_pairs_and_an_error() {
        let sums = |pairs: &[(f64, f64)]| {
            pairs.iter().fold(Sums::default(), |s, &(x, y)| Sums {
                count: s.count + 1.0,
                x: s.x + x,
                xx: s.xx + x * x,
                y: s.y + y,
                yy: s.yy + y * y,
                xy: s.xy + x * y,
            })
        };
        let exact = sums(&[(1.0, 12.0), (2.0, 14.0), (5.0, 20.0)]).line().unwrap();
        assert!(near(exact.slope, 2.0) && exact.error < 1e-6, "{exact:?}");
        // By hand: slope 3/2, residuals 1/6, -1/3, 1/6.
        let rough = sums(&[(1.0, 1.0), (2.0, 2.0), (3.0, 4.0)]).line().unwrap();
        assert!(near(rough.slope, 1.5) && near(rough.error, (1.0_f64 / 12.0).sqrt()), "{rough:?}");
        assert_eq!(sums(&[(1.0, 1.0), (1.0, 2.0), (1.0, 4.0)]).line(), None, "one x is no line");
        assert_eq!(sums(&[(1.0, 1.0), (2.0, 2.0)]).line(), None, "two pairs have no error");
    }

    #[test]
    fn medians() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0]), median(&[])), (2.0, 2.5, 0.0));
    }
}
