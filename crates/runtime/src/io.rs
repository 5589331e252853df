//! Descriptors of a thread and their readiness: one epoll set, edge-triggered, and some forty bytes for each descriptor.

use super::table::Table;
use super::{ENGINE, NOBODY, TaskId, wake, wake_first};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;

/// Events taken from the kernel at once.
const EVENTS: usize = 1024;
const HAS_LOOP: &str = "sockets are registered on a thread with a loop";
/// The token of the thread's notifier.
const NOTIFIER: u64 = u64::MAX;

const READ: u8 = 1;
const WRITE: u8 = 2;
/// The other side has closed its direction.
const READ_CLOSED: u8 = 4;
const WRITE_CLOSED: u8 = 8;
const ERROR: u8 = 16;
/// A read would not wait.
const READABLE: u8 = READ | READ_CLOSED | ERROR;

/// What is known of a descriptor: shared by the loop, which writes it down, and the owner, who reads it.
#[derive(Debug)]
struct Source {
    place: u32,
    reader: Cell<u32>,
    writer: Cell<u32>,
    ready: Cell<u8>,
    /// Whoever waits to read runs first.
    urgent: bool,
}

#[derive(Default)]
struct Place {
    /// Tells the sources of one place apart: an event for the one before is not for this one.
    generation: u32,
    source: Option<Rc<Source>>,
}

#[derive(Default)]
struct Sources {
    places: Table<Place>,
    free: Vec<u32>,
}

thread_local! {
    static SOURCES: RefCell<Sources> = const { RefCell::new(Sources { places: Table::new(), free: Vec::new() }) };
    static EPOLL: OnceCell<OwnedFd> = const { OnceCell::new() };
    static BATCH: Cell<Vec<Event>> = const { Cell::new(Vec::new()) };
}

/// What a descriptor is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Reading only: a listening socket. One of UDP too, while there is room to send: the kernel tells of room each time a
    /// datagram has left.
    Read,
    /// Both directions.
    Both,
    /// Both directions of a connection to a peer: who has been answered goes first.
    Peer,
}

impl Interest {
    fn flags(self) -> EventFlags {
        let reading = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if self == Interest::Read { reading } else { reading | EventFlags::OUT }
    }
}

/// A descriptor that the thread watches. Closing the descriptor ends the watch in the kernel if no other descriptor
/// means the same file; otherwise use [`Registration::remove`].
#[derive(Debug)]
pub struct Registration {
    source: Rc<Source>,
}

/// Makes the thread's set, with the notifier that other threads ring.
pub(super) fn start(notifier: &OwnedFd) -> io::Result<()> {
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&set, notifier, EventData::new_u64(NOTIFIER), EventFlags::IN)?;
    EPOLL.with(|e| {
        let _ = e.set(set);
    });
    Ok(())
}

/// What a wait brought.
pub(super) struct News {
    /// So many events.
    pub(super) count: usize,
    /// Another thread has rung.
    pub(super) notified: bool,
}

/// Waits for news, `None`: as long as it takes. Marks what has happened and wakes who asked for it.
pub(super) fn wait(ms: Option<u64>) -> News {
    let timeout = ms.map(|ms| Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 });
    let mut batch = BATCH.take();
    batch.clear();
    batch.reserve(EVENTS);
    // An interrupted wait is a turn without news.
    let _ = EPOLL.with(|e| {
        let set = e.get().expect("the loop has its set");
        epoll::wait(set, rustix::buffer::spare_capacity(&mut batch), timeout.as_ref())
    });
    let mut notified = false;
    SOURCES.with_borrow_mut(|sources| {
        for event in &batch {
            let data = event.data.u64();
            if data == NOTIFIER {
                notified = true;
            } else {
                sources.mark(data, event.flags);
            }
        }
    });
    let count = batch.len();
    BATCH.set(batch);
    News { count, notified }
}

