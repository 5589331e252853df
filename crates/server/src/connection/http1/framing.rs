//! Answers as HTTP/1 has them: the head, and the body in its framing.

use super::Http1;
use crate::connection::output::Output;
use crate::connection::{Downstream, pool};
use crate::files::readers;
use crate::request::chunk::Chunk;
use crate::request::{Request, Version};
use crate::worker::handover;
use runtime::clock;
use std::cell::RefCell;
use std::io;

impl Output {
    fn put_buffer_from_pool(&mut self) {
        if self.is_empty() && self.buffer().capacity() == 0 {
            self.put_buffer(pool::take_buffer());
        }
    }
}

/// Writes the answer's head as HTTP/1 has it: nginx's order of lines (`ngx_http_header_filter`).
pub fn write_head(r: &mut Request, http: &mut Http1, server_token: &'static [u8]) {
    http.output.put_buffer_from_pool();
    let before = http.output.buffer().len();
    http.answer_start = http.output.queued;
    if let Some(handshake) = http.mqtt {
        (r.flow.keepalive, http.chunked) = (false, false);
        handshake.answer(r.answer.headers.status, http.output.buffer());
        http.header_size = (http.output.buffer().len() - before) as u32;
        http.output.appended(before);
        return;
    }
    // Where the thread ends and the process stays, the connection stays too.
    r.flow.keepalive &= !crate::worker::draining() || handover::is_handed_over(&r.client);
    let conf = &r.snapshot.location(r.location).conf.core;
    http.output.nopush = *conf.tcp_nopush;
    let out = http.output.buffer();
    let h = &r.answer.headers;
    use crate::request::headers::KnownHeader as K;
    let plain = h.status == 200 && h.status_line.is_none_or(|l| r.arena.get(l) == b"200 OK");
    if plain && !h.has(K::Server) && !h.has(K::Date) {
        usual_start(server_token, out);
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        match h.status_line {
            Some(line) => out.extend_from_slice(r.arena.get(line)),
            None => crate::request::status::write_status(h.status, out),
        }
        out.extend_from_slice(b"\r\n");
        if !h.has(K::Server) {
            line(out, b"Server", server_token);
        }
        if !h.has(K::Date) {
            line(out, b"Date", &crate::worker::date::http_date());
        }
    }
    if h.content_type.is_some_and(|t| !r.arena.get(t).is_empty()) {
        out.extend_from_slice(b"Content-Type: ");
        h.write_content_type(&r.arena, out);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(n) = h.content_length {
        out.extend_from_slice(b"Content-Length: ");
        crate::request::status::write_decimal(n, out);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(t) = h.last_modified.filter(|_| !h.has(K::LastModified)) {
        line(out, b"Last-Modified", &wire::date::format_http(t));
    }
    for l in h.lines.iter().filter(|l| l.known == K::Location) {
        line(out, b"Location", r.arena.get(l.value));
    }
    if http.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if h.status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if r.flow.keepalive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        let header = *conf.keepalive_header;
        if header > 0 {
            out.extend_from_slice(b"Keep-Alive: timeout=");
            crate::request::status::write_decimal(header, out);
            out.extend_from_slice(b"\r\n");
        }
    } else {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    for l in h.lines.iter().filter(|l| l.known != K::Location) {
        let value = r.arena.get(l.value);
        // An upstream that is trusted with these and does not send them: the client gets none.
        if !(value.is_empty() && matches!(l.known, K::Date | K::Server)) {
            line(out, r.arena.get(l.name), value);
        }
    }
    out.extend_from_slice(b"\r\n");
    http.header_size = (http.output.buffer().len() - before) as u32;
    http.output.appended(before);
}

/// Status line, `Server` and `Date` of most answers: made once a second for a thread.
fn usual_start(server_token: &'static [u8], out: &mut Vec<u8>) {
    thread_local! {
        static START: RefCell<(i64, &'static [u8], Vec<u8>)> = const { RefCell::new((i64::MIN, b"", Vec::new())) };
    }
    START.with_borrow_mut(|(second, token, bytes)| {
        let now = clock::wall_seconds();
        if *second != now || !std::ptr::eq(*token, server_token) {
            bytes.clear();
            bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
            line(bytes, b"Server", server_token);
            line(bytes, b"Date", &crate::worker::date::http_date());
            (*second, *token) = (now, server_token);
        }
        out.extend_from_slice(bytes);
    });
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Queues a piece of the body in the answer's framing.
pub fn queue(r: &mut Request, chunk: Chunk<'_>, last: bool) -> io::Result<()> {
    let limited = chunk.len() >= crate::connection::output::DIRECT as u64 && crate::request::flow::rate(r).0 > 0;
    let pool = match chunk {
        Chunk::File { .. } => r.conf().core.aio.map(|wanted| r.snapshot.whole().process.thread_pool(wanted)),
        Chunk::Bytes(_) => None,
    };
    let Downstream::Http1(http) = &mut r.downstream else { return Ok(()) };
    if http.mqtt.is_some() {
        // A client of MQTT reads no body.
        return Ok(());
    }
    http.output.put_buffer_from_pool();
    if let Some(size) = pool {
        http.output.read_by(|| readers::pool(&size));
    }
    let push = |http: &mut Http1| match chunk {
        // What is offered to the kernel at once would not know the rate.
        Chunk::Bytes(bytes) if limited => {
            http.output.push_bytes(bytes);
            Ok(())
        }
        other => http.output.push(&mut http.incoming.socket, other),
    };
    if !http.chunked {
        return if chunk.is_empty() { Ok(()) } else { push(http) };
    }
    if !chunk.is_empty() {
        let before = http.output.buffer().len();
        wire::http1::chunked::encode_size(chunk.len(), http.output.buffer());
        http.output.appended(before);
        push(http)?;
        http.output.push_bytes(b"\r\n");
    }
    if last {
        let before = http.output.buffer().len();
        let out = http.output.buffer();
        out.extend_from_slice(b"0\r\n");
        for t in &r.answer.headers.trailers {
            line(out, r.arena.get(t.name), r.arena.get(t.value));
        }
        out.extend_from_slice(b"\r\n");
        http.output.appended(before);
    }
    Ok(())
}

/// Whether the answer of a request may be chunked at all.
pub fn may_chunk(r: &Request) -> bool {
    r.head.version >= Version::HTTP11 && *r.conf().core.chunked_transfer_encoding
}
