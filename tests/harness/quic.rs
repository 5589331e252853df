//! A QUIC client, of the crates `quinn` and `h3`: the transport is a relative of ours, the HTTP/3 on it is not.

use super::{Server, Setup, Site};
use bytes::{Buf, Bytes};
use http::{HeaderMap, Request};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a test may take. Never waited for in full when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

/// How requests are sent.
pub type Requests = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A site with a server on a QUIC port and on a TCP port, with a certificate for `localhost`.
pub fn quic_site(http: &str, server: &str) -> Site {
    let listen = "listen 127.0.0.1:@PORT@ quic; listen 127.0.0.1:@PORT@ ssl; server_name localhost; \
                  ssl_certificate localhost.crt; ssl_certificate_key localhost.key;";
    Site::whole(&format!(
        "worker_processes @THREADS@; events {{}} http {{ access_log off; root @DIR@/html; {http} server {{ {listen} {server} }} }}"
    ))
    .certificate("localhost")
}

/// A site that serves those alone who have a certificate of an authority of its own, and the stress tool's options for one.
pub fn certain_site() -> (Server, String) {
    let site = quic_site("", "ssl_verify_client on; ssl_client_certificate ca.crt; location / { return 200 x; }");
    let site = site.certificate("ca").issued("load", "ca", "9").set("THREADS", 2);
    let file = |name: &str| site.path().join(name).display().to_string();
    let pair = format!("--cert {} --key {}", file("load.crt"), file("load.key"));
    (site.start(), pair)
}

/// Runs a test that waits for a server.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("in time") });
}

/// A client of one protocol.
pub fn endpoint(protocol: &[u8]) -> Endpoint {
    endpoint_with(client_config(Setup::new(), protocol))
}

/// A client of its own kind.
pub fn endpoint_with(config: ClientConfig) -> Endpoint {
    let mut endpoint = Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
    endpoint.set_default_client_config(config);
    endpoint
}

/// How a client of one protocol speaks.
pub fn client_config(setup: Setup, protocol: &[u8]) -> ClientConfig {
    let crypto = QuicClientConfig::try_from(setup.quic(protocol)).expect("TLS 1.3 is there");
    ClientConfig::new(Arc::new(crypto))
}

/// A connection on which frames are written by hand.
pub async fn connect(endpoint: &Endpoint, port: u16) -> quinn::Connection {
    connect_to(endpoint, port, "localhost").await
}

/// The same, to a server by its name.
pub async fn connect_to(endpoint: &Endpoint, port: u16, name: &str) -> quinn::Connection {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    endpoint.connect(address, name).expect("an address").await.expect("the handshake goes well")
}

/// Speaks HTTP/3 on a connection.
pub async fn speak(connection: quinn::Connection) -> Requests {
    let (mut driver, requests) = h3::client::new(h3_quinn::Connection::new(connection)).await.expect("a connection");
    tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    requests
}

/// A client with a connection of its own.
pub async fn client(port: u16) -> (Endpoint, Requests) {
    let endpoint = endpoint(b"h3");
    let connection = connect(&endpoint, port).await;
    let requests = speak(connection).await;
    (endpoint, requests)
}

pub fn get(path: &str) -> Request<()> {
    Request::get(format!("https://localhost{path}")).body(()).expect("a request")
}

/// Sends a request and reads its answer.
pub async fn ask(requests: &mut Requests, request: Request<()>, body: &[u8]) -> Answer {
    let mut stream = requests.send_request(request).await.expect("a stream");
    if !body.is_empty() {
        stream.send_data(Bytes::copy_from_slice(body)).await.expect("it is taken");
    }
    stream.finish().await.expect("it is taken");
    let (head, ()) = stream.recv_response().await.expect("an answer").into_parts();
    let mut all = Vec::new();
    while let Some(mut piece) = stream.recv_data().await.expect("a body") {
        while piece.has_remaining() {
            let n = piece.chunk().len();
            all.extend_from_slice(piece.chunk());
            piece.advance(n);
        }
    }
    let trailers = stream.recv_trailers().await.expect("the end");
    Answer { status: head.status.as_u16(), headers: head.headers, body: all, trailers }
}
