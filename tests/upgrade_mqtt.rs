//! Clients of MQTT that outlive the binary, connected or not: their sessions go over.

use crate::harness::{Port, Setup, Site, has_tools, wait};
use crate::mqtt::{Connect, Mqtt};
use crate::upgrade::{Long, beside, end};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

struct Broker {
    server: Long,
    mqtt: Port,
    tls: Port,
}

fn start(events: &str) -> Broker {
    let (mqtt, tls) = (Port::reserve(), Port::reserve());
    let secure = match has_tools() {
        true => format!(
            "server {{ listen 127.0.0.1:{} ssl mqtt; server_name localhost; ssl_certificate @DIR@/localhost.crt;
             ssl_certificate_key @DIR@/localhost.key; location = /mqtt {{ nchan_mqtt; }} }}",
            tls.number
        ),
        false => String::new(),
    };
    let text = format!(
        "worker_processes 2; events {{ {events} }} http {{ log_format all '$status $connection $nchan_mqtt_client_id';
         access_log @DIR@/logs/all.log all; nchan_message_buffer_length 100;
         server {{ listen 127.0.0.1:@PORT@; location /api {{ api; access_log off; }} location /who {{ return 200 $pid; }}
             location ~ ^/pub/(.+)$ {{ nchan_publisher; nchan_channel_id $1; access_log off; }}
             location = /mqtt {{ nchan_mqtt; }} }}
         server {{ listen 127.0.0.1:{} mqtt; location = /mqtt {{ nchan_mqtt; nchan_mqtt_publish room/# last/#; }} }} {secure} }}",
        mqtt.number
    );
    let site = Site::whole(&text);
    let site = if has_tools() { site.certificate("localhost") } else { site };
    Broker { server: Long::start(site), mqtt, tls }
}

impl Broker {
    fn connect(&self, connect: &Connect) -> Mqtt {
        Mqtt::connect(self.mqtt.number, connect, false)
    }

    fn post(&self, topic: &str, text: &str) {
        let mut client = self.server.connect();
        client.send(format!("POST /pub/{topic} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
        let answer = client.response();
        assert!([201, 202].contains(&answer.status), "{answer:?}");
    }
}

/// The next message, without its number, which is confirmed.
fn hear(client: &mut Mqtt) -> String {
    let (message, id) = hear_unconfirmed(client);
    id.into_iter().for_each(|id| client.send(&[0x40, 2, (id >> 8) as u8, id as u8]));
    message
}

fn hear_unconfirmed(client: &mut Mqtt) -> (String, Option<u16>) {
    let message = client.message();
    let words: Vec<&str> = message.splitn(4, ' ').collect();
    match words[..] {
        [first, topic, number, text] if number.starts_with('#') => {
            (format!("{first} {topic} {text}"), number[1..].parse().ok())
        }
        _ => (message, None),
    }
}

/// So many messages, in any order.
fn hear_all<const N: usize>(client: &mut Mqtt) -> [String; N] {
    let mut all = [(); N].map(|()| hear(client));
    all.sort();
    all
}

fn clients_go_on(events: &str) {
    let broker = start(events);
    let will = Some(("last/words", "gone"));
    let mut three = broker.connect(&Connect { keep_alive: 60, will, ..Connect::three("c3") });
    let mut five = broker.connect(&Connect::five("c5"));
    let (mut web, status) = Mqtt::websocket(&broker.server, "mqtt");
    assert_eq!(status, 101);
    web.send(b"\x10\x0f\0\x04MQTT\x04\x02\0\0\0\x03web");
    assert_eq!(web.packet(), (0x20, vec![0, 0]));
    assert_eq!((three.subscribe("room/+", 1), three.subscribe("plain", 1)), (1, 1));
    assert_eq!((five.subscribe("#", 0), five.subscribe("room/1", 1)), (0, 1));
    assert_eq!(web.subscribe("room/1", 1), 1);
    let mut last = 0;
    for round in 0..3 {
        let text = format!("before {round}");
        broker.post("room/1", &text);
        let (message, id) = hear_unconfirmed(&mut three);
        assert_eq!((message, id), (format!("32 room/1 {text}"), Some(last + 1)), "numbers go on from where they were");
        assert_eq!(hear_all(&mut five), [format!("30 room/1 {text}"), format!("32 room/1 {text}")]);
        assert_eq!(hear(&mut web), format!("32 room/1 {text}"));
        // It is confirmed by a packet whose halves come on one side and on the other.
        three.send(b"\x40\x02\0");
        broker.server.upgrade();
        three.send(&[last as u8 + 1]);
        let text = format!("after {round}");
        broker.post("room/1", &text);
        assert_eq!(hear(&mut three), format!("32 room/1 {text}"));
        assert_eq!(hear_all(&mut five), [format!("30 room/1 {text}"), format!("32 room/1 {text}")]);
        assert_eq!(hear(&mut web), format!("32 room/1 {text}"));
        five.publish(0x32, "room/2", 77, &text);
        assert_eq!(five.packet(), (0x40, vec![0, 77]));
        assert_eq!(hear(&mut five), format!("30 room/2 {text}"));
        assert_eq!(hear(&mut three), format!("32 room/2 {text}"));
        broker.post("plain", &text);
        assert_eq!(hear(&mut five), format!("30 plain {text}"));
        assert_eq!(hear(&mut three), format!("32 plain {text}"));
        [&mut three, &mut five, &mut web].into_iter().for_each(Mqtt::is_quiet);
        last += 4;
    }
    // What it may not publish to is still that.
    five.publish(0x32, "other", 78, "x");
    assert_eq!(five.packet(), (0x40, vec![0, 78, 0x87]));
    // Who goes without goodbye has its will said.
    drop(three);
    assert_eq!(hear(&mut five), "30 last/words gone");
    drop((five, web));
    let log = || broker.server.read("logs/all.log");
    assert!(wait(|| log().matches("101 ").count() == 3), "{}", log());
    assert_eq!(broker.server.error_log().matches("[alert]").count(), 0, "{}", broker.server.error_log());
}

#[test]
fn clients_of_mqtt_go_on_with_the_new_binary() {
    clients_go_on("");
}

#[test]
fn so_they_do_where_nothing_is_parked() {
    clients_go_on("worker_parked_connections off;");
}

#[test]
fn over_tls_too() {
    if !has_tools() {
        return;
    }
    let broker = start("");
    let mut client = Setup::new().connect(broker.tls.number, "localhost");
    let mut exchange = |bytes: &[u8], answer: &[u8]| {
        client.stream.write_all(bytes).unwrap();
        let mut heard = vec![0; answer.len()];
        client.stream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, answer);
    };
    exchange(b"\x10\x0f\0\x04MQTT\x04\x02\0\0\0\x03tls", b"\x20\x02\0\0");
    exchange(b"\x82\x06\0\x07\0\x01a\x01", b"\x90\x03\0\x07\x01");
    for id in 1..3 {
        broker.server.upgrade();
        broker.post("a", "hello");
        exchange(b"", &[b"\x32\x0a\0\x01a\0", &[id][..], b"hello"].concat());
        exchange(b"\xc0\0", b"\xd0\0");
    }
}

#[test]
fn sessions_whose_clients_are_gone_go_over_with_what_waits_for_them() {
    let broker = start("");
    let keep = Connect { clean: false, ..Connect::three("keeper") };
    let mut client = broker.connect(&keep);
    assert_eq!((client.subscribe("s/+", 1), client.subscribe("plain", 1)), (1, 1));
    broker.post("plain", "unconfirmed");
    assert_eq!(hear_unconfirmed(&mut client).0, "32 plain unconfirmed");
    drop(client);
    assert!(wait(|| broker.server.read("logs/all.log").contains("keeper")));
    let mut expected = vec!["3a plain unconfirmed".to_owned()];
    for round in 0..3 {
        broker.post("s/1", &format!("before {round}"));
        broker.server.upgrade();
        broker.post("s/2", &format!("after {round}"));
        broker.post("plain", &format!("named {round}"));
        expected.extend([
            format!("32 s/1 before {round}"),
            format!("32 s/2 after {round}"),
            format!("32 plain named {round}"),
        ]);
    }
    let mut client = Mqtt::connect(broker.mqtt.number, &keep, true);
    let mut heard: Vec<String> = expected.iter().map(|_| hear(&mut client)).collect();
    assert_eq!(heard[0], expected[0], "what was under way goes out again first");
    heard.sort();
    expected.sort();
    assert_eq!(heard, expected, "each of them once");
    client.is_quiet();
    assert_eq!(broker.server.error_log().matches("[alert]").count(), 0, "{}", broker.server.error_log());
}

#[test]
fn a_will_that_waits_is_said_by_the_new_binary() {
    let broker = start("");
    let mut hears = broker.connect(&Connect::five("hears"));
    assert_eq!(hears.subscribe("last/#", 1), 1);
    // A delay of 2 s for the will, of a session that stays for 60.
    let will = Some(("last/words", "late"));
    let delayed = Connect::five("delayed").with_will(will, b"\x18\0\0\0\x02", b"\x11\0\0\0\x3c");
    drop(broker.connect(&delayed));
    assert!(wait(|| broker.server.read("logs/all.log").contains("delayed")));
    broker.server.upgrade();
    assert_eq!(hear(&mut hears), "30 last/words late");
    hears.is_quiet();
}

#[test]
fn each_message_is_heard_once_while_binaries_change() {
    let broker = Arc::new(start(""));
    let mut clients: Vec<(Mqtt, &str)> =
        ["a", "b", "c", "d", "e", "f"].map(|name| (broker.connect(&Connect::three(name)), name)).into();
    for (number, (client, _)) in clients.iter_mut().enumerate() {
        let filter = ["room/1", "room/+", "#"][number % 3];
        assert_eq!(client.subscribe(filter, 1), 1);
    }
    let over = Arc::new(AtomicBool::new(false));
    let publisher = {
        let (broker, over) = (broker.clone(), over.clone());
        std::thread::spawn(move || {
            let mut count = 0;
            while !over.load(Relaxed) || count < 100 {
                broker.post("room/1", &count.to_string());
                count += 1;
            }
            count
        })
    };
    let hearing: Vec<_> = clients
        .into_iter()
        .map(|(mut client, name)| {
            std::thread::spawn(move || {
                let mut expected = 0;
                loop {
                    let heard = hear(&mut client);
                    if heard.ends_with("the end") {
                        return (expected, client);
                    }
                    assert_eq!(heard, format!("32 room/1 {expected}"), "{name}");
                    expected += 1;
                }
            })
        })
        .collect();
    for _ in 0..4 {
        broker.server.upgrade();
    }
    over.store(true, Relaxed);
    let count: usize = publisher.join().unwrap();
    broker.post("room/1", "the end");
    for hearing in hearing {
        let (heard, mut client) = hearing.join().unwrap();
        assert_eq!(heard, count);
        client.is_quiet();
    }
}

/// What is under way to it is more than one record takes.
#[test]
fn a_client_that_cannot_go_is_told_to_come_again() {
    for events in ["", "worker_parked_connections off;"] {
        let broker = start(events);
        let mut client = broker.connect(&Connect::three("large"));
        assert_eq!(client.subscribe("room/1", 1), 1);
        let large = "x".repeat(900_000);
        for _ in 0..3 {
            broker.post("room/1", &large);
            let (message, id) = hear_unconfirmed(&mut client);
            assert!(message.len() > large.len() && id.is_some());
        }
        broker.server.upgrade();
        assert!(client.client.is_closed());
    }
}

#[test]
fn a_client_without_a_place_in_the_new_configuration_is_sent_away_and_finds_its_session() {
    let broker = start("");
    let keep = Connect { clean: false, ..Connect::three("keeper") };
    let mut client = broker.connect(&keep);
    assert_eq!(client.subscribe("s/+", 1), 1);
    let text = broker.server.read("nginx.conf").replacen(
        "location = /mqtt { nchan_mqtt; nchan_mqtt_publish",
        "location /mqtt { nchan_mqtt; nchan_mqtt_publish",
        1,
    );
    assert_ne!(text, broker.server.read("nginx.conf"));
    std::fs::write(broker.server.dir().join("nginx.conf"), text).unwrap();
    let old = beside(&broker.server);
    assert!(client.client.is_closed());
    end(&broker.server, old);
    broker.post("s/1", "meanwhile");
    let mut client = Mqtt::connect(broker.mqtt.number, &keep, true);
    assert_eq!(hear(&mut client), "32 s/1 meanwhile");
}
