//! `proxy_http_version 2`: requests of many clients over shared connections, with the crate `h2` as the server.

use crate::harness::{Asked, Client, Http2Backend, Server, Site};

fn site(backend: &Http2Backend, location: &str) -> Server {
    let group = format!("upstream u {{ server 127.0.0.1:{}; }}", backend.port);
    Site::http(&format!(
        "{group} server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_pass http://u; proxy_http_version 2; {location} }} }}"
    ))
    .start()
}

/// Says what was asked.
async fn echo(mut asked: Asked) {
    let body = asked.read().await;
    let head = &asked.head;
    let authority = head.uri.authority().map_or("", |a| a.as_str());
    let header = |name: &str| head.headers.get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
    let text = format!(
        "{} {} {authority} x={} length={} {}",
        head.method,
        head.uri.path_and_query().unwrap(),
        header("x-some"),
        header("content-length"),
        String::from_utf8_lossy(&body)
    );
    asked.ok(text).await;
}

#[test]
fn requests_go_over_one_connection() {
    let backend = Http2Backend::start(echo);
    let server = site(&backend, "");
    let mut client = Client::connect(server.port);
    let answer = client.get("/a?b=c");
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /a?b=c u x=- length=- "));
    client.send("POST /p HTTP/1.1\r\nHost: h\r\nX-Some: thing\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(client.response().text(), "POST /p u x=thing length=4 body");
    let mut others: Vec<_> = (0..20).map(|_| Client::connect(server.port)).collect();
    for other in &mut others {
        other.send("GET /many HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    for other in &mut others {
        let answer = other.response();
        assert_eq!((answer.status, answer.header("x-connection")), (200, Some("1")));
    }
    assert_eq!(backend.connections(), 1);
}
