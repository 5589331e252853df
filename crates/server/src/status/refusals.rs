//! The last requests that the shield has refused, by the id that their pages show: an operator who is told the id finds out why. From: whoever refuses.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Requests that are remembered. Under a flood that is some seconds; the logs have all.
const MAX_KEPT: usize = 4_096;
/// Bytes of a text that is kept.
const MAX_TEXT: usize = 512;

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `$request_id`
    pub id: Box<str>,
    /// When, ms since 1970.
    pub at_ms: u64,
    /// The client's address.
    pub client: Box<str>,
    /// Method and target.
    pub request: Box<str>,
    /// What was answered.
    pub status: u16,
    /// Who has refused it: `guard`, `modsecurity`, `shed`.
    pub by: &'static str,
    /// Why, in its words.
    pub why: Box<str>,
}

static LAST: Mutex<VecDeque<Refusal>> = Mutex::new(VecDeque::new());

/// A text as it is kept: no longer than it may be.
pub fn text(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]).into()
}

/// Remembers a request. Where another thread is at it this one is left out: under a flood nobody waits for this.
pub fn note(refusal: Refusal) {
    let Ok(mut last) = LAST.try_lock() else { return };
    if last.len() >= MAX_KEPT {
        last.pop_front();
    }
    last.push_back(refusal);
}

/// The newest ones, the last first.
pub fn newest(at_most: usize) -> Vec<Refusal> {
    lock().iter().rev().take(at_most).cloned().collect()
}

/// The one with an id.
pub fn find(id: &str) -> Option<Refusal> {
    lock().iter().rev().find(|refusal| *refusal.id == *id).cloned()
}

fn lock() -> MutexGuard<'static, VecDeque<Refusal>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_are_kept() {
        for n in 0..MAX_KEPT + 2 {
            let id = n.to_string().into();
            note(Refusal {
                id,
                at_ms: 1,
                client: "a".into(),
                request: "GET /".into(),
                status: 429,
                by: "guard",
                why: "b".into(),
            });
        }
        assert_eq!(find("1"), None);
        assert!(find("2").is_some());
        let newest: Vec<_> = newest(2).into_iter().map(|r| r.id).collect();
        assert_eq!(newest, [(MAX_KEPT + 1).to_string().into_boxed_str(), MAX_KEPT.to_string().into()]);
        assert_eq!(text(&[b'x'; MAX_TEXT + 1]).len(), MAX_TEXT);
    }
}
