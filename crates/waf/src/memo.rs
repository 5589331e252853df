//! What rules have said of values before. Browsers send the same headers and cookies again and again: that a rule does not match
//! such a value is remembered for the next request, by the value's bytes, so that nothing needs to be transformed or asked again.
//!
//! Only "does not match" is remembered, and only of rules whose answer depends on the value alone: their operator has no macros.

use crate::limits::{MAX_MEMO_VALUE_BYTES, MAX_MEMO_VALUES};
use std::collections::HashMap;

/// A remembered value's number.
pub(crate) type MemoId = u32;

/// The values of one rule set.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    values: HashMap<Box<[u8]>, MemoId>,
    /// One bit for each rule, in rows.
    bits: Vec<u64>,
    words: usize,
}

impl Memo {
    /// Forgets everything, and is for so many rules from now on.
    pub(crate) fn reset(&mut self, rules: usize) {
        self.values.clear();
        self.bits.clear();
        self.words = rules.div_ceil(64);
    }

    /// To be called between transactions, since it may forget all values: when there is no room for more.
    pub(crate) fn make_room(&mut self) {
        if self.values.len() >= MAX_MEMO_VALUES / 2 {
            self.values.clear();
            self.bits.clear();
        }
    }

    /// The number of a value. None: it is too long to be remembered, or there is no room.
    pub(crate) fn of(&mut self, value: &[u8]) -> Option<MemoId> {
        if value.is_empty() || value.len() > MAX_MEMO_VALUE_BYTES {
            return None;
        }
        if let Some(id) = self.values.get(value) {
            return Some(*id);
        }
        if self.values.len() >= MAX_MEMO_VALUES {
            return None;
        }
        let id = self.values.len() as MemoId;
        self.values.insert(value.into(), id);
        self.bits.resize(self.bits.len() + self.words, 0);
        Some(id)
    }

    /// Whether the rule is known not to match the value.
    #[inline]
    pub(crate) fn is_clear(&self, value: MemoId, rule: usize) -> bool {
        self.bits[value as usize * self.words + rule / 64] >> (rule % 64) & 1 == 1
    }

    /// Remembers that the rule does not match the value.
    #[inline]
    pub(crate) fn clear(&mut self, value: MemoId, rule: usize) {
        self.bits[value as usize * self.words + rule / 64] |= 1 << (rule % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_remembered_within_bounds() {
        let mut memo = Memo::default();
        memo.reset(100);
        let id = memo.of(b"a value").unwrap();
        memo.clear(id, 70);
        assert!(memo.is_clear(id, 70) && !memo.is_clear(id, 69));
        assert_eq!((memo.of(b"a value"), memo.of(b"")), (Some(id), None));
        assert_eq!(memo.of(&vec![b'x'; MAX_MEMO_VALUE_BYTES + 1]), None);
        let known = (0..2 * MAX_MEMO_VALUES).filter(|n| memo.of(n.to_string().as_bytes()).is_some()).count();
        assert_eq!(known, MAX_MEMO_VALUES - 1);
        assert_eq!(memo.of(b"no room"), None);
        memo.make_room();
        let again = memo.of(b"a value").unwrap();
        assert!(!memo.is_clear(again, 70));
    }
}
