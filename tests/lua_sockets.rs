//! `ngx.socket.tcp`: programs in Lua that talk to others.

use crate::harness::Site;
use std::io::{Read, Write};
use std::net::TcpListener;

/// Serves connections one after the other: each gets what `answer` makes of its first bytes.
fn peer(answer: impl Fn(&[u8], usize) -> Vec<u8> + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut room = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut room) {
                let answer = answer(&room[..n], number);
                if answer.is_empty() || stream.write_all(&answer).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[test]
fn a_program_reads_what_it_wants() {
    let port = peer(|_, _| b"line one\r\nline two\n12345678rest--end".to_vec());
    let server = Site::server(
        r##"location = /t { content_by_lua_block {
             local s = ngx.socket.tcp()
             s:settimeout(2000)
             ngx.say(s:connect("127.0.0.1", @PEER@), " ", s:getreusedtimes())
             ngx.say(s:send({ "a", { "b" }, 1 }))
             ngx.say(s:receive(), "|", s:receive("*l"), "|", s:receive(4), "|", s:receiveany(4))
             local read = s:receiveuntil("--")
             ngx.say(read(), "|", s:receive(3))
             s:settimeout(20)
             ngx.say(s:receive(5))
             ngx.say(s:close(), " ", s:close()) ngx.say(s:send("x"))
           } }
           location = /refused { content_by_lua_block {
             local s = ngx.socket.tcp()
             ngx.say(s:connect("127.0.0.1", @OTHER@)) ngx.say(s:connect("nowhere.invalid", 80)) ngx.say(s:connect("127.0.0.1", "x"))
           } }"##,
    )
    .set("PEER", port)
    .start();
    let text = server.get("/t").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "1 0");
    assert_eq!(lines[1], "3");
    assert_eq!(lines[2], "line one|line two|1234|5678");
    assert_eq!(lines[3], "rest|end");
    assert_eq!(lines[4], "niltimeout");
    assert_eq!(lines[5], "1 nilclosed");
    assert_eq!(lines[6], "nilclosed");
    let text = server.get("/refused").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "nilconnection refused");
    assert_eq!(lines[1], "nilno resolver defined to resolve \"nowhere.invalid\"");
    assert_eq!(lines[2], "nilbad port number: x");
    assert!(server.error_log().contains("connect() failed (111: Connection refused)"));
}

#[test]
fn connections_are_kept_for_the_next() {
    let port = peer(|asked, number| [asked, number.to_string().as_bytes(), b"\n"].concat());
    let server = Site::server(
        r##"location = /t { content_by_lua_block {
             local s = ngx.socket.tcp()
             assert(s:connect("127.0.0.1", @PEER@))
             local reused = s:getreusedtimes()
             s:send("hello ")
             ngx.say(s:receive(), " ", reused)
             ngx.say(s:setkeepalive(10000, 5))
             ngx.say(s:receive())
           } }"##,
    )
    .set("PEER", port)
    .start();
    assert_eq!(server.get("/t").text(), "hello 0 0\n1\nnilclosed\n");
    assert_eq!(server.get("/t").text(), "hello 0 1\n1\nnilclosed\n");
}

/// A client for redis as programs write one, against the real server.
#[test]
fn redis_is_asked_by_a_program() {
    let Some(redis) = Redis::start() else {
        eprintln!("left out: redis-server is not installed");
        return;
    };
    let server = Site::server(
        r##"location = /t { content_by_lua_block {
             local function ask(s, ...)
               local out = { "*", select("#", ...), "\r\n" }
               for _, v in ipairs({ ... }) do table.insert(out, "$" .. #v .. "\r\n" .. v .. "\r\n") end
               assert(s:send(out))
               local line = assert(s:receive())
               local kind, rest = line:sub(1, 1), line:sub(2)
               if kind == "$" then
                 if rest == "-1" then return ngx.null end
                 local data = s:receive(tonumber(rest)) s:receive(2) return data
               end
               return rest
             end
             local s = ngx.socket.tcp()
             assert(s:connect("127.0.0.1", @REDIS@))
             ngx.say(ask(s, "SET", "key", "a value"), " ", ask(s, "GET", "key"), " ", tostring(ask(s, "GET", "none")), " ", ask(s, "INCR", "n"))
             ngx.say(s:setkeepalive())
           } }"##,
    )
    .set("REDIS", redis.port)
    .start();
    assert_eq!(server.get("/t").text(), "OK a value userdata: NULL 1\n1\n");
    assert_eq!(server.get("/t").text(), "OK a value userdata: NULL 2\n1\n");
}

