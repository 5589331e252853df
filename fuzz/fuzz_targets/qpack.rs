//! Any bytes as field sections: what is decoded stays within its limits, and comes back the same after it was encoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http2::hpack::HeaderBlock;
use wire::http2::hpack::decoder::Limits;
use wire::http3::qpack::table::Table;
use wire::http3::qpack::{decoder, encoder};

const LIMITS: Limits = Limits { field: 1024, block: 4096 };

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (size, instructions, section) = input;
    let (mut table, mut again) = (Table::new(512), Table::new(512));
    let whole = table.instruct(instructions);
    let pieces = instructions.chunks(usize::from(size).max(1)).try_for_each(|piece| again.instruct(piece));
    assert_eq!((whole, table.inserted()), (pieces, again.inserted()));
    let mut fields = HeaderBlock::default();
    if decoder::decode(section, LIMITS, &table, &mut fields).is_err() {
        assert!(fields.bytes.len() <= LIMITS.block + 4 * LIMITS.field);
        return;
    }
    assert!(fields.bytes.len() <= LIMITS.block);
    let mut coded = Vec::new();
    encoder::begin(&mut coded);
    for (name, value) in fields.iter() {
        encoder::field(name, value, &mut coded);
    }
    let mut back = HeaderBlock::default();
    let wide = Limits { field: 1 << 20, block: 1 << 20 };
    decoder::decode(&coded, wide, &Table::default(), &mut back).expect("what is encoded can be decoded");
    let expected: Vec<_> = fields.iter().map(|(n, v)| (n.to_ascii_lowercase(), v.to_vec())).collect();
    let found: Vec<_> = back.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
    assert_eq!(found, expected);
});
