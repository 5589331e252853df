//! Programs in handshakes with clients: `ssl_client_hello_by_lua*`, `ssl_certificate_by_lua*`. Hooks of `tls::hooks` (the lists stand in
//! `modules`); they wait as any program does, but on QUIC. What they call is in `api/ssl.rs`.

use super::current::Phase;
use super::machine;
use super::operation::End;
use super::run;
use super::ssl_session::SslSession;
use crate::connection::{Downstream, pool};
use crate::log::error::Level;
use crate::log_error;
use crate::modules::lua::chunk::Chunk;
use crate::request::Request;
use crate::tls::asked::Certificates;
use crate::tls::hooks::{Asked, Hook, Refused, Verdict, Waiting};
use crate::tls::server::AskedClient;
use crate::tls::settings::Protocols;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ResolvesServerCert;
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, ServerConfig};
use std::sync::Arc;
use wire::tls::ClientHello;

/// The client's own list of hooks: what its ClientHello says may be judged.
pub const CLIENT_HELLO: Hook = Hook::Later(|asked| program(asked, Phase::ClientHello).is_some(), client_hello);
/// `ngx.ssl.clienthello.set_protocols`: the settings are others then.
pub const PROTOCOLS: Hook = Hook::Now(protocols);
/// The certificate is chosen; after those that the configuration names.
pub const CERTIFICATE: Hook =
    Hook::Later(|asked| !asked.is_all && program(asked, Phase::Certificate).is_some(), certificate);

/// A handshake as `ngx.ssl` sees it.
pub struct Handshake {
    /// The ClientHello, and what stands where in it.
    pub message: Vec<u8>,
    /// See `message`.
    pub hello: ClientHello,
    /// See [`crate::tls::hooks::Kept`].
    pub protocols: Option<Protocols>,
    /// The library's settings, once they are known.
    pub config: Option<Arc<ServerConfig>>,
    /// What `clear_certs` and its like made.
    pub pairs: Pairs,
    /// How the client is to be asked for its certificate: `verify_client`.
    pub client: Option<AskedClient>,
    /// What programs that keep sessions see, and give.
    pub session: SslSession,
}

/// Certificates that a program gives, with their keys.
#[derive(Default)]
pub struct Pairs {
    /// Those of the configuration are not shown.
    pub cleared: bool,
    chain: Option<Vec<CertificateDer<'static>>>,
    key: Option<PrivateKeyDer<'static>>,
    whole: Vec<CertifiedKey>,
    /// A responder's answer, to be shown with the certificates.
    pub staple: Option<Vec<u8>>,
}

impl Pairs {
    /// Forgets all.
    pub fn clear(&mut self) {
        let staple = self.staple.take();
        *self = Pairs { cleared: true, staple, ..Pairs::default() };
    }

