//! `modsecurity` and its like (the module ModSecurity-nginx): which levels have requests judged by which rules. The engine is the crate
//! `waf`; what a request goes through is in `steps`.
//!
//! Rules are read while a configuration is. A level with rules of its own has those of the levels around it as well, in a set of
//! its own; levels without any share the set around them, and so do levels that say the same.

mod steps;
pub mod succession;

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::variables::Builtin;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::log::lines;
use crate::merged_values;
use conf::{Node, Problem, Span};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use waf::{AuditEngine, Engine, Rules, Source};

pub use steps::{ANSWER_FILTER, BODY, Watch, begin, judge_request, logger};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("modsecurity", |s, n| {
        setters::flag(&mut s.level.conf.modsecurity.settings.modsecurity, n)?;
        s.build.main.modsecurity.is_used |= *s.level.conf.modsecurity.settings.modsecurity;
        Ok(())
    }),
    http("modsecurity_rules", rules),
    http("modsecurity_rules_file", rules_file),
    http("modsecurity_rules_remote", |_, n| {
        let text =
            "rules are not fetched: download them, look at them, and name the file with \"modsecurity_rules_file\"";
        Err(n.problem(format!("\"modsecurity_rules_remote\" is refused, {text}")))
    }),
    http("modsecurity_transaction_id", |s, n| {
        let id = Complex::compile(s.build, &n.args[0])?;
        setters::value(&mut s.level.conf.modsecurity.settings.modsecurity_transaction_id, n, Some(Arc::new(id)))
    }),
    http("modsecurity_use_error_log", |s, n| {
        setters::flag(&mut s.level.conf.modsecurity.settings.modsecurity_use_error_log, n)
    }),
];

/// The variable.
pub const VARIABLES: &[Builtin] =
    &[Builtin { name: "modsecurity_rules", evaluate: steps::rules_hit, volatile: true, assign: None }];

merged_values! {
    /// What is merged as it is.
    pub struct Settings {
        /// The directive.
        modsecurity: bool = false,
        /// Rules that match are written to the error log.
        modsecurity_use_error_log: bool = true,
        /// What a transaction is called, where it is not `$request_id`.
        modsecurity_transaction_id: Option<Arc<Complex>> = None,
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// The rules that this level adds.
    own: Vec<Placed>,
    /// The rules of this level and those around it.
    set: Option<Arc<RuleSet>>,
    /// Some level has requests judged, which may come here by a redirect inside.
    anywhere: bool,
}

// A level's own rules are part of its set by the time that levels inside are merged with it.
crate::inherited!(Conf, |conf| conf.own.is_empty());

impl Conf {
    /// A level has the rules around it, to which [`finish_level`] adds its own.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
        self.set.clone_from(&parent.set);
        self.anywhere |= parent.anywhere;
    }

    /// Whether requests that come to this level are judged from here on.
    pub fn is_on(&self) -> bool {
        *self.settings.modsecurity && self.set.is_some()
    }

    /// Whether requests that are judged may come here.
    pub fn is_anywhere(&self) -> bool {
        self.anywhere
    }

    /// The rules, where they are to be run.
    fn running(&self) -> Option<&Arc<RuleSet>> {
        let set = self.set.as_ref().filter(|_| *self.settings.modsecurity)?;
        (set.rules.settings().engine != Engine::Off).then_some(set)
    }
}

/// What all levels share.
#[derive(Debug, Default)]
pub struct Main {
    is_used: bool,
    /// Each set once, however many levels come to the same.
    sets: Vec<Arc<RuleSet>>,
    /// What rules ask for that has no effect here.
    pub notes: Vec<Problem>,
}

/// Rules as a directive names them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Text {
    File(PathBuf),
    Here(Arc<[u8]>),
}

/// A text, and the directive that it stands in.
#[derive(Clone, Debug)]
struct Placed {
    text: Text,
    span: Option<Span>,
}

/// A compiled set.
#[derive(Debug)]
pub struct RuleSet {
    rules: Arc<Rules>,
    /// What it was made of, the outermost level first.
    levels: Vec<Vec<Placed>>,
    /// The audit log's number among the files of access logs.
    audit: Option<usize>,
}

fn rules(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = Text::Here(node.args[0].text.as_slice().into());
    scope.level.conf.modsecurity.own.push(Placed { text, span: node.name.span.into() });
    Ok(())
}

fn rules_file(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = Text::File(scope.build.conf_path(&node.args[0].text));
    scope.level.conf.modsecurity.own.push(Placed { text, span: node.name.span.into() });
    Ok(())
}

/// Compiles the rules of a level that adds some. What is wrong with them is noted.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    let conf = &mut level.conf.modsecurity;
    if build.main.modsecurity.is_used && !conf.anywhere {
        conf.anywhere = true;
    }
    if conf.own.is_empty() {
        return;
    }
    let mut levels = conf.set.as_ref().map_or_else(Vec::new, |around| around.levels.clone());
    levels.push(std::mem::take(&mut conf.own));
    conf.set = find(&build.main.modsecurity.sets, &levels).or_else(|| load(build, levels));
}

