//! Rewriting of an upstream's answer headers: `proxy_redirect`, `proxy_cookie_domain`, `_path`, `_flags`.

use super::Conf;
use crate::config::Scope;
use crate::config::complex::Complex;
use crate::config::pattern::Pattern;
use crate::request::{Request, Text};
use conf::{Node, Problem};
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
    name: Match,
    flags: Vec<Flag>,
}

#[derive(Clone, Debug)]
enum Match {
    Name(Complex),
    Regex(Pattern),
}

#[derive(Clone, Debug)]
enum Flag {
    Word(&'static str),
    Complex(Complex),
}

/// `proxy_redirect off | default | from to`
pub(super) fn redirect(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &scope.level.conf.proxy.redirect;
    let so_far = setting.is_set().then(|| setting.as_deref().map_or(&[][..], |list| list));
    let mut list = rules_before(so_far, node)?;
    match node.args.as_slice() {
        [word] if *word == "off" => {}
        [word] if *word == "default" => {
            let text = match &scope.level.conf.proxy.pass {
                None => "should be placed after the \"proxy_pass\" directive",
                Some(pass) if pass.fixed.is_none() => "cannot be used with \"proxy_pass\" directive with variables",
                Some(_) => "",
            };
            if !text.is_empty() {
                return Err(node.problem(format!("\"proxy_redirect default\" {text}")));
            }
            list.push(Rewrite::Default);
        }
        [word] => return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str()))),
        [from, to, ..] => list.push(rule(scope, node, &from.text, &to.text)?),
        [] => {}
    }
    scope.level.conf.proxy.redirect.force(Some(Arc::new(list)));
    Ok(())
}

/// The rules that those of a directive are added to. `off` stands alone: there is nothing before it and nothing after.
fn rules_before<T: Clone>(so_far: Option<&[T]>, node: &Node) -> Result<Vec<T>, Problem> {
    let off = node.args.len() == 1 && node.args[0] == "off";
    match so_far {
        Some(rules) if off || rules.is_empty() => Err(crate::config::set::duplicate(node)),
        rules => Ok(rules.unwrap_or_default().to_vec()),
    }
}

fn rule(scope: &mut Scope<'_, '_>, node: &Node, from: &[u8], to: &[u8]) -> Result<Rewrite, Problem> {
    let replacement = Complex::compile_bytes(scope.build, to).map_err(|t| node.problem(t))?;
    if let Some(regex) = from.strip_prefix(b"~") {
        let (regex, caseless) = match regex.strip_prefix(b"*") {
            Some(r) => (r, true),
            None => (regex, false),
        };
        let pattern = Pattern::compile(scope.build, regex, caseless).map_err(|t| node.problem(t))?;
        return Ok(Rewrite::Regex { pattern, replacement });
    }
    let pattern = Complex::compile_bytes(scope.build, from).map_err(|t| node.problem(t))?;
    Ok(Rewrite::Prefix { pattern, replacement })
}

/// `proxy_cookie_domain` and `proxy_cookie_path`
pub(super) fn cookie(scope: &mut Scope<'_, '_>, node: &Node, path: bool) -> Result<(), Problem> {
    let proxy = &scope.level.conf.proxy;
    let setting = if path { &proxy.cookie_path } else { &proxy.cookie_domain };
    let mut list = rules_before(setting.is_set().then(|| &setting[..]), node)?;
    match node.args.as_slice() {
        [word] if *word == "off" => {}
        [from, to] => {
            let mut from = from.text.as_slice();
            let mut to = to.text.as_slice();
            if !path && !from.starts_with(b"~") {
                // A leading dot means nothing to browsers.
                from = from.strip_prefix(b".").unwrap_or(from);
                to = to.strip_prefix(b".").unwrap_or(to);
            }
            let mut text = from.to_vec();
            if !path && from.starts_with(b"~") && !from.starts_with(b"~*") {
                text.insert(1, b'*');
            }
            list.push(rule(scope, node, &text, to)?);
        }
        _ => return Err(node.problem(format!("invalid parameter \"{}\"", node.args[0].as_str()))),
    }
    let proxy = &mut scope.level.conf.proxy;
    let setting = if path { &mut proxy.cookie_path } else { &mut proxy.cookie_domain };
    setting.force(Arc::new(list));
    Ok(())
}

/// `proxy_cookie_flags name flag...`
pub(super) fn cookie_flags(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let setting = &scope.level.conf.proxy.cookie_flags;
    let mut list = rules_before(setting.is_set().then(|| &setting[..]), node)?;
    if node.args.len() == 1 {
        if node.args[0] != "off" {
            return Err(node.problem(format!("invalid parameter \"{}\"", node.args[0].as_str())));
        }
    } else {
        let text = &node.args[0].text;
        let name = match text.strip_prefix(b"~") {
            Some(regex) => Match::Regex(Pattern::compile(scope.build, regex, true).map_err(|t| node.problem(t))?),
            None => Match::Name(Complex::compile(scope.build, &node.args[0])?),
        };
        let mut flags = Vec::new();
        for word in &node.args[1..] {
            // nginx finds out at each answer whether a word is known.
            flags.push(match flag_word(&word.as_str()) {
                Some(known) => Flag::Word(known),
                None => {
                    if !word.text.contains(&b'$') {
                        scope.build.problems.push(node.warning(format!("unknown cookie flag \"{}\"", word.as_str())));
                    }
                    Flag::Complex(Complex::compile(scope.build, word)?)
                }
            });
        }
        list.push(CookieFlags { name, flags });
    }
    scope.level.conf.proxy.cookie_flags.force(Arc::new(list));
    Ok(())
}

fn flag_word(word: &str) -> Option<&'static str> {
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
pub(super) fn set_cookie(r: &mut Request, conf: &Conf, value: Text) -> Text {
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
fn flags(r: &mut Request, conf: &Conf, attributes: &mut Vec<Vec<u8>>) -> bool {
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
