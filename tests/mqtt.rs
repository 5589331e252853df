//! MQTT on the channels: clients of our own that see every byte, mosquitto's where they are installed, Python's paho where it is; what is published
//! by HTTP is heard by MQTT and the other way round.

use crate::harness::{Backend, Client, Port, Reply, Server, Site, wait};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const CONF: &str = "
    server { listen 127.0.0.1:@PORT@; nchan_channel_group g;
        location ~ ^/pub/(.+)$ { nchan_publisher; nchan_channel_id $1; }
        location ~ ^/sub/(.+)$ { nchan_subscriber; nchan_channel_id $1; nchan_subscriber_first_message newest; }
        location ~ ^/keep/(.+)$ { nchan_publisher; nchan_channel_id $1; nchan_mqtt_retain on; }
        location = /mqtt { nchan_mqtt; @HERE@ }
    }
    server { listen 127.0.0.1:@MQTT@ mqtt; nchan_channel_group g; location = /mqtt { nchan_mqtt; @HERE@ } }";

/// A server, and the port at which it speaks MQTT.
struct Broker {
    server: Server,
    mqtt: Port,
}

fn broker(here: &str) -> Broker {
    broker_of(CONF, here, |site| site)
}

fn broker_of(text: &str, here: &str, more: impl FnOnce(Site) -> Site) -> Broker {
    let mqtt = Port::reserve();
    let site = more(Site::http(&text.replace("@HERE@", here)).set("MQTT", mqtt.number));
    Broker { server: site.start(), mqtt }
}

