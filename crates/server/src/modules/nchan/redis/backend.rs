//! What requests ask of a Redis: to publish, and to follow channels. From: publishers and subscribers, on their threads. To: `link`, on the
//! service thread, by a bounded queue. Every wait ends with `nchan_redis_command_timeout`.

use super::super::{Conf, hub};
use super::conf::Redis;
use super::given::{Given, Mode};
use super::slots::Slots;
use super::stats::Stats;
use super::{link, wire_up};
use crate::request::Request;
use crate::service;
use crate::snapshot::{Snapshot, ThreadSnapshot};
use push::{Arrived, Channel, Draft, Id, Info, Keep, Packed, Published, Refused};
use runtime::timer::Timer;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Orders that wait for the service thread; one more is refused at once.
const QUEUE: usize = 8192;
/// Bytes of them.
const QUEUE_BYTES: u64 = 64 * 1024 * 1024;

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A limit is reached.
    Refused(Refused),
    /// Redis does not answer, or has refused.
    Unreachable,
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Failed {
        Failed::Refused(refused)
    }
}

/// What the service thread is asked.
pub(super) enum Order {
    Publish(Publish),
    /// Subscribe to a channel of this local name, and fetch what it has.
    Follow(Box<[u8]>),
    /// Fetch what a channel of this local name retains.
    Retained(Box<[u8]>),
    /// Subscribe to all channels of a group of this local name.
    FollowGroup(Box<[u8]>),
    /// Answer: what was told of a group of this local name stands before the answer.
    CatchUp(Box<[u8]>, oneshot::Sender<()>),
    /// Is there such a channel, of this local name?
    Exists(Box<[u8]>, oneshot::Sender<bool>),
    Delete(Box<[u8]>, oneshot::Sender<()>),
    /// Retain a message, or nothing: the group's key, the topic, the message.
    Retain(Vec<u8>, Vec<u8>, Option<Vec<u8>>),
    /// Of a cluster: which node has what has changed.
    Mapped,
    /// Another one, of a node to which the key is just moving (`ASKING`).
    Asking(Box<Order>),
}

impl Order {
    /// The key that it is about: the node of a cluster that has it must do it.
    pub(super) fn key(&self, namespace: &[u8]) -> Vec<u8> {
        match self {
            Order::Publish(publish) => wire_up::key(namespace, &publish.name),
            Order::Follow(name) | Order::Exists(name, _) | Order::Delete(name, _) => {
                wire_up::key(namespace, &remote(name))
            }
            Order::Retained(name) => wire_up::retained_key(namespace, wire_up::split(&remote(name)).0),
            Order::FollowGroup(group) | Order::CatchUp(group, _) => wire_up::retained_key(namespace, &remote(group)),
            Order::Retain(key, ..) => key.clone(),
            Order::Asking(order) => order.key(namespace),
            Order::Mapped => Vec::new(),
        }
    }

    /// Who wanted it no longer waits: it must not be done after that.
    pub(super) fn is_late(&self) -> bool {
        match self {
            Order::Publish(publish) => publish.is_late(),
            Order::Delete(_, reply) | Order::CatchUp(_, reply) => reply.is_closed(),
            Order::Exists(_, reply) => reply.is_closed(),
            Order::Asking(order) => order.is_late(),
            Order::Follow(_) | Order::Retained(_) | Order::FollowGroup(_) | Order::Retain(..) | Order::Mapped => false,
        }
    }
}

