//! Who makes room when a thread has as many connections as it may (`worker_connections`), nginx's `ngx_drain_connections` and
//! `ngx_reusable_connection`. From: `listen`, which asks for a seat. Around: whoever waits for a client, and says so here.
//!
//! ```text
//!          rests()                                take_one()
//!   busy  ───────>  idle: nothing is under way    ──────────>  taken: the task ends at its next look
//!         ───────>  owing: the client is waited for ───┘ (only who has made next to no progress for some seconds)
//!          owes()       and back: works()
//! ```
//! The idle stand in a list, those that were used last at its end; so do those whose client owes something. Both are threaded through
//! one table of the thread: going in and out is a few stores, without an allocation or a call of the kernel. Who has been idle stays in the
//! list while it is busy: whoever looks for the one that has been idle for the longest time puts those behind that were busy meanwhile, so
//! that a request costs the list nothing.

use super::{Client, OPEN};
use crate::log::error::Level;
use crate::worker::counters;
use runtime::TaskId;
use runtime::clock;
use runtime::table::Table;
use runtime::timer::Timer;
use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Whoever reads or sends slower than this, bytes a second, may be closed in favour of a new client. A modem of 1990 is faster; who
/// holds connections up on purpose (slowhttptest) takes some ten.
const LEAST_RATE: u64 = 1024;
/// Progress is judged over at least this time, ms: a train is through most tunnels then.
const PATIENCE_MS: u64 = 5000;
/// Who has said nothing for so long is likely to say nothing for a while longer, ms: parking it costs some microseconds.
const IDLE_MS: u64 = 1000;
/// A thread with fewer connections has no need to park any of them before descriptors are few.
const MANY: usize = 1024;
/// Of many, who has said nothing for so long is parked, ms. A page asks for its parts within it, and pays nothing.
const LONG_IDLE_MS: u64 = 5000;
/// How often it is looked who has.
const SWEEP: Duration = Duration::from_secs(1);
/// So many are parked before others have their turn.
const PORTION: usize = 64;
/// This part of the seats is for new clients.
const SPARE: usize = 8;
/// So many clients are judged for one new connection: each takes a question to the kernel.
const JUDGED: usize = 64;
/// Nobody.
const NONE: u32 = u32::MAX;

/// What a connection is doing, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A request is under way, or it has no seat.
    Busy,
    /// Nothing is under way: it is silent, between two requests, or lingers.
    Idle,
    /// The rest of a head or body is waited for, or the client is to read what it asked for.
    Owing,
    /// Its seat is another's: it is to end.
    Taken,
}

/// Whether a connection is to be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parking {
    /// As long as nobody asks for it, no.
    Unasked,
    /// Yes, if it is between two requests.
    Asked,
    /// It cannot be.
    Never,
}

/// Where a client stands; part of it, so that a look costs nothing.
pub struct ReuseEntry {
    state: Cell<State>,
    /// In which list its place stands. It may be among the idle although it is busy.
    listed: Cell<State>,
    parking: Cell<Parking>,
    place: Cell<u32>,
    /// Whom to wake when it is taken.
    task: Cell<TaskId>,
    /// Since when it is idle, or its progress is counted, ms.
    since_ms: Cell<u64>,
    /// Of a QUIC connection: bytes both ways, which stand for its progress.
    bytes: Cell<u64>,
    /// A request sees its client with another address (`realip`): whose connection it is.
    origin: Option<Rc<Client>>,
}

impl ReuseEntry {
    /// Without a seat.
    pub const fn new() -> ReuseEntry {
        ReuseEntry {
            state: Cell::new(State::Busy),
            listed: Cell::new(State::Busy),
            parking: Cell::new(Parking::Unasked),
            place: Cell::new(NONE),
            task: Cell::new(TaskId::NOBODY),
            since_ms: Cell::new(0),
            bytes: Cell::new(0),
            origin: None,
        }
    }

