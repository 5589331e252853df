//! Certificates that are ordered and renewed by themselves, from a real authority.

use crate::harness::{Dns, Folder, Pebble, Port, Server, Setup, Site, Ways, has_pebble, openssl, pebble_files, wait};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// What outlives a server: where an authority asks for proofs, and where certificates are kept.
struct World {
    dns: Dns,
    http: Port,
    tls: Port,
    state: Folder,
    /// The authority's own certificate; also what tests write.
    files: Folder,
}

impl World {
    fn new() -> World {
        let dns = Dns::start(Duration::ZERO);
        dns.set(&[[127, 0, 0, 1]]);
        World { dns, http: Port::reserve(), tls: Port::reserve(), state: Folder::new(), files: pebble_files() }
    }

    fn authority(&self, ways: &Ways) -> Pebble {
        Pebble::start(self.files.path(), [self.http.number, self.tls.number], &self.dns, ways)
    }

    /// A server with a certificate from an authority. `issuer` and `server`: more directives.
    fn server(&self, directory: &str, issuer: &str, server: &str) -> Server {
        let site = Site::http(
            "acme_issuer pebble { uri @CA@; ssl_trusted_certificate @FILES@/ca.crt; accept_terms_of_service;
                                  state_path @STATE@/kept; @ISSUER@ }
             server { listen 127.0.0.1:@PORT@; listen 127.0.0.1:@HTTP@; return 200 plain; }
             server { listen 127.0.0.1:@TLS@ ssl; ssl_certificate $acme_certificate;
                      ssl_certificate_key $acme_certificate_key; @SERVER@ return 200 $ssl_server_name; }",
        );
        let site = site.set("CA", directory).set("ISSUER", issuer).set("SERVER", server);
        let site = site.set("HTTP", self.http.number).set("TLS", self.tls.number);
        site.set("FILES", self.files.path().display()).set("STATE", self.state.path().display()).start()
    }

    /// What is shown for a name, as openssl prints it; nothing as long as there is nothing.
    fn shown(&self, name: &str) -> Option<String> {
        let client = Setup::new().try_connect(self.tls.number, name).ok()?;
        let leaf = client.stream.conn.peer_certificates()?[0].to_vec();
        self.files.write("shown.der", leaf);
        Some(openssl(self.files.path(), &["x509", "-inform", "DER", "-in", "shown.der", "-text"]))
    }

    /// What is shown once the server has told that it was issued.
    fn issued(&self, server: &Server, name: &str) -> String {
        server.wait_for("logs/error.log", ": issued, valid until ");
        self.shown(name).expect("a certificate that was issued is shown")
    }
}

fn pem(text: &str) -> &str {
    &text[text.find("-----BEGIN").expect("PEM")..]
}

