//! The journal of systemd, read from its files (`*.journal`; systemd's docs/JOURNAL_FILE_FORMAT.md): what of it tells of a server's troubles. Those are units' processes that
//! died of a signal or failed, processes that were killed for want of memory, cores that were taken, errors of units, and the kernel's lines of boots before
//! this one, which `/dev/kmsg` no longer has.
//!
//! A file is not read through: its index leads from a field's value to the entries with it (`FIELD -> DATA -> entries`), and of those the last
//! ones are looked at. Every step is bounded, and a file that is wrong, or is being written at the moment, gives fewer entries and no error.
//! Only values that are not compressed are read: systemd compresses those of 512 bytes and more.

use crate::kernel_log;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Where journals lie: those that last, and those of this boot.
pub const FOLDERS: [&str; 2] = ["/var/log/journal", "/run/log/journal"];
/// Files that are read: the newest. One has up to 128 MB, mostly of the last days.
const MOST_FILES: usize = 8;
/// Folders of machines that are looked into: a journal may be copied from others.
const MOST_MACHINES: usize = 16;
/// Entries that are looked at for each thing that is looked for, of each file: the last ones.
const MOST_ENTRIES: usize = 512;
/// Entries of the kernel that are looked at: it says much, and little of it is of interest.
const MOST_OF_KERNEL: usize = 4_096;
/// Reads of one file: each is an object or a part of an array, and takes about a microsecond.
const MOST_READS: usize = 50_000;
/// Values that are kept while a file is read: most entries have the same host, boot, unit, priority.
const MOST_REMEMBERED: usize = 4_096;
/// Values of one field, fields, and arrays of one value: more are not followed.
const MOST_STEPS: usize = 100_000;
/// Fields of an entry.
const MOST_ITEMS: usize = 256;
/// Of a value so much is read: `MESSAGE=` and what is kept of a text.
const LONGEST: usize = 600;
/// Entries that are kept: the last ones.
const KEPT: usize = 200;
/// Items of an array that are read at once.
const BLOCK: usize = 4_096;

/// Sizes and places in objects; all numbers are little-endian.
const SIGNATURE: &[u8; 8] = b"LPKSHHRH";
const HEADER: usize = 208;
const COMPACT: u32 = 1 << 4;
/// Flags that say how things are laid out, of which all are known: compressed values, keyed hashes, compact objects.
const KNOWN_FLAGS: u32 = 0b1_1111;
const OBJECT: usize = 16;
const COMPRESSED: u8 = 0b111;
const DATA: u8 = 1;
const FIELD: u8 = 2;
const ENTRY: u8 = 3;
const ENTRY_ARRAY: u8 = 6;
const FIELD_PAYLOAD: usize = 40;
const DATA_PAYLOAD: usize = 64;
const COMPACT_DATA_PAYLOAD: usize = 72;
const ENTRY_ITEMS: usize = 64;
const ARRAY_ITEMS: usize = 24;

/// `SD_MESSAGE_*` of systemd/sd-messages.h: a unit's process has ended; one of a unit was killed for want of memory; a core was taken.
const PROCESS_EXIT: &str = "98e322203f7a4ed290d09fe03c09fe15";
const OUT_OF_MEMORY: &str = "fe6faa94e7774663a0da52717891d8ef";
const CORE_DUMP: &str = "fc2e22bc6ee647b6b90729ab34a250b1";

/// An entry that tells something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, microseconds since 1970.
    pub at_us: u64,
    /// What it is of.
    pub kind: Kind,
    /// The unit; empty: none is named.
    #[serde(default)]
    pub unit: String,
    /// Who said it: the identifier of the log, or the program.
    #[serde(default)]
    pub who: String,
    /// The message.
    pub text: String,
    /// How a process ended (`EXIT_CODE`: `exited`, `killed`, `dumped`), and with what (`EXIT_STATUS`: `11`, `SEGV`; of a core its signal).
    #[serde(default)]
    pub exit: Option<(String, String)>,
    /// Where the core lies, if it was kept.
    #[serde(default)]
    pub core: Option<String>,
    /// Entries that say the same, this one included.
    #[serde(default = "one")]
    pub count: u64,
}

