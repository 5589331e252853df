//! Why a peer is out, in words an operator can act on. Made by checks, by requests that failed and by outlier ejection; read by
//! the error log, the API and the page.

use std::fmt;
use std::net::SocketAddr;

/// What is wrong with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// RST, or no such socket.
    Refused {
        /// Where.
        at: Box<str>,
    },
    /// Nothing came back.
    NoAnswer {
        /// How long was waited, ms.
        waited_ms: u64,
    },
    /// The network said that there is no way: the system's text.
    Unreachable(Box<str>),
    /// This machine could not even try: the system's text.
    Local(Box<str>),
    /// This machine is short of descriptors, ports or memory: nothing was found out about the peer. The system's text.
    Shortage(Box<str>),
    /// The connection was closed before there was an answer.
    Closed,
    /// The connection broke: the system's text.
    Broken(Box<str>),
    /// A status that is none of those that count as well.
    Status {
        /// What it answered.
        status: u16,
        /// What it should: `200-399`.
        wanted: Box<str>,
    },
    /// A header does not match.
    Header(Box<str>),
    /// The body does not match.
    Body(Box<str>),
    /// A variable that is required is empty or 0.
    Variable(Box<str>),
    /// It took the connection, and then too long.
    Slow {
        /// How long it took at least, ms.
        took_ms: u64,
        /// How long it may take, ms.
        limit_ms: u64,
    },
    /// The handshake, or the certificate: the library's text.
    Tls(Box<str>),
    /// What came is not what the protocol says.
    Protocol(Box<str>),
    /// gRPC's health service says no, with its word.
    Grpc(Box<str>),
    /// Too many of its answers are failures.
    Errors {
        /// Failures in a hundred.
        percent: u64,
        /// How many are too many.
        limit: u64,
    },
    /// Much slower than the others.
    Latency {
        /// Its mean time to the header, ms.
        mean_ms: u64,
        /// The median of the group's means, ms.
        median_ms: u64,
    },
    /// It comes and goes.
    Flapping {
        /// Changes of its state.
        changes: usize,
        /// Within so many seconds.
        within_s: u64,
        /// What was wrong last.
        last: Box<Cause>,
    },
}

impl Cause {
    /// One word for programs: the label of a metric.
    pub fn word(&self) -> &'static str {
        match self {
            Cause::Refused { .. } => "refused",
            Cause::NoAnswer { .. } => "no_answer",
            Cause::Unreachable(_) => "unreachable",
            Cause::Local(_) | Cause::Shortage(_) => "local",
            Cause::Closed => "closed",
            Cause::Broken(_) => "broken",
            Cause::Status { .. } => "status",
            Cause::Header(_) => "header",
            Cause::Body(_) => "body",
            Cause::Variable(_) => "variable",
            Cause::Slow { .. } => "slow",
            Cause::Tls(_) => "tls",
            Cause::Protocol(_) => "protocol",
            Cause::Grpc(_) => "grpc",
            Cause::Errors { .. } => "errors",
            Cause::Latency { .. } => "latency",
            Cause::Flapping { .. } => "flapping",
        }
    }
}

/// Nobody else could be meant.
fn is_here(at: &str) -> bool {
    at.starts_with("unix:") || at.parse::<SocketAddr>().is_ok_and(|a| a.ip().is_loopback())
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Refused { at } if is_here(at) => {
                write!(f, "refused: nothing listens on {at}")
            }
            Cause::Refused { at } => {
                write!(f, "refused: nothing listens on {at}, or it listens on 127.0.0.1 only")
            }
            Cause::NoAnswer { waited_ms } => {
                write!(f, "no answer within {waited_ms} ms: the host is down, or a firewall drops what is sent to it")
            }
            Cause::Unreachable(text) => write!(f, "unreachable: {text}: see routes and the host's link"),
            Cause::Local(text) => write!(f, "not its fault: this machine could not connect ({text})"),
            Cause::Shortage(text) => write!(f, "not its fault: this machine is short of resources ({text})"),
            Cause::Closed => write!(f, "closed the connection without an answer"),
            Cause::Broken(text) => write!(f, "the connection broke: {text}"),
            Cause::Status { status, wanted } => write!(f, "answered {status}, wanted {wanted}"),
            Cause::Header(text) => write!(f, "header did not match: {text}"),
            Cause::Body(text) => write!(f, "body did not match: {text}"),
            Cause::Variable(text) => write!(f, "variable did not hold: {text}"),
            Cause::Slow { took_ms, limit_ms } => write!(f, "too slow: {took_ms} ms against {limit_ms} ms"),
            Cause::Tls(text) => write!(f, "TLS failed: {text}"),
            Cause::Protocol(text) => write!(f, "answered nonsense: {text}"),
            Cause::Grpc(text) => write!(f, "its gRPC health service says {text}"),
            Cause::Errors { percent, limit } => {
                write!(f, "{percent} % of its requests failed, {limit} % are too many")
            }
            Cause::Latency { mean_ms, median_ms } => {
                write!(f, "takes {mean_ms} ms where the others take {median_ms} ms")
            }
            Cause::Flapping { changes, within_s, last } => {
                write!(f, "flapping: {changes} changes within {within_s} s, at last: {last}")
            }
        }
    }
}
