//! MQTT 3.1.1 and 5 on the channels: a topic is the id of a channel in the location's group, so that whoever publishes by HTTP is heard by MQTT and the
//! other way round. From: `listen ... mqtt` (`connection::mqtt`) or a WebSocket of subprotocol `mqtt`, in a location with `nchan_mqtt`. To: `held`.
//! Packets are `wire::mqtt`'s; docs/push.md says what is here of a broker.

mod asked;
mod held;
mod link;
mod live;
mod offline;
mod open;
mod parked;
mod queue;
mod rules;
mod session;
mod small;
mod table;

use super::{Conf, answer, groups, handler, websocket};
use crate::config::complex::Complex;
use crate::config::setting::Setting;
use crate::config::{Directive, Scope, http, setters};
use crate::request::Request;
use crate::request::phases::{Content, Verdict, Waiting};
use conf::{Node, Problem};
use link::MqttLink;
use std::sync::Arc;
use wire::mqtt::connect::parse;
use wire::mqtt::{packet::Wrong, topic};

/// The subprotocol (MQTT 5 section 6).
const PROTOCOL: &str = "mqtt";

pub use offline::arrive as session_arrives;
pub(super) use offline::go_on_after_crash;
pub use parked::arrive;

/// One filter of `nchan_mqtt_publish` or `nchan_mqtt_subscribe`.
#[derive(Clone, Debug)]
pub struct Filter {
    value: Complex,
    /// Slashes and wildcards of its text: what a variable brings may not be more of them.
    marks: usize,
}

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("nchan_mqtt", |s, _| {
        s.level.conf.nchan.mqtt = true;
        s.level.conf.core.handler = Some(Content::Later(run));
        Ok(())
    }),
    http("nchan_mqtt_publish", |s, n| filters(s, n, |c| &mut c.settings.mqtt_publish)),
    http("nchan_mqtt_subscribe", |s, n| filters(s, n, |c| &mut c.settings.mqtt_subscribe)),
    http("nchan_mqtt_retain", |s, n| setters::flag(&mut s.level.conf.nchan.mqtt_retain, n)),
    http("nchan_mqtt_session_expiry", |s, n| setters::seconds(&mut s.level.conf.nchan.mqtt_session_expiry, n)),
];

/// Filters of topics, which may have variables; `off`: there are none.
fn filters(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    setting: fn(&mut Conf) -> &mut Setting<Arc<Vec<Filter>>>,
) -> Result<(), Problem> {
    let is_off = matches!(node.args.as_slice(), [word] if *word == "off");
    let mut all = Vec::with_capacity(node.args.len());
    for word in &node.args {
        let value = if is_off { Complex::fixed(b"") } else { Complex::compile(scope.build, word)? };
        if !is_off && value.as_fixed().is_some_and(|filter| !topic::is_filter(filter)) {
            return Err(node.problem(format!("\"{}\" is no filter of topics", word.as_str())));
        }
        let marks = if is_off { 0 } else { rules::marks(&word.text) };
        all.push(Filter { value, marks });
    }
    setters::value(setting(&mut scope.level.conf.nchan), node, Arc::new(all))
}

impl Conf {
    /// Whether an authority is asked about topics.
    fn asks_about_topics(&self) -> bool {
        !self.authorize.is_empty()
    }

    /// Whether each client may have topics of its own.
    fn has_own_rules(&self) -> bool {
        self.mqtt_publish.iter().chain(self.mqtt_subscribe.iter()).any(|filter| filter.value.as_fixed().is_none())
    }

    /// Whether each client may have a group of its own.
    fn has_own_group(&self) -> bool {
        self.group.as_fixed().is_none()
    }

    /// Whether others are asked about messages, or told of subscriptions.
    fn tells_of_packets(&self) -> bool {
        [&self.upstream, &self.subscribe, &self.unsubscribe, &self.events_id].iter().any(|whom| !whom.is_empty())
    }
}

/// The content handler.
fn run(r: &mut Request) -> Waiting<'_> {
    Box::pin(async move { handle(r).await.unwrap_or_else(|verdict| verdict) })
}

async fn handle(r: &mut Request) -> Result<Verdict, Verdict> {
    let snapshot = r.snapshot.clone();
    let conf = &*snapshot.location(r.location).conf.nchan;
    r.answer.disable_not_modified = true;
    if !answer::admit_origin(r, conf) {
        return Ok(answer::empty(r, 403));
    }
    groups::set_limits(r, conf)?;
    if r.downstream.http1().is_some_and(|http| http.mqtt.is_some()) {
        return plain(r, conf).await;
    }
    if !handler::is_websocket(r) {
        return Ok(answer::plain(r, 400, "This is for MQTT over WebSocket."));
    }
    if !websocket::wants(r, PROTOCOL.as_bytes()) {
        return Ok(answer::plain(r, 400, "No \"mqtt\" in Sec-WebSocket-Protocol."));
    }
    websocket::shake_hands(r, Some(PROTOCOL), None).await?;
    Ok(held::wait_for_connect(r))
}

/// A client of `listen ... mqtt`: its CONNECT stands behind the head.
async fn plain(r: &mut Request, conf: &Conf) -> Result<Verdict, Verdict> {
    let Some(http) = r.downstream.http1_mut() else { return Err(Verdict::Broken) };
    let bytes = http.unread().to_vec();
    let Ok(Some(connect)) = parse(&bytes) else { return Err(Verdict::Status(400)) };
    http.consume(connect.size);
    let opened = open::open(r, conf, &bytes[..connect.size], &connect).await;
    if let Err(Wrong(reason)) = opened
        && let Some(http) = r.downstream.http1_mut()
        && let Some(handshake) = &mut http.mqtt
    {
        handshake.reason = reason;
    }
    match opened {
        Ok(opened) => {
            r.answer.headers.status = 101;
            r.send_header()?;
            Ok(held::begin(r, MqttLink::plain(), opened))
        }
        Err(_) => Ok(answer::empty(r, 403)),
    }
}
