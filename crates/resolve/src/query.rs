//! One name on its way: the messages that ask for it, what has been answered, and the callers that wait for it.
//! Callers of the same name share one query. It knows no socket; the engine sends what is due and hands in what arrives.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::answer::{AddressList, ResolveError};
use super::message::Target;

/// What a name is asked for; each kind has its own cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A and AAAA of a host name.
    Name,
    /// SRV of a service name.
    Service,
    /// PTR of a name under `in-addr.arpa` or `ip6.arpa`.
    Pointer,
}

/// What the cache knows of a name.
#[derive(Clone, Debug)]
pub(super) enum Record {
    Addresses(Rc<AddressList>),
    /// Ask this name instead.
    Alias(Rc<[u8]>),
    /// By priority, at least one.
    Targets(Rc<[Target]>),
    HostName(Rc<[u8]>),
}

/// A record and its expiry.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) record: Record,
    pub(super) valid_until: Instant,
}

/// One message: `Due -> Sent -> Answered`; back to `Due` to be sent again, over TCP once an answer came truncated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AskState {
    Due,
    Sent,
    Answered,
}

/// One message of a query.
pub(super) struct Ask {
    pub(super) qtype: u16,
    pub(super) ident: u16,
    pub(super) message: Rc<[u8]>,
    pub(super) over_tcp: bool,
    pub(super) state: AskState,
    /// Of an answered A or AAAA.
    pub(super) addresses: Vec<IpAddr>,
}

/// A name being resolved.
pub(super) struct Query {
    pub(super) kind: Kind,
    /// Lower case.
    pub(super) name: Rc<[u8]>,
    /// One, or A and AAAA.
    pub(super) asks: RefCell<Vec<Ask>>,
    /// Index of the name server in use.
    pub(super) server: Cell<usize>,
    /// How often the server was left for a socket error since the last resend.
    pub(super) failovers: Cell<usize>,
    /// Shortest time to live seen, in seconds.
    pub(super) ttl_s: Cell<u32>,
    /// Error of the first of two messages; the other is waited for.
    pub(super) code: Cell<u16>,
    /// Wakes the task that sends.
    pub(super) wake: Notify,
    waiting: Cell<usize>,
    outcome: RefCell<Option<Result<Known, ResolveError>>>,
    done: Notify,
}

impl Query {
    pub(super) fn new(kind: Kind, name: &[u8], asks: Vec<Ask>, server: usize) -> Rc<Query> {
        Rc::new(Query {
            kind,
            name: Rc::from(name),
            asks: RefCell::new(asks),
            server: Cell::new(server),
            failovers: Cell::new(0),
            ttl_s: Cell::new(u32::MAX),
            code: Cell::new(0),
            wake: Notify::new(),
            waiting: Cell::new(0),
            outcome: RefCell::new(None),
            done: Notify::new(),
        })
    }

    /// Waits for the outcome. A caller that goes away early only stops being counted.
    pub(super) async fn outcome(&self) -> Result<Known, ResolveError> {
        let _counted = Waiting::count(&self.waiting);
        loop {
            let done = self.done.notified();
            if let Some(outcome) = &*self.outcome.borrow() {
                return outcome.clone();
            }
            done.await;
        }
    }

    /// Whether anyone still wants the answer.
    pub(super) fn wanted(&self) -> bool {
        self.waiting.get() > 0
    }

    pub(super) fn finished(&self) -> bool {
        self.outcome.borrow().is_some()
    }

    /// Ends the query for everyone.
    pub(super) fn finish(&self, outcome: Result<Known, ResolveError>) {
        *self.outcome.borrow_mut() = Some(outcome);
        self.done.notify_waiters();
        self.wake.notify_one();
    }

    /// Everything unanswered is to be sent again, to the next of `servers`.
    pub(super) fn turn_to_next_server(&self, servers: usize) {
        self.server.set((self.server.get() + 1) % servers);
        for ask in self.asks.borrow_mut().iter_mut() {
            if ask.state == AskState::Sent {
                ask.state = AskState::Due;
            }
        }
    }

    /// Whether every message has its answer.
    pub(super) fn all_answered(&self) -> bool {
        self.asks.borrow().iter().all(|ask| ask.state == AskState::Answered)
    }

    /// The addresses so far, IPv4 before IPv6.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.asks.borrow().iter().flat_map(|ask| ask.addresses.iter().copied()).collect()
    }

    /// Takes the answer of one message.
    pub(super) fn answer(&self, ask: usize, addresses: Vec<IpAddr>) {
        let ask = &mut self.asks.borrow_mut()[ask];
        ask.state = AskState::Answered;
        ask.addresses = addresses;
    }
}

struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn count(waiting: &'a Cell<usize>) -> Self {
        waiting.set(waiting.get() + 1);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