struct Redis {
    child: std::process::Child,
    port: u16,
}

impl Redis {
    fn start() -> Option<Redis> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = std::process::Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let child = command.stdout(std::process::Stdio::null()).spawn().ok()?;
        let redis = Redis { child, port };
        assert!(crate::harness::wait(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()));
        Some(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_program_reads_the_body_itself() {
    let server = Site::server(
        r##"location = /t { content_by_lua_block {
             local s, e = ngx.req.socket()
             if not s then return ngx.say(e) end
             ngx.say(s:receive(3), " ", s:receive("*a")) ngx.say(s:receive(1)) ngx.say(ngx.req.socket())
           } }"##,
    )
    .start();
    let mut client = server.connect();
    client.send("POST /t HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nabcde").send("fgh");
    assert_eq!(client.response().text(), "abc defgh\nnilclosed\nnilduplicate call\n");
    assert_eq!(client.get("/t").text(), "no body\n");
}

#[test]
fn datagrams_go_both_ways() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut room = [0; 100];
        while let Ok((n, from)) = socket.recv_from(&mut room) {
            let _ = socket.send_to(&[b"got ", &room[..n]].concat(), from);
        }
    });
    let server = Site::server(
        r##"location = /t { content_by_lua_block {
             local s = ngx.socket.udp() s:settimeout(2000)
             ngx.say(s:setpeername("127.0.0.1", @PEER@)) ngx.say(s:send("one")) ngx.say(s:receive()) s:send({ "t", "wo" }) ngx.say(s:receive(5))
             ngx.say(s:close())
           } }"##,
    )
    .set("PEER", port)
    .start();
    assert_eq!(server.get("/t").text(), "1\n1\ngot one\ngot t\n1\n");
}

#[test]
fn connections_are_made_secure() {
    if !crate::harness::has_tools() {
        eprintln!("left out: openssl is not installed");
        return;
    }
    let server = Site::http(
        r##"server { listen 127.0.0.1:@OTHER@ ssl; server_name peer.test; ssl_certificate @DIR@/peer.test.crt; ssl_certificate_key @DIR@/peer.test.key;
             location / { return 200 "secret for $ssl_server_name"; } }
           server { listen 127.0.0.1:@PORT@; lua_ssl_trusted_certificate @DIR@/peer.test.crt;
             location = /t { content_by_lua_block {
               local function ask(name, verify)
                 local s = ngx.socket.tcp()
                 assert(s:connect("127.0.0.1", @OTHER@))
                 local ok, err = s:sslhandshake(nil, name, verify)
                 if not ok then return ngx.say(tostring(ok), " ", err) end
                 s:send("GET / HTTP/1.0\r\nHost: peer.test\r\n\r\n")
                 ngx.say((s:receive("*a"):gsub("^.*\r\n\r\n", "")))
               end
               ask("peer.test", true) ask("peer.test", false) ask("other.test", true)
             } } }"##,
    )
    .certificate("peer.test")
    .start();
    let text = server.get("/t").text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["secret for peer.test", "secret for peer.test"]);
    assert!(lines[2] == "nil certificate host mismatch", "{}", lines[2]);
}

