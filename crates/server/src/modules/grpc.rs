//! `grpc_pass` and its companions (nginx's `ngx_http_grpc_module`): `proxy_pass` over HTTP/2 with values of its own. Bodies are
//! streamed both ways, nothing is buffered, trailers pass. How connections are shared: `upstream::http2`.

use super::proxy::{self, Target, set_header};
use super::upstream_block::group_for;
use crate::config::complex::Complex;
use crate::config::setters::duplicate;
use crate::config::setting::Setting;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Request, Version};
use crate::upstream::cgi::Kind;
use crate::upstream::group::GroupId;
use crate::upstream::names;
use crate::upstream::settings::next;
use crate::{header_directives, upstream_directives};
use conf::{Node, Problem};
use std::sync::{Arc, OnceLock};

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("grpc_pass", grpc_pass),
    http("grpc_set_header", |s, n| set_header(s.build, &mut s.level.conf.grpc.proxy, n)),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] = upstream_directives!("grpc", grpc.proxy, &next::words_but(next::UPDATING));

/// Those of modules whose peers send headers.
pub const HEADER_DIRECTIVES: &[Directive] = header_directives!("grpc", grpc.proxy);

/// The prefix of the module's directives.
const OWNER: &str = "grpc";

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// A request is made, and passed on, as by `proxy_pass`.
    pub proxy: proxy::Conf,
    pass: Option<Arc<Pass>>,
}

crate::inherited!(Conf, |conf| conf.pass.is_none());

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.proxy.merge(&parent.proxy);
    }
}

/// Where `grpc_pass` leads.
#[derive(Debug)]
struct Pass {
    to: Complex,
    /// Without variables: what it comes to.
    fixed: Option<Url>,
    node: Node,
    /// The group of it, found when levels are merged.
    group: OnceLock<GroupId>,
}

/// `[grpc[s]://]host:port`, a group's name, `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Url {
    target: String,
    secure: bool,
}

impl Url {
    fn parse(text: &[u8]) -> Url {
        let after = |scheme: &str| {
            let start = text.get(..scheme.len())?;
            start.eq_ignore_ascii_case(scheme.as_bytes()).then(|| &text[scheme.len()..])
        };
        let (rest, secure) = match (after("grpc://"), after("grpcs://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => (text, false),
        };
        Url { target: String::from_utf8_lossy(rest).into_owned(), secure }
    }

    /// What `:authority` says.
    fn host(&self) -> &str {
        if self.target.starts_with("unix:") { "localhost" } else { &self.target }
    }
}

fn grpc_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.grpc.pass.is_some() {
        return Err(duplicate(node));
    }
    let to = Complex::compile(scope.build, &node.args[0])?;
    scope.level.conf.core.auto_redirect = scope.level.name.ends_with(b"/");
    scope.level.conf.core.handler = Some(Content::Later(run));
    let fixed = to.as_fixed().map(Url::parse);
    scope.level.conf.grpc.pass = Some(Arc::new(Pass { to, fixed, node: node.clone(), group: OnceLock::new() }));
    Ok(())
}

/// Finds the group, inherits into `if` and `limit_except`, and makes the lists (`ngx_http_grpc_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    proxy::inherit_pass(level, &parent.grpc.pass, |c| &mut c.grpc.pass, Content::Later(run));
    let conf = &mut level.conf.grpc;
    let Some(pass) = conf.pass.clone() else { return };
    if let Some(url) = &pass.fixed
        && pass.group.get().is_none()
    {
        match group_for(build, &url.target, 0) {
            Ok(id) => {
                let _ = pass.group.set(id);
            }
            Err(e) => build.problems.push(pass.node.problem(e)),
        }
    }
    let conf = &mut conf.proxy;
    conf.http_version = Setting::unset(Version::HTTP20);
    conf.upstream.request_buffering = Setting::unset(false);
    conf.upstream.buffering = Setting::unset(false);
    conf.upstream.pass_trailers = Setting::unset(true);
    let secure = pass.fixed.as_ref().is_none_or(|url| url.secure);
    let ssl = if secure { proxy::ssl::finish(build, &conf.upstream.ssl, OWNER, &[b"h2"]) } else { None };
    conf.for_grpc(ssl);
}

impl Conf {
    /// What a health check of the location needs; see [`proxy::Conf::checked`].
    pub(super) fn checked(&self) -> Option<proxy::Checked<'_>> {
        let pass = self.pass.as_deref()?;
        let url = pass.fixed.as_ref()?;
        Some((*pass.group.get()?, &url.target, self.proxy.encryption(url.secure)))
    }
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.grpc;
    let Some(pass) = conf.pass.as_deref() else { return Err(Verdict::Status(500)) };
    if !r.attempts.all.is_empty() {
        r.attempts.all.push(crate::upstream::Attempt { gap: true, ..Default::default() });
    }
    let url = match &pass.fixed {
        Some(url) => url.clone(),
        None => {
            let text = pass.to.eval(r);
            Url::parse(r.get(text))
        }
    };
    r.attempts.scheme = if url.secure { "grpcs://" } else { "grpc://" };
    (r.attempts.uri, r.attempts.head_kind) = (None, Kind::Http);
    let group = match pass.group.get() {
        Some(id) => snapshot.groups[id.0 as usize].clone(),
        None => names::group(r, &url.target).await?,
    };
    proxy::set_host(r, url.host());
    let body = proxy::request_body(r, &conf.proxy).await?;
    let target = Target::as_asked(group, url.secure);
    let built = proxy::build(r, &conf.proxy, b"", &target, &body)?;
    Ok(proxy::ask(r, &conf.proxy, target, built, body, None).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, target, secure, host) in [
            ("grpc://a:1", "a:1", false, "a:1"),
            ("GRPCS://a:1", "a:1", true, "a:1"),
            ("group", "group", false, "group"),
            ("unix:/path", "unix:/path", false, "localhost"),
            ("grpcs://unix:/path", "unix:/path", true, "localhost"),
        ] {
            let url = Url::parse(text.as_bytes());
            assert_eq!((url.target.as_str(), url.secure, url.host()), (target, secure, host));
        }
    }
}
