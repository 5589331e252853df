//! The running configuration: immutable, shared by all threads, swapped whole on a reload.
//! Made by `config` (`build.rs`), read by everything after it.

mod build;
pub mod kept;

use crate::config::Matching;
use crate::config::pattern::Scratch;
use crate::config::variables::Variable;
use crate::log::error::ErrorLog;
use crate::log::file::OpenFiles;
use crate::log::lines::Lines;
use crate::modules::core::server::ServerSettings;
use crate::modules::{LocationConf, MainConf};
use crate::process_settings::{ErrorLogSpec, ErrorLogTarget, ListenSpec, ProcessSettings};
use crate::request::route::{LocationTree, Port};
use kept::Kept;
use std::cell::{OnceCell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
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
    /// `ssl_*`
    pub ssl: crate::tls::settings::ServerSettings,
    /// `acme_certificate`
    pub acme: Option<crate::acme::settings::Wanted>,
    /// `status_zone`
    pub zone: Option<Arc<crate::status::zones::Zone>>,
    /// `tunnel_pass` stands in it: CONNECT is let in.
    pub allow_connect: bool,
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
    /// What it needs to speak TLS, if it has a certificate or refuses handshakes.
    pub tls: Option<Arc<crate::tls::server::Context>>,
    /// The certificate that is ordered for it.
    pub acme: Option<Arc<crate::acme::store::Slot>>,
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
    /// The directive that names who answers, as it was written; empty: there is none on this level.
    pub handler: Box<str>,
    /// Who takes part in its requests.
    pub participants: Arc<crate::request::steps::Participants>,
    /// The locations inside.
    pub inside: LocationTree,
    /// Inside an `if` or `limit_except`.
    pub nameless: bool,
}

/// All of a configuration.
pub struct Snapshot {
    /// Counts reloads, from 1.
    pub generation: u64,
    /// When it was made, wall clock, ms.
    pub loaded_ms: u64,
    /// Who is told when nobody uses the snapshot any more.
    pub end: Option<crate::master::Reporter>,
    /// Values of the main level.
    pub process: ProcessSettings,
    /// Values that modules keep once.
    pub main: MainConf,
    /// `-p`: what relative paths made of variables are relative to.
    pub prefix: std::path::PathBuf,
    /// Directories that must be there before the workers start.
    pub directories: Vec<std::path::PathBuf>,
    /// Files that the worker replaces: `state` of zones and groups.
    pub state_files: Vec<std::path::PathBuf>,
    /// `error_log` of the main level.
    pub error_logs: Vec<crate::process_settings::ErrorLogSpec>,
    /// Server blocks.
    pub servers: Vec<Server>,
    /// Levels of the `http` tree by index.
    pub locations: Vec<Location>,
    /// Variables by index.
    pub variables: Vec<Variable>,
    /// `$request_body` is used somewhere: bodies that are streamed have to be kept for it.
    pub uses_request_body: bool,
    /// Groups of upstream peers by index.
    pub groups: Vec<Arc<crate::upstream::group::Group>>,
    /// What is listened on: first for `http`, then for `stream`.
    pub listens: Vec<ListenSpec>,
    /// Which servers stand behind each of the first `listens`; those of `stream` have theirs in `stream`.
    pub ports: Vec<Port>,
    /// `stream {}`: variables, groups and servers of its own.
    pub stream: Option<Arc<Snapshot>>,
}

impl Snapshot {
    /// The paths of all log files.
    pub fn log_paths(&self) -> Vec<std::path::PathBuf> {
        let mut paths: Vec<_> = self.stream.as_ref().map_or_else(Vec::new, |s| s.log_paths());
        let mut add = |path: &std::path::PathBuf| {
            if !paths.contains(path) {
                paths.push(path.clone());
            }
        };
        let of = |spec: &ErrorLogSpec, add: &mut dyn FnMut(&std::path::PathBuf)| {
            if let ErrorLogTarget::File(path) = &spec.target {
                add(path);
            }
        };
        self.error_logs.iter().for_each(|s| of(s, &mut add));
        self.main.log.files.iter().for_each(|f| add(&f.path));
        for location in &self.locations {
            location.conf.core.error_log_specs.iter().for_each(|s| of(s, &mut add));
        }
        paths
    }

