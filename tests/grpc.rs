//! `grpc_pass`: calls of every shape, with the crate `h2` on both sides and a tonic server behind.

use crate::harness::{Asked, Client, Http2Backend, Server, Site, read_all, send_all, with_http2};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};

fn site(backend: &Http2Backend, location: &str) -> Server {
    Site::http(&format!(
        "upstream u {{ server 127.0.0.1:{}; }}
         client_max_body_size 0;
         server {{ listen 127.0.0.1:@PORT@; http2 on; {location} location / {{ grpc_pass grpc://u; }} }}",
        backend.port
    ))
    .start()
}

fn call(path: &str) -> Request<()> {
    let request = Request::post(format!("http://localhost{path}"));
    request.header("content-type", "application/grpc").header("te", "trailers").body(()).unwrap()
}

fn status(code: &str) -> HeaderMap {
    [(http::HeaderName::from_static("grpc-status"), code.parse().unwrap())].into_iter().collect()
}

fn answer() -> Response<()> {
    Response::builder().header("content-type", "application/grpc").body(()).unwrap()
}

#[test]
fn a_call_and_its_status() {
    let backend = Http2Backend::start(async |mut asked: Asked| {
        assert_eq!(asked.head.headers["te"], "trailers");
        assert_eq!(asked.head.uri.authority().unwrap().as_str(), "u");
        let body = asked.read().await;
        match asked.head.uri.path() {
            "/unknown" => {
                let head = Response::builder().header("grpc-status", "12").body(()).unwrap();
                asked.answer(head, Vec::new(), None).await;
            }
            _ => asked.answer(answer(), body, Some(status("0"))).await,
        }
    });
    let server = site(&backend, "");
    with_http2(&server, async |mut requests| {
        for _ in 0..3 {
            let (answer, mut out) = requests.send_request(call("/echo"), false).unwrap();
            out.send_data(Bytes::from_static(b"message"), true).unwrap();
            let mut body = answer.await.unwrap().into_body();
            assert_eq!(read_all(&mut body).await, b"message");
            assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
        }
        let (answer, _) = requests.send_request(call("/unknown"), true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], "12");
        assert!(answer.into_body().is_end_stream());
    });
    assert_eq!(backend.connections(), 1);
}

#[test]
fn trailers_behind_a_known_length_are_kept() {
    let backend = Http2Backend::start(async |asked: Asked| {
        let head = Response::builder().header("content-length", "5").body(()).unwrap();
        asked.answer(head, b"known".to_vec(), Some(status("3"))).await;
    });
    let server = site(&backend, "");
    with_http2(&server, async |mut requests| {
        for _ in 0..3 {
            let (answer, _) = requests.send_request(call("/"), true).unwrap();
            let mut body = answer.await.unwrap().into_body();
            assert_eq!(read_all(&mut body).await, b"known");
            assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "3");
        }
    });
}

#[test]
fn both_sides_talk_at_once() {
    let backend = Http2Backend::start(async |mut asked: Asked| {
        let mut out = asked.respond.send_response(answer(), false).unwrap();
        while let Some(Ok(piece)) = asked.body.data().await {
            asked.body.flow_control().release_capacity(piece.len()).unwrap();
            send_all(&mut out, piece.to_vec(), false).await;
        }
        out.send_trailers(status("0")).unwrap();
    });
    let server = site(&backend, "");
    with_http2(&server, async |mut requests| {
        let (answer, mut out) = requests.send_request(call("/talk"), false).unwrap();
        // The answer's head comes before the request is over.
        let mut body = answer.await.unwrap().into_body();
        for i in 0..100 {
            let said = Bytes::from(format!("message {i}"));
            out.send_data(said.clone(), false).unwrap();
            let mut heard = Vec::new();
            while heard.len() < said.len() {
                let piece = body.data().await.unwrap().unwrap();
                body.flow_control().release_capacity(piece.len()).unwrap();
                heard.extend_from_slice(&piece);
            }
            assert_eq!(heard, said);
        }
        // Much in one direction while nobody reads the other: neither side may hold the other up for good.
        let all = vec![b'z'; 3 << 20];
        let sending = send_all(&mut out, all.clone(), true);
        let (back, ()) = tokio::join!(read_all(&mut body), sending);
        assert!(back == all);
        assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    });
}

#[test]
fn errors_of_ours_can_be_told_in_grpc_s_words() {
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; http2 on;
                  error_page 502 = @unavailable;
                  location / { grpc_pass 127.0.0.1:1; }
                  location /plain { error_page 404 /none; grpc_pass 127.0.0.1:1; }
                  location @unavailable { add_header grpc-status 14 always; add_header grpc-message away always;
                                          default_type application/grpc; return 200; } }",
    )
    .start();
    with_http2(&server, async |mut requests| {
        let (answer, _) = requests.send_request(call("/a"), true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &"14".parse().unwrap()));
        let (answer, _) = requests.send_request(call("/plain"), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 502);
    });
}

#[test]
fn http1_clients_get_trailers_in_chunks() {
    let backend = Http2Backend::start(async |mut asked: Asked| {
        let body = asked.read().await;
        asked.answer(answer(), body, Some(status("7"))).await;
    });
    let server = site(&backend, "");
    let mut client = Client::connect(server.port);
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: te, close\r\nContent-Length: 2\r\n\r\nhi");
    let text = String::from_utf8(client.rest()).unwrap();
    assert!(text.ends_with("2\r\nhi\r\n0\r\ngrpc-status: 7\r\n\r\n"), "{text}");
}
