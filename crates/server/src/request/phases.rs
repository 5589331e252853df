//! nginx's phases in their order: post-read, server-rewrite, find-config, rewrite, preaccess, access, precontent, content.
//! Who stands in each is written in `modules`. Handlers that need not wait are plain functions.

use super::respond::Refused;
use super::route::Located;
pub use super::steps::{Back, Begun, Content, From, GoOn, Handler, Phase, Released, Verdict, Waiting, Way, Work};
use super::{Request, filter, finish, headers::KnownHeader as K, include, pending, subrequest};
use crate::config::complex::Complex;
use crate::connection::action;
use crate::log_error;
use crate::modules;

/// Asks a handler. A macro, since an `async fn` would be set up and torn down for each handler that never waits.
macro_rules! call {
    ($r:expr, $handler:expr) => {
        match $handler {
            Handler::Now(f) => f($r),
            Handler::Later(wanted, f) if wanted($r) => f($r).await,
            Handler::Begins(wanted, f) if wanted($r) => match f($r) {
                Begun::Over(verdict) => verdict,
                Begun::Waits(waiting) => waiting.await,
            },
            Handler::Later(..) | Handler::Begins(..) => Verdict::Decline,
        }
    };
}

/// Asks the handlers of a phase in turn, and leaves the function with the verdict of the first that does not let the request
/// go on. Only those are asked that have something to do on the level.
macro_rules! run_phase {
    ($r:expr, $participants:expr, $phase:expr) => {
        for handler in $participants.handlers($phase) {
            if let Some(v) = stop(call!($r, handler), $r) {
                return v;
            }
        }
    };
}

/// Works on a request until it is answered.
pub async fn process(r: &mut Request) {
    let early = if wants_early_body(r) { Box::pin(read_early_body(r)).await } else { None };
    let verdict = match early {
        Some(v) => v,
        None => run_phases(r, From::PostRead).await,
    };
    conclude(r, verdict).await;
}

/// `client_body_early_read`
fn wants_early_body(r: &mut Request) -> bool {
    if !r.body.is_present() {
        return false;
    }
    let snapshot = r.snapshot.clone();
    let conditions = &snapshot.server(r.server).conf.core.client_body_early_read;
    !conditions.is_empty() && Complex::any_is_true(r, conditions)
}

/// Reads the body under the server's own settings, before any phase.
async fn read_early_body(r: &mut Request) -> Option<Verdict> {
    r.location = r.server().root;
    let refused = too_large_body(r);
    match refused {
        None => super::body::read_all(r).await.err().map(Verdict::from),
        refused => refused,
    }
}

/// A body whose length is above `client_max_body_size`.
fn too_large_body(r: &mut Request) -> Option<Verdict> {
    let length = r.head.headers.content_length?;
    let max = *r.conf().core.client_max_body_size;
    if max == 0 || length <= max || r.body.is_discarded() {
        return None;
    }
    log_error!(r, Error, "client intended to send too large body: {length} bytes");
    r.flow.expect_tested = true;
    // An error page has no part in it.
    Some(Verdict::Status(super::body::discard_arrived(r).err().unwrap_or(413)))
}

/// Answers with a status without any phase: a head that was refused. Where that was before it was settled how a body comes, there is none,
/// whatever the head announces: an upstream that makes the error page must not wait for one, nor take it from the next request.
pub async fn answer_status(r: &mut Request, status: u16) {
    if !r.body.is_present() {
        let h = &mut r.head.headers;
        (h.content_length, h.chunked) = (h.content_length.filter(|length| *length == 0), false);
    }
    conclude(r, Verdict::Status(status)).await;
}

/// Follows verdicts until there is an answer.
pub async fn conclude(r: &mut Request, mut verdict: Verdict) {
    loop {
        if let Some(refused) = r.answer.refused.take() {
            verdict = r.instead(*refused);
        }
        // A value could not be made: whatever was made of it does not count, unless it is out already.
        if r.take_fault() && !r.answer.header_sent && !matches!(verdict, Verdict::Answered | Verdict::Broken) {
            verdict = Verdict::Status(500);
        }
        verdict = match verdict {
            Verdict::Answered => match r.answer.pending.take() {
                Some(pending) => Box::pin(pending::finish(r, *pending)).await,
                None if r.answer.deferred.is_some() => match Box::pin(include::drive(r)).await {
                    Ok(()) => return,
                    Err(verdict) => verdict,
                },
                None if filter::is_stuffed(r) => match Box::pin(filter::settle(r)).await {
                    Ok(()) => Verdict::Answered,
                    Err(verdict) => verdict,
                },
                None if modules::slice::is_open(r) => Box::pin(modules::slice::drive(r)).await,
                // The rest of a body that was to be judged never came.
                None if r.answer.head_held => r.instead(Refused { status: 502, location: None }),
                None => return,
            },
            Verdict::Broken => {
                r.flow.aborted = true;
                return;
            }
            Verdict::Restart(from) => run_phases(r, from).await,
            Verdict::Status(status) => finish::special_response(r, status),
            Verdict::Decline | Verdict::Allow => Verdict::Status(404),
        };
    }
}

