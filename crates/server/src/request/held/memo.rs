//! Heads of requests are much alike: what a thread has packed before is the dictionary of what it packs next (zstd). A few dictionaries, each
//! what the one before was and a head that it had not been like; each stays as it is, since what was packed with it has to be unpacked.

use std::cell::RefCell;
use zstd::bulk::{Compressor, Decompressor};

/// Dictionaries of a thread: some 0.3 MB each.
const MOST: usize = 8;
/// Bytes of one.
const LARGEST: usize = 16 * 1024;
/// The fastest that still finds what is alike.
const LEVEL: i32 = 1;
/// Packed with none.
const NONE: u8 = u8::MAX;
/// Longer texts are packed without learning from them.
const LONG: usize = 4096;
/// What every frame begins with, which need not be kept.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

struct Dictionary {
    text: Vec<u8>,
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
}

#[derive(Default)]
struct Memo {
    all: Vec<Dictionary>,
    /// Texts that the newest was no help for.
    misses: usize,
    room: Vec<u8>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::default();
}

/// A text in few bytes.
pub(super) fn compress(text: &[u8]) -> Box<[u8]> {
    MEMO.with_borrow_mut(|memo| memo.compress(text))
}

/// What [`compress`] of this thread was given. None: it was not.
pub(super) fn decompress(packed: &[u8]) -> Option<Vec<u8>> {
    MEMO.with_borrow_mut(|memo| memo.decompress(packed))
}

impl Memo {
    fn compress(&mut self, text: &[u8]) -> Box<[u8]> {
        let packed = self.with_newest(text);
        let is_like = packed.as_ref().is_some_and(|p| p.len() <= text.len() / 3);
        if is_like || text.len() > LONG {
            return packed.unwrap_or_else(|| plain(text));
        }
        self.misses += 1;
        // The more there are, the more has to speak for another: 1, 4, 16 ... texts.
        if self.all.len() < MOST && self.misses >= 1 << (2 * self.all.len()) {
            self.misses = 0;
            if self.learn(text).is_some()
                && let Some(better) = self.with_newest(text)
            {
                return better;
            }
        }
        packed.unwrap_or_else(|| plain(text))
    }

    /// None: it would be no shorter.
    fn with_newest(&mut self, text: &[u8]) -> Option<Box<[u8]>> {
        let number = self.all.len().checked_sub(1)?;
        self.room.clear();
        self.room.reserve(zstd::zstd_safe::compress_bound(text.len()));
        self.all[number].compressor.compress_to_buffer(text, &mut self.room).ok()?;
        let body = self.room.strip_prefix(&MAGIC)?;
        (body.len() < text.len()).then(|| [&[number as u8], body].concat().into())
    }

    fn learn(&mut self, text: &[u8]) -> Option<()> {
        let before = self.all.last().map_or(&[][..], |d| &d.text);
        let from = (before.len() + text.len()).saturating_sub(LARGEST).min(before.len());
        let text = [&before[from..], text].concat();
        let compressor = Compressor::with_dictionary(LEVEL, &text).ok()?;
        let decompressor = Decompressor::with_dictionary(&text).ok()?;
        self.all.push(Dictionary { text, compressor, decompressor });
        Some(())
    }

    fn decompress(&mut self, packed: &[u8]) -> Option<Vec<u8>> {
        let (number, body) = packed.split_first()?;
        if *number == NONE {
            return Some(body.to_vec());
        }
        self.room.clear();
        self.room.extend_from_slice(&MAGIC);
        self.room.extend_from_slice(body);
        let size = Decompressor::upper_bound(&self.room)?;
        self.all.get_mut(usize::from(*number))?.decompressor.decompress(&self.room, size).ok()
    }
}

fn plain(text: &[u8]) -> Box<[u8]> {
    [&[NONE], text].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(number: u32) -> Vec<u8> {
        let key = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!(
            "GET /sub/{number} HTTP/1.1\r\nHost: example.org\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/128.0\r\n\
             Accept: */*\r\nAccept-Encoding: gzip, deflate, br\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key:016x}{key:08x}\r\n\r\n"
        )
        .into_bytes()
    }

    #[test]
    fn what_is_alike_takes_little_and_comes_back() {
        let mut memo = Memo::default();
        let packed: Vec<_> = (0..1000).map(|n| memo.compress(&head(n))).collect();
        let mean = packed.iter().map(|p| p.len()).sum::<usize>() / packed.len();
        println!("{} bytes take {mean}", head(1).len());
        assert!(mean < 70, "{mean}");
        for (number, packed) in packed.iter().enumerate() {
            assert_eq!(memo.decompress(packed).unwrap(), head(number as u32));
        }
    }

    #[test]
    fn what_nothing_is_like_comes_back_too() {
        let mut memo = Memo::default();
        let mut state = 7u64;
        for round in 0..3000 {
            let text: Vec<u8> = (0..round % 300)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as u8
                })
                .collect();
            let packed = memo.compress(&text);
            assert!(packed.len() <= text.len() + 1);
            assert_eq!(memo.decompress(&packed).unwrap(), text);
        }
        assert!(memo.all.len() <= MOST && memo.all.iter().all(|d| d.text.len() <= LARGEST));
        assert_eq!(memo.decompress(&[3]), None);
        assert_eq!(memo.decompress(&[]), None);
    }
}
