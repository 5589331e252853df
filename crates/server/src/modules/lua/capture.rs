//! `ngx.location.capture`: subrequests whose answers the program gets. Each has copies of what the request is, so that several run at
//! the same time and beside the program's other coroutines.

use super::Machine;
use super::api::variables;
use super::current::{machine, request};
use super::operation::{Item, Operation};
use crate::connection::pool;
use crate::log_error;
use crate::request::body::Stored;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{self, From, Verdict};
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Method, Request, Text, end};
use ::lua::Fault;
use ::lua::coroutine::Values;
use ::lua::machine::bytes_of;
use ::lua::quick::{Call, Kind};
use mlua::{Table, Value};
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Subrequests of one call.
const MAX_CALLS: usize = 200;

/// Values that a program gets for each of them: status, body, whether it is truncated, and headers.
pub const VALUES_OF_ANSWER: usize = 4;
/// Values of one subrequest as the prelude asks for it, one after the other: uri, arguments, method, body, variables, context, and bits.
const VALUES: usize = 7;
/// Where they begin, behind what says that a program waits, and for what.
const BEFORE: usize = 2;
/// Bits of the last of them.
const SHARES: u8 = 1;
const COPIES: u8 = 2;
const FORWARDS: u8 = 4;

/// What the prelude says of a subrequest.
struct Asked<'v> {
    uri: &'v [u8],
    args: Option<&'v [u8]>,
    method: Option<&'v [u8]>,
    body: Option<&'v [u8]>,
    vars: Option<Table>,
    ctx: Option<Table>,
    bits: u8,
}

impl<'v> Asked<'v> {
    /// Of the values from a number on.
    fn of(machine: &Machine, values: &'v Values<'_>, first: usize) -> Asked<'v> {
        let text = |at: usize| match values.kind(first + at) {
            Kind::Text(text) => Some(text),
            _ => None,
        };
        let table = |at: usize| match values.kind(first + at) {
            Kind::Table => values.value(&machine.lua, first + at).as_table().cloned(),
            _ => None,
        };
        let bits = match values.kind(first + VALUES - 1) {
            Kind::Number(bits) => bits as u8,
            _ => 0,
        };
        Asked {
            uri: text(0).unwrap_or_default(),
            args: text(1),
            method: text(2),
            body: text(3),
            vars: table(4),
            ctx: table(5),
            bits,
        }
    }

    fn has(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }
}

/// The subrequests of a call, in their order.
struct Capture(Vec<Child>);

/// One of them.
enum Child {
    Runs {
        future: Pin<Box<dyn Future<Output = Box<Request>>>>,
        /// The variables are the request's own.
        shares: bool,
    },
    Over(Box<Request>),
}

impl Future for Capture {
    type Output = Vec<Item>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Item>> {
        let mut are_over = true;
        for one in &mut self.0 {
            let Child::Runs { future, shares } = one else { continue };
            let Poll::Ready(child) = future.as_mut().poll(cx) else {
                are_over = false;
                continue;
            };
            if *shares {
                let _ = request(|r| {
                    r.adopt_values(&child);
                    Ok(())
                });
            }
            *one = Child::Over(child);
        }
        if !are_over {
            return Poll::Pending;
        }
        let all = std::mem::take(&mut self.0).into_iter();
        Poll::Ready(
            all.filter_map(|one| if let Child::Over(child) = one { Some(Item::Answer(child)) } else { None }).collect(),
        )
    }
}

/// Begins the subrequests of a call, whose values lie there.
///
/// # Errors
/// What is wrong with the call.
pub fn start(machine: &Machine, values: &Values<'_>) -> Result<Operation, Fault> {
    let count = (values.count() - BEFORE) / VALUES;
    if count > MAX_CALLS {
        return Err(Fault("too many subrequests".to_owned()));
    }
    let mut children = Vec::with_capacity(count);
    for number in 0..count {
        let asked = Asked::of(machine, values, BEFORE + 1 + number * VALUES);
        children.push(request(|r| begin(r, &asked))?);
    }
    Ok(Box::pin(Capture(children)))
}

fn text_shown(r: &Request, text: Text) -> String {
    String::from_utf8_lossy(r.get(text)).into_owned()
}

