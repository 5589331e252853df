//! TLS towards upstreams: who they must be, what they are shown, and which connections are kept for whom.

use crate::harness::{Site, has_tools};

/// A front without TLS, and a backend with it on the other port.
fn pair(front: &str, backend: &str) -> Site {
    Site::http(&format!(
        "server {{ listen 127.0.0.1:@PORT@; {front} }}
         server {{ listen 127.0.0.1:@OTHER@ ssl; ssl_certificate backend.crt; ssl_certificate_key backend.key; {backend} }}"
    ))
    .certificate("root")
    .issued("backend", "root", "30")
}

#[test]
fn a_peer_must_be_who_it_says() {
    if !has_tools() {
        return;
    }
    let server = pair(
        "proxy_ssl_verify on; proxy_ssl_trusted_certificate root.crt; proxy_ssl_name backend;
         location /good { proxy_pass https://127.0.0.1:@OTHER@/; }
         location /name { proxy_ssl_name other; proxy_pass https://127.0.0.1:@OTHER@/; }
         location /trust { proxy_ssl_trusted_certificate stranger.crt; proxy_pass https://127.0.0.1:@OTHER@/; }
         location /any { proxy_ssl_verify off; proxy_pass https://127.0.0.1:@OTHER@/; }
         location /old { proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256;
                         proxy_pass https://127.0.0.1:@OTHER@/; }",
        "return 200 $scheme:$ssl_cipher;",
    )
    .certificate("stranger")
    .start();
    assert_eq!(server.get("/good").text(), "https:TLS_AES_256_GCM_SHA384");
    assert_eq!(server.get("/any").text(), "https:TLS_AES_256_GCM_SHA384");
    assert_eq!(server.get("/old").text(), "https:ECDHE-ECDSA-AES128-GCM-SHA256");
    assert_eq!((server.get("/name").status, server.get("/trust").status), (502, 502));
    let log = server.error_log();
    assert!(
        log.contains("upstream SSL certificate does not match \"other\" while SSL handshaking to upstream"),
        "{log}"
    );
    assert!(
        log.contains("upstream SSL certificate verify error: (21:unable to verify the first certificate)"),
        "{log}"
    );
}

#[test]
fn a_peer_is_told_name_and_certificate() {
    if !has_tools() {
        return;
    }
    let server = pair(
        "location / { proxy_ssl_server_name on; proxy_ssl_name $arg_name;
                      proxy_ssl_certificate $arg_cert; proxy_ssl_certificate_key $arg_key;
                      proxy_pass https://127.0.0.1:@OTHER@; }",
        "ssl_verify_client optional; ssl_client_certificate root.crt;
         return 200 $ssl_server_name:$ssl_client_verify:$ssl_client_s_dn;",
    )
    .issued("client", "root", "30")
    .start();
    let dir = server.dir().display();
    assert_eq!(server.get("/?name=a.org").text(), "a.org:NONE:");
    let with = format!("/?name=b.org:443&cert={dir}/client.crt&key={dir}/client.key");
    assert_eq!(server.get(&with).text(), "b.org:SUCCESS:CN=client,O=Test");
    assert_eq!(server.get("/?cert=gone.crt&key=gone.key").status, 500);
    assert!(server.error_log().contains("/gone.crt\": BIO_new_file() failed"));
}

#[test]
fn kept_connections_are_for_those_who_ask_the_same() {
    if !has_tools() {
        return;
    }
    let server = Site::http(
        "upstream u { server 127.0.0.1:@OTHER@; keepalive 8; }
         proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_ssl_server_name on;
         server { listen 127.0.0.1:@PORT@;
                  location / { proxy_ssl_name $arg_name; proxy_pass https://u; }
                  location /cert { proxy_ssl_name $arg_name; proxy_ssl_certificate backend.crt;
                                   proxy_ssl_certificate_key backend.key; proxy_pass https://u; } }
         server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate backend.crt; ssl_certificate_key backend.key;
                  ssl_verify_client optional_no_ca;
                  return 200 $ssl_server_name:$ssl_client_verify:$connection_requests; }",
    )
    .certificate("backend")
    .start();
    let mut client = server.connect();
    assert_eq!(client.get("/?name=a.org").text(), "a.org:NONE:1");
    assert_eq!(client.get("/?name=a.org").text(), "a.org:NONE:2");
    assert_eq!(client.get("/?name=b.org").text(), "b.org:NONE:1");
    assert_eq!(client.get("/cert?name=a.org").text(), "a.org:FAILED:self-signed certificate:1");
    assert_eq!(client.get("/?name=a.org").text(), "a.org:NONE:3");
    assert_eq!(client.get("/cert?name=a.org").text(), "a.org:FAILED:self-signed certificate:2");
}

#[test]
fn sessions_with_peers_are_resumed() {
    if !has_tools() {
        return;
    }
    let server = pair(
        "location / { proxy_pass https://127.0.0.1:@OTHER@; }
         location /new { proxy_ssl_session_reuse off; proxy_pass https://127.0.0.1:@OTHER@; }",
        "return 200 $ssl_session_reused;",
    )
    .start();
    assert_eq!(server.get("/").text(), ".");
    assert_eq!(server.get("/").text(), "r");
    assert_eq!(server.get("/new").text(), ".");
    assert_eq!(server.get("/new").text(), ".");
}

#[test]
fn a_peer_without_tls_is_passed_by() {
    if !has_tools() {
        return;
    }
    let server = Site::http(
        "upstream u { server 127.0.0.1:@PORT@ weight=100; server 127.0.0.1:@OTHER@; }
         server { listen 127.0.0.1:@PORT@; location / { proxy_pass https://u/inner; } location /inner { return 200 no; } }
         server { listen 127.0.0.1:@OTHER@ ssl; ssl_certificate backend.crt; ssl_certificate_key backend.key;
                  return 200 yes; }",
    )
    .certificate("backend")
    .start();
    assert_eq!(server.get("/").text(), "yes");
    server.wait_for("logs/error.log", "SSL_do_handshake() failed (SSL: ");
}
