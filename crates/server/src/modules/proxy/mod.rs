//! `proxy_pass`: what is sent to an HTTP upstream and what becomes of its answer (nginx's `ngx_http_proxy_module`). Here: the
//! values of a level, and the way of a request. The way to the peer is `upstream`'s.

pub mod cache;
mod directives;
mod request;
mod rewrite;
pub mod ssl;
mod url;

pub(super) use directives::set_header;
pub use directives::{BUFFERING_DIRECTIVES, COMMON_DIRECTIVES, DIRECTIVES, HEADER_DIRECTIVES};
use request::stored_body;
pub(super) use request::{Built, build, request_body};

use crate::config::complex::Complex;
use crate::config::variables::Builtin;
use crate::config::{Build, ConfigLevel, Matching};
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Content, Verdict};
use crate::request::{Request, Text, Version};
use crate::snapshot::{ThreadSnapshot, VariableId};
use crate::text;
use crate::tls::client::Secure;
use crate::upstream::cgi::Kind;
use crate::upstream::conf::UpstreamConf;
use crate::upstream::group::{Group, GroupId};
use crate::upstream::job::{Job, JobBody, Protocol, Remade, Remake};
use crate::upstream::rewrite::{CookieFlags, Rewrite, Rewrites};
use crate::upstream::{cached, pass_on, retry};
use crate::{merged_values, reads_as_settings};
use conf::{Contexts, Node};
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use url::{Url, parse_url};

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

merged_values! {
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
    pub upstream: UpstreamConf,
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

/// What a health check of a location needs: the group, the host's name, TLS if it is spoken.
pub(super) type Checked<'p> = (GroupId, &'p str, Option<Arc<crate::tls::client::Context>>);

/// Lists made once for a level.
#[derive(Debug, Default)]
struct Ready {
    /// `Host`, if set.
    host: Option<Complex>,
    /// `$proxy_host`, if the configuration names it: `Host` where none is set.
    host_variable: Option<VariableId>,
    /// Set headers, without `Host`.
    headers: Vec<(Arc<[u8]>, Complex)>,
    /// Lower-case names of set headers: the client's own are not passed.
    replaced: Vec<Box<[u8]>>,
    /// Content-Length and Transfer-Encoding are the configuration's business.
    own_length: bool,
    own_coding: bool,
    /// The client's wish for trailers is passed on (gRPC).
    passes_te: bool,
    /// TLS, where the pass may lead to it.
    ssl: Option<Arc<crate::tls::client::Context>>,
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
    }
}

reads_as_settings!(Conf);
crate::inherited!(Conf, |conf| conf.pass.is_none());

/// Finds the group, inherits into `if` and `limit_except`, and makes the lists (`ngx_http_proxy_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    inherit_pass(level, &parent.proxy.pass, |c| &mut c.proxy.pass, Content::Proxy);
    cache::finish_level(build, level);
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
    let rewrites = rewrites(conf, &pass);
    conf.upstream.set_answer_headers(&HIDDEN, rewrites);
    let mut ready = ready(conf);
    if pass.fixed.as_ref().is_none_or(|url| url.secure) {
        let alpn: &[&[u8]] = match *conf.http_version {
            Version::HTTP30 => &[wire::http3::ALPN],
            Version::HTTP20 => &[b"h2"],
            _ => &[],
        };
        ready.ssl = ssl::finish(build, &conf.upstream.ssl, "proxy", alpn);
    } else if *conf.http_version >= Version::HTTP30 {
        let text = "\"proxy_http_version 3\" needs \"https://\" in \"proxy_pass\"";
        build.problems.push(pass.node.problem(text.to_owned()));
    }
    ready.host_variable = build.variables.known("proxy_host");
    conf.ready = Arc::new(ready);
}

