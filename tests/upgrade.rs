//! Connections, channels and zones that outlive the binary: `-s upgrade`, USR2, and reloads that take a new process.

use crate::harness::{Backend, Client, Port, Reply, Server, Site, wait};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const CHANNELS: &str = r#"
    location /pub { nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 50; }
    location /sub { nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }
    location /all { nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message oldest; }
    location /both { nchan_pubsub; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }
    location /who { return 200 "$pid $connection $connection_requests"; }
"#;
pub(crate) const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                       Sec-WebSocket-Version: 13\r\n";

fn site(more: &str) -> Site {
    let text = format!(
        "worker_processes 2; events {{ }} http {{ log_format all '$connection $connection_requests \"$request\" $status \
         $nchan_channel_id \"$http_user_agent\"'; access_log @DIR@/logs/all.log all; keepalive_timeout 60s;
         server {{ listen 127.0.0.1:@PORT@; {CHANNELS} {more} }} }}"
    );
    Site::whole(&text)
}

/// A server whose binary is changed: whichever master is in charge is ended with the test.
pub(crate) struct Long(Server);

impl std::ops::Deref for Long {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        let Some(pid) = self.master() else { return };
        let _ = kill_process(pid, Signal::TERM);
        wait(|| is_gone(pid));
    }
}

/// Whether a process has ended, be it that nobody has asked for its status.
pub(crate) fn is_gone(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(pid).is_err() || stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

impl Long {
    pub(crate) fn start(site: Site) -> Long {
        let server = site.start();
        server.wait_for("logs/nginx.pid", "\n");
        Long(server)
    }

    fn master(&self) -> Option<Pid> {
        Pid::from_raw(self.read("logs/nginx.pid").trim().parse().ok()?)
    }

    fn say_upgrade(&self) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironweir"));
        command.arg("-p").arg(self.dir()).arg("-e").arg(self.dir().join("logs/error.log"));
        command.arg("-c").arg(self.dir().join("nginx.conf")).args(["-s", "upgrade"]).output().unwrap()
    }

    /// Another process of the same binary takes over.
    pub(crate) fn upgrade(&self) {
        let old = self.master().unwrap();
        let began = Instant::now();
        let output = self.say_upgrade();
        assert!(output.status.success(), "{output:?}\n{}", self.error_log());
        let handed = began.elapsed();
        assert!(wait(|| is_gone(old)), "the old process is there still:\n{}", self.error_log());
        println!("handed over after {handed:?}, the old process was gone after {:?}", began.elapsed());
        assert_ne!(self.master().unwrap(), old);
    }

    fn reload(&self) {
        let count = || self.error_log().matches(": reconfiguring").count();
        let before = count();
        let _ = kill_process(self.master().unwrap(), Signal::HUP);
        assert!(wait(|| count() > before), "{}", self.error_log());
    }

    pub(crate) fn say(&self, id: &str, text: &str) {
        let mut client = self.connect();
        client.send(format!("POST /pub?id={id} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{text}", text.len()));
        let answer = client.response();
        assert!([201, 202].contains(&answer.status), "{answer:?}");
    }

    fn ask(&self, target: &str, headers: &str) -> Client {
        let mut client = self.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nUser-Agent: test/1\r\n{headers}\r\n"));
        client
    }

    pub(crate) fn open(&self, target: &str, headers: &str) -> Client {
        let mut client = self.ask(target, headers);
        until(&mut client, "\r\n\r\n");
        client
    }
}

/// Reads up to a text.
pub(crate) fn until(client: &mut Client, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        bytes.extend(client.take(1));
    }
    String::from_utf8(bytes).unwrap()
}

/// The next message of a WebSocket.
pub(crate) fn frame(client: &mut Client) -> String {
    let head = client.take(2);
    assert_eq!(head[0], 0x81, "{head:?}");
    assert!(head[1] < 126);
    String::from_utf8(client.take(head[1].into())).unwrap()
}

/// What a client of WebSocket says.
pub(crate) fn masked(text: &str) -> Vec<u8> {
    [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0], text.as_bytes()].concat()
}

