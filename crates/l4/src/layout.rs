//! The bytes that the program in the kernel and user space share: `bpf/types.h` in Rust. Maps are given arrays of bytes, so
//! no structure of ours is ever cast, and the compiler may lay it out as it likes.

use std::net::{IpAddr, Ipv6Addr};

/// Slots of a Maglev table (`RING_SLOTS`).
pub const RING_SLOTS: u32 = balance::MAGLEV_SLOTS;
/// Real servers that "least connections" looks at (`LEAST_MAX`).
pub const LEAST_MAX: usize = 128;
/// Bounds of the histogram of packet sizes (`SIZE_BOUNDS`): bytes of a frame, exclusive. The last bucket is what is larger.
pub const SIZE_BOUNDS: [u32; 7] = [75, 128, 256, 512, 1024, 1280, 1515];

/// Interfaces whose link addresses the program knows (`LINKS`): each has the place of its number, cut to these.
pub const LINKS: u32 = 256;
/// Link addresses of one of them (`LINK_ADDRESSES`).
pub const LINK_ADDRESSES: usize = 7;

/// Flags of a service (`enum service_flag`).
pub mod service_flag {
    /// An idle flow is reset, not dropped.
    pub const RESET: u8 = 1;
    /// What real servers send without a flow gets the service's address.
    pub const ADOPT_RETURN: u8 = 2;
    /// A client's next flows go where its first went.
    pub const AFFINITY: u8 = 4;
    /// The source port counts in the hash.
    pub const HASH_PORT: u8 = 8;
    /// QUIC's connection ids name the real server.
    pub const QUIC: u8 = 16;
    /// Flows of real servers that leave are reset. The program does not look at this one.
    pub const DROP_REMOVED: u8 = 32;
}

/// Flags of a real server (`enum real_flag`).
pub mod real_flag {
    /// Gets new flows.
    pub const USABLE: u16 = 1;
    /// Avoided while there are others.
    pub const FULL: u16 = 2;
    /// Its flows are reset.
    pub const RESET: u16 = 4;
    /// No longer in the plan; its number is free when it has no flow. The program does not look at this one.
    pub const GONE: u16 = 8;
}

/// States of a flow (`enum flow_state`).
pub mod flow_state {
    /// FIN was seen in this direction.
    pub const FIN: u8 = 1;
    /// No longer counted among the real server's.
    pub const CLOSED: u8 = 2;
    /// Was reset for its idleness.
    pub const DEAD: u8 = 4;
    /// A cookie has come back, and the real server has not answered yet.
    pub const OPENING: u8 = 8;
    /// Numbers differ at the two ends.
    pub const SHIFTED: u8 = 16;
    /// On the way back: the real server has sent something.
    pub const ANSWERED: u8 = 32;
}

/// Kinds of a flow's entry (`enum flow_kind`).
pub mod flow_kind {
    /// From the client.
    pub const FORWARD: u8 = 0;
    /// From the real server.
    pub const RETURN: u8 = 1;
    /// Not ours, though a real server's port sends it.
    pub const STRANGER: u8 = 2;
}

/// `enum choice`
pub mod choice {
    /// By hash, in a Maglev table.
    pub const HASH: u8 = 0;
    /// In turns, along a list.
    pub const TURN: u8 = 1;
    /// The fewest flows for its weight.
    pub const LEAST: u8 = 2;
}

/// A value as it stands in a map.
pub trait Field: Sized {
    /// Bytes.
    const SIZE: usize;
    /// Writes exactly `SIZE` bytes.
    fn put(&self, to: &mut [u8]);
    /// Reads exactly `SIZE` bytes.
    fn take(from: &[u8]) -> Self;
}

macro_rules! host_order {
    ($($number:ty),*) => {$(
        impl Field for $number {
            const SIZE: usize = size_of::<$number>();
            fn put(&self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_ne_bytes());
            }
            fn take(from: &[u8]) -> Self {
                Self::from_ne_bytes(from.try_into().expect("a field is cut to its size"))
            }
        }
    )*};
}
host_order!(u8, u16, u32, u64);