    /// Of a client that stands for another.
    pub fn beside(other: &Rc<Client>) -> ReuseEntry {
        let origin = other.reuse_entry.origin.clone().unwrap_or_else(|| other.clone());
        ReuseEntry { origin: Some(origin), ..ReuseEntry::new() }
    }
}

impl Default for ReuseEntry {
    fn default() -> ReuseEntry {
        ReuseEntry::new()
    }
}

/// One connection of those that a thread may have. Given back when it is dropped.
pub struct Seat {
    place: u32,
}

struct Place {
    /// None: nobody sits here.
    client: Option<Rc<Client>>,
    before: u32,
    behind: u32,
    /// Since when its client was idle when it came to where it stands in the list, ms.
    listed_ms: u64,
    /// From how many bytes on its progress is counted.
    from: u64,
}

/// A list through the table: first and last.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

struct Room {
    places: Table<Place>,
    free: Vec<u32>,
    idle: List,
    owing: List,
    /// When this was last spoken of, s.
    said_s: u64,
}

const EMPTY: List = List { first: NONE, last: NONE };

thread_local! {
    static ROOM: RefCell<Room> = const {
        RefCell::new(Room { places: Table::new(), free: Vec::new(), idle: EMPTY, owing: EMPTY, said_s: 0 })
    };
}

impl Seat {
    /// Gives a connection its seat. [`has_room`] has been asked before.
    pub fn take(client: &Rc<Client>) -> Seat {
        counters::accepted();
        Seat::sit(client)
    }

    /// The same for a connection that another thread hands over.
    pub fn take_over(client: &Rc<Client>) -> Seat {
        counters::adopted();
        Seat::sit(client)
    }

    fn sit(client: &Rc<Client>) -> Seat {
        OPEN.with_borrow(|o| o.as_ref().map(|n| n.store(n.load(Relaxed) + 1, Relaxed)));
        let place = ROOM.with_borrow_mut(|room| {
            let place = Place { client: Some(client.clone()), before: NONE, behind: NONE, listed_ms: 0, from: 0 };
            match room.free.pop() {
                Some(number) => {
                    room.places[number as usize] = place;
                    number
                }
                None => room.places.push(place) as u32,
            }
        });
        client.reuse_entry.place.set(place);
        Seat { place }
    }

    /// The connection's number.
    pub fn number(&self) -> u64 {
        ROOM.with_borrow(|room| room.places[self.place as usize].client.as_ref().map_or(0, |c| c.number))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // The thread's storage may be gone already when a thread ends.
        let client = ROOM.try_with(|room| {
            let mut room = room.borrow_mut();
            let client = room.places[self.place as usize].client.take()?;
            room.leave(self.place, client.reuse_entry.listed.replace(State::Busy));
            room.free.push(self.place);
            Some(client)
        });
        if let Ok(Some(client)) = client {
            client.reuse_entry.place.set(NONE);
            let left = client.programs.get().and_then(|left| left.take());
            drop(left);
            if client.reuse_entry.state.replace(State::Busy) != State::Taken {
                let _ = OPEN.try_with(|o| o.borrow().as_ref().map(|n| n.store(n.load(Relaxed) - 1, Relaxed)));
            }
        }
        counters::closed();
        crate::listen::descriptors::one_is_free();
    }
}

impl Room {
    fn list(&mut self, state: State) -> Option<&mut List> {
        match state {
            State::Idle => Some(&mut self.idle),
            State::Owing => Some(&mut self.owing),
            State::Busy | State::Taken => None,
        }
    }

    fn leave(&mut self, place: u32, state: State) {
        let (before, behind) = {
            let p = &self.places[place as usize];
            (p.before, p.behind)
        };
        let Some(list) = self.list(state) else { return };
        if before == NONE {
            list.first = behind;
        }
        if behind == NONE {
            list.last = before;
        }
        if before != NONE {
            self.places[before as usize].behind = behind;
        }
        if behind != NONE {
            self.places[behind as usize].before = before;
        }
    }

