//! What ends a request otherwise than by a handler's answer: error pages, redirects inside, the texts for statuses,
//! the facts in its error log lines (`ngx_http_special_response.c`).

use super::headers::KnownHeader as K;
use super::phases::{self, From, Verdict};
use super::route::Located;
use super::{Request, Text};
use crate::connection::action;
use crate::log_error;
use crate::modules::RequestContexts;
use crate::modules::core::{ErrorPage, ServerTokens};
use crate::request::respond::{SERVER, SERVER_VERSION};
use std::fmt;

/// Internet Explorer shows its own page for an error page of less than 512 bytes: six comments make it long enough.
const PADDING: &str = "<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n";

/// Answers with a status: an `error_page`, or the built-in text.
pub fn special_response(r: &mut Request, status: u16) -> Verdict {
    if r.answer.header_sent {
        // The answer is out already: all that is left is to break it off.
        r.flow.keepalive = false;
        return Verdict::Broken;
    }
    if !r.is_main() && super::subrequest::absorbs(r, status) {
        return Verdict::Answered;
    }
    if r.answer.stub.is_some() {
        return super::include::answer_stub(r);
    }
    if matches!(status, 408 | 444 | 499) {
        // Nothing is said: who did not finish its request is not listening for an answer to it.
        r.answer.headers.status = status;
        r.flow.aborted = true;
        return Verdict::Broken;
    }
    r.flow.error_status = status;
    if matches!(status, 400 | 413 | 414 | 495 | 496 | 497 | 500 | 501) {
        r.flow.keepalive = false;
    }
    if matches!(status, 400 | 495 | 496 | 497) {
        r.flow.lingering_close = false;
    }
    r.answer.headers.content_type = None;
    (r.answer.headers.charset, r.answer.headers.written) = (None, None);
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.core;
    if !r.flow.error_page && !conf.error_pages.is_empty() && r.flow.uri_changes != 0 {
        r.flow.error_page = !*conf.recursive_error_pages;
        if let Some(page) = conf.error_pages.iter().find(|p| p.status == status) {
            return error_page(r, page);
        }
    }
    r.flow.expect_tested = true;
    if super::body::discard_arrived(r).is_err() {
        r.flow.keepalive = false;
    }
    if *conf.msie_refresh && r.head.headers.browser(&r.arena).msie && matches!(status, 301 | 302) {
        return refresh(r);
    }
    if matches!(status, 494..=497) {
        r.flow.error_status = 400;
    }
    built_in(r, status)
}

/// A header filter wants another answer than the one under way.
pub fn replace(r: &mut Request, status: u16) -> Verdict {
    r.answer.body_filters.clear();
    r.answer.in_memory = false;
    r.answer.headers.clear();
    Verdict::Status(status)
}

fn error_page(r: &mut Request, page: &ErrorPage) -> Verdict {
    if page.overwrite.is_some_and(|o| o != 200) {
        r.flow.expect_tested = true;
    }
    if let Some(overwrite) = page.overwrite {
        r.flow.error_status = overwrite;
    }
    let target = page.target.eval(r);
    if r.take_fault() {
        r.flow.error_status = 500;
        return built_in(r, 500);
    }
    match r.get(target).first() {
        Some(b'/') => {
            let (uri, args) = split_args(r, target);
            if r.head.method != super::Method::Head {
                r.head.method = super::Method::Get;
                r.head.method_name = Text::from("GET");
            }
            internal_redirect(r, uri, args)
        }
        Some(b'@') => {
            let name = r.get(target)[1..].to_vec();
            named_location(r, &name)
        }
        _ => {
            r.flow.expect_tested = true;
            if !matches!(page.overwrite, Some(301 | 302 | 303 | 307 | 308)) {
                r.flow.error_status = 302;
            }
            r.answer.headers.set(K::Location, "Location", target);
            if *r.conf().core.msie_refresh && r.head.headers.browser(&r.arena).msie {
                return refresh(r);
            }
            let status = r.flow.error_status;
            built_in(r, status)
        }
    }
}

/// Splits `uri?args`.
pub fn split_args(r: &Request, text: Text) -> (Text, Text) {
    let Some(at) = memchr::memchr(b'?', r.get(text)) else { return (text, Text::EMPTY) };
    match text {
        Text::Fixed(b) => (Text::Fixed(&b[..at]), Text::Fixed(&b[at + 1..])),
        Text::Own(s) => {
            let (mut uri, mut args) = (s, s);
            uri.end = s.start + at as u32;
            args.start = uri.end + 1;
            (uri.into(), args.into())
        }
    }
}

