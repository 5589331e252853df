//! All sockets of this network namespace, by `sock_diag`: how many in which state, the queues of those that listen, and how many
//! connections go to which destination. One pass without an allocation for each socket. Where there are very many, a sample of the connections is
//! looked at ([`crate::sample`]) and held against the kernel's own sums, so that a million of them take less than a second.

use crate::counters::Sockstat;
use crate::netlink::{Netlink, attributes, bytes_at, put_attribute};
use crate::sample;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// `TCPDIAG_GETSOCK`, and the size of its request, `struct inet_diag_req`.
const OF_ANY_FAMILY: u16 = 18;
const OLD_REQUEST: usize = 60;
const TCP: u8 = 6;
const UDP: u8 = 17;
const INET: u8 = 2;
const INET6: u8 = 10;
const UNIX: u8 = 1;
/// The size of `struct inet_diag_req_v2`, and of the socket's name in it.
const REQUEST: usize = 56;
/// The attribute of a request that holds a filter.
const BYTECODE: u16 = 1;
/// Ports that a filter asks for: each is some comparisons for each socket.
const MOST_FILTERED: usize = 64;
/// From how many sockets on (`/proc/net/sockstat`) a sample is looked at: these take a fifth of a second.
const MANY: u64 = 100_000;
/// Of fewer connections than these a sample may have few by chance.
const TELLING: u64 = 512;
/// The size of `struct inet_diag_msg`.
const INET_MESSAGE: usize = 72;
/// The size of `struct unix_diag_msg`; its attributes `UNIX_DIAG_NAME` and `UNIX_DIAG_RQLEN`; what a request asks for.
const UNIX_MESSAGE: usize = 16;
const UNIX_NAME: u16 = 0;
const UNIX_QUEUES: u16 = 4;
const SHOW_NAME_AND_QUEUES: u32 = 0x1 | 0x10;

/// `TCP_LISTEN` and its neighbours of `net/tcp_states.h`.
const LISTEN: u8 = 10;
const STATES: [&str; 13] = [
    "none",
    "established",
    "syn_sent",
    "syn_recv",
    "fin_wait1",
    "fin_wait2",
    "time_wait",
    "close",
    "close_wait",
    "last_ack",
    "listen",
    "closing",
    "syn_recv",
];
/// All states of connections. Bit 13 is left out: it asks for sockets that are bound and nothing more (Linux 6.8), for which the kernel walks another
/// table.
const CONNECTIONS: u32 = 0x1ffe & !(1 << LISTEN);
const ESTABLISHED: u8 = 1;
const TIME_WAIT: u8 = 6;

/// Destinations that are told apart; the connections to more are only counted by state.
const MOST_DESTINATIONS: usize = 65_536;
/// Destinations that are kept: those with the most connections.
const KEPT_DESTINATIONS: usize = 32;
/// Listeners that are kept.
const KEPT_LISTENERS: usize = 4_096;

/// See the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sockets {
    /// TCP sockets by state, in the kernel's words and small letters: `established`, `time_wait`.
    pub tcp: BTreeMap<String, u64>,
    /// TCP sockets that belong to no process any more and are not in TIME_WAIT.
    pub orphans: u64,
    /// Those that listen: TCP, and unix sockets of streams.
    pub listeners: Vec<Listener>,
    /// Where UDP sockets without a peer are.
    pub udp: Vec<Bound>,
    /// Where connections go that this machine opened, most first.
    pub destinations: Vec<Destination>,
    /// Destinations were more than can be told apart.
    #[serde(default)]
    pub is_cut: bool,
    /// One connection of so many was looked at, and the numbers of connections are estimates; 0: all were.
    #[serde(default)]
    pub one_of: u64,
    /// How long the count took, microseconds.
    pub took_us: u64,
}

