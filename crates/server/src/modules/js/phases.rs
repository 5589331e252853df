//! Programs in the phases of a request: which one runs, and what its end means for the request.

use super::machine;
use super::run::{self, End, with_request};
use crate::log_error;
use crate::request::chunk::Chunk as Piece;
use crate::request::filter::{BodyFilter, Rest};
use crate::request::phases::{Verdict, Waiting};
use crate::request::respond::Filtered;
use crate::request::{Request, Text, body, finish as special};
use ::js::{Buffer, Bytes};
use std::io;

/// `js_content`: the body is read first, as in nginx.
pub fn content(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let Some(name) = (*r.conf().js.content).clone() else { return Verdict::Decline };
        if let Err(e) = body::read_all(r).await {
            return e.into();
        }
        let Some(engine) = machine::of(r) else { return Verdict::Status(500) };
        let end = run::run(r, &engine, &name).await;
        let said = said(r);
        match end {
            End::Over(verdict) => verdict,
            End::Failed => failed(r),
            End::Done => match said {
                Some(verdict) => verdict,
                // A program that says nothing is no answer.
                None => failed(r),
            },
        }
    })
}

/// `js_access`
pub fn access(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let Some(name) = (*r.conf().js.access).clone() else { return Verdict::Decline };
        let Some(engine) = machine::of(r) else { return Verdict::Status(500) };
        let end = run::run(r, &engine, &name).await;
        if engine.has_unhandled() {
            return failed(r);
        }
        let said = said(r);
        match end {
            End::Over(verdict) => verdict,
            End::Failed => failed(r),
            End::Done => said.unwrap_or(Verdict::Allow),
        }
    })
}

/// Nothing more can come: 500, or the end of the connection in the middle of an answer.
fn failed(r: &mut Request) -> Verdict {
    if r.answer.done {
        return Verdict::Answered;
    }
    if r.answer.header_sent {
        r.flow.keepalive = false;
        return Verdict::Broken;
    }
    Verdict::Status(500)
}

/// What the program has said that becomes of the request.
fn said(r: &mut Request) -> Option<Verdict> {
    let context = r.ctx.js.as_mut()?;
    let (redirect, verdict) = (context.redirect.take(), context.verdict.take());
    match redirect {
        None => verdict,
        Some(_) if r.answer.header_sent => {
            log_error!(r, Warn, "ignored internalRedirect() because headers were already sent");
            Some(failed(r))
        }
        Some(uri) => Some(go(r, &uri)),
    }
}

fn go(r: &mut Request, uri: &[u8]) -> Verdict {
    if let Some(name) = uri.strip_prefix(b"@") {
        return special::named_location(r, name);
    }
    let text = r.text(uri);
    let (path, args) = special::split_args(r, text);
    let path = if r.get(path).contains(&b'%') {
        let mut plain = Vec::new();
        unescape(r.get(path), &mut plain);
        r.text(&plain)
    } else {
        path
    };
    let is_unsafe = r.get(path).split(|b| *b == b'/').any(|part| part == b"..") || r.get(path).contains(&0);
    if is_unsafe || r.get(path).is_empty() {
        log_error!(r, Error, "unsafe URI \"{}\" was detected", String::from_utf8_lossy(uri));
        return Verdict::Status(500);
    }
    special::internal_redirect(r, path, args)
}

/// Appends a text without its escapes; what is none stays.
pub(super) fn unescape(path: &[u8], out: &mut Vec<u8>) {
    let digit = |at: usize| path.get(at).and_then(|b| (*b as char).to_digit(16));
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
}

/// `js_set`
pub fn variable(r: &mut Request, name: &str) -> Option<Text> {
    if r.conf().js.program.is_none() {
        log_error!(
            r,
            Error,
            "no \"js_import\" directives found for \"js_set\" handler \"{name}\" in the current scope"
        );
        return None;
    }
    let engine = machine::of(r)?;
    run::call_now(r, &engine, name, "variable handler", |ctx, raw| {
        run::only(ctx, raw, if is_session() { "session" } else { "request" })
    })?;
    match super::current::enter(r, || engine.returned()) {
        Ok(value) => Some(r.text(&value)),
        Err(text) => {
            run::complain(r, &text);
            None
        }
    }
}

