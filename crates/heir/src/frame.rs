//! The frames themselves.

use crate::word::{Reader, Writer};
use crate::{
    Kind, MOST_BYTES, MOST_CHANNELS, MOST_DICTIONARIES, MOST_DICTIONARY, MOST_FILES, MOST_NAMES, MOST_RECORDS,
    MOST_SECRET, MOST_SECRETS, VERSION,
};

const READY: u8 = 1;
const CHANNELS: u8 = 2;
const ZONE: u8 = 3;
const SETTLED: u8 = 4;
const LINES: u8 = 5;
const LATE: u8 = 6;
const TABLE: u8 = 7;
const BATCH: u8 = 8;
const ANSWER: u8 = 9;
const KEYS: u8 = 10;
const DICTIONARY: u8 = 11;

/// What a length takes at most.
const LENGTH: usize = 10;

/// Why a frame is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Its first byte is not [`VERSION`].
    Version(Option<u8>),
    /// There is no such kind of frame.
    Kind(Option<u8>),
    /// What it should say is not there, or beyond a limit.
    Content(u8),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unreadable::Version(Some(version)) => write!(f, "a frame of version {version} in place of {VERSION}"),
            Unreadable::Kind(Some(kind)) => write!(f, "a frame of the unknown kind {kind}"),
            Unreadable::Version(None) | Unreadable::Kind(None) => f.write_str("an empty frame"),
            Unreadable::Content(kind) => write!(f, "a frame of kind {kind} that is not whole, or beyond its limits"),
        }
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'b> {
    /// The new process serves with so many threads.
    Ready(u64),
    /// Channels with what their buffers have. One that comes again has more of it.
    Channels(Vec<Channel<'b>>),
    /// What a zone of this kind and name has; its rows are its module's.
    Zone(&'b [u8], &'b [u8], &'b [u8]),
    /// All channels and zones were sent.
    Settled,
    /// Descriptors come with it: a line for each thread. Connections have lower numbers than this.
    Lines(u64),
    /// What has happened to a channel since.
    Late(Late<'b>),
    /// What numbers in records mean.
    Table(Table<'b>),
    /// Connections; their descriptors come with it.
    Batch(Vec<Record<'b>>),
    /// Which records of the batch were taken.
    Answer(Vec<bool>),
    /// What the connections of the batch behind it are encrypted with, for each descriptor; nothing for those that are plain. A frame of its
    /// own, so that nothing else has to be overwritten once it is used.
    Keys(Vec<Secret<'b>>),
    /// What requests in records behind it are packed with, under this number.
    Dictionary(u8, &'b [u8]),
}

/// What nobody may read in a log.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret<'b>(pub &'b [u8]);

impl std::fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A channel: ids are second and tag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Channel<'b> {
    /// Its whole name.
    pub name: &'b [u8],
    /// The last id that it gave.
    pub last: (i64, i32),
    /// The newest message that is gone.
    pub dropped: (i64, i32),
    /// So many of its messages are beyond the buffer: only who has subscribed already gets them.
    pub behind: u64,
    /// It has had a message.
    pub has_published: bool,
    /// When a subscriber last asked for something.
    pub requested: Option<i64>,
    /// How long it stays empty, s.
    pub timeout: i64,
    /// Its messages, the oldest first.
    pub messages: Vec<Message<'b>>,
}

/// A message of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message<'b> {
    /// Its id.
    pub id: (i64, i32),
    /// Where it stands among all messages.
    pub order: u64,
    /// When it was published.
    pub at: i64,
    /// The rest, as `push` packs it.
    pub packed: &'b [u8],
}

/// What has happened to a channel after it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Late<'b> {
    /// A message was published.
    Publish {
        /// To this channel.
        name: &'b [u8],
        /// Which is to keep so many.
        length: u64,
        /// How long the channel stays empty, s.
        timeout: i64,
        /// The message, as `push` packs it.
        packed: &'b [u8],
    },
    /// It was deleted.
    Delete(&'b [u8]),
}

/// What numbers in records mean, which are those of the sender's configuration of this generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table<'b> {
    /// The sender's configuration.
    pub generation: u64,
    /// Addresses of listeners.
    pub listeners: Vec<&'b [u8]>,
    /// Names of variables.
    pub variables: Vec<&'b [u8]>,
    /// Keys of servers.
    pub servers: Vec<&'b [u8]>,
    /// Keys of locations.
    pub locations: Vec<&'b [u8]>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'b> {
    /// What it is; none: this version does not know it.
    pub kind: Option<Kind>,
    /// How many descriptors it has.
    pub files: u8,
    /// What there is to say of it: its kind knows.
    pub bytes: &'b [u8],
    /// Where it is encrypted, what is under way in that form.
    pub sealed: &'b [u8],
}

impl<'b> Frame<'b> {
    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        match self {
            Frame::Ready(threads) => number(READY, *threads),
            Frame::Channels(all) => {
                let mut channels = Channels::new();
                all.iter().for_each(|channel| channels.push(channel));
                channels.done()
            }
            Frame::Zone(kind, name, rows) => {
                let mut w = Writer::begin(&[VERSION, ZONE]);
                [kind, name, rows].into_iter().for_each(|text| w.bytes(text));
                w.done()
            }
            Frame::Settled => vec![VERSION, SETTLED],
            Frame::Lines(next) => number(LINES, *next),
            Frame::Late(late) => {
                let mut w = Writer::begin(&[VERSION, LATE]);
                match late {
                    Late::Publish { name, length, timeout, packed } => {
                        w.flag(false);
                        w.bytes(name);
                        w.number(*length);
                        w.signed(*timeout);
                        w.bytes(packed);
                    }
                    Late::Delete(name) => {
                        w.flag(true);
                        w.bytes(name);
                    }
                }
                w.done()
            }
            Frame::Table(table) => {
                let mut w = Writer::begin(&[VERSION, TABLE]);
                w.number(table.generation);
                for names in [&table.listeners, &table.variables, &table.servers, &table.locations] {
                    w.number(names.len() as u64);
                    names.iter().for_each(|name| w.bytes(name));
                }
                w.done()
            }
            Frame::Batch(records) => {
                let mut batch = Batch::default();
                for record in records {
                    let kind = record.kind.map_or(u64::MAX, Kind::number);
                    batch.push_number(kind, record.files, record.bytes, record.sealed);
                }
                batch.done()
            }
            Frame::Answer(taken) => {
                let mut w = Writer::begin(&[VERSION, ANSWER]);
                w.number(taken.len() as u64);
                taken.iter().for_each(|taken| w.flag(*taken));
                w.done()
            }
            Frame::Keys(keys) => {
                // Never moved while it grows: what is left behind would not be overwritten.
                let room = 2 + LENGTH + keys.iter().map(|key| LENGTH + key.0.len()).sum::<usize>();
                let mut w = Writer::with_room(&[VERSION, KEYS], room);
                w.number(keys.len() as u64);
                keys.iter().for_each(|key| w.bytes(key.0));
                w.done()
            }
            Frame::Dictionary(number, text) => {
                let mut w = Writer::begin(&[VERSION, DICTIONARY]);
                w.number((*number).into());
                w.bytes(text);
                w.done()
            }
        }
    }

    /// What bytes say.
    ///
    /// # Errors
    /// They are of another version, or not as they should be.
    pub fn read(bytes: &'b [u8]) -> Result<Frame<'b>, Unreadable> {
        let (version, rest) = bytes.split_first().ok_or(Unreadable::Version(None))?;
        if *version != VERSION {
            return Err(Unreadable::Version(Some(*version)));
        }
        let (kind, rest) = rest.split_first().ok_or(Unreadable::Kind(None))?;
        if !(READY..=DICTIONARY).contains(kind) {
            return Err(Unreadable::Kind(Some(*kind)));
        }
        let mut r = Reader::new(rest);
        let frame = read(*kind, &mut r).filter(|_| r.is_done());
        frame.ok_or(Unreadable::Content(*kind))
    }
}

fn number(kind: u8, number: u64) -> Vec<u8> {
    let mut w = Writer::begin(&[VERSION, kind]);
    w.number(number);
    w.done()
}

fn read<'b>(kind: u8, r: &mut Reader<'b>) -> Option<Frame<'b>> {
    Some(match kind {
        READY => Frame::Ready(r.number()?),
        CHANNELS => Frame::Channels(r.list(MOST_CHANNELS, read_channel)?),
        ZONE => Frame::Zone(r.bytes()?, r.bytes()?, r.bytes()?),
        SETTLED => Frame::Settled,
        LINES => Frame::Lines(r.number()?),
        LATE => Frame::Late(match r.flag()? {
            true => Late::Delete(r.bytes()?),
            false => Late::Publish { name: r.bytes()?, length: r.number()?, timeout: r.signed()?, packed: r.bytes()? },
        }),
        TABLE => {
            let generation = r.number()?;
            let mut names = || r.list(MOST_NAMES, Reader::bytes);
            let (listeners, variables, servers, locations) = (names()?, names()?, names()?, names()?);
            Frame::Table(Table { generation, listeners, variables, servers, locations })
        }
        BATCH => Frame::Batch(r.list(MOST_RECORDS, |r| {
            let kind = Kind::of(r.number()?);
            let files = u8::try_from(r.number()?).ok().filter(|files| *files <= MOST_FILES)?;
            let mut bytes = || r.bytes().filter(|bytes| bytes.len() <= MOST_BYTES);
            Some(Record { kind, files, bytes: bytes()?, sealed: bytes()? })
        })?),
        ANSWER => Frame::Answer(r.list(MOST_RECORDS, Reader::flag)?),
        KEYS => {
            Frame::Keys(r.list(MOST_SECRETS, |r| r.bytes().filter(|secret| secret.len() <= MOST_SECRET).map(Secret))?)
        }
        DICTIONARY => {
            let number = u8::try_from(r.number()?).ok().filter(|number| usize::from(*number) < MOST_DICTIONARIES)?;
            Frame::Dictionary(number, r.bytes().filter(|text| text.len() <= MOST_DICTIONARY)?)
        }
        _ => return None,
    })
}

fn read_id(r: &mut Reader<'_>) -> Option<(i64, i32)> {
    Some((r.signed()?, i32::try_from(r.signed()?).ok()?))
}

fn read_channel<'b>(r: &mut Reader<'b>) -> Option<Channel<'b>> {
    Some(Channel {
        name: r.bytes()?,
        last: read_id(r)?,
        dropped: read_id(r)?,
        behind: r.number()?,
        has_published: r.flag()?,
        requested: r.optional()?,
        timeout: r.signed()?,
        messages: r.list(MOST_CHANNELS, |r| {
            Some(Message { id: read_id(r)?, order: r.number()?, at: r.signed()?, packed: r.bytes()? })
        })?,
    })
}

