//! What an Ironweir says of itself: which of its resources are used up, and what its requests wait for.

use super::percent;
use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};
use crate::serving::{Peer, Serving};
use crate::text::{microseconds, number};

/// Threads that run so much of the time have none left for more requests.
const BUSY: f64 = 0.9;
/// A thread that is ready and waits for a CPU so much of the time has less of one than it wants.
const WAITS: f64 = 0.3;
/// Fewer requests between two looks say nothing about where time goes.
const ENOUGH: u64 = 20;
/// A part of a request's time that dominates it.
const MOST: f64 = 0.5;
/// A wait for others that is shorter than this is nobody's trouble, microseconds.
const LONG_US: f64 = 100_000.0;
/// The same for waits that should not be there at all (for a place in a queue).
const NOTICEABLE_US: f64 = 2_000.0;
/// A write to a log that takes so long holds its thread up, microseconds.
const SLOW_WRITE_US: f64 = 5_000.0;
/// Less of the time, and it was chance that a write had to wait.
const HELD: f64 = 0.05;
/// A key that signs so few handshakes a second, with its thread busy, is what the thread is busy with.
const HANDSHAKES_AT_LEAST: f64 = 20.0;
/// Requests of a handshake: with fewer, handshakes weigh more than what they are made for.
const REQUESTS_OF_A_HANDSHAKE: f64 = 3.0;
/// A server that answers so many requests with 5xx has a fault that is not of speed.
const ERRORS: f64 = 0.05;
/// Connections beyond this part of what may be.
const NEAR: f64 = 0.9;

/// All of them; none if no server was asked.
pub(super) fn rules(facts: &Facts) -> Vec<Finding> {
    facts.serving.iter().chain(&facts.others).flat_map(|s| of(facts, s)).collect()
}

fn of(facts: &Facts, s: &Serving) -> Vec<Finding> {
    [stuck(s), cpu(facts, s), connections(s), log(s)]
        .into_iter()
        .flatten()
        .chain(queues(s))
        .chain(peers(s))
        .chain(waits(s))
        .chain(errors(s))
        .collect()
}

const API: &str = "/api/9/ironweir";

/// A thread does nothing while others work.
fn stuck(s: &Serving) -> Option<Finding> {
    let idle = |t: &&crate::serving::Thread| t.running + t.waiting < 1e-4 && t.requests < 1e-9 && t.connections > 0;
    let works = s.threads.iter().any(|t| t.requests >= 10.0);
    let t = s.threads.iter().find(idle).filter(|_| works)?;
    let what = format!("Worker thread {} stands still with {} connections.", t.number, number(t.connections));
    let finding = Finding::new("thread-stuck", Weight::Critical, what)
        .seen("no CPU time and no request between the looks, while other threads answer", format!("{API}/threads"))
        .because("It was stopped (a debugger, a frozen group) or waits in the kernel, mostly for a disk. Its listening sockets still get their share of new connections.")
        .cure("cat /proc/PID/task/*/stat (T: stopped, D: waits for a disk), kill -CONT PID; then restart it");
    Some(finding.sure(Sure::Likely))
}

