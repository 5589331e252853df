//! `proxy_pass`: what is sent to an HTTP upstream and what becomes of its answer (nginx's `ngx_http_proxy_module`). The
//! way to the peer is `upstream`'s; rewriting of answer headers is in `proxy_rewrite`.

use super::proxy_cache;
use super::proxy_rewrite::{self, CookieFlags, Rewrite};
use crate::cache::caching;
use crate::cache::settings::CacheSettings;
use crate::config::complex::Complex;
use crate::config::set::{self, duplicate};
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Level, Matching, Scope, http};
use crate::log_error;
use crate::request::headers::{HeaderOut, KnownHeader as K};
use crate::request::phases::{Content, Verdict};
use crate::request::{Method, Request, Text, Version, body, finish};
use crate::snapshot::Shot;
use crate::text;
use crate::tls::client::Secure;
use crate::upstream::exchange::{Answer, Job, JobBody};
use crate::upstream::group::{Group, GroupId};
use crate::upstream::settings::{Bind, SslSettings, Store, UpstreamSettings, ignore, next};
use crate::upstream::{relay, retry};
use crate::{reads_as_settings, settings};
use conf::{Contexts, Node, Problem, Word, value};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::http1::escape::{Escape, escape_uri};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("proxy_pass", proxy_pass),
    http("proxy_connect_timeout", |s, n| set::time(&mut conf(s).connect_timeout, n)),
    http("proxy_send_timeout", |s, n| set::time(&mut conf(s).send_timeout, n)),
    http("proxy_read_timeout", |s, n| set::time(&mut conf(s).read_timeout, n)),
    http("proxy_next_upstream", |s, n| {
        set::bits(s.build, &mut s.level.conf.proxy.upstream.next_upstream, n, next::WORDS)
    }),
    http("proxy_next_upstream_tries", |s, n| set::number(&mut conf(s).next_upstream_tries, n)),
    http("proxy_next_upstream_timeout", |s, n| set::time(&mut conf(s).next_upstream_timeout, n)),
    http("proxy_buffering", |s, n| set::flag(&mut conf(s).buffering, n)),
    http("proxy_request_buffering", |s, n| set::flag(&mut conf(s).request_buffering, n)),
    http("proxy_buffer_size", |s, n| set::size(&mut conf(s).buffer_size, n)),
    http("proxy_buffers", |s, n| {
        let invalid = || set::invalid(n);
        let number = value::number(&n.args[0].text).filter(|n| *n > 0).ok_or_else(invalid)?;
        let size = value::size(&n.args[1].text).filter(|n| *n > 0).ok_or_else(invalid)?;
        set::value(&mut conf(s).buffers, n, (number, size))
    }),
    http("proxy_busy_buffers_size", |s, n| optional_size(s, n, |s| &mut conf(s).busy_buffers_size)),
    http("proxy_max_temp_file_size", |s, n| set::offset(&mut conf(s).max_temp_file_size, n)),
    http("proxy_temp_file_write_size", |s, n| optional_size(s, n, |s| &mut conf(s).temp_file_write_size)),
    http("proxy_temp_path", |s, n| {
        let path = super::core::temp_path(s, n)?;
        set::value(&mut conf(s).temp_path, n, path)
    }),
    http("proxy_bind", bind),
    http("proxy_socket_keepalive", |s, n| set::flag(&mut conf(s).socket_keepalive, n)),
    http("proxy_socket_rcvbuf", |s, n| set::size(&mut conf(s).socket_rcvbuf, n)),
    http("proxy_socket_sndbuf", |s, n| set::size(&mut conf(s).socket_sndbuf, n)),
    http("proxy_send_lowat", |s, n| {
        s.build.note(n);
        Ok(())
    }),
    http("proxy_headers_hash_bucket_size", noted),
    http("proxy_headers_hash_max_size", noted),
    http("proxy_ignore_client_abort", |s, n| set::flag(&mut conf(s).ignore_client_abort, n)),
    http("proxy_intercept_errors", |s, n| set::flag(&mut conf(s).intercept_errors, n)),
    http("proxy_limit_rate", |s, n| set::complex(s.build, &mut s.level.conf.proxy.upstream.limit_rate, n)),
    http("proxy_pass_request_headers", |s, n| set::flag(&mut conf(s).pass_request_headers, n)),
    http("proxy_pass_request_body", |s, n| set::flag(&mut conf(s).pass_request_body, n)),
    http("proxy_pass_trailers", |s, n| set::flag(&mut conf(s).pass_trailers, n)),
    http("proxy_force_ranges", |s, n| set::flag(&mut conf(s).force_ranges, n)),
    http("proxy_ignore_headers", |s, n| {
        set::bits(s.build, &mut s.level.conf.proxy.upstream.ignore_headers, n, ignore::WORDS)
    }),
    http("proxy_hide_header", |s, n| {
        Arc::make_mut(conf(s).hide_headers.entry()).push(n.args[0].text.to_ascii_lowercase().into());
        Ok(())
    }),
    http("proxy_pass_header", |s, n| {
        Arc::make_mut(conf(s).pass_headers.entry()).push(n.args[0].text.to_ascii_lowercase().into());
        Ok(())
    }),
    http("proxy_store", store),
    http("proxy_store_access", store_access),
    http("proxy_http_version", |s, n| {
        let words = [("1.0", Version::HTTP10), ("1.1", Version::HTTP11)];
        if n.args[0] == "2" {
            return Err(n.problem("\"proxy_http_version 2\" is not supported yet".to_owned()));
        }
        set::one_of(&mut s.level.conf.proxy.http_version, n, &words)
    }),
    http("proxy_method", |s, n| set::complex(s.build, &mut s.level.conf.proxy.method, n)),
    http("proxy_set_body", |s, n| {
        let body = Complex::compile(s.build, &n.args[0])?;
        set::value(&mut s.level.conf.proxy.set_body, n, Some(body))
    }),
    http("proxy_set_header", |s, n| {
        let value = Complex::compile(s.build, &n.args[1])?;
        let name: Arc<[u8]> = n.args[0].text.as_slice().into();
        Arc::make_mut(s.level.conf.proxy.set_header.entry()).push((name, value));
        Ok(())
    }),
    http("proxy_redirect", proxy_rewrite::redirect),
    http("proxy_cookie_domain", |s, n| proxy_rewrite::cookie(s, n, false)),
    http("proxy_cookie_path", |s, n| proxy_rewrite::cookie(s, n, true)),
    http("proxy_cookie_flags", proxy_rewrite::cookie_flags),
    // The directories of modules that are not here yet are made, so that one configuration fits both servers.
    http("uwsgi_temp_path", |s, n| super::core::temp_path(s, n).map(|_| ())),
    http("scgi_temp_path", |s, n| super::core::temp_path(s, n).map(|_| ())),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "proxy_host", evaluate: |r| r.ctx.proxy.host, volatile: true, assign: None },
    Builtin { name: "proxy_port", evaluate: |r| r.ctx.proxy.port, volatile: true, assign: None },
    Builtin { name: "proxy_add_x_forwarded_for", evaluate: add_x_forwarded_for, volatile: true, assign: None },
    Builtin { name: "proxy_add_via", evaluate: add_via, volatile: true, assign: None },
    Builtin {
        name: "proxy_internal_body_length",
        evaluate: |r| r.ctx.proxy.body_length.map(|n| text!(r, "{n}")),
        volatile: true,
        assign: None,
    },
    Builtin {
        name: "proxy_internal_chunked",
        evaluate: |r| r.ctx.proxy.chunked.then_some(Text::from("chunked")),
        volatile: true,
        assign: None,
    },
];

