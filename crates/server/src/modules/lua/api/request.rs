//! `ngx.req`: the request's head, and what a program changes of it.

use super::super::current::{ANSWERING, Phase, machine, phase, request, request_in};
use super::answer::escaped;
use crate::log_error;
use crate::request::headers::{HeaderLine, KnownHeader as K};
use crate::request::{Method, Request, Text, Version, head};
use ::lua::Fault;
use ::lua::machine::{add as add_function, add_to_table, args_table, bytes_of, made_text};
use ::lua::text::MAX_ARGS;
use mlua::{Lua, Table, Value};

/// Headers that are shown where nobody says how many.
const MAX_HEADERS: usize = 100;

fn broken(e: mlua::Error) -> Fault {
    Fault(e.to_string())
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "req_method", |lua, ()| request(|r| made_text(lua, r.get(r.head.method_name))))?;
    add_function(lua, raw, "req_set_method", |_, number: Option<f64>| request(|r| set_method(r, number)))?;
    add_function(lua, raw, "req_http_version", |_, ()| {
        request(|r| {
            Ok(match r.head.version {
                v if v < Version::HTTP10 => Some(0.9),
                Version::HTTP10 => Some(1.0),
                Version::HTTP11 => Some(1.1),
                Version(2000..3000) => Some(2.0),
                Version(3000..4000) => Some(3.0),
                _ => None,
            })
        })
    })?;
    add_function(lua, raw, "req_is_internal", |_, ()| request(|r| Ok(r.flow.internal)))?;
    add_function(lua, raw, "req_start_time", |_, ()| request(|r| Ok(r.started_ms as f64 / 1000.0)))?;
    add_function(lua, raw, "req_raw_header", |lua, no_line: Option<bool>| {
        request(|r| made_text(lua, &head::as_sent(r, no_line == Some(true))))
    })?;
    add_function(lua, raw, "req_headers", |lua, (max, as_they_are): (Option<f64>, Option<bool>)| {
        request(|r| headers(lua, r, max, as_they_are == Some(true)))
    })?;
    add_function(lua, raw, "req_set_header", |_, (name, value): (Value, Value)| {
        let name = escaped(bytes_of(&name, 1, "set_header")?, true);
        let values = match &value {
            // It is taken away.
            Value::Nil => Vec::new(),
            Value::Table(list) => {
                let mut all = Vec::new();
                for value in list.sequence_values::<Value>() {
                    all.push(escaped(bytes_of(&value.map_err(broken)?, 2, "set_header")?, false));
                }
                all
            }
            value => vec![escaped(bytes_of(value, 2, "set_header")?, false)],
        };
        request(|r| {
            set_header(r, &name, &values);
            if K::find(&name) == K::ContentLength {
                shorten_body(r, &values);
            }
            Ok(())
        })
    })?;
    add_function(lua, raw, "req_add_header", |_, (name, value): (Value, Value)| {
        let name = escaped(bytes_of(&name, 1, "add_header")?, true);
        let value = escaped(bytes_of(&value, 2, "add_header")?, false);
        request(|r| {
            add_header(r, &name, &value);
            Ok(())
        })
    })?;
    add_function(lua, raw, "req_clear_header", |_, name: Value| {
        let name = bytes_of(&name, 1, "clear_header")?;
        request(|r| {
            set_header(r, &name, &[]);
            Ok(())
        })
    })?;
    add_function(lua, raw, "req_uri_args", |lua, max: Option<f64>| {
        request(|r| {
            let max = max.map_or(MAX_ARGS, |n| n.max(0.0) as usize);
            let (table, more) = args_table(lua, r.get(r.head.args), max)?;
            if more {
                log_error!(r, Debug, "lua hit query args limit {max}");
            }
            Ok((table, more.then_some("truncated")))
        })
    })?;
    add_function(lua, raw, "req_set_args", |_, args: mlua::LuaString| {
        // What would end a line is escaped.
        let args = escaped(args.as_bytes().to_vec(), false);
        request(|r| {
            (r.head.args, r.head.valid_target) = (r.text(&args), false);
            Ok(())
        })
    })?;
    add_function(lua, raw, "req_set_uri", |_, (uri, jump, binary): (Value, Option<bool>, Option<bool>)| {
        let uri = bytes_of(&uri, 1, "set_uri")?;
        set_uri(&uri, jump == Some(true), binary == Some(true))
    })
}

fn set_method(r: &mut Request, number: Option<f64>) -> Result<(), Fault> {
    let name = match number.map_or(0, |n| n as i64) {
        2 => "GET",
        4 => "HEAD",
        8 => "POST",
        16 => "PUT",
        32 => "DELETE",
        64 => "MKCOL",
        128 => "COPY",
        256 => "MOVE",
        512 => "OPTIONS",
        1024 => "PROPFIND",
        2048 => "PROPPATCH",
        4096 => "LOCK",
        8192 => "UNLOCK",
        16384 => "PATCH",
        32768 => "TRACE",
        other => return Err(Fault(format!("unsupported HTTP method: {other}"))),
    };
    (r.head.method, r.head.method_name) = (Method::of(name.as_bytes()), Text::from(name));
    Ok(())
}

