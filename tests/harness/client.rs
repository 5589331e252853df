//! A client that sends exactly the bytes it is given, and reads responses as they are framed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// How long an answer may take. Never waited for in full when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

/// One connection to a server.
pub struct Client {
    pub stream: TcpStream,
    /// Read, but not yet taken.
    buffer: Vec<u8>,
}

/// One response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// In order, names as they came.
    pub headers: Vec<(String, String)>,
    /// Without its chunk framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header with a name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream.set_nodelay(true).expect("an option");
        Client { stream, buffer: Vec::new() }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        // A server that refuses early may have closed: what it said is still to be read.
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    /// `GET` with a Host and nothing else.
    pub fn get(&mut self, target: &str) -> Response {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).response()
    }

    /// `HEAD`
    pub fn head(&mut self, target: &str) -> Response {
        self.send(format!("HEAD {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        self.read_response(true).expect("an answer")
    }

    /// Says that nothing more will be sent.
    pub fn finish(&mut self) -> &mut Client {
        let _ = self.stream.shutdown(Shutdown::Write);
        self
    }

    /// The next response.
    pub fn response(&mut self) -> Response {
        self.read_response(false).expect("an answer, not the end of the connection")
    }

    /// The next response; nothing if the connection ended before it.
    pub fn read_response(&mut self, to_head: bool) -> Option<Response> {
        let head = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break self.buffer.drain(..at + 4).collect::<Vec<u8>>();
            }
            if !self.fill() {
                assert!(self.buffer.is_empty(), "a response cut short: {}", self.buffer.escape_ascii());
                return None;
            }
        };
        let (status, headers) = parse_head(&String::from_utf8_lossy(&head));
        let mut response = Response { status, headers, body: Vec::new() };
        if !(to_head || status < 200 || status == 204 || status == 304) {
            response.body = self.body(&response);
        }
        Some(response)
    }

    /// Whether something of an answer is there already.
    pub fn is_answered(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let has_come = self.stream.peek(&mut [0]).is_ok_and(|n| n > 0);
        self.stream.set_nonblocking(false).expect("a socket");
        has_come || !self.buffer.is_empty()
    }

    /// Whether the server has closed, with nothing left to read.
    pub fn is_closed(&mut self) -> bool {
        self.buffer.is_empty() && !self.fill()
    }

    /// All bytes up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.fill() {}
        std::mem::take(&mut self.buffer)
    }

    fn body(&mut self, response: &Response) -> Vec<u8> {
        if response.header("Transfer-Encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
            return self.chunks();
        }
        match response.header("Content-Length") {
            Some(length) => self.take(length.parse().expect("a number")),
            None => self.rest(),
        }
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("a chunk size, not {line:?}"));
            if size == 0 {
                while !self.line().is_empty() {}
                return body;
            }
            body.extend(self.take(size));
            assert_eq!(self.line(), "", "a line end after the chunk");
        }
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return String::from_utf8_lossy(&line[..at]).into_owned();
            }
            assert!(self.fill(), "a line cut short: {}", self.buffer.escape_ascii());
        }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(self.fill(), "a body cut short: {} of {count} bytes", self.buffer.len());
        }
        self.buffer.drain(..count).collect()
    }

    /// Reads more; whether there was more.
    fn fill(&mut self) -> bool {
        let mut more = [0; 65536];
        loop {
            match self.stream.read(&mut more) {
                Ok(0) => return false,
                Ok(n) => {
                    self.buffer.extend_from_slice(&more[..n]);
                    return true;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => return false,
                Err(e) => panic!("no answer ({e}); so far: {}", self.buffer.escape_ascii()),
            }
        }
    }
}

fn parse_head(head: &str) -> (u16, Vec<(String, String)>) {
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("a status line, not {first:?}"));
    let headers = lines.take_while(|line| !line.is_empty()).map(|line| {
        let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("a header, not {line:?}"));
        (name.to_owned(), value.trim().to_owned())
    });
    (status, headers.collect())
}

/// Where one byte string first stands in another.
pub fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}
