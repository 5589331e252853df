//! What a certificate may be used for: its extensions, as OpenSSL's `check_chain` reads them.

use super::Purpose;
use super::failure::Failure;
use crate::tls::der::{BadDer, Der, tag};
use crate::tls::x509::Certificate;

/// Object identifiers of extensions, all below 2.5.29.
pub(super) mod oid {
    pub(in super::super) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
    pub(in super::super) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
    pub(in super::super) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
    pub(in super::super) const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 30];
    pub(in super::super) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
    /// May be critical without being looked at: key identifiers, issuer's other names, CRL places, policies.
    pub(in super::super) const HARMLESS: [&[u8]; 8] = [
        &[0x55, 0x1d, 14],
        &[0x55, 0x1d, 18],
        &[0x55, 0x1d, 31],
        &[0x55, 0x1d, 32],
        &[0x55, 0x1d, 33],
        &[0x55, 0x1d, 35],
        &[0x55, 0x1d, 36],
        &[0x55, 0x1d, 54],
    ];
    /// id-kp-serverAuth and id-kp-clientAuth but for the last byte.
    pub(in super::super) const KEY_PURPOSE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3];
}

/// Bits of the extension keyUsage, in its first byte.
pub(super) mod bits {
    pub(in super::super) const SIGNATURE: u8 = 0x80;
    pub(in super::super) const ENCIPHERMENT: u8 = 0x20;
    pub(in super::super) const AGREEMENT: u8 = 0x08;
    pub(in super::super) const CERTIFICATES: u8 = 0x04;
    pub(in super::super) const CRLS: u8 = 0x02;
}

/// Whether each certificate of a chain may do what it does there.
pub(super) fn check(chain: &[Certificate<'_>], purpose: Purpose) -> Result<(), Failure> {
    // Intermediate certificates so far that are not issued by their own subject (RFC 5280 section 6.1.4).
    let mut between = 0;
    for (i, c) in chain.iter().enumerate() {
        for e in c.extensions() {
            let e = e.map_err(|_| Failure::CRITICAL)?;
            let handled = oid::HARMLESS.contains(&e.oid)
                || [
                    oid::KEY_USAGE,
                    oid::SUBJECT_ALT_NAME,
                    oid::BASIC_CONSTRAINTS,
                    oid::NAME_CONSTRAINTS,
                    oid::EXTENDED_KEY_USAGE,
                ]
                .contains(&e.oid);
            if e.critical && !handled {
                return Err(Failure::CRITICAL);
            }
        }
        if i > 0 {
            let limit = check_ca(c)?;
            if limit.is_some_and(|n| between > n) {
                return Err(Failure::PATH_LENGTH);
            }
            if c.subject != c.issuer {
                between += 1;
            }
        }
        check_purpose(c, i > 0, purpose)?;
    }
    Ok(())
}

/// Whether a certificate may issue others; how many may follow it.
fn check_ca(c: &Certificate<'_>) -> Result<Option<u64>, Failure> {
    if key_usage(c).is_some_and(|u| u & bits::CERTIFICATES == 0) {
        return Err(Failure::NO_CA);
    }
    let Some(value) = c.extension(oid::BASIC_CONSTRAINTS) else {
        // Before extensions there was no way to say it; such a one is trusted by name only.
        return if c.version == 0 && c.subject == c.issuer { Ok(None) } else { Err(Failure::NO_CA) };
    };
    let (ca, limit) = basic_constraints(value).map_err(|_| Failure::NO_CA)?;
    if ca { Ok(limit) } else { Err(Failure::NO_CA) }
}

fn basic_constraints(value: &[u8]) -> Result<(bool, Option<u64>), BadDer> {
    let mut sequence = Der::new(value).sequence()?;
    let ca = sequence.optional(tag::BOOLEAN)?.is_some_and(|b| b != [0]);
    let limit = match sequence.optional(tag::INTEGER)? {
        Some([high, ..]) if high & 0x80 != 0 => return Err(BadDer),
        Some(digits) if digits.len() <= 8 => Some(digits.iter().fold(0u64, |n, d| (n << 8) | u64::from(*d))),
        Some(_) => Some(u64::MAX),
        None => None,
    };
    Ok((ca, limit))
}

/// Whether a certificate's extended purposes include one, by the last byte of its identifier (1 server, 2 client, 9 OCSP).
/// `None`: it does not say what it is for.
pub fn has_purpose(c: &Certificate<'_>, number: u8) -> Result<Option<bool>, BadDer> {
    let Some(value) = c.extension(oid::EXTENDED_KEY_USAGE) else { return Ok(None) };
    let mut list = Der::new(value).sequence()?;
    let mut meant = false;
    while !list.is_empty() {
        meant |= list.expect(tag::OID)?.strip_prefix(oid::KEY_PURPOSE) == Some(&[number]);
    }
    Ok(Some(meant))
}

fn check_purpose(c: &Certificate<'_>, is_ca: bool, purpose: Purpose) -> Result<(), Failure> {
    let number = match purpose {
        Purpose::Server => 1,
        Purpose::Client => 2,
    };
    if !matches!(has_purpose(c, number), Ok(None | Some(true))) {
        return Err(Failure::PURPOSE);
    }
    if is_ca {
        return Ok(());
    }
    let wanted = match purpose {
        Purpose::Client => bits::SIGNATURE | bits::AGREEMENT,
        Purpose::Server => bits::SIGNATURE | bits::ENCIPHERMENT | bits::AGREEMENT,
    };
    if key_usage(c).is_some_and(|u| u & wanted == 0) { Err(Failure::PURPOSE) } else { Ok(()) }
}

/// The first byte of keyUsage.
pub(super) fn key_usage(c: &Certificate<'_>) -> Option<u8> {
    let value = c.extension(oid::KEY_USAGE)?;
    // Without a single bit nothing is allowed.
    Some(Der::new(value).expect(tag::BIT_STRING).ok().and_then(|b| b.get(1).copied()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints() {
        assert_eq!(basic_constraints(&[0x30, 0]), Ok((false, None)));
        assert_eq!(basic_constraints(&[0x30, 3, 1, 1, 0xff]), Ok((true, None)));
        assert_eq!(basic_constraints(&[0x30, 6, 1, 1, 0xff, 2, 1, 2]), Ok((true, Some(2))));
        assert!(basic_constraints(&[0x30, 6, 1, 1, 0xff, 2, 1, 0x82]).is_err());
        assert!(basic_constraints(&[0x30]).is_err());
    }
}
