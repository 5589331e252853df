//! What a client's request and all of its subrequests count together, so that a page cannot ask for endless work, whatever includes
//! what: how many there were, and how many includes stand in memory at once. A leaf: `include` and `subrequest` ask it.
//!
//! An include is begun before its turn only while there is room; one whose turn it is, and whose parents' it is too, always may: so
//! the answer goes on, and there are never more than [`MAX_AT_ONCE`] and one for each level.

use super::arena::Text;
use runtime::TaskId;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Subrequests of one client's request in all (nginx has 65535 less a reserve).
const MAX_IN_ALL: u32 = 64_000;
/// Includes of one client's request that stand in memory at once: each is a request with what it has said before its turn.
const MAX_AT_ONCE: u32 = 128;
/// After so many subrequests the thread's other tasks have their turn.
const PACE: u32 = 16;
/// Refusals that a client's request may write to the log.
const MAX_LOGGED: u8 = 8;

/// See the module's head.
#[derive(Default)]
pub struct Lineage {
    asked: Cell<u32>,
    begun: Cell<u32>,
    at_once: Cell<u32>,
    refused: Cell<u8>,
    waiting: RefCell<VecDeque<TaskId>>,
    /// What the client's request asks with, whatever its subrequests do.
    pub method: Cell<Option<Text>>,
}

impl Lineage {
    /// Counts a subrequest that is going to be made. False: there were too many.
    pub fn ask(&self) -> bool {
        let may = self.asked.get() < MAX_IN_ALL;
        self.asked.set(self.asked.get() + u32::from(may));
        may
    }

    /// Counts a refusal. Whether it is to be logged.
    pub fn refuse(&self) -> bool {
        let logged = self.refused.get() < MAX_LOGGED;
        self.refused.set(self.refused.get() + u8::from(logged));
        logged
    }

    /// Counts a subrequest that begins. True: the others of the thread have waited long enough.
    pub fn is_long_since(&self) -> bool {
        self.begun.set(self.begun.get().wrapping_add(1));
        self.begun.get().is_multiple_of(PACE)
    }

    /// Whether one more include may be begun before its turn.
    pub fn has_room(&self) -> bool {
        self.at_once.get() < MAX_AT_ONCE
    }

    /// Wakes a task when there is room, in the order of their coming.
    pub fn wait(&self, task: TaskId) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.contains(&task) {
            waiting.push_back(task);
        }
    }
}

/// The place of an include among those that stand in memory.
pub struct Place(Rc<Lineage>);

impl Place {
    /// Takes one, whether there is room or not.
    pub fn new(lineage: Rc<Lineage>) -> Place {
        lineage.at_once.set(lineage.at_once.get() + 1);
        Place(lineage)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.at_once.set(self.0.at_once.get() - 1);
        let next = self.0.waiting.borrow_mut().pop_front();
        next.into_iter().for_each(runtime::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subrequests_end_at_their_number_and_refusals_are_few_lines() {
        let lineage = Lineage::default();
        assert_eq!((0..MAX_IN_ALL + 7).filter(|_| lineage.ask()).count() as u32, MAX_IN_ALL);
        assert_eq!((0..1000).filter(|_| lineage.refuse()).count(), usize::from(MAX_LOGGED));
    }

    #[test]
    fn places_are_given_back() {
        let lineage = Rc::new(Lineage::default());
        let places: Vec<Place> = (0..MAX_AT_ONCE).map(|_| Place::new(lineage.clone())).collect();
        assert!(!lineage.has_room());
        drop(places);
        assert!(lineage.has_room());
    }
}
