//! `ngx.shared`: dictionaries by their number in the configuration. Their store is in the crate `lua`.

use ::lua::Fault;
use ::lua::dict::{Dict, Refusal, Value as Kept, When};
use ::lua::machine::{add as add_function, bytes_of, made_text};
use mlua::{Lua, Table, Value};
use std::sync::Arc;

type Dicts = Arc<[Arc<Dict>]>;

fn now() -> u64 {
    runtime::clock::wall_ms()
}

/// Milliseconds of seconds; nothing is no end.
fn ms(seconds: Option<f64>) -> Result<u64, Fault> {
    match seconds {
        None => Ok(0),
        Some(s) if s < 0.0 => Err(Fault("bad \"exptime\" argument".to_owned())),
        Some(s) => Ok((s * 1000.0) as u64),
    }
}

/// A key, or why it is none.
fn key(value: &Value) -> Result<Vec<u8>, Refusal> {
    match value {
        Value::Nil => Err("nil key"),
        value => match bytes_of(value, 1, "key") {
            Ok(key) if key.is_empty() => Err("empty key"),
            Ok(key) if key.len() > 65535 => Err("key too long"),
            Ok(key) => Ok(key),
            Err(_) => Err("bad key"),
        },
    }
}

fn shown(lua: &Lua, value: &Kept) -> Result<Value, Fault> {
    Ok(match value {
        Kept::Number(n) => Value::Number(*n),
        Kept::Flag(flag) => Value::Boolean(*flag),
        Kept::Text(text) => Value::String(made_text(lua, text)?),
        Kept::List(_) => Value::Nil,
    })
}

fn kept(value: &Value) -> Option<Kept> {
    Some(match value {
        Value::Integer(i) => Kept::Number(*i as f64),
        Value::Number(n) => Kept::Number(*n),
        Value::Boolean(b) => Kept::Flag(*b),
        Value::String(text) => Kept::Text((&*text.as_bytes()).into()),
        _ => return None,
    })
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table, all: &[Arc<Dict>]) -> mlua::Result<()> {
    let dicts: Dicts = all.into();
    raw.raw_set("dict_names", lua.create_sequence_from(all.iter().map(|d| &*d.name))?)?;
    let table = lua.create_table()?;
    add_reads(lua, &table, &dicts)?;
    add_writes(lua, &table, &dicts)?;
    add_lists(lua, &table, &dicts)?;
    raw.raw_set("dict", table)
}

/// The dictionary of a number that the prelude gave out.
fn of(dicts: &Dicts, number: usize) -> &Dict {
    &dicts[number.saturating_sub(1).min(dicts.len() - 1)]
}

fn add_reads(lua: &Lua, table: &Table, dicts: &Dicts) -> mlua::Result<()> {
    for (name, stale) in [("get", false), ("get_stale", true)] {
        let dicts = dicts.clone();
        add_function(lua, table, name, move |lua, (number, k): (usize, Value)| {
            let found = match key(&k) {
                Ok(key) => of(&dicts, number).get(&key, now(), stale),
                Err(text) => return Ok((Value::Nil, Value::String(made_text(lua, text.as_bytes())?), Value::Nil)),
            };
            let flags = |flags: u32| if flags == 0 { Value::Nil } else { Value::Integer(i64::from(flags)) };
            Ok(match found {
                Some(found) if matches!(found.value, Kept::List(_)) => {
                    (Value::Nil, Value::String(made_text(lua, b"value is a list")?), Value::Nil)
                }
                Some(found) if stale => (shown(lua, &found.value)?, flags(found.flags), Value::Boolean(found.stale)),
                Some(found) => (shown(lua, &found.value)?, flags(found.flags), Value::Nil),
                None => (Value::Nil, Value::Nil, Value::Nil),
            })
        })?;
    }
    let own = dicts.clone();
    add_function(lua, table, "ttl", move |_, (number, k): (usize, Value)| -> Result<_, Fault> {
        let key = match key(&k) {
            Ok(key) => key,
            Err(text) => return Ok((None, Some(text))),
        };
        Ok(match of(&own, number).ttl(&key, now()) {
            Some(left) => (Some(left as f64 / 1000.0), None),
            None => (None, Some("not found")),
        })
    })?;
    let own = dicts.clone();
    add_function(lua, table, "get_keys", move |lua, (number, max): (usize, Option<f64>)| {
        let max = max.map_or(1024, |n| n.max(0.0) as usize);
        let keys = of(&own, number).keys(max, now());
        let keys = keys.iter().map(|k| made_text(lua, k)).collect::<Result<Vec<_>, _>>()?;
        lua.create_sequence_from(keys).map_err(|e| Fault(e.to_string()))
    })?;
    let own = dicts.clone();
    add_function(lua, table, "capacity", move |_, number: usize| -> Result<_, Fault> {
        Ok(of(&own, number).capacity)
    })?;
    let own = dicts.clone();
    add_function(lua, table, "free_space", move |_, number: usize| -> Result<_, Fault> {
        Ok(of(&own, number).free_space())
    })
}

