//! TLS in `stream {}`: from clients, to peers, or both; who is shown which certificate, who is let in, what is carried.

use crate::harness::{Client, Setup, Site, has_tools, openssl, wait};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};

const LOCALHOST: &str = "ssl_certificate localhost.crt; ssl_certificate_key localhost.key;";

/// A server of `stream` with TLS on `@PORT@`, and `around` it.
fn secure(around: &str, server: &str) -> Site {
    let text = format!("events {{}} stream {{ {around} server {{ listen 127.0.0.1:@PORT@ ssl; {server} }} }}");
    Site::whole(&text).certificate("localhost")
}

/// A peer that sends back what it gets.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut copy = connection.try_clone().unwrap();
                let _ = std::io::copy(&mut copy, &mut connection);
                let _ = connection.shutdown(Shutdown::Write);
            });
        }
    });
    port
}

/// All that a server says on a connection.
fn said(setup: &Setup, port: u16, name: &str) -> String {
    let mut client = setup.connect(port, name);
    let mut text = String::new();
    let _ = client.stream.read_to_string(&mut text);
    text
}

#[test]
fn plain_bytes_reach_the_peer_and_come_back() {
    if !has_tools() {
        return;
    }
    let log = "log_format f \"$ssl_protocol $ssl_cipher $ssl_server_name $ssl_session_reused $bytes_received/$bytes_sent $status\";
               access_log logs/stream.log f;";
    let server = secure(log, &format!("{LOCALHOST} proxy_pass 127.0.0.1:@PEER@;")).set("PEER", echo()).start();
    let mut client = Setup::new().connect(server.port, "localhost");
    let data: Vec<u8> = (0..800_000u32).flat_map(u32::to_le_bytes).collect();
    let mut came = Vec::new();
    // As much at once as the buffers on the way hold.
    for piece in data.chunks(40_000) {
        client.stream.write_all(piece).unwrap();
        let mut part = vec![0; piece.len()];
        client.stream.read_exact(&mut part).unwrap();
        came.extend(part);
    }
    assert!(came == data);
    client.stream.conn.send_close_notify();
    client.stream.flush().unwrap();
    // The end comes as an end: with a goodbye.
    assert_eq!(client.stream.read(&mut [0; 10]).unwrap(), 0);
    server.wait_for("logs/stream.log", "TLSv1.3 TLS_AES_256_GCM_SHA384 localhost . 3200000/3200000 200");
}

/// What a client has sent is the peer's before the end is, and with `proxy_half_close` the answer may follow.
#[test]
fn an_end_says_goodbye_in_both_directions() {
    if !has_tools() {
        return;
    }
    let conf = format!("{LOCALHOST} proxy_half_close on; proxy_pass 127.0.0.1:@PEER@;");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = secure("", &conf).set("PEER", listener.local_addr().unwrap().port()).start();
    let peer = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let mut all = String::new();
        connection.read_to_string(&mut all).unwrap();
        connection.write_all(format!("got {all}").as_bytes()).unwrap();
    });
    let mut client = Setup::new().connect(server.port, "localhost");
    client.send("question");
    client.stream.conn.send_close_notify();
    client.stream.flush().unwrap();
    let mut answer = String::new();
    client.stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "got question");
    peer.join().unwrap();
}

