//! What a target says of itself by its API (`--api`): whose time its requests take, health checks, connections that it turned away. From: a
//! server. To: `preflight`, `find_max`. Whatever else it says, the numbers of a run are measured, never asked for.

use api_client::{Client, Trust};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long the target may take to say it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Peers that are kept.
const MOST_PEERS: usize = 4_096;
/// A request that takes its upstream less is not bound by it, microseconds ...
const NOTICEABLE_US: u64 = 5_000;
/// ... nor one whose upstream has a smaller part in it.
const MOST_OF_IT: f64 = 0.8;
/// A peer that was taken out so often flaps.
const FLAPS: u64 = 2;
/// Health checks that are this part of the requests asked for are traffic.
const TRAFFIC: f64 = 0.05;
/// Parts of a request's time that are its upstream's.
const OF_UPSTREAM: [&str; 4] = ["queue", "connect", "first_byte", "answer"];

/// The API of a target.
pub(crate) struct TargetApi(Client);

/// A peer, since the server's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Peer {
    state: String,
    checks: u64,
    fails: u64,
    unhealthy: u64,
}

/// What it said at one time.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    at: Instant,
    requests: u64,
    parts_us: BTreeMap<String, u64>,
    peers: BTreeMap<String, Peer>,
}

impl TargetApi {
    /// `url`: where a location has `api`.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn new(url: &str) -> Result<TargetApi, String> {
        Ok(TargetApi(Client::new(url, &Trust::System, None)?.with_patience(PATIENCE)))
    }

    fn ask(&self, endpoint: &str) -> Result<Value, String> {
        let none = || format!("{} has no {endpoint}", self.0.url());
        self.0.ask(endpoint)?.ok_or_else(none)
    }

    /// Looks at it.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn look(&self) -> Result<Look, String> {
        // A server without groups says nothing of them.
        let groups = self.0.ask("http/upstreams")?.unwrap_or(Value::Null);
        Ok(Look::read(&self.ask("ironweir/time")?, &groups))
    }

    /// Connections that found a listening queue of a port full.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn turned_away(&self, port: Option<u16>) -> Result<TurnedAway, String> {
        Ok(TurnedAway::read(&self.ask("ironweir/listeners")?, port))
    }
}

/// Sums since the server's start, where it knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnedAway {
    /// What the port's sockets dropped: also bare ACKs, where accepting is deferred.
    drops: Option<u64>,
    /// Overflows of all queues of the machine or container.
    overflows: Option<u64>,
}

impl TurnedAway {
    fn read(said: &Value, port: Option<u16>) -> TurnedAway {
        let listeners = said["listeners"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_meant = |l: &&Value| {
            let of = l["address"].as_str().and_then(|a| a.rsplit(':').next()?.parse::<u16>().ok());
            l["kind"] == "stream" && port.is_none_or(|p| of == Some(p))
        };
        let drops = listeners.iter().filter(is_meant).map(|l| l["drops"].as_u64()).sum();
        TurnedAway { drops, overflows: said.pointer("/namespace/overflows").and_then(Value::as_u64) }
    }

    /// How many more there are than before, if both counts say so.
    pub(crate) fn since(&self, before: &TurnedAway) -> u64 {
        let grew = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        let both = [grew(self.drops, before.drops), grew(self.overflows, before.overflows)];
        both.into_iter().flatten().min().unwrap_or(0)
    }
}

impl Look {
    /// Between two looks, so that health checks are seen.
    pub(crate) const APART: Duration = Duration::from_millis(1_200);

    fn read(time: &Value, groups: &Value) -> Look {
        let number = |v: &Value, pointer: &str| v.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let parts = time["parts_us"].as_object().into_iter().flatten();
        let mut peers = BTreeMap::new();
        for (group, value) in groups.as_object().into_iter().flatten() {
            for p in value["peers"].as_array().map(Vec::as_slice).unwrap_or_default().iter().take(MOST_PEERS) {
                let name = format!("{} of \"{group}\"", p["server"].as_str().unwrap_or_default());
                let peer = Peer {
                    state: p["state"].as_str().unwrap_or_default().to_owned(),
                    checks: number(p, "/health_checks/checks"),
                    fails: number(p, "/health_checks/fails"),
                    unhealthy: number(p, "/health_checks/unhealthy"),
                };
                peers.insert(name, peer);
            }
        }
        Look {
            at: Instant::now(),
            requests: number(time, "/requests"),
            parts_us: parts.filter_map(|(name, us)| Some((name.clone(), us.as_u64()?))).collect(),
            peers,
        }
    }

    /// What may spoil a run, from one look to the next with one request between them. `wanted`: requests a second.
    pub(crate) fn says(&self, after: &Look, wanted: Option<f64>) -> Vec<String> {
        let mut found = Vec::new();
        found.extend(self.own_backend(after));
        found.extend(flapping(&after.peers));
        found.extend(self.checks(after, wanted));
        found
    }

