//! `ngx.now` and its like: the loop's clocks, and times as texts.

use ::lua::Fault;
use ::lua::machine::{add as add_function, made_text};
use ::lua::quick;
use mlua::{Lua, LuaString, Table};
use runtime::clock;
use wire::date;

fn local_offset() -> i64 {
    crate::log::offset_seconds()
}

/// `2026-11-23 08:30:00`
fn shown(seconds: i64) -> String {
    let text = date::format_iso8601(seconds, 0);
    let text = String::from_utf8_lossy(&text[..19]).into_owned();
    text.replace('T', " ")
}

/// `Mon, 23-Nov-26 08:30:00 GMT`
fn cookie_time(seconds: i64) -> String {
    let text = date::format_http(seconds);
    let text = String::from_utf8_lossy(&text);
    // `Mon, 23 Nov 2026 08:30:00 GMT`. As nginx: from 2038 on the year has four digits.
    let year = if &text[12..16] > "2037" { &text[12..16] } else { &text[14..16] };
    format!("{}, {}-{}-{year} {}", &text[..3], &text[5..7], &text[8..11], &text[17..])
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    quick::add(lua, raw, "now", |call| {
        call.give_number(clock::wall_ms() as f64 / 1000.0);
        Ok(())
    })?;
    quick::add(lua, raw, "time", |call| {
        call.give_number((clock::wall_ms() / 1000) as f64);
        Ok(())
    })?;
    quick::add(lua, raw, "monotonic_ms", |call| {
        call.give_number(clock::monotonic_ms() as f64);
        Ok(())
    })?;
    add_function(lua, raw, "update_time", |_, ()| -> Result<_, Fault> {
        clock::refresh();
        Ok(())
    })?;
    add_function(lua, raw, "today", |_, ()| -> Result<_, Fault> {
        Ok(shown(clock::wall_seconds() + local_offset())[..10].to_owned())
    })?;
    add_function(lua, raw, "localtime", |_, ()| -> Result<_, Fault> {
        Ok(shown(clock::wall_seconds() + local_offset()))
    })?;
    add_function(lua, raw, "utctime", |_, ()| -> Result<_, Fault> { Ok(shown(clock::wall_seconds())) })?;
    add_function(lua, raw, "cookie_time", |_, seconds: f64| -> Result<_, Fault> { Ok(cookie_time(seconds as i64)) })?;
    add_function(lua, raw, "http_time", |lua, seconds: f64| made_text(lua, &date::format_http(seconds as i64)))?;
    add_function(lua, raw, "parse_http_time", |_, text: LuaString| -> Result<_, Fault> {
        Ok(date::parse_http(&text.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_ngx_lua_s() {
        assert_eq!(super::shown(1_290_079_655), "2010-11-18 11:27:35");
        assert_eq!(super::cookie_time(1_290_079_655), "Thu, 18-Nov-10 11:27:35 GMT");
    }
}
