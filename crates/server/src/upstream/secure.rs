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
use crate::tls::client::Secure;
use runtime::clock;
use runtime::timer::Timer;
use rustls::HandshakeKind;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

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
    let mut tls = match Tls::client(socket, secure.config(), secure.server_name(), peer.number) {
        Ok(tls) => tls,
        Err(e) => {
            log_error!(r, Error, "SSL_do_handshake() failed (SSL: {e})");
            return Err(failed());
        }
    };
    timer.set(*conf.connect_timeout);
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
    if let Err(distrust) = secure.verify(chain, clock::wall_seconds()) {
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