    fn enter(&mut self, place: u32, state: State) {
        let Some(list) = self.list(state) else { return };
        let last = std::mem::replace(&mut list.last, place);
        if last == NONE {
            list.first = place;
        } else {
            self.places[last as usize].behind = place;
        }
        let p = &mut self.places[place as usize];
        (p.before, p.behind) = (last, NONE);
    }
}

impl Client {
    #[inline]
    fn reuse_entry(&self) -> &ReuseEntry {
        self.reuse_entry.origin.as_ref().map_or(&self.reuse_entry, |origin| &origin.reuse_entry)
    }

    fn stand(&self, state: State, from: u64) {
        let reuse_entry = self.reuse_entry();
        let (place, before) = (reuse_entry.place.get(), reuse_entry.state.get());
        if place == NONE || before == State::Taken {
            return;
        }
        let now_ms = clock::monotonic_ms();
        reuse_entry.state.set(state);
        reuse_entry.task.set(runtime::current());
        reuse_entry.since_ms.set(now_ms);
        if reuse_entry.listed.get() == State::Idle && state == State::Idle {
            return;
        }
        let listed = reuse_entry.listed.replace(state);
        ROOM.with_borrow_mut(|room| {
            room.leave(place, listed);
            room.enter(place, state);
            let p = &mut room.places[place as usize];
            (p.listed_ms, p.from) = (now_ms, from);
        });
    }

    /// The connection goes on as another client's: the seat goes with it.
    pub(super) fn give_seat_to(&self, other: &Rc<Client>) {
        self.works();
        let place = self.reuse_entry.place.replace(NONE);
        if place != NONE {
            let (ours, theirs) = (&self.reuse_entry, &other.reuse_entry);
            theirs.place.set(place);
            theirs.state.set(ours.state.get());
            theirs.listed.set(ours.listed.replace(State::Busy));
            theirs.task.set(ours.task.get());
            theirs.since_ms.set(ours.since_ms.get());
            let before = ROOM.with_borrow_mut(|room| room.places[place as usize].client.replace(other.clone()));
            drop(before);
        }
    }

    /// Nothing is under way on the connection: the running task waits for the client, and is to look at [`Client::is_taken`] when it
    /// is woken.
    #[inline]
    pub fn rests(&self) {
        if self.reuse_entry().state.get() != State::Idle {
            self.stand(State::Idle, 0);
        }
    }

    /// The running task waits for what the client owes, and is to look at [`Client::is_taken`] when it is woken. `from`: the bytes both
    /// ways that are no progress of it, as far as is known.
    #[inline]
    pub fn owes(&self, from: u64) {
        if self.reuse_entry().state.get() != State::Owing {
            self.stand(State::Owing, from);
        }
    }

    /// The client owes nothing.
    #[inline]
    pub fn works(&self) {
        let reuse_entry = self.reuse_entry();
        match reuse_entry.state.get() {
            State::Busy => {}
            // It stays in the list: the next request's end would bring it back there.
            State::Idle => reuse_entry.state.set(State::Busy),
            State::Owing | State::Taken => self.stand(State::Busy, 0),
        }
    }

    /// Whether the connection is to end, because another has its seat.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.reuse_entry().state.get() == State::Taken
    }

    /// Whether it is better parked; asked once.
    #[inline]
    pub fn is_to_park(&self) -> bool {
        let parking = &self.reuse_entry.parking;
        let is_asked = parking.get() == Parking::Asked;
        if is_asked {
            parking.set(Parking::Unasked);
        }
        is_asked
    }

    /// It cannot be parked, and need not be asked again.
    pub fn cannot_park(&self) {
        self.reuse_entry.parking.set(Parking::Never);
    }

    /// So many bytes have passed on a QUIC connection.
    pub fn has_moved(&self, bytes: u64) {
        self.reuse_entry.bytes.set(bytes);
    }

    /// What the client has acknowledged and sent since the connection began. None: the kernel does not tell (unix sockets).
    pub(crate) fn progress(&self) -> Option<u64> {
        if self.quic {
            return Some(self.reuse_entry.bytes.get());
        }
        let socket = self.socket.upgrade()?;
        let (acked, received) = crate::master::tcp_progress(socket.as_fd()).ok()?;
        // What is no TCP connection leaves both at zero.
        (received > 0 || acked > 0).then_some(acked + received)
    }
}

