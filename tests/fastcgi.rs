//! `fastcgi_pass`: parameters, bodies, answers in records, kept connections, what an application says on its error stream.

use crate::harness::{Server, Site, blunt, find, wait};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// A request as an application sees it.
struct Asked {
    params: BTreeMap<String, String>,
    body: Vec<u8>,
    /// Which connection it came on, from 1.
    connection: usize,
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
}

fn read_record(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 8];
    stream.read_exact(&mut head).ok()?;
    let len = u16::from_be_bytes([head[4], head[5]]) as usize;
    let mut content = vec![0; len + head[6] as usize];
    stream.read_exact(&mut content).ok()?;
    content.truncate(len);
    Some((head[1], content))
}

fn length(bytes: &mut &[u8]) -> usize {
    let first = bytes[0] as usize;
    let (len, used) = if first < 128 {
        (first, 1)
    } else {
        (u32::from_be_bytes([bytes[0] & 0x7f, bytes[1], bytes[2], bytes[3]]) as usize, 4)
    };
    *bytes = &bytes[used..];
    len
}

fn read_request(stream: &mut TcpStream, connection: usize) -> Option<Asked> {
    let (mut content, mut body) = (Vec::new(), Vec::new());
    loop {
        match read_record(stream)? {
            (4, piece) => content.extend(piece),
            (STDIN, piece) if piece.is_empty() => break,
            (STDIN, piece) => body.extend(piece),
            _ => {}
        }
    }
    let (mut params, mut rest) = (BTreeMap::new(), content.as_slice());
    while !rest.is_empty() {
        let (name, value) = (length(&mut rest), length(&mut rest));
        let text = |from, to| String::from_utf8_lossy(&rest[from..to]).into_owned();
        params.insert(text(0, name), text(name, name + value));
        rest = &rest[name + value..];
    }
    Some(Asked { params, body, connection })
}

/// An application that answers with the records of `answer`.
fn application(answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (answer, number) = (Arc::new(answer), AtomicUsize::new(0));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (answer, connection) = (answer.clone(), number.fetch_add(1, Ordering::Relaxed) + 1);
            std::thread::spawn(move || {
                while let Some(asked) = read_request(&mut stream, connection) {
                    let mut all = answer(&asked);
                    all.extend(record(STDOUT, b""));
                    all.extend(record(3, &[0; 8]));
                    // In pieces that fit no record.
                    for piece in all.chunks(1000) {
                        let _ = stream.write_all(piece);
                    }
                }
            });
        }
    });
    port
}

fn says(text: impl AsRef<str>) -> Vec<u8> {
    text.as_ref().as_bytes().chunks(300).flat_map(|piece| record(STDOUT, piece)).collect()
}

fn start(port: u16, conf: &str) -> Server {
    Site::http(&format!(
        "upstream app {{ server 127.0.0.1:{port}; keepalive 4; }}
         server {{ listen 127.0.0.1:@PORT@; location / {{ fastcgi_pass app; {conf} }} }}"
    ))
    .start()
}

#[test]
fn parameters_and_headers_arrive() {
    let port = application(|asked| {
        let lines: Vec<String> = asked.params.iter().map(|(n, v)| format!("{n}={v}\n")).collect();
        says(format!("Content-Type: text/plain\r\n\r\n{}", lines.concat()))
    });
    let server = start(
        port,
        "fastcgi_param SCRIPT_NAME $fastcgi_script_name; fastcgi_param PATH_INFO $fastcgi_path_info;
         fastcgi_param EMPTY '' if_not_empty; fastcgi_param HTTP_X_OURS ours; fastcgi_param HTTP_X_GONE '';
         fastcgi_param LONG 0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789;
         fastcgi_split_path_info ^(.+\\.php)(.*)$; fastcgi_index index.php;",
    );
    let mut client = server.connect();
    client.send(
        "GET /a.php/info HTTP/1.1\r\nHost: Example.com\r\nX-Ours: theirs\r\nX-Gone: theirs\r\nAccept: a\r\n\
         Accept: b\r\nCookie: c\r\nCookie: d\r\n\r\n",
    );
    let text = client.response().text();
    let long = "0123456789".repeat(13);
    assert_eq!(
        text,
        format!(
            "HTTP_ACCEPT=a, b\nHTTP_COOKIE=c; d\nHTTP_HOST=example.com\nHTTP_X_OURS=ours\nLONG={long}\n\
             PATH_INFO=/info\nSCRIPT_NAME=/a.php\n"
        )
    );
    assert!(server.get("/dir/").text().contains("SCRIPT_NAME=/dir/index.php\n"));
}