/// Room for a usual request head.
const HEAD_ROOM: usize = 1024;

/// Headers that are never passed on, whatever is set.
const NOT_PASSED: [&[u8]; 9] = [
    b"host",
    b"connection",
    b"proxy-connection",
    b"content-length",
    b"transfer-encoding",
    b"te",
    b"keep-alive",
    b"expect",
    b"upgrade",
];

/// Headers of answers that clients do not get unless `proxy_pass_header` says so.
const HIDDEN: [&[u8]; 8] = [
    b"date",
    b"server",
    b"x-pad",
    b"x-accel-expires",
    b"x-accel-redirect",
    b"x-accel-limit-rate",
    b"x-accel-buffering",
    b"x-accel-charset",
];

settings! {
    /// Values that merge.
    pub struct Settings {
        /// `proxy_http_version`
        http_version: Version = Version::HTTP11,
        /// `proxy_method`
        method: Complex = Complex::default(),
        /// `proxy_set_body`
        set_body: Option<Complex> = None,
        /// `proxy_set_header`, inherited only where none is set.
        set_header: Arc<Vec<(Arc<[u8]>, Complex)>> = Arc::default(),
        /// `proxy_redirect`; none: `default`.
        redirect: Option<Arc<Vec<Rewrite>>> = None,
        /// `proxy_cookie_domain`
        cookie_domain: Arc<Vec<Rewrite>> = Arc::default(),
        /// `proxy_cookie_path`
        cookie_path: Arc<Vec<Rewrite>> = Arc::default(),
        /// `proxy_cookie_flags`
        cookie_flags: Arc<Vec<CookieFlags>> = Arc::default(),
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// What all modules with upstreams have.
    pub upstream: UpstreamSettings,
    /// `proxy_cache` and its like.
    pub cache: CacheSettings,
    /// `proxy_ssl_*`
    pub ssl: SslSettings,
    /// `proxy_pass`
    pub pass: Option<Arc<Pass>>,
    /// What is ready for requests.
    ready: Arc<Ready>,
}

/// Where `proxy_pass` leads.
#[derive(Debug)]
pub struct Pass {
    /// The url as written, or with variables.
    url: Complex,
    /// What a url without variables comes to.
    fixed: Option<Url>,
    node: Node,
    /// The group, found when levels are merged.
    group: std::sync::OnceLock<GroupId>,
    /// The length of the location's name, which the url's path replaces.
    location: Vec<u8>,
}

/// A url in parts.
#[derive(Clone, Debug)]
struct Url {
    /// `host:port`, the name of a group, `unix:/path`.
    target: String,
    /// What `Host` and `$proxy_host` say.
    host: String,
    port: String,
    /// Path and arguments, perhaps nothing.
    uri: Vec<u8>,
    full: String,
    /// `https://`
    secure: bool,
}

impl Url {
    /// The port of a host that has none.
    fn default_port(&self) -> u16 {
        if self.secure { 443 } else { 80 }
    }
}

/// Lists made once for a level.
#[derive(Debug, Default)]
struct Ready {
    /// `Host`, if set.
    host: Option<Complex>,
    /// Set headers, without `Host`.
    headers: Vec<(Arc<[u8]>, Complex)>,
    /// Lower-case names of set headers: the client's own are not passed.
    replaced: Vec<Box<[u8]>>,
    /// Content-Length and Transfer-Encoding are the configuration's business.
    own_length: bool,
    own_coding: bool,
    redirects: Arc<Vec<Rewrite>>,
    /// TLS, where the pass may lead to it.
    ssl: Option<Arc<crate::tls::client::Context>>,
    /// Headers of answers that clients do not get: known ones as a set of bits, others by name.
    hidden: u64,
    hidden_others: Vec<Box<[u8]>>,
}

/// What a request keeps for this module.
#[derive(Debug, Default)]
pub struct Context {
    host: Option<Text>,
    port: Option<Text>,
    body_length: Option<u64>,
    chunked: bool,
}

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.settings.merge(&parent.settings);
        self.upstream.merge(&parent.upstream);
        self.cache.merge(&parent.cache);
        self.ssl.merge(&parent.ssl);
    }
}

reads_as_settings!(Conf);

fn conf<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut UpstreamSettings {
    &mut scope.level.conf.proxy.upstream
}

fn noted(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    scope.build.note(node);
    Ok(())
}

