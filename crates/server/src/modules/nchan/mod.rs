//! Channels (nchan's directives): locations that publish to them, subscribe to them, or both. Who asks how, and what is said, is in the files
//! beside this one; the channels themselves are `push`'s, and docs/push.md shows how the parts stand together.

mod answer;
mod deflate;
mod feed;
mod frames;
mod groups;
mod handler;
mod held;
mod hooks;
mod hub;
mod info;
pub mod journal;
pub mod mqtt;
mod names;
mod parked;
mod publish;
pub mod redis;
mod subscribe;
pub mod succession;
mod variables;
mod websocket;

use super::core;
use crate::config::complex::Complex;
use crate::config::setting::Setting;
use crate::config::{ConfigLevel, Directive, Scope, http, setters};
use crate::request::phases::Content;
use conf::{Node, Problem, value};
use deflate::Deflation;
pub use hub::go_on_after_crash;
pub use parked::arrive;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
pub use variables::{Context, VARIABLES};

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("nchan_publisher", publisher),
    http("nchan_publisher_location", publisher),
    http("push_publisher", publisher),
    http("nchan_subscriber", subscriber),
    http("nchan_subscriber_location", subscriber),
    http("push_subscriber", subscriber),
    http("nchan_pubsub", pubsub),
    http("nchan_pubsub_location", pubsub),
    http("nchan_channel_id", |s, n| ids(s, n, true, true)),
    http("nchan_pubsub_channel_id", |s, n| ids(s, n, true, true)),
    http("nchan_publisher_channel_id", |s, n| ids(s, n, true, false)),
    http("nchan_pub_channel_id", |s, n| ids(s, n, true, false)),
    http("nchan_subscriber_channel_id", |s, n| ids(s, n, false, true)),
    http("nchan_sub_channel_id", |s, n| ids(s, n, false, true)),
    http("nchan_channel_id_split_delimiter", |s, n| text(&mut s.level.conf.nchan.split_delimiter, n)),
    http("nchan_channel_group", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.group, n)),
    http("push_channel_group", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.group, n)),
    http("nchan_channel_group_accounting", |s, n| setters::flag(&mut s.level.conf.nchan.accounting, n)),
    http("nchan_group_location", groups::location),
    http("nchan_group_max_channels", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.max_channels, n)),
    http("nchan_group_max_messages", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.max_messages, n)),
    http("nchan_group_max_messages_memory", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.max_memory, n)),
    http("nchan_group_max_messages_disk", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.max_disk, n)),
    http("nchan_group_max_subscribers", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.max_subscribers, n)),
    http("nchan_message_timeout", message_timeout),
    http("push_message_timeout", message_timeout),
    http("nchan_message_buffer_length", buffer_length),
    http("nchan_message_max_buffer_length", buffer_length),
    http("push_max_message_buffer_length", buffer_length),
    http("push_message_buffer_length", buffer_length),
    http("nchan_store_messages", |s, n| setters::flag(&mut s.level.conf.nchan.store_messages, n)),
    http("push_store_messages", |s, n| setters::flag(&mut s.level.conf.nchan.store_messages, n)),
    http("nchan_subscriber_first_message", first_message),
    http("nchan_subscriber_timeout", |s, n| setters::seconds(&mut s.level.conf.nchan.subscriber_timeout, n)),
    http("push_subscriber_timeout", |s, n| setters::seconds(&mut s.level.conf.nchan.subscriber_timeout, n)),
    http("nchan_subscriber_last_message_id", |s, n| {
        let all = n.args.iter().map(|w| Complex::compile(s.build, w)).collect::<Result<Vec<_>, _>>()?;
        setters::value(&mut s.level.conf.nchan.last_message_id, n, Arc::new(all))
    }),
    http("nchan_subscriber_compound_etag_message_id", |s, n| setters::flag(&mut s.level.conf.nchan.compound_etag, n)),
    http("nchan_subscriber_message_id_custom_etag_header", |s, n| text(&mut s.level.conf.nchan.etag_header, n)),
    http("nchan_subscriber_http_raw_stream_separator", |s, n| {
        let mut separator = n.args[0].text.clone();
        if !separator.is_empty() && !separator.ends_with(b"\n") {
            separator.push(b'\n');
        }
        setters::value(&mut s.level.conf.nchan.separator, n, separator.into())
    }),
    http("nchan_subscribe_existing_channels_only", |s, n| setters::flag(&mut s.level.conf.nchan.existing_only, n)),
    http("push_authorized_channels_only", |s, n| setters::flag(&mut s.level.conf.nchan.existing_only, n)),
    http("nchan_websocket_ping_interval", |s, n| setters::seconds(&mut s.level.conf.nchan.websocket_ping, n)),
    http("nchan_websocket_client_heartbeat", |s, n| {
        let heartbeat = (n.args[0].text.as_slice().into(), n.args[1].text.as_slice().into());
        setters::value(&mut s.level.conf.nchan.heartbeat, n, Some(heartbeat))
    }),
    http("nchan_deflate_message_for_websocket", |s, n| setters::flag(&mut s.level.conf.nchan.deflate, n)),
    http("nchan_permessage_deflate_compression_level", |s, n| bounded(&mut s.level.conf.nchan.deflate_level, n, 0..=9)),
    http("nchan_permessage_deflate_compression_window", |s, n| {
        bounded(&mut s.level.conf.nchan.deflate_window, n, 9..=15)
    }),
    http("nchan_permessage_deflate_compression_memlevel", memory_level),
    http("nchan_permessage_deflate_compression_strategy", strategy),
    http("nchan_longpoll_multipart_response", |s, n| {
        let words = [("off", Together::Off), ("on", Together::On), ("raw", Together::Raw)];
        let word = words.iter().find(|(word, _)| n.args[0].text.eq_ignore_ascii_case(word.as_bytes()));
        let (_, together) = word.ok_or_else(|| setters::invalid(n))?;
        setters::value(&mut s.level.conf.nchan.longpoll_multipart, n, *together)
    }),
    http("nchan_subscriber_info", groups::subscriber_info),
    http("nchan_subscriber_info_string", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.info_string, n)),
    http("nchan_redis_upstream_stats", groups::upstream_stats),
    http("nchan_eventsource_event", |s, n| text(&mut s.level.conf.nchan.eventsource_event, n)),
    http("nchan_eventsource_ping_interval", |s, n| setters::seconds(&mut s.level.conf.nchan.eventsource_ping, n)),
    http("nchan_eventsource_ping_comment", |s, n| line(&mut s.level.conf.nchan.ping_comment, n)),
    http("nchan_eventsource_ping_event", |s, n| line(&mut s.level.conf.nchan.ping_event, n)),
    http("nchan_eventsource_ping_data", |s, n| line(&mut s.level.conf.nchan.ping_data, n)),
    http("nchan_authorize_request", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.authorize, n)),
    http("nchan_publisher_upstream_request", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.upstream, n)),
    http("nchan_subscribe_request", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.subscribe, n)),
    http("nchan_unsubscribe_request", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.unsubscribe, n)),
    http("nchan_channel_events_channel_id", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.events_id, n)),
    http("nchan_channel_event_string", |s, n| setters::complex(s.build, &mut s.level.conf.nchan.event_string, n)),
    http("nchan_access_control_allow_origin", |s, n| {
        let value = Complex::compile(s.build, &n.args[0])?;
        setters::value(&mut s.level.conf.nchan.allow_origin, n, Some(value))
    }),
    http("nchan_access_control_allow_credentials", |s, n| setters::flag(&mut s.level.conf.nchan.allow_credentials, n)),
    http("nchan_max_channel_id_length", |s, n| setters::number(&mut s.level.conf.nchan.max_id_length, n)),
    http("push_max_channel_id_length", |s, n| setters::number(&mut s.level.conf.nchan.max_id_length, n)),
    http("nchan_max_channel_subscribers", |s, n| setters::number(&mut s.level.conf.nchan.max_channel_subscribers, n)),
    http("push_max_channel_subscribers", |s, n| setters::number(&mut s.level.conf.nchan.max_channel_subscribers, n)),
    http("nchan_channel_timeout", |s, n| setters::seconds(&mut s.level.conf.nchan.channel_timeout, n)),
    http("push_channel_timeout", |s, n| setters::seconds(&mut s.level.conf.nchan.channel_timeout, n)),
    http("nchan_shared_memory_size", memory),
    http("nchan_max_reserved_memory", memory),
    http("push_max_reserved_memory", memory),
    http("nchan_message_temp_path", |s, n| {
        s.build.note(n);
        Ok(())
    }),
    http("nchan_stub_status", |s, _| {
        s.level.conf.core.handler = Some(Content::Now(groups::stub_status));
        Ok(())
    }),
];