/// A socket that listens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// `127.0.0.1:80`, `[::]:80`, or the path of a unix socket.
    pub address: String,
    /// Its port; 0: a unix socket.
    pub port: u16,
    /// Connections that wait to be accepted.
    pub queue: u32,
    /// How many may wait.
    pub backlog: u32,
    /// By which processes are found.
    pub inode: u64,
    /// Connections to its port, in any state but TIME_WAIT.
    #[serde(default)]
    pub connections: u64,
}

/// A UDP socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// As [`Listener::address`].
    pub address: String,
    /// Its port.
    pub port: u16,
    /// By which processes are found.
    pub inode: u64,
}

/// Connections from one address to one address and port. They share one set of local ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Destination {
    /// The local address.
    pub from: String,
    /// Address and port.
    pub to: String,
    /// All of them.
    pub total: u64,
    /// Of those, established.
    pub established: u64,
    /// Of those, in TIME_WAIT.
    pub time_wait: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Way {
    from: IpAddr,
    to: IpAddr,
    port: u16,
}

/// One socket as the kernel tells it.
pub(crate) struct Told {
    state: u8,
    pub(crate) from: IpAddr,
    pub(crate) from_port: u16,
    to: IpAddr,
    to_port: u16,
    pub(crate) queue: u32,
    pub(crate) room: u32,
    inode: u32,
}

impl Told {
    /// `struct inet_diag_msg`; nothing if it is cut.
    fn read(bytes: &[u8]) -> Option<Told> {
        let b = bytes.get(..INET_MESSAGE)?;
        let address = |at: usize| match b[0] {
            INET => IpAddr::V4(Ipv4Addr::from(bytes_at::<4>(b, at))),
            _ => IpAddr::V6(Ipv6Addr::from(bytes_at::<16>(b, at))).to_canonical(),
        };
        Some(Told {
            state: b[1],
            from_port: u16::from_be_bytes(bytes_at(b, 4)),
            to_port: u16::from_be_bytes(bytes_at(b, 6)),
            from: address(8),
            to: address(24),
            queue: u32::from_ne_bytes(bytes_at(b, 56)),
            room: u32::from_ne_bytes(bytes_at(b, 60)),
            inode: u32::from_ne_bytes(bytes_at(b, 68)),
        })
    }
}

impl Sockets {
    /// Counts them.
    ///
    /// # Errors
    /// If the kernel has no `sock_diag` for TCP.
    pub fn read() -> io::Result<Sockets> {
        let sums = sums();
        Sockets::read_with((sums.in_use + sums.time_wait > MANY).then_some(sums))
    }

    /// All of them, or a sample that is brought to these sums.
    fn read_with(sums: Option<Sockstat>) -> io::Result<Sockets> {
        let began = std::time::Instant::now();
        let mut netlink = Netlink::sock_diag()?;
        let mut count = Count::new();
        count.is_sample = sums.is_some();
        for family in [INET, INET6] {
            netlink.dump(BY_FAMILY, &request(family, TCP, 1 << LISTEN), |_, m| count.listener(m))?;
        }
        let filter = sums.map(|_| sample::filter());
        connections(&mut netlink, filter.as_deref(), |m| count.connection(m))?;
        for family in [INET, INET6] {
            // A kernel without udp_diag has no UDP to tell of.
            let _ = netlink.dump(BY_FAMILY, &request(family, UDP, !0), |_, m| count.datagrams(m));
        }
        let _ = netlink.dump(BY_FAMILY, &unix_request(), |_, m| count.unix(m));
        if let Some(sums) = sums {
            if count.is_beside(&sums) {
                return Sockets::read_with(None);
            }
            count.bring_to(&sums);
        }
        let mut sockets = count.finish();
        sockets.took_us = began.elapsed().as_micros() as u64;
        Ok(sockets)
    }

    /// TCP sockets in a state.
    pub fn in_state(&self, state: &str) -> u64 {
        self.tcp.get(state).copied().unwrap_or(0)
    }
}

/// The kernel's own sums, of both families of addresses.
fn sums() -> Sockstat {
    let sums = Sockstat::read();
    let text = crate::own::proc_net("sockstat6");
    let six = text.lines().find_map(|l| l.strip_prefix("TCP6: inuse ")?.trim().parse::<u64>().ok()).unwrap_or(0);
    Sockstat { in_use: sums.in_use + six, ..sums }
}

