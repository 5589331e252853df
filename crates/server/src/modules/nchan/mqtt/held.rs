//! The connection of a client of MQTT, which is held (`request::held`): bytes come in and go out, deadlines are watched. What packets mean is `live`'s;
//! for those about which somebody is asked the request comes back.

mod travel;

use super::super::{Conf, held, hub, subscribe};
use super::link::{Arrived, MqttLink};
use super::live::{After, BATCH, Live};
use super::offline::{Left, left};
use super::open::Opened;
use super::table::Owner;
use super::{asked, open, parked};
use crate::connection::mqtt::{MAX_CONNECT, version_of};
use crate::connection::pool;
use crate::connection::socket::Socket;
use crate::log_error;
use crate::request::Request;
use crate::request::held::{Kept, hold};
use crate::request::phases::{Back, GoOn, Released, Verdict};
use crate::worker::departure;
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use wire::mqtt::packet::{Wrong, code};
use wire::mqtt::{Version, answer, connect};

/// The first byte of CONNECT.
const CONNECT: u8 = 0x10;

/// A connection.
pub(super) struct Held {
    pub(super) link: MqttLink,
    /// None before CONNECT, which only a WebSocket has behind its request.
    pub(super) live: Option<Box<Live>>,
    /// When the client was heard of last, ms.
    pub(super) heard_ms: u64,
    /// When it took something of what is written, ms.
    pub(super) took_ms: u64,
    /// How long a CONNECT may take, and the client to take something of what is written, ms.
    pub(super) connect_timeout_ms: u32,
    pub(super) send_timeout_ms: u32,
    /// Everything is over when what is to be said is written.
    pub(super) over: Option<End>,
    /// It does not go on in another process.
    pub(super) stays: bool,
}

/// Why the request is wanted again.
pub(super) enum End {
    /// It could not be parked, and waits on.
    Unparked,
    /// A WebSocket's CONNECT.
    Connect(Vec<u8>),
    /// A packet about which somebody is asked.
    Ask(u8, Vec<u8>),
    /// The client goes as it should; its will is said or not.
    Goodbye { will: bool },
    /// It has broken a rule, or this server cannot go on with it: it was told so.
    Wrong(Wrong),
    /// Another connection has its session.
    TakenOver,
    /// The thread ends.
    Leaving,
    /// It goes on in another process.
    Departs,
    /// It is gone.
    Gone(Option<io::Error>),
    /// It has not taken anything for `send_timeout`.
    Stalled,
    /// It is so far behind that messages are gone.
    Lost,
}

/// Begins with a client that was let in.
pub(super) fn begin(r: &mut Request, link: MqttLink, opened: Opened) -> Verdict {
    held::nodelay(r);
    let mut held = Held::new(r, link);
    held.welcome(opened);
    go_on(r, held)
}

/// Waits for the CONNECT of a WebSocket.
pub(super) fn wait_for_connect(r: &mut Request) -> Verdict {
    held::nodelay(r);
    let held = Held::new(r, MqttLink::websocket());
    go_on(r, held)
}

/// All that waits, behind one pointer.
struct Whole {
    kept: Box<Kept>,
    socket: Socket,
    timer: Timer,
    held: Held,
}

fn go_on(r: &mut Request, mut held: Held) -> Verdict {
    hold(r, |mut kept, socket| {
        held.link.push(&kept.take_early());
        match parked::ready(&kept, socket) {
            Ok(ready) => {
                parked::park(kept, ready, held);
                Box::pin(async { Released::Parked })
            }
            Err(socket) => Box::pin(run(Box::new(Whole { kept, socket, timer: Timer::new(), held }))),
        }
    })
}

async fn run(mut whole: Box<Whole>) -> Released {
    let end = poll_fn(|cx| {
        let Whole { kept, socket, timer, held } = &mut *whole;
        held.poll(kept, socket, timer, cx)
    });
    let end = end.await;
    let Whole { kept, socket, held, .. } = *whole;
    if !matches!(end, End::Departs) {
        return Released::Back(Back { request: kept.back(socket), go_on: held.go_on(end) });
    }
    match parked::depart(kept, socket, held) {
        Ok(()) => Released::Parked,
        Err(here) => {
            let (kept, socket, mut held) = *here;
            held.refuse();
            Released::Back(Back { request: kept.back(socket), go_on: held.go_on(End::Unparked) })
        }
    }
}

