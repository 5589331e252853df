//! `/ironweir/memory`: the bill of connections. How many there are of which kind, what each takes of the server's memory and of the kernel's,
//! and how many more would fit, by what would end first. And what the process has its memory for, as far as it is counted ([`purposes`]).
//! `/ironweir/ports`: what connections to peers take of the machine's local ports.

use super::error::Failure;
use super::schema::{Field, Schema, field, maybe, number};
use super::table::Context;
use crate::connection::{parked, pool};
use crate::modules::lua::machine;
use crate::modules::nchan;
use crate::snapshot::Snapshot;
use crate::status::metrics::Page;
use crate::status::requests;
use crate::tls::sessions;
use crate::upstream;
use crate::worker::counters;
use doctor::local_ports::{self, Held, Range};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// What the kernel keeps for a TCP connection, by its slabs on Linux 6.18, bytes: where `/proc/slabinfo` may not be read.
const SLABS: [(&str, u64); 5] =
    [("TCP", 2368), ("sock_inode_cache", 832), ("filp", 192), ("dentry", 192), ("io_kiocb", 256)];
/// Beside the slabs: what epoll or a ring's table keeps of the file.
const OTHER_KERNEL_BYTES: u64 = 64;
/// What an idle connection that has a task takes of the server's memory, by measurement (docs/push.md).
const TASK_BYTES: u64 = 1228;
/// However silent they are, so many sockets are thought to have a page of buffers.
const MOST_A_PAGE: u64 = 64;
/// Fewer sockets than these say nothing of what very many would take: a single transfer may have most of their pages.
const ENOUGH_SOCKETS: u64 = 1000;
/// Pages that the kernel counts and keeps at a processor for whoever is next (`net.core.mem_pcpu_rsv`).
const PAGES_A_CPU: u64 = 256;
/// Bytes of a page of a zone, as nginx's allocator would count them.
const ZONE_PAGE: u64 = 4096;
/// What an idle connection to a peer takes beside its own record, by the sizes of a task's timer, a registration and a counted descriptor.
const PEER_BYTES: u64 = 160;

const PURPOSE: Schema =
    Schema::Object(&[number("bytes"), maybe("count", Schema::Number), field("estimated", Schema::Flag)]);
const KIND: Schema = Schema::Object(&[number("count"), number("user_bytes")]);
const FIELDS: &[Field] = &[
    field("connections", Schema::Object(&[number("open"), number("idle"), field("parked", Schema::Map(&KIND))])),
    field(
        "each",
        Schema::Object(&[
            maybe("user_bytes_parked", Schema::Number),
            number("user_bytes_with_task"),
            number("kernel_bytes"),
            field("kernel", Schema::Map(&Schema::Number)),
        ]),
    ),
    field(
        "process",
        Schema::Object(&[
            number("resident_bytes"),
            number("anonymous_bytes"),
            number("file_bytes"),
            number("shared_bytes"),
            number("lua_bytes"),
            number("descriptors"),
            number("descriptors_limit"),
        ]),
    ),
    field("purposes", Schema::Map(&PURPOSE)),
    field(
        "tcp",
        Schema::Object(&[
            maybe("sockets", Schema::Number),
            maybe("orphans", Schema::Number),
            maybe("pages", Schema::Number),
            maybe("pages_pressure", Schema::Number),
            maybe("pages_limit", Schema::Number),
        ]),
    ),
    field("machine", Schema::Object(&[maybe("total_bytes", Schema::Number), maybe("available_bytes", Schema::Number)])),
    field(
        "fits",
        Schema::Object(&[
            number("parked_more"),
            number("with_task_more"),
            field("parked_ends_by", Schema::Text),
            field("with_task_ends_by", Schema::Text),
        ]),
    ),
];

/// `/ironweir/memory`
pub(super) static MEMORY: Schema = Schema::Object(FIELDS);

