//! What the server reads certificates, revocation lists and responders' answers with, and nothing around it.
#![allow(dead_code, reason = "the server's files, of which each target uses a part")]

#[path = "../crates/server/src/tls/certificate.rs"]
pub mod certificate;
#[path = "../crates/server/src/tls/der.rs"]
pub mod der;
#[path = "../crates/server/src/tls/ocsp/message.rs"]
pub mod message;
#[path = "../crates/server/src/tls/names.rs"]
pub mod names;
#[path = "../crates/server/src/tls/password.rs"]
pub mod password;
#[path = "../crates/server/src/tls/pem.rs"]
pub mod pem;
#[path = "../crates/server/src/tls/verify/mod.rs"]
pub mod verify;
#[path = "../crates/server/src/tls/x509.rs"]
pub mod x509;

use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use verify::Trust;

/// An authority.
pub const CA: &[u8] = include_bytes!("corpus/certificate/ca");
/// What it issued.
pub const LEAF: &[u8] = include_bytes!("corpus/certificate/leaf");
/// When both are valid, Unix seconds.
pub const NOW: i64 = 1_795_500_000;

/// The library's signatures.
pub fn algorithms() -> WebPkiSupportedAlgorithms {
    aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Believes in the authority, and in what revocation lists say.
pub fn trust(crls: Option<&[u8]>) -> Result<Trust, String> {
    Trust::new(vec![CA.to_vec().into()], crls, 2, algorithms())
}

/// What the server's log has of it.
pub mod log {
    /// An error of the system.
    pub fn os_error(e: &std::io::Error) -> String {
        e.to_string()
    }
}
