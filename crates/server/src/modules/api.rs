//! `api`: the REST API as a content handler (nginx Plus' `ngx_http_api_module`). Reads the call, has it answered on the
//! service thread (`crate::api`), sends the reply. What may be called by whom is said by `allow`, `auth_basic` and the like.

use crate::api::{self, Call, Reply, Verb};
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Method, Request, Text, body};
use crate::snapshot::LocationId;
use crate::status::latency::{Histogram, REQUESTS_MS};
use crate::status::{history, requests};
use crate::worker::counters;
use crate::{log_error, merged_values};
use conf::{Node, Problem, Span};
use runtime::clock;

/// So much of a change is shown in the log, bytes.
const MAX_SHOWN: usize = 512;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[http("api", directive)];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// `write=on`
        write: bool = false,
    }
}

/// What the module keeps for all of `http` while it is read.
#[derive(Debug, Default)]
pub struct Main {
    /// Locations with `api write=on`, and where they say it.
    writers: Vec<(LocationId, Span)>,
    /// There is an `api` at all.
    pub used: bool,
}

/// Locations of a server whose clients all show certificates are nobody's who has none.
pub fn guarded_by_certificates(build: &mut Build<'_>, level: &ConfigLevel) {
    build.main.api.writers.retain(|(id, _)| *id != level.id);
    level.children.iter().for_each(|child| guarded_by_certificates(build, child));
}

/// Warns of a location that lets everybody change the server who reaches it.
pub fn finish_level(build: &mut Build<'_>, level: &ConfigLevel) {
    let Some((_, place)) = build.main.api.writers.iter().find(|(id, _)| *id == level.id) else { return };
    let conf = &level.conf;
    let asks = super::auth_basic::asks(&conf.auth_basic) || super::auth_request::asks(&conf.auth_request);
    // `limit_except GET { deny all; }` is a guard too: what it says is up to whoever wrote it.
    if conf.access.rules.is_empty() && !asks && conf.core.limit_except.is_none() {
        build.problems.push(Problem::warn(
            *place,
            "\"api write=on\" without \"allow\", \"deny\" or a password lets everybody who reaches it change this server",
        ));
    }
}

fn directive(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let write = match node.args.first() {
        None => false,
        Some(w) if *w == "write=on" => true,
        Some(w) if *w == "write=off" => false,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    crate::config::setters::value(&mut scope.level.conf.api.write, node, write)?;
    if write {
        scope.build.main.api.writers.push((scope.level.id, node.name.span));
    }
    scope.build.main.api.used = true;
    scope.level.conf.core.handler = Some(Content::Later(run));
    Ok(())
}

/// Notes an hour of numbers for the API to show, from now on, and has measured what `why` is to know of this machine; once a process.
pub fn keep_history() {
    static KEPT: std::sync::Once = std::sync::Once::new();
    KEPT.call_once(|| {
        doctor::why::measure_wake_costs();
        crate::service::spawn(|| async {
            let mut steps = tokio::time::interval(std::time::Duration::from_secs(history::STEP_S));
            loop {
                steps.tick().await;
                history::note(sums());
            }
        });
    });
}

fn sums() -> history::Sums {
    let totals = requests::totals(&requests::ALL);
    let [.., client, server] = totals.responses.classes;
    let sum = counters::sum();
    history::Sums {
        time_ms: clock::wall_ms(),
        answers: [totals.responses.total(), client, server],
        times: Histogram::read(&REQUESTS_MS.sums()),
        connections: [sum.writing.max(0), sum.waiting.max(0), sum.reading.max(0)],
    }
}

/// Who changes a group from where is in the log: the line's end says from where. What keys are given is nobody's business.
fn log_change(r: &mut Request, what: &str) {
    let user =
        super::variables::remote_user(r).map_or_else(String::new, |t| String::from_utf8_lossy(r.get(t)).into_owned());
    let by = if user.is_empty() { String::new() } else { format!(", by user \"{}\"", user.escape_debug()) };
    log_error!(r, Notice, "api: {what}{by}");
}

/// How a change is named in the log; none: nothing was changed.
fn change_of(call: &Call) -> Option<String> {
    let method = match call.verb? {
        Verb::Get => return None,
        Verb::Post => "POST",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
    };
    let body = match call.path.contains("/upstreams/") {
        true => String::from_utf8_lossy(&call.body[..call.body.len().min(MAX_SHOWN)]).escape_debug().to_string(),
        false => String::new(),
    };
    Some(format!("{method} {} {body}", call.path.escape_debug()).trim_end().to_owned())
}

fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move {
        let call = match read(r).await {
            Ok(call) => call,
            Err(verdict) => return verdict,
        };
        let change = change_of(&call);
        match crate::service::ask(move || async move { api::answer(&call) }).await {
            Some(reply) => {
                if let Some(what) = change.filter(|_| reply.status < 300) {
                    log_change(r, &what);
                }
                send(r, &reply)
            }
            None => {
                log_error!(r, Alert, "the API gave a call up");
                Verdict::Status(500)
            }
        }
    })
}