/// Counts one message of each kind from the same bytes. For fuzzing.
pub fn count(message: &[u8]) -> Sockets {
    let mut count = Count::new();
    count.connection(message);
    count.datagrams(message);
    count.unix(message);
    count.listener(message);
    count.finish()
}

/// A TCP connection whose local port somebody else may need.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// The local port.
    pub port: u16,
    /// Where packets come from.
    pub from: String,
    /// Where packets go.
    pub to: String,
    /// By which its process is found; 0: none has it any more.
    pub inode: u64,
    /// `established`, `time_wait`.
    pub state: String,
}

/// Connections that have one of these local ports, but for those that were accepted there (where somebody listens on the port).
///
/// # Errors
/// If the kernel has no `sock_diag` for TCP.
pub fn users(ports: &[u16]) -> io::Result<Vec<User>> {
    let mut netlink = Netlink::sock_diag()?;
    let mut is_wanted = vec![false; 1 << 16];
    ports.iter().for_each(|p| is_wanted[usize::from(*p)] = true);
    for family in [INET, INET6] {
        netlink.dump(BY_FAMILY, &request(family, TCP, 1 << LISTEN), |_, m| {
            Told::read(m).into_iter().for_each(|s| is_wanted[usize::from(s.from_port)] = false);
        })?;
    }
    let mut users = Vec::new();
    let wanted: Vec<u16> = (0..=u16::MAX).filter(|port| is_wanted[usize::from(*port)]).collect();
    if wanted.is_empty() {
        return Ok(users);
    }
    // The kernel tells of these ports only: of a million connections it would tell for a second.
    let filter = (wanted.len() <= MOST_FILTERED).then(|| sample::with_ports(&wanted));
    connections(&mut netlink, filter.as_deref(), |m| {
        let told = Told::read(m).filter(|s| is_wanted[usize::from(s.from_port)] && users.len() < KEPT_LISTENERS);
        users.extend(told.map(|s| User {
            port: s.from_port,
            from: SocketAddr::new(s.from, s.from_port).to_string(),
            to: SocketAddr::new(s.to, s.to_port).to_string(),
            inode: u64::from(s.inode),
            state: STATES[usize::from(s.state).min(STATES.len() - 1)].to_owned(),
        }));
    })?;
    Ok(users)
}

/// Connections to these destinations from each local address, in any state: each of them holds one of that address's ports. None of those that
/// were accepted here. Most first.
///
/// # Errors
/// If the kernel has no `sock_diag` for TCP.
pub fn towards(destinations: &[SocketAddr]) -> io::Result<Vec<Destination>> {
    let canonical = |a: &SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
    let wanted: HashSet<SocketAddr> = destinations.iter().map(canonical).collect();
    let mut ports: Vec<u16> = wanted.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let mut count = Count::new();
    let filter = (ports.len() <= MOST_FILTERED).then(|| sample::to_ports(&ports));
    connections(&mut Netlink::sock_diag()?, filter.as_deref(), |m| {
        if Told::read(m).is_some_and(|s| wanted.contains(&SocketAddr::new(s.to, s.to_port))) {
            count.connection(m);
        }
    })?;
    Ok(count.all_destinations())
}

/// All TCP connections, or those that a filter takes; `each` gets a message.
///
/// Both families are asked for at once, by the question of before Linux 3.3, which names none: the kernel walks the one table of all connections for each
/// question, and that is most of what many of them cost. A kernel that no longer knows it is asked twice.
fn connections(netlink: &mut Netlink, filter: Option<&[u8]>, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let with_filter = |request: &[u8]| {
        let mut asked = request.to_vec();
        if let Some(filter) = filter {
            put_attribute(&mut asked, BYTECODE, filter);
        }
        asked
    };
    let mut is_told = false;
    let both = netlink.dump(OF_ANY_FAMILY, &with_filter(&request_of_any_family(CONNECTIONS)), |_, m| {
        is_told = true;
        each(m);
    });
    if both.is_ok() || is_told {
        return both;
    }
    *netlink = Netlink::sock_diag()?;
    [INET, INET6].into_iter().try_for_each(|family| {
        netlink.dump(BY_FAMILY, &with_filter(&request(family, TCP, CONNECTIONS)), |_, m| each(m))
    })
}

