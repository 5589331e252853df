//! How many lines of one kind, at level info, one connection may cause: what clients do is worth a line, what they do twenty thousand
//! times in a second is worth a sum. Lines are of one kind if they begin alike, up to the first number, and are said of the same
//! work ("while ..."). Each thread counts for itself, in a table that does not grow.

use std::cell::RefCell;
use std::fmt;

/// Lines of one kind about one connection that are written in a second.
const LINES: u32 = 50;
/// Kinds of lines that are counted at once by a thread; one that falls on another's place takes it.
const PLACES: usize = 64;
/// So much of a message is looked at, and what is said before the work it is about.
const LOOKED_AT: usize = 192;
const WHILE: &[u8] = b" while ";
/// FNV-1a of 64 bits: the basis and the prime.
const FNV: [u64; 2] = [0xcbf2_9ce4_8422_2325, 0x0100_0000_01b3];

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// It is written.
    Few,
    /// It is left out.
    Many,
    /// It is written, and so many of a connection before it were not: its number, and how many.
    Over(u64, u32),
}

#[derive(Clone, Copy)]
struct Place {
    connection: u64,
    kind: u64,
    second: i64,
    lines: u32,
}

impl Place {
    /// Lines that were left out and not told of yet; they are told of once.
    fn take_rest(&mut self) -> Option<Count> {
        let left_out = self.lines.saturating_sub(LINES);
        self.lines = self.lines.min(LINES);
        (left_out > 0).then_some(Count::Over(self.connection, left_out))
    }
}

const EMPTY: Place = Place { connection: 0, kind: 0, second: 0, lines: 0 };

thread_local! {
    static PLACES_OF_THREAD: RefCell<[Place; PLACES]> = const { RefCell::new([EMPTY; PLACES]) };
}

/// Counts a line about a connection. `second`: of any clock.
pub(super) fn count(connection: u64, message: fmt::Arguments<'_>, second: i64) -> Count {
    let kind = kind_of(message);
    PLACES_OF_THREAD.with_borrow_mut(|places| {
        let place = &mut places[((connection ^ kind) % PLACES as u64) as usize];
        if (place.connection, place.kind, place.second) == (connection, kind, second) {
            place.lines = place.lines.saturating_add(1);
            return if place.lines > LINES { Count::Many } else { Count::Few };
        }
        let mut before = std::mem::replace(place, Place { connection, kind, second, lines: 1 });
        // What was left out in seconds that are over is told of at the first chance, whatever became of its connection.
        let rest = before.take_rest();
        let over = || places.iter_mut().filter(|p| p.second != second).find_map(Place::take_rest);
        rest.or_else(over).unwrap_or(Count::Few)
    })
}

/// A number for all messages that begin alike and are said of the same work.
fn kind_of(message: fmt::Arguments<'_>) -> u64 {
    let mut beginning = Beginning { bytes: [0; LOOKED_AT], len: 0 };
    // The end of a message that is too long for it is not looked at.
    let _ = fmt::write(&mut beginning, message);
    let text = &beginning.bytes[..beginning.len];
    let number = text.iter().position(u8::is_ascii_digit).unwrap_or(text.len());
    let work = memchr::memmem::find(text, WHILE).map_or(&[][..], |at| &text[at..]);
    let work = work.split(|b| *b == b',').next().unwrap_or_default();
    text[..number].iter().chain(work).fold(FNV[0], |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV[1]))
}

/// The beginning of a message.
struct Beginning {
    bytes: [u8; LOOKED_AT],
    len: usize,
}

impl fmt::Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let taken = text.len().min(LOOKED_AT - self.len);
        self.bytes[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        if taken < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_summed_up() {
        let reset = |connection, n: u32, second| count(connection, format_args!("stream {n} was reset"), second);
        let written = (0..20_000).filter(|n| reset(7, *n, 1) == Count::Few).count();
        assert_eq!(written, LINES as usize);
        assert_eq!(count(7, format_args!("flood detected"), 1), Count::Few, "another kind");
        assert_eq!(reset(8, 1, 1), Count::Few, "another connection");
        // Told of once, by whichever line comes in a later second.
        assert_eq!(count(9, format_args!("closed"), 2), Count::Over(7, 20_000 - LINES));
        assert_eq!(count(9, format_args!("closed"), 2), Count::Few);
        assert_eq!(reset(7, 1, 2), Count::Few);
        let timed_out =
            |work: &str| count(10, format_args!("client timed out (110: Timed out) while {work}, client: a"), 2);
        for _ in 0..=LINES {
            timed_out("sending a response");
        }
        assert_eq!(timed_out("sending a response"), Count::Many);
        assert_eq!(timed_out("processing a connection"), Count::Few, "the same of other work");
    }
}