impl Broker {
    fn post(&self, topic: &str, text: &str) -> u16 {
        let mut client = self.server.connect();
        client.send(format!("POST /pub/{topic} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
        client.response().status
    }

    fn until_subscribers(&self, topic: &str, count: usize) {
        let text = format!("active subscribers: {count}\r\n");
        assert!(wait(|| self.server.get(&format!("/pub/{topic}")).text().contains(&text)));
    }

    fn connect(&self, connect: &Connect) -> Mqtt {
        let mut client = Mqtt::open(self, connect);
        let answer = client.packet();
        assert_eq!(answer.0, 0x20, "{answer:?}");
        assert_eq!(answer.1[1], 0, "{}", answer.1.escape_ascii());
        client
    }
}

/// A CONNECT.
#[derive(Clone)]
pub(crate) struct Connect {
    pub(crate) five: bool,
    pub(crate) clean: bool,
    pub(crate) keep_alive: u16,
    pub(crate) client: &'static str,
    pub(crate) user: Option<(&'static str, &'static str)>,
    pub(crate) will: Option<(&'static str, &'static str)>,
    /// Of MQTT 5.
    pub(crate) properties: Vec<u8>,
    pub(crate) will_properties: Vec<u8>,
}

impl Connect {
    pub(crate) fn three(client: &'static str) -> Connect {
        Connect {
            five: false,
            clean: true,
            keep_alive: 0,
            client,
            user: None,
            will: None,
            properties: vec![],
            will_properties: vec![],
        }
    }

    pub(crate) fn five(client: &'static str) -> Connect {
        Connect { five: true, ..Connect::three(client) }
    }

    /// The same with a will and properties of it, and of its own (MQTT 5).
    pub(crate) fn with_will(self, will: Option<(&'static str, &'static str)>, of_will: &[u8], own: &[u8]) -> Connect {
        Connect { will, will_properties: of_will.to_vec(), properties: own.to_vec(), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let flags =
            u8::from(self.clean) << 1 | u8::from(self.will.is_some()) << 2 | if self.user.is_some() { 0xc0 } else { 0 };
        let mut body = [&b"\0\x04MQTT"[..], &[4 + u8::from(self.five), flags]].concat();
        body.extend(self.keep_alive.to_be_bytes());
        let properties = |body: &mut Vec<u8>, all: &[u8]| {
            if self.five {
                body.push(all.len() as u8);
                body.extend(all);
            }
        };
        properties(&mut body, &self.properties);
        body.extend(text(self.client));
        if let Some((topic, payload)) = self.will {
            properties(&mut body, &self.will_properties);
            body.extend([text(topic), text(payload)].concat());
        }
        if let Some((user, password)) = self.user {
            body.extend([text(user), text(password)].concat());
        }
        packet(0x10, &body)
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

pub(crate) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut rest = body.len();
    loop {
        let more = if rest > 127 { 0x80 } else { 0 };
        out.push((rest & 0x7f) as u8 | more);
        rest >>= 7;
        if more == 0 {
            return [out, body.to_vec()].concat();
        }
    }
}

/// A client that sees every byte.
pub(crate) struct Mqtt {
    pub(crate) client: Client,
    five: bool,
    /// In frames.
    ws: bool,
}

impl Mqtt {
    fn open(broker: &Broker, connect: &Connect) -> Mqtt {
        let mut client = Client::connect(broker.mqtt.number);
        client.send(connect.bytes());
        Mqtt { client, five: connect.five, ws: false }
    }

    /// One whose CONNECT is answered with this flag of a session that is there, and let in.
    pub(crate) fn connect(port: u16, connect: &Connect, is_present: bool) -> Mqtt {
        let mut client = Client::connect(port);
        client.send(connect.bytes());
        let mut client = Mqtt { client, five: connect.five, ws: false };
        let (first, body) = client.packet();
        assert_eq!((first, &body[..2]), (0x20, &[u8::from(is_present), 0][..]));
        client
    }

    pub(crate) fn websocket(server: &Server, protocol: &str) -> (Mqtt, u16) {
        Mqtt::websocket_with(server, protocol, "")
    }

    /// One whose request has these header lines, too.
    fn websocket_with(server: &Server, protocol: &str, lines: &str) -> (Mqtt, u16) {
        let mut client = server.connect();
        client.send(format!(
            "GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n{lines}\r\n"
        ));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(client.take(1)[0] as char);
        }
        let status = head[9..12].parse().unwrap();
        assert!(status != 101 || head.contains("Sec-WebSocket-Protocol: mqtt\r\n"), "{head}");
        (Mqtt { client, five: false, ws: true }, status)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if self.ws {
            assert!(bytes.len() < 126);
            self.client.send([&[0x82, 0x80 | bytes.len() as u8, 0, 0, 0, 0][..], bytes].concat());
        } else {
            self.client.send(bytes);
        }
    }

    /// The next packet: its first byte and what follows its length.
    pub(crate) fn packet(&mut self) -> (u8, Vec<u8>) {
        if self.ws {
            let head = self.client.take(2);
            assert!(head[0] == 0x82 && head[1] < 126, "{head:?}");
        }
        let first = self.client.take(1)[0];
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = self.client.take(1)[0];
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return (first, self.client.take(length));
            }
        }
    }

    pub(crate) fn subscribe(&mut self, filter: &str, options: u8) -> u8 {
        let properties: &[u8] = if self.five { b"\0" } else { b"" };
        self.send(&packet(0x82, &[b"\0\x07", properties, &text(filter), &[options]].concat()));
        let (first, body) = self.packet();
        assert_eq!((first, &body[..2]), (0x90, &b"\0\x07"[..]));
        *body.last().unwrap()
    }

    pub(crate) fn publish(&mut self, first: u8, topic: &str, id: u16, payload: &str) {
        let id = id.to_be_bytes();
        let (id, properties): (&[u8], &[u8]) =
            (if first & 6 != 0 { &id } else { b"" }, if self.five { b"\0" } else { b"" });
        self.send(&packet(first, &[&text(topic), id, properties, payload.as_bytes()].concat()));
    }

    /// The next message: the first byte, topic, packet's number, payload; properties are in brackets.
    pub(crate) fn message(&mut self) -> String {
        let (first, body) = self.packet();
        assert_eq!(first >> 4, 3, "{first:x} {}", body.escape_ascii());
        let end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
        let mut rest = &body[end..];
        let mut shown = format!("{first:x} {}", String::from_utf8_lossy(&body[2..end]));
        if first & 6 != 0 {
            shown += &format!(" #{}", u16::from_be_bytes([rest[0], rest[1]]));
            rest = &rest[2..];
        }
        if self.five {
            let length = usize::from(rest[0]);
            if length > 0 {
                shown += &format!(" [{}]", rest[1..=length].escape_ascii());
            }
            rest = &rest[1 + length..];
        }
        shown + " " + &String::from_utf8_lossy(rest)
    }

    /// Nothing comes before the answer to a ping.
    pub(crate) fn is_quiet(&mut self) {
        self.send(b"\xc0\0");
        assert_eq!(self.packet(), (0xd0, vec![]));
    }
}

#[test]
fn http_and_mqtt_hear_each_other() {
    let broker = broker("");
    for connect in [Connect::three("a"), Connect::five("b")] {
        let mut client = broker.connect(&connect);
        assert_eq!(client.subscribe("room/1", 1), 1);
        assert_eq!(broker.post("room/1", "from HTTP"), 201);
        assert_eq!(client.message(), "32 room/1 #1 from HTTP");
        client.send(b"\x40\x02\0\x01");
        let mut poll = broker.server.connect();
        poll.send("GET /sub/room/1 HTTP/1.1\r\nHost: a\r\n\r\n");
        broker.until_subscribers("room/1", 2);
        client.publish(0x30, "room/1", 0, "from MQTT");
        assert_eq!(client.message(), "30 room/1 from MQTT");
        assert_eq!(poll.response().text(), "from MQTT");
        client.publish(0x32, "room/1", 9, "at QoS 1");
        assert_eq!(client.packet(), (0x40, vec![0, 9]));
        assert_eq!(client.message(), "32 room/1 #2 at QoS 1");
        client.send(b"\xe0\0");
        assert!(client.client.is_closed());
    }
    assert_eq!(broker.post("room/1", "nobody"), 202);
}

#[test]
fn wildcards_hear_topics_that_are_and_will_be() {
    let broker = broker("");
    broker.post("a/b", "before");
    let mut client = broker.connect(&Connect::five("c"));
    let number = b"\x02\x0b\x05";
    client.send(&packet(0x82, &[&b"\0\x07"[..], number, &text("a/+"), &[0], &text("#"), &[0x01]].concat()));
    assert_eq!(client.packet(), (0x90, vec![0, 7, 0, 0, 1]));
    assert_eq!(broker.post("a/b", "1"), 201);
    let mut both = [client.message(), client.message()];
    both.sort();
    assert_eq!(both, [r"30 a/b [\x0b\x05] 1", r"32 a/b #1 [\x0b\x05] 1"]);
    assert_eq!(broker.post("new", "2"), 201);
    assert_eq!(client.message(), r"32 new #2 [\x0b\x05] 2");
    client.send(&packet(0xa2, &[&b"\0\x08\0"[..], &text("#"), &text("none")].concat()));
    assert_eq!(client.packet(), (0xb0, vec![0, 8, 0, 0, 0x11]));
    assert_eq!(broker.post("new", "3"), 202);
    client.is_quiet();
    for (filter, reason) in [("a/#/b", 0x8f), ("a+", 0x8f), ("$share/g/a", 0x9e), ("$SYS/#", 1)] {
        assert_eq!(client.subscribe(filter, 1), reason, "{filter}");
    }
}

#[test]
fn the_last_message_is_retained() {
    let broker = broker("");
    let mut publisher = broker.connect(&Connect::five("p"));
    publisher.publish(0x31, "state/a", 0, "one");
    publisher.publish(0x33, "state/a", 1, "two");
    assert_eq!(publisher.packet(), (0x40, vec![0, 1, 0x10]), "nobody subscribes");
    publisher.publish(0x31, "state/b", 0, "b");
    publisher.is_quiet();
    let mut client = broker.connect(&Connect::five("s"));
    client.subscribe("state/a", 1);
    assert_eq!(client.message(), "33 state/a #1 two");
    client.subscribe("state/+", 0);
    assert_eq!([client.message(), client.message()], ["31 state/a two", "31 state/b b"]);
    // Subscribed before: 1 wants none, 2 never wants any.
    client.subscribe("state/+", 0x10);
    client.subscribe("state/#", 0x20);
    client.is_quiet();
    client.send(&packet(0xa2, &[&b"\0\x08\0"[..], &text("state/+"), &text("state/a"), &text("state/#")].concat()));
    client.packet();
    // Live it is retained only for who asks for that.
    client.subscribe("state/b", 0x28);
    client.subscribe("state/+", 0x20);
    publisher.publish(0x31, "state/b", 0, "live");
    let mut both = [client.message(), client.message()];
    both.sort();
    assert_eq!(both, ["30 state/b live", "31 state/b live"]);
    publisher.publish(0x31, "state/b", 0, "");
    publisher.is_quiet();
    let mut third = broker.connect(&Connect::three("t"));
    third.subscribe("state/#", 0);
    assert_eq!(third.message(), "31 state/a two");
    third.is_quiet();
    // By HTTP, where the location says so.
    broker.post("state/http", "no");
    let mut client = broker.server.connect();
    client.send("POST /keep/state/http HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nyes");
    assert_eq!(client.response().status, 201);
    assert_eq!([third.message(), third.message()], ["30 state/http no", "30 state/http yes"]);
    third.subscribe("state/http", 1);
    assert_eq!(third.message(), "33 state/http #1 yes");
}

#[test]
fn a_session_outlives_its_connection_and_moves() {
    let broker = broker("nchan_mqtt_session_expiry 60s;");
    let keep = Connect { clean: false, ..Connect::three("keeper") };
    let mut client = broker.connect(&keep);
    client.subscribe("s/+", 1);
    client.subscribe("s/exact", 1);
    broker.post("s/exact", "unconfirmed");
    client.message();
    client.message();
    drop(client);
    // It is heard for while it is away.
    for n in 0..5 {
        assert_eq!(broker.post("s/x", &format!("{n}")), 201);
    }
    let mut client = Mqtt::open(&broker, &keep);
    assert_eq!(client.packet(), (0x20, vec![1, 0]), "the session is there");
    let mut again = vec![client.message(), client.message()];
    again.sort();
    assert_eq!(again, ["3a s/exact #1 unconfirmed", "3a s/exact #2 unconfirmed"]);
    for n in 0..5 {
        assert_eq!(client.message(), format!("32 s/x #{} {n}", n + 3));
    }
    // Another connection of that name takes it over, with what was not confirmed.
    let mut other =
        Mqtt::open(&broker, &Connect { five: true, properties: b"\x11\0\0\0\x3c".to_vec(), ..keep.clone() });
    let answer = other.packet();
    assert_eq!((answer.0, &answer.1[..2]), (0x20, &[1, 0][..]));
    assert!(client.client.is_closed());
    let again: Vec<String> = (0..7).map(|_| other.message()).collect();
    assert!(again.iter().all(|m| m.starts_with("3a ")), "{again:?}");
    for id in 1..=7 {
        other.send(&[0x40, 2, 0, id]);
    }
    other.is_quiet();
    // A clean start ends it.
    let mut clean = Mqtt::open(&broker, &Connect { clean: true, ..keep });
    assert_eq!(clean.packet(), (0x20, vec![0, 0]));
    assert_eq!(other.packet(), (0xe0, vec![0x8e, 0]), "taken over");
    assert_eq!(broker.post("s/x", "gone"), 202);
}

#[test]
fn a_reload_keeps_who_is_connected_and_who_is_away() {
    let broker = broker("nchan_mqtt_session_expiry 60s;");
    let keep = Connect { clean: false, ..Connect::three("away") };
    broker.connect(&keep).subscribe("r/1", 1);
    let mut here = broker.connect(&Connect::three("here"));
    here.subscribe("r/1", 0);
    broker.server.signal(Signal::HUP);
    broker.server.wait_for("logs/error.log", "reconfiguring");
    here.is_quiet();
    assert_eq!(broker.post("r/1", "after"), 201);
    assert_eq!(here.message(), "30 r/1 after");
    let mut client = Mqtt::open(&broker, &keep);
    assert_eq!(client.packet(), (0x20, vec![1, 0]));
    assert_eq!(client.message(), "32 r/1 #1 after");
}

#[test]
fn a_will_is_said_for_who_goes_without_goodbye() {
    let broker = broker("nchan_mqtt_session_expiry 60s;");
    let mut client = broker.connect(&Connect::three("hears"));
    client.subscribe("will", 0);
    let with = Connect { will: Some(("will", "gone")), ..Connect::five("has") };
    drop(broker.connect(&with));
    assert_eq!(client.message(), "30 will gone");
    let mut well = broker.connect(&with);
    well.send(b"\xe0\0");
    assert!(well.client.is_closed());
    let mut with_will = broker.connect(&with);
    with_will.send(b"\xe0\x01\x04");
    assert_eq!(client.message(), "30 will gone");
    // Who comes back in time is not mourned, who does not is.
    let waits = Connect {
        clean: false,
        properties: b"\x11\0\0\0\x3c".to_vec(),
        will_properties: b"\x18\0\0\0\x01".to_vec(),
        will: Some(("will", "late")),
        ..Connect::five("back")
    };
    drop(broker.connect(&waits));
    let mut back = Mqtt::open(&broker, &waits);
    assert_eq!(back.packet().1[..2], [1, 0]);
    let began = Instant::now();
    drop(back);
    assert_eq!(client.message(), "30 will late");
    assert!(began.elapsed() > Duration::from_millis(900));
    client.is_quiet();
}

#[test]
fn who_says_nothing_for_too_long_is_gone() {
    let broker = broker("");
    let mut client = Mqtt::open(&broker, &Connect { keep_alive: 1, ..Connect::five("k") });
    client.packet();
    let began = Instant::now();
    assert_eq!(client.packet(), (0xe0, vec![0x8d, 0]));
    let took = began.elapsed();
    assert!(
        client.client.is_closed() && took > Duration::from_millis(1300) && took < Duration::from_secs(5),
        "{took:?}"
    );
}

#[test]
fn what_breaks_the_rules_ends_the_connection_with_a_reason() {
    let broker = broker("client_max_body_size 4k;");
    let five = Connect::five("x");
    for (bytes, reason) in [
        (packet(0x34, b"\0\x01a\0\x01\0x"), 0x9b),
        (packet(0x30, b"\0\x01#\0x"), 0x90),
        (packet(0x30, b"\0\0\x03\x23\0\x01x"), 0x94),
        (packet(0x10, b""), 0x82),
        (packet(0x30, &[0; 5000]), 0x95),
        (b"\x30\xff\xff\xff\xff\xff".to_vec(), 0x81),
    ] {
        let mut client = broker.connect(&five);
        client.send(&bytes);
        assert_eq!(client.packet(), (0xe0, vec![reason, 0]), "{}", bytes.escape_ascii());
        assert!(client.client.is_closed());
    }
    // 3.1.1 has no words for it.
    let mut three = broker.connect(&Connect::three("y"));
    three.send(&packet(0x34, b"\0\x01a\0\x01x"));
    assert!(three.client.is_closed());
    for (bytes, answer) in [
        (&b"\x10\x0c\0\x04MQTT\x07\x02\0\x3c\0\0"[..], &b"\x20\x02\0\x01"[..]),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        // No name, but not clean; reserved flag; a will at QoS 3.
        (b"\x10\x0c\0\x04MQTT\x04\x00\0\x3c\0\0", b"\x20\x02\0\x02"),
        (b"\x10\x0c\0\x04MQTT\x04\x03\0\x3c\0\0", b"\x20\x02\0\x03"),
        (b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\x01\x7f\0\0", b"\x20\x03\0\x81\0"),
        (b"\x10\x0d\0\x04MQTT\x05\x02\0\x3c\x01\x7f\0\0", b""),
    ] {
        let mut client = Client::connect(broker.mqtt.number);
        client.send(bytes);
        assert_eq!(
            client.rest().escape_ascii().to_string(),
            answer.escape_ascii().to_string(),
            "{}",
            bytes.escape_ascii()
        );
    }
    // A client that says what it takes is not sent more.
    let small = Connect { properties: b"\x27\0\0\0\x80".to_vec(), ..Connect::five("small") };
    let mut small = broker.connect(&small);
    small.subscribe("t", 1);
    broker.post("t", &"x".repeat(300));
    broker.post("t", "short");
    assert_eq!(small.message(), "32 t #2 short");
    assert_eq!(broker.server.get("/mqtt").status, 400);
}

#[test]
fn who_may_come_is_asked_as_of_any_request() {
    let broker = broker_of(
        CONF,
        "auth_basic a; auth_basic_user_file @DIR@/users; nchan_mqtt_publish up/$remote_user/#; nchan_mqtt_subscribe down/$remote_user public/#;",
        |site| site.file("users", "ann:{PLAIN}secret\nbob:{PLAIN}x\na/b:{PLAIN}x\n"),
    );
    for (user, five, reason) in
        [(None, true, 0x86), (Some(("ann", "wrong")), true, 0x86), (Some(("ann", "wrong")), false, 4)]
    {
        let mut client = Mqtt::open(&broker, &Connect { five, user, ..Connect::three("c") });
        assert_eq!(client.packet().1[1], reason);
        assert!(client.client.is_closed());
    }
    let mut ann = broker.connect(&Connect { user: Some(("ann", "secret")), ..Connect::five("c") });
    for (filter, reason) in [("down/ann", 0), ("public/+/#", 0), ("down/bob", 0x87), ("#", 0x87), ("down/+", 0x87)] {
        assert_eq!(ann.subscribe(filter, 0), reason, "{filter}");
    }
    ann.publish(0x32, "up/ann/x", 1, "mine");
    assert_eq!(ann.packet(), (0x40, vec![0, 1, 0x10]));
    ann.publish(0x32, "up/bob/x", 2, "not mine");
    assert_eq!(ann.packet(), (0x40, vec![0, 2, 0x87]));
    // A name cannot bring levels of its own.
    let mut slash = broker.connect(&Connect { user: Some(("a/b", "x")), ..Connect::five("d") });
    assert_eq!(slash.subscribe("down/a/b", 0), 0x87);
    // A session is its user's.
    let mut bob = broker.connect(&Connect { user: Some(("bob", "x")), ..Connect::five("c") });
    bob.is_quiet();
    ann.is_quiet();
}

#[test]
fn an_authority_is_asked_about_topics() {
    let backend = Backend::start(|request| {
        let good = request.header("X-Password") == Some("pw") && !request.line().contains("secret");
        if good { Reply::ok("") } else { Reply::Keep(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec()) }
    });
    let text = CONF.replace(
        "location = /mqtt { nchan_mqtt; @HERE@ }",
        "location = /mqtt { nchan_mqtt; nchan_authorize_request /ask; }
         location = /ask { internal; proxy_pass http://127.0.0.1:@BACKEND@/$nchan_publisher_type:$nchan_subscriber_type:$nchan_channel_id;
             proxy_set_header X-Password $nchan_mqtt_password; proxy_set_header X-Client $nchan_mqtt_client_id; }",
    );
    let broker = broker_of(&text, "", |site| site.set("BACKEND", backend.port));
    let refused = Connect { user: Some(("u", "no")), ..Connect::five("c") };
    assert_eq!(Mqtt::open(&broker, &refused).packet().1, [0, 0x87, 0]);
    let mut client = broker.connect(&Connect { user: Some(("u", "pw")), ..Connect::five("c") });
    assert_eq!((client.subscribe("open", 0), client.subscribe("secret", 0)), (0, 0x87));
    for _ in 0..3 {
        client.publish(0x32, "open", 1, "m");
        assert_eq!(client.packet(), (0x40, vec![0, 1]));
        assert_eq!(client.message(), "30 open m");
    }
    client.publish(0x32, "secret", 2, "m");
    assert_eq!(client.packet(), (0x40, vec![0, 2, 0x87]));
    let asked: Vec<String> = backend.seen().iter().map(|r| r.line().split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(asked, ["/::", "/::", "/:mqtt:open", "/:mqtt:secret", "/mqtt::open", "/mqtt::secret"]);
    assert_eq!(backend.seen()[1].header("X-Client"), Some("c"));
    // The same in frames.
    let (mut ws, _) = Mqtt::websocket(&broker.server, "mqtt");
    ws.send(&Connect { user: Some(("u", "pw")), ..Connect::three("w") }.bytes());
    assert_eq!(ws.packet(), (0x20, vec![0, 0]));
    assert_eq!((ws.subscribe("open", 0), ws.subscribe("secret", 0)), (0, 0x80));
}

/// Who has come as ann by HTTP was bob by the words of his CONNECT, which nobody had checked: he published and heard as bob, and took bob's
/// session over.
#[test]
fn connect_over_websocket_does_not_replace_who_has_come() {
    // ann:secret, bob:x
    const ANN: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    const BOB: &str = "Authorization: Basic Ym9iOng=\r\n";
    let broker = broker_of(
        CONF,
        "auth_basic a; auth_basic_user_file @DIR@/users; nchan_mqtt_publish up/$remote_user/#; nchan_mqtt_subscribe down/$remote_user;",
        |site| site.file("users", "ann:{PLAIN}secret\nbob:{PLAIN}x\n"),
    );
    let stays = Connect { clean: false, user: Some(("bob", "x")), ..Connect::three("dev") };
    let mut bob = broker.connect(&stays);
    assert_eq!(bob.subscribe("down/bob", 1), 1);
    for user in [("bob", "wrong"), ("bob", "x"), ("ann", "wrong"), ("", "secret")] {
        let (mut ws, status) = Mqtt::websocket_with(&broker.server, "mqtt", ANN);
        assert_eq!(status, 101);
        ws.send(&Connect { user: Some(user), ..stays.clone() }.bytes());
        assert_eq!(ws.packet(), (0x20, vec![0, 4]), "{user:?}");
    }
    bob.is_quiet();
    // With the same words, or none, it is ann; her session is hers, whatever it is called.
    for user in [Some(("ann", "secret")), None] {
        let (mut ws, _) = Mqtt::websocket_with(&broker.server, "mqtt", ANN);
        ws.send(&Connect { clean: true, user, ..stays.clone() }.bytes());
        assert_eq!(ws.packet(), (0x20, vec![0, 0]));
        assert_eq!((ws.subscribe("down/ann", 0), ws.subscribe("down/bob", 0)), (0, 0x80));
    }
    bob.is_quiet();
    // Bob's is bob's, by TCP and by WebSocket, with his name said once or twice.
    let (mut ws, _) = Mqtt::websocket_with(&broker.server, "mqtt", BOB);
    ws.send(&Connect { user: None, ..stays }.bytes());
    assert_eq!(ws.packet(), (0x20, vec![1, 0]));
    assert!(bob.client.is_closed());
}

/// A session whose filters its client may not have any more is none that it could go on with.
#[test]
fn a_session_does_not_outlive_its_rights() {
    let rule = |rule: &str| format!("nchan_mqtt_subscribe {rule};");
    let broker = broker(&rule("secret/# public"));
    let stays = Connect { clean: false, ..Connect::three("dev") };
    let mut client = broker.connect(&stays);
    assert_eq!((client.subscribe("public", 1), client.subscribe("secret/1", 1)), (1, 1));
    let text = broker.server.read("nginx.conf").replace(&rule("secret/# public"), &rule("public"));
    std::fs::write(broker.server.dir().join("nginx.conf"), text).unwrap();
    broker.server.signal(Signal::HUP);
    let is_refused = || broker.connect(&Connect::three("other")).subscribe("secret/1", 1) == 0x80;
    assert!(wait(is_refused), "{}", broker.server.error_log());
    drop(client);
    drop(Mqtt::connect(broker.mqtt.number, &stays, false));
}

/// MQTT 3.1.1 section 3.1.2.4: the session is there, whether anything is in it or not.
#[test]
fn a_session_without_subscriptions_is_kept() {
    let broker = broker("");
    let stays = Connect { clean: false, ..Connect::three("empty") };
    drop(broker.connect(&stays));
    drop(Mqtt::connect(broker.mqtt.number, &stays, true));
    drop(Mqtt::connect(broker.mqtt.number, &Connect::three("empty"), false));
    drop(Mqtt::connect(broker.mqtt.number, &stays, false));
}

/// What filters take counted nowhere: ten clients with a thousand deep ones had 300 MB of a store of one.
#[test]
fn filters_count_in_the_memory_of_channels() {
    let conf = format!(
        "nchan_shared_memory_size 1m; {}",
        CONF.replacen("@HERE@ }", "@HERE@ } location = /stub { nchan_stub_status; }", 1)
    );
    let broker = broker_of(&conf, "", |site| site);
    let used = || {
        let page = broker.server.get("/stub").text();
        let line = page.lines().find_map(|line| line.strip_prefix("shared memory used: ")).unwrap().to_owned();
        line.strip_suffix('K').unwrap().parse::<usize>().unwrap()
    };
    let before = used();
    let mut client = broker.connect(&Connect::five("many"));
    let deep = |number: usize| (0..60).map(|level| format!("{number}.{level}/")).collect::<String>() + "+";
    let refused = (0..200).find(|number| client.subscribe(&deep(*number), 0) == 0x97);
    assert!(refused.is_some_and(|number| (20..200).contains(&number)), "{refused:?}");
    let full = used();
    assert!((500..=1024).contains(&full), "{full}");
    // Unsubscribing, or going, gives the memory back. Those that are there hear what is theirs.
    let all: Vec<u8> = (0..10).flat_map(|number| text(&deep(number))).collect();
    client.send(&packet(0xa2, &[&b"\0\x09\0"[..], &all].concat()));
    assert_eq!(client.packet(), (0xb0, [&b"\0\x09\0"[..], &[0; 10]].concat()));
    assert!(used() < full - 50, "{}", used());
    assert_eq!(broker.post(&deep(15).replace('+', "x"), "m"), 201);
    assert!(client.message().ends_with(" m"));
    drop(client);
    assert!(wait(|| used() <= before + 10), "{before} {}", used());
}

#[test]
fn over_websocket() {
    let broker = broker("");
    assert_eq!(Mqtt::websocket(&broker.server, "chat").1, 400);
    let (mut client, status) = Mqtt::websocket(&broker.server, "other, mqtt");
    assert_eq!(status, 101);
    let connect = Connect::three("w").bytes();
    client.send(&connect[..5]);
    client.send(&[&connect[5..], b"\xc0\0"].concat());
    assert_eq!((client.packet(), client.packet()), ((0x20, vec![0, 0]), (0xd0, vec![])));
    client.subscribe("w/1", 1);
    broker.post("w/1", "hello");
    assert_eq!(client.message(), "32 w/1 #1 hello");
    client.publish(0x30, "w/1", 0, "own");
    assert_eq!(client.message(), "32 w/1 #2 own".replace("32", "30").replace(" #2", ""));
    client.send(b"\xe0\0");
    assert_eq!(client.client.take(4), [0x88, 2, 3, 232]);
    assert!(client.client.is_closed());
}

/// A program that runs beside, and the lines that it writes.
struct Beside {
    child: Child,
    lines: Receiver<String>,
}

impl Beside {
    fn start(command: &mut Command) -> Option<Beside> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().ok()?;
        let (tx, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tx.send(line)));
        Some(Beside { child, lines })
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("a line")
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mosquitto(name: &str, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(arguments);
    command
}

#[test]
fn mosquittos_clients() {
    let broker = broker("");
    for version in ["311", "5"] {
        let arguments = ["-V", version, "-q", "1", "-v", "-t", "m/#", "-F", "%t %q %r %p"];
        let Some(sub) = Beside::start(&mut mosquitto("mosquitto_sub", broker.mqtt.number, &arguments)) else {
            return println!("mosquitto_sub is not installed: left out");
        };
        assert!(wait(|| broker.post("m/ready", "x") == 201));
        while sub.lines.recv_timeout(Duration::from_millis(200)).is_ok() {}
        broker.post("m/http", "by HTTP");
        assert_eq!(sub.line(), "m/http 1 0 by HTTP");
        for qos in ["0", "1"] {
            let publish = ["-V", version, "-q", qos, "-t", "m/a", "-m", "by mosquitto_pub"];
            let done = mosquitto("mosquitto_pub", broker.mqtt.number, &publish).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            assert_eq!(sub.line(), format!("m/a {qos} 0 by mosquitto_pub"));
        }
        let retain = ["-V", version, "-r", "-t", "kept", "-m", "kept"];
        assert!(mosquitto("mosquitto_pub", broker.mqtt.number, &retain).status().unwrap().success());
        let once = ["-V", version, "-C", "1", "-t", "kept", "-F", "%r %p"];
        let got = mosquitto("mosquitto_sub", broker.mqtt.number, &once).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&got.stdout), "1 kept\n");
        // 200 kB from a file of lines, in order.
        let lines = (0..2000).map(|n| format!("{n:0100}\n")).collect::<String>();
        let arguments = ["-V", version, "-q", "1", "-t", "m/many", "-l"];
        let mut many =
            mosquitto("mosquitto_pub", broker.mqtt.number, &arguments).stdin(Stdio::piped()).spawn().unwrap();
        many.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(many.wait().unwrap().success());
        for n in 0..2000 {
            assert_eq!(sub.line(), format!("m/many 1 0 {n:0100}"));
        }
    }
}

#[test]
fn over_tls() {
    let text = CONF.replace(
        "listen 127.0.0.1:@MQTT@ mqtt;",
        "listen 127.0.0.1:@MQTT@ ssl mqtt; ssl_certificate @DIR@/localhost.crt; ssl_certificate_key @DIR@/localhost.key;",
    );
    let broker = broker_of(&text, "", |site| site.certificate("localhost"));
    let ca = broker.server.dir().join("localhost.crt").display().to_string();
    let tls = ["-h", "localhost", "--cafile", &ca, "-V", "5", "-t", "tls/x"];
    let subscribe = [&tls[..], &["-C", "1"]].concat();
    let Some(sub) = Beside::start(&mut mosquitto("mosquitto_sub", broker.mqtt.number, &subscribe)) else {
        return println!("mosquitto_sub is not installed: left out");
    };
    broker.until_subscribers("tls/x", 1);
    let publish = [&tls[..], &["-m", "secret"]].concat();
    let done = mosquitto("mosquitto_pub", broker.mqtt.number, &publish).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(sub.line(), "secret");
}

/// Python's paho, 3.1.1 and 5, over TCP and WebSocket.
#[test]
fn pahos_clients() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let python = std::env::var_os("PAHO_PYTHON").map_or_else(|| here.join(".venv/bin/python"), Into::into);
    let has_paho = Command::new(&python).args(["-c", "import paho.mqtt"]).output().is_ok_and(|o| o.status.success());
    if !has_paho {
        return println!("paho-mqtt is not installed (make setup): left out");
    }
    let broker = broker("nchan_mqtt_session_expiry 1m;");
    let (mqtt, http) = (broker.mqtt.number.to_string(), broker.server.port.to_string());
    let out = Command::new(python).arg(here.join("mqtt_paho.py")).args([mqtt, http]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr));
}