#[test]
fn answers_have_a_status() {
    let port = application(|asked| {
        says(match asked.params["URI"].as_str() {
            "/status" => "Status: 404 Nothing here\r\nX-A: b\r\n\r\ngone",
            "/location" => "Location: http://other/\r\n\r\n",
            "/bad" => "Status: none\r\n\r\n",
            "/short" => "X-A: b",
            _ => "X-A: b\n\nbare line ends",
        })
    });
    let server = start(port, "fastcgi_param URI $uri;");
    let answer = server.get("/status");
    assert_eq!((answer.status, answer.text().as_str(), answer.header("Status")), (404, "gone", None));
    assert_eq!(server.get("/location").status, 302);
    assert_eq!(server.get("/").text(), "bare line ends");
    assert_eq!(server.get("/bad").status, 502);
    server.wait_for("logs/error.log", "upstream sent invalid status \"none\" while reading response header");
    assert_eq!(server.get("/short").status, 502);
    let line = "upstream prematurely closed FastCGI stdout while reading response header from upstream";
    server.wait_for("logs/error.log", line);
    server.wait_for("logs/error.log", "upstream: \"fastcgi://127.0.0.1:");
}

/// In memory, in a file, as it comes: the application gets the same.
#[test]
fn bodies_arrive() {
    let port = application(|asked| {
        let sum: u64 = asked.body.iter().map(|b| u64::from(*b)).sum();
        says(format!("Content-Type: a/b\r\n\r\n{} {sum} {}", asked.body.len(), asked.params["CONTENT_LENGTH"]))
    });
    let body: Vec<u8> = (0..200_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let sum: u64 = body.iter().map(|b| u64::from(*b)).sum();
    let length = "fastcgi_param CONTENT_LENGTH $content_length; client_max_body_size 1m;";
    for conf in ["client_body_buffer_size 1m;", "client_body_buffer_size 1k;", "fastcgi_request_buffering off;"] {
        let server = start(port, &format!("{length} {conf}"));
        let mut client = server.connect();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len())).send(&body);
        assert_eq!(client.response().text(), format!("200000 {sum} 200000"), "{conf}");
    }
    let server = start(port, length);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_eq!(client.response().text(), "5 495 5");
}

#[test]
fn connections_are_kept_when_asked() {
    let port = application(|asked| says(format!("Content-Type: a/b\r\n\r\n{}", asked.connection)));
    let kept = start(port, "fastcgi_keep_conn on;");
    let first = kept.get("/").text();
    assert_eq!([kept.get("/").text(), kept.get("/").text()], [first.clone(), first]);
    let fresh = start(port, "");
    assert_ne!(fresh.get("/").text(), fresh.get("/").text());
}

#[test]
fn large_answers_go_through() {
    let port = application(|_| says(format!("Content-Type: a/b\r\n\r\n{}", "0123456789".repeat(100_000))));
    let server = start(port, "fastcgi_buffers 4 4k;");
    assert_eq!(server.get("/").body.len(), 1_000_000);
}

#[test]
fn words_on_the_error_stream_are_logged() {
    let port = application(|_| {
        let mut all = record(STDERR, b"PHP message: something\n");
        all.extend(says("Content-Type: a/b\r\n\r\nok"));
        all.extend(record(STDERR, b"afterthought"));
        all
    });
    let server = start(port, "");
    assert_eq!(server.get("/").text(), "ok");
    server.wait_for("logs/error.log", "FastCGI sent in stderr: \"PHP message: something");
    server.wait_for("logs/error.log", "afterthought\" while reading");
    let strict = start(port, "fastcgi_catch_stderr 'PHP message';");
    assert_eq!(strict.get("/").status, 502);
}

#[test]
fn what_is_no_fastcgi_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let server = start(port, "");
    assert_eq!(server.get("/").status, 502);
    server.wait_for("logs/error.log", "upstream sent unsupported FastCGI protocol version: 72");
}