/// What is next for who has no task.
pub(super) enum Step {
    Say(Vec<u8>),
    /// Until something happens, or this time (monotonic ms).
    Rest(Option<u64>),
    End,
}

impl Held {
    fn new(r: &Request, link: MqttLink) -> Held {
        let core = &r.conf().core;
        Held {
            link,
            live: None,
            heard_ms: clock::monotonic_ms(),
            took_ms: 0,
            connect_timeout_ms: ms(*r.server().conf.core.client_header_timeout),
            send_timeout_ms: ms(*core.send_timeout),
            over: None,
            stays: false,
        }
    }

    /// How long the client may take nothing.
    pub(super) fn send_timeout(&self) -> Duration {
        Duration::from_millis(self.send_timeout_ms.into())
    }

    /// What goes on with its request.
    pub(super) fn go_on(self, end: End) -> GoOn {
        Box::new(move |r| Box::pin(ended(r, self, end)))
    }

    /// What is next, where nothing is being written. [`Step::End`] is so from then on. `place`: where it is parked.
    pub(super) fn step(&mut self, place: u32) -> Step {
        loop {
            if !self.link.unsent().is_empty() {
                return Step::Say(self.link.take_unsent());
            }
            if self.over.is_some() {
                return Step::End;
            }
            if let Some(end) = self.take_packets() {
                self.over = Some(end);
            }
            if self.over.is_some() || !self.link.unsent().is_empty() {
                continue;
            }
            if let Some(live) = &mut self.live {
                live.session.settle(place);
            }
            if self.turn(|owner| owner.has_call()) {
                continue;
            }
            return match self.patience() {
                None => Step::Rest(None),
                Some(rest) if rest.is_zero() => {
                    self.end(code::KEEP_ALIVE, End::Wrong(Wrong(code::KEEP_ALIVE)));
                    continue;
                }
                Some(rest) => Step::Rest(Some(clock::monotonic_ms() + rest.as_millis() as u64)),
            };
        }
    }

    /// Looks what there is for the client beside its keep-alive. True: something is to be said, or it is over.
    fn turn(&mut self, is_wanted: impl FnOnce(&Owner) -> bool) -> bool {
        if crate::worker::draining() || crate::worker::has_left() {
            self.end(code::SHUTTING_DOWN, End::Leaving);
            return true;
        }
        let Some(live) = &mut self.live else { return false };
        if is_wanted(&live.owner) {
            self.end(code::TAKEN_OVER, End::TakenOver);
            return true;
        }
        let mut out = Vec::new();
        if !live.send(hub::now(), &mut out) {
            self.end(code::QUOTA_EXCEEDED, End::Lost);
            return true;
        }
        self.say(&out);
        !out.is_empty()
    }

    fn welcome(&mut self, Opened { live, first }: Opened) {
        self.say(&first);
        self.live = Some(live);
        self.heard_ms = clock::monotonic_ms();
    }

    pub(super) fn say(&mut self, packets: &[u8]) {
        if self.link.unsent().is_empty() {
            self.took_ms = clock::monotonic_ms();
        }
        self.link.say(packets);
    }

    /// Says why the connection ends, if there are words for it, and ends it.
    pub(super) fn end(&mut self, reason: u8, end: End) {
        let mut out = Vec::new();
        if let Some(live) = &self.live {
            answer::disconnect(live.peer.version, reason, &mut out);
        }
        self.say(&out);
        self.link.say_end();
        self.over = Some(end);
    }

