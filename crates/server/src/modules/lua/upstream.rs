//! Programs in handshakes with peers: `proxy_ssl_certificate_by_lua*` gives the certificate that is shown, `proxy_ssl_verify_by_lua*` judges
//! the peer's. From: `upstream::secure`. What they call is in `api/ssl.rs`.

use super::current::Phase;
use super::machine;
use super::operation::End;
use super::run;
use super::ssl::Pairs;
use crate::modules::lua::chunk::Chunk;
use crate::request::Request;
use crate::tls::client::{Secure, own_certificate};
use crate::upstream::secure::{self, Programs, Refused, Shown};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ProtocolVersion};
use std::sync::Arc;

/// X509_V_OK
const WELL: i64 = 0;

/// A handshake with a peer as programs see it.
pub struct Peer {
    /// What `clear_certs` and its like made.
    pub pairs: Pairs,
    /// For keys.
    pub provider: Arc<CryptoProvider>,
    /// The peer's certificates, once they are there.
    pub chain: Vec<CertificateDer<'static>>,
    /// What is thought of them (X509_V_*).
    pub result: i64,
    /// The program has said so.
    pub judged: bool,
    /// What is spoken, or will be, if that is known.
    pub version: Option<ProtocolVersion>,
}

impl Peer {
    fn new(config: &ClientConfig, version: Option<ProtocolVersion>) -> Peer {
        let provider = config.crypto_provider().clone();
        Peer { pairs: Pairs::default(), provider, chain: Vec::new(), result: WELL, judged: false, version }
    }
}

/// How `upstream::secure` asks for these programs.
pub fn install() {
    secure::install(Programs {
        certificate: |r, secure| Box::pin(certificate(r, secure)),
        verify: |r, config, shown| Box::pin(verify(r, config, shown)),
    });
}

/// The settings for the handshake, with the certificate that a program gives, if there is a program.
///
/// # Errors
/// It has refused the handshake.
async fn certificate(r: &mut Request, secure: &Secure) -> Result<Arc<ClientConfig>, Refused> {
    let config = secure.config();
    let Some(chunk) = (*r.conf().lua.proxy_ssl_certificate).clone() else { return Ok(config) };
    let mut peer = ask(r, &chunk, Phase::ProxyCertificate, Peer::new(&config, secure.only_version())).await?;
    if peer.pairs.is_blank() {
        return Ok(config);
    }
    let mut own = (*config).clone();
    // A session of before was another certificate's.
    own.resumption = rustls::client::Resumption::disabled();
    own.client_auth_cert_resolver = own_certificate(peer.pairs.take().pop());
    Ok(Arc::new(own))
}

/// Asks the program what to think of a peer's certificates. Gives the program's result, and whether it is the program's own.
///
/// # Errors
/// It has refused the handshake.
async fn verify(r: &mut Request, config: &ClientConfig, shown: Shown) -> Result<(i64, bool), Refused> {
    let Shown { chain, result, version } = shown;
    let Some(chunk) = (*r.conf().lua.proxy_ssl_verify).clone() else { return Ok((result, false)) };
    let peer = Peer { chain, result, ..Peer::new(config, version) };
    let peer = ask(r, &chunk, Phase::ProxyVerify, peer).await?;
    Ok((peer.result, peer.judged))
}

async fn ask(r: &mut Request, chunk: &Arc<Chunk>, phase: Phase, peer: Peer) -> Result<Box<Peer>, Refused> {
    let doing = std::mem::replace(
        &mut r.action,
        match phase {
            Phase::ProxyVerify => "loading proxy ssl verify by lua",
            _ => "loading proxy ssl certificate by lua",
        },
    );
    r.ctx.lua.get_or_insert_default().upstream = Some(Box::new(peer));
    let end = match machine::of(r) {
        Some(machine) => match machine.program(r, chunk) {
            Ok(program) => run::run(r, &machine, program, phase).await,
            Err(_) => End::Failed,
        },
        None => End::Failed,
    };
    let code = match end {
        End::Done => 0,
        End::Exit(code) => code,
        _ => 500,
    };
    let failed = !(0..400).contains(&code);
    let name = phase.context().trim_end_matches('*');
    let (what, exit) =
        (if phase == Phase::ProxyVerify { "cert verify callback" } else { "cert cb" }, i32::from(!failed));
    crate::log_error!(r, Debug, "{name}: handler return value: {code}, {what} exit code: {exit}");
    crate::log_error!(r, Debug, "{name}: {what} exit code: {exit}");
    r.action = doing;
    let peer = r.ctx.lua.as_mut().and_then(|c| c.upstream.take());
    peer.filter(|_| !failed).ok_or(Refused)
}
