//! A request under a guard: which limits it is above, and what becomes of it. In the rewrite phase, before everything else that a location does. Takes no lock that
//! it would wait for, but for a ban.

use super::challenge;
use super::crawlers;
use super::state::{self, BANS, Event};
use super::{Action, Check, CheckKey, Guard, Key, Limit, Use};
use crate::config::cidr::Plain;
use crate::config::complex::Complex;
use crate::connection::Address;
use crate::log::error::Level;
use crate::modules::refusals::refused;
use crate::modules::variables;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Handler, Verdict, Waiting};
use crate::request::{Request, Text};
use crate::upstream::names;
use runtime::clock;
use shield::attack::Triggers;
use shield::bans::{address, subject};
use shield::challenge::{Kind, Proof};
use shield::fingerprint::Order;
use shield::hash::Keyed;
use shield::rates::{Above, Rate};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// One request of so many is looked at for the lists of talkers.
const SAMPLED: u64 = 16;
/// So much of a URL is shown in a list of talkers, bytes.
const LONGEST_URL: usize = 120;
/// Requests of a guard that wait at a time.
const MAX_WAITING: u32 = 1000;
/// Lines of a guard in a second.
const LINES: u64 = 100;
/// So long after somebody at an address has answered a challenge it is not banned for those that others leave, µs.
const ANSWERED_US: u64 = 600_000_000;

/// What a guard has made of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    judged: bool,
    /// Which guard, and which of its limits.
    limit: Option<(usize, usize)>,
    /// `$guard_action`
    pub action: Option<Done>,
    delay_ms: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Nothing: it is within all limits, or left alone.
    Passed,
    /// The same, of a client that has answered a challenge.
    Proved,
    /// It was written down.
    Logged,
    /// It waited.
    Delayed,
    /// It was challenged.
    Challenged,
    /// 429
    Refused,
    /// 444
    Closed,
    /// 444, and its address is banned.
    Banned,
}

impl Done {
    /// `$guard_action`
    pub fn past(self) -> &'static str {
        match self {
            Done::Passed => "passed",
            Done::Proved => "proved",
            Done::Logged => "logged",
            Done::Delayed => "delayed",
            Done::Challenged => "challenged",
            Done::Refused => "refused",
            Done::Closed => "closed",
            Done::Banned => "banned",
        }
    }

    fn event(self) -> Event {
        match self {
            Done::Passed => Event::Passed,
            Done::Proved => Event::Proved,
            Done::Logged => Event::Logged,
            Done::Delayed => Event::Delayed,
            Done::Challenged => Event::Challenged,
            Done::Refused => Event::Refused,
            Done::Closed => Event::Closed,
            Done::Banned => Event::Banned,
        }
    }
}

/// `$guard_reason`
pub(super) fn reason(r: &mut Request) -> Option<Text> {
    let (guard, limit) = r.ctx.guard.limit?;
    let snapshot = r.snapshot.clone();
    let limit = snapshot.main.guard.get(guard)?.limits.get(limit);
    let text = limit.map_or("unanswered challenges", |limit| &limit.text);
    Some(r.text(text.as_bytes()))
}

/// None: a unix socket.
fn ip_of(r: &Request) -> Option<IpAddr> {
    match &*r.client.remote.borrow() {
        Address::Inet(address) => Some(address.ip()),
        Address::Unix(_) => None,
    }
}

/// What is known of who asks; made as far as it is needed.
pub(super) struct Who {
    /// Else it comes from a unix socket.
    pub(super) has_address: bool,
    /// The address as bans and challenges know it.
    pub(super) subject: u128,
    proof: Option<Proof>,
    headers: Option<u64>,
}

/// A bit for each header line whose name alone says something of the program. Cookies come and go, so do conditions and ranges; `User-Agent` says more by its value.
const TELLING: u64 = !(K::Other.bit() | K::UserAgent.bit() | K::Cookie.bit() | K::Referer.bit() | CHANGING);
/// Those that come and go with what is asked.
const CHANGING: u64 = K::ContentLength.bit()
    | K::ContentType.bit()
    | K::Range.bit()
    | K::IfNoneMatch.bit()
    | K::IfModifiedSince.bit()
    | K::CacheControl.bit();

