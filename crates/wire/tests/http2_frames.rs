//! The connection state machine against raw frames: what is refused, and what floods cost.
#![allow(clippy::unwrap_used)]

use wire::http2::connection::{Config, Connection, ConnectionError, Event, Role};
use wire::http2::frame::{FrameHeader, HEADER, flag, kind};
use wire::http2::hpack::{HeaderBlock, decoder::Limits, encoder::Encoder};
use wire::http2::{ErrorCode, LARGEST_FROM_SERVER, MAX_FRAME, PREFACE, flood};
use wire::priority::Priority;
use wire::span::Span;

type Server = Connection<()>;

fn server() -> Server {
    let limits = Limits { field: 8192, block: 32768 };
    let config =
        Config { role: Role::Server, max_streams: 10, stream_window: 1000, headers: limits, extended_connect: false };
    let mut c = Server::new(config);
    assert_eq!(feed(&mut c, PREFACE), Ok(vec![]));
    assert_eq!(feed(&mut c, &frame(kind::SETTINGS, flag::ACK, 0, b"")), Ok(vec![]));
    drain(&mut c);
    c
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = FrameHeader { len: payload.len(), kind, flags, stream }.bytes().to_vec();
    out.extend_from_slice(payload);
    out
}

fn block() -> Vec<u8> {
    let mut out = Vec::new();
    let mut e = Encoder::default();
    for (name, value) in [(":method", "GET"), (":scheme", "http"), (":path", "/")] {
        e.field(name.as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

fn request(stream: u32, end: bool) -> Vec<u8> {
    let end = if end { flag::END_STREAM } else { 0 };
    frame(kind::HEADERS, flag::END_HEADERS | end, stream, &block())
}

/// Feeds bytes one by one and, on a twin, at once is what `split` checks; this one feeds them at once.
fn feed(c: &mut Server, bytes: &[u8]) -> Result<Vec<Event>, ConnectionError> {
    let (mut at, mut head, mut events) = (0, HeaderBlock::default(), Vec::new());
    loop {
        match c.next(bytes, &mut at, &mut head)? {
            Event::More => break,
            event => events.push(event),
        }
    }
    assert_eq!(at, bytes.len(), "whole frames are used up");
    Ok(events)
}

fn drain(c: &mut Server) -> Vec<(u8, u32, Vec<u8>)> {
    let out = c.output().to_vec();
    c.advance(out.len());
    let (mut frames, mut rest) = (Vec::new(), &out[..]);
    while let Some(h) = FrameHeader::parse(rest) {
        frames.push((h.kind, h.stream, rest[HEADER..HEADER + h.len].to_vec()));
        rest = &rest[HEADER + h.len..];
    }
    assert!(rest.is_empty());
    frames
}

fn refused(bytes: &[u8], code: ErrorCode) {
    let mut c = server();
    feed(&mut c, &request(1, false)).unwrap();
    let (mut at, mut head) = (0, HeaderBlock::default());
    let error = loop {
        match c.next(bytes, &mut at, &mut head) {
            Ok(Event::More) => panic!("{bytes:x?} was taken"),
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert_eq!(error.code, code, "{bytes:x?}: {}", error.text);
}

#[test]
fn broken_frames_cost_the_connection() {
    let (protocol, size, flow) =
        (ErrorCode::PROTOCOL_ERROR, ErrorCode::FRAME_SIZE_ERROR, ErrorCode::FLOW_CONTROL_ERROR);
    refused(&frame(kind::DATA, 0, 0, b"x"), protocol);
    refused(&frame(kind::DATA, 0, 3, b"x"), protocol);
    refused(&frame(kind::DATA, flag::PADDED, 1, b""), size);
    refused(&frame(kind::DATA, flag::PADDED, 1, b"\x01"), protocol);
    refused(&frame(kind::HEADERS, flag::END_HEADERS, 2, &block()), protocol);
    refused(&frame(kind::HEADERS, flag::END_HEADERS, 3, b""), size);
    refused(&frame(kind::HEADERS, flag::END_HEADERS | flag::PRIORITY, 3, b"\0\0\0\x03\0\x82"), protocol);
    refused(&frame(kind::HEADERS, flag::END_HEADERS, 3, b"\xff\xff\xff\xff\xff"), ErrorCode::COMPRESSION_ERROR);
    refused(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, b""), protocol);
    refused(&[frame(kind::HEADERS, 0, 3, &block()), frame(kind::PING, 0, 0, &[0; 8])].concat(), protocol);
    refused(&frame(kind::PRIORITY, 0, 1, b"\0\0\0\x01\0"), protocol);
    refused(&frame(kind::PRIORITY, 0, 1, b"\0"), size);
    refused(&frame(kind::RST_STREAM, 0, 3, &[0; 4]), protocol);
    refused(&frame(kind::RST_STREAM, 0, 1, &[0; 3]), size);
    refused(&frame(kind::SETTINGS, 0, 1, b""), protocol);
    refused(&frame(kind::SETTINGS, 0, 0, b"x"), size);
    refused(&frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), size);
    refused(&frame(kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), flow);
    refused(&frame(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]), protocol);
    refused(&frame(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), protocol);
    refused(&frame(kind::PUSH_PROMISE, 0, 1, &[0; 4]), protocol);
    refused(&frame(kind::PING, 0, 1, &[0; 8]), protocol);
    refused(&frame(kind::PING, 0, 0, &[0; 7]), size);
    refused(&frame(kind::GOAWAY, 0, 1, &[0; 8]), protocol);
    refused(&frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), protocol);
    refused(&frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), flow);
    refused(&frame(kind::HEADERS, flag::END_HEADERS, 3, &[0; 90_000]), ErrorCode::ENHANCE_YOUR_CALM);
    refused(&frame(kind::SETTINGS, 0, 0, &[0, 9, 0, 0, 0, 2]), protocol);
    refused(&frame(kind::PRIORITY_UPDATE, 0, 1, b"\0\0\0\x01u=1"), protocol);
    refused(&frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\0u=1"), protocol);
    refused(&frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0"), size);
}

/// As large as a frame can be: what has come of it is handed on at once, none of it is kept.
#[test]
fn the_largest_frame_is_taken_as_it_comes() {
    let mut c = server();
    feed(&mut c, &request(1, false)).unwrap();
    c.open_window(1, MAX_FRAME as u32);
    let header = FrameHeader { len: MAX_FRAME, kind: kind::DATA, flags: flag::END_STREAM, stream: 1 };
    assert_eq!(feed(&mut c, &header.bytes()).unwrap(), []);
    let (piece, mut come) = (vec![b'x'; 50_000], 0);
    while come < MAX_FRAME {
        let n = piece.len().min(MAX_FRAME - come);
        come += n;
        let end = come == MAX_FRAME;
        assert_eq!(feed(&mut c, &piece[..n]).unwrap(), [Event::Data { stream: 1, span: Span::new(0, n), end }]);
    }
}

#[test]
fn a_stream_s_errors_cost_the_stream() {
    let reset = |bytes: &[u8], end: bool, code: ErrorCode| {
        let mut c = server();
        feed(&mut c, &request(1, end)).unwrap();
        let events = feed(&mut c, bytes).unwrap();
        assert!(events.contains(&Event::Reset { stream: 1, code, ours: true }), "{events:?}");
        assert_eq!(drain(&mut c), [(kind::RST_STREAM, 1, code.0.to_be_bytes().to_vec())]);
        assert!(c.note.is_some());
    };
    reset(&frame(kind::DATA, 0, 1, &[0; 1001]), false, ErrorCode::FLOW_CONTROL_ERROR);
    reset(&frame(kind::DATA, 0, 1, b"x"), true, ErrorCode::STREAM_CLOSED);
    reset(&frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), true, ErrorCode::FLOW_CONTROL_ERROR);
    reset(&request(1, false), false, ErrorCode::PROTOCOL_ERROR);
}

/// The peer has reset a stream whose owner does not know yet, and sends on.
#[test]
fn data_after_a_reset_are_answered_once() {
    let mut c = server();
    feed(&mut c, &request(1, false)).unwrap();
    feed(&mut c, &frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8])).unwrap();
    for _ in 0..3 {
        assert_eq!(feed(&mut c, &frame(kind::DATA, 0, 1, b"x")), Ok(vec![]));
    }
    assert_eq!(drain(&mut c), [(kind::RST_STREAM, 1, vec![0, 0, 0, 5])]);
}

