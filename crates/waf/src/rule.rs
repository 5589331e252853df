//! A rule as it runs: everything that can be decided while rules are loaded is.

use crate::expand::Text;
use crate::operator::Operator;
use crate::problem::Place;
use crate::select::{Exclusion, Target};
use crate::settings::{AuditEngine, Engine, XmlArguments};
use crate::variable::Stored;
use std::sync::Arc;

/// The last phase.
pub(crate) const PHASES: usize = 5;

/// A chain of transformations; 0 is none.
pub(crate) type ChainId = u16;

/// One rule, or one link of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// `id`; 0 for the later links of a chain.
    pub id: u64,
    /// The phase it runs in, 1 to 5.
    pub phase: u8,
    /// Where it is written.
    pub place: Place,
    /// What it looks at; nothing for `SecAction`.
    pub targets: Box<[Target]>,
    /// What it asks.
    pub operator: Operator,
    /// The transformations before the operator.
    pub chain: ChainId,
    /// `multiMatch`: every stage at which the value may differ, the untouched one first.
    pub stages: Option<Box<[ChainId]>>,
    /// The next rule belongs to the same chain.
    pub chained: bool,
    /// Its answer depends on the value alone: no macros in its operator.
    pub(crate) is_plain: bool,
    /// Once its chain matches, less is judged: see [`Rule::spares`].
    pub(crate) is_lenient: bool,
    /// `capture`
    pub(crate) capture: bool,
    /// What happens for every match.
    pub sets: Box<[SetVar]>,
    /// What happens once for a rule that matches with its chain.
    pub effects: Box<[Effect]>,
    /// What happens to the request.
    pub disruptive: Disruptive,
    /// `status`
    pub status: u16,
    /// `log`
    pub log: bool,
    /// `auditlog`
    pub audit: bool,
    /// `skip`
    pub skip: u32,
    /// `skipAfter`: where in the phase's list to go on.
    pub skip_to: Option<u32>,
    /// What it says of itself.
    pub meta: Box<Meta>,
}

impl Rule {
    /// Whether a match spares the request something: rules, or a part of it that is no longer looked at.
    pub(crate) fn spares(&self) -> bool {
        let effect = |effect: &Effect| {
            matches!(
                effect,
                Effect::Remove(_)
                    | Effect::RemoveTarget(..)
                    | Effect::RuleEngine(Engine::Off | Engine::DetectionOnly)
                    | Effect::RequestBodyAccess(false)
                    | Effect::ResponseBodyAccess(false)
            )
        };
        let skips = self.skip > 0 || self.skip_to.is_some();
        skips || matches!(self.disruptive, Disruptive::Allow(_)) || self.effects.iter().any(effect)
    }

    /// Where in its phase's list it goes on once the rule has matched; `at` is the place behind it.
    #[inline]
    pub(crate) fn next(&self, at: usize) -> usize {
        self.skip_to.map_or(at + self.skip as usize, |to| to as usize)
    }
}

/// What a rule says of itself, in logs and as `RULE`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meta {
    /// `msg`
    pub msg: Option<Text>,
    /// `logdata`
    pub logdata: Option<Text>,
    /// `tag`
    pub tags: Vec<Text>,
    /// `severity`, 0 to 7.
    pub severity: Option<u8>,
    /// `ver`
    pub ver: Option<Box<str>>,
    /// `rev`
    pub rev: Option<Box<str>>,
    /// `maturity`
    pub maturity: Option<u8>,
    /// `accuracy`
    pub accuracy: Option<u8>,
    /// `sanitiseArg` and the like: what the audit log must not show.
    pub sanitise: Vec<Sanitise>,
}

/// What the audit log must not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sanitise {
    /// The argument of this name.
    Arg(Box<[u8]>),
    /// What the rule matched.
    Matched,
    /// The request header of this name.
    RequestHeader(Box<[u8]>),
    /// The response header of this name.
    ResponseHeader(Box<[u8]>),
}

/// What a rule does to the request.
#[derive(Clone, Debug)]
pub(crate) enum Disruptive {
    /// Nothing.
    Pass,
    /// It is answered with `status`.
    Deny,
    /// The connection is closed.
    Drop,
    /// It is sent elsewhere.
    Redirect(Text),
    /// Rules are passed over.
    Allow(Allow),
}

/// Which rules `allow` passes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allow {
    /// All that follow, but those of logging.
    All,
    /// Those of this phase.
    Phase,
    /// Those before the response.
    Request,
}

/// `setvar`: a variable, and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct SetVar {
    /// Where it is.
    pub place: VarPlace,
    /// What becomes of it.
    pub change: Change,
}

/// A variable that rules can set.
#[derive(Clone, Debug)]
pub(crate) enum VarPlace {
    /// A `TX` variable whose name has no macros.
    Slot(u32),
    /// A `TX` variable whose name is made when it is set.
    Tx(Text),
    /// A variable of a stored record.
    Stored(Stored, Text),
    /// `setenv`
    Env(Text),
}

/// How a variable changes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// `=text`
    Set(Text),
    /// `=+number`
    Add(Text),
    /// `=-number`
    Subtract(Text),
    /// `!name`
    Unset,
}

/// What a rule does once.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// `initcol`, `setsid`, `setuid`, `setrsc`: which record a collection is.
    Open(Stored, Text),
    /// `expirevar`: a variable of a record ends so many seconds from now.
    Expire(Stored, Text, Text),
    /// `ctl:ruleEngine`
    RuleEngine(Engine),
    /// `ctl:auditEngine`
    AuditEngine(AuditEngine),
    /// `ctl:auditLogParts`: added, removed or set.
    AuditParts(Sign, Box<[u8]>),
    /// `ctl:requestBodyAccess`
    RequestBodyAccess(bool),
    /// `ctl:responseBodyAccess`
    ResponseBodyAccess(bool),
    /// `ctl:forceRequestBodyVariable`
    ForceRequestBodyVariable(bool),
    /// `ctl:requestBodyProcessor`
    Processor(Processor),
    /// `ctl:parseXmlIntoArgs`
    XmlArguments(XmlArguments),
    /// `ctl:requestBodyLimit`
    RequestBodyLimit(usize),
    /// `ctl:responseBodyLimit`
    ResponseBodyLimit(usize),
    /// `ctl:ruleRemoveBy...`: these rules no longer run.
    Remove(Arc<[u32]>),
    /// `ctl:ruleRemoveTargetBy...`: these rules no longer look at that.
    RemoveTarget(Arc<[u32]>, Exclusion),
}

/// How a list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub(crate) enum Sign {
    Set,
    Plus,
    Minus,
}

/// How a request body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processor {
    /// `application/x-www-form-urlencoded`
    Urlencoded,
    /// `multipart/form-data`
    Multipart,
    /// JSON, as arguments.
    Json,
    /// XML
    Xml,
}

impl Processor {
    /// Its name in `REQBODY_PROCESSOR`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Processor::Urlencoded => "URLENCODED",
            Processor::Multipart => "MULTIPART",
            Processor::Json => "JSON",
            Processor::Xml => "XML",
        }
    }

    /// Finds a processor by its name.
    pub(crate) fn find(name: &str) -> Option<Processor> {
        let all = [Processor::Urlencoded, Processor::Multipart, Processor::Json, Processor::Xml];
        all.into_iter().find(|p| p.name().eq_ignore_ascii_case(name))
    }
}
