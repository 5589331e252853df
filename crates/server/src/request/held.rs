//! A handler takes the connection (docs/push.md): who waits for something rare gives request, request task and buffers back and keeps the socket, and of the request
//! what its log line needs. From: a content handler that calls [`hold`]. To: `connection::http1`, whose task runs the work, and then goes
//! on with the request that the work gives back. Only for HTTP/1: a request of a stream is its own task already.

mod memo;
mod pack;

pub use pack::{Packed, Pieces, Reader, Rest, Unpacked, Writer};

use super::arena::Span;
use super::headers::{HeaderLine, HeaderOut, KnownHeader};
use super::phases::{Verdict, Work};
use super::{Method, Request, Text, Value, Version};
use crate::connection::http1::Http1;
use crate::connection::incoming::Incoming;
use crate::connection::socket::Socket;
use crate::connection::{Address, Client, Downstream, pool};
use crate::modules::{RequestContexts, js, limit_conn, limit_req, lua, modsecurity, nchan, otel};
use crate::snapshot::{LocationId, ServerId, ThreadSnapshot};
use crate::status::requests::Underway;
use crate::upstream::Attempts;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// What is kept of a request until it goes back. Given up by a shutdown that takes too long, it has its log line.
pub struct Kept(Option<Parts>);

/// Texts are places in `bytes`, whatever they were places in before.
pub struct Parts {
    snapshot: Rc<ThreadSnapshot>,
    client: Rc<Client>,
    action: &'static str,
    bytes: Box<[u8]>,
    headers: Box<[HeaderLine]>,
    /// The values of variables that were looked up.
    values: Box<[(u32, Option<Span>)]>,
    captures: Box<[Option<Span>]>,
    answer: Box<[(Span, Span, KnownHeader)]>,
    server: ServerId,
    location: LocationId,
    method: Method,
    version: Version,
    method_name: Option<Span>,
    line: Option<Span>,
    target: Option<Span>,
    uri: Option<Span>,
    args: Option<Span>,
    scheme: Option<Span>,
    host: Option<Span>,
    id: Option<Span>,
    content_type: Option<Span>,
    charset: Option<Span>,
    protocol: Option<Span>,
    request_port: Option<u16>,
    status: u16,
    flags: Flags,
    started_ms: u64,
    /// Head bytes and body bytes, and what has come since.
    pub request_length: u64,
    contexts: Contexts,
    attempts: Option<Box<Attempts>>,
    underway: Underway,
    /// Bytes that came behind the request.
    early: Vec<u8>,
    /// Bytes of the answer that were written.
    pub sent: u64,
    header_size: u64,
}

/// What is kept of what modules keep.
struct Contexts {
    realip: Option<Rc<Address>>,
    /// Places that the request holds; none that holds none.
    limit_conn: Option<Box<limit_conn::Context>>,
    limit_req: limit_req::Context,
    otel: Option<Box<otel::Context>>,
    nchan: Option<Rc<nchan::Context>>,
    lua: Option<Box<lua::Context>>,
    js: Option<Box<js::Context>>,
    modsecurity: Option<Box<modsecurity::Watch>>,
}

struct Flags {
    plain_uri: bool,
    valid_target: bool,
    valid_location: bool,
    internal: bool,
    header_sent: bool,
    keepalive: bool,
    pipelined: bool,
    logged: bool,
}

/// Gives the request's connection to `work`. The answer's head, if it has been sent, is written. The verdict is the handler's.
pub fn hold(r: &mut Request, work: impl FnOnce(Box<Kept>, Socket) -> Work) -> Verdict {
    let Downstream::Http1(mut http) = std::mem::take(&mut r.downstream) else { return Verdict::Broken };
    let kept = Kept::of(r, &mut http);
    let socket = std::mem::replace(&mut http.incoming.socket, Socket::none());
    http.lend_input();
    pool::give_buffer(http.output.take_buffer());
    drop(http);
    r.downstream = Downstream::Held(work(kept, socket));
    Verdict::Answered
}