    fn poll(&mut self, kept: &mut Kept, socket: &mut Socket, timer: &Timer, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if departure::leaves_process() && kept.may_go() && self.may_go() && socket.may_freeze() {
                return Poll::Ready(End::Departs);
            }
            if let Poll::Ready(end) = ready!(self.poll_write(kept, socket, timer, cx)) {
                return Poll::Ready(end);
            }
            if let Some(over) = self.over.take() {
                return Poll::Ready(over);
            }
            if let Poll::Ready(end) = self.poll_client(kept, socket, cx) {
                return Poll::Ready(end);
            }
            if self.over.is_some() || !self.link.unsent().is_empty() {
                continue;
            }
            if self.turn(|owner| owner.is_wanted(cx)) {
                continue;
            }
            let Some(rest) = self.patience() else { return Poll::Pending };
            if rest.is_zero() {
                self.end(code::KEEP_ALIVE, End::Wrong(Wrong(code::KEEP_ALIVE)));
                continue;
            }
            timer.set(rest);
            ready!(timer.poll_expired(cx));
        }
    }

    /// How long the client may say nothing. None: for ever.
    fn patience(&self) -> Option<Duration> {
        let ms = self.live.as_ref().map_or(self.connect_timeout_ms.into(), |live| live.peer.keep_alive_ms);
        let left = (self.heard_ms + ms).saturating_sub(clock::monotonic_ms());
        (ms > 0).then_some(Duration::from_millis(left))
    }

    /// Writes what is to be written. `Pending` outside: the client is waited for. Inside: `Ready` is an end.
    fn poll_write(
        &mut self,
        kept: &mut Kept,
        socket: &mut Socket,
        timer: &Timer,
        cx: &mut Context<'_>,
    ) -> Poll<Poll<End>> {
        while !self.link.unsent().is_empty() {
            let rest = self.link.unsent();
            match socket.poll_write_with(cx, |s| s.try_write(rest, false)) {
                Poll::Ready(Ok(n)) => {
                    self.link.sent(n);
                    kept.sent += n as u64;
                    self.took_ms = clock::monotonic_ms();
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Poll::Ready(End::Gone(Some(e)))),
                Poll::Pending => {
                    if self.live.as_ref().is_some_and(|live| live.owner.is_wanted(cx)) {
                        return Poll::Ready(Poll::Ready(End::TakenOver));
                    }
                    let waited = Duration::from_millis(clock::monotonic_ms().saturating_sub(self.took_ms));
                    if waited >= self.send_timeout() || kept.client().is_taken() {
                        return Poll::Ready(Poll::Ready(End::Stalled));
                    }
                    timer.set(self.send_timeout() - waited);
                    ready!(timer.poll_expired(cx));
                }
            }
        }
        Poll::Ready(Poll::Pending)
    }

    /// Deals with what the client says. Ready: an end.
    fn poll_client(&mut self, kept: &mut Kept, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let is_new = self.link.has_news();
            if let Some(end) = self.take_packets() {
                return Poll::Ready(end);
            }
            if is_new && self.link.unsent().is_empty() {
                // Nothing goes back that an ACK could go with. A client that waits for it before it says more (Nagle) would wait 40 ms.
                let _ = rustix::net::sockopt::set_tcp_quickack(socket.as_fd(), true);
            }
            // The answers to what it has said come before anything else that it says.
            if self.over.is_some() || !self.link.unsent().is_empty() {
                return Poll::Pending;
            }
            if let Err(e) = ready!(socket.poll_readable(cx)) {
                return Poll::Ready(End::Gone(Some(e)));
            }
            let mut buffer = pool::take_buffer();
            let read = socket.poll_read(cx, &mut buffer);
            self.link.push(&buffer);
            kept.request_length += buffer.len() as u64;
            pool::give_buffer(buffer);
            match ready!(read) {
                Ok(0) => return Poll::Ready(End::Gone(None)),
                Ok(_) => self.heard_ms = clock::monotonic_ms(),
                Err(e) => return Poll::Ready(End::Gone(Some(e))),
            }
        }
    }

    /// Deals with the packets that are there, until their answers are a batch.
    fn take_packets(&mut self) -> Option<End> {
        let mut out = Vec::new();
        let mut end = None;
        while out.len() < BATCH && self.over.is_none() && end.is_none() {
            let max = self.live.as_ref().map_or(MAX_CONNECT as u64, |live| live.peer.max_in);
            let (first, body) = match self.link.next(max) {
                None => break,
                Some(Arrived::Packet(first, body)) => (first, body),
                Some(Arrived::Wrong(wrong)) => {
                    self.say(&std::mem::take(&mut out));
                    self.end(wrong.0, End::Wrong(wrong));
                    break;
                }
                Some(Arrived::Closed) => {
                    // Nothing follows the last frame.
                    out.clear();
                    self.over = Some(End::Gone(None));
                    break;
                }
            };
            let Some(live) = &mut self.live else {
                if first != CONNECT {
                    self.over = Some(End::Wrong(Wrong::PROTOCOL));
                    break;
                }
                end = Some(End::Connect(whole(first, &body)));
                continue;
            };
            match live.packet(first, &body, &mut out) {
                Ok(After::GoOn) => {}
                Ok(After::Ask) => end = Some(End::Ask(first, body)),
                Ok(After::Goodbye { will }) => {
                    self.say(&std::mem::take(&mut out));
                    self.link.say_end();
                    self.over = Some(End::Goodbye { will });
                }
                Err(wrong) => {
                    self.say(&std::mem::take(&mut out));
                    self.end(wrong.0, End::Wrong(wrong));
                }
            }
        }
        self.say(&out);
        end
    }
}

