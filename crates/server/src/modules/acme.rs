//! `acme_issuer`, `acme_certificate`, `acme_shared_zone` (nginx's `ngx_http_acme_module`): which certificates are wanted of whom.
//! They are ordered and renewed by `acme`; here are the words for it, the two variables, and the file that proves control.

use crate::acme::challenge;
use crate::acme::key::Kind;
use crate::acme::settings::Wanted;
use crate::acme::settings::{Challenge, ExternalAccount, Identifier, Issuer, Key, Order, Profile};
use crate::acme::store::{self, Slot};
use crate::config::setters::{duplicate, invalid};
use crate::config::variables::Builtin;
use crate::config::{Build, ConfigLevel, Directive, Scope, http};
use crate::modules::listen::Name;
use crate::request::phases::Verdict;
use crate::request::{Method, Request, Text};
use crate::tls::certificate::Source;
use crate::tls::hooks::{self, Asked};
use crate::tls::verify;
use crate::zone;
use conf::{Contexts, Node, Problem};
use http::Uri;
use std::sync::Arc;
use wire::encoding::{Alphabet, base64_decode};

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    http("acme_issuer", issuer),
    http("acme_certificate", certificate),
    http("acme_shared_zone", shared_zone),
    inside("uri", uri),
    inside("account_key", account_key),
    inside("challenge", |s, n| {
        let value = match &*n.args[0].as_str() {
            "http" | "http-01" => Challenge::Http01,
            "tls-alpn" | "tls-alpn-01" => Challenge::TlsAlpn01,
            "dns-01" => Challenge::Dns01,
            other => return Err(n.problem(format!("unsupported challenge: {other}"))),
        };
        once(&mut current(s).challenge, n, value)
    }),
    inside("dns_hook", |s, n| {
        let path = s.build.full_path(&n.args[0].text);
        once(&mut current(s).dns_hook, n, path)
    }),
    inside("common_name_in_csr", |s, n| once(&mut current(s).common_name, n, is_on(n))),
    inside("contact", contact),
    inside("external_account_key", external_account_key),
    inside("preferred_chain", |s, n| {
        let name = n.args[0].as_str().into_owned();
        once(&mut current(s).preferred_chain, n, name)
    }),
    inside("profile", |s, n| {
        let required = match n.args.get(1) {
            Some(word) if word.text != b"require" => return Err(invalid(n)),
            word => word.is_some(),
        };
        let profile = Profile { name: n.args[0].as_str().into_owned(), required };
        once(&mut current(s).profile, n, profile)
    }),
    inside("ssl_trusted_certificate", |s, n| {
        let prefix = s.build.conf_prefix.clone();
        let read = s.build.tls_reader();
        let source = Source { read: &read, prefix: &prefix };
        let trusted = verify::load(source, &n.args[0].text).map_err(|e| n.problem(e))?;
        once(&mut current(s).trusted, n, trusted)
    }),
    inside("ssl_verify", |s, n| once(&mut current(s).verify, n, is_on(n))),
    inside("state_path", |s, n| {
        let path = (n.args[0] != "off").then(|| s.build.full_path(&n.args[0].text));
        once(&mut current(s).state_path, n, path)
    }),
    inside("accept_terms_of_service", |s, n| once(&mut current(s).accept_terms, n, true)),
];

/// The variables.
pub const VARIABLES: &[Builtin] = &[
    Builtin { name: CERTIFICATE, evaluate: |r| shown(r, |i| &i.chain), volatile: true, assign: None },
    Builtin { name: CERTIFICATE_KEY, evaluate: |r| shown(r, |i| &i.key), volatile: true, assign: None },
];

/// The variable with the certificate; the one with its key.
const CERTIFICATE: &str = "acme_certificate";
const CERTIFICATE_KEY: &str = "acme_certificate_key";

/// Where authorities look for a token (RFC 8555 section 8.3).
const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";
/// Names of one certificate: what authorities take, generously.
const MAX_IDENTIFIERS: usize = 1000;

const fn inside(name: &'static str, set: crate::config::Setter) -> Directive {
    Directive { name, within: Contexts::ACME_ISSUER, set }
}

