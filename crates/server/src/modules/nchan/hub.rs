//! The channels of the process, and this thread's part in them: whom of its subscribers a message wakes. From: `subscribe`, `held`.

use super::mqtt;
use crate::connection::parked;
use push::{Channel, Id, Mailbox, Seat, Store, Subscription};
use runtime::timer::Timer;
use runtime::{TaskId, clock};
use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::ops::Bound;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// How often this thread drops what is of no use any more from a part of the store.
const SWEEP: Duration = Duration::from_millis(250);

/// All channels. They outlive reloads. Who is no worker thread takes them here, and others by [`store`].
pub(super) static STORE: LazyLock<Store> = LazyLock::new(Store::new);

struct Hub {
    mailbox: Arc<Mailbox>,
    /// By the channel's address: it lives as long as it has subscribers.
    readers: HashMap<usize, Readers>,
    /// Channels whose parked subscribers are to be asked, and after whom to go on.
    changed: VecDeque<(usize, Option<u32>)>,
}

/// A channel's subscribers on this thread. In the order of their places: those that came one after the other lie side by side in memory, here
/// and in the kernel, and what wakes all goes through it once.
#[derive(Default)]
struct Readers {
    tasks: Few<TaskId>,
    parked: Few<u32>,
    /// The channel, for those who are packed, and how many they are.
    channel: Option<Arc<Channel>>,
    packed: u32,
    /// It is in `changed`, where nobody has gone through it yet: it need not be there twice.
    is_listed: bool,
}

/// A set that is mostly of one: a channel of its own for each of millions is usual.
#[derive(Default)]
#[allow(clippy::box_collection, reason = "most are one: a set would be three words")]
enum Few<T> {
    #[default]
    None,
    One(T),
    Many(Box<BTreeSet<T>>),
}

impl<T: Ord + Copy> Few<T> {
    fn insert(&mut self, one: T) {
        match self {
            Few::None => *self = Few::One(one),
            Few::One(other) if *other == one => {}
            Few::One(other) => *self = Few::Many(Box::new(BTreeSet::from([*other, one]))),
            Few::Many(all) => drop(all.insert(one)),
        }
    }

    fn remove(&mut self, one: T) {
        match self {
            Few::One(other) if *other == one => *self = Few::None,
            Few::Many(all) => {
                all.remove(&one);
                if all.is_empty() {
                    *self = Few::None;
                }
            }
            Few::None | Few::One(_) => {}
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Few::None)
    }