#[test]
fn subscribers_of_every_kind_go_on_with_the_new_binary() {
    let server = Long::start(site(""));
    let mut frames = server.open("/sub?id=a", UPGRADE);
    let mut meta = server.open("/sub?id=a", &format!("{UPGRADE}Sec-WebSocket-Protocol: ws+meta.nchan\r\n"));
    let mut events = server.open("/sub?id=a", "Accept: text/event-stream\r\n");
    let mut both = server.open("/both?id=a", UPGRADE);
    let mut poll = server.ask("/sub?id=a", "");
    assert!(until(&mut events, ": hi\n\n\r\n").starts_with('6'));
    let subscribers = |count: usize| {
        let text = format!("active subscribers: {count}");
        assert!(wait(|| server.get("/pub?id=a").text().contains(&text)), "{}", server.get("/pub?id=a").text());
    };
    subscribers(5);
    for round in 0..3 {
        server.say("a", &format!("before {round}"));
        assert_eq!(frame(&mut frames), format!("before {round}"));
        let answer = poll.response();
        assert_eq!(answer.text(), format!("before {round}"));
        let id = [("If-None-Match", "Etag"), ("If-Modified-Since", "Last-Modified")];
        let id: String = id.iter().map(|(ask, from)| format!("{ask}: {}\r\n", answer.header(from).unwrap())).collect();
        poll.send(format!("GET /sub?id=a HTTP/1.1\r\nHost: a\r\n{id}\r\n"));
        subscribers(5);
        server.upgrade();
        subscribers(5);
        // An id of the next second, with the same number in it: what a poll is asked is no condition on its answer.
        std::thread::sleep(Duration::from_millis(1050));
        both.send(masked(&format!("after {round}")));
        assert_eq!(frame(&mut frames), format!("after {round}"));
        let answer = poll.response();
        assert_eq!(answer.text(), format!("after {round}"), "{answer:?}");
        poll.send("GET /sub?id=a HTTP/1.1\r\nHost: a\r\n\r\n");
        for text in ["before", "after"] {
            let text = format!("{text} {round}");
            assert!(frame(&mut meta).ends_with(&text));
            assert_eq!(frame(&mut both), text);
            until(&mut events, &format!("data: {text}\n\n\r\n"));
        }
        subscribers(5);
    }
    // Who comes later finds what was published in the first process.
    let mut late = server.open("/all?id=a", UPGRADE);
    assert_eq!(frame(&mut late), "before 0");
    drop((frames, late));
    server.wait_for("logs/all.log", "\"GET /sub?id=a HTTP/1.1\" 101 a \"test/1\"");
}

#[test]
fn who_comes_while_the_old_binary_hands_over_goes_too() {
    let server = Long::start(site(""));
    let mut kept = server.connect();
    let before = kept.get("/who").text();
    // A connection with a request under way stays, and its next request is one of the old process.
    kept.send("GET /sub?id=a HTTP/1.1\r\nHost: a");
    std::thread::sleep(Duration::from_millis(100));
    let old = beside(&server);
    kept.send("\r\n\r\n");
    let subscribes = || server.get("/pub?id=a").text().contains("active subscribers: 1");
    assert!(wait(subscribes), "{}", server.get("/pub?id=a").text());
    server.say("a", "hello");
    assert_eq!(kept.response().text(), "hello");
    assert_ne!(before.split(' ').next(), kept.get("/who").text().split(' ').next());
    end(&server, old);
}

