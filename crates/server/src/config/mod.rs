//! From the tree of words to a snapshot: walks the blocks, lets each module set its values, merges the levels.
//! From: `conf` (text to tree). To: `snapshot`. Opens no socket and no log file.

pub mod cidr;
pub mod complex;
pub mod hostnames;
pub mod pattern;
pub mod read;
pub mod setters;
pub mod setting;
pub mod shared;
pub mod types;
pub mod variables;

use crate::modules::{self, LocationConf, MainConf};
use crate::process_settings::ProcessSettings;
use crate::snapshot::{LocationId, ServerConf};
use conf::{Body, Contexts, Files, Node, Problem};
use pattern::Pattern;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use variables::Variables;

/// What a directive does with its words.
pub type Setter = fn(&mut Scope<'_, '_>, &Node) -> Result<(), Problem>;

/// One directive of a module: its name and what sets it. Contexts and arity stand in `conf`'s table of all directives.
pub struct Directive {
    /// The name in the configuration.
    pub name: &'static str,
    /// Where this setter is meant: a name can mean different things in `http`, `upstream` and `stream`.
    pub within: Contexts,
    /// Sets it.
    pub set: Setter,
}

/// A directive of `http`, `server`, `location` and the blocks inside them.
pub const fn http(name: &'static str, set: Setter) -> Directive {
    Directive { name, within: Contexts::HTTP_ALL, set }
}

/// A directive of `stream` and the servers in it.
pub const fn stream(name: &'static str, set: Setter) -> Directive {
    Directive { name, within: Contexts::STREAM_ALL, set }
}

/// A directive that means the same in `http` and in `stream`.
pub const fn both(name: &'static str, set: Setter) -> Directive {
    Directive { name, within: Contexts::HTTP_ALL.union(Contexts::STREAM_ALL), set }
}

/// A directive of an `upstream` block in `http`.
pub const fn upstream(name: &'static str, set: Setter) -> Directive {
    Directive { name, within: Contexts::UPSTREAM, set }
}

/// A directive of an `upstream` block, in `http` and in `stream`.
pub const fn upstream_of_both(name: &'static str, set: Setter) -> Directive {
    Directive { name, within: Contexts::UPSTREAM.union(Contexts::STREAM_UPSTREAM), set }
}

/// Which of the two worlds a configuration is for. Each has variables, formats, groups and levels of its own; what makes
/// them is the same code (docs/decisions/0006).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Subsystem {
    /// `http {}`
    #[default]
    Http,
    /// `stream {}`
    Stream,
}

impl Subsystem {
    /// Whether this is `stream {}`.
    pub fn is_stream(self) -> bool {
        self == Subsystem::Stream
    }
}

/// A directive of the main level or of `events`.
pub const fn process(name: &'static str, set: Setter) -> Directive {
    Directive { name, within: Contexts::MAIN.union(Contexts::EVENTS), set }
}

/// What a location's name is matched with.
#[derive(Clone, Debug, Default)]
pub enum Matching {
    /// Not reached by name: `http`, `server`, `if`, `limit_except`.
    #[default]
    Nameless,
    /// `location /x`
    Prefix,
    /// `location ^~ /x`
    PrefixFinal,
    /// `location = /x`
    Exact,
    /// `location ~ x`, `~*`
    Regex(Pattern),
    /// `location @x`
    Named,
}

/// One block of the `http` tree while it is read.
#[derive(Default)]
pub struct ConfigLevel {
    /// The one context that the block's children stand in.
    pub context: Contexts,
    /// Its place in the snapshot.
    pub id: LocationId,
    /// Where a server's block begins, for messages.
    pub place: Option<conf::Span>,
    /// A location's name, empty elsewhere.
    pub name: Vec<u8>,
    /// How the name is matched.
    pub matching: Matching,
    /// The modules' values.
    pub conf: LocationConf,
    /// A server's `listen`s.
    pub listens: Vec<crate::modules::listen::Listen>,
    /// A server's names.
    pub server_names: Vec<(crate::modules::listen::Name, Node)>,
    /// A server's first name: `$server_name`.
    pub server_name: Vec<u8>,
    /// The directive that names who answers, as it was written.
    pub handler: Box<str>,
    /// Values of servers; on the `http` level the defaults of all servers.
    pub server: Option<Box<ServerConf>>,
    /// The blocks inside, in the order of the text.
    pub children: Vec<ConfigLevel>,
    /// The locations among them, by what no two may share.
    pub taken: std::collections::HashSet<(char, Vec<u8>)>,
    /// Names of directives on this level that have no meaning here.
    pub ignored: Vec<Vec<u8>>,
    /// Whether this level is inside an `if` or `limit_except`, at any depth.
    pub nameless: bool,
}

