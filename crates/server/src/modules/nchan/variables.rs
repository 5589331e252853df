//! What a request knows of its channels, and the variables that say it.

use super::hub;
use crate::config::variables::Builtin;
use crate::request::held::{Reader, Writer};
use crate::request::{Request, Text};
use crate::text;
use std::rc::Rc;

/// What a request does with channels. Its subrequests (`nchan_authorize_request` and its like) see the same.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The ids of its channels, without their group.
    pub(super) ids: Rc<[Box<[u8]>]>,
    /// `longpoll`, `websocket` ...
    pub(super) subscriber: &'static str,
    /// `http` or `websocket`.
    pub(super) publisher: &'static str,
    /// The id that the client came with.
    pub(super) before: Vec<u8>,
    /// The id of the message that it gets.
    pub(super) message: Vec<u8>,
    /// What has happened, for the text of an event.
    pub(super) event: &'static str,
    /// Who a client of MQTT says it is.
    pub(super) mqtt: Option<Rc<Said>>,
}

/// Who a client of MQTT says it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    pub(super) client: Box<[u8]>,
    pub(super) user: Box<[u8]>,
    pub(super) password: Box<[u8]>,
}

/// The kinds of subscribers and publishers, by number.
const KINDS: [&str; 10] = [
    "",
    "longpoll",
    "intervalpoll",
    "websocket",
    "eventsource",
    "http-chunked",
    "http-multipart",
    "http-raw-stream",
    "http",
    "mqtt",
];

impl Context {
    /// Writes it down, as a request does that is put aside.
    pub fn write(&self, w: &mut Writer) {
        for kind in [self.subscriber, self.publisher] {
            w.number(KINDS.iter().position(|k| *k == kind).unwrap_or(0) as u64);
        }
        w.bytes(&self.before);
        w.bytes(&self.message);
        w.number(self.ids.len() as u64);
        self.ids.iter().for_each(|id| w.bytes(id));
        w.flag(self.mqtt.is_some());
        if let Some(said) = &self.mqtt {
            [&said.client, &said.user, &said.password].into_iter().for_each(|text| w.bytes(text));
        }
    }

    /// What was written.
    pub fn read(r: &mut Reader<'_>) -> Option<Context> {
        let mut kind = || KINDS.get(r.number()? as usize).copied();
        let (subscriber, publisher) = (kind()?, kind()?);
        let (before, message) = (r.bytes()?.to_vec(), r.bytes()?.to_vec());
        let ids = r.list(|r| r.bytes().map(Box::from))?;
        let mqtt = match r.flag()? {
            false => None,
            true => {
                let mut text = || r.bytes().map(Box::from);
                Some(Rc::new(Said { client: text()?, user: text()?, password: text()? }))
            }
        };
        Some(Context { ids, subscriber, publisher, before, message, event: "", mqtt })
    }
}

impl Request {
    /// What the request does with channels, to be changed.
    pub(super) fn channels(&mut self) -> &mut Context {
        Rc::make_mut(self.ctx.nchan.get_or_insert_default())
    }
}

const fn value(name: &'static str, evaluate: fn(&mut Request) -> Option<Text>) -> Builtin {
    Builtin { name, evaluate, volatile: true, assign: None }
}

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    value("nchan_channel_id", |r| {
        let ids = r.ctx.nchan.clone()?.ids.join(&b'/');
        (!ids.is_empty()).then(|| r.text(&ids))
    }),
    value("nchan_channel_id1", |r| id(r, 0)),
    value("nchan_channel_id2", |r| id(r, 1)),
    value("nchan_channel_id3", |r| id(r, 2)),
    value("nchan_channel_id4", |r| id(r, 3)),
    value("nchan_subscriber_type", |r| said(r, |c| c.subscriber.as_bytes())),
    value("nchan_publisher_type", |r| said(r, |c| c.publisher.as_bytes())),
    value("nchan_prev_message_id", |r| said(r, |c| &c.before)),
    value("nchan_message_id", |r| said(r, |c| &c.message)),
    value("nchan_channel_event", |r| said(r, |c| c.event.as_bytes())),
    value("nchan_mqtt_client_id", |r| said(r, |c| c.mqtt.as_ref().map_or(b"", |m| &m.client))),
    value("nchan_mqtt_username", |r| said(r, |c| c.mqtt.as_ref().map_or(b"", |m| &m.user))),
    value("nchan_mqtt_password", |r| said(r, |c| c.mqtt.as_ref().map_or(b"", |m| &m.password))),
    value("nchan_version", |_| Some(Text::from("1.3.6"))),
    value("nchan_stub_status_total_published_messages", |r| Some(text!(r, "{}", hub::store().sums().published))),
    value("nchan_stub_status_stored_messages", |r| Some(text!(r, "{}", hub::store().sums().messages))),
    value("nchan_stub_status_shared_memory_used", |r| Some(text!(r, "{}", hub::store().sums().memory))),
    value("nchan_stub_status_channels", |r| Some(text!(r, "{}", hub::store().sums().channels))),
    value("nchan_stub_status_subscribers", |r| Some(text!(r, "{}", hub::store().sums().subscribers))),
];

fn id(r: &mut Request, number: usize) -> Option<Text> {
    let context = r.ctx.nchan.clone()?;
    let id = context.ids.get(number)?;
    Some(r.text(id))
}

fn said(r: &mut Request, what: fn(&Context) -> &[u8]) -> Option<Text> {
    let context = r.ctx.nchan.clone()?;
    let text = what(&context);
    (!text.is_empty()).then(|| r.text(text))
}
