//! Groups of peers: `/http/upstreams`, `/stream/upstreams`. Shows groups that have a `zone`; what changes them is in
//! `servers`.

use super::error::Failure;
use super::general::PEER_SSL;
use super::http::RESPONSES;
use super::render::{self, Other, classes, time};
use super::schema::{Schema, field, maybe, number};
use super::table::{Context, verb};
use super::{Outcome, Verb, servers};
use crate::balancer::heard;
use crate::config::Subsystem;
use crate::status::peers::{self, BOUNDS_MS, Counted};
use crate::status::{skew, ssl};
use crate::upstream::group::{Group, key_of};
use crate::upstream::peer::{self, Peer};
use crate::upstream::pool;
use runtime::clock;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const CHECKS: Schema =
    Schema::Object(&[number("checks"), number("fails"), number("unhealthy"), maybe("last_passed", Schema::Flag)]);
const TIMES: Schema = Schema::Object(&[number("count"), number("sum"), field("buckets", Schema::Map(&Schema::Number))]);

/// What peers of both planes have.
macro_rules! peer {
    ($($own:expr,)*) => {
        Schema::Object(&[
            number("id"),
            field("server", Schema::Text),
            field("name", Schema::Text),
            maybe("service", Schema::Text),
            field("backup", Schema::Flag),
            number("weight"),
            field("state", Schema::Text),
            maybe("reason", Schema::Text),
            maybe("drained", Schema::Flag),
            number("active"),
            maybe("max_conns", Schema::Number),
            number("sent"),
            number("received"),
            number("fails"),
            number("unavail"),
            field("health_checks", CHECKS),
            number("downtime"),
            maybe("downstart", Schema::Time),
            maybe("selected", Schema::Time),
            maybe("response_time", Schema::Number),
            maybe("response_time_us", Schema::Number),
            $($own,)*
        ])
    };
}

const HTTP_PEER: Schema = peer![
    number("requests"),
    field("responses", RESPONSES),
    maybe("ssl", PEER_SSL),
    maybe("header_time", Schema::Number),
    maybe("header_time_us", Schema::Number),
    field("response_time_hist", TIMES),
];
const STREAM_PEER: Schema = peer![
    number("connections"),
    maybe("connect_time", Schema::Number),
    maybe("connect_time_us", Schema::Number),
    maybe("first_byte_time", Schema::Number),
    maybe("first_byte_time_us", Schema::Number),
];
const QUEUE: Schema = Schema::Object(&[number("size"), number("max_size"), number("overflows")]);
/// One of `/http/upstreams`.
pub static HTTP: Schema = Schema::Object(&[
    field("peers", Schema::List(&HTTP_PEER)),
    number("keepalive"),
    number("zombies"),
    maybe("queue", QUEUE),
    maybe("skew", Schema::Ratio),
    field("zone", Schema::Text),
]);
/// One of `/stream/upstreams`.
pub static STREAM: Schema = Schema::Object(&[
    field("peers", Schema::List(&STREAM_PEER)),
    number("zombies"),
    maybe("skew", Schema::Ratio),
    field("zone", Schema::Text),
]);

/// Answers a call. `rest`: the group, `servers`, a server, as far as they are named.
pub fn call(context: &Context, subsystem: Subsystem, rest: &[&str]) -> Result<Outcome, Failure> {
    let groups = context.subsystem(subsystem).map_or(&[][..], |p| &p.groups);
    let Some((name, rest)) = rest.split_first() else {
        verb(context, false, &[])?;
        let shown = groups.iter().filter(|g| g.zone.is_some());
        let all: Map<_, _> = shown.map(|g| (g.name.to_string(), show(g, subsystem))).collect();
        return Ok(Outcome::Found(context.wanted.of_map(all.into())));
    };
    let group = groups.iter().find(|g| g.is_block && *g.name == **name);
    let group = group.ok_or_else(|| Failure::new(404, "UpstreamNotFound", "upstream not found"))?;
    if group.zone.is_none() {
        return Err(Failure::new(400, "UpstreamStatic", "upstream is static"));
    }
    match rest {
        [] => match verb(context, true, &[])? {
            Verb::Delete => {
                group.tiers_now().iter().flat_map(|t| &t.peers).for_each(|p| peers::reset(&p.state));
                if subsystem.is_stream() {
                    heard::reset_group(group.number);
                }
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Found(context.wanted.of_object(show(group, subsystem)))),
        },
        ["servers"] => servers::list(context, subsystem, group),
        ["servers", id] => servers::one(context, subsystem, group, id),
        _ => Err(Failure::path_not_found()),
    }
}

