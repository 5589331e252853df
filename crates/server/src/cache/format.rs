//! The head of a file in the cache: bytes in, facts out. A file on disk is outside bytes, so everything is checked
//! against everything. Knows no file, no clock, no other module: the fuzz target includes this one alone.
//!
//! ```text
//!    0  8  "IWCACHE" and the version of the format
//!    8  8  valid: seconds since 1970 until which the answer is fresh
//!   16  8  date: when it was fetched or confirmed last
//!   24  8  last modified, -1 if the answer did not say
//!   32  8  length of the body
//!   40  4  seconds for which a stale answer may be used while it is updated
//!   44  4  ... and while the upstream fails
//!   48  4  length of the key
//!   52  4  length of the answer's head
//!   56  2  length of the entity tag
//!   58  2  length of the Vary line
//!   60  2  flags: 1, it is never sent when it is too old (`must-revalidate`)
//!   62  2  zero
//!   64 16  which variant it is; zeros without Vary
//!   80     entity tag, Vary line, "\nKEY: ", key, "\n", the answer's head as the upstream sent it, body
//! ```
//! Numbers are little-endian. The file ends with its body. The line `KEY: ...` is where nginx has it, for operators grep for it.
//! The first 80 bytes are written last and written anew when an answer is confirmed; a file without them is no entry.

/// What a file starts with.
const MAGIC: [u8; 8] = *b"IWCACHE\x01";
/// Bytes before the first text.
pub const FIXED: usize = 80;
/// A flag.
const MUST_REVALIDATE: u16 = 1;
/// What stands before the key.
const KEY_MARK: &[u8] = b"\nKEY: ";
/// Entity tags above this are not kept (nginx: `NGX_HTTP_CACHE_ETAG_LEN`).
pub const MAX_ETAG: usize = 128;
/// Answers with a longer Vary are not cached (nginx: `NGX_HTTP_CACHE_VARY_LEN`).
pub const MAX_VARY: usize = 128;
/// A file whose body starts later is no entry: keys and heads are bounded by the buffer an upstream's head is read into.
pub const MAX_START: usize = 1 << 20;

/// An MD5 digest: the name of a file.
pub type Digest = [u8; 16];

/// The numbers of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Seconds since 1970 until which the answer is fresh.
    pub valid: i64,
    /// When it was fetched or confirmed last, seconds since 1970.
    pub date: i64,
    /// Its `Last-Modified`, -1 for none.
    pub last_modified: i64,
    /// For how long after `valid` it may be used while it is updated, seconds.
    pub updating: u32,
    /// For how long after `valid` it may be used while the upstream fails, seconds.
    pub error: u32,
    /// Whoever has it must not send it when it is too old (RFC 9111 section 5.2.2.2).
    pub must_revalidate: bool,
}

/// A head, its texts borrowed from the file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'b> {
    /// Numbers.
    pub times: Times,
    /// Which variant it is, if the answer has `Vary`.
    pub variant: Digest,
    /// Its entity tag, empty for none.
    pub etag: &'b [u8],
    /// Its `Vary`, empty for none.
    pub vary: &'b [u8],
    /// The key.
    pub key: &'b [u8],
    /// The answer's head as the upstream sent it.
    pub answer: &'b [u8],
    /// Bytes of the body.
    pub body: u64,
}

/// Why bytes are not the head of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// Another program's, another version's, or not finished.
    Version,
    /// Its lengths do not fit together or not the file.
    Broken,
    /// More bytes are needed: so many from the start of the file.
    Short(usize),
}

impl Head<'_> {
    /// Where the body starts.
    pub fn body_start(&self) -> usize {
        start_of_answer(self.etag.len(), self.vary.len(), self.key.len()) + self.answer.len()
    }

    /// Appends all that stands before the body. Etag, Vary and the whole must be within their limits.
    pub fn write(&self, out: &mut Vec<u8>) {
        debug_assert!(self.etag.len() <= MAX_ETAG && self.vary.len() <= MAX_VARY && self.body_start() <= MAX_START);
        out.extend_from_slice(&self.fixed());
        for piece in [self.etag, self.vary, KEY_MARK, self.key, b"\n", self.answer] {
            out.extend_from_slice(piece);
        }
    }

    /// The part that is written last.
    pub fn fixed(&self) -> [u8; FIXED] {
        let mut out = [0; FIXED];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let Times { valid, date, last_modified, updating, error, must_revalidate } = self.times;
        let flags = if must_revalidate { MUST_REVALIDATE } else { 0 };
        put(&MAGIC);
        for n in [valid, date, last_modified] {
            put(&n.to_le_bytes());
        }
        put(&self.body.to_le_bytes());
        for n in [updating, error, self.key.len() as u32, self.answer.len() as u32] {
            put(&n.to_le_bytes());
        }
        for n in [self.etag.len() as u16, self.vary.len() as u16, flags, 0] {
            put(&n.to_le_bytes());
        }
        put(&self.variant);
        out
    }
}

