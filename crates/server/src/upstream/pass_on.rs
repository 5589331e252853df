//! What becomes of an upstream's answer: which of its headers the client gets, what the peer may ask of us (`X-Accel-*`), and
//! where the body goes. The answers of all modules with an upstream come this options.

use super::cgi::Kind;
use super::conf::UpstreamConf;
use super::exchange::{self, Answer};
use super::job::Job;
use super::settings::{Store, ignore};
use super::tunnel::Patience;
use super::{cached, relay, rewrite, tunnel};
use crate::cache::caching;
use crate::log_error;
use crate::modules::{core, root};
use crate::request::headers::{HeaderOut, KnownHeader as K};
use crate::request::phases::Verdict;
use crate::request::{Method, Purpose, Request, Text, Version, finish};
use conf::value;

/// What becomes of an answer (`ngx_http_upstream_process_headers` and on).
pub async fn pass_on(r: &mut Request, conf: &UpstreamConf, job: &Job, answer: Answer) -> Verdict {
    let status = r.attempts.head.status;
    let http09 = r.attempts.head.version < Version::HTTP10;
    r.attempts.current().status = if http09 { 200 } else { status };
    let keep = keeps_connection(r);
    let length = content_length(r);
    if r.ctx.cache_change.is_some() {
        cached::invalidate(r, conf, status);
    }
    if r.ctx.cache.is_some()
        && let Some(entry) = cached::instead(r, conf, status)
    {
        done_early(r, job, answer, keep, length);
        return cached::resend(r, conf, &entry);
    }
    if status >= 300
        && let Some(verdict) = intercept(r, conf, status)
    {
        if let Some(caching) = &mut r.ctx.cache {
            caching.note_error(&conf.cache, status);
        }
        done_early(r, job, answer, keep, length);
        return verdict;
    }
    accel_limit_rate(r, conf);
    if let Some(verdict) = accel_redirect(r, conf) {
        done_early(r, job, answer, keep, length);
        return verdict;
    }
    let chunked = r.attempts.head.header(K::TransferEncoding).is_some();
    let cacheable = r.ctx.cache.as_ref().is_some_and(|c| c.cacheable);
    copy_headers(r, conf, length.filter(|_| !chunked), if cacheable { Parts::One } else { Parts::AsSaid });
    r.answer.headers.status = if http09 { 200 } else { status };
    if !http09 {
        let line = r.attempts.head.status_line;
        r.answer.headers.status_line = (line.start < line.end).then(|| r.attempts.text(line));
    }
    // Whoever gets it speaks another protocol from here on, asked for or not.
    r.flow.keepalive &= status != 101;
    if status == 101 && r.head.headers.find(K::Upgrade).is_some() {
        if r.head.purpose == Purpose::WebSocket {
            // RFC 8441 section 5: a stream does not switch, it begins.
            r.answer.headers.status = 200;
            (r.answer.headers.status_line, r.answer.headers.content_type) = (None, None);
            (r.answer.headers.content_length, r.head.purpose) = (None, Purpose::Tunnel);
            r.answer.headers.lines.retain(|l| l.known != K::SecWebSocketAccept);
        }
        if let Err(v) = r.send_header() {
            return v;
        }
        r.ctx.cache = None;
        let patience = Patience::of(r, conf);
        return tunnel::run(r, conf, patience, answer).await;
    }
    let buffering = accel_buffering(r, conf);
    r.answer.unbuffered = !buffering;
    accel_charset(r, conf);
    // What is not buffered comes as fast as the client takes it.
    let rate = if buffering { core::size_of(r, &conf.limit_rate) } else { 0 };
    open_store(r, conf);
    if *conf.force_ranges {
        r.answer.allow_ranges = true;
        r.answer.single_range = true;
    }
    // The peer has judged the client's conditions.
    r.answer.disable_not_modified = !cacheable;
    if let Err(v) = r.send_header() {
        return v;
    }
    if r.ctx.cache.is_some() {
        caching::decide(r, &conf.cache, conf, buffering.then_some(status));
    }
    let wanted = r.ctx.store.is_some() || r.ctx.cache.is_some();
    if r.answer.header_only && !job.is_head && !matches!(status, 204 | 304) && !wanted {
        // The client wants no body: what the peer sends of it is not waited for.
        r.answer.done = true;
        done_early(r, job, answer, keep, length);
        return Verdict::Answered;
    }
    let options =
        relay::Options { buffering, rate, keep, length: length.filter(|_| !chunked), trailers: *conf.pass_trailers };
    relay::body(r, job, conf, answer, options).await
}

