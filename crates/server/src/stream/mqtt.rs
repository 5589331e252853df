//! MQTT in a session: who the client says it is, before a peer is chosen (`mqtt_preread`), and its CONNECT with other words in it
//! (`mqtt_set_connect`). Only this first packet is looked at: what follows goes its way unread. From: the preread phase. To: `proxy`.

use super::StreamSession;
use super::preread::read_until;
use crate::log_error;
use crate::modules::stream_mqtt::Field;
use crate::stream::facts::Said;
use crate::stream::facts::facts;
use wire::mqtt::connect::{Changes, parse};

/// `mqtt_preread`: reads until the CONNECT is whole, or until it is clear that there is none. The error is the session's status.
pub(super) async fn preread(session: &mut StreamSession) -> Result<(), u16> {
    let limit = *session.r.conf().stream_core.preread_buffer_size;
    let look = |bytes: &[u8]| match parse(bytes) {
        Ok(None) => None,
        Ok(Some(connect)) => Some(Some(Said {
            client: connect.client.of(bytes).into(),
            username: connect.username.map(|s| s.of(bytes).into()),
        })),
        Err(_) => Some(None),
    };
    let said = read_until(session, limit, look).await?;
    facts(&mut session.r).mqtt = said.map(Box::new);
    Ok(())
}

/// `mqtt`: reads the CONNECT, and puts `mqtt_set_connect`'s words in. Whoever says something else is no client. The error is the
/// session's status.
pub(super) async fn filter(session: &mut StreamSession) -> Result<(), u16> {
    let snapshot = session.r.snapshot.clone();
    let conf = &snapshot.location(session.r.location).conf.stream_mqtt;
    let (number, size) = *conf.mqtt_buffers;
    let whole = |bytes: &[u8]| parse(bytes).transpose();
    let Ok(connect) = read_until(session, number.saturating_mul(size), whole).await? else {
        log_error!(session.r, Info, "client sent no valid MQTT CONNECT packet");
        return Err(400);
    };
    if conf.set_connect.is_empty() {
        return Ok(());
    }
    let r = &mut session.r;
    facts(r).action = "changing MQTT CONNECT packet";
    let mut words = [None, None, None];
    for (field, value) in conf.set_connect.iter() {
        words[*field as usize] = Some(value.eval(r));
    }
    if r.has_fault() {
        return Err(500);
    }
    let word = |field: Field| words[field as usize].map(|text| r.get(text));
    let changes =
        Changes { client: word(Field::Client), username: word(Field::Username), password: word(Field::Password) };
    let bytes = session.incoming.unread();
    let mut out = Vec::with_capacity(bytes.len());
    connect.write(bytes, &changes, &mut out);
    if out.len() as u64 > *conf.mqtt_rewrite_buffer_size {
        log_error!(session.r, Error, "changed MQTT CONNECT packet does not fit into mqtt_rewrite_buffer_size");
        return Err(500);
    }
    out.extend_from_slice(&bytes[connect.size..]);
    facts(&mut session.r).changed = out.len() as i64 - bytes.len() as i64;
    session.incoming.put_unread(out);
    Ok(())
}
