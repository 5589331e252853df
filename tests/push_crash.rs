//! Channels outlive a crash of the worker process: who comes back with the last id that it had misses nothing of the buffer.

use crate::harness::{Port, Response, Server, Site, wait};
use crate::mqtt::{Connect, Mqtt};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::MetadataExt;

fn start() -> Server {
    Site::whole(
        "worker_processes 2; events { } http { access_log off;
         server { listen 127.0.0.1:@PORT@;
             location /pub { nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 5; nchan_message_timeout 1h; }
             location /few { nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 2; }
             location /sub { nchan_subscriber; nchan_channel_id $arg_id; nchan_subscriber_first_message oldest; } } }",
    )
    .start()
}

fn say(server: &Server, target: &str, text: &str) {
    let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", text.len());
    let answer = server.connect().send(head + text).response();
    assert!([201, 202].contains(&answer.status), "{answer:?}");
}

/// The message behind another one; none: the first.
fn next(server: &Server, id: &str, before: Option<&Response>) -> Response {
    let place = before.map_or_else(String::new, |answer| {
        let field = |name: &str| answer.header(name).unwrap().to_owned();
        format!("If-Modified-Since: {}\r\nIf-None-Match: {}\r\n", field("Last-Modified"), field("Etag"))
    });
    server.connect().send(format!("GET /sub?id={id} HTTP/1.1\r\nHost: a\r\n{place}\r\n")).response()
}

/// Ends the worker process as a crash does, and waits for the next one.
fn crash(server: &Server) {
    let before = server.worker_pids();
    let pid = before.split_whitespace().next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let is_new = || {
        let now = server.worker_pids();
        !now.trim().is_empty() && now != before
    };
    assert!(wait(is_new), "{}", server.error_log());
}

#[test]
fn what_is_in_buffers_outlives_a_crash() {
    let server = start();
    for text in ["1", "2", "3", "4", "5", "6", "7"] {
        say(&server, "/pub?id=a", text);
    }
    say(&server, "/pub?id=gone", "gone");
    assert_eq!(server.connect().send("DELETE /pub?id=gone HTTP/1.1\r\nHost: a\r\n\r\n").response().status, 200);
    let mut last = next(&server, "a", None);
    assert_eq!(last.text(), "3", "the buffer has five");
    crash(&server);
    for text in ["4", "5"] {
        last = next(&server, "a", Some(&last));
        assert_eq!(last.text(), text);
    }
    say(&server, "/pub?id=a", "8");
    // What the worker before had came with the one that has crashed now.
    crash(&server);
    for text in ["6", "7", "8"] {
        last = next(&server, "a", Some(&last));
        assert_eq!(last.text(), text);
    }
    assert_eq!(server.get("/pub?id=gone").status, 404);
    server.wait_for("logs/error.log", "messages in channels have outlived the worker process before");
}

/// Whoever publishes much keeps little.
#[test]
fn what_is_kept_for_a_crash_is_no_more_than_twice_what_there_is() {
    let server = start();
    let kept = || {
        let pid = server.worker_pids().trim().to_owned();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let is_it = |path: &std::path::Path| {
            std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:worker"))
        };
        let file = files.map(|file| file.path()).find(|path| is_it(path)).expect("the worker has it");
        std::fs::metadata(file).unwrap().blocks() * 512
    };
    let text = "x".repeat(20_000);
    for number in 0..300 {
        say(&server, "/few?id=a", &format!("{number} {text}"));
    }
    assert!(wait(|| kept() < 3_000_000), "{}", kept());
    crash(&server);
    let first = next(&server, "a", None);
    assert_eq!(first.text(), format!("298 {text}"));
    assert_eq!(next(&server, "a", Some(&first)).text(), format!("299 {text}"));
}

/// A client that is away, and one that is connected when the worker crashes: what was put by, what they subscribe to, where they stand.
#[test]
fn sessions_of_mqtt_outlive_a_crash() {
    let mqtt = Port::reserve();
    let server = Site::whole(
        "worker_processes 2; events { } http { access_log off;
         server { listen 127.0.0.1:@PORT@; nchan_channel_group g;
             location ~ ^/pub/(.+)$ { nchan_publisher; nchan_channel_id $1; nchan_message_buffer_length 5; }
             location = /stub { nchan_stub_status; } }
         server { listen 127.0.0.1:@MQTT@ mqtt; nchan_channel_group g; location = /mqtt { nchan_mqtt; nchan_message_buffer_length 5; } } }",
    )
    .set("MQTT", mqtt.number)
    .start();
    // So large that the bill says when one was put by.
    let long = |text: &str| format!("{text:<20000}");
    let wait_for_kb = |least: usize| {
        let used = || {
            let page = server.get("/stub").text();
            let line = page.lines().find_map(|line| line.strip_prefix("shared memory used: ")).unwrap().to_owned();
            line.strip_suffix('K').unwrap().parse::<usize>().unwrap()
        };
        assert!(wait(|| used() >= least), "{} of {least}", used());
    };
    let stays = |client| Connect { clean: false, ..Connect::three(client) };
    let mut away = Mqtt::connect(mqtt.number, &stays("away"), false);
    assert_eq!((away.subscribe("a/1", 1), away.subscribe("w/+", 1), away.subscribe("low", 0)), (1, 1, 0));
    drop(away);
    let mut here = Mqtt::connect(mqtt.number, &stays("here"), false);
    assert_eq!(here.subscribe("h/1", 1), 1);
    drop(Mqtt::connect(mqtt.number, &stays("gone"), false));
    // One that is over is not there afterwards.
    drop(Mqtt::connect(mqtt.number, &Connect::three("gone"), false));
    for (topic, text) in [("a/1", "1"), ("low", "low"), ("a/1", "2")] {
        say(&server, &format!("/pub/{topic}"), text);
    }
    say(&server, "/pub/h/1", "heard");
    assert_eq!(here.message(), "32 h/1 #1 heard");
    // In their channels, for who hears the filter, and put by.
    say(&server, "/pub/w/1", &long("3"));
    say(&server, "/pub/w/2", &long("4"));
    wait_for_kb(6 * 19);
    crash(&server);
    assert!(here.client.is_closed());
    say(&server, "/pub/w/3", &long("5"));
    say(&server, "/pub/h/1", "after 1");
    // Four that were there, and this one as those before.
    wait_for_kb(7 * 19);
    crash(&server);
    say(&server, "/pub/w/3", &long("6"));
    say(&server, "/pub/h/1", "after 2");
    let mut away = Mqtt::connect(mqtt.number, &stays("away"), true);
    let mut heard: Vec<String> = (0..6).map(|_| away.message()).collect();
    heard.iter_mut().for_each(|line| {
        let parts: Vec<&str> = line.split_whitespace().collect();
        *line = format!("{} {}", parts[1], parts[3]);
    });
    heard.sort();
    assert_eq!(heard, ["a/1 1", "a/1 2", "w/1 3", "w/2 4", "w/3 5", "w/3 6"]);
    away.is_quiet();
    let mut here = Mqtt::connect(mqtt.number, &stays("here"), true);
    // The first was not confirmed.
    let heard: Vec<String> = (0..3).map(|_| here.message()).collect();
    assert!(["heard", "after 1", "after 2"].iter().all(|text| heard.iter().any(|m| m.ends_with(text))), "{heard:?}");
    here.is_quiet();
    drop(Mqtt::connect(mqtt.number, &stays("gone"), false));
    server.wait_for("logs/error.log", "sessions of MQTT have outlived the worker process before");
}