async fn run_phases(r: &mut Request, from: From) -> Verdict {
    let snapshot = r.snapshot.clone();
    if r.flow.depth > 0 {
        subrequest::pace(r).await;
    }
    if from != From::Rewrite {
        r.location = r.server().root;
        let participants = &snapshot.location(r.location).participants;
        if from == From::PostRead {
            run_phase!(r, participants, Phase::PostRead);
        }
        r.action = action::NOTHING;
        run_phase!(r, participants, Phase::ServerRewrite);
        r.flow.uri_changed = false;
    }
    let mut known = from == From::Rewrite;
    loop {
        if !known && let Some(v) = find_location(r) {
            return v;
        }
        known = false;
        run_phase!(r, snapshot.location(r.location).participants, Phase::Rewrite);
        if !r.flow.uri_changed {
            break;
        }
        r.flow.uri_changed = false;
        r.flow.uri_changes -= 1;
        if r.flow.uri_changes == 0 {
            log_error!(
                r,
                Error,
                "rewrite or internal redirection cycle while processing \"{}\"",
                String::from_utf8_lossy(r.get(r.head.uri))
            );
            return Verdict::Status(500);
        }
    }
    // Whatever changes the level from here on starts the phases again.
    let participants = &snapshot.location(r.location).participants;
    run_phase!(r, participants, Phase::Preaccess);
    if r.is_main()
        && !participants.handlers(Phase::Access).is_empty()
        && let Some(v) = access(r).await
    {
        return v;
    }
    run_phase!(r, participants, Phase::Precontent);
    content(r).await
}

/// Finds the location of a request without answering it, for who only wants to know (`plan`): rewrites, locations, `try_files` and
/// `index`, which look at the disk. No limit, no access rule, no program and no upstream is asked.
pub fn find_way(r: &mut Request) -> Way {
    let mut way = Way::default();
    let mut from = From::ServerRewrite;
    // What `return` says goes nowhere, and passes no filter.
    r.answer.header_sent = true;
    // Internal redirects are counted by the request itself, which ends them.
    loop {
        match one_way(r, from, &mut way) {
            Verdict::Restart(again) => from = again,
            Verdict::Status(status) => {
                way.status = Some(status);
                return way;
            }
            Verdict::Answered => {
                way.status = Some(r.answer.headers.status);
                return way;
            }
            _ => return way,
        }
    }
}

fn one_way(r: &mut Request, from: From, way: &mut Way) -> Verdict {
    if from != From::Rewrite {
        r.location = r.server().root;
        way.has_programs |= r.conf().lua.server_rewrite.is_some();
        if let Some(v) = stop(modules::rewrite::server_handler(r), r) {
            return v;
        }
        r.flow.uri_changed = false;
    }
    let mut known = from == From::Rewrite;
    loop {
        if !known && let Some(v) = find_location(r) {
            return v;
        }
        known = false;
        for handler in [modules::rewrite::handler, modules::headers_more::handler] {
            if let Some(v) = stop(handler(r), r) {
                return v;
            }
        }
        way.has_programs |= r.conf().lua.rewrite.is_some();
        if !r.flow.uri_changed {
            break;
        }
        r.flow.uri_changed = false;
        r.flow.uri_changes -= 1;
        if r.flow.uri_changes == 0 {
            return Verdict::Status(500);
        }
    }
    if let Some(v) = stop(modules::try_files::handler(r), r) {
        return v;
    }
    if r.flow.content_handler.is_some() { Verdict::Decline } else { modules::index::handler(r) }
}

/// What ends the phases. A handler that had no values to judge by has not said that the request may go on.
fn stop(verdict: Verdict, r: &Request) -> Option<Verdict> {
    match verdict {
        Verdict::Decline | Verdict::Allow if r.has_fault() => Some(Verdict::Status(500)),
        Verdict::Decline | Verdict::Allow => None,
        other => Some(other),
    }
}

