//! Connections that were begun over TCP, by destination, and those for which no local port was left. Counted where a connection is begun (`connect`), not
//! where it ends: who holds a port now, and for how long after its connection is gone (TIME_WAIT), only the kernel knows, and is asked when
//! somebody wants to know (`/ironweir/ports`). A connection costs a look-up in a table of its thread; a request on a kept one nothing.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Destinations that are told apart: programs and names that change may ask for any number of them. A quarter makes room when there are more.
const MOST: usize = 4096;

/// What is counted of a destination.
#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    without_port: AtomicU64,
    /// The number of the connection that was begun last, counting those of all destinations.
    last: AtomicU64,
}

/// What was counted of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Where connections go.
    pub to: SocketAddr,
    /// Connections that were begun.
    pub begun: u64,
    /// Of those, the ones for which no local port was left (`EADDRNOTAVAIL`).
    pub without_port: u64,
}

type Known = HashMap<SocketAddr, Arc<Counts>>;

static ALL: Mutex<Option<Known>> = Mutex::new(None);
/// Grows when destinations are forgotten: what threads remember of them is then old.
static FORGOTTEN: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MINE: RefCell<(u32, Known)> = RefCell::new((0, Known::new()));
}

fn all() -> MutexGuard<'static, Option<Known>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection was begun; `has_port`: there was a local port for it.
pub fn count(to: SocketAddr, has_port: bool) {
    MINE.with_borrow_mut(|(forgotten, known)| {
        let now = FORGOTTEN.load(Relaxed);
        if *forgotten != now {
            known.clear();
            *forgotten = now;
        }
        let counts = known.entry(to).or_insert_with(|| find(to));
        counts.begun.fetch_add(1, Relaxed);
        counts.last.store(LAST.fetch_add(1, Relaxed), Relaxed);
        if !has_port {
            counts.without_port.fetch_add(1, Relaxed);
        }
    });
}

fn find(to: SocketAddr) -> Arc<Counts> {
    let mut all = all();
    let known = all.get_or_insert_default();
    if known.len() >= MOST && !known.contains_key(&to) {
        let mut ages: Vec<u64> = known.values().map(|c| c.last.load(Relaxed)).collect();
        let (_, oldest, _) = ages.select_nth_unstable(MOST / 4);
        let oldest = *oldest;
        known.retain(|_, c| c.last.load(Relaxed) > oldest);
        FORGOTTEN.fetch_add(1, Relaxed);
    }
    known.entry(to).or_default().clone()
}

/// What was counted, the most connections first.
pub fn begun() -> Vec<Begun> {
    let each = |(to, counts): (&SocketAddr, &Arc<Counts>)| Begun {
        to: *to,
        begun: counts.begun.load(Relaxed),
        without_port: counts.without_port.load(Relaxed),
    };
    let mut found: Vec<Begun> = all().iter().flatten().map(each).collect();
    found.sort_by(|a, b| b.begun.cmp(&a.begun).then(a.to.cmp(&b.to)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_counted_by_all_threads_and_the_oldest_make_room() {
        let to = |n: u32| SocketAddr::from((n.to_be_bytes(), 80));
        let kept = to(u32::MAX);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|n| count(kept, n > 0)));
            }
        });
        let of = |wanted: SocketAddr| begun().into_iter().find(|b| b.to == wanted);
        assert_eq!(of(kept), Some(Begun { to: kept, begun: 40, without_port: 4 }));
        for n in 0..2 * MOST as u32 {
            count(to(n), true);
            count(kept, true);
        }
        assert!(begun().len() <= MOST && of(to(0)).is_none(), "{}", begun().len());
        assert_eq!(of(to(2 * MOST as u32 - 1)).map(|b| b.begun), Some(1));
        assert_eq!(of(kept).map(|b| b.begun), Some(40 + 2 * MOST as u64), "who is asked for again and again stays");
    }
}
