//! What usually spoils a run, looked at before it: how the run is made, this machine's limits, one request to the target, and what the
//! target says of itself, if it is asked.

use crate::ask::{Answered, ask};
use crate::plan::{Address, Http, Load, Plan};
use crate::run::{interface, is_local, neighbour};
use crate::target_api::{Look, TargetApi};
use crate::transport::is_connected;
use machine::{own, shaping};
use std::time::Duration;

/// How long a closed connection keeps its port (TIME_WAIT), seconds. Fixed in Linux.
const TIME_WAIT_S: f64 = 60.0;

/// Fewer clients than this show how they are spread, not what the target carries.
const FEW_CLIENTS: usize = 5;
/// Source addresses that are tried before a run: the first ones.
const MOST_SOURCES: usize = 16;
/// How long a handshake from one of them may take.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Looks at the machine and asks the target once: what may spoil the run, and what helps.
pub(crate) fn check(plan: &Plan, api: Option<&TargetApi>) -> Vec<String> {
    let mut found = ports(plan);
    found.extend(descriptors(plan));
    found.extend(shared_cpus(plan));
    let without = ways_back(plan);
    // What is asked comes from the first address: without a way back there it would only be waited for.
    if without.is_empty() {
        found.extend(target(plan, api));
    } else {
        found.extend(shape(plan));
        found.extend(without);
    }
    found
}

/// How the run itself is made.
fn shape(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    let clients = plan.connections * plan.streams.max(1);
    if clients < FEW_CLIENTS {
        found.push(format!(
            "{clients} clients at a time are fewer than {FEW_CLIENTS}: they meet only some of a target's threads and of a balancer's servers, and a closed loop \
             shows their waiting more than what the target carries (-c)"
        ));
    }
    if let Some(length) = plan.duration.filter(|d| plan.total.is_none() && plan.timeout > *d) {
        found.push(format!(
            "the timeout ({:?}) is longer than the test ({length:?}): no answer can be late enough to count as one (--timeout, -d)",
            plan.timeout
        ));
    }
    found
}

/// Requests a second that are asked for; none: as fast as it goes.
fn wanted(plan: &Plan) -> Option<f64> {
    match &plan.load {
        Load::Open(s) => Some(s.count() as f64 * 1e9 / s.end_ns().max(1) as f64),
        Load::Closed => None,
    }
}

/// From each source address a bare handshake: an answer that does not come has no route back.
fn ways_back(plan: &Plan) -> Vec<String> {
    if plan.http == Http::Three {
        return Vec::new();
    }
    let tried = plan.sources.iter().take(MOST_SOURCES);
    let has_none = |source: &&std::net::IpAddr| {
        let alone = Plan { sources: vec![**source], ..plan.clone() };
        is_connected(&alone, HANDSHAKE) == Ok(false)
    };
    let without: Vec<String> = tried.filter(has_none).map(ToString::to_string).collect();
    if without.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "handshakes from {} get no answer: is there a route back to it on the target (ip route get {} there), and does rp_filter let it pass?",
        without.join(", "),
        without[0]
    )]
}

