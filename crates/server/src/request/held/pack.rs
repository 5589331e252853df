//! What is kept of a request, in few bytes, for a connection that is parked (docs/push.md): its texts and their places are written one
//! after the other and compressed with what requests before it were like (`memo.rs`). From and to: [`Kept`].

use super::memo;
use super::{Contexts, Flags, Kept, Parts};
use crate::connection::handshake::Facts;
use crate::connection::parked::{read_header, write_header};
use crate::connection::socket::Socket;
use crate::connection::{Address, Client, action};
use crate::modules::{limit_conn, nchan, realip};
use crate::request::arena::Span;
use crate::request::headers::{HeaderLine, KnownHeader};
use crate::request::{Method, Version};
use crate::snapshot::{LocationId, ServerId, ThreadSnapshot};
use crate::status::requests::Underway;
use crate::upstream::Attempts;
use crate::worker::departure::Dictionary;
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::rc::Rc;
use wire::proxy_protocol::Header;

/// A request that is put aside for long. Given up by a shutdown that takes too long, it has its log line.
pub struct Packed {
    /// None: it has been unpacked.
    snapshot: Option<Rc<ThreadSnapshot>>,
    bytes: Box<[u8]>,
    /// What few requests have, and what cannot be written down.
    rest: Option<Box<Rest>>,
    /// Bytes of the answer that were written.
    pub sent: u64,
    /// Bytes that have come.
    pub received: u64,
    location: LocationId,
    server: ServerId,
}

/// What few requests have, and what cannot be written down.
pub struct Rest {
    contexts: Contexts,
    attempts: Option<Box<Attempts>>,
    proxy_protocol: Option<Rc<Header>>,
    tls: Option<Rc<Facts>>,
}

/// What [`Packed::unpack`] gives: the request, its connection, and whose that is.
pub struct Unpacked {
    /// What was kept.
    pub kept: Box<Kept>,
    /// Its connection.
    pub socket: Socket,
    /// The connection's client, which may be another than the request's (`realip`).
    pub client: Rc<Client>,
}

/// What a packed request is made of, for who packs it once more, with what belongs to it.
pub struct Pieces {
    /// The snapshot it began with.
    pub snapshot: Rc<ThreadSnapshot>,
    /// Its server.
    pub server: ServerId,
    /// Its location.
    pub location: LocationId,
    /// What is written down, in few bytes.
    pub bytes: Box<[u8]>,
    /// What is not.
    pub rest: Option<Box<Rest>>,
    /// See [`Packed::sent`].
    pub sent: u64,
    /// See [`Packed::received`].
    pub received: u64,
}

/// What a request's log lines say it is action, by number.
const ACTIONS: [&str; 8] = [
    action::NOTHING,
    action::WAITING,
    action::KEPT,
    action::READING_LINE,
    action::READING_HEADERS,
    action::SENDING_RESPONSE,
    action::SENDING_TO_CLIENT,
    action::TUNNELING,
];
/// Texts of a request that are written one after the other.
const TEXTS: usize = 11;
/// What a record has beside what is packed, where little is said.
const ROOM: usize = 128;
const WHOLE: &str = "what was packed here is whole";

impl Packed {
    /// Packs what is kept of a request that counts as under way.
    pub fn of(mut kept: Box<Kept>) -> Packed {
        let parts = kept.0.take().expect(super::HERE);
        let mut w = Writer::default();
        parts.write(&mut w);
        let Parts {
            snapshot, client, mut contexts, attempts, underway, server, location, sent, request_length, ..
        } = parts;
        contexts.realip = None;
        contexts.nchan = None;
        let proxy_protocol = client.proxy_protocol.get().cloned();
        let rest = Rest { contexts, attempts, proxy_protocol, tls: client.tls.get().cloned() };
        let rest = (!rest.is_blank()).then(|| Box::new(rest));
        underway.stays();
        let bytes = memo::compress(&w.bytes);
        Packed { snapshot: Some(snapshot), bytes, rest, sent, received: request_length, location, server }
    }

    /// Takes it apart. It counts as under way as long as its pieces are there; [`Packed::of_pieces`] is the same backwards.
    pub fn apart(mut self) -> Pieces {
        let snapshot = self.snapshot.take().expect("it is unpacked once, when it goes");
        let (bytes, rest) = (std::mem::take(&mut self.bytes), self.rest.take());
        let Packed { server, location, sent, received, .. } = &self;
        Pieces { snapshot, server: *server, location: *location, bytes, rest, sent: *sent, received: *received }
    }

