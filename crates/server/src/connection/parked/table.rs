//! Where residents stand, and when they are to be asked: places in pieces that do not move, and a wheel of lists through them, so that a
//! deadline takes no allocation.

use super::{Resident, TICK_MS};
use rings::Spot;

/// Places of a piece.
const PIECE: usize = 4096;
/// Lists of the wheel: it goes round in 17 minutes. What is later is found again at each round.
const LISTS: usize = 4096;
/// No place.
const NONE: u32 = u32::MAX;
/// No deadline.
const NEVER: u32 = u32::MAX;

/// One resident's place.
pub(super) struct Place {
    pub(super) resident: Box<dyn Resident>,
    /// Where its file stands.
    pub(super) spot: Spot,
    /// Its client is listened to.
    pub(super) reads: bool,
    /// Room for what its client is to hear is waited for.
    pub(super) writes: bool,
    /// It wants a descriptor.
    pub(super) leaves: bool,
    /// In its list of the wheel.
    before: u32,
    behind: u32,
    /// When it is to be asked at the latest, ticks; [`NEVER`]: it is in no list.
    due: u32,
}

/// All places of a thread.
pub(super) struct Table {
    pieces: Vec<Box<[Option<Place>]>>,
    free: Vec<u32>,
    count: usize,
    fresh: u32,
    lists: Box<[u32]>,
    /// Places with deadlines.
    waiting: usize,
    /// The last tick that was looked at.
    now: u32,
}

fn tick(ms: u64) -> u32 {
    // Some 34 years.
    u32::try_from(ms / TICK_MS).unwrap_or(NEVER - 1).min(NEVER - 1)
}

