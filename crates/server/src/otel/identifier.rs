//! Identifiers of traces and spans.

use std::cell::RefCell;

/// Random bytes that are fetched at once.
const RANDOM: usize = 512;

thread_local! {
    static POOL: RefCell<(usize, [u8; RANDOM])> = const { RefCell::new((RANDOM, [0; RANDOM])) };
}

/// A new identifier: random, and not all zero. The kernel is asked for many at once.
pub fn random<const N: usize>() -> [u8; N] {
    let mut id = [0; N];
    POOL.with_borrow_mut(|(at, bytes)| {
        if *at + N > RANDOM {
            let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
            *at = 0;
        }
        id.copy_from_slice(&bytes[*at..*at + N]);
        *at += N;
    });
    id[N - 1] |= u8::from(id == [0; N]);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_differ() {
        let all: std::collections::HashSet<[u8; 16]> = (0..1000).map(|_| random()).collect();
        assert_eq!(all.len(), 1000);
    }
}
