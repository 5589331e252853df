//! Zones of `limit_req` and `limit_conn` that servers share by a Redis: whole servers against Debian's redis-server, which is cut off, and servers that die.

use crate::harness::{Client, Server, Site, wait};
use crate::push_redis::{Redis, Wire};
use std::net::TcpListener;
use std::time::Duration;

/// Requests at once that one server lets pass: the first and the burst.
const AT_ONCE: usize = 10;

/// A server whose zones are shared through a port; what asks for `/hold` waits for a backend that says nothing.
fn node(redis: u16, silent: &TcpListener) -> Server {
    let silent = silent.local_addr().unwrap().port();
    Site::http(&format!(
        "limit_req_zone $arg_k zone=rate:1m rate=1r/m redis=there;
         limit_conn_zone $arg_k zone=places:1m redis=there;
         upstream there {{ nchan_redis_server 127.0.0.1:{redis}; nchan_redis_reconnect_delay 50ms; nchan_redis_command_timeout 2s; }}
         server {{ listen 127.0.0.1:@PORT@;
             location /rate {{ limit_req zone=rate burst=9 nodelay; empty_gif; }}
             location /place {{ limit_conn places 2; empty_gif; }}
             location /hold {{ limit_conn places 2; proxy_pass http://127.0.0.1:{silent}; }} }}"
    ))
    .start()
}

/// Asks until it is refused: how many requests passed. Slowly, so that what others have counted comes in between.
fn until_refused(server: &Server, target: &str, pause: Duration) -> usize {
    for passed in 0..200 {
        if server.get(target).status == 503 {
            return passed;
        }
        std::thread::sleep(pause);
    }
    panic!("{target} is never refused");
}

fn hold(server: &Server, key: &str) -> Client {
    let mut client = server.connect();
    client.send(format!("GET /hold?k={key} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

#[test]
fn one_bucket_for_two_servers() {
    let Some(redis) = Redis::start(&[]) else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (a, b) = (node(redis.port.number, &silent), node(redis.port.number, &silent));
    assert_eq!(until_refused(&a, "/rate?k=x", Duration::ZERO), AT_ONCE);
    // By itself it would let as many pass.
    let passed = until_refused(&b, "/rate?k=x", Duration::from_millis(300));
    assert!((1..AT_ONCE).contains(&passed), "{passed}");
    assert_eq!(until_refused(&b, "/rate?k=y", Duration::ZERO), AT_ONCE, "another key has its own");
}

#[test]
fn without_redis_each_server_has_its_own_limits_and_says_so_once() {
    let Some(redis) = Redis::start(&[]) else { return };
    let wire = Wire::to(redis.port.number);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (a, b) = (node(wire.port, &silent), node(redis.port.number, &silent));
    a.get("/rate?k=first");
    wire.cut();
    let gone = "zone \"rate\" has this server's limits only, Redis \"there\" is gone";
    // Another key each time: what is refused is not told to anybody, and nobody would notice.
    let mut number = 0;
    assert!(wait(|| {
        number += 1;
        a.get(&format!("/rate?k=first{number}"));
        a.error_log().contains(gone)
    }));
    assert_eq!(until_refused(&b, "/rate?k=x", Duration::ZERO), AT_ONCE);
    let passed = until_refused(&a, "/rate?k=x", Duration::from_millis(50));
    assert_eq!(passed, AT_ONCE, "no request has waited for Redis, and the limit of one server holds");
    assert_eq!(a.error_log().matches(gone).count(), 1, "{}", a.error_log());
    wire.mend();
    a.wait_for("logs/error.log", "zone \"rate\" is shared again");
    assert_eq!(until_refused(&b, "/rate?k=z", Duration::ZERO), AT_ONCE);
    assert!(until_refused(&a, "/rate?k=z", Duration::from_millis(300)) < AT_ONCE);
}

#[test]
fn places_that_one_server_gives_are_taken_at_the_other() {
    let Some(redis) = Redis::start(&[]) else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (a, b) = (node(redis.port.number, &silent), node(redis.port.number, &silent));
    let held = [hold(&a, "x"), hold(&a, "x")];
    assert!(wait(|| b.get("/place?k=x").status == 503), "both places are taken at the other server");
    assert_eq!(b.get("/place?k=y").status, 200);
    drop(held);
    assert!(wait(|| b.get("/place?k=x").status == 200), "they were given back");
    // A server that dies holds nothing for long. (Of "x" a place may still be taken.)
    let _held = [hold(&a, "z"), hold(&a, "z")];
    assert!(wait(|| b.get("/place?k=z").status == 503));
    drop(a);
    assert!(wait(|| b.get("/place?k=z").status == 200));
}

#[test]
fn an_upstream_that_is_no_redis_is_said() {
    let site = Site::http(
        "limit_req_zone $arg_k zone=rate:1m rate=1r/s redis=nobody; upstream other { server 127.0.0.1:1; }
         limit_conn_zone $arg_k zone=places:1m redis=other; server { listen 127.0.0.1:@PORT@; }",
    );
    let (status, said) = site.check();
    assert!(!status.success());
    for name in ["nobody", "other"] {
        assert!(said.contains(&format!("there is no upstream \"{name}\" with \"nchan_redis_server\"")), "{said}");
    }
}
