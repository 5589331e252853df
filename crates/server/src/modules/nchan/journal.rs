//! Channels outlive a crash of their process: messages are written to an anonymous file (memfd) that the master has as well, before their
//! publishers hear that they are in. The next worker reads it before it accepts anything. Around: `serve`. The file is memory: it costs a write for a
//! message, and nothing of a disk.
//!
//! ```text
//!   where the journal begins (8 bytes), then records: length (4 bytes), a frame of heir's
//! ```
//! When what is of no use any more is more than the rest, a thread writes all channels behind the end, and the journal begins there.
//!
//! Sessions of MQTT that are to last are in it as well (`mqtt/offline.rs`), each as a record and what was put by for it since. They are their
//! threads': the journal knows where its records of each are, and writes those again.

use super::hub::STORE;
use super::succession;
use crate::log::error::Level;
use crate::log::process_line;
use heir::{Frame, Late, Reader, Writer};
use push::{Entry, Id, Journal, Kept, Message, Packed};
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::{pread, pwrite};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Bytes in front of the records.
const HEAD: u64 = 8;
/// Bytes in front of a record.
const LENGTH: usize = 4;
/// A record is a message, or a part of a channel.
const MOST_RECORD: usize = 1 << 30;
/// A journal is as long as the channels twice, and this.
const SLACK: u64 = 1024 * 1024;
/// Of [`Frame::Zone`]: a message.
const MESSAGE: &[u8] = b"message";

/// The same: a session of MQTT; without rows: it is over.
const SESSION: &[u8] = b"session";
/// The same: what was put by for a session.
const WAITS: &[u8] = b"waits";
/// Records of one session before all of it is to be said anew: more than wait at once.
const MOST_OF_SESSION: usize = 2000;

/// A journal that is written.
struct Log {
    file: Arc<OwnedFd>,
    ends: Mutex<Ends>,
    /// Where the records of sessions are, by the names of these. A lock that is taken before that of `ends`.
    sessions: Mutex<HashMap<Box<[u8]>, Vec<Place>>>,
    /// Bytes of those records.
    of_sessions: AtomicU64,
    /// Has it begin anew.
    full: SyncSender<()>,
}

/// Where a record is.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    length: u32,
}

/// A session as a journal has it: all of it, and what was put by since.
#[derive(Default)]
pub(super) struct Restored {
    /// All of it.
    pub(super) whole: Vec<u8>,
    /// What was put by.
    pub(super) waits: Vec<Vec<u8>>,
}

/// The journal of this process.
static LOG: OnceLock<Arc<Log>> = OnceLock::new();
/// Sessions of a worker that has crashed, until a thread goes on with them.
static RESTORED: Mutex<Vec<(Box<[u8]>, Restored)>> = Mutex::new(Vec::new());

/// Whether there is a journal.
pub(super) fn is_kept() -> bool {
    LOG.get().is_some()
}

/// Says what a session of MQTT is now.
pub(super) fn session(key: &[u8], whole: &[u8]) {
    if let Some(log) = LOG.get() {
        log.session(key, whole);
    }
}

/// A session is over.
pub(super) fn session_over(key: &[u8]) {
    if let Some(log) = LOG.get() {
        log.session_over(key);
    }
}

/// Says what was put by for a session. False: all of it is to be said anew.
pub(super) fn waits(key: &[u8], what: &[u8]) -> bool {
    LOG.get().is_none_or(|log| log.waits(key, what))
}

/// Whether there are sessions of a worker that has crashed, with which no thread has gone on yet.
pub fn has_restored() -> bool {
    !RESTORED.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

/// Has a thread go on with the sessions of a worker that has crashed. Whoever asks meanwhile waits until it does.
pub(super) fn take_restored(mut go_on: impl FnMut(Box<[u8]>, Restored)) {
    let mut restored = RESTORED.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *restored).into_iter().for_each(|(key, session)| go_on(key, session));
}

/// From where to where the records are.
#[derive(Clone, Copy)]
struct Ends {
    start: u64,
    end: u64,
}

impl Log {
    /// Adds a record; where it is. One that there is no memory for is lost, as the crash would lose it.
    fn append(&self, frame: &[u8]) -> Option<Place> {
        let length = u32::try_from(frame.len()).ok()?;
        self.append_record(&[&length.to_le_bytes(), frame].concat())
    }