/// Whether a program runs for a session of `stream`.
fn is_session() -> bool {
    super::current::request(|r| Ok(r.ctx.stream.is_some())).unwrap_or(false)
}

/// `js_header_filter`; and `js_body_filter` begins with it.
pub fn header_filter(r: &mut Request) -> Filtered {
    if r.conf().js.body_filter.0.is_some() {
        r.answer.body_filters.push(Box::new(Filter { room: Vec::new() }));
        r.answer.in_memory = true;
    }
    let Some(name) = (*r.conf().js.header_filter).clone() else { return Filtered::Next };
    let Some(engine) = machine::of(r) else { return Filtered::Broken };
    let before = set_filter(r, true);
    let called = run::call_now(r, &engine, &name, "header filter", with_request);
    set_filter(r, before);
    if called.is_some() { Filtered::Next } else { Filtered::Broken }
}

fn set_filter(r: &mut Request, on: bool) -> bool {
    r.ctx.js.as_mut().is_some_and(|c| std::mem::replace(&mut c.filter, on))
}

struct Filter {
    room: Vec<u8>,
}

impl BodyFilter for Filter {
    fn push(&mut self, r: &mut Request, chunk: Piece<'_>, last: bool, mut rest: Rest<'_>) -> io::Result<()> {
        if r.ctx.js.as_ref().is_some_and(|c| c.done) {
            return rest.push(r, chunk, last);
        }
        let mut room = std::mem::take(&mut self.room);
        let pushed = chunk.pieces(last, &mut room, |bytes, last| {
            if r.ctx.js.as_ref().is_some_and(|c| c.done) {
                return rest.push(r, Piece::Bytes(bytes), last);
            }
            for (bytes, last) in filtered(r, bytes, last)? {
                rest.push(r, Piece::Bytes(&bytes), last)?;
            }
            Ok(())
        });
        self.room = room;
        pushed
    }
}

/// What a body filter makes of a piece.
fn filtered(r: &mut Request, bytes: &[u8], last: bool) -> io::Result<Vec<(Vec<u8>, bool)>> {
    let (name, is_buffer) = (*r.conf().js.body_filter).clone();
    let broken = || io::Error::other("js_body_filter failed");
    let name = name.ok_or_else(broken)?;
    let engine = machine::of(r).ok_or_else(broken)?;
    let before = set_filter(r, true);
    if let Some(context) = &mut r.ctx.js {
        context.last = last;
    }
    let called = run::call_now(r, &engine, &name, "body filter", |ctx, raw| {
        let array = with_request(ctx, raw)?;
        if is_buffer {
            let wrap: ::js::rquickjs::Function<'_> = raw.get("wrap")?;
            array.set(1, wrap.call::<_, ::js::rquickjs::Value<'_>>((Buffer(bytes.to_vec()),))?)?;
        } else {
            array.set(1, Bytes(bytes.to_vec()))?;
        }
        let flags = ::js::rquickjs::Object::new(ctx.clone())?;
        flags.set("last", last)?;
        array.set(2, flags)?;
        Ok(array)
    });
    set_filter(r, before);
    let mut pieces = r.ctx.js.as_mut().map(|c| std::mem::take(&mut c.pieces)).unwrap_or_default();
    if last && !pieces.iter().any(|(_, last)| *last) {
        // The answer ends, whatever the program has sent of it.
        pieces.push((Vec::new(), true));
    }
    called.map(|()| pieces).ok_or_else(broken)
}

/// The request is over: its context serves another.
pub fn finish(r: &mut Request) {
    let Some(mut context) = r.ctx.js.take() else { return };
    for text in super::current::enter(r, || context.give_back()) {
        log_error!(r, Error, "js {text}");
    }
}