/// A group with all its peers.
fn show(group: &Arc<Group>, subsystem: Subsystem) -> Value {
    let tiers = group.tiers_now();
    let services: Vec<_> = group.servers().into_iter().filter_map(|l| Some((l.server, l.service?))).collect();
    let mut all = Vec::new();
    for (tier, backup) in tiers.iter().zip([false, true]) {
        for peer in &tier.peers {
            let mut value = show_peer(peer, backup, subsystem);
            if let Some((_, service)) = services.iter().find(|(server, _)| *server == peer.server) {
                value["service"] = json!(service);
            }
            if subsystem.is_stream() {
                add_kernel(&mut value, &heard::of_peer(group.number, &peer.address));
            }
            all.push(value);
        }
    }
    all.sort_by_key(|p| p["id"].as_u64());
    let known = |number| tiers.iter().flat_map(|t| &t.peers).any(|p| p.state.number == number);
    let zombies = peer::in_use(&key_of(subsystem, &group.name)).into_iter().filter(|n| !known(*n)).count();
    let mut value = json!({"peers": all, "zombies": zombies, "zone": group.zone.as_deref().unwrap_or_default()});
    if !subsystem.is_stream() {
        value["keepalive"] = json!(pool::idle(group));
    }
    if let Some(line) = &group.queue {
        value["queue"] = json!({"size": line.queue.len(), "max_size": line.most, "overflows": line.queue.overflows()});
    }
    if let Some(hundredths) = skew::lately(group) {
        value["skew"] = json!(hundredths as f64 / 100.0);
    }
    value
}

fn show_peer(peer: &Peer, backup: bool, subsystem: Subsystem) -> Value {
    let state = &peer.state;
    let counted = peers::counted(state);
    let now = clock::wall_ms();
    let (out, checks) = (state.out(), state.health.checks());
    let mut value = json!({
        "id": peer.id,
        "server": peer.name,
        "name": peer.server,
        "backup": backup,
        "weight": peer.settings.weight,
        "state": peer.state().word(),
        "active": state.conns.load(Relaxed),
        "sent": counted.totals.sent,
        "received": counted.totals.received,
        "fails": counted.fails,
        "unavail": counted.unavail,
        "health_checks": {"checks": checks.checks, "fails": checks.fails, "unhealthy": checks.unhealthy},
        "downtime": out.total_ms(now),
    });
    if let Some(passed) = checks.last_passed {
        value["health_checks"]["last_passed"] = json!(passed);
    }
    let mut add = |name: &str, what: Option<Value>| {
        if let Some(what) = what {
            value[name] = what;
        }
    };
    add("reason", peer.reason().map(Value::from));
    add("drained", (peer.state() == crate::upstream::peer::State::Draining).then(|| peer.is_drained().into()));
    add("max_conns", (peer.settings.max_conns > 0).then(|| peer.settings.max_conns.into()));
    add("downstart", out.since_ms.map(|ms| time(ms).into()));
    let selected = state.selected_ms.load(Relaxed);
    add("selected", (selected > 0).then(|| time(selected).into()));
    let times = [("response_time", &state.times.last_byte), ("connect_time", &state.times.connect)];
    let header = if subsystem.is_stream() { "first_byte_time" } else { "header_time" };
    for (name, average) in times.into_iter().chain([(header, &state.times.header)]) {
        // Averages begin with the first answer.
        let known = counted.totals.requests > 0 && (subsystem.is_stream() || name != "connect_time");
        let us = average.load(Relaxed);
        // nginx's fields are whole milliseconds; a peer nearby takes less.
        add(name, known.then(|| ((us + 500) / 1000).into()));
        add(&format!("{name}_us"), known.then(|| us.into()));
    }
    if subsystem.is_stream() {
        add("connections", Some(counted.totals.requests.into()));
    } else {
        add("requests", Some(counted.totals.requests.into()));
        add("responses", Some(classes(&counted.totals.classes, &counted.totals.codes)));
        let handshakes = ssl::Totals::of(&state.shown.ssl);
        add("ssl", (!handshakes.is_empty()).then(|| render::handshakes(&handshakes, Other::Peer)));
        add("response_time_hist", Some(show_times(&counted)));
    }
    value
}

/// What the kernel carried for a peer, beside what the proxy did.
fn add_kernel(value: &mut Value, done: &heard::Done) {
    let counts = &done.counts;
    let more = [
        ("active", done.active),
        ("connections", counts.flows),
        ("sent", counts.in_bytes),
        ("received", counts.out_bytes),
    ];
    for (name, n) in more.into_iter().filter(|(_, n)| *n > 0) {
        value[name] = json!(value[name].as_u64().unwrap_or(0) + n);
    }
    if done.active > 0 && value["drained"] == json!(true) {
        value["drained"] = json!(false);
    }
}

fn show_times(counted: &Counted) -> Value {
    let names = BOUNDS_MS.iter().map(u64::to_string).chain(["inf".to_owned()]);
    let buckets: Map<_, _> = names.zip(counted.times).map(|(name, n)| (name, json!(n))).collect();
    json!({"count": counted.times.iter().sum::<u64>(), "sum": counted.times_sum_ms, "buckets": buckets})
}
