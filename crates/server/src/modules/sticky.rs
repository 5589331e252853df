//! Clients bound to peers (nginx's `ngx_http_upstream_sticky_module`): `sticky cookie`, `route` and `learn`. Before the choice
//! of a peer: whom the client is bound to. After it: the cookie, or what is learnt. What is learnt outlives reloads, as
//! zones do; cookies and routes need no memory. In `stream` there is no answer to look at: a session is learnt when its peer has
//! taken the connection, and cookies are none.

use super::upstream_block::current;
use crate::config::complex::Complex;
use crate::config::setters::duplicate;
use crate::config::{Build, Directive, Scope, upstream, upstream_of_both};
use crate::request::headers::KnownHeader as K;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use crate::zone::store::{Policy, Store};
use crate::zone::{Registry, store};
use conf::{Node, Problem, Word, value};
use md5::{Digest, Md5};
use runtime::clock;
use std::sync::Arc;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    upstream_of_both("sticky", sticky),
    upstream("sticky_cookie_insert", |s, n| {
        let cookie = Cookie::read(s.build, n, &n.args)?;
        put(s, n, cookie)
    }),
];

/// How long a learnt session lasts without requests, unless `timeout` says otherwise.
const LEARNT_MS: u64 = 10 * 60 * 1000;
/// What an entry of a zone takes beside its key: about eight thousand sessions to the megabyte, as in nginx.
const OVERHEAD: usize = 128 - KEY;
/// Sessions are known by a digest of their names, however long those are.
const KEY: usize = 16;
/// A zone is at least eight pages, as nginx's.
const MIN_ZONE: u64 = 8 * store::PAGE as u64;
/// The longest name of a peer: a digest, or a `route`.
const LONGEST_PEER: usize = 32;

/// Learnt sessions by zone.
static SESSIONS: Registry<Session> = Registry::new();

/// How clients of a group are bound to its peers.
#[derive(Clone, Debug)]
pub struct Sticky {
    /// Where to look for what binds a client; the first that has something counts.
    lookup: Vec<VariableId>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// The client's request names the peer.
    Route,
    /// The same by a cookie that we set.
    Cookie(Box<Cookie>),
    /// The client's request names a session, and we know its peer.
    Learn(Learn),
}

#[derive(Clone, Debug)]
struct Cookie {
    name: Box<[u8]>,
    expires: Option<Expires>,
    domain: Option<Complex>,
    httponly: bool,
    secure: bool,
    samesite: Option<Complex>,
    /// `; path=...`
    path: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
enum Expires {
    Max,
    After(u64),
}

#[derive(Clone, Debug)]
struct Learn {
    create: Vec<VariableId>,
    /// Learnt when the head of an answer comes, not at its end.
    at_header: bool,
    timeout_ms: u64,
    sessions: Arc<Store<Session>>,
}

/// One learnt session.
#[derive(Debug, Default)]
struct Session {
    peer: [u8; LONGEST_PEER],
    len: u8,
    /// When it was used last, monotonic ms.
    used_ms: u64,
}

impl Session {
    fn peer(&self) -> &[u8] {
        &self.peer[..usize::from(self.len)]
    }

    fn bind(&mut self, peer: &[u8], now_ms: u64) {
        self.peer[..peer.len()].copy_from_slice(peer);
        self.len = peer.len() as u8;
        self.used_ms = now_ms;
    }
}

/// Sessions that were not used for long may go.
struct Unused {
    since_ms: u64,
}

impl Policy<Session> for Unused {
    fn is_pinned(&self, _: &Session) -> bool {
        false
    }

    fn is_idle(&self, session: &Session) -> bool {
        session.used_ms < self.since_ms
    }
}

impl Learn {
    fn unused(&self, now_ms: u64) -> Unused {
        Unused { since_ms: now_ms.saturating_sub(self.timeout_ms) }
    }
}

impl Sticky {
    /// What the client's peer is called, if it is bound to one.
    pub fn wanted(&self, r: &mut Request) -> Option<Box<[u8]>> {
        let id = first_of(r, &self.lookup)?;
        match &self.kind {
            Kind::Route | Kind::Cookie(_) => Some(r.get(id).into()),
            Kind::Learn(learn) => {
                let unused = learn.unused(clock::monotonic_ms());
                let known = |s: &mut Session| (!unused.is_idle(s)).then(|| s.peer().into());
                learn.sessions.look(&key(r.get(id)), known).flatten()
            }
        }
    }

