//! Certificates and their keys, from files or from `data:` in the configuration.

use super::pem::{self, Section};
use super::x509::Certificate;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use rustls::sign::CertifiedKey;
use std::io;
use std::path::Path;

/// Reads a file: while the configuration is read through `Files`, at run time from the disk.
pub type Read<'r> = &'r dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// `data:` before the text itself.
const DATA: &[u8] = b"data:";
/// Labels of certificates.
const CERTIFICATE_LABELS: [&str; 3] = ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"];

/// A name of `ssl_certificate` and the like: a path, or the text itself.
pub fn content(read: Read<'_>, prefix: &Path, name: &[u8]) -> Result<Vec<u8>, String> {
    if let Some(text) = name.strip_prefix(DATA) {
        return Ok(text.to_vec());
    }
    for foreign in ["engine:", "store:"] {
        if name.starts_with(foreign.as_bytes()) {
            return Err(format!("\"{foreign}\" needs OpenSSL, which Ironweir does without"));
        }
    }
    use std::os::unix::ffi::OsStrExt;
    let path = prefix.join(std::ffi::OsStr::from_bytes(name));
    read(&path).map_err(|e| format!("BIO_new_file() failed (SSL: {})", crate::log::os_error(&e)))
}

/// What a message calls a name: `data:` holds what nobody should see in a log.
pub fn shown(name: &[u8]) -> String {
    if name.starts_with(DATA) { "data:...".to_owned() } else { String::from_utf8_lossy(name).into_owned() }
}

/// The certificates of a text, in order. A text without any is an error.
pub fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = || "PEM_read_bio_X509() failed (SSL: error:0480006C:PEM routines::no start line)".to_owned();
    let sections = pem::sections(text).map_err(|_| "PEM_read_bio_X509() failed (SSL: bad base64 decode)".to_owned())?;
    let found = sections.into_iter().filter(|s| CERTIFICATE_LABELS.contains(&s.label.as_str()));
    let chain: Vec<CertificateDer<'static>> = found.map(certificate).collect::<Result<_, _>>()?;
    if chain.is_empty() { Err(bad()) } else { Ok(chain) }
}

/// Trusted certificates of OpenSSL's own form carry more behind the certificate.
fn certificate(section: Section) -> Result<CertificateDer<'static>, String> {
    let (_, _, whole) = super::der::Der::new(&section.der)
        .any()
        .map_err(|_| "PEM_read_bio_X509() failed (SSL: not enough data)".to_owned())?;
    Certificate::parse(whole).map_err(|_| "PEM_read_bio_X509() failed (SSL: nested asn1 error)".to_owned())?;
    Ok(CertificateDer::from(whole.to_vec()))
}

/// The private key of a text, and whether it was locked: then `passwords` are tried in order.
pub fn private_key(text: &[u8], passwords: &[Vec<u8>]) -> Result<(PrivateKeyDer<'static>, bool), String> {
    let failed = |why: &str| format!("PEM_read_bio_PrivateKey() failed (SSL: {why})");
    let sections = pem::sections(text).map_err(|_| failed("bad base64 decode"))?;
    for section in sections {
        let encrypted = section.headers.iter().any(|(n, v)| n == "Proc-Type" && v.ends_with("ENCRYPTED"));
        if encrypted || section.label == "ENCRYPTED PRIVATE KEY" {
            let key = super::password::decrypt(&section, passwords);
            return key.map(|k| (k, true)).map_err(failed);
        }
        if let Some(key) = labelled(&section.label, section.der) {
            return Ok((key, false));
        }
    }
    Err(failed("error:0480006C:PEM routines::no start line:Expecting: ANY PRIVATE KEY"))
}

/// A key by the label of its section.
pub(super) fn labelled(label: &str, der: Vec<u8>) -> Option<PrivateKeyDer<'static>> {
    Some(match label {
        "PRIVATE KEY" => PrivatePkcs8KeyDer::from(der).into(),
        "RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der).into(),
        "EC PRIVATE KEY" => PrivateSec1KeyDer::from(der).into(),
        _ => return None,
    })
}

/// Why a pair of certificate and key is of no use.
pub enum Refused {
    /// The certificate.
    Certificate(String),
    /// The key.
    Key(String),
    /// The two together: key values mismatch.
    Mismatch(String),
}

impl Refused {
    /// nginx's text for it.
    pub fn text(&self, certificate: &[u8], key: &[u8]) -> String {
        match self {
            Refused::Certificate(why) => format!("cannot load certificate \"{}\": {why}", shown(certificate)),
            Refused::Key(why) => format!("cannot load certificate key \"{}\": {why}", shown(key)),
            Refused::Mismatch(why) => format!("SSL_CTX_use_PrivateKey(\"{}\") failed (SSL: {why})", shown(key)),
        }
    }
}

/// A certificate that is ready to be shown.
pub struct Loaded {
    /// With its chain and key.
    pub pair: CertifiedKey,
    /// The key was locked with a password.
    pub locked: bool,
}

/// Loads a certificate with its chain and key.
pub fn load(
    read: Read<'_>,
    prefix: &Path,
    certificate: &[u8],
    key: &[u8],
    passwords: &[Vec<u8>],
    provider: &CryptoProvider,
) -> Result<Loaded, Refused> {
    let chain = content(read, prefix, certificate).and_then(|t| chain(&t)).map_err(Refused::Certificate)?;
    let key = content(read, prefix, key).and_then(|t| private_key(&t, passwords));
    let (key, locked) = key.map_err(Refused::Key)?;
    let key = provider.key_provider.load_private_key(key).map_err(|e| Refused::Key(e.to_string()))?;
    let leaf = Certificate::parse(&chain[0]).map_err(|_| Refused::Certificate("nested asn1 error".to_owned()))?;
    if key.public_key().is_some_and(|spki| !same_key(&spki, leaf.spki)) {
        let text = "error:05800074:x509 certificate routines::key values mismatch";
        return Err(Refused::Mismatch(text.to_owned()));
    }
    Ok(Loaded { pair: CertifiedKey::new(chain, key), locked })
}

/// The same public key, whatever its algorithm is called (RSA keys may be marked for PSS).
fn same_key(a: &[u8], b: &[u8]) -> bool {
    let bits = |spki| {
        let mut spki = super::der::Der::new(spki).sequence().ok()?;
        spki.sequence().ok()?;
        spki.bit_string().ok()
    };
    bits(a).is_some() && bits(a) == bits(b)
}
