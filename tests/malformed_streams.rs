//! Messages of HTTP/2 and HTTP/3 that are malformed (RFC 9113 section 8.1.1, RFC 9114 section 4.1.2): they cost their stream, and never
//! the connection that others share.

use crate::harness::quic::{connect, endpoint, quic_site, run};
use crate::harness::{Backend, Client, Reply, Server, Site};
use crate::http2_floods::{frame, open};
use crate::http3::framed;
use wire::http2::frame::{FrameHeader, HEADER, flag, kind};
use wire::http2::hpack::HeaderBlock;
use wire::http2::hpack::decoder::{Decoder, Limits};
use wire::http2::hpack::encoder::Encoder;
use wire::http3::frame::kind as kind3;
use wire::http3::qpack;

const PROTOCOL_ERROR: u32 = 1;
const MESSAGE_ERROR: u64 = 0x10e;

/// Trailers that are none.
const TRAILERS: [(&[u8], &[u8]); 8] = [
    (b"X-Upper", b"v"),
    (b"x-split", b"a\r\nb: c"),
    (b"x-nul", b"a\0b"),
    (b"transfer-encoding", b"chunked"),
    (b"connection", b"close"),
    (b":path", b"/"),
    (b"x y", b"v"),
    (b"", b"v"),
];

fn literal(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend([0, name.len() as u8]);
    out.extend(name);
    out.push(value.len() as u8);
    out.extend(value);
}

fn head(method: &str, path: &str, more: &[(&[u8], &[u8])]) -> Vec<u8> {
    let (mut out, mut e) = (Vec::new(), Encoder::default());
    for (name, value) in [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")] {
        e.field(name.as_bytes(), value.as_bytes(), &mut out);
    }
    more.iter().for_each(|(name, value)| literal(name, value, &mut out));
    out
}

/// The frames of a stream up to its end: the statuses of its heads, and the code of its reset.
fn ending(client: &mut Client, stream: u32, decoder: &mut Decoder) -> (Vec<String>, Option<u32>) {
    let mut statuses = Vec::new();
    loop {
        let header = FrameHeader::parse(&client.take(HEADER)).expect("a frame");
        let payload = client.take(header.len);
        assert_ne!(header.kind, kind::GOAWAY, "the connection goes on");
        if header.kind == kind::HEADERS {
            let mut block = HeaderBlock::default();
            decoder.decode(&payload, Limits { field: 8192, block: 32768 }, &mut block).expect("a head");
            let (_, status) = block.iter().next().expect("a status");
            statuses.push(String::from_utf8_lossy(status).into_owned());
        }
        if header.stream != stream {
            continue;
        }
        if header.kind == kind::RST_STREAM {
            return (statuses, Some(u32::from_be_bytes(payload.try_into().expect("four bytes"))));
        }
        if header.has(flag::END_STREAM) && header.kind != kind::WINDOW_UPDATE {
            return (statuses, None);
        }
    }
}

fn site(backend: &Backend) -> Server {
    let location = "location / { proxy_pass http://127.0.0.1:@BACKEND@; } location /here { return 200 here; }";
    Site::server(&format!("http2 on; {location}")).set("BACKEND", backend.port).start()
}

#[test]
fn http2_trailers_are_held_to_the_rules_of_headers() {
    let backend = Backend::ok("behind");
    let server = site(&backend);
    let mut client = open(&server);
    let mut decoder = Decoder::default();
    let mut stream = 1;
    for (name, value) in TRAILERS {
        let mut trailers = Vec::new();
        literal(name, value, &mut trailers);
        client.send(frame(kind::HEADERS, flag::END_HEADERS, stream, &head("POST", "/", &[])));
        client.send(frame(kind::DATA, 0, stream, b"body"));
        client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &trailers));
        assert_eq!(ending(&mut client, stream, &mut decoder), (vec![], Some(PROTOCOL_ERROR)), "{name:?}");
        stream += 2;
    }
    let mut trailers = Vec::new();
    literal(b"x-after", b"fine", &mut trailers);
    client.send(frame(kind::HEADERS, flag::END_HEADERS, stream, &head("POST", "/", &[])));
    client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &trailers));
    assert_eq!(ending(&mut client, stream, &mut decoder), (vec!["200".into()], None));
    for text in ["pseudo-header in trailers", "invalid header name in trailers", "header of a connection in trailers"] {
        assert!(server.error_log().contains(text), "{text}");
    }
}

#[test]
fn http2_headers_of_a_connection_and_fields_without_a_name_cost_the_stream() {
    let backend = Backend::ok("behind");
    let server = site(&backend);
    let mut client = open(&server);
    let mut decoder = Decoder::default();
    let mut stream = 1;
    for (name, value) in
        [(&b"proxy-connection"[..], &b"keep-alive"[..]), (b"keep-alive", b"5"), (b"upgrade", b"x"), (b"", b"v")]
    {
        let block = head("GET", "/here", &[(name, value)]);
        client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block));
        let (statuses, _) = ending(&mut client, stream, &mut decoder);
        assert_eq!(statuses, ["400"], "{name:?}");
        stream += 2;
    }
    client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &head("GET", "/here", &[])));
    assert_eq!(ending(&mut client, stream, &mut decoder), (vec!["200".into()], None));
}

