//! What the API says at one moment, and what that is a second between two.

use crate::lists::{self, Said, Tab};
use api_client::Client;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;
use wire::terminal::plain;

/// One look.
pub(crate) struct Look {
    at: Instant,
    /// `/nginx`
    pub(crate) about: Value,
    write: bool,
    totals: Value,
    connections: Value,
    latency: Value,
    threads: Vec<Value>,
    listeners: Vec<Value>,
    /// `/ironweir/why`: what is in the way, and whether that is a fault.
    pub(crate) why: Option<(String, bool)>,
    /// From the same: what a request waits for, in the order of its life, microseconds.
    pub(crate) parts_us: Vec<(&'static str, f64)>,
    /// From the same: the machine's interfaces, the busiest first.
    pub(crate) interfaces: Vec<Interface>,
    /// `/ironweir/memory`: what is parked, and how many more fit. None where nothing is.
    pub(crate) held: Option<String>,
    /// Peers of all groups, in order.
    pub(crate) peers: Vec<Peer>,
    /// What the lists that were wanted said.
    lists: Vec<(Tab, Said)>,
}

/// A peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// `http` or `stream`.
    pub(crate) subsystem: &'static str,
    pub(crate) group: String,
    pub(crate) id: u64,
    pub(crate) server: String,
    pub(crate) state: String,
    pub(crate) reason: String,
    pub(crate) backup: bool,
    pub(crate) weight: u64,
    pub(crate) active: u64,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) fails: u64,
    pub(crate) header_us: Option<u64>,
}

/// A number in a value, 0 if it is not there.
fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// A time of a peer; from a server that does not tell microseconds, of its milliseconds.
fn microseconds(value: &Value, name: &str) -> Option<u64> {
    let exact = value[format!("{name}_us")].as_u64();
    exact.or_else(|| value[name].as_u64().map(|ms| ms.saturating_mul(1000)))
}

/// A text of others, which must not steer the terminal.
fn text(value: &Value, name: &str) -> String {
    plain(value[name].as_str().unwrap_or_default()).into_owned()
}

/// The sentence, and whether it is about a fault.
fn why(value: &Value) -> Option<(String, bool)> {
    let sentence = text(value, "sentence");
    (!sentence.is_empty()).then(|| (sentence, value["finding"].is_object()))
}

/// Parts of a request's time, from its SYN to its last byte, and their names for people.
const PARTS: [(&str, &str); 10] = [
    ("accept", "accept"),
    ("tls", "TLS"),
    ("head", "head"),
    ("body", "body"),
    ("own", "server"),
    ("queue", "queue"),
    ("connect", "connect"),
    ("first_byte", "first byte"),
    ("answer", "upstream"),
    ("client", "client"),
];

