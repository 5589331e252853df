//! What a process says to the one that goes on with its connections (docs/decisions/0019-upgrade-keeps-connections.md), as bytes: frames
//! with a version, each read within bounds. No sockets: who carries the bytes, and descriptors beside them, is `server`.
//!
//! ```text
//!   new: Ready ──> old: Channels, Zone ... Settled ──> Lines ──> on each line, old: Table, Batch ──> new: Answer, one bit for each record
//!                                                     (Keys before a batch in which there is TLS, Dictionary before one that is packed with it)
//!                                          Late: what was published behind Settled
//! ```
//! The other process may be of another version, so nothing here is taken for granted: a frame of a version or kind that is not known is
//! refused, and its sender keeps what it was about.

mod frame;
mod terms;
mod word;

pub use frame::{Batch, Channel, Channels, Frame, Late, Message, Record, Secret, Table, Unreadable};
pub use terms::Terms;
pub use word::{Reader, Writer};

/// Stands first in each frame. Another one is another language.
pub const VERSION: u8 = 5;
/// Records of a batch: with two descriptors each they fit into one packet of the kernel's (253).
pub const MOST_RECORDS: usize = 120;
/// Descriptors of a record: a connection's, and its peer's of a tunnel.
pub const MOST_FILES: u8 = 2;
/// Bytes of a record: a request's head, what a client has said and not been told yet.
pub const MOST_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of a connection's keys: with [`MOST_SECRETS`] of them they fit into one packet of any line.
pub const MOST_SECRET: usize = 128;
/// Connections of a batch, each with its descriptor.
pub const MOST_SECRETS: usize = MOST_RECORDS * MOST_FILES as usize;
/// Names of one kind in a table: variables, servers, locations, addresses.
pub const MOST_NAMES: usize = 1 << 20;
/// Channels of a frame, and messages of a channel in it.
pub const MOST_CHANNELS: usize = 1 << 16;

/// Dictionaries of a line.
pub const MOST_DICTIONARIES: usize = u8::MAX as usize;
/// Bytes of a dictionary.
pub const MOST_DICTIONARY: usize = 64 * 1024;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A kept connection of HTTP/1 between two requests.
    Idle,
    /// A subscriber to channels.
    Subscriber,
    /// Two connections as one pipe, after an upgrade: the client's, then the peer's.
    Tunnel,
    /// A kept connection of HTTP/2 without streams.
    Http2,
    /// A client of MQTT with its session.
    Mqtt,
    /// A session of MQTT whose client is gone: without a descriptor.
    Session,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Idle, Kind::Subscriber, Kind::Tunnel, Kind::Http2, Kind::Mqtt, Kind::Session];

    fn number(self) -> u64 {
        self as u64
    }

    fn of(number: u64) -> Option<Kind> {
        Kind::ALL.get(usize::try_from(number).ok()?).copied()
    }
}
