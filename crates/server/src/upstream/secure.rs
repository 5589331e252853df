//! The TLS handshake with a peer, after `connect` and before the first byte of a request.

use super::choose::SelectedPeer;
use super::exchange::{self, Event};
use super::failure::Failure;
use super::settings::{UpstreamSettings, next};
use crate::connection::action;
use crate::connection::socket::Socket;
use crate::connection::tls::Tls;
use crate::log_error;
use crate::request::Request;
use crate::status::ssl;
use crate::tls::client::{Distrust, Secure};
use crate::tls::verify::Failure as Distrusted;
use runtime::clock;
use runtime::timer::Timer;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

/// The request's server does not go on with the handshake; why has been logged.
pub struct Refused;

/// What a program in Lua says in a handshake, once it has run.
pub type Said<'r, T> = Pin<Box<dyn Future<Output = Result<T, Refused>> + 'r>>;

/// What a peer has shown.
pub struct Shown {
    /// Its certificates.
    pub chain: Vec<CertificateDer<'static>>,
    /// What the check has made of them.
    pub result: i64,
    /// What is spoken.
    pub version: Option<ProtocolVersion>,
}

/// Judges a peer's certificates: gives what is thought of them, and whether the program has said so.
type Judge = for<'r> fn(&'r mut Request, &'r ClientConfig, Shown) -> Said<'r, (i64, bool)>;

/// What runs programs in handshakes with peers (`modules::lua::upstream`).
pub struct Programs {
    /// Gives the settings for the handshake, with the certificate that the program gives.
    pub certificate: for<'r> fn(&'r mut Request, &'r Secure) -> Said<'r, Arc<ClientConfig>>,
    /// Runs the program that judges a peer's certificates.
    pub verify: Judge,
}

/// They name requests, and are not named here.
static PROGRAMS: OnceLock<Programs> = OnceLock::new();

/// Takes what runs programs; the first stays.
pub fn install(programs: Programs) {
    let _ = PROGRAMS.set(programs);
}

fn programs(wanted: bool) -> Option<&'static Programs> {
    PROGRAMS.get().filter(|_| wanted)
}

/// Makes a connection secure: the peer is who it must be when this has gone well.
pub async fn shake(
    r: &mut Request,
    conf: &UpstreamSettings,
    timer: &Timer,
    socket: Socket,
    secure: &Secure,
    chosen: &SelectedPeer,
) -> Result<Socket, Failure> {
    r.action = action::SHAKING_UPSTREAM;
    let peer = &chosen.peer.state;
    let config = match programs(r.conf().lua.proxy_ssl_certificate.is_some()) {
        Some(programs) => (programs.certificate)(r, secure).await,
        None => Ok(secure.config()),
    };
    let Ok(config) = config else {
        log_error!(r, Error, "SSL_do_handshake() failed (SSL: error:0A000179:SSL routines::cert cb error)");
        return Err(failed());
    };
    let mut tls = match Tls::client(socket, config.clone(), secure.server_name(), peer.number) {
        Ok(tls) => tls,
        Err(e) => {
            log_error!(r, Error, "SSL_do_handshake() failed (SSL: {e})");
            return Err(failed());
        }
    };
    timer.set(r.attempts.connect_timeout(conf));
    let watch = exchange::watches_client(r, conf);
    let event = poll_fn(|cx| {
        if let Poll::Ready(result) = tls.poll_handshake(cx) {
            return Poll::Ready(Event::Done(result));
        }
        exchange::poll_end(r, cx, timer, watch)
    })
    .await;
    match event {
        Event::Done(Ok(())) => {}
        Event::Done(Err(e)) => {
            ssl::failed_peer(peer, Some(&e));
            match e.kind() {
                io::ErrorKind::UnexpectedEof => {
                    log_error!(r, Error, "peer closed connection in SSL handshake");
                }
                io::ErrorKind::InvalidData => {
                    log_error!(r, Error, "SSL_do_handshake() failed (SSL: {e})");
                }
                _ => {
                    let text = crate::log::os_error(&e);
                    log_error!(r, Error, "SSL_do_handshake() failed ({text})");
                }
            }
            return Err(failed());
        }
        Event::TimedOut => {
            ssl::failed_peer(peer, None);
            let text = "upstream timed out (110: Connection timed out)";
            log_error!(r, Error, "{text}");
            return Err(Failure { kind: next::TIMEOUT, ..failed() });
        }
        Event::ClientGone => return Err(exchange::client_gone(r)),
    }
    let chain = tls.state().peer_certificates().unwrap_or_default();
    let mut judged = secure.verify(chain, clock::wall_seconds());
    if let Some(programs) = programs(r.conf().lua.proxy_ssl_verify.is_some()) {
        let chain = chain.iter().map(|c| c.clone().into_owned()).collect();
        let result = match &judged {
            Err(Distrust::Chain(failure)) => i64::from(failure.0),
            _ => 0,
        };
        let shown = Shown { chain, result, version: tls.state().protocol_version() };
        let Ok((result, is_own)) = (programs.verify)(r, &config, shown).await else {
            log_error!(
                r,
                Error,
                "SSL_do_handshake() failed (SSL: error:0A000086:SSL routines::certificate verify failed)"
            );
            return Err(failed());
        };
        match &judged {
            // The name is judged beside the chain.
            Err(Distrust::Name(_)) if result == 0 => {}
            _ if is_own && secure.verifies() => {
                let failure = Distrusted(u16::try_from(result).unwrap_or(1));
                judged = if result == 0 { Ok(()) } else { Err(Distrust::Chain(failure)) };
            }
            _ => {}
        }
    }
    if let Err(distrust) = judged {
        ssl::distrusted_peer(peer, &distrust);
        log_error!(r, Error, "{distrust}");
        return Err(failed());
    }
    ssl::note_peer(peer, ssl::Event::Handshake);
    if tls.state().handshake_kind() == Some(HandshakeKind::Resumed) {
        ssl::note_peer(peer, ssl::Event::Reuse);
    }
    Ok(Socket::encrypted(tls))
}

fn failed() -> Failure {
    Failure::of(next::ERROR, false, false)
}
