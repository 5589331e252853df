//! Connections that wait and say nothing: no task, no request, no buffers, and no descriptor. What is left of each is a [`Resident`] in a
//! table of the thread and a file in one of io_uring's tables (`rings`), so that there may be more of them than the process may have
//! descriptors (docs/push.md). From: whoever has a connection that waits ([`park`]). To: `connection::go_on`, when it is wanted again.
//!
//! ```text
//!   park ──> arrivals ──> table, ring ──> the bell, a deadline, or a source rings ──> next() ──> Say: written from the ring, all at once
//!                                                                                           ├──> Rest: waits on
//!                                                                                           └──> Leave: a descriptor and a task again
//! ```
//! One task of the thread does all of it, a portion at a time, so that requests have their turns. Where there are no rings nothing can
//! be parked: connections stay with their tasks.

mod bill;
pub mod idle;
mod lot;
mod secured;
mod table;
mod whose;

pub use bill::{Bill, Kind, LIST_BYTES, TYPICAL_BYTES, bill, block, descriptors, held_without_rings, most_of, rebill};
pub use whose::{Whose, read_address, read_header, write_address, write_header};

use super::reuse;
use super::socket::Socket;
use super::tls::secrets::SecretBytes;
use crate::log::error::Level;
use crate::snapshot::Snapshot;
use crate::worker::counters;
use crate::worker::departure::{self, Papers, Stay, Traveller};
use lot::Lot;
use runtime::timer::Timer;
use runtime::{TaskId, clock};
use secured::{Cover, Secured};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

/// A look at deadlines, and at who waits for a descriptor: so late they may be.
const TICK_MS: u64 = 256;
/// Connections whose descriptors wait to be parked together.
const ARRIVALS: usize = 64;
/// Half of the connections that a thread may have with tasks.
const CROWDED: u64 = 2;
/// After a refusal nothing is parked for so long, ms.
const REFUSED_MS: u64 = 1000;
/// The log says so often at most why no more can be parked.
const SAY_AGAIN_MS: u64 = 60_000;

/// Bytes that many residents may write alike.
pub trait Form {
    /// The bytes, in the form of this number.
    fn bytes(&self, form: u8) -> &[u8];
}

/// What a resident says.
pub enum Words {
    /// What is one for all that say it.
    Shared(Arc<dyn Form>, u8),
    /// Its own.
    Own(Box<[u8]>),
}

impl Words {
    fn bytes(&self) -> &[u8] {
        match self {
            Words::Shared(from, form) => from.bytes(*form),
            Words::Own(bytes) => bytes,
        }
    }
}

/// What a resident wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// What the client says, and its end.
    Words,
    /// Only its end.
    End,
    /// That it says something, or its end: neither is read.
    Stir,
}

/// What a resident does next.
pub enum Next {
    /// Says something; it is asked again when that is written.
    Say(Words),
    /// Nothing, until something happens, or this time has come (monotonic ms).
    Rest(Option<u64>),
    /// It wants to be a connection with a task again. It is asked again if that has to wait.
    Leave,
    /// It is over: nobody needs to hear of that.
    Close,
}

/// What is left of a connection that is parked.
pub trait Resident {
    /// Which kind it is.
    fn kind(&self) -> Kind;
    /// Whether it is a client's connection: a peer's takes no seat.
    fn is_client(&self) -> bool {
        true
    }
    /// What it takes, bytes. It says by [`rebill`] when that changes while it is parked.
    fn bytes(&self) -> usize;
    /// What it wants to hear.
    fn watch(&self) -> Watch;
    /// Where it stands in the thread's table from now on.
    fn settled(&mut self, place: u32);
    /// The client has said this.
    fn hear(&mut self, bytes: &[u8]);
    /// The client is gone, or its connection has failed.
    fn gone(&mut self, why: Option<io::Error>);
    /// The client has not taken anything for [`Resident::patience`].
    fn stalled(&mut self);
    /// It could not be parked, and is to go on as it was.
    fn refused(&mut self);
    /// How long a client may take nothing of what is being written.
    fn patience(&self) -> Duration;
    /// So many bytes of what it says are written.
    fn wrote(&mut self, count: usize);
    /// What it does next.
    fn next(&mut self) -> Next;
    /// Goes on with its connection, as one with a task.
    fn leave(self: Box<Self>, socket: Socket);
    /// What another process has to know of it to go on with it; none: it cannot go. `rest`: what is left of what it was saying, which is
    /// its to say again from then on.
    fn travel(&mut self, _rest: &[u8]) -> Option<Papers> {
        None
    }
    /// What its connection is encrypted with, where it goes with another one; nothing for one that is plain. None: it cannot go.
    fn goes_along(&self) -> Option<Option<SecretBytes>> {
        Some(None)
    }
    /// Where the connection stands that goes with it.
    fn companion(&self) -> Option<u32> {
        None
    }
    /// It has not gone, and is here again.
    fn stay(self: Box<Self>, ready: Ready, _why: Stay) {
        self.leave(ready.into_socket());
    }
}

