//! How the cards behind interfaces are set up: rings and offloads (ethtool's netlink), on which CPUs their interrupts are and whose packets other CPUs
//! take (`/proc/irq`, `/sys/class/net`). What a driver does not tell is not known.

use crate::netlink::{Netlink, attributes, bytes_at, put_attribute};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_to_string};
use std::io;

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, its attributes of a family's number and name.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `linux/ethtool_netlink.h`: questions, the header with its name of an interface.
const FEATURES_GET: u8 = 11;
const RINGS_GET: u8 = 15;
const ETHTOOL_HEADER: u16 = 1;
const DEVICE_NAME: u16 = 2;
/// `NLA_F_NESTED`
const NESTED: u16 = 0x8000;
/// `struct genlmsghdr`
const GENERIC_HEADER: usize = 4;
/// Attributes of rings.
const RX_MAX: u16 = 2;
const TX_MAX: u16 = 5;
const RX: u16 = 6;
const TX: u16 = 9;
/// Attributes of features: what can be changed, what is on; and of their bits.
const CHANGEABLE: u16 = 2;
const ACTIVE: u16 = 4;
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
/// Offloads that a server's throughput depends on, as the kernel calls them.
const OFFLOADS: [&str; 6] = [
    "rx-checksum",
    "rx-gro",
    "tx-checksum-ip-generic",
    "tx-generic-segmentation",
    "tx-scatter-gather",
    "tx-tcp-segmentation",
];
/// Cards, interrupts and queues of each that are looked at.
const MOST_CARDS: usize = 64;
const MOST_INTERRUPTS: usize = 1_024;
const MOST_BITS: usize = 1_024;
const MOST_CPUS: usize = 4_096;

/// A card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// The interface.
    pub name: String,
    /// Places in the ring for receiving, and how many it can have.
    pub rx_ring: Option<(u32, u32)>,
    /// The same for sending.
    pub tx_ring: Option<(u32, u32)>,
    /// Offloads that can be switched: whether they are on.
    pub offloads: BTreeMap<String, bool>,
    /// The CPUs of each of its interrupts.
    pub interrupts: BTreeMap<u32, Vec<usize>>,
    /// Queues for receiving, and how many of them have their packets taken by other CPUs (RPS).
    pub rps: (u32, u32),
}

/// All cards of this namespace: interfaces with a device behind them.
pub fn read() -> Vec<Card> {
    let names =
        read_dir("/sys/class/net").into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
    let physical = names.filter(|n| crate::own::is_physical(n)).take(MOST_CARDS);
    let mut ethtool = Ethtool::open().ok();
    let each = |name: String| {
        let mut card = Card { interrupts: interrupts(&name), rps: rps(&name), ..Card::default() };
        if let Some(ethtool) = &mut ethtool {
            // A driver without rings, or without switches, says that it has none.
            let _ = ethtool.ask(RINGS_GET, &name, |all| card.rings(all));
            let _ = ethtool.ask(FEATURES_GET, &name, |all| card.features(all));
        }
        card.name = name;
        card
    };
    physical.map(each).collect()
}

impl Card {
    fn rings(&mut self, bytes: &[u8]) {
        let all: BTreeMap<u16, u32> =
            attributes(bytes).map(|(kind, value)| (kind, u32::from_ne_bytes(bytes_at(value, 0)))).collect();
        let ring = |now, most| Some((*all.get(&now)?, *all.get(&most)?)).filter(|(_, most)| *most > 0);
        (self.rx_ring, self.tx_ring) = (ring(RX, RX_MAX), ring(TX, TX_MAX));
    }

    fn features(&mut self, bytes: &[u8]) {
        let names = |wanted: u16| attributes(bytes).find(|a| a.0 == wanted).map(|a| bits(a.1)).unwrap_or_default();
        let (changeable, active) = (names(CHANGEABLE), names(ACTIVE));
        let known = OFFLOADS.iter().filter(|n| changeable.contains(**n));
        self.offloads = known.map(|n| ((*n).to_owned(), active.contains(*n))).collect();
    }
}

/// The names in a set of bits that lists only those that are set.
fn bits(set: &[u8]) -> BTreeSet<String> {
    let name = |bit: &[u8]| {
        let value = attributes(bit).find(|a| a.0 == BIT_NAME)?.1;
        Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned())
    };
    let list = attributes(set).find(|a| a.0 == BITS).map_or(&[][..], |a| a.1);
    attributes(list).filter(|a| a.0 == BIT).take(MOST_BITS).filter_map(|a| name(a.1)).collect()
}

/// What a message of ethtool's says of a card. For fuzzing.
pub fn told(message: &[u8]) -> Card {
    let mut card = Card::default();
    card.rings(message);
    card.features(message);
    card
}

/// The kernel's ethtool, by generic netlink.
struct Ethtool {
    netlink: Netlink,
    family: u16,
}