fn add_writes(lua: &Lua, table: &Table, dicts: &Dicts) -> mlua::Result<()> {
    let ways = [
        ("set", When::Always, true),
        ("safe_set", When::Always, false),
        ("add", When::Absent, true),
        ("safe_add", When::Absent, false),
        ("replace", When::Present, true),
    ];
    for (name, when, evict) in ways {
        let dicts = dicts.clone();
        type Call = (usize, Value, Value, Option<f64>, Option<f64>);
        add_function(lua, table, name, move |_, (number, k, value, ttl, flags): Call| {
            let key = match key(&k) {
                Ok(key) => key,
                Err(text) => return Ok((None, Some(text), None)),
            };
            let dict = of(&dicts, number);
            let ttl = ms(ttl)?;
            let Some(value) = kept(&value) else {
                if !matches!(value, Value::Nil) {
                    return Ok((None, Some("bad value type"), None));
                }
                if when == When::Absent {
                    return Ok((None, Some("attempt to add or replace nil values"), None));
                }
                dict.delete(&key);
                return Ok((Some(true), None, Some(false)));
            };
            let flags = flags.map_or(0, |f| f as u32);
            Ok(match dict.set(&key, value, (ttl, now()), flags, when, evict) {
                Ok(stored) => (Some(true), None, Some(stored.forcible)),
                Err((text, forcible)) => (Some(false), Some(text), Some(forcible)),
            })
        })?;
    }
    let own = dicts.clone();
    add_function(lua, table, "delete", move |_, (number, k): (usize, Value)| -> Result<_, Fault> {
        match key(&k) {
            Ok(key) => {
                of(&own, number).delete(&key);
                Ok((Some(true), None))
            }
            Err(text) => Ok((None, Some(text))),
        }
    })?;
    let own = dicts.clone();
    type Incr = (usize, Value, Option<f64>, Option<f64>, Option<f64>);
    add_function(lua, table, "incr", move |_, (number, k, by, init, ttl): Incr| {
        let key = match key(&k) {
            Ok(key) => key,
            Err(text) => return Ok((None, Some(text), None)),
        };
        let by = by.ok_or_else(|| Fault("bad argument #3 to 'incr' (number expected)".to_owned()))?;
        let has_init = init.is_some();
        let init = init.map(|first| ms(ttl).map(|ttl| (first, ttl))).transpose()?;
        Ok(match of(&own, number).incr(&key, by, init, now()) {
            Ok((value, forcible)) => (Some(value), None, has_init.then_some(forcible)),
            Err((text, forcible)) => (None, Some(text), has_init.then_some(forcible)),
        })
    })?;
    let own = dicts.clone();
    add_function(lua, table, "expire", move |_, (number, k, ttl): (usize, Value, Option<f64>)| {
        let key = match key(&k) {
            Ok(key) => key,
            Err(text) => return Ok((None, Some(text))),
        };
        let found = of(&own, number).expire(&key, ms(ttl)?, now());
        Ok(if found { (Some(true), None) } else { (None, Some("not found")) })
    })?;
    let own = dicts.clone();
    add_function(lua, table, "flush_all", move |_, number: usize| -> Result<_, Fault> {
        of(&own, number).flush_all();
        Ok(())
    })?;
    let own = dicts.clone();
    add_function(lua, table, "flush_expired", move |_, (number, max): (usize, Option<f64>)| -> Result<_, Fault> {
        Ok(of(&own, number).flush_expired(max.map_or(0, |n| n.max(0.0) as usize), now()))
    })
}

fn add_lists(lua: &Lua, table: &Table, dicts: &Dicts) -> mlua::Result<()> {
    for (name, front) in [("lpush", true), ("rpush", false)] {
        let dicts = dicts.clone();
        add_function(lua, table, name, move |_, (number, k, value): (usize, Value, Value)| -> Result<_, Fault> {
            let key = match key(&k) {
                Ok(key) => key,
                Err(text) => return Ok((None, Some(text))),
            };
            let Some(value @ (Kept::Number(_) | Kept::Text(_))) = kept(&value) else {
                return Ok((None, Some("bad value type")));
            };
            Ok(match of(&dicts, number).push(&key, value, front, now()) {
                Ok(length) => (Some(length), None),
                Err(text) => (None, Some(text)),
            })
        })?;
    }
    for (name, front) in [("lpop", true), ("rpop", false)] {
        let dicts = dicts.clone();
        add_function(lua, table, name, move |lua, (number, k): (usize, Value)| {
            let key = match key(&k) {
                Ok(key) => key,
                Err(text) => return Ok((Value::Nil, Some(text))),
            };
            Ok(match of(&dicts, number).pop(&key, front, now()) {
                Ok(Some(value)) => (shown(lua, &value)?, None),
                Ok(None) => (Value::Nil, None),
                Err(text) => (Value::Nil, Some(text)),
            })
        })?;
    }
    let own = dicts.clone();
    add_function(lua, table, "llen", move |_, (number, k): (usize, Value)| -> Result<_, Fault> {
        let key = match key(&k) {
            Ok(key) => key,
            Err(text) => return Ok((None, Some(text))),
        };
        Ok(match of(&own, number).length(&key, now()) {
            Ok(length) => (Some(length), None),
            Err(text) => (None, Some(text)),
        })
    })
}