    /// Those behind `after`, in their order.
    fn behind(&self, after: Option<T>) -> impl Iterator<Item = T> {
        let (one, many) = match self {
            Few::None => (None, None),
            Few::One(one) => (Some(*one).filter(|one| after.is_none_or(|after| *one > after)), None),
            Few::Many(all) => {
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                (None, Some(all.range((from, Bound::Unbounded)).copied()))
            }
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// What a place in the table of readers takes, bytes: sets of many are trees whose leaves are half full.
pub(super) const READER_BYTES: usize = 12;

/// Subscribers that were dropped since they were too slow.
pub(super) static DROPPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HUB: RefCell<Option<Hub>> = const { RefCell::new(None) };
}

/// Goes on with what a worker process had that has crashed. On a worker thread.
pub fn go_on_after_crash() {
    begin();
}

/// The channels of the process.
pub(super) fn store() -> &'static Store {
    begin();
    &STORE
}

/// This thread's mailbox.
pub(super) fn mailbox() -> Arc<Mailbox> {
    begin();
    HUB.with_borrow(|hub| hub.as_ref().map(|h| h.mailbox.clone())).unwrap_or_default()
}

/// The time of ids and timeouts, s.
pub(super) fn now() -> i64 {
    clock::wall_seconds()
}

/// Starts the thread's task with its first channel.
fn begin() {
    let is_new = HUB.with_borrow_mut(|hub| {
        let is_new = hub.is_none();
        hub.get_or_insert_with(|| Hub { mailbox: Mailbox::new(), readers: HashMap::new(), changed: VecDeque::new() });
        is_new
    });
    if is_new {
        runtime::spawn(serve());
        mqtt::go_on_after_crash();
    }
}

/// Hands out what comes into the mailbox, and sweeps.
async fn serve() {
    let (timer, mut changed) = (Timer::new(), Vec::new());
    let mailbox = mailbox();
    loop {
        if let Some(bytes) = crate::worker::snapshot().main.nchan.memory {
            STORE.set_memory(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        timer.set(SWEEP);
        poll_fn(|cx| {
            mailbox.take(cx.waker(), &mut changed);
            changed.drain(..).for_each(|channel| wake(&channel));
            timer.poll_expired(cx)
        })
        .await;
        STORE.sweep(now());
    }
}

fn wake(channel: &Arc<Channel>) {
    HUB.with_borrow_mut(|hub| {
        let Some(Hub { readers, changed, .. }) = hub else { return };
        let key = address(channel);
        let Some(readers) = readers.get_mut(&key) else { return };
        readers.tasks.behind(None).for_each(runtime::wake);
        if !readers.parked.is_empty() {
            // Those who go through it already may have passed some.
            if !std::mem::replace(&mut readers.is_listed, true) {
                changed.push_back((key, None));
            }
            parked::stir();
        }
    });
}

/// Names parked subscribers of channels that have changed, until there are `most`.
pub(super) fn name_parked(places: &mut Vec<u32>, most: usize) {
    HUB.with_borrow_mut(|hub| {
        let Some(Hub { readers, changed, .. }) = hub else { return };
        while places.len() < most
            && let Some((key, after)) = changed.front_mut()
        {
            let room = most - places.len();
            let before = places.len();
            if let Some(readers) = readers.get_mut(key) {
                if after.is_none() {
                    readers.is_listed = false;
                }
                places.extend(readers.parked.behind(*after).take(room));
            }
            match places.len() - before == room {
                true => *after = places.last().copied(),
                false => drop(changed.pop_front()),
            }
        }
    });
}

fn address(channel: &Arc<Channel>) -> usize {
    Arc::as_ptr(channel).addr()
}

/// A subscription of this thread whose task is woken when there is something for it, or which is asked where it is parked.
pub(super) struct Listening {
    /// Its place.
    pub(super) subscription: Subscription,
    wakes: Wakes,
}

/// Where a subscriber stands that is parked and packed: the thread's table has its channel as long as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The channel's address.
    pub(super) channel: usize,
    /// The message that it has had last.
    pub(super) after: Id,
    /// What the channel is asked whether there is another.
    pub(super) seen: u64,
}

/// Whether there may be something for a subscriber that is packed.
pub(super) fn has_news(channel: usize, seen: u64) -> bool {
    let has_changed =
        |hub: &Option<Hub>| Some(hub.as_ref()?.readers.get(&channel)?.channel.as_ref()?.has_changed(seen));
    HUB.with_borrow(has_changed).unwrap_or(true)
}

/// Who is woken by a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wakes {
    Nobody,
    Task(TaskId),
    Parked(u32),
}

impl Listening {
    /// Nobody is woken yet: the task that looks first is.
    pub(super) fn new(subscription: Subscription) -> Listening {
        Listening { subscription, wakes: Wakes::Nobody }
    }

    /// From now on the running task is woken. It is another one than before when a stream's request gets a task of its own.
    pub(super) fn listen(&mut self) {
        let wakes = Wakes::Task(runtime::current());
        if wakes != self.wakes && !matches!(self.wakes, Wakes::Parked(_)) {
            self.have_woken(wakes);
        }
    }

    /// It is parked, and has this place.
    pub(super) fn settle(&mut self, place: u32) {
        if self.wakes != Wakes::Parked(place) {
            parked::listen_to(name_parked);
            self.have_woken(Wakes::Parked(place));
        }
    }

    /// Whether [`Listening::pack`] can pack it.
    pub(super) fn may_pack(&self) -> bool {
        matches!(self.wakes, Wakes::Parked(_)) && self.subscription.is_single()
    }