/// See the file's head.
pub(super) fn memory(context: &Context) -> Result<Value, Failure> {
    let bills = parked::bill();
    let (count, bytes) = bills.iter().fold((0, 0), |(n, b), (_, bill)| (n + bill.count, b + bill.bytes));
    let each = (count > 0).then(|| bytes.div_ceil(count) + parked::LIST_BYTES);
    let mut kinds = Map::new();
    for (kind, bill) in bills {
        kinds.insert(kind.name().to_owned(), json!({"count": bill.count, "user_bytes": bill.bytes}));
    }
    let kernel = kernel_bytes();
    let kernel_each = kernel.iter().map(|(_, bytes)| bytes).sum::<u64>() + OTHER_KERNEL_BYTES;
    let sockets = Numbers::read("/proc/net/sockstat");
    let machine = Numbers::read("/proc/meminfo");
    let [_, pressure, limit] = tcp_mem();
    let process = &context.call.snapshot.process;
    let (descriptors, descriptors_limit) = (open_descriptors(), parked::descriptors());
    let available = machine.after("MemAvailable:").map(|kb| kb * 1024);
    let tcp_pages = sockets.tcp("mem");
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let tcp_room = limit
        .zip(tcp_pages)
        .map(|(limit, pages)| tcp_room(limit, pages, sockets.tcp("inuse").unwrap_or(0), cpus * PAGES_A_CPU));
    let most = parked::most_of(&context.call.snapshot).saturating_mul(process.threads.max(1) as u64);
    let user_each = each.unwrap_or(parked::TYPICAL_BYTES);
    let parked_more = least([
        ("memory", available.map(|bytes| bytes / (user_each + kernel_each))),
        ("tcp_mem", tcp_room),
        ("worker_parked_connections", Some(most.saturating_sub(count))),
    ]);
    let seats = (process.worker_connections as u64).saturating_mul(process.threads.max(1) as u64);
    let with_task = with_task();
    let with_task_more = least([
        ("memory", available.map(|bytes| bytes / (TASK_BYTES + kernel_each))),
        ("tcp_mem", tcp_room),
        ("descriptors", Some(descriptors_limit.saturating_sub(descriptors))),
        ("worker_connections", Some(seats.saturating_sub(with_task))),
    ]);
    let mut slabs: Map<String, Value> = kernel.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
    slabs.insert("other".to_owned(), json!(OTHER_KERNEL_BYTES));
    let (sum, resident) = (counters::sum(), Resident::read());
    Ok(json!({
        "connections": {"open": sum.active, "idle": sum.waiting, "parked": kinds},
        "each": known([
            ("user_bytes_parked", each.map(Value::from)),
            ("user_bytes_with_task", Some(TASK_BYTES.into())),
            ("kernel_bytes", Some(kernel_each.into())),
            ("kernel", Some(slabs.into())),
        ]),
        "process": {
            "resident_bytes": resident.all(), "anonymous_bytes": resident.anonymous, "file_bytes": resident.file, "shared_bytes": resident.shared,
            "lua_bytes": machine::bytes(), "descriptors": descriptors, "descriptors_limit": descriptors_limit,
        },
        "purposes": bill_of(&context.call.snapshot, &resident),
        "tcp": known([
            ("sockets", sockets.tcp("inuse").map(Value::from)),
            ("orphans", sockets.tcp("orphan").map(Value::from)),
            ("pages", tcp_pages.map(Value::from)),
            ("pages_pressure", pressure.map(Value::from)),
            ("pages_limit", limit.map(Value::from)),
        ]),
        "machine": known([
            ("total_bytes", machine.after("MemTotal:").map(|kb| (kb * 1024).into())),
            ("available_bytes", available.map(Value::from)),
        ]),
        "fits": {
            "parked_more": parked_more.1, "parked_ends_by": parked_more.0,
            "with_task_more": with_task_more.1, "with_task_ends_by": with_task_more.0,
        },
    }))
}