    fn own_backend(&self, after: &Look) -> Option<String> {
        let requests = after.requests.saturating_sub(self.requests);
        let grew = |name: &str| {
            let of = |look: &Look| look.parts_us.get(name).copied().unwrap_or(0);
            of(after).saturating_sub(of(self))
        };
        let whole: u64 =
            after.parts_us.keys().filter(|n| !["accept", "tls"].contains(&n.as_str())).map(|n| grew(n)).sum();
        let upstream: u64 = OF_UPSTREAM.iter().map(|n| grew(n)).sum();
        let each = upstream.checked_div(requests)?;
        if each < NOTICEABLE_US || (upstream as f64) < whole as f64 * MOST_OF_IT {
            return None;
        }
        Some(format!(
            "the target is bound by its own backend: {:.1} ms of {:.1} ms of a request are its upstream's; what is measured is that one",
            each as f64 / 1e3,
            whole as f64 / requests as f64 / 1e3
        ))
    }

    /// Health checks that are traffic.
    fn checks(&self, after: &Look, wanted: Option<f64>) -> Option<String> {
        let seconds = after.at.duration_since(self.at).as_secs_f64().max(1e-3);
        let of = |look: &Look| look.peers.values().map(|p| p.checks).sum::<u64>();
        let rate = of(after).saturating_sub(of(self)) as f64 / seconds;
        let wanted = wanted?;
        (rate >= wanted * TRAFFIC).then(|| {
            format!(
                "{rate:.0} health checks a second go to the target's servers, beside {wanted:.0} requests: they count in the servers' own numbers \
                 (a longer interval=, or a location that is not counted)"
            )
        })
    }
}

fn flapping(peers: &BTreeMap<String, Peer>) -> Option<String> {
    let all: Vec<String> = peers
        .iter()
        .filter(|(_, p)| p.unhealthy >= FLAPS || p.state == "unhealthy")
        .map(|(name, p)| {
            format!("{name} ({}, out {} times, {} of {} checks failed)", p.state, p.unhealthy, p.fails, p.checks)
        })
        .collect();
    let first = all.first()?;
    let more = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
    Some(format!(
        "health checks take servers out and in: {first}{more}; the load meets another number of servers each time"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(requests: u64, first_byte: u64, own: u64, checks: u64, unhealthy: u64, seconds: u64) -> Look {
        let time = json!({"requests": requests, "parts_us": {"first_byte": first_byte, "own": own, "accept": 900_000}});
        let peer = json!({"server": "10.0.0.1:80", "state": "up", "health_checks": {"checks": checks, "fails": 1, "unhealthy": unhealthy}});
        let mut look = Look::read(&time, &json!({"app": {"peers": [peer]}}));
        look.at += Duration::from_secs(seconds);
        look
    }

    #[test]
    fn a_healthy_target_says_nothing() {
        assert_eq!(look(5, 10_000, 10_000, 5, 0, 0).says(&look(6, 11_000, 10_500, 6, 1, 1), Some(1_000.0)), [""; 0]);
    }

    #[test]
    fn a_slow_backend_flapping_checks_and_checks_that_are_traffic() {
        let said = look(5, 0, 0, 0, 0, 0).says(&look(6, 40_000, 300, 20, 3, 1), Some(100.0));
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].starts_with("the target is bound by its own backend: 40.0 ms of 40.3 ms"), "{}", said[0]);
        assert!(said[1].contains("10.0.0.1:80 of \"app\" (up, out 3 times, 1 of 20 checks failed)"), "{}", said[1]);
        assert!(said[2].starts_with("20 health checks a second"), "{}", said[2]);
        assert_eq!(
            look(5, 0, 0, 0, 0, 0).says(&look(6, 40_000, 90_000, 20, 0, 1), None),
            [""; 0],
            "its own work is most of it"
        );
    }

    #[test]
    fn what_was_turned_away_is_a_ports_or_everybodys() {
        let said = json!({"listeners": [
            {"address": "0.0.0.0:80", "kind": "stream", "drops": 3},
            {"address": "0.0.0.0:443", "kind": "datagram", "drops": 9},
            {"address": "[::]:80", "kind": "stream", "drops": 1}], "namespace": {"overflows": 70}});
        let of = |said: &Value, port| TurnedAway::read(said, port);
        let both = |drops, overflows| TurnedAway { drops: Some(drops), overflows: Some(overflows) };
        assert_eq!(
            (of(&said, Some(80)), of(&said, Some(443)), of(&said, None)),
            (both(4, 70), both(0, 70), both(4, 70))
        );
        let silent =
            json!({"listeners": [{"address": "0.0.0.0:80", "kind": "stream"}], "namespace": {"overflows": 72}});
        assert_eq!(of(&silent, Some(80)).since(&of(&said, Some(80))), 2, "what is not said does not count");
        assert_eq!(both(9, 70).since(&both(4, 70)), 0, "drops that are no overflows");
        assert_eq!(both(9, 73).since(&both(4, 70)), 3);
        assert_eq!(of(&json!({}), None).since(&both(0, 0)), 0);
    }
}
