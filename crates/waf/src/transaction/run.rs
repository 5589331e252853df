//! Runs the rules of a phase. This is where the time goes: nothing here allocates for a rule that does not match.

use super::{Fault, Item, Matched, Transaction};
use crate::gate::Gate;
use crate::limits::{MAX_EXHAUSTED, MAX_MATCHED_VARS, MAX_SLOW, MAX_WORK, WORK, WORK_PER_BODY_BYTE};
use crate::operator::rx::Found;
use crate::operator::{Kind, NO_SPANS, number};
use crate::rule::{Allow, Effect, Rule};
use crate::rules::{Rules, side};
use crate::select::{Select, Target};
use crate::settled::{Does, next_of_both};
use crate::texts::{EMPTY, NONE, TextId};
use crate::variable::{Collection, Single, Source};
use crate::watchers::has;

impl Transaction {
    /// Runs the rules of a phase, once.
    pub(super) fn phase(&mut self, phase: usize) {
        if std::mem::replace(&mut self.phases_done[phase], true) {
            return;
        }
        let allowed = match self.switches.allow {
            Some(Allow::All) => phase < 5,
            Some(Allow::Request) => phase <= 2,
            Some(Allow::Phase) | None => false,
        };
        if allowed {
            return;
        }
        // What was allowed ends here: the phase, or all of the request.
        self.switches.allow = None;
        let rules = self.rules.clone();
        let list = &rules.phases[phase];
        // Those that rules set values of count as filled.
        let filled = self.lists.iter().enumerate().filter(|(_, list)| !list.is_empty());
        let filled = filled.fold(Collection::SET_BY_RULES, |bits, (at, _)| bits | 1 << at);
        let side = side(phase as u8);
        self.is_stale |= self.open_side != side;
        let mut at = 0;
        // What is settled of a phase begins with what the phases before have left.
        if self.settled == Some(phase - 1) {
            match self.settled_phase(&rules, phase, filled) {
                None => return,
                Some(next) => at = next,
            }
        } else {
            self.unsettle();
        }
        while let Some(first) = list.get(at) {
            at += 1;
            if self.is_stale {
                self.open_rules(&rules, side);
                if self.fault.is_some() {
                    return;
                }
            }
            if !has(&self.open, *first as usize)
                || self.is_shut(rules.gates[*first as usize], filled)
                || self.is_removed(*first)
                || !self.chain(&rules, *first as usize)
            {
                continue;
            }
            at = rules.rules[*first as usize].next(at);
            if self.is_over() || self.switches.allow.is_some() {
                return;
            }
        }
    }

    /// Runs the rules of a phase that are not settled. Some: what was settled has come to an end, and the phase's list goes on here.
    fn settled_phase(&mut self, rules: &Rules, phase: usize, filled: u16) -> Option<usize> {
        let plan = &rules.settled.phases[phase];
        let mut steps = plan.steps.iter().peekable();
        let mut from = 0;
        loop {
            if self.is_stale {
                self.open_rules(rules, side(phase as u8));
                if self.fault.is_some() {
                    return None;
                }
            }
            let next = next_of_both(&self.open, &plan.left, from);
            while let Some(step) = steps.next_if(|step| next.is_none_or(|next| (step.by as usize) < next)) {
                match step.does {
                    Does::Set(slot, value) => self.tx[slot as usize] = value,
                    Does::Matched(matched) => self.last = Some(matched),
                }
            }
            let Some(first) = next else { break };
            from = first + 1;
            if self.is_shut(rules.gates[first], filled) {
                continue;
            }
            let matches = self.chain(rules, first);
            if matches && (self.is_over() || self.switches.allow.is_some()) {
                return None;
            }
            let rule = &rules.rules[first];
            let skips = matches && (rule.skip > 0 || rule.skip_to.is_some());
            if skips && !has(&plan.resumes, first) {
                self.unsettle();
            }
            if skips || self.settled.is_none() {
                let list = &rules.phases[phase];
                let behind = list.partition_point(|rule| *rule as usize <= first);
                let next = if matches { rule.next(behind) } else { behind };
                if self.settled.is_none() {
                    return Some(next);
                }
                // What is skipped sets nothing.
                from = list.get(next).map_or(usize::MAX, |rule| *rule as usize);
                while steps.next_if(|step| (step.by as usize) < from).is_some() {}
            }
        }
        self.settled = Some(phase);
        None
    }

    /// Whether a rule cannot match, from what is known without looking at it.
    #[inline]
    fn is_shut(&self, gate: Gate, filled: u16) -> bool {
        match gate {
            Gate::Open => false,
            Gate::Values(collections) => collections & filled == 0,
            Gate::Number { slot, than, order, negated } => {
                let value = self.tx[slot as usize];
                value == NONE || order.holds(number(self.texts.get(value)), i64::from(than)) == negated
            }
        }
    }

    fn is_removed(&self, rule: u32) -> bool {
        self.removed.get(rule as usize / 64).is_some_and(|bits| bits >> (rule % 64) & 1 == 1)
    }

