//! Endpoints of `http`, and those of `stream` that say the same: requests, zones, caches, limits.

use super::error::Failure;
use super::general::CLIENTS_SSL;
use super::render::{self, Other};
use super::schema::{Field, Schema, field, maybe, number};
use super::table::{Context, Item};
use crate::balancer::heard;
use crate::cache::Status;
use crate::config::Subsystem;
use crate::snapshot::Snapshot;
use crate::status::caches::{self, Totals};
use crate::status::limits::{self, Event};
use crate::status::zones::{Kind, Zone};
use crate::status::{requests, ssl, zones};
use crate::worker::counters;
use crate::zone::synced::{self, COUNTS};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// `/http/requests`
pub static REQUESTS: Schema = Schema::Object(&[number("total"), number("current")]);

/// `/http/requests`
pub fn requests(_: &Context) -> Result<Value, Failure> {
    Ok(json!({"total": counters::sum().requests, "current": requests::totals(&requests::ALL).processing}))
}

/// `DELETE /http/requests`
pub fn reset_requests(_: &Snapshot) {
    counters::reset_requests();
}

/// Answers by class and code.
pub const RESPONSES: Schema = Schema::Object(&[
    number("1xx"),
    number("2xx"),
    number("3xx"),
    number("4xx"),
    number("5xx"),
    field("codes", Schema::Map(&Schema::Number)),
    number("total"),
]);

/// One of `/http/server_zones`.
pub static SERVER_ZONE: Schema = Schema::Object(&[
    number("processing"),
    number("requests"),
    field("responses", RESPONSES),
    number("discarded"),
    number("received"),
    number("sent"),
    maybe("ssl", CLIENTS_SSL),
]);

/// One of `/http/location_zones`.
pub static LOCATION_ZONE: Schema = Schema::Object(&[
    number("requests"),
    field("responses", RESPONSES),
    number("discarded"),
    number("received"),
    number("sent"),
]);

fn zone_items(kind: Kind, show: fn(&Zone) -> Value) -> Vec<Item> {
    let item = |zone: Arc<Zone>| {
        let value = show(&zone);
        Item::new(zone.name.to_string(), value, move || {
            requests::reset(&zone.counts);
            zone.times.reset();
            zone.ssl.reset(&[]);
            if kind == Kind::Stream {
                heard::reset_zone(&zone.name);
            }
        })
    };
    zones::all(kind).into_iter().map(item).collect()
}

/// `/http/server_zones`
pub fn server_zones(_: &Context) -> Vec<Item> {
    zone_items(Kind::Server, |zone| {
        let mut value = render::requests(&requests::totals(&zone.counts), true);
        let handshakes = ssl::Totals::of(&zone.ssl);
        if !handshakes.is_empty() {
            value["ssl"] = render::handshakes(&handshakes, Other::Client);
        }
        value
    })
}

/// `/http/location_zones`
pub fn location_zones(_: &Context) -> Vec<Item> {
    zone_items(Kind::Location, |zone| render::requests(&requests::totals(&zone.counts), false))
}

/// One of `/stream/server_zones`.
pub static STREAM_ZONE: Schema = Schema::Object(&[
    number("processing"),
    number("connections"),
    field("sessions", Schema::Object(&[number("2xx"), number("4xx"), number("5xx"), number("total")])),
    number("discarded"),
    number("received"),
    number("sent"),
    maybe("ssl", CLIENTS_SSL),
]);

/// `/stream/server_zones`
pub fn stream_zones(_: &Context) -> Vec<Item> {
    zone_items(Kind::Stream, |zone| {
        let t = requests::totals(&zone.counts);
        let [_, good, _, client, server] = t.responses.classes;
        // What the kernel carried belongs to the same server. A flow that has ended there ended well, as far as it knows.
        let kernel = heard::of_zone(&zone.name);
        let ended = kernel.counts.flows.saturating_sub(kernel.active);
        let mut value = json!({
            "processing": t.processing + kernel.active,
            "connections": t.requests + kernel.counts.flows,
            "sessions": {"2xx": good + ended, "4xx": client, "5xx": server, "total": t.responses.total() + ended},
            "discarded": t.discarded,
            "received": t.received + kernel.counts.in_bytes,
            "sent": t.sent + kernel.counts.out_bytes,
        });
        let handshakes = ssl::Totals::of(&zone.ssl);
        if !handshakes.is_empty() {
            value["ssl"] = render::handshakes(&handshakes, Other::Client);
        }
        value
    })
}

const READ: Schema = Schema::Object(&[number("responses"), number("bytes")]);
const WRITTEN: Schema =
    Schema::Object(&[number("responses"), number("bytes"), number("responses_written"), number("bytes_written")]);