#[test]
fn answers_are_cached() {
    let port = application(|asked| {
        let conditions = asked.params.keys().filter(|n| n.starts_with("HTTP_IF") || *n == "HTTP_RANGE").count();
        says(format!("Status: 203 As it is\r\nContent-Type: a/b\r\n\r\n{} {conditions}", asked.connection))
    });
    let server = Site::http(&format!(
        "fastcgi_cache_path @DIR@/cache keys_zone=z:1m;
         server {{ listen 127.0.0.1:@PORT@;
           location / {{ fastcgi_pass 127.0.0.1:{port}; fastcgi_cache z; fastcgi_cache_key $uri; fastcgi_cache_valid any 1m;
                         add_header X-Cache $upstream_cache_status always; }} }}"
    ))
    .start();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut client = server.connect();
        client.send("GET /a HTTP/1.1\r\nHost: a\r\nIf-None-Match: x\r\nRange: bytes=0-0\r\n\r\n");
        let answer = client.response();
        seen.push((answer.status, answer.text(), answer.header("X-Cache").unwrap_or_default().to_owned()));
    }
    assert_eq!(seen[0], (203, "1 0".to_owned(), "MISS".to_owned()));
    assert_eq!(seen[1], (203, "1 0".to_owned(), "HIT".to_owned()));
}

/// An application that begins an answer and goes away.
fn breaks_off(answer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = read_request(&mut stream, 0);
            let _ = stream.write_all(&answer);
        }
    });
    port
}

#[test]
fn what_breaks_off_is_not_taken_for_whole() {
    let head = says("Content-Type: a/b\r\n\r\nthe first part");
    let mut inside = record(STDOUT, &[b'x'; 500]);
    inside.truncate(100);
    for (answer, conf) in [([head.clone(), inside].concat(), ""), (head, "fastcgi_keep_conn on;")] {
        let server = start(breaks_off(answer), conf);
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let all = client.rest();
        assert!(find(&all, b"the first part").is_some() && !all.ends_with(b"0\r\n\r\n"), "{conf}");
        server.wait_for("logs/error.log", "upstream prematurely closed connection while reading upstream");
    }
}

