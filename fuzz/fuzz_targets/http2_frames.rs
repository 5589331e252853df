//! Any bytes in any pieces: frames are read the same however they come, windows and counts stay within their bounds, and what
//! is written is frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http2::connection::{Config, Connection, Event, Role};
use wire::http2::frame::{FrameHeader, HEADER};
use wire::http2::hpack::{HeaderBlock, decoder::Limits};
use wire::http2::{ErrorCode, PREFACE};

fn run(role: Role, bytes: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let headers = Limits { field: 512, block: 2048 };
    let mut c: Connection<()> = Connection::new(Config { role, max_streams: 5, stream_window: 100, headers, extended_connect: false });
    if role == Role::Client {
        (0..3).for_each(|_| {
            c.open(());
        });
    }
    let (mut events, mut buffer, mut data) = (Vec::new(), Vec::new(), 0);
    let start = if role == Role::Server { PREFACE } else { b"" };
    'all: for piece in [start].into_iter().chain(bytes.chunks(size.max(1))) {
        buffer.extend_from_slice(piece);
        let (mut at, mut head) = (0, HeaderBlock::default());
        loop {
            let before = at;
            match c.next(&buffer, &mut at, &mut head) {
                Ok(Event::More) => break,
                Ok(Event::Data { stream, span, end }) => {
                    data += span.len();
                    if end {
                        events.push(format!("data of {stream} end, {data} in all"));
                        c.release(stream, ErrorCode::CANCEL);
                    }
                }
                Ok(event) => {
                    events.push(format!("{event:?}"));
                    if let Event::Head { stream, .. } = event {
                        events.push(format!("{:?}", head.iter().collect::<Vec<_>>()));
                        c.send_head(stream, false, |e, out| e.status(200, out));
                        let n = c.sendable(stream).min(10);
                        let _ = c.send_data(stream, n, true, false, |out| {
                            out.resize(out.len() + n, b'x');
                            Ok::<(), ()>(())
                        });
                    }
                }
                Err(e) => {
                    c.goaway(e.code);
                    events.push(e.text);
                    break 'all;
                }
            }
            assert!(at >= before && at <= buffer.len());
            assert!(c.streams().len() <= 8);
        }
        buffer.drain(..at);
    }
    (events, c.output().to_vec())
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (size, client, bytes) = input;
    let role = if client { Role::Client } else { Role::Server };
    let (whole, out) = run(role, bytes, bytes.len());
    let (pieces, _) = run(role, bytes, usize::from(size));
    assert_eq!(whole, pieces);
    let mut rest = if client { out.strip_prefix(PREFACE).expect("a client begins so") } else { &out[..] };
    while let Some(header) = FrameHeader::parse(rest) {
        rest = &rest[HEADER + header.len..];
    }
    assert!(rest.is_empty());
});
