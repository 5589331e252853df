//! `ngx.say`, `ngx.print`, `ngx.header`, `ngx.status`, `ngx.exit`, `ngx.redirect`, `ngx.exec`: what the client gets.

use super::super::chunk::Chunk as Program;
use super::super::current::{
    ANSWERING, BEFORE_BODY, Phase, WAITING, connection, machine, need, phase, request, request_in,
};
use super::super::phases::{add_header, content_type, finish_answer, send_head, set_header};
use super::super::{current, raw};
use super::request::{shown_safely, unsafe_byte};
use crate::log_error;
use crate::request::chunk::Chunk;
use crate::request::headers::{HeaderOut, KnownHeader as K};
use crate::request::phases::Verdict;
use crate::request::{Request, Text, Version};
use ::lua::Fault;
use ::lua::machine::{
    add as add_function, add_to_table, bad_argument, bytes_of, made_text, write_kind, write_number, write_piece,
};
use ::lua::quick::{self, Call, Kind};
use ::lua::shelf::Slot;
use mlua::{Lua, LuaString, MultiValue, Table, Value};
use std::borrow::Cow;
use std::cell::RefCell;

/// Headers that are shown where nobody says how many.
const MAX_HEADERS: usize = 100;

thread_local! {
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What says that it did not work: `nil` and why.
type Tried = Result<(Value, Option<&'static str>), Fault>;

fn done() -> Tried {
    Ok((Value::Integer(1), None))
}

fn refused(why: &'static str) -> Tried {
    Ok((Value::Nil, Some(why)))
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    for (name, newline) in [("say", true), ("print", false)] {
        quick::add(lua, raw, name, move |call| say_quick(call, newline))?;
        add_function(lua, raw, &format!("{name}_any"), move |_, values: MultiValue| say(&values, newline))?;
    }
    add_function(lua, raw, "send_headers", |_, ()| {
        request_in(ANSWERING, |r| if r.answer.header_sent || send_head(r).is_ok() { done() } else { refused("failed") })
    })?;
    add_function(lua, raw, "checks_abort", |_, ()| request_in(ANSWERING, |r| Ok(*r.conf().lua.check_client_abort)))?;
    add_function(lua, raw, "eof", |_, ()| request_in(ANSWERING, eof))?;
    add_function(lua, raw, "flush", |_, wait: Option<bool>| request_in(ANSWERING, |r| flush(r, wait == Some(true))))?;
    add_function(lua, raw, "exit", |_, status: Value| exit(&status))?;
    add_function(lua, raw, "redirect", |_, (uri, status): (Value, Option<f64>)| redirect(&uri, status))?;
    add_function(lua, raw, "exec", |_, (uri, args): (Value, Value)| exec(&uri, &args))?;
    add_function(lua, raw, "status", |_, ()| request(|r| Ok(status(r))))?;
    add_function(lua, raw, "set_status", |_, value: Value| request(|r| set_status(r, &value)))?;
    add_function(lua, raw, "set_status_line", |_, (value, reason): (Value, LuaString)| {
        request(|r| {
            set_status(r, &value)?;
            if !r.answer.header_sent {
                let status = r.answer.headers.status;
                let line = [format!("{status} ").as_bytes(), &reason.as_bytes()].concat();
                // What would end the line has no place in it.
                let line: Vec<u8> = line.into_iter().map(|b| if b.is_ascii_control() { b' ' } else { b }).collect();
                r.answer.headers.status_line = Some(r.text(&line));
            }
            Ok(())
        })
    })?;
    add_function(lua, raw, "bypass_if_checks", |_, ()| {
        request(|r| {
            r.answer.disable_not_modified = true;
            Ok(())
        })
    })?;
    add_function(lua, raw, "headers_sent", |_, ()| request(|r| Ok(r.answer.header_sent)))?;
    add_function(lua, raw, "is_subrequest", |_, ()| request(|r| Ok(!r.is_main())))?;
    add_function(lua, raw, "header", |lua, name: Value| {
        let name = bytes_of(&name, 1, "header")?;
        request(|r| header(lua, r, &name))
    })?;
    quick::add(lua, raw, "set_header_quick", set_quick)?;
    add_function(lua, raw, "set_header", |_, (name, value): (Value, Value)| set(&name, &value))?;
    add_function(lua, raw, "add_header", |_, (name, value): (Value, Value)| {
        let name = escaped(bytes_of(&name, 1, "add_header")?, true);
        let all: Vec<_> = texts_of(&value)?.into_iter().map(|v| escaped(v, false)).collect();
        request_in(BEFORE_BODY, |r| {
            all.iter().for_each(|value| add_header(r, &name, value));
            Ok(())
        })
    })?;
    add_function(lua, raw, "resp_headers", |lua, (max, as_they_are): (Option<f64>, Option<bool>)| {
        request(|r| headers(lua, r, max, as_they_are == Some(true)))
    })?;
    add_arguments(lua, raw)
}

/// The client cannot be reached any more, in ngx_lua's words.
pub const LOST: &str = "nginx output filter error";

/// Whether that is known.
fn is_lost(r: &Request) -> bool {
    r.ctx.lua.as_ref().is_some_and(|c| c.failed.is_some())
}

/// Whether a quick function may send the head: what the header filter runs is compiled. A body filter is for the other function.
fn is_ready(r: &Request) -> bool {
    let conf = &r.conf().lua;
    conf.body_filter.is_none() && (*conf.header_filter).as_ref().is_none_or(|program| is_compiled(program))
}

fn is_compiled(program: &Program) -> bool {
    machine().is_ok_and(|machine| machine.known(program).is_some())
}

/// What is no table.
fn say_quick(call: &Call, newline: bool) -> Result<(), Fault> {
    need(ANSWERING)?;
    let mut room = ROOM.take();
    room.clear();
    let is_plain = (1..=call.count()).all(|number| write_kind(&call.argument(number), &mut room));
    if newline {
        room.push(b'\n');
    }
    let sent = request(|r| {
        if !is_plain || !is_ready(r) {
            return Ok(None);
        }
        send(r, &room).map(Some)
    });
    ROOM.set(room);
    match sent? {
        None => call.give_other(),
        Some((Value::Nil, why)) => {
            call.give_nil();
            why.iter().for_each(|why| call.give_bytes(why.as_bytes()));
        }
        Some(_) => call.give_number(1.0),
    }
    Ok(())
}

fn say(values: &MultiValue, newline: bool) -> Tried {
    let name = if newline { "say" } else { "print" };
    need(ANSWERING)?;
    let mut room = ROOM.take();
    room.clear();
    let written = values.iter().enumerate().try_for_each(|(number, v)| write_piece(v, number + 1, name, &mut room));
    if newline {
        room.push(b'\n');
    }
    let sent = written.and_then(|()| request(|r| send(r, &room)));
    ROOM.set(room);
    sent
}

fn send(r: &mut Request, bytes: &[u8]) -> Tried {
    if r.ctx.stream.is_some() {
        return match raw::say(r, bytes) {
            Ok(()) => done(),
            Err(why) => refused(why),
        };
    }
    let context = r.ctx.lua.get_or_insert_default();
    if context.is_raw {
        return refused("raw request socket acquired");
    }
    if context.eof || r.answer.done {
        return refused("seen eof");
    }
    if context.failed.is_some() {
        return refused(LOST);
    }
    context.answered = true;
    if r.head.version == Version::HTTP10 && !r.answer.header_sent && r.is_main() && *r.conf().lua.http10_buffering {
        r.ctx.lua.get_or_insert_default().held.get_or_insert_default().extend_from_slice(bytes);
        return done();
    }
    if !r.answer.header_sent
        && let Err(verdict) = send_head(r)
    {
        r.ctx.lua.get_or_insert_default().failed = Some(verdict);
        return refused(LOST);
    }
    if r.answer.header_only {
        return refused("header only");
    }
    if bytes.is_empty() {
        return done();
    }
    match r.send_body(Chunk::Bytes(bytes), false) {
        Ok(()) => done(),
        Err(_) => refused(LOST),
    }
}

fn eof(r: &mut Request) -> Tried {
    if r.ctx.stream.is_some() {
        return done();
    }
    let context = r.ctx.lua.get_or_insert_default();
    if context.is_raw {
        return refused("raw request socket acquired");
    }
    if std::mem::replace(&mut context.eof, true) {
        return refused("seen eof");
    }
    if is_lost(r) {
        return refused(LOST);
    }
    match finish_answer(r) {
        Verdict::Answered => done(),
        _ => refused(LOST),
    }
}

/// `ngx.null` says that it has to be waited for.
fn flush(r: &mut Request, wait: bool) -> Tried {
    if r.ctx.stream.is_some() {
        return if wait { Ok((::lua::json::null(), None)) } else { done() };
    }
    if r.ctx.lua.as_ref().is_some_and(|c| c.is_raw) {
        return refused("raw request socket acquired");
    }
    if r.ctx.lua.as_ref().is_some_and(|c| c.held.is_some()) {
        return refused("buffering");
    }
    if r.ctx.lua.as_ref().is_some_and(|c| c.eof) {
        return refused("seen eof");
    }
    if r.answer.header_only {
        return refused("header only");
    }
    if !r.answer.header_sent {
        return refused("nothing to flush");
    }
    if is_lost(r) {
        return refused(LOST);
    }
    r.answer.unbuffered = true;
    if wait { Ok((::lua::json::null(), None)) } else { done() }
}

fn number_of(value: &Value) -> Option<f64> {
    super::super::operation::number(value)
}

/// Whether the program ends here; otherwise the status is noted.
fn exit(status: &Value) -> Result<bool, Fault> {
    let status = match status {
        Value::Nil => 0,
        value => number_of(value).ok_or_else(|| bad_argument(1, "exit", "number expected"))? as i64,
    };
    if matches!(status, -2 | -4) {
        return Err(Fault("bad argument to 'ngx.exit': does not accept NGX_AGAIN or NGX_DONE".to_owned()));
    }
    let phase = phase();
    if phase == Phase::Timer {
        return Ok(true);
    }
    match phase {
        Phase::HeaderFilter | Phase::BodyFilter | Phase::Balancer => request(|r| {
            r.ctx.lua.get_or_insert_default().exit = Some(status);
            Ok(false)
        }),
        Phase::ClientHello | Phase::Certificate | Phase::SessionFetch => connection(|_| Ok(true)),
        Phase::SessionStore => connection(|r| {
            log_error!(r, Debug, "lua exit with code {status}");
            r.ctx.lua.get_or_insert_default().exit = Some(status);
            Ok(false)
        }),
        Phase::ProxyCertificate | Phase::ProxyVerify | Phase::Preread => request(|_| Ok(true)),
        _ => request_in(ANSWERING, |r| {
            if r.answer.header_sent
                && status >= 300
                && !matches!(status, 408 | 444 | 499)
                && i64::from(r.answer.headers.status) != status
            {
                let sent = r.answer.headers.status;
                log_error!(
                    r,
                    Error,
                    "attempt to set status {status} via ngx.exit after sending out the response status {sent}"
                );
            }
            Ok(true)
        }),
    }
}

fn redirect(uri: &Value, status: Option<f64>) -> Result<i64, Fault> {
    let uri = bytes_of(uri, 1, "redirect")?;
    let status = status.map_or(302, |s| s as i64);
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Err(Fault(
            "only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, ngx.HTTP_PERMANENT_REDIRECT, ngx.HTTP_SEE_OTHER, and \
             ngx.HTTP_TEMPORARY_REDIRECT are allowed"
                .to_owned(),
        ));
    }
    request_in(ANSWERING, |r| {
        if r.answer.header_sent {
            return Err(Fault("attempt to call ngx.redirect after sending out the headers".to_owned()));
        }
        if let Some(byte) = unsafe_byte(&uri) {
            return Err(Fault(format!("unsafe byte \"0x{byte:02x}\" in redirect uri \"{}\"", shown_safely(&uri))));
        }
        if uri.starts_with(b"/") {
            // It stays as it is: what the server knows as its location would be made absolute.
            set_header::<&[u8]>(r, b"Location", &[]);
            let (name, value) = (r.text(b"Location"), r.text(&uri));
            r.answer.headers.lines.push(HeaderOut { name, value, known: K::Other });
        } else {
            let to = r.text(&uri);
            r.answer.headers.set(K::Location, "Location", to);
        }
        Ok(status)
    })
}

fn exec(uri: &Value, args: &Value) -> Result<(), Fault> {
    let uri = bytes_of(uri, 1, "exec")?;
    let args = match args {
        Value::Nil => None,
        value => Some(bytes_of(value, 2, "exec")?),
    };
    if uri.is_empty() {
        return Err(Fault("The uri argument is empty".to_owned()));
    }
    request_in(ANSWERING, |r| {
        if let Some(byte) = unsafe_byte(&uri) {
            return Err(Fault(format!("unsafe byte \"0x{byte:02x}\" in uri \"{}\"", shown_safely(&uri))));
        }
        if r.answer.header_sent {
            return Err(Fault("attempt to call ngx.exec after sending out response headers".to_owned()));
        }
        let target = if uri.starts_with(b"@") { (uri, args) } else { exec_target(r, &uri, args)? };
        r.ctx.lua.get_or_insert_default().exec = Some(target);
        Ok(())
    })
}

/// The decoded path and all arguments of where `ngx.exec` goes.
fn exec_target(r: &Request, uri: &[u8], args: Option<Vec<u8>>) -> Result<(Vec<u8>, Option<Vec<u8>>), Fault> {
    let mut path = Vec::new();
    let Ok(parts) = wire::http1::target::parse_unsafe_uri(uri, &mut path) else {
        crate::log_error!(r, Error, "unsafe URI \"{}\" was detected", String::from_utf8_lossy(uri));
        return Err(Fault("unsafe uri".to_owned()));
    };
    let args = match (parts.args.map(|own| &uri[own.range()]), args) {
        (Some(own), Some(args)) => Some([own, b"&", &args].concat()),
        (Some(own), None) => Some(own.to_vec()),
        (None, args) => args,
    };
    Ok((path[parts.path.range()].to_vec(), args))
}

fn status(r: &Request) -> u16 {
    if r.head.version == Version::HTTP09 && r.answer.headers.status == 0 {
        // NGX_HTTP_VERSION_9: nginx has no status for it.
        return 9;
    }
    match (r.flow.error_status, r.answer.headers.status) {
        (0, status) => status,
        (status, _) => status,
    }
}

fn set_status(r: &mut Request, value: &Value) -> Result<(), Fault> {
    need(BEFORE_BODY).or_else(|e| if phase() == Phase::Log { Ok(()) } else { Err(e) })?;
    let status = number_of(value).ok_or_else(|| bad_argument(1, "status", "number expected"))?;
    if r.answer.header_sent {
        let sent = r.answer.headers.status;
        log_error!(r, Error, "attempt to set ngx.status after sending out response headers: {sent}");
        return Ok(());
    }
    r.answer.headers.status = status as u16;
    // As ngx_lua, whose servers had no reason for it.
    r.answer.headers.status_line = (status as u16 == 101).then(|| Text::from("101 Switching Protocols"));
    r.flow.error_status = 0;
    Ok(())
}

fn dashes<'n>(r: &Request, name: &'n [u8]) -> Cow<'n, [u8]> {
    if memchr::memchr(b'_', name).is_none() || !*r.conf().lua.transform_underscores {
        return Cow::Borrowed(name);
    }
    name.iter().map(|b| if *b == b'_' { b'-' } else { *b }).collect::<Vec<u8>>().into()
}

