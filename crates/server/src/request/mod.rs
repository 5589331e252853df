//! One request, from its head to its log line. Its parts: `arena` (all its bytes), `evaluate` (variables), `route` (which server and location),
//! `phases` (who answers), `body` (what the client sends), `respond` (what it gets), `finish` (errors, redirects, the end).
//! Knows no socket: what it writes goes to its `session`.

pub mod arena;
pub mod body;
pub mod end;
pub mod evaluate;
pub mod filter;
pub mod finish;
pub mod flow;
pub mod head;
pub mod headers;
pub mod held;
pub mod include;
pub mod pending;
pub mod phases;
pub mod respond;
pub mod route;
pub mod status;
pub mod subrequest;

use crate::connection::{Client, Downstream, action};
use crate::log::error::{ErrorLog, Level};
use crate::modules::{LocationConf, RequestContexts};
use crate::snapshot::{Location, LocationId, Server, ServerId, ThreadSnapshot, VariableId};
use crate::status::spent::Spent;
use crate::upstream::Attempts;
pub use arena::Text;
use arena::{Arena, Span};
use body::Body;
pub use end::end;
use filter::BodyFilter;
use headers::{HeadersIn, HeadersOut};
use std::rc::Rc;
pub use wire::http1::Version;
pub use wire::http1::request::Method;

/// Rewrites and internal redirects a request may go through (nginx's `NGX_HTTP_MAX_URI_CHANGES`).
pub const MAX_URI_CHANGES: u8 = 10;
/// How deep subrequests may nest (`NGX_HTTP_MAX_SUBREQUESTS`).
pub const MAX_SUBREQUESTS: u8 = 50;

/// What a cached variable is.
#[derive(Clone, Copy, Debug, Default)]
enum Value {
    #[default]
    Unknown,
    Known(Option<Text>),
}

impl Value {
    /// Whether nothing was put in the other's place.
    fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Unknown, Value::Unknown) | (Value::Known(None), Value::Known(None)) => true,
            (Value::Known(Some(Text::Own(a))), Value::Known(Some(Text::Own(b)))) => {
                (a.start, a.end) == (b.start, b.end)
            }
            (Value::Known(Some(Text::Fixed(a))), Value::Known(Some(Text::Fixed(b)))) => std::ptr::eq(*a, *b),
            _ => false,
        }
    }
}

/// A request's variables at some time.
pub(crate) struct Values(Vec<Value>);

/// A request. Boxed, pooled by thread, emptied between uses.
pub struct Request {
    /// All bytes of the request and all texts made for it.
    pub arena: Arena,
    /// The configuration it started under; an internal redirect stays with it.
    pub snapshot: Rc<ThreadSnapshot>,
    /// The connection it came on.
    pub client: Rc<Client>,
    /// What is done for it now, for the error log: `reading client request line` (nginx's `log->action`).
    pub action: &'static str,
    /// Where its answer goes.
    pub downstream: Downstream,
    /// The server chosen by name.
    pub server: ServerId,
    /// The level whose values hold now.
    pub location: LocationId,

    /// The method.
    pub method: Method,
    /// The method as it was sent.
    pub method_name: Text,
    /// The whole request line.
    pub line: Text,
    /// The target as it was sent: `$request_uri`.
    pub target: Text,
    /// The normalised path: `$uri`.
    pub uri: Text,
    /// What follows the `?`.
    pub args: Text,
    /// Whether the target was plain, so that `uri` is the same bytes as the target's path.
    pub plain_uri: bool,
    /// Whether `target` still is what `uri` came from: no rewrite, no redirect in between.
    pub valid_target: bool,
    /// The version of the request.
    pub version: Version,
    /// The scheme of an absolute target, if any.
    pub scheme: Option<Text>,
    /// The request's headers.
    pub headers_in: HeadersIn,
    /// The port of the Host header or absolute target.
    pub request_port: Option<u16>,
    /// What the client sends after the head.
    pub body: Body,

