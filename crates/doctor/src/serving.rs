//! What an Ironweir says of itself by its API: two looks, and what changed between them, as facts. Knows nothing of what any of it means.

use crate::statistics::Sums;
use api_client::{Client, Failure};
use machine::wake::Costs;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// Threads, peers and listeners that are kept of what a server says.
const MOST: usize = 4_096;

/// A server between two looks. Rates are per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Serving {
    /// The process.
    pub pid: u32,
    /// Between the two looks.
    pub seconds: f64,
    /// Requests that were answered, and of those the ones with 5xx.
    pub answers: f64,
    /// See `answers`.
    pub errors: f64,
    /// Connections that were accepted.
    pub accepted: f64,
    /// Connections now, and how many there may be (`worker_connections` of all workers); 0: not known.
    pub connections: (u64, u64),
    /// Of those, the ones with a request; others can make room for new ones.
    #[serde(default)]
    pub active: u64,
    /// TLS handshakes with clients.
    pub handshakes: f64,
    /// Worker threads.
    pub threads: Vec<Thread>,
    /// What a sleep cost a thread when the server started; none: it does not say.
    #[serde(default)]
    pub wake: Option<Costs>,
    /// Requests whose time is known, in all (not per second).
    pub timed: u64,
    /// What those waited for, microseconds of each on average, by the names of `/ironweir/time`.
    pub parts_us: BTreeMap<String, f64>,
    /// How long a write to an access log takes, microseconds; 0: none was timed.
    pub log_write_us: f64,
    /// The part of the time in which such writes held threads; 1: one thread did nothing else.
    #[serde(default)]
    pub log_held: f64,
    /// Peers of all groups.
    pub peers: Vec<Peer>,
    /// Requests that wait for a peer, by group, and how many found no place to wait between the looks.
    pub queues: BTreeMap<String, (u64, u64)>,
    /// Where it has connected to over TCP since it began; none: it does not say.
    #[serde(default)]
    pub connects_to: Option<Vec<String>>,
    /// Connections for which there was no local port between the looks, by destination; those with none are left out.
    #[serde(default)]
    pub without_port: BTreeMap<String, u64>,
}

/// A worker thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Its number.
    pub number: u64,
    /// Requests.
    pub requests: f64,
    /// Connections that it holds now.
    pub connections: u64,
    /// Parts of one CPU: running, and ready without running.
    pub running: f64,
    /// See `running`.
    pub waiting: f64,
    /// How often a second it is put on a CPU.
    #[serde(default)]
    pub switches: f64,
    /// The CPUs that it may run on; empty: not known.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// The longest turn of its loop of 100, microseconds.
    pub turn_p99_us: Option<u64>,
    /// What was done in turns of its loop; none: nothing was, or it does not say.
    #[serde(default)]
    pub work: Option<Work>,
}

/// Turns of a thread's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// How many a second.
    pub turns: f64,
    /// Of those that were timed: how many times a task was run (x), and how long that took in all, nanoseconds (y).
    pub timed: Sums,
}

/// A peer of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// The group.
    pub group: String,
    /// Its address.
    pub server: String,
    /// `up`, `down`, `unavail`, `unhealthy`, `draining`, `checking`.
    pub state: String,
    /// Why it is not up, if that is known.
    pub reason: String,
    /// Requests to it.
    pub requests: f64,
    /// Connections to it now, and how many there may be; 0: any number.
    pub active: (u64, u64),
    /// Failed attempts between the looks.
    pub fails: u64,
    /// How long it takes to the head of an answer, microseconds (the server's average).
    pub header_us: Option<u64>,
}

/// One look: what each endpoint said.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    said: BTreeMap<&'static str, Value>,
}

/// Who answers for an endpoint: `ironweir/totals`; none where it is not there.
pub type Ask<'a> = dyn Fn(&str) -> Result<Option<Value>, Failure> + 'a;

/// What the server has counted itself: who holds ports now, the machine is asked.
const PORTS: &str = "ironweir/ports?fields=begun";
const ENDPOINTS: [&str; 9] = [
    "nginx",
    "connections",
    "ssl",
    "ironweir/totals",
    "ironweir/threads",
    "ironweir/time",
    PORTS,
    "http/upstreams",
    "stream/upstreams",
];

impl Look {
    /// Asks every endpoint.
    ///
    /// # Errors
    /// If one of them cannot be asked, or if this is not the API of an Ironweir.
    pub fn take(ask: &Ask) -> Result<Look, Failure> {
        let mut said = BTreeMap::new();
        for endpoint in ENDPOINTS {
            if let Some(value) = ask(endpoint)? {
                said.insert(endpoint, value);
            }
        }
        if ["ironweir/totals", "ironweir/time"].iter().any(|e| !said.contains_key(e)) {
            let text = "the API has no /ironweir/time: is it that of an Ironweir, and of this version?";
            return Err(Failure::Other(text.to_owned()));
        }
        Ok(Look { at: Instant::now(), said })
    }

