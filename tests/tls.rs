//! TLS towards clients: who is shown which certificate, who is let in, what is kept, what is carried.

use crate::harness::{Server, Setup, Site, curl, has_tools, openssl};
use rustix::process::Signal;
use std::time::Duration;

/// A server with TLS and a certificate for `localhost`.
pub fn secure(text: &str) -> Site {
    let server = "server { listen 127.0.0.1:@PORT@ ssl; server_name localhost; \
                  ssl_certificate localhost.crt; ssl_certificate_key localhost.key;";
    Site::http(&format!("{server} {text} }}")).certificate("localhost")
}

#[test]
fn curl_and_openssl_are_answered() {
    if !has_tools() {
        return;
    }
    let body = "x".repeat(3_000_000);
    let server =
        secure("location /f { root html; } location / { return 200 \"$scheme $https $ssl_protocol $ssl_cipher\"; }")
            .file("html/f", &body)
            .start();
    let url = format!("https://localhost:{}", server.port);
    assert_eq!(curl(&[&format!("{url}/")]), "https on TLSv1.3 TLS_AES_256_GCM_SHA384");
    assert_eq!(curl(&["--tls-max", "1.2", &format!("{url}/")]), "https on TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384");
    assert_eq!(curl(&[&format!("{url}/f")]), body);
    let connect = format!("localhost:{}", server.port);
    let said =
        openssl(server.dir(), &["s_client", "-connect", &connect, "-servername", "localhost", "-groups", "P-256"]);
    assert!(said.contains("CN = localhost") && said.contains("Server Temp Key: ECDH, prime256v1"), "{said}");
}

#[test]
fn a_certificate_for_each_kind_of_key() {
    if !has_tools() {
        return;
    }
    let server = secure(
        "ssl_certificate rsa-localhost.crt; ssl_certificate_key rsa-localhost.key; return 200 $ssl_sigalg:$ssl_curve;",
    )
    .rsa_certificate("rsa-localhost")
    .start();
    let url = format!("https://localhost:{}/", server.port);
    let of = |sigalgs: &str| {
        let connect = format!("localhost:{}", server.port);
        openssl(server.dir(), &["s_client", "-connect", &connect, "-sigalgs", sigalgs])
    };
    assert!(of("ECDSA+SHA256").contains("Peer signature type: ECDSA"));
    assert!(of("RSA-PSS+SHA256").contains("Peer signature type: RSA-PSS"));
    assert_eq!(curl(&["--curves", "X25519", &url]), "ecdsa_secp256r1_sha256:X25519");
    assert!(curl(&["--tls-max", "1.2", "--ciphers", "ECDHE-RSA-AES128-GCM-SHA256", &url]).starts_with("rsa_pss_rsae_"));
}

#[test]
fn whose_order_of_ciphers_holds() {
    if !has_tools() {
        return;
    }
    let prefer = "ssl_prefer_server_ciphers on; return 200 $ssl_cipher;";
    let (client, server, chacha) = (
        secure("return 200 $ssl_cipher;").start(),
        secure(prefer).start(),
        secure(&format!("ssl_conf_command Options PrioritizeChaCha; {prefer}")).start(),
    );
    let chosen = |server: &Server, first: &str| {
        let ciphers = format!("TLS_{first}:TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384");
        curl(&["--tls13-ciphers", &ciphers, &format!("https://localhost:{}/", server.port)])
    };
    let (aes, other) = ("AES_128_GCM_SHA256", "CHACHA20_POLY1305_SHA256");
    for (server, with_aes, with_other) in [
        (&client, aes, other),
        (&server, "AES_256_GCM_SHA384", "AES_256_GCM_SHA384"),
        (&chacha, "AES_256_GCM_SHA384", other),
    ] {
        assert_eq!(
            (chosen(server, aes), chosen(server, other)),
            (format!("TLS_{with_aes}"), format!("TLS_{with_other}"))
        );
    }
}