    /// The answer's head.
    pub headers_out: HeadersOut,
    /// The answer's head has been handed to the session.
    pub header_sent: bool,
    /// It has not been written there yet: a body filter may still refuse the answer ([`Request::hold_head`]).
    pub head_held: bool,
    /// A body filter did: what is answered instead.
    pub refused: Option<Box<respond::Refused>>,
    /// The answer has no body: HEAD, 204, 304.
    pub header_only: bool,
    /// The last byte of the answer has been handed over.
    pub response_done: bool,
    /// Filters that this answer's body goes through, outermost last.
    pub body_filters: Vec<Box<dyn BodyFilter>>,
    /// Filters need the bytes of the body: large files are sent in pieces (nginx's `filter_need_in_memory`).
    pub in_memory: bool,
    /// What is left of an answer that is sent in pieces.
    pub pending: Option<Box<pending::Pending>>,
    /// What waits for includes; there when the answer may have some.
    pub deferred: Option<Box<include::Deferred>>,
    /// An include's way on: the filters behind its parent's.
    pub tail: Vec<Box<dyn BodyFilter>>,
    /// What an include sends if it has nothing to say.
    pub stub: Option<Box<include::Stub>>,
    /// Some of the body has been sent.
    pub output_begun: bool,
    /// Each piece of the answer is to leave at once: filters keep nothing back.
    pub unbuffered: bool,
    /// The answer has a known length, and parts of it may be asked for.
    pub allow_ranges: bool,
    /// Only one range at a time: the body comes in pieces.
    pub single_range: bool,
    /// The conditions of the request were for somebody else (an upstream) to judge.
    pub disable_not_modified: bool,
    /// Body bytes handed to the downstream: `$body_bytes_sent` counts what was written.
    pub limit_rate: Option<u64>,
    /// `limit_rate_after` by `X-Accel-Limit-Rate` or `set`.
    pub limit_rate_after: Option<u64>,

    /// The handler for the content phase, when a location or `if` names one.
    pub content_handler: Option<phases::Content>,
    /// An internal redirect has been made, or this is a subrequest.
    pub internal: bool,
    /// Redirects left.
    pub uri_changes: u8,
    /// The uri has been changed by a rewrite in this round.
    pub uri_changed: bool,
    /// The request is being answered by an `error_page`.
    pub error_page: bool,
    /// The status to answer with instead of the content's own (from `error_page`).
    pub error_status: u16,
    /// Whether the connection is kept after the answer.
    pub keepalive: bool,
    /// Whether unread body is to be read and thrown away before the connection is closed.
    pub lingering_close: bool,
    /// Whether the client waits for `100 Continue`, and whether it was sent.
    pub expect_tested: bool,
    /// The connection is broken or timed out; nothing more can be sent.
    pub aborted: bool,
    /// Some mark of the rewrite module: a `break` has been met.
    pub rewrite_break: bool,
    /// Which access verdict stood under `satisfy any`.
    pub access_code: u16,
    /// Wall clock at the first byte of the head, ms.
    pub started_ms: u64,
    /// Head bytes plus body bytes read.
    pub request_length: u64,
    /// What pieces modules keep for this request.
    pub ctx: RequestContexts,
    /// Tries at upstreams, for `$upstream_*` and the error log.
    pub attempts: Attempts,
    /// The groups of the last expression that matched.
    pub captures: Vec<Option<Span>>,
    values: Vec<Value>,
    /// How far the evaluation of variables has come.
    evaluation: evaluate::Evaluation,
    /// Room to build texts in.
    pub scratch: Vec<u8>,
    /// Room of the `text!` macro.
    pub room: Vec<u8>,
    /// Depth below the client's own request, 0 for that itself.
    pub depth: u8,
    /// How many subrequests were made for the client's request.
    pub subrequests: u16,
    /// Facts of the parent that a subrequest needs.
    pub parent_uri: Option<Text>,
    /// The charset of the answer that a subrequest's becomes a part of.
    pub main_charset: Option<Text>,
    /// `$request_id`, made when first asked for.
    pub id: Option<Text>,
    /// The uri is added to an `alias` that belongs to a pattern (`index` and `try_files` do).
    pub add_uri_to_alias: bool,
    /// The uri is still the one the location was found by.
    pub valid_location: bool,
    /// Skip the log line (mirror and others with `log_subrequest off`).
    pub logged: bool,
    /// The request was there already when the one before it was answered.
    pub pipelined: bool,
    /// Counts the request as under way.
    pub underway: crate::status::requests::Underway,
    /// What it waited for.
    pub spent: Spent,
}

