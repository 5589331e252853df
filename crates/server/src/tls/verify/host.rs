//! Whether a certificate is one for a host, and the hosts it is for.

use super::usage::oid;
use crate::tls::der::Der;
use crate::tls::names::common_names;
use crate::tls::x509::Certificate;
use std::net::IpAddr;

/// What [`other_names`] calls a DNS name, and an address: `[2]`, `[7]`.
const DNS: u8 = 0x82;
const ADDRESS: u8 = 0x87;

/// A certificate's other names with their tags, as far as they can be read.
pub fn other_names<'a>(c: &Certificate<'a>) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
    let names = c.extension(oid::SUBJECT_ALT_NAME).and_then(|v| Der::new(v).sequence().ok());
    let mut names = names.unwrap_or(Der::new(b""));
    std::iter::from_fn(move || names.any().ok().map(|(tag, name, _)| (tag, name)))
}

/// Hosts and addresses that a certificate is for, as texts.
pub fn names(c: &Certificate<'_>) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let shown = |(tag, name): (u8, &[u8])| match tag {
        DNS => Some(text(name)),
        ADDRESS => match name.len() {
            4 => <[u8; 4]>::try_from(name).ok().map(|ip| IpAddr::from(ip).to_string()),
            _ => <[u8; 16]>::try_from(name).ok().map(|ip| IpAddr::from(ip).to_string()),
        },
        _ => None,
    };
    let found: Vec<String> = other_names(c).filter_map(shown).collect();
    if found.is_empty() { common_names(c.subject).iter().map(|n| text(n)).collect() } else { found }
}

/// Whether a certificate is one for this host (`X509_check_host`): its other names, or, without any of a host, the name
/// of its subject.
pub fn is_for_host(der: &[u8], host: &[u8]) -> bool {
    let Ok(c) = Certificate::parse(der) else { return false };
    let mut any = false;
    for (_, name) in other_names(&c).filter(|(tag, _)| *tag == DNS) {
        any = true;
        if matches_host(name, host) {
            return true;
        }
    }
    !any && common_names(c.subject).iter().any(|n| matches_host(n, host))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let fits = |pattern: &str, host: &str| matches_host(pattern.as_bytes(), host.as_bytes());
        assert!(fits("a.example.com", "A.Example.Com"));
        assert!(fits("*.example.com", "a.example.com"));
        assert!(fits("w*.example.com", "www.example.com"));
        assert!(!fits("*.example.com", "example.com"));
        assert!(!fits("*.example.com", "a.b.example.com"));
        assert!(!fits("*.example.com", ".example.com"));
        assert!(!fits("*.com", "example.com"));
        assert!(!fits("a.*.com", "a.b.com"));
        assert!(!fits("*", "a"));
        assert!(!fits("w*w.example.com", "w.example.com"));
    }
}