    /// A chain; its key follows, or was there before.
    ///
    /// # Errors
    /// They do not belong together.
    pub fn add_chain(
        &mut self,
        chain: Vec<CertificateDer<'static>>,
        provider: &CryptoProvider,
    ) -> Result<(), &'static str> {
        self.chain = Some(chain);
        self.join(provider, "SSL_use_certificate() failed")
    }

    /// A key.
    ///
    /// # Errors
    /// It is none, or not that of the chain before it.
    pub fn add_key(&mut self, key: PrivateKeyDer<'static>, provider: &CryptoProvider) -> Result<(), &'static str> {
        self.key = Some(key);
        self.join(provider, "SSL_use_PrivateKey() failed")
    }

    fn join(&mut self, provider: &CryptoProvider, failed: &'static str) -> Result<(), &'static str> {
        if self.chain.is_none() || self.key.is_none() {
            return Ok(());
        }
        let (Some(chain), Some(key)) = (self.chain.take(), self.key.take()) else { return Ok(()) };
        let key = provider.key_provider.load_private_key(key).map_err(|_| failed)?;
        let pair = CertifiedKey::new(chain, key);
        match pair.keys_match() {
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => return Err(failed),
            // A key that does not say its public half is taken as it is.
            Ok(()) | Err(rustls::Error::InconsistentKeys(_)) => {}
            Err(_) => return Err(failed),
        }
        self.whole.push(pair);
        Ok(())
    }

    /// Nothing of the configuration changes.
    pub fn is_blank(&self) -> bool {
        !self.cleared && self.whole.is_empty()
    }

    /// The pairs that are whole.
    pub fn take(&mut self) -> Vec<CertifiedKey> {
        let mut whole = std::mem::take(&mut self.whole);
        whole.iter_mut().for_each(|pair| pair.ocsp.clone_from(&self.staple));
        whole
    }
}

/// The program of the server that is meant.
pub(super) fn program(asked: &Asked<'_>, phase: Phase) -> Option<Arc<Chunk>> {
    let server = asked.snapshot.server(asked.server);
    let conf = &asked.snapshot.location(server.root).conf.lua;
    match phase {
        Phase::ClientHello => (*conf.ssl_client_hello).clone(),
        Phase::SessionFetch => (*conf.ssl_session_fetch).clone(),
        Phase::SessionStore => (*conf.ssl_session_store).clone(),
        _ => (*conf.ssl_certificate).clone(),
    }
}

fn client_hello<'a>(asked: &'a mut Asked<'_>) -> Waiting<'a> {
    Box::pin(async move {
        let handshake = run(asked, Phase::ClientHello).await?;
        asked.lua.protocols = handshake.and_then(|h| h.protocols);
        Ok(())
    })
}

fn protocols(asked: &mut Asked<'_>) -> Verdict {
    let (Some(protocols), Some(base), Some(context)) = (asked.lua.protocols, &asked.config, &asked.context) else {
        return Ok(());
    };
    let failed = |text: String| Refused { alert: AlertDescription::ProtocolVersion, level: Level::Info, text };
    asked.config = Some(context.with_protocols(base, protocols).map_err(failed)?);
    Ok(())
}

fn certificate<'a>(asked: &'a mut Asked<'_>) -> Waiting<'a> {
    Box::pin(async move {
        let Some(mut handshake) = run(asked, Phase::Certificate).await? else { return Ok(()) };
        if let (false, Some(base)) = (handshake.pairs.is_blank(), &asked.config) {
            let mut config = (**base).clone();
            let pairs = handshake.pairs.take().into_iter().map(|pair| (pair, None));
            config.cert_resolver = Arc::new(Certificates::new(pairs));
            asked.config = Some(Arc::new(config));
        } else if let (Some(answer), Some(base)) = (handshake.pairs.staple.take(), &asked.config) {
            let mut config = (**base).clone();
            config.cert_resolver = Arc::new(Stapled(base.cert_resolver.clone(), answer));
            asked.config = Some(Arc::new(config));
        }
        if let (Some(client), Some(base), Some(context)) = (handshake.client, &asked.config, &asked.context) {
            let failed = |text: String| Refused::internal(Level::Error, text);
            let (config, trust) = context.asking(base, asked.lua.protocols, &client).map_err(failed)?;
            (asked.config, asked.trust) = (Some(config), Some(trust));
        }
        Ok(())
    })
}

/// The configuration's certificates, with the answer of a responder that a program gives.
#[derive(Debug)]
struct Stapled(Arc<dyn ResolvesServerCert>, Vec<u8>);

impl ResolvesServerCert for Stapled {
    fn resolve(&self, hello: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.resolve(hello)?;
        Some(Arc::new(CertifiedKey { ocsp: Some(self.1.clone()), ..(*shown).clone() }))
    }
}

/// Runs the program of a phase; gives what it made of the handshake.
async fn run(asked: &mut Asked<'_>, phase: Phase) -> Result<Option<Box<Handshake>>, Refused> {
    let Some(chunk) = program(asked, phase) else { return Ok(None) };
    let r = begin(asked, SslSession::default());
    let end = run_on(r, &chunk, phase).await;
    let code = code(&end);
    let failed = !(0..400).contains(&code);
    let (name, exit) = (phase.context().trim_end_matches('*'), i32::from(!failed));
    let what = if phase == Phase::ClientHello { "client hello cb" } else { "cert cb" };
    log_error!(r, Debug, "{name}: handler return value: {code}, {what} exit code: {exit}");
    log_error!(r, Debug, "{name}: {what} exit code: {exit}");
    let handshake = finish(r);
    if failed {
        let text = "SSL_do_handshake() failed (SSL: error:0A000179:SSL routines::cert cb error)".to_owned();
        return Err(Refused { alert: AlertDescription::InternalError, level: Level::Info, text });
    }
    Ok(handshake)
}

/// What a program's end is to OpenSSL.
pub(super) fn code(end: &End) -> i64 {
    match end {
        End::Done => 0,
        End::Exit(code) => *code,
        _ => 500,
    }
}

/// What a program of the handshake works on: what would be the connection's first request, or the session.
pub(super) fn begin<'a>(asked: &'a mut Asked<'_>, session: SslSession) -> &'a mut Request {
    let handshake = Handshake {
        message: asked.message.to_vec(),
        hello: asked.hello.clone(),
        protocols: None,
        config: asked.config.clone(),
        pairs: Pairs::default(),
        client: None,
        session,
    };
    let (snapshot, client, server) = (asked.snapshot, asked.client, asked.server);
    let r: &mut Request = match &mut asked.session {
        Some(session) => session,
        None => {
            let own = &mut asked.lua.request;
            let r = own.get_or_insert_with(|| pool::take_request(snapshot.clone(), client.clone(), Downstream::None));
            (r.server, r.location) = (server, snapshot.server(server).root);
            r
        }
    };
    r.ctx.lua.get_or_insert_default().handshake = Some(Box::new(handshake));
    r
}

/// Takes what the program made of the handshake.
pub(super) fn finish(r: &mut Request) -> Option<Box<Handshake>> {
    r.ctx.lua.as_mut().and_then(|c| c.handshake.take())
}

pub(super) async fn run_on(r: &mut Request, chunk: &Arc<Chunk>, phase: Phase) -> End {
    let Some(machine) = machine::of(r) else { return End::Failed };
    match machine.program(r, chunk) {
        Ok(program) => run::run(r, &machine, program, phase).await,
        Err(_) => End::Failed,
    }
}
