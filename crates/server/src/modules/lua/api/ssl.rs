//! `ngx.ssl`, `ngx.ssl.clienthello`, `ngx.ssl.proxysslcert` and `ngx.ssl.proxysslverify`: handshakes, certificates and keys. The functions
//! give back `nil` and why, as OpenResty's do.

use super::super::current::{self, Phase};
use super::super::ssl::{Handshake, Pairs};
use crate::connection::Address;
use crate::request::Request;
use crate::tls::server::AskedClient;
use crate::tls::settings::Protocols;
use crate::tls::{certificate, der::Der, pem};
use ::lua::Fault;
use ::lua::machine::{add as add_function, bytes_of, made_text};
use mlua::{AnyUserData, Lua, MultiValue, Table, UserData, Value};
use rustls::ProtocolVersion;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::IpAddr;
use wire::tls::{extensions, is_grease, pairs, random};

/// What is said of a call outside of the phases that it is for.
const NOT_HERE: &str = "API disabled in the current context";
/// Certificates of one chain.
const MAX_CHAIN: usize = 64;
/// `TLSv1.2`, `TLSv1.3` among the bits of `set_protocols`.
const TLS12: u32 = 0x20;
const TLS13: u32 = 0x40;

/// A chain that a program holds.
struct Chain(Vec<CertificateDer<'static>>);
impl UserData for Chain {}

/// A key that a program holds.
struct Key(PrivateKeyDer<'static>);
impl UserData for Key {}

/// `nil` and why, or something.
type Tried = Result<(Value, Option<String>), Fault>;

fn no(why: impl Into<String>) -> Tried {
    Ok((Value::Nil, Some(why.into())))
}

fn yes() -> Tried {
    Ok((Value::Boolean(true), None))
}

fn text(lua: &Lua, bytes: &[u8]) -> Tried {
    Ok((Value::String(made_text(lua, bytes)?), None))
}

/// Work with the handshake that goes on, in some of its phases.
fn handshake(phases: &[Phase], work: impl FnOnce(&mut Handshake) -> Tried) -> Tried {
    if !phases.contains(&current::phase()) {
        return no(NOT_HERE);
    }
    current::connection(|r| match r.ctx.lua.as_mut().and_then(|c| c.handshake.as_mut()) {
        Some(handshake) => work(handshake),
        None => no("bad request"),
    })
}

/// Work with the certificates that are shown in a handshake, with whichever side.
fn certificates(work: impl FnOnce(&mut Pairs, &CryptoProvider) -> Result<(), &'static str>) -> Tried {
    let done = |result: Result<(), &'static str>| match result {
        Ok(()) => yes(),
        Err(why) => no(why),
    };
    match current::phase() {
        Phase::Certificate => handshake(&[Phase::Certificate], |h| {
            let Some(config) = h.config.clone() else { return no("bad ssl conn") };
            done(work(&mut h.pairs, config.crypto_provider()))
        }),
        Phase::ProxyCertificate => current::request(|r| {
            let Some(peer) = r.ctx.lua.as_mut().and_then(|c| c.upstream.as_mut()) else { return no("bad request") };
            let provider = peer.provider.clone();
            done(work(&mut peer.pairs, &provider))
        }),
        _ => no(NOT_HERE),
    }
}

/// The certificates of a chain in DER, one behind the other.
pub(super) fn der_chain(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let mut chain = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (_, _, whole) = Der::new(rest).any().map_err(|_| "d2i_X509_bio() failed")?;
        if chain.len() == MAX_CHAIN {
            return Err("too many certificates");
        }
        chain.push(CertificateDer::from(whole.to_vec()));
        rest = &rest[whole.len()..];
    }
    if chain.is_empty() { Err("d2i_X509_bio() failed") } else { Ok(chain) }
}

fn der_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    PrivateKeyDer::try_from(bytes.to_vec()).map_err(|_| "d2i_PrivateKey_bio() failed")
}

fn pem_chain(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let chain = certificate::chain(bytes).map_err(|_| "PEM_read_bio_X509_AUX() failed")?;
    if chain.len() > MAX_CHAIN { Err("too many certificates") } else { Ok(chain) }
}

fn pem_key(bytes: &[u8], password: Option<Vec<u8>>) -> Result<PrivateKeyDer<'static>, &'static str> {
    let passwords: Vec<_> = password.into_iter().collect();
    certificate::private_key(bytes, &passwords).map(|(key, _)| key).map_err(|_| "PEM_read_bio_PrivateKey() failed")
}

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_material(lua, raw)?;
    add_server(lua, raw)?;
    add_hello(lua, raw)?;
    add_verify(lua, raw)
}

