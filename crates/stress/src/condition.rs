//! Conditions on what was measured: `--slo` and `--fail-if`, as in `p99<50ms,errors<0.1%`. Pure.

use crate::options::value::duration;
use crate::run::Record;

/// Something a run measured.
#[derive(Clone, Debug, PartialEq)]
enum Metric {
    /// A part (0 to 1) of all latencies does not exceed it.
    Quantile(f64),
    Mean,
    Max,
    /// Part of all requests.
    Errors,
    /// Answers a second.
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// One condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// As it was written.
    pub text: String,
    metric: Metric,
    relation: Relation,
    /// Nanoseconds, a part, or a rate.
    bound: f64,
}

/// Reads a list with commas.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<Vec<Condition>, String> {
    text.split(',').map(|c| one(c.trim())).collect()
}

fn one(text: &str) -> Result<Condition, String> {
    let at = text.find(['<', '>']).ok_or_else(|| format!("\"{text}\" is not METRIC<VALUE, such as p99<50ms"))?;
    let (name, rest) = text.split_at(at);
    let (relation, value) = match rest.split_at(1) {
        ("<", rest) => rest.strip_prefix('=').map_or((Relation::Less, rest), |v| (Relation::LessOrEqual, v)),
        (_, rest) => rest.strip_prefix('=').map_or((Relation::Greater, rest), |v| (Relation::GreaterOrEqual, v)),
    };
    let metric = metric(name.trim())?;
    let value = value.trim();
    let bound = match metric {
        Metric::Errors => percentage(value),
        Metric::Rate => crate::options::value::rate(value).ok(),
        _ => duration(value).ok().map(|d| d.as_nanos() as f64),
    };
    let bound = bound.ok_or_else(|| format!("\"{value}\" is no value for {name}, in \"{text}\""))?;
    Ok(Condition { text: text.to_owned(), metric, relation, bound })
}

fn metric(name: &str) -> Result<Metric, String> {
    let unknown = || format!("\"{name}\" is not measured: p50 to p99.99, mean, max, errors, rps");
    Ok(match name {
        "mean" | "avg" => Metric::Mean,
        "max" => Metric::Max,
        "errors" => Metric::Errors,
        "rps" | "rate" => Metric::Rate,
        _ => {
            let digits = name.strip_prefix('p').ok_or_else(unknown)?.replace('_', ".");
            let percent: f64 = digits.parse().map_err(|_| unknown())?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(unknown());
            }
            Metric::Quantile(percent / 100.0)
        }
    })
}

/// `0.1%`, or a part such as `0.001`.
fn percentage(text: &str) -> Option<f64> {
    let (digits, factor) = text.strip_suffix('%').map_or((text, 1.0), |d| (d.trim(), 0.01));
    digits.parse::<f64>().ok().map(|v| v * factor).filter(|v| (0.0..=1.0).contains(v))
}

impl Condition {
    /// What the run has for it: nanoseconds, a part, or a rate.
    pub fn measured(&self, record: &Record) -> f64 {
        let s = &record.sample;
        match self.metric {
            Metric::Quantile(part) => s.latency.quantile(part) as f64,
            Metric::Mean => s.latency.mean(),
            Metric::Max => s.latency.max() as f64,
            Metric::Errors => s.error_part(),
            Metric::Rate => record.rate(),
        }
    }

    /// Whether it holds.
    pub fn holds(&self, record: &Record) -> bool {
        let value = self.measured(record);
        match self.relation {
            Relation::Less => value < self.bound,
            Relation::LessOrEqual => value <= self.bound,
            Relation::Greater => value > self.bound,
            Relation::GreaterOrEqual => value >= self.bound,
        }
    }

    /// `p99<50ms (it is 12.00ms)`
    pub fn explain(&self, record: &Record) -> String {
        let value = self.measured(record);
        let value = match self.metric {
            Metric::Errors => format!("{:.3}%", value * 100.0),
            Metric::Rate => format!("{value:.0}/s"),
            _ => crate::report::time(value),
        };
        format!("{} (it is {value})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions() {
        let list = parse("p99<50ms, errors<=0.1%,rps>=10k,p99_9>1s").unwrap();
        assert_eq!((list[0].metric.clone(), list[0].bound), (Metric::Quantile(0.99), 5e7));
        assert_eq!((list[1].relation, (list[1].bound - 0.001).abs() < 1e-12), (Relation::LessOrEqual, true));
        assert_eq!((list[2].metric.clone(), list[2].bound), (Metric::Rate, 10_000.0));
        assert!(matches!(list[3].metric, Metric::Quantile(q) if (q - 0.999).abs() < 1e-9));
        assert!(["", "p99", "p99<", "p99<x", "q<1s", "errors<200%", "p101<1s"].iter().all(|c| parse(c).is_err()));
    }
}
