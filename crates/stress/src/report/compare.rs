//! `--compare old.json new.json`: what changed, and whether that is more than noise. Pure but for reading the files.

use super::json::{SecondSummary, Summary};
use super::{metric, time};
use std::fmt::Write;
use std::path::Path;

/// How far the ranks of two series lie apart, in standard errors of their sum (Mann-Whitney), before it is no chance: seconds of one
/// run are alike, so this asks for more than the usual two.
const CERTAIN: f64 = 2.5;
/// Smaller changes are not worth a word, however certain.
const LEAST: f64 = 0.02;
/// Fewer seconds say nothing about noise: with these, all of one run below all of the other is just certain.
const LEAST_SECONDS: usize = 5;
/// Runs whose wanted rates differ by more than this part were not asked for the same.
const SAME_RATE: f64 = 0.01;
/// More of all requests that fail than before: worse, whatever the rest says.
const MORE_ERRORS: f64 = 0.01;

/// What came of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is worse.
    Good,
    /// Something is worse, beyond the runs' own spread.
    Worse,
    /// The runs do not say.
    Unknown,
}

/// What is said of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Same,
    Better,
    Worse,
    Unknown,
}

impl Word {
    fn text(self) -> &'static str {
        match self {
            Word::Same => "the same",
            Word::Better => "better",
            Word::Worse => "worse",
            Word::Unknown => "cannot tell",
        }
    }
}

/// Reads both and compares: the table, and what came of it.
///
/// # Errors
/// A sentence for the user.
pub fn files(old: &Path, new: &Path) -> Result<(String, Outcome), String> {
    let read = |path: &Path| -> Result<Summary, String> {
        let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_slice(&text).map_err(|e| format!("{}: not a --json file: {e}", path.display()))
    };
    Ok(compare(&read(old)?, &read(new)?))
}

/// A table, and what came of it.
pub fn compare(old: &Summary, new: &Summary) -> (String, Outcome) {
    let mut out = String::new();
    let _ = writeln!(out, "{:<16}{:>12}{:>12}{:>10}  ", "", "old", "new", "change");
    let differ = differences(old, new);
    let is_valid = old.verdict.valid && new.verdict.valid;
    let mut words = Vec::new();
    let mut row =
        |name: &str, show: &dyn Fn(f64) -> String, [a, b]: [f64; 2], pick: fn(&SecondSummary) -> f64, more: Word| {
            let change = if a == 0.0 { 0.0 } else { b / a - 1.0 };
            let word = match judge(&old.series, &new.series, pick) {
                // Runs of different kinds, or of the generator, are shown and not judged.
                _ if !differ.is_empty() || !is_valid => Word::Unknown,
                _ if change.abs() < LEAST => Word::Same,
                Some(side) if (side > 0.0) == (change > 0.0) => {
                    if (change > 0.0) == (more == Word::Better) {
                        Word::Better
                    } else {
                        Word::Worse
                    }
                }
                _ => Word::Unknown,
            };
            words.push(word);
            let (a, b, percent, word) = (show(a), show(b), change * 100.0, word.text());
            let _ = writeln!(out, "{name:<16}{a:>12}{b:>12}{percent:>+9.1}%  {word}");
        };
    let us = |v: f64| time(v * 1e3);
    let (o, n) = (&old.latency_us, &new.latency_us);
    row("requests/s", &metric, [old.rps, new.rps], |s| s.rps, Word::Better);
    row("latency p50", &us, [o.p50, n.p50], |s| s.p50_us, Word::Worse);
    row("latency p90", &us, [o.p90, n.p90], |s| s.p90_us, Word::Worse);
    row("latency p99", &us, [o.p99, n.p99], |s| s.p99_us, Word::Worse);
    let errors = |s: &Summary| {
        let total = s.errors.get("total").copied().unwrap_or(0) as f64;
        total / (s.requests as f64 + total).max(1.0)
    };
    let (a, b) = (errors(old), errors(new));
    let fails_more = b > a + MORE_ERRORS && differ.is_empty();
    let word = if fails_more { "  worse" } else { "" };
    let _ = writeln!(out, "{:<16}{:>11.3}%{:>11.3}%{word:>19}", "errors", a * 100.0, b * 100.0);
    for (name, s) in [("old", old), ("new", new)] {
        if !s.verdict.valid {
            let _ =
                writeln!(out, "{name}: INVALID, limited by the {}: its rate is a lower bound", s.verdict.limit.name());
        }
    }
    differ.iter().for_each(|what| out.push_str(&format!("The two runs were not asked for the same: {what}.\n")));
    let outcome = match () {
        () if fails_more || words.contains(&Word::Worse) => Outcome::Worse,
        () if words.iter().all(|w| *w == Word::Unknown) => Outcome::Unknown,
        () => Outcome::Good,
    };
    (out, outcome)
}

