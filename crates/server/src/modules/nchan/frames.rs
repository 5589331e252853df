//! What a client sends on a WebSocket: frames are put together to messages. Bounded by `client_max_body_size`.

use super::deflate::{self, Inflated};
use wire::websocket::{self, BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT};

/// Bytes of a message where `client_max_body_size` is 0.
const MAX_MESSAGE: u64 = 64 * 1024 * 1024;

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// A message, and whether it is binary.
    Message(Vec<u8>, bool),
    /// A ping, to be answered with the same bytes.
    Ping(Vec<u8>),
    /// The end, with its code and reason as they came.
    Close(Vec<u8>),
    /// The connection is to be closed with this code.
    Broken(u16, &'static str),
}

/// Frames as they come in.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    message: Vec<u8>,
    /// Of the message whose parts come.
    opcode: Option<u8>,
    /// It is compressed.
    is_deflated: bool,
    /// That was agreed on.
    may_inflate: bool,
}

impl Inbox {
    /// What has come of a message, for another process.
    pub(super) fn write(&self, w: &mut heir::Writer) {
        w.bytes(&self.bytes);
        w.bytes(&self.message);
        w.optional(self.opcode.map(i64::from));
        w.flag(self.is_deflated);
        w.flag(self.may_inflate);
    }

    /// The same as another process said it.
    pub(super) fn read(r: &mut heir::Reader<'_>) -> Option<Inbox> {
        let (bytes, message, opcode) = (r.bytes()?.to_vec(), r.bytes()?.to_vec(), r.optional()?);
        let opcode = opcode.and_then(|opcode| u8::try_from(opcode).ok());
        Some(Inbox { bytes, message, opcode, is_deflated: r.flag()?, may_inflate: r.flag()? })
    }

    /// `may_inflate`: messages may come compressed.
    pub(super) fn new(may_inflate: bool) -> Inbox {
        Inbox { may_inflate, ..Inbox::default() }
    }

    /// Takes bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether nothing of a message or frame has come.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.message.is_empty() && self.opcode.is_none()
    }

    /// The next that is whole.
    pub(super) fn next(&mut self, max: u64) -> Option<Came> {
        let max = if max == 0 { MAX_MESSAGE } else { max };
        loop {
            let frame = match websocket::read_from_client(&self.bytes) {
                Ok(frame) => frame?,
                Err(websocket::NoFrame) => return Some(Came::Broken(1002, "Protocol error.")),
            };
            if frame.opcode < CLOSE && frame.size.payload + self.message.len() as u64 > max {
                return Some(Came::Broken(1009, "Message too big."));
            }
            if frame.deflated && !self.may_inflate {
                return Some(Came::Broken(1002, "Protocol error."));
            }
            let whole = frame.size.header + frame.size.payload as usize;
            let payload = self.bytes.get(frame.size.header..whole)?;
            let mut control = Vec::new();
            frame.unmask(payload, if frame.opcode >= CLOSE { &mut control } else { &mut self.message });
            self.bytes.drain(..whole);
            match (frame.opcode, self.opcode) {
                (PING, _) => return Some(Came::Ping(control)),
                (PONG, _) => {}
                (CLOSE, _) => return Some(close(control)),
                (CONTINUATION, None) | (TEXT | BINARY, Some(_)) => {
                    return Some(Came::Broken(1002, "Unexpected continuation."));
                }
                (CONTINUATION, Some(opcode)) | (opcode, None) => {
                    self.is_deflated |= frame.deflated;
                    self.opcode = Some(opcode);
                    if frame.last {
                        return Some(self.whole(opcode, max));
                    }
                }
                _ => return Some(Came::Broken(1002, "Protocol error.")),
            }
        }
    }

    fn whole(&mut self, opcode: u8, max: u64) -> Came {
        self.opcode = None;
        let mut message = std::mem::take(&mut self.message);
        if std::mem::take(&mut self.is_deflated) {
            message = match deflate::inflate(&message, max) {
                Inflated::Whole(message) => message,
                Inflated::TooLarge => return Came::Broken(1009, "Message too big."),
                Inflated::Broken => return Came::Broken(1007, "Invalid compressed message."),
            };
        }
        if opcode == TEXT && std::str::from_utf8(&message).is_err() {
            return Came::Broken(1007, "Invalid text frame (not UTF8).");
        }
        Came::Message(message, opcode == BINARY)
    }
}

/// RFC 6455 section 7.4: a code that may stand in a frame, and a reason in UTF-8, or nothing.
fn close(control: Vec<u8>) -> Came {
    let good = match control.as_slice() {
        [] => true,
        [a, b, reason @ ..] => {
            let code = u16::from_be_bytes([*a, *b]);
            matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) && std::str::from_utf8(reason).is_ok()
        }
        _ => false,
    };
    if good { Came::Close(control) } else { Came::Broken(1002, "Protocol error.") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0][..], payload].concat()
    }

    #[test]
    fn messages_are_put_together_byte_by_byte() {
        let all = [frame(0x01, b"he"), frame(0x89, b"p"), frame(0x80, b"llo"), frame(0x82, b"\xff")].concat();
        let (mut inbox, mut came) = (Inbox::default(), Vec::new());
        for byte in all {
            inbox.push(&[byte]);
            came.extend(inbox.next(100));
        }
        let expected =
            [Came::Ping(b"p".to_vec()), Came::Message(b"hello".to_vec(), false), Came::Message(b"\xff".to_vec(), true)];
        assert_eq!(came, expected);
        assert!(inbox.bytes.is_empty() && inbox.opcode.is_none());
    }

    #[test]
    fn what_breaks_the_rules_ends_the_connection() {
        let code = |bytes: &[u8]| {
            let mut inbox = Inbox::default();
            inbox.push(bytes);
            match inbox.next(5) {
                Some(Came::Broken(code, _)) => code,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(code(&frame(0x81, b"123456")), 1009);
        assert_eq!(code(&[frame(0x01, b"1234"), frame(0x80, b"56")].concat()), 1009);
        assert_eq!(code(&frame(0x81, b"\xff")), 1007);
        assert_eq!(code(&frame(0x80, b"")), 1002);
        assert_eq!(code(&[0x81, 0x01, b'x']), 1002);
        assert_eq!(code(&frame(0x88, b"\x03\xed")), 1002);
    }
}
