//! The http core: the values that every request needs (nginx's `ngx_http_core_module`, without blocks, `listen` and
//! names, which are in `http_block` and `listen`).

pub mod server;

use super::ignored;
use super::root::{self, Root, Types};
use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate, invalid};
use crate::config::{Build, ConfigLevel, Directive, Scope, both, http};
use crate::log::error::ErrorLog;
use crate::modules::core::server::ServerSettings;
use crate::process_settings::ErrorLogSpec;
use crate::request::steps::Content;
use crate::request::{Method, Request};
use crate::snapshot::LocationId;
use crate::temp::TempPath;
use crate::{merged_values, reads_as_settings};
use conf::{Node, Problem, value};
use resolve::ResolverConfig;
use std::sync::Arc;
use std::time::Duration;

/// The directives.
pub const DIRECTIVES: &[Directive] =
    &[
        http("client_header_buffer_size", |s, n| setters::size(&mut server(s)?.client_header_buffer_size, n)),
        http("client_header_timeout", |s, n| setters::time(&mut server(s)?.client_header_timeout, n)),
        http("ignore_invalid_headers", |s, n| setters::flag(&mut server(s)?.ignore_invalid_headers, n)),
        http("underscores_in_headers", |s, n| setters::flag(&mut server(s)?.underscores_in_headers, n)),
        http("merge_slashes", |s, n| setters::flag(&mut server(s)?.merge_slashes, n)),
        http("max_headers", |s, n| setters::number(&mut server(s)?.max_headers, n)),
        http("large_client_header_buffers", large_buffers),
        http("connection_pool_size", ignored::size),
        http("request_pool_size", ignored::size),
        both("server_names_hash_bucket_size", ignored::number),
        both("server_names_hash_max_size", ignored::number),
        both("variables_hash_bucket_size", ignored::number),
        both("variables_hash_max_size", ignored::number),
        http("types_hash_bucket_size", ignored::number),
        http("types_hash_max_size", ignored::number),
        http("aio", aio),
        http("aio_write", ignored::any),
        http("directio", ignored::directio),
        http("directio_alignment", ignored::offset),
        http("read_ahead", ignored::size),
        http("sendfile", ignored::any),
        http("sendfile_max_chunk", ignored::size),
        http("send_lowat", ignored::size),
        http("postpone_output", ignored::size),
        http("output_buffers", ignored::buffers),
        http("client_body_in_single_buffer", ignored::any),
        http("internal", |s, n| {
            if std::mem::replace(&mut s.level.conf.core.internal, true) { Err(duplicate(n)) } else { Ok(()) }
        }),
        http("client_body_early_read", |s, n| {
            let core = &mut s.level.server.get_or_insert_default().core;
            setters::conditions(s.build, &mut core.client_body_early_read, n)
        }),
        http("client_max_body_size", |s, n| setters::offset(&mut s.level.conf.core.client_max_body_size, n)),
        http("client_body_buffer_size", |s, n| setters::size(&mut s.level.conf.core.client_body_buffer_size, n)),
        http("client_body_timeout", |s, n| setters::time(&mut s.level.conf.core.client_body_timeout, n)),
        http("client_body_temp_path", body_temp_path),
        http("client_body_in_file_only", |s, n| {
            let words = [("off", InFile::Off), ("on", InFile::On), ("clean", InFile::Clean)];
            setters::one_of(&mut s.level.conf.core.client_body_in_file_only, n, &words)
        }),
        http("satisfy", |s, n| {
            setters::one_of(&mut s.level.conf.core.satisfy, n, &[("all", Satisfy::All), ("any", Satisfy::Any)])
        }),
        http("keepalive_timeout", keepalive_timeout),
        http("keepalive_min_timeout", |s, n| setters::time(&mut s.level.conf.core.keepalive_min_timeout, n)),
        http("keepalive_time", |s, n| setters::time(&mut s.level.conf.core.keepalive_time, n)),
        http("keepalive_requests", |s, n| setters::number(&mut s.level.conf.core.keepalive_requests, n)),
        http("keepalive_disable", keepalive_disable),
        http("lingering_close", |s, n| {
            let words = [("off", Lingering::Off), ("on", Lingering::On), ("always", Lingering::Always)];
            setters::one_of(&mut s.level.conf.core.lingering_close, n, &words)
        }),
        http("lingering_time", |s, n| setters::time(&mut s.level.conf.core.lingering_time, n)),
        http("lingering_timeout", |s, n| setters::time(&mut s.level.conf.core.lingering_timeout, n)),
        http("reset_timedout_connection", |s, n| setters::flag(&mut s.level.conf.core.reset_timedout_connection, n)),
        http("send_timeout", |s, n| setters::time(&mut s.level.conf.core.send_timeout, n)),
        http("limit_rate", |s, n| setters::complex_size(s.build, &mut s.level.conf.core.limit_rate, n)),
        http("limit_rate_after", |s, n| setters::complex_size(s.build, &mut s.level.conf.core.limit_rate_after, n)),
        http("tcp_nopush", |s, n| setters::flag(&mut s.level.conf.core.tcp_nopush, n)),
        http("tcp_nodelay", |s, n| setters::flag(&mut s.level.conf.core.tcp_nodelay, n)),
        http("absolute_redirect", |s, n| setters::flag(&mut s.level.conf.core.absolute_redirect, n)),
        http("server_name_in_redirect", |s, n| setters::flag(&mut s.level.conf.core.server_name_in_redirect, n)),
        http("port_in_redirect", |s, n| setters::flag(&mut s.level.conf.core.port_in_redirect, n)),
        http("msie_padding", |s, n| setters::flag(&mut s.level.conf.core.msie_padding, n)),
        http("msie_refresh", |s, n| setters::flag(&mut s.level.conf.core.msie_refresh, n)),
        http("log_not_found", |s, n| setters::flag(&mut s.level.conf.core.log_not_found, n)),
        http("log_subrequest", |s, n| setters::flag(&mut s.level.conf.core.log_subrequest, n)),
        http("recursive_error_pages", |s, n| setters::flag(&mut s.level.conf.core.recursive_error_pages, n)),
        http("server_tokens", |s, n| {
            let words = [("on", ServerTokens::On), ("off", ServerTokens::Off), ("build", ServerTokens::Build)];
            setters::one_of(&mut s.level.conf.core.server_tokens, n, &words)
        }),
        http("chunked_transfer_encoding", |s, n| setters::flag(&mut s.level.conf.core.chunked_transfer_encoding, n)),
        http("etag", |s, n| setters::flag(&mut s.level.conf.core.etag, n)),
        http("if_modified_since", |s, n| {
            let words = [("off", Modified::Off), ("exact", Modified::Exact), ("before", Modified::Before)];
            setters::one_of(&mut s.level.conf.core.if_modified_since, n, &words)
        }),
        http("max_ranges", |s, n| setters::number(&mut s.level.conf.core.max_ranges, n)),
        http("error_page", error_page),
        both("error_log", error_log),
        http("post_action", |s, n| setters::complex(s.build, &mut s.level.conf.core.post_action, n)),
        both("resolver", |s, n| {
            let words: Vec<&[u8]> = n.args.iter().map(|w| w.text.as_slice()).collect();
            let config = ResolverConfig::parse(&words).map_err(|t| n.problem(t))?;
            setters::value(&mut s.level.conf.core.resolver, n, Some(Arc::new(config)))
        }),
        both("resolver_timeout", |s, n| setters::time(&mut s.level.conf.core.resolver_timeout, n)),
        http("early_hints", |s, n| setters::conditions(s.build, &mut s.level.conf.core.early_hints, n)),
        http("auth_delay", |s, n| setters::time(&mut s.level.conf.core.auth_delay, n)),
        http("subrequest_output_buffer_size", |s, n| {
            setters::size(&mut s.level.conf.core.subrequest_output_buffer_size, n)
        }),
    ];

