//! A group of servers over the API: its weights and counts, and the process that puts weights back when this one ends (`guard`). From: `redline`.

use crate::guard::{self, Guard};
use api_client::Client;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Peers of a group that are handled.
const MOST_PEERS: usize = 4_096;

/// A peer of the group, as the API shows it.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub id: u64,
    pub server: String,
    pub weight: u64,
}

/// A group over the API.
pub(super) struct Group<'c> {
    client: &'c Client,
    path: String,
}

impl Group<'_> {
    pub(super) fn new<'c>(client: &'c Client, name: &str) -> Group<'c> {
        // A name may have anything in it.
        let escaped = name.bytes().fold(String::new(), |mut out, b| {
            if b.is_ascii_alphanumeric() || b"-._".contains(&b) {
                out.push(char::from(b));
            } else {
                let _ = write!(out, "%{b:02X}");
            }
            out
        });
        Group { client, path: format!("http/upstreams/{escaped}") }
    }

    fn look(&self) -> Result<Value, String> {
        let none = || format!("there is no upstream with a zone at {} ({})", self.client.url(), self.path);
        self.client.ask(&self.path)?.ok_or_else(none)
    }

    pub(super) fn peers(&self) -> Result<Vec<Peer>, String> {
        let value = self.look()?;
        let all = value["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let takes = |p: &&Value| p["backup"] != true && p["state"] != "down" && p["state"] != "draining";
        let peer = |p: &Value| {
            let weight = p["weight"].as_u64().unwrap_or(1);
            Peer {
                id: p["id"].as_u64().unwrap_or(0),
                server: p["server"].as_str().unwrap_or_default().to_owned(),
                weight,
            }
        };
        Ok(all.iter().filter(takes).take(MOST_PEERS).map(peer).collect())
    }

    pub(super) fn set_weight(&self, id: u64, weight: u64) -> Result<(), String> {
        self.client.change("PATCH", &format!("{}/servers/{id}", self.path), &json!({ "weight": weight }))
    }

    /// What a peer, and what all others together, have done so far.
    pub(super) fn counts(&self, id: u64) -> Result<Counts, String> {
        let value = self.look()?;
        let mut counts = None;
        let mut others = 0;
        for peer in value["peers"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let of = |pointer: &str| peer.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
            // A status that the next server is asked for counts as an answer and as a failed try; a broken connection only as the latter.
            let failed = of("/responses/5xx").max(of("/fails"));
            let answers = of("/responses/total") + (failed - of("/responses/5xx"));
            if of("/id") == id {
                counts = Some(Counts { answers, us: of("/response_time_hist/sum") * 1_000, failed, others: 0 });
            } else {
                others += answers - failed.min(answers);
            }
        }
        let counts = counts.ok_or_else(|| format!("server {id} has left the upstream"))?;
        Ok(Counts { others, ..counts })
    }
}

/// Sums since the server's start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Answers, good and bad.
    pub answers: u64,
    /// How long they took together.
    pub us: u64,
    /// Of the answers, those that failed.
    pub failed: u64,
    /// Good answers of all other peers.
    pub others: u64,
}

/// How often, and how long apart, a weight is tried to be put back.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// A process of its own that puts the weights back, whatever becomes of this one.
pub(super) fn watch_over(url: &str, name: &str, peers: &[Peer], patience: Duration) -> Result<Guard, String> {
    let weights: Vec<Value> = peers.iter().map(|p| json!([p.id, p.weight])).collect();
    Guard::start(&["redline", "--guard", "--api", url, "--upstream", name], json!(weights), patience)
}

/// That process: waits for the end of the one that has started it, and sets the weights to what they were.
pub(super) fn put_back(group: &Group) -> Result<u8, String> {
    let weights: Vec<(u64, u64)> =
        serde_json::from_value(guard::wait_for_the_end()?).map_err(|e| format!("no weights to restore ({e})"))?;
    let set = |(id, weight): (u64, u64)| {
        let mut last = Ok(());
        for n in 0..TRIES {
            if n > 0 {
                std::thread::sleep(BETWEEN_TRIES);
            }
            last = group.set_weight(id, weight);
            if last.is_ok() {
                return None;
            }
        }
        last.err().map(|e| format!("server {id} should have weight {weight} again: {e}"))
    };
    guard::outcome(weights.into_iter().filter_map(set).collect())
}