/// Issuers, and how much they may keep in memory.
#[derive(Debug, Default)]
pub struct Main {
    issuers: Vec<Arc<Issuer>>,
    blocks: Vec<Block>,
    /// `acme_shared_zone`, in bytes.
    zone: Option<u64>,
}

impl Main {
    /// All issuers.
    pub fn issuers(&self) -> &[Arc<Issuer>] {
        &self.issuers
    }

    /// What all issued certificates may take together, in bytes.
    pub fn zone_size(&self) -> usize {
        self.zone.map_or(store::DEFAULT_LIMIT, |size| size as usize)
    }
}

/// One `acme_issuer` block while it is read.
#[derive(Debug, Default)]
struct Block {
    name: Box<str>,
    uri: Option<String>,
    account_key: Option<Key>,
    challenge: Option<Challenge>,
    dns_hook: Option<std::path::PathBuf>,
    common_name: Option<bool>,
    contacts: Vec<String>,
    external_account: Option<ExternalAccount>,
    preferred_chain: Option<String>,
    profile: Option<Profile>,
    trusted: Option<Vec<rustls::pki_types::CertificateDer<'static>>>,
    verify: Option<bool>,
    state_path: Option<Option<std::path::PathBuf>>,
    accept_terms: Option<bool>,
}

fn current<'s>(scope: &'s mut Scope<'_, '_>) -> &'s mut Block {
    scope.build.main.acme.blocks.last_mut().expect("directives of an issuer stand in its block")
}

fn once<T>(place: &mut Option<T>, node: &Node, value: T) -> Result<(), Problem> {
    if place.replace(value).is_some() { Err(duplicate(node)) } else { Ok(()) }
}

/// The table has checked the word already.
fn is_on(node: &Node) -> bool {
    node.args[0].text.eq_ignore_ascii_case(b"on")
}

fn issuer(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let name: Box<str> = node.args[0].as_str().into();
    if scope.build.main.acme.blocks.iter().any(|b| b.name == name) {
        return Err(duplicate(node));
    }
    scope.build.main.acme.blocks.push(Block { name: name.clone(), ..Block::default() });
    let mut level = scope.build.level(Contexts::ACME_ISSUER);
    let before = scope.build.problems.len();
    scope.fill(node, &mut level);
    let failed = scope.build.problems[before..].iter().any(|p| p.level.is_fatal());
    if current(scope).uri.is_none() && !failed {
        return Err(Problem::emerg(node.close, "acme_issuer: \"uri\" is missing"));
    }
    let block = current(scope);
    if block.challenge == Some(Challenge::Dns01) && block.dns_hook.is_none() && !failed {
        return Err(Problem::emerg(node.close, "acme_issuer: \"challenge dns-01\" needs \"dns_hook\""));
    }
    let default = scope.build.full_path(format!("acme_{name}").as_bytes());
    let path = current(scope).state_path.get_or_insert(Some(default)).clone();
    scope.build.directories.extend(path);
    Ok(())
}

fn uri(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = node.args[0].as_str().into_owned();
    let uri: Uri = text.parse().map_err(|e| node.problem(format!("invalid URI \"{text}\" ({e})")))?;
    if uri.host().is_none() || !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(node.problem(format!("invalid URI \"{text}\"")));
    }
    once(&mut current(scope).uri, node, text)
}

fn account_key(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let key = match Kind::parse(&word.as_str()).map_err(|e| node.problem(e.to_owned()))? {
        Some(kind) => Key::Made(kind),
        None => {
            let path = scope.build.conf_path(&word.text);
            let failed = |e: std::io::Error| {
                let (path, e) = (path.display(), crate::log::os_error(&e));
                node.problem(format!("cannot load account key: open() \"{path}\" failed ({e})"))
            };
            let text = scope.build.files.read(&path).map_err(failed)?;
            crate::acme::check_account_key(&text)
                .map_err(|e| node.problem(format!("cannot load account key: \"{}\": {e}", path.display())))?;
            Key::Given(text)
        }
    };
    once(&mut current(scope).account_key, node, key)
}

