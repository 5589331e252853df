//! Programs in JavaScript, as njs runs them (docs/js.md): directives, values, and the programs' places in the phases. `machine` keeps contexts
//! of QuickJS for a thread, `run` drives what programs wait for, `current` lends them the request, `api` is what they call.

pub mod api;
pub mod current;
mod exchange;
pub mod fetch;
pub mod machine;
pub mod periodic;
pub mod phases;
pub mod proxy;
pub mod run;
pub mod state;
pub mod stream;
pub mod subrequest;

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::setting::Setting;
use crate::config::{Build, ConfigLevel, Directive, Scope, both, http, stream};
use crate::modules::proxy::ssl;
use crate::request::Request;
use crate::request::phases::{Content, Handler};
use crate::tls::client::Context as Tls;
use crate::tls::settings::Protocols;
use crate::upstream::settings::SslSettings;
use crate::{merged_values, reads_as_settings};
use ::js::{Import, Preload, Program, Sources};
use ::lua::dict::Dict;
use conf::{Node, Problem, value};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use machine::{Context, Pool};
pub use phases::{finish, header_filter};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    both("js_import", js_import),
    both("js_preload_object", js_preload_object),
    both("js_path", js_path),
    both("js_set", js_set),
    both("js_var", js_var),
    both("js_engine", js_engine),
    both("js_context_reuse", |s, n| setters::number(&mut s.level.conf.js.context_reuse, n)),
    both("js_context_reuse_max_size", |s, n| {
        // The bound of a thread's memory holds for all contexts together.
        s.build.note(n);
        Ok(())
    }),
    both("js_periodic", js_periodic),
    both("js_shared_dict_zone", js_shared_dict_zone),
    http("js_content", js_content),
    http("js_access", |s, n| function(n, &mut s.level.conf.js.access)),
    http("js_header_filter", |s, n| function(n, &mut s.level.conf.js.header_filter)),
    http("js_body_filter", js_body_filter),
    stream("js_access", |s, n| function(n, &mut s.level.conf.js.access)),
    stream("js_preread", |s, n| function(n, &mut s.level.conf.js.preread)),
    stream("js_filter", |s, n| function(n, &mut s.level.conf.js.filter)),
    both("js_fetch_buffer_size", |s, n| setters::size(&mut s.level.conf.js.fetch_buffer_size, n)),
    both("js_fetch_max_response_buffer_size", |s, n| setters::size(&mut s.level.conf.js.fetch_max_response, n)),
    both("js_fetch_timeout", |s, n| setters::time(&mut s.level.conf.js.fetch_timeout, n)),
    both("js_fetch_keepalive", |s, n| setters::number(&mut s.level.conf.js.fetch_keepalive, n)),
    both("js_fetch_keepalive_requests", |s, n| setters::number(&mut s.level.conf.js.fetch_keepalive_requests, n)),
    both("js_fetch_keepalive_time", |s, n| setters::time(&mut s.level.conf.js.fetch_keepalive_time, n)),
    both("js_fetch_keepalive_timeout", |s, n| setters::time(&mut s.level.conf.js.fetch_keepalive_timeout, n)),
    both("js_fetch_proxy", proxy::directive),
    both("js_fetch_protocols", |s, n| {
        let warnings = Protocols::add(&mut s.level.conf.js.ssl.protocols, n)?;
        s.build.problems.extend(warnings);
        Ok(())
    }),
    both("js_fetch_ciphers", |s, n| word(&mut s.level.conf.js.ssl.ciphers, n)),
    both("js_fetch_verify", |s, n| setters::flag(&mut s.level.conf.js.fetch_verify, n)),
    both("js_fetch_verify_depth", |s, n| setters::number(&mut s.level.conf.js.ssl.verify_depth, n)),
    both("js_fetch_trusted_certificate", |s, n| word(&mut s.level.conf.js.ssl.trusted_certificate, n)),
];

/// `js_access`: after the modules that judge without a program.
pub const ACCESS: Handler = Handler::Later(|r| r.is_main(), phases::access);

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// `js_import` of this level and those around it.
    imports: Vec<Import>,
    /// `js_preload_object`, the same.
    preloads: Vec<Preload>,
    /// `js_path`, the same.
    paths: Vec<PathBuf>,
    /// `js_fetch_*`
    ssl: SslSettings,
    /// What was compiled of the imports.
    pub program: Option<Arc<Program>>,
    /// What handshakes of `ngx.fetch` need.
    pub tls: Option<Arc<Tls>>,
}

