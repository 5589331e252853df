//! Sets of keys (RFC 7517) for `auth_jwt`: read from files or asked for by subrequests, kept by each thread, and what they say of a
//! signature. A key fits only the algorithms of its own kind, so a public key is never taken for a secret.

use super::encrypted;
use crate::config::complex::Complex;
use crate::config::{Scope, setters};
use crate::log_error;
use crate::request::phases::Verdict;
use crate::request::subrequest::{self, Mode, Options};
use crate::request::{Request, finish};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self as signing, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use conf::{Node, Problem};
use runtime::clock;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A larger set is refused.
const MAX_SET: u64 = 1024 * 1024;
/// Keys of one set.
const MAX_KEYS: usize = 64;
/// Sets that a thread keeps.
const KEPT: usize = 64;
/// Secrets that are shorter are no secrets (RFC 7518 section 3.2 wants 32 bytes; the module takes shorter ones).
const MIN_SECRET: usize = 1;

/// Where a set of keys is.
#[derive(Clone, Debug)]
pub struct Source {
    place: Place,
    text: Complex,
}

#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A file, relative to this directory.
    File(PathBuf),
    /// What a subrequest answers.
    Request,
}

pub(super) fn file(scope: &Scope<'_, '_>) -> Place {
    Place::File(scope.build.conf_prefix.clone())
}

pub(super) fn request(_: &Scope<'_, '_>) -> Place {
    Place::Request
}

/// `auth_jwt_key_file`, `auth_jwt_key_request`; several of a level add up.
pub(super) fn source(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    place: fn(&Scope<'_, '_>) -> Place,
) -> Result<(), Problem> {
    if let Some(word) = node.args.get(1) {
        return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str())));
    }
    let place = place(scope);
    let text = Complex::compile(scope.build, &node.args[0])?;
    // A set that is there and no set of keys is a mistake that can be found now.
    if let (Place::File(folder), Some(name)) = (&place, text.as_fixed()) {
        use std::os::unix::ffi::OsStrExt;
        let path = folder.join(std::ffi::OsStr::from_bytes(name));
        let bytes = scope.build.files.read(&path);
        let bytes = bytes.map_err(|e| {
            node.problem(format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e)))
        })?;
        Keys::parse(&bytes).map_err(|text| node.problem(format!("\"{}\": {text}", path.display())))?;
    }
    let sources = &mut scope.level.conf.auth_jwt.sources;
    if sources.is_set() {
        Arc::make_mut(sources.entry()).push(Source { place, text });
        return Ok(());
    }
    setters::value(sources, node, Arc::new(vec![Source { place, text }]))
}

/// A set of keys.
#[derive(Debug, Default)]
pub struct Keys {
    /// Those that signatures are judged by.
    signing: Vec<Key>,
    /// Those that open encrypted tokens.
    opening: Vec<encrypted::Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, where it says so.
    algorithm: Option<String>,
    material: Material,
}

enum Material {
    Secret(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point, and the name of its curve.
    Ec {
        curve: &'static str,
        point: Vec<u8>,
    },
    Ed25519(Vec<u8>),
}

/// Secrets do not get into logs.
impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Material::Secret(_) => "Secret",
            Material::Rsa { .. } => "Rsa",
            Material::Ec { .. } => "Ec",
            Material::Ed25519(_) => "Ed25519",
        })
    }
}

impl Keys {
    /// Reads a set. Keys of kinds that are not known here are passed over (RFC 7517 section 5).
    fn parse(bytes: &[u8]) -> Result<Keys, &'static str> {
        if bytes.len() as u64 > MAX_SET {
            return Err("the set of keys is too large");
        }
        let set: Value = serde_json::from_slice(bytes).map_err(|_| "it is no JSON")?;
        let list = set.get("keys").and_then(Value::as_array).ok_or("it has no list \"keys\"")?;
        if list.len() > MAX_KEYS {
            return Err("it has too many keys");
        }
        let (signing, opening) = (list.iter().filter_map(key), list.iter().filter_map(encrypted::key));
        Ok(Keys { signing: signing.collect(), opening: opening.collect() })
    }

    /// The same of a set that anybody may read: a secret in it would be none.
    pub fn parse_public(bytes: &[u8]) -> Result<Keys, &'static str> {
        let mut keys = Keys::parse(bytes)?;
        keys.signing.retain(|key| !matches!(key.material, Material::Secret(_)));
        keys.opening.clear();
        Ok(keys)
    }

    /// Opens an encrypted token.
    pub(super) fn open(&self, token: &wire::jwt::Encrypted<'_>) -> Result<Vec<u8>, String> {
        encrypted::open(&self.opening, token)
    }

    /// Whether one of the keys has made a signature.
    pub(super) fn verify(
        &self,
        algorithm: &str,
        kid: Option<&str>,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), String> {
        let named = |key: &&Key| match (kid, &key.id) {
            (Some(wanted), Some(id)) => wanted == id,
            // A key without a name may be any.
            _ => true,
        };
        let fits = |key: &&Key| key.algorithm.as_deref().is_none_or(|own| own == algorithm);
        let mut tried = false;
        for key in self.signing.iter().filter(named).filter(fits) {
            match key.material.verify(algorithm, signed, signature) {
                Some(true) => return Ok(()),
                Some(false) => tried = true,
                None => {}
            }
        }
        Err(if tried {
            "the signature is wrong".to_owned()
        } else {
            format!("there is no key for \"{}\"", shown(algorithm))
        })
    }
}

