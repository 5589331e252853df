//! A coroutine of a program's as the server holds it: at hand while it runs, and on the machine's shelf while it waits, so that as many may
//! wait as there is memory for.

use ::lua::shelf::{Shelf, Slot};
use mlua::thread::ThreadStatus;
use mlua::{Function, MultiValue, Thread};
use std::ffi::c_void;

/// See the module's head.
pub struct Coroutine {
    /// What tells it from others, as long as it is held.
    address: *const c_void,
    place: Place,
}

enum Place {
    AtHand(Thread),
    Shelved(Slot),
}

impl From<Thread> for Coroutine {
    fn from(thread: Thread) -> Coroutine {
        Coroutine { address: thread.to_pointer(), place: Place::AtHand(thread) }
    }
}

impl Coroutine {
    /// What tells it from others, as long as it is held; of a `Thread` its pointer.
    pub fn address(&self) -> *const c_void {
        self.address
    }

    /// Nobody needs it until something has happened.
    pub fn shelve(&mut self, shelf: &Shelf) {
        if let Place::AtHand(thread) = &self.place
            && let Ok(slot) = shelf.put(thread)
        {
            self.place = Place::Shelved(slot);
        }
    }

    /// Whether it takes one of the places that a machine has few of.
    pub fn is_at_hand(&self) -> bool {
        matches!(self.place, Place::AtHand(_))
    }

    /// Lets it go on. The second value: it has yielded, and may be resumed again.
    pub fn resume(&self, values: MultiValue) -> (mlua::Result<MultiValue>, bool) {
        let go_on = |thread: &Thread| {
            let result = thread.resume::<MultiValue>(values);
            (result, thread.status() == ThreadStatus::Resumable)
        };
        match &self.place {
            Place::AtHand(thread) => go_on(thread),
            Place::Shelved(slot) => match slot.value::<Thread>() {
                Ok(thread) => go_on(&thread),
                Err(error) => (Err(error), false),
            },
        }
    }

    /// Gives one that has ended another function.
    ///
    /// # Errors
    /// It has not ended.
    pub fn reset(&self, function: Function) -> mlua::Result<()> {
        match &self.place {
            Place::AtHand(thread) => thread.reset(function),
            Place::Shelved(slot) => slot.value::<Thread>()?.reset(function),
        }
    }
}
