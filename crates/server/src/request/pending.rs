//! Body on its way to a client that waits for its turn: stretches of files, and bytes where no file could be written. What an
//! upstream has sent and the client has not taken yet (`upstream::relay`), or the rest of a file that filters want to read.
//! Holds nothing in memory of what is in a file.

use super::filter;
use super::phases::Verdict;
use super::{Request, flow};
use crate::request::chunk::{Chunk, PIECE};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// See the module's head.
#[derive(Default)]
pub struct Pending {
    parts: VecDeque<Part>,
    /// The answer ends with it.
    pub last: bool,
}

/// A piece of what waits.
pub enum Part {
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// A stretch of a file.
    File {
        /// The file.
        file: Rc<OwnedFd>,
        /// Where it starts.
        offset: u64,
        /// How long it is.
        len: u64,
    },
}

impl Part {
    /// The piece, for filters.
    pub fn chunk(&self) -> Chunk<'_> {
        match self {
            Part::Bytes(bytes) => Chunk::Bytes(bytes),
            Part::File { file, offset, len } => Chunk::File { file, offset: *offset, len: *len },
        }
    }
}

impl Pending {
    /// The rest of an answer.
    pub fn rest(chunk: Chunk<'_>) -> Pending {
        let mut pending = Pending { parts: VecDeque::new(), last: true };
        pending.add(chunk);
        pending
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a piece behind the others. What follows the last one in memory, or in its file, becomes a part of it.
    pub fn add(&mut self, chunk: Chunk<'_>) {
        match (chunk, self.parts.back_mut()) {
            _ if chunk.is_empty() => {}
            (Chunk::Bytes(bytes), Some(Part::Bytes(before))) => before.extend_from_slice(bytes),
            (Chunk::Bytes(bytes), _) => self.parts.push_back(Part::Bytes(bytes.to_vec())),
            (Chunk::File { file, offset, len }, Some(Part::File { file: same, offset: start, len: before }))
                if Rc::ptr_eq(file, same) && *start + *before == offset =>
            {
                *before += len;
            }
            (Chunk::File { file, offset, len }, _) => {
                self.parts.push_back(Part::File { file: file.clone(), offset, len });
            }
        }
    }

    /// Takes the first piece, at most `most` bytes of it if it is in a file.
    pub fn take(&mut self, most: u64) -> Option<Part> {
        if let Some(Part::File { file, offset, len }) = self.parts.front_mut()
            && *len > most
        {
            let first = Part::File { file: file.clone(), offset: *offset, len: most };
            (*offset, *len) = (*offset + most, *len - most);
            return Some(first);
        }
        self.parts.pop_front()
    }
}

/// Sends what waits through the filters, waiting for the client after each piece.
pub async fn finish(r: &mut Request, mut pending: Pending) -> Verdict {
    while let Some(part) = pending.take(PIECE) {
        let over = pending.is_empty();
        if let Err(e) = filter::run(r, part.chunk(), pending.last && over) {
            return r.broken(&e);
        }
        if !over && let Err(verdict) = flow::flush(r).await {
            return verdict;
        }
    }
    Verdict::Answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_of_one_file_are_one_part_however_small_they_come() {
        let file = || Rc::new(OwnedFd::from(std::fs::File::open("/dev/null").expect("it is everywhere")));
        let (one, two) = (file(), file());
        let mut pending = Pending::default();
        for i in 0..10 {
            pending.add(Chunk::File { file: &one, offset: 5 + i, len: 1 });
        }
        pending.add(Chunk::File { file: &one, offset: 100, len: 1 });
        pending.add(Chunk::File { file: &two, offset: 101, len: 1 });
        pending.add(Chunk::Bytes(b"ab"));
        pending.add(Chunk::Bytes(b""));
        pending.add(Chunk::Bytes(b"c"));
        let taken = std::iter::from_fn(|| pending.take(7));
        let shown: Vec<String> = taken
            .map(|part| match part {
                Part::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Part::File { offset, len, .. } => format!("{offset}+{len}"),
            })
            .collect();
        assert_eq!(shown, ["5+7", "12+3", "100+1", "101+1", "abc"]);
    }
}
