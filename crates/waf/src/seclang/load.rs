//! Reads rule texts, follows `Include`, and notes what each directive says. Nothing is decided here that a later directive could
//! change: updates and removals are kept until all rules are known.

use super::actions::{Actions, Which};
use super::files::Files;
use super::lexer::{Statement, statements};
use super::targets::Targets;
use super::{ctl, directives};
use crate::limits::{MAX_CHAIN, MAX_FILES, MAX_INCLUDE_DEPTH, MAX_PROBLEMS, MAX_RULES};
use crate::names::Names;
use crate::operator::{Operator, Phrases};
use crate::problem::{Place, Problem};
use crate::rule::PHASES;
use crate::settings::Settings;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A rule or a link of a chain, as written.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Where it is written.
    pub place: Place,
    /// What it looks at.
    pub targets: Targets,
    /// What it asks.
    pub operator: Operator,
    /// What it says and does.
    pub actions: Actions,
    /// `SecDefaultAction` of its phase, as it stood then.
    pub defaults: Option<Arc<Actions>>,
    /// The phase it runs in.
    pub phase: u8,
    /// It is a later link of a chain.
    pub is_link: bool,
}

/// What stands in a rule text, in order.
#[derive(Debug)]
pub(crate) enum Item {
    /// `SecRule`, `SecAction`
    Rule(Box<Draft>),
    /// `SecMarker`
    Marker(String),
}

/// A later change of rules.
#[derive(Debug)]
pub(crate) enum Update {
    /// `SecRuleRemoveBy...`
    Remove(Which),
    /// `SecRuleUpdateTargetBy...`
    Targets(Which, Targets),
    /// `SecRuleUpdateActionById`
    Actions(Which, Box<Actions>),
}

/// Everything that a rule set says.
pub(crate) struct Loader<'a> {
    files: &'a dyn Files,
    /// The rules and markers.
    pub items: Vec<Item>,
    /// The changes, each with its place.
    pub updates: Vec<(Update, Place)>,
    /// The settings.
    pub settings: Settings,
    /// The names of `TX`.
    pub names: Names,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What was read and has no effect.
    pub notes: Vec<Problem>,
    defaults: [Option<Arc<Actions>>; PHASES + 1],
    known: HashMap<u64, Place>,
    /// Rules, links not counted.
    rules: usize,
    read: usize,
    /// The last rule has `chain`: how long its chain is.
    open: Option<usize>,
}

impl<'a> Loader<'a> {
    /// Nothing read yet.
    pub(crate) fn new(files: &'a dyn Files) -> Loader<'a> {
        Loader {
            files,
            items: Vec::new(),
            updates: Vec::new(),
            settings: Settings::default(),
            names: Names::default(),
            problems: Vec::new(),
            notes: Vec::new(),
            defaults: Default::default(),
            known: HashMap::new(),
            rules: 0,
            read: 0,
            open: None,
        }
    }

    /// Reads a text. `name` is what problems call it, and where relative paths in it begin.
    pub(crate) fn text(&mut self, name: &str, text: &[u8]) {
        self.text_at(Path::new(name), text, 0);
        if self.open.take().is_some() {
            let line = text.iter().filter(|b| **b == b'\n').count() as u32;
            let place = Place { file: name.into(), line };
            self.problem(&place, "a chain has no last rule".to_owned());
        }
    }

    fn text_at(&mut self, path: &Path, text: &[u8], depth: usize) {
        let file: Arc<str> = path.to_string_lossy().into();
        for statement in statements(text) {
            if self.problems.len() >= MAX_PROBLEMS {
                return;
            }
            match statement {
                Err(broken) => {
                    let place = Place { file: file.clone(), line: broken.line };
                    self.problem(&place, broken.message);
                }
                Ok(statement) => {
                    let place = Place { file: file.clone(), line: statement.line };
                    if let Err(message) = self.statement(path, &place, &statement, depth) {
                        self.problem(&place, message);
                    }
                }
            }
        }
    }

    fn problem(&mut self, place: &Place, message: String) {
        self.problems.push(Problem { place: place.clone(), message });
    }

    fn statement(&mut self, path: &Path, place: &Place, s: &Statement, depth: usize) -> Result<(), String> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let one = || match s.args.as_slice() {
            [arg] => Ok(arg.as_slice()),
            _ => Err(format!("\"{}\" takes one argument", s.name)),
        };
        match s.name.to_ascii_lowercase().as_str() {
            "include" => return self.include(folder, one()?, depth),
            "secrule" => {
                let (targets, operator, actions) = match s.args.as_slice() {
                    [targets, operator] => (targets, operator, &[][..]),
                    [targets, operator, actions] => (targets, operator, actions.as_slice()),
                    _ => return Err("\"SecRule\" takes variables, an operator and actions".to_owned()),
                };
                let targets = Targets::parse(targets, &mut self.names)?;
                let mut reader = Reader { files: self.files, folder };
                let operator = Operator::parse(operator, &mut self.names, &mut reader)?;
                return self.rule(place, targets, operator, actions);
            }
            "secaction" => {
                let mut reader = Reader { files: self.files, folder };
                let always = Operator::parse(b"@unconditionalMatch", &mut self.names, &mut reader)?;
                return self.rule(place, Targets::default(), always, one()?);
            }
            "secmarker" => self.items.push(Item::Marker(String::from_utf8_lossy(one()?).into_owned())),
            "secdefaultaction" => {
                let actions = Actions::parse(one()?, &mut self.names)?;
                let phase = actions.phase.ok_or("\"SecDefaultAction\" needs a phase")?;
                self.defaults[usize::from(phase)] = Some(Arc::new(actions));
            }
            "secruleremovebyid" => {
                let text = s.args.join(&b' ');
                let ids = ctl::ids(&String::from_utf8_lossy(&text)).ok_or("invalid rule ids")?;
                self.updates.push((Update::Remove(Which::Ids(ids)), place.clone()));
            }
            "secruleremovebytag" => {
                let which = Which::Tag(String::from_utf8_lossy(one()?).into_owned());
                self.updates.push((Update::Remove(which), place.clone()));
            }
            "secruleremovebymsg" => {
                let which = Which::Msg(String::from_utf8_lossy(one()?).into_owned());
                self.updates.push((Update::Remove(which), place.clone()));
            }
            name @ ("secruleupdatetargetbyid" | "secruleupdatetargetbytag" | "secruleupdatetargetbymsg") => {
                let [which, targets] = s.args.as_slice() else {
                    return Err(format!("\"{}\" takes rules and variables", s.name));
                };
                let which = String::from_utf8_lossy(which).into_owned();
                let which = match name {
                    "secruleupdatetargetbyid" => Which::Ids(ctl::ids(&which).ok_or("invalid rule ids")?),
                    "secruleupdatetargetbytag" => Which::Tag(which),
                    _ => Which::Msg(which),
                };
                let targets = Targets::parse(targets, &mut self.names)?;
                self.updates.push((Update::Targets(which, targets), place.clone()));
            }
            "secruleupdateactionbyid" => {
                let [which, actions] = s.args.as_slice() else {
                    return Err("\"SecRuleUpdateActionById\" takes a rule and actions".to_owned());
                };
                let ids = ctl::ids(&String::from_utf8_lossy(which)).ok_or("invalid rule ids")?;
                let actions = Actions::parse(actions, &mut self.names)?;
                if actions.id.is_some() || actions.phase.is_some() || actions.chain {
                    return Err("a rule's id, phase and chain cannot be changed".to_owned());
                }
                self.updates.push((Update::Actions(Which::Ids(ids), Box::new(actions)), place.clone()));
            }
            _ => {
                let mut reader = Reader { files: self.files, folder };
                if let Some(note) = directives::apply(&mut self.settings, s, &mut reader)? {
                    self.notes.push(Problem { place: place.clone(), message: note });
                }
            }
        }
        Ok(())
    }

