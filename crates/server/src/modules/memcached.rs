//! `memcached_pass` and its companions (nginx's `ngx_http_memcached_module`): a value of memcached as an answer. How the answer is
//! read is in `upstream::memcached`.

use super::cgi::{self, Pass, Sent};
use super::{proxy, root};
use crate::config::complex::Complex;
use crate::config::setting::Setting;
use crate::config::{Build, ConfigLevel, Directive, Scope, http, setters};
use crate::log_error;
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Method, Request, body};
use crate::upstream::cgi::Kind;
use crate::upstream::conf::UpstreamConf;
use crate::upstream::job::{JobBody, Protocol};
use crate::upstream::memcached::Asked;
use crate::upstream::rewrite::Rewrites;
use crate::upstream::settings::next;
use crate::upstream_directives;
use conf::{Node, Problem, value};
use std::sync::Arc;
use wire::http1::escape::{Escape, escape_uri};

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("memcached_pass", memcached_pass),
    http("memcached_gzip_flag", |s, n| {
        let number = value::number(&n.args[0].text).and_then(|n| u32::try_from(n).ok());
        let flags = number.ok_or_else(|| n.problem("invalid number".to_owned()))?;
        setters::value(&mut s.level.conf.memcached.own.gzip_flag, n, flags)
    }),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] = upstream_directives!("memcached", memcached, next::MEMCACHED_WORDS);

/// What stands around a key in a request, bytes.
const AROUND_KEY: usize = "get \r\n".len();
/// How the error log names a memcached.
const SCHEME: &str = "memcached://";

crate::merged_values! {
    /// Values that others do not have.
    pub struct Own {
        /// `memcached_gzip_flag`
        gzip_flag: u32 = 0,
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    own: Own,
    /// What all modules with upstreams have.
    pub upstream: UpstreamConf,
    pass: Option<Arc<Pass>>,
    /// `$memcached_key`
    key: Complex,
}

crate::inherited!(Conf, |conf| conf.pass.is_none());

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.own.merge(&parent.own);
        self.upstream.merge(&parent.upstream);
    }
}

fn memcached_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let before = scope.level.conf.memcached.pass.is_some();
    scope.level.conf.memcached.pass = Pass::read(scope, node, before)?;
    scope.level.conf.core.handler = Some(Content::Later(run));
    Ok(())
}

/// Finds the group, and inherits into `if` and `limit_except` (`ngx_http_memcached_merge_loc_conf`).
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    proxy::inherit_pass(level, &parent.memcached.pass, |c| &mut c.memcached.pass, Content::Later(run));
    let conf = &mut *level.conf.memcached;
    let Some(pass) = &conf.pass else { return };
    pass.find(build, |place| place);
    conf.key = Complex::compile_bytes(build, b"$memcached_key").expect("it is well formed");
    conf.upstream.buffering = Setting::unset(false);
    conf.upstream.force_ranges = Setting::unset(true);
    conf.upstream.intercept_not_found = true;
    conf.upstream.set_answer_headers(&[], Rewrites::default());
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.memcached;
    let Some(pass) = conf.pass.as_deref() else { return Err(Verdict::Status(500)) };
    if !matches!(r.head.method, Method::Get | Method::Head) {
        return Err(Verdict::Status(405));
    }
    body::discard_arrived(r).map_err(Verdict::Status)?;
    root::set_content_type(r);
    cgi::begin(r, SCHEME, Kind::Http);
    let place = pass.place(r);
    let group = pass.group(r, &place).await?;
    let key = conf.key.eval(r);
    if r.get(key).is_empty() {
        log_error!(r, Error, "the \"$memcached_key\" variable is not set");
        return Err(Verdict::Status(500));
    }
    let mut escaped = std::mem::take(&mut r.scratch);
    escaped.clear();
    escape_uri(r.get(key), Escape::Memcached, &mut escaped);
    let mut head = Vec::with_capacity(escaped.len() + AROUND_KEY);
    wire::memcached::get(&escaped, &mut head);
    let asked = Asked { key: escaped.as_slice().into(), gzip_flags: *conf.own.gzip_flag };
    r.scratch = escaped;
    let sent = Sent { head, body: JobBody::None, protocol: Protocol::Memcached(asked), keep: true };
    Ok(cgi::ask(r, &conf.upstream, group, sent).await)
}