#[test]
fn the_name_chooses_the_server() {
    if !has_tools() {
        return;
    }
    let text = "events {} stream {
        server { listen 127.0.0.1:@PORT@ ssl; server_name first; ssl_certificate first.crt; ssl_certificate_key first.key;
                 return first:$ssl_server_name; }
        server { listen 127.0.0.1:@PORT@ ssl; server_name *.example.com; ssl_protocols TLSv1.2;
                 ssl_certificate a.example.com.crt; ssl_certificate_key a.example.com.key;
                 return $server_name:$ssl_protocol; }
        server { listen 127.0.0.1:@PORT@ ssl; server_name ~^p(?<n>[0-9])\\.org$;
                 ssl_certificate $ssl_server_name.crt; ssl_certificate_key $ssl_server_name.key; return p$n; }
        server { listen 127.0.0.1:@PORT@ ssl; server_name refused.org; ssl_reject_handshake on; return no; }
    }";
    let site = Site::whole(text).certificate("first").certificate("a.example.com").certificate("p1.org");
    let server = site.start();
    let setup = Setup::new();
    assert_eq!(said(&setup, server.port, "first"), "first:first");
    assert_eq!(said(&setup, server.port, "unknown.org"), "first:unknown.org");
    assert_eq!(said(&setup, server.port, "a.example.com"), "*.example.com:TLSv1.2");
    assert_eq!(said(&setup, server.port, "p1.org"), "p1");
    let refused = setup.try_connect(server.port, "refused.org").err().expect("refused");
    assert!(refused.to_string().contains("UnrecognisedName"), "{refused}");
    let missing = setup.try_connect(server.port, "p2.org").err().expect("there is no such certificate");
    assert!(missing.to_string().contains("InternalError"), "{missing}");
    server.wait_for("logs/error.log", &format!("cannot load certificate \"{}/p2.org.crt\"", server.dir().display()));
    server.wait_for("logs/error.log", "while SSL handshaking, client: 127.0.0.1, server: 127.0.0.1:");
}

#[test]
fn clients_certificates() {
    if !has_tools() {
        return;
    }
    let text = "events {} stream { ssl_client_certificate root.crt; ssl_verify_depth 0;
        ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
        server { listen 127.0.0.1:@PORT@ ssl; server_name on.org; ssl_verify_client on;
                 return \"$ssl_client_verify $ssl_client_s_dn\"; }
        server { listen 127.0.0.1:@PORT@ ssl; server_name optional.org; ssl_verify_client optional; return $ssl_client_verify; }
        server { listen 127.0.0.1:@PORT@ ssl; server_name any.org; ssl_verify_client optional_no_ca; return $ssl_client_verify; } }";
    let site = Site::whole(text).certificate("localhost").certificate("root").certificate("stranger");
    let server = site.issued("good", "root", "30").issued("bad", "stranger", "30").start();
    let of = |certificate: &str, name: &str| {
        let setup = match certificate {
            "" => Setup::new(),
            other => Setup::with_certificate(server.dir(), other),
        };
        said(&setup, server.port, name)
    };
    assert_eq!(of("good", "on.org"), "SUCCESS CN=good,O=Test");
    assert_eq!((of("", "on.org"), of("bad", "on.org")), (String::new(), String::new()));
    assert_eq!((of("", "optional.org"), of("bad", "optional.org")), ("NONE".to_owned(), String::new()));
    assert!(of("bad", "any.org").starts_with("FAILED:"));
    server.wait_for("logs/error.log", "client sent no required SSL certificate while SSL handshaking");
    server.wait_for("logs/error.log", "client SSL certificate verify error: (");
}

