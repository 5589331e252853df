//! All texts of one transaction in one buffer, and what is known of each: its transformed forms, its bytes, which operators
//! may match it. Everything is found out once, when it is first asked for.

use crate::limits::MAX_TEXT_BYTES;
use crate::memo::{Memo, MemoId};
use crate::prefilter::{ByteSet, Need};
use crate::rule::ChainId;
use crate::rules::Rules;
use crate::transform::Transform;
use std::net::IpAddr;

/// A text's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TextId(u32);

/// The empty text, which every transaction has.
pub(crate) const EMPTY: TextId = TextId(0);
/// No text at all: a variable that is not set.
pub(crate) const NONE: TextId = TextId(u32::MAX);
/// Small numbers are texts from the start: most counts and scores are among them.
const SMALL_NUMBERS: u32 = 32;

const UNKNOWN: u32 = u32::MAX;
/// From how many bytes on a text is looked through for the literals of one chain's rules only.
const OWN_SEARCH_BYTES: usize = 1_024;
/// Results speak of all rules, whatever their chains.
const ALL_CHAINS: ChainId = 0;

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    len: u32,
    /// Where its row of transformed forms begins.
    row: u32,
    /// Where the results of the prefilters of requests and of answers begin.
    bits: [u32; 2],
    /// Which chain's rules these results speak of; [`ALL_CHAINS`]: of all rules.
    bits_of: [ChainId; 2],
    /// A transformation has made it.
    is_made: bool,
    /// The text that this one is in other letters: the search for literals does not tell them apart.
    letters_of: TextId,
    set: ByteSet,
    has_set: bool,
    /// What rules have said of it before: asked for, and its number.
    memo: Option<Option<MemoId>>,
}

impl Entry {
    fn new(start: usize, len: usize) -> Entry {
        Entry {
            start: start as u32,
            len: len as u32,
            row: UNKNOWN,
            bits: [UNKNOWN; 2],
            bits_of: [ALL_CHAINS; 2],
            is_made: false,
            letters_of: NONE,
            set: ByteSet::default(),
            has_set: false,
            memo: None,
        }
    }
}

/// Texts that all transactions of a rule set have from the start: the empty one, small numbers, and what the rules know beforehand.
#[derive(Debug)]
pub(crate) struct Fixed {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Default for Fixed {
    fn default() -> Fixed {
        let mut fixed = Fixed { bytes: Vec::new(), entries: vec![Entry::new(0, 0)] };
        for number in 0..SMALL_NUMBERS {
            fixed.push(number.to_string().as_bytes());
        }
        fixed
    }
}

impl Fixed {
    /// The number of a text, which is added if it is a new one.
    pub(crate) fn add(&mut self, text: &[u8]) -> TextId {
        let bytes = |e: &Entry| &self.bytes[e.start as usize..(e.start + e.len) as usize];
        match self.entries.iter().position(|e| bytes(e) == text) {
            Some(known) => TextId(known as u32),
            None => self.push(text),
        }
    }

    fn push(&mut self, text: &[u8]) -> TextId {
        self.entries.push(Entry::new(self.bytes.len(), text.len()));
        self.bytes.extend_from_slice(text);
        TextId(self.entries.len() as u32 - 1)
    }
}

/// A number's digits, with its sign.
pub(crate) fn decimal(number: i64, room: &mut [u8; 20]) -> &[u8] {
    let mut at = room.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        room[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        room[at] = b'-';
    }
    &room[at..]
}

/// The texts.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Rows of one cell for each chain of transformations: the result's number and one, or 0.
    cells: Vec<u32>,
    bits: Vec<u64>,
    scratch: Vec<u8>,
    /// Bytes that were looked at.
    pub work: u64,
    /// A text did not fit.
    pub overflow: bool,
}

