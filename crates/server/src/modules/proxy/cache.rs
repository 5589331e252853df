//! `proxy_cache` and its like (the cache part of nginx's `ngx_http_proxy_module` and `ngx_http_upstream`). What the words
//! mean and what is done is in `cache`; here is what `proxy_pass` asks it, and how it sends what comes of it.

use super::answer::{self, Parts};
use super::{Conf, Pass, Target, request};
use crate::cache::caching;
use crate::cache::entry::Entry;
use crate::cache::lookup::{self, Look, Outcome};
use crate::cache::{Status, settings};
use crate::cache_directives;
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Level, http, set};
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::Verdict;
use crate::request::{Request, Text, Version};
use crate::upstream::settings::next;
use wire::http1::Parsed;
use wire::http1::response::ResponseParser;

/// The module's name: the prefix of its directives.
const OWNER: &str = "proxy";

/// The directives.
pub const DIRECTIVES: &[Directive] = cache_directives!("proxy", proxy);

/// The one that only HTTP upstreams need: others have no HEAD.
pub const CONVERT_HEAD: &[Directive] =
    &[http("proxy_cache_convert_head", |s, n| set::flag(&mut s.level.conf.proxy.cache.convert_head, n))];

/// The variables, of all modules with a cache.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "upstream_cache_status",
        evaluate: |r| r.attempts.cache.map(|s| Text::from(s.text())),
        volatile: true,
        assign: None,
    },
    Builtin {
        name: "upstream_cache_last_modified",
        evaluate: caching::known_last_modified,
        volatile: true,
        assign: None,
    },
    Builtin { name: "upstream_cache_etag", evaluate: caching::known_etag, volatile: true, assign: None },
];

/// Finds the level's cache.
pub fn finish_level(build: &mut Build<'_>, level: &mut Level) {
    level.conf.proxy.cache.finish_level(build, OWNER);
}

/// Asks the cache. None: the upstream is to be asked.
pub(super) async fn look(r: &mut Request, conf: &Conf, pass: &Pass, target: &Target<'_>) -> Option<Verdict> {
    look_for(r, conf, OWNER, |r| own_key(r, pass, target)).await
}

/// The same for any module. `own_key` is the key where none is configured.
pub(in crate::modules) async fn look_for(
    r: &mut Request,
    conf: &Conf,
    owner: &'static str,
    own_key: impl FnOnce(&mut Request) -> Text,
) -> Option<Verdict> {
    if r.ctx.cache.is_some() {
        // An update in the background has been looked up by whom it is for.
        return None;
    }
    r.attempts.cache = None;
    let outcome = match lookup::look(r, &conf.cache, &conf.upstream, owner, own_key) {
        Look::Now(outcome) => outcome,
        Look::Open(caching) => Box::pin(lookup::open(r, &conf.cache, &conf.upstream, caching)).await,
    };
    match outcome {
        Outcome::Ask => None,
        Outcome::End(verdict) => Some(verdict),
        Outcome::Serve(entry) => Some(resend(r, conf, &entry)),
    }
}

/// The key without `proxy_cache_key`: scheme, host and what is asked of it.
fn own_key(r: &mut Request, pass: &Pass, target: &Target<'_>) -> Text {
    let mut key = std::mem::take(&mut r.scratch);
    key.clear();
    request::write_origin(r, target, &mut key);
    request::write_uri(r, &pass.location, target, &mut key);
    let text = r.text(&key);
    r.scratch = key;
    text
}

/// Headers that ask for less than a whole answer, which the cache cannot do with.
pub(super) fn is_for_client(known: K) -> bool {
    matches!(known, K::IfModifiedSince | K::IfUnmodifiedSince | K::IfMatch | K::IfNoneMatch | K::Range | K::IfRange)
}

/// Asks the upstream only for what has changed, where the cache has an old answer. `replaced`: what the configuration says.
pub(super) fn write_conditions(r: &mut Request, replaced: &[Box<[u8]>], head: &mut request::Head) {
    let is_set = |name: &[u8]| replaced.iter().any(|n| **n == *name);
    if !is_set(b"if-modified-since")
        && let Some(date) = caching::known_last_modified(r)
    {
        head.line(b"If-Modified-Since", r.get(date));
    }
    if !is_set(b"if-none-match")
        && let Some(etag) = caching::known_etag(r)
    {
        head.line(b"If-None-Match", r.get(etag));
    }
}

/// There is no answer: an old one may do.
pub(in crate::modules) fn failed(r: &mut Request, conf: &Conf, verdict: Verdict) -> Verdict {
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
    {
        caching.note_error(&conf.cache, status);
    }
    verdict
}

/// What to send in place of an answer with this status, whose head was just read: what is in the cache, if the answer is a
/// failure for which that may be sent, or confirms it. Otherwise judges the answer.
pub(super) fn instead(r: &mut Request, conf: &Conf, status: u16) -> Option<Entry> {
    let mut caching = r.ctx.cache.take()?;
    let expired = r.attempts.cache == Some(Status::Expired);
    let ignored = *conf.upstream.ignore_headers;
    let mut entry = None;
    if expired
        && let Some(kind) = next::of_status(status)
        && caching.may_be_stale(&conf.cache, kind)
    {
        entry = caching.entry.take();
        r.attempts.cache = Some(Status::Stale);
    } else {
        caching.judge(r, ignored);
    }
    if expired && status == 304 && *conf.cache.revalidate && caching.entry.is_some() {
        r.attempts.cache = Some(Status::Revalidated);
        entry.clone_from(&caching.entry);
    }
    r.ctx.cache = Some(caching);
    entry
}

/// Sends what is in the cache (`ngx_http_upstream_cache_send`).
pub(super) fn resend(r: &mut Request, conf: &Conf, entry: &Entry) -> Verdict {
    if !load_head(r, entry) {
        log_error!(r, Crit, "cache file contains invalid header");
        return Verdict::Status(500);
    }
    let ignored = *conf.upstream.ignore_headers;
    if r.attempts.cache == Some(Status::Revalidated)
        && let Some(caching) = r.ctx.cache.take()
    {
        caching::confirm(r, &caching, &conf.cache, ignored);
    }
    r.disable_not_modified = !caching::judge(r, ignored).allows();
    answer::accel_limit_rate(r, conf);
    if let Some(verdict) = answer::accel_redirect(r, conf) {
        return verdict;
    }
    let chunked = r.attempts.head.header(K::TransferEncoding).is_some();
    let length = answer::content_length(r).filter(|_| !chunked);
    answer::copy_headers(r, conf, length, Parts::Any);
    if r.attempts.head.version < Version::HTTP10 {
        r.headers_out.status = 200;
    } else {
        r.headers_out.status = r.attempts.head.status;
        let line = r.attempts.head.status_line;
        r.headers_out.status_line = (line.start < line.end).then(|| r.attempts.text(line));
    }
    answer::accel_charset(r, conf);
    if *conf.upstream.force_ranges {
        r.allow_ranges = true;
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
    if attempts.scheme == crate::upstream::fastcgi::SCHEME {
        return crate::upstream::fastcgi::parse(&mut attempts.head, bytes);
    }
    let parsed = ResponseParser::default().parse(bytes, &mut attempts.head);
    if attempts.head.version >= Version::HTTP20 {
        crate::upstream::http2::head::complete(&mut attempts.head);
    }
    matches!(parsed, Ok(Parsed::Complete { .. }))
}
