//! Finds out while rules are loaded what some of them will say: [`crate::settled`].

use super::{Matched, Now, Transaction};
use crate::expand::{Part, Text};
use crate::names::CAPTURES;
use crate::operator::Kind;
use crate::rule::{Change, Disruptive, PHASES, Rule, VarPlace};
use crate::rules::Rules;
use crate::select::{Select, Target};
use crate::settled::{Does, Settled, Step};
use crate::texts::{Fixed, NONE, TextId};
use crate::variable::{Collection, Source};
use crate::watchers::set;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Settled {
    /// What is known of a rule set, which knows nothing of it yet. Where it cannot be found out, nothing is settled. `sets` is how many sets
    /// of rules that look at the same things there are already.
    pub(crate) fn of(rules: &Arc<Rules>, sets: &mut u32) -> Settled {
        let found = catch_unwind(AssertUnwindSafe(|| {
            let mut transaction = Transaction::new(rules.clone(), None, Now::default());
            let settled = transaction.settle(rules);
            transaction.fault.is_none().then_some(settled)
        }));
        found.ok().flatten().map(|settled| settled.finish(rules, sets)).unwrap_or_default()
    }
}

impl Transaction {
    fn settle(&mut self, rules: &Rules) -> Settled {
        let plain = vec![0; rules.rules.len().div_ceil(64)].into();
        let mut settled = Settled { relied: vec![false; rules.names.count()], plain, ..Settled::default() };
        for phase in 1..=PHASES {
            let list = &rules.phases[phase];
            settled.phases[phase].left = vec![0; rules.rules.len().div_ceil(64)].into();
            let mut stops = vec![false; list.len() + 1];
            let mut at = 0;
            while let Some(first) = list.get(at) {
                stops[at] = true;
                at += 1;
                let (before, last) = (self.tx.clone(), self.last.take());
                let mut written = Vec::new();
                let Some(matches) = self.settle_chain(rules, *first as usize, &mut settled.relied, &mut written) else {
                    // It may have set something, which is not to be seen.
                    (self.tx, self.last) = (before, last);
                    self.tx_more.clear();
                    self.stored = Default::default();
                    self.lists[Collection::Env as usize].clear();
                    set(&mut settled.phases[phase].left, *first as usize);
                    note_plain(rules, *first as usize, &mut settled);
                    continue;
                };
                let steps = self.steps(written, &mut settled.texts);
                settled.phases[phase].steps.extend(steps.into_iter().map(|does| Step { by: *first, does }));
                self.last = self.last.or(last);
                if matches {
                    at = rules.rules[*first as usize].next(at);
                }
            }
            stops[list.len()] = true;
            settled.phases[phase].find_resumes(&rules.rules, list, &stops);
        }
        settled
    }

    /// Whether a rule with its chain matches, where that is known. Noted are the slots that this rests on, and those that are set.
    fn settle_chain(
        &mut self,
        rules: &Rules,
        first: usize,
        relied: &mut [bool],
        written: &mut Vec<u32>,
    ) -> Option<bool> {
        self.matched.clear();
        let mut slots = Vec::new();
        let mut at = first;
        let matches = loop {
            let rule = &rules.rules[at];
            looks_at(rule, &mut slots)?;
            if !self.link(rules, at) {
                break false;
            }
            sets(rule, &mut slots, written)?;
            if !rule.chained {
                break true;
            }
            at += 1;
        };
        let rule = &rules.rules[first];
        let is_quiet = !rule.log && !rule.audit && matches!(rule.disruptive, Disruptive::Pass);
        if matches && (!is_quiet || rule.meta.severity.is_some()) || self.fault.is_some() {
            return None;
        }
        slots.into_iter().for_each(|slot| relied[slot as usize] = true);
        Some(matches)
    }

    /// What a rule has done, in texts that all transactions have.
    fn steps(&self, mut written: Vec<u32>, texts: &mut Fixed) -> Vec<Does> {
        let mut fixed = |id: TextId| if id == NONE { NONE } else { texts.add(self.texts.get(id)) };
        written.sort_unstable();
        written.dedup();
        let mut steps: Vec<Does> =
            written.into_iter().map(|slot| Does::Set(slot, fixed(self.tx[slot as usize]))).collect();
        steps.extend(self.last.map(|matched| {
            let (name, value) = (fixed(matched.name), fixed(matched.value));
            Does::Matched(Matched { name, value, ..matched })
        }));
        steps
    }
}

/// Notes which rules of a chain that is left compare with what is known all the same: `@within %{tx.allowed_methods}`.
fn note_plain(rules: &Rules, first: usize, settled: &mut Settled) {
    for at in first.. {
        let rule = &rules.rules[at];
        let mut slots = Vec::new();
        if let Some(text) = rule.operator.parameter().filter(|_| !rule.is_plain)
            && macros(text, &mut slots).is_some()
            // What the chain itself sets is another one's with each request.
            && !rules.rules[first..].iter().take_while(|r| r.id == 0 || r.id == rules.rules[first].id).any(|r| writes(r, &slots))
        {
            set(&mut settled.plain, at);
            slots.into_iter().for_each(|slot| settled.relied[slot as usize] = true);
        }
        if !rule.chained {
            return;
        }
    }
}

fn writes(rule: &Rule, slots: &[u32]) -> bool {
    rule.sets.iter().any(|set| matches!(set.place, VarPlace::Slot(slot) if slots.contains(&slot)))
}

/// Notes the slots that a rule's answer rests on. None: on other things as well.
fn looks_at(rule: &Rule, slots: &mut Vec<u32>) -> Option<()> {
    // It sets `GEO`.
    if matches!(rule.operator.kind, Kind::Geo) {
        return None;
    }
    for target in &rule.targets {
        slots.push(slot(target)?);
    }
    rule.operator.parameter().map_or(Some(()), |text| macros(text, slots))
}

/// Notes the slots that a rule sets, and those that it rests on. None: it does something else, too.
fn sets(rule: &Rule, slots: &mut Vec<u32>, written: &mut Vec<u32>) -> Option<()> {
    if rule.capture || !rule.effects.is_empty() || !rule.meta.sanitise.is_empty() {
        return None;
    }
    for set in &rule.sets {
        let VarPlace::Slot(slot) = set.place else { return None };
        if (slot as usize) < CAPTURES {
            return None;
        }
        written.push(slot);
        match &set.change {
            Change::Unset => {}
            Change::Set(text) => macros(text, slots)?,
            Change::Add(text) | Change::Subtract(text) => {
                slots.push(slot);
                macros(text, slots)?;
            }
        }
    }
    Some(())
}

fn macros(text: &Text, slots: &mut Vec<u32>) -> Option<()> {
    for part in text.parts() {
        if let Part::Variable(target) = part {
            slots.push(slot(target)?);
        }
    }
    Some(())
}

/// The slot of `TX` that a target means; what expressions capture is set by too many.
fn slot(target: &Target) -> Option<u32> {
    match (target.source, &target.select) {
        (Source::Tx, Select::Slot(slot)) if *slot as usize >= CAPTURES => Some(*slot),
        _ => None,
    }
}
