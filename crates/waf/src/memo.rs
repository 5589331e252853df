//! What rules have said of values before. Browsers send the same headers and cookies again and again: that a rule does not match
//! such a value is remembered for the next request, by the value's bytes, so that nothing needs to be transformed or asked again.
//! Values that are too long to be remembered have a row for as long as their request lasts.
//!
//! Only "does not match" is remembered, and only of rules whose answer depends on the value alone: their operator has no macros.

use crate::keyed::Keyed;
use crate::limits::{MAX_MEMO_VALUE_BYTES, MAX_MEMO_VALUES};
use std::collections::HashMap;

/// A remembered value's number.
pub(crate) type MemoId = u32;

/// The values of one rule set.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    values: HashMap<Box<[u8]>, MemoId, Keyed>,
    /// Rows of two bits for each rule: first that it does not match, then that it has been judged beforehand. Behind them a bit for each set of rules that
    /// look at the same things: none of them matches.
    bits: Vec<u64>,
    rows: usize,
    words: usize,
    /// Words of a row.
    width: usize,
}

impl Memo {
    /// Forgets everything, and is for so many rules, and sets of rules, from now on.
    pub(crate) fn reset(&mut self, rules: usize, sets: usize) {
        self.words = rules.div_ceil(64);
        self.width = 2 * self.words + sets.div_ceil(64);
        self.forget();
    }

    fn forget(&mut self) {
        self.values.clear();
        self.bits.clear();
        self.rows = 0;
    }

    /// To be called between transactions, since it may forget all values: when there is no room for more.
    pub(crate) fn make_room(&mut self) {
        if self.rows >= MAX_MEMO_VALUES / 2 {
            self.forget();
        }
    }

    /// The number of a value. None: there is no room.
    pub(crate) fn of(&mut self, value: &[u8]) -> Option<MemoId> {
        let is_kept = value.len() <= MAX_MEMO_VALUE_BYTES;
        if is_kept && let Some(id) = self.values.get(value) {
            return Some(*id);
        }
        if self.rows >= MAX_MEMO_VALUES {
            return None;
        }
        let id = self.rows as MemoId;
        if is_kept {
            self.values.insert(value.into(), id);
        }
        self.rows += 1;
        self.bits.resize(self.rows * self.width, 0);
        Some(id)
    }

    /// The rules that are known not to match a value.
    #[inline]
    pub(crate) fn cleared(&self, value: MemoId) -> &[u64] {
        &self.bits[value as usize * self.width..][..self.words]
    }

    /// Whether it is known that no rule of a set matches.
    #[inline]
    pub(crate) fn is_done(&self, value: MemoId, set: u32) -> bool {
        self.bits[value as usize * self.width + 2 * self.words + set as usize / 64] >> (set % 64) & 1 == 1
    }

    /// Remembers that no rule of a set matches.
    pub(crate) fn set_done(&mut self, value: MemoId, set: u32) {
        self.bits[value as usize * self.width + 2 * self.words + set as usize / 64] |= 1 << (set % 64);
    }

    /// Whether all of these rules have been judged beforehand.
    #[inline]
    pub(crate) fn knows(&self, value: MemoId, rules: &[u64]) -> bool {
        let known = &self.bits[value as usize * self.width + self.words..][..self.words];
        rules.iter().zip(known).all(|(rules, known)| rules & !known == 0)
    }

    /// Those of these rules that have not been judged beforehand; they count as judged from now on.
    pub(crate) fn learn(&mut self, value: MemoId, rules: &[u64], unknown: &mut Vec<u64>) {
        let known = &mut self.bits[value as usize * self.width + self.words..][..self.words];
        unknown.clear();
        unknown.extend(rules.iter().zip(known.iter()).map(|(rules, known)| rules & !known));
        known.iter_mut().zip(rules).for_each(|(known, rules)| *known |= rules);
    }

    /// Remembers that rules of one word do not match the value.
    #[inline]
    pub(crate) fn clear_word(&mut self, value: MemoId, word: usize, rules: u64) {
        self.bits[value as usize * self.width + word] |= rules;
    }

    /// Whether the rule is known not to match the value.
    #[inline]
    pub(crate) fn is_clear(&self, value: MemoId, rule: usize) -> bool {
        self.bits[value as usize * self.width + rule / 64] >> (rule % 64) & 1 == 1
    }

    /// Remembers that the rule does not match the value.
    #[inline]
    pub(crate) fn clear(&mut self, value: MemoId, rule: usize) {
        self.bits[value as usize * self.width + rule / 64] |= 1 << (rule % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_remembered_within_bounds() {
        let mut memo = Memo::default();
        memo.reset(100, 70);
        let id = memo.of(b"a value").unwrap();
        memo.clear(id, 70);
        assert!(memo.is_clear(id, 70) && !memo.is_clear(id, 69));
        assert_eq!(memo.of(b"a value"), Some(id));
        let long = vec![b'x'; MAX_MEMO_VALUE_BYTES + 1];
        assert_ne!(memo.of(&long), memo.of(&long), "too long to be remembered");
        let known = (0..2 * MAX_MEMO_VALUES).filter(|n| memo.of(n.to_string().as_bytes()).is_some()).count();
        assert_eq!(known, MAX_MEMO_VALUES - 3);
        assert_eq!(memo.of(b"no room"), None);
        memo.make_room();
        let again = memo.of(b"a value").unwrap();
        assert!(!memo.is_clear(again, 70));
    }
    #[test]
    fn rules_are_judged_beforehand_once() {
        let mut memo = Memo::default();
        memo.reset(100, 70);
        let (id, mut unknown) = (memo.of(b"a").unwrap(), Vec::new());
        assert!(!memo.knows(id, &[0b11, 1]));
        memo.learn(id, &[0b11, 1], &mut unknown);
        assert_eq!(unknown, [0b11, 1]);
        memo.clear_word(id, 1, 1);
        assert!(memo.knows(id, &[0b01, 1]) && memo.is_clear(id, 64) && !memo.is_clear(id, 0));
        memo.learn(id, &[0b111, 0], &mut unknown);
        assert_eq!((unknown.as_slice(), memo.cleared(id)), (&[0b100, 0][..], &[0, 1][..]));
        memo.set_done(id, 69);
        assert!(memo.is_done(id, 69) && !memo.is_done(id, 68) && !memo.is_done(id, 5));
        assert_eq!(memo.cleared(id), [0, 1]);
    }
}
