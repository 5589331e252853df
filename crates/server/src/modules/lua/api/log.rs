//! `ngx.log`, and what a program is told of the worker.

use super::super::current::{self, Phase, machine};
use super::super::operation::number;
use super::super::run::log;
use crate::log::captured;
use crate::log::error::Level;
use crate::snapshot::ThreadSnapshot;
use ::lua::Fault;
use ::lua::machine::{add as add_function, bad_argument, made_text, write_piece};
use mlua::{Lua, LuaString, MultiValue, Table, Value};
use std::rc::Rc;

/// The function of the program that called: behind the raw function and its wrapper in the prelude.
const CALLER: usize = 2;
/// Bytes of one message (nginx's `NGX_MAX_ERROR_STR`, less what stands around it).
const MAX_MESSAGE: usize = 4096;

/// What is said where no lines are kept.
const NOT_KEPT: &str = "directive \"lua_capture_error_log\" is not set";

fn is_enabled(level: Level) -> bool {
    current::connection(|r| Ok(r.logs(level))).unwrap_or_else(|_| crate::log::error::default_enabled(level))
}

/// `content_by_lua(nginx.conf:40):3: name(): `
fn place(lua: &Lua) -> String {
    let shown = lua.inspect_stack(CALLER, |debug| {
        let source = debug.source();
        let file = source.short_src.as_deref().unwrap_or("?").to_owned();
        // Of a file the name without its folders; a program of the configuration has none.
        let file = if file.contains('(') { file } else { file.rsplit('/').next().unwrap_or(&file).to_owned() };
        let line = debug.current_line().map_or(-1, |l| l as i64);
        let name = debug.names().name.map(|n| format!("{n}(): ")).unwrap_or_default();
        format!("{file}:{line}: {name}")
    });
    shown.unwrap_or_default()
}

fn write(lua: &Lua, mut values: MultiValue) -> Result<(), Fault> {
    let given = values.pop_front();
    let given = given.as_ref().and_then(number).ok_or_else(|| bad_argument(1, "log", "number expected"))?;
    let level = Level::of_number(given as i64)
        .ok_or_else(|| bad_argument(1, "log", &format!("bad log level: {}", given as i64)))?;
    if !is_enabled(level) {
        return Ok(());
    }
    let mut text = Vec::new();
    for (at, value) in values.iter().enumerate() {
        match value {
            Value::Table(table) if table.metatable().is_some_and(|m| m.contains_key("__tostring").unwrap_or(false)) => {
                text.extend_from_slice(value.to_string().unwrap_or_default().as_bytes());
            }
            Value::Table(_) => return Err(bad_argument(at + 1, "log", "expected table to have __tostring metamethod")),
            value => write_piece(value, at + 1, "log", &mut text)?,
        }
    }
    text.truncate(MAX_MESSAGE);
    log(level, format_args!("[lua] {}{}", place(lua), String::from_utf8_lossy(&text)));
    Ok(())
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table, snapshot: &Rc<ThreadSnapshot>) -> mlua::Result<()> {
    add_function(lua, raw, "log", write)?;
    add_function(lua, raw, "raw_log", |_, (number, text): (f64, LuaString)| {
        let level = Level::of_number(number as i64).ok_or_else(|| Fault("bad log level".to_owned()))?;
        log(level, format_args!("{}", text.to_string_lossy()));
        Ok(())
    })?;
    let reader = if snapshot.is_stream() { captured::Reader::Stream } else { captured::Reader::Http };
    add_function(lua, raw, "log_least", move |_, number: Value| -> Result<_, Fault> {
        let Some(level) = super::super::operation::number(&number).and_then(|n| Level::of_number(n as i64)) else {
            return Ok((None, Some("bad log level")));
        };
        Ok(if captured::set_least(reader, level) { (Some(true), None) } else { (None, Some(NOT_KEPT)) })
    })?;
    add_function(lua, raw, "log_lines", move |lua, (most, into): (f64, Table)| -> Result<_, Fault> {
        let most = if most < 1.0 { usize::MAX } else { most as usize };
        let Some(lines) = captured::take(reader, most) else { return Ok((Value::Nil, Some(NOT_KEPT))) };
        let broken = |e: mlua::Error| Fault(e.to_string());
        let mut at = 0;
        for line in lines {
            let text = made_text(lua, &line.text)?;
            let values = [Value::Integer(line.level as i64), Value::Number(line.time_s), Value::String(text)];
            for value in values {
                at += 1;
                into.raw_set(at, value).map_err(broken)?;
            }
        }
        into.raw_set(at + 1, Value::Nil).map_err(broken)?;
        Ok((Value::Table(into), None))
    })?;
    add_function(lua, raw, "log_level", |_, ()| -> Result<_, Fault> {
        let all = [Level::Debug, Level::Info, Level::Notice, Level::Warn, Level::Error, Level::Crit, Level::Alert];
        let lowest = all.iter().position(|l| is_enabled(*l)).map_or(1, |at| 8 - at);
        Ok(lowest)
    })?;
    add_function(lua, raw, "global_written", |lua, (name, trace): (Value, LuaString)| -> Result<_, Fault> {
        let is_early = matches!(current::phase(), Phase::Init | Phase::InitWorker);
        if !is_early && machine()?.furnished.get() && is_enabled(Level::Warn) {
            let name = name.to_string().unwrap_or_default();
            let text =
                "which may lead to race conditions between concurrent requests, so prefer the use of 'local' variables";
            log(
                Level::Warn,
                format_args!(
                    "[lua] {}writing a global Lua variable ('{name}') {text}{}",
                    place(lua),
                    trace.to_string_lossy()
                ),
            );
        }
        Ok(())
    })?;
    add_function(lua, raw, "worker_pid", |_, ()| -> Result<_, Fault> { Ok(std::process::id()) })?;
    let has_master = snapshot.process.master_process;
    raw.raw_set("has_master", has_master)?;
    add_function(lua, raw, "master_pid", move |_, ()| -> Result<_, Fault> {
        let own = std::process::id().cast_signed();
        Ok(if has_master { rustix::process::getppid().map(|p| p.as_raw_nonzero().get()) } else { Some(own) })
    })?;
    let threads = snapshot.process.threads;
    add_function(lua, raw, "worker_count", move |_, ()| -> Result<_, Fault> { Ok(threads) })?;
    add_function(lua, raw, "worker_id", |_, ()| -> Result<_, Fault> { Ok(worker_number()) })?;
    add_function(lua, raw, "worker_exiting", |_, ()| -> Result<_, Fault> { Ok(machine()?.exiting.get()) })?;
    let prefix = snapshot.prefix.display().to_string();
    let prefix = if prefix.ends_with('/') { prefix } else { prefix + "/" };
    add_function(lua, raw, "prefix", move |_, ()| -> Result<_, Fault> { Ok(prefix.clone()) })?;
    add_function(lua, raw, "nginx_configure", |_, ()| -> Result<_, Fault> {
        Ok(crate::modules::configure_arguments())
    })?;
    add_function(lua, raw, "random_bytes", |lua, count: f64| {
        let mut bytes = vec![0; (count.max(0.0) as usize).min(MAX_MESSAGE)];
        fill_random(&mut bytes);
        made_text(lua, &bytes)
    })
}

fn fill_random(bytes: &mut [u8]) {
    // Asked of the library that makes keys: it never fails once it is seeded.
    let _ = aws_lc_rs::rand::fill(bytes);
}

/// Which worker thread this is.
fn worker_number() -> usize {
    let thread = std::thread::current();
    thread.name().and_then(|n| n.strip_prefix("worker ")?.parse().ok()).unwrap_or(0)
}
