//! OpenSSL's names for ciphers, groups and versions, and what of them there is here. TLS 1.2 with ECDHE and AEAD ciphers,
//! and TLS 1.3: everything older is named to the operator and left out.

use super::suites;
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{cipher_suite as suite, kx_group as kx};
use rustls::{NamedGroup, SignatureScheme, SupportedCipherSuite};

/// TLS 1.2 in OpenSSL's default order.
const TLS12: [(&str, SupportedCipherSuite); 6] = [
    ("ECDHE-ECDSA-AES256-GCM-SHA384", suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES256-GCM-SHA384", suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
];

/// TLS 1.3 in OpenSSL's default order.
const TLS13: [(&str, SupportedCipherSuite); 3] = [
    ("TLS_AES_256_GCM_SHA384", SupportedCipherSuite::Tls13(&suites::AES_256_GCM_SHA384)),
    ("TLS_CHACHA20_POLY1305_SHA256", SupportedCipherSuite::Tls13(&suites::CHACHA20_POLY1305_SHA256)),
    ("TLS_AES_128_GCM_SHA256", SupportedCipherSuite::Tls13(&suites::AES_128_GCM_SHA256)),
];

/// Groups by all of their names; the first is the one that is shown.
const GROUPS: [(&[&str], &dyn SupportedKxGroup); 5] = [
    (&["X25519MLKEM768"], kx::X25519MLKEM768),
    (&["X25519", "x25519"], kx::X25519),
    (&["prime256v1", "P-256", "secp256r1"], kx::SECP256R1),
    (&["secp384r1", "P-384"], kx::SECP384R1),
    (&["SecP256r1MLKEM768"], kx::SECP256R1MLKEM768),
];

/// Groups that OpenSSL knows and that are not here, with their numbers.
const OTHER_GROUPS: [(&str, u16); 47] = [
    ("secp521r1", 0x0019),
    ("P-521", 0x0019),
    ("X448", 0x001e),
    ("x448", 0x001e),
    ("secp256k1", 0x0016),
    ("brainpoolP256r1", 0x001a),
    ("brainpoolP384r1", 0x001b),
    ("brainpoolP512r1", 0x001c),
    ("ffdhe2048", 0x0100),
    ("ffdhe3072", 0x0101),
    ("ffdhe4096", 0x0102),
    ("ffdhe6144", 0x0103),
    ("ffdhe8192", 0x0104),
    ("SecP384r1MLKEM1024", 0x11ed),
    // Those that OpenSSL still reads and hardly anybody offers (RFC 8422 section 5.1.1).
    ("sect163k1", 0x0001),
    ("K-163", 0x0001),
    ("sect163r1", 0x0002),
    ("sect163r2", 0x0003),
    ("B-163", 0x0003),
    ("sect193r1", 0x0004),
    ("sect193r2", 0x0005),
    ("sect233k1", 0x0006),
    ("K-233", 0x0006),
    ("sect233r1", 0x0007),
    ("B-233", 0x0007),
    ("sect239k1", 0x0008),
    ("sect283k1", 0x0009),
    ("K-283", 0x0009),
    ("sect283r1", 0x000a),
    ("B-283", 0x000a),
    ("sect409k1", 0x000b),
    ("K-409", 0x000b),
    ("sect409r1", 0x000c),
    ("B-409", 0x000c),
    ("sect571k1", 0x000d),
    ("K-571", 0x000d),
    ("sect571r1", 0x000e),
    ("B-571", 0x000e),
    ("secp160k1", 0x000f),
    ("secp160r1", 0x0010),
    ("secp160r2", 0x0011),
    ("secp192k1", 0x0012),
    ("prime192v1", 0x0013),
    ("P-192", 0x0013),
    ("secp224k1", 0x0014),
    ("secp224r1", 0x0015),
    ("P-224", 0x0015),
];

/// Words of cipher lists that stand for kinds of ciphers none of which is here.
const ABSENT_KINDS: [&str; 69] = [
    "COMPLEMENTOFDEFAULT",
    "COMPLEMENTOFALL",
    "eNULL",
    "NULL",
    "MEDIUM",
    "LOW",
    "EXP",
    "EXPORT",
    "kRSA",
    "RSA",
    "kDHr",
    "kDHd",
    "kDH",
    "kDHE",
    "kEDH",
    "DHE",
    "EDH",
    "DH",
    "ADH",
    "AECDH",
    "aNULL",
    "aDSS",
    "DSS",
    "aDH",
    "aECDH",
    "kECDHr",
    "kECDHe",
    "kECDH",
    "kPSK",
    "kRSAPSK",
    "kDHEPSK",
    "kECDHEPSK",
    "aPSK",
    "PSK",
    "kGOST",
    "aGOST",
    "GOST",
    "GOST94",
    "GOST89MAC",
    "aGOST01",
    "kSRP",
    "aSRP",
    "SRP",
    "kKRB5",
    "aKRB5",
    "KRB5",
    "TLSv1",
    "TLSv1.0",
    "SSLv3",
    "SSLv2",
    "AESCCM",
    "AESCCM8",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "3DES",
    "DES",
    "RC4",
    "RC2",
    "IDEA",
    "SEED",
    "MD5",
    "SHA",
    "SHA1",
    "SHA256",
];

/// Parts of the names of single ciphers that OpenSSL has or had.
const ABSENT_PARTS: [&str; 14] = [
    "-SHA", "DHE-", "-MD5", "-CCM", "-CBC3", "CAMELLIA", "ARIA", "RC4", "PSK-", "SRP-", "ADH-", "AECDH-", "GOST",
    "NULL-",
];

/// What a list of ciphers comes to.
#[derive(Debug, Default)]
pub struct CipherList {
    /// What is there of it, in order.
    pub suites: Vec<SupportedCipherSuite>,
    /// Single ciphers that OpenSSL has and that are not here.
    pub absent: Vec<String>,
    /// Words that mean nothing.
    pub unknown: Vec<String>,
}

/// Reads a list as `ssl_ciphers` has it (OpenSSL's `ciphers(1)`).
pub fn tls12(text: &str) -> CipherList {
    let mut list = CipherList::default();
    let mut active: Vec<usize> = Vec::new();
    let mut killed = [false; TLS12.len()];
    for word in text.split([':', ',', ' ', ';']).filter(|w| !w.is_empty()) {
        let (sign, names) = match word.as_bytes()[0] {
            b'!' | b'-' | b'+' => (word.as_bytes()[0], &word[1..]),
            _ => (b' ', word),
        };
        if let Some(command) = word.strip_prefix('@') {
            // Strength orders what is ordered so already; keys and signatures of level 2 and above are all there is.
            if command != "STRENGTH" && !command.starts_with("SECLEVEL=") {
                list.unknown.push(word.to_owned());
            }
            continue;
        }
        let chosen: Vec<usize> =
            (0..TLS12.len()).filter(|i| names.split('+').all(|n| is_meant(n, *i).unwrap_or(false))).collect();
        if sign == b' ' {
            for name in names.split('+').filter(|n| is_meant(n, 0).is_none()) {
                let absent = ABSENT_PARTS.iter().any(|p| name.contains(p));
                let list = if absent { &mut list.absent } else { &mut list.unknown };
                list.push(name.to_owned());
            }
        }
        match sign {
            b'!' => {
                active.retain(|i| !chosen.contains(i));
                chosen.iter().for_each(|i| killed[*i] = true);
            }
            b'-' => active.retain(|i| !chosen.contains(i)),
            b'+' => {
                let moved: Vec<usize> = active.iter().copied().filter(|i| chosen.contains(i)).collect();
                active.retain(|i| !chosen.contains(i));
                active.extend(moved);
            }
            _ => {
                for i in chosen {
                    if !killed[i] && !active.contains(&i) {
                        active.push(i);
                    }
                }
            }
        }
    }
    list.suites = active.into_iter().map(|i| TLS12[i].1).collect();
    list
}

/// Whether a word of a list means a cipher; none: the word stands for nothing that is known.
fn is_meant(word: &str, i: usize) -> Option<bool> {
    let name = TLS12[i].0;
    Some(match word {
        "ALL" | "DEFAULT" | "HIGH" | "kECDHE" | "kEECDH" | "ECDHE" | "EECDH" | "ECDH" | "TLSv1.2" | "AEAD" => true,
        "aECDSA" | "ECDSA" => name.contains("-ECDSA-"),
        "aRSA" => name.contains("-RSA-"),
        "AES" | "AESGCM" => name.contains("-AES"),
        "AES128" => name.contains("-AES128-"),
        "AES256" => name.contains("-AES256-"),
        "CHACHA20" => name.contains("-CHACHA20-"),
        _ if ABSENT_KINDS.contains(&word) || word == "SHA384" => false,
        _ if TLS12.iter().any(|(n, _)| *n == word) => name == word,
        // A single cipher in the notation of the RFCs.
        _ if TLS12.iter().any(|(_, s)| format!("{:?}", s.suite()) == word) => {
            format!("{:?}", TLS12[i].1.suite()) == word
        }
        _ => return None,
    })
}

/// All of TLS 1.3, in order.
pub fn all_tls13() -> Vec<SupportedCipherSuite> {
    TLS13.iter().map(|(_, s)| *s).collect()
}

/// Reads a list as `ssl_conf_command Ciphersuites` has it; none where a name is no cipher of TLS 1.3.
pub fn tls13(text: &str) -> Option<Vec<SupportedCipherSuite>> {
    let absent = ["TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"];
    let names = text.split(':').filter(|n| !n.is_empty() && !absent.contains(n));
    names.map(|name| TLS13.iter().find(|(n, _)| *n == name).map(|(_, s)| *s)).collect()
}

/// What a list of groups comes to.
pub struct GroupList {
    /// In order.
    pub groups: Vec<&'static dyn SupportedKxGroup>,
    /// Known to OpenSSL and not here.
    pub absent: Vec<String>,
    /// Known to nobody.
    pub unknown: Vec<String>,
}

/// Reads a list as `ssl_ecdh_curve` has it.
pub fn groups(text: &str) -> GroupList {
    let mut list = GroupList { groups: Vec::new(), absent: Vec::new(), unknown: Vec::new() };
    for name in text.split(':').map(|n| n.trim_start_matches(['?', '*', '-'])).filter(|n| !n.is_empty()) {
        if let Some((_, group)) = GROUPS.iter().find(|(names, _)| names.iter().any(|n| n.eq_ignore_ascii_case(name))) {
            list.groups.push(*group);
        } else if OTHER_GROUPS.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
            list.absent.push(name.to_owned());
        } else {
            list.unknown.push(name.to_owned());
        }
    }
    list
}

