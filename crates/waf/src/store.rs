//! Collections that outlive a transaction: `IP`, `SESSION` and the like. The engine knows the trait; a server may keep them in a
//! zone that its threads share. [`Memory`] is the plain one.

use crate::limits::{MAX_RECORD_VARIABLES, MAX_RECORDS, MAX_STORE_BYTES, MAX_STORED_BYTES};
use crate::variable::Stored;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// How a stored variable changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update<'a> {
    /// It becomes this.
    Set(&'a [u8]),
    /// This is added to the number that it is.
    Add(i64),
    /// It goes.
    Unset,
    /// It goes so many seconds from now.
    Expire(u64),
}

/// The variables of a record: names in small letters, and values.
pub type Variables = Vec<(Box<[u8]>, Box<[u8]>)>;

/// Where records are kept. Times are in seconds since 1970.
pub trait Store: Send + Sync + fmt::Debug {
    /// The variables of a record; a record that is not there is made, and lives for `timeout_s` after its last change.
    fn open(&self, collection: Stored, key: &[u8], timeout_s: u64, now_s: u64) -> Variables;

    /// Changes one variable at once for everybody; returns what it is then.
    fn change(&self, collection: Stored, key: &[u8], name: &[u8], update: Update<'_>, now_s: u64) -> Option<Box<[u8]>>;
}

#[derive(Debug)]
struct Variable {
    value: Box<[u8]>,
    ends_s: Option<u64>,
}

#[derive(Debug, Default)]
struct Record {
    variables: HashMap<Box<[u8]>, Variable>,
    timeout_s: u64,
    ends_s: u64,
}

/// Records in memory, at most [`MAX_RECORDS`] of them with [`MAX_STORE_BYTES`] together. What does not fit is not kept.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    all: HashMap<Key, Record>,
    /// What they take together, roughly.
    bytes: usize,
    /// When it was full and looked through for records that have ended: no more than once a second.
    swept_s: u64,
}

/// Which record.
type Key = (Stored, Box<[u8]>);

/// What a record takes beside its key and its variables, and a variable beside its name and value, roughly.
const RECORD_BYTES: usize = 160;
const VARIABLE_BYTES: usize = 80;

fn bytes_of(name: &[u8], variable: &Variable) -> usize {
    VARIABLE_BYTES + name.len() + variable.value.len()
}

impl Record {
    fn bytes(&self, key: &[u8]) -> usize {
        RECORD_BYTES + key.len() + self.variables.iter().map(|(name, variable)| bytes_of(name, variable)).sum::<usize>()
    }
}

impl Records {
    /// Makes room for a record by dropping those that have ended, at most once a second.
    fn has_room(&mut self, bytes: usize, now_s: u64) -> bool {
        let fits = |records: &Records| records.all.len() < MAX_RECORDS && records.bytes + bytes <= MAX_STORE_BYTES;
        if !fits(self) && std::mem::replace(&mut self.swept_s, now_s) != now_s {
            self.all.retain(|_, record| record.ends_s > now_s);
            self.bytes = self.all.iter().map(|((_, key), record)| record.bytes(key)).sum();
        }
        fits(self)
    }
}

impl Store for Memory {
    fn open(&self, collection: Stored, key: &[u8], timeout_s: u64, now_s: u64) -> Variables {
        if key.len() > MAX_STORED_BYTES {
            return Vec::new();
        }
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let which = (collection, Box::from(key));
        if !records.all.contains_key(&which) {
            let bytes = RECORD_BYTES + key.len();
            if !records.has_room(bytes, now_s) {
                // Full of what still lives: the new record starts empty each time, and is not kept.
                return Vec::new();
            }
            records.bytes += bytes;
        }
        let Records { all, bytes, .. } = &mut *records;
        let record = all.entry(which).or_default();
        let before = record.bytes(key);
        if record.ends_s <= now_s {
            record.variables.clear();
        }
        record.timeout_s = timeout_s;
        record.ends_s = now_s.saturating_add(timeout_s);
        record.variables.retain(|_, v| v.ends_s.is_none_or(|ends| ends > now_s));
        *bytes -= before - record.bytes(key);
        record.variables.iter().map(|(name, v)| (name.clone(), v.value.clone())).collect()
    }