/// The worker threads have no time left.
fn cpu(facts: &Facts, s: &Serving) -> Option<Finding> {
    let count = s.threads.len();
    if count == 0 {
        return None;
    }
    let of = |part: fn(&crate::serving::Thread) -> f64| s.threads.iter().map(part).sum::<f64>() / count as f64;
    let (running, waiting) = (of(|t| t.running), of(|t| t.waiting));
    let busiest = s.threads.iter().map(|t| t.running).fold(0.0, f64::max);
    let evidence = |finding: Finding| {
        finding
            .seen(
                format!(
                    "{count} threads run {} and wait for a CPU {} of the time; the busiest runs {}",
                    percent(running),
                    percent(waiting),
                    percent(busiest)
                ),
                format!("{API}/threads"),
            )
            .seen(
                format!("{} requests/s, {} handshakes/s", number(s.answers as u64), number(s.handshakes as u64)),
                format!("{API}/totals"),
            )
    };
    if running + waiting < BUSY && busiest < BUSY {
        return None;
    }
    if s.handshakes >= HANDSHAKES_AT_LEAST && s.answers <= s.handshakes * REQUESTS_OF_A_HANDSHAKE {
        let finding = Finding::new(
            "handshakes",
            Weight::Warning,
            format!("The worker threads are busy with TLS handshakes: {} a second.", number(s.handshakes as u64)),
        );
        let each = running * count as f64 / s.handshakes * 1e6;
        let finding = evidence(finding)
            .seen(format!("{} of CPU for each", microseconds(each)), "both together")
            .because("A handshake costs a signature with the private key: RSA-4096 takes ten times an RSA-2048, and sixty times an ECDSA P-256 key.")
            .cure("a certificate with an ECDSA P-256 key (a second ssl_certificate beside the RSA one serves old clients)")
            .cure("ssl_session_cache shared:SSL:50m; ssl_session_tickets on; keepalive_timeout longer, so that clients come back without one");
        return Some(finding.sure(Sure::Likely));
    }
    if waiting >= WAITS {
        let finding = Finding::new(
            "workers-starved",
            Weight::Warning,
            format!(
                "The worker threads want {} of a CPU each and get {}.",
                percent(running + waiting),
                percent(running)
            ),
        );
        let finding = evidence(finding)
            .because("What is ready and does not run answers late. Other programs take the CPUs, or a group's limit withholds them.")
            .cure("top says who takes them; cpu.max (CPUQuota=) of the unit; no more worker_processes than CPUs");
        return Some(finding);
    }
    let (weight, what) = match busiest >= BUSY && running < BUSY * 0.7 && count > 1 {
        true => (Weight::Warning, "One worker thread is at its limit, the others are not.".to_owned()),
        false => (
            Weight::Warning,
            format!("The worker threads are at their limit: they run {} of the time.", percent(running)),
        ),
    };
    let mut finding =
        evidence(Finding::new("workers-cpu", weight, what)).because("More requests than now wait in queues.");
    if facts.machine.cpus as usize > count {
        finding = finding.cure(format!("worker_processes auto; the machine has {} CPUs", facts.machine.cpus));
    }
    finding = finding.cure("less work for each request (gzip_comp_level, regular expressions, logs), or more machines");
    Some(finding)
}

/// As many connections as there may be.
fn connections(s: &Serving) -> Option<Finding> {
    let (used, limit) = s.connections;
    if limit == 0 || (used as f64) < limit as f64 * NEAR {
        return None;
    }
    let finding = Finding::new(
        "connections-limit",
        Weight::Warning,
        format!("{} of {} connections are in use.", number(used), number(limit)),
    )
    .seen(format!("{used} of {limit}"), "/api/9/connections, worker_connections")
    .because("At the limit an idle connection is closed for each new one, and when none is idle, new ones wait.")
    .cure(format!("events {{ worker_connections {}; }}", limit.saturating_mul(2)));
    Some(finding)
}

/// Log lines hold threads up.
fn log(s: &Serving) -> Option<Finding> {
    if s.log_write_us < SLOW_WRITE_US || s.log_held < HELD {
        return None;
    }
    let finding = Finding::new(
        "log-write",
        Weight::Warning,
        format!("A write to an access log takes {}.", microseconds(s.log_write_us)),
    )
    .seen(
        format!(
            "{} on average; threads were held by them {} of the time",
            microseconds(s.log_write_us),
            percent(s.log_held)
        ),
        format!("{API}/time, log_writes"),
    )
    .because("A thread that writes serves nobody meanwhile: all of its connections wait as long.")
    .cure("access_log ... buffer=64k flush=1s; a log on a faster disk, or access_log syslog:server=...");
    Some(finding)
}

/// Requests wait for a peer with room.
fn queues(s: &Serving) -> Vec<Finding> {
    let held = s
        .queues
        .iter()
        .filter(|(_, (size, overflows))| *overflows > 0 || *size > 0 && s.part_us("queue") >= NOTICEABLE_US);
    held.map(|(group, (size, overflows))| {
        let weight = if *overflows > 0 { Weight::Critical } else { Weight::Warning };
        Finding::new("upstream-queue", weight, format!("Requests wait for a peer of upstream \"{group}\" with room."))
            .seen(format!("{} wait now, {} found no place", number(*size), number(*overflows)), "/api/9/http/upstreams, queue")
            .seen(format!("{} of each request on average", microseconds(s.part_us("queue"))), format!("{API}/time, queue"))
            .because("All peers have as many connections as max_conns lets them have. The queue hides that, up to its length and timeout.")
            .cure(format!("more peers in \"{group}\", or a larger max_conns if they carry it (ironweir redline)"))
    })
    .collect()
}

