//! The worker process: starts its threads, hands them snapshots and sockets, ends them. Its own thread is the control
//! thread: everything that may block or allocate freely happens here.

use super::thread::{self, Handle};
use crate::listen::socket::Listener;
use crate::snapshot::Snapshot;
use crate::worker::order::{ListenSocket, Order};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// How often the control thread looks whether threads have ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long threads may take to do what is waited for before the others go on without them.
const STUCK: Duration = Duration::from_millis(500);
/// The same for a new configuration: whoever has asked for a reload expects the next answer to be of the new one, a thread that a program or a
/// slow disk keeps busy included.
const CONFIGURED: Duration = Duration::from_secs(2);

/// Where a thread takes orders.
type Orders = UnboundedSender<Order>;

/// Has a thread hand what it holds to others, and does what comes then.
pub type MoveOver = fn(leaver: &Orders, heirs: &[Orders], then: Box<dyn FnOnce() + Send>);

/// The threads of this process.
pub struct Workers {
    move_over: MoveOver,
    threads: Vec<Handle>,
    /// Threads that a reload made superfluous: they end with their connections.
    retired: Vec<Handle>,
}

impl Workers {
    /// Starts as many threads as the snapshot asks for.
    pub fn start(snapshot: &Arc<Snapshot>, listeners: &[Listener], move_over: MoveOver) -> std::io::Result<Workers> {
        let mut workers = Workers { move_over, threads: Vec::new(), retired: Vec::new() };
        workers.configure(snapshot, listeners)?;
        Ok(workers)
    }

    /// Hands a snapshot and all sockets to the threads; starts or retires threads when their number changes. Waits until all serve with it, though
    /// not for a stuck one.
    pub fn configure(&mut self, snapshot: &Arc<Snapshot>, listeners: &[Listener]) -> std::io::Result<()> {
        let count = snapshot.process.threads.max(1);
        let extra = self.threads.split_off(count.min(self.threads.len()));
        self.retired.retain(|t| !t.join.is_finished());
        let (done, configured) = mpsc::channel();
        for (number, t) in self.threads.iter().enumerate() {
            let sockets = share(snapshot, listeners, number, count);
            let _ = t.orders.send(Order::Configure { snapshot: snapshot.clone(), sockets, done: done.clone() });
        }
        drop(done);
        // Those who stay have the new configuration before they are handed connections.
        for thread in extra {
            let heirs: Vec<Orders> = self.threads.iter().map(|t| t.orders.clone()).collect();
            let (leaver, left) = (thread.orders.clone(), heirs.clone());
            let _ = leaver.send(Order::Unlisten);
            let then = move || drop(leaver.send(Order::Drain { heirs: left }));
            (self.move_over)(&thread.orders, &heirs, Box::new(then));
            self.retired.push(thread);
        }
        for number in self.threads.len()..count {
            let sockets = share(snapshot, listeners, number, count);
            self.threads.push(thread::start(number, snapshot.clone(), sockets)?);
        }
        wait_for_all(&configured, CONFIGURED);
        Ok(())
    }

    /// Gives a share of new connections, in ten-thousandths, to a snapshot, beside the one that serves the others.
    pub fn try_out(&self, snapshot: &Arc<Snapshot>, share: u32) {
        let share = (u128::from(share.min(10_000)) * u128::from(u64::MAX) / 10_000) as u64;
        for t in &self.threads {
            let _ = t.orders.send(Order::Try { snapshot: snapshot.clone(), share });
        }
    }

    /// All connections have the old snapshot again: waits until the threads have heard it, though not for a stuck one.
    pub fn end_trial(&self) {
        self.tell_and_wait(Order::EndTrial);
    }

    /// Where each thread takes orders.
    pub fn threads(&self) -> Vec<Orders> {
        self.threads.iter().map(|t| t.orders.clone()).collect()
    }

    fn tell_and_wait(&self, order: impl Fn(Sender<()>) -> Order) {
        let (done, heard) = mpsc::channel();
        for t in &self.threads {
            let _ = t.orders.send(order(done.clone()));
        }
        drop(done);
        wait_for_all(&heard, STUCK);
    }

    /// Has all threads write what they hold back for log files, and waits for it, though not for a stuck thread.
    pub fn write_logs(&self) {
        self.tell_and_wait(Order::FlushLogs);
    }

    /// Ends the threads once their connections are done, or after `at_most`. `interrupted` ends the wait early.
    pub fn drain(self, at_most: Option<Duration>, mut interrupted: impl FnMut(Duration) -> bool) {
        let all: Vec<Handle> = self.threads.into_iter().chain(self.retired).collect();
        for t in &all {
            let _ = t.orders.send(Order::Drain { heirs: Vec::new() });
        }
        let end = at_most.map(|d| Instant::now() + d);
        while !all.iter().all(|t| t.join.is_finished()) {
            if end.is_some_and(|e| Instant::now() >= e) {
                return cut(&all);
            }
            if interrupted(LOOK) {
                return;
            }
        }
    }

    /// Ends the threads now.
    pub fn stop(self) {
        let all: Vec<Handle> = self.threads.into_iter().chain(self.retired).collect();
        for t in &all {
            let _ = t.orders.send(Order::Stop);
        }
        for t in all {
            let _ = t.join.join();
        }
    }
}

/// Waits until every thread that was sent the other end has answered, or has ended, at most so long.
fn wait_for_all(answers: &Receiver<()>, at_most: Duration) {
    let end = Instant::now() + at_most;
    while answers.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
}

/// Ends threads that have not drained in time, and waits for their last log lines, though not for a stuck thread.
fn cut(threads: &[Handle]) {
    for t in threads {
        let _ = t.orders.send(Order::Cut);
    }
    let end = Instant::now() + STUCK;
    while Instant::now() < end && !threads.iter().all(|t| t.join.is_finished()) {
        std::thread::sleep(LOOK);
    }
}

/// The sockets of one thread.
fn share(snapshot: &Snapshot, listeners: &[Listener], thread: usize, threads: usize) -> Vec<ListenSocket> {
    let mut sockets = Vec::new();
    for l in listeners {
        let Some(listen) = snapshot.listens.iter().position(|s| s.address == l.address && s.kind == l.kind) else {
            continue;
        };
        for (place, socket) in l.of_thread(thread, threads) {
            sockets.push(ListenSocket { listen, id: socket.id, place, fd: socket.fd.clone() });
        }
    }
    sockets
}
