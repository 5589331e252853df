//! A handler takes the connection (docs/push.md): who waits for something rare gives request, desk and buffers back and keeps the socket, and of the request
//! what its log line needs. From: a content handler that calls [`hold`]. To: `connection::http1`, whose task runs the work, and then goes
//! on with the request that the work gives back. Only for HTTP/1: a request of a stream is its own task already.

use super::arena::Span;
use super::headers::{HeaderLine, HeaderOut};
use super::phases::{Verdict, Work};
use super::{Method, Request, Text, Value, Version};
use crate::connection::http1::Http1;
use crate::connection::incoming::Incoming;
use crate::connection::socket::Socket;
use crate::connection::{Client, Session, pool};
use crate::modules::RequestContexts;
use crate::snapshot::{LocationId, ServerId, Shot};
use crate::status::requests::Underway;
use crate::upstream::Attempts;
use std::rc::Rc;

/// What is kept of a request.
pub struct Kept {
    shot: Rc<Shot>,
    client: Rc<Client>,
    doing: &'static str,
    /// All its bytes; the texts below are places in them.
    bytes: Box<[u8]>,
    headers: Box<[HeaderLine]>,
    /// The values of variables that were looked up.
    values: Box<[(u32, Option<Text>)]>,
    captures: Box<[Option<Span>]>,
    answer: Box<[HeaderOut]>,
    server: ServerId,
    location: LocationId,
    method: Method,
    version: Version,
    method_name: Text,
    line: Text,
    target: Text,
    uri: Text,
    args: Text,
    scheme: Option<Text>,
    host: Option<Text>,
    id: Option<Text>,
    content_type: Option<Text>,
    charset: Option<Text>,
    protocol: Option<Span>,
    request_port: Option<u16>,
    status: u16,
    flags: Flags,
    started_ms: u64,
    /// Head bytes and body bytes, and what has come since.
    pub request_length: u64,
    contexts: RequestContexts,
    attempts: Option<Box<Attempts>>,
    underway: Underway,
    /// Bytes that came behind the request.
    early: Vec<u8>,
    /// Bytes of the answer that were written.
    pub sent: u64,
    header_size: u64,
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
    let Session::Http1(mut http) = std::mem::take(&mut r.session) else { return Verdict::Broken };
    let kept = Kept::of(r, &mut http);
    let socket = std::mem::replace(&mut http.incoming.socket, Socket::none());
    http.lend_input();
    pool::give_buffer(http.output.take_buffer());
    drop(http);
    r.session = Session::Held(work(kept, socket));
    Verdict::Answered
}

/// Whether the request's connection can be held: it is one of HTTP/1, and what the request sends reaches it unchanged.
pub fn may_hold(r: &Request) -> bool {
    matches!(r.session, Session::Http1(_)) && r.is_main() && r.body_filters.is_empty() && r.tail.is_empty()
}

impl Kept {
    fn of(r: &mut Request, http: &mut Http1) -> Box<Kept> {
        let known = |(number, value): (usize, &Value)| match value {
            Value::Known(value) => Some((number as u32, *value)),
            Value::Unknown => None,
        };
        let early = http.unread().to_vec();
        http.consume(early.len());
        let sent = http.output.written - http.answer_start.min(http.output.written);
        let contexts = std::mem::take(&mut r.ctx);
        let attempts = (!r.attempts.all.is_empty()).then(|| Box::new(std::mem::take(&mut r.attempts)));
        Box::new(Kept {
            shot: r.shot.clone(),
            client: r.client.clone(),
            doing: r.doing,
            bytes: r.arena.span(r.arena.since(0)).into(),
            headers: r.headers_in.lines().into(),
            values: r.values.iter().enumerate().filter_map(known).collect(),
            captures: r.captures.as_slice().into(),
            answer: r.headers_out.lines.as_slice().into(),
            server: r.server,
            location: r.location,
            method: r.method,
            version: r.version,
            method_name: r.method_name,
            line: r.line,
            target: r.target,
            uri: r.uri,
            args: r.args,
            scheme: r.scheme,
            host: r.headers_in.host,
            id: r.id,
            content_type: r.headers_out.content_type,
            charset: r.headers_out.charset,
            protocol: r.headers_in.head.protocol,
            request_port: r.request_port,
            status: r.headers_out.status,
            flags: Flags {
                plain_uri: r.plain_uri,
                valid_target: r.valid_target,
                valid_location: r.valid_location,
                internal: r.internal,
                header_sent: r.header_sent,
                keepalive: r.keepalive,
                pipelined: r.pipelined,
                logged: r.logged,
            },
            started_ms: r.started_ms,
            request_length: r.request_length,
            contexts,
            attempts,
            underway: std::mem::take(&mut r.underway),
            early,
            sent,
            header_size: http.header_size,
        })
    }

    /// The snapshot it began with.
    pub fn shot(&self) -> &Rc<Shot> {
        &self.shot
    }

    /// The level whose values hold for it.
    pub fn location(&self) -> LocationId {
        self.location
    }

    /// Its client.
    pub fn client(&self) -> &Rc<Client> {
        &self.client
    }

    /// Whether bytes have come behind the request: nobody can say of such a client whether it is still there.
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// The bytes that have come behind the request.
    pub fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.early)
    }

    /// What modules keep for it.
    pub fn contexts(&mut self) -> &mut RequestContexts {
        &mut self.contexts
    }

    /// The request, on its connection, as it was but for what was sent since.
    pub fn back(self, socket: Socket) -> Box<Request> {
        let mut incoming = Incoming::new(socket);
        incoming.input = self.early;
        let mut http = Http1::new(incoming);
        (http.output.queued, http.output.written, http.header_size) = (self.sent, self.sent, self.header_size);
        let mut r = pool::take_request(self.shot, self.client, Session::Http1(http));
        r.arena.push(&self.bytes);
        r.headers_in.head.headers.extend_from_slice(&self.headers);
        r.headers_in.head.protocol = self.protocol;
        r.headers_in.host = self.host;
        for (number, value) in self.values {
            r.values[number as usize] = Value::Known(value);
        }
        r.captures.extend_from_slice(&self.captures);
        r.headers_out.lines.extend_from_slice(&self.answer);
        r.headers_out.status = self.status;
        r.headers_out.content_type = self.content_type;
        r.headers_out.charset = self.charset;
        r.doing = self.doing;
        r.server = self.server;
        r.location = self.location;
        r.method = self.method;
        r.version = self.version;
        r.method_name = self.method_name;
        r.line = self.line;
        r.target = self.target;
        r.uri = self.uri;
        r.args = self.args;
        r.scheme = self.scheme;
        r.id = self.id;
        r.request_port = self.request_port;
        r.plain_uri = self.flags.plain_uri;
        r.valid_target = self.flags.valid_target;
        r.valid_location = self.flags.valid_location;
        r.internal = self.flags.internal;
        r.header_sent = self.flags.header_sent;
        r.keepalive = self.flags.keepalive;
        r.pipelined = self.flags.pipelined;
        r.logged = self.flags.logged;
        r.started_ms = self.started_ms;
        r.request_length = self.request_length;
        r.ctx = self.contexts;
        if let Some(attempts) = self.attempts {
            r.attempts = *attempts;
        }
        r.underway = self.underway;
        r
    }
}