    /// See [`Packed::apart`].
    pub fn of_pieces(pieces: Pieces) -> Packed {
        let Pieces { snapshot, server, location, bytes, rest, sent, received } = pieces;
        Packed { snapshot: Some(snapshot), bytes, rest, sent, received, location, server }
    }

    /// The snapshot it began with.
    pub fn snapshot(&self) -> &Rc<ThreadSnapshot> {
        self.snapshot.as_ref().expect("it is unpacked once, when it goes")
    }

    /// The level whose values hold for it.
    pub fn location(&self) -> LocationId {
        self.location
    }

    /// Its tries at upstreams.
    pub fn attempts(&self) -> Option<&Attempts> {
        self.rest.as_ref()?.attempts.as_deref()
    }

    /// See [`Packed::attempts`].
    pub fn set_attempts(&mut self, attempts: Attempts) {
        self.rest.get_or_insert_default().attempts = Some(Box::new(attempts));
    }

    /// What it takes, bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Packed>() + self.bytes.len() + self.rest.as_ref().map_or(0, |rest| rest.bytes())
    }

    /// The request's parts again, on its connection.
    pub fn unpack(mut self, socket: Socket) -> Unpacked {
        self.take(socket).expect(WHOLE)
    }

    fn take(&mut self, socket: Socket) -> Option<Unpacked> {
        let packed = std::mem::take(&mut self.bytes);
        memo::with_text(&packed, |text| self.read(text, socket))?
    }

    fn read(&mut self, text: &[u8], socket: Socket) -> Option<Unpacked> {
        let snapshot = self.snapshot.take()?;
        let rest = self.rest.take().map(|rest| *rest);
        let Rest { contexts, attempts, proxy_protocol, tls } = rest.unwrap_or_default();
        let mut r = Reader { bytes: text, end: 0 };
        let (client, of_request, realip) = read_client(&mut r, &socket, proxy_protocol, tls, |number| number as usize)?;
        let underway = Underway::counted(snapshot.clone(), self.server);
        let mut parts = read_parts(&mut r, snapshot, of_request, underway)?;
        (parts.server, parts.location) = (self.server, self.location);
        (parts.sent, parts.request_length) = (self.sent, self.received);
        let nchan = r.flag()?.then(|| nchan::Context::read(&mut r)).flatten().map(Rc::new);
        parts.contexts = Contexts { realip, nchan, ..contexts };
        parts.attempts = attempts;
        Some(Unpacked { kept: Box::new(Kept(Some(parts))), socket, client })
    }
}

impl Packed {
    /// All of it for another process. None: there is something that cannot be written down.
    pub fn travel(&self) -> Option<heir::Writer> {
        if self.rest.as_ref().is_some_and(|rest| !rest.may_go()) {
            return None;
        }
        let mut w = heir::Writer::with_room(&[], ROOM + self.bytes.len());
        w.number(self.snapshot().generation);
        w.number(self.server.0.into());
        w.number(self.location.0.into());
        w.number(self.sent);
        w.number(self.received);
        w.bytes(&self.bytes);
        let places = self.rest.as_ref().and_then(|rest| rest.contexts.limit_conn.as_ref());
        match places {
            Some(places) => places.write(&mut w),
            None => limit_conn::Context::default().write(&mut w),
        }
        let facts = self.rest.as_ref().and_then(|rest| rest.tls.as_ref());
        w.flag(facts.is_some());
        facts.iter().for_each(|facts| facts.write(&mut w));
        write_header(self.rest.as_ref().and_then(|rest| rest.proxy_protocol.as_deref()), &mut w);
        Some(w)
    }

    /// What another process has to know to read what [`Packed::travel`] wrote; nothing, where it is packed with no dictionary.
    pub fn dictionary(&self) -> Option<Dictionary> {
        memo::dictionary(&self.bytes).map(|(number, text)| Dictionary { number, text })
    }

