//! Headers of answers made to fit the client's view of the site: `proxy_redirect`, `proxy_cookie_domain`, `_path`, `_flags`.
//! The words of the configuration are `modules::proxy`'s.

use crate::config::complex::Complex;
use crate::config::pattern::Pattern;
use crate::request::{Request, Text};
use std::sync::Arc;

/// One rule.
#[derive(Clone, Debug)]
pub enum Rewrite {
    /// `proxy_redirect default`, until the url is known.
    Default,
    /// A text at the beginning is replaced.
    Prefix {
        /// The text.
        pattern: Complex,
        /// By this.
        replacement: Complex,
    },
    /// A whole value that matches is replaced.
    Regex {
        /// The expression.
        pattern: Pattern,
        /// By this.
        replacement: Complex,
    },
}

/// One `proxy_cookie_flags`.
#[derive(Clone, Debug)]
pub struct CookieFlags {
    /// Which cookies.
    pub name: Match,
    /// What becomes of them.
    pub flags: Vec<Flag>,
}

/// Which cookies a rule is for.
#[derive(Clone, Debug)]
pub enum Match {
    /// The one of this name.
    Name(Complex),
    /// Those whose name matches.
    Regex(Pattern),
}

/// A flag of a cookie.
#[derive(Clone, Debug)]
pub enum Flag {
    /// One of [`flag_word`]'s.
    Word(&'static str),
    /// What this comes to.
    Complex(Complex),
}

/// The rules of a level.
#[derive(Clone, Debug, Default)]
pub struct Rewrites {
    /// `proxy_redirect`
    pub redirects: Arc<Vec<Rewrite>>,
    /// `proxy_cookie_domain`
    pub cookie_domain: Arc<Vec<Rewrite>>,
    /// `proxy_cookie_path`
    pub cookie_path: Arc<Vec<Rewrite>>,
    /// `proxy_cookie_flags`
    pub cookie_flags: Arc<Vec<CookieFlags>>,
}

/// The flag as it is known.
pub fn flag_word(word: &str) -> Option<&'static str> {
    const WORDS: [&str; 8] = [
        "secure",
        "nosecure",
        "httponly",
        "nohttponly",
        "samesite=strict",
        "samesite=lax",
        "samesite=none",
        "nosamesite",
    ];
    WORDS.into_iter().find(|w| w.eq_ignore_ascii_case(word))
}

/// The value that the first fitting rule makes.
pub(super) fn apply(r: &mut Request, rules: &[Rewrite], value: Text) -> Option<Text> {
    for rule in rules {
        match rule {
            Rewrite::Default => {}
            Rewrite::Prefix { pattern, replacement } => {
                let pattern = pattern.eval(r);
                if r.get(value).starts_with(r.get(pattern)) {
                    let rest = r.get(value)[r.get(pattern).len()..].to_vec();
                    let to = replacement.eval(r);
                    let mut out = r.get(to).to_vec();
                    out.extend_from_slice(&rest);
                    return Some(r.text(&out));
                }
            }
            Rewrite::Regex { pattern, replacement } => {
                // One that gives up is a fault: this answer is not sent.
                if pattern.exec(r, value).unwrap_or(false) {
                    return Some(replacement.eval(r));
                }
            }
        }
    }
    None
}

/// `Refresh: 5; url=...`
pub(super) fn refresh(r: &mut Request, rules: &[Rewrite], value: Text) -> Text {
    let bytes = r.get(value).to_vec();
    let lower = bytes.to_ascii_lowercase();
    let Some(at) = memchr::memmem::find(&lower, b"url=") else { return value };
    let url = r.text(&bytes[at + 4..]);
    match apply(r, rules, url) {
        Some(new) => {
            let mut out = bytes[..at + 4].to_vec();
            out.extend_from_slice(r.get(new));
            r.text(&out)
        }
        None => value,
    }
}

