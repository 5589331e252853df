//! Messages as WebSocket's `permessage-deflate` has them (RFC 7692): each compressed by itself, once, when it is published
//! (`nchan_deflate_message_for_websocket`); what clients send so is inflated, within what a message may be.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::cell::RefCell;

/// What a message ends with that is not sent (section 7.2.1).
const END: [u8; 4] = [0, 0, 0xff, 0xff];
/// Room that is made at once.
const STEP: usize = 4096;

/// A thread's last compressor, some 300 kB.
type Kept = Option<(Deflation, Compress)>;

thread_local! {
    static COMPRESSOR: RefCell<Kept> = const { RefCell::new(None) };
}

/// How messages are compressed: `nchan_permessage_deflate_compression_level`, `nchan_permessage_deflate_compression_window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deflation {
    pub(super) level: u32,
    /// The binary logarithm of its size.
    pub(super) window: u8,
}

/// A message compressed, if it becomes shorter; else nothing.
pub(super) fn deflated(data: &[u8], how: Option<Deflation>) -> Vec<u8> {
    let Some(how @ Deflation { level, window }) = how else { return Vec::new() };
    COMPRESSOR.with_borrow_mut(|kept| {
        if !kept.as_ref().is_some_and(|(of, _)| *of == how) {
            *kept = Some((how, Compress::new_with_window_bits(Compression::new(level), false, window)));
        }
        let compressor = kept.as_mut().map(|(_, compressor)| compressor);
        compressor.and_then(|compressor| compress(data, compressor)).unwrap_or_default()
    })
}

fn compress(data: &[u8], compressor: &mut Compress) -> Option<Vec<u8>> {
    compressor.reset();
    let mut out = Vec::with_capacity(data.len() / 2 + STEP);
    loop {
        let used = compressor.total_in() as usize;
        compressor.compress_vec(&data[used..], &mut out, FlushCompress::Sync).ok()?;
        if compressor.total_in() as usize == data.len() && out.len() < out.capacity() {
            break;
        }
        out.reserve(STEP);
    }
    out.truncate(out.strip_suffix(&END)?.len());
    (!out.is_empty() && out.len() < data.len()).then_some(out)
}

/// What became of a message that came compressed.
pub(super) enum Inflated {
    Whole(Vec<u8>),
    /// It is larger than it may be.
    TooLarge,
    Broken,
}

/// Inflates a message to at most `max` bytes.
pub(super) fn inflate(data: &[u8], max: u64) -> Inflated {
    let mut inflater = Decompress::new(false);
    let mut out = Vec::with_capacity(STEP);
    for (part, is_last) in [(data, false), (&END[..], true)] {
        let before = inflater.total_in() as usize;
        loop {
            let used = inflater.total_in() as usize - before;
            let Ok(status) = inflater.decompress_vec(&part[used..], &mut out, FlushDecompress::Sync) else {
                return Inflated::Broken;
            };
            if out.len() as u64 > max {
                return Inflated::TooLarge;
            }
            let is_used = inflater.total_in() as usize - before == part.len();
            // A last block may end the stream; nothing may follow it but what was left out.
            if status == Status::StreamEnd {
                return if is_used || is_last { Inflated::Whole(out) } else { Inflated::Broken };
            }
            if is_used && out.len() < out.capacity() {
                break;
            }
            if out.len() == out.capacity() {
                out.reserve(STEP);
            } else if status == Status::BufError {
                return Inflated::Broken;
            }
        }
    }
    Inflated::Whole(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(data: &[u8], max: u64) -> Result<Vec<u8>, &'static str> {
        match inflate(data, max) {
            Inflated::Whole(out) => Ok(out),
            Inflated::TooLarge => Err("too large"),
            Inflated::Broken => Err("broken"),
        }
    }

    #[test]
    fn what_is_compressed_is_inflated() {
        let mut compressor = Compress::new_with_window_bits(Compression::new(6), false, 10);
        for text in ["hello hello hello hello hello".to_owned(), "abc ".repeat(100_000)] {
            let deflated = compress(text.as_bytes(), &mut compressor).unwrap();
            assert_eq!(whole(&deflated, text.len() as u64).as_deref(), Ok(text.as_bytes()));
            assert_eq!(whole(&deflated, text.len() as u64 - 1), Err("too large"));
        }
        assert!(compress(b"x", &mut compressor).is_none(), "it would be longer");
        // RFC 7692 section 7.2.3: "Hello", in a block, without compression, and in two blocks of which the first is the last.
        for bytes in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ] {
            assert_eq!(whole(bytes, 5).as_deref(), Ok(&b"Hello"[..]), "{bytes:02x?}");
        }
        assert_eq!(whole(&[0xff; 8], 100), Err("broken"));
    }
}
