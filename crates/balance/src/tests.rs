//! Sequences, distributions and invariants of all methods. Parity with nginx itself: tests/parity.rs.

use std::collections::HashSet;

use proptest::prelude::*;

use crate::fake::{Fake, group, sequence};
use crate::{Choice, FULL_RAMP, Inflight, Latency, Peers, Ranges, Ring, Tried, Weights, average, ip_hash_key};

fn round_robin(peers: &[Fake], weights: &mut Weights, count: usize) -> String {
    sequence(peers, weights, count, |choice, _| choice.round_robin())
}

#[test]
fn peers_that_stay_keep_their_turns() {
    let mut weights = Weights::new(&group(&[1, 1, 1])[..]);
    assert_eq!(sequence(&group(&[1, 1, 1]), &mut weights, 1, |c, _| c.round_robin()), "a");
    // A new one in front; a, b and c are b, c and d now, and c is next.
    let four = group(&[1, 1, 1, 1]);
    let mut weights = weights.moved(&four[..], |i| i.checked_sub(1));
    assert_eq!(sequence(&four, &mut weights, 4, |c, _| c.round_robin()), "cdab");
}

#[test]
fn smooth_sequences() {
    for (weights, expected) in [(&[5, 1, 1][..], "aabacaa"), (&[1, 1, 1], "abcabc"), (&[3, 2, 1], "abacba")] {
        let peers = group(weights);
        let mut state = Weights::new(&peers[..]);
        assert_eq!(round_robin(&peers, &mut state, expected.len()), expected);
        assert_eq!(round_robin(&peers, &mut state, expected.len()), expected, "and from the start again");
    }
}

#[test]
fn peers_that_cannot_be_used_are_left_out() {
    let mut peers = group(&[1, 1, 1, 1]);
    peers[0].up = false;
    peers[1].failed = true;
    peers[2].conns = 2;
    peers[2].max_conns = 2;
    let mut state = Weights::new(&peers[..]);
    assert_eq!(round_robin(&peers, &mut state, 3), "ddd");
    peers[3].draining = true;
    assert_eq!(round_robin(&peers, &mut state, 1), "-");
}

#[test]
fn a_failed_peer_wins_its_weight_back_turn_by_turn() {
    let peers = group(&[4, 4]);
    let mut state = Weights::new(&peers[..]);
    state.failed(&peers[..], 0, 1);
    assert_eq!(round_robin(&peers, &mut state, 4), "bbab");
    let later = round_robin(&peers, &mut state, 100);
    assert_eq!(later.matches('a').count(), 50);
}

#[test]
fn a_single_peer_is_used_though_it_failed_unless_down_or_full() {
    let mut peers = group(&[1]);
    peers[0].failed = true;
    let mut state = Weights::new(&peers[..]);
    assert_eq!(round_robin(&peers, &mut state, 2), "aa");
    assert_eq!(sequence(&peers, &mut state, 1, |choice, _| choice.least_conn()), "a");
    assert_eq!(sequence(&peers, &mut state, 1, |choice, _| choice.hash(b"key")), "a");
    peers[0].max_conns = 1;
    peers[0].conns = 1;
    assert_eq!(round_robin(&peers, &mut state, 1), "-");
}

#[test]
fn slow_start_gives_a_part_of_the_share() {
    let mut peers = group(&[1, 1]);
    peers[1].ramp = FULL_RAMP / 4;
    let mut state = Weights::new(&peers[..]);
    assert_eq!(round_robin(&peers, &mut state, 100).matches('b').count(), 20);
}

#[test]
fn sticky_round_robin_keeps_the_others_share() {
    let peers = group(&[1, 1, 1]);
    let mut state = Weights::new(&peers[..]);
    let chosen = sequence(&peers, &mut state, 6, |choice, request| match request % 3 {
        0 => choice.round_robin_sticky(0),
        _ => choice.round_robin(),
    });
    assert_eq!(chosen, "abcabc");
}

#[test]
fn a_draining_peer_takes_only_its_own_clients() {
    let mut peers = group(&[1, 1]);
    peers[0].draining = true;
    let mut state = Weights::new(&peers[..]);
    assert_eq!(sequence(&peers, &mut state, 1, |choice, _| choice.round_robin_sticky(0)), "a");
    assert_eq!(sequence(&peers, &mut state, 1, |choice, _| choice.sticky(0)), "a");
    assert_eq!(round_robin(&peers, &mut state, 2), "bb");
}