impl Who {
    #[inline]
    fn of(r: &Request, guard: &Guard) -> Who {
        let (has_address, subject) = match &*r.client.remote.borrow() {
            Address::Inet(address) => (true, subject(address.ip())),
            Address::Unix(_) => (false, 0),
        };
        Who { has_address, subject, proof: challenge::proof(r, guard, subject), headers: None }
    }

    #[inline]
    fn headers(&mut self, r: &Request, keyed: Keyed) -> u64 {
        if let Some(known) = self.headers {
            return known;
        }
        let made = program(r, keyed);
        self.headers = Some(made);
        made
    }
}

/// Fingerprints that a thread remembers, each with what it is known again by.
const REMEMBERED: usize = 1024;

thread_local! {
    static FINGERPRINTS: [Cell<(u64, u64)>; REMEMBERED] = const { [const { Cell::new((0, 0)) }; REMEMBERED] };
}

/// Which program asks, by its header lines. A connection's requests mostly have the same: where there are as many lines as in the one before, of the same length
/// altogether, they are taken to be the same. A client gains nothing by others of that length: all are counted as one program. What comes through a proxy
/// is of many programs.
#[inline]
fn program(r: &Request, keyed: Keyed) -> u64 {
    let lines = r.head.headers.lines();
    let (Some(first), Some(last), None) = (lines.first(), lines.last(), &r.ctx.realip) else {
        return fingerprint(r, keyed);
    };
    let length = last.value.end.wrapping_sub(first.name.start);
    let number = r.client.number;
    let shape = keyed.masked((lines.len() as u64) << 48 ^ u64::from(length) << 24 ^ number);
    FINGERPRINTS.with(|remembered| {
        let place = &remembered[number as usize % REMEMBERED];
        let (known, hash) = place.get();
        if known == shape {
            return hash;
        }
        let hash = fingerprint(r, keyed);
        place.set((shape, hash));
        hash
    })
}

/// Which program asks, by all of its header lines.
#[inline(never)]
fn fingerprint(r: &Request, keyed: Keyed) -> u64 {
    let (mut order, mut agent) = (Order::new(keyed), &b""[..]);
    for line in r.head.headers.lines() {
        match line.known {
            known if TELLING & known.bit() != 0 => order.known(known as u8),
            K::Other => order.other(r.arena.span(line.name)),
            K::UserAgent => {
                order.known(K::UserAgent as u8);
                agent = r.arena.span(line.value);
            }
            _ => {}
        }
    }
    order.of_agent(agent)
}

/// The handler.
pub fn handler(r: &mut Request) -> Verdict {
    if r.ctx.guard.judged || !r.is_main() {
        return Verdict::Decline;
    }
    let snapshot = r.snapshot.clone();
    match &*snapshot.location(r.location).conf.guard.guard {
        Some(used) => used.guard().map_or(Verdict::Decline, |guard| judge(r, guard, used.index)),
        None => Verdict::Decline,
    }
}

fn judge(r: &mut Request, guard: &Guard, index: usize) -> Verdict {
    r.ctx.guard.judged = true;
    let counts = guard.state.counts.mine();
    let number = counts.read(Event::Requests as usize) + 1;
    counts.set(Event::Requests as usize, number);
    if !(guard.pass.is_empty() && guard.crawlers.is_empty()) && is_known(r, guard) {
        counts.add(Event::Passed as usize, 1);
        r.ctx.guard.action = Some(Done::Passed);
        return Verdict::Decline;
    }
    let mut who = Who::of(r, guard);
    if !guard.dry_run && BANS.has(|| who.subject, clock::wall_ms) {
        counts.add(Event::FromBanned as usize, 1);
        r.ctx.guard.action = Some(Done::Banned);
        return Verdict::Status(444);
    }
    if number.is_multiple_of(SAMPLED) {
        notice(r, guard);
    }
    let is_attack = guard.attack.as_ref().is_some_and(|triggers| is_attacked(guard, triggers));
    let worst = severest(r, guard, &mut who, is_attack);
    let proved = who.proof.is_some();
    if proved {
        guard.state.answered.mark(guard.state.hasher.number(who.subject), clock::monotonic_us() + ANSWERED_US);
    }
    let Some((number, excess)) = worst else {
        let done = if proved { Done::Proved } else { Done::Passed };
        if proved {
            counts.add(Event::Proved as usize, 1);
        }
        r.ctx.guard.action = Some(done);
        return Verdict::Decline;
    };
    r.ctx.guard.limit = Some((index, number));
    act(r, guard, &who, &guard.limits[number], excess)
}

