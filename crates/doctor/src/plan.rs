//! `ironweir doctor plan`: what a cluster carries, from what one node of each tier carries. Pure.

use crate::command;
use crate::options::Options;
use crate::text::number;
use serde::Serialize;
use std::fmt::Write;

/// What one node carries where nothing is said, requests a second: figures of the field for a balancer that makes a connection for each request,
/// an application, and a database.
const USUAL: &[(&str, f64)] = &[("balancer", 10_000.0), ("application", 2_500.0), ("database", 140.0)];
/// Tiers of one cluster.
const MOST_TIERS: usize = 64;

/// One tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Nodes.
    pub nodes: f64,
    /// Requests a second that one carries.
    pub each: f64,
    /// How many of its own requests one of the cluster's costs: 0.5 if every other one comes this far, 3 if each asks three times.
    pub share: f64,
}

impl Tier {
    /// The cluster's requests that it carries.
    pub fn carries(&self) -> f64 {
        self.nodes * self.each / self.share
    }

    /// `NAME=NODES[xRATE][/SHARE]`
    fn read(text: &str) -> Result<Tier, String> {
        let wrong = |what: &str| format!("{text}: {what} (NAME=NODES[xRATE][/SHARE], as in database=20x140/0.5)");
        let (name, rest) = text.split_once('=').ok_or_else(|| wrong("no ="))?;
        let (rest, share) = rest.split_once('/').map_or((rest, None), |(r, s)| (r, Some(s)));
        let (nodes, each) = rest.split_once('x').map_or((rest, None), |(n, e)| (n, Some(e)));
        let positive = |text: &str, what: &str| {
            let number = text.replace(',', "").parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
            number.ok_or_else(|| wrong(&format!("{what} is no number above nothing")))
        };
        let usual = USUAL.iter().find(|(n, _)| *n == name).map(|(_, rate)| *rate);
        let each = match each {
            Some(each) => positive(each, "the rate")?,
            None => usual.ok_or_else(|| wrong("the rate of one node is not known"))?,
        };
        let share = share.map_or(Ok(1.0), |s| positive(s, "the share"))?;
        Ok(Tier { name: name.to_owned(), nodes: positive(nodes, "the number of nodes")?, each, share })
    }
}

/// Runs it.
pub(crate) fn run(o: &Options, tiers: &[&str]) -> Result<u8, String> {
    if tiers.is_empty() || tiers.len() > MOST_TIERS {
        return Err("plan TIER=NODES[xRATE][/SHARE]..., as in balancer=1 application=4 database=20".to_owned());
    }
    let tiers = tiers.iter().map(|t| Tier::read(t)).collect::<Result<Vec<_>, _>>()?;
    let rate = if o.has("rate") { Some(o.number("rate", 0.0)?) } else { None };
    let binds = binding(&tiers);
    if o.has("json") {
        let carries: Vec<f64> = tiers.iter().map(Tier::carries).collect();
        let all = serde_json::json!({ "ceiling": tiers[binds].carries(), "binds": tiers[binds].name, "tiers": tiers, "carries": carries, "rate": rate });
        command::print(&(serde_json::to_string_pretty(&all).map_err(|e| e.to_string())? + "\n"));
    } else {
        command::print(&report(&tiers, rate));
    }
    let is_enough = rate.is_none_or(|r| tiers[binds].carries() >= r);
    Ok(if is_enough { 0 } else { command::WARNING })
}

/// The tier that binds: the first of those that carry the least.
fn binding(tiers: &[Tier]) -> usize {
    let least = tiers.iter().map(Tier::carries).fold(f64::INFINITY, f64::min);
    tiers.iter().position(|t| t.carries() <= least).unwrap_or(0)
}

fn report(tiers: &[Tier], rate: Option<f64>) -> String {
    let binds = binding(tiers);
    let ceiling = tiers[binds].carries();
    let mut out = String::new();
    for (at, t) in tiers.iter().enumerate() {
        let mark = if at == binds { "binds" } else { "" };
        let used = ceiling / t.carries() * 100.0;
        let _ = writeln!(
            out,
            "{:<14} {:>6} nodes x {:>9}/s {:>10} = {:>12}/s  {used:>4.0} % used at the ceiling  {mark}",
            t.name,
            t.nodes,
            number(t.each as u64),
            if t.share == 1.0 { String::new() } else { format!("/ {}", t.share) },
            number(t.carries() as u64)
        );
    }
    let _ = writeln!(out, "The cluster carries {}/s; {} binds.", number(ceiling as u64), tiers[binds].name);
    let Some(rate) = rate else {
        // The next tier that would bind says how far more nodes of this one help.
        if let Some(next) = tiers
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != binds)
            .map(|(_, t)| t)
            .min_by(|a, b| a.carries().total_cmp(&b.carries()))
        {
            let t = &tiers[binds];
            let needed = (next.carries() * t.share / t.each).ceil();
            let _ = writeln!(
                out,
                "With {needed} nodes of {} it would carry {}/s; then {} binds.",
                t.name,
                number((needed * t.each / t.share).min(next.carries()) as u64),
                next.name
            );
        }
        return out;
    };
    for t in tiers {
        let needed = (rate * t.share / t.each).ceil();
        let more = needed - t.nodes;
        let says = if more > 0.0 { format!("{more} more") } else { "enough".to_owned() };
        let _ = writeln!(out, "For {}/s: {needed} nodes of {} ({says}).", number(rate as u64), t.name);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_cluster() {
        let tiers: Vec<Tier> =
            ["balancer=1", "application=4", "database=20"].iter().map(|t| Tier::read(t).unwrap()).collect();
        let carries: Vec<f64> = tiers.iter().map(Tier::carries).collect();
        assert_eq!((carries, binding(&tiers)), (vec![10_000.0, 10_000.0, 2_800.0], 2));
        let text = report(&tiers, None);
        assert!(
            text.contains(
                "The cluster carries 2,800/s; database binds.\nWith 72 nodes of database it would carry 10,000/s"
            ),
            "{text}"
        );
        let text = report(&tiers, Some(25_000.0));
        assert!(
            text.contains("3 nodes of balancer (2 more)") && text.contains("10 nodes of application (6 more)"),
            "{text}"
        );
        assert!(text.contains("179 nodes of database (159 more)"), "{text}");
        assert_eq!(Tier::read("cache=3x20,000/0.1").unwrap().carries(), 600_000.0);
        assert!(
            ["x", "x=1", "database=0", "database=1x-3", "database=1/0", "database=infx1"]
                .iter()
                .all(|t| Tier::read(t).is_err())
        );
    }
}