/// Certificates and keys, as texts and as values.
fn add_material(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "ssl_pem_to_der", |lua, pem: Value| {
        match pem_chain(&bytes_of(&pem, 1, "cert_pem_to_der")?) {
            Ok(chain) => text(lua, &chain.iter().flat_map(|c| c.to_vec()).collect::<Vec<_>>()),
            Err(why) => no(why),
        }
    })?;
    add_function(lua, raw, "ssl_key_to_der", |lua, (pem, password): (Value, Value)| {
        let password = match &password {
            Value::Nil => None,
            password => Some(bytes_of(password, 2, "priv_key_pem_to_der")?),
        };
        match pem_key(&bytes_of(&pem, 1, "priv_key_pem_to_der")?, password) {
            Ok(key) => text(lua, key.secret_der()),
            Err(why) => no(why),
        }
    })?;
    add_function(lua, raw, "ssl_parse_cert", |lua, (given, is_pem): (Value, bool)| {
        let bytes = bytes_of(&given, 1, if is_pem { "parse_pem_cert" } else { "parse_der_cert" })?;
        match if is_pem { pem_chain(&bytes) } else { der_chain(&bytes) } {
            Ok(chain) => Ok((Value::UserData(lua.create_userdata(Chain(chain)).map_err(broken)?), None)),
            Err(why) => no(why),
        }
    })?;
    add_function(lua, raw, "ssl_parse_key", |lua, (given, is_pem): (Value, bool)| {
        let bytes = bytes_of(&given, 1, if is_pem { "parse_pem_priv_key" } else { "parse_der_priv_key" })?;
        match if is_pem { pem_key(&bytes, None) } else { der_key(&bytes) } {
            Ok(key) => Ok((Value::UserData(lua.create_userdata(Key(key)).map_err(broken)?), None)),
            Err(why) => no(why),
        }
    })?;
    add_function(lua, raw, "ssl_clear_certs", |_, ()| {
        certificates(|pairs, _| {
            pairs.clear();
            Ok(())
        })
    })?;
    add_function(lua, raw, "ssl_set_cert", |_, given: Value| match chain_of(&given)? {
        Ok(chain) => certificates(|pairs, provider| pairs.add_chain(chain, provider)),
        Err(why) => no(why),
    })?;
    add_function(lua, raw, "ssl_verify_client", |_, (named, depth, trusted): (Value, Option<f64>, Value)| {
        let chain = |given: &Value| match given {
            Value::Nil => Ok(Ok(Vec::new())),
            given => chain_of(given),
        };
        match (chain(&named)?, chain(&trusted)?) {
            (Ok(named), Ok(trusted)) => ask_client(named, depth, trusted),
            (Err(why), _) | (_, Err(why)) => no(why),
        }
    })?;
    add_function(lua, raw, "ssl_set_key", |_, given: Value| match key_of(&given)? {
        Ok(key) => certificates(|pairs, provider| pairs.add_key(key, provider)),
        Err(why) => no(why),
    })
}

/// `verify_client`: the client is asked for its certificate, and what it comes to is `$ssl_client_verify`.
fn ask_client(named: Vec<CertificateDer<'static>>, depth: Option<f64>, more: Vec<CertificateDer<'static>>) -> Tried {
    if current::phase() != Phase::Certificate {
        return no(NOT_HERE);
    }
    current::connection(|r| {
        if r.client.quic {
            return no("not supported for connections of QUIC");
        }
        // Less than none: as the server says.
        let own = *r.server().conf.ssl.verify_depth as usize;
        let depth = depth.filter(|depth| *depth >= 0.0).map_or(own, |depth| depth as usize);
        let Some(handshake) = r.ctx.lua.as_mut().and_then(|c| c.handshake.as_mut()) else { return no("bad request") };
        let trusted = named.iter().cloned().chain(more).collect();
        handshake.client = Some(AskedClient { named, trusted, depth });
        yes()
    })
}

fn broken(e: mlua::Error) -> Fault {
    Fault(e.to_string())
}

/// A chain: one that was parsed, or DER. The inner error is for the program to look at.
pub fn chain_of(given: &Value) -> Result<Result<Vec<CertificateDer<'static>>, &'static str>, Fault> {
    match given {
        Value::UserData(data) => Ok(held::<Chain, _>(data, |c| c.0.clone()).ok_or("not a certificate")),
        other => Ok(der_chain(&bytes_of(other, 1, "set_der_cert")?)),
    }
}

