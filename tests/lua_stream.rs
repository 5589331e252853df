//! Programs in `stream`, and raw sockets of requests.

use crate::harness::{Client, Port, Setup, Site, has_tools};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// A configuration with one `server` of `stream` on `@PORT@`; `around` stands in the `stream` block.
fn stream(around: &str, server: &str) -> Site {
    Site::whole(&format!("events {{}} stream {{ {around} server {{ listen 127.0.0.1:@PORT@; {server} }} }}"))
}

/// A peer that says its name and sends back what it gets.
fn peer(name: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut copy = connection.try_clone().unwrap();
                let _ = connection.write_all(name.as_bytes());
                let _ = std::io::copy(&mut copy, &mut connection);
                let _ = connection.shutdown(Shutdown::Write);
            });
        }
    });
    port
}

/// All that comes back for some bytes, after which the client says no more.
fn exchange(port: u16, bytes: &[u8]) -> String {
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(bytes).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    let _ = client.read_to_string(&mut text);
    text
}

#[test]
fn a_program_answers_a_session() {
    let server = stream(
        "lua_shared_dict counts 1m; init_by_lua_block { began = ngx.config.subsystem }
         log_format f '$seen $status $bytes_received $bytes_sent'; access_log logs/stream.log f;",
        r##"set $seen "";
            content_by_lua_block {
              local sock = assert(ngx.req.socket(true))
              local line = sock:receive()
              if not line then return end
              ngx.say(began, " ", ngx.get_phase(), " ", ngx.var.remote_addr, " ", line, " ", (ngx.shared.counts:incr(line, 1, 0)))
              ngx.flush(true)
              local read = sock:receiveuntil("--")
              assert(sock:send(read() .. "|" .. sock:receive(3) .. "\n"))
              ngx.sleep(0.01)
              ngx.print(ngx.redirect, " ", ngx.location, " ", ngx.req.get_headers)
              ngx.ctx.seen = line
            }
            log_by_lua_block { ngx.var.seen = (ngx.ctx.seen or "nothing") .. "/" .. ngx.get_phase() }"##,
    )
    .start();
    assert_eq!(exchange(server.port, b"hello\r\nabc--xyz"), "stream content 127.0.0.1 hello 1\nabc|xyz\nnil nil nil");
    assert_eq!(exchange(server.port, b"again\r\n--xyz").lines().next(), Some("stream content 127.0.0.1 again 1"));
    server.wait_for("logs/stream.log", "hello/log 200 15 ");
}

#[test]
fn a_program_looks_first_and_chooses_the_peer() {
    let (one, two) = (peer("one:"), peer("two:"));
    let server = stream(
        r##"upstream u { server 0.0.0.1:1; balancer_by_lua_block {
              local b = require "ngx.balancer"
              assert(b.set_current_peer("127.0.0.1", ngx.ctx.to == "2" and @TWO@ or @ONE@))
            } }"##,
        r##"preread_by_lua_block {
              local sock = ngx.req.socket()
              local first = sock:peek(1)
              if first == "x" then ngx.exit(403) end
              if first == "e" then error("bad") end
              if first == "d" then sock:receive(2) end
              ngx.ctx.to = first
            }
            proxy_half_close on;
            proxy_pass u;"##,
    )
    .set("ONE", one)
    .set("TWO", two)
    .start();
    assert_eq!(exchange(server.port, b"1 hello"), "one:1 hello");
    assert_eq!(exchange(server.port, b"2 hello"), "two:2 hello");
    // What a program has read is not passed on.
    assert_eq!(exchange(server.port, b"d hello"), "one:hello");
    assert_eq!(exchange(server.port, b"x hello"), "");
    assert_eq!(exchange(server.port, b"e hello"), "");
    server.wait_for("logs/error.log", "runtime error: preread_by_lua(nginx.conf:");
}