/// A size that is checked and has no other meaning here.
pub(super) fn optional_size(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    setting: for<'s> fn(&'s mut Scope<'_, '_>) -> &'s mut crate::config::setting::Setting<Option<u64>>,
) -> Result<(), Problem> {
    let size = value::size(&node.args[0].text).ok_or_else(|| set::invalid(node))?;
    set::value(setting(scope), node, Some(size))?;
    scope.build.note(node);
    Ok(())
}

fn bind(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let address = bind_value(scope, node)?;
    set::value(&mut conf(scope).bind, node, address)
}

/// The value of `*_bind`.
pub(super) fn bind_value(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Option<Bind>, Problem> {
    if node.args[0] == "off" {
        return Ok(None);
    }
    let address = Complex::compile(scope.build, &node.args[0])?;
    if let Some(fixed) = address.as_fixed()
        && parse_local(fixed).is_none()
    {
        return Err(node.problem(format!("invalid address \"{}\"", node.args[0].as_str())));
    }
    let transparent = match node.args.get(1) {
        None => false,
        Some(w) if *w == "transparent" => true,
        Some(w) => return Err(node.problem(format!("invalid parameter \"{}\"", w.as_str()))),
    };
    scope.build.process.transparent |= transparent;
    Ok(Some(Bind { address, transparent }))
}

/// The address of `proxy_bind`, with or without a port.
pub fn parse_local(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse::<SocketAddr>().ok().or_else(|| Some(SocketAddr::new(text.trim_matches(['[', ']']).parse().ok()?, 0)))
}

fn store(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let off = node.args[0] == "off";
    if !off && scope.level.conf.proxy.cache.cache.is_set() && scope.level.conf.proxy.cache.is_on() {
        return Err(node.problem("\"proxy_store\" is incompatible with \"proxy_cache\"".to_owned()));
    }
    let store = store_value(scope, node)?;
    set::value(&mut conf(scope).store, node, store)
}

/// The value of `*_store`.
pub(super) fn store_value(scope: &mut Scope<'_, '_>, node: &Node) -> Result<Store, Problem> {
    Ok(match &*node.args[0].as_str() {
        "off" => Store::Off,
        "on" => Store::On,
        _ => {
            let path = scope.build.full_path(&node.args[0].text);
            use std::os::unix::ffi::OsStrExt;
            let path = Complex::compile_bytes(scope.build, path.as_os_str().as_bytes());
            Store::Path(path.map_err(|t| node.problem(t))?)
        }
    })
}

/// `user:rw group:r all:r`
fn store_access(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mode = store_access_value(node)?;
    set::value(&mut conf(scope).store_access, node, mode)
}

/// The value of `*_store_access`.
pub(super) fn store_access_value(node: &Node) -> Result<u32, Problem> {
    let mut mode = 0o600;
    for word in &node.args {
        let text = word.as_str();
        let bad = || node.problem(format!("invalid value \"{text}\""));
        let (who, what) = text.split_once(':').ok_or_else(bad)?;
        let shift = match who {
            "user" => 6,
            "group" => 3,
            "all" => 0,
            _ => return Err(bad()),
        };
        let bits = match what {
            "rw" => 6,
            "r" => 4,
            _ => return Err(bad()),
        };
        mode |= bits << shift;
    }
    Ok(mode)
}

fn proxy_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.proxy.pass.is_some() {
        return Err(duplicate(node));
    }
    let word: &Word = &node.args[0];
    let url = Complex::compile(scope.build, word)?;
    let fixed = match url.as_fixed() {
        None => None,
        Some(text) => Some(parse_url(text).map_err(|e| node.problem(e))?),
    };
    if let Some(u) = &fixed
        && !u.uri.is_empty()
    {
        let nameless = scope.level.nameless || !scope.level.context.intersects(Contexts::LOCATION);
        if scope.level.is_pattern() || scope.level.is_named() || nameless {
            return Err(node.problem(
                "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named location, \
                 or inside \"if\" statement, or inside \"limit_except\" block"
                    .to_owned(),
            ));
        }
    }
    scope.level.conf.core.auto_redirect = scope.level.name.ends_with(b"/");
    scope.level.conf.core.handler = Some(Content::Proxy);
    let location = scope.level.name.clone();
    let pass = Pass { url, fixed, node: node.clone(), group: Default::default(), location };
    scope.level.conf.proxy.pass = Some(Arc::new(pass));
    Ok(())
}

/// `http://host[:port][/uri]`, `http://unix:/path:[/uri]`, and the same with `https`.
fn parse_url(text: &[u8]) -> Result<Url, String> {
    let full = String::from_utf8_lossy(text).into_owned();
    let after = |prefix: &str| {
        let start = text.get(..prefix.len()).filter(|p| p.eq_ignore_ascii_case(prefix.as_bytes()));
        start.map(|_| &text[prefix.len()..])
    };
    let secure = after("https://").is_some();
    let rest = after("http://").or(after("https://")).ok_or("invalid URL prefix")?;
    if rest.starts_with(b"unix:") {
        let path_end = memchr::memchr(b':', &rest[5..]).map_or(rest.len(), |i| i + 5);
        let target = String::from_utf8_lossy(&rest[..path_end]).into_owned();
        let uri = rest.get(path_end + 1..).unwrap_or_default().to_vec();
        return Ok(Url { target, host: "localhost".into(), port: String::new(), uri, full, secure });
    }
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let target = String::from_utf8_lossy(&rest[..end]).into_owned();
    if target.is_empty() {
        return Err(format!("no host in upstream \"{}\"", String::from_utf8_lossy(rest)));
    }
    let mut uri = rest[end..].to_vec();
    if uri.first() == Some(&b'?') {
        uri.insert(0, b'/');
    }
    let port_at = if target.starts_with('[') { target.find("]:").map(|i| i + 1) } else { target.rfind(':') };
    let (host, port) = match port_at {
        Some(i) => {
            let port = &target[i + 1..];
            if port.parse::<u16>().ok().filter(|p| *p > 0).is_none() {
                return Err(format!("invalid port in upstream \"{}\"", String::from_utf8_lossy(rest)));
            }
            let usual = if secure { "443" } else { "80" };
            let host = if port == usual { target[..i].to_owned() } else { target.clone() };
            (host, port.to_owned())
        }
        None => (target.clone(), if secure { "443" } else { "80" }.to_owned()),
    };
    Ok(Url { target, host, port, uri, full, secure })
}

