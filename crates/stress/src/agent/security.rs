//! Who may talk to whom between controllers and agents: a token, or TLS in which both sides have certificates.

use crate::options::Options;
use std::path::Path;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};
use tonic::{Request, Status};

/// The header that carries the token.
const TOKEN_HEADER: &str = "authorization";
/// The shortest token: with fewer characters it can be guessed over the network.
const SHORTEST_TOKEN: usize = 16;

/// What one side knows and asks for.
#[derive(Clone)]
pub(super) struct Security {
    /// `Bearer` and the token.
    token: Option<MetadataValue<Ascii>>,
    identity: Option<Identity>,
    ca: Option<Certificate>,
}

impl Security {
    pub(super) fn new(options: &Options) -> Result<Security, String> {
        let identity = match (&options.tls_cert, &options.tls_key) {
            (Some(cert), Some(key)) => Some(Identity::from_pem(read(cert)?, read(key)?)),
            (None, None) => None,
            _ => return Err("--tls-cert and --tls-key go together".to_owned()),
        };
        Ok(Security {
            token: options.token_file.as_deref().map(read_token).transpose()?,
            identity,
            ca: options.tls_ca.as_deref().map(read).transpose()?.map(Certificate::from_pem),
        })
    }

    /// Whether an agent with this knows who asks.
    pub(super) fn knows_its_controllers(&self) -> bool {
        self.token.is_some() || self.is_mutual()
    }

    fn is_mutual(&self) -> bool {
        self.ca.is_some() && self.identity.is_some()
    }

    /// An agent's TLS; nothing: it speaks in clear.
    pub(super) fn server_tls(&self) -> Result<Option<ServerTlsConfig>, String> {
        match (&self.identity, &self.ca) {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                Err("--tls-ca needs --tls-cert and --tls-key: without a certificate there is no TLS".to_owned())
            }
            (Some(identity), ca) => {
                let tls = ServerTlsConfig::new().identity(identity.clone());
                Ok(Some(ca.iter().fold(tls, |tls, ca| tls.client_ca_root(ca.clone()))))
            }
        }
    }

    /// Where an agent, given as `host:port`, is to be called.
    pub(super) fn endpoint(&self, name: &str) -> Result<Endpoint, String> {
        let scheme = if self.ca.is_some() || self.identity.is_some() { "https" } else { "http" };
        self.endpoint_of(&format!("{scheme}://{name}"))
    }

    /// The same for a URL.
    pub(super) fn endpoint_of(&self, url: &str) -> Result<Endpoint, String> {
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|e| format!("{url}: {e}"))?;
        if !url.starts_with("https://") {
            return Ok(endpoint);
        }
        let ca = self.ca.clone().ok_or("--tls-ca says who may have signed the other side's certificate")?;
        let tls = ClientTlsConfig::new().ca_certificate(ca);
        let tls = self.identity.iter().fold(tls, |tls, identity| tls.identity(identity.clone()));
        endpoint.tls_config(tls).map_err(|e| format!("TLS: {}", super::fleet::chain(&e)))
    }

    /// A request with the token.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert(TOKEN_HEADER, token.clone());
        }
        request
    }

    /// Whether a request has the token that is asked for.
    pub(super) fn check(&self, given: &MetadataMap) -> Result<(), Status> {
        let given = given.get(TOKEN_HEADER).map_or(&[][..], |v| v.as_bytes());
        match &self.token {
            Some(token) if !is_same(given, token.as_bytes()) => {
                Err(Status::unauthenticated("the token is not this agent's"))
            }
            _ => Ok(()),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The token in a file: its first line.
fn read_token(path: &Path) -> Result<MetadataValue<Ascii>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let token = text.lines().next().unwrap_or_default().trim();
    if token.len() < SHORTEST_TOKEN {
        return Err(format!(
            "{}: a token has {SHORTEST_TOKEN} characters at least (openssl rand -hex 16 makes one)",
            path.display()
        ));
    }
    let is_plain = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    let value =
        Some(format!("Bearer {token}")).filter(|_| is_plain).and_then(|v| v.parse::<MetadataValue<Ascii>>().ok());
    let mut value = value.ok_or_else(|| format!("{}: a token is one line of visible ASCII", path.display()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Takes the same time whatever differs.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}
