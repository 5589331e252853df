//! Tunnels in which nobody says anything: both connections stand in the thread's table, each as a resident, and what they share is kept once.
//! Whichever of them has something first brings the other back. From and to: `tunnel`.

use super::{Patience, Pipe, Tunnel};
use crate::connection;
use crate::connection::parked::{self, Kind, Next, Ready, Resident, Watch};
use crate::connection::reuse::has_room;
use crate::connection::socket::Socket;
use crate::request::held::{Packed, Unpacked, hold};
use crate::request::phases::{Back, GoOn};
use crate::snapshot::ThreadSnapshot;
use crate::upstream::exchange::Answer;
use crate::worker::departure::{Papers, Stay};
use runtime::clock;
use runtime::timer::Timer;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What both sides of a tunnel share.
pub(super) struct Shared {
    pub(super) packed: Packed,
    pub(super) answer: Answer,
    /// Bytes that have gone down and up.
    pub(super) down: u64,
    pub(super) up: u64,
    pub(super) timeout: Duration,
    pub(super) patience: Patience,
    /// When it has been silent for too long, monotonic ms.
    pub(super) until_ms: u64,
    /// It is to be a tunnel again, and could not be parked.
    pub(super) is_over: bool,
    pub(super) is_refused: bool,
    /// Another process has no place for it.
    pub(super) stays: bool,
    /// Where the client and the peer stand; the connections of those that have left already.
    pub(super) places: [Option<u32>; 2],
    pub(super) left: [Option<Socket>; 2],
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

/// Parks a tunnel in which nothing is under way, or has it go on in another process; gives it back if it cannot be.
pub(super) fn try_park(mut tunnel: Box<Tunnel>) -> Result<(), Box<Tunnel>> {
    if !tunnel.kept.is_counted() {
        return Err(tunnel);
    }
    let departs = tunnel.is_to_depart();
    // The library lets go of TLS for good: on either side it goes on as it is where the other one stays.
    let Some(peer) = parked::take(&mut tunnel.answer.connection.socket, departs) else { return Err(tunnel) };
    let Some(client) = parked::take(&mut tunnel.socket, departs) else {
        tunnel.answer.connection.socket = peer.into_socket().of_peer();
        return Err(tunnel);
    };
    let Tunnel { kept, answer, down, up, timeout, until_ms, stays, .. } = *tunnel;
    let shared = Shared {
        packed: Packed::of(kept),
        answer,
        down: down.total,
        up: up.total,
        timeout,
        patience: Patience { client_ms: down.stall.patience_ms, peer_ms: up.stall.patience_ms },
        until_ms,
        is_over: false,
        is_refused: false,
        stays,
        places: [None, None],
        left: [None, None],
    };
    let [client_half, peer_half] = shared.halves();
    match departs {
        true => parked::send_off(vec![(client, client_half), (peer, peer_half)], &[]),
        false => {
            parked::park(client, client_half);
            parked::park(peer, peer_half);
        }
    }
    Ok(())
}

/// Goes on with a tunnel of another process. None: it has no place here.
pub fn arrive(
    r: &mut heir::Reader<'_>,
    client: Ready,
    peer: Ready,
    terms: &heir::Terms,
    snapshot: &Rc<ThreadSnapshot>,
) -> Option<()> {
    let shared = Shared::read(r, terms, snapshot)?;
    if !has_room() {
        return None;
    }
    if !client.may_park() {
        shared.resume(client.into_socket(), peer.into_socket());
        return Some(());
    }
    let [client_half, peer_half] = shared.halves();
    parked::park(client, client_half);
    parked::park(peer, peer_half);
    Some(())
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
    /// Both sides of it: the client's and the peer's.
    fn halves(self) -> [Box<Half>; 2] {
        let shared = Rc::new(RefCell::new(Some(Box::new(self))));
        [Side::Client, Side::Peer].map(|side| Box::new(Half { side, shared: shared.clone() }))
    }

    /// The tunnel again, on the connections that have left.
    fn resume(self, client: Socket, peer: Socket) {
        let Shared { packed, mut answer, down, up, timeout, patience, until_ms, is_refused, stays, .. } = self;
        answer.connection.socket = peer.of_peer();
        let Unpacked { kept, socket, client } = packed.unpack(client);
        let (down, up) = (Pipe::after(down, patience.client_ms), Pipe::after(up, patience.peer_ms));
        let go_on: GoOn = Box::new(move |r| {
            let verdict = hold(r, |kept, socket| {
                let timer = Timer::new();
                let may_park = !is_refused;
                let tunnel = Tunnel { kept, socket, answer, down, up, timer, timeout, until_ms, may_park, stays };
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

    fn travel(&mut self, _: &[u8]) -> Option<Papers> {
        let shared = self.shared.borrow();
        let shared = shared.as_ref().filter(|shared| !shared.is_over && !shared.stays)?;
        let [client, peer] = shared.places;
        let is_whole = client.is_some() == peer.is_some();
        // The peer goes with the client.
        if self.side == Side::Client && is_whole { shared.papers() } else { None }
    }

    fn companion(&self) -> Option<u32> {
        self.shared.borrow().as_ref()?.places[self.side.other() as usize]
    }

    fn stay(self: Box<Self>, ready: Ready, why: Stay) {
        if let Some(shared) = &mut *self.shared.borrow_mut() {
            shared.stays |= why != Stay::Unanswered;
        }
        self.leave(ready.into_socket());
    }
}
