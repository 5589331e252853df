//! `ngx.shared`: dictionaries by their number in the configuration. Their store is in the crate `lua`.

use ::lua::Fault;
use ::lua::dict::{Dict, Refusal, Value as Kept, When};
use ::lua::machine::{add as add_function, bytes_of, made_text};
use ::lua::quick::{self, Call, Kind};
use mlua::{Lua, Table, Value};
use std::cell::RefCell;
use std::sync::Arc;

/// The longest key.
const MAX_KEY: usize = 65_535;
/// Bytes of a buffer that is used again.
const MAX_KEPT: usize = 64 * 1024;

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
        Value::Boolean(flag) => Ok(flag.to_string().into_bytes()),
        value => match bytes_of(value, 1, "key") {
            Ok(key) if key.is_empty() => Err("empty key"),
            Ok(key) if key.len() > MAX_KEY => Err("key too long"),
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
    raw.raw_set("dict", table)?;
    let table = lua.create_table()?;
    add_quick(lua, &table, &dicts)?;
    raw.raw_set("dict_quick", table)
}

/// The dictionary of a number that the prelude gave out.
fn of(dicts: &Dicts, number: usize) -> &Dict {
    &dicts[number.saturating_sub(1).min(dicts.len() - 1)]
}

/// A call's dictionary and key, where the key is a text of a right length.
fn asked<'c>(dicts: &'c Dicts, call: &'c Call) -> Option<(&'c Dict, &'c [u8])> {
    let (Kind::Number(number), Kind::Text(key)) = (call.argument(1), call.argument(2)) else { return None };
    (1..=MAX_KEY).contains(&key.len()).then(|| (of(dicts, number as usize), key))
}

fn seconds(call: &Call, number: usize) -> Option<Option<f64>> {
    match call.argument(number) {
        Kind::Nil => Some(None),
        Kind::Number(seconds) => Some(Some(seconds)),
        _ => None,
    }
}

thread_local! {
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a look-up found, without the text, which is copied while the dictionary is locked.
enum Seen {
    Nothing,
    Number(f64),
    Flag(bool),
    Text,
    List,
}

/// `get` as it is mostly called: by a text.
fn get_quick(dicts: &Dicts, call: &Call) {
    let Some((dict, key)) = asked(dicts, call) else { return call.give_other() };
    let mut room = ROOM.take();
    let found = dict.look(key, now(), |value, flags| {
        let seen = match value {
            Kept::Number(n) => Seen::Number(*n),
            Kept::Flag(flag) => Seen::Flag(*flag),
            Kept::List(_) => Seen::List,
            Kept::Text(text) => {
                room.clear();
                room.extend_from_slice(text);
                Seen::Text
            }
        };
        (seen, flags)
    });
    let (seen, flags) = found.unwrap_or((Seen::Nothing, 0));
    match seen {
        Seen::Nothing => call.give_nil(),
        Seen::Number(n) => call.give_number(n),
        Seen::Flag(flag) => call.give_flag(flag),
        Seen::Text => call.give_bytes(&room),
        Seen::List => {
            call.give_nil();
            call.give_bytes(b"value is a list");
        }
    }
    if flags != 0 && !matches!(seen, Seen::Nothing | Seen::List) {
        call.give_number(f64::from(flags));
    }
    if room.capacity() <= MAX_KEPT {
        ROOM.set(room);
    }
}

/// The stores as they are mostly called: with a text as key and a value that can be kept.
fn set_quick(dicts: &Dicts, call: &Call, when: When, evict: bool) -> Result<(), Fault> {
    let (asked, value) = (asked(dicts, call), call.argument(3));
    let value = match value {
        Kind::Number(n) => Some(Kept::Number(n)),
        Kind::Flag(flag) => Some(Kept::Flag(flag)),
        Kind::Text(text) => Some(Kept::Text(text.into())),
        _ => None,
    };
    let (Some((dict, key)), Some(value), Some(ttl), Some(flags)) = (asked, value, seconds(call, 4), seconds(call, 5))
    else {
        call.give_other();
        return Ok(());
    };
    match dict.set(key, value, (ms(ttl)?, now()), flags.map_or(0, |f| f as u32), when, evict) {
        Ok(stored) => {
            call.give_flag(true);
            call.give_nil();
            call.give_flag(stored.forcible);
        }
        Err((text, forcible)) => {
            call.give_flag(false);
            call.give_bytes(text.as_bytes());
            call.give_flag(forcible);
        }
    }
    Ok(())
}

fn incr_quick(dicts: &Dicts, call: &Call) -> Result<(), Fault> {
    let by = call.number(3);
    let (Some((dict, key)), Some(by), Some(init), Some(ttl)) =
        (asked(dicts, call), by, seconds(call, 4), seconds(call, 5))
    else {
        call.give_other();
        return Ok(());
    };
    let given = init.map(|first| ms(ttl).map(|ttl| (first, ttl))).transpose()?;
    let forcible = match dict.incr(key, by, given, now()) {
        Ok((value, forcible)) => {
            call.give_number(value);
            if init.is_some() {
                call.give_nil();
            }
            forcible
        }
        Err((text, forcible)) => {
            call.give_nil();
            call.give_bytes(text.as_bytes());
            forcible
        }
    };
    if init.is_some() {
        call.give_flag(forcible);
    }
    Ok(())
}

/// The same functions as below for what they are mostly called with; for all else they say that those have to be called.
fn add_quick(lua: &Lua, table: &Table, dicts: &Dicts) -> mlua::Result<()> {
    let own = dicts.clone();
    quick::add(lua, table, "get", move |call| {
        get_quick(&own, call);
        Ok(())
    })?;
    let own = dicts.clone();
    quick::add(lua, table, "incr", move |call| incr_quick(&own, call))?;
    for (name, when, evict) in STORES {
        let own = dicts.clone();
        quick::add(lua, table, name, move |call| set_quick(&own, call, when, evict))?;
    }
    Ok(())
}

/// Names of the stores, under which condition they store, and whether older entries make room.
const STORES: [(&str, When, bool); 5] = [
    ("set", When::Always, true),
    ("safe_set", When::Always, false),
    ("add", When::Absent, true),
    ("safe_add", When::Absent, false),
    ("replace", When::Present, true),
];

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
        let broken = |e: mlua::Error| Fault(e.to_string());
        let table = lua.create_table_with_capacity(keys.len(), 0).map_err(broken)?;
        // One after the other: all of them at once would be more than mlua holds.
        for (at, key) in keys.iter().enumerate() {
            table.raw_set(at + 1, made_text(lua, key)?).map_err(broken)?;
        }
        Ok(table)
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
    for (name, when, evict) in STORES {
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
