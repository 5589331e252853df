//! `ngx.shared`: dictionaries by their number in the configuration. Their store is the one that Lua's dictionaries have (`lua::dict`).

use super::super::SharedDict;
use crate::snapshot::ThreadSnapshot;
use ::js::rquickjs::convert::List;
use ::js::rquickjs::prelude::Func;
use ::js::rquickjs::{Ctx, Object, Result, Value};
use ::js::value::OrThrow;
use ::js::{Bytes, Fault, Item};
use ::lua::dict::{Value as Kept, When};
use std::rc::{Rc, Weak};

/// Bytes of a key.
const MAX_KEY: usize = 65_535;

fn now() -> u64 {
    runtime::clock::wall_ms()
}

/// Works on a dictionary.
fn of<T>(
    snapshot: &Weak<ThreadSnapshot>,
    number: usize,
    work: impl FnOnce(&SharedDict) -> T,
) -> std::result::Result<T, Fault> {
    let snapshot = snapshot.upgrade().ok_or_else(|| Fault::internal("the configuration is gone"))?;
    let dict = snapshot.main.js.dicts.get(number).ok_or_else(|| Fault::of_type("\"this\" is not a shared dict"))?;
    Ok(work(dict))
}

fn shown(value: Option<Kept>) -> Item {
    match value {
        Some(Kept::Number(n)) => Item::Number(n),
        Some(Kept::Text(text)) => Item::Text(text.to_vec()),
        Some(Kept::Flag(flag)) => Item::Flag(flag),
        _ => Item::Undefined,
    }
}

/// See the module's head.
pub fn add(raw: &Object<'_>, snapshot: &Rc<ThreadSnapshot>) -> Result<()> {
    let own = Rc::downgrade(snapshot);
    raw.set("dict_list", Func::from(move |ctx: Ctx<'_>| list(&own).map_or_else(|f| Err(f.throw(&ctx)), Ok)))?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_get",
        Func::from(move |ctx: Ctx<'_>, number: usize, key: Bytes| {
            of(&own, number, |d| shown(d.dict.get(&key.0, now(), false).map(|f| f.value))).or_throw(&ctx)
        }),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_take",
        Func::from(move |ctx: Ctx<'_>, number: usize, key: Bytes| {
            of(&own, number, |d| {
                let found = d.dict.get(&key.0, now(), false).map(|f| f.value);
                d.dict.delete(&key.0);
                shown(found)
            })
            .or_throw(&ctx)
        }),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_store",
        Func::from(move |ctx: Ctx<'_>, number: usize, way: String, key: Bytes, value: Given, ttl: f64| {
            let stored = of(&own, number, |d| store(d, &way, &key.0, value, ttl));
            stored.and_then(|s| s).map(List).or_throw(&ctx)
        }),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_incr",
        Func::from(move |ctx: Ctx<'_>, number: usize, key: Bytes, by: f64, first: f64, ttl: f64| {
            let made = of(&own, number, |d| increase(d, &key.0, by, first, ttl));
            made.or_throw(&ctx)
        }),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_ttl",
        Func::from(move |ctx: Ctx<'_>, number: usize, key: Bytes| {
            let left = of(&own, number, |d| d.dict.ttl(&key.0, now()).filter(|left| *left >= 0));
            left.map(|l| l.map_or(Item::Undefined, |l| Item::Number(l as f64))).or_throw(&ctx)
        }),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_clear",
        Func::from(move |ctx: Ctx<'_>, number: usize| {
            of(&own, number, |d| {
                d.dict.flush_all();
                d.dict.flush_expired(0, now());
            })
            .or_throw(&ctx)
        }),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_free",
        Func::from(move |ctx: Ctx<'_>, number: usize| of(&own, number, |d| d.dict.free_space() as f64).or_throw(&ctx)),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_keys",
        Func::from(move |ctx: Ctx<'_>, number: usize, most: f64| {
            let most = most.clamp(0.0, u32::MAX.into()) as usize;
            let keys = of(&own, number, |d| if most == 0 { Vec::new() } else { d.dict.keys(most, now()) });
            keys.map(|all| all.into_iter().map(|k| Bytes(k.into_vec())).collect::<Vec<_>>()).or_throw(&ctx)
        }),
    )?;
    let own = Rc::downgrade(snapshot);
    raw.set(
        "dict_size",
        Func::from(move |ctx: Ctx<'_>, number: usize| {
            of(&own, number, |d| d.dict.keys(0, now()).len() as f64).or_throw(&ctx)
        }),
    )
}

type Facts = List<(String, String, f64, bool)>;

fn list(snapshot: &Weak<ThreadSnapshot>) -> std::result::Result<Vec<Facts>, Fault> {
    let snapshot = snapshot.upgrade().ok_or_else(|| Fault::internal("the configuration is gone"))?;
    let facts = |d: &SharedDict| {
        let kind = if d.is_number { "number" } else { "string" };
        List((d.dict.name.to_string(), kind.to_owned(), d.dict.capacity as f64, d.timeout > 0))
    };
    Ok(snapshot.main.js.dicts.iter().map(facts).collect())
}

/// A value that a program gives: a number or a text.
struct Given(Kept);

impl<'js> ::js::rquickjs::FromJs<'js> for Given {
    fn from_js(ctx: &Ctx<'js>, value: Value<'js>) -> Result<Given> {
        Ok(Given(match value.as_number() {
            Some(number) => Kept::Number(number),
            None => Kept::Text(Bytes::from_js(ctx, value)?.0.into()),
        }))
    }
}

/// Milliseconds that a new entry stays: what the program says, or the dictionary.
fn lifetime(dict: &SharedDict, ttl: f64) -> u64 {
    if ttl >= 1.0 { ttl as u64 } else { dict.timeout }
}

/// Adds to a number, or makes it. Only a dictionary that evicts loses others for it.
fn increase(dict: &SharedDict, key: &[u8], by: f64, first: f64, ttl: f64) -> Item {
    for _ in 0..2 {
        match dict.dict.incr(key, by, None, now()) {
            Ok((value, _)) => return Item::Number(value),
            Err(("not found", _)) => {}
            Err((text, _)) => return Item::from(text),
        }
        let begin = Kept::Number(first + by);
        match dict.dict.set(key, begin, (lifetime(dict, ttl), now()), 0, When::Absent, dict.evict) {
            Ok(_) => return Item::Number(first + by),
            // Another thread was faster.
            Err(("exists", _)) => {}
            Err((text, _)) => return Item::from(text),
        }
    }
    Item::from("busy")
}

fn store(
    dict: &SharedDict,
    way: &str,
    key: &[u8],
    value: Given,
    ttl: f64,
) -> std::result::Result<(bool, String), Fault> {
    if key.len() > MAX_KEY {
        return Err(Fault::of_type("key is too long"));
    }
    let when = match way {
        "add" => When::Absent,
        "replace" => When::Present,
        _ => When::Always,
    };
    Ok(match dict.dict.set(key, value.0, (lifetime(dict, ttl), now()), 0, when, dict.evict) {
        Ok(_) => (true, String::new()),
        Err((text, _)) => (false, text.to_owned()),
    })
}