/// Whether the thread may have one more connection; if it has as many as it may, one of them makes room. Says so in the log, once a
/// second.
pub fn has_room() -> bool {
    let limit = crate::worker::snapshot().process.worker_connections;
    if open() < limit {
        return true;
    }
    let made = take_one();
    match made {
        Some(State::Idle) => {
            say(Level::Warn, format_args!("{limit} worker_connections are not enough, reusing connections"))
        }
        Some(_) => {
            say(
                Level::Warn,
                format_args!("{limit} worker_connections are not enough, closing those of the slowest clients"),
            );
        }
        None => {
            counters::dropped();
            crate::log::process_line(Level::Alert, format_args!("{limit} worker_connections are not enough"));
        }
    }
    made.is_some()
}

/// Whether the next connection takes another's seat.
pub fn is_full() -> bool {
    open() >= crate::worker::snapshot().process.worker_connections
}

/// Whether there is a seat for who can wait for one, where so many are about to have theirs: some are left for new clients.
pub fn has_spare(more: usize) -> bool {
    let limit = crate::worker::snapshot().process.worker_connections;
    open() + more < limit - limit / SPARE
}

/// Connections of this thread that have seats.
#[inline]
pub fn open() -> usize {
    OPEN.with_borrow(|o| o.as_ref().map_or(0, |n| n.load(Relaxed)))
}

fn say(level: Level, text: std::fmt::Arguments<'_>) {
    let now_s = clock::monotonic_ms() / 1000;
    let said_s = ROOM.with_borrow_mut(|room| std::mem::replace(&mut room.said_s, now_s));
    if said_s != now_s {
        crate::log::process_line(level, text);
    }
}

/// Has the connection end that has been idle for the longest time, or else one whose client has read or sent less than
/// [`LEAST_RATE`] for [`PATIENCE_MS`]. Which kind it was.
pub fn take_one() -> Option<State> {
    take_idle_for(0)
}

/// The same for somebody who can wait: who has just come, or has just been answered, keeps the connection.
pub fn take_one_patiently() -> Option<State> {
    take_idle_for(IDLE_MS)
}

fn take_idle_for(idle_ms: u64) -> Option<State> {
    let (task, state) = ROOM.with_borrow_mut(|room| {
        let now_ms = clock::monotonic_ms();
        let since_ms = |place: &Place| place.client.as_ref().map_or(now_ms, |client| client.reuse_entry.since_ms.get());
        let (place, state) = match room.longest_idle() {
            Some(at) if now_ms.saturating_sub(since_ms(&room.places[at as usize])) >= idle_ms => (at, State::Idle),
            _ => (room.slowest()?, State::Owing),
        };
        room.leave(place, state);
        let client = room.places[place as usize].client.clone()?;
        client.reuse_entry.listed.set(State::Busy);
        client.reuse_entry.state.set(State::Taken);
        Some((client.reuse_entry.task.get(), state))
    })?;
    OPEN.with_borrow(|o| o.as_ref().map(|n| n.store(n.load(Relaxed) - 1, Relaxed)));
    runtime::wake_first(task);
    Some(state)
}

/// Has connections be parked that have been idle for a while: descriptors are few. Two for each that comes, so that they become fewer.
pub fn park_oldest() {
    park_idle(IDLE_MS, 2);
}

/// Has connections be parked that are idle, however short: a seat is wanted by who can wait until one is free. False: there is none of them.
pub fn park_some() -> bool {
    let mut is_asked = false;
    for _ in 0..PORTION {
        match ask_to_park(0) {
            Some(Some(task)) => {
                runtime::wake(task);
                is_asked = true;
            }
            Some(None) => {}
            None => break,
        }
    }
    is_asked
}