/// Finds the group, inherits into `if` and `limit_except`, and makes the lists (`ngx_http_proxy_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut Level, parent: &super::LocationConf) {
    let nameless = matches!(level.matching, Matching::Nameless) && level.context != Contexts::SERVER;
    let conf = &mut level.conf.proxy;
    if conf.pass.is_none() && nameless {
        conf.pass.clone_from(&parent.proxy.pass);
        if conf.pass.is_some() && level.context.intersects(Contexts::LIMIT_EXCEPT) && level.conf.core.handler.is_none()
        {
            level.conf.core.handler = Some(Content::Proxy);
        }
    }
    proxy_cache::finish_level(build, level);
    let conf = &mut level.conf.proxy;
    if conf.upstream.temp_path.dir.as_os_str().is_empty() {
        let dir = build.full_path(b"proxy_temp");
        conf.upstream.temp_path.force(crate::temp::TempPath { dir, levels: vec![1, 2] });
    }
    if let Err(text) = conf.upstream.check_sizes("proxy") {
        build.http_problem(text);
    }
    let Some(pass) = conf.pass.clone() else { return };
    build.directories.push(conf.upstream.temp_path.dir.clone());
    if let Some(url) = &pass.fixed
        && pass.group.get().is_none()
    {
        match super::upstream_block::group_for(build, &url.target, url.default_port()) {
            Ok(id) => {
                let _ = pass.group.set(id);
            }
            Err(e) => build.problems.push(pass.node.problem(e)),
        }
    }
    let mut ready = ready(conf, &pass);
    if pass.fixed.as_ref().is_none_or(|url| url.secure) {
        ready.ssl = super::proxy_ssl::finish(build, &conf.ssl, "proxy");
    }
    conf.ready = Arc::new(ready);
}

fn ready(conf: &Conf, pass: &Pass) -> Ready {
    let mut ready = Ready::default();
    for (name, value) in conf.set_header.iter() {
        let lower: Box<[u8]> = name.to_ascii_lowercase().into();
        match &*lower {
            b"host" => ready.host = Some(value.clone()),
            b"content-length" => ready.own_length = true,
            b"transfer-encoding" => ready.own_coding = true,
            _ => {}
        }
        if &*lower != b"host" && !value.is_empty() {
            ready.headers.push((name.clone(), value.clone()));
        }
        ready.replaced.push(lower);
    }
    hide(&mut ready, &conf.upstream, &HIDDEN);
    ready.redirects = match &*conf.redirect {
        Some(list) => Arc::new(
            list.iter()
                .flat_map(|r| match r {
                    Rewrite::Default => default_redirect(pass),
                    other => Some(other.clone()),
                })
                .collect(),
        ),
        None => Arc::new(default_redirect(pass).into_iter().collect()),
    };
    ready
}

/// Notes which headers of answers clients do not get.
fn hide(ready: &mut Ready, upstream: &UpstreamSettings, hidden: &[&[u8]]) {
    let passed = |name: &[u8]| upstream.pass_headers.iter().any(|n| n.eq_ignore_ascii_case(name));
    for name in hidden.iter().copied().chain(upstream.hide_headers.iter().map(|n| &**n)) {
        match K::find(name) {
            _ if passed(name) => {}
            K::Other => ready.hidden_others.push(name.into()),
            known => ready.hidden |= known.bit(),
        }
    }
}

impl Conf {
    /// Makes the values ready for answers of another module's peers.
    pub(super) fn for_answers(&mut self, hidden: &[&[u8]]) {
        let mut ready = Ready::default();
        hide(&mut ready, &self.upstream, hidden);
        self.ready = Arc::new(ready);
    }
}

fn default_redirect(pass: &Pass) -> Option<Rewrite> {
    let url = pass.fixed.as_ref()?;
    if url.uri.is_empty() {
        let pattern = Complex::fixed(format!("{}/", url.full).as_bytes());
        return Some(Rewrite::Prefix { pattern, replacement: Complex::fixed(b"/") });
    }
    let pattern = Complex::fixed(url.full.as_bytes());
    Some(Rewrite::Prefix { pattern, replacement: Complex::fixed(&pass.location) })
}

/// Where a request goes.
pub(super) struct Target<'u> {
    group: Arc<Group>,
    /// Path and arguments that replace the location's name; with variables, all of it.
    uri: Cow<'u, [u8]>,
    whole: bool,
    /// TLS is spoken.
    secure: bool,
}

/// The content handler.
pub async fn run(r: &mut Request) -> Verdict {
    let shot = r.shot.clone();
    let conf = &shot.location(r.location).conf.proxy;
    let Some(pass) = conf.pass.as_deref() else { return Verdict::Status(500) };
    let verdict = answer(r, &shot, conf, pass).await;
    // What the cache has to do with it ends here.
    r.ctx.cache = None;
    verdict
}

