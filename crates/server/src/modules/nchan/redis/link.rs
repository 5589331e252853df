//! The connection to a Redis, on the service thread: commands in a row without waiting, what is said of channels as it comes. When it is lost it
//! is made anew, and channels are asked for what was missed. One connection does all: RESP3 orders what is asked and what is told, so that
//! nothing is missed between the two. From: `backend`'s orders. To: the channels.

use super::super::hub;
use super::backend::{Backend, Order, Publish, Said, remote, retire};
use super::conf::{Mode, Place, Redis};
use super::wire_up::{self, DELETE, DELETED, PAGE, PUBLISH};
use crate::log::error::Level;
use push::{Id, Packed};
use rustls::pki_types::ServerName;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use wire::resp::{self, Parsed, Value};

/// Commands that are not answered yet; no order is taken beyond.
const MAX_UNANSWERED: usize = 4096;
/// Bytes that are not written yet; the same.
const MAX_UNWRITTEN: usize = 16 * 1024 * 1024;
/// Time between two looks at what is late or idle.
const BEAT: Duration = Duration::from_secs(1);
/// Tries to connect follow each other at least in this time once several have failed.
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The same complaint about lost messages: once in this time, s.
const SILENCE: i64 = 10;
/// A stream without messages is remembered for its ids, s.
const REMEMBER: i64 = 60;

/// Why a connection ends for good.
const UNUSED: &str = "no configuration names it any more";

/// A connection of whichever kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// What an answer is waited for.
enum Expect {
    Publish(Publish),
    /// A page of a channel's messages.
    Page(Box<[u8]>),
    /// What a channel of this local name retains.
    Retained(Box<[u8]>),
    /// The same for all of a group.
    AllRetained(Box<[u8]>),
    Delete(Box<[u8]>, tokio::sync::oneshot::Sender<()>),
    Ignored,
}

/// One connection.
struct RedisLink<'b> {
    backend: &'b Arc<Backend>,
    input: Vec<u8>,
    /// The reply that has begun takes so many bytes at least.
    needs: usize,
    out: Vec<u8>,
    written: usize,
    unanswered: VecDeque<(Instant, Expect)>,
    publish: String,
    delete: String,
    heard: Instant,
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

