//! Channels in a Redis Cluster: whole servers against real nodes of Debian's redis-server, of which one dies, and whose slots move.

use crate::harness::{Port, Server, wait};
use crate::push_redis::{Events, Redis, node, node_with, post};
use std::process::Command;
use std::time::Duration;

/// A cluster of its own.
struct Cluster {
    nodes: Vec<Redis>,
    /// Of the bus, which is not where Redis would look for it.
    _bus: Vec<Port>,
}

impl Cluster {
    /// Three masters, and as many replicas for each. None, said aloud: Redis or its tools are not installed.
    fn start(replicas: usize) -> Option<Cluster> {
        let bus: Vec<Port> = (0..3 + 3 * replicas).map(|_| Port::reserve()).collect();
        let mut nodes = Vec::new();
        for port in &bus {
            let port = port.number.to_string();
            let words = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", &port];
            nodes.push(Redis::start(&words)?);
        }
        let cluster = Cluster { nodes, _bus: bus };
        let mut words = vec!["--cluster".to_owned(), "create".to_owned()];
        words.extend(cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port.number)));
        words.extend(["--cluster-replicas".to_owned(), replicas.to_string(), "--cluster-yes".to_owned()]);
        if Command::new("redis-cli").arg("--version").output().is_err() {
            println!("redis-cli is not installed: left out");
            return None;
        }
        let made = cli(&words);
        assert!(made.contains("All 16384 slots covered"), "{made}");
        assert!(wait(|| cluster
            .nodes
            .iter()
            .all(|node| says(node, &["cluster", "info"]).contains("cluster_state:ok"))));
        Some(cluster)
    }

    /// The number of the node that has a topic's channel.
    fn owner(&self, topic: &str) -> usize {
        let key = format!("ironweir:{{/{topic}}}");
        let slot: u32 = says(&self.nodes[0], &["cluster", "keyslot", &key]).trim().parse().unwrap();
        let map = says(&self.nodes[0], &["cluster", "nodes"]);
        let line = map.lines().find(|line| {
            line.contains("master")
                && line.split(' ').skip(8).any(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(f), Ok(l)) if (f..=l).contains(&slot))
                })
        });
        let address = line.unwrap().split(' ').nth(1).unwrap().split('@').next().unwrap();
        self.nodes.iter().position(|node| address == format!("127.0.0.1:{}", node.port.number)).unwrap()
    }

    fn id(&self, node: usize) -> String {
        says(&self.nodes[node], &["cluster", "myid"]).trim().to_owned()
    }
}

