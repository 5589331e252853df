//! What a cache does for a module with an upstream: asks it first, sends what is in it, judges and keeps what the upstream says.
//! What is done is in `cache`; here is how it meets the way of an answer.

use super::cgi;
use super::conf::UpstreamConf;
use super::pass_on::{self, Parts};
use super::rewrite;
use super::settings::next;
use crate::cache::context::Change;
use crate::cache::entry::Entry;
use crate::cache::lookup::{self, Look, Outcome};
use crate::cache::{Status, caching, purge};
use crate::log_error;
use crate::modules::cache_purge;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Request, Text, Version};
use crate::service;
use wire::http1::Parsed;
use wire::http1::response::ResponseParser;
use wire::http1::target;

/// Asks the cache. None: the upstream is to be asked. `own_key` is the key where none is configured.
pub async fn look(
    r: &mut Request,
    conf: &UpstreamConf,
    owner: &'static str,
    own_key: impl FnOnce(&mut Request) -> Text,
) -> Option<Verdict> {
    if r.ctx.cache.is_some() {
        // An update in the background has been looked up by whom it is for.
        return None;
    }
    r.attempts.cache = None;
    let outcome = match lookup::look(r, &conf.cache, conf, owner, own_key) {
        Look::Now(outcome) => outcome,
        Look::Purge(cache, key, style) => Outcome::End(Box::pin(cache_purge::answer(r, cache, key, style)).await),
        Look::Open(caching) => Box::pin(lookup::open(r, &conf.cache, conf, caching)).await,
    };
    match outcome {
        Outcome::Ask => None,
        Outcome::End(verdict) => Some(verdict),
        Outcome::Serve(entry) => Some(resend(r, conf, &entry)),
    }
}

/// Headers that ask for less than a whole answer, which the cache cannot do with.
pub fn is_for_client(known: K) -> bool {
    matches!(known, K::IfModifiedSince | K::IfUnmodifiedSince | K::IfMatch | K::IfNoneMatch | K::Range | K::IfRange)
}

/// A request that changes what is behind its target was answered: what the cache has of it is too old from now on, and of what the answer
/// names as its place, unless nothing was changed (RFC 9111 section 4.4).
pub(super) fn invalidate(r: &mut Request, conf: &UpstreamConf, status: u16) {
    let Some(changes) = r.ctx.cache_change.take() else { return };
    if !(200..400).contains(&status) {
        return;
    }
    let mut walk = lookup::invalidate(r, &changes);
    for key in named_keys(r, conf, &changes) {
        let other = changes.other(r, &key);
        walk = lookup::invalidate(r, &other).or(walk);
    }
    if let Some(cache) = walk {
        service::spawn(move || async move {
            service::blocking(move || purge::changed(&cache)).await;
        });
    }
}

/// The keys of what an answer's `Location` and `Content-Location` name, as far as that is the same server's: the request's own key, with
/// their targets in the place of its own.
fn named_keys(r: &mut Request, conf: &UpstreamConf, changes: &Change) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    for i in 0..r.attempts.head.headers.len() {
        let h = r.attempts.head.headers[i];
        let (name, value) = (r.attempts.text(h.name), r.attempts.text(h.value));
        if h.known != K::Location && !r.get(name).eq_ignore_ascii_case(b"content-location") {
            continue;
        }
        let rewritten = rewrite::apply(r, &conf.headers.rewrites.redirects, value);
        let target = r.get(r.head.target);
        let seen = target::resolve(target, r.get(rewritten.unwrap_or(value)));
        let host = r.head.headers.find(K::Host).map(|host| r.get(host)).unwrap_or_default();
        let Some(seen) = seen.filter(|n| n.authority.is_none_or(|a| a.eq_ignore_ascii_case(host))) else { continue };
        // As the peer calls it, where its names are not the client's.
        let own = target::resolve(target, r.get(value)).map_or_else(Vec::new, |named| named.target);
        let key = r.get(changes.key());
        let other = key_with(key, target, &seen.target, &own);
        keys.extend(other.filter(|other| other != key));
    }
    keys
}

/// A key with another target in the place of the request's own. One of the usual form whose target is not the client's gets that which
/// the peer knows. None: the key does not say which target it is for.
fn key_with(key: &[u8], target: &[u8], seen: &[u8], own: &[u8]) -> Option<Vec<u8>> {
    let origin =
        [&b"http://"[..], b"https://"].iter().find(|scheme| key.starts_with(scheme)).map_or(0, |scheme| scheme.len());
    let start = origin + memchr::memchr(b'/', &key[origin..]).filter(|_| origin > 0).unwrap_or(0);
    if let Some(at) = memchr::memmem::find(&key[start..], target) {
        let (before, after) = (&key[..start + at], &key[start + at + target.len()..]);
        return Some([before, seen, after].concat());
    }
    (origin > 0 && !own.is_empty()).then(|| [&key[..start], own].concat())
}