async fn answer(r: &mut Request, shot: &Shot, conf: &Conf, pass: &Pass) -> Verdict {
    if !r.attempts.all.is_empty() {
        r.attempts.all.push(crate::upstream::Attempt { gap: true, ..Default::default() });
    }
    r.attempts.scheme = "http://";
    let target = match &pass.fixed {
        Some(url) => {
            let id = *pass.group.get().expect("a url without variables has its group since the configuration was read");
            r.ctx.proxy.host = Some(r.text(url.host.as_bytes()));
            r.ctx.proxy.port = Some(r.text(url.port.as_bytes()));
            Target {
                group: shot.groups[id.0 as usize].clone(),
                uri: Cow::Borrowed(&url.uri),
                whole: false,
                secure: url.secure,
            }
        }
        None => match dynamic(r, pass).await {
            Ok(t) => t,
            Err(v) => return v,
        },
    };
    if target.secure {
        r.attempts.scheme = "https://";
    }
    let body = match request_body(r, conf).await {
        Ok(b) => b,
        Err(v) => return v,
    };
    if conf.cache.is_on()
        && let Some(verdict) = proxy_cache::look(r, conf, pass, &target).await
    {
        return verdict;
    }
    let (head, is_head) = match build_head(r, conf, pass, &target) {
        Ok(h) => h,
        Err(v) => return v,
    };
    let local = match &*conf.upstream.bind {
        Some(bind) => {
            let text = bind.address.eval(r);
            let local = parse_local(r.get(text));
            if local.is_none() && !r.get(text).is_empty() {
                log_error!(r, Error, "invalid local address \"{}\"", String::from_utf8_lossy(r.get(text)));
            }
            local
        }
        None => None,
    };
    let keepalive = target.group.keepalive.connections.is_some() && local.is_none();
    let secure = match secure(r, conf, &target) {
        Ok(s) => s,
        Err(v) => return v,
    };
    let job = Job { group: target.group, head, body, is_head, keepalive, local, secure, fastcgi: None };
    let verdict = match retry::find_answer(r, &job, &conf.upstream).await {
        Ok(answer) => pass_on(r, conf, &job, answer).await,
        Err(v) if r.ctx.cache.is_some() => proxy_cache::failed(r, conf, v),
        Err(v) => v,
    };
    r.scratch = job.head;
    verdict
}

/// What the connection must be for a pass to https.
fn secure(r: &mut Request, conf: &Conf, target: &Target<'_>) -> Result<Option<Box<Secure>>, Verdict> {
    let Some(ssl) = conf.ready.ssl.as_ref().filter(|_| target.secure) else { return Ok(None) };
    let host = r.ctx.proxy.host.map_or(Vec::new(), |h| r.get(h).to_vec());
    let secure = ssl.secure(r, &host).map_err(|text| {
        log_error!(r, Error, "{text}");
        Verdict::Status(500)
    });
    secure.map(|s| Some(Box::new(s)))
}

/// `proxy_pass` with variables.
async fn dynamic(r: &mut Request, pass: &Pass) -> Result<Target<'static>, Verdict> {
    let text = pass.url.eval(r);
    let url = match parse_url(r.get(text)) {
        Ok(u) => u,
        Err(e) => {
            log_error!(r, Error, "{e}");
            return Err(Verdict::Status(500));
        }
    };
    r.ctx.proxy.host = Some(r.text(url.host.as_bytes()));
    r.ctx.proxy.port = Some(r.text(url.port.as_bytes()));
    let shot = r.shot.clone();
    let whole = !url.uri.is_empty();
    if let Some(group) = shot.groups.iter().find(|g| *g.name == *url.target) {
        return Ok(Target { group: group.clone(), uri: Cow::Owned(url.uri), whole, secure: url.secure });
    }
    let addresses = crate::upstream::names::addresses(r, &url.target, url.default_port()).await?;
    let group = Group::for_one_request(&url.target, addresses);
    Ok(Target { group: Arc::new(group), uri: Cow::Owned(url.uri), whole, secure: url.secure })
}

/// Reads the client's body, or leaves it to be streamed.
pub(super) async fn request_body(r: &mut Request, conf: &Conf) -> Result<JobBody, Verdict> {
    if r.is_main() && r.body.stored.is_none() {
        body::confirm_expectation(r);
    }
    let ctx = &mut r.ctx.proxy;
    (ctx.body_length, ctx.chunked) = (r.headers_in.content_length, false);
    let wanted = *conf.upstream.pass_request_body && conf.set_body.is_none();
    let streamable = *conf.http_version >= Version::HTTP11 || !r.headers_in.chunked;
    if !*conf.upstream.request_buffering && wanted && streamable && r.is_main() && r.body.stored.is_none() {
        if !r.body.is_present() {
            return Ok(JobBody::None);
        }
        r.body.streamed = true;
        let chunked = r.headers_in.chunked;
        r.ctx.proxy.chunked = chunked;
        let mut first = Vec::new();
        let complete = body::take_preread(r, &mut first).map_err(Verdict::from)?;
        return Ok(JobBody::Stream { chunked, first, complete });
    }
    if !r.is_main() && r.body.stored.is_none() {
        r.ctx.proxy.body_length = None;
        return Ok(JobBody::None);
    }
    if r.body.stored.is_none() && !r.body.is_present() {
        return Ok(JobBody::None);
    }
    let stored = body::read_all(r).await.map_err(Verdict::from)?;
    if r.headers_in.chunked {
        r.headers_in.content_length = Some(stored.len);
    }
    r.ctx.proxy.body_length = r.headers_in.content_length;
    Ok(if wanted { JobBody::Stored(stored) } else { JobBody::None })
}