/// The answer's body is not wanted; its connection is kept if there is none.
fn done_early(r: &mut Request, job: &Job, answer: Answer, keep: bool, length: Option<u64>) {
    let empty = exchange::is_bodiless(&r.attempts.head, job.is_head)
        || (length == Some(0) && r.attempts.head.header(K::TransferEncoding).is_none());
    let ms = runtime::clock::monotonic_ms() - answer.started_ms;
    r.attempts.current().response_ms = Some(ms);
    super::ended_well(r, &job.group, &answer.chosen);
    let clean = answer.at == answer.input.len() && answer.request_sent;
    exchange::release(job, answer, keep && empty && clean);
}

fn keeps_connection(r: &Request) -> bool {
    let head = &r.attempts.head;
    let close = head.headers.iter().any(|h| {
        h.known == K::Connection
            && wire::http1::values::contains_ignoring_case(r.get(r.attempts.text(h.value)), b"close")
    });
    head.version >= Version::HTTP11 && !close && head.status != 101
}

pub(super) fn content_length(r: &Request) -> Option<u64> {
    wire::http1::values::parse_content_length(r.get(r.attempts.header(K::ContentLength)?))
}

/// `proxy_intercept_errors`: an `error_page` of the location stands in for the answer.
fn intercept(r: &mut Request, conf: &UpstreamConf, status: u16) -> Option<Verdict> {
    let snapshot = r.snapshot.clone();
    let core = &snapshot.location(r.location).conf.core;
    if status == 404 && conf.intercept_not_found {
        return Some(Verdict::Status(404));
    }
    if !*conf.intercept_errors || r.flow.error_page {
        return None;
    }
    core.error_pages.iter().any(|p| p.status == status).then(|| {
        if status == 401 {
            copy_known(r, K::WwwAuthenticate, "WWW-Authenticate");
        }
        Verdict::Status(status)
    })
}

fn copy_known(r: &mut Request, known: K, name: &'static str) {
    for i in 0..r.attempts.head.headers.len() {
        let h = r.attempts.head.headers[i];
        if h.known == known {
            r.answer.headers.add(known, name, r.attempts.text(h.value));
        }
    }
}

/// `X-Accel-Redirect`
pub(super) fn accel_redirect(r: &mut Request, conf: &UpstreamConf) -> Option<Verdict> {
    if *conf.ignore_headers & ignore::REDIRECT != 0 {
        return None;
    }
    let to = r.attempts.header(K::XAccelRedirect)?;
    // Only these of the answer's headers survive the redirect.
    for i in 0..r.attempts.head.headers.len() {
        let h = r.attempts.head.headers[i];
        let value = r.attempts.text(h.value);
        match h.known {
            K::ContentType if r.get(value).is_empty() => {}
            K::ContentType => r.answer.headers.set_content_type(&r.arena, value),
            K::SetCookie | K::ContentDisposition | K::CacheControl | K::Expires | K::AcceptRanges => {
                let name = r.attempts.text(h.name);
                let value = match h.known {
                    K::SetCookie => rewrite::set_cookie(r, &conf.headers.rewrites, value),
                    _ => value,
                };
                r.answer.headers.lines.push(HeaderOut { name, value, known: h.known });
            }
            _ => {}
        }
    }
    r.flow.error_status = 0;
    if r.get(to).first() == Some(&b'@') {
        let name = r.get(to)[1..].to_vec();
        return Some(finish::named_location(r, &name));
    }
    let mut path = Vec::new();
    let raw = r.get(to).to_vec();
    let Ok(parts) = wire::http1::target::parse_unsafe_uri(&raw, &mut path) else {
        log_error!(r, Error, "unsafe URI \"{}\" was detected", String::from_utf8_lossy(&raw));
        return Some(Verdict::Status(404));
    };
    let uri = r.text(&path[parts.path.range()]);
    let args = parts.args.map_or(Text::EMPTY, |a| r.text(&raw[a.range()]));
    if r.head.method != Method::Head {
        r.head.method = Method::Get;
        r.head.method_name = Text::from("GET");
    }
    Some(finish::internal_redirect(r, uri, args))
}

