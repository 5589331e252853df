//! Programs in Lua, as OpenResty's ngx_lua runs them (docs/lua.md): directives, values, and the programs' places in the phases.
//! `machine` is LuaJIT for a thread, `run` drives a program's coroutines, `current` lends them the request, `api` is what they call.

pub mod api;
pub mod balancer;
pub mod capture;
pub mod chunk;
pub mod current;
pub mod machine;
pub mod operation;
pub mod phase;
pub mod phases;
pub mod pipe;
pub mod raw;
pub mod run;
pub mod semaphore;
pub mod socket;
pub mod socket_pool;
pub mod socket_read;
pub mod socket_tls;
pub mod ssl;
pub mod ssl_session;
pub mod stream;
pub mod timer;
pub mod upstream;
pub mod watch;
pub mod worker_thread;

use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::setting::Setting;
use crate::config::{Build, ConfigLevel, Directive, Scope, both, http, upstream, upstream_of_both};
use crate::log::{captured, lines};
use crate::modules::lua::chunk::{Chunk, Source};
use crate::modules::{ignored, proxy};
use crate::request::phases::{Content, Handler};
use crate::tls::client::Context as Tls;
use crate::tls::settings::Protocols;
use crate::upstream::settings::SslSettings;
use crate::{merged_values, reads_as_settings};
use ::lua::dict::Dict;
use conf::{Body, Node, Problem, value};
use current::Phase;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use machine::{Machine, leave, start, try_out};
pub use phases::{Context, header_filter, logger, set};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("init_by_lua", |s, n| main(s, n, |m| &mut m.init)),
    both("init_by_lua_block", |s, n| main(s, n, |m| &mut m.init)),
    both("init_by_lua_file", |s, n| main(s, n, |m| &mut m.init)),
    http("init_worker_by_lua", |s, n| main(s, n, |m| &mut m.init_worker)),
    both("init_worker_by_lua_block", |s, n| main(s, n, |m| &mut m.init_worker)),
    both("init_worker_by_lua_file", |s, n| main(s, n, |m| &mut m.init_worker)),
    http("exit_worker_by_lua_block", |s, n| main(s, n, |m| &mut m.exit_worker)),
    http("exit_worker_by_lua_file", |s, n| main(s, n, |m| &mut m.exit_worker)),
    http("set_by_lua", set_by_lua),
    http("set_by_lua_block", set_by_lua),
    http("set_by_lua_file", set_by_lua),
    http("server_rewrite_by_lua_block", |s, n| program(s, n, |c| &mut c.server_rewrite)),
    http("server_rewrite_by_lua_file", |s, n| program(s, n, |c| &mut c.server_rewrite)),
    http("rewrite_by_lua", |s, n| program(s, n, |c| &mut c.rewrite)),
    http("rewrite_by_lua_block", |s, n| program(s, n, |c| &mut c.rewrite)),
    http("rewrite_by_lua_file", |s, n| program(s, n, |c| &mut c.rewrite)),
    http("access_by_lua", |s, n| program(s, n, |c| &mut c.access)),
    http("access_by_lua_block", |s, n| program(s, n, |c| &mut c.access)),
    http("access_by_lua_file", |s, n| program(s, n, |c| &mut c.access)),
    http("precontent_by_lua_block", |s, n| program(s, n, |c| &mut c.precontent)),
    http("precontent_by_lua_file", |s, n| program(s, n, |c| &mut c.precontent)),
    http("content_by_lua", content_by_lua),
    http("content_by_lua_block", content_by_lua),
    http("content_by_lua_file", content_by_lua),
    http("header_filter_by_lua", |s, n| program(s, n, |c| &mut c.header_filter)),
    http("header_filter_by_lua_block", |s, n| program(s, n, |c| &mut c.header_filter)),
    http("header_filter_by_lua_file", |s, n| program(s, n, |c| &mut c.header_filter)),
    http("body_filter_by_lua", |s, n| program(s, n, |c| &mut c.body_filter)),
    http("body_filter_by_lua_block", |s, n| program(s, n, |c| &mut c.body_filter)),
    http("body_filter_by_lua_file", |s, n| program(s, n, |c| &mut c.body_filter)),
    http("log_by_lua", |s, n| program(s, n, |c| &mut c.log)),
    both("log_by_lua_block", |s, n| program(s, n, |c| &mut c.log)),
    both("log_by_lua_file", |s, n| program(s, n, |c| &mut c.log)),
    both("ssl_client_hello_by_lua_block", |s, n| program(s, n, |c| &mut c.ssl_client_hello)),
    both("ssl_client_hello_by_lua_file", |s, n| program(s, n, |c| &mut c.ssl_client_hello)),
    both("ssl_certificate_by_lua_block", |s, n| program(s, n, |c| &mut c.ssl_certificate)),
    both("ssl_certificate_by_lua_file", |s, n| program(s, n, |c| &mut c.ssl_certificate)),
    http("ssl_session_fetch_by_lua_block", |s, n| program(s, n, |c| &mut c.ssl_session_fetch)),
    http("ssl_session_fetch_by_lua_file", |s, n| program(s, n, |c| &mut c.ssl_session_fetch)),
    http("ssl_session_store_by_lua_block", |s, n| program(s, n, |c| &mut c.ssl_session_store)),
    http("ssl_session_store_by_lua_file", |s, n| program(s, n, |c| &mut c.ssl_session_store)),
    http("proxy_ssl_certificate_by_lua_block", |s, n| program(s, n, |c| &mut c.proxy_ssl_certificate)),
    http("proxy_ssl_certificate_by_lua_file", |s, n| program(s, n, |c| &mut c.proxy_ssl_certificate)),
    http("proxy_ssl_verify_by_lua_block", |s, n| program(s, n, |c| &mut c.proxy_ssl_verify)),
    http("proxy_ssl_verify_by_lua_file", |s, n| program(s, n, |c| &mut c.proxy_ssl_verify)),
    upstream_of_both("balancer_by_lua_block", balancer::directive),
    upstream_of_both("balancer_by_lua_file", balancer::directive),
    upstream("balancer_keepalive", balancer::keepalive),
    both("lua_package_path", |s, n| path(&mut s.build.main.lua.package_path, n)),
    both("lua_package_cpath", |s, n| path(&mut s.build.main.lua.package_cpath, n)),
    both("lua_shared_dict", lua_shared_dict),
    both("lua_code_cache", lua_code_cache),
    both("lua_max_run_time", |s, n| setters::time(&mut s.build.main.lua.max_run_time, n)),
    both("lua_max_pending_timers", |s, n| setters::number(&mut s.build.main.lua.max_pending_timers, n)),
    both("lua_max_running_timers", |s, n| setters::number(&mut s.build.main.lua.max_running_timers, n)),
    both("lua_regex_cache_max_entries", |s, n| setters::number(&mut s.build.main.lua.regex_cache_max_entries, n)),
    both("lua_regex_match_limit", |s, n| setters::number(&mut s.build.main.lua.regex_match_limit, n)),
    http("lua_load_resty_core", |s, n| {
        // The API is always there.
        let text = "lua_load_resty_core is deprecated (the lua-resty-core library is required since ngx_lua v0.10.16)";
        s.build.problems.push(n.warning(text.to_owned()));
        s.build.note(n);
        Ok(())
    }),
    both("lua_capture_error_log", capture_error_log),
    http("lua_malloc_trim", |s, n| setters::number(&mut s.build.main.lua.malloc_trim, n)),
    http("lua_sa_restart", sa_restart),
    http("rewrite_by_lua_no_postpone", |s, n| setters::flag(&mut s.build.main.lua.rewrite_no_postpone, n)),
    http("access_by_lua_no_postpone", |s, n| setters::flag(&mut s.build.main.lua.access_no_postpone, n)),
    http("precontent_by_lua_no_postpone", |s, n| setters::flag(&mut s.build.main.lua.precontent_no_postpone, n)),
    http("lua_thread_cache_max_entries", |s, n| setters::number(&mut s.build.main.lua.thread_cache_max_entries, n)),
    http("lua_need_request_body", |s, n| setters::flag(&mut s.level.conf.lua.need_request_body, n)),
    http("lua_transform_underscores_in_response_headers", |s, n| {
        setters::flag(&mut s.level.conf.lua.transform_underscores, n)
    }),
    http("lua_use_default_type", |s, n| setters::flag(&mut s.level.conf.lua.use_default_type, n)),
    http("lua_http10_buffering", |s, n| setters::flag(&mut s.level.conf.lua.http10_buffering, n)),
    both("lua_check_client_abort", |s, n| setters::flag(&mut s.level.conf.lua.check_client_abort, n)),
    both("lua_socket_log_errors", |s, n| setters::flag(&mut s.level.conf.lua.socket_log_errors, n)),
    both("lua_socket_connect_timeout", |s, n| setters::time(&mut s.level.conf.lua.socket_connect_timeout, n)),
    both("lua_socket_send_timeout", |s, n| setters::time(&mut s.level.conf.lua.socket_send_timeout, n)),
    both("lua_socket_read_timeout", |s, n| setters::time(&mut s.level.conf.lua.socket_read_timeout, n)),
    both("lua_socket_keepalive_timeout", |s, n| setters::time(&mut s.level.conf.lua.socket_keepalive_timeout, n)),
    both("lua_socket_pool_size", |s, n| setters::number(&mut s.level.conf.lua.socket_pool_size, n)),
    both("lua_ssl_protocols", |s, n| {
        let warnings = Protocols::add(&mut s.level.conf.lua.ssl.protocols, n)?;
        s.build.problems.extend(warnings);
        Ok(())
    }),
    both("lua_ssl_ciphers", |s, n| word(&mut s.level.conf.lua.ssl.ciphers, n)),
    both("lua_ssl_verify_depth", |s, n| setters::number(&mut s.level.conf.lua.ssl.verify_depth, n)),
    both("lua_ssl_trusted_certificate", |s, n| word(&mut s.level.conf.lua.ssl.trusted_certificate, n)),
    both("lua_ssl_crl", |s, n| word(&mut s.level.conf.lua.ssl.crl, n)),
    http("lua_ssl_key_log", ssl_key_log),
    http("lua_ssl_certificate", |s, n| word(&mut s.level.conf.lua.ssl.certificate, n)),
    http("lua_ssl_certificate_key", |s, n| word(&mut s.level.conf.lua.ssl.certificate_key, n)),
    http("lua_ssl_conf_command", |s, n| {
        let command = (n.args[0].text.clone(), n.args[1].text.clone());
        Arc::make_mut(s.level.conf.lua.ssl.conf_commands.entry()).push(command);
        Ok(())
    }),
    // Linux has no such thing, nor has nginx there.
    both("lua_socket_send_lowat", ignored::size),
    http("lua_worker_thread_vm_pool_size", |s, n| setters::number(&mut s.build.main.lua.worker_thread_vm_pool_size, n)),
    both("lua_socket_buffer_size", |s, n| setters::size(&mut s.level.conf.lua.socket_buffer_size, n)),
];

