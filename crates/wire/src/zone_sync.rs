//! What nodes of a cluster tell each other of their shared zones (`zone_sync`). Our own protocol: nginx Plus' is not published.
//!
//! ```text
//! both sides:   hello   "IRONSYNC" · version u16 · node u64
//! then, from who has connected:
//!               frame   length u32 (of what follows) · kind u8 · body
//!               zone    number u16 · zone kind u8 · name          before its first record
//!               record  number u16 · key length u16 · key · value
//!               beat                                              when there is nothing else to say
//! and back:     beat    for each beat
//! ```
//! Numbers are big-endian. What a record's value is depends on the kind of its zone ([`Keyval`], [`Session`], [`Requests`]).

/// The longest frame behind its length, in bytes: a record of a `keyval_zone` is the longest.
pub const MAX_FRAME: usize = 1 << 20;
/// The longest name of a zone, in bytes.
pub const MAX_NAME: usize = 255;
/// Bytes of a hello.
pub const HELLO: usize = 18;

const SIGNATURE: &[u8; 8] = b"IRONSYNC";
const VERSION: u16 = 1;
const LENGTH: usize = 4;

const ZONE: u8 = 1;
const RECORD: u8 = 2;
const BEAT: u8 = 3;

/// What was said is no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

/// A kind of zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `keyval_zone` of `http`.
    Keyval = 1,
    /// `keyval_zone` of `stream`.
    StreamKeyval = 2,
    /// `sticky learn` of `http`.
    Sticky = 3,
    /// `limit_req_zone`
    Requests = 4,
    /// `sticky learn` of `stream`.
    StreamSticky = 5,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        let all = [Kind::Keyval, Kind::StreamKeyval, Kind::Sticky, Kind::Requests, Kind::StreamSticky];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'b> {
    /// Records with this number are of this zone.
    Zone {
        /// The number; another zone may have had it before.
        number: u16,
        /// None: of a kind that this version does not know.
        kind: Option<Kind>,
        /// Its name.
        name: &'b [u8],
    },
    /// What a node has of a key.
    Record {
        /// The zone's.
        number: u16,
        /// The key.
        key: &'b [u8],
        /// What there is.
        value: &'b [u8],
    },
    /// The node is there.
    Beat,
}

/// How far a frame was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'b> {
    /// More bytes are needed.
    Partial,
    /// The frame, and its bytes; none: of a kind that this version does not know.
    Complete(Option<Frame<'b>>, usize),
}

/// Writes a hello. `node`: what the process calls itself.
pub fn write_hello(node: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&node.to_be_bytes());
}

/// Reads a hello: the node's name for itself; none: more bytes are needed.
///
/// # Errors
/// The other side speaks something else, or another version.
pub fn read_hello(bytes: &[u8]) -> Result<Option<u64>, Invalid> {
    let known = SIGNATURE.len().min(bytes.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Err(Invalid("it does not speak the protocol of zone_sync"));
    }
    let mut rest = Reader(bytes.get(known..).unwrap_or_default());
    let (Some(version), node) = (rest.u16(), rest.u64()) else { return Ok(None) };
    if version != VERSION {
        return Err(Invalid("it speaks another version of zone_sync"));
    }
    Ok(node)
}

/// Reads a frame from the beginning of `bytes`.
///
/// # Errors
/// It is too long, or shorter than what it says.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, Invalid> {
    let mut rest = Reader(bytes);
    let Some(len) = rest.u32() else { return Ok(Parsed::Partial) };
    let len = len as usize;
    if len > MAX_FRAME {
        return Err(Invalid("a message is too long"));
    }
    if len == 0 {
        return Err(Invalid("a message is empty"));
    }
    let Some(frame) = rest.0.get(..len) else { return Ok(Parsed::Partial) };
    let mut rest = Reader(&frame[1..]);
    let frame = match frame[0] {
        ZONE => {
            let (Some(number), Some(kind)) = (rest.u16(), rest.u8()) else { return Err(CUT) };
            if rest.0.is_empty() || rest.0.len() > MAX_NAME {
                return Err(Invalid("a zone has no name, or one that is too long"));
            }
            Some(Frame::Zone { number, kind: Kind::of(kind), name: rest.0 })
        }
        RECORD => {
            let (Some(number), Some(key)) = (rest.u16(), rest.u16()) else { return Err(CUT) };
            let Some((key, value)) = rest.0.split_at_checked(usize::from(key)) else { return Err(CUT) };
            Some(Frame::Record { number, key, value })
        }
        BEAT => Some(Frame::Beat),
        _ => None,
    };
    Ok(Parsed::Complete(frame, LENGTH + len))
}

const CUT: Invalid = Invalid("a message is shorter than what it says");

impl Frame<'_> {
    /// Appends the frame. False: it would be too long, and nothing was written.
    pub fn write(&self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH]);
        match self {
            Frame::Zone { number, kind, name } => {
                out.push(ZONE);
                out.extend_from_slice(&number.to_be_bytes());
                out.push(kind.map_or(0, |kind| kind as u8));
                out.extend_from_slice(name);
            }
            Frame::Record { number, key, value } => {
                out.push(RECORD);
                out.extend_from_slice(&number.to_be_bytes());
                out.extend_from_slice(&u16::try_from(key.len()).unwrap_or(0).to_be_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            Frame::Beat => out.push(BEAT),
        }
        let fits = match self {
            Frame::Record { key, .. } => key.len() <= usize::from(u16::MAX),
            Frame::Zone { name, .. } => (1..=MAX_NAME).contains(&name.len()),
            Frame::Beat => true,
        };
        let len = out.len() - start - LENGTH;
        if !fits || len > MAX_FRAME {
            out.truncate(start);
            return false;
        }
        out[start..start + LENGTH].copy_from_slice(&(len as u32).to_be_bytes());
        true
    }
}

