//! A thread as scripts know it (`setup`, `wrk.thread`), and what goes from one thread's state to another: plain values.

use super::host::Host;
use mlua::{Lua, LuaString, UserData, UserDataFields, UserDataMethods, Value};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Tables within tables that `thread:set` copies.
const MAX_DEPTH: u32 = 16;

/// See the file's head.
#[derive(Clone)]
pub(super) struct Thread {
    host: Host,
    stopped: Arc<AtomicBool>,
    address: Arc<Mutex<Option<SocketAddr>>>,
}

impl Thread {
    pub(super) fn new(host: Host) -> Thread {
        Thread { host, stopped: Arc::default(), address: Arc::default() }
    }

    /// Where the script sends it, if not to the URL's host.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `thread:stop()` was called.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

impl UserData for Thread {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("addr", |_, this| Ok(this.address().map(|a| a.to_string())));
        fields.add_field_method_set("addr", |_, this, text: String| {
            let parsed = text.parse().map_err(|_| mlua::Error::runtime(format!("\"{text}\" is not of wrk.lookup")))?;
            *this.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(parsed);
            Ok(())
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("get", |lua, this, name: LuaString| {
            if this.host.is_this_thread() {
                return lua.globals().get::<Value>(name);
            }
            let name = name.as_bytes().to_vec();
            let found = this.host.ask(move |state| {
                let name = state.lua.create_string(name)?;
                Plain::of(&state.lua.globals().get::<Value>(name)?, MAX_DEPTH)
            });
            found.map_err(mlua::Error::runtime)??.into_lua(lua)
        });
        methods.add_method("set", |lua, this, (name, value): (LuaString, Value)| {
            let value = Plain::of(&value, MAX_DEPTH)?;
            if this.host.is_this_thread() {
                return lua.globals().set(name, value.into_lua(lua)?);
            }
            let name = name.as_bytes().to_vec();
            let set = this.host.ask(move |state| {
                let name = state.lua.create_string(name)?;
                state.lua.globals().set(name, value.into_lua(&state.lua)?)
            });
            set.map_err(mlua::Error::runtime)?
        });
        methods.add_method("stop", |_, this, ()| {
            this.stopped.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
}

/// A value without its state; functions and the like become nil.
enum Plain {
    Nil,
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Text(Vec<u8>),
    Table(Vec<(Plain, Plain)>),
}

impl Plain {
    fn of(value: &Value, depth: u32) -> mlua::Result<Plain> {
        Ok(match value {
            Value::Boolean(b) => Plain::Boolean(*b),
            Value::Integer(i) => Plain::Integer(*i),
            Value::Number(n) => Plain::Number(*n),
            Value::String(s) => Plain::Text(s.as_bytes().to_vec()),
            Value::Table(table) if depth > 0 => {
                let mut pairs = Vec::new();
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    let key = Plain::of(&key, depth - 1)?;
                    // What cannot be told to others cannot be a key there.
                    if !matches!(key, Plain::Nil) {
                        pairs.push((key, Plain::of(&value, depth - 1)?));
                    }
                }
                Plain::Table(pairs)
            }
            _ => Plain::Nil,
        })
    }

    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            Plain::Nil => Value::Nil,
            Plain::Boolean(b) => Value::Boolean(b),
            Plain::Integer(i) => Value::Integer(i),
            Plain::Number(n) => Value::Number(n),
            Plain::Text(text) => Value::String(lua.create_string(text)?),
            Plain::Table(pairs) => {
                let table = lua.create_table()?;
                for (key, value) in pairs {
                    table.raw_set(key.into_lua(lua)?, value.into_lua(lua)?)?;
                }
                Value::Table(table)
            }
        })
    }
}