    fn append_record(&self, record: &[u8]) -> Option<Place> {
        let length = u32::try_from(record.len()).ok()?;
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let at = ends.end;
        let is_written = write_all(&*self.file, record, at).is_ok();
        if is_written {
            ends.end += record.len() as u64;
        }
        if ends.end - ends.start > 2 * (STORE.sums().memory + self.of_sessions.load(Relaxed)) + SLACK {
            let _ = self.full.try_send(());
        }
        is_written.then_some(Place { at, length })
    }

    fn session(&self, key: &[u8], whole: &[u8]) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = self.append(&Frame::Zone(SESSION, key, whole).write()) else { return };
        self.of_sessions.fetch_add(place.length.into(), Relaxed);
        match sessions.get_mut(key) {
            Some(before) => self.forget(&std::mem::replace(before, vec![place])),
            None => drop(sessions.insert(key.into(), vec![place])),
        }
    }

    fn session_over(&self, key: &[u8]) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = sessions.remove(key) {
            self.forget(&before);
            let _ = self.append(&Frame::Zone(SESSION, key, b"").write());
        }
    }

    fn waits(&self, key: &[u8], what: &[u8]) -> bool {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(places) = sessions.get_mut(key).filter(|places| places.len() < MOST_OF_SESSION) else { return false };
        if let Some(place) = self.append(&Frame::Zone(WAITS, key, what).write()) {
            self.of_sessions.fetch_add(place.length.into(), Relaxed);
            places.push(place);
        }
        true
    }

    fn forget(&self, places: &[Place]) {
        self.of_sessions.fetch_sub(places.iter().map(|place| u64::from(place.length)).sum(), Relaxed);
    }

    /// Writes a session that has records before `start` behind the end. All of its records, so that they stay in their order.
    fn copy_session(&self, key: &[u8], start: u64) -> io::Result<()> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(places) = sessions.get_mut(key).filter(|places| places.iter().any(|place| place.at < start)) else {
            return Ok(());
        };
        for place in places {
            let mut record = vec![0; place.length as usize];
            read_exact(&*self.file, &mut record, place.at)?;
            *place = self.append_record(&record).ok_or(io::ErrorKind::StorageFull)?;
        }
        Ok(())
    }

    /// Writes all channels behind the end, where the journal begins then; what was before goes back to the system.
    fn begin_anew(&self) -> io::Result<()> {
        let start = self.ends.lock().unwrap_or_else(PoisonError::into_inner).end;
        succession::copy(|frame| {
            let _ = self.append(&frame);
        });
        let keys: Vec<Box<[u8]>> =
            self.sessions.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
        keys.iter().try_for_each(|key| self.copy_session(key, start))?;
        write_all(&*self.file, &start.to_le_bytes(), 0)?;
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).start = start;
        if start == HEAD {
            return Ok(());
        }
        let gone = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&*self.file, gone, HEAD, start - HEAD)?)
    }
}

impl Journal for Log {
    fn published(&self, name: &[u8], message: &Message, kept: Kept) {
        let mut rows = Writer::default();
        rows.signed(message.id.time);
        rows.signed(message.id.tag.into());
        rows.number(message.order());
        rows.signed(message.at());
        rows.number(kept.length as u64);
        rows.signed(kept.timeout);
        let mut packed = Vec::new();
        message.pack(message.at(), &mut packed);
        rows.bytes(&packed);
        let _ = self.append(&Frame::Zone(MESSAGE, name, &rows.done()).write());
    }

    fn deleted(&self, name: &[u8]) {
        let _ = self.append(&Frame::Late(Late::Delete(name)).write());
    }
}

fn write_all(file: impl AsFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match pwrite(file.as_fd(), bytes, at)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => (bytes, at) = (&bytes[n..], at + n as u64),
        }
    }
    Ok(())
}

fn read_exact(file: impl AsFd, bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(file.as_fd(), &mut bytes[done..], at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (done, at) = (done + n, at + n as u64),
        }
    }
    Ok(())
}

/// What there is after a crash.
#[derive(Default)]
struct Back {
    messages: u64,
    sessions: HashMap<Box<[u8]>, Restored>,
}