/// There are millions of these: 49 days are enough.
fn ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// A packet with its head, for who reads all of it.
fn whole(first: u8, body: &[u8]) -> Vec<u8> {
    let mut all = vec![first];
    let mut rest = body.len();
    loop {
        let more = if rest > 127 { 0x80 } else { 0 };
        all.push((rest & 0x7f) as u8 | more);
        rest >>= 7;
        if more == 0 {
            break;
        }
    }
    all.extend_from_slice(body);
    all
}

/// The request is there again: it is over, or somebody is asked.
async fn ended(r: &mut Request, mut held: Held, end: End) -> Verdict {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.nchan;
    let end = match end {
        End::Connect(bytes) => {
            connected(r, conf, &mut held, &bytes).await;
            return go_on(r, held);
        }
        End::Ask(first, body) => {
            asked::asked(r, conf, &mut held, first, &body).await;
            return go_on(r, held);
        }
        End::Unparked => return go_on(r, held),
        end => end,
    };
    let mut how = Left::Badly;
    match &end {
        End::Goodbye { will: false } => how = Left::Well,
        End::TakenOver => {
            log_error!(r, Info, "another connection has taken the session of a client of MQTT over");
            how = Left::TakenOver;
        }
        End::Wrong(Wrong(code::KEEP_ALIVE)) => log_error!(r, Info, "client timed out (110: Connection timed out)"),
        End::Wrong(Wrong(reason)) => {
            log_error!(r, Info, "a client of MQTT is sent away with reason code 0x{reason:02x}")
        }
        End::Lost => subscribe::too_slow(r, subscribe::LOST),
        End::Stalled => subscribe::too_slow(r, "it has taken nothing for send_timeout"),
        End::Gone(Some(e)) => log_error!(r, Info, "client closed connection ({})", crate::log::os_error(e)),
        _ => {}
    }
    r.flow.keepalive = false;
    r.flow.aborted = matches!(end, End::Gone(_) | End::Stalled);
    r.flow.lingering_close = !r.flow.aborted;
    r.answer.done = true;
    if let Some(live) = held.live {
        asked::gone(r, conf, &live);
        left(*live, how);
    }
    Verdict::Answered
}

/// A WebSocket's CONNECT has come.
async fn connected(r: &mut Request, conf: &Conf, held: &mut Held, bytes: &[u8]) {
    let (mut version, mut reason) = (Version::V3, code::MALFORMED);
    if let Ok(Some(connect)) = connect::parse(bytes) {
        version = version_of(&connect);
        let opened = match open::note_credentials(r, conf, bytes, &connect) {
            Ok(()) => open::open(r, conf, bytes, &connect).await,
            Err(wrong) => Err(wrong),
        };
        match opened {
            Ok(opened) => return held.welcome(opened),
            Err(Wrong(why)) => reason = why,
        }
    }
    let mut out = Vec::new();
    answer::refusal(version, reason, &mut out);
    held.say(&out);
    held.end(reason, End::Wrong(Wrong(reason)));
}