/// In what the runs differ before anything was measured.
fn differences(old: &Summary, new: &Summary) -> Vec<String> {
    let mut found = Vec::new();
    if old.url != new.url {
        found.push(format!("{} and {}", old.url, new.url));
    }
    if (old.threads, old.connections) != (new.threads, new.connections) {
        let of = |s: &Summary| format!("{} threads with {} connections", s.threads, s.connections);
        found.push(format!("{} and {}", of(old), of(new)));
    }
    match (old.wanted_rps, new.wanted_rps) {
        (Some(a), Some(b)) if (a - b).abs() <= a.max(b) * SAME_RATE => {}
        (None, None) => {}
        (a, b) => {
            let of = |rate: Option<f64>| rate.map_or("as fast as it goes".to_owned(), |r| format!("{}/s", metric(r)));
            found.push(format!("{} and {}", of(a), of(b)));
        }
    }
    found
}

/// Whether a series lies above (positive) or below (negative) another, second by second; nothing if that may be chance. By ranks:
/// a run whose seconds spread over decades, as those of an overload do, is judged like any other.
fn judge(old: &[SecondSummary], new: &[SecondSummary], pick: fn(&SecondSummary) -> f64) -> Option<f64> {
    let (m, n) = (old.len() as f64, new.len() as f64);
    if old.len() < LEAST_SECONDS || new.len() < LEAST_SECONDS {
        return None;
    }
    let above = |a: f64, b: f64| {
        if b > a {
            1.0
        } else if b < a {
            0.0
        } else {
            0.5
        }
    };
    let pairs = old.iter().flat_map(|a| new.iter().map(move |b| above(pick(a), pick(b))));
    let score = (pairs.sum::<f64>() - m * n / 2.0) / (m * n * (m + n + 1.0) / 12.0).sqrt();
    (score.abs() >= CERTAIN).then_some(score)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Vec<SecondSummary> {
        let second = |v: &f64| {
            let json = format!(
                r#"{{"second":0,"rps":{v},"errors":0,"bytes":1,"connections":1,"cpu":0.1,"p50_us":{v},"p90_us":{v},"p99_us":{v},"max_us":{v}}}"#
            );
            serde_json::from_str(&json).expect("it is a second")
        };
        values.iter().map(second).collect()
    }

    #[test]
    fn spread_is_judged_by_ranks() {
        let p50 = |s: &SecondSummary| s.p50_us;
        let calm = series(&[61.0, 60.0, 62.0, 61.0, 63.0]);
        let flooded = series(&[4e5, 9e5, 1.4e6, 1.9e6, 2.4e6]);
        assert!(judge(&calm, &flooded, p50).is_some_and(|side| side > 0.0));
        assert!(judge(&flooded, &calm, p50).is_some_and(|side| side < 0.0));
        assert_eq!(judge(&calm, &series(&[60.0, 64.0, 61.0, 59.0, 62.0]), p50), None);
        assert_eq!(judge(&calm[..3], &flooded, p50), None, "too short");
    }
}
