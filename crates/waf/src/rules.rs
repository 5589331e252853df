//! A rule set as it runs: made once while a configuration is read, immutable then, shared by all transactions.

use crate::gate::Gate;
use crate::limits::MAX_PROBLEMS;
use crate::names::Names;
use crate::operator::Kind;
use crate::operator::rx::{Rx, Scratch};
use crate::prefilter::{Literals, Need};
use crate::problem::Problem;
use crate::rule::{ChainId, Disruptive, Effect, PHASES, Rule};
use crate::seclang::actions::{Actions, Wanted, WantedEffect, Which};
use crate::seclang::files::Files;
use crate::seclang::load::{Draft, Item, Loader, Update};
use crate::seclang::targets::Targets;
use crate::select::Select;
use crate::settings::Settings;
use crate::settled::Settled;
use crate::transform::Transform;
use crate::variable::{Collection, Source as SourceOf};
use crate::watchers::Watchers;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A text of rules with the name that problems call it by; relative paths in it begin at the folder of that name.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The name: a path, or that of the configuration it stands in.
    pub name: &'a str,
    /// The rules.
    pub text: &'a [u8],
}

/// A compiled rule set.
#[derive(Debug)]
pub struct Rules {
    pub(crate) settings: Settings,
    /// All rules, links of chains behind their first.
    pub(crate) rules: Vec<Rule>,
    /// The first rules of chains, and rules without one, by phase.
    pub(crate) phases: [Vec<u32>; PHASES + 1],
    /// Transformation chains: what comes before, and the last step. The first is no chain.
    pub(crate) chains: Vec<(ChainId, Option<Transform>)>,
    /// What each rule's operator needs of a value.
    pub(crate) needs: Vec<Need>,
    /// Prefilters of requests (phases 1 and 2) and of answers (the others).
    pub(crate) literals: [Literals; 2],
    /// The same for the rules of one chain of transformations only, where these have far fewer: for long values that the chain has changed.
    pub(crate) own_literals: [Vec<Option<Literals>>; 2],
    /// Who looks at what, in the same two.
    pub(crate) watchers: [Watchers; 2],
    pub(crate) names: Names,
    /// What decides beforehand that a rule does not match, by its number.
    pub(crate) gates: Vec<Gate>,
    /// What is known of them beforehand.
    pub(crate) settled: Settled,
    /// How many sets of rules that look at the same things there are.
    pub(crate) watching: u32,
    notes: Vec<Problem>,
    /// Transactions are not given up for their work: every rule looks at every value.
    pub(crate) is_bare: bool,
    /// A rule looks into uploaded files.
    pub(crate) reads_files: bool,
    /// The expression with most groups: its scratch space fits all.
    widest: Arc<Rx>,
}

/// Literals of the rules of one chain of transformations for which it is worth having an automaton of their own: with more it is hardly faster than the
/// one of all rules.
const MAX_OWN_LITERALS: usize = 512;

/// Which prefilter a phase uses.
pub(crate) fn side(phase: u8) -> usize {
    usize::from(phase > 2)
}

