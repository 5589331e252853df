//! A certificate of any bytes: everything that is asked of one has an answer, and what signed itself or nobody is not
//! believed, alone or in a chain.
#![no_main]

#[path = "../tls.rs"]
mod tls;

use libfuzzer_sys::fuzz_target;
use tls::verify::{Purpose, has_purpose, host};
use tls::x509::Certificate;
use tls::{CA, LEAF, NOW, log, message, names};

fuzz_target!(|data: &[u8]| {
    let trust = tls::trust(None).expect("no lists");
    let chains: [&[&[u8]]; 3] = [&[data], &[data, CA], &[LEAF, data]];
    for chain in chains {
        let sent: Vec<_> = chain.iter().map(|der| der.to_vec().into()).collect();
        let believed = trust.verify(&sent, Purpose::Client, NOW).is_ok();
        assert!(!believed || [CA, LEAF].map(signed).contains(&signed(chain[0])));
    }
    let Ok(c) = Certificate::parse(data) else { return };
    assert!(c.extensions().count() <= data.len());
    let _ = (0..8).map(|number| has_purpose(&c, number)).collect::<Vec<_>>();
    let _ = (host::names(&c), host::is_for_host(data, b"localhost"), message::responder(&c));
    let _ = (names::oneline(c.subject), names::rfc2253(c.issuer), names::serial(c.serial), names::time(c.not_after));
    let _ = message::identifier(&c, &c);
});

/// What an issuer signed of a certificate.
fn signed(der: &[u8]) -> Option<&[u8]> {
    Certificate::parse(der).ok().map(|c| c.tbs)
}