/// Their places in the phases.
pub const SERVER_REWRITE: Handler = Handler::Begins(|r| r.conf().lua.server_rewrite.is_some(), phases::server_rewrite);
/// After the level's own rewrites, unless they changed the location.
pub const REWRITE: Handler =
    Handler::Begins(|r| !r.flow.uri_changed && !*r.snapshot.main.lua.rewrite_no_postpone, phases::rewrite);
/// After the modules that judge without a program.
pub const ACCESS: Handler = Handler::Begins(|r| !*r.snapshot.main.lua.access_no_postpone, phases::access);
/// Before the content.
pub const PRECONTENT: Handler = Handler::Begins(|r| !*r.snapshot.main.lua.precontent_no_postpone, phases::precontent);
/// The same before all others of their phases: `*_by_lua_no_postpone`.
pub const REWRITE_FIRST: Handler = Handler::Begins(|r| *r.snapshot.main.lua.rewrite_no_postpone, phases::rewrite);
/// See `REWRITE_FIRST`.
pub const ACCESS_FIRST: Handler = Handler::Begins(|r| *r.snapshot.main.lua.access_no_postpone, phases::access);
/// See `REWRITE_FIRST`.
pub const PRECONTENT_FIRST: Handler =
    Handler::Begins(|r| *r.snapshot.main.lua.precontent_no_postpone, phases::precontent);

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// `lua_ssl_*`
    ssl: SslSettings,
    /// What handshakes of programs' sockets need.
    pub tls: Option<Arc<Tls>>,
}

