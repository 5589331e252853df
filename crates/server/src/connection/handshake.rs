//! The TLS handshake with a client of `http` or `stream`: reads what it asks for, lets hooks find the server and the certificate
//! (`tls::hooks`), and the library do the rest. From: `proxy_header`. To: the session, which reads and writes plain bytes. The
//! private-key work of many handshakes is done one by one with a look at everybody else in between (docs/decisions/0007-tls.md).

mod facts;

pub use facts::{Done, Facts, facts};

use super::arrival::Arrival;
use super::incoming::{Filled, Incoming};
use super::slow::{self, TOO_SLOW};
use super::socket::Socket;
use super::tls::Tls;
use super::{Client, Downstream, pool};
use crate::log::error::Level;
use crate::request::Request;
use crate::snapshot::{ServerId, ThreadSnapshot};
use crate::status::ssl;
use crate::tls::hooks::{self, Asked, Refused};
use crate::tls::notes::{self, Notes};
use crate::tls::server::Context;
use crate::tls::verify::{Purpose, Trust};
use runtime::clock;
use rustix::net::RecvFlags;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::{AlertDescription, CommonState, HandshakeKind, ProtocolVersion, ServerConfig};
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

/// What became of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The socket stands for the plain bytes now.
    Encrypted,
    /// The client speaks something else, most likely plain HTTP: nothing of it was consumed.
    Plain,
    /// The connection is over. The log says why.
    Over,
}

/// Accepts TLS. `session`: whose handshake it is, in `stream`.
pub async fn accept(incoming: &mut Incoming, arrival: Arrival<'_>, session: Option<&mut Request>) -> Accepted {
    incoming.timer.set(arrival.handshake_timeout());
    // As nginx says it of a connection that is not among those that may be closed for others.
    arrival.line(ACTION, Level::Debug, format_args!("reusable connection: 0"));
    let default = arrival.snapshot.server(arrival.server);
    let (message, hello) = match read_hello(incoming, arrival).await {
        Hello::Asked(message, hello) => (message, hello),
        Hello::Plain => return Accepted::Plain,
        Hello::Nothing => return Accepted::Over,
        Hello::Over(why) => {
            ssl::failed(default, why.as_ref());
            return Accepted::Over;
        }
    };
    let mut asked = Asked::new(arrival.snapshot, arrival.site, arrival.client, &message, &hello);
    asked.session = session;
    let Some(heard) = incoming.timer.guard(hooks::client_hello(&mut asked)).await else {
        ssl::failed(default, None);
        timed_out(arrival);
        return Accepted::Over;
    };
    if let Err(refused) = heard {
        ssl::failed(default, Some(&io::ErrorKind::InvalidInput.into()));
        say_refused(incoming, arrival, &refused);
        return Accepted::Over;
    }
    let arrival = arrival.at_server(asked.server);
    let served = arrival.snapshot.server(asked.server);
    let context = match agreed(&mut asked) {
        Ok(context) => context,
        Err((refused, event)) => {
            ssl::note(served, ssl::Event::Failed);
            event.into_iter().for_each(|event| ssl::note(served, event));
            say_refused(incoming, arrival, &refused);
            return Accepted::Over;
        }
    };
    let _ = arrival.client.tls.set(Rc::new(asked.facts()));
    let Some(config) = incoming.timer.guard(hooks::certificate(&mut asked)).await else {
        ssl::failed(served, None);
        timed_out(arrival);
        return Accepted::Over;
    };
    let config = match config {
        Ok(config) => config,
        Err(refused) => {
            ssl::failed(served, Some(&io::ErrorKind::NotFound.into()));
            say_refused(incoming, arrival, &refused);
            return Accepted::Over;
        }
    };
    let is_all = asked.is_all;
    if arrival.nodelay() {
        incoming.set_nodelay();
    }
    let trust = asked.trust.take();
    match shake(incoming, arrival.client, &context, trust.as_deref(), config).await {
        Ok((done, path)) => {
            hooks::shaken(&mut asked);
            match completed(incoming, arrival, &context, done, path).await {
                true if !is_all => Accepted::Encrypted,
                _ => Accepted::Over,
            }
        }
        Err(Some(e)) => {
            ssl::failed(served, Some(&e));
            failed(arrival, &e);
            Accepted::Over
        }
        Err(None) => {
            ssl::failed(served, None);
            timed_out(arrival);
            Accepted::Over
        }
    }
}

