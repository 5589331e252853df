//! `ngx.var`: nginx's variables. Those that the configuration uses have a number; others are looked up by their names.

use super::super::current::{connection, machine, request};
use crate::config::Subsystem;
use crate::config::variables::{Builtin, Prefix, is_changeable};
use crate::modules;
use crate::request::{Request, Text};
use ::lua::Fault;
use ::lua::machine::{add as add_function, bad_argument, bytes_of, made_text};
use ::lua::quick::{self, Kind};
use mlua::{Lua, Table, Value};
use std::collections::HashMap;
use std::sync::OnceLock;

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    quick::add(lua, raw, "var", |call| {
        match call.argument(1) {
            Kind::Text(name) => connection(|r| {
                match value(r, name)? {
                    Some(text) => call.give_bytes(r.get(text)),
                    None => call.give_nil(),
                }
                Ok(())
            })?,
            _ => call.give_other(),
        }
        Ok(())
    })?;
    add_function(lua, raw, "var_any", |lua, name: Value| match &name {
        Value::String(name) => connection(|r| shown(lua, r, &name.as_bytes())),
        Value::Integer(number) => request(|r| match r.capture(*number as usize) {
            Some(text) => made_text(lua, r.get(text)).map(Value::String),
            None => Ok(Value::Nil),
        }),
        _ => Err(Fault("bad variable name".to_owned())),
    })?;
    quick::add(lua, raw, "set_var_quick", |call| {
        let (Kind::Text(name), Kind::Text(value)) = (call.argument(1), call.argument(2)) else {
            call.give_other();
            return Ok(());
        };
        request(|r| assign(r, name, Some(value)))?;
        call.give_nil();
        Ok(())
    })?;
    add_function(lua, raw, "set_var", |_, (name, value): (Value, Value)| {
        let name = bytes_of(&name, 1, "set").map_err(|_| Fault("bad variable name".to_owned()))?;
        let value = match &value {
            Value::Nil => None,
            value => Some(bytes_of(value, 2, "set").map_err(|_| {
                bad_argument(2, "set", &format!("string, number, or nil expected, but got {}", value.type_name()))
            })?),
        };
        request(|r| assign(r, &name, value.as_deref()))
    })
}

/// `ndk.set_var`
pub fn add_functions(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "set_var_exists", |_, name: String| -> Result<_, Fault> {
        Ok(modules::set_misc::function(&name).is_some())
    })?;
    add_function(lua, raw, "set_var_call", |lua, (name, text): (String, Value)| {
        let make = modules::set_misc::function(&name).ok_or_else(|| Fault(format!("no such directive: {name}")))?;
        let text = bytes_of(&text, 1, &name)?;
        connection(|r| {
            let text = r.text(&text);
            let made = make(r, &[text]);
            if r.take_fault() {
                return Err(Fault(format!("calling directive {name} failed")));
            }
            made.map_or(Ok(Value::Nil), |made| made_text(lua, r.get(made)).map(Value::String))
        })
    })
}

fn shown(lua: &Lua, r: &mut Request, name: &[u8]) -> Result<Value, Fault> {
    match value(r, name)? {
        Some(text) => made_text(lua, r.get(text)).map(Value::String),
        None => Ok(Value::Nil),
    }
}

type Builtins = HashMap<&'static str, &'static Builtin>;

fn subsystem(r: &Request) -> Subsystem {
    if r.ctx.stream.is_some() { Subsystem::Stream } else { Subsystem::Http }
}

fn builtins(subsystem: Subsystem) -> &'static Builtins {
    static HTTP: OnceLock<Builtins> = OnceLock::new();
    static STREAM: OnceLock<Builtins> = OnceLock::new();
    let table = if subsystem.is_stream() { &STREAM } else { &HTTP };
    table.get_or_init(|| modules::builtins(subsystem).map(|b| (b.name, b)).collect())
}

/// A variable's value by its name.
pub fn value(r: &mut Request, name: &[u8]) -> Result<Option<Text>, Fault> {
    if let Some(id) = machine()?.names.get(name) {
        return Ok(r.variable(*id));
    }
    let Ok(text) = std::str::from_utf8(name) else { return Ok(None) };
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return value(r, text.to_ascii_lowercase().as_bytes());
    }
    if let Some(builtin) = builtins(subsystem(r)).get(text) {
        return Ok((builtin.evaluate)(r));
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(text.parse().ok().and_then(|n: usize| r.capture(n)));
    }
    let prefix: Option<&Prefix> = modules::prefixes(subsystem(r)).find(|p| text.starts_with(p.name));
    Ok(prefix.and_then(|p| (p.evaluate)(r, &text[p.name.len()..])))
}

/// Gives a variable a value; none makes it not found.
pub fn assign(r: &mut Request, name: &[u8], value: Option<&[u8]>) -> Result<(), Fault> {
    let shown = String::from_utf8_lossy(name).to_ascii_lowercase();
    let text = value.map(|v| r.text(v));
    if let Some(builtin) = builtins(subsystem(r)).get(&*shown) {
        if let Some(assign) = builtin.assign {
            assign(r, text.unwrap_or(Text::EMPTY));
            return Ok(());
        }
        if !is_changeable(&shown) {
            return Err(Fault(format!("variable \"{shown}\" not changeable")));
        }
    }
    let is_prefixed = modules::prefixes(subsystem(r)).any(|p| shown.starts_with(p.name));
    match machine()?.names.get(shown.as_bytes()).filter(|_| !is_prefixed) {
        Some(id) => {
            let id = *id;
            r.assign(id, text);
            Ok(())
        }
        None => Err(Fault(format!(
            "variable \"{shown}\" not found for writing; maybe it is a built-in variable that is not changeable or you forgot to use \
             \"set ${shown} '';\" in the config file to define it first"
        ))),
    }
}
