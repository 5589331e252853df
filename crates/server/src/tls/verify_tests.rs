//! Unit tests of `verify`; chains made by OpenSSL are checked in the whole-binary tests.

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

#[test]
fn constraints() {
    assert_eq!(basic_constraints(&[0x30, 0]), Ok((false, None)));
    assert_eq!(basic_constraints(&[0x30, 3, 1, 1, 0xff]), Ok((true, None)));
    assert_eq!(basic_constraints(&[0x30, 6, 1, 1, 0xff, 2, 1, 2]), Ok((true, Some(2))));
    assert!(basic_constraints(&[0x30, 6, 1, 1, 0xff, 2, 1, 0x82]).is_err());
    assert!(basic_constraints(&[0x30]).is_err());
}