/// The request's head (`ngx_http_proxy_create_request`). Also whether it is a HEAD.
fn build_head(r: &mut Request, conf: &Conf, pass: &Pass, target: &Target<'_>) -> Result<(Vec<u8>, bool), Verdict> {
    // The request's own room: what needs it meanwhile makes its own.
    let mut out = std::mem::take(&mut r.scratch);
    out.clear();
    out.reserve(HEAD_ROOM);
    let cacheable = r.ctx.cache.as_ref().is_some_and(|c| c.cacheable);
    let method = match &*conf.method {
        _ if r.method == Method::Head && r.ctx.cache.is_some() && *conf.cache.convert_head => Text::from("GET"),
        own if own.is_empty() => r.method_name,
        own => own.eval(r),
    };
    let is_head = r.get(method).eq_ignore_ascii_case(b"HEAD");
    out.extend_from_slice(r.get(method));
    out.push(b' ');
    let uri_start = out.len();
    write_uri(r, pass, target, &mut out);
    if out.len() == uri_start {
        log_error!(r, Error, "zero length URI to proxy");
        return Err(Verdict::Status(500));
    }
    let uri = r.text(&out[uri_start..]);
    r.attempts.uri = Some(uri);
    let own_body = conf.set_body.as_ref().map(|b| b.eval(r));
    if let Some(b) = own_body {
        r.ctx.proxy.body_length = Some(r.get(b).len() as u64);
    }
    let v11 = *conf.http_version >= Version::HTTP11;
    out.extend_from_slice(if v11 { b" HTTP/1.1\r\n" } else { b" HTTP/1.0\r\n" });
    let ready = &conf.ready;
    let mut host = ready.host.as_ref().map(|h| h.eval(r));
    if host.is_none_or(|h| v11 && r.get(h).is_empty()) {
        host = r.ctx.proxy.host;
    }
    if let Some(host) = host.filter(|h| !r.get(*h).is_empty()) {
        write_line(&mut out, b"Host", r.get(host));
    }
    for (name, value) in &ready.headers {
        let value = value.eval(r);
        if !r.get(value).is_empty() {
            write_line(&mut out, name, r.get(value));
        }
    }
    if let Some(n) = r.ctx.proxy.body_length.filter(|_| !ready.own_length) {
        out.extend_from_slice(b"Content-Length: ");
        crate::request::respond::write_decimal(n, &mut out);
        out.extend_from_slice(b"\r\n");
    }
    if r.ctx.proxy.chunked && !ready.own_coding {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if cacheable {
        proxy_cache::write_conditions(r, &ready.replaced, &mut out);
    }
    if *conf.upstream.pass_request_headers {
        pass_headers(r, ready, cacheable, &mut out);
    }
    out.extend_from_slice(b"\r\n");
    if let Some(b) = own_body {
        out.extend_from_slice(r.get(b));
    }
    Ok((out, is_head))
}

fn pass_headers(r: &Request, ready: &Ready, cacheable: bool, out: &mut Vec<u8>) {
    for line in r.headers_in.lines() {
        if matches!(
            line.known,
            K::Host
                | K::Connection
                | K::ProxyConnection
                | K::ContentLength
                | K::TransferEncoding
                | K::Te
                | K::KeepAlive
                | K::Expect
                | K::Upgrade
        ) || (cacheable && proxy_cache::is_for_client(line.known))
        {
            continue;
        }
        let name = r.arena.span(line.name);
        debug_assert!(line.known != K::Other || !NOT_PASSED.iter().any(|n| n.eq_ignore_ascii_case(name)));
        if !ready.replaced.iter().any(|n| n.eq_ignore_ascii_case(name)) {
            write_line(out, name, r.arena.span(line.value));
        }
    }
}

pub(super) fn write_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Scheme and host as they stand in the key of a cache.
pub(super) fn write_origin(r: &Request, target: &Target<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(if target.secure { &b"https://"[..] } else { b"http://" });
    if target.group.name.starts_with("unix:") {
        out.extend_from_slice(target.group.name.as_bytes());
        out.push(b':');
    } else if let Some(host) = r.ctx.proxy.host {
        out.extend_from_slice(r.get(host));
    }
}

pub(super) fn write_uri(r: &Request, pass: &Pass, target: &Target<'_>, out: &mut Vec<u8>) {
    if target.whole {
        out.extend_from_slice(&target.uri);
        return;
    }
    if target.uri.is_empty() && r.valid_target {
        let raw = r.get(r.target);
        if raw.first() == Some(&b'?') {
            out.push(b'/');
        }
        out.extend_from_slice(raw);
        return;
    }
    let uri = r.get(r.uri);
    let mut skip = 0;
    if r.valid_location && !target.uri.is_empty() {
        skip = pass.location.len().min(uri.len());
    }
    if r.valid_location {
        out.extend_from_slice(&target.uri);
    }
    if r.headers_in.head.quoted || r.internal || !r.plain_uri {
        escape_uri(&uri[skip..], Escape::Uri, out);
    } else {
        out.extend_from_slice(&uri[skip..]);
    }
    if !r.get(r.args).is_empty() {
        out.push(b'?');
        out.extend_from_slice(r.get(r.args));
    }
}

/// What becomes of an answer (`ngx_http_upstream_process_headers` and on).
pub(super) async fn pass_on(r: &mut Request, conf: &Conf, job: &Job, answer: Answer) -> Verdict {
    let status = r.attempts.head.status;
    let http09 = r.attempts.head.version < Version::HTTP10;
    r.attempts.current().status = if http09 { 200 } else { status };
    let keep = keeps_connection(r);
    let length = content_length(r);
    if r.ctx.cache.is_some()
        && let Some(entry) = proxy_cache::instead(r, conf, status)
    {
        done_early(r, job, answer, keep, length);
        return proxy_cache::resend(r, conf, &entry);
    }
    if status >= 300
        && let Some(verdict) = intercept(r, conf, status)
    {
        if let Some(caching) = &mut r.ctx.cache {
            caching.note_error(&conf.cache, status);
        }
        done_early(r, job, answer, keep, length);
        return verdict;
    }
    accel_limit_rate(r, conf);
    if let Some(verdict) = accel_redirect(r, conf) {
        done_early(r, job, answer, keep, length);
        return verdict;
    }
    let chunked = r.attempts.head.header(K::TransferEncoding).is_some();
    let cacheable = r.ctx.cache.as_ref().is_some_and(|c| c.cacheable);
    copy_headers(r, conf, length.filter(|_| !chunked), if cacheable { Parts::One } else { Parts::AsSaid });
    r.headers_out.status = if http09 { 200 } else { status };
    if !http09 {
        let base = r.attempts.head_base;
        let line = r.attempts.head.status_line;
        r.headers_out.status_line = (line.start < line.end).then(|| relay::text_of(line, base));
    }
    if status == 101 && r.headers_in.find(K::Upgrade).is_some() {
        r.keepalive = false;
        if let Err(v) = r.send_header() {
            return v;
        }
        r.ctx.cache = None;
        return relay::upgrade(r, job, &conf.upstream, answer).await;
    }
    let buffering = accel_buffering(r, conf);
    r.unbuffered = !buffering;
    accel_charset(r, conf);
    let rate = super::core::size_of(r, &conf.upstream.limit_rate);
    open_store(r, conf);
    if *conf.upstream.force_ranges {
        r.allow_ranges = true;
        r.single_range = true;
    }
    // The peer has judged the client's conditions.
    r.disable_not_modified = !cacheable;
    if let Err(v) = r.send_header() {
        return v;
    }
    if r.ctx.cache.is_some() {
        caching::decide(r, &conf.cache, &conf.upstream, buffering.then_some(status));
    }
    let wanted = r.ctx.store.is_some() || r.ctx.cache.is_some();
    if r.header_only && !job.is_head && !matches!(status, 204 | 304) && !wanted {
        // The client wants no body: what the peer sends of it is not waited for.
        r.response_done = true;
        done_early(r, job, answer, keep, length);
        return Verdict::Answered;
    }
    let way = relay::Way {
        buffering,
        rate,
        keep,
        length: length.filter(|_| !chunked),
        trailers: *conf.upstream.pass_trailers,
    };
    relay::body(r, job, &conf.upstream, answer, way).await
}

/// The answer's body is not wanted; its connection is kept if there is none.
fn done_early(r: &mut Request, job: &Job, answer: Answer, keep: bool, length: Option<u64>) {
    let empty = crate::upstream::exchange::is_bodiless(&r.attempts.head, job.is_head)
        || (length == Some(0) && r.attempts.head.header(K::TransferEncoding).is_none());
    let ms = crate::worker::clock::monotonic_ms() - answer.started_ms;
    r.attempts.current().response_ms = Some(ms);
    crate::upstream::choose::succeeded(&answer.chosen, r.attempts.current());
    let clean = answer.at == answer.input.len() && answer.request_sent;
    crate::upstream::exchange::release(job, answer, keep && empty && clean);
}

fn keeps_connection(r: &Request) -> bool {
    let head = &r.attempts.head;
    let close = head.headers.iter().any(|h| {
        h.known == K::Connection
            && wire::http1::values::contains_ignoring_case(
                r.get(relay::text_of(h.value, r.attempts.head_base)),
                b"close",
            )
    });
    head.version >= Version::HTTP11 && !close && head.status != 101
}

pub(super) fn content_length(r: &Request) -> Option<u64> {
    let h = r.attempts.head.header(K::ContentLength)?;
    wire::http1::values::parse_content_length(r.get(relay::text_of(h.value, r.attempts.head_base)))
}

/// `proxy_intercept_errors`: an `error_page` of the location stands in for the answer.
fn intercept(r: &mut Request, conf: &Conf, status: u16) -> Option<Verdict> {
    let shot = r.shot.clone();
    let core = &shot.location(r.location).conf.core;
    if !*conf.upstream.intercept_errors || r.error_page {
        return None;
    }
    core.error_pages.iter().any(|p| p.status == status).then(|| {
        if status == 401 {
            copy_known(r, K::WwwAuthenticate, "WWW-Authenticate");
        }
        Verdict::Status(status)
    })
}

fn copy_known(r: &mut Request, known: K, name: &'static str) {
    let base = r.attempts.head_base;
    for i in 0..r.attempts.head.headers.len() {
        let h = r.attempts.head.headers[i];
        if h.known == known {
            r.headers_out.add(known, name, relay::text_of(h.value, base));
        }
    }
}

/// `X-Accel-Redirect`
pub(super) fn accel_redirect(r: &mut Request, conf: &Conf) -> Option<Verdict> {
    if *conf.upstream.ignore_headers & ignore::REDIRECT != 0 {
        return None;
    }
    let base = r.attempts.head_base;
    let line = *r.attempts.head.header(K::XAccelRedirect)?;
    let to = relay::text_of(line.value, base);
    // Only these of the answer's headers survive the redirect.
    for i in 0..r.attempts.head.headers.len() {
        let h = r.attempts.head.headers[i];
        let value = relay::text_of(h.value, base);
        match h.known {
            K::ContentType => r.headers_out.content_type = Some(value),
            K::SetCookie | K::ContentDisposition | K::CacheControl | K::Expires | K::AcceptRanges => {
                let name = relay::text_of(h.name, base);
                r.headers_out.lines.push(HeaderOut { name, value, known: h.known });
            }
            _ => {}
        }
    }
    r.error_status = 0;
    if r.get(to).first() == Some(&b'@') {
        let name = r.get(to)[1..].to_vec();
        return Some(finish::named_location(r, &name));
    }
    let mut path = Vec::new();
    let raw = r.get(to).to_vec();
    let Ok(parts) = wire::http1::target::parse_unsafe_uri(&raw, &mut path) else {
        log_error!(r, Error, "unsafe URI \"{}\" was detected", String::from_utf8_lossy(&raw));
        return Some(Verdict::Status(404));
    };
    let uri = r.text(&path[parts.path.range()]);
    let args = parts.args.map_or(Text::EMPTY, |a| r.text(&raw[a.range()]));
    if r.method != Method::Head {
        r.method = Method::Get;
        r.method_name = Text::from("GET");
    }
    Some(finish::internal_redirect(r, uri, args))
}

/// `X-Accel-Limit-Rate`: holds for this answer, and for the one it redirects to.
pub(super) fn accel_limit_rate(r: &mut Request, conf: &Conf) {
    let base = r.attempts.head_base;
    if *conf.upstream.ignore_headers & ignore::LIMIT_RATE == 0
        && let Some(h) = r.attempts.head.header(K::XAccelLimitRate)
    {
        let text = relay::text_of(h.value, base);
        r.limit_rate = match r.get(text) {
            b"off" => Some(0),
            digits => value::number(digits).or(r.limit_rate),
        };
    }
}

fn accel_buffering(r: &mut Request, conf: &Conf) -> bool {
    let base = r.attempts.head_base;
    if *conf.upstream.ignore_headers & ignore::BUFFERING == 0
        && let Some(h) = r.attempts.head.header(K::XAccelBuffering)
    {
        let text = r.get(relay::text_of(h.value, base));
        if text.eq_ignore_ascii_case(b"no") {
            return false;
        }
        if text.eq_ignore_ascii_case(b"yes") {
            return true;
        }
    }
    *conf.upstream.buffering
}

/// `X-Accel-Charset`
pub(super) fn accel_charset(r: &mut Request, conf: &Conf) {
    if *conf.upstream.ignore_headers & ignore::CHARSET == 0
        && let Some(h) = r.attempts.head.header(K::XAccelCharset)
    {
        r.headers_out.override_charset = Some(relay::text_of(h.value, r.attempts.head_base));
    }
}

fn is_hidden(conf: &Conf, name: &[u8], known: K) -> bool {
    let ready = &conf.ready;
    known.bit() & ready.hidden != 0
        || (known == K::Other && ready.hidden_others.iter().any(|n| n.eq_ignore_ascii_case(name)))
}

/// What becomes of `Accept-Ranges`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// It is passed on: parts are the upstream's business.
    AsSaid,
    /// Parts are cut here, out of a body that comes in pieces: one at a time.
    One,
    /// Parts are cut here.
    Any,
}