/// A client's word, short enough for a log.
fn shown(algorithm: &str) -> String {
    algorithm.chars().take(16).collect()
}

fn key(value: &Value) -> Option<Key> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    if text("use").is_some_and(|u| u != "sig") {
        return None;
    }
    let bytes = |name: &str| wire::jwt::decode(text(name)?.trim_end_matches('=').as_bytes()).ok();
    let material = match (text("kty")?, text("crv")) {
        ("oct", _) => Material::Secret(bytes("k").filter(|k| k.len() >= MIN_SECRET)?),
        ("RSA", _) => Material::Rsa { n: bytes("n")?, e: bytes("e")? },
        ("EC", Some(curve)) => {
            let (curve, width) = match curve {
                "P-256" => ("P-256", 32),
                "P-384" => ("P-384", 48),
                "P-521" => ("P-521", 66),
                _ => return None,
            };
            let (x, y) = (bytes("x")?, bytes("y")?);
            if x.len() > width || y.len() > width {
                return None;
            }
            let mut point = vec![4];
            for part in [x, y] {
                point.resize(point.len() + width - part.len(), 0);
                point.extend_from_slice(&part);
            }
            Material::Ec { curve, point }
        }
        ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x")?),
        _ => return None,
    };
    Some(Key { id: text("kid").map(str::to_owned), algorithm: text("alg").map(str::to_owned), material })
}

impl Material {
    /// `None`: the algorithm is not one for such a key.
    fn verify(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> Option<bool> {
        let public = |of: &'static dyn VerificationAlgorithm, key: &[u8]| {
            Some(UnparsedPublicKey::new(of, key).verify(signed, signature).is_ok())
        };
        match (self, algorithm) {
            (Material::Secret(secret), "HS256" | "HS384" | "HS512") => {
                let hash = match algorithm {
                    "HS256" => hmac::HMAC_SHA256,
                    "HS384" => hmac::HMAC_SHA384,
                    _ => hmac::HMAC_SHA512,
                };
                // Compares in constant time.
                Some(hmac::verify(&hmac::Key::new(hash, secret), signed, signature).is_ok())
            }
            (Material::Rsa { n, e }, _) => {
                let parameters = match algorithm {
                    "RS256" => &signing::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signing::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signing::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signing::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signing::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signing::RSA_PSS_2048_8192_SHA512,
                    _ => return None,
                };
                Some(RsaPublicKeyComponents { n, e }.verify(parameters, signed, signature).is_ok())
            }
            (Material::Ec { curve: "P-256", point }, "ES256") => public(&signing::ECDSA_P256_SHA256_FIXED, point),
            (Material::Ec { curve: "P-384", point }, "ES384") => public(&signing::ECDSA_P384_SHA384_FIXED, point),
            (Material::Ec { curve: "P-521", point }, "ES512") => public(&signing::ECDSA_P521_SHA512_FIXED, point),
            (Material::Ed25519(key), "EdDSA") => public(&signing::ED25519, key),
            _ => None,
        }
    }
}

/// What a thread has read or been told.
struct Kept {
    keys: Rc<Keys>,
    /// Of a file: what tells this state of it from another.
    state: (u64, u64, i64, i64),
    /// When it was looked at, ms.
    at: u64,
}

thread_local! {
    static KEEP: RefCell<HashMap<Vec<u8>, Kept>> = RefCell::default();
}

