//! The connection to a Redis, on the service thread: commands in a row without waiting, what is said of channels as it comes. When it is lost it
//! is made anew, and channels are asked for what was missed. One connection does all: RESP3 orders what is asked and what is told, so that
//! nothing is missed between the two. From: `backend`'s orders. To: the channels.

use super::super::hub;
use super::backend::{Backend, Order, Publish, Said, remote, retire};
use super::cluster::{self, Event};
use super::given::{Mode, Place};
use super::open::{NO_REDIS, Opened, open, shown};
use super::slots;
use super::stats::Command;
use super::wire_up::{self, DELETE, DELETED, EXISTS, PAGE, PUBLISH};
use crate::log::error::Level;
use push::{Arrived, Id, Packed, Whom};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use wire::resp::{self, Parsed, Value};

/// Commands that are not answered yet; no order is taken beyond.
pub(super) const MAX_UNANSWERED: usize = 4096;
/// Bytes that are not written yet; the same.
const MAX_UNWRITTEN: usize = 16 * 1024 * 1024;
/// Time between two looks at what is late or idle.
const BEAT: Duration = Duration::from_secs(1);
/// Tries to connect follow each other at least in this time once several have failed.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(5);
/// The same complaint about lost messages: once in this time, s.
const SILENCE: i64 = 10;
/// A stream without messages is remembered for its ids, s.
const REMEMBER: i64 = 60;

/// Why a connection ends for good.
pub(super) const UNUSED: &str = "no configuration names it any more";

/// What an answer is waited for.
enum Expect {
    Publish(Publish),
    /// A page of a channel's messages.
    Page(Box<[u8]>),
    /// What a channel of this local name retains.
    Retained(Box<[u8]>),
    /// The same for all of a group.
    AllRetained(Box<[u8]>),
    /// Nothing but that it has come: of a group of this local name.
    CaughtUp(Box<[u8]>, oneshot::Sender<()>),
    Exists(Box<[u8]>, oneshot::Sender<bool>),
    Delete(Box<[u8]>, oneshot::Sender<()>),
    Retain(Vec<u8>, Vec<u8>, Option<Vec<u8>>),
    Ignored,
}

impl Expect {
    /// As what it is counted.
    fn command(&self) -> Command {
        match self {
            Expect::Publish(_) => Command::Publish,
            Expect::Page(_) => Command::Get,
            Expect::Retained(_) | Expect::AllRetained(_) => Command::GetRetained,
            Expect::Exists(..) => Command::Find,
            Expect::Delete(..) => Command::Delete,
            Expect::Retain(..) => Command::Retain,
            Expect::CaughtUp(..) | Expect::Ignored => Command::Other,
        }
    }

    /// What was asked, to ask it again.
    fn order(self) -> Option<Order> {
        Some(match self {
            Expect::Publish(publish) => Order::Publish(publish),
            Expect::Page(name) => Order::Follow(name),
            Expect::Retained(name) => Order::Retained(name),
            Expect::AllRetained(group) => Order::FollowGroup(group),
            Expect::CaughtUp(group, reply) => Order::CatchUp(group, reply),
            Expect::Exists(name, reply) => Order::Exists(name, reply),
            Expect::Delete(name, reply) => Order::Delete(name, reply),
            Expect::Retain(key, topic, packed) => Order::Retain(key, topic, packed),
            Expect::Ignored => return None,
        })
    }
}

/// A node of a Redis Cluster, as its connection sees it.
pub(super) struct Member {
    pub(super) place: Place,
    /// Where goes what another node must do.
    pub(super) events: mpsc::UnboundedSender<Event>,
    /// Channels that were subscribed to here.
    subscribed: HashSet<Box<[u8]>>,
    groups: HashSet<Box<[u8]>>,
}

impl Member {
    pub(super) fn new(place: Place, events: mpsc::UnboundedSender<Event>) -> Member {
        Member { place, events, subscribed: HashSet::new(), groups: HashSet::new() }
    }
}