fn write_id(w: &mut Writer, id: (i64, i32)) {
    w.signed(id.0);
    w.signed(i64::from(id.1));
}

/// [`Frame::Channels`], put together one by one.
#[derive(Debug, Default)]
pub struct Channels {
    count: usize,
    w: Writer,
}

impl Channels {
    /// Of none yet.
    pub fn new() -> Channels {
        Channels::default()
    }

    /// One more.
    pub fn push(&mut self, channel: &Channel<'_>) {
        let w = &mut self.w;
        w.bytes(channel.name);
        write_id(w, channel.last);
        write_id(w, channel.dropped);
        w.number(channel.behind);
        w.flag(channel.has_published);
        w.optional(channel.requested);
        w.signed(channel.timeout);
        w.number(channel.messages.len() as u64);
        for message in &channel.messages {
            write_id(w, message.id);
            w.number(message.order);
            w.signed(message.at);
            w.bytes(message.packed);
        }
        self.count += 1;
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.w.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is room for no more.
    pub fn is_full(&self) -> bool {
        self.count >= MOST_CHANNELS
    }

    /// The frame.
    pub fn done(self) -> Vec<u8> {
        let mut w = Writer::begin(&[VERSION, CHANNELS]);
        w.number(self.count as u64);
        [w.done(), self.w.done()].concat()
    }
}

/// [`Frame::Batch`], put together one by one.
#[derive(Debug, Default)]
pub struct Batch {
    count: usize,
    w: Writer,
}

impl Batch {
    /// One more record.
    pub fn push(&mut self, kind: Kind, files: u8, bytes: &[u8], sealed: &[u8]) {
        self.push_number(kind.number(), files, bytes, sealed);
    }

