//! Clients that take their answers slowly, or not at all: what waits for them is in files or stays with the peer, whatever the
//! answer goes through on its way. Measured as what the worker process holds while they stand.

use crate::harness::quic::{client as quic_client, get as quic_get, quic_site, run};
use crate::harness::{Asked, Client, Http2Backend, Server, Setup, Site, has_tools, wait, with_http2_at};
use http::{Request, Response};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Clients that stand at once.
const CLIENTS: usize = 4;
/// Bytes of an answer: more than the kernel's buffers on both sides take by far.
const BODY: usize = 8 << 20;
/// What the worker may hold for them in all, kB. For each `proxy_buffers` (36 kB), a piece of 64 kB on its way through a filter, and
/// some buffers of connections: under 0.5 MB. The rest is what an allocator keeps in pages that are partly used. Before there was a
/// bound it was what the kernel did not take of the answers, at least once: 30 MB and more.
const BOUND: usize = 16 << 10;
/// Nothing has moved for so long: everybody on the way waits.
const STAND: Duration = Duration::from_millis(150);

/// What an encoder of Brotli or Zstandard keeps for one answer at the most, kB.
const ENCODER: usize = 6 << 10;
/// What a QUIC connection to a peer takes in beyond what its streams are read of, kB (`upstream::http3`).
const QUIC_WINDOW: usize = 8 << 10;
/// Streams of a connection that nobody reads.
const STREAMS: usize = 60;
/// Of an answer so much is read and written before others get their turn, bytes (`upstream::relay`).
const A_TURN: usize = 64 << 10;
/// How often somebody else asks meanwhile.
const PROBES: usize = 5;

/// So much of a request is shown when something is wrong.
const SHOWN: usize = 40;

/// A text of lines.
fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(lines)
}

fn lines() -> Vec<u8> {
    let mut all = Vec::with_capacity(BODY + 64);
    for line in 0.. {
        if all.len() >= BODY {
            break;
        }
        all.extend_from_slice(format!("line {line} with a needle in it\n").as_bytes());
    }
    all.truncate(BODY);
    all
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    out.write_all(text).unwrap();
    out.finish().unwrap()
}

/// What the peers have got rid of, bytes.
type Sent = Arc<AtomicUsize>;

fn write(stream: &mut TcpStream, sent: &Sent, bytes: &[u8]) -> std::io::Result<()> {
    for piece in bytes.chunks(64 * 1024) {
        stream.write_all(piece)?;
        sent.fetch_add(piece.len(), Ordering::SeqCst);
    }
    Ok(())
}

/// A peer that answers requests of HTTP/1 with what their path asks for.
fn peer(sent: Sent) -> u16 {
    serve(move |stream, request| {
        let path = request.split(' ').nth(1).unwrap().split('?').next().unwrap().to_owned();
        let head = |lines: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{lines}\r\n").into_bytes();
        let plain = |body: &[u8]| [head(&format!("Content-Length: {}\r\n", body.len())), body.to_vec()].concat();
        let range = request.lines().find_map(|l| l.strip_prefix("Range: bytes="));
        let answer = match (path.as_str(), range.and_then(|r| r.split_once('-'))) {
            ("/sliced", Some((from, to))) => {
                let (from, to) = (from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap().min(BODY - 1));
                let lines = format!("Content-Range: bytes {from}-{to}/{BODY}\r\nContent-Length: {}\r\n", to + 1 - from);
                let head = String::from_utf8(head(&lines)).unwrap().replacen("200 OK", "206 Partial Content", 1);
                [head.as_bytes(), &text()[from..=to]].concat()
            }
            ("/chunked", _) => {
                let chunk = |c: &[u8]| [format!("{:x}\r\n", c.len()).as_bytes(), c, b"\r\n"].concat();
                let chunks = text().chunks(4000).flat_map(chunk).collect();
                [head("Transfer-Encoding: chunked\r\n"), chunks, b"0\r\n\r\n".to_vec()].concat()
            }
            ("/packed", _) => {
                let body = packed(&vec![b'z'; BODY]);
                [head(&format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", body.len())), body].concat()
            }
            ("/noise", _) => plain(noise()),
            ("/x", _) => plain(&vec![b'x'; BODY / 1024]),
            ("/echo", _) => plain(&b"<!--#echo var=\"arg_r\" encoding=\"none\" -->".repeat(BODY / 1024)),
            ("/page", _) => plain(b"a<!--#include virtual=\"/plain\" -->b"),
            _ => plain(text()),
        };
        write(stream, &sent, &answer)
    })
}

/// Answers what ends with an empty line by `answer`, once on a connection.
fn serve(answer: impl Fn(&mut TcpStream, &str) -> std::io::Result<()> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                }
                let _ = answer(&mut stream, &String::from_utf8_lossy(&head));
            });
        }
    });
    port
}