/// Sends the request to another uri inside (`ngx_http_internal_redirect`).
pub fn internal_redirect(r: &mut Request, uri: Text, args: Text) -> Verdict {
    r.flow.uri_changes = r.flow.uri_changes.saturating_sub(1);
    if r.flow.uri_changes == 0 {
        log_error!(
            r,
            Error,
            "rewrite or internal redirection cycle while internally redirecting to \"{}\"",
            String::from_utf8_lossy(r.get(uri))
        );
        return Verdict::Status(500);
    }
    r.head.uri = uri;
    r.head.args = args;
    r.head.plain_uri = false;
    r.head.valid_target = false;
    r.flow.internal = true;
    let kept = std::mem::take(&mut r.ctx);
    r.ctx = RequestContexts::after_redirect(kept);
    r.location = r.server().root;
    Verdict::Restart(From::ServerRewrite)
}

/// Sends the request to a named location (`ngx_http_named_location`); the name is without `@`.
pub fn named_location(r: &mut Request, name: &[u8]) -> Verdict {
    r.flow.uri_changes = r.flow.uri_changes.saturating_sub(1);
    if r.flow.uri_changes == 0 {
        log_error!(
            r,
            Error,
            "rewrite or internal redirection cycle while redirect to named location \"@{}\"",
            String::from_utf8_lossy(name)
        );
        return Verdict::Status(500);
    }
    if r.get(r.head.uri).is_empty() {
        log_error!(r, Error, "empty URI in redirect to named location \"@{}\"", String::from_utf8_lossy(name));
        return Verdict::Status(500);
    }
    let snapshot = r.snapshot.clone();
    let root = snapshot.server(r.server).root;
    match snapshot.location(root).inside.named(name) {
        Located::Location(id) => {
            r.location = id;
            r.flow.internal = true;
            r.flow.content_handler = None;
            r.flow.uri_changed = false;
            let kept = std::mem::take(&mut r.ctx);
            r.ctx = RequestContexts::after_redirect(kept);
            phases::enter_location(r);
            Verdict::Restart(From::Rewrite)
        }
        _ => {
            log_error!(r, Error, "could not find named location \"@{}\"", String::from_utf8_lossy(name));
            Verdict::Status(500)
        }
    }
}

/// `msie_refresh`: a page that sends old Internet Explorers on, in place of a redirect.
fn refresh(r: &mut Request) -> Verdict {
    let to = r.answer.headers.find(K::Location).unwrap_or(Text::EMPTY);
    let mut page = b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=".to_vec();
    wire::http1::escape::escape_uri(r.get(to), wire::http1::escape::Escape::Refresh, &mut page);
    page.extend_from_slice(b"\"></head><body></body></html>\r\n");
    r.answer.headers.remove(K::Location);
    r.flow.error_status = 200;
    clear_entity(r);
    r.answer.headers.content_type = Some(Text::from("text/html"));
    r.respond(200, &page)
}

fn clear_entity(r: &mut Request) {
    let h = &mut r.answer.headers;
    h.last_modified = None;
    // What an upstream said of its own answer is none of the page's.
    h.remove(K::LastModified);
    h.remove(K::AcceptRanges);
    h.remove(K::Etag);
    r.answer.allow_ranges = false;
}

fn built_in(r: &mut Request, status: u16) -> Verdict {
    clear_entity(r);
    let Some(title) = title(status) else {
        return r.respond(status, b"");
    };
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.core;
    let name = match *conf.server_tokens {
        ServerTokens::On | ServerTokens::Build => SERVER_VERSION,
        ServerTokens::Off => SERVER,
    };
    let mut page = std::mem::take(&mut r.scratch);
    page.clear();
    let detail = detail(status);
    let heading = if detail.is_empty() { title } else { "400 Bad Request" };
    page.extend_from_slice(b"<html>\r\n<head><title>");
    page.extend_from_slice(title.as_bytes());
    page.extend_from_slice(b"</title></head>\r\n<body>\r\n<center><h1>");
    page.extend_from_slice(heading.as_bytes());
    page.extend_from_slice(b"</h1></center>\r\n");
    if !detail.is_empty() {
        page.extend_from_slice(b"<center>");
        page.extend_from_slice(detail.as_bytes());
        page.extend_from_slice(b"</center>\r\n");
    }
    if let Some(id) = r.ctx.shown_id {
        page.extend_from_slice(b"<center>Request ");
        wire::http1::escape::escape_html(r.get(id), &mut page);
        page.extend_from_slice(b"</center>\r\n");
    }
    page.extend_from_slice(b"<hr><center>");
    page.extend_from_slice(name.as_bytes());
    page.extend_from_slice(b"</center>\r\n</body>\r\n</html>\r\n");
    if *conf.msie_padding
        && status >= 400
        && r.head.version >= super::Version::HTTP10
        && r.head.headers.browser(&r.arena).msie
    {
        for _ in 0..6 {
            page.extend_from_slice(PADDING.as_bytes());
        }
    }
    r.answer.headers.content_type = Some(Text::from("text/html"));
    let verdict = r.respond(status, &page);
    r.scratch = page;
    verdict
}

