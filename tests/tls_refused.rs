//! TLS that comes to nothing: old versions, unknown ciphers, other protocols, nonsense, silence. Refused, told in the
//! error log, and counted.

use crate::harness::{Client, Server, Setup, curl, has_tools};
use crate::tls::secure;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What the API counts of handshakes.
fn counted(server: &Server) -> Value {
    serde_json::from_str(&curl(&[&format!("https://localhost:{}/api/9/ssl", server.port)])).expect("JSON")
}

/// `openssl s_client` with old things allowed; whether it shook hands.
fn old_client(server: &Server, arguments: &[&str]) -> bool {
    let connect = format!("localhost:{}", server.port);
    let out = Command::new("openssl")
        .args(["s_client", "-connect", &connect, "-servername", "localhost"])
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    out.expect("openssl is installed").status.success()
}

#[test]
fn old_versions_and_ciphers_are_refused_and_counted() {
    if !has_tools() {
        return;
    }
    let server = secure("location /api/ { api; } location /metrics { prometheus; }").start();
    let any = ["-cipher", "ALL:@SECLEVEL=0"];
    for version in ["-tls1", "-tls1_1"] {
        assert!(!old_client(&server, &[&[version], &any[..]].concat()), "{version}");
    }
    for cipher in ["AES128-SHA256:@SECLEVEL=0", "DHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA"] {
        assert!(!old_client(&server, &["-tls1_2", "-cipher", cipher]), "{cipher}");
    }
    // What the only certificate cannot sign for.
    assert!(!old_client(&server, &["-tls1_3", "-sigalgs", "RSA-PSS+SHA256"]));
    assert!(!old_client(&server, &["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"]));
    assert!(old_client(&server, &["-tls1_2"]) && old_client(&server, &["-tls1_3"]));
    // SSL 3, of which openssl knows nothing any more: version, random, no session, RC4-SHA and 3DES, no compression.
    let hello = [&b"\x03\x00"[..], &[7; 32], &[0, 0, 4, 0, 5, 0, 10, 1, 0]].concat();
    let head = [&b"\x16\x03\x00\x00"[..], &[hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8]].concat();
    // And SSL 2.
    for bytes in [&[head, hello].concat()[..], b"\x80\x2e\x01\x00\x02"] {
        let mut client = Client::connect(server.port);
        client.send(bytes);
        let mut answer = Vec::new();
        let _ = client.stream.read_to_end(&mut answer);
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, 70], "protocol_version");
    }
    server.wait_for("logs/error.log", "client offers version 0x0301) while SSL handshaking");
    let all = counted(&server);
    assert_eq!((&all["no_common_protocol"], &all["no_common_cipher"]), (&4.into(), &5.into()), "{all}");
    assert_eq!(all["handshakes_failed"], 9);
    let page = curl(&[&format!("https://localhost:{}/metrics", server.port)]);
    for line in ["{cause=\"no_common_protocol\"} 4", "{cause=\"no_common_cipher\"} 5"] {
        assert!(page.contains(&format!("ironweir_ssl_failures_total{line}")), "{page}");
    }
}

#[test]
fn other_protocols_and_nonsense() {
    if !has_tools() {
        return;
    }
    let server = secure("error_page 497 =301 https://$host$request_uri; return 200 ok;").start();
    let r = Client::connect(server.port).send("GET /a HTTP/1.1\r\nHost: b\r\n\r\n").response();
    assert_eq!((r.status, r.header("Location")), (301, Some("https://b/a")));
    server.wait_for("logs/error.log", "client sent plain HTTP request to HTTPS port");
    let cases: [(&[u8], u8, &str); 4] = [
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", 10, "unexpected message"),
        (b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", 50, "excessive message size"),
        (b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03", 50, "length mismatch"),
        (b"\x80\x2e\x01\x00\x02", 70, "wrong version number"),
    ];
    for (bytes, alert, reason) in cases {
        let mut client = Client::connect(server.port);
        client.send(bytes);
        let mut answer = Vec::new();
        let _ = client.stream.read_to_end(&mut answer);
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, alert], "{reason}");
        server.wait_for("logs/error.log", &format!("SSL_do_handshake() failed (SSL: {reason})"));
    }
    // A record that cannot be decrypted ends the connection.
    let mut client = Setup::new().connect(server.port, "localhost");
    assert_eq!(client.get("/", "localhost").1, "ok");
    client.stream.sock.write_all(b"\x17\x03\x03\x00\x20################################").expect("sent");
    assert!(client.is_closed());
    server.wait_for("logs/error.log", "SSL_read() failed (SSL: ");
    assert_eq!(curl(&[&format!("https://localhost:{}/", server.port)]), "ok");
}

#[test]
fn who_is_silent_or_slow_is_not_waited_for() {
    if !has_tools() {
        return;
    }
    let server = secure("client_header_timeout 300ms; return 200 ok;").start();
    for bytes in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut client = TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
        client.write_all(bytes).expect("sent");
        assert_eq!(client.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    let timed_out =
        || server.error_log().matches("client timed out (110: Connection timed out) while SSL hand").count();
    assert!(crate::harness::wait(|| timed_out() >= 2));
    // One that goes away in the middle is only noted.
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).expect("it listens");
    client.write_all(b"\x16\x03\x01\x02\x00\x01").expect("sent");
    drop(client);
    server.wait_for("logs/error.log", "peer closed connection in SSL handshake");
}
