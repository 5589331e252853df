//! The inside of a resolver: starts and repeats queries, matches replies with them, settles them. One per worker thread.
//!
//! ```text
//! lookup -> cached | joined to the query under way | new query -> drive: send, again every 5 s while wanted
//! receive -> reply matched by question and id -> answered | truncated: same message over TCP | settled: cached, callers woken
//! ```
//! Source of the rules: nginx `ngx_resolver.c`.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::Counters;
use super::answer::{AddressList, FORMAT_ERROR, NOT_FOUND, REFUSED, ResolveError, code_text};
use super::cache::{Cache, Looked, MAX_KNOWN};
use super::config::ResolverConfig;
use super::message::{Rejected, Reply, Transport, build_query, record_type};
use super::query::{Ask, AskState, Kind, Known, Query, Record};
use super::transport::{NameServer, ask_over_tcp, error_text};

/// Aliases followed from one name; nginx's number.
pub(super) const MAX_ALIASES: usize = 50;
/// A failure is not asked again before this time, where the caller heeds it; nginx's number.
const FAILURE_VALID: Duration = Duration::from_secs(10);

/// Times of the exchange with a server.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    /// Until an unanswered message is sent again, to the next server.
    pub(super) resend: Duration,
    /// For one exchange over TCP.
    pub(super) tcp: Duration,
}

/// nginx's numbers.
pub(super) const TIMING: Timing = Timing { resend: Duration::from_secs(5), tcp: Duration::from_secs(5) };

/// How grave a line for the error log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gravity {
    /// Servers and networks fail.
    Error,
    /// This machine itself does not let a query out.
    Alert,
}

/// Takes lines for the error log.
pub(super) type Log = Rc<dyn Fn(Gravity, &str)>;

pub(super) struct Engine {
    this: Weak<Engine>,
    config: ResolverConfig,
    pub(super) timing: Timing,
    pub(super) counters: Counters,
    log: Log,
    servers: Vec<NameServer>,
    next_server: Cell<usize>,
    cache: RefCell<Cache>,
    random: RandomState,
    drawn: Cell<u64>,
}

impl Engine {
    pub(super) fn new(config: ResolverConfig, log: Log, timing: Timing) -> Rc<Engine> {
        Rc::new_cyclic(|this| Engine {
            this: this.clone(),
            timing,
            counters: Counters::default(),
            log,
            servers: config.servers.iter().map(|&address| NameServer::new(address)).collect(),
            config,
            next_server: Cell::new(0),
            cache: RefCell::new(Cache::new(Instant::now(), MAX_KNOWN)),
            random: RandomState::new(),
            drawn: Cell::new(0),
        })
    }

    /// A number that others cannot foresee: a keyed hash (SipHash, key from the system) of a counter.
    pub(super) fn random(&self) -> u64 {
        self.drawn.set(self.drawn.get() + 1);
        self.random.hash_one(self.drawn.get())
    }

    /// When a failure may be asked again.
    pub(super) fn failure_valid_until(&self) -> Instant {
        Instant::now() + self.config.valid.unwrap_or(FAILURE_VALID)
    }

    pub(super) fn failure(&self, code: u16) -> ResolveError {
        ResolveError::new(code, self.failure_valid_until())
    }

    /// What the cache knows of a name, aliases followed, without waiting.
    pub(super) fn known(&self, kind: Kind, name: &[u8]) -> Option<Known> {
        let (cache, now) = (self.cache.borrow(), Instant::now());
        let Looked::Known(mut known) = cache.find(kind, name, now) else { return None };
        for _ in 0..MAX_ALIASES {
            let Record::Alias(alias) = &known.record else { return Some(known) };
            let Looked::Known(next) = cache.find(kind, alias, now) else { return None };
            let valid_until = known.valid_until.min(next.valid_until);
            known = Known { valid_until, ..next };
        }
        None
    }

    /// The record of a name, aliases followed, never an alias.
    pub(super) async fn resolve(&self, kind: Kind, name: &[u8]) -> Result<Known, ResolveError> {
        let mut known = self.lookup(kind, name).await?;
        for _ in 0..MAX_ALIASES {
            let Record::Alias(alias) = &known.record else { return Ok(known) };
            let next = self.lookup(kind, alias).await?;
            let valid_until = known.valid_until.min(next.valid_until);
            known = Known { valid_until, ..next };
        }
        match known.record {
            Record::Alias(_) => Err(self.failure(NOT_FOUND)),
            _ => Ok(known),
        }
    }