/// `aio on | off | threads[=pool]`: `on` is the kernel's own way, for which there is none here. Whether the pool is there shows at the end
/// of the configuration.
fn aio(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name = match &*node.args[0].text {
        b"on" | b"off" => {
            scope.build.note(node);
            return setters::value(&mut scope.level.conf.core.aio, node, None);
        }
        b"threads" => "default".into(),
        other => match other.strip_prefix(b"threads=").filter(|name| !name.is_empty()) {
            Some(name) => String::from_utf8_lossy(name),
            None => return Err(setters::invalid(node)),
        },
    };
    if name != "default" {
        scope.build.pools.push((name.as_ref().into(), node.problem(format!("unknown thread pool \"{name}\""))));
    }
    let wanted = &mut scope.build.process.pools_wanted;
    let number = wanted.iter().position(|known| **known == *name).unwrap_or_else(|| {
        wanted.push(name.as_ref().into());
        wanted.len() - 1
    });
    let number = u16::try_from(number).map_err(|_| node.problem("too many thread pools".to_owned()))?;
    setters::value(&mut scope.level.conf.core.aio, node, Some(number))
}

merged_values! {
    /// Values that merge in the plain way.
    pub struct Settings {
        /// `root` or `alias`.
        root: Root = Root::default(),
        /// `aio threads`: the pool that reads in files, by its number in `pools_wanted`.
        aio: Option<u16> = None,
        /// Types by extension.
        types: Arc<Types> = root::default_types(),
        /// Type of what `types` does not know.
        default_type: Arc<[u8]> = Arc::from(&b"text/plain"[..]),
        /// 0: no limit.
        client_max_body_size: u64 = 1024 * 1024,
        /// Larger bodies go to a file.
        client_body_buffer_size: u64 = 16 * 1024,
        /// Between two reads of a body.
        client_body_timeout: Duration = Duration::from_secs(60),
        /// Where large bodies go.
        client_body_temp_path: TempPath = TempPath::default(),
        /// Bodies always go to a file.
        client_body_in_file_only: InFile = InFile::Off,
        /// Whether one access module is enough.
        satisfy: Satisfy = Satisfy::All,
        /// How long an idle connection is kept.
        keepalive_timeout: Duration = Duration::from_secs(75),
        /// For how long of that neither a shutdown nor anything else on this side closes it.
        keepalive_min_timeout: Duration = Duration::ZERO,
        /// What is told to the client, in seconds; 0: nothing.
        keepalive_header: u64 = 0,
        /// How long a connection may be used.
        keepalive_time: Duration = Duration::from_secs(3600),
        /// Requests a connection may bring.
        keepalive_requests: u64 = 1000,
        /// Browsers that get no kept connections.
        keepalive_disable: KeepaliveDisable = KeepaliveDisable { msie6: true, safari: false },
        /// Whether a close waits for what the client still sends.
        lingering_close: Lingering = Lingering::On,
        /// For how long at most.
        lingering_time: Duration = Duration::from_secs(30),
        /// For how long without bytes.
        lingering_timeout: Duration = Duration::from_secs(5),
        /// Timed-out connections are reset.
        reset_timedout_connection: bool = false,
        /// Between two writes.
        send_timeout: Duration = Duration::from_secs(60),
        /// Bytes a second.
        limit_rate: Complex = Complex::default(),
        /// Bytes free of the rate.
        limit_rate_after: Complex = Complex::default(),
        /// Small packets of kept, unbuffered and upgraded connections leave at once.
        tcp_nodelay: bool = true,
        /// An answer of several files leaves in full packets.
        tcp_nopush: bool = false,
        /// `Location` gets scheme and host.
        absolute_redirect: bool = true,
        /// The host there is the server's name.
        server_name_in_redirect: bool = false,
        /// The port is part of it.
        port_in_redirect: bool = true,
        /// Error pages are made long enough for Internet Explorer.
        msie_padding: bool = true,
        /// Redirects become pages for it.
        msie_refresh: bool = false,
        /// Files that are not there are logged.
        log_not_found: bool = true,
        /// Subrequests are logged.
        log_subrequest: bool = false,
        /// Errors on error pages have pages too.
        recursive_error_pages: bool = false,
        /// What answers say of the server.
        server_tokens: ServerTokens = ServerTokens::On,
        /// Answers of unknown length are chunked.
        chunked_transfer_encoding: bool = true,
        /// Files have entity tags.
        etag: bool = true,
        /// How `If-Modified-Since` compares.
        if_modified_since: Modified = Modified::Exact,
        /// Ranges of one request.
        max_ranges: u64 = i32::MAX as u64,
        /// Another request after each.
        post_action: Complex = Complex::default(),
        /// Who resolves names at run time.
        resolver: Option<Arc<ResolverConfig>> = None,
        /// For how long.
        resolver_timeout: Duration = Duration::from_secs(30),
        /// Conditions under which 103 is sent on.
        early_hints: Arc<Vec<Complex>> = Arc::default(),
        /// How long 401 waits.
        auth_delay: Duration = Duration::ZERO,
        /// What a subrequest may answer in memory.
        subrequest_output_buffer_size: u64 = 4096,
        /// `error_page`, in order.
        error_pages: Arc<Vec<ErrorPage>> = Arc::default(),
        /// `error_log` as written; opened when the snapshot is made.
        error_log_specs: Arc<Vec<ErrorLogSpec>> = Arc::default(),
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// `internal`: only redirects and subrequests come here.
    pub internal: bool,
    /// The content handler.
    pub handler: Option<Content>,
    /// Of a server's own level: who answers a CONNECT, for which no location is looked for (`proxy_connect`).
    pub connect_handler: Option<Content>,
    /// `limit_except`
    pub limit_except: Option<LimitExcept>,
    /// The open error log.
    pub error_log: ErrorLog,
    /// The location's handler wants `/name` sent on to `/name/`.
    pub auto_redirect: bool,
}

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        // `keepalive_timeout` with one argument takes its header back.
        if self.settings.keepalive_timeout.is_set() && !self.settings.keepalive_header.is_set() {
            self.settings.keepalive_header.force(0);
        }
        self.settings.merge(&parent.settings);
        self.internal |= parent.internal;
    }
}