/// A record of a `keyval_zone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyval<'b> {
    /// When it was changed, ms of the wall clock: of two the later one holds.
    pub changed_ms: u64,
    /// How long it stays, ms.
    pub stays_ms: Option<u64>,
    /// The value; none: the key was removed.
    pub value: Option<&'b [u8]>,
}

impl<'b> Keyval<'b> {
    /// As the value of a record.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.changed_ms.to_be_bytes());
        out.extend_from_slice(&self.stays_ms.map_or(0, |ms| ms.max(1)).to_be_bytes());
        out.push(u8::from(self.value.is_some()));
        out.extend_from_slice(self.value.unwrap_or_default());
    }

    /// From the value of a record.
    pub fn read(bytes: &'b [u8]) -> Option<Keyval<'b>> {
        let mut rest = Reader(bytes);
        let (changed_ms, stays_ms, is_there) = (rest.u64()?, rest.u64()?, rest.u8()?);
        Some(Keyval {
            changed_ms,
            stays_ms: Some(stays_ms).filter(|ms| *ms > 0),
            value: (is_there != 0).then_some(rest.0),
        })
    }
}

/// A learnt session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session<'b> {
    /// How long ago it was used last, ms.
    pub unused_ms: u64,
    /// The peer's name.
    pub peer: &'b [u8],
}

impl<'b> Session<'b> {
    /// As the value of a record.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.unused_ms.to_be_bytes());
        out.extend_from_slice(self.peer);
    }

    /// From the value of a record.
    pub fn read(bytes: &'b [u8]) -> Option<Session<'b>> {
        let mut rest = Reader(bytes);
        Some(Session { unused_ms: rest.u64()?, peer: rest.0 })
    }
}

/// Requests that a node has let in with a key since it said so last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests(pub u32);

impl Requests {
    /// As the value of a record.
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_be_bytes());
    }

    /// From the value of a record.
    pub fn read(bytes: &[u8]) -> Option<Requests> {
        Reader(bytes).u32().map(Requests)
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        write_hello(7, &mut bytes);
        assert_eq!((bytes.len(), read_hello(&bytes)), (HELLO, Ok(Some(7))));
        for cut in 0..HELLO {
            assert_eq!(read_hello(&bytes[..cut]), Ok(None), "{cut}");
        }
        assert!(read_hello(b"GET / HTTP/1.1\r\n").is_err());
        bytes[9] = 2;
        assert_eq!(read_hello(&bytes), Err(Invalid("it speaks another version of zone_sync")));

        let mut value = Vec::new();
        let record = Keyval { changed_ms: 5, stays_ms: Some(9), value: Some(b"v") };
        record.write(&mut value);
        assert_eq!(Keyval::read(&value), Some(record));
        let frames = [
            Frame::Zone { number: 3, kind: Some(Kind::Sticky), name: b"clients" },
            Frame::Record { number: 3, key: b"k", value: &value },
            Frame::Beat,
        ];
        let mut all = Vec::new();
        assert!(frames.iter().all(|frame| frame.write(&mut all)));
        let mut at = 0;
        for frame in frames {
            let Ok(Parsed::Complete(Some(read), len)) = parse(&all[at..]) else { panic!("{frame:?}") };
            assert_eq!(read, frame);
            assert!((0..len).all(|cut| parse(&all[at..at + cut]) == Ok(Parsed::Partial)));
            at += len;
        }
        assert_eq!(at, all.len());
    }

    #[test]
    fn a_removed_key_and_an_empty_value_are_two_things() {
        for value in [None, Some(&b""[..])] {
            let mut bytes = Vec::new();
            Keyval { changed_ms: 1, stays_ms: None, value }.write(&mut bytes);
            assert_eq!(Keyval::read(&bytes), Some(Keyval { changed_ms: 1, stays_ms: None, value }));
        }
        assert_eq!(Keyval::read(b"short"), None);
        let mut bytes = Vec::new();
        Session { unused_ms: 70, peer: b"p" }.write(&mut bytes);
        assert_eq!(Session::read(&bytes), Some(Session { unused_ms: 70, peer: b"p" }));
        bytes.clear();
        Requests(9).write(&mut bytes);
        assert_eq!(Requests::read(&bytes), Some(Requests(9)));
    }

    #[test]
    fn nonsense_is_named() {
        let long = (MAX_FRAME as u32 + 1).to_be_bytes();
        assert_eq!(parse(&long), Err(Invalid("a message is too long")));
        assert_eq!(parse(&[0; 4]), Err(Invalid("a message is empty")));
        assert_eq!(parse(&[0, 0, 0, 4, RECORD, 0, 1, 9]), Err(CUT));
        assert_eq!(parse(&[0, 0, 0, 5, RECORD, 0, 1, 0, 9]), Err(CUT));
        assert!(parse(&[0, 0, 0, 4, ZONE, 0, 1, 1]).is_err());
        assert_eq!(parse(&[0, 0, 0, 1, 77]), Ok(Parsed::Complete(None, 5)));
        let mut out = Vec::new();
        assert!(!Frame::Record { number: 1, key: b"k", value: &vec![0; MAX_FRAME] }.write(&mut out));
        assert!(out.is_empty());
    }
}