impl Texts {
    /// Forgets all texts but those that are there from the start, and keeps the memory.
    pub(crate) fn clear(&mut self, fixed: &Fixed) {
        self.cells.clear();
        self.bits.clear();
        (self.work, self.overflow) = (0, false);
        self.bytes.clear();
        self.bytes.extend_from_slice(&fixed.bytes);
        self.entries.clear();
        self.entries.extend_from_slice(&fixed.entries);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// A text's number, from 0.
    pub(crate) fn number_of(id: TextId) -> usize {
        id.0 as usize
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        let texts = self.bytes.capacity() + self.scratch.capacity() + self.entries.capacity() * size_of::<Entry>();
        texts + self.cells.capacity() * size_of::<u32>() + self.bits.capacity() * size_of::<u64>()
    }

    /// Adds a text.
    pub(crate) fn add(&mut self, text: &[u8]) -> TextId {
        self.add_parts([text])
    }

    /// Adds a text that is given in parts.
    pub(crate) fn add_parts<const N: usize>(&mut self, parts: [&[u8]; N]) -> TextId {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len == 0 {
            return EMPTY;
        }
        let start = self.bytes.len();
        if start + len > MAX_TEXT_BYTES {
            self.overflow = true;
            return EMPTY;
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.entry(start, len)
    }

    /// Adds a number as text.
    pub(crate) fn add_number(&mut self, number: i64) -> TextId {
        if (0..i64::from(SMALL_NUMBERS)).contains(&number) {
            return TextId(number as u32 + 1);
        }
        self.add(decimal(number, &mut [0; 20]))
    }

    /// Adds an address as text.
    pub(crate) fn add_address(&mut self, address: Option<IpAddr>) -> TextId {
        match address.map(|address| address.to_canonical()) {
            None => EMPTY,
            Some(IpAddr::V6(v6)) => self.add(v6.to_string().as_bytes()),
            Some(IpAddr::V4(v4)) => {
                let mut text = [0; 15];
                let mut len = 0;
                for (n, octet) in v4.octets().into_iter().enumerate() {
                    if n > 0 {
                        text[len] = b'.';
                        len += 1;
                    }
                    for (unit, least) in [(100, 100), (10, 10), (1, 0)] {
                        if octet >= least {
                            text[len] = b'0' + octet / unit % 10;
                            len += 1;
                        }
                    }
                }
                self.add(&text[..len])
            }
        }
    }

    /// A part of a text as a text of its own, without a copy.
    pub(crate) fn part(&mut self, of: TextId, from: u32, to: u32) -> TextId {
        let whole = &self.entries[of.0 as usize];
        // A text that did not fit is the empty one, and has no parts.
        if from >= to || to > whole.len {
            return EMPTY;
        }
        if (from, to) == (0, whole.len) {
            return of;
        }
        let start = whole.start + from;
        self.entry(start as usize, (to - from) as usize)
    }

    fn entry(&mut self, start: usize, len: usize) -> TextId {
        self.entries.push(Entry::new(start, len));
        TextId(self.entries.len() as u32 - 1)
    }

    /// The bytes of a text; none for no text.
    pub(crate) fn get(&self, id: TextId) -> &[u8] {
        match self.entries.get(id.0 as usize) {
            Some(e) => &self.bytes[e.start as usize..(e.start + e.len) as usize],
            None => &[],
        }
    }

    /// How long a text is, in bytes.
    pub(crate) fn length(&self, id: TextId) -> usize {
        self.entries.get(id.0 as usize).map_or(0, |e| e.len as usize)
    }

    /// A text after a chain of transformations.
    pub(crate) fn transformed(&mut self, rules: &Rules, text: TextId, chain: ChainId) -> TextId {
        if chain == 0 || text == NONE {
            return text;
        }
        let at = text.0 as usize;
        if self.entries[at].row == UNKNOWN {
            self.entries[at].row = self.cells.len() as u32;
            self.cells.resize(self.cells.len() + rules.chains.len(), 0);
        }
        let cell = self.entries[at].row as usize + usize::from(chain);
        if self.cells[cell] != 0 {
            return TextId(self.cells[cell] - 1);
        }
        let (before, step) = rules.chains[usize::from(chain)];
        let input = self.transformed(rules, text, before);
        let result = match step {
            None => input,
            Some(step) => {
                let entry = &self.entries[input.0 as usize];
                let bytes = &self.bytes[entry.start as usize..(entry.start + entry.len) as usize];
                self.work += bytes.len() as u64;
                if step.apply(bytes, rules.settings.unicode.as_deref(), &mut self.scratch) {
                    let scratch = std::mem::take(&mut self.scratch);
                    let added = self.add(&scratch);
                    self.scratch = scratch;
                    if added != EMPTY {
                        self.entries[added.0 as usize].is_made = true;
                        if matches!(step, Transform::Lowercase | Transform::Uppercase) {
                            let before = self.entries[input.0 as usize].letters_of;
                            self.entries[added.0 as usize].letters_of = if before == NONE { input } else { before };
                        }
                    }
                    added
                } else {
                    input
                }
            }
        };
        self.cells[cell] = result.0 + 1;
        result
    }

    /// A text's number in a memo, if it has one.
    #[inline]
    pub(crate) fn memo(&mut self, id: TextId, memo: &mut Memo) -> Option<MemoId> {
        let entry = self.entries.get_mut(id.0 as usize)?;
        if entry.memo.is_none() {
            entry.memo = Some(memo.of(&self.bytes[entry.start as usize..(entry.start + entry.len) as usize]));
        }
        entry.memo.flatten()
    }

    /// Whether a rule's operator may match a text. `side` says which prefilter.
    #[inline]
    pub(crate) fn may_match(&mut self, rules: &Rules, side: usize, text: TextId, rule: usize) -> bool {
        let need = &rules.needs[rule];
        if !self.has_bytes(text, need) {
            return false;
        }
        if need.literals.is_empty() {
            return true;
        }
        let chain = if rules.rules[rule].stages.is_some() { ALL_CHAINS } else { rules.rules[rule].chain };
        let at = self.literals(rules, side, text, chain);
        self.bits[at + rule / 64] >> (rule % 64) & 1 == 1
    }

    /// Which of some rules of a chain of transformations, the bits of one word, may match a text.
    pub(crate) fn may_match_any(
        &mut self,
        rules: &Rules,
        side: usize,
        (text, chain): (TextId, ChainId),
        word: usize,
        asked: u64,
    ) -> u64 {
        let at = self.literals(rules, side, text, chain);
        let mut left = asked & self.bits[at + word];
        let mut rest = left;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            if !self.has_bytes(text, &rules.needs[word * 64 + bit as usize]) {
                left &= !(1 << bit);
            }
        }
        left
    }

    /// Whether a text has the length and the bytes that an operator needs.
    #[inline]
    fn has_bytes(&mut self, text: TextId, need: &Need) -> bool {
        let Some(entry) = self.entries.get_mut(text.0 as usize) else { return false };
        if (entry.len as usize) < need.length {
            return false;
        }
        if !need.sets.is_empty() {
            if !entry.has_set {
                entry.set = ByteSet::of(&self.bytes[entry.start as usize..(entry.start + entry.len) as usize]);
                entry.has_set = true;
            }
            return need.sets.iter().all(|set| set.meets(&entry.set));
        }
        true
    }

    /// Where the bits of a prefilter's result for a text begin. They speak of the rules of a chain at least, for which the text was asked for.
    #[inline]
    fn literals(&mut self, rules: &Rules, side: usize, text: TextId, chain: ChainId) -> usize {
        let entry = &self.entries[text.0 as usize];
        if entry.bits[side] != UNKNOWN && (entry.bits_of[side] == ALL_CHAINS || entry.bits_of[side] == chain) {
            return entry.bits[side] as usize;
        }
        self.look_for_literals(rules, side, text, chain)
    }

    fn look_for_literals(&mut self, rules: &Rules, side: usize, text: TextId, chain: ChainId) -> usize {
        let entry = &self.entries[text.0 as usize];
        let plain = if entry.letters_of == NONE { text } else { entry.letters_of };
        let known = &self.entries[plain.0 as usize];
        let (of, bits_of, at) = if known.bits[side] != UNKNOWN && known.bits_of[side] == ALL_CHAINS {
            (plain, ALL_CHAINS, known.bits[side] as usize)
        } else {
            // What chains leave as it is, all of them ask for: one pass for all rules. A text that a chain has made is hardly ever another one's.
            let is_own = entry.is_made && entry.len as usize > OWN_SEARCH_BYTES && entry.bits[side] == UNKNOWN;
            let own = rules.own_literals[side][usize::from(chain)].as_ref().filter(|_| is_own);
            let (of, bits_of) = if own.is_some() { (text, chain) } else { (plain, ALL_CHAINS) };
            let literals = own.unwrap_or(&rules.literals[side]);
            let at = self.bits.len();
            self.bits.resize(at + literals.words(), 0);
            let entry = &self.entries[of.0 as usize];
            self.work += u64::from(entry.len);
            literals.scan(&self.bytes[entry.start as usize..(entry.start + entry.len) as usize], &mut self.bits[at..]);
            (of, bits_of, at)
        };
        for id in [of, text] {
            let entry = &mut self.entries[id.0 as usize];
            (entry.bits[side], entry.bits_of[side]) = (at as u32, bits_of);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses_are_written_as_ever() {
        let mut texts = Texts::default();
        texts.clear(&Fixed::default());
        assert_eq!(decimal(0, &mut [0; 20]), b"0");
        for number in [0, 1, 31, 32, 99, 100, 65_535, -1, -40, i64::MAX, i64::MIN] {
            let id = texts.add_number(number);
            assert_eq!(texts.get(id), number.to_string().as_bytes());
        }
        for address in ["0.0.0.0", "192.0.2.1", "10.20.100.255", "1.9.10.99", "2001:db8::1", "::ffff:192.0.2.1"] {
            let address: IpAddr = address.parse().unwrap();
            let id = texts.add_address(Some(address));
            assert_eq!(texts.get(id), address.to_canonical().to_string().as_bytes());
        }
        assert_eq!(texts.add_address(None), EMPTY);
    }

    #[test]
    fn what_is_there_from_the_start_stays() {
        let mut fixed = Fixed::default();
        let (word, nine) = (fixed.add(b"word"), fixed.add(b"9"));
        assert_eq!((fixed.add(b"word"), fixed.add(b"")), (word, EMPTY));
        let mut texts = Texts::default();
        for _ in 0..2 {
            texts.clear(&fixed);
            assert_eq!((texts.get(word), texts.get(nine)), (&b"word"[..], &b"9"[..]));
            assert_eq!(texts.add_number(9), nine);
            let more = texts.add(b"more");
            assert_eq!(texts.get(more), b"more");
        }
    }
}