fn header(lua: &Lua, r: &mut Request, name: &[u8]) -> Result<Value, Fault> {
    let name = dashes(r, name);
    let own = match K::find(&name) {
        K::ContentType => content_type(r),
        K::ContentLength => r.answer.headers.content_length.map(|n| n.to_string().into_bytes()),
        K::LastModified => r.answer.headers.last_modified.map(|t| wire::date::format_http(t).to_vec()),
        _ => None,
    };
    if let Some(own) = own {
        return Ok(Value::String(made_text(lua, &own)?));
    }
    let of_that_name = |l: &&crate::request::headers::HeaderOut| r.arena.get(l.name).eq_ignore_ascii_case(&name);
    let values: Vec<_> = r.answer.headers.lines.iter().filter(of_that_name).map(|l| r.arena.get(l.value)).collect();
    match values.as_slice() {
        [] => Ok(Value::Nil),
        [one] => Ok(Value::String(made_text(lua, one)?)),
        all => {
            let all = all.iter().map(|v| made_text(lua, v)).collect::<Result<Vec<_>, _>>()?;
            lua.create_sequence_from(all).map(Value::Table).map_err(|e| Fault(e.to_string()))
        }
    }
}

/// A text, or a list of them.
fn texts_of(value: &Value) -> Result<Vec<Vec<u8>>, Fault> {
    let one = |value: &Value| match value {
        Value::Boolean(b) => Ok(b.to_string().into_bytes()),
        value => bytes_of(value, 2, "header"),
    };
    match value {
        Value::Nil => Ok(Vec::new()),
        Value::Table(list) => {
            let mut all = Vec::new();
            for value in list.sequence_values::<Value>() {
                all.push(one(&value.map_err(|e| Fault(e.to_string()))?)?);
            }
            Ok(all)
        }
        value => Ok(vec![one(value)?]),
    }
}