fn files(directory: &Path) -> Vec<(String, u32)> {
    let all = std::fs::read_dir(directory).expect("a directory").flatten();
    let mut all: Vec<_> = all
        .map(|f| {
            (f.file_name().to_string_lossy().into_owned(), f.metadata().expect("a file").permissions().mode() & 0o777)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_certificate_is_ordered_kept_and_renewed_when_the_authority_says_so() {
    if !has_pebble() {
        return;
    }
    let world = World::new();
    let pebble = world.authority(&Ways { bad_nonces: 30, ..Ways::default() });
    let names = "server_name .one.test; acme_certificate pebble;";
    let server = world.server(&pebble.directory(), "", names);
    let issued = world.issued(&server, "one.test");
    assert!(issued.contains("Issuer: CN = Pebble Intermediate CA"), "{issued}");
    assert!(issued.contains("DNS:www.one.test, DNS:one.test"), "{issued}");
    assert_eq!(server.get("/.well-known/acme-challenge/xyz").text(), "plain", "no proof is left behind");
    let kept = files(&world.state.path().join("kept"));
    assert_eq!((kept.len(), &*kept[0].0, &*kept[1].0), (3, "account.key", "account.url"), "{kept:?}");
    assert!(kept[2].0.starts_with("www.one.test-") && kept.iter().all(|(_, mode)| *mode == 0o600), "{kept:?}");
    server.stop(Signal::QUIT);

    // After a restart it is there at once, without an authority.
    let server = world.server("https://127.0.0.1:1/dir", "", names);
    assert_eq!(world.shown("one.test").as_deref(), Some(&*issued));
    server.wait_for("logs/error.log", "connect() to 127.0.0.1:1 failed (111: Connection refused); next try in 6");
    server.stop(Signal::QUIT);

    // The authority wants it renewed; the account is still ours.
    pebble.renew(pem(&issued), "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z");
    let account = std::fs::read_to_string(world.state.path().join("kept/account.key")).expect("kept");
    let server = world.server(&pebble.directory(), "", names);
    let renewed = world.issued(&server, "one.test");
    assert_ne!(renewed, issued);
    assert_eq!(std::fs::read_to_string(world.state.path().join("kept/account.key")).expect("kept"), account);
}

#[test]
fn a_proof_in_a_handshake() {
    if !has_pebble() {
        return;
    }
    let world = World::new();
    let pebble = world.authority(&Ways { external_account: Some("mine"), other_roots: 2, ..Ways::default() });
    let root = pebble.root(world.files.path(), 1);
    let issuer = format!(
        "challenge tls-alpn-01; account_key ecdsa:384; preferred_chain \"{root}\"; profile short require;
         common_name_in_csr on; contact admin@two.test;
         external_account_key mine data:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA;"
    );
    let server = "server_name _; acme_certificate pebble TWO.test 127.0.0.1 key=rsa:2048;";
    let server = world.server(&pebble.directory(), &issuer, server);
    let issued = world.issued(&server, "two.test");
    assert!(issued.contains("DNS:two.test, IP Address:127.0.0.1"), "{issued}");
    assert!(issued.contains("Public-Key: (2048 bit)"), "{issued}");
    let kept = files(&world.state.path().join("kept"));
    let kept = std::fs::read_to_string(world.state.path().join("kept").join(&kept[2].0)).expect("kept");
    world.files.write("chain.pem", &kept);
    let chain = openssl(world.files.path(), &["crl2pkcs7", "-nocrl", "-certfile", "chain.pem", "-out", "chain.p7"])
        + &openssl(world.files.path(), &["pkcs7", "-print_certs", "-noout", "-in", "chain.p7"]);
    assert!(chain.contains(&format!("issuer=CN = {root}")), "the preferred chain, not another: {chain}");
}

#[test]
fn a_record_that_a_program_publishes_proves_a_wildcard() {
    if !has_pebble() {
        return;
    }
    let world = World::new();
    let pebble = world.authority(&Ways::default());
    let texts = world.dns.texts().display().to_string();
    let hook = world.files.path().join("hook");
    let script = format!(
        "#!/bin/sh\ncase $1 in present) echo \"$3\" >>'{texts}'/\"$2\";; cleanup) echo \"$2\" >>'{texts}'/cleaned;; esac\n"
    );
    std::fs::write(&hook, script).unwrap();
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    let issuer = format!("challenge dns-01; dns_hook {};", hook.display());
    let server =
        world.server(&pebble.directory(), &issuer, "server_name *.four.test four.test; acme_certificate pebble;");
    let issued = world.issued(&server, "any.four.test");
    assert!(issued.contains("DNS:*.four.test, DNS:four.test"), "{issued}");
    let cleaned = || std::fs::read_to_string(world.dns.texts().join("cleaned")).unwrap_or_default();
    assert!(wait(|| cleaned() == "_acme-challenge.four.test\n".repeat(2)), "{}", cleaned());
    drop(server);

    // A program that fails is told of, with its words.
    std::fs::write(&hook, "#!/bin/sh\necho no such zone >&2; exit 7\n").unwrap();
    let server = world.server(&pebble.directory(), &issuer, "server_name *.five.test; acme_certificate pebble;");
    server.wait_for(
        "logs/error.log",
        "present _acme-challenge.five.test\" failed (exit status: 7): no such zone; next try in",
    );
}

#[test]
fn a_failing_authority_stops_nobody() {
    if !has_pebble() {
        return;
    }
    let world = World::new();
    let gone = Port::reserve();
    let directory = format!("https://localhost:{}/dir", gone.number);
    let server = world.server(&directory, "", "server_name three.test; acme_certificate pebble;");
    assert_eq!(server.get("/").text(), "plain");
    server.wait_for("logs/error.log", "acme: issuer \"pebble\": ");
    server.wait_for("logs/error.log", "Connection refused); next try in 6");
    assert_eq!(world.shown("three.test"), None);
    server.wait_for("logs/error.log", "is not issued yet while SSL handshaking");

    // Somebody repairs the configuration: what failed is tried at once.
    let pebble = world.authority(&Ways::default());
    let text = server.read("nginx.conf").replace(&directory, &pebble.directory());
    std::fs::write(server.dir().join("nginx.conf"), text).expect("written");
    server.signal(Signal::HUP);
    assert!(world.issued(&server, "three.test").contains("DNS:three.test"));
    // Another name is refused by the authority; the certificate stays, and so does the server.
    let text = server.read("nginx.conf").replace("server_name three.test", "server_name three.test blocked.test");
    std::fs::write(server.dir().join("nginx.conf"), text).expect("written");
    server.signal(Signal::HUP);
    server.wait_for("logs/error.log", "(rejectedIdentifier)");
    server.wait_for("logs/error.log", "there is none to use");
    assert_eq!(server.get("/").text(), "plain");
}