    /// The same over HTTP.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn over(client: &Client) -> Result<Look, Failure> {
        let none =
            || Failure::Other(format!("there is no API at {}: it is where a location has \"api\"", client.url()));
        client.ask("")?.ok_or_else(none)?;
        Look::take(&|endpoint| client.ask(endpoint))
    }

    fn value(&self, endpoint: &str) -> &Value {
        self.said.get(endpoint).unwrap_or(&Value::Null)
    }
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().map(Vec::as_slice).unwrap_or_default().iter().take(MOST)
}

/// What two looks at one value say of it: by how much a number grew, and that a second.
#[derive(Clone, Copy)]
struct Between<'v> {
    was: &'v Value,
    now: &'v Value,
    seconds: f64,
}

impl<'v> Between<'v> {
    fn grew(self, pointer: &str) -> u64 {
        number(self.now, pointer).saturating_sub(number(self.was, pointer))
    }

    fn rate(self, pointer: &str) -> f64 {
        self.grew(pointer) as f64 / self.seconds
    }
}

impl Serving {
    /// What changed between two looks.
    pub fn between(before: &Look, after: &Look) -> Serving {
        let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let of = |endpoint: &str| Between { was: before.value(endpoint), now: after.value(endpoint), seconds };
        let (totals, connections, time) = (of("ironweir/totals"), of("connections"), of("ironweir/time"));
        let timed = time.grew("/requests");
        let mean = |us: u64| us as f64 / timed.max(1) as f64;
        let parts = time.now["parts_us"].as_object().map(|parts| parts.keys().cloned().collect::<Vec<_>>());
        let parts = parts.unwrap_or_default().into_iter().take(MOST);
        let writes = time.grew("/log_writes/timed");
        let mut serving = Serving {
            pid: number(after.value("nginx"), "/pid") as u32,
            seconds,
            answers: totals.rate("/responses/total"),
            errors: totals.rate("/responses/5xx"),
            accepted: connections.rate("/accepted"),
            connections: (
                number(connections.now, "/active") + number(connections.now, "/idle"),
                number(connections.now, "/limit"),
            ),
            active: number(connections.now, "/active"),
            handshakes: of("ssl").rate("/handshakes"),
            threads: threads(of("ironweir/threads")),
            wake: Costs::deserialize(&of("ironweir/threads").now["wake"]).ok(),
            timed,
            parts_us: parts.map(|name| (name.clone(), mean(time.grew(&format!("/parts_us/{name}"))))).collect(),
            log_write_us: time.grew("/log_writes/us") as f64 / writes.max(1) as f64,
            log_held: time.rate("/log_writes/us") / 1e6,
            connects_to: after.said.get(PORTS).map(|said| list(said, "begun").map(|b| text(b, "to")).collect()),
            without_port: without_port(of(PORTS)),
            ..Serving::default()
        };
        for endpoint in ["http/upstreams", "stream/upstreams"] {
            serving.groups(of(endpoint));
        }
        serving
    }

    fn groups(&mut self, both: Between) {
        let Some(groups) = both.now.as_object() else { return };
        for (name, now) in groups.iter().take(MOST) {
            let both = Between { was: &both.was[name], now, ..both };
            if now["queue"].is_object() {
                self.queues.insert(name.clone(), (number(now, "/queue/size"), both.grew("/queue/overflows")));
            }
            let peers = list(now, "peers").take(MOST.saturating_sub(self.peers.len()));
            self.peers.extend(peers.map(|p| peer(name, p, both)));
        }
    }

    /// What a request takes on average, microseconds.
    pub fn request_us(&self) -> f64 {
        self.parts_us.values().sum()
    }

    /// One part of it.
    pub fn part_us(&self, name: &str) -> f64 {
        self.parts_us.get(name).copied().unwrap_or(0.0)
    }
}

fn threads(both: Between) -> Vec<Thread> {
    let thread = |now: &Value| {
        let same = |o: &&Value| o["id"] == now["id"] && o["tid"] == now["tid"];
        let both = Between { was: list(both.was, "threads").find(same).unwrap_or(now), now, ..both };
        Thread {
            number: number(now, "/id"),
            requests: both.rate("/requests"),
            connections: number(now, "/connections"),
            running: both.rate("/running_ns") / 1e9,
            waiting: both.rate("/waiting_ns") / 1e9,
            switches: both.rate("/switches"),
            cpus: list(now, "cpus").take(MOST).filter_map(|n| Some(n.as_u64()? as usize)).collect(),
            turn_p99_us: now.pointer("/turns_us/p99").and_then(Value::as_u64),
            work: work(both),
        }
    };
    list(both.now, "threads").map(thread).collect()
}

/// The unit of `squared` is so many nanoseconds, squared.
const SQUARE_NS: f64 = 100.0;

fn work(both: Between) -> Option<Work> {
    let grew = |name: &str| both.grew(&format!("/work/{name}")) as f64;
    let timed = Sums {
        count: grew("timed"),
        x: grew("polls"),
        xx: grew("polls_squared"),
        y: grew("ns"),
        yy: grew("squared") * SQUARE_NS * SQUARE_NS,
        xy: grew("polls_ns"),
    };
    (timed.x > 0.0).then(|| Work { turns: both.rate("/work/turns"), timed })
}

