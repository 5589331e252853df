//! Asks the API of a running server: plain HTTP, a connection for each question. For commands that look at a server from
//! outside (`top`, `doctor`); knows nothing of what is said.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use wire::terminal::plain;

/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a whole answer may take, however it trickles.
const WHOLE: Duration = Duration::from_secs(10);
/// The longest answer that is read: ten thousand peers take 8 MiB.
const LONGEST: usize = 16 << 20;

/// Where the API is unless it is said.
pub const URL: &str = "http://127.0.0.1:8080/api";

/// A server's API.
#[derive(Debug)]
pub struct Client {
    url: String,
    /// `host:port`
    authority: String,
    /// Without a slash at its end.
    path: String,
}

impl Client {
    /// From `http://host[:port]/path`; without a path `/api` is meant.
    ///
    /// # Errors
    /// A sentence for the user: what is wrong with the URL.
    pub fn new(url: &str) -> Result<Client, String> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => return Err(format!("{scheme} is not spoken here: ask a listener without TLS")),
            None => url,
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() {
            return Err(format!("no host in \"{url}\""));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let path = if path.is_empty() { "/api" } else { path };
        Ok(Client { url: url.to_owned(), authority, path: path.trim_end_matches('/').to_owned() })
    }

    /// As it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What an endpoint says; nothing if it is not there.
    ///
    /// # Errors
    /// A sentence for the user: nobody answers, or not as an API does.
    pub fn ask(&self, endpoint: &str) -> Result<Option<Value>, String> {
        match self.call("GET", endpoint, "")? {
            (200, value) => Ok(Some(value)),
            (404, _) => Ok(None),
            (status, value) => Err(said(status, &value)),
        }
    }

    /// Changes something. `body` is sent as JSON.
    ///
    /// # Errors
    /// A sentence for the user: nobody answers, or why the server will not.
    pub fn change(&self, method: &str, endpoint: &str, body: &Value) -> Result<(), String> {
        match self.call(method, endpoint, &body.to_string())? {
            (200..=299, _) => Ok(()),
            (status, value) => Err(said(status, &value)),
        }
    }

    /// To the first address that takes the connection: `localhost` is two, of which a server may listen on one. Outer error:
    /// there is no address.
    fn connect(&self) -> Result<std::io::Result<TcpStream>, String> {
        let addresses = self.authority.to_socket_addrs();
        let addresses = addresses.map_err(|e| format!("{} is not known ({e})", self.authority))?;
        let mut tries = addresses.map(|a| TcpStream::connect_timeout(&a, PATIENCE));
        let none = || format!("{} has no address", self.authority);
        let first = tries.next().ok_or_else(none)?;
        Ok(if first.is_ok() { first } else { tries.find(Result::is_ok).unwrap_or(first) })
    }

    fn call(&self, method: &str, endpoint: &str, body: &str) -> Result<(u16, Value), String> {
        let failed = |e: std::io::Error| format!("{} does not answer ({e})", self.authority);
        let mut stream = self.connect()?.map_err(failed)?;
        stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(failed)?;
        let head = format!(
            "{method} {}/9/{endpoint} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            self.path,
            self.authority,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(failed)?;
        let answer = read(&mut stream).map_err(failed)?;
        parse(&answer).ok_or_else(|| {
            format!("{} answers, but not as the API does: is there \"api;\" at {}/?", self.authority, self.path)
        })
    }
}

/// Reads up to the end of the connection, but neither more nor longer than an API answers.
fn read(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (began, mut answer, mut piece) = (Instant::now(), Vec::new(), vec![0; 64 * 1024]);
    loop {
        let left = WHOLE.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(std::io::Error::other(format!("its answer takes longer than {WHOLE:?}")));
        }
        stream.set_read_timeout(Some(left.min(PATIENCE)))?;
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
        let of = |url| Client::new(url).map(|c| (c.authority, c.path));
        assert_eq!(of("http://h:81/a/b/"), Ok(("h:81".into(), "/a/b".into())));
        assert_eq!(of("http://h"), Ok(("h:80".into(), "/api".into())));
        assert_eq!(of("[::1]:8080/api"), Ok(("[::1]:8080".into(), "/api".into())));
        assert!(of("https://h/api").is_err() && of("http:///api").is_err());
    }

    #[test]
    fn any_address_of_a_name_will_do() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://localhost:{}/api", listener.local_addr().unwrap().port());
        assert!(Client::new(&url).unwrap().connect().unwrap().is_ok());
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