/// Takes the settings of the server that was asked for; where nothing comes of it, also what is counted beside the failure.
fn agreed(asked: &mut Asked<'_>) -> Result<Arc<Context>, (Refused, Option<ssl::Event>)> {
    let Some(context) = context(asked.snapshot, asked.server, asked.site.default).cloned() else {
        let (alert, text) = (AlertDescription::UnrecognisedName, "handshake rejected".to_owned());
        return Err((Refused { alert, level: Level::Info, text }, None));
    };
    if let Some(misfit) = misfit(asked.hello, asked.message, &context.config) {
        let text = format!("SSL_do_handshake() failed (SSL: {})", misfit.text);
        return Err((Refused { alert: misfit.alert, level: Level::Info, text }, Some(misfit.event)));
    }
    if asked.config.is_none() {
        asked.config = Some(context.for_ciphers(wire::tls::pairs(asked.hello.ciphers.of(asked.message))).clone());
    }
    asked.context = Some(context.clone());
    Ok(context)
}

/// Notes and counts what the handshake came to, once a responder was asked about the client's certificate. False: it took too long.
async fn completed(
    incoming: &mut Incoming,
    arrival: Arrival<'_>,
    context: &Context,
    mut done: Done,
    path: Path,
) -> bool {
    if let Some(ocsp) = &context.ocsp
        && !path.is_empty()
    {
        let Some(checked) = incoming.timer.guard(ocsp.check(path, clock::wall_seconds())).await else {
            timed_out(arrival);
            return false;
        };
        done.verified = checked;
    }
    let served = arrival.snapshot.server(arrival.server);
    let facts = arrival.client.tls.get().expect("set when the server was known");
    facts.early.set(incoming.socket.tls().is_some_and(Tls::is_handshaking));
    ssl::note(served, ssl::Event::Handshake);
    if done.kind == Some(HandshakeKind::Resumed) {
        ssl::note(served, ssl::Event::Reuse);
    }
    let _ = facts.done.set(done);
    true
}

/// Client and server have nothing in common.
struct Misfit {
    alert: AlertDescription,
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
        return Some(Misfit { alert: AlertDescription::ProtocolVersion, event: ssl::Event::NoProtocol, text });
    }
    let known = |number| config.crypto_provider().cipher_suites.iter().any(|s| u16::from(s.suite()) == number);
    let common = wire::tls::pairs(hello.ciphers.of(message)).any(known);
    (!common).then(|| Misfit {
        alert: AlertDescription::HandshakeFailure,
        event: ssl::Event::NoCipher,
        text: "no shared cipher".to_owned(),
    })
}

/// Names of certificates may have variables: there is no request yet, but what it would be of.
pub fn with_request<T>(
    snapshot: &Rc<ThreadSnapshot>,
    client: &Rc<Client>,
    server: ServerId,
    work: impl FnOnce(&mut Request) -> T,
) -> T {
    let mut r = pool::take_request(snapshot.clone(), client.clone(), Downstream::None);
    r.server = server;
    r.location = snapshot.server(server).root;
    let result = work(&mut r);
    pool::give_request(r);
    result
}

