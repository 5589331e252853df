//! Interfaces and their counters, by rtnetlink: 64 bits wide, where `/proc/net/dev` and drivers may have fewer.

use crate::netlink::{Netlink, attributes, bytes_at};
use serde::{Deserialize, Serialize};
use std::io;

/// `RTM_GETLINK`, the size of `struct ifinfomsg`, and attributes of `linux/if_link.h`.
const GET_LINK: u16 = 18;
const INFO: usize = 16;
const NAME: u16 = 3;
const MTU: u16 = 4;
const STATS64: u16 = 23;
const TX_QUEUES: u16 = 31;
const RX_QUEUES: u16 = 32;
/// `IFF_UP`, `IFF_LOOPBACK`, `IFF_RUNNING`
const UP: u32 = 0x1;
const LOOPBACK: u32 = 0x8;
const RUNNING: u32 = 0x40;
/// Interfaces that are kept: a host of containers has thousands.
const MOST_LINKS: usize = 4_096;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Whether it is set up, and has a carrier.
    pub is_up: bool,
    /// Whether it is the loopback.
    pub is_loopback: bool,
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// Queues for receiving and for sending.
    pub queues: (u32, u32),
    /// Bits a second, where it is a wire that says so.
    pub speed: Option<u64>,
    /// Its counters.
    pub counts: LinkCounts,
}

/// Counters of an interface since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounts {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received wrong.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets for which there was no room, or no taker.
    pub rx_dropped: u64,
    /// Packets that were not sent for want of room.
    pub tx_dropped: u64,
    /// Packets that the hardware's ring had no room for.
    pub rx_missed: u64,
}

impl LinkCounts {
    /// `struct rtnl_link_stats64`.
    fn read(stats: &[u8]) -> LinkCounts {
        let number = |at: usize| u64::from_ne_bytes(bytes_at(stats, at * 8));
        LinkCounts {
            rx_packets: number(0),
            tx_packets: number(1),
            rx_bytes: number(2),
            tx_bytes: number(3),
            rx_errors: number(4),
            tx_errors: number(5),
            rx_dropped: number(6),
            tx_dropped: number(7),
            // rx_fifo_errors and rx_missed_errors: drivers use the one or the other.
            rx_missed: number(14).max(number(15)),
        }
    }

    /// What was added since `before`.
    pub fn since(&self, before: &LinkCounts) -> LinkCounts {
        LinkCounts {
            rx_packets: added(before.rx_packets, self.rx_packets),
            tx_packets: added(before.tx_packets, self.tx_packets),
            rx_bytes: added(before.rx_bytes, self.rx_bytes),
            tx_bytes: added(before.tx_bytes, self.tx_bytes),
            rx_errors: added(before.rx_errors, self.rx_errors),
            tx_errors: added(before.tx_errors, self.tx_errors),
            rx_dropped: added(before.rx_dropped, self.rx_dropped),
            tx_dropped: added(before.tx_dropped, self.tx_dropped),
            rx_missed: added(before.rx_missed, self.rx_missed),
        }
    }
}

/// What was added to a counter between two looks. One that is smaller than before has wrapped at 32 bits if it was near there (drivers and
/// kernels of 32 bits have such), else it began anew, and what it counted since is all that is known.
pub fn added(before: u64, now: u64) -> u64 {
    const WRAPS: u64 = 1 << 32;
    if now >= before {
        now - before
    } else if (WRAPS / 2..WRAPS).contains(&before) && now < WRAPS / 2 {
        WRAPS - before + now
    } else {
        now
    }
}

/// All interfaces of this network namespace.
///
/// # Errors
/// What the kernel says.
pub fn read() -> io::Result<Vec<Link>> {
    let mut links = Vec::new();
    each(|_, link| links.push(link))?;
    links.truncate(MOST_LINKS);
    Ok(links)
}

/// The number of an interface.
pub fn index(name: &str) -> Option<i32> {
    let mut found = None;
    each(|index, link| found = if link.name == name { Some(index) } else { found }).ok()?;
    found
}

fn each(mut take: impl FnMut(i32, Link)) -> io::Result<()> {
    Netlink::route()?.dump(GET_LINK, &[0; INFO], |_, message| {
        let (index, flags) = (i32::from_ne_bytes(bytes_at(message, 4)), u32::from_ne_bytes(bytes_at(message, 8)));
        let mut link = Link {
            is_up: flags & UP != 0 && flags & RUNNING != 0,
            is_loopback: flags & LOOPBACK != 0,
            ..Link::default()
        };
        for (kind, value) in attributes(message.get(INFO..).unwrap_or_default()) {
            let number = || u32::from_ne_bytes(bytes_at(value, 0));
            match kind {
                NAME => link.name = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned(),
                MTU => link.mtu = number(),
                TX_QUEUES => link.queues.1 = number(),
                RX_QUEUES => link.queues.0 = number(),
                STATS64 => link.counts = LinkCounts::read(value),
                _ => {}
            }
        }
        link.speed = Some(&link.name).filter(|n| crate::own::is_physical(n)).and_then(|n| crate::own::speed(n));
        take(index, link);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_wrap_or_begin_anew() {
        assert_eq!(added(10, 25), 15);
        assert_eq!(added(u64::from(u32::MAX) - 4, 5), 10);
        assert_eq!(added(1 << 40, 7), 7);
        assert_eq!(added(100, 7), 7, "an interface that was made anew");
    }

    #[test]
    fn the_loopback_and_a_pair() {
        use crate::namespace::{Namespace, address, inside};
        use std::net::UdpSocket;
        let ran = inside(|| {
            let here = Namespace::current().unwrap();
            let there = Namespace::enter_new().unwrap();
            here.enter().unwrap();
            Namespace::pair("v0", "v1", &there).unwrap();
            address("v0", [10, 9, 0, 1], 24).unwrap();
            let before = read().unwrap();
            let names: Vec<&str> = before.iter().map(|l| l.name.as_str()).collect();
            assert_eq!(names, ["lo", "v0"]);
            assert!(before[0].is_loopback && before[0].is_up && !before[1].is_loopback && before[1].mtu == 1500);
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[0; 1000], "127.0.0.1:9").unwrap();
            let after = read().unwrap()[0].counts.since(&before[0].counts);
            // The answer is "port unreachable".
            assert!(after.tx_packets >= 1 && after.tx_bytes >= 1028 && after.rx_bytes == after.tx_bytes, "{after:?}");
        });
        if ran.is_none() {
            println!("no network namespace can be made here (root?): left out");
        }
    }
}
