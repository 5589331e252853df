//! HTTP/2 connections without streams that are parked, or go on with another binary: what they take, and that they go on with their tables of
//! fields as they were.

use crate::harness::{Json, Server, Site, wait};
use crate::upgrade::Long;
use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use std::time::Duration;

/// How long a test may take. Never waited for in full when all is well.
const PATIENCE: Duration = Duration::from_secs(60);
/// The issue asks for this, in memory of our own.
const MOST_BYTES: f64 = 1024.0;
/// What browsers say beside the target, roughly.
const FIELDS: [(&str, &str); 5] = [
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36",
    ),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("accept-language", "en-GB,en;q=0.9,de;q=0.8"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("cookie", "session=0123456789abcdef0123456789abcdef"),
];

type Client = SendRequest<Bytes>;

async fn connect(server: &Server) -> Client {
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::task::spawn_local(async move { drop(connection.await) });
    requests
}

/// Asks, and gives what the server has understood of the fields.
async fn ask(client: &mut Client) -> String {
    let mut request = Request::get("http://a/who");
    for (name, value) in FIELDS {
        request = request.header(name, value);
    }
    std::future::poll_fn(|cx| client.poll_ready(cx)).await.unwrap();
    let (answer, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    let mut text = Vec::new();
    while let Some(piece) = body.data().await {
        text.extend_from_slice(&piece.unwrap());
    }
    String::from_utf8(text).unwrap()
}

fn parked(server: &Server, what: &str) -> f64 {
    Json(server.get("/api/9/ironweir/memory").text()).number(&format!("connections.parked.http2.{what}"))
}

async fn crowd(server: Server) {
    let mut all = Vec::new();
    for _ in 0..19 {
        all.push(connect(&server).await);
    }
    let mut before = Vec::new();
    for client in &mut all {
        before.push(ask(client).await);
    }
    let expected = format!("{} {}", FIELDS[0].1, FIELDS[4].1);
    assert!(before.iter().all(|said| *said == expected), "{before:?}");
    // Others come: who has been silent for a second makes room, without an end.
    for _ in 0..100 {
        if all.len() < 31 {
            let mut client = connect(&server).await;
            ask(&mut client).await;
            all.push(client);
        }
        if server.error_log().contains("take a descriptor each") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Whoever connects looks for room.
        drop(server.connect());
        if parked(&server, "count") >= 10.0 {
            break;
        }
    }
    let count = parked(&server, "count");
    assert!(count >= 10.0, "{count} of {}: {}", all.len(), server.get("/api/9/ironweir/memory").text());
    let bytes = parked(&server, "user_bytes") / count;
    println!("{bytes} B each, of {count}");
    assert!(bytes <= MOST_BYTES, "{bytes}");
    // The client's fields are numbers in a table by now: whoever had lost it would not know them.
    for _ in 0..3 {
        for client in &mut all {
            assert_eq!(ask(client).await, expected);
        }
    }
    assert!(!server.error_log().contains("worker_connections are not enough"), "{}", server.error_log());
    drop(all);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(wait(|| parked(&server, "count") == 0.0));
    assert_eq!(parked(&server, "user_bytes"), 0.0);
}

#[test]
fn connections_without_streams_are_parked_with_their_tables_of_fields() {
    let server = Site::whole(
        "events { worker_connections 40; } http { access_log off; keepalive_timeout 60s;
         server { listen 127.0.0.1:@PORT@; http2 on; location /api { api; }
             location /who { return 200 \"$http_user_agent $http_cookie\"; } } }",
    )
    .start();
    run(crowd(server));
}

async fn go_over(server: Long) {
    let mut all = Vec::new();
    for _ in 0..50 {
        let mut client = connect(&server).await;
        let before = ask(&mut client).await;
        all.push((client, before));
    }
    for round in 1..3 {
        server.upgrade();
        for (client, before) in &mut all {
            let now = ask(client).await;
            let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let (now, before) = (words(&now), words(before));
            assert_ne!(now[0], before[0], "another process answers");
            assert_eq!(now[1], before[1], "it is the same connection");
            assert_eq!(now[2].parse::<u64>().unwrap(), before[2].parse::<u64>().unwrap() + round);
            assert_eq!(now[3..], before[3..], "fields that are numbers by now are known");
        }
    }
    assert_eq!(server.error_log().matches("[alert]").count(), 0, "{}", server.error_log());
}

#[test]
fn kept_connections_go_on_with_the_new_binary() {
    let server = Site::whole(
        "worker_processes 2; events { } http { access_log off; keepalive_timeout 60s;
         server { listen 127.0.0.1:@PORT@; http2 on;
             location /who { return 200 \"$pid $connection $connection_requests $http_user_agent $http_cookie\"; } } }",
    );
    run(go_over(Long::start(server)));
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test = async { tokio::time::timeout(PATIENCE, test).await.expect("in time") };
    runtime.block_on(tokio::task::LocalSet::new().run_until(test));
}