/// `lua_ssl_key_log`: what programs that look into packets need, one line a secret.
#[test]
fn secrets_are_written_down_where_that_is_asked_for() {
    if !crate::harness::has_tools() {
        eprintln!("left out: openssl is not installed");
        return;
    }
    let server = Site::http(
        r##"server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate @DIR@/peer.test.crt; ssl_certificate_key @DIR@/peer.test.key; }
           server { listen 127.0.0.1:@PORT@;
             location = /told { lua_ssl_key_log keys.log; content_by_lua_block {
               local s = ngx.socket.tcp() assert(s:connect("127.0.0.1", @OTHER@)) ngx.say((s:sslhandshake(false))) } }
             location = /older { lua_ssl_key_log keys.log; lua_ssl_protocols TLSv1.2; content_by_lua_block {
               local s = ngx.socket.tcp() assert(s:connect("127.0.0.1", @OTHER@)) ngx.say((s:sslhandshake(false))) } }
             location = /secret { content_by_lua_block {
               local s = ngx.socket.tcp() assert(s:connect("127.0.0.1", @OTHER@)) ngx.say((s:sslhandshake(false))) } } }"##,
    )
    .certificate("peer.test")
    .start();
    assert_eq!(server.get("/secret").text(), "true\n");
    assert_eq!(server.read("keys.log"), "");
    assert_eq!(server.get("/told").text(), "true\n");
    let lines = |text: &str| -> Vec<(String, usize, usize)> {
        let parts = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let (label, random, secret) = (words.next()?, words.next()?, words.next()?);
            let is_hex = |word: &str| word.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            (is_hex(&random) && is_hex(&secret)).then_some((label, random.len(), secret.len()))
        };
        text.lines().map(|line| parts(line).unwrap_or_else(|| panic!("{line}"))).collect()
    };
    let newer = lines(&server.read("keys.log"));
    for label in [
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "SERVER_TRAFFIC_SECRET_0",
    ] {
        assert!(
            newer.iter().any(|(l, random, secret)| l == label && *random == 64 && *secret >= 64),
            "{label}: {newer:?}"
        );
    }
    assert_eq!(server.get("/older").text(), "true\n");
    assert!(lines(&server.read("keys.log")).contains(&("CLIENT_RANDOM".to_owned(), 64, 96)));
}

#[test]
fn pieces_up_to_a_text_are_given_as_soon_as_they_are_known() {
    let said = Site::server(
        r##"location = /t { content_by_lua_block {
             local s = ngx.req.socket()
             local read = s:receiveuntil("ab1ab2")
             -- What begins like the text and is not it comes whole.
             ngx.say((read(2)), " ", (s:receive(3)))
             local line = s:receiveuntil("\r\n")
             -- The last byte cannot be a part of it: nobody waits for another.
             ngx.say((line(1)), (line(1)))
           } }"##,
    )
    .start();
    let mut client = said.connect();
    client.send("POST /t HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab1ab1x$!");
    assert_eq!(client.response().text(), "ab1 ab1\nx$\n");
}

#[test]
fn datagrams_of_unix_sockets_are_answered() {
    let server = Site::server(
        r##"location = /t { content_by_lua_block {
             local s = ngx.socket.udp() s:settimeout(3000)
             assert(s:setpeername("unix:@DIR@/peer.sock")) s:send("one") ngx.say(s:receive())
           } }"##,
    )
    .start();
    let socket = std::os::unix::net::UnixDatagram::bind(server.dir().join("peer.sock")).unwrap();
    std::fs::set_permissions(server.dir().join("peer.sock"), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    std::thread::spawn(move || {
        let mut room = [0; 100];
        if let Ok((n, from)) = socket.recv_from(&mut room) {
            let _ = socket.send_to_addr(&[b"got ", &room[..n]].concat(), &from);
        }
    });
    assert_eq!(server.get("/t").text(), "got one\n");
}