/// A connection that can be parked, or go to another process.
pub struct Ready {
    fd: OwnedFd,
    /// Of TLS.
    cover: Option<Cover>,
}

impl Ready {
    /// Takes a connection apart, if it can be parked: it is plain, or one of TLS 1.3 on which nothing is under way.
    pub fn of(socket: Socket) -> Result<Ready, Socket> {
        if is_open() { Ready::apart(socket) } else { Err(socket) }
    }

    /// The same whether or not anything can be parked here.
    pub fn apart(socket: Socket) -> Result<Ready, Socket> {
        let (fd, secrets) = socket.freeze()?;
        Ok(Ready { fd, cover: secrets.as_ref().map(Cover::new) })
    }

    /// A plain connection.
    pub fn plain(fd: OwnedFd) -> Ready {
        Ready { fd, cover: None }
    }

    /// What has come from another process, and the connection that came with it, each with what it is encrypted with. None: it is no
    /// connection.
    pub fn arrived(
        files: impl IntoIterator<Item = (OwnedFd, Option<SecretBytes>)>,
        sealed: &[u8],
    ) -> Option<(Ready, Option<Ready>)> {
        let mut files = files.into_iter();
        let (fd, secrets) = files.next()?;
        let cover = match secrets {
            Some(secrets) => Some(Cover::read(secrets, sealed)?),
            None => None,
        };
        let companion = match files.next() {
            Some((fd, Some(secrets))) => Some(Ready { fd, cover: Some(Cover::at_rest(secrets)?) }),
            Some((fd, None)) => Some(Ready::plain(fd)),
            None => None,
        };
        Some((Ready { fd, cover }, companion))
    }

    /// Whether it can be parked here and now.
    pub fn may_park(&self) -> bool {
        is_open()
    }

    /// The connection again.
    pub fn into_socket(self) -> Socket {
        let socket = Socket::new(self.fd);
        match self.cover {
            Some(cover) => cover.socket(socket),
            None => socket,
        }
    }

    fn cover(self, resident: Box<dyn Resident>) -> (OwnedFd, Box<dyn Resident>) {
        let resident = match self.cover {
            Some(cover) => Box::new(Secured::new(resident, cover)),
            None => resident,
        };
        (self.fd, resident)
    }
}

/// Takes a connection from where it is, if it can be parked, or goes to another process: then whether or not anything can be parked here.
pub fn take(from: &mut Socket, departs: bool) -> Option<Ready> {
    let socket = std::mem::replace(from, Socket::none());
    let ready = if departs { Ready::apart(socket) } else { Ready::of(socket) };
    ready.map_err(|socket| *from = socket).ok()
}

/// Has connections that belong together go on in another process: the first one knows what that has to know. `rest`: what is left of what
/// it was saying. What cannot go is here again, as what has not gone is.
pub fn send_off(all: Vec<(Ready, Box<dyn Resident>)>, rest: &[u8]) {
    let (files, mut residents): (Vec<_>, Vec<_>) =
        all.into_iter().map(|(ready, resident)| ready.cover(resident)).unzip();
    let papers = residents.first_mut().and_then(|first| first.travel(rest));
    match papers.and_then(|papers| with_companion(papers, residents.get(1).map(|other| &**other))) {
        Some(papers) => departure::send(traveller(papers, files, residents)),
        None => stay_all(files, residents, Stay::Untold),
    }
}

/// Adds what the connection is encrypted with that goes with another one. None: it cannot go.
fn with_companion(papers: Papers, companion: Option<&dyn Resident>) -> Option<Papers> {
    let secrets = companion.map_or(Some(None), Resident::goes_along)?;
    Some(Papers { companion: secrets, ..papers })
}

/// On their way, with what they are here.
fn traveller(papers: Papers, files: Vec<OwnedFd>, residents: Vec<Box<dyn Resident>>) -> Traveller {
    Traveller { papers, files, stay: Box::new(|files, why| stay_all(files, residents, why)) }
}

fn stay_all(files: Vec<OwnedFd>, residents: Vec<Box<dyn Resident>>, why: Stay) {
    files.into_iter().zip(residents).for_each(|(fd, resident)| resident.stay(Ready::plain(fd), why));
}

/// Names residents for which there is something, until there are so many places in all: who is asked has no other list of them.
pub type Source = fn(places: &mut Vec<u32>, most: usize);