/// TCP sockets that listen; `each` gets one and its attributes. `more`: which of those are asked for (`idiag_ext`).
pub(crate) fn tcp_listeners(netlink: &mut Netlink, more: u8, mut each: impl FnMut(&Told, &[u8])) -> io::Result<()> {
    for family in [INET, INET6] {
        let mut request = request(family, TCP, 1 << LISTEN);
        request[2] = more;
        netlink.dump(BY_FAMILY, &request, |_, m| {
            if let Some(told) = Told::read(m) {
                each(&told, &m[INET_MESSAGE..]);
            }
        })?;
    }
    Ok(())
}

fn request(family: u8, protocol: u8, states: u32) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    (request[0], request[1]) = (family, protocol);
    request[4..8].copy_from_slice(&states.to_ne_bytes());
    request
}

/// `struct inet_diag_req`: the family that it has room for is not looked at.
fn request_of_any_family(states: u32) -> [u8; OLD_REQUEST] {
    let mut request = [0; OLD_REQUEST];
    request[OLD_REQUEST - 8..OLD_REQUEST - 4].copy_from_slice(&states.to_ne_bytes());
    request
}

fn unix_request() -> [u8; 24] {
    let mut request = [0; 24];
    request[0] = UNIX;
    request[4..8].copy_from_slice(&(1_u32 << LISTEN).to_ne_bytes());
    request[12..16].copy_from_slice(&SHOW_NAME_AND_QUEUES.to_ne_bytes());
    request
}

#[derive(Default)]
struct Count {
    states: [u64; STATES.len()],
    orphans: u64,
    listeners: Vec<Listener>,
    udp: Vec<Bound>,
    is_listened: Vec<bool>,
    by_port: Vec<u64>,
    ways: HashMap<Way, Destination>,
    is_cut: bool,
    is_sample: bool,
}

impl Count {
    fn new() -> Count {
        Count { is_listened: vec![false; 1 << 16], by_port: vec![0; 1 << 16], ..Count::default() }
    }

    fn listener(&mut self, message: &[u8]) {
        let Some(s) = Told::read(message).filter(|_| self.listeners.len() < KEPT_LISTENERS) else { return };
        self.states[usize::from(LISTEN)] += 1;
        self.is_listened[usize::from(s.from_port)] = true;
        let address = SocketAddr::new(s.from, s.from_port).to_string();
        let (queue, backlog, inode) = (s.queue, s.room, u64::from(s.inode));
        self.listeners.push(Listener { address, port: s.from_port, queue, backlog, inode, connections: 0 });
    }

    fn connection(&mut self, message: &[u8]) {
        let Some(s) = Told::read(message) else { return };
        let is_accepted = self.is_listened[usize::from(s.from_port)];
        // The port that was chosen at random, here or there: the other one is that of a service, and all of its connections have it.
        if self.is_sample && !sample::has(if is_accepted { s.to_port } else { s.from_port }) {
            return;
        }
        self.states[usize::from(s.state).min(STATES.len() - 1)] += 1;
        // syn_recv has no process yet, time_wait none any more.
        self.orphans += u64::from(s.inode == 0 && matches!(s.state, 4 | 5 | 9 | 11));
        if is_accepted {
            self.by_port[usize::from(s.from_port)] += u64::from(s.state != TIME_WAIT);
            return;
        }
        if s.to_port == 0 {
            return;
        }
        let way = Way { from: s.from, to: s.to, port: s.to_port };
        if self.ways.len() >= MOST_DESTINATIONS && !self.ways.contains_key(&way) {
            self.is_cut = true;
            return;
        }
        let destination = self.ways.entry(way).or_default();
        destination.total += 1;
        destination.established += u64::from(s.state == ESTABLISHED);
        destination.time_wait += u64::from(s.state == TIME_WAIT);
    }