fn contact(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = node.args[0].as_str();
    if text.is_empty() {
        return Err(invalid(node));
    }
    let is_scheme = |s: &str| {
        let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        s.starts_with(|c: char| c.is_ascii_alphabetic()) && s.bytes().all(rest)
    };
    let has_scheme = text.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme));
    let contact = if has_scheme { text.into_owned() } else { format!("mailto:{text}") };
    current(scope).contacts.push(contact);
    Ok(())
}

fn external_account_key(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (id, word) = (node.args[0].as_str().into_owned(), &node.args[1]);
    if id.is_empty() || word.text.is_empty() {
        return Err(invalid(node));
    }
    let encoded = match word.text.strip_prefix(b"data:") {
        Some(data) => data.to_vec(),
        None => {
            let path = scope.build.conf_path(&word.text);
            let failed = |e| format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e));
            scope.build.files.read(&path).map_err(|e| node.problem(failed(e)))?
        }
    };
    let mut key = Vec::new();
    let decoded = base64_decode(encoded.trim_ascii(), Alphabet::Url, &mut key);
    decoded.map_err(|_| node.problem("invalid base64url encoded value".to_owned()))?;
    once(&mut current(scope).external_account, node, ExternalAccount { id, key })
}

fn shared_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let word = &node.args[0];
    let Some(text) = word.text.strip_prefix(b"zone=") else {
        return Err(node.problem("\"acme_shared_zone\" must have \"zone\" parameter".to_owned()));
    };
    let (name, size) = zone::name_and_size(node, word, text)?;
    if scope.build.main.acme.zone.replace(size).is_some() {
        return Err(duplicate(node));
    }
    scope.build.main.zones.add(name, size, "acme").map_err(|e| node.problem(e))
}

fn certificate(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let wanted = &mut scope.level.server.get_or_insert_default().acme;
    if wanted.is_some() {
        return Err(duplicate(node));
    }
    let mut made = Wanted {
        issuer: node.args[0].as_str().into(),
        identifiers: Vec::new(),
        key: Kind::default(),
        node: node.clone(),
    };
    if made.issuer.is_empty() {
        return Err(node.problem("\"issuer\" is missing".to_owned()));
    }
    for word in &node.args[1..] {
        let text = word.as_str();
        match text.strip_prefix("key=") {
            Some(kind) => {
                let kind = Kind::parse(kind).map_err(|e| node.problem(e.to_owned()))?;
                made.key = kind.ok_or_else(|| node.problem("invalid \"key\" value".to_owned()))?;
            }
            None => made.identifiers.extend(Identifier::parse(&text).map_err(|e| node.problem(e))?),
        }
    }
    *wanted = Some(made);
    Ok(())
}

/// What a server's `acme_certificate` comes to. Its place is the same in every configuration that wants the same.
pub fn finish_server(build: &mut Build<'_>, level: &ConfigLevel, wanted: &Wanted) -> Option<Arc<Slot>> {
    match order(build, level, wanted) {
        Ok(order) => Some(Slot::of(&order)),
        Err(text) => {
            build.problems.push(wanted.node.problem(text));
            None
        }
    }
}

