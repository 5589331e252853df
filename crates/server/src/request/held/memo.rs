//! Heads of requests are much alike: what a thread has packed before is the dictionary of what it packs next (zstd). A few dictionaries, each
//! what the one before was and a head that it had not been like; each stays as it is, since what was packed with it has to be unpacked. A connection that
//! goes to another thread or process goes as it is packed, behind the dictionary (`pack.rs`).

use std::cell::RefCell;
use std::rc::Rc;
use zstd::dict::{DecoderDictionary, EncoderDictionary};
use zstd::zstd_safe::{CCtx, DCtx, compress_bound, get_frame_content_size};

/// Dictionaries that a thread makes.
const MOST: usize = 8;
/// Dictionaries that it has, with those of threads whose connections have come to it: some 60 kB each.
const MOST_ALL: usize = 64;
/// Bytes of one.
const LARGEST: usize = 16 * 1024;
/// The fastest that still finds what is alike.
const LEVEL: i32 = 1;
/// Packed with none.
pub(super) const NONE: u8 = u8::MAX;
/// Longer texts are packed without learning from them.
const LONG: usize = 4096;
/// What every frame begins with, which need not be kept.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

struct Dictionary {
    text: Rc<[u8]>,
    decoder: DecoderDictionary<'static>,
}

#[derive(Default)]
struct Memo {
    all: Vec<Dictionary>,
    /// That of the last one, once something was packed with it.
    encoder: Option<EncoderDictionary<'static>>,
    /// Dictionaries that this thread has made.
    made: usize,
    /// Texts that the newest was no help for.
    misses: usize,
    room: Vec<u8>,
    text: Vec<u8>,
    contexts: Option<(CCtx<'static>, DCtx<'static>)>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::default();
}

/// A text in few bytes.
pub(super) fn compress(text: &[u8]) -> Box<[u8]> {
    MEMO.with_borrow_mut(|memo| memo.compress(text))
}

/// Looks at what [`compress`] of this thread was given. None: it was not.
pub(super) fn with_text<T>(packed: &[u8], look: impl FnOnce(&[u8]) -> T) -> Option<T> {
    // It is not borrowed meanwhile: who looks may pack something.
    let text = MEMO.with_borrow_mut(|memo| {
        let mut text = std::mem::take(&mut memo.text);
        memo.decompress(packed, &mut text).map(|()| text)
    })?;
    let seen = look(&text);
    MEMO.with_borrow_mut(|memo| memo.text = text);
    Some(seen)
}

/// The number and the text of the dictionary that something is packed with; none: with none.
pub(super) fn dictionary(packed: &[u8]) -> Option<(u8, Rc<[u8]>)> {
    let number = *packed.first().filter(|number| **number != NONE)?;
    MEMO.with_borrow(|memo| Some((number, memo.all.get(usize::from(number))?.text.clone())))
}

/// The number that another thread's dictionary has here. None: there are too many.
pub(super) fn adopt(text: &Rc<[u8]>) -> Option<u8> {
    MEMO.with_borrow_mut(|memo| memo.adopt(text))
}

