//! Cookies of challenges, JA4, and the extensions of a ClientHello: never a panic, and never a proof that was not issued.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shield::challenge::{self, Kind};
use shield::fingerprint::{Hello, header_order, ja4};

fuzz_target!(|data: &[u8]| {
    if let Some(proof) = challenge::check(b"a key that nobody knows", b"192.0.2.1", data, 1) {
        let issued = challenge::issue(b"a key that nobody knows", b"192.0.2.1", Kind::Cookie, proof.id, 2);
        panic!("forged: {:?}, as {issued}", data);
    }
    let (first, rest) = data.split_at(data.len() / 2);
    let extensions = wire::tls::extensions(rest).unwrap_or_default();
    let extensions: Vec<u16> = extensions.into_iter().map(|(kind, _)| kind).collect();
    let hello = Hello {
        quic: data.len() % 2 == 0,
        version: 0x0304,
        named: true,
        ciphers: first,
        extensions: &extensions,
        signatures: rest,
        alpn: data.get(..data.len().min(8)).unwrap_or_default(),
    };
    let text = ja4(hello);
    assert_eq!(text.split('_').count(), 3);
    let _ = header_order(data.split(|b| *b == b'\n'), 7);
});
