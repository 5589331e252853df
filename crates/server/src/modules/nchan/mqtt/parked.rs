//! Clients of MQTT that are parked: their requests packed, their connections in `connection::parked`, which asks them what is next. From and
//! to: `held`.

use super::held::{End, Held, Step};
use super::live::Live;
use crate::connection;
use crate::connection::parked::{self, Kind, Next, Ready, Resident, Watch, Words};
use crate::connection::socket::Socket;
use crate::request::held::{Kept, Packed, Unpacked};
use crate::request::phases::Back;
use runtime::clock;
use std::io;
use std::time::Duration;

/// A client that is parked.
struct Parked {
    packed: Packed,
    held: Held,
    place: u32,
    /// What it took when it was parked.
    bytes: u32,
}

/// A client's places in the tables of sessions and of readers, roughly.
const LISTED_BYTES: usize = 250;

/// The connection, if it can be parked.
pub(super) fn ready(kept: &Kept, socket: Socket) -> Result<Ready, Socket> {
    if kept.is_counted() { Ready::of(socket) } else { Err(socket) }
}

/// Parks a client.
pub(super) fn park(kept: Box<Kept>, ready: Ready, held: Held) {
    let packed = Packed::of(kept);
    let session = held.live.as_ref().map_or(0, |live| size_of::<Live>() + live.session.bytes() + LISTED_BYTES);
    let bytes = (size_of::<Parked>() + packed.bytes() + session) as u32;
    parked::park(ready, Box::new(Parked { packed, held, place: 0, bytes }));
}

impl Parked {
    fn over(&mut self, end: End) {
        drop(self.held.link.take_unsent());
        self.held.over = Some(end);
    }
}

impl Resident for Parked {
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
        self.held.send_timeout
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

    fn leave(self: Box<Self>, socket: Socket) {
        let Parked { packed, mut held, .. } = *self;
        if let Some(live) = &mut held.live {
            live.session.unsettle();
        }
        let end = held.over.take().unwrap_or(End::Gone(None));
        let Unpacked { kept, socket, client } = packed.unpack(socket);
        connection::begin::go_on(Back { request: kept.back(socket), go_on: held.go_on(end) }, client);
    }
}
