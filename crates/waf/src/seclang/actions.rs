//! A rule's actions as text: `id:1,phase:2,t:none,msg:'it\'s',setvar:'tx.a=+1'`, and what each means.

use crate::expand::Text;
use crate::limits::MAX_TRANSFORMS;
use crate::names::Names;
use crate::rule::{Allow, Change, Meta, Processor, Sanitise, SetVar, Sign, VarPlace};
use crate::settings::{AuditEngine, Engine, XmlArguments};
use crate::transform::Transform;
use crate::variable::Stored;

/// One action as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// In small letters.
    pub name: String,
    /// What stands behind the colon, without quotes.
    pub value: Option<Vec<u8>>,
}

/// What a rule's actions say together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Actions {
    /// What was read and has no effect.
    pub notes: Vec<&'static str>,
    /// `id`
    pub id: Option<u64>,
    /// `phase`
    pub phase: Option<u8>,
    /// The disruptive one.
    pub disruptive: Option<Wanted>,
    /// `status`
    pub status: Option<u16>,
    /// `log`, `nolog`
    pub log: Option<bool>,
    /// `auditlog`, `noauditlog`
    pub audit: Option<bool>,
    /// `t`; `t:none` empties the list and is noted.
    pub transforms: Vec<Transform>,
    /// `t:none` was among them: those of `SecDefaultAction` do not apply.
    pub none: bool,
    /// `chain`
    pub chain: bool,
    /// `capture`
    pub capture: bool,
    /// `multiMatch`
    pub multi_match: bool,
    /// `skip`
    pub skip: u32,
    /// `skipAfter`
    pub skip_after: Option<String>,
    /// `setvar`, `setenv`
    pub sets: Vec<SetVar>,
    /// What the rule does once.
    pub effects: Vec<WantedEffect>,
    /// What it says of itself.
    pub meta: Meta,
}

/// A disruptive action as it was written.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are SecLang's own")]
pub(crate) enum Wanted {
    Pass,
    Block,
    Deny,
    Drop,
    Allow(Allow),
    Redirect(Text),
}

/// What a rule does once, before rules are known by number.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of `rule::Effect`")]
pub(crate) enum WantedEffect {
    Open(Stored, Text),
    Expire(Stored, Text, Text),
    RuleEngine(Engine),
    AuditEngine(AuditEngine),
    AuditParts(Sign, Box<[u8]>),
    RequestBodyAccess(bool),
    ResponseBodyAccess(bool),
    ForceRequestBodyVariable(bool),
    Processor(Processor),
    XmlArguments(XmlArguments),
    RequestBodyLimit(usize),
    ResponseBodyLimit(usize),
    Remove(Which),
    /// The rules, and the list of variables as it was written.
    RemoveTarget(Which, String),
}

/// Which rules an update or a removal means.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// Ranges of `id`s, both ends included.
    Ids(Vec<(u64, u64)>),
    /// Those with this tag.
    Tag(String),
    /// Those with this message.
    Msg(String),
}

/// Cuts a list of actions at its commas.
pub(crate) fn split(text: &[u8]) -> Result<Vec<Written>, String> {
    let mut all = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Ok(all);
        }
        let end = rest.iter().position(|b| matches!(b, b':' | b',')).unwrap_or(rest.len());
        let name = String::from_utf8_lossy(rest[..end].trim_ascii()).to_ascii_lowercase();
        if rest.get(end) != Some(&b':') {
            if !name.is_empty() {
                all.push(Written { name, value: None });
            }
            rest = &rest[(end + 1).min(rest.len())..];
            continue;
        }
        let (value, behind) =
            value(rest[end + 1..].trim_ascii_start()).ok_or_else(|| format!("\"{name}\" has an open quote"))?;
        all.push(Written { name, value: Some(value) });
        rest = behind;
    }
}

