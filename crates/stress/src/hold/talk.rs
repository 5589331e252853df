//! What a held connection says and hears, for each protocol. No sockets, no clocks.

use crate::client::answer::{Answer, HeadReader, Progress};
use crate::sample::{Failure, Tally};
use wire::units::{Size, Units};
use wire::{mqtt, websocket};

/// What a long-poll is answered with, and what the next one says of it.
const MARKS: [(&[u8], &[u8]); 2] = [(b"last-modified", b"If-Modified-Since: "), (b"etag", b"If-None-Match: ")];
/// A longer head is no answer.
const MAX_HEAD: usize = 64 * 1024;

/// What is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A request and its answer; then silence, but for the heartbeat's requests.
    Http,
    /// A request whose answer comes when it comes; then the next.
    LongPoll,
    /// An answer that does not end.
    Sse,
    /// Messages both ways.
    WebSocket,
    /// A broker's client.
    Mqtt {
        /// Which MQTT.
        version: mqtt::Version,
        /// What is subscribed to.
        topic: Option<String>,
        /// The highest quality of service asked for.
        qos: u8,
    },
}

impl Protocol {
    /// As it is written.
    pub fn name(&self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::LongPoll => "longpoll",
            Protocol::Sse => "sse",
            Protocol::WebSocket => "websocket",
            Protocol::Mqtt { .. } => "mqtt",
        }
    }
}

/// One connection's state: small, there are tens of thousands.
#[derive(Default)]
pub(super) struct Talk {
    answer: Answer,
    /// The beginning of a head that is not complete.
    part: Vec<u8>,
    units: Units,
    /// The head of an upgrade or a stream is through.
    is_streaming: bool,
    /// SSE: the last byte was a line end.
    after_line: bool,
    /// Long-polls: the head of the answer that is under way is through.
    is_through: bool,
    /// Long-polls: lines of the next request that say which message was the last.
    since: Option<Box<[u8]>>,
}

/// What some bytes came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// The connection is what it was opened for: from now on it is held.
    pub is_ready: bool,
    /// Messages, events, answers to long-polls.
    pub messages: u32,
    /// Answers to heartbeats.
    pub beats: u32,
    /// A long-poll is answered: ask again.
    pub asks_again: bool,
}

/// What reading needs of the thread.
pub(super) struct Ears<'a> {
    pub heads: &'a mut HeadReader,
    pub tally: &'a mut Tally,
    /// What is to be sent in return.
    pub reply: &'a mut Vec<u8>,
}

impl Talk {
    /// Takes bytes as they come.
    ///
    /// # Errors
    /// If the target refuses, or says what it may not.
    pub(super) fn hear(&mut self, protocol: &Protocol, bytes: &[u8], ears: &mut Ears<'_>) -> Result<Heard, Failure> {
        let mut heard = Heard::default();
        match protocol {
            Protocol::Http | Protocol::LongPoll => self.answers(protocol, bytes, ears, &mut heard)?,
            Protocol::Mqtt { .. } => self.units(protocol, bytes, ears, &mut heard)?,
            Protocol::Sse | Protocol::WebSocket if self.is_streaming => {
                self.stream(protocol, bytes, ears, &mut heard)?
            }
            Protocol::Sse | Protocol::WebSocket => self.head(protocol, bytes, ears, &mut heard)?,
        }
        Ok(heard)
    }

    /// The head of an upgrade or a stream, and what stands behind it.
    fn head(
        &mut self,
        protocol: &Protocol,
        bytes: &[u8],
        ears: &mut Ears<'_>,
        heard: &mut Heard,
    ) -> Result<(), Failure> {
        self.part.extend_from_slice(bytes);
        let Some(end) = memchr::memmem::find(&self.part, b"\r\n\r\n") else {
            return if self.part.len() > MAX_HEAD { Err(Failure::Protocol) } else { Ok(()) };
        };
        let all = std::mem::take(&mut self.part);
        let (head, rest) = all.split_at(end + 4);
        self.answer.feed(head, false, ears.heads, ears.tally).map_err(|_| Failure::Protocol)?;
        let wanted = if *protocol == Protocol::Sse { 200 } else { 101 };
        if self.answer.facts.is_none_or(|f| f.status != wanted) {
            return Err(Failure::Protocol);
        }
        self.is_streaming = true;
        heard.is_ready = true;
        self.stream(protocol, rest, ears, heard)
    }

    /// The next long-poll, of which `opening` is the first: it says which message was the last, so that none is missed.
    pub(super) fn ask_again(&self, opening: &[u8], request: &mut Vec<u8>) {
        let (head, end) = opening.split_at(opening.len().saturating_sub(2));
        for part in [head, self.since.as_deref().unwrap_or_default(), end] {
            request.extend_from_slice(part);
        }
    }