impl Conf {
    /// The number of the program of a phase.
    pub fn program(&self, phase: Phase) -> Option<usize> {
        let chunk = match phase {
            Phase::ServerRewrite => &self.settings.server_rewrite,
            Phase::Rewrite => &self.settings.rewrite,
            Phase::Access => &self.settings.access,
            Phase::Precontent => &self.settings.precontent,
            Phase::Content => &self.settings.content,
            Phase::HeaderFilter => &self.settings.header_filter,
            Phase::BodyFilter => &self.settings.body_filter,
            Phase::Log => &self.settings.log,
            Phase::Preread => &self.settings.preread,
            Phase::ClientHello => &self.settings.ssl_client_hello,
            Phase::Certificate => &self.settings.ssl_certificate,
            _ => return None,
        };
        chunk.as_ref().map(|chunk| chunk.number)
    }

    /// Takes from `parent` what this level does not set itself.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
        self.ssl.merge(&parent.ssl);
    }
}

reads_as_settings!(Conf);
crate::inherited!(Conf, |conf| conf.tls.is_none());

merged_values! {
    /// Those that merge.
    pub struct Settings {
        /// `server_rewrite_by_lua*`
        server_rewrite: Option<Arc<Chunk>> = None,
        /// `rewrite_by_lua*`
        rewrite: Option<Arc<Chunk>> = None,
        /// `access_by_lua*`
        access: Option<Arc<Chunk>> = None,
        /// `precontent_by_lua*`
        precontent: Option<Arc<Chunk>> = None,
        /// `content_by_lua*`
        content: Option<Arc<Chunk>> = None,
        /// `header_filter_by_lua*`
        header_filter: Option<Arc<Chunk>> = None,
        /// `body_filter_by_lua*`
        body_filter: Option<Arc<Chunk>> = None,
        /// `log_by_lua*`
        log: Option<Arc<Chunk>> = None,
        /// `preread_by_lua*`, in `stream`.
        preread: Option<Arc<Chunk>> = None,
        /// `ssl_client_hello_by_lua*`
        ssl_client_hello: Option<Arc<Chunk>> = None,
        /// `ssl_certificate_by_lua*`
        ssl_certificate: Option<Arc<Chunk>> = None,
        /// `ssl_session_fetch_by_lua*`
        ssl_session_fetch: Option<Arc<Chunk>> = None,
        /// `ssl_session_store_by_lua*`
        ssl_session_store: Option<Arc<Chunk>> = None,
        /// `proxy_ssl_certificate_by_lua*`
        proxy_ssl_certificate: Option<Arc<Chunk>> = None,
        /// `proxy_ssl_verify_by_lua*`
        proxy_ssl_verify: Option<Arc<Chunk>> = None,
        /// Programs are compiled once; otherwise each request has a machine of its own, for development.
        code_cache: bool = true,
        /// The body is read before the program runs.
        need_request_body: bool = false,
        /// `ngx.header.foo_bar` is `foo-bar`.
        transform_underscores: bool = true,
        /// An answer to HTTP/1.0 is held back until its length is known.
        http10_buffering: bool = true,
        /// A program ends when its client goes.
        check_client_abort: bool = false,
        /// An answer without a type has `default_type`.
        use_default_type: bool = true,
        /// Failures of sockets are logged.
        socket_log_errors: bool = true,
        /// The file, by its number among those of logs, that secrets of sockets' TLS are written to.
        ssl_key_log: Option<usize> = None,
        /// For `connect`.
        socket_connect_timeout: Duration = Duration::from_secs(60),
        /// For `send`.
        socket_send_timeout: Duration = Duration::from_secs(60),
        /// For each read.
        socket_read_timeout: Duration = Duration::from_secs(60),
        /// How long a connection is kept for the next.
        socket_keepalive_timeout: Duration = Duration::from_secs(60),
        /// Connections that are kept for one peer, in each thread.
        socket_pool_size: u64 = 30,
        /// Bytes that one read asks for.
        socket_buffer_size: u64 = 4096,
    }
}

