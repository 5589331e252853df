//! A thread's parked connections: the rings their files stand in, the table of what is left of them, and who of them is to be asked.

use super::bill;
use super::table::{Place, Table};
use super::{LINE, Leaver, NO_PANIC, Next, Resident, SOURCES, Watch, Words, has_seat, shut, traveller, with_companion};
use crate::worker::counters;
use crate::worker::departure::{Papers, Traveller};
use rings::{CLOSED, News, READABLE, Refused, Rings, Side, Spot, WRITABLE};
use runtime::clock;
use runtime::io::{Interest, Registration};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

/// Residents that are asked, and written to, in one portion: half a millisecond's work where the other side is on this machine.
const PORTION: usize = 64;
/// How often those who have said something are asked for more in one portion.
const ROUNDS: usize = 4;
/// What a client may say at once.
const BUFFER: usize = 16 * 1024;

/// What a client does not take.
struct Slow {
    words: Words,
    at: usize,
    took_ms: u64,
}

impl Slow {
    /// How long its client has to take some of it, monotonic ms.
    fn until_ms(&self, resident: &dyn Resident) -> u64 {
        let patience = u64::try_from(resident.patience().as_millis());
        self.took_ms.saturating_add(patience.unwrap_or(u64::MAX))
    }
}

/// How far those that are parked have been told that the thread is to end.
enum Goodbye {
    Not,
    /// All before this place.
    To(u32),
    Said,
}

pub(super) struct Lot {
    rings: Rings,
    registration: Registration,
    table: Table,
    /// Those that are to be parked.
    pub(super) arrivals: Vec<(OwnedFd, Box<dyn Resident>)>,
    /// Those that are to be asked.
    looks: VecDeque<u32>,
    /// Those that want to leave, and wait for a descriptor or a seat.
    leaving: VecDeque<u32>,
    slow: HashMap<u32, Slow>,
    buffer: Box<[u8]>,
    goodbye: Goodbye,
    batch: Vec<(u32, Spot, Words)>,
    places: Vec<u32>,
}

impl Lot {
    pub(super) fn open(most: usize) -> Result<Lot, Refused> {
        let rings = Rings::open(most)?;
        let registration = Registration::new(rings.bell(), Interest::Read);
        let registration = registration.map_err(|e| Refused::Error("epoll_ctl()", e))?;
        Ok(Lot {
            rings,
            registration,
            table: Table::new(clock::monotonic_ms()),
            arrivals: Vec::new(),
            looks: VecDeque::new(),
            leaving: VecDeque::new(),
            slow: HashMap::new(),
            buffer: vec![0; BUFFER].into(),
            goodbye: Goodbye::Not,
            batch: Vec::new(),
            places: Vec::new(),
        })
    }

    /// Those that are parked, and those about to be.
    pub(super) fn count(&self) -> usize {
        self.table.count() + self.arrivals.len()
    }

    /// Whether the thread is to look again although nothing has happened.
    pub(super) fn is_ticking(&self) -> bool {
        self.table.is_ticking() || !self.leaving.is_empty()
    }

    /// The running task is woken when something happens. False: it has.
    pub(super) fn listen(&mut self) -> bool {
        self.registration.poll_readable().is_pending()
    }

    /// Parks those that have arrived. Those that could not be go on as they were.
    pub(super) fn take_in(&mut self) -> Vec<Leaver> {
        if self.arrivals.is_empty() {
            return Vec::new();
        }
        let (files, residents): (Vec<_>, Vec<_>) = std::mem::take(&mut self.arrivals).into_iter().unzip();
        let mut refused = Vec::new();
        for (parked, mut resident) in self.rings.park(files).into_iter().zip(residents) {
            match parked {
                Ok(spot) => {
                    bill::count(&*resident, 1);
                    let number = self.table.insert(resident, spot);
                    if let Some(place) = self.table.get(number) {
                        place.resident.settled(number);
                        listen(&mut self.rings, number, place);
                    }
                    // What has happened since it was a request is found at its first look.
                    self.looks.push_back(number);
                }
                Err((fd, why)) => {
                    shut(&why);
                    resident.refused();
                    refused.push(Leaver { fd, resident });
                }
            }
        }
        self.rings.flush();
        refused
    }

