//! A server that speaks HTTP/2, made with the crate `h2`: a backend to be proxied to, and a client of it.

use super::server::Server;
use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;

/// A request as it came, with what it is answered through.
pub struct Asked {
    pub head: http::request::Parts,
    pub body: RecvStream,
    pub respond: SendResponse<Bytes>,
    /// Which connection it came on, from 1.
    pub connection: usize,
}

impl Asked {
    /// The whole body, and the trailers.
    pub async fn read(&mut self) -> Vec<u8> {
        read_all(&mut self.body).await
    }

    /// Answers with a body and trailers.
    pub async fn answer(mut self, response: Response<()>, body: Vec<u8>, trailers: Option<HeaderMap>) {
        let last = trailers.is_none();
        let mut out = self.respond.send_response(response, body.is_empty() && last).expect("the client is there");
        if !body.is_empty() {
            send_all(&mut out, body, last).await;
        }
        if let Some(trailers) = trailers {
            let _ = out.send_trailers(trailers);
        }
    }

    /// A plain answer that says which connection it came on.
    pub async fn ok(self, body: impl Into<Vec<u8>>) {
        let response = Response::builder().header("x-connection", self.connection).body(()).expect("a head");
        self.answer(response, body.into(), None).await;
    }
}

/// Sends a body as the client's windows let it out.
pub async fn send_all(out: &mut h2::SendStream<Bytes>, body: Vec<u8>, end: bool) {
    let mut rest = Bytes::from(body);
    while !rest.is_empty() {
        out.reserve_capacity(rest.len());
        let Some(Ok(n)) = std::future::poll_fn(|cx| out.poll_capacity(cx)).await else { return };
        let piece = rest.split_to(n.min(rest.len()));
        if out.send_data(piece, end && rest.is_empty()).is_err() {
            return;
        }
    }
}

/// A body to its end or to an error.
pub async fn read_all(body: &mut RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        let _ = body.flow_control().release_capacity(piece.len());
        all.extend_from_slice(&piece);
    }
    all
}

/// A listening backend, on a thread of its own until the test's process ends.
pub struct Http2Backend {
    pub port: u16,
    connections: Arc<AtomicUsize>,
}

impl Http2Backend {
    /// Each request is given to `answer`, many at once.
    pub fn start<F: Future<Output = ()> + 'static>(answer: impl Fn(Asked) -> F + Send + Clone + 'static) -> Self {
        Self::with(h2::server::Builder::new(), answer)
    }

    /// The same with its own settings.
    pub fn with<F>(builder: h2::server::Builder, answer: impl Fn(Asked) -> F + Send + Clone + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("the kernel gives a port");
        let port = listener.local_addr().expect("it is bound").port();
        listener.set_nonblocking(true).expect("an option");
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let set = tokio::task::LocalSet::new();
            set.block_on(&runtime, async move {
                let listener = TcpListener::from_std(listener).expect("a listener");
                while let Ok((stream, _)) = listener.accept().await {
                    let connection = count.fetch_add(1, Ordering::SeqCst) + 1;
                    tokio::task::spawn_local(serve(stream, connection, builder.clone(), answer.clone()));
                }
            });
        });
        Http2Backend { port, connections }
    }

    /// How many connections came so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve<F: Future<Output = ()> + 'static>(
    stream: tokio::net::TcpStream,
    connection: usize,
    builder: h2::server::Builder,
    answer: impl Fn(Asked) -> F,
) {
    let _ = stream.set_nodelay(true);
    let Ok(mut h2) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, respond))) = h2.accept().await {
        let (head, body) = Request::into_parts(request);
        tokio::task::spawn_local(answer(Asked { head, body, respond, connection }));
    }
}

/// How long a test may take. Never waited for in full when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test with a connection of a client that speaks HTTP/2.
pub fn with_http2<F: Future<Output = ()>>(server: &Server, test: impl FnOnce(SendRequest<Bytes>) -> F) {
    with_http2_at(server.port, test);
}

/// The same with a server's other port.
pub fn with_http2_at<F: Future<Output = ()>>(port: u16, test: impl FnOnce(SendRequest<Bytes>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (requests, connection) =
            h2::client::Builder::new().initial_window_size(1 << 20).handshake(stream).await.unwrap();
        tokio::select! {
            done = tokio::time::timeout(PATIENCE, test(requests)) => done.expect("in time"),
            ended = async { let ended = connection.await; std::future::pending::<()>().await; ended } => panic!("{ended:?}"),
        }
    });
}
