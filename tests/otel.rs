//! `otel_*`: spans arrive at a collector as OTLP says. The collector here is h2, with the messages taken apart by hand by the
//! numbers of the protocol's definitions; neither is what the server sends with.

use crate::harness::{Backend, Beside, Site, wait};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// One field of a message.
#[derive(Clone, Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

/// A message: its fields by number, in order (Protocol Buffers, "Encoding").
#[derive(Clone, Debug)]
struct Message(Vec<(u64, Field)>);

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

impl Message {
    fn read(bytes: &[u8]) -> Message {
        let (mut at, mut fields) = (0, Vec::new());
        while at < bytes.len() {
            let tag = varint(bytes, &mut at);
            let field = match tag & 7 {
                0 => Field::Number(varint(bytes, &mut at)),
                1 => {
                    at += 8;
                    Field::Number(u64::from_le_bytes(bytes[at - 8..at].try_into().expect("eight bytes")))
                }
                2 => {
                    let length = varint(bytes, &mut at) as usize;
                    at += length;
                    Field::Bytes(bytes[at - length..at].to_vec())
                }
                other => panic!("type {other}"),
            };
            fields.push((tag >> 3, field));
        }
        Message(fields)
    }

    fn all(&self, number: u64) -> Vec<Vec<u8>> {
        let bytes = |f: &Field| if let Field::Bytes(b) = f { Some(b.clone()) } else { None };
        self.0.iter().filter(|(n, _)| *n == number).filter_map(|(_, f)| bytes(f)).collect()
    }

    fn bytes(&self, number: u64) -> Vec<u8> {
        self.all(number).into_iter().next().unwrap_or_default()
    }

    fn text(&self, number: u64) -> String {
        String::from_utf8(self.bytes(number)).expect("UTF-8")
    }

    fn number(&self, number: u64) -> u64 {
        let found = self.0.iter().find(|(n, _)| *n == number);
        found.map_or(0, |(_, f)| if let Field::Number(n) = f { *n } else { panic!("no number") })
    }

    /// Messages down a path of numbers.
    fn down(&self, path: &[u64]) -> Vec<Message> {
        let [first, rest @ ..] = path else { return vec![self.clone()] };
        self.all(*first).iter().flat_map(|b| Message::read(b).down(rest)).collect()
    }

    /// The attributes in a field: names and values.
    fn attributes(&self, number: u64) -> Vec<(String, String)> {
        let value = |m: &Message| match m.0.first() {
            Some((1, Field::Bytes(text))) => String::from_utf8(text.clone()).expect("UTF-8"),
            Some((3, Field::Number(n))) => n.to_string(),
            other => panic!("{other:?}"),
        };
        self.down(&[number]).iter().map(|a| (a.text(1), value(&Message::read(&a.bytes(2))))).collect()
    }
}

/// One export as it arrived.
struct Export {
    token: Option<String>,
    message: Message,
}

/// A collector that keeps what it gets.
struct Collector {
    port: u16,
    exports: Arc<Mutex<Vec<Export>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let exports = Arc::new(Mutex::new(Vec::new()));
        let kept = exports.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            tokio::task::LocalSet::new().block_on(&runtime, async move {
                listener.set_nonblocking(true).expect("a socket");
                let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::task::spawn_local(serve(socket, kept.clone()));
                }
            });
        });
        Collector { port, exports }
    }

    /// resource_spans = 1, scope_spans = 2, spans = 2
    fn spans(&self) -> Vec<Message> {
        let exports = self.exports.lock().expect("no test panics here");
        exports.iter().flat_map(|e| e.message.down(&[1, 2, 2])).collect()
    }
}

/// gRPC by hand: a message is a flag, its length, its bytes; the status comes in the trailers.
async fn serve(socket: tokio::net::TcpStream, kept: Arc<Mutex<Vec<Export>>>) {
    let mut connection = h2::server::handshake(socket).await.expect("HTTP/2");
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let kept = kept.clone();
        tokio::task::spawn_local(async move {
            assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            assert_eq!(request.headers()["content-type"], "application/grpc");
            let token = request.headers().get("x-token").and_then(|v| v.to_str().ok()).map(str::to_owned);
            let (mut body, mut bytes) = (request.into_body(), Vec::new());
            while let Some(Ok(piece)) = body.data().await {
                let _ = body.flow_control().release_capacity(piece.len());
                bytes.extend_from_slice(&piece);
            }
            let length = u32::from_be_bytes(bytes[1..5].try_into().expect("four bytes")) as usize;
            assert_eq!((bytes[0], bytes.len()), (0, 5 + length));
            let message = Message::read(&bytes[5..]);
            kept.lock().expect("no test panics here").push(Export { token, message });
            let head = http::Response::builder().header("content-type", "application/grpc").body(()).expect("a head");
            let mut stream = respond.send_response(head, false).expect("the client listens");
            let _ = stream.send_data(bytes::Bytes::from_static(&[0; 5]), false);
            let status = http::HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from_static("0"),
            )]);
            let _ = stream.send_trailers(status);
        });
    }
}