#[test]
fn frames_come_in_any_pieces() {
    let mut all = request(1, false);
    let mut padded = vec![3];
    padded.extend_from_slice(b"hello\0\0\0");
    all.extend(frame(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &padded));
    all.extend(frame(kind::HEADERS, flag::END_STREAM, 3, &block()[..2]));
    all.extend(frame(kind::CONTINUATION, 0, 3, b""));
    all.extend(frame(kind::CONTINUATION, flag::END_HEADERS, 3, &block()[2..]));
    all.extend(frame(0x77, 0xff, 9, b"whatever"));
    all.extend(frame(kind::PING, 0, 0, b"12345678"));
    for size in 1..all.len() {
        let (mut c, mut buffer, mut body, mut heads, mut ended) = (server(), Vec::new(), Vec::new(), 0, 0);
        for piece in all.chunks(size) {
            buffer.extend_from_slice(piece);
            let (mut at, mut head) = (0, HeaderBlock::default());
            loop {
                match c.next(&buffer, &mut at, &mut head).unwrap() {
                    Event::More => break,
                    Event::Head { end, .. } => {
                        heads += 1;
                        ended += usize::from(end);
                        assert_eq!(head.fields.len(), 3);
                    }
                    Event::Data { span, end, .. } => {
                        body.extend_from_slice(span.of(&buffer));
                        ended += usize::from(end);
                    }
                    other => panic!("{other:?}"),
                }
            }
            buffer.drain(..at);
        }
        assert!(buffer.is_empty());
        assert_eq!((heads, ended, &body[..]), (2, 2, &b"hello"[..]), "in pieces of {size}");
        assert_eq!(drain(&mut c), [(kind::PING, 0, b"12345678".to_vec())]);
    }
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut c = server();
    for i in 0..10 {
        assert_eq!(feed(&mut c, &request(2 * i + 1, true)).unwrap().len(), 1);
    }
    assert_eq!(feed(&mut c, &request(21, true)), Ok(vec![Event::Refused]));
    assert_eq!(drain(&mut c), [(kind::RST_STREAM, 21, vec![0, 0, 0, 7])]);
    let rest = (0..200).find_map(|i| feed(&mut c, &request(2 * i + 23, true)).err());
    assert_eq!(rest.expect("it ends").text, "peer sent too many refused streams");
}

