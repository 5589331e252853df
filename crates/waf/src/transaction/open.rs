//! Which rules of a phase some value may match, found out once for all rules. A value is judged beforehand against all rules that look at it: after each
//! chain of transformations one pass finds the literals of all rules. What it leaves is remembered with the value ([`crate::memo`]).

use super::{Item, Transaction};
use crate::memo::MemoId;
use crate::rules::Rules;
use crate::texts::TextId;
use crate::watchers::{Bits, Watchers, Watching};

impl Transaction {
    /// Fills in the bits of the rules that are to be run in the phases of a side, from the values that there are now.
    pub(super) fn open_rules(&mut self, rules: &Rules, side: usize) {
        let watchers = self.watchers(rules, side);
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

    /// Who looks at what, of the rules that are to be run.
    #[inline]
    fn watchers<'r>(&self, rules: &'r Rules, side: usize) -> &'r Watchers {
        if self.settled.is_some() { &rules.settled.watchers[side] } else { &rules.watchers[side] }
    }

    /// Adds the rules that a value may match, of those that look at it.
    #[inline]
    fn open_for(&mut self, rules: &Rules, side: usize, text: TextId, watching: &Watching, open: &mut [u64]) {
        let Some(id) = self.texts.memo(text, &mut self.memo) else {
            open.iter_mut().zip(&watching.rules).for_each(|(open, watching)| *open |= watching);
            return;
        };
        if self.memo.is_done(id, watching.set) {
            return;
        }
        if !self.memo.knows(id, &watching.rules) {
            self.judge_beforehand(rules, side, text, id, &watching.rules);
        }
        let mut any = 0;
        for ((open, watching), clear) in open.iter_mut().zip(&watching.rules).zip(self.memo.cleared(id)) {
            let left = watching & !clear;
            *open |= left;
            any |= left;
        }
        if any == 0 {
            self.memo.set_done(id, watching.set);
        }
    }

    /// Notes which of the rules that look at a value cannot match it.
    fn judge_beforehand(&mut self, rules: &Rules, side: usize, text: TextId, id: MemoId, watching: &Bits) {
        let mut unknown = std::mem::take(&mut self.unknown);
        self.memo.learn(id, watching, &mut unknown);
        for (chain, members) in &self.watchers(rules, side).by_chain {
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
