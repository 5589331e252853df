//! Connections, channels and zones that outlive their process (docs/decisions/0019-upgrade-keeps-connections.md): a worker hands what it has
//! to the worker of a new binary, or of a configuration that takes a new process. From: `serve`, which is told by the master. What is said
//! between the two is `heir`'s; what a connection is, its module knows.
//!
//! ```text
//!   old worker                                              new worker
//!     waits                        <── Ready ──             is up, and accepts nothing yet
//!     accepts nothing any more
//!     Channels, Zone ..., Settled  ────────────>            accepts
//!     Lines: one for each thread   ────────────>            given to its threads
//!     each thread: Table, Dictionary, Batch ───>            its thread: goes on with them
//!                                  <── Answer ──            those that it took are closed there
//!     what stays says goodbye, or ends as in any shutdown
//! ```
//! A thread that a reload has made superfluous goes the same way, by lines to threads that stay (`within`).
//! When the line ends before that, the new worker is gone: what was not answered for goes on here, and connections are accepted again.

mod arrive;
mod hand_over;
mod keys;
mod leave;
mod line;
mod succeed;
mod within;
mod zones;

pub use hand_over::{HandOver, hand_over};
pub use succeed::{Succession, succeed};
pub use within::move_over;
