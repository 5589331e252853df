//! Subscribers that are parked: their requests packed, their connections in `connection::parked`, which asks them what is next. From and
//! to: `held`.

use super::feed::Kind;
use super::held::{End, Held, Step};
use super::redis;
use crate::connection;
use crate::connection::parked::{self, Next, Ready, Resident, Watch};
use crate::connection::socket::Socket;
use crate::request::held::{Kept, Packed, Unpacked};
use crate::request::phases::{Back, GoOn};
use crate::snapshot::ThreadSnapshot;
use crate::worker::departure::{self, Papers, Stay};
use heir::Kind as Travels;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// A subscriber that is parked.
pub(super) struct Parked {
    packed: Packed,
    held: Held,
}

/// The connection, if it can be parked. One that is about to go on in another process goes from its task.
pub(super) fn ready(kept: &Kept, socket: Socket) -> Result<Ready, Socket> {
    let departs = departure::is_open() && kept.may_go();
    if kept.is_counted() && !departs { Ready::of(socket) } else { Err(socket) }
}

/// Parks a subscriber.
pub(super) fn park(kept: Box<Kept>, ready: Ready, held: Held) {
    parked::park(ready, Box::new(Parked { packed: Packed::of(kept), held }));
}

/// Has a subscriber with a task go on in another process, which [`Kept::may_go`] and [`Held::may_go`] say it can. `rest`: what is left of
/// what it was saying. Gives it back if its descriptor is somebody else's too.
pub(super) fn depart(
    kept: Box<Kept>,
    socket: Socket,
    held: Held,
    rest: &[u8],
) -> Result<(), Box<(Box<Kept>, Socket, Held)>> {
    match Ready::apart(socket) {
        Ok(ready) => {
            parked::send_off(vec![(ready, Box::new(Parked { packed: Packed::of(kept), held }))], rest);
            Ok(())
        }
        Err(socket) => Err(Box::new((kept, socket, held))),
    }
}

/// Goes on with a subscriber of another process. None: it has no place here.
pub fn arrive(
    r: &mut heir::Reader<'_>,
    ready: Ready,
    terms: &heir::Terms,
    snapshot: &Rc<ThreadSnapshot>,
) -> Option<()> {
    let packed = Packed::arrive(r, terms, snapshot)?;
    let conf = &snapshot.location(packed.location()).conf.nchan;
    let held = Held::arrive(r, conf, redis::backend::of_location(snapshot, conf).as_deref())?;
    Box::new(Parked { packed, held }).go_on(ready);
    Some(())
}

impl Parked {
    /// Is parked, or has a task where nothing can be.
    fn go_on(self: Box<Self>, ready: Ready) {
        if ready.may_park() {
            return parked::park(ready, self);
        }
        self.leave_by(ready.into_socket(), Held::unparked);
    }

    fn leave_by(self, socket: Socket, go_on: fn(Held) -> GoOn) {
        let Parked { packed, mut held } = self;
        if let Some(feed) = held.feed_mut() {
            feed.listening.unsettle();
        }
        let Unpacked { kept, socket, client } = packed.unpack(socket);
        connection::begin::go_on(Back { request: kept.back(socket), go_on: go_on(held) }, client);
    }
}

impl Resident for Parked {
    fn travel(&mut self, rest: &[u8]) -> Option<Papers> {
        if !self.held.may_go() {
            return None;
        }
        let bytes = self.held.travel(rest, self.packed.travel()?)?;
        let papers = Papers::new(Travels::Subscriber, bytes, self.packed.snapshot().clone());
        Some(papers.packed_with(self.packed.dictionary()))
    }

    fn stay(mut self: Box<Self>, ready: Ready, why: Stay) {
        if why == Stay::Refused {
            self.held.refuse();
        }
        self.go_on(ready);
    }

    fn kind(&self) -> parked::Kind {
        match self.held.feed().map(|feed| feed.kind()) {
            Some(Kind::LongPoll | Kind::IntervalPoll) => parked::Kind::LongPoll,
            None | Some(Kind::WebSocket | Kind::WebSocketMeta) => parked::Kind::WebSocket,
            Some(_) => parked::Kind::Stream,
        }
    }

    fn bytes(&self) -> usize {
        self.held.bytes() + self.packed.bytes()
    }

    fn watch(&self) -> Watch {
        if self.held.hears() { Watch::Words } else { Watch::End }
    }

    fn settled(&mut self, place: u32) {
        if let Some(feed) = self.held.feed_mut() {
            feed.listening.settle(place);
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.packed.received += bytes.len() as u64;
        self.held.hear(bytes);
    }

    fn gone(&mut self, why: Option<io::Error>) {
        self.held.end_now(End::Gone(why));
    }

    fn stalled(&mut self) {
        self.held.end_now(End::Stalled);
    }

    fn refused(&mut self) {
        self.held.end(End::Unparked);
    }

    fn patience(&self) -> Duration {
        *self.packed.snapshot().location(self.packed.location()).conf.core.send_timeout
    }

    fn wrote(&mut self, count: usize) {
        self.packed.sent += count as u64;
    }

    fn next(&mut self) -> Next {
        let conf = &self.packed.snapshot().location(self.packed.location()).conf;
        match self.held.next(conf) {
            Step::Say(piece) => Next::Say(piece.into()),
            Step::Rest(until_ms) => Next::Rest(until_ms),
            Step::End => Next::Leave,
        }
    }

    fn leave(self: Box<Self>, socket: Socket) {
        self.leave_by(socket, Held::go_on);
    }
}