#[test]
fn who_has_said_all_is_not_told_to_go_on() {
    let backend = Backend::start(|seen| Reply::ok(&format!("{}", seen.body.len())));
    let server = site(&backend);
    let mut client = open(&server);
    let mut decoder = Decoder::default();
    let expects = head("POST", "/", &[(b"expect", b"100-continue")]);
    client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &expects));
    assert_eq!(ending(&mut client, 1, &mut decoder), (vec!["200".into()], None));
    client.send(frame(kind::HEADERS, flag::END_HEADERS, 3, &expects));
    let first = loop {
        let header = FrameHeader::parse(&client.take(HEADER)).expect("a frame");
        let payload = client.take(header.len);
        if header.kind == kind::HEADERS {
            let mut block = HeaderBlock::default();
            decoder.decode(&payload, Limits { field: 8192, block: 32768 }, &mut block).expect("a head");
            break block.iter().next().map(|(_, status)| status.to_vec());
        }
    };
    assert_eq!(first.as_deref(), Some(&b"100"[..]), "who waits is told");
    client.send(frame(kind::DATA, flag::END_STREAM, 3, b"body"));
    assert_eq!(ending(&mut client, 3, &mut decoder), (vec!["200".into()], None));
}

fn section(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    qpack::encoder::begin(&mut out);
    for (name, value) in fields {
        // A literal with a literal name (RFC 9204 section 4.5.6), whose length has a prefix of three bits.
        match name.len() {
            n if n < 7 => out.push(0x20 | n as u8),
            n => out.extend([0x27, (n - 7) as u8]),
        }
        out.extend(*name);
        out.push(value.len() as u8);
        out.extend(*value);
    }
    framed(kind3::HEADERS, &out)
}

const POST: [(&[u8], &[u8]); 4] =
    [(b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/"), (b":authority", b"localhost")];

#[test]
fn http3_trailers_and_fields_are_held_to_the_same_rules() {
    let backend = Backend::ok("behind");
    let location = format!("location / {{ proxy_pass http://127.0.0.1:{}; }}", backend.port);
    let server = quic_site("", &location).set("THREADS", 1).start();
    run(async {
        let endpoint = endpoint(b"h3");
        let connection = connect(&endpoint, server.port).await;
        let ask = async |bytes: Vec<u8>| {
            let (mut send, mut receive) = connection.open_bi().await.expect("the connection goes on");
            send.write_all(&bytes).await.expect("it is taken");
            let _ = send.finish();
            receive.read_to_end(10_000).await
        };
        let reset = |answer: Result<Vec<u8>, quinn::ReadToEndError>| match answer {
            Err(quinn::ReadToEndError::Read(quinn::ReadError::Reset(code))) => code.into_inner(),
            other => panic!("{other:?}"),
        };
        for trailer in TRAILERS {
            let bytes = [section(&POST), framed(kind3::DATA, b"body"), section(&[trailer])].concat();
            assert_eq!(reset(ask(bytes).await), MESSAGE_ERROR, "{trailer:?}");
        }
        for field in [(&b"proxy-connection"[..], &b"close"[..]), (b"", b"v")] {
            let fields = [&POST[..], &[field]].concat();
            let answer = ask(section(&fields)).await.expect("an answer");
            assert!(String::from_utf8_lossy(&answer).contains("400 Bad Request"), "{field:?}");
        }
        let fine = [section(&POST), framed(kind3::DATA, b"body"), section(&[(b"x-after", b"fine")])].concat();
        assert!(ask(fine).await.expect("an answer").ends_with(b"behind"));
    });
}

/// What came before the fault is known to the error page and to the log.
#[test]
fn a_malformed_head_is_asked_for_something_all_the_same() {
    let server = Site::http(
        "log_format f '[$request] $request_method $request_uri $server_protocol $status';
         server { listen 127.0.0.1:@PORT@; http2 on; access_log logs/a.log f; error_page 400 = @page; location @page { return 200 \"$request_method $uri $host\"; } }",
    )
    .start();
    let more: [&[(&[u8], &[u8])]; 3] = [&[(b"X-Up", b"1")], &[(b"x-nul", b"a\0b")], &[(b":other", b"1")]];
    for (number, more) in more.into_iter().enumerate() {
        let mut client = open(&server);
        client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &head("GET", "/p%20?a=1", more)));
        assert_eq!(ending(&mut client, 1, &mut Decoder::default()).0, ["200"], "{number}");
        server.wait_for("logs/a.log", &"[-] GET /p%20?a=1 HTTP/2.0 200\n".repeat(number + 1));
    }
    // Nothing of use came before it.
    let mut client = open(&server);
    let mut block = Vec::new();
    literal(b"X-Up", b"1", &mut block);
    client.send(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block));
    assert_eq!(ending(&mut client, 1, &mut Decoder::default()).0, ["500"]);
    server.wait_for("logs/a.log", "[-] - - HTTP/2.0 500\n");
}
