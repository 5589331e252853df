//! What threads share of a guard, and the bans of all. Outlives reloads, as long as the guard's limits stay as they are. From: `judge`. To: the API, `/metrics`.

use crate::connection::Address;
use crate::master::{Ban, BanSet, Reporter};
use crate::status::tally::Tally;
use runtime::clock;
use shield::attack::{Attack, Seen};
use shield::bans::{Bans, subject};
use shield::hash::Keyed;
use shield::rates::Rates;
use shield::top::Top;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// Keys of each kind that are known as frequent.
const TALKERS: usize = 64;
/// Addresses that are banned at a time at most.
pub const MAX_BANS: usize = 65_536;

/// What is counted of a guard; the numbers' places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Requests that were looked at.
    Requests,
    /// Left alone: `pass`.
    Passed,
    /// Brought a challenge's answer.
    Proved,
    /// Above a rate, and only logged.
    Logged,
    /// Waited.
    Delayed,
    /// Redirected with a cookie, or given work to do.
    Challenged,
    /// 429
    Refused,
    /// 444
    Closed,
    /// Addresses that were banned.
    Banned,
    /// Requests from banned addresses, on connections that were open.
    FromBanned,
}

/// What the numbers are called, in their order.
pub const EVENTS: [&str; 10] =
    ["requests", "passed", "proved", "logged", "delayed", "challenged", "refused", "closed", "banned", "from_banned"];

/// What threads share of a guard.
#[derive(Debug)]
pub struct State {
    /// See [`Event`].
    pub counts: Tally<10>,
    /// For each limit: its table, and requests that were above it.
    pub(super) limits: Vec<Arc<Shared>>,
    pub(super) hasher: Keyed,
    /// Challenges that addresses have left unanswered.
    pub(super) unanswered: Rates,
    /// Addresses of which somebody has answered one.
    pub(super) answered: Rates,
    /// Cookies that addresses were given by redirect.
    pub(super) taken: Rates,
    /// Requests that wait.
    pub(super) waiting: AtomicU32,
    /// Lines of this second: the second, and how many, in one word.
    pub(super) lines: AtomicU64,
    /// Whether there is an attack.
    pub attack: Attack,
    /// Addresses that come most often.
    pub(super) addresses: Mutex<Top<IpAddr>>,
    /// What they ask for.
    pub(super) urls: Mutex<Top<Vec<u8>>>,
}

/// What threads share of a limit.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) text: Box<str>,
    pub(super) rates: Rates,
    pub(super) above: AtomicU64,
}

impl Default for State {
    fn default() -> State {
        State::new(&[])
    }
}

/// States as long as a configuration uses them, by the guard's name.
static STATES: Mutex<Vec<(Box<str>, Weak<State>)>> = Mutex::new(Vec::new());

impl State {
    fn new(limits: &[&str]) -> State {
        let shared =
            |text: &&str| Arc::new(Shared { text: (*text).into(), rates: Rates::default(), above: AtomicU64::new(0) });
        State {
            counts: Tally::new(),
            limits: limits.iter().map(shared).collect(),
            hasher: Keyed::random(),
            unanswered: Rates::default(),
            answered: Rates::default(),
            taken: Rates::default(),
            waiting: AtomicU32::new(0),
            lines: AtomicU64::new(0),
            attack: Attack::default(),
            addresses: Mutex::new(Top::new(TALKERS)),
            urls: Mutex::new(Top::new(TALKERS)),
        }
    }

    /// The state of a guard with these limits: the one in use, or a new one.
    pub(super) fn find(name: &str, limits: &[&str]) -> Arc<State> {
        let mut states = STATES.lock().unwrap_or_else(PoisonError::into_inner);
        states.retain(|(_, state)| state.strong_count() > 0);
        let same = |state: &Arc<State>| state.limits.iter().map(|l| &*l.text).eq(limits.iter().copied());
        let known = states.iter().rev().filter(|(n, _)| **n == *name).find_map(|(_, s)| s.upgrade().filter(same));
        known.unwrap_or_else(|| {
            let state = Arc::new(State::new(limits));
            states.push((name.into(), Arc::downgrade(&state)));
            state
        })
    }

    /// Each limit's text, and how many requests were above it.
    pub fn above(&self) -> Vec<(String, u64)> {
        let of =
            |shared: &Arc<Shared>| (shared.text.to_string(), shared.above.load(std::sync::atomic::Ordering::Relaxed));
        self.limits.iter().map(of).collect()
    }

    /// Addresses, and pages, that come most often, with their weight of the last time.
    pub fn talkers(&self, most: usize) -> [Vec<(String, u64)>; 2] {
        let now = clock::monotonic_ms();
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner).most(most, now);
        let urls = self.urls.lock().unwrap_or_else(PoisonError::into_inner).most(most, now);
        [
            addresses.into_iter().map(|(address, n)| (address.to_string(), n)).collect(),
            urls.into_iter().map(|(url, n)| (String::from_utf8_lossy(&url).into_owned(), n)).collect(),
        ]
    }

    /// An address is not banned anew for what it did before, for a minute.
    pub fn forgive(&self, subject: u128) {
        let until = clock::monotonic_us() + 60_000_000;
        self.answered.mark(self.hasher.number(subject), until);
    }

    /// Sets what was counted to zero.
    pub fn reset(&self) {
        self.counts.reset(&[]);
        self.limits.iter().for_each(|limit| limit.above.store(0, std::sync::atomic::Ordering::Relaxed));
    }
}

/// The states that configurations use, by their guards' names.
pub(super) fn alive() -> Vec<(Box<str>, Arc<State>)> {
    let states = STATES.lock().unwrap_or_else(PoisonError::into_inner);
    states.iter().filter_map(|(name, state)| Some((name.clone(), state.upgrade()?))).collect()
}

/// What was counted of the whole process, for attacks.
pub(super) fn seen() -> Seen {
    let all = crate::status::requests::totals(&crate::status::requests::ALL);
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Seen {
        requests: all.requests,
        answers: all.responses.classes.iter().sum(),
        errors: all.responses.classes[4],
        active: all.processing,
        cpu_us: time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000,
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
    }
}

/// The bans of all guards.
pub static BANS: LazyLock<Bans> = LazyLock::new(|| Bans::new(MAX_BANS));

/// Connections closed at accept.
pub static AT_ACCEPT: Tally<1> = Tally::new();

/// How the master is told of bans that go into the kernel.
static REPORTER: Mutex<Option<Reporter>> = Mutex::new(None);

/// Whom to tell.
pub fn report_to(reporter: Reporter) {
    *REPORTER.lock().unwrap_or_else(PoisonError::into_inner) = Some(reporter);
}

/// Tells the master of a ban, or of its end.
pub fn tell(set: &super::Set, address: IpAddr, ms: u64) {
    let reporter = REPORTER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let name = if address.is_ipv4() { Some(&set.v4) } else { set.v6.as_ref() };
    if let (Some(reporter), Some(name)) = (reporter, name) {
        let set = BanSet { family: set.family, table: set.table.clone(), name: name.clone() };
        reporter.ban(Ban { set, address, ms });
    }
}

/// Whether a connection from there is to be closed. Costs a load while nobody is banned.
#[inline]
pub fn is_banned(remote: &Address) -> bool {
    let Address::Inet(address) = remote else { return false };
    let banned = BANS.has(|| subject(address.ip()), clock::wall_ms);
    if banned {
        AT_ACCEPT.count(0);
    }
    banned
}