fn one() -> u64 {
    1
}

/// What an entry is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// A process of a unit has ended, and not well.
    Exit,
    /// A process of a unit was killed for want of memory.
    OutOfMemory,
    /// A core was taken.
    Core,
    /// The kernel said it.
    Kernel,
    /// A unit says that something failed (`PRIORITY` of 3 and less).
    #[default]
    Error,
}

/// Bytes at places.
pub trait Bytes {
    /// Reads at a place, as much as there is at once; 0: nothing is there.
    ///
    /// # Errors
    /// The disk's.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
}

impl Bytes for File {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, into, at)
    }
}

impl Bytes for &[u8] {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// What journals tell since a time (microseconds since 1970), oldest first; none: there is no journal. Errors of units are told of these units, and
/// of those of which a process has died: others' are nobody's business.
///
/// # Errors
/// None of them may be read.
pub fn telling(folders: &[&Path], since_us: u64, units: &BTreeSet<&str>) -> io::Result<Option<Vec<Entry>>> {
    let (mut files, mut refused) = (Vec::new(), None);
    for folder in folders {
        match newest(folder) {
            Ok(found) => files.extend(found),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => refused = Some(e),
        }
    }
    files.sort_by_key(|(changed, _)| std::cmp::Reverse(*changed));
    files.truncate(MOST_FILES);
    let (mut entries, mut read) = (Vec::new(), 0);
    for (_, path) in &files {
        let told = File::open(path).and_then(|file| {
            let length = file.metadata()?.len();
            Ok(of_file(&file, length, since_us))
        });
        match told {
            Ok(told) => {
                entries.extend(told);
                read += 1;
            }
            Err(e) => refused = Some(e),
        }
    }
    match refused {
        Some(e) if read == 0 => Err(e),
        _ if files.is_empty() => Ok(None),
        _ => Ok(Some(together(entries, units))),
    }
}

/// Journals in a folder and in those in it (one a machine), with when they were changed last.
fn newest(folder: &Path) -> io::Result<Vec<(std::time::SystemTime, PathBuf)>> {
    let mut found = Vec::new();
    let mut look = |folder: &Path| -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for file in std::fs::read_dir(folder)?.flatten().take(MOST_STEPS) {
            let is_journal = file.path().extension().is_some_and(|e| e == "journal");
            match file.metadata() {
                Ok(facts) if facts.is_dir() => folders.push(file.path()),
                Ok(facts) if facts.is_file() && is_journal => found.push((facts.modified()?, file.path())),
                _ => {}
            }
        }
        Ok(folders)
    };
    for machine in look(folder)?.into_iter().take(MOST_MACHINES) {
        // Of another user's journals may be known that they are there.
        let _ = look(&machine);
    }
    Ok(found)
}

/// Entries that say the same are one, the last of them; oldest first.
fn together(mut entries: Vec<Entry>, units: &BTreeSet<&str>) -> Vec<Entry> {
    let died: BTreeSet<String> = entries.iter().filter(|e| e.kind != Kind::Error).map(|e| e.unit.clone()).collect();
    let is_told = |e: &Entry| !e.unit.is_empty() && (units.contains(e.unit.as_str()) || died.contains(&e.unit));
    entries.retain(|e| e.kind != Kind::Error || is_told(e));
    entries.sort_by(|a, b| b.at_us.cmp(&a.at_us).then_with(|| a.text.cmp(&b.text)));
    let mut seen: BTreeMap<(Kind, String, String), usize> = BTreeMap::new();
    let mut all: Vec<Entry> = Vec::new();
    for entry in entries {
        // Numbers in a text are those of processes, ports and times: the rest is what is said. A death is told by itself.
        let words = match entry.kind {
            Kind::Error => entry.text.chars().filter(|c| !c.is_ascii_digit()).collect(),
            _ => format!("{} {}", entry.at_us, entry.text),
        };
        let same = seen.entry((entry.kind, entry.unit.clone(), words)).or_insert(all.len());
        match all.get_mut(*same) {
            Some(known) => known.count += entry.count,
            None => all.push(entry),
        }
    }
    all.truncate(KEPT);
    all.reverse();
    all
}