/// Whether there is an attack now. Says when one begins.
fn is_attacked(guard: &Guard, triggers: &Triggers) -> bool {
    let now = clock::monotonic_ms();
    if let Some(why) = guard.state.attack.look(triggers, state::seen, now) {
        let name = &guard.name;
        crate::log::process_line(guard.log_level, format_args!("guard \"{name}\": under attack, by {why}"));
    }
    guard.state.attack.is_on(now)
}

/// Whether it is left alone.
fn is_known(r: &mut Request, guard: &Guard) -> bool {
    guard.pass.iter().any(|text| is_true(r, text)) || !guard.crawlers.is_empty() && is_crawler(r, guard)
}

/// Whether it comes from a crawler whose address was verified. Has others that call themselves so asked about, beside the request.
fn is_crawler(r: &Request, guard: &Guard) -> bool {
    let (Some(ip), Some(agent)) = (ip_of(r), r.head.headers.find(K::UserAgent)) else { return false };
    let (is_verified, question) = crawlers::look(&guard.crawlers, r.get(agent), ip);
    let Some(question) = question else { return is_verified };
    let core = &r.conf().core;
    let Some(config) = (*core.resolver).clone() else {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Relaxed) {
            crate::log::process_line(Level::Error, format_args!("no resolver defined to verify crawlers"));
        }
        question.give_up();
        return is_verified;
    };
    let timeout = *core.resolver_timeout;
    crate::service::spawn(move || async move {
        let ip = question.ip;
        if let Some(name) = question.answer(names::resolver(&config), timeout).await {
            let name = String::from_utf8_lossy(&name);
            crate::log::process_line(Level::Info, format_args!("{ip} is verified as crawler {name}"));
        }
    });
    is_verified
}

fn is_true(r: &mut Request, text: &Complex) -> bool {
    let value = text.eval(r);
    !matches!(r.get(value), b"" | b"0")
}

/// For the lists of talkers: some requests try a lock that they do not wait for.
#[cold]
fn notice(r: &Request, guard: &Guard) {
    let now = clock::monotonic_ms();
    if let (Some(ip), Ok(mut top)) = (ip_of(r), guard.state.addresses.try_lock()) {
        top.count(&ip.to_canonical(), SAMPLED, now);
    }
    if let Ok(mut top) = guard.state.urls.try_lock() {
        let url = r.get(r.head.uri);
        top.count(&url[..url.len().min(LONGEST_URL)], SAMPLED, now);
    }
}

/// The severest action of all limits that the request is above, by the limit's number, with the excess.
#[inline]
fn severest(r: &mut Request, guard: &Guard, who: &mut Who, is_attack: bool) -> Option<(usize, u64)> {
    let now_us = clock::monotonic_us();
    let calm = if is_attack { 0 } else { Check::CALM };
    let kind = calm
        | match who.proof {
            None => Check::UNKNOWN,
            Some(Proof { kind: Kind::Cookie, .. }) => Check::COOKIE,
            Some(Proof { kind: Kind::Work(_), .. }) => Check::WORK,
        };
    let mut worst: Option<(usize, u64)> = None;
    for check in &guard.checks {
        if check.left_out & kind != 0 {
            continue;
        }
        let Some(key) = key_of(r, guard, check, who) else { continue };
        if let Some(excess) = check.shared.rates.count(key, check.rate, check.above, now_us) {
            worst = Some(worse(guard, check, worst, excess));
        }
    }
    worst
}

