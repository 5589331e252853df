//! What is on its way to a client: bytes, and stretches of files between them. Written in as few calls as possible.

use super::socket::Socket;
use crate::files::readers::{self, Pool, Reader};
use crate::request::chunk::Chunk;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Bytes from this size on are offered to the kernel where they lie, before they are copied.
pub const DIRECT: usize = 4096;
/// A file stretch of at most this size is read into memory and leaves with the head in one call.
const INLINE_FILE: u64 = 16 * 1024;
/// But only while less than this waits: for a client that takes nothing, what is in a file stays there. As much as a batch of
/// pipelined answers (`http1::PIPELINE_FLUSH`).
const INLINE_BEHIND: u64 = 64 * 1024;
/// A buffer that grew over this for a slow client is given back once it is empty.
const KEEP_CAPACITY: usize = 64 * 1024;
/// Less than this in front of the queue, written already, is not worth moving the rest for.
const LEAST_MOVE: usize = 4096;
/// One sendfile call sends at most this much, so that other connections of the thread get their turn
/// (nginx's `sendfile_max_chunk`, 2m).
const SENDFILE_CHUNK: u64 = 2 * 1024 * 1024;

/// The queue of one connection.
#[derive(Default)]
pub struct Output {
    bytes: Vec<u8>,
    start: usize,
    /// What is on its way from files; made for the first one.
    stretches: Option<Box<Stretches>>,
    /// Bytes written since the connection began.
    pub written: u64,
    /// Bytes queued since the connection began.
    pub queued: u64,
    /// `tcp_nopush`: what consists of several parts leaves in full packets.
    pub nopush: bool,
    /// TCP_CORK is set.
    corked: bool,
    /// Behind the last byte the connection is closed at once: both leave in one packet.
    pub last: bool,
}

/// Stretches of files on their way: of no connection that has only sent what was in memory.
#[derive(Default)]
struct Stretches {
    files: VecDeque<FilePart>,
    /// `aio threads`: reads in what of them is not in memory.
    reader: Option<Reader>,
}

struct FilePart {
    /// Goes out when `start` has come here.
    at: usize,
    file: Rc<OwnedFd>,
    offset: u64,
    len: u64,
}

