//! `lua_capture_error_log`: lines that a thread has written, kept for its programs until they ask for them. The oldest go first.

use super::error::Level;
use runtime::clock;
use std::cell::RefCell;

/// The least that can be kept, in bytes: a line and what belongs to it.
pub const LEAST: usize = 4096;
/// What stands before a line: its length, its level and its time, in as many bytes as ngx_lua takes for them.
const HEAD: usize = 16;

/// Whose programs ask: the directive stands in each of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reader {
    /// Those of `http`.
    Http,
    /// Those of `stream`.
    Stream,
}

/// A line that was kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// How severe it is.
    pub level: Level,
    /// When it was written, Unix seconds.
    pub time_s: f64,
    /// Without its end.
    pub text: Vec<u8>,
}

/// Lines one behind the other, each of them in one piece: what finds no room before the end begins at the front, where the oldest give way.
///
/// ```text
///   ├ newest ┤ ... next          first ├ oldest ┤ ... ┤ end    (before it has come to the front again: first ... next)
/// ```
struct Ring {
    bytes: Box<[u8]>,
    /// Where the oldest begins.
    first: usize,
    /// Where the next one may begin.
    next: usize,
    /// Where those end that stand behind `first`, once `next` has begun anew at the front.
    end: Option<usize>,
    count: usize,
}

impl Ring {
    fn new(size: usize) -> Ring {
        Ring { bytes: vec![0; size].into(), first: 0, next: 0, end: None, count: 0 }
    }

    fn push(&mut self, level: Level, time_s: f64, text: &[u8]) {
        let cost = HEAD + text.len();
        if cost > self.bytes.len() {
            return;
        }
        self.make_room(cost);
        let place = &mut self.bytes[self.next..self.next + cost];
        place[..4].copy_from_slice(&(text.len() as u32).to_ne_bytes());
        place[4] = level as u8;
        place[8..HEAD].copy_from_slice(&time_s.to_ne_bytes());
        place[HEAD..].copy_from_slice(text);
        (self.next, self.count) = (self.next + cost, self.count + 1);
    }

    /// Has so many bytes behind `next`, at most as many as there are. The end may come more than once: once the oldest lines have gone, those at the front are the oldest.
    fn make_room(&mut self, cost: usize) {
        loop {
            if self.end.is_none() {
                if self.next + cost <= self.bytes.len() {
                    return;
                }
                (self.end, self.next) = (Some(self.next), 0);
            }
            if self.next + cost <= self.first {
                return;
            }
            self.skip();
        }
    }

    /// Where the oldest line's text stands.
    fn oldest(&self) -> Option<std::ops::Range<usize>> {
        let len: [u8; 4] = self.bytes.get(self.first..self.first + 4).filter(|_| self.count > 0)?.try_into().ok()?;
        let start = self.first + HEAD;
        Some(start..start + u32::from_ne_bytes(len) as usize)
    }

    /// Forgets the oldest.
    fn skip(&mut self) {
        if let Some(text) = self.oldest() {
            (self.first, self.count) = (text.end, self.count - 1);
        }
        if self.count == 0 {
            (self.first, self.next, self.end) = (0, 0, None);
        } else if self.end == Some(self.first) {
            (self.first, self.end) = (0, None);
        }
    }

    fn pop(&mut self) -> Option<Line> {
        let text = self.oldest()?;
        let head = &self.bytes[self.first..text.start];
        let time_s = f64::from_ne_bytes(head[8..HEAD].try_into().ok()?);
        let line = Line { level: Level::of_number(head[4].into())?, time_s, text: self.bytes[text].to_vec() };
        self.skip();
        Some(line)
    }
}

struct Kept {
    lines: Ring,
    /// Less severe ones are not kept.
    least: Level,
}

thread_local! {
    static KEPT: RefCell<[Option<Kept>; 2]> = const { RefCell::new([None, None]) };
}

/// From now on this thread keeps so many bytes of lines for the programs of one of the two; 0: none.
pub fn keep(reader: Reader, size: usize) {
    let kept = (size > 0).then(|| Kept { lines: Ring::new(size), least: Level::Debug });
    KEPT.with_borrow_mut(|all| all[reader as usize] = kept);
}

