//! What an `acme_issuer` block and the `acme_certificate`s that name it come to.

use super::key::Kind;
use aws_lc_rs::digest::{SHA256, digest};
use conf::Node;
use resolve::ResolverConfig;
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An authority, and how to deal with it.
#[derive(Debug)]
pub struct Issuer {
    /// Its name in the configuration.
    pub name: Box<str>,
    /// `uri`: of its directory.
    pub uri: String,
    /// `account_key`
    pub account_key: Key,
    /// `challenge`
    pub challenge: Challenge,
    /// `dns_hook`: the program that publishes records.
    pub dns_hook: Option<PathBuf>,
    /// `common_name_in_csr`
    pub common_name: bool,
    /// `contact`, with their schemes.
    pub contacts: Vec<String>,
    /// `external_account_key`
    pub external_account: Option<ExternalAccount>,
    /// `preferred_chain`
    pub preferred_chain: Option<String>,
    /// `profile`
    pub profile: Option<Profile>,
    /// `ssl_trusted_certificate`; without it the system's certificates are trusted.
    pub trusted: Option<Vec<CertificateDer<'static>>>,
    /// `ssl_verify`
    pub verify: bool,
    /// `state_path`, unless it is `off`.
    pub state_path: Option<PathBuf>,
    /// `accept_terms_of_service`
    pub accept_terms: bool,
    /// `resolver` and `resolver_timeout` of `http`.
    pub resolver: Option<(Arc<ResolverConfig>, Duration)>,
}

/// `account_key`
pub enum Key {
    /// Is made, and kept in the state directory.
    Made(Kind),
    /// PEM, from a file.
    Given(Vec<u8>),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Made(kind) => write!(f, "Made({})", kind.name()),
            Key::Given(pem) => write!(f, "Given({:x?})", digest(&SHA256, pem).as_ref()),
        }
    }
}

/// `challenge`: how control of a name is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A file below `/.well-known/acme-challenge/`, on port 80 (RFC 8555 section 8.3).
    Http01,
    /// A certificate of its own in a handshake, on port 443 (RFC 8737).
    TlsAlpn01,
    /// A record of the zone (RFC 8555 section 8.4), which a program publishes.
    Dns01,
}

impl Challenge {
    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Challenge::Http01 => "http-01",
            Challenge::TlsAlpn01 => "tls-alpn-01",
            Challenge::Dns01 => "dns-01",
        }
    }
}

/// `external_account_key`
pub struct ExternalAccount {
    /// The key's identifier.
    pub id: String,
    /// The MAC key.
    pub key: Vec<u8>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExternalAccount({}, {:x?})", self.id, digest(&SHA256, &self.key).as_ref())
    }
}

/// `profile`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name at the authority.
    pub name: String,
    /// Without it no certificate is ordered.
    pub required: bool,
}

/// What a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identifier {
    /// A host name in lower case.
    Dns(String),
    /// An address (RFC 8738).
    Ip(IpAddr),
}

