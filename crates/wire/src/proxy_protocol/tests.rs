//! PROXY protocol headers, as they come and as they are written.

use super::*;
use proptest::prelude::*;
use std::net::SocketAddr;

fn header(buf: &[u8]) -> Option<Header> {
    for end in 0..buf.len() {
        assert_eq!(parse(&buf[..end]), Ok(Parsed::Partial), "{end}");
    }
    let mut longer = buf.to_vec();
    longer.extend_from_slice(b"GET /\r\n");
    match parse(&longer) {
        Ok(Parsed::Complete { len, header }) if len == buf.len() => header,
        other => panic!("{other:?}"),
    }
}

fn addresses(text: &str) -> Option<(String, String, u16, u16)> {
    let found = header(text.as_bytes())?;
    Some((found.source.to_string(), found.destination.to_string(), found.source_port, found.destination_port))
}

#[test]
fn version_1() {
    let is = |text: &str, from: &str, to: &str, ports: (u16, u16)| {
        assert_eq!(addresses(text), Some((from.into(), to.into(), ports.0, ports.1)), "{text}");
    };
    is("PROXY TCP4 192.0.2.1 198.51.100.1 123 5678\r\n", "192.0.2.1", "198.51.100.1", (123, 5678));
    is("PROXY TCP6 2001:DB8::1 ::1 0 65535\r\n", "2001:DB8::1", "::1", (0, 65535));
    is("PROXY TCP4 dead.beef : 1 2\r\n", "dead.beef", ":", (1, 2));
    assert_eq!(addresses("PROXY UNKNOWN\r\n"), None);
    assert_eq!(addresses("PROXY UNKNOWN whatever \r\n"), None);
    let odd = header(b"PROXY TCP6 2001:DB8::1 ::1 0 65535\r\n").expect("the header has addresses");
    assert_eq!(odd.source.ip(), Some("2001:db8::1".parse().expect("an address")));
    for bad in [
        "G",
        "PROXX",
        "PROXY TCP5 1 2 3 4\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 65536\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n",
        "PROXY TCP4 x 2.2.2.2 1 2\r\n",
        "PROXY UNKNOWN\n",
        "PROXY TCP4 1.1.1.1 2.2.2.2  2\r\n",
        "PROXY\t",
    ] {
        assert_eq!(parse(bad.as_bytes()), Err(ProxyError::Broken), "{bad:?}");
    }
    let endless = format!("PROXY UNKNOWN {}", "x".repeat(MAX_HEADER));
    assert_eq!(parse(endless.as_bytes()), Err(ProxyError::Broken));
    assert_eq!(quoted_part(b"abc\r\ndef"), b"abc");
}

fn v2(version_command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut out = SIGNATURE.to_vec();
    out.extend_from_slice(&[version_command, family]);
    out.extend_from_slice(&(body.len() as u16).to_be_bytes());
    out.extend_from_slice(body);
    out
}

#[test]
fn version_2() {
    let body = b"\x01\x02\x03\x04\x05\x06\x07\x08\x00\x50\x1f\x90";
    let found = header(&v2(0x21, 0x11, body)).expect("the header has addresses");
    assert_eq!((found.source.to_string().as_str(), found.source_port), ("1.2.3.4", 80));
    assert_eq!((found.destination.to_string().as_str(), found.destination_port), ("5.6.7.8", 8080));
    assert_eq!(header(&v2(0x20, 0x11, body)), None, "local");
    assert_eq!(header(&v2(0x21, 0x12, body)), None, "datagrams");
    assert_eq!(header(&v2(0x21, 0x31, body)), None, "Unix sockets");
    assert_eq!(parse(&v2(0x11, 0x11, body)), Err(ProxyError::UnknownVersion(1)));
    assert_eq!(parse(&v2(0x21, 0x11, &body[1..])), Err(ProxyError::ShortAddresses));
    assert_eq!(parse(&v2(0x21, 0x21, body)), Err(ProxyError::ShortAddresses));
    assert_eq!(parse(&v2(0x21, 0x11, &[0; MAX_HEADER])), Err(ProxyError::TooLarge));
}

