//! A CONNECT is judged, and becomes a session on its connection. From: the handler, or a WebSocket's first packet. To: `live`.

use super::super::variables::Said;
use super::super::{Conf, hooks, hub, names, publish, redis, succession};
use super::live::{Live, Peer};
use super::offline;
use super::rules::Rules;
use super::session::{Session, Will};
use super::table;
use crate::connection::mqtt::{self, version_of};
use crate::log_error;
use crate::modules::variables::{authorization, basic_credentials};
use crate::request::Request;
use crate::request::headers::{HeaderLine, KnownHeader};
use push::{Keep, Options};
use runtime::timer::sleep;
use std::rc::Rc;
use std::time::Duration;
use wire::mqtt::connect::Connect;
use wire::mqtt::packet::{Wrong, code, is_text};
use wire::mqtt::properties::{self, Properties};
use wire::mqtt::{Version, answer, topic};

/// Bytes of a packet where `client_max_body_size` is 0.
const MAX_PACKET: u64 = 64 * 1024 * 1024;
/// The smallest largest packet: a topic fits.
const MIN_PACKET: u64 = 1024;
/// Messages at QoS 1 that may be under way to a client.
const MAX_WINDOW: u16 = 64;
/// The same from a client: they are dealt with as they come.
const RECEIVE_MAXIMUM: u16 = 1024;

/// How often a client's session is looked for while others come from another process, which takes seconds at most.
const ON_THE_WAY: Duration = Duration::from_millis(10);

/// A client that is let in.
pub(super) struct Opened {
    /// It, and its session.
    pub(super) live: Box<Live>,
    /// What it is told first.
    pub(super) first: Vec<u8>,
}

/// Lets a client in, or says why not.
///
/// # Errors
/// A reason code.
pub(super) async fn open(r: &mut Request, conf: &Conf, bytes: &[u8], connect: &Connect) -> Result<Opened, Wrong> {
    let opened = try_open(r, conf, bytes, connect).await;
    if let Err(Wrong(reason)) = &opened {
        log_error!(r, Info, "a client of MQTT is refused with reason code 0x{reason:02x}");
    }
    opened
}

async fn try_open(r: &mut Request, conf: &Conf, bytes: &[u8], connect: &Connect) -> Result<Opened, Wrong> {
    let version = version_of(connect);
    if !connect.has_good_flags() {
        return Err(Wrong::PROTOCOL);
    }
    let asked = properties::read(connect.properties.of(bytes), properties::OF_CONNECT)?;
    if asked.auth_method {
        return Err(Wrong(code::BAD_AUTH_METHOD));
    }
    let (client, assigned) = name(version, bytes, connect)?;
    let said = Said {
        client: client.clone(),
        user: connect.username.map_or_else(Box::default, |s| s.of(bytes).into()),
        password: connect.password.map_or_else(Box::default, |s| s.of(bytes).into()),
    };
    if !is_text(&said.user) {
        return Err(Wrong(code::BAD_USER));
    }
    let user = owner_of(r, &said.user);
    r.channels().mqtt = Some(Rc::new(said));
    match hooks::status_of_authority(r, conf).await {
        200..300 => {}
        status => return Err(Wrong(answer::reason_of(status))),
    }
    let keep = publish::keep_of(r, conf).ok_or(Wrong(code::UNSPECIFIED))?;
    let may_publish = Rules::of(r, &conf.mqtt_publish);
    let will = will(bytes, connect, keep)?;
    if will.as_ref().is_some_and(|will| !may_publish.allow(&will.topic)) {
        return Err(Wrong(code::NOT_AUTHORIZED));
    }
    let may_subscribe = Rules::of(r, &conf.mqtt_subscribe);
    let (group, backend) = (names::group(r, conf), redis::backend::of(r, conf));
    let key = table::key(&group, &user, &client);
    // Sessions of a worker that has crashed are there from then on.
    hub::store();
    // Its session may be on its way from another process.
    while !connect.is_clean() && succession::expects() && !table::has(&key) {
        sleep(ON_THE_WAY).await;
    }
    let (owner, before) = table::claim(key).await;
    let (mut session, is_present) = match before {
        Some(mut before) if !connect.is_clean() && before.may_hear(&may_subscribe) => {
            before.come();
            (before, true)
        }
        before => {
            // What it was to say when it ends is said now.
            before.into_iter().for_each(|mut before| before.say_will());
            (Box::new(Session::new(group, backend.clone())), false)
        }
    };
    let limit = u32::try_from(conf.mqtt_session_expiry.as_secs()).unwrap_or(u32::MAX);
    let wanted = match version {
        Version::V5 => asked.session_expiry.unwrap_or(0),
        Version::V3 if connect.is_clean() => 0,
        Version::V3 => limit,
    };
    (session.will, session.expiry_s) = (will.map(Box::new), wanted.min(limit));
    let max_in = match *r.conf().core.client_max_body_size {
        0 => MAX_PACKET,
        size => size.clamp(MIN_PACKET, wire::mqtt::MAX_LENGTH as u64),
    };
    let welcome = answer::Welcome {
        session_present: is_present,
        assigned: assigned.then_some(&*client),
        session_expiry: (wanted > limit).then_some(limit),
        keep_alive: None,
        maximum_packet: max_in as u32,
        receive_maximum: RECEIVE_MAXIMUM,
    };
    let mut first = Vec::new();
    answer::welcome(version, &welcome, &mut first);
    let peer = Peer {
        version,
        window: usize::from(asked.receive_maximum.unwrap_or(MAX_WINDOW).min(MAX_WINDOW)),
        max_out: asked.maximum_packet.map_or(usize::MAX, |n| n as usize),
        max_in,
        keep_alive_ms: u64::from(connect.keep_alive) * 1500,
        may_publish,
        may_subscribe,
        keep,
        options: Options {
            existing_only: *conf.existing_only,
            max_subscribers: *conf.max_channel_subscribers,
            accounting: *conf.accounting,
            channel_timeout: conf.channel_timeout.as_secs() as i64,
        },
        max_id_length: usize::try_from(*conf.max_id_length).unwrap_or(usize::MAX),
        max_expiry_s: limit,
        asks: conf.asks_about_topics() || backend.is_some(),
        tells: conf.tells_of_packets(),
        own_rules: conf.has_own_rules(),
        own_group: conf.has_own_group(),
    };
    if r.has_fault() {
        return Err(Wrong(code::UNSPECIFIED));
    }
    let mut live = Live::new(session, owner, peer.shared(), &mut first);
    match live.session.expiry_s {
        // The one before may have been noted.
        0 => offline::over(live.owner.key()),
        _ => live.note(),
    }
    Ok(Opened { live, first })
}

