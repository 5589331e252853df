//! What rules do when they match: variables, switches, log lines, interventions.

use super::{Intervention, Item, Match, Record, Transaction};
use crate::limits::{MAX_LOGGED_BYTES, MAX_MATCHES, MAX_RECORD_VARIABLES, MAX_TX_NAMES};
use crate::operator::number;
use crate::rule::{Change, Disruptive, Effect, Rule, SetVar, Sign, VarPlace};
use crate::rules::Rules;
use crate::seclang::actions::SEVERITIES;
use crate::settings::Engine;
use crate::store::Update;
use crate::texts::{NONE, TextId};
use crate::variable::{Collection, Single, Stored};
use std::fmt::Write;

impl Transaction {
    pub(super) fn set_var(&mut self, rule: &Rule, set: &SetVar) {
        match &set.place {
            VarPlace::Slot(slot) => {
                let value = self.changed(rule, &set.change, self.tx[*slot as usize]);
                self.set_slot(*slot, value);
            }
            VarPlace::Tx(name) => {
                let mut buffer = std::mem::take(&mut self.name);
                buffer.clear();
                self.expand_into(name, Some(rule), &mut buffer);
                buffer.make_ascii_lowercase();
                let slot = self.rules.names.find(&buffer);
                let before = match slot {
                    Some(slot) => self.tx[slot as usize],
                    None => self.tx_more.get(buffer.as_slice()).copied().unwrap_or(NONE),
                };
                let after = self.changed(rule, &set.change, before);
                match slot {
                    Some(slot) => self.set_slot(slot, after),
                    None => self.set_more(&buffer, after),
                }
                self.name = buffer;
            }
            VarPlace::Env(name) => {
                let name = self.expand(name, Some(rule));
                let name = self.texts.add(&name);
                let value = self.changed(rule, &set.change, NONE);
                self.push(Collection::Env, name, value);
            }
            VarPlace::Stored(stored, name) => self.set_stored(rule, *stored, name, &set.change),
        }
    }

    /// Sets a `TX` variable by its name, in small letters; `NONE` unsets it.
    pub(super) fn set_tx(&mut self, name: &[u8], value: TextId) {
        match self.rules.names.find(name) {
            Some(slot) => self.set_slot(slot, value),
            None => self.set_more(name, value),
        }
    }

    fn set_slot(&mut self, slot: u32, value: TextId) {
        self.tx[slot as usize] = value;
        // What is settled rests on others that have not changed.
        if self.settled.is_some() && self.rules.settled.relied[slot as usize] {
            self.unsettle();
        }
    }

    fn set_more(&mut self, name: &[u8], value: TextId) {
        if value == NONE {
            self.tx_more.remove(name);
        } else if let Some(known) = self.tx_more.get_mut(name) {
            *known = value;
        } else if self.tx_more.len() < MAX_TX_NAMES {
            self.tx_more.insert(name.into(), value);
        }
    }

    fn changed(&mut self, rule: &Rule, change: &Change, before: TextId) -> TextId {
        match change {
            Change::Unset => NONE,
            Change::Set(text) => {
                if let Some(constant) = text.constant() {
                    return self.texts.add(constant);
                }
                let mut buffer = std::mem::take(&mut self.assigned);
                buffer.clear();
                self.expand_into(text, Some(rule), &mut buffer);
                let id = self.texts.add(&buffer);
                self.assigned = buffer;
                id
            }
            Change::Add(text) | Change::Subtract(text) => {
                let by = self.amount(rule, text);
                let by = if matches!(change, Change::Subtract(_)) { by.saturating_neg() } else { by };
                let sum = number(self.texts.get(before)).saturating_add(by);
                self.texts.add_number(sum)
            }
        }
    }

    fn amount(&mut self, rule: &Rule, text: &crate::expand::Text) -> i64 {
        match text.constant() {
            Some(constant) => number(constant),
            None => number(&self.expand(text, Some(rule))),
        }
    }

    fn set_stored(&mut self, rule: &Rule, stored: Stored, name: &crate::expand::Text, change: &Change) {
        let name = self.expand(name, Some(rule)).to_ascii_lowercase();
        let Some(record) = &self.stored[stored as usize] else { return };
        let before = record.items.iter().find(|i| self.texts.get(i.name) == name).map_or(NONE, |i| i.value);
        let after = match (self.store.clone(), change) {
            (None, _) => self.changed(rule, change, before),
            (Some(store), change) => {
                let buffer;
                let update = match change {
                    Change::Unset => Update::Unset,
                    Change::Add(text) => Update::Add(self.amount(rule, text)),
                    Change::Subtract(text) => Update::Add(self.amount(rule, text).saturating_neg()),
                    Change::Set(text) => {
                        buffer = self.expand(text, Some(rule));
                        Update::Set(&buffer)
                    }
                };
                let Some(record) = &self.stored[stored as usize] else { return };
                let value = store.change(stored, &record.key, &name, update, self.now.epoch_ms / 1000);
                value.map_or(NONE, |value| self.texts.add(&value))
            }
        };
        let name_id = self.texts.add(&name);
        let texts = &self.texts;
        let Some(record) = &mut self.stored[stored as usize] else { return };
        record.items.retain(|i| texts.get(i.name) != name);
        if after != NONE && record.items.len() < MAX_RECORD_VARIABLES {
            record.items.push(Item { name: name_id, value: after });
        }
    }

