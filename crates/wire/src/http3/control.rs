//! The peer's one-way streams (RFC 9114 section 6.2): one control stream with settings first; the encoder stream of QPACK,
//! which fills the client's table; the decoder stream, which has little to say since we use no table; others are ignored.

use super::frame::{Numbers, kind, setting, stream};
use super::qpack::table::Table;
use super::{ConnectionError, ErrorCode, varint};
use crate::http2::hpack::HpackError;
use crate::priority::{self, Priority};

/// Frames of a control stream that are held until they are whole: settings of many names. Larger ones are an attack.
const MAX_FRAME: u64 = 4096;
/// Frames of a control stream that change nothing: more are an attack.
const MAX_IDLE_FRAMES: u32 = 10_000;

/// Priorities that are kept until the owner looks.
const MAX_PRIORITIES: usize = 128;

/// What a stream turned out to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Its type has not come yet.
    #[default]
    Unknown,
    /// Settings and GOAWAY.
    Control,
    /// The peer's encoder.
    Encoder,
    /// The peer's decoder.
    Decoder,
    /// Nothing we know: whatever comes is thrown away.
    Ignored,
}

/// The state of one stream.
#[derive(Debug, Default)]
pub struct Reader {
    /// What it is.
    pub kind: Kind,
    /// What the last GOAWAY said: a server names the first stream it does not work on (RFC 9114 section 5.2).
    pub goaway: Option<u64>,
    /// How urgent answers are, as the client has said since the owner looked here: streams and priorities, the latest last.
    pub priorities: Vec<(u64, Priority)>,
    /// What the last MAX_PUSH_ID said.
    max_push: Option<u64>,
    numbers: Numbers,
    /// The frame under way: its type and what is still to come of it.
    frame: Option<(u64, u64)>,
    body: Vec<u8>,
    settled: bool,
    idle: u32,
    /// A stream's number of more than one byte is under way.
    in_number: bool,
}

fn error<T>(code: ErrorCode, text: &'static str) -> Result<T, ConnectionError> {
    Err(ConnectionError::new(code, text))
}

impl Reader {
    /// Works on bytes of the stream; `table` is what an encoder stream fills. True: its kind was not known before and is now.
    ///
    /// # Errors
    /// The peer broke the protocol.
    pub fn take(&mut self, input: &[u8], table: &mut Table) -> Result<bool, ConnectionError> {
        let mut at = 0;
        let mut found = false;
        if self.kind == Kind::Unknown {
            let Some([number]) = self.numbers.take(input, &mut at) else { return Ok(false) };
            self.kind = match number {
                stream::CONTROL => Kind::Control,
                stream::PUSH => {
                    return error(ErrorCode::STREAM_CREATION_ERROR, "peer attempted to create push stream");
                }
                stream::ENCODER => Kind::Encoder,
                stream::DECODER => Kind::Decoder,
                _ => Kind::Ignored,
            };
            found = true;
        }
        match self.kind {
            Kind::Control => self.frames(input, &mut at)?,
            Kind::Encoder => table.instruct(&input[at..]).map_err(|e| match e {
                HpackError::FieldTooLarge => {
                    ConnectionError::new(ErrorCode::EXCESSIVE_LOAD, "peer sent too large field line")
                }
                _ => {
                    let text = "peer sent an encoder instruction that is wrong or does not fit";
                    ConnectionError::new(ErrorCode::QPACK_ENCODER_STREAM_ERROR, text)
                }
            })?,
            Kind::Decoder => self.cancellations(&input[at..])?,
            Kind::Ignored | Kind::Unknown => {}
        }
        Ok(found)
    }

    fn frames(&mut self, input: &[u8], at: &mut usize) -> Result<(), ConnectionError> {
        loop {
            let Some((kind, left)) = &mut self.frame else {
                let Some([kind, len]) = self.numbers.take(input, at) else { return Ok(()) };
                self.begin(kind, len)?;
                self.frame = Some((kind, len));
                continue;
            };
            let n = (*left).min((input.len() - *at) as u64) as usize;
            if is_read(*kind) {
                self.body.extend_from_slice(&input[*at..*at + n]);
            }
            *at += n;
            *left -= n as u64;
            if *left > 0 {
                return Ok(());
            }
            let kind = *kind;
            self.frame = None;
            let body = std::mem::take(&mut self.body);
            if kind == kind::PRIORITY_UPDATE {
                self.take_priority(&body)?;
            } else if let Some(number) = read(kind, &body)? {
                self.take_number(kind, number)?;
            }
        }
    }