#[test]
fn the_name_chooses_the_server() {
    if !has_tools() {
        return;
    }
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@ ssl default_server; server_name first;
                  ssl_certificate first.crt; ssl_certificate_key first.key; return 200 first:$ssl_server_name; }
         server { listen 127.0.0.1:@PORT@ ssl; server_name *.example.com; ssl_protocols TLSv1.2;
                  ssl_certificate a.example.com.crt; ssl_certificate_key a.example.com.key;
                  return 200 $server_name:$ssl_server_name:$ssl_protocol; }
         server { listen 127.0.0.1:@PORT@ ssl; server_name ~^p(?<n>[0-9])\\.org$;
                  ssl_certificate $ssl_server_name.crt; ssl_certificate_key $ssl_server_name.key; return 200 p$n; }
         server { listen 127.0.0.1:@PORT@ ssl; server_name refused.org; ssl_reject_handshake on; }",
    )
    .certificate("first")
    .certificate("a.example.com")
    .certificate("p1.org")
    .start();
    let setup = Setup::new();
    let shown = |name: &str| {
        let mut client = setup.connect(server.port, name);
        let chain = client.stream.conn.peer_certificates().expect("the server has shown one")[0].to_vec();
        (String::from_utf8_lossy(&chain).contains(name), client.get("/", name).1)
    };
    assert_eq!(shown("first"), (true, "first:first".to_owned()));
    assert_eq!(shown("unknown.org").1, "first:unknown.org");
    assert_eq!(shown("a.example.com"), (true, "*.example.com:a.example.com:TLSv1.2".to_owned()));
    assert_eq!(shown("p1.org"), (true, "p1".to_owned()));
    let refused = setup.try_connect(server.port, "refused.org").err().expect("refused");
    assert!(refused.to_string().contains("UnrecognisedName"), "{refused}");
    let missing = setup.try_connect(server.port, "p2.org").err().expect("there is no such certificate");
    assert!(missing.to_string().contains("InternalError"), "{missing}");
    server.wait_for("logs/error.log", &format!("cannot load certificate \"{}/p2.org.crt\"", server.dir().display()));
    // Another host on the same connection is another server.
    assert_eq!(setup.connect(server.port, "first").get("/", "a.example.com").1, "*.example.com:first:TLSv1.3");
}

