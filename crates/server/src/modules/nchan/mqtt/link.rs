//! Packets of a connection as they come in and go out: as they are, or in binary frames of a WebSocket, whose borders mean nothing (section
//! 6.0). Bounded by the largest packet; knows no socket.

use super::super::frames::{Came, Inbox};
use wire::mqtt::{self, NoPacket, packet::Wrong, packet::code};
use wire::websocket;

/// Both directions.
pub(super) struct MqttLink {
    /// What frames are put together in; none where there are none.
    frames: Option<Box<Inbox>>,
    /// None where nothing is under way, as in most of millions.
    buffers: Option<Box<Buffers>>,
}

#[derive(Default)]
struct Buffers {
    /// Bytes of packets; used up to `at`.
    bytes: Vec<u8>,
    at: usize,
    /// Bytes for the client; written up to `sent`.
    out: Vec<u8>,
    sent: usize,
}

impl Buffers {
    /// What has come and is not dealt with.
    fn unread(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn unsent(&self) -> &[u8] {
        &self.out[self.sent..]
    }
}

/// What has come.
pub(super) enum Arrived {
    /// A packet: its first byte, and what follows the length.
    Packet(u8, Vec<u8>),
    /// The client breaks a rule.
    Wrong(Wrong),
    /// The WebSocket is over.
    Closed,
}

impl MqttLink {
    /// Packets as they are.
    pub(super) fn plain() -> MqttLink {
        MqttLink { frames: None, buffers: None }
    }

    /// In frames.
    pub(super) fn websocket() -> MqttLink {
        MqttLink { frames: Some(Box::default()), ..MqttLink::plain() }
    }

    /// Whether nothing is under way; nothing of a frame either.
    pub(super) fn is_idle(&self) -> bool {
        self.buffers.is_none() && self.frames.as_ref().is_none_or(|frames| frames.is_empty())
    }

    /// Whether packets come in frames.
    pub(super) fn is_framed(&self) -> bool {
        self.frames.is_some()
    }

    /// Bytes that are under way, in either direction.
    pub(super) fn len(&self) -> usize {
        self.unread().len() + self.unsent().len()
    }

    /// For another process. `rest`: what is left of what was taken to be written.
    pub(super) fn write(&mut self, rest: &[u8], w: &mut heir::Writer) {
        if !rest.is_empty() {
            let out = [rest, self.unsent()].concat();
            let buffers = self.buffers();
            (buffers.out, buffers.sent) = (out, 0);
        }
        w.flag(self.frames.is_some());
        self.frames.iter().for_each(|frames| frames.write(w));
        w.bytes(self.unread());
        w.bytes(self.unsent());
    }

    /// What another process wrote.
    pub(super) fn read(r: &mut heir::Reader<'_>) -> Option<MqttLink> {
        let frames = if r.flag()? { Some(Box::new(Inbox::read(r)?)) } else { None };
        let buffers = Buffers { bytes: r.bytes()?.to_vec(), at: 0, out: r.bytes()?.to_vec(), sent: 0 };
        let mut link = MqttLink { frames, buffers: Some(Box::new(buffers)) };
        link.tidy();
        Some(link)
    }

    fn buffers(&mut self) -> &mut Buffers {
        self.buffers.get_or_insert_default()
    }

    fn unread(&self) -> &[u8] {
        self.buffers.as_ref().map_or(&[], |buffers| buffers.unread())
    }

    /// Lets go of buffers in which nothing is: a client that says little is not to hold what it needed once.
    fn tidy(&mut self) {
        self.buffers.take_if(|buffers| buffers.unread().is_empty() && buffers.unsent().is_empty());
    }

    /// Whether something has come, as it is, that was not dealt with. What comes in frames comes of programs that do not wait for ACKs.
    pub(super) fn has_news(&self) -> bool {
        !self.unread().is_empty() && self.frames.is_none()
    }

