//! MQTT in `stream {}`: clients are balanced by what they say of themselves, their CONNECT is changed, brokers are checked. Against
//! mosquitto where it is installed.

use crate::harness::{Port, Server, Site, wait};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// CONNECT of MQTT 3.1.1: client `c1`, user `me`, password `pw`.
const CONNECT: &[u8] = b"\x10\x16\0\x04MQTT\x04\xc2\0\x3c\0\x02c1\0\x02me\0\x02pw";
const PINGREQ: &[u8] = b"\xc0\0";

fn stream(around: &str, server: &str) -> Site {
    Site::whole(&format!("events {{}} stream {{ {around} server {{ listen 127.0.0.1:@PORT@; {server} }} }}"))
}

/// A peer that says `answer` and keeps what each connection brings until it ends.
fn broker(answer: &'static [u8]) -> (u16, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let tx = tx.clone();
            std::thread::spawn(move || {
                let mut all = vec![0; 1024];
                let n = connection.read(&mut all).unwrap_or(0);
                all.truncate(n);
                let _ = connection.write_all(answer);
                let _ = connection.read_to_end(&mut all);
                let _ = tx.send(all);
            });
        }
    });
    (port, rx)
}

#[test]
fn connect_is_changed_and_the_rest_is_not() {
    let (peer, brought) = broker(b"");
    let server = stream(
        "log_format f \"$mqtt_preread_clientid:$mqtt_preread_username:$bytes_received\"; access_log logs/stream.log f;",
        "mqtt_preread on; mqtt on; mqtt_set_connect clientid at-$remote_addr; mqtt_set_connect username you;
         mqtt_set_connect password \"\"; proxy_pass 127.0.0.1:@PEER@;",
    )
    .set("PEER", peer)
    .start();
    // It may come in pieces, and with what follows it.
    let mut client = server.connect();
    client.send(&CONNECT[..1]).send(&CONNECT[1..12]);
    client.send([&CONNECT[12..], PINGREQ].concat()).finish();
    client.rest();
    let all = brought.recv().unwrap();
    assert_eq!(
        all.escape_ascii().to_string(),
        b"\x10\x1d\0\x04MQTT\x04\x82\0\x3c\0\x0cat-127.0.0.1\0\x03you\xc0\0".escape_ascii().to_string()
    );
    server.wait_for("logs/stream.log", &format!("c1:me:{}\n", CONNECT.len() + PINGREQ.len()));
}

#[test]
fn what_is_no_mqtt() {
    let (peer, brought) = broker(b"");
    let text = "events {} stream {
        server { listen 127.0.0.1:@PORT@; mqtt on; proxy_pass 127.0.0.1:@PEER@; }
        server { listen 127.0.0.1:@OTHER@; mqtt_preread on; proxy_pass 127.0.0.1:@PEER@; }
        server { listen 127.0.0.1:@SMALL@; mqtt on; mqtt_buffers 2 8; proxy_pass 127.0.0.1:@PEER@; }
        server { listen 127.0.0.1:@TIGHT@; mqtt on; mqtt_rewrite_buffer_size 20; mqtt_set_connect clientid a-long-name;
                 proxy_pass 127.0.0.1:@PEER@; } }";
    let [other, small, tight] = [(); 3].map(|()| Port::reserve());
    let ports = [("OTHER", &other), ("SMALL", &small), ("TIGHT", &tight)];
    let site = ports.iter().fold(Site::whole(text).set("PEER", peer), |site, (name, port)| site.set(name, port.number));
    let server = site.start();
    assert!(server.connect().send("GET / HTTP/1.0\r\n\r\n").is_closed());
    server.wait_for("logs/error.log", "client sent no valid MQTT CONNECT packet while prereading client data");
    for (port, line) in [(&small, "preread buffer full"), (&tight, "does not fit into mqtt_rewrite_buffer_size")] {
        let mut client = TcpStream::connect(("127.0.0.1", port.number)).unwrap();
        client.write_all(CONNECT).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap_or(0), 0);
        server.wait_for("logs/error.log", line);
    }
    // To read ahead is not to forbid.
    let mut client = crate::harness::Client::connect(other.number);
    client.send("hello").finish().rest();
    assert_eq!(brought.recv().unwrap(), b"hello");
}

/// A broker is out when it does not accept clients, whatever it says.
#[test]
fn brokers_are_asked_to_accept_a_client() {
    let (good, asked) = broker(b"\x20\x02\0\0");
    let (bad, _refused) = broker(b"\x20\x02\0\x05");
    let server = stream(
        "upstream brokers { zone z 64k; server 127.0.0.1:@BAD@; server 127.0.0.1:@GOOD@; }
         log_format f \"at $upstream_addr\"; access_log logs/stream.log f;",
        "proxy_pass brokers; health_check type=mqtt interval=100ms mandatory;",
    )
    .set("BAD", bad)
    .set("GOOD", good)
    .start();
    server.wait_for(
        "logs/error.log",
        "peer is unhealthy: body did not match: wanted MQTT CONNACK without a reason (it is 5)",
    );
    server.wait_for("logs/error.log", "peer is healthy");
    let question = asked.recv().unwrap();
    assert!(question.starts_with(b"\x10") && question.ends_with(b"\xe0\0"), "{}", question.escape_ascii());
    for _ in 0..4 {
        server.connect().send(CONNECT).finish().rest();
    }
    let at_good = format!("at 127.0.0.1:{good}\n");
    assert!(
        wait(|| server.read("logs/stream.log").matches(&at_good).count() == 4),
        "{}",
        server.read("logs/stream.log")
    );
}

