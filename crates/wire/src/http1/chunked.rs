//! Reads and writes chunked bodies (RFC 9112 section 7.1), as strict as nginx 1.31: lines end in CR LF and nothing else. Of
//! requests, extensions are read as they are defined, so that nobody between the client and us can have read another body.
//!
//! The decoder is fed whatever bytes there are, in pieces of any size, and keeps nothing of them.

use super::scan::{hex_digit, is_token_byte};
use super::values::LARGEST_LENGTH;
use crate::span::Span;

/// Hexadecimal digits of one chunk size, leading zeros included. 16 are enough for every size; more are padding, of
/// which nginx takes any amount.
pub const MAX_SIZE_DIGITS: u32 = 64;
/// Bytes of chunk extensions on one line. Nobody uses them; some attacks do. nginx has no limit.
pub const MAX_EXTENSION: u32 = 16 * 1024;
/// Bytes of a trailer section that is dropped. The largest head of nginx's default buffers is of this size.
pub const MAX_TRAILER: u32 = 32 * 1024;

/// What the decoder found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// These bytes of the buffer belong to the body.
    Data(Span),
    /// Everything given was read, and the body goes on.
    More,
    /// The last chunk; a trailer section follows and is to be read by [`super::field::TrailerParser`]. Only with
    /// [`Trailers::HandOut`].
    Trailers,
    /// The body is complete. Only with [`Trailers::Drop`].
    End,
}

/// What is to become of a trailer section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trailers {
    /// It is read and forgotten.
    #[default]
    Drop,
    /// It is left in the buffer.
    HandOut,
}

/// Why a chunked body is refused. nginx logs `client sent invalid chunked body`, or `upstream sent invalid chunked
/// response`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkedError {
    /// A byte that may not stand there.
    Invalid,
    /// A chunk size above 2^63 - 10, or with more than [`MAX_SIZE_DIGITS`].
    SizeTooLarge,
    /// [`MAX_EXTENSION`] or [`MAX_TRAILER`] is exceeded.
    TooLong,
}

/// ```text
/// Start -> Size -+-> Extension -+-> SizeLineFeed -> Data -> AfterData -> DataLineFeed -> Start
///                '--------------'
///  (size 0)     -+-> LastExtension -+-> LastLineFeed -> Trailer -> EndLineFeed -> Done
///                '------------------'                    '-> TrailerLine -> TrailerLineFeed -> Trailer
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    Size,
    Extension,
    SizeLineFeed,
    Data,
    AfterData,
    DataLineFeed,
    LastExtension,
    LastLineFeed,
    Trailer,
    TrailerLine,
    TrailerLineFeed,
    EndLineFeed,
    Done,
}

/// Where in the extensions of a chunk a strict decoder is (RFC 9112 section 7.1.1):
///
/// ```text
/// *( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// White space has been seen, and a semicolon must follow.
    #[default]
    BeforeSemicolon,
    BeforeName,
    Name,
    AfterName,
    BeforeValue,
    Value,
    Quoted,
    Escaped,
    AfterQuotes,
}

impl Place {
    /// The place after one more byte. None: it may not stand there.
    fn after(self, byte: u8) -> Option<Place> {
        use Place::*;
        let token = is_token_byte(byte);
        Some(match (self, byte) {
            (BeforeSemicolon | BeforeName | AfterName | BeforeValue, b' ' | b'\t') => self,
            (Name, b' ' | b'\t') => AfterName,
            (Value | AfterQuotes, b' ' | b'\t') => BeforeSemicolon,
            (BeforeSemicolon | Name | AfterName | Value | AfterQuotes, b';') => BeforeName,
            (Name | AfterName, b'=') => BeforeValue,
            (BeforeName | Name, _) if token => Name,
            (BeforeValue, b'"') => Quoted,
            (BeforeValue | Value, _) if token => Value,
            (Quoted, b'"') => AfterQuotes,
            (Quoted, b'\\') => Escaped,
            (Quoted | Escaped, b'\t' | b' '..=b'~' | 0x80..) => Quoted,
            _ => return None,
        })
    }

    /// Whether the line may end here.
    fn may_end(self) -> bool {
        matches!(self, Place::Name | Place::Value | Place::AfterQuotes)
    }
}

/// Decodes one chunked body; make a new one for each.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    state: State,
    trailers: Trailers,
    /// Extensions are read, with the place where they are; none: they are passed over, whatever they are.
    extension: Option<Place>,
    /// Bytes of the chunk that are still to come.
    size: u64,
    /// Bytes read of what is limited: size digits, an extension or the trailers.
    counted: u32,
}

impl Decoder {
    /// A decoder at the start of a body.
    pub fn new(trailers: Trailers) -> Self {
        Self { trailers, ..Self::default() }
    }

    /// One for a client's body: trailers are dropped, and extensions must be such. What a peer of ours pads its sizes with harms
    /// nobody, since its body is framed anew.
    pub fn of_request() -> Self {
        Self { extension: Some(Place::default()), ..Self::default() }
    }

    /// Reads `buf` from `position` on, moves `position` past what was read and gives the next event. Call it until it
    /// gives [`Event::More`] or an end.
    ///
    /// # Errors
    /// See [`ChunkedError`]. Do not call again after one.
    pub fn decode(&mut self, buf: &[u8], position: &mut usize) -> Result<Event, ChunkedError> {
        while let Some(&byte) = buf.get(*position) {
            match self.state {
                State::Data => return Ok(self.data(buf, position)),
                State::Extension | State::LastExtension | State::TrailerLine => self.text(buf, position)?,
                State::Done => return Ok(Event::End),
                _ => {
                    *position += 1;
                    if let Some(event) = self.byte(byte)? {
                        return Ok(event);
                    }
                }
            }
        }
        Ok(if self.state == State::Done { Event::End } else { Event::More })
    }

