//! Asks the API of a running server, over HTTP or HTTPS: a connection for each question. For commands that look at a server from
//! outside (`top`, `doctor`); knows nothing of what is said.

mod tls;

pub use tls::Trust;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::encoding::{Alphabet, base64_encode};
/// Text that others wrote, as a terminal may be shown it: for those who show what a server says.
pub use wire::terminal;

use wire::terminal::plain;

/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a whole answer may take, however it trickles.
const WHOLE: Duration = Duration::from_secs(10);
/// The longest answer that is read: ten thousand peers take 8 MiB.
const LONGEST: usize = 16 << 20;

/// Where the API is unless it is said.
pub const URL: &str = "http://127.0.0.1:8080/api";

/// So often a question is asked that nobody answers in time: another connection may come to another thread.
const TRIES: u32 = 4;
/// The last time it is waited for so many times as long, where little is waited.
const LAST_TRY: u32 = 4;

/// Why there is no answer: a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Somebody listens and does not answer in time.
    Silent(String),
    /// Anything else.
    Other(String),
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        let (Failure::Silent(text) | Failure::Other(text)) = failure;
        text
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Other(text)
    }
}

/// A server's API.
#[derive(Debug)]
pub struct Client {
    /// How long a question may take.
    patience: Duration,
    url: String,
    /// `host:port`
    authority: String,
    /// Without a slash at its end.
    path: String,
    /// How TLS is spoken, and for which name.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The value of `Authorization`, with its name and line end; empty without a password.
    password: String,
}

/// A connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        }
    }

    fn read(&mut self, piece: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(piece),
            Stream::Tls(stream) => stream.read(piece),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes),
        }
    }
}

/// TLS over a connection, for a name or an address. The handshake is made with the first byte.
///
/// # Errors
/// A sentence: no name for TLS, or what is wrong with what is to be trusted.
pub fn secure(
    stream: TcpStream,
    host: &str,
    trust: &Trust,
) -> Result<StreamOwned<ClientConnection, TcpStream>, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("\"{}\" is no name for TLS", plain(host)))?;
    let session = ClientConnection::new(tls::config(trust)?, name).map_err(|e| e.to_string())?;
    Ok(StreamOwned::new(session, stream))
}

impl Client {
    /// From `http[s]://[name:password@]host[:port]/path`; without a path `/api` is meant. `user`: name and password, in place of the
    /// URL's.
    ///
    /// # Errors
    /// A sentence for the user: what is wrong with the URL, or with what is to be trusted.
    pub fn new(url: &str, trust: &Trust, user: Option<&str>) -> Result<Client, String> {
        let (encrypted, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => return Err(format!("{} is not spoken here: http or https", plain(scheme))),
            None => (false, url),
        };
        let host_end = rest.find('/').unwrap_or(rest.len());
        let (in_url, rest) = match rest[..host_end].rfind('@') {
            Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
            None => (None, rest),
        };
        let password = user.or(in_url).map_or_else(String::new, |user| {
            let mut coded = Vec::new();
            base64_encode(user.as_bytes(), Alphabet::Standard, &mut coded);
            format!("Authorization: Basic {}\r\n", String::from_utf8_lossy(&coded))
        });
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() {
            return Err(format!("no host in \"{url}\""));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port { authority.rsplit_once(':').map_or(authority, |(host, _)| host) } else { authority };
        let tls = match encrypted {
            false => None,
            true => {
                let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name).map_err(|_| format!("\"{}\" is no name for TLS", plain(host)))?;
                Some((tls::config(trust)?, name))
            }
        };
        let port = if encrypted { 443 } else { 80 };
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let path = if path.is_empty() { "/api" } else { path };
        let scheme = if encrypted { "https" } else { "http" };
        let path = path.trim_end_matches('/').to_owned();
        // Without a password, since it is shown.
        let url = format!("{scheme}://{authority}{path}");
        Ok(Client { patience: PATIENCE, url, authority, path, tls, password })
    }

