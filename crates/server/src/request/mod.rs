//! One request, from its head to its log line. Its parts: `arena` (all its bytes), `evaluate` (variables), `route` (which server and location),
//! `phases` (who answers), `body` (what the client sends), `respond` (what it gets), `finish` (errors, redirects, the end).
//! Knows no socket: what it writes goes to its `downstream`.

pub mod arena;
pub mod body;
pub mod chunk;
pub mod end;
pub mod evaluate;
pub mod filter;
pub mod finish;
pub mod flow;
pub mod head;
pub mod headers;
pub mod held;
pub mod include;
pub mod lineage;
mod parts;
pub mod pending;
pub mod phases;
pub mod respond;
pub mod route;
pub mod status;
pub mod steps;
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
pub use parts::{Answer, Head, Progress, Purpose};
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
    /// What was asked.
    pub head: Head,
    /// What the client sends after the head.
    pub body: Body,
    /// What is answered.
    pub answer: Answer,
    /// How far it has come.
    pub flow: Progress,
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
    /// `$request_id`, made when first asked for.
    pub id: Option<Text>,
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
            head: Head::default(),
            body: Body::default(),
            answer: Answer::default(),
            flow: Progress::default(),
            started_ms: 0,
            request_length: 0,
            ctx: RequestContexts::default(),
            attempts: Attempts::default(),
            captures: Vec::new(),
            values,
            evaluation: Default::default(),
            scratch: Vec::new(),
            room: Vec::new(),
            id: None,
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
            head,
            body,
            answer,
            flow,
            started_ms,
            request_length,
            ctx,
            attempts,
            captures,
            values,
            evaluation,
            scratch: _,
            room: _,
            id,
            underway,
            spent,
        } = self;
        arena.clear();
        head.reset();
        answer.reset();
        *flow = Progress::default();
        attempts.clear();
        captures.clear();
        values.clear();
        values.resize(to_snapshot.variables.len(), Value::Unknown);
        *evaluation = Default::default();
        *snapshot = to_snapshot;
        *client = to_client;
        *action = action::WAITING;
        *downstream = to_downstream;
        *server = ServerId(0);
        *location = LocationId(0);
        *body = Body::default();
        *started_ms = 0;
        *request_length = 0;
        ctx.reset();
        *id = None;
        *underway = Default::default();
        *spent = Spent::default();
    }

    /// Whether this is the client's own request, not a subrequest.
    pub fn is_main(&self) -> bool {
        self.flow.depth == 0
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

    /// `$status`: what is answered, or would be.
    pub fn status(&self) -> u16 {
        if self.flow.error_status != 0 && self.answer.headers.status == 0 {
            self.flow.error_status
        } else if self.answer.headers.status != 0 {
            self.answer.headers.status
        } else if self.head.version == Version::HTTP09 {
            9
        } else {
            0
        }
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

    /// What was known of a variable holds no more: it is evaluated when it is asked for again.
    pub fn forget(&mut self, id: VariableId) {
        self.values[id.0 as usize] = Value::Unknown;
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
        self.arena.copy_from(&other.arena);
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
        !matches!(self.head.line, Text::Own(span) if span.end as usize > self.arena.mark())
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
