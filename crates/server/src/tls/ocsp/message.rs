//! Questions and answers of OCSP (RFC 6960), and whether an answer is to be believed. Knows no socket and no clock.

use crate::tls::der::{BadDer, Der, tag, write};
use crate::tls::verify::{has_purpose, signature};
use crate::tls::x509::{Certificate, time};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::crypto::WebPkiSupportedAlgorithms;

/// SHA-1 as an algorithm (RFC 3279), with its head: what responders know certificates by.
const SHA1: &[u8] = &[0x30, 9, tag::OID, 5, 0x2b, 0x0e, 3, 2, 0x1a, 5, 0];
/// id-pkix-ocsp-basic
const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
/// The extension authorityInfoAccess, and id-ad-ocsp in it.
const INFORMATION_ACCESS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
const OCSP_ACCESS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1];
/// `uniformResourceIdentifier [6]`
const URI: u8 = 0x86;
/// id-kp-OCSPSigning, its last byte.
const OCSP_SIGNING: u8 = 9;
/// How far clocks may differ, in seconds: nginx's.
const SKEW_S: i64 = 300;
/// Certificates that come with an answer and are looked at.
const MAX_SIGNERS: usize = 8;

/// What a responder says of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It stands.
    Good,
    /// It does not.
    Revoked,
    /// The responder does not know it.
    Unknown,
}

impl Status {
    /// Its name in log lines.
    pub fn name(self) -> &'static str {
        match self {
            Status::Good => "good",
            Status::Revoked => "revoked",
            Status::Unknown => "unknown",
        }
    }
}

/// What was found in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The status.
    pub status: Status,
    /// Until when it holds, Unix seconds.
    pub valid_s: i64,
}

/// A certificate as responders know it: `CertID`, DER.
pub fn identifier(certificate: &Certificate<'_>, issuer: &Certificate<'_>) -> Result<Vec<u8>, BadDer> {
    let mut key = Der::new(issuer.spki).sequence()?;
    key.sequence()?;
    let sha1 = |bytes: &[u8]| write(tag::OCTET_STRING, &[digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref()]);
    let serial = write(tag::INTEGER, &[certificate.serial]);
    Ok(write(tag::SEQUENCE, &[SHA1, &sha1(certificate.issuer), &sha1(key.bit_string()?), &serial]))
}

/// The question about one certificate, DER.
pub fn question(identifier: &[u8]) -> Vec<u8> {
    let list = write(tag::SEQUENCE, &[&write(tag::SEQUENCE, &[identifier])]);
    write(tag::SEQUENCE, &[&write(tag::SEQUENCE, &[&list])])
}

/// The address of the responder that a certificate names.
pub fn responder<'a>(certificate: &Certificate<'a>) -> Option<&'a str> {
    let mut all = Der::new(certificate.extension(INFORMATION_ACCESS)?).sequence().ok()?;
    while let Ok(mut access) = all.sequence() {
        if access.expect(tag::OID).ok()? == OCSP_ACCESS
            && let Ok((URI, uri, _)) = access.any()
        {
            return std::str::from_utf8(uri).ok();
        }
    }
    None
}

/// An answer, taken apart as far as anything here asks.
struct Answer<'a> {
    /// What is signed.
    signed: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
    /// Certificates that came with it, DER.
    certificates: Vec<&'a [u8]>,
    /// Single answers.
    answers: Der<'a>,
}

fn parse(der: &[u8]) -> Result<Answer<'_>, String> {
    let bad = |BadDer| "d2i_OCSP_RESPONSE() failed".to_owned();
    let mut response = Der::new(der).sequence().map_err(bad)?;
    let status = response.expect(tag::ENUMERATED).map_err(bad)?;
    if status != [0] {
        return Err(format!("OCSP response not successful ({})", status.last().copied().unwrap_or_default()));
    }
    basic(response).map_err(|BadDer| "OCSP_response_get1_basic() failed".to_owned())
}