    /// Does a portion of what is to be done. Those that leave, and whether there is more to do.
    pub(super) fn portion(&mut self) -> (Vec<Leaver>, bool) {
        let mut leavers = self.take_in();
        if self.registration.is_readable() {
            self.registration.clear_readable();
            self.rings.gather();
        }
        let Lot { table, looks, .. } = self;
        LINE.with(|line| looks.extend(line.calls.places.lock().expect(NO_PANIC).drain(..)));
        table.passed(clock::monotonic_ms(), |number| looks.push_back(number));
        self.say_goodbye();
        for _ in 0..PORTION {
            let Some(news) = self.rings.next_news() else { break };
            self.hear(news);
        }
        let asked = self.ask();
        let left = self.let_go(&mut leavers);
        self.rings.flush();
        let is_saying_goodbye = matches!(self.goodbye, Goodbye::To(_));
        let more = asked || left || is_saying_goodbye || !self.looks.is_empty() || self.rings.has_news();
        (leavers, more)
    }

    /// The thread is to end: everybody is asked what that means to it, once.
    fn say_goodbye(&mut self) {
        let from = match self.goodbye {
            Goodbye::Not if crate::worker::draining() => 0,
            Goodbye::To(from) => from,
            Goodbye::Not | Goodbye::Said => return,
        };
        let all = self.table.places();
        let to = all.min(from + PORTION as u32);
        self.looks.extend(from..to);
        self.goodbye = if to < all { Goodbye::To(to) } else { Goodbye::Said };
    }

    /// Everybody is asked, if they are not already because the thread ends.
    pub(super) fn ask_all(&mut self) {
        if !crate::worker::draining() {
            self.goodbye = Goodbye::To(0);
        }
    }

    /// See [`super::depart`]. From the end of the table: the kernel looks a wait up in a list that begins with the newest.
    pub(super) fn depart(&mut self, before: &mut u32, most: usize) -> Option<Vec<Traveller>> {
        let (mut all, mut alone) = (Vec::new(), Vec::with_capacity(most));
        *before = self.table.places().min(*before);
        while let Some(number) = before.checked_sub(1).filter(|_| all.len() + alone.len() < most) {
            let Some(place) = self.table.get(number).filter(|place| !place.leaves) else {
                *before = number;
                continue;
            };
            let slow = if self.slow.is_empty() { None } else { self.slow.get(&number) };
            let rest = slow.map_or(&[][..], |slow| &slow.words.bytes()[slow.at..]);
            let Some(papers) = place.resident.travel(rest) else {
                *before = number;
                continue;
            };
            // What is left to say is the resident's from here on.
            if slow.is_some() {
                self.slow.remove(&number);
            }
            let Some(companion) = place.resident.companion() else {
                alone.push((number, papers));
                *before = number;
                continue;
            };
            let other = self.table.get(companion).map(|place| &*place.resident);
            let Some(papers) = with_companion(papers, other) else {
                self.looks.push_back(number);
                *before = number;
                continue;
            };
            let Some(files) = self.bring_back([number, companion]) else {
                // No descriptor is free: the next look finds them where they are.
                self.looks.push_back(number);
                break;
            };
            *before = number;
            let residents: Vec<_> =
                [number, companion].into_iter().filter_map(|number| self.table.remove(number)).collect();
            residents.iter().for_each(|resident| closed(&**resident));
            all.push(traveller(papers, files, residents));
        }
        if let Some(number) = self.part_with(alone, &mut all) {
            *before = number + 1;
        }
        (!all.is_empty() || *before > 0).then_some(all)
    }

    /// Has those go that belong to nobody else, in a few calls for all of them. The first for which there was no descriptor: it waits as before.
    fn part_with(&mut self, mut alone: Vec<(u32, Papers)>, all: &mut Vec<Traveller>) -> Option<u32> {
        let (mut waits, mut spots) = (Vec::with_capacity(alone.len()), Vec::with_capacity(alone.len()));
        alone.retain(|(number, _)| {
            let Some(place) = self.table.get(*number) else { return false };
            for (side, is_on) in [(Side::Reading, &mut place.reads), (Side::Writing, &mut place.writes)] {
                if std::mem::take(is_on) {
                    waits.push((place.spot, *number, side));
                }
            }
            spots.push(place.spot);
            true
        });
        self.rings.unwatch_all(&waits);
        let mut first = None;
        for ((number, papers), fd) in alone.into_iter().zip(self.rings.bring_back_all(&spots)) {
            match fd {
                Ok(fd) => {
                    let residents: Vec<_> = self.table.remove(number).into_iter().collect();
                    residents.iter().for_each(|resident| closed(&**resident));
                    all.push(traveller(papers, vec![fd], residents));
                }
                Err(_) => {
                    if let Some(place) = self.table.get(number) {
                        listen(&mut self.rings, number, place);
                    }
                    // What it has to say it says at its next look, if it goes later than that.
                    self.looks.push_back(number);
                    first = first.or(Some(number));
                }
            }
        }
        first
    }