/// There is no answer: an old one may do.
pub fn failed(r: &mut Request, conf: &UpstreamConf, verdict: Verdict) -> Verdict {
    let kinds = std::mem::take(&mut r.attempts.failed);
    let Some(caching) = &mut r.ctx.cache else { return verdict };
    let expired = r.attempts.cache == Some(Status::Expired);
    if kinds != 0
        && expired
        && (caching.stale_error || caching.may_be_stale(&conf.cache, kinds))
        && let Some(entry) = caching.entry.take()
    {
        r.attempts.cache = Some(Status::Stale);
        return resend(r, conf, &entry);
    }
    if let Verdict::Status(status @ (502 | 504)) = verdict
        && kinds != 0
        && !r.attempts.forbids_caching
    {
        caching.note_error(&conf.cache, status);
    }
    verdict
}

/// What to send in place of an answer with this status, whose head was just read: what is in the cache, if the answer is a
/// failure for which that may be sent, or confirms it. Otherwise judges the answer.
pub(super) fn instead(r: &mut Request, conf: &UpstreamConf, status: u16) -> Option<Entry> {
    let mut caching = r.ctx.cache.take()?;
    let expired = r.attempts.cache == Some(Status::Expired);
    let ignored = *conf.ignore_headers;
    let mut entry = None;
    if expired
        && let Some(kind) = next::of_status(status)
        && caching.may_be_stale(&conf.cache, kind)
    {
        entry = caching.entry.take();
        r.attempts.cache = Some(Status::Stale);
    } else {
        caching.judge(r, &conf.cache, ignored);
    }
    if expired && status == 304 && *conf.cache.revalidate && caching.entry.is_some() {
        r.attempts.cache = Some(Status::Revalidated);
        entry.clone_from(&caching.entry);
        if *conf.cache.rfc9111 {
            caching.confirming = caching::raw_head(r).to_vec();
        }
    }
    r.ctx.cache = Some(caching);
    entry
}

/// Sends what is in the cache (`ngx_http_upstream_cache_send`).
pub(super) fn resend(r: &mut Request, conf: &UpstreamConf, entry: &Entry) -> Verdict {
    if !load_head(r, entry) {
        log_error!(r, Crit, "cache file contains invalid header");
        return Verdict::Status(500);
    }
    let ignored = *conf.ignore_headers;
    if r.attempts.cache == Some(Status::Revalidated)
        && let Some(caching) = r.ctx.cache.take()
    {
        caching::confirm(r, caching, conf);
    }
    r.answer.disable_not_modified = !caching::judge(r, &conf.cache, ignored).allows();
    pass_on::accel_limit_rate(r, conf);
    if let Some(verdict) = pass_on::accel_redirect(r, conf) {
        return verdict;
    }
    let chunked = r.attempts.head.header(K::TransferEncoding).is_some();
    let length = pass_on::content_length(r).filter(|_| !chunked);
    pass_on::copy_headers(r, conf, length, Parts::Any);
    if r.attempts.head.version < Version::HTTP10 {
        r.answer.headers.status = 200;
    } else {
        r.answer.headers.status = r.attempts.head.status;
        let line = r.attempts.head.status_line;
        r.answer.headers.status_line = (line.start < line.end).then(|| r.attempts.text(line));
    }
    pass_on::accel_charset(r, conf);
    if *conf.cache.rfc9111 {
        // Sections 4 and 5.1 here, section 6.6.1 of RFC 9110: `Date` is that of the answer, as is what `Age` counts from.
        let date =
            r.attempts.header(K::Date).unwrap_or_else(|| r.text(&wire::date::format_http(entry.head().times.date)));
        r.answer.headers.set(K::Date, "Date", date);
        let age = caching::age(r, entry);
        let age = crate::text!(r, "{age}");
        r.answer.headers.set(K::Age, "Age", age);
    }
    if *conf.force_ranges {
        r.answer.allow_ranges = true;
    }
    if let Err(verdict) = r.send_header() {
        return verdict;
    }
    match r.send_body(entry.chunk(), true) {
        Ok(()) => Verdict::Answered,
        Err(verdict) => verdict,
    }
}

/// Makes an entry's head the upstream's last. False: it is none.
fn load_head(r: &mut Request, entry: &Entry) -> bool {
    let bytes = entry.head().answer;
    // What a 304 has just said of it counts already.
    let confirming = r.ctx.cache.as_ref().filter(|_| r.attempts.cache == Some(Status::Revalidated));
    let etag = entry.head().etag;
    let bytes =
        &*confirming.map_or(bytes.into(), |caching| crate::cache::update::merged(bytes, etag, &caching.confirming));
    let base = r.arena.mark();
    r.arena.push(bytes);
    let attempts = &mut r.attempts;
    (attempts.head_base, attempts.head_len) = (base as u32, bytes.len() as u32);
    attempts.head.headers.clear();
    if bytes.is_empty() {
        // HTTP/0.9 has none.
        (attempts.head.status, attempts.head.version) = (200, Version::HTTP09);
        return true;
    }
    if attempts.head_kind != cgi::Kind::Http {
        return cgi::parse(&mut attempts.head, bytes, attempts.head_kind);
    }
    let parsed = ResponseParser::default().parse(bytes, &mut attempts.head);
    if attempts.head.version >= Version::HTTP20 {
        super::http2::head::complete(&mut attempts.head);
    }
    matches!(parsed, Ok(Parsed::Complete { .. }))
}
