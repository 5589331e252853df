//! One request and its answer under a rule set: the steps that a server takes, in this order.
//!
//! ```text
//! connection -> uri -> request_headers -> request_body* -> request_body_end -> response_headers -> response_body*
//!            -> response_body_end -> logging
//! ```
//!
//! Each step may return an [`Intervention`], which is what the server does instead of going on. Steps behind one are harmless.
//! A step that panics or costs too much costs the request: see [`Fault`].

mod act;
mod open;
mod request;
mod response;
mod run;
mod settle;
mod values;

use crate::limits::{KEPT_BYTES, MAX_AUDITED_BYTES, MAX_LOGGED_BYTES};
use crate::memo::Memo;
use crate::names::CAPTURES;
use crate::operator::rx::Scratch;
use crate::rule::{Allow, PHASES, Processor, Sanitise};
use crate::rules::Rules;
use crate::settings::{AuditEngine, Engine, LimitAction, XmlArguments};
use crate::store::Store;
use crate::texts::{EMPTY, NONE, TextId, Texts};
use crate::variable::{Collection, Single, Stored};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The time, which the engine does not know by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Milliseconds since 1970, UTC.
    pub epoch_ms: u64,
    /// What local time is ahead of UTC, in seconds.
    pub utc_offset_s: i32,
}

/// The ends of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Connection {
    /// The client's address; None: it has none (a Unix socket).
    pub client: Option<IpAddr>,
    /// The client's port.
    pub client_port: u16,
    /// The server's address.
    pub server: Option<IpAddr>,
    /// The server's port.
    pub server_port: u16,
}

/// What a server is to do instead of going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervention {
    /// The answer's status.
    pub status: u16,
    /// Where the client is sent.
    pub redirect: Option<String>,
    /// The connection is closed without an answer.
    pub drop: bool,
    /// The rule's id; 0: a limit or a fault.
    pub rule: u64,
    /// The line for the error log.
    pub log: String,
}

/// Why a transaction was given up. It is refused with status 500 while rules may refuse, and passes unjudged in
/// `DetectionOnly`; either way it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A step panicked: a defect of the engine.
    Panic,
    /// It needed more work than [`crate::limits::WORK`] and what its bodies add, or too many expressions ran out of steps.
    TooExpensive,
    /// Its texts together are longer than [`crate::limits::MAX_TEXT_BYTES`].
    TooLarge,
}

/// A rule that matched.
#[derive(Clone, Debug)]
pub struct Match {
    /// The rule's number in the set.
    pub(crate) rule: u32,
    /// Its id.
    pub id: u64,
    /// `msg` with its macros filled in.
    pub msg: String,
    /// `logdata` with its macros filled in.
    pub data: String,
    /// The tags.
    pub tags: Vec<String>,
    /// The variable that matched, as `ARGS:a`.
    pub variable: String,
    /// The value that matched, cut.
    pub value: String,
    /// It goes to the error log.
    pub log: bool,
    /// It makes the transaction relevant for the audit log.
    pub audit: bool,
    /// It refused the request.
    pub disruptive: bool,
}

/// A name and a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) name: TextId,
    pub(crate) value: TextId,
}

/// A value that a rule matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matched {
    /// The variable's name.
    pub(crate) label: &'static str,
    /// The value's name; `NONE`: it has none.
    pub(crate) name: TextId,
    /// The value after its transformations.
    pub(crate) value: TextId,
}

/// A stored record that this transaction has opened.
#[derive(Debug)]
pub(crate) struct Record {
    key: Box<[u8]>,
    items: Vec<Item>,
}

/// What rules switch while a transaction runs.
#[derive(Debug)]
pub(crate) struct Switches {
    pub(crate) engine: Engine,
    pub(crate) audit: AuditEngine,
    pub(crate) audit_parts: Vec<u8>,
    pub(crate) request_body: bool,
    pub(crate) request_body_limit: usize,
    pub(crate) response_body: bool,
    pub(crate) response_body_limit: usize,
    pub(crate) force_request_body: bool,
    pub(crate) processor: Option<Processor>,
    pub(crate) xml_arguments: XmlArguments,
    pub(crate) allow: Option<Allow>,
}

