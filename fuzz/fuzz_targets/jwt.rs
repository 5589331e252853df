//! Tokens: what is cut up is what came, and nothing longer comes of it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    if let Ok(token) = wire::jwt::parse(text) {
        assert!(text.starts_with(token.signed));
        assert!(token.header.len() + token.payload.len() + token.signature.len() < text.len());
    }
    if let Ok(token) = wire::jwt::parse_encrypted(text) {
        assert!(text.starts_with(token.protected));
        let parts = [&token.header, &token.key, &token.iv, &token.content, &token.tag];
        assert!(parts.iter().map(|part| part.len()).sum::<usize>() < text.len());
    }
});
