//! Clients of MQTT that are parked: their requests packed, their connections in `connection::parked`, which asks them what is next. From and
//! to: `held`.

use super::super::redis::backend;
use super::held::{End, Held, Step};
use super::small::{Small, Whole};
use crate::connection;
use crate::connection::parked::{self, Kind, Next, Ready, Resident, Watch, Words, block};
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
    state: State,
}

/// How much of it is there.
enum State {
    /// As many as are silent.
    Small(Small),
    /// Those with whom something is under way, or was when they were asked last.
    Whole(Box<Whole>),
    /// It is something else, or somewhere else, in a moment.
    Gone,
}

/// Where no client is parked.
const NOWHERE: u32 = u32::MAX;

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

impl Whole {
    /// It is parked at its place.
    fn settle(&mut self) {
        if let Some(live) = &mut self.held.live {
            live.owner.call(parked::waker(self.place));
            live.session.settle(self.place);
        }
    }
}

impl Parked {
    fn new(packed: Packed, held: Held) -> Box<Parked> {
        Box::new(Parked { state: State::Whole(Whole::new(packed, held, NOWHERE)) })
    }

    /// Is parked, or has a task where nothing can be.
    fn go_on(self: Box<Self>, ready: Ready) {
        if ready.may_park() {
            return parked::park(ready, self);
        }
        // Be it on its way to its end: what it is about to say is said.
        self.leave_by(ready.into_socket(), End::Unparked);
    }

    fn leave_by(mut self, socket: Socket, end: End) {
        let Some(whole) = self.take() else { return };
        let Whole { packed, mut held, .. } = *whole;
        if let Some(live) = &mut held.live {
            live.session.unsettle();
        }
        let Unpacked { kept, socket, client } = packed.unpack(socket);
        connection::begin::go_on(Back { request: kept.back(socket), go_on: held.go_on(end) }, client);
    }

    /// All of it; it is nowhere else from then on.
    fn take(&mut self) -> Option<Box<Whole>> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Small(mut small) => small.open(),
            State::Whole(whole) => Some(whole),
            State::Gone => None,
        }
    }

    /// All of it, where it is parked.
    fn whole(&mut self) -> Option<&mut Whole> {
        if let State::Small(_) = self.state {
            let before = self.bytes();
            let mut whole = self.take()?;
            whole.settle();
            self.state = State::Whole(whole);
            parked::rebill(Kind::Mqtt, before, self.bytes());
        }
        match &mut self.state {
            State::Whole(whole) => Some(whole),
            State::Small(_) | State::Gone => None,
        }
    }

    /// There is nothing to be done. Whoever can be small is.
    fn rest(&mut self) {
        let before = self.bytes();
        let State::Whole(whole) = std::mem::replace(&mut self.state, State::Gone) else { return };
        self.state = match Small::of(whole) {
            Ok(small) => State::Small(small),
            Err(whole) => State::Whole(whole),
        };
        parked::rebill(Kind::Mqtt, before, self.bytes());
    }

    fn over(&mut self, end: End) {
        if let Some(whole) = self.whole() {
            drop(whole.held.link.take_unsent());
            whole.held.over = Some(end);
        }
    }
}

impl Resident for Parked {
    fn travel(&mut self, rest: &[u8]) -> Option<Papers> {
        // A session is its client's once in a process: it stays where it is, and ends with the thread.
        if !departure::leaves_process() {
            return None;
        }
        let Whole { packed, held, .. } = self.whole()?;
        if !held.may_go() {
            return None;
        }
        let bytes = held.travel(rest, packed.travel()?)?;
        let papers = Papers::new(Travels::Mqtt, bytes, packed.snapshot().clone());
        Some(papers.packed_with(packed.dictionary()))
    }

    fn stay(mut self: Box<Self>, ready: Ready, why: Stay) {
        if let Some(whole) = self.whole() {
            match why {
                Stay::Unanswered => {}
                Stay::Refused => whole.held.refuse(),
                Stay::Untold => whole.held.stays = true,
            }
        }
        self.go_on(ready);
    }

    fn kind(&self) -> Kind {
        Kind::Mqtt
    }

    fn bytes(&self) -> usize {
        block(size_of::<Parked>())
            + match &self.state {
                State::Small(small) => small.bytes(),
                State::Whole(whole) => whole.bytes(),
                State::Gone => 0,
            }
    }

    fn watch(&self) -> Watch {
        Watch::Words
    }

    fn settled(&mut self, place: u32) {
        if let State::Whole(whole) = &mut self.state {
            whole.place = place;
            whole.settle();
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        let is_heard = match &mut self.state {
            State::Small(small) => small.hear(bytes),
            State::Whole(_) | State::Gone => false,
        };
        if bytes.is_empty() || is_heard {
            return;
        }
        if let Some(Whole { packed, held, .. }) = self.whole() {
            packed.received += bytes.len() as u64;
            held.heard_ms = clock::monotonic_ms();
            held.link.push(bytes);
        }
    }

    fn gone(&mut self, why: Option<io::Error>) {
        self.over(End::Gone(why));
    }

    fn stalled(&mut self) {
        self.over(End::Stalled);
    }

    fn refused(&mut self) {
        if let Some(whole) = self.whole()
            && whole.held.over.is_none()
        {
            whole.held.over = Some(End::Unparked);
        }
    }

    fn patience(&self) -> Duration {
        match &self.state {
            State::Small(small) => Duration::from_millis(small.send_timeout_ms().into()),
            State::Whole(whole) => whole.held.send_timeout(),
            State::Gone => Duration::MAX,
        }
    }

    fn wrote(&mut self, count: usize) {
        match &mut self.state {
            State::Small(small) => small.wrote(count),
            State::Whole(whole) => whole.packed.sent += count as u64,
            State::Gone => {}
        }
    }

    fn next(&mut self) -> Next {
        if let State::Small(small) = &mut self.state
            && let Some(next) = small.next()
        {
            return next;
        }
        let Some(whole) = self.whole() else { return Next::Leave };
        match whole.held.step(whole.place) {
            Step::Say(bytes) => Next::Say(Words::Own(bytes.into())),
            Step::Rest(until_ms) => {
                self.rest();
                Next::Rest(until_ms)
            }
            Step::End => Next::Leave,
        }
    }

    fn leave(mut self: Box<Self>, socket: Socket) {
        let over = match &mut self.state {
            State::Whole(whole) => whole.held.over.take(),
            State::Small(_) | State::Gone => None,
        };
        self.leave_by(socket, over.unwrap_or(End::Gone(None)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::live::Live;
    use super::super::small::bytes_of;
    use super::super::table;
    use super::*;

    /// There are millions of them: what one takes that is silent, with the allocator's rounding and its shares of tables.
    #[test]
    fn a_client_is_small() {
        // One filter of 20 bytes, a name of 24, and what is kept of its request where others were like it (a client of `ironweir stress` has 40 bytes of that).
        let (session, live, request) = (7 + 4 + 2 + 21 + 6 + 7, 3 + 25 + 4, 44);
        let own = block(size_of::<Parked>()) + bytes_of(&[&[1][..], &vec![0; session + live + request]].concat());
        println!("parked {}, own bill {own}, lists {}", size_of::<Parked>(), parked::LIST_BYTES);
        println!("whole {}, live {}, slot {}", size_of::<Whole>(), size_of::<Live>(), table::SLOT_BYTES);
        assert!(own + parked::LIST_BYTES as usize <= 300);
    }
}
