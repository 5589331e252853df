//! A queue of which millions are empty: then it takes a word and nothing else.

use std::collections::{VecDeque, vec_deque};

/// A queue.
#[allow(clippy::box_collection, reason = "an empty one is a null pointer; VecDeque itself takes four words")]
pub(super) struct Queue<T>(Option<Box<VecDeque<T>>>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue(None)
    }
}

impl<T> Queue<T> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |all| all.len())
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// All of them, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|all| all.iter())
    }

    /// Takes all of them.
    pub(super) fn take(&mut self) -> vec_deque::IntoIter<T> {
        self.0.take().map(|all| *all).unwrap_or_default().into_iter()
    }

    /// Adds one at the end.
    pub(super) fn push(&mut self, one: T) {
        self.0.get_or_insert_default().push_back(one);
    }

    /// The first.
    pub(super) fn first(&self) -> Option<&T> {
        self.0.as_ref()?.front()
    }

    /// The same, to be changed.
    pub(super) fn first_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()?.front_mut()
    }

    /// Takes the first.
    pub(super) fn pop(&mut self) -> Option<T> {
        let first = self.0.as_mut()?.pop_front();
        self.0.take_if(|all| all.is_empty());
        first
    }

    /// Lets go of those that are not wanted.
    pub(super) fn retain(&mut self, wanted: impl FnMut(&T) -> bool) {
        if let Some(all) = &mut self.0 {
            all.retain(wanted);
        }
        self.0.take_if(|all| all.is_empty());
    }

    /// Lets go of the first that is meant. In the order of their coming it is mostly the first of all.
    pub(super) fn remove(&mut self, is_meant: impl Fn(&T) -> bool) {
        if let Some(all) = &mut self.0
            && let Some(at) = all.iter().position(is_meant)
        {
            all.remove(at);
        }
        self.0.take_if(|all| all.is_empty());
    }
}

impl<T> From<Vec<T>> for Queue<T> {
    fn from(all: Vec<T>) -> Self {
        Queue((!all.is_empty()).then(|| Box::new(all.into())))
    }
}
