//! What a coroutine waits for, and what of it goes back to the program. From: `run`, whose light threads poll it; sockets, semaphores, pipes and captures make
//! their own.

use super::run::{log, log_is_on};
use super::worker_thread::Plain;
use super::{capture, current};
use crate::log::error::Level;
use crate::request::{Request, body, flow};
use ::lua::Fault;
use ::lua::quick::Call;
use mlua::{Lua, Value};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// How a program ended.
pub enum End {
    /// All its coroutines have come to their ends.
    Done,
    /// `ngx.exit`
    Exit(i64),
    /// `ngx.exec`; where to stands in the request's context.
    Exec,
    /// `ngx.req.set_uri(uri, true)`
    Jump,
    /// An error, which was logged.
    Failed,
    /// The client is gone.
    Broken,
}

/// What an operation gives back to the program.
pub enum Item {
    /// `nil`
    Nil,
    /// A boolean.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(Vec<u8>),
    /// A mistake of the program's, which is raised.
    Fault(Fault),
    /// The program ends: nothing goes back to it.
    End(End),
    /// What another machine has given.
    Plain(Plain),
    /// A subrequest that is done.
    Answer(Box<Request>),
}

impl From<&str> for Item {
    fn from(text: &str) -> Item {
        Item::Text(text.as_bytes().to_vec())
    }
}

/// An operation that is waited for.
pub type Operation = Pin<Box<dyn Future<Output = Vec<Item>>>>;

/// A number, or a text that is one.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(i) => Some(*i as f64),
        Value::Number(n) => Some(*n),
        Value::String(text) => text.to_str().ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// Gives what an operation gave back.
pub(super) fn give(call: &Call, lua: &Lua, items: Vec<Item>) {
    let count = |item: &Item| match item {
        Item::Answer(_) => capture::VALUES_OF_ANSWER,
        Item::Fault(_) => 2,
        _ => 1,
    };
    if items.is_empty() || !call.reserve(items.iter().map(count).sum()) {
        return;
    }
    for item in items {
        match item {
            Item::Nil => call.give_nil(),
            Item::Flag(flag) => call.give_flag(flag),
            Item::Number(number) => call.give_number(number),
            Item::Text(text) => call.give_bytes(&text),
            Item::Plain(plain) => call.give_value(lua, &plain.into_lua(lua).unwrap_or(Value::Nil)),
            // It was seen before.
            Item::End(_) => {}
            Item::Answer(child) => capture::give(call, child),
            Item::Fault(fault) => {
                call.give_fault_mark();
                call.give_bytes(fault.0.as_bytes());
            }
        }
    }
}

pub(super) fn end_of(e: body::BodyError) -> End {
    match e {
        body::BodyError::Status(status) => End::Exit(i64::from(status)),
        body::BodyError::Gone => End::Broken,
    }
}

/// `ngx.req.read_body`. The program's other light threads run meanwhile.
pub(super) fn read_body() -> Operation {
    Box::pin(poll_fn(|cx| {
        let read = current::request(|r| Ok(body::poll_all(r, cx).map_err(end_of)));
        match read {
            Ok(read) => read.map(|read| read.err().into_iter().map(Item::End).collect()),
            Err(fault) => Poll::Ready(vec![Item::Fault(fault)]),
        }
    }))
}

/// `ngx.flush(true)`, as [`read_body`].
pub(super) fn flush() -> Operation {
    let mut flush = None;
    Box::pin(poll_fn(move |cx| {
        let flushed = current::request(|r| {
            let flushed = flow::poll_flush_now(r, &mut flush, cx);
            if let Poll::Ready(Err(verdict)) = flushed {
                // The program hears of it and goes on, as under ngx_lua; the request comes to this in the end.
                r.ctx.lua.get_or_insert_default().failed = Some(verdict);
            }
            Ok(flushed)
        });
        match flushed {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(Ok(()))) => Poll::Ready(vec![Item::Number(1.0)]),
            Ok(Poll::Ready(Err(_))) => Poll::Ready(vec![Item::Nil, super::api::answer::LOST.into()]),
            Err(fault) => Poll::Ready(vec![Item::Fault(fault)]),
        }
    }))
}

/// Seconds that are waited for; less lets the others go first, and no more.
pub(super) const SHORTEST_S: f64 = 0.001;

/// A sleep: says so when it is given up. Whether it has come to its end.
pub(super) struct Asleep(bool);

impl Asleep {
    pub(super) fn begin(seconds: f64) -> Asleep {
        log(Level::Debug, format_args!("lua ready to sleep for {} ms", (seconds * 1000.0) as u64));
        Asleep(false)
    }

    pub(super) fn end(&mut self) {
        self.0 = true;
        if log_is_on(Level::Debug) {
            let uri = current::connection(|r| {
                let (uri, args) = (r.get(r.head.uri), r.get(r.head.args));
                Ok(format!("{}?{}", String::from_utf8_lossy(uri), String::from_utf8_lossy(args)))
            });
            let uri = uri.unwrap_or_else(|_| "?".to_owned());
            log(Level::Debug, format_args!("lua sleep timer expired: \"{uri}\""));
        }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        if !self.0 {
            log(Level::Debug, format_args!("lua clean up the timer for pending ngx.sleep"));
        }
    }
}

/// `ngx.sleep`
pub(super) fn sleep(seconds: f64) -> Operation {
    // Begun now: a sleep that is given up before its first turn is one, too.
    let mut asleep = Asleep::begin(seconds);
    Box::pin(async move {
        runtime::timer::sleep(Duration::from_secs_f64(seconds.min(f64::from(u32::MAX)))).await;
        asleep.end();
        Vec::new()
    })
}