/// What one file tells; `file` may be any bytes.
pub fn of_file(file: &impl Bytes, length: u64, since_us: u64) -> Vec<Entry> {
    let Some(journal) = Journal::open(file, length) else { return Vec::new() };
    let mut found = Vec::new();
    let mut taken = BTreeSet::new();
    for (field, values, kind) in [
        ("MESSAGE_ID", &[PROCESS_EXIT][..], Kind::Exit),
        ("MESSAGE_ID", &[OUT_OF_MEMORY], Kind::OutOfMemory),
        ("MESSAGE_ID", &[CORE_DUMP], Kind::Core),
        ("_TRANSPORT", &["kernel"], Kind::Kernel),
        ("PRIORITY", &["0", "1", "2", "3"], Kind::Error),
    ] {
        let most = if kind == Kind::Kernel { MOST_OF_KERNEL } else { MOST_ENTRIES };
        for value in values {
            let Some(data) = journal.value(field, value) else { continue };
            for at in journal.last_entries(data, most) {
                if taken.insert(at) {
                    found.extend(journal.entry(at, since_us, kind));
                }
            }
        }
    }
    found
}

/// A file that is open.
struct Journal<'f, F> {
    file: &'f F,
    length: u64,
    is_compact: bool,
    fields: u64,
    buckets: u64,
    reads: Cell<usize>,
    values: RefCell<HashMap<u64, Option<Rc<[u8]>>>>,
}