    fn datagrams(&mut self, message: &[u8]) {
        let Some(s) = Told::read(message).filter(|s| s.to_port == 0 && self.udp.len() < KEPT_LISTENERS) else { return };
        let address = SocketAddr::new(s.from, s.from_port).to_string();
        self.udp.push(Bound { address, port: s.from_port, inode: u64::from(s.inode) });
    }

    fn unix(&mut self, message: &[u8]) {
        if message.len() < UNIX_MESSAGE || message[2] != LISTEN || self.listeners.len() >= KEPT_LISTENERS {
            return;
        }
        let mut listener =
            Listener { inode: u64::from(u32::from_ne_bytes(bytes_at(message, 4))), ..Listener::default() };
        for (kind, value) in attributes(&message[UNIX_MESSAGE..]) {
            match kind {
                UNIX_NAME => {
                    // A name of the abstract kind begins with a zero, and is written with @.
                    let name = String::from_utf8_lossy(value);
                    listener.address = match name.strip_prefix('\0') {
                        Some(rest) => format!("@{}", rest.replace('\0', "@")),
                        None => name.trim_end_matches('\0').to_owned(),
                    };
                }
                UNIX_QUEUES => {
                    listener.queue = u32::from_ne_bytes(bytes_at(value, 0));
                    listener.backlog = u32::from_ne_bytes(bytes_at(value, 4));
                }
                _ => {}
            }
        }
        self.listeners.push(listener);
    }

    /// The sample has less than half of what would be its part of those in TIME_WAIT or of the rest: ports are not spread over it (a narrow
    /// `ip_local_port_range`).
    fn is_beside(&self, sums: &Sockstat) -> bool {
        let (listeners, waits) = (self.states[usize::from(LISTEN)], self.states[usize::from(TIME_WAIT)]);
        let others = self.states.iter().sum::<u64>() - listeners - waits;
        let is_short = |seen: u64, all: u64| all >= TELLING && seen * sample::ONE_OF * 2 < all;
        is_short(waits, sums.time_wait) || is_short(others, sums.in_use.saturating_sub(listeners))
    }

    /// Makes what was counted of a sample numbers of all connections: TIME_WAIT and the rest have the sums that the kernel has counted itself.
    fn bring_to(&mut self, sums: &Sockstat) {
        let waits = self.states[usize::from(TIME_WAIT)];
        // What has no socket yet or is a listener is not in the kernel's sum, or was counted one by one.
        let listeners = self.states[usize::from(LISTEN)];
        let is_other = |state: usize| !matches!(state as u8, LISTEN | TIME_WAIT | 3 | 12);
        let others: u64 = self.states.iter().enumerate().filter(|(state, _)| is_other(*state)).map(|(_, n)| n).sum();
        let of_waits = Scale { from: waits, to: sums.time_wait };
        let of_others = Scale { from: others, to: sums.in_use.saturating_sub(listeners) };
        let mut rounded = sums.in_use.saturating_sub(listeners);
        for (state, count) in self.states.iter_mut().enumerate() {
            *count = match state as u8 {
                LISTEN => *count,
                TIME_WAIT => of_waits.of(*count),
                _ if is_other(state) => of_others.of(*count),
                _ => *count * sample::ONE_OF,
            };
            rounded = rounded.saturating_sub(if is_other(state) { *count } else { 0 });
        }
        // What rounding has left belongs to the state with most.
        let most = (0..self.states.len()).filter(|state| is_other(*state)).max_by_key(|state| self.states[*state]);
        if let Some(most) = most.filter(|most| self.states[*most] > 0) {
            self.states[most] += rounded;
        }
        self.orphans = of_others.of(self.orphans);
        self.by_port.iter_mut().for_each(|n| *n = of_others.of(*n));
        for way in self.ways.values_mut() {
            let rest = way.total - way.time_wait;
            way.established = of_others.of(way.established);
            way.time_wait = of_waits.of(way.time_wait);
            way.total = of_others.of(rest) + way.time_wait;
        }
    }