    /// A peer has taken the connection of a session of `stream`.
    pub fn connected(&self, r: &mut Request, peer: &[u8]) {
        if let Kind::Learn(learn) = &self.kind {
            self.learn(r, learn, peer);
        }
    }

    /// A peer's answer is going to the client.
    pub fn answered(&self, r: &mut Request, peer: &[u8]) {
        match &self.kind {
            Kind::Cookie(cookie) => cookie.insert(r, peer),
            Kind::Learn(learn) if learn.at_header => self.learn(r, learn, peer),
            Kind::Route | Kind::Learn(_) => {}
        }
    }

    /// A peer's answer is over.
    pub fn ended(&self, r: &mut Request, peer: &[u8]) {
        if let Kind::Learn(learn) = &self.kind
            && !learn.at_header
        {
            self.learn(r, learn, peer);
        }
    }

    /// A session that the peer begins is learnt; one that the client asked for is known for longer.
    fn learn(&self, r: &mut Request, learn: &Learn, peer: &[u8]) {
        let created = first_of(r, &learn.create);
        let Some(id) = created.or_else(|| first_of(r, &self.lookup)) else { return };
        let (key, now_ms) = (key(r.get(id)), clock::monotonic_ms());
        let unused = learn.unused(now_ms);
        if created.is_some() {
            learn.sessions.enter(&key, &unused, |s, _| s.bind(peer, now_ms));
            return;
        }
        learn.sessions.look(&key, |s| {
            // What ended while the answer was under way has ended.
            if !unused.is_idle(s) {
                s.bind(peer, now_ms);
            }
        });
    }
}

/// The first of some variables that has a value.
fn first_of(r: &mut Request, variables: &[VariableId]) -> Option<Text> {
    variables.iter().find_map(|id| r.variable(*id).filter(|text| !r.get(*text).is_empty()))
}

fn key(id: &[u8]) -> [u8; KEY] {
    Md5::digest(id).into()
}

impl Cookie {
    /// Sets the cookie, in the order of nginx's attributes.
    fn insert(&self, r: &mut Request, peer: &[u8]) {
        let domain = self.domain.as_ref().map(|d| d.eval(r)).filter(|d| !r.get(*d).is_empty());
        let samesite = self.samesite.as_ref().map(|s| s.eval(r)).filter(|s| !r.get(*s).is_empty());
        let mut out = [&self.name[..], b"=", peer].concat();
        match self.expires {
            None => {}
            Some(Expires::Max) => out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000"),
            Some(Expires::After(seconds)) => {
                let at = clock::wall_seconds().saturating_add(seconds as i64);
                out.extend_from_slice(b"; expires=");
                super::userid::cookie_time(at, &mut out);
                out.extend_from_slice(format!("; max-age={seconds}").as_bytes());
            }
        }
        if let Some(domain) = domain {
            out.extend_from_slice(b"; domain=");
            out.extend_from_slice(r.get(domain));
        }
        out.extend_from_slice(if self.httponly { b"; httponly" } else { b"" });
        out.extend_from_slice(if self.secure { b"; secure" } else { b"" });
        if let Some(samesite) = samesite {
            let value = r.get(samesite);
            out.extend_from_slice(b"; samesite=");
            out.extend_from_slice(if is_samesite(value) { value } else { b"strict" });
        }
        out.extend_from_slice(&self.path);
        let value = r.text(&out);
        r.answer.headers.add(K::SetCookie, "Set-Cookie", value);
    }