    /// A rule matched with its whole chain: what happens once.
    pub(super) fn matched_fully(&mut self, rules: &Rules, first: usize, last: usize) {
        for at in first..=last {
            for (index, effect) in rules.rules[at].effects.iter().enumerate() {
                self.effect(&rules.rules[at], (at as u32, index as u32), effect);
            }
        }
        let rule = &rules.rules[first];
        if let Some(severity) = rule.meta.severity {
            self.highest_severity = Some(self.highest_severity.map_or(severity, |known| known.min(severity)));
        }
        for at in first..=last {
            self.sanitise.extend(rules.rules[at].meta.sanitise.iter().cloned());
        }
        let may_disturb = self.switches.engine == Engine::On && rule.phase != 5;
        let disturbs =
            may_disturb && matches!(rule.disruptive, Disruptive::Deny | Disruptive::Drop | Disruptive::Redirect(_));
        if rule.log || rule.audit || disturbs {
            self.remember(rule, first as u32, disturbs);
        }
        match &rule.disruptive {
            Disruptive::Allow(allow) if self.switches.engine == Engine::On => self.switches.allow = Some(*allow),
            _ if disturbs => self.intervene(rule),
            _ => {}
        }
    }

    fn intervene(&mut self, rule: &Rule) {
        let redirect = match &rule.disruptive {
            Disruptive::Redirect(to) => Some(String::from_utf8_lossy(&self.expand(to, Some(rule))).into_owned()),
            _ => None,
        };
        let is_redirect = redirect.is_some() && !(300..400).contains(&rule.status);
        let status = if is_redirect { 302 } else { rule.status };
        let log = self.matches.last().map(|m| self.line(m, Some(status))).unwrap_or_default();
        let drop = matches!(rule.disruptive, Disruptive::Drop);
        self.intervention = Some(Intervention { status, redirect, drop, rule: rule.id, log });
    }

    fn effect(&mut self, rule: &Rule, place: (u32, u32), effect: &Effect) {
        let switches = &mut self.switches;
        match effect {
            Effect::RuleEngine(engine) => switches.engine = *engine,
            Effect::AuditEngine(engine) => switches.audit = *engine,
            Effect::AuditParts(sign, parts) => match sign {
                Sign::Set => switches.audit_parts = parts.to_vec(),
                Sign::Plus => switches.audit_parts.extend_from_slice(parts),
                Sign::Minus => switches.audit_parts.retain(|p| !parts.contains(p)),
            },
            Effect::RequestBodyAccess(on) => switches.request_body = *on,
            Effect::ResponseBodyAccess(on) => switches.response_body = *on,
            Effect::ForceRequestBodyVariable(on) => switches.force_request_body = *on,
            Effect::XmlArguments(how) => switches.xml_arguments = *how,
            Effect::RequestBodyLimit(bytes) => switches.request_body_limit = *bytes,
            Effect::ResponseBodyLimit(bytes) => switches.response_body_limit = *bytes,
            Effect::Processor(processor) => {
                switches.processor = Some(*processor);
                self.set_text(Single::ReqbodyProcessor, processor.name().as_bytes());
            }
            Effect::Remove(rules) => {
                self.unsettle();
                self.removed.resize(self.rules.rules.len().div_ceil(64), 0);
                for rule in rules.iter() {
                    self.removed[*rule as usize / 64] |= 1 << (rule % 64);
                }
            }
            Effect::RemoveTarget(_, exclusion) => {
                // Only such are looked at by rules that are settled.
                if exclusion.label == "TX" {
                    self.unsettle();
                }
                if !self.targets_removed.contains(&place) {
                    self.targets_removed.push(place);
                }
            }
            // Opened when the rule matched.
            Effect::Open(..) => {}
            Effect::Expire(stored, name, seconds) => {
                let name = self.expand(name, Some(rule)).to_ascii_lowercase();
                let seconds = self.amount(rule, seconds).max(0) as u64;
                if let (Some(store), Some(record)) = (&self.store, &self.stored[*stored as usize]) {
                    store.change(*stored, &record.key, &name, Update::Expire(seconds), self.now.epoch_ms / 1000);
                }
            }
        }
    }

