//! Tests of the whole binary over real sockets, one file a feature. One test program, since linking costs more than running.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod harness;

mod keepalive;
mod static_files;