/// A key: one that was parsed, or DER.
pub fn key_of(given: &Value) -> Result<Result<PrivateKeyDer<'static>, &'static str>, Fault> {
    match given {
        Value::UserData(data) => Ok(held::<Key, _>(data, |k| k.0.clone_key()).ok_or("not a private key")),
        other => Ok(der_key(&bytes_of(other, 1, "set_der_priv_key")?)),
    }
}

fn held<U: 'static, T>(data: &AnyUserData, show: impl FnOnce(&U) -> T) -> Option<T> {
    data.borrow::<U>().ok().map(|held| show(&held))
}

fn raw_address(
    lua: &Lua,
    address: Option<&Address>,
) -> Result<(Value, Option<&'static str>, Option<&'static str>), Fault> {
    let made = |bytes: &[u8]| made_text(lua, bytes).map(Value::String);
    Ok(match address {
        Some(Address::Inet(address)) => match address.ip() {
            IpAddr::V4(ip) => (made(&ip.octets())?, Some("inet"), None),
            IpAddr::V6(ip) => (made(&ip.octets())?, Some("inet6"), None),
        },
        Some(Address::Unix(path)) => (made(path.display().to_string().as_bytes())?, Some("unix"), None),
        None => (Value::Nil, None, Some("bad ssl conn")),
    })
}

/// What the connection is, in handshakes and later.
fn add_server(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "ssl_server_name", |lua, ()| {
        current::connection(|r| {
            let name = match r.ctx.lua.as_ref().and_then(|c| c.handshake.as_ref()) {
                Some(h) => h.hello.server_name.map(|name| name.of(&h.message).to_vec()),
                None => match r.client.tls.get() {
                    Some(facts) => facts.asked.as_ref().map(|name| name.as_bytes().to_vec()),
                    None => return no("bad ssl conn"),
                },
            };
            name.map_or(Ok((Value::Nil, None)), |name| text(lua, &name))
        })
    })?;
    add_function(lua, raw, "ssl_server_port", |_, ()| {
        current::connection(|r| match crate::worker::local_address(&r.client) {
            Address::Inet(address) => Ok((Value::Integer(address.port().into()), None)),
            Address::Unix(_) => no("unix domain has no port"),
        })
    })?;
    add_function(lua, raw, "ssl_raw_server_addr", |lua, ()| {
        current::connection(|r| raw_address(lua, Some(&crate::worker::local_address(&r.client))))
    })?;
    add_function(lua, raw, "ssl_raw_client_addr", |lua, ()| {
        current::connection(|r| {
            let remote = r.client.remote.borrow();
            raw_address(lua, Some(&remote))
        })
    })?;
    add_function(lua, raw, "ssl_version", |_, ()| {
        current::connection(|r| match version(r) {
            Some(version) => Ok((Value::Integer(i64::from(u16::from(version))), None)),
            None => no("bad ssl conn"),
        })
    })?;
    add_function(lua, raw, "ssl_client_random", |lua, ()| {
        current::connection(|r| match r.ctx.lua.as_ref().and_then(|c| c.handshake.as_ref()) {
            Some(h) => random(&h.message).map_or_else(|| no("bad ssl conn"), |bytes| text(lua, bytes)),
            None => no("bad ssl conn"),
        })
    })?;
    add_function(lua, raw, "ssl_shared_ciphers", |lua, no_grease: bool| {
        current::connection(|r| {
            let Some(h) = r.ctx.lua.as_ref().and_then(|c| c.handshake.as_ref()) else { return no("bad ssl conn") };
            let known = |number: &u16| match &h.config {
                Some(config) => config.crypto_provider().cipher_suites.iter().any(|s| u16::from(s.suite()) == *number),
                None => true,
            };
            let offered = pairs(h.hello.ciphers.of(&h.message));
            let shared = offered.filter(|n| if is_grease(*n) { !no_grease } else { known(n) });
            Ok((Value::Table(lua.create_sequence_from(shared).map_err(broken)?), None))
        })
    })
}

/// The version that is, or will be, agreed on.
fn version(r: &Request) -> Option<ProtocolVersion> {
    if let Some(done) = r.client.tls.get().and_then(|facts| facts.done.get()) {
        return Some(done.version);
    }
    let h = r.ctx.lua.as_ref()?.handshake.as_ref()?;
    let allowed = h.protocols.is_none_or(|p| p.tls13);
    let has13 = h.config.as_ref().is_none_or(|c| {
        c.crypto_provider().cipher_suites.iter().any(|s| s.version().version == ProtocolVersion::TLSv1_3)
    });
    let best = ProtocolVersion::from(h.hello.best_version(&h.message));
    let lower = best == ProtocolVersion::TLSv1_3 && !(allowed && has13);
    Some(if lower { ProtocolVersion::TLSv1_2 } else { best })
}

