//! `auth_jwt`: a request is let in by a signed token (NGINX Plus' `ngx_http_auth_jwt_module`; RFC 7519). Keys are sets of RFC 7517,
//! from a file or from a subrequest (`keys`); what a token says is in variables once its signature was found right, or once it was
//! opened, where it is encrypted (`encrypted`).

mod encrypted;
pub mod keys;

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::variables::Prefix;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Handler, Verdict};
use crate::request::{Method, Request, Text};
use crate::{inherited, merged_values};
use conf::{Contexts, Node, Problem};
use keys::Source;
use runtime::clock;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use wire::jwt::{self, NoToken};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("auth_jwt", auth_jwt),
    http("auth_jwt_key_file", |s, n| keys::source(s, n, keys::file)),
    http("auth_jwt_key_request", |s, n| keys::source(s, n, keys::request)),
    http("auth_jwt_key_cache", |s, n| setters::time(&mut s.level.conf.auth_jwt.auth_jwt_key_cache, n)),
    http("auth_jwt_leeway", |s, n| setters::seconds(&mut s.level.conf.auth_jwt.auth_jwt_leeway, n)),
    http("auth_jwt_type", |s, n| setters::one_of(&mut s.level.conf.auth_jwt.auth_jwt_type, n, &TYPES)),
    http("auth_jwt_require", require),
    http("auth_jwt_claim_set", |s, n| set_variable(s, n, |context| &context.claims)),
    http("auth_jwt_header_set", |s, n| set_variable(s, n, |context| &context.header)),
];

/// Rules for variables with a prefix.
pub const PREFIXES: &[Prefix] = &[
    Prefix { name: "jwt_claim_", evaluate: |r, name| value_of(r, |c| &c.claims, &[name.into()]), volatile: true },
    Prefix { name: "jwt_header_", evaluate: |r, name| value_of(r, |c| &c.header, &[name.into()]), volatile: true },
];

/// The variables.
pub const VARIABLES: &[crate::config::variables::Builtin] = &[crate::config::variables::Builtin {
    name: "jwt_payload",
    evaluate: |r| {
        let payload = r.ctx.auth_jwt.as_ref()?.payload.clone();
        Some(r.text(&payload))
    },
    volatile: true,
    assign: None,
}];

/// Its place in the access phase.
pub const HANDLER: Handler = Handler::Later(|r| r.conf().auth_jwt.is_on(), |r| Box::pin(check(r)));

const TYPES: [(&str, Type); 3] = [("signed", Type::Signed), ("encrypted", Type::Encrypted), ("nested", Type::Nested)];

/// How tokens are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// By a signature.
    Signed,
    /// Only this server can read them.
    Encrypted,
    /// A signed one inside an encrypted one.
    Nested,
}

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// `auth_jwt_type`
        auth_jwt_type: Type = Type::Signed,
        /// The realm, and where the token is.
        auth_jwt: Option<Arc<Asked>> = None,
        /// Where keys are.
        sources: Arc<Vec<Source>> = Arc::default(),
        /// For how long keys are not looked for again.
        auth_jwt_key_cache: Duration = Duration::ZERO,
        /// By how much clocks may differ.
        auth_jwt_leeway: Duration = Duration::ZERO,
        /// What must be true of the token.
        requirements: Arc<Vec<Requirement>> = Arc::default(),
    }
}

inherited!(Conf, |_| true);

impl Conf {
    /// Whether a token is asked for by which no token can be judged.
    fn lacks_keys(&self) -> bool {
        self.is_on() && self.sources.is_empty()
    }

    /// Whether a token is asked for.
    pub fn is_on(&self) -> bool {
        self.auth_jwt.is_some()
    }
}

/// `auth_jwt`
#[derive(Debug)]
pub struct Asked {
    realm: Complex,
    /// None: the `Authorization` header.
    token: Option<Complex>,
}

/// One `auth_jwt_require`.
#[derive(Clone, Debug)]
pub struct Requirement {
    values: Vec<Complex>,
    status: u16,
}

/// What a token has said.
#[derive(Debug)]
pub struct Context {
    header: Value,
    claims: Value,
    payload: Vec<u8>,
}

impl Context {
    /// What the token says, for who asks for nothing else.
    pub fn into_claims(self) -> Value {
        self.claims
    }
}

