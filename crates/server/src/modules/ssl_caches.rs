//! The caches of `ssl_*`: what their directives say. Part of `ssl`, and of the modules that speak TLS to their peers.

use super::ssl::server;
use crate::config::{Scope, setters};
use crate::tls::settings::CacheLimits;
use crate::tls::settings::SessionCache;
use conf::{Node, Problem, value};

/// Sessions of `ssl_session_cache builtin` (OpenSSL's SSL_SESSION_CACHE_MAX_SIZE_DEFAULT).
const BUILTIN_SESSIONS: usize = 20 * 1024;
/// Smallest `ssl_session_cache shared`: eight pages, in bytes.
const MIN_ZONE: u64 = 8 * 4096;

/// `max=N [inactive=T] [valid=T]`, or `off`.
pub fn cache_limits(node: &Node) -> Result<Option<CacheLimits>, Problem> {
    let mut limits = CacheLimits { max: 0, inactive_ms: 10_000, valid_ms: 60_000 };
    let mut off = false;
    for word in &node.args {
        let text = word.as_str();
        let invalid = || node.problem(format!("invalid parameter \"{text}\""));
        let seconds = |t: &str| value::seconds(t.as_bytes()).map(|s| s * 1000).ok_or_else(invalid);
        match text.split_once('=') {
            Some(("max", n)) => {
                let max = value::number(n.as_bytes()).filter(|n| *n > 0).ok_or_else(invalid)?;
                limits.max = max as usize;
            }
            Some(("inactive", t)) => limits.inactive_ms = seconds(t)?,
            Some(("valid", t)) => limits.valid_ms = seconds(t)?,
            None if text == "off" => off = true,
            _ => return Err(invalid()),
        }
    }
    if off {
        return Ok(None);
    }
    if limits.max == 0 {
        let name = node.name.as_str();
        return Err(node.problem(format!("\"{name}\" must have the \"max\" parameter")));
    }
    Ok(Some(limits))
}

/// `ssl_ocsp_cache`
pub(super) fn ocsp_cache(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (subsystem, word) = (scope.build.subsystem, &node.args[0]);
    let mut cache = None;
    if *word != "off" {
        let shown = word.as_str();
        let zone = word.text.strip_prefix(b"shared:").and_then(shared);
        let (name, size) = zone.ok_or_else(|| node.problem(format!("invalid OCSP cache \"{shown}\"")))?;
        if size < MIN_ZONE {
            return Err(node.problem(format!("OCSP cache \"{shown}\" is too small")));
        }
        let names = &mut scope.build.main.zones;
        let owner = if subsystem.is_stream() { "stream ssl ocsp" } else { "ssl ocsp" };
        names.add(name.as_bytes(), size, owner).map_err(|e| node.problem(e))?;
        cache = Some((name, size as usize));
    }
    setters::value(&mut server(scope).ocsp_cache, node, cache)
}

/// `ssl_session_cache`
pub(super) fn session_cache(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (subsystem, mut cache) = (scope.build.subsystem, SessionCache::None);
    for word in &node.args {
        let shown = word.as_str();
        let invalid = || node.problem(format!("invalid session cache \"{shown}\""));
        if let Some(rest) = word.text.strip_prefix(b"shared:") {
            let (name, size) = shared(rest).ok_or_else(invalid)?;
            if size < MIN_ZONE {
                return Err(node.problem(format!("session cache \"{shown}\" is too small")));
            }
            let names = &mut scope.build.main.zones;
            let owner = if subsystem.is_stream() { "stream ssl" } else { "ssl" };
            names.add(name.as_bytes(), size, owner).map_err(|e| node.problem(e))?;
            cache = SessionCache::Shared(name, size as usize);
            continue;
        }
        // What is shared is better: the other kind is only looked at where there is nothing else.
        let other = match &*shown {
            "off" | "none" => SessionCache::None,
            "builtin" => SessionCache::Builtin(BUILTIN_SESSIONS),
            text => {
                let count = text.strip_prefix("builtin:").and_then(|n| value::number(n.as_bytes()));
                SessionCache::Builtin(count.ok_or_else(invalid)? as usize)
            }
        };
        if !matches!(cache, SessionCache::Shared(..)) {
            cache = other;
        }
    }
    server(scope).session_cache.force(cache);
    Ok(())
}

/// `name:size`
fn shared(text: &[u8]) -> Option<(Box<str>, u64)> {
    let colon = memchr::memchr(b':', text).filter(|at| *at > 0)?;
    let size = value::size(&text[colon + 1..])?;
    Some((String::from_utf8_lossy(&text[..colon]).into(), size))
}