/// Peers that take no requests, or fail.
fn peers(s: &Serving) -> Vec<Finding> {
    let mut found = Vec::new();
    let groups: std::collections::BTreeSet<&str> = s.peers.iter().map(|p| p.group.as_str()).collect();
    for group in groups {
        let all: Vec<&Peer> =
            s.peers.iter().filter(|p| p.group == group && p.state != "down" && p.state != "draining").collect();
        let out: Vec<&&Peer> = all.iter().filter(|p| matches!(p.state.as_str(), "unavail" | "unhealthy")).collect();
        let Some(first) = out.first() else { continue };
        let weight = if out.len() == all.len() { Weight::Critical } else { Weight::Warning };
        let what = format!("{} of {} peers of upstream \"{group}\" take no requests.", out.len(), all.len());
        let reason = if first.reason.is_empty() { String::new() } else { format!(": {}", first.reason) };
        let finding = Finding::new("peers-out", weight, what)
            .seen(format!("{} is {}{reason}", first.server, first.state), "/api/9/http/upstreams")
            .because("Their requests go to the others, which have to carry them as well.")
            .cure(format!("ironweir doctor backend {}", first.server));
        found.push(finding);
    }
    found
}

/// What requests wait for, when that is somebody else.
fn waits(s: &Serving) -> Option<Finding> {
    let whole = s.request_us();
    if s.timed < ENOUGH || whole <= 0.0 {
        return None;
    }
    let (name, us) = s.parts_us.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    if *us < LONG_US || us / whole < MOST {
        return None;
    }
    let share = percent(us / whole);
    let (id, what, why): (_, _, &str) = match name.as_str() {
        "first_byte" | "answer" => (
            "upstream-slow",
            format!("Requests wait for upstreams: {} of {} ({share}).", microseconds(*us), microseconds(whole)),
            "The peers work on the requests so long. Nothing in front of them makes that shorter.",
        ),
        "connect" => (
            "upstream-connect",
            format!(
                "Requests wait for connections to upstreams: {} of {} ({share}).",
                microseconds(*us),
                microseconds(whole)
            ),
            "A connect that takes 1 s or more is a SYN that was sent again: the peer's accept queue is full, or packets are lost on the way.",
        ),
        "head" | "body" => (
            "clients-send-slowly",
            format!(
                "Requests wait for their clients to send them: {} of {} ({share}).",
                microseconds(*us),
                microseconds(whole)
            ),
            "Long ways, lost packets, or clients that are slow on purpose.",
        ),
        "client" => (
            "clients-take-slowly",
            format!(
                "Answers wait for their clients to take them: {} of {} ({share}).",
                microseconds(*us),
                microseconds(whole)
            ),
            "The network between is full or loses packets, clients are slow, or limit_rate says so.",
        ),
        "own" => (
            "held-here",
            format!("Requests are held in the server: {} of {} ({share}).", microseconds(*us), microseconds(whole)),
            "limit_req delays them, auth_request asks for them, a cache lock or a subrequest holds them, or threads are late.",
        ),
        _ => return None,
    };
    let mut finding = Finding::new(id, Weight::Warning, what)
        .seen(
            format!("{} of {} on average, of {} requests", microseconds(*us), microseconds(whole), number(s.timed)),
            format!("{API}/time, {name}"),
        )
        .because(why);
    if id.starts_with("upstream") {
        if let Some(slowest) = s.peers.iter().filter(|p| p.requests > 0.0).max_by_key(|p| p.header_us) {
            finding = finding
                .seen(
                    format!(
                        "the slowest, {} of \"{}\": {} to the head of an answer",
                        slowest.server,
                        slowest.group,
                        microseconds(slowest.header_us.unwrap_or(0) as f64)
                    ),
                    "/api/9/http/upstreams",
                )
                .cure(format!("ironweir doctor backend {}", slowest.server));
        }
        finding = finding.cure("more peers, less work for each request there, proxy_cache for what may be old");
    }
    Some(finding.sure(Sure::Likely))
}

fn errors(s: &Serving) -> Option<Finding> {
    if s.answers * s.seconds < ENOUGH as f64 || s.errors / s.answers < ERRORS {
        return None;
    }
    let what = format!("{} of all answers are errors of the server (5xx).", percent(s.errors / s.answers));
    let finding = Finding::new("errors", Weight::Critical, what)
        .seen(format!("{:.1} of {:.1} a second", s.errors, s.answers), format!("{API}/totals"))
        .because("Clients do not get what they asked for.")
        .cure("the error log says for each why; ironweir doctor backend HOST:PORT for the peer that it names");
    Some(finding.sure(Sure::Likely))
}
