//! Lines of access logs on their way to files. Each thread collects its lines for a file: they leave together when the thread
//! has nothing else to do, after a millisecond at the latest, or, with `buffer=`, when the buffer is full or `flush=` has
//! passed. From: `modules::log`.
//! Never waits, and allocates only while buffers grow.

use super::error::Level;
use super::file::LogFile;
use super::opened::Opened;
use super::timed;
use crate::connection::socket::Socket;
use crate::snapshot::{Snapshot, ThreadSnapshot};
use runtime::Pending;
use runtime::{clock, timer};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// A thread's lines for one file are written when they reach this size, if not before.
const GATHERED: usize = 64 * 1024;
/// So long a busy thread gathers lines, ms.
const GATHER_MS: u64 = 1;
/// A log that cannot be written is complained about this often, in seconds (as in nginx's `ngx_http_log_write`).
const COMPLAIN_EVERY: i64 = 60;

/// A file that access logs write to, whichever levels name it.
#[derive(Debug)]
pub struct LineFile {
    /// Where it is.
    pub path: PathBuf,
    /// How lines are held back, if they are.
    pub buffering: Option<Buffering>,
    /// The open file, once the snapshot's logs have been opened.
    pub file: Option<Arc<LogFile>>,
}

/// The number of a file among those of a configuration, to which it is added if it is new.
pub fn number_of(files: &mut Vec<LineFile>, path: PathBuf) -> usize {
    files.iter().position(|f| f.path == path).unwrap_or_else(|| {
        files.push(LineFile { path, buffering: None, file: None });
        files.len() - 1
    })
}

/// `buffer=`, `flush=`, `gzip=`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// Bytes that are held back at most.
    pub size: usize,
    /// How long they are held back at most.
    pub flush: Option<Duration>,
    /// Compression level of what is written.
    pub gzip: Option<u32>,
}

/// What one thread holds for the files of one snapshot.
#[derive(Default)]
pub struct Lines {
    slots: RefCell<Vec<Slot>>,
    /// Files whose names have variables.
    pub opened: Opened,
}

#[derive(Default)]
struct Slot {
    bytes: Vec<u8>,
    /// Stands in the list of what is to be written soon.
    listed: bool,
    /// When `flush=` passes, ms of the monotonic clock.
    deadline: u64,
    /// A task watches the deadline.
    watched: bool,
    complained_at: i64,
}

/// So many connections wait for their lines at most.
const CLOSE_AT_ONCE: usize = 64;

thread_local! {
    /// What is to be written soon.
    static PENDING: RefCell<Vec<(Rc<ThreadSnapshot>, usize)>> = const { RefCell::new(Vec::new()) };
    /// Since when, ms of the wall clock.
    static SINCE: Cell<u64> = const { Cell::new(0) };
    /// The snapshots whose buffers may hold something, for `flush_thread`.
    static HELD: RefCell<Vec<Weak<ThreadSnapshot>>> = const { RefCell::new(Vec::new()) };
    /// Connections that are closed when their lines are written.
    static CLOSING: RefCell<Vec<Socket>> = const { RefCell::new(Vec::new()) };
}

impl Lines {
    /// The bytes that wait for file number `index`, to append one line to. Give them back with [`add`].
    pub fn take(&self, index: usize) -> Vec<u8> {
        let mut slots = self.slots.borrow_mut();
        if slots.len() <= index {
            slots.resize_with(index + 1, Slot::default);
        }
        std::mem::take(&mut slots[index].bytes)
    }
}

/// Takes back what [`Lines::take`] gave, with one more line from `start` on, and sees to it that it is written in time.
pub fn add(snapshot: &Rc<ThreadSnapshot>, index: usize, bytes: Vec<u8>, start: usize) {
    let spec = &snapshot.main.log.files[index];
    let mut slots = snapshot.lines.slots.borrow_mut();
    let slot = &mut slots[index];
    slot.bytes = bytes;
    match &spec.buffering {
        None if slot.bytes.len() >= GATHERED => slot.write(spec, usize::MAX),
        None => {
            if !std::mem::replace(&mut slot.listed, true) {
                PENDING.with_borrow_mut(|list| {
                    if list.is_empty() {
                        SINCE.set(clock::wall_ms());
                    }
                    list.push((snapshot.clone(), index));
                });
            }
        }
        Some(buffering) => hold(snapshot, slot, spec, buffering, start, index),
    }
}

/// A line goes into the buffer when it fits, else what is there goes first; a line larger than the buffer goes directly.
fn hold(
    snapshot: &Rc<ThreadSnapshot>,
    slot: &mut Slot,
    spec: &LineFile,
    buffering: &Buffering,
    start: usize,
    index: usize,
) {
    let mut first = start == 0;
    if slot.bytes.len() > buffering.size && start > 0 {
        slot.write(spec, start);
        first = true;
    }
    if slot.bytes.len() > buffering.size {
        slot.write(spec, usize::MAX);
    } else if first {
        remember(snapshot);
        if let Some(flush) = buffering.flush {
            slot.deadline = clock::monotonic_ms() + flush.as_millis() as u64;
            if !std::mem::replace(&mut slot.watched, true) {
                runtime::spawn(watch(Rc::downgrade(snapshot), index, flush));
            }
        }
    }
}

fn remember(snapshot: &Rc<ThreadSnapshot>) {
    HELD.with_borrow_mut(|held| {
        let this = Rc::downgrade(snapshot);
        if !held.iter().any(|w| w.ptr_eq(&this)) {
            held.retain(|w| w.strong_count() > 0);
            held.push(this);
        }
    });
}

