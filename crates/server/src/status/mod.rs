//! What is counted, for the API, `prometheus`, the dashboard and `ironweir top`.
//!
//! ```text
//!  a thread counts in its own block (tally, slot)        somebody asks (api, service thread)
//!     requests, latency, ssl, turns, peers, limits, ...  ──>  sums over all blocks; listeners: the kernel is asked
//! ```
//! Nothing here locks or is shared on the way of a request (docs/decisions/0012), except of one that is refused, which tries a lock (`refusals`).

pub mod caches;
pub mod codes;
pub mod history;
pub mod latency;
pub mod limits;
pub mod listeners;
pub mod metrics;
pub mod peers;
pub mod processes;
pub mod refusals;
pub mod requests;
pub mod rules;
pub mod skew;
pub mod slot;
pub mod spent;
pub mod ssl;
pub mod tally;
pub mod trial;
pub mod turns;
pub mod zones;

pub use tally::Tally;
