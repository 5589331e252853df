//! `otel_*`: traces of requests (nginx's `ngx_otel_module`). Decides whether a request is traced, takes up and passes on the
//! trace's context, makes the span when the request is done. How spans leave: `crate::otel`.

use crate::config::complex::Complex;
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Scope, http, setters};
use crate::merged_values;
use crate::otel::identifier::random;
use crate::otel::message::{KIND_SERVER, KeyValue, STATUS_ERROR, Span, Status};
use crate::otel::{Exporter, Settings};
use crate::request::headers::{HeaderLine, KnownHeader as K};
use crate::request::phases::Verdict;
use crate::request::{Request, Text, Version};
use conf::{Node, Problem, value};
use runtime::clock;
use std::sync::Arc;
use std::time::Duration;
use wire::encoding::hex_encode;
use wire::trace_context::{self, Parent, SpanId, TraceId};

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("otel_exporter", exporter),
    http("otel_service_name", |s, n| {
        let name = &mut s.build.main.otel.service_name;
        if name.replace(n.args[0].text.clone()).is_some() { Err(setters::duplicate(n)) } else { Ok(()) }
    }),
    http("otel_resource_attr", |s, n| {
        let attribute = KeyValue::text(&n.args[0].as_str(), &n.args[1].text);
        s.build.main.otel.resource.push(attribute);
        Ok(())
    }),
    http("otel_trace", |s, n| setters::complex(s.build, &mut s.level.conf.otel.otel_trace, n)),
    http("otel_trace_context", |s, n| {
        let words = [
            ("extract", Propagation { extract: true, inject: false }),
            ("inject", Propagation { extract: false, inject: true }),
            ("propagate", Propagation { extract: true, inject: true }),
            ("ignore", Propagation::default()),
        ];
        setters::one_of(&mut s.level.conf.otel.otel_trace_context, n, &words)
    }),
    http("otel_span_name", |s, n| setters::complex(s.build, &mut s.level.conf.otel.otel_span_name, n)),
    http("otel_span_attr", |s, n| {
        let value = Complex::compile(s.build, &n.args[1])?;
        Arc::make_mut(s.level.conf.otel.otel_span_attr.entry()).push((n.args[0].as_str().into(), value));
        Ok(())
    }),
];

/// The variables of the module.
pub const VARIABLES: &[Builtin] = &[
    variable("otel_trace_id", |r| {
        let id = context_of(r).trace;
        hex(r, &id)
    }),
    variable("otel_span_id", |r| {
        let id = context_of(r).span;
        hex(r, &id)
    }),
    variable("otel_parent_id", |r| {
        let id = context_of(r).parent?.span;
        hex(r, &id)
    }),
    variable("otel_parent_sampled", |r| {
        let sampled = context_of(r).parent?.sampled;
        Some(Text::from(if sampled { "1" } else { "0" }))
    }),
];

const fn variable(name: &'static str, evaluate: fn(&mut Request) -> Option<Text>) -> Builtin {
    Builtin { name, evaluate, volatile: true, assign: None }
}

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Whether requests are traced: `on`, `off`, or what a variable says.
        otel_trace: Complex = Complex::default(),
        /// What is done with the header `traceparent`.
        otel_trace_context: Propagation = Propagation::default(),
        /// The span's name; none: the location's.
        otel_span_name: Complex = Complex::default(),
        /// Further attributes.
        otel_span_attr: Arc<Vec<(Box<str>, Complex)>> = Arc::default(),
    }
}

impl Conf {
    /// Whether any request here may be traced, or passes a context on.
    pub fn is_of_use(&self) -> bool {
        let trace = &*self.otel_trace;
        let is_off = trace.is_empty() || trace.as_fixed() == Some(b"off");
        !is_off || self.otel_trace_context.inject
    }
}

/// `otel_trace_context`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Propagation {
    /// A trace goes on that somebody before began.
    pub extract: bool,
    /// Who comes after is told.
    pub inject: bool,
}

/// What is kept once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    /// Made of `otel_exporter` when all of the configuration was read.
    pub exporter: Option<Arc<Exporter>>,
    settings: Option<Settings>,
    service_name: Option<Vec<u8>>,
    resource: Vec<KeyValue>,
}

impl Main {
    /// Whether spans are sent to anybody.
    pub fn exports(&self) -> bool {
        self.settings.is_some() || self.exporter.is_some()
    }
}

/// What is known of a client's request, its redirects included.
#[derive(Clone, Debug)]
pub struct Context {
    trace: TraceId,
    span: SpanId,
    parent: Option<Parent>,
    state: Vec<u8>,
    /// Whether it is traced, once that was decided.
    traced: Option<bool>,
}

