//! Channels outlive a crash of their process: messages are written to an anonymous file (memfd) that the master has as well, before their
//! publishers hear that they are in. The next worker reads it before it accepts anything. Around: `serve`. The file is memory: it costs a write for a
//! message, and nothing of a disk.
//!
//! ```text
//!   where the journal begins (8 bytes), then records: length (4 bytes), a frame of heir's
//! ```
//! When what is of no use any more is more than the rest, a thread writes all channels behind the end, and the journal begins there.

use super::hub::STORE;
use super::succession;
use crate::log::error::Level;
use crate::log::process_line;
use heir::{Frame, Late, Reader, Writer};
use push::{Entry, Id, Journal, Kept, Message, Packed};
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

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

/// A journal that is written.
struct Log {
    file: Arc<OwnedFd>,
    ends: Mutex<Ends>,
    /// Has it begin anew.
    full: SyncSender<()>,
}

/// From where to where the records are.
#[derive(Clone, Copy)]
struct Ends {
    start: u64,
    end: u64,
}

impl Log {
    /// Adds a record. One that there is no memory for is lost, as the crash would lose it.
    fn append(&self, frame: &[u8]) {
        let Ok(length) = u32::try_from(frame.len()) else { return };
        let record = [&length.to_le_bytes(), frame].concat();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if write_all(&*self.file, &record, ends.end).is_ok() {
            ends.end += record.len() as u64;
        }
        if ends.end - ends.start > 2 * STORE.sums().memory + SLACK {
            let _ = self.full.try_send(());
        }
    }

    /// Writes all channels behind the end, where the journal begins then; what was before goes back to the system.
    fn begin_anew(&self) -> io::Result<()> {
        let start = self.ends.lock().unwrap_or_else(PoisonError::into_inner).end;
        succession::copy(|frame| self.append(&frame));
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
        self.append(&Frame::Zone(MESSAGE, name, &rows.done()).write());
    }

    fn deleted(&self, name: &[u8]) {
        self.append(&Frame::Late(Late::Delete(name)).write());
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

/// Takes back what a worker had that has crashed. How many messages there are then.
pub fn restore(file: &OwnedFd) -> io::Result<u64> {
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    let mut head = [0; HEAD as usize];
    if size < HEAD {
        return Ok(0);
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
            Frame::Zone(succession::RETAINED, name, packed) => succession::settle_retained(name, packed),
            Frame::Late(Late::Delete(name)) => drop(STORE.delete(name, now)),
            _ => {}
        }
    }
    Ok(STORE.sums().messages)
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
    if let Some(before) = before {
        match restore(before) {
            Ok(0) => {}
            Ok(count) => process_line(
                Level::Notice,
                format_args!("{count} messages in channels have outlived the worker process before"),
            ),
            Err(e) => {
                let text = crate::log::os_error(&e);
                process_line(Level::Error, format_args!("messages of the worker process before are lost ({text})"));
            }
        }
    }
    let (full, wanted) = sync_channel(1);
    let log = Arc::new(Log { file, ends: Mutex::new(Ends { start: HEAD, end: HEAD }), full });
    let keeper = log.clone();
    let begun = log.begin_anew().and_then(|()| {
        let work = move || keep(&keeper, &wanted);
        std::thread::Builder::new().name("journal".to_owned()).spawn(work)
    });
    match begun {
        Ok(_) => STORE.tell(log),
        Err(e) => {
            let text = crate::log::os_error(&e);
            process_line(Level::Error, format_args!("channels will not outlive a crash: no journal ({text})"));
        }
    }
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
