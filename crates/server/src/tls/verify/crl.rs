//! Revocation lists (RFC 5280 section 5).

use super::failure::Failure;
use super::signature;
use super::usage::{self, key_usage};
use crate::tls::der::{BadDer, Der, tag};
use crate::tls::x509::{Certificate, time};
use rustls::crypto::WebPkiSupportedAlgorithms;
use std::collections::HashSet;
use std::sync::OnceLock;

/// A list.
#[derive(Clone, Debug)]
pub(super) struct Crl {
    tbs: Vec<u8>,
    issuer: Vec<u8>,
    this_update: i64,
    next_update: Option<i64>,
    revoked: HashSet<Box<[u8]>>,
    algorithm: Vec<u8>,
    signature: Vec<u8>,
    /// Has critical extensions.
    unhandled: bool,
    /// The key that was found to have signed it.
    signer: OnceLock<Vec<u8>>,
}

/// Whether a certificate stands on no list of its issuer. There must be a list.
pub(super) fn check(
    crls: &[Crl],
    algorithms: &WebPkiSupportedAlgorithms,
    c: &Certificate<'_>,
    issuer: &Certificate<'_>,
    now_s: i64,
) -> Result<(), Failure> {
    let crl = crls.iter().filter(|l| l.issuer == c.issuer).max_by_key(|l| l.this_update);
    let crl = crl.ok_or(Failure::NO_CRL)?;
    if crl.unhandled {
        return Err(Failure::CRL_CRITICAL);
    }
    if key_usage(issuer).is_some_and(|u| u & usage::bits::CRLS == 0) {
        return Err(Failure::NO_CRL_SIGN);
    }
    if crl.signer.get().is_none_or(|k| k != issuer.spki) {
        if !signature::is_good(algorithms, issuer.spki, &crl.algorithm, &crl.tbs, &crl.signature) {
            return Err(Failure::CRL_SIGNATURE);
        }
        let _ = crl.signer.set(issuer.spki.to_vec());
    }
    if crl.revoked.contains(c.serial) {
        return Err(Failure::REVOKED);
    }
    if now_s < crl.this_update {
        return Err(Failure::CRL_NOT_YET);
    }
    if crl.next_update.is_some_and(|t| now_s > t) {
        return Err(Failure::CRL_EXPIRED);
    }
    Ok(())
}

/// The lists of a text, PEM. A text without any is an error: it would let everybody in.
pub(super) fn parse(text: &[u8]) -> Result<Vec<Crl>, String> {
    let sections =
        crate::tls::pem::sections(text).map_err(|_| "PEM_read_bio_X509_CRL() failed (SSL: bad base64 decode)")?;
    let lists = sections.into_iter().filter(|s| s.label == "X509 CRL");
    let lists: Vec<Crl> = lists
        .map(|s| parse_crl(&s.der).map_err(|_| "PEM_read_bio_X509_CRL() failed (SSL: nested asn1 error)"))
        .collect::<Result<_, _>>()?;
    if lists.is_empty() {
        return Err("PEM_read_bio_X509_CRL() failed (SSL: error:0480006C:PEM routines::no start line)".to_owned());
    }
    Ok(lists)
}

fn parse_crl(der: &[u8]) -> Result<Crl, BadDer> {
    let mut outer = Der::new(der).sequence()?;
    let tbs = outer.whole_sequence()?;
    let algorithm = outer.expect(tag::SEQUENCE)?;
    let signature = outer.bit_string()?;
    let mut t = Der::new(tbs).sequence()?;
    t.optional(tag::INTEGER)?;
    t.expect(tag::SEQUENCE)?;
    let issuer = t.whole_sequence()?;
    let this_update = time(&mut t)?;
    let next_update = match t.peek() {
        Some(tag::UTC_TIME | tag::GENERALIZED_TIME) => Some(time(&mut t)?),
        _ => None,
    };
    let mut revoked = HashSet::new();
    if let Some(list) = t.optional(tag::SEQUENCE)? {
        let mut list = Der::new(list);
        while !list.is_empty() {
            revoked.insert(list.sequence()?.expect(tag::INTEGER)?.into());
        }
    }
    let mut unhandled = false;
    if let Some(extensions) = t.optional(0xa0)? {
        let mut extensions = Der::new(extensions).sequence()?;
        while !extensions.is_empty() {
            let mut e = extensions.sequence()?;
            e.expect(tag::OID)?;
            unhandled |= e.optional(tag::BOOLEAN)?.is_some_and(|b| b != [0]);
        }
    }
    Ok(Crl {
        tbs: tbs.to_vec(),
        issuer: issuer.to_vec(),
        this_update,
        next_update,
        revoked,
        algorithm: algorithm.to_vec(),
        signature: signature.to_vec(),
        unhandled,
        signer: OnceLock::new(),
    })
}