fn hex(r: &mut Request, id: &[u8]) -> Option<Text> {
    let mut out = Vec::with_capacity(id.len() * 2);
    hex_encode(id, &mut out);
    Some(r.text(&out))
}

fn exporter(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.build.main.otel.settings.is_some() {
        return Err(setters::duplicate(node));
    }
    let mut settings = Settings {
        endpoint: String::new(),
        headers: Vec::new(),
        interval: Duration::from_secs(5),
        batch_size: 512,
        batch_count: 4,
        resource: Vec::new(),
    };
    for row in node.children() {
        let words: Vec<_> = row.args.iter().map(|w| w.as_str()).collect();
        let invalid = || Problem::invalid_value(row);
        match (&*row.name.as_str(), words.as_slice()) {
            ("endpoint", [text]) => settings.endpoint = endpoint(row, text)?,
            ("header", [name, text]) => {
                let name = name.to_ascii_lowercase().parse().map_err(|_| invalid())?;
                settings.headers.push((name, text.parse().map_err(|_| invalid())?));
            }
            ("interval", [time]) => {
                let ms = value::milliseconds(time.as_bytes()).filter(|ms| *ms > 0).ok_or_else(invalid)?;
                settings.interval = Duration::from_millis(ms);
            }
            ("batch_size", [n]) => settings.batch_size = number(n).ok_or_else(invalid)?,
            ("batch_count", [n]) => settings.batch_count = number(n).ok_or_else(invalid)?,
            ("trusted_certificate", _) => {
                return Err(row.problem("\"trusted_certificate\" of \"otel_exporter\" is not supported yet".to_owned()));
            }
            ("endpoint" | "header" | "interval" | "batch_size" | "batch_count", _) => {
                return Err(Problem::invalid_arguments(row));
            }
            (other, _) => return Err(row.problem(format!("unknown directive \"{other}\""))),
        }
    }
    if settings.endpoint.is_empty() {
        return Err(node.problem("\"otel_exporter\" requires \"endpoint\"".to_owned()));
    }
    scope.build.main.otel.settings = Some(settings);
    Ok(())
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|n| (1..=1_000_000).contains(n))
}

fn endpoint(row: &Node, text: &str) -> Result<String, Problem> {
    if text.starts_with("https://") {
        return Err(row.problem("\"https\" in \"endpoint\" of \"otel_exporter\" is not supported yet".to_owned()));
    }
    let authority = text.strip_prefix("http://").unwrap_or(text);
    let has_port =
        authority.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port {
        return Err(row.problem(format!("invalid \"endpoint\" value \"{text}\"")));
    }
    Ok(format!("http://{authority}"))
}

/// Makes the exporter; says what is missing for one.
pub fn finish(build: &mut Build<'_>) {
    let main = &mut build.main.otel;
    if let Some(mut settings) = main.settings.take() {
        let name = main.service_name.take().unwrap_or_else(|| b"unknown_service:nginx".to_vec());
        settings.resource = vec![KeyValue::text("service.name", &name)];
        settings.resource.append(&mut main.resource);
        main.exporter = Some(Exporter::new(settings));
    }
}

/// The request's context; made when it is first asked for.
fn context_of(r: &mut Request) -> Context {
    if let Some(context) = &r.ctx.otel {
        return (**context).clone();
    }
    let header = |name: &[u8]| {
        let mut lines = r.head.headers.named(&r.arena, name);
        lines.next().map(|h| r.arena.span(h.value).to_vec())
    };
    let extract = r.conf().otel.otel_trace_context.extract;
    let parent = extract.then(|| header(b"traceparent").and_then(|h| trace_context::parse(&h))).flatten();
    let state = parent.and_then(|_| header(b"tracestate")).unwrap_or_default();
    let trace = parent.map_or_else(random, |p| p.trace);
    let context = Context { trace, span: random(), parent, state, traced: None };
    r.ctx.otel = Some(Box::new(context.clone()));
    context
}

