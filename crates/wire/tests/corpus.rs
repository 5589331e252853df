//! The recorded requests with nginx's answers: accepts and refuses what nginx does. Skipped where the file is absent.
//!
//! After the head come the checks that a server adds, in their shortest form, so that statuses can be compared.

use wire::encoding::{Alphabet, base64_decode};
use wire::http1::chunked::{Decoder, Event, Trailers};
use wire::http1::known::KnownHeader;
use wire::http1::request::{Method, RequestHead, RequestParser, Rules};
use wire::http1::values::{TransferEncoding, parse_content_length, parse_transfer_encoding, validate_host};
use wire::http1::{Parsed, Version, target};

const CORPUS: &str = "/work/shared/data/http1-requests.json";

struct Case<'a> {
    id: &'a str,
    raw: Vec<u8>,
    /// nginx's first status; nothing if it said nothing.
    status: Option<u16>,
}

/// The file has one object a line, with the members in this order.
fn cases(text: &str) -> Vec<Case<'_>> {
    let between = |line: &'static str, start: &str, end: &str| -> &'static str {
        let at = line.find(start).expect("the member is there") + start.len();
        &line[at..at + line[at..].find(end).expect("the member ends")]
    };
    let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
    let lines = text.lines().filter(|line| line.starts_with("{\"id\""));
    lines
        .map(|line| {
            let mut raw = Vec::new();
            base64_decode(between(line, "\"raw\": \"", "\"").as_bytes(), Alphabet::Standard, &mut raw).expect("base64");
            let status = between(line, "\"nginx\": {\"status\": [", "]").split(',').next().and_then(|s| s.parse().ok());
            Case { id: between(line, "{\"id\": \"", "\""), raw, status }
        })
        .collect()
}

/// Longest line that `large_client_header_buffers` takes by default, in bytes.
const LONGEST_LINE: usize = 8192;
/// `client_max_body_size` by default, in bytes.
const LARGEST_BODY: u64 = 1 << 20;

/// The status a server would give at the least: 200 stands for all that a handler may say. Answers to HTTP/0.9 have none.
fn status(raw: &[u8]) -> Option<u16> {
    let mut head = RequestHead::default();
    let status = match RequestParser::default().parse(raw, &Rules::default(), &mut head) {
        Ok(Parsed::Complete { len }) => match check(raw, &head) {
            _ if raw[..len].split(|&byte| byte == b'\n').any(|line| line.len() >= LONGEST_LINE) => 400,
            Ok(true) => body(&raw[len..]),
            Ok(false) => 200,
            Err(status) => status,
        },
        Ok(_) => return None,
        Err(error) => error.status(),
    };
    let http09 = head.version == Version::HTTP09 && head.line != wire::span::Span::default();
    (!http09).then_some(status)
}

/// Checks the values; whether the body is chunked, or the status of the refusal.
fn check(raw: &[u8], head: &RequestHead) -> Result<bool, u16> {
    let mut out = Vec::new();
    if head.needs_normalizing() {
        target::normalize(head.target.of(raw), true, &mut out).map_err(|_| 400u16)?;
    }
    if let Some(host) = head.absolute_host {
        validate_host(host.of(raw), &mut out).map_err(|_| 400u16)?;
    }
    let all = |known| head.headers.iter().filter(move |line| line.known == known).map(|line| line.value.of(raw));
    for host in all(KnownHeader::Host) {
        validate_host(host, &mut out).map_err(|_| 400u16)?;
    }
    use KnownHeader::*;
    for unique in [Host, ContentLength, ContentRange, TransferEncoding, Expect, IfMatch, IfModifiedSince, IfRange] {
        if all(unique).count() > 1 {
            return Err(400);
        }
    }
    if head.version > Version::HTTP10 && all(Host).count() == 0 {
        return Err(400);
    }
    if all(ContentLength).any(|value| parse_content_length(value).is_none()) {
        return Err(400);
    }
    let chunked = all(KnownHeader::TransferEncoding).next().map(parse_transfer_encoding);
    match chunked {
        Some(_) if head.version < Version::HTTP11 => return Err(400),
        Some(self::TransferEncoding::Unknown) => return Err(501),
        Some(_) if all(ContentLength).count() > 0 => return Err(400),
        _ => {}
    }
    if all(ContentLength).any(|value| parse_content_length(value) > Some(LARGEST_BODY)) {
        return Err(413);
    }
    if matches!(head.method_id, Method::Connect | Method::Trace) {
        return Err(405);
    }
    Ok(chunked.is_some())
}

/// A body that is not yet whole is no reason to refuse: it is passed on as it comes.
fn body(rest: &[u8]) -> u16 {
    let (mut decoder, mut position) = (Decoder::new(Trailers::Drop), 0);
    loop {
        match decoder.decode(rest, &mut position) {
            Ok(Event::Data(_)) => {}
            Ok(_) => return 200,
            Err(_) => return 400,
        }
    }
}

#[test]
fn refuses_what_nginx_refuses() {
    let Ok(text) = std::fs::read_to_string(CORPUS) else { return };
    let cases = cases(&text);
    assert!(cases.len() > 300);
    let different: Vec<_> = cases
        .iter()
        .map(|case| (case, status(&case.raw)))
        .filter(|(case, ours)| *ours != case.status)
        .map(|(case, ours)| {
            format!("{} nginx {:?} here {ours:?} {:?}", case.id, case.status, case.raw.escape_ascii().to_string())
        })
        .collect();
    assert!(different.is_empty(), "{} of {} differ:\n{}", different.len(), cases.len(), different.join("\n"));
}
