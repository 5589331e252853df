//! The requests of a run, as the bytes that are sent. Nothing is built while it runs.

use super::url::Url;

/// One request, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Head and body.
    pub bytes: Vec<u8>,
    /// Which of the plan's URLs it counts for.
    pub url: u32,
    /// HEAD: the answer has no body whatever its length says.
    pub is_head: bool,
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
    Request { bytes, url: number, is_head: method == "HEAD" }
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
    }
}