fn cli(words: &[impl AsRef<str>]) -> String {
    let output = Command::new("redis-cli").args(words.iter().map(AsRef::as_ref)).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn says(node: &Redis, words: &[&str]) -> String {
    let port = node.port.number.to_string();
    cli(&[&["-p", &port][..], words].concat())
}

/// Topics that are spread over all masters.
const TOPICS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn until_all_connected(server: &Server) {
    assert!(wait(|| server.error_log().matches("connected to Redis").count() >= 3), "{}", server.error_log());
}

#[test]
fn what_one_publishes_all_hear_by_a_cluster() {
    let Some(cluster) = Cluster::start(0) else { return };
    let owners: std::collections::HashSet<usize> = TOPICS.iter().map(|topic| cluster.owner(topic)).collect();
    assert_eq!(owners.len(), 3, "the topics are to be spread");
    // Each server knows another node.
    let (a, b) = (node(cluster.nodes[0].port.number), node(cluster.nodes[1].port.number));
    let mut events: Vec<Events> = TOPICS.iter().map(|topic| Events::open(&b, &format!("/sub/{topic}"))).collect();
    for topic in TOPICS {
        assert_eq!(post(&a, topic, &format!("{topic} first")).0, 201);
    }
    until_all_connected(&a);
    for n in 0..20 {
        for topic in TOPICS {
            assert_eq!(post(if n % 2 == 0 { &a } else { &b }, topic, &format!("{topic} {n}")).0, 201);
        }
    }
    for (topic, events) in TOPICS.iter().zip(&mut events) {
        assert_eq!(events.data(), format!("{topic} first"));
        (0..20).for_each(|n| assert_eq!(events.data(), format!("{topic} {n}")));
    }
    // The buffer of a channel is the same at both.
    assert!(a.get("/pub/c").text().contains("queued messages: 20\r\n"));
    assert_eq!(a.get("/sub/c").text(), "c 0");
    // What is not there is not made by being asked for.
    assert_eq!(a.get("/pub/nobody").status, 404);
    let mut client = a.connect();
    client.send("DELETE /pub/nobody HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 404);
    client.send("DELETE /pub/a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
    while events[0].line() != ":410: 410 Gone" {}
    assert!(wait(|| b.get("/pub/a").status == 404));
}

/// The slot of a channel moves from one node to another, step by step, while messages are published to it: none is lost, none comes twice.
#[test]
fn a_slot_moves_while_messages_are_published() {
    let Some(cluster) = Cluster::start(0) else { return };
    let more = "nchan_redis_cluster_check_interval_min 100ms;";
    let start = || node_with(cluster.nodes[0].port.number, more, "nchan_redis_pass there;");
    let (a, b) = (start(), start());
    let (topic, key) = (TOPICS[0], format!("ironweir:{{/{}}}", TOPICS[0]));
    let mut events = Events::open(&b, &format!("/sub/{topic}"));
    let mut sent = 0;
    let mut publish = |count: usize| {
        for number in sent..sent + count {
            // Nobody is known to have heard it while the slot moves; it is there all the same.
            let status = post(&a, topic, &format!("m{number}")).0;
            assert!([201, 202].contains(&status), "{status} for m{number}: {}", a.error_log());
        }
        sent += count;
    };
    publish(3);
    let from = cluster.owner(topic);
    let to = (from + 1) % 3;
    let slot = says(&cluster.nodes[0], &["cluster", "keyslot", &key]).trim().to_owned();
    let (from_id, to_id) = (cluster.id(from), cluster.id(to));
    let ok = |node: usize, words: &[&str]| assert_eq!(says(&cluster.nodes[node], words).trim(), "OK", "{words:?}");
    ok(to, &["cluster", "setslot", &slot, "importing", &from_id]);
    ok(from, &["cluster", "setslot", &slot, "migrating", &to_id]);
    publish(3);
    let port = cluster.nodes[to].port.number.to_string();
    ok(from, &["migrate", "127.0.0.1", &port, &key, "0", "5000"]);
    // The node that has the slot sends whoever asks for the key to the other one.
    publish(3);
    ok(to, &["cluster", "setslot", &slot, "node", &to_id]);
    publish(3);
    ok(from, &["cluster", "setslot", &slot, "node", &to_id]);
    publish(20);
    assert_eq!(cluster.owner(topic), to, "it has moved");
    for number in 0..32 {
        assert_eq!(events.data(), format!("m{number}"), "{}", b.error_log());
    }
    // And it is followed there.
    assert!(wait(|| says(&cluster.nodes[to], &["pubsub", "numsub", &key]).contains('1')));
    assert!(wait(|| post(&a, topic, "heard").0 == 201));
}

/// A master dies, its replica takes its place. No subscriber is dropped; what was published before is there, what is published after comes.
#[test]
fn a_master_dies_and_its_replica_goes_on() {
    let Some(mut cluster) = Cluster::start(1) else { return };
    let topic = TOPICS[0];
    let dead = cluster.owner(topic);
    let entry = (0..3).find(|n| *n != dead).unwrap();
    let more = "nchan_redis_cluster_check_interval_min 200ms;";
    let port = cluster.nodes[entry].port.number;
    let start = || node_with(port, more, "nchan_redis_pass there;");
    let (a, b) = (start(), start());
    let mut events: Vec<Events> = TOPICS.iter().map(|topic| Events::open(&b, &format!("/sub/{topic}"))).collect();
    for topic in TOPICS {
        assert_eq!(post(&a, topic, &format!("{topic} before")).0, 201);
    }
    assert!(wait(|| is_replicated(&cluster.nodes[dead])));
    cluster.nodes[dead].kill();
    // Channels of others go on meanwhile.
    let other = TOPICS.iter().find(|topic| is_elsewhere(&cluster, topic, entry, dead)).unwrap();
    assert_eq!(post(&a, other, &format!("{other} meanwhile")).0, 201);
    let began = std::time::Instant::now();
    let mut said = 0;
    // 202: it is there, and the subscriber is on its way back. Published again and again meanwhile it would push out what was there before.
    while ![201, 202].contains(&said) {
        said = post(&a, topic, &format!("{topic} after")).0;
        assert!(began.elapsed() < Duration::from_secs(60), "{}", a.error_log());
    }
    for (topic, events) in TOPICS.iter().zip(&mut events) {
        assert_eq!(events.data(), format!("{topic} before"));
    }
    assert_eq!(events[0].data(), format!("{topic} after"));
    let position = TOPICS.iter().position(|topic| topic == other).unwrap();
    assert_eq!(events[position].data(), format!("{other} meanwhile"));
    // Who comes anew finds both.
    let c = start();
    let mut late = Events::open(&c, &format!("/sub/{topic}"));
    assert_eq!((late.data(), late.data()), (format!("{topic} before"), format!("{topic} after")));
}

/// Whether the replica has said that it has all that its master has. (`WAIT` speaks of what its own connection has written only.)
fn is_replicated(master: &Redis) -> bool {
    let said = says(master, &["info", "replication"]);
    let number = |line: &str, name: &str| {
        let line = said.lines().find(|l| l.starts_with(line))?;
        let digits = line.split_once(name)?.1;
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let (has, all) = (number("slave0:", "offset="), number("master_repl_offset:", ":"));
    all.is_some() && has == all
}

/// Whether a topic's channel is not at the node that is dead; one that is alive says so.
fn is_elsewhere(cluster: &Cluster, topic: &str, alive: usize, dead: usize) -> bool {
    let key = format!("ironweir:{{/{topic}}}");
    let said = says(&cluster.nodes[alive], &["xlen", &key]);
    !said.contains(&format!(":{}", cluster.nodes[dead].port.number))
}
