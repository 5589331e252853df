//! How clients of a group are bound to its peers (`sticky`). Before the choice of a peer: whom the client is bound to. After it: the cookie, or what is learnt.
//! What is learnt outlives reloads, as zones do; cookies and routes need no memory. The words of the configuration are `modules::sticky`'s.

use crate::config::complex::Complex;
use crate::request::headers::KnownHeader as K;
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use crate::zone::store::{Policy, Store};
use crate::zone::synced::{Contents, Notes};
use md5::{Digest, Md5};
use runtime::clock;
use std::sync::Arc;
use wire::zone_sync;

/// Sessions are known by a digest of their names, however long those are.
pub(crate) const KEY: usize = 16;
/// The longest name of a peer: a digest, or a `route`.
const LONGEST_PEER: usize = 32;
/// How often in a session's timeout other nodes are told that it is in use.
const TOLD_IN_A_TIMEOUT: u64 = 4;

/// How clients of a group are bound to its peers.
#[derive(Clone, Debug)]
pub struct Sticky {
    /// Where to look for what binds a client; the first that has something counts.
    pub(crate) lookup: Vec<VariableId>,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// The client's request names the peer.
    Route,
    /// The same by a cookie that we set.
    Cookie(Box<Cookie>),
    /// The client's request names a session, and we know its peer.
    Learn(Learn),
}

#[derive(Clone, Debug)]
pub(crate) struct Cookie {
    pub(crate) name: Box<[u8]>,
    pub(crate) expires: Option<Expires>,
    pub(crate) domain: Option<Complex>,
    pub(crate) httponly: bool,
    pub(crate) secure: bool,
    pub(crate) samesite: Option<Complex>,
    /// `; path=...`
    pub(crate) path: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Expires {
    Max,
    After(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Learn {
    pub(crate) create: Vec<VariableId>,
    /// Learnt when the head of an answer comes, not at its end.
    pub(crate) at_header: bool,
    pub(crate) timeout_ms: u64,
    pub(crate) sessions: Arc<Store<StickySession>>,
    /// Other nodes have them, too.
    pub(crate) cluster: Option<Arc<InCluster>>,
}

/// Learnt sessions as the nodes of a cluster see them: of two uses the later one holds.
#[derive(Debug)]
pub(crate) struct InCluster {
    sessions: Arc<Store<StickySession>>,
    timeout_ms: u64,
    notes: Notes,
}

impl InCluster {
    pub(crate) fn join(
        kind: zone_sync::Kind,
        name: &[u8],
        sessions: Arc<Store<StickySession>>,
        timeout_ms: u64,
    ) -> Arc<InCluster> {
        let own = Arc::new(InCluster { sessions, timeout_ms, notes: Notes::default() });
        let contents: Arc<dyn Contents> = own.clone();
        own.notes.join(kind, name, &contents);
        own
    }
}

impl Contents for InCluster {
    fn keys(&self) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        self.sessions.each(|key, _| keys.push(key.into()));
        keys
    }

    fn value(&self, key: &[u8], _: u32) -> Option<Vec<u8>> {
        let now_ms = clock::monotonic_ms();
        let write = |session: &mut StickySession| {
            let unused_ms = now_ms.saturating_sub(session.used_ms);
            let mut value = Vec::new();
            zone_sync::Session { unused_ms, peer: session.peer() }.write(&mut value);
            (unused_ms < self.timeout_ms).then_some(value)
        };
        self.sessions.look(key, write).flatten()
    }

    fn take(&self, key: &[u8], value: &[u8]) {
        let Some(zone_sync::Session { unused_ms, peer }) = zone_sync::Session::read(value) else { return };
        if key.len() != KEY || peer.is_empty() || peer.len() > LONGEST_PEER || unused_ms >= self.timeout_ms {
            return;
        }
        let now_ms = clock::monotonic_ms();
        let used_ms = now_ms.saturating_sub(unused_ms);
        let unused = Unused { since_ms: now_ms.saturating_sub(self.timeout_ms) };
        self.sessions.enter(key, &unused, |session, is_new| {
            if is_new || session.used_ms < used_ms {
                session.bind(peer, used_ms);
                session.told_ms = now_ms;
            }
        });
    }

    fn count(&self) -> u64 {
        self.sessions.count() as u64
    }
}

/// One learnt session.
#[derive(Debug, Default)]
pub(crate) struct StickySession {
    peer: [u8; LONGEST_PEER],
    len: u8,
    /// When it was used last, monotonic ms.
    used_ms: u64,
    /// When other nodes were told of it, or told of it.
    told_ms: u64,
}

impl StickySession {
    pub(crate) fn peer(&self) -> &[u8] {
        &self.peer[..usize::from(self.len)]
    }

    pub(crate) fn bind(&mut self, peer: &[u8], now_ms: u64) {
        self.peer[..peer.len()].copy_from_slice(peer);
        self.len = peer.len() as u8;
        self.used_ms = now_ms;
    }

    /// The same in a cluster. True: other nodes are to know, since it is another peer or they may take it for unused before long.
    fn bind_and_tell(&mut self, peer: &[u8], now_ms: u64, timeout_ms: u64) -> bool {
        let is_news = self.peer() != peer || now_ms.saturating_sub(self.told_ms) >= timeout_ms / TOLD_IN_A_TIMEOUT;
        self.bind(peer, now_ms);
        if is_news {
            self.told_ms = now_ms;
        }
        is_news
    }

    /// For another process. Clocks are the machine's, which both processes read.
    pub(crate) fn write(&self, w: &mut heir::Writer) {
        w.bytes(self.peer());
        w.number(self.used_ms);
    }

    /// What another process wrote.
    pub(crate) fn read(r: &mut heir::Reader<'_>) -> Option<StickySession> {
        let (peer, used_ms) = (r.bytes()?, r.number()?);
        let mut session = StickySession::default();
        (peer.len() <= LONGEST_PEER).then(|| session.bind(peer, used_ms))?;
        Some(session)
    }
}

/// Sessions that were not used for long may go.
pub(crate) struct Unused {
    pub(crate) since_ms: u64,
}

impl Policy<StickySession> for Unused {
    fn is_pinned(&self, _: &StickySession) -> bool {
        false
    }

    fn is_idle(&self, session: &StickySession) -> bool {
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
                let known = |s: &mut StickySession| (!unused.is_idle(s)).then(|| s.peer().into());
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
        let is_news = if created.is_some() {
            let done = learn.sessions.enter(&key, &unused, |s, _| s.bind_and_tell(peer, now_ms, learn.timeout_ms));
            done.is_some_and(|(_, is_news)| is_news)
        } else {
            // What ended while the answer was under way has ended.
            let bind = |s: &mut StickySession| !unused.is_idle(s) && s.bind_and_tell(peer, now_ms, learn.timeout_ms);
            learn.sessions.look(&key, bind).unwrap_or(false)
        };
        if is_news && let Some(cluster) = &learn.cluster {
            cluster.notes.note(&key);
        }
    }
}

/// The first of some variables that has a value.
fn first_of(r: &mut Request, variables: &[VariableId]) -> Option<Text> {
    variables.iter().find_map(|id| r.variable(*id).filter(|text| !r.get(*text).is_empty()))
}

pub(crate) fn key(id: &[u8]) -> [u8; KEY] {
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
                wire::date::write_cookie(at, &mut out);
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
}

pub(crate) fn is_samesite(value: &[u8]) -> bool {
    ["strict", "lax", "none"].iter().any(|known| value.eq_ignore_ascii_case(known.as_bytes()))
}