impl Conf {
    /// Takes from `parent` what this level does not set itself.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
        self.ssl.merge(&parent.ssl);
        self.imports.splice(0..0, parent.imports.iter().cloned());
        self.preloads.splice(0..0, parent.preloads.iter().cloned());
        self.paths.splice(0..0, parent.paths.iter().cloned());
    }
}

reads_as_settings!(Conf);
crate::inherited!(Conf, |conf| conf.imports.is_empty());

/// A function of a program: `main.hello`.
pub type Name = Option<Arc<str>>;

merged_values! {
    /// Those that merge.
    pub struct Settings {
        /// `js_content`
        content: Name = None,
        /// `js_access`
        access: Name = None,
        /// `js_header_filter`
        header_filter: Name = None,
        /// `js_body_filter`, and whether it gets bytes.
        body_filter: (Name, bool) = (None, false),
        /// `js_preread`
        preread: Name = None,
        /// `js_filter`
        filter: Name = None,
        /// `js_engine qjs`: contexts are kept for other requests.
        qjs: bool = false,
        /// Contexts that are kept for other requests, in each thread.
        context_reuse: u64 = 128,
        /// Bytes that one read of `ngx.fetch` asks for, and of the head of an answer.
        fetch_buffer_size: u64 = 16 * 1024,
        /// Bytes of an answer's body.
        fetch_max_response: u64 = 1024 * 1024,
        /// Who passes the requests of `ngx.fetch` on.
        fetch_proxy: Option<Arc<proxy::Named>> = None,
        /// Between two reads or writes of `ngx.fetch`.
        fetch_timeout: Duration = Duration::from_secs(60),
        /// Certificates of servers are looked at.
        fetch_verify: bool = true,
        /// Connections that `ngx.fetch` keeps for one server, in each thread.
        fetch_keepalive: u64 = 0,
        /// Requests on one of them.
        fetch_keepalive_requests: u64 = 1000,
        /// How long one of them lives.
        fetch_keepalive_time: Duration = Duration::from_secs(3600),
        /// How long one of them waits.
        fetch_keepalive_timeout: Duration = Duration::from_secs(60),
    }
}

/// A dictionary of `js_shared_dict_zone`.
#[derive(Debug)]
pub struct SharedDict {
    /// Its store.
    pub dict: Arc<Dict>,
    /// Its values are numbers.
    pub is_number: bool,
    /// Milliseconds that an entry stays; 0: for ever, and no other time can be said.
    pub timeout: u64,
    /// The oldest entries make room.
    pub evict: bool,
    /// The file that has its entries.
    pub state: Option<Arc<state::State>>,
}

/// What is kept once for `http`, and once for `stream`.
#[derive(Debug, Default)]
pub struct Main {
    /// The dictionaries.
    pub dicts: Vec<SharedDict>,
    /// `js_periodic`
    pub periodic: Vec<Arc<periodic::Periodic>>,
    /// There is a `js_import` somewhere.
    pub imports: bool,
    /// Names of `js_var`.
    pub vars: Vec<Box<str>>,
    /// The folder of the configuration.
    pub conf_prefix: PathBuf,
    /// Its file.
    pub conf_file: PathBuf,
    /// What was compiled, by what it was made of.
    programs: Vec<(Imported, Option<Arc<Program>>)>,
}

/// What a program is made of.
type Imported = (Vec<Import>, Vec<Preload>, Vec<PathBuf>);

fn word(setting: &mut Setting<Arc<[u8]>>, node: &Node) -> Result<(), Problem> {
    setters::value(setting, node, node.args[0].text.as_slice().into())
}

fn text(node: &Node, at: usize) -> String {
    node.args[at].as_str().into_owned()
}

fn function(node: &Node, setting: &mut Setting<Name>) -> Result<(), Problem> {
    setters::value(setting, node, Some(text(node, 0).into()))
}

/// Whether a text can be the name of something.
fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(letter)
}

/// `js_import path.js` or `js_import name from path.js`: the name and the path.
fn imported(node: &Node, suffix: &str) -> Result<(String, String), Problem> {
    let (name, path) = match node.args.len() {
        1 => {
            let path = text(node, 0);
            let file = path.rsplit('/').next().unwrap_or_default();
            let name = file.strip_suffix(suffix).unwrap_or(file).to_owned();
            (name, path)
        }
        3 if node.args[1].text == b"from" => (text(node, 0), text(node, 2)),
        3 => return Err(node.problem(format!("invalid parameter \"{}\"", text(node, 1)))),
        _ => return Err(node.problem("parameter \"from\" is missing".to_owned())),
    };
    if !is_name(&name) {
        return Err(
            node.problem(format!("cannot extract export name from file path \"{path}\", use extended \"from\" syntax"))
        );
    }
    Ok((name, path))
}