    /// What [`Packed::travel`] of another process wrote behind its generation; `terms` says what that meant by its numbers. None: it was
    /// something else, or its server, its location, or its address is not here.
    pub fn arrive(r: &mut heir::Reader<'_>, terms: &heir::Terms, snapshot: &Rc<ThreadSnapshot>) -> Option<Packed> {
        let server = ServerId(terms.server(r.number()?)?);
        let location = LocationId(terms.location(r.number()?)?);
        let (sent, received) = (r.number()?, r.number()?);
        let packed = r.bytes()?;
        let places = limit_conn::Context::read(r, snapshot)?;
        let tls = if r.flag()? { Some(Rc::new(Facts::read(r, terms)?)) } else { None };
        let proxy_protocol = read_header(r)?;
        let limit_conn = (!places.is_blank()).then(|| Box::new(places));
        let contexts = Contexts { limit_conn, ..Rest::default().contexts };
        let arrived =
            Arrived { server, location, sent, received, rest: Rest { contexts, attempts: None, proxy_protocol, tls } };
        let (number, body) = packed.split_first()?;
        let Some((dictionary, here)) = terms.dictionary(*number, memo::adopt) else {
            return (*number == memo::NONE).then(|| arrived.read(body, terms, snapshot))?;
        };
        let Some(here) = here else {
            return arrived.read(&memo::decompress_by(dictionary, packed)?, terms, snapshot);
        };
        let mut bytes = Box::<[u8]>::from(packed);
        bytes[0] = here;
        // Where both sides mean the same by their numbers, what is packed stays so.
        match memo::with_text(&bytes, |text| check(text, terms))?? {
            Sound::AsItIs => Some(arrived.keep(bytes, snapshot)),
            Sound::Renumbered => memo::with_text(&bytes, |text| arrived.read(text, terms, snapshot))?,
        }
    }
}

/// What has come with a packed request.
struct Arrived {
    server: ServerId,
    location: LocationId,
    sent: u64,
    received: u64,
    rest: Rest,
}

impl Arrived {
    fn keep(self, bytes: Box<[u8]>, snapshot: &Rc<ThreadSnapshot>) -> Packed {
        let Arrived { server, location, sent, received, rest } = self;
        Underway::arrived(snapshot.clone(), server).stays();
        let rest = (!rest.is_blank()).then(|| Box::new(rest));
        Packed { snapshot: Some(snapshot.clone()), bytes, rest, sent, received, location, server }
    }

    /// Reads the text, and packs it again with the numbers of this process.
    fn read(self, text: &[u8], terms: &heir::Terms, snapshot: &Rc<ThreadSnapshot>) -> Option<Packed> {
        let Arrived { server, location, sent, received, rest } = self;
        let Rest { contexts, proxy_protocol, tls, .. } = rest;
        let mut r = Reader { bytes: text, end: 0 };
        let mut listener = None;
        let place_of = |number| {
            listener = terms.listener(number);
            listener.unwrap_or(0) as usize
        };
        let (_, of_request, realip) = read_client(&mut r, &Socket::none(), proxy_protocol, tls, place_of)?;
        listener?;
        let underway = Underway::arrived(snapshot.clone(), server);
        let mut parts = read_parts(&mut r, snapshot.clone(), of_request, underway)?;
        (parts.server, parts.location) = (server, location);
        (parts.sent, parts.request_length) = (sent, received);
        let nchan = r.flag()?.then(|| nchan::Context::read(&mut r)).flatten().map(Rc::new);
        parts.contexts = Contexts { realip, nchan, ..contexts };
        let values = parts.values.iter().filter_map(|(number, value)| Some((terms.variable(*number)?, *value)));
        parts.values = values.collect();
        (r.bytes.is_empty() && parts.is_sound()).then(|| Packed::of(Box::new(Kept(Some(parts)))))
    }
}

/// What there is to do with a text that can be read.
#[derive(Debug, PartialEq, Eq)]
enum Sound {
    /// Nothing: its numbers mean the same here.
    AsItIs,
    /// Some of its numbers are others here.
    Renumbered,
}

