//! HTTP/2 and gRPC with ends of other descent, each left out, aloud, where it is not installed: nghttp2's `nghttp`, `h2load` and
//! `nghttpd` (Debian's `nghttp2-client`, `nghttp2-server`), curl, and the interoperability tests of Go's gRPC (`.ci/setup peers`).

use crate::harness::{Folder, Port, Server, Site, has_tools, wait};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where a program is; said aloud where it is not installed.
fn program(directories: &[&str], name: &str) -> Option<PathBuf> {
    let home = std::env::var("HOME").unwrap_or_default();
    let found = directories.iter().map(|d| Path::new(&d.replace('~', &home)).join(name)).find(|p| p.exists());
    if found.is_none() {
        println!("{name} is not installed (.ci/setup peers): left out");
    }
    found
}

/// What a client printed.
fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A server beside ours, until the end of the test.
struct Peer {
    child: Child,
    port: Port,
}

impl Peer {
    /// Starts it; `arguments` are made from its port.
    fn start(program: &Path, arguments: impl Fn(&str) -> Vec<String>) -> Peer {
        let port = Port::reserve();
        let mut command = Command::new(program);
        command.args(arguments(&port.number.to_string()));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        assert!(
            wait(|| std::net::TcpStream::connect(("127.0.0.1", port.number)).is_ok()),
            "{program:?} did not come up"
        );
        Peer { child, port }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn content() -> Vec<u8> {
    (0..200_000u32).flat_map(u32::to_le_bytes).collect()
}

/// A server with a plain port and one with TLS, both for HTTP/2.
fn site(locations: &str) -> Site {
    Site::http(&format!(
        "client_max_body_size 0; keepalive_requests 1000000;
         server {{ listen 127.0.0.1:@PORT@; listen 127.0.0.1:@OTHER@ ssl; http2 on; {locations}
                   ssl_certificate @DIR@/localhost.crt; ssl_certificate_key @DIR@/localhost.key; }}"
    ))
    .certificate("ca")
    .issued("localhost", "ca", "30")
}

fn tls_port(server: &Server) -> String {
    let text = server.read("nginx.conf");
    text.split("listen 127.0.0.1:").find_map(|rest| rest.split_once(" ssl;")).unwrap().0.to_owned()
}

#[test]
fn nghttp2_s_clients() {
    let Some(nghttp) = program(&["/usr/bin"], "nghttp").filter(|_| has_tools()) else { return };
    let server = site("location / { } location /echo { proxy_pass http://127.0.0.1:@PORT@/f; }")
        .file("html/f", content())
        .start();
    for url in [format!("http://127.0.0.1:{}/f", server.port), format!("https://127.0.0.1:{}/f", tls_port(&server))] {
        let out = Command::new(&nghttp).args(["--no-verify-peer", "-w", "20", "-b", "255", &url]).output().unwrap();
        assert!(out.stdout == content(), "{url}: {} bytes", out.stdout.len());
        let post = ["--no-verify-peer", "-d", "html/f", "--expect-continue", &url.replace("/f", "/echo")];
        let out = Command::new(&nghttp).current_dir(server.dir()).args(post).output().unwrap();
        assert!(!out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        let Some(h2load) = program(&["/usr/bin"], "h2load") else { continue };
        let said = run(Command::new(h2load).args(["-n", "2000", "-c", "4", "-m", "32", "-w", "16", &url]));
        assert!(said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
    }
}

#[test]
fn curl_speaks_it() {
    if !has_tools() {
        return;
    }
    let server =
        site("location / { } location /v { return 200 \"$server_protocol $ssl_protocol $ssl_alpn_protocol\"; }")
            .file("html/f", content())
            .start();
    let tls = format!("https://localhost:{}", tls_port(&server));
    let plain = format!("http://localhost:{}", server.port);
    for (way, base, seen) in
        [("--http2", &tls, "HTTP/2.0 TLSv1.3 h2"), ("--http2-prior-knowledge", &plain, "HTTP/2.0  ")]
    {
        let ask = |path: &str| {
            let ca = server.dir().join("ca.crt");
            let mut command = Command::new("curl");
            command.args(["-sS", "--noproxy", "*", "--max-time", "20", way, "--cacert"]).arg(ca);
            command.arg(format!("{base}{path}")).output().unwrap().stdout
        };
        assert_eq!(String::from_utf8_lossy(&ask("/v")), seen);
        assert!(ask("/f") == content());
    }
}

#[test]
fn nghttpd_as_upstream() {
    let Some(nghttpd) = program(&["/usr/sbin", "/usr/bin"], "nghttpd").filter(|_| has_tools()) else { return };
    let files = site("").file("html/f", content()).into_folder();
    let path = |name: &str| files.path().join(name).display().to_string();
    let small = ["-a", "127.0.0.1", "--echo-upload", "-b", "100", "-w", "14", "-m", "7", "-d"].map(str::to_owned);
    let html = [path("html")];
    let plain = Peer::start(&nghttpd, |port| [&small[..], &html, &["--no-tls".into(), port.to_owned()]].concat());
    let tls = Peer::start(&nghttpd, |port| {
        [&small[..], &html, &[port.to_owned(), path("localhost.key"), path("localhost.crt")]].concat()
    });
    let server = Site::http(&format!(
        "upstream plain {{ server 127.0.0.1:{}; keepalive 8; }} upstream tls {{ server 127.0.0.1:{}; keepalive 8; }}
         client_max_body_size 0; proxy_http_version 2; server {{ listen 127.0.0.1:@PORT@;
           location /plain/ {{ proxy_pass http://plain/; }} location /tls/ {{ proxy_pass https://tls/; }} }}",
        plain.port.number, tls.port.number
    ))
    .start();
    for way in ["/plain/f", "/tls/f"] {
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send(format!("GET {way} HTTP/1.1\r\nHost: h\r\n\r\n"));
        }
        for client in &mut clients {
            let answer = client.response();
            assert!(answer.status == 200 && answer.body == content(), "{way}: {}", answer.body.len());
        }
        let body = content();
        let mut sender = clients[0].stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            use std::io::Write;
            let head = format!("POST {way} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
            sender.write_all(&[head.as_bytes(), &body].concat()).is_ok()
        });
        let answer = clients[0].response();
        assert!(sending.join().unwrap() && answer.status == 200 && answer.body == content(), "{way}: the echo");
    }
}

/// All four kinds of calls, metadata, trailers, deadlines, cancellation: what every implementation of gRPC is tested with.
const CALLS: [&str; 14] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
];

fn interop(name: &str) -> Option<PathBuf> {
    program(&["~/go/bin/grpc-interop"], name)
}

fn call(client: &Path, port: &str, ca: Option<&Folder>) {
    let calls = CALLS.map(|case| {
        let mut command = Command::new(client);
        command.args(["-server_host", "127.0.0.1", "-server_port", port, "-test_case", case]);
        if let Some(ca) = ca {
            command.args(["-use_tls", "-use_test_ca", "-server_host_override", "localhost", "-ca_file"]);
            command.arg(ca.path().join("ca.crt"));
        }
        (case, command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    });
    for (case, child) in calls {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{case}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn go_s_grpc_in_plain_text() {
    let (Some(client), Some(server)) = (interop("client"), interop("server")) else { return };
    let peer = Peer::start(&server, |port| vec!["-port".into(), port.into()]);
    let server = Site::http(&format!(
        "upstream u {{ server 127.0.0.1:{}; keepalive 8; }} client_max_body_size 0;
         server {{ listen 127.0.0.1:@PORT@; http2 on; location / {{ grpc_pass grpc://u; }} }}",
        peer.port.number
    ))
    .start();
    call(&client, &server.port.to_string(), None);
}

#[test]
fn go_s_grpc_over_tls() {
    let (Some(client), Some(server)) = (interop("client"), interop("server")) else { return };
    if !has_tools() {
        return;
    }
    let files = site("").into_folder();
    let path = |name: &str| files.path().join(name).display().to_string();
    let peer = Peer::start(&server, |port| {
        let tls = ["-use_tls", "-tls_cert_file", &path("localhost.crt"), "-tls_key_file", &path("localhost.key")];
        ["-port", port].iter().chain(&tls).map(|&word| word.to_owned()).collect()
    });
    let server = Site::http(&format!(
        "upstream u {{ server 127.0.0.1:{}; keepalive 8; }} client_max_body_size 0;
         server {{ listen 127.0.0.1:@PORT@ ssl; http2 on;
                   ssl_certificate {crt}; ssl_certificate_key {key};
                   location / {{ grpc_pass grpcs://u; grpc_ssl_verify on; grpc_ssl_name localhost; grpc_ssl_server_name on;
                                 grpc_ssl_trusted_certificate {ca}; }} }}",
        peer.port.number,
        crt = path("localhost.crt"),
        key = path("localhost.key"),
        ca = path("ca.crt"),
    ))
    .start();
    call(&client, &server.port.to_string(), Some(&files));
}
