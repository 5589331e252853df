//! Cookies of challenges, JA4, and the extensions of a ClientHello: never a panic, and never a proof that was not issued.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shield::challenge::{self, Bound, Key, Kind};
use shield::fingerprint::{Hello, Name, header_order, ja4};
use shield::hash::Keyed;

fuzz_target!(|data: &[u8]| {
    let (key, bound) = (Key::new(b"a key that nobody knows"), Bound { whom: b"192.0.2.1", name: b"cookie" });
    if let Some(proof) = challenge::check(&key, bound, data, 1) {
        let issued = challenge::issue(&key, bound, Kind::Cookie, proof.id, 2);
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
    let _ = header_order(data.split(|b| *b == b'\n').map(Name::Other), Keyed::fixed(7));
});