/// How publishers may come to a location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publishers {
    http: bool,
    websocket: bool,
    /// It is a publisher's alone: what is sent in frames is answered.
    alone: bool,
}

/// How subscribers may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subscribers {
    websocket: bool,
    eventsource: bool,
    longpoll: bool,
    intervalpoll: bool,
    chunked: bool,
    multipart: bool,
    raw: bool,
}

impl Subscribers {
    /// Those of a location that names none.
    const USUAL: Subscribers = Subscribers {
        websocket: true,
        eventsource: true,
        longpoll: true,
        intervalpoll: false,
        chunked: true,
        multipart: true,
        raw: false,
    };

    fn any(self) -> bool {
        self != Subscribers::default()
    }
}

/// Whether a long-poll is answered with all messages that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// One message.
    Off,
    /// As multipart/mixed.
    On,
    /// With `nchan_subscriber_http_raw_stream_separator`.
    Raw,
}

/// What a client sends for a heartbeat, and what it gets for it.
type Heartbeat = (Box<[u8]>, Box<[u8]>);

crate::merged_values! {
    /// What levels inherit.
    pub struct Settings {
        /// `nchan_publisher_channel_id`
        publisher_ids: Arc<Vec<Complex>> = Arc::default(),
        /// `nchan_subscriber_channel_id`
        subscriber_ids: Arc<Vec<Complex>> = Arc::default(),
        /// `nchan_channel_id_split_delimiter`
        split_delimiter: Arc<[u8]> = Arc::default(),
        /// `nchan_channel_group`
        group: Complex = Complex::default(),
        /// `nchan_channel_group_accounting`
        accounting: bool = false,
        /// `nchan_group_max_channels`
        max_channels: Complex = Complex::default(),
        /// `nchan_group_max_messages`
        max_messages: Complex = Complex::default(),
        /// `nchan_group_max_messages_memory`
        max_memory: Complex = Complex::default(),
        /// `nchan_group_max_messages_disk`
        max_disk: Complex = Complex::default(),
        /// `nchan_group_max_subscribers`
        max_subscribers: Complex = Complex::default(),
        /// `nchan_message_timeout`
        message_timeout: Complex = Complex::fixed(b"1h"),
        /// `nchan_message_buffer_length`
        buffer_length: Complex = Complex::fixed(b"10"),
        /// `nchan_store_messages`
        store_messages: bool = true,
        /// `nchan_subscriber_first_message`: 1 the oldest, 0 the next, and so on.
        first_message: i64 = 1,
        /// `nchan_subscriber_timeout`
        subscriber_timeout: Duration = Duration::ZERO,
        /// `nchan_subscriber_last_message_id`; empty: `$http_last_event_id` and `$arg_last_event_id`.
        last_message_id: Arc<Vec<Complex>> = Arc::default(),
        /// `nchan_subscriber_compound_etag_message_id`
        compound_etag: bool = false,
        /// `nchan_subscriber_message_id_custom_etag_header`; empty: `Etag`.
        etag_header: Arc<[u8]> = Arc::default(),
        /// `nchan_subscriber_http_raw_stream_separator`
        separator: Arc<[u8]> = Arc::from(&b"\n"[..]),
        /// `nchan_subscribe_existing_channels_only`
        existing_only: bool = false,
        /// `nchan_websocket_ping_interval`
        websocket_ping: Duration = Duration::ZERO,
        /// `nchan_websocket_client_heartbeat`
        heartbeat: Option<Heartbeat> = None,
        /// `nchan_deflate_message_for_websocket`
        deflate: bool = false,
        /// `nchan_permessage_deflate_compression_level`
        deflate_level: u64 = 6,
        /// `nchan_permessage_deflate_compression_window`, the binary logarithm of its size.
        deflate_window: u64 = 10,
        /// `nchan_longpoll_multipart_response`
        longpoll_multipart: Together = Together::Off,
        /// `nchan_subscriber_info_string`; empty: the usual one.
        info_string: Complex = Complex::default(),
        /// `nchan_redis_upstream_stats`
        redis_stats: Complex = Complex::default(),
        /// `nchan_eventsource_event`
        eventsource_event: Arc<[u8]> = Arc::default(),
        /// `nchan_eventsource_ping_interval`
        eventsource_ping: Duration = Duration::ZERO,
        /// `nchan_eventsource_ping_comment`
        ping_comment: Arc<[u8]> = Arc::default(),
        /// `nchan_eventsource_ping_event`
        ping_event: Arc<[u8]> = Arc::from(&b"ping"[..]),
        /// `nchan_eventsource_ping_data`
        ping_data: Arc<[u8]> = Arc::default(),
        /// `nchan_authorize_request`
        authorize: Complex = Complex::default(),
        /// `nchan_publisher_upstream_request`
        upstream: Complex = Complex::default(),
        /// `nchan_subscribe_request`
        subscribe: Complex = Complex::default(),
        /// `nchan_unsubscribe_request`
        unsubscribe: Complex = Complex::default(),
        /// `nchan_channel_events_channel_id`
        events_id: Complex = Complex::default(),
        /// `nchan_channel_event_string`; empty: the event and the channel's id.
        event_string: Complex = Complex::default(),
        /// `nchan_access_control_allow_origin`; none: every origin may come.
        allow_origin: Option<Complex> = None,
        /// `nchan_access_control_allow_credentials`
        allow_credentials: bool = true,
        /// `nchan_max_channel_id_length`
        max_id_length: u64 = 1024,
        /// `nchan_max_channel_subscribers`
        max_channel_subscribers: u64 = 0,
        /// `nchan_channel_timeout`
        channel_timeout: Duration = Duration::from_secs(5),
        /// `nchan_mqtt_retain`
        mqtt_retain: bool = false,
        /// `nchan_use_redis`
        use_redis: bool = false,
        /// `nchan_redis_url`
        redis_url: Option<Arc<RedisUrl>> = None,
        /// `nchan_redis_pass`
        redis_pass: Option<Box<str>> = None,
        /// `nchan_redis_pass_inheritable`
        redis_inheritable: bool = true,
        /// `nchan_redis_namespace`
        redis_namespace: Box<[u8]> = Box::default(),
        /// `nchan_redis_ping_interval`
        redis_ping: Duration = Duration::from_secs(240),
        /// `nchan_redis_storage_mode`
        redis_mode: redis::given::Mode = redis::given::Mode::Distributed,
        /// `nchan_redis_nostore_fastpublish`
        redis_fast: bool = false,
        /// `nchan_redis_idle_channel_cache_timeout`
        redis_idle: Duration = Duration::from_secs(30),
        /// `nchan_mqtt_publish`: filters of topics; none: all.
        mqtt_publish: Arc<Vec<mqtt::Filter>> = Arc::default(),
        /// `nchan_mqtt_subscribe`: the same.
        mqtt_subscribe: Arc<Vec<mqtt::Filter>> = Arc::default(),
        /// `nchan_mqtt_session_expiry`: as long as a session stays at most when its client is gone.
        mqtt_session_expiry: Duration = Duration::from_secs(3600),
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    publishers: Publishers,
    subscribers: Subscribers,
    /// What `nchan_group_location` lets clients do.
    group_methods: groups::Methods,
    /// `nchan_mqtt`
    mqtt: bool,
    /// The Redis of `nchan_use_redis`.
    redis: Option<Arc<redis::conf::Redis>>,
}

/// What an address says, and how it is spoken to.
type RedisUrl = (redis::given::Given, Option<Arc<rustls::ClientConfig>>);

impl Conf {
    /// Whether clients may subscribe here.
    pub fn has_subscribers(&self) -> bool {
        self.subscribers.any()
    }

    /// How messages are compressed, if they are.
    fn deflation(&self) -> Option<Deflation> {
        let (level, window) = (*self.deflate_level as u32, *self.deflate_window as u8);
        self.deflate.then_some(Deflation { level, window })
    }

    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        let own_pass = self.settings.redis_pass.is_set();
        self.settings.merge(&parent.settings);
        if !own_pass && !*parent.settings.redis_inheritable {
            self.settings.redis_pass = Settings::default().redis_pass;
        }
        self.settle_redis();
    }
}

