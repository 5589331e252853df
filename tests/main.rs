//! Tests of the whole binary over real sockets, one file a feature. One test program, since linking costs more than running.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod harness;

mod access_log;
mod addresses;
mod auth;
mod bad_requests;
mod balancing;
mod cache;
mod compression;
mod configuration;
mod demo;
mod error_log;
mod error_pages;
mod fastcgi;
mod filters;
mod http2;
mod http2_floods;
mod includes;
mod keepalive;
mod parity;
mod processes;
mod proxy;
mod recorded_requests;
mod reload;
mod rewrite;
mod static_files;
mod stream;
mod stream_udp;
mod stress;
mod stress_agents;
mod stress_hold;
mod stress_script;
mod tls;
mod tls_upstream;
mod upstream_names;