#[test]
fn clients_certificates() {
    if !has_tools() {
        return;
    }
    let site = Site::http(
        "ssl_client_certificate root.crt; ssl_verify_depth 0;
         ssl_certificate localhost.crt; ssl_certificate_key localhost.key;
         server { listen 127.0.0.1:@PORT@ ssl; server_name on.org; ssl_verify_client on; ssl_crl root.crl;
                  return 200 \"$ssl_client_verify $ssl_client_s_dn $ssl_client_i_dn\"; }
         server { listen 127.0.0.1:@PORT@ ssl; server_name optional.org; ssl_verify_client optional;
                  ssl_crl root.crl; return 200 $ssl_client_verify; }
         server { listen 127.0.0.1:@PORT@ ssl; server_name any.org; ssl_verify_client optional_no_ca;
                  return 200 $ssl_client_verify; }
         server { listen 127.0.0.1:@PORT@ ssl; server_name any-list.org; ssl_verify_client optional_no_ca;
                  ssl_crl root.crl; return 200 $ssl_client_verify; }",
    );
    let site = site.certificate("localhost").certificate("root").certificate("stranger");
    let site = site.issued("good", "root", "30").issued("bad", "root", "30").issued("late", "root", "-1");
    let site = site.issued("stale", "stranger", "-1");
    let site = site.issued_with("between", "root", "30", "basicConstraints=CA:TRUE").issued("below", "between", "30");
    let ca = "[ca]\ndefault_ca=c\n[c]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=30\ncrlnumber=number\n";
    let site = site.file("ca.conf", ca).file("index", "").file("number", "01\n");
    let keys = ["-config", "ca.conf", "-keyfile", "root.key", "-cert", "root.crt"];
    openssl(site.path(), &[&["ca", "-revoke", "bad.crt"], &keys[..]].concat());
    openssl(site.path(), &[&["ca", "-gencrl", "-out", "root.crl"], &keys[..]].concat());
    let server = site.start();
    let ask = |certificate: &str, host: &str| {
        let setup =
            if certificate.is_empty() { Setup::new() } else { Setup::with_certificate(server.dir(), certificate) };
        setup.connect(server.port, host).get("/", host)
    };
    assert_eq!(ask("good", "on.org"), (200, "SUCCESS CN=good,O=Test CN=root".to_owned()));
    let (status, page) = ask("", "on.org");
    assert!(status == 400 && page.contains("No required SSL certificate was sent"), "{page}");
    for certificate in ["stranger", "bad", "late"] {
        let (status, page) = ask(certificate, "on.org");
        assert!(status == 400 && page.contains("The SSL certificate error"), "{certificate}: {page}");
    }
    for reason in ["(3:unable to get certificate CRL)", "(23:certificate revoked)", "(10:certificate has expired)"] {
        server.wait_for("logs/error.log", &format!("client SSL certificate verify error: {reason}"));
    }
    assert_eq!(ask("", "optional.org").1, "NONE");
    assert_eq!(ask("stranger", "optional.org").0, 400);
    assert_eq!(ask("stranger", "any.org").1, "FAILED:self-signed certificate");
    assert_eq!(ask("bad", "any.org").1, "SUCCESS");
    // With a list its issuer must have one, whoever it is.
    assert_eq!((ask("bad", "any-list.org").0, ask("stranger", "any-list.org").0), (400, 400));
    // Who stands farther below than ssl_verify_depth has no issuer.
    let chain =
        ["below", "between"].map(|n| std::fs::read_to_string(server.dir().join(format!("{n}.crt"))).expect("made"));
    std::fs::write(server.dir().join("below.crt"), chain.concat()).expect("written");
    assert_eq!(ask("below", "any.org").1, "FAILED:unable to get local issuer certificate");
    assert_eq!(ask("below", "on.org").0, 400);
    assert_eq!(ask("stale", "any.org").0, 400, "that the issuer does not matter does not make it valid");
    // A certificate shown to one name is no ticket for another.
    let mut client = Setup::with_certificate(server.dir(), "good").connect(server.port, "optional.org");
    assert_eq!(client.get("/", "on.org").0, 421);
}

/// Chains that are good and chains that are not, with `openssl verify` as the judge. Each: leaf, then what is between it
/// and the root.
const CHAINS: [&[&str]; 16] = [
    &["direct"],
    &["below-int", "int"],
    &["below-deep", "deep", "int"],
    &["below-short", "short-2", "short"],
    &["below-leaf", "direct"],
    &["below-no-sign", "no-sign"],
    &["below-server-only", "server-only"],
    &["below-late", "late-int"],
    &["server-leaf"],
    &["critical"],
    &["no-signature-use"],
    &["good.named.org", "named"],
    &["other.org", "named"],
    &["cn.named.org", "named"],
    &["cn.other.org", "named"],
    &["below-int"],
];

#[test]
fn chains_are_judged_as_openssl_does() {
    if !has_tools() {
        return;
    }
    let ca = "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign";
    let short = "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=keyCertSign";
    let site = Site::http(
        "server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate root.crt; ssl_certificate_key root.key;
                  ssl_verify_client optional; ssl_verify_depth 5; ssl_client_certificate root.crt;
                  error_page 495 =200 /failed; return 200 $ssl_client_verify; }",
    );
    let site = site.certificate("root").issued("direct", "root", "30").issued("below-leaf", "direct", "30");
    let site = site.issued_with("int", "root", "30", ca).issued("below-int", "int", "30");
    let site = site.issued_with("deep", "int", "30", ca).issued("below-deep", "deep", "30");
    let site = site.issued_with("short", "root", "30", short).issued_with("short-2", "short", "30", ca);
    let site = site.issued("below-short", "short-2", "30");
    let site = site.issued_with("no-sign", "root", "30", "basicConstraints=CA:TRUE\nkeyUsage=digitalSignature");
    let site = site.issued("below-no-sign", "no-sign", "30");
    let site = site.issued_with("server-only", "root", "30", &format!("{ca}\nextendedKeyUsage=serverAuth"));
    let site = site.issued("below-server-only", "server-only", "30");
    let site = site.issued_with("late-int", "root", "-1", ca).issued("below-late", "late-int", "30");
    let site = site.issued_with("server-leaf", "root", "30", "extendedKeyUsage=serverAuth");
    let site = site.issued_with("critical", "root", "30", "1.2.3.4=critical,ASN1:NULL");
    let site = site.issued_with("no-signature-use", "root", "30", "keyUsage=keyEncipherment");
    let site =
        site.issued_with("named", "root", "30", &format!("{ca}\nnameConstraints=critical,permitted;DNS:named.org"));
    let site = site.issued("good.named.org", "named", "30").issued("other.org", "named", "30");
    // Without another name that of the subject counts, and is constrained like any other.
    let plain = "keyUsage=digitalSignature";
    let site = site.issued_with("cn.named.org", "named", "30", plain).issued_with("cn.other.org", "named", "30", plain);
    let server = site.start();
    let read = |name: &str| std::fs::read_to_string(server.dir().join(format!("{name}.crt"))).expect("just made");
    let (mut good, mut bad) = (0, 0);
    for chain in CHAINS {
        let between: String = chain[1..].iter().map(|name| read(name)).collect();
        std::fs::write(server.dir().join("between.pem"), between.clone() + &read("direct")).expect("written");
        std::fs::write(server.dir().join("shown.crt"), read(chain[0]) + &between).expect("written");
        std::fs::copy(server.dir().join(format!("{}.key", chain[0])), server.dir().join("shown.key")).expect("made");
        let leaf = format!("{}.crt", chain[0]);
        let mut judge = std::process::Command::new("openssl");
        judge.args(["verify", "-purpose", "sslclient", "-CAfile", "root.crt", "-untrusted", "between.pem", &leaf]);
        let judged = judge.current_dir(server.dir()).output().expect("openssl is installed");
        let said = String::from_utf8_lossy(&judged.stderr).into_owned();
        let setup = Setup::with_certificate(server.dir(), "shown");
        let ours = setup.connect(server.port, "x.org").get("/", "x.org").1;
        assert_eq!(ours == "SUCCESS", judged.status.success(), "{chain:?}: {ours}; openssl: {said}");
        if judged.status.success() {
            good += 1;
        } else {
            bad += 1;
            // Without any issuer a server goes on and ends with another number; else the reasons are the same.
            let reason = ours.trim_start_matches("FAILED:");
            assert!(said.contains(reason) || chain == ["below-int"], "{chain:?}: {reason}; openssl: {said}");
        }
    }
    assert_eq!((good, bad), (5, 11));
}

