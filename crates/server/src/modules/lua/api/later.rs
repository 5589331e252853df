//! `ngx.timer` and `ngx.semaphore`: what a program begins now and goes on with later.

use super::super::current::machine;
use super::super::{semaphore, timer};
use ::lua::Fault;
use ::lua::machine::add as add_function;
use mlua::{Function, Lua, MultiValue, Table, Value};

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "timer", |_, mut values: MultiValue| {
        let (delay, repeated, function) = (values.pop_front(), values.pop_front(), values.pop_front());
        let delay = delay.as_ref().and_then(super::super::operation::number).unwrap_or(0.0);
        let Some(Value::Function(function)) = function else { return Err(Fault("no function".to_owned())) };
        let function: Function = function;
        Ok(match timer::make(delay, matches!(repeated, Some(Value::Boolean(true))), function, values)? {
            None => (Value::Integer(1), None),
            Some(refused) => (Value::Nil, Some(refused)),
        })
    })?;
    add_function(lua, raw, "timers_running", |_, ()| -> Result<_, Fault> { Ok(machine()?.running.get()) })?;
    add_function(lua, raw, "timers_pending", |_, ()| -> Result<_, Fault> { Ok(machine()?.pending.get()) })?;
    add_function(lua, raw, "semaphore", |lua, count: f64| {
        let (number, guard) = semaphore::make(count as u64);
        let guard = lua.create_userdata(guard).map_err(|e| Fault(e.to_string()))?;
        Ok((number, guard))
    })?;
    add_function(lua, raw, "semaphore_post", |_, (number, count): (f64, f64)| -> Result<_, Fault> {
        semaphore::post(number as u32, count as u64);
        Ok(())
    })?;
    add_function(lua, raw, "semaphore_take", |_, number: f64| -> Result<_, Fault> {
        Ok(semaphore::take(number as u32))
    })?;
    add_function(lua, raw, "semaphore_count", |_, number: f64| -> Result<_, Fault> {
        Ok(semaphore::count(number as u32))
    })
}