/// A FastCGI application that answers everything with the text.
fn application(sent: Sent) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sent = sent.clone();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 64 * 1024]);
                let content = [b"Content-Type: text/html\r\n\r\n", text()].concat();
                let record = |kind: u8, content: &[u8]| {
                    let [high, low] = (content.len() as u16).to_be_bytes();
                    [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
                };
                let mut all: Vec<u8> = content.chunks(32 * 1024).flat_map(|piece| record(6, piece)).collect();
                all.extend([record(6, b""), record(3, &[0; 8])].concat());
                let _ = write(&mut stream, &sent, &all);
            });
        }
    });
    port
}

/// An application of SCGI or uwsgi that answers everything with that head and the text.
fn plain_application(sent: Sent, head: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sent = sent.clone();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 64 * 1024]);
                let _ = write(&mut stream, &sent, &[head.as_bytes(), text()].concat());
            });
        }
    });
    port
}

/// What no coding makes shorter.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut state = 1u64;
        let next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(BODY).collect()
    })
}

/// A peer that speaks HTTP/2: the same for gRPC.
fn http2_peer(sent: Sent) -> Http2Backend {
    Http2Backend::start(move |mut asked: Asked| {
        let sent = sent.clone();
        async move {
            let head = Response::builder().header("content-type", "text/html").body(()).unwrap();
            let Ok(mut out) = asked.respond.send_response(head, false) else { return };
            for piece in text().chunks(64 * 1024) {
                crate::harness::send_all(&mut out, piece.to_vec(), false).await;
                sent.fetch_add(piece.len(), Ordering::SeqCst);
            }
            crate::harness::send_all(&mut out, vec![b'\n'], true).await;
        }
    })
}

/// Every way that answers go, on a port with TLS and QUIC and on one without.
struct Stage {
    server: Server,
    plain: u16,
    sent: Sent,
}

