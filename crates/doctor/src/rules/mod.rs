//! Facts to findings. A rule is a pure function: it reads no file, no clock, and knows nothing that is not in the facts.

mod conf;
mod error_log;
pub(crate) mod journal;
mod kernel_log;
mod limits;
mod network;
pub(crate) mod ports;
mod queues;
mod serving;

use crate::facts::Facts;
use crate::finding::{Finding, sort};

/// All rules, one after the other; the order in which they are asked does not show.
const RULES: &[fn(&Facts) -> Vec<Finding>] = &[
    queues::accept_queues,
    queues::unix_queues,
    queues::syn_queue,
    queues::stopped,
    ports::local_ports,
    ports::time_waits,
    ports::thieves,
    ports::unreserved,
    network::tcp_memory,
    network::orphans,
    network::loss,
    network::timestamps,
    network::softnet,
    network::links,
    network::cards,
    network::tracking,
    network::idle_resets,
    limits::descriptors,
    limits::files_of_the_machine,
    limits::control_groups,
    limits::pressure,
    limits::memory,
    kernel_log::lines,
    journal::units,
    error_log::lines,
    conf::rules,
    serving::rules,
];

/// Asks all of them.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    sort(RULES.iter().flat_map(|rule| rule(facts)).collect())
}

/// A part of a whole; 0 where there is no whole.
fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

#[cfg(test)]
mod tests;