/// Keeps no lines that are less severe. False: none are kept at all.
pub fn set_least(reader: Reader, level: Level) -> bool {
    KEPT.with_borrow_mut(|all| all[reader as usize].as_mut().map(|kept| kept.least = level).is_some())
}

/// A line was written.
pub(super) fn note(level: Level, line: &[u8]) {
    // A line about a thread that ends comes when its storage may be gone.
    let _ = KEPT.try_with(|all| {
        let Ok(mut all) = all.try_borrow_mut() else { return };
        for kept in all.iter_mut().flatten().filter(|kept| level <= kept.least) {
            kept.lines.push(level, clock::wall_ms() as f64 / 1000.0, line.strip_suffix(b"\n").unwrap_or(line));
        }
    });
}

/// Takes the oldest lines, so many at most. None: none are kept at all.
pub fn take(reader: Reader, most: usize) -> Option<Vec<Line>> {
    KEPT.with_borrow_mut(|all| {
        let lines = &mut all[reader as usize].as_mut()?.lines;
        Some(std::iter::from_fn(|| lines.pop()).take(most).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_go_first() {
        use Reader::{Http, Stream};
        assert_eq!(take(Http, 10), None);
        assert!(!set_least(Http, Level::Warn));
        keep(Http, LEAST);
        for number in 0..100 {
            note(Level::Error, format!("{number:0>100}\n").as_bytes());
        }
        let first = take(Http, 1).expect("lines are kept");
        let oldest = 100 - LEAST / (100 + HEAD);
        assert_eq!(first[0].text, format!("{oldest:0>100}").into_bytes());
        assert_eq!(first[0].level, Level::Error);
        assert_eq!(take(Http, usize::MAX).map(|all| all.len()), Some(LEAST / (100 + HEAD) - 1));
        assert!(set_least(Http, Level::Warn));
        note(Level::Info, b"not this one");
        note(Level::Error, &[b'x'; LEAST]);
        assert_eq!((take(Http, 10), take(Stream, 10)), (Some(Vec::new()), None));
        keep(Http, 0);
        assert_eq!(take(Http, 10), None);
    }

    /// `http` and `stream` read the same lines, each at its own pace.
    #[test]
    fn each_reader_has_lines_of_its_own() {
        use Reader::{Http, Stream};
        [Http, Stream].iter().for_each(|reader| keep(*reader, LEAST));
        assert!(set_least(Stream, Level::Error));
        note(Level::Warn, b"one");
        note(Level::Error, b"two");
        let texts = |reader| take(reader, 10).unwrap().into_iter().map(|line| line.text).collect::<Vec<_>>();
        assert_eq!(texts(Stream), [b"two".to_vec()]);
        assert_eq!(texts(Http), [b"one".to_vec(), b"two".to_vec()]);
        [Http, Stream].iter().for_each(|reader| keep(*reader, 0));
    }

    /// Whatever their lengths, lines come in their order, and those that were kept last are there.
    #[test]
    fn lines_of_all_lengths_go_round() {
        let mut ring = Ring::new(LEAST);
        let text = |number: usize| format!("{number}:{}", "x".repeat(number * 37 % 1900)).into_bytes();
        let mut seen = Vec::new();
        for number in 0..2000 {
            ring.push(Level::Warn, number as f64, &text(number));
            if number % 7 == 0 {
                seen.extend(ring.pop());
            }
        }
        seen.extend(std::iter::from_fn(|| ring.pop()));
        let numbers: Vec<usize> = seen.iter().map(|line| line.time_s as usize).collect();
        assert!(numbers.is_sorted() && numbers.last() == Some(&1999) && numbers.len() > 280, "{numbers:?}");
        assert!(seen.iter().all(|line| line.text == text(line.time_s as usize) && line.level == Level::Warn));
        ring.push(Level::Error, 0.0, &[b'y'; LEAST]);
        assert_eq!(ring.pop(), None);
        ring.push(Level::Error, 0.0, &[b'y'; LEAST - HEAD]);
        assert_eq!(ring.pop().map(|line| line.text.len()), Some(LEAST - HEAD));
    }
}
