//! Channels: who publishes to one is heard by all who subscribe to it. Messages, their ids and buffers, groups with limits, who is
//! to be woken. No sockets and no clock: bytes and times are arguments. Shared by threads; what it keeps is bounded (`limits`).
//! The protocols on both sides are `server`'s; how the parts stand together is in docs/push.md.

mod channel;
mod group;
mod id;
mod journal;
mod leaving;
pub mod limits;
mod mailbox;
mod message;
mod packed;
mod render;
mod retained;
mod store;
mod subscription;
#[cfg(test)]
mod tests;
mod topics;

pub use channel::{Channel, Info};
pub use group::{Group, Lasting, Limits, Totals};
pub use id::{BadId, Id, Position};
pub use journal::{Entry, Journal, Kept};
pub use leaving::{Heir, Late, Parting, Settling};
pub use mailbox::Mailbox;
pub use message::{Draft, Marks, Message};
pub use packed::{NotPacked, Packed};
pub use render::{multipart_part, with_meta};
pub use store::{Arrived, Keep, Now, Published, Refused, Store, Sums, Whom};
pub use subscription::{Next, Options, Seat, Start, Subscription};