crate::reads_as_settings!(Conf);
crate::inherited!(Conf, |conf| {
    let names_nobody = conf.publishers == Publishers::default() && !conf.subscribers.any();
    names_nobody && conf.group_methods == groups::Methods::default() && !conf.mqtt
});

/// What the module keeps once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    /// `nchan_shared_memory_size`
    memory: Option<u64>,
    /// The usual `nchan_subscriber_info_string`, where some location shows them.
    info: Option<Complex>,
    /// `upstream` blocks of Redis.
    pub(super) redis: Vec<(Box<str>, Arc<redis::conf::Redis>)>,
    /// Where they are named.
    pub(super) redis_named: Vec<Node>,
}

/// Bytes of channels: messages, names, groups, and what is kept for subscribers that are gone.
pub fn channel_bytes() -> u64 {
    hub::STORE.sums().memory
}

impl Main {
    /// `nchan_shared_memory_size`
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }
}

/// A number within limits.
fn bounded(setting: &mut Setting<u64>, node: &Node, range: RangeInclusive<u64>) -> Result<(), Problem> {
    setters::number(setting, node)?;
    match range.contains(setting) {
        true => Ok(()),
        false => Err(node.problem(format!("value must be between {} and {}", range.start(), range.end()))),
    }
}

/// How much memory a compressor takes (1 to 9): of no effect, since a thread has one.
fn memory_level(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let level = value::number(&node.args[0].text).filter(|level| (1..=9).contains(level));
    level.ok_or_else(|| setters::invalid(node))?;
    scope.build.note(node);
    Ok(())
}