reads_as_settings!(Conf);

/// `limit_except GET { ... }`: for all other methods this level's values hold.
#[derive(Clone, Debug)]
pub struct LimitExcept {
    /// The methods that are not limited.
    pub methods: Vec<Method>,
    /// The level inside.
    pub location: LocationId,
}

/// `client_body_in_file_only`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFile {
    /// Only large bodies.
    Off,
    /// All, and they stay.
    On,
    /// All, and they are removed.
    Clean,
}

impl InFile {
    /// Whether every body goes to a file.
    pub fn wanted(self) -> bool {
        self != InFile::Off
    }

    /// Whether the file stays.
    pub fn kept(self) -> bool {
        self == InFile::On
    }
}

/// `satisfy`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Satisfy {
    /// Every module must allow.
    All,
    /// One is enough.
    Any,
}

impl Satisfy {
    /// Whether one is enough.
    pub fn any(self) -> bool {
        self == Satisfy::Any
    }
}

/// `lingering_close`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lingering {
    /// Never.
    Off,
    /// When the client may still be sending.
    On,
    /// Always.
    Always,
}

/// `keepalive_disable`
#[derive(Clone, Copy, Debug)]
pub struct KeepaliveDisable {
    /// Internet Explorer 6, after a POST.
    pub msie6: bool,
    /// Safari on a Mac.
    pub safari: bool,
}