    /// Runs a rule with its chain.
    fn chain(&mut self, rules: &Rules, first: usize) -> bool {
        self.matched.clear();
        let mut at = first;
        loop {
            if !self.link(rules, at) {
                return false;
            }
            if !rules.rules[at].chained {
                break;
            }
            at += 1;
        }
        self.matched_fully(rules, first, at);
        true
    }

    /// Runs one rule by itself.
    pub(super) fn link(&mut self, rules: &Rules, at: usize) -> bool {
        let rule = &rules.rules[at];
        if rule.targets.is_empty() {
            if !matches!(rule.operator.kind, Kind::Always) || rule.operator.negated {
                return false;
            }
            self.set_vars(rule);
            return true;
        }
        let mut expanded = std::mem::take(&mut self.parameter);
        let parameter: &[u8] = match rule.operator.parameter() {
            None => &[],
            Some(text) => match text.constant() {
                Some(constant) => constant,
                None => {
                    expanded.clear();
                    self.expand_into(text, Some(rule), &mut expanded);
                    &expanded
                }
            },
        };
        self.matching.clear();
        let mut any = false;
        for target in &rule.targets {
            any |= self.target(rules, at, target, parameter);
            if self.fault.is_some() {
                return false;
            }
        }
        self.parameter = expanded;
        if any {
            std::mem::swap(&mut self.matched, &mut self.matching);
        }
        any
    }

    fn target(&mut self, rules: &Rules, at: usize, target: &Target, parameter: &[u8]) -> bool {
        if target.count {
            let count = self.count(at, target);
            return self.value(rules, at, target, NONE, count, parameter);
        }
        match target.source {
            Source::Single(single) => {
                let value = self.singles[single as usize];
                self.value(rules, at, target, NONE, value, parameter)
            }
            Source::Values(lists) | Source::Names(lists) => {
                let is_name = matches!(target.source, Source::Names(_));
                let mut any = false;
                for list in lists {
                    for index in 0..self.lists[*list as usize].len() {
                        let Item { name, value } = self.lists[*list as usize][index];
                        if matches!(target.select, Select::All) || self.chosen(&target.select, name) {
                            any |= self.value(rules, at, target, name, if is_name { name } else { value }, parameter);
                        }
                    }
                }
                any
            }
            Source::Tx if matches!(target.select, Select::Slot(_)) => {
                let Select::Slot(slot) = target.select else { return false };
                let value = self.tx[slot as usize];
                if value == NONE {
                    return false;
                }
                self.value(rules, at, target, NONE, value, parameter)
            }
            _ => {
                let mut values = std::mem::take(&mut self.values);
                values.clear();
                self.values(target, Some(&rules.rules[at]), &mut values);
                let mut any = false;
                for (name, value) in &values {
                    any |= self.value(rules, at, target, *name, *value, parameter);
                }
                self.values = values;
                any
            }
        }
    }

    /// Asks a rule's operator of one value, after each stage of transformations if the rule says `multiMatch`.
    #[inline]
    fn value(
        &mut self,
        rules: &Rules,
        at: usize,
        target: &Target,
        name: TextId,
        value: TextId,
        parameter: &[u8],
    ) -> bool {
        let rule = &rules.rules[at];
        let may_recur = match target.source {
            Source::Values(_) | Source::Names(_) | Source::Single(_) => true,
            // Made of names and values from outside; a single variable is a score or the like.
            Source::Tx => matches!(target.select, Select::Slots(..)),
            _ => false,
        };
        let is_plain = rule.is_plain || self.settled.is_some() && has(&rules.settled.plain, at);
        if !is_plain || !may_recur || target.count {
            return self.value_anew(rules, at, target, name, value, parameter);
        }
        let memo = self.texts.memo(value, &mut self.memo);
        if memo.is_some_and(|id| self.memo.is_clear(id, at)) {
            return false;
        }
        self.was_excluded = false;
        let matches = self.value_anew(rules, at, target, name, value, parameter);
        if let Some(id) = memo
            && !matches
            && !self.was_excluded
            && self.fault.is_none()
        {
            self.memo.clear(id, at);
        }
        matches
    }

    fn value_anew(
        &mut self,
        rules: &Rules,
        at: usize,
        target: &Target,
        name: TextId,
        value: TextId,
        parameter: &[u8],
    ) -> bool {
        let rule = &rules.rules[at];
        let Some(stages) = &rule.stages else {
            let text = self.texts.transformed(rules, value, rule.chain);
            return self.ask(rules, at, target, name, text, parameter);
        };
        let (mut any, mut before) = (false, NONE);
        for stage in stages {
            let text = self.texts.transformed(rules, value, *stage);
            if text != before {
                any |= self.ask(rules, at, target, name, text, parameter);
                before = text;
            }
        }
        any
    }

    #[inline]
    fn ask(&mut self, rules: &Rules, at: usize, target: &Target, name: TextId, text: TextId, parameter: &[u8]) -> bool {
        let rule = &rules.rules[at];
        let side = side(rule.phase);
        if !self.texts.may_match(rules, side, text, at) {
            return false;
        }
        self.ask_operator(rules, at, target, name, text, parameter)
    }

