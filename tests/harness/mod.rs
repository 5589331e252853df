//! What the tests stand on: a server in a directory of its own, a client and a backend that see every byte.

mod agents;
mod backend;
mod beside;
mod browser;
mod client;
mod disposable;
mod dns;
mod folder;
mod http2;
pub mod l4_lab;
mod pebble;
pub mod quic;
mod server;
mod stress;
mod tls;

pub use agents::{Agent, agents, agents_by};
pub use backend::{Backend, Reply, Seen, blunt};
pub use beside::{Beside, compare_with_nginx, program};
pub use browser::{chromium, in_chromium};
pub use client::{Client, Response, find};
pub use disposable::{disposable, repository};
pub use dns::Dns;
pub use folder::{Folder, Port};
pub use http2::{Asked, Http2Backend, read_all, send_all, with_http2, with_http2_at};
pub use pebble::{Pebble, Ways, has_pebble, pebble_files};
pub use server::{Program, Server, Site, wait};
pub use stress::{Json, run_stress, stress, text};
pub use tls::{SecureClient, Setup, curl, has_tools, openssl};

/// A file of `../shared` beside the repository; nothing, said aloud, where that is not there.
pub fn shared(name: &str) -> Option<String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found =
        ["../shared", "../../shared"].iter().find_map(|s| std::fs::read_to_string(root.join(s).join(name)).ok());
    if found.is_none() {
        println!("../shared/{name} is not there: left out");
    }
    found
}
