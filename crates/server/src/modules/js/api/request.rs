//! `r`: what the client has sent.

use super::super::current::with;
use super::super::machine;
use crate::request::headers::KnownHeader as K;
use crate::request::{Request, Version};
use ::js::engine;
use ::js::rquickjs::convert::List;
use ::js::rquickjs::prelude::Func;
use ::js::rquickjs::{Ctx, IntoJs, Object, Result, Value};
use ::js::value::OrThrow;
use ::js::{Buffer, Bytes, Fault, Item, Operation};
use std::future::poll_fn;
use std::io;
use std::task::Poll;

/// See the module's head.
pub fn add(raw: &Object<'_>) -> Result<()> {
    raw.set("r_text", Func::from(|ctx: Ctx<'_>, field: u8| with(&ctx, |r| Ok(text(r, field)))))?;
    raw.set("r_args", Func::from(|ctx: Ctx<'_>| with(&ctx, |r| Ok(Bytes(r.get(r.head.args).to_vec())))))?;
    raw.set("r_internal", Func::from(|ctx: Ctx<'_>| with(&ctx, |r| Ok(r.flow.internal))))?;
    raw.set("r_is_main", Func::from(|ctx: Ctx<'_>| with(&ctx, |r| Ok(r.is_main()))))?;
    raw.set("r_header_in", Func::from(|ctx: Ctx<'_>, name: Bytes| with(&ctx, |r| Ok(header(r, &name.0)))))?;
    raw.set(
        "r_header_in_names",
        Func::from(|ctx: Ctx<'_>| {
            with(&ctx, |r| Ok(distinct(r.head.headers.lines().iter().map(|l| r.arena.span(l.name)))))
        }),
    )?;
    raw.set(
        "r_raw_headers",
        Func::from(|ctx: Ctx<'_>, out: bool| with(&ctx, |r| Ok(if out { super::answer::pairs(r) } else { pairs(r) }))),
    )?;
    raw.set("r_body", Func::from(body))?;
    raw.set(
        "r_body_is_read",
        Func::from(|ctx: Ctx<'_>| with(&ctx, |r| Ok(r.body.stored.is_some() || !r.body.is_pending()))),
    )?;
    raw.set("r_read_body", Func::from(|ctx: Ctx<'_>| read_body().or_throw(&ctx)))
}

/// Names of headers, each once, as they were written first.
pub fn distinct<'a>(names: impl Iterator<Item = &'a [u8]>) -> Vec<Bytes> {
    let mut all: Vec<Bytes> = Vec::new();
    for name in names {
        if !all.iter().any(|known| known.0.eq_ignore_ascii_case(name)) {
            all.push(Bytes(name.to_vec()));
        }
    }
    all
}

fn text(r: &mut Request, field: u8) -> Bytes {
    Bytes(match field {
        0 => r.get(r.head.uri).to_vec(),
        1 => r.get(r.head.method_name).to_vec(),
        2 => r.get(r.head.line).to_vec(),
        3 => r.client.remote.borrow().host().to_string().into_bytes(),
        _ => match r.head.version {
            v if v < Version::HTTP10 => b"0.9".to_vec(),
            Version::HTTP10 => b"1.0".to_vec(),
            Version::HTTP11 => b"1.1".to_vec(),
            Version(2000..3000) => b"2.0".to_vec(),
            Version(3000..4000) => b"3.0".to_vec(),
            _ => Vec::new(),
        },
    })
}

/// A header by its name: of those that may stand only once the first, of others all.
fn header(r: &Request, name: &[u8]) -> Option<Bytes> {
    let mut values = r.head.headers.named(&r.arena, name).map(|l| r.arena.span(l.value));
    let first = values.next()?;
    if is_single(name) {
        return Some(Bytes(first.to_vec()));
    }
    let separator: &[u8] = if K::find(name) == K::Cookie { b"; " } else { b", " };
    let mut out = first.to_vec();
    for value in values {
        out.extend_from_slice(separator);
        out.extend_from_slice(value);
    }
    Some(Bytes(out))
}

/// Request headers whose second line says nothing.
fn is_single(name: &[u8]) -> bool {
    const SINGLE: &[&[u8]] = &[
        b"Authorization",
        b"Content-Length",
        b"Content-Type",
        b"ETag",
        b"From",
        b"Host",
        b"If-Match",
        b"If-Modified-Since",
        b"If-None-Match",
        b"If-Range",
        b"If-Unmodified-Since",
        b"Max-Forwards",
        b"Proxy-Authorization",
        b"Range",
        b"Referer",
        b"Transfer-Encoding",
        b"Upgrade",
        b"User-Agent",
        b"Content-Encoding",
        b"Connection",
        b"Keep-Alive",
        b"TE",
    ];
    SINGLE.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn pairs(r: &Request) -> Vec<List<(Bytes, Bytes)>> {
    let bytes = |span| Bytes(r.arena.span(span).to_vec());
    r.head.headers.lines().iter().map(|l| List((bytes(l.name), bytes(l.value)))).collect()
}

/// The request's body, once it was read: as bytes or as a text.
fn body<'js>(ctx: Ctx<'js>, as_bytes: bool) -> Result<Value<'js>> {
    let found = with(&ctx, |r| bytes_of_body(r))?;
    match found {
        None => Ok(Value::new_undefined(ctx)),
        Some(bytes) if as_bytes => Buffer(bytes).into_js(&ctx),
        Some(bytes) => Bytes(bytes).into_js(&ctx),
    }
}

fn bytes_of_body(r: &Request) -> std::result::Result<Option<Vec<u8>>, Fault> {
    let Some(stored) = &r.body.stored else { return Ok(None) };
    if stored.len == 0 {
        return Ok(None);
    }
    let mut out = stored.memory.clone();
    if let Some(file) = &stored.file {
        crate::log_error!(r, Warn, "http js reading request body from a temporary file");
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; stored.len as usize];
            let mut got = 0;
            while got < bytes.len() {
                match rustix::io::pread(&*file.fd, &mut bytes[got..], got as u64)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => got += n,
                }
            }
            Ok(bytes)
        };
        out = read().map_err(|_| Fault::internal("failed to read request body"))?;
    }
    Ok(Some(out))
}

/// Asks for the request's body: the program's driver reads it.
fn read_body() -> std::result::Result<u32, Fault> {
    super::super::current::request(|r| {
        let engine = engine::current()?;
        let context: &mut machine::Context =
            r.ctx.js.as_deref_mut().ok_or_else(|| Fault::internal("the request body cannot be read here"))?;
        if context.filter || r.ctx.stream.is_some() {
            return Err(Fault::internal("the request body cannot be read here"));
        }
        context.wants_body = true;
        let operation: Operation = Box::pin(poll_fn(|_| {
            let read = super::super::current::request(|r| Ok(r.body.stored.is_some() || !r.body.is_pending()));
            match read {
                Ok(false) => Poll::Pending,
                Ok(true) => Poll::Ready(Ok(Item::Undefined)),
                Err(fault) => Poll::Ready(Err(fault)),
            }
        }));
        engine.begin(operation)
    })
}