    /// The descriptors of those that go together; none: there is none for each of them, and they wait as before.
    fn bring_back(&mut self, together: [u32; 2]) -> Option<Vec<OwnedFd>> {
        let mut files = Vec::with_capacity(together.len());
        for number in together {
            let place = self.table.get(number)?;
            quiet(&mut self.rings, number, place);
            match self.rings.bring_back(place.spot) {
                Ok(fd) => files.push((number, fd)),
                Err(_) => {
                    listen(&mut self.rings, number, place);
                    break;
                }
            }
        }
        if files.len() == together.len() {
            return Some(files.into_iter().map(|(_, fd)| fd).collect());
        }
        for (number, fd) in files {
            let parked = self.rings.park(vec![fd]).pop();
            let Some(place) = self.table.get(number) else { continue };
            match parked {
                Some(Ok(spot)) => {
                    place.spot = spot;
                    listen(&mut self.rings, number, place);
                }
                // It has just left such a place: not to be expected.
                _ => place.resident.gone(Some(io::ErrorKind::OutOfMemory.into())),
            }
        }
        None
    }

    fn hear(&mut self, news: News) {
        let number = news.token;
        let Some(place) = self.table.get(number) else { return };
        if news.side == Side::Writing {
            place.writes = false;
            return self.looks.push_back(number);
        }
        place.reads = false;
        // First of all: whoever panics about what it hears is asked what is next all the same.
        self.looks.push_back(number);
        if place.resident.watch() != Watch::Words {
            place.resident.gone(None);
            self.slow.remove(&number);
        } else if !place.leaves && !self.slow.contains_key(&number) {
            // Otherwise it is heard when it has heard us out, or by its task.
            match self.rings.receive(place.spot, &mut self.buffer) {
                Ok(0) => place.resident.gone(None),
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => place.resident.gone(Some(e)),
                result => {
                    let count = result.unwrap_or(0);
                    place.resident.hear(&self.buffer[..count]);
                    listen(&mut self.rings, number, place);
                }
            }
        }
    }

    /// Asks a portion of those that are to be asked. True: perhaps there are more.
    fn ask(&mut self) -> bool {
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        // Half of it is the sources' if they have so much: a thread that is behind with what clients say still tells them their messages.
        SOURCES.with_borrow(|sources| sources.iter().for_each(|source| source(&mut places, PORTION / 2)));
        let count = self.looks.len().min(PORTION.saturating_sub(places.len()));
        places.extend(self.looks.drain(..count));
        SOURCES.with_borrow(|sources| sources.iter().for_each(|source| source(&mut places, PORTION)));
        let more = places.len() >= PORTION;
        for _ in 0..ROUNDS {
            // Who is asked twice would say two things at once. In the order of memory, here and in the kernel.
            places.sort_unstable();
            places.dedup();
            places.drain(..).for_each(|number| self.ask_one(number));
            if self.batch.is_empty() {
                break;
            }
            self.say(&mut places);
        }
        self.looks.extend(places.drain(..));
        self.places = places;
        more
    }

    fn ask_one(&mut self, number: u32) {
        if !self.slow.is_empty() && self.slow.contains_key(&number) && !self.goes_on(number) {
            return;
        }
        let Some(place) = self.table.get(number) else { return };
        let spot = place.spot;
        match place.resident.next() {
            Next::Say(words) => self.batch.push((number, spot, words)),
            Next::Rest(Some(at_ms)) => self.table.ask_at(number, at_ms),
            Next::Rest(None) => {}
            Next::Close => {
                quiet(&mut self.rings, number, place);
                self.rings.close(spot);
                self.slow.remove(&number);
                if let Some(resident) = self.table.remove(number) {
                    closed(&*resident);
                }
            }
            Next::Leave => {
                if !std::mem::replace(&mut place.leaves, true) {
                    self.leaving.push_back(number);
                }
            }
        }
    }

