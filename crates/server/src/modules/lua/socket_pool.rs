//! Pools of programs' connections: each thread's own. A pool has so many seats; whoever connects through it takes one, an idle connection
//! keeps its own. Without a free seat a connect waits in the pool's queue (`backlog`) or is refused.

use super::run::log;
use crate::connection::socket::Socket;
use crate::log::error::Level;
use hashbrown::HashMap;
use runtime::timer::{self, Timer};
use runtime::{TaskId, clock};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Idle connections of one thread, over all pools.
const MAX_IDLE: usize = 4096;
/// How often idle connections are looked over: those that the other side has closed do not stay.
const SWEEP: Duration = Duration::from_millis(100);

/// A connection that waits for the next who wants it.
pub struct Idle {
    /// The connection.
    pub socket: Socket,
    /// How often it was used again.
    pub reused: u64,
    /// Its place in the pool.
    pub seat: Seat,
    until_ms: u64,
}

/// A place in a pool, given back when it goes.
pub struct Seat(Rc<str>);

/// Whoever waits for a place.
struct Waiter {
    task: Cell<TaskId>,
    granted: RefCell<Option<Grant>>,
}

/// What a waiter gets.
pub enum Grant {
    /// A connection that was used before.
    Idle(Box<Idle>),
    /// A place to connect by.
    Seat(Seat),
}

struct Pool {
    size: usize,
    /// Connects that may wait; none: nobody has said, and connections are not counted.
    backlog: Option<usize>,
    seats: usize,
    idle: VecDeque<Idle>,
    queue: VecDeque<Rc<Waiter>>,
}

/// What a pool has for whoever wants to connect.
pub enum Entry {
    /// There is no such pool: connect, as before there was one.
    None,
    /// Something at once.
    Granted(Grant),
    /// Wait for it.
    Wait(Ticket),
    /// `too many waiting connect operations`
    Full,
}

thread_local! {
    static POOLS: RefCell<HashMap<Rc<str>, Pool>> = RefCell::default();
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
}

impl Drop for Seat {
    fn drop(&mut self) {
        // The thread's storage may be gone already when a thread ends.
        let _ = POOLS.try_with(|pools| leave(&mut pools.borrow_mut(), &self.0));
    }
}

/// A place is free: the first who waits gets it; a pool that nobody uses goes.
fn leave(pools: &mut HashMap<Rc<str>, Pool>, key: &Rc<str>) {
    let Some(pool) = pools.get_mut(key) else { return };
    pool.seats = pool.seats.saturating_sub(1);
    if let Some(waiter) = pool.queue.pop_front() {
        pool.seats += 1;
        *waiter.granted.borrow_mut() = Some(Grant::Seat(Seat(key.clone())));
        runtime::wake(waiter.task.get());
        return;
    }
    if pool.seats == 0 {
        log(Level::Debug, format_args!("lua tcp socket keepalive: free connection pool for \"{key}\""));
        pools.remove(key);
    }
}

fn make(pools: &mut HashMap<Rc<str>, Pool>, key: &Rc<str>, size: usize, backlog: Option<usize>) {
    if pools.contains_key(key) {
        return;
    }
    log(Level::Debug, format_args!("lua tcp socket keepalive create connection pool for key \"{key}\""));
    let shown = backlog.map_or(-1, |n| n as i64);
    log(Level::Debug, format_args!("lua tcp socket connection pool size: {size}, backlog: {shown}"));
    let pool = Pool { size: size.max(1), backlog, seats: 0, idle: VecDeque::new(), queue: VecDeque::new() };
    pools.insert(key.clone(), pool);
}

/// The idle connection of a pool that was used last, if it is still of use. Others that are not are left to [`enter`].
pub fn take_idle(key: &str) -> Option<Idle> {
    POOLS.with_borrow_mut(|pools| {
        let pool = pools.get_mut(key)?;
        let idle = pool.idle.back_mut()?;
        if idle.until_ms <= clock::monotonic_ms() || has_news(&mut idle.socket) {
            return None;
        }
        COUNT.set(COUNT.get() - 1);
        pool.idle.pop_back()
    })
}

/// Asks the pool of this name for a connection. `options`: how many seats it has and how many may wait, where the program has said so: then
/// there is a pool from now on.
pub fn enter(key: &str, options: Option<(usize, Option<usize>)>) -> Entry {
    let key: Rc<str> = key.into();
    // What falls is dropped when the pools are not borrowed any more.
    let mut dead = Vec::new();
    let entry = POOLS.with_borrow_mut(|pools| {
        if let Some((size, backlog)) = options {
            make(pools, &key, size, backlog);
        }
        let Some(pool) = pools.get_mut(&key) else { return Entry::None };
        let now = clock::monotonic_ms();
        while let Some(mut idle) = pool.idle.pop_back() {
            COUNT.set(COUNT.get() - 1);
            if idle.until_ms > now && !has_news(&mut idle.socket) {
                return Entry::Granted(Grant::Idle(Box::new(idle)));
            }
            dead.push(idle);
        }
        let free = pool.backlog.is_none() || pool.seats.saturating_sub(dead.len()) < pool.size;
        if free {
            pool.seats += 1;
            return Entry::Granted(Grant::Seat(Seat(key.clone())));
        }
        if pool.queue.len() >= pool.backlog.unwrap_or(0) {
            return Entry::Full;
        }
        log(Level::Debug, format_args!("lua tcp socket queue connect operation for connection pool \"{key}\""));
        let waiter = Rc::new(Waiter { task: Cell::new(runtime::current()), granted: RefCell::default() });
        pool.queue.push_back(waiter.clone());
        Entry::Wait(Ticket { key: key.clone(), waiter })
    });
    drop(dead);
    entry
}

