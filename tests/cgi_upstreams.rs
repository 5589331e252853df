//! `uwsgi_pass`, `scgi_pass`, `memcached_pass`: what is sent, what becomes of answers, and the real servers where they are installed.

use crate::harness::{Beside, Port, Site, find, program, wait};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

/// Answers each connection with what `answer` makes of what `read` finds on it, and hands that out.
fn application<T: Send + Clone + 'static>(
    read: fn(&mut TcpStream) -> Option<T>,
    answer: impl Fn(&T) -> Vec<u8> + Send + 'static,
) -> (u16, Receiver<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Some(asked) = read(&mut stream) else { continue };
            let _ = stream.write_all(&answer(&asked));
            let _ = tx.send(asked);
        }
    });
    (port, rx)
}

/// What an application was asked: its parameters in order, the packet's modifiers, and the body.
#[derive(Clone, Debug)]
struct Asked {
    params: Vec<(String, String)>,
    modifiers: (u8, u8),
    body: String,
}

impl Asked {
    fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    fn read_body(&mut self, stream: &mut TcpStream) -> Option<()> {
        let length = self.param("CONTENT_LENGTH").and_then(|n| n.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        self.body = String::from_utf8_lossy(&body).into_owned();
        Some(())
    }
}

fn read_uwsgi(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    let mut packet = vec![0; usize::from(u16::from_le_bytes([head[1], head[2]]))];
    stream.read_exact(&mut packet).ok()?;
    let (mut params, mut rest) = (Vec::new(), packet.as_slice());
    while !rest.is_empty() {
        let mut text = || {
            let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            let text = String::from_utf8_lossy(&rest[2..2 + len]).into_owned();
            rest = &rest[2 + len..];
            text
        };
        params.push((text(), text()));
    }
    let mut asked = Asked { params, modifiers: (head[0], head[3]), body: String::new() };
    asked.read_body(stream)?;
    Some(asked)
}

fn read_scgi(stream: &mut TcpStream) -> Option<Asked> {
    let mut digits = Vec::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte).ok()?;
        if byte[0] == b':' {
            break;
        }
        digits.push(byte[0]);
    }
    let mut headers = vec![0; String::from_utf8(digits).ok()?.parse().ok()?];
    stream.read_exact(&mut headers).ok()?;
    stream.read_exact(&mut byte).ok()?;
    assert_eq!(byte, *b",");
    let texts: Vec<String> = headers.split(|b| *b == 0).map(|t| String::from_utf8_lossy(t).into_owned()).collect();
    let params: Vec<_> = texts.chunks_exact(2).map(|p| (p[0].clone(), p[1].clone())).collect();
    assert_eq!(params[0].0, "CONTENT_LENGTH");
    let mut asked = Asked { params, modifiers: (0, 0), body: String::new() };
    asked.read_body(stream)?;
    Some(asked)
}

#[test]
fn uwsgi_parameters_headers_and_bodies() {
    let (port, asked) =
        application(read_uwsgi, |_| b"HTTP/1.1 201 Made\r\nX-A: 1\r\nStatus: hidden\r\n\r\nmade".to_vec());
    let server = Site::server(
        "location / {
            uwsgi_pass uwsgi://127.0.0.1:@APP@;
            uwsgi_modifier1 5; uwsgi_modifier2 9;
            uwsgi_param CONTENT_LENGTH $content_length;
            uwsgi_param REQUEST_URI $request_uri;
            uwsgi_param EMPTY $arg_none if_not_empty;
        }",
    )
    .set("APP", port)
    .start();
    let mut client = server.connect();
    client.send("POST /a?b HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nX-One: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let response = client.response();
    assert_eq!((response.status, response.text().as_str()), (201, "made"));
    assert_eq!(response.header("X-A"), Some("1"));
    assert_eq!(response.header("Status"), None);
    let asked = asked.recv().expect("it was asked");
    assert_eq!(asked.modifiers, (5, 9));
    assert_eq!(asked.param("REQUEST_URI"), Some("/a?b"));
    assert_eq!(asked.param("HTTP_X_ONE"), Some("1, 2"));
    assert_eq!(asked.param("HTTP_HOST"), Some("h"));
    assert_eq!(asked.param("EMPTY"), None);
    assert_eq!(asked.body, "hello");
}