/// attributes = 9
fn attribute(span: &Message, key: &str) -> Option<String> {
    span.attributes(9).into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn spans_arrive_at_a_collector() {
    let (collector, backend) = (Collector::start(), Backend::ok("hello"));
    let server = Site::http(
        "otel_exporter { endpoint 127.0.0.1:@COLLECTOR@; interval 50ms; header X-Token secret; }
         otel_service_name shop; otel_resource_attr place here;
         server { listen 127.0.0.1:@PORT@; server_name shop.test;
           location /passed { otel_trace on; otel_trace_context propagate; otel_span_attr who $arg_who;
             proxy_pass http://127.0.0.1:@BACKEND@; }
           location /told { otel_trace $arg_trace; otel_span_name \"told $request_method\";
             return 503 \"$otel_trace_id $otel_span_id [$otel_parent_id]\"; }
           location /silent { return 204; } }",
    )
    .set("COLLECTOR", collector.port)
    .set("BACKEND", backend.port)
    .start();
    let head =
        format!("GET /passed?who=me HTTP/1.1\r\nHost: shop.test\r\ntraceparent: {PARENT}\r\ntracestate: a=b\r\n\r\n");
    assert_eq!(server.connect().send(head).response().status, 200);
    let told = server.get("/told?trace=on").text();
    for path in ["/told?trace=off", "/told", "/silent"] {
        server.get(path);
    }
    assert!(wait(|| collector.spans().len() >= 2), "{}", server.error_log());
    let spans = collector.spans();
    let (passed, told_span) = (&spans[0], &spans[1]);

    // trace_id = 1, span_id = 2, trace_state = 3, parent_span_id = 4, name = 5, kind = 6, start = 7, end = 8, status = 15
    assert_eq!((passed.text(5).as_str(), passed.number(6)), ("/passed", 2));
    assert_eq!(hex(&passed.bytes(1)), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!((hex(&passed.bytes(4)).as_str(), passed.text(3).as_str()), ("00f067aa0ba902b7", "a=b"));
    assert!(passed.number(7) > 1_700_000_000_000_000_000 && passed.number(8) >= passed.number(7));
    let expected = [
        ("http.method", "GET"),
        ("http.target", "/passed?who=me"),
        ("http.route", "/passed"),
        ("http.scheme", "http"),
        ("http.flavor", "1.1"),
        ("http.status_code", "200"),
        ("http.response_content_length", "5"),
        ("net.host.name", "shop.test"),
        ("net.sock.peer.addr", "127.0.0.1"),
        ("who", "me"),
    ];
    for (key, value) in expected {
        assert_eq!(attribute(passed, key).as_deref(), Some(value), "{key}");
    }
    let sent = &backend.seen()[0];
    let span = hex(&passed.bytes(2));
    assert_eq!(sent.header("traceparent"), Some(&*format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span}-01")));
    assert_eq!(sent.head.matches("traceparent").count(), 1);

    assert_eq!(told, format!("{} {} []", hex(&told_span.bytes(1)), hex(&told_span.bytes(2))));
    assert_eq!((told_span.text(5).as_str(), told_span.down(&[15])[0].number(3)), ("told GET", 2));
    let exports = collector.exports.lock().expect("no test panics here");
    let resource = exports[0].message.down(&[1, 1])[0].attributes(1);
    let expected = [("service.name", "shop"), ("place", "here")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    assert_eq!((&*resource, exports[0].token.as_deref()), (&expected[..], Some("secret")));
}

#[test]
fn opentelemetry_s_own_code_reads_the_spans() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let python = tests.join(".venv/bin/python3");
    let receiver =
        Command::new(python).arg(tests.join("otel_receiver.py")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(receiver) = receiver else { return println!("tests/.venv is not there (make setup): left out") };
    let mut receiver = Beside(receiver);
    let mut lines = BufReader::new(receiver.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let Some(port) = lines.next() else { return println!("grpcio is not in tests/.venv (make setup): left out") };
    let server = Site::http(
        "otel_exporter { endpoint 127.0.0.1:@COLLECTOR@; interval 50ms; } otel_service_name shop; otel_trace on;
         server { listen 127.0.0.1:@PORT@; location / { otel_trace off; return 204; }
           location /shop { otel_trace_context extract; return 200 \"$otel_trace_id\"; } }",
    )
    .set("COLLECTOR", port)
    .start();
    let head = format!("GET /shop HTTP/1.1\r\nHost: a\r\ntraceparent: {PARENT}\r\n\r\n");
    let id = server.connect().send(head).response().text();
    let span: serde_json::Value = serde_json::from_str(&lines.next().expect("a span")).expect("JSON");
    assert_eq!((&span["id"], &span["resource"]["service.name"]), (&id.into(), &"shop".into()), "{span}");
    assert_eq!((&span["name"], &span["kind"]), (&"/shop".into(), &"SPAN_KIND_SERVER".into()), "{span}");
    let status = span["attributes"].as_array().expect("a list").iter().find(|a| a["key"] == "http.status_code");
    assert_eq!(status.expect("an attribute")["value"]["intValue"], "200");
}

#[test]
fn a_collector_that_is_gone_costs_requests_nothing() {
    let server = Site::http(
        "otel_exporter { endpoint 127.0.0.1:1; interval 20ms; batch_size 2; batch_count 1; } otel_trace on;
         server { listen 127.0.0.1:@PORT@; location / { return 204; } }",
    )
    .start();
    for _ in 0..10 {
        assert_eq!(server.get("/").status, 204);
    }
    server.wait_for("logs/error.log", "OTel export of");
    let text = Site::http("otel_exporter { endpoint https://x:1; } server { listen 127.0.0.1:@PORT@; }").check().1;
    assert!(text.contains("\"https\" in \"endpoint\" of \"otel_exporter\" is not supported yet"), "{text}");
}
