//! A subscriber's place in its channels.

use crate::channel::{Channel, DELETED, Found};
use crate::id::{Id, Position, write_tags};
use crate::mailbox::Mailbox;
use crate::message::Message;
use std::sync::Arc;

/// Where a subscriber begins.
#[derive(Clone, Debug)]
pub enum Start<'a> {
    /// With the next message that is published.
    Newest,
    /// With a number of the buffer's messages: 1 the oldest, -1 the newest.
    Number(i64),
    /// After what it has had.
    After(&'a Position),
}

impl Start<'_> {
    /// With the oldest message of the buffer.
    pub const OLDEST: Start<'static> = Start::Number(1);
}

/// What a subscriber may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// It does not make the channels that it names.
    pub existing_only: bool,
    /// A channel has at most so many; 0: any number.
    pub max_subscribers: u64,
    /// Limits of the group hold.
    pub accounting: bool,
    /// How long a channel stays when nobody needs it, s.
    pub channel_timeout: i64,
}

/// What comes next for a subscriber.
#[derive(Debug)]
pub enum Next {
    /// A message; [`Subscription::write_tags`] says its id.
    Message(Arc<Message>),
    /// Nothing yet: its thread's mailbox is told when there is.
    Nothing,
    /// A channel was deleted.
    Deleted,
    /// It is so far behind that messages it has not had are gone.
    Lost,
}

/// A subscriber. It is counted as one until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    places: Places,
    mailbox: Arc<Mailbox>,
    /// The channel of the message that was taken last.
    active: u32,
}

#[derive(Debug)]
pub(crate) struct Place {
    channel: Arc<Channel>,
    after: Id,
    /// [`Channel::latest`] when there was nothing more to take.
    seen: u64,
}

/// Where the subscriber of one channel stands, for who keeps millions of them in few bytes. It counts in its channel, and its thread's mailbox is
/// told, until it is a subscription again: whoever lets go of it makes it one first.
#[derive(Debug)]
pub struct Seat {
    /// The channel.
    pub channel: Arc<Channel>,
    /// The message that it has had last.
    pub after: Id,
    /// What [`Channel::has_changed`] is asked.
    pub seen: u64,
}

/// One channel is usual, and needs no allocation.
#[derive(Debug)]
enum Places {
    One(Place),
    Many(Box<[Place]>),
}

impl Places {
    fn all(&self) -> &[Place] {
        match self {
            Places::One(place) => std::slice::from_ref(place),
            Places::Many(places) => places,
        }
    }

    fn all_mut(&mut self) -> &mut [Place] {
        match self {
            Places::One(place) => std::slice::from_mut(place),
            Places::Many(places) => places,
        }
    }
}

impl Subscription {
    pub(crate) fn new(mailbox: Arc<Mailbox>, mut places: Vec<Place>) -> Subscription {
        let places = match places.pop() {
            Some(only) if places.is_empty() => Places::One(only),
            last => {
                places.extend(last);
                Places::Many(places.into())
            }
        };
        Subscription { places, mailbox, active: u32::MAX }
    }

    /// Takes it apart, if it has one channel: nothing is left of it here. [`Subscription::of_seat`] is the same backwards.
    pub fn take_seat(&mut self) -> Option<Seat> {
        match std::mem::replace(&mut self.places, Places::Many(Box::default())) {
            Places::One(Place { channel, after, seen }) => Some(Seat { channel, after, seen }),
            many => {
                self.places = many;
                None
            }
        }
    }

    /// What was taken apart by the thread of this mailbox, which it still is the subscriber of.
    pub fn of_seat(seat: Seat, mailbox: Arc<Mailbox>) -> Subscription {
        let Seat { channel, after, seen } = seat;
        Subscription { places: Places::One(Place { channel, after, seen }), mailbox, active: u32::MAX }
    }

    /// Whether it has one channel.
    pub fn is_single(&self) -> bool {
        matches!(self.places, Places::One(_))
    }

    /// Its channels.
    pub fn channels(&self) -> impl ExactSizeIterator<Item = &Arc<Channel>> {
        self.places.all().iter().map(|p| &p.channel)
    }

    /// Where it stands in each of its channels.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (&Arc<Channel>, Id)> {
        self.places.all().iter().map(|p| (&p.channel, p.after))
    }

    /// Of a filter: which message of which channel was the last that it has had, if that was a moment ago.
    pub fn had_by_filter(&self) -> Option<(Arc<[u8]>, Id)> {
        let place = self.places.all().first()?;
        place.channel.origin_of(place.after)
    }

    /// The number of the channel whose message was taken last.
    pub fn active(&self) -> Option<u32> {
        Some(self.active).filter(|active| *active != u32::MAX)
    }

    /// The same as another process said it.
    pub(crate) fn set_active(&mut self, active: Option<u32>) {
        self.active = active.filter(|a| (*a as usize) < self.places.all().len()).unwrap_or(u32::MAX);
    }

    /// Goes on at the thread of another mailbox.
    pub fn move_to(&mut self, mailbox: &Arc<Mailbox>) {
        for place in self.places.all_mut() {
            place.channel.change_reader(&self.mailbox, mailbox);
            // The new thread has not looked yet.
            place.seen = 0;
        }
        self.mailbox = mailbox.clone();
    }

    /// Takes the next message: of several channels the one that was published first.
    pub fn next(&mut self, now: i64) -> Next {
        let mut first: Option<(usize, Arc<Message>)> = None;
        for (number, place) in self.places.all_mut().iter_mut().enumerate() {
            let latest = place.channel.latest();
            if latest == DELETED {
                return Next::Deleted;
            }
            if latest == place.seen {
                continue;
            }
            match place.channel.after(place.after, now) {
                Found::Nothing => place.seen = latest,
                Found::Message(m) => {
                    let sooner = first.as_ref().is_none_or(|(_, f)| (m.id.time, m.order) < (f.id.time, f.order));
                    if sooner {
                        first = Some((number, m));
                    }
                }
                Found::Deleted => return Next::Deleted,
                Found::Lost => return Next::Lost,
            }
        }
        let Some((number, message)) = first else { return Next::Nothing };
        let place = &mut self.places.all_mut()[number];
        (place.after, place.seen) = (message.id, message.order);
        self.active = number as u32;
        Next::Message(message)
    }

    /// The second of its place: that of the last message that it has had.
    pub fn time(&self) -> i64 {
        self.places.all().iter().map(|p| p.after.time).max().unwrap_or(0)
    }

    /// Appends the tags of its place: `Etag`, and what follows the colon of an id.
    pub fn write_tags(&self, out: &mut Vec<u8>) {
        let time = self.time();
        let tags = self.places.all().iter().map(|p| if p.after.time == time { p.after.tag } else { -1 });
        write_tags(tags, usize::try_from(self.active).ok(), out);
    }

    /// Appends the id of its place.
    pub fn write_id(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.time().to_string().as_bytes());
        out.push(b':');
        self.write_tags(out);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        for place in self.places.all() {
            place.channel.detach(&self.mailbox);
        }
    }
}

impl Place {
    pub(crate) fn new(channel: Arc<Channel>, after: Id) -> Place {
        Place { channel, after, seen: 0 }
    }
}

#[cfg(test)]
mod tests {
    /// There are millions of them.
    #[test]
    fn a_subscription_is_small() {
        assert!(size_of::<super::Subscription>() <= 48, "{}", size_of::<super::Subscription>());
    }
}
