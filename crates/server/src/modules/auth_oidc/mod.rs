//! `auth_oidc`: clients are sent to an OpenID provider and let in when they come back with its word (NGINX Plus'
//! `ngx_http_oidc_module`): the authorization code flow, with PKCE. What is kept of a client is in `session`, the provider in `provider`.
//!
//! ```text
//! request ──no session──> 302 to the provider, a sealed cookie ── ... ──> redirect_uri?code ──> tokens, a session ──> 302 back
//!         ──session─────> claims in variables, the phases go on
//!         ──logout_uri──> the session is gone ──> 302 to the provider's own end of sessions
//! ```

mod provider;
mod session;

use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::variables::{Builtin, Prefix};
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::fetch::Fetch;
use crate::modules::keyval_store::{self, Matching, Spec, Store};
use crate::modules::{auth_jwt, keyval, ssl};
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{Handler, Verdict};
use crate::request::{Request, Text};
use crate::tls::certificate::Source;
use crate::tls::client::verified;
use crate::tls::verify;
use crate::{inherited, log_error, merged_values};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use conf::{Contexts, Node, Problem, value};
use provider::{Code, Provider, parameter, shown};
use rustls::ClientConfig;
pub use session::LoginSession;
use session::{Login, encoded};
use std::sync::Arc;
use wire::http1::escape::{Unescape, unescape};
use wire::http1::target::argument;
use wire::http1::values::find_in_list;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("oidc_provider", block),
    http("auth_oidc", |s, n| {
        let name = (n.args[0] != "off").then(|| n.args[0].as_str().into());
        setters::value(&mut s.level.conf.auth_oidc.settings.auth_oidc, n, name)
    }),
    inside("issuer", |s, n| text(s, n, |b| &mut b.issuer)),
    inside("client_id", |s, n| text(s, n, |b| &mut b.client_id)),
    inside("client_secret", |s, n| text(s, n, |b| &mut b.client_secret)),
    inside("config_url", |s, n| text(s, n, |b| &mut b.config_url)),
    inside("cookie_name", |s, n| text(s, n, |b| &mut b.cookie_name)),
    inside("extra_auth_args", |s, n| complex(s, n, |b| &mut b.extra_auth_args)),
    inside("redirect_uri", |s, n| text(s, n, |b| &mut b.redirect_uri)),
    inside("logout_uri", |s, n| text(s, n, |b| &mut b.logout_uri)),
    inside("post_logout_uri", |s, n| text(s, n, |b| &mut b.post_logout_uri)),
    inside("logout_token_hint", |s, n| flag(s, n, |b| &mut b.logout_token_hint)),
    inside("scope", |s, n| {
        let scopes: Vec<_> = n.args.iter().map(|w| w.as_str().into_owned()).collect();
        once(&mut current(s).scope, n, scopes.join(" "))
    }),
    inside("session_store", |s, n| {
        let name = n.args[0].text.clone();
        let index = keyval::use_zone(s, n, &name)?;
        once(&mut current(s).session_store, n, index)
    }),
    inside("session_timeout", |s, n| {
        let ms = value::milliseconds(&n.args[0].text).filter(|ms| *ms > 0).ok_or_else(|| setters::invalid(n))?;
        once(&mut current(s).session_timeout_ms, n, ms)
    }),
    inside("pkce", |s, n| flag(s, n, |b| &mut b.pkce)),
    inside("userinfo", |s, n| flag(s, n, |b| &mut b.userinfo)),
    inside("ssl_trusted_certificate", |s, n| {
        let prefix = s.build.conf_prefix.clone();
        let read = s.build.tls_reader();
        let trusted = verify::load(Source { read: &read, prefix: &prefix }, &n.args[0].text);
        let trusted = trusted.map_err(|e| n.problem(e))?;
        once(&mut current(s).trusted, n, trusted)
    }),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin {
        name: "oidc_id_token",
        evaluate: |r| of_session(r, |s| Some(s.id_token.clone())),
        volatile: true,
        assign: None,
    },
    Builtin {
        name: "oidc_access_token",
        evaluate: |r| of_session(r, |s| s.access_token.clone()),
        volatile: true,
        assign: None,
    },
    Builtin {
        name: "oidc_userinfo",
        evaluate: |r| of_session(r, |s| s.userinfo.clone()),
        volatile: true,
        assign: None,
    },
];