/// One connection.
pub(super) struct RedisLink<'b> {
    backend: &'b Arc<Backend>,
    /// None: it is the only one.
    member: Option<Member>,
    input: Vec<u8>,
    /// The reply that has begun takes so many bytes at least.
    needs: usize,
    out: Vec<u8>,
    written: usize,
    unanswered: VecDeque<(Instant, Expect)>,
    scripts: Scripts,
    /// Where it is, for what is counted.
    address: String,
    /// When channels were asked to be told, or not, of which that is not answered yet.
    telling: VecDeque<Instant>,
    heard: Instant,
    /// Channels whose messages Redis has refused: they are asked for again.
    refused: Vec<Box<[u8]>>,
}

/// What `EVALSHA` calls them.
pub(super) struct Scripts {
    publish: String,
    delete: String,
    exists: String,
}

impl Scripts {
    /// What is left at each Redis.
    pub(super) const TEXTS: [&str; 3] = [PUBLISH, DELETE, EXISTS];

    pub(super) fn named(names: Vec<String>) -> Scripts {
        let mut names = names.into_iter();
        let mut next = || names.next().unwrap_or_default();
        Scripts { publish: next(), delete: next(), exists: next() }
    }
}

/// A line about a lost message, not for each.
pub(super) fn complain(text: &str) {
    static LAST: Mutex<(i64, String)> = Mutex::new((0, String::new()));
    let now = now();
    let mut last = LAST.lock().expect("nothing panics while it is locked");
    if now - last.0 >= SILENCE || last.1 != text {
        *last = (now, text.to_owned());
        say(Level::Error, text);
    }
}

pub(super) fn say(level: Level, text: &str) {
    crate::log::process_line(level, format_args!("{text}"));
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}

/// Keeps a connection as long as the process lives.
pub(super) async fn run(backend: Arc<Backend>, mut orders: Receiver<Order>) {
    let given = &backend.redis.given;
    let (mut again, mut delay, mut said) = (VecDeque::new(), given.reconnect_delay, String::new());
    loop {
        for place in &given.servers {
            let why = match timeout(given.connect_timeout, open(backend.redis.target(), place, &Scripts::TEXTS)).await {
                Ok(Ok(opened)) => {
                    (delay, said) = (given.reconnect_delay, String::new());
                    let left = std::mem::take(&mut again);
                    let why;
                    (why, again) = match opened.is_cluster {
                        true => {
                            drop(opened);
                            cluster::run(&backend, place, &mut orders, left).await
                        }
                        false => alone(&backend, place, opened, &mut orders, left).await,
                    };
                    backend.is_up.store(false, Relaxed);
                    why
                }
                Ok(Err(why)) => why,
                Err(_) => "no answer in nchan_redis_connect_timeout".to_owned(),
            };
            if why == UNUSED || retire(&backend, 1) {
                return say(Level::Notice, &format!("no more connections to Redis {place}: {UNUSED}"));
            }
            // The same again and again is said once.
            if said != why {
                say(Level::Error, &format!("no connection to Redis {place}: {why}"));
                said = why;
            }
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_DELAY.max(given.reconnect_delay));
    }
}

/// Serves by one connection until it ends: why, and what goes on at the next.
async fn alone(
    backend: &Arc<Backend>,
    place: &Place,
    opened: Opened,
    orders: &mut Receiver<Order>,
    again: VecDeque<Order>,
) -> (String, VecDeque<Order>) {
    say(Level::Notice, &format!("connected to Redis {place}"));
    *backend.slots.lock().expect("nothing panics while it is locked") = None;
    backend.is_up.store(true, Relaxed);
    let (reader, writer) = opened.halves;
    let mut link = RedisLink::new(backend, Scripts::named(opened.scripts), None);
    link.is_at(place, &opened.id, opened.took);
    link.begin();
    again.into_iter().for_each(|order| link.order(order));
    let why = link.serve(reader, writer, orders).await;
    (why, link.left())
}