/// A request under a rule set.
#[derive(Debug)]
pub struct Transaction {
    rules: Arc<Rules>,
    store: Option<Arc<dyn Store>>,
    now: Now,
    texts: Texts,
    singles: [TextId; Single::COUNT],
    lists: [Vec<Item>; Collection::COUNT],
    /// `TX` by slot.
    tx: Vec<TextId>,
    /// `TX` with names that no rule mentions.
    tx_more: BTreeMap<Box<[u8]>, TextId>,
    stored: [Option<Record>; Stored::COUNT],
    switches: Switches,
    /// Rules that `ctl` removed, one bit each; empty: none.
    removed: Vec<u64>,
    /// Rule and effect of `ctl:ruleRemoveTarget...` that ran.
    targets_removed: Vec<(u32, u32)>,
    /// What the rule before in the chain matched, and what the running one matches.
    matched: Vec<Matched>,
    matching: Vec<Matched>,
    last: Option<Matched>,
    scratch: Option<Scratch>,
    memo: Memo,
    /// A value that matched was one that the rule leaves out.
    was_excluded: bool,
    /// Rules that some value may match, a bit for each; of which side; and whether a value has changed since.
    open: Vec<u64>,
    open_side: usize,
    is_stale: bool,
    /// Rules that a value is judged against beforehand: room that is used again.
    unknown: Vec<u64>,
    /// The operator's parameter with its macros filled in.
    parameter: Vec<u8>,
    /// The name of a variable that is being set.
    name: Vec<u8>,
    /// And what it is set to.
    assigned: Vec<u8>,
    /// Names and values that a rule looks at: room that is used again.
    values: Vec<(TextId, TextId)>,
    request_body: Vec<u8>,
    /// How much of it rules may look at.
    judged_bytes: usize,
    response_body: Vec<u8>,
    matches: Vec<Match>,
    /// Matches that the server has not taken for its error log yet begin here.
    logged: usize,
    sanitise: Vec<Sanitise>,
    highest_severity: Option<u8>,
    phases_done: [bool; PHASES + 1],
    /// Up to which phase it has run as the rule set has settled beforehand; None: that no longer holds.
    settled: Option<usize>,
    intervention: Option<Intervention>,
    fault: Option<Fault>,
    /// Rules see a part of the request only, and why.
    unseen: Option<&'static str>,
    /// The wall time of the end, for the audit log.
    status: u16,
}

impl Transaction {
    /// Begins a transaction. `store` is where collections like `IP` are kept; without one they last as long as it.
    pub fn new(rules: Arc<Rules>, store: Option<Arc<dyn Store>>, now: Now) -> Transaction {
        let mut transaction = Transaction {
            tx: vec![NONE; rules.names.count()],
            switches: Switches::of(&rules, Vec::new()),
            rules,
            store,
            now,
            texts: Texts::default(),
            singles: [EMPTY; Single::COUNT],
            lists: Default::default(),
            tx_more: BTreeMap::new(),
            stored: Default::default(),
            removed: Vec::new(),
            targets_removed: Vec::new(),
            matched: Vec::new(),
            matching: Vec::new(),
            last: None,
            scratch: None,
            memo: Memo::default(),
            was_excluded: false,
            open: Vec::new(),
            open_side: 0,
            is_stale: true,
            unknown: Vec::new(),
            parameter: Vec::new(),
            name: Vec::new(),
            assigned: Vec::new(),
            values: Vec::new(),
            request_body: Vec::new(),
            judged_bytes: 0,
            response_body: Vec::new(),
            matches: Vec::new(),
            logged: 0,
            sanitise: Vec::new(),
            highest_severity: None,
            phases_done: [false; PHASES + 1],
            settled: None,
            intervention: None,
            fault: None,
            unseen: None,
            status: 0,
        };
        transaction.memo.reset(transaction.rules.rules.len(), transaction.rules.watching as usize);
        transaction.begin();
        transaction
    }

    /// Begins anew for another request and keeps the memory.
    pub fn recycle(&mut self, rules: Arc<Rules>, store: Option<Arc<dyn Store>>, now: Now) {
        if !Arc::ptr_eq(&rules, &self.rules) {
            self.scratch = None;
            self.memo.reset(rules.rules.len(), rules.watching as usize);
        }
        self.memo.make_room();
        self.tx.clear();
        self.tx.resize(rules.names.count(), NONE);
        let room = std::mem::take(&mut self.switches.audit_parts);
        self.switches = Switches::of(&rules, room);
        (self.rules, self.store, self.now) = (rules, store, now);
        self.singles = [EMPTY; Single::COUNT];
        self.lists.iter_mut().for_each(Vec::clear);
        self.tx_more.clear();
        self.stored = Default::default();
        self.removed.clear();
        self.targets_removed.clear();
        self.matched.clear();
        self.matching.clear();
        self.last = None;
        self.request_body.clear();
        self.judged_bytes = 0;
        self.response_body.clear();
        self.matches.clear();
        self.logged = 0;
        self.sanitise.clear();
        self.highest_severity = None;
        if let Some(scratch) = &mut self.scratch {
            (scratch.spent, scratch.slow, scratch.exhausted) = (0, 0, 0);
        }
        self.phases_done = [false; PHASES + 1];
        (self.intervention, self.fault, self.status) = (None, None, 0);
        self.unseen = None;
        self.begin();
    }

