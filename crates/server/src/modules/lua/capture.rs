//! `ngx.location.capture`: subrequests whose answers the program gets. Each has copies of what the request is, so that several run at
//! the same time and beside the program's other coroutines.

use super::api::variables;
use super::current::{machine, request};
use super::run::{Item, Operation, number};
use crate::log_error;
use crate::request::body::Stored;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{self, From, Verdict};
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Method, Request, Text, end};
use ::lua::Fault;
use ::lua::machine::bytes_of;
use ::lua::quick;
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
        quick::table(lua, 4, |table| {
            table.set_number(b"status", f64::from(self.status));
            table.set_name(b"body", Some(&self.body));
            table.set_flag(b"truncated", self.truncated);
            table.set_table(b"header", 0, self.headers.len(), |header| {
                for (at, (name, value)) in self.headers.iter().enumerate() {
                    let is_same = |other: &&(Vec<u8>, Vec<u8>)| other.0 == *name;
                    if self.headers[..at].iter().any(|other| is_same(&other)) {
                        continue;
                    }
                    // What comes more than once is a list.
                    let more = self.headers[at + 1..].iter().filter(is_same);
                    match more.clone().count() {
                        0 => header.set_name(name, Some(value)),
                        count => header.set_table(name, count + 1, 0, |list| {
                            let all = std::iter::once(value).chain(more.map(|(_, value)| value));
                            all.enumerate().for_each(|(index, value)| list.set_index(index + 1, Some(value)));
                        }),
                    }
                }
            });
        })
    }
}

/// A subrequest as the prelude asks for it: so many values, one after the other.
struct Asked {
    uri: Vec<u8>,
    args: Option<Vec<u8>>,
    method: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
    vars: Option<Table>,
    ctx: Option<Table>,
    shares: bool,
    copies: bool,
    forwards: bool,
}

/// Values of one [`Asked`].
const VALUES: usize = 7;
/// Bits of the last of them.
const SHARES: u8 = 1;
const COPIES: u8 = 2;
const FORWARDS: u8 = 4;

impl Asked {
    fn of(values: &mut MultiValue) -> Asked {
        let mut text = || match values.pop_front() {
            Some(Value::String(text)) => Some(text.as_bytes().to_vec()),
            _ => None,
        };
        let (uri, args, method, body) = (text().unwrap_or_default(), text(), text(), text());
        let mut table = || match values.pop_front() {
            Some(Value::Table(table)) => Some(table),
            _ => None,
        };
        let (vars, ctx) = (table(), table());
        let bits = values.pop_front().as_ref().and_then(number).unwrap_or(0.0) as u8;
        let has = |bit: u8| bits & bit != 0;
        Asked { uri, args, method, body, vars, ctx, shares: has(SHARES), copies: has(COPIES), forwards: has(FORWARDS) }
    }
}

type Running = Pin<Box<dyn Future<Output = (Answer, Box<Request>)>>>;

/// Begins the subrequests of a call.
///
/// # Errors
/// What is wrong with the call.
pub fn start(mut values: MultiValue) -> Result<Operation, Fault> {
    let mut running: Vec<Result<Running, Answer>> = Vec::with_capacity(values.len() / VALUES);
    while !values.is_empty() {
        if running.len() == MAX_CALLS {
            return Err(Fault("too many subrequests".to_owned()));
        }
        let asked = Asked::of(&mut values);
        running.push(Ok(request(|r| begin(r, asked))?));
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

fn text_shown(r: &Request, text: Text) -> String {
    String::from_utf8_lossy(r.get(text)).into_owned()
}

fn begin(r: &mut Request, asked: Asked) -> Result<Running, Fault> {
    let uri = asked.uri;
    let (path, own) = match memchr::memchr(b'?', &uri) {
        Some(at) => (&uri[..at], Some(&uri[at + 1..])),
        None => (&uri[..], None),
    };
    if path.is_empty() || path.split(|b| *b == b'/').any(|part| part == b"..") {
        return Err(Fault(format!("unsafe uri in argument #1: {}", String::from_utf8_lossy(&uri))));
    }
    let args = match (own, asked.args) {
        (Some(own), Some(args)) => [own, b"&", &args].concat(),
        (Some(own), None) => own.to_vec(),
        (None, args) => args.unwrap_or_default(),
    };
    let (path, args) = (r.text(path), if args.is_empty() { Text::EMPTY } else { r.text(&args) });
    if !subrequest::is_allowed(r, path) {
        log_error!(r, Error, "lua subrequests cycle while processing \"{}\"", text_shown(r, path));
        return Err(Fault("subrequests cycle".to_owned()));
    }
    log_error!(r, Debug, "lua http subrequest \"{}?{}\"", text_shown(r, path), text_shown(r, args));
    let session = r.downstream.child(Mode::Whole);
    let mut child = Request::new(r.snapshot.clone(), r.client.clone(), session);
    if asked.shares || asked.copies {
        child.copy_shared(r);
    } else {
        child.arena = r.arena.clone();
    }
    let method = asked.method.unwrap_or_else(|| b"GET".to_vec());
    let given = asked.body;
    let forward = asked.forwards || matches!(method.as_slice(), b"POST" | b"PUT");
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
    if let Some(vars) = asked.vars {
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
    if let Some(table) = asked.ctx {
        let slot = machine()?.shelf.put(table).map_err(|e| Fault(e.to_string()))?;
        child.ctx.lua.get_or_insert_default().table = Some(slot);
    }
    child.ctx.limit_conn = r.ctx.limit_conn.without_places();
    Ok(Box::pin(run(child, asked.shares)))
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