impl<'b> RedisLink<'b> {
    pub(super) fn new(backend: &'b Arc<Backend>, scripts: Scripts, member: Option<Member>) -> RedisLink<'b> {
        RedisLink {
            backend,
            member,
            input: Vec::new(),
            needs: 0,
            out: Vec::new(),
            written: 0,
            unanswered: VecDeque::new(),
            scripts,
            address: String::new(),
            telling: VecDeque::new(),
            heard: Instant::now(),
            refused: Vec::new(),
        }
    }

    /// A connection to this place was made.
    pub(super) fn is_at(&mut self, place: &Place, id: &str, took: Duration) {
        self.address = place.to_string();
        if self.backend.redis.given.stats {
            self.backend.stats.connected(&self.address, id, took);
        }
    }

    fn count(&self, command: Command, since: Instant) {
        if self.backend.redis.given.stats {
            self.backend.stats.took(&self.address, command, since.elapsed());
        }
    }

    /// Asks for what was missed; of a cluster for what this node has by now.
    pub(super) fn begin(&mut self) {
        let mut groups: Vec<Box<[u8]>> = self.backend.groups().keys().cloned().collect();
        let mut names: Vec<Box<[u8]>> = self.backend.followed().keys().cloned().collect();
        if let Some(member) = &self.member {
            groups.retain(|group| !member.groups.contains(group) && self.has(&self.group_key(group)));
            names.retain(|name| !member.subscribed.contains(name) && self.has(&self.key(name)));
        }
        groups.iter().for_each(|group| self.follow_group(group));
        names.iter().for_each(|name| self.follow(name, false));
    }

    /// The map of the cluster has changed: what others have by now ends here, what this node has begins.
    fn mapped(&mut self) {
        let Some(mut member) = self.member.take() else { return };
        let has = |key: &[u8]| self.backend.slots().is_some_and(|slots| slots.owner(key) == Some(&member.place));
        let names: Vec<_> = member.subscribed.extract_if(|name| !has(&self.key(name))).collect();
        let groups: Vec<_> = member.groups.extract_if(|group| !has(&self.group_key(group))).collect();
        self.member = Some(member);
        for name in names {
            self.tell(&[b"UNSUBSCRIBE", &self.key(&name)]);
        }
        for group in groups {
            self.tell(&[b"PUNSUBSCRIBE", &wire_up::pattern(&self.backend.redis.given.namespace, &remote(&group))]);
        }
        self.begin();
    }

    /// Whether a key is this connection's.
    fn has(&self, key: &[u8]) -> bool {
        let Some(member) = &self.member else { return true };
        self.backend.slots().is_some_and(|slots| slots.owner(key) == Some(&member.place))
    }

    /// The key of a channel of this local name.
    fn key(&self, name: &[u8]) -> Vec<u8> {
        wire_up::key(&self.backend.redis.given.namespace, &remote(name))
    }

    /// The key of what a group of this local name retains.
    fn group_key(&self, group: &[u8]) -> Vec<u8> {
        wire_up::retained_key(&self.backend.redis.given.namespace, &remote(group))
    }

    /// What goes on at the next connection.
    pub(super) fn left(self) -> VecDeque<Order> {
        let is_kept = self.backend.redis.given.retry;
        let left = self.unanswered.into_iter().filter_map(|(_, expect)| match expect {
            Expect::Publish(publish) if is_kept && !publish.is_late() => Some(Order::Publish(publish)),
            _ => None,
        });
        left.collect()
    }

    fn ask(&mut self, words: &[&[u8]], expect: Expect) {
        resp::command(words, &mut self.out);
        self.expect(expect);
    }

    /// A command was written: this is waited for.
    fn expect(&mut self, expect: Expect) {
        self.backend.commands.fetch_add(1, Relaxed);
        self.unanswered.push_back((Instant::now(), expect));
    }

    /// The same for what is answered as it is told (RESP3).
    fn tell(&mut self, words: &[&[u8]]) {
        resp::command(words, &mut self.out);
        self.telling.push_back(Instant::now());
        self.backend.commands.fetch_add(1, Relaxed);
    }

    /// `asking`: this node is just getting it from another.
    fn follow(&mut self, name: &[u8], asking: bool) {
        let key = self.key(name);
        let last = {
            let mut followed = self.backend.followed();
            let Some(known) = followed.get_mut(name) else { return };
            (known.syncing, known.awaits_retained) = (true, true);
            // What was known before is asked for again only if nothing was: messages that came by a group may not be all.
            known.is_known.then(|| known.channel.info(now()).last).flatten()
        };
        self.tell(&[b"SUBSCRIBE", &key]);
        match &mut self.member {
            None => self.retained(name),
            Some(member) => {
                member.subscribed.insert(name.into());
                self.pass_on(Order::Retained(name.into()), None);
            }
        }
        if asking {
            self.ask(&[b"ASKING"], Expect::Ignored);
        }
        self.page(name, &key, last);
    }

    fn retained(&mut self, name: &[u8]) {
        let remote = remote(name);
        let (group, id) = wire_up::split(&remote);
        let key = wire_up::retained_key(&self.backend.redis.given.namespace, group);
        self.ask(&[b"HGET", &key, id], Expect::Retained(name.into()));
    }

    /// Another node of the cluster is to do it.
    fn pass_on(&self, order: Order, asked: Option<Place>) {
        if let Some(member) = &self.member {
            let _ = member.events.send(Event::Again(order, asked));
        }
    }

    fn page(&mut self, name: &[u8], key: &[u8], after: Option<Id>) {
        let from = after.map_or_else(|| "-".to_owned(), |id| format!("({}", wire_up::id_text(id)));
        let count = PAGE.to_string();
        let words: [&[u8]; 6] = [b"XRANGE", key, from.as_bytes(), b"+", b"COUNT", count.as_bytes()];
        self.ask(&words, Expect::Page(name.into()));
    }

    fn follow_group(&mut self, group: &[u8]) {
        let pattern = wire_up::pattern(&self.backend.redis.given.namespace, &remote(group));
        self.tell(&[b"PSUBSCRIBE", &pattern]);
        if let Some(member) = &mut self.member {
            member.groups.insert(group.into());
        }
        self.ask(&[b"HGETALL", &self.group_key(group)], Expect::AllRetained(group.into()));
    }

    fn order(&mut self, order: Order) {
        if order.is_late() {
            return;
        }
        match order {
            Order::Publish(publish) => self.send(publish),
            Order::Follow(name) => self.follow(&name, false),
            Order::Retained(name) => self.retained(&name),
            Order::FollowGroup(group) => self.follow_group(&group),
            Order::CatchUp(group, reply) => {
                let key = self.group_key(&group);
                self.ask(&[b"EXISTS", &key], Expect::CaughtUp(group, reply));
            }
            Order::Exists(name, reply) => {
                let words: [&[u8]; 4] = [b"EVALSHA", self.scripts.exists.as_bytes(), b"1", &self.key(&name)];
                resp::command(&words, &mut self.out);
                self.expect(Expect::Exists(name, reply));
            }
            Order::Delete(name, reply) => {
                let words: [&[u8]; 4] = [b"EVALSHA", self.scripts.delete.as_bytes(), b"1", &self.key(&name)];
                resp::command(&words, &mut self.out);
                self.expect(Expect::Delete(name, reply));
            }
            Order::Retain(key, topic, packed) => {
                match &packed {
                    Some(packed) => resp::command(&[b"HSET", &key, &topic, packed], &mut self.out),
                    None => resp::command(&[b"HDEL", &key, &topic], &mut self.out),
                }
                self.expect(Expect::Retain(key, topic, packed));
            }
            Order::Mapped => self.mapped(),
            Order::Asking(order) => match *order {
                Order::Follow(name) => self.follow(&name, true),
                order => {
                    self.ask(&[b"ASKING"], Expect::Ignored);
                    self.order(order);
                }
            },
        }
    }

    fn send(&mut self, publish: Publish) {
        let given = &self.backend.redis.given;
        let key = wire_up::key(&given.namespace, &publish.name);
        let Publish { keep, .. } = publish;
        let stored = if given.mode == Mode::NoStore { 0 } else { keep.length };
        let stays = if keep.seconds == 0 && stored > 0 { 0 } else { keep.seconds.min(i64::from(i32::MAX)) + REMEMBER };
        let numbers = [stored as i64, stays, keep.seconds, keep.length as i64].map(|n| n.to_string());
        let [stored, stays, seconds, length] = numbers.each_ref().map(|n| n.as_bytes());
        let id = publish.id.map_or_else(String::new, wire_up::id_text);
        if let Some((topic, is_there)) = &publish.retained {
            let hash = wire_up::retained_key(&given.namespace, wire_up::split(&publish.name).0);
            match is_there {
                true => self.ask(&[b"HSET", &hash, topic, &publish.packed], Expect::Ignored),
                false => self.ask(&[b"HDEL", &hash, topic], Expect::Ignored),
            }
        }
        let script = self.scripts.publish.as_bytes();
        let words: [&[u8]; 10] =
            [b"EVALSHA", script, b"1", &key, &publish.packed, stored, stays, seconds, length, id.as_bytes()];
        resp::command(&words, &mut self.out);
        self.expect(Expect::Publish(publish));
    }

    /// Talks until there is an end: why.
    pub(super) async fn serve<S: AsyncRead + AsyncWrite>(
        &mut self,
        mut reader: ReadHalf<S>,
        mut writer: WriteHalf<S>,
        orders: &mut Receiver<Order>,
    ) -> String {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let unwritten = self.out.len() - self.written;
            let has_room = self.unanswered.len() < MAX_UNANSWERED && unwritten < MAX_UNWRITTEN;
            tokio::select! {
                order = orders.recv(), if has_room => match order {
                    Some(order) => self.order(order),
                    None => return "nobody needs it".to_owned(),
                },
                written = writer.write(&self.out[self.written..]), if unwritten > 0 => match written {
                    Ok(0) => return "it takes nothing more".to_owned(),
                    Ok(n) => {
                        self.written += n;
                        if self.written == self.out.len() {
                            self.out.clear();
                            self.written = 0;
                            // A burst leaves no large buffer behind.
                            self.out.shrink_to(64 * 1024);
                        }
                    }
                    Err(e) => return shown(e),
                },
                read = reader.read_buf(&mut self.input) => match read {
                    Ok(0) => return "it has closed the connection".to_owned(),
                    Ok(_) => {
                        self.heard = Instant::now();
                        if let Err(why) = self.replies() {
                            return why;
                        }
                    }
                    Err(e) => return shown(e),
                },
                _ = beat.tick() => if let Err(why) = self.look() {
                    return why;
                },
            }
            // TLS keeps what it was given until it is told to let go.
            if unwritten > 0
                && self.out.is_empty()
                && let Err(e) = writer.flush().await
            {
                return shown(e);
            }
        }
    }