/// Looks whether a text can be read, without making anything of it: as [`read_client`], [`read_parts`] and [`Parts::is_sound`] do, in their order. None: it
/// cannot.
fn check(text: &[u8], terms: &heir::Terms) -> Option<Sound> {
    let mut r = Reader { bytes: text, end: 0 };
    let r = &mut r;
    for _ in 0..4 {
        r.number()?;
    }
    let listener = r.number()?;
    let mut is_same = u64::from(terms.listener(listener)?) == listener;
    r.flag()?;
    r.pass_address()?;
    for _ in 0..2 {
        if r.flag()? {
            r.pass_address()?;
        }
    }
    r.number()?;
    r.bytes()?;
    for _ in 0..3 {
        r.number()?;
    }
    ACTIONS.get(usize::try_from(r.number()?).ok()?)?;
    r.number()?;
    let most = r.bytes()?.len();
    let lies = |span: Option<Span>| span.is_none_or(|span| span.end as usize <= most).then_some(());
    for _ in 0..TEXTS {
        lies(r.span()?)?;
    }
    for _ in 0..r.number()? {
        lies(Some(r.span()??))?;
        lies(Some(r.span()??))?;
    }
    for _ in 0..r.number()? {
        let number = u32::try_from(r.number()?).ok()?;
        is_same &= terms.variable(number) == Some(number);
        lies(r.span()?)?;
    }
    for _ in 0..r.number()? {
        lies(r.span()?)?;
    }
    for _ in 0..r.number()? {
        lies(Some(r.span()??))?;
        lies(Some(r.span()??))?;
    }
    if r.flag()? {
        nchan::Context::read(r)?;
    }
    r.bytes.is_empty().then_some(if is_same { Sound::AsItIs } else { Sound::Renumbered })
}

impl Kept {
    /// Whether all of it can be written down for another process.
    pub fn may_go(&self) -> bool {
        self.is_counted() && self.contexts.may_go()
    }
}

impl Contexts {
    /// What programs and engines keep of a request is theirs alone. A span that is not told is less of a loss than the connection.
    fn may_go(&self) -> bool {
        self.lua.is_none() && self.js.is_none() && self.modsecurity.is_none()
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        let Some(snapshot) = self.snapshot.clone() else { return };
        match crate::worker::cutting() {
            // What is kept has its log line when it is dropped now.
            true => drop(self.take(Socket::none())),
            false => drop(Underway::counted(snapshot, self.server)),
        }
    }
}

impl Rest {
    /// What it takes, bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Rest>() + self.tls.as_ref().map_or(0, |facts| facts.bytes())
    }

    fn may_go(&self) -> bool {
        self.contexts.may_go()
    }

    fn is_blank(&self) -> bool {
        let Contexts { realip, limit_conn, limit_req, otel, nchan, lua, modsecurity, js } = &self.contexts;
        let none = realip.is_none() && limit_conn.is_none() && limit_req.is_blank() && otel.is_none();
        let none = none && nchan.is_none() && lua.is_none() && modsecurity.is_none() && js.is_none();
        none && self.attempts.is_none() && self.proxy_protocol.is_none() && self.tls.is_none()
    }
}

impl Default for Rest {
    fn default() -> Rest {
        let contexts = Contexts {
            realip: None,
            limit_conn: None::<Box<limit_conn::Context>>,
            limit_req: Default::default(),
            otel: None,
            nchan: None,
            lua: None,
            modsecurity: None,
            js: None,
        };
        Rest { contexts, attempts: None, proxy_protocol: None, tls: None }
    }
}

impl Parts {
    /// Whether all texts lie where they may. For what comes from elsewhere.
    fn is_sound(&self) -> bool {
        let lies = |span: &Span| span.start <= span.end && span.end as usize <= self.bytes.len();
        let own = [self.method_name, self.line, self.target, self.uri, self.args, self.scheme, self.host, self.id];
        let more = [self.content_type, self.charset, self.protocol];
        own.iter().chain(&more).flatten().all(lies)
            && self.headers.iter().all(|line| lies(&line.name) && lies(&line.value))
            && self.values.iter().filter_map(|(_, value)| value.as_ref()).all(lies)
            && self.captures.iter().flatten().all(lies)
            && self.answer.iter().all(|(name, value, _)| lies(name) && lies(value))
    }

