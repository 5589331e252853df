//! What a 304 changes of the answer that it confirms (`*_cache_rfc9111`; RFC 9111 sections 3.2 and 4.3.4): its header lines take the place
//! of those that are kept. From: `upstream::cached`. The file is written anew where a line differs.

use super::entry::Entry;
use super::fill::Fill;
use super::format::Head;
use crate::cache::context::Caching;
use crate::request::Request;
use crate::request::chunk::Chunk;
use crate::temp::TempPath;
use std::borrow::Cow;

/// Files with a larger body are not written anew while a client waits: the next whole answer brings the new header lines.
const MAX_BODY: u64 = 1 << 20;
/// How much of a body is copied at once.
const PIECE: usize = 64 * 1024;

/// Header lines that belong to the connection, or say how the body that is kept is written: a 304 does not speak of them.
const NOT_UPDATED: [&[u8]; 11] = [
    b"connection",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"proxy-connection",
    b"content-length",
    b"content-encoding",
    b"content-range",
    b"content-md5",
];

fn name(line: &[u8]) -> &[u8] {
    line[..memchr::memchr(b':', line).unwrap_or(0)].trim_ascii()
}

/// An entity tag that says "these very bytes": it is there and not weak.
fn is_strong(etag: &[u8]) -> bool {
    !etag.is_empty() && !etag.starts_with(b"W/")
}

/// The head that is kept, with the header lines of a 304 in the place of its own of the same names. `etag`: that of the answer. A 304 that
/// names another one speaks of another answer (section 4.3.4).
pub fn merged<'h>(kept: &'h [u8], etag: &[u8], confirming: &[u8]) -> Cow<'h, [u8]> {
    let is_line = |line: &&[u8]| !name(line).is_empty() && !line.starts_with(b"HTTP/");
    let updates = |line: &&[u8]| is_line(line) && !NOT_UPDATED.iter().any(|n| n.eq_ignore_ascii_case(name(line)));
    let new: Vec<&[u8]> = confirming.split_inclusive(|b| *b == b'\n').filter(updates).collect();
    let tags = new
        .iter()
        .filter(|line| name(line).eq_ignore_ascii_case(b"etag"))
        .map(|line| line[b"etag:".len()..].trim_ascii());
    if is_strong(etag) && tags.clone().any(is_strong) && !tags.clone().any(|tag| tag == etag) {
        return Cow::Borrowed(kept);
    }
    let is_new = |line: &[u8]| new.iter().any(|n| name(n).eq_ignore_ascii_case(name(line)));
    let lines = || kept.split_inclusive(|b| *b == b'\n');
    let replaced: Vec<&[u8]> = lines().filter(|line| is_line(line) && is_new(line)).collect();
    if new.is_empty() || replaced.iter().map(|l| l.trim_ascii()).eq(new.iter().map(|l| l.trim_ascii())) {
        return Cow::Borrowed(kept);
    }
    let mut out = Vec::with_capacity(kept.len() + confirming.len());
    for line in lines() {
        if line.trim_ascii().is_empty() {
            new.iter().for_each(|n| out.extend_from_slice(n));
            out.extend_from_slice(line);
        } else if !(is_line(&line) && is_new(line)) {
            out.extend_from_slice(line);
        }
    }
    Cow::Owned(out)
}

impl Caching {
    /// Writes an entry's file anew, under another head. False: it is too large, or could not be written, which is logged.
    pub(super) fn rewrite(&mut self, r: &Request, temp: &TempPath, entry: &Entry, head: &Head<'_>) -> bool {
        if entry.body_len() > MAX_BODY {
            return false;
        }
        let mut fill = Fill::new(&self.cache, temp, &self.name, head);
        match entry.chunk() {
            Chunk::Bytes(bytes) => fill.push(r, bytes),
            Chunk::File { file, offset, len } => {
                let mut piece = vec![0; PIECE];
                let mut done = 0;
                while done < len {
                    let most = piece.len().min((len - done) as usize);
                    let Ok(n @ 1..) = rustix::io::pread(file, &mut piece[..most], offset + done) else { return false };
                    fill.push(r, &piece[..n]);
                    done += n as u64;
                }
            }
        }
        let Some(blocks) = fill.finish(r, &self.cache.zone, head) else { return false };
        if let Some(mut hold) = self.hold.take() {
            hold.done = true;
            self.cache.zone.index.finish(hold.slot, blocks);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::merged;
    use std::borrow::Cow;

    const KEPT: &[u8] = b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nX-A: 1\r\nX-B: 2\r\nx-a: 3\r\nContent-Length: 5\r\n\r\n";

    #[test]
    fn lines_of_the_same_names_are_replaced() {
        let new =
            merged(KEPT, b"\"a\"", b"HTTP/1.1 304 Not Modified\r\nx-A: 9\r\nX-New: n\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(
            String::from_utf8_lossy(&new),
            "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nX-B: 2\r\nContent-Length: 5\r\nx-A: 9\r\nX-New: n\r\n\r\n"
        );
    }

    #[test]
    fn nothing_new_is_nothing_written() {
        for same in
            [&b"HTTP/1.1 304 Not Modified\r\n\r\n"[..], b"HTTP/1.1 304 N\r\nETag: \"a\"\r\nConnection: close\r\n\r\n"]
        {
            assert!(matches!(merged(KEPT, b"\"a\"", same), Cow::Borrowed(_)));
        }
    }
    #[test]
    fn a_304_of_another_answer_changes_nothing() {
        let other = b"HTTP/1.1 304 Not Modified\r\nETag: \"b\"\r\nX-A: 9\r\n\r\n";
        assert!(matches!(merged(KEPT, b"\"a\"", other), Cow::Borrowed(_)));
        for weak in [&b""[..], b"W/\"a\""] {
            assert!(matches!(merged(KEPT, weak, other), Cow::Owned(_)));
        }
        let md5 = b"HTTP/1.1 304 Not Modified\r\nContent-MD5: x\r\n\r\n";
        assert!(matches!(merged(KEPT, b"\"a\"", md5), Cow::Borrowed(_)));
    }
}
