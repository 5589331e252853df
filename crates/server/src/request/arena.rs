//! The bytes of one request: its head, and every text that is made while it is worked on, in one growing buffer.
//! A text is named by offsets, so nothing is allocated per value and nothing borrows.

pub use wire::span::Span;

/// A text of a request: fixed in the program, or a stretch of the request's arena.
#[derive(Clone, Copy, Debug)]
pub enum Text {
    /// Part of the program.
    Fixed(&'static [u8]),
    /// Part of the arena.
    Own(Span),
}

impl Text {
    /// The empty text.
    pub const EMPTY: Text = Text::Fixed(b"");
}

impl Text {
    /// Without its last `n` bytes.
    pub fn shortened(self, n: usize) -> Text {
        match self {
            Text::Fixed(b) => Text::Fixed(&b[..b.len().saturating_sub(n)]),
            Text::Own(s) => Text::Own(Span { start: s.start, end: s.end.saturating_sub(n as u32).max(s.start) }),
        }
    }
}

impl From<&'static str> for Text {
    fn from(s: &'static str) -> Text {
        Text::Fixed(s.as_bytes())
    }
}

impl From<Span> for Text {
    fn from(s: Span) -> Text {
        Text::Own(s)
    }
}

/// The buffer. Kept and emptied between requests.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    bytes: Vec<u8>,
}

/// An arena of more than this is not kept for the next request.
const KEEP: usize = 64 * 1024;

impl Arena {
    /// Empties it for the next request.
    pub fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > KEEP {
            self.bytes = Vec::new();
        }
    }

    /// Takes all the bytes of another, in its own room.
    pub fn copy_from(&mut self, other: &Arena) {
        self.bytes.clone_from(&other.bytes);
    }

    /// Bytes that it has room for.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Copies `bytes` in.
    pub fn push(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.since(start)
    }

    /// Where the next byte goes: the start of a text that is built with [`Arena::buffer`] and ended by [`Arena::since`].
    pub fn mark(&self) -> usize {
        self.bytes.len()
    }

    /// The raw buffer, to append to. Nothing before the mark may be changed.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The text from `mark` to the end.
    pub fn since(&self, mark: usize) -> Span {
        Span { start: mark as u32, end: self.bytes.len() as u32 }
    }

    /// Appends a copy of a text, which may itself be part of the arena.
    pub fn append(&mut self, text: Text) {
        match text {
            Text::Fixed(b) => self.bytes.extend_from_slice(b),
            Text::Own(s) => self.bytes.extend_from_within(s.start as usize..s.end as usize),
        }
    }

    /// The bytes of a text.
    #[inline]
    pub fn get(&self, text: Text) -> &[u8] {
        match text {
            Text::Fixed(b) => b,
            Text::Own(s) => &self.bytes[s.start as usize..s.end as usize],
        }
    }

    /// The bytes of a stretch.
    #[inline]
    pub fn span(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..span.end as usize]
    }
}

/// Formats into the arena.
#[macro_export]
macro_rules! text {
    ($r:expr, $($arg:tt)*) => {{
        let mut room = std::mem::take(&mut $r.room);
        room.clear();
        let _ = std::io::Write::write_fmt(&mut room, format_args!($($arg)*));
        let span = $r.arena.push(&room);
        $r.room = room;
        $crate::request::arena::Text::Own(span)
    }};
}
