//! The data subsystem of Ironweir: from nginx.conf and a listening socket to answers. The folders are the way of a request.

pub mod acme;
pub mod api;
pub mod balancer;
pub mod cache;
pub mod config;
pub mod connection;
pub mod fetch;
pub mod files;
pub mod health;
pub mod listen;
pub mod log;
pub mod master;
pub mod memory;
pub mod modules;
pub mod otel;
pub mod password;
pub mod plan;
pub mod process_settings;
pub mod request;
pub mod serve;
pub mod service;
pub mod snapshot;
pub mod status;
pub mod stream;
pub mod temp;
pub mod tls;
pub mod upgrade;
pub mod upstream;
pub mod worker;
pub mod zone;

/// The version of nginx whose configuration and behaviour this is.
pub const NGINX_VERSION: &str = "1.31.5";