#[test]
fn a_session_behind_tls_gets_the_certificate_of_its_program() {
    if !has_tools() {
        return;
    }
    let server = Site::whole(
        r##"events {} stream { server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
             ssl_certificate_by_lua_block {
               local ssl = require "ngx.ssl"
               local function read(name) local f = assert(io.open("@DIR@/" .. name)) local t = f:read("*a") f:close() return t end
               assert(ssl.clear_certs())
               assert(ssl.set_cert(ssl.parse_pem_cert(read("other.crt"))))
               assert(ssl.set_priv_key(ssl.parse_pem_priv_key(read("other.key"))))
             }
             content_by_lua_block { ngx.say("behind ", ngx.var.ssl_server_name) } } }"##,
    )
    .certificate("localhost")
    .certificate("other")
    .start();
    let mut client = Setup::new().connect(server.port, "other");
    let shown = client.stream.conn.peer_certificates().unwrap()[0].to_vec();
    let mut text = String::new();
    let _ = client.stream.read_to_string(&mut text);
    assert_eq!(text, "behind other\n");
    let own = std::fs::read_to_string(server.dir().join("localhost.crt")).unwrap();
    assert!(!own.is_empty() && !shown.is_empty());
}

#[test]
fn dictionaries_of_http_and_stream_are_apart() {
    let text = "events {} http { lua_shared_dict d 1m; } stream { lua_shared_dict d 1m; }";
    let (status, said) = Site::whole(text).check();
    assert!(!status.success() && said.contains("\"d\" is already declared for a different use"), "{said}");
}

#[test]
fn a_request_s_connection_becomes_the_program_s() {
    let server = Site::server(
        r##"location = /raw { content_by_lua_block {
             local sock = assert(ngx.req.socket(true))
             ngx.log(ngx.WARN, "again: ", select(2, ngx.req.socket(true)), ", say: ", select(2, ngx.say("x")),
                     ", close: ", sock.close, ", fd: ", sock:getfd() > 2)
             local name = sock:receive()
             assert(sock:send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello, " .. name .. "\n"))
             local rest = sock:receive("*a")
             sock:send("and " .. rest)
           } }
           location = /upgraded { content_by_lua_block {
             ngx.status = 101 ngx.header.Upgrade = "x" ngx.header.Connection = "upgrade"
             assert(ngx.send_headers()) assert(ngx.flush(true))
             local sock = assert(ngx.req.socket(true))
             repeat local line = sock:receive() if line then sock:send("<" .. line .. ">\n") end until not line
           } }
           location = /chunked { content_by_lua_block { local sock = assert(ngx.req.socket(true))
             sock:send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" .. sock:receive() .. " bytes of " .. sock:receive()) } }"##,
    )
    .start();
    let mut client = server.connect();
    client.send("POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nme\r\n").send("more").finish();
    let text = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(text.ends_with("\r\n\r\nhello, me\nand more"), "{text}");
    server.wait_for("logs/error.log", "again: duplicate call, say: raw request socket acquired, close: nil, fd: true");
    let mut client = server.connect();
    client.send("GET /upgraded HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\none\ntwo\n").finish();
    let text = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(text.starts_with("HTTP/1.1 101 ") && text.ends_with("\r\n\r\n<one>\n<two>\n"), "{text}");
    let mut client = Client::connect(server.port);
    client.send("POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    let text = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(text.ends_with("\r\n\r\n3 bytes of abc"), "{text}");
}

#[test]
fn a_program_judges_a_peer_s_certificate() {
    if !has_tools() {
        return;
    }
    let second = Port::reserve();
    let judged = |port: &str, trusted: bool| {
        format!(
            "server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:@OTHER@; proxy_ssl on; proxy_ssl_verify on; proxy_ssl_name localhost;
               proxy_ssl_trusted_certificate other.crt; proxy_ssl_verify_by_lua_block {{
                 local verify = require 'ngx.ssl.proxysslverify'
                 ngx.sleep(0.001)
                 ngx.log(ngx.WARN, ngx.get_phase(), ' result: ', verify.get_verify_result())
                 if {trusted} then assert(verify.set_verify_result(0)) end
               }} }}"
        )
    };
    let server = Site::whole(&format!(
        "events {{}} http {{ server {{ listen 127.0.0.1:@OTHER@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
             location / {{ return 200 fine; }} }} }} stream {{ {} {} }}",
        judged(&second.number.to_string(), false),
        judged("@PORT@", true)
    ))
    .certificate("localhost")
    .certificate("other")
    .start();
    let ask = |port: u16| {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        let _ = client.read_to_string(&mut text);
        text
    };
    assert!(ask(server.port).ends_with("\r\n\r\nfine"), "{}", server.error_log());
    assert_eq!(ask(second.number), "", "{}", server.error_log());
    server.wait_for("logs/error.log", "proxy_ssl_verify result: 18");
}