/// Whether the request's connection can be held: it is one of HTTP/1, and what the request sends reaches it unchanged.
pub fn may_hold(r: &Request) -> bool {
    matches!(r.downstream, Downstream::Http1(_))
        && r.is_main()
        && r.answer.body_filters.is_empty()
        && r.answer.tail.is_empty()
}

/// A text's place among the bytes that are kept: one of the program's joins them. None: the empty one that stands for nothing.
fn place(bytes: &mut Vec<u8>, text: Text) -> Option<Span> {
    match text {
        Text::Own(span) => Some(span),
        Text::Fixed(b"") => None,
        Text::Fixed(fixed) => {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(fixed);
            Some(Span { start, end: bytes.len() as u32 })
        }
    }
}

impl Contexts {
    fn take(from: &mut RequestContexts) -> Contexts {
        let limit_conn = std::mem::take(&mut from.limit_conn);
        Contexts {
            realip: from.realip.take(),
            limit_conn: (!limit_conn.is_blank()).then(|| Box::new(limit_conn)),
            limit_req: from.limit_req,
            otel: from.otel.take(),
            nchan: from.nchan.take(),
            lua: from.lua.take(),
            js: from.js.take(),
            modsecurity: from.modsecurity.take().map(Box::new),
        }
    }

    fn give(self, to: &mut RequestContexts) {
        to.realip = self.realip;
        to.limit_conn = self.limit_conn.map_or_else(Default::default, |places| *places);
        to.limit_req = self.limit_req;
        to.otel = self.otel;
        to.nchan = self.nchan;
        to.lua = self.lua;
        to.js = self.js;
        to.modsecurity = self.modsecurity.map(|watch| *watch);
    }
}

impl Kept {
    fn of(r: &mut Request, http: &mut Http1) -> Box<Kept> {
        let mut bytes = r.arena.span(r.arena.since(0)).to_vec();
        let mut values = Vec::new();
        for (number, value) in r.values.iter().enumerate() {
            if let Value::Known(value) = value {
                // An empty value is one, too.
                let span = value.map(|text| place(&mut bytes, text).unwrap_or(Span { start: 0, end: 0 }));
                values.push((number as u32, span));
            }
        }
        let nothing = Span { start: 0, end: 0 };
        let answer = r.answer.headers.lines.iter();
        let answer: Vec<_> = answer
            .map(|l| {
                let [name, value] = [l.name, l.value].map(|text| place(&mut bytes, text).unwrap_or(nothing));
                (name, value, l.known)
            })
            .collect();
        let [method_name, line, target, uri, args] =
            [r.head.method_name, r.head.line, r.head.target, r.head.uri, r.head.args]
                .map(|text| place(&mut bytes, text));
        let [scheme, host, id, content_type, charset] =
            [r.head.scheme, r.head.headers.host, r.id, r.answer.headers.content_type, r.answer.headers.charset]
                .map(|text| text.and_then(|text| place(&mut bytes, text)));
        let early = http.unread().to_vec();
        http.consume(early.len());
        Box::new(Kept(Some(Parts {
            snapshot: r.snapshot.clone(),
            client: r.client.clone(),
            action: r.action,
            bytes: bytes.into(),
            headers: r.head.headers.lines().into(),
            values: values.into(),
            captures: r.captures.as_slice().into(),
            answer: answer.into(),
            server: r.server,
            location: r.location,
            method: r.head.method,
            version: r.head.version,
            method_name,
            line,
            target,
            uri,
            args,
            scheme,
            host,
            id,
            content_type,
            charset,
            protocol: r.head.headers.head.protocol,
            request_port: r.head.port,
            status: r.answer.headers.status,
            flags: Flags {
                plain_uri: r.head.plain_uri,
                valid_target: r.head.valid_target,
                valid_location: r.flow.valid_location,
                internal: r.flow.internal,
                header_sent: r.answer.header_sent,
                keepalive: r.flow.keepalive,
                pipelined: r.flow.pipelined,
                logged: r.flow.logged,
            },
            started_ms: r.started_ms,
            request_length: r.request_length,
            contexts: Contexts::take(&mut r.ctx),
            attempts: (!r.attempts.all.is_empty()).then(|| Box::new(std::mem::take(&mut r.attempts))),
            underway: std::mem::take(&mut r.underway),
            early,
            sent: http.output.written - http.answer_start.min(http.output.written),
            header_size: http.header_size.into(),
        })))
    }