    async fn lookup(&self, kind: Kind, name: &[u8]) -> Result<Known, ResolveError> {
        let found = self.cache.borrow().find(kind, name, Instant::now());
        let query = match found {
            Looked::Known(known) => return Ok(known),
            Looked::Pending(query) => query,
            Looked::Nothing => self.start(kind, name)?,
        };
        query.outcome().await
    }

    fn start(&self, kind: Kind, name: &[u8]) -> Result<Rc<Query>, ResolveError> {
        if self.cache.borrow().is_busy() {
            (self.log)(Gravity::Error, "too many names are being resolved");
            return Err(self.failure(REFUSED));
        }
        let asks = self.asks(kind, name).ok_or_else(|| self.failure(NOT_FOUND))?;
        let server = self.next_server.get();
        self.next_server.set((server + 1) % self.servers.len());
        let query = Query::new(kind, name, asks, server);
        self.cache.borrow_mut().insert(query.clone());
        self.counters.count_request(kind);
        tokio::task::spawn_local(drive(self.this.clone(), query.clone()));
        Ok(query)
    }

    fn asks(&self, kind: Kind, name: &[u8]) -> Option<Vec<Ask>> {
        let types: &[u16] = match kind {
            Kind::Name if !self.config.ipv6 => &[record_type::A],
            Kind::Name if !self.config.ipv4 => &[record_type::AAAA],
            Kind::Name => &[record_type::A, record_type::AAAA],
            Kind::Service => &[record_type::SRV],
            Kind::Pointer => &[record_type::PTR],
        };
        let ask = |&qtype: &u16| {
            let ident = self.random() as u16;
            let message = Rc::from(build_query(ident, name, qtype)?);
            Some(Ask { qtype, ident, message, over_tcp: false, state: AskState::Due, addresses: Vec::new() })
        };
        types.iter().map(ask).collect()
    }

    /// Sends what is due of a query; after a failure at once to the next server, once.
    async fn send_due(&self, query: &Query) {
        for attempt in 0..2 {
            let due: Vec<(usize, Rc<[u8]>, bool)> = {
                let mut asks = query.asks.borrow_mut();
                let due = asks.iter_mut().enumerate().filter(|(_, ask)| ask.state == AskState::Due);
                due.map(|(index, ask)| {
                    ask.state = AskState::Sent;
                    (index, ask.message.clone(), ask.over_tcp)
                })
                .collect()
            };
            let index = query.server.get();
            let mut failed = None;
            for (_, message, over_tcp) in due {
                let sent = self.send(index, message, over_tcp).await;
                failed = failed.or(sent.err());
            }
            let Some(error) = failed else { return };
            self.log_socket(index, "send()", &error);
            self.servers[index].close_udp();
            if attempt == 0 {
                query.turn_to_next_server(self.servers.len());
            }
        }
    }

    async fn send(&self, index: usize, message: Rc<[u8]>, over_tcp: bool) -> io::Result<()> {
        let server = &self.servers[index];
        if over_tcp {
            tokio::task::spawn_local(ask_over_tcp(self.this.clone(), index, server.address, message));
            return Ok(());
        }
        server.udp(&self.this, index)?.send(&message).await.map(drop)
    }

    /// A socket of a server broke: its queries go to the other servers at once, each at most once per resend.
    pub(super) fn server_failed(&self, index: usize, call: &str, error: &io::Error) {
        self.log_socket(index, call, error);
        let affected = self.cache.borrow().all_pending();
        for query in affected.iter().filter(|query| query.server.get() == index) {
            if query.failovers.get() + 1 < self.servers.len() {
                query.failovers.set(query.failovers.get() + 1);
                query.turn_to_next_server(self.servers.len());
                query.wake.notify_one();
            }
        }
    }

    /// The reader of a server's UDP socket gives up.
    pub(super) fn udp_failed(&self, index: usize, error: &io::Error) {
        self.servers[index].close_udp();
        self.server_failed(index, "recv()", error);
    }