#[test]
fn a_socket_has_the_port_that_a_program_wants() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Site::server(
        r##"location = /port { return 200 "$remote_port"; }
           location = /t { content_by_lua_block {
             local s = ngx.socket.tcp()
             ngx.say(s:bind("127.0.0.1", 70000)) ngx.say(s:bind("127.0.0.1", @LOCAL@))
             assert(s:connect("127.0.0.1", @PORT@))
             s:send("GET /port HTTP/1.0\r\n\r\n") ngx.say((s:receive("*a"):gsub("^.*\r\n\r\n", "")))
           } }"##,
    )
    .set("LOCAL", port)
    .start();
    assert_eq!(server.get("/t").text(), format!("nilbad port number: 70000\n1\n{port}\n"));
}

/// In ngx_lua too they end with the request's pool, not when the collector comes by.
#[test]
fn what_a_program_does_not_close_is_closed_with_its_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Site::server(
        r##"lua_code_cache on;
           location = /request { content_by_lua_block {
             local s = ngx.socket.tcp()
             ngx.say(s:connect("127.0.0.1", @PEER@))
           } }
           location = /timer { content_by_lua_block {
             ngx.timer.at(0, function() local s = ngx.socket.tcp() assert(s:connect("127.0.0.1", @PEER@)) ngx.sleep(0.01) end)
           } }
           location = /kept { content_by_lua_block {
             local s = ngx.socket.tcp()
             s:connect("127.0.0.1", @PEER@) ngx.say(s:setkeepalive())
           } }
           location = /again { content_by_lua_block {
             local s = ngx.socket.tcp()
             s:connect("127.0.0.1", @PEER@) ngx.say(s:getreusedtimes())
           } }"##,
    )
    .set("PEER", listener.local_addr().unwrap().port())
    .start();
    let is_over = || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        matches!(stream.read(&mut [0]), Ok(0))
    };
    let mut client = server.connect();
    assert_eq!(client.get("/request").text(), "1\n");
    assert!(is_over());
    assert_eq!(client.get("/timer").status, 200);
    assert!(is_over());
    // What the pool has is not the request's any more.
    assert_eq!(client.get("/kept").text(), "1\n");
    let (_stream, _) = listener.accept().unwrap();
    assert_eq!(client.get("/again").text(), "1\n");
}

/// Light threads that connect through a full pool stand in its queue in the order in which they asked.
#[test]
fn who_asks_a_pool_first_stands_first_in_its_queue() {
    let port = peer(|_, _| b"x".to_vec());
    let server = Site::server(
        r##"location = /t { content_by_lua_block {
             local options = { pool_size = 1, backlog = 2 }
             local first = assert(ngx.socket.connect("127.0.0.1", @PEER@, options))
             local threads = {}
             for at = 1, 3 do
               threads[at] = ngx.thread.spawn(function()
                 local s, why = ngx.socket.connect("127.0.0.1", @PEER@, options)
                 if not s then return ngx.say(at, " ", why) end
                 ngx.say(at, " has it")
                 ngx.sleep(0.005)
                 s:close()
               end)
             end
             first:setkeepalive()
             for _, thread in ipairs(threads) do ngx.thread.wait(thread) end
             -- One that is ended while it stands there leaves its place.
             first = assert(ngx.socket.connect("127.0.0.1", @PEER@, options))
             local gone = ngx.thread.spawn(function() ngx.socket.connect("127.0.0.1", @PEER@, options) end)
             ngx.say(ngx.thread.kill(gone))
             first:close()
             -- So does one that has its place, and waits for an address.
             gone = ngx.thread.spawn(function() ngx.socket.connect("nobody.test", 80, { pool = "own", pool_size = 1, backlog = 1 }) end)
             ngx.say(ngx.thread.kill(gone))
             ngx.say(type(ngx.socket.connect("127.0.0.1", @PEER@, { pool = "own", pool_size = 1, backlog = 1 })))
           } } error_log logs/debug.log debug; resolver 127.0.0.1:@PORT@ ipv6=off; resolver_timeout 60s; lua_socket_connect_timeout 5s;"##,
    )
    .set("PEER", port)
    .start();
    assert_eq!(server.get("/t").text(), "3 too many waiting connect operations\n1 has it\n2 has it\n1\n1\ntable\n");
    server.wait_for("logs/debug.log", "lua tcp socket abort queueing");
}