/// Those that take any time.
fn parts(value: &Value) -> Vec<(&'static str, f64)> {
    let part =
        |(key, name): (&str, &'static str)| Some((name, value["parts_us"][key].as_f64().filter(|us| *us > 0.0)?));
    PARTS.into_iter().filter_map(part).collect()
}

/// An interface, a second.
pub(crate) struct Interface {
    pub(crate) name: String,
    /// Bits in and out.
    pub(crate) bits: [f64; 2],
    /// Packets in and out.
    pub(crate) packets: [f64; 2],
    pub(crate) drops: f64,
    pub(crate) errors: f64,
    pub(crate) speed: Option<u64>,
}

/// Interfaces that are shown.
const MOST_INTERFACES: usize = 3;

fn interfaces(value: &Value) -> Vec<Interface> {
    let all = value["interfaces"].as_array().map(Vec::as_slice).unwrap_or_default();
    let each = |i: &Value| {
        let of = |name: &str| i[name].as_f64().unwrap_or(0.0);
        Interface {
            name: text(i, "name"),
            bits: [of("rx_bits"), of("tx_bits")],
            packets: [of("rx_packets"), of("tx_packets")],
            drops: of("drops"),
            errors: of("errors"),
            speed: i["speed"].as_u64(),
        }
    };
    all.iter().take(MOST_INTERFACES).map(each).collect()
}

/// What is parked, by kind, what each takes, and how many more fit.
fn held(value: &Value) -> Option<String> {
    let kinds = value.pointer("/connections/parked")?.as_object()?;
    let counts = kinds.iter().filter_map(|(name, kind)| Some((name, kind["count"].as_u64().filter(|n| *n > 0)?)));
    let counts: Vec<String> = counts.map(|(name, n)| format!("{n} {}", plain(name).replace('_', "-"))).collect();
    let of = |pointer: &str| number(value, pointer);
    let (user, kernel) = (of("/each/user_bytes_parked"), of("/each/kernel_bytes"));
    let ends = text(&value["fits"], "parked_ends_by");
    (!counts.is_empty()).then(|| {
        format!(
            "parked: {}; {user} B each, and {kernel} B of the kernel's; {} more fit, then {ends} ends",
            counts.join(", "),
            of("/fits/parked_more")
        )
    })
}

fn list(value: Option<Value>, name: &str) -> Vec<Value> {
    value.and_then(|mut v| v.get_mut(name).map(Value::take)).and_then(|v| v.as_array().cloned()).unwrap_or_default()
}

impl Peer {
    fn read(subsystem: &'static str, group: &str, value: &Value) -> Peer {
        let of = |pointer: &str| number(value, pointer);
        Peer {
            subsystem,
            group: group.to_owned(),
            id: of("/id"),
            server: text(value, "server"),
            state: text(value, "state"),
            reason: text(value, "reason"),
            backup: value["backup"] == true,
            weight: of("/weight"),
            active: of("/active"),
            requests: of("/requests") + of("/connections"),
            errors: of("/responses/5xx"),
            fails: of("/fails"),
            header_us: microseconds(value, "header_time").or_else(|| microseconds(value, "first_byte_time")),
        }
    }

    fn is(&self, other: &Peer) -> bool {
        (self.subsystem, &self.group, self.id) == (other.subsystem, &other.group, other.id)
    }
}

/// A thread between two looks.
pub(crate) struct Thread {
    pub(crate) number: u64,
    pub(crate) requests: f64,
    pub(crate) connections: u64,
    /// Parts of one CPU: running, and ready without running.
    pub(crate) running: f64,
    pub(crate) waiting: f64,
    pub(crate) turn_p99_us: Option<u64>,
}

/// A listening address between two looks.
pub(crate) struct Listener {
    pub(crate) address: String,
    pub(crate) accepted: f64,
    /// Waiting and limit, where the kernel tells them.
    pub(crate) queue: Option<[u64; 2]>,
    pub(crate) drops: Option<u64>,
}

/// What changed between two looks, a second.
pub(crate) struct Rates {
    pub(crate) answers: f64,
    pub(crate) client_errors: f64,
    pub(crate) server_errors: f64,
    pub(crate) accepted: f64,
    pub(crate) dropped: u64,
    pub(crate) sent: f64,
    pub(crate) received: f64,
    /// Reading, writing, idle.
    pub(crate) connections: [u64; 3],
    /// p50, p90, p99.
    pub(crate) latency_ms: [Option<u64>; 3],
}

impl Look {
    /// Asks for everything, and for these lists.
    pub(crate) fn take(client: &Client, wanted_lists: &[Tab]) -> Result<Look, String> {
        let wanted = |endpoint: &str| {
            client.ask(endpoint)?.ok_or_else(|| format!("{} has no {endpoint}: is it Ironweir's API?", client.url()))
        };
        let none = || format!("there is no API at {}: it is where a location has \"api\"", client.url());
        let top = client.ask("")?.ok_or_else(none)?;
        let subsystems =
            ["http", "stream"].into_iter().filter(|p| top.as_array().is_some_and(|t| t.iter().any(|n| n == p)));
        let mut peers = Vec::new();
        for subsystem in subsystems {
            let Some(Value::Object(groups)) = client.ask(&format!("{subsystem}/upstreams"))? else { continue };
            for (name, group) in &groups {
                let all = group["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
                peers.extend(all.iter().map(|p| Peer::read(subsystem, name, p)));
            }
        }
        let mut lists = Vec::new();
        for tab in wanted_lists {
            let mut said = Said::new();
            for (word, endpoint) in tab.endpoints() {
                said.extend(client.ask(endpoint)?.map(|value| (*word, value)));
            }
            lists.push((*tab, said));
        }
        let said = client.ask("ironweir/why")?.unwrap_or_default();
        Ok(Look {
            at: Instant::now(),
            about: wanted("nginx")?,
            write: wanted("ironweir/access")?["write"] == true,
            totals: wanted("ironweir/totals")?,
            connections: wanted("connections")?,
            latency: wanted("ironweir/latency")?,
            threads: list(client.ask("ironweir/threads")?, "threads"),
            listeners: list(client.ask("ironweir/listeners")?, "listeners"),
            why: why(&said),
            parts_us: parts(&said),
            interfaces: interfaces(&said),
            held: client.ask("ironweir/memory")?.and_then(|v| held(&v)),
            peers,
            lists,
        })
    }

    /// One that knows of peers and nothing else.
    #[cfg(test)]
    pub(crate) fn of_peers(peers: &[(&str, Value)]) -> Look {
        Look {
            at: Instant::now(),
            about: Value::Null,
            write: true,
            totals: Value::Null,
            connections: Value::Null,
            latency: Value::Null,
            threads: Vec::new(),
            listeners: Vec::new(),
            why: None,
            parts_us: Vec::new(),
            interfaces: Vec::new(),
            held: None,
            peers: peers.iter().map(|(group, peer)| Peer::read("http", group, peer)).collect(),
            lists: Vec::new(),
        }
    }

    /// `api write=on`
    pub(crate) fn may_write(&self) -> bool {
        self.write
    }

    fn per_second(&self, before: &Look, now: u64, was: u64) -> f64 {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        now.saturating_sub(was) as f64 / seconds
    }

    /// The rows of a list.
    pub(crate) fn rows(&self, before: &Look, tab: Tab) -> Vec<lists::Line> {
        let of = |look: &Look| look.lists.iter().find(|(t, _)| *t == tab).map(|(_, said)| said.clone());
        let now = of(self).unwrap_or_default();
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        lists::rows(tab, &now, &of(before).unwrap_or_default(), seconds)
    }

    /// What changed since.
    pub(crate) fn rates(&self, before: &Look) -> Rates {
        let of =
            |pointer: &str| self.per_second(before, number(&self.totals, pointer), number(&before.totals, pointer));
        let (now, was) = (number(&self.connections, "/accepted"), number(&before.connections, "/accepted"));
        Rates {
            answers: of("/responses/total"),
            client_errors: of("/responses/4xx"),
            server_errors: of("/responses/5xx"),
            accepted: self.per_second(before, now, was),
            dropped: number(&self.connections, "/dropped"),
            sent: of("/sent"),
            received: of("/received"),
            connections: ["/connections/reading", "/connections/writing", "/connections/idle"]
                .map(|p| number(&self.totals, p)),
            latency_ms: quantiles(&self.latency["steps_ms"], &before.latency["steps_ms"], [0.5, 0.9, 0.99]),
        }
    }

    /// Requests and errors of a peer, a second.
    pub(crate) fn of_peer(&self, before: &Look, peer: &Peer) -> (f64, f64) {
        let Some(was) = before.peers.iter().find(|p| p.is(peer)) else { return (0.0, 0.0) };
        (self.per_second(before, peer.requests, was.requests), self.per_second(before, peer.errors, was.errors))
    }

    /// The threads.
    pub(crate) fn threads(&self, before: &Look) -> Vec<Thread> {
        let thread = |t: &Value| {
            let was = before.threads.iter().find(|o| o["id"] == t["id"] && o["tid"] == t["tid"]).unwrap_or(t);
            let of = |pointer: &str| self.per_second(before, number(t, pointer), number(was, pointer));
            let [p99] = quantiles(&t["turns_us"]["steps"], &was["turns_us"]["steps"], [0.99]);
            Thread {
                number: number(t, "/id"),
                requests: of("/requests"),
                connections: number(t, "/connections"),
                running: of("/running_ns") / 1e9,
                waiting: of("/waiting_ns") / 1e9,
                turn_p99_us: p99,
            }
        };
        self.threads.iter().map(thread).collect()
    }

    /// The listening addresses.
    pub(crate) fn listeners(&self, before: &Look) -> Vec<Listener> {
        let listener = |l: &Value| {
            let same = |o: &&Value| o["address"] == l["address"] && o["kind"] == l["kind"];
            let was = before.listeners.iter().find(same).unwrap_or(l);
            Listener {
                address: text(l, "address"),
                accepted: self.per_second(before, number(l, "/accepted"), number(was, "/accepted")),
                queue: l["limit"].is_u64().then(|| ["/waiting", "/limit"].map(|p| number(l, p))),
                drops: l["drops"].as_u64(),
            }
        };
        self.listeners.iter().map(listener).collect()
    }
}

/// Quantiles of what was added to a histogram; none without any.
fn quantiles<const N: usize>(now: &Value, before: &Value, parts: [f64; N]) -> [Option<u64>; N] {
    let Value::Object(steps) = now else { return [None; N] };
    let added: BTreeMap<u64, u64> = steps
        .iter()
        .filter_map(|(top, n)| {
            let was = before.get(top).and_then(Value::as_u64).unwrap_or(0);
            Some((top.parse().ok()?, n.as_u64()?.saturating_sub(was)))
        })
        .collect();
    let total: u64 = added.values().sum();
    parts.map(|part| {
        let wanted = ((total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let found = added.iter().find(|(_, n)| {
            seen += **n;
            seen >= wanted
        });
        found.map(|(top, _)| *top)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_cannot_steer_the_terminal() {
        let peer = Peer::read("http", "g", &json!({"server": "a\u{1b}[2J:1", "reason": "x\r\ny\u{9b}3"}));
        assert_eq!((peer.server.as_str(), peer.reason.as_str()), ("a\\x1b[2J:1", "x\\x0d\\x0ay\\x9b3"));
    }

    #[test]
    fn what_is_said_of_why() {
        let said = json!({"parts_us": {"first_byte": 750.5, "own": 250, "queue": 0, "new": 9}, "interfaces": [
            {"name": "eth0\u{1b}", "rx_bits": 8e6, "tx_bits": 2, "rx_packets": 1, "tx_packets": 2, "drops": 3, "speed": 1_000_000_000u64}, 7]});
        assert_eq!(parts(&said), [("server", 250.0), ("first byte", 750.5)]);
        let all = interfaces(&said);
        assert_eq!(
            (all[0].name.as_str(), all[0].bits, all[0].drops, all[0].speed),
            ("eth0\\x1b", [8e6, 2.0], 3.0, Some(1_000_000_000))
        );
        assert!(
            all[1].name.is_empty()
                && parts(&Value::Null).is_empty()
                && interfaces(&json!({"interfaces": 1})).is_empty()
        );
    }

    #[test]
    fn quantiles_are_of_what_was_added() {
        let (before, now) = (json!({"1": 100, "20": 5}), json!({"1": 150, "20": 55, "300": 1}));
        assert_eq!(quantiles(&now, &before, [0.5, 0.6, 1.0]), [Some(20), Some(20), Some(300)]);
        assert_eq!(quantiles(&before, &before, [0.5]), [None]);
        assert_eq!(quantiles(&Value::Null, &before, [0.5]), [None]);
    }
}