fn stage() -> Stage {
    let sent = Sent::default();
    let proxy = "proxy_pass http://127.0.0.1:@PEER@";
    let locations = format!(
        "location / {{ {proxy}/; }}
         location /plain {{ {proxy}; }}
         location /kept/ {{ {proxy}/; proxy_cache z; proxy_cache_valid 1h; proxy_cache_key $uri$is_args$args; }}
         location /no-file/ {{ {proxy}/; proxy_max_temp_file_size 0; }}
         location /unbuffered/ {{ {proxy}/; proxy_buffering off; }}
         location /stored/ {{ {proxy}/; proxy_store @DIR@/stored$arg_n; }}
         location /sub/ {{ {proxy}/; sub_filter needle thread; sub_filter_once off; }}
         location /blown/ {{ {proxy}/; sub_filter x $arg_r; sub_filter_once off; }}
         location /unpacked/ {{ {proxy}/; gunzip on; }}
         location /kept-unpacked/ {{ {proxy}/; gunzip on; proxy_cache z; proxy_cache_valid 1h;
                                     proxy_cache_key $uri$is_args$args; }}
         location /ssi/ {{ {proxy}/; ssi on; ssi_value_length 4k; }}
         location /slice/ {{ {proxy}/; slice 1m; proxy_set_header Range $slice_range; proxy_http_version 1.1; }}
         location /fastcgi {{ fastcgi_pass 127.0.0.1:@APPLICATION@; }}
         location /uwsgi {{ uwsgi_pass 127.0.0.1:@UWSGI@; }}
         location /scgi {{ scgi_pass 127.0.0.1:@SCGI@; }}
         location /brotli/ {{ {proxy}/; brotli on; brotli_comp_level 1; }}
         location /zstd/ {{ {proxy}/; zstd on; zstd_comp_level 1; }}
         location /js/ {{ {proxy}/; js_body_filter main.same buffer_type=buffer; }}
         location /lua/ {{ {proxy}/; body_filter_by_lua_block {{ ngx.arg[1] = ngx.arg[1] }} }}
         location /http2 {{ proxy_pass http://127.0.0.1:@HTTP2@; proxy_http_version 2; }}
         location /grpc {{ grpc_pass grpc://127.0.0.1:@HTTP2@; }}
         location /small {{ return 200 small; }}"
    );
    let http = format!(
        "proxy_cache_path @DIR@/kept keys_zone=z:1m; proxy_temp_path @DIR@/spool; keepalive_timeout 60s;
         large_client_header_buffers 4 16k; js_import main from @DIR@/main.js;
         server {{ listen 127.0.0.1:@OTHER@; http2 on; {locations} location = /port {{ return 200 $server_port; }} }}"
    );
    let http2 = Box::leak(Box::new(http2_peer(sent.clone())));
    let site = quic_site(&http, &format!("{locations} location = /other {{ return 200 @OTHER@; }}"))
        .set("THREADS", 1)
        .set("PEER", peer(sent.clone()))
        .set("APPLICATION", application(sent.clone()))
        .set("UWSGI", plain_application(sent.clone(), "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"))
        .set("SCGI", plain_application(sent.clone(), "Status: 200 OK\r\nContent-Type: text/html\r\n\r\n"))
        .file("main.js", "export default { same(r, data, flags) { r.sendBuffer(data, flags); } };")
        .set("HTTP2", http2.port);
    let server = site.start();
    let (_, other) = Setup::new().connect(server.port, "localhost").get("/other", "localhost");
    Stage { plain: other.parse().unwrap(), server, sent }
}

impl Stage {
    /// Waits until nothing moves any more: the peers are rid of everything, or held, and nothing goes to files.
    fn stand(&self) {
        let mut before = None;
        assert!(wait(|| {
            std::thread::sleep(STAND);
            let now = Some((self.sent.load(Ordering::SeqCst), self.server.written()));
            std::mem::replace(&mut before, now) == now
        }));
    }

    /// The same while the clients' connections are driven.
    async fn standing(&self) {
        loop {
            let before = self.sent.load(Ordering::SeqCst);
            tokio::time::sleep(STAND).await;
            if self.sent.load(Ordering::SeqCst) == before {
                return;
            }
        }
    }

    /// What the worker holds, kB, beyond what it held. An allocator gives back what was freed some time later: what clients that stand make
    /// it hold stays, what it was given back does not.
    fn growth(&self, before: usize) -> usize {
        self.growth_to(before, BOUND)
    }

    /// The same, waited for until it is below another bound.
    fn growth_to(&self, before: usize, bound: usize) -> usize {
        let mut growth = usize::MAX;
        wait(|| {
            growth = self.server.own_memory_kb().saturating_sub(before);
            growth < bound
        });
        growth
    }

    /// Clients that ask and read nothing. Then one of them reads all of it.
    fn plain(&self, target: &str, expected: &[u8]) {
        let before = self.read_late(target, expected);
        let growth = self.growth(before);
        assert!(growth < BOUND, "{target}, read: {growth} kB");
    }

    /// The same; gives what the worker held before.
    fn read_late(&self, target: &str, expected: &[u8]) -> usize {
        self.read_late_as(target, "", BOUND, &|body| body == expected)
    }

    /// The same with more header lines, within a bound of its own.
    fn read_late_as(&self, target: &str, lines: &str, bound: usize, is_expected: &dyn Fn(&[u8]) -> bool) -> usize {
        let before = self.server.own_memory_kb();
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(self.plain)).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            let mark = if target.contains('?') { '&' } else { '?' };
            client.send(format!("GET {target}{mark}n={n} HTTP/1.1\r\nHost: h\r\n{lines}\r\n"));
        }
        clients.iter().for_each(begun);
        self.stand();
        let growth = self.growth_to(before, bound);
        let shown = &target[..target.len().min(SHOWN)];
        assert!(growth < bound, "{shown}: {growth} kB");
        assert_eq!(Client::connect(self.plain).get("/small").text(), "small");
        let answer = clients.pop().unwrap().response();
        assert_eq!(answer.status, 200, "{shown}");
        assert!(is_expected(&answer.body), "{shown}: {} bytes", answer.body.len());
        before
    }
}

/// Waits until there is something to read.
fn begun(client: &Client) {
    assert_eq!(client.stream.peek(&mut [0]).unwrap(), 1);
}

#[test]
fn stalled_clients_hold_no_answers_in_memory() {
    let stage = stage();
    for target in ["/plain", "/chunked", "/no-file/plain", "/no-file/chunked", "/unbuffered/plain", "/stored/plain"] {
        stage.plain(target, text());
    }
    // The first time the cache is filled, the second time it answers.
    for target in ["/kept/plain", "/kept/plain", "/slice/sliced", "/fastcgi", "/uwsgi", "/scgi"] {
        stage.plain(target, text());
    }
    stage.plain("/http2", &[text(), b"\n"].concat());
}

#[test]
fn filters_make_no_more_than_a_client_takes() {
    let stage = stage();
    let replaced = String::from_utf8_lossy(text()).replace("needle", "thread").into_bytes();
    stage.plain("/sub/plain", &replaced);
    let zeros = vec![b'z'; BODY];
    for target in ["/unpacked/packed", "/kept-unpacked/packed", "/kept-unpacked/packed"] {
        stage.plain(target, &zeros);
    }
    let long = "y".repeat(1024);
    let blown = vec![b'y'; BODY];
    stage.plain(&format!("/blown/x?r={long}"), &blown);
    // Values of variables stay with the request as long as it lasts.
    stage.read_late(&format!("/ssi/echo?r={long}"), &blown);
    stage.plain("/ssi/page", &[b"a", text(), b"b"].concat());
}

/// Programs of the site, and codings, which hold their own state for each answer under way.
#[test]
fn programs_and_codings_make_no_more_than_a_client_takes() {
    let stage = stage();
    for target in ["/js/noise", "/lua/noise"] {
        stage.plain(target, noise());
    }
    let unbrotli = |body: &[u8]| {
        let mut text = Vec::new();
        brotli::BrotliDecompress(&mut &body[..], &mut text).is_ok() && text == noise()
    };
    let unzstd = |body: &[u8]| zstd::decode_all(body).is_ok_and(|text| text == noise());
    let of_encoders = BOUND + CLIENTS * ENCODER;
    stage.read_late_as("/brotli/noise", "Accept-Encoding: br\r\n", of_encoders, &unbrotli);
    stage.read_late_as("/zstd/noise", "Accept-Encoding: zstd\r\n", of_encoders, &unzstd);
}

/// Answers that come in streams of a QUIC connection which requests share.
#[test]
fn the_same_from_peers_of_http3() {
    if !has_tools() {
        return;
    }
    let behind =
        quic_site("", "location / { default_type text/html; }").file("html/plain", text()).set("THREADS", 1).start();
    let server = Site::server(&format!(
        "proxy_http_version 3; proxy_ssl_name localhost; proxy_ssl_server_name on; proxy_temp_path @DIR@/spool;
         location / {{ proxy_pass https://127.0.0.1:{}; }} location /small {{ return 200 small; }}",
        behind.port
    ))
    .start();
    // The connection is there, and what its library takes once for all.
    assert_eq!(server.get("/first").status, 404);
    let stage = Stage { plain: server.port, server, sent: Sent::default() };
    stage.read_late_as("/plain", "", BOUND + QUIC_WINDOW, &|body| body == text());
}

/// Streams of HTTP/2 whose answers nobody reads go to files as fast as the peers send; whoever asks meanwhile waits for 64 kB of each, not
/// for all that has come (another client waited 3 s beside 3,000 of them).
#[test]
fn streams_that_nobody_reads_leave_others_their_turn() {
    let stage = stage();
    with_http2_at(stage.plain, async |requests| {
        let mut answers = Vec::new();
        for n in 0..STREAMS {
            let mut requests = requests.clone().ready().await.unwrap();
            let request = Request::get(format!("http://localhost/plain?unread={n}")).body(()).unwrap();
            answers.push(requests.send_request(request, true).unwrap().0);
        }
        let mut other = Client::connect(stage.plain);
        assert_eq!(other.get("/small").text(), "small");
        let mut bodies = Vec::new();
        for answer in answers {
            bodies.push(answer.await.unwrap());
        }
        // What goes to files between a request and its answer: a turn of each stream, or two. The least of some, since the machine may be
        // busy with other things; all while there is much left to write.
        let mut least = usize::MAX;
        for _ in 0..PROBES {
            let before = stage.server.written();
            assert_eq!(other.get("/small").text(), "small");
            least = least.min(stage.server.written() - before);
        }
        assert!(least <= STREAMS * A_TURN * 5 / 2, "{least} bytes went to files first");
        // All of it goes on.
        assert!(wait(|| stage.server.written() > STREAMS * BODY / 4));
    });
}

#[test]
fn the_same_over_tls_http2_and_http3() {
    if !has_tools() {
        return;
    }
    let stage = stage();
    let targets = ["/plain", "/kept/plain", "/kept/plain", "/sub/plain", "/unpacked/packed"];
    for target in targets {
        let before = stage.server.own_memory_kb();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let mut client = Setup::new().connect(stage.server.port, "localhost");
                client.send(&format!("GET {target}?n={n} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
                client.stream.read_exact(&mut [0]).unwrap();
                client
            })
            .collect();
        stage.stand();
        let growth = stage.growth(before);
        assert!(growth < BOUND, "TLS {target}: {growth} kB");
        drop(clients);
    }
    for target in targets.into_iter().chain(["/grpc"]) {
        let before = stage.server.own_memory_kb();
        with_http2_at(stage.plain, async |requests| {
            let mut answers = Vec::new();
            for n in 0..CLIENTS {
                let mut requests = requests.clone().ready().await.unwrap();
                let request = Request::get(format!("http://localhost{target}?h2={n}")).body(()).unwrap();
                let (answer, _) = requests.send_request(request, true).unwrap();
                answers.push(answer.await.unwrap());
            }
            stage.standing().await;
            let growth = stage.growth(before);
            assert!(growth < BOUND, "HTTP/2 {target}: {growth} kB");
        });
    }
    run(async {
        for target in targets {
            let before = stage.server.own_memory_kb();
            let (_endpoint, mut requests) = quic_client(stage.server.port).await;
            let mut answers = Vec::new();
            for n in 0..CLIENTS {
                let mut stream = requests.send_request(quic_get(&format!("{target}?h3={n}"))).await.unwrap();
                stream.finish().await.unwrap();
                assert_eq!(stream.recv_response().await.unwrap().status(), 200);
                answers.push(stream);
            }
            stage.standing().await;
            let growth = stage.growth(before);
            assert!(growth < BOUND, "HTTP/3 {target}: {growth} kB");
        }
    });
}

#[test]
fn a_temp_path_that_cannot_be_written_holds_the_peer_and_is_said_once() {
    let sent = Sent::default();
    // The kernel must not take the whole answer for us: its buffer for what a peer sends grows to several MB.
    let site =
        "proxy_temp_path @DIR@/spool; location / { proxy_pass http://127.0.0.1:@PEER@; proxy_socket_rcvbuf 64k; }";
    let server = Site::server(site).set("PEER", peer(sent.clone())).start();
    // Where the directory was there is a file: nobody can make one in it, root neither.
    let _ = std::fs::remove_dir_all(server.dir().join("spool"));
    std::fs::write(server.dir().join("spool"), "").unwrap();
    let stage = Stage { plain: server.port, server, sent };
    let before = stage.server.own_memory_kb();
    let mut client = Client::connect(stage.plain);
    client.send("GET /plain HTTP/1.1\r\nHost: h\r\n\r\n");
    begun(&client);
    stage.stand();
    assert!(stage.sent.load(Ordering::SeqCst) < BODY);
    let growth = stage.growth(before);
    assert!(growth < BOUND, "{growth} kB");
    assert!(client.response().body == text());
    let log = stage.server.error_log();
    assert_eq!(log.matches("[crit]").count(), 1, "{log}");
}