    /// What is late, idle, or silent.
    fn look(&mut self) -> Result<(), String> {
        let given = &self.backend.redis.given;
        if self.unanswered.front().is_some_and(|(at, _)| at.elapsed() > given.command_timeout) {
            return Err("no answer in nchan_redis_command_timeout".to_owned());
        }
        if !given.ping.is_zero() && self.heard.elapsed() > given.ping && self.unanswered.is_empty() {
            self.ask(&[b"PING"], Expect::Ignored);
        }
        let now = now();
        // What was refused is asked for again, and what the queue had no room for.
        let mut left = std::mem::take(&mut self.refused);
        let (mut unretained, mut forgotten) = (Vec::new(), Vec::new());
        self.backend.followed().retain(|name, known| {
            if !self.has(&self.key(name)) {
                return true;
            }
            if !known.is_known && !known.syncing {
                // Its messages may be here, and another node still to say what it retains.
                if known.awaits_retained { unretained.push(name.clone()) } else { left.push(name.clone()) }
            }
            if known.channel.info(now).subscribers > 0 {
                known.until = now.saturating_add(known.idle);
            }
            let stays = known.until > now;
            if !stays {
                forgotten.push(name.clone());
            }
            stays
        });
        left.iter().for_each(|name| self.follow(name, false));
        for name in unretained {
            match self.member {
                None => self.retained(&name),
                Some(_) => self.pass_on(Order::Retained(name), None),
            }
        }
        for name in forgotten {
            self.forget(&name);
        }
        let unheard: Vec<Box<[u8]>> = {
            let mut groups = self.backend.groups();
            let is_unheard = |group: &[u8]| self.has(&self.group_key(group)) && !hub::STORE.group(group).has_filters();
            groups.extract_if(|group, heard| heard.until < now && is_unheard(group)).map(|(group, _)| group).collect()
        };
        for group in unheard {
            let pattern = wire_up::pattern(&self.backend.redis.given.namespace, &remote(&group));
            self.tell(&[b"PUNSUBSCRIBE", &pattern]);
            if let Some(member) = &mut self.member {
                member.groups.remove(&group);
            }
        }
        // Of a cluster who leads the connections asks that.
        if self.member.is_none() && retire(self.backend, 1) { Err(UNUSED.to_owned()) } else { Ok(()) }
    }

