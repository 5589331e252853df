//! OCSP, with OpenSSL's responder: clients' certificates that are asked about, and answers that are shown with ours.

use crate::harness::{Port, Server, Setup, Site, has_tools, openssl, quic, wait};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// OpenSSL's responder for what `root` has issued.
struct Responder(Child);

impl Responder {
    fn start(directory: &Path, port: u16) -> Responder {
        let mut command = Command::new("openssl");
        command.args(["ocsp", "-index", "index", "-CA", "root.crt", "-rsigner", "root.crt", "-rkey", "root.key"]);
        command.args(["-ndays", "1", "-port", &port.to_string()]).current_dir(directory);
        // A connection without a question ends it: it says when it is ready.
        let said = directory.join("responder.log");
        let log = std::fs::File::create(&said).expect("a file");
        let both = (log.try_clone().expect("a descriptor"), log);
        let child = command.stdin(Stdio::null()).stdout(both.0).stderr(both.1).spawn().expect("started");
        let is_ready = || std::fs::read_to_string(&said).is_ok_and(|text| text.contains("waiting for OCSP client"));
        assert!(wait(is_ready), "the responder did not come up");
        Responder(child)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Certificates: `good` is known to the responder, `bad` is revoked, `unknown` it never heard of.
fn site(text: &str) -> Site {
    let site = Site::http(text).certificate("localhost").certificate("root").certificate("other");
    let site = site.issued("good", "root", "30").issued("bad", "root", "30").issued("unknown", "root", "30");
    let ca = "[ca]\ndefault_ca=c\n[c]\ndatabase=index\ndefault_md=sha256\n";
    let site = site.file("ca.conf", ca).file("index", "").file("other-index", "");
    let keys = ["-config", "ca.conf", "-keyfile", "root.key", "-cert", "root.crt"];
    openssl(site.path(), &[&["ca", "-valid", "good.crt"], &keys[..]].concat());
    openssl(site.path(), &[&["ca", "-revoke", "bad.crt"], &keys[..]].concat());
    site
}

#[test]
fn clients_certificates_are_asked_about() {
    if !has_tools() {
        return;
    }
    let port = Port::reserve();
    let server = "listen 127.0.0.1:@PORT@ ssl; ssl_ocsp on; ssl_ocsp_responder http://127.0.0.1:@OCSP@/;
                  error_page 495 =200 /failed; return 200 $ssl_client_verify;";
    let site = site(&format!(
        "ssl_certificate localhost.crt; ssl_certificate_key localhost.key; ssl_verify_client on;
         ssl_client_certificate root.crt;
         server {{ server_name asked.org; {server} }}
         server {{ server_name kept.org; ssl_ocsp_cache shared:ocsp:1m; {server} }}"
    ));
    let responder = Responder::start(site.path(), port.number);
    let server = site.set("OCSP", port.number).start();
    let ask = |certificate: &str, host: &str| {
        Setup::with_certificate(server.dir(), certificate).connect(server.port, host).get("/", host).1
    };
    assert_eq!(ask("good", "asked.org"), "SUCCESS");
    assert_eq!(ask("bad", "asked.org"), "FAILED:certificate revoked");
    assert_eq!(ask("unknown", "asked.org"), "FAILED:certificate status unknown");
    assert_eq!(ask("good", "kept.org"), "SUCCESS");
    // Nobody answers: nobody is let in unchecked, but for what is known already.
    drop(responder);
    assert_eq!(ask("good", "asked.org"), "FAILED:certificate status request failed");
    assert_eq!(ask("good", "kept.org"), "SUCCESS");
    assert_eq!(ask("bad", "kept.org"), "FAILED:certificate status request failed");
    server.wait_for("logs/error.log", "client SSL certificate verify error: (23:certificate revoked)");
    server.wait_for("logs/error.log", "failed (111: Connection refused) while checking a client's certificate");
}

/// The same over QUIC: requests wait for the answer. What handshakes came to is counted.
#[test]
fn clients_certificates_are_asked_about_over_quic() {
    if !has_tools() {
        return;
    }
    let port = Port::reserve();
    let site = site(
        "ssl_certificate localhost.crt; ssl_certificate_key localhost.key; ssl_verify_client on;
         ssl_client_certificate root.crt;
         server { listen 127.0.0.1:@PORT@ quic; ssl_ocsp on; ssl_ocsp_responder http://127.0.0.1:@OCSP@/;
                  error_page 495 =200 /failed; return 200 \"$ssl_client_verify $ssl_session_reused\"; }
         server { listen 127.0.0.1:@PORT@; location /api { api; } }",
    );
    let responder = Responder::start(site.path(), port.number);
    let server = site.set("OCSP", port.number).start();
    let ask_on = async |endpoint: &quinn::Endpoint| {
        let mut requests = quic::speak(quic::connect(endpoint, server.port).await).await;
        quic::ask(&mut requests, quic::get("/"), b"").await.text()
    };
    let client = |certificate: &str| {
        quic::endpoint_with(quic::client_config(Setup::with_certificate(server.dir(), certificate), b"h3"))
    };
    quic::run(async {
        let good = client("good");
        assert_eq!(ask_on(&good).await, "SUCCESS .");
        assert_eq!(ask_on(&good).await, "SUCCESS r");
        assert_eq!(ask_on(&client("bad")).await, "FAILED:certificate revoked .");
        assert_eq!(ask_on(&client("unknown")).await, "FAILED:certificate status unknown .");
        drop(responder);
        assert_eq!(ask_on(&client("good")).await, "FAILED:certificate status request failed .");
        // Nobody speaks this.
        let other = quic::endpoint_with(quic::client_config(Setup::new(), b"h4"));
        assert!(other.connect(([127, 0, 0, 1], server.port).into(), "localhost").unwrap().await.is_err());
    });
    let counted = || server.get("/api/9/ssl").text();
    let all = |said: &str| {
        ["\"handshakes\":5", "\"handshakes_failed\":1", "\"session_reuses\":1"].iter().all(|c| said.contains(c))
    };
    assert!(wait(|| all(&counted())), "{}", counted());
}

/// What `openssl s_client` says of the staple.
fn stapled(server: &Server, name: &str) -> String {
    let connect = format!("localhost:{}", server.port);
    openssl(server.dir(), &["s_client", "-connect", &connect, "-servername", name, "-status"])
}

#[test]
fn answers_are_shown_with_certificates() {
    if !has_tools() {
        return;
    }
    let port = Port::reserve();
    let server = |name: &str, certificate: &str, more: &str| {
        format!(
            "server {{ listen 127.0.0.1:@PORT@ ssl; server_name {name}; ssl_certificate {certificate}.crt;
                       ssl_certificate_key {certificate}.key; {more} return 200; }}"
        )
    };
    let text = "ssl_stapling on; ssl_stapling_verify on; ssl_trusted_certificate root.crt;
                ssl_stapling_responder http://127.0.0.1:@OCSP@;"
        .to_owned();
    let text =
        text + &server("good.org", "good", "") + &server("bad.org", "bad", "") + &server("self.org", "other", "");
    let site = site(&text);
    let responder = Responder::start(site.path(), port.number);
    let server = site.set("OCSP", port.number).start();
    assert!(wait(|| stapled(&server, "good.org").contains("OCSP Response Status: successful")));
    assert!(stapled(&server, "good.org").contains("Cert Status: good"));
    server.wait_for("logs/error.log", "certificate status \"revoked\" in the OCSP response");
    assert!(stapled(&server, "bad.org").contains("OCSP response: no response sent"));
    // A reload keeps what is known, whether or not anybody answers.
    drop(responder);
    server.signal(rustix::process::Signal::HUP);
    server.wait_for("logs/error.log", "configuration 1 of worker process");
    assert!(stapled(&server, "good.org").contains("Cert Status: good"));
}