    /// `NAME [expires=] [domain=] [path=] [httponly] [secure] [samesite=]`
    fn read(build: &mut Build<'_>, node: &Node, words: &[Word]) -> Result<Sticky, Problem> {
        let complain = |text: &str| Err(Problem::directive(node, text));
        if words[0].text.is_empty() {
            return complain("empty cookie name");
        }
        let name: Box<[u8]> = words[0].text.as_slice().into();
        let variable = build.variables.index(&[b"cookie_", &name[..]].concat());
        let mut cookie = Cookie {
            name,
            expires: None,
            domain: None,
            httponly: false,
            secure: false,
            samesite: None,
            path: Box::default(),
        };
        for word in &words[1..] {
            let text = word.text.as_slice();
            let at = memchr::memchr(b'=', text);
            let (parameter, value) = at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
            let shown = String::from_utf8_lossy(parameter);
            let again = match (parameter, value) {
                (b"domain" | b"path", Some(b"")) => return complain(&format!("no value for \"{shown}\"")),
                (b"domain", Some(v)) => cookie.domain.replace(compile(build, node, v)?).is_some(),
                (b"path", Some(v)) => {
                    let path = [b"; path=", v].concat().into();
                    !std::mem::replace(&mut cookie.path, path).is_empty()
                }
                (b"expires", Some(v)) => {
                    let expires = if v == b"max" { Some(Expires::Max) } else { value::seconds(v).map(Expires::After) };
                    let Some(expires) = expires else { return complain("invalid \"expires\" parameter value") };
                    cookie.expires.replace(expires).is_some()
                }
                (b"samesite", Some(v)) => {
                    let samesite = compile(build, node, v)?;
                    if samesite.as_fixed().is_some_and(|v| !is_samesite(v)) {
                        return complain("invalid \"samesite\" parameter value");
                    }
                    cookie.samesite.replace(samesite).is_some()
                }
                (b"httponly", None) => std::mem::replace(&mut cookie.httponly, true),
                (b"secure", None) => std::mem::replace(&mut cookie.secure, true),
                _ => return Err(unknown(node, word)),
            };
            if again {
                return complain(&format!("parameter \"{shown}\" is duplicate"));
            }
        }
        Ok(Sticky { lookup: vec![variable], kind: Kind::Cookie(Box::new(cookie)) })
    }
}

fn compile(build: &mut Build<'_>, node: &Node, text: &[u8]) -> Result<Complex, Problem> {
    Complex::compile_bytes(build, text).map_err(|text| node.problem(text))
}

fn is_samesite(value: &[u8]) -> bool {
    ["strict", "lax", "none"].iter().any(|known| value.eq_ignore_ascii_case(known.as_bytes()))
}

fn unknown(node: &Node, word: &Word) -> Problem {
    node.problem(format!("unknown parameter \"{}\"", word.as_str()))
}

fn put(scope: &mut Scope<'_, '_>, node: &Node, sticky: Sticky) -> Result<(), Problem> {
    if current(scope).sticky.replace(sticky).is_some() { Err(duplicate(node)) } else { Ok(()) }
}

fn sticky(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let words = &node.args[1..];
    let sticky = match node.args[0].text.as_slice() {
        b"cookie" if scope.build.subsystem.is_stream() => {
            return Err(Problem::directive(
                node,
                "\"cookie\" is of http: in \"stream\" there are \"route\" and \"learn\"",
            ));
        }
        b"cookie" => Cookie::read(scope.build, node, words)?,
        b"route" => {
            let lookup = words.iter().map(|w| {
                let name = w.text.strip_prefix(b"$");
                let name = name.ok_or_else(|| node.problem(format!("invalid variable name \"{}\"", w.as_str())))?;
                Ok(scope.build.variables.index(name))
            });
            Sticky { lookup: lookup.collect::<Result<_, Problem>>()?, kind: Kind::Route }
        }
        b"learn" => learn(scope, node, words)?,
        _ => return Err(unknown(node, &node.args[0])),
    };
    put(scope, node, sticky)
}

/// `create=$variable lookup=$variable zone=name:size [timeout=time] [header]`
fn learn(scope: &mut Scope<'_, '_>, node: &Node, words: &[Word]) -> Result<Sticky, Problem> {
    let complain = |text: String| Err(Problem::directive(node, &text));
    let (mut create, mut lookup) = (Vec::new(), Vec::new());
    let (mut zone, mut timeout_ms, mut at_header) = (None, None, false);
    for word in words {
        let text = word.text.as_slice();
        let at = memchr::memchr(b'=', text);
        match at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..]))) {
            (b"zone", Some(_)) if zone.is_some() => return complain("duplicate zone".to_owned()),
            (b"zone", Some(v)) => zone = Some(zone_of(v).map_err(|text| Problem::directive(node, text))?),
            (b"timeout", Some(_)) if timeout_ms.is_some() => return complain("duplicate timeout".to_owned()),
            (b"timeout", Some(v)) => match value::milliseconds(v) {
                Some(ms) if ms > 0 => timeout_ms = Some(ms),
                _ => return complain("invalid timeout".to_owned()),
            },
            (parameter @ (b"create" | b"lookup"), Some(v)) => {
                let Some(name) = v.strip_prefix(b"$") else {
                    let parameter = String::from_utf8_lossy(parameter);
                    return complain(format!("missing variable in the \"{parameter}\" parameter"));
                };
                let list = if parameter == b"create" { &mut create } else { &mut lookup };
                list.push(scope.build.variables.index(name));
            }
            (b"header", None) => at_header = true,
            _ => return Err(unknown(node, word)),
        }
    }
    for (name, missing) in [("lookup", lookup.is_empty()), ("create", create.is_empty()), ("zone", zone.is_none())] {
        if missing {
            return complain(format!("\"{name}\" parameter is not specified"));
        }
    }
    let (name, size) = zone.expect("asked above");
    // A zone of sessions belongs to one group: its owner stands in the key.
    let owner = current(scope).servers.key.clone();
    let main = &mut scope.build.main;
    if let Some((_, other)) = main.upstream.sticky_zones.iter().find(|(n, _)| **n == *name) {
        let name = String::from_utf8_lossy(name);
        return Err(node.problem(format!("sticky zone \"{name}\" is already used in upstream \"{other}\"")));
    }
    main.zones.add(name, size, "sticky").map_err(|t| node.problem(t))?;
    main.upstream.sticky_zones.push((name.into(), owner.clone()));
    let sessions = SESSIONS.open(name, owner.as_bytes(), size, OVERHEAD);
    let learn = Learn { create, at_header, timeout_ms: timeout_ms.unwrap_or(LEARNT_MS), sessions };
    Ok(Sticky { lookup, kind: Kind::Learn(learn) })
}