/// Has connections be parked that have been idle for so long, at most so many; how many there were.
fn park_idle(idle_ms: u64, most: usize) -> usize {
    for done in 0..most {
        match ask_to_park(idle_ms) {
            Some(task) => task.into_iter().for_each(runtime::wake),
            None => return done,
        }
    }
    most
}

/// Whoever has been idle for the longest time is to be parked: his task is to be woken, unless he cannot be. None: nobody has been so long.
fn ask_to_park(idle_ms: u64) -> Option<Option<TaskId>> {
    ROOM.with_borrow_mut(|room| {
        let now_ms = clock::monotonic_ms();
        let place = room.longest_idle()?;
        let p = &mut room.places[place as usize];
        let client = p.client.clone()?;
        let entry = &client.reuse_entry;
        if now_ms.saturating_sub(entry.since_ms.get()) < idle_ms {
            return None;
        }
        p.listed_ms = now_ms;
        entry.since_ms.set(now_ms);
        room.leave(place, State::Idle);
        if entry.parking.get() == Parking::Never {
            room.enter(place, State::Idle);
            return Some(None);
        }
        // Who is something else than between two requests enters the list again at its next look.
        entry.listed.set(State::Busy);
        entry.state.set(State::Busy);
        entry.parking.set(Parking::Asked);
        Some(Some(entry.task.get()))
    })
}

thread_local! {
    static IS_SWEEPING: Cell<bool> = const { Cell::new(false) };
}

/// Where the thread has many connections, looks from now on who of them has been idle for long: those are parked. Until they are fewer.
#[inline]
pub fn sweep_if_many() {
    if open() >= MANY && !IS_SWEEPING.replace(true) {
        runtime::spawn(sweep());
    }
}

async fn sweep() {
    let timer = Timer::new();
    while open() >= MANY && !crate::worker::draining() {
        timer.set(SWEEP);
        std::future::poll_fn(|cx| timer.poll_expired(cx)).await;
        while park_idle(LONG_IDLE_MS, PORTION) == PORTION {
            runtime::yield_now().await;
        }
    }
    IS_SWEEPING.set(false);
}

impl Room {
    /// Who has been idle for the longest time. Those that are busy leave the list, and those that were busy meanwhile go to its end: each of
    /// them has had a request since it was last looked at.
    fn longest_idle(&mut self) -> Option<u32> {
        loop {
            let place = self.idle.first;
            let p = self.places.get(place as usize)?;
            let (listed_ms, entry) = (p.listed_ms, p.client.as_ref().map(|client| &client.reuse_entry)?);
            let (state, since_ms) = (entry.state.get(), entry.since_ms.get());
            if state == State::Idle && since_ms <= listed_ms {
                return Some(place);
            }
            if state != State::Idle {
                entry.listed.set(State::Busy);
            }
            self.leave(place, State::Idle);
            if state == State::Idle {
                self.enter(place, State::Idle);
                self.places[place as usize].listed_ms = since_ms;
            }
        }
    }

    /// Of the clients that have owed something for the longest time, the first that makes next to no progress. Those that do begin anew.
    fn slowest(&mut self) -> Option<u32> {
        let now = clock::monotonic_ms();
        for _ in 0..JUDGED {
            let place = self.owing.first;
            let p = self.places.get_mut(place as usize)?;
            let client = p.client.clone()?;
            let waited = now.saturating_sub(client.reuse_entry.since_ms.get());
            if waited < PATIENCE_MS {
                return None;
            }
            let progress = client.progress();
            if progress.is_some_and(|n| n.saturating_sub(p.from) < LEAST_RATE * waited / 1000) {
                return Some(place);
            }
            client.reuse_entry.since_ms.set(now);
            p.from = progress.unwrap_or(u64::MAX);
            self.leave(place, State::Owing);
            self.enter(place, State::Owing);
        }
        None
    }
}
