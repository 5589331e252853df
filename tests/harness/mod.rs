//! What the tests stand on: a server in a directory of its own, a client and a backend that see every byte.

mod backend;
mod client;
mod folder;
mod server;

pub use backend::{Backend, Reply, Seen};
pub use client::{Client, Response, find};
pub use folder::{Folder, Port};
pub use server::{Program, Server, Site, wait};