/// `if` and `limit_except` go where the level around them goes.
pub(super) fn inherit_pass<T: Clone>(
    level: &mut ConfigLevel,
    parent: &Option<T>,
    own: fn(&mut super::LocationConf) -> &mut Option<T>,
    handler: Content,
) {
    let nameless = matches!(level.matching, Matching::Nameless) && level.context != Contexts::SERVER;
    if parent.is_none() || !nameless {
        return;
    }
    let pass = own(&mut level.conf);
    if pass.is_some() {
        return;
    }
    pass.clone_from(parent);
    let limited = level.context.intersects(Contexts::LIMIT_EXCEPT);
    if limited && level.conf.core.handler.is_none() {
        level.conf.core.handler = Some(handler);
    }
}

/// What is done to headers of answers.
fn rewrites(conf: &Conf, pass: &Pass) -> Rewrites {
    let redirects = match &*conf.redirect {
        Some(list) => list
            .iter()
            .flat_map(|r| match r {
                Rewrite::Default => default_redirect(pass),
                other => Some(other.clone()),
            })
            .collect(),
        None => default_redirect(pass).into_iter().collect(),
    };
    Rewrites {
        redirects: Arc::new(redirects),
        cookie_domain: (*conf.cookie_domain).clone(),
        cookie_path: (*conf.cookie_path).clone(),
        cookie_flags: (*conf.cookie_flags).clone(),
    }
}

/// What is sent.
fn ready(conf: &Conf) -> Ready {
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
    ready
}

impl Conf {
    /// The pass leads to `http://`, whatever is asked for.
    pub(super) fn goes_in_plain(&self) -> bool {
        self.pass.as_deref().and_then(|pass| pass.fixed.as_ref()).is_some_and(|url| !url.secure)
    }

    /// What a health check of the location needs: the group, the host's name, and TLS if it is spoken. None without
    /// `proxy_pass`, or where that has variables.
    pub(super) fn checked(&self) -> Option<Checked<'_>> {
        let pass = self.pass.as_deref()?;
        let url = pass.fixed.as_ref()?;
        Some((*pass.group.get()?, &url.host, self.encryption(url.secure)))
    }

    /// TLS for a pass that is `secure`.
    pub(super) fn encryption(&self, secure: bool) -> Option<Arc<crate::tls::client::Context>> {
        self.ready.ssl.clone().filter(|_| secure)
    }

    /// Makes the values ready for gRPC. `ssl`: TLS, where the pass may lead to it.
    pub(super) fn for_grpc(&mut self, ssl: Option<Arc<crate::tls::client::Context>>) {
        self.upstream.set_answer_headers(&HIDDEN, Rewrites::default());
        let mut ready = ready(self);
        ready.passes_te = !ready.replaced.iter().any(|n| **n == *b"te");
        self.ready = Arc::new(Ready { ssl, ..ready });
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

/// What `:authority` says unless the configuration says otherwise.
pub(super) fn set_host(r: &mut Request, host: &str) {
    r.ctx.proxy.host = Some(r.text(host.as_bytes()));
}

impl Target<'_> {
    /// Where the request's own uri is asked for.
    pub(super) fn as_asked(group: Arc<Group>, secure: bool) -> Target<'static> {
        Target { group, uri: Cow::Borrowed(b""), whole: false, secure }
    }
}

/// The content handler.
pub async fn run(r: &mut Request) -> Verdict {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.proxy;
    let Some(pass) = conf.pass.as_deref() else {
        // Of another block of `if` than the one whose values hold.
        log_error!(r, Alert, "no upstream configuration");
        return Verdict::Status(500);
    };
    let verdict = answer(r, &snapshot, conf, pass).await;
    // What the cache has to do with it ends here.
    r.ctx.cache = None;
    verdict
}