/// A value up to its comma. Quotes may stand around it; in them `\'` is a quote.
fn value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    if text.first() != Some(&b'\'') {
        // A value like `a='b,c'` has its quotes inside.
        let mut quoted = false;
        let end = text.iter().position(|b| {
            quoted ^= *b == b'\'';
            *b == b',' && !quoted
        });
        let end = end.unwrap_or(text.len());
        return Some((text[..end].trim_ascii_end().to_vec(), &text[(end + 1).min(text.len())..]));
    }
    let mut value = Vec::new();
    let mut at = 1;
    loop {
        match *text.get(at)? {
            b'\\' if text.get(at + 1) == Some(&b'\'') => {
                value.push(b'\'');
                at += 2;
            }
            b'\'' => break,
            byte => {
                value.push(byte);
                at += 1;
            }
        }
    }
    let rest = text[at + 1..].trim_ascii_start();
    match rest.first() {
        None => Some((value, rest)),
        Some(b',') => Some((value, &rest[1..])),
        Some(_) => None,
    }
}

/// Actions that libmodsecurity documents and this engine refuses, with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("exec", "no program is started for a request"),
    ("proxy", "where requests go is the server's matter"),
    ("pause", "a request that waits holds memory"),
    ("append", "answers are not rewritten"),
    ("prepend", "answers are not rewritten"),
    ("deprecatevar", "use expirevar"),
];

impl Actions {
    /// Reads a list of actions.
    pub(crate) fn parse(text: &[u8], names: &mut Names) -> Result<Actions, String> {
        let mut actions = Actions::default();
        for written in split(text)? {
            actions.take(&written, names)?;
        }
        Ok(actions)
    }