/// A value's object.
#[derive(Clone, Copy)]
struct Value {
    next_of_field: u64,
    first_entry: u64,
    array: u64,
    entries: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl<F: Bytes> Journal<'_, F> {
    fn open(file: &F, length: u64) -> Option<Journal<'_, F>> {
        let (reads, values) = (Cell::default(), RefCell::default());
        let mut journal = Journal { file, length, is_compact: false, fields: 0, buckets: 0, reads, values };
        let mut header = [0; HEADER];
        journal.read(0, &mut header).filter(|read| *read == HEADER)?;
        let flags = u32_at(&header, 12)?;
        if header[..8] != *SIGNATURE || flags & !KNOWN_FLAGS != 0 {
            return None;
        }
        journal.is_compact = flags & COMPACT != 0;
        journal.fields = u64_at(&header, 120)?;
        journal.buckets = u64_at(&header, 128)? / 16;
        Some(journal)
    }

    /// Reads at a place, as much as there is.
    fn read(&self, at: u64, into: &mut [u8]) -> Option<usize> {
        if self.reads.replace(self.reads.get() + 1) >= MOST_READS || at >= self.length {
            return None;
        }
        let mut got = 0;
        while got < into.len() {
            match self.file.read_at(&mut into[got..], at + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        Some(got)
    }

    /// An object of a kind: its flags, its size and its first bytes, as many as are there and fit.
    fn object<'b>(&self, at: u64, kind: u8, into: &'b mut [u8]) -> Option<(u8, u64, &'b [u8])> {
        // Objects stand at multiples of eight behind the header; 0 is none.
        if at < HEADER as u64 || !at.is_multiple_of(8) {
            return None;
        }
        let read = self.read(at, into)?;
        let bytes = &into[..read];
        let size = u64_at(bytes, 8)?;
        if bytes[0] != kind || size < OBJECT as u64 {
            return None;
        }
        let end = usize::try_from(size).unwrap_or(usize::MAX).min(bytes.len());
        Some((bytes[1], size, &bytes[..end]))
    }

    /// A field's value: the object from which its entries are found.
    fn value(&self, field: &str, value: &str) -> Option<Value> {
        let mut at = self.field(field)?;
        let wanted = format!("{field}={value}");
        for _ in 0..MOST_STEPS {
            let (data, payload) = self.data(at)?;
            if payload.is_some_and(|p| p == wanted.as_bytes()) {
                return Some(data);
            }
            at = data.next_of_field;
        }
        None
    }

    /// Where a field's first value is. All buckets are looked at: hashes may be keyed, and there are a few hundred.
    fn field(&self, name: &str) -> Option<u64> {
        let mut heads = [0; 16 * 64];
        for from in (0..self.buckets.min(MOST_STEPS as u64)).step_by(64) {
            let read = self.read(self.fields.checked_add(from * 16)?, &mut heads)?;
            let most = ((self.buckets - from) as usize * 16).min(read);
            for bucket in heads[..most].chunks_exact(16) {
                let mut at = u64_at(bucket, 0)?;
                for _ in 0..MOST_FIELDS_OF_BUCKET {
                    let mut bytes = [0; FIELD_PAYLOAD + 64];
                    let Some((_, size, object)) = self.object(at, FIELD, &mut bytes) else { break };
                    let is_it = size == (FIELD_PAYLOAD + name.len()) as u64;
                    if is_it && object.get(FIELD_PAYLOAD..) == Some(name.as_bytes()) {
                        return u64_at(object, 32);
                    }
                    at = u64_at(object, 24)?;
                }
            }
        }
        None
    }

    /// A value, and its bytes if they are not compressed.
    fn data(&self, at: u64) -> Option<(Value, Option<Vec<u8>>)> {
        let begin = if self.is_compact { COMPACT_DATA_PAYLOAD } else { DATA_PAYLOAD };
        let mut bytes = [0; COMPACT_DATA_PAYLOAD + LONGEST];
        let (flags, _, object) = self.object(at, DATA, &mut bytes)?;
        let value = Value {
            next_of_field: u64_at(object, 32)?,
            first_entry: u64_at(object, 40)?,
            array: u64_at(object, 48)?,
            entries: u64_at(object, 56)?,
        };
        let payload = object.get(begin..).filter(|_| flags & COMPRESSED == 0).map(<[u8]>::to_vec);
        Some((value, payload))
    }

    /// The bytes of a value, which are read once.
    fn payload(&self, at: u64) -> Option<Rc<[u8]>> {
        if let Some(known) = self.values.borrow().get(&at) {
            return known.clone();
        }
        let payload: Option<Rc<[u8]>> = self.data(at).and_then(|(_, payload)| payload).map(Rc::from);
        let mut values = self.values.borrow_mut();
        if values.len() < MOST_REMEMBERED {
            values.insert(at, payload.clone());
        }
        payload
    }

    /// Places of the last entries with a value.
    fn last_entries(&self, value: Value, most: usize) -> Vec<u64> {
        let mut last = VecDeque::from([value.first_entry]);
        let width = if self.is_compact { 4 } else { 8 };
        let (mut array, mut left) = (value.array, value.entries.saturating_sub(1));
        for _ in 0..MOST_STEPS {
            let mut head = [0; ARRAY_ITEMS];
            let Some((_, size, object)) = self.object(array, ENTRY_ARRAY, &mut head).filter(|_| left > 0) else {
                break;
            };
            let items = (size.saturating_sub(ARRAY_ITEMS as u64) / width).min(left);
            // Of an array that is not the last one, none may be needed: those behind it have as many.
            let from =
                if left > items && left - items >= most as u64 { items } else { items.saturating_sub(most as u64) };
            let mut bytes = vec![0; BLOCK * width as usize];
            for first in (from..items).step_by(BLOCK) {
                let count = (items - first).min(BLOCK as u64);
                let Some(place) = array.checked_add(ARRAY_ITEMS as u64 + first * width) else { break };
                let Some(read) = self.read(place, &mut bytes[..(count * width) as usize]) else { break };
                for item in bytes[..read].chunks_exact(width as usize) {
                    last.extend(if width == 4 { u32_at(item, 0).map(u64::from) } else { u64_at(item, 0) });
                    if last.len() > most {
                        last.pop_front();
                    }
                }
            }
            left -= items;
            let Some(next) = u64_at(object, 16) else { break };
            array = next;
        }
        last.into()
    }

    /// An entry, if it tells something.
    fn entry(&self, at: u64, since_us: u64, kind: Kind) -> Option<Entry> {
        let width = if self.is_compact { 4 } else { 16 };
        let mut bytes = vec![0; ENTRY_ITEMS + MOST_ITEMS * width];
        let (_, _, object) = self.object(at, ENTRY, &mut bytes)?;
        let at_us = u64_at(object, 24)?;
        if at_us < since_us {
            return None;
        }
        let mut fields = Fields::default();
        for item in object.get(ENTRY_ITEMS..)?.chunks_exact(width) {
            let place = if width == 4 { u64::from(u32_at(item, 0)?) } else { u64_at(item, 0)? };
            if let Some(payload) = self.payload(place) {
                fields.add(&payload);
            }
        }
        fields.entry(at_us, kind)
    }
}