    fn write(&self, w: &mut Writer) {
        // What differs between requests stands first, what is alike behind it.
        let client = &self.client;
        w.number(client.number);
        w.number(client.started_ms);
        w.number(self.started_ms.wrapping_sub(client.started_ms));
        w.number(client.requests.get());
        w.number(client.listener as u64);
        w.flag(client.debug.get());
        w.address(&client.remote.borrow());
        w.optional(client.local.borrow().as_deref(), Writer::address);
        w.optional(self.contexts.realip.as_deref(), Writer::address);
        w.number(self.header_size);
        w.bytes(&self.early);
        w.number(u64::from(self.status));
        w.number(u64::from(self.version.0));
        w.number(u64::from(self.request_port.map_or(0, |port| u32::from(port) + 1)));
        let action = ACTIONS.iter().position(|d| *d == self.action).unwrap_or(0);
        w.number(action as u64);
        self.flags.write(w);
        w.bytes(&self.bytes);
        let spans = [self.method_name, self.line, self.target, self.uri, self.args, self.scheme, self.host, self.id];
        spans.into_iter().for_each(|span| w.span(span));
        [self.content_type, self.charset, self.protocol].into_iter().for_each(|span| w.span(span));
        w.number(self.headers.len() as u64);
        for line in &self.headers {
            w.span(Some(line.name));
            w.span(Some(line.value));
        }
        w.number(self.values.len() as u64);
        for (number, value) in &self.values {
            w.number(u64::from(*number));
            w.span(*value);
        }
        w.number(self.captures.len() as u64);
        self.captures.iter().for_each(|span| w.span(*span));
        w.number(self.answer.len() as u64);
        for (name, value, _) in &self.answer {
            w.span(Some(*name));
            w.span(Some(*value));
        }
        w.flag(self.contexts.nchan.is_some());
        if let Some(context) = &self.contexts.nchan {
            context.write(w);
        }
    }
}

fn read_client(
    r: &mut Reader<'_>,
    socket: &Socket,
    proxy_protocol: Option<Rc<Header>>,
    tls: Option<Rc<Facts>>,
    place_of: impl FnOnce(u64) -> usize,
) -> Option<(Rc<Client>, RequestClient, Option<Rc<Address>>)> {
    let (number, connected_ms) = (r.number()?, r.number()?);
    let started_ms = connected_ms.wrapping_add(r.number()?);
    let (requests, listener, debug) = (r.number()?, place_of(r.number()?), r.flag()?);
    let (remote, local, realip) = (r.address()?, r.optional(Reader::address)?, r.optional(Reader::address)?);
    let own = realip.clone().unwrap_or_else(|| remote.clone());
    let client = Rc::into_inner(Client::new(number, own, listener, socket.handle()))?;
    let client = Rc::new(Client { started_ms: connected_ms, local: RefCell::new(local.map(Box::new)), ..client });
    client.requests.set(requests);
    client.debug.set(debug);
    if let Some(header) = proxy_protocol {
        let _ = client.proxy_protocol.set(header);
    }
    if let Some(facts) = tls {
        let _ = client.tls.set(facts);
    }
    let seen = match realip {
        None => client.clone(),
        Some(_) => realip::replaced(&client, remote),
    };
    Some((client, RequestClient { seen, started_ms }, realip.map(Rc::new)))
}

/// The client as the request sees it, and when that began.
struct RequestClient {
    seen: Rc<Client>,
    started_ms: u64,
}

fn read_parts(
    r: &mut Reader<'_>,
    snapshot: Rc<ThreadSnapshot>,
    client: RequestClient,
    underway: Underway,
) -> Option<Parts> {
    let RequestClient { seen: client, started_ms } = client;
    let header_size = r.number()?;
    let early = r.bytes()?.to_vec();
    let (status, version) = (r.number()? as u16, Version(r.number()? as u16));
    let request_port = r.number()?.checked_sub(1).map(|port| port as u16);
    let action = ACTIONS.get(r.number()? as usize).copied()?;
    let flags = Flags::read(r)?;
    let bytes: Box<[u8]> = r.bytes()?.into();
    let [method_name, line, target, uri, args, scheme, host, id] = r.spans()?;
    let [content_type, charset, protocol] = r.spans()?;
    let known = |name: Span| KnownHeader::find(bytes.get(name.start as usize..name.end as usize).unwrap_or_default());
    let headers = r.list(|r| {
        let (name, value) = (r.span()??, r.span()??);
        Some(HeaderLine { name, value, known: known(name) })
    })?;
    let values = r.list(|r| Some((r.number()? as u32, r.span()?)))?;
    let captures = r.list(Reader::span)?;
    let answer = r.list(|r| {
        let (name, value) = (r.span()??, r.span()??);
        Some((name, value, known(name)))
    })?;
    let text = |span: Span| bytes.get(span.start as usize..span.end as usize);
    let method = method_name.and_then(text).map_or(Method::Other, Method::of);
    Some(Parts {
        snapshot,
        client,
        action,
        headers,
        values,
        captures,
        answer,
        server: ServerId(0),
        location: LocationId(0),
        // A fixed text of the program, where it was not the client's.
        method,
        version,
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
        protocol,
        request_port,
        status,
        flags,
        started_ms,
        request_length: 0,
        contexts: Rest::default().contexts,
        attempts: None,
        underway,
        early,
        sent: 0,
        header_size,
        bytes,
    })
}

