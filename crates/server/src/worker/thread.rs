//! The loop of one worker thread: listeners, connections, orders from the control thread, logs at the end of a turn.

use super::departure;
use super::handover;
use super::{CUTTING, DRAINING, LISTENERS, SNAPSHOT, TRIAL, Trial};
use crate::connection;
use crate::listen::Listener;
use crate::process_settings::SocketKind;
use crate::snapshot::{Snapshot, ThreadSnapshot};
use crate::worker::order::{ListenSocket, Order};
use runtime::timer;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::mpsc;

/// The control thread's end of a worker thread.
pub struct Handle {
    /// Orders in order.
    pub orders: mpsc::UnboundedSender<Order>,
    /// Connections the thread has open.
    pub open: Arc<AtomicUsize>,
    /// The thread itself.
    pub join: std::thread::JoinHandle<()>,
}

/// What a thread that serves or asks does around its loop's turns: log lines leave together, turns are timed, a panic has its line.
pub const HOOKS: runtime::Hooks = runtime::Hooks {
    pending: crate::log::lines::pending,
    before_sleep: crate::log::lines::write_pending,
    turn_began: crate::status::turns::begin,
    turn_ended,
    panicked: || {
        crate::log::process_line(crate::log::error::Level::Alert, format_args!("a task was given up after a panic"))
    },
};

/// The turn is over. After one that was timed the thread says what it keeps.
#[inline]
fn turn_ended(began: Option<Instant>, polls: u64) {
    crate::status::turns::end(began, polls);
    if began.is_some() {
        connection::pool::note();
    }
}

struct Listeners {
    listeners: Vec<Rc<Listener>>,
    /// Connections are another process's to accept.
    rests: bool,
}

impl Listeners {
    fn accept(&mut self, accepts: bool) {
        self.rests = !accepts;
        for l in self.listeners.iter().filter(|l| l.kind == SocketKind::Stream) {
            l.rest(!accepts);
        }
        self.start();
    }

    fn start(&self) {
        for l in self.listeners.iter().filter(|l| !self.rests || l.kind == SocketKind::Datagram) {
            l.start();
        }
    }
}

/// Starts thread number `number`.
pub fn start(number: usize, snapshot: Arc<Snapshot>, sockets: Vec<ListenSocket>) -> std::io::Result<Handle> {
    let (orders, receiver) = mpsc::unbounded_channel();
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    let cpus = snapshot.process.cpus_of(number).cloned();
    let join = std::thread::Builder::new().name(format!("worker {number}")).spawn(move || {
        if let Some(cpus) = cpus {
            pin(&cpus);
        }
        let _counts = crate::status::slot::enter(number);
        run(snapshot, sockets, receiver, counted);
    })?;
    Ok(Handle { orders, open, join })
}

fn pin(cpus: &crate::process_settings::CpuSet) {
    if let Err(e) = crate::master::sys::pin_thread(&cpus.0) {
        let text = crate::log::os_error(&e);
        crate::log::process_line(crate::log::error::Level::Alert, format_args!("sched_setaffinity() failed ({text})"));
    }
}

