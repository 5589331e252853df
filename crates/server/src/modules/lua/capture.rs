//! `ngx.location.capture`: subrequests whose answers the program gets. Each has copies of what the request is, so that several run at
//! the same time and beside the program's other coroutines.

use super::api::variables;
use super::current::request;
use super::run::{Item, Operation};
use crate::connection::Downstream;
use crate::log_error;
use crate::request::body::Stored;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{self, From, Verdict};
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Method, Request, Text, end, include};
use ::lua::Fault;
use ::lua::machine::{add_to_table, bytes_of};
use mlua::{Lua, MultiValue, Table, Value};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// Subrequests of one call.
const MAX_CALLS: usize = 200;

/// What came back.
pub struct Answer {
    status: u16,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    truncated: bool,
    /// The variables are the request's own.
    shares: bool,
}

impl Answer {
    /// The table that the program gets.
    ///
    /// # Errors
    /// Out of memory.
    pub fn into_table(self, lua: &Lua) -> mlua::Result<Table> {
        let table = lua.create_table()?;
        let header = lua.create_table()?;
        for (name, value) in &self.headers {
            add_to_table(lua, &header, name, Value::String(lua.create_string(value)?))?;
        }
        table.raw_set("status", self.status)?;
        table.raw_set("header", header)?;
        table.raw_set("body", lua.create_string(self.body)?)?;
        table.raw_set("truncated", self.truncated)?;
        Ok(table)
    }
}

type Running = Pin<Box<dyn Future<Output = (Answer, Box<Request>)>>>;

