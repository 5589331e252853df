//! Certificates and their keys, from files or from `data:` in the configuration.

use super::pem::{self, Section};
use super::x509::Certificate;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use rustls::sign::CertifiedKey;
use std::io;
use std::path::{Path, PathBuf};

/// Reads a file: while the configuration is read through `Files`, at run time from the disk.
pub type Read<'r> = &'r dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// `data:` before the text itself.
const DATA: &[u8] = b"data:";
/// What OpenSSL would find elsewhere.
const FOREIGN: [&str; 2] = ["engine:", "store:"];
/// Labels of certificates.
const CERTIFICATE_LABELS: [&str; 3] = ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"];

/// Where files are, and how they are read.
#[derive(Clone, Copy)]
pub struct Source<'r> {
    /// See [`Read`].
    pub read: Read<'r>,
    /// What relative paths are relative to.
    pub prefix: &'r Path,
}

impl Source<'_> {
    /// What a name of `ssl_certificate` and the like stands for: the content of a file, or the text itself.
    pub fn content(self, name: &[u8]) -> Result<Vec<u8>, String> {
        if let Some(text) = name.strip_prefix(DATA) {
            return Ok(text.to_vec());
        }
        for foreign in FOREIGN {
            if name.starts_with(foreign.as_bytes()) {
                return Err(format!("\"{foreign}\" needs OpenSSL, which Ironweir does without"));
            }
        }
        (self.read)(&self.path(name)).map_err(|e| format!("BIO_new_file() failed (SSL: {})", crate::log::os_error(&e)))
    }

    /// The path of a file.
    pub fn path(self, name: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        self.prefix.join(std::ffi::OsStr::from_bytes(name))
    }

    /// What a message calls a name: the whole path, as in nginx.
    pub fn shown(self, name: &[u8]) -> String {
        match named(name) {
            Some(path) if !FOREIGN.iter().any(|f| path.starts_with(f.as_bytes())) => {
                self.path(path).display().to_string()
            }
            _ => shown(name),
        }
    }
}

/// The name of a file, if it is one.
fn named(name: &[u8]) -> Option<&[u8]> {
    (!name.starts_with(DATA)).then_some(name)
}

/// A name as it stands in the configuration, but `data:` holds what nobody should see in a log.
pub fn shown(name: &[u8]) -> String {
    named(name).map_or_else(|| "data:...".to_owned(), |path| String::from_utf8_lossy(path).into_owned())
}

/// The certificates of a text, in order. A text without any is an error.
pub fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = || "PEM_read_bio_X509_AUX() failed (SSL: error:0480006C:PEM routines::no start line)".to_owned();
    let sections =
        pem::sections(text).map_err(|_| "PEM_read_bio_X509_AUX() failed (SSL: bad base64 decode)".to_owned())?;
    let found = sections.into_iter().filter(|s| CERTIFICATE_LABELS.contains(&s.label.as_str()));
    let chain: Vec<CertificateDer<'static>> = found.map(certificate).collect::<Result<_, _>>()?;
    if chain.is_empty() { Err(bad()) } else { Ok(chain) }
}

/// Trusted certificates of OpenSSL's own form carry more behind the certificate.
fn certificate(section: Section) -> Result<CertificateDer<'static>, String> {
    let (_, _, whole) = super::der::Der::new(&section.der)
        .any()
        .map_err(|_| "PEM_read_bio_X509_AUX() failed (SSL: not enough data)".to_owned())?;
    Certificate::parse(whole).map_err(|_| "PEM_read_bio_X509_AUX() failed (SSL: nested asn1 error)".to_owned())?;
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

/// A certificate that is ready to be shown.
pub struct Loaded {
    /// With its chain and key.
    pub pair: CertifiedKey,
    /// The key was locked with a password.
    pub locked: bool,
}

/// Loads a certificate with its chain and key; errors are nginx's texts.
pub fn load(
    source: Source<'_>,
    certificate: &[u8],
    key: &[u8],
    passwords: &[Vec<u8>],
    provider: &CryptoProvider,
) -> Result<Loaded, String> {
    let refused = |what: &str, name, why| format!("cannot load {what} \"{}\": {why}", source.shown(name));
    let bad_certificate = |why| refused("certificate", certificate, why);
    let bad_key = |why| refused("certificate key", key, why);
    let chain = source.content(certificate).and_then(|t| chain(&t)).map_err(bad_certificate)?;
    let (private, locked) = source.content(key).and_then(|t| private_key(&t, passwords)).map_err(bad_key)?;
    let private = provider.key_provider.load_private_key(private).map_err(|e| bad_key(e.to_string()))?;
    let leaf = Certificate::parse(&chain[0]).map_err(|_| bad_certificate("nested asn1 error".to_owned()))?;
    if private.public_key().is_some_and(|spki| !same_key(&spki, leaf.spki)) {
        let why = "error:05800074:x509 certificate routines::key values mismatch";
        return Err(format!("SSL_CTX_use_PrivateKey(\"{}\") failed (SSL: {why})", source.shown(key)));
    }
    Ok(Loaded { pair: CertifiedKey::new(chain, private), locked })
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
