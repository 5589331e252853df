//! What callers of the resolver get: addresses, services, names, errors; with each, until when it may be kept.

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tokio::time::Instant;

/// Response code 1 of RFC 1035: the server could not read the query.
pub const FORMAT_ERROR: u16 = 1;
/// Response code 2.
pub const SERVER_FAILURE: u16 = 2;
/// Response code 3, and the answer without records.
pub const NOT_FOUND: u16 = 3;
/// Response code 4.
pub const NOT_IMPLEMENTED: u16 = 4;
/// Response code 5; also given here when too many names are being resolved.
pub const REFUSED: u16 = 5;
/// No answer within the caller's time; the number is that of `ETIMEDOUT`.
pub const TIMED_OUT: u16 = 110;

/// Why a name has no answer. Displays as `3: Host not found`, for `NAME could not be resolved (...)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResolveError {
    /// DNS response code, or `TIMED_OUT`.
    pub code: u16,
    /// nginx's word for the code.
    pub text: &'static str,
    /// Not worth asking again before.
    pub valid_until: Instant,
}

impl ResolveError {
    pub(super) fn new(code: u16, valid_until: Instant) -> Self {
        ResolveError { code, text: code_text(code), valid_until }
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

impl std::error::Error for ResolveError {}

/// nginx's word for a response code.
pub(super) fn code_text(code: u16) -> &'static str {
    match code {
        FORMAT_ERROR => "Format error",
        SERVER_FAILURE => "Server failure",
        NOT_FOUND => "Host not found",
        NOT_IMPLEMENTED => "Unimplemented",
        REFUSED => "Operation refused",
        TIMED_OUT => "Operation timed out",
        _ => "Unknown error",
    }
}

/// The addresses of a name, at least one, shared with the cache; each caller starts at the next one.
#[derive(Clone, Debug)]
pub struct Addresses {
    list: Rc<AddressList>,
    first: usize,
    valid_until: Instant,
}

impl Addresses {
    pub(super) fn new(list: Rc<AddressList>, valid_until: Instant) -> Self {
        let first = list.turn.get() % list.addresses.len();
        list.turn.set(first + 1);
        Addresses { list, first, valid_until }
    }

    /// All addresses, beginning with this caller's.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let (head, tail) = self.list.addresses.split_at(self.first);
        tail.iter().chain(head).copied()
    }

    /// This caller's first address.
    pub fn first(&self) -> IpAddr {
        self.list.addresses[self.first]
    }

    /// How many addresses there are; never zero.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.list.addresses.len()
    }

    /// The earliest expiry on the way to the addresses.
    pub fn valid_until(&self) -> Instant {
        self.valid_until
    }
}

/// Addresses as the cache holds them; never empty.
#[derive(Debug)]
pub(super) struct AddressList {
    pub(super) addresses: Box<[IpAddr]>,
    turn: Cell<usize>,
}

impl AddressList {
    pub(super) fn new(addresses: Vec<IpAddr>) -> Rc<Self> {
        assert!(!addresses.is_empty(), "an address list is made of at least one address");
        Rc::new(AddressList { addresses: addresses.into_boxed_slice(), turn: Cell::new(0) })
    }
}

/// The name of an address.
#[derive(Clone, Debug, PartialEq)]
pub struct HostName {
    /// In lower case, without the last dot.
    pub name: Rc<[u8]>,
    /// When the answer expires.
    pub valid_until: Instant,
}

/// One address of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceAddress {
    /// Address of the target and port of its SRV record.
    pub address: SocketAddr,
    /// The target's name.
    pub name: Rc<[u8]>,
    /// Lower is asked first; what is not of the lowest is backup.
    pub priority: u16,
    /// At least one.
    pub weight: u16,
}

/// A target of a service that could not be resolved, for `NAME could not be resolved (...) while resolving service S of N`.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedTarget {
    /// The target's name.
    pub name: Rc<[u8]>,
    /// Why.
    pub error: ResolveError,
}

/// The addresses of a service, at least one, by priority; targets of one priority begin at a random one, drawn by weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// All addresses of all targets.
    pub addresses: Vec<ServiceAddress>,
    /// Targets without an address.
    pub failed: Vec<FailedTarget>,
    /// The earliest expiry among SRV records and addresses.
    pub valid_until: Instant,
}

/// Why a service has no address, and what was wrong with its targets, if it got that far.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceError {
    /// The error of the whole; `NOT_FOUND` if any target was not found.
    pub error: ResolveError,
    /// The error of each target.
    pub failed: Vec<FailedTarget>,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ServiceError {}

impl From<ResolveError> for ServiceError {
    fn from(error: ResolveError) -> Self {
        ServiceError { error, failed: Vec::new() }
    }
}