/// A mosquitto that ends with the test.
struct Mosquitto(Child, u16);

impl Mosquitto {
    /// `name`: of its files; `more`: lines of its configuration. None: it is not installed.
    fn start(dir: &Path, name: &str, more: &str) -> Option<Mosquitto> {
        let program = ["/usr/sbin/mosquitto", "/usr/bin/mosquitto"].into_iter().find(|p| Path::new(p).exists());
        let Some(program) = program.filter(|_| Command::new("mosquitto_pub").output().is_ok()) else {
            println!("mosquitto is not installed: left out");
            return None;
        };
        let port = Port::reserve().number;
        let log = dir.join(format!("{name}.log"));
        let text =
            format!("listener {port} 127.0.0.1\nlog_dest file {}\nlog_type all\nuser root\n{more}\n", log.display());
        std::fs::write(dir.join(format!("{name}.conf")), text).unwrap();
        let child = Command::new(program)
            .arg("-c")
            .arg(dir.join(format!("{name}.conf")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mosquitto = Mosquitto(child, port);
        assert!(wait(|| TcpStream::connect(("127.0.0.1", port)).is_ok()), "mosquitto listens");
        Some(mosquitto)
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

fn publish(server: &Server, more: &[&str]) -> bool {
    let port = server.port.to_string();
    let all = ["-h", "127.0.0.1", "-p", &port, "-q", "1", "-t", "a/b", "-m", "hello"];
    Command::new("mosquitto_pub").args(all).args(more).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn mosquittos_clients_stick_to_a_broker_and_leave_a_dead_one() {
    let folder = Site::whole("").into_folder();
    let dir = folder.path().to_owned();
    let anybody = "allow_anonymous true";
    let Some(first) = Mosquitto::start(&dir, "first", anybody) else { return };
    let Some(second) = Mosquitto::start(&dir, "second", anybody) else { return };
    let server = stream(
        "upstream brokers { hash $mqtt_preread_clientid consistent; server 127.0.0.1:@FIRST@; server 127.0.0.1:@SECOND@; }
         log_format f \"$mqtt_preread_clientid $upstream_addr\"; access_log logs/stream.log f;",
        "mqtt_preread on; proxy_pass brokers; proxy_connect_timeout 1s;",
    )
    .set("FIRST", first.1)
    .set("SECOND", second.1)
    .start();
    let ask_all = |version: &str| {
        for n in 0..12 {
            assert!(publish(&server, &["-i", &format!("client-{n}"), "-V", version]), "client {n}");
        }
    };
    // Those who only looked whether the server is there have no name.
    let named = || {
        let log = server.read("logs/stream.log");
        log.lines().filter(|l| l.starts_with("client-")).map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = |count: usize| {
        assert!(wait(|| named().len() >= count), "{:?}", named());
        named()
    };
    ask_all("mqttv311");
    let mut before = lines(12);
    ask_all("mqttv5");
    let mut after = lines(24).split_off(12);
    before.sort();
    after.sort();
    assert_eq!(before, after, "each has its broker, whatever its protocol's version");
    let at = |port: u16| format!("127.0.0.1:{port}");
    for port in [first.1, second.1] {
        assert!(before.iter().any(|l| l.ends_with(&at(port))), "both brokers have clients: {before:?}");
    }
    let dead = first.1;
    drop(first);
    ask_all("mqttv5");
    let seen = lines(36).split_off(24);
    assert!(seen.iter().all(|l| l.ends_with(&at(second.1))), "{seen:?}");
    // Those of the living broker were not moved; those of the dead one tried it first, or knew better.
    for line in &before {
        let (id, was) = line.split_once(' ').unwrap();
        let now = seen.iter().find(|l| l.starts_with(&format!("{id} "))).unwrap();
        assert!(*was != at(second.1) || now == line, "{line}, then {now} ({dead} is dead)");
    }
}

#[test]
fn mosquitto_is_told_another_name() {
    let folder = Site::whole("").into_folder();
    let dir = folder.path().to_owned();
    let passwords = dir.join("passwords");
    let made = Command::new("mosquitto_passwd").args(["-b", "-c"]).arg(&passwords).args(["inside", "secret"]).output();
    if made.is_err() {
        println!("mosquitto is not installed: left out");
        return;
    }
    let only = format!("allow_anonymous false\npassword_file {}", passwords.display());
    let Some(broker) = Mosquitto::start(&dir, "broker", &only) else { return };
    let server = stream(
        "map $mqtt_preread_username $password { outside secret; default wrong; }",
        "mqtt_preread on; mqtt on; mqtt_set_connect clientid lb-$mqtt_preread_clientid;
         mqtt_set_connect username inside; mqtt_set_connect password $password; proxy_pass 127.0.0.1:@BROKER@;",
    )
    .set("BROKER", broker.1)
    .start();
    for version in ["mqttv311", "mqttv5"] {
        assert!(publish(&server, &["-i", "me", "-u", "outside", "-P", "x", "-V", version]));
        assert!(!publish(&server, &["-i", "me", "-u", "nobody", "-P", "x", "-V", version]));
    }
    let log = std::fs::read_to_string(dir.join("broker.log")).unwrap();
    assert!(log.contains("as lb-me") && log.contains("u'inside'"), "{log}");
}
