//! Metrics of groups and their peers.

use super::Page;
use crate::snapshot::Snapshot;
use crate::status::peers::{self, BOUNDS_MS};
use crate::status::{skew, ssl};
use crate::upstream::group::Group;
use crate::upstream::peer::{Peer, State};
use runtime::clock;
use std::sync::atomic::Ordering::Relaxed;

struct PeerFacts<'g> {
    group: &'g Group,
    peer: std::sync::Arc<Peer>,
    counted: peers::Counted,
}

impl PeerFacts<'_> {
    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("upstream", self.group.name.to_string()), ("server", self.peer.name.to_string())]
    }
}

/// The numbers that nginx's exporter has for states.
fn state_number(state: State) -> u8 {
    match state {
        State::Up => 1,
        State::Draining => 2,
        State::Down => 3,
        State::Unavail => 4,
        State::Checking => 5,
        State::Unhealthy => 6,
    }
}

/// What is said of a peer: end of the name, kind, help, number.
type PeerMetric = (&'static str, &'static str, &'static str, fn(&PeerFacts) -> u64);

const PEER_METRICS: &[PeerMetric] = &[
    ("state", "gauge", "1 up, 2 draining, 3 down, 4 unavail, 5 checking, 6 unhealthy.", |f| {
        u64::from(state_number(f.peer.state()))
    }),
    ("active", "gauge", "Connections in use.", |f| u64::from(f.peer.state.conns.load(Relaxed))),
    ("requests", "counter", "Requests, or connections of stream.", |f| f.counted.totals.requests),
    ("sent", "counter", "Bytes to the peer.", |f| f.counted.totals.sent),
    ("received", "counter", "Bytes from the peer.", |f| f.counted.totals.received),
    ("fails", "counter", "Tries that failed.", |f| f.counted.fails),
    ("unavail", "counter", "How often it was set aside.", |f| f.counted.unavail),
    ("health_checks_checks", "counter", "Health checks.", |f| f.peer.state.health.checks().checks),
    ("health_checks_fails", "counter", "Health checks that failed.", |f| f.peer.state.health.checks().fails),
    ("health_checks_unhealthy", "counter", "How often it became unhealthy.", |f| {
        f.peer.state.health.checks().unhealthy
    }),
    ("downtime_ms", "counter", "Time out of use, ms.", |f| f.peer.state.out().total_ms(clock::wall_ms())),
];

/// What is said of a group as a whole: end of the name, kind, help, number.
type GroupMetric = (&'static str, &'static str, &'static str, fn(&Group) -> Option<f64>);

const GROUP_METRICS: &[GroupMetric] = &[
    ("skew", "gauge", "Requests of the busiest peer over the mean of all, lately; 1 is even.", |g| {
        skew::lately(g).map(|hundredths| hundredths as f64 / 100.0)
    }),
    ("queue_size", "gauge", "Requests that wait for a peer.", |g| g.queue.as_ref().map(|q| q.queue.len() as f64)),
    ("queue_max_size", "gauge", "How many may.", |g| g.queue.as_ref().map(|q| q.most as f64)),
    ("queue_overflows_total", "counter", "Requests that could not even wait.", |g| {
        g.queue.as_ref().map(|q| q.queue.overflows() as f64)
    }),
];

/// What nginx's exporter says of a peer's handshakes: end of the name, help, what is counted.
const HANDSHAKES: [(&str, &str, ssl::Event); 3] = [
    ("handshakes", "Completed handshakes with the peer.", ssl::Event::Handshake),
    ("handshakes_failed", "Failed handshakes.", ssl::Event::Failed),
    ("session_reuses", "Handshakes that went on with an earlier session.", ssl::Event::Reuse),
];

/// Groups with a `zone`, as in the API.
pub(super) fn add(page: &mut Page, subsystem: &Snapshot, prefix: &str) {
    let groups: Vec<_> = subsystem.groups.iter().filter(|g| g.zone.is_some()).collect();
    for (what, kind, help, number) in GROUP_METRICS {
        let name = format!("ironweir_{}_{what}", prefix.trim_end_matches("_server"));
        page.each((&name, kind, help), &groups, |g| Some((vec![("upstream", g.name.to_string())], number(g)?)));
    }
    let all: Vec<PeerFacts> = groups
        .into_iter()
        .flat_map(|group| {
            let peers: Vec<_> = group.tiers_now().iter().flat_map(|t| &t.peers).cloned().collect();
            peers.into_iter().map(move |peer| PeerFacts { group, counted: peers::counted(&peer.state), peer })
        })
        .collect();
    for (what, kind, help, number) in PEER_METRICS {
        let name = format!("nginxplus_{prefix}_{what}");
        page.each((&name, kind, help), &all, |f| Some((f.labels(), number(f))));
    }
    let shaken: Vec<_> = all
        .iter()
        .map(|f| (f, ssl::Totals::of(&f.peer.state.shown.ssl)))
        .filter(|(_, handshakes)| !handshakes.is_empty())
        .collect();
    for (what, help, event) in HANDSHAKES {
        let name = format!("nginxplus_{prefix}_ssl_{what}");
        page.each((&name, "counter", help), &shaken, |(f, t)| Some((f.labels(), t.count(event))));
    }
    let name = format!("nginxplus_{prefix}_responses");
    let answers: Vec<_> = all
        .iter()
        .flat_map(|f| f.counted.totals.classes.into_iter().zip(1..).map(move |(n, class)| (f, class, n)))
        .collect();
    page.each((&name, "counter", "Answers by class."), &answers, |(f, class, n)| {
        let mut labels = f.labels();
        labels.push(("code", format!("{class}xx")));
        Some((labels, *n))
    });
    let timed: Vec<_> = all.iter().filter(|f| f.counted.times.iter().any(|n| *n > 0)).collect();
    if timed.is_empty() {
        return;
    }
    let name = format!("ironweir_{prefix}_response_seconds");
    page.metric(&name, "histogram", "Until the last byte of an answer.");
    for f in timed {
        let labels = f.labels();
        let labels: Vec<(&str, &str)> = labels.iter().map(|(n, v)| (*n, v.as_str())).collect();
        page.buckets(&name, &labels, &BOUNDS_MS, &f.counted.times, Some(f.counted.times_sum_ms));
    }
}
