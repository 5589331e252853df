//! Layer 4 in the kernel: a balancer as an XDP program, what loads it, and what fills its maps. docs/l4.md
//!
//! Place: the server's master, or a helper process with its rights, makes a [`Plan`] and calls [`run`] or [`apply`]. Knows
//! nothing of nginx.conf. Packets never come to user space.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod command;
pub mod fill;
pub mod keeper;
pub mod kernel;
pub mod layout;
pub mod machine;
pub mod plan;
pub mod ring;
pub mod tables;

pub use fill::apply;
pub use plan::Plan;