/// Whether the request is traced. Decided once, where its first location says something about it.
fn decide(r: &mut Request) -> bool {
    if let Some(traced) = r.ctx.otel.as_ref().and_then(|c| c.traced) {
        return traced;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.otel;
    let word = conf.otel_trace.eval(r);
    let traced = matches!(r.get(word), b"on" | b"1");
    context_of(r);
    if let Some(context) = &mut r.ctx.otel {
        context.traced = Some(traced);
    }
    traced
}

/// The preaccess handler: decides, and tells who comes after.
pub fn handler(r: &mut Request) -> Verdict {
    if !r.is_main() || r.ctx.otel.as_ref().is_some_and(|c| c.traced.is_some()) {
        return Verdict::Decline;
    }
    let traced = decide(r);
    if r.conf().otel.otel_trace_context.inject {
        let context = context_of(r);
        set_header(r, b"traceparent", &trace_context::format(&context.trace, &context.span, traced));
        // Of a trace that begins here nobody said anything before.
        set_header(r, b"tracestate", &context.state);
    }
    Verdict::Decline
}

/// Replaces a header of the request, for handlers that pass it on; an empty value: there is none.
fn set_header(r: &mut Request, name: &[u8], value: &[u8]) {
    let arena = &r.arena;
    r.head.headers.head.headers.retain(|h| !arena.span(h.name).eq_ignore_ascii_case(name));
    if !value.is_empty() {
        let (name, value) = (r.arena.push(name), r.arena.push(value));
        r.head.headers.head.headers.push(HeaderLine { name, value, known: K::Other });
    }
}

/// The request is done: its span leaves, if it is traced. What its subrequests did is part of it.
pub fn logger(r: &mut Request) {
    if !r.is_main()
        || r.ctx.stream.is_some()
        || r.snapshot.main.otel.exporter.is_none()
        || (r.ctx.otel.is_none() && !r.conf().otel.is_of_use())
    {
        return;
    }
    if !decide(r) {
        return;
    }
    let span = span(r);
    if let Some(exporter) = &r.snapshot.main.otel.exporter {
        exporter.push(span);
    }
}

fn span(r: &mut Request) -> Span {
    let context = context_of(r);
    let snapshot = r.snapshot.clone();
    let location = snapshot.location(r.location);
    let conf = &location.conf.otel;
    let name = if conf.otel_span_name.is_empty() {
        String::from_utf8_lossy(&location.name).into_owned()
    } else {
        let text = conf.otel_span_name.eval(r);
        String::from_utf8_lossy(r.get(text)).into_owned()
    };
    let mut attributes = usual_attributes(r, &location.name);
    for (name, value) in conf.otel_span_attr.iter() {
        let value = value.eval(r);
        attributes.push(KeyValue::text(name, r.get(value)));
    }
    let failed = r.status() >= 500;
    let nanoseconds = |ms: u64| ms * 1_000_000;
    Span {
        trace_id: context.trace.to_vec(),
        span_id: context.span.to_vec(),
        trace_state: String::from_utf8_lossy(&context.state).into_owned(),
        parent_span_id: context.parent.map_or_else(Vec::new, |p| p.span.to_vec()),
        name,
        kind: KIND_SERVER,
        start_time_unix_nano: nanoseconds(r.started_ms),
        end_time_unix_nano: nanoseconds(clock::wall_ms()),
        attributes,
        status: failed.then_some(Status { code: STATUS_ERROR }),
    }
}

/// The attributes that nginx's module gives every span.
fn usual_attributes(r: &mut Request, route: &[u8]) -> Vec<KeyValue> {
    let local = crate::worker::local_address(&r.client);
    let scheme: &[u8] = if super::ssl::is_encrypted(r) { b"https" } else { b"http" };
    let flavor: &[u8] = match r.head.version {
        Version::HTTP10 => b"1.0",
        Version::HTTP11 => b"1.1",
        Version::HTTP20 => b"2.0",
        Version::HTTP30 => b"3.0",
        _ => b"0.9",
    };
    let mut all = vec![
        KeyValue::text("http.method", r.get(r.head.method_name)),
        KeyValue::text("http.target", r.get(r.head.target)),
        KeyValue::text("http.route", route),
        KeyValue::text("http.scheme", scheme),
        KeyValue::text("http.flavor", flavor),
        KeyValue::number("http.response_content_length", r.body_bytes_sent()),
        KeyValue::number("http.status_code", u64::from(r.status())),
        KeyValue::number("net.host.port", u64::from(local.port())),
    ];
    if let Some(agent) = r.head.headers.find(K::UserAgent) {
        all.push(KeyValue::text("http.user_agent", r.get(agent)));
    }
    if let Some(length) = r.head.headers.content_length {
        all.push(KeyValue::number("http.request_content_length", length));
    }
    let host = r.head.headers.host.map_or(&*r.server().name, |h| r.get(h));
    all.push(KeyValue::text("net.host.name", host));
    let remote = r.client.remote.borrow();
    all.push(KeyValue::text("net.sock.peer.addr", remote.host().to_string().as_bytes()));
    all.push(KeyValue::number("net.sock.peer.port", u64::from(remote.port())));
    all
}
