//! One HTTP exchange with somebody the server itself needs: an ACME authority, an OCSP responder. On the service thread
//! only; nothing here is on the way of a client's request. Every wait and every size is bounded.

use crate::upstream::names;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use resolve::ResolverConfig;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

/// An exchange takes no longer, whoever is slow.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Exchanges under way at once; more wait, as part of their time.
const MAX_AT_ONCE: usize = 64;
/// How long one address may take to accept a connection before the next is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
/// The largest head of an answer, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// The largest body of an answer, in bytes.
const MAX_BODY: usize = 1024 * 1024;

static PLACES: Semaphore = Semaphore::const_new(MAX_AT_ONCE);

/// How to reach somebody.
#[derive(Clone)]
pub struct Fetch {
    /// `resolver` and `resolver_timeout`; without them the system is asked.
    pub resolver: Option<(Arc<ResolverConfig>, Duration)>,
    /// For `https`; without it there is only `http`.
    pub tls: Option<Arc<ClientConfig>>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The header.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Fetch {
    /// Sends a request to the host of its URI and reads the answer. The error says what went wrong, not with whom.
    pub async fn ask(&self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let answer = tokio::time::timeout(TIMEOUT, self.exchange(request)).await;
        answer.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())))
    }

    async fn exchange(&self, mut request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let _place = PLACES.acquire().await.map_err(|e| e.to_string())?;
        let uri = request.uri().clone();
        let host = uri.host().ok_or("the URI has no host")?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("the URI is neither http nor https".to_owned()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let authority = uri.authority().map_or("", |a| a.as_str());
        let named = HeaderValue::from_str(authority).map_err(|e| e.to_string())?;
        request.headers_mut().insert(header::HOST, named);
        let target = uri.path_and_query().map_or("/", |t| t.as_str());
        *request.uri_mut() = target.parse::<Uri>().map_err(|e| e.to_string())?;
        let stream = connect(&self.addresses(&host, port).await?).await?;
        if !secure {
            return talk(stream, request).await;
        }
        let tls = self.tls.clone().ok_or("there are no settings for https")?;
        let name = ServerName::try_from(host).map_err(|e| e.to_string())?;
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        talk(stream.map_err(|e| format!("SSL handshake failed ({e})"))?, request).await
    }

    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let Some((config, timeout)) = &self.resolver else {
            let found = tokio::net::lookup_host((host, port)).await;
            return found.map(Iterator::collect).map_err(|e| format!("{host} could not be resolved ({e})"));
        };
        let found = names::resolver(config).resolve(host.as_bytes(), *timeout).await;
        let found = found.map_err(|e| format!("{host} could not be resolved ({e})"))?;
        Ok(found.iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    let mut failed = "the name has no address".to_owned();
    for address in addresses.iter().take(MAX_ADDRESSES) {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        failed = match connected {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => format!("connect() to {address} failed ({})", crate::log::os_error(&e)),
            Err(_) => format!("connect() to {address} timed out"),
        };
    }
    Err(failed)
}

async fn talk<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|e| e.to_string())?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|e| e.to_string())?;
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body: body.to_bytes() })
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The connection may end as soon as the answer is in.
        _ = connection => exchange.await,
    }
}
