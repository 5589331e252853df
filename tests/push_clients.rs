//! Channels and the clients that people have: pages in Chromium, npm's `nchan`, Python's `websockets`.

use crate::harness::{Site, in_chromium};
use std::path::Path;
use std::process::Command;

/// A page that hears a channel in both ways that browsers have, and publishes to it.
const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><form id="f"><input id="words"></form><p id="state"></p><script>
const heard = { events: [], frames: [] };
const open = [];
const opened = what => { open.push(what); if (open.length === 2) document.getElementById('state').textContent = 'both'; };
const events = new EventSource('/channel');
events.onopen = () => opened('events');
events.onmessage = e => heard.events.push(e.data);
const frames = new WebSocket('ws://' + location.host + '/channel');
frames.onopen = () => opened('frames');
frames.onmessage = e => heard.frames.push(e.data);
document.getElementById('f').addEventListener('submit', e => {
  e.preventDefault();
  fetch('/channel', { method: 'POST', body: document.getElementById('words').value });
});
</script>"#;

#[test]
fn pages_in_chromium_hear_each_other() {
    let Some(mut script) = in_chromium("push.mjs") else { return };
    let server = Site::server(
        "types { text/html html; }
         location = /channel { nchan_pubsub; nchan_channel_id demo; nchan_access_control_allow_origin http://127.0.0.1:@PORT@; }",
    )
    .file("html/page.html", PAGE)
    .start();
    let url = format!("http://127.0.0.1:{}/page.html", server.port);
    let out = script.arg(&url).output().expect("node runs");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let heard: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{out:?}"));
    let both = serde_json::json!(["typed here", "and there: ä😀"]);
    for page in [0, 1] {
        assert_eq!((&heard[page]["events"], &heard[page]["frames"]), (&both, &both));
    }
}

/// npm's `nchan`, by long-polls, EventSource and WebSocket.
#[test]
fn npms_client_in_chromium() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/browser/node_modules");
    let Some(mut script) = in_chromium("nchan.mjs") else { return };
    let Ok(client) = std::fs::read_to_string(folder.join("nchan/NchanSubscriber.js")) else {
        return println!("npm's nchan is not installed (make setup): left out");
    };
    let server = Site::server(
        "types { text/html html; text/javascript js; }
         location = /channel { nchan_pubsub; nchan_channel_id demo; nchan_message_buffer_length 20; }",
    )
    .file("html/client.js", &client)
    .file("html/page.html", "<!doctype html><meta charset=utf-8><script src=client.js></script>")
    .start();
    let url = format!("http://127.0.0.1:{}/page.html", server.port);
    let out = script.arg(&url).output().expect("node runs");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let heard: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{out:?}"));
    for transport in ["longpoll", "eventsource", "websocket"] {
        let texts: Vec<_> = heard[transport].as_array().unwrap().iter().map(|m| m[0].as_str().unwrap()).collect();
        assert_eq!(texts, ["before", "then: ä😀", "meanwhile", "after"], "{transport}");
        assert!(heard[transport].as_array().unwrap().iter().all(|m| m[1] == true), "{transport}: {heard}");
    }
}

/// Python's `websockets`.
#[test]
fn pythons_websockets() {
    let has = |python: &&str| {
        let out = Command::new(python).args(["-c", "import websockets"]).output();
        out.is_ok_and(|out| out.status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has) else {
        return println!("Python's websockets is not installed (.ci/setup peers): left out");
    };
    let server = Site::server(
        "location = /ws { nchan_pubsub; nchan_channel_id x; nchan_subscriber_first_message newest;
             nchan_deflate_message_for_websocket on; client_max_body_size 1m; }",
    )
    .start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/push_websockets.py");
    let out = Command::new(python).arg(script).arg(server.port.to_string()).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr));
}