async fn read(r: &mut Request) -> Result<Call, Verdict> {
    let verb = match r.head.method {
        Method::Get | Method::Head => Some(Verb::Get),
        Method::Post => Some(Verb::Post),
        Method::Patch => Some(Verb::Patch),
        Method::Delete => Some(Verb::Delete),
        _ => None,
    };
    if verb != Some(Verb::Get) && is_from_elsewhere(r) {
        log_error!(r, Error, "a page of another site tried to change something by the API");
        return Err(Verdict::Status(403));
    }
    // As with nginx Plus, what is sent has to fit into the buffer for bodies.
    let room = *r.conf().core.client_body_buffer_size;
    if r.head.headers.content_length.is_some_and(|n| n > room) {
        return Err(Verdict::Status(413));
    }
    let stored = body::read_all(r).await?;
    if stored.file.is_some() {
        return Err(Verdict::Status(413));
    }
    let text = |t: Text| String::from_utf8_lossy(r.get(t)).into_owned();
    let target = text(r.head.target);
    // The path as it was sent: names in it may have a slash, which is decoded apart.
    let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
    let name = String::from_utf8_lossy(&r.location().name).into_owned();
    let path = match path.strip_prefix(name.trim_end_matches('/')) {
        Some(rest) if r.head.valid_target => rest.to_owned(),
        _ => {
            let uri = text(r.head.uri);
            uri.strip_prefix(name.trim_end_matches('/')).unwrap_or(&uri).to_owned()
        }
    };
    let (query, write) = (text(r.head.args), *r.conf().api.write);
    let address = crate::worker::local_address(&r.client).host().to_string();
    let request_id =
        super::variables::request_id(r).map_or_else(String::new, |t| String::from_utf8_lossy(r.get(t)).into_owned());
    let snapshot = r.snapshot.whole().clone();
    Ok(Call { verb, path, query, body: stored.memory.clone(), write, snapshot, address, request_id })
}

/// Whether a browser says that a page of another site makes the call: the operator's cookies and address are not its.
/// Browsers send `Sec-Fetch-Site` (Fetch Metadata) only over TLS and to the machine itself; elsewhere `Origin` (RFC 6454
/// section 7) has to tell. Programs send neither.
fn is_from_elsewhere(r: &Request) -> bool {
    let mut sites = r.head.headers.named(&r.arena, b"Sec-Fetch-Site").peekable();
    if sites.peek().is_some() {
        return sites.any(|h| !matches!(r.arena.span(h.value), b"same-origin" | b"none"));
    }
    let host = r.head.headers.find(K::Host).map_or(&b""[..], |host| r.get(host));
    let mut origins = r.head.headers.named(&r.arena, b"Origin");
    origins.any(|h| !is_origin_of(r.arena.span(h.value), host))
}

/// Whether an origin is the host of a request; both leave out the usual port.
fn is_origin_of(origin: &[u8], host: &[u8]) -> bool {
    let authority = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    authority.is_some_and(|a| !a.is_empty() && a.eq_ignore_ascii_case(host))
}

fn send(r: &mut Request, reply: &Reply) -> Verdict {
    if let Some(path) = &reply.location {
        let base = r.location().name.clone();
        let base = String::from_utf8_lossy(&base);
        let place = r.text(format!("{}{path}", base.trim_end_matches('/')).as_bytes());
        r.answer.headers.set(K::Location, "Location", place);
    }
    if let Some(methods) = &reply.allow {
        let methods = r.text(methods.as_bytes());
        r.answer.headers.push(Text::from("Allow"), methods);
    }
    r.answer.headers.push(Text::from("Cache-Control"), Text::from("no-store"));
    if reply.status != 204 {
        r.answer.headers.content_type = Some(Text::from("application/json"));
    }
    r.respond(reply.status, &reply.body)
}