#[test]
fn a_status_line_that_comes_in_pieces_is_one() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.set_nodelay(true).expect("it is TCP");
            let Some(_) = read_uwsgi(&mut stream) else { continue };
            for piece in ["HT", "TP", "/1.1 202 Acc", "epted\r\nX: y\r\n\r\n", "body"] {
                stream.write_all(piece.as_bytes()).expect("it is read");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    });
    let server = Site::server("location / { uwsgi_pass 127.0.0.1:@APP@; }").set("APP", port).start();
    let response = server.get("/");
    assert_eq!((response.status, response.header("X"), response.text().as_str()), (202, Some("y"), "body"));
}

#[test]
fn too_many_uwsgi_parameters_are_an_error_of_the_request() {
    let (port, _) = application(read_uwsgi, |_| b"\r\nfits".to_vec());
    let server = Site::http(
        "large_client_header_buffers 4 64k;
        server {
            listen 127.0.0.1:@PORT@;
            location / { uwsgi_pass 127.0.0.1:@APP@; uwsgi_param A $request_uri; uwsgi_param B $request_uri; }
        }",
    )
    .set("APP", port)
    .start();
    assert_eq!(server.get("/").text(), "fits");
    assert_eq!(server.get(&format!("/{}", "x".repeat(40_000))).status, 500);
    assert!(server.error_log().contains("do not fit into one packet"));
}

/// A status of the 1xx kind ends no answer (RFC 9110 section 15.2): the client would take what comes next for it.
#[test]
fn a_final_status_is_no_interim_one() {
    let answers = ["Status: 101 S", "Status: 100", "Status: 103 Early Hints", "Status: 1000 x", "HTTP/1.1 101 S"];
    for answer in answers {
        let answer = format!("{answer}\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nbody");
        let of = answer.clone();
        let (scgi, _asked) = application(read_scgi, move |_| of.clone().into_bytes());
        let of = answer.clone();
        let (uwsgi, _asked) = application(read_uwsgi, move |_| of.clone().into_bytes());
        let server = Site::server(
            "location /scgi { scgi_pass 127.0.0.1:@SCGI@; scgi_param CONTENT_LENGTH 0; }
             location /uwsgi { uwsgi_pass 127.0.0.1:@UWSGI@; } location /ok { return 200 ok; }",
        )
        .set("SCGI", scgi)
        .set("UWSGI", uwsgi)
        .start();
        let mut client = server.connect();
        for target in ["/scgi", "/uwsgi"] {
            assert_eq!(client.get(target).status, 502, "{target}: {answer}");
            assert_eq!(client.get("/ok").text(), "ok");
        }
    }
}

#[test]
fn scgi_headers_and_bodies() {
    let (port, asked) =
        application(read_scgi, |_| b"Status: 404 Gone Fishing\r\nContent-Type: text/x\r\n\r\nfish".to_vec());
    let server = Site::server(
        "location / { scgi_pass 127.0.0.1:@APP@; scgi_param SCGI 1; scgi_param REQUEST_METHOD $request_method; }",
    )
    .set("APP", port)
    .start();
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    let response = client.response();
    assert_eq!((response.status, response.text().as_str()), (404, "fish"));
    assert_eq!(response.header("Content-Type"), Some("text/x"));
    let asked = asked.recv().expect("it was asked");
    assert_eq!((asked.param("SCGI"), asked.param("REQUEST_METHOD")), (Some("1"), Some("POST")));
    assert_eq!(asked.body, "body");
}