/// Fields that fall into one bucket by chance.
const MOST_FIELDS_OF_BUCKET: usize = 256;

/// Fields of an entry.
#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Fields {
    /// Of many fields those that are of interest.
    fn add(&mut self, payload: &[u8]) {
        const WANTED: [&str; 13] = [
            "MESSAGE",
            "PRIORITY",
            "UNIT",
            "_SYSTEMD_UNIT",
            "SYSLOG_IDENTIFIER",
            "_COMM",
            "EXIT_CODE",
            "EXIT_STATUS",
            "COREDUMP_EXE",
            "COREDUMP_SIGNAL",
            "COREDUMP_UNIT",
            "COREDUMP_FILENAME",
            "COREDUMP_PID",
        ];
        let Some(end) = payload.iter().position(|b| *b == b'=') else { return };
        let name = String::from_utf8_lossy(&payload[..end]);
        if WANTED.contains(&&*name) {
            self.0.insert(name.into_owned(), String::from_utf8_lossy(&payload[end + 1..]).into_owned());
        }
    }

    fn take(&mut self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.0.remove(*name))
    }

    fn entry(mut self, at_us: u64, kind: Kind) -> Option<Entry> {
        let unit = self.take(&["COREDUMP_UNIT", "UNIT", "_SYSTEMD_UNIT"]).unwrap_or_default();
        let mut who = self.take(&["SYSLOG_IDENTIFIER", "_COMM"]).unwrap_or_default();
        let mut text = self.take(&["MESSAGE"]);
        let exit = match kind {
            Kind::Exit => Some((self.take(&["EXIT_CODE"])?, self.take(&["EXIT_STATUS"])?)),
            Kind::Core => Some(("dumped".to_owned(), self.take(&["COREDUMP_SIGNAL"])?)),
            _ => None,
        };
        match kind {
            // What was asked to end has ended well.
            Kind::Exit if exit.as_ref().is_some_and(|(code, status)| code == "exited" && status == "0") => return None,
            Kind::Exit if exit.as_ref().is_some_and(|(_, status)| matches!(status.as_str(), "TERM" | "15")) => {
                return None;
            }
            Kind::Kernel if !text.as_deref().is_some_and(kernel_log::tells) => return None,
            Kind::Core => {
                who = self.take(&["COREDUMP_EXE"]).unwrap_or(who);
                // The message has the whole stack, and is compressed.
                text =
                    Some(format!("process {} of {who} dumped core", self.take(&["COREDUMP_PID"]).unwrap_or_default()));
            }
            _ => {}
        }
        let core = self.take(&["COREDUMP_FILENAME"]);
        Some(Entry { at_us, kind, unit, who, text: text?, exit, core, count: 1 })
    }
}