/// The keys of all sources of a level. Errors are logged, and become a status.
pub(super) async fn find(r: &mut Request, sources: &[Source], cache: Duration) -> Result<Rc<Keys>, Verdict> {
    let mut all: Vec<Rc<Keys>> = Vec::with_capacity(sources.len());
    for source in sources {
        let text = source.text.eval(r);
        if r.has_fault() {
            return Err(Verdict::Status(500));
        }
        let name = r.get(text).to_vec();
        let found = match &source.place {
            Place::File(folder) => from_file(r, folder, &name, cache),
            Place::Request => from_request(r, &name, cache).await,
        };
        match found {
            Ok(keys) => all.push(keys),
            Err(text) => {
                log_error!(r, Error, "JWT: no keys from \"{}\": {text}", String::from_utf8_lossy(&name));
                return Err(Verdict::Status(500));
            }
        }
    }
    match <[Rc<Keys>; 1]>::try_from(all) {
        Ok([one]) => Ok(one),
        Err(all) if all.is_empty() => {
            log_error!(r, Error, "JWT: neither \"auth_jwt_key_file\" nor \"auth_jwt_key_request\" is set");
            Err(Verdict::Status(500))
        }
        Err(all) => Ok(Rc::new(Keys {
            signing: all.iter().flat_map(|keys| keys.signing.iter()).map(Key::copy).collect(),
            opening: all.iter().flat_map(|keys| keys.opening.iter()).cloned().collect(),
        })),
    }
}

impl Key {
    fn copy(&self) -> Key {
        let material = match &self.material {
            Material::Secret(k) => Material::Secret(k.clone()),
            Material::Rsa { n, e } => Material::Rsa { n: n.clone(), e: e.clone() },
            Material::Ec { curve, point } => Material::Ec { curve, point: point.clone() },
            Material::Ed25519(k) => Material::Ed25519(k.clone()),
        };
        Key { id: self.id.clone(), algorithm: self.algorithm.clone(), material }
    }
}

/// What is kept under a name, if it is young enough.
fn young(name: &[u8], cache: Duration) -> Option<Rc<Keys>> {
    let now = clock::monotonic_ms();
    KEEP.with_borrow(|keep| {
        let kept = keep.get(name)?;
        (u128::from(now.saturating_sub(kept.at)) < cache.as_millis()).then(|| kept.keys.clone())
    })
}

fn keep(name: Vec<u8>, keys: &Rc<Keys>, state: (u64, u64, i64, i64)) {
    KEEP.with_borrow_mut(|keep| {
        if keep.len() >= KEPT && !keep.contains_key(&name) {
            keep.clear();
        }
        keep.insert(name, Kept { keys: keys.clone(), state, at: clock::monotonic_ms() });
    });
}

/// A file is read again when it has changed; within `auth_jwt_key_cache` it is not even looked at.
fn from_file(r: &Request, folder: &Path, name: &[u8], cache: Duration) -> Result<Rc<Keys>, String> {
    use std::os::unix::ffi::OsStrExt;
    let _ = r;
    let path = folder.join(std::ffi::OsStr::from_bytes(name));
    let id = [b"file:", path.as_os_str().as_bytes()].concat();
    if let Some(keys) = young(&id, cache) {
        return Ok(keys);
    }
    let failed = |e: std::io::Error| crate::log::os_error(&e);
    let facts = std::fs::metadata(&path).map_err(failed)?;
    if facts.len() > MAX_SET {
        return Err("the set of keys is too large".to_owned());
    }
    let state = (facts.ino(), facts.len(), facts.mtime(), facts.mtime_nsec());
    let same = KEEP.with_borrow(|keep| keep.get(&id).filter(|k| k.state == state).map(|k| k.keys.clone()));
    let keys = match same {
        Some(keys) => keys,
        None => Rc::new(Keys::parse(&std::fs::read(&path).map_err(failed)?)?),
    };
    keep(id, &keys, state);
    Ok(keys)
}

async fn from_request(r: &mut Request, uri: &[u8], cache: Duration) -> Result<Rc<Keys>, String> {
    let id = [b"uri:", uri].concat();
    if let Some(keys) = young(&id, cache) {
        return Ok(keys);
    }
    let uri = r.text(uri);
    let (uri, args) = finish::split_args(r, uri);
    let options = Options { mode: Mode::Capture, with_body: false, get: true };
    let mut child =
        subrequest::run(r, uri, args, options).await.map_err(|_| "the subrequest was refused".to_owned())?;
    let answer = child.downstream.take_captured().ok_or("there is no answer")?;
    if child.answer.headers.status != 200 || child.flow.aborted {
        return Err(format!("the answer has status {}", child.answer.headers.status));
    }
    let keys = Rc::new(Keys::parse(&answer)?);
    keep(id, &keys, (0, 0, 0, 0));
    Ok(keys)
}
