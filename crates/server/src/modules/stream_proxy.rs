//! `proxy_pass` and its companions in `stream`: directives and their values (nginx's `ngx_stream_proxy_module`). What is
//! done with them is in `stream::proxy` and `stream::relay`.

use super::stream_core::Handler;
use super::upstream_block::group_for;
use super::{proxy, ssl};
use crate::config::complex::Complex;
use crate::config::setters::{self, duplicate};
use crate::config::{Build, ConfigLevel, Directive, Scope, stream};
use crate::merged_values;
use crate::tls::client::Context;
use crate::upstream::directives::bind_value;
use crate::upstream::group::GroupId;
use crate::upstream::settings::{SslSettings, UpstreamSettings};
use conf::{Node, Problem};
use std::sync::Arc;
use std::time::Duration;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    stream("proxy_pass", proxy_pass),
    stream("proxy_bind", bind),
    stream("proxy_connect_timeout", |s, n| setters::time(&mut s.level.conf.stream_proxy.upstream.connect_timeout, n)),
    stream("proxy_timeout", |s, n| setters::time(&mut own(s).timeout, n)),
    stream("proxy_buffer_size", |s, n| setters::size(&mut own(s).buffer_size, n)),
    // The former names of `proxy_buffer_size`.
    stream("proxy_downstream_buffer", |s, n| setters::size(&mut own(s).buffer_size, n)),
    stream("proxy_upstream_buffer", |s, n| setters::size(&mut own(s).buffer_size, n)),
    stream("proxy_upload_rate", |s, n| {
        setters::complex_size(s.build, &mut s.level.conf.stream_proxy.own.upload_rate, n)
    }),
    stream("proxy_download_rate", |s, n| {
        setters::complex_size(s.build, &mut s.level.conf.stream_proxy.own.download_rate, n)
    }),
    stream("proxy_requests", |s, n| setters::number(&mut own(s).requests, n)),
    stream("proxy_responses", |s, n| setters::number(&mut own(s).responses, n)),
    stream("proxy_next_upstream", |s, n| setters::flag(&mut own(s).next_upstream, n)),
    stream("proxy_next_upstream_tries", |s, n| {
        setters::number(&mut s.level.conf.stream_proxy.upstream.next_upstream_tries, n)
    }),
    stream("proxy_next_upstream_timeout", |s, n| {
        setters::time(&mut s.level.conf.stream_proxy.upstream.next_upstream_timeout, n)
    }),
    stream("proxy_protocol", |s, n| {
        let words = [("off", ProxyHeader::Off), ("on", ProxyHeader::V1), ("v2", ProxyHeader::V2)];
        setters::one_of(&mut own(s).proxy_protocol, n, &words)
    }),
    stream("proxy_session_drop", |s, n| setters::flag(&mut own(s).session_drop, n)),
    stream("proxy_ssl", |s, n| setters::flag(&mut own(s).ssl, n)),
    stream("proxy_ssl_alpn", |s, n| {
        let protocols = ssl::protocols(n)?;
        setters::value(&mut own(s).ssl_alpn, n, protocols)
    }),
    stream("proxy_half_close", |s, n| setters::flag(&mut own(s).half_close, n)),
    stream("proxy_socket_keepalive", |s, n| setters::flag(&mut s.level.conf.stream_proxy.upstream.socket_keepalive, n)),
    stream("proxy_socket_rcvbuf", |s, n| setters::size(&mut s.level.conf.stream_proxy.upstream.socket_rcvbuf, n)),
    stream("proxy_socket_sndbuf", |s, n| setters::size(&mut s.level.conf.stream_proxy.upstream.socket_sndbuf, n)),
];

merged_values! {
    /// Values that `http` does not have in this form.
    pub struct Own {
        /// `proxy_pass`
        pass: Option<Pass> = None,
        /// Between two events on either connection.
        timeout: Duration = Duration::from_secs(600),
        /// Bytes that may be on the way in one direction.
        buffer_size: u64 = 16384,
        /// Bytes a second from the client.
        upload_rate: Complex = Complex::default(),
        /// Bytes a second to the client.
        download_rate: Complex = Complex::default(),
        /// Datagrams after which a client's next one begins a new session; 0: none.
        requests: u64 = 0,
        /// Datagrams that the peer answers each with.
        responses: u64 = u64::MAX,
        /// Whether the next peer is asked when one cannot be reached.
        next_upstream: bool = true,
        /// The header that the peer gets before anything else.
        proxy_protocol: ProxyHeader = ProxyHeader::Off,
        /// Each direction ends on its own.
        half_close: bool = false,
        /// A session ends when its peer is taken out of the group, or is down or unhealthy.
        session_drop: bool = false,
        /// TLS is spoken to peers.
        ssl: bool = false,
        /// What they are asked for by ALPN, in order of preference.
        ssl_alpn: Arc<Vec<Vec<u8>>> = Arc::default(),
    }
}

crate::inherited!(Conf, |conf| conf.context.is_none());

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    /// Those of its own.
    pub own: Own,
    /// Those that it has in common with modules of `http`.
    pub upstream: UpstreamSettings,
    /// `proxy_ssl_*`, but for `proxy_ssl_alpn`.
    pub ssl: SslSettings,
    /// What `proxy_ssl` needs.
    pub context: Option<Arc<Context>>,
}

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        self.own.merge(&parent.own);
        self.upstream.merge(&parent.upstream);
        self.ssl.merge(&parent.ssl);
    }
}

impl Conf {
    /// The group, where `proxy_pass` has no variables.
    pub fn group(&self) -> Option<GroupId> {
        match &*self.own.pass {
            Some(Pass::Group(id)) => Some(*id),
            _ => None,
        }
    }
}

/// `proxy_protocol`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// None.
    Off,
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Where `proxy_pass` goes.
#[derive(Clone, Debug)]
pub enum Pass {
    /// As written; found when all upstreams are known.
    Written(Vec<u8>, Node),
    /// A group.
    Group(GroupId),
    /// Known only at run time.
    Variables(Complex),
}

fn own<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Own {
    &mut scope.level.conf.stream_proxy.own
}

fn proxy_pass(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if own(scope).pass.is_set() {
        return Err(duplicate(node));
    }
    let to = Complex::compile(scope.build, &node.args[0])?;
    let pass = match to.as_fixed() {
        Some(fixed) => Pass::Written(fixed.to_vec(), node.clone()),
        None => Pass::Variables(to),
    };
    own(scope).pass.force(Some(pass));
    scope.level.conf.stream_core.handler.force(Handler::Proxy);
    Ok(())
}

fn bind(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let value = bind_value(scope, node)?;
    setters::value(&mut scope.level.conf.stream_proxy.upstream.bind, node, value)
}

/// Finds the group that `proxy_pass` names, and makes what `proxy_ssl` needs.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    if *level.conf.stream_proxy.own.ssl {
        let conf = &level.conf.stream_proxy;
        let protocols: Vec<&[u8]> = conf.own.ssl_alpn.iter().map(Vec::as_slice).collect();
        let context = proxy::ssl::finish(build, &conf.ssl, "proxy", &protocols);
        level.conf.stream_proxy.context = context;
    }
    let pass = &mut level.conf.stream_proxy.own.pass;
    if let Some(Pass::Written(name, node)) = &**pass {
        match group_for(build, &String::from_utf8_lossy(name), 0) {
            Ok(group) => pass.force(Some(Pass::Group(group))),
            Err(text) => build.problems.push(node.problem(text)),
        }
    }
}
