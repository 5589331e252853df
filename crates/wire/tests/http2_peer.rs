//! The connection state machine in both roles against the crate `h2`, over a pipe in memory.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use std::collections::HashMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use wire::http2::connection::{Config, Connection, Event, Role};
use wire::http2::hpack::{HeaderBlock, decoder::Limits};

/// Room for all that either side says: our side writes before it reads, and h2 reads nothing while its own writes wait.
const PIPE: usize = 8 << 20;

#[derive(Default)]
struct Exchange {
    head: Vec<(String, String)>,
    body: Vec<u8>,
    ended: bool,
    /// What is to be sent, and how much of it was.
    reply: Option<(Vec<u8>, usize)>,
}

/// Our side of the pipe.
struct Ours {
    wire: Connection<Exchange>,
    pipe: DuplexStream,
    input: Vec<u8>,
}

fn config(role: Role) -> Config {
    // A server whose window is smaller than the one clients begin with refuses what comes before they know of it, as
    // nginx does: whether h2 is so quick is chance, and not what is tested here.
    let stream_window = if role == Role::Server { 65_535 } else { 20_000 };
    let headers = Limits { field: 8192, block: 32768 };
    Config { role, max_streams: 100, stream_window, headers, extended_connect: false }
}

impl Ours {
    fn new(role: Role, pipe: DuplexStream) -> Ours {
        Ours { wire: Connection::new(config(role)), pipe, input: Vec::new() }
    }

    /// Writes what waits, reads once, and takes it in. False: the peer has closed.
    async fn step(&mut self) -> bool {
        while !self.wire.output().is_empty() {
            let n = self.wire.output().len();
            let out = self.wire.output().to_vec();
            self.pipe.write_all(&out).await.unwrap();
            self.wire.advance(n);
        }
        if !matches!(self.pipe.read_buf(&mut self.input).await, Ok(n) if n > 0) {
            return false;
        }
        let (mut at, mut head) = (0, HeaderBlock::default());
        loop {
            match self.wire.next(&self.input, &mut at, &mut head).expect("h2 keeps to the protocol") {
                Event::More => break,
                Event::Head { stream, end, .. } => {
                    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
                    let fields = head.iter().map(|(n, v)| (text(n), text(v))).collect();
                    let s = self.wire.stream(stream).unwrap();
                    (s.data.head, s.data.ended) = (fields, end);
                }
                Event::Data { stream, span, end } => {
                    let s = self.wire.stream(stream).unwrap();
                    s.data.body.extend_from_slice(span.of(&self.input));
                    s.data.ended = end;
                    self.wire.open_window(stream, 20_000);
                }
                Event::Trailers { stream } => self.wire.stream(stream).unwrap().data.ended = true,
                _ => {}
            }
        }
        self.input.drain(..at);
        true
    }

    /// Sends what the windows allow of each reply.
    fn send(&mut self) {
        let ids: Vec<u32> = self.wire.streams().iter().map(|s| s.id).collect();
        for id in ids {
            loop {
                let n = self.wire.sendable(id);
                let Some((body, sent)) = &mut self.wire.stream(id).unwrap().data.reply else { break };
                let piece = body[*sent..][..n.min(body.len() - *sent)].to_vec();
                if piece.is_empty() {
                    break;
                }
                *sent += piece.len();
                let end = *sent == body.len();
                let fill = |out: &mut Vec<u8>| -> Result<(), ()> {
                    out.extend_from_slice(&piece);
                    Ok(())
                };
                self.wire.send_data(id, piece.len(), end, false, fill).unwrap();
            }
        }
    }

