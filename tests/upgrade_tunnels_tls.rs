//! Tunnels to peers over TLS that outlive the binary: what either connection is encrypted with goes over.

use crate::harness::{Client, Json, Port, SecureClient, Setup, Site, has_tools, wait};
use crate::upgrade::{Long, beside, end, is_gone};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustix::process::{Signal, kill_process};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ConnectionTrafficSecrets, ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const SUITES: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
const HEADERS: &str = "Upgrade: echo\r\nConnection: Upgrade\r\n";
const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n";
/// The peer changes its keys, wants ours to be changed, and says this.
const NEW_KEYS: &str = "new keys";
/// The peer sends a ticket first.
const TICKET: &str = "a ticket";
/// The peer says nothing to this.
const QUIET: &str = "nothing";
/// The peer says numbers on its own.
const COUNT: &str = "count";
const NUMBERS: usize = 150;

type Secure = StreamOwned<ServerConnection, TcpStream>;

fn config(dir: &Path) -> Arc<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(dir.join("localhost.crt")).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(dir.join("localhost.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.enable_secret_extraction = true;
    Arc::new(config)
}

fn switch(stream: &mut Secure) -> std::io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    stream.write_all(SWITCHING)?;
    stream.flush()
}

/// Says what it hears.
fn echo(mut stream: Secure) -> std::io::Result<()> {
    switch(&mut stream)?;
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer)?;
        match &buffer[..n] {
            b"" => return Ok(()),
            said if said == QUIET.as_bytes() => {}
            said if said == COUNT.as_bytes() => {
                for number in 0..NUMBERS {
                    stream.write_all(format!("{number:04}").as_bytes())?;
                    stream.flush()?;
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            said => {
                if said == NEW_KEYS.as_bytes() {
                    stream.conn.refresh_traffic_keys().unwrap();
                }
                stream.write_all(said)?;
                stream.flush()?;
            }
        }
    }
}

/// One direction behind the handshake, with a cipher of 16 bytes' key.
struct Direction {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Direction {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Direction {
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { panic!("another cipher") };
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap());
        Direction { key, iv: iv.as_ref().try_into().unwrap(), sequence }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()).for_each(|(n, s)| *n ^= s);
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, kind: u8, plain: &[u8]) -> Vec<u8> {
        let [high, low] = ((plain.len() + 17) as u16).to_be_bytes();
        let head = [23, 3, 3, high, low];
        let mut body = [plain, &[kind]].concat();
        let nonce = self.nonce();
        self.key.seal_in_place_append_tag(nonce, Aad::from(&head), &mut body).unwrap();
        [&head[..], &body].concat()
    }

    /// The plain bytes of the next record; none: it is none of data.
    fn open(&mut self, socket: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
        let mut head = [0; 5];
        socket.read_exact(&mut head)?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        socket.read_exact(&mut body)?;
        let nonce = self.nonce();
        let plain = self.key.open_in_place(nonce, Aad::from(&head), &mut body).unwrap();
        Ok(plain.strip_suffix(&[23]).map(<[u8]>::to_vec))
    }
}

/// Says what it hears, and a ticket before it when it is asked for one: the library sends those of its handshake only.
fn with_tickets(mut stream: Secure) -> std::io::Result<()> {
    switch(&mut stream)?;
    let StreamOwned { conn, mut sock } = stream;
    let secrets = conn.dangerous_extract_secrets().unwrap();
    let (mut says, mut hears) = (Direction::new(secrets.tx), Direction::new(secrets.rx));
    while let Some(said) = hears.open(&mut sock)? {
        if said == TICKET.as_bytes() {
            let ticket = [&[4, 0, 0, 60][..], &[7; 60]].concat();
            let (first, second) = ticket.split_at(21);
            sock.write_all(&[says.seal(22, first), says.seal(22, second)].concat())?;
        }
        sock.write_all(&says.seal(23, &said))?;
    }
    Ok(())
}

struct Setting {
    server: Long,
    tls: Port,
}

