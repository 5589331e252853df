//! Clients of MQTT that are parked: their requests packed, their connections in `connection::parked`, which asks them what is next. From and
//! to: `held`.

use super::super::redis::backend;
use super::held::{End, Held, Step};
use super::live::Live;
use super::table;
use crate::connection;
use crate::connection::parked::{self, Kind, Next, Ready, Resident, Watch, Words};
use crate::connection::socket::Socket;
use crate::request::held::{Kept, Packed, Unpacked};
use crate::request::phases::Back;
use crate::snapshot::ThreadSnapshot;
use crate::worker::departure::{self, Papers, Stay};
use heir::Kind as Travels;
use runtime::clock;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// A client that is parked.
struct Parked {
    packed: Packed,
    held: Held,
    place: u32,
    /// What it took when it was parked.
    bytes: u32,
}

/// A client's places in the tables of sessions and of readers beside its name, roughly: tables are two thirds full.
const LISTED_BYTES: usize = 16 + table::SLOT_BYTES + 12 + 72;

/// The connection, if it can be parked. One that is about to go on in another process goes from its task.
pub(super) fn ready(kept: &Kept, socket: Socket) -> Result<Ready, Socket> {
    let departs = departure::leaves_process() && kept.may_go();
    if kept.is_counted() && !departs { Ready::of(socket) } else { Err(socket) }
}

/// Parks a client.
pub(super) fn park(kept: Box<Kept>, ready: Ready, held: Held) {
    parked::park(ready, Parked::new(Packed::of(kept), held));
}

/// Has a client with a task go on in another process, which [`Kept::may_go`] and [`Held::may_go`] say it can. Gives it back if its descriptor
/// is somebody else's too.
pub(super) fn depart(kept: Box<Kept>, socket: Socket, held: Held) -> Result<(), Box<(Box<Kept>, Socket, Held)>> {
    match Ready::apart(socket) {
        Ok(ready) => {
            parked::send_off(vec![(ready, Parked::new(Packed::of(kept), held))], &[]);
            Ok(())
        }
        Err(socket) => Err(Box::new((kept, socket, held))),
    }
}

/// Goes on with a client of another process. None: it has no place here.
pub fn arrive(
    r: &mut heir::Reader<'_>,
    ready: Ready,
    terms: &heir::Terms,
    snapshot: &Rc<ThreadSnapshot>,
) -> Option<()> {
    let packed = Packed::arrive(r, terms, snapshot)?;
    let conf = &snapshot.location(packed.location()).conf;
    let held = Held::arrive(r, conf, backend::of_location(snapshot, &conf.nchan).as_ref())?;
    Parked::new(packed, held).go_on(ready);
    Some(())
}

impl Parked {
    fn new(packed: Packed, held: Held) -> Box<Parked> {
        let bytes_of = |live: &Live| size_of::<Live>() + live.session.bytes() + LISTED_BYTES + live.owner.key().len();
        let session = held.live.as_ref().map_or(0, |live| bytes_of(live));
        let bytes = (size_of::<Parked>() + packed.bytes() + session) as u32;
        Box::new(Parked { packed, held, place: 0, bytes })
    }

    /// Is parked, or has a task where nothing can be.
    fn go_on(self: Box<Self>, ready: Ready) {
        if ready.may_park() {
            return parked::park(ready, self);
        }
        // Be it on its way to its end: what it is about to say is said.
        self.leave_by(ready.into_socket(), End::Unparked);
    }

    fn leave_by(self, socket: Socket, end: End) {
        let Parked { packed, mut held, .. } = self;
        if let Some(live) = &mut held.live {
            live.session.unsettle();
        }
        let Unpacked { kept, socket, client } = packed.unpack(socket);
        connection::begin::go_on(Back { request: kept.back(socket), go_on: held.go_on(end) }, client);
    }

    fn over(&mut self, end: End) {
        drop(self.held.link.take_unsent());
        self.held.over = Some(end);
    }
}

impl Resident for Parked {
    fn travel(&mut self, rest: &[u8]) -> Option<Papers> {
        // A session is its client's once in a process: it stays where it is, and ends with the thread.
        if !departure::leaves_process() || !self.held.may_go() {
            return None;
        }
        let bytes = self.held.travel(rest, self.packed.travel()?)?;
        let papers = Papers::new(Travels::Mqtt, bytes, self.packed.snapshot().clone());
        Some(papers.packed_with(self.packed.dictionary()))
    }

    fn stay(mut self: Box<Self>, ready: Ready, why: Stay) {
        match why {
            Stay::Unanswered => {}
            Stay::Refused => self.held.refuse(),
            Stay::Untold => self.held.stays = true,
        }
        self.go_on(ready);
    }

    fn kind(&self) -> Kind {
        Kind::Mqtt
    }

    fn bytes(&self) -> usize {
        self.bytes as usize
    }

    fn watch(&self) -> Watch {
        Watch::Words
    }

    fn settled(&mut self, place: u32) {
        self.place = place;
        if let Some(live) = &mut self.held.live {
            live.owner.call(parked::waker(place));
            live.session.settle(place);
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.packed.received += bytes.len() as u64;
            self.held.heard_ms = clock::monotonic_ms();
            self.held.link.push(bytes);
        }
    }

    fn gone(&mut self, why: Option<io::Error>) {
        self.over(End::Gone(why));
    }

    fn stalled(&mut self) {
        self.over(End::Stalled);
    }

    fn refused(&mut self) {
        if self.held.over.is_none() {
            self.held.over = Some(End::Unparked);
        }
    }

    fn patience(&self) -> Duration {
        self.held.send_timeout()
    }

    fn wrote(&mut self, count: usize) {
        self.packed.sent += count as u64;
    }

    fn next(&mut self) -> Next {
        match self.held.step(self.place) {
            Step::Say(bytes) => Next::Say(Words::Own(bytes.into())),
            Step::Rest(until_ms) => Next::Rest(until_ms),
            Step::End => Next::Leave,
        }
    }

    fn leave(mut self: Box<Self>, socket: Socket) {
        let end = self.held.over.take().unwrap_or(End::Gone(None));
        self.leave_by(socket, end);
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Session;
    use super::*;

    /// There are millions of them: what one is made of, beside its texts.
    #[test]
    fn a_client_is_small() {
        let (parked, live, session) = (size_of::<Parked>(), size_of::<Live>(), Session::SMALLEST_BYTES);
        println!("parked {parked}, live {live}, session with a filter {session}, listed {LISTED_BYTES}");
        assert!(parked + live + session + LISTED_BYTES <= 640);
    }
}