/// Rules for variables with a prefix.
pub const PREFIXES: &[Prefix] = &[Prefix {
    name: "oidc_claim_",
    evaluate: |r, name| of_session(r, |s| auth_jwt::text_of(s.claims.get(name)?)),
    volatile: true,
}];

/// Its place in the access phase.
pub const HANDLER: Handler = Handler::Later(|r| r.conf().auth_oidc.ready.is_some(), |r| Box::pin(check(r)));

/// As NGINX Plus has it.
const COOKIE: &str = "NGX_OIDC_SESSION";
const REDIRECT_URI: &str = "/oidc_callback";
const SESSION_MS: u64 = 8 * 3600 * 1000;
/// Sessions of a provider without `session_store`, bytes.
const STORE: u64 = 8 * 1024 * 1024;
/// Names of sessions are shorter.
const MAX_NAME: usize = 64;
/// Providers of one configuration.
const MAX_PROVIDERS: usize = 64;

merged_values! {
    /// What is set on a level.
    pub struct Settings {
        /// The provider's name.
        auth_oidc: Option<Box<str>> = None,
    }
}

/// The module's values on one level.
#[derive(Clone, Debug, Default)]
pub struct Conf {
    settings: Settings,
    /// What the name stands for.
    ready: Option<Arc<Site>>,
}

inherited!(Conf, |_| true);

impl Conf {
    /// Takes from the level around what this one does not set.
    pub fn merge(&mut self, parent: &Conf) {
        if !self.settings.auth_oidc.is_set() {
            self.ready.clone_from(&parent.ready);
        }
        self.settings.merge(&parent.settings);
    }

    /// Whether a session is asked for.
    pub fn is_on(&self) -> bool {
        self.ready.is_some()
    }
}

/// All providers.
#[derive(Debug, Default)]
pub struct Main {
    sites: Vec<Arc<Site>>,
    blocks: Vec<Block>,
}

/// A provider, and how its clients are dealt with here.
#[derive(Debug)]
pub struct Site {
    provider: Arc<Provider>,
    cookie: String,
    scope: String,
    redirect_uri: String,
    logout_uri: Option<String>,
    post_logout_uri: Option<String>,
    logout_token_hint: bool,
    extra_auth_args: Option<Complex>,
    /// The zone's number, or the provider's own.
    zone: Option<usize>,
    own: Arc<Store>,
    timeout_ms: u64,
}

/// A block while it is read.
#[derive(Default)]
struct Block {
    name: Box<str>,
    issuer: Option<String>,
    client_id: Option<String>,
    client_secret: Option<String>,
    config_url: Option<String>,
    cookie_name: Option<String>,
    extra_auth_args: Option<Complex>,
    redirect_uri: Option<String>,
    logout_uri: Option<String>,
    post_logout_uri: Option<String>,
    logout_token_hint: Option<bool>,
    scope: Option<String>,
    session_store: Option<usize>,
    session_timeout_ms: Option<u64>,
    pkce: Option<bool>,
    userinfo: Option<bool>,
    trusted: Option<Vec<rustls::pki_types::CertificateDer<'static>>>,
}

/// Without the secret.
impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Block").field("name", &self.name).finish_non_exhaustive()
    }
}

const fn inside(name: &'static str, set: crate::config::Setter) -> Directive {
    Directive { name, within: Contexts::OIDC_PROVIDER, set }
}

fn current<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Block {
    scope.build.main.auth_oidc.blocks.last_mut().expect("directives of a provider stand in its block")
}

fn once<T>(place: &mut Option<T>, node: &Node, value: T) -> Result<(), Problem> {
    if place.replace(value).is_some() { Err(setters::duplicate(node)) } else { Ok(()) }
}

fn text(scope: &mut Scope<'_, '_>, node: &Node, place: fn(&mut Block) -> &mut Option<String>) -> Result<(), Problem> {
    let text = node.args[0].as_str().into_owned();
    if text.is_empty() {
        return Err(setters::invalid(node));
    }
    once(place(current(scope)), node, text)
}

fn complex(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    place: fn(&mut Block) -> &mut Option<Complex>,
) -> Result<(), Problem> {
    let compiled = Complex::compile(scope.build, &node.args[0])?;
    once(place(current(scope)), node, compiled)
}

fn flag(scope: &mut Scope<'_, '_>, node: &Node, place: fn(&mut Block) -> &mut Option<bool>) -> Result<(), Problem> {
    // The table has checked the word already.
    once(place(current(scope)), node, node.args[0].text.eq_ignore_ascii_case(b"on"))
}

