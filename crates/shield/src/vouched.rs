//! What somebody else has said of addresses: whose they are, or that they are nobody's. A bounded table that is asked for a request and never waits; who is not
//! known is put down as asked, for whoever finds out.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, RwLock};

/// Addresses that somebody vouches for, at most.
const MAX_VOUCHED: usize = 8_192;
/// Those that nobody does. They are apart, so that many of them push none of the others out.
const MAX_STRANGERS: usize = 32_768;
/// Addresses that are being asked about at a time.
pub const MAX_ASKED: usize = 64;
/// In the last part of its time what is known of an address is asked for anew: 1 of so many parts.
const LAST_PART: u64 = 4;

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known<V> {
    /// So it is.
    Vouched(V),
    /// Nobody vouches for it.
    Stranger,
    /// Nothing.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Entry<V> {
    value: V,
    until_ms: u64,
    /// From then on it is asked for again.
    again_ms: u64,
}

/// The table.
#[derive(Debug)]
pub struct Vouched<V> {
    vouched: RwLock<HashMap<IpAddr, Entry<V>>>,
    strangers: RwLock<HashMap<IpAddr, u64>>,
    asked: Mutex<HashSet<IpAddr>>,
}

impl<V> Default for Vouched<V> {
    fn default() -> Vouched<V> {
        Vouched { vouched: RwLock::default(), strangers: RwLock::default(), asked: Mutex::default() }
    }
}

impl<V: Clone> Vouched<V> {
    /// What is known of an address. True: the caller is to find out, and to say it by [`Vouched::settle`].
    pub fn look(&self, ip: IpAddr, now_ms: u64) -> (Known<V>, bool) {
        let entry = self.vouched.read().unwrap_or_else(PoisonError::into_inner).get(&ip).cloned();
        if let Some(entry) = entry.filter(|entry| entry.until_ms > now_ms) {
            let asks = entry.again_ms <= now_ms && self.ask(ip);
            return (Known::Vouched(entry.value), asks);
        }
        let until_ms = self.strangers.read().unwrap_or_else(PoisonError::into_inner).get(&ip).copied();
        if until_ms.is_some_and(|until| until > now_ms) {
            return (Known::Stranger, false);
        }
        (Known::Unknown, self.ask(ip))
    }

    /// Whether this is the one that asks.
    fn ask(&self, ip: IpAddr) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.len() < MAX_ASKED && asked.insert(ip)
    }

    /// What was found out of an address, good for so long; none: nobody vouches for it.
    pub fn settle(&self, ip: IpAddr, value: Option<V>, valid_ms: u64, now_ms: u64) {
        let until_ms = now_ms.saturating_add(valid_ms);
        {
            let mut vouched = self.vouched.write().unwrap_or_else(PoisonError::into_inner);
            let is_vouched = value.is_some();
            match value {
                Some(value) => {
                    make_room(&mut vouched, MAX_VOUCHED, |entry| entry.until_ms > now_ms);
                    let again_ms = until_ms - valid_ms / LAST_PART;
                    vouched.insert(ip, Entry { value, until_ms, again_ms });
                }
                None => drop(vouched.remove(&ip)),
            }
            drop(vouched);
            let mut strangers = self.strangers.write().unwrap_or_else(PoisonError::into_inner);
            if is_vouched {
                strangers.remove(&ip);
            } else {
                make_room(&mut strangers, MAX_STRANGERS, |until| *until > now_ms);
                strangers.insert(ip, until_ms);
            }
        }
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&ip);
    }

    /// Nothing was found out: it is asked about again the next time that it comes.
    pub fn give_up(&self, ip: IpAddr) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&ip);
    }

    /// Addresses that somebody vouches for, and that nobody does.
    #[cfg(test)]
    fn counts(&self) -> [usize; 2] {
        let vouched = self.vouched.read().unwrap_or_else(PoisonError::into_inner).len();
        [vouched, self.strangers.read().unwrap_or_else(PoisonError::into_inner).len()]
    }
}

/// Drops what is over where there are many; all of it if that is not enough, for it can be asked again.
fn make_room<E>(table: &mut HashMap<IpAddr, E>, most: usize, is_good: impl Fn(&E) -> bool) {
    if table.len() >= most {
        table.retain(|_, entry| is_good(entry));
        if table.len() >= most {
            table.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn ip(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn one_asks_and_all_know() {
        let table = Vouched::default();
        assert_eq!(table.look(ip(1), 0), (Known::Unknown, true));
        assert_eq!(table.look(ip(1), 0), (Known::Unknown, false), "somebody is at it");
        table.settle(ip(1), Some("a"), 1000, 0);
        assert_eq!(table.look(ip(1), 749), (Known::Vouched("a"), false));
        assert_eq!(table.look(ip(1), 750), (Known::Vouched("a"), true), "before it ends it is asked again");
        assert_eq!(table.look(ip(1), 751), (Known::Vouched("a"), false));
        table.settle(ip(1), None, 1000, 800);
        assert_eq!(table.look(ip(1), 801), (Known::Stranger, false), "what is found last holds");
        assert_eq!(table.look(ip(1), 1800), (Known::Unknown, true));
        table.give_up(ip(1));
        assert_eq!(table.look(ip(1), 1800), (Known::Unknown, true));
    }

    #[test]
    fn a_crowd_of_strangers_pushes_nobody_out() {
        let table = Vouched::default();
        table.settle(ip(0), Some(()), 1000, 0);
        (1..100_000).for_each(|n| table.settle(ip(n), None, 1000, 0));
        assert_eq!(table.look(ip(0), 1).0, Known::Vouched(()));
        let [vouched, strangers] = table.counts();
        assert!(vouched == 1 && strangers <= MAX_STRANGERS);
        let asking = (200_000..300_000).filter(|n| table.look(ip(*n), 1).1).count();
        assert_eq!(asking, MAX_ASKED, "so many at a time");
    }
}
