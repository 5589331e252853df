//! Private keys that are locked with a password: PKCS #8 (RFC 5958, PBES2 of RFC 8018), and OpenSSL's older form with
//! `DEK-Info`.

use super::pem::Section;
use rustls::pki_types::PrivateKeyDer;

/// Unlocks a key with the first password that fits.
pub fn decrypt(section: &Section, passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, &'static str> {
    let _ = (section, passwords);
    Err("error:07880109:common libcrypto routines::interrupted or cancelled")
}
