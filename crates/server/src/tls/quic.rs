//! TLS of QUIC connections: the ClientHello is read first, the server is found by its name, the library does the rest
//! (as `connection::handshake` does for TCP). Called by the QUIC library, on the thread that serves the connection.

use super::hooks::{self, Asked, Refused};
use super::notes::{self, Notes};
use super::server::Context;
use crate::connection::Client;
use crate::connection::handshake::{self, Done, Path};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{self, ExportKeyingMaterialError, KeyPair, Keys, PacketKey, UnsupportedVersion};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{DirectionalKeys, KeyChange, Secrets, ServerConnection, Suite, Version};
use rustls::{AlertDescription, CipherSuite, ServerConfig};
use std::any::Any;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use wire::http3::varint;
use wire::tls::HelloError;

thread_local! {
    /// Whose handshake is worked on.
    static CLIENT: RefCell<Option<Rc<Client>>> = const { RefCell::new(None) };
}

/// Work that may go on with a client's handshake.
pub fn with_client<V>(client: &Rc<Client>, work: impl FnOnce() -> V) -> V {
    CLIENT.set(Some(client.clone()));
    let result = work();
    CLIENT.set(None);
    result
}

/// Accepts handshakes of one listening socket.
pub struct Handshakes {
    /// For what needs no certificate: first keys, retries.
    bare: Arc<QuicServerConfig>,
    suite: Suite,
    /// `quic_active_connection_id_limit`
    ids: u64,
}

impl Handshakes {
    /// None: the library lacks what QUIC needs of it.
    pub fn new(ids: u64) -> Option<Handshakes> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let first = CipherSuite::TLS13_AES_128_GCM_SHA256;
        let suite = provider.cipher_suites.iter().find(|s| s.suite() == first)?.tls13()?.quic_suite()?;
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).ok()?.with_no_client_auth();
        let nobody = super::asked::Certificates::new(Vec::new());
        let config = builder.with_cert_resolver(Arc::new(nobody));
        let bare = QuicServerConfig::with_initial(Arc::new(config), suite).ok()?;
        Some(Handshakes { bare: Arc::new(bare), suite, ids })
    }
}

impl crypto::ServerConfig for Handshakes {
    fn initial_keys(&self, version: u32, id: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        crypto::ServerConfig::initial_keys(&*self.bare, version, id)
    }

    fn retry_tag(&self, version: u32, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.bare.retry_tag(version, id, packet)
    }

    fn start_session(self: Arc<Self>, _version: u32, params: &TransportParameters) -> Box<dyn crypto::Session> {
        let mut bytes = Vec::new();
        params.write(&mut bytes);
        let state = State::Asked { hello: Vec::new(), params: limit_ids(&bytes, self.ids) };
        Box::new(QuicTlsSession { suite: self.suite, state, next: None, told: false })
    }
}

/// Transport parameter `active_connection_id_limit` (RFC 9000 section 18.2), and the smallest value it may have.
const ID_LIMIT: u64 = 0x0e;
const LEAST_IDS: u64 = 2;

/// The library says how many ids it can keep; fewer may be wanted.
fn limit_ids(params: &[u8], wanted: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(params.len());
    let mut at = 0;
    while at < params.len() {
        let start = at;
        let (Some(name), Some(len)) = (varint::read(params, &mut at), varint::read(params, &mut at)) else { break };
        let value = at;
        at = params.len().min(at + len as usize);
        if name == ID_LIMIT {
            let able = varint::read(params, &mut value.clone()).unwrap_or(LEAST_IDS);
            let mut body = Vec::new();
            varint::write(able.min(wanted.max(LEAST_IDS)), &mut body);
            varint::write(name, &mut out);
            varint::write(body.len() as u64, &mut out);
            out.extend_from_slice(&body);
        } else {
            out.extend_from_slice(&params[start..at]);
        }
    }
    out
}

/// What a handshake came to so far. What was asked for is with the client (`Client::tls`).
pub struct Shaken {
    /// What came of it.
    pub done: Done,
    /// See [`handshake::Path`].
    pub path: Path,
    /// Who is asked about that.
    pub context: Arc<Context>,
}

enum State {
    /// The ClientHello comes.
    Asked { hello: Vec<u8>, params: Vec<u8> },
    /// The server is known.
    Begun(Box<Begun>),
}

struct Begun {
    tls: ServerConnection,
    context: Arc<Context>,
    notes: std::sync::Mutex<Notes>,
}

struct QuicTlsSession {
    suite: Suite,
    state: State,
    next: Option<Secrets>,
    told: bool,
}

fn alert(alert: AlertDescription, reason: impl Into<String>) -> TransportError {
    TransportError { code: TransportErrorCode::crypto(alert.into()), frame: None, reason: reason.into() }
}

fn violation(reason: String) -> TransportError {
    TransportError { code: TransportErrorCode::PROTOCOL_VIOLATION, frame: None, reason }
}

