//! Local ports on this machine: how many there are, and how many of them connections to some destinations hold. To: a server that tells of its own.

use machine::facts::setting;
use machine::sockets;
use std::io;
use std::net::SocketAddr;

/// The range that local ports are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// How many of them are not reserved.
    pub usable: u64,
}

impl Range {
    /// Of `ip_local_port_range` and `ip_local_reserved_ports`.
    pub fn of(range: &str, reserved: &str) -> Option<Range> {
        let mut numbers = range.split_ascii_whitespace().map(|n| n.parse::<u64>().ok());
        let (Some(Some(first)), Some(Some(last)), None) = (numbers.next(), numbers.next(), numbers.next()) else {
            return None;
        };
        // Facts may be recorded ones, which anybody can write.
        let last = last.min(u64::from(u16::MAX));
        let taken: u64 = parts(reserved).map(|(from, to)| (to.min(last) + 1).saturating_sub(from.max(first))).sum();
        Some(Range { first, last, usable: (last + 1).saturating_sub(first).saturating_sub(taken) })
    }

    /// This machine's.
    pub fn read() -> Option<Range> {
        let reserved = setting("net.ipv4.ip_local_reserved_ports").unwrap_or_default();
        Range::of(&setting("net.ipv4.ip_local_port_range")?, &reserved)
    }
}

/// `8080,9000-9100`
pub(crate) fn parts(text: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    text.split(',').filter_map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
    })
}

/// Ports that one local address has for one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The local address.
    pub from: String,
    /// Address and port.
    pub to: String,
    /// How many are held.
    pub ports: u64,
    /// Of those, by connections that are gone (TIME_WAIT).
    pub time_wait: u64,
}

/// Who holds ports for connections to these destinations, most first: this process and all others, since they share them.
///
/// # Errors
/// If the kernel has no `sock_diag`.
pub fn held(destinations: &[SocketAddr]) -> io::Result<Vec<Held>> {
    let held = |d: sockets::Destination| Held { from: d.from, to: d.to, ports: d.total, time_wait: d.time_wait };
    Ok(sockets::towards(destinations)?.into_iter().map(held).collect())
}

/// TCP sockets of this machine by the kernel's own count: what a look at them costs grows with it.
pub fn sockets() -> u64 {
    let sums = machine::counters::Sockstat::read();
    sums.in_use + sums.time_wait
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_not_usable() {
        let range = |range: &str, reserved: &str| Range::of(range, reserved).map(|r| (r.first, r.last, r.usable));
        assert_eq!(range("41000 41009", "41001,41004-41005,80"), Some((41_000, 41_009, 7)));
        assert_eq!(range("1024\t65535", ""), Some((1024, 65_535, 64_512)));
        assert_eq!(range("0 18446744073709551615", "1-18446744073709551615"), Some((0, 65_535, 1)));
        assert_eq!((range("1", ""), range("1 2 3", ""), range("a b", "")), (None, None, None));
    }
}