    /// A channel is followed no longer.
    fn forget(&mut self, name: &[u8]) {
        self.tell(&[b"UNSUBSCRIBE", &self.key(name)]);
        if let Some(member) = &mut self.member {
            member.subscribed.remove(name);
        }
    }

    /// Deals with the replies that are whole.
    fn replies(&mut self) -> Result<(), String> {
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        let result = loop {
            if input.len() - at < self.needs || at == input.len() {
                break Ok(());
            }
            match resp::parse(&input[at..]) {
                Ok(Parsed::Whole(value, size)) => {
                    at += size;
                    self.needs = 0;
                    if let Err(why) = self.reply(&value) {
                        break Err(why);
                    }
                }
                Ok(Parsed::Needs(n)) => {
                    self.needs = n;
                    break Ok(());
                }
                Err(resp::NoReply) => break Err(NO_REDIS.to_owned()),
            }
        };
        self.input = input;
        self.input.drain(..at);
        if self.input.is_empty() {
            self.input.shrink_to(64 * 1024);
        }
        result
    }

    fn reply(&mut self, value: &Value<'_>) -> Result<(), String> {
        if let Value::Push(parts) = value {
            self.told(parts);
            return Ok(());
        }
        let Some((since, expect)) = self.unanswered.pop_front() else {
            return Err("it answers what was not asked".to_owned());
        };
        self.count(expect.command(), since);
        if let Value::Error(text) = value {
            let text = String::from_utf8_lossy(text).into_owned();
            if text.starts_with("NOSCRIPT") || text.starts_with("LOADING") || text.starts_with("READONLY") {
                // What it needs is said anew with a new connection, or another one has it.
                self.unanswered.push_front((Instant::now(), expect));
                return Err(format!("it says \"{text}\""));
            }
            let Some(expect) = self.turned_away(&text, expect) else { return Ok(()) };
            complain(&format!("Redis has refused a command: {text}"));
            // Nobody is told: whoever waits for this sees that it was not done.
            match expect {
                Expect::Page(name) => self.page_refused(name),
                // A channel is known without it.
                Expect::Retained(name) => self.retained_came(&name),
                Expect::AllRetained(group) => self.group_came(&group),
                _ => {}
            }
            return Ok(());
        }
        match expect {
            Expect::Publish(publish) => {
                if let Some(reply) = publish.reply
                    && let Some([id, messages, heard]) = value.list()
                    && let Some(id) = id.text().and_then(wire_up::id)
                {
                    let count = |v: &Value<'_>| usize::try_from(v.number().unwrap_or(0)).unwrap_or(0);
                    let _ = reply.send(Said { id, messages: count(messages), heard: count(heard) });
                }
            }
            Expect::Page(name) => self.page_came(&name, value),
            Expect::Retained(name) => {
                let packed = value.text().and_then(|text| Packed::read(text).ok());
                hub::STORE.retain_packed(&name, packed, now());
                self.retained_came(&name);
            }
            Expect::AllRetained(group) => {
                for pair in value.list().unwrap_or_default().chunks_exact(2) {
                    if let (Some(id), Some(Ok(packed))) = (pair[0].text(), pair[1].text().map(Packed::read)) {
                        hub::STORE.retain_packed(&[&group, &b"/"[..], id].concat(), Some(packed), now());
                    }
                }
                self.group_came(&group);
            }
            Expect::CaughtUp(_, reply) => {
                let _ = reply.send(());
            }
            Expect::Delete(name, reply) => {
                // Who follows it is told like all others.
                if !self.backend.followed().contains_key(&name) {
                    hub::STORE.delete(&name, now());
                }
                let _ = reply.send(());
            }
            Expect::Exists(_, reply) => {
                let _ = reply.send(value.number().is_some_and(|number| number > 0));
            }
            Expect::Retain(..) | Expect::Ignored => {}
        }
        Ok(())
    }