/// One of `/http/caches`.
pub static CACHE: Schema = Schema::Object(&[
    number("size"),
    maybe("max_size", Schema::Number),
    field("cold", Schema::Flag),
    field("hit", READ),
    field("stale", READ),
    field("updating", READ),
    field("revalidated", READ),
    field("miss", WRITTEN),
    field("expired", WRITTEN),
    field("bypass", WRITTEN),
]);

fn is_written(status: Status) -> bool {
    matches!(status, Status::Miss | Status::Expired | Status::Bypass)
}

fn show_status(status: Status, t: Totals) -> Value {
    let mut value = json!({"responses": t.responses, "bytes": t.bytes});
    if is_written(status) {
        value["responses_written"] = json!(t.responses_written);
        value["bytes_written"] = json!(t.bytes_written);
    }
    value
}

/// `/http/caches`
pub fn caches(context: &Context) -> Vec<Item> {
    let item = |cache: &Arc<crate::cache::Cache>| {
        let zone = cache.zone.clone();
        let mut value = json!({
            "size": zone.index.blocks() * zone.block(),
            "cold": zone.cold.load(Relaxed),
        });
        if cache.max_size < i64::MAX as u64 {
            value["max_size"] = json!(cache.max_size);
        }
        for (status, totals) in caches::totals(&zone.counts) {
            value[status.text().to_ascii_lowercase()] = show_status(status, totals);
        }
        let name = String::from_utf8_lossy(&zone.name).into_owned();
        Item::new(name, value, move || zone.counts.reset(&[]))
    };
    context.call.snapshot.main.cache.caches.iter().map(item).collect()
}

const LIMITED: &[Field] = &[number("passed"), number("rejected"), number("rejected_dry_run")];
/// One of `/http/limit_conns`.
pub static LIMIT_CONN: Schema = Schema::Object(LIMITED);

/// One of `/http/limit_reqs`.
pub static LIMIT_REQ: Schema = Schema::Object(&[
    number("passed"),
    number("delayed"),
    number("rejected"),
    number("delayed_dry_run"),
    number("rejected_dry_run"),
]);

fn limit_item(name: &[u8], counts: &Arc<limits::Counts>, delays: bool) -> Item {
    let n = counts.sums();
    let of = |event: Event| n[event as usize];
    let mut value = json!({
        "passed": of(Event::Passed),
        "rejected": of(Event::Rejected),
        "rejected_dry_run": of(Event::RejectedDryRun),
    });
    if delays {
        value["delayed"] = json!(of(Event::Delayed));
        value["delayed_dry_run"] = json!(of(Event::DelayedDryRun));
    }
    let counts = counts.clone();
    Item::new(String::from_utf8_lossy(name), value, move || counts.reset(&[]))
}

/// `/http/limit_conns`
pub fn limit_conns(context: &Context) -> Vec<Item> {
    limit_conns_of(context, Subsystem::Http)
}

/// `/stream/limit_conns`
pub fn stream_limit_conns(context: &Context) -> Vec<Item> {
    limit_conns_of(context, Subsystem::Stream)
}

fn limit_conns_of(context: &Context, subsystem: Subsystem) -> Vec<Item> {
    let main = context.subsystem(subsystem).map(|p| &p.main.limit_conn);
    main.into_iter().flat_map(|m| m.counts()).map(|(name, c)| limit_item(name, c, false)).collect()
}

/// `/http/limit_reqs`
pub fn limit_reqs(context: &Context) -> Vec<Item> {
    let counts = context.call.snapshot.main.limit_req.counts();
    counts.map(|(name, c)| limit_item(name, c, true)).collect()
}

const SYNC_ZONE: Schema = Schema::Object(&[number("records_pending"), number("records_total")]);
const SYNC_STATUS: Schema = Schema::Object(&[
    number("bytes_in"),
    number("msgs_in"),
    number("msgs_out"),
    number("bytes_out"),
    number("nodes_online"),
]);
/// `/stream/zone_sync`
pub static ZONE_SYNC: Schema = Schema::Object(&[field("zones", Schema::Map(&SYNC_ZONE)), field("status", SYNC_STATUS)]);

/// `/stream/zone_sync`: zones with `sync`, and what was said and heard. Pending: what the node that is farthest behind has not been told.
pub fn zone_sync(_: &Context) -> Result<Value, Failure> {
    let mut zones = Map::new();
    for member in synced::members() {
        let Some(contents) = member.contents() else { continue };
        let zone = json!({"records_pending": member.changes.pending(), "records_total": contents.count()});
        zones.insert(String::from_utf8_lossy(&member.name).into_owned(), zone);
    }
    Ok(json!({
        "zones": zones,
        "status": {
            "bytes_in": COUNTS.bytes_in.load(Relaxed), "msgs_in": COUNTS.messages_in.load(Relaxed),
            "msgs_out": COUNTS.messages_out.load(Relaxed), "bytes_out": COUNTS.bytes_out.load(Relaxed),
            "nodes_online": COUNTS.online.load(Relaxed),
        },
    }))
}
