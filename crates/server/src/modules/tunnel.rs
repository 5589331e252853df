//! `tunnel_pass`: CONNECT, so that clients reach others through this server (nginx's `ngx_http_tunnel_module`, RFC 9110 section
//! 9.3.6). Without the directive CONNECT is refused. Who may reach what is for `allow`, `deny`, `auth_basic` and others to say: where
//! clients name the place and none of these is there, `-t` warns.

use super::cgi::{self, Pass};
use super::{ignored, proxy, proxy_connect};
use crate::config::{Build, ConfigLevel, Directive, Scope, http, setters};
use crate::request::phases::{Content, Verdict, Waiting};
use crate::request::{Method, Request};
use crate::upstream::cgi::Kind;
use crate::upstream::conf::UpstreamConf;
use crate::upstream::job::{Job, JobBody, Protocol};
use crate::upstream::settings::next;
use crate::upstream::tunnel::Patience;
use crate::upstream::{retry, tunnel};
use crate::upstream_directives;
use conf::{Node, Problem, Word};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("tunnel_pass", tunnel_pass),
    http("tunnel_send_lowat", ignored::size),
    http("tunnel_socket_rcvbuf", |s, n| setters::size(&mut s.level.conf.tunnel.upstream.socket_rcvbuf, n)),
    http("tunnel_socket_sndbuf", |s, n| setters::size(&mut s.level.conf.tunnel.upstream.socket_sndbuf, n)),
];

/// Those that all modules with an upstream have.
pub const COMMON_DIRECTIVES: &[Directive] = upstream_directives!("tunnel", tunnel, next::TUNNEL_WORDS);

/// Where to, unless the directive says so.
const DEFAULT_PLACE: &[u8] = b"$host:$request_port";

/// What the module keeps while a configuration is read.
#[derive(Debug, Default)]
pub struct Main {
    /// `tunnel_pass` stands in the server that is being read.
    pub seen: bool,
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// What all modules with upstreams have.
    pub upstream: UpstreamConf,
    pass: Option<Arc<Pass>>,
    /// `proxy_connect`: what clients may name.
    pub(super) named: proxy_connect::Named,
    is_named: bool,
}

/// The content handler of a CONNECT.
const CONTENT: Content = Content::Later(run);

crate::inherited!(Conf, |conf| conf.pass.is_none());

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.upstream.merge(&parent.upstream);
    }
}

fn tunnel_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    read_pass(scope, node)?;
    scope.level.conf.core.handler = Some(CONTENT);
    scope.build.main.tunnel.seen = true;
    Ok(())
}

/// `proxy_connect`: where the client says, as far as that is let in.
pub(super) fn pass_to_named(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    read_pass(scope, node)?;
    scope.level.conf.tunnel.is_named = true;
    scope.level.conf.core.connect_handler = Some(CONTENT);
    Ok(())
}

fn read_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut node = node.clone();
    if node.args.is_empty() {
        node.args.push(Word { text: DEFAULT_PLACE.to_vec(), span: node.name.span, quoted: false });
    }
    let before = scope.level.conf.tunnel.pass.is_some();
    scope.level.conf.tunnel.pass = Pass::read(scope, &node, before)?;
    scope.level.conf.core.auto_redirect = false;
    Ok(())
}

/// Finds the group, and inherits into `if` and `limit_except`.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel, parent: &super::LocationConf) {
    proxy::inherit_pass(level, &parent.tunnel.pass, |c| &mut c.tunnel.pass, CONTENT);
    let Some(pass) = level.conf.tunnel.pass.clone() else { return };
    pass.find(build, |place| place);
    let conf = &level.conf;
    let guarded =
        !conf.access.rules.is_empty() || conf.auth_basic.user_file.is_some() || conf.auth_request.uri.is_some();
    if pass.fixed().is_none() && !guarded {
        let name = if conf.tunnel.is_named { "proxy_connect" } else { "tunnel_pass" };
        proxy_connect::warn_of_open(build, name, pass.place_in_text());
    }
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.tunnel;
    if r.head.method != Method::Connect || !r.is_main() {
        return Err(Verdict::Status(405));
    }
    let Some(pass) = conf.pass.as_deref() else { return Err(Verdict::Status(500)) };
    cgi::begin(r, "", Kind::Http);
    let mut place = pass.place(r);
    if conf.is_named {
        place = conf.named.place(r, place)?;
    }
    if r.has_fault() {
        return Err(Verdict::Status(500));
    }
    let group = pass.group(r, &place).await?;
    let local = conf.upstream.local_address(r);
    let (head, body, protocol) = (Vec::new(), JobBody::None, Protocol::Tunnel);
    let mut job = Job { group, head, body, is_head: false, keepalive: false, local, protocol, remake: None };
    let answer = retry::find_answer(r, &mut job, &conf.upstream).await?;
    r.answer.headers.status = 200;
    r.answer.headers.content_length = None;
    r.flow.keepalive = false;
    r.send_header()?;
    let patience = match conf.is_named {
        // `proxy_connect_data_timeout` is the time for all that a tunnel waits for.
        true => Patience::both(r.attempts.read_timeout(&conf.upstream)),
        false => Patience::of(r, &conf.upstream),
    };
    Ok(tunnel::run(r, &conf.upstream, patience, answer).await)
}
