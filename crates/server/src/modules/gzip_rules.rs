//! Who may be sent compressed answers: `gzip_http_version`, `gzip_proxied`, `gzip_disable`, `gzip_vary` (nginx's
//! `ngx_http_gzip_ok`). Asked by `gzip`, `gzip_static` and `gunzip`.

use crate::config::pattern::Pattern;
use crate::config::{Directive, Scope, http, setters};
use crate::merged_values;
use crate::request::headers::KnownHeader as K;
use crate::request::respond::Filtered;
use crate::request::{Request, Text, Version};
use conf::{Node, Problem};
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("gzip_vary", |s, n| setters::flag(&mut s.level.conf.gzip_rules.gzip_vary, n)),
    http("gzip_http_version", |s, n| {
        let words = [("1.0", Version::HTTP10), ("1.1", Version::HTTP11)];
        setters::one_of(&mut s.level.conf.gzip_rules.gzip_http_version, n, &words)
    }),
    http("gzip_proxied", gzip_proxied),
    http("gzip_disable", gzip_disable),
];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// Caches are told that the answer depends on `Accept-Encoding`.
        gzip_vary: bool = false,
        /// The lowest version.
        gzip_http_version: Version = Version::HTTP11,
        /// Which answers may be compressed for proxies.
        gzip_proxied: Proxied = Proxied { off: true, ..Proxied::NONE },
        /// Clients by `User-Agent`.
        gzip_disable: Arc<Vec<Pattern>> = Arc::default(),
        /// `gzip_disable msie6`
        gzip_disable_msie6: bool = false,
    }
}

/// `gzip_proxied`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of the directive")]
pub struct Proxied {
    pub off: bool,
    pub expired: bool,
    pub no_cache: bool,
    pub no_store: bool,
    pub private: bool,
    pub no_last_modified: bool,
    pub no_etag: bool,
    pub auth: bool,
    pub any: bool,
}

impl Proxied {
    const NONE: Proxied = Proxied {
        off: false,
        expired: false,
        no_cache: false,
        no_store: false,
        private: false,
        no_last_modified: false,
        no_etag: false,
        auth: false,
        any: false,
    };
}

/// What was found out for a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// The answer, once somebody asked.
    ok: Option<bool>,
    /// The answer depends on what the client accepts.
    pub vary: bool,
}

fn gzip_proxied(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    // Lines of one level add to each other (`ngx_conf_set_bitmask_slot`).
    let setting = &scope.level.conf.gzip_rules.gzip_proxied;
    let mut proxied = if setting.is_set() { **setting } else { Proxied::NONE };
    for word in &node.args {
        let bit = match &*word.as_str().to_ascii_lowercase() {
            "off" => &mut proxied.off,
            "expired" => &mut proxied.expired,
            "no-cache" => &mut proxied.no_cache,
            "no-store" => &mut proxied.no_store,
            "private" => &mut proxied.private,
            "no_last_modified" => &mut proxied.no_last_modified,
            "no_etag" => &mut proxied.no_etag,
            "auth" => &mut proxied.auth,
            "any" => &mut proxied.any,
            _ => return Err(node.problem(format!("invalid value \"{}\"", word.as_str()))),
        };
        if std::mem::replace(bit, true) {
            scope.build.problems.push(node.warning(format!("duplicate value \"{}\"", word.as_str())));
        }
    }
    scope.level.conf.gzip_rules.gzip_proxied.force(proxied);
    Ok(())
}

fn gzip_disable(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    for word in &node.args {
        if *word == "msie6" {
            scope.level.conf.gzip_rules.gzip_disable_msie6.force(true);
            continue;
        }
        let pattern = Pattern::compile(scope.build, &word.text, true).map_err(|t| node.problem(t))?;
        Arc::make_mut(scope.level.conf.gzip_rules.gzip_disable.entry()).push(pattern);
    }
    Ok(())
}

/// Whether the answer may be compressed for this client. Asked once; what is known of the answer by then counts.
pub fn is_ok(r: &mut Request) -> bool {
    if let Some(known) = r.ctx.gzip.ok {
        return known;
    }
    let ok = find_out(r);
    r.ctx.gzip.ok = Some(ok);
    ok
}

fn find_out(r: &mut Request) -> bool {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.gzip_rules;
    let accepted = || r.head.headers.find(K::AcceptEncoding).is_some_and(|v| accepts_gzip(r.get(v)));
    r.is_main()
        && accepted()
        && !(*conf.gzip_disable_msie6 && r.head.headers.browser(&r.arena).msie6)
        && r.head.version >= *conf.gzip_http_version
        && (r.head.headers.find(K::Via).is_none() || may_be_proxied(r, *conf.gzip_proxied))
        && !is_disabled(r, &conf.gzip_disable)
}

