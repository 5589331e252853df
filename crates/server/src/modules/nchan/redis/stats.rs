//! What commands to a Redis took, node by node (`nchan_redis_upstream_stats`). From: `link`. To: `groups`. Knows nothing of connections.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A cluster has so many nodes at most; what is beyond is not counted.
const MAX_NODES: usize = 1024;

/// What is asked of a Redis. Names are nchan's where it asks the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Connect,
    Subscribe,
    Unsubscribe,
    Delete,
    Find,
    Get,
    Publish,
    /// What a channel, or a group, retains (MQTT); and the same said.
    GetRetained,
    Retain,
    Other,
}

impl Command {
    const ALL: [(Command, &'static str); 10] = [
        (Command::Connect, "connect"),
        (Command::Subscribe, "pubsub_subscribe"),
        (Command::Unsubscribe, "pubsub_unsubsribe"),
        (Command::Delete, "channel_delete"),
        (Command::Find, "channel_find"),
        (Command::Get, "channel_get_message"),
        (Command::Publish, "channel_publish_message"),
        (Command::GetRetained, "channel_get_retained"),
        (Command::Retain, "channel_retain"),
        (Command::Other, "other"),
    ];
}

/// How long, and how often.
#[derive(Clone, Copy, Default)]
struct Total {
    took: Duration,
    times: u64,
}

#[derive(Default)]
struct Node {
    /// What it calls itself.
    id: String,
    totals: [Total; Command::ALL.len()],
}

/// All nodes that were connected to, by their addresses.
#[derive(Default)]
pub(super) struct Stats {
    nodes: Mutex<BTreeMap<String, Node>>,
}

impl Stats {
    /// A node was connected to.
    pub(super) fn connected(&self, address: &str, id: &str, took: Duration) {
        self.of(address, |node| id.clone_into(&mut node.id));
        self.took(address, Command::Connect, took);
    }

    /// A node has done something.
    pub(super) fn took(&self, address: &str, command: Command, took: Duration) {
        self.of(address, |node| {
            let total = &mut node.totals[command as usize];
            total.took += took;
            total.times += 1;
        });
    }

    fn of(&self, address: &str, change: impl FnOnce(&mut Node)) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = nodes.len() < MAX_NODES;
        match nodes.get_mut(address) {
            Some(node) => change(node),
            None if has_room => change(nodes.entry(address.to_owned()).or_default()),
            None => {}
        }
    }

    /// As nchan says it.
    pub(super) fn json(&self, upstream: &str) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut out = format!("{{\n  \"upstream\": {},\n  \"nodes\": [", quoted(upstream));
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, (address, node)) in nodes.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            let (address, id) = (quoted(address), quoted(&node.id));
            let _ = write!(
                out,
                "{comma}\n    {{\n      \"address\": {address},\n      \"id\": {id},\n      \"command_totals\": {{"
            );
            for (number, (command, name)) in Command::ALL.iter().enumerate() {
                let comma = if number > 0 { "," } else { "" };
                let Total { took, times } = node.totals[*command as usize];
                let _ = write!(
                    out,
                    "{comma}\n        \"{name}\": {{ \"msec\": {}, \"times\": {times} }}",
                    took.as_millis()
                );
            }
            out.push_str("\n      }\n    }");
        }
        out.push_str("\n  ]\n}\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_told_by_node() {
        let stats = Stats::default();
        stats.connected("b:1", "two", Duration::from_millis(3));
        stats.connected("a\"1", "one", Duration::from_micros(1500));
        stats.took("a\"1", Command::Publish, Duration::from_micros(1500));
        stats.took("a\"1", Command::Publish, Duration::from_micros(1500));
        let told: serde_json::Value = serde_json::from_str(&stats.json("up")).expect("it is JSON");
        assert_eq!((&told["upstream"], &told["nodes"][0]["id"]), (&"up".into(), &"one".into()));
        let totals = &told["nodes"][0]["command_totals"];
        assert_eq!(totals["channel_publish_message"], serde_json::json!({"msec": 3, "times": 2}));
        assert_eq!(totals["connect"], serde_json::json!({"msec": 1, "times": 1}));
        assert_eq!(told["nodes"][1]["address"], "b:1");
        for (number, (command, _)) in Command::ALL.iter().enumerate() {
            assert_eq!(*command as usize, number);
        }
    }
}
