//! The row of a connection's streams that have something to send, in the order in which they may (RFC 9218 section 10): the most
//! urgent first; among equals those whose answers are of use whole, one after the other as they were asked for; then the others in
//! turn. As long as nobody says anything of priorities all are of one kind, and this is a queue.

use std::collections::VecDeque;
use wire::priority::Priority;

/// Streams whose priority came before they did: so many are remembered, the latest.
const MAX_EARLY: usize = 32;

/// See the module's head. Ids grow in the order in which streams were opened.
pub(super) struct Row<I> {
    waiting: VecDeque<(I, Priority)>,
    /// One of them is not as all are unless it is said.
    ranked: bool,
    early: Vec<(I, Priority)>,
}

impl<I> Default for Row<I> {
    fn default() -> Row<I> {
        Row { waiting: VecDeque::new(), ranked: false, early: Vec::new() }
    }
}

impl<I: Copy + Ord> Row<I> {
    /// Puts a stream at the end of those of its kind.
    pub(super) fn push(&mut self, id: I, priority: Priority) {
        self.ranked |= priority != Priority::UNSAID;
        self.waiting.push_back((id, priority));
    }

    /// Takes the one whose turn it is.
    pub(super) fn pop(&mut self) -> Option<I> {
        if !self.ranked {
            return self.waiting.pop_front().map(|(id, _)| id);
        }
        let rank =
            |&(at, &(id, p)): &(usize, &(I, Priority))| (p.urgency, p.incremental, (!p.incremental).then_some(id), at);
        let (at, _) = self.waiting.iter().enumerate().min_by_key(rank)?;
        let next = self.waiting.remove(at).map(|(id, _)| id);
        if self.waiting.is_empty() {
            self.ranked = false;
        }
        next
    }

    /// The client has changed its mind about a stream.
    pub(super) fn change(&mut self, id: I, priority: Priority) {
        self.ranked |= priority != Priority::UNSAID;
        self.waiting.iter_mut().filter(|(waiting, _)| *waiting == id).for_each(|(_, p)| *p = priority);
    }

    /// It speaks of a stream that has not come.
    pub(super) fn note_early(&mut self, id: I, priority: Priority) {
        self.early.retain(|(noted, _)| *noted != id);
        if self.early.len() >= MAX_EARLY {
            self.early.remove(0);
        }
        self.early.push((id, priority));
    }

    /// What it said of one that comes now.
    pub(super) fn take_early(&mut self, id: I) -> Option<Priority> {
        let at = self.early.iter().position(|(noted, _)| *noted == id)?;
        Some(self.early.swap_remove(at).1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nobody has anything to send any more.
    pub(super) fn clear(&mut self) {
        *self = Row::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(urgency: u8, incremental: bool) -> Priority {
        Priority { urgency, incremental }
    }

    /// Serves pieces: each stream has as many as is said, and goes back to the row while it has more.
    fn served(streams: &[(u32, Priority, usize)]) -> Vec<u32> {
        let (mut row, mut order) = (Row::default(), Vec::new());
        streams.iter().for_each(|(id, p, _)| row.push(*id, *p));
        while let Some(id) = row.pop() {
            order.push(id);
            let (_, priority, pieces) = streams.iter().find(|(known, ..)| *known == id).expect("it was put there");
            if order.iter().filter(|served| **served == id).count() < *pieces {
                row.push(id, *priority);
            }
        }
        order
    }

    #[test]
    fn streams_of_which_nothing_is_said_take_turns() {
        let p = Priority::UNSAID;
        assert_eq!(served(&[(1, p, 2), (3, p, 1), (5, p, 2)]), [1, 3, 5, 1, 5]);
    }

    #[test]
    fn the_urgent_come_first_and_what_is_of_use_whole_comes_whole() {
        let order = served(&[
            (1, of(5, false), 1),
            (3, of(3, true), 2),
            (5, of(3, true), 2),
            (9, of(1, false), 2),
            (7, of(1, false), 2),
        ]);
        assert_eq!(order, [7, 7, 9, 9, 3, 5, 3, 5, 1]);
    }

    #[test]
    fn a_client_may_change_its_mind_and_speak_before_it_asks() {
        let mut row = Row::default();
        row.push(1, Priority::UNSAID);
        row.push(3, Priority::UNSAID);
        row.change(3, of(0, false));
        assert_eq!((row.pop(), row.pop(), row.pop()), (Some(3), Some(1), None));
        for id in 0..100 {
            row.note_early(id, of(1, false));
        }
        assert_eq!((row.take_early(0), row.take_early(99), row.take_early(99)), (None, Some(of(1, false)), None));
    }
}
