//! Whether to believe a certificate: a chain to a trusted one, as OpenSSL builds and checks it (X509_verify_cert without
//! partial chains), with OpenSSL's numbers and texts for what is wrong. webpki is stricter than what operators run today
//! (certificates of version 1, a server's own certificate as the trusted one), so only name constraints are left to it.

mod constraints;
mod crl;
mod failure;
pub mod host;
pub mod signature;
mod usage;

use super::certificate::{self, Source};
use super::x509::Certificate;
use crl::Crl;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use std::cell::Cell;
use std::collections::HashMap;

pub use failure::Failure;
pub use usage::has_purpose;

/// Longest chain that is looked at: longer ones are refused whatever `ssl_verify_depth` says.
pub(crate) const MAX_CHAIN: usize = 32;
/// Signatures that are looked at for one chain: certificates that all bear one name would make it their square.
const MAX_SIGNATURES: u32 = 100;

/// What a certificate is to be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be a client.
    Client,
    /// To be a server.
    Server,
}

/// Whom to believe.
#[derive(Clone, Debug)]
pub struct Trust {
    certificates: Vec<CertificateDer<'static>>,
    by_subject: HashMap<Box<[u8]>, Vec<usize>>,
    crls: Vec<Crl>,
    /// Certificates that may stand between the first and the trusted one.
    depth: usize,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Trust {
    /// Believes in these certificates; the text of revocation lists is PEM, and without a list in it an error.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        crls: Option<&[u8]>,
        depth: usize,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Result<Trust, String> {
        let mut by_subject: HashMap<Box<[u8]>, Vec<usize>> = HashMap::new();
        for (i, der) in certificates.iter().enumerate() {
            if let Ok(c) = Certificate::parse(der) {
                by_subject.entry(c.subject.into()).or_default().push(i);
            }
        }
        let crls = crls.map_or(Ok(Vec::new()), crl::parse)?;
        Ok(Trust { certificates, by_subject, crls, depth, algorithms })
    }

    /// The same for chains of another length.
    pub fn at_depth(&self, depth: usize) -> Trust {
        Trust { depth, ..self.clone() }
    }

    /// The same with the lists of a file (an empty name: none), whose content is given back.
    pub fn load(
        source: Source<'_>,
        certificates: Vec<CertificateDer<'static>>,
        crl: &[u8],
        depth: usize,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Result<(Trust, Vec<u8>), String> {
        let bad = |e| format!("cannot load CRL \"{}\": {e}", source.shown(crl));
        let text = (!crl.is_empty()).then(|| source.content(crl).map_err(bad)).transpose()?;
        let trust = Trust::new(certificates, text.as_deref(), depth, algorithms).map_err(bad)?;
        Ok((trust, text.unwrap_or_default()))
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

    /// Checks a chain as the other side sent it, its own certificate first. Gives the chain that was found, up to the trusted
    /// certificate.
    pub fn verify<'c>(
        &'c self,
        sent: &'c [CertificateDer<'_>],
        purpose: Purpose,
        now_s: i64,
    ) -> Result<Vec<Certificate<'c>>, Failure> {
        let (leaf, others) = sent.split_first().ok_or(Failure::LEAF_SIGNATURE)?;
        // Others may be anything; the first is the one whose key was used.
        let leaf = Certificate::parse(leaf).map_err(|_| Failure::LEAF_SIGNATURE)?;
        let others: Vec<_> = others.iter().take(MAX_CHAIN).filter_map(|d| Certificate::parse(d).ok()).collect();
        let (chain, built) = self.build(leaf, &others);
        // As in OpenSSL all is looked at, also of a chain that leads nowhere, and the last thing found is told.
        let mut result = usage::check(&chain, purpose).err().map_or(built, Err);
        if !self.crls.is_empty() {
            for (i, c) in chain.iter().enumerate() {
                let issuer = chain.get(i + 1).unwrap_or(c);
                result = crl::check(&self.crls, &self.algorithms, c, issuer, now_s).err().map_or(result, Err);
            }
        }
        if built == Err(Failure::LEAF_SIGNATURE) {
            result = built;
        }
        for c in chain.iter().rev() {
            result = check_time(c, now_s).err().map_or(result, Err);
        }
        if built.is_ok() {
            result = constraints::check(&self.algorithms, &chain, purpose, now_s).err().map_or(result, Err);
        }
        result.map(|()| chain)
    }

    /// The chain from the first certificate to a trusted one that signed itself, or as far as it leads and why no farther.
    fn build<'c>(
        &'c self,
        leaf: Certificate<'c>,
        others: &[Certificate<'c>],
    ) -> (Vec<Certificate<'c>>, Result<(), Failure>) {
        let mut chain = vec![leaf];
        let mut trusted = false;
        let tries = Cell::new(0);
        let signed = |c: &Certificate<'_>, issuer: &Certificate<'_>| {
            tries.set(tries.get() + 1);
            tries.get() <= MAX_SIGNATURES && has_signed(&self.algorithms, issuer, c)
        };
        loop {
            let last = chain[chain.len() - 1];
            if last.subject == last.issuer && signed(&last, &last) {
                let result = match (self.is_trusted(&last), chain.len()) {
                    (true, _) => Ok(()),
                    (false, 1) => Err(Failure::SELF_SIGNED),
                    (false, _) => Err(Failure::SELF_SIGNED_IN_CHAIN),
                };
                return (chain, result);
            }
            let fits = |c: &Certificate<'_>| {
                c.subject == last.issuer && !chain.iter().any(|seen| seen.der == c.der) && signed(&last, c)
            };
            let known = || {
                let all = self.by_subject.get(last.issuer).into_iter().flatten();
                all.filter_map(|i| Certificate::parse(&self.certificates[*i]).ok()).find(|c| fits(c))
            };
            // The first certificate, those between, and no issuer is looked for behind the last of them.
            let next = if chain.len() > self.depth.min(MAX_CHAIN) + 1 {
                None
            } else if let Some(c) = known() {
                trusted = true;
                Some(c)
            } else {
                // Whoever a trusted one names is not believed for it.
                others.iter().find(|c| !trusted && fits(c)).copied()
            };
            match next {
                Some(c) => chain.push(c),
                None if chain.len() == 1 => return (chain, Err(Failure::LEAF_SIGNATURE)),
                None if trusted => return (chain, Err(Failure::ISSUER)),
                None => return (chain, Err(Failure::LOCAL_ISSUER)),
            }
        }
    }

    fn is_trusted(&self, c: &Certificate<'_>) -> bool {
        self.by_subject.get(c.subject).into_iter().flatten().any(|i| *self.certificates[*i] == *c.der)
    }
}

/// Whether `issuer` has signed a certificate.
pub fn has_signed(algorithms: &WebPkiSupportedAlgorithms, issuer: &Certificate<'_>, c: &Certificate<'_>) -> bool {
    signature::is_good(algorithms, issuer.spki, c.algorithm, c.tbs, c.signature)
}

fn check_time(c: &Certificate<'_>, now_s: i64) -> Result<(), Failure> {
    match now_s {
        now if now < c.not_before => Err(Failure::NOT_YET),
        now if now > c.not_after => Err(Failure::EXPIRED),
        _ => Ok(()),
    }
}

/// Loads trusted certificates by their names in the configuration.
pub fn load(source: Source<'_>, name: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = source.content(name).and_then(|text| certificate::chain(&text));
    chain.map_err(|e| format!("cannot load certificate \"{}\": {e}", source.shown(name)))
}