/// Counts that a request is above a limit. The severer of two actions; the first, where they are the same.
#[cold]
fn worse(guard: &Guard, check: &Check, worst: Option<(usize, u64)>, excess: u64) -> (usize, u64) {
    check.shared.above.fetch_add(1, Relaxed);
    let number = guard.number_of(check);
    match worst {
        Some(worst) if guard.limits[worst.0].action >= guard.limits[number].action => worst,
        _ => (number, excess),
    }
}

/// What a limit counts the request by. Each has a table of its own, so that no two kinds of keys meet.
#[inline]
fn key_of(r: &mut Request, guard: &Guard, check: &Check, who: &mut Who) -> Option<u64> {
    let hasher = guard.state.hasher;
    Some(match check.key {
        CheckKey::Address => hasher.number(who.subject),
        CheckKey::Prefix => hasher.number(prefix(ip_of(r)?)),
        CheckKey::Client => match who.proof {
            Some(proof) => hasher.number(u128::from(proof.id)),
            None => hasher.number(who.subject) ^ who.headers(r, hasher),
        },
        // By the server that answers: a client says `Host` as it likes.
        CheckKey::Url => hasher.numbered(u64::from(r.server.0), r.get(r.head.uri)),
        CheckKey::Headers => who.headers(r, hasher),
        CheckKey::Text => return text_key(r, guard, check),
    })
}

fn text_key(r: &mut Request, guard: &Guard, check: &Check) -> Option<u64> {
    let number = guard.number_of(check);
    let (Key::Text(text) | Key::Ja4(text)) = &guard.limits[number].key else { return None };
    let text = text.eval(r);
    let text = r.get(text);
    (!text.is_empty()).then(|| guard.state.hasher.numbered(0, text))
}

/// Of IPv4 a /24, of IPv6 a /48.
fn prefix(ip: IpAddr) -> u128 {
    match Plain::of_ip(ip) {
        Plain::V4(bits) => u128::from(bits >> 8),
        Plain::V6(bits) => bits >> 80,
        Plain::Unix => 0,
    }
}

/// Does what a limit says.
fn act(r: &mut Request, guard: &Guard, who: &Who, limit: &Limit, excess: u64) -> Verdict {
    let action = match limit.action {
        // A proof of work is for pages.
        Action::Work if !challenge::is_page(r) => Action::Refuse,
        Action::Delay(_) if guard.state.waiting.load(Relaxed) >= MAX_WAITING => Action::Refuse,
        Action::Challenge | Action::Work if leaves_challenges(r, guard, who) => Action::Ban(guard.ban_ms),
        // Each cookie makes a client with limits of its own: the first of an address are free.
        Action::Challenge if has_taken_enough(guard, who) => match challenge::is_page(r) {
            true => Action::Work,
            false => Action::Refuse,
        },
        action => action,
    };
    let done = match action {
        Action::Log => Done::Logged,
        Action::Delay(_) => Done::Delayed,
        Action::Challenge | Action::Work => Done::Challenged,
        Action::Refuse => Done::Refused,
        Action::Close => Done::Closed,
        Action::Ban(_) => Done::Banned,
    };
    r.ctx.guard.action = Some(done);
    guard.state.counts.count(done.event() as usize);
    say(r, guard, done, limit, excess);
    if guard.dry_run {
        return Verdict::Decline;
    }
    match action {
        Action::Log => Verdict::Decline,
        Action::Delay(ms) => {
            r.ctx.guard.delay_ms = ms;
            Verdict::Decline
        }
        Action::Challenge => challenge::redirect(r, guard, who),
        Action::Work => challenge::work(r, guard, who),
        Action::Refuse => {
            let seconds = crate::text!(r, "{}", guard.retry_after_s);
            r.answer.headers.push(Text::from("Retry-After"), seconds);
            let name = &guard.name;
            refused(r, 429, "guard", format_args!("guard \"{name}\": {excess} above {}", limit.text));
            Verdict::Status(429)
        }
        Action::Close => Verdict::Status(444),
        Action::Ban(ms) => {
            ban(r, guard, who.subject, &limit.text, ms);
            Verdict::Status(444)
        }
    }
}