thread_local! {
    static LOT: RefCell<Option<Lot>> = const { RefCell::new(None) };
    static CROWD: Cell<usize> = const { Cell::new(usize::MAX) };
    static SOURCES: RefCell<Vec<Source>> = const { RefCell::new(Vec::new()) };
    static TASK: Cell<TaskId> = const { Cell::new(TaskId::NOBODY) };
    /// Until then nothing is parked, monotonic ms.
    static SHUT_UNTIL_MS: Cell<u64> = const { Cell::new(0) };
}

/// Residents that are called from outside their thread's task.
struct Calls {
    /// The task that asks residents.
    task: Mutex<Option<Waker>>,
    places: Mutex<Vec<u32>>,
}

struct Caller {
    calls: Arc<Calls>,
    place: u32,
}

/// A thread's number, and what calls to it go by.
struct Line {
    number: u32,
    calls: Arc<Calls>,
}

/// What calls to each thread go by. A thread that has ended has its number no more.
static LINES: Mutex<Vec<Arc<Calls>>> = Mutex::new(Vec::new());

thread_local! {
    static LINE: Line = Line::open();
}

impl Line {
    fn open() -> Line {
        let calls = Arc::new(Calls { task: Mutex::new(None), places: Mutex::new(Vec::new()) });
        let mut lines = LINES.lock().expect(NO_PANIC);
        let number = match lines.iter().position(|line| Arc::strong_count(line) == 1) {
            Some(free) => {
                lines[free] = calls.clone();
                free
            }
            None => {
                lines.push(calls.clone());
                lines.len() - 1
            }
        };
        Line { number: number as u32, calls }
    }
}

impl Calls {
    /// Has the resident at a place be asked.
    fn call(&self, place: u32) {
        self.places.lock().expect(NO_PANIC).push(place);
        if let Some(task) = &*self.task.lock().expect(NO_PANIC) {
            task.wake_by_ref();
        }
    }
}

const NO_PANIC: &str = "nothing panics while it is locked";

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.calls.call(self.place);
    }
}

/// This thread's number, for [`call`].
pub fn thread() -> u32 {
    LINE.with(|line| line.number)
}

/// Has the resident at a place of a thread be asked, as [`waker`] does, for who keeps no waker of each.
pub fn call(thread: u32, place: u32) {
    let calls = LINES.lock().expect(NO_PANIC).get(thread as usize).cloned();
    calls.into_iter().for_each(|calls| calls.call(place));
}

/// Has the resident at a place of this thread be asked, whichever thread wakes it. Who stands there later may be asked in vain.
pub fn waker(place: u32) -> Waker {
    LINE.with(|line| Arc::new(Caller { calls: line.calls.clone(), place })).into()
}

/// The log says once in a process why nothing can be parked.
static SAID: AtomicBool = AtomicBool::new(false);

/// Whether this thread's connections have so many of the seats and descriptors that those idle for long are better parked.
#[inline]
pub fn is_crowded() -> bool {
    reuse::open() >= CROWD.get()
}

/// How many connections with tasks are a crowd: their share of `worker_connections`, and of the descriptors.
pub fn set_crowd(snapshot: &Snapshot) {
    let process = &snapshot.process;
    let share = bill::descriptors() / process.threads.max(1) as u64 / CROWDED;
    let seats = process.worker_connections as u64 / CROWDED;
    CROWD.set(usize::try_from(share.min(seats)).unwrap_or(usize::MAX).max(1));
}

/// Whether connections of this thread can be parked.
pub(super) fn is_open() -> bool {
    if SHUT_UNTIL_MS.get() > clock::monotonic_ms() || crate::worker::draining() {
        return false;
    }
    if LOT.with_borrow(Option::is_some) {
        return true;
    }
    match Lot::open(most()) {
        Ok(lot) => {
            LOT.set(Some(lot));
            TASK.set(runtime::spawn(serve()));
            true
        }
        Err(why) => {
            SHUT_UNTIL_MS.set(u64::MAX);
            if most() > 0 && !SAID.swap(true, Relaxed) {
                crate::log::process_line(Level::Warn, format_args!("{}", bill::held_without_rings(&why, None)));
            }
            false
        }
    }
}

fn most() -> usize {
    usize::try_from(most_of(&crate::worker::snapshot())).unwrap_or(usize::MAX)
}

/// Parks a connection.
pub fn park(ready: Ready, resident: Box<dyn Resident>) {
    let (fd, resident) = ready.cover(resident);
    if resident.is_client() {
        counters::adopted();
    }
    let is_full = LOT.with_borrow_mut(|lot| {
        let Some(lot) = lot else { return false };
        lot.arrivals.push((fd, resident));
        lot.arrivals.len() >= ARRIVALS
    });
    if is_full {
        // Descriptors are few: those that wait are let go before more are taken.
        let leavers = LOT.with_borrow_mut(|lot| lot.as_mut().map(Lot::take_in));
        leavers.into_iter().flatten().for_each(release);
    }
    stir();
}

