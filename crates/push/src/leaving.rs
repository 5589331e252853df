//! A store whose channels go to another process, and one that takes them over: buffers with ids and orders as they were, then subscribers
//! exactly where they stood. From the moment that a channel is parted with nothing is published to it here: who publishes still is heard
//! there, so that no message is in one process and its reader in the other.

use crate::channel::Channel;
use crate::group::Group;
use crate::id::Id;
use crate::journal::Kept;
use crate::limits::MAX_BUFFER;
use crate::mailbox::Mailbox;
use crate::message::{Draft, Message};
use crate::packed::Packed;
use crate::store::{Keep, Now, Refused, Store};
use crate::subscription::{Place, Subscription};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};

/// What happens to a channel that has left.
#[derive(Clone, Copy, Debug)]
pub enum Late<'a> {
    /// A message was published.
    Publish {
        /// To this channel.
        name: &'a [u8],
        /// Which is to keep so many.
        length: usize,
        /// How long the channel stays empty, s.
        timeout: i64,
        /// The message, packed.
        packed: &'a [u8],
    },
    /// It was deleted.
    Delete(&'a [u8]),
    /// Channels of this group are heard by this filter, too.
    Filter(&'a [u8], &'a [u8]),
}

/// Told of what is late. False: the other process is not there any more.
#[derive(Clone)]
pub struct Heir(pub Arc<dyn Fn(Late<'_>) -> bool + Send + Sync>);

impl std::fmt::Debug for Heir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Heir")
    }
}

/// A channel that is parted with.
#[derive(Debug)]
pub struct Parting {
    /// The channel.
    pub channel: Arc<Channel>,
    /// The last id that it gave.
    pub last: Id,
    /// The newest message that is gone.
    pub dropped: Id,
    /// So many of its messages are beyond the buffer.
    pub behind: usize,
    /// It has had a message.
    pub has_published: bool,
    /// When a subscriber last asked for something.
    pub requested: Option<i64>,
    /// How long it stays empty, s.
    pub timeout: i64,
    /// Its messages, the oldest first.
    pub messages: Vec<Arc<Message>>,
}

/// A channel as another process had it.
#[derive(Clone, Copy, Debug)]
pub struct Settling<'b> {
    /// Its whole name.
    pub name: &'b [u8],
    /// See [`Parting`].
    pub last: Id,
    /// See [`Parting`].
    pub dropped: Id,
    /// See [`Parting`].
    pub behind: usize,
    /// See [`Parting`].
    pub has_published: bool,
    /// See [`Parting`].
    pub requested: Option<i64>,
    /// See [`Parting`].
    pub timeout: i64,
}

impl Store {
    /// Channels are about to leave: from now on `heir` hears what is late. Gives the filters by which channels are heard, with their groups:
    /// the other process has to know them before anything is published there.
    pub fn begin_leaving(&self, heir: Heir, mut filter: impl FnMut(&[u8], &[u8])) {
        *self.heir.lock().unwrap_or_else(PoisonError::into_inner) = Some(heir);
        self.shared.left.store(true, SeqCst);
        for (name, group) in self.all_groups() {
            group.heard_taps().iter().for_each(|tap| filter(&name, tap.id()));
        }
    }

    /// Groups of which somebody hears channels by filters.
    pub fn heard_groups(&self) -> Vec<Box<[u8]>> {
        let groups = self.all_groups().into_iter();
        groups.filter(|(_, group)| !group.heard_taps().is_empty()).map(|(name, _)| name).collect()
    }

    /// Parts with all channels that are this process's own, after [`Store::begin_leaving`].
    pub fn leave(&self, now: Now, mut each: impl FnMut(Parting)) {
        let now = self.second(now);
        for part in &self.parts {
            let own: Vec<Arc<Channel>> = {
                let part = part.lock().expect("nothing panics while it is locked");
                part.channels.values().filter(|channel| channel.is_own()).cloned().collect()
            };
            for channel in own {
                // Who publishes to it meanwhile tells the heir of that when it has been told of the channel.
                let _heir = self.heir.lock().unwrap_or_else(PoisonError::into_inner);
                each(channel.part(now));
            }
        }
    }

