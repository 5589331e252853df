//! What is kept at most, each with its reason.

/// Channels of one subscriber, and of one publishing: nchan's `NCHAN_MULTITAG_MAX`.
pub const MAX_CHANNELS: usize = 255;
/// Messages that nobody new gets, but subscribers may still have to take: so long, s. A reader that is on its way takes far less.
pub const TRAIL_SECONDS: i64 = 5;
/// The same, so many of a channel: a burst that one turn of a thread publishes is smaller.
pub const TRAIL_MESSAGES: usize = 4096;
/// The same, so many bytes of a channel.
pub const TRAIL_BYTES: usize = 8 * 1024 * 1024;
/// Messages of one channel's buffer, whatever is asked for: the index of a message fits and a look-up stays short.
pub const MAX_BUFFER: usize = 1 << 20;
/// Bytes of all messages in a store, until it is told otherwise: nchan's `nchan_shared_memory_size`.
pub const DEFAULT_MEMORY: usize = 128 * 1024 * 1024;
/// What a channel costs beside its messages and its name, for the bill.
pub const CHANNEL_BYTES: usize = 440;
/// What a level of a filter of topics costs beside its text, for the bill.
pub const LEVEL_BYTES: usize = 100;
/// What a group costs beside its name, for the bill.
pub const GROUP_BYTES: usize = 360;
/// How long a group of which nothing is there keeps limits that come with requests, s: the next request brings them again.
pub const GROUP_SECONDS: i64 = 60;
/// Parts of a store with a lock each: many more than threads.
pub const PARTS: usize = 64;
/// A text longer than this is no id: 255 numbers of ten digits, brackets, commas, and a time.
pub const MAX_ID_TEXT: usize = 4096;
/// The value of an event, or of a content type, is as long as this at most.
pub const MAX_META: usize = 255;
/// Bytes of a message that another server has packed; Redis takes texts of 512 MB.
pub const MAX_PACKED: usize = 128 * 1024 * 1024;