const HELLO: &[Phase] = &[Phase::ClientHello];

/// The ClientHello.
fn add_hello(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "hello_server_name", |lua, ()| {
        handshake(HELLO, |h| match h.hello.server_name {
            Some(name) => text(lua, name.of(&h.message)),
            None => Ok((Value::Nil, None)),
        })
    })?;
    add_function(lua, raw, "hello_ext", |lua, kind: f64| {
        handshake(HELLO, |h| {
            let all = extensions(&h.message).unwrap_or_default();
            match all.iter().find(|(k, _)| f64::from(*k) == kind) {
                Some((_, body)) => text(lua, body.of(&h.message)),
                None => Ok((Value::Nil, None)),
            }
        })
    })?;
    add_function(lua, raw, "hello_exts", |lua, ()| {
        handshake(HELLO, |h| {
            let all = extensions(&h.message).unwrap_or_default();
            let kinds = all.iter().map(|(k, _)| *k).filter(|k| !is_grease(*k));
            Ok((Value::Table(lua.create_sequence_from(kinds).map_err(broken)?), None))
        })
    })?;
    add_function(lua, raw, "hello_ciphers", |lua, ()| {
        handshake(HELLO, |h| {
            let ciphers = pairs(h.hello.ciphers.of(&h.message)).filter(|c| !is_grease(*c));
            Ok((Value::Table(lua.create_sequence_from(ciphers).map_err(broken)?), None))
        })
    })?;
    add_function(lua, raw, "hello_set_protocols", |_, bits: f64| {
        handshake(HELLO, |h| {
            let bits = bits as u32;
            // Older ones the library does not have: who allows them as well gets what is left.
            h.protocols = Some(Protocols { tls12: bits & TLS12 != 0, tls13: bits & TLS13 != 0 });
            yes()
        })
    })
}

/// `ngx.ssl.proxysslverify`
fn add_verify(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    fn verified<T>(work: impl FnOnce(&mut super::super::upstream::Peer) -> Result<T, Fault>) -> Result<T, Fault> {
        if current::phase() != Phase::ProxyVerify {
            return Err(Fault(NOT_HERE.to_owned()));
        }
        current::request(|r| match r.ctx.lua.as_mut().and_then(|c| c.upstream.as_mut()) {
            Some(peer) => work(peer),
            None => Err(Fault("no request found".to_owned())),
        })
    }
    add_function(lua, raw, "proxy_ssl_result", |_, ()| verified(|peer| Ok(peer.result)))?;
    add_function(lua, raw, "proxy_ssl_set_result", |_, code: f64| {
        verified(|peer| {
            (peer.result, peer.judged) = (code as i64, true);
            Ok(true)
        })
    })?;
    add_function(lua, raw, "proxy_ssl_version", |_, ()| {
        current::request(|r| {
            let peer = r.ctx.lua.as_ref().and_then(|c| c.upstream.as_ref());
            match peer.map(|peer| peer.version) {
                Some(Some(version)) => Ok((Value::Integer(i64::from(u16::from(version))), None)),
                Some(None) => no("the version is not agreed on yet"),
                None => no("bad ssl conn"),
            }
        })
    })?;
    add_function(lua, raw, "proxy_ssl_cert", |lua, ()| {
        verified(|peer| match peer.chain.is_empty() {
            true => Ok(MultiValue::from_iter([Value::Nil, Value::String(made_text(lua, b"no certificate")?)])),
            false => {
                let chain = lua.create_userdata(Chain(peer.chain.clone())).map_err(broken)?;
                Ok(MultiValue::from_iter([Value::UserData(chain)]))
            }
        })
    })?;
    add_function(lua, raw, "ssl_cert_pem", |lua, given: AnyUserData| {
        let Some(chain) = held::<Chain, _>(&given, |c| c.0.clone()) else { return no("not a certificate") };
        let all: Vec<u8> = chain.iter().flat_map(|c| pem::write("CERTIFICATE", c)).collect();
        text(lua, &all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_certificates_one_behind_the_other() {
        let one = [0x30, 3, 2, 1, 7];
        let two = [one, one].concat();
        assert_eq!(der_chain(&two).map(|c| c.len()), Ok(2));
        assert!(der_chain(&two[..7]).is_err());
        assert!(der_chain(b"").is_err());
        let many = one.repeat(MAX_CHAIN + 1);
        assert_eq!(der_chain(&many), Err("too many certificates"));
    }
}
