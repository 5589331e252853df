//! `ip_hash` and `hash key`: the same client or key meets the same peer, as long as the group stays as it is.

use std::net::IpAddr;

use crate::crc32::Crc32;
use crate::{Choice, LOOKS_MAX, Peers};

/// Where `ip_hash` begins, what it multiplies with and what it counts modulo: nginx's numbers, so that a client meets
/// the same peer behind either server.
const IP_START: u32 = 89;
const IP_FACTOR: u32 = 113;
const IP_MODULUS: u32 = 6271;

/// The bytes of an address that `ip_hash` uses: the network of an IPv4 address (3 bytes), all of an IPv6 address.
/// Clients without an address (unix sockets) have three zero bytes.
pub fn ip_hash_key(address: Option<&IpAddr>, buffer: &mut [u8; 16]) -> usize {
    match address {
        Some(IpAddr::V6(address)) => {
            *buffer = address.octets();
            16
        }
        Some(IpAddr::V4(address)) => {
            buffer[..4].copy_from_slice(&address.octets());
            3
        }
        None => {
            buffer[..3].fill(0);
            3
        }
    }
}

impl<P: Peers + ?Sized> Choice<'_, P> {
    /// By the client's address; `key` as from [`ip_hash_key`]. Round robin after 20 looks in vain.
    pub fn ip_hash(&mut self, key: &[u8]) -> Option<usize> {
        let total = self.peers.total_weight();
        if self.tried.walk.looks > LOOKS_MAX || self.peers.len() < 2 || total == 0 {
            return self.round_robin();
        }
        let mut hash = if self.tried.walk.begun { self.tried.walk.hash } else { IP_START };
        loop {
            for byte in key {
                hash = (hash * IP_FACTOR + u32::from(*byte)) % IP_MODULUS;
            }
            let peer = self.by_weight(u64::from(hash) % total);
            if self.candidate(peer) {
                self.tried.walk.begun = true;
                self.tried.walk.hash = hash;
                return Some(self.note(peer));
            }
            if self.look_failed() {
                return self.round_robin();
            }
        }
    }

    /// By a key (`hash key`), the way of Cache::Memcached: the CRC-32 of the key, for further looks with the number of
    /// the look before it, added up. Round robin for an empty key and after 20 looks in vain.
    pub fn hash(&mut self, key: &[u8]) -> Option<usize> {
        let total = self.peers.total_weight();
        if self.tried.walk.looks > LOOKS_MAX || self.peers.len() < 2 || key.is_empty() || total == 0 {
            return self.round_robin();
        }
        loop {
            let walk = &mut self.tried.walk;
            let mut crc = Crc32::new();
            if walk.hashed > 0 {
                crc.update_decimal(walk.hashed);
            }
            crc.update(key);
            walk.hash = walk.hash.wrapping_add((crc.finish() >> 16) & 0x7fff);
            walk.hashed += 1;
            let place = u64::from(walk.hash) % total;
            let peer = self.by_weight(place);
            if self.candidate(peer) {
                return Some(self.note(peer));
            }
            if self.look_failed() {
                return self.round_robin();
            }
        }
    }

    /// Counts a look in vain; true when it was the last.
    pub(crate) fn look_failed(&mut self) -> bool {
        self.tried.walk.looks += 1;
        self.tried.walk.looks > LOOKS_MAX
    }

    /// The peer at a place in the row of all weights.
    fn by_weight(&self, mut place: u64) -> usize {
        for peer in 0..self.peers.len() {
            let weight = u64::from(self.peers.weight(peer));
            if place < weight {
                return peer;
            }
            place -= weight;
        }
        self.peers.len() - 1
    }
}
