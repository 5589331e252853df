//! `$upstream_*`: what became of a request's tries at peers (nginx's `ngx_http_upstream`).

use crate::config::variables::{Builtin, Prefix};
use crate::request::{Request, Text};
use crate::upstream::Attempt;

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    row("upstream_addr", |r| {
        list(r, |a| match (&a.peer, &a.group) {
            (Some(p), _) => p.name.to_string(),
            (None, Some(g)) => g.to_string(),
            _ => String::new(),
        })
    }),
    row("upstream_status", |r| list(r, |a| if a.status == 0 { "-".into() } else { format!("{:03}", a.status) })),
    row("upstream_connect_time", |r| list(r, |a| seconds(a.connect_ms))),
    row("upstream_header_time", |r| list(r, |a| seconds(a.header_ms))),
    row("upstream_response_time", |r| list(r, |a| seconds(a.response_ms))),
    row("upstream_response_length", |r| list(r, |a| a.body_bytes.to_string())),
    row("upstream_bytes_received", |r| list(r, |a| a.received.to_string())),
    row("upstream_bytes_sent", |r| list(r, |a| a.sent.to_string())),
];

/// Rules for variables with a prefix.
pub const PREFIXES: &[Prefix] = &[
    Prefix { name: "upstream_http_", evaluate: header, volatile: true },
    Prefix { name: "upstream_trailer_", evaluate: trailer, volatile: true },
    Prefix { name: "upstream_cookie_", evaluate: cookie, volatile: true },
];

const fn row(name: &'static str, evaluate: fn(&mut Request) -> Option<Text>) -> Builtin {
    Builtin { name, evaluate, volatile: true, assign: None }
}

pub(super) fn seconds(ms: Option<u64>) -> String {
    ms.map_or_else(|| "-".into(), |ms| format!("{}.{:03}", ms / 1000, ms % 1000))
}

/// `a, b : c`: tries at one location are separated by commas, locations by colons.
pub(super) fn list(r: &mut Request, show: fn(&Attempt) -> String) -> Option<Text> {
    if r.attempts.all.is_empty() {
        return None;
    }
    let mut out = String::new();
    let mut separator = "";
    for a in &r.attempts.all {
        if a.gap {
            separator = " : ";
            continue;
        }
        out.push_str(separator);
        out.push_str(&show(a));
        separator = ", ";
    }
    Some(r.text(out.as_bytes()))
}

fn header(r: &mut Request, name: &str) -> Option<Text> {
    let mut out: Option<Vec<u8>> = None;
    for line in &r.attempts.head.headers {
        let line_name = r.attempts.text(line.name);
        if super::variables::is_named(r.get(line_name), name) {
            let value = r.get(r.attempts.text(line.value)).to_vec();
            match &mut out {
                None => out = Some(value),
                Some(all) => {
                    all.extend_from_slice(b", ");
                    all.extend_from_slice(&value);
                }
            }
        }
    }
    out.map(|v| r.text(&v))
}

fn trailer(r: &mut Request, name: &str) -> Option<Text> {
    r.attempts.trailers.iter().find(|(n, _)| super::variables::is_named(r.get(*n), name)).map(|(_, v)| *v)
}

/// Spaces are taken off around the `=` and nowhere else (`ngx_http_parse_set_cookie_lines`).
fn cookie(r: &mut Request, name: &str) -> Option<Text> {
    for line in &r.attempts.head.headers {
        if line.known != crate::request::headers::KnownHeader::SetCookie {
            continue;
        }
        let value = r.get(r.attempts.text(line.value));
        let pair = &value[..memchr::memchr(b';', value).unwrap_or(value.len())];
        if let Some(value) = wire::http1::values::find_in_list(pair, name.as_bytes(), b';') {
            let value = value.to_vec();
            return Some(r.text(&value));
        }
    }
    None
}