    fn take(&mut self, written: &Written, names: &mut Names) -> Result<(), String> {
        let name = written.name.as_str();
        let Some(value) = &written.value else { return self.take_bare(name) };
        let shown = String::from_utf8_lossy(value);
        let invalid = || format!("invalid value \"{shown}\" of action \"{name}\"");
        match name {
            "id" => self.id = Some(shown.parse().ok().filter(|id| *id > 0).ok_or_else(invalid)?),
            "phase" => self.phase = Some(phase(&shown).ok_or_else(invalid)?),
            "status" => self.status = Some(shown.parse().ok().filter(|s| (100..=599).contains(s)).ok_or_else(invalid)?),
            "t" if shown.eq_ignore_ascii_case("none") => {
                self.transforms.clear();
                self.none = true;
            }
            "t" => {
                let found = Transform::find(&shown).ok_or_else(|| format!("unknown transformation \"{shown}\""))?;
                if self.transforms.len() == MAX_TRANSFORMS {
                    return Err(format!("more than {MAX_TRANSFORMS} transformations"));
                }
                self.transforms.push(found);
            }
            "msg" => self.meta.msg = Some(Text::parse(value, names)?),
            "logdata" => self.meta.logdata = Some(Text::parse(value, names)?),
            "tag" => self.meta.tags.push(Text::parse(value, names)?),
            "severity" => self.meta.severity = Some(severity(&shown).ok_or_else(invalid)?),
            "ver" => self.meta.ver = Some(shown.into()),
            "rev" => self.meta.rev = Some(shown.into()),
            "maturity" => self.meta.maturity = Some(shown.parse().map_err(|_| invalid())?),
            "accuracy" => self.meta.accuracy = Some(shown.parse().map_err(|_| invalid())?),
            "skip" => self.skip = shown.parse().map_err(|_| invalid())?,
            "skipafter" => self.skip_after = Some(shown.into_owned()),
            "allow" => self.disruptive = Some(Wanted::Allow(allow(&shown).ok_or_else(invalid)?)),
            "redirect" => self.disruptive = Some(Wanted::Redirect(Text::parse(value, names)?)),
            "setvar" => self.sets.push(set_var(value, names)?),
            "setenv" => {
                let (name, value) = pair(value, b'=').ok_or_else(invalid)?;
                let place = VarPlace::Env(Text::parse(name, names)?);
                self.sets.push(SetVar { place, change: Change::Set(Text::parse(value, names)?) });
            }
            "expirevar" => {
                let (name, seconds) = pair(value, b'=').ok_or_else(invalid)?;
                let (stored, name) = stored_name(name).ok_or_else(invalid)?;
                let effect = WantedEffect::Expire(stored, Text::parse(name, names)?, Text::parse(seconds, names)?);
                self.effects.push(effect);
            }
            "initcol" => {
                let (name, key) = pair(value, b'=').ok_or_else(invalid)?;
                let stored = stored(name).ok_or_else(invalid)?;
                self.effects.push(WantedEffect::Open(stored, Text::parse(key, names)?));
            }
            "setsid" => self.effects.push(WantedEffect::Open(Stored::Session, Text::parse(value, names)?)),
            "setuid" => self.effects.push(WantedEffect::Open(Stored::User, Text::parse(value, names)?)),
            "setrsc" => self.effects.push(WantedEffect::Open(Stored::Resource, Text::parse(value, names)?)),
            "ctl" => match super::ctl::parse(value).map_err(|e| e.unwrap_or_else(invalid))? {
                Some(effect) => self.effects.push(effect),
                None => self.notes.push("\"ctl:debugLogLevel\" has no effect: there is no debug log"),
            },
            "sanitisearg" => self.meta.sanitise.push(Sanitise::Arg(value.as_slice().into())),
            "sanitiserequestheader" => self.meta.sanitise.push(Sanitise::RequestHeader(value.as_slice().into())),
            "sanitiseresponseheader" => self.meta.sanitise.push(Sanitise::ResponseHeader(value.as_slice().into())),
            "sanitisematchedbytes" => self.meta.sanitise.push(Sanitise::Matched),
            // XPath here knows `/*` and `//@*` only, in which no name stands.
            "xmlns" => return Err("action \"xmlns\" is not supported: XML is looked at as /* and //@*".to_owned()),
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    fn take_bare(&mut self, name: &str) -> Result<(), String> {
        match name {
            "pass" => self.disruptive = Some(Wanted::Pass),
            "block" => self.disruptive = Some(Wanted::Block),
            "deny" => self.disruptive = Some(Wanted::Deny),
            "drop" => self.disruptive = Some(Wanted::Drop),
            "allow" => self.disruptive = Some(Wanted::Allow(Allow::All)),
            "log" => {
                self.log = Some(true);
                self.audit.get_or_insert(true);
            }
            "nolog" => {
                self.log = Some(false);
                self.audit.get_or_insert(false);
            }
            "auditlog" => self.audit = Some(true),
            "noauditlog" => self.audit = Some(false),
            "chain" => self.chain = true,
            "capture" => self.capture = true,
            "multimatch" => self.multi_match = true,
            "sanitisematched" | "sanitisematchedbytes" => self.meta.sanitise.push(Sanitise::Matched),
            _ => return Err(unknown(name)),
        }
        Ok(())
    }
}

fn unknown(name: &str) -> String {
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, why)) => format!("action \"{name}\" is not supported: {why}"),
        None => format!("unknown action \"{name}\", or one with or without a value that it should not have"),
    }
}

fn pair(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = memchr::memchr(at, text)?;
    Some((&text[..place], &text[place + 1..]))
}

fn phase(text: &str) -> Option<u8> {
    Some(match text.to_ascii_lowercase().as_str() {
        "1" | "request_headers" => 1,
        "2" | "request" | "request_body" => 2,
        "3" | "response_headers" => 3,
        "4" | "response" | "response_body" => 4,
        "5" | "logging" => 5,
        _ => return None,
    })
}

/// The names of severities, from 0.
pub(crate) const SEVERITIES: [&str; 8] =
    ["EMERGENCY", "ALERT", "CRITICAL", "ERROR", "WARNING", "NOTICE", "INFO", "DEBUG"];

fn severity(text: &str) -> Option<u8> {
    let named = SEVERITIES.iter().position(|s| s.eq_ignore_ascii_case(text)).map(|at| at as u8);
    named.or_else(|| text.parse().ok().filter(|s| *s < 8))
}

fn allow(text: &str) -> Option<Allow> {
    match text.to_ascii_lowercase().as_str() {
        "phase" => Some(Allow::Phase),
        "request" => Some(Allow::Request),
        _ => None,
    }
}