impl Table {
    pub(super) fn new(now_ms: u64) -> Table {
        let lists = vec![NONE; LISTS].into();
        Table { pieces: Vec::new(), free: Vec::new(), count: 0, fresh: 0, lists, waiting: 0, now: tick(now_ms) }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Whether anybody has a deadline.
    pub(super) fn is_ticking(&self) -> bool {
        self.waiting > 0
    }

    pub(super) fn get(&mut self, number: u32) -> Option<&mut Place> {
        self.pieces.get_mut(number as usize / PIECE)?[number as usize % PIECE].as_mut()
    }

    /// The number that the next resident gets, which it has from now on.
    pub(super) fn insert(&mut self, resident: Box<dyn Resident>, spot: Spot) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            if (self.fresh as usize).is_multiple_of(PIECE) {
                self.pieces.push((0..PIECE).map(|_| None).collect());
            }
            self.fresh += 1;
            self.fresh - 1
        });
        let (reads, writes, leaves) = (false, false, false);
        let place = Place { resident, spot, reads, writes, leaves, before: NONE, behind: NONE, due: NEVER };
        self.pieces[number as usize / PIECE][number as usize % PIECE] = Some(place);
        self.count += 1;
        number
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Box<dyn Resident>> {
        self.unlink(number);
        let place = self.pieces.get_mut(number as usize / PIECE)?[number as usize % PIECE].take()?;
        self.count -= 1;
        self.free.push(number);
        Some(place.resident)
    }

    /// All places have lower numbers.
    pub(super) fn places(&self) -> u32 {
        self.fresh
    }

    /// It is to be asked at this time, if not before: who stands earlier stays there, and says then how long it has.
    pub(super) fn ask_at(&mut self, number: u32, ms: u64) {
        // Not before the time has come, nor in a list that was looked at.
        let due = (tick(ms) + 1).max(self.now + 1);
        match self.get(number) {
            Some(place) if place.due > due => {}
            _ => return,
        }
        self.unlink(number);
        let list = due as usize % LISTS;
        let behind = std::mem::replace(&mut self.lists[list], number);
        if let Some(place) = self.get(number) {
            (place.before, place.behind, place.due) = (NONE, behind, due);
        }
        if let Some(next) = self.get(behind) {
            next.before = number;
        }
        self.waiting += 1;
    }

    fn unlink(&mut self, number: u32) {
        let Some(place) = self.get(number) else { return };
        if place.due == NEVER {
            return;
        }
        let (before, behind, list) = (place.before, place.behind, place.due as usize % LISTS);
        (place.before, place.behind, place.due) = (NONE, NONE, NEVER);
        match self.get(before) {
            Some(before) => before.behind = behind,
            None => self.lists[list] = behind,
        }
        if let Some(behind) = self.get(behind) {
            behind.before = before;
        }
        self.waiting -= 1;
    }

    /// Tells of each whose time has come; its deadline is none then.
    pub(super) fn passed(&mut self, now_ms: u64, mut tell: impl FnMut(u32)) {
        let now = tick(now_ms);
        let first = self.now.max(now.saturating_sub(LISTS as u32));
        self.now = now.max(self.now);
        for list in (first..now).map(|t| (t + 1) as usize % LISTS) {
            let mut next = self.lists[list];
            while let Some(place) = self.get(next) {
                let (number, due) = (next, place.due);
                next = place.behind;
                if due <= now {
                    self.unlink(number);
                    tell(number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Next, Watch};
    use super::*;
    use crate::connection::socket::Socket;
    use std::io;
    use std::time::Duration;

    struct Nobody;

    impl Resident for Nobody {
        fn kind(&self) -> Kind {
            Kind::Stream
        }
        fn bytes(&self) -> usize {
            0
        }
        fn watch(&self) -> Watch {
            Watch::End
        }
        fn settled(&mut self, _: u32) {}
        fn hear(&mut self, _: &[u8]) {}
        fn gone(&mut self, _: Option<io::Error>) {}
        fn stalled(&mut self) {}
        fn refused(&mut self) {}
        fn patience(&self) -> Duration {
            Duration::ZERO
        }
        fn wrote(&mut self, _: usize) {}
        fn next(&mut self) -> Next {
            Next::Leave
        }
        fn leave(self: Box<Self>, _: Socket) {}
    }

    fn passed(table: &mut Table, ms: u64) -> Vec<u32> {
        let mut all = Vec::new();
        table.passed(ms, |number| all.push(number));
        all.sort_unstable();
        all
    }

    #[test]
    fn deadlines_pass_in_their_time_and_once() {
        let mut table = Table::new(1_000_000);
        let places: Vec<u32> = (0..10_000).map(|_| table.insert(Box::new(Nobody), Spot::default())).collect();
        for (n, place) in places.iter().enumerate() {
            table.ask_at(*place, 1_000_000 + n as u64 * 1000);
        }
        let mut seen = vec![0; places.len()];
        let mut now = 1_000_000;
        while table.is_ticking() {
            now += 700;
            for number in passed(&mut table, now) {
                seen[number as usize] += 1;
                let late = now as i64 - (1_000_000 + i64::from(number) * 1000);
                assert!((0..=700 + 2 * TICK_MS as i64).contains(&late), "{number} is late by {late}");
            }
        }
        assert!(seen.iter().all(|count| *count == 1));
    }

    #[test]
    fn an_earlier_deadline_holds_and_what_is_removed_is_not_told_of() {
        let mut table = Table::new(0);
        let [a, b, c] = [(); 3].map(|()| table.insert(Box::new(Nobody), Spot::default()));
        [a, b, c].into_iter().for_each(|place| table.ask_at(place, 10_000));
        table.ask_at(a, 2_000);
        table.ask_at(b, 20_000);
        table.remove(c);
        assert!(passed(&mut table, 1_900).is_empty());
        assert_eq!(passed(&mut table, 3_000), [a]);
        assert_eq!(passed(&mut table, 11_000), [b]);
        assert!(!table.is_ticking());
        assert_eq!(table.insert(Box::new(Nobody), Spot::default()), c);
        // A thread that has slept for hours looks at each list once.
        table.ask_at(c, 10_000_000);
        assert!(passed(&mut table, 9_000_000).is_empty());
        assert_eq!(passed(&mut table, 90_000_000), [c]);
    }

    #[test]
    fn places_are_small() {
        assert!(size_of::<Option<Place>>() <= 40, "{}", size_of::<Option<Place>>());
    }
}
