//! `r.subrequest`: requests that a program makes to its own server. Each has copies of what the request is, so several run at the same time;
//! the values of variables come back when it has ended.

use super::api::answer;
use super::current::{self, with};
use crate::request::body::Stored;
use crate::request::headers::{HeaderLine, KnownHeader as K};
use crate::request::phases::{self, From, Verdict};
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Method, Request, Text, Values, end};
use ::js::rquickjs::prelude::Func;
use ::js::rquickjs::{Ctx, Function, Object, Result, Value};
use ::js::value::OrThrow;
use ::js::{Bytes, Fault, Item, Operation, engine};
use std::rc::Rc;

/// What a program wants.
struct Call {
    uri: Vec<u8>,
    args: Vec<u8>,
    method: Vec<u8>,
    body: Option<Vec<u8>>,
    detached: bool,
}

/// See the module's head.
pub fn add(raw: &Object<'_>) -> Result<()> {
    raw.set(
        "r_subrequest",
        Func::from(
            |ctx: Ctx<'_>, uri: Bytes, args: Bytes, method: Bytes, body: Bytes, has_body: bool, detached: bool| {
                let body = has_body.then_some(body.0);
                let call = Call { uri: uri.0, args: args.0, method: method.0, body, detached };
                with(&ctx, |r| start(r, call))
            },
        ),
    )?;
    raw.set("r_has_parent", Func::from(current::has_parent))?;
    raw.set("r_in_parent", Func::from(in_parent))
}

/// Calls a function of JavaScript for the parent: what it does with a request it does with that one.
fn in_parent<'js>(ctx: Ctx<'js>, run: Function<'js>) -> Result<Value<'js>> {
    current::in_parent(|| run.call::<_, Value<'js>>(())).or_throw(&ctx)?
}

/// Begins one: the number by which the program waits for it.
fn start(r: &mut Request, call: Call) -> std::result::Result<u32, Fault> {
    let detached = call.detached;
    let child = prepare(r, call)?;
    // Both have the same bytes up to here, and the same variables.
    let (before, base) = (child.known_values(), r.arena.mark());
    if detached {
        runtime::spawn(async move {
            let mut child = child;
            phases::conclude(&mut child, Verdict::Restart(From::ServerRewrite)).await;
            end(&mut child);
        });
        return Ok(0);
    }
    let operation: Operation = Box::pin(run(child, before, base));
    engine::current()?.begin(operation)
}

fn prepare(r: &mut Request, call: Call) -> std::result::Result<Box<Request>, Fault> {
    let is_unsafe = call.uri.split(|b| *b == b'/').any(|part| part == b"..") || call.uri.contains(&0);
    if is_unsafe {
        return Err(Fault::of_type("unsafe uri"));
    }
    let (path, own) = match memchr::memchr(b'?', &call.uri) {
        Some(at) => (&call.uri[..at], &call.uri[at + 1..]),
        None => (&call.uri[..], &b""[..]),
    };
    let args = match (own, call.args.as_slice()) {
        (own, b"") => own.to_vec(),
        (b"", args) => args.to_vec(),
        (own, args) => [own, b"&", args].concat(),
    };
    let (path, args) = (r.text(path), if args.is_empty() { Text::EMPTY } else { r.text(&args) });
    if !subrequest::is_allowed(r, path) {
        return Err(Fault::internal("subrequest creation failed"));
    }
    let mode = if call.detached { Mode::Discard } else { Mode::Capture };
    let mut child = Request::new(r.snapshot.clone(), r.client.clone(), r.downstream.child(mode));
    child.copy_shared(r);
    let options = Options { mode, with_body: call.body.is_none(), get: call.method.is_empty() };
    subrequest::prepare(&mut child, r, path, args, &options);
    if !call.method.is_empty() {
        (child.head.method, child.head.method_name) = (Method::of(&call.method), child.text(&call.method));
    }
    if let Some(body) = call.body {
        set_body(&mut child, body);
    }
    child.ctx.limit_conn = r.ctx.limit_conn.without_places();
    Ok(child)
}

/// Gives a subrequest a body of its own.
fn set_body(child: &mut Request, body: Vec<u8>) {
    let len = body.len() as u64;
    let (arena, lines) = (&mut child.arena, &mut child.head.headers.head.headers);
    lines.retain(|l| !matches!(l.known, K::ContentLength | K::TransferEncoding));
    let (name, value) = (arena.push(b"Content-Length"), arena.push(len.to_string().as_bytes()));
    lines.push(HeaderLine { name, value, known: K::ContentLength });
    child.head.headers.content_length = Some(len);
    child.head.headers.chunked = false;
    child.body.stored = Some(Rc::new(Stored { memory: body, file: None, len }));
}

/// Runs one to its end: `[status, uri, method, args, headers, body]`.
async fn run(mut child: Box<Request>, before: Values, base: usize) -> std::result::Result<Item, Fault> {
    phases::conclude(&mut child, Verdict::Restart(From::ServerRewrite)).await;
    end(&mut child);
    let status = match (child.flow.error_status, child.answer.headers.status) {
        (0, 0) => 500,
        (0, status) => status,
        (status, _) => status,
    };
    let headers =
        answer::all(&child).into_iter().map(|(n, v)| Item::List(vec![Item::Text(n), Item::Text(v)])).collect();
    let text = |text: Text| Item::Text(child.get(text).to_vec());
    let (uri, method, args) = (text(child.head.uri), text(child.head.method_name), text(child.head.args));
    let body = child.downstream.take_captured().unwrap_or_default();
    let _ = current::request(|r| {
        // What its program has set here (`r.parent`) stays, unless the subrequest has come to something else.
        r.take_values(&child, &before, base);
        Ok(())
    });
    Ok(Item::List(vec![Item::Number(f64::from(status)), uri, method, args, Item::List(headers), Item::Buffer(body)]))
}
