//! `keyval`, `keyval_zone`: variables whose values are looked up in what the API keeps (nginx Plus' `ngx_http_keyval_module`).
//! The keys and values are in `keyval_store`.

use super::keyval_store::{self, Matching, Spec, Store};
use super::map::variable_name;
use crate::config::complex::Complex;
use crate::config::{Directive, Scope, Subsystem, both};
use crate::log::error::Level;
use crate::request::{Request, Text};
use crate::snapshot::{Snapshot, VariableId};
use crate::zone;
use conf::{Node, Problem, value};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[both("keyval", keyval), both("keyval_zone", keyval_zone)];

/// The module's names in the table of zones.
const OWNERS: [&str; 2] = [keyval_store::OF_HTTP, "stream_keyval"];

/// What is kept once for a subsystem.
#[derive(Debug, Default)]
pub struct Main {
    zones: Vec<Zone>,
    /// The variables: whose key, and in which zone.
    variables: Vec<(VariableId, Complex, usize)>,
}

#[derive(Debug)]
struct Zone {
    name: Box<[u8]>,
    /// None until its own directive was read.
    store: Option<Arc<Store>>,
}

impl Main {
    fn index_of(&mut self, name: &[u8]) -> usize {
        self.zones.iter().position(|z| *z.name == *name).unwrap_or_else(|| {
            self.zones.push(Zone { name: name.into(), store: None });
            self.zones.len() - 1
        })
    }

    /// The zones.
    pub fn stores(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.zones.iter().filter_map(|z| z.store.as_ref())
    }

    /// One of the zones, by its number.
    pub fn store(&self, at: usize) -> Option<Arc<Store>> {
        self.zones.get(at)?.store.clone()
    }

    /// The zones with their contents.
    pub fn kept(&self) -> impl Iterator<Item = super::Kept> {
        self.stores().map(|s| super::Kept::new(s.spec.name.as_bytes(), format!("{:?}", s.spec).as_bytes(), s))
    }

    /// Pages of each zone, in use and free.
    pub fn pages(&self) -> impl Iterator<Item = (&[u8], usize, usize)> {
        self.stores().map(|s| (s.spec.name.as_bytes(), s.pages().0, s.pages().1))
    }
}

fn owner(subsystem: Subsystem) -> &'static str {
    OWNERS[usize::from(subsystem.is_stream())]
}

fn invalid(node: &Node, word: &conf::Word) -> Problem {
    node.problem(format!("invalid parameter \"{}\"", word.as_str()))
}

fn keyval(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let key = Complex::compile(scope.build, &node.args[0])?;
    let variable = variable_name(node, &node.args[1])?;
    let name = node.args[2].text.strip_prefix(b"zone=").filter(|n| !n.is_empty());
    let name = name.ok_or_else(|| invalid(node, &node.args[2]))?;
    let owner = owner(scope.build.subsystem);
    scope.build.main.zones.add(name, 0, owner).map_err(|t| node.problem(t))?;
    let zone = scope.build.main.keyval.index_of(name);
    let own = key.clone();
    let evaluate = Arc::new(move |r: &mut Request| find(r, &own, zone));
    let id = scope.build.variables.define(variable, true, evaluate).map_err(|t| node.problem(t))?;
    scope.build.main.keyval.variables.push((id, key, zone));
    Ok(())
}

/// A program gives a variable another value, which its zone keeps: whether the variable is one of a zone.
pub fn assign(r: &mut Request, id: VariableId, value: &[u8]) -> bool {
    let snapshot = r.snapshot.clone();
    let Some((_, key, zone)) = snapshot.main.keyval.variables.iter().find(|(known, ..)| *known == id) else {
        return false;
    };
    let key = key.eval(r);
    let Some(store) = snapshot.main.keyval.zones[*zone].store.as_ref() else { return true };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let Err(refused) = store.set(&[(text(r.get(key)), text(value), None)]) {
        crate::log_error!(r, Error, "keyval zone \"{}\" did not take a value: {refused:?}", store.spec.name);
    }
    true
}

fn find(r: &mut Request, key: &Complex, zone: usize) -> Option<Text> {
    let key = key.eval(r);
    let snapshot = r.snapshot.clone();
    let store = snapshot.main.keyval.zones[zone].store.as_ref()?;
    let key = std::str::from_utf8(r.get(key)).ok()?;
    let mut room = Vec::new();
    store.look_up(key, |value| room.extend_from_slice(value.as_bytes()))?;
    Some(r.text(&room))
}

/// Another module of `http` keeps something in a zone. Gives its number ([`Main::store`]).
pub fn use_zone(scope: &mut Scope<'_, '_>, node: &Node, name: &[u8]) -> Result<usize, Problem> {
    scope.build.main.zones.add(name, 0, OWNERS[0]).map_err(|t| node.problem(t))?;
    Ok(scope.build.main.keyval.index_of(name))
}

fn keyval_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (mut zone, mut state, mut timeout_ms, mut matching, mut sync) = (None, None, None, Matching::Exact, false);
    for word in &node.args {
        let text = word.text.as_slice();
        if let Some(text) = text.strip_prefix(b"zone=") {
            zone = Some(zone::name_and_size(node, word, text)?);
        } else if let Some(path) = text.strip_prefix(b"state=").filter(|p| !p.is_empty()) {
            state = Some(scope.build.full_path(path));
        } else if let Some(time) = text.strip_prefix(b"timeout=") {
            let ms = value::milliseconds(time).filter(|ms| *ms > 0).ok_or_else(|| invalid(node, word))?;
            timeout_ms = Some(ms);
        } else if let Some(kind) = text.strip_prefix(b"type=") {
            matching = match kind {
                b"string" => Matching::Exact,
                b"ip" => Matching::Network,
                b"prefix" => Matching::Prefix,
                _ => return Err(invalid(node, word)),
            };
        } else if text == b"sync" {
            sync = true;
        } else {
            return Err(invalid(node, word));
        }
    }
    let Some((name, size)) = zone.filter(|(name, _)| !name.is_empty()) else {
        return Err(super::limits::without_zone(node));
    };
    let owner = owner(scope.build.subsystem);
    scope.build.main.zones.add(name, size, owner).map_err(|t| node.problem(t))?;
    let index = scope.build.main.keyval.index_of(name);
    let place = &mut scope.build.main.keyval.zones[index];
    let name: Box<str> = String::from_utf8_lossy(name).into();
    if place.store.is_some() {
        return Err(node.problem(format!("duplicate keyval zone \"{name}\"")));
    }
    if sync && timeout_ms.is_none() {
        // As nginx Plus has it: what a node that was away for long brings back is to end some day.
        return Err(node.problem("\"sync\" requires \"timeout\" to be set".to_owned()));
    }
    scope.build.state_files.extend(state.clone());
    place.store = Some(keyval_store::open(Spec { owner, name, size, timeout_ms, matching, state, sync }));
    Ok(())
}

/// Reads the state files of zones that are new. In the worker process, which also writes them.
pub fn load(snapshot: &Snapshot) {
    let planes = std::iter::once(snapshot).chain(snapshot.stream.as_deref());
    for store in planes.flat_map(|subsystem| subsystem.main.keyval.stores()) {
        if let Err(text) = store.load() {
            crate::log::process_line(Level::Error, format_args!("{text}"));
        }
    }
}
