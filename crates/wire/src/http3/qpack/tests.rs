use super::decoder::Decoded;
use super::table::Table;
use super::{decoder, encoder, static_table::STATIC};
use crate::http2::hpack::decoder::Limits;
use crate::http2::hpack::{HeaderBlock, HpackError};

const LIMITS: Limits = Limits { field: 8192, block: 32768 };

fn decode(section: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
    decode_with(section, &Table::default()).map(|found| found.expect("nothing is missing"))
}

/// None: entries are missing.
fn decode_with(section: &[u8], table: &Table) -> Result<Option<Vec<(String, String)>>, HpackError> {
    let mut block = HeaderBlock::default();
    if decoder::decode(section, LIMITS, table, &mut block)? == Decoded::Blocked {
        return Ok(None);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Some(block.iter().map(|(name, value)| (text(name), text(value))).collect()))
}

#[test]
fn what_is_encoded_is_decoded() {
    let fields = [
        ("server", "ironweir"),
        ("content-type", "text/plain"),
        ("content-type", "text/html"),
        ("Content-Length", "1234567"),
        ("x-unknown", ""),
        ("x-long-enough-for-a-second-length-byte-in-its-prefix-of-three-bits", "v"),
        ("set-cookie", "binary \u{7f}\u{1}"),
    ];
    let mut section = Vec::new();
    encoder::begin(&mut section);
    encoder::status(200, &mut section);
    encoder::status(417, &mut section);
    for (name, value) in fields {
        encoder::field(name.as_bytes(), value.as_bytes(), &mut section);
    }
    let mut expected = vec![(":status".to_owned(), "200".to_owned()), (":status".to_owned(), "417".to_owned())];
    expected.extend(fields.iter().map(|(n, v)| (n.to_ascii_lowercase(), (*v).to_owned())));
    assert_eq!(decode(&section).expect("what we wrote"), expected);
}

#[test]
fn every_static_entry_is_one_number() {
    for (name, value) in STATIC {
        let mut section = Vec::new();
        encoder::begin(&mut section);
        encoder::field(name.as_bytes(), value.as_bytes(), &mut section);
        assert!(section.len() <= 4, "{name}: {value}");
        assert_eq!(decode(&section).expect("what we wrote"), [(name.to_owned(), value.to_owned())]);
    }
}

/// RFC 9204 appendix B.1.
#[test]
fn example_of_the_rfc() {
    let section = b"\x00\x00\x51\x0b/index.html";
    assert_eq!(decode(section).expect("the RFC's"), [(":path".to_owned(), "/index.html".to_owned())]);
}

#[test]
fn what_needs_a_table_or_is_cut_is_refused() {
    assert_eq!(decode(b"\x01\x00\x80"), Err(HpackError::BadIndex));
    assert_eq!(decode(b"\x00\x00\x80"), Err(HpackError::BadIndex));
    assert_eq!(decode(b"\x00\x00\x10"), Err(HpackError::BadIndex));
    assert_eq!(decode(b"\x00\x00\x40\x01a"), Err(HpackError::BadIndex));
    assert_eq!(decode(b"\x00\x00\xff\x40"), Err(HpackError::BadIndex));
    assert_eq!(decode(b"\x00\x00\x51\x0b/index"), Err(HpackError::Truncated));
    assert_eq!(decode(b"\x00"), Err(HpackError::Truncated));
}

#[test]
fn limits_hold() {
    let mut section = Vec::new();
    encoder::begin(&mut section);
    encoder::field(b"a", &[b'x'; 20], &mut section);
    let mut block = HeaderBlock::default();
    let small = Limits { field: 10, block: 1000 };
    assert_eq!(decoder::decode(&section, small, &Table::default(), &mut block), Err(HpackError::FieldTooLarge));
    let narrow = Limits { field: 100, block: 20 };
    block.clear();
    assert_eq!(decoder::decode(&section, narrow, &Table::default(), &mut block), Err(HpackError::BlockTooLarge));
}

fn pairs(list: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
    Some(list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect())
}

/// RFC 9204 appendix B.2 to B.5.
#[test]
fn examples_of_the_rfc_with_a_table() {
    let mut table = Table::new(220);
    let first = b"\x03\x81\x10\x11";
    assert_eq!(decode_with(first, &table), Ok(None));
    table.instruct(b"\x3f\xbd\x01\xc0\x0fwww.example.com\xc1\x0c/sample/path").expect("the RFC's");
    let expected = pairs(&[(":authority", "www.example.com"), (":path", "/sample/path")]);
    assert_eq!(decode_with(first, &table), Ok(expected));
    table.instruct(b"\x4acustom-key\x0ccustom-value").expect("the RFC's");
    table.instruct(b"\x02").expect("the RFC's");
    let expected = pairs(&[(":authority", "www.example.com"), (":path", "/"), ("custom-key", "custom-value")]);
    assert_eq!(decode_with(b"\x05\x00\x80\xc1\x81", &table), Ok(expected));
    // Inserting drops the oldest entry, which cannot be named any more.
    table.instruct(b"\x81\x0dcustom-value2").expect("the RFC's");
    assert_eq!(table.inserted(), 5);
    assert_eq!(decode_with(first, &table), Err(HpackError::BadIndex));
    assert_eq!(decode_with(b"\x06\x00\x80", &table), Ok(pairs(&[("custom-key", "custom-value2")])));
}

#[test]
fn instructions_may_come_in_pieces_and_must_fit() {
    let mut table = Table::new(100);
    for byte in b"\x3f\x45\x43abc\x03xyz" {
        table.instruct(&[*byte]).expect("well formed");
    }
    assert_eq!(decode_with(b"\x02\x00\x80", &table), Ok(pairs(&[("abc", "xyz")])));
    // Post-base, by name and whole.
    assert_eq!(decode_with(b"\x02\x80\x10\x00\x01v", &table), Ok(pairs(&[("abc", "xyz"), ("abc", "v")])));
    assert_eq!(table.instruct(b"\x3f\x46"), Err(HpackError::BadTableSize));
    assert_eq!(Table::new(100).instruct(b"\x43abc\x03xyz"), Err(HpackError::BadTableSize));
    // A capacity of 60, then an entry that the table would hold.
    for (longest, result) in [(3, Ok(())), (2, Err(HpackError::FieldTooLarge))] {
        assert_eq!(Table::with_longest(100, longest).instruct(b"\x3f\x1d\x43abc\x03xyz"), result);
    }
    assert_eq!(Table::new(100).instruct(b"\x00"), Err(HpackError::BadIndex));
    assert_eq!(Table::new(100).instruct(b"\xff\x40\x01v"), Err(HpackError::BadIndex));
}