impl Flags {
    fn write(&self, w: &mut Writer) {
        let Flags { plain_uri, valid_target, valid_location, internal, header_sent, keepalive, pipelined, logged } =
            *self;
        let all = [plain_uri, valid_target, valid_location, internal, header_sent, keepalive, pipelined, logged];
        w.number(all.iter().fold(0, |bits, flag| bits << 1 | u64::from(*flag)));
    }

    fn read(r: &mut Reader<'_>) -> Option<Flags> {
        let bits = r.number()?;
        let at = |place: u32| bits >> (7 - place) & 1 == 1;
        Some(Flags {
            plain_uri: at(0),
            valid_target: at(1),
            valid_location: at(2),
            internal: at(3),
            header_sent: at(4),
            keepalive: at(5),
            pipelined: at(6),
            logged: at(7),
        })
    }
}

/// Writes numbers in as few bytes as they take, and places by how far they are from the one before.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
    end: u32,
}

impl Writer {
    /// A number: seven bits a byte, the lowest first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Yes or no.
    pub fn flag(&mut self, flag: bool) {
        self.bytes.push(u8::from(flag));
    }

    /// Bytes with their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn optional<T: ?Sized>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Writer, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn span(&mut self, span: Option<Span>) {
        let Some(span) = span else { return self.number(0) };
        let distance = i64::from(span.start) - i64::from(self.end);
        self.number((distance << 1 ^ distance >> 63) as u64 + 1);
        self.number(u64::from(span.end - span.start));
        self.end = span.end;
    }

    fn address(&mut self, address: &Address) {
        match address {
            Address::Inet(SocketAddr::V4(a)) => {
                self.number(4);
                self.bytes.extend_from_slice(&a.ip().octets());
                self.bytes.extend_from_slice(&a.port().to_be_bytes());
            }
            Address::Inet(SocketAddr::V6(a)) => {
                self.number(6);
                self.bytes.extend_from_slice(&a.ip().octets());
                self.bytes.extend_from_slice(&a.port().to_be_bytes());
            }
            Address::Unix(path) => {
                self.number(0);
                self.bytes(path.as_os_str().as_bytes());
            }
        }
    }
}

/// Reads what a [`Writer`] wrote; none where it did not.
pub struct Reader<'b> {
    bytes: &'b [u8],
    end: u32,
}

impl<'b> Reader<'b> {
    /// See [`Writer::number`].
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// See [`Writer::flag`].
    pub fn flag(&mut self) -> Option<bool> {
        self.take(1).map(|byte| byte[0] != 0)
    }