/// `if_modified_since`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modified {
    /// Ignored.
    Off,
    /// The same time.
    Exact,
    /// Not later.
    Before,
}

/// `server_tokens`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerTokens {
    /// Name and version.
    On,
    /// Name, version and build.
    Build,
    /// The name.
    Off,
}

/// One status of an `error_page`.
#[derive(Clone, Debug)]
pub struct ErrorPage {
    /// The status it is for.
    pub status: u16,
    /// `=200`; `=` alone is 0: the page's own status.
    pub overwrite: Option<u16>,
    /// Where to.
    pub target: Complex,
}

fn server<'s>(scope: &'s mut Scope<'_, '_>) -> Result<&'s mut ServerSettings, Problem> {
    Ok(&mut scope.level.server.get_or_insert_default().core)
}

fn large_buffers(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let number = value::number(&node.args[0].text).filter(|n| *n > 0).ok_or_else(|| invalid(node))?;
    let size = value::size(&node.args[1].text).filter(|n| *n > 0).ok_or_else(|| invalid(node))?;
    setters::value(&mut server(scope)?.large_client_header_buffers, node, (number as usize, size as usize))
}

fn body_temp_path(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let path = temp_path(scope, node)?;
    setters::value(&mut scope.level.conf.core.client_body_temp_path, node, path)
}

/// `path [level1 [level2 [level3]]]`; the directory is created before the workers start.
pub fn temp_path(scope: &mut Scope<'_, '_>, node: &Node) -> Result<TempPath, Problem> {
    let dir = scope.build.full_path(&node.args[0].text);
    let mut levels = Vec::new();
    for word in &node.args[1..] {
        match value::number(&word.text) {
            Some(n @ 1..=3) => levels.push(n as usize),
            _ => return Err(invalid(node)),
        }
    }
    scope.build.directories.push(dir.clone());
    Ok(TempPath { dir, levels })
}

