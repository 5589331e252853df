//! Addresses that are turned away for a time. Exact: nobody is banned for another. Asked for each new connection, so that an empty table costs a load; read locks
//! of its shards otherwise.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

const SHARDS: usize = 16;

/// An address as bans know it: IPv4 as it is, of IPv6 the /64.
#[inline]
pub fn subject(ip: IpAddr) -> u128 {
    let of_v4 = |ip: Ipv4Addr| u128::from(ip.to_bits()) | 0xffff << 32;
    match ip {
        IpAddr::V4(ip) => of_v4(ip),
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(ip.to_bits() & !u128::from(u64::MAX), of_v4),
    }
}

/// The other way round; of IPv6 the network's first address.
pub fn address(subject: u128) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(subject)).to_canonical()
}

/// A ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Until when, ms.
    pub until_ms: u64,
    /// Why, in the words of whoever banned it.
    pub reason: Box<str>,
}

/// The table.
#[derive(Debug)]
pub struct Bans {
    shards: [RwLock<HashMap<u128, Ban>>; SHARDS],
    len: AtomicUsize,
    /// Addresses of a shard at most.
    most: usize,
}

impl Bans {
    /// For about so many addresses; those above are not banned.
    pub fn new(most: usize) -> Bans {
        Bans {
            shards: std::array::from_fn(|_| RwLock::default()),
            len: AtomicUsize::new(0),
            most: most.div_ceil(SHARDS),
        }
    }

    fn shard(&self, subject: u128) -> &RwLock<HashMap<u128, Ban>> {
        let mixed = (subject ^ subject >> 64) as u64;
        &self.shards[(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// Bans an address, or makes its ban longer. False: it was banned already, or there is no room.
    pub fn add(&self, subject: u128, until_ms: u64, reason: &str, now_ms: u64) -> bool {
        let mut shard = self.shard(subject).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(ban) = shard.get_mut(&subject)
            && ban.until_ms > now_ms
        {
            ban.until_ms = ban.until_ms.max(until_ms);
            return false;
        }
        if shard.len() >= self.most {
            let before = shard.len();
            shard.retain(|_, ban| ban.until_ms > now_ms);
            self.len.fetch_sub(before - shard.len(), Relaxed);
            if shard.len() >= self.most {
                return false;
            }
        }
        if shard.insert(subject, Ban { until_ms, reason: reason.into() }).is_none() {
            self.len.fetch_add(1, Relaxed);
        }
        true
    }

    /// Whether an address is banned. Neither it nor the time is asked for while nobody is.
    #[inline]
    pub fn has(&self, subject: impl FnOnce() -> u128, now_ms: impl FnOnce() -> u64) -> bool {
        self.len.load(Relaxed) != 0 && self.is_listed(subject(), now_ms())
    }

    fn is_listed(&self, subject: u128, now_ms: u64) -> bool {
        let shard = self.shard(subject).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(&subject).is_some_and(|ban| ban.until_ms > now_ms)
    }

    /// Lifts a ban. False: there was none.
    pub fn lift(&self, subject: u128) -> bool {
        let mut shard = self.shard(subject).write().unwrap_or_else(PoisonError::into_inner);
        let was = shard.remove(&subject).is_some();
        self.len.fetch_sub(usize::from(was), Relaxed);
        was
    }

    /// All that hold, and forgets those that do not.
    pub fn all(&self, now_ms: u64) -> Vec<(u128, Ban)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            let before = shard.len();
            shard.retain(|_, ban| ban.until_ms > now_ms);
            self.len.fetch_sub(before - shard.len(), Relaxed);
            all.extend(shard.iter().map(|(subject, ban)| (*subject, ban.clone())));
        }
        all.sort_by_key(|(subject, _)| *subject);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> u128 {
        subject(text.parse().expect("an address"))
    }

    #[test]
    fn bans_end_and_are_lifted() {
        let bans = Bans::new(64);
        assert!(bans.add(at("192.0.2.1"), 100, "many", 0));
        assert!(!bans.add(at("192.0.2.1"), 200, "more", 50), "it is longer, not new");
        assert!(bans.has(|| at("192.0.2.1"), || 199) && !bans.has(|| at("192.0.2.1"), || 200));
        assert!(!bans.has(|| at("192.0.2.2"), || 50));
        assert!(bans.add(at("2001:db8::1"), 300, "v6", 0));
        assert!(bans.has(|| at("2001:db8::2"), || 50) && !bans.has(|| at("2001:db8:0:1::1"), || 50));
        assert_eq!(bans.all(250).len(), 1, "what is over is forgotten");
        assert!(bans.lift(at("2001:db8::7")) && !bans.lift(at("2001:db8::7")));
        assert_eq!(bans.len.load(Relaxed), 0);
        assert_eq!(address(at("::ffff:192.0.2.1")).to_string(), "192.0.2.1");
        assert_eq!(address(at("2001:db8::7")).to_string(), "2001:db8::");
        assert_eq!(at("192.0.2.1"), at("::ffff:192.0.2.1"));
    }

    #[test]
    fn the_table_is_bounded() {
        let bans = Bans::new(160);
        for n in 0..10_000u32 {
            bans.add(subject(std::net::Ipv4Addr::from_bits(n).into()), 100, "", 0);
        }
        assert!(bans.len.load(Relaxed) <= 160);
        assert!(bans.add(at("203.0.113.1"), 300, "", 100), "what is over makes room");
    }
}