    /// Messages that are retained, with the whole names of their channels.
    pub fn retained(&self, now: Now, mut each: impl FnMut(&[u8], &Message)) {
        for (name, group) in self.all_groups() {
            let mut after: Option<Arc<[u8]>> = None;
            while let Some((id, message)) = group.next_retained(b"#", after.as_deref(), now) {
                each(&[&name[..], b"/", &id[..]].concat(), &message);
                after = Some(id);
            }
        }
    }

    fn all_groups(&self) -> Vec<(Box<[u8]>, Arc<Group>)> {
        let groups = self.groups.lock().expect("nothing panics while it is locked");
        groups.iter().map(|(name, group)| (name.clone(), group.clone())).collect()
    }

    /// Channels have not left: they are published to here.
    pub fn stay(&self) {
        self.shared.left.store(false, SeqCst);
        *self.heir.lock().unwrap_or_else(PoisonError::into_inner) = None;
        for part in &self.parts {
            let part = part.lock().expect("nothing panics while it is locked");
            part.channels.values().for_each(|channel| channel.lock().left = false);
        }
    }

    /// Whether channels are another process's.
    pub fn has_left(&self) -> bool {
        self.shared.left.load(Relaxed)
    }

    fn tell_heir(&self, late: Late<'_>) -> bool {
        let heir = self.heir.lock().unwrap_or_else(PoisonError::into_inner).clone();
        heir.is_some_and(|heir| (heir.0)(late))
    }

    pub(crate) fn publish_late(&self, name: &[u8], draft: &Draft<'_>, keep: Keep, expires: i64, now: Now) -> bool {
        let mut packed = Vec::new();
        Packed::write(draft, expires, now, &mut packed);
        self.tell_heir(Late::Publish { name, length: keep.length, timeout: keep.channel_timeout, packed: &packed })
    }

    pub(crate) fn delete_late(&self, name: &[u8]) {
        if self.has_left() {
            self.tell_heir(Late::Delete(name));
        }
    }

    pub(crate) fn hear_late(&self, group: &[u8], filter: &[u8]) {
        if self.has_left() {
            self.tell_heir(Late::Filter(group, filter));
        }
    }

    /// Whether subscribers are on their way from another process: what is beyond a buffer is kept for them, as for those that are there.
    pub fn expect(&self, expects: bool) {
        self.shared.expects.store(expects, Relaxed);
    }

    /// Whether subscribers are on their way from another process.
    pub fn expects(&self) -> bool {
        self.shared.expects.load(Relaxed)
    }

    /// Hears the channels of a group by a filter for whom is on the way ([`Store::expect`]).
    ///
    /// # Errors
    /// The store is full.
    pub fn expect_filter(&self, group: &[u8], filter: &[u8], now: Now) -> Result<(), Refused> {
        let now = self.second(now);
        // Nobody is counted: there is no mailbox to be told.
        self.filter_place(group, filter, now, |_| None).map(drop).or_else(|refused| match refused {
            Refused::NoChannel => Ok(()),
            refused => Err(refused),
        })
    }

    /// Hears the channels of a group by a filter as one that had all that was published in another process: all that was here since.
    ///
    /// # Errors
    /// The store is full.
    pub fn resume_filter(
        &self,
        group: &[u8],
        filter: &[u8],
        mailbox: &Arc<Mailbox>,
        now: Now,
    ) -> Result<Subscription, Refused> {
        let now = self.second(now);
        let place = self.filter_place(group, filter, now, |tap| tap.attach_first(mailbox, now))?;
        Ok(Subscription::new(mailbox.clone(), vec![place]))
    }

    /// The same where what is published comes to both processes: goes on behind the message that it has had there last, by its channel and its id.
    ///
    /// # Errors
    /// The store is full.
    pub fn resume_heard(
        &self,
        group: &[u8],
        filter: &[u8],
        had: Option<(&[u8], Id)>,
        mailbox: &Arc<Mailbox>,
        now: Now,
    ) -> Result<Subscription, Refused> {
        let now = self.second(now);
        let place = self.filter_place(group, filter, now, |tap| tap.attach_after_heard(mailbox, had, now))?;
        Ok(Subscription::new(mailbox.clone(), vec![place]))
    }

