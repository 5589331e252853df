//! `/ironweir/l4`: servers of `stream` whose packets the kernel balances, and what it did. What of it belongs to zones and groups
//! is in their counts as well.

use super::error::Failure;
use super::schema::{Schema, field, maybe, number};
use super::table::Context;
use crate::balancer::{heard, watch};
use l4::layout::{EVENTS, SIZE_BOUNDS};
use l4::plan::RealState;
use l4::report::{Counts, RealReport, ServiceReport};
use serde_json::{Map, Value, json};

const INTERFACE: Schema = Schema::Object(&[field("name", Schema::Text), field("native", Schema::Flag)]);
const REAL: Schema = Schema::Object(&[
    field("server", Schema::Text),
    number("weight"),
    field("state", Schema::Text),
    field("full", Schema::Flag),
    number("active"),
    number("flows"),
    number("packets_in"),
    number("bytes_in"),
    number("packets_out"),
    number("bytes_out"),
]);
const SERVICE: Schema = Schema::Object(&[
    field("address", Schema::Text),
    field("protocol", Schema::Text),
    field("mode", Schema::Text),
    field("path", Schema::Text),
    maybe("scheduler", Schema::Text),
    maybe("upstream", Schema::Text),
    maybe("zone", Schema::Text),
    number("active"),
    number("flows"),
    number("packets_in"),
    number("bytes_in"),
    number("packets_out"),
    number("bytes_out"),
    field("sizes", Schema::Map(&Schema::Number)),
    field("servers", Schema::List(&REAL)),
]);
/// `/ironweir/l4`
pub static L4: Schema = Schema::Object(&[
    field("interfaces", Schema::List(&INTERFACE)),
    maybe("problem", Schema::Text),
    maybe("flow_room", Schema::Number),
    field("services", Schema::List(&SERVICE)),
    field("events", Schema::Map(&Schema::Number)),
]);

/// `/ironweir/l4`. `path`: `kernel`, or `proxy` where XDP could not be had. `sizes`: packets by the bytes of their frame, below the
/// number, or `more`.
pub fn l4(_: &Context) -> Result<Value, Failure> {
    let report = heard::report().unwrap_or_default();
    let services: Vec<Value> = watch::services()
        .iter()
        .map(|service| {
            let server = &service.server;
            let said = report.services.iter().find(|s| (s.address, s.protocol) == (server.address, server.protocol));
            let mut value = said.map_or_else(|| counted(0, &Counts::default()), |s| counted(s.active(), &s.counts));
            value["address"] = json!(server.address.to_string());
            value["protocol"] = json!(server.protocol.name());
            value["mode"] = json!(server.mode.name());
            value["path"] = json!(if said.is_some() { "kernel" } else { "proxy" });
            value["upstream"] = json!(*service.group.name);
            if let Some(zone) = &service.zone {
                value["zone"] = json!(*zone.name);
            }
            add(&mut value, said);
            value
        })
        .collect();
    let interfaces: Vec<Value> =
        report.interfaces.iter().map(|i| json!({"name": i.name, "native": i.native})).collect();
    let events: Map<_, _> =
        EVENTS.iter().zip(&report.events).map(|((name, _), n)| ((*name).to_owned(), json!(n))).collect();
    let mut value = json!({"interfaces": interfaces, "services": services, "events": events});
    if let Some(problem) = &report.problem {
        value["problem"] = json!(problem);
    }
    if report.flow_room > 0 {
        value["flow_room"] = json!(report.flow_room);
    }
    Ok(value)
}

fn add(value: &mut Value, said: Option<&ServiceReport>) {
    value["sizes"] = sizes(said.map_or(&Counts::default(), |s| &s.counts));
    value["servers"] = said.map(|s| s.reals.iter().map(real).collect()).unwrap_or_else(|| json!([]));
    if let Some(said) = said {
        value["scheduler"] = json!(said.scheduler);
    }
}

fn counted(active: u64, counts: &Counts) -> Value {
    json!({
        "active": active,
        "flows": counts.flows,
        "packets_in": counts.in_packets,
        "bytes_in": counts.in_bytes,
        "packets_out": counts.out_packets,
        "bytes_out": counts.out_bytes,
    })
}

fn real(real: &RealReport) -> Value {
    let mut value = counted(real.active, &real.counts);
    let state = match real.state {
        _ if real.gone => "gone",
        RealState::Up => "up",
        RealState::Drain => "drain",
        RealState::Reset => "reset",
    };
    value["server"] = json!(real.address.to_string());
    value["weight"] = json!(real.weight);
    value["state"] = json!(state);
    value["full"] = json!(real.full);
    value
}

fn sizes(counts: &Counts) -> Value {
    let names = SIZE_BOUNDS.iter().map(|bound| format!("<{bound}")).chain(["more".to_owned()]);
    names.zip(counts.sizes).map(|(name, n)| (name, json!(n))).collect::<Map<_, _>>().into()
}
