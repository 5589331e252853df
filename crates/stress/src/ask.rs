//! One request to the target before a run, in whatever is spoken, and what of its answer matters to a load test.

use crate::client::dial::Dialer;
use crate::client::http2::{config, send_body};
use crate::client::http3::{self, Http3};
use crate::client::now_ns;
use crate::client::quic::{Clock, Rooms};
use crate::client::streams::{Exchange, status};
use crate::plan::request::Request;
use crate::plan::{Http, Plan};
use crate::transport::{Transport, wait_for};
use rustix::event::PollFlags;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};
use wire::http1::Parsed;
use wire::http1::known::KnownHeader;
use wire::http1::response::{ResponseHead, ResponseParser};
use wire::http2::connection::{Connection, Event};
use wire::http2::hpack::HeaderBlock;

/// How long the one request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Its answer's head, and what HTTP/2 sends before it.
const MAX_HEAD: usize = 64 * 1024;

/// The head of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    pub status: u16,
    /// Where a redirect leads.
    pub location: Option<String>,
    pub sets_cookie: bool,
    /// The connection carries no other request.
    pub closes: bool,
    /// Bytes of head and body, where the answer says how long it is.
    pub bytes: Option<u64>,
}

/// Asks once. An error is a sentence for the user.
pub(crate) fn ask(plan: &Plan) -> Result<Answered, String> {
    let request = plan.requests.first().ok_or("there is no request")?;
    match plan.http {
        Http::One => ask_http1(request, &mut Transport::connect(plan, PATIENCE)?),
        Http::Two => ask_http2(request, &mut Transport::connect(plan, PATIENCE)?),
        Http::Three => ask_http3(request, plan),
    }
}

fn ask_http1(request: &Request, stream: &mut Transport) -> Result<Answered, String> {
    stream.write_all(&request.bytes).map_err(|e| format!("writing: {e}"))?;
    let mut head = Vec::new();
    while memchr::memmem::find(&head, b"\r\n\r\n").is_none() && read_more(stream, &mut head)? {}
    let mut parsed = ResponseHead::default();
    if !matches!(ResponseParser::default().parse(&head, &mut parsed), Ok(Parsed::Complete { len }) if len > 0) {
        return Err("the answer is no HTTP/1.1".to_owned());
    }
    let value = |known| parsed.header(known).map(|l| String::from_utf8_lossy(l.value.of(&head)).into_owned());
    let named = |name: &str| parsed.headers.iter().any(|l| l.name.of(&head).eq_ignore_ascii_case(name.as_bytes()));
    Ok(Answered {
        status: parsed.status,
        location: value(KnownHeader::Location),
        sets_cookie: named("set-cookie"),
        closes: value(KnownHeader::Connection).is_some_and(|v| v.to_ascii_lowercase().contains("close"))
            || (head.starts_with(b"HTTP/1.0") && !named("connection")),
        bytes: value(KnownHeader::ContentLength).and_then(|v| v.trim().parse::<u64>().ok()).map(|body| {
            let end = memchr::memmem::find(&head, b"\r\n\r\n").map_or(head.len(), |at| at + 4);
            body.saturating_add(end as u64)
        }),
    })
}

fn ask_http2(request: &Request, stream: &mut Transport) -> Result<Answered, String> {
    let mut wire = Connection::<()>::new(config());
    let id = wire.open(()).ok_or("no stream")?;
    wire.send_head(id, request.bytes.is_empty(), |encoder, out| {
        request.fields.iter().for_each(|(name, value)| encoder.field(name, value, out));
    });
    let (mut input, mut at, mut fields, mut sent) = (Vec::new(), 0, HeaderBlock::default(), 0);
    loop {
        send_body(&mut wire, id, &request.bytes, &mut sent);
        let output = wire.output().to_vec();
        stream.write_all(&output).map_err(|e| format!("writing: {e}"))?;
        wire.advance(output.len());
        if stream.agreed_on_http2() == Some(false) {
            return Err("the target does not agree on HTTP/2 (ALPN)".to_owned());
        }
        match wire
            .next(&input, &mut at, &mut fields)
            .map_err(|e| format!("the answer is no HTTP/2: {}", wire::said_of("the target", &e.text)))?
        {
            Event::Head { .. } if status(&fields).is_none_or(|s| s >= 200) => break,
            Event::More if !read_more(stream, &mut input)? => return Err("the answer is too long".to_owned()),
            Event::Reset { code, .. } | Event::Goaway { code, .. } => {
                return Err(format!("the target ended the stream with error {}", code.0));
            }
            _ => {}
        }
    }
    of_fields(&fields)
}

