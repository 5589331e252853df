//! Keys and values: `/http/keyvals`, `/stream/keyvals`.

use super::error::Failure;
use super::fields::argument;
use super::table::{Context, verb};
use super::{Outcome, Verb};
use crate::config::Subsystem;
use crate::log::error::Level;
use crate::modules::keyval_store::{Refused, Store};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Answers a call. `rest`: the zone, if one is named.
pub fn call(context: &Context, subsystem: Subsystem, rest: &[&str]) -> Result<Outcome, Failure> {
    let stores = context.subsystem(subsystem).into_iter().flat_map(|p| p.main.keyval.stores());
    let Some(name) = rest.first() else {
        verb(context, false, &[])?;
        let all: Map<_, _> = stores.map(|s| (s.spec.name.to_string(), s.all().into())).collect();
        // A zone's keys are no fields: only the names can be chosen.
        return Ok(Outcome::Found(match &context.wanted {
            super::fields::Wanted::Fields(fields) if fields.is_empty() => context.wanted.of_map(all.into()),
            _ => all.into(),
        }));
    };
    let verb = verb(context, true, &[Verb::Post, Verb::Patch])?;
    let mut stores = stores;
    let store = stores.find(|s| &*s.spec.name == *name);
    let store = store.ok_or_else(|| Failure::new(404, "KeyvalNotFound", "keyval not found"))?;
    match verb {
        Verb::Get => get(context, store),
        Verb::Post => {
            post(context, store)?;
            save(store)?;
            let subsystem = if subsystem.is_stream() { "stream" } else { "http" };
            Ok(Outcome::Created(json!({}), format!("/{subsystem}/keyvals/{name}")))
        }
        Verb::Patch => {
            patch(context, store)?;
            save(store)?;
            Ok(Outcome::Done)
        }
        Verb::Delete => {
            store.clear();
            save(store)?;
            Ok(Outcome::Done)
        }
    }
}

fn save(store: &Store) -> Result<(), Failure> {
    store.save().map_err(|e| {
        let (name, text) = (&store.spec.name, crate::log::os_error(&e));
        crate::log::process_line(
            Level::Error,
            format_args!("the state file of keyval zone \"{name}\" could not be written ({text})"),
        );
        Failure::new(500, "KeyvalStateError", "the change is made, but its state file could not be written")
    })
}

fn no_key() -> Failure {
    Failure::new(404, "KeyvalKeyNotFound", "keyval key not found")
}

fn get(context: &Context, store: &Arc<Store>) -> Result<Outcome, Failure> {
    let Some(key) = argument(&context.call.query, "key") else { return Ok(Outcome::Found(store.all().into())) };
    let value = store.record(&key).ok_or_else(no_key)?;
    Ok(Outcome::Found(Value::Object(Map::from_iter([(key, value.into())]))))
}

fn bad(text: &str) -> Failure {
    Failure::new(400, "KeyvalFormatError", text)
}

fn body(context: &Context) -> Result<Map<String, Value>, Failure> {
    let value: Value = serde_json::from_slice(&context.call.body)
        .map_err(|e| Failure::new(415, "JsonError", format!("json error: {e}")))?;
    match value {
        Value::Object(all) if all.is_empty() => Err(bad("key required")),
        Value::Object(all) => Ok(all),
        _ => Err(bad("invalid JSON")),
    }
}

/// A value as it was sent: its text, and how long it stays (ms).
fn value_of(store: &Store, value: &Value) -> Result<(Option<String>, Option<u64>), Failure> {
    match value {
        Value::String(text) => Ok((Some(text.clone()), None)),
        Value::Object(o) if !o.is_empty() && o.keys().all(|k| k == "value" || k == "expire") => {
            let text = match o.get("value") {
                None => None,
                Some(Value::String(text)) => Some(text.clone()),
                Some(_) => return Err(bad("invalid JSON")),
            };
            let expire = match o.get("expire") {
                None => None,
                Some(n) => Some(n.as_u64().ok_or_else(|| bad("invalid JSON"))?),
            };
            if expire.is_some() && store.spec.timeout_ms.is_none() {
                return Err(bad("keyval timeout is not enabled"));
            }
            Ok((text, expire))
        }
        _ => Err(bad("invalid JSON")),
    }
}

fn set(store: &Store, records: &[(String, String, Option<u64>)]) -> Result<(), Failure> {
    store.set(records).map_err(|refused| match refused {
        Refused::Full => Failure::new(507, "KeyvalOutOfMemory", "keyval zone memory exhausted"),
        Refused::BadKey => bad("invalid key format"),
    })
}

/// Adds a record, or several to an empty zone.
fn post(context: &Context, store: &Store) -> Result<(), Failure> {
    let all = body(context)?;
    if all.len() > 1 && !store.is_empty() {
        return Err(bad("only one key can be added"));
    }
    let mut records = Vec::with_capacity(all.len());
    for (key, value) in all {
        if store.record(&key).is_some() {
            return Err(Failure::new(409, "KeyvalKeyExists", "key already exists"));
        }
        let (text, expire) = value_of(store, &value)?;
        records.push((key, text.ok_or_else(|| bad("invalid JSON"))?, expire));
    }
    set(store, &records)
}

/// Changes a record, or removes it (null).
fn patch(context: &Context, store: &Store) -> Result<(), Failure> {
    let all = body(context)?;
    if all.len() > 1 {
        return Err(bad("only one key can be updated"));
    }
    let (key, value) = all.into_iter().next().ok_or_else(|| bad("key required"))?;
    let before = store.record(&key).ok_or_else(no_key)?;
    if value.is_null() {
        store.remove(&key);
        return Ok(());
    }
    let (text, expire) = value_of(store, &value)?;
    set(store, &[(key, text.unwrap_or(before), expire)])
}

/// The form of what is sent.
pub fn sent(is_patch: bool) -> Value {
    let timed = json!({
        "type": "object",
        "properties": {"value": {"type": "string"}, "expire": {"type": "integer", "minimum": 0}},
        "additionalProperties": false,
        "minProperties": 1,
    });
    let mut forms = vec![json!({"type": "string"}), timed];
    forms.extend(is_patch.then(|| json!({"type": "null"})));
    json!({"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": forms}})
}
