//! A new connection: its socket, its handshake, and whether the peer is who it must be.

use super::driver;
use super::{CONNECTION_WINDOW, Http3PeerConnection, STREAM_WINDOW, Shaken, State};
use crate::connection::{Address, action};
use crate::health::cause::Cause;
use crate::health::passive;
use crate::log_error;
use crate::request::Request;
use crate::status::ssl;
use crate::tls::client::Secure;
use crate::upstream::choose::SelectedPeer;
use crate::upstream::connect::{self, Connecting};
use crate::upstream::exchange::{self, Event, poll_end};
use crate::upstream::failure::Failure;
use crate::upstream::settings::{UpstreamSettings, next};
use crate::upstream::sharing::{Key, Life, Shared};
use crate::upstream::streams::Asked;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig, IdleTimeout, TransportConfig, VarInt};
use quinn_udp::{UdpSockRef, UdpSocketState};
use runtime::clock;
use runtime::timer::Timer;
use rustix::net::SocketType;
use rustls::NoKeyLog;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// A peer that says nothing for so long is gone, though somebody may wait for it longer.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// While requests wait, the peer is to hear from us: its own patience may be shorter.
const PING: Duration = Duration::from_secs(5);
/// One-way streams that a peer may have open: its control stream and the two of QPACK, and some that nobody knows.
const ONE_WAY_STREAMS: u32 = 8;
/// Bytes of a handshake that came out of order.
const HANDSHAKE_BUFFER: usize = 64 * 1024;

/// Why no connection came of it; logged.
fn refused(r: &mut Request, text: &str) -> Failure {
    log_error!(r, Error, "{text}");
    Failure::of(next::ERROR, false, false)
}

/// Opens a connection. `key`: requests share it.
pub(super) async fn connect(
    r: &mut Request,
    asked: &Asked<'_>,
    key: Option<Key>,
    timer: &Timer,
) -> Result<Rc<Http3PeerConnection>, Failure> {
    let Asked { job, conf, chosen, .. } = *asked;
    let Address::Inet(remote) = chosen.peer.address else {
        return Err(refused(r, "HTTP/3 needs an address of IP, not a unix socket"));
    };
    let Some(secure) = job.secure() else { return Err(refused(r, "HTTP/3 needs TLS")) };
    let begun = connect::begin_as(SocketType::DGRAM, &chosen.peer.address, job.local, conf);
    let Connecting { socket, .. } = match begun {
        Ok(connecting) => connecting,
        Err(f) => return Err(Failure::connecting(r, chosen, job.local, &f)),
    };
    let udp = match UdpSocketState::new(UdpSockRef::from(&socket)) {
        Ok(udp) => udp,
        Err(e) => return Err(refused(r, &format!("a QUIC socket could not be used ({})", crate::log::os_error(&e)))),
    };
    let config = match config(secure) {
        Ok(config) => config,
        Err(text) => return Err(refused(r, text)),
    };
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, !udp.may_fragment(), None);
    let name = secure.server_name();
    let (handle, quic) = match endpoint.connect(Instant::now(), config, remote, &name.to_str()) {
        Ok(begun) => begun,
        Err(e) => return Err(refused(r, &format!("a QUIC connection could not be begun ({e})"))),
    };
    let session = Http3PeerConnection::new(quic, Life::new(job, chosen, key));
    driver::start(&session, socket, udp, endpoint, handle);
    r.action = action::SHAKING_UPSTREAM;
    let shaken = wait(r, conf, chosen, &session, timer).await.and_then(|()| verify(r, secure, chosen, &session));
    match shaken {
        Ok(()) => Ok(session),
        Err(failure) => {
            session.retire();
            Err(failure)
        }
    }
}

fn config(secure: &Secure) -> Result<ClientConfig, &'static str> {
    let mut tls = (*secure.config()).clone();
    // Sessions are told apart by peers, which the library does not know here.
    tls.resumption = Resumption::disabled();
    // Nobody takes what would be noted.
    tls.key_log = Arc::new(NoKeyLog);
    let tls = QuicClientConfig::try_from(tls);
    let tls = tls.map_err(|_| "HTTP/3 needs TLSv1.3 and the cipher TLS_AES_128_GCM_SHA256")?;
    let mut transport = TransportConfig::default();
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    transport.max_concurrent_uni_streams(ONE_WAY_STREAMS.into());
    transport.stream_receive_window(VarInt::from_u32(STREAM_WINDOW as u32));
    transport.receive_window(VarInt::from_u32(CONNECTION_WINDOW));
    transport.max_idle_timeout(IdleTimeout::try_from(MAX_IDLE).ok());
    transport.keep_alive_interval(Some(PING));
    transport.crypto_buffer_size(HANDSHAKE_BUFFER);
    transport.datagram_receive_buffer_size(None);
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Waits for the handshake.
async fn wait(
    r: &mut Request,
    conf: &UpstreamSettings,
    chosen: &SelectedPeer,
    session: &Rc<Http3PeerConnection>,
    timer: &Timer,
) -> Result<(), Failure> {
    let watch = exchange::watches_client(r, conf);
    let event = poll_fn(|cx| {
        let mut state = session.state.borrow_mut();
        match state.shaken.clone() {
            Shaken::Done => return Poll::Ready(Event::Done(Ok(()))),
            Shaken::Failed(text) => return Poll::Ready(Event::Done(Err(text))),
            Shaken::Not => state.waiter = Some(runtime::current()),
        }
        drop(state);
        poll_end(r, cx, timer, watch)
    })
    .await;
    match event {
        Event::Done(Ok(())) => Ok(()),
        Event::Done(Err(text)) => {
            ssl::failed_peer(&chosen.peer.state, None);
            passive::note(&chosen.peer, Cause::Tls(text.to_string().into()));
            Err(refused(r, &format!("QUIC handshake failed ({text})")))
        }
        Event::TimedOut => Err(Failure::timed_out(r, false)),
        Event::ClientGone => Err(exchange::client_gone(r)),
    }
}

/// Whether the peer's certificates are those that `proxy_ssl_verify` asks for: before anything is sent.
fn verify(
    r: &mut Request,
    secure: &Secure,
    chosen: &SelectedPeer,
    session: &Http3PeerConnection,
) -> Result<(), Failure> {
    let identity = session.state.borrow().quic.crypto_session().peer_identity();
    let chain = identity.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok()).unwrap_or_default();
    let peer = &chosen.peer.state;
    if let Err(distrust) = secure.verify(&chain, clock::wall_seconds()) {
        ssl::distrusted_peer(peer, &distrust);
        return Err(refused(r, &distrust.to_string()));
    }
    ssl::note_peer(peer, ssl::Event::Handshake);
    Ok(())
}

impl Http3PeerConnection {
    fn new(quic: quinn_proto::Connection, life: Life) -> Rc<Http3PeerConnection> {
        let state = State {
            quic,
            streams: hashbrown::HashMap::new(),
            oneway: Vec::new(),
            table: wire::http3::qpack::table::Table::new(0),
            control: None,
            settings: Vec::new(),
            shaken: Shaken::Not,
            waiter: None,
            exhausted: false,
            dead: false,
            leaving: false,
            unsaid: None,
        };
        Rc::new(Http3PeerConnection { life, state: RefCell::new(state) })
    }
}