fn js_import(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (name, path) = imported(node, ".js")?;
    scope.build.main.js.imports = true;
    scope.level.conf.js.imports.push(Import { name, path });
    Ok(())
}

fn js_preload_object(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (name, path) = imported(node, ".json")?;
    scope.level.conf.js.preloads.push(Preload { name, path });
    Ok(())
}

fn js_path(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let path = scope.build.conf_path(&node.args[0].text);
    scope.level.conf.js.paths.push(path);
    Ok(())
}

fn js_engine(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    match node.args[0].text.as_slice() {
        b"qjs" => setters::value(&mut scope.level.conf.js.qjs, node, true),
        b"njs" => {
            setters::value(&mut scope.level.conf.js.qjs, node, false)?;
            scope
                .build
                .notes
                .push(node.notice("the engine \"njs\" is not built in, programs run on QuickJS".to_owned()));
            Ok(())
        }
        _ => Err(setters::invalid(node)),
    }
}

fn variable(node: &Node) -> Result<&[u8], Problem> {
    crate::modules::map::variable_name(node, &node.args[0])
}

fn js_set(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = variable(node)?.to_vec();
    let nocache = match node.args.get(2).map(|w| w.text.as_slice()) {
        None => false,
        Some(b"nocache") => true,
        Some(_) => return Err(node.problem(format!("unrecognized flag \"{}\"", text(node, 2)))),
    };
    let function: Arc<str> = text(node, 1).into();
    let evaluate = Arc::new(move |r: &mut Request| phases::variable(r, &function));
    scope.build.variables.define(&name, nocache, evaluate).map_err(|t| node.problem(t))?;
    Ok(())
}

fn js_var(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = variable(node)?.to_vec();
    let value = match node.args.get(1) {
        Some(word) => Complex::compile(scope.build, word)?,
        None => Complex::default(),
    };
    let evaluate = Arc::new(move |r: &mut Request| Some(value.eval(r)));
    scope.build.variables.define(&name, false, evaluate).map_err(|t| node.problem(t))?;
    let shown = String::from_utf8_lossy(&name).to_ascii_lowercase();
    scope.build.main.js.vars.push(shown.into());
    Ok(())
}

fn js_content(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    function(node, &mut scope.level.conf.js.content)?;
    scope.level.conf.core.handler = Some(Content::Later(phases::content));
    Ok(())
}

fn js_body_filter(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let is_buffer = match node.args.get(1).map(|w| w.text.as_slice()) {
        None | Some(b"buffer_type=string") => false,
        Some(b"buffer_type=buffer") => true,
        Some(_) => return Err(node.problem(format!("invalid parameter \"{}\"", text(node, 1)))),
    };
    let value = (Some(text(node, 0).into()), is_buffer);
    setters::value(&mut scope.level.conf.js.body_filter, node, value)
}

/// A function is called at least this long after it was called last, ms.
const MIN_INTERVAL: u64 = 1;

fn js_periodic(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut made = periodic::Periodic {
        function: text(node, 0).into(),
        interval: Duration::from_secs(5),
        jitter: Duration::ZERO,
        affinity: periodic::Affinity::First,
        location: scope.level.id,
    };
    for word in node.args.iter().skip(1) {
        let shown = word.as_str();
        let bad = || node.problem(format!("invalid parameter \"{shown}\""));
        let time = |text: &str| value::milliseconds(text.as_bytes()).map(Duration::from_millis);
        match shown.split_once('=').ok_or_else(bad)? {
            ("interval", t) => {
                let interval = time(t).filter(|t| t.as_millis() as u64 >= MIN_INTERVAL);
                made.interval = interval.ok_or_else(|| node.problem(format!("invalid periodic interval \"{t}\"")))?;
            }
            ("jitter", t) => {
                made.jitter = time(t).ok_or_else(|| node.problem(format!("invalid periodic jitter \"{t}\"")))?
            }
            ("worker_affinity", "all") => made.affinity = periodic::Affinity::All,
            ("worker_affinity", mask) if !mask.is_empty() && mask.bytes().all(|b| matches!(b, b'0' | b'1')) => {
                made.affinity = periodic::Affinity::Mask(mask.bytes().map(|b| b == b'1').collect());
            }
            ("worker_affinity", t) => return Err(node.problem(format!("invalid periodic affinity \"{t}\""))),
            _ => return Err(bad()),
        }
    }
    scope.build.main.js.periodic.push(Arc::new(made));
    Ok(())
}

/// A dictionary is at least as large as nginx's zones.
const MIN_DICT: u64 = 8 * 4096;