fn of_hello(e: HelloError) -> TransportError {
    alert(AlertDescription::DecodeError, e.text())
}

/// Finds the server for a hello and begins its handshake.
fn begin(message: &[u8], params: Vec<u8>) -> Result<Begun, TransportError> {
    let hello = wire::tls::parse(message).map_err(of_hello)?;
    let client = CLIENT.with_borrow(Clone::clone).expect("handshakes are worked on for a client");
    let snapshot = crate::worker::snapshot_for(&client);
    let site = snapshot.ports[crate::worker::port_of(&snapshot, client.listener)].site(&client);
    let refused = |refused: Refused| alert(refused.alert, refused.text);
    let mut asked = Asked::new(&snapshot, site, &client, message, &hello);
    hooks::client_hello_at_once(&mut asked).map_err(refused)?;
    let _ = client.tls.set(Rc::new(asked.facts()));
    let rejected = || alert(AlertDescription::UnrecognisedName, "callback failed");
    let context = handshake::context(&snapshot, asked.server, site.default).ok_or_else(rejected)?;
    let config = context.quic.as_ref().ok_or_else(rejected)?;
    asked.context = Some(context.clone());
    // Another configuration's protocols are none of QUIC.
    asked.config = Some(config.clone());
    let config = hooks::certificate_at_once(&mut asked).map_err(refused)?;
    let internal = |e: rustls::Error| alert(AlertDescription::InternalError, e.to_string());
    let tls = ServerConnection::new(config, Version::V1, params).map_err(internal)?;
    Ok(Begun { tls, context: context.clone(), notes: Default::default() })
}

impl QuicTlsSession {
    fn begun(&self) -> Option<&Begun> {
        match &self.state {
            State::Begun(begun) => Some(begun),
            State::Asked { .. } => None,
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let first = match &mut self.state {
            State::Begun(_) => None,
            State::Asked { hello, params } => {
                hello.extend_from_slice(bytes);
                let Some(len) = wire::tls::message_len(hello).map_err(of_hello)? else { return Ok(()) };
                if hello.len() < len {
                    return Ok(());
                }
                let all = std::mem::take(hello);
                let begun = begin(&all[..len], std::mem::take(params))?;
                self.state = State::Begun(Box::new(begun));
                Some(all)
            }
        };
        let State::Begun(begun) = &mut self.state else { return Ok(()) };
        let read = begun.tls.read_hs(first.as_deref().unwrap_or(bytes));
        if let Ok(notes) = begun.notes.get_mut() {
            notes::take(notes);
        }
        read.map_err(|e| match begun.tls.alert() {
            Some(number) => alert(number, e.to_string()),
            None => violation(e.to_string()),
        })?;
        if first.is_some() && begun.tls.alpn_protocol().is_none() {
            return Err(alert(AlertDescription::NoApplicationProtocol, "no application protocol"));
        }
        Ok(())
    }
}

fn both(keys: rustls::quic::Keys) -> Keys {
    let side = |k: DirectionalKeys| (Box::new(k.header), Box::new(k.packet));
    let ((local_header, local), (remote_header, remote)) = (side(keys.local), side(keys.remote));
    Keys { header: KeyPair { local: local_header, remote: remote_header }, packet: KeyPair { local, remote } }
}

impl crypto::Session for QuicTlsSession {
    fn initial_keys(&self, id: &ConnectionId, _side: Side) -> Keys {
        both(self.suite.keys(id, rustls::Side::Server, Version::V1))
    }

    /// A [`Shaken`].
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let begun = self.begun()?;
        let notes = std::mem::take(&mut *begun.notes.lock().ok()?);
        let (done, path) = handshake::done(&begun.tls, &begun.context, None, notes);
        Some(Box::new(Shaken { done, path, context: begun.context.clone() }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn crypto::HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.begun()?.tls.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.begun().is_none_or(|b| b.tls.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.read(bytes)?;
        Ok(self.begun().is_some() && !std::mem::replace(&mut self.told, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.begun().and_then(|b| b.tls.quic_transport_parameters()) else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Server, &mut io::Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        let State::Begun(begun) = &mut self.state else { return None };
        let change = begun.tls.write_hs(out);
        if let Ok(notes) = begun.notes.get_mut() {
            notes::take(notes);
        }
        Some(both(match change? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                keys
            }
        }))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, _id: &ConnectionId, _header: &[u8], _payload: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // Nobody here asks for it.
        Err(ExportKeyingMaterialError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_ids_are_told_and_never_more_or_too_few() {
        let params = [0x01, 0x01, 0x1e, 0x0e, 0x01, 0x05, 0x04, 0x01, 0x20];
        assert_eq!(limit_ids(&params, 3), [0x01, 0x01, 0x1e, 0x0e, 0x01, 0x03, 0x04, 0x01, 0x20]);
        assert_eq!(limit_ids(&params, 9), params);
        assert_eq!(limit_ids(&params, 0)[5], 2);
    }
}
