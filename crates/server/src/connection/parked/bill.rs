//! What is parked, by kind, and what it takes.

use super::Resident;
use crate::log::error::Errno;
use crate::snapshot::Snapshot;
use crate::status::tally::Tally;
use rings::Refused;
use std::io;

/// What the kernel and we take for one at least: there may be no more of them than would fill the machine's memory.
const LEAST_BYTES: u64 = 3072;
/// What the lists and tables that a parked connection stands in take for it.
pub const LIST_BYTES: u64 = 52;
/// What is kept of a parked subscriber usually.
pub const TYPICAL_BYTES: u64 = 300;

/// Kinds of connections that are parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that waits for a message.
    LongPoll,
    /// An answer that goes on: EventSource, multipart, chunked, raw.
    Stream,
    /// A WebSocket.
    WebSocket,
    /// A connection between two requests.
    Kept,
    /// An HTTP/2 connection without streams.
    Http2,
    /// A client of MQTT.
    Mqtt,
    /// Two connections as one pipe, after an upgrade: the client's. The peer's counts with it.
    Tunnel,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] =
        [Kind::LongPoll, Kind::Stream, Kind::WebSocket, Kind::Kept, Kind::Http2, Kind::Mqtt, Kind::Tunnel];

    /// Whether its request goes on meanwhile, and counts with those that are processed.
    pub fn is_request(self) -> bool {
        !matches!(self, Kind::Kept | Kind::Http2)
    }

    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Kind::LongPoll => "long_poll",
            Kind::Stream => "stream",
            Kind::WebSocket => "websocket",
            Kind::Kept => "kept",
            Kind::Http2 => "http2",
            Kind::Mqtt => "mqtt",
            Kind::Tunnel => "tunnel",
        }
    }
}

/// For each kind: how many, and their bytes.
static PARKED: Tally<{ 2 * Kind::ALL.len() }> = Tally::new();

/// One more (1) or less (-1).
pub(super) fn count(resident: &dyn Resident, by: i64) {
    let (mine, at) = (PARKED.mine(), 2 * resident.kind() as usize);
    if resident.is_client() {
        mine.add(at, by as u64);
    }
    mine.add(at + 1, (by * resident.bytes() as i64) as u64);
}

/// What a resident takes has changed.
pub fn rebill(kind: Kind, before: usize, now: usize) {
    PARKED.mine().add(2 * kind as usize + 1, (now as u64).wrapping_sub(before as u64));
}

/// What the allocator (mimalloc) takes for so many bytes: its sizes are steps of 16 bytes at first, then four for each doubling.
pub const fn block(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=8 => 8,
        9..=64 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(1 << ((bytes - 1).ilog2() - 2)),
    }
}

/// What is parked of a kind, in all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// Connections.
    pub count: u64,
    /// Bytes that are kept of them, all together; lists that they stand in not counted.
    pub bytes: u64,
}

/// What is parked.
pub fn bill() -> [(Kind, Bill); Kind::ALL.len()] {
    let sums = PARKED.sums();
    Kind::ALL.map(|kind| (kind, Bill { count: sums[2 * kind as usize], bytes: sums[2 * kind as usize + 1] }))
}

/// How many descriptors the process may have.
pub fn descriptors() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many connections a thread may have parked.
pub fn most_of(snapshot: &Snapshot) -> u64 {
    let process = &snapshot.process;
    let by_memory = || memory_bytes() / LEAST_BYTES / process.threads.max(1) as u64;
    process.worker_parked_connections.map_or_else(by_memory, |count| count as u64)
}

/// Why nothing can be parked here, how many connections can be held then, and what to raise for more.
pub fn held_without_rings(why: &Refused, nofile: Option<u64>) -> String {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = nofile.or(limits.current).unwrap_or(u64::MAX);
    let hard = limits.maximum.map_or("none".to_owned(), |hard| hard.to_string());
    let kernel = |name: &str| std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
    format!(
        "connections that wait take a descriptor each, since io_uring is not to be had here ({why}): {most} at most. For more raise \
         worker_rlimit_nofile (hard limit: {hard}), fs.nr_open ({}) and fs.file-max ({}); a hard limit above fs.nr_open locks root out of login",
        kernel("nr_open").trim(),
        kernel("file-max").trim()
    )
}

/// Why no more can be parked than are now, and what to raise.
pub(super) fn no_more_parked(why: &io::Error, most: usize) -> String {
    let parked: u64 = bill().iter().map(|(_, bill)| bill.count).sum();
    let cure = match why.raw_os_error() {
        Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l, LimitMEMLOCK= of systemd), which queues of io_uring count for, or memory".to_owned(),
        Some(libc::ENFILE) => "raise fs.file-max".to_owned(),
        Some(libc::EMFILE) => "raise worker_rlimit_nofile".to_owned(),
        _ => format!("a thread may have {most}: raise worker_parked_connections, or have more memory"),
    };
    format!(
        "{parked} connections are parked, and no more can be {}; others keep a descriptor and a task. For more {cure}",
        Errno(why)
    )
}

/// The machine's memory; where it cannot be read, little of it.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kb = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kb.map_or(1 << 30, |kb| kb * 1024)
}
