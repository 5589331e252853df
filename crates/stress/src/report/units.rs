//! Numbers with units, as wrk writes them: a unit is taken a little before it is reached (0.89ms, not 890us).

/// The part of the next unit from which it is used.
const EARLY: f64 = 0.85;

/// Nanoseconds: `635.91us`, `0.89ms`, `30.00s`, `2.00m`.
pub fn time(ns: f64) -> String {
    let us = ns / 1e3;
    if us >= 1e6 * EARLY {
        return walk(us / 1e6, 60.0, &["s", "m", "h"]);
    }
    walk(us, 1e3, &["us", "ms"])
}

/// A plain number: `56.20k`.
pub fn metric(value: f64) -> String {
    walk(value, 1e3, &["", "k", "M", "G", "T"])
}

/// Bytes, without the B: `17.76G`.
pub fn binary(value: f64) -> String {
    walk(value, 1024.0, &["", "K", "M", "G", "T", "P"])
}

fn walk(mut value: f64, step: f64, names: &[&str]) -> String {
    let mut at = 0;
    while at + 1 < names.len() && value >= step * EARLY {
        value /= step;
        at += 1;
    }
    format!("{value:.2}{}", names[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_wrk_writes_them() {
        assert_eq!([time(635_910.0), time(890_000.0), time(12_920_000.0)], ["635.91us", "0.89ms", "12.92ms"]);
        assert_eq!([time(30e9), time(120e9), time(0.0), time(0.9e9)], ["30.00s", "2.00m", "0.00us", "0.90s"]);
        assert_eq!([metric(56_200.0), metric(90.0), metric(900.0)], ["56.20k", "90.00", "0.90k"]);
        assert_eq!(binary(17.76 * 1024.0 * 1024.0 * 1024.0), "17.76G");
    }
}
