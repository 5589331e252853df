//! Channels that go to another process, or come from one: their buffers, what is retained, and what is published behind them. Around:
//! `upgrade`. The channels themselves are `push`'s.

use super::hub::STORE;
use heir::{Channel, Channels, Frame, Late, Message};
use push::{Heir, Id, Mailbox, Options, Packed, Parting, Refused, Settling, Start, Subscription};
use std::sync::{Mutex, PoisonError};

/// What is said at once: frames end at the first channel, or message, beyond it.
const FRAME_BYTES: usize = 256 * 1024;
/// Of [`Frame::Zone`]: messages that are retained, by the names of their channels.
pub const RETAINED: &[u8] = b"retained";

/// Subscriptions to channels whose subscribers are on their way: what is beyond the buffer is kept for them.
static EXPECTED: Mutex<Vec<Subscription>> = Mutex::new(Vec::new());

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
    let heir = Heir(std::sync::Arc::new(move |what| {
        late(match what {
            push::Late::Publish { name, length, timeout, packed } => {
                Frame::Late(Late::Publish { name, length: length as u64, timeout, packed }).write()
            }
            push::Late::Delete(name) => Frame::Late(Late::Delete(name)).write(),
        })
    }));
    let mut frame = Channels::new();
    STORE.leave(heir, now(), |parting| write(&parting, &mut frame, &mut say));
    if !frame.is_empty() {
        say(frame.done());
    }
    STORE.retained(now(), |name, message| {
        let mut packed = Vec::new();
        message.pack(now(), &mut packed);
        say(Frame::Zone(RETAINED, name, &packed).write());
    });
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
    if channel.behind > 0 {
        // What is beyond the buffer goes at once where nobody hears the channel: those that are on their way may have to take it still.
        expect(STORE.subscribe(&[channel.name], &Start::Newest, &Mailbox::new(), Options::default(), now()));
    }
    let messages = channel.messages.iter();
    let messages = messages.filter_map(|m| Some((id(m.id), m.order, m.at, Packed::read(m.packed).ok()?)));
    let _ = STORE.settle(&from, messages, now());
}

fn expect(subscription: Result<Subscription, Refused>) {
    EXPECTED.lock().unwrap_or_else(PoisonError::into_inner).extend(subscription.ok());
}

/// All subscribers have come that will.
pub fn expect_no_more() {
    EXPECTED.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