/// zlib's strategies: of no effect, since the compressor chooses by itself.
fn strategy(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    const ALL: [&str; 5] = ["default", "filtered", "huffman-only", "rle", "fixed"];
    if !ALL.iter().any(|name| name.as_bytes() == node.args[0].text) {
        return Err(setters::invalid(node));
    }
    scope.build.note(node);
    Ok(())
}

fn publisher(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut publishers = Publishers { alone: true, ..Publishers::default() };
    for word in &node.args {
        match word.text.to_ascii_lowercase().as_slice() {
            b"http" => publishers.http = true,
            b"websocket" | b"ws" | b"websockets" => publishers.websocket = true,
            _ => return Err(node.problem(format!("invalid {} value: {}", node.name.as_str(), word.as_str()))),
        }
    }
    if node.args.is_empty() {
        (publishers.http, publishers.websocket) = (true, true);
    }
    scope.level.conf.nchan.publishers = publishers;
    takes_requests(scope.level);
    Ok(())
}

fn subscriber(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut subscribers = Subscribers::default();
    for word in &node.args {
        if !names_subscriber(&mut subscribers, &word.text) {
            return Err(node.problem(format!("invalid {} value: {}", node.name.as_str(), word.as_str())));
        }
    }
    scope.level.conf.nchan.subscribers = if node.args.is_empty() { Subscribers::USUAL } else { subscribers };
    takes_requests(scope.level);
    Ok(())
}