fn find(sets: &[Arc<RuleSet>], levels: &[Vec<Placed>]) -> Option<Arc<RuleSet>> {
    let texts = |levels: &[Vec<Placed>]| -> Vec<Vec<Text>> {
        levels.iter().map(|level| level.iter().map(|placed| placed.text.clone()).collect()).collect()
    };
    let wanted = texts(levels);
    sets.iter().find(|set| texts(&set.levels) == wanted).cloned()
}

/// The files of a configuration as the engine asks for them.
struct Reader<'a>(&'a dyn conf::Files);

impl waf::Files for Reader<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }

    fn matching(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        self.0.glob(pattern)
    }
}

fn load(build: &mut Build<'_>, levels: Vec<Vec<Placed>>) -> Option<Arc<RuleSet>> {
    let mut texts: Vec<Vec<(String, Vec<u8>)>> = Vec::new();
    for level in &levels {
        let mut read = Vec::new();
        for placed in level {
            // Relative paths in a text begin at the folder of its name.
            let name = build.conf_prefix.join(format!("modsecurity_rules[{}.{}]", texts.len(), read.len()));
            match &placed.text {
                Text::Here(text) => read.push((name.to_string_lossy().into_owned(), text.to_vec())),
                Text::File(path) => match build.files.read(path) {
                    Ok(text) => read.push((path.to_string_lossy().into_owned(), text)),
                    Err(e) => {
                        let text = format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
                        complain(build, Problem::emerg(placed.span, text));
                        return None;
                    }
                },
            }
        }
        texts.push(read);
    }
    let sources: Vec<Vec<Source<'_>>> =
        texts.iter().map(|level| level.iter().map(|(name, text)| Source { name, text }).collect()).collect();
    let by_level: Vec<&[Source<'_>]> = sources.iter().map(Vec::as_slice).collect();
    let rules = match Rules::load_levels(&by_level, &Reader(build.files)) {
        Ok(rules) => rules,
        Err(problems) => {
            for problem in &problems {
                let problem = shown(problem, &levels, conf::Severity::Emerg);
                complain(build, problem);
            }
            return None;
        }
    };
    prepare(&rules);
    for found in rules.notes() {
        note(build, shown(found, &levels, conf::Severity::Notice));
    }
    let audited = rules.settings().audit != AuditEngine::Off;
    if audited && rules.settings().audit_file.is_none() {
        let span = levels.last().and_then(|level| level.first()).and_then(|placed| placed.span);
        let text = "\"SecAuditEngine\" is on, but no \"SecAuditLog\" says where the audit log is: nothing is written";
        note(build, Problem::new(conf::Severity::Notice, span, text));
    }
    let audit = rules.settings().audit_file.as_deref().filter(|_| audited).map(|path| {
        let path = build.full_path(path.as_bytes());
        lines::number_of(&mut build.main.log.files, path)
    });
    let set = Arc::new(RuleSet { rules: Arc::new(rules), levels, audit });
    build.main.modsecurity.sets.push(set.clone());
    Some(set)
}

/// Compiles all that requests may need, on two threads: one that waits for an expression would keep all connections of its thread waiting.
fn prepare(rules: &Rules) {
    let turn = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // Without it this thread does it all.
        let _ = std::thread::Builder::new().name("modsecurity".to_owned()).spawn_scoped(scope, || rules.prepare(&turn));
        rules.prepare(&turn);
    });
}

/// A problem of rules as the server says it: with the place in the rule file, or in the configuration where they stand there.
fn shown(problem: &waf::Problem, levels: &[Vec<Placed>], severity: conf::Severity) -> Problem {
    let number = problem.place.file.rsplit_once("/modsecurity_rules[").and_then(|(_, rest)| {
        let (level, text) = rest.strip_suffix(']')?.split_once('.')?;
        Some((level.parse::<usize>().ok()?, text.parse::<usize>().ok()?))
    });
    let placed = number.and_then(|(level, text)| levels.get(level)?.get(text));
    if let Some(Placed { text: Text::Here(text), span: Some(span) }) = placed {
        // A place's line is that of the directive's end.
        let lines = text.iter().filter(|b| **b == b'\n').count() as u32;
        let line = (span.line + problem.place.line).saturating_sub(lines + 1).max(1);
        return Problem::new(severity, Span { line, ..*span }, problem.message.clone());
    }
    // The directive that led there gives it its turn among others.
    let span = levels.last().and_then(|level| level.first()).and_then(|placed| placed.span);
    Problem::new(severity, span, problem.to_string()).placeless()
}

/// Says what has no effect, once.
fn note(build: &mut Build<'_>, note: Problem) {
    let notes = &mut build.main.modsecurity.notes;
    if !notes.iter().any(|n| n.message == note.message) {
        notes.push(note);
    }
}

/// Notes a problem once: a level inside has the texts of those around it.
fn complain(build: &mut Build<'_>, problem: Problem) {
    if !build.problems.iter().any(|p| p.message == problem.message && p.span == problem.span) {
        build.problems.push(problem);
    }
}