    /// Packs it, as long as it is parked: nothing is left of it here. [`Standing::unpack`] is the same backwards.
    pub(super) fn pack(&mut self) -> Option<Standing> {
        if !self.may_pack() {
            return None;
        }
        let key = address(self.subscription.channels().next()?);
        HUB.with_borrow_mut(|hub| {
            let readers = hub.as_mut()?.readers.get_mut(&key)?;
            let Seat { channel, after, seen } = self.subscription.take_seat()?;
            self.wakes = Wakes::Nobody;
            readers.packed += 1;
            readers.channel.get_or_insert(channel);
            Some(Standing { channel: key, after, seen })
        })
    }

    /// It is parked no longer.
    pub(super) fn unsettle(&mut self) {
        self.leave();
        self.wakes = Wakes::Nobody;
    }

    fn have_woken(&mut self, wakes: Wakes) {
        self.leave();
        self.wakes = wakes;
        HUB.with_borrow_mut(|hub| {
            let Some(hub) = hub else { return };
            for channel in self.subscription.channels() {
                let readers = hub.readers.entry(address(channel)).or_default();
                match wakes {
                    Wakes::Task(task) => readers.tasks.insert(task),
                    Wakes::Parked(place) => readers.parked.insert(place),
                    Wakes::Nobody => {}
                }
            }
        });
    }

    /// Nobody of this thread is woken any more: it is going on at another.
    pub(super) fn go(&mut self) {
        self.unsettle();
    }

    /// It has come from another thread.
    pub(super) fn come(&mut self) {
        self.subscription.move_to(&mailbox());
    }

    fn leave(&mut self) {
        if self.wakes == Wakes::Nobody {
            return;
        }
        // The thread's storage may be gone already when a thread ends.
        let _ = HUB.try_with(|hub| {
            let mut hub = hub.borrow_mut();
            let Some(hub) = hub.as_mut() else { return };
            for channel in self.subscription.channels() {
                let Entry::Occupied(mut readers) = hub.readers.entry(address(channel)) else { continue };
                match self.wakes {
                    Wakes::Task(task) => readers.get_mut().tasks.remove(task),
                    Wakes::Parked(place) => readers.get_mut().parked.remove(place),
                    Wakes::Nobody => {}
                }
                if readers.get().tasks.is_empty() && readers.get().parked.is_empty() {
                    readers.remove();
                }
            }
        });
    }
}

impl Standing {
    /// The subscription again, of who is parked at this place. None: the thread ends, and its table is gone.
    pub(super) fn unpack(self, place: u32) -> Option<Listening> {
        let Standing { channel, after, seen } = self;
        let take = |hub: &RefCell<Option<Hub>>| {
            let mut hub = hub.borrow_mut();
            let hub = hub.as_mut()?;
            let readers = hub.readers.get_mut(&channel)?;
            readers.packed -= 1;
            let channel = match readers.packed {
                0 => readers.channel.take()?,
                _ => readers.channel.clone()?,
            };
            Some(Subscription::of_seat(Seat { channel, after, seen }, hub.mailbox.clone()))
        };
        let subscription = HUB.try_with(take).ok().flatten()?;
        Some(Listening { subscription, wakes: Wakes::Parked(place) })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_as_many_are() {
        let mut few = Few::default();
        let mut all = BTreeSet::new();
        for (number, is_in) in
            [(5, true), (5, true), (3, true), (9, true), (3, false), (7, false), (5, false), (9, false), (2, true)]
        {
            match is_in {
                true => {
                    few.insert(number);
                    all.insert(number);
                }
                false => {
                    few.remove(number);
                    all.remove(&number);
                }
            }
            assert!(few.behind(None).eq(all.iter().copied()));
            assert!(few.behind(Some(4)).eq(all.iter().copied().filter(|n| *n > 4)));
            assert_eq!(few.is_empty(), all.is_empty());
        }
        assert!(size_of::<Readers>() <= 48, "{}", size_of::<Readers>());
    }
}