impl Output {
    /// Whether all is written.
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len() && self.front().is_none()
    }

    #[inline]
    fn front(&self) -> Option<&FilePart> {
        self.stretches.as_ref().and_then(|stretches| stretches.files.front())
    }

    fn back(&self) -> Option<&FilePart> {
        self.stretches.as_ref().and_then(|stretches| stretches.files.back())
    }

    /// How many bytes wait.
    pub fn waiting(&self) -> u64 {
        self.queued - self.written
    }

    /// The buffer, to append bytes to; call [`Output::appended`] with the length before.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Counts bytes appended through [`Output::buffer`] since it was `before` long.
    pub fn appended(&mut self, before: usize) {
        self.queued += (self.bytes.len() - before) as u64;
    }

    /// Takes back what was queued since `queued` was so much; not possible where some of it was written, or is in files.
    pub fn take_back(&mut self, queued: u64) -> bool {
        let len = self.queued.saturating_sub(queued);
        if self.front().is_some() || self.written > queued || len > (self.bytes.len() - self.start) as u64 {
            return false;
        }
        self.bytes.truncate(self.bytes.len() - len as usize);
        self.queued -= len;
        true
    }

    /// Adds bytes to the queue.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.queued += bytes.len() as u64;
    }

    /// Adds a piece, writing large ones at once as far as the kernel takes them.
    pub fn push(&mut self, socket: &mut Socket, chunk: Chunk<'_>) -> io::Result<()> {
        match chunk {
            Chunk::Bytes(bytes) if bytes.len() >= DIRECT && self.front().is_none() && socket.tls().is_none() => {
                self.push_direct(socket, bytes)
            }
            Chunk::Bytes(bytes) => {
                self.push_bytes(bytes);
                Ok(())
            }
            Chunk::File { file, offset, len }
                if len <= INLINE_FILE && self.waiting() < INLINE_BEHIND && self.may_read(file, offset, len) =>
            {
                self.push_inline(file, offset, len)
            }
            Chunk::File { file, offset, len } => {
                self.push_file(file, offset, len);
                Ok(())
            }
        }
    }

    /// What of files is not in memory is read in by this pool from now on (`aio threads`).
    pub fn read_by(&mut self, pool: impl FnOnce() -> Arc<Pool>) {
        self.stretches.get_or_insert_default().reader.get_or_insert_with(|| Reader::new(pool()));
    }

    /// Whether a stretch may be read here and now.
    fn may_read(&self, file: &OwnedFd, offset: u64, len: u64) -> bool {
        self.stretches.as_ref().is_none_or(|s| s.reader.is_none()) || readers::is_in_memory(file, offset, offset + len)
    }

    /// Stretches that follow each other in one file are one part: their number stays small however small they come.
    fn push_file(&mut self, file: &Rc<OwnedFd>, offset: u64, len: u64) {
        self.queued += len;
        let at = self.bytes.len();
        let files = &mut self.stretches.get_or_insert_default().files;
        match files.back_mut() {
            Some(part) if part.at == at && part.offset + part.len == offset && Rc::ptr_eq(&part.file, file) => {
                part.len += len;
            }
            _ => files.push_back(FilePart { at, file: file.clone(), offset, len }),
        }
    }

    /// Before the buffer grows, what was written leaves it: a queue that is never quite empty would keep its whole past.
    fn make_room(&mut self, len: usize) {
        if self.start < LEAST_MOVE || self.bytes.capacity() - self.bytes.len() >= len {
            return;
        }
        self.bytes.drain(..self.start);
        for part in self.stretches.iter_mut().flat_map(|stretches| &mut stretches.files) {
            part.at -= self.start;
        }
        self.start = 0;
    }

    /// All bytes are written.
    fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        if let Some(stretches) = &mut self.stretches {
            stretches.reader = None;
        }
        if self.bytes.capacity() > KEEP_CAPACITY {
            self.bytes = Vec::new();
        }
    }

    fn push_direct(&mut self, socket: &mut Socket, bytes: &[u8]) -> io::Result<()> {
        self.queued += bytes.len() as u64;
        let before = self.bytes.len() - self.start;
        let n = match socket.try_write_two(&self.bytes[self.start..], bytes) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
            Err(e) => return Err(e),
        };
        self.written += n as u64;
        if n < before {
            self.start += n;
            self.make_room(bytes.len());
            self.bytes.extend_from_slice(bytes);
        } else {
            self.clear();
            self.bytes.extend_from_slice(&bytes[n - before..]);
        }
        Ok(())
    }

    fn push_inline(&mut self, file: &Rc<OwnedFd>, offset: u64, len: u64) -> io::Result<()> {
        let mut got = 0;
        self.make_room(len as usize);
        self.bytes.reserve(len as usize);
        while got < len {
            let before = self.bytes.len();
            self.bytes.resize(before + (len - got) as usize, 0);
            let n = match rustix::io::pread(file.as_fd(), &mut self.bytes[before..], offset + got) {
                Ok(n) => n,
                Err(e) => {
                    self.bytes.truncate(before);
                    return Err(e.into());
                }
            };
            self.bytes.truncate(before + n);
            if n == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was sent"));
            }
            got += n as u64;
        }
        self.queued += len;
        Ok(())
    }

    /// Writes until the queue is empty or `limit` bytes are out, as far as the kernel takes them.
    pub fn poll_write(&mut self, socket: &mut Socket, cx: &mut Context<'_>, mut limit: u64) -> Poll<io::Result<u64>> {
        let mut done = 0;
        if !self.corked && (self.nopush && self.is_mixed() || self.ends_with_file(limit)) {
            self.cork(socket, true);
        }
        while !self.is_empty() && limit > 0 {
            let most = match self.poll_file(cx) {
                Poll::Ready(most) => most.min(limit),
                Poll::Pending if done > 0 => return Poll::Ready(Ok(done)),
                Poll::Pending => return Poll::Pending,
            };
            let n = match socket.poll_write_with(cx, |s| self.write_once(s, most)) {
                Poll::Ready(Ok(n)) => n as u64,
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending if done > 0 => return Poll::Ready(Ok(done)),
                Poll::Pending => return Poll::Pending,
            };
            self.advance(n);
            limit -= n;
            done += n;
        }
        if self.corked && self.is_empty() {
            if self.last {
                socket.hold();
            } else {
                self.cork(socket, false);
            }
        }
        Poll::Ready(Ok(done))
    }

    /// How much may be written without waiting for a disk.
    fn poll_file(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        let Some(Stretches { files, reader: Some(reader) }) = self.stretches.as_deref_mut() else {
            return Poll::Ready(u64::MAX);
        };
        let Some(part) = files.front() else { return Poll::Ready(u64::MAX) };
        if part.at > self.start {
            return Poll::Ready(u64::MAX);
        }
        reader.poll_ready(cx, part.file.as_fd(), part.offset, part.len)
    }

    /// Whether the connection is closed behind a file, and all may be written now.
    fn ends_with_file(&self, limit: u64) -> bool {
        self.last && self.back().is_some_and(|f| f.at == self.bytes.len()) && self.waiting() <= limit
    }

    /// Whether something follows a file: bytes before one leave with it as it is (MSG_MORE).
    fn is_mixed(&self) -> bool {
        let files = self.stretches.as_ref().map(|stretches| &stretches.files);
        files.is_some_and(|files| files.len() > 1 || files.front().is_some_and(|f| f.at < self.bytes.len()))
    }

    fn cork(&mut self, socket: &Socket, on: bool) {
        // A unix socket has no packets.
        let _ = rustix::net::sockopt::set_tcp_cork(socket.as_fd(), on);
        self.corked = on;
    }

    fn write_once(&self, socket: &mut Socket, limit: u64) -> io::Result<usize> {
        let end = self.front().map_or(self.bytes.len(), |f| f.at);
        if end > self.start {
            let end = end.min(self.start.saturating_add(usize::try_from(limit).unwrap_or(usize::MAX)));
            let more = self.front().map_or(self.last && end == self.bytes.len(), |f| f.at == end);
            return socket.try_write(&self.bytes[self.start..end], more);
        }
        let part = self.front().expect("a queue that is not empty has bytes or a file in front");
        let mut offset = part.offset;
        let n =
            socket.try_sendfile(part.file.as_fd(), &mut offset, part.len.min(limit).min(SENDFILE_CHUNK) as usize)?;
        if n == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was sent"));
        }
        Ok(n)
    }

    fn advance(&mut self, n: u64) {
        self.written += n;
        let end = self.front().map_or(self.bytes.len(), |f| f.at);
        if end > self.start {
            self.start += n as usize;
        } else if let Some(files) = self.stretches.as_mut().map(|stretches| &mut stretches.files)
            && let Some(part) = files.front_mut()
        {
            part.offset += n;
            part.len -= n;
            if part.len == 0 {
                files.pop_front();
            }
        }
        if self.is_empty() {
            self.clear();
        }
    }

    /// Gives the empty buffer away, for the pool.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        debug_assert!(self.is_empty());
        std::mem::take(&mut self.bytes)
    }

    /// Takes a buffer from the pool when there is none.
    pub fn put_buffer(&mut self, buffer: Vec<u8>) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer;
        }
    }
}

