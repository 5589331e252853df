//! The requests of a run, as the bytes that are sent. Nothing is built while it runs.

use super::Http;
use super::url::Url;

/// Fields that belong to an HTTP/1.1 connection, or that HTTP/2 says otherwise (RFC 9113 section 8.2.2).
const NOT_IN_HTTP2: &[&str] =
    &["connection", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// One request, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Head and body, as HTTP/1.1 sends them.
    pub bytes: Vec<u8>,
    /// Where the body begins.
    pub body_at: usize,
    /// The head as HTTP/2 sends it; empty if that is not spoken.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// Which of the plan's URLs it counts for.
    pub url: u32,
    /// HEAD: the answer has no body whatever its length says.
    pub is_head: bool,
}

impl Request {
    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.body_at..]
    }
}

/// What all requests of a run have in common.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// The method, unless a request has its own.
    pub method: Option<String>,
    /// Header lines, over those of the tool.
    pub headers: Vec<(String, String)>,
    /// The body, unless a request has its own.
    pub body: Option<Vec<u8>>,
    /// What is spoken.
    pub http: Http,
    /// `Connection: close`
    pub asks_to_close: bool,
}

/// One request as it is asked for; what it leaves out, [`Common`] gives.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The method.
    pub method: Option<String>,
    /// Path and query.
    pub path: String,
    /// Header lines.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Option<Vec<u8>>,
}

/// Writes a request.
pub fn build(url: &Url, wanted: &Wanted, common: &Common, number: u32) -> Request {
    let body = wanted.body.as_ref().or(common.body.as_ref());
    let default = if body.is_some() { "POST" } else { "GET" };
    let method = wanted.method.as_deref().or(common.method.as_deref()).unwrap_or(default);
    let mut bytes = format!("{method} {} HTTP/1.1\r\n", wanted.path).into_bytes();
    let given: Vec<&(String, String)> = wanted.headers.iter().chain(&common.headers).collect();
    let has = |name: &str| given.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    let mut line = |name: &str, value: &str| {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    };
    if !has("host") {
        line("Host", &url.authority);
    }
    if common.asks_to_close && !has("connection") {
        line("Connection", "close");
    }
    for (name, value) in &given {
        line(name, value);
    }
    if let Some(body) = body
        && !has("content-length")
        && !has("transfer-encoding")
    {
        line("Content-Length", &body.len().to_string());
    }
    bytes.extend_from_slice(b"\r\n");
    let body_at = bytes.len();
    bytes.extend_from_slice(body.map_or(&[][..], Vec::as_slice));
    let fields =
        if common.http == Http::Two { fields(url, method, &wanted.path, &bytes[..body_at]) } else { Vec::new() };
    Request { bytes, body_at, fields, url: number, is_head: method == "HEAD" }
}

/// The same head for HTTP/2 (RFC 9113 section 8.3.1), from its lines.
fn fields(url: &Url, method: &str, path: &str, head: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = String::from_utf8_lossy(head);
    let lines = || text.split("\r\n").skip(1).filter_map(|line| line.split_once(": "));
    let host = lines().find(|(name, _)| name.eq_ignore_ascii_case("host")).map_or(url.authority.as_str(), |l| l.1);
    let scheme = if url.scheme.is_encrypted() { "https" } else { "http" };
    let first = [(":method", method), (":scheme", scheme), (":authority", host), (":path", path)];
    let kept = lines().filter(|(name, _)| !NOT_IN_HTTP2.iter().any(|n| n.eq_ignore_ascii_case(name)));
    let all = first.into_iter().chain(kept);
    all.map(|(name, value)| (name.to_ascii_lowercase().into_bytes(), value.as_bytes().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::url::parse;

    #[test]
    fn what_is_given_replaces_what_is_made() {
        let url = parse("http://h:1/p").unwrap();
        let common = Common { headers: vec![("host".into(), "x".into())], asks_to_close: true, ..Common::default() };
        let wanted = Wanted { path: "/p".into(), ..Wanted::default() };
        let r = build(&url, &wanted, &common, 0);
        assert_eq!(r.bytes, b"GET /p HTTP/1.1\r\nConnection: close\r\nhost: x\r\n\r\n");
        let wanted = Wanted { path: "/p".into(), body: Some(b"ab".to_vec()), ..Wanted::default() };
        let r = build(&url, &wanted, &Common::default(), 0);
        assert_eq!(r.bytes, b"POST /p HTTP/1.1\r\nHost: h:1\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!((r.body(), r.fields.len()), (&b"ab"[..], 0));
    }

    #[test]
    fn the_head_for_http2() {
        let headers = [("Host", "x"), ("X-A", "B: c"), ("Connection", "close"), ("TE", "trailers")];
        let headers = headers.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec();
        let common = Common { headers, http: Http::Two, ..Common::default() };
        let wanted = Wanted { path: "/p".into(), body: Some(b"ab".to_vec()), ..Wanted::default() };
        let r = build(&parse("https://h/").unwrap(), &wanted, &common, 0);
        let fields: Vec<String> = r
            .fields
            .iter()
            .map(|(n, v)| [&n[..], b"=", &v[..]].concat())
            .map(|f| String::from_utf8(f).unwrap())
            .collect();
        assert_eq!(
            fields,
            [":method=POST", ":scheme=https", ":authority=x", ":path=/p", "x-a=B: c", "content-length=2"]
        );
    }
}