fn order(build: &mut Build<'_>, level: &ConfigLevel, wanted: &Wanted) -> Result<Order, String> {
    let issuer = build.main.acme.blocks.iter().find(|b| b.name == wanted.issuer);
    let challenge = match issuer {
        Some(block) => block.challenge.unwrap_or(Challenge::Http01),
        None => return Err(format!("issuer \"{}\" is not found", wanted.issuer)),
    };
    let mut identifiers = wanted.identifiers.clone();
    if identifiers.is_empty() {
        for (name, node) in &level.server_names {
            let text = match name {
                Name::Exact(name) | Name::HeadOrExact(name) => String::from_utf8_lossy(name),
                Name::Head(name) => format!("*{}", String::from_utf8_lossy(name)).into(),
                Name::Tail(name) => format!("{}*", String::from_utf8_lossy(name)).into(),
                Name::Pattern(_) => {
                    let text = "\"acme_certificate\": unsupported regular expression in server_name".to_owned();
                    build.problems.push(node.warning(text));
                    continue;
                }
            };
            if !text.is_empty() {
                identifiers.extend(Identifier::parse(&text)?);
            }
        }
    }
    // Once each, whatever names stand for.
    let mut seen = std::collections::HashSet::new();
    identifiers.retain(|i| seen.insert(i.clone()));
    if let Some(other) = identifiers.iter().find(|i| !i.is_proved_by(challenge)) {
        return Err(match other {
            Identifier::Dns(name) => format!("wildcard \"{name}\" needs \"challenge dns-01\""),
            Identifier::Ip(ip) => format!("\"{ip}\" cannot be proved by \"challenge dns-01\""),
        });
    }
    match identifiers.len() {
        0 => Err("no identifiers found in \"server_name\"".to_owned()),
        1..=MAX_IDENTIFIERS => Ok(Order { issuer: wanted.issuer.clone(), identifiers, key: wanted.key }),
        n => Err(format!("{n} identifiers are more than one certificate can have")),
    }
}

/// Completes the issuers, once the `http` level is known.
pub fn finish_http(build: &mut Build<'_>, http: &ConfigLevel) {
    let resolver = (*http.conf.core.resolver).clone().map(|r| (r, *http.conf.core.resolver_timeout));
    for block in std::mem::take(&mut build.main.acme.blocks) {
        let Some(uri) = block.uri else { continue };
        build.main.acme.issuers.push(Arc::new(Issuer {
            name: block.name,
            uri,
            account_key: block.account_key.unwrap_or(Key::Made(Kind::default())),
            challenge: block.challenge.unwrap_or(Challenge::Http01),
            dns_hook: block.dns_hook,
            common_name: block.common_name.unwrap_or(false),
            contacts: block.contacts,
            external_account: block.external_account,
            preferred_chain: block.preferred_chain,
            profile: block.profile,
            trusted: block.trusted,
            verify: block.verify.unwrap_or(true),
            state_path: block.state_path.flatten(),
            accept_terms: block.accept_terms.unwrap_or(false),
            resolver: resolver.clone(),
        }));
    }
}

/// Whether a pair of names means what was issued for the server.
pub fn is_issued(certificate: &[u8], key: &[u8]) -> bool {
    let is = |text: &[u8], name: &str| {
        let text = text.strip_prefix(b"$").unwrap_or_default();
        text.strip_prefix(b"{").and_then(|t| t.strip_suffix(b"}")).unwrap_or(text) == name.as_bytes()
    };
    is(certificate, CERTIFICATE) && is(key, CERTIFICATE_KEY)
}

fn shown(r: &mut Request, part: fn(&store::Issued) -> &String) -> Option<Text> {
    let issued = r.server().acme.as_ref()?.current()?;
    Some(r.text(&[b"data:", part(&issued).as_bytes()].concat()))
}

/// Another server's handshake: an authority asks for the proof of a name, and offers no other protocol. A hook of handshakes.
pub fn proof_hook(asked: &mut Asked<'_>) -> hooks::Verdict {
    let protocols = asked.hello.alpn.of(asked.message);
    let Some((length, protocol)) = protocols.split_first() else { return Ok(()) };
    if protocol != challenge::ALPN || usize::from(*length) != protocol.len() {
        return Ok(());
    }
    if let Some(name) = asked.hello.server_name
        && let Some(config) = challenge::certificate(name.of(asked.message))
    {
        // Whoever asked for a proof has it when the hands are shaken.
        (asked.config, asked.is_all) = (Some(config), true);
    }
    Ok(())
}

/// The post-read handler: the text for a token, whichever server is asked.
pub fn handler(r: &mut Request) -> Verdict {
    if !challenge::any() || !matches!(r.head.method, Method::Get | Method::Head) {
        return Verdict::Decline;
    }
    let path = r.get(r.head.uri);
    let Some(text) = path.strip_prefix(WELL_KNOWN).and_then(challenge::text) else { return Verdict::Decline };
    r.answer.headers.content_type = Some(Text::from("application/octet-stream"));
    r.respond(200, text.as_bytes())
}