    /// The same with another time that a question may take.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Client {
        self.patience = patience;
        self
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The addresses behind its name; none if it has none.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.authority.to_socket_addrs().map(Iterator::collect).unwrap_or_default()
    }

    /// What an endpoint says; nothing if it is not there.
    ///
    /// # Errors
    /// A sentence for the user: nobody answers, or not as an API does.
    pub fn ask(&self, endpoint: &str) -> Result<Option<Value>, Failure> {
        // Whoever does not answer the last one either may only be slow, and say just that.
        let last_patience = (self.patience * LAST_TRY).min(PATIENCE).max(self.patience);
        let patience = |n| if n + 1 == TRIES { last_patience } else { self.patience };
        let mut tries = (0..TRIES).map(|n| self.call("GET", endpoint, "", patience(n)));
        let mut last = None;
        let answered = tries.find_map(|tried| match tried {
            Err(Failure::Silent(text)) => {
                last = Some(Failure::Silent(text));
                None
            }
            other => Some(other),
        });
        match answered.unwrap_or_else(|| Err(last.unwrap_or(Failure::Silent(String::new()))))? {
            (200, value) => Ok(Some(value)),
            (404, _) => Ok(None),
            (status, value) => Err(Failure::Other(said(status, &value))),
        }
    }

    /// Changes something. `body` is sent as JSON.
    ///
    /// # Errors
    /// A sentence for the user: nobody answers, or why the server will not.
    pub fn change(&self, method: &str, endpoint: &str, body: &Value) -> Result<(), String> {
        match self.call(method, endpoint, &body.to_string(), self.patience)? {
            (200..=299, _) => Ok(()),
            (status, value) => Err(said(status, &value)),
        }
    }

    /// To the first address that takes the connection: `localhost` is two, of which a server may listen on one. Outer error:
    /// there is no address.
    fn connect(&self) -> Result<std::io::Result<TcpStream>, String> {
        let addresses = self.authority.to_socket_addrs();
        let addresses = addresses.map_err(|e| format!("{} is not known ({e})", self.authority))?;
        let mut tries = addresses.map(|a| TcpStream::connect_timeout(&a, self.patience));
        let none = || format!("{} has no address", self.authority);
        let first = tries.next().ok_or_else(none)?;
        Ok(if first.is_ok() { first } else { tries.find(Result::is_ok).unwrap_or(first) })
    }

    fn call(&self, method: &str, endpoint: &str, body: &str, patience: Duration) -> Result<(u16, Value), Failure> {
        let failed = |e: std::io::Error| match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => {
                Failure::Silent(format!("{} does not answer within {:?}", self.authority, patience))
            }
            _ => Failure::Other(format!("{} does not answer ({e})", self.authority)),
        };
        let socket = self.connect()?.map_err(failed)?;
        socket
            .set_read_timeout(Some(patience))
            .and_then(|()| socket.set_write_timeout(Some(patience)))
            .map_err(failed)?;
        let mut stream = match &self.tls {
            None => Stream::Plain(socket),
            Some((config, name)) => {
                let tls = ClientConnection::new(config.clone(), name.clone()).map_err(|e| e.to_string())?;
                Stream::Tls(Box::new(StreamOwned::new(tls, socket)))
            }
        };
        let head = format!(
            "{method} {}/9/{endpoint} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {}Content-Length: {}\r\n\r\n",
            self.path,
            self.authority,
            self.password,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(failed)?;
        let answer = read(&mut stream, patience).map_err(failed)?;
        if answer.is_empty() {
            return Err(failed(ErrorKind::UnexpectedEof.into()));
        }
        parse(&answer).ok_or_else(|| {
            Failure::Other(format!(
                "{} answers, but not as the API does: is there \"api;\" at {}/?",
                self.authority, self.path
            ))
        })
    }
}

/// Reads up to the end of the connection, but neither more nor longer than an API answers.
fn read(stream: &mut Stream, patience: Duration) -> std::io::Result<Vec<u8>> {
    let (began, mut answer, mut piece) = (Instant::now(), Vec::new(), vec![0; 64 * 1024]);
    loop {
        let left = WHOLE.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(std::io::Error::other(format!("its answer takes longer than {WHOLE:?}")));
        }
        stream.socket().set_read_timeout(Some(left.min(patience)))?;
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Ok(answer);
        }
        if answer.len() + count > LONGEST {
            return Err(std::io::Error::other(format!("its answer is longer than {} MiB", LONGEST >> 20)));
        }
        answer.extend_from_slice(&piece[..count]);
    }
}

fn said(status: u16, value: &Value) -> String {
    if status == 401 {
        return "the server wants a password: --user NAME:PASSWORD, or --user-file FILE".to_owned();
    }
    let text = value.pointer("/error/text").and_then(Value::as_str);
    text.map_or_else(|| format!("the server answers {status}"), |text| format!("{} ({status})", plain(text)))
}

/// Status and JSON of an answer that has a length and ends with the connection. Without JSON in it: null.
fn parse(answer: &[u8]) -> Option<(u16, Value)> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let is_json = head.to_ascii_lowercase().contains("\r\ncontent-type: application/json");
    let body = &answer[end + 4..];
    match (is_json, status) {
        (true, _) => Some((status, serde_json::from_slice(body).ok()?)),
        (false, 200) => None,
        (false, _) => Some((status, Value::Null)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let new = |url| Client::new(url, &Trust::Blind, None);
        let of = |url| new(url).map(|c| (c.authority, c.path));
        assert_eq!(of("http://h:81/a/b/"), Ok(("h:81".into(), "/a/b".into())));
        assert_eq!(of("http://h"), Ok(("h:80".into(), "/api".into())));
        assert_eq!(of("[::1]:8080/api"), Ok(("[::1]:8080".into(), "/api".into())));
        assert_eq!(of("https://h/api"), Ok(("h:443".into(), "/api".into())));
        assert!(of("ftp://h/api").is_err() && of("http:///api").is_err());
        let client = new("https://me:se@cret@h:1/api").unwrap();
        assert_eq!((client.url(), &*client.password), ("https://h:1/api", "Authorization: Basic bWU6c2VAY3JldA==\r\n"));
    }

    #[test]
    fn any_address_of_a_name_will_do() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://localhost:{}/api", listener.local_addr().unwrap().port());
        assert!(Client::new(&url, &Trust::Blind, None).unwrap().connect().unwrap().is_ok());
    }

    #[test]
    fn answers_are_read() {
        let json = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n\r\n{\"error\":{\"text\":\"x\"}}";
        let (status, value) = parse(json).unwrap();
        assert_eq!(said(status, &value), "x (404)");
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n"), Some((204, Value::Null)));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>"), None);
        assert_eq!(parse(b"HTTP/1.1 200"), None);
    }
}
