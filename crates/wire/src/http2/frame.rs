//! The layout of frames (RFC 9113 sections 4.1 and 6).

/// Bytes of a frame's header.
pub const HEADER: usize = 9;

/// Types of frames.
#[allow(missing_docs, reason = "the names are the RFC's")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
    /// RFC 9218 section 7.1
    pub const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of frames.
#[allow(missing_docs, reason = "the names are the RFC's")]
pub mod flag {
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 32;
}

/// Names of settings (RFC 9113 section 6.5.2).
#[allow(missing_docs, reason = "the names are the RFC's")]
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    /// RFC 8441 section 3
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    /// RFC 9218 section 2.1
    pub const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// A frame's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub len: usize,
    /// One of [`kind`], or unknown.
    pub kind: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// 0: the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Reads the header that `bytes` begin with; none if they are too few.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<FrameHeader> {
        let &[l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes.first_chunk::<HEADER>()?;
        Some(FrameHeader {
            len: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        })
    }

    /// The header as bytes.
    #[inline]
    pub fn bytes(self) -> [u8; HEADER] {
        let [_, l0, l1, l2] = (self.len as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }

    /// Whether a flag is set.
    #[inline]
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reads a number of four bytes, if they are there.
pub fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|b| u32::from_be_bytes(*b))
}
