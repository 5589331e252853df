//! A bare TCP handshake now and then, beside the run. The kernel answers a SYN without asking the application, but through
//! the same queues as the answers: what it takes tells the way's part of a latency from the target's.

use crate::system::tcp_facts;
use socket2::SockRef;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two handshakes.
const PAUSE: Duration = Duration::from_millis(250);
/// A handshake that takes longer says nothing about the way; SYNs are lost.
const PATIENCE: Duration = Duration::from_secs(2);
/// Handshakes before the run; the fastest counts.
const BEFORE: usize = 3;

/// The probing thread.
pub struct Probe {
    running: Option<(Sender<()>, JoinHandle<Vec<u32>>, u32)>,
}

impl Probe {
    /// Begins with a few handshakes; where there is no address, or nobody answers, it does nothing.
    pub fn start(address: Option<SocketAddr>) -> Probe {
        let Some(address) = address else { return Probe { running: None } };
        let before = (0..BEFORE).filter_map(|_| handshake_us(address)).min();
        let Some(before) = before else { return Probe { running: None } };
        let (stop, stopped) = channel::<()>();
        let spawned = std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
            let mut times = Vec::new();
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                times.extend(handshake_us(address));
            }
            times
        });
        Probe { running: spawned.ok().map(|thread| (stop, thread, before)) }
    }

    /// The round trip before and during the run (the median), microseconds.
    pub fn finish(self) -> Option<(f64, f64)> {
        let (stop, thread, before) = self.running?;
        drop(stop);
        let mut times = thread.join().ok()?;
        times.sort_unstable();
        let median = times.get(times.len() / 2)?;
        Some((f64::from(before), f64::from(*median)))
    }
}

/// As the kernel measured it, so that waiting for a CPU here is not part of it.
fn handshake_us(address: SocketAddr) -> Option<u32> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    let rtt = tcp_facts(&stream).map(|f| f.rtt_us).filter(|&rtt| rtt > 0);
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    rtt
}