/// A server whose peer is reached over TLS.
fn start(work: fn(Secure) -> std::io::Result<()>, more: &str) -> Option<Setting> {
    if !has_tools() {
        return None;
    }
    let (tls, listener) = (Port::reserve(), TcpListener::bind("127.0.0.1:0").unwrap());
    let location = "location /ws { proxy_pass https://back; }";
    let text = format!(
        "worker_processes 2; events {{ }} http {{ log_format all '$status $upstream_bytes_received $upstream_bytes_sent \
         $request_uri'; access_log @DIR@/logs/all.log all; {more}
         upstream back {{ zone back 64k; server 127.0.0.1:{}; }}
         proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
         server {{ listen 127.0.0.1:@TLS@ ssl; server_name localhost; ssl_certificate @DIR@/localhost.crt;
             ssl_certificate_key @DIR@/localhost.key; {location} }}
         server {{ listen 127.0.0.1:@PORT@; location /api {{ api; access_log off; }} location /who {{ return 200 $pid; }}
             {location} }} }}",
        listener.local_addr().unwrap().port()
    );
    let site = Site::whole(&text).set("TLS", tls.number).certificate("localhost");
    let config = config(site.path());
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let _ = socket.set_nodelay(true);
            let conn = ServerConnection::new(config.clone()).unwrap();
            std::thread::spawn(move || work(StreamOwned::new(conn, socket)));
        }
    });
    Some(Setting { server: Long::start(site), tls })
}

impl Setting {
    fn secure(&self) -> SecureClient {
        let mut client = Setup::new().connect(self.tls.number, "localhost");
        client.send(&format!("GET /ws?secure HTTP/1.1\r\nHost: localhost\r\n{HEADERS}\r\n"));
        assert_eq!(client.response().0, 101);
        client
    }

    fn active(&self) -> f64 {
        Json(self.server.get("/api/9/http/upstreams/back").text()).number("peers.active")
    }

    fn until_parked(&self, count: usize) {
        if !self.server.error_log().contains("take a descriptor each") {
            let memory = || self.server.get("/api/9/ironweir/memory").text();
            let parked = || Json(memory()).number("connections.parked.tunnel.count");
            assert!(wait(|| parked() == count as f64), "{}", memory());
        }
    }

    fn has_no_alerts(&self) {
        assert_eq!(self.server.error_log().matches("[alert]").count(), 0, "{}", self.server.error_log());
    }
}

fn says(tunnel: &mut Client, text: &str) {
    tunnel.send(text);
    assert_eq!(tunnel.take(text.len()).escape_ascii().to_string(), text);
}

fn says_securely(tunnel: &mut SecureClient, text: &str) {
    tunnel.send(text);
    let mut heard = vec![0; text.len()];
    tunnel.stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, text.as_bytes());
}

#[test]
fn tunnels_to_peers_over_tls_go_on_with_the_new_binary() {
    for suite in SUITES {
        let Some(all) = start(echo, &format!("proxy_ssl_conf_command Ciphersuites {suite};")) else { return };
        let server = &all.server;
        let mut parked = server.open("/ws?parked", HEADERS);
        says(&mut parked, "before");
        let mut secure = all.secure();
        says_securely(&mut secure, "before");
        all.until_parked(2);
        // One has just said something: it has a task.
        let mut busy = server.open("/ws?busy", HEADERS);
        let large = "x".repeat(3000);
        for round in 0..3 {
            says(&mut busy, "just now");
            server.upgrade();
            assert!(wait(|| all.active() == 3.0), "{}", all.active());
            says(&mut parked, &format!("after {round}"));
            says(&mut busy, &large);
            secure.stream.conn.refresh_traffic_keys().unwrap();
            says_securely(&mut secure, NEW_KEYS);
            says_securely(&mut secure, "over TLS");
        }
        // Nothing is said after new keys, until the tunnel is elsewhere.
        says(&mut parked, NEW_KEYS);
        says(&mut busy, NEW_KEYS);
        server.upgrade();
        says(&mut parked, "at last");
        says(&mut busy, "at last");
        drop((parked, busy));
        let logged = |uri: &str, bytes: usize| {
            let log = server.read("logs/all.log");
            let line = log.lines().find(|line| line.ends_with(uri)).unwrap_or_default();
            line.starts_with("101 ")
                && line.split(' ').nth(2).and_then(|n| n.parse().ok()).is_some_and(|n: usize| n >= bytes)
        };
        assert!(wait(|| logged("/ws?busy", 3 * (8 + large.len()))), "{}", server.read("logs/all.log"));
        // The end is told in the new process as in the old one.
        secure.stream.conn.send_close_notify();
        secure.stream.flush().unwrap();
        assert!(secure.is_closed());
        assert!(wait(|| all.active() == 0.0), "{}", all.active());
        all.has_no_alerts();
    }
}

