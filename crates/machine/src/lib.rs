//! What this machine is and does, as values: files of `/proc` and `/sys`, and netlink. Never the text of another program.
//!
//! From: the kernel. To: the doctor's rules (`facts`), the stress tool's verdict (`own`, `neighbour`, `probe`, `queue`). A fact that
//! cannot be read is a fact that is not known; nothing here judges.

pub mod card;
pub mod cgroup;
pub mod counters;
pub mod facts;
pub mod journal;
pub mod kernel_log;
pub mod links;
pub mod namespace;
pub mod neighbour;
pub mod netlink;
pub mod own;
pub mod probe;
pub mod processes;
pub mod queue;
mod sample;
pub mod shaping;
pub mod sockets;
pub mod system;
pub mod wake;

pub use facts::Facts;