    /// Gives back what only a large request has needed. Nothing but [`Transaction::recycle`] may follow.
    pub fn rest(&mut self) {
        if self.memory() <= KEPT_BYTES {
            return;
        }
        self.texts = Texts::default();
        self.lists = Default::default();
        (self.request_body, self.response_body) = (Vec::new(), Vec::new());
        (self.matched, self.matching, self.matches) = (Vec::new(), Vec::new(), Vec::new());
        (self.parameter, self.name) = (Vec::new(), Vec::new());
        (self.assigned, self.values) = (Vec::new(), Vec::new());
        self.tx_more.clear();
    }

    /// Bytes of memory that it has for the texts of its request and what is known of them; what it remembers of values for the next ones is not among them.
    pub fn memory(&self) -> usize {
        let lists = self.lists.iter().map(Vec::capacity).sum::<usize>() * size_of::<Item>();
        let matched = (self.matched.capacity() + self.matching.capacity()) * size_of::<Matched>();
        let matches = self.matches.capacity() * size_of::<Match>();
        let bodies = self.request_body.capacity() + self.response_body.capacity();
        let texts = self.texts.memory() + self.parameter.capacity() + self.name.capacity() + self.assigned.capacity();
        let values = self.values.capacity() * size_of::<(TextId, TextId)>();
        texts + lists + matched + matches + bodies + values
    }

    fn begin(&mut self) {
        self.texts.clear(&self.rules.settled.texts);
        self.settled = self.rules.settled.is_on.then_some(0);
        let web_app = self.texts.add(self.rules.settings.web_app.as_bytes());
        self.set(Single::Webappid, web_app);
    }

    /// The rules that it runs.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Names the transaction: what the audit log, `UNIQUE_ID` and a refused request's page show.
    pub fn unique_id(&mut self, id: &[u8]) {
        self.set_text(Single::UniqueId, id);
    }

    /// Why the transaction was given up, if it was.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// A line for the error log about a transaction that was given up and was not refused for it.
    pub fn given_up(&self) -> Option<String> {
        let fault = self.fault.filter(|_| self.intervention.is_none())?;
        Some(format!("ModSecurity: Warning. The request was not judged to the end ({fault:?}) and passed"))
    }

    /// All rules that matched, in order.
    pub fn matches(&self) -> &[Match] {
        &self.matches
    }

    /// The first intervention, if there was one.
    pub fn intervention(&self) -> Option<&Intervention> {
        self.intervention.as_ref()
    }

    /// How much work the transaction was: bytes that operators and transformations looked at.
    pub fn work(&self) -> u64 {
        self.texts.work
    }

    /// A `TX` variable, for logs and tests.
    pub fn tx(&self, name: &str) -> Option<&[u8]> {
        let name = name.to_ascii_lowercase();
        let id = match self.rules.names.find(name.as_bytes()) {
            Some(slot) => self.tx[slot as usize],
            None => *self.tx_more.get(name.as_bytes())?,
        };
        (id != NONE).then(|| self.texts.get(id))
    }

    /// What was settled beforehand no longer holds: all rules are run from here on.
    fn unsettle(&mut self) {
        self.is_stale |= self.settled.take().is_some();
    }

    fn set(&mut self, single: Single, text: TextId) {
        self.is_stale = true;
        self.singles[single as usize] = text;
    }

    fn set_text(&mut self, single: Single, text: &[u8]) {
        let id = self.texts.add(text);
        self.set(single, id);
    }

    fn single(&self, single: Single) -> &[u8] {
        self.texts.get(self.singles[single as usize])
    }

    fn push(&mut self, collection: Collection, name: TextId, value: TextId) {
        let list = &mut self.lists[collection as usize];
        if list.len() < crate::limits::MAX_VALUES {
            list.push(Item { name, value });
            self.is_stale |= !collection.is_set_by_rules();
        } else {
            let one = self.texts.add_number(1);
            self.set(Single::InboundDataError, one);
            if !matches!(collection, Collection::ResponseHeaders | Collection::Env | Collection::Geo) {
                self.unseen = Some("there are too many values of one kind in the request");
            }
        }
    }

    fn is_over(&self) -> bool {
        self.switches.engine == Engine::Off || self.intervention.is_some() || self.fault.is_some()
    }

