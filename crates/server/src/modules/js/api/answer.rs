//! `r`: what the client gets.

use super::super::current::with;
use super::super::machine::Context;
use super::request::distinct;
use crate::log_error;
use crate::modules::root;
use crate::request::chunk::Chunk;
use crate::request::headers::{HeaderOut, KnownHeader as K};
use crate::request::phases::Verdict;
use crate::request::{Request, body};
use ::js::rquickjs::convert::List;
use ::js::rquickjs::prelude::Func;
use ::js::rquickjs::{Ctx, IntoJs, Object, Result, Value};
use ::js::{Bytes, Fault};

type Done = std::result::Result<(), Fault>;

/// See the module's head.
pub fn add(raw: &Object<'_>) -> Result<()> {
    raw.set(
        "r_return",
        Func::from(|ctx: Ctx<'_>, status: u16, text: Bytes, given: bool| {
            with(&ctx, |r| answer(r, status, &text.0, given))
        }),
    )?;
    raw.set(
        "r_decline",
        Func::from(|ctx: Ctx<'_>| {
            with(&ctx, |r| {
                context(r)?.verdict = Some(Verdict::Decline);
                Ok(())
            })
        }),
    )?;
    raw.set("r_send_header", Func::from(|ctx: Ctx<'_>| with(&ctx, send_header)))?;
    raw.set("r_send", Func::from(|ctx: Ctx<'_>, part: Bytes| with(&ctx, |r| send(r, &part.0))))?;
    raw.set("r_finish", Func::from(|ctx: Ctx<'_>| with(&ctx, end)))?;
    raw.set(
        "r_send_buffer",
        Func::from(|ctx: Ctx<'_>, part: Bytes, last: Option<bool>| {
            with(&ctx, |r| {
                let context = context(r)?;
                if !context.filter {
                    return Err(Fault::of_type("cannot send buffer while not filtering"));
                }
                let last = last.unwrap_or(context.last);
                context.pieces.push((part.0, last));
                Ok(())
            })
        }),
    )?;
    raw.set(
        "r_done",
        Func::from(|ctx: Ctx<'_>| {
            with(&ctx, |r| {
                let context = context(r)?;
                if !context.filter {
                    return Err(Fault::of_type("cannot set done while not filtering"));
                }
                context.done = true;
                Ok(())
            })
        }),
    )?;
    raw.set("r_redirect", Func::from(|ctx: Ctx<'_>, uri: Bytes| with(&ctx, |r| redirect(r, uri.0))))?;
    raw.set("r_status", Func::from(|ctx: Ctx<'_>| with(&ctx, |r| Ok(r.answer.headers.status))))?;
    raw.set(
        "r_set_status",
        Func::from(|ctx: Ctx<'_>, status: f64| {
            with(&ctx, |r| {
                r.answer.headers.status = status as u16;
                r.answer.headers.status_line = None;
                r.flow.error_status = 0;
                Ok(())
            })
        }),
    )?;
    raw.set("r_header_out", Func::from(header))?;
    raw.set(
        "r_header_out_names",
        Func::from(|ctx: Ctx<'_>| {
            with(&ctx, |r| {
                let pairs = all(r);
                Ok(distinct(pairs.iter().map(|(name, _)| name.as_slice())))
            })
        }),
    )?;
    raw.set(
        "r_set_header_out",
        Func::from(|ctx: Ctx<'_>, name: Bytes, values: Vec<Bytes>| with(&ctx, |r| set_header(r, &name.0, values))),
    )
}

fn context(r: &mut Request) -> std::result::Result<&mut Context, Fault> {
    r.ctx.js.as_deref_mut().ok_or_else(|| Fault::internal("there is no request here"))
}

fn not_in_filter(r: &mut Request, what: &str) -> Done {
    if context(r)?.filter { Err(Fault::of_type(what)) } else { Ok(()) }
}

/// `r.return`
fn answer(r: &mut Request, status: u16, text: &[u8], given: bool) -> Done {
    not_in_filter(r, "cannot return while filtering")?;
    if status >= 400 && !given {
        context(r)?.verdict = Some(Verdict::Status(status));
        return Ok(());
    }
    if matches!(status, 301 | 302 | 303 | 307 | 308) {
        check_value(text)?;
        let to = r.text(text);
        r.answer.headers.set(K::Location, "Location", to);
        context(r)?.verdict = Some(Verdict::Status(status));
        return Ok(());
    }
    if r.answer.header_sent {
        log_error!(r, Alert, "header already sent");
        return Err(Fault::internal("failed to send response"));
    }
    if let Err(status) = body::discard_arrived(r) {
        context(r)?.verdict = Some(Verdict::Status(status));
        return Ok(());
    }
    root::set_content_type(r);
    let verdict = r.respond(status, text);
    let context = context(r)?;
    context.verdict = Some(verdict);
    context.unflushed = true;
    match verdict {
        Verdict::Broken => Err(Fault::internal("failed to send response")),
        _ => Ok(()),
    }
}

fn send_header(r: &mut Request) -> Done {
    if r.answer.header_sent {
        log_error!(r, Alert, "header already sent");
        return Err(Fault::internal("failed to send header"));
    }
    root::set_content_type(r);
    if r.answer.headers.status == 0 {
        r.answer.headers.status = 200;
    }
    match r.send_header() {
        Ok(()) => {
            context(r)?.unflushed = true;
            Ok(())
        }
        Err(verdict) => {
            context(r)?.verdict = Some(verdict);
            Err(Fault::internal("failed to send header"))
        }
    }
}

fn send(r: &mut Request, part: &[u8]) -> Done {
    not_in_filter(r, "cannot send while in body filter")?;
    if !r.answer.header_sent || r.answer.done {
        return Err(Fault::internal("failed to send response"));
    }
    if part.is_empty() || r.answer.header_only {
        return Ok(());
    }
    match r.send_body(Chunk::Bytes(part), false) {
        Ok(()) => {
            context(r)?.unflushed = true;
            Ok(())
        }
        Err(verdict) => {
            context(r)?.verdict = Some(verdict);
            Err(Fault::internal("failed to send response"))
        }
    }
}

fn end(r: &mut Request) -> Done {
    if !r.answer.header_sent {
        return Err(Fault::internal("failed to send response"));
    }
    let verdict = match r.send_body(Chunk::Bytes(b""), true) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    };
    let context = context(r)?;
    context.verdict = Some(verdict);
    context.unflushed = true;
    Ok(())
}

fn redirect(r: &mut Request, uri: Vec<u8>) -> Done {
    if !r.is_main() {
        return Err(Fault::of_type("internalRedirect cannot be called from a subrequest"));
    }
    not_in_filter(r, "internalRedirect cannot be called while filtering")?;
    if uri.is_empty() {
        return Err(Fault::of_type("uri is empty"));
    }
    context(r)?.redirect = Some(uri);
    Ok(())
}

/// The type of an answer as one text.
fn content_type(r: &Request) -> Option<Vec<u8>> {
    r.answer.headers.content_type?;
    let mut out = Vec::new();
    r.answer.headers.write_content_type(&r.arena, &mut out);
    Some(out)
}

/// What the server keeps beside the lines.
fn kept(r: &Request, known: K) -> Option<Vec<u8>> {
    match known {
        K::ContentType => content_type(r),
        K::ContentLength => r.answer.headers.content_length.map(|n| n.to_string().into_bytes()),
        K::LastModified => r.answer.headers.last_modified.map(|t| wire::date::format_http(t).to_vec()),
        _ => None,
    }
}

/// All headers of an answer as they are now.
pub fn all(r: &Request) -> Vec<(Vec<u8>, Vec<u8>)> {
    let own =
        [("Content-Type", K::ContentType), ("Content-Length", K::ContentLength), ("Last-Modified", K::LastModified)];
    let mut out: Vec<_> =
        own.into_iter().filter_map(|(name, known)| Some((name.as_bytes().to_vec(), kept(r, known)?))).collect();
    out.extend(r.answer.headers.lines.iter().map(|l| (r.get(l.name).to_vec(), r.get(l.value).to_vec())));
    out
}

/// `r.rawHeadersOut`
pub fn pairs(r: &Request) -> Vec<List<(Bytes, Bytes)>> {
    all(r).into_iter().map(|(name, value)| List((Bytes(name), Bytes(value)))).collect()
}

/// Headers of an answer that stand once.
fn is_single(name: &[u8]) -> bool {
    const SINGLE: &[&[u8]] = &[
        b"Age",
        b"Content-Type",
        b"Content-Length",
        b"Content-Encoding",
        b"ETag",
        b"Expires",
        b"Last-Modified",
        b"Location",
        b"Server",
        b"Retry-After",
        b"Date",
    ];
    SINGLE.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn header<'js>(ctx: Ctx<'js>, name: Bytes) -> Result<Value<'js>> {
    let found = with(&ctx, |r| {
        if let Some(own) = kept(r, K::find(&name.0)) {
            return Ok(vec![own]);
        }
        let lines = r.answer.headers.lines.iter().filter(|l| r.get(l.name).eq_ignore_ascii_case(&name.0));
        Ok(lines.map(|l| r.get(l.value).to_vec()).collect())
    })?;
    if found.is_empty() {
        return Ok(Value::new_undefined(ctx));
    }
    if name.0.eq_ignore_ascii_case(b"Set-Cookie") {
        return found.into_iter().map(Bytes).collect::<Vec<_>>().into_js(&ctx);
    }
    if is_single(&name.0) {
        return found.into_iter().next().map(Bytes).into_js(&ctx);
    }
    Bytes(found.join(&b", "[..])).into_js(&ctx)
}

/// Of these the last value counts, whatever is given.
fn is_last(known: &[u8]) -> bool {
    const LAST: &[&[u8]] = &[
        b"Content-Type",
        b"Content-Length",
        b"Content-Encoding",
        b"Date",
        b"Last-Modified",
        b"Location",
        b"Server",
        b"Retry-After",
    ];
    LAST.iter().any(|name| name.eq_ignore_ascii_case(known))
}

/// No value ends its line, or hides something in it.
fn check_value(value: &[u8]) -> Done {
    match value.iter().any(|b| *b < b' ' && *b != b'\t' || *b == 0x7f) {
        true => Err(Fault::of_type("invalid header value")),
        false => Ok(()),
    }
}

/// Puts values in place of all headers of a name. Of those that stand once it is the last.
fn set_header(r: &mut Request, name: &[u8], values: Vec<Bytes>) -> Done {
    let mut values: Vec<Vec<u8>> = values.into_iter().map(|v| v.0).collect();
    for value in &values {
        check_value(value)?;
    }
    if name.is_empty() || !name.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b)) {
        return Err(Fault::of_type("invalid header name"));
    }
    if r.answer.header_sent && !context(r).is_ok_and(|c| c.filter) {
        log_error!(
            r,
            Warn,
            "ignored setting of response header \"{}\" because headers were already sent",
            String::from_utf8_lossy(name)
        );
        return Ok(());
    }
    values.retain(|v| !v.is_empty());
    if is_last(name) && values.len() > 1 {
        values.drain(..values.len() - 1);
    }
    let known = K::find(name);
    match known {
        K::ContentType => {
            r.answer.headers.content_type = None;
            (r.answer.headers.charset, r.answer.headers.written) = (None, None);
            if let Some(value) = values.last() {
                let value = r.text(value);
                let arena = std::mem::take(&mut r.arena);
                r.answer.headers.set_content_type(&arena, value);
                r.arena = arena;
            }
            return Ok(());
        }
        K::ContentLength => {
            r.answer.headers.remove(K::ContentLength);
            let number = values.last().map(|v| std::str::from_utf8(v).ok().and_then(|v| v.trim().parse::<u64>().ok()));
            r.answer.headers.content_length = match number {
                None => None,
                Some(Some(number)) => Some(number),
                Some(None) => return Err(Fault::of_type("failed converting argument to positive integer")),
            };
            return Ok(());
        }
        K::LastModified => {
            r.answer.headers.last_modified = values.last().and_then(|v| wire::date::parse_http(v));
            if r.answer.headers.last_modified.is_some() || values.is_empty() {
                r.answer.headers.remove(K::LastModified);
                return Ok(());
            }
        }
        _ => {}
    }
    let (arena, lines) = (&r.arena, &mut r.answer.headers.lines);
    lines.retain(|l| !arena.get(l.name).eq_ignore_ascii_case(name));
    for value in values {
        let (name, value) = (r.text(name), r.text(&value));
        r.answer.headers.lines.push(HeaderOut { name, value, known });
    }
    Ok(())
}