#[test]
fn answers_of_uwsgi_and_scgi_are_cached() {
    for (protocol, read) in [("uwsgi", read_uwsgi as fn(&mut TcpStream) -> Option<Asked>), ("scgi", read_scgi)] {
        let (port, asked) = application(read, |_| b"Cache-Control: max-age=60\r\nX-A: 1\r\n\r\nkept".to_vec());
        let server = Site::http(
            "@P@_cache_path cache keys_zone=one:1m;
            server {
                listen 127.0.0.1:@PORT@;
                location / { @P@_pass 127.0.0.1:@APP@; @P@_cache one; @P@_cache_key $uri; add_header X-Cache $upstream_cache_status; }
            }",
        )
        .set("P", protocol)
        .set("APP", port)
        .start();
        for (number, cache) in ["MISS", "HIT", "HIT"].into_iter().enumerate() {
            let response = server.get("/");
            assert_eq!((response.status, response.text().as_str()), (200, "kept"), "{protocol} {number}");
            assert_eq!((response.header("X-Cache"), response.header("X-A")), (Some(cache), Some("1")));
        }
        assert_eq!(asked.try_iter().count(), 1);
    }
}

/// Debian's uwsgi with a Python application.
#[test]
fn a_real_application_under_uwsgi() {
    let Some(mut uwsgi) = program("uwsgi") else { return };
    let app = Port::reserve();
    let server = Site::server(
        "location / {
            uwsgi_pass 127.0.0.1:@APP@;
            uwsgi_param REQUEST_METHOD $request_method; uwsgi_param PATH_INFO $document_uri;
            uwsgi_param CONTENT_LENGTH $content_length; uwsgi_param QUERY_STRING $query_string;
            uwsgi_param SERVER_NAME $server_name; uwsgi_param SERVER_PORT $server_port;
            uwsgi_param SERVER_PROTOCOL $server_protocol;
        }",
    )
    .set("APP", app.number)
    .file(
        "app.py",
        "def application(env, start):\n    body = env['wsgi.input'].read()\n    \
         start('200 OK', [('Content-Type', 'text/plain'), ('X-Path', env['PATH_INFO'])])\n    \
         return [env['REQUEST_METHOD'].encode(), b' ', str(len(body)).encode()]\n",
    )
    .start();
    let socket = format!("127.0.0.1:{}", app.number);
    uwsgi.current_dir(server.dir()).args([
        "--plugin",
        "python3",
        "--need-app",
        "--socket",
        &socket,
        "--wsgi-file",
        "app.py",
    ]);
    let _uwsgi = Beside(uwsgi.spawn().expect("it starts"));
    wait(|| TcpStream::connect(&socket).is_ok());
    let response = server.get("/some/where");
    assert_eq!((response.status, response.text().as_str()), (200, "GET 0"), "{}", server.error_log());
    assert_eq!(response.header("X-Path"), Some("/some/where"));
    let mut client = server.connect();
    client.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n{}", "x".repeat(300_000)));
    assert_eq!(client.response().text(), "POST 300000");
}