    /// The request, on its connection, as it was but for what was sent since.
    pub fn back(mut self, socket: Socket) -> Box<Request> {
        self.0.take().expect(HERE).back(socket)
    }
}

/// Parts leave only with what they are parts of.
const HERE: &str = "it has not gone back";

impl Deref for Kept {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        self.0.as_ref().expect(HERE)
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Parts {
        self.0.as_mut().expect(HERE)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if crate::worker::cutting()
            && let Some(parts) = self.0.take()
        {
            // A request that ends like this is logged (`end.rs`).
            drop(parts.back(Socket::none()));
        }
    }
}

impl Parts {
    /// The snapshot it began with.
    pub fn snapshot(&self) -> &Rc<ThreadSnapshot> {
        &self.snapshot
    }

    /// The level whose values hold for it.
    pub fn location(&self) -> LocationId {
        self.location
    }

    /// Its client.
    pub fn client(&self) -> &Rc<Client> {
        &self.client
    }

    /// Whether it counts as under way.
    pub fn is_counted(&self) -> bool {
        self.underway.counts()
    }

    /// The bytes that have come behind the request.
    pub fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.early)
    }

    fn back(self, socket: Socket) -> Box<Request> {
        let mut incoming = Incoming::new(socket);
        incoming.input = self.early;
        let mut http = Http1::new(incoming);
        (http.output.queued, http.output.written) = (self.sent, self.sent);
        http.header_size = u32::try_from(self.header_size).unwrap_or(u32::MAX);
        let mut r = pool::take_request(self.snapshot, self.client, Downstream::Http1(http));
        r.arena.push(&self.bytes);
        r.head.headers.head.headers.extend_from_slice(&self.headers);
        r.head.headers.head.protocol = self.protocol;
        r.head.headers.host = self.host.map(Text::Own);
        let text = |span: Option<Span>| span.map_or(Text::EMPTY, Text::Own);
        for (number, value) in self.values {
            r.values[number as usize] = Value::Known(value.map(Text::Own));
        }
        r.captures.extend_from_slice(&self.captures);
        let line = |&(name, value, known): &_| HeaderOut { name: Text::Own(name), value: Text::Own(value), known };
        r.answer.headers.lines.extend(self.answer.iter().map(line));
        r.answer.headers.status = self.status;
        r.answer.headers.content_type = self.content_type.map(Text::Own);
        r.answer.headers.charset = self.charset.map(Text::Own);
        r.action = self.action;
        r.server = self.server;
        r.location = self.location;
        r.head.method = self.method;
        r.head.version = self.version;
        r.head.method_name = text(self.method_name);
        r.head.line = text(self.line);
        r.head.target = text(self.target);
        r.head.uri = text(self.uri);
        r.head.args = text(self.args);
        r.head.scheme = self.scheme.map(Text::Own);
        r.id = self.id.map(Text::Own);
        r.head.port = self.request_port;
        r.head.plain_uri = self.flags.plain_uri;
        r.head.valid_target = self.flags.valid_target;
        r.flow.valid_location = self.flags.valid_location;
        r.flow.internal = self.flags.internal;
        r.answer.header_sent = self.flags.header_sent;
        r.flow.keepalive = self.flags.keepalive;
        r.flow.pipelined = self.flags.pipelined;
        r.flow.logged = self.flags.logged;
        r.started_ms = self.started_ms;
        r.request_length = self.request_length;
        self.contexts.give(&mut r.ctx);
        if let Some(attempts) = self.attempts {
            r.attempts = *attempts;
        }
        r.underway = self.underway;
        r
    }
}