/// `oidc_provider NAME { ... }`
fn block(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name: Box<str> = node.args[0].as_str().into();
    let main = &mut scope.build.main.auth_oidc;
    if main.blocks.iter().any(|b| b.name == name) {
        return Err(setters::duplicate(node));
    }
    if main.blocks.len() == MAX_PROVIDERS {
        return Err(node.problem(format!("number of providers exceeds {MAX_PROVIDERS}")));
    }
    main.blocks.push(Block { name, ..Block::default() });
    let mut level = scope.build.level(Contexts::OIDC_PROVIDER);
    let before = scope.build.problems.len();
    scope.fill(node, &mut level);
    if scope.build.problems[before..].iter().any(|p| p.level.is_fatal()) {
        return Ok(());
    }
    let site = site(std::mem::take(current(scope)), node)?;
    current(scope).name = site.provider.name.clone();
    scope.build.main.auth_oidc.sites.push(Arc::new(site));
    Ok(())
}

fn site(block: Block, node: &Node) -> Result<Site, Problem> {
    let missing = |what| Problem::emerg(node.close, format!("oidc_provider: \"{what}\" is missing"));
    let issuer = block.issuer.ok_or_else(|| missing("issuer"))?;
    let client_id = block.client_id.ok_or_else(|| missing("client_id"))?;
    let config_url = block.config_url.unwrap_or_else(|| {
        // OpenID Connect Discovery 1.0 section 4.
        format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'))
    });
    let tls = tls(block.trusted).map_err(|e| Problem::emerg(node.close, format!("oidc_provider: {e}")))?;
    let name = block.name;
    let own = keyval_store::open(Spec {
        owner: "auth_oidc",
        name: name.clone(),
        size: STORE,
        timeout_ms: None,
        matching: Matching::Exact,
        state: None,
        sync: false,
    });
    let provider = Arc::new(Provider {
        name,
        issuer,
        client_id,
        client_secret: block.client_secret,
        config_url,
        pkce: block.pkce,
        userinfo: block.userinfo.unwrap_or(false),
        tls,
        known: Default::default(),
    });
    Ok(Site {
        provider,
        cookie: block.cookie_name.unwrap_or_else(|| COOKIE.to_owned()),
        scope: block.scope.unwrap_or_else(|| "openid".to_owned()),
        redirect_uri: block.redirect_uri.unwrap_or_else(|| REDIRECT_URI.to_owned()),
        logout_uri: block.logout_uri,
        post_logout_uri: block.post_logout_uri,
        logout_token_hint: block.logout_token_hint.unwrap_or(false),
        extra_auth_args: block.extra_auth_args,
        zone: block.session_store,
        own,
        timeout_ms: block.session_timeout_ms.unwrap_or(SESSION_MS),
    })
}

/// How providers are spoken to: their certificates are always verified.
fn tls(trusted: Option<Vec<rustls::pki_types::CertificateDer<'static>>>) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    let trusted = trusted.unwrap_or_else(|| rustls_native_certs::load_native_certs().certs);
    let builder = builder.dangerous().with_custom_certificate_verifier(verified(trusted, algorithms)?);
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// Finds the provider of a level.
pub fn finish_level(build: &mut Build<'_>, level: &mut ConfigLevel) {
    let conf = &mut level.conf.auth_oidc;
    let Some(name) = (*conf.settings.auth_oidc).clone() else { return };
    if conf.ready.is_some() {
        return;
    }
    conf.ready = build.main.auth_oidc.sites.iter().find(|s| s.provider.name == name).cloned();
    if conf.ready.is_none() {
        build.http_problem(format!("unknown OpenID provider \"{name}\" in \"auth_oidc\""));
    }
}

fn of_session(r: &mut Request, text: impl Fn(&LoginSession) -> Option<String>) -> Option<Text> {
    let text = text(r.ctx.auth_oidc.as_deref()?)?;
    Some(r.text(text.as_bytes()))
}

fn cookie(r: &Request, name: &str) -> Option<Vec<u8>> {
    let cookies = r.head.headers.lines().iter().filter(|l| l.known == K::Cookie);
    cookies.map(|l| r.arena.span(l.value)).find_map(|v| find_in_list(v, name.as_bytes(), b';')).map(<[u8]>::to_vec)
}

/// The path of an address, which may be one of a whole URL.
fn path_of(address: &str) -> &str {
    match address.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => address,
    }
}

