//! `flv`: `FILE.flv?start=BYTES` is answered from that byte on, behind a head of its own (nginx's `ngx_http_flv_module`).

use super::{root, static_files};
use crate::config::{Directive, http};
use crate::files::{self, Kind};
use crate::request::phases::{Content, Verdict};
use crate::request::{Method, Request};
use conf::value;
use wire::http1::target::argument;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("flv", |s, _| {
    s.level.conf.core.handler = Some(Content::Now(handler));
    Ok(())
})];

/// Version 1, with audio and video, and the size of the tag before the first.
const HEAD: &[u8; 13] = b"FLV\x01\x05\0\0\0\x09\0\0\0\0";

fn handler(r: &mut Request) -> Verdict {
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    if r.get(r.head.uri).ends_with(b"/") {
        return Verdict::Decline;
    }
    if !root::check_alias(r) {
        return Verdict::Status(500);
    }
    let path = root::path_of(r);
    let found = match files::open(r, &path) {
        Ok(found) => found,
        Err(failure) => return static_files::failed(r, &path, failure),
    };
    if found.facts.kind != Kind::File {
        return Verdict::Decline;
    }
    let size = found.facts.size;
    let start = argument(r.get(r.head.args), b"start").and_then(value::number).filter(|n| (1..size).contains(n));
    let Some(start) = start else { return static_files::respond(r, &found) };
    match static_files::begin(r, found.facts.mtime, HEAD.len() as u64 + size - start) {
        Ok(()) => static_files::send_parts(r, HEAD, &found, start, size),
        Err(verdict) => verdict,
    }
}