impl Sources {
    #[inline]
    fn mark(&mut self, data: u64, flags: EventFlags) {
        let (place, generation) = (data as u32, (data >> 32) as u32);
        let found = self.places.get(place as usize).filter(|p| p.generation == generation);
        let Some(s) = found.and_then(|p| p.source.as_deref()) else { return };
        let mut ready = 0;
        if flags.intersects(EventFlags::IN | EventFlags::PRI | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            ready |= READ;
        }
        if flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR) {
            ready |= WRITE;
        }
        if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) {
            ready |= READ_CLOSED;
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            ready |= WRITE_CLOSED;
        }
        if flags.contains(EventFlags::ERR) {
            ready |= ERROR;
        }
        s.ready.set(s.ready.get() | ready);
        if ready & READ != 0 {
            let reader = s.reader.replace(NOBODY);
            if reader != NOBODY {
                if s.urgent {
                    wake_first(TaskId(reader));
                } else {
                    wake(TaskId(reader));
                }
            }
        }
        if ready & WRITE != 0 {
            let writer = s.writer.replace(NOBODY);
            if writer != NOBODY {
                wake(TaskId(writer));
            }
        }
    }
}

impl Registration {
    /// Watches a descriptor. It must not block.
    ///
    /// # Errors
    /// No memory, or more descriptors than `fs.epoll.max_user_watches` allows.
    pub fn new(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<Registration> {
        let (source, generation) = SOURCES.with_borrow_mut(|s| {
            let place = s.free.pop().unwrap_or_else(|| s.places.push(Place::default()) as u32);
            let (reader, writer, ready) = (Cell::new(NOBODY), Cell::new(NOBODY), Cell::new(0));
            let urgent = interest == Interest::Peer;
            let source = Rc::new(Source { place, reader, writer, ready, urgent });
            let mine = &mut s.places[place as usize];
            mine.source = Some(source.clone());
            (source, mine.generation)
        });
        let registration = Registration { source };
        let data = registration.token(generation);
        EPOLL.with(|e| epoll::add(e.get().expect(HAS_LOOP), fd, data, interest.flags()))?;
        Ok(registration)
    }

    /// Asks about something else from now on. What is ready then is an event, even if it was one before.
    ///
    /// # Errors
    /// The descriptor is not watched.
    pub fn change(&self, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        let generation = SOURCES.with_borrow(|s| s.places[self.source.place as usize].generation);
        let data = self.token(generation);
        EPOLL.with(|e| epoll::modify(e.get().expect(HAS_LOOP), fd, data, interest.flags()))?;
        Ok(())
    }

    fn token(&self, generation: u32) -> EventData {
        EventData::new_u64(u64::from(generation) << 32 | u64::from(self.source.place))
    }

    /// Ends the watch of a descriptor that stays open, here or elsewhere.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = EPOLL.try_with(|e| e.get().map(|set| epoll::delete(set, fd)));
    }

    /// Ready when a read is worth trying; otherwise the running task is woken then.
    #[inline]
    pub fn poll_readable(&self) -> Poll<()> {
        self.poll(READABLE, &self.source.reader)
    }

    /// Whether a read is worth trying, as far as the loop has heard.
    pub fn is_readable(&self) -> bool {
        self.source.ready.get() & READABLE != 0
    }

    /// Ready when a write is worth trying; otherwise the running task is woken then.
    #[inline]
    pub fn poll_writable(&self) -> Poll<()> {
        self.poll(WRITE | WRITE_CLOSED | ERROR, &self.source.writer)
    }

    /// Ready when the other side has closed its direction or the socket has failed; otherwise the running task is woken
    /// when anything is said about reading. Takes no readiness away.
    #[inline]
    pub fn poll_closed(&self) -> Poll<()> {
        self.poll(READ_CLOSED | ERROR, &self.source.reader)
    }

    #[inline]
    fn poll(&self, wanted: u8, asker: &Cell<u32>) -> Poll<()> {
        if self.source.ready.get() & wanted != 0 {
            return Poll::Ready(());
        }
        asker.set(ENGINE.with(|e| e.current.get()));
        Poll::Pending
    }

    #[inline]
    fn clear(&self, bit: u8) {
        self.source.ready.set(self.source.ready.get() & !bit);
    }

    /// A read found nothing more. The end of the stream stays ready.
    #[inline]
    pub fn clear_readable(&self) {
        self.clear(READ);
    }

    /// A write found no room.
    #[inline]
    pub fn clear_writable(&self) {
        self.clear(WRITE);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The thread's storage may be gone already when a thread ends.
        let _ = SOURCES.try_with(|s| {
            let mut s = s.borrow_mut();
            let place = &mut s.places[self.source.place as usize];
            *place = Place { generation: place.generation.wrapping_add(1), source: None };
            s.free.push(self.source.place);
        });
    }
}
