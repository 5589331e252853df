//! `ctl`: what a rule changes of the engine for the rest of its transaction.

use super::actions::{WantedEffect, Which};
use crate::limits::MAX_BODY_BYTES;
use crate::rule::{Processor, Sign};
use crate::settings::{AuditEngine, Engine, XmlArguments};

/// Reads what stands behind `ctl:`. None: it has no effect. Err with a text, or without one if the value is simply wrong.
pub(super) fn parse(text: &[u8]) -> Result<Option<WantedEffect>, Option<String>> {
    let text = String::from_utf8_lossy(text);
    let (name, value) = text.split_once('=').ok_or(None)?;
    let value = value.trim();
    let number = || value.parse::<usize>().ok().filter(|n| *n <= MAX_BODY_BYTES).ok_or(None);
    Ok(Some(match name.trim().to_ascii_lowercase().as_str() {
        "ruleengine" => WantedEffect::RuleEngine(engine(value).ok_or(None)?),
        "auditengine" => WantedEffect::AuditEngine(audit_engine(value).ok_or(None)?),
        "auditlogparts" => {
            let (sign, parts) = match value.as_bytes() {
                [b'+', rest @ ..] => (Sign::Plus, rest),
                [b'-', rest @ ..] => (Sign::Minus, rest),
                all => (Sign::Set, all),
            };
            WantedEffect::AuditParts(sign, parts.into())
        }
        "requestbodyaccess" => WantedEffect::RequestBodyAccess(on_off(value).ok_or(None)?),
        "responsebodyaccess" => WantedEffect::ResponseBodyAccess(on_off(value).ok_or(None)?),
        "forcerequestbodyvariable" => WantedEffect::ForceRequestBodyVariable(on_off(value).ok_or(None)?),
        "requestbodyprocessor" => WantedEffect::Processor(Processor::find(value).ok_or(None)?),
        "parsexmlintoargs" => WantedEffect::XmlArguments(xml_arguments(value).ok_or(None)?),
        "debugloglevel" => return value.parse::<u8>().ok().filter(|level| *level <= 9).map(|_| None).ok_or(None),
        "requestbodylimit" => WantedEffect::RequestBodyLimit(number()?),
        "responsebodylimit" => WantedEffect::ResponseBodyLimit(number()?),
        "ruleremovebyid" => WantedEffect::Remove(Which::Ids(ids(value).ok_or(None)?)),
        "ruleremovebytag" => WantedEffect::Remove(Which::Tag(value.to_owned())),
        "ruleremovebymsg" => WantedEffect::Remove(Which::Msg(value.to_owned())),
        "ruleremovetargetbyid" => {
            let (which, targets) = value.split_once(';').ok_or(None)?;
            WantedEffect::RemoveTarget(Which::Ids(ids(which).ok_or(None)?), targets.to_owned())
        }
        "ruleremovetargetbytag" => {
            let (which, targets) = value.split_once(';').ok_or(None)?;
            WantedEffect::RemoveTarget(Which::Tag(which.to_owned()), targets.to_owned())
        }
        "ruleremovetargetbymsg" => {
            let (which, targets) = value.split_once(';').ok_or(None)?;
            WantedEffect::RemoveTarget(Which::Msg(which.to_owned()), targets.to_owned())
        }
        other => return Err(Some(format!("unknown or unsupported \"ctl:{other}\""))),
    }))
}

/// `On`, `Off`
pub(super) fn on_off(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" => Some(true),
        "off" | "false" => Some(false),
        _ => None,
    }
}

/// `SecParseXmlIntoArgs`'s values.
pub(super) fn xml_arguments(text: &str) -> Option<XmlArguments> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Some(XmlArguments::On),
        "off" => Some(XmlArguments::Off),
        "onlyargs" => Some(XmlArguments::Only),
        _ => None,
    }
}

/// `SecRuleEngine`'s values.
pub(super) fn engine(text: &str) -> Option<Engine> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Some(Engine::On),
        "off" => Some(Engine::Off),
        "detectiononly" => Some(Engine::DetectionOnly),
        _ => None,
    }
}

/// `SecAuditEngine`'s values.
pub(super) fn audit_engine(text: &str) -> Option<AuditEngine> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Some(AuditEngine::On),
        "off" => Some(AuditEngine::Off),
        "relevantonly" => Some(AuditEngine::RelevantOnly),
        _ => None,
    }
}

/// `1`, `1-5`, several of them between blanks or commas.
pub(super) fn ids(text: &str) -> Option<Vec<(u64, u64)>> {
    let parts = text.split([' ', ',']).map(|p| p.trim_matches('"')).filter(|p| !p.is_empty());
    let ranges: Option<Vec<(u64, u64)>> = parts
        .map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let range = (from.trim().parse().ok()?, to.trim().parse().ok()?);
            (range.0 <= range.1).then_some(range)
        })
        .collect();
    ranges.filter(|r| !r.is_empty())
}