/// How many more sockets `tcp_mem` leaves room for. Who is silent has no pages: what all have now is what others will have, where they are
/// enough to tell. `spare`: pages that may be nobody's.
fn tcp_room(limit: u64, pages: u64, sockets: u64, spare: u64) -> u64 {
    let each_page = match pages.saturating_sub(spare) {
        taken if taken > 0 && sockets >= ENOUGH_SOCKETS => (sockets / taken).clamp(1, MOST_A_PAGE),
        _ => MOST_A_PAGE,
    };
    limit.saturating_sub(pages).saturating_mul(each_page)
}

/// Those that are known.
fn known<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(known.collect())
}

/// What ends first, and when.
fn least<const N: usize>(ends: [(&'static str, Option<u64>); N]) -> (&'static str, u64) {
    let known = ends.into_iter().filter_map(|(name, room)| Some((name, room?)));
    known.min_by_key(|(_, room)| *room).unwrap_or(("unknown", 0))
}

/// What the kernel's slabs take for a connection, as far as it tells.
fn kernel_bytes() -> [(&'static str, u64); SLABS.len()] {
    let text = std::fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    SLABS.map(|(name, typical)| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        let size = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
        (name, size.unwrap_or(typical))
    })
}

fn tcp_mem() -> [Option<u64>; 3] {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(|n| n.parse().ok());
    [(); 3].map(|()| numbers.next().flatten())
}

fn open_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64)
}

/// Connections that have a task, and so are not parked.
fn with_task() -> u64 {
    let parked: u64 = parked::bill().iter().map(|(_, bill)| bill.count).sum();
    u64::try_from(counters::sum().active).unwrap_or(0).saturating_sub(parked)
}

/// Requests that are processed and not parked: of those nothing is left but what is billed as parked.
fn requests_with_task() -> u64 {
    let parked: u64 = parked::bill().iter().filter(|(kind, _)| kind.is_request()).map(|(_, bill)| bill.count).sum();
    requests::totals(&requests::ALL).processing.saturating_sub(parked)
}

/// What of the process is in memory, bytes (`/proc/self/status`).
struct Resident {
    /// The process's own.
    anonymous: u64,
    /// Pages of files: the program, libraries.
    file: u64,
    /// Shared with others.
    shared: u64,
}

impl Resident {
    fn read() -> Resident {
        let status = Numbers::read("/proc/self/status");
        let bytes = |name: &str| status.after(name).unwrap_or(0) * 1024;
        Resident { anonymous: bytes("RssAnon:"), file: bytes("RssFile:"), shared: bytes("RssShmem:") }
    }