/// Bytes of a message that waits, counted as long as it does.
pub(super) struct Queued {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Queued {
    /// None: too many wait already.
    fn count(all: &Arc<AtomicU64>, bytes: u64) -> Option<Queued> {
        let queued = Queued { all: all.clone(), bytes };
        (all.fetch_add(bytes, Relaxed) + bytes <= QUEUE_BYTES).then_some(queued)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

/// A message on its way.
pub(super) struct Publish {
    /// The channel's name, as all servers know it.
    pub(super) name: Vec<u8>,
    pub(super) packed: Vec<u8>,
    pub(super) keep: Keep,
    /// Of a copy, whose id was given here.
    pub(super) id: Option<Id>,
    /// It is retained, in the place of this id; with nothing, nothing is.
    pub(super) retained: Option<(Vec<u8>, bool)>,
    /// None: nobody waits.
    pub(super) reply: Option<oneshot::Sender<Said>>,
    pub(super) _queued: Queued,
}

impl Publish {
    /// Who waited was told that Redis does not answer.
    pub(super) fn is_late(&self) -> bool {
        self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// What Redis has said of a message: its id, how many are kept, how many servers have heard it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) id: Id,
    pub(super) messages: usize,
    pub(super) heard: usize,
}

/// A channel that is followed.
pub(super) struct Followed {
    pub(super) channel: Arc<Channel>,
    /// Redis has been asked what it has, and what is said meanwhile is part of the answer.
    pub(super) syncing: bool,
    /// It has been asked what is retained; of a cluster another node may answer that.
    pub(super) awaits_retained: bool,
    /// It has been synchronous once.
    pub(super) is_known: bool,
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Until when it is followed without a subscriber, s; and how long after the last one.
    pub(super) until: i64,
    pub(super) idle: i64,
}

impl Followed {
    /// It is as Redis has it once all has come that was asked.
    pub(super) fn settle(&mut self) {
        if self.syncing || self.awaits_retained {
            return;
        }
        self.is_known = true;
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(());
        }
    }
}

/// A group all of whose channels are heard.
#[derive(Default)]
pub(super) struct Heard {
    /// It is by now: Redis has said what is retained there.
    is_known: bool,
    waiting: Vec<oneshot::Sender<()>>,
    /// Until when it is heard though nobody does: who has asked for it is about to, s.
    pub(super) until: i64,
}

impl Heard {
    /// It is heard from now on, or cannot be.
    pub(super) fn settle(&mut self) {
        self.is_known = true;
        for waiting in self.waiting.drain(..) {
            let _ = waiting.send(());
        }
    }
}

/// A Redis.
pub struct Backend {
    pub(super) redis: Arc<Redis>,
    /// Tells its groups from those of others: the same in each process, since subscribers go from one to the next with the names of their channels.
    number: u64,
    orders: mpsc::Sender<Order>,
    queued_bytes: Arc<AtomicU64>,
    pub(super) followed: Mutex<HashMap<Box<[u8]>, Followed>>,
    pub(super) groups: Mutex<HashMap<Box<[u8]>, Heard>>,
    /// Of a Redis Cluster: which node has what.
    pub(super) slots: Mutex<Option<Arc<Slots>>>,
    pub(super) is_up: AtomicBool,
    pub(super) commands: AtomicU64,
    pub(super) stats: Stats,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backend {}", self.number)
    }
}

/// All of the process: they outlive reloads, as channels do.
static BACKENDS: LazyLock<Mutex<HashMap<Given, Arc<Backend>>>> = LazyLock::new(Mutex::default);

const NO_PANIC: &str = "nothing panics while it is locked";

/// For `nchan_stub_status`: how many are connected and how many are not, commands that were sent, and that wait.
pub(in super::super) fn sums() -> (usize, usize, u64, usize) {
    let all = BACKENDS.lock().expect(NO_PANIC);
    let up = all.values().filter(|b| b.is_up.load(Relaxed)).count();
    let commands = all.values().map(|b| b.commands.load(Relaxed)).sum();
    let waiting = all.values().map(|b| b.orders.max_capacity() - b.orders.capacity()).sum();
    (up, all.len() - up, commands, waiting)
}

impl Redis {
    fn backend(self: &Arc<Self>) -> Arc<Backend> {
        self.backend.get_or_init(|| Backend::find(self)).clone()
    }
}

/// What commands to the Redis of an `upstream` took, as JSON. None: there is no such one, or nothing is counted of it.
pub(in super::super) fn stats(snapshot: &Snapshot, upstream: &[u8]) -> Option<String> {
    let all = &snapshot.main.nchan.redis;
    let (name, redis) = all.iter().find(|(name, _)| name.as_bytes() == upstream)?;
    let known = BACKENDS.lock().expect(NO_PANIC).get(&redis.given).cloned();
    // Nobody connects for it.
    redis.given.stats.then(|| known.map_or_else(|| Stats::default().json(name), |backend| backend.stats.json(name)))
}

/// The Redis of a location.
pub(in super::super) fn of(r: &Request, conf: &Conf) -> Option<Arc<Backend>> {
    of_location(&r.snapshot, conf)
}

/// The same for who has no request.
pub(in super::super) fn of_location(snapshot: &ThreadSnapshot, conf: &Conf) -> Option<Arc<Backend>> {
    match &*conf.redis_pass {
        Some(name) => {
            let all = &snapshot.main.nchan.redis;
            all.iter().find(|(known, _)| known == name).map(|(_, redis)| redis.backend())
        }
        None => conf.redis.as_ref().map(Redis::backend),
    }
}

/// The Redis of a group of this local name, by what a configuration says today.
pub(in super::super) fn of_group(snapshot: &Snapshot, group: &[u8]) -> Option<Arc<Backend>> {
    let number = || std::str::from_utf8(group.rsplit(|b| *b == 0).next()?).ok()?.parse::<u64>().ok();
    let number = number().filter(|_| group.contains(&0))?;
    let upstreams = snapshot.main.nchan.redis.iter().map(|(_, redis)| redis);
    let locations = snapshot.locations.iter().filter_map(|location| location.conf.nchan.redis.as_ref());
    let redis = upstreams.chain(locations).find(|redis| redis.given.number() == number)?;
    Some(redis.backend())
}

impl Backend {
    fn find(redis: &Arc<Redis>) -> Arc<Backend> {
        let mut all = BACKENDS.lock().expect(NO_PANIC);
        if let Some(known) = all.get(&redis.given) {
            return known.clone();
        }
        let (orders, receiver) = mpsc::channel(QUEUE);
        let backend = Arc::new(Backend {
            // What lives with the configuration's value must not hold itself.
            redis: Arc::new(Redis { given: redis.given.clone(), tls: redis.tls.clone(), backend: Default::default() }),
            number: redis.given.number(),
            orders,
            queued_bytes: Arc::default(),
            followed: Mutex::default(),
            groups: Mutex::default(),
            slots: Mutex::default(),
            is_up: AtomicBool::new(false),
            commands: AtomicU64::new(0),
            stats: Stats::default(),
        });
        all.insert(redis.given.clone(), backend.clone());
        let task = backend.clone();
        service::spawn(move || link::run(task, receiver));
        backend
    }

