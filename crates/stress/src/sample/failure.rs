//! Why a request got no answer.

use std::io::{Error, ErrorKind};

/// Kinds of failure, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody listens there.
    Refused,
    /// No answer to the handshake in time.
    ConnectTimeout,
    /// Reset or unreachable before the connection stood.
    Connect,
    /// This machine has no local port left.
    NoPort,
    /// This process has no descriptor left.
    NoDescriptor,
    /// The TLS handshake failed, or a record was wrong.
    Tls,
    /// Writing failed.
    Write,
    /// The connection was reset before the answer was complete.
    Reset,
    /// The connection ended before the answer was complete.
    Closed,
    /// The answer took longer than `--timeout`.
    Timeout,
    /// The answer is no HTTP.
    Protocol,
}

impl Failure {
    /// All kinds.
    pub const ALL: [Failure; 11] = [
        Failure::Refused,
        Failure::ConnectTimeout,
        Failure::Connect,
        Failure::NoPort,
        Failure::NoDescriptor,
        Failure::Tls,
        Failure::Write,
        Failure::Reset,
        Failure::Closed,
        Failure::Timeout,
        Failure::Protocol,
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Failure::Refused => "refused",
            Failure::ConnectTimeout => "connect_timeout",
            Failure::Connect => "connect",
            Failure::NoPort => "no_local_port",
            Failure::NoDescriptor => "no_descriptor",
            Failure::Tls => "tls",
            Failure::Write => "write",
            Failure::Reset => "reset",
            Failure::Closed => "closed",
            Failure::Timeout => "timeout",
            Failure::Protocol => "protocol",
        }
    }

    /// What went wrong while connecting.
    pub(crate) fn of_connect(error: &Error) -> Failure {
        match (error.kind(), error.raw_os_error()) {
            (ErrorKind::ConnectionRefused, _) => Failure::Refused,
            // A unix socket whose queue is full.
            (ErrorKind::WouldBlock, _) => Failure::Refused,
            (ErrorKind::TimedOut, _) => Failure::ConnectTimeout,
            (ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse, _) => Failure::NoPort,
            (_, Some(libc::EMFILE | libc::ENFILE)) => Failure::NoDescriptor,
            _ => Failure::Connect,
        }
    }

    /// What went wrong while reading.
    pub(crate) fn of_read(error: &Error) -> Failure {
        if error.kind() == ErrorKind::ConnectionReset { Failure::Reset } else { Failure::Closed }
    }
}