    fn include(&mut self, folder: &Path, pattern: &[u8], depth: usize) -> Result<(), String> {
        let shown = String::from_utf8_lossy(pattern).into_owned();
        if depth + 1 >= MAX_INCLUDE_DEPTH {
            return Err(format!("\"{shown}\" is included too deep"));
        }
        let path = folder.join(&shown);
        let wild = pattern.iter().any(|b| matches!(b, b'*' | b'?'));
        let paths = if wild {
            self.files.matching(&path).map_err(|e| format!("\"{shown}\" cannot be listed: {e}"))?
        } else {
            vec![path]
        };
        for path in paths {
            self.read += 1;
            if self.read > MAX_FILES {
                return Err(format!("more than {MAX_FILES} files"));
            }
            let text =
                self.files.read(&path).map_err(|e| format!("\"{}\" cannot be read: {e}", path.to_string_lossy()))?;
            self.text_at(&path, &text, depth + 1);
        }
        Ok(())
    }

    fn rule(&mut self, place: &Place, targets: Targets, operator: Operator, actions: &[u8]) -> Result<(), String> {
        let links = self.open.take();
        let actions = Actions::parse(actions, &mut self.names)?;
        let notes = actions.notes.iter().map(|note| Problem { place: place.clone(), message: (*note).to_owned() });
        self.notes.extend(notes);
        let phase = match (links, self.items.last()) {
            (Some(_), Some(Item::Rule(last))) => last.phase,
            _ => actions.phase.unwrap_or(2),
        };
        let is_link = links.is_some();
        if is_link && (actions.id.is_some() || actions.skip_after.is_some() || actions.disruptive.is_some()) {
            return Err("id, skipAfter and disruptive actions belong to the first rule of a chain".to_owned());
        }
        if !is_link {
            let id = actions.id.ok_or("a rule needs an id")?;
            if let Some(other) = self.known.insert(id, place.clone()) {
                return Err(format!("rule id {id} is already used in {other}"));
            }
            self.rules += 1;
            if self.rules > MAX_RULES {
                return Err(format!("more than {MAX_RULES} rules"));
            }
        }
        if actions.chain {
            let links = links.unwrap_or(1) + 1;
            if links > MAX_CHAIN {
                return Err(format!("a chain of more than {MAX_CHAIN} rules"));
            }
            self.open = Some(links);
        }
        let defaults = self.defaults[usize::from(phase)].clone();
        let place = place.clone();
        self.items.push(Item::Rule(Box::new(Draft { place, targets, operator, actions, defaults, phase, is_link })));
        Ok(())
    }
}

/// Reads the files that operators and settings name, beside the file that names them.
pub(super) struct Reader<'a> {
    files: &'a dyn Files,
    folder: &'a Path,
}

impl Phrases for Reader<'_> {
    fn read(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let path: PathBuf = self.folder.join(name);
        self.files.read(&path).map_err(|e| format!("\"{}\" cannot be read: {e}", path.to_string_lossy()))
    }
}
