//! Whether to believe a certificate: a chain to a trusted one, as OpenSSL builds and checks it (X509_verify_cert without
//! partial chains), with OpenSSL's numbers and texts for what is wrong. webpki is stricter than what operators run today
//! (certificates of version 1, a server's own certificate as the trusted one), so only name constraints are left to it.

use super::certificate;
use super::der::{BadDer, Der, tag};
use super::names;
use super::x509::{Certificate, time};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

/// Longest chain that is looked at: longer ones are refused whatever `ssl_verify_depth` says.
const MAX_CHAIN: usize = 32;

/// Object identifiers of extensions, all below 2.5.29.
mod oid {
    pub(super) const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
    pub(super) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 17];
    pub(super) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
    pub(super) const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 30];
    pub(super) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
    /// May be critical without being looked at: key identifiers, issuer's other names, CRL places, policies.
    pub(super) const HARMLESS: [&[u8]; 8] = [
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
    pub(super) const KEY_PURPOSE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3];
}

/// Bits of the extension keyUsage, in its first byte.
mod usage {
    pub(super) const SIGNATURE: u8 = 0x80;
    pub(super) const ENCIPHERMENT: u8 = 0x20;
    pub(super) const AGREEMENT: u8 = 0x08;
    pub(super) const CERTIFICATES: u8 = 0x04;
    pub(super) const CRLS: u8 = 0x02;
}

/// What is wrong with a certificate: OpenSSL's number (`X509_V_ERR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u16);

impl Failure {
    const ISSUER: Failure = Failure(2);
    const NO_CRL: Failure = Failure(3);
    const SIGNATURE: Failure = Failure(7);
    const CRL_SIGNATURE: Failure = Failure(8);
    const NOT_YET: Failure = Failure(9);
    const EXPIRED: Failure = Failure(10);
    const CRL_NOT_YET: Failure = Failure(11);
    const CRL_EXPIRED: Failure = Failure(12);
    const SELF_SIGNED: Failure = Failure(18);
    const SELF_SIGNED_IN_CHAIN: Failure = Failure(19);
    const LOCAL_ISSUER: Failure = Failure(20);
    const LEAF_SIGNATURE: Failure = Failure(21);
    const TOO_LONG: Failure = Failure(22);
    const REVOKED: Failure = Failure(23);
    const NO_CA: Failure = Failure(79);
    const PATH_LENGTH: Failure = Failure(25);
    const PURPOSE: Failure = Failure(26);
    const CRITICAL: Failure = Failure(34);
    const NO_CRL_SIGN: Failure = Failure(35);
    const CRL_CRITICAL: Failure = Failure(36);
    const NAME_CONSTRAINT: Failure = Failure(47);

    /// OpenSSL's text for it.
    pub fn text(self) -> &'static str {
        match self.0 {
            2 => "unable to get issuer certificate",
            3 => "unable to get certificate CRL",
            7 => "certificate signature failure",
            8 => "CRL signature failure",
            9 => "certificate is not yet valid",
            10 => "certificate has expired",
            11 => "CRL is not yet valid",
            12 => "CRL has expired",
            18 => "self-signed certificate",
            19 => "self-signed certificate in certificate chain",
            20 => "unable to get local issuer certificate",
            21 => "unable to verify the first certificate",
            22 => "certificate chain too long",
            23 => "certificate revoked",
            79 => "invalid CA certificate",
            25 => "path length constraint exceeded",
            26 => "unsuitable certificate purpose",
            34 => "unhandled critical extension",
            35 => "key usage does not include CRL signing",
            36 => "unhandled critical CRL extension",
            47 => "permitted subtree violation",
            _ => "unspecified certificate verification error",
        }
    }

    /// The certificate, or one that it stands on, is not valid yet or no more.
    pub fn is_about_time(self) -> bool {
        self == Failure::NOT_YET || self == Failure::EXPIRED
    }

    /// The certificate was revoked.
    pub fn is_revoked(self) -> bool {
        self == Failure::REVOKED
    }

    /// `optional_no_ca`: only the issuer is unknown (`ngx_ssl_verify_error_optional`).
    pub fn is_unknown_issuer(self) -> bool {
        matches!(self.0, 18..=21 | 27)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0, self.text())
    }
}

/// What a certificate is to be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be a client.
    Client,
    /// To be a server.
    Server,
}