/// PyPI's Django under Debian's uwsgi: what most sites behind `uwsgi_pass` are.
#[test]
fn django_under_uwsgi() {
    const APP: &str = include_str!("django_app.py");
    const BOUNDARY: &str = "between-the-parts";
    let environment = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/.venv");
    let Some(mut uwsgi) = program("uwsgi") else { return };
    if !environment.join("bin/django-admin").exists() {
        return println!("Django is not in tests/.venv (make setup): left out");
    }
    let app = Port::reserve();
    let server = Site::server(
        "location / {
            uwsgi_pass 127.0.0.1:@APP@;
            uwsgi_param QUERY_STRING $query_string; uwsgi_param REQUEST_METHOD $request_method;
            uwsgi_param CONTENT_TYPE $content_type; uwsgi_param CONTENT_LENGTH $content_length;
            uwsgi_param REQUEST_URI $request_uri; uwsgi_param PATH_INFO $document_uri;
            uwsgi_param SERVER_PROTOCOL $server_protocol; uwsgi_param REQUEST_SCHEME $scheme;
            uwsgi_param REMOTE_ADDR $remote_addr; uwsgi_param REMOTE_PORT $remote_port;
            uwsgi_param SERVER_PORT $server_port; uwsgi_param SERVER_NAME $server_name;
        }",
    )
    .set("APP", app.number)
    .file("app.py", APP)
    .start();
    let socket = format!("127.0.0.1:{}", app.number);
    let environment = environment.canonicalize().expect("it is there");
    // Options of the plugin come after it.
    uwsgi.current_dir(server.dir()).args(["--plugin", "python3", "--virtualenv"]).arg(environment);
    uwsgi.args(["--need-app", "--socket", &socket, "--module", "app"]);
    let _uwsgi = Beside(uwsgi.spawn().expect("it starts"));
    assert!(wait(|| TcpStream::connect(&socket).is_ok()));
    let mut client = server.connect();
    let first = client.send("GET /count/ HTTP/1.1\r\nHost: localhost\r\n\r\n").response();
    assert_eq!((first.status, first.text().as_str()), (200, "1 of localhost"), "{}", server.error_log());
    let cookie = first.header("Set-Cookie").and_then(|line| line.split(';').next()).expect("a session").to_owned();
    let second = client.send(format!("GET /count/ HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n")).response();
    assert_eq!(second.text(), "2 of localhost");
    let moved = client.send("GET /count?a=b HTTP/1.1\r\nHost: localhost\r\n\r\n").response();
    assert_eq!((moved.status, moved.header("Location")), (301, Some("/count/?a=b")));
    let refused = client.send("POST /count/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").response();
    assert_eq!(refused.status, 403, "a form without its token");
    let form = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.bin\"\r\n\r\n{}\r\n--{BOUNDARY}--\r\n",
        "x".repeat(300_000)
    );
    let upload = client.send(format!(
        "POST /upload/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    ));
    assert_eq!(upload.response().text(), "a.bin 300000");
    let pieces = client.send("GET /pieces/ HTTP/1.1\r\nHost: localhost\r\n\r\n").response();
    assert_eq!(pieces.text(), "0123456789".repeat(20_000));
    assert_eq!(client.send("GET /none/ HTTP/1.1\r\nHost: localhost\r\n\r\n").response().status, 404);
}

/// Debian's memcached.
#[test]
fn values_of_a_real_memcached() {
    let Some(mut memcached) = program("memcached") else { return };
    let port = Port::reserve();
    memcached.args(["-u", "nobody", "-U", "0", "-l", "127.0.0.1", "-p", &port.number.to_string()]);
    let _memcached = Beside(memcached.spawn().expect("it starts"));
    let address = format!("127.0.0.1:{}", port.number);
    wait(|| TcpStream::connect(&address).is_ok());
    let mut store = TcpStream::connect(&address).expect("it listens");
    let large = "0123456789".repeat(50_000);
    for (key, flags, value) in
        [("/a.txt", 0, "va\r\nEND\r\n\0lue"), ("/packed", 2, "zipped"), ("/a%20b", 0, "spaced"), ("/large", 0, &large)]
    {
        write!(store, "set {key} {flags} 0 {}\r\n{value}\r\n", value.len()).expect("it reads");
        let mut answer = [0; 8];
        store.read_exact(&mut answer).expect("it answers");
        assert_eq!(&answer, b"STORED\r\n");
    }
    let server = Site::http(
        "upstream cached { server 127.0.0.1:@MEMCACHED@; keepalive 1; }
        server {
            listen 127.0.0.1:@PORT@;
            default_type text/x;
            types { text/plain txt; }
            location / { set $memcached_key $uri; memcached_pass cached; memcached_gzip_flag 2; error_page 404 = @fallback; }
            location /unset { set $memcached_key ''; memcached_pass cached; }
            location @fallback { return 200 'made anew'; }
        }",
    )
    .set("MEMCACHED", port.number)
    .start();
    let response = server.get("/a.txt");
    assert_eq!((response.status, response.text().as_str()), (200, "va\r\nEND\r\n\0lue"), "{}", server.error_log());
    assert_eq!(response.header("Content-Type"), Some("text/plain"));
    assert_eq!(server.get("/packed").header("Content-Encoding"), Some("gzip"));
    assert_eq!(server.get("/a%20b").text(), "spaced");
    assert_eq!(server.get("/large").text(), large);
    assert_eq!(server.get("/not-there").text(), "made anew");
    assert_eq!(server.get("/unset").status, 500);
    assert!(server.error_log().contains("the \"$memcached_key\" variable is not set"));
    let mut client = server.connect();
    client.send("GET /a.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\n\r\n");
    let part = client.response();
    assert_eq!((part.status, part.text().as_str()), (206, "va"));
    client.send("POST /a.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().status, 405);
    // Connections are kept: memcached has seen few.
    write!(store, "stats\r\n").expect("it reads");
    let mut stats = Vec::new();
    let mut piece = [0; 4096];
    while find(&stats, b"END\r\n").is_none() {
        let n = store.read(&mut piece).expect("it answers");
        stats.extend_from_slice(&piece[..n]);
    }
    let stats = String::from_utf8_lossy(&stats).into_owned();
    let total = stats.lines().find_map(|l| l.trim().strip_prefix("STAT total_connections ")).map(|n| n.parse::<u32>());
    assert!(total.is_some_and(|n| n.is_ok_and(|n| n <= 6)), "{stats}");
}

#[test]
fn what_is_no_answer_of_memcached_is_a_502() {
    let read = |stream: &mut TcpStream| {
        let mut line = [0; 7];
        stream.read_exact(&mut line).ok()?;
        Some(line.to_vec())
    };
    for (answer, text) in [
        (&b"ERROR\r\n"[..], "memcached sent invalid response: \"ERROR\""),
        (b"VALUE /b 0 1\r\nx\r\nEND\r\n", "memcached sent invalid key in response"),
        (b"VALUE /a x 1\r\nx\r\nEND\r\n", "memcached sent invalid flags in response"),
    ] {
        let (port, _asked) = application(read, move |_| answer.to_vec());
        let server = Site::server("location / { set $memcached_key $uri; memcached_pass 127.0.0.1:@APP@; }")
            .set("APP", port)
            .start();
        assert_eq!(server.get("/a").status, 502);
        assert!(server.error_log().contains(text), "{}", server.error_log());
    }
}

#[test]
fn a_status_line_that_is_none_is_passed_over() {
    for (line, status) in [("HTTP/1.1 2000 OK", 403), ("HTTP/2 200 OK", 403), ("HTTP/1.1 204 No", 204)] {
        let answer = format!("{line}\r\nStatus: 403 no\r\nX-A: 1\r\nContent-Type: text/html\r\n\r\nbody");
        let (scgi, _asked) = application(read_scgi, move |_| answer.clone().into_bytes());
        let server = Site::http(
            "scgi_cache_path @DIR@/cache keys_zone=z:1m;
             server { listen 127.0.0.1:@PORT@; location / {
                 scgi_pass 127.0.0.1:@APP@; scgi_cache z; scgi_cache_key $uri; scgi_cache_valid any 1m;
                 add_header X-Cache $upstream_cache_status always;
             } }",
        )
        .set("APP", scgi)
        .start();
        for cached in ["MISS", "HIT"] {
            let response = server.get("/");
            assert_eq!((response.status, response.header("X-A")), (status, Some("1")), "{line} {cached}");
            if status != 204 {
                assert_eq!(response.text(), "body", "{line} {cached}");
            }
            assert_eq!(response.header("X-Cache"), Some(cached), "{line}");
        }
    }
}

#[test]
fn a_body_that_came_with_the_head_can_be_sent_again() {
    let (gone, answers) = (Port::reserve(), application(read_scgi, |_| b"\r\nthe second".to_vec()));
    let server = Site::http(
        "upstream both { server 127.0.0.1:@GONE@; server 127.0.0.1:@APP@ backup; }
         server { listen 127.0.0.1:@PORT@; location / {
             scgi_pass both; scgi_request_buffering off; scgi_next_upstream error non_idempotent;
             scgi_param CONTENT_LENGTH $content_length; scgi_param BODY $request_body;
         } }",
    )
    .set("GONE", gone.number)
    .set("APP", answers.0)
    .start();
    let mut client = server.connect();
    client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.response().text(), "the second");
    let asked = answers.1.recv().expect("it was asked");
    assert_eq!((asked.body.as_str(), asked.param("BODY")), ("hello", Some("hello")));
}