/// `lua_capture_error_log`: programs of `http` and of `stream` read the same lines, each of them at its own pace and from its own level on.
#[test]
fn programs_of_both_kinds_read_the_log_each_for_itself() {
    let second = Port::reserve();
    let read = "local log = require 'ngx.errlog'
        local function seen()
          local lines, marks = assert(log.get_logs(1000)), {}
          for at = 3, #lines, 3 do marks[#marks + 1] = lines[at]:match('mark %d') end
          return table.concat(marks, ' ')
        end ";
    let server = Site::whole(&format!(
        "worker_processes 1; events {{}} error_log logs/error.log info;
         http {{ lua_capture_error_log 64k; server {{ listen 127.0.0.1:@PORT@;
           location / {{ content_by_lua_block {{ {read} ngx.print(seen()) }} }} }} }}
         stream {{ lua_capture_error_log 64k; server {{ listen 127.0.0.1:{}; content_by_lua_block {{ {read}
           ngx.log(ngx.WARN, 'mark 1')
           assert(log.set_filter_level(ngx.ERR))
           ngx.log(ngx.WARN, 'mark 2') ngx.log(ngx.ERR, 'mark 3')
           ngx.print(seen(), '/', seen())
         }} }} }}",
        second.number
    ))
    .start();
    assert_eq!(exchange(second.number, b""), "mark 1 mark 3/");
    let mut client = Client::connect(server.port);
    assert_eq!((client.get("/").text(), client.get("/").text()), ("mark 1 mark 2 mark 3".to_owned(), String::new()));
    let (status, said) = Site::whole("events {} stream { lua_capture_error_log 1k; }").check();
    assert!(
        !status.success() && said.contains("invalid capture error log size \"1k\", minimum size is 4096"),
        "{said}"
    );
}

/// What programs of the handshake put into `ngx.ctx` the session's tables fall back on.
#[test]
fn a_session_sees_what_its_handshake_has_left() {
    if !has_tools() {
        return;
    }
    let server = Site::whole(
        r##"events {} stream { server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
             ssl_client_hello_by_lua_block { ngx.ctx.answer = 42 }
             ssl_certificate_by_lua_block { ngx.ctx.answer = ngx.ctx.answer + 1 }
             preread_by_lua_block { ngx.ctx.seen = ngx.ctx.answer }
             content_by_lua_block { ngx.say(ngx.ctx.seen, " ", ngx.ctx.answer, " ", rawget(ngx.ctx, "answer")) } } }"##,
    )
    .certificate("localhost")
    .start();
    let mut client = Setup::new().connect(server.port, "localhost");
    let mut text = String::new();
    let _ = client.stream.read_to_string(&mut text);
    assert_eq!(text, "43 43 nil\n");
}

/// A session of TLS that a program of `stream` has is a value of its own kind, as in OpenResty, and is good for a later handshake.
#[test]
fn a_program_of_stream_uses_a_session_of_tls_again() {
    if !has_tools() {
        return;
    }
    let second = Port::reserve();
    let server = Site::whole(&format!(
        r##"events {{}}
           http {{ server {{ listen 127.0.0.1:@OTHER@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key; ssl_protocols TLSv1.2;
             location / {{ return 200 "$ssl_session_reused"; }} }} }}
           stream {{ lua_ssl_protocols TLSv1.2; server {{ listen 127.0.0.1:@PORT@; return up; }}
             server {{ listen 127.0.0.1:{}; content_by_lua_block {{
             local function ask(session)
               local s = ngx.socket.tcp()
               assert(s:connect("127.0.0.1", @OTHER@))
               local session = assert(s:sslhandshake(session))
               assert(s:send("GET / HTTP/1.0\r\n\r\n"))
               return session, (s:receive("*a"):gsub("^.*\r\n\r\n", ""))
             end
             local session, first = ask()
             local again, second = ask(session)
             local _, third = ask(io.stdout)
             ngx.say(type(session), " ", type(again), " ", first, second, third, " ", tostring(ask(false)))
             session, again = nil, nil
             collectgarbage()
           }} }} }}"##,
        second.number
    ))
    .certificate("localhost")
    .start();
    assert_eq!(exchange(second.number, b""), "userdata userdata .r. true\n", "{}", server.error_log());
}