/// Whom to believe.
#[derive(Debug)]
pub struct Trust {
    certificates: Vec<CertificateDer<'static>>,
    by_subject: HashMap<Box<[u8]>, Vec<usize>>,
    crls: Vec<Crl>,
    /// Certificates that may stand between the first and the trusted one.
    depth: usize,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
struct Crl {
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

impl Trust {
    /// Believes in these certificates; the texts of revocation lists are PEM.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        crls: &[u8],
        depth: usize,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Result<Trust, String> {
        let mut by_subject: HashMap<Box<[u8]>, Vec<usize>> = HashMap::new();
        for (i, der) in certificates.iter().enumerate() {
            if let Ok(c) = Certificate::parse(der) {
                by_subject.entry(c.subject.into()).or_default().push(i);
            }
        }
        let crls = parse_crls(crls)?;
        Ok(Trust { certificates, by_subject, crls, depth, algorithms })
    }

    /// The names of the trusted, for clients to choose a certificate by.
    pub fn subjects(certificates: &[CertificateDer<'static>]) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for der in certificates {
            if let Ok(c) = Certificate::parse(der)
                && !all.iter().any(|s| s == c.subject)
            {
                all.push(c.subject.to_vec());
            }
        }
        all
    }

    /// Checks a chain as the other side sent it, its own certificate first.
    pub fn verify(&self, sent: &[CertificateDer<'_>], purpose: Purpose, now_s: i64) -> Result<(), Failure> {
        let sent: Vec<Certificate<'_>> =
            sent.iter().take(MAX_CHAIN).filter_map(|d| Certificate::parse(d).ok()).collect();
        let chain = self.build(&sent)?;
        if chain.len().saturating_sub(2) > self.depth {
            return Err(Failure::TOO_LONG);
        }
        // As in OpenSSL all is looked at, and the last thing found is told.
        let mut result = check_extensions(&chain, purpose);
        result = self.check_names(&chain, purpose, now_s).err().map_or(result, Err);
        if !self.crls.is_empty() {
            for (i, c) in chain.iter().enumerate() {
                result = self.check_revocation(c, chain.get(i + 1).unwrap_or(c), now_s).err().map_or(result, Err);
            }
        }
        for c in chain.iter().rev() {
            if now_s < c.not_before {
                result = Err(Failure::NOT_YET);
            }
            if now_s > c.not_after {
                result = Err(Failure::EXPIRED);
            }
        }
        result
    }

    /// The chain from the first certificate to a trusted one that signed itself.
    fn build<'c>(&'c self, sent: &[Certificate<'c>]) -> Result<Vec<Certificate<'c>>, Failure> {
        let mut chain = vec![*sent.first().ok_or(Failure::LEAF_SIGNATURE)?];
        let mut trusted = false;
        while chain.len() <= MAX_CHAIN {
            let last = chain[chain.len() - 1];
            if last.subject == last.issuer && self.signed(&last, &last) {
                return match (self.is_trusted(&last), chain.len()) {
                    (true, _) => Ok(chain),
                    (false, 1) => Err(Failure::SELF_SIGNED),
                    (false, _) => Err(Failure::SELF_SIGNED_IN_CHAIN),
                };
            }
            let fits = |c: &Certificate<'_>| {
                c.subject == last.issuer && !chain.iter().any(|seen| seen.der == c.der) && self.signed(&last, c)
            };
            let known = self.by_subject.get(last.issuer).into_iter().flatten();
            let known = known.filter_map(|i| Certificate::parse(&self.certificates[*i]).ok()).find(|c| fits(c));
            let next = match known {
                Some(c) => {
                    trusted = true;
                    Some(c)
                }
                // Whoever a trusted one names is not believed for it.
                None if trusted => None,
                None => sent.iter().skip(1).find(|c| fits(c)).copied(),
            };
            match next {
                Some(c) => chain.push(c),
                None if chain.len() == 1 => return Err(Failure::LEAF_SIGNATURE),
                None if trusted => return Err(Failure::ISSUER),
                None => return Err(Failure::LOCAL_ISSUER),
            }
        }
        Err(Failure::TOO_LONG)
    }

    fn is_trusted(&self, c: &Certificate<'_>) -> bool {
        self.by_subject.get(c.subject).into_iter().flatten().any(|i| *self.certificates[*i] == *c.der)
    }

    /// Whether `issuer` has signed `c`.
    fn signed(&self, c: &Certificate<'_>, issuer: &Certificate<'_>) -> bool {
        self.check_signature(issuer.spki, c.algorithm, c.tbs, c.signature).is_ok()
    }

    fn check_signature(&self, spki: &[u8], algorithm: &[u8], message: &[u8], signature: &[u8]) -> Result<(), Failure> {
        let (key_algorithm, key) = key(spki).map_err(|_| Failure::SIGNATURE)?;
        let fitting =
            self.algorithms.all.iter().filter(|a| {
                a.signature_alg_id().as_ref() == algorithm && a.public_key_alg_id().as_ref() == key_algorithm
            });
        for a in fitting {
            if a.verify_signature(key, message, signature).is_ok() {
                return Ok(());
            }
        }
        Err(Failure::SIGNATURE)
    }

    /// Name constraints, where there are any.
    fn check_names(&self, chain: &[Certificate<'_>], purpose: Purpose, now_s: i64) -> Result<(), Failure> {
        if !chain.iter().any(|c| c.extension(oid::NAME_CONSTRAINTS).is_some()) {
            return Ok(());
        }
        let refused = |_| Failure::NAME_CONSTRAINT;
        let owned = |c: &Certificate<'_>| CertificateDer::from(c.der.to_vec());
        let (leaf, root) = (owned(&chain[0]), owned(&chain[chain.len() - 1]));
        let between: Vec<_> = chain[1..chain.len() - 1].iter().map(owned).collect();
        let leaf = webpki::EndEntityCert::try_from(&leaf).map_err(refused)?;
        let anchor = webpki::anchor_from_trusted_cert(&root).map_err(refused)?;
        let usage = match purpose {
            Purpose::Client => webpki::KeyUsage::client_auth(),
            Purpose::Server => webpki::KeyUsage::server_auth(),
        };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now_s.max(0) as u64));
        let anchors = [anchor];
        let path = leaf.verify_for_usage(self.algorithms.all, &anchors, &between, now, usage, None, None);
        match path {
            Ok(_) => Ok(()),
            // Its own check of the time has a number of its own here.
            Err(webpki::Error::CertExpired { .. }) => Err(Failure::EXPIRED),
            Err(webpki::Error::CertNotValidYet { .. }) => Err(Failure::NOT_YET),
            Err(e) => Err(refused(e)),
        }
    }