/// Whether a byte has no place in a header's line, or in its name.
fn is_unsafe(byte: u8, is_name: bool) -> bool {
    byte < 0x20 && byte != b'\t' || byte == 0x7f || is_name && !byte.is_ascii_graphic()
}

/// Bytes that would end a header's line are escaped.
pub fn escaped(text: Vec<u8>, is_name: bool) -> Vec<u8> {
    if !text.iter().any(|b| is_unsafe(*b, is_name)) {
        return text;
    }
    let escaped = |b: u8| if is_unsafe(b, is_name) { format!("%{b:02X}").into_bytes() } else { vec![b] };
    text.into_iter().flat_map(escaped).collect()
}

fn set(name: &Value, value: &Value) -> Result<(), Fault> {
    let name = escaped(bytes_of(name, 1, "header")?, true);
    let values: Vec<_> = texts_of(value)?.into_iter().map(|v| escaped(v, false)).collect();
    put(&name, &values)
}

/// `set` for what most programs set: one text or number with nothing in it to escape.
fn set_quick(call: &Call) -> Result<(), Fault> {
    let mut digits = Vec::new();
    let (name, value) = (call.argument(1), call.argument(2));
    let value = match &value {
        Kind::Text(text) => Some(*text),
        Kind::Number(number) => {
            write_number(*number + 0.0, &mut digits);
            Some(&*digits)
        }
        _ => None,
    };
    let (Kind::Text(name), Some(value)) = (name, value) else {
        call.give_other();
        return Ok(());
    };
    if name.iter().any(|b| is_unsafe(*b, true)) || value.iter().any(|b| is_unsafe(*b, false)) {
        call.give_other();
        return Ok(());
    }
    put(name, &[value])?;
    call.give_nil();
    Ok(())
}