/// Begins the subrequests of a call.
///
/// # Errors
/// What is wrong with the call.
pub fn start(_: &Lua, values: &MultiValue) -> Result<Operation, Fault> {
    let Some(Value::Table(calls)) = values.front() else { return Err(Fault("no subrequests".to_owned())) };
    let broken = |e: mlua::Error| Fault(e.to_string());
    let mut running: Vec<Result<Running, Answer>> = Vec::new();
    for call in calls.sequence_values::<Table>() {
        if running.len() == MAX_CALLS {
            return Err(Fault("too many subrequests".to_owned()));
        }
        let call = call.map_err(broken)?;
        running.push(Ok(request(|r| begin(r, &call))?));
    }
    Ok(Box::pin(async move {
        poll_fn(|cx| {
            let mut all = true;
            for one in &mut running {
                if let Ok(future) = one {
                    match future.as_mut().poll(cx) {
                        Poll::Ready((answer, child)) => {
                            if answer.shares {
                                let _ = request(|r| {
                                    r.adopt_values(&child);
                                    Ok(())
                                });
                            }
                            *one = Err(answer);
                        }
                        Poll::Pending => all = false,
                    }
                }
            }
            if all { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        running.into_iter().filter_map(|one| Some(Item::Answer(Box::new(one.err()?)))).collect()
    }))
}

fn text_of(call: &Table, name: &str) -> Option<Vec<u8>> {
    match call.raw_get::<Value>(name) {
        Ok(Value::String(text)) => Some(text.as_bytes().to_vec()),
        _ => None,
    }
}

fn text_shown(r: &Request, text: Text) -> String {
    String::from_utf8_lossy(r.get(text)).into_owned()
}

fn is_set(call: &Table, name: &str) -> bool {
    matches!(call.raw_get::<Value>(name), Ok(Value::Boolean(true)))
}

fn begin(r: &mut Request, call: &Table) -> Result<Running, Fault> {
    let uri = text_of(call, "uri").unwrap_or_default();
    let (path, own) = match memchr::memchr(b'?', &uri) {
        Some(at) => (&uri[..at], Some(&uri[at + 1..])),
        None => (&uri[..], None),
    };
    if path.is_empty() || path.split(|b| *b == b'/').any(|part| part == b"..") {
        return Err(Fault(format!("unsafe uri in argument #1: {}", String::from_utf8_lossy(&uri))));
    }
    let args = match (own, text_of(call, "args")) {
        (Some(own), Some(args)) => [own, b"&", &args].concat(),
        (Some(own), None) => own.to_vec(),
        (None, args) => args.unwrap_or_default(),
    };
    let (path, args) = (r.text(path), if args.is_empty() { Text::EMPTY } else { r.text(&args) });
    if !include::is_allowed(r, path) {
        log_error!(r, Error, "lua subrequests cycle while processing \"{}\"", text_shown(r, path));
        return Err(Fault("subrequests cycle".to_owned()));
    }
    log_error!(r, Debug, "lua http subrequest \"{}?{}\"", text_shown(r, path), text_shown(r, args));
    r.flow.subrequests += 1;
    let session = Downstream::parent(Mode::Whole);
    let mut child = Request::new(r.snapshot.clone(), r.client.clone(), session);
    if is_set(call, "share_all_vars") || is_set(call, "copy_all_vars") {
        child.copy_shared(r);
    } else {
        child.arena = r.arena.clone();
    }
    let method = text_of(call, "method").unwrap_or_else(|| b"GET".to_vec());
    let given = text_of(call, "body");
    let forward = is_set(call, "always_forward_body") || matches!(method.as_slice(), b"POST" | b"PUT");
    let options = Options { mode: Mode::Whole, with_body: given.is_none() && forward, get: false };
    subrequest::prepare(&mut child, r, path, args, &options);
    (child.head.method, child.head.method_name) = (Method::of(&method), child.text(&method));
    match given {
        Some(body) => {
            let len = body.len() as u64;
            super::api::request_body::set_body(&mut child, Vec::new());
            super::api::request::set_header(&mut child, b"Content-Length", &[len.to_string().into_bytes()]);
            child.head.headers.content_length = Some(len);
            child.body.stored = Some(Rc::new(Stored { memory: body, file: None, len }));
        }
        None if !forward => super::api::request::set_header(&mut child, b"Content-Length", &[]),
        None => {}
    }
    if let Ok(Value::Table(vars)) = call.raw_get::<Value>("vars") {
        for pair in vars.pairs::<Value, Value>() {
            let (name, value) = pair.map_err(|e| Fault(format!("bad vars: {e}")))?;
            let name = bytes_of(&name, 1, "vars")
                .map_err(|_| Fault("attempt to use a non-string key in the \"vars\" option table".to_owned()))?;
            let bad = |_| Fault(format!("attempt to use bad variable value type {}", value.type_name()));
            let text = bytes_of(&value, 2, "vars").map_err(bad)?;
            variables::assign(&mut child, &name, Some(text)).map_err(|_| {
                let name = String::from_utf8_lossy(&name);
                Fault(format!("variable \"{name}\" cannot be assigned a value (maybe you forgot to define it first?)"))
            })?;
        }
    }
    if let Ok(Value::Table(ctx)) = call.raw_get::<Value>("ctx") {
        child.ctx.lua.get_or_insert_default().table = Some(ctx);
    }
    child.ctx.limit_conn = r.ctx.limit_conn.without_places();
    Ok(Box::pin(run(child, is_set(call, "share_all_vars"))))
}

async fn run(mut child: Box<Request>, shares: bool) -> (Answer, Box<Request>) {
    phases::conclude(&mut child, Verdict::Restart(From::ServerRewrite)).await;
    end(&mut child);
    let mut headers: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    if let Some(kind) = super::phases::content_type(&child) {
        headers.push((b"Content-Type".to_vec(), kind));
    }
    if let Some(length) = child.answer.headers.content_length {
        headers.push((b"Content-Length".to_vec(), length.to_string().into_bytes()));
    }
    if let Some(time) = child.answer.headers.last_modified {
        headers.push((b"Last-Modified".to_vec(), wire::date::format_http(time).to_vec()));
    }
    let shown = |text: Text| child.get(text).to_vec();
    headers.extend(
        child.answer.headers.lines.iter().filter(|l| l.known != K::Connection).map(|l| (shown(l.name), shown(l.value))),
    );
    let status = match child.answer.headers.status {
        0 => 500,
        status => status,
    };
    let body: Vec<u8> = child.downstream.take_captured().unwrap_or_default();
    let is_short =
        child.answer.headers.content_length.is_some_and(|n| n > body.len() as u64) && !child.answer.header_only;
    let truncated = child.flow.aborted || !child.answer.done || is_short;
    (Answer { status, headers, body, truncated, shares }, child)
}