fn start_of_answer(etag: usize, vary: usize, key: usize) -> usize {
    FIXED + etag + vary + KEY_MARK.len() + key + 1
}

/// Reads the head of a file of `size` bytes from its beginning.
pub fn parse(bytes: &[u8], size: u64) -> Result<Head<'_>, BadHead> {
    let Some((fixed, _)) = bytes.split_first_chunk::<FIXED>() else {
        return Err(if size < FIXED as u64 { BadHead::Broken } else { BadHead::Short(FIXED) });
    };
    let mut rest = &fixed[..];
    if take::<8>(&mut rest) != MAGIC {
        return Err(BadHead::Version);
    }
    let times = |rest: &mut &[u8]| i64::from_le_bytes(take(rest));
    let (valid, date, last_modified) = (times(&mut rest), times(&mut rest), times(&mut rest));
    let body = u64::from_le_bytes(take(&mut rest));
    let [updating, error, key, answer] = [(); 4].map(|()| u32::from_le_bytes(take(&mut rest)));
    let [etag, vary, flags, zero] = [(); 4].map(|()| u16::from_le_bytes(take(&mut rest)));
    let variant: Digest = take(&mut rest);
    let (key, answer, etag, vary) = (key as usize, answer as usize, etag as usize, vary as usize);
    if etag > MAX_ETAG
        || vary > MAX_VARY
        || key > MAX_START
        || answer > MAX_START
        || flags & !MUST_REVALIDATE != 0
        || zero != 0
    {
        return Err(BadHead::Broken);
    }
    let body_start = start_of_answer(etag, vary, key) + answer;
    if body_start > MAX_START || (body_start as u64).checked_add(body) != Some(size) {
        return Err(BadHead::Broken);
    }
    if bytes.len() < body_start {
        return Err(BadHead::Short(body_start));
    }
    let mut texts = &bytes[FIXED..body_start];
    let mut text = |n: usize| {
        let (text, rest) = texts.split_at(n);
        texts = rest;
        text
    };
    let (etag, vary, mark, key, end, answer) =
        (text(etag), text(vary), text(KEY_MARK.len()), text(key), text(1), text(answer));
    if mark != KEY_MARK || end != b"\n" || valid < 0 || date < 0 {
        return Err(BadHead::Broken);
    }
    let must_revalidate = flags & MUST_REVALIDATE != 0;
    let times = Times { valid, date, last_modified, updating, error, must_revalidate };
    Ok(Head { times, variant, etag, vary, key, answer, body })
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, after) = rest.split_first_chunk::<N>().expect("the fixed part has room for all its fields");
    *rest = after;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head<'static> {
        Head {
            times: Times {
                valid: 2_000_000_000,
                date: 1_900_000_000,
                last_modified: -1,
                updating: 5,
                error: u32::MAX,
                must_revalidate: true,
            },
            variant: *b"0123456789abcdef",
            etag: b"\"tag\"",
            vary: b"Accept-Encoding",
            key: b"http://backend/a?b",
            answer: b"HTTP/1.1 200 OK\r\n\r\n",
            body: 5,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut file = Vec::new();
        head().write(&mut file);
        assert_eq!(file.len(), head().body_start());
        file.extend_from_slice(b"hello");
        assert_eq!(parse(&file, file.len() as u64), Ok(head()));
        let text = String::from_utf8_lossy(&file);
        assert!(text.lines().any(|l| l == "KEY: http://backend/a?b"), "operators grep for it");
    }

    #[test]
    fn a_part_of_the_head_asks_for_the_rest() {
        let mut file = Vec::new();
        head().write(&mut file);
        let size = file.len() as u64 + 5;
        assert_eq!(parse(&file[..10], size), Err(BadHead::Short(FIXED)));
        assert_eq!(parse(&file[..100], size), Err(BadHead::Short(file.len())));
        assert_eq!(parse(&file, size), Ok(head()));
    }

    #[test]
    fn other_files_are_no_entries() {
        let mut file = Vec::new();
        head().write(&mut file);
        let size = file.len() as u64 + 5;
        assert_eq!(parse(&[0; 200], 200), Err(BadHead::Version), "never finished");
        assert_eq!(parse(b"short", 5), Err(BadHead::Broken));
        assert_eq!(parse(&file, size - 1), Err(BadHead::Broken), "cut short");
        assert_eq!(parse(&file, size + 1), Err(BadHead::Broken));
        for at in (8..16).chain(32..40).chain(48..64) {
            let mut other = file.clone();
            other[at] ^= 0x80;
            assert_ne!(parse(&other, size), Ok(head()), "byte {at}");
        }
    }
}
