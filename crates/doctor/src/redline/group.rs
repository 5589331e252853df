//! A group of servers over the API: its weights and counts, and the process that puts weights back when this one ends (`guard`). From: `redline`.

use crate::guard::{self, Guard};
use api_client::Client;
use serde::{Deserialize, Serialize};
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

    /// Those that take requests.
    pub(super) fn peers(&self) -> Result<Vec<Peer>, String> {
        self.peers_if(|p| p["backup"] != true && p["state"] != "down" && p["state"] != "draining")
    }

    fn peers_of_any_state(&self) -> Result<Vec<Peer>, String> {
        self.peers_if(|_| true)
    }

    fn peers_if(&self, takes: impl Fn(&Value) -> bool) -> Result<Vec<Peer>, String> {
        let value = self.look()?;
        let all = value["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let peer = |p: &Value| {
            let weight = p["weight"].as_u64().unwrap_or(1);
            Peer {
                id: p["id"].as_u64().unwrap_or(0),
                server: p["server"].as_str().unwrap_or_default().to_owned(),
                weight,
            }
        };
        Ok(all.iter().filter(|p| takes(p)).take(MOST_PEERS).map(peer).collect())
    }

    /// An error if one of these servers has another number now, or none: a reload came in between.
    pub(super) fn is_still(&self, peers: &[Peer]) -> Result<(), String> {
        let now = self.peers_of_any_state()?;
        match peers.iter().find(|p| !now.iter().any(|n| n.id == p.id && n.server == p.server)) {
            None => Ok(()),
            Some(gone) => {
                Err(format!("the servers of the upstream have changed (a reload?): {} is not what it was", gone.server))
            }
        }
    }

    pub(super) fn set_weight(&self, id: u64, weight: u64) -> Result<(), String> {
        self.client.change("PATCH", &format!("{}/servers/{id}", self.path), &json!({ "weight": weight }))
    }

    /// What a peer, and what all others together, have done so far.
    pub(super) fn counts(&self, of: &Peer) -> Result<Counts, String> {
        let Peer { id, server, .. } = of;
        let value = self.look()?;
        let mut counts = None;
        let mut others = 0;
        for peer in value["peers"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let of = |pointer: &str| peer.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
            // A status that the next server is asked for counts as an answer and as a failed try; a broken connection only as the latter.
            let failed = of("/responses/5xx").max(of("/fails"));
            let answers = of("/responses/total") + (failed - of("/responses/5xx"));
            if of("/id") == *id && peer["server"] == server.as_str() {
                counts = Some(Counts { answers, us: of("/response_time_hist/sum") * 1_000, failed, others: 0 });
            } else {
                others += answers - failed.min(answers);
            }
        }
        let counts = counts.ok_or_else(|| format!("server {server} has left the upstream"))?;
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

/// How often, and how long apart, weights are tried to be put back.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// What a server's weight was, and what the search has made of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changed {
    pub id: u64,
    pub server: String,
    pub was: u64,
    /// Weights that the search has set. Any other one is somebody else's, and stays.
    pub set: Vec<u64>,
}

/// A process of its own that puts the weights back, whatever becomes of this one.
pub(super) fn watch_over(url: &str, name: &str, changed: &[Changed], patience: Duration) -> Result<Guard, String> {
    Guard::start(&["redline", "--guard", "--api", url, "--upstream", name], json!(changed), patience)
}

/// That process: waits for the end of the one that has started it, and sets the weights to what they were.
pub(super) fn put_back(group: &Group) -> Result<u8, String> {
    let ended = guard::wait_for_the_end()?;
    let mut changed: Vec<Changed> =
        serde_json::from_value(ended.order).map_err(|e| format!("no weights to restore ({e})"))?;
    // The last things that were said: a weight of the server that is searched, set a moment later.
    for note in ended.notes {
        if let Some((id, weight)) = note["id"].as_u64().zip(note["weight"].as_u64()) {
            changed.iter_mut().filter(|c| c.id == id).for_each(|c| c.set.push(weight));
        }
    }
    guard::outcome(restore(group, &changed))
}

