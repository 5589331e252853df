//! A request's bytes through a transaction, and the answer of the suite's back end (albedo: `/reflect` answers what the request's
//! JSON says).

use crate::head::cut;
use base64::Engine as _;
use std::sync::Arc;
use waf::{Connection, Now, Rules, Transaction};
use wire::http1::request::{RequestHead, RequestParser};
use wire::http1::values::validate_host;

/// What a request came to.
pub(crate) struct Seen {
    /// The ids of rules that were logged.
    pub(crate) ids: Vec<u64>,
    /// The error log's lines.
    pub(crate) log: String,
    /// The answer's status.
    pub(crate) status: u16,
    /// The server would have refused it before any rule has its say.
    pub(crate) refused: bool,
}

/// Takes the chunks of a body together.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.iter().position(|b| *b == b'\n') {
        let size = String::from_utf8_lossy(body[..end].trim_ascii()).into_owned();
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        body = &body[end + 1..];
        if size == 0 || size > body.len() {
            break;
        }
        out.extend_from_slice(&body[..size]);
        body = body[size..].strip_prefix(b"\r\n").unwrap_or(&body[size..]);
    }
    out
}

/// Runs a request and its answer through a transaction that was used before: what it remembers of values must not matter.
pub(crate) fn judge(transaction: &mut Transaction, rules: &Arc<Rules>, bytes: &[u8]) -> Seen {
    let parsed = RequestParser::default().parse(bytes, &Default::default(), &mut RequestHead::default());
    let head = cut(bytes);
    let header =
        |name: &str| head.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes())).map(|(_, v)| *v);
    let chunked = header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case(b"chunked"));
    let length = header("content-length").map(|v| String::from_utf8_lossy(v).into_owned());
    let body = match &length {
        _ if chunked => unchunked(head.body),
        Some(length) => head.body[..length.parse().unwrap_or(usize::MAX).min(head.body.len())].to_vec(),
        None => Vec::new(),
    };
    // What the server refuses before any rule has its say: a head that is none, lengths that contradict, no host.
    let hosts = || head.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(b"host")).map(|(_, v)| *v);
    let refused = parsed.is_err()
        || length.as_ref().is_some_and(|l| !l.bytes().all(|b| b.is_ascii_digit()) || l.is_empty())
        || length.is_some() && header("transfer-encoding").is_some()
        || hosts().any(|h| validate_host(h, &mut Vec::new()).is_err())
        || hosts().count() != 1 && head.line[2] == b"HTTP/1.1";

    let now = Now { epoch_ms: 1_700_000_000_000, utc_offset_s: 0 };
    transaction.recycle(rules.clone(), None, now);
    transaction.unique_id(b"f0e1d2c3b4a59687");
    transaction.connection(&Connection {
        client: "127.0.0.1".parse().ok(),
        client_port: 40_000,
        server: "127.0.0.1".parse().ok(),
        server_port: 80,
    });
    transaction.uri(head.line[0], head.line[1], head.line[2]);
    transaction.request_headers(head.headers.iter().copied());
    // In pieces, as it would arrive.
    for piece in body.chunks(1_000) {
        transaction.request_body(piece);
    }
    transaction.request_body_end();
    let answer = answer(head.line[1], &body);
    let headers = answer.headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
    transaction.response_headers(answer.status, b"HTTP/1.1", headers);
    for piece in answer.body.chunks(1_000) {
        transaction.response_body(piece);
    }
    transaction.response_body_end();
    transaction.logging(answer.status);
    assert_eq!(transaction.fault(), None, "{}", String::from_utf8_lossy(bytes));
    let mut log = String::new();
    transaction.log_lines(|_| true, |_, line| log.push_str(&format!("{line}\n")));
    let ids = transaction.matches().iter().filter(|m| m.log).map(|m| m.id).collect();
    Seen { ids, log, status: if refused { 400 } else { answer.status }, refused }
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

fn answer(uri: &[u8], request: &[u8]) -> Answer {
    let plain = vec![("Content-Type".to_owned(), "text/plain; charset=utf-8".to_owned())];
    let wanted: Option<serde_json::Value> =
        if uri.starts_with(b"/reflect") { serde_json::from_slice(request).ok() } else { None };
    let Some(wanted) = wanted else { return Answer { status: 200, headers: plain, body: Vec::new() } };
    let status = wanted["status"].as_u64().unwrap_or(200) as u16;
    let mut headers: Vec<(String, String)> = Vec::new();
    if let Some(map) = wanted["headers"].as_object() {
        headers.extend(map.iter().map(|(n, v)| (n.clone(), v.as_str().unwrap_or_default().to_owned())));
    }
    if !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-type")) {
        headers.extend(plain);
    }
    let body = match (wanted["body"].as_str(), wanted["encodedBody"].as_str()) {
        (Some(body), _) if !body.is_empty() => body.as_bytes().to_vec(),
        (_, Some(encoded)) => base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default(),
        _ => Vec::new(),
    };
    Answer { status, headers, body }
}