/// A quick client and quick answers: there is no end of requests in one turn.
#[test]
fn answered_streams_make_room_for_others() {
    let mut c = server();
    for id in (1..2_000).step_by(2) {
        assert_eq!(feed(&mut c, &request(id, true)).unwrap().len(), 1);
        c.send_head(id, true, |encoder, out| encoder.status(200, out));
        c.release(id, ErrorCode::NO_ERROR);
        assert!(drain(&mut c).iter().all(|frame| frame.0 == kind::HEADERS), "{id}");
    }
}

/// Requests that are reset at once: the work of each is done, and nothing is ever read.
#[test]
fn rapid_reset_is_bounded() {
    let mut c = server();
    let mut served = 0;
    let error = (0..10_000).find_map(|i| {
        let id = 2 * i + 1;
        c.begin_turn();
        let reset = [request(id, true), frame(kind::RST_STREAM, 0, id, &[0, 0, 0, 8])].concat();
        let result = feed(&mut c, &reset);
        served += 1;
        c.release(id, ErrorCode::NO_ERROR);
        result.err()
    });
    assert_eq!(error.expect("it ends").code, ErrorCode::ENHANCE_YOUR_CALM);
    assert_eq!(served, flood::MAX_RESETS + 1);
}

/// The same, but the peer breaks a rule so that the reset is ours ("made you reset").
#[test]
fn resets_that_a_peer_brings_about_are_bounded() {
    let mut c = server();
    let served = (0..10_000).position(|i| {
        let id = 2 * i + 1;
        c.begin_turn();
        let wrong = [request(id, true), frame(kind::WINDOW_UPDATE, 0, id, &[0x7f, 0xff, 0xff, 0xff])].concat();
        let result = feed(&mut c, &wrong);
        c.release(id, ErrorCode::NO_ERROR);
        result.is_err_and(|e| e.code == ErrorCode::ENHANCE_YOUR_CALM)
    });
    assert_eq!(served, Some(flood::MAX_RESETS as usize + 1));
}

/// Frames that cost us and bring nothing.
#[test]
fn useless_frames_are_bounded() {
    let empty = frame(kind::DATA, 0, 1, b"");
    let priority = frame(kind::PRIORITY, 0, 1, &[0; 5]);
    let settings = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]);
    let window = frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    let unknown = frame(0x99, 0, 0, b"");
    for useless in [empty, priority, settings, frame(kind::PING, 0, 0, &[0; 8]), window, unknown] {
        let mut c = server();
        feed(&mut c, &request(1, false)).unwrap();
        let error = (0..20_000).find_map(|_| {
            let result = feed(&mut c, &useless);
            drain(&mut c);
            result.err()
        });
        assert_eq!(error.expect("it ends").code, ErrorCode::ENHANCE_YOUR_CALM, "{useless:x?}");
    }
}

