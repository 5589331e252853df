//! Zones that the nodes of a cluster share: `/stream/zone_sync`.

use super::error::Failure;
use super::schema::{Schema, field, number};
use super::table::Context;
use crate::zone::synced::{self, COUNTS};
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering::Relaxed;

const ZONE: Schema = Schema::Object(&[number("records_pending"), number("records_total")]);
const STATUS: Schema = Schema::Object(&[
    number("bytes_in"),
    number("msgs_in"),
    number("msgs_out"),
    number("bytes_out"),
    number("nodes_online"),
]);
/// `/stream/zone_sync`
pub static ZONE_SYNC: Schema = Schema::Object(&[field("zones", Schema::Map(&ZONE)), field("status", STATUS)]);

/// `/stream/zone_sync`: zones with `sync`, and what was said and heard. Pending: what the node that is farthest behind has not been told.
pub fn show(_: &Context) -> Result<Value, Failure> {
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