/// Warns of levels where every request is refused: `-t` would say nothing otherwise.
pub fn finish_level(build: &mut Build<'_>, level: &ConfigLevel) {
    // A server's own values hold where no location does; those inside may have keys.
    let is_last = level.context.intersects(Contexts::LOCATION) || level.children.is_empty();
    if is_last && !level.context.intersects(Contexts::HTTP) && level.conf.auth_jwt.lacks_keys() {
        let place = String::from_utf8_lossy(&level.name);
        let text =
            "\"auth_jwt\" has neither \"auth_jwt_key_file\" nor \"auth_jwt_key_request\": every request is refused";
        let within = if place.is_empty() { String::new() } else { format!(" (location \"{place}\")") };
        super::ssl::warn_once(build, format!("{text}{within}"));
    }
}

fn auth_jwt(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (realm, rest) = node.args.split_first().ok_or_else(|| Problem::invalid_arguments(node))?;
    let asked = if *realm == "off" && rest.is_empty() {
        None
    } else {
        let token = match rest {
            [] => None,
            [word] => match word.text.strip_prefix(b"token=") {
                Some(text) => Some(Complex::compile_bytes(scope.build, text).map_err(|t| node.problem(t))?),
                None => return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str()))),
            },
            _ => return Err(Problem::invalid_arguments(node)),
        };
        Some(Arc::new(Asked { realm: Complex::compile(scope.build, realm)?, token }))
    };
    setters::value(&mut scope.level.conf.auth_jwt.auth_jwt, node, asked)
}

fn require(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (mut values, mut status) = (Vec::new(), 401);
    for word in &node.args {
        match word.text.strip_prefix(b"error=") {
            Some(b"401") => status = 401,
            Some(b"403") => status = 403,
            Some(_) => return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str()))),
            None => values.push(Complex::compile(scope.build, word)?),
        }
    }
    if values.is_empty() {
        return Err(Problem::invalid_arguments(node));
    }
    Arc::make_mut(scope.level.conf.auth_jwt.requirements.entry()).push(Requirement { values, status });
    Ok(())
}

/// `auth_jwt_claim_set $variable name ...`
fn set_variable(scope: &mut Scope<'_, '_>, node: &Node, part: fn(&Context) -> &Value) -> Result<(), Problem> {
    let (name, path) = node.args.split_first().ok_or_else(|| Problem::invalid_arguments(node))?;
    let Some(name) = name.text.strip_prefix(b"$").filter(|n| !n.is_empty()) else {
        return Err(node.problem(format!("invalid variable name \"{}\"", name.as_str())));
    };
    let path: Vec<Box<str>> = path.iter().map(|word| word.as_str().into()).collect();
    let evaluate = Arc::new(move |r: &mut Request| value_of(r, part, &path));
    scope.build.variables.define(name, true, evaluate).map_err(|t| node.problem(t))?;
    Ok(())
}

/// What a token says under a name, or under one inside another.
fn value_of(r: &mut Request, part: fn(&Context) -> &Value, path: &[Box<str>]) -> Option<Text> {
    let context = r.ctx.auth_jwt.as_deref()?;
    let mut value = part(context);
    for name in path {
        value = value.get(&**name)?;
    }
    let text = text_of(value)?;
    Some(r.text(text.as_bytes()))
}

/// A value as a text; a list is its elements with commas between them.
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => Some(list.iter().filter_map(text_of).collect::<Vec<_>>().join(",")),
        other => Some(other.to_string()),
    }
}

async fn check(r: &mut Request) -> Verdict {
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.auth_jwt;
    let Some(asked) = &*conf.auth_jwt else { return Verdict::Decline };
    let realm = asked.realm.eval(r);
    let Some(token) = token(r, asked) else {
        log_error!(r, Info, "no JWT token was provided");
        return refuse(r, realm, "");
    };
    let keys = match keys::find(r, &conf.sources, *conf.auth_jwt_key_cache).await {
        Ok(keys) => keys,
        Err(verdict) => return verdict,
    };
    let (text, leeway) = (r.get(token), conf.auth_jwt_leeway.as_secs());
    let judged = match *conf.auth_jwt_type {
        Type::Signed => judge(text, &keys, leeway),
        Type::Encrypted => open(text, &keys).and_then(|(header, payload)| claims(header, payload, leeway)),
        Type::Nested => open(text, &keys).and_then(|(_, inner)| judge(&inner, &keys, leeway)),
    };
    let context = match judged {
        Ok(context) => context,
        Err(text) => {
            log_error!(r, Error, "JWT: {text}");
            return refuse(r, realm, "invalid_token");
        }
    };
    r.ctx.auth_jwt = Some(Box::new(context));
    for requirement in conf.requirements.iter() {
        if !requirement.values.iter().all(|value| value.is_true(r)) {
            log_error!(r, Error, "JWT: a requirement is not met");
            return if requirement.status == 401 { refuse(r, realm, "invalid_token") } else { Verdict::Status(403) };
        }
    }
    Verdict::Allow
}