    /// Takes over a channel of another process: its messages as they were packed there, with id, order and second.
    ///
    /// # Errors
    /// The store is full.
    pub fn settle<'b>(
        &self,
        from: &Settling<'b>,
        messages: impl Iterator<Item = (Id, u64, i64, Packed<'b>)>,
        now: Now,
    ) -> Result<(), Refused> {
        let now = self.second(now.max(from.last.time));
        let channel = self.channel(from.name, false, now)?;
        let (mut taken, mut room) = (Vec::new(), Ok(()));
        for (id, order, at, packed) in messages {
            let draft = packed.draft(at);
            room = self.make_room(size_of::<Message>() + draft.data.len() + draft.marks.properties.len() + 64, now);
            if room.is_err() {
                break;
            }
            self.shared.order.fetch_max(order, Relaxed);
            taken.push(Message::new(id, order, at, packed.expires, draft));
        }
        if let Some(journal) = self.journal() {
            let kept = Kept { length: MAX_BUFFER, timeout: from.timeout };
            taken.iter().for_each(|message| journal.published(from.name, message, kept));
        }
        channel.settle(from, taken, now);
        room
    }

    /// A message that was published in another process.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn publish_packed(
        &self,
        name: &[u8],
        packed: &Packed<'_>,
        length: usize,
        timeout: i64,
        now: Now,
    ) -> Result<(), Refused> {
        let seconds = if packed.expires == 0 { 0 } else { (packed.expires - now).max(1) };
        let keep = Keep { length, seconds, accounting: false, channel_timeout: timeout };
        self.publish(name, packed.draft(now), keep, now).map(drop)
    }

    /// Subscribes to channels as one that had these messages last of each, in another process.
    ///
    /// # Errors
    /// The store is full.
    pub fn resume(
        &self,
        places: &[(&[u8], Id)],
        active: Option<u32>,
        mailbox: &Arc<Mailbox>,
        now: Now,
    ) -> Result<Subscription, Refused> {
        let now = self.second(now);
        let mut taken = Vec::with_capacity(places.len());
        for (name, after) in places {
            loop {
                let channel = match self.channel(name, false, now) {
                    Ok(channel) => channel,
                    Err(refused) => {
                        // Those that were attached are given back.
                        drop(Subscription::new(mailbox.clone(), taken));
                        return Err(refused);
                    }
                };
                if channel.attach_after(mailbox, *after, now).is_some() {
                    taken.push(Place::new(channel, *after));
                    break;
                }
            }
        }
        let mut subscription = Subscription::new(mailbox.clone(), taken);
        subscription.set_active(active);
        Ok(subscription)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::limits::PARTS;
    use crate::{Arrived, Next, Options, Start, Whom};
    use std::sync::Mutex;

    const KEEP: Keep = Keep { length: 3, seconds: 60, accounting: false, channel_timeout: 5 };

    fn draft(text: &str) -> Draft<'_> {
        Draft { data: text.as_bytes(), ..Draft::default() }
    }

    fn texts(subscription: &mut Subscription, now: Now) -> Vec<String> {
        let mut all = Vec::new();
        while let Next::Message(message) = subscription.next(now) {
            all.push(String::from_utf8(message.data().to_vec()).unwrap());
        }
        all
    }

    fn pass(old: &Store, new: &Arc<Store>, now: Now) {
        let heir = new.clone();
        let late = Heir(Arc::new(move |late| match late {
            Late::Publish { name, length, timeout, packed } => {
                heir.publish_packed(name, &Packed::read(packed).unwrap(), length, timeout, 1000).is_ok()
            }
            Late::Delete(name) => heir.delete(name, 1000).is_some(),
            Late::Filter(group, filter) => heir.expect_filter(group, filter, 1000).is_ok(),
        }));
        new.expect(true);
        old.begin_leaving(late, |group, filter| new.expect_filter(group, filter, now).unwrap());
        old.leave(now, |parting| {
            let packed: Vec<_> = parting
                .messages
                .iter()
                .map(|m| {
                    let mut out = Vec::new();
                    m.pack(m.at(), &mut out);
                    (m.id, m.order(), m.at(), out)
                })
                .collect();
            let Parting { last, dropped, behind, has_published, requested, timeout, .. } = parting;
            let name = parting.channel.name();
            let from = Settling { name, last, dropped, behind, has_published, requested, timeout };
            let messages = packed.iter().map(|(id, order, at, out)| (*id, *order, *at, Packed::read(out).unwrap()));
            new.settle(&from, messages, now).unwrap();
        });
    }

    #[test]
    fn who_goes_on_elsewhere_has_each_message_once() {
        let (old, new) = (Store::new(), Arc::new(Store::new()));
        let (here, there) = (Mailbox::new(), Mailbox::new());
        let mut subscription =
            old.subscribe(&[b"g/a", b"g/b"], &Start::Newest, &here, Options::default(), 1000).unwrap();
        old.publish(b"g/a", draft("1"), KEEP, 1000).unwrap();
        assert_eq!(texts(&mut subscription, 1000), ["1"]);
        for (name, text) in [(b"g/b", "2"), (b"g/a", "3"), (b"g/b", "4")] {
            old.publish(name, draft(text), KEEP, 1000).unwrap();
        }
        pass(&old, &new, 1000);
        let places: Vec<_> = subscription.places().map(|(channel, after)| (channel.name().to_vec(), after)).collect();
        let places: Vec<_> = places.iter().map(|(name, after)| (&name[..], *after)).collect();
        // Late, in the old process, and in a channel that was not there.
        old.publish(b"g/a", draft("5"), KEEP, 1000).unwrap();
        old.publish(b"g/c", draft("6"), KEEP, 1000).unwrap();
        assert_eq!(texts(&mut subscription, 1000), ["2", "3", "4"], "what came before is still read here by who stays");
        let mut moved = new.resume(&places, None, &there, 1000).unwrap();
        new.publish(b"g/b", draft("7"), KEEP, 1000).unwrap();
        assert_eq!(texts(&mut moved, 1000), ["2", "3", "4", "5", "7"]);
        assert_eq!(new.find(b"g/c").unwrap().info(1000).messages, 1);
        assert_eq!(new.find(b"g/a").unwrap().info(1000).subscribers, 1);
        old.delete(b"g/c", 1000);
        assert!(new.find(b"g/c").is_none());
    }

    #[test]
    fn who_subscribes_later_finds_the_buffer_as_it_was() {
        let (old, new) = (Store::new(), Arc::new(Store::new()));
        let here = Mailbox::new();
        let mut slow = old.subscribe(&[b"g/a"], &Start::Newest, &here, Options::default(), 1000).unwrap();
        for n in 0..5 {
            old.publish(b"g/a", draft(&n.to_string()), KEEP, 1000).unwrap();
        }
        pass(&old, &new, 1000);
        let mut fresh = new.subscribe(&[b"g/a"], &Start::OLDEST, &here, Options::default(), 1000).unwrap();
        assert_eq!(texts(&mut fresh, 1000), ["2", "3", "4"]);
        let places: Vec<_> = slow.places().map(|(channel, after)| (channel.name().to_vec(), after)).collect();
        let mut moved = new.resume(&[(&places[0].0, places[0].1)], None, &here, 1000).unwrap();
        assert_eq!(texts(&mut moved, 1000), texts(&mut slow, 1000));
        assert_eq!(old.sums().messages, new.sums().messages);
    }

    #[test]
    fn who_hears_by_a_filter_goes_on_elsewhere() {
        let (old, new) = (Store::new(), Arc::new(Store::new()));
        let (here, there) = (Mailbox::new(), Mailbox::new());
        let mut subscription = old.subscribe_filter(b"g", b"a/+", &here, Options::default(), 1000).unwrap();
        old.publish(b"g/a/1", draft("1"), KEEP, 1000).unwrap();
        pass(&old, &new, 1000);
        // One that subscribes when channels have left, and a message in either process before it has come.
        let late = old.subscribe_filter(b"g", b"#", &here, Options::default(), 1000).unwrap();
        new.publish(b"g/a/2", draft("2"), KEEP, 1000).unwrap();
        old.publish(b"g/a/1", draft("3"), KEEP, 1000).unwrap();
        (0..PARTS).for_each(|_| new.sweep(1000));
        assert_eq!(texts(&mut subscription, 1000), ["1"], "the rest is heard there");
        let mut moved = new.resume_filter(b"g", b"a/+", &there, 1000).unwrap();
        let mut late_moved = new.resume_filter(b"g", b"#", &there, 1000).unwrap();
        drop((subscription, late));
        new.expect(false);
        (0..PARTS).for_each(|_| new.sweep(1000));
        new.publish(b"g/a/2", draft("4"), KEEP, 1000).unwrap();
        assert_eq!(texts(&mut moved, 1000), ["2", "3", "4"]);
        assert_eq!(texts(&mut late_moved, 1000), ["2", "3", "4"]);
        drop((moved, late_moved));
        (0..PARTS).for_each(|_| new.sweep(1000));
        assert!(!new.group(b"g").has_filters());
    }

    #[test]
    fn what_comes_to_both_processes_is_heard_once_by_a_filter() {
        let (old, new) = (Store::new(), Store::new());
        let (here, there) = (Mailbox::new(), Mailbox::new());
        let mut packed = Vec::new();
        let comes = |store: &Store, name: &[u8], time: i64, packed: &Packed<'_>, to: Whom| {
            let channel = store.follow(name, 1000).unwrap();
            store.accept(&channel, Arrived { id: Id { time, tag: 0 }, packed: *packed, length: 5, to }, 1000).unwrap();
        };
        Packed::write(&draft("x"), 0, 1000, &mut packed);
        let packed = Packed::read(&packed).unwrap();
        let mut subscription = old.subscribe_filter(b"g", b"a/+", &here, Options::default(), 1000).unwrap();
        new.expect(true);
        new.expect_filter(b"g", b"a/+", 1000).unwrap();
        comes(&old, b"g/a/1", 1, &packed, Whom::All);
        for (name, time) in [(&b"g/a/1"[..], 2), (b"g/a/2", 2)] {
            comes(&old, name, time, &packed, Whom::All);
            comes(&new, name, time, &packed, Whom::All);
        }
        assert_eq!(texts(&mut subscription, 1000).len(), 3);
        comes(&new, b"g/a/1", 3, &packed, Whom::All);
        // What the channel had before is no news; what is told while it is fetched comes by the filter alone.
        comes(&new, b"g/a/3", 1, &packed, Whom::Channel);
        comes(&new, b"g/a/3", 4, &packed, Whom::Filters);
        comes(&new, b"g/a/3", 4, &packed, Whom::Channel);
        let had = subscription.had_by_filter().unwrap();
        assert_eq!((&*had.0, had.1.time), (&b"a/2"[..], 2));
        let mut moved = new.resume_heard(b"g", b"a/+", Some((&had.0, had.1)), &there, 1000).unwrap();
        let mut heard = Vec::new();
        while let Next::Message(message) = moved.next(1000) {
            heard.push((message.topic().unwrap().to_vec(), message.came_from().unwrap().1.time));
        }
        assert_eq!(heard, [(b"a/1".to_vec(), 3), (b"a/3".to_vec(), 4)]);
        assert_eq!(new.find(b"g/a/3").unwrap().info(1000).messages, 2);
    }

    #[test]
    fn where_nobody_takes_it_a_message_stays() {
        let store = Store::new();
        let mailbox = Mailbox::new();
        let mut subscription = store.subscribe(&[b"g/a"], &Start::Newest, &mailbox, Options::default(), 1000).unwrap();
        let asked = Arc::new(Mutex::new(0));
        let count = asked.clone();
        let heir = Heir(Arc::new(move |_| {
            *count.lock().unwrap() += 1;
            false
        }));
        store.begin_leaving(heir, |_, _| {});
        store.leave(1000, drop);
        store.publish(b"g/a", draft("1"), KEEP, 1000).unwrap();
        store.publish(b"g/a", draft("2"), KEEP, 1000).unwrap();
        assert_eq!((texts(&mut subscription, 1000), *asked.lock().unwrap()), (vec!["1".to_owned(), "2".to_owned()], 1));
    }
}