fn ask_http3(request: &Request, plan: &Plan) -> Result<Answered, String> {
    let mut dialer = Dialer::new(plan, 0).map_err(|e| e.to_string())?;
    let socket = dialer.dial().map_err(|e| format!("connecting: {e}"))?;
    let (clock, mut rooms, mut fields) = (Clock::new(), Rooms::new(), HeaderBlock::default());
    let tls = plan.tls.as_ref().ok_or("no TLS")?;
    let begun = dialer.target().and_then(|target| Http3::new(&socket, tls, target, &clock, now_ns()));
    let mut way = begun.map_err(|e| format!("connecting: {e}"))?;
    let end = Instant::now() + PATIENCE;
    let outcome = loop {
        match way
            .next(&mut fields)
            .map_err(|e| format!("the answer is no HTTP/3: {}", wire::said_of("the target", &e.text)))?
        {
            http3::Event::Connected => way.open(Exchange::default(), request).ok_or("no stream")?,
            http3::Event::Head(_) if status(&fields).is_none_or(|s| s >= 200) => break of_fields(&fields),
            http3::Event::Head(stream) => way.expect_head(stream),
            http3::Event::Lost(kind) => return Err(format!("QUIC: {}", kind.name())),
            http3::Event::End(_) => return Err("the stream was closed without an answer".to_owned()),
            http3::Event::Reset(_, code) => {
                return Err(format!("the target ended the stream with error {:#x}", code.0));
            }
            http3::Event::Data(..) | http3::Event::Goaway(_) => {}
            http3::Event::More => {
                way.quic.send(&socket, Instant::now(), &mut rooms).map_err(|e| format!("writing: {e}"))?;
                let due = way.quic.connection.poll_timeout().map_or(end, |due| due.min(end));
                wait_for(&socket, PollFlags::IN, due.saturating_duration_since(Instant::now()))?;
                let now = Instant::now();
                if now >= end {
                    return Err(format!("no answer within {PATIENCE:?}"));
                }
                way.quic.receive(&socket, now, &mut rooms).map_err(|e| format!("reading: {e}"))?;
                way.quic.connection.handle_timeout(now);
            }
        }
    };
    way.quic.close(Instant::now(), wire::http3::ErrorCode::NO_ERROR);
    let _ = way.quic.send(&socket, Instant::now(), &mut rooms);
    outcome
}

/// A head of HTTP/2 or HTTP/3.
fn of_fields(fields: &HeaderBlock) -> Result<Answered, String> {
    let value = |wanted: &[u8]| fields.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    Ok(Answered {
        status: status(fields).ok_or("the answer has no status")?,
        location: value(b"location").map(|v| String::from_utf8_lossy(v).into_owned()),
        sets_cookie: value(b"set-cookie").is_some(),
        closes: false,
        bytes: value(b"content-length").and_then(|v| std::str::from_utf8(v).ok()?.trim().parse().ok()),
    })
}

/// False: enough has come.
fn read_more(stream: &mut Transport, bytes: &mut Vec<u8>) -> Result<bool, String> {
    let mut buffer = [0; 8192];
    let count = stream.read(&mut buffer).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => format!("no answer within {PATIENCE:?}"),
        _ => format!("reading: {e}"),
    })?;
    bytes.extend_from_slice(&buffer[..count]);
    if count == 0 && bytes.is_empty() {
        return Err("the connection was closed without an answer".to_owned());
    }
    Ok(count > 0 && bytes.len() <= MAX_HEAD)
}