/// The find-config phase (`ngx_http_core_find_config_phase`).
fn find_location(r: &mut Request) -> Option<Verdict> {
    r.flow.content_handler = None;
    r.flow.uri_changed = false;
    r.flow.valid_location = true;
    let snapshot = r.snapshot.clone();
    r.location = snapshot.server(r.server).root;
    let root = snapshot.location(r.location);
    if r.head.method == super::Method::Connect
        && let Some(handler) = root.conf.core.connect_handler
    {
        enter_location(r);
        r.flow.content_handler = Some(handler);
        return None;
    }
    let Ok(found) = root.inside.find(r, &snapshot) else { return Some(Verdict::Status(500)) };
    if let Located::Location(id) | Located::AutoRedirect(id) = found {
        r.location = id;
    }
    if !r.flow.internal && snapshot.location(r.location).conf.core.internal {
        return Some(Verdict::Status(404));
    }
    enter_location(r);
    log_error!(r, Debug, "using configuration \"{}\"", String::from_utf8_lossy(&snapshot.location(r.location).name));
    if let Some(refused) = too_large_body(r) {
        return Some(refused);
    }
    if let Located::AutoRedirect(id) = found {
        let location = snapshot.location(id);
        let mut target = Vec::with_capacity(location.name.len() + 1);
        wire::http1::escape::escape_uri(&location.name, wire::http1::escape::Escape::Uri, &mut target);
        if !r.get(r.head.args).is_empty() {
            target.push(b'?');
            target.extend_from_slice(r.get(r.head.args));
        }
        let target = r.text(&target);
        r.answer.headers.set(K::Location, "Location", target);
        return Some(Verdict::Status(301));
    }
    None
}

fn browser(r: &Request) -> super::headers::Browser {
    r.head.headers.browser(&r.arena)
}

/// What changes with the location (`ngx_http_update_location_config`).
pub fn enter_location(r: &mut Request) {
    let snapshot = r.snapshot.clone();
    let mut conf = &snapshot.location(r.location).conf.core;
    if let Some(limit) = &conf.limit_except
        && !limit.methods.contains(&r.head.method)
    {
        r.location = limit.location;
        conf = &snapshot.location(r.location).conf.core;
    }
    if r.flow.keepalive && r.is_main() {
        let now = runtime::clock::wall_ms();
        if conf.keepalive_timeout.is_zero()
            || r.client.requests.get() >= *conf.keepalive_requests
            || now.saturating_sub(r.client.started_ms) > conf.keepalive_time.as_millis() as u64
            || r.head.method == super::Method::Post && conf.keepalive_disable.msie6 && browser(r).msie6
            || conf.keepalive_disable.safari && browser(r).safari
        {
            r.flow.keepalive = false;
        }
    }
    if let Some(handler) = conf.handler {
        r.flow.content_handler = Some(handler);
    }
}

/// The access phase with `satisfy` (`ngx_http_core_access_phase`).
async fn access(r: &mut Request) -> Option<Verdict> {
    let any = r.conf().core.satisfy.any();
    let snapshot = r.snapshot.clone();
    for handler in snapshot.location(r.location).participants.handlers(Phase::Access) {
        let verdict = call!(r, handler);
        if r.has_fault() {
            return Some(Verdict::Status(500));
        }
        match verdict {
            Verdict::Decline => {}
            Verdict::Allow if !any => {}
            Verdict::Allow => {
                r.flow.access_code = 0;
                r.answer.headers.remove(K::WwwAuthenticate);
                return None;
            }
            Verdict::Status(code @ (401 | 403)) if any => {
                if r.flow.access_code != 401 {
                    r.flow.access_code = code;
                }
            }
            Verdict::Status(401) => {
                modules::core::auth_delay(r).await;
                return Some(Verdict::Status(401));
            }
            other => return Some(other),
        }
    }
    let code = std::mem::take(&mut r.flow.access_code);
    match code {
        0 => None,
        401 => {
            modules::core::auth_delay(r).await;
            Some(Verdict::Status(401))
        }
        code => {
            log_error!(r, Error, "access forbidden by rule");
            Some(Verdict::Status(code))
        }
    }
}

async fn content(r: &mut Request) -> Verdict {
    let verdict = match r.flow.content_handler {
        Some(Content::Now(f)) => f(r),
        Some(Content::Later(f)) => f(r).await,
        Some(Content::Begins(f)) => match f(r) {
            Begun::Over(verdict) => verdict,
            Begun::Waits(waiting) => waiting.await,
        },
        Some(Content::Proxy) => return modules::proxy::run(r).await,
        None => Verdict::Decline,
    };
    // `mp4` leaves directories to the others.
    if verdict != Verdict::Decline {
        return verdict;
    }
    let snapshot = r.snapshot.clone();
    run_phase!(r, snapshot.location(r.location).participants, Phase::Content);
    if r.get(r.head.uri).ends_with(b"/") {
        let path = modules::root::path_of(r);
        log_error!(r, Error, "directory index of \"{}\" is forbidden", String::from_utf8_lossy(&path));
        return Verdict::Status(403);
    }
    log_error!(r, Error, "no handler found");
    Verdict::Status(404)
}