    fn all(&self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

/// What memory is for.
struct Purpose {
    name: &'static str,
    bytes: u64,
    /// How many there are of what it is for, where that can be counted.
    count: Option<u64>,
    /// By a typical size, not by a count of bytes.
    is_estimate: bool,
}

/// What the process has memory for, as far as somebody counts it. Not counted: the configuration and what was compiled for it, stacks of
/// threads, bodies and buffers of requests beyond the first, sketches of guards, contexts of JavaScript, connections to clients over TLS and
/// streams beyond a plain connection's size, and what the allocator holds free.
fn purposes(snapshot: &Snapshot) -> Vec<Purpose> {
    let counted = |name, bytes| Purpose { name, bytes, count: None, is_estimate: false };
    let each =
        |name, count: u64, size: u64| Purpose { name, bytes: count * size, count: Some(count), is_estimate: true };
    let (parked, parked_bytes) =
        parked::bill().iter().fold((0, 0), |(n, bytes), (_, bill)| (n + bill.count, bytes + bill.bytes));
    let planes = || std::iter::once(snapshot).chain(snapshot.stream.as_deref());
    let pages: usize = planes().flat_map(|plane| plane.main.zone_pages()).map(|(_, used, _)| used).sum();
    let caches = &snapshot.main.cache.caches;
    let (entries, indexes) = caches
        .iter()
        .map(|cache| &cache.zone.index)
        .fold((0, 0), |(n, bytes), index| (n + index.count() as u64, bytes + index.bytes()));
    let kept = pool::kept();
    let peer_bytes = size_of::<upstream::pool::Connection>() as u64 + PEER_BYTES;
    vec![
        each("connections", with_task(), TASK_BYTES),
        each("requests", requests_with_task(), pool::REQUEST as u64),
        Purpose { count: Some(parked), ..counted("parked", parked_bytes + parked * parked::LIST_BYTES) },
        each("upstream_connections", upstream::pool::all_idle(), peer_bytes),
        counted("pools", kept.pools),
        counted("file_contents", kept.files),
        counted("zones", pages as u64 * ZONE_PAGE),
        counted("dictionaries", ::lua::dict::bytes()),
        Purpose { count: Some(entries), ..counted("cache_indexes", indexes) },
        counted("tls_sessions", sessions::bytes()),
        counted("channels", nchan::channel_bytes()),
        counted("lua", machine::bytes()),
    ]
}

/// The purposes, and what is left of the process's own memory.
fn bill_of(snapshot: &Snapshot, resident: &Resident) -> Value {
    let purposes = purposes(snapshot);
    let known: u64 = purposes.iter().map(|p| p.bytes).sum();
    let show = |p: Purpose| {
        let mut value = json!({"bytes": p.bytes, "estimated": p.is_estimate});
        if let Some(count) = p.count {
            value["count"] = json!(count);
        }
        (p.name.to_owned(), value)
    };
    let mut all: Map<_, _> = purposes.into_iter().map(show).collect();
    all.insert("other".to_owned(), json!({"bytes": resident.anonymous.saturating_sub(known), "estimated": true}));
    all.into()
}

/// The same for `prometheus`.
pub fn add_metrics(page: &mut Page, snapshot: &Snapshot) {
    let (purposes, resident) = (purposes(snapshot), Resident::read());
    let known: u64 = purposes.iter().map(|p| p.bytes).sum();
    let mut rows: Vec<_> = purposes.iter().map(|p| (p.name, p.bytes)).collect();
    rows.push(("other", resident.anonymous.saturating_sub(known)));
    let help = "What the process has memory for; other is the rest of its anonymous memory.";
    page.each(("ironweir_memory_bytes", "gauge", help), &rows, |(name, bytes)| {
        Some((vec![("purpose", (*name).to_owned())], *bytes))
    });
    page.one("ironweir_memory_anonymous_bytes", "gauge", "The process's own memory (RssAnon).", resident.anonymous);
}

/// A file of names and numbers.
struct Numbers(String);

impl Numbers {
    fn read(path: &str) -> Numbers {
        Numbers(std::fs::read_to_string(path).unwrap_or_default())
    }

    fn after(&self, name: &str) -> Option<u64> {
        let mut lines = self.0.lines().filter_map(|line| line.strip_prefix(name));
        lines.next()?.split_whitespace().next()?.parse().ok()
    }

    /// A number of the line about TCP in `sockstat`.
    fn tcp(&self, name: &str) -> Option<u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix("TCP:"))?;
        let mut words = line.split_whitespace();
        words.find(|word| *word == name)?;
        words.next()?.parse().ok()
    }
}

const BEGUN: Schema = Schema::Object(&[field("to", Schema::Text), number("begun"), number("without_port")]);
const HELD: Schema = Schema::Object(&[
    field("from", Schema::Text),
    field("to", Schema::Text),
    number("ports"),
    number("time_wait"),
    maybe("used", Schema::Ratio),
]);
/// `/ironweir/ports`
pub(super) static PORTS: Schema = Schema::Object(&[
    maybe("range", Schema::Object(&[number("first"), number("last"), number("usable")])),
    field("begun", Schema::List(&BEGUN)),
    maybe("held", Schema::List(&HELD)),
]);

