//! A client's packets of MQTT as a broker reads them, of any content: what is read is within the bytes, topics are as their rules say, and a
//! message that is passed on can be read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::mqtt::packet::{MAX_FILTERS, Packet, parse};
use wire::mqtt::properties::{OF_CONNECT, OF_WILL, read};
use wire::mqtt::{Version, answer, connect, topic};

fuzz_target!(|data: &[u8]| {
    let Some((&first, body)) = data.split_first() else { return };
    let _ = (read(body, OF_CONNECT), read(body, OF_WILL));
    if let Ok(Some(connect)) = connect::parse(data) {
        let _ = (connect.has_good_flags(), connect.is_clean(), connect.properties.of(data));
        if let Some(will) = connect.last_words {
            let _ = (will.topic.of(data), will.payload.of(data), will.properties.of(data));
        }
    }
    for version in [Version::V3, Version::V5] {
        match parse(version, first, body) {
            Ok(Packet::Publish(publish)) => {
                assert!(publish.qos < 2 && topic::is_name(publish.topic) && topic::matches(b"#", publish.topic) != publish.topic.starts_with(b"$"));
                let message = answer::Message {
                    id: (publish.qos > 0).then_some(publish.id),
                    topic: publish.topic,
                    payload: publish.payload,
                    expiry: publish.properties.message_expiry,
                    content_type: publish.properties.content_type,
                    properties: &publish.properties.passed_on,
                    ..answer::Message::default()
                };
                let mut out = Vec::new();
                answer::publish(version, &message, &mut out);
                assert!(out.len() <= answer::publish_size(&message));
                let head = wire::mqtt::read(&out).expect("a packet").expect("whole").size.header;
                let Ok(Packet::Publish(again)) = parse(version, out[0], &out[head..]) else { panic!("a PUBLISH") };
                assert_eq!((again.topic, again.payload, again.qos), (publish.topic, publish.payload, publish.qos));
            }
            Ok(Packet::Subscribe(subscribe)) => assert!((1..=MAX_FILTERS).contains(&subscribe.filters.len())),
            Ok(Packet::Unsubscribe(_, filters)) => assert!((1..=MAX_FILTERS).contains(&filters.len())),
            _ => {}
        }
    }
});