    fn push_number(&mut self, kind: u64, files: u8, bytes: &[u8], sealed: &[u8]) {
        self.w.number(kind);
        self.w.number(files.into());
        self.w.bytes(bytes);
        self.w.bytes(sealed);
        self.count += 1;
    }

    /// The frame.
    pub fn done(self) -> Vec<u8> {
        let mut w = Writer::begin(&[VERSION, BATCH]);
        w.number(self.count as u64);
        [w.done(), self.w.done()].concat()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Vec<Frame<'static>> {
        let message = Message { id: (1_790_000_000, 7), order: 9, at: 1_790_000_000, packed: b"packed" };
        let channel = Channel {
            name: b"group/a",
            last: (1_790_000_000, 7),
            dropped: (0, -1),
            behind: 1,
            has_published: true,
            requested: Some(-5),
            timeout: 5,
            messages: vec![message.clone(), message],
        };
        let record = Record { kind: Some(Kind::Tunnel), files: 2, bytes: b"both ends", sealed: b"half a record" };
        let unknown = Record { kind: None, files: 1, bytes: b"", sealed: b"" };
        vec![
            Frame::Ready(4),
            Frame::Channels(vec![channel, Channel::default()]),
            Frame::Zone(b"limit_req", b"one", b"rows"),
            Frame::Settled,
            Frame::Lines(u64::MAX),
            Frame::Late(Late::Publish { name: b"g/a", length: 10, timeout: 5, packed: b"m" }),
            Frame::Late(Late::Delete(b"g/a")),
            Frame::Table(Table {
                generation: 3,
                listeners: vec![&b"*:80"[..]],
                variables: vec![&b"a"[..], b""],
                ..Table::default()
            }),
            Frame::Batch(vec![record, unknown]),
            Frame::Answer(vec![true, false, true]),
            Frame::Keys(vec![Secret(b"of the first"), Secret::default()]),
            Frame::Dictionary(254, b"GET / HTTP/1.1"),
        ]
    }

