//! A client that is parked, silent, and owes and is owed nothing, as most of millions are: one allocation for what is its own, and a pointer to what it has in
//! common with others. It answers pings as it is; for all else it is made whole again. From and to: `parked`.
//!
//! ```text
//! record: session (`session::pack`) | live (`live`) | user, client: what its key is made of | bytes sent, received | request (`request::held::Packed`)
//! ```

use super::super::hub::{self, READER_BYTES};
use super::held::Held;
use super::link::MqttLink;
use super::live::pack::Shared;
use super::live::{BATCH, Live};
use super::session::Outgoing;
use super::session::pack::{filters, has_news, messages};
use super::table;
use crate::connection::parked::{Form, Kind, Next, Words, block, rebill};
use crate::request::held::{Packed, Pieces, Rest};
use crate::snapshot::{LocationId, ServerId, ThreadSnapshot};
use heir::{Reader, Writer};
use runtime::clock;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// So many kinds of clients are known at once: those of one are mostly alike.
const MAX_KINDS: usize = 16;
/// What a client says that is there and wants nothing, and what it is answered.
const PINGREQ: [u8; 2] = [0xc0, 0];
const PINGRESP: [u8; 2] = [0xd0, 0];
const WHOLE: &str = "what was packed here is whole";

/// What clients have in common; or, with a rest, what one has that is like no other.
struct Alike {
    snapshot: Rc<ThreadSnapshot>,
    server: ServerId,
    location: LocationId,
    shared: Shared,
    connect_timeout_ms: u32,
    send_timeout_ms: u32,
    is_framed: bool,
    rest: Cell<Option<Box<Rest>>>,
}

thread_local! {
    /// They are their clients'. One that has none any more holds nothing.
    static KINDS: RefCell<VecDeque<Weak<Alike>>> = const { RefCell::new(VecDeque::new()) };
    static PONG: Arc<dyn Form> = Arc::new(Pong);
}

/// What a ping is answered with, one for all.
struct Pong;

impl Form for Pong {
    fn bytes(&self, _: u8) -> &[u8] {
        &PINGRESP
    }
}

/// A client with all that it takes.
pub(super) struct Whole {
    pub(super) packed: Packed,
    pub(super) held: Held,
    pub(super) place: u32,
    /// What it took when it was parked, or became whole.
    bytes: u32,
    /// What it has in common with others, once it was packed.
    alike: Option<Rc<Alike>>,
}

/// By what another thread calls a client that is whole: `parked::waker`.
const WAKER_BYTES: usize = 32;

/// See the file's head.
pub(super) struct Small {
    alike: Rc<Alike>,
    /// Nothing: it has been unpacked.
    record: Box<[u8]>,
    /// When the client was heard of last, ms.
    heard_ms: u64,
    place: u32,
    /// Bytes since it was packed.
    sent: u32,
    received: u32,
    /// So many are to be answered.
    pings: u8,
    /// See [`Held::stays`].
    stays: bool,
    /// What is in `alike` is its alone, as far as was known when it was packed.
    is_alone: bool,
}

impl Whole {
    /// One that is parked at this place, or is about to be.
    pub(super) fn new(packed: Packed, held: Held, place: u32) -> Box<Whole> {
        let texts = |live: &Live| live.session.bytes() + block(live.owner.key().len());
        let bytes_of = |live: &Live| block(size_of::<Live>()) + texts(live) + table::SLOT_BYTES + WAKER_BYTES;
        let session = held.live.as_ref().map_or(0, |live| bytes_of(live));
        let bytes = block(size_of::<Whole>()) - size_of::<Packed>() + packed.bytes() + session;
        Box::new(Whole { packed, held, place, bytes: bytes as u32, alike: None })
    }

    /// What it takes, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

impl Alike {
    /// The same for all clients that are alike.
    fn shared(self) -> Rc<Alike> {
        if self.has_rest() {
            return Rc::new(self);
        }
        KINDS.with_borrow_mut(|kinds| {
            if let Some(known) =
                kinds.iter().filter_map(Weak::upgrade).find(|known| !known.has_rest() && known.is_like(&self))
            {
                return known;
            }
            kinds.retain(|kind| kind.strong_count() > 0);
            if kinds.len() >= MAX_KINDS {
                kinds.pop_front();
            }
            let alike = Rc::new(self);
            kinds.push_back(Rc::downgrade(&alike));
            alike
        })
    }

    fn is_like(&self, other: &Alike) -> bool {
        let same_backend = match (&self.shared.backend, &other.shared.backend) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let times = |of: &Alike| (of.connect_timeout_ms, of.send_timeout_ms, of.is_framed);
        same_backend
            && Rc::ptr_eq(&self.snapshot, &other.snapshot)
            && (self.server, self.location) == (other.server, other.location)
            && Rc::ptr_eq(&self.shared.peer, &other.shared.peer)
            && self.shared.group == other.shared.group
            && times(self) == times(other)
    }

    fn has_rest(&self) -> bool {
        let rest = self.rest.take();
        let is_there = rest.is_some();
        self.rest.set(rest);
        is_there
    }