#[test]
fn records() {
    let ssl = b"\x05\x00\x00\x00\x07\x21\x00\x07TLSv1.3\x22\x00\x01x";
    let mut records = b"\x01\x00\x02h2\xea\x00\x01a\x20\x00".to_vec();
    records.push(ssl.len() as u8);
    records.extend_from_slice(ssl);
    let tlvs = Tlvs(records.into());
    let bytes = |text| Ok(Some(TlvValue::Bytes(text)));
    assert_eq!(tlvs.lookup(b"alpn"), bytes(b"h2"));
    assert_eq!(tlvs.lookup(b"0xEA"), bytes(b"a"));
    assert_eq!(tlvs.lookup(b"0x01"), bytes(b"h2"));
    assert_eq!(tlvs.lookup(b"0xfff"), Ok(None));
    assert_eq!(tlvs.lookup(b"netns"), Ok(None));
    assert_eq!(tlvs.lookup(b"ssl"), bytes(ssl));
    assert_eq!(tlvs.lookup(b"ssl_version"), bytes(b"TLSv1.3"));
    assert_eq!(tlvs.lookup(b"ssl_0x22"), bytes(b"x"));
    assert_eq!(tlvs.lookup(b"ssl_cipher"), Ok(None));
    assert_eq!(tlvs.lookup(b"ssl_verify"), Ok(Some(TlvValue::Number(7))));
    assert_eq!(tlvs.lookup(b"nothing"), Err(TlvError::UnknownName));
    assert_eq!(tlvs.lookup(b"ssl_nothing"), Err(TlvError::UnknownName));
    assert_eq!(tlvs.lookup(b"0x"), Err(TlvError::InvalidName));
    assert_eq!(tlvs.lookup(b"0x+1"), Err(TlvError::InvalidName));
    assert_eq!(Tlvs((*b"\x01\x00\x03h2").into()).lookup(b"netns"), Err(TlvError::Broken));
    assert_eq!(Tlvs((*b"\x01\x00").into()).lookup(b"netns"), Err(TlvError::Broken));
    assert_eq!(Tlvs((*b"\x20\x00\x01x").into()).lookup(b"ssl_cn"), Err(TlvError::ShortSsl));
    assert_eq!(Tlvs::default().lookup(b"ssl_cn"), Ok(None));
}

fn socket(text: &str) -> SocketAddr {
    text.parse().expect("a socket address")
}

#[test]
fn written_lines() {
    let line = |connection| {
        let mut out = Vec::new();
        write_v1(connection, &mut out);
        String::from_utf8(out).expect("the line is ASCII")
    };
    let v4 = line(Some((socket("1.2.3.4:5"), socket("6.7.8.9:80"))));
    assert_eq!(v4, "PROXY TCP4 1.2.3.4 6.7.8.9 5 80\r\n");
    assert_eq!(line(Some((socket("[::1]:5"), socket("[::2]:80")))), "PROXY TCP6 ::1 ::2 5 80\r\n");
    assert_eq!(line(None), "PROXY UNKNOWN\r\n");
}

#[test]
fn written_binary_headers_are_read() {
    for (from, to, family, source) in [
        ("1.2.3.4:5", "6.7.8.9:80", 0x11, "1.2.3.4"),
        ("[::1]:5", "[::2]:80", 0x21, "::1"),
        ("1.2.3.4:5", "[::2]:80", 0x21, "::ffff:1.2.3.4"),
        ("[::ffff:1.2.3.4]:5", "[::ffff:6.7.8.9]:80", 0x11, "1.2.3.4"),
    ] {
        let mut out = Vec::new();
        let ssl = SslInfo { client: 1, verify: 1, records: &[(0x21, b"TLSv1.3")] };
        write_v2(Some((socket(from), socket(to))), &[(TLV_ALPN, b"h2")], Some(ssl), &mut out);
        assert_eq!(out[13], family);
        let found = header(&out).expect("the header has addresses");
        assert_eq!((found.source.to_string().as_str(), found.source_port, found.destination_port), (source, 5, 80));
        assert_eq!(found.tlvs.lookup(b"alpn"), Ok(Some(TlvValue::Bytes(b"h2"))));
        assert_eq!(found.tlvs.lookup(b"ssl_version"), Ok(Some(TlvValue::Bytes(b"TLSv1.3"))));
        let place = out.len() - 4;
        let checksum = out.split_off(place);
        out.extend_from_slice(&[0; 4]);
        assert_eq!(crate::encoding::crc32c(&out).to_be_bytes(), checksum[..]);
    }
    let mut out = Vec::new();
    write_v2(None, &[], None, &mut out);
    assert_eq!(header(&out), None);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(tail in proptest::collection::vec(any::<u8>(), 0..60), kind in 0usize..3) {
        let start: &[u8] = [&b""[..], b"PROXY TCP4 ", SIGNATURE][kind];
        let mut buf = start.to_vec();
        buf.extend_from_slice(&tail);
        if let Ok(Parsed::Complete { len, .. }) = parse(&buf) {
            prop_assert!(len <= buf.len());
        }
        let tlvs = Tlvs(tail.into());
        let _ = tlvs.lookup(b"ssl_cn");
    }
}