fn keepalive_timeout(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    setters::time(&mut scope.level.conf.core.keepalive_timeout, node)?;
    if let Some(word) = node.args.get(1) {
        let seconds = value::seconds(&word.text).ok_or_else(|| Problem::invalid_value(node))?;
        scope.level.conf.core.keepalive_header.force(seconds);
    }
    Ok(())
}

fn keepalive_disable(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.core.keepalive_disable;
    let mut disable = if setting.is_set() { **setting } else { KeepaliveDisable { msie6: false, safari: false } };
    for word in &node.args {
        let browser = match &*word.as_str() {
            "none" => continue,
            "msie6" => &mut disable.msie6,
            "safari" => &mut disable.safari,
            other => return Err(node.problem(format!("invalid value \"{other}\""))),
        };
        if std::mem::replace(browser, true) {
            scope.build.problems.push(Problem::duplicate_choice(word));
        }
    }
    setting.force(disable);
    Ok(())
}

fn error_page(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let invalid = |w: &conf::Word| node.problem(format!("invalid value \"{}\"", w.as_str()));
    let (target, mut codes) = node.args.split_last().expect("the table says there are two or more");
    let mut overwrite = None;
    if let Some((last, before)) = codes.split_last()
        && last.text.first() == Some(&b'=')
    {
        if before.is_empty() {
            return Err(invalid(last));
        }
        overwrite = Some(match &last.text[1..] {
            b"" => 0,
            digits => value::number(digits).and_then(|n| u16::try_from(n).ok()).ok_or_else(|| invalid(last))?,
        });
        codes = before;
    }
    let target = Complex::compile(scope.build, target)?;
    let mut pages = if scope.level.conf.core.error_pages.is_set() {
        (**scope.level.conf.core.error_pages).clone()
    } else {
        Vec::new()
    };
    for word in codes {
        let status = value::number(&word.text).filter(|n| *n != 499).ok_or_else(|| invalid(word))?;
        if !(300..=599).contains(&status) {
            return Err(node.problem(format!("value \"{}\" must be between 300 and 599", word.as_str())));
        }
        let status = status as u16;
        let overwrite = overwrite.or(matches!(status, 494..=497).then_some(400));
        pages.push(ErrorPage { status, overwrite, target: target.clone() });
    }
    scope.level.conf.core.error_pages.force(Arc::new(pages));
    Ok(())
}

fn error_log(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let spec = super::process::error_log_spec(scope.build, node)?;
    let core = &mut scope.level.conf.core;
    let mut all = if core.error_log_specs.is_set() { (**core.error_log_specs).clone() } else { Vec::new() };
    all.push(spec);
    core.error_log_specs.force(Arc::new(all));
    Ok(())
}

/// The value of a text as a size; 0 when it is none.
pub fn size_of(r: &mut Request, text: &Complex) -> u64 {
    let text = text.eval(r);
    value::size(r.get(text)).unwrap_or(0)
}

/// `auth_delay`: a refusal waits, so that passwords cannot be tried quickly.
pub async fn auth_delay(r: &mut Request) {
    let delay = *r.conf().core.auth_delay;
    if !delay.is_zero() {
        crate::log_error!(r, Info, "delaying unauthorized request");
        r.downstream.lend_buffers();
        runtime::timer::sleep(delay).await;
    }
}

/// Defaults of the `http` level that depend on the prefix.
pub fn finish_http(build: &mut Build<'_>, level: &mut ConfigLevel) {
    finish_stream(build, level);
    use std::os::unix::ffi::OsStringExt;
    let core = &mut level.conf.core;
    if !core.root.is_set() {
        let html = build.full_path(b"html").into_os_string().into_vec();
        core.root.force(Root { path: Complex::fixed(&html), alias: None, whole: false });
    }
    if !core.client_body_temp_path.is_set() {
        let dir = build.full_path(b"client_body_temp");
        build.directories.push(dir.clone());
        core.client_body_temp_path.force(TempPath { dir, levels: Vec::new() });
    }
}

/// What `stream` needs of it.
pub fn finish_stream(build: &mut Build<'_>, level: &mut ConfigLevel) {
    let core = &mut level.conf.core;
    if !core.error_log_specs.is_set() {
        core.error_log_specs.force(Arc::new(build.error_logs.clone()));
    }
}
