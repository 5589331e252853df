//! `ironweir stress`: puts load on a service, says what it carries, and whether that number can be trusted.
//!
//! A run goes `options` -> `plan` -> `run` (`client` threads, `sample`) -> `verdict` -> `report`; `docs/stress.md` has the
//! whole way. Shares nothing with the server but `wire`, so that each can be checked by others.

pub mod agent;
mod ask;
mod client;
pub mod command;
pub mod condition;
pub mod find_max;
pub mod hold;
pub mod machine;
mod neighbour;
pub mod options;
pub mod plan;
mod preflight;
mod probe;
pub mod report;
pub mod run;
pub mod sample;
pub mod schedule;
pub mod script;
mod system;
mod transport;
pub mod verdict;