/// All that is collected while a configuration is read.
pub struct Build<'f> {
    /// Which world this is.
    pub subsystem: Subsystem,
    /// `stream {}`, once its block has been read.
    pub stream: Option<Box<Build<'f>>>,
    /// Where files are read from.
    pub files: &'f dyn Files,
    /// `-p`
    pub prefix: PathBuf,
    /// The directory of the main configuration file.
    pub conf_prefix: PathBuf,
    /// The files that were read, by the numbers that places have.
    pub sources: Vec<PathBuf>,
    /// What is wrong so far.
    pub problems: Vec<Problem>,
    /// What only a look at the whole block shows, so nginx has found every mistake in its text before.
    pub late: Vec<Problem>,
    /// Values of the main level and of `events`.
    pub process: ProcessSettings,
    /// `error_log` of the main level.
    pub error_logs: Vec<crate::process_settings::ErrorLogSpec>,
    /// Values that modules keep once for all of `http`.
    pub main: MainConf,
    /// Names and indexes of variables.
    pub variables: Variables,
    /// The `http` level (in the other subsystem the `stream` level), once its block has been read.
    pub http: Option<ConfigLevel>,
    /// Where the `http` block ends: nginx's place for what is wrong between levels.
    pub http_end: Option<conf::Span>,
    /// Pools that `aio threads` names, and what is wrong where one is not there.
    pub pools: Vec<(Box<str>, Problem)>,
    /// Directories that must be there before the workers start.
    pub directories: Vec<PathBuf>,
    /// Files that the worker replaces: `state` of zones and groups.
    pub state_files: Vec<PathBuf>,
    /// Directives that were accepted and have no meaning here, for `-t` to say.
    pub notes: Vec<Problem>,
    /// Groups of upstream peers.
    pub groups: Vec<std::sync::Arc<crate::upstream::group::Group>>,
    /// Certificates and the like, each read once however often it is named.
    pub tls_files: std::rc::Rc<std::cell::RefCell<HashMap<PathBuf, Vec<u8>>>>,
    /// Compiled expressions by text and whether case counts; each has scratch space in every thread.
    pub patterns: HashMap<(Box<[u8]>, bool), pattern::Pattern>,
    next_location: u32,
}

/// What a setter works on: the collected configuration and the level it stands on.
pub struct Scope<'a, 'f> {
    /// All of it.
    pub build: &'a mut Build<'f>,
    /// The block that the directive stands in.
    pub level: &'a mut ConfigLevel,
}