/// Takes back what a worker had that has crashed.
fn restore(file: &OwnedFd) -> io::Result<Back> {
    let mut back = Back::default();
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    let mut head = [0; HEAD as usize];
    if size < HEAD {
        return Ok(back);
    }
    read_exact(file, &mut head, 0)?;
    let (mut at, now) = (u64::from_le_bytes(head), super::hub::now());
    while at + LENGTH as u64 <= size {
        let mut length = [0; LENGTH];
        read_exact(file, &mut length, at)?;
        let length = u32::from_le_bytes(length) as usize;
        at += LENGTH as u64;
        // The crash has cut the last one off.
        if length == 0 || length > MOST_RECORD || length as u64 > size - at {
            break;
        }
        let mut bytes = vec![0; length];
        read_exact(file, &mut bytes, at)?;
        at += length as u64;
        let Ok(frame) = Frame::read(&bytes) else { continue };
        match frame {
            Frame::Channels(all) => all.iter().for_each(succession::settle),
            Frame::Zone(MESSAGE, name, rows) => drop(message(name, rows, now)),
            Frame::Zone(SESSION, key, b"") => drop(back.sessions.remove(key)),
            Frame::Zone(SESSION, key, whole) => {
                back.sessions.insert(key.into(), Restored { whole: whole.to_vec(), waits: Vec::new() });
            }
            Frame::Zone(WAITS, key, what) => {
                back.sessions.get_mut(key).into_iter().for_each(|session| session.waits.push(what.to_vec()));
            }
            Frame::Zone(succession::RETAINED, name, packed) => succession::settle_retained(name, packed),
            Frame::Late(Late::Delete(name)) => drop(STORE.delete(name, now)),
            _ => {}
        }
    }
    back.messages = STORE.sums().messages;
    Ok(back)
}

fn message(name: &[u8], rows: &[u8], now: i64) -> Option<()> {
    let mut r = Reader::new(rows);
    let id = Id { time: r.signed()?, tag: i32::try_from(r.signed()?).ok()? };
    let (order, at) = (r.number()?, r.signed()?);
    let kept = Kept { length: usize::try_from(r.number()?).ok()?, timeout: r.signed()? };
    let packed = Packed::read(r.bytes()?).ok()?;
    // One that there is no room for is lost.
    STORE.restore(&Entry { name, id, order, at, packed, kept }, now).ok()
}

/// From now on what happens to channels is written to `file`, after what is in them already. `before`: of a worker that has crashed.
pub fn begin(file: Arc<OwnedFd>, before: Option<&OwnedFd>) {
    let mut back = Back::default();
    if let Some(before) = before {
        match restore(before) {
            Ok(restored) => {
                back = restored;
                for (count, what) in [
                    (back.messages, "messages in channels have"),
                    (back.sessions.len() as u64, "sessions of MQTT have"),
                ] {
                    if count > 0 {
                        process_line(Level::Notice, format_args!("{count} {what} outlived the worker process before"));
                    }
                }
            }
            Err(e) => {
                let text = crate::log::os_error(&e);
                process_line(Level::Error, format_args!("messages of the worker process before are lost ({text})"));
            }
        }
    }
    let (full, wanted) = sync_channel(1);
    let ends = Mutex::new(Ends { start: HEAD, end: HEAD });
    let log = Arc::new(Log { file, ends, sessions: Mutex::default(), of_sessions: AtomicU64::new(0), full });
    let keeper = log.clone();
    let begun = log.begin_anew().and_then(|()| {
        let work = move || keep(&keeper, &wanted);
        std::thread::Builder::new().name("journal".to_owned()).spawn(work)
    });
    match begun {
        Ok(_) => {
            for (key, session) in &back.sessions {
                log.session(key, &session.whole);
                session.waits.iter().for_each(|what| {
                    let _ = log.waits(key, what);
                });
            }
            let _ = LOG.set(log.clone());
            STORE.tell(log);
        }
        Err(e) => {
            let text = crate::log::os_error(&e);
            process_line(Level::Error, format_args!("channels will not outlive a crash: no journal ({text})"));
        }
    }
    RESTORED.lock().unwrap_or_else(PoisonError::into_inner).extend(back.sessions);
}

/// Has the journal begin anew, as often as it is long.
fn keep(log: &Log, wanted: &Receiver<()>) {
    while wanted.recv().is_ok() {
        let before = log.ends.lock().unwrap_or_else(PoisonError::into_inner).start;
        if let Err(e) = log.begin_anew() {
            let text = crate::log::os_error(&e);
            process_line(
                Level::Error,
                format_args!("the journal of channels could not be shortened at {before} ({text})"),
            );
            return;
        }
    }
}
