//! What a connection's handshake came to: noted for its requests, counted, and the client's certificate asked about
//! (`ssl_ocsp`) before the first of them is looked at. The handshake itself is `tls::quic`.

use super::driver::Driver;
use super::{default_server, log};
use crate::connection::Client;
use crate::connection::handshake::{Done, Path};
use crate::log::error::Level;
use crate::status::ssl;
use crate::tls::quic::Shaken;
use crate::tls::server;
use quinn_proto::{ConnectionError as Lost, Dir, TransportErrorCode};
use runtime::clock;
use rustls::{AlertDescription as Alert, HandshakeKind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A question about a client's certificate, on its way.
pub(super) type Check = std::pin::Pin<Box<dyn Future<Output = Done>>>;

async fn ask(context: Arc<server::Context>, path: Path, mut done: Done) -> Done {
    if let Some(ocsp) = &context.ocsp {
        done.verified = ocsp.check(path, clock::wall_seconds()).await;
    }
    done
}

impl Driver {
    /// Notes what the handshake came to, as far as it has come, before the first request looks at it.
    pub(super) fn shaken(&mut self) {
        let client = self.client.clone();
        let Some(facts) = client.tls.get().filter(|facts| facts.done.get().is_none() && self.check.is_none()) else {
            return;
        };
        let state = self.session.state.borrow();
        let data = state.quic.crypto_session().handshake_data();
        let Some(shaken) = data.and_then(|d| d.downcast::<Shaken>().ok()) else { return };
        let Shaken { done, path, context } = *shaken;
        facts.early.set(state.quic.is_handshaking());
        drop(state);
        self.session.hq.set(done.alpn.as_deref() == Some(wire::http3::ALPN_HQ));
        let snapshot = crate::worker::snapshot_for(&client);
        ssl::note(snapshot.server(facts.server), ssl::Event::Handshake);
        if done.kind == Some(HandshakeKind::Resumed) {
            ssl::note(snapshot.server(facts.server), ssl::Event::Reuse);
        }
        if path.is_empty() {
            let _ = facts.done.set(done);
        } else {
            self.check = Some(Box::pin(ask(context, path, done)));
        }
        self.open_control();
    }

    pub(super) fn connected(&mut self, cx: &mut Context<'_>) {
        self.shaken();
        self.calm();
        self.verify(cx);
    }

    /// Goes on with the question about the client's certificate; after the answer its requests get their turn.
    pub(super) fn verify(&mut self, cx: &mut Context<'_>) {
        let Some(Poll::Ready(done)) = self.check.as_mut().map(|check| check.as_mut().poll(cx)) else { return };
        self.check = None;
        if let Some(facts) = self.client.tls.get() {
            let _ = facts.done.set(done);
        }
        for dir in [Dir::Uni, Dir::Bi] {
            if let Err(e) = self.accept_streams(cx, dir) {
                self.fail(&e);
            }
        }
    }

    pub(super) fn calm(&mut self) {
        if std::mem::take(&mut self.shaking) {
            let endpoint = &self.link.endpoint;
            endpoint.shaking.set(endpoint.shaking.get() - 1);
        }
    }

    pub(super) fn lost(&mut self, reason: &Lost) {
        if self.shaking {
            failed(&self.client, reason);
        } else if !matches!(reason, Lost::ApplicationClosed(_) | Lost::LocallyClosed | Lost::Reset | Lost::TimedOut) {
            self.note(&format!("QUIC connection lost ({reason})"));
        }
        self.end_streams();
    }
}

/// Logs and counts a handshake that came to nothing.
pub fn failed(client: &Rc<Client>, reason: &Lost) {
    match reason {
        Lost::TimedOut => log(client, Level::Info, "client timed out (110: Connection timed out)"),
        Lost::ApplicationClosed(_) | Lost::LocallyClosed | Lost::Reset => {}
        _ => log(client, Level::Info, &format!("QUIC handshake failed ({reason})")),
    }
    let snapshot = crate::worker::snapshot_for(client);
    crate::status::trial::failed_handshake(snapshot.generation);
    let facts = client.tls.get();
    let server = snapshot.server(facts.map_or_else(|| default_server(&snapshot, client), |facts| facts.server));
    // What was counted as complete (a request came early) is not counted again.
    if facts.is_none_or(|facts| facts.done.get().is_none()) {
        ssl::note(server, ssl::Event::Failed);
        if let Some(cause) = cause(reason) {
            ssl::note(server, cause);
        }
    }
}

/// Alerts of ours tell what was wrong with the client's hello, alerts of the client what it thinks of our certificate.
fn cause(reason: &Lost) -> Option<ssl::Event> {
    let is = |code: TransportErrorCode, alerts: &[Alert]| {
        alerts.iter().any(|alert| code == TransportErrorCode::crypto(u8::from(*alert)))
    };
    match reason {
        Lost::TimedOut => Some(ssl::Event::Timeout),
        Lost::TransportError(e) if is(e.code, &[Alert::HandshakeFailure]) => Some(ssl::Event::NoCipher),
        Lost::TransportError(e) if is(e.code, &[Alert::ProtocolVersion]) => Some(ssl::Event::NoProtocol),
        Lost::ConnectionClosed(e) if is(e.error_code, ssl::REJECTIONS) => Some(ssl::Event::Rejected),
        _ => None,
    }
}
