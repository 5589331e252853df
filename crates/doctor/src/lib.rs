//! `ironweir doctor`: what is wrong with this machine and its servers, by which numbers, and what cures it.
//!
//! Probes -> facts -> rules -> findings (`docs/doctor.md`). Each stage is a function of the one before: `machine` and `configuration` read,
//! `rules` judge what was read and nothing else, `text` shows it.

pub mod command;
pub mod configuration;
pub mod facts;
pub mod finding;
mod options;
pub mod rules;
mod sysctl;
pub mod text;
