//! The variables `$ssl_*`: what is known of a connection's TLS (nginx's `ngx_http_ssl_vars`).

use crate::config::variables::Builtin;
use crate::connection::handshake::{Done, Facts};
use crate::request::{Request, Text};
use crate::tls::x509::Certificate;
use crate::tls::{cipher_names, ciphers, names, pem};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::{HandshakeKind, NamedGroup, ProtocolVersion};
use std::fmt::Write;
use wire::http1::escape::{Escape, escape_uri};

/// Seconds of a day.
const DAY: i64 = 86400;

macro_rules! done {
    ($name:literal, $get:expr) => {
        Builtin {
            name: $name,
            evaluate: |r| {
                let get: fn(&Facts, &Done) -> Option<String> = $get;
                with(r, |facts| facts.done.get().and_then(|done| get(facts, done)))
            },
            volatile: false,
            assign: None,
        }
    };
}

macro_rules! client {
    ($name:literal, $get:expr) => {
        done!($name, |_, done| {
            let get: fn(&Certificate<'_>) -> Option<String> = $get;
            get(&Certificate::parse(done.chain.first()?).ok()?)
        })
    };
}

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    done!("ssl_protocol", |_, d| Some(protocol(d.version))),
    done!("ssl_cipher", |_, d| Some(d.cipher.map_or("(NONE)", ciphers::cipher_name).to_owned())),
    Builtin { name: "ssl_ciphers", evaluate: |r| with(r, |f| f.list(0, cipher)), volatile: false, assign: None },
    done!("ssl_curve", |_, d| d.group.map(|g: NamedGroup| ciphers::group_name(g))),
    Builtin {
        name: "ssl_curves",
        evaluate: |r| with(r, |f| f.list(1, ciphers::group_by_number)),
        volatile: false,
        assign: None,
    },
    done!("ssl_sigalg", |_, d| d.notes.signed_by.map(ciphers::signature_name)),
    Builtin {
        name: "ssl_sigalgs",
        evaluate: |r| with(r, |f| f.list(2, |n| format!("0x{n:04x}"))),
        volatile: false,
        assign: None,
    },
    done!("ssl_session_id", |_, d| d.notes.session_id.as_deref().map(hex)),
    done!("ssl_session_reused", |_, d| {
        Some(if d.kind == Some(HandshakeKind::Resumed) { "r" } else { "." }.to_owned())
    }),
    Builtin {
        name: "ssl_ja4",
        evaluate: |r| with(r, |f| f.ja4.as_deref().map(str::to_owned)),
        volatile: false,
        assign: None,
    },
    Builtin { name: "ssl_early_data", evaluate: early_data, volatile: true, assign: None },
    Builtin {
        name: "ssl_server_name",
        evaluate: |r| with(r, |f| f.asked.as_deref().map(str::to_owned)),
        volatile: false,
        assign: None,
    },
    done!("ssl_alpn_protocol", |_, d| d.alpn.as_deref().map(|p| String::from_utf8_lossy(p).into_owned())),
    Builtin { name: "ssl_ech_status", evaluate: |_| None, volatile: false, assign: None },
    Builtin { name: "ssl_ech_outer_server_name", evaluate: |_| None, volatile: false, assign: None },
    client!("ssl_client_cert", |c| Some(raw(c).trim_end().replace('\n', "\n\t"))),
    client!("ssl_client_raw_cert", |c| Some(raw(c))),
    client!("ssl_client_escaped_cert", |c| {
        let mut out = Vec::new();
        escape_uri(raw(c).as_bytes(), Escape::UriComponent, &mut out);
        String::from_utf8(out).ok()
    }),
    client!("ssl_client_s_dn", |c| Some(names::rfc2253(c.subject))),
    client!("ssl_client_i_dn", |c| Some(names::rfc2253(c.issuer))),
    client!("ssl_client_s_dn_legacy", |c| Some(names::oneline(c.subject))),
    client!("ssl_client_i_dn_legacy", |c| Some(names::oneline(c.issuer))),
    client!("ssl_client_serial", |c| Some(names::serial(c.serial))),
    client!("ssl_client_fingerprint", |c| Some(hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, c.der).as_ref()))),
    done!("ssl_client_verify", |_, d| {
        Some(match (d.chain.is_empty(), d.verified) {
            (true, _) => "NONE".to_owned(),
            (false, Ok(())) => "SUCCESS".to_owned(),
            (false, Err(failure)) => format!("FAILED:{}", failure.text()),
        })
    }),
    client!("ssl_client_v_start", |c| Some(names::time(c.not_before))),
    client!("ssl_client_v_end", |c| Some(names::time(c.not_after))),
    client!("ssl_client_v_remain", |c| {
        let left = c.not_after - runtime::clock::wall_seconds();
        Some((left.max(0) / DAY).to_string())
    }),
    done!("ssl_client_sigalg", |_, d| d.notes.client_signed_by.map(ciphers::signature_name)),
];

/// A text of the connection's facts; nothing where there are none or it is empty.
fn with(r: &mut Request, get: impl FnOnce(&Facts) -> Option<String>) -> Option<Text> {
    let text = get(r.client.tls.get()?)?;
    (!text.is_empty()).then(|| r.text(text.as_bytes()))
}

fn early_data(r: &mut Request) -> Option<Text> {
    let early = r.client.tls.get()?.early.get();
    (early && r.downstream.is_handshaking()).then_some(Text::from("1"))
}

fn protocol(version: ProtocolVersion) -> String {
    match version {
        ProtocolVersion::TLSv1_3 => "TLSv1.3",
        _ => "TLSv1.2",
    }
    .to_owned()
}

fn cipher(number: u16) -> String {
    cipher_names::by_number(number).map_or_else(|| format!("0x{number:04x}"), str::to_owned)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        _ = write!(out, "{b:02x}");
        out
    })
}

fn raw(c: &Certificate<'_>) -> String {
    String::from_utf8_lossy(&pem::write("CERTIFICATE", c.der)).into_owned()
}