    #[test]
    fn what_is_written_is_read_and_nothing_shorter_or_longer() {
        for frame in all() {
            let bytes = frame.write();
            assert_eq!(Frame::read(&bytes).unwrap(), frame);
            for cut in 0..bytes.len() {
                assert!(Frame::read(&bytes[..cut]).is_err(), "{frame:?} {cut}");
            }
            assert_eq!(Frame::read(&[&bytes[..], b"x"].concat()), Err(Unreadable::Content(bytes[1])));
        }
    }

    #[test]
    fn another_version_and_what_is_beyond_limits_is_refused() {
        assert_eq!(Frame::read(&[1, SETTLED]), Err(Unreadable::Version(Some(1))));
        assert_eq!(Frame::read(&[VERSION, 99]), Err(Unreadable::Kind(Some(99))));
        let many = Frame::Answer(vec![true; MOST_RECORDS + 1]).write();
        assert_eq!(Frame::read(&many), Err(Unreadable::Content(ANSWER)));
        let files = Frame::Batch(vec![Record { kind: None, files: MOST_FILES + 1, bytes: b"", sealed: b"" }]).write();
        assert_eq!(Frame::read(&files), Err(Unreadable::Content(BATCH)));
        for (number, length) in [(u8::MAX, 1), (0, MOST_DICTIONARY + 1)] {
            let beyond = Frame::Dictionary(number, &vec![b'x'; length]).write();
            assert_eq!(Frame::read(&beyond), Err(Unreadable::Content(DICTIONARY)));
        }
        let long = Frame::Keys(vec![Secret(&[b'x'; MOST_SECRET + 1])]);
        assert_eq!(Frame::read(&long.write()), Err(Unreadable::Content(KEYS)));
        assert!(!format!("{long:?}").contains("120"), "{long:?}");
        let many = |count| Frame::Keys(vec![Secret(&[b'x'; MOST_SECRET]); count]).write();
        assert!(Frame::read(&many(MOST_SECRETS)).is_ok());
        assert!(many(MOST_SECRETS).len() < 32 * 1024, "one packet takes them");
        assert_eq!(Frame::read(&many(MOST_SECRETS + 1)), Err(Unreadable::Content(KEYS)));
    }

    proptest! {
        #[test]
        fn strangers_bytes_break_nothing(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in READY..=DICTIONARY) {
            let _ = Frame::read(&bytes);
            bytes.splice(0..0, [VERSION, kind]);
            if let Ok(frame) = Frame::read(&bytes) {
                let bytes = frame.write();
                prop_assert_eq!(Frame::read(&bytes).unwrap(), frame);
            }
        }
    }
}