    /// Notes which message an answer is, once its head is complete.
    fn note_message(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_through {
            return Ok(());
        }
        self.part.extend_from_slice(bytes);
        let Some(end) = memchr::memmem::find(&self.part, b"\r\n\r\n") else {
            return if self.part.len() > MAX_HEAD { Err(Failure::Protocol) } else { Ok(()) };
        };
        self.is_through = true;
        let part = std::mem::take(&mut self.part);
        let mut since = Vec::new();
        for line in part[..end].split(|b| *b == b'\n') {
            let Some(colon) = memchr::memchr(b':', line) else { continue };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            for (said, asked) in MARKS {
                if name.eq_ignore_ascii_case(said) {
                    since.extend([asked, value, b"\r\n"].concat());
                }
            }
        }
        if !since.is_empty() {
            self.since = Some(since.into());
        }
        Ok(())
    }

    fn answers(
        &mut self,
        protocol: &Protocol,
        bytes: &[u8],
        ears: &mut Ears<'_>,
        heard: &mut Heard,
    ) -> Result<(), Failure> {
        if *protocol == Protocol::LongPoll {
            self.note_message(bytes)?;
        }
        match self.answer.feed(bytes, false, ears.heads, ears.tally).map_err(|_| Failure::Protocol)? {
            Progress::More => return Ok(()),
            Progress::Complete(used) if used < bytes.len() => return Err(Failure::Protocol),
            Progress::Complete(_) => {}
        }
        let (keeps, is_message) =
            self.answer.facts.map_or((false, false), |f| (f.keeps, *protocol == Protocol::LongPoll && f.status == 200));
        self.is_through = false;
        self.answer.clear();
        if !keeps {
            return Err(Failure::Closed);
        }
        heard.is_ready = true;
        heard.beats = 1;
        heard.messages = u32::from(is_message);
        heard.asks_again = *protocol == Protocol::LongPoll;
        Ok(())
    }

    fn stream(
        &mut self,
        protocol: &Protocol,
        bytes: &[u8],
        ears: &mut Ears<'_>,
        heard: &mut Heard,
    ) -> Result<(), Failure> {
        if *protocol == Protocol::Sse {
            self.events(bytes, heard);
            return Ok(());
        }
        self.units(protocol, bytes, ears, heard)
    }

    /// An event ends with an empty line.
    fn events(&mut self, bytes: &[u8], heard: &mut Heard) {
        for &byte in bytes {
            if byte == b'\n' {
                heard.messages += u32::from(self.after_line);
                self.after_line = !self.after_line;
            } else if byte != b'\r' {
                self.after_line = false;
            }
        }
    }

    /// Frames or packets, in pieces of any size.
    fn units(
        &mut self,
        protocol: &Protocol,
        bytes: &[u8],
        ears: &mut Ears<'_>,
        heard: &mut Heard,
    ) -> Result<(), Failure> {
        self.units.feed(bytes, |bytes| size(protocol, bytes), |first, body| unit(protocol, first, body, ears, heard))
    }
}

fn size(protocol: &Protocol, bytes: &[u8]) -> Result<Option<Size>, Failure> {
    Ok(match protocol {
        Protocol::Mqtt { .. } => mqtt::read(bytes).map_err(|_| Failure::Protocol)?.map(|packet| packet.size),
        _ => websocket::read(bytes).map_err(|_| Failure::Protocol)?.map(|frame| frame.size),
    })
}

