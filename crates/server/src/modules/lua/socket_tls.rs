//! `sslhandshake` of a program's socket: from here on what is sent and read is plain above TLS. Sessions are the program's: it gets one, and
//! may give it to a later handshake.

use super::current;
use super::operation::Item;
use super::run::log;
use super::socket::{Shared, complain, failed};
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::log::error::Level;
use crate::log::file::LogFile;
use crate::tls::cipher_names::by_number;
use crate::tls::client::own_certificate;
use ::lua::Fault;
use ::lua::machine::add as add_function;
use mlua::{Lua, Table};
use runtime::timer::Timer;
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::sign::CertifiedKey;
use rustls::{CommonState, KeyLog, ProtocolVersion};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;

/// Sessions that the programs of a thread may hold; who holds more gets none.
const MAX_SESSIONS: usize = 10_000;
/// Names that one session is for.
const NAMES: usize = 1;

type Kept = Arc<ClientSessionMemoryCache>;

thread_local! {
    static SESSIONS: RefCell<HashMap<u32, Kept>> = RefCell::default();
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// What a program says of sessions.
pub enum Downstream {
    /// It wants none.
    Unwanted,
    /// This one is to be resumed; none: there is none yet.
    Known(Option<u32>),
}

/// `ssl_session_free`: called when Lua does not need a session any more.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "ssl_session_free", |_, number: u32| -> Result<_, Fault> {
        log(Level::Debug, format_args!("lua ssl free session: {number:X}"));
        SESSIONS.with_borrow_mut(|all| all.remove(&number));
        Ok(())
    })
}

fn store(session: &Downstream) -> Option<Kept> {
    match session {
        Downstream::Unwanted => None,
        Downstream::Known(Some(number)) => {
            let known = SESSIONS.with_borrow(|all| all.get(number).cloned());
            log(Level::Debug, format_args!("lua ssl set session: {number:X}"));
            known.or_else(|| Some(Arc::new(ClientSessionMemoryCache::new(NAMES))))
        }
        Downstream::Known(None) => Some(Arc::new(ClientSessionMemoryCache::new(NAMES))),
    }
}

fn saved(store: Kept) -> Item {
    SESSIONS.with_borrow_mut(|all| {
        if all.len() >= MAX_SESSIONS {
            return Item::Flag(true);
        }
        let number = LAST.get().wrapping_add(1);
        LAST.set(number);
        all.insert(number, store);
        log(Level::Debug, format_args!("lua ssl save session: {number:X}"));
        Item::Number(f64::from(number))
    })
}

/// Shakes hands. Gives a session's number, `true` where none is wanted, or `nil` and why.
pub async fn handshake(shared: Shared, name: Option<Vec<u8>>, verify: bool, session: Downstream) -> Vec<Item> {
    let (socket, context, timeout, certificate, key_log) = {
        let mut c = shared.borrow_mut();
        if c.raw || c.body.is_some() {
            return failed("not supported for downstream");
        }
        if c.socket.as_ref().is_some_and(|s| s.tls().is_some()) {
            // A connection of a pool has it behind it.
            return vec![match store(&session) {
                Some(store) => saved(store),
                None => Item::Flag(true),
            }];
        }
        if !c.buffer.is_empty() {
            return failed("unread data in buffer");
        }
        (
            c.socket.take(),
            c.conf.tls.clone(),
            c.timeouts[0],
            c.certificate.as_ref().map(|(chain, key)| (chain.clone(), key.clone_key())),
            c.conf.key_log.and_then(key_file),
        )
    };
    let (Some(socket), Some(context)) = (socket, context) else { return failed("closed") };
    let host = name.clone().unwrap_or_default();
    if let Some(name) = &name {
        log(Level::Debug, format_args!("lua ssl server name: \"{}\"", String::from_utf8_lossy(name)));
    }
    let secure = context.for_checks(&host, &[]);
    let mut config = (*secure.config()).clone();
    let store = store(&session);
    if let Some(store) = &store {
        config.resumption = Resumption::store(store.clone());
    }
    if let Some((chain, key)) = certificate {
        let key = match config.crypto_provider().key_provider.load_private_key(key) {
            Ok(key) => key,
            Err(_) => return given_up(&shared, "SSL_use_PrivateKey() failed"),
        };
        config.client_auth_cert_resolver = own_certificate(Some(CertifiedKey::new(chain, key)));
    }
    if let Some(file) = key_log {
        config.key_log = Arc::new(KeyFile { file, beneath: config.key_log.clone() });
    }
    let mut tls = match Tls::client(socket, Arc::new(config), secure.server_name(), 0) {
        Ok(tls) => tls,
        Err(e) => return given_up(&shared, &format!("handshake failed: {e}")),
    };
    let timer = Timer::new();
    timer.set(timeout);
    match timer.guard(poll_fn(|cx| tls.poll_handshake(cx))).await {
        None => {
            complain(&shared, format_args!("lua ssl handshake timed out"));
            return given_up(&shared, "timeout");
        }
        Some(Err(e)) => {
            if e.kind() == io::ErrorKind::UnexpectedEof {
                complain(&shared, format_args!("peer closed connection in SSL handshake"));
                return given_up(&shared, "closed");
            }
            complain(&shared, format_args!("SSL_do_handshake() failed (SSL: {e})"));
            return given_up(&shared, "handshake failed");
        }
        Some(Ok(())) => {}
    }
    tell(tls.state());
    if verify {
        let chain = tls.state().peer_certificates().unwrap_or_default();
        let distrust = match context.verifies() {
            false => Some("20: unable to get local issuer certificate".to_owned()),
            true => secure.verify_for(chain, name.as_deref(), runtime::clock::wall_seconds()).err(),
        };
        if let Some(text) = distrust {
            complain(&shared, format_args!("lua ssl certificate verify error: ({text})"));
            return given_up(&shared, &text);
        }
    }
    shared.borrow_mut().socket = Some(Socket::encrypted(tls));
    vec![match store {
        Some(store) => saved(store),
        None => Item::Flag(true),
    }]
}

/// The open file of `lua_ssl_key_log`.
fn key_file(number: usize) -> Option<Arc<LogFile>> {
    let snapshot = current::machine().ok()?.snapshot.upgrade()?;
    snapshot.main.log.files.get(number)?.file.clone()
}

/// Writes secrets down, as programs that look into packets read them (`SSLKEYLOGFILE`), and hands them on to whom the library told them before.
#[derive(Debug)]
struct KeyFile {
    file: Arc<LogFile>,
    beneath: Arc<dyn KeyLog>,
}

impl KeyLog for KeyFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if self.beneath.will_log(label) {
            self.beneath.log(label, client_random, secret);
        }
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let line = format!("{label} {} {}\n", hex(client_random), hex(secret));
        if let Err(e) = self.file.append(line.as_bytes(), runtime::clock::wall_seconds()) {
            let (path, why) = (self.file.path().display(), crate::log::os_error(&e));
            log(Level::Alert, format_args!("write() to \"{path}\" failed ({why})"));
        }
    }
}

/// What was agreed on, in nginx's words.
fn tell(state: &CommonState) {
    let version = match state.protocol_version() {
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
        _ => "TLSv1.2",
    };
    let cipher = state.negotiated_cipher_suite().and_then(|suite| by_number(suite.suite().into())).unwrap_or("unknown");
    log(Level::Debug, format_args!("SSL: {version}, cipher: \"{cipher} {version}\""));
}

fn given_up(shared: &Shared, why: &str) -> Vec<Item> {
    shared.borrow_mut().close();
    failed(why)
}