/// A port, in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(pub u16);

impl Field for Port {
    const SIZE: usize = 2;
    fn put(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.0.to_be_bytes());
    }
    fn take(from: &[u8]) -> Self {
        Port(u16::from_be_bytes([from[0], from[1]]))
    }
}

/// An address: IPv4 is mapped into IPv6 (`struct addr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr(pub Ipv6Addr);

impl Default for Addr {
    fn default() -> Self {
        Addr(Ipv6Addr::UNSPECIFIED)
    }
}

impl From<IpAddr> for Addr {
    fn from(address: IpAddr) -> Self {
        Addr(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        })
    }
}

impl Addr {
    /// As people write it.
    pub fn ip(self) -> IpAddr {
        self.0.to_canonical()
    }
}

impl Field for Addr {
    const SIZE: usize = 16;
    fn put(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.0.octets());
    }
    fn take(from: &[u8]) -> Self {
        let octets: [u8; 16] = from.try_into().expect("a field is cut to its size");
        Addr(octets.into())
    }
}

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    const SIZE: usize = T::SIZE * N;
    fn put(&self, to: &mut [u8]) {
        for (item, part) in self.iter().zip(to.chunks_exact_mut(T::SIZE)) {
            item.put(part);
        }
    }
    fn take(from: &[u8]) -> Self {
        let mut all = [T::default(); N];
        for (item, part) in all.iter_mut().zip(from.chunks_exact(T::SIZE)) {
            *item = T::take(part);
        }
        all
    }
}

macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $field: $kind,)*
        }

        impl $name {
            /// Bytes in the map.
            pub const SIZE: usize = $size;

            /// As the program reads it.
            pub fn encode(&self) -> [u8; $size] {
                const { assert!(0 $(+ <$kind as Field>::SIZE)* == $size, "a layout has the size that types.h gives it") };
                let mut bytes = [0; $size];
                let mut rest = &mut bytes[..];
                $(
                    let (part, more) = rest.split_at_mut(<$kind as Field>::SIZE);
                    self.$field.put(part);
                    rest = more;
                )*
                debug_assert!(rest.is_empty());
                bytes
            }

            /// As the program wrote it.
            pub fn decode(bytes: &[u8; $size]) -> Self {
                let rest = &bytes[..];
                $(
                    let (part, rest) = rest.split_at(<$kind as Field>::SIZE);
                    let $field = <$kind as Field>::take(part);
                )*
                debug_assert!(rest.is_empty());
                $name { $($field,)* }
            }
        }
    )*};
}

layout! {
    /// `struct service_key`
    ServiceKey: 20 { addr: Addr, port: Port, proto: u8, zero: u8, }

    /// `struct service`
    Service: 104 {
        idle_ns: u64,
        affinity_ns: u64,
        ring: u32,
        slots: u32,
        seed: u32,
        sources: u32,
        source_count: u32,
        port: Port,
        gue_port: Port,
        addr: Addr,
        tunnel4: Addr,
        tunnel6: Addr,
        mode: u8,
        choice: u8,
        flags: u8,
        proto: u8,
        used: u32,
        cookies: u32,
        retired: u32,
    }

    /// `struct real`
    Real: 32 { addr: Addr, port: Port, flags: u16, service: u32, weight: u32, mtu: u32, }

    /// `struct flow_key`
    FlowKey: 40 { src: Addr, dst: Addr, sport: Port, dport: Port, proto: u8, zero: [u8; 3], }

    /// `struct flow`
    Flow: 64 {
        src: Addr,
        dst: Addr,
        sport: Port,
        dport: Port,
        real: u32,
        last: u64,
        service: u16,
        mode: u8,
        kind: u8,
        state: u8,
        zero: [u8; 3],
        seq: u32,
        mss: u32,
    }

    /// `struct fragment_key`
    FragmentKey: 40 { src: Addr, dst: Addr, id: [u8; 4], proto: u8, zero: [u8; 3], }

    /// `struct affinity_key`
    AffinityKey: 20 { client: Addr, service: u32, }

    /// `struct affinity`
    Affinity: 16 { last: u64, real: u32, zero: u32, }

    /// `struct back_key`
    BackKey: 20 { addr: Addr, port: Port, proto: u8, zero: u8, }

    /// `struct back`
    Back: 12 { service: u32, real: u32, many: u32, }

    /// `struct quic_key`
    QuicKey: 8 { service: u32, server_id: u16, zero: u16, }

    /// `struct counters`
    Counters: 104 { flows: u64, in_packets: u64, in_bytes: u64, out_packets: u64, out_bytes: u64, sizes: [u64; 8], }

    /// `struct reset_event`
    ResetEvent: 48 {
        src: Addr,
        dst: Addr,
        sport: Port,
        dport: Port,
        seq: [u8; 4],
        ack: [u8; 4],
        flags: u8,
        zero: [u8; 3],
    }

    /// `struct secret`
    Secret: 16 { k0: u64, k1: u64, }

    /// `struct link`
    Link: 64 { ifindex: u32, count: u32, addresses: [u64; LINK_ADDRESSES], }

    /// `struct recent_keys`
    RecentKeys: 184 { keys: [u64; 22], lines: u32, zero: u32, }
}