fn say(level: Level, text: &str) {
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
            let why = match timeout(given.connect_timeout, open(&backend.redis, place, &[PUBLISH, DELETE])).await {
                Ok(Ok(((reader, writer), mut scripts))) => {
                    let delete = scripts.pop().unwrap_or_default();
                    let publish = scripts.pop().unwrap_or_default();
                    (delay, said) = (given.reconnect_delay, String::new());
                    say(Level::Notice, &format!("connected to Redis {place}"));
                    backend.is_up.store(true, Relaxed);
                    let mut link = RedisLink::new(&backend, publish, delete);
                    link.begin(std::mem::take(&mut again));
                    let why = link.serve(reader, writer, &mut orders).await;
                    backend.is_up.store(false, Relaxed);
                    again = link.left();
                    why
                }
                Ok(Err(why)) => why,
                Err(_) => "no answer in nchan_redis_connect_timeout".to_owned(),
            };
            if why == UNUSED || retire(&backend) {
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

/// Both directions of a connection.
pub(super) type Halves = (ReadHalf<Box<dyn Stream>>, WriteHalf<Box<dyn Stream>>);

/// Steps before the scripts: HELLO, SELECT, INFO, ROLE.
const STEPS: usize = 4;

/// Connects, asks whether this is a Redis that may be written to, and leaves scripts there. Gives what they are called.
pub(super) async fn open(redis: &Redis, place: &Place, scripts: &[&str]) -> Result<(Halves, Vec<String>), String> {
    let (given, tls) = (&redis.given, &redis.tls);
    let stream: Box<dyn Stream> = match place {
        Place::Path(path) => Box::new(UnixStream::connect(&**path).await.map_err(shown)?),
        Place::Host(host, port) => {
            let stream = TcpStream::connect((&**host, *port)).await.map_err(shown)?;
            let _ = stream.set_nodelay(true);
            match tls {
                None => Box::new(stream),
                Some(tls) => {
                    let name = match given.server_name.is_empty() {
                        true => host.to_string(),
                        false => String::from_utf8_lossy(&given.server_name).into_owned(),
                    };
                    let name = ServerName::try_from(name).map_err(|e| e.to_string())?;
                    let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
                    Box::new(stream.map_err(|e| format!("SSL handshake failed ({e})"))?)
                }
            }
        }
    };
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut out = Vec::new();
    let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if !given.password.is_empty() {
        let user: &[u8] = if given.username.is_empty() { b"default" } else { &given.username };
        hello.extend([&b"AUTH"[..], user, &given.password]);
    }
    hello.extend([&b"SETNAME"[..], b"ironweir"]);
    resp::command(&hello, &mut out);
    resp::command(&[b"SELECT", given.database.to_string().as_bytes()], &mut out);
    resp::command(&[b"INFO", b"cluster"], &mut out);
    resp::command(&[b"ROLE"], &mut out);
    scripts.iter().for_each(|script| resp::command(&[b"SCRIPT", b"LOAD", script.as_bytes()], &mut out));
    writer.write_all(&out).await.map_err(shown)?;
    let mut input = Vec::new();
    let mut sums = Vec::new();
    for step in 0..STEPS + scripts.len() {
        let reply = loop {
            match resp::parse(&input) {
                Ok(Parsed::Whole(value, size)) => {
                    let read = judge(step, &value);
                    drop(value);
                    input.drain(..size);
                    break read;
                }
                Ok(Parsed::Needs(_)) => {}
                Err(resp::NoReply) => return Err("it does not speak Redis' protocol".to_owned()),
            }
            if reader.read_buf(&mut input).await.map_err(shown)? == 0 {
                return Err("it has closed the connection".to_owned());
            }
        };
        sums.extend(reply?);
    }
    Ok(((reader, writer), sums))
}

pub(super) fn shown(e: io::Error) -> String {
    crate::log::os_error(&e).to_string()
}

/// What a Redis says of itself, answer by answer.
fn judge(step: usize, value: &Value<'_>) -> Result<Option<String>, String> {
    if let Value::Error(text) = value {
        return Err(format!("it says \"{}\"", String::from_utf8_lossy(text)));
    }
    match step {
        2 if value.text().is_some_and(|text| memchr::memmem::find(text, b"cluster_enabled:1").is_some()) => {
            Err("it is a Redis Cluster, which is not supported: name a single Redis".to_owned())
        }
        3 => match value.list().and_then(|list| list.first()).and_then(Value::text) {
            Some(b"master") => Ok(None),
            role => Err(format!("it is a {}, not a master", String::from_utf8_lossy(role.unwrap_or(b"stranger")))),
        },
        STEPS.. => {
            let sum = value.text().ok_or("it has no scripts")?;
            Ok(Some(String::from_utf8_lossy(sum).into_owned()))
        }
        _ => Ok(None),
    }
}

impl<'b> RedisLink<'b> {
    fn new(backend: &'b Arc<Backend>, publish: String, delete: String) -> RedisLink<'b> {
        RedisLink {
            backend,
            input: Vec::new(),
            needs: 0,
            out: Vec::new(),
            written: 0,
            unanswered: VecDeque::new(),
            publish,
            delete,
            heard: Instant::now(),
        }
    }

    /// Asks for what was missed, and says again what was not answered.
    fn begin(&mut self, again: VecDeque<Publish>) {
        let groups: Vec<Box<[u8]>> = self.backend.groups().iter().cloned().collect();
        groups.iter().for_each(|group| self.follow_group(group));
        let names: Vec<Box<[u8]>> = self.backend.followed().keys().cloned().collect();
        names.iter().for_each(|name| self.follow(name));
        again.into_iter().for_each(|publish| self.send(publish));
    }

    /// What goes on at the next connection.
    fn left(self) -> VecDeque<Publish> {
        let is_kept = self.backend.redis.given.retry;
        let left = self.unanswered.into_iter().filter_map(|(_, expect)| match expect {
            Expect::Publish(publish) if is_kept && publish.reply.as_ref().is_none_or(|r| !r.is_closed()) => {
                Some(publish)
            }
            _ => None,
        });
        left.collect()
    }

    fn ask(&mut self, words: &[&[u8]], expect: Expect) {
        resp::command(words, &mut self.out);
        self.backend.commands.fetch_add(1, Relaxed);
        self.unanswered.push_back((Instant::now(), expect));
    }

    /// The same for what is answered as it is told (RESP3).
    fn tell(&mut self, words: &[&[u8]]) {
        resp::command(words, &mut self.out);
        self.backend.commands.fetch_add(1, Relaxed);
    }

    fn follow(&mut self, name: &[u8]) {
        let given = &self.backend.redis.given;
        let remote = remote(name);
        let key = wire_up::key(&given.namespace, &remote);
        let last = {
            let mut followed = self.backend.followed();
            let Some(known) = followed.get_mut(name) else { return };
            known.syncing = true;
            // What was known before is asked for again only if nothing was: messages that came by a group may not be all.
            known.is_known.then(|| known.channel.info(now()).last).flatten()
        };
        self.tell(&[b"SUBSCRIBE", &key]);
        let slash = remote.iter().position(|b| *b == b'/').unwrap_or(remote.len());
        let (retained, id) =
            (wire_up::retained_key(&given.namespace, &remote[..slash]), remote.get(slash + 1..).unwrap_or_default());
        self.ask(&[b"HGET", &retained, id], Expect::Retained(name.into()));
        self.page(name, &key, last);
    }

    fn page(&mut self, name: &[u8], key: &[u8], after: Option<Id>) {
        let from = after.map_or_else(|| "-".to_owned(), |id| format!("({}", wire_up::id_text(id)));
        let count = PAGE.to_string();
        let words: [&[u8]; 6] = [b"XRANGE", key, from.as_bytes(), b"+", b"COUNT", count.as_bytes()];
        self.ask(&words, Expect::Page(name.into()));
    }

    fn follow_group(&mut self, group: &[u8]) {
        let given = &self.backend.redis.given;
        let remote = remote(group);
        let (pattern, retained) =
            (wire_up::pattern(&given.namespace, &remote), wire_up::retained_key(&given.namespace, &remote));
        self.tell(&[b"PSUBSCRIBE", &pattern]);
        self.ask(&[b"HGETALL", &retained], Expect::AllRetained(group.into()));
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Publish(publish) => {
                self.backend.queued_bytes.fetch_sub(publish.packed.len() as u64, Relaxed);
                // Who waited was told that Redis does not answer: it must not be published after that.
                if !publish.reply.as_ref().is_some_and(tokio::sync::oneshot::Sender::is_closed) {
                    self.send(publish);
                }
            }
            Order::Follow(name) => self.follow(&name),
            Order::FollowGroup(group) => self.follow_group(&group),
            Order::Delete(name, reply) => {
                let key = wire_up::key(&self.backend.redis.given.namespace, &remote(&name));
                let script = std::mem::take(&mut self.delete);
                self.ask(&[b"EVALSHA", script.as_bytes(), b"1", &key], Expect::Delete(name, reply));
                self.delete = script;
            }
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
            let slash = publish.name.iter().position(|b| *b == b'/').unwrap_or(publish.name.len());
            let hash = wire_up::retained_key(&given.namespace, &publish.name[..slash]);
            match is_there {
                true => self.ask(&[b"HSET", &hash, topic, &publish.packed], Expect::Ignored),
                false => self.ask(&[b"HDEL", &hash, topic], Expect::Ignored),
            }
        }
        let script = std::mem::take(&mut self.publish);
        let words: [&[u8]; 10] =
            [b"EVALSHA", script.as_bytes(), b"1", &key, &publish.packed, stored, stays, seconds, length, id.as_bytes()];
        resp::command(&words, &mut self.out);
        self.publish = script;
        self.backend.commands.fetch_add(1, Relaxed);
        self.unanswered.push_back((Instant::now(), Expect::Publish(publish)));
    }

    /// Talks until there is an end: why.
    async fn serve<S: AsyncRead + AsyncWrite>(
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
        let mut left = Vec::new();
        let mut forgotten = Vec::new();
        self.backend.followed().retain(|name, known| {
            if !known.is_known && !known.syncing {
                // The queue had no room for it.
                left.push(name.clone());
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
        left.iter().for_each(|name| self.follow(name));
        for name in forgotten {
            let key = wire_up::key(&self.backend.redis.given.namespace, &remote(&name));
            self.tell(&[b"UNSUBSCRIBE", &key]);
        }
        let unheard: Vec<Box<[u8]>> = {
            let mut groups = self.backend.groups();
            groups.extract_if(|group| !hub::STORE.group(group).has_filters()).collect()
        };
        for group in unheard {
            let pattern = wire_up::pattern(&self.backend.redis.given.namespace, &remote(&group));
            self.tell(&[b"PUNSUBSCRIBE", &pattern]);
        }
        if retire(self.backend) { Err(UNUSED.to_owned()) } else { Ok(()) }
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
                Err(resp::NoReply) => break Err("it does not speak Redis' protocol".to_owned()),
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
        let Some((_, expect)) = self.unanswered.pop_front() else {
            return Err("it answers what was not asked".to_owned());
        };
        if let Value::Error(text) = value {
            let text = String::from_utf8_lossy(text).into_owned();
            if text.starts_with("NOSCRIPT") || text.starts_with("LOADING") || text.starts_with("READONLY") {
                // What it needs is said anew with a new connection, or another one has it.
                self.unanswered.push_front((Instant::now(), expect));
                return Err(format!("it says \"{text}\""));
            }
            complain(&format!("Redis has refused a command: {text}"));
            // Nobody is told: whoever waits for this sees that it was not done.
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
            }
            Expect::AllRetained(group) => {
                for pair in value.list().unwrap_or_default().chunks_exact(2) {
                    if let (Some(id), Some(Ok(packed))) = (pair[0].text(), pair[1].text().map(Packed::read)) {
                        hub::STORE.retain_packed(&[&group, &b"/"[..], id].concat(), Some(packed), now());
                    }
                }
            }
            Expect::Delete(name, reply) => {
                // Who follows it is told like all others.
                if !self.backend.followed().contains_key(&name) {
                    hub::STORE.delete(&name, now());
                }
                let _ = reply.send(());
            }
            Expect::Ignored => {}
        }
        Ok(())
    }

    /// Messages that a channel has, the oldest first.
    fn page_came(&mut self, name: &[u8], value: &Value<'_>) {
        let entries = value.list().unwrap_or_default();
        let Some(channel) = self.backend.followed().get(name).map(|known| known.channel.clone()) else { return };
        let mut last = None;
        for entry in entries {
            let Some((id, length, message)) = wire_up::entry(entry) else { continue };
            last = Some(id);
            match Packed::read(message) {
                Ok(packed) => self.backend.take(&channel, id, packed, length, now()),
                Err(push::NotPacked) => complain("an entry of a stream in Redis is no message"),
            }
        }
        if entries.len() >= PAGE && last.is_some() {
            let key = wire_up::key(&self.backend.redis.given.namespace, &remote(name));
            return self.page(name, &key, last);
        }
        if let Some(known) = self.backend.followed().get_mut(name) {
            (known.syncing, known.is_known) = (false, true);
            for waiting in known.waiting.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    /// What is said of channels.
    fn told(&mut self, parts: &[Value<'_>]) {
        let (key, payload) = match parts {
            [Value::Text(b"message"), Value::Text(key), Value::Text(payload)]
            | [Value::Text(b"pmessage"), _, Value::Text(key), Value::Text(payload)] => (*key, *payload),
            _ => return,
        };
        let Some(name) = wire_up::name_of(&self.backend.redis.given.namespace, key) else { return };
        let name = self.backend.local(name);
        if payload == DELETED {
            return self.deleted(&name);
        }
        let known = self.backend.followed().get(&name).map(|known| (known.channel.clone(), known.syncing));
        let message = wire_up::told(payload);
        let is_stored =
            message.is_some_and(|(_, length, _)| length > 0) && self.backend.redis.given.mode != Mode::NoStore;
        let channel = match known {
            // It is part of what was asked for.
            Some((_, true)) if is_stored => return,
            Some((channel, _)) => channel,
            None => match hub::STORE.follow(&name, now()) {
                Ok(channel) => channel,
                Err(_) => return complain("a message from Redis is lost: there is no memory for its channel"),
            },
        };
        match message.map(|(id, length, message)| (id, length, Packed::read(message))) {
            Some((id, length, Ok(packed))) => self.backend.take(&channel, id, packed, length, now()),
            _ => complain("what is published in Redis for a channel is no message"),
        }
    }

    fn deleted(&mut self, name: &[u8]) {
        let was_followed = self.backend.followed().remove(name).is_some();
        hub::STORE.delete(name, now());
        if was_followed {
            let key = wire_up::key(&self.backend.redis.given.namespace, &remote(name));
            self.tell(&[b"UNSUBSCRIBE", &key]);
        }
    }
}