/// What is offered where the configuration says nothing: nginx's `auto`.
pub fn default_groups() -> Vec<&'static dyn SupportedKxGroup> {
    vec![kx::X25519MLKEM768, kx::X25519, kx::SECP256R1, kx::SECP384R1]
}

/// OpenSSL's name of a cipher: `$ssl_cipher`.
pub fn cipher_name(suite: SupportedCipherSuite) -> &'static str {
    let mut all = TLS12.iter().chain(&TLS13);
    all.find(|(_, s)| s.suite() == suite.suite()).map_or("(NONE)", |(n, _)| n)
}

/// A cipher by its number in the protocol.
pub fn by_number(number: u16) -> Option<SupportedCipherSuite> {
    let mut all = TLS12.iter().chain(&TLS13).map(|(_, suite)| *suite);
    all.find(|suite| u16::from(suite.suite()) == number)
}

/// OpenSSL's name of a group: `$ssl_curve`.
pub fn group_name(group: NamedGroup) -> String {
    group_by_number(group.into())
}

/// The same by number, for groups that only the other side knows.
pub fn group_by_number(number: u16) -> String {
    let here = GROUPS.iter().find(|(_, g)| u16::from(g.name()) == number).map(|(names, _)| names[0]);
    let other = || OTHER_GROUPS.iter().find(|(_, n)| *n == number).map(|(name, _)| *name);
    here.or_else(other).map_or_else(|| format!("0x{number:04x}"), str::to_owned)
}

