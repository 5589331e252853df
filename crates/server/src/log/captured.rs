//! `lua_capture_error_log`: lines that a thread has written, kept for its programs until they ask for them. The oldest go first.

use super::error::Level;
use runtime::clock;
use std::cell::RefCell;
use std::collections::VecDeque;

/// The least that can be kept, in bytes: a line and what belongs to it.
pub const LEAST: usize = 4096;
/// What a line costs beside its bytes.
const OVERHEAD: usize = 48;

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

struct Kept {
    lines: VecDeque<Line>,
    bytes: usize,
    size: usize,
    /// Less severe ones are not kept.
    least: Level,
}

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// From now on this thread keeps so many bytes of lines; 0: none.
pub fn keep(size: usize) {
    let kept = Kept { lines: VecDeque::new(), bytes: 0, size, least: Level::Debug };
    KEPT.with_borrow_mut(|all| *all = (size > 0).then_some(kept));
}

/// Keeps no lines that are less severe. False: none are kept at all.
pub fn set_least(level: Level) -> bool {
    KEPT.with_borrow_mut(|all| all.as_mut().map(|kept| kept.least = level).is_some())
}

/// A line was written.
pub(super) fn note(level: Level, line: &[u8]) {
    // A line about a thread that ends comes when its storage may be gone.
    let _ = KEPT.try_with(|all| {
        let Ok(mut all) = all.try_borrow_mut() else { return };
        let Some(kept) = all.as_mut().filter(|kept| level <= kept.least) else { return };
        let text = line.strip_suffix(b"\n").unwrap_or(line).to_vec();
        let cost = text.len() + OVERHEAD;
        if cost > kept.size {
            return;
        }
        while kept.bytes + cost > kept.size {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.text.len() + OVERHEAD;
        }
        kept.bytes += cost;
        kept.lines.push_back(Line { level, time_s: clock::wall_ms() as f64 / 1000.0, text });
    });
}

/// Takes the oldest lines, so many at most. None: none are kept at all.
pub fn take(most: usize) -> Option<Vec<Line>> {
    KEPT.with_borrow_mut(|all| {
        let kept = all.as_mut()?;
        let count = most.min(kept.lines.len());
        let taken: Vec<Line> = kept.lines.drain(..count).collect();
        kept.bytes -= taken.iter().map(|line| line.text.len() + OVERHEAD).sum::<usize>();
        Some(taken)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_go_first() {
        assert_eq!(take(10), None);
        assert!(!set_least(Level::Warn));
        keep(LEAST);
        for number in 0..100 {
            note(Level::Error, format!("{number:0>100}\n").as_bytes());
        }
        let first = take(1).expect("lines are kept");
        let oldest = 100 - LEAST / (100 + OVERHEAD);
        assert_eq!(first[0].text, format!("{oldest:0>100}").into_bytes());
        assert_eq!(take(usize::MAX).map(|all| all.len()), Some(LEAST / (100 + OVERHEAD) - 1));
        assert!(set_least(Level::Warn));
        note(Level::Info, b"not this one");
        note(Level::Error, &[b'x'; LEAST]);
        assert_eq!(take(10), Some(Vec::new()));
        keep(0);
        assert_eq!(take(10), None);
    }
}