    fn log_socket(&self, index: usize, call: &str, error: &io::Error) {
        let address = self.servers[index].address;
        // A network that cannot be reached is everyday; what this machine itself forbids is not (`ngx_connection_error`).
        let gravity = if error.raw_os_error() == Some(libc::EPERM) { Gravity::Alert } else { Gravity::Error };
        (self.log)(gravity, &format!("{call} failed {} while resolving, resolver: {address}", error_text(error)));
    }

    /// The messages under way for a host name.
    #[cfg(test)]
    pub(super) fn pending_messages(&self, name: &[u8]) -> Vec<Rc<[u8]>> {
        let query = self.cache.borrow().pending(Kind::Name, name).expect("the test has started the query");
        query.asks.borrow().iter().map(|ask| ask.message.clone()).collect()
    }

    /// Takes a message from a server.
    pub(super) fn receive(&self, message: &[u8], transport: Transport) {
        let reply = match Reply::parse(message, transport) {
            Ok(reply) => reply,
            Err(Rejected::Text(text)) => return (self.log)(Gravity::Error, &text),
            Err(Rejected::Code { code, ident }) => return self.log_code(code, ident),
        };
        if let Err(text) = self.accept(&reply) {
            (self.log)(Gravity::Error, &text);
        }
    }

    /// A format error is not believed: it may lack the question, and the query is sent again in time.
    fn log_code(&self, code: u16, ident: u16) {
        self.counters.count_response(code);
        let text = code_text(code);
        let of_query =
            |query: &&Rc<Query>| query.kind == Kind::Name && query.asks.borrow().iter().any(|ask| ask.ident == ident);
        let pending = if code == FORMAT_ERROR { self.cache.borrow().all_pending() } else { Vec::new() };
        match pending.iter().find(of_query) {
            Some(query) => {
                let name = query.name.escape_ascii();
                (self.log)(Gravity::Error, &format!("DNS error ({code}: {text}), query id:{ident}, name:\"{name}\""));
            }
            None => (self.log)(Gravity::Error, &format!("DNS error ({code}: {text}), query id:{ident}")),
        }
    }

