//! Protocols without input or output: bytes and times are arguments.
//!
//! Every parser here takes a slice and says how far it got; none of them reads a socket, asks a clock or starts a
//! thread. What is found is given as [`span::Span`]s into the caller's buffer, so the usual request costs no
//! allocation. Each parser is bounded, either by the buffer it is given or by a named limit.

pub mod date;
pub mod encoding;
pub mod fastcgi;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod jwt;
pub mod memcached;
pub mod mp4;
pub mod mqtt;
pub mod permessage_deflate;
pub mod picture;
pub mod preread;
pub mod priority;
pub mod proxy_protocol;
pub mod range;
pub mod resp;
pub mod scgi;
pub mod span;
pub mod terminal;
pub mod tls;
pub mod trace_context;
pub mod units;
pub mod uwsgi;
pub mod webdav;
pub mod websocket;
