//! `hash key consistent` (ketama): when a server comes or goes, only its part of the keys moves.

use crate::crc32::{Crc32, crc32};
use crate::{Choice, LOOKS_MAX, Peers};

/// Points on the ring for each unit of weight.
const POINTS_PER_WEIGHT: u64 = 160;

/// The ring of one group: points made of the servers' names as configured, so that it does not depend on addresses or
/// order. Built once for each version of a group (and each thread may share it).
#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// Sorted by hash, each hash once.
    points: Box<[Point]>,
    /// The peers of each server: a `server` name can have several addresses.
    members: Box<[Box<[u32]>]>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    hash: u32,
    server: u32,
}

impl Ring {
    /// For each peer, in order: its `server` parameter as written (`10.0.0.1:80`, `example.com`, `unix:/path`) and its
    /// weight. Peers with the same name share one server's points.
    pub fn new<'a>(peers: impl IntoIterator<Item = (&'a [u8], u32)>) -> Self {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut points = Vec::new();
        for (peer, (name, weight)) in (0u32..).zip(peers) {
            let server = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                members.push(Vec::new());
                names.len() - 1
            });
            members[server].push(peer);
            add_points(&mut points, name, weight, server as u32);
        }
        points.sort_by_key(|point: &Point| point.hash);
        points.dedup_by_key(|point| point.hash);
        Ring { points: points.into(), members: members.into_iter().map(Into::into).collect() }
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// A ring without servers.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Index of the first point at or after a hash; may be one past the last, which is the first again.
    fn find(&self, hash: u32) -> u32 {
        self.points.partition_point(|point| point.hash < hash) as u32
    }

    fn members_at(&self, point: u32) -> &[u32] {
        let point = self.points[point as usize % self.points.len()];
        &self.members[point.server as usize]
    }
}

/// Each point's hash is that of the server's name and the point before it, as in Cache::Memcached::Fast.
fn add_points(points: &mut Vec<Point>, name: &[u8], weight: u32, server: u32) {
    let (host, port) = host_and_port(name);
    let mut base = Crc32::new();
    base.update(host);
    base.update(&[0]);
    base.update(port);
    let mut hash = 0u32;
    for _ in 0..u64::from(weight) * POINTS_PER_WEIGHT {
        let mut crc = base;
        crc.update(&hash.to_le_bytes());
        hash = crc.finish();
        points.push(Point { hash, server });
    }
}

fn host_and_port(name: &[u8]) -> (&[u8], &[u8]) {
    if name.len() >= 5 && name[..5].eq_ignore_ascii_case(b"unix:") {
        return (&name[5..], b"");
    }
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let port = name.len() - digits;
    if port > 0 && name[port - 1] == b':' { (&name[..port - 1], &name[port..]) } else { (name, b"") }
}

impl<P: Peers + ?Sized> Choice<'_, P> {
    /// By a key on the ring, walking on from servers that cannot be used; round robin among a server's addresses, for
    /// an empty key and after 20 looks in vain. `ring` must be of the same peers.
    pub fn consistent_hash(&mut self, ring: &Ring, key: &[u8]) -> Option<usize> {
        if self.tried.walk.looks > LOOKS_MAX || self.peers.single() || key.is_empty() || ring.is_empty() {
            return self.round_robin();
        }
        if !self.tried.walk.begun {
            self.tried.walk.begun = true;
            self.tried.walk.hash = ring.find(crc32(key));
        }
        let count = self.peers.len();
        loop {
            let members = ring.members_at(self.tried.walk.hash).iter().map(|peer| *peer as usize);
            if let Some((best, total)) = self.turn(members.filter(|peer| *peer < count)) {
                self.weights.pay(best, total);
                return Some(self.note(best));
            }
            self.tried.walk.hash = self.tried.walk.hash.wrapping_add(1);
            if self.look_failed() {
                return self.round_robin();
            }
        }
    }
}