    /// A node of a cluster says that another has the key, or that nobody has it now. What the answer was waited for, if it says something else.
    fn turned_away(&mut self, text: &str, expect: Expect) -> Option<Expect> {
        let Some(member) = &self.member else { return Some(expect) };
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let asked = match word {
            "ASK" => slots::redirected(rest, &member.place),
            "MOVED" | "CLUSTERDOWN" => {
                let _ = member.events.send(Event::Stale);
                None
            }
            "TRYAGAIN" => None,
            _ => return Some(expect),
        };
        if let Some(order) = expect.order() {
            self.pass_on(order, asked);
        }
        None
    }

    /// What a channel retains is there, or will not be.
    fn retained_came(&self, name: &[u8]) {
        if let Some(known) = self.backend.followed().get_mut(name) {
            known.awaits_retained = false;
            known.settle();
        }
    }

    /// All channels of a group are heard: what was asked for behind that was answered.
    fn group_came(&self, group: &[u8]) {
        if let Some(heard) = self.backend.groups().get_mut(group) {
            heard.settle();
        }
    }

    /// Redis does not give what a channel has. What is told of it meanwhile is part of what it will give, so nothing of it is lost when it does.
    fn page_refused(&mut self, name: Box<[u8]>) {
        if let Some(known) = self.backend.followed().get_mut(&name) {
            // Subscribers need not wait for it.
            known.waiting.clear();
        }
        self.refused.push(name);
    }

