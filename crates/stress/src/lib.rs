//! `ironweir stress`: puts load on a service, says what it carries, and whether that number can be trusted.
//!
//! A run goes `options` -> `plan` -> `run` (`client` threads, `sample`) -> `verdict` -> `report`; `docs/stress.md` has the
//! whole way. Shares nothing with the server but `wire`, so that each can be checked by others;
//! what this machine is comes from `machine`, and what a target says of itself is only ever a note beside what was measured (`target_api`).

pub mod agent;
mod ask;
mod client;
pub mod command;
pub mod condition;
pub mod find_max;
pub mod hold;
pub mod options;
pub mod plan;
mod preflight;
pub mod report;
pub mod run;
pub mod sample;
pub mod schedule;
pub mod script;
mod system;
mod target_api;
mod transport;
pub mod verdict;