fn pubsub(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (mut publishers, mut subscribers) = (Publishers::default(), Subscribers::default());
    for word in &node.args {
        let lower = word.text.to_ascii_lowercase();
        match lower.as_slice() {
            b"http" => {
                publishers.http = true;
                subscribers = Subscribers { websocket: subscribers.websocket, ..Subscribers::USUAL };
            }
            b"websocket" | b"ws" | b"websockets" => (publishers.websocket, subscribers.websocket) = (true, true),
            other if names_subscriber(&mut subscribers, other) => publishers.http = true,
            _ => return Err(node.problem(format!("invalid {} value: {}", node.name.as_str(), word.as_str()))),
        }
    }
    if node.args.is_empty() {
        publishers = Publishers { http: true, websocket: true, alone: false };
        subscribers = Subscribers::USUAL;
    }
    let conf = &mut scope.level.conf.nchan;
    (conf.publishers, conf.subscribers) = (publishers, subscribers);
    takes_requests(scope.level);
    Ok(())
}

fn names_subscriber(subscribers: &mut Subscribers, word: &[u8]) -> bool {
    let which = match word.to_ascii_lowercase().as_slice() {
        b"websocket" | b"ws" | b"websockets" => &mut subscribers.websocket,
        b"eventsource" | b"event-source" | b"es" | b"sse" => &mut subscribers.eventsource,
        b"longpoll" | b"long-poll" => &mut subscribers.longpoll,
        b"intervalpoll" | b"interval-poll" | b"poll" | b"http" => &mut subscribers.intervalpoll,
        b"chunked" | b"http-chunked" => &mut subscribers.chunked,
        b"multipart" | b"multipart/mixed" | b"http-multipart" | b"multipart-mixed" => &mut subscribers.multipart,
        b"http-raw-stream" => &mut subscribers.raw,
        _ => return false,
    };
    *which = true;
    true
}

