//! How much more a server could carry: of each resource the part that is in use at the present rate; the one with the largest part ends
//! first. Pure.
//!
//! A thread with time to spare sleeps after nearly each event; one that is busy finds the next events there already. What sleeping and waking
//! costs it ([`waking`]) is not in the way of more requests, so it is not counted as used. The interrupts that wake it are on its CPU's bill and not on its
//! own: as much again at most (measured 3 to 4 us for each wake-up, perf/notes/2026-11-26-doctor.md).

mod waking;

use crate::facts::Facts;
use crate::serving::Serving;
use crate::text::number;
use serde::Serialize;
use std::fmt::Write;

/// Below this rate (requests a second) nothing can be said: what a server does at rest is not what requests cost.
const LEAST_RATE: f64 = 5.0;
/// No resource is used in such a measure that a greater headroom than this is believed.
const MOST_TIMES: f64 = 50.0;

/// A resource that grows with the rate of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resource {
    /// What it is, as in "then ...".
    pub name: String,
    /// The part in use, 0 to 1.
    pub used: f64,
    /// By which numbers.
    pub evidence: String,
}

/// What is left.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headroom {
    /// Requests a second now.
    pub rate: f64,
    /// So many more.
    pub more: f64,
    /// The resource that ends first.
    pub then: Resource,
}

/// What is left; none where nothing is served, or nothing is known of any resource.
pub fn headroom(facts: &Facts) -> Option<Headroom> {
    let rate = facts.serving.as_ref()?.answers;
    if rate < LEAST_RATE {
        return None;
    }
    let then = resources(facts).into_iter().max_by(|a, b| a.used.total_cmp(&b.used))?;
    let times = if then.used <= 0.0 { MOST_TIMES } else { (1.0 / then.used - 1.0).clamp(0.0, MOST_TIMES) };
    Some(Headroom { rate, more: rate * times, then })
}

fn resources(facts: &Facts) -> Vec<Resource> {
    let Some(s) = &facts.serving else { return Vec::new() };
    let m = &facts.machine;
    let mut found = cpus(facts, s);
    for now in &m.now.links {
        let Some((before, speed)) =
            m.before.links.iter().find(|b| b.name == now.name).zip(now.speed.filter(|s| *s > 0))
        else {
            continue;
        };
        let added = now.counts.since(&before.counts);
        let bits = added.rx_bytes.max(added.tx_bytes) as f64 * 8.0 / m.seconds.max(1e-3);
        let evidence = format!("{:.0} of {:.0} Mbit/s", bits / 1e6, speed as f64 / 1e6);
        found.push(Resource { name: format!("the interface {}", now.name), used: bits / speed as f64, evidence });
    }
    let busiest = s
        .peers
        .iter()
        .filter(|p| p.active.1 > 0)
        .max_by(|a, b| (a.active.0 * b.active.1).cmp(&(b.active.0 * a.active.1)));
    if let Some(p) = busiest {
        let evidence = format!("{} of {}", number(p.active.0), number(p.active.1));
        found.push(Resource {
            name: format!("max_conns of {} in \"{}\"", p.server, p.group),
            used: p.active.0 as f64 / p.active.1 as f64,
            evidence,
        });
    }
    found.extend(connections(s));
    found.extend(descriptors(facts, s));
    found.extend(local_ports(facts, s));
    found
}

/// Fewer in use say nothing of how they grow with the rate: a server has some that are there for hours.
const FEWEST: u64 = 64;

/// Idle connections make room for new ones; those with a request do not.
fn connections(s: &Serving) -> Option<Resource> {
    let (used, limit) = (s.active, s.connections.1);
    if limit == 0 || used < FEWEST {
        return None;
    }
    let evidence = format!("{} of {}", number(used), number(limit));
    Some(Resource { name: "worker_connections".to_owned(), used: used as f64 / limit as f64, evidence })
}

/// The same for descriptors: what idle connections have can be had.
fn descriptors(facts: &Facts, s: &Serving) -> Option<Resource> {
    let p = facts.machine.processes.iter().find(|p| p.pid == s.pid)?;
    let (all, limit) = (p.descriptors?, p.descriptor_limit?);
    let used = all.saturating_sub(s.connections.0.saturating_sub(s.active));
    if limit == 0 || used < FEWEST {
        return None;
    }
    let evidence = format!("{} of {}", number(used), number(limit));
    Some(Resource {
        name: "the descriptors of the worker process".to_owned(),
        used: used as f64 / limit as f64,
        evidence,
    })
}

