//! HTTP/3 (RFC 9114) without I/O: the frames of a stream, field sections, what one-way streams say. QUIC below it is
//! somebody else's; bytes of one stream come in order.
//!
//! ```text
//! request.rs   a request stream as it comes in: head, body, trailers
//! control.rs   the peer's one-way streams: settings, and encoder and decoder streams that have nothing to say
//! frame.rs     frame heads, both ways
//! qpack/       fields and bytes (RFC 9204)
//! ```

pub mod control;
pub mod frame;
pub mod qpack;
pub mod request;
pub mod varint;

use std::borrow::Cow;

/// The name of the protocol in ALPN (RFC 9114 section 3.1).
pub const ALPN: &[u8] = b"h3";
/// HTTP/0.9 over QUIC, for interoperability tests.
pub const ALPN_HQ: &[u8] = b"hq-interop";

/// Why a stream or a connection ends (RFC 9114 section 8.1, RFC 9204 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs, reason = "the names are the RFC's")]
impl ErrorCode {
    pub const NO_ERROR: Self = Self(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    pub const FRAME_ERROR: Self = Self(0x106);
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    pub const ID_ERROR: Self = Self(0x108);
    pub const SETTINGS_ERROR: Self = Self(0x109);
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    pub const CONNECT_ERROR: Self = Self(0x10f);
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(0x202);
}

/// What the peer has done wrong: the connection ends with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// What the peer is told.
    pub code: ErrorCode,
    /// What the log says, of a `peer` ([`crate::said_of`]).
    pub text: Cow<'static, str>,
}

impl ConnectionError {
    /// An error with a fixed text.
    pub fn new(code: ErrorCode, text: &'static str) -> ConnectionError {
        ConnectionError { code, text: Cow::Borrowed(text) }
    }
}