#[test]
fn continuations_are_bounded() {
    for piece in [&b""[..], &[0u8; 16_000]] {
        let mut c = server();
        feed(&mut c, &frame(kind::HEADERS, 0, 1, &block())).unwrap();
        let more = frame(kind::CONTINUATION, 0, 1, piece);
        let sent = (0..100_000).position(|_| feed(&mut c, &more).is_err()).expect("it ends");
        assert!(sent <= flood::MAX_CONTINUATIONS as usize && sent * piece.len() <= 100_000);
    }
}

/// An answer taken in crumbs of a byte.
#[test]
fn tiny_windows_are_bounded() {
    let mut c = server();
    feed(&mut c, &frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).unwrap();
    feed(&mut c, &request(1, true)).unwrap();
    let crumb = frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    let sent = (0..1_000_000).position(|_| {
        let failed = feed(&mut c, &crumb).is_err();
        let fill = |out: &mut Vec<u8>| -> Result<(), ()> {
            out.push(b'x');
            Ok(())
        };
        if c.sendable(1) > 0 {
            c.send_data(1, 1, false, true, fill).unwrap();
        }
        drain(&mut c);
        failed
    });
    assert_eq!(sent, Some(flood::MAX_TINY_FRAMES as usize + 1));
}

#[test]
fn the_end_rides_on_the_last_frame_while_it_waits() {
    let mut c = server();
    feed(&mut c, &request(1, true)).unwrap();
    let fill = |out: &mut Vec<u8>| -> Result<(), ()> {
        out.extend_from_slice(b"body");
        Ok(())
    };
    c.send_data(1, 4, false, false, fill).unwrap();
    assert_eq!(c.send_end(1), 0);
    assert_eq!(c.output()[4], flag::END_STREAM);
    feed(&mut c, &request(3, true)).unwrap();
    c.send_data(3, 4, false, false, fill).unwrap();
    drain(&mut c);
    assert_eq!(c.send_end(3), HEADER);
}

#[test]
fn an_abandoned_head_is_passed_over() {
    let mut c = server();
    let (first, rest) = (frame(kind::HEADERS, 0, 1, &block()[..2]), &block()[2..]);
    feed(&mut c, &first).unwrap();
    assert!(c.is_head_pending());
    c.abandon_head();
    assert!(!c.is_head_pending());
    assert_eq!(feed(&mut c, &frame(kind::CONTINUATION, flag::END_HEADERS, 1, rest)), Ok(vec![]));
    assert_eq!(feed(&mut c, &request(3, true)).unwrap().len(), 1);
}

#[test]
fn nothing_is_taken_after_goaway() {
    let mut c = server();
    feed(&mut c, &request(1, false)).unwrap();
    c.goaway(ErrorCode::NO_ERROR);
    drain(&mut c);
    assert_eq!(feed(&mut c, &request(3, true)), Ok(vec![]));
    assert_eq!(feed(&mut c, &frame(kind::DATA, flag::END_STREAM, 1, b"x")).unwrap().len(), 1);
    assert!(drain(&mut c).is_empty());
}

#[test]
fn larger_frames_are_taken_of_a_server() {
    let limits = Limits { field: 8192, block: 32768 };
    let config =
        Config { role: Role::Client, max_streams: 10, stream_window: 1000, headers: limits, extended_connect: false };
    let mut c = Server::new(config);
    let out = c.output().to_vec();
    let size = [0, 5, 0, 0x10, 0, 0];
    assert!(out.windows(size.len()).any(|w| w == size), "SETTINGS_MAX_FRAME_SIZE of a mebibyte");
    feed(&mut c, &frame(kind::SETTINGS, 0, 0, b"")).unwrap();
    let header = FrameHeader { len: LARGEST_FROM_SERVER + 1, kind: kind::PING, flags: 0, stream: 0 };
    assert_eq!(feed(&mut c, &header.bytes()).unwrap_err().code, ErrorCode::FRAME_SIZE_ERROR);
}

#[test]
fn priorities_are_handed_on_of_streams_that_are_or_may_come() {
    let mut c = server();
    feed(&mut c, &request(5, false)).unwrap();
    let update = |stream: u8, value: &[u8]| frame(kind::PRIORITY_UPDATE, 0, 0, &[&[0, 0, 0, stream], value].concat());
    let said = |stream| Event::Priority { stream, priority: Priority { urgency: 1, incremental: true } };
    assert_eq!(feed(&mut c, &update(5, b"u=1, i")).unwrap(), [said(5)]);
    assert_eq!(feed(&mut c, &update(7, b"u=1,i")).unwrap(), [said(7)]);
    assert_eq!(feed(&mut c, &update(3, b"u=1, i")).unwrap(), [], "it is gone");
    assert_eq!(feed(&mut c, &update(5, b"?")).unwrap(), []);
}
