//! A server to be proxied to: it keeps every request it gets and answers what the test says.

use super::client::find;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A connection without a request for so long is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a backend does with a request.
pub enum Reply {
    /// Sends these bytes and waits for the next request.
    Keep(Vec<u8>),
    /// Sends these bytes and closes.
    Close(Vec<u8>),
}

impl Reply {
    /// A plain 200 with a length, the connection kept.
    pub fn ok(body: &str) -> Reply {
        Reply::Keep(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into())
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Request line and headers, with the empty line.
    pub head: String,
    /// As framed on the wire.
    pub body: Vec<u8>,
    /// Which connection it came on, from 0.
    pub connection: usize,
}

impl Seen {
    /// The request line.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The first header with a name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|l| l.split_once(':'));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim())
    }
}

/// A listening backend; stops accepting when dropped.
pub struct Backend {
    pub port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    over: Arc<AtomicBool>,
}

/// A port whose program says the same to whatever is said first, and hangs up.
pub fn blunt(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 16 * 1024]).and_then(|_| stream.write_all(answer));
        }
    });
    port
}

impl Backend {
    /// Answers each request with what `answer` gives for it.
    pub fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the kernel gives a port");
        let port = listener.local_addr().expect("it is bound").port();
        let (seen, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let backend = Backend { port, seen: seen.clone(), over: over.clone() };
        let (answer, number) = (Arc::new(answer), AtomicUsize::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (answer, seen) = (answer.clone(), seen.clone());
                let connection = number.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || serve(stream, connection, &*answer, &seen));
            }
        });
        backend
    }

    /// Answers everything with a plain 200.
    pub fn ok(body: &'static str) -> Backend {
        Backend::start(move |_| Reply::ok(body))
    }

    /// Lets `rate` requests a second through, and refuses the others.
    pub fn token_bucket(rate: f64) -> Backend {
        let burst = rate / 20.0;
        let state = Mutex::new((Instant::now(), burst));
        Backend::start(move |_| {
            let mut state = state.lock().expect("no test panics here");
            let now = Instant::now();
            let tokens = (state.1 + now.duration_since(state.0).as_secs_f64() * rate).min(burst);
            *state = (now, tokens);
            if tokens < 1.0 {
                return Reply::Keep(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec());
            }
            state.1 -= 1.0;
            Reply::ok("x")
        })
    }

    /// What arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics here").clone()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(mut stream: TcpStream, connection: usize, answer: &dyn Fn(&Seen) -> Reply, seen: &Mutex<Vec<Seen>>) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut buffer = Vec::new();
    while let Some(mut request) = read_request(&mut stream, &mut buffer) {
        request.connection = connection;
        seen.lock().expect("no test panics here").push(request.clone());
        let (bytes, last) = match answer(&request) {
            Reply::Keep(bytes) => (bytes, false),
            Reply::Close(bytes) => (bytes, true),
        };
        if stream.write_all(&bytes).is_err() || last {
            return;
        }
    }
}

fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let end = more_until(stream, buffer, |b| find(b, b"\r\n\r\n").map(|at| at + 4))?;
    let head = String::from_utf8_lossy(&buffer.drain(..end).collect::<Vec<u8>>()).into_owned();
    let mut seen = Seen { head, body: Vec::new(), connection: 0 };
    let end = if seen.header("Transfer-Encoding").is_some() {
        more_until(stream, buffer, |b| {
            if b.starts_with(b"0\r\n\r\n") { Some(5) } else { find(b, b"\r\n0\r\n\r\n").map(|at| at + 7) }
        })?
    } else {
        let length = seen.header("Content-Length").and_then(|v| v.parse().ok()).unwrap_or(0);
        more_until(stream, buffer, |b| (b.len() >= length).then_some(length))?
    };
    seen.body = buffer.drain(..end).collect();
    Some(seen)
}

fn more_until(stream: &mut TcpStream, buffer: &mut Vec<u8>, end: impl Fn(&[u8]) -> Option<usize>) -> Option<usize> {
    let mut more = [0; 65536];
    loop {
        if let Some(at) = end(buffer) {
            return Some(at);
        }
        match stream.read(&mut more) {
            Ok(0) | Err(_) => return None,
            Ok(n) => buffer.extend_from_slice(&more[..n]),
        }
    }
}
