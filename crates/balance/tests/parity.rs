//! The recorded choices of nginx (`nginx-choices.tsv`, made by `record.py`) and ours, try by try.

#![allow(clippy::unwrap_used)]

use balance::{Choice, FailurePolicy, Failures, Peers, Ring, Tried, Weights, ip_hash_key};

const RECORDED: &str = include_str!("nginx-choices.tsv");

struct Group {
    weights: Vec<u32>,
    failures: Vec<Failures>,
    policy: FailurePolicy,
}

impl Peers for Group {
    fn len(&self) -> usize {
        self.weights.len()
    }
    fn weight(&self, peer: usize) -> u32 {
        self.weights[peer]
    }
    fn conns(&self, _peer: usize) -> u32 {
        0
    }
    fn enabled(&self, _peer: usize) -> bool {
        true
    }
    fn failed(&self, peer: usize) -> bool {
        self.failures[peer].set_aside(self.policy, 100)
    }
}

#[test]
fn same_choices_as_nginx() {
    let mut current = String::new();
    let mut state = None;
    for (number, line) in RECORDED.lines().enumerate() {
        let [method, servers, max_fails, key, chosen] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("line {}: five columns", number + 1)
        };
        let name = format!("{method} {servers} {max_fails}");
        if name != current {
            current = name;
            state = Some(start(servers, max_fails.parse().unwrap()));
        }
        let (group, weights, ring) = state.as_mut().unwrap();
        let tries = chosen.split(',').filter(|word| !word.is_empty()).count();
        let mut tried = Tried::new();
        let mut ours = Vec::new();
        for _ in 0..tries {
            let peer = choose(method, key, ring, Choice::new(&*group, weights, &mut tried)).expect("a peer is left");
            group.failures[peer].failed(group.policy, 100);
            weights.failed(&*group, peer, group.policy.max_fails);
            ours.push(peer.to_string());
        }
        assert_eq!(ours.join(","), chosen, "line {}: {line}", number + 1);
    }
}

fn choose(method: &str, key: &str, ring: &Ring, mut choice: Choice<'_, Group>) -> Option<usize> {
    match method {
        "round_robin" => choice.round_robin(),
        "least_conn" => choice.least_conn(),
        "hash" => choice.hash(key.as_bytes()),
        "consistent" => choice.consistent_hash(ring, key.as_bytes()),
        "ip_hash" => {
            let mut buffer = [0; 16];
            let length = ip_hash_key(Some(&key.parse().unwrap()), &mut buffer);
            choice.ip_hash(&buffer[..length])
        }
        _ => panic!("unknown method {method}"),
    }
}

fn start(servers: &str, max_fails: u32) -> (Group, Weights, Ring) {
    let servers: Vec<(&str, u32)> = servers
        .split(',')
        .map(|server| server.rsplit_once('=').unwrap())
        .map(|(name, weight)| (name, weight.parse().unwrap()))
        .collect();
    let group = Group {
        weights: servers.iter().map(|server| server.1).collect(),
        failures: vec![Failures::default(); servers.len()],
        policy: FailurePolicy { max_fails, fail_timeout_s: 600 },
    };
    let weights = Weights::new(&group);
    let ring = Ring::new(servers.iter().map(|(name, weight)| (name.as_bytes(), *weight)));
    (group, weights, ring)
}