impl Output {
    /// Adds a piece without offering anything to a socket: for streams, whose bytes go out in frames. `passed` bytes
    /// before it went out already without waiting here.
    pub fn hold(&mut self, chunk: Chunk<'_>, passed: u64) {
        self.queued += passed;
        self.written += passed;
        match chunk {
            Chunk::Bytes(bytes) => self.push_bytes(bytes),
            Chunk::File { len: 0, .. } => {}
            Chunk::File { file, offset, len } => self.push_file(file, offset, len),
        }
    }

    /// Moves exactly `n` of the waiting bytes to `out`. Error `UnexpectedEof`: a file became shorter.
    pub fn take(&mut self, n: u64, out: &mut Vec<u8>) -> io::Result<()> {
        let mut left = n;
        while left > 0 {
            let end = self.front().map_or(self.bytes.len(), |f| f.at);
            let step = if end > self.start {
                let step = left.min((end - self.start) as u64);
                out.extend_from_slice(&self.bytes[self.start..self.start + step as usize]);
                step
            } else {
                let part = self.front().expect("the caller asks for no more than waits");
                let step = left.min(part.len);
                Chunk::File { file: &part.file, offset: part.offset, len: step }.copy_to(out)?;
                step
            };
            self.advance(step);
            left -= step;
        }
        Ok(())
    }
}