    fn all_destinations(self) -> Vec<Destination> {
        let mut ways: Vec<(Way, Destination)> = self.ways.into_iter().collect();
        sort(&mut ways);
        ways.into_iter().map(named).collect()
    }

    fn finish(mut self) -> Sockets {
        for listener in &mut self.listeners {
            listener.connections = self.by_port[usize::from(listener.port)];
        }
        let mut destinations: Vec<(Way, Destination)> = std::mem::take(&mut self.ways).into_iter().collect();
        sort(&mut destinations);
        destinations.truncate(KEPT_DESTINATIONS);
        let mut tcp = BTreeMap::new();
        for (name, count) in STATES.iter().zip(self.states).filter(|(_, count)| *count > 0) {
            *tcp.entry((*name).to_owned()).or_default() += count;
        }
        Sockets {
            tcp,
            orphans: self.orphans,
            listeners: self.listeners,
            udp: self.udp,
            destinations: destinations.into_iter().map(named).collect(),
            is_cut: self.is_cut,
            one_of: if self.is_sample { sample::ONE_OF } else { 0 },
            took_us: 0,
        }
    }
}

/// Most first.
fn sort(ways: &mut [(Way, Destination)]) {
    ways.sort_by(|a, b| b.1.total.cmp(&a.1.total).then(a.0.to.cmp(&b.0.to)).then(a.0.port.cmp(&b.0.port)));
}

fn named((way, d): (Way, Destination)) -> Destination {
    Destination { from: way.from.to_string(), to: SocketAddr::new(way.to, way.port).to_string(), ..d }
}

/// Numbers of a sample to numbers of all.
struct Scale {
    from: u64,
    to: u64,
}