/// `lua_malloc_trim`, where nobody says it.
const MALLOC_TRIM: u64 = 1000;

/// What is kept once for `http`.
#[derive(Debug)]
pub struct Main {
    /// `init_by_lua*`
    pub init: Option<Arc<Chunk>>,
    /// `init_worker_by_lua*`
    pub init_worker: Option<Arc<Chunk>>,
    /// `exit_worker_by_lua*`
    pub exit_worker: Option<Arc<Chunk>>,
    /// Where `require` looks, with `;;` for the default.
    pub package_path: Option<Box<[u8]>>,
    /// The same for libraries in C.
    pub package_cpath: Option<Box<[u8]>>,
    /// How long a program may run without waiting; 0: as long as it likes.
    pub max_run_time: Setting<Duration>,
    /// Timers of a thread that may wait.
    pub max_pending_timers: Setting<u64>,
    /// Timers of a thread that may run at the same time.
    pub max_running_timers: Setting<u64>,
    /// Expressions that a thread keeps.
    pub regex_cache_max_entries: Setting<u64>,
    /// Steps that one match may take; 0: as many as PCRE2 allows.
    pub regex_match_limit: Setting<u64>,
    /// Coroutines that a thread keeps for the next request.
    pub thread_cache_max_entries: Setting<u64>,
    /// Bytes of lines of the error log that each thread keeps for its programs.
    pub capture_error_log: Setting<u64>,
    /// After so many requests a thread gives the memory back that C libraries hold for later; 0: never.
    pub malloc_trim: Setting<u64>,
    /// Machines of threads that run functions for programs.
    pub worker_thread_vm_pool_size: Setting<u64>,
    /// `lua_sa_restart`
    pub sa_restart: Setting<bool>,
    /// Programs run before the other modules of their phase.
    pub rewrite_no_postpone: Setting<bool>,
    /// See `rewrite_no_postpone`.
    pub access_no_postpone: Setting<bool>,
    /// See `rewrite_no_postpone`.
    pub precontent_no_postpone: Setting<bool>,
    /// The dictionaries.
    pub dicts: Vec<Arc<Dict>>,
    /// Some program may answer requests.
    pub answers: bool,
    /// The names of the programs so far.
    pub names: Vec<Box<str>>,
    /// Files of programs whose names have no variables.
    pub files: Vec<PathBuf>,
}

