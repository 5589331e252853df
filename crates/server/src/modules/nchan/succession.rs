//! Channels that go to another process, or come from one: their buffers, what is retained, and what is published behind them. Around:
//! `upgrade`. The channels themselves are `push`'s.

use super::hub::STORE;
use super::redis::backend;
use heir::{Channel, Channels, Frame, Late, Message, Reader, Writer};
use push::{Heir, Id, Packed, Parting, Settling};
use std::sync::{Arc, Mutex, PoisonError};

/// What is said at once: frames end at the first channel, or message, beyond it.
const FRAME_BYTES: usize = 256 * 1024;
/// Of [`Frame::Zone`]: messages that are retained, by the names of their channels.
pub const RETAINED: &[u8] = b"retained";

/// Of [`Frame::Zone`]: filters by which the channels of a group are heard.
pub const FILTERS: &[u8] = b"filters";
/// The same: all subscribers have come that will.
pub const ALL: &[u8] = b"all subscribers";

fn pair(id: Id) -> (i64, i32) {
    (id.time, id.tag)
}

fn id((time, tag): (i64, i32)) -> Id {
    Id { time, tag }
}

fn now() -> i64 {
    i64::try_from(runtime::clock::wall_ms() / 1000).unwrap_or(i64::MAX)
}

/// Parts with all channels: `say` is given frames, `late` what happens afterwards, and says whether anybody hears it.
pub fn leave(mut say: impl FnMut(Vec<u8>), late: impl Fn(Vec<u8>) -> bool + Send + Sync + 'static) {
    let gathered = Arc::new(Mutex::new(Channels::new()));
    let before = gathered.clone();
    let heir = Heir(Arc::new(move |what| {
        // What happens to a channel is said behind the channel.
        let mut gathered = before.lock().unwrap_or_else(PoisonError::into_inner);
        if !gathered.is_empty() && !late(std::mem::take(&mut *gathered).done()) {
            return false;
        }
        late(match what {
            push::Late::Publish { name, length, timeout, packed } => {
                Frame::Late(Late::Publish { name, length: length as u64, timeout, packed }).write()
            }
            push::Late::Delete(name) => Frame::Late(Late::Delete(name)).write(),
            push::Late::Filter(group, filter) => {
                let mut rows = Writer::default();
                rows.bytes(filter);
                Frame::Zone(FILTERS, group, &rows.done()).write()
            }
        })
    }));
    let mut filters = Filters::default();
    STORE.begin_leaving(heir, |group, filter| filters.push(group, filter, &mut say));
    filters.said(&mut say);
    STORE.leave(now(), |parting| {
        let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
        write(&parting, &mut gathered, &mut say);
    });
    let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
    if !gathered.is_empty() {
        say(std::mem::take(&mut *gathered).done());
    }
    drop(gathered);
    retained(say);
}

fn retained(mut say: impl FnMut(Vec<u8>)) {
    STORE.retained(now(), |name, message| {
        let mut packed = Vec::new();
        message.pack(now(), &mut packed);
        say(Frame::Zone(RETAINED, name, &packed).write());
    });
}

/// Says all channels, which stay where they are. Each is said before anything else can happen to it.
pub(super) fn copy(mut say: impl FnMut(Vec<u8>)) {
    STORE.copies(now(), |copy| {
        let mut frame = Channels::new();
        write(&copy, &mut frame, &mut say);
        if !frame.is_empty() {
            say(frame.done());
        }
    });
    retained(say);
}

/// Filters of a group that are said together.
#[derive(Default)]
struct Filters {
    group: Vec<u8>,
    rows: Writer,
}

impl Filters {
    fn push(&mut self, group: &[u8], filter: &[u8], say: &mut impl FnMut(Vec<u8>)) {
        if *self.group != *group || self.rows.len() >= FRAME_BYTES {
            self.said(say);
            self.group = group.to_vec();
        }
        self.rows.bytes(filter);
    }

    fn said(&mut self, say: &mut impl FnMut(Vec<u8>)) {
        if !self.rows.is_empty() {
            say(Frame::Zone(FILTERS, &self.group, &std::mem::take(&mut self.rows).done()).write());
        }
    }
}

/// All connections have gone that will.
pub fn gone() -> Vec<u8> {
    Frame::Zone(ALL, b"", b"").write()
}

