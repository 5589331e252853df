//! Configurations against the machine that they are for.

use crate::configuration::{Configuration, DEFAULT_BACKLOG, DEFAULT_CONNECTIONS};
use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};
use crate::text::number;

/// Descriptors of a worker that are no connections: logs, listeners, epoll, caches' files.
const OTHERS: u64 = 64;
/// What a process gets where nothing says otherwise.
const DEFAULT_LIMIT: u64 = 1_024;
/// A backlog that is said and is shorter than this fills in one burst.
const SHORT: u64 = 128;

/// All that a configuration shows.
pub(super) fn rules(facts: &Facts) -> Vec<Finding> {
    let each = |c: &Configuration| {
        let mut found = Vec::from_iter(problems(c));
        found.extend(backlogs(facts, c));
        found.extend(connections(facts, c));
        found.extend(proxies(c));
        found.extend(logs(c));
        found.extend(old(c));
        found
    };
    facts.configurations.iter().flat_map(each).collect()
}

fn problems(c: &Configuration) -> Option<Finding> {
    let first = c.problems.first()?;
    let what = format!("{} does not load: {} mistakes.", c.path, c.problems.len());
    Some(
        Finding::new("configuration", Weight::Critical, what)
            .seen(first.clone(), &c.path)
            .because("A start or a reload fails.")
            .cure(format!("ironweir -t -c {}", c.path)),
    )
}

fn backlogs(facts: &Facts, c: &Configuration) -> Vec<Finding> {
    let somaxconn = facts.machine.number("net.core.somaxconn");
    let mut found = Vec::new();
    for l in &c.listens {
        let backlog = l.backlog.unwrap_or(DEFAULT_BACKLOG);
        if let Some(max) = somaxconn.filter(|max| *max < backlog) {
            found.push(
                Finding::new(
                    "backlog-cut",
                    Weight::Warning,
                    format!("listen {} asks for a backlog of {backlog} and gets {max}.", l.address),
                )
                .seen(format!("backlog {backlog}{}", if l.backlog.is_none() { ", the default" } else { "" }), &l.place)
                .seen(max.to_string(), "net.core.somaxconn")
                .because("The kernel cuts a backlog at net.core.somaxconn without a word.")
                .cure(format!("sysctl -w net.core.somaxconn={}", backlog.max(4_096))),
            );
        } else if l.backlog.is_some() && backlog < SHORT {
            found.push(
                Finding::new(
                    "backlog-short",
                    Weight::Warning,
                    format!("listen {} has a backlog of {backlog}.", l.address),
                )
                .seen(format!("backlog={backlog}"), &l.place)
                .because("More connections than that at once are dropped, and come back after a second.")
                .cure(format!("listen {} backlog=4096;", l.address)),
            );
        }
    }
    found
}

fn connections(facts: &Facts, c: &Configuration) -> Option<Finding> {
    let (connections, place) =
        c.worker_connections.clone().unwrap_or((DEFAULT_CONNECTIONS, format!("{}: the default", c.path)));
    let each = if c.is_proxy { 2 } else { 1 };
    let running = facts.machine.processes.iter().filter(|p| c.is_own(&p.name)).filter_map(|p| p.descriptor_limit).min();
    let (limit, from) = match (&c.worker_rlimit_nofile, running) {
        (Some((n, place)), _) => (*n, place.clone()),
        (None, Some(n)) => (n, "/proc/PID/limits of the running server".to_owned()),
        (None, None) => (DEFAULT_LIMIT, "the usual limit; no worker_rlimit_nofile".to_owned()),
    };
    let needed = connections + OTHERS;
    if limit >= needed {
        return None;
    }
    let wanted = connections * each + OTHERS;
    Some(
        Finding::new("connections-over-descriptors", Weight::Warning, format!("{} connections for each worker, but only {} descriptors.", number(connections), number(limit)))
            .seen(format!("worker_connections {connections}"), place)
            .seen(limit.to_string(), from)
            .because(if each == 2 {
                "A client's connection and its upstream's are two descriptors: accept() fails with EMFILE long before worker_connections is reached."
            } else {
                "accept() fails with EMFILE before worker_connections is reached."
            })
            .cure(format!("worker_rlimit_nofile {wanted};")),
    )
}

fn proxies(c: &Configuration) -> Vec<Finding> {
    let mut found = Vec::new();
    for p in &c.proxies {
        let Some(closes) = &p.closes else { continue };
        found.push(
            Finding::new("no-keepalive", Weight::Warning, format!("proxy_pass {} opens a connection for each request.", p.to))
                .seen(closes.clone(), &p.place)
                .because("Each costs a round trip (three with TLS) and a local port for a minute: about 470 requests a second to one address, \
                          then \"Cannot assign requested address\".")
                .cure("upstream NAME { server ...; keepalive 64; } with proxy_http_version 1.1; proxy_set_header Connection \"\"; and proxy_pass http://NAME;"),
        );
    }
    let bare: Vec<_> = c.proxies.iter().filter(|p| !p.is_group && p.closes.is_none()).collect();
    if let Some(first) = bare.first() {
        found.push(
            Finding::new("no-pool", Weight::Note, format!("{} proxy_pass name an address and no upstream block.", bare.len()))
                .seen(format!("proxy_pass {}", first.to), &first.place)
                .because("It has no pool of its own size, no second peer, no max_fails, no health check; nginx before 1.29.7 keeps none of its connections.")
                .cure("upstream NAME { server ...; keepalive 64; }")
                .sure(Sure::Likely),
        );
    }
    found
}

fn logs(c: &Configuration) -> Vec<Finding> {
    let slow = c.logs.iter().filter(|l| !l.is_buffered).filter_map(|l| Some((l, l.slow.as_ref()?)));
    slow.map(|(l, disk)| {
        Finding::new("log-on-slow-disk", Weight::Warning, format!("{} is written for each request, on {disk}.", l.path))
            .seen(disk.clone(), "statfs, /sys/dev/block")
            .seen("access_log without buffer=", &l.place)
            .because("A worker that waits for its log answers nobody meanwhile.")
            .cure("access_log ... buffer=64k flush=1s; or a log on a local disk, or to syslog")
            .sure(Sure::Likely)
    })
    .collect()
}

fn old(c: &Configuration) -> Vec<Finding> {
    let each = |(directive, became, place): &(String, String, String)| {
        Finding::new("deprecated", Weight::Note, format!("{directive}: {became}"))
            .seen(directive.clone(), place)
            .because("It does not do what it says, or will not in a later release.")
    };
    c.old.iter().map(each).collect()
}
