//! TLS beside the connections that speak it: certificates and keys, ciphers by OpenSSL's names, sessions, verification.
//! Made while a configuration is read (`modules::ssl`, `modules::proxy::ssl`); used by `connection::handshake` and
//! `upstream`. Private keys and passwords are never logged.

pub mod asked;
pub mod certificate;
pub mod cipher_names;
pub mod ciphers;
pub mod client;
pub mod commands;
pub mod der;
pub mod dynamic;
pub mod expiry;
pub mod hooks;
pub mod names;
pub mod notes;
pub mod ocsp;
pub mod password;
pub mod pem;
pub mod quic;
pub mod server;
pub mod sessions;
pub mod settings;
pub mod suites;
pub mod tickets;
pub mod verify;
pub mod x509;

/// The library underneath, by the name that an nginx built with it gives: scripts look for OpenSSL's.
pub fn library() -> String {
    format!("OpenSSL 1.1.1 (compatible; AWS-LC {})", aws_lc_rs::awslc_version())
}
