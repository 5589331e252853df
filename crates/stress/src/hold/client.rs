//! One thread that opens connections at a steady rate and keeps them. A connection is one small struct in a list.

use super::talk::{Ears, Heard, Protocol, Talk};
use super::{Beyond, HoldPlan};
use crate::client::answer::HeadReader;
use crate::client::dial::Dialer;
use crate::client::now_ns;
use crate::client::tls::TlsSession;
use crate::sample::{Failure, Latencies, Tally};
use crate::system::{Epoll, HUNG_UP, READABLE, WRITABLE, sharpen_timers};
use rings::{READABLE as BYTES, Rings, Side, Spot};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use wire::{mqtt, websocket};

/// One read's bytes.
const BUFFER: usize = 64 * 1024;
/// Between two looks at the time.
const TICK_NS: u64 = 20_000_000;
/// So many are parked at once.
const PARKED_AT_ONCE: usize = 64;
/// The name of the rings' bell among events.
const BELL: u64 = u64::MAX;

/// Where a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Down,
    Connecting,
    Handshaking,
    /// The protocol's opening is out.
    Opening,
    Held,
}

/// Where a connection's socket is.
#[derive(Debug, Default)]
enum Line {
    #[default]
    Closed,
    Open(OwnedFd),
    /// Beyond the limit of descriptors. Whether something is waited for.
    Parked(Spot, bool),
}

/// One connection; times are nanoseconds of the monotonic clock.
#[derive(Default)]
struct Held {
    line: Line,
    tls: Option<Box<TlsSession>>,
    talk: Talk,
    stage: Stage,
    /// A heartbeat is out.
    is_beating: bool,
    began: u64,
    beat: u64,
}

/// What a connection takes in any case, bytes.
pub(super) const LEAST_MEMORY: usize = size_of::<Held>();

/// What all threads share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub stop: AtomicBool,
    /// Connections that are held now, over all threads.
    pub held: AtomicU64,
    /// Connections that were tried.
    pub tried: AtomicU64,
    /// Connections that ended before they were held.
    pub failed: AtomicU64,
    /// Connections that were lost after they were held.
    pub lost: AtomicU64,
    pub messages: AtomicU64,
}

/// What a thread measured.
pub(super) struct Outcome {
    pub tally: Tally,
    /// From the established connection to what it is for.
    pub ready: Latencies,
    /// From a heartbeat to its answer.
    pub beat: Latencies,
    /// Connections that were ready at some time.
    pub opened: u64,
    /// Connections that were ready and ended.
    pub lost: u64,
    pub messages: u64,
}

pub(super) struct Holder<'p> {
    plan: &'p HoldPlan,
    shared: &'p Shared,
    thread: usize,
    epoll: Epoll,
    rings: Option<Rings>,
    /// Connections that are to be parked.
    parking: Vec<u32>,
    /// Descriptors that may be open before one more connection has to wait for those that are, and how many are.
    room: usize,
    open: usize,
    dialer: Dialer<'p>,
    heads: HeadReader,
    list: Vec<Held>,
    /// Connections whose heartbeat is due, the earliest first.
    beats: VecDeque<(u32, u32)>,
    buffer: Box<[u8]>,
    plain: Box<[u8]>,
    reply: Vec<u8>,
    start: u64,
    now: u64,
    out: Outcome,
}