    /// Runs a step so that a panic in it costs the request and nothing else.
    fn guarded(&mut self, step: impl FnOnce(&mut Transaction)) -> Option<Intervention> {
        if self.is_over() {
            return None;
        }
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_err() {
            self.fault = Some(Fault::Panic);
        }
        if self.fault.is_none() && self.texts.overflow {
            self.fault = Some(Fault::TooLarge);
        }
        if self.fault.is_some() {
            self.let_go();
        }
        if let Some(fault) = self.fault
            && self.intervention.is_none()
            && self.switches.engine == Engine::On
        {
            let log = format!("ModSecurity: Access denied with code 500: the request cannot be judged ({fault:?})");
            self.intervention = Some(Intervention { status: 500, redirect: None, drop: false, rule: 0, log });
        }
        self.intervention.clone()
    }

    /// Lets go of what no log shows, once no rule is asked any more: a request that was too much to be judged may stay for as long as its answer takes.
    fn let_go(&mut self) {
        for (at, list) in self.lists.iter_mut().enumerate() {
            let is_shown = [Collection::RequestHeaders, Collection::Files].iter().any(|shown| *shown as usize == at);
            if !is_shown {
                *list = Vec::new();
            }
        }
        self.stored = Default::default();
        (self.matched, self.matching, self.last) = (Vec::new(), Vec::new(), None);
        (self.parameter, self.name) = (Vec::new(), Vec::new());
        (self.assigned, self.values) = (Vec::new(), Vec::new());
        self.request_body.truncate(MAX_AUDITED_BYTES);
        self.request_body.shrink_to_fit();
        let old = std::mem::take(&mut self.texts);
        self.texts.clear(&self.rules.settled.texts);
        self.texts.work = old.work;
        // What is known beforehand has the same number in all of them.
        let (fixed, texts) = (self.texts.count(), &mut self.texts);
        let mut keep = |id: &mut TextId, most: usize| {
            if *id != NONE && Texts::number_of(*id) >= fixed {
                let text = old.get(*id);
                *id = texts.add(&text[..text.len().min(most)]);
            }
        };
        self.singles.iter_mut().for_each(|id| keep(id, MAX_AUDITED_BYTES));
        let lists = self.lists.iter_mut().flatten().flat_map(|item| [&mut item.name, &mut item.value]);
        lists.for_each(|id| keep(id, MAX_AUDITED_BYTES));
        self.tx.iter_mut().chain(self.tx_more.values_mut()).for_each(|id| keep(id, MAX_LOGGED_BYTES));
    }

    /// Refuses by a limit of the settings, not by a rule.
    fn refuse(&mut self, status: u16, action: LimitAction, what: &str) {
        if self.switches.engine == Engine::On && action == LimitAction::Reject && self.intervention.is_none() {
            let log = format!("ModSecurity: Access denied with code {status}: {what}");
            self.intervention = Some(Intervention { status, redirect: None, drop: false, rule: 0, log });
        }
    }
}

impl Switches {
    fn of(rules: &Rules, mut audit_parts: Vec<u8>) -> Switches {
        let s = &rules.settings;
        audit_parts.clear();
        audit_parts.extend_from_slice(&s.audit_parts);
        Switches {
            engine: s.engine,
            audit: s.audit,
            audit_parts,
            request_body: s.request_body,
            request_body_limit: s.request_body_limit,
            response_body: s.response_body,
            response_body_limit: s.response_body_limit,
            force_request_body: false,
            processor: None,
            xml_arguments: s.xml_arguments,
            allow: None,
        }
    }
}

const _: () = assert!(CAPTURES == 10, "TX:0 to TX:9");

/// What the audit log reads.
impl Transaction {
    pub(crate) fn switches_audit(&self) -> AuditEngine {
        self.switches.audit
    }

    pub(crate) fn audit_parts(&self) -> &[u8] {
        &self.switches.audit_parts
    }

    pub(crate) fn settings(&self) -> &crate::settings::Settings {
        &self.rules.settings
    }

    /// The status that was sent, or that the intervention asks for.
    pub(crate) fn answered(&self) -> u16 {
        self.intervention.as_ref().map_or(self.status, |i| i.status)
    }

    pub(crate) fn text_of(&self, single: Single) -> &[u8] {
        self.single(single)
    }

    pub(crate) fn texts(&self) -> &Texts {
        &self.texts
    }

    pub(crate) fn items(&self, collection: Collection) -> &[Item] {
        &self.lists[collection as usize]
    }

    pub(crate) fn sanitised(&self) -> &[Sanitise] {
        &self.sanitise
    }

    pub(crate) fn rule_of(&self, found: &Match) -> &crate::rule::Rule {
        &self.rules.rules[found.rule as usize]
    }

    pub(crate) fn began_ms(&self) -> u64 {
        self.now.epoch_ms
    }

    pub(crate) fn has_processor(&self, processor: Processor) -> bool {
        self.switches.processor == Some(processor)
    }

    pub(crate) fn raw_body(&self) -> &[u8] {
        &self.request_body
    }
}