fn begin(r: &mut Request, asked: &Asked<'_>) -> Result<Child, Fault> {
    let uri = asked.uri;
    let (path, own) = match memchr::memchr(b'?', uri) {
        Some(at) => (&uri[..at], Some(&uri[at + 1..])),
        None => (uri, None),
    };
    if path.is_empty() || path.split(|b| *b == b'/').any(|part| part == b"..") {
        return Err(Fault(format!("unsafe uri in argument #1: {}", String::from_utf8_lossy(uri))));
    }
    let path = r.text(path);
    let args = match (own, asked.args) {
        (Some(own), Some(args)) => r.text(&[own, b"&", args].concat()),
        (None, None | Some(b"")) | (Some(b""), None) => Text::EMPTY,
        (Some(args), None) | (None, Some(args)) => r.text(args),
    };
    if !subrequest::is_allowed(r, path) {
        log_error!(r, Error, "lua subrequests cycle while processing \"{}\"", text_shown(r, path));
        return Err(Fault("subrequests cycle".to_owned()));
    }
    log_error!(r, Debug, "lua http subrequest \"{}?{}\"", text_shown(r, path), text_shown(r, args));
    let session = r.downstream.child(Mode::Whole);
    let mut child = pool::take_request(r.snapshot.clone(), r.client.clone(), session);
    if asked.has(SHARES) || asked.has(COPIES) {
        child.copy_shared(r);
    } else {
        child.arena.copy_from(&r.arena);
    }
    let method = asked.method.unwrap_or(b"GET");
    let given = asked.body;
    let forward = asked.has(FORWARDS) || matches!(method, b"POST" | b"PUT");
    let options = Options { mode: Mode::Whole, with_body: given.is_none() && forward, get: false };
    subrequest::prepare(&mut child, r, path, args, &options);
    (child.head.method, child.head.method_name) = (Method::of(method), child.text(method));
    match given {
        Some(body) => {
            let len = body.len() as u64;
            super::api::request_body::set_body(&mut child, Vec::new());
            super::api::request::set_header(&mut child, b"Content-Length", &[len.to_string().into_bytes()]);
            child.head.headers.content_length = Some(len);
            child.body.stored = Some(Rc::new(Stored { memory: body.to_vec(), file: None, len }));
        }
        None if !forward => super::api::request::set_header(&mut child, b"Content-Length", &[]),
        None => {}
    }
    if let Some(vars) = &asked.vars {
        for pair in vars.pairs::<Value, Value>() {
            let (name, value) = pair.map_err(|e| Fault(format!("bad vars: {e}")))?;
            let name = bytes_of(&name, 1, "vars")
                .map_err(|_| Fault("attempt to use a non-string key in the \"vars\" option table".to_owned()))?;
            let bad = |_| Fault(format!("attempt to use bad variable value type {}", value.type_name()));
            let text = bytes_of(&value, 2, "vars").map_err(bad)?;
            variables::assign(&mut child, &name, Some(&text)).map_err(|_| {
                let name = String::from_utf8_lossy(&name);
                Fault(format!("variable \"{name}\" cannot be assigned a value (maybe you forgot to define it first?)"))
            })?;
        }
    }
    if let Some(table) = &asked.ctx {
        let slot = machine()?.contexts.put(table).map_err(|e| Fault(e.to_string()))?;
        child.ctx.lua.get_or_insert_default().table = Some(slot);
    }
    child.ctx.limit_conn = r.ctx.limit_conn.without_places();
    Ok(Child::Runs { future: Box::pin(run(child)), shares: asked.has(SHARES) })
}

async fn run(mut child: Box<Request>) -> Box<Request> {
    phases::conclude(&mut child, Verdict::Restart(From::ServerRewrite)).await;
    end(&mut child);
    child
}

/// Gives a program what has become of one: [`VALUES_OF_ANSWER`].
pub fn give(call: &Call, mut child: Box<Request>) {
    let status = match child.answer.headers.status {
        0 => 500,
        status => status,
    };
    call.give_number(f64::from(status));
    let body = child.downstream.take_captured().unwrap_or_default();
    call.give_bytes(&body);
    let length = child.answer.headers.content_length;
    let is_short = length.is_some_and(|length| length > body.len() as u64) && !child.answer.header_only;
    call.give_flag(child.flow.aborted || !child.answer.done || is_short);
    give_headers(call, &mut child);
    // What it holds of others is theirs again.
    (child.body.stored, child.flow.lineage, child.ctx.lua, child.ctx.nchan) = (None, None, None, None);
    pool::give_request(child);
}

/// The answer's headers as a table. What comes more than once is a list.
fn give_headers(call: &Call, child: &mut Request) {
    let mut room = std::mem::take(&mut child.scratch);
    room.clear();
    let headers = &child.answer.headers;
    let mut known: [(&[u8], usize, usize); 3] = Default::default();
    let mut count = 0;
    let mut add = |name: &'static [u8], start: usize, end: usize| {
        known[count] = (name, start, end);
        count += 1;
    };
    if headers.content_type.is_some() {
        headers.write_content_type(&child.arena, &mut room);
        add(b"Content-Type", 0, room.len());
    }
    if let Some(length) = headers.content_length {
        let start = room.len();
        let _ = write!(room, "{length}");
        add(b"Content-Length", start, room.len());
    }
    if let Some(time) = headers.last_modified {
        let start = room.len();
        room.extend_from_slice(&wire::date::format_http(time));
        add(b"Last-Modified", start, room.len());
    }
    let known = known[..count].iter().map(|(name, start, end)| (*name, &room[*start..*end]));
    let lines = headers.lines.iter().filter(|l| l.known != K::Connection);
    let lines = lines.map(|l| (child.arena.get(l.name), child.arena.get(l.value)));
    call.give_table(0, count + headers.lines.len());
    if headers.lines.is_empty() {
        known.for_each(|(name, value)| call.set_name(name, Some(value)));
    } else {
        set_all(call, &known.chain(lines).collect::<Vec<_>>());
    }
    child.scratch = room;
}

fn set_all(call: &Call, headers: &[(&[u8], &[u8])]) {
    for (at, (name, value)) in headers.iter().enumerate() {
        let is_same = |other: &&(&[u8], &[u8])| other.0 == *name;
        if headers[..at].iter().any(|other| is_same(&other)) {
            continue;
        }
        let more = headers[at + 1..].iter().filter(is_same);
        match more.clone().count() {
            0 => call.set_name(name, Some(value)),
            count => call.set_table(name, count + 1, 0, |list| {
                let all = std::iter::once(*value).chain(more.map(|(_, value)| *value));
                all.enumerate().for_each(|(index, value)| list.set_index(index + 1, Some(value)));
            }),
        }
    }
}
