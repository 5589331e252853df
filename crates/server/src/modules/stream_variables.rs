//! Variables of `stream` (nginx's `ngx_stream_variables.c`, `ngx_stream_upstream.c`): those that `http` has as well are
//! taken from there by name.

use super::upstream_variables::{list, seconds};
use crate::config::variables::Builtin;
use crate::request::{Request, Text};
use crate::text;
use runtime::clock;

/// Variables of `http` that mean the same in `stream`.
pub const SHARED: &[&str] = &[
    "binary_remote_addr",
    "remote_addr",
    "remote_port",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "server_addr",
    "server_port",
    "server_name",
    "connection",
    "nginx_version",
    "hostname",
    "pid",
    "msec",
    "time_iso8601",
    "time_local",
    "upstream_addr",
    "upstream_bytes_sent",
    "upstream_bytes_received",
    "upstream_connect_time",
    "ssl_protocol",
    "ssl_cipher",
    "ssl_ciphers",
    "ssl_curve",
    "ssl_curves",
    "ssl_sigalg",
    "ssl_sigalgs",
    "ssl_session_id",
    "ssl_session_reused",
    "ssl_server_name",
    "ssl_alpn_protocol",
    "ssl_ech_status",
    "ssl_ech_outer_server_name",
    "ssl_client_cert",
    "ssl_client_raw_cert",
    "ssl_client_escaped_cert",
    "ssl_client_s_dn",
    "ssl_client_i_dn",
    "ssl_client_serial",
    "ssl_client_fingerprint",
    "ssl_client_verify",
    "ssl_client_v_start",
    "ssl_client_v_end",
    "ssl_client_v_remain",
    "ssl_client_sigalg",
];

/// Rules of `http` that hold in `stream`.
pub const SHARED_PREFIXES: &[&str] = &["proxy_protocol_tlv_"];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    row("bytes_sent", false, |r| r.ctx.stream.as_ref().map(|f| f.sent).map(|n| text!(r, "{n}"))),
    row("bytes_received", false, |r| r.ctx.stream.as_ref().map(|f| f.received).map(|n| text!(r, "{n}"))),
    row("session_time", true, |r| {
        let ms = clock::wall_ms().saturating_sub(r.started_ms);
        Some(text!(r, "{}.{:03}", ms / 1000, ms % 1000))
    }),
    row("status", true, |r| r.ctx.stream.as_ref().map(|f| f.status).map(|n| text!(r, "{n:03}"))),
    row("protocol", false, |r| {
        let datagrams = r.ctx.stream.as_ref().is_some_and(|f| f.datagrams);
        Some(Text::from(if datagrams { "UDP" } else { "TCP" }))
    }),
    row("ssl_preread_protocol", false, |r| hello(r).map(|h| Text::from(h.protocol()))),
    row("ssl_preread_server_name", false, |r| {
        let name = hello(r).map(|h| h.server_name.clone())?;
        Some(r.text(&name))
    }),
    row("ssl_preread_alpn_protocols", false, |r| {
        let protocols = hello(r).map(|h| h.alpn.clone())?;
        Some(r.text(&protocols))
    }),
    row("upstream_first_byte_time", true, |r| list(r, |a| seconds(a.header_ms))),
    row("upstream_session_time", true, |r| list(r, |a| seconds(a.response_ms))),
];

/// What `ssl_preread` found.
fn hello(r: &Request) -> Option<&wire::preread::Hello> {
    r.ctx.stream.as_ref()?.hello.as_ref()
}

const fn row(name: &'static str, volatile: bool, evaluate: fn(&mut Request) -> Option<Text>) -> Builtin {
    Builtin { name, evaluate, volatile, assign: None }
}