impl Default for Main {
    fn default() -> Main {
        Main {
            init: None,
            init_worker: None,
            exit_worker: None,
            package_path: None,
            package_cpath: None,
            max_run_time: Setting::unset(Duration::ZERO),
            max_pending_timers: Setting::unset(1024),
            max_running_timers: Setting::unset(256),
            regex_cache_max_entries: Setting::unset(::lua::regex::MAX_ENTRIES as u64),
            regex_match_limit: Setting::unset(0),
            thread_cache_max_entries: Setting::unset(machine::IDLE_THREADS),
            capture_error_log: Setting::unset(0),
            malloc_trim: Setting::unset(MALLOC_TRIM),
            worker_thread_vm_pool_size: Setting::unset(worker_thread::MACHINES),
            sa_restart: Setting::unset(true),
            rewrite_no_postpone: Setting::unset(false),
            access_no_postpone: Setting::unset(false),
            precontent_no_postpone: Setting::unset(false),
            dicts: Vec::new(),
            answers: false,
            names: Vec::new(),
            files: Vec::new(),
        }
    }
}

impl Main {
    /// Whether there is anything for a machine to do.
    pub fn is_used(&self) -> bool {
        !self.names.is_empty()
    }
}

thread_local! {
    /// A machine that only looks whether programs are well formed.
    static CHECKER: mlua::Lua = ::lua::machine::new();
}