fn takes_requests(level: &mut ConfigLevel) {
    let core: &mut core::Conf = &mut level.conf.core;
    core.handler = Some(Content::Later(handler::run));
}

fn ids(scope: &mut Scope<'_, '_>, node: &Node, publisher: bool, subscriber: bool) -> Result<(), Problem> {
    let all = node.args.iter().map(|w| Complex::compile(scope.build, w)).collect::<Result<Vec<_>, _>>()?;
    let (all, settings) = (Arc::new(all), &mut scope.level.conf.nchan.settings);
    let of = [(publisher, &mut settings.publisher_ids), (subscriber, &mut settings.subscriber_ids)];
    let mut is_repeated = false;
    for (_, setting) in of.into_iter().filter(|(is_meant, _)| *is_meant) {
        is_repeated |= setting.is_set();
        setting.force(all.clone());
    }
    if is_repeated {
        // nchan takes the last line without a word.
        scope.build.problems.push(node.warning(format!("\"{}\" replaces the one before it", node.name.as_str())));
    }
    Ok(())
}

/// A number or a time may also be a variable's: what is written without one is checked now.
fn checked(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    setting: fn(&mut Conf) -> &mut crate::config::setting::Setting<Complex>,
    is_good: fn(&[u8]) -> bool,
) -> Result<(), Problem> {
    let compiled = Complex::compile(scope.build, &node.args[0])?;
    if compiled.as_fixed().is_some_and(|text| !is_good(text)) {
        return Err(setters::invalid(node));
    }
    setters::value(setting(&mut scope.level.conf.nchan), node, compiled)
}

fn message_timeout(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    checked(scope, node, |c| &mut c.settings.message_timeout, |text| value::seconds(text).is_some())
}

fn buffer_length(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    checked(scope, node, |c| &mut c.settings.buffer_length, |text| value::number(text).is_some())
}

fn first_message(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = node.args[0].text.as_slice();
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let number = || value::number(digits).and_then(|n| i64::try_from(n).ok());
    let first = match text {
        b"oldest" => Some(1),
        b"newest" => Some(0),
        _ if digits.len() < text.len() => number().map(|n| -n),
        _ => number(),
    };
    let first = first
        .ok_or_else(|| node.problem(format!("invalid {} value: {}", node.name.as_str(), node.args[0].as_str())))?;
    setters::value(&mut scope.level.conf.nchan.first_message, node, first)
}

fn text(setting: &mut crate::config::setting::Setting<Arc<[u8]>>, node: &Node) -> Result<(), Problem> {
    setters::value(setting, node, node.args[0].text.as_slice().into())
}

fn line(setting: &mut crate::config::setting::Setting<Arc<[u8]>>, node: &Node) -> Result<(), Problem> {
    if memchr::memchr2(b'\r', b'\n', &node.args[0].text).is_some() {
        return Err(node.problem(format!("\"{}\" must not have newlines", node.name.as_str())));
    }
    text(setting, node)
}

fn memory(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let bytes = value::size(&node.args[0].text).ok_or_else(|| setters::invalid(node))?;
    scope.build.main.nchan.memory = Some(bytes);
    Ok(())
}
