//! A piece of an answer's body, in memory or in a file. A leaf: what opens files makes it, filters take it.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// What is read of a file at once when its bytes are needed: some pieces fit a socket's buffer, and the other requests of
/// the thread do not wait long.
pub const PIECE: u64 = 64 * 1024;

/// A piece of a body.
#[derive(Clone, Copy)]
pub enum Chunk<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// A stretch of an open file.
    File {
        /// The file.
        file: &'a Rc<OwnedFd>,
        /// Where it starts.
        offset: u64,
        /// How long it is.
        len: u64,
    },
}

impl<'a> Chunk<'a> {
    /// The bytes `from..to` of it; what lies behind its end is left out.
    pub fn cut(self, from: u64, to: u64) -> Chunk<'a> {
        let to = to.min(self.len());
        let from = from.min(to);
        match self {
            Chunk::Bytes(b) => Chunk::Bytes(&b[from as usize..to as usize]),
            Chunk::File { file, offset, .. } => Chunk::File { file, offset: offset + from, len: to - from },
        }
    }

    /// Its bytes, read into `room` where they are in a file, in pieces of at most [`PIECE`]. `last` goes with the last of
    /// them; a chunk without bytes is one empty piece. Error `UnexpectedEof`: the file has become shorter.
    pub fn pieces(
        self,
        last: bool,
        room: &mut Vec<u8>,
        mut take: impl FnMut(&[u8], bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let (file, mut offset, mut left) = match self {
            Chunk::Bytes(bytes) => return take(bytes, last),
            Chunk::File { len: 0, .. } => return take(b"", last),
            Chunk::File { file, offset, len } => (file, offset, len),
        };
        while left > 0 {
            room.resize(left.min(PIECE) as usize, 0);
            let n = rustix::io::pread(&**file, &mut room[..], offset)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            offset += n as u64;
            left -= n as u64;
            take(&room[..n], last && left == 0)?;
        }
        Ok(())
    }

    /// Appends its bytes to `out`, read where they are in a file. Error `UnexpectedEof`: the file has become shorter.
    pub fn copy_to(self, out: &mut Vec<u8>) -> io::Result<()> {
        let (file, offset, len) = match self {
            Chunk::Bytes(bytes) => {
                out.extend_from_slice(bytes);
                return Ok(());
            }
            Chunk::File { file, offset, len } => (file, offset, len),
        };
        let (start, mut got) = (out.len(), 0);
        out.resize(start + len as usize, 0);
        while got < len {
            match rustix::io::pread(&**file, &mut out[start + got as usize..], offset + got) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => got += n as u64,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Chunk::Bytes(b) => b.len() as u64,
            Chunk::File { len, .. } => *len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
