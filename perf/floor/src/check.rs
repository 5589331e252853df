//! What checks of peers cost at least: the calls of a check for one peer after the other, as many at once as fall into a beat, and
//! nothing else: no judgement, no deadline, no state.

use crate::system;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// As long as Ironweir's with checks every second.
const BEAT: Duration = Duration::from_millis(40);
const ASK_ONCE: &[u8] = b"GET / HTTP/1.1\r\nHost: u\r\nConnection: close\r\n\r\n";
const ASK_AND_KEEP: &[u8] = b"GET / HTTP/1.1\r\nHost: u\r\n\r\n";

/// What a check is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// A connection.
    Tcp,
    /// A request on a new connection.
    Http,
    /// A request on the connection of the check before.
    Kept,
}

/// The addresses that `health_cost.py` has its backend listen on.
fn address(number: usize, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(127, 1, (number / 250) as u8, (number % 250 + 1) as u8), port)
}

/// Checks `count` peers, each once an `interval`, until it is killed.
pub(crate) fn run(kind: Kind, port: u16, count: usize, interval: Duration) -> Result<()> {
    let mut links: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
    let at_once = (count as u128 * BEAT.as_millis() / interval.as_millis()).max(1) as usize;
    let (mut next, mut due, mut answer) = (0, Instant::now(), [0; 4096]);
    let mut spare = Vec::new();
    loop {
        let batch: Vec<usize> = (next..next + at_once).map(|n| n % count).collect();
        for &n in &batch {
            let mut link = match (links[n].take(), kind) {
                (Some(link), _) => link,
                (None, Kind::Http) => system::connect_quietly(spare.pop(), address(n, port))?.into(),
                (None, _) => TcpStream::connect(address(n, port))?,
            };
            match kind {
                Kind::Tcp => {}
                Kind::Http => link.write_all(ASK_ONCE)?,
                Kind::Kept => link.write_all(ASK_AND_KEEP)?,
            }
            links[n] = Some(link);
        }
        due += BEAT;
        sleep(due.saturating_duration_since(Instant::now()));
        for &n in &batch {
            if let Some(link) = &mut links[n]
                && kind != Kind::Tcp
                && link.read(&mut answer)? == 0
            {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match kind {
                Kind::Tcp => links[n] = None,
                Kind::Http => spare.extend(links[n].take().map(OwnedFd::from)),
                Kind::Kept => {}
            }
        }
        next = (next + at_once) % count;
    }
}