/// The token that the request carries.
fn token(r: &mut Request, asked: &Asked) -> Option<Text> {
    if let Some(token) = &asked.token {
        let token = token.eval(r);
        return (!r.get(token).is_empty()).then_some(token);
    }
    let header = crate::modules::variables::authorization(r)?;
    let value = r.get(header);
    let (scheme, rest) = value.split_at_checked(7)?;
    if !scheme.eq_ignore_ascii_case(b"Bearer ") {
        return None;
    }
    let token = rest.trim_ascii().to_vec();
    (!token.is_empty()).then(|| r.text(&token))
}

/// Whether a token is signed by one of the keys, and holds now.
pub fn judge(text: &[u8], keys: &keys::Keys, leeway: u64) -> Result<Context, String> {
    let token = jwt::parse(text).map_err(|e| match e {
        NoToken::TooLong => "the token is too long".to_owned(),
        NoToken::Parts(5) => "the token is encrypted".to_owned(),
        NoToken::Parts(n) => format!("the token has {n} parts"),
        NoToken::Encoding => "the token is not base64url".to_owned(),
    })?;
    let header: Value = serde_json::from_slice(&token.header).map_err(|_| "its header is no JSON")?;
    if !header.is_object() {
        return Err("its header is no object".to_owned());
    }
    // RFC 7515 section 4.1.11: what must be understood and is not.
    if header.get("crit").is_some() {
        return Err("its header has critical extensions".to_owned());
    }
    let algorithm = header.get("alg").and_then(Value::as_str).ok_or("its header names no algorithm")?;
    let kid = header.get("kid").and_then(Value::as_str);
    keys.verify(algorithm, kid, token.signed, &token.signature)?;
    claims(header, token.payload, leeway)
}

/// Opens an encrypted token: its header, and what is in it.
fn open(text: &[u8], keys: &keys::Keys) -> Result<(Value, Vec<u8>), String> {
    let token = jwt::parse_encrypted(text).map_err(|e| match e {
        NoToken::TooLong => "the token is too long".to_owned(),
        NoToken::Parts(3) => "the token is not encrypted".to_owned(),
        NoToken::Parts(n) => format!("the token has {n} parts"),
        NoToken::Encoding => "the token is not base64url".to_owned(),
    })?;
    let plain = keys.open(&token)?;
    let header = serde_json::from_slice(&token.header).map_err(|_| "its header is no JSON")?;
    Ok((header, plain))
}

/// What a token says that is authentic, if it holds now.
fn claims(header: Value, payload: Vec<u8>, leeway: u64) -> Result<Context, String> {
    let claims: Value = serde_json::from_slice(&payload).map_err(|_| "its payload is no JSON")?;
    if !claims.is_object() {
        return Err("its payload is no object".to_owned());
    }
    let now = clock::wall_seconds().max(0) as f64;
    let (time, leeway) =
        (|name: &str| claims.get(name).map(|v| v.as_f64().ok_or(format!("\"{name}\" is no number"))), leeway as f64);
    match time("exp").transpose()? {
        Some(exp) if now >= exp + leeway => return Err("the token has expired".to_owned()),
        _ => {}
    }
    match time("nbf").transpose()? {
        Some(nbf) if now + leeway < nbf => return Err("the token does not hold yet".to_owned()),
        _ => {}
    }
    Ok(Context { header, claims, payload })
}

/// 401 with what RFC 6750 section 3 wants to be said.
fn refuse(r: &mut Request, realm: Text, error: &'static str) -> Verdict {
    let mut value = b"Bearer realm=\"".to_vec();
    value.extend_from_slice(r.get(realm));
    value.push(b'"');
    if !error.is_empty() {
        value.extend_from_slice(b", error=\"");
        value.extend_from_slice(error.as_bytes());
        value.push(b'"');
    }
    let value = r.text(&value);
    if r.head.method == Method::Connect {
        r.answer.headers.push(Text::from("Proxy-Authenticate"), value);
        return Verdict::Status(407);
    }
    r.answer.headers.set(K::WwwAuthenticate, "WWW-Authenticate", value);
    Verdict::Status(401)
}