/// Whether the address has left too many challenges unanswered, with this one.
fn leaves_challenges(r: &mut Request, guard: &Guard, who: &Who) -> bool {
    let (Some(most), true) = (guard.unanswered, who.has_address) else { return false };
    let (now_us, address) = (clock::monotonic_us(), guard.state.hasher.number(who.subject));
    let rate = Rate::new(most * 1000 / 60, most);
    let leaves = guard.state.unanswered.count(address, rate, Above::Counted, now_us).is_some()
        && guard.state.answered.level_us(address, now_us) == 0;
    if leaves && let Some((index, _)) = r.ctx.guard.limit {
        r.ctx.guard.limit = Some((index, usize::MAX));
    }
    leaves
}

/// Whether the address was given as many cookies by redirect as it is; if not, it is given one more.
fn has_taken_enough(guard: &Guard, who: &Who) -> bool {
    if !who.has_address {
        return false;
    }
    let interval_us = (guard.valid_s.saturating_mul(1_000_000) / guard.per_address).max(1);
    let rate = Rate::every(interval_us, guard.per_address - 1);
    let address = guard.state.hasher.number(who.subject);
    guard.state.taken.count(address, rate, Above::Dropped, clock::monotonic_us()).is_some()
}

fn ban(r: &Request, guard: &Guard, subject: u128, limit: &str, ms: u64) {
    let Some(ip) = ip_of(r) else { return };
    let now = clock::wall_ms();
    let reason = format!("guard \"{}\": {limit}", guard.name);
    if BANS.add(subject, now + ms, &reason, now) {
        let client = ip.to_canonical();
        crate::log::process_line(guard.log_level, format_args!("{reason}: {client} is banned for {} s", ms / 1000));
        if let Some(set) = &guard.nftables {
            state::tell(set, address(subject), ms);
        }
    }
}

/// Writes a line, unless there were many in this second.
fn say(r: &mut Request, guard: &Guard, done: Done, limit: &Limit, excess: u64) {
    if !r.logs(guard.log_level) {
        return;
    }
    let (second, lines) = ((clock::monotonic_ms() / 1000) & 0xffff_ffff, &guard.state.lines);
    let before = lines.load(Relaxed);
    let count = if before >> 32 == second { (before & 0xffff_ffff) + 1 } else { 1 };
    lines.store(second << 32 | count, Relaxed);
    if count > LINES {
        return;
    }
    let id = variables::request_id(r).unwrap_or(Text::EMPTY);
    let id = String::from_utf8_lossy(r.get(id)).into_owned();
    let (name, dry) = (&guard.name, if guard.dry_run { ", dry run" } else { "" });
    r.write_log(
        guard.log_level,
        format_args!("guard \"{name}\": {}{dry}, {excess} above {}, id: {id}", done.past(), limit.text),
    );
}

/// Waits as long as [`handler`] has said.
pub const DELAY: Handler = Handler::Later(|r| r.ctx.guard.delay_ms > 0, |r| Box::pin(wait(r)) as Waiting<'_>);

/// Counts a request that waits.
struct Waits(Arc<state::State>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

async fn wait(r: &mut Request) -> Verdict {
    let delay = Duration::from_millis(std::mem::take(&mut r.ctx.guard.delay_ms));
    let snapshot = r.snapshot.clone();
    let used = (*snapshot.location(r.location).conf.guard.guard).as_ref();
    let Some(guard) = used.and_then(Use::guard) else { return Verdict::Decline };
    guard.state.waiting.fetch_add(1, Relaxed);
    let _waits = Waits(guard.state.clone());
    crate::request::flow::delay(r, delay).await
}
