//! Where a variable's values are found: for rules that look at them, and for macros.

use super::{Matched, Transaction};
use crate::expand::{Part, Text};
use crate::limits::MAX_EXPANDED_BYTES;
use crate::rule::Rule;
use crate::seclang::actions::SEVERITIES;
use crate::select::{Select, Target};
use crate::texts::{EMPTY, NONE, TextId};
use crate::variable::{Collection, Computed, Single, Source};

/// What this engine calls itself in `MODSEC_BUILD`: libmodsecurity 3.0.14's number, for rules that ask for features.
const BUILD: &[u8] = b"030014000";

impl Transaction {
    /// Whether a value's name is chosen.
    pub(super) fn chosen(&self, select: &Select, name: TextId) -> bool {
        match select {
            Select::All => true,
            Select::Name(wanted) => self.texts.get(name).eq_ignore_ascii_case(wanted),
            Select::Slot(slot) => self.texts.get(name).eq_ignore_ascii_case(self.rules.names.name(*slot)),
            Select::Pattern(rx) | Select::Slots(rx, _) => rx.is_match(self.texts.get(name)),
        }
    }

    /// How many values a variable has: `&ARGS`. Those that the rule excludes do not count.
    pub(super) fn count(&mut self, rule_at: usize, target: &Target) -> TextId {
        if let (Source::Tx, Select::Slot(slot)) = (target.source, &target.select) {
            return self.texts.add_number(i64::from(self.tx[*slot as usize] != NONE));
        }
        if let Source::Values(lists) | Source::Names(lists) = target.source
            && target.except.is_empty()
            && self.targets_removed.is_empty()
        {
            let all = lists.iter().flat_map(|list| &self.lists[*list as usize]);
            let counted = all.filter(|item| self.chosen(&target.select, item.name)).count();
            return self.texts.add_number(counted as i64);
        }
        let mut values = Vec::new();
        self.values(target, None, &mut values);
        let counted = values.iter().filter(|(name, _)| !self.excluded(rule_at, target, *name)).count();
        self.texts.add_number(counted as i64)
    }

    /// The first value of a variable, for a macro.
    fn first(&mut self, target: &Target, rule: Option<&Rule>) -> TextId {
        match (target.source, &target.select) {
            (Source::Single(single), _) => self.singles[single as usize],
            (Source::Tx, Select::Slot(slot)) => self.tx[*slot as usize],
            (Source::Computed(computed), _) => self.computed(computed),
            _ => {
                let mut values = Vec::new();
                self.values(target, rule, &mut values);
                values.first().map_or(EMPTY, |(_, value)| *value)
            }
        }
    }

    /// All values of a variable with their names, in order.
    pub(super) fn values(&mut self, target: &Target, rule: Option<&Rule>, out: &mut Vec<(TextId, TextId)>) {
        let select = &target.select;
        match target.source {
            Source::Single(single) => out.push((NONE, self.singles[single as usize])),
            Source::Computed(computed) => out.push((NONE, self.computed(computed))),
            Source::Values(lists) => {
                for list in lists {
                    let all = self.lists[*list as usize].iter();
                    out.extend(all.filter(|i| self.chosen(select, i.name)).map(|i| (i.name, i.value)));
                }
            }
            Source::Names(lists) => {
                for list in lists {
                    let all = self.lists[*list as usize].iter();
                    out.extend(all.filter(|i| self.chosen(select, i.name)).map(|i| (i.name, i.name)));
                }
            }
            Source::Tx => self.tx_values(select, out),
            Source::Stored(stored) => {
                if let Some(record) = &self.stored[stored as usize] {
                    let all = record.items.iter();
                    out.extend(all.filter(|i| self.chosen(select, i.name)).map(|i| (i.name, i.value)));
                }
            }
            Source::MatchedVars | Source::MatchedVarsNames => {
                for at in 0..self.matched.len() {
                    let matched = self.matched[at];
                    let name = self.name_of(&matched);
                    let name = self.texts.add(&name);
                    if self.chosen(select, name) {
                        let is_name = target.source == Source::MatchedVarsNames;
                        out.push((name, if is_name { name } else { matched.value }));
                    }
                }
            }
            Source::Rule => {
                if let Some(rule) = rule {
                    self.rule_values(rule, select, out);
                }
            }
            // Lists that name XML say which of its collections they mean.
            Source::Xml => {}
        }
    }

    fn tx_values(&mut self, select: &Select, out: &mut Vec<(TextId, TextId)>) {
        if let Select::Slot(slot) = select {
            let value = self.tx[*slot as usize];
            if value != NONE {
                let name = self.texts.add(self.rules.names.name(*slot));
                out.push((name, value));
            }
            return;
        }
        let rules = self.rules.clone();
        let mut give = |t: &mut Transaction, slot: u32| {
            let value = t.tx[slot as usize];
            if value != NONE {
                out.push((t.texts.add(rules.names.name(slot)), value));
            }
        };
        match select {
            Select::Slots(_, slots) => slots.iter().for_each(|slot| give(self, *slot)),
            _ => (0..self.tx.len() as u32).for_each(|slot| give(self, slot)),
        }
        for (name, value) in &self.tx_more {
            if !matches!(select, Select::Slots(rx, _) if !rx.is_match(name)) {
                out.push((self.texts.add(name), *value));
            }
        }
    }

