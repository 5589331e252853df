//! Programs in sessions of datagrams: `preread_by_lua*`, `content_by_lua*` and `log_by_lua*` on `listen ... udp`.

use crate::harness::{Port, Server, Site};
use std::net::UdpSocket;
use std::time::Duration;

/// A server of datagrams on a port of its own.
fn start(around: &str, server: &str) -> (Server, u16) {
    let port = Port::reserve();
    let text = format!(
        "events {{}} http {{ server {{ listen 127.0.0.1:@PORT@; }} }}
         stream {{ {around} server {{ listen 127.0.0.1:@UDP@ udp; {server} }} }}"
    );
    let number = port.number;
    let server = Site::whole(&text).set("UDP", number).start();
    // It listens for connections a moment before it does for datagrams; who is answered comes after both.
    assert_eq!(server.get("/").status, 403);
    (server, number)
}

fn client(port: u16) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client
}

fn receive(client: &UdpSocket) -> String {
    let mut room = [0; 2048];
    let n = client.recv(&mut room).expect("an answer comes");
    String::from_utf8_lossy(&room[..n]).into_owned()
}

#[test]
fn a_program_answers_datagrams() {
    let (server, port) = start(
        "log_format f '$seen $status $bytes_received $bytes_sent'; access_log logs/stream.log f;",
        r##"set $seen "";
            content_by_lua_block {
              local sock = assert(ngx.req.socket())
              sock:settimeout(3000)
              while true do
                local data = assert(sock:receive())
                if data == "end" then break end
                assert(sock:send("got " .. data .. " " .. #data))
              end
              ngx.say("one")
              ngx.sleep(0.01)
              ngx.print("two")
              ngx.ctx.seen = "seen"
            }
            log_by_lua_block { ngx.var.seen = ngx.ctx.seen }"##,
    );
    let client = client(port);
    for text in ["hello", "again"] {
        client.send(text.as_bytes()).unwrap();
        assert_eq!(receive(&client), format!("got {text} 5"));
    }
    client.send(b"end").unwrap();
    // Each `say` is a datagram.
    assert_eq!((receive(&client), receive(&client)), ("one\n".to_owned(), "two".to_owned()));
    server.wait_for("logs/stream.log", "seen 200 13 29");
}

#[test]
fn a_program_looks_at_the_first_datagram() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let to = peer.local_addr().unwrap().port();
    let (server, port) = start(
        "",
        &format!(
            r##"preread_by_lua_block {{
                  if ngx.var.remote_addr ~= "127.0.0.1" then return ngx.exit(403) end
                  ngx.sleep(0.01)
                  ngx.log(ngx.WARN, "phase ", ngx.get_phase())
                }}
                proxy_pass 127.0.0.1:{to}; proxy_responses 0;"##
        ),
    );
    let client = client(port);
    client.send(b"first").unwrap();
    let mut room = [0; 64];
    let n = peer.recv(&mut room).expect("what nobody has read is passed on");
    assert_eq!(&room[..n], b"first");
    server.wait_for("logs/error.log", "phase preread");
}

/// A client that says no more costs its session the timeout of a read, and nothing else.
#[test]
fn a_quiet_client_ends_the_session() {
    let (_server, port) = start(
        "lua_socket_log_errors off; lua_socket_read_timeout 30ms;",
        "content_by_lua_block { local s = ngx.req.socket() s:receive() local data, why = s:receive() s:send(tostring(data) .. why) }",
    );
    let client = client(port);
    client.send(b"x").unwrap();
    assert_eq!(receive(&client), "niltimeout");
}
