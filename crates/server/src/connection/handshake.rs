//! The TLS handshake with a client: reads what it asks for, finds the server by that name, lets the library do the rest.
//! After: `proxy_header`. Before: the session, which reads and writes plain bytes. The private-key work of many handshakes
//! is done one by one with a look at everybody else in between (docs/decisions/0007-tls.md).

mod facts;

pub use facts::{Done, Facts, facts};

use super::http1::{Filled, Http1};
use super::socket::Socket;
use super::tls::Tls;
use super::{Client, Session, pool};
use crate::acme::challenge;
use crate::log::error::Level;
use crate::request::Request;
use crate::snapshot::{ServerId, Shot};
use crate::status::ssl;
use crate::tls::notes::{self, Notes};
use crate::tls::server::Context;
use crate::tls::verify::Purpose;
use runtime::clock;
use rustix::net::RecvFlags;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::{CommonState, HandshakeKind, ProtocolVersion, ServerConfig};
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use wire::tls::{ClientHello, HelloError};

/// After so much work on handshakes a thread looks at its other connections. An RSA key of 2048 bits takes this and more.
const TURN: Duration = Duration::from_micros(300);

thread_local! {
    /// Only one handshake at a time works with its key.
    static KEYS: Rc<Semaphore> = Rc::new(Semaphore::new(1));
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Accepts TLS. True: go on, encrypted or not (whoever speaks plain HTTP here gets an answer that says so); false: the
/// connection is over.
pub async fn accept(http: &mut Http1, client: &Rc<Client>) -> bool {
    let shot = crate::worker::shot();
    let site = shot.ports[crate::worker::port_of(&shot, client.listener)].site(client);
    http.timer.set(*shot.server(site.default).conf.core.client_header_timeout);
    let log = Log { shot: &shot, client, server: site.default };
    let (message, hello) = match read_hello(http, &log).await {
        Hello::Asked(message, hello) => (message, hello),
        Hello::Plain => return true,
        Hello::Nothing => return false,
        Hello::Over(why) => {
            ssl::failed(shot.server(site.default), why.as_ref());
            return false;
        }
    };
    let name = hello.server_name.and_then(|name| host(name.of(&message)));
    let found = match name.as_ref().map_or(Ok(None), |name| site.find_early(name.as_bytes())) {
        Ok(found) => found,
        Err(failure) => {
            ssl::failed(shot.server(site.default), Some(&io::ErrorKind::InvalidInput.into()));
            refuse(http, alert::INTERNAL_ERROR);
            log.line(Level::Alert, format_args!("{failure}"));
            return false;
        }
    };
    let server = found.unwrap_or(site.default);
    let log = Log { server, ..log };
    let served = shot.server(server);
    let Some(context) = context(&shot, server, site.default) else {
        ssl::failed(served, Some(&io::ErrorKind::NotFound.into()));
        refuse(http, alert::UNRECOGNIZED_NAME);
        log.line(Level::Info, format_args!("handshake rejected"));
        return false;
    };
    if let Some(misfit) = misfit(&hello, &message, &context.config) {
        ssl::note(served, ssl::Event::Failed);
        ssl::note(served, misfit.event);
        refuse(http, misfit.alert);
        log.line(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {})", misfit.text));
        return false;
    }
    let _ = client.tls.set(Rc::new(facts(&shot, &message, &hello, name.filter(|_| found.is_some()), server)));
    let proof = proof(&message, &hello);
    let is_proof = proof.is_some();
    let config = match (proof, &context.dynamic) {
        (Some(config), _) => Ok(config),
        (None, None) => Ok(context.for_ciphers(wire::tls::pairs(hello.ciphers.of(&message))).clone()),
        (None, Some(dynamic)) => with_request(&shot, client, server, |r| dynamic.config(r, &context.config)),
    };
    let config = match config {
        Ok(config) => config,
        Err(text) => {
            ssl::failed(served, Some(&io::ErrorKind::NotFound.into()));
            refuse(http, alert::INTERNAL_ERROR);
            log.line(Level::Error, format_args!("{text}"));
            return false;
        }
    };
    if *shot.location(shot.server(server).root).conf.core.tcp_nodelay {
        http.set_nodelay();
    }
    match shake(http, client, context, config).await {
        Ok((mut done, path)) => {
            if let Some(ocsp) = &context.ocsp
                && !path.is_empty()
            {
                let Some(checked) = http.timer.guard(ocsp.check(path, clock::wall_seconds())).await else {
                    log.timed_out();
                    return false;
                };
                done.verified = checked;
            }
            let facts = client.tls.get().expect("set above");
            facts.early.set(http.socket.tls().is_some_and(|t| t.state().is_handshaking()));
            ssl::note(served, ssl::Event::Handshake);
            if done.kind == Some(HandshakeKind::Resumed) {
                ssl::note(served, ssl::Event::Reuse);
            }
            let _ = facts.done.set(done);
            // Whoever asked for a proof has it.
            !is_proof
        }
        Err(Some(e)) => {
            ssl::failed(served, Some(&e));
            log.failed(&e);
            false
        }
        Err(None) => {
            ssl::failed(served, None);
            log.timed_out();
            false
        }
    }
}

/// Client and server have nothing in common.
struct Misfit {
    alert: u8,
    event: ssl::Event,
    text: String,
}

/// What a ClientHello tells of it. The library would find something else wrong with old clients first: the extensions that
/// they lack, or that no certificate fits their ciphers.
fn misfit(hello: &ClientHello, message: &[u8], config: &ServerConfig) -> Option<Misfit> {
    let best = hello.best_version(message);
    if best < u16::from(ProtocolVersion::TLSv1_2) {
        // What is missing is easier found when the line says what the client has.
        let text = format!("unsupported protocol, client offers version 0x{best:04x}");
        return Some(Misfit { alert: alert::PROTOCOL_VERSION, event: ssl::Event::NoProtocol, text });
    }
    let known = |number| config.crypto_provider().cipher_suites.iter().any(|s| u16::from(s.suite()) == number);
    let common = wire::tls::pairs(hello.ciphers.of(message)).any(known);
    (!common).then(|| Misfit {
        alert: alert::HANDSHAKE_FAILURE,
        event: ssl::Event::NoCipher,
        text: "no shared cipher".to_owned(),
    })
}

/// Another server's handshake: an ACME authority asks for the proof of a name, and offers no other protocol.
fn proof(message: &[u8], hello: &ClientHello) -> Option<Arc<ServerConfig>> {
    let (length, protocol) = hello.alpn.of(message).split_first()?;
    if protocol != challenge::ALPN || usize::from(*length) != protocol.len() {
        return None;
    }
    challenge::certificate(hello.server_name?.of(message))
}

/// Names of certificates may have variables: there is no request yet, but what it would be of.
pub fn with_request<T>(
    shot: &Rc<Shot>,
    client: &Rc<Client>,
    server: ServerId,
    work: impl FnOnce(&mut Request) -> T,
) -> T {
    let mut r = pool::take_request(shot.clone(), client.clone(), Session::None);
    r.server = server;
    r.location = shot.server(server).root;
    let result = work(&mut r);
    pool::give_request(r);
    result
}

/// The settings of the server that was asked for; of the default one where it has none. None: the handshake is refused.
pub fn context(shot: &Shot, server: ServerId, default: ServerId) -> Option<&Arc<Context>> {
    let asked = shot.server(server);
    let context = asked.tls.as_ref().or(shot.server(default).tls.as_ref())?;
    (!*asked.conf.ssl.reject_handshake && !context.reject).then_some(context)
}

enum Hello {
    Asked(Vec<u8>, ClientHello),
    /// Another protocol: most likely HTTP.
    Plain,
    /// The client closed before it said anything.
    Nothing,
    /// It came to nothing. Without an error: it took too long.
    Over(Option<io::Error>),
}

async fn read_hello(http: &mut Http1, log: &Log<'_>) -> Hello {
    loop {
        if let Some(first) = http.unread().first()
            && first & 0x80 == 0
            && *first != wire::tls::HANDSHAKE
        {
            return Hello::Plain;
        }
        let parsed = match wire::tls::gather(http.unread()) {
            Ok(Some(message)) => wire::tls::parse(&message).map(|hello| Some((message, hello))),
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        match parsed {
            Ok(Some((message, hello))) => return Hello::Asked(message, hello),
            Ok(None) => {}
            Err(e) => {
                refuse(http, alert_of(e));
                if e == HelloError::NotHandshake {
                    // SSL 2 is one of those that come this way.
                    ssl::note(log.shot.server(log.server), ssl::Event::NoProtocol);
                }
                log.line(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {})", e.text()));
                return Hello::Over(Some(io::ErrorKind::InvalidData.into()));
            }
        }
        let began = !http.unread().is_empty();
        match http.fill(log.client).await {
            Filled::Read(Ok(n)) if n > 0 => {}
            Filled::Read(Ok(_)) if began => {
                log.line(Level::Info, format_args!("peer closed connection in SSL handshake"));
                return Hello::Over(Some(io::ErrorKind::UnexpectedEof.into()));
            }
            Filled::Read(Ok(_)) => {
                log.line(Level::Info, format_args!("client closed connection"));
                return Hello::Nothing;
            }
            Filled::Read(Err(e)) => {
                log.line(Level::Info, format_args!("recv() failed ({})", crate::log::os_error(&e)));
                return Hello::Over(Some(e));
            }
            Filled::Taken => return Hello::Nothing,
            Filled::Late => {
                log.timed_out();
                return Hello::Over(None);
            }
        }
    }
}

/// The name as servers are found by: `None` when it is none.
pub fn host(name: &[u8]) -> Option<String> {
    let mut out = Vec::new();
    wire::http1::values::validate_host(name, &mut out).ok()?;
    String::from_utf8(out).ok().filter(|n| !n.is_empty())
}

/// The handshake proper. An error without cause: it took too long.
async fn shake(
    http: &mut Http1,
    client: &Client,
    context: &Context,
    config: Arc<ServerConfig>,
) -> Result<(Done, Path), Option<io::Error>> {
    let end = UnbufferedServerConnection::new(config).map_err(|e| Some(io::Error::other(e)))?;
    let socket = std::mem::replace(&mut http.socket, Socket::none());
    let incoming = std::mem::take(&mut http.input);
    debug_assert_eq!(http.at, 0, "what came before the handshake was consumed");
    let mut tls = Tls::server(socket, end, incoming, context.buffer_size);
    let mut notes = Notes::default();
    let keys = KEYS.with(Rc::clone);
    let turn = match keys.try_acquire() {
        Ok(turn) => turn,
        Err(_) => {
            let turn = http.timer.guard(keys.acquire()).await.ok_or(None)?;
            // In a crowd many give up while they wait: no work is done for those.
            if is_gone(tls.socket()) {
                return Err(Some(io::ErrorKind::UnexpectedEof.into()));
            }
            turn.expect("this semaphore is never closed")
        }
    };
    let started = Instant::now();
    let first = tls.advance();
    let spent = SPENT.get() + started.elapsed();
    SPENT.set(spent);
    let mut shaken = match first {
        // What is ready leaves before others get their turn.
        Ok(()) => poll_fn(|cx| Poll::Ready(tls.poll_handshake(cx))).await,
        Err(e) => Poll::Ready(Err(e)),
    };
    notes::take(&mut notes);
    if spent >= TURN {
        SPENT.set(Duration::ZERO);
        runtime::yield_now().await;
    }
    drop(turn);
    if shaken.is_pending() {
        shaken = poll_fn(|cx| {
            let result = tls.poll_handshake(cx);
            notes::take(&mut notes);
            match result {
                Poll::Ready(result) => Poll::Ready(Poll::Ready(result)),
                Poll::Pending if client.is_taken() => Poll::Ready(Poll::Pending),
                Poll::Pending => {
                    client.owes(0);
                    http.timer.poll_expired(cx).map(|()| Poll::Pending)
                }
            }
        })
        .await;
        client.works();
    }
    match shaken {
        Poll::Ready(Ok(())) => {
            let done = done(tls.state(), context, notes);
            http.socket = Socket::encrypted(tls);
            Ok(done)
        }
        Poll::Ready(Err(e)) => Err(Some(e)),
        Poll::Pending => Err(None),
    }
}

/// Whether the other side has closed; asks the kernel.
fn is_gone(socket: &Socket) -> bool {
    let mut byte = [0; 1];
    let seen = rustix::net::recv(socket.as_fd(), &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    match seen {
        Ok((n, _)) => n == 0,
        Err(e) => e != rustix::io::Errno::AGAIN && e != rustix::io::Errno::INTR,
    }
}

/// A client's chain up to the trusted certificate: empty unless it was verified and is to be asked about.
pub type Path = Vec<CertificateDer<'static>>;

/// What a handshake came to.
pub fn done(state: &CommonState, context: &Context, notes: Notes) -> (Done, Path) {
    let chain: Vec<_> = state.peer_certificates().unwrap_or_default().to_vec();
    let mut path = Path::new();
    let verified = match &context.trust {
        Some(trust) if !chain.is_empty() => trust.verify(&chain, Purpose::Client, clock::wall_seconds()).map(|found| {
            if context.ocsp.is_some() {
                path = found.iter().map(|c| CertificateDer::from(c.der.to_vec())).collect();
            }
        }),
        _ => Ok(()),
    };
    let done = Done {
        version: state.protocol_version().unwrap_or(ProtocolVersion::TLSv1_2),
        cipher: state.negotiated_cipher_suite(),
        group: state.negotiated_key_exchange_group().map(|g| g.name()),
        alpn: state.alpn_protocol().map(Into::into),
        kind: state.handshake_kind(),
        chain,
        verified,
        notes,
    };
    (done, path)
}

/// Alerts (RFC 8446 section 6).
mod alert {
    pub(super) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(super) const HANDSHAKE_FAILURE: u8 = 40;
    pub(super) const DECODE_ERROR: u8 = 50;
    pub(super) const PROTOCOL_VERSION: u8 = 70;
    pub(super) const INTERNAL_ERROR: u8 = 80;
    pub(super) const UNRECOGNIZED_NAME: u8 = 112;
}

fn alert_of(e: HelloError) -> u8 {
    match e {
        HelloError::NotHandshake => alert::PROTOCOL_VERSION,
        HelloError::NotClientHello => alert::UNEXPECTED_MESSAGE,
        HelloError::Size | HelloError::Malformed => alert::DECODE_ERROR,
    }
}

/// Sends a fatal alert before there is a connection of the library.
fn refuse(http: &mut Http1, alert: u8) {
    let _ = http.socket.try_write(&[21, 3, 3, 0, 2, 2, alert], false);
}

/// Where lines about a handshake go.
struct Log<'s> {
    shot: &'s Shot,
    client: &'s Client,
    server: ServerId,
}

impl Log<'_> {
    fn line(&self, level: Level, text: std::fmt::Arguments<'_>) {
        let log = &self.shot.location(self.shot.server(self.server).root).conf.core.error_log;
        let debug = self.client.debug.get();
        if !debug && !log.enabled(level) {
            return;
        }
        let number = Some(self.client.number);
        let address = &self.shot.listens[crate::worker::port_of(self.shot, self.client.listener)].address;
        let client = self.client.remote.borrow();
        let text = format_args!("{text} while SSL handshaking, client: {}, server: {address}", client.host());
        if debug { log.write_to_all(level, number, text) } else { log.write(level, number, text) }
    }

    fn failed(&self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.line(Level::Info, format_args!("peer closed connection in SSL handshake"));
            }
            io::ErrorKind::InvalidData => {
                self.line(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {error})"));
            }
            _ => {
                let text = crate::log::os_error(error);
                self.line(Level::Info, format_args!("SSL_do_handshake() failed ({text})"));
            }
        }
    }

    fn timed_out(&self) {
        self.line(Level::Info, format_args!("client timed out (110: Connection timed out)"));
    }
}
