//! A connection without streams as bytes, so that it takes little as long as it waits, and another process can go on with it: what was agreed, windows, what was counted, and the
//! tables of fields of both directions, whose entries the other side names by number from then on. Read within bounds: whatever the bytes
//! are, there is a connection or none.

use super::connection::{Config, Connection, RESET_MEMORY, Reading, Role};
use super::flood::Counters;
use super::hpack::decoder::{Decoder, Limits};
use super::hpack::encoder::Encoder;
use super::{DEFAULT_FRAME, MAX_FRAME, MAX_WINDOW};

/// The first byte: another one is another layout.
const LAYOUT: u8 = 1;

/// Writes numbers and texts.
pub(super) struct Saved(Vec<u8>);

impl Saved {
    /// Seven bits a byte, the lowest first.
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// A small one is short either way.
    pub(super) fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63) as u64);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Reads what [`Saved`] wrote; none where it did not.
pub(super) struct Restored<'b>(&'b [u8]);

impl<'b> Restored<'b> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        self.number().map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// One that is no larger than this.
    pub(super) fn at_most(&mut self, most: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|number| *number <= most)
    }

    fn word(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// A window, or what is left of one.
    fn window(&mut self) -> Option<i64> {
        let window = self.signed()?;
        (-i64::from(MAX_WINDOW)..=i64::from(MAX_WINDOW)).contains(&window).then_some(window)
    }

    pub(super) fn bytes(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<T: Default> Connection<T> {
    /// What there is to know of a server's side to go on with it. None: something is under way.
    pub fn save(&self) -> Option<Vec<u8>> {
        let is_idle = self.streams.is_empty() && self.is_between_frames() && self.out.len() == self.sent;
        if !is_idle || self.goaway_sent || self.config.role != Role::Server {
            return None;
        }
        let mut w = Saved(vec![LAYOUT]);
        let Config { max_streams, stream_window, headers, .. } = self.config;
        [max_streams, stream_window, self.last_stream, self.peer_streams, self.refused]
            .into_iter()
            .for_each(|number| w.number(number.into()));
        [headers.field, headers.block, self.peer_frame, self.reset_at % RESET_MEMORY]
            .into_iter()
            .for_each(|number| w.number(number as u64));
        [self.send_window, self.recv_window, self.peer_window, self.priorities]
            .into_iter()
            .for_each(|number| w.signed(number));
        w.number(self.settings_acked.into());
        self.resets.iter().for_each(|id| w.number((*id).into()));
        self.counters.numbers().into_iter().for_each(|number| w.number(number));
        self.decoder.save(&mut w);
        self.encoder.save(&mut w);
        Some(w.0)
    }

    /// What [`Connection::save`] made. None: it did not.
    pub fn restore(bytes: &[u8]) -> Option<Connection<T>> {
        let (LAYOUT, rest) = bytes.split_first().map(|(first, rest)| (*first, rest))? else { return None };
        let mut r = Restored(rest);
        let (max_streams, stream_window) = (r.word()?, r.word().filter(|window| *window <= MAX_WINDOW)?);
        let (last_stream, peer_streams, refused) = (r.word()?, r.word()?, r.word()?);
        let headers = Limits { field: r.at_most(usize::MAX)?, block: r.at_most(usize::MAX)? };
        let (peer_frame, reset_at) =
            (r.at_most(MAX_FRAME).filter(|size| *size >= DEFAULT_FRAME)?, r.at_most(RESET_MEMORY)?);
        let (send_window, recv_window, peer_window, priorities) = (r.window()?, r.window()?, r.window()?, r.signed()?);
        let settings_acked = r.number()? == 1;
        let mut resets = [0; RESET_MEMORY];
        for id in &mut resets {
            *id = r.word()?;
        }
        let mut numbers = [0; Counters::NUMBERS];
        for number in &mut numbers {
            *number = r.number()?;
        }
        let (decoder, encoder) = (Decoder::restore(&mut r)?, Encoder::restore(&mut r)?);
        // What a new one says first was said, `extended_connect` with it.
        let (role, extended_connect) = (Role::Server, false);
        let mut connection = Connection::new(Config { role, max_streams, stream_window, headers, extended_connect });
        (connection.out, connection.sent) = (Vec::new(), 0);
        connection.reading = Reading::Header;
        (connection.last_stream, connection.peer_streams, connection.refused) = (last_stream, peer_streams, refused);
        (connection.peer_frame, connection.reset_at) = (peer_frame, reset_at);
        (connection.send_window, connection.recv_window) = (send_window, recv_window);
        (connection.peer_window, connection.priorities) = (peer_window, priorities);
        (connection.settings_acked, connection.resets) = (settings_acked, resets);
        connection.counters = Counters::of(numbers)?;
        (connection.decoder, connection.encoder) = (decoder, encoder);
        r.0.is_empty().then_some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http2::hpack::HeaderBlock;
    use crate::span::Span;

    type Plain = Connection<()>;

    fn served() -> Plain {
        let headers = Limits { field: 8192, block: 32768 };
        let config =
            Config { role: Role::Server, max_streams: 128, stream_window: 65536, headers, extended_connect: false };
        let mut connection = Plain::new(config);
        (connection.out, connection.sent, connection.reading) = (Vec::new(), 0, Reading::Header);
        (connection.last_stream, connection.send_window, connection.peer_frame) = (7, -5, 16384);
        (connection.settings_acked, connection.reset_at) = (true, RESET_MEMORY + 3);
        connection.resets[3] = 5;
        connection.counters.bytes(1000);
        let mut out = Vec::new();
        connection.encoder.field(b"X-Answer", b"of mine", &mut out);
        // A field that the client has had put in the table: a literal with indexing.
        let field = b"\x40\x05x-ask\x07of hers";
        connection.decoder.decode(field, headers, &mut HeaderBlock::default()).unwrap();
        connection
    }

    #[test]
    fn what_is_saved_is_restored_with_both_tables() {
        let mut before = served();
        let bytes = before.save().unwrap();
        let mut after = Plain::restore(&bytes).unwrap();
        assert_eq!(after.save().unwrap(), bytes);
        // Both tables name by number what was said in full before.
        let mut heard = HeaderBlock::default();
        after.decoder.decode(b"\xbe", after.config.headers, &mut heard).unwrap();
        let text = |span: Span| &heard.bytes[span.start as usize..span.end as usize];
        assert_eq!((text(heard.fields[0].name), text(heard.fields[0].value)), (&b"x-ask"[..], &b"of hers"[..]));
        let (mut then, mut now) = (Vec::new(), Vec::new());
        before.encoder.field(b"X-Answer", b"of mine", &mut then);
        after.encoder.field(b"X-Answer", b"of mine", &mut now);
        assert_eq!((&then, now.len()), (&now, 1));
        for cut in 0..bytes.len() {
            assert!(Plain::restore(&bytes[..cut]).is_none(), "{cut}");
        }
        assert!(Plain::restore(&[&bytes[..], b"x"].concat()).is_none());
        before.goaway(crate::http2::ErrorCode::NO_ERROR);
        assert!(before.save().is_none());
    }

    #[test]
    fn strangers_bytes_break_nothing() {
        let bytes = served().save().unwrap();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Some(connection) = Plain::restore(&bytes) {
                    assert!(connection.save().unwrap().len() < 16384);
                }
            }
        }
    }
}