    /// Messages that a channel has, the oldest first.
    fn page_came(&mut self, name: &[u8], value: &Value<'_>) {
        let entries = value.list().unwrap_or_default();
        let known = self.backend.followed().get(name).map(|known| (known.channel.clone(), known.is_known));
        let Some((channel, is_known)) = known else { return };
        // Who hears a channel by its group is told what is published; of one that was followed before, what was missed.
        let to = if is_known { Whom::All } else { Whom::Channel };
        let mut last = None;
        for entry in entries {
            let Some((id, length, message)) = wire_up::entry(entry) else { continue };
            last = Some(id);
            match Packed::read(message) {
                Ok(packed) => self.backend.take(&channel, Arrived { id, packed, length, to }, now()),
                Err(push::NotPacked) => complain("an entry of a stream in Redis is no message"),
            }
        }
        if entries.len() >= PAGE && last.is_some() {
            return self.page(name, &self.key(name), last);
        }
        if let Some(known) = self.backend.followed().get_mut(name) {
            known.syncing = false;
            known.settle();
        }
    }

    /// What is said of channels.
    fn told(&mut self, parts: &[Value<'_>]) {
        let (key, payload, by_group) = match parts {
            [Value::Text(b"message"), Value::Text(key), Value::Text(payload)] => (*key, *payload, false),
            [Value::Text(b"pmessage"), _, Value::Text(key), Value::Text(payload)] => (*key, *payload, true),
            [Value::Text(b"subscribe" | b"psubscribe"), ..] => return self.is_told(Command::Subscribe),
            [Value::Text(b"unsubscribe" | b"punsubscribe"), ..] => return self.is_told(Command::Unsubscribe),
            _ => return,
        };
        let Some(name) = wire_up::name_of(&self.backend.redis.given.namespace, key) else { return };
        let name = self.backend.local(name);
        if payload == DELETED {
            return self.deleted(&name);
        }
        let known =
            self.backend.followed().get(&name).map(|known| (known.channel.clone(), known.syncing, known.is_known));
        let message = wire_up::told(payload);
        let is_stored =
            message.is_some_and(|(_, length, _)| length > 0) && self.backend.redis.given.mode != Mode::NoStore;
        let mut to = Whom::All;
        let channel = match known {
            // It is part of what was asked for, of which who hears the channel by its group gets nothing that was there before.
            Some((channel, true, false)) if is_stored && by_group => {
                to = Whom::Filters;
                channel
            }
            Some((_, true, _)) if is_stored => return,
            Some((channel, ..)) => channel,
            None => match hub::STORE.follow(&name, now()) {
                Ok(channel) => channel,
                Err(_) => return complain("a message from Redis is lost: there is no memory for its channel"),
            },
        };
        match message.map(|(id, length, message)| (id, length, Packed::read(message))) {
            Some((id, length, Ok(packed))) => self.backend.take(&channel, Arrived { id, packed, length, to }, now()),
            _ => complain("what is published in Redis for a channel is no message"),
        }
    }

    fn is_told(&mut self, command: Command) {
        if let Some(since) = self.telling.pop_front() {
            self.count(command, since);
        }
    }

    fn deleted(&mut self, name: &[u8]) {
        let was_followed = self.backend.followed().remove(name).is_some();
        hub::STORE.delete(name, now());
        if was_followed {
            self.forget(name);
        }
    }
}