/// The name of a signature algorithm (RFC 8446 section 4.2.3): `$ssl_sigalg`.
pub fn signature_name(scheme: SignatureScheme) -> String {
    match scheme {
        SignatureScheme::RSA_PKCS1_SHA256 => "rsa_pkcs1_sha256",
        SignatureScheme::RSA_PKCS1_SHA384 => "rsa_pkcs1_sha384",
        SignatureScheme::RSA_PKCS1_SHA512 => "rsa_pkcs1_sha512",
        SignatureScheme::ECDSA_NISTP256_SHA256 => "ecdsa_secp256r1_sha256",
        SignatureScheme::ECDSA_NISTP384_SHA384 => "ecdsa_secp384r1_sha384",
        SignatureScheme::ECDSA_NISTP521_SHA512 => "ecdsa_secp521r1_sha512",
        SignatureScheme::RSA_PSS_SHA256 => "rsa_pss_rsae_sha256",
        SignatureScheme::RSA_PSS_SHA384 => "rsa_pss_rsae_sha384",
        SignatureScheme::RSA_PSS_SHA512 => "rsa_pss_rsae_sha512",
        SignatureScheme::ED25519 => "ed25519",
        SignatureScheme::ED448 => "ed448",
        SignatureScheme::ML_DSA_44 => "mldsa44",
        SignatureScheme::ML_DSA_65 => "mldsa65",
        SignatureScheme::ML_DSA_87 => "mldsa87",
        other => return format!("0x{:04x}", u16::from(other)),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        tls12(text).suites.into_iter().map(cipher_name).collect()
    }

    #[test]
    fn lists_of_ciphers() {
        assert_eq!(names("HIGH:!aNULL:!MD5").len(), 6);
        assert_eq!(
            names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256"),
            ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"]
        );
        assert_eq!(names("EECDH+AESGCM+aRSA:!AES256"), ["ECDHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(
            names("ALL:+AES256:-CHACHA20:!ECDSA"),
            ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"]
        );
        assert_eq!(names("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), ["ECDHE-RSA-AES128-GCM-SHA256"]);
        let old = tls12("AES128-SHA:DHE-RSA-AES128-GCM-SHA256:NONSENSE:!WHAT:RC4:@SECLEVEL=0:@WHAT");
        assert!(old.suites.is_empty());
        assert_eq!(old.absent, ["AES128-SHA", "DHE-RSA-AES128-GCM-SHA256"]);
        assert_eq!(old.unknown, ["NONSENSE", "@WHAT"]);
    }

    #[test]
    fn groups_by_name() {
        let list = groups("X25519:prime256v1:P-521:sect571r1:what");
        assert_eq!(list.groups.iter().map(|g| group_name(g.name())).collect::<Vec<_>>(), ["X25519", "prime256v1"]);
        assert_eq!(
            (list.absent, list.unknown),
            (vec!["P-521".to_owned(), "sect571r1".to_owned()], vec!["what".to_owned()])
        );
        assert_eq!(group_by_number(0x4588), "0x4588");
    }

    #[test]
    fn ciphers_of_tls13() {
        assert_eq!(tls13("TLS_AES_128_GCM_SHA256:TLS_AES_128_CCM_SHA256").map(|l| l.len()), Some(1));
        assert!(tls13("AES128-SHA").is_none());
    }
}