    /// Writes what is gathered. Those whose words are all written are asked again.
    fn say(&mut self, again: &mut Vec<u32>) {
        let batch = std::mem::take(&mut self.batch);
        let pieces: Vec<(Spot, &[u8])> = batch.iter().map(|(_, spot, words)| (*spot, words.bytes())).collect();
        let mut results = Vec::with_capacity(pieces.len());
        self.rings.send(&pieces, |_, sent| results.push(sent));
        drop(pieces);
        let took_ms = clock::monotonic_ms();
        for ((number, _, words), sent) in batch.into_iter().zip(results) {
            let slow = Slow { words, at: 0, took_ms };
            if self.wrote(number, slow, sent) {
                again.push(number);
            }
        }
    }

    /// A client that did not take all takes more, or has had its time. True: it is to be asked what is next.
    fn goes_on(&mut self, number: u32) -> bool {
        let Some(place) = self.table.get(number) else { return false };
        let Some(slow) = self.slow.remove(&number) else { return true };
        if !place.writes {
            let mut sent = Ok(0);
            self.rings.send(&[(place.spot, &slow.words.bytes()[slow.at..])], |_, result| sent = result);
            return self.wrote(number, slow, sent);
        }
        let until_ms = slow.until_ms(&*place.resident);
        if clock::monotonic_ms() < until_ms {
            self.slow.insert(number, slow);
            self.table.ask_at(number, until_ms);
            return false;
        }
        place.resident.stalled();
        true
    }

    /// Notes what became of words. True: they are all written, or it is over; the resident is to be asked what is next.
    fn wrote(&mut self, number: u32, mut slow: Slow, sent: io::Result<usize>) -> bool {
        let Some(place) = self.table.get(number) else { return false };
        match sent {
            Ok(count) => {
                place.resident.wrote(count);
                slow.at += count;
                slow.took_ms = clock::monotonic_ms();
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => {
                place.resident.gone(Some(e));
                return true;
            }
        }
        if slow.at >= slow.words.bytes().len() {
            // What came meanwhile was not heard.
            listen(&mut self.rings, number, place);
            return true;
        }
        if !std::mem::replace(&mut place.writes, true) {
            self.rings.watch(place.spot, number, Side::Writing, WRITABLE);
        }
        let until_ms = slow.until_ms(&*place.resident);
        self.slow.insert(number, slow);
        self.table.ask_at(number, until_ms);
        false
    }

    /// Gives those who leave their descriptors. True: there may be more.
    fn let_go(&mut self, leavers: &mut Vec<Leaver>) -> bool {
        for _ in 0..PORTION {
            let Some(number) = self.leaving.front().copied() else { return false };
            let Some(place) = self.table.get(number).filter(|place| place.leaves) else {
                self.leaving.pop_front();
                continue;
            };
            if place.resident.is_client() && !has_seat(leavers.len()) {
                return false;
            }
            let spot = place.spot;
            quiet(&mut self.rings, number, place);
            let Ok(fd) = self.rings.bring_back(spot) else { return false };
            self.leaving.pop_front();
            self.slow.remove(&number);
            if let Some(resident) = self.table.remove(number) {
                bill::count(&*resident, -1);
                leavers.push(Leaver { fd, resident });
            }
        }
        true
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        for number in 0..self.table.places() {
            if let Some(resident) = self.table.remove(number) {
                closed(&*resident);
            }
        }
    }
}

/// A resident is no more.
fn closed(resident: &dyn Resident) {
    bill::count(resident, -1);
    if resident.is_client() {
        counters::closed();
    }
}

/// Waits for nothing any more.
fn quiet(rings: &mut Rings, number: u32, place: &mut Place) {
    for (side, is_on) in [(Side::Reading, &mut place.reads), (Side::Writing, &mut place.writes)] {
        if std::mem::take(is_on) {
            rings.unwatch(place.spot, number, side);
        }
    }
}

/// Waits for what a client says, unless that is waited for already.
fn listen(rings: &mut Rings, number: u32, place: &mut Place) {
    if std::mem::replace(&mut place.reads, true) {
        return;
    }
    let events = match place.resident.watch() {
        Watch::Words | Watch::Stir => READABLE,
        Watch::End => CLOSED,
    };
    rings.watch(place.spot, number, Side::Reading, events);
}