#[test]
fn nobody_misses_a_message_or_has_it_twice() {
    const COUNT: usize = 2000;
    let server = Arc::new(Long::start(site("")));
    let mut all: Vec<_> = (0..COUNT).map(|_| server.open("/sub?id=a", UPGRADE)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = {
        let (server, stop) = (server.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut said = 0;
            while !stop.load(Relaxed) {
                server.say("a", &format!("message {said}"));
                said += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            said
        })
    };
    for _ in 0..3 {
        server.upgrade();
        server.reload();
    }
    stop.store(true, Relaxed);
    let said = publisher.join().unwrap();
    assert!(said > 10, "{said}");
    server.say("a", "the last");
    for client in &mut all {
        for number in 0..said {
            assert_eq!(frame(client), format!("message {number}"));
        }
        assert_eq!(frame(client), "the last");
    }
    let lost = server.error_log().matches("[alert]").count();
    assert_eq!(lost, 0, "{}", server.error_log());
}

#[test]
fn kept_connections_go_on_with_the_new_binary() {
    let server = Long::start(site(""));
    let mut all: Vec<_> = (0..200).map(|_| server.connect()).collect();
    let who = |client: &mut Client| -> Vec<u64> {
        client.get("/who").text().split(' ').map(|word| word.parse().unwrap()).collect()
    };
    let before: Vec<_> = all.iter_mut().map(who).collect();
    for round in 1..3 {
        server.upgrade();
        for (client, before) in all.iter_mut().zip(&before) {
            let now = who(client);
            assert_eq!(now[1..], [before[1], before[2] + round], "its number and its requests go on");
            assert_ne!(now[0], before[0]);
        }
    }
}

#[test]
fn a_new_binary_that_fails_takes_nothing_with_it() {
    let server = Long::start(site(""));
    let mut frames = server.open("/sub?id=a", UPGRADE);
    let mut kept = server.connect();
    let before = kept.get("/who").text();
    let master = server.master();
    let good = server.read("nginx.conf");
    std::fs::write(server.dir().join("nginx.conf"), format!("{good} nonsense;")).unwrap();
    // The command reads the file as well, so the master is told as nginx's is.
    server.signal(Signal::USR2);
    server.wait_for("logs/error.log", "exited with code 1");
    assert!(wait(|| server.master() == master));
    std::fs::write(server.dir().join("nginx.conf"), good).unwrap();
    server.say("a", "still here");
    assert_eq!(frame(&mut frames), "still here");
    let after = kept.get("/who").text();
    assert_eq!(before.split(' ').next(), after.split(' ').next());
    // And one that is killed when it has taken over gives back what it has not.
    server.signal(Signal::USR2);
    server.wait_for("logs/error.log", "has handed over");
    let new = server.master().unwrap();
    // The master first, lest it start another worker.
    let workers = crate::processes::children(new.as_raw_nonzero().get() as u32);
    let _ = kill_process(new, Signal::KILL);
    for worker in workers {
        let _ = kill_process(Pid::from_raw(worker).unwrap(), Signal::KILL);
    }
    server.wait_for("logs/error.log", "has ended: this one serves on");
    assert!(wait(|| server.master() == master), "{}", server.error_log());
    server.say("a", "nobody hears");
    assert_eq!(server.get("/who").status, 200);
    server.upgrade();
    assert_eq!(server.get("/who").status, 200);
}

#[test]
fn who_has_no_place_in_the_new_configuration_is_told_to_go() {
    let server = Long::start(site("location /gone { nchan_subscriber; nchan_channel_id g; }"));
    let mut gone = server.open("/gone", UPGRADE);
    let mut stays = server.open("/sub?id=a", UPGRADE);
    let text = server.read("nginx.conf").replace("location /gone", "location /other");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.upgrade();
    assert_eq!(gone.take(4), [0x88, 12, 0x03, 0xe9]);
    server.say("a", "hello");
    assert_eq!(frame(&mut stays), "hello");
}

#[test]
fn a_configuration_that_takes_a_new_process_keeps_them_too() {
    let server = Long::start(site(""));
    let mut frames = server.open("/sub?id=a", UPGRADE);
    let mut kept = server.connect();
    let before = kept.get("/who").text();
    let text = server.read("nginx.conf").replace("worker_processes 2;", "worker_processes 2; env NEW=1;");
    std::fs::write(server.dir().join("nginx.conf"), text).unwrap();
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "has handed over");
    assert!(wait(|| kept.get("/who").text().split(' ').next() != before.split(' ').next()), "{}", server.error_log());
    server.say("a", "hello");
    assert_eq!(frame(&mut frames), "hello");
}

