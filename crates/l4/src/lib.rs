//! Layer 4 in the kernel: a balancer as an XDP program, what loads it, and what fills its maps. docs/l4.md
//!
//! Place: the server's helper process, which has the rights for it, gives a [`Runner`] the plan that the master has made; its
//! worker knows plans and reports only. Knows nothing of nginx.conf. Packets never come to user space.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod command;
pub mod fill;
mod former;
pub mod keeper;
pub mod kernel;
pub mod layout;
pub mod links;
pub mod load;
pub mod machine;
pub mod plan;
pub mod report;
pub mod ring;
pub mod routes;
pub mod runner;
pub mod tables;

pub use fill::{apply, forget_recent};
pub use plan::Plan;
pub use report::Report;
pub use runner::Runner;