#[test]
fn alpn_and_sessions() {
    if !has_tools() {
        return;
    }
    let conf = format!("{LOCALHOST} ssl_alpn first second; return \"$ssl_alpn_protocol:$ssl_session_reused\";");
    let server = secure("ssl_session_cache shared:S:1m;", &conf).start();
    let connect = format!("127.0.0.1:{}", server.port);
    let client = |more: &[&str]| {
        let out = Command::new("openssl")
            .args(["s_client", "-connect", &connect, "-quiet"])
            .args(more)
            .stdin(Stdio::null())
            .current_dir(server.dir())
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert_eq!(client(&["-alpn", "second,first"]), "first:.");
    assert_eq!(client(&["-alpn", "second"]), "second:.");
    assert_eq!(client(&["-alpn", "other"]), "");
    assert_eq!(client(&[]), ":.");
    assert_eq!(client(&["-tls1_2", "-sess_out", "session"]), ":.");
    assert_eq!(client(&["-tls1_2", "-sess_in", "session"]), ":r");
}

/// Who speaks something else, or nothing, is gone soon.
#[test]
fn no_handshake_no_session() {
    if !has_tools() {
        return;
    }
    let server = secure("", &format!("{LOCALHOST} ssl_handshake_timeout 300ms; return hello;")).start();
    let mut silent = server.connect();
    assert!(server.connect().send("GET / HTTP/1.0\r\n\r\n").is_closed());
    server.wait_for("logs/error.log", "SSL_do_handshake() failed (SSL: wrong version number) while SSL handshaking");
    assert!(silent.is_closed());
    server.wait_for("logs/error.log", "client timed out (110: Connection timed out) while SSL handshaking");
    // No session is left behind by those.
    assert!(server.stop(Signal::QUIT).success());
}

#[test]
fn peers_with_tls() {
    if !has_tools() {
        return;
    }
    let text = "events {} stream {
        proxy_ssl on; proxy_ssl_verify on; proxy_ssl_trusted_certificate root.crt; proxy_ssl_server_name on;
        proxy_ssl_certificate client.crt; proxy_ssl_certificate_key client.key; proxy_ssl_alpn a b;
        upstream backend { server 127.0.0.1:@OTHER@; }
        upstream wrong { server 127.0.0.1:@OTHER@; }
        server { listen 127.0.0.1:@PORT@; proxy_pass backend; }
        server { listen 127.0.0.1:@NAME@; proxy_pass wrong; }
        server { listen 127.0.0.1:@ANY@; proxy_ssl_verify off; proxy_ssl_name any.org; proxy_pass 127.0.0.1:@OTHER@; }
        server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate backend.crt; ssl_certificate_key backend.key;
                 ssl_verify_client on; ssl_client_certificate root.crt; ssl_alpn b;
                 return \"$ssl_server_name $ssl_client_s_dn $ssl_alpn_protocol\"; } }";
    let (name, any) = (crate::harness::Port::reserve(), crate::harness::Port::reserve());
    let site = Site::whole(text).set("NAME", name.number).set("ANY", any.number);
    let server = site.certificate("root").issued("backend", "root", "30").issued("client", "root", "30").start();
    assert_eq!(server.connect().rest(), b"backend CN=client,O=Test b");
    assert_eq!(Client::connect(any.number).rest(), b"any.org CN=client,O=Test b");
    assert_eq!(Client::connect(name.number).rest(), b"");
    let line = "upstream SSL certificate does not match \"wrong\" while SSL handshaking to upstream, client: 127.0.0.1";
    server.wait_for("logs/error.log", line);
}

/// The PROXY header comes before TLS in both directions, and may come in one packet with the ClientHello.
#[test]
fn proxy_headers_come_first() {
    if !has_tools() {
        return;
    }
    let text = "events {}
        stream {
            server { listen 127.0.0.1:@PORT@; proxy_protocol on; proxy_ssl on; proxy_pass 127.0.0.1:@OTHER@; }
            server { listen 127.0.0.1:@OTHER@ ssl proxy_protocol; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
                     return \"$proxy_protocol_addr $ssl_protocol\"; } }
        http { server { listen 127.0.0.1:@HTTP@ ssl proxy_protocol; ssl_certificate localhost.crt;
                        ssl_certificate_key localhost.key; return 200 \"$proxy_protocol_addr $ssl_protocol\"; } }";
    let http = crate::harness::Port::reserve();
    let server = Site::whole(text).set("HTTP", http.number).certificate("localhost").start();
    assert_eq!(server.connect().rest(), b"127.0.0.1 TLSv1.3");
    // The header and the first record at once.
    for request in ["", "GET / HTTP/1.0\r\n\r\n"] {
        let port = if request.is_empty() { other(&server) } else { http.number };
        let mut client = Setup::new().client("localhost");
        let mut first = b"PROXY TCP4 192.0.2.7 192.0.2.8 77 88\r\n".to_vec();
        client.write_tls(&mut first).unwrap();
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.write_all(&first).unwrap();
        while client.is_handshaking() {
            client.complete_io(&mut socket).unwrap();
        }
        let mut stream = rustls::StreamOwned::new(client, socket);
        stream.write_all(request.as_bytes()).unwrap();
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        assert!(said.ends_with("192.0.2.7 TLSv1.3"), "{said}");
    }
}

/// Where `@OTHER@` is.
fn other(server: &crate::harness::Server) -> u16 {
    let text = server.read("nginx.conf");
    let at = text.find("proxy_pass 127.0.0.1:").expect("it is written there") + "proxy_pass 127.0.0.1:".len();
    text[at..].split(';').next().and_then(|n| n.parse().ok()).expect("a port")
}

/// A connection that was made secure in `stream` goes on in `http`, which knows that it was.
#[test]
fn pass_keeps_what_is_known_of_tls() {
    if !has_tools() {
        return;
    }
    let text = "events {}
        stream { server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
                          pass 127.0.0.1:@OTHER@; } }
        http { server { listen 127.0.0.1:@OTHER@; return 200 $scheme:$ssl_protocol; } }";
    let server = Site::whole(text).certificate("localhost").start();
    assert_eq!(Setup::new().connect(server.port, "localhost").get("/", "localhost").1, "https:TLSv1.3");
}

/// openssl is on the other side both times.
#[test]
fn openssl_on_both_sides() {
    if !has_tools() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = listener.local_addr().unwrap().port();
    drop(listener);
    let conf = format!("{LOCALHOST} proxy_ssl on; proxy_ssl_protocols TLSv1.2; proxy_pass 127.0.0.1:@PEER@;");
    let server = secure("", &conf).set("PEER", peer).start();
    let mut backend = Command::new("openssl")
        .args([
            "s_server",
            "-accept",
            &format!("127.0.0.1:{peer}"),
            "-cert",
            "localhost.crt",
            "-key",
            "localhost.key",
            "-rev",
        ])
        .args(["-naccept", "50"])
        .current_dir(server.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait(|| TcpStream::connect(("127.0.0.1", peer)).is_ok()));
    let mut client = Setup::new().connect(server.port, "localhost");
    client.send("drawer\n");
    let mut answer = [0; 7];
    client.stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"reward\n");
    let _ = (backend.kill(), backend.wait());
    let shown = openssl(server.dir(), &["x509", "-in", "localhost.crt", "-noout", "-subject"]);
    assert!(shown.contains("localhost"));
}

/// A client that is slower than its peer gets all of it, and what is counted of its handshake is shown.
#[test]
fn what_does_not_fit_waits_and_handshakes_are_counted() {
    if !has_tools() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = listener.local_addr().unwrap().port();
    let data: Vec<u8> = (0..2_000_000u32).flat_map(u32::to_le_bytes).collect();
    let sent = data.clone();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let _ = connection.write_all(&sent);
        }
    });
    let text = "events {} http { server { listen 127.0.0.1:@OTHER@; location / { api; } } }
        stream { server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
                          status_zone tls; proxy_buffer_size 5k; proxy_pass 127.0.0.1:@PEER@; } }";
    let api = crate::harness::Port::reserve();
    let site = Site::whole(text).set("OTHER", api.number).set("PEER", peer).certificate("localhost");
    let server = site.start();
    let mut client = Setup::new().connect(server.port, "localhost");
    let mut came = Vec::new();
    client.stream.read_to_end(&mut came).unwrap();
    assert!(came == data);
    let shown = || Client::connect(api.number).get("/9/stream/server_zones/tls").text();
    assert!(wait(|| shown().contains("\"ssl\":{") && shown().contains("\"handshakes\":1")), "{}", shown());
}