/// Copies an answer's headers into the client's.
pub(super) fn copy_headers(r: &mut Request, conf: &Conf, length: Option<u64>, parts: Parts) {
    let base = r.attempts.head_base;
    r.headers_out.content_length = length;
    for i in 0..r.attempts.head.headers.len() {
        let h = r.attempts.head.headers[i];
        let (name, value) = (relay::text_of(h.name, base), relay::text_of(h.value, base));
        if is_hidden(conf, r.get(name), h.known) {
            continue;
        }
        match h.known {
            K::ContentLength | K::Connection | K::KeepAlive | K::TransferEncoding => {}
            K::ContentType => set_content_type(r, value),
            K::LastModified => {
                r.headers_out.last_modified = wire::date::parse_http(r.get(value));
                if r.headers_out.last_modified.is_none() {
                    r.headers_out.lines.push(HeaderOut { name, value, known: K::Other });
                }
            }
            K::Location => {
                let value = proxy_rewrite::apply(r, &conf.ready.redirects, value).unwrap_or(value);
                r.headers_out.lines.push(HeaderOut { name, value, known: K::Location });
            }
            K::Refresh => {
                let value = proxy_rewrite::refresh(r, &conf.ready.redirects, value);
                r.headers_out.lines.push(HeaderOut { name, value, known: K::Refresh });
            }
            K::SetCookie => {
                let value = proxy_rewrite::set_cookie(r, conf, value);
                r.headers_out.lines.push(HeaderOut { name, value, known: K::SetCookie });
            }
            K::Upgrade if r.version >= Version::HTTP20 => {}
            K::AcceptRanges if *conf.upstream.force_ranges => {}
            K::AcceptRanges if parts != Parts::AsSaid => {
                r.allow_ranges = true;
                r.single_range = parts == Parts::One;
            }
            known => r.headers_out.lines.push(HeaderOut { name, value, known }),
        }
    }
    // What the upstream is trusted with and does not send is not made up.
    for (name, known) in [("Date", K::Date), ("Server", K::Server)] {
        let passed = || conf.upstream.pass_headers.iter().any(|n| name.as_bytes().eq_ignore_ascii_case(n));
        if !conf.upstream.pass_headers.is_empty() && !r.headers_out.has(known) && passed() {
            r.headers_out.add(known, name, Text::EMPTY);
        }
    }
}