impl Request {
    /// An empty request for a connection.
    pub fn new(snapshot: Rc<ThreadSnapshot>, client: Rc<Client>, downstream: Downstream) -> Box<Request> {
        let values = vec![Value::Unknown; snapshot.variables.len()];
        Box::new(Request {
            arena: Arena::default(),
            snapshot,
            client,
            action: action::WAITING,
            downstream,
            server: ServerId(0),
            location: LocationId(0),
            method: Method::Get,
            method_name: Text::EMPTY,
            line: Text::EMPTY,
            target: Text::EMPTY,
            uri: Text::EMPTY,
            args: Text::EMPTY,
            plain_uri: false,
            valid_target: true,
            version: Version::HTTP11,
            scheme: None,
            headers_in: HeadersIn::default(),
            request_port: None,
            body: Body::default(),
            headers_out: HeadersOut::default(),
            header_sent: false,
            head_held: false,
            refused: None,
            header_only: false,
            response_done: false,
            body_filters: Vec::new(),
            in_memory: false,
            pending: None,
            deferred: None,
            tail: Vec::new(),
            stub: None,
            output_begun: false,
            unbuffered: false,
            allow_ranges: false,
            single_range: false,
            disable_not_modified: false,
            limit_rate: None,
            limit_rate_after: None,
            content_handler: None,
            internal: false,
            uri_changes: MAX_URI_CHANGES + 1,
            uri_changed: false,
            error_page: false,
            error_status: 0,
            keepalive: false,
            lingering_close: false,
            expect_tested: false,
            aborted: false,
            rewrite_break: false,
            access_code: 0,
            started_ms: 0,
            request_length: 0,
            ctx: RequestContexts::default(),
            attempts: Attempts::default(),
            captures: Vec::new(),
            values,
            evaluation: Default::default(),
            scratch: Vec::new(),
            room: Vec::new(),
            depth: 0,
            subrequests: 0,
            parent_uri: None,
            main_charset: None,
            id: None,
            add_uri_to_alias: false,
            valid_location: true,
            logged: false,
            pipelined: false,
            underway: Default::default(),
            spent: Spent::default(),
        })
    }

    /// Makes a used request as new, in place and keeping its buffers. Names every field, so that none is forgotten.
    pub fn reset(&mut self, to_snapshot: Rc<ThreadSnapshot>, to_client: Rc<Client>, to_downstream: Downstream) {
        let Request {
            arena,
            snapshot,
            client,
            action,
            downstream,
            server,
            location,
            method,
            method_name,
            line,
            target,
            uri,
            args,
            plain_uri,
            valid_target,
            version,
            scheme,
            headers_in,
            request_port,
            body,
            headers_out,
            header_sent,
            head_held,
            refused,
            header_only,
            response_done,
            body_filters,
            in_memory,
            pending,
            deferred,
            tail,
            stub,
            output_begun,
            unbuffered,
            allow_ranges,
            single_range,
            disable_not_modified,
            limit_rate,
            limit_rate_after,
            content_handler,
            internal,
            uri_changes,
            uri_changed,
            error_page,
            error_status,
            keepalive,
            lingering_close,
            expect_tested,
            aborted,
            rewrite_break,
            access_code,
            started_ms,
            request_length,
            ctx,
            attempts,
            captures,
            values,
            evaluation,
            scratch,
            room,
            depth,
            subrequests,
            parent_uri,
            main_charset,
            id,
            add_uri_to_alias,
            valid_location,
            logged,
            pipelined,
            underway,
            spent,
        } = self;
        arena.clear();
        headers_in.clear();
        headers_out.clear();
        body_filters.clear();
        attempts.clear();
        captures.clear();
        values.clear();
        values.resize(to_snapshot.variables.len(), Value::Unknown);
        let _ = (scratch, room);
        *evaluation = Default::default();
        *snapshot = to_snapshot;
        *client = to_client;
        *action = action::WAITING;
        *downstream = to_downstream;
        *server = ServerId(0);
        *location = LocationId(0);
        *method = Method::Get;
        *method_name = Text::EMPTY;
        *line = Text::EMPTY;
        *target = Text::EMPTY;
        *uri = Text::EMPTY;
        *args = Text::EMPTY;
        *plain_uri = false;
        *valid_target = true;
        *version = Version::HTTP11;
        *scheme = None;
        *request_port = None;
        *body = Body::default();
        *header_sent = false;
        *head_held = false;
        *refused = None;
        *header_only = false;
        *response_done = false;
        *in_memory = false;
        *pending = None;
        *deferred = None;
        tail.clear();
        *stub = None;
        *output_begun = false;
        *unbuffered = false;
        *allow_ranges = false;
        *single_range = false;
        *disable_not_modified = false;
        *limit_rate = None;
        *limit_rate_after = None;
        *content_handler = None;
        *internal = false;
        *uri_changes = MAX_URI_CHANGES + 1;
        *uri_changed = false;
        *error_page = false;
        *error_status = 0;
        *keepalive = false;
        *lingering_close = false;
        *expect_tested = false;
        *aborted = false;
        *rewrite_break = false;
        *access_code = 0;
        *started_ms = 0;
        *request_length = 0;
        ctx.reset();
        *depth = 0;
        *subrequests = 0;
        *parent_uri = None;
        *main_charset = None;
        *id = None;
        *add_uri_to_alias = false;
        *valid_location = true;
        *logged = false;
        *pipelined = false;
        *underway = Default::default();
        *spent = Spent::default();
    }

    /// Whether this is the client's own request, not a subrequest.
    pub fn is_main(&self) -> bool {
        self.depth == 0
    }

