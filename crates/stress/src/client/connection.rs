//! One connection of a client thread: what it carries, and what it is waiting for.

use super::answer::Answer;
use super::tls::Session;
use std::os::fd::OwnedFd;

/// ```text
/// Down -> Connecting -> [Handshaking] -> Idle -> Writing -> Waiting -> Idle ...
///   ^---------- closed, by whichever side, or failed ---------'
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No socket.
    #[default]
    Down,
    /// `connect` was called.
    Connecting,
    /// TLS is being agreed on.
    Handshaking,
    /// Established, without a request.
    Idle,
    /// A part of the request is written.
    Writing,
    /// The request is out.
    Waiting,
}

/// All times are nanoseconds of the monotonic clock.
#[derive(Default)]
pub(crate) struct Connection {
    pub socket: Option<OwnedFd>,
    pub tls: Option<Box<Session>>,
    pub stage: Stage,
    /// Whether a request is assigned: in `Connecting` and `Handshaking` it may or may not be.
    pub has_request: bool,
    /// It is in the list of free connections.
    pub is_listed: bool,
    /// The target has closed its side; what it sent before is still to be read.
    pub is_ending: bool,
    /// Something of the answer has arrived.
    pub has_first_byte: bool,
    /// Which use of this place it is; events of former ones are dropped.
    pub generation: u32,
    /// Index of the request.
    pub request: u32,
    /// Bytes of the request written so far.
    pub written: u32,
    /// From when the latency counts.
    pub counted_from: u64,
    /// When the current step (connecting, handshaking, the request) began: for time-outs and step times.
    pub began: u64,
    /// When it became free.
    pub free_since: u64,
    pub answer: Answer,
    /// A script's request, instead of the plan's.
    pub own: Vec<u8>,
    /// Answers that are still to come for what was sent: several if a script sends several requests at once.
    pub pending: u16,
    /// A script wants to see the answer: all of its bytes so far.
    pub seen: Vec<u8>,
}