impl Rules {
    /// Reads and compiles a rule set. All problems are reported together.
    pub fn load(sources: &[Source<'_>], files: &dyn Files) -> Result<Rules, Vec<Problem>> {
        Rules::load_levels(&[sources], files)
    }

    /// The same for the levels of a configuration, the outermost first. As with libmodsecurity, an inner level's settings win and
    /// its rules run before those of the levels around it; what it removes or updates may be theirs.
    pub fn load_levels(levels: &[&[Source<'_>]], files: &dyn Files) -> Result<Rules, Vec<Problem>> {
        let mut loader = Loader::new(files);
        for sources in levels {
            let around = loader.items.len();
            for source in *sources {
                loader.text(source.name, source.text);
            }
            loader.items.rotate_left(around);
        }
        Builder::default().build(loader)
    }

    /// What the rule set says of the engine.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What was read and has no effect, for the operator to see once.
    pub fn notes(&self) -> &[Problem] {
        &self.notes
    }

    /// How many rules there are, links of chains not counted.
    pub fn len(&self) -> usize {
        self.phases.iter().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many expressions and lists of phrases have a prefilter, and how many there are: for tests and measurements.
    pub fn prefiltered(&self) -> (usize, usize) {
        let with = |n: &&Need| !n.literals.is_empty() || !n.sets.is_empty();
        (self.needs.iter().filter(with).count(), self.needs.len())
    }

    /// The same rules, each of which looks at every value: what the prefilter leaves out must not differ.
    #[must_use]
    pub fn without_prefilter(mut self) -> Rules {
        self.is_bare = true;
        self.needs.fill(Need::default());
        self.gates.fill(Gate::Open);
        self.watchers.iter_mut().for_each(Watchers::open_all);
        self.settled = Settled::default();
        // Without that nothing is remembered of values.
        self.rules.iter_mut().for_each(|rule| rule.is_plain = false);
        self
    }

    /// Compiles what only long values need, so that no request does. `turn` is shared by all threads that take part; each takes the next expression until there
    /// is none.
    pub fn prepare(&self, turn: &AtomicUsize) {
        while let Some(rule) = self.rules.get(turn.fetch_add(1, Ordering::Relaxed)) {
            if let Kind::Rx(rx, _) | Kind::Verify(_, rx) = &rule.operator.kind {
                rx.prepare();
            }
        }
    }

    pub(crate) fn scratch(&self) -> Scratch {
        self.widest.scratch()
    }
}

#[derive(Default)]
struct Builder {
    chains: Vec<(ChainId, Option<Transform>)>,
    known_chains: HashMap<(ChainId, Transform), ChainId>,
    needs: Vec<Need>,
    problems: Vec<Problem>,
}

impl Builder {
    fn build(mut self, mut loader: Loader<'_>) -> Result<Rules, Vec<Problem>> {
        self.problems = std::mem::take(&mut loader.problems);
        self.chains.push((0, None));
        let updates = std::mem::take(&mut loader.updates);
        let mut items = std::mem::take(&mut loader.items);
        for (update, _) in &updates {
            apply(&mut items, update);
        }
        let (drafts, phases, markers) = arrange(items);
        let mut rules = Vec::new();
        for (at, draft) in drafts.iter().enumerate() {
            if matches!(draft.operator.kind, Kind::Geo) && loader.settings.geo.is_none() {
                self.problem(draft, "\"@geoLookup\" needs a database: \"SecGeoLookupDb FILE\"".to_owned());
            }
            let skip_to = self.skip_to(draft, at, &phases, &markers, &drafts);
            if let Some(rule) = self.rule(draft, &drafts, skip_to, &mut loader.names) {
                self.needs.push(rule.operator.need());
                rules.push(rule);
            }
        }
        // All names are known now: which of them a selector of `TX` means is found out once.
        rules.iter_mut().flat_map(|r| r.targets.iter_mut()).for_each(|t| settle_slots(t, &loader.names));
        if !self.problems.is_empty() {
            self.problems.truncate(MAX_PROBLEMS);
            return Err(self.problems);
        }
        for chain in rules.chunk_by_mut(|rule, _| rule.chained) {
            let spares = chain.iter().any(Rule::spares);
            chain.iter_mut().for_each(|rule| rule.is_lenient = spares);
        }
        let literals_of = |is_asked: &dyn Fn(&Rule) -> bool| {
            let needs = rules.iter().zip(&self.needs);
            let lists: Vec<&[Vec<u8>]> =
                needs.map(|(rule, need)| if is_asked(rule) { need.literals.as_slice() } else { &[] }).collect();
            Literals::build(&lists)
        };
        let literals = [0, 1].map(|of_side| literals_of(&|rule| side(rule.phase) == of_side));
        let own_literals = [0, 1].map(|of_side| -> Vec<Option<Literals>> {
            let of_chain = |chain: usize| {
                literals_of(&|rule| {
                    side(rule.phase) == of_side && usize::from(rule.chain) == chain && rule.stages.is_none()
                })
            };
            // The first is no chain: its values are those that all rules look at.
            (0..self.chains.len())
                .map(|chain| of_chain(chain).ok().filter(|own| chain > 0 && own.count() <= MAX_OWN_LITERALS))
                .collect()
        });
        let mut watching = 0;
        let watchers = [0, 1].map(|of_side| Watchers::of(&rules, &phases, (of_side, &[]), &mut watching));
        let [request, response] = literals;
        let own =
            |message: String| vec![Problem { place: crate::problem::Place { file: "rules".into(), line: 0 }, message }];
        let literals = [request.map_err(own)?, response.map_err(own)?];
        let files = SourceOf::Values(&[Collection::FilesTmpContent]);
        let reads_files = rules.iter().flat_map(|r| &r.targets).any(|t| t.source == files);
        let widest = widest(&rules).map_err(own)?;
        let rules = Arc::new(Rules {
            settings: loader.settings,
            gates: rules.iter().map(Gate::of).collect(),
            rules,
            phases,
            chains: self.chains,
            needs: self.needs,
            literals,
            own_literals,
            watchers,
            names: loader.names,
            settled: Settled::default(),
            watching,
            notes: loader.notes,
            is_bare: false,
            reads_files,
            widest,
        });
        let settled = Settled::of(&rules, &mut watching);
        // The transaction that found it out is gone.
        let mut rules =
            Arc::into_inner(rules).ok_or_else(|| own("the rules are in use while they are loaded".to_owned()))?;
        (rules.settled, rules.watching) = (settled, watching);
        Ok(rules)
    }

    fn problem(&mut self, draft: &Draft, message: String) {
        self.problems.push(Problem { place: draft.place.clone(), message });
    }

    fn rule(&mut self, draft: &Draft, drafts: &[Draft], skip_to: Option<u32>, names: &mut Names) -> Option<Rule> {
        let actions = &draft.actions;
        let defaults = draft.defaults.as_deref();
        let inherited = defaults.filter(|_| !actions.none).map(|d| d.transforms.as_slice()).unwrap_or_default();
        let mut chain = 0;
        let mut stages = vec![0];
        for transform in inherited.iter().chain(&actions.transforms) {
            chain = self.chain(chain, *transform);
            stages.push(chain);
        }
        let mut effects = Vec::new();
        for effect in &actions.effects {
            match effect_of(effect, drafts, names) {
                Ok(more) => effects.extend(more),
                Err(message) => self.problem(draft, message),
            }
        }
        let status = actions.status.or(defaults.and_then(|d| d.status)).unwrap_or(403);
        let log = actions.log.or(defaults.and_then(|d| d.log)).unwrap_or(true);
        let targets = draft.targets.clone().settle();
        Some(Rule {
            id: actions.id.unwrap_or(0),
            phase: draft.phase,
            place: draft.place.clone(),
            targets,
            operator: draft.operator.clone(),
            chain,
            stages: (actions.multi_match && stages.len() > 1).then(|| stages.into()),
            chained: actions.chain,
            is_plain: draft.operator.parameter().is_none_or(|p| p.constant().is_some())
                && !matches!(draft.operator.kind, Kind::Geo),
            is_lenient: false,
            capture: actions.capture,
            sets: actions.sets.clone().into(),
            effects: effects.into(),
            disruptive: disruptive(actions, defaults),
            status,
            log,
            audit: actions.audit.or(defaults.and_then(|d| d.audit)).unwrap_or(log),
            skip: actions.skip,
            skip_to,
            meta: Box::new(actions.meta.clone()),
        })
    }

    fn chain(&mut self, before: ChainId, transform: Transform) -> ChainId {
        let chains = &mut self.chains;
        *self.known_chains.entry((before, transform)).or_insert_with(|| {
            chains.push((before, Some(transform)));
            (chains.len() - 1) as ChainId
        })
    }

    /// Where in the phase's list `skipAfter` goes on: behind the marker, or behind the rule with that id.
    fn skip_to(
        &mut self,
        draft: &Draft,
        at: usize,
        phases: &[Vec<u32>; PHASES + 1],
        markers: &[(String, u32)],
        drafts: &[Draft],
    ) -> Option<u32> {
        let wanted = draft.actions.skip_after.as_ref()?;
        let marker =
            markers.iter().find(|(name, behind)| name == wanted && *behind as usize > at).map(|(_, behind)| *behind);
        let by_id = || {
            let id: u64 = wanted.parse().ok()?;
            let found = drafts.iter().enumerate().skip(at).find(|(_, d)| d.actions.id == Some(id))?.0;
            Some(found as u32 + 1)
        };
        let Some(behind) = marker.or_else(by_id) else {
            self.problem(draft, format!("no SecMarker \"{wanted}\" stands behind this rule"));
            return None;
        };
        let list = &phases[usize::from(draft.phase)];
        Some(list.partition_point(|rule| *rule < behind) as u32)
    }
}

/// Applies an update to all rules that it means.
fn apply(items: &mut Vec<Item>, update: &Update) {
    match update {
        Update::Remove(which) => {
            // The links of a chain go with its first rule.
            let mut gone = false;
            items.retain(|item| match item {
                Item::Marker(_) => true,
                Item::Rule(draft) if draft.is_link => !gone,
                Item::Rule(draft) => {
                    gone = meant(which, draft);
                    !gone
                }
            });
        }
        Update::Targets(which, targets) => {
            for item in items.iter_mut() {
                if let Item::Rule(draft) = item
                    && meant(which, draft)
                {
                    draft.targets.wanted.extend(targets.wanted.iter().cloned());
                    draft.targets.excluded.extend(targets.excluded.iter().cloned());
                }
            }
        }
        Update::Actions(which, actions) => {
            for item in items.iter_mut() {
                if let Item::Rule(draft) = item
                    && meant(which, draft)
                {
                    change(&mut draft.actions, actions);
                }
            }
        }
    }
}

fn meant(which: &Which, draft: &Draft) -> bool {
    let constant = |text: &crate::expand::Text, wanted: &str| text.constant() == Some(wanted.as_bytes());
    match which {
        _ if draft.is_link => false,
        Which::Ids(ranges) => draft.actions.id.is_some_and(|id| ranges.iter().any(|(a, b)| (*a..=*b).contains(&id))),
        Which::Tag(tag) => draft.actions.meta.tags.iter().any(|t| constant(t, tag)),
        Which::Msg(msg) => draft.actions.meta.msg.as_ref().is_some_and(|m| constant(m, msg)),
    }
}

/// `SecRuleUpdateActionById`: what is given takes the place of what was; lists grow.
fn change(actions: &mut Actions, by: &Actions) {
    if by.disruptive.is_some() {
        actions.disruptive.clone_from(&by.disruptive);
    }
    actions.status = by.status.or(actions.status);
    actions.log = by.log.or(actions.log);
    actions.audit = by.audit.or(actions.audit);
    if by.none {
        actions.transforms.clear();
        actions.none = true;
    }
    actions.transforms.extend(&by.transforms);
    actions.capture |= by.capture;
    actions.multi_match |= by.multi_match;
    actions.sets.extend(by.sets.iter().cloned());
    actions.effects.extend(by.effects.iter().cloned());
    let (meta, new) = (&mut actions.meta, &by.meta);
    meta.tags.extend(new.tags.iter().cloned());
    meta.sanitise.extend(new.sanitise.iter().cloned());
    meta.severity = new.severity.or(meta.severity);
    if new.msg.is_some() {
        meta.msg.clone_from(&new.msg);
    }
    if new.logdata.is_some() {
        meta.logdata.clone_from(&new.logdata);
    }
}

type Arranged = (Vec<Draft>, [Vec<u32>; PHASES + 1], Vec<(String, u32)>);

/// Numbers the rules, lists them by phase, and notes before which rule each marker stands.
fn arrange(items: Vec<Item>) -> Arranged {
    let mut drafts: Vec<Draft> = Vec::new();
    let mut phases: [Vec<u32>; PHASES + 1] = Default::default();
    let mut markers = Vec::new();
    for item in items {
        match item {
            Item::Marker(name) => markers.push((name, drafts.len() as u32)),
            Item::Rule(draft) => {
                if !draft.is_link {
                    phases[usize::from(draft.phase)].push(drafts.len() as u32);
                }
                drafts.push(*draft);
            }
        }
    }
    (drafts, phases, markers)
}

fn disruptive(actions: &Actions, defaults: Option<&Actions>) -> Disruptive {
    let of = |wanted: &Wanted| match wanted {
        Wanted::Pass | Wanted::Block => Disruptive::Pass,
        Wanted::Deny => Disruptive::Deny,
        Wanted::Drop => Disruptive::Drop,
        Wanted::Allow(allow) => Disruptive::Allow(*allow),
        Wanted::Redirect(to) => Disruptive::Redirect(to.clone()),
    };
    match &actions.disruptive {
        None | Some(Wanted::Block) => defaults.and_then(|d| d.disruptive.as_ref()).map_or(Disruptive::Pass, of),
        Some(wanted) => of(wanted),
    }
}

fn effect_of(effect: &WantedEffect, drafts: &[Draft], names: &mut Names) -> Result<Vec<Effect>, String> {
    let numbers = |which: &Which| -> Arc<[u32]> {
        drafts.iter().enumerate().filter(|(_, d)| meant(which, d)).map(|(at, _)| at as u32).collect()
    };
    Ok(vec![match effect {
        WantedEffect::Open(stored, key) => Effect::Open(*stored, key.clone()),
        WantedEffect::Expire(stored, name, seconds) => Effect::Expire(*stored, name.clone(), seconds.clone()),
        WantedEffect::RuleEngine(engine) => Effect::RuleEngine(*engine),
        WantedEffect::AuditEngine(engine) => Effect::AuditEngine(*engine),
        WantedEffect::AuditParts(sign, parts) => Effect::AuditParts(*sign, parts.clone()),
        WantedEffect::RequestBodyAccess(on) => Effect::RequestBodyAccess(*on),
        WantedEffect::ResponseBodyAccess(on) => Effect::ResponseBodyAccess(*on),
        WantedEffect::ForceRequestBodyVariable(on) => Effect::ForceRequestBodyVariable(*on),
        WantedEffect::Processor(processor) => Effect::Processor(*processor),
        WantedEffect::XmlArguments(how) => Effect::XmlArguments(*how),
        WantedEffect::RequestBodyLimit(bytes) => Effect::RequestBodyLimit(*bytes),
        WantedEffect::ResponseBodyLimit(bytes) => Effect::ResponseBodyLimit(*bytes),
        WantedEffect::Remove(which) => Effect::Remove(numbers(which)),
        WantedEffect::RemoveTarget(which, targets) => {
            let rules = numbers(which);
            let targets = Targets::parse(targets.as_bytes(), names)?;
            let wanted =
                targets.wanted.into_iter().map(|t| crate::select::Exclusion { label: t.label, select: t.select });
            let all = wanted.chain(targets.excluded);
            return Ok(all.map(|exclusion| Effect::RemoveTarget(rules.clone(), exclusion)).collect());
        }
    }])
}

fn settle_slots(target: &mut crate::select::Target, names: &Names) {
    if let (SourceOf::Tx, Select::Pattern(rx)) = (target.source, &target.select) {
        let slots = (0..names.count() as u32).filter(|slot| rx.is_match(names.name(*slot)));
        target.select = Select::Slots(rx.clone(), slots.collect());
    }
}

/// The expression with most groups.
fn widest(rules: &[Rule]) -> Result<Arc<Rx>, String> {
    let expressions = rules.iter().filter_map(|r| match &r.operator.kind {
        Kind::Rx(rx, _) | Kind::Verify(_, rx) => Some(rx),
        _ => None,
    });
    match expressions.max_by_key(|rx| rx.groups()) {
        Some(rx) => Ok(rx.clone()),
        None => Ok(Arc::new(Rx::compile(b"()", false)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seclang::files::Bundle;

    #[test]
    fn threads_prepare_all_expressions_together() {
        let text: String =
            (1..40).map(|n| format!("SecRule ARGS \"@rx (?:a|b)+{n}\" \"id:{n},phase:2,pass\"\n")).collect();
        let rules = Rules::load(&[Source { name: "test.conf", text: text.as_bytes() }], &Bundle::default());
        let rules = rules.expect("a rule set");
        let turn = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| rules.prepare(&turn));
            rules.prepare(&turn);
        });
        let ready = |rule: &Rule| matches!(&rule.operator.kind, Kind::Rx(rx, _) if rx.is_prepared());
        assert!(rules.rules.iter().all(ready));
    }
}