async fn answer(r: &mut Request, snapshot: &ThreadSnapshot, conf: &Conf, pass: &Pass) -> Verdict {
    if !r.attempts.all.is_empty() {
        r.attempts.all.push(crate::upstream::Attempt { gap: true, ..Default::default() });
    }
    (r.attempts.scheme, r.attempts.head_kind) = ("http://", Kind::Http);
    let target = match &pass.fixed {
        Some(url) => {
            let id = *pass.group.get().expect("a url without variables has its group since the configuration was read");
            r.ctx.proxy.host = Some(r.text(url.host.as_bytes()));
            r.ctx.proxy.port = Some(r.text(url.port.as_bytes()));
            Target {
                group: snapshot.groups[id.0 as usize].clone(),
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
    if conf.upstream.cache.is_on()
        && let Some(verdict) = cache::look(r, conf, pass, &target).await
    {
        return verdict;
    }
    let built = match build(r, conf, &pass.location, &target, &body) {
        Ok(built) => built,
        Err(v) => return v,
    };
    let remake = target.group.balancer.is_some().then(|| remake(r, &target));
    ask(r, conf, target, built, body, remake).await
}

/// How the request is made anew, for programs that change the request between tries.
fn remake(r: &Request, target: &Target<'_>) -> Remake {
    let Target { group, uri, whole, secure } = target;
    let target = Target { group: group.clone(), uri: Cow::Owned(uri.to_vec()), whole: *whole, secure: *secure };
    let location = r.location;
    Rc::new(move |r| {
        let snapshot = r.snapshot.clone();
        let conf = &snapshot.location(location).conf.proxy;
        let name = conf.pass.as_deref().map_or(&[][..], |pass| &pass.location);
        let body = stored_body(r, conf);
        let sent = body.as_ref().unwrap_or(&JobBody::None);
        build(r, conf, name, &target, sent).map(|built| Remade { head: built.head, body })
    })
}

/// Asks the peers for what was built, and passes the answer on.
pub(super) async fn ask(
    r: &mut Request,
    conf: &Conf,
    target: Target<'_>,
    built: Built,
    body: JobBody,
    remake: Option<Remake>,
) -> Verdict {
    let local = conf.upstream.local_address(r);
    let keepalive = target.group.keepalive.connections.is_some() && local.is_none() && !built.is_uneven;
    let protocol = match secure(r, conf, &target) {
        Ok(Some(s)) if *conf.http_version >= Version::HTTP30 => Protocol::Http3(s),
        Ok(None) if *conf.http_version >= Version::HTTP30 => {
            log_error!(r, Error, "\"proxy_http_version 3\" needs \"https://\" in \"proxy_pass\"");
            return Verdict::Status(500);
        }
        Ok(s) if *conf.http_version >= Version::HTTP20 => Protocol::Http2(s),
        Ok(s) => Protocol::Http1(s),
        Err(v) => return v,
    };
    let Built { head, is_head, body: own, .. } = built;
    let body = own.unwrap_or(body);
    let mut job = Job { group: target.group, head, body, is_head, keepalive, local, protocol, remake };
    let verdict = match retry::find_answer(r, &mut job, &conf.upstream).await {
        Ok(answer) => pass_on::pass_on(r, &conf.upstream, &job, answer).await,
        Err(v) if r.ctx.cache.is_some() => cached::failed(r, &conf.upstream, v),
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
    let snapshot = r.snapshot.clone();
    let whole = !url.uri.is_empty();
    if let Some(group) = snapshot.groups.iter().find(|g| *g.name == *url.target) {
        return Ok(Target { group: group.clone(), uri: Cow::Owned(url.uri), whole, secure: url.secure });
    }
    let addresses = crate::upstream::names::addresses(r, &url.target, url.default_port()).await?;
    let group = Group::for_one_request(&url.target, addresses);
    Ok(Target { group: Arc::new(group), uri: Cow::Owned(url.uri), whole, secure: url.secure })
}

fn add_x_forwarded_for(r: &mut Request) -> Option<Text> {
    let mut out = Vec::new();
    for line in r.head.headers.lines().iter().filter(|l| l.known == K::XForwardedFor) {
        out.extend_from_slice(r.arena.span(line.value));
        out.extend_from_slice(b", ");
    }
    r.client.remote.borrow().write_host(&mut out);
    Some(r.text(&out))
}

fn add_via(r: &mut Request) -> Option<Text> {
    let mut out = Vec::new();
    for line in r.head.headers.lines().iter().filter(|l| l.known == K::Via) {
        out.extend_from_slice(r.arena.span(line.value));
        out.extend_from_slice(b", ");
    }
    let version = if r.head.version >= Version::HTTP11 { "1.1" } else { "1.0" };
    out.extend_from_slice(format!("{version} ironweir").as_bytes());
    Some(r.text(&out))
}
