//! A revocation list of any bytes: it is read or refused, and a list that the authority did not sign lets nobody in.
#![no_main]

#[path = "../tls.rs"]
mod tls;

use libfuzzer_sys::fuzz_target;
use tls::der::Der;
use tls::verify::Purpose;
use tls::{CA, LEAF, NOW, log, pem};

const SIGNED: &[u8] = include_bytes!("../corpus/revocation_list/signed");

fuzz_target!(|data: &[u8]| {
    let Ok(trust) = tls::trust(Some(&pem::write("X509 CRL", data))) else { return };
    let sent = [LEAF.to_vec().into(), CA.to_vec().into()];
    let believed = trust.verify(&sent, Purpose::Client, NOW).is_ok();
    assert!(!believed || signed(data) == signed(SIGNED));
});

/// What the authority signed of a list.
fn signed(list: &[u8]) -> Option<&[u8]> {
    Der::new(list).sequence().and_then(|mut outer| outer.whole_sequence()).ok()
}
