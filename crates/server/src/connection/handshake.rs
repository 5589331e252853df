//! The TLS handshake with a client: reads what it asks for, finds the server by that name, lets the library do the rest.
//! After: `proxy_header`. Before: the session, which reads and writes plain bytes. The private-key work of many handshakes
//! is done one by one with a look at everybody else in between (docs/decisions/0010-tls.md).

use super::Client;
use super::http1::Http1;
use super::socket::Socket;
use super::tls::Tls;
use crate::log::error::Level;
use crate::snapshot::{ServerId, Shot};
use crate::tls::server::Context;
use rustls::server::UnbufferedServerConnection;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
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

/// What a handshake came to. Shared by the connection's requests.
#[derive(Debug)]
pub struct Facts {
    /// The name that was asked for and found, in lower case: which server's certificate was shown.
    pub server_name: Option<Box<str>>,
    /// The server whose settings held.
    pub server: ServerId,
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
        Hello::Over => return false,
    };
    let asked = hello.server_name.and_then(|name| host(name.of(&message)));
    let found = asked.as_ref().and_then(|name| site.find_early(name.as_bytes()));
    let server = found.unwrap_or(site.default);
    let log = Log { server, ..log };
    let context = match context(&shot, server, site.default) {
        Some(c) if !c.reject => c,
        _ => {
            refuse(http, alert::UNRECOGNIZED_NAME);
            log.line(Level::Info, format_args!("SSL_do_handshake() failed (SSL: handshake rejected)"));
            return false;
        }
    };
    match shake(http, context).await {
        Ok(()) => {
            let facts = Facts { server_name: asked.filter(|_| found.is_some()).map(Into::into), server };
            let _ = client.tls.set(Rc::new(facts));
            true
        }
        Err(Some(e)) => {
            failed(&log, &e);
            false
        }
        Err(None) => {
            log.timed_out();
            false
        }
    }
}

/// The settings of the server that was asked for; of the default one where it has none.
fn context(shot: &Shot, server: ServerId, default: ServerId) -> Option<&Arc<Context>> {
    shot.server(server).tls.as_ref().or(shot.server(default).tls.as_ref())
}

enum Hello {
    Asked(Vec<u8>, ClientHello),
    /// Another protocol: most likely HTTP.
    Plain,
    Over,
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
                log.line(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {})", e.text()));
                return Hello::Over;
            }
        }
        let began = !http.unread().is_empty();
        let got = poll_fn(|cx| match http.poll_fill(cx) {
            Poll::Ready(n) => Poll::Ready(Some(n)),
            Poll::Pending => http.timer.poll_expired(cx).map(|()| None),
        })
        .await;
        match got {
            Some(Ok(n)) if n > 0 => {}
            Some(Ok(_)) if began => {
                log.line(Level::Info, format_args!("peer closed connection in SSL handshake"));
                return Hello::Over;
            }
            Some(Ok(_)) => {
                log.line(Level::Info, format_args!("client closed connection"));
                return Hello::Over;
            }
            Some(Err(e)) => {
                log.line(Level::Info, format_args!("recv() failed ({})", crate::log::os_error(&e)));
                return Hello::Over;
            }
            None => {
                log.timed_out();
                return Hello::Over;
            }
        }
    }
}

/// The name as servers are found by: `None` when it is none.
fn host(name: &[u8]) -> Option<String> {
    let mut out = Vec::new();
    wire::http1::values::validate_host(name, &mut out).ok()?;
    String::from_utf8(out).ok().filter(|n| !n.is_empty())
}

/// The handshake proper. An error without cause: it took too long.
async fn shake(http: &mut Http1, context: &Context) -> Result<(), Option<io::Error>> {
    let end = UnbufferedServerConnection::new(context.config.clone()).map_err(|e| Some(io::Error::other(e)))?;
    let socket = std::mem::replace(&mut http.socket, Socket::none());
    let incoming = std::mem::take(&mut http.input);
    debug_assert_eq!(http.at, 0, "what came before the handshake was consumed");
    let mut tls = Tls::server(socket, end, incoming, context.buffer_size);
    let keys = KEYS.with(Rc::clone);
    let turn = keys.acquire().await.expect("this semaphore is never closed");
    let started = Instant::now();
    let first = tls.advance();
    let spent = SPENT.get() + started.elapsed();
    SPENT.set(spent);
    let mut shaken = match first {
        // What is ready leaves before others get their turn.
        Ok(()) => poll_fn(|cx| Poll::Ready(tls.poll_handshake(cx))).await,
        Err(e) => Poll::Ready(Err(e)),
    };
    if spent >= TURN {
        SPENT.set(Duration::ZERO);
        tokio::task::yield_now().await;
    }
    drop(turn);
    if shaken.is_pending() {
        shaken = poll_fn(|cx| match tls.poll_handshake(cx) {
            Poll::Ready(result) => Poll::Ready(Poll::Ready(result)),
            Poll::Pending => http.timer.poll_expired(cx).map(|()| Poll::Pending),
        })
        .await;
    }
    match shaken {
        Poll::Ready(Ok(())) => {
            http.socket = Socket::encrypted(tls);
            Ok(())
        }
        Poll::Ready(Err(e)) => Err(Some(e)),
        Poll::Pending => Err(None),
    }
}

/// Alerts (RFC 8446 section 6).
mod alert {
    pub(super) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(super) const DECODE_ERROR: u8 = 50;
    pub(super) const PROTOCOL_VERSION: u8 = 70;
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

fn failed(log: &Log<'_>, error: &io::Error) {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => log.line(Level::Info, format_args!("peer closed connection in SSL handshake")),
        io::ErrorKind::InvalidData => log.line(Level::Info, format_args!("SSL_do_handshake() failed (SSL: {error})")),
        _ => {
            let text = crate::log::os_error(error);
            log.line(Level::Info, format_args!("SSL_do_handshake() failed ({text})"));
        }
    }
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

    fn timed_out(&self) {
        self.line(Level::Info, format_args!("client timed out (110: Connection timed out)"));
    }
}
