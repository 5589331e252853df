//! Collections that outlive a transaction: `IP`, `SESSION` and the like. The engine knows the trait; a server may keep them in a
//! zone that its threads share. [`Memory`] is the plain one.

use crate::limits::{MAX_RECORD_VARIABLES, MAX_RECORDS, MAX_STORED_BYTES};
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

/// Records in memory, at most [`MAX_RECORDS`] of them.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    all: HashMap<Key, Record>,
    /// When it was full and looked through for records that have ended: no more than once a second.
    swept_s: u64,
}

/// Which record.
type Key = (Stored, Box<[u8]>);

impl Store for Memory {
    fn open(&self, collection: Stored, key: &[u8], timeout_s: u64, now_s: u64) -> Variables {
        if key.len() > MAX_STORED_BYTES {
            return Vec::new();
        }
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Records { all: records, swept_s } = &mut *records;
        if records.len() >= MAX_RECORDS && !records.contains_key(&(collection, key.into())) {
            if std::mem::replace(swept_s, now_s) != now_s {
                records.retain(|_, record| record.ends_s > now_s);
            }
            if records.len() >= MAX_RECORDS {
                // Full of what still lives: the new record starts empty each time, and is not kept.
                return Vec::new();
            }
        }
        let record = records.entry((collection, key.into())).or_default();
        if record.ends_s <= now_s {
            record.variables.clear();
        }
        record.timeout_s = timeout_s;
        record.ends_s = now_s.saturating_add(timeout_s);
        record.variables.retain(|_, v| v.ends_s.is_none_or(|ends| ends > now_s));
        record.variables.iter().map(|(name, v)| (name.clone(), v.value.clone())).collect()
    }

    fn change(&self, collection: Stored, key: &[u8], name: &[u8], update: Update<'_>, now_s: u64) -> Option<Box<[u8]>> {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records.all.get_mut(&(collection, key.into()))?;
        record.ends_s = now_s.saturating_add(record.timeout_s);
        if record.variables.get(name).is_some_and(|v| v.ends_s.is_some_and(|ends| ends <= now_s)) {
            record.variables.remove(name);
        }
        let room = record.variables.len() < MAX_RECORD_VARIABLES && name.len() <= MAX_STORED_BYTES;
        let known = record.variables.get_mut(name);
        let value: Box<[u8]> = match update {
            Update::Unset => {
                record.variables.remove(name);
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
        match known {
            Some(variable) => variable.value.clone_from(&value),
            None if room => {
                record.variables.insert(name.into(), Variable { value: value.clone(), ends_s: None });
            }
            None => return None,
        }
        Some(value)
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
}