/// A cookie with its domain, path and flags rewritten.
pub(super) fn set_cookie(r: &mut Request, conf: &Rewrites, value: Text) -> Text {
    if conf.cookie_domain.is_empty() && conf.cookie_path.is_empty() && conf.cookie_flags.is_empty() {
        return value;
    }
    let bytes = r.get(value).to_vec();
    let mut attributes: Vec<Vec<u8>> = bytes.split(|b| *b == b';').map(|a| a.trim_ascii().to_vec()).collect();
    let mut changed = false;
    for attribute in attributes.iter_mut().skip(1) {
        let Some(at) = memchr::memchr(b'=', attribute) else { continue };
        let name = attribute[..at].trim_ascii_end().to_ascii_lowercase();
        let rules = match name.as_slice() {
            b"domain" => &conf.cookie_domain,
            b"path" => &conf.cookie_path,
            _ => continue,
        };
        let old = attribute[at + 1..].trim_ascii().to_vec();
        let dotted = name == b"domain" && old.first() == Some(&b'.');
        let old = if dotted { old[1..].to_vec() } else { old };
        let text = r.text(&old);
        let new = if name == b"domain" { apply_domain(r, rules, text) } else { apply(r, rules, text) };
        if let Some(new) = new {
            changed = true;
            attribute.truncate(at + 1);
            attribute.extend_from_slice(if dotted { b"." } else { b"" });
            attribute.extend_from_slice(r.get(new));
        }
    }
    if !flags(r, conf, &mut attributes) && !changed {
        return value;
    }
    let out = attributes.join(&b"; "[..]);
    r.text(&out)
}

/// Domains are compared whole and without regard to case.
fn apply_domain(r: &mut Request, rules: &[Rewrite], value: Text) -> Option<Text> {
    for rule in rules {
        match rule {
            Rewrite::Prefix { pattern, replacement } => {
                let pattern = pattern.eval(r);
                if r.get(value).eq_ignore_ascii_case(r.get(pattern)) {
                    return Some(replacement.eval(r));
                }
            }
            other => {
                if let Some(new) = apply(r, std::slice::from_ref(other), value) {
                    return Some(new);
                }
            }
        }
    }
    None
}

/// True when a rule was for this cookie.
fn flags(r: &mut Request, conf: &Rewrites, attributes: &mut Vec<Vec<u8>>) -> bool {
    let first = attributes.first().cloned().unwrap_or_default();
    let name = first[..memchr::memchr(b'=', &first).unwrap_or(first.len())].to_vec();
    let name = r.text(&name);
    for rule in conf.cookie_flags.iter() {
        let hit = match &rule.name {
            Match::Name(n) => {
                let n = n.eval(r);
                r.get(n) == r.get(name)
            }
            Match::Regex(p) => p.exec(r, name).unwrap_or(false),
        };
        if !hit {
            continue;
        }
        for flag in &rule.flags {
            let word = match flag {
                Flag::Word(w) => Some(*w),
                Flag::Complex(c) => {
                    let text = c.eval(r);
                    flag_word(&String::from_utf8_lossy(r.get(text)))
                }
            };
            if let Some(word) = word {
                set_flag(attributes, word);
            }
        }
        return true;
    }
    false
}

fn set_flag(attributes: &mut Vec<Vec<u8>>, word: &str) {
    let is = |a: &[u8], name: &str| {
        let end = memchr::memchr(b'=', a).unwrap_or(a.len());
        a[..end].trim_ascii().eq_ignore_ascii_case(name.as_bytes())
    };
    let mut put = |name: &str, value: Option<&str>| {
        let at = attributes.iter().skip(1).position(|a| is(a, name)).map(|i| i + 1);
        match (at, value) {
            (Some(_), Some(v)) if !v.contains('=') => {}
            (Some(i), Some(v)) => attributes[i] = v.as_bytes().to_vec(),
            (None, Some(v)) => attributes.push(v.as_bytes().to_vec()),
            (Some(i), None) => {
                attributes.remove(i);
            }
            (None, None) => {}
        }
    };
    match word {
        "secure" => put("secure", Some("Secure")),
        "nosecure" => put("secure", None),
        "httponly" => put("httponly", Some("HttpOnly")),
        "nohttponly" => put("httponly", None),
        "samesite=strict" => put("samesite", Some("SameSite=Strict")),
        "samesite=lax" => put("samesite", Some("SameSite=Lax")),
        "samesite=none" => put("samesite", Some("SameSite=None")),
        _ => put("samesite", None),
    }
}
