//! How full the accept queues of real servers are. On a real server: said every few milliseconds, in a datagram with a keyed hash
//! (`xdp_report_to`). At the balancer, in its process: heard (`xdp_reports`), so that new flows avoid who is full or has stopped.

use crate::log::error::Level;
use crate::log::process_line;
use crate::process_settings::SocketKind;
use crate::snapshot::Snapshot;
use crate::status::listeners;
use aws_lc_rs::hmac;
use l4::load::{BYTES_MAX, Load};
use l4::runner::{Avoided, Reports};
use runtime::clock;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A queue that is this full is avoided, percent, until it is less full than [`ROOM`].
const FULL: u8 = 50;
const ROOM: u8 = 25;
/// Who is silent for so many of its intervals has stopped; and no sooner than this.
const MISSED: u32 = 6;
const SILENCE: Duration = Duration::from_millis(50);
/// Reports that are older than one which was heard say nothing, or who has recorded them could send them again. But a clock may be set back:
/// whose newer reports have been away for so long is believed anew.
const SET_BACK: Duration = Duration::from_secs(1);
/// Bytes of the hash (HMAC-SHA-256).
const HASH: usize = 32;
/// Datagrams read in one go.
const READ_MAX: usize = 1024;

/// Where a real server reports to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportTo {
    /// The balancer's address and port.
    pub to: SocketAddr,
    /// What reports are signed with.
    pub key: String,
    /// Between two reports.
    pub interval: Duration,
}

static SENDING: Mutex<(Vec<ReportTo>, bool)> = Mutex::new((Vec::new(), false));
static NEWS: Condvar = Condvar::new();

fn sending() -> MutexGuard<'static, (Vec<ReportTo>, bool)> {
    SENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports as this configuration says from now on.
pub fn configure(snapshot: &Snapshot) {
    let wanted = snapshot.stream.as_ref().map(|s| s.main.xdp.report_to.clone()).unwrap_or_default();
    let mut guard = sending();
    if wanted.is_empty() && !guard.1 {
        return;
    }
    guard.0 = wanted;
    let runs = std::mem::replace(&mut guard.1, true);
    drop(guard);
    NEWS.notify_one();
    if !runs && let Err(e) = std::thread::Builder::new().name("l4-load".into()).spawn(report) {
        let text = crate::log::os_error(&e);
        process_line(Level::Alert, format_args!("accept queues are not reported: no thread ({text})"));
    }
}

fn report() {
    let sockets = ["0.0.0.0:0", "[::]:0"].map(|any| UdpSocket::bind(any).ok());
    loop {
        let mut guard = sending();
        while guard.0.is_empty() {
            guard = NEWS.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        let all = guard.0.clone();
        drop(guard);
        let ports = ports();
        for one in &all {
            let load =
                Load { at_ms: clock::wall_ms(), interval_ms: one.interval.as_millis() as u16, ports: ports.clone() };
            if let Some(socket) = &sockets[usize::from(one.to.is_ipv6())] {
                // A balancer that is away hears nothing, and misses nothing.
                let _ = socket.send_to(&signed(&load, &one.key), one.to);
            }
        }
        let shortest = all.iter().map(|one| one.interval).min();
        std::thread::sleep(shortest.unwrap_or(SILENCE));
    }
}

/// Ports that TCP is listened on, and how full the fullest queue of each is.
fn ports() -> Vec<(u16, u8)> {
    let mut ports = BTreeMap::<u16, u8>::new();
    for facts in listeners::all().iter().filter(|f| f.kind == SocketKind::Stream) {
        let Ok(address) = facts.address.parse::<SocketAddr>() else { continue };
        let part = |q: &listeners::Queue| (u64::from(q.waiting) * 100 / u64::from(q.limit.max(1))).min(100) as u8;
        let fullest = facts.sockets.iter().map(part).max().unwrap_or(0);
        let known = ports.entry(address.port()).or_default();
        *known = fullest.max(*known);
    }
    ports.into_iter().collect()
}

fn signed(load: &Load, key: &str) -> Vec<u8> {
    let mut bytes = load.to_bytes();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), &bytes);
    bytes.extend_from_slice(tag.as_ref());
    bytes
}

/// The balancer's end.
pub struct Hearing {
    socket: UdpSocket,
    key: hmac::Key,
    /// The newest report of each machine.
    heard: HashMap<IpAddr, Heard>,
    avoided: Avoided,
}

struct Heard {
    load: Load,
    at: Instant,
}

