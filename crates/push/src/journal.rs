//! What a store has, told as it changes to whoever keeps it for the time after a crash; and a store that takes it back.

use crate::id::Id;
use crate::leaving::{Parting, Settling};
use crate::message::Message;
use crate::packed::Packed;
use crate::store::{Now, Refused, Store};
use std::sync::{Arc, OnceLock};

/// How a channel keeps its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// So many of them.
    pub length: usize,
    /// How long it stays empty, s.
    pub timeout: i64,
}

/// Is told what happens to channels of this process, by the thread that does it.
pub trait Journal: Send + Sync {
    /// A message is in a channel.
    fn published(&self, name: &[u8], message: &Message, kept: Kept);
    /// A channel is gone.
    fn deleted(&self, name: &[u8]);
}

/// Whoever is told.
#[derive(Default)]
pub(crate) struct Told(OnceLock<Arc<dyn Journal>>);

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Told")
    }
}

/// A message as a journal has it.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'b> {
    /// The whole name of its channel.
    pub name: &'b [u8],
    /// Its id.
    pub id: Id,
    /// Its place among all messages.
    pub order: u64,
    /// When it was published, Unix time.
    pub at: i64,
    /// Itself.
    pub packed: Packed<'b>,
    /// What was meant for its channel.
    pub kept: Kept,
}

impl Store {
    /// From now on this is told. The first one stays.
    pub fn tell(&self, journal: Arc<dyn Journal>) {
        let _ = self.journal.0.set(journal);
    }

    pub(crate) fn journal(&self) -> Option<&Arc<dyn Journal>> {
        self.journal.0.get()
    }

    /// All channels that are this process's own, as they are. While `each` is busy with one nothing is done to it.
    pub fn copies(&self, now: Now, mut each: impl FnMut(Parting)) {
        let now = self.second(now);
        for part in &self.parts {
            let names: Vec<Box<[u8]>> = {
                let part = part.lock().expect("nothing panics while it is locked");
                part.channels.iter().filter(|(_, channel)| channel.is_own()).map(|(name, _)| name.clone()).collect()
            };
            for name in names {
                // Whoever deletes it waits, and says so behind this.
                let part = part.lock().expect("nothing panics while it is locked");
                part.channels.get(&name).into_iter().for_each(|channel| each(channel.copy(now)));
            }
        }
    }

    /// Takes a message back.
    ///
    /// # Errors
    /// The store is full.
    pub fn restore(&self, entry: &Entry<'_>, now: Now) -> Result<(), Refused> {
        let Entry { name, id, order, at, packed, kept } = *entry;
        let from = Settling {
            name,
            last: id,
            dropped: Id::default(),
            behind: 0,
            has_published: true,
            requested: None,
            timeout: kept.timeout,
        };
        self.settle(&from, std::iter::once((id, order, at, packed)), now)?;
        let Some(channel) = self.find(name) else { return Ok(()) };
        if let Some(message) = channel.shorten(kept.length, id, self.second(now)) {
            self.retain(&channel, &message);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Draft, Keep, Mailbox, Marks, Next, Options, Start};
    use std::sync::Mutex;

    type Row = (Vec<u8>, Option<(Id, u64, i64, Vec<u8>, Kept)>);

    #[derive(Default)]
    struct Rows(Mutex<Vec<Row>>);

    impl Journal for Rows {
        fn published(&self, name: &[u8], message: &Message, kept: Kept) {
            let mut packed = Vec::new();
            message.pack(message.at(), &mut packed);
            let entry = (message.id, message.order(), message.at(), packed, kept);
            self.0.lock().unwrap().push((name.to_vec(), Some(entry)));
        }

        fn deleted(&self, name: &[u8]) {
            self.0.lock().unwrap().push((name.to_vec(), None));
        }
    }

    fn restored(rows: &Rows) -> Store {
        let store = Store::new();
        for (name, row) in &*rows.0.lock().unwrap() {
            let Some((id, order, at, packed, kept)) = row else {
                store.delete(name, 1000);
                continue;
            };
            let packed = Packed::read(packed).unwrap();
            store.restore(&Entry { name, id: *id, order: *order, at: *at, packed, kept: *kept }, 1000).unwrap();
        }
        store
    }

    fn all(store: &Store, name: &[u8], start: &Start<'_>) -> Vec<String> {
        let mut subscription = store.subscribe(&[name], start, &Mailbox::new(), Options::default(), 1000).unwrap();
        let mut texts = Vec::new();
        while let Next::Message(message) = subscription.next(1000) {
            texts.push(String::from_utf8(message.data().to_vec()).unwrap());
        }
        texts
    }

    #[test]
    fn what_a_journal_has_is_what_was_there() {
        let (store, rows) = (Store::new(), Arc::new(Rows::default()));
        store.tell(rows.clone());
        let keep = Keep { length: 3, seconds: 60, accounting: false, channel_timeout: 5 };
        for text in ["1", "2", "3", "4", "5"] {
            let draft = Draft { data: text.as_bytes(), ..Draft::default() };
            store.publish(b"g/a", draft, keep, 1000).unwrap();
            store.publish(b"g/gone", draft, keep, 1000).unwrap();
        }
        let last = store.find(b"g/a").unwrap().info(1000).last.unwrap();
        store.delete(b"g/gone", 1000);
        let marks = Marks { retain: true, ..Marks::default() };
        store.publish(b"g/kept", Draft { data: b"kept", marks, ..Draft::default() }, keep, 1000).unwrap();
        let after = restored(&rows);
        assert_eq!(all(&after, b"g/a", &Start::OLDEST), ["3", "4", "5"]);
        assert!(after.find(b"g/gone").is_none());
        let mut retained = Vec::new();
        after.retained(1000, |name, message| retained.push((name.to_vec(), message.data().to_vec())));
        assert_eq!(retained, [(b"g/kept".to_vec(), b"kept".to_vec())]);
        let next = after.publish(b"g/a", Draft { data: b"6", ..Draft::default() }, keep, 1000).unwrap().id;
        assert!(next > last);
        let mut names = Vec::new();
        store.copies(1000, |copy| names.push((copy.channel.name().to_vec(), copy.messages.len())));
        names.sort();
        assert_eq!(names, [(b"g/a".to_vec(), 3), (b"g/kept".to_vec(), 1)]);
    }
}