    fn change(&self, collection: Stored, key: &[u8], name: &[u8], update: Update<'_>, now_s: u64) -> Option<Box<[u8]>> {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Records { all, bytes, .. } = &mut *records;
        let record = all.get_mut(&(collection, key.into()))?;
        record.ends_s = now_s.saturating_add(record.timeout_s);
        let has_ended = |v: &Variable| v.ends_s.is_some_and(|ends| ends <= now_s);
        if record.variables.get(name).is_some_and(has_ended)
            && let Some(gone) = record.variables.remove(name)
        {
            *bytes -= bytes_of(name, &gone);
        }
        let room = record.variables.len() < MAX_RECORD_VARIABLES && name.len() <= MAX_STORED_BYTES;
        let known = record.variables.get_mut(name);
        if known.is_none() && !room {
            return None;
        }
        let value: Box<[u8]> = match update {
            Update::Unset => {
                let gone = record.variables.remove(name);
                *bytes -= gone.map_or(0, |gone| bytes_of(name, &gone));
                return None;
            }
            Update::Expire(seconds) => {
                let known = known?;
                known.ends_s = Some(now_s.saturating_add(seconds));
                return Some(known.value.clone());
            }
            Update::Set(text) => text[..text.len().min(MAX_STORED_BYTES)].into(),
            Update::Add(number) => {
                let before = known.as_ref().map_or(0, |v| crate::operator::number(&v.value));
                before.saturating_add(number).to_string().into_bytes().into()
            }
        };
        let before = known.as_ref().map_or(0, |v| v.value.len());
        let added = value.len() + if known.is_some() { 0 } else { VARIABLE_BYTES + name.len() };
        if added > before && *bytes + added - before > MAX_STORE_BYTES {
            return None;
        }
        *bytes = *bytes + added - before;
        match known {
            Some(variable) => variable.value.clone_from(&value),
            None => {
                record.variables.insert(name.into(), Variable { value: value.clone(), ends_s: None });
            }
        }
        Some(value)
    }
}

/// Name, value, and when it ends, if it does, s.
type KeptVariable = (Box<[u8]>, Box<[u8]>, Option<u64>);

/// A record as it goes to another process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// It lives for so long after its last change, s.
    pub timeout_s: u64,
    /// When it ends.
    pub ends_s: u64,
    /// Those that it had.
    pub variables: Vec<KeptVariable>,
}

impl Memory {
    /// Which records there are.
    pub fn keys(&self) -> Vec<(Stored, Box<[u8]>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all.keys().cloned().collect()
    }

    /// A record, unless it has ended.
    pub fn record(&self, which: &(Stored, Box<[u8]>), now_s: u64) -> Option<Kept> {
        let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records.all.get(which).filter(|record| record.ends_s > now_s)?;
        let variables = record.variables.iter();
        let variables = variables.map(|(name, v)| (name.clone(), v.value.clone(), v.ends_s)).collect();
        Some(Kept { timeout_s: record.timeout_s, ends_s: record.ends_s, variables })
    }

