//! `ironweir doctor`: what is wrong with this machine and its servers, by which numbers, and what cures it.
//!
//! Probes -> facts -> rules -> findings (`docs/doctor.md`). Each stage is a function of the one before: `machine` and `configuration` read,
//! `rules` judge what was read and nothing else, `text` shows it.

mod backend;
pub mod canary;
pub mod command;
pub mod configuration;
pub mod error_log;
mod exits;
pub mod facts;
mod files;
pub mod finding;
mod guard;
pub mod headroom;
pub mod lab;
pub mod live;
pub mod local_ports;
pub mod nic;
mod options;
pub mod plan;
mod ports;
pub mod redline;
pub mod rules;
pub mod serving;
pub mod statistics;
pub mod symbols;
pub mod sysctl;
pub mod text;
pub mod trial;
pub mod tune;
mod whose;
pub mod why;

/// Runs one of this crate's commands: `doctor`, `why`, `redline`, `tune`, `nic`, `lab`. `arguments` are those behind its name.
pub fn main(name: &str, arguments: impl Iterator<Item = String>, version: &str) -> std::process::ExitCode {
    match name {
        "nic" => nic::main(arguments, version),
        "lab" => lab::main(arguments, version),
        "why" => why::main(arguments, version),
        "redline" => redline::main(arguments, version),
        "tune" => tune::main(arguments, version),
        _ => command::main(arguments, version),
    }
}
