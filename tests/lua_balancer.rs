//! `balancer_by_lua*`: a program chooses the peer of each try.

use crate::harness::{Backend, Site, has_tools};
use std::net::TcpListener;

/// A port on which nobody listens.
fn nobody() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_program_chooses_the_peer() {
    let (one, two) = (Backend::ok("one"), Backend::ok("two"));
    let server = Site::http(
        r##"upstream u {
             balancer_by_lua_block {
               local b = require "ngx.balancer"
               local port = ngx.var.arg_to == "two" and @TWO@ or @ONE@
               ngx.req.set_header("X-Asked", ngx.get_phase())
               assert(b.set_current_peer("127.0.0.1", port))
               if ngx.var.arg_fresh then assert(b.recreate_request()) end
             }
           }
           upstream plain { server 127.0.0.1:@ONE@; balancer_by_lua_file @DIR@/none.lua; }
           server { listen 127.0.0.1:@PORT@;
             location / { proxy_pass http://u; add_header X-Peer $upstream_addr; }
             location /plain { proxy_pass http://plain; } }"##,
    )
    .set("ONE", one.port)
    .set("TWO", two.port)
    .file("none.lua", "-- says nothing: the group's own method chooses")
    .start();
    let r = server.get("/?to=two");
    assert_eq!((r.text().as_str(), r.header("X-Peer")), ("two", Some(&*format!("127.0.0.1:{}", two.port))));
    assert_eq!(server.get("/").text(), "one");
    assert_eq!(server.get("/?fresh=1").text(), "one");
    assert_eq!(server.get("/plain").text(), "one");
    // The head was made before the program ran, unless it is made anew.
    let asked: Vec<_> = one.seen().iter().map(|s| s.header("X-Asked").map(str::to_owned)).collect();
    assert_eq!(asked, [None, Some("balancer".to_owned()), None]);
}

#[test]
fn a_program_goes_on_after_failures() {
    let good = Backend::ok("good");
    let server = Site::http(
        r##"upstream u {
             server 0.0.0.1;
             balancer_by_lua_block {
               local b = require "ngx.balancer"
               local ctx = ngx.ctx
               ctx.tries = (ctx.tries or 0) + 1
               if ctx.tries == 1 then assert(b.set_more_tries(2)) end
               local state, status = b.get_last_failure()
               ngx.log(ngx.WARN, "try ", ctx.tries, ": ", state, " ", status)
               assert(b.set_timeouts(0.5, 1, 1))
               assert(b.set_current_peer("127.0.0.1", ctx.tries < 3 and @BAD@ or @GOOD@))
             }
           }
           upstream refused { balancer_by_lua_block { ngx.exit(tonumber(ngx.var.arg_status)) } }
           upstream broken { balancer_by_lua_block { ngx.sleep(1) } }
           server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; }
             location /refused { proxy_pass http://refused; } location /broken { proxy_pass http://broken; } }"##,
    )
    .set("GOOD", good.port)
    .set("BAD", nobody())
    .start();
    assert_eq!(server.get("/").text(), "good");
    let log = server.error_log();
    for line in ["try 1: nil nil", "try 2: failed 502", "try 3: failed 502"] {
        assert!(log.contains(line), "{line} in {log}");
    }
    assert_eq!(server.get("/refused?status=403").status, 403);
    assert_eq!(server.get("/refused?status=-5").status, 502);
    assert_eq!(server.get("/broken").status, 500);
    server.wait_for("logs/error.log", "failed to run balancer_by_lua*: balancer_by_lua(nginx.conf:");
    server.wait_for("logs/error.log", "API disabled in the context of balancer_by_lua*");
}

#[test]
fn the_number_of_tries_is_bounded_and_names_are_no_peers() {
    let server = Site::http(
        r##"proxy_next_upstream_tries 5;
           upstream u { balancer_by_lua_block {
             local b = require "ngx.balancer"
             local ok, warning = b.set_more_tries(2)
             ngx.log(ngx.WARN, "more: ", ok, " ", warning)
             ngx.log(ngx.WARN, "name: ", select(2, b.set_current_peer("example.org", 80)))
             b.set_current_peer("127.0.0.1", @BAD@)
           } }
           server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; }
             location /outside { content_by_lua_block { ngx.say(require("ngx.balancer").set_current_peer("127.0.0.1", 1)) } } }"##,
    )
    .set("BAD", nobody())
    .start();
    assert_eq!(server.get("/").status, 502);
    let log = server.error_log();
    assert_eq!(log.matches("[lua] balancer_by_lua(nginx.conf:").count(), 10, "{log}");
    assert_eq!(log.matches("more: true reduced tries due to limit").count(), 3, "{log}");
    assert!(log.contains("name: no host allowed"));
    assert_eq!(server.get("/outside").text(), "nilAPI disabled in the current context\n");
}

