//! The running configuration: immutable, shared by all threads, swapped whole on a reload.
//! Made by `config`, read by everything after it.

use crate::config::Matching;
use crate::config::pattern::Scratch;
use crate::config::variables::Variable;
use crate::modules::core::ServerSettings;
use crate::modules::{LocationConf, MainConf};
use crate::request::route::{LocationTree, Port};
use crate::settings::{ListenSpec, ProcessSettings};
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

/// Index of a level of the `http` tree: the level itself, a server, a location, an `if`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocationId(pub u32);

/// Index of a server block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Index of a variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VariableId(pub u32);

/// What a server block says beside its locations.
#[derive(Clone, Debug, Default)]
pub struct ServerConf {
    /// Values of `http` and `server` level.
    pub core: ServerSettings,
}

/// A server block.
#[derive(Debug)]
pub struct Server {
    /// Its values.
    pub conf: ServerConf,
    /// Its first name: `$server_name`.
    pub name: Box<[u8]>,
    /// The level that its requests start on.
    pub root: LocationId,
}

/// A level of the `http` tree.
#[derive(Debug)]
pub struct Location {
    /// Its name as it was written, empty for nameless levels.
    pub name: Box<[u8]>,
    /// How the name is matched.
    pub matching: Matching,
    /// The modules' values, merged.
    pub conf: LocationConf,
    /// The locations inside.
    pub inside: LocationTree,
    /// Inside an `if` or `limit_except`.
    pub nameless: bool,
}

/// All of a configuration.
pub struct Snapshot {
    /// Counts reloads, from 1.
    pub generation: u64,
    /// Values of the main level.
    pub process: ProcessSettings,
    /// Values that modules keep once.
    pub main: MainConf,
    /// `-p`: what relative paths made of variables are relative to.
    pub prefix: std::path::PathBuf,
    /// Server blocks.
    pub servers: Vec<Server>,
    /// Levels of the `http` tree by index.
    pub locations: Vec<Location>,
    /// Variables by index.
    pub variables: Vec<Variable>,
    /// What is listened on, and which servers stand behind each.
    pub listens: Vec<ListenSpec>,
    /// One for each of `listens`.
    pub ports: Vec<Port>,
}

impl Snapshot {
    /// A level by its index.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.0 as usize]
    }

    /// A server by its index.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}

/// A snapshot as one thread holds it: counted without atomics, with the thread's own scratch space.
pub struct Shot {
    snapshot: Arc<Snapshot>,
    /// Scratch space of the expressions.
    pub scratch: RefCell<Scratch>,
}

impl Shot {
    /// A thread's view of a snapshot.
    pub fn new(snapshot: Arc<Snapshot>) -> Shot {
        Shot { snapshot, scratch: RefCell::default() }
    }

    /// The shared part.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}

impl Deref for Shot {
    type Target = Snapshot;
    fn deref(&self) -> &Snapshot {
        &self.snapshot
    }
}
