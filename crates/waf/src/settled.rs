//! Rules whose answer is known while rules are loaded. Half of a rule set's rules look at nothing but `TX` variables that earlier rules have set to
//! constants: defaults of a configuration, levels of paranoia, scores that nothing has raised. They are run once, on a transaction without a request
//! (`transaction/settle.rs`); a request takes over what they set, and runs the rules that are left. Rules that are always skipped are not even looked at.
//!
//! All of it rests on variables that nobody else sets. The first rule that does ([`Settled::relied`]), that removes rules or skips some that set something, ends
//! it: from there on a transaction runs every rule.

use crate::rule::{PHASES, Rule};
use crate::rules::Rules;
use crate::texts::{Fixed, TextId};
use crate::transaction::Matched;
use crate::watchers::{Bits, Watchers, has, set};

/// What is known of a rule set beforehand.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Something is.
    pub is_on: bool,
    /// By phase.
    pub phases: [Phase; PHASES + 1],
    /// Who of the rules that are left looks at what: of requests and of answers.
    pub watchers: [Watchers; 2],
    /// Rules and links of chains whose operator has macros, all of which are known: their answer depends on the value alone. A bit for each.
    pub plain: Bits,
    /// The slots of `TX` that answers rest on.
    pub relied: Vec<bool>,
    /// What settled rules set, and all that a transaction has from the start.
    pub texts: Fixed,
}

/// What is known of a phase.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// The rules that are to be run: a bit for each.
    pub left: Bits,
    /// What the others do, in order.
    pub steps: Vec<Step>,
    /// Rules of those that are left which skip others when they match, and change nothing by that of what is settled.
    pub resumes: Bits,
}

/// What a settled rule does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The rule, which comes before those that are left and have a higher number.
    pub by: u32,
    /// What it does.
    pub does: Does,
}

/// See [`Step`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Does {
    /// A variable of `TX` gets a value, or none.
    Set(u32, TextId),
    /// This is what `MATCHED_VAR` says.
    Matched(Matched),
}

impl Phase {
    /// Finds the rules that only skip what is of no consequence. `stops` are the places in the phase's list that have been looked at.
    pub(crate) fn find_resumes(&mut self, rules: &[Rule], list: &[u32], stops: &[bool]) {
        self.resumes = vec![0; self.left.len()].into();
        for (at, first) in list.iter().enumerate() {
            let to = rules[*first as usize].next(at + 1);
            let skips = to > at + 1 && has(&self.left, *first as usize);
            let behind = list.get(to).map_or(u32::MAX, |rule| *rule);
            let sets = |step: &Step| matches!(step.does, Does::Set(..)) && (*first..behind).contains(&step.by);
            if skips && stops.get(to).is_some_and(|stops| *stops) && !self.steps.iter().any(sets) {
                set(&mut self.resumes, *first as usize);
            }
        }
    }
}

impl Settled {
    /// Notes who looks at what, of the rules that are left. `settled` answers for all phases.
    pub(crate) fn finish(mut self, rules: &Rules, sets: &mut u32) -> Settled {
        let left = |phase: usize| -> Vec<u32> {
            let list = rules.phases[phase].iter();
            list.copied().filter(|rule| has(&self.phases[phase].left, *rule as usize)).collect()
        };
        let lists: [Vec<u32>; PHASES + 1] = std::array::from_fn(left);
        self.watchers = [0, 1].map(|of_side| Watchers::of(&rules.rules, &lists, (of_side, &self.plain), sets));
        self.is_on = true;
        self
    }
}

/// The first rule, from a number on, that is in both sets.
#[inline]
pub(crate) fn next_of_both(a: &[u64], b: &[u64], from: usize) -> Option<usize> {
    let mut word = from / 64;
    let mut bits = a.get(word)? & b.get(word)? & (u64::MAX << (from % 64));
    while bits == 0 {
        word += 1;
        bits = a.get(word)? & b.get(word)?;
    }
    Some(word * 64 + bits.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_in_both_sets_are_found_in_order() {
        let (a, b) = ([0b1011, 0, 1 << 63], [0b1010, 7, 1 << 63]);
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(rule) = next_of_both(&a, &b, from) {
            found.push(rule);
            from = rule + 1;
        }
        assert_eq!(found, [1, 3, 191]);
        assert_eq!(next_of_both(&[], &[], 0), None);
    }
}
