//! Clients that are waited for and too slow on purpose: `client_header_min_rate` and its like. Around: whoever waits for a client's bytes, or for it to take
//! some. A client below its rate holds one of the places that its address has (`slow_connections_per_address`). Costs nothing where no rate is set.

use super::incoming::{Filled, Incoming};
use super::{Address, Client};
use runtime::clock;
use runtime::timer::Timer;
use shield::bans::subject;
use shield::pace::{Judged, MinRate, Pace};
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// A client that has said nothing for so long after it connected has nothing on its way.
const SILENT_MS: u64 = 1000;

/// Requests of each address that are below their rate now. An entry goes with its last request.
static SLOW: Mutex<Option<HashMap<u128, u32>>> = Mutex::new(None);

/// One transfer that is watched.
pub struct Watch {
    rule: MinRate,
    /// Places of an address; 0: any number.
    places: u32,
    pace: Pace,
    timer: Timer,
    place: Option<Place>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// A client is too slow: what an answer's transfer ends with.
#[derive(Clone, Copy, Debug)]
pub struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TOO_SLOW)
    }
}

impl std::error::Error for TooSlow {}

/// What the log says.
pub const TOO_SLOW: &str = "client is too slow";

/// One of an address's places.
struct Place(u128);

impl Place {
    fn take(client: &Client, places: u32) -> Option<Place> {
        let Address::Inet(address) = &*client.remote.borrow() else { return Some(Place(0)) };
        let subject = subject(address.ip());
        let mut guard = SLOW.lock().unwrap_or_else(PoisonError::into_inner);
        let slow = guard.get_or_insert_default().entry(subject).or_default();
        if places > 0 && *slow >= places {
            return None;
        }
        *slow += 1;
        Some(Place(subject))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut guard = SLOW.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slow) = guard.as_mut() else { return };
        if let Some(n) = slow.get_mut(&self.0) {
            *n -= 1;
            if *n == 0 {
                slow.remove(&self.0);
            }
        }
    }
}

/// Requests that are below their rate now.
pub fn total() -> u64 {
    let guard = SLOW.lock().unwrap_or_else(PoisonError::into_inner);
    guard.iter().flat_map(HashMap::values).map(|n| u64::from(*n)).sum()
}

impl Watch {
    /// For a transfer with a least rate; none without.
    #[inline]
    pub fn new(rule: MinRate, places: u32) -> Option<Box<Watch>> {
        rule.is_set().then(|| Box::new(Watch { rule, places, pace: Pace::default(), timer: Timer::new(), place: None }))
    }

    /// For a connection that has not said anything: it holds a place once it is silent for a second, however long it may be so.
    pub fn of_silence(rule: MinRate, places: u32) -> Option<Box<Watch>> {
        let rule = MinRate { grace_ms: u64::MAX, ..rule };
        if places > 0 { Watch::new(rule, places) } else { None }
    }

    /// All bytes count that [`Watch::poll`] is told of, not only those that come from now on.
    pub fn of_all(mut self: Box<Watch>) -> Box<Watch> {
        self.pace = Pace::of_all();
        self
    }

    /// The running task waits for the client, whose transfer has come to `bytes`. Ready: it is too slow.
    pub fn poll(&mut self, client: &Client, cx: &mut Context<'_>, mut bytes: impl FnMut() -> u64) -> Poll<()> {
        if self.rule.grace_ms == u64::MAX && self.place.is_some() {
            // Silence may last: there is nothing to look at any more.
            return Poll::Pending;
        }
        loop {
            let now = clock::monotonic_ms();
            self.pace.wait(&mut bytes, now);
            let left = self.pace.left_ms(self.rule, now);
            if left > 0 {
                self.timer.set(Duration::from_millis(left));
                std::task::ready!(self.timer.poll_expired(cx));
                if self.pace.left_ms(self.rule, clock::monotonic_ms()) > 0 {
                    // The clock of a turn stands still: the rest is for the next one.
                    runtime::wake(runtime::current());
                    return Poll::Pending;
                }
                continue;
            }
            match self.pace.judge(self.rule, bytes(), now) {
                Judged::Fine => self.place = None,
                Judged::TooSlow => return Poll::Ready(()),
                Judged::Slow if self.place.is_some() => {}
                Judged::Slow => match Place::take(client, self.places) {
                    Some(place) => self.place = Some(place),
                    None => return Poll::Ready(()),
                },
            }
        }
    }

    /// The client is not waited for now.
    pub fn pause(&mut self) {
        self.pace.pause(clock::monotonic_ms());
    }
}

/// Waits for the first bytes of a connection, which holds one of its address's places meanwhile. None: there is none left. A shutdown does not wait
/// for who says nothing.
pub fn fill_silent(
    incoming: &mut Incoming,
    client: &Client,
    silence: &mut Option<Box<Watch>>,
) -> impl Future<Output = Option<Filled>> {
    poll_fn(move |cx| {
        let polled = match (poll_unless_over(incoming, client, cx), &mut *silence) {
            (Poll::Ready(filled), _) => Poll::Ready(Some(filled)),
            (Poll::Pending, Some(watch)) => watch.poll(client, cx, || 0).map(|()| None),
            (Poll::Pending, None) => Poll::Pending,
        };
        if polled.is_ready() {
            client.works();
        }
        polled
    })
}

/// [`Incoming::poll_filled`]; where the thread ends, a connection that has said nothing for so long that nothing is on its way is over.
fn poll_unless_over(incoming: &mut Incoming, client: &Client, cx: &mut Context<'_>) -> Poll<Filled> {
    let filled = incoming.poll_filled(client, cx);
    let is_read = matches!(filled, Poll::Ready(Filled::Read(_)));
    if is_read || !crate::worker::draining() || !incoming.unread().is_empty() {
        return filled;
    }
    let silent_ms = clock::wall_ms().saturating_sub(client.started_ms);
    let left_ms = SILENT_MS.saturating_sub(silent_ms);
    if left_ms == 0 || filled.is_ready() {
        return Poll::Ready(Filled::Taken);
    }
    incoming.timer.shorten(Duration::from_millis(left_ms));
    incoming.timer.poll_expired(cx).map(|()| Filled::Taken)
}