/// Writes a channel; what is gathered is said when it is enough.
fn write(parting: &Parting, frame: &mut Channels, say: &mut impl FnMut(Vec<u8>)) {
    let mut messages = parting.messages.iter();
    let mut is_first = true;
    loop {
        let (mut packed, mut size) = (Vec::new(), 0);
        while size < FRAME_BYTES
            && packed.len() < heir::MOST_CHANNELS
            && let Some(message) = messages.next()
        {
            let mut out = Vec::new();
            message.pack(message.at(), &mut out);
            size += out.len();
            packed.push((pair(message.id), message.order(), message.at(), out));
        }
        let is_last = messages.len() == 0;
        if packed.is_empty() && !is_first {
            return;
        }
        let messages = packed.iter().map(|(id, order, at, packed)| Message { id: *id, order: *order, at: *at, packed });
        frame.push(&Channel {
            name: parting.channel.name(),
            last: pair(parting.last),
            dropped: pair(parting.dropped),
            behind: if is_first { parting.behind as u64 } else { 0 },
            has_published: parting.has_published,
            requested: parting.requested,
            timeout: parting.timeout,
            messages: messages.collect(),
        });
        is_first = false;
        if frame.len() >= FRAME_BYTES || frame.is_full() {
            say(std::mem::take(frame).done());
        }
        if is_last {
            return;
        }
    }
}

/// Channels are published to here again.
pub fn stay() {
    STORE.stay();
}

/// Takes over a channel. What has no room is left out: its subscribers find what is newer.
pub fn settle(channel: &Channel<'_>) {
    let from = Settling {
        name: channel.name,
        last: id(channel.last),
        dropped: id(channel.dropped),
        behind: usize::try_from(channel.behind).unwrap_or(0),
        has_published: channel.has_published,
        requested: channel.requested,
        timeout: channel.timeout,
    };
    let messages = channel.messages.iter();
    let messages = messages.filter_map(|m| Some((id(m.id), m.order, m.at, Packed::read(m.packed).ok()?)));
    let _ = STORE.settle(&from, messages, now());
}

/// Subscribers are on their way here: what is beyond a buffer is kept for them, and clients of MQTT wait for their sessions.
pub fn expect() {
    STORE.expect(true);
}

/// All subscribers have come that will.
pub fn expect_no_more() {
    STORE.expect(false);
}

/// Whether subscribers are on their way here.
pub(super) fn expects() -> bool {
    STORE.expects()
}

/// Hears the channels of a group by filters, for those who are on their way.
pub fn settle_filters(group: &[u8], rows: &[u8]) {
    let mut rows = Reader::new(rows);
    while let Some(filter) = rows.bytes() {
        // Without room its subscribers miss what is published before they have come.
        let _ = STORE.expect_filter(group, filter, now());
    }
}

/// What is to be with groups whose channels are in a Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// They are heard from now on: their clients are on their way, and the process before hears them until they have come.
    Begins,
    /// They are heard, here and in the other process: what Redis has told so far is here.
    CatchesUp,
}

/// `done` is told when that is so, or has taken too long. On a thread with the configuration.
pub fn hear_groups(groups: Vec<Vec<u8>>, hearing: Hearing, done: impl FnOnce() + 'static) {
    runtime::spawn(async move {
        hear_all(groups, hearing).await;
        done();
    });
}

/// Waits until all is here that Redis has told so far: clients that come may have had it already in the process before, and go on behind it.
pub async fn catch_up() {
    hear_all(shared_groups(), Hearing::CatchesUp).await;
}

async fn hear_all(groups: Vec<Vec<u8>>, hearing: Hearing) {
    let snapshot = crate::worker::snapshot();
    for group in groups {
        let Some(backend) = backend::of_group(&snapshot, &group) else { continue };
        match hearing {
            Hearing::Begins => backend.hear_group(&group).await,
            Hearing::CatchesUp => backend.catch_up(&group).await,
        }
    }
}

/// Groups whose channels are in a Redis, and are heard by filters.
pub fn shared_groups() -> Vec<Vec<u8>> {
    STORE.heard_groups().into_iter().filter(|group| is_shared(group)).map(Vec::from).collect()
}

/// Whether the channels of a group are in a Redis.
pub fn is_shared(group: &[u8]) -> bool {
    group.contains(&0)
}

/// Takes over a message that is retained.
pub fn settle_retained(name: &[u8], packed: &[u8]) {
    STORE.retain_packed(name, Packed::read(packed).ok(), now());
}

/// Does here what was done to a channel in the process before.
pub fn hear(late: &Late<'_>) {
    match late {
        Late::Publish { name, length, timeout, packed } => {
            if let Ok(packed) = Packed::read(packed) {
                let length = usize::try_from(*length).unwrap_or(usize::MAX);
                let _ = STORE.publish_packed(name, &packed, length, *timeout, now());
            }
        }
        Late::Delete(name) => drop(STORE.delete(name, now())),
    }
}

/// How much channels may take, before anything comes.
pub fn set_memory(bytes: Option<u64>) {
    if let Some(bytes) = bytes {
        STORE.set_memory(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}