/// The program of a directive: its block, or the word number `at`.
fn chunk(scope: &mut Scope<'_, '_>, node: &Node, at: usize) -> Result<Arc<Chunk>, Problem> {
    let directive = node.name.as_str().into_owned();
    let kind = directive.trim_end_matches("_block").trim_end_matches("_file");
    let place = node.name.span;
    let file = scope.build.sources.get(place.file.0 as usize).and_then(|p| p.file_name());
    let file = file.map_or_else(|| "command line".into(), |f| f.to_string_lossy().into_owned());
    let name = format!("{kind}({file}:{})", place.line);
    let source = match &node.body {
        Body::Raw(text) => Source::Text(text.as_slice().into()),
        _ if directive.ends_with("_file") => Source::File(Complex::compile(scope.build, &node.args[at])?),
        _ => Source::Text(node.args[at].text.as_slice().into()),
    };
    if let Source::Text(text) = &source {
        let checked = CHECKER.with(|lua| ::lua::machine::compile(lua, text, &format!("={name}")).map(|_| ()));
        checked.map_err(|e| node.problem(format!("failed to load inlined Lua code: {e}")))?;
    }
    if let Source::File(path) = &source
        && let Some(path) = path.as_fixed()
    {
        scope.build.main.lua.files.push(OsStr::from_bytes(path).into());
    }
    let number = scope.build.main.lua.names.len();
    scope.build.main.lua.names.push(name.as_str().into());
    Ok(Arc::new(Chunk { number, name: name.into(), source }))
}

fn program(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    of: fn(&mut Conf) -> &mut Setting<Option<Arc<Chunk>>>,
) -> Result<(), Problem> {
    let chunk = chunk(scope, node, 0)?;
    let answering = ["server_rewrite", "rewrite", "access", "precontent", "content"];
    scope.build.main.lua.answers |= answering.iter().any(|name| chunk.name.starts_with(&format!("{name}_by_lua")));
    setters::value(of(&mut scope.level.conf.lua), node, Some(chunk))
}

fn capture_error_log(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    setters::size(&mut scope.build.main.lua.capture_error_log, node)?;
    let (size, least) = (*scope.build.main.lua.capture_error_log, captured::LEAST);
    if size < least as u64 {
        let text = format!("invalid capture error log size \"{}\", minimum size is {least}", node.args[0].as_str());
        return Err(node.problem(text));
    }
    Ok(())
}

/// Signals interrupt no call here: what `on` asks for is always so, and `off` can change nothing.
fn sa_restart(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    setters::flag(&mut scope.build.main.lua.sa_restart, node)?;
    if !*scope.build.main.lua.sa_restart {
        let text = "lua_sa_restart off changes nothing: signals interrupt no call of a program here";
        scope.build.problems.push(node.warning(text.to_owned()));
    }
    Ok(())
}

fn content_by_lua(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    program(scope, node, |c| &mut c.content)?;
    scope.level.conf.core.handler = Some(Content::Begins(phases::content));
    Ok(())
}

fn main(scope: &mut Scope<'_, '_>, node: &Node, of: fn(&mut Main) -> &mut Option<Arc<Chunk>>) -> Result<(), Problem> {
    let chunk = chunk(scope, node, 0)?;
    match of(&mut scope.build.main.lua) {
        Some(_) => Err(duplicate(node)),
        empty => {
            *empty = Some(chunk);
            Ok(())
        }
    }
}