/// BasicOCSPResponse (RFC 6960 section 4.2.1).
fn basic(mut response: Der<'_>) -> Result<Answer<'_>, BadDer> {
    let mut bytes = Der::new(response.expect(tag::EXPLICIT_0)?).sequence()?;
    if bytes.expect(tag::OID)? != BASIC {
        return Err(BadDer);
    }
    let mut basic = Der::new(bytes.expect(tag::OCTET_STRING)?).sequence()?;
    let signed = basic.whole_sequence()?;
    let algorithm = basic.expect(tag::SEQUENCE)?;
    let signature = basic.bit_string()?;
    let mut certificates = Vec::new();
    if let Some(list) = basic.optional(tag::EXPLICIT_0)? {
        let mut list = Der::new(list).sequence()?;
        while !list.is_empty() && certificates.len() < MAX_SIGNERS {
            certificates.push(list.whole_sequence()?);
        }
    }
    let mut data = Der::new(signed).sequence()?;
    data.optional(tag::EXPLICIT_0)?;
    // The responder's name, or the digest of its key: whoever signed is found by the signature.
    data.any()?;
    time(&mut data)?;
    Ok(Answer { signed, algorithm, signature, certificates, answers: data.sequence()? })
}

impl Answer<'_> {
    /// What it says of a certificate.
    fn find(&self, identifier: &[u8], now_s: i64) -> Result<Judged, String> {
        let mut answers = self.answers;
        let bad = |BadDer| "OCSP_response_get1_basic() failed".to_owned();
        while !answers.is_empty() {
            let mut single = answers.sequence().map_err(bad)?;
            if single.whole_sequence().map_err(bad)? != identifier {
                continue;
            }
            let (kind, _, _) = single.any().map_err(bad)?;
            let status = match kind & 0x1f {
                0 => Status::Good,
                1 => Status::Revoked,
                _ => Status::Unknown,
            };
            let since = time(&mut single).map_err(bad)?;
            let next = single.optional(tag::EXPLICIT_0).map_err(bad)?;
            let until = next.map(|t| time(&mut Der::new(t))).transpose().map_err(bad)?;
            if since > now_s + SKEW_S || until.is_some_and(|t| t < now_s - SKEW_S || t < since) {
                return Err("OCSP_check_validity() failed".to_owned());
            }
            return Ok(Judged { status, valid_s: until.unwrap_or(i64::MAX) });
        }
        Err("certificate status not found in the OCSP response".to_owned())
    }

    /// Whether it was signed by the certificate's issuer, or by somebody whom the issuer made for it (RFC 6960 section 4.2.2.2).
    fn is_signed(&self, algorithms: &WebPkiSupportedAlgorithms, issuer: &Certificate<'_>, now_s: i64) -> bool {
        let by = |spki: &[u8]| signature::is_good(algorithms, spki, self.algorithm, self.signed, self.signature);
        if by(issuer.spki) {
            return true;
        }
        let signers = self.certificates.iter().filter_map(|der| Certificate::parse(der).ok());
        let mut made_for_it = signers.filter(|c| {
            c.issuer == issuer.subject
                && (c.not_before..=c.not_after).contains(&now_s)
                && has_purpose(c, OCSP_SIGNING) == Ok(Some(true))
                && signature::is_good(algorithms, issuer.spki, c.algorithm, c.tbs, c.signature)
        });
        made_for_it.any(|c| by(c.spki))
    }
}

/// What an answer says of a certificate. `issuer`: who must have signed it; without, that is left to whoever is shown it.
/// Errors are nginx's texts.
pub fn check(
    der: &[u8],
    identifier: &[u8],
    issuer: Option<(&Certificate<'_>, &WebPkiSupportedAlgorithms)>,
    now_s: i64,
) -> Result<Judged, String> {
    let answer = parse(der)?;
    if let Some((issuer, algorithms)) = issuer
        && !answer.is_signed(algorithms, issuer, now_s)
    {
        return Err("OCSP_basic_verify() failed".to_owned());
    }
    answer.find(identifier, now_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_795_207_269;

    fn date(text: &str) -> Vec<u8> {
        write(tag::GENERALIZED_TIME, &[text.as_bytes()])
    }

    /// An answer that nobody signed.
    fn answer(identifier: &[u8], status: u8, until: &str) -> Vec<u8> {
        let status = write(0x80 | status, &[]);
        let until = write(tag::EXPLICIT_0, &[&date(until)]);
        let single = write(tag::SEQUENCE, &[identifier, &status, &date("20261120000000Z"), &until]);
        let list = write(tag::SEQUENCE, &[&single]);
        let key = write(0xa2, &[&write(tag::OCTET_STRING, &[&[1; 20]])]);
        let data = write(tag::SEQUENCE, &[&key, &date("20261120000000Z"), &list]);
        let algorithm = write(tag::SEQUENCE, &[&write(tag::OID, &[&[0x2a]])]);
        let basic = write(tag::SEQUENCE, &[&data, &algorithm, &write(tag::BIT_STRING, &[&[0, 1]])]);
        let bytes = [write(tag::OID, &[BASIC]), write(tag::OCTET_STRING, &[&basic])].concat();
        let bytes = write(tag::EXPLICIT_0, &[&write(tag::SEQUENCE, &[&bytes])]);
        write(tag::SEQUENCE, &[&write(tag::ENUMERATED, &[&[0]]), &bytes])
    }

    #[test]
    fn what_is_said_of_one_certificate() {
        let (this, other) = (write(tag::SEQUENCE, &[b"this"]), write(tag::SEQUENCE, &[b"other"]));
        let find = |status, until| check(&answer(&this, status, until), &this, None, NOW);
        let valid_s = NOW - NOW % 86_400 + 86_400;
        assert_eq!(find(0, "20261121000000Z"), Ok(Judged { status: Status::Good, valid_s }));
        assert_eq!(find(1, "20261121000000Z").map(|f| f.status), Ok(Status::Revoked));
        assert_eq!(find(2, "20261121000000Z").map(|f| f.status), Ok(Status::Unknown));
        assert_eq!(find(0, "20261120100000Z"), Err("OCSP_check_validity() failed".to_owned()));
        let wrong = check(&answer(&other, 0, "20261121000000Z"), &this, None, NOW);
        assert_eq!(wrong, Err("certificate status not found in the OCSP response".to_owned()));
        let busy = write(tag::SEQUENCE, &[&write(tag::ENUMERATED, &[&[3]])]);
        assert_eq!(check(&busy, &this, None, NOW), Err("OCSP response not successful (3)".to_owned()));
        let whole = answer(&this, 0, "20261121000000Z");
        for cut in 0..whole.len() {
            assert!(check(&whole[..cut], &this, None, NOW).is_err(), "{cut}");
        }
        // Whatever comes, there is an answer.
        for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut mangled = whole.clone();
            mangled[at] ^= 1 << bit;
            let _ = check(&mangled, &this, None, NOW);
        }
    }
}