    fn data(&mut self, buf: &[u8], position: &mut usize) -> Event {
        let there = buf.len() - *position;
        let len = usize::try_from(self.size).map_or(there, |size| size.min(there));
        let data = Span::new(*position, *position + len);
        *position += len;
        self.size -= len as u64;
        if self.size == 0 {
            self.state = State::AfterData;
        }
        Event::Data(data)
    }

    /// An extension or a trailer line, up to its CR.
    fn text(&mut self, buf: &[u8], position: &mut usize) -> Result<(), ChunkedError> {
        let (limit, next) = match self.state {
            State::Extension => (MAX_EXTENSION, State::SizeLineFeed),
            State::LastExtension => (MAX_EXTENSION, State::LastLineFeed),
            _ => (MAX_TRAILER, State::TrailerLineFeed),
        };
        let rest = &buf[*position..];
        let stop = memchr::memchr2(b'\r', b'\n', rest);
        self.count(stop.unwrap_or(rest.len()), limit)?;
        if self.state != State::TrailerLine
            && let Some(place) = &mut self.extension
        {
            for byte in &rest[..stop.unwrap_or(rest.len())] {
                *place = place.after(*byte).ok_or(ChunkedError::Invalid)?;
            }
            if stop.is_some() && !place.may_end() {
                return Err(ChunkedError::Invalid);
            }
        }
        let Some(stop) = stop else {
            *position = buf.len();
            return Ok(());
        };
        if rest[stop] == b'\n' {
            return Err(ChunkedError::Invalid);
        }
        *position += stop + 1;
        self.state = next;
        Ok(())
    }

    fn count(&mut self, bytes: usize, limit: u32) -> Result<(), ChunkedError> {
        self.counted = self.counted.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.counted > limit { Err(ChunkedError::TooLong) } else { Ok(()) }
    }

    fn byte(&mut self, byte: u8) -> Result<Option<Event>, ChunkedError> {
        self.state = match (self.state, byte) {
            (State::Start, _) => {
                self.size = u64::from(hex_digit(byte).ok_or(ChunkedError::Invalid)?);
                self.counted = 1;
                State::Size
            }
            (State::Size, _) => self.size_byte(byte)?,
            (State::SizeLineFeed, b'\n') => State::Data,
            (State::AfterData, b'\r') => State::DataLineFeed,
            (State::DataLineFeed, b'\n') => State::Start,
            (State::LastLineFeed, b'\n') if self.trailers == Trailers::HandOut => {
                self.state = State::Done;
                return Ok(Some(Event::Trailers));
            }
            (State::LastLineFeed, b'\n') => {
                self.counted = 0;
                State::Trailer
            }
            (State::Trailer, b'\r') => State::EndLineFeed,
            (State::Trailer, b'\n') => return Err(ChunkedError::Invalid),
            (State::Trailer, _) => {
                self.count(1, MAX_TRAILER)?;
                State::TrailerLine
            }
            (State::TrailerLineFeed, b'\n') => State::Trailer,
            (State::EndLineFeed, b'\n') => {
                self.state = State::Done;
                return Ok(Some(Event::End));
            }
            _ => return Err(ChunkedError::Invalid),
        };
        Ok(None)
    }

    /// A digit, or the end of the size. The size is checked whatever follows it, as nginx does.
    fn size_byte(&mut self, byte: u8) -> Result<State, ChunkedError> {
        if self.size > LARGEST_LENGTH / 16 {
            return Err(ChunkedError::SizeTooLarge);
        }
        if let Some(digit) = hex_digit(byte) {
            self.size = self.size * 16 + u64::from(digit);
            self.counted += 1;
            let too_large = self.size > LARGEST_SIZE || self.counted > MAX_SIZE_DIGITS;
            return if too_large { Err(ChunkedError::SizeTooLarge) } else { Ok(State::Size) };
        }
        self.counted = 0;
        if let Some(place) = &mut self.extension {
            *place = if byte == b';' { Place::BeforeName } else { Place::BeforeSemicolon };
        }
        match (byte, self.size) {
            (b'\r', 0) => Ok(State::LastLineFeed),
            (b'\r', _) => Ok(State::SizeLineFeed),
            (b';' | b' ' | b'\t', 0) => Ok(State::LastExtension),
            (b';' | b' ' | b'\t', _) => Ok(State::Extension),
            _ => Err(ChunkedError::Invalid),
        }
    }

    /// Bytes that must still come, at the least, before the body can be complete; reading that many at once never reads
    /// into what follows the body. 0 after its end.
    pub fn min_needed(&self) -> u64 {
        match self.state {
            State::Start => 5,
            State::Size if self.size == 0 => 4,
            State::Size | State::Extension => self.size + 9,
            State::SizeLineFeed => self.size + 8,
            State::Data => self.size + 7,
            State::AfterData => 7,
            State::DataLineFeed => 6,
            State::LastExtension | State::TrailerLine => 4,
            State::LastLineFeed | State::TrailerLineFeed => 3,
            State::Trailer => 2,
            State::EndLineFeed => 1,
            State::Done => 0,
        }
    }
}

/// The largest chunk, so that [`Decoder::min_needed`] stays within nginx's file offsets.
const LARGEST_SIZE: u64 = LARGEST_LENGTH - 9;

/// Appends the line that announces a chunk of `size` bytes: digits and CR LF. After the data comes another CR LF.
///
/// A `size` of 0 announces the end of the body.
pub fn encode_size(size: u64, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digits = (64 - (size | 1).leading_zeros()).div_ceil(4);
    out.extend((0..digits).rev().map(|digit| HEX[(size >> (4 * digit) & 15) as usize]));
    out.extend_from_slice(b"\r\n");
}

/// What ends a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
