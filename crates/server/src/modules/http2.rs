//! `http2` and the directives around it (nginx's `ngx_http_v2_module`). The session is `connection::http2`.

use crate::config::variables::Builtin;
use crate::config::{Directive, Scope, http, setters};
use crate::connection::downstream::Protocol;
use crate::merged_values;
use crate::request::{Request, Text};
use conf::{Node, Problem};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("http2", |s, n| setters::flag(&mut s.level.conf.http2.http2, n)),
    http("http2_max_concurrent_streams", |s, n| {
        setters::number(&mut s.level.conf.http2.http2_max_concurrent_streams, n)
    }),
    http("http2_body_preread_size", body_preread_size),
    http("http2_chunk_size", chunk_size),
    http("http2_recv_buffer_size", recv_buffer_size),
    http("http2_pool_size", pool_size),
    http("http2_streams_index_size", streams_index_size),
    http("extended_connect", |s, n| setters::flag(&mut s.level.conf.http2.extended_connect, n)),
    http("http2_max_requests", |s, n| obsolete(s, n, Some("keepalive_requests"))),
    http("http2_max_field_size", |s, n| obsolete(s, n, Some("large_client_header_buffers"))),
    http("http2_max_header_size", |s, n| obsolete(s, n, Some("large_client_header_buffers"))),
    http("http2_recv_timeout", |s, n| obsolete(s, n, Some("client_header_timeout"))),
    http("http2_idle_timeout", |s, n| obsolete(s, n, Some("keepalive_timeout"))),
    http("http2_max_concurrent_pushes", |s, n| obsolete(s, n, None)),
    http("http2_push_preload", |s, n| obsolete(s, n, None)),
    http("http2_push", |s, n| obsolete(s, n, None)),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[Builtin { name: "http2", evaluate: protocol, volatile: false, assign: None }];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The directive.
        http2: bool = false,
        /// Streams that a client may have open at once.
        http2_max_concurrent_streams: u64 = 128,
        /// What a client may send of a body before anybody asks for it.
        http2_body_preread_size: u64 = 64 * 1024,
        /// The largest DATA frame.
        http2_chunk_size: u64 = 8 * 1024,
        /// Clients may speak WebSocket in a stream, of HTTP/3 too (RFC 8441, RFC 9220).
        extended_connect: bool = false,
        /// Checked; buffers are shared by all connections of a thread.
        http2_recv_buffer_size: u64 = 256 * 1024,
        /// Checked; there are no pools.
        http2_pool_size: u64 = 4096,
        /// Checked; streams are found without an index.
        http2_streams_index_size: u64 = 32,
    }
}

/// Smallest `http2_recv_buffer_size`, exclusive: nginx keeps so much of a frame aside.
const STATE_BUFFER: u64 = 16;
/// Smallest `http2_pool_size`, and what it has to be a multiple of.
const POOL: (u64, u64) = (128, 16);

fn body_preread_size(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.http2.http2_body_preread_size;
    setters::size(setting, node)?;
    let max = wire::http2::MAX_WINDOW;
    if **setting > u64::from(max) {
        return Err(node.problem(format!("the maximum body preread buffer size is {max}")));
    }
    Ok(())
}

fn chunk_size(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.http2.http2_chunk_size;
    setters::size(setting, node)?;
    if **setting == 0 {
        return Err(node.problem("the http2 chunk size cannot be zero".to_owned()));
    }
    Ok(())
}

fn recv_buffer_size(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.http2.http2_recv_buffer_size;
    setters::size(setting, node)?;
    if **setting <= STATE_BUFFER {
        return Err(node.problem("\"http2_recv_buffer_size\" directive value is too small".to_owned()));
    }
    scope.build.note(node);
    Ok(())
}

fn pool_size(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.http2.http2_pool_size;
    setters::size(setting, node)?;
    let (least, multiple) = POOL;
    if **setting < least {
        return Err(node.problem(format!("the pool size must be no less than {least}")));
    }
    if !(**setting).is_multiple_of(multiple) {
        return Err(node.problem(format!("the pool size must be a multiple of {multiple}")));
    }
    scope.build.note(node);
    Ok(())
}

fn streams_index_size(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &mut scope.level.conf.http2.http2_streams_index_size;
    setters::number(setting, node)?;
    if !setting.is_power_of_two() {
        return Err(node.problem("\"http2_streams_index_size\" directive must be a power of two".to_owned()));
    }
    scope.build.note(node);
    Ok(())
}

fn obsolete(scope: &mut Scope<'_, '_>, node: &Node, instead: Option<&str>) -> Result<(), Problem> {
    let name = node.name.as_str();
    let text = match instead {
        Some(instead) => format!("the \"{name}\" directive is obsolete, use the \"{instead}\" directive instead"),
        None => format!("the \"{name}\" directive is obsolete, ignored"),
    };
    scope.build.problems.push(node.warning(text));
    Ok(())
}

fn protocol(r: &mut Request) -> Option<Text> {
    Some(match r.downstream.protocol() {
        Protocol::Http2 if super::ssl::is_encrypted(r) => Text::from("h2"),
        Protocol::Http2 => Text::from("h2c"),
        _ => Text::EMPTY,
    })
}
