//! Connections of this thread that are to go to another process, or to other threads of this one, in a queue until their line has room
//! (`upgrade::leave`). From: whoever has a connection that waits, once [`is_open`] says so. Knows nothing of what they are.

use crate::connection::tls::secrets::SecretBytes;
use heir::Kind;
use runtime::TaskId;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Why a connection is here still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// The other process is gone, or has not answered for it: it goes on as before.
    Unanswered,
    /// The other process has no use for it, or no place that it belongs to.
    Refused,
    /// There is no telling another process of it: it goes on as before, and is not asked again.
    Untold,
}

/// What numbers in a record mean: a configuration.
pub trait Names {
    /// Which one: the first number of each record under it.
    fn generation(&self) -> u64;
    /// The frame that names them.
    fn table(&self) -> Vec<u8>;
}

/// What another process has to know of a connection to go on with it.
pub struct Papers {
    /// What it is.
    pub kind: Kind,
    /// What there is to say of it: first of all the generation of its configuration.
    pub bytes: Vec<u8>,
    /// That configuration.
    pub names: Rc<dyn Names>,
    /// Of a connection of TLS: what goes beside all that.
    pub cover: Option<CoverPapers>,
    /// The same of the connection that goes with it, on which nothing is under way: what it is encrypted with.
    pub companion: Option<SecretBytes>,
    /// What its request is packed with.
    pub dictionary: Option<Dictionary>,
}

/// What requests are packed with: told once, since there are a few for all connections of a thread.
pub struct Dictionary {
    /// Its number in this thread.
    pub number: u8,
    /// All of it.
    pub text: Rc<[u8]>,
}

impl Papers {
    /// Of a connection that is plain, as far as is known.
    pub fn new(kind: Kind, bytes: Vec<u8>, names: Rc<dyn Names>) -> Papers {
        Papers { kind, bytes, names, cover: None, companion: None, dictionary: None }
    }

    /// The same with a request that is packed with a dictionary.
    pub fn packed_with(self, dictionary: Option<Dictionary>) -> Papers {
        Papers { dictionary, ..self }
    }

    /// What each of its descriptors is encrypted with; nothing for those that are plain.
    pub fn secrets(&self) -> [&[u8]; 2] {
        let own = self.cover.as_ref().map(|cover| &cover.secrets);
        [own, self.companion.as_ref()].map(|secrets| secrets.map_or(&[][..], |secrets| secrets))
    }
}

/// What goes on with TLS on a connection.
pub struct CoverPapers {
    /// What it is encrypted with.
    pub secrets: SecretBytes,
    /// What is under way of it, encrypted.
    pub sealed: Vec<u8>,
}

/// A connection on its way.
pub struct Traveller {
    /// What is said of it.
    pub papers: Papers,
    /// Its descriptors. They stay open here until the other process has answered.
    pub files: Vec<OwnedFd>,
    /// What is done when it stays; dropped without a call when it has gone.
    pub stay: Box<dyn FnOnce(Vec<OwnedFd>, Stay)>,
}

thread_local! {
    static QUEUE: RefCell<VecDeque<Traveller>> = const { RefCell::new(VecDeque::new()) };
    static TASK: Cell<Option<TaskId>> = const { Cell::new(None) };
    static TO: Cell<To> = const { Cell::new(To::Process) };
    /// Some have been said, and not answered for.
    static ON_THE_WAY: Cell<bool> = const { Cell::new(false) };
}

/// Where connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To another process: channels are there, too.
    Process,
    /// To other threads of this process, which have the same channels.
    Threads,
}

/// From now on connections of this thread go by the running task; it is woken for each. Those that wait are woken to find out.
pub fn open(to: To) {
    TO.set(to);
    TASK.set(Some(runtime::current()));
    runtime::wake_all();
}

/// None goes any more. Those that are in the queue come back.
pub fn close() -> Vec<Traveller> {
    TASK.set(None);
    QUEUE.take().into()
}

/// Whether connections that wait are to go.
#[inline]
pub fn is_open() -> bool {
    TASK.get().is_some()
}

/// The same of what this process has once, for all of its threads.
pub fn leaves_process() -> bool {
    is_open() && TO.get() == To::Process
}

/// Has a connection go.
pub fn send(traveller: Traveller) {
    QUEUE.with_borrow_mut(|queue| queue.push_back(traveller));
    TASK.get().into_iter().for_each(runtime::wake);
}

/// Whether somebody wants to go.
pub fn has_some() -> bool {
    QUEUE.with_borrow(|queue| !queue.is_empty())
}

/// Some are on their way, or no longer.
pub fn set_on_the_way(on_the_way: bool) {
    ON_THE_WAY.set(on_the_way);
}

/// Whether the thread has connections that are on their way: it is not to end before.
pub fn is_busy() -> bool {
    ON_THE_WAY.get() || is_open() && has_some()
}

/// The first in the queue, at most so many.
pub fn take(most: usize) -> Vec<Traveller> {
    QUEUE.with_borrow_mut(|queue| {
        let count = queue.len().min(most);
        queue.drain(..count).collect()
    })
}
