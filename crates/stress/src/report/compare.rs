//! `--compare old.json new.json`: what changed, and whether that is more than noise. Pure but for reading the files.

use super::json::{SecondSummary, Summary};
use super::{metric, time};
use std::fmt::Write;
use std::path::Path;

/// Differences of means beyond so many of their standard errors are no chance (two in a hundred thousand are).
const CERTAIN: f64 = 4.0;
/// Smaller changes are not worth a word, however certain.
const LEAST: f64 = 0.02;
/// Fewer seconds say nothing about noise.
const LEAST_SECONDS: usize = 3;

/// Reads both and compares.
///
/// # Errors
/// A sentence for the user.
pub fn files(old: &Path, new: &Path) -> Result<String, String> {
    let read = |path: &Path| -> Result<Summary, String> {
        let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_slice(&text).map_err(|e| format!("{}: not a --json file: {e}", path.display()))
    };
    Ok(compare(&read(old)?, &read(new)?))
}

/// A table.
pub fn compare(old: &Summary, new: &Summary) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{:<16}{:>12}{:>12}{:>10}  ", "", "old", "new", "change");
    let mut row = |name: &str, a: String, b: String, change: f64, word: &str| {
        let _ = writeln!(out, "{name:<16}{a:>12}{b:>12}{change:>+9.1}%  {word}");
    };
    let part = |a: f64, b: f64| if a == 0.0 { 0.0 } else { b / a - 1.0 };
    let word = |pick: fn(&SecondSummary) -> f64, a: f64, b: f64| {
        let noise = certainty(&old.series, &new.series, pick);
        match noise {
            _ if part(a, b).abs() < LEAST => "the same",
            None => "too short to tell",
            Some(n) if n >= CERTAIN => "more than noise",
            Some(_) => "within the noise",
        }
    };
    let (a, b) = (old.rps, new.rps);
    row("requests/s", metric(a), metric(b), part(a, b) * 100.0, word(|s| s.rps, a, b));
    let o = &old.latency_us;
    let n = &new.latency_us;
    let us = |v: f64| time(v * 1e3);
    row("latency p50", us(o.p50), us(n.p50), part(o.p50, n.p50) * 100.0, word(|s| s.p50_us, o.p50, n.p50));
    row("latency p90", us(o.p90), us(n.p90), part(o.p90, n.p90) * 100.0, word(|s| s.p90_us, o.p90, n.p90));
    row("latency p99", us(o.p99), us(n.p99), part(o.p99, n.p99) * 100.0, word(|s| s.p99_us, o.p99, n.p99));
    let errors = |s: &Summary| {
        let total = s.errors.get("total").copied().unwrap_or(0) as f64;
        total / (s.requests as f64 + total).max(1.0)
    };
    let (a, b) = (errors(old), errors(new));
    let _ = writeln!(out, "{:<16}{:>11.3}%{:>11.3}%", "errors", a * 100.0, b * 100.0);
    for (name, s) in [("old", old), ("new", new)] {
        if !s.verdict.valid {
            let _ =
                writeln!(out, "{name}: INVALID, limited by the {}: its rate is a lower bound", s.verdict.limit.name());
        }
    }
    let same = (&old.url, old.threads, old.connections) == (&new.url, new.threads, new.connections);
    if !same || old.wanted_rps.is_some() != new.wanted_rps.is_some() {
        out.push_str("The two runs were not asked for the same: URL, threads, connections or pacing differ.\n");
    }
    out
}

/// By how many standard errors the means of a series differ (Welch); nothing if the series are too short.
fn certainty(old: &[SecondSummary], new: &[SecondSummary], pick: fn(&SecondSummary) -> f64) -> Option<f64> {
    if old.len() < LEAST_SECONDS || new.len() < LEAST_SECONDS {
        return None;
    }
    let stats = |series: &[SecondSummary]| {
        let count = series.len() as f64;
        let mean = series.iter().map(pick).sum::<f64>() / count;
        let variance = series.iter().map(|s| (pick(s) - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    };
    let ((a, va), (b, vb)) = (stats(old), stats(new));
    Some((a - b).abs() / (va + vb).sqrt().max(1e-9))
}