fn run(
    snapshot: Arc<Snapshot>,
    sockets: Vec<ListenSocket>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    open: Arc<AtomicUsize>,
) {
    let ended = runtime::run(HOOKS, async move {
        connection::OPEN.set(Some(open.clone()));
        let mut mine = Listeners { listeners: Vec::new(), rests: super::begins_at_rest() };
        configure(&mut mine, snapshot, sockets);
        while let Some(order) = orders.recv().await {
            match order {
                Order::Configure { snapshot, sockets, done } => {
                    configure(&mut mine, snapshot, sockets);
                    let _ = done.send(());
                }
                Order::Try { snapshot, share } => try_out(snapshot, share),
                Order::EndTrial(done) => {
                    end_trial();
                    let _ = done.send(());
                }
                Order::FlushLogs(done) => {
                    crate::log::lines::flush_thread();
                    let _ = done.send(());
                }
                Order::Accept(accepts, done) => {
                    mine.accept(accepts);
                    let _ = done.send(());
                }
                Order::Do(work) => work(),
                Order::Adopt(parcel) => connection::begin::adopt(*parcel),
                Order::Unlisten => mine.listeners.drain(..).for_each(|l| l.close()),
                Order::Drain { heirs } => {
                    handover::set_heirs(heirs);
                    mine.listeners.drain(..).for_each(|l| l.close());
                    DRAINING.set(true);
                    end_trial();
                    SNAPSHOT.with_borrow(|snapshot| snapshot.iter().for_each(|s| s.leave()));
                    // Connections between two requests close.
                    runtime::wake_all();
                    let is_busy =
                        || open.load(Ordering::Relaxed) > 0 || connection::parked::count() > 0 || departure::is_busy();
                    'busy: while is_busy() {
                        while let Ok(order) = orders.try_recv() {
                            match order {
                                Order::Stop => break 'busy,
                                Order::Cut => {
                                    CUTTING.set(true);
                                    break 'busy;
                                }
                                Order::Do(work) => work(),
                                // Of a thread that ends too: it is handed on.
                                Order::Adopt(parcel) => connection::begin::adopt(*parcel),
                                Order::FlushLogs(done) => {
                                    crate::log::lines::flush_thread();
                                    let _ = done.send(());
                                }
                                _ => {}
                            }
                        }
                        timer::sleep(std::time::Duration::from_millis(10)).await;
                    }
                    orders.close();
                    while let Ok(order) = orders.try_recv() {
                        if let Order::Adopt(parcel) = order {
                            handover::pass_on(parcel);
                        }
                    }
                    break;
                }
                Order::Stop | Order::Cut => break,
            }
        }
        connection::parked::clear();
    });
    if let Err(e) = ended {
        let text = crate::log::os_error(&e);
        crate::log::process_line(
            crate::log::error::Level::Emerg,
            format_args!("a worker thread could not start ({text})"),
        );
    }
    crate::log::lines::flush_thread();
    // Threads end with the process; what their storage holds must not outlive the loop.
    connection::pool::clear();
    crate::upstream::pool::clear();
    TRIAL.set(None);
    SNAPSHOT.set(None);
}

/// New connections are the canary's from now on, as far as its share goes.
fn try_out(snapshot: Arc<Snapshot>, share: u64) {
    let snapshot = Rc::new(ThreadSnapshot::new(snapshot));
    super::find_places(&snapshot);
    snapshot.begin();
    end_trial();
    TRIAL.set(Some(Trial { snapshot, share }));
}

/// Requests that have begun under the canary end under it; the next ones on its connections have the other configuration.
fn end_trial() {
    let Some(trial) = TRIAL.take() else { return };
    trial.snapshot.leave();
    drop(trial);
    connection::pool::clear();
    SNAPSHOT.with_borrow(|snapshot| snapshot.iter().for_each(crate::upstream::adopt));
}

fn configure(mine: &mut Listeners, snapshot: Arc<Snapshot>, sockets: Vec<ListenSocket>) {
    let snapshot = Rc::new(ThreadSnapshot::new(snapshot));
    end_trial();
    connection::pool::clear();
    // Connections that a listener brought go on under its address's new place, or under the first port if it is gone.
    mine.listeners.retain(|l| {
        let stays = sockets.iter().any(|e| e.id == l.id);
        if !stays {
            l.close();
        }
        stays
    });
    for socket in sockets {
        if mine.listeners.iter().any(|l| l.id == socket.id) {
            continue;
        }
        let spec = &snapshot.listens[socket.listen];
        let number = LISTENERS.with_borrow_mut(|all| {
            all.push((spec.address.clone(), spec.kind));
            all.len() - 1
        });
        match Listener::new(number, socket, spec) {
            Ok(l) => mine.listeners.push(l),
            Err(e) => crate::log::process_line(
                crate::log::error::Level::Alert,
                format_args!("a listener could not be registered ({})", crate::log::os_error(&e)),
            ),
        }
    }
    super::find_places(&snapshot);
    connection::parked::set_crowd(&snapshot);
    snapshot.begin();
    if let Some(before) = SNAPSHOT.replace(Some(snapshot.clone())) {
        before.leave();
    }
    mine.start();
    crate::upstream::adopt(&snapshot);
}
