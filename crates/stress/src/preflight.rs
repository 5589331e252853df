//! What usually spoils a run, looked at before it: this machine's limits, and one request to the target.

use crate::ask::ask;
use crate::plan::{Address, Http, Load, Plan};
use crate::run::{is_local, neighbour};
use machine::own;

/// How long a closed connection keeps its port (TIME_WAIT), seconds. Fixed in Linux.
const TIME_WAIT_S: f64 = 60.0;

/// Looks at the machine and asks the target once: what may spoil the run, and what helps.
pub(crate) fn check(plan: &Plan) -> Vec<String> {
    let mut found = ports(plan);
    found.extend(descriptors(plan));
    found.extend(shared_cpus(plan));
    found.extend(target(plan));
    found
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
        let wanted = match &plan.load {
            Load::Open(s) => s.count() as f64 * 1e9 / s.end_ns().max(1) as f64,
            Load::Closed => f64::INFINITY,
        };
        if wanted > rate && !helps {
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

/// Asks once, and says what of the answer is not what a load test wants.
pub(crate) fn target(plan: &Plan) -> Vec<String> {
    let answer = match ask(plan) {
        Ok(answer) => answer,
        Err(text) => return vec![format!("one request before the run failed: {text}")],
    };
    let mut found = Vec::new();
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
