//! What connections between two requests have in common where they are parked, or go on in another process, whatever protocol is spoken on
//! them: whose they are, and when they are closed. From: the session, where one is idle. To: the session again, when it brings something.

use super::{Kind, Next, Ready, Resident, Watch, Whose};
use crate::connection::Client;
use crate::connection::reuse::has_room;
use crate::connection::socket::Socket;
use crate::snapshot::ThreadSnapshot;
use crate::worker::counters;
use crate::worker::departure::{Papers, Stay};
use runtime::clock;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What a session keeps of itself between two requests.
pub trait Between: Sized + 'static {
    /// Which kind it is here, and for another process.
    const KINDS: (Kind, heir::Kind);
    /// Whether the client is told when its time is over, which takes a task.
    const SAYS_GOODBYE: bool;

    /// What it takes beside itself, bytes.
    fn bytes(&self) -> usize {
        0
    }
    /// Until then (monotonic ms) a shutdown leaves it alone; 0: not at all.
    fn stay_until_ms(&self) -> u64 {
        0
    }
    /// For another process. False: it cannot go.
    fn write(&self, w: &mut heir::Writer) -> bool;
    /// What another process wrote.
    fn read(r: &mut heir::Reader<'_>) -> Option<Self>;
    /// Another process has no place for it.
    fn refused(&mut self) {}
    /// Goes on with the connection, which may wait so long for its next request.
    fn resume(self, client: Rc<Client>, socket: Socket, wait: Duration);
}

/// What is left of a connection between two requests.
pub struct Idle<B: Between> {
    /// None: it goes on.
    inside: Option<(Whose, B)>,
    /// When it is closed, monotonic ms.
    until_ms: u64,
    /// It has brought something.
    is_over: bool,
}

impl<B: Between> Idle<B> {
    /// A client's connection, which may wait so long.
    pub fn new(whose: Whose, session: B, wait: Duration) -> Box<Idle<B>> {
        counters::waiting(1);
        let until_ms = clock::monotonic_ms() + wait.as_millis() as u64;
        Box::new(Idle { inside: Some((whose, session)), until_ms, is_over: false })
    }

    fn read(r: &mut heir::Reader<'_>, terms: &heir::Terms) -> Option<Box<Idle<B>>> {
        let (whose, left_ms) = (Whose::read(r, terms)?, r.number()?);
        let session = B::read(r)?;
        r.is_done().then(|| Idle::new(whose, session, Duration::from_millis(left_ms)))
    }

    fn stay_until_ms(&self) -> u64 {
        self.inside.as_ref().map_or(0, |(_, session)| session.stay_until_ms())
    }
}

/// Goes on with a connection of another process. None: it has no place here.
pub fn arrive<B: Between>(
    r: &mut heir::Reader<'_>,
    ready: Ready,
    terms: &heir::Terms,
    snapshot: &Rc<ThreadSnapshot>,
) -> Option<()> {
    let idle = Idle::<B>::read(r, terms)?;
    let listener = idle.inside.as_ref().map(|(whose, _)| whose.listener())?;
    let is_here = crate::worker::place_of(snapshot, listener).is_some_and(|at| at < snapshot.ports.len());
    if is_here && super::is_crowded() && super::is_open() {
        super::park(ready, idle);
        return Some(());
    }
    if !is_here || !has_room() {
        return None;
    }
    idle.leave(ready.into_socket());
    Some(())
}

impl<B: Between> Resident for Idle<B> {
    fn kind(&self) -> Kind {
        B::KINDS.0
    }

    fn bytes(&self) -> usize {
        let inside = self.inside.as_ref().map_or(0, |(whose, session)| whose.bytes() + session.bytes());
        size_of::<Idle<B>>() + inside
    }

    fn watch(&self) -> Watch {
        Watch::Stir
    }

    fn settled(&mut self, _: u32) {}

    fn hear(&mut self, _: &[u8]) {}

    fn gone(&mut self, _: Option<io::Error>) {
        self.is_over = true;
    }

    fn stalled(&mut self) {}

    fn refused(&mut self) {}

    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn wrote(&mut self, _: usize) {}

    fn next(&mut self) -> Next {
        let (now_ms, is_ending) = (clock::monotonic_ms(), crate::worker::draining());
        // A thread that ends hands it to another, or closes it.
        if self.is_over || is_ending && self.stay_until_ms() <= now_ms {
            return Next::Leave;
        }
        if now_ms >= self.until_ms {
            return if B::SAYS_GOODBYE { Next::Leave } else { Next::Close };
        }
        Next::Rest(Some(if is_ending { self.until_ms.min(self.stay_until_ms()) } else { self.until_ms }))
    }

    fn leave(mut self: Box<Self>, socket: Socket) {
        let Some((whose, session)) = self.inside.take() else { return };
        let client = whose.client(&socket);
        let wait = Duration::from_millis(self.until_ms.saturating_sub(clock::monotonic_ms()).max(1));
        drop(self);
        session.resume(client, socket, wait);
    }

    fn travel(&mut self, _: &[u8]) -> Option<Papers> {
        let (whose, session) = self.inside.as_ref().filter(|_| !self.is_over)?;
        let mut w = heir::Writer::default();
        let names = crate::worker::snapshot();
        w.number(names.generation);
        whose.write(&mut w);
        w.number(self.until_ms.saturating_sub(clock::monotonic_ms()).max(1));
        let may_go = session.write(&mut w);
        may_go.then(|| Papers::new(B::KINDS.1, w.done(), names))
    }

    fn stay(mut self: Box<Self>, ready: Ready, why: Stay) {
        // Nobody is told anything by the end of a connection on which nothing is under way, where that is not told in frames.
        if why == Stay::Refused {
            self.inside.iter_mut().for_each(|(_, session)| session.refused());
        }
        if why != Stay::Refused || B::SAYS_GOODBYE {
            self.leave(ready.into_socket());
        }
    }
}

impl<B: Between> Drop for Idle<B> {
    fn drop(&mut self) {
        counters::waiting(-1);
    }
}
