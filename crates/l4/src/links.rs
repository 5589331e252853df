//! Which link addresses an interface takes frames for: its own, those of MACVLAN devices above it (keepalived's virtual ones are such), and that
//! of the bridge or bond it belongs to. The program leaves other frames to the stack: an interface that hears everything (a port of a bridge,
//! `tcpdump`) brings those for other machines, too. Asked of the kernel by netlink, since `/sys` may be that of another network namespace.

use crate::kernel::{Maps, chain};
use crate::layout::{LINK_ADDRESSES, LINKS, Link};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use std::collections::BTreeSet;
use std::io;

/// Bytes of an answer: the kernel fills at most 32 KiB for a dump.
const ROOM: usize = 64 << 10;
/// Datagrams of the answer: a machine has some ten thousand interfaces, with some dozens in each.
const DATAGRAMS_MAX: usize = 1 << 16;
/// Length, kind, flags, sequence, port; and what stands before the attributes of a link (`struct ifinfomsg`).
const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
/// linux/netlink.h, linux/rtnetlink.h, linux/if_link.h.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const BELOW: u16 = 5;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const INFO_KIND: u16 = 1;

/// What an address has bits for.
type Mac = u64;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Interface {
    index: u32,
    name: String,
    address: Option<Mac>,
    /// The device below, and whether this is a MACVLAN device on it.
    below: u32,
    is_macvlan: bool,
    master: u32,
}

/// The program knows from now on whose frames these interfaces take.
pub fn put(maps: &mut Maps, names: &BTreeSet<String>) -> Result<(), String> {
    let Some(map) = &mut maps.links else { return Ok(()) };
    let all = read().map_err(|e| format!("the kernel does not say which link addresses there are: {e}"))?;
    for interface in all.iter().filter(|i| names.contains(&i.name)) {
        // Of two with the same place the later one is looked at.
        let wanted = value(&all, interface).encode();
        let at = interface.index % LINKS;
        if map.get(&at, 0).map_err(|e| chain(&e))? != wanted {
            map.set(at, wanted, 0).map_err(|e| chain(&e))?;
        }
    }
    Ok(())
}

/// More addresses than there is room for, or none: the place stays free, and all frames are taken.
fn value(all: &[Interface], of: &Interface) -> Link {
    let above =
        all.iter().filter(|i| (i.is_macvlan && i.below == of.index) || (of.master != 0 && i.index == of.master));
    let others: BTreeSet<Mac> = above.filter_map(|i| i.address).filter(|a| Some(*a) != of.address).collect();
    let Some(own) = of.address.filter(|_| others.len() < LINK_ADDRESSES) else { return Link::default() };
    let mut link = Link { ifindex: of.index, count: 1 + others.len() as u32, ..Link::default() };
    for (place, address) in link.addresses.iter_mut().zip(std::iter::once(own).chain(others)) {
        *place = address;
    }
    link
}

fn read() -> io::Result<Vec<Interface>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut question = Vec::with_capacity(HEADER + LINK_HEADER);
    question.extend(((HEADER + LINK_HEADER) as u32).to_ne_bytes());
    question.extend(GET_LINK.to_ne_bytes());
    question.extend(REQUEST_DUMP.to_ne_bytes());
    question.resize(HEADER + LINK_HEADER, 0);
    sendto(&socket, &question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let (mut all, mut buffer) = (Vec::new(), vec![0; ROOM]);
    for _ in 0..DATAGRAMS_MAX {
        let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::TRUNC)?;
        let answer = buffer.get(..length).ok_or_else(|| io::Error::other("an answer was cut"))?;
        if take(answer, &mut all)? {
            return Ok(all);
        }
    }
    Err(io::Error::other("the answer has no end"))
}

/// Reads a datagram of the answer; true at its end.
fn take(mut bytes: &[u8], all: &mut Vec<Interface>) -> io::Result<bool> {
    while let Some((kind, payload, rest)) = message(bytes) {
        bytes = rest;
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let code = number(payload).unwrap_or(0) as i32;
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            NEW_LINK => all.extend(interface(payload)),
            _ => {}
        }
    }
    Ok(false)
}

fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = number(bytes)? as usize;
    let whole = bytes.get(..length).filter(|w| w.len() >= HEADER)?;
    let kind = u16::from_ne_bytes(whole.get(4..6)?.try_into().ok()?);
    Some((kind, &whole[HEADER..], bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn interface(payload: &[u8]) -> Option<Interface> {
    let mut found = Interface { index: number(payload.get(4..)?)?, ..Interface::default() };
    let mut rest = payload.get(LINK_HEADER..)?;
    while let Some((kind, value, next)) = attribute(rest) {
        rest = next;
        match kind {
            ADDRESS if value.len() == 6 => {
                found.address = Some(value.iter().rev().fold(0, |all, octet| all << 8 | Mac::from(*octet)));
            }
            NAME => found.name = text(value),
            BELOW => found.below = number(value)?,
            MASTER => found.master = number(value)?,
            INFO => {
                let mut inner = value;
                while let Some((kind, value, next)) = attribute(inner) {
                    inner = next;
                    found.is_macvlan |= kind == INFO_KIND && text(value) == "macvlan";
                }
            }
            _ => {}
        }
    }
    Some(found)
}

fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
    // The two highest bits are flags.
    let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & 0x3fff;
    let value = bytes.get(4..length)?;
    Some((kind, value, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn link(index: u32, name: &str, last: u8, more: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0; LINK_HEADER];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body.extend(attribute_of(NAME, format!("{name}\0").as_bytes()));
        body.extend(attribute_of(ADDRESS, &[2, 0, 0, 0, 9, last]));
        body.extend(more.concat());
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(NEW_LINK.to_ne_bytes());
        message.resize(HEADER, 0);
        [message, body].concat()
    }

    #[test]
    fn an_interface_takes_frames_for_itself_and_for_what_is_above_it() {
        let kind = |kind: &str| attribute_of(INFO, &attribute_of(INFO_KIND, format!("{kind}\0").as_bytes()));
        let below = |index: u32| attribute_of(BELOW, &index.to_ne_bytes());
        let master = attribute_of(MASTER, &9u32.to_ne_bytes());
        let bytes = [
            link(2, "eth0", 2, &[master]),
            link(3, "vrrp.51", 3, &[below(2), kind("macvlan")]),
            link(4, "peer", 4, &[below(2), kind("veth")]),
            link(9, "br0", 9, &[]),
        ]
        .concat();
        let mut all = Vec::new();
        assert!(!take(&bytes, &mut all).unwrap());
        let mac = |last: u64| 2 | 9 << 32 | last << 40;
        let link = value(&all, &all[0]);
        assert_eq!((link.ifindex, link.count, &link.addresses[..4]), (2, 3, &[mac(2), mac(3), mac(9), 0][..]));
        assert_eq!(value(&all, &all[3]).count, 1);
        for end in 0..bytes.len() {
            let _ = take(&bytes[..end], &mut Vec::new());
        }
        let many: Vec<Interface> = (0..8)
            .map(|n| Interface {
                index: 20 + n,
                address: Some(n.into()),
                below: 2,
                is_macvlan: true,
                ..Interface::default()
            })
            .collect();
        let all = [&all[..1], &many].concat();
        assert_eq!(value(&all, &all[0]), Link::default(), "it would leave out some");
    }
}