/// What is asked for takes more than the interface may send or receive.
fn bandwidth(plan: &Plan, answered: &Answered) -> Option<String> {
    let (rate, name) = (wanted(plan)?, interface(plan)?);
    let request = plan.requests.first().map_or(0, |r| r.bytes.len()) as f64;
    let bits = |bytes: f64| rate * bytes * 8.0;
    let (out, back) = (bits(request), bits(answered.bytes.unwrap_or(0) as f64));
    let shaped = shaping::limit(&name).map(|limit| (limit, "a token bucket (tc qdisc)"));
    let wire = own::speed(&name).filter(|_| own::is_physical(&name)).map(|speed| (speed, "the wire's speed"));
    // Both ways over loopback leave by it.
    let sent = if name == "lo" { out + back } else { out };
    let beyond =
        |(limit, what): (u64, &'static str), needed: f64| (needed > limit as f64).then_some((limit, what, needed));
    let least = shaped.and_then(|s| beyond(s, sent)).or_else(|| wire.and_then(|w| beyond(w, sent.max(back))));
    least.map(|(limit, what, needed)| {
        format!(
            "{rate:.0} requests a second take {:.1} Mbit/s, and {name} carries {:.1}: {what} is the limit, not the target",
            needed / 1e6,
            limit as f64 / 1e6
        )
    })
}

fn ports(plan: &Plan) -> Vec<String> {
    let (Address::Tcp(_), Some(range)) = (&plan.address, own::local_ports()) else { return Vec::new() };
    let mut found = Vec::new();
    let sources = plan.sources.len().max(1) as f64;
    let ports = f64::from(range) * sources;
    if plan.connections as f64 > ports {
        let more = if plan.sources.is_empty() {
            "there is one local address; more with --source"
        } else {
            "more with --source"
        };
        found.push(format!(
            "{} connections need as many local ports, there are {ports}: {more}, or a wider net.ipv4.ip_local_port_range",
            plan.connections
        ));
    }
    // UDP has no TIME_WAIT.
    if plan.close == Some(crate::options::Closing::Client) && plan.http != Http::Three {
        let reuse = own::time_wait_reuse().unwrap_or(0);
        let helps = reuse == 1 || (reuse == 2 && is_local(plan));
        let rate = ports / TIME_WAIT_S;
        if wanted(plan).unwrap_or(f64::INFINITY) > rate && !helps {
            found.push(format!(
                "connections closed by this side keep their ports for a minute: {ports} ports last for {rate:.0} connections \
                 a second (net.ipv4.tcp_tw_reuse is {reuse}); --close rst leaves none, or set tcp_tw_reuse to 1"
            ));
        }
    }
    found
}

fn descriptors(plan: &Plan) -> Option<String> {
    let needed = plan.connections as u64 + 64;
    let limit = own::raise_descriptor_limit(needed);
    (limit < needed).then(|| {
        format!(
            "{} connections need {needed} descriptors, the limit is {limit}: raise it with ulimit -n {needed} \
             (LimitNOFILE= in a unit, nofile in /etc/security/limits.conf)",
            plan.connections
        )
    })
}

fn shared_cpus(plan: &Plan) -> Option<String> {
    if !is_local(plan) {
        return None;
    }
    let Some(found) = neighbour(plan) else {
        return Some(
            "the target is on this machine: it shares its CPUs with the generator, unless both are pinned (taskset)"
                .to_owned(),
        );
    };
    let (name, pid, shared) = (found.name, found.pid, found.shared);
    (!shared.is_empty()).then(|| {
        format!(
            "the target ({name}, process {pid}) is on this machine and may run on the generator's CPUs ({shared}): each takes \
             from the other what is measured; keep them apart with taskset -c"
        )
    })
}

/// Asks once, and says what of the answer is not what a load test wants; before and after it the target's API, if there is one.
pub(crate) fn target(plan: &Plan, api: Option<&TargetApi>) -> Vec<String> {
    let mut found = shape(plan);
    let look = |found: &mut Vec<String>| -> Option<Look> {
        api?.look().map_err(|text| found.push(format!("the target's API: {text}"))).ok()
    };
    let before = look(&mut found);
    let answer = match ask(plan) {
        Ok(answer) => answer,
        Err(text) => {
            found.push(format!("one request before the run failed: {text}"));
            return found;
        }
    };
    if let Some(before) = before {
        // Health checks are counted over a while.
        std::thread::sleep(Look::APART);
        if let Some(after) = look(&mut found) {
            found.extend(before.says(&after, wanted(plan)));
        }
    }
    found.extend(bandwidth(plan, &answer));
    match answer.status {
        300..=399 => found.push(format!(
            "the target redirects ({}{}): the redirect is measured, not the page",
            answer.status,
            answer.location.map(|l| format!(" to {l}")).unwrap_or_default()
        )),
        400.. => found.push(format!("the target answers with status {}: an error page is measured", answer.status)),
        _ => {}
    }
    if answer.closes && plan.close.is_none() {
        found.push("the target closes the connection after its answer: handshakes are measured too".to_owned());
    }
    if answer.sets_cookie {
        found.push(
            "the target sets a cookie, which is not sent back: a balancer with session persistence takes each request for \
             a new client (send one with -H 'Cookie: ...')"
                .to_owned(),
        );
    }
    found
}
