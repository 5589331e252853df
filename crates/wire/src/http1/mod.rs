//! HTTP/1 as nginx 1.31 accepts and refuses it (RFC 9110, RFC 9112 and nginx's departures from them).
//!
//! [`request`] and [`response`] read heads, [`field`] the header lines of both and of trailers, [`target`] turns a
//! request target into a path, [`values`] checks single header values, [`chunked`] reads and writes chunked bodies.

pub mod chunked;
pub mod escape;
pub mod field;
pub mod known;
pub mod request;
mod request_line;
pub mod response;
mod scan;
pub mod target;
pub mod values;

pub(crate) use scan::hex_digit;

/// A protocol version as nginx counts it: major * 1000 + minor, so that versions compare as numbers.
///
/// `HTTP/1.2` is `Version(1002)`: above 1.1 and treated as such. HTTP/0.9 is a request or an answer without a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u16);

impl Version {
    /// A request line without a version, or an answer without a status line.
    pub const HTTP09: Self = Self(9);
    /// `HTTP/1.0`.
    pub const HTTP10: Self = Self(1000);
    /// `HTTP/1.1`.
    pub const HTTP11: Self = Self(1001);
    /// `HTTP/2.0`, whose requests come in frames.
    pub const HTTP20: Self = Self(2000);
    /// RFC 9114.
    pub const HTTP30: Self = Self(3000);
}

/// How far an incremental parser got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed; call again with a longer buffer that begins with the same bytes.
    Partial,
    /// The whole is there: it is the first `len` bytes of the buffer.
    Complete {
        /// Bytes of the head, its last line end included.
        len: usize,
    },
    /// Only with [`request::Rules::pause_at_host`]: the host has just become known. Call again, with the rules of
    /// the server chosen by it.
    Host,
}