#[test]
fn sessions_are_resumed_also_after_a_reload() {
    if !has_tools() {
        return;
    }
    let server = secure("ssl_session_timeout 1h; return 200 $ssl_session_reused;").start();
    for setup in [Setup::new(), Setup::tls12()] {
        assert_eq!(setup.connect(server.port, "localhost").get("/", "localhost").1, ".");
        assert_eq!(setup.connect(server.port, "localhost").get("/", "localhost").1, "r");
        server.signal(Signal::HUP);
        server.wait_for("logs/error.log", "exited with code");
        assert_eq!(setup.connect(server.port, "localhost").get("/", "localhost").1, "r");
    }
}

#[test]
fn sessions_are_kept_here_or_under_keys_of_files() {
    if !has_tools() {
        return;
    }
    let listen = |port: &str, rest: &str| {
        format!(
            "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key; \
             return 200 $ssl_session_reused; {rest} }}"
        )
    };
    let shared = "ssl_session_tickets off; ssl_session_cache shared:S:1m;";
    let server = Site::http(&(listen("@PORT@", shared) + &listen("@OTHER@", shared))).certificate("localhost").start();
    for setup in [Setup::new(), Setup::tls12()] {
        assert_eq!(setup.connect(server.port, "localhost").get("/", "x").1, ".");
        assert_eq!(setup.connect(server.port, "localhost").get("/", "x").1, "r");
    }
    // Two machines with the same files.
    let keyed = "ssl_session_ticket_key new.key; ssl_session_ticket_key old.key;";
    let one = Site::http(&listen("@PORT@", keyed)).certificate("localhost");
    let one = one.file("new.key", [1; 80]).file("old.key", [2; 48]);
    let two = Site::http(&listen("@PORT@", "ssl_session_ticket_key old.key;")).file("old.key", [2; 48]);
    let copy = |name: &str| std::fs::read(one.path().join(name)).expect("just made");
    let two = two.file("localhost.crt", copy("localhost.crt")).file("localhost.key", copy("localhost.key"));
    let (one, two) = (one.start(), two.start());
    let setup = Setup::new();
    assert_eq!(setup.connect(two.port, "localhost").get("/", "x").1, ".");
    assert_eq!(setup.connect(one.port, "localhost").get("/", "x").1, "r");
}

#[test]
fn large_bodies_both_ways() {
    if !has_tools() {
        return;
    }
    let server = secure(
        "client_max_body_size 0; ssl_buffer_size 4k; location /f { root html; } \
         location / { client_body_buffer_size 16k; proxy_pass http://127.0.0.1:@OTHER@; } } \
         server { listen 127.0.0.1:@OTHER@; client_max_body_size 0; \
         location / { proxy_pass http://127.0.0.1:@OTHER@/length; } location /length { return 200 $content_length; }",
    )
    .file("html/f", "0123456789".repeat(500_000))
    .start();
    let url = format!("https://localhost:{}", server.port);
    let file = server.dir().join("html/f").display().to_string();
    assert_eq!(curl(&["-T", &file, &format!("{url}/up")]), "5000000");
    // A reader that is slow, and one that gives up.
    assert_eq!(curl(&["--limit-rate", "8m", &format!("{url}/f")]).len(), 5_000_000);
    let mut client = Setup::new().connect(server.port, "localhost");
    client.send("GET /f HTTP/1.1\r\nHost: localhost\r\n\r\n");
    drop(client);
    let mut client = Setup::new().connect(server.port, "localhost");
    client.send("GET /f HTTP/1.1\r\nHost: localhost\r\n\r\n");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(client.response().1.len(), 5_000_000);
    assert_eq!(client.get("/f", "localhost").1.len(), 5_000_000);
}

