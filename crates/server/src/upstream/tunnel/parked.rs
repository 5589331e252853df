//! Tunnels in which nobody says anything: both connections stand in the thread's table, each as a resident, and what they share is kept once.
//! Whichever of them has something first brings the other back. From and to: `tunnel`.

use super::{Pipe, Tunnel};
use crate::connection;
use crate::connection::parked::{self, Kind, Next, Ready, Resident, Watch};
use crate::connection::socket::Socket;
use crate::request::held::{Packed, Unpacked, hold};
use crate::request::phases::{Back, GoOn};
use crate::upstream::exchange::Answer;
use runtime::clock;
use runtime::timer::Timer;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What both sides of a tunnel share.
struct Shared {
    packed: Packed,
    answer: Answer,
    /// Bytes that have gone down and up.
    down: u64,
    up: u64,
    timeout: Duration,
    /// When it has been silent for too long, monotonic ms.
    until_ms: u64,
    /// It is to be a tunnel again, and could not be parked.
    is_over: bool,
    is_refused: bool,
    /// Where the client and the peer stand; the connections of those that have left already.
    places: [Option<u32>; 2],
    left: [Option<Socket>; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Peer,
}

/// One side.
struct Half {
    side: Side,
    shared: Rc<RefCell<Option<Box<Shared>>>>,
}

/// Parks a tunnel in which nothing is under way; gives it back if it cannot be.
pub(super) fn try_park(mut tunnel: Box<Tunnel>) -> Result<(), Box<Tunnel>> {
    if !tunnel.kept.is_counted() {
        return Err(tunnel);
    }
    let connection = &mut tunnel.answer.connection;
    // The peer first: of the client's TLS the library lets go for good.
    let peer = match Ready::of(std::mem::replace(&mut connection.socket, Socket::none())) {
        Ok(ready) => ready,
        Err(socket) => {
            connection.socket = socket;
            return Err(tunnel);
        }
    };
    let client = match Ready::of(std::mem::replace(&mut tunnel.socket, Socket::none())) {
        Ok(ready) => ready,
        Err(socket) => {
            tunnel.socket = socket;
            tunnel.answer.connection.socket = peer.into_socket().of_peer();
            return Err(tunnel);
        }
    };
    let Tunnel { kept, answer, down, up, timeout, until_ms, .. } = *tunnel;
    let shared = Shared {
        packed: Packed::of(kept),
        answer,
        down: down.total,
        up: up.total,
        timeout,
        until_ms,
        is_over: false,
        is_refused: false,
        places: [None, None],
        left: [None, None],
    };
    let shared = Rc::new(RefCell::new(Some(Box::new(shared))));
    parked::park(client, Box::new(Half { side: Side::Client, shared: shared.clone() }));
    parked::park(peer, Box::new(Half { side: Side::Peer, shared }));
    Ok(())
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Client => Side::Peer,
            Side::Peer => Side::Client,
        }
    }
}

impl Half {
    /// Both sides are to leave.
    fn end(&self, is_refused: bool) {
        let mut shared = self.shared.borrow_mut();
        let Some(shared) = &mut *shared else { return };
        shared.is_refused |= is_refused;
        if !std::mem::replace(&mut shared.is_over, true) {
            // Who has no place yet looks when it gets one.
            let other = shared.places[self.side.other() as usize];
            other.into_iter().for_each(|place| parked::waker(place).wake());
        }
    }
}

impl Shared {
    /// The tunnel again, on the connections that have left.
    fn resume(self, client: Socket, peer: Socket) {
        let Shared { packed, mut answer, down, up, timeout, until_ms, is_refused, .. } = self;
        answer.connection.socket = peer.of_peer();
        let Unpacked { kept, socket, client } = packed.unpack(client);
        let (down, up) = (Pipe::after(down), Pipe::after(up));
        let go_on: GoOn = Box::new(move |r| {
            let verdict = hold(r, |kept, socket| {
                let timer = Timer::new();
                let may_park = !is_refused;
                let tunnel = Tunnel { kept, socket, answer, down, up, timer, timeout, until_ms, may_park };
                Box::pin(super::carry(Box::new(tunnel)))
            });
            Box::pin(async move { verdict })
        });
        connection::begin::go_on(Back { request: kept.back(socket), go_on }, client);
    }
}

impl Resident for Half {
    fn kind(&self) -> Kind {
        Kind::Tunnel
    }

    fn is_client(&self) -> bool {
        self.side == Side::Client
    }

    fn bytes(&self) -> usize {
        let shared = match (self.side, &*self.shared.borrow()) {
            (Side::Client, Some(shared)) => size_of::<Shared>() - size_of::<Packed>() + shared.packed.bytes(),
            _ => 0,
        };
        size_of::<Half>() + shared
    }

    fn watch(&self) -> Watch {
        Watch::Stir
    }

    fn settled(&mut self, place: u32) {
        if let Some(shared) = &mut *self.shared.borrow_mut() {
            shared.places[self.side as usize] = Some(place);
        }
    }

    fn hear(&mut self, _: &[u8]) {}

    fn gone(&mut self, _: Option<io::Error>) {
        // The tunnel reads what it is.
        self.end(false);
    }

    fn stalled(&mut self) {}

    fn refused(&mut self) {
        self.end(true);
    }

    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn wrote(&mut self, _: usize) {}

    fn next(&mut self) -> Next {
        let (is_over, until_ms) = match &*self.shared.borrow() {
            Some(shared) => (shared.is_over, shared.until_ms),
            None => return Next::Close,
        };
        if is_over {
            return Next::Leave;
        }
        match self.side {
            // It is the client's side that looks at the time.
            Side::Peer => Next::Rest(None),
            Side::Client if clock::monotonic_ms() < until_ms => Next::Rest(Some(until_ms)),
            Side::Client => {
                self.end(false);
                Next::Leave
            }
        }
    }

    fn leave(self: Box<Self>, socket: Socket) {
        let mut shared = self.shared.borrow_mut();
        let Some(both) = &mut *shared else { return };
        both.places[self.side as usize] = None;
        both.left[self.side as usize] = Some(socket);
        let [client @ Some(_), peer @ Some(_)] = &mut both.left else { return };
        if let (Some(client), Some(peer), Some(both)) = (client.take(), peer.take(), shared.take()) {
            drop(shared);
            both.resume(client, peer);
        }
    }
}