/// Sets weights to what they were; what could not be. A server is known by its name: a reload gives numbers anew. What it has set is newer than what
/// was, and stays.
pub(super) fn restore(group: &Group, changed: &[Changed]) -> Vec<String> {
    let mut failures = Vec::new();
    for n in 0..TRIES {
        if n > 0 {
            std::thread::sleep(BETWEEN_TRIES);
        }
        failures = match group.peers_of_any_state() {
            Ok(now) => steps_back(changed, &now)
                .into_iter()
                .filter_map(|back| {
                    let e = group.set_weight(back.id, back.weight).err()?;
                    Some(format!("server {} should have weight {} again: {e}", back.server, back.weight))
                })
                .collect(),
            Err(e) => vec![format!("the weights could not be looked at: {e}")],
        };
        if failures.is_empty() {
            break;
        }
    }
    failures
}

/// Which weights are to be set, by the numbers that servers have now.
fn steps_back(changed: &[Changed], now: &[Peer]) -> Vec<Peer> {
    let mut left: Vec<&Peer> = now.iter().collect();
    let mut back = Vec::new();
    for c in changed {
        // Two servers may have one name: the one with the same number is the same one, else their order decides.
        let same = |with_number: bool| left.iter().position(|p| p.server == c.server && (!with_number || p.id == c.id));
        let Some(at) = same(true).or_else(|| same(false)) else { continue };
        let peer = left.remove(at);
        if peer.weight != c.was && c.set.contains(&peer.weight) {
            back.push(Peer { weight: c.was, ..peer.clone() });
        }
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u64, server: &str, weight: u64) -> Peer {
        Peer { id, server: server.into(), weight }
    }

    fn back(changed: &[(u64, &str, u64, &[u64])], now: &[(u64, &str, u64)]) -> Vec<(u64, u64)> {
        let changed: Vec<Changed> = changed
            .iter()
            .map(|(id, server, was, set)| Changed { id: *id, server: (*server).into(), was: *was, set: set.to_vec() })
            .collect();
        let now: Vec<Peer> = now.iter().map(|(id, server, weight)| peer(*id, server, *weight)).collect();
        steps_back(&changed, &now).iter().map(|p| (p.id, p.weight)).collect()
    }

    #[test]
    fn weights_go_back_to_the_servers_that_had_them() {
        let search: &[(u64, &str, u64, &[u64])] = &[(0, "a", 5, &[500, 71]), (1, "b", 3, &[300]), (2, "c", 2, &[200])];
        assert_eq!(back(search, &[(0, "a", 71), (1, "b", 300), (2, "c", 200)]), [(0, 5), (1, 3), (2, 2)]);
        assert_eq!(back(search, &[(0, "a", 5), (1, "b", 3), (2, "c", 200)]), [(2, 2)], "it was killed on its way");
    }

    /// A reload in the middle: servers have other numbers, and weights that its configuration says.
    #[test]
    fn what_a_reload_has_set_stays() {
        let search: &[(u64, &str, u64, &[u64])] = &[(0, "a", 5, &[500, 71]), (1, "b", 3, &[300]), (2, "c", 2, &[200])];
        assert_eq!(back(search, &[(0, "c", 2), (1, "a", 5), (2, "d", 7)]), []);
        assert_eq!(back(search, &[(0, "c", 200), (1, "d", 7), (2, "a", 71), (3, "b", 9)]), [(2, 5), (0, 2)]);
    }

    #[test]
    fn two_servers_of_one_name() {
        let search: &[(u64, &str, u64, &[u64])] = &[(0, "a", 1, &[100]), (1, "a", 2, &[200])];
        assert_eq!(back(search, &[(0, "a", 100), (1, "a", 200)]), [(0, 1), (1, 2)]);
    }
}
