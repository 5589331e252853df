//! Clients bound to peers (nginx's `ngx_http_upstream_sticky_module`): `sticky cookie`, `route` and `learn`. Before the choice
//! of a peer: whom the client is bound to. After it: the cookie, or what is learnt. What is learnt outlives reloads, as
//! zones do; cookies and routes need no memory. In `stream` there is no answer to look at: a session is learnt when its peer has
//! taken the connection, and cookies are none.

use super::upstream_block::current;
use crate::config::complex::Complex;
use crate::config::setters::duplicate;
use crate::config::{Build, Directive, Scope, upstream, upstream_of_both};
use crate::upstream::sticky::{
    Cookie, Expires, InCluster, KEY, Kind, Learn, Sticky, StickySession, Unused, is_samesite,
};
use crate::zone::{Registry, store};
use conf::{Node, Problem, Word, value};
use wire::zone_sync;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    upstream_of_both("sticky", sticky),
    upstream("sticky_cookie_insert", |s, n| {
        let cookie = read_cookie(s.build, n, &n.args)?;
        put(s, n, cookie)
    }),
];

/// How long a learnt session lasts without requests, unless `timeout` says otherwise.
const LEARNT_MS: u64 = 10 * 60 * 1000;
/// What an entry of a zone takes beside its key: about eight thousand sessions to the megabyte, as in nginx.
const OVERHEAD: usize = 128 - KEY;
/// A zone is at least eight pages, as nginx's.
const MIN_ZONE: u64 = 8 * store::PAGE as u64;

/// Learnt sessions by zone.
static SESSIONS: Registry<StickySession> = Registry::new();

/// The kind of its zones, between processes.
pub const ZONE: &[u8] = b"sticky";

/// For another process: all sessions that were learnt.
pub fn leave(say: &mut dyn FnMut(Vec<u8>)) {
    SESSIONS.leave(ZONE, say, |session, w| session.write(w));
}

/// What another process said of a zone.
pub fn settle(zone: &[u8], rows: &[u8]) {
    SESSIONS.settle(zone, rows, &Unused { since_ms: 0 }, StickySession::read);
}

/// `NAME [expires=] [domain=] [path=] [httponly] [secure] [samesite=]`
fn read_cookie(build: &mut Build<'_>, node: &Node, words: &[Word]) -> Result<Sticky, Problem> {
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

fn compile(build: &mut Build<'_>, node: &Node, text: &[u8]) -> Result<Complex, Problem> {
    Complex::compile_bytes(build, text).map_err(|text| node.problem(text))
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
        b"cookie" => read_cookie(scope.build, node, words)?,
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

/// `create=$variable lookup=$variable zone=name:size [timeout=time] [header] [sync]`
fn learn(scope: &mut Scope<'_, '_>, node: &Node, words: &[Word]) -> Result<Sticky, Problem> {
    let complain = |text: String| Err(Problem::directive(node, &text));
    let (mut create, mut lookup) = (Vec::new(), Vec::new());
    let (mut zone, mut timeout_ms, mut at_header, mut sync) = (None, None, false, false);
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
            (b"sync", None) => sync = true,
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
    let kind = if scope.build.subsystem.is_stream() { zone_sync::Kind::StreamSticky } else { zone_sync::Kind::Sticky };
    let main = &mut scope.build.main;
    if let Some((_, other)) = main.upstream.sticky_zones.iter().find(|(n, _)| **n == *name) {
        let name = String::from_utf8_lossy(name);
        return Err(node.problem(format!("sticky zone \"{name}\" is already used in upstream \"{other}\"")));
    }
    main.zones.add(name, size, "sticky").map_err(|t| node.problem(t))?;
    main.upstream.sticky_zones.push((name.into(), owner.clone()));
    let sessions = SESSIONS.open(name, owner.as_bytes(), size, OVERHEAD);
    let timeout_ms = timeout_ms.unwrap_or(LEARNT_MS);
    let cluster = sync.then(|| InCluster::join(kind, name, sessions.clone(), timeout_ms));
    let learn = Learn { create, at_header, timeout_ms, sessions, cluster };
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
    use crate::upstream::sticky::{Unused, key};
    use crate::zone::store::{Policy, Store};

    #[test]
    fn a_session_lasts_as_long_as_it_is_used() {
        let store = Store::new(64 * 1024, OVERHEAD);
        let learn = |now_ms: u64| Unused { since_ms: now_ms.saturating_sub(1000) };
        assert!(store.look(&key(b"a"), |_: &mut StickySession| ()).is_none(), "a look makes no session");
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