    /// See [`Writer::bytes`].
    pub fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len)
    }

    /// As many as were written, each by `read`.
    pub fn list<T, L: FromIterator<T>>(&mut self, mut read: impl FnMut(&mut Reader<'b>) -> Option<T>) -> Option<L> {
        let count = self.number()?;
        (0..count).map(|_| read(self)).collect()
    }

    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn optional<T>(&mut self, read: impl FnOnce(&mut Reader<'b>) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { Some(Some(read(self)?)) } else { Some(None) }
    }

    fn span(&mut self) -> Option<Option<Span>> {
        let Some(zigzag) = self.number()?.checked_sub(1) else { return Some(None) };
        let distance = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let start = u32::try_from(i64::from(self.end) + distance).ok()?;
        let end = start.checked_add(u32::try_from(self.number()?).ok()?)?;
        self.end = end;
        Some(Some(Span { start, end }))
    }

    fn spans<const N: usize>(&mut self) -> Option<[Option<Span>; N]> {
        let mut all = [None; N];
        for span in &mut all {
            *span = self.span()?;
        }
        Some(all)
    }

    /// Passes over what [`Reader::address`] reads.
    fn pass_address(&mut self) -> Option<()> {
        match self.number()? {
            4 => self.take(6),
            6 => self.take(18),
            _ => self.bytes(),
        }
        .map(drop)
    }

    fn address(&mut self) -> Option<Address> {
        fn port(bytes: &[u8]) -> Option<u16> {
            Some(u16::from_be_bytes(bytes.try_into().ok()?))
        }
        let ip: IpAddr = match self.number()? {
            4 => <[u8; 4]>::try_from(self.take(4)?).ok()?.into(),
            6 => <[u8; 16]>::try_from(self.take(16)?).ok()?.into(),
            _ => return Some(Address::Unix(std::ffi::OsString::from_vec(self.bytes()?.to_vec()).into())),
        };
        Some(Address::Inet(SocketAddr::new(ip, port(self.take(2)?)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let span = |start, end| Some(Span { start, end });
        let spans = [span(5, 9), None, span(0, 70_000), span(69_999, 69_999)];
        let addresses = ["1.2.3.4:80", "[2001:db8::1]:65535"].map(|a| Address::Inet(a.parse().unwrap()));
        let mut w = Writer::default();
        [0, 127, 128, u64::MAX].into_iter().for_each(|n| w.number(n));
        w.bytes(b"text");
        spans.into_iter().for_each(|s| w.span(s));
        addresses.iter().for_each(|a| w.address(a));
        w.address(&Address::Unix("/a/b".into()));
        w.optional(None, Writer::address);
        let mut r = Reader { bytes: &w.bytes, end: 0 };
        assert_eq!([(); 4].map(|()| r.number().unwrap()), [0, 127, 128, u64::MAX]);
        assert_eq!(r.bytes(), Some(&b"text"[..]));
        assert_eq!(r.spans::<4>(), Some(spans));
        assert_eq!([(); 2].map(|()| r.address().unwrap()), addresses);
        assert_eq!(r.address(), Some(Address::Unix("/a/b".into())));
        assert_eq!(r.optional(Reader::address), Some(None));
        assert_eq!(r.number(), None);
    }

    #[test]
    fn what_is_packed_is_small() {
        assert!(size_of::<Packed>() <= 56, "{}", size_of::<Packed>());
    }

    /// A request's text, as [`Parts::write`] has it.
    fn text(listener: u64, variable: u64) -> Vec<u8> {
        let span = |start, end| Some(Span { start, end });
        let mut w = Writer::default();
        [7, 1_790_000_000_000, 3, 1, listener].into_iter().for_each(|n| w.number(n));
        w.flag(false);
        w.address(&Address::Inet("192.0.2.1:4000".parse().unwrap()));
        w.optional(Some(&Address::Unix("/a".into())), Writer::address);
        w.optional(None, Writer::address);
        w.number(80);
        w.bytes(b"early");
        [200, 11, 0, 1, 0b1010_0001].into_iter().for_each(|n| w.number(n));
        w.bytes(b"GET /sub HTTP/1.1 Host: a");
        let spans = [span(0, 3), span(0, 17), span(4, 8), span(4, 8), None, None, span(24, 25), None];
        spans.into_iter().chain([None; 3]).for_each(|span| w.span(span));
        w.number(1);
        [span(18, 22), span(24, 25)].into_iter().for_each(|span| w.span(span));
        w.number(1);
        w.number(variable);
        w.span(span(4, 8));
        w.number(2);
        [None, span(0, 0)].into_iter().for_each(|span| w.span(span));
        w.number(1);
        [span(18, 22), span(24, 25)].into_iter().for_each(|span| w.span(span));
        w.flag(true);
        nchan::Context::default().write(&mut w);
        w.bytes
    }

    fn snapshot() -> Rc<ThreadSnapshot> {
        use crate::config::read::{Which, read};
        let mut files = conf::Bundle::default();
        files.add_file("/c/nginx.conf", "events {} http { server { listen 127.0.0.1:8080; } }");
        let which = Which { file: "/c/nginx.conf".into(), prefix: "/c".into(), globals: Vec::new(), error_log: None };
        let snapshot = read(&files, &which, 1).snapshot.expect("nothing is wrong with it");
        Rc::new(ThreadSnapshot::new(std::sync::Arc::new(snapshot)))
    }

    /// What another process means by its numbers, where this one has these listeners and variables.
    fn terms(listeners: &[&'static [u8]], variables: &[&'static [u8]]) -> heir::Terms {
        let table = |listeners: &[&'static [u8]], variables: &[&'static [u8]]| heir::Table {
            listeners: listeners.to_vec(),
            variables: variables.to_vec(),
            servers: vec![b"a"],
            locations: vec![b"/"],
            ..heir::Table::default()
        };
        heir::Terms::of(&table(&[b"*:80", b"*:81"], &[b"a", b"b"]), &table(listeners, variables))
    }

    fn arrived() -> Arrived {
        Arrived { server: ServerId(0), location: LocationId(0), sent: 5, received: 6, rest: Rest::default() }
    }

    fn text_of(packed: &Packed) -> Vec<u8> {
        memo::with_text(&packed.bytes, <[u8]>::to_vec).unwrap()
    }

    #[test]
    fn what_is_found_sound_can_be_read_whatever_the_bytes_are() {
        let (snapshot, same) = (snapshot(), terms(&[b"*:80", b"*:81"], &[b"a", b"b"]));
        let whole = text(1, 1);
        assert_eq!(check(&whole, &same), Some(Sound::AsItIs));
        assert_eq!(text_of(&arrived().read(&whole, &same, &snapshot).unwrap()), whole);
        let (mut sound, mut unsound) = (0, 0);
        for at in 0..whole.len() {
            assert_eq!(check(&whole[..at], &same), None);
            for byte in (0..8).map(|bit| whole[at] ^ 1 << bit) {
                let mut other = whole.clone();
                other[at] = byte;
                match check(&other, &same) {
                    None => unsound += 1,
                    Some(found) => {
                        sound += 1;
                        let read = arrived().read(&other, &same, &snapshot);
                        assert!(read.is_some(), "{found:?}, byte {at} is {byte}");
                    }
                }
            }
        }
        assert!(sound > 100 && unsound > 100, "{sound} {unsound}");
    }

    #[test]
    fn numbers_that_mean_something_else_here_are_others_in_what_is_packed() {
        let snapshot = snapshot();
        let terms = terms(&[b"*:81", b"*:80"], &[b"b", b"c", b"a"]);
        assert_eq!(check(&text(0, 0), &terms), Some(Sound::Renumbered));
        assert_eq!(text_of(&arrived().read(&text(0, 0), &terms, &snapshot).unwrap()), text(1, 2));
        let gone = self::terms(&[b"*:80"], &[b"a", b"b"]);
        assert_eq!(check(&text(1, 0), &gone), None, "nobody listens there");
        assert!(arrived().read(&text(1, 0), &gone, &snapshot).is_none());
    }

    #[test]
    fn what_has_come_is_kept_as_it_is_packed() {
        let (snapshot, mut same) = (snapshot(), terms(&[b"*:80", b"*:81"], &[b"a", b"b"]));
        let sent = arrived().read(&text(1, 1), &same, &snapshot).unwrap();
        let record = sent.travel().unwrap().done();
        let arrive = |terms: &heir::Terms| {
            let mut r = heir::Reader::new(&record);
            r.number().unwrap();
            Packed::arrive(&mut r, terms, &snapshot)
        };
        let dictionary = sent.dictionary().expect("a first text is a dictionary");
        assert!(arrive(&same).is_none(), "the dictionary was not told");
        same.learn(dictionary.number, &dictionary.text);
        let here = arrive(&same).unwrap();
        assert_eq!((here.sent, here.received), (5, 6));
        assert_eq!(here.bytes, sent.bytes);
        assert_eq!(text_of(&here), text(1, 1));
        let mut others = terms(&[b"*:81", b"*:80"], &[b"b", b"c", b"a"]);
        others.learn(dictionary.number, &dictionary.text);
        assert_eq!(text_of(&arrive(&others).unwrap()), text(0, 0));
        // One that is not taken is of use all the same.
        let mut full = terms(&[b"*:80", b"*:81"], &[b"a", b"b"]);
        full.learn(dictionary.number, &[&dictionary.text[..], b"x"].concat().into());
        assert!(full.dictionary(dictionary.number, |_| None).is_some());
        let by_text = memo::decompress_by(&dictionary.text, &sent.bytes);
        assert_eq!(by_text, Some(text(1, 1)));
    }
}
