//! `scgi_pass` and its companions (nginx's `ngx_http_scgi_module`): what is sent to an application. What it has in common with FastCGI
//! is in `cgi`.

use super::cgi::{self, Pass, Sent};
use super::proxy;
use crate::cache::settings;
use crate::config::{Build, ConfigLevel, Directive, Scope, http, setters};
use crate::log_error;
use crate::request::Request;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::upstream::cgi::Kind;
use crate::upstream::conf::UpstreamConf;
use crate::upstream::job::{JobBody, Protocol};
use crate::upstream::request_body::{self, Wanted};
use crate::upstream::settings::next;
use crate::{buffering_directives, cache_directives, header_directives, upstream_directives};
use conf::{Node, Problem};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("scgi_pass", scgi_pass),
    http("scgi_param", |s, n| cgi::param(s.build, &mut s.level.conf.scgi.own.params, n)),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] =
    upstream_directives!("scgi", scgi, &next::words_but(next::HTTP_502 | next::HTTP_504));

/// Those of modules whose peers send headers.
pub const HEADER_DIRECTIVES: &[Directive] = header_directives!("scgi", scgi);

/// Those of modules that buffer.
pub const BUFFERING_DIRECTIVES: &[Directive] = buffering_directives!("scgi", scgi);

/// The directives of the cache.
pub const CACHE_DIRECTIVES: &[Directive] = cache_directives!("scgi", scgi);

/// The prefix of the module's directives.
const OWNER: &str = "scgi";
/// How the error log names a peer that speaks SCGI.
const SCHEME: &str = "scgi://";

crate::merged_values! {
    /// Values that others do not have.
    pub struct Own {
        /// `scgi_param`, inherited only where none is set.
        params: Arc<Vec<cgi::Param>> = Arc::default(),
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    own: Own,
    /// What all modules with upstreams have.
    pub upstream: UpstreamConf,
    pass: Option<Arc<Pass>>,
    ready: cgi::Ready,
}

crate::inherited!(Conf, |conf| conf.pass.is_none());

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.own.merge(&parent.own);
        self.upstream.merge(&parent.upstream);
    }
}

fn scgi_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let before = scope.level.conf.scgi.pass.is_some();
    scope.level.conf.scgi.pass = Pass::read(scope, node, before)?;
    scope.level.conf.core.handler = Some(Content::Later(run));
    Ok(())
}

/// Finds the group, inherits into `if` and `limit_except`, and makes the lists (`ngx_http_scgi_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    proxy::inherit_pass(level, &parent.scgi.pass, |c| &mut c.scgi.pass, Content::Later(run));
    let conf = &mut *level.conf.scgi;
    cgi::finish_level(build, &mut conf.upstream, OWNER);
    let Some(pass) = &conf.pass else { return };
    pass.find(build, |place| place);
    conf.ready = cgi::make_ready(build, &mut conf.upstream, &conf.own.params, OWNER);
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.scgi;
    let Some(pass) = conf.pass.as_deref() else { return Err(Verdict::Status(500)) };
    cgi::begin(r, SCHEME, Kind::Either);
    let place = pass.place(r);
    let group = pass.group(r, &place).await?;
    // The length comes first, so it must be known.
    let wanted = Wanted { passed: *conf.upstream.pass_request_body, of_any_length: false };
    let request_body::RequestBody { body, length, .. } = request_body::take(r, &conf.upstream, wanted).await?;
    if let Some(verdict) = cgi::look(r, &conf.upstream, OWNER).await {
        return Ok(verdict);
    }
    let length = if matches!(body, JobBody::None) { 0 } else { length.unwrap_or(0) };
    let mut headers = wire::scgi::Headers::new(length);
    let mut cut = false;
    let pass_headers = *conf.upstream.pass_request_headers;
    conf.ready.each(r, pass_headers, |name, value| cut |= headers.add(name, value));
    if cut {
        log_error!(r, Warn, "a parameter with a NUL is not sent to the SCGI server");
    }
    let mut head = Vec::new();
    headers.write(&mut head);
    let sent = Sent { head, body, protocol: Protocol::Cgi(None), keep: false };
    Ok(cgi::ask(r, &conf.upstream, group, sent).await)
}
