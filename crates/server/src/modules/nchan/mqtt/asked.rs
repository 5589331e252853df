//! Packets about which somebody is asked or told, as of any publisher and subscriber: `nchan_authorize_request`, topic by topic;
//! `nchan_publisher_upstream_request`; `nchan_subscribe_request` and `nchan_unsubscribe_request`; `nchan_channel_events_channel_id`. From:
//! `held`, with the request that this takes.

use super::super::hooks::{self, Forwarded};
use super::super::{Conf, names, redis};
use super::held::{End, Held};
use super::live::Live;
use crate::log_error;
use crate::request::Request;
use std::time::Duration;
use wire::mqtt::packet::{Packet, Publish, Subscribe, Wants, code, parse};
use wire::mqtt::{answer, topic};

/// A packet for which the request was wanted.
pub(super) async fn asked(r: &mut Request, conf: &Conf, held: &mut Held, first: u8, body: &[u8]) {
    let Some(live) = &mut held.live else { return };
    let mut out = Vec::new();
    let done = match parse(live.peer.version, first, body) {
        Ok(Packet::Publish(publish)) => {
            let reason = publishes(r, conf, live, &publish).await;
            live.answer_publish(&publish, reason, &mut out)
        }
        Ok(Packet::Subscribe(subscribe)) => {
            let mut reasons = Vec::with_capacity(subscribe.filters.len());
            for one in &subscribe.filters {
                reasons.push(subscribes(r, conf, live, &subscribe, *one).await);
            }
            answer::suback(live.peer.version, subscribe.id, &reasons, &mut out);
            live.note();
            Ok(())
        }
        Ok(Packet::Unsubscribe(id, filters)) => {
            let mut reasons = Vec::with_capacity(filters.len());
            for filter in filters {
                let reason = live.unsubscribe(filter);
                reasons.push(reason);
                if reason == code::SUCCESS {
                    about(r, [filter], false);
                    left(r, conf);
                }
            }
            answer::unsuback(live.peer.version, id, &reasons, &mut out);
            live.note();
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(wrong) => Err(wrong),
    };
    held.say(&out);
    if let Err(wrong) = done {
        held.end(wrong.0, End::Wrong(wrong));
    }
}

/// The client's connection has ended, and so have its subscriptions, as far as others are told of them.
pub(super) fn gone(r: &mut Request, conf: &Conf, live: &Live) {
    let filters: Vec<&[u8]> = live.session.filters().collect();
    if live.peer.tells && !filters.is_empty() {
        about(r, filters, false);
        left(r, conf);
    }
}

fn left(r: &mut Request, conf: &Conf) {
    hooks::event(r, conf, "subscriber_dequeue");
    hooks::tell(r, &conf.unsubscribe);
}

/// Judges and publishes a message; gives the reason code.
async fn publishes(r: &mut Request, conf: &Conf, live: &mut Live, publish: &Publish<'_>) -> u8 {
    if let Some(reason) = live.refuses(publish) {
        return reason;
    }
    about(r, [publish.topic], true);
    if !live.is_allowed(publish.topic) && !may(r, conf, publish.topic).await {
        return code::NOT_AUTHORIZED;
    }
    live.allow(publish.topic);
    let mut other = None;
    if !conf.upstream.is_empty() {
        match hooks::ask(r, conf, publish.payload).await {
            Ok(Forwarded::Same) => {}
            Ok(Forwarded::Other(payload)) => other = Some(payload),
            Ok(Forwarded::Nothing) => return code::SUCCESS,
            Err(_) => return code::NOT_AUTHORIZED,
        }
    }
    let payload = other.as_deref().unwrap_or(publish.payload);
    let reason = published(live, &Publish { payload, ..publish.clone() }).await;
    if reason < code::UNSPECIFIED {
        hooks::event(r, conf, "channel_publish");
    }
    reason
}

/// Judges a filter and subscribes to it; gives the reason code.
async fn subscribes(
    r: &mut Request,
    conf: &Conf,
    live: &mut Live,
    subscribe: &Subscribe<'_>,
    one: (&[u8], Wants),
) -> u8 {
    if let Some(reason) = live.refuses_filter(one.0) {
        return reason;
    }
    about(r, [one.0], false);
    if !may(r, conf, one.0).await {
        return code::NOT_AUTHORIZED;
    }
    follow(live, one.0, *conf.redis_idle).await;
    let reason = live.subscribe(subscribe, one);
    if reason < code::UNSPECIFIED {
        hooks::event(r, conf, "subscriber_enqueue");
        hooks::tell(r, &conf.subscribe);
    }
    reason
}

/// What follows is about these topics, or filters.
fn about<'t>(r: &mut Request, topics: impl IntoIterator<Item = &'t [u8]>, publishes: bool) {
    let context = r.channels();
    context.ids = topics.into_iter().map(Box::from).collect();
    (context.publisher, context.subscriber) = if publishes { ("mqtt", "") } else { ("", "mqtt") };
}

/// Publishes a message that is allowed; gives the reason code.
async fn published(live: &Live, publish: &Publish<'_>) -> u8 {
    let Some(backend) = &live.session.backend else { return live.publish(publish) };
    let name = names::name(&live.session.group, publish.topic);
    match backend.publish(&name, live.draft(publish), live.peer.keep).await {
        Ok(published) if published.info.subscribers == 0 => code::NO_SUBSCRIBERS,
        Ok(_) => code::SUCCESS,
        Err(redis::backend::Failed::Refused(_)) => code::QUOTA_EXCEEDED,
        Err(redis::backend::Failed::Unreachable) => code::UNSPECIFIED,
    }
}

/// Where several servers share the channels: those of a filter are as they are there.
async fn follow(live: &Live, filter: &[u8], idle: Duration) {
    let Some(backend) = &live.session.backend else { return };
    match topic::has_wildcards(filter) {
        true => backend.hear_group(&live.session.group).await,
        // Without memory the subscription is refused as well.
        false => drop(backend.follow(&[names::name(&live.session.group, filter)], idle).await),
    }
}

async fn may(r: &mut Request, conf: &Conf, topic: &[u8]) -> bool {
    let status = hooks::status_of_authority(r, conf).await;
    if !(200..300).contains(&status) {
        let topic = String::from_utf8_lossy(topic);
        log_error!(r, Info, "a client of MQTT may not use \"{topic}\": {status}");
    }
    (200..300).contains(&status)
}
