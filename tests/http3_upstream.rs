//! `proxy_http_version 3`: requests over QUIC, to our own listener and to quic-go.

use crate::harness::quic::quic_site;
use crate::harness::{Client, Server, Site, has_tools, wait};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// A proxy in front of a QUIC port.
fn proxy(port: u16, location: &str) -> Server {
    Site::http(&format!(
        "upstream u {{ server 127.0.0.1:{port}; keepalive 8; }} client_max_body_size 0; client_body_buffer_size 16k;
         server {{ listen 127.0.0.1:@PORT@; proxy_http_version 3; proxy_ssl_name localhost; proxy_ssl_server_name on;
                   location / {{ proxy_pass https://u; {location} }}
                   location /streamed {{ proxy_request_buffering off; proxy_buffering off; proxy_pass https://u; }} }}"
    ))
    .start()
}

fn large() -> Vec<u8> {
    (0..500_000u32).flat_map(u32::to_le_bytes).collect()
}

fn post(server: &Server, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut client = Client::connect(server.port);
    let mut sender = client.stream.try_clone().unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    let all = [head.as_bytes(), body].concat();
    let sending = std::thread::spawn(move || sender.write_all(&all).is_ok());
    let answer = client.response();
    assert!(sending.join().unwrap());
    (answer.status, answer.body)
}

#[test]
fn requests_go_over_one_quic_connection_to_our_own_listener() {
    if !has_tools() {
        return;
    }
    let body = large();
    let behind = quic_site(
        "",
        "add_header X-Connection $connection; client_max_body_size 0;
         location / { return 200 \"$request_method $request_uri $server_protocol $http_x_some $host\"; }
         location /f { } location /404 { return 404 none; } location /none { return 204; }",
    )
    .file("html/f", &body)
    .set("THREADS", 1)
    .start();
    let server = proxy(behind.port, "");
    let mut client = Client::connect(server.port);
    client.send("GET /a?b=c HTTP/1.1\r\nHost: h\r\nX-Some: thing\r\nConnection: keep-alive\r\n\r\n");
    let answer = client.response();
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /a?b=c HTTP/3.0 thing u"), "{}", server.error_log());
    let connection = answer.header("X-Connection").map(str::to_owned);
    let mut others: Vec<_> = (0..20).map(|_| Client::connect(server.port)).collect();
    for other in &mut others {
        other.send("GET /many HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    for other in &mut others {
        let answer = other.response();
        assert_eq!((answer.status, answer.header("X-Connection").map(str::to_owned)), (200, connection.clone()));
    }
    assert_eq!(client.get("/f").body, body);
    assert_eq!((client.get("/404").text().as_str(), client.get("/none").status), ("none", 204));
    let head = client.head("/f");
    assert_eq!((head.status, head.header("Content-Length").map(str::to_owned)), (200, Some(body.len().to_string())));
    assert_eq!(post(&server, "/p", &body).0, 200);
}

#[test]
fn who_is_not_whom_it_must_be_is_asked_nothing() {
    if !has_tools() {
        return;
    }
    let behind = quic_site("", "location / { return 200 x; }").set("THREADS", 1).start();
    let trusted = behind.dir().join("localhost.crt").display().to_string();
    let verify = format!("proxy_ssl_verify on; proxy_ssl_trusted_certificate {trusted};");
    let server = proxy(behind.port, &verify);
    assert_eq!(server.get("/").text(), "x", "{}", server.error_log());
    let server = proxy(behind.port, &format!("{verify} proxy_ssl_name other.test;"));
    assert_eq!(server.get("/").status, 502);
    assert!(
        server.error_log().contains("upstream SSL certificate does not match \"other.test\""),
        "{}",
        server.error_log()
    );
}

#[test]
fn a_peer_that_is_not_there_is_passed_over() {
    if !has_tools() {
        return;
    }
    let behind = quic_site("", "location / { return 200 x; }").set("THREADS", 1).start();
    let server = Site::http(&format!(
        "upstream u {{ server 127.0.0.1:1; server 127.0.0.1:{}; }} upstream gone {{ server 127.0.0.1:1; }}
         server {{ listen 127.0.0.1:@PORT@; proxy_http_version 3; proxy_connect_timeout 5s;
                   location / {{ proxy_pass https://u; }} location /gone {{ proxy_pass https://gone; }} }}",
        behind.port
    ))
    .start();
    for _ in 0..4 {
        assert_eq!(server.get("/").text(), "x", "{}", server.error_log());
    }
    assert_eq!(server.get("/gone").status, 502);
    // A peer that goes: the next request finds out.
    let port = behind.port;
    drop(behind);
    let server = proxy(port, "proxy_connect_timeout 2s; proxy_read_timeout 2s;");
    assert!(matches!(server.get("/").status, 502 | 504));
}

#[test]
fn plain_http_3_is_refused_when_the_configuration_is_read() {
    let (status, text) = Site::server("location / { proxy_pass http://127.0.0.1:1; proxy_http_version 3; }").check();
    assert!(!status.success() && text.contains("\"proxy_http_version 3\" needs \"https://\""), "{text}");
}

/// quic-go's server: says what it was asked, or sends the body back.
struct QuicGo(Child, u16);

impl QuicGo {
    fn start(dir: &std::path::Path) -> Option<QuicGo> {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/quic-go");
        let program = dir.join("quic-go");
        let built = Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(source).output();
        if !built.as_ref().is_ok_and(|o| o.status.success()) {
            println!("Go, or what the server is built of, is not there: left out ({built:?})");
            return None;
        }
        let pair = ["-cert", "localhost.crt", "-key", "localhost.key"];
        let mut command = Command::new(program);
        let child = command.arg("-serve").args(pair).current_dir(dir).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it was built");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it says its port");
        let port = line.trim().parse().expect("a port");
        Some(QuicGo(child, port))
    }
}

impl Drop for QuicGo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn quic_go_answers() {
    if !has_tools() {
        return;
    }
    let folder = Site::server("").certificate("localhost").into_folder();
    let Some(go) = QuicGo::start(folder.path()) else { return };
    let trusted = folder.path().join("localhost.crt").display().to_string();
    let server =
        proxy(go.1, &format!("proxy_ssl_verify on; proxy_ssl_trusted_certificate {trusted}; proxy_pass_trailers on;"));
    let answer = server.get("/a?b=c");
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /a?b=c HTTP/3.0"), "{}", server.error_log());
    let body = large();
    for path in ["/echo", "/streamed/echo"] {
        let (status, came) = post(&server, path, &body);
        assert!(status == 200 && came == body, "{path} {status} {} {}", came.len(), server.error_log());
    }
    // An answer that is cut off must not look whole.
    let mut client = Client::connect(server.port);
    client.send("GET /cut HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(client.rest().len() < 100_000);
    assert!(wait(|| server.error_log().contains("upstream rejected request")), "{}", server.error_log());
    assert_eq!(server.get("/after").status, 200);
}