fn stored(name: &[u8]) -> Option<Stored> {
    Some(match name.to_ascii_lowercase().as_slice() {
        b"ip" => Stored::Ip,
        b"global" => Stored::Global,
        b"session" => Stored::Session,
        b"user" => Stored::User,
        b"resource" => Stored::Resource,
        _ => return None,
    })
}

fn stored_name(text: &[u8]) -> Option<(Stored, &[u8])> {
    let at = text.iter().position(|b| matches!(b, b'.' | b':'))?;
    Some((stored(&text[..at])?, &text[at + 1..]))
}

/// `tx.name=text`, `tx.name=+1`, `!tx.name`, `tx.name` (which is `=1`).
fn set_var(text: &[u8], names: &mut Names) -> Result<SetVar, String> {
    let invalid = || format!("invalid value \"{}\" of action \"setvar\"", String::from_utf8_lossy(text));
    let (unset, body) = text.strip_prefix(b"!").map_or((false, text), |rest| (true, rest));
    let (name, value) = match pair(body, b'=') {
        Some((name, value)) => (name, Some(value)),
        None => (body, None),
    };
    let at = name.iter().position(|b| matches!(b, b'.' | b':')).ok_or_else(invalid)?;
    let (collection, key) = (&name[..at], name[at + 1..].trim_ascii());
    let place = if collection.eq_ignore_ascii_case(b"tx") {
        let text = Text::parse(key, names)?;
        match text.constant() {
            Some(name) => VarPlace::Slot(names.slot(name)),
            None => VarPlace::Tx(text),
        }
    } else {
        VarPlace::Stored(stored(collection).ok_or_else(invalid)?, Text::parse(key, names)?)
    };
    let change = match (unset, value) {
        (true, None) => Change::Unset,
        (true, Some(_)) => return Err(invalid()),
        (false, None) => Change::Set(Text::plain(b"1")),
        (false, Some(value)) => match value.first() {
            Some(b'+') => Change::Add(Text::parse(&value[1..], names)?),
            Some(b'-') => Change::Subtract(Text::parse(&value[1..], names)?),
            _ => Change::Set(Text::parse(value, names)?),
        },
    };
    Ok(SetVar { place, change })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_at_commas_outside_quotes() {
        let all = split(br"id:1, phase:2,msg:'it\'s, so',setvar:'tx.a=b,c',chain").unwrap();
        let shown: Vec<_> =
            all.iter().map(|w| (w.name.as_str(), w.value.as_deref().map(String::from_utf8_lossy))).collect();
        assert_eq!(shown[2].1.as_deref(), Some("it's, so"));
        assert_eq!(shown[3].1.as_deref(), Some("tx.a=b,c"));
        assert_eq!((shown[4].0, shown.len()), ("chain", 5));
        assert!(split(b"msg:'a").is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| Actions::parse(text.as_bytes(), &mut Names::default()).unwrap_err();
        assert_eq!(wrong("id:x"), "invalid value \"x\" of action \"id\"");
        assert_eq!(wrong("t:sparkle"), "unknown transformation \"sparkle\"");
        assert!(wrong("frobnicate").contains("unknown action \"frobnicate\""));
        assert!(wrong("exec:/bin/x").contains("no program is started"));
        assert!(wrong("setvar:nowhere=1").contains("setvar"));
        assert!(wrong("ctl:nothing=1").contains("ctl"));
    }

    #[test]
    fn actions_add_up() {
        let text =
            "id:7,phase:request,t:lowercase,t:none,t:trim,nolog,auditlog,severity:CRITICAL,setvar:tx.a=+5,allow:phase";
        let actions = Actions::parse(text.as_bytes(), &mut Names::default()).unwrap();
        assert_eq!(
            (actions.id, actions.phase, actions.log, actions.audit),
            (Some(7), Some(2), Some(false), Some(true))
        );
        assert_eq!(actions.transforms, [Transform::Trim]);
        assert!(actions.none && actions.meta.severity == Some(2));
        assert!(matches!(actions.sets[0].change, Change::Add(_)));
        assert!(matches!(actions.disruptive, Some(Wanted::Allow(Allow::Phase))));
    }
}