/// Sets a header whose bytes are all right.
fn put<V: AsRef<[u8]>>(name: &[u8], values: &[V]) -> Result<(), Fault> {
    // A timer's request is none that has an answer: resty.core says it in these words.
    if phase() == Phase::Timer {
        return Err(Fault("API disabled in the current context".to_owned()));
    }
    need(BEFORE_BODY)?;
    request(|r| {
        if r.answer.header_sent && phase() != Phase::HeaderFilter {
            let value = values.first().map(|v| String::from_utf8_lossy(v.as_ref())).unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            log_error!(r, Error, "attempt to set ngx.header.{name} to \"{value}\" after sending out response headers");
            return Ok(());
        }
        let name = dashes(r, name);
        let is_number = |v: &[u8]| !v.is_empty() && v.iter().all(u8::is_ascii_digit);
        if K::find(&name) == K::ContentLength && !values.iter().all(|v| is_number(v.as_ref())) {
            return Err(Fault("failed to set header".to_owned()));
        }
        set_header(r, &name, values);
        Ok(())
    })
}

fn headers(
    lua: &Lua,
    r: &mut Request,
    max: Option<f64>,
    as_they_are: bool,
) -> Result<(Table, Option<&'static str>), Fault> {
    let broken = |e: mlua::Error| Fault(e.to_string());
    let max = max.map_or(MAX_HEADERS, |n| n.max(0.0) as usize);
    let table = lua.create_table().map_err(broken)?;
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    if let Some(kind) = content_type(r) {
        all.push((b"Content-Type".to_vec(), kind));
    }
    if let Some(length) = r.answer.headers.content_length {
        all.push((b"Content-Length".to_vec(), length.to_string().into_bytes()));
    }
    if let Some(time) = r.answer.headers.last_modified {
        all.push((b"Last-Modified".to_vec(), wire::date::format_http(time).to_vec()));
    }
    let connection = if r.flow.keepalive { &b"keep-alive"[..] } else { b"close" };
    all.push((b"Connection".to_vec(), connection.to_vec()));
    if r.answer.headers.content_length.is_none()
        && r.answer.header_sent
        && r.head.version == crate::request::Version::HTTP11
    {
        all.push((b"Transfer-Encoding".to_vec(), b"chunked".to_vec()));
    }
    all.extend(r.answer.headers.lines.iter().map(|l| (r.get(l.name).to_vec(), r.get(l.value).to_vec())));
    let more = max > 0 && all.len() > max;
    all.truncate(if max == 0 { usize::MAX } else { max });
    for (mut name, value) in all {
        if !as_they_are {
            name.make_ascii_lowercase();
        }
        let value = Value::String(made_text(lua, &value)?);
        add_to_table(lua, &table, &name, value).map_err(broken)?;
    }
    Ok((table, more.then_some("truncated")))
}