impl<'p> Holder<'p> {
    /// With a table of descriptors of its own, or rings, if the plan says so.
    pub(super) fn new(plan: &'p HoldPlan, shared: &'p Shared, thread: usize) -> io::Result<Holder<'p>> {
        let epoll = Epoll::new()?;
        let (mut rings, mut room) = (None, usize::MAX);
        match plan.beyond {
            Beyond::Nothing => {}
            Beyond::OwnTables => machine::system::own_descriptors()?,
            Beyond::Parked => {
                let opened = Rings::open(plan.share(thread)).map_err(|e| io::Error::other(e.to_string()))?;
                epoll.add(opened.bell().as_raw_fd(), BELL)?;
                rings = Some(opened);
                room = (plan.descriptors / plan.base.threads).max(1);
            }
        }
        let empty = Latencies::default;
        let out = Outcome { tally: Tally::new(1), ready: empty(), beat: empty(), opened: 0, lost: 0, messages: 0 };
        Ok(Holder {
            plan,
            shared,
            thread,
            epoll,
            rings,
            parking: Vec::new(),
            room,
            open: 0,
            dialer: Dialer::new(&plan.base, thread)?.in_windows(thread),
            heads: HeadReader::new(None),
            list: Vec::with_capacity(plan.share(thread)),
            beats: VecDeque::new(),
            buffer: vec![0; BUFFER].into(),
            plain: vec![0; if plan.base.tls.is_some() { BUFFER } else { 0 }].into(),
            reply: Vec::new(),
            start: 0,
            now: 0,
            out,
        })
    }

    /// Opens its share and keeps it until it is told to stop.
    pub(super) fn run(mut self, start: u64) -> Outcome {
        sharpen_timers();
        self.start = start;
        let wanted = self.plan.share(self.thread);
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.now = now_ns();
            // Where descriptors are few the next one waits until others are held and parked.
            while self.list.len() < wanted && self.open < self.room && self.due_ns(self.list.len()) <= self.now {
                self.open();
            }
            self.send_beats();
            let next =
                if self.list.len() < wanted && self.open < self.room { self.due_ns(self.list.len()) } else { u64::MAX };
            let wait = next.saturating_sub(self.now).min(TICK_NS);
            for index in 0..self.epoll.wait(wait) {
                match self.epoll.event(index) {
                    (BELL, _) => {}
                    (id, flags) => self.event(id as u32, flags),
                }
            }
            self.park();
            self.hear_parked();
        }
        self.out
    }

    /// Parks those that are held since the last time.
    fn park(&mut self) {
        let Some(rings) = &mut self.rings else { return };
        for ids in self.parking.chunks(PARKED_AT_ONCE) {
            let mut sockets = Vec::with_capacity(ids.len());
            let mut parked = Vec::with_capacity(ids.len());
            for &id in ids {
                let held = &mut self.list[id as usize];
                if let Line::Open(socket) = std::mem::take(&mut held.line) {
                    let _ = self.epoll.remove(socket.as_raw_fd());
                    sockets.push(socket);
                    parked.push(id);
                }
            }
            for (id, result) in parked.into_iter().zip(rings.park(sockets)) {
                let line = match result {
                    Ok(spot) => {
                        rings.watch(spot, id, Side::Reading, BYTES);
                        self.open -= 1;
                        Line::Parked(spot, true)
                    }
                    // It stays where it was; what it has said meanwhile is told again.
                    Err((socket, _)) => {
                        let _ = self.epoll.add(socket.as_raw_fd(), u64::from(id));
                        Line::Open(socket)
                    }
                };
                self.list[id as usize].line = line;
            }
        }
        self.parking.clear();
        rings.flush();
    }

    /// Reads what those that are parked have said.
    fn hear_parked(&mut self) {
        if self.rings.as_mut().is_none_or(|rings| !rings.gather()) {
            return;
        }
        self.now = now_ns();
        while let Some(news) = self.rings.as_mut().and_then(Rings::next_news) {
            let id = news.token;
            if let Line::Parked(_, is_watched) = &mut self.list[id as usize].line {
                *is_watched = false;
                self.read(id);
            }
            if let (Line::Parked(spot, is_watched), Some(rings)) = (&mut self.list[id as usize].line, &mut self.rings) {
                *is_watched = true;
                rings.watch(*spot, id, Side::Reading, BYTES);
            }
        }
        if let Some(rings) = &mut self.rings {
            rings.flush();
        }
    }

    /// When this thread's n-th connection is opened.
    fn due_ns(&self, n: usize) -> u64 {
        let index = n * self.plan.base.threads + self.thread;
        self.start + (index as f64 / self.plan.ramp * 1e9) as u64
    }

    fn ms(&self) -> u32 {
        (self.now.saturating_sub(self.start) / 1_000_000) as u32
    }

    fn open(&mut self) {
        let id = self.list.len() as u32;
        let mut held = Held { began: self.now, ..Held::default() };
        self.shared.tried.fetch_add(1, Ordering::Relaxed);
        let opened = self.dialer.dial().and_then(|s| self.epoll.add(s.as_raw_fd(), u64::from(id)).map(|()| s));
        match opened {
            Ok(socket) => {
                held.line = Line::Open(socket);
                self.open += 1;
                held.stage = Stage::Connecting;
            }
            Err(error) => {
                self.shared.failed.fetch_add(1, Ordering::Relaxed);
                self.out.tally.fail(Failure::of_connect(&error));
            }
        }
        self.list.push(held);
    }

    fn event(&mut self, id: u32, flags: u32) {
        self.now = now_ns();
        match self.list[id as usize].stage {
            Stage::Down => {}
            Stage::Connecting if flags & (WRITABLE | HUNG_UP) != 0 => self.connected(id),
            Stage::Connecting => {}
            _ => {
                if flags & WRITABLE != 0 && self.list[id as usize].tls.is_some() {
                    self.flush(id);
                }
                if flags & (READABLE | HUNG_UP) != 0 {
                    self.read(id);
                }
            }
        }
    }

    fn connected(&mut self, id: u32) {
        let held = &mut self.list[id as usize];
        let Line::Open(socket) = &held.line else { return };
        let outcome = match sockopt::socket_error(socket) {
            Ok(Ok(())) => self.dialer.introduce(socket),
            Ok(Err(error)) | Err(error) => Err(error.into()),
        };
        if let Err(error) = outcome {
            return self.end(id, Failure::of_connect(&error));
        }
        self.out.tally.sample.connects += 1;
        self.out.tally.sample.connect.record(self.now - held.began);
        held.began = self.now;
        match &self.plan.base.tls {
            None => self.greet(id),
            Some(tls) => match TlsSession::new(tls) {
                Ok(session) => {
                    held.tls = Some(Box::new(session));
                    held.stage = Stage::Handshaking;
                    self.flush(id);
                }
                Err(_) => self.end(id, Failure::Tls),
            },
        }
    }

    /// Sends the protocol's opening.
    fn greet(&mut self, id: u32) {
        self.list[id as usize].stage = Stage::Opening;
        let mut bytes = std::mem::take(&mut self.reply);
        match &self.plan.protocol {
            Protocol::Mqtt { version, .. } => {
                let name = format!("{}-{}-{id}", self.plan.client_prefix, self.thread);
                mqtt::connect(*version, &name, self.plan.heartbeat.map(|h| h.as_secs_f64()), &mut bytes);
            }
            _ => bytes.extend_from_slice(&self.plan.opening),
        }
        self.send(id, &bytes);
        bytes.clear();
        self.reply = bytes;
        // A long-poll is held from the moment it is asked.
        if self.plan.protocol == Protocol::LongPoll && self.list[id as usize].stage == Stage::Opening {
            self.ready(id);
        }
    }

    fn ready(&mut self, id: u32) {
        let held = &mut self.list[id as usize];
        held.stage = Stage::Held;
        self.out.ready.record(self.now - held.began);
        self.out.opened += 1;
        self.shared.held.fetch_add(1, Ordering::Relaxed);
        if self.rings.is_some() {
            self.parking.push(id);
        }
        self.await_beat(id);
    }

    fn await_beat(&mut self, id: u32) {
        if let Some(heartbeat) = self.plan.heartbeat {
            self.beats.push_back((self.ms() + heartbeat.as_millis() as u32, id));
        }
    }

    fn send_beats(&mut self) {
        let ms = self.ms();
        while let Some(&(_, id)) = self.beats.front().filter(|b| b.0 <= ms) {
            self.beats.pop_front();
            if self.list[id as usize].stage != Stage::Held {
                continue;
            }
            self.await_beat(id);
            // The last one is unanswered: the target is late, and another would not help it.
            let is_waiting = std::mem::replace(&mut self.list[id as usize].is_beating, true);
            let mut bytes = std::mem::take(&mut self.reply);
            match self.plan.protocol {
                Protocol::Http if !is_waiting => bytes.extend_from_slice(&self.plan.opening),
                Protocol::WebSocket if !is_waiting => websocket::ping(&mut bytes),
                Protocol::Mqtt { .. } if !is_waiting => bytes.extend_from_slice(&mqtt::PINGREQ),
                _ => {}
            }
            if !bytes.is_empty() {
                self.list[id as usize].beat = self.now;
                self.send(id, &bytes);
            }
            bytes.clear();
            self.reply = bytes;
        }
    }

    /// Held connections say little: what a socket's buffer does not take at once is a failure.
    fn send(&mut self, id: u32, bytes: &[u8]) {
        let held = &mut self.list[id as usize];
        if let Some(session) = &mut held.tls {
            return match session.write(bytes) {
                Ok(()) => self.flush(id),
                Err(_) => self.end(id, Failure::Tls),
            };
        }
        let mut result = Ok(0);
        match (&held.line, &mut self.rings) {
            (Line::Open(socket), _) => result = send(socket, bytes, SendFlags::NOSIGNAL).map_err(io::Error::from),
            (Line::Parked(spot, _), Some(rings)) => rings.send(&[(*spot, bytes)], |_, sent| result = sent),
            _ => return,
        }
        match result {
            Ok(sent) if sent == bytes.len() => self.out.tally.sample.bytes_written += sent as u64,
            Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::PIPE | Errno::CONNRESET)) => {
                self.end(id, Failure::Reset);
            }
            _ => self.end(id, Failure::Write),
        }
    }

    fn flush(&mut self, id: u32) {
        let held = &mut self.list[id as usize];
        if let (Some(session), Line::Open(socket)) = (&mut held.tls, &held.line) {
            match session.flush(socket) {
                Ok(sent) => self.out.tally.sample.bytes_written += sent as u64,
                Err(error) => self.end(id, Failure::of_read(&error)),
            }
        }
    }

    fn read(&mut self, id: u32) {
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let read = match (&self.list[id as usize].line, &mut self.rings) {
                (Line::Open(socket), _) => recv(socket, &mut buffer[..], RecvFlags::empty()).map(|(count, _)| count),
                (Line::Parked(spot, _), Some(rings)) => {
                    rings.receive(*spot, &mut buffer).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                }
                _ => break,
            };
            match read {
                Ok(0) => self.end(id, Failure::Closed),
                Ok(count) => {
                    self.out.tally.sample.bytes_read += count as u64;
                    match self.list[id as usize].tls {
                        None => self.hear(id, &buffer[..count]),
                        Some(_) => self.hear_tls(id, &buffer[..count]),
                    }
                    // The wait that follows tells of what has come since.
                    if count < buffer.len() && matches!(self.list[id as usize].line, Line::Parked(..)) {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => self.end(id, Failure::of_read(&io::Error::from(error))),
            }
        }
        self.buffer = buffer;
    }

    fn hear_tls(&mut self, id: u32, mut bytes: &[u8]) {
        let mut plain = std::mem::take(&mut self.plain);
        loop {
            let held = &mut self.list[id as usize];
            let Some(session) = &mut held.tls else { break };
            let Ok(taken) = session.take(bytes) else {
                self.end(id, Failure::Tls);
                break;
            };
            bytes = &bytes[taken..];
            if held.stage == Stage::Handshaking && !session.is_handshaking() {
                self.greet(id);
                continue;
            }
            let count = session.read(&mut plain);
            if count > 0 {
                self.hear(id, &plain[..count]);
            } else if taken == 0 {
                self.flush(id);
                break;
            }
        }
        self.plain = plain;
    }

    fn hear(&mut self, id: u32, bytes: &[u8]) {
        let held = &mut self.list[id as usize];
        let mut reply = std::mem::take(&mut self.reply);
        let mut ears = Ears { heads: &mut self.heads, tally: &mut self.out.tally, reply: &mut reply };
        match held.talk.hear(&self.plan.protocol, bytes, &mut ears) {
            Ok(heard) => self.heard(id, heard, &mut reply),
            Err(failure) => self.end(id, failure),
        }
        reply.clear();
        self.reply = reply;
    }

    fn heard(&mut self, id: u32, heard: Heard, reply: &mut Vec<u8>) {
        if heard.messages > 0 {
            self.out.messages += u64::from(heard.messages);
            self.shared.messages.fetch_add(u64::from(heard.messages), Ordering::Relaxed);
        }
        let held = &mut self.list[id as usize];
        if heard.beats > 0 && std::mem::take(&mut held.is_beating) {
            self.out.beat.record(self.now - held.beat);
        }
        if heard.asks_again {
            held.talk.ask_again(&self.plan.opening, reply);
        }
        if !reply.is_empty() {
            self.send(id, reply);
        }
        if heard.is_ready && self.list[id as usize].stage == Stage::Opening {
            self.ready(id);
        }
    }

    fn end(&mut self, id: u32, failure: Failure) {
        let held = &mut self.list[id as usize];
        if held.stage == Stage::Held {
            self.out.lost += 1;
            self.shared.held.fetch_sub(1, Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        } else if held.stage != Stage::Down {
            self.shared.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.out.tally.fail(failure);
        if let (Line::Parked(spot, is_watched), Some(rings)) = (&held.line, &mut self.rings) {
            if *is_watched {
                rings.unwatch(*spot, id, Side::Reading);
            }
            rings.close(*spot);
        }
        self.open -= usize::from(matches!(held.line, Line::Open(_)));
        *held = Held::default();
    }
}
