//! Heads of frames (RFC 9114 section 7.1): a type and a length.

use super::varint;

/// Types of frames.
#[allow(missing_docs, reason = "the names are the RFC's")]
pub mod kind {
    pub const DATA: u64 = 0;
    pub const HEADERS: u64 = 1;
    pub const CANCEL_PUSH: u64 = 3;
    pub const SETTINGS: u64 = 4;
    pub const PUSH_PROMISE: u64 = 5;
    pub const GOAWAY: u64 = 7;
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// RFC 9218 section 7.2: of a request's answer.
    pub const PRIORITY_UPDATE: u64 = 0xf_0700;
    /// The same of a push.
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

    /// Frames of HTTP/2 that have no meaning here (RFC 9114 section 7.2.8).
    pub fn is_of_http2(kind: u64) -> bool {
        matches!(kind, 2 | 6 | 8 | 9)
    }
}

/// Types of one-way streams (RFC 9114 section 6.2, RFC 9204 section 4.2).
#[allow(missing_docs, reason = "the names are the RFCs'")]
pub mod stream {
    pub const CONTROL: u64 = 0;
    pub const PUSH: u64 = 1;
    pub const ENCODER: u64 = 2;
    pub const DECODER: u64 = 3;
}

/// Names of settings (RFC 9114 section 7.2.4.1, RFC 9204 section 5).
#[allow(missing_docs, reason = "the names are the RFCs'")]
pub mod setting {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 1;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 6;
    pub const QPACK_BLOCKED_STREAMS: u64 = 7;
    /// RFC 9220 section 3
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 8;

    /// Settings of HTTP/2 that have no meaning here (RFC 9114 section 7.2.4.1).
    pub fn is_of_http2(name: u64) -> bool {
        matches!(name, 2..=5)
    }
}

/// The longest head: two integers.
const LONGEST: usize = 16;

/// Collects integers that come in pieces.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Numbers {
    /// The next `N` integers, once all their bytes are there.
    pub fn take<const N: usize>(&mut self, input: &[u8], at: &mut usize) -> Option<[u64; N]> {
        loop {
            let (mut values, mut end) = ([0; N], 0);
            let done = values.iter_mut().all(|v| match varint::read(&self.bytes[..self.len], &mut end) {
                Some(n) => {
                    *v = n;
                    true
                }
                None => false,
            });
            if done {
                self.len = 0;
                return Some(values);
            }
            self.bytes[self.len] = *input.get(*at)?;
            self.len += 1;
            *at += 1;
        }
    }

    /// Whether a number has begun.
    pub fn is_pending(&self) -> bool {
        self.len > 0
    }
}

/// Writes the head of a frame.
pub fn write_head(kind: u64, len: usize, out: &mut Vec<u8>) {
    varint::write(kind, out);
    varint::write(len as u64, out);
}

/// What a control stream begins with: its type, and settings as pairs of name and value.
pub fn write_control(settings: &[(u64, u64)], out: &mut Vec<u8>) {
    let mut body = Vec::new();
    for (name, value) in settings {
        varint::write(*name, &mut body);
        varint::write(*value, &mut body);
    }
    varint::write(stream::CONTROL, out);
    write_head(kind::SETTINGS, body.len(), out);
    out.extend_from_slice(&body);
}

/// GOAWAY: requests on streams from this number on are not worked on (RFC 9114 section 5.2).
pub fn write_goaway(stream: u64, out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(8);
    varint::write(stream, &mut body);
    write_head(kind::GOAWAY, body.len(), out);
    out.extend_from_slice(&body);
}
