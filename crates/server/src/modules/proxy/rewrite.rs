//! The words of `proxy_redirect`, `proxy_cookie_domain`, `_path`, `_flags`. What they do is in `upstream::rewrite`.

use crate::config::Scope;
use crate::config::complex::Complex;
use crate::config::pattern::Pattern;
use crate::upstream::rewrite::{CookieFlags, Flag, Match, Rewrite, flag_word};
use conf::{Node, Problem};
use std::sync::Arc;

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
        Some(rules) if off || rules.is_empty() => Err(crate::config::setters::duplicate(node)),
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
