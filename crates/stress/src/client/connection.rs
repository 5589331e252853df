//! One connection of a client thread: what it carries, and what it is waiting for.

use super::answer::Answer;
use super::streams::Multiplex;
use super::tls::TlsSession;
use std::os::fd::OwnedFd;

/// ```text
/// Down -> Connecting -> [Handshaking] -> Idle -> Writing -> Waiting -> Idle ...
///   ^---------- closed, by whichever side, or failed ---------'
/// ```
/// `Writing` and `Waiting` are HTTP/1.1's; a connection with streams that stands is `Idle`, whatever they do. QUIC's handshake is
/// `Connecting`, TLS and all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No socket.
    #[default]
    Down,
    /// `connect` was called, or QUIC shakes hands.
    Connecting,
    /// TLS is being agreed on, over TCP.
    Handshaking,
    /// Established, without a request.
    Idle,
    /// A part of the request is written.
    Writing,
    /// The request is out.
    Waiting,
}

impl Stage {
    pub(crate) fn is_opening(self) -> bool {
        matches!(self, Stage::Connecting | Stage::Handshaking)
    }
}

/// All times are nanoseconds of the monotonic clock.
#[derive(Default)]
pub(crate) struct Connection {
    pub socket: Option<OwnedFd>,
    pub tls: Option<Box<TlsSession>>,
    pub stage: Stage,
    /// The target has closed its side; what it sent before is still to be read.
    pub is_ending: bool,
    /// Which use of this place it is; events of former ones are dropped.
    pub generation: u32,
    /// When the current step (connecting, handshaking) began: for time-outs and step times.
    pub began: u64,
    /// HTTP/2 and HTTP/3: its streams.
    pub streams: Option<Multiplex>,
    /// HTTP/1.1: bytes of the request written so far.
    pub written: u32,
    /// HTTP/1.1: where in the answer it is.
    pub answer: Answer,
    /// Answers that are still to come for what was sent: several if a script sends several requests at once.
    pub pending: u16,
}