    /// The bytes of a text.
    pub fn get(&self, text: impl Into<Text>) -> &[u8] {
        self.arena.get(text.into())
    }

    /// Copies bytes into the request.
    pub fn text(&mut self, bytes: &[u8]) -> Text {
        Text::Own(self.arena.push(bytes))
    }

    /// The level that holds now. Clone `snapshot` where the request is changed meanwhile.
    pub fn location(&self) -> &Location {
        self.snapshot.location(self.location)
    }

    /// The values that hold now.
    pub fn conf(&self) -> &LocationConf {
        &self.snapshot.location(self.location).conf
    }

    /// The server block.
    pub fn server(&self) -> &Server {
        self.snapshot.server(self.server)
    }

    /// A variable's value by name, for rules that name variables at run time; `None` when no one uses such a variable.
    pub fn variable_named(&mut self, name: &str) -> Option<Text> {
        let snapshot = self.snapshot.clone();
        let id = snapshot.variables.iter().position(|v| &*v.name == name)?;
        self.variable(VariableId(id as u32))
    }

    /// Gives a variable a value (`set`, named groups, `auth_request_set`).
    pub fn assign(&mut self, id: VariableId, value: Option<Text>) {
        self.values[id.0 as usize] = Value::Known(value);
    }

    /// The numbered group of the last expression that matched.
    pub fn capture(&self, number: usize) -> Option<Text> {
        self.captures.get(number.wrapping_sub(1)).copied().flatten().map(Text::Own)
    }

    /// The error log of the level that holds now.
    pub fn error_log(&self) -> &ErrorLog {
        &self.conf().core.error_log
    }

    /// Whether a line of `level` about this request would be written.
    #[inline]
    pub fn logs(&self, level: Level) -> bool {
        self.error_log().enabled(level) || self.client.debug.get()
    }

    /// Writes a line with the request's facts to its error log. Use `log_error!`, which asks for the level first.
    pub fn write_log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        let number = Some(self.client.number);
        let message = format_args!("{message}{}", finish::LogFacts(self));
        if self.client.debug.get() {
            self.error_log().write_to_all(level, number, message);
        } else {
            self.error_log().write(level, number, message);
        }
    }

    /// Gives what is shared between a request and its subrequest to the other: bytes, values, the way to the client.
    pub(crate) fn swap_shared(&mut self, other: &mut Request) {
        std::mem::swap(&mut self.arena, &mut other.arena);
        std::mem::swap(&mut self.values, &mut other.values);
        std::mem::swap(&mut self.ctx.ssi_shared, &mut other.ctx.ssi_shared);
    }

    /// Takes the values of another request's variables, whose texts stand in that one's bytes.
    pub(crate) fn adopt_values(&mut self, other: &Request) {
        for (at, value) in other.values.iter().enumerate() {
            let Value::Known(value) = *value else { continue };
            let value = match value {
                Some(Text::Own(span)) => Some(Text::Own(self.arena.push(other.arena.span(span)))),
                fixed => fixed,
            };
            self.values[at] = Value::Known(value);
        }
    }

    /// Copies what is shared, for a subrequest that runs beside this request or outlives it.
    pub(crate) fn copy_shared(&mut self, other: &Request) {
        self.arena = other.arena.clone();
        self.values.clone_from(&other.values);
        self.ctx.ssi_shared.clone_from(&other.ctx.ssi_shared);
    }

    /// The variables as they are known now.
    pub(crate) fn known_values(&self) -> Values {
        Values(self.values.clone())
    }

    /// Takes over what a subrequest on copies has come to know: what is another value than `before`. Its bytes are the same as this
    /// request's up to `base`.
    pub(crate) fn take_values(&mut self, other: &Request, before: &Values, base: usize) {
        for (i, (now, then)) in other.values.iter().zip(&before.0).enumerate() {
            let Value::Known(text) = *now else { continue };
            if now.is_same(then) {
                continue;
            }
            let text = text.map(|text| match text {
                Text::Own(span) if span.end as usize > base => Text::Own(self.arena.push(other.arena.span(span))),
                text => text,
            });
            self.values[i] = Value::Known(text);
        }
    }

    /// Whether its own bytes are with it, and not with a subrequest.
    pub(crate) fn has_its_bytes(&self) -> bool {
        !matches!(self.line, Text::Own(span) if span.end as usize > self.arena.mark())
    }
}

/// Writes to the request's error log when the level is on.
#[macro_export]
macro_rules! log_error {
    ($r:expr, $level:ident, $($arg:tt)*) => {
        if $r.logs($crate::log::error::Level::$level) {
            $r.write_log($crate::log::error::Level::$level, format_args!($($arg)*));
        }
    };
}
