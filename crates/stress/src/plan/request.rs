//! The requests of a run, as the bytes that are sent. Nothing is built while it runs, but for scripts that make requests.

use super::Http;
use super::url::Url;
use bytes::Bytes;
use wire::http3::frame::{kind, write_head};
use wire::http3::qpack::encoder;

/// Fields that belong to an HTTP/1.1 connection, or that later versions say otherwise (RFC 9113 section 8.2.2).
const ONLY_HTTP1: &[&str] =
    &["connection", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// Name and value, the name in lower case.
pub type Field = (Vec<u8>, Vec<u8>);

/// One request, ready to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// All of it, as it stands on an HTTP/1.1 connection or an HTTP/3 stream; of HTTP/2 the body.
    pub bytes: Bytes,
    /// HTTP/2: the head.
    pub fields: Vec<Field>,
    /// Which of the plan's URLs it counts for.
    pub url: u32,
    /// HEAD: the answer has no body whatever its length says.
    pub is_head: bool,
}

impl Request {
    /// Of a request as HTTP/1.1 writes it, which counts for URL `number`.
    pub fn of_http1(bytes: Vec<u8>, target: &Url, http: Http, number: u32) -> Request {
        let request = Request { url: number, is_head: bytes.starts_with(b"HEAD "), ..Request::default() };
        if http == Http::One {
            return Request { bytes: bytes.into(), ..request };
        }
        let body_at = memchr::memmem::find(&bytes, b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let (head, body) = bytes.split_at(body_at);
        let fields = fields(target, head);
        match http {
            Http::Three => Request { bytes: frames(&fields, body).into(), ..request },
            _ => Request { bytes: Bytes::copy_from_slice(body), fields, ..request },
        }
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
    bytes.extend_from_slice(body.map_or(&[][..], Vec::as_slice));
    Request::of_http1(bytes, url, common.http, number)
}

/// The same head for HTTP/2 and HTTP/3 (RFC 9113 section 8.3.1), from its lines.
fn fields(target: &Url, head: &[u8]) -> Vec<Field> {
    let mut lines = head.split(|&b| b == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let (method, rest) = first.split_at(memchr::memchr(b' ', first).unwrap_or(first.len()));
    let path = rest.strip_suffix(b" HTTP/1.1").unwrap_or(rest).trim_ascii();
    let field = |line: &[u8]| {
        let at = memchr::memchr(b':', line)?;
        Some((line[..at].to_ascii_lowercase(), line[at + 1..].trim_ascii().to_vec()))
    };
    let given: Vec<Field> = lines.filter_map(field).collect();
    let host = given.iter().find(|(name, _)| name == b"host").map_or(target.authority.as_bytes(), |(_, host)| host);
    let scheme: &[u8] = if target.scheme.is_encrypted() { b"https" } else { b"http" };
    let pseudo: [(&[u8], &[u8]); 4] =
        [(b":method", method), (b":scheme", scheme), (b":authority", host), (b":path", path)];
    let mut all: Vec<Field> = pseudo.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    all.extend(given.into_iter().filter(|(name, _)| !ONLY_HTTP1.iter().any(|n| n.as_bytes() == &name[..])));
    all
}

/// A whole request stream of HTTP/3 (RFC 9114 section 4.1): with the static table alone, so that every stream may carry it.
fn frames(fields: &[Field], body: &[u8]) -> Vec<u8> {
    let (mut section, mut out) = (Vec::new(), Vec::new());
    encoder::begin(&mut section);
    fields.iter().for_each(|(name, value)| encoder::field(name, value, &mut section));
    write_head(kind::HEADERS, section.len(), &mut out);
    out.extend_from_slice(&section);
    if !body.is_empty() {
        write_head(kind::DATA, body.len(), &mut out);
        out.extend_from_slice(body);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::url::parse;
    use wire::http2::hpack::HeaderBlock;
    use wire::http2::hpack::decoder::Limits;
    use wire::http3::qpack::table::Table;
    use wire::http3::request::{self, Event};

    #[test]
    fn what_is_given_replaces_what_is_made() {
        let url = parse("http://h:1/p").unwrap();
        let common = Common { headers: vec![("host".into(), "x".into())], asks_to_close: true, ..Common::default() };
        let wanted = Wanted { path: "/p".into(), ..Wanted::default() };
        let r = build(&url, &wanted, &common, 0);
        assert_eq!(&r.bytes[..], b"GET /p HTTP/1.1\r\nConnection: close\r\nhost: x\r\n\r\n");
        let wanted = Wanted { path: "/p".into(), body: Some(b"ab".to_vec()), ..Wanted::default() };
        let r = build(&url, &wanted, &Common::default(), 0);
        assert_eq!(&r.bytes[..], b"POST /p HTTP/1.1\r\nHost: h:1\r\nContent-Length: 2\r\n\r\nab");
        assert!(r.fields.is_empty());
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
        assert_eq!(&r.bytes[..], b"ab");
    }

    #[test]
    fn the_stream_of_http3() {
        let url = parse("https://h/").unwrap();
        let r = Request::of_http1(b"HEAD /a b HTTP/1.1\r\n\r\nxyz".to_vec(), &url, Http::Three, 7);
        assert_eq!((r.url, r.is_head), (7, true));
        let (mut reader, mut fields, mut at) = (request::Reader::default(), HeaderBlock::default(), 0);
        let limits = Limits { field: 100, block: 1000 };
        let mut next = |fields: &mut _| reader.next(&r.bytes, &mut at, limits, &Table::new(0), fields).unwrap();
        assert!(matches!(next(&mut fields), Event::Head { referring: false, .. }));
        let list: Vec<_> = fields.iter().collect();
        let wanted: [(&[u8], &[u8]); 4] =
            [(b":method", b"HEAD"), (b":scheme", b"https"), (b":authority", b"h"), (b":path", b"/a b")];
        assert_eq!(list, wanted);
        let Event::Data(body) = next(&mut fields) else { panic!("a body follows") };
        assert_eq!(body.of(&r.bytes), b"xyz");
    }
}
