//! `fastcgi_pass` and its companions (nginx's `ngx_http_fastcgi_module`): what is sent to an application. Its answer goes
//! the way of `proxy_pass`'s answers; records are taken apart in `upstream::fastcgi`.

use super::cgi::{self, Pass, Sent};
use super::proxy;
use crate::cache::settings;
use crate::config::pattern::Pattern;
use crate::config::setters;
use crate::config::variables::Builtin;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Request, Text};
use crate::upstream::cgi::Kind;
use crate::upstream::conf::UpstreamConf;
use crate::upstream::fastcgi::SCHEME;
use crate::upstream::job::{FastCgi, JobBody, Protocol};
use crate::upstream::request_body::{self, Wanted};
use crate::upstream::settings::next;
use crate::{buffering_directives, cache_directives, header_directives, upstream_directives};
use conf::{Node, Problem};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("fastcgi_pass", fastcgi_pass),
    http("fastcgi_param", |s, n| cgi::param(s.build, &mut s.level.conf.fastcgi.own.params, n)),
    http("fastcgi_index", |s, n| setters::value(&mut own(s).index, n, n.args[0].text.as_slice().into())),
    http("fastcgi_split_path_info", split_path_info),
    http("fastcgi_keep_conn", |s, n| setters::flag(&mut own(s).keep_conn, n)),
    http("fastcgi_catch_stderr", |s, n| {
        Arc::make_mut(own(s).catch_stderr.entry()).push(n.args[0].text.as_slice().into());
        Ok(())
    }),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] =
    upstream_directives!("fastcgi", fastcgi, &next::words_but(next::HTTP_502 | next::HTTP_504));

/// Those of modules whose peers send headers.
pub const HEADER_DIRECTIVES: &[Directive] = header_directives!("fastcgi", fastcgi);

/// Those of modules that buffer.
pub const BUFFERING_DIRECTIVES: &[Directive] = buffering_directives!("fastcgi", fastcgi);

/// The directives of the cache.
pub const CACHE_DIRECTIVES: &[Directive] = cache_directives!("fastcgi", fastcgi);

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "fastcgi_script_name", evaluate: script_name, volatile: true, assign: None },
    Builtin { name: "fastcgi_path_info", evaluate: |r| Some(split(r).1), volatile: true, assign: None },
];

/// The module's name in the cache: the prefix of its directives.
const OWNER: &str = "fastcgi";

crate::merged_values! {
    /// Values that `proxy_pass` does not have.
    pub struct Own {
        /// `fastcgi_param`, inherited only where none is set.
        params: Arc<Vec<cgi::Param>> = Arc::default(),
        /// `fastcgi_index`
        index: Arc<[u8]> = Arc::from(&b""[..]),
        /// `fastcgi_split_path_info`
        split: Option<Pattern> = None,
        /// Connections stay open.
        keep_conn: bool = false,
        /// Words on the error stream that make an answer a bad one.
        catch_stderr: Arc<Vec<Box<[u8]>>> = Arc::default(),
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

fn own<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Own {
    &mut scope.level.conf.fastcgi.own
}

fn fastcgi_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let before = scope.level.conf.fastcgi.pass.is_some();
    scope.level.conf.fastcgi.pass = Pass::read(scope, node, before)?;
    scope.level.conf.core.handler = Some(Content::Later(run));
    Ok(())
}

fn split_path_info(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let pattern = Pattern::compile(scope.build, &word.text, false).map_err(|t| node.problem(t))?;
    if pattern.groups() != 2 {
        return Err(node.problem(format!("pattern \"{}\" must have 2 captures", word.as_str())));
    }
    own(scope).split.force(Some(pattern));
    Ok(())
}

/// Finds the group, inherits into `if` and `limit_except`, and makes the lists (`ngx_http_fastcgi_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    proxy::inherit_pass(level, &parent.fastcgi.pass, |c| &mut c.fastcgi.pass, Content::Later(run));
    let conf = &mut *level.conf.fastcgi;
    cgi::finish_level(build, &mut conf.upstream, OWNER);
    let Some(pass) = &conf.pass else { return };
    pass.find(build, |place| place);
    conf.ready = cgi::make_ready(build, &mut conf.upstream, &conf.own.params, OWNER);
}

/// `fastcgi_split_path_info`: the script's name and what follows it.
fn split(r: &mut Request) -> (Text, Text) {
    let snapshot = r.snapshot.clone();
    let uri = r.head.uri;
    let Some(pattern) = &*snapshot.location(r.location).conf.fastcgi.own.split else { return (uri, Text::EMPTY) };
    // The request's own captures are not to be lost.
    let before = std::mem::take(&mut r.captures);
    // One that gives up is a fault: nothing is sent.
    let found = pattern.exec(r, uri).unwrap_or(false).then(|| (r.capture(1), r.capture(2)));
    r.captures = before;
    match found {
        Some((name, info)) => (name.unwrap_or(Text::EMPTY), info.unwrap_or(Text::EMPTY)),
        None => (uri, Text::EMPTY),
    }
}

fn script_name(r: &mut Request) -> Option<Text> {
    let (name, _) = split(r);
    if !r.get(name).ends_with(b"/") {
        return Some(name);
    }
    let index = r.conf().fastcgi.own.index.clone();
    let whole = [r.get(name), &index].concat();
    Some(r.text(&whole))
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.fastcgi;
    let Some(pass) = conf.pass.as_deref() else { return Err(Verdict::Status(500)) };
    cgi::begin(r, SCHEME, Kind::Fields);
    let place = pass.place(r);
    let group = pass.group(r, &place).await?;
    // Bodies of unknown length can be streamed: records need no announcement.
    let wanted = Wanted { passed: *conf.upstream.pass_request_body, of_any_length: true };
    let body = request_body::take(r, &conf.upstream, wanted).await?.body;
    if let Some(verdict) = cgi::look(r, &conf.upstream, OWNER).await {
        return Ok(verdict);
    }
    let keep = *conf.own.keep_conn;
    let (head, body) = records(r, conf, keep, body);
    let protocol = Protocol::FastCgi(FastCgi { keep, caught: (*conf.own.catch_stderr).clone() });
    Ok(cgi::ask(r, &conf.upstream, group, Sent { head, body, protocol, keep }).await)
}

/// The records of the request. A body in memory is among them; another is left to be sent after them.
fn records(r: &mut Request, conf: &Conf, keep: bool, body: JobBody) -> (Vec<u8>, JobBody) {
    let mut content = Vec::new();
    let pass_headers = *conf.upstream.pass_request_headers;
    conf.ready.each(r, pass_headers, |name, value| wire::fastcgi::param(name, value, &mut content));
    let mut out = Vec::new();
    wire::fastcgi::begin(keep, &mut out);
    wire::fastcgi::params(&content, &mut out);
    let left = match body {
        JobBody::Stored(stored) if stored.file.is_none() => {
            wire::fastcgi::stdin(&stored.memory, &mut out);
            JobBody::None
        }
        left => left,
    };
    if matches!(left, JobBody::None) {
        wire::fastcgi::end_of_stdin(&mut out);
    }
    (out, left)
}