/// The last record comes after all of the body: it is waited for, or the connection would be lost.
#[test]
fn connections_are_kept_when_the_length_is_known() {
    let port = application(|asked| {
        let body = format!("{:060000}", asked.connection);
        says(format!("Content-Type: a/b\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    });
    let server = start(port, "fastcgi_keep_conn on;");
    let first = server.get("/").text();
    assert!((0..5).all(|_| server.get("/").text() == first));
}

fn cached(port: u16, more: &str) -> Server {
    Site::http(&format!(
        "fastcgi_cache_path @DIR@/cache levels=1:2 keys_zone=one:1m;
         server {{ listen 127.0.0.1:@PORT@; location / {{
             fastcgi_pass 127.0.0.1:{port}; fastcgi_cache one; fastcgi_cache_key $request_uri; fastcgi_cache_valid 1m;
             fastcgi_param URI $request_uri; add_header X-Cache $upstream_cache_status always; {more} }} }}"
    ))
    .start()
}

fn asked_cache(server: &Server, target: &str) -> (u16, String, String) {
    let answer = server.get(target);
    (answer.status, answer.header("X-Cache").unwrap_or("-").to_owned(), answer.text())
}

#[test]
fn old_answers_are_confirmed() {
    let port = application(|asked| {
        says(match asked.params.get("HTTP_IF_NONE_MATCH") {
            Some(tag) if tag == "\"tag\"" => "Status: 304 Not Modified\r\nX-Accel-Expires: @1\r\n\r\n",
            _ => "ETag: \"tag\"\r\nX-Accel-Expires: @1\r\nContent-Type: a/b\r\n\r\nthe same",
        })
    });
    let server = cached(port, "fastcgi_cache_revalidate on;");
    let answer = |cache: &str| (200, cache.to_owned(), "the same".to_owned());
    assert_eq!(asked_cache(&server, "/"), answer("MISS"));
    assert_eq!(asked_cache(&server, "/"), answer("REVALIDATED"));
}

/// A HEAD without a body says nothing about what GET gets.
#[test]
fn an_answer_without_its_body_is_not_cached() {
    let port = application(|asked| {
        let body = if asked.params["METHOD"] == "HEAD" { "" } else { "whole" };
        says(format!("Content-Type: a/b\r\nContent-Length: 5\r\n\r\n{body}"))
    });
    let server = cached(port, "fastcgi_param METHOD $request_method;");
    assert_eq!(server.connect().head("/").header("Content-Length"), Some("5"));
    assert_eq!(asked_cache(&server, "/"), (200, "MISS".to_owned(), "whole".to_owned()));
    assert_eq!(asked_cache(&server, "/"), (200, "HIT".to_owned(), "whole".to_owned()));
}

#[test]
fn checks_ask_for_a_page_and_judge_its_status() {
    // As PHP does: a word on the error stream, and a status that is none of HTTP's first line.
    let app = |status: &'static str| {
        application(move |asked| {
            let ours = asked.params.len() == 2 && asked.params["SCRIPT_FILENAME"] == "/ping";
            let lacking = [record(STDERR, b"Primary script unknown"), says("Status: 404 Not Found\r\n\r\nno")].concat();
            if ours { says(format!("{status}X: y\r\n\r\npong")) } else { lacking }
        })
    };
    let web = blunt(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let group = |name: &str, port: u16, more: &str| {
        format!(
            "upstream {name} {{ zone {name} 64k; server 127.0.0.1:{port}; \
             check interval=100 rise=1 fall=1 timeout=1000 type=fastcgi; {more} }}"
        )
    };
    let params = "check_fastcgi_param REQUEST_METHOD GET; check_fastcgi_param SCRIPT_FILENAME /ping;";
    let fine = app("");
    let server = Site::http(&format!(
        "{} {} {} {} {} server {{ listen 127.0.0.1:@PORT@; location /api {{ api; }} }}",
        group("well", fine, params),
        group("moved", app("Status: 302 Found\r\n"), &format!("{params} check_http_expect_alive http_3xx;")),
        group("busy", app("Status: 503 Busy\r\n"), params),
        group("usual", fine, ""),
        group("web", web, ""),
    ))
    .start();
    let shown = |group: &str| server.get(&format!("/api/9/http/upstreams/{group}")).text();
    for group in ["well", "moved"] {
        assert!(wait(|| shown(group).contains("\"state\":\"up\"")), "{}", shown(group));
    }
    let sick = [
        ("busy", "answered 503, wanted 200-299 300-399"),
        ("usual", "answered 404, wanted 200-299 300-399"),
        ("web", "answered nonsense: upstream sent unsupported FastCGI protocol version: 72"),
    ];
    for (group, why) in sick {
        assert!(wait(|| shown(group).contains(&format!("\"reason\":\"{why}\""))), "{why}: {}", shown(group));
        server.wait_for("logs/error.log", &format!("peer is unhealthy: {why}, health check of peer"));
    }
}

/// An application on a unix socket with room for hardly anybody in its queue, one request after the other.
fn crowded(path: &std::path::Path, answers: bool) {
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    // The worker is nobody.
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    // listen() again: the library's own backlog is long.
    rustix::net::listen(&listener, 1).unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        loop {
            if !answers {
                // Nobody is ever accepted; the queue stays full.
                held.push(listener.try_clone());
                std::thread::park();
            }
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut header = [0; 8];
            // Records until the empty one of the body.
            while stream.read_exact(&mut header).is_ok() {
                let len = u16::from_be_bytes([header[4], header[5]]) as usize;
                let mut content = vec![0; len + header[6] as usize];
                stream.read_exact(&mut content).unwrap();
                if header[1] == STDIN && len == 0 {
                    break;
                }
            }
            let mut all = says("Content-Type: text/plain\r\n\r\nserved");
            all.extend(record(STDOUT, b""));
            all.extend(record(3, &[0; 8]));
            let _ = stream.write_all(&all);
        }
    });
}

#[test]
fn a_full_unix_socket_is_waited_for() {
    let site = Site::server(
        "location / { fastcgi_pass unix:@DIR@/app.sock; }
         location /never { fastcgi_pass unix:@DIR@/never.sock; fastcgi_connect_timeout 300ms; }",
    );
    crowded(&site.path().join("app.sock"), true);
    crowded(&site.path().join("never.sock"), false);
    let server = site.start();
    // All at once: more than the queue takes.
    let mut clients: Vec<_> = (0..60).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for client in &mut clients {
        let answer = client.response();
        assert_eq!((answer.status, answer.text().as_str()), (200, "served"), "{}", server.error_log());
    }
    let mut clients: Vec<_> = (0..6).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    // The first ones are in the queue and wait for an answer; the others wait for room, but not longer than they may.
    assert!(wait(|| server
        .error_log()
        .contains("upstream timed out (110: Connection timed out) while connecting to upstream")));
    assert_eq!(clients.last_mut().unwrap().response().status, 504);
}

/// php-fpm with hardly any queue, which ends with the test.
struct Fpm(std::process::Child);

impl Drop for Fpm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_thousand_clients_of_php_fpm_with_a_short_queue_are_served() {
    let programs = ["php-fpm", "php-fpm8.4", "php-fpm8.3", "php-fpm8.2"]
        .map(|n| std::path::PathBuf::from(format!("/usr/sbin/{n}")));
    let Some(php) = programs.into_iter().find(|p| p.exists()) else {
        return println!("php-fpm is not installed: left out");
    };
    let site = Site::whole(
        "worker_rlimit_nofile 8192; events { worker_connections 4000; }
         http { access_log off; server { listen 127.0.0.1:@PORT@ backlog=4096; location / {
           fastcgi_pass unix:@DIR@/fpm.sock; fastcgi_connect_timeout 60s;
           fastcgi_param SCRIPT_FILENAME @DIR@/html/a.php; fastcgi_param REQUEST_METHOD GET; fastcgi_param QUERY_STRING $args; } } }",
    )
    .file("html/a.php", "<?php usleep(2000); echo 'served';");
    let dir = site.path().display().to_string();
    let conf = format!(
        "[global]\nerror_log = {dir}/logs/fpm.log\ndaemonize = no\n[lab]\nlisten = {dir}/fpm.sock\nlisten.backlog = 8\nlisten.mode = 0666\n\
         user = nobody\npm = static\npm.max_children = 4\n"
    );
    std::fs::write(site.path().join("fpm.conf"), conf).unwrap();
    let mut command = std::process::Command::new(php);
    command.args(["--nodaemonize", "--fpm-config"]).arg(site.path().join("fpm.conf"));
    let quiet = std::process::Stdio::null;
    let mut fpm = Fpm(command.stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().unwrap());
    let socket = site.path().join("fpm.sock");
    assert!(wait(|| socket.exists() || fpm.0.try_wait().unwrap().is_some()));
    if fpm.0.try_wait().unwrap().is_some() {
        return println!("php-fpm does not start here (it needs root): left out");
    }
    let server = site.start();
    let mut clients: Vec<_> = (0..1_000).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let failed = clients.iter_mut().map(|c| c.response().status).filter(|status| *status != 200).count();
    assert_eq!(failed, 0, "{}", server.error_log());
}

#[test]
fn a_status_line_is_no_part_of_an_answer() {
    let port = application(|asked| {
        let more = if asked.params["URI"] == "/plain" { "" } else { "Status: 403 F\r\n" };
        says(format!("HTTP/1.1 404 Nope\r\n{more}Content-Type: text/plain\r\n\r\nbody"))
    });
    let server = cached(port, "fastcgi_cache_valid any 1m;");
    for (target, status) in [("/plain", 200), ("/status", 403)] {
        assert_eq!(asked_cache(&server, target), (status, "MISS".into(), "body".into()));
        assert_eq!(asked_cache(&server, target), (status, "HIT".into(), "body".into()));
    }
}

#[test]
fn what_is_said_after_the_head_spoils_nothing() {
    let port = application(|asked| {
        let (head, body) = ("Content-Type: text/plain\r\n", "\r\nbody");
        match asked.params["URI"].as_str() {
            "/before" => [record(STDERR, b"ERR"), says(format!("{head}{body}"))].concat(),
            "/within" => [says(head), record(STDERR, b"ERR"), says(body)].concat(),
            _ => [says(format!("{head}{body}")), record(STDERR, b"ERR")].concat(),
        }
    });
    let server = start(port, "fastcgi_param URI $request_uri; fastcgi_catch_stderr ERR;");
    assert_eq!(server.get("/before").status, 502);
    assert_eq!(server.get("/within").status, 502);
    let response = server.get("/behind");
    assert_eq!((response.status, response.text().as_str()), (200, "body"));
    server.wait_for("logs/error.log", "FastCGI sent in stderr: \"ERR\"");
}

#[test]
fn a_failure_is_not_cached_where_its_head_forbids_it() {
    let asked = AtomicUsize::new(0);
    let port = application(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => says("Set-Cookie: a=b\r\nStatus: none\r\n\r\n"),
        1 => says("Status: none\r\n\r\n"),
        _ => says("Content-Type: text/plain\r\n\r\nfine"),
    });
    let server = cached(port, "fastcgi_cache_valid any 1m;");
    assert_eq!(asked_cache(&server, "/a").0, 502);
    assert_eq!(asked_cache(&server, "/a").0, 502, "the second try, which forbids nothing");
    assert_eq!(asked_cache(&server, "/a").0, 502, "that of the cache");
    assert_eq!(asked_cache(&server, "/b"), (200, "MISS".into(), "fine".into()));
}