/// Others are asked about messages and told of subscriptions, as of those of HTTP.
#[test]
fn hooks_hear_of_clients_of_mqtt() {
    let backend = Backend::start(|request| match request.line().contains("/filter/") {
        true if request.body == b"bad" => Reply::Keep(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec()),
        true if request.body == b"same" => Reply::Keep(b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec()),
        true => Reply::ok("changed"),
        false => Reply::ok(""),
    });
    let text = CONF.replace(
        "location = /mqtt { nchan_mqtt; @HERE@ }",
        "location = /mqtt { nchan_mqtt; nchan_publisher_upstream_request /filter; nchan_subscribe_request /on; nchan_unsubscribe_request /off;
             nchan_channel_events_channel_id events; nchan_channel_event_string \"$nchan_channel_event $nchan_channel_id\"; }
         location = /filter { internal; proxy_pass http://127.0.0.1:@BACKEND@/filter/$nchan_channel_id; }
         location = /on { internal; proxy_pass http://127.0.0.1:@BACKEND@/on/$nchan_channel_id; }
         location = /off { internal; proxy_pass http://127.0.0.1:@BACKEND@/off/$nchan_channel_id; }",
    );
    let broker = broker_of(&text, "", |site| site.set("BACKEND", backend.port));
    let mut client = broker.connect(&Connect::five("c"));
    assert_eq!((client.subscribe("one", 0), client.subscribe("two", 0)), (0, 0));
    for (said, heard) in [("other", "changed"), ("same", "same")] {
        client.publish(0x32, "one", 1, said);
        assert_eq!(client.packet(), (0x40, vec![0, 1]));
        assert_eq!(client.message(), format!("30 one {heard}"));
    }
    client.publish(0x32, "one", 2, "bad");
    assert_eq!(client.packet(), (0x40, vec![0, 2, 0x87]));
    client.send(&packet(0xa2, b"\0\x07\0\0\x03two"));
    assert_eq!(client.packet(), (0xb0, vec![0, 7, 0, 0]));
    drop(client);
    let lines =
        || -> Vec<String> { backend.seen().iter().map(|r| r.line().split(' ').nth(1).unwrap().to_owned()).collect() };
    // Nobody waits for the one or the other, so that the last one comes when it comes.
    let is_told = |what: &str| lines().iter().any(|line| line == what);
    assert!(wait(|| is_told("/off/one") && is_told("/off/two")), "{:?}", lines());
    let mut all = lines();
    all.sort_unstable();
    assert_eq!(all, ["/filter/one", "/filter/one", "/filter/one", "/off/one", "/off/two", "/on/one", "/on/two"]);
}