    /// Finds the query of a reply and settles or advances it. The error is what to log; the query then goes on.
    fn accept(&self, reply: &Reply<'_>) -> Result<(), Cow<'static, str>> {
        let kind = match reply.qtype {
            record_type::A | record_type::AAAA => Kind::Name,
            record_type::SRV => Kind::Service,
            record_type::PTR if is_arpa(&reply.question) => Kind::Pointer,
            record_type::PTR => return Err("invalid in-addr.arpa or ip6.arpa name in DNS response".into()),
            other => return Err(format!("unknown query type {other} in DNS response").into()),
        };
        let name = reply.question.escape_ascii();
        let unexpected = || format!("unexpected DNS response for {name}");
        let query = self.cache.borrow().pending(kind, &reply.question).ok_or_else(unexpected)?;
        let asked = |ask: &Ask| ask.qtype == reply.qtype && ask.state != AskState::Answered;
        let ask = query.asks.borrow().iter().position(asked).ok_or_else(unexpected)?;
        let (ident, over_tcp) = {
            let asks = query.asks.borrow();
            (asks[ask].ident, asks[ask].over_tcp)
        };
        if reply.truncated && over_tcp {
            return Ok(());
        }
        if reply.ident != ident {
            return Err(format!("wrong ident {} in DNS response for {name}, expect {ident}", reply.ident).into());
        }
        if reply.truncated {
            self.turn_to_tcp(&query, ask);
            return Ok(());
        }
        self.counters.count_response(reply.code);
        match kind {
            Kind::Name => self.accept_addresses(&query, ask, reply),
            Kind::Service => self.accept_services(&query, reply),
            Kind::Pointer => self.accept_pointer(&query, reply),
        }
    }

    fn turn_to_tcp(&self, query: &Rc<Query>, ask: usize) {
        if !query.wanted() {
            return self.forget(query);
        }
        let mut asks = query.asks.borrow_mut();
        asks[ask].over_tcp = true;
        asks[ask].state = AskState::Due;
        query.wake.notify_one();
    }

    /// A and AAAA are asked together. An error of either is the error of the name; an empty answer of one leaves it to the other;
    /// of aliases without addresses the last one counts.
    fn accept_addresses(&self, query: &Query, ask: usize, reply: &Reply<'_>) -> Result<(), Cow<'static, str>> {
        let code = if reply.code == 0 { query.code.get() } else { reply.code };
        if code != 0 {
            query.answer(ask, Vec::new());
            query.code.set(code);
            if query.all_answered() {
                self.settle(query, Err(self.failure(code)));
            }
            return Ok(());
        }
        let mut alias = None;
        if reply.answers == 0 {
            query.answer(ask, Vec::new());
        } else {
            let found = reply.addresses(&|text| (self.log)(Gravity::Error, text))?;
            if found.addresses.is_empty() && found.alias.is_none() {
                (self.log)(Gravity::Error, "no A or CNAME types in DNS response");
            }
            query.ttl_s.set(query.ttl_s.get().min(found.ttl_s));
            query.answer(ask, found.addresses);
            alias = found.alias;
        }
        if !query.all_answered() {
            return Ok(());
        }
        let addresses: Vec<IpAddr> = query.addresses();
        let record = match alias {
            _ if !addresses.is_empty() => Record::Addresses(AddressList::new(addresses)),
            Some(alias) => Record::Alias(Rc::from(alias)),
            None => {
                self.settle(query, Err(self.failure(NOT_FOUND)));
                return Ok(());
            }
        };
        self.settle_known(query, record, query.ttl_s.get());
        Ok(())
    }

    fn accept_services(&self, query: &Query, reply: &Reply<'_>) -> Result<(), Cow<'static, str>> {
        if self.settle_negative(query, reply) {
            return Ok(());
        }
        let found = reply.services(&|text| (self.log)(Gravity::Error, text))?;
        let record = match found.alias {
            _ if !found.targets.is_empty() => Record::Targets(Rc::from(found.targets)),
            Some(alias) => Record::Alias(Rc::from(alias)),
            None => return Err("no SRV type in DNS response".into()),
        };
        self.settle_known(query, record, found.ttl_s);
        Ok(())
    }

    fn accept_pointer(&self, query: &Query, reply: &Reply<'_>) -> Result<(), Cow<'static, str>> {
        if self.settle_negative(query, reply) {
            return Ok(());
        }
        let (name, ttl_s) =
            reply.pointer(&|text| (self.log)(Gravity::Error, text))?.ok_or("no PTR type in DNS response")?;
        self.settle_known(query, Record::HostName(Rc::from(name)), ttl_s);
        Ok(())
    }

    /// An error, or an answer without records, ends a query of one message.
    fn settle_negative(&self, query: &Query, reply: &Reply<'_>) -> bool {
        let code = if reply.code == 0 && reply.answers == 0 { NOT_FOUND } else { reply.code };
        if code != 0 {
            self.settle(query, Err(self.failure(code)));
        }
        code != 0
    }

    fn settle_known(&self, query: &Query, record: Record, ttl_s: u32) {
        let valid = self.config.valid.unwrap_or(Duration::from_secs(ttl_s.into()));
        self.settle(query, Ok(Known { record, valid_until: Instant::now() + valid }));
    }

    fn settle(&self, query: &Query, outcome: Result<Known, ResolveError>) {
        self.cache.borrow_mut().settle(query, outcome.as_ref().ok().cloned(), Instant::now());
        query.finish(outcome);
    }

    /// Drops a query nobody waits for.
    fn forget(&self, query: &Query) {
        self.settle(query, Err(self.failure(super::TIMED_OUT)));
    }
}

fn is_arpa(name: &[u8]) -> bool {
    name.ends_with(b".in-addr.arpa") || name.ends_with(b".ip6.arpa")
}

/// The task of one query: sends, sends again in time while somebody waits, ends with it.
async fn drive(engine: Weak<Engine>, query: Rc<Query>) {
    loop {
        let Some(held) = engine.upgrade() else { return };
        held.send_due(&query).await;
        let resend = held.timing.resend;
        drop(held);
        let timer = tokio::time::timeout(resend, query.wake.notified()).await;
        if query.finished() {
            return;
        }
        let Some(held) = engine.upgrade() else { return };
        if timer.is_err() {
            if !query.wanted() {
                return held.forget(&query);
            }
            query.failovers.set(0);
            query.turn_to_next_server(held.servers.len());
        }
    }
}