/// `text/html; charset=x` is taken apart as filters want it.
fn set_content_type(r: &mut Request, value: Text) {
    let bytes = r.get(value);
    let Some(at) = memchr::memchr(b';', bytes) else {
        r.headers_out.content_type = Some(value);
        return;
    };
    let rest = bytes[at + 1..].trim_ascii_start();
    let charset = rest.get(..8).filter(|p| p.eq_ignore_ascii_case(b"charset=")).map(|_| &rest[8..]);
    match charset {
        Some(c) => {
            let c = c.strip_prefix(b"\"").unwrap_or(c);
            let c = c.strip_suffix(b"\"").unwrap_or(c).to_vec();
            let kind = bytes[..at].to_vec();
            r.headers_out.content_type = Some(r.text(&kind));
            r.headers_out.charset = Some(r.text(&c));
        }
        None => r.headers_out.content_type = Some(value),
    }
}

fn open_store(r: &mut Request, conf: &Conf) {
    let path = match &*conf.upstream.store {
        Store::Off => return,
        Store::On => super::core::path_of(r),
        Store::Path(p) => {
            let text = p.eval(r);
            r.get(text).to_vec()
        }
    };
    if r.attempts.head.status != 200 {
        return;
    }
    r.ctx.store = crate::upstream::store::Store::open(&conf.upstream.temp_path, path, *conf.upstream.store_access);
}

fn add_x_forwarded_for(r: &mut Request) -> Option<Text> {
    let mut out = Vec::new();
    for line in r.headers_in.lines().iter().filter(|l| l.known == K::XForwardedFor) {
        out.extend_from_slice(r.arena.span(line.value));
        out.extend_from_slice(b", ");
    }
    r.client.remote.borrow().write_host(&mut out);
    Some(r.text(&out))
}

fn add_via(r: &mut Request) -> Option<Text> {
    let mut out = Vec::new();
    for line in r.headers_in.lines().iter().filter(|l| l.known == K::Via) {
        out.extend_from_slice(r.arena.span(line.value));
        out.extend_from_slice(b", ");
    }
    let version = if r.version >= Version::HTTP11 { "1.1" } else { "1.0" };
    out.extend_from_slice(format!("{version} ironweir").as_bytes());
    Some(r.text(&out))
}