impl<'f> Build<'f> {
    /// An empty configuration.
    pub fn new(subsystem: Subsystem, files: &'f dyn Files, prefix: &Path, conf_prefix: &Path) -> Build<'f> {
        Build {
            subsystem,
            stream: None,
            files,
            prefix: prefix.to_owned(),
            conf_prefix: conf_prefix.to_owned(),
            sources: Vec::new(),
            problems: Vec::new(),
            late: Vec::new(),
            process: ProcessSettings::default(),
            error_logs: Vec::new(),
            main: MainConf::default(),
            variables: Variables::new(subsystem),
            http: None,
            http_end: None,
            pools: Vec::new(),
            directories: Vec::new(),
            state_files: Vec::new(),
            notes: Vec::new(),
            groups: Vec::new(),
            tls_files: std::rc::Rc::default(),
            patterns: HashMap::new(),
            next_location: 0,
        }
    }

    /// Compiles, with `how`, a value that nginx compiles only when a server takes it over (`proxy_set_header`, `fastcgi_param` and their like): in an
    /// `http` block without servers, what it names need not exist.
    pub fn for_servers<T>(&mut self, how: impl FnOnce(&mut Build<'f>) -> T) -> T {
        self.variables.for_servers = true;
        let made = how(self);
        self.variables.for_servers = false;
        made
    }

    /// A path of the configuration made absolute: relative to the prefix (nginx's `ngx_conf_full_name` with 0).
    pub fn full_path(&self, path: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        self.prefix.join(std::ffi::OsStr::from_bytes(path))
    }

    /// A path relative to the configuration's directory.
    pub fn conf_path(&self, path: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        self.conf_prefix.join(std::ffi::OsStr::from_bytes(path))
    }

    /// Reads certificates and the like, each once: they may be pipes.
    pub fn tls_reader(&self) -> impl Fn(&Path) -> std::io::Result<Vec<u8>> + use<'f> {
        let (files, known) = (self.files, self.tls_files.clone());
        move |path: &Path| {
            if let Some(content) = known.borrow().get(path) {
                return Ok(content.clone());
            }
            let content = files.read(path)?;
            known.borrow_mut().insert(path.to_owned(), content.clone());
            Ok(content)
        }
    }

    /// Remembers that a directive has no meaning here.
    pub fn note(&mut self, node: &Node) {
        self.notes.push(node.notice(format!("\"{}\" has no effect in Ironweir", node.name.as_str())));
    }

    /// Notes what is wrong after levels were merged, once.
    pub fn http_problem(&mut self, text: String) {
        if !self.problems.iter().any(|p| p.message == text) {
            self.problems.push(Problem::emerg(self.http_end, text));
        }
    }

    /// A new level of `http`.
    pub fn level(&mut self, context: Contexts) -> ConfigLevel {
        let id = LocationId(self.next_location);
        self.next_location += 1;
        ConfigLevel { context, id, ..ConfigLevel::default() }
    }

    /// How many levels there are.
    pub fn locations(&self) -> usize {
        self.next_location as usize
    }

    /// Applies every directive of a block; what is wrong is noted and the rest goes on.
    pub fn block(&mut self, nodes: &[Node], level: &mut ConfigLevel) {
        for node in nodes {
            if let Err(problem) = self.directive(node, level) {
                self.problems.push(problem);
            }
        }
    }

    /// Name, place and form were checked when the text was read.
    fn directive(&mut self, node: &Node, level: &mut ConfigLevel) -> Result<(), Problem> {
        let name = node.name.as_str();
        match modules::find(&name, level.context) {
            Some(d) => {
                let had_none = level.conf.core.handler.is_none();
                (d.set)(&mut Scope { build: self, level }, node)?;
                if had_none && level.conf.core.handler.is_some() {
                    level.handler = written(node);
                }
                Ok(())
            }
            None => {
                let reason = conf::refusal(&name).map(str::to_owned);
                Err(node.problem(format!("\"{name}\" is not supported yet")).with_help(reason))
            }
        }
    }
}

/// A directive in one line, without its block.
fn written(node: &Node) -> Box<str> {
    let words = std::iter::once(&node.name).chain(&node.args).map(|w| w.as_str().into_owned());
    words.collect::<Vec<_>>().join(" ").into()
}

impl ConfigLevel {
    /// `location @x`
    pub fn is_named(&self) -> bool {
        matches!(self.matching, Matching::Named)
    }

    /// `location ~ x`
    pub fn is_pattern(&self) -> bool {
        matches!(self.matching, Matching::Regex(_))
    }
}

impl Scope<'_, '_> {
    /// Reads a block inside this one as a new level with `context`, and gives it back.
    pub fn child(&mut self, node: &Node, context: Contexts) -> ConfigLevel {
        let mut child = self.build.level(context);
        child.nameless = self.level.nameless || context.intersects(Contexts::IF_ANY.union(Contexts::LIMIT_EXCEPT));
        self.fill(node, &mut child);
        child
    }

    /// Applies a node's block to a level.
    pub fn fill(&mut self, node: &Node, level: &mut ConfigLevel) {
        if let Body::Block(nodes) = &node.body {
            self.build.block(nodes, level);
        }
    }
}