impl Scale {
    fn of(&self, count: u64) -> u64 {
        if self.from == 0 {
            return count * sample::ONE_OF;
        }
        (u128::from(count) * u128::from(self.to) / u128::from(self.from)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_the_kernel_tells_is_read_by_its_layout() {
        let mut b = vec![0; INET_MESSAGE];
        (b[0], b[1]) = (INET, LISTEN);
        b[4..6].copy_from_slice(&80_u16.to_be_bytes());
        b[8..12].copy_from_slice(&[10, 0, 0, 7]);
        b[56..60].copy_from_slice(&3_u32.to_ne_bytes());
        b[60..64].copy_from_slice(&511_u32.to_ne_bytes());
        let mut count = Count::new();
        count.listener(&b);
        count.listener(&b[..71]);
        let sockets = count.finish();
        let expected =
            Listener { address: "10.0.0.7:80".into(), port: 80, queue: 3, backlog: 511, ..Listener::default() };
        assert_eq!(sockets.listeners, [expected]);
    }

    /// In a network namespace of its own where that may be made, so that other tests' sockets are not counted.
    #[test]
    fn both_families_are_told_at_once() {
        let run = || {
            let Ok(six) = TcpListener::bind("[::1]:0") else { return };
            let four = TcpListener::bind("127.0.0.1:0").unwrap();
            let addresses = [six.local_addr().unwrap(), four.local_addr().unwrap()];
            let pairs =
                [six, four].map(|l| (TcpStream::connect(l.local_addr().unwrap()).unwrap(), l.accept().unwrap(), l));
            let mut all = Vec::new();
            connections(&mut Netlink::sock_diag().unwrap(), None, |m| all.extend(Told::read(m).map(|t| t.to_port)))
                .unwrap();
            for address in addresses {
                assert_eq!(all.iter().filter(|port| **port == address.port()).count(), 1, "{address}");
            }
            let sockets = Sockets::read().unwrap();
            assert_eq!(sockets.in_state("established"), 4);
            let to: Vec<&str> = sockets.destinations.iter().map(|d| d.to.as_str()).collect();
            assert!(addresses.iter().all(|a| to.contains(&a.to_string().as_str())), "{to:?}");
            drop(pairs);
        };
        if crate::namespace::inside(run).is_none() {
            println!("no network namespace can be made here (root?): left out");
        }
    }

    #[test]
    fn fifteen_thousand_sockets_are_those_of_sockstat() {
        const PAIRS: u64 = 7_500;
        let run = || {
            crate::own::raise_descriptor_limit(2 * PAIRS + 64);
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = server.local_addr().unwrap();
            let pairs: Vec<_> =
                (0..PAIRS).map(|_| (TcpStream::connect(address).unwrap(), server.accept().unwrap())).collect();
            // Bound and nothing more: it is no connection.
            let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
            let sockets = Sockets::read().unwrap();
            let text = crate::own::proc_net("sockstat");
            let word = |name: &str| -> u64 {
                let mut words =
                    text.lines().find(|l| l.starts_with("TCP:")).unwrap().split(' ').skip_while(|w| *w != name);
                words.nth(1).unwrap().parse().unwrap()
            };
            // By this thread's CPU time: other tests run beside.
            let cpu = || {
                let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1_000
            };
            let spent = (0..10).map(|_| (cpu(), Sockets::read().unwrap(), cpu())).map(|(from, _, to)| to - from);
            println!("{} sockets in {} us of CPU: {:?}", 2 * PAIRS, spent.min().unwrap(), sockets.tcp);
            assert_eq!(sockets.in_state("established"), 2 * PAIRS);
            let without: u64 = sockets.tcp.iter().filter(|(k, _)| *k != "time_wait").map(|(_, v)| v).sum();
            assert_eq!((without, sockets.in_state("time_wait")), (word("inuse"), word("tw")), "{text}");
            let to = &sockets.destinations[0];
            assert_eq!((to.to.clone(), to.total, to.established), (address.to_string(), PAIRS, PAIRS));
            let listener = sockets.listeners.iter().find(|l| l.port == address.port()).unwrap();
            assert_eq!((listener.queue, listener.connections), (0, PAIRS));
            let (sums, from) = (sums(), cpu());
            let sampled = Sockets::read_with(Some(sums)).unwrap();
            println!("a sample of them in {} us of CPU: {:?}", cpu() - from, sampled.tcp);
            assert_eq!((sampled.one_of, sockets.one_of, &sampled.tcp), (sample::ONE_OF, 0, &sockets.tcp));
            let (to, near) = (&sampled.destinations[0], PAIRS / 4);
            assert_eq!((to.to.clone(), to.total), (address.to_string(), to.established));
            let listener = sampled.listeners.iter().find(|l| l.port == address.port()).unwrap();
            assert!(to.total.abs_diff(PAIRS) < near && listener.connections.abs_diff(PAIRS) < near, "{sampled:?}");
            let [held] = &towards(&[address]).unwrap()[..] else { panic!("one address goes there") };
            assert_eq!((held.total, held.established, held.from.as_str()), (PAIRS, PAIRS, "127.0.0.1"));
            assert_eq!(towards(&[]).unwrap(), []);
            drop(pairs);
            // None of these ports is the sample's.
            let range = std::path::Path::new("/proc/sys/net/ipv4/ip_local_port_range");
            std::fs::write(range, "35000 36700").unwrap();
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = server.local_addr().unwrap();
            let pairs: Vec<_> =
                (0..1000).map(|_| (TcpStream::connect(address).unwrap(), server.accept().unwrap())).collect();
            let whole = Sockets::read_with(Some(self::sums())).unwrap();
            let to = whole.destinations.iter().find(|d| d.to == address.to_string()).map(|d| d.established);
            assert_eq!((whole.one_of, to), (0, Some(1000)), "{:?}", whole.tcp);
            drop(pairs);
        };
        if crate::namespace::inside(run).is_none() {
            println!("no network namespace can be made here (root?): left out");
        }
    }
}