    /// `RULE`: what the running rule says of itself.
    fn rule_values(&mut self, rule: &Rule, select: &Select, out: &mut Vec<(TextId, TextId)>) {
        let mut give = |t: &mut Transaction, name: &[u8], value: Vec<u8>| {
            let name = t.texts.add(name);
            if t.chosen(select, name) {
                let value = t.texts.add(&value);
                out.push((name, value));
            }
        };
        give(self, b"id", rule.id.to_string().into_bytes());
        if let Some(severity) = rule.meta.severity {
            give(self, b"severity", SEVERITIES[usize::from(severity)].as_bytes().to_vec());
        }
        if let Some(rev) = &rule.meta.rev {
            give(self, b"rev", rev.as_bytes().to_vec());
        }
        for (name, text) in [(&b"msg"[..], &rule.meta.msg), (b"logdata", &rule.meta.logdata)] {
            if let Some(text) = text {
                let mut value = Vec::new();
                // A message that names itself has no end.
                self.expand_into(text, None, &mut value);
                give(self, name, value);
            }
        }
    }

    pub(super) fn computed(&mut self, computed: Computed) -> TextId {
        let now_s = (self.now.epoch_ms / 1000) as i64;
        let local = now_s + i64::from(self.now.utc_offset_s);
        let date = Date::of(local);
        let number = match computed {
            Computed::ArgsCombinedSize => {
                let lists = [Collection::ArgsGet, Collection::ArgsPost];
                let items = lists.iter().flat_map(|l| &self.lists[*l as usize]);
                items.map(|i| (self.texts.length(i.name) + self.texts.length(i.value)) as i64).sum()
            }
            Computed::FilesCombinedSize => {
                let items = self.lists[Collection::FilesSizes as usize].iter();
                items.map(|i| crate::operator::number(self.texts.get(i.value))).sum()
            }
            Computed::FullRequest => {
                let text = self.full_request();
                return self.texts.add(&text);
            }
            Computed::FullRequestLength => self.full_request().len() as i64,
            Computed::HighestSeverity => self.highest_severity.map_or(255, i64::from),
            Computed::MatchedVar => return self.last.map_or(EMPTY, |m| m.value),
            Computed::MatchedVarName => {
                let name = self.last.map(|m| self.name_of(&m)).unwrap_or_default();
                return self.texts.add(&name);
            }
            Computed::ModsecBuild => return self.texts.add(BUILD),
            Computed::Duration => 0,
            Computed::Time => {
                let text = format!("{:02}:{:02}:{:02}", date.hour, date.minute, date.second);
                return self.texts.add(text.as_bytes());
            }
            Computed::TimeDay => date.day,
            Computed::TimeEpoch => now_s,
            Computed::TimeHour => date.hour,
            Computed::TimeMin => date.minute,
            Computed::TimeMon => date.month - 1,
            Computed::TimeSec => date.second,
            Computed::TimeWday => date.weekday,
            Computed::TimeYear => date.year,
        };
        self.texts.add_number(number)
    }

    fn full_request(&self) -> Vec<u8> {
        let mut text = self.single(Single::RequestLine).to_vec();
        text.extend_from_slice(b"\r\n");
        for item in &self.lists[Collection::RequestHeaders as usize] {
            text.extend_from_slice(self.texts.get(item.name));
            text.extend_from_slice(b": ");
            text.extend_from_slice(self.texts.get(item.value));
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(&self.request_body);
        text
    }

    /// `ARGS:a`
    pub(super) fn name_of(&self, matched: &Matched) -> Vec<u8> {
        let mut name = matched.label.as_bytes().to_vec();
        if matched.name != NONE {
            name.push(b':');
            name.extend_from_slice(self.texts.get(matched.name));
        }
        name
    }

    /// Fills in a text's macros.
    pub(super) fn expand_into(&mut self, text: &Text, rule: Option<&Rule>, out: &mut Vec<u8>) {
        for part in text.parts() {
            match part {
                Part::Literal(literal) => out.extend_from_slice(literal),
                Part::Variable(target) => {
                    let value = self.first(target, rule);
                    out.extend_from_slice(self.texts.get(value));
                }
            }
            out.truncate(MAX_EXPANDED_BYTES);
        }
        // A rule that matches a thousand values may write as many long names.
        self.texts.work += out.len() as u64;
    }

    pub(super) fn expand(&mut self, text: &Text, rule: Option<&Rule>) -> Vec<u8> {
        let mut out = Vec::new();
        self.expand_into(text, rule, &mut out);
        out
    }
}

/// A day and a time of it.
struct Date {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    weekday: i64,
}

impl Date {
    /// The date of so many seconds since 1970, by the proleptic Gregorian calendar.
    fn of(seconds: i64) -> Date {
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Years that begin in March: the day that leap years add is the last.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Date {
            year: year_of_era + era * 400 + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * from_march + 2) / 5 + 1,
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
            weekday: (days + 4).rem_euclid(7),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let date = Date::of(1_709_210_096);
        assert_eq!((date.year, date.month, date.day, date.weekday), (2024, 2, 29, 4));
        assert_eq!((date.hour, date.minute, date.second), (12, 34, 56));
        let first = Date::of(0);
        assert_eq!((first.year, first.month, first.day, first.weekday), (1970, 1, 1, 4));
    }
}
