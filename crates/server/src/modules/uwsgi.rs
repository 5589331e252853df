//! `uwsgi_pass` and its companions (nginx's `ngx_http_uwsgi_module`): what is sent to an application. What it has in common with
//! FastCGI is in `cgi`.

use super::cgi::{self, Pass};
use super::proxy;
use crate::cache::settings;
use crate::config::{Build, ConfigLevel, Directive, Scope, http, setters};
use crate::log_error;
use crate::request::Request;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::tls::client::Context;
use crate::upstream::cgi::Kind;
use crate::upstream::conf::UpstreamConf;
use crate::upstream::job::Protocol;
use crate::upstream::request_body::{self, Wanted};
use crate::upstream::settings::next;
use crate::{buffering_directives, cache_directives, header_directives, upstream_directives};
use conf::{Node, Problem, value};
use std::sync::Arc;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("uwsgi_pass", uwsgi_pass),
    http("uwsgi_param", |s, n| cgi::param(s.build, &mut s.level.conf.uwsgi.own.params, n)),
    http("uwsgi_modifier1", |s, n| {
        let modifier = modifier(n)?;
        setters::value(&mut s.level.conf.uwsgi.own.modifier1, n, modifier)
    }),
    http("uwsgi_modifier2", |s, n| {
        let modifier = modifier(n)?;
        setters::value(&mut s.level.conf.uwsgi.own.modifier2, n, modifier)
    }),
    http("uwsgi_string", |s, n| {
        setters::value(&mut s.level.conf.uwsgi.own.string, n, n.args[0].text.as_slice().into())
    }),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] =
    upstream_directives!("uwsgi", uwsgi, &next::words_but(next::HTTP_502 | next::HTTP_504));

/// Those of modules whose peers send headers.
pub const HEADER_DIRECTIVES: &[Directive] = header_directives!("uwsgi", uwsgi);

/// Those of modules that buffer.
pub const BUFFERING_DIRECTIVES: &[Directive] = buffering_directives!("uwsgi", uwsgi);

/// The directives of the cache.
pub const CACHE_DIRECTIVES: &[Directive] = cache_directives!("uwsgi", uwsgi);

/// The prefix of the module's directives.
const OWNER: &str = "uwsgi";
/// How the error log names a peer that speaks uwsgi, and one that speaks it over TLS.
const SCHEMES: [&str; 2] = ["uwsgi://", "suwsgi://"];

crate::merged_values! {
    /// Values that others do not have.
    pub struct Own {
        /// `uwsgi_param`, inherited only where none is set.
        params: Arc<Vec<cgi::Param>> = Arc::default(),
        /// `uwsgi_modifier1`
        modifier1: u8 = 0,
        /// `uwsgi_modifier2`
        modifier2: u8 = 0,
        /// `uwsgi_string`
        string: Arc<[u8]> = Arc::from(&b""[..]),
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
    /// TLS, where the pass may lead to it.
    tls: Option<Arc<Context>>,
}

crate::inherited!(Conf, |conf| conf.pass.is_none());

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.own.merge(&parent.own);
        self.upstream.merge(&parent.upstream);
    }
}

fn modifier(node: &Node) -> Result<u8, Problem> {
    let number = value::number(&node.args[0].text).ok_or_else(|| setters::invalid(node))?;
    u8::try_from(number).map_err(|_| node.problem("value must be less than or equal to 255".to_owned()))
}

fn uwsgi_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let before = scope.level.conf.uwsgi.pass.is_some();
    scope.level.conf.uwsgi.pass = Pass::read(scope, node, before)?;
    scope.level.conf.core.handler = Some(Content::Later(run));
    Ok(())
}

/// Whether a place is spoken to over TLS, and the place without its scheme.
fn scheme(place: &[u8]) -> (bool, &[u8]) {
    for (secure, scheme) in SCHEMES.into_iter().enumerate() {
        if place.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes())) {
            return (secure == 1, &place[scheme.len()..]);
        }
    }
    (false, place)
}

/// Finds the group, inherits into `if` and `limit_except`, and makes the lists (`ngx_http_uwsgi_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    proxy::inherit_pass(level, &parent.uwsgi.pass, |c| &mut c.uwsgi.pass, Content::Later(run));
    let conf = &mut *level.conf.uwsgi;
    cgi::finish_level(build, &mut conf.upstream, OWNER);
    let Some(pass) = &conf.pass else { return };
    pass.find(build, |place| scheme(place).1);
    if pass.fixed().is_none_or(|place| scheme(place).0) {
        conf.tls = proxy::ssl::finish(build, &conf.upstream.ssl, OWNER, &[]);
    }
    conf.ready = cgi::make_ready(build, &mut conf.upstream, &conf.own.params, OWNER);
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.uwsgi;
    let Some(pass) = conf.pass.as_deref() else { return Err(Verdict::Status(500)) };
    let place = pass.place(r);
    let (secure, place) = scheme(&place);
    cgi::begin(r, SCHEMES[usize::from(secure)], Kind::Either);
    let group = pass.group(r, place).await?;
    // The body's length is a parameter, which comes before it.
    let wanted = Wanted { passed: *conf.upstream.pass_request_body, of_any_length: false };
    let body = request_body::take(r, &conf.upstream, wanted).await?.body;
    if let Some(verdict) = cgi::look(r, &conf.upstream, OWNER).await {
        return Ok(verdict);
    }
    let mut params = wire::uwsgi::Params::default();
    let pass_headers = *conf.upstream.pass_request_headers;
    conf.ready.each(r, pass_headers, |name, value| params.add(name, value));
    let mut head = Vec::new();
    let modifiers = (*conf.own.modifier1, *conf.own.modifier2);
    if let Err(wire::uwsgi::TooLong(len)) = params.write(modifiers, &conf.own.string, &mut head) {
        log_error!(r, Error, "uwsgi request is too big: {len} bytes of parameters do not fit into one packet");
        return Err(Verdict::Status(500));
    }
    let tls = conf.tls.as_ref().filter(|_| secure);
    let tls = tls.map(|context| context.secure(r, place).map(Box::new)).transpose().map_err(|text| {
        log_error!(r, Error, "{text}");
        Verdict::Status(500)
    })?;
    let sent = cgi::Sent { head, body, protocol: Protocol::Cgi(tls), keep: false };
    Ok(cgi::ask(r, &conf.upstream, group, sent).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes() {
        assert_eq!(scheme(b"unix:/run/app"), (false, &b"unix:/run/app"[..]));
        assert_eq!(scheme(b"uWSGI://a:1"), (false, &b"a:1"[..]));
        assert_eq!(scheme(b"suwsgi://a:1"), (true, &b"a:1"[..]));
    }
}