async fn check(r: &mut Request) -> Verdict {
    let Some(site) = r.conf().auth_oidc.ready.clone() else { return Verdict::Decline };
    if !r.is_main() {
        return Verdict::Allow;
    }
    let uri = r.get(r.head.uri).to_vec();
    if uri == path_of(&site.redirect_uri).as_bytes() {
        return callback(r, &site).await;
    }
    let name = cookie(r, &site.cookie).filter(|c| c.len() <= MAX_NAME).and_then(|c| String::from_utf8(c).ok());
    let store = store(r, &site);
    let session = name.as_deref().and_then(|name| LoginSession::find(&store, name));
    if site.logout_uri.as_deref().is_some_and(|logout| path_of(logout).as_bytes() == uri) {
        if let Some(name) = &name {
            store.remove(name);
        }
        return logout(r, &site, session).await;
    }
    match session {
        Some(session) => {
            r.ctx.auth_oidc = Some(Box::new(session));
            Verdict::Allow
        }
        None => login(r, &site).await,
    }
}

fn store(r: &Request, site: &Site) -> Arc<Store> {
    let zone = site.zone.and_then(|at| r.snapshot.main.keyval.store(at));
    zone.unwrap_or_else(|| site.own.clone())
}

fn fetch(r: &Request, site: &Site) -> Fetch {
    let core = &r.conf().core;
    let resolver = (*core.resolver).clone().map(|resolver| (resolver, *core.resolver_timeout));
    Fetch { resolver, tls: Some(site.provider.tls.clone()) }
}

/// `scheme://host` of the client's own address.
fn origin(r: &Request) -> String {
    let scheme = if ssl::is_encrypted(r) { "https" } else { "http" };
    let host = r.head.headers.host.map_or(&b""[..], |h| r.get(h));
    let port = r.head.port.map(|port| format!(":{port}")).unwrap_or_default();
    let host = String::from_utf8_lossy(host);
    // The header has the port, the host that was taken from it may not.
    let has_port = host.rsplit_once(':').is_some_and(|(_, p)| p.bytes().all(|b| b.is_ascii_digit()));
    format!("{scheme}://{host}{}", if has_port { "" } else { &port })
}

fn absolute(r: &Request, address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("{}{address}", origin(r)) }
}

fn send_to(r: &mut Request, address: &str) -> Verdict {
    let to = r.text(address.as_bytes());
    r.answer.headers.set(K::Location, "Location", to);
    // Who comes back is to be asked again.
    r.answer.headers.push(Text::from("Cache-Control"), Text::from("no-store"));
    Verdict::Status(302)
}

/// Sets a cookie; an empty value takes it back.
fn set_cookie(r: &mut Request, name: &str, value: &str) {
    let secure = if ssl::is_encrypted(r) { "; Secure" } else { "" };
    let over = if value.is_empty() { "; Max-Age=0" } else { "" };
    let text = r.text(format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}{over}").as_bytes());
    r.answer.headers.push(Text::from("Set-Cookie"), text);
}

fn login_cookie(site: &Site) -> String {
    format!("{}_LOGIN", site.cookie)
}

async fn metadata(r: &mut Request, site: &Site) -> Result<Arc<provider::Metadata>, Verdict> {
    let (fetch, provider) = (fetch(r, site), site.provider.clone());
    let asked = crate::service::ask(move || async move { provider.metadata(&fetch).await }).await;
    match asked.unwrap_or_else(|| Err("the service thread is gone".to_owned())) {
        Ok(metadata) => Ok(metadata),
        Err(text) => {
            log_error!(r, Error, "OIDC: provider \"{}\": {text}", site.provider.name);
            Err(Verdict::Status(500))
        }
    }
}

