//! Subscribers that are parked: their requests packed, their connections in `connection::parked`, which asks them what is next. From and
//! to: `held`.

use super::feed::Kind;
use super::held::{End, Held, Step};
use crate::connection;
use crate::connection::parked::{self, Next, Resident, Watch};
use crate::connection::socket::Socket;
use crate::request::held::{Kept, Packed, Unpacked};
use crate::request::phases::Back;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A subscriber that is parked.
pub(super) struct Parked {
    packed: Packed,
    held: Held,
}

/// The descriptor of a connection that can be parked, or the connection: nothing can be, it is over TLS.
pub(super) fn descriptor(kept: &Kept, socket: Socket) -> Result<OwnedFd, Socket> {
    if socket.tls().is_some() || !kept.is_counted() || !parked::is_open() {
        return Err(socket);
    }
    socket.try_into_fd()
}

/// Parks a subscriber.
pub(super) fn park(kept: Box<Kept>, fd: OwnedFd, held: Held) {
    parked::park(fd, Box::new(Parked { packed: Packed::of(kept), held }));
}

impl Resident for Parked {
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

    fn leave(self: Box<Self>, fd: OwnedFd) {
        let Parked { packed, mut held } = *self;
        if let Some(feed) = held.feed_mut() {
            feed.listening.unsettle();
        }
        let Unpacked { kept, socket, client } = packed.unpack(Socket::new(fd));
        connection::go_on(Back { request: kept.back(socket), go_on: held.go_on() }, client);
    }
}