/// `flush=`: one task as long as there is something to wait for.
async fn watch(snapshot: Weak<ThreadSnapshot>, index: usize, mut wait: Duration) {
    loop {
        timer::sleep(wait).await;
        let Some(snapshot) = snapshot.upgrade() else { return };
        let mut slots = snapshot.lines.slots.borrow_mut();
        let slot = &mut slots[index];
        let left = slot.deadline.saturating_sub(clock::monotonic_ms());
        if slot.bytes.is_empty() || left == 0 {
            slot.write(&snapshot.main.log.files[index], usize::MAX);
            slot.watched = false;
            return;
        }
        wait = Duration::from_millis(left);
    }
}

impl Slot {
    /// Writes the first `len` bytes with one write.
    fn write(&mut self, spec: &LineFile, len: usize) {
        let len = len.min(self.bytes.len());
        if len == 0 {
            return;
        }
        if let Some(file) = &spec.file {
            let now = clock::wall_seconds();
            let bytes = &self.bytes[..len];
            let result = match spec.buffering.and_then(|b| b.gzip) {
                Some(level) => compress(bytes, level).and_then(|c| timed::write(|| file.append(&c, now))),
                None => timed::write(|| file.append(bytes, now)),
            };
            if let Err(e) = result
                && now - self.complained_at >= COMPLAIN_EVERY
            {
                self.complained_at = now;
                let (path, e) = (spec.path.display(), super::os_error(&e));
                super::process_line(Level::Alert, format_args!("write() to \"{path}\" failed ({e})"));
            }
        }
        if len == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..len);
        }
    }
}

/// One gzip member.
fn compress(bytes: &[u8], level: u32) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    let room = Vec::with_capacity(bytes.len() / 4 + 64);
    let mut encoder = flate2::write::GzEncoder::new(room, flate2::Compression::new(level));
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// What the thread has gathered.
pub fn pending() -> Pending {
    if PENDING.try_with(|list| list.borrow().is_empty()).unwrap_or(true) {
        return Pending::Nothing;
    }
    let waiting = CLOSING.try_with(|c| !c.borrow().is_empty()).unwrap_or(false);
    if waiting || clock::wall_ms().abs_diff(SINCE.get()) > GATHER_MS { Pending::Due } else { Pending::CanWait }
}

/// Writes what the thread has gathered. Called before the thread sleeps.
pub fn write_pending() {
    let _ = PENDING.try_with(|pending| {
        let mut list = std::mem::take(&mut *pending.borrow_mut());
        for (snapshot, index) in list.drain(..) {
            let mut slots = snapshot.lines.slots.borrow_mut();
            slots[index].listed = false;
            slots[index].write(&snapshot.main.log.files[index], usize::MAX);
        }
        *pending.borrow_mut() = list;
    });
    let closing = CLOSING.try_with(|c| std::mem::take(&mut *c.borrow_mut()));
    drop(closing);
}

/// Closes a connection once the lines gathered so far are written: who sees the end of it finds them in the log.
pub fn close_after_lines(socket: Socket) {
    if pending() == Pending::Nothing {
        return;
    }
    if socket.is_held() {
        // Its last bytes wait for the end, and should not wait for other requests.
        return write_pending();
    }
    let full = CLOSING.with_borrow_mut(|c| {
        c.push(socket);
        c.len() >= CLOSE_AT_ONCE
    });
    if full {
        write_pending();
    }
}

/// Writes everything that the thread holds back: before logs are reopened, and at the thread's end.
pub fn flush_thread() {
    write_pending();
    let held: Vec<Rc<ThreadSnapshot>> = HELD.with_borrow(|h| h.iter().filter_map(Weak::upgrade).collect());
    for snapshot in held {
        snapshot.lines.flush(snapshot.snapshot());
        snapshot.lines.opened.close_all();
    }
}

impl Lines {
    /// Writes everything that is held back.
    pub fn flush(&self, snapshot: &Snapshot) {
        for (slot, spec) in self.slots.borrow_mut().iter_mut().zip(&snapshot.main.log.files) {
            slot.write(spec, usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn spec(name: &str, buffering: Option<Buffering>) -> LineFile {
        let path = std::env::temp_dir().join(format!("ironweir-lines-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let file = Some(Arc::new(LogFile::open(&path).unwrap()));
        LineFile { path, buffering, file }
    }

    #[test]
    fn part_of_what_waits_is_written_and_the_rest_stays() {
        let spec = spec("part", None);
        let mut slot = Slot { bytes: b"one\ntwo\n".to_vec(), ..Slot::default() };
        slot.write(&spec, 4);
        assert_eq!(slot.bytes, b"two\n");
        slot.write(&spec, usize::MAX);
        assert_eq!(std::fs::read(&spec.path).unwrap(), b"one\ntwo\n");
        std::fs::remove_file(&spec.path).unwrap();
    }

    #[test]
    fn each_write_is_a_gzip_member() {
        let buffering = Buffering { size: 10, flush: None, gzip: Some(1) };
        let spec = spec("gzip", Some(buffering));
        for line in [&b"one\n"[..], b"two\n"] {
            let mut slot = Slot { bytes: line.to_vec(), ..Slot::default() };
            slot.write(&spec, usize::MAX);
        }
        let packed = std::fs::read(&spec.path).unwrap();
        let mut text = String::new();
        flate2::read::MultiGzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
        std::fs::remove_file(&spec.path).unwrap();
    }
}