fn set_by_lua(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let Some(name) = word.text.strip_prefix(b"$").filter(|n| !n.is_empty()) else {
        return Err(node.problem(format!("invalid variable name \"{}\"", word.as_str())));
    };
    let variable = scope.build.variables.declare(name).map_err(|t| node.problem(t))?;
    let chunk = chunk(scope, node, 1)?;
    let args = node.args.iter().skip(2).map(|w| Complex::compile(scope.build, w)).collect::<Result<Vec<_>, _>>()?;
    let name = name.to_vec();
    super::rewrite::push_program(scope, &name, variable, chunk, args)
}

fn path(setting: &mut Option<Box<[u8]>>, node: &Node) -> Result<(), Problem> {
    if setting.is_some() {
        return Err(duplicate(node));
    }
    *setting = Some(node.args[0].text.as_slice().into());
    Ok(())
}

fn word(setting: &mut Setting<Arc<[u8]>>, node: &Node) -> Result<(), Problem> {
    setters::value(setting, node, node.args[0].text.as_slice().into())
}

/// The file is opened with the logs, by whom they are opened; as nginx does, beside the configuration.
fn ssl_key_log(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = OsStr::from_bytes(&node.args[0].text);
    let path = (!name.is_empty()).then(|| scope.build.conf_prefix.join(name));
    let number = path.map(|path| lines::number_of(&mut scope.build.main.log.files, path));
    setters::value(&mut scope.level.conf.lua.ssl_key_log, node, number)
}

/// Makes what handshakes of a level need, if programs run at all. Who verifies is said by each handshake.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    if !build.main.lua.is_used() {
        return;
    }
    for (program, name) in [
        (&level.conf.lua.proxy_ssl_verify, "proxy_ssl_verify_by_lua*"),
        (&level.conf.lua.proxy_ssl_certificate, "proxy_ssl_certificate_by_lua*"),
    ] {
        if program.is_set() && level.conf.proxy.goes_in_plain() {
            build.http_problem(format!("{name} should be used with proxy_pass https url"));
        }
    }
    upstream::install();
    let mut conf = level.conf.lua.ssl.clone();
    conf.server_name.force(true);
    conf.verify.force(!conf.trusted_certificate.is_empty());
    level.conf.lua.tls = proxy::ssl::finish(build, &conf, "lua", &[]);
}

/// `ssl_certificate_by_lua*` changes a certificate that must be there (`ngx_http_lua_merge_srv_conf`).
pub fn check_server(build: &mut Build<'_>, level: &ConfigLevel, has_tls: bool) {
    if level.conf.lua.ssl_certificate.is_some() && !has_tls {
        build.problems.push(Problem::emerg(level.place, "no ssl configured for the server".to_owned()));
    }
}

/// A dictionary is at least as large as nginx's zones.
const MIN_DICT: u64 = 8191;

fn lua_shared_dict(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = node.args[0].as_str().into_owned();
    if name.is_empty() {
        return Err(node.problem(format!("invalid lua shared dict name \"{name}\"")));
    }
    let size = value::size(&node.args[1].text).filter(|size| *size > MIN_DICT);
    let size =
        size.ok_or_else(|| node.problem(format!("invalid lua shared dict size \"{}\"", node.args[1].as_str())))?;
    // Programs of `http` and of `stream` share none, as in OpenResty.
    let owner = if scope.build.subsystem.is_stream() { "lua_shared_dict in stream" } else { "lua_shared_dict" };
    scope.build.main.zones.add(name.as_bytes(), size, owner).map_err(|t| node.problem(t))?;
    let dicts = &mut scope.build.main.lua.dicts;
    if dicts.iter().any(|d| *d.name == *name) {
        return Err(node.problem(format!("lua_shared_dict \"{name}\" is already defined as \"{name}\"")));
    }
    dicts.push(Dict::named(&name, size as usize));
    Ok(())
}

fn lua_code_cache(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    setters::flag(&mut scope.level.conf.lua.code_cache, node)?;
    if !*scope.level.conf.lua.code_cache {
        scope.build.problems.push(node.warning("lua_code_cache is off; this will hurt performance".to_owned()));
    }
    Ok(())
}
