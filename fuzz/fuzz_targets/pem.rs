//! A file of certificates and keys of any bytes: it is read or refused, and what is read is the same when it is written.
#![no_main]

#[path = "../tls.rs"]
mod tls;

use libfuzzer_sys::fuzz_target;
use tls::{certificate, log, pem};

fuzz_target!(|data: &[u8]| {
    let Ok(sections) = pem::sections(data) else { return };
    for section in &sections {
        let again = pem::sections(&pem::write(&section.label, &section.der)).expect("what was written is read");
        assert!(again.len() == 1 && again[0].der == section.der && again[0].label == section.label);
    }
    let chain = certificate::chain(data).unwrap_or_default();
    assert!(chain.len() <= sections.len());
    // Without passwords: those cost time by design.
    let _ = certificate::private_key(data, &[]);
});
