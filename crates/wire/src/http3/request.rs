//! A request stream as it comes in, a request or its answer (RFC 9114 section 4.1): HEADERS, DATA, perhaps HEADERS again; frames of unknown types
//! anywhere. Holds the bytes of a field section until it is complete, nothing else.
//!
//! ```text
//! Head ──HEADERS──> Body ──HEADERS──> End
//!                   └──DATA──┘
//! ```

use super::frame::{Numbers, kind};
use super::qpack::decoder::{self, Decoded};
use super::qpack::table::Table;
use super::{ConnectionError, ErrorCode};
use crate::http2::hpack::decoder::Limits;
use crate::http2::hpack::{HeaderBlock, HpackError};
use crate::span::Span;

/// Frames that bring nothing (empty or of unknown type) on one stream: more are an attack.
const MAX_EMPTY_FRAMES: u32 = 1000;

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing until more bytes come.
    More,
    /// The head; its fields are in the block. `len`: the bytes it took.
    Head {
        /// Bytes of the field section as it was sent.
        len: usize,
        /// The table was needed: its owner waits to hear that they were read.
        referring: bool,
    },
    /// A field section needs entries of the table that have not come: call again when they have.
    Blocked,
    /// The head is larger than allowed; nothing more comes of the stream.
    HeadTooLarge,
    /// A stretch of the input that is body.
    Data(Span),
    /// Trailers; they are in the block.
    Trailers {
        /// See `Head`.
        referring: bool,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Head,
    Body,
    End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Frame {
    /// Between two frames, or within a frame's head.
    #[default]
    None,
    Data(u64),
    Section(usize),
    Skipped(u64),
    /// Nobody wants to know more.
    Rest,
}

/// The state of one stream.
#[derive(Debug, Default)]
pub struct Reader {
    phase: Phase,
    frame: Frame,
    numbers: Numbers,
    section: Vec<u8>,
    empty: u32,
}

fn unexpected(text: &'static str) -> ConnectionError {
    ConnectionError::new(ErrorCode::FRAME_UNEXPECTED, text)
}

impl Reader {
    /// The next event in `input` from `at` on. A field section is decoded into `fields`.
    ///
    /// # Errors
    /// The client broke the protocol: the connection is lost.
    pub fn next(
        &mut self,
        input: &[u8],
        at: &mut usize,
        limits: Limits,
        table: &Table,
        fields: &mut HeaderBlock,
    ) -> Result<Event, ConnectionError> {
        loop {
            let left = input.len() - *at;
            match &mut self.frame {
                Frame::None => {
                    let Some([kind, len]) = self.numbers.take(input, at) else { return Ok(Event::More) };
                    self.begin(kind, len, limits)?;
                    if self.frame == Frame::Rest {
                        return Ok(Event::HeadTooLarge);
                    }
                }
                Frame::Rest => {
                    *at = input.len();
                    return Ok(Event::More);
                }
                Frame::Data(0) | Frame::Skipped(0) => self.frame = Frame::None,
                Frame::Data(_) | Frame::Skipped(_) if left == 0 => return Ok(Event::More),
                Frame::Skipped(rest) => {
                    let n = (*rest).min(left as u64);
                    *rest -= n;
                    *at += n as usize;
                }
                Frame::Data(rest) => {
                    let n = (*rest).min(left as u64);
                    *rest -= n;
                    let start = *at;
                    *at += n as usize;
                    return Ok(Event::Data(Span::new(start, *at)));
                }
                Frame::Section(len) => {
                    let len = *len;
                    let n = (len - self.section.len()).min(left);
                    self.section.extend_from_slice(&input[*at..*at + n]);
                    *at += n;
                    if self.section.len() < len {
                        return Ok(Event::More);
                    }
                    return self.decode(limits, table, fields);
                }
            }
        }
    }

    fn begin(&mut self, kind: u64, len: u64, limits: Limits) -> Result<(), ConnectionError> {
        if len == 0 || !matches!(kind, kind::DATA | kind::HEADERS) {
            self.empty += 1;
            if self.empty > MAX_EMPTY_FRAMES {
                return Err(ConnectionError::new(ErrorCode::EXCESSIVE_LOAD, "http3 flood detected"));
            }
        }
        self.frame = match (kind, self.phase) {
            (kind::DATA, Phase::Body) => Frame::Data(len),
            (kind::DATA, _) => return Err(unexpected("peer sent DATA frame out of order")),
            (kind::HEADERS, Phase::End) => return Err(unexpected("peer sent HEADERS frame out of order")),
            // What is larger than its fields may be is too large whatever it says.
            (kind::HEADERS, _) if len > limits.block as u64 => {
                self.phase = Phase::End;
                Frame::Rest
            }
            (kind::HEADERS, _) => Frame::Section(len as usize),
            (kind::CANCEL_PUSH | kind::SETTINGS | kind::PUSH_PROMISE | kind::GOAWAY | kind::MAX_PUSH_ID, _) => {
                return Err(unexpected("peer sent a frame on a request stream that does not belong there"));
            }
            (kind, _) if kind::is_of_http2(kind) => return Err(unexpected("peer sent a frame of HTTP/2")),
            _ => Frame::Skipped(len),
        };
        Ok(())
    }

    fn decode(&mut self, limits: Limits, table: &Table, fields: &mut HeaderBlock) -> Result<Event, ConnectionError> {
        fields.clear();
        let decoded = decoder::decode(&self.section, limits, table, fields);
        if decoded == Ok(Decoded::Blocked) {
            return Ok(Event::Blocked);
        }
        self.frame = Frame::None;
        let len = std::mem::take(&mut self.section).len();
        let head = self.phase == Phase::Head;
        self.phase = if head { Phase::Body } else { Phase::End };
        match decoded {
            Ok(Decoded::Whole { referring }) if head => Ok(Event::Head { len, referring }),
            Ok(Decoded::Whole { referring }) => Ok(Event::Trailers { referring }),
            Ok(Decoded::Blocked) => Ok(Event::Blocked),
            Err(HpackError::FieldTooLarge | HpackError::BlockTooLarge) => {
                self.frame = Frame::Rest;
                Ok(Event::HeadTooLarge)
            }
            Err(_) => {
                let text = "peer sent a field section that cannot be decoded";
                Err(ConnectionError::new(ErrorCode::QPACK_DECOMPRESSION_FAILED, text))
            }
        }
    }

    /// The head that came was of the 1xx kind: the answer's own is still to come (client).
    pub fn expect_head(&mut self) {
        self.phase = Phase::Head;
    }

    /// Nothing that still comes is looked at.
    pub fn skip(&mut self) {
        self.frame = Frame::Rest;
    }

    /// The stream has ended: what was it, a request?
    ///
    /// # Errors
    /// It ended within a frame.
    pub fn finish(&self) -> Result<(), ConnectionError> {
        let whole = match self.frame {
            Frame::None => !self.numbers.is_pending(),
            Frame::Data(left) | Frame::Skipped(left) => left == 0,
            Frame::Section(_) => false,
            Frame::Rest => true,
        };
        if whole {
            return Ok(());
        }
        Err(ConnectionError::new(ErrorCode::FRAME_ERROR, "peer ended a stream within a frame"))
    }
}