/// A place in a pool's queue, which is left when nobody waits any more.
pub struct Ticket {
    key: Rc<str>,
    waiter: Rc<Waiter>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let was_waiting = POOLS.with_borrow_mut(|pools| {
            let Some(pool) = pools.get_mut(&self.key) else { return false };
            let before = pool.queue.len();
            pool.queue.retain(|w| !Rc::ptr_eq(w, &self.waiter));
            pool.queue.len() < before
        });
        if was_waiting {
            log(Level::Debug, format_args!("lua tcp socket abort queueing, connection pool \"{}\"", self.key));
        }
    }
}

impl Ticket {
    /// Waits for a place, for at most so long. None: it took too long.
    pub async fn wait(self, timeout: Duration) -> Option<Grant> {
        let timer = Timer::new();
        timer.set(timeout);
        poll_fn(|cx| {
            self.waiter.task.set(runtime::current());
            if let Some(granted) = self.waiter.granted.borrow_mut().take() {
                return Poll::Ready(Some(granted));
            }
            timer.poll_expired(cx).map(|()| None)
        })
        .await
    }
}

/// Gives a connection to its pool. `lifetime` zero: as long as the other side likes.
///
/// # Errors
/// It cannot be used again.
pub fn keep(
    key: &str,
    seat: Option<Seat>,
    mut socket: Socket,
    reused: u64,
    lifetime: Duration,
    size: usize,
) -> Result<(), &'static str> {
    if has_news(&mut socket) {
        return Err("connection in dubious state");
    }
    match lifetime.is_zero() {
        true => log(Level::Debug, format_args!("lua tcp socket keepalive timeout: unlimited")),
        false => log(Level::Debug, format_args!("lua tcp socket keepalive timeout: {} ms", lifetime.as_millis())),
    }
    let until_ms = match lifetime.is_zero() {
        true => u64::MAX,
        false => clock::monotonic_ms() + lifetime.as_millis() as u64,
    };
    let key: Rc<str> = key.into();
    let mut dead = Vec::new();
    POOLS.with_borrow_mut(|pools| {
        make(pools, &key, size, None);
        let Some(pool) = pools.get_mut(&key) else { return };
        let seat = seat.unwrap_or_else(|| {
            pool.seats += 1;
            Seat(key.clone())
        });
        let idle = Idle { socket, reused: reused + 1, until_ms, seat };
        if let Some(waiter) = pool.queue.pop_front() {
            *waiter.granted.borrow_mut() = Some(Grant::Idle(Box::new(idle)));
            return runtime::wake(waiter.task.get());
        }
        while pool.idle.len() >= pool.size {
            dead.extend(pool.idle.pop_front());
            COUNT.set(COUNT.get() - 1);
        }
        if COUNT.get() >= MAX_IDLE {
            return dead.push(idle);
        }
        pool.idle.push_back(idle);
        COUNT.set(COUNT.get() + 1);
    });
    drop(dead);
    if COUNT.get() > 0 && !SWEEPING.replace(true) {
        runtime::spawn(sweep());
    }
    Ok(())
}

/// Whether an idle connection has said something, or has ended.
fn has_news(socket: &mut Socket) -> bool {
    socket.poll_noise(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Closes idle connections whose time is over, or whose other side has closed.
async fn sweep() {
    while COUNT.get() > 0 {
        timer::sleep(SWEEP).await;
        let now = clock::monotonic_ms();
        let mut dead = Vec::new();
        POOLS.with_borrow_mut(|pools| {
            for pool in pools.values_mut() {
                let mut at = 0;
                while at < pool.idle.len() {
                    let idle = &mut pool.idle[at];
                    let (is_late, is_closed) = (idle.until_ms <= now, has_news(&mut idle.socket));
                    if is_late || is_closed {
                        dead.extend(pool.idle.remove(at).map(|idle| (idle, is_late)));
                    } else {
                        at += 1;
                    }
                }
            }
        });
        COUNT.set(COUNT.get() - dead.len());
        for (idle, is_late) in dead {
            if is_late {
                log(Level::Debug, format_args!("lua tcp socket keepalive max idle timeout"));
            }
            log(Level::Debug, format_args!("lua tcp socket keepalive close handler: fd:{}", idle.socket.as_raw_fd()));
        }
    }
    SWEEPING.set(false);
}