/// `/ironweir/ports`: connections over TCP that this process began to peers (and programs in Lua and JavaScript to whomever), by destination, and those for
/// which no local port was left; and who holds ports for these destinations now, this process and others, TIME_WAIT included, by the kernel's word: only if
/// it is wanted, since the kernel walks all sockets of the machine.
pub(super) fn ports(context: &Context) -> Result<Value, Failure> {
    let begun = upstream::ports::begun();
    let range = Range::read();
    let show =
        |b: &upstream::ports::Begun| json!({"to": b.to.to_string(), "begun": b.begun, "without_port": b.without_port});
    let mut value = json!({"begun": begun.iter().map(show).collect::<Vec<_>>()});
    if let Some(Range { first, last, usable }) = range {
        value["range"] = json!({"first": first, "last": last, "usable": usable});
    }
    if context.wanted.has("held")
        && let Ok(held) = local_ports::held(&destinations(&begun))
    {
        let show = |h: Held| {
            let mut value = json!({"from": h.from, "to": h.to, "ports": h.ports, "time_wait": h.time_wait});
            if let Some(usable) = range.map(|r| r.usable).filter(|n| *n > 0) {
                value["used"] = json!(h.ports as f64 / usable as f64);
            }
            value
        };
        value["held"] = held.into_iter().map(show).collect();
    }
    Ok(value)
}

fn destinations(begun: &[upstream::ports::Begun]) -> Vec<SocketAddr> {
    begun.iter().map(|b| b.to).collect()
}

/// With more sockets than these on the machine a scrape does not ask the kernel who holds ports: it would cost a tenth of a second.
const MOST_SCRAPED: u64 = 200_000;
/// Destinations that a scrape shows: those with the most connections.
const SHOWN_DESTINATIONS: usize = 200;

/// The same for `prometheus`.
pub fn add_port_metrics(page: &mut Page) {
    let mut begun = upstream::ports::begun();
    begun.truncate(SHOWN_DESTINATIONS);
    let to = |b: &upstream::ports::Begun| vec![("to", b.to.to_string())];
    page.each(("ironweir_upstream_connects_total", "counter", "Connections over TCP that were begun."), &begun, |b| {
        Some((to(b), b.begun))
    });
    let help = "Connections for which no local port was left.";
    page.each(("ironweir_upstream_connects_without_port_total", "counter", help), &begun, |b| {
        Some((to(b), b.without_port))
    });
    if let Some(range) = Range::read().filter(|_| !begun.is_empty()) {
        page.one("ironweir_local_ports_usable", "gauge", "Local ports for each destination.", range.usable);
    }
    if local_ports::sockets() > MOST_SCRAPED {
        return;
    }
    let held = local_ports::held(&destinations(&begun)).unwrap_or_default();
    let ends = |h: &Held| vec![("from", h.from.clone()), ("to", h.to.clone())];
    let help = "Local ports that connections hold, of this process and of others, TIME_WAIT included.";
    page.each(("ironweir_upstream_local_ports", "gauge", help), &held, |h| Some((ends(h), h.ports)));
    let help = "Of those, ports of connections that are gone.";
    page.each(("ironweir_upstream_local_ports_time_wait", "gauge", help), &held, |h| Some((ends(h), h.time_wait)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        let sockets = Numbers("sockets: used 28\nTCP: inuse 7 orphan 1 tw 0 alloc 9 mem 54\n".into());
        assert_eq!([sockets.tcp("inuse"), sockets.tcp("mem"), sockets.tcp("x")], [Some(7), Some(54), None]);
        // An idle machine, one transfer, and many that do have buffers.
        assert_eq!(tcp_room(1000, 500, 1, 512), 500 * MOST_A_PAGE);
        assert_eq!(tcp_room(1000, 800, 3, 512), 200 * MOST_A_PAGE);
        assert_eq!(tcp_room(100_000, 20_512, 60_000, 512), 79_488 * 3);
        let machine = Numbers("MemTotal:       24600000 kB\nMemAvailable:   20000 kB\n".into());
        assert_eq!(machine.after("MemAvailable:"), Some(20000));
        assert_eq!(least([("a", None), ("b", Some(3)), ("c", Some(2))]), ("c", 2));
    }
}