/// Ports of connections to a peer, with those in TIME_WAIT: a minute of connections that were closed.
fn local_ports(facts: &Facts, s: &Serving) -> Option<Resource> {
    let count = crate::rules::ports::range(facts).map(|r| r.usable).filter(|count| *count > 0)?;
    let is_begun = |to: &str| s.connects_to.iter().flatten().any(|own| own == to);
    let is_peer = |to: &str| is_begun(to) || s.peers.iter().any(|p| p.server == to);
    let all = facts.machine.sockets.destinations.iter().filter(|d| d.total >= FEWEST && is_peer(&d.to));
    let d = all.max_by_key(|d| d.total)?;
    let evidence = format!("{} of {}, {} of them in TIME_WAIT", number(d.total), number(count), number(d.time_wait));
    let name = format!("the local ports for connections to {}", d.to);
    Some(Resource { name, used: d.total as f64 / count as f64, evidence })
}

/// The threads' own time, and that of the CPUs that they may run on, of which others have their part.
fn cpus(facts: &Facts, s: &Serving) -> Vec<Resource> {
    let m = &facts.machine;
    let mut found = Vec::new();
    let mut allowed: Vec<usize> = s.threads.iter().flat_map(|t| t.cpus.iter().copied()).collect();
    allowed.sort_unstable();
    allowed.dedup();
    let is_bound =
        !allowed.is_empty() && s.threads.iter().all(|t| !t.cpus.is_empty()) && allowed.len() < m.now.cpus.len();
    let mut waking = 0.0;
    let running: f64 = s.threads.iter().map(|t| t.running).sum();
    if !s.threads.is_empty() {
        let count = s.threads.len() as f64;
        let group = m.processes.iter().find(|p| p.pid == s.pid).and_then(|p| p.cgroup.as_ref()).or(m.cgroup.as_ref());
        let cpus = if is_bound { allowed.len() as f64 } else { f64::from(m.cpus.max(1)) };
        let cpus = group.and_then(|c| c.cpus).unwrap_or(f64::MAX).min(cpus).min(count);
        let switches: f64 = s.threads.iter().map(|t| t.switches).sum();
        // A group that may use no more than it does has no time to spare, however often it sleeps.
        let is_full = running >= cpus;
        waking =
            if is_full { 0.0 } else { s.threads.iter().map(|t| waking::waking(t, &m.wake, s.wake.as_ref())).sum() };
        let mut evidence = format!("{running:.2} of {cpus:.1} CPUs");
        if waking >= 0.005 {
            let _ = write!(evidence, ", {waking:.2} of it for waking up {} times a second", number(switches as u64));
        }
        let used = (running - waking) / cpus;
        found.push(Resource { name: "the CPU time of worker threads".to_owned(), used, evidence });
    }
    let spent = |before: (u64, u64), now: (u64, u64)| (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
    let (name, count, (busy, all)) = if is_bound {
        let of = |n: usize| Some(spent(*m.before.cpus.get(n)?, *m.now.cpus.get(n)?));
        let sum = allowed.iter().filter_map(|&n| of(n)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        ("the CPUs that worker threads are bound to", allowed.len() as f64, sum)
    } else {
        ("all CPUs of the machine", f64::from(m.cpus.max(1)), spent(m.before.cpu, m.now.cpu))
    };
    if all > 0 {
        let used = busy as f64 / all as f64;
        let evidence = format!("{:.0} %", used * 100.0);
        let interrupts = (used * count - running).clamp(0.0, waking);
        let used = (used - (waking + interrupts) / count).max(0.0);
        // Before the threads' own time: where both are the same, it is that which is named.
        found.insert(0, Resource { name: name.to_owned(), used, evidence });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::{Peer, Thread};

    fn facts(running: f64) -> Facts {
        let mut facts = Facts::default();
        facts.machine.cpus = 4;
        let threads = vec![Thread { running, ..Thread::default() }; 2];
        facts.serving = Some(Serving { answers: 1_000.0, threads, ..Serving::default() });
        facts
    }

    #[test]
    fn the_fullest_resource_ends_first() {
        let found = headroom(&facts(0.25)).unwrap();
        assert_eq!(
            (found.rate, found.more, found.then.name.as_str()),
            (1000.0, 3000.0, "the CPU time of worker threads")
        );
        let mut woken = facts(0.25);
        woken.machine.wake.sleep_ns = 5_000;
        woken.serving.as_mut().unwrap().threads.iter_mut().for_each(|t| t.switches = 10_000.0);
        let found = headroom(&woken).unwrap();
        assert!((found.more - 4_000.0).abs() < 1e-6, "{found:?}");
        assert_eq!(found.then.evidence, "0.50 of 2.0 CPUs, 0.10 of it for waking up 20,000 times a second");
        let mut limited = facts(0.25);
        limited.machine.cgroup = Some(machine::cgroup::Cgroup { cpus: Some(0.5), ..Default::default() });
        assert_eq!(headroom(&limited).unwrap().more, 0.0, "its group may not use more");
        let mut peers = facts(0.25);
        let peer = Peer { active: (8, 10), server: "a:1".into(), group: "g".into(), ..Peer::default() };
        peers.serving.as_mut().unwrap().peers = vec![peer];
        let found = headroom(&peers).unwrap();
        assert!((found.more - 250.0).abs() < 1e-6 && found.then.name == "max_conns of a:1 in \"g\"", "{found:?}");
    }

    #[test]
    fn threads_that_are_bound_have_their_own_cpus_and_no_others() {
        let mut bound = facts(0.25);
        bound.machine.before.cpus = vec![(0, 0); 4];
        // The load, on other CPUs of the same machine, is not in the way.
        bound.machine.now.cpus = vec![(30, 100), (20, 100), (100, 100), (100, 100)];
        (bound.machine.before.cpu, bound.machine.now.cpu) = ((0, 0), (250, 400));
        let shared = headroom(&bound).unwrap();
        assert_eq!((shared.then.name.as_str(), shared.more.round()), ("all CPUs of the machine", 600.0));
        for (n, thread) in bound.serving.as_mut().unwrap().threads.iter_mut().enumerate() {
            thread.cpus = vec![n];
        }
        assert_eq!(headroom(&bound).unwrap().more.round(), 3_000.0, "a quarter of two CPUs");
        bound.machine.now.cpus[0].0 = 80;
        let taken = headroom(&bound).unwrap();
        assert_eq!(
            (taken.then.name.as_str(), taken.more.round()),
            ("the CPUs that worker threads are bound to", 1_000.0)
        );
    }

    #[test]
    fn interrupts_that_wake_threads_are_not_in_the_way_and_others_work_is() {
        let at = |busy: u64| {
            let mut half = facts(0.3);
            half.machine.cpus = 2;
            half.machine.wake.sleep_ns = 5_000;
            half.serving.as_mut().unwrap().threads.iter_mut().for_each(|t| t.switches = 10_000.0);
            (half.machine.before.cpu, half.machine.now.cpu) = ((0, 0), (busy, 200));
            headroom(&half).unwrap()
        };
        // Two CPUs: the threads run 0.6 of them, 0.1 of it for waking up; interrupts take 0.06.
        assert!((at(66).more - 3_000.0).abs() < 1.0, "{:?}", at(66));
        let taken = at(120);
        assert_eq!((taken.then.name.as_str(), taken.more.round()), ("all CPUs of the machine", 1_000.0));
    }

    #[test]
    fn what_connections_take_ends_too() {
        let with = |change: &dyn Fn(&mut Facts)| {
            let mut facts = facts(0.25);
            change(&mut facts);
            let found = headroom(&facts).unwrap();
            (found.then.name, found.more.round(), found.then.evidence)
        };
        let connections = |f: &mut Facts| {
            let s = f.serving.as_mut().unwrap();
            (s.connections, s.active) = ((900, 1_000), 500);
        };
        assert_eq!(with(&connections), ("worker_connections".into(), 1_000.0, "500 of 1,000".into()));
        let descriptors = |f: &mut Facts| {
            let s = f.serving.as_mut().unwrap();
            (s.pid, s.connections, s.active) = (7, (400, 100_000), 100);
            let process = machine::processes::Process {
                pid: 7,
                descriptors: Some(1_100),
                descriptor_limit: Some(1_000),
                ..Default::default()
            };
            f.machine.processes = vec![process];
        };
        assert_eq!(with(&descriptors).0, "the descriptors of the worker process");
        let ports = |f: &mut Facts| {
            f.machine.settings.insert("net.ipv4.ip_local_port_range".into(), "10000 10999".into());
            f.serving.as_mut().unwrap().peers = vec![Peer { server: "10.0.0.1:80".into(), ..Peer::default() }];
            let d = machine::sockets::Destination {
                to: "10.0.0.1:80".into(),
                total: 500,
                time_wait: 490,
                ..Default::default()
            };
            f.machine.sockets.destinations = vec![d];
        };
        let (name, more, evidence) = with(&ports);
        assert_eq!(name, "the local ports for connections to 10.0.0.1:80");
        assert_eq!((more, evidence.as_str()), (1_000.0, "500 of 1,000, 490 of them in TIME_WAIT"));
    }

    #[test]
    fn nothing_is_said_of_a_server_at_rest() {
        assert_eq!(headroom(&Facts::default()), None);
        let mut rest = facts(0.5);
        rest.serving.as_mut().unwrap().answers = 1.0;
        assert_eq!(headroom(&rest), None);
        assert_eq!(headroom(&facts(0.0)).unwrap().more, 50_000.0);
    }
}