#[test]
fn least_conn_by_weight_and_in_turns_among_equals() {
    let mut peers = group(&[1, 2, 1]);
    let mut state = Weights::new(&peers[..]);
    (peers[0].conns, peers[1].conns, peers[2].conns) = (2, 3, 2);
    assert_eq!(sequence(&peers, &mut state, 2, |choice, _| choice.least_conn()), "bb");
    peers[1].conns = 4;
    assert_eq!(sequence(&peers, &mut state, 4, |choice, _| choice.least_conn()), "bacb");
}

#[test]
fn least_time_counts_time_and_connections() {
    let mut peers = group(&[1, 1, 1]);
    (peers[0].average_us, peers[1].average_us, peers[2].average_us) = (100_000, 30_000, 35_000);
    let mut state = Weights::new(&peers[..]);
    assert_eq!(sequence(&peers, &mut state, 4, |choice, _| choice.least_time()), "bcbc", "within 20 ms they are equal");
    (peers[1].conns, peers[2].conns) = (3, 2);
    assert_eq!(sequence(&peers, &mut state, 1, |choice, _| choice.least_time()), "a");
}

#[test]
fn estimates() {
    let latency = |average_us, idle_s| Latency { average_us, inflight_us: None, idle_s, fail_timeout_s: 10 };
    assert_eq!(latency(0, 0).estimate_us(0), 20_000);
    assert_eq!(latency(39_000, 10).estimate_us(1), 80_000);
    assert_eq!(latency(400_000, 22).estimate_us(0), 120_000, "two fail_timeouts: a quarter");
    assert_eq!(latency(400_000, u64::MAX).estimate_us(0), 20_000);
    assert_eq!(latency(9_000_000, 0).estimate_us(2), 15_000_000);
    assert_eq!(Latency { inflight_us: Some(70_000), ..latency(10_000, 0) }.estimate_us(0), 80_000);
    assert_eq!((average(0, 50), average(100, 200), average(100, 100)), (50, 105, 100));
}

#[test]
fn an_average_gets_where_its_samples_are() {
    let after = |from: u64, sample: u64| (0..400).fold(from, |a, _| average(a, sample));
    assert_eq!((after(10_000, 320), after(1, 320), after(10_000, 0)), (320, 320, 1));
}

#[test]
fn inflight_time() {
    let mut inflight = Inflight::default();
    assert_eq!(inflight.observe(5), None);
    inflight.begin(100);
    inflight.begin(110);
    assert_eq!(inflight.observe(120), Some(15), "20 us and 10 us so far");
    inflight.end(120, 20);
    assert_eq!((inflight.requests, inflight.spent_us), (1, 10));
    inflight.end(130, 20);
    assert_eq!(inflight.observe(140), None);
}

#[test]
fn hash_spreads_by_weight() {
    let peers = group(&[1, 2, 1]);
    let mut state = Weights::new(&peers[..]);
    let mut counts = [0u32; 3];
    for key in 0..8000 {
        let mut tried = Tried::new();
        let key = format!("/path/{key}");
        counts[Choice::new(&peers[..], &mut state, &mut tried).hash(key.as_bytes()).unwrap()] += 1;
    }
    assert!(counts[1].abs_diff(4000) < 400 && counts[0].abs_diff(2000) < 300, "{counts:?}");
}

#[test]
fn ip_hash_uses_the_network_of_ipv4() {
    let mut buffer = [0; 16];
    assert_eq!(ip_hash_key(Some(&"1.2.3.4".parse().unwrap()), &mut buffer), 3);
    assert_eq!(ip_hash_key(Some(&"::1".parse().unwrap()), &mut buffer), 16);
    assert_eq!(ip_hash_key(None, &mut buffer), 3);
    assert_eq!(buffer[..3], [0; 3]);
}

fn ring_of(names: &[&str]) -> Ring {
    Ring::new(names.iter().map(|name| (name.as_bytes(), 1)))
}