/// What another thread has packed, by the text of its dictionary: slowly, for one that [`adopt`] has not taken. None: it was something else.
pub(super) fn decompress_by(dictionary: &[u8], packed: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let decoder = DecoderDictionary::try_copy(dictionary).ok()?;
    MEMO.with_borrow_mut(|memo| memo.decode(packed.get(1..)?, &decoder, &mut text))?;
    Some(text)
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
        if self.made < MOST && self.misses >= 1 << (2 * self.made) {
            self.misses = 0;
            if self.learn(text).is_some()
                && let Some(better) = self.with_newest(text)
            {
                return better;
            }
        }
        packed.unwrap_or_else(|| plain(text))
    }

    fn contexts(&mut self) -> Option<&mut (CCtx<'static>, DCtx<'static>)> {
        if self.contexts.is_none() {
            self.contexts = Some((CCtx::try_create()?, DCtx::try_create()?));
        }
        self.contexts.as_mut()
    }

    /// None: it would be no shorter.
    fn with_newest(&mut self, text: &[u8]) -> Option<Box<[u8]>> {
        let number = self.all.len().checked_sub(1)?;
        if self.encoder.is_none() {
            self.encoder = EncoderDictionary::try_copy(&self.all[number].text, LEVEL).ok();
        }
        self.contexts()?;
        let Memo { encoder: Some(encoder), contexts: Some((context, _)), room, .. } = self else { return None };
        room.clear();
        room.reserve(compress_bound(text.len()));
        context.compress_using_cdict(room, text, encoder.as_cdict()).ok()?;
        let body = room.strip_prefix(&MAGIC)?;
        (body.len() < text.len()).then(|| [&[number as u8], body].concat().into())
    }

    fn learn(&mut self, text: &[u8]) -> Option<()> {
        let before = self.all.last().map_or(&[][..], |d| &d.text);
        let from = (before.len() + text.len()).saturating_sub(LARGEST).min(before.len());
        let text = [&before[from..], text].concat();
        self.push(text.into())?;
        self.made += 1;
        Some(())
    }

    fn push(&mut self, text: Rc<[u8]>) -> Option<u8> {
        if self.all.len() >= MOST_ALL {
            return None;
        }
        let decoder = DecoderDictionary::try_copy(&text).ok()?;
        self.all.push(Dictionary { text, decoder });
        self.encoder = None;
        Some(self.all.len() as u8 - 1)
    }

    fn adopt(&mut self, text: &Rc<[u8]>) -> Option<u8> {
        match self.all.iter().position(|known| known.text == *text) {
            Some(number) => Some(number as u8),
            None if text.len() > LARGEST => None,
            None => self.push(text.clone()),
        }
    }

    fn decompress(&mut self, packed: &[u8], text: &mut Vec<u8>) -> Option<()> {
        let (number, body) = packed.split_first()?;
        if *number == NONE {
            text.clear();
            text.extend_from_slice(body);
            return Some(());
        }
        // It is there again below, whatever the bytes are.
        let all = std::mem::take(&mut self.all);
        let done = all.get(usize::from(*number)).and_then(|known| self.decode(body, &known.decoder, text));
        self.all = all;
        done
    }

    fn decode(&mut self, body: &[u8], by: &DecoderDictionary<'static>, text: &mut Vec<u8>) -> Option<()> {
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        room.extend_from_slice(&MAGIC);
        room.extend_from_slice(body);
        text.clear();
        let done = self.contexts().and_then(|(_, context)| {
            // What comes from elsewhere may claim any size.
            let size = get_frame_content_size(&room).ok()??;
            text.reserve(usize::try_from(size).ok().filter(|size| *size <= heir::MOST_BYTES)?);
            context.decompress_using_ddict(text, &room, by.as_ddict()).ok().map(drop)
        });
        self.room = room;
        done
    }
}

fn plain(text: &[u8]) -> Box<[u8]> {
    [&[NONE], text].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(memo: &mut Memo, packed: &[u8]) -> Option<Vec<u8>> {
        let mut text = b"of before".to_vec();
        memo.decompress(packed, &mut text).map(|()| text)
    }

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
            assert_eq!(unpacked(&mut memo, packed).unwrap(), head(number as u32));
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
            assert_eq!(unpacked(&mut memo, &packed).unwrap(), text);
        }
        assert!(memo.all.len() <= MOST && memo.all.iter().all(|d| d.text.len() <= LARGEST));
        assert_eq!(unpacked(&mut memo, &[3]), None);
        assert_eq!(unpacked(&mut memo, &[]), None);
    }

    #[test]
    fn what_another_thread_has_packed_is_read_by_its_dictionary() {
        let mut theirs = Memo::default();
        let packed: Vec<_> = (0..100).map(|n| theirs.compress(&head(n))).collect();
        let mut ours = Memo::default();
        ours.compress(b"something of our own, which nothing of theirs is like");
        let numbers: Vec<u8> = theirs.all.iter().map(|known| ours.adopt(&known.text).unwrap()).collect();
        assert_eq!(numbers[0], 1, "behind our own");
        for (n, packed) in packed.iter().enumerate() {
            let (number, body) = packed.split_first().unwrap();
            let here = [&[numbers[usize::from(*number)]], body].concat();
            assert_eq!(unpacked(&mut ours, &here).unwrap(), head(n as u32));
            let by = &theirs.all[usize::from(*number)].text;
            assert_eq!(decompress_by(by, packed).unwrap(), head(n as u32));
        }
        // Once more it is the same one; what comes next is packed with what has come.
        assert_eq!(ours.adopt(&theirs.all[0].text), Some(1));
        assert!(ours.compress(&head(7)).len() < 70);
    }

    #[test]
    fn dictionaries_are_bounded_and_strangers_bytes_break_nothing() {
        let mut memo = Memo::default();
        let adopted = (0..300_u32).filter_map(|n| memo.adopt(&head(n).into())).count();
        assert_eq!(adopted, MOST_ALL);
        assert_eq!(Memo::default().adopt(&vec![b'x'; LARGEST + 1].into()), None);
        let packed = memo.compress(&head(5));
        for at in 0..packed.len() {
            for bit in 0..8 {
                let mut other = packed.clone();
                other[at] ^= 1 << bit;
                let _ = unpacked(&mut memo, &other);
            }
            let _ = unpacked(&mut memo, &packed[..at]);
        }
        assert_eq!(unpacked(&mut memo, &packed).unwrap(), head(5));
    }
}