    fn ask_operator(
        &mut self,
        rules: &Rules,
        at: usize,
        target: &Target,
        name: TextId,
        text: TextId,
        parameter: &[u8],
    ) -> bool {
        let rule = &rules.rules[at];
        self.texts.work += self.texts.length(text) as u64 + 1;
        if self.texts.work > self.allowed_work() {
            self.too_expensive();
            return false;
        }
        let mut spans = NO_SPANS;
        let located = matches!(rule.operator.kind, Kind::Geo) && self.locate(rules, text);
        let scratch = self.scratch.get_or_insert_with(|| rules.scratch());
        let found =
            if located { Found::Yes } else { rule.operator.test(self.texts.get(text), parameter, scratch, &mut spans) };
        scratch.exhausted += u32::from(found == Found::Exhausted);
        if scratch.slow > MAX_SLOW || scratch.exhausted > MAX_EXHAUSTED {
            self.too_expensive();
            return false;
        }
        if found == Found::Exhausted {
            self.ran_out();
        }
        // A value that cannot be judged counts as what the rule looks for, whichever way it asks: only an attack is made so. Where a match would spare the
        // request something, it counts as none.
        let matches = match found {
            Found::Exhausted => !rule.is_lenient,
            Found::Yes | Found::No => (found == Found::Yes) != rule.operator.negated,
        };
        if !matches {
            return false;
        }
        if self.excluded(at, target, name) {
            self.was_excluded = true;
            return false;
        }
        if rule.capture && found == Found::Yes {
            if let Some(fingerprint) = rule.operator.fingerprint(self.texts.get(text)) {
                self.tx[0] = self.texts.add(&fingerprint);
            } else {
                for (slot, span) in spans.iter().enumerate() {
                    self.tx[slot] = span.map_or(NONE, |(from, to)| self.texts.part(text, from, to));
                }
            }
        }
        let name = match (&target.select, target.source) {
            (Select::Slot(slot), Source::Tx) => self.texts.add(rules.names.name(*slot)),
            _ => name,
        };
        let matched = Matched { label: target.label, name, value: text };
        self.last = Some(matched);
        if self.matching.len() < MAX_MATCHED_VARS {
            self.matching.push(matched);
        }
        self.set_vars(rule);
        true
    }

    /// Puts what is known of an address into `GEO`. Whether something is.
    fn locate(&mut self, rules: &Rules, address: TextId) -> bool {
        let Some(geo) = &rules.settings.geo else { return false };
        let Some(fields) = geo.look_up(self.texts.get(address)) else { return false };
        self.lists[Collection::Geo as usize].clear();
        for (name, value) in fields {
            let (name, value) = (self.texts.add(name.as_bytes()), self.texts.add(value.as_bytes()));
            self.push(Collection::Geo, name, value);
        }
        true
    }

    /// What this transaction may cost.
    pub(super) fn allowed_work(&self) -> u64 {
        let bodies = (self.judged_bytes + self.response_body.len()) as u64;
        if self.rules.is_bare { u64::MAX } else { (WORK + bodies * WORK_PER_BODY_BYTE).min(MAX_WORK) }
    }

    /// Gives the transaction up: no rule is asked any more, and whoever reads its variables or its log sees why.
    pub(super) fn too_expensive(&mut self) {
        self.fault = Some(Fault::TooExpensive);
        self.ran_out();
    }

    fn ran_out(&mut self) {
        let one = self.texts.add_number(1);
        self.set(Single::MscPcreLimitsExceeded, one);
        self.set_tx(b"msc_pcre_limits_exceeded", one);
    }

    /// Whether a value is one that the rule, or a `ctl` before it, leaves out. Asked only of values that match.
    pub(super) fn excluded(&self, at: usize, target: &Target, name: TextId) -> bool {
        let name = if name == NONE { EMPTY } else { name };
        if target.except.iter().any(|select| self.chosen(select, name)) {
            return true;
        }
        self.targets_removed.iter().any(|(rule, effect)| {
            let Effect::RemoveTarget(rules, exclusion) = &self.rules.rules[*rule as usize].effects[*effect as usize]
            else {
                return false;
            };
            exclusion.label == target.label
                && rules.binary_search(&(self.first_of(at) as u32)).is_ok()
                && self.chosen(&exclusion.select, name)
        })
    }

    /// The first rule of the chain that a rule belongs to.
    fn first_of(&self, mut at: usize) -> usize {
        while at > 0 && self.rules.rules[at - 1].chained {
            at -= 1;
        }
        at
    }

    /// What happens for every value that matches. Records are opened first, so that the same rule can set their variables.
    fn set_vars(&mut self, rule: &Rule) {
        for effect in &rule.effects {
            if let Effect::Open(stored, key) = effect {
                self.open(rule, *stored, key);
            }
        }
        for set in &rule.sets {
            self.set_var(rule, set);
        }
    }
}