/// Residents of a source have something to do.
pub fn stir() {
    runtime::wake(TASK.get());
}

/// From now on this is asked, each time somebody stirs, who has something to do.
pub fn listen_to(source: Source) {
    SOURCES.with_borrow_mut(|sources| {
        if !sources.iter().any(|s| std::ptr::fn_addr_eq(*s, source)) {
            sources.push(source);
        }
    });
}

/// How many this thread has.
pub fn count() -> usize {
    LOT.with_borrow(|lot| lot.as_ref().map_or(0, Lot::count))
}

/// Gives up residents that can go on in another process, those at places before `before`, the last ones first, at most so many. None: there are
/// no more.
pub fn depart(before: &mut u32, most: usize) -> Option<Vec<Traveller>> {
    // Those about to be parked have places first: what belongs together goes together.
    let refused = LOT.with_borrow_mut(|lot| lot.as_mut().map(Lot::take_in));
    refused.into_iter().flatten().for_each(release);
    LOT.with_borrow_mut(|lot| lot.as_mut()?.depart(before, most))
}

/// Asks all residents what is next: something has changed for all of them.
pub fn ask_all() {
    LOT.with_borrow_mut(|lot| lot.iter_mut().for_each(Lot::ask_all));
    stir();
}

/// Closes all: the thread ends.
pub fn clear() {
    SHUT_UNTIL_MS.set(u64::MAX);
    drop(LOT.take());
}

/// A connection that has left: it is another's business now.
struct Leaver {
    fd: OwnedFd,
    resident: Box<dyn Resident>,
}

fn release(leaver: Leaver) {
    if leaver.resident.is_client() {
        counters::closed();
    }
    leaver.resident.leave(Socket::new(leaver.fd));
}

/// Works on what happens to residents, a portion at a time.
async fn serve() {
    let timer = Timer::new();
    poll_fn(|cx| {
        LINE.with(|line| *line.calls.task.lock().expect(NO_PANIC) = Some(cx.waker().clone()));
        Poll::Ready(())
    })
    .await;
    loop {
        poll_fn(|cx| {
            // A panic costs what was being done, not all that are parked.
            let portion = || LOT.with_borrow_mut(|lot| lot.as_mut().map(Lot::portion));
            let Ok(done) = catch_unwind(AssertUnwindSafe(portion)) else {
                crate::log::process_line(
                    Level::Alert,
                    format_args!("what parked connections were to do was given up after a panic"),
                );
                return Poll::Ready(());
            };
            // The thread ends.
            let Some((leavers, more)) = done else { return Poll::Pending };
            leavers.into_iter().for_each(release);
            if more {
                return Poll::Ready(());
            }
            let is_ticking = LOT.with_borrow_mut(|lot| match lot {
                Some(lot) => lot.listen().then_some(lot.is_ticking()),
                None => Some(false),
            });
            match is_ticking {
                // Something has happened meanwhile.
                None => Poll::Ready(()),
                Some(false) => Poll::Pending,
                Some(true) => {
                    timer.set(Duration::from_millis(TICK_MS));
                    timer.poll_expired(cx)
                }
            }
        })
        .await;
        runtime::yield_now().await;
    }
}

/// Whether a connection may leave, and take a seat and a descriptor. Those that are idle are parked for it, and it waits until they are: a
/// message for all would close the connections of who has just heard it. Where nobody can be parked, somebody has to go who has been idle for a
/// while.
/// `leaving`: so many take theirs before it.
fn has_seat(leaving: usize) -> bool {
    if reuse::has_spare(leaving) {
        return true;
    }
    if SHUT_UNTIL_MS.get() > clock::monotonic_ms() || crate::worker::draining() {
        return reuse::take_one().is_some();
    }
    !reuse::park_some() && reuse::take_one_patiently().is_some()
}

/// Nothing is parked for a while. Why is said once in a while, not for each connection.
fn shut(why: &io::Error) {
    static SAID_UNTIL_MS: AtomicU64 = AtomicU64::new(0);
    let now_ms = clock::monotonic_ms();
    SHUT_UNTIL_MS.set(now_ms + REFUSED_MS);
    let said = SAID_UNTIL_MS.fetch_update(Relaxed, Relaxed, |until| (until <= now_ms).then_some(now_ms + SAY_AGAIN_MS));
    if said.is_ok() {
        crate::log::process_line(Level::Warn, format_args!("{}", bill::no_more_parked(why, most())));
    }
}