impl Hearing {
    /// Listens for reports.
    ///
    /// # Errors
    /// The address cannot be had; in words.
    pub fn open(reports: &Reports) -> Result<Hearing, String> {
        let problem = |e: std::io::Error| format!("xdp_reports {}: {e}", reports.address);
        let socket = UdpSocket::bind(reports.address).map_err(problem)?;
        socket.set_nonblocking(true).map_err(problem)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, reports.key.as_bytes());
        Ok(Hearing { socket, key, heard: HashMap::new(), avoided: Avoided::new() })
    }

    /// Reads what has come, and says who of these real servers is to be avoided now, and how much: 1 for a full queue, more for silence, the
    /// more the longer. One that never said anything is not.
    pub fn hear(&mut self, reals: &[SocketAddr]) -> &Avoided {
        let mut buffer = [0; BYTES_MAX + HASH + 1];
        for _ in 0..READ_MAX {
            let Ok((n, from)) = self.socket.recv_from(&mut buffer) else { break };
            self.take(&buffer[..n], from.ip(), reals);
        }
        self.heard.retain(|ip, _| reals.iter().any(|r| r.ip() == *ip));
        // Measured from whoever spoke last, not from now: where all are late it is this machine, or the network, that was.
        let newest = self.heard.values().map(|h| h.at).max();
        let level = |real: &SocketAddr| Some((*real, self.level(real, newest?)?));
        self.avoided = reals.iter().filter_map(level).collect();
        &self.avoided
    }

    fn take(&mut self, bytes: &[u8], from: IpAddr, reals: &[SocketAddr]) {
        let known = reals.iter().any(|r| r.ip() == from);
        let Some((said, hash)) = bytes.split_last_chunk::<HASH>().filter(|_| known) else { return };
        if hmac::verify(&self.key, said, hash).is_err() {
            return;
        }
        let Ok(load) = Load::read(said) else { return };
        if let Some(old) = self.heard.get(&from)
            && old.load.at_ms > load.at_ms
        {
            if old.at.elapsed() < SET_BACK.max(patience(&old.load)) {
                return;
            }
            let back = old.load.at_ms - load.at_ms;
            let text =
                format_args!("xdp_reports: the clock of {from} was set back by {back} ms, its reports count again");
            process_line(Level::Warn, text);
        }
        self.heard.insert(from, Heard { load, at: Instant::now() });
    }

    fn level(&self, real: &SocketAddr, newest: Instant) -> Option<u8> {
        let heard = self.heard.get(&real.ip())?;
        let patience = patience(&heard.load);
        let silence = newest.saturating_duration_since(heard.at);
        if silence > patience {
            let times = silence.as_millis() / patience.as_millis().max(1);
            return Some(2 + times.max(1).ilog2() as u8);
        }
        let percent = heard.load.ports.iter().find(|(port, _)| *port == real.port()).map_or(0, |(_, percent)| *percent);
        (percent >= if self.avoided.contains_key(real) { ROOM } else { FULL }).then_some(1)
    }
}

/// Who is silent for longer has stopped.
fn patience(load: &Load) -> Duration {
    SILENCE.max(Duration::from_millis(load.interval_ms.into()) * MISSED)
}

impl AsFd for Hearing {
    /// Readable while there is a report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_signed_reports_count_and_who_falls_silent_is_avoided() {
        let reports = Reports { address: "127.0.0.1:0".parse().unwrap(), key: "key".to_owned() };
        let mut hearing = Hearing::open(&reports).unwrap();
        let (one, two): (SocketAddr, SocketAddr) = ("10.9.1.1:80".parse().unwrap(), "10.9.1.2:80".parse().unwrap());
        let reals = [one, two];
        let load = |at_ms, percent| Load { at_ms, interval_ms: 1000, ports: vec![(80, percent)] };
        let avoided = |h: &mut Hearing| {
            let mut all: Vec<_> = h.hear(&reals).iter().map(|(real, level)| (*real, *level)).collect();
            all.sort();
            all
        };
        hearing.take(&signed(&load(10, 60), "other"), one.ip(), &reals);
        assert_eq!(avoided(&mut hearing), []);
        hearing.take(&signed(&load(10, 60), "key"), one.ip(), &reals);
        hearing.take(&signed(&load(10, 40), "key"), two.ip(), &reals);
        assert_eq!(avoided(&mut hearing), [(one, 1)]);
        hearing.take(&signed(&load(11, 40), "key"), one.ip(), &reals);
        assert_eq!(avoided(&mut hearing), [(one, 1)], "half full again would be too soon");
        hearing.take(&signed(&load(12, 10), "key"), one.ip(), &reals);
        hearing.take(&signed(&load(11, 90), "key"), one.ip(), &reals);
        assert_eq!(avoided(&mut hearing), [], "an older report says nothing");
        let long_ago = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        hearing.heard.get_mut(&two.ip()).unwrap().at = long_ago;
        assert_eq!(avoided(&mut hearing), [(two, 2)]);
        let longer = Instant::now().checked_sub(Duration::from_secs(14)).unwrap();
        hearing.heard.get_mut(&two.ip()).unwrap().at = longer;
        assert_eq!(avoided(&mut hearing), [(two, 3)]);
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        let reports = Reports { address: "127.0.0.1:0".parse().unwrap(), key: "key".to_owned() };
        let mut hearing = Hearing::open(&reports).unwrap();
        let reals: [SocketAddr; 1] = ["10.9.1.1:80".parse().unwrap()];
        let load = |at_ms| Load { at_ms, interval_ms: 5, ports: vec![(80, 0)] };
        let mut take = |at_ms, ago| {
            if let Some(heard) = hearing.heard.get_mut(&reals[0].ip()) {
                heard.at = Instant::now().checked_sub(Duration::from_millis(ago)).unwrap();
            }
            hearing.take(&signed(&load(at_ms), "key"), reals[0].ip(), &reals);
            hearing.heard[&reals[0].ip()].load.at_ms
        };
        assert_eq!(take(86_400_000, 0), 86_400_000);
        assert_eq!(take(5000, 100), 86_400_000, "it may be one that is sent again");
        assert_eq!(take(5005, 1500), 5005);
        assert_eq!(take(5000, 100), 5005);
        assert_eq!(take(5010, 5), 5010);
    }
}
