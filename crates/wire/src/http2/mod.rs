//! HTTP/2 without I/O (RFC 9113, RFC 7541): bytes in, events out; frames out gathered in one buffer.
//!
//! [`connection`] is the state machine for both roles, [`frame`] the layout of frames, [`hpack`] header compression.
//! What floods cost is bounded by the limits in [`flood`].

pub mod connection;
pub mod flood;
pub mod frame;
pub mod hpack;
mod receive;
mod saved;
mod send;

/// What a client sends first (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest window (RFC 9113 section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;
/// Windows before anybody says otherwise.
pub const DEFAULT_WINDOW: u32 = 65_535;
/// The largest frame before anybody says otherwise.
pub const DEFAULT_FRAME: usize = 16_384;
/// The largest frame we take of a server. DATA are handed on as they come and bounded by the windows, header blocks by their limits,
/// the others are short: a large frame costs no memory, but no other stream's frames can come before its end. Of a client we take
/// [`MAX_FRAME`], as nginx does: who sends such frames makes only itself wait.
pub const LARGEST_FROM_SERVER: usize = 1 << 20;
/// The largest frame a peer may ask for (RFC 9113 section 6.5.2).
pub const MAX_FRAME: usize = (1 << 24) - 1;

/// Why a stream or a connection ends (RFC 9113 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs, reason = "the names are the RFC's")]
impl ErrorCode {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const CONNECT_ERROR: Self = Self(10);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}