/// The settings of the server that was asked for; of the default one where it has none. None: the handshake is refused.
pub fn context(snapshot: &ThreadSnapshot, server: ServerId, default: ServerId) -> Option<&Arc<Context>> {
    let asked = snapshot.server(server);
    let context = asked.tls.as_ref().or(snapshot.server(default).tls.as_ref())?;
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

async fn read_hello(incoming: &mut Incoming, arrival: Arrival<'_>) -> Hello {
    let line = |text: std::fmt::Arguments<'_>| arrival.line(ACTION, Level::Info, text);
    let mut silence = arrival.silence();
    loop {
        if let Some(first) = incoming.unread().first()
            && first & 0x80 == 0
            && *first != wire::tls::HANDSHAKE
        {
            return Hello::Plain;
        }
        let parsed = match wire::tls::gather(incoming.unread()) {
            Ok(Some(message)) => wire::tls::parse(&message).map(|hello| Some((message, hello))),
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        match parsed {
            Ok(Some((message, hello))) => return Hello::Asked(message, hello),
            Ok(None) => {}
            Err(e) => {
                refuse(incoming, alert_of(e));
                if e == HelloError::NotHandshake {
                    // SSL 2 is one of those that come this way.
                    ssl::note(arrival.snapshot.server(arrival.server), ssl::Event::NoProtocol);
                }
                line(format_args!("SSL_do_handshake() failed (SSL: {})", e.text()));
                return Hello::Over(Some(io::ErrorKind::InvalidData.into()));
            }
        }
        let began = !incoming.unread().is_empty();
        let Some(filled) = slow::fill_silent(incoming, arrival.client, &mut silence).await else {
            line(format_args!("{TOO_SLOW}"));
            return Hello::Over(None);
        };
        match filled {
            Filled::Read(Ok(n)) if n > 0 => {}
            Filled::Read(Ok(_)) if began => {
                line(format_args!("peer closed connection in SSL handshake"));
                return Hello::Over(Some(io::ErrorKind::UnexpectedEof.into()));
            }
            Filled::Read(Ok(_)) => {
                line(format_args!("client closed connection"));
                return Hello::Nothing;
            }
            Filled::Read(Err(e)) => {
                line(format_args!("recv() failed ({})", crate::log::os_error(&e)));
                return Hello::Over(Some(e));
            }
            Filled::Taken => return Hello::Nothing,
            Filled::Late => {
                timed_out(arrival);
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
    incoming: &mut Incoming,
    client: &Client,
    context: &Context,
    trust: Option<&Trust>,
    config: Arc<ServerConfig>,
) -> Result<(Done, Path), Option<io::Error>> {
    let end = UnbufferedServerConnection::new(config).map_err(|e| Some(io::Error::other(e)))?;
    let socket = std::mem::replace(&mut incoming.socket, Socket::none());
    let mut tls = Tls::server(socket, end, incoming.take_unread(), context.buffer_size);
    let mut notes = Notes::default();
    let keys = KEYS.with(Rc::clone);
    let turn = match keys.try_acquire() {
        Ok(turn) => turn,
        Err(_) => {
            let turn = incoming.timer.guard(keys.acquire()).await.ok_or(None)?;
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
                    incoming.timer.poll_expired(cx).map(|()| Poll::Pending)
                }
            }
        })
        .await;
        client.works();
    }
    match shaken {
        Poll::Ready(Ok(())) => {
            let done = done(tls.state(), context, trust, notes);
            incoming.socket = Socket::encrypted(tls);
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

/// What a handshake came to. `trust`: whom a client's certificate must come from, if not from those whom the settings name.
pub fn done(state: &CommonState, context: &Context, trust: Option<&Trust>, notes: Notes) -> (Done, Path) {
    let chain: Vec<_> = state.peer_certificates().unwrap_or_default().to_vec();
    let mut path = Path::new();
    let verified = match trust.or(context.trust.as_deref()) {
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

fn alert_of(e: HelloError) -> AlertDescription {
    match e {
        HelloError::NotHandshake => AlertDescription::ProtocolVersion,
        HelloError::NotClientHello => AlertDescription::UnexpectedMessage,
        HelloError::Size | HelloError::Malformed => AlertDescription::DecodeError,
    }
}

/// Sends a fatal alert (RFC 8446 section 6) before there is a connection of the library.
fn refuse(incoming: &mut Incoming, alert: AlertDescription) {
    let _ = incoming.socket.try_write(&[21, 3, 3, 0, 2, 2, alert.into()], false);
}

/// What lines of the error log say after `while`.
pub const ACTION: &str = "SSL handshaking";

fn say_refused(incoming: &mut Incoming, arrival: Arrival<'_>, refused: &Refused) {
    refuse(incoming, refused.alert);
    arrival.line(ACTION, refused.level, format_args!("{}", refused.text));
}

fn failed(arrival: Arrival<'_>, error: &io::Error) {
    let line = |text: std::fmt::Arguments<'_>| arrival.line(ACTION, Level::Info, text);
    match error.kind() {
        io::ErrorKind::UnexpectedEof => line(format_args!("peer closed connection in SSL handshake")),
        io::ErrorKind::InvalidData => line(format_args!("SSL_do_handshake() failed (SSL: {error})")),
        _ => line(format_args!("SSL_do_handshake() failed ({})", crate::log::os_error(error))),
    }
}

fn timed_out(arrival: Arrival<'_>) {
    arrival.line(ACTION, Level::Info, format_args!("client timed out (110: Connection timed out)"));
}
