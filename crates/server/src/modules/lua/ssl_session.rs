//! Programs that keep clients' sessions of TLS 1.2: `ssl_session_fetch_by_lua*` before the library looks for one (it may wait),
//! `ssl_session_store_by_lua*` once a handshake has made one. The library asks in the middle of its work, where nothing can wait: so what
//! it will ask for is fetched when the ClientHello is there, and what it gives is kept for the program until its work is done.

use super::current::Phase;
use super::phases;
use super::ssl::{begin, code, finish, program, run_on};
use crate::log_error;
use crate::tls::hooks::{Asked, Hook, Verdict, Waiting};
use crate::tls::notes;
use crate::tls::tickets::Scope;
use rustls::ProtocolVersion;
use rustls::server::StoresServerSessions;
use std::sync::{Arc, Mutex, PoisonError};
use wire::tls::extensions;

/// A program may give the session that the client names.
pub const FETCH: Hook = Hook::Later(may_fetch, fetch);
/// The library finds and leaves sessions where the programs do.
pub const STORAGE: Hook = Hook::Now(storage);

/// The extension `session_ticket` (RFC 5077 section 3.2).
const SESSION_TICKET: u16 = 35;

/// What programs that keep sessions see of one, and give.
#[derive(Debug, Default)]
pub struct SslSession {
    /// Its number, as the client names it.
    pub id: Vec<u8>,
    /// What belongs to it: the server's scope, then the library's own form.
    pub value: Option<Vec<u8>>,
    /// What sessions of this server begin with.
    pub scope: Scope,
}

/// Where the library leaves a session, and finds the one that was fetched.
#[derive(Debug, Default)]
pub struct Slot {
    fetched: Option<SslSession>,
    scope: Scope,
    made: Mutex<Option<SslSession>>,
}

/// A server's own store, with what programs keep beside it.
#[derive(Debug)]
struct Storage {
    own: Arc<dyn StoresServerSessions>,
    slot: Arc<Slot>,
}

impl StoresServerSessions for Storage {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        notes::session(&id);
        let whole = [&self.slot.scope[..], &value].concat();
        let session = SslSession { id: id.clone(), value: Some(whole), scope: self.slot.scope };
        *self.slot.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        self.own.put(id, value);
        true
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        let fetched =
            || self.slot.fetched.as_ref().filter(|s| s.id == id)?.value.as_ref()?.get(self.slot.scope.len()..);
        self.own.get(id).or_else(|| fetched().map(<[u8]>::to_vec)).inspect(|_| notes::session(id))
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.own.take(id)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Whether TLS 1.2 will be agreed on: later versions have no sessions to look for.
fn is_tls12(asked: &Asked<'_>) -> bool {
    let best = ProtocolVersion::from(asked.hello.best_version(asked.message));
    let has13 = asked.config.as_ref().is_some_and(|c| {
        c.crypto_provider().cipher_suites.iter().any(|s| s.version().version == ProtocolVersion::TLSv1_3)
    });
    let wanted13 = || asked.context.as_ref().is_none_or(|context| context.speaks_tls13());
    best == ProtocolVersion::TLSv1_2 || !(has13 && asked.lua.protocols.map_or_else(wanted13, |p| p.tls13))
}

/// Whether the client names a session and shows no ticket, which would have everything in it.
fn may_fetch(asked: &Asked<'_>) -> bool {
    let named = asked.hello.session_id.of(asked.message);
    let has_ticket = || {
        let all = extensions(asked.message).unwrap_or_default();
        all.iter().any(|(kind, body)| *kind == SESSION_TICKET && !body.of(asked.message).is_empty())
    };
    !asked.is_all
        && !named.is_empty()
        && program(asked, Phase::SessionFetch).is_some()
        && is_tls12(asked)
        && !has_ticket()
}

fn scope(asked: &Asked<'_>) -> Scope {
    asked.context.as_ref().map(|c| c.scope).unwrap_or_default()
}

fn fetch<'a>(asked: &'a mut Asked<'_>) -> Waiting<'a> {
    Box::pin(async move {
        let Some(chunk) = program(asked, Phase::SessionFetch) else { return Ok(()) };
        let (id, scope) = (asked.hello.session_id.of(asked.message).to_vec(), scope(asked));
        let r = begin(asked, SslSession { id, value: None, scope });
        log_error!(r, Debug, "reusable connection: 0");
        log_error!(r, Debug, "ssl session fetch: connection reusable: 0");
        let end = run_on(r, &chunk, Phase::SessionFetch).await;
        log_error!(
            r,
            Debug,
            "{}: handler return value: {}, sess get cb exit code: 0",
            Phase::SessionFetch.context(),
            code(&end)
        );
        // Whatever became of the program, the handshake goes on: without a session where it gave none.
        let fetched = finish(r).map(|h| h.session).filter(|s| s.value.is_some());
        asked.lua.kept = Some(Arc::new(Slot { fetched, scope, made: Mutex::default() }));
        Ok(())
    })
}

fn storage(asked: &mut Asked<'_>) -> Verdict {
    let wanted = |phase| program(asked, phase).is_some();
    if asked.is_all || !(wanted(Phase::SessionFetch) || wanted(Phase::SessionStore)) || !is_tls12(asked) {
        return Ok(());
    }
    let scope = scope(asked);
    let kept = asked.lua.kept.take().and_then(|kept| kept.downcast().ok());
    let slot: Arc<Slot> = kept.unwrap_or_else(|| Arc::new(Slot { scope, ..Slot::default() }));
    asked.lua.kept = Some(slot.clone());
    if let Some(base) = &asked.config {
        let mut config = (**base).clone();
        config.session_storage = Arc::new(Storage { own: base.session_storage.clone(), slot });
        asked.config = Some(Arc::new(config));
    }
    Ok(())
}

/// Gives a session that a handshake has made to the program that keeps it. It cannot wait.
pub fn store(asked: &mut Asked<'_>) {
    let Some(chunk) = program(asked, Phase::SessionStore).filter(|_| !asked.is_all) else { return };
    let name = Phase::SessionStore.context();
    let kept = asked.lua.kept.take().and_then(|kept| kept.downcast::<Slot>().ok());
    let Some(slot) = kept else {
        let r = begin(asked, SslSession::default());
        let version = u16::from(ProtocolVersion::TLSv1_3);
        log_error!(r, Debug, "{name}: skipped since TLS version >= 1.3 ({version})");
        drop(finish(r));
        return;
    };
    let made = slot.made.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(session) = made else { return };
    let r = begin(asked, session);
    log_error!(r, Debug, "reusable connection: 0");
    log_error!(r, Debug, "ssl session store: connection reusable: 0");
    phases::call(r, &chunk, Phase::SessionStore);
    log_error!(r, Debug, "{name}: handler return value: 0, sess new cb exit code: 0");
    drop(finish(r));
}