    pub(super) fn open(&mut self, rule: &Rule, stored: Stored, key: &crate::expand::Text) {
        let key = self.expand(key, Some(rule));
        if key.is_empty() {
            return;
        }
        match stored {
            Stored::Session => self.set_text(Single::Sessionid, &key),
            Stored::User => self.set_text(Single::Userid, &key),
            Stored::Resource => self.set_text(Single::Resource, &key),
            Stored::Ip | Stored::Global => {}
        }
        let timeout_s = self.rules.settings.collection_timeout_s;
        let known = self.store.as_ref().map(|s| s.open(stored, &key, timeout_s, self.now.epoch_ms / 1000));
        let items = known
            .unwrap_or_default()
            .iter()
            .map(|(name, value)| Item { name: self.texts.add(name), value: self.texts.add(value) })
            .collect();
        self.stored[stored as usize] = Some(Record { key: key.into(), items });
    }

    fn remember(&mut self, rule: &Rule, at: u32, disruptive: bool) {
        if self.matches.len() >= MAX_MATCHES {
            return;
        }
        let mut text = |t: &Option<crate::expand::Text>| {
            t.as_ref().map(|t| String::from_utf8_lossy(&self.expand(t, Some(rule))).into_owned()).unwrap_or_default()
        };
        let (msg, data) = (text(&rule.meta.msg), text(&rule.meta.logdata));
        let tags =
            rule.meta.tags.iter().map(|t| String::from_utf8_lossy(&self.expand(t, Some(rule))).into_owned()).collect();
        // `SecAction` looks at nothing: what an earlier rule matched is none of its matter.
        let last = self.last.filter(|_| !rule.targets.is_empty());
        let variable = last.map(|m| self.name_of(&m)).unwrap_or_default();
        let value = last.map(|m| self.texts.get(m.value)).unwrap_or_default();
        let found = Match {
            rule: at,
            id: rule.id,
            msg,
            data: cut(data.as_bytes()),
            tags,
            variable: cut(&variable),
            value: cut(value),
            log: rule.log,
            audit: rule.audit,
            disruptive,
        };
        self.matches.push(found);
    }

    /// Whether [`Transaction::log_lines`] may have something to say.
    pub fn has_log_lines(&self) -> bool {
        self.logged < self.matches.len()
    }

    /// The lines of rules that matched since this was last called, for the server's error log, each with whether the rule
    /// refused the request. A refusal's own line is in its [`Intervention`], too. Only those that are `wanted` are made.
    pub fn log_lines(&mut self, wanted: impl Fn(bool) -> bool, mut write: impl FnMut(bool, &str)) {
        let from = std::mem::replace(&mut self.logged, self.matches.len());
        let status = self.intervention.as_ref().map(|i| i.status);
        for found in self.matches[from..].iter().filter(|m| m.log && wanted(m.disruptive)) {
            write(found.disruptive, &self.line(found, status.filter(|_| found.disruptive)));
        }
    }

    /// One line in the form that readers of ModSecurity's lines know.
    pub(crate) fn line(&self, found: &Match, status: Option<u16>) -> String {
        let rule = &self.rules.rules[found.rule as usize];
        let mut line = match status {
            Some(status) => format!("ModSecurity: Access denied with code {status} (phase {}). ", rule.phase),
            None => "ModSecurity: Warning. ".to_owned(),
        };
        let severity = rule.meta.severity.map(|s| s.to_string()).unwrap_or_default();
        let show = |bytes: &[u8]| cut(bytes);
        let written = write!(
            line,
            "Matched \"Operator `{}' against variable `{}' (Value: `{}' )",
            escaped(&rule.operator.shown.chars().take(MAX_LOGGED_BYTES).collect::<String>()),
            escaped(&found.variable),
            escaped(&found.value),
        );
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        let mut field = |name: &str, value: &str| {
            line.push_str(" [");
            line.push_str(name);
            line.push_str(" \"");
            line.push_str(&escaped(value));
            line.push_str("\"]");
        };
        field("file", &rule.place.file);
        field("line", &rule.place.line.to_string());
        field("id", &found.id.to_string());
        field("rev", rule.meta.rev.as_deref().unwrap_or_default());
        field("msg", &found.msg);
        field("data", &found.data);
        field("severity", &severity);
        field("ver", rule.meta.ver.as_deref().unwrap_or_default());
        field("maturity", &rule.meta.maturity.unwrap_or(0).to_string());
        field("accuracy", &rule.meta.accuracy.unwrap_or(0).to_string());
        found.tags.iter().for_each(|tag| field("tag", tag));
        field("hostname", &show(self.single(Single::ServerName)));
        field("uri", &show(self.single(Single::RequestFilename)));
        field("unique_id", &show(self.single(Single::UniqueId)));
        line
    }

    /// The name of a severity.
    pub(crate) fn severity_name(severity: u8) -> &'static str {
        SEVERITIES[usize::from(severity)]
    }
}

/// As much of a text as logs show.
fn cut(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LOGGED_BYTES)]).into_owned()
}

/// A text on one line: nobody writes lines of his own into the log.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            c if c.is_control() => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    out.push_str(&format!("\\x{byte:02x}"));
                }
            }
            c => out.push(c),
        }
    }
    out
}