    /// What it takes, bytes.
    fn bytes(&self) -> usize {
        let rest = self.rest.take();
        let bytes = rest.as_ref().map_or(0, |rest| rest.bytes());
        self.rest.set(rest);
        let counts = 2 * size_of::<usize>();
        let group = self.shared.group.as_ref().map_or(0, |group| block(counts + group.len()));
        block(size_of::<Alike>() + counts) + group + bytes
    }
}

impl Small {
    /// Packs a client. Gives it back where it is owed something, or somebody wants its session.
    pub(super) fn of(whole: Box<Whole>) -> Result<Small, Box<Whole>> {
        let mut whole = whole;
        let Whole { held, place, .. } = &mut *whole;
        let Some(live) = held.live.as_mut().filter(|live| live.is_at_rest()) else { return Err(whole) };
        if held.over.is_some()
            || !held.link.is_idle()
            || table::parts(live.owner.key()).is_none()
            || !live.owner.rest(*place)
        {
            return Err(whole);
        }
        let Whole { packed, held, place, alike, .. } = *whole;
        let Held { link, live, heard_ms, connect_timeout_ms, send_timeout_ms, stays, .. } = held;
        let live = live.expect("it was there a moment ago");
        let Pieces { snapshot, server, location, bytes, rest, sent, received } = packed.apart();
        let alike = match alike {
            // What was its alone is so still.
            Some(alike) if rest.is_none() || Rc::strong_count(&alike) == 1 => {
                alike.rest.set(rest);
                alike
            }
            _ => {
                let (shared, is_framed, rest) = (Shared::of(&live), link.is_framed(), Cell::new(rest));
                Alike { snapshot, server, location, shared, connect_timeout_ms, send_timeout_ms, is_framed, rest }
                    .shared()
            }
        };
        let mut w = Writer::with_room(b"", bytes.len() + 128);
        live.pack(&mut w);
        [sent, received].into_iter().for_each(|number| w.number(number));
        let record = [&w.done()[..], &bytes].concat().into();
        let is_alone = Rc::strong_count(&alike) == 1;
        Ok(Small { alike, record, heard_ms, place, sent: 0, received: 0, pings: 0, stays, is_alone })
    }

    /// The client as it was before it was packed. None: it has been unpacked.
    pub(super) fn open(&mut self) -> Option<Box<Whole>> {
        let record = std::mem::take(&mut self.record);
        if record.is_empty() {
            return None;
        }
        let Alike { snapshot, server, location, shared, .. } = &*self.alike;
        let mut r = Reader::new(&record);
        let live = Some(Live::unpack(&mut r, self.place, shared.clone()).expect(WHOLE));
        let (sent, received) = (r.number().unwrap_or(0), r.number().unwrap_or(0));
        let packed = Packed::of_pieces(Pieces {
            snapshot: snapshot.clone(),
            server: *server,
            location: *location,
            bytes: r.rest().into(),
            rest: self.alike.rest.take(),
            sent: sent + u64::from(self.sent),
            received: received + u64::from(self.received),
        });
        let link = if self.alike.is_framed { MqttLink::websocket() } else { MqttLink::plain() };
        let mut held = Held {
            link,
            live,
            heard_ms: self.heard_ms,
            took_ms: 0,
            connect_timeout_ms: self.alike.connect_timeout_ms,
            send_timeout_ms: self.alike.send_timeout_ms,
            over: None,
            stays: self.stays,
        };
        (0..std::mem::take(&mut self.pings)).for_each(|_| held.say(&PINGRESP));
        let mut whole = Whole::new(packed, held, self.place);
        whole.alike = Some(self.alike.clone());
        Some(whole)
    }

    /// What it takes beside itself, bytes.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.record) + if self.is_alone { self.alike.bytes() } else { 0 }
    }

    /// Takes what the client has said, if that was a ping. Otherwise it has to be whole.
    pub(super) fn hear(&mut self, bytes: &[u8]) -> bool {
        if bytes != PINGREQ || self.alike.is_framed || self.pings == u8::MAX {
            return false;
        }
        self.received = self.received.saturating_add(bytes.len() as u32);
        self.heard_ms = clock::monotonic_ms();
        self.pings += 1;
        true
    }

    /// So many bytes of what it says are written.
    pub(super) fn wrote(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// How long the client may take nothing, ms.
    pub(super) fn send_timeout_ms(&self) -> u32 {
        self.alike.send_timeout_ms
    }

    /// What is next. None: it has to be whole for that.
    pub(super) fn next(&mut self) -> Option<Next> {
        let is_ending = crate::worker::draining() || crate::worker::has_left();
        if is_ending || table::is_called(self.place) {
            return None;
        }
        if self.pings > 0 {
            self.pings -= 1;
            return Some(Next::Say(Words::Shared(PONG.with(Arc::clone), 0)));
        }
        if has_news(&self.record) {
            let packets = self.deliver()?;
            if !packets.is_empty() {
                return Some(Next::Say(Words::Own(packets.into())));
            }
        }
        let (keep_alive_ms, now) = (self.alike.shared.peer.keep_alive_ms, clock::monotonic_ms());
        if keep_alive_ms == 0 {
            return Some(Next::Rest(None));
        }
        let until_ms = self.heard_ms + keep_alive_ms;
        (until_ms > now).then_some(Next::Rest(Some(until_ms)))
    }
}

impl Small {
    /// The packets of messages that there are for the client. None: it has to be whole to get them.
    fn deliver(&mut self) -> Option<Vec<u8>> {
        let Alike { shared: Shared { peer, group, backend }, is_framed: false, .. } = &*self.alike else { return None };
        let (group, now) = (group.as_deref()?, hub::now());
        let mut out = Vec::new();
        let put = |outgoing: &Outgoing| {
            peer.packet(outgoing, None, false, now, &mut out);
            out.len() < BATCH
        };
        let (record, is_lost) = messages(&self.record, self.place, (group, backend.as_deref()), put)?;
        let before = self.bytes();
        self.record = record[..].into();
        rebill(Kind::Mqtt, before, self.bytes());
        (!is_lost || !out.is_empty()).then_some(out)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // It counts in tables and bills, which only the whole one can leave.
        drop(self.open());
    }
}

/// What a record takes, and what it stands in.
pub(super) fn bytes_of(record: &[u8]) -> usize {
    block(record.len()) + table::RESTING_BYTES + filters(record) * READER_BYTES
}