fn js_shared_dict_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (mut zone, mut is_number, mut timeout, mut evict, mut state) = (None, false, 0, false, None);
    for word in &node.args {
        let shown = word.as_str();
        let bad = || node.problem(format!("invalid parameter \"{shown}\""));
        match shown.split_once('=') {
            Some(("zone", given)) => {
                let (name, size) =
                    given.split_once(':').ok_or_else(|| node.problem(format!("invalid zone size \"{given}\"")))?;
                let size = value::size(size.as_bytes())
                    .ok_or_else(|| node.problem(format!("invalid zone size \"{given}\"")))?;
                if name.is_empty() {
                    return Err(node.problem(format!("invalid zone name \"{given}\"")));
                }
                if size < MIN_DICT {
                    return Err(node.problem(format!("zone \"{given}\" is too small")));
                }
                zone = Some((name.to_owned(), size));
            }
            Some(("type", "number")) => is_number = true,
            Some(("type", "string")) => is_number = false,
            Some(("type", kind)) => return Err(node.problem(format!("invalid dict type \"{kind}\""))),
            Some(("timeout", t)) => {
                timeout = value::milliseconds(t.as_bytes()).filter(|t| *t > 0).ok_or_else(bad)?;
            }
            Some(("state", path)) if !path.is_empty() => state = Some(scope.build.full_path(path.as_bytes())),
            None if shown == "evict" => evict = true,
            _ => return Err(bad()),
        }
    }
    let (name, size) =
        zone.ok_or_else(|| node.problem("\"js_shared_dict_zone\" must have \"zone\" parameter".to_owned()))?;
    if evict && timeout == 0 {
        return Err(node.problem("evict requires timeout=".to_owned()));
    }
    if scope.build.main.js.dicts.iter().any(|d| *d.dict.name == *name) {
        return Err(duplicate(node));
    }
    scope.build.main.zones.add(name.as_bytes(), size, "js_shared_dict_zone").map_err(|t| node.problem(t))?;
    let dict = Dict::named(&name, size as usize);
    scope.build.state_files.extend(state.clone());
    let state = state.map(|path| state::open(&dict, path, is_number, timeout));
    scope.build.main.js.dicts.push(SharedDict { dict, is_number, timeout, evict, state });
    Ok(())
}

/// Compiles what a level imports, and makes what handshakes need.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    if level.conf.js.imports.is_empty() {
        return complain(build, &level.conf.js.settings);
    }
    let key = (level.conf.js.imports.clone(), level.conf.js.preloads.clone(), level.conf.js.paths.clone());
    level.conf.js.program = program(build, key);
    let mut conf = level.conf.js.ssl.clone();
    conf.server_name.force(true);
    if conf.trusted_certificate.is_empty() {
        // Without a list of whom to trust nobody can be verified: the handshake says so.
        conf.verify.force(false);
    } else {
        conf.verify.force(true);
    }
    level.conf.js.tls = ssl::finish(build, &conf, "js_fetch", &[]);
}

/// Functions of no program.
fn complain(build: &mut Build<'_>, conf: &Settings) {
    let named = [
        ("js_access", &*conf.access),
        ("js_content", &*conf.content),
        ("js_header_filter", &*conf.header_filter),
        ("js_body_filter", &conf.body_filter.0),
        ("js_preread", &*conf.preread),
        ("js_filter", &*conf.filter),
    ];
    for (directive, function) in named {
        if let Some(function) = function {
            build.http_problem(format!(
                "no imports defined for \"{directive}\" \"{function}\", use js_import directive"
            ));
        }
    }
}

fn program(build: &mut Build<'_>, key: Imported) -> Option<Arc<Program>> {
    if let Some((_, made)) = build.main.js.programs.iter().find(|(known, _)| *known == key) {
        return made.clone();
    }
    if let Err(text) = ::js::prepare(machine::PARTS) {
        build.http_problem(format!("js: {text}"));
    }
    let base = build.conf_prefix.clone();
    build.main.js.conf_file = build.sources.first().cloned().unwrap_or_else(|| base.join("nginx.conf"));
    build.main.js.conf_prefix.clone_from(&base);
    let reader = build.tls_reader();
    let read = |path: &std::path::Path| reader(path);
    let sources = Sources { imports: &key.0, preloads: &key.1, base: &base, paths: &key.2, read: &read };
    let made = match Program::compile(&sources) {
        Ok(program) => Some(Arc::new(program)),
        Err(wrong) => {
            build.http_problem(format!("js compile: {}", wrong.text));
            None
        }
    };
    build.main.js.programs.push((key, made.clone()));
    made
}
