//! Bans on their way into the kernel: elements with a timeout in sets of nftables that the operator has made (netlink, `nf_tables`). The master has the rights; the
//! worker asks it. From: `workers`. Never waits: the kernel answers such a message at once.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};
use std::io;
use std::net::IpAddr;

/// A set that bans may go into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanSet {
    /// `NFPROTO_INET` and its like.
    pub family: u8,
    /// The table's name.
    pub table: Box<str>,
    /// The set's.
    pub name: Box<str>,
}

/// An address for a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Which set.
    pub set: BanSet,
    /// Who; of IPv6 the first address of a /64, all of which is meant.
    pub address: IpAddr,
    /// For how long, ms; 0: no longer.
    pub ms: u64,
}

/// Bytes of a message's head (`nlmsghdr`).
const HEAD: usize = 16;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`
const BATCH: [u16; 2] = [0x10, 0x11];
/// `NFNL_SUBSYS_NFTABLES`
const NFTABLES: u16 = 10;
/// `NFT_MSG_NEWSETELEM`, `NFT_MSG_DELSETELEM`
const NEW: u16 = NFTABLES << 8 | 12;
const DELETE: u16 = NFTABLES << 8 | 14;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_CREATE`
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
/// `NLMSG_ERROR`: an acknowledgement, too.
const ERROR: u16 = 2;
/// `NLA_F_NESTED`
const NESTED: u16 = 0x8000;
/// `NFT_SET_ELEM_INTERVAL_END`
const INTERVAL_END: u32 = 1;

/// How an address stands in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    /// As an interval: its first address, and the one behind its last.
    Interval,
    /// Alone, in a set without `flags interval`.
    Element,
}

/// Puts an address into its set, or takes it out.
pub(super) fn put(ban: &Ban) -> io::Result<()> {
    // Only the kernel knows which kind of set it is. Alone, an element of a set of intervals would stand for all addresses behind it.
    match send_as(ban, As::Interval) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) && ban.address.is_ipv4() => send_as(ban, As::Element),
        // All of it is there already, by the operator's own rules.
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        done => done,
    }
}

fn send_as(ban: &Ban, kind: As) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
    send(&socket, &messages(ban, kind), SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (n, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    match error_of(&answer[..n]) {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(number)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The number that the first acknowledgement of an answer has; 0: done.
fn error_of(bytes: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let number = i32::from_ne_bytes(bytes.get(HEAD..HEAD + 4)?.try_into().ok()?);
    (kind == ERROR).then_some(number.wrapping_neg())
}

/// What is banned: the first address, and the one behind the last, unless there is none.
fn range(address: IpAddr) -> (Vec<u8>, Option<Vec<u8>>) {
    match address {
        IpAddr::V4(ip) => {
            let behind = ip.to_bits().checked_add(1);
            (ip.octets().to_vec(), behind.map(|bits| bits.to_be_bytes().to_vec()))
        }
        IpAddr::V6(ip) => {
            let first = ip.to_bits() & !u128::from(u64::MAX);
            let behind = first.checked_add(1 << 64);
            (first.to_be_bytes().to_vec(), behind.map(|bits| bits.to_be_bytes().to_vec()))
        }
    }
}

fn messages(ban: &Ban, kind: As) -> Vec<u8> {
    let (first, behind) = range(ban.address);
    let mut element = attribute(1 | NESTED, &attribute(1, &first));
    if ban.ms > 0 {
        element.extend(attribute(4, &ban.ms.to_be_bytes()));
    }
    let mut elements = attribute(1 | NESTED, &element);
    if let (As::Interval, Some(behind)) = (kind, behind) {
        let end = [attribute(1 | NESTED, &attribute(1, &behind)), attribute(3, &INTERVAL_END.to_be_bytes())].concat();
        elements.extend(attribute(1 | NESTED, &end));
    }
    let text = |text: &str| [text.as_bytes(), b"\0"].concat();
    let body =
        [attribute(1, &text(&ban.set.table)), attribute(2, &text(&ban.set.name)), attribute(3 | NESTED, &elements)]
            .concat();
    let (kind, create) = if ban.ms > 0 { (NEW, CREATE) } else { (DELETE, 0) };
    [
        message(BATCH[0], REQUEST, 0, NFTABLES, &[]),
        message(kind, REQUEST | ACK | create, ban.set.family, 0, &body),
        message(BATCH[1], REQUEST, 0, NFTABLES, &[]),
    ]
    .concat()
}

/// `nlmsghdr` and `nfgenmsg`, then the attributes.
fn message(kind: u16, flags: u16, family: u8, resource: u16, body: &[u8]) -> Vec<u8> {
    let len = HEAD + 4 + body.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((len as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// `nlattr`, up to a multiple of four.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = 4 + value.len();
    let mut bytes = Vec::with_capacity(len.next_multiple_of(4));
    bytes.extend((len as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(len.next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_and_aligned() {
        let set = BanSet { family: 1, table: "guard".into(), name: "banned".into() };
        for kind in [As::Element, As::Interval] {
            let all = messages(&Ban { set: set.clone(), address: [192, 0, 2, 1].into(), ms: 1000 }, kind);
            let mut rest = all.as_slice();
            let mut kinds = Vec::new();
            while rest.len() >= HEAD {
                let len = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
                assert!(len.is_multiple_of(4) && len <= rest.len());
                kinds.push(u16::from_ne_bytes([rest[4], rest[5]]));
                rest = &rest[len..];
            }
            assert_eq!((kinds.as_slice(), rest), (&[BATCH[0], NEW, BATCH[1]][..], &[][..]));
            assert!(all.windows(4).any(|w| w == [192, 0, 2, 1]));
            assert_eq!(all.windows(4).any(|w| w == [192, 0, 2, 2]), kind == As::Interval);
        }
        assert_eq!(error_of(&[]), None);
    }

    #[test]
    fn of_ipv6_a_network_is_banned() {
        let of = |text: &str| {
            let (first, behind) = range(text.parse().expect("an address"));
            let show = |bytes: Vec<u8>| std::net::Ipv6Addr::from(<[u8; 16]>::try_from(bytes).expect("16")).to_string();
            (show(first), behind.map(show))
        };
        assert_eq!(of("2001:db8::7"), ("2001:db8::".into(), Some("2001:db8:0:1::".into())));
        assert_eq!(of("ffff:ffff:ffff:ffff::1"), ("ffff:ffff:ffff:ffff::".into(), None));
        assert_eq!(range([255; 4].into()).1, None);
    }
}