    /// Takes what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        match &mut self.frames {
            Some(frames) => frames.push(bytes),
            None => self.buffers().bytes.extend_from_slice(bytes),
        }
    }

    /// The next packet that is whole, of at most `max` bytes.
    pub(super) fn next(&mut self, max: u64) -> Option<Arrived> {
        loop {
            match mqtt::read(self.unread()) {
                Err(NoPacket) => return Some(Arrived::Wrong(Wrong::MALFORMED)),
                Ok(Some(packet)) if packet.size.header as u64 + packet.size.payload > max => {
                    return Some(Arrived::Wrong(Wrong(code::TOO_LARGE)));
                }
                Ok(Some(packet)) => {
                    let start = packet.size.header;
                    let end = start + packet.size.payload as usize;
                    if let Some(body) = self.unread().get(start..end) {
                        let body = body.to_vec();
                        self.used(end);
                        return Some(Arrived::Packet(packet.first, body));
                    }
                }
                Ok(None) => {}
            }
            if let Some(over) = self.next_frame(max)? {
                return Some(over);
            }
        }
    }

    fn used(&mut self, count: usize) {
        let buffers = self.buffers();
        buffers.at += count;
        if buffers.at == buffers.bytes.len() {
            (buffers.bytes, buffers.at) = (Vec::new(), 0);
            self.tidy();
        } else if buffers.at > buffers.bytes.len() / 2 {
            buffers.bytes.drain(..buffers.at);
            buffers.at = 0;
        }
    }

    /// Takes a frame's bytes. None outside: nothing more is there. Inside: it is over.
    fn next_frame(&mut self, max: u64) -> Option<Option<Arrived>> {
        let came = self.frames.as_mut()?.next(max)?;
        let Buffers { bytes, out, .. } = self.buffers();
        match came {
            Came::Message(message, true) => bytes.extend_from_slice(&message),
            Came::Ping(payload) => websocket::write_frame(websocket::PONG, &payload, out),
            Came::Close(payload) => {
                websocket::write_frame(websocket::CLOSE, &payload, out);
                return Some(Some(Arrived::Closed));
            }
            Came::Message(_, false) => {
                // Section 6.0: packets are binary.
                websocket::write_close(1003, b"Packets are binary.", out);
                return Some(Some(Arrived::Closed));
            }
            Came::Broken(code, reason) => {
                websocket::write_close(code, reason.as_bytes(), out);
                return Some(Some(Arrived::Closed));
            }
        }
        Some(None)
    }

    /// Appends packets for the client.
    pub(super) fn say(&mut self, packets: &[u8]) {
        if packets.is_empty() {
            return;
        }
        let is_framed = self.frames.is_some();
        let out = &mut self.buffers().out;
        match is_framed {
            true => websocket::write_frame(websocket::BINARY, packets, out),
            false => out.extend_from_slice(packets),
        }
    }

    /// Says that nothing more comes.
    pub(super) fn say_end(&mut self) {
        if self.frames.is_some() {
            websocket::write_close(1000, b"", &mut self.buffers().out);
        }
    }

    /// What is to be written.
    pub(super) fn unsent(&self) -> &[u8] {
        self.buffers.as_ref().map_or(&[], |buffers| buffers.unsent())
    }

    /// The same, for whoever writes it without coming back here.
    pub(super) fn take_unsent(&mut self) -> Vec<u8> {
        let Some(buffers) = &mut self.buffers else { return Vec::new() };
        let mut out = std::mem::take(&mut buffers.out);
        out.drain(..std::mem::take(&mut buffers.sent));
        self.tidy();
        out
    }

    /// So much of that was written.
    pub(super) fn sent(&mut self, n: usize) {
        let buffers = self.buffers();
        buffers.sent += n;
        if buffers.sent == buffers.out.len() {
            (buffers.out, buffers.sent) = (Vec::new(), 0);
            self.tidy();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(link: &mut MqttLink, max: u64) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(arrived) = link.next(max) {
            match arrived {
                Arrived::Packet(first, body) => all.push(format!("{first:x} {}", body.escape_ascii())),
                Arrived::Wrong(Wrong(code)) => return [all, vec![format!("wrong {code:x}")]].concat(),
                Arrived::Closed => return [all, vec!["closed".into()]].concat(),
            }
        }
        all
    }

    #[test]
    fn packets_come_byte_by_byte_and_in_frames() {
        let mut link = MqttLink::plain();
        let mut all = Vec::new();
        for byte in b"\x30\x04\0\x01ax\xc0\0" {
            link.push(&[*byte]);
            all.extend(packets(&mut link, 100));
        }
        assert_eq!(all, [r"30 \x00\x01ax", "c0 "]);
        let mut link = MqttLink::websocket();
        let frame =
            |first: u8, payload: &[u8]| [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0][..], payload].concat();
        link.push(&[frame(0x82, b"\x30\x04\0"), frame(0x89, b""), frame(0x82, b"\x01ax\xc0\0")].concat());
        assert_eq!(packets(&mut link, 100), [r"30 \x00\x01ax", "c0 "]);
        link.say(b"\xd0\0");
        assert_eq!(link.unsent(), b"\x8a\0\x82\x02\xd0\0");
        link.push(&frame(0x81, b"x"));
        assert_eq!(packets(&mut link, 100), ["closed"]);
    }

    #[test]
    fn what_is_too_large_is_not_waited_for() {
        let mut link = MqttLink::plain();
        link.push(b"\x30\xff\x7f");
        assert_eq!(packets(&mut link, 100), ["wrong 95"]);
        let mut link = MqttLink::plain();
        link.push(b"\x30\xff\xff\xff\xff\x01");
        assert_eq!(packets(&mut link, 100), ["wrong 81"]);
    }
}