fn without_port(both: Between) -> BTreeMap<String, u64> {
    let each = |now: &Value| {
        let was = list(both.was, "begun").find(|o| o["to"] == now["to"]).unwrap_or(&Value::Null);
        let grew = Between { was, now, ..both }.grew("/without_port");
        (grew > 0).then(|| (text(now, "to"), grew))
    };
    list(both.now, "begun").filter(|b| number(b, "/without_port") > 0).filter_map(each).collect()
}

fn peer(group: &str, now: &Value, both: Between) -> Peer {
    let was = list(both.was, "peers").find(|o| o["id"] == now["id"]).unwrap_or(now);
    let both = Between { was, now, ..both };
    let exact = now["header_time_us"].as_u64().or_else(|| now["first_byte_time_us"].as_u64());
    Peer {
        group: group.to_owned(),
        server: text(now, "server"),
        state: text(now, "state"),
        reason: text(now, "reason"),
        requests: both.rate("/requests") + both.rate("/connections"),
        active: (number(now, "/active"), number(now, "/max_conns")),
        fails: both.grew("/fails"),
        header_us: exact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    /// A look at a server that has answered so many requests.
    fn look(at: Instant, requests: u64) -> Look {
        let peer = |id: u64| {
            json!({"id": id, "server": format!("10.0.0.{id}:80"), "state": "up", "active": 3, "requests": requests / 2,
                                    "fails": id, "header_time_us": 900})
        };
        let said = [
            ("nginx", json!({"pid": 12})),
            ("connections", json!({"accepted": requests, "active": 4, "idle": 6})),
            ("ironweir/totals", json!({"responses": {"total": requests, "5xx": 1}})),
            (
                "ironweir/time",
                json!({"requests": requests, "parts_us": {"own": requests * 10, "client": requests * 5},
                                     "log_writes": {"timed": requests / 10, "us": requests * 4}}),
            ),
            (
                "ironweir/threads",
                json!({"wake": {"sleep_ns": 5_000, "stretches": [[25_000, 6_000]]}, "threads": [{"id": 0, "tid": 9, "requests": requests, "running_ns": requests * 1_000_000,
                    "work": {"turns": requests * 17, "timed": requests, "polls": requests * 2, "polls_squared": requests * 5,
                             "ns": requests * 1_000, "polls_ns": requests * 3_000, "squared": requests * 200}}]}),
            ),
            (
                PORTS,
                json!({"begun": [{"to": "10.0.0.1:80", "begun": requests, "without_port": requests / 100}, {"to": "10.0.0.2:80", "without_port": 0}]}),
            ),
            (
                "http/upstreams",
                json!({"app": {"peers": [peer(1), peer(2)], "queue": {"size": 2, "overflows": requests}}}),
            ),
        ];
        Look { at, said: said.into_iter().collect() }
    }

    #[test]
    fn two_looks_make_rates() {
        let began = Instant::now();
        let serving = Serving::between(&look(began, 1000), &look(began + Duration::from_secs(2), 3000));
        assert_eq!((serving.pid, serving.answers, serving.errors, serving.timed), (12, 1000.0, 0.0, 2000));
        assert_eq!((serving.request_us(), serving.part_us("own"), serving.part_us("no")), (15.0, 10.0, 0.0));
        assert_eq!((serving.log_write_us, serving.connections), (40.0, (10, 0)));
        assert_eq!((serving.threads[0].running, serving.threads[0].requests), (1.0, 1000.0));
        assert_eq!(serving.wake, Some(Costs { sleep_ns: 5_000, stretches: vec![(25_000, 6_000)] }));
        let work = serving.threads[0].work.unwrap();
        assert_eq!((work.turns, work.timed.count, work.timed.x, work.timed.xx), (17_000.0, 2_000.0, 4_000.0, 10_000.0));
        assert_eq!((work.timed.y, work.timed.xy, work.timed.yy), (2e6, 6e6, 4e9));
        assert_eq!(
            (serving.peers[1].requests, serving.peers[1].fails, serving.peers[1].header_us),
            (500.0, 0, Some(900))
        );
        assert_eq!(serving.queues["app"], (2, 2000));
        assert_eq!(serving.without_port, [("10.0.0.1:80".to_owned(), 20)].into());
        assert_eq!(serving.connects_to, Some(vec!["10.0.0.1:80".to_owned(), "10.0.0.2:80".to_owned()]));
    }

    #[test]
    fn a_server_that_began_anew_has_no_negative_rates() {
        let began = Instant::now();
        let serving = Serving::between(&look(began, 1000), &look(began + Duration::from_secs(1), 10));
        assert_eq!((serving.answers, serving.timed, serving.request_us()), (0.0, 0, 0.0));
    }

    #[test]
    fn another_api_is_refused() {
        let said = Look::take(&|_| Ok(Some(json!({})))).map(|_| ());
        assert!(said.is_ok());
        assert!(Look::take(&|endpoint| Ok((endpoint != "ironweir/time").then(|| json!({})))).is_err());
        assert!(Look::take(&|_| Err(Failure::Silent("nobody".to_owned()))).is_err());
    }
}
