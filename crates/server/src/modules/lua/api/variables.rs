//! `ngx.var`: nginx's variables. Those that the configuration uses have a number; others are looked up by their names.

use super::super::Machine;
use super::super::current::{connection, machine, request};
use crate::config::Subsystem;
use crate::config::variables::{Builtin, Prefix, is_changeable};
use crate::modules;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use ::lua::Fault;
use ::lua::machine::{add as add_function, bad_argument, bytes_of, made_text};
use ::lua::quick::{self, Kind};
use mlua::{Lua, Table, Value};
use std::cell::RefCell;
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

/// Names that a machine keeps the ways of: those of its programs' texts; a program may make others of what clients send.
const MOST_WAYS: usize = 1024;

/// The ways to variables by the names that programs have for them.
#[derive(Default)]
pub struct Ways {
    reading: RefCell<hashbrown::HashMap<Box<[u8]>, Way>>,
    writing: RefCell<hashbrown::HashMap<Box<[u8]>, Target>>,
}

/// The way to a variable's value.
#[derive(Clone, Copy)]
enum Way {
    Known(VariableId),
    Builtin(&'static Builtin),
    Group(usize),
    Prefix(&'static Prefix),
    Nowhere,
}

/// What a variable is written by.
#[derive(Clone, Copy)]
enum Target {
    Known(VariableId),
    Builtin(fn(&mut Request, Text)),
}

fn keep<T>(ways: &RefCell<hashbrown::HashMap<Box<[u8]>, T>>, name: &[u8], way: T) {
    let mut ways = ways.borrow_mut();
    if ways.len() < MOST_WAYS {
        ways.insert(name.into(), way);
    }
}

/// A variable's value by its name.
pub fn value(r: &mut Request, name: &[u8]) -> Result<Option<Text>, Fault> {
    let machine = machine()?;
    let known = machine.ways.reading.borrow().get(name).copied();
    let way = known.unwrap_or_else(|| {
        let way = way_of(&machine, subsystem(r), name);
        keep(&machine.ways.reading, name, way);
        way
    });
    Ok(match way {
        Way::Known(id) => r.variable(id),
        Way::Builtin(builtin) => (builtin.evaluate)(r),
        Way::Group(number) => r.capture(number),
        Way::Prefix(prefix) => {
            // The rest is small letters, as a name is.
            let Ok(text) = std::str::from_utf8(&name[prefix.name.len()..]) else { return Ok(None) };
            match text.bytes().any(|b| b.is_ascii_uppercase()) {
                true => (prefix.evaluate)(r, &text.to_ascii_lowercase()),
                false => (prefix.evaluate)(r, text),
            }
        }
        Way::Nowhere => None,
    })
}

fn way_of(machine: &Machine, subsystem: Subsystem, name: &[u8]) -> Way {
    if let Some(id) = machine.names.get(name) {
        return Way::Known(*id);
    }
    let Ok(text) = std::str::from_utf8(name) else { return Way::Nowhere };
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return way_of(machine, subsystem, text.to_ascii_lowercase().as_bytes());
    }
    if let Some(builtin) = builtins(subsystem).get(text) {
        return Way::Builtin(builtin);
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map_or(Way::Nowhere, Way::Group);
    }
    modules::prefixes(subsystem).find(|p| text.starts_with(p.name)).map_or(Way::Nowhere, Way::Prefix)
}

/// Gives a variable a value; none makes it not found.
pub fn assign(r: &mut Request, name: &[u8], value: Option<&[u8]>) -> Result<(), Fault> {
    let text = value.map(|v| r.text(v));
    let machine = machine()?;
    let known = machine.ways.writing.borrow().get(name).copied();
    let target = match known {
        Some(target) => target,
        None => {
            let target = target_of(&machine, subsystem(r), name)?;
            keep(&machine.ways.writing, name, target);
            target
        }
    };
    match target {
        Target::Known(id) => r.assign(id, text),
        Target::Builtin(assign) => assign(r, text.unwrap_or(Text::EMPTY)),
    }
    Ok(())
}

fn target_of(machine: &Machine, subsystem: Subsystem, name: &[u8]) -> Result<Target, Fault> {
    let shown = String::from_utf8_lossy(name).to_ascii_lowercase();
    if let Some(builtin) = builtins(subsystem).get(&*shown) {
        if let Some(assign) = builtin.assign {
            return Ok(Target::Builtin(assign));
        }
        if !is_changeable(&shown) {
            return Err(Fault(format!("variable \"{shown}\" not changeable")));
        }
    }
    let is_prefixed = modules::prefixes(subsystem).any(|p| shown.starts_with(p.name));
    match machine.names.get(shown.as_bytes()).filter(|_| !is_prefixed) {
        Some(id) => Ok(Target::Known(*id)),
        None => Err(Fault(format!(
            "variable \"{shown}\" not found for writing; maybe it is a built-in variable that is not changeable or you forgot to use \
             \"set ${shown} '';\" in the config file to define it first"
        ))),
    }
}