#[test]
fn only_the_keys_of_a_removed_server_move() {
    let names = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"];
    let (before, after) = (ring_of(&names), ring_of(&names[..3]));
    let (peers, fewer) = (group(&[1; 4]), group(&[1; 3]));
    let mut moved = 0;
    for key in 0..4000 {
        let key = format!("key{key}");
        let on = |ring: &Ring, peers: &[Fake]| {
            let mut tried = Tried::new();
            Choice::new(peers, &mut Weights::new(peers), &mut tried).consistent_hash(ring, key.as_bytes()).unwrap()
        };
        let (old, new) = (on(&before, &peers), on(&after, &fewer));
        assert!(old == new || old == 3, "{key} moved from {old} to {new}");
        moved += usize::from(old != new);
    }
    assert!((700..1300).contains(&moved), "{moved} of 4000");
}

#[test]
fn addresses_of_one_server_share_its_points() {
    let ring = ring_of(&["a.example", "b.example", "a.example"]);
    assert_eq!(ring.len(), 320);
    let peers = group(&[1, 1, 1]);
    let mut state = Weights::new(&peers[..]);
    let chosen = sequence(&peers, &mut state, 8, |choice, _| choice.consistent_hash(&ring, b"some key"));
    assert!(chosen == "acacacac" || chosen == "bbbbbbbb", "{chosen}");
}

/// Numbers that look random: a linear congruential generator (Knuth's MMIX constants).
fn numbers() -> impl FnMut() -> u64 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

#[test]
fn random_draws_by_weight() {
    let peers = group(&[1, 3, 1]);
    let ranges = Ranges::new(&peers[..]);
    let mut random = numbers();
    let mut state = Weights::new(&peers[..]);
    let chosen = sequence(&peers, &mut state, 5000, |choice, _| choice.random(&ranges, &mut random));
    assert!(chosen.matches('b').count().abs_diff(3000) < 200);
    assert!(chosen.matches('c').count().abs_diff(1000) < 150);
}

#[test]
fn random_two_avoids_the_busiest() {
    let mut peers = group(&[1, 1, 1]);
    peers[2].conns = 10;
    peers[2].average_us = 500_000;
    let ranges = Ranges::new(&peers[..]);
    let mut random = numbers();
    let mut state = Weights::new(&peers[..]);
    let chosen = sequence(&peers, &mut state, 500, |choice, request| match request % 2 {
        0 => choice.random_two_least_conn(&ranges, &mut random),
        _ => choice.random_two_least_time(&ranges, &mut random),
    });
    assert_eq!(chosen.matches('c').count(), 0);
}

const METHODS: usize = 8;

fn choose(method: usize, mut choice: Choice<'_, [Fake]>, key: &[u8], ring: &Ring, ranges: &Ranges) -> Option<usize> {
    let random = numbers();
    match method {
        0 => choice.round_robin(),
        1 => choice.least_conn(),
        2 => choice.least_time(),
        3 => choice.ip_hash(key),
        4 => choice.hash(key),
        5 => choice.consistent_hash(ring, key),
        6 => choice.random(ranges, random),
        _ => choice.random_two_least_conn(ranges, random),
    }
}

proptest! {
    /// Every method tries each peer that can be used once, no other, and then gives up.
    #[test]
    fn every_usable_peer_is_tried_once(
        states in prop::collection::vec((1u32..6, 0u32..4, 0u32..4, any::<bool>(), any::<bool>()), 0..40),
        key in prop::collection::vec(any::<u8>(), 0..20),
        method in 0..METHODS,
    ) {
        let mut peers = group(&vec![1; states.len()]);
        for (peer, (weight, conns, max_conns, up, failed)) in peers.iter_mut().zip(states) {
            (peer.weight, peer.conns, peer.max_conns, peer.up, peer.failed) = (weight, conns, max_conns, up, failed);
        }
        prop_assume!(peers.len() != 1);
        let names: Vec<String> = (0..peers.len()).map(|peer| format!("10.0.0.{peer}:80")).collect();
        let ring = Ring::new(names.iter().zip(&peers).map(|(name, peer)| (name.as_bytes(), peer.weight)));
        let ranges = Ranges::new(&peers[..]);
        let mut weights = Weights::new(&peers[..]);
        let mut tried = Tried::new();
        let mut seen = HashSet::new();
        while let Some(peer) =
            choose(method, Choice::new(&peers[..], &mut weights, &mut tried), &key, &ring, &ranges)
        {
            prop_assert!(peers[..].available(peer));
            prop_assert!(seen.insert(peer));
            prop_assert!(tried.contains(peer));
        }
        prop_assert_eq!(seen.len(), (0..peers.len()).filter(|peer| peers[..].available(*peer)).count());
    }
}