    /// The local name of a group: no other Redis has it, nor have channels of this server alone. `group` is escaped.
    pub(in super::super) fn group(&self, group: &[u8]) -> Box<[u8]> {
        [group, b"\0", self.number.to_string().as_bytes()].concat().into()
    }

    pub(super) fn followed(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Followed>> {
        self.followed.lock().expect(NO_PANIC)
    }

    pub(super) fn groups(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Heard>> {
        self.groups.lock().expect(NO_PANIC)
    }

    /// Of a cluster: who has what.
    pub(super) fn slots(&self) -> Option<Arc<Slots>> {
        self.slots.lock().expect(NO_PANIC).clone()
    }

    fn timeout(&self) -> Duration {
        self.redis.given.command_timeout
    }

    /// Waits until channels are as Redis has them; not for ever. They are followed for `idle` after their last subscriber.
    pub(in super::super) async fn follow(&self, names: &[Box<[u8]>], idle: Duration) -> Result<(), Refused> {
        let mut waiting = Vec::new();
        let idle = seconds(idle);
        let until = hub::now().saturating_add(idle);
        for name in names {
            let mut followed = self.followed();
            if let Some(known) = followed.get_mut(name) {
                (known.until, known.idle) = (known.until.max(until), known.idle.max(idle));
                if known.is_known {
                    continue;
                }
                let (tx, rx) = oneshot::channel();
                known.waiting.push(tx);
                waiting.push(rx);
                continue;
            }
            let channel = hub::store().follow(name, hub::now())?;
            let (tx, rx) = oneshot::channel();
            let new = Followed {
                channel,
                syncing: false,
                awaits_retained: false,
                is_known: false,
                waiting: vec![tx],
                until,
                idle,
            };
            followed.insert(name.clone(), new);
            drop(followed);
            // Where the queue is full the channel is fetched when it is empty: all that are followed are looked at then.
            let _ = self.orders.try_send(Order::Follow(name.clone()));
            waiting.push(rx);
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let timer = Timer::new();
        timer.set(self.timeout());
        for rx in waiting {
            if timer.guard(rx).await.is_none() {
                // What Redis has comes when it answers.
                break;
            }
        }
        Ok(())
    }

    /// The same without waiting, for who has had all that there was. They are followed for `idle` after their last subscriber.
    pub(in super::super) fn follow_soon(&self, name: &[u8], idle: Duration) {
        let idle = seconds(idle);
        let mut followed = self.followed();
        if !followed.contains_key(name)
            && let Ok(channel) = hub::store().follow(name, hub::now())
        {
            let new = Followed {
                channel,
                syncing: false,
                awaits_retained: false,
                is_known: false,
                waiting: Vec::new(),
                until: hub::now().saturating_add(idle),
                idle,
            };
            followed.insert(name.into(), new);
            drop(followed);
            let _ = self.orders.try_send(Order::Follow(name.into()));
        }
    }

    /// All channels of a group are heard from now on, or soon.
    pub(in super::super) fn follow_group(&self, group: &[u8]) {
        let until = hub::now().saturating_add(seconds(2 * self.timeout()));
        match self.groups().entry(group.into()) {
            Entry::Occupied(mut known) => known.get_mut().until = until,
            Entry::Vacant(new) => {
                new.insert(Heard { until, ..Heard::default() });
                let _ = self.orders.try_send(Order::FollowGroup(group.into()));
            }
        }
    }

    /// The same, and waits until they are; not for ever.
    pub(in super::super) async fn hear_group(&self, group: &[u8]) {
        self.follow_group(group);
        let rx = {
            let mut groups = self.groups();
            let Some(heard) = groups.get_mut(group).filter(|heard| !heard.is_known) else { return };
            let (tx, rx) = oneshot::channel();
            heard.waiting.push(tx);
            rx
        };
        self.wait(rx).await;
    }

    /// Waits until all has come that Redis has told of a group that is heard: its answers come behind that. Not for ever.
    pub(in super::super) async fn catch_up(&self, group: &[u8]) {
        let (tx, rx) = oneshot::channel();
        if self.is_up.load(Relaxed) && self.orders.try_send(Order::CatchUp(group.into(), tx)).is_ok() {
            self.wait(rx).await;
        }
    }

    async fn wait(&self, rx: oneshot::Receiver<()>) {
        let timer = Timer::new();
        timer.set(self.timeout());
        let _ = timer.guard(rx).await;
    }

    /// Publishes to a channel.
    pub(in super::super) async fn publish(
        &self,
        name: &[u8],
        draft: Draft<'_>,
        keep: Keep,
    ) -> Result<Published, Failed> {
        if self.redis.given.mode == Mode::Backup {
            self.follow(&[name.into()], Duration::from_secs(keep.channel_timeout.unsigned_abs())).await?;
            let published = hub::store().publish(name, draft, keep, hub::now())?;
            // It is published: the copy is for the next start.
            let _ = self.send(name, &draft, keep, Some(published.id), None);
            return Ok(published);
        }
        if self.redis.given.mode == Mode::NoStore && self.redis.given.fast {
            self.send(name, &draft, keep, None, None)?;
            return Ok(Published { id: Id::START, info: Info::default() });
        }
        let (tx, rx) = oneshot::channel();
        self.send(name, &draft, keep, None, Some(tx))?;
        let timer = Timer::new();
        timer.set(self.timeout());
        let Some(Ok(said)) = timer.guard(rx).await else { return Err(Failed::Unreachable) };
        let here = hub::store().find(name).map(|channel| channel.info(hub::now())).unwrap_or_default();
        let info = Info {
            messages: said.messages.max(here.messages),
            subscribers: said.heard.max(here.subscribers),
            requested: here.requested,
            last: Some(said.id),
        };
        Ok(Published { id: said.id, info })
    }

    /// The same where nobody waits for what becomes of it.
    pub(in super::super) fn publish_soon(&self, name: &[u8], draft: Draft<'_>, keep: Keep) {
        if self.redis.given.mode == Mode::Backup {
            let published = hub::store().publish(name, draft, keep, hub::now());
            let _ = published.map(|published| self.send(name, &draft, keep, Some(published.id), None));
            return;
        }
        let _ = self.send(name, &draft, keep, None, None);
    }

    fn send(
        &self,
        name: &[u8],
        draft: &Draft<'_>,
        keep: Keep,
        id: Option<Id>,
        reply: Option<oneshot::Sender<Said>>,
    ) -> Result<(), Failed> {
        let now = hub::now();
        let expires = if keep.seconds > 0 { now + keep.seconds } else { 0 };
        let mut packed = Vec::with_capacity(draft.data.len() + draft.marks.properties.len() + 64);
        Packed::write(draft, expires, now, &mut packed);
        let name = remote(name);
        let retained = draft.marks.retain.then(|| {
            let topic = if name.contains(&b'/') { wire_up::split(&name).1 } else { &name };
            (topic.to_vec(), !draft.data.is_empty())
        });
        let queued = Queued::count(&self.queued_bytes, packed.len() as u64).ok_or(Failed::Unreachable)?;
        let order = Order::Publish(Publish { name, packed, keep, id, retained, reply, _queued: queued });
        self.orders.try_send(order).map_err(|_| Failed::Unreachable)
    }

    /// Whether there is a channel, here or at another server, without making one.
    pub(in super::super) async fn exists(&self, name: &[u8]) -> Result<bool, Failed> {
        if hub::store().find(name).is_some_and(|channel| channel.info(hub::now()).subscribers > 0) {
            return Ok(true);
        }
        self.told(|tx| Order::Exists(name.into(), tx)).await
    }

    /// Deletes a channel everywhere.
    pub(in super::super) async fn delete(&self, name: &[u8]) -> Result<(), Failed> {
        self.told(|tx| Order::Delete(name.into(), tx)).await
    }

    /// Asks for what is answered.
    async fn told<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, Failed> {
        let (tx, rx) = oneshot::channel();
        self.orders.try_send(order(tx)).map_err(|_| Failed::Unreachable)?;
        let timer = Timer::new();
        timer.set(self.timeout());
        match timer.guard(rx).await {
            Some(Ok(told)) => Ok(told),
            _ => Err(Failed::Unreachable),
        }
    }

    /// Whether a channel of this local name, or a group, is one of this Redis.
    pub(in super::super) fn has(&self, local: &[u8]) -> bool {
        self.local(&remote(local))[..] == *local
    }

    /// The local name of what all servers know by this one.
    pub(super) fn local(&self, name: &[u8]) -> Box<[u8]> {
        let slash = name.iter().position(|b| *b == b'/').unwrap_or(name.len());
        [&self.group(&name[..slash]), &name[slash..]].concat().into()
    }

    /// A message has come.
    pub(super) fn take(&self, channel: &Arc<Channel>, arrived: Arrived<'_>, now: i64) {
        if arrived.packed.is_over(now) {
            return;
        }
        if hub::STORE.accept(channel, arrived, now).is_err() {
            let text =
                "a message from Redis is lost: channels have as much memory as they may (nchan_shared_memory_size)";
            link::complain(text);
        }
    }
}

/// How long an idle channel is followed, at least as long as it takes to subscribe to it.
fn seconds(idle: Duration) -> i64 {
    i64::try_from(idle.as_secs()).unwrap_or(i64::MAX).saturating_add(1)
}

/// Ends what no configuration names any more, and nobody uses. True: it is.
/// `tasks`: how many on the service thread have it.
pub(super) fn retire(backend: &Arc<Backend>, tasks: usize) -> bool {
    let mut all = BACKENDS.lock().expect(NO_PANIC);
    // The table has one, the service thread the others: whoever wants it asks the table.
    let is_unused = Arc::strong_count(backend) == 1 + tasks && backend.followed().is_empty();
    if is_unused {
        all.remove(&backend.redis.given);
    }
    is_unused
}

/// A channel's name, or a group's, as all servers know it.
pub(super) fn remote(local: &[u8]) -> Vec<u8> {
    let Some(nul) = local.iter().position(|b| *b == 0) else { return local.to_vec() };
    let slash = local[nul..].iter().position(|b| *b == b'/').map_or(local.len(), |at| nul + at);
    [&local[..nul], &local[slash..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_marked_and_unmarked() {
        assert_eq!(remote(b"g\x0012/a/b"), b"g/a/b");
        assert_eq!((remote(b"\x001/a"), remote(b"g\x001")), (b"/a".to_vec(), b"g".to_vec()));
    }
}