/// One frame or packet, of which `body` is the beginning.
fn unit(protocol: &Protocol, first: u8, body: &[u8], ears: &mut Ears<'_>, heard: &mut Heard) -> Result<(), Failure> {
    let Protocol::Mqtt { version, topic, qos } = protocol else {
        match first & 0x8f {
            0x80..=0x82 => heard.messages += 1,
            0x88 => return Err(Failure::Closed),
            0x89 => websocket::pong(body, ears.reply),
            0x8a => heard.beats += 1,
            _ => {}
        }
        return Ok(());
    };
    match first >> 4 {
        // The second byte is the reason; 0 is success (section 3.2).
        mqtt::kind::CONNACK if body.get(1) != Some(&0) => return Err(Failure::Refused),
        mqtt::kind::CONNACK => match topic {
            Some(topic) => mqtt::subscribe(*version, topic, *qos, ears.reply),
            None => heard.is_ready = true,
        },
        // The last byte is the granted quality, or a reason from 128 on (section 3.9).
        mqtt::kind::SUBACK if body.last().is_none_or(|&code| code >= 0x80) => return Err(Failure::Refused),
        mqtt::kind::SUBACK => heard.is_ready = true,
        mqtt::kind::PUBLISH => {
            heard.messages += 1;
            if let Some(id) = mqtt::publish_id(first, body) {
                mqtt::puback(id, ears.reply);
            }
        }
        mqtt::kind::PINGRESP => heard.beats += 1,
        mqtt::kind::DISCONNECT => return Err(Failure::Closed),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hear(protocol: &Protocol, text: &[u8], piece: usize) -> (Result<Heard, Failure>, Vec<u8>) {
        let (mut heads, mut tally, mut reply) = (HeadReader::new(None), Tally::new(1), Vec::new());
        let (mut talk, mut all) = (Talk::default(), Heard::default());
        for bytes in text.chunks(piece) {
            let mut ears = Ears { heads: &mut heads, tally: &mut tally, reply: &mut reply };
            match talk.hear(protocol, bytes, &mut ears) {
                Ok(h) => {
                    all.is_ready |= h.is_ready;
                    all.messages += h.messages;
                    all.beats += h.beats;
                }
                Err(e) => return (Err(e), reply),
            }
        }
        (Ok(all), reply)
    }

    #[test]
    fn websocket_frames_in_pieces() {
        let long = [&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0][..], &vec![7; 65_536]].concat();
        let text =
            [&b"HTTP/1.1 101 Up\r\nUpgrade: websocket\r\n\r\n\x81\x02hi\x89\x01p\x8a\0"[..], &long, b"\x81\0"].concat();
        for piece in [1, 3, 50, 4095, 100_000] {
            let (heard, reply) = hear(&Protocol::WebSocket, &text, piece);
            assert_eq!(heard, Ok(Heard { is_ready: true, messages: 3, beats: 1, asks_again: false }), "{piece}");
            assert_eq!(reply.len(), 7);
        }
        assert_eq!(
            hear(&Protocol::WebSocket, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 99).0,
            Err(Failure::Protocol)
        );
    }

    #[test]
    fn mqtt_packets_in_pieces() {
        let protocol = Protocol::Mqtt { version: mqtt::Version::V3, topic: Some("t".into()), qos: 1 };
        let text = b"\x20\x02\0\0\x90\x03\0\x01\x01\x32\x07\0\x01t\0\x05hi\xd0\0";
        for piece in 1..text.len() {
            let (heard, reply) = hear(&protocol, text, piece);
            assert_eq!(heard, Ok(Heard { is_ready: true, messages: 1, beats: 1, asks_again: false }), "{piece}");
            assert!(reply.ends_with(&[0x40, 2, 0, 5]));
        }
        assert_eq!(hear(&protocol, b"\x20\x02\0\x05", 9).0, Err(Failure::Refused));
    }

    #[test]
    fn a_long_poll_says_which_message_was_the_last() {
        let answer = b"HTTP/1.1 200 OK\r\nlast-Modified: Tue, 24 Nov 2026 01:00:00 GMT\r\nEtag: 7\r\nContent-Length: 2\r\n\r\nhi";
        let none = b"HTTP/1.1 304 Not Modified\r\n\r\n";
        for piece in [1, 7, 60, 1000] {
            let (mut heads, mut tally, mut reply) = (HeadReader::new(None), Tally::new(1), Vec::new());
            let (mut talk, mut messages) = (Talk::default(), 0);
            for bytes in answer.chunks(piece).chain(none.chunks(piece)).chain(answer.chunks(piece)) {
                let mut ears = Ears { heads: &mut heads, tally: &mut tally, reply: &mut reply };
                let heard = talk.hear(&Protocol::LongPoll, bytes, &mut ears).unwrap();
                messages += heard.messages;
            }
            assert_eq!(messages, 2, "{piece}");
            let mut request = Vec::new();
            talk.ask_again(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &mut request);
            let wanted = "GET / HTTP/1.1\r\nHost: a\r\nIf-Modified-Since: Tue, 24 Nov 2026 01:00:00 GMT\r\nIf-None-Match: 7\r\n\r\n";
            assert_eq!(String::from_utf8_lossy(&request), wanted, "{piece}");
        }
    }

    #[test]
    fn events_of_a_stream() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: a\n\n: c\ndata: b\r\n\r\n";
        for piece in [10, 60, 200] {
            let heard = hear(&Protocol::Sse, text, piece).0.unwrap();
            assert_eq!((heard.is_ready, heard.messages), (true, 2), "{piece}");
        }
    }
}