/// A pattern that gives up disables too: an answer that is not compressed is right for everybody.
fn is_disabled(r: &Request, patterns: &[Pattern]) -> bool {
    let agent = || r.head.headers.find(K::UserAgent);
    let fits = |agent| {
        patterns.iter().any(|p| {
            p.is_match(agent).unwrap_or_else(|e| {
                crate::log_error!(r, Alert, "{e}");
                true
            })
        })
    };
    !patterns.is_empty() && agent().is_some_and(|a| fits(r.get(a)))
}

/// `gzip_proxied`: an answer that the proxy will not keep, or all.
fn may_be_proxied(r: &Request, proxied: Proxied) -> bool {
    if proxied.off {
        return false;
    }
    if proxied.any || (proxied.auth && r.head.headers.find(K::Authorization).is_some()) {
        return true;
    }
    let out = &r.answer.headers;
    if let Some(expires) = out.find(K::Expires) {
        let date = match out.find(K::Date) {
            Some(date) => wire::date::parse_http(r.get(date)),
            None => Some(runtime::clock::wall_seconds()),
        };
        let expires = wire::date::parse_http(r.get(expires));
        return proxied.expired && matches!((expires, date), (Some(e), Some(d)) if e < d);
    }
    if out.has(K::CacheControl) {
        let says = |word: &[u8]| {
            let lines = out.lines.iter().filter(|h| h.known == K::CacheControl);
            lines.into_iter().any(|h| wire::http1::values::is_in_list(r.get(h.value), word, b','))
        };
        return (proxied.no_cache && says(b"no-cache"))
            || (proxied.no_store && says(b"no-store"))
            || (proxied.private && says(b"private"));
    }
    // nginx asks for the header line here, which only an upstream's answer has: a date of a file does not count.
    let has = |asked, header| asked && out.has(header);
    !has(proxied.no_last_modified, K::LastModified) && !has(proxied.no_etag, K::Etag)
}

/// Whether `Accept-Encoding` names gzip with a weight above zero (`ngx_http_gzip_accept_encoding`).
pub fn accepts_gzip(value: &[u8]) -> bool {
    if value.starts_with(b"gzip,") {
        return true;
    }
    let found = value
        .windows(4)
        .enumerate()
        .find(|(at, word)| word.eq_ignore_ascii_case(b"gzip") && (*at == 0 || matches!(value[at - 1], b',' | b' ')));
    let Some((at, _)) = found else { return false };
    let rest = trim(&value[at + 4..]);
    match rest.split_first() {
        None | Some((b',', _)) => true,
        Some((b';', rest)) => match trim(rest) {
            [] => true,
            [b'q' | b'Q', b'=', weight @ ..] => is_positive(weight),
            _ => false,
        },
        Some(_) => false,
    }
}

fn trim(text: &[u8]) -> &[u8] {
    &text[text.iter().take_while(|b| **b == b' ').count()..]
}

/// A weight from 0.001 to 1.000 (RFC 9110 section 12.4.2).
fn is_positive(weight: &[u8]) -> bool {
    let end = weight.iter().position(|b| matches!(b, b',' | b' ')).unwrap_or(weight.len());
    match &weight[..end] {
        [b'1'] => true,
        [whole @ (b'0' | b'1'), b'.', digits @ ..] if digits.len() <= 3 => {
            let zeros = digits.iter().all(|d| *d == b'0');
            digits.iter().all(u8::is_ascii_digit) && zeros == (*whole == b'1')
        }
        _ => false,
    }
}

/// Adds `Vary: Accept-Encoding`. Last of the header filters: `gzip` and `gzip_static` have said by then whether it is due.
pub fn vary_filter(r: &mut Request) -> Filtered {
    if r.ctx.gzip.vary && *r.conf().gzip_rules.gzip_vary {
        r.answer.headers.add(K::Vary, "Vary", Text::from("Accept-Encoding"));
    }
    Filtered::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding() {
        for yes in [
            "gzip",
            "gzip,deflate",
            "deflate, gzip",
            "GZIP",
            "gzip ;q=1",
            "gzip; q=0.001",
            "gzip;q=1.000",
            "gzip;",
            "xgzip, gzip",
            "gzip;q=0.5, br",
            "gzip;q=1,br",
        ] {
            assert!(accepts_gzip(yes.as_bytes()), "{yes}");
        }
        for no in [
            "",
            "gzi",
            "deflate",
            "xgzip",
            "gzipx",
            "gzip;q=0",
            "gzip;q=0.000",
            "gzip;q=0.",
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.0001",
            "gzip;x",
            "gzip;q",
            "gzip;q=",
        ] {
            assert!(!accepts_gzip(no.as_bytes()), "{no}");
        }
    }
}