/// What the index of recent flows may keep to itself of a flow's last packet (`recent_ns`): a part of its idle time, a minute at most.
pub fn recent_ns(idle_ns: u64) -> u64 {
    const PART: u64 = 16;
    const MAX: u64 = 60_000_000_000;
    if idle_ns == 0 { MAX } else { (idle_ns / PART).min(MAX) }
}

impl Counters {
    /// The sum of two.
    pub fn plus(mut self, other: &Counters) -> Counters {
        self.flows += other.flows;
        self.in_packets += other.in_packets;
        self.in_bytes += other.in_bytes;
        self.out_packets += other.out_packets;
        self.out_bytes += other.out_bytes;
        for (sum, more) in self.sizes.iter_mut().zip(other.sizes) {
            *sum += more;
        }
        self
    }
}

/// `enum event`, in order: what the program counts of packets as a whole, with the words tables show.
pub const EVENTS: [(&str, &str); 19] = [
    ("passed", "left to the stack"),
    ("forwarded", "sent to real servers"),
    ("returned", "sent back to clients"),
    ("no_real", "left to the stack: no real server gets new flows"),
    ("no_flow", "left to the stack: no flow, and the choice is not a hash"),
    ("adopted", "flows that another balancer began"),
    ("expired", "dropped: the flow was idle for too long"),
    ("reset", "answered with RST"),
    ("ttl", "hop limit used up: clients are told"),
    ("no_neighbour", "the next hop's link address is not known yet"),
    ("no_route", "dropped: no route"),
    ("too_big", "larger than the path takes: the sender is told"),
    ("no_port", "dropped: full NAT has no source port left"),
    ("icmp", "ICMP errors passed on"),
    ("fragment", "left to the stack: a fragment whose first part was not seen"),
    ("path_mtu", "path MTU of a tunnel learned"),
    ("cookie", "SYNs answered with a cookie"),
    ("proved", "flows that began with a cookie"),
    ("foreign", "left to the stack: for another machine's link address"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let flow = Flow {
            src: IpAddr::from([10, 9, 1, 2]).into(),
            dport: Port(0x1234),
            last: 0x0102_0304_0506_0708,
            service: 7,
            kind: flow_kind::RETURN,
            ..Flow::default()
        };
        let bytes = flow.encode();
        assert_eq!(&bytes[10..16], &[0xff, 0xff, 10, 9, 1, 2]);
        assert_eq!(&bytes[34..36], &[0x12, 0x34]);
        assert_eq!(Flow::decode(&bytes), flow);
        assert_eq!(flow.src.ip(), IpAddr::from([10, 9, 1, 2]));
    }
}