    /// Opens all logs, or takes them from what is open. The error names the path.
    pub fn open_logs(&mut self, files: &OpenFiles) -> Result<ErrorLog, (std::path::PathBuf, std::io::Error)> {
        if let Some(stream) = &mut self.stream {
            Arc::get_mut(stream).expect("nobody has the snapshot yet").open_logs(files)?;
        }
        for log in &mut self.main.log.files {
            log.file = Some(files.open(&log.path).map_err(|e| (log.path.clone(), e))?);
        }
        let mut known: Vec<(Arc<Vec<ErrorLogSpec>>, ErrorLog)> = Vec::new();
        for location in &mut self.locations {
            let specs: &Arc<Vec<ErrorLogSpec>> = &location.conf.core.error_log_specs;
            let log = match known.iter().find(|(s, _)| Arc::ptr_eq(s, specs) || s == specs) {
                Some((_, log)) => log.clone(),
                None => {
                    let log = ErrorLog::open(specs, files)?;
                    known.push((specs.clone(), log.clone()));
                    log
                }
            };
            location.conf.core.error_log = log;
        }
        ErrorLog::open(&self.error_logs, files)
    }

    /// `http`, and `stream` if there is one.
    pub fn planes(&self) -> impl Iterator<Item = &Snapshot> {
        std::iter::once(self).chain(self.stream.as_deref())
    }

    /// A level by its index.
    pub fn location(&self, id: LocationId) -> &Location {
        &self.locations[id.0 as usize]
    }

    /// A server by its index.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}

impl Drop for Snapshot {
    /// The last request under this configuration is done.
    fn drop(&mut self) {
        if let Some(end) = &self.end {
            end.done(self.generation);
        }
    }
}

/// Where a module takes part when a thread begins to serve under a configuration, and when it serves nothing new under it. Each is asked for
/// `http` and for `stream`.
pub struct ThreadHook {
    /// The thread has it now: requests come next.
    pub begin: fn(&Rc<ThreadSnapshot>),
    /// What has begun under it goes on; nothing new comes.
    pub leave: fn(&ThreadSnapshot),
}

/// A snapshot as one thread holds it: counted without atomics, with the thread's own scratch space.
pub struct ThreadSnapshot {
    snapshot: Arc<Snapshot>,
    /// Scratch space of the expressions.
    pub scratch: RefCell<Scratch>,
    /// Lines on their way to log files.
    pub lines: Lines,
    /// What `open_file_cache` keeps.
    pub files: RefCell<crate::files::cache::Caches>,
    /// Used transactions of `modsecurity`, to be used again.
    pub judges: RefCell<Vec<Box<waf::Transaction>>>,
    /// What modules keep: machines of LuaJIT, contexts of QuickJS.
    pub kept: Kept,
    /// The view of `stream {}`.
    pub stream: Option<Rc<ThreadSnapshot>>,
    /// For each listener of the thread, the index of its address in `listens`; beyond them all: the address is gone.
    pub places: OnceCell<Box<[usize]>>,
    /// What `stream {}` is a part of: it is in use as long as a session of its is.
    whole: Option<Arc<Snapshot>>,
}

impl Drop for ThreadSnapshot {
    /// The last request under this configuration is done.
    fn drop(&mut self) {
        self.lines.flush(&self.snapshot);
    }
}

impl ThreadSnapshot {
    /// A thread's view of a snapshot.
    pub fn new(snapshot: Arc<Snapshot>) -> ThreadSnapshot {
        let stream = snapshot.stream.clone().map(|s| Rc::new(ThreadSnapshot::part(s, None, Some(snapshot.clone()))));
        ThreadSnapshot::part(snapshot, stream, None)
    }

    fn part(
        snapshot: Arc<Snapshot>,
        stream: Option<Rc<ThreadSnapshot>>,
        whole: Option<Arc<Snapshot>>,
    ) -> ThreadSnapshot {
        let (scratch, lines, files, judges, kept, places) = Default::default();
        ThreadSnapshot { snapshot, scratch, lines, files, judges, kept, stream, places, whole }
    }

    /// The generation of the configuration that this is a view of.
    pub fn whole(&self) -> &Arc<Snapshot> {
        self.whole.as_ref().unwrap_or(&self.snapshot)
    }

    /// Whether it is the view of `stream {}`.
    pub fn is_stream(&self) -> bool {
        self.whole.is_some()
    }

    /// The shared part.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
}

impl Deref for ThreadSnapshot {
    type Target = Snapshot;
    fn deref(&self) -> &Snapshot {
        &self.snapshot
    }
}
