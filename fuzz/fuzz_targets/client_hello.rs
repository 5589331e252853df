//! The first message of a TLS connection: whatever comes, in one record or many, it is read or refused, and what is found
//! lies inside.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::tls;

fuzz_target!(|data: &[u8]| {
    let whole = tls::gather(data);
    // More bytes change nothing of what was certain.
    for cut in [data.len() / 3, data.len() / 2] {
        match tls::gather(&data[..cut]) {
            Ok(None) => {}
            early => assert_eq!(early, whole),
        }
    }
    let Ok(Some(message)) = whole else { return };
    assert!(message.len() <= tls::MAX_HELLO);
    if let Ok(hello) = tls::parse(&message) {
        let spans = [hello.session_id, hello.ciphers, hello.groups, hello.signatures, hello.alpn, hello.versions];
        for span in spans.into_iter().chain(hello.server_name) {
            assert!(span.of(&message).len() <= message.len());
        }
        let _ = (hello.best_version(&message), tls::pairs(hello.ciphers.of(&message)).count());
        // Programs in Lua look at all extensions, known or not.
        let all = tls::extensions(&message).expect("they were walked through before");
        assert!(all.iter().all(|(_, body)| body.of(&message).len() <= message.len()));
        assert_eq!(tls::random(&message).map(<[u8]>::len), Some(32));
    }
});
