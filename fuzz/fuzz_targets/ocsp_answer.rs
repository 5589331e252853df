//! An answer of a responder, of any bytes: it is read or refused, and one that the authority did not sign says nothing.
#![no_main]

#[path = "../tls.rs"]
mod tls;

use libfuzzer_sys::fuzz_target;
use tls::der::{BadDer, Der, tag};
use tls::x509::Certificate;
use tls::{CA, LEAF, NOW, log, message};

const SIGNED: &[u8] = include_bytes!("../corpus/ocsp_answer/signed");

fuzz_target!(|data: &[u8]| {
    let ca = Certificate::parse(CA).expect("a certificate");
    let leaf = Certificate::parse(LEAF).expect("a certificate");
    let identifier = message::identifier(&leaf, &ca).expect("both have keys");
    let believed = message::check(data, &identifier, Some((&ca, &tls::algorithms())), NOW);
    if believed.is_ok() {
        assert_eq!(message::check(data, &identifier, None, NOW), believed);
        assert_eq!(signed(data), signed(SIGNED));
    }
});

/// What the authority signed of an answer: it begins the innermost sequence (RFC 6960 section 4.2.1).
fn signed(answer: &[u8]) -> Result<&[u8], BadDer> {
    let mut response = Der::new(answer).sequence()?;
    response.expect(tag::ENUMERATED)?;
    let mut bytes = Der::new(response.expect(tag::EXPLICIT_0)?).sequence()?;
    bytes.expect(tag::OID)?;
    Der::new(bytes.expect(tag::OCTET_STRING)?).sequence()?.whole_sequence()
}
