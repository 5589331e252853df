//! `ngx.ocsp`: what a program needs to staple answers of OCSP to the certificates that it gives; asking is its own business.
//! And `ngx.ssl.session`, whose programs stand in the same handshakes.

use super::super::current::{self, Phase};
use super::super::ssl::Handshake;
use super::ssl::der_chain;
use crate::tls::ocsp::message::{self, Status};
use crate::tls::x509::Certificate;
use ::lua::Fault;
use ::lua::machine::{add as add_function, bytes_of, made_text};
use mlua::{Lua, Table, Value};
use rustls::pki_types::CertificateDer;
use wire::tls::extensions;

/// The extension `status_request` (RFC 6066 section 8).
const STATUS_REQUEST: u16 = 5;
/// The largest answer of a responder that is taken, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// The largest session that a program may give.
const MAX_SESSION: usize = 16 * 1024;

/// `nil` and why, or something, and something about it.
type Tried = Result<(Value, Value), Fault>;

fn no(lua: &Lua, why: &str) -> Tried {
    Ok((Value::Nil, Value::String(made_text(lua, why.as_bytes())?)))
}

fn text(lua: &Lua, bytes: &[u8]) -> Tried {
    Ok((Value::String(made_text(lua, bytes)?), Value::Nil))
}

/// Work with the handshake of the running phase, if it is one of these.
fn handshake(lua: &Lua, phases: &[Phase], work: impl FnOnce(&mut Handshake) -> Tried) -> Tried {
    if !phases.contains(&current::phase()) {
        return no(lua, "API disabled in the current context");
    }
    current::connection(|r| match r.ctx.lua.as_mut().and_then(|c| c.handshake.as_mut()) {
        Some(handshake) => work(handshake),
        None => no(lua, "bad request"),
    })
}

/// A certificate with its issuer's, of a chain in DER.
fn pair<'c>(chain: &'c [CertificateDer<'static>]) -> Result<(Certificate<'c>, Certificate<'c>), &'static str> {
    let [leaf, issuer, ..] = chain else { return Err("no issuer certificate in chain") };
    let parsed = |der| Certificate::parse(der).map_err(|_| "d2i_X509_bio() failed");
    let (leaf, issuer) = (parsed(leaf)?, parsed(issuer)?);
    if leaf.issuer != issuer.subject {
        return Err("issuer certificate not next to leaf");
    }
    Ok((leaf, issuer))
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "ocsp_responder", |lua, given: Value| {
        let chain = match der_chain(&bytes_of(&given, 1, "get_ocsp_responder_from_der_chain")?) {
            Ok(chain) => chain,
            Err(why) => return no(lua, why),
        };
        match pair(&chain).map(|(leaf, _)| message::responder(&leaf)) {
            Ok(Some(address)) => text(lua, address.as_bytes()),
            Ok(None) => Ok((Value::Nil, Value::Nil)),
            Err(why) => no(lua, why),
        }
    })?;
    add_function(lua, raw, "ocsp_question", |lua, given: Value| {
        let chain = match der_chain(&bytes_of(&given, 1, "create_ocsp_request")?) {
            Ok(chain) => chain,
            Err(why) => return no(lua, why),
        };
        let identifier = pair(&chain)
            .and_then(|(leaf, issuer)| message::identifier(&leaf, &issuer).map_err(|_| "OCSP_cert_to_id() failed"));
        match identifier {
            Ok(identifier) => text(lua, &message::question(&identifier)),
            Err(why) => no(lua, why),
        }
    })?;
    add_function(lua, raw, "ocsp_check", |lua, (answer, given): (Value, Value)| {
        let answer = bytes_of(&answer, 1, "validate_ocsp_response")?;
        let checked = der_chain(&bytes_of(&given, 2, "validate_ocsp_response")?)
            .map_err(str::to_owned)
            .and_then(|chain| check(&answer, &chain));
        match checked {
            Ok(i64::MAX) => Ok((Value::Boolean(true), Value::Nil)),
            Ok(until) => Ok((Value::Boolean(true), Value::Number(until as f64))),
            Err(why) => no(lua, &why),
        }
    })?;
    add_function(lua, raw, "ocsp_staple", |lua, given: Value| {
        let answer = bytes_of(&given, 1, "set_ocsp_status_resp")?;
        handshake(lua, &[Phase::Certificate], |h| {
            let all = extensions(&h.message).unwrap_or_default();
            if !all.iter().any(|(kind, _)| *kind == STATUS_REQUEST) {
                return Ok((Value::Boolean(true), Value::String(made_text(lua, b"no status req")?)));
            }
            if answer.len() > MAX_ANSWER {
                return no(lua, "SSL_set_tlsext_status_ocsp_resp() failed");
            }
            h.pairs.staple = Some(answer);
            Ok((Value::Boolean(true), Value::Nil))
        })
    })?;
    add_sessions(lua, raw)
}

/// Until when an answer says that a certificate stands; the end of time if it does not say.
fn check(answer: &[u8], chain: &[CertificateDer<'static>]) -> Result<i64, String> {
    let (leaf, issuer) = pair(chain)?;
    let identifier = message::identifier(&leaf, &issuer).map_err(|_| "OCSP_cert_to_id() failed")?;
    let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
    let now = runtime::clock::wall_seconds();
    let found = message::check(answer, &identifier, Some((&issuer, &algorithms)), now)?;
    match found.status {
        Status::Good => Ok(found.valid_s),
        bad => Err(format!("certificate status \"{}\" in the OCSP response", bad.name())),
    }
}

/// `ngx.ssl.session`
fn add_sessions(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    const BOTH: &[Phase] = &[Phase::SessionFetch, Phase::SessionStore];
    add_function(lua, raw, "session_id", |lua, ()| {
        handshake(lua, BOTH, |h| text(lua, &::lua::text::hex(&h.session.id)))
    })?;
    add_function(lua, raw, "session_value", |lua, ()| {
        handshake(lua, BOTH, |h| match &h.session.value {
            Some(value) => text(lua, value),
            None => no(lua, "no session"),
        })
    })?;
    add_function(lua, raw, "session_give", |lua, given: Value| {
        let value = bytes_of(&given, 1, "set_serialized_session")?;
        handshake(lua, &[Phase::SessionFetch], |h| {
            // One of another server, or of no server at all, is none here.
            if value.len() > MAX_SESSION || !value.starts_with(&h.session.scope) {
                return no(lua, "d2i_SSL_SESSION() failed");
            }
            h.session.value = Some(value);
            Ok((Value::Boolean(true), Value::Nil))
        })
    })
}