#[test]
fn zones_go_on_with_the_new_binary() {
    let text = format!(
        "worker_processes 2; events {{ }} http {{ access_log off;
         limit_req_zone $arg_k zone=rate:1m rate=1r/m; limit_conn_zone $arg_k zone=places:1m;
         keyval_zone zone=words:1m; keyval $arg_w $word zone=words;
         upstream sick {{ zone sick 64k; server 127.0.0.1:1 max_fails=1 fail_timeout=600s; server 127.0.0.1:2 max_fails=1 fail_timeout=600s; }}
         server {{ listen 127.0.0.1:@PORT@; {CHANNELS}
             location /rated {{ limit_req zone=rate; try_files /none =204; }}
             location /held {{ limit_conn places 1; nchan_subscriber; nchan_channel_id h; }}
             location /word {{ return 200 \"<$word>\"; }}
             location /sick {{ proxy_pass http://sick; }}
             location /api {{ api write=on; }} }} }}"
    );
    let server = Long::start(Site::whole(&text));
    let status = |target: &str| server.get(target).status;
    assert_eq!((status("/rated?k=a"), status("/rated?k=a")), (204, 503));
    let body = r#"{"hello":"world"}"#;
    let mut client = server.connect();
    client.send(format!(
        "POST /api/9/http/keyvals/words HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.response().status, 201);
    let held = server.open("/held?k=a", UPGRADE);
    let again = || {
        let mut client = server.ask("/held?k=a", UPGRADE);
        client.read_response(true).unwrap().status
    };
    assert_eq!(again(), 503);
    status("/sick");
    let fails = || server.get("/api/9/http/upstreams/sick").text().matches("\"state\":\"unavail\"").count();
    assert_eq!(fails(), 2);
    for fresh in ["/rated?k=b", "/rated?k=c"] {
        server.upgrade();
        assert_eq!((status("/rated?k=a"), status(fresh)), (503, 204));
        assert_eq!(server.get("/word?w=hello").text(), "<world>");
        assert_eq!(again(), 503, "the place goes with its connection");
        assert_eq!(fails(), 2, "{}", server.get("/api/9/http/upstreams/sick").text());
    }
    drop(held);
    assert!(wait(|| again() == 101));
}

/// Another process of the same binary serves beside the one that did, which is not told to go.
pub(crate) fn beside(server: &Long) -> Pid {
    let old = server.master().unwrap();
    server.signal(Signal::USR2);
    server.wait_for("logs/error.log", "has handed over");
    assert!(wait(|| server.master().is_some_and(|new| new != old)), "{}", server.error_log());
    old
}

pub(crate) fn end(server: &Long, old: Pid) {
    let _ = kill_process(old, Signal::QUIT);
    assert!(wait(|| is_gone(old)), "the old process is there still:\n{}", server.error_log());
}

#[test]
fn what_is_retained_for_clients_of_mqtt_is_found_in_the_new_process() {
    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
    }
    fn packet(first: u8, body: &[u8]) -> Vec<u8> {
        [&[first, body.len() as u8], body].concat()
    }
    let server = Long::start(Site::whole(&format!(
        "worker_processes 2; events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:@PORT@; {CHANNELS} }}
             server {{ listen 127.0.0.1:@OTHER@ mqtt; location = /mqtt {{ nchan_mqtt; }} }} }} # port @OTHER@"
    )));
    let port: u16 = server.read("nginx.conf").rsplit(' ').next().unwrap().trim().parse().unwrap();
    let open = |name: &str| {
        let mut client = Client::connect(port);
        client.send(packet(0x10, &[string("MQTT"), vec![4, 2, 0, 60], string(name)].concat()));
        assert_eq!(client.take(4), [0x20, 2, 0, 0]);
        client.send(packet(0x82, &[vec![0, 1], string("+"), vec![0]].concat()));
        assert_eq!(client.take(5), [0x90, 3, 0, 1, 0]);
        client
    };
    let hears = |client: &mut Client, first: u8, text: &str| {
        let expected = packet(first, &[string("a"), text.as_bytes().to_vec()].concat());
        assert_eq!(client.take(expected.len()), expected);
    };
    let mut client = open("one");
    client.send(packet(0x31, &[string("a"), b"kept".to_vec()].concat()));
    hears(&mut client, 0x30, "kept");
    let old = beside(&server);
    hears(&mut open("other"), 0x31, "kept");
    server.say("a", "new");
    hears(&mut client, 0x30, "new");
    end(&server, old);
    server.say("a", "newer");
    hears(&mut client, 0x30, "newer");
}

#[test]
fn what_a_balancer_has_said_of_a_client_goes_with_its_connection() {
    let port = Port::reserve();
    let text = format!(
        "worker_processes 2; events {{ }} http {{ keepalive_timeout 60s;
         log_format all '$remote_addr $realip_remote_addr $proxy_protocol_addr $proxy_protocol_tlv_authority $uri';
         access_log @DIR@/logs/all.log all;
         server {{ listen 127.0.0.1:@PORT@; {CHANNELS} }}
         server {{ listen 127.0.0.1:{} proxy_protocol; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol; {CHANNELS}
             location /from {{ return 200 \"$pid $remote_addr:$remote_port $proxy_protocol_server_addr:$proxy_protocol_server_port $proxy_protocol_tlv_authority\"; }}
         }} }}",
        port.number
    );
    let server = Long::start(Site::whole(&text));
    let first = b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 5678\r\n".to_vec();
    let second =
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10"[..], &[198, 51, 100, 7, 192, 0, 2, 2, 0x10, 0, 0, 80], b"\x02\0\x01n"]
            .concat();
    let open = |header: &[u8]| {
        let mut client = Client::connect(port.number);
        client.send(header);
        client
    };
    let (mut one, mut two) = (open(&first), open(&second));
    let said = ["192.0.2.1:1234 192.0.2.2:5678 ", "198.51.100.7:4096 192.0.2.2:80 n"];
    let from = |client: &mut Client| {
        let text = client.get("/from").text();
        let (pid, rest) = text.split_once(' ').unwrap();
        (pid.to_owned(), rest.to_owned())
    };
    let mut frames = open(&second);
    frames.send(format!("GET /sub?id=a HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n"));
    until(&mut frames, "\r\n\r\n");
    let mut pid = from(&mut one).0;
    assert_eq!(from(&mut two).1, said[1]);
    for round in 0..2 {
        server.upgrade();
        let (new, rest) = from(&mut one);
        assert_eq!(rest, said[0]);
        assert_ne!(std::mem::replace(&mut pid, new.clone()), new);
        assert_eq!(from(&mut two), (new, said[1].to_owned()));
        server.say("a", &format!("hello {round}"));
        assert_eq!(frame(&mut frames), format!("hello {round}"));
    }
    drop(frames);
    let line = "198.51.100.7 127.0.0.1 198.51.100.7 n /sub\n";
    assert!(wait(|| server.read("logs/all.log").contains(line)), "{}", server.read("logs/all.log"));
}

/// A peer that has passed a check that is `persistent` is used at once by the new process.
#[test]
fn what_checks_have_found_goes_over() {
    let stalled = Arc::new(AtomicBool::new(false));
    let stalls = stalled.clone();
    let backend = Backend::start(move |request| {
        if request.head.starts_with("GET /health") && stalls.load(Relaxed) {
            std::thread::sleep(Duration::from_secs(5));
        }
        Reply::Keep("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine".into())
    });
    let group = |name: &str| format!("upstream {name} {{ zone {name} 64k; server 127.0.0.1:{}; }}", backend.port);
    let server = Long::start(Site::whole(&format!(
        "worker_processes 1; events {{ }} http {{ access_log off; {} {} proxy_connect_timeout 1s;
         server {{ listen 127.0.0.1:@PORT@;
             location /kept {{ proxy_pass http://kept; health_check interval=1 uri=/health mandatory persistent; }}
             location /anew {{ proxy_pass http://anew; health_check interval=1 uri=/health mandatory; }} }} }}",
        group("kept"),
        group("anew")
    )));
    for target in ["/kept", "/anew"] {
        assert!(wait(|| server.get(target).status == 200), "{}", server.error_log());
    }
    stalled.store(true, Relaxed);
    server.upgrade();
    assert_eq!((server.get("/kept").status, server.get("/anew").status), (200, 502), "{}", server.error_log());
    stalled.store(false, Relaxed);
    assert!(wait(|| server.get("/anew").status == 200), "{}", server.error_log());
}

#[test]
fn an_upgrade_waits_for_the_one_before() {
    let backend = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(1500));
        Reply::ok("late")
    });
    let site = site("location /late { proxy_pass http://127.0.0.1:@LATE@; }").set("LATE", backend.port);
    let server = Long::start(site);
    let mut late = server.connect();
    late.send("GET /late HTTP/1.1\r\nHost: x\r\n\r\n");
    wait(|| backend.seen().len() == 1);
    // The old process has a request to answer: it is not gone when the first command is.
    for _ in 0..2 {
        let output = server.say_upgrade();
        assert!(output.status.success(), "{output:?}\n{}", server.error_log());
    }
    assert_eq!(late.response().text(), "late");
}