#[test]
fn nothing_that_either_side_says_meanwhile_is_lost() {
    let Some(all) = start(echo, "") else { return };
    let mut hears = all.server.open("/ws?count", HEADERS);
    hears.send(COUNT);
    let stop = Arc::new(AtomicBool::new(false));
    let talkers: Vec<_> = [false, true]
        .into_iter()
        .map(|is_secure| {
            let mut plain = all.server.open("/ws?talks", HEADERS);
            let mut secure = all.secure();
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut number = 0;
                while !stop.load(Relaxed) {
                    let text = format!("{number:06}");
                    match is_secure {
                        true => says_securely(&mut secure, &text),
                        false => says(&mut plain, &text),
                    }
                    number += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                number
            })
        })
        .collect();
    all.server.upgrade();
    all.server.upgrade();
    for number in 0..NUMBERS {
        assert_eq!(hears.take(4), format!("{number:04}").as_bytes());
    }
    stop.store(true, Relaxed);
    for talker in talkers {
        assert!(talker.join().unwrap() > 10);
    }
    all.has_no_alerts();
}

#[test]
fn tickets_of_a_peer_are_passed_over_in_the_new_process() {
    let Some(all) = start(with_tickets, "proxy_ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;") else { return };
    let mut tunnel = all.server.open("/ws", HEADERS);
    says(&mut tunnel, "before");
    for _ in 0..2 {
        all.server.upgrade();
        says(&mut tunnel, TICKET);
        says(&mut tunnel, "after");
        says(&mut tunnel, TICKET);
        all.until_parked(1);
    }
    all.has_no_alerts();
}

#[test]
fn a_tunnel_to_a_peer_of_older_tls_stays_until_it_ends() {
    let Some(all) = start(echo, "proxy_ssl_protocols TLSv1.2;") else { return };
    let mut tunnel = all.server.open("/ws", HEADERS);
    says(&mut tunnel, "before");
    let old = beside(&all.server);
    says(&mut tunnel, "after");
    let _ = kill_process(old, Signal::QUIT);
    assert_eq!(all.server.get("/who").status, 200);
    says(&mut tunnel, "at the end");
    assert!(!is_gone(old));
    drop(tunnel);
    end(&all.server, old);
}

/// The library has said nothing of the keys that a client wanted to be changed when it lets go of the connection.
#[test]
fn an_update_of_keys_that_a_client_has_asked_for_goes_with_its_connection() {
    let Some(all) = start(echo, "") else { return };
    let mut tunnels: Vec<_> = (0..4).map(|_| all.secure()).collect();
    for round in 0..2 {
        for tunnel in &mut tunnels {
            says_securely(tunnel, "before");
            tunnel.stream.conn.refresh_traffic_keys().unwrap();
            tunnel.send(QUIET);
        }
        // It has come to the library by then: what comes later is heard elsewhere.
        std::thread::sleep(Duration::from_millis(100));
        all.server.upgrade();
        for tunnel in &mut tunnels {
            says_securely(tunnel, &format!("after {round}"));
        }
    }
    all.has_no_alerts();
}