impl Identifier {
    /// Its type in the protocol.
    pub fn kind(&self) -> &'static str {
        match self {
            Identifier::Dns(_) => "dns",
            Identifier::Ip(_) => "ip",
        }
    }

    /// Reads `acme_certificate`'s parameters and names of servers: one of them may stand for two, since `.a.b` is `a.b` and
    /// `www.a.b`. The rules are nginx's (`validate_dns_identifier`), but for wildcards, which `dns-01` proves.
    pub fn parse(text: &str) -> Result<Vec<Identifier>, String> {
        if let Ok(ip) = text.parse() {
            return Ok(vec![Identifier::Ip(ip)]);
        }
        if let Some(below) = text.strip_prefix("*.") {
            if below.contains('*') {
                return Err(format!("invalid server name \"{text}\": more than one wildcard"));
            }
            let [Identifier::Dns(below)] = &Identifier::parse(below)?[..] else {
                return Err(format!("invalid server name \"{text}\""));
            };
            return Ok(vec![Identifier::Dns(format!("*.{below}"))]);
        }
        let name = text.to_ascii_lowercase();
        let bare = name.strip_prefix('.').unwrap_or(&name);
        let is_bad =
            |c: char| !c.is_ascii_graphic() || matches!(c, '/' | '\\' | ':' | '*' | '"' | '<' | '>' | '#' | '?' | '@');
        if let Some(at) = bare.find(is_bad) {
            return Err(format!("invalid server name \"{text}\": unexpected character at position {at}"));
        }
        if bare.split('.').any(str::is_empty) {
            return Err(format!("invalid server name \"{text}\": empty label"));
        }
        let dns = |name: String| Identifier::Dns(name);
        Ok(if bare.len() < name.len() {
            vec![dns(format!("www.{bare}")), dns(bare.to_owned())]
        } else {
            vec![dns(name)]
        })
    }

    /// Whether `challenge` can prove control of it.
    pub fn is_proved_by(&self, challenge: Challenge) -> bool {
        match self {
            Identifier::Dns(name) => !name.starts_with('*') || challenge == Challenge::Dns01,
            // RFC 8738 section 4.
            Identifier::Ip(_) => challenge != Challenge::Dns01,
        }
    }

    /// What is asked for by name in a handshake that proves control (RFC 8738 section 6 for addresses).
    pub fn server_name(&self) -> String {
        match self {
            Identifier::Dns(name) => name.clone(),
            Identifier::Ip(IpAddr::V4(ip)) => {
                let [a, b, c, d] = ip.octets();
                format!("{d}.{c}.{b}.{a}.in-addr.arpa")
            }
            Identifier::Ip(IpAddr::V6(ip)) => {
                let nibbles = ip.octets().into_iter().rev().map(|b| format!("{:x}.{:x}.", b & 15, b >> 4));
                nibbles.collect::<String>() + "ip6.arpa"
            }
        }
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identifier::Dns(name) => f.write_str(name),
            Identifier::Ip(ip) => write!(f, "{ip}"),
        }
    }
}

/// A certificate that is wanted of an issuer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// The issuer's name.
    pub issuer: Box<str>,
    /// What it is for, in order.
    pub identifiers: Vec<Identifier>,
    /// `key=`
    pub key: Kind,
}

/// An `acme_certificate` while its server is read: its names may follow from `server_name`.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The authority's name.
    pub issuer: Box<str>,
    /// The names.
    pub identifiers: Vec<Identifier>,
    /// `key`
    pub key: Kind,
    /// Where it stands.
    pub node: Node,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Result<String, String> {
        let all = Identifier::parse(text)?;
        Ok(all.iter().map(|i| format!("{}:{i}", i.kind())).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn identifiers() {
        assert_eq!(shown("WWW1.Example.test"), Ok("dns:www1.example.test".to_owned()));
        assert_eq!(shown(".example.test"), Ok("dns:www.example.test dns:example.test".to_owned()));
        assert_eq!(shown("192.0.2.1"), Ok("ip:192.0.2.1".to_owned()));
        assert_eq!(shown("2001:DB8:0::1"), Ok("ip:2001:db8::1".to_owned()));
        assert_eq!(shown("*.Example.test"), Ok("dns:*.example.test".to_owned()));
        for bad in [
            "",
            ".",
            "a..b",
            "a.",
            "*.*.test",
            "*.",
            "a.*",
            "*",
            "*..test",
            "*.192.0.2.1",
            "a/b",
            "../x",
            "a b",
            "пример.test",
            "a\u{7f}b",
        ] {
            assert!(shown(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_addresses_in_handshakes() {
        let name = |text: &str| Identifier::parse(text).expect("an address")[0].server_name();
        assert_eq!(name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        assert!(
            name("2001:db8::1").starts_with("1.0.0.0.") && name("2001:db8::1").ends_with("8.b.d.0.1.0.0.2.ip6.arpa")
        );
    }
}