    /// Answers requests that are complete with their own body, `times` over.
    fn answer(&mut self, times: usize) {
        let ids: Vec<u32> = self.wire.streams().iter().map(|s| s.id).collect();
        for id in ids {
            let s = self.wire.stream(id).unwrap();
            if s.data.ended && s.data.reply.is_none() {
                let body = s.data.body.repeat(times);
                let path = s.data.head.iter().find(|(n, _)| n == ":path").unwrap().1.clone();
                s.data.reply = Some((body.clone(), 0));
                self.wire.send_head(id, body.is_empty(), |encoder, out| {
                    encoder.status(200, out);
                    encoder.field(b"X-Path", path.as_bytes(), out);
                    encoder.field(b"server", b"ours", out);
                });
            } else if s.local_closed && s.remote_closed {
                self.wire.release(id, wire::http2::ErrorCode::NO_ERROR);
            }
        }
    }
}

async fn serve(pipe: DuplexStream, times: usize) {
    let mut ours = Ours::new(Role::Server, pipe);
    while ours.step().await {
        ours.answer(times);
        ours.send();
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}

#[test]
fn serves_h2_s_client() {
    run(async {
        let (a, b) = duplex(PIPE);
        let server = serve(b, 3);
        let client = async {
            let (requests, connection) = h2::client::handshake(a).await.unwrap();
            let work = async {
                let mut requests = requests.ready().await.unwrap();
                let mut streams = Vec::new();
                for i in 0..40usize {
                    let request = http::Request::post(format!("http://host/{i}")).body(()).unwrap();
                    requests = requests.ready().await.unwrap();
                    let (answer, mut body) = requests.send_request(request, false).unwrap();
                    body.send_data(Bytes::from(vec![i as u8; i * 1000]), true).unwrap();
                    streams.push((i, answer));
                }
                for (i, answer) in streams {
                    let answer = answer.await.unwrap();
                    assert_eq!(answer.status(), 200);
                    assert_eq!(answer.headers()["x-path"], format!("/{i}"));
                    assert_eq!(collect(answer.into_body()).await, vec![i as u8; i * 3000]);
                }
            };
            either(work, connection).await;
        };
        either(client, server).await;
    });
}

#[test]
fn asks_h2_s_server() {
    run(async {
        let (a, b) = duplex(PIPE);
        let server = async {
            let mut connection = h2::server::handshake(b).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let work = async move {
                    let path = request.uri().path().to_owned();
                    let body = collect(request.into_body()).await;
                    let answer = http::Response::builder().header("x-path", path).body(()).unwrap();
                    let mut out = respond.send_response(answer, false).unwrap();
                    out.send_data(Bytes::from(body.repeat(2)), true).unwrap();
                };
                tokio::task::spawn_local(work);
            }
        };
        let client = async {
            let mut ours = Ours::new(Role::Client, a);
            let mut open = HashMap::new();
            for i in 0..30usize {
                let id = ours.wire.open(Exchange::default()).unwrap();
                ours.wire.stream(id).unwrap().data.reply = Some((vec![i as u8; 1 + i * 2000], 0));
                ours.wire.send_head(id, false, |encoder, out| {
                    encoder.field(b":method", b"POST", out);
                    encoder.field(b":scheme", b"http", out);
                    encoder.field(b":path", format!("/{i}").as_bytes(), out);
                    encoder.field(b":authority", b"host", out);
                });
                open.insert(id, i);
            }
            while !open.is_empty() {
                ours.send();
                assert!(ours.step().await);
                open.retain(|&id, &mut i| {
                    let s = ours.wire.stream(id).unwrap();
                    if !s.data.ended {
                        return true;
                    }
                    assert!(s.data.head.contains(&("x-path".into(), format!("/{i}"))));
                    assert_eq!(s.data.body, vec![i as u8; 2 + i * 4000]);
                    false
                });
            }
        };
        tokio::task::LocalSet::new().run_until(either(client, server)).await;
    });
}

async fn collect(mut body: h2::RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        all.extend_from_slice(&piece);
    }
    all
}

/// Runs both until the first is done.
async fn either<A>(first: impl Future<Output = ()>, second: impl Future<Output = A>) {
    tokio::select! {
        () = first => {}
        _ = second => panic!("the other side ended first"),
    }
}
