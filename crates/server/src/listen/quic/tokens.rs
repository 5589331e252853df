//! Tokens that spare a client the check of its address next time (RFC 9000 section 8.1.3). Each is good once, as far as
//! this process remembers: two generations of limited size, so that an old token may rarely be good twice.

use quinn_proto::{TokenLog, TokenReuseError};
use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

/// Tokens of one generation.
const GENERATION: usize = 16 * 1024;

/// Tokens that were used, by their random numbers.
#[derive(Default)]
pub(super) struct Used(Mutex<[HashSet<u128>; 2]>);

/// The process's: tokens are good on every thread.
pub(super) fn used() -> Arc<Used> {
    static USED: LazyLock<Arc<Used>> = LazyLock::new(Arc::default);
    USED.clone()
}

impl TokenLog for Used {
    fn check_and_insert(&self, number: u128, _: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        let mut generations = self.0.lock().map_err(|_| TokenReuseError)?;
        let [new, old] = &mut *generations;
        if old.contains(&number) || !new.insert(number) {
            return Err(TokenReuseError);
        }
        if new.len() >= GENERATION {
            *old = std::mem::take(new);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_memory_is_limited() {
        let used = Used::default();
        let is_good = |n| used.check_and_insert(n, SystemTime::UNIX_EPOCH, Duration::ZERO).is_ok();
        assert!((0..GENERATION as u128 + 5).all(is_good));
        assert!(!is_good(3) && !is_good(GENERATION as u128 + 1));
        assert!((0..2 * GENERATION as u128).all(|n| is_good(n + 100_000)));
        assert!(used.0.lock().expect("no panic").iter().all(|g| g.len() <= GENERATION));
    }
}
