//! A thread that a reload has made superfluous hands what it holds to those that stay, as a process does to the next one: parked connections,
//! subscribers, tunnels. Channels and zones are the process's and stay where they are. From: `worker::process`. To: `leave`, `arrive`.

use super::{arrive, leave};
use crate::log::error::Level;
use crate::log::process_line;
use crate::modules::nchan::succession;
use crate::worker::departure::To;
use crate::worker::order::Order;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::mpsc::UnboundedSender;

/// Has a thread hand its connections to others of this process. `then`: all have gone that can.
pub fn move_over(leaver: &UnboundedSender<Order>, heirs: &[UnboundedSender<Order>], then: Box<dyn FnOnce() + Send>) {
    let mut lines = Vec::new();
    for heir in heirs {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        // Without descriptors it goes to fewer of them, or ends with its connections.
        let Ok((ours, theirs)) = pair else { break };
        let work = move || {
            runtime::spawn(arrive::run(theirs));
        };
        if heir.send(Order::Do(Box::new(work))).is_ok() {
            lines.push(ours);
        }
    }
    if lines.is_empty() {
        return then();
    }
    succession::expect();
    let gone = Arc::new(AtomicU64::new(0));
    let count = gone.clone();
    let done = Box::new(move || {
        succession::expect_no_more();
        if count.load(Relaxed) > 0 {
            let (count, thread) = (count.load(Relaxed), std::thread::current());
            let name = thread.name().unwrap_or("a thread");
            process_line(Level::Notice, format_args!("{name} has handed {count} connections to other threads"));
        }
        then();
    });
    let work = move || {
        runtime::spawn(leave::run(lines, To::Threads, gone, done));
    };
    if leaver.send(Order::Do(Box::new(work))).is_err() {
        succession::expect_no_more();
    }
}
