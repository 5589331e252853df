//! `error_log memory:32m debug`: the newest lines in a ring of memory, for what is too much for a disk. nginx's is read with
//! a debugger; this one is an anonymous file (memfd), so that it can be read while the server runs:
//! `cat /proc/PID/fd/N`, where `ls -l /proc/PID/fd` shows `memfd:error_log`. A reload begins a new one, as nginx's does.

use super::error::MAX_LINE;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// The smallest ring: a line fits.
pub const LEAST: u64 = MAX_LINE as u64 + 64;
/// The largest: more is a mistake in the configuration.
pub const MOST: u64 = 4 * 1024 * 1024 * 1024;

/// A ring of lines. Each process has its own.
#[derive(Debug)]
pub struct MemoryLog {
    file: OwnedFd,
    size: u64,
    /// Where the next line goes.
    at: Mutex<u64>,
}

impl MemoryLog {
    /// An empty ring; memory is used as it fills.
    pub fn open(size: u64) -> io::Result<MemoryLog> {
        let file = memfd_create("error_log", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, size)?;
        Ok(MemoryLog { file, size, at: Mutex::new(0) })
    }

    /// Adds a line over the oldest.
    pub fn append(&self, line: &[u8]) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let room = usize::try_from(self.size - *at).unwrap_or(usize::MAX);
        let (head, tail) = line.split_at(line.len().min(room));
        // Memory that is not there loses the line, as a full disk does.
        let _ = pwrite(&self.file, head, *at);
        let _ = pwrite(&self.file, tail, 0);
        *at = (*at + line.len() as u64) % self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_stay() {
        let log = MemoryLog::open(32).expect("a descriptor");
        for i in 0..10 {
            log.append(format!("line number {i}\n").as_bytes());
        }
        let mut all = [0; 64];
        let n = rustix::io::pread(&log.file, &mut all, 0).expect("it can be read");
        let text = String::from_utf8_lossy(&all[..n]).into_owned();
        assert_eq!(n, 32);
        assert!(text.contains("line number 8") && !text.contains('6'), "{text}");
        assert!(format!("{text}{text}").contains("line number 9\n"));
    }
}