    /// Takes a record of another process. What is known here already stays, and all bounds hold.
    pub fn restore(&self, collection: Stored, key: &[u8], kept: Kept, now_s: u64) {
        let is_kept = |(name, value, ends): &(Box<[u8]>, Box<[u8]>, Option<u64>)| {
            name.len().max(value.len()) <= MAX_STORED_BYTES && ends.is_none_or(|ends| ends > now_s)
        };
        if key.len() > MAX_STORED_BYTES || kept.ends_s <= now_s {
            return;
        }
        let variables = kept.variables.into_iter().filter(is_kept).take(MAX_RECORD_VARIABLES);
        let variables = variables.map(|(name, value, ends_s)| (name, Variable { value, ends_s })).collect();
        let record = Record { variables, timeout_s: kept.timeout_s, ends_s: kept.ends_s };
        let bytes = record.bytes(key);
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let which = (collection, Box::from(key));
        if !records.all.contains_key(&which) && records.has_room(bytes, now_s) {
            records.bytes += bytes;
            records.all.insert(which, record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_live_as_long_as_they_are_used() {
        let store = Memory::default();
        assert!(store.open(Stored::Ip, b"a", 60, 1000).is_empty());
        assert_eq!(store.change(Stored::Ip, b"a", b"n", Update::Add(2), 1000).as_deref(), Some(&b"2"[..]));
        assert_eq!(store.change(Stored::Ip, b"a", b"n", Update::Add(-3), 1001).as_deref(), Some(&b"-1"[..]));
        store.change(Stored::Ip, b"a", b"b", Update::Set(b"x"), 1001);
        store.change(Stored::Ip, b"a", b"b", Update::Expire(5), 1001);
        assert_eq!(store.open(Stored::Ip, b"a", 60, 1005).len(), 2);
        assert_eq!(store.open(Stored::Ip, b"a", 60, 1006).len(), 1, "b has ended");
        assert!(store.open(Stored::Ip, b"a", 60, 1066).is_empty(), "nobody came for a minute");
        assert!(store.open(Stored::Session, b"a", 60, 1005).is_empty(), "another collection");
        assert_eq!(store.change(Stored::User, b"never opened", b"n", Update::Add(1), 1000), None);
    }

    #[test]
    fn records_go_to_another_store() {
        let (here, there) = (Memory::default(), Memory::default());
        here.open(Stored::Ip, b"a", 60, 1000);
        here.change(Stored::Ip, b"a", b"n", Update::Add(2), 1000);
        here.change(Stored::Ip, b"a", b"e", Update::Set(b"x"), 1000);
        here.change(Stored::Ip, b"a", b"e", Update::Expire(5), 1000);
        here.open(Stored::Session, b"over", 5, 1000);
        let go = |now_s| {
            for which in here.keys() {
                let record = here.record(&which, now_s);
                record.into_iter().for_each(|record| there.restore(which.0, &which.1, record, now_s));
            }
        };
        go(1010);
        assert_eq!(there.keys().len(), 1, "what has ended stays");
        assert_eq!(there.open(Stored::Ip, b"a", 60, 1010), [(Box::from(&b"n"[..]), Box::from(&b"2"[..]))]);
        there.change(Stored::Ip, b"a", b"n", Update::Add(1), 1010);
        go(1011);
        assert_eq!(&*there.open(Stored::Ip, b"a", 60, 1011)[0].1, b"3", "what is known stays");
        let bytes = there.0.lock().unwrap().bytes;
        assert_eq!(bytes, there.0.lock().unwrap().all.iter().map(|((_, key), r)| r.bytes(key)).sum::<usize>());
        let large = Kept {
            timeout_s: 9,
            ends_s: 9999,
            variables: vec![(Box::default(), vec![b'x'; MAX_STORED_BYTES + 1].into(), None)],
        };
        there.restore(Stored::User, b"b", large, 1011);
        assert!(there.open(Stored::User, b"b", 60, 1011).is_empty());
    }

    #[test]
    fn all_records_together_are_bounded() {
        let store = Memory::default();
        let value = vec![b'x'; MAX_STORED_BYTES];
        let mut kept = 0;
        'full: for n in 0..MAX_RECORDS {
            let key = n.to_string();
            store.open(Stored::Ip, key.as_bytes(), 60, 1000);
            for name in 0..MAX_RECORD_VARIABLES {
                let stored =
                    store.change(Stored::Ip, key.as_bytes(), name.to_string().as_bytes(), Update::Set(&value), 1000);
                if stored.is_none() {
                    break 'full;
                }
                kept += value.len();
            }
        }
        assert!((MAX_STORE_BYTES / 2..MAX_STORE_BYTES).contains(&kept), "{kept}");
        let bytes = || {
            let records = store.0.lock().unwrap();
            (records.bytes, records.all.iter().map(|((_, key), record)| record.bytes(key)).sum::<usize>())
        };
        let (counted, there) = bytes();
        assert_eq!(counted, there);
        assert!(
            store.change(Stored::Ip, b"0", b"0", Update::Add(1), 1000).is_some(),
            "what is there may become shorter"
        );
        store.open(Stored::Ip, b"0", 60, 2000);
        store.change(Stored::Ip, b"0", b"b", Update::Set(b"x"), 2000);
        store.change(Stored::Ip, b"0", b"b", Update::Unset, 2000);
        let (counted, there) = bytes();
        assert_eq!(counted, there);
        let large = vec![b'k'; MAX_STORED_BYTES];
        for n in 0..16_u8 {
            let key = [&large[1..], &[n]].concat();
            store.open(Stored::User, &key, 60, 2001);
            assert!(
                store.change(Stored::User, &key, b"n", Update::Set(&large), 2001).is_some(),
                "what has ended makes room"
            );
        }
    }
}
