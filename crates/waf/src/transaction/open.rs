//! Which rules of a phase some value may match, found out once for all rules. A value is judged beforehand against all rules that look at it: after each
//! chain of transformations one pass finds the literals of all rules. What it leaves is remembered with the value ([`crate::memo`]).

use super::{Item, Transaction};
use crate::memo::MemoId;
use crate::rules::Rules;
use crate::texts::TextId;
use crate::watchers::Bits;

impl Transaction {
    /// Fills in the bits of the rules that are to be run in the phases of a side, from the values that there are now.
    pub(super) fn open_rules(&mut self, rules: &Rules, side: usize) {
        let watchers = &rules.watchers[side];
        let mut open = std::mem::take(&mut self.open);
        open.clear();
        open.extend_from_slice(&watchers.always);
        for (single, watching) in &watchers.singles {
            self.open_for(rules, side, self.singles[*single as usize], watching, &mut open);
        }
        for (collection, of) in &watchers.collections {
            for index in 0..self.lists[*collection as usize].len() {
                let Item { name, value } = self.lists[*collection as usize][index];
                if let Some(watching) = &of.values {
                    self.open_for(rules, side, value, watching, &mut open);
                }
                if let Some(watching) = of.of_value(self.texts.get(name)) {
                    self.open_for(rules, side, value, watching, &mut open);
                }
                if let Some(watching) = &of.names {
                    self.open_for(rules, side, name, watching, &mut open);
                }
                if let Some(watching) = of.of_name(self.texts.get(name)) {
                    self.open_for(rules, side, name, watching, &mut open);
                }
            }
        }
        self.open = open;
        (self.is_stale, self.open_side) = (false, side);
    }

    /// Adds the rules that a value may match, of those that look at it.
    #[inline]
    fn open_for(&mut self, rules: &Rules, side: usize, text: TextId, watching: &Bits, open: &mut [u64]) {
        let Some(id) = self.texts.memo(text, &mut self.memo) else {
            open.iter_mut().zip(watching).for_each(|(open, watching)| *open |= watching);
            return;
        };
        if !self.memo.knows(id, watching) {
            self.judge_beforehand(rules, side, text, id, watching);
        }
        let clear = self.memo.cleared(id);
        open.iter_mut().zip(watching).zip(clear).for_each(|((open, watching), clear)| *open |= watching & !clear);
    }

    /// Notes which of the rules that look at a value cannot match it.
    fn judge_beforehand(&mut self, rules: &Rules, side: usize, text: TextId, id: MemoId, watching: &Bits) {
        let mut unknown = std::mem::take(&mut self.unknown);
        self.memo.learn(id, watching, &mut unknown);
        for (chain, members) in &rules.watchers[side].by_chain {
            if members.iter().zip(&unknown).all(|(a, b)| a & b == 0) {
                continue;
            }
            if self.texts.work > self.allowed_work() {
                self.too_expensive();
                break;
            }
            let transformed = self.texts.transformed(rules, text, *chain);
            for (word, (members, unknown)) in members.iter().zip(&unknown).enumerate() {
                let asked = members & unknown;
                if asked != 0 {
                    let left = self.texts.may_match_any(rules, side, (transformed, *chain), word, asked);
                    self.memo.clear_word(id, word, asked & !left);
                }
            }
        }
        self.unknown = unknown;
    }
}