/// A byte that must not stand in a URI.
pub fn unsafe_byte(uri: &[u8]) -> Option<u8> {
    uri.iter().copied().find(|b| matches!(b, 0..0x20 | 0x7f) && *b != b'\t')
}

/// A text with such bytes as messages show it.
pub fn shown_safely(text: &[u8]) -> String {
    let mut out = String::new();
    for part in text.utf8_chunks() {
        for c in part.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\0'..='\x1f' | '\x7f' => out.push_str(&format!("\\x{:02X}", u32::from(c))),
                c => out.push(c),
            }
        }
        part.invalid().iter().for_each(|b| out.push_str(&format!("\\x{b:02X}")));
    }
    out
}

fn set_uri(uri: &[u8], jump: bool, binary: bool) -> Result<bool, Fault> {
    if uri.is_empty() {
        return Err(Fault("attempt to use zero-length uri".to_owned()));
    }
    if !binary && let Some(byte) = unsafe_byte(uri) {
        return Err(Fault(format!(
            "unsafe byte \"0x{byte:02x}\" in uri \"{}\" (maybe you want to set the 'binary' argument?)",
            shown_safely(uri)
        )));
    }
    if jump && phase() != Phase::Rewrite && phase() != Phase::ServerRewrite {
        return Err(Fault(format!("API disabled in the context of {}", phase().context())));
    }
    let work = |r: &mut Request| {
        r.head.uri = r.text(uri);
        (r.head.plain_uri, r.head.valid_target) = (false, false);
        if jump {
            log_error!(r, Debug, "lua set uri jump to \"{}\"", String::from_utf8_lossy(uri));
            r.flow.internal = true;
        } else {
            r.flow.valid_location = false;
        }
        Ok(jump)
    };
    if jump { request_in(ANSWERING, work) } else { request(work) }
}

fn headers(
    lua: &Lua,
    r: &mut Request,
    max: Option<f64>,
    as_they_are: bool,
) -> Result<(Table, Option<&'static str>), Fault> {
    let max = match max.map_or(MAX_HEADERS, |n| n.max(0.0) as usize) {
        0 => usize::MAX,
        max => max,
    };
    let table = lua.create_table().map_err(broken)?;
    let lines = r.head.headers.lines();
    for line in lines.iter().take(max) {
        let mut name = r.arena.span(line.name).to_vec();
        if !as_they_are {
            name.make_ascii_lowercase();
        }
        let value = Value::String(made_text(lua, r.arena.span(line.value))?);
        add_to_table(lua, &table, &name, value).map_err(broken)?;
    }
    if lines.len() > max {
        log_error!(r, Debug, "lua exceeding request header limit {} > {max}", lines.len());
    }
    Ok((table, (lines.len() > max).then_some("truncated")))
}

/// Puts a header in place of all of its name; what the server has read of it is read anew.
pub fn set_header(r: &mut Request, name: &[u8], values: &[Vec<u8>]) {
    if r.head.version < Version::HTTP10 {
        // HTTP/0.9 has none.
        return;
    }
    let known = K::find(name);
    let (arena, lines) = (&r.arena, &mut r.head.headers.head.headers);
    let first = lines.iter().position(|l| arena.span(l.name).eq_ignore_ascii_case(name));
    lines.retain(|l| !arena.span(l.name).eq_ignore_ascii_case(name));
    for (at, value) in (first.unwrap_or(lines.len())..).zip(values) {
        let line = HeaderLine { name: r.arena.push(name), value: r.arena.push(value), known };
        r.head.headers.head.headers.insert(at.min(r.head.headers.head.headers.len()), line);
    }
    if known == K::Host {
        r.head.headers.host = values.last().map(|v| {
            let host = v.split(|b| *b == b':').next().unwrap_or_default().to_ascii_lowercase();
            r.text(&host)
        });
        // `$host` may have been asked for already.
        if let Some(id) = machine().ok().and_then(|machine| machine.names.get(b"host".as_slice()).copied()) {
            r.forget(id);
        }
    }
}

/// A program says that the body is shorter than it is: the rest is not read, and the connection ends with the answer.
fn shorten_body(r: &mut Request, values: &[Vec<u8>]) {
    let length = values.last().and_then(|v| std::str::from_utf8(v).ok()?.trim().parse().ok());
    if let Some(length) = length.filter(|_| r.is_main() && r.body.stored.is_none())
        && r.body.shorten(length)
    {
        r.head.headers.content_length = Some(length);
        (r.flow.keepalive, r.flow.lingering_close) = (false, true);
    }
}

fn add_header(r: &mut Request, name: &[u8], value: &[u8]) {
    let line = HeaderLine { name: r.arena.push(name), value: r.arena.push(value), known: K::find(name) };
    r.head.headers.head.headers.push(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_bytes_are_shown() {
        assert_eq!(unsafe_byte(b"/foo\tbar"), None);
        assert_eq!(unsafe_byte(b"/foo\rbar"), Some(b'\r'));
        assert_eq!(shown_safely(b"/foo\r\n\xff"), "/foo\\x0D\\x0A\\xFF");
    }
}
