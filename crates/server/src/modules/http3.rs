//! `http3`, `quic_*` (nginx's `ngx_http_v3_module`). The session is `connection::http3`, its datagrams `listen::quic`.

use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http, setters};
use crate::connection::downstream::Protocol;
use crate::merged_values;
use crate::request::{Request, Text};
use conf::{Node, Problem, value};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("http3", |s, n| setters::flag(&mut s.level.conf.http3.http3, n)),
    http("http3_hq", |s, n| setters::flag(&mut s.level.conf.http3.http3_hq, n)),
    http("http3_max_concurrent_streams", |s, n| {
        setters::number(&mut s.level.conf.http3.http3_max_concurrent_streams, n)
    }),
    http("http3_stream_buffer_size", |s, n| setters::size(&mut s.level.conf.http3.http3_stream_buffer_size, n)),
    http("quic_retry", |s, n| setters::flag(&mut s.level.conf.http3.quic_retry, n)),
    http("quic_gso", |s, n| setters::flag(&mut s.level.conf.http3.quic_gso, n)),
    http("quic_host_key", host_key),
    http("quic_server_id", |s, n| {
        let number = value::number(&n.args[0].text).and_then(|n| u16::try_from(n).ok());
        setters::value(
            &mut s.level.conf.http3.quic_server_id,
            n,
            Some(number.ok_or_else(|| Problem::invalid_number(n))?),
        )
    }),
    http("quic_active_connection_id_limit", |s, n| {
        setters::number(&mut s.level.conf.http3.quic_active_connection_id_limit, n)
    }),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: "http3", evaluate: protocol, volatile: false, assign: None },
    Builtin { name: "quic", evaluate: quic, volatile: false, assign: None },
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The directive: HTTP/3 is offered on QUIC connections.
        http3: bool = true,
        /// HTTP/0.9 over QUIC is offered.
        http3_hq: bool = false,
        /// Requests that a client may have open at once on a connection.
        http3_max_concurrent_streams: u64 = 128,
        /// What a client may send of a body before anybody reads it, in bytes.
        http3_stream_buffer_size: u64 = 64 * 1024,
        /// A client's address is checked before anything is done for it.
        quic_retry: bool = false,
        /// The kernel cuts what is sent into datagrams.
        quic_gso: bool = true,
        /// What keys of tokens and stateless resets are made of; none: of what the process draws at its start.
        quic_host_key: Option<Arc<[u8]>> = None,
        /// This machine's number in connection ids, for balancers before it.
        quic_server_id: Option<u16> = None,
        /// Connection ids of a client that are kept.
        quic_active_connection_id_limit: u64 = 2,
    }
}

fn host_key(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    if scope.level.conf.http3.quic_host_key.is_set() {
        return Err(setters::duplicate(node));
    }
    let path = scope.build.conf_path(&node.args[0].text);
    let shown = path.display();
    let key = scope
        .build
        .files
        .read(&path)
        .map_err(|e| node.problem(format!("open() \"{shown}\" failed ({})", crate::log::os_error(&e))))?;
    if key.is_empty() {
        return Err(node.problem(format!("\"{shown}\" zero key size")));
    }
    scope.level.conf.http3.quic_host_key.force(Some(key.into()));
    Ok(())
}

fn protocol(r: &mut Request) -> Option<Text> {
    Some(match r.downstream.protocol() {
        Protocol::Hq => Text::from("hq"),
        Protocol::Http3 => Text::from("h3"),
        _ => Text::EMPTY,
    })
}

/// `quic` on a QUIC connection (the name that nginx's first QUIC releases had for `$http3`).
fn quic(r: &mut Request) -> Option<Text> {
    Some(if r.client.quic { Text::from("quic") } else { Text::EMPTY })
}
