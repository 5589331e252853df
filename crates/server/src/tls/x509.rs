//! What is read of certificates (RFC 5280): fields as slices of the DER. Decides nothing; `verify` does.

use super::der::{BadDer, Der, tag};
use wire::date::days_from_civil;

/// A certificate, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Certificate<'a> {
    /// All of it.
    pub der: &'a [u8],
    /// What is signed.
    pub tbs: &'a [u8],
    /// 0 is version 1.
    pub version: u8,
    /// The serial number, big-endian with a sign.
    pub serial: &'a [u8],
    /// The name of the issuer, DER with its head.
    pub issuer: &'a [u8],
    /// The name of the subject, DER with its head.
    pub subject: &'a [u8],
    /// When it begins to be valid, seconds since 1970.
    pub not_before: i64,
    /// When it ceases.
    pub not_after: i64,
    /// The public key with its algorithm, DER with its head.
    pub spki: &'a [u8],
    /// The content of the extensions' sequence, empty without any.
    pub extensions: &'a [u8],
    /// The signature's algorithm, without its head.
    pub algorithm: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

/// One extension.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// Its object identifier, without head.
    pub oid: &'a [u8],
    /// Whoever does not know it must not accept the certificate.
    pub critical: bool,
    /// Its content.
    pub value: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Takes DER apart.
    pub fn parse(der: &'a [u8]) -> Result<Certificate<'a>, BadDer> {
        let mut whole = Der::new(der);
        let mut outer = whole.sequence()?;
        let tbs = outer.whole_sequence()?;
        let algorithm = outer.expect(tag::SEQUENCE)?;
        let signature = outer.bit_string()?;
        // What follows would be signed by nobody, and yet be part of a fingerprint.
        if !whole.is_empty() || !outer.is_empty() {
            return Err(BadDer);
        }
        let mut t = Der::new(tbs).sequence()?;
        let version = match t.optional(0xa0)? {
            Some(v) => *Der::new(v).expect(tag::INTEGER)?.last().ok_or(BadDer)?,
            None => 0,
        };
        let serial = t.expect(tag::INTEGER)?;
        // The algorithm once more: inside it is signed (RFC 5280 section 4.1.1.2).
        if t.expect(tag::SEQUENCE)? != algorithm {
            return Err(BadDer);
        }
        let issuer = t.whole_sequence()?;
        let mut validity = t.sequence()?;
        let (not_before, not_after) = (time(&mut validity)?, time(&mut validity)?);
        let subject = t.whole_sequence()?;
        let spki = t.whole_sequence()?;
        let mut extensions: &[u8] = &[];
        while !t.is_empty() {
            let (tag, content, _) = t.any()?;
            if tag == 0xa3 {
                extensions = Der::new(content).expect(tag::SEQUENCE)?;
            }
        }
        Ok(Certificate {
            der,
            tbs,
            version,
            serial,
            issuer,
            subject,
            not_before,
            not_after,
            spki,
            extensions,
            algorithm,
            signature,
        })
    }

    /// The extensions in order; ends with an error where they are broken.
    pub fn extensions(&self) -> impl Iterator<Item = Result<Extension<'a>, BadDer>> + use<'a> {
        let mut der = Der::new(self.extensions);
        std::iter::from_fn(move || {
            let next = (!der.is_empty()).then(|| extension(&mut der))?;
            if next.is_err() {
                der = Der::new(&[]);
            }
            Some(next)
        })
    }

    /// The content of an extension.
    pub fn extension(&self, oid: &[u8]) -> Option<&'a [u8]> {
        self.extensions().map_while(Result::ok).find(|e| e.oid == oid).map(|e| e.value)
    }
}

fn extension<'a>(der: &mut Der<'a>) -> Result<Extension<'a>, BadDer> {
    let mut e = der.sequence()?;
    let oid = e.expect(tag::OID)?;
    let critical = e.optional(tag::BOOLEAN)?.is_some_and(|b| b != [0]);
    Ok(Extension { oid, critical, value: e.expect(tag::OCTET_STRING)? })
}

/// `UTCTime` or `GeneralizedTime` in UTC, as seconds since 1970.
pub fn time(der: &mut Der<'_>) -> Result<i64, BadDer> {
    let (kind, text, _) = der.any()?;
    let text = std::str::from_utf8(text).map_err(|_| BadDer)?.strip_suffix('Z').ok_or(BadDer)?;
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = |range: std::ops::Range<usize>| text.get(range).and_then(|t| t.parse::<i64>().ok()).ok_or(BadDer);
    let (year, rest) = match (kind, text.len()) {
        (tag::UTC_TIME, 12) => {
            let year = number(0..2)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, 2)
        }
        (tag::GENERALIZED_TIME, 14) => (number(0..4)?, 4),
        _ => return Err(BadDer),
    };
    let two = |i: usize| number(rest + 2 * i..rest + 2 * i + 2);
    let (month, day, hour, minute, second) = (two(0)?, two(1)?, two(2)?, two(3)?, two(4)?);
    if !digits || !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return Err(BadDer);
    }
    Ok(days_from_civil(year, month as u8, day as u8) * 86400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_and_what_is_nearly_one() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["a.test".to_owned(), "192.0.2.1".to_owned()]).expect("names");
        let der = params.self_signed(&key).expect("signed").der().to_vec();
        let whole = Certificate::parse(&der).expect("a certificate");
        assert_eq!(crate::tls::verify::host::names(&whole), ["a.test", "192.0.2.1"]);
        assert!(Certificate::parse(&[&der[..], b"x"].concat()).is_err(), "nothing may follow");
        for cut in 0..der.len() {
            assert!(Certificate::parse(&der[..cut]).is_err(), "{cut}");
        }
        for (at, bit) in (0..der.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut mangled = der.clone();
            mangled[at] ^= 1 << bit;
            // Whatever comes, nothing breaks but the certificate.
            if let Ok(c) = Certificate::parse(&mangled) {
                let _ = (crate::tls::verify::host::names(&c), c.extensions().count());
            }
        }
    }

    #[test]
    fn times() {
        let utc = |t: &str| time(&mut Der::new(&[&[tag::UTC_TIME, t.len() as u8][..], t.as_bytes()].concat()));
        assert_eq!(utc("700101000000Z"), Ok(0));
        assert_eq!(utc("000229120000Z"), Ok(951_825_600));
        assert_eq!(utc("491231235959Z"), Ok(2_524_607_999));
        assert_eq!(utc("991301000000Z"), Err(BadDer));
        assert_eq!(utc("990101000000+0100"), Err(BadDer));
        let long = [&[tag::GENERALIZED_TIME, 15][..], b"20500101000000Z"].concat();
        assert_eq!(time(&mut Der::new(&long)), Ok(2_524_608_000));
    }
}
