//! Where the time of requests goes: each is in one part at a time, and a part that ends adds what it took. From: `request` and `upstream`,
//! which say what is waited for, and `connection` (accept, TLS). To: the API (`/ironweir/time`), `ironweir why`.
//!
//! The clock is that of the thread's turns, so that changing parts costs an addition; what a thread does within one turn counts for
//! nobody's part (`turns` shows how long those take).

use super::tally::tally_of_program;
use runtime::clock;
use std::cell::Cell;
use std::time::Instant;

/// What a request waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// The rest of its head.
    Head,
    /// Its body, from the client.
    Body,
    /// Everything in the server itself: phases, delays of limits, subrequests, locks of caches, files.
    #[default]
    Own,
    /// A peer with room (`queue`).
    Queue,
    /// A connection to a peer, with its TLS handshake.
    Connect,
    /// The first byte of the peer's answer.
    FirstByte,
    /// The rest of the peer's answer.
    Answer,
    /// The client, which takes the answer.
    Client,
}

/// The parts' names in the API, in order; the last two are of connections, before they have a request.
pub const NAMES: [&str; 10] =
    ["head", "body", "own", "queue", "connect", "first_byte", "answer", "client", "accept", "tls"];
/// Those of a request.
const OF_REQUESTS: usize = 8;
/// Connections that waited to be accepted; handshakes.
const ACCEPT: usize = 8;
const TLS: usize = 9;
const PARTS: usize = NAMES.len();

/// Behind the parts' sums: how many requests there were.
const REQUESTS: usize = PARTS;

tally_of_program! { static SPENT_US: [PARTS + 1], mine }

/// One accepted connection of so many is asked after.
const SAMPLED: u32 = 16;

/// The time of one request.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    part: Part,
    /// When the part began, microseconds of the monotonic clock; 0: the clock does not run.
    since_us: u64,
    us: [u32; OF_REQUESTS],
}

impl Spent {
    /// The clock of a request whose head is there. `head_us`: how long that took.
    pub fn begin(head_us: u64) -> Spent {
        let mut us = [0; OF_REQUESTS];
        us[Part::Head as usize] = u32::try_from(head_us).unwrap_or(u32::MAX);
        Spent { part: Part::Own, since_us: clock::monotonic_us(), us }
    }

    /// Another part begins. Gives the one that ends.
    #[inline]
    pub fn enter(&mut self, part: Part) -> Part {
        self.close();
        std::mem::replace(&mut self.part, part)
    }

    /// What follows is no wait of a request: bytes that go both ways after 101.
    pub fn stop(&mut self) {
        self.close();
        self.since_us = 0;
    }

    #[inline]
    fn close(&mut self) {
        if self.since_us != 0 {
            let now = clock::monotonic_us();
            let us = &mut self.us[self.part as usize];
            *us = us.saturating_add(u32::try_from(now - self.since_us).unwrap_or(u32::MAX));
            self.since_us = now;
        }
    }
}

/// A client's request is done.
pub fn end(spent: &mut Spent) {
    spent.stop();
    let mine = mine();
    // What comes and goes within one turn of its thread took no time that the clock knows.
    if spent.us != [0; OF_REQUESTS] {
        for (index, us) in spent.us.iter().enumerate() {
            mine.add(index, u64::from(*us));
        }
    }
    mine.add(REQUESTS, 1);
}

/// A connection was accepted. The kernel is asked of one of sixteen how long ago its last packet came, which is how long it has waited if
/// its client has been waiting too; milliseconds, as the kernel tells them.
#[inline]
pub fn accepted(last_packet_ms: impl FnOnce() -> Option<u32>) {
    thread_local! {
        static NUMBER: Cell<u32> = const { Cell::new(0) };
    }
    let number = NUMBER.get().wrapping_add(1);
    NUMBER.set(number);
    if number.is_multiple_of(SAMPLED)
        && let Some(ms) = last_packet_ms()
    {
        mine().add(ACCEPT, u64::from(ms) * 1_000 * u64::from(SAMPLED));
    }
}

/// A handshake with a client is done, which began then.
pub fn shaken(began: Instant) {
    mine().add(TLS, began.elapsed().as_micros() as u64);
}

/// What was counted: requests, and the microseconds of each part together.
pub fn sums() -> (u64, [u64; PARTS]) {
    let sums = SPENT_US.sums();
    (sums[REQUESTS], std::array::from_fn(|i| sums[i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_part_has_its_time() {
        let mut spent = Spent::begin(700);
        let pause = || std::thread::sleep(Duration::from_millis(3));
        pause();
        assert_eq!(spent.enter(Part::Connect), Part::Own);
        pause();
        spent.enter(Part::Client);
        spent.stop();
        pause();
        spent.enter(Part::Own);
        let of = |part: Part| spent.us[part as usize];
        assert_eq!((of(Part::Head), of(Part::Queue)), (700, 0));
        assert!(of(Part::Own) >= 3_000 && of(Part::Connect) >= 3_000, "{spent:?}");
        assert!(of(Part::Client) < 3_000, "the clock has been stopped: {spent:?}");
    }
}
