//! SRV: the name of a service, and the order of its addresses (RFC 2782, in nginx's simpler form).

use std::net::SocketAddr;
use std::rc::Rc;

use super::answer::{Addresses, ServiceAddress};
use super::message::Target;

/// `_http._tcp.example.net` of `http` and `example.net`; a service with a dot is taken as it is.
pub(super) fn service_name(service: &[u8], name: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(service.len() + name.len() + "_._tcp.".len());
    if service.contains(&b'.') {
        full.extend_from_slice(service);
    } else {
        full.push(b'_');
        full.extend_from_slice(service);
        full.extend_from_slice(b"._tcp");
    }
    full.push(b'.');
    full.extend_from_slice(name);
    full
}

/// A target and what its name was resolved to.
pub(super) struct ResolvedTarget {
    pub(super) target: Target,
    pub(super) name: Rc<[u8]>,
    pub(super) addresses: Option<Addresses>,
}

impl ResolvedTarget {
    fn share(&self) -> u64 {
        self.addresses.as_ref().map_or(0, |addresses| addresses.len() as u64 * u64::from(self.target.weight))
    }
}

/// All addresses by priority; within one priority all targets in turn, from one drawn by weight and number of addresses.
/// `targets` are sorted by priority; `random` gives an even number.
pub(super) fn order(targets: &[ResolvedTarget], mut random: impl FnMut() -> u64) -> Vec<ServiceAddress> {
    let mut ordered = Vec::new();
    for group in targets.chunk_by(|one, other| one.target.priority == other.target.priority) {
        let total: u64 = group.iter().map(ResolvedTarget::share).sum();
        if total == 0 {
            continue;
        }
        let mut drawn = random() % total;
        let first = group.iter().position(|target| {
            let hit = drawn < target.share();
            drawn = drawn.wrapping_sub(if hit { 0 } else { target.share() });
            hit
        });
        let (tail, head) = group.split_at(first.expect("the number drawn is below the sum of the shares"));
        for target in head.iter().chain(tail) {
            ordered.extend(target.addresses.iter().flat_map(Addresses::iter).map(|ip| ServiceAddress {
                address: SocketAddr::new(ip, target.target.port),
                name: target.name.clone(),
                priority: target.target.priority,
                weight: target.target.weight,
            }));
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::answer::AddressList;
    use super::*;

    fn target(name: &str, priority: u16, weight: u16, addresses: &[&str]) -> ResolvedTarget {
        let list: Vec<_> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        ResolvedTarget {
            target: Target { name: name.into(), port: 80, priority, weight },
            name: Rc::from(name.as_bytes()),
            addresses: (!list.is_empty()).then(|| Addresses::new(AddressList::new(list), Instant::now())),
        }
    }

    fn names(targets: &[ResolvedTarget], random: u64) -> String {
        let ordered = order(targets, || random);
        ordered.iter().map(|address| String::from_utf8_lossy(&address.name).into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn names_of_services() {
        assert_eq!(service_name(b"http", b"example.net"), b"_http._tcp.example.net");
        assert_eq!(service_name(b"_sip._udp", b"example.net"), b"_sip._udp.example.net");
    }

    #[test]
    fn order_is_by_priority_and_begins_by_weight() {
        let targets = [
            target("a", 1, 1, &["10.0.0.1"]),
            target("none", 1, 100, &[]),
            target("b", 1, 2, &["10.0.0.2", "10.0.0.3"]),
            target("c", 2, 5, &["10.0.0.4"]),
        ];
        assert_eq!(names(&targets, 0), "a b b c");
        for random in 1..5 {
            assert_eq!(names(&targets, random), "b b a c", "{random}");
        }
        assert_eq!(names(&targets, 5), "a b b c");
        assert_eq!(names(&targets[1..2], 5), "");
    }
}
