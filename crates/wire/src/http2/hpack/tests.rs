#![allow(clippy::unwrap_used)]

use super::decoder::{Decoder, Limits};
use super::encoder::Encoder;
use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits { field: 8192, block: 32768 };

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
    let mut out = HeaderBlock::default();
    decoder.decode(block, LIMITS, &mut out)?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Ok(out.iter().map(|(n, v)| (text(n), text(v))).collect())
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| b.is_ascii_hexdigit()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// RFC 7541 appendix C.4: three requests on one connection, Huffman coded.
#[test]
fn requests_of_the_rfc() {
    let mut d = Decoder::default();
    let first = decode(&mut d, &hex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff")).unwrap();
    let pair = |n: &str, v: &str| (n.to_owned(), v.to_owned());
    assert_eq!(first[0], pair(":method", "GET"));
    assert_eq!(first[3], pair(":authority", "www.example.com"));
    let second = decode(&mut d, &hex("8286 84be 5886 a8eb 1064 9cbf")).unwrap();
    assert_eq!(second[3..], [pair(":authority", "www.example.com"), pair("cache-control", "no-cache")]);
    let third = decode(&mut d, &hex("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf")).unwrap();
    assert_eq!(third[2], pair(":path", "/index.html"));
    assert_eq!(third[4], pair("custom-key", "custom-value"));
}

/// RFC 7541 appendix C.6: answers that push each other out of a table of 256 bytes.
#[test]
fn answers_of_the_rfc() {
    let mut d = Decoder::new(256);
    let first = "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
                 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3";
    let fields = decode(&mut d, &hex(first)).unwrap();
    assert_eq!(fields[2], ("date".into(), "Mon, 21 Oct 2013 20:13:21 GMT".into()));
    assert_eq!(fields[3], ("location".into(), "https://www.example.com".into()));
    let fields = decode(&mut d, &hex("4883 640e ffc1 c0bf")).unwrap();
    assert_eq!(fields[0], (":status".into(), "307".into()));
    assert_eq!(fields[3].0, "location");
}

/// A field without a name spoils its message, not what the tables hold.
#[test]
fn a_field_without_a_name_is_decoded() {
    let (mut decoder, mut block) = (Decoder::default(), HeaderBlock::default());
    let limits = Limits { field: 100, block: 100 };
    decoder.decode(&[0x40, 0x00, 0x01, b'v', 0x00, 0x01, b'a', 0x01, b'b', 0xbe], limits, &mut block).unwrap();
    assert!(block.nameless);
    assert_eq!(block.iter().collect::<Vec<_>>(), [(&b"a"[..], &b"b"[..])]);
    block.clear();
    decoder.decode(&[0x40, 0x01, b'c', 0x00, 0xbe], limits, &mut block).unwrap();
    assert_eq!((block.nameless, block.fields.len()), (false, 2));
}

#[test]
fn broken_blocks() {
    let refused = |block: &[u8], error| assert_eq!(decode(&mut Decoder::default(), block), Err(error), "{block:x?}");
    refused(&[0x80], HpackError::BadIndex);
    refused(&[0xbe], HpackError::BadIndex);
    refused(&[0xff, 0xff, 0xff, 0xff, 0x7f], HpackError::TooLong);
    refused(&[0x40, 0x01], HpackError::Truncated);
    refused(&[0x00, 0x01, b'a', 0x81, 0x00], HpackError::BadHuffman);
    refused(&[0x00, 0x01, b'a', 0x82, 0x1f, 0xff], HpackError::BadHuffman);
    refused(&[0x00, 0x01, b'a', 0x84, 0xff, 0xff, 0xff, 0xff], HpackError::BadHuffman);
    refused(&[0x3f, 0xe2, 0x1f], HpackError::BadTableSize);
    refused(&[0x82, 0x20], HpackError::BadTableSize);
    let mut long = vec![0x00, 0x01, b'a', 0x7f, 0xff, 0x7f];
    long.resize(20_000, b'x');
    refused(&long, HpackError::FieldTooLarge);
}

/// A small block that names one large entry again and again.
#[test]
fn a_bomb_is_cut_off() {
    let mut d = Decoder::default();
    let mut block = vec![0x40, 0x01, b'a', 0x7f, 0x81, 0x1e];
    block.resize(6 + 4000, b'x');
    block.extend(std::iter::repeat_n(0xbe, 1000));
    let mut out = HeaderBlock::default();
    assert_eq!(d.decode(&block, LIMITS, &mut out), Err(HpackError::BlockTooLarge));
    assert!(out.bytes.len() < 40_000);
}

#[test]
fn repeated_fields_become_a_byte_each() {
    let (mut e, mut d) = (Encoder::default(), Decoder::default());
    let answer = |e: &mut Encoder| {
        let mut out = Vec::new();
        e.begin(&mut out);
        e.status(418, &mut out);
        e.field(b"Server", b"ironweir", &mut out);
        e.field(b"X-Any", b"value", &mut out);
        out
    };
    let first = answer(&mut e);
    let second = answer(&mut e);
    assert_eq!(second.len(), 3);
    let expected: Vec<(String, String)> =
        [(":status", "418"), ("server", "ironweir"), ("x-any", "value")].map(|(n, v)| (n.into(), v.into())).to_vec();
    assert_eq!(decode(&mut d, &first).unwrap(), expected);
    assert_eq!(decode(&mut d, &second).unwrap(), expected);
}

#[test]
fn a_smaller_table_is_announced() {
    let (mut e, mut d) = (Encoder::default(), Decoder::default());
    for size in [0, 100, 4096] {
        e.allow(size);
        for _ in 0..2 {
            let mut out = Vec::new();
            e.begin(&mut out);
            e.field(b"server", b"ironweir", &mut out);
            e.field(b"x", b"y", &mut out);
            assert_eq!(decode(&mut d, &out).unwrap().len(), 2);
        }
    }
}

fn fields() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = prop_oneof!["[a-z]{1,12}", Just("set-cookie".to_owned()), Just("date".to_owned())];
    let value = prop_oneof![proptest::collection::vec(any::<u8>(), 0..40), Just(b"ironweir".to_vec())];
    proptest::collection::vec((name, value), 0..20)
}

proptest! {
    #[test]
    fn huffman_round_trip(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (mut coded, mut back) = (Vec::new(), Vec::new());
        huffman::encode(&text, &mut coded);
        prop_assert_eq!(coded.len(), huffman::encoded_len(&text));
        huffman::decode(&coded, &mut back).unwrap();
        prop_assert_eq!(back, text);
    }

    #[test]
    fn any_fields_round_trip(blocks in proptest::collection::vec(fields(), 1..12)) {
        let (mut e, mut d) = (Encoder::default(), Decoder::default());
        for (i, fields) in blocks.iter().enumerate() {
            if i % 3 == 2 {
                e.allow(i * 40);
            }
            let mut block = Vec::new();
            e.begin(&mut block);
            for (name, value) in fields {
                e.field(name.as_bytes(), value, &mut block);
            }
            let mut out = HeaderBlock::default();
            d.decode(&block, LIMITS, &mut out).unwrap();
            let back: Vec<(String, Vec<u8>)> =
                out.iter().map(|(n, v)| (String::from_utf8_lossy(n).into_owned(), v.to_vec())).collect();
            prop_assert_eq!(&back, fields);
        }
    }

    #[test]
    fn any_bytes_decode_or_not(block in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut out = HeaderBlock::default();
        let _ = Decoder::default().decode(&block, LIMITS, &mut out);
        prop_assert!(out.bytes.len() <= LIMITS.block + LIMITS.field * 8 / 5 * 2);
    }
}