    fn check_revocation(&self, c: &Certificate<'_>, issuer: &Certificate<'_>, now_s: i64) -> Result<(), Failure> {
        let crl = self.crls.iter().filter(|l| l.issuer == c.issuer).max_by_key(|l| l.this_update);
        let crl = crl.ok_or(Failure::NO_CRL)?;
        if crl.unhandled {
            return Err(Failure::CRL_CRITICAL);
        }
        if key_usage(issuer).is_some_and(|u| u & usage::CRLS == 0) {
            return Err(Failure::NO_CRL_SIGN);
        }
        if crl.signer.get().is_none_or(|k| k != issuer.spki) {
            let checked = self.check_signature(issuer.spki, &crl.algorithm, &crl.tbs, &crl.signature);
            checked.map_err(|_| Failure::CRL_SIGNATURE)?;
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
}

fn check_extensions(chain: &[Certificate<'_>], purpose: Purpose) -> Result<(), Failure> {
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
    if key_usage(c).is_some_and(|u| u & usage::CERTIFICATES == 0) {
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

fn check_purpose(c: &Certificate<'_>, is_ca: bool, purpose: Purpose) -> Result<(), Failure> {
    if let Some(value) = c.extension(oid::EXTENDED_KEY_USAGE) {
        let number = match purpose {
            Purpose::Server => 1,
            Purpose::Client => 2,
        };
        let mut list = Der::new(value).sequence().map_err(|_| Failure::PURPOSE)?;
        let mut meant = false;
        while !list.is_empty() {
            let oid = list.expect(tag::OID).map_err(|_| Failure::PURPOSE)?;
            meant |= oid.strip_prefix(oid::KEY_PURPOSE) == Some(&[number]);
        }
        if !meant {
            return Err(Failure::PURPOSE);
        }
    }
    if is_ca {
        return Ok(());
    }
    let wanted = match purpose {
        Purpose::Client => usage::SIGNATURE | usage::AGREEMENT,
        Purpose::Server => usage::SIGNATURE | usage::ENCIPHERMENT | usage::AGREEMENT,
    };
    if key_usage(c).is_some_and(|u| u & wanted == 0) { Err(Failure::PURPOSE) } else { Ok(()) }
}

/// The first byte of keyUsage.
fn key_usage(c: &Certificate<'_>) -> Option<u8> {
    let value = c.extension(oid::KEY_USAGE)?;
    // Without a single bit nothing is allowed.
    Some(Der::new(value).expect(tag::BIT_STRING).ok().and_then(|b| b.get(1).copied()).unwrap_or(0))
}

/// A public key: its algorithm without head, and the key itself.
fn key(spki: &[u8]) -> Result<(&[u8], &[u8]), BadDer> {
    let mut spki = Der::new(spki).sequence()?;
    let algorithm = spki.expect(tag::SEQUENCE)?;
    Ok((algorithm, spki.bit_string()?))
}

fn parse_crls(text: &[u8]) -> Result<Vec<Crl>, String> {
    let sections = super::pem::sections(text).map_err(|_| "PEM_read_bio_X509_CRL() failed (SSL: bad base64 decode)")?;
    let lists = sections.into_iter().filter(|s| s.label == "X509 CRL");
    lists
        .map(|s| parse_crl(&s.der).map_err(|_| "PEM_read_bio_X509_CRL() failed (SSL: nested asn1 error)".into()))
        .collect()
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

/// Whether a certificate is one for this host (`X509_check_host`): its other names, or, without any of a host, the name
/// of its subject.
pub fn is_for_host(der: &[u8], host: &[u8]) -> bool {
    let Ok(c) = Certificate::parse(der) else { return false };
    let mut any = false;
    let mut names =
        c.extension(oid::SUBJECT_ALT_NAME).and_then(|v| Der::new(v).sequence().ok()).unwrap_or(Der::new(b""));
    while let Ok((kind, name, _)) = names.any() {
        // [2] is a DNS name.
        if kind == 0x82 {
            any = true;
            if matches_host(name, host) {
                return true;
            }
        }
    }
    !any && names::common_names(c.subject).iter().any(|n| matches_host(n, host))
}

/// `*` stands for the first label, or a part of it; at least two labels must follow.
fn matches_host(pattern: &[u8], host: &[u8]) -> bool {
    let host = host.strip_prefix(b".").unwrap_or(host);
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(star) = pattern.iter().position(|b| *b == b'*') else { return false };
    let Some(dot) = pattern.iter().position(|b| *b == b'.') else { return false };
    let rest = &pattern[dot..];
    if star > dot
        || rest.contains(&b'*')
        || rest.iter().filter(|b| **b == b'.').count() < 2
        || pattern.starts_with(b"xn--")
    {
        return false;
    }
    let (before, after) = (&pattern[..star], &pattern[star + 1..dot]);
    let Some(host_dot) = host.iter().position(|b| *b == b'.') else { return false };
    let (label, host_rest) = host.split_at(host_dot);
    host_rest.eq_ignore_ascii_case(rest)
        && label.len() >= before.len() + after.len() + usize::from(before.is_empty() && after.is_empty())
        && label[..before.len()].eq_ignore_ascii_case(before)
        && label[label.len() - after.len()..].eq_ignore_ascii_case(after)
}

/// Checks what a certificate's owner signed in a handshake. Unlike webpki's it takes certificates of version 1.
pub fn handshake_signature(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    cert: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    tls13: bool,
) -> Result<HandshakeSignatureValid, Error> {
    let bad = |e| Error::InvalidCertificate(e);
    let old = matches!(
        signed.scheme,
        SignatureScheme::RSA_PKCS1_SHA256 | SignatureScheme::RSA_PKCS1_SHA384 | SignatureScheme::RSA_PKCS1_SHA512
    );
    let cert = Certificate::parse(cert).map_err(|_| bad(CertificateError::BadEncoding))?;
    let (key_algorithm, key) = key(cert.spki).map_err(|_| bad(CertificateError::BadEncoding))?;
    let known = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let known = known.filter(|_| !(tls13 && old)).map_or(&[][..], |(_, list)| list);
    // Since TLS 1.3 a scheme stands for one curve: the first of those.
    let known = if tls13 { &known[..known.len().min(1)] } else { known };
    let mut fitting = known.iter().filter(|a| a.public_key_alg_id().as_ref() == key_algorithm);
    if fitting.any(|a| a.verify_signature(key, message, signed.signature()).is_ok()) {
        return Ok(HandshakeSignatureValid::assertion());
    }
    Err(bad(CertificateError::BadSignature))
}

/// Loads trusted certificates by their names in the configuration.
pub fn load(
    read: certificate::Read<'_>,
    prefix: &std::path::Path,
    name: &[u8],
) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = certificate::content(read, prefix, name).and_then(|t| certificate::chain(&t));
    text.map_err(|e| format!("cannot load certificate \"{}\": {e}", certificate::shown(name)))
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