/// `X-Accel-Limit-Rate`: holds for this answer, and for the one it redirects to.
pub(super) fn accel_limit_rate(r: &mut Request, conf: &UpstreamConf) {
    if *conf.ignore_headers & ignore::LIMIT_RATE == 0
        && let Some(text) = r.attempts.header(K::XAccelLimitRate)
    {
        r.answer.limit_rate = match r.get(text) {
            b"off" => Some(0),
            digits => value::number(digits).or(r.answer.limit_rate),
        };
    }
}

fn accel_buffering(r: &mut Request, conf: &UpstreamConf) -> bool {
    if *conf.ignore_headers & ignore::BUFFERING == 0
        && let Some(text) = r.attempts.header(K::XAccelBuffering)
    {
        let text = r.get(text);
        if text.eq_ignore_ascii_case(b"no") {
            return false;
        }
        if text.eq_ignore_ascii_case(b"yes") {
            return true;
        }
    }
    *conf.buffering
}

/// `X-Accel-Charset`
pub(super) fn accel_charset(r: &mut Request, conf: &UpstreamConf) {
    if *conf.ignore_headers & ignore::CHARSET == 0
        && let Some(charset) = r.attempts.header(K::XAccelCharset)
    {
        r.answer.headers.override_charset = Some(charset);
    }
}

/// What becomes of `Accept-Ranges`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// It is passed on: parts are the upstream's business.
    AsSaid,
    /// Parts are cut here, out of a body that comes in pieces: one at a time.
    One,
    /// Parts are cut here.
    Any,
}

/// Copies an answer's headers into the client's.
pub(super) fn copy_headers(r: &mut Request, conf: &UpstreamConf, length: Option<u64>, parts: Parts) {
    r.answer.headers.content_length = length;
    let rewrites = &conf.headers.rewrites;
    for i in 0..r.attempts.head.headers.len() {
        let h = r.attempts.head.headers[i];
        let (name, value) = (r.attempts.text(h.name), r.attempts.text(h.value));
        if conf.is_hidden(r.get(name), h.known) {
            continue;
        }
        match h.known {
            K::ContentLength | K::Connection | K::KeepAlive | K::TransferEncoding => {}
            K::ContentType => r.answer.headers.set_content_type(&r.arena, value),
            K::LastModified => {
                r.answer.headers.last_modified = wire::date::parse_http(r.get(value));
                // The line stays as the upstream wrote it, whatever the status.
                r.answer.headers.lines.push(HeaderOut { name, value, known: K::LastModified });
            }
            K::Location => {
                // What the upstream says of a place without a host stays as it is: `absolute_redirect` is for our own.
                let rewritten = rewrite::apply(r, &rewrites.redirects, value);
                let known = if rewritten.is_some() { K::Location } else { K::Other };
                r.answer.headers.lines.push(HeaderOut { name, value: rewritten.unwrap_or(value), known });
            }
            K::Refresh => {
                let value = rewrite::refresh(r, &rewrites.redirects, value);
                r.answer.headers.lines.push(HeaderOut { name, value, known: K::Refresh });
            }
            K::SetCookie => {
                let value = rewrite::set_cookie(r, rewrites, value);
                r.answer.headers.lines.push(HeaderOut { name, value, known: K::SetCookie });
            }
            K::Upgrade if r.head.version >= Version::HTTP20 => {}
            K::AcceptRanges if *conf.force_ranges => {}
            K::AcceptRanges if parts != Parts::AsSaid => {
                r.answer.allow_ranges = true;
                r.answer.single_range = parts == Parts::One;
            }
            known => r.answer.headers.lines.push(HeaderOut { name, value, known }),
        }
    }
    // What the upstream is trusted with and does not send is not made up; an application's is, as in nginx.
    if r.attempts.head_kind != Kind::Http {
        return;
    }
    for (name, known) in [("Date", K::Date), ("Server", K::Server)] {
        let passed = || conf.pass_headers.iter().any(|n| name.as_bytes().eq_ignore_ascii_case(n));
        if !conf.pass_headers.is_empty() && !r.answer.headers.has(known) && passed() {
            r.answer.headers.add(known, name, Text::EMPTY);
        }
    }
}

fn open_store(r: &mut Request, conf: &UpstreamConf) {
    let path = match &*conf.store {
        Store::Off => return,
        Store::On => root::path_of(r),
        Store::Path(p) => {
            let text = p.eval(r);
            r.get(text).to_vec()
        }
    };
    if r.attempts.head.status != 200 {
        return;
    }
    r.ctx.store = crate::upstream::store::Store::open(&conf.temp_path, path, *conf.store_access);
}
