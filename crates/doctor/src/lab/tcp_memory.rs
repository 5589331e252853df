//! `net.ipv4.tcp_mem` too small against too many orphans: two faults, two messages of the kernel's, and the second may come from the first. The
//! setting belongs to the whole machine, in no namespace: a lab must not touch it, so that facts stand in, which were put together by hand.

use super::{Bench, Outcome, Stop};
use crate::facts::Facts;
use crate::rules;

/// Facts of a machine with 16 MB for all of TCP, under 12,000 connections.
const MEMORY: &str = include_str!("tcp_memory.json");
/// The same with memory enough, and as many orphans as there may be: 4,096.
const ORPHANS: &str = include_str!("orphans.json");

pub(super) fn run(bench: &mut Bench) -> Outcome {
    let why = match machine::facts::setting("net.ipv4.tcp_mem") {
        None => "net.ipv4.tcp_mem is not in this namespace: it belongs to the whole machine",
        Some(_) => "net.ipv4.tcp_mem belongs to the whole machine, and is not touched",
    };
    bench.say(&format!("  {why}. Facts that were put together by hand stand in; no connection is made here"));
    let cases: [(&str, &[&str], &[&str]); 2] = [
        (MEMORY, &["tcp-memory", "kernel-tcp-memory", "kernel-orphans"], &["orphans"]),
        (ORPHANS, &["orphans", "kernel-orphans"], &["tcp-memory", "kernel-tcp-memory"]),
    ];
    for (text, expected, others) in cases {
        let facts: Facts = serde_json::from_str(text).map_err(|e| Stop::Failed(format!("the facts: {e}")))?;
        let found = rules::judge(&facts);
        for id in expected {
            let finding = found.iter().find(|f| f.id == *id);
            let finding = finding.ok_or_else(|| Stop::Failed(format!("{id} is not found in the facts")))?;
            bench.say(&format!("  doctor: {}: {}: {}", id, finding.weight.name(), finding.what));
            finding.evidence.iter().for_each(|e| bench.say(&format!("    seen: {} ({})", e.what, e.from)));
            finding.cure.iter().for_each(|c| bench.say(&format!("    cure: {c}")));
        }
        if let Some(wrong) = found.iter().find(|f| others.contains(&f.id)) {
            return Err(Stop::Failed(format!("{} is the other fault", wrong.id)));
        }
        let left = cured(facts);
        if let Some(still) = left.iter().find(|id| expected.contains(id) && !id.starts_with("kernel-")) {
            return Err(Stop::Failed(format!("{still} is still found with the settings that cure it")));
        }
        bench.say("  with the settings of the cure: gone");
    }
    Ok(())
}

/// What is found with four times as much of both.
fn cured(mut facts: Facts) -> Vec<&'static str> {
    for name in ["net.ipv4.tcp_mem", "net.ipv4.tcp_max_orphans"] {
        let more: Vec<String> = facts.machine.numbers(name).iter().map(|n| (n * 4).to_string()).collect();
        facts.machine.settings.insert(name.to_owned(), more.join(" "));
    }
    // Connections are no longer ended for want of memory.
    facts.machine.now.counters = facts.machine.before.counters.clone();
    rules::judge(&facts).iter().map(|f| f.id).collect()
}
