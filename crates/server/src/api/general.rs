//! Endpoints about the server as a whole.

use super::error::Failure;
use super::render::{self, Other};
use super::schema::{Field, Schema, field, number};
use super::table::{Context, Item};
use crate::snapshot::Snapshot;
use crate::status::requests;
use crate::status::ssl::Totals;
use crate::status::{self, processes, slot};
use crate::upstream::names;
use crate::worker::counters;
use resolve::Counters;
use runtime::clock;
use serde_json::{Value, json};

/// `/nginx`
pub static NGINX: Schema = Schema::Object(&[
    field("version", Schema::Text),
    field("build", Schema::Text),
    field("address", Schema::Text),
    number("generation"),
    field("load_timestamp", Schema::Time),
    field("timestamp", Schema::Time),
    number("pid"),
    number("ppid"),
]);

/// `/nginx`
pub fn nginx(context: &Context) -> Result<Value, Failure> {
    let snapshot = &context.call.snapshot;
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    Ok(json!({
        "version": crate::NGINX_VERSION,
        "build": concat!("ironweir-", env!("CARGO_PKG_VERSION")),
        "address": context.call.address,
        "generation": snapshot.generation,
        "load_timestamp": render::time(snapshot.loaded_ms),
        "timestamp": render::time(clock::wall_ms()),
        "pid": std::process::id(),
        "ppid": parent,
    }))
}

/// `/processes`
pub static PROCESSES: Schema = Schema::Object(&[number("respawned")]);

/// `/processes`
pub fn processes(_: &Context) -> Result<Value, Failure> {
    Ok(json!({"respawned": processes::respawned()}))
}

/// `DELETE /processes`
pub fn reset_processes(_: &Snapshot) {
    processes::reset();
}

const CONNECTION_FIELDS: &[Field] = &[number("accepted"), number("dropped"), number("active"), number("idle")];
/// `/connections`
pub static CONNECTIONS: Schema = Schema::Object(CONNECTION_FIELDS);

/// Idle connections are not among the active ones, as in nginx Plus.
fn show_connections(sum: &counters::Sum) -> Value {
    let (active, idle) = (sum.active.max(0), sum.waiting.max(0));
    json!({
        "accepted": sum.accepted,
        "dropped": sum.dropped(),
        "active": (active - idle).max(0),
        "idle": idle,
    })
}

/// `/connections`
pub fn connections(context: &Context) -> Result<Value, Failure> {
    Ok(show_connections(&crate::listen::silent::with(&context.call.snapshot.listens)))
}

/// `DELETE /connections`
pub fn reset_connections(_: &Snapshot) {
    counters::reset_connections();
}

/// Handshakes; what can happen to them beside, and to certificates.
macro_rules! handshakes {
    ([$($cause:literal)*], [$($failure:literal)*]) => {
        Schema::Object(&[
            number("handshakes"),
            number("handshakes_failed"),
            number("session_reuses"),
            number("no_common_protocol"),
            $(number($cause),)*
            number("handshake_timeout"),
            number("peer_rejected_cert"),
            field("verify_failures", Schema::Object(&[
                $(number($failure),)*
                number("expired_cert"),
                number("revoked_cert"),
                number("other"),
            ])),
        ])
    };
}

/// `/ssl`
pub static SSL: Schema = handshakes!(["no_common_cipher"], ["no_cert" "hostname_mismatch"]);
/// `ssl` of a zone of servers.
pub const CLIENTS_SSL: Schema = handshakes!(["no_common_cipher"], ["no_cert"]);
/// `ssl` of a peer.
pub const PEER_SSL: Schema = handshakes!([], ["hostname_mismatch"]);

/// `/ssl`
pub fn ssl(_: &Context) -> Result<Value, Failure> {
    Ok(render::handshakes(&Totals::of(&status::ssl::ALL), Other::Anybody))
}

/// `DELETE /ssl`
pub fn reset_ssl(_: &Snapshot) {
    status::ssl::ALL.reset(&[]);
}

/// One of `/slabs`.
pub static SLAB: Schema = Schema::Object(&[field("pages", Schema::Object(&[number("used"), number("free")]))]);

/// `/slabs`: zones of limits and of keys and values. Entries are counted as nginx's allocator would count them, in pages;
/// there are no slots of one size here, so none are shown.
pub fn slabs(context: &Context) -> Vec<Item> {
    let snapshot = &context.call.snapshot;
    let planes = std::iter::once(&**snapshot).chain(snapshot.stream.as_deref());
    planes
        .flat_map(|subsystem| subsystem.main.zone_pages())
        .map(|(name, used, free)| {
            Item::new(String::from_utf8_lossy(name), json!({"pages": {"used": used, "free": free}}), || {})
        })
        .collect()
}

/// One of `/workers`.
pub static WORKER: Schema = Schema::Object(&[
    number("id"),
    number("pid"),
    field("connections", Schema::Object(CONNECTION_FIELDS)),
    field("http", Schema::Object(&[field("requests", Schema::Object(&[number("total"), number("current")]))])),
]);

/// `/workers`: nginx's worker processes are threads here, known by the kernel's number for each.
pub fn workers(_: &Context) -> Vec<Item> {
    let show = |t: slot::Thread| {
        let number = t.worker.unwrap_or_default();
        let sum = counters::of_thread(t.slot);
        let value = json!({
            "id": number,
            "pid": t.tid,
            "connections": show_connections(&sum),
            "http": {"requests": {"total": sum.requests, "current": requests::of_thread(t.slot).processing}},
        });
        Item::new(number.to_string(), value, move || counters::reset_thread(t.slot))
    };
    slot::workers().into_iter().map(show).collect()
}

/// One of `/resolvers`.
pub static RESOLVER: Schema = Schema::Object(&[
    field("requests", Schema::Object(&[number("name"), number("srv"), number("addr")])),
    field(
        "responses",
        Schema::Object(&[
            number("noerror"),
            number("formerr"),
            number("servfail"),
            number("nxdomain"),
            number("notimp"),
            number("refused"),
            number("timedout"),
            number("unknown"),
        ]),
    ),
]);

/// `/resolvers`: those with a `status_zone`. Their counts begin anew with a configuration.
pub fn resolvers(context: &Context) -> Vec<Item> {
    let show = |zone: &[u8], c: &Counters| {
        let value = json!({
            "requests": {"name": c.name.get(), "srv": c.srv.get(), "addr": c.addr.get()},
            "responses": {
                "noerror": c.noerror.get(),
                "formerr": c.formerr.get(),
                "servfail": c.servfail.get(),
                "nxdomain": c.nxdomain.get(),
                "notimp": c.notimp.get(),
                "refused": c.refused.get(),
                "timedout": c.timedout.get(),
                "unknown": c.unknown.get(),
            },
        });
        let (name, zone) = (String::from_utf8_lossy(zone), Box::<[u8]>::from(zone));
        Item::new(name, value, move || {
            names::resolvers(|other, counters| {
                if *other == *zone {
                    counters.reset();
                }
            });
        })
    };
    let mut all = names::resolvers(show);
    // Of those that nobody has asked yet there is nothing but the name.
    let configured = context.call.snapshot.locations.iter().filter_map(|l| l.conf.core.resolver.as_ref());
    for zone in configured.filter_map(|c| c.status_zone.as_deref()) {
        if !all.iter().any(|i| i.name.as_bytes() == zone) {
            all.push(show(zone, &Counters::default()));
        }
    }
    all
}