#[test]
fn connections_are_kept_as_the_program_says() {
    let backend = Backend::ok("kept");
    let server = Site::http(
        r##"upstream u {
             balancer_by_lua_block {
               local b = require "ngx.balancer"
               ngx.log(ngx.WARN, "early: ", select(2, b.enable_keepalive()))
               assert(b.set_current_peer("127.0.0.1", @PEER@))
               assert(b.enable_keepalive(60, tonumber(ngx.var.arg_requests)))
             }
             balancer_keepalive 4;
           }
           server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; proxy_http_version 1.1;
             proxy_set_header Connection ""; add_header X-Connect $upstream_connect_time; } }"##,
    )
    .set("PEER", backend.port)
    .start();
    for _ in 0..4 {
        assert_eq!(server.get("/?requests=2").text(), "kept");
    }
    assert!(server.error_log().contains("early: no current peer set"));
    let text = "upstream u { balancer_keepalive 4; server 127.0.0.1:1; } server { listen 127.0.0.1:@PORT@; }";
    let (status, said) = Site::http(text).check();
    assert!(!status.success() && said.contains("stands behind \"balancer_by_lua*\""), "{said}");
}

#[test]
fn a_peer_with_tls_has_the_name_that_the_program_gives() {
    if !has_tools() {
        return;
    }
    let server = Site::http(
        r##"upstream u { balancer_by_lua_block {
             assert(require("ngx.balancer").set_current_peer("127.0.0.1", @PORT@, ngx.var.arg_name))
           } }
           server { listen 127.0.0.1:@PORT@ ssl; server_name localhost; ssl_certificate localhost.crt;
             ssl_certificate_key localhost.key; location / { return 200 $ssl_server_name; } }
           server { listen 127.0.0.1:@PLAIN@; location / { proxy_pass https://u; proxy_ssl_server_name on; proxy_ssl_verify on;
             proxy_ssl_trusted_certificate localhost.crt; } }"##,
    )
    .certificate("localhost");
    let plain = nobody();
    let server = server.set("PLAIN", plain).start();
    assert_eq!(crate::harness::Client::connect(plain).get("/?name=localhost").text(), "localhost");
    assert_eq!(crate::harness::Client::connect(plain).get("/?name=example.org").status, 502);
    server.wait_for("logs/error.log", "does not match \"example.org\"");
}

/// A program gives the request another body before it is made anew, whether the client sent one or not.
#[test]
fn a_request_that_is_made_anew_has_the_body_that_a_program_gives() {
    let backend = Backend::ok("fine");
    let server = Site::http(
        r##"upstream u { balancer_by_lua_block {
             local b = require "ngx.balancer"
             assert(b.set_current_peer("127.0.0.1", @PEER@))
             ngx.req.set_body_data("made of " .. (ngx.req.get_body_data() or "nothing"))
             assert(b.recreate_request())
           } }
           server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://u; proxy_http_version 1.1; }
             location /own { proxy_pass http://u; proxy_set_body own; } }"##,
    )
    .set("PEER", backend.port)
    .start();
    assert_eq!(server.get("/").text(), "fine");
    let sent = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nmuch";
    assert_eq!(server.connect().send(sent).response().text(), "fine");
    assert_eq!(server.get("/own").text(), "fine");
    let seen = backend.seen();
    let bodies: Vec<_> = seen.iter().map(|s| String::from_utf8_lossy(&s.body).into_owned()).collect();
    assert_eq!(bodies, ["made of nothing", "made of much", "own"]);
    assert!(seen.iter().all(|s| s.header("Content-Length") == Some(&*s.body.len().to_string())));
}
