//! nginx's variables. Those that the configuration uses have a number; others are looked up by their names.

use super::super::current::with;
use super::super::machine;
use crate::config::Subsystem;
use crate::config::variables::Builtin;
use crate::modules;
use crate::request::{Request, Text};
use ::js::rquickjs::prelude::{Func, Opt};
use ::js::rquickjs::{Ctx, IntoJs, Object, Result, Value};
use ::js::{Buffer, Bytes, Fault};
use std::collections::HashMap;
use std::sync::OnceLock;

/// See the module's head.
pub fn add(raw: &Object<'_>) -> Result<()> {
    raw.set("variable", Func::from(shown))?;
    raw.set(
        "set_variable",
        Func::from(|ctx: Ctx<'_>, name: Bytes, value: Bytes| with(&ctx, |r| assign(r, &name.0, &value.0))),
    )?;
    raw.set(
        "variable_names",
        Func::from(|ctx: Ctx<'_>| {
            with(&ctx, |r| Ok(r.snapshot.variables.iter().map(|v| v.name.to_string()).collect::<Vec<_>>()))
        }),
    )?;
    raw.set(
        "js_var_names",
        Func::from(|ctx: Ctx<'_>, prefix: Opt<String>| {
            let prefix = prefix.0.unwrap_or_default();
            with(&ctx, |r| {
                let all = r.snapshot.main.js.vars.iter().filter(|v| v.starts_with(&prefix));
                Ok(all.map(ToString::to_string).collect::<Vec<_>>())
            })
        }),
    )
}

fn shown<'js>(ctx: Ctx<'js>, name: Bytes, as_bytes: bool) -> Result<Value<'js>> {
    let found = with(&ctx, |r| Ok(value(r, &name.0).map(|text| r.get(text).to_vec())))?;
    match found {
        None => Ok(Value::new_undefined(ctx)),
        Some(bytes) if as_bytes => Buffer(bytes).into_js(&ctx),
        Some(bytes) => Bytes(bytes).into_js(&ctx),
    }
}

type Builtins = HashMap<&'static str, &'static Builtin>;

fn subsystem(r: &Request) -> Subsystem {
    if r.ctx.stream.is_some() { Subsystem::Stream } else { Subsystem::Http }
}

fn builtins(subsystem: Subsystem) -> &'static Builtins {
    static TABLES: [OnceLock<Builtins>; 2] = [const { OnceLock::new() }; 2];
    TABLES[usize::from(subsystem.is_stream())]
        .get_or_init(|| modules::builtins(subsystem).map(|b| (b.name, b)).collect())
}

/// A variable's value by its name.
pub fn value(r: &mut Request, name: &[u8]) -> Option<Text> {
    let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
    if let Some(id) = machine::variable(r, lower.as_bytes()) {
        return r.variable(id);
    }
    let subsystem = subsystem(r);
    if let Some(builtin) = builtins(subsystem).get(&*lower) {
        return (builtin.evaluate)(r);
    }
    if !lower.is_empty() && lower.bytes().all(|b| b.is_ascii_digit()) {
        return lower.parse().ok().and_then(|n: usize| r.capture(n));
    }
    let prefix = modules::prefixes(subsystem).find(|p| lower.starts_with(p.name))?;
    (prefix.evaluate)(r, &lower[prefix.name.len()..])
}

/// Gives a variable a value.
fn assign(r: &mut Request, name: &[u8], value: &[u8]) -> std::result::Result<(), Fault> {
    let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
    let text = r.text(value);
    let builtin = builtins(subsystem(r)).get(&*lower);
    if let Some(assign) = builtin.and_then(|b| b.assign) {
        assign(r, text);
        return Ok(());
    }
    match machine::variable(r, lower.as_bytes()) {
        Some(id) if crate::modules::keyval::assign(r, id, value) => Ok(()),
        Some(id) => {
            match r.snapshot.variables[id.0 as usize].assign {
                Some(assign) => assign(r, text),
                None => r.assign(id, Some(text)),
            }
            Ok(())
        }
        None if builtin.is_some() => Err(Fault::of_type("variable is not writable")),
        None => Err(Fault::of_type("variable not found")),
    }
}