#[test]
fn requests_may_come_early_where_that_is_allowed() {
    if !has_tools() {
        return;
    }
    let server = secure(
        "client_header_timeout 1s; ssl_early_data on; \
         location = / { return 200 early=$ssl_early_data; } \
         location = /auth { if ($ssl_early_data) { return 403; } return 204; } \
         location = /guarded { auth_request /auth; try_files /none =418; }",
    )
    .start();
    let connect = format!("localhost:{}", server.port);
    std::fs::write(server.dir().join("request"), "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("written");
    let shell = |command: &str| {
        let out = std::process::Command::new("sh").arg("-c").arg(command).current_dir(server.dir()).output();
        String::from_utf8_lossy(&out.expect("a shell").stdout).into_owned()
    };
    let first =
        format!("(cat request; sleep 1) | openssl s_client -connect {connect} -sess_out s -ign_eof 2>/dev/null");
    let said = shell(&first);
    assert!(said.contains("early=") && !said.contains("early=1"), "{said}");
    let second = format!("openssl s_client -connect {connect} -sess_in s -early_data request -ign_eof </dev/null 2>&1");
    let said = shell(&second);
    assert!(said.contains("Early data was accepted") && said.contains("early=1"), "{said}");
    // A session is good for one use: what was sent with it cannot be sent again.
    let said = shell(&second);
    assert!(said.contains("Early data was rejected") && !said.contains("early=1"), "{said}");
    // A subrequest of a later request does not hear of what was early before it.
    std::fs::write(server.dir().join("request"), "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("written");
    shell(&first);
    let guarded = "GET /guarded HTTP/1.1\r\nHost: localhost\r\n\r\n";
    std::fs::write(server.dir().join("request"), guarded).expect("written");
    let last = "GET /guarded HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    std::fs::write(server.dir().join("last"), last).expect("written");
    // What openssl reads from its input it sends once the handshake is over.
    let said =
        shell(&format!("openssl s_client -connect {connect} -sess_in s -early_data request -ign_eof <last 2>&1"));
    assert!(said.contains("HTTP/1.1 403") && said.contains("HTTP/1.1 418"), "{said}");
}

#[test]
fn a_crowd_shakes_hands_while_others_are_served() {
    if !has_tools() {
        return;
    }
    let site = Site::http(
        "server { listen 127.0.0.1:@PORT@ ssl; ssl_certificate rsa-x.crt; ssl_certificate_key rsa-x.key; return 200 ok; }",
    );
    let server = site.rsa_certificate("rsa-x").start();
    let mut kept = Setup::new().connect(server.port, "x");
    let port = server.port;
    let crowd: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(move || (0..25).all(|_| Setup::new().connect(port, "x").get("/", "x").1 == "ok")))
        .collect();
    for _ in 0..200 {
        assert_eq!(kept.get("/", "x").1, "ok");
    }
    assert!(crowd.into_iter().all(|t| t.join().expect("no panic")));
}

#[test]
fn http_2_is_agreed_on_by_alpn() {
    if !has_tools() {
        return;
    }
    let body = "x".repeat(3_000_000);
    let site = |on: &str| {
        secure(&format!("{on} location /f {{ root html; }} location / {{ return 200 \"$server_protocol $http2 $ssl_alpn_protocol\"; }}"))
            .file("html/f", &body)
    };
    let server = site("http2 on;").start();
    let url = format!("https://localhost:{}", server.port);
    assert_eq!(curl(&["--http2", &format!("{url}/")]), "HTTP/2.0 h2 h2");
    assert_eq!(curl(&["--http1.1", &format!("{url}/")]), "HTTP/1.1  http/1.1");
    assert_eq!(curl(&["--http2", &format!("{url}/f")]), body);
    let server = site("").start();
    assert_eq!(curl(&["--http2", &format!("https://localhost:{}/", server.port)]), "HTTP/1.1  http/1.1");
}