/// Sends the client to its provider.
async fn login(r: &mut Request, site: &Site) -> Verdict {
    let metadata = match metadata(r, site).await {
        Ok(metadata) => metadata,
        Err(verdict) => return verdict,
    };
    let target = String::from_utf8_lossy(r.get(r.head.target)).into_owned();
    let login = Login::new(target, site.provider.pkce.unwrap_or_else(|| metadata.has_pkce()));
    let Some(sealed) = login.seal(&site.provider.name) else { return Verdict::Status(414) };
    let mut url = metadata.authorization_endpoint.clone();
    if !url.contains('?') {
        url.push('?');
    }
    parameter(&mut url, "response_type", "code");
    parameter(&mut url, "scope", &site.scope);
    parameter(&mut url, "client_id", &site.provider.client_id);
    parameter(&mut url, "redirect_uri", &absolute(r, &site.redirect_uri));
    parameter(&mut url, "state", &login.state);
    parameter(&mut url, "nonce", &login.nonce);
    if let Some(verifier) = &login.verifier {
        // RFC 7636 section 4.2.
        parameter(&mut url, "code_challenge", &encoded(digest(&SHA256, verifier.as_bytes()).as_ref()));
        parameter(&mut url, "code_challenge_method", "S256");
    }
    if let Some(extra) = &site.extra_auth_args {
        let extra = extra.eval(r);
        let extra = String::from_utf8_lossy(r.get(extra)).into_owned();
        if !extra.is_empty() {
            url.push('&');
            url.push_str(extra.trim_start_matches('&'));
        }
    }
    set_cookie(r, &login_cookie(site), &sealed);
    send_to(r, &url)
}

fn query(r: &Request, name: &str) -> Option<String> {
    let raw = argument(r.get(r.head.args), name.as_bytes())?.to_vec();
    // A form's blank (RFC 6749 appendix B).
    let raw: Vec<u8> = raw.into_iter().map(|b| if b == b'+' { b' ' } else { b }).collect();
    let mut out = Vec::new();
    unescape(&raw, Unescape::Plain, &mut out);
    String::from_utf8(out).ok()
}

fn refuse(r: &mut Request, site: &Site, text: &str) -> Verdict {
    log_error!(r, Error, "OIDC: provider \"{}\": {text}", site.provider.name);
    Verdict::Status(403)
}

/// The client comes back.
async fn callback(r: &mut Request, site: &Site) -> Verdict {
    let login = cookie(r, &login_cookie(site)).and_then(|sealed| Login::open(&site.provider.name, &sealed));
    let Some(login) = login else { return refuse(r, site, "no login is under way for this client") };
    let state = query(r, "state").unwrap_or_default();
    if verify_slices_are_equal(state.as_bytes(), login.state.as_bytes()).is_err() {
        return refuse(r, site, "the state is another login's");
    }
    if let Some(error) = query(r, "error") {
        let text = format!("the login failed: {}", shown(&error));
        return refuse(r, site, &text);
    }
    let Some(code) = query(r, "code") else { return refuse(r, site, "there is no code") };
    let Login { nonce, verifier, target, .. } = login;
    let code = Code { code, redirect_uri: absolute(r, &site.redirect_uri), verifier, nonce };
    let (fetch, provider) = (fetch(r, site), site.provider.clone());
    let redeemed = crate::service::ask(move || async move { provider.redeem(&fetch, code).await }).await;
    let session = match redeemed.unwrap_or_else(|| Err("the service thread is gone".to_owned())) {
        Ok(session) => session,
        Err(text) => return refuse(r, site, &text),
    };
    let name = match session.keep(&store(r, site), site.timeout_ms) {
        Ok(name) => name,
        Err(text) => {
            log_error!(r, Error, "OIDC: provider \"{}\": {text}", site.provider.name);
            return Verdict::Status(503);
        }
    };
    set_cookie(r, &site.cookie, &name);
    set_cookie(r, &login_cookie(site), "");
    let back = format!("{}{target}", origin(r));
    send_to(r, &back)
}

/// The session is gone already; the provider's own is to go too.
async fn logout(r: &mut Request, site: &Site, session: Option<LoginSession>) -> Verdict {
    set_cookie(r, &site.cookie, "");
    let after = site.post_logout_uri.as_deref().map(|address| absolute(r, address));
    let metadata = match metadata(r, site).await {
        Ok(metadata) => metadata,
        Err(verdict) => return verdict,
    };
    let Some(mut url) = metadata.end_session_endpoint.clone() else {
        return match after {
            Some(address) => send_to(r, &address),
            None => r.respond(200, b"You have been logged out.\n"),
        };
    };
    // OpenID Connect RP-Initiated Logout 1.0 section 2.
    if !url.contains('?') {
        url.push('?');
    }
    parameter(&mut url, "client_id", &site.provider.client_id);
    if let Some(session) = session.filter(|_| site.logout_token_hint) {
        parameter(&mut url, "id_token_hint", &session.id_token);
    }
    if let Some(address) = after {
        parameter(&mut url, "post_logout_redirect_uri", &address);
    }
    send_to(r, &url)
}
