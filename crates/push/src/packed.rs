//! A message as one run of bytes: what servers that share channels say to each other, through Redis. From: their bytes, which are read
//! as those of a stranger.
//!
//! ```text
//! version 1 | flags 1 | expires 8 | said 8 | origin 8 | type: length 1, bytes | event: the same | properties: length 4, bytes | data
//! ```

use crate::limits::{MAX_META, MAX_PACKED};
use crate::message::{Draft, Marks, Message};

const VERSION: u8 = 1;
const AT_MOST_ONCE: u8 = 1;
const RETAIN: u8 = 2;

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPacked;

/// A message that another server has packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed<'b> {
    /// From this second on nobody gets it; 0: never.
    pub expires: i64,
    /// The same, as its publisher has said.
    said: i64,
    at_most_once: bool,
    retain: bool,
    origin: u64,
    content_type: &'b [u8],
    event: &'b [u8],
    properties: &'b [u8],
    data: &'b [u8],
}

impl<'b> Packed<'b> {
    /// Appends a draft that is kept until `expires` (0: for ever). `now`: when it is published.
    pub fn write(draft: &Draft<'_>, expires: i64, now: i64, out: &mut Vec<u8>) {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let marks = &draft.marks;
        let flags = flag(marks.at_most_once, AT_MOST_ONCE) | flag(marks.retain, RETAIN);
        let said = marks.expiry.map_or(0, |seconds| now + i64::from(seconds));
        out.extend_from_slice(&[VERSION, flags]);
        out.extend_from_slice(&expires.to_be_bytes());
        out.extend_from_slice(&said.to_be_bytes());
        out.extend_from_slice(&marks.origin.to_be_bytes());
        for text in [draft.content_type, draft.event] {
            let text = &text[..text.len().min(MAX_META)];
            out.push(text.len() as u8);
            out.extend_from_slice(text);
        }
        out.extend_from_slice(&(marks.properties.len() as u32).to_be_bytes());
        out.extend_from_slice(marks.properties);
        out.extend_from_slice(draft.data);
    }

    /// Reads what [`Packed::write`] writes.
    ///
    /// # Errors
    /// It is not that, or too long.
    pub fn read(bytes: &'b [u8]) -> Result<Packed<'b>, NotPacked> {
        if bytes.len() > MAX_PACKED {
            return Err(NotPacked);
        }
        parse(bytes).ok_or(NotPacked)
    }

    /// The message as it was published. `now`: for what is left of its time.
    pub fn draft(&self, now: i64) -> Draft<'b> {
        let left = u32::try_from((self.said - now).max(0)).unwrap_or(u32::MAX);
        Draft {
            data: self.data,
            content_type: self.content_type,
            event: self.event,
            marks: Marks {
                at_most_once: self.at_most_once,
                retain: self.retain,
                origin: self.origin,
                expiry: (self.said != 0).then_some(left),
                properties: self.properties,
            },
            deflated: b"",
        }
    }

    /// The message itself, for who has had it from another process before any channel did.
    pub fn message(&self, id: crate::Id, at: i64) -> std::sync::Arc<Message> {
        std::sync::Arc::new(Message::new(id, 0, at, self.expires, self.draft(at)))
    }

    /// Whether nobody is to get it any more.
    pub fn is_over(&self, now: i64) -> bool {
        let is_past = |second: i64| second != 0 && second <= now;
        is_past(self.expires) || is_past(self.said)
    }
}

fn parse(bytes: &[u8]) -> Option<Packed<'_>> {
    let (head, mut rest) = bytes.split_first_chunk::<26>()?;
    let [version, flags, ..] = *head;
    if version != VERSION || flags & !(AT_MOST_ONCE | RETAIN) != 0 {
        return None;
    }
    let expires = i64::from_be_bytes(head[2..10].try_into().ok()?);
    let said = i64::from_be_bytes(head[10..18].try_into().ok()?);
    let origin = u64::from_be_bytes(head[18..].try_into().ok()?);
    let mut text = || {
        let (length, after) = rest.split_first()?;
        let (text, after) = after.split_at_checked(usize::from(*length))?;
        rest = after;
        Some(text)
    };
    let (content_type, event) = (text()?, text()?);
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (properties, data) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let has = |flag: u8| flags & flag != 0;
    Some(Packed {
        expires: expires.max(0),
        said: said.max(0),
        at_most_once: has(AT_MOST_ONCE),
        retain: has(RETAIN),
        origin,
        content_type,
        event,
        properties,
        data,
    })
}

impl Message {
    /// Appends the message as [`Packed::write`] does.
    pub fn pack(&self, now: i64, out: &mut Vec<u8>) {
        let draft = Draft {
            data: self.data(),
            content_type: self.content_type(),
            event: self.event(),
            marks: self.marks(now),
            deflated: b"",
        };
        Packed::write(&draft, self.expires, now, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_read() {
        let marks = Marks { retain: true, origin: 7, expiry: Some(60), properties: b"\x01\x01", at_most_once: true };
        let draft = Draft { data: b"hello", content_type: b"text/plain", marks, ..Draft::default() };
        let mut out = Vec::new();
        Packed::write(&draft, 1060, 1000, &mut out);
        let packed = Packed::read(&out).unwrap();
        assert_eq!((packed.expires, packed.draft(1000).data, packed.draft(1000).marks), (1060, &b"hello"[..], marks));
        assert!(packed.is_over(1060) && !packed.is_over(1059));
        for cut in 0..out.len() - 5 {
            assert_eq!(Packed::read(&out[..cut]), Err(NotPacked), "{cut}");
        }
        out[0] = 2;
        assert_eq!(Packed::read(&out), Err(NotPacked));
    }
}
