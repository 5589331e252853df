//! Name constraints (RFC 5280 section 4.2.1.10). What certificates say of themselves in other names is left to webpki; the
//! name of the subject, which hosts are compared with where there is no other name, it does not look at.

use super::Purpose;
use super::failure::Failure;
use super::host;
use super::usage::oid;
use crate::tls::der::{BadDer, Der};
use crate::tls::names;
use crate::tls::x509::Certificate;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::Duration;

/// The kind of a name that is a DNS name: `dNSName [2]`.
const DNS_NAME: u8 = 0x82;
/// `permittedSubtrees [0]`, `excludedSubtrees [1]`
const SUBTREES: [u8; 2] = [0xa0, 0xa1];

/// Whether the names of the first certificate are such as those above it may issue.
pub(super) fn check(
    algorithms: &WebPkiSupportedAlgorithms,
    chain: &[Certificate<'_>],
    purpose: Purpose,
    now_s: i64,
) -> Result<(), Failure> {
    let [leaf, between @ .., root] = chain else { return Ok(()) };
    let limits: Vec<&[u8]> = chain[1..].iter().filter_map(|c| c.extension(oid::NAME_CONSTRAINTS)).collect();
    if limits.is_empty() {
        return Ok(());
    }
    check_common_names(leaf, &limits)?;
    check_other_names(algorithms, leaf, between, root, purpose, now_s)
}

fn check_other_names(
    algorithms: &WebPkiSupportedAlgorithms,
    leaf: &Certificate<'_>,
    between: &[Certificate<'_>],
    root: &Certificate<'_>,
    purpose: Purpose,
    now_s: i64,
) -> Result<(), Failure> {
    let refused = |_| Failure::NAME_CONSTRAINT;
    let owned = |c: &Certificate<'_>| CertificateDer::from(c.der.to_vec());
    let (leaf, root) = (owned(leaf), owned(root));
    let between: Vec<_> = between.iter().map(owned).collect();
    let leaf = webpki::EndEntityCert::try_from(&leaf).map_err(refused)?;
    let anchor = webpki::anchor_from_trusted_cert(&root).map_err(refused)?;
    let usage = match purpose {
        Purpose::Client => webpki::KeyUsage::client_auth(),
        Purpose::Server => webpki::KeyUsage::server_auth(),
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now_s.max(0) as u64));
    match leaf.verify_for_usage(algorithms.all, &[anchor], &between, now, usage, None, None) {
        Ok(_) => Ok(()),
        // Its own check of the time has a number of its own here.
        Err(webpki::Error::CertExpired { .. }) => Err(Failure::EXPIRED),
        Err(webpki::Error::CertNotValidYet { .. }) => Err(Failure::NOT_YET),
        Err(e) => Err(refused(e)),
    }
}

/// Without another name of a host the name of the subject counts as one, if it looks like one (OpenSSL's
/// `NAME_CONSTRAINTS_check_CN`).
fn check_common_names(leaf: &Certificate<'_>, limits: &[&[u8]]) -> Result<(), Failure> {
    if host::other_names(leaf).any(|(kind, _)| kind == DNS_NAME) {
        return Ok(());
    }
    let hosts = names::common_names(leaf.subject);
    for name in hosts.iter().filter(|n| n.contains(&b'.')) {
        for limit in limits {
            match allows(limit, name) {
                Ok(true) => {}
                Ok(false) | Err(BadDer) => return Err(Failure::NAME_CONSTRAINT),
            }
        }
    }
    Ok(())
}

/// Whether one certificate's constraints allow a host.
fn allows(limit: &[u8], host: &[u8]) -> Result<bool, BadDer> {
    let mut limit = Der::new(limit).sequence()?;
    let [permitted, excluded] = [subtrees(&mut limit, SUBTREES[0])?, subtrees(&mut limit, SUBTREES[1])?];
    let within = |all: &[&[u8]]| all.iter().any(|base| is_within(host, base));
    Ok((permitted.is_empty() || within(&permitted)) && !within(&excluded))
}

/// The DNS names of a list of subtrees.
fn subtrees<'a>(limit: &mut Der<'a>, tag: u8) -> Result<Vec<&'a [u8]>, BadDer> {
    let mut found = Vec::new();
    let mut all = Der::new(limit.optional(tag)?.unwrap_or_default());
    while !all.is_empty() {
        let (kind, name, _) = all.sequence()?.any()?;
        if kind == DNS_NAME {
            found.push(name);
        }
    }
    Ok(found)
}

fn is_within(host: &[u8], base: &[u8]) -> bool {
    let Some(at) = host.len().checked_sub(base.len()) else { return false };
    let fits = host[at..].eq_ignore_ascii_case(base);
    // All of it, or whole labels of it.
    fits && (at == 0 || base.is_empty() || base[0] == b'.' || host[at - 1] == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_within_subtrees() {
        for (host, base, fits) in [
            ("a.named.org", "named.org", true),
            ("named.org", "Named.org", true),
            ("a.named.org", ".named.org", true),
            ("named.org", ".named.org", false),
            ("unnamed.org", "named.org", false),
            ("other.org", "named.org", false),
            ("other.org", "", true),
        ] {
            assert_eq!(is_within(host.as_bytes(), base.as_bytes()), fits, "{host} {base}");
        }
        // Permitted: named.org; excluded: x.named.org.
        let limit = b"\x30\x1e\xa0\x0d\x30\x0b\x82\x09named.org\xa1\x0d\x30\x0b\x82\x09x.nam.org";
        assert_eq!(allows(limit, b"a.named.org"), Ok(true));
        assert_eq!(allows(limit, b"a.other.org"), Ok(false));
        assert_eq!(allows(b"\x30\x02\xa0\x05", b"a.b"), Err(BadDer));
    }
}
