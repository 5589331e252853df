//! The loop of one worker thread: listeners, connections, orders from the control thread, logs at the end of a turn.

use super::{DRAINING, PORTS, SHOT, timer};
use crate::connection;
use crate::listen::Listener;
use crate::snapshot::{Shot, Snapshot};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// One listening socket for one thread: the index of its address in the snapshot's `listens`, and the descriptor.
pub type Ear = (usize, OwnedFd);

/// What the control thread asks of a worker thread.
pub enum Order {
    /// Serve with a new snapshot. `ears` are new sockets; `keep` says for each listener the thread has which address of
    /// the new snapshot it now stands for (none: accept what waits, then close).
    Configure {
        /// The new snapshot.
        snapshot: Arc<Snapshot>,
        /// Sockets that are new.
        ears: Vec<Ear>,
    },
    /// Write what is held back for access logs: their files are about to be reopened.
    FlushLogs,
    /// Stop accepting, close idle connections, end when the rest is done.
    Drain,
    /// Close everything now.
    Stop,
}

/// The control thread's end of a worker thread.
pub struct Handle {
    /// Orders in order.
    pub orders: mpsc::UnboundedSender<Order>,
    /// Connections the thread has open.
    pub open: Arc<AtomicUsize>,
    /// The thread itself.
    pub join: std::thread::JoinHandle<()>,
}

struct Ears {
    listeners: Vec<Rc<Listener>>,
}

/// Starts thread number `number`.
pub fn start(number: usize, snapshot: Arc<Snapshot>, ears: Vec<Ear>) -> std::io::Result<Handle> {
    let (orders, receiver) = mpsc::unbounded_channel();
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    let cpus = snapshot.process.cpus_of(number).cloned();
    let join = std::thread::Builder::new().name(format!("worker {number}")).spawn(move || {
        if let Some(cpus) = cpus {
            crate::master::pin_thread(&cpus);
        }
        run(snapshot, ears, receiver, counted);
    })?;
    Ok(Handle { orders, open, join })
}

fn run(snapshot: Arc<Snapshot>, ears: Vec<Ear>, mut orders: mpsc::UnboundedReceiver<Order>, open: Arc<AtomicUsize>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .on_thread_park(crate::log::lines::end_of_turn)
        .build_local(tokio::runtime::LocalOptions::default())
        .expect("a runtime needs only memory and two descriptors");
    runtime.block_on(async move {
        tokio::task::spawn_local(timer::drive());
        connection::OPEN.set(Some(open.clone()));
        let mut mine = Ears { listeners: Vec::new() };
        configure(&mut mine, snapshot, ears);
        while let Some(order) = orders.recv().await {
            match order {
                Order::Configure { snapshot, ears } => configure(&mut mine, snapshot, ears),
                Order::FlushLogs => crate::log::lines::flush_thread(),
                Order::Drain => {
                    for l in mine.listeners.drain(..) {
                        l.close();
                    }
                    DRAINING.set(true);
                    connection::wake_idle();
                    while open.load(Ordering::Relaxed) > 0 {
                        timer::sleep(std::time::Duration::from_millis(10)).await;
                    }
                    break;
                }
                Order::Stop => break,
            }
        }
    });
    crate::log::lines::flush_thread();
    drop(runtime);
    // Threads end with the process; what their storage holds must not outlive the runtime's handles.
    connection::pool::clear();
    SHOT.set(None);
}

fn configure(mine: &mut Ears, snapshot: Arc<Snapshot>, ears: Vec<Ear>) {
    let shot = Rc::new(Shot::new(snapshot));
    connection::pool::clear();
    for (index, fd) in ears {
        let number = PORTS.with_borrow_mut(|p| {
            p.push(index);
            p.len() - 1
        });
        match Listener::new(number, shot.listens[index].address.clone(), fd) {
            Ok(l) => mine.listeners.push(l),
            Err(e) => crate::log::process_line(
                crate::log::error::Level::Alert,
                format_args!("a listener could not be registered ({})", crate::log::os_error(&e)),
            ),
        }
    }
    // Listeners are known by their address: its place may have changed, or it may be gone.
    mine.listeners.retain(|l| match shot.listens.iter().position(|s| s.address == l.address) {
        Some(index) => {
            PORTS.with_borrow_mut(|p| p[l.number] = index);
            true
        }
        None => {
            // Connections accepted through it go on under the first port's default server until they close.
            PORTS.with_borrow_mut(|p| p[l.number] = usize::MAX);
            l.close();
            false
        }
    });
    SHOT.set(Some(shot.clone()));
    for l in &mine.listeners {
        l.start();
    }
    crate::upstream::adopt(&shot);
}