impl Ethtool {
    fn open() -> io::Result<Ethtool> {
        let mut netlink = Netlink::generic()?;
        let mut asked = vec![GET_FAMILY, 1, 0, 0];
        put_attribute(&mut asked, FAMILY_NAME, b"ethtool\0");
        let mut family = None;
        netlink.ask(CONTROL, &asked, |message| {
            let id = attributes(message.get(GENERIC_HEADER..).unwrap_or_default()).find(|a| a.0 == FAMILY_ID);
            family = id.map(|a| u16::from_ne_bytes(bytes_at(a.1, 0)));
        })?;
        let family = family.ok_or_else(|| io::Error::other("this kernel has no ethtool by netlink"))?;
        Ok(Ethtool { netlink, family })
    }

    fn ask(&mut self, what: u8, name: &str, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut header = Vec::new();
        put_attribute(&mut header, DEVICE_NAME, format!("{name}\0").as_bytes());
        let mut asked = vec![what, 1, 0, 0];
        put_attribute(&mut asked, ETHTOOL_HEADER | NESTED, &header);
        self.netlink.ask(self.family, &asked, |message| take(message.get(GENERIC_HEADER..).unwrap_or_default()))
    }
}

/// A card's interrupts are those of its device, or of the one around it (virtio's is a PCI device).
fn interrupts(name: &str) -> BTreeMap<u32, Vec<usize>> {
    let folders = ["device", "device/.."].map(|d| format!("/sys/class/net/{name}/{d}/msi_irqs"));
    let entries = folders.iter().find_map(|f| read_dir(f).ok()).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()).take(MOST_INTERRUPTS);
    let cpus = |n: u32| {
        let files = ["effective_affinity_list", "smp_affinity_list"].map(|f| format!("/proc/irq/{n}/{f}"));
        let text = files.iter().filter_map(|f| read_to_string(f).ok()).find(|t| !t.trim().is_empty())?;
        Some((n, cpu_list(text.trim())))
    };
    numbers.filter_map(cpus).collect()
}

/// `0-3,8`
fn cpu_list(text: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        Some(from..=to.min(MOST_CPUS))
    };
    text.split(',').filter_map(part).flatten().take(MOST_CPUS).collect()
}

/// Queues for receiving, and those with a mask of CPUs.
fn rps(name: &str) -> (u32, u32) {
    let entries = read_dir(format!("/sys/class/net/{name}/queues")).into_iter().flatten().flatten();
    let queues = entries.filter(|e| e.file_name().to_string_lossy().starts_with("rx-")).take(MOST_INTERRUPTS);
    let has_mask = |path: std::path::PathBuf| {
        read_to_string(path.join("rps_cpus")).is_ok_and(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
    };
    queues.fold((0, 0), |(all, set), e| (all + 1, set + u32::from(has_mask(e.path()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel writes them.
    fn message() -> Vec<u8> {
        let set = |names: &[&str]| {
            let mut list = Vec::new();
            for (number, name) in names.iter().enumerate() {
                let mut bit = Vec::new();
                put_attribute(&mut bit, 1, &(number as u32).to_ne_bytes());
                put_attribute(&mut bit, BIT_NAME, format!("{name}\0").as_bytes());
                put_attribute(&mut list, BIT | NESTED, &bit);
            }
            let mut set = Vec::new();
            put_attribute(&mut set, 1, &[]);
            put_attribute(&mut set, BITS | NESTED, &list);
            set
        };
        let mut message = Vec::new();
        put_attribute(&mut message, CHANGEABLE | NESTED, &set(&["rx-gro", "tx-tcp-segmentation", "loopback"]));
        put_attribute(&mut message, ACTIVE | NESTED, &set(&["rx-gro", "highdma"]));
        message
    }

    #[test]
    fn rings_and_offloads() {
        let card = told(&message());
        assert_eq!(card.offloads, BTreeMap::from([("rx-gro".into(), true), ("tx-tcp-segmentation".into(), false)]));
        let mut rings = Vec::new();
        for (kind, value) in [(RX_MAX, 4096_u32), (TX_MAX, 0), (RX, 256), (TX, 256)] {
            put_attribute(&mut rings, kind, &value.to_ne_bytes());
        }
        let mut card = Card::default();
        card.rings(&rings);
        assert_eq!((card.rx_ring, card.tx_ring), (Some((256, 4096)), None));
        let whole = message();
        (0..whole.len()).for_each(|n| _ = told(&whole[..n]));
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-2,8"), [0, 1, 2, 8]);
        assert!(cpu_list("").is_empty() && cpu_list("x-2").is_empty() && cpu_list("3-1").is_empty());
        assert!(cpu_list("0-99999999999").len() <= MOST_CPUS);
    }

    #[test]
    fn this_machines_cards() {
        for card in read() {
            assert!(card.rps.0 >= card.rps.1 && card.rx_ring.is_none_or(|(now, most)| now <= most), "{card:?}");
        }
        if let Ok(mut ethtool) = Ethtool::open() {
            let mut asked = 0;
            ethtool
                .ask(FEATURES_GET, "lo", |m| {
                    asked = bits(attributes(m).find(|a| a.0 == ACTIVE).map_or(&[][..], |a| a.1)).len()
                })
                .unwrap();
            assert!(asked > 3, "the loopback has its offloads on");
            assert!(ethtool.ask(RINGS_GET, "no-such-card", |_| ()).is_err());
        }
    }
}