/// `name:size`, with nginx's complaints.
fn zone_of(text: &[u8]) -> Result<(&[u8], u64), &'static str> {
    let colon = memchr::memchr(b':', text).ok_or("zone size is not specified")?;
    if colon == 0 {
        return Err("zone name is not specified");
    }
    match value::size(&text[colon + 1..]) {
        None => Err("invalid zone size"),
        Some(size) if size < MIN_ZONE => Err("zone is too small"),
        Some(size) => Ok((&text[..colon], size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_as_long_as_it_is_used() {
        let store = Store::new(64 * 1024, OVERHEAD);
        let learn = |now_ms: u64| Unused { since_ms: now_ms.saturating_sub(1000) };
        assert!(store.look(&key(b"a"), |_: &mut Session| ()).is_none(), "a look makes no session");
        store.enter(&key(b"a"), &learn(5000), |s, _| s.bind(b"peer", 5000));
        let known = |now_ms: u64| store.look(&key(b"a"), |s| (!learn(now_ms).is_idle(s)).then(|| s.peer().to_vec()));
        assert_eq!(known(6000).flatten().as_deref(), Some(&b"peer"[..]));
        assert_eq!(known(6001).flatten(), None);
    }

    #[test]
    fn zones_in_nginx_words() {
        assert_eq!(zone_of(b"z:1m"), Ok((&b"z"[..], 1 << 20)));
        let wrong = [("z", "zone size is not specified"), (":1m", "zone name is not specified")];
        let wrong = wrong.into_iter().chain([("z:x", "invalid zone size"), ("z:1k", "zone is too small")]);
        for (text, complaint) in wrong {
            assert_eq!(zone_of(text.as_bytes()), Err(complaint));
        }
    }
}
