//! Any bytes in any pieces, as a request stream and as a one-way stream: they are read the same however they come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http2::hpack::HeaderBlock;
use wire::http2::hpack::decoder::Limits;
use wire::http3::qpack::table::Table;
use wire::http3::{control, request};

const LIMITS: Limits = Limits { field: 512, block: 2048 };

fn request(bytes: &[u8], size: usize) -> (Vec<String>, usize) {
    let (mut reader, mut fields) = (request::Reader::default(), HeaderBlock::default());
    let (mut events, mut data, table) = (Vec::new(), 0, Table::new(128));
    for piece in bytes.chunks(size.max(1)) {
        let mut at = 0;
        loop {
            let before = at;
            match reader.next(piece, &mut at, LIMITS, &table, &mut fields) {
                Ok(request::Event::More) => break,
                Ok(request::Event::Blocked) => return (events, data),
                Ok(request::Event::Data(span)) => data += span.len(),
                Ok(event) => events.push(format!("{event:?} {data} {:?}", fields.iter().collect::<Vec<_>>())),
                Err(e) => {
                    events.push(e.text.into_owned());
                    return (events, data);
                }
            }
            assert!(at >= before && at <= piece.len());
            assert!(fields.bytes.len() <= LIMITS.block + 4 * LIMITS.field);
        }
        assert_eq!(at, piece.len());
    }
    events.push(format!("{:?}", reader.finish()));
    (events, data)
}

fn control(bytes: &[u8], size: usize) -> Result<control::Kind, String> {
    let (mut reader, mut table) = (control::Reader::default(), Table::new(128));
    for piece in bytes.chunks(size.max(1)) {
        reader.take(piece, &mut table).map_err(|e| e.text.into_owned())?;
    }
    Ok(reader.kind)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let size = usize::from(size);
    assert_eq!(request(bytes, bytes.len()), request(bytes, size));
    assert_eq!(control(bytes, bytes.len()), control(bytes, size));
});