    /// RFC 9218 section 7.2. What is no value is passed over.
    fn take_priority(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        let mut at = 0;
        let Some(stream) = varint::read(body, &mut at) else {
            return error(ErrorCode::FRAME_ERROR, "peer sent a PRIORITY_UPDATE frame that is cut short");
        };
        if !stream.is_multiple_of(4) {
            return error(ErrorCode::ID_ERROR, "peer sent PRIORITY_UPDATE frame for no request");
        }
        if let Some(priority) = priority::parse(&body[at..]) {
            self.priorities.retain(|(said, _)| *said != stream);
            if self.priorities.len() >= MAX_PRIORITIES {
                self.priorities.remove(0);
            }
            self.priorities.push((stream, priority));
        }
        Ok(())
    }

    /// GOAWAY only goes back, MAX_PUSH_ID only forward (RFC 9114 sections 5.2 and 7.2.7).
    fn take_number(&mut self, kind: u64, number: u64) -> Result<(), ConnectionError> {
        if kind == kind::MAX_PUSH_ID {
            if self.max_push.replace(number).is_some_and(|before| number < before) {
                return error(ErrorCode::ID_ERROR, "peer sent MAX_PUSH_ID with a smaller number than before");
            }
        } else if self.goaway.replace(number).is_some_and(|before| number > before) {
            return error(ErrorCode::ID_ERROR, "peer sent GOAWAY with a larger number than before");
        }
        Ok(())
    }

    /// Decoder instructions: only streams that are cancelled can be told of a table that nobody uses (RFC 9204 section 4.4).
    fn cancellations(&mut self, input: &[u8]) -> Result<(), ConnectionError> {
        for byte in input {
            self.in_number = match (self.in_number, byte & 0xc0) {
                (true, _) => byte & 0x80 != 0,
                (false, 0x40) => byte & 0x3f == 0x3f,
                (false, _) => {
                    let text = "peer sent a decoder instruction for a table that is not used";
                    return error(ErrorCode::QPACK_DECODER_STREAM_ERROR, text);
                }
            };
        }
        Ok(())
    }

    fn begin(&mut self, kind: u64, len: u64) -> Result<(), ConnectionError> {
        match (kind, self.settled) {
            (kind::SETTINGS, false) => self.settled = true,
            (_, false) => return error(ErrorCode::MISSING_SETTINGS, "peer sent no SETTINGS frame first"),
            (kind::SETTINGS | kind::DATA | kind::HEADERS | kind::PUSH_PROMISE, true) => {
                return error(ErrorCode::FRAME_UNEXPECTED, "peer sent an unexpected frame on its control stream");
            }
            (kind::PRIORITY_UPDATE_PUSH, true) => {
                return error(ErrorCode::ID_ERROR, "peer sent PRIORITY_UPDATE frame for a push that is none");
            }
            (kind, true) if kind::is_of_http2(kind) => {
                return error(ErrorCode::FRAME_UNEXPECTED, "peer sent a frame of HTTP/2");
            }
            _ => {
                self.idle += 1;
                if self.idle > MAX_IDLE_FRAMES {
                    return error(ErrorCode::EXCESSIVE_LOAD, "http3 flood detected");
                }
            }
        }
        if is_read(kind) && len > MAX_FRAME {
            return error(ErrorCode::EXCESSIVE_LOAD, "peer sent a control frame that is too large");
        }
        Ok(())
    }
}

fn is_read(kind: u64) -> bool {
    matches!(kind, kind::SETTINGS | kind::CANCEL_PUSH | kind::GOAWAY | kind::MAX_PUSH_ID | kind::PRIORITY_UPDATE)
}

/// A whole frame: is it well formed? Gives the number in a GOAWAY or MAX_PUSH_ID.
fn read(kind: u64, body: &[u8]) -> Result<Option<u64>, ConnectionError> {
    let mut at = 0;
    match kind {
        kind::SETTINGS => {
            let mut seen = Vec::new();
            while at < body.len() {
                let name = varint::read(body, &mut at);
                let value = varint::read(body, &mut at);
                let (Some(name), Some(_)) = (name, value) else {
                    return error(ErrorCode::FRAME_ERROR, "peer sent a SETTINGS frame that is cut short");
                };
                if setting::is_of_http2(name) || seen.contains(&name) {
                    return error(ErrorCode::SETTINGS_ERROR, "peer sent a forbidden or repeated setting");
                }
                seen.push(name);
            }
            Ok(None)
        }
        kind::CANCEL_PUSH | kind::GOAWAY | kind::MAX_PUSH_ID => match varint::read(body, &mut at) {
            Some(_) if kind == kind::CANCEL_PUSH => error(ErrorCode::ID_ERROR, "peer cancelled a push that is none"),
            Some(number) if at == body.len() => Ok(Some(number)),
            _ => error(ErrorCode::FRAME_ERROR, "peer sent a control frame of a wrong size"),
        },
        _ => Ok(None),
    }
}