fn title(status: u16) -> Option<&'static str> {
    Some(match status {
        301 => "301 Moved Permanently",
        302 => "302 Found",
        303 => "303 See Other",
        307 => "307 Temporary Redirect",
        308 => "308 Permanent Redirect",
        400 => "400 Bad Request",
        401 => "401 Authorization Required",
        402 => "402 Payment Required",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        405 => "405 Not Allowed",
        406 => "406 Not Acceptable",
        407 => "407 Proxy Authentication Required",
        408 => "408 Request Time-out",
        409 => "409 Conflict",
        410 => "410 Gone",
        411 => "411 Length Required",
        412 => "412 Precondition Failed",
        413 => "413 Request Entity Too Large",
        414 => "414 Request-URI Too Large",
        415 => "415 Unsupported Media Type",
        416 => "416 Requested Range Not Satisfiable",
        421 => "421 Misdirected Request",
        429 => "429 Too Many Requests",
        494 => "400 Request Header Or Cookie Too Large",
        495 => "400 The SSL certificate error",
        496 => "400 No required SSL certificate was sent",
        497 => "400 The plain HTTP request was sent to HTTPS port",
        500 => "500 Internal Server Error",
        501 => "501 Not Implemented",
        502 => "502 Bad Gateway",
        503 => "503 Service Temporarily Unavailable",
        504 => "504 Gateway Time-out",
        505 => "505 HTTP Version Not Supported",
        507 => "507 Insufficient Storage",
        _ => return None,
    })
}

fn detail(status: u16) -> &'static str {
    match status {
        494 => "Request Header Or Cookie Too Large",
        495 => "The SSL certificate error",
        496 => "No required SSL certificate was sent",
        497 => "The plain HTTP request was sent to HTTPS port",
        _ => "",
    }
}

/// `, client: ..., server: ..., request: "..."` as nginx adds it to a line of the error log.
pub struct LogFacts<'r>(pub &'r Request);

impl fmt::Display for LogFacts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        if let Some(facts) = &r.ctx.stream {
            return facts.log(r, f);
        }
        let now = r.action;
        if !now.is_empty() {
            write!(f, " while {now}")?;
        }
        write!(f, ", client: {}", r.client.remote.borrow().host())?;
        if now == action::WAITING {
            let listen = &r.snapshot.listens[crate::worker::port_of(&r.snapshot, r.client.listener)];
            return write!(f, ", server: {}", listen.address);
        }
        write!(f, ", server: {}", String::from_utf8_lossy(&r.server().name))?;
        let line = r.get(r.head.line);
        if !line.is_empty() {
            write!(f, ", request: \"{}\"", String::from_utf8_lossy(line))?;
        }
        if !r.is_main() {
            write!(f, ", subrequest: \"{}\"", String::from_utf8_lossy(r.get(r.head.uri)))?;
        }
        if let Some(upstream) = crate::upstream::current_url(r) {
            write!(f, ", upstream: \"{upstream}\"")?;
        }
        if matches!(now, action::READING_LINE | action::READING_PIPELINED_LINE) {
            return Ok(());
        }
        if let Some(host) = r.head.headers.find(K::Host) {
            write!(f, ", host: \"{}\"", String::from_utf8_lossy(r.get(host)))?;
        }
        if let Some(referer) = r.head.headers.find(K::Referer) {
            write!(f, ", referrer: \"{}\"", String::from_utf8_lossy(r.get(referer)))?;
        }
        Ok(())
    }
}