/// The client's name, and whether it has got it here.
fn name(version: Version, bytes: &[u8], connect: &Connect) -> Result<(Box<[u8]>, bool), Wrong> {
    let client = connect.client.of(bytes);
    if !client.is_empty() {
        return if is_text(client) { Ok((client.into(), false)) } else { Err(Wrong(code::BAD_CLIENT_ID)) };
    }
    if version == Version::V3 && !connect.is_clean() {
        // MQTT 3.1.1 section 3.1.3.1: nobody could come back to such a session.
        return Err(Wrong(code::BAD_CLIENT_ID));
    }
    let mut random = [0; 16];
    if rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty()) != Ok(random.len()) {
        return Err(Wrong(code::UNAVAILABLE));
    }
    Ok((format!("auto-{:032x}", u128::from_ne_bytes(random)).into_bytes().into(), true))
}

fn will(bytes: &[u8], connect: &Connect, keep: Keep) -> Result<Option<Will>, Wrong> {
    let Some(will) = connect.last_words else { return Ok(None) };
    if !topic::is_name(will.topic.of(bytes)) {
        return Err(Wrong(code::BAD_TOPIC));
    }
    if will.qos > 1 {
        return Err(Wrong(code::QOS_NOT_SUPPORTED));
    }
    let said: Properties<'_> = properties::read(will.properties.of(bytes), properties::OF_WILL)?;
    Ok(Some(Will {
        topic: will.topic.of(bytes).into(),
        payload: will.payload.of(bytes).into(),
        at_most_once: will.qos == 0,
        retain: will.retain,
        keep,
        delay: said.will_delay,
        expiry: said.message_expiry,
        content_type: said.content_type.into(),
        properties: said.passed_on.into(),
    }))
}

/// For a WebSocket: the name and password of its CONNECT are the request's from now on, if that came with none. If it did, the access phase
/// has judged those, and they stay who the client is: nobody but an authority could judge others.
pub(super) fn note_credentials(r: &mut Request, conf: &Conf, bytes: &[u8], connect: &Connect) -> Result<(), Wrong> {
    if connect.username.is_none() && connect.password.is_none() {
        return Ok(());
    }
    let [user, password] = [connect.username, connect.password].map(|span| span.map_or(&b""[..], |s| s.of(bytes)));
    if authorization(r).is_some() {
        let is_other = basic_credentials(r).is_some_and(|(u, p)| (&*u, &*p) != (user, password));
        let is_judged = conf.asks_about_topics() || !is_other;
        return if is_judged { Ok(()) } else { Err(Wrong(code::BAD_USER)) };
    }
    let mut value = Vec::new();
    mqtt::authorization(Some(user), Some(password), &mut value).map_err(Wrong)?;
    let name = r.arena.push(b"Authorization");
    let value = r.arena.push(&value);
    r.head.headers.head.headers.push(HeaderLine { name, value, known: KnownHeader::Authorization });
    Ok(())
}

/// Whose a session is: the request's user, and the CONNECT's where that is another (`\0` is in no text of MQTT).
fn owner_of(r: &Request, said: &[u8]) -> Box<[u8]> {
    match basic_credentials(r) {
        Some((user, _)) if !user.is_empty() && !said.is_empty() && *user != *said => {
            [&*user, b"\0", said].concat().into()
        }
        Some((user, _)) if !user.is_empty() => user.into(),
        _ => said.into(),
    }
}
