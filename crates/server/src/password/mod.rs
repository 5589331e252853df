//! Whether a password fits what a user file holds: crypt(3) with DES, `$1$`, `$5$`, `$6$`, `$2y$`; `$apr1$`; `{PLAIN}`,
//! `{SHA}`, `{SSHA}` (nginx's `ngx_crypt`). Pure: no files, no clock. Comparisons take the same time wherever they differ.

mod des;
mod md5;
mod sha2;

use sha1::{Digest, Sha1};
use wire::encoding::{Alphabet, base64_decode, base64_encode};

/// Whether `password` is the one of `stored`. False as well for a scheme that is not known.
pub fn fits(password: &[u8], stored: &[u8]) -> bool {
    if let Some(plain) = stored.strip_prefix(b"{PLAIN}") {
        return same(password, plain);
    }
    let made = if stored.starts_with(b"{SSHA}") {
        salted_sha(password, stored)
    } else if stored.starts_with(b"{SHA}") {
        Some(sha(password, b"{SHA}", b""))
    } else if stored.starts_with(b"$apr1$") {
        Some(md5::crypt(password, b"$apr1$", &stored[6..]))
    } else if stored.starts_with(b"$1$") {
        Some(md5::crypt(password, b"$1$", &stored[3..]))
    } else if stored.starts_with(b"$5$") || stored.starts_with(b"$6$") {
        sha2::crypt(password, stored)
    } else if stored.starts_with(b"$2") {
        let stored = std::str::from_utf8(stored).unwrap_or("");
        return bcrypt::verify(password, stored).unwrap_or(false);
    } else {
        des::crypt(password, stored)
    };
    made.is_some_and(|m| same(&m, stored))
}

/// Whether finding out takes so long (0.1 ms and more) that it should not be done between requests.
pub fn is_slow(stored: &[u8]) -> bool {
    !stored.starts_with(b"{")
}

/// Compares in a time that depends on the lengths only.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y))) == 0
}

fn sha(password: &[u8], scheme: &[u8], salt: &[u8]) -> Vec<u8> {
    let digest = Sha1::new().chain_update(password).chain_update(salt).finalize();
    let mut made = scheme.to_vec();
    base64_encode(&[&digest[..], salt].concat(), Alphabet::Standard, &mut made);
    made
}

/// The salt follows the digest.
fn salted_sha(password: &[u8], stored: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    base64_decode(&stored[6..], Alphabet::Standard, &mut decoded).ok()?;
    Some(sha(password, b"{SSHA}", decoded.get(20..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Made with crypt(3), `openssl passwd` and Python's hashlib.
    const STORED: &[&str] = &[
        "sa3tHJ3/KuYvI",
        "$1$salt$qJH7.N4xYta3aEG/dfqo/0",
        "$apr1$salt$Xxd1irWT9ycqoYxGFn4cb.",
        "$5$salt$Gcm6FsVtF/Qa77ZKD.iwsJlCVPY0XSMgLJL0Hnww/c1",
        "$6$salt$IxDD3jeSOb5eB1CX5LBsqZFVkJdido3OUILO5Ifz5iwMuTS4XMS130MTSuDDl3aCI6WouIL9AjRbLCelDCy.g.",
        "{PLAIN}password",
        "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
        "{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0",
    ];

    #[test]
    fn the_right_password_fits_and_another_does_not() {
        for stored in STORED {
            assert!(fits(b"password", stored.as_bytes()), "{stored}");
            assert!(!fits(b"passwore", stored.as_bytes()), "{stored}");
            assert!(!fits(b"", stored.as_bytes()), "{stored}");
        }
    }

    #[test]
    fn rounds_are_taken_over() {
        for (password, stored) in [
            ("Hello world!", "$5$rounds=10000$saltstringsaltst$3xv.VbSHBb41AL9AvLeujZkZRBAwqFMz2.opqey6IcA"),
            (
                "x",
                "$6$rounds=1400$ab$JENsKGE2rEm6u2xsLDYgDnQ5pGCHobD9hWX2pTjvUO9aZLF.mWlkw94zDSmVUWk94G16NmKSAQBodbnaGxzAy/",
            ),
            ("password", "$5$rounds=1000$ab$1w1vy5uCLDQWfIMwmaMatnSGmBa34fZnvo3JO2w3CP1"),
            // A character that is none of crypt's digits.
            (
                "password",
                "$6$a_b$hhCsXmgcoK4yqye.m2zFWMzqRrXoVr0NTPOeDpeQSI8QGGckE.bX/3yyHOuIFHLUSGa0HasPOphk7LpkKK5n7/",
            ),
        ] {
            assert!(fits(password.as_bytes(), stored.as_bytes()), "{stored}");
            assert!(!fits(b"y", stored.as_bytes()), "{stored}");
        }
    }

    #[test]
    fn des_takes_eight_characters() {
        assert!(fits(b"long password", b"zZ7mHENEUj2fU"));
        assert!(fits(b"long pas", b"zZ7mHENEUj2fU"));
        assert!(!fits(b"long pa", b"zZ7mHENEUj2fU"));
    }

    #[test]
    fn bcrypt_is_known() {
        let stored = b"$2y$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu";
        assert!(fits(b"password", stored));
        assert!(!fits(b"other", stored));
    }

    #[test]
    fn what_is_broken_fits_nothing() {
        for stored in ["", "x", "$1$", "$apr1$", "$5$", "$6$", "$2y$", "$y$j9T$x", "{SSHA}", "{SSHA}Zm9vCg==", "{SHA}"]
        {
            assert!(!fits(b"1", stored.as_bytes()), "{stored}");
            assert!(!fits(b"", stored.as_bytes()), "{stored}");
        }
    }
}