/// Gives `ngx.ctx` and its number; `nil` where that is the number that the program has already.
fn give_context(call: &Call, place: &mut Option<Slot>) -> Result<(), Fault> {
    match place {
        Some(slot) if call.number(1) == Some(slot.serial() as f64) => {
            call.give_nil();
            return Ok(());
        }
        Some(slot) => call.give_kept(slot),
        None => *place = Some(call.give_new_kept(&machine()?.contexts)),
    }
    call.give_number(place.as_ref().map_or(0, Slot::serial) as f64);
    Ok(())
}

/// `ngx.arg`: of a body filter the piece and whether it is the last, of `set_by_lua` its arguments.
fn add_arguments(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "arg", |lua, number: Option<f64>| {
        let number = number.unwrap_or(0.0) as usize;
        let phase = phase();
        request(|r| {
            let Some(context) = &r.ctx.lua else { return Ok(Value::Nil) };
            match (phase, number, &context.piece) {
                (Phase::BodyFilter, 1, Some((bytes, _))) => Ok(Value::String(made_text(lua, bytes)?)),
                (Phase::BodyFilter, 2, Some((_, last))) => Ok(Value::Boolean(*last)),
                (Phase::Set, ..) => match context.arguments.get(number.wrapping_sub(1)) {
                    Some(text) => Ok(Value::String(made_text(lua, r.get(*text))?)),
                    None => Ok(Value::Nil),
                },
                (Phase::BodyFilter, ..) => Err(Fault("bad argument #2 to '__index' (1 or 2 expected)".to_owned())),
                _ => Err(Fault(format!("API disabled in the context of {}", phase.context()))),
            }
        })
    })?;
    add_function(lua, raw, "set_arg", |_, (number, value): (Option<f64>, Value)| {
        if phase() != Phase::BodyFilter {
            return Err(Fault(format!("API disabled in the context of {}", phase().context())));
        }
        request(|r| {
            let Some((bytes, last)) = r.ctx.lua.as_mut().and_then(|c| c.piece.as_mut()) else { return Ok(()) };
            match number.unwrap_or(0.0) as u8 {
                1 => {
                    bytes.clear();
                    if !matches!(value, Value::Nil) {
                        write_piece(&value, 1, "arg", bytes)?;
                    }
                }
                2 => *last = !matches!(value, Value::Nil | Value::Boolean(false)),
                _ => return Err(Fault("bad argument #2 to '__newindex' (1 or 2 expected)".to_owned())),
            }
            Ok(())
        })
    })?;
    add_function(lua, raw, "phase", |_, ()| Ok(phase().label()))?;
    quick::add(lua, raw, "may_wait", |call| {
        let set = if call.argument(1) == Kind::Text(b"capture") { ANSWERING } else { WAITING };
        match need(set) {
            Ok(()) => call.give_nil(),
            Err(fault) => call.give_bytes(fault.0.as_bytes()),
        }
        Ok(())
    })?;
    quick::add(lua, raw, "ctx", |call| match current::alone(|a| give_context(call, &mut a.table)) {
        Some(given) => given,
        None => connection(|r| match current::context_needs_connection(r) {
            true => {
                call.give_other();
                Ok(())
            }
            false => give_context(call, &mut r.ctx.lua.get_or_insert_default().table),
        }),
    })?;
    add_function(lua, raw, "ctx_any", |lua, given: Option<Table>| current::context(lua, given))?;
    quick::add(lua, raw, "request_number", |call| {
        match connection(|_| Ok(current::owner())) {
            Ok(owner) => call.give_number(owner as f64),
            Err(_) => call.give_nil(),
        }
        Ok(())
    })?;
    add_function(lua, raw, "set_ctx", |_, value: Value| {
        let Value::Table(table) = value else {
            return Err(Fault("ctx should be a table while getting a ".to_owned() + value.type_name()));
        };
        current::set_context(table)
    })?;
    Ok(())
}
