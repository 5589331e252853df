//! Certificates in files: renewed while the server runs, and about to end.

use crate::harness::{Setup, Site, has_tools, openssl};
use rustix::process::Signal;
use std::io::Read;

/// The certificate that a new client is shown, DER.
fn shown(port: u16) -> Vec<u8> {
    let client = Setup::new().connect(port, "localhost");
    client.stream.conn.peer_certificates().expect("the server has shown one")[0].to_vec()
}

#[test]
fn a_renewed_file_is_taken_on_reload_and_nobody_is_dropped() {
    if !has_tools() {
        return;
    }
    let body = "x".repeat(400_000);
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
                  location / { return 200 $connection_requests; } location /slow { limit_rate 200k; root html; } }",
    )
    .certificate("localhost")
    .file("html/slow", &body)
    .start();
    let before = shown(server.port);
    let mut kept = Setup::new().connect(server.port, "localhost");
    assert_eq!(kept.get("/", "localhost").1, "1");
    let mut busy = Setup::new().connect(server.port, "localhost");
    busy.send("GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut got = vec![0; 1000];
    busy.stream.read_exact(&mut got).expect("the answer has begun");

    // Broken files change nothing.
    let (crt, key) = (server.dir().join("localhost.crt"), server.dir().join("localhost.key"));
    let good = std::fs::read(&crt).expect("it is there");
    std::fs::write(&crt, "-----BEGIN CERTIFICATE-----\n").expect("written");
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "[emerg]");
    assert_eq!(shown(server.port), before);
    std::fs::write(&crt, good).expect("written");

    let subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
    let new = ["req", "-x509", "-nodes", "-days", "30", "-newkey", "rsa:2048", "-keyout", "new.key", "-out", "new.crt"];
    openssl(server.dir(), &[&new[..], &subject].concat());
    std::fs::rename(server.dir().join("new.key"), key).expect("renamed");
    std::fs::rename(server.dir().join("new.crt"), crt).expect("renamed");
    server.signal(Signal::HUP);
    assert!(crate::harness::wait(|| shown(server.port) != before), "the new certificate is shown");
    assert_eq!(kept.get("/", "localhost").1, "2", "the connection from before is kept");
    busy.stream.read_to_end(&mut got).expect("the answer goes on, and ends properly");
    assert!(got.ends_with(&body.as_bytes()[1000..]));
}

#[test]
fn what_ends_soon_is_told() {
    if !has_tools() {
        return;
    }
    let server = |name: &str| {
        format!("server {{ listen 127.0.0.1:@PORT@ ssl; ssl_certificate {name}.crt; ssl_certificate_key {name}.key; }}")
    };
    let site = |name: &str, days: &str| {
        let day = Site::http(&server(name)).certificate("root");
        day.issued(name, "root", days).check()
    };
    let (status, said) = site("late", "-1");
    assert!(status.success() && said.contains("/late.crt\" has expired: "), "{said}");
    let (status, said) = site("good", "30");
    assert!(status.success() && !said.contains("[warn]"), "{said}");
    // Long made, and nearly over.
    let soon = Site::http(&server("soon")).certificate("root");
    let soon = soon.file("ca.conf", CA).file("index", "").file("serial", "01\n").issued("soon", "root", "30");
    let sign = ["ca", "-batch", "-config", "ca.conf", "-keyfile", "root.key", "-cert", "root.crt", "-in", "soon.csr"];
    openssl(soon.path(), &[&sign[..], &["-startdate", "20200101000000Z", "-days", "5", "-out", "soon.crt"]].concat());
    let (status, said) = soon.check();
    assert!(status.success() && said.contains("/soon.crt\" expires soon: "), "{said}");
}

const CA: &str = "[ca]\ndefault_ca=c\n[c]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n\
                  [p]\ncommonName=supplied\n";
