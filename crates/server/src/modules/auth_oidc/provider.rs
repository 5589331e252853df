//! An OpenID provider: what it says of itself (OpenID Connect Discovery 1.0), its keys, and the exchange of a code for tokens (OpenID
//! Connect Core 1.0 section 3.1.3). On the service thread; what it has said is kept for a while.

use super::session::LoginSession;
use crate::fetch::{Answer, Fetch};
use crate::modules::auth_jwt::{self, keys::Keys};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use wire::encoding::{Alphabet, base64_encode};
use wire::http1::escape::{Escape, escape_uri};

/// How long what a provider says of itself and its keys are kept.
const LIFE: Duration = Duration::from_secs(3600);
/// Keys are asked for again, when none fits, no sooner than after so long: tokens that nobody signed are easy to send.
const AGAIN: Duration = Duration::from_secs(10);
/// By how much clocks may differ, seconds.
const LEEWAY_S: u64 = 60;
/// So much of a provider's complaint goes to the log.
const MAX_WORDS: usize = 200;

/// `oidc_provider`
pub(super) struct Provider {
    /// Its name in the configuration.
    pub name: Box<str>,
    /// `issuer`
    pub issuer: String,
    /// `client_id`
    pub client_id: String,
    /// `client_secret`
    pub client_secret: Option<String>,
    /// `config_url`
    pub config_url: String,
    /// `pkce`; none: as the provider says.
    pub pkce: Option<bool>,
    /// `userinfo`
    pub userinfo: bool,
    /// How it is spoken to.
    pub tls: Arc<ClientConfig>,
    /// What it has said.
    pub known: Mutex<Known>,
}

/// Without the secret.
impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("name", &self.name).field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// What a provider has said, and when.
#[derive(Default)]
pub(super) struct Known {
    metadata: Option<(Arc<Metadata>, Instant)>,
    keys: Option<(Arc<Keys>, Instant)>,
}

/// What it says of itself.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    issuer: String,
    /// Where clients are sent.
    pub authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    /// Where they are sent to leave.
    pub end_session_endpoint: Option<String>,
    userinfo_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    code_challenge_methods_supported: Vec<String>,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
    access_token: Option<String>,
}

/// A code that a client has brought.
pub(super) struct Code {
    /// The code.
    pub code: String,
    /// Where it was sent to.
    pub redirect_uri: String,
    /// PKCE's secret, if one was announced.
    pub verifier: Option<String>,
    /// What the token has to repeat.
    pub nonce: String,
}

/// Appends `name=value`, escaped for a query or a form.
pub(super) fn parameter(out: &mut String, name: &str, value: &str) {
    let mut bytes = Vec::new();
    escape_uri(value.as_bytes(), Escape::UriComponent, &mut bytes);
    if !out.is_empty() && !out.ends_with(['?', '&']) {
        out.push('&');
    }
    out.push_str(name);
    out.push('=');
    out.push_str(&String::from_utf8_lossy(&bytes));
}

impl Metadata {
    /// Whether PKCE with SHA-256 is spoken of.
    pub(super) fn has_pkce(&self) -> bool {
        self.code_challenge_methods_supported.iter().any(|m| m == "S256")
    }
}

impl Provider {
    /// What the provider says of itself.
    pub(super) async fn metadata(&self, fetch: &Fetch) -> Result<Arc<Metadata>, String> {
        let mut known = self.known.lock().await;
        if let Some((metadata, at)) = &known.metadata
            && at.elapsed() < LIFE
        {
            return Ok(metadata.clone());
        }
        let url = &self.config_url;
        let answer = ok(url, get(fetch, url, None).await)?;
        let metadata: Metadata = serde_json::from_slice(&answer.body).map_err(|e| format!("{url}: {e}"))?;
        if metadata.issuer != self.issuer {
            return Err(format!("{url} is about issuer \"{}\"", shown(&metadata.issuer)));
        }
        let metadata = Arc::new(metadata);
        known.metadata = Some((metadata.clone(), Instant::now()));
        Ok(metadata)
    }

    async fn keys(&self, fetch: &Fetch, url: &str, fresh: bool) -> Result<Arc<Keys>, String> {
        let mut known = self.known.lock().await;
        let life = if fresh { AGAIN } else { LIFE };
        if let Some((keys, at)) = &known.keys
            && at.elapsed() < life
        {
            return Ok(keys.clone());
        }
        let answer = ok(url, get(fetch, url, None).await)?;
        let keys = Arc::new(Keys::parse_public(&answer.body).map_err(|e| format!("{url}: {e}"))?);
        known.keys = Some((keys.clone(), Instant::now()));
        Ok(keys)
    }

    /// Exchanges a code for tokens, and judges them.
    pub(super) async fn redeem(&self, fetch: &Fetch, code: Code) -> Result<LoginSession, String> {
        let metadata = self.metadata(fetch).await?;
        let tokens = self.exchange(fetch, &metadata, &code).await?;
        let token = tokens.id_token.as_bytes();
        let keys = self.keys(fetch, &metadata.jwks_uri, false).await?;
        let judged = match auth_jwt::judge(token, &keys, LEEWAY_S) {
            Ok(judged) => judged,
            // The provider may have new keys.
            Err(_) => auth_jwt::judge(token, &*self.keys(fetch, &metadata.jwks_uri, true).await?, LEEWAY_S)?,
        };
        let claims = judged.into_claims();
        self.check(&claims, &code.nonce)?;
        let mut session =
            LoginSession { id_token: tokens.id_token, access_token: tokens.access_token, claims, userinfo: None };
        if self.userinfo {
            session.userinfo = Some(self.ask_for_user(fetch, &metadata, &session).await?);
        }
        Ok(session)
    }

    async fn exchange(&self, fetch: &Fetch, metadata: &Metadata, code: &Code) -> Result<Tokens, String> {
        let mut form = String::new();
        parameter(&mut form, "grant_type", "authorization_code");
        parameter(&mut form, "code", &code.code);
        parameter(&mut form, "redirect_uri", &code.redirect_uri);
        if let Some(verifier) = &code.verifier {
            parameter(&mut form, "code_verifier", verifier);
        }
        let url = &metadata.token_endpoint;
        let mut request = Request::builder().method(Method::POST).uri(url);
        request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        request = request.header(header::ACCEPT, "application/json");
        // The default of RFC 8414 section 2 is the Authorization header.
        let speaks = |method: &str| {
            metadata.token_endpoint_auth_methods_supported.as_ref().is_none_or(|all| all.iter().any(|m| m == method))
        };
        match &self.client_secret {
            Some(secret) if speaks("client_secret_basic") || !speaks("client_secret_post") => {
                request = request.header(header::AUTHORIZATION, basic(&self.client_id, secret));
            }
            Some(secret) => {
                parameter(&mut form, "client_id", &self.client_id);
                parameter(&mut form, "client_secret", secret);
            }
            None => parameter(&mut form, "client_id", &self.client_id),
        }
        let request = request.body(Full::new(Bytes::from(form))).map_err(|e| format!("{url}: {e}"))?;
        let answer = ok(url, fetch.ask(request).await)?;
        serde_json::from_slice(&answer.body).map_err(|e| format!("{url}: {e}"))
    }

    /// OpenID Connect Core 1.0 section 3.1.3.7. The signature and the times were judged before.
    fn check(&self, claims: &Value, nonce: &str) -> Result<(), String> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("iss") != Some(&self.issuer) {
            return Err("the ID token is another issuer's".to_owned());
        }
        let client = self.client_id.as_str();
        let is_for_us = match claims.get("aud") {
            Some(Value::String(one)) => one == client,
            Some(Value::Array(all)) => {
                all.iter().any(|a| a == client) && (all.len() == 1 || text("azp") == Some(client))
            }
            _ => false,
        };
        if !is_for_us || text("azp").is_some_and(|azp| azp != client) {
            return Err("the ID token is for another client".to_owned());
        }
        if text("nonce") != Some(nonce) {
            return Err("the ID token is of another login".to_owned());
        }
        if claims.get("exp").is_none() || text("sub").is_none() {
            return Err("the ID token says neither who it is about nor until when".to_owned());
        }
        Ok(())
    }

    /// The user as the provider knows it (section 5.3).
    async fn ask_for_user(&self, fetch: &Fetch, metadata: &Metadata, session: &LoginSession) -> Result<String, String> {
        let url = metadata.userinfo_endpoint.as_deref().ok_or("the provider has no userinfo endpoint")?;
        let token = session.access_token.as_deref().ok_or("the provider gave no access token")?;
        let answer = ok(url, get(fetch, url, Some(token)).await)?;
        let user: Value = serde_json::from_slice(&answer.body).map_err(|e| format!("{url}: {e}"))?;
        if user.get("sub") != session.claims.get("sub") {
            return Err(format!("{url} speaks of another user"));
        }
        Ok(user.to_string())
    }
}

/// RFC 6749 section 2.3.1: both are escaped as in forms.
fn basic(id: &str, secret: &str) -> String {
    let mut text = Vec::new();
    escape_uri(id.as_bytes(), Escape::UriComponent, &mut text);
    text.push(b':');
    escape_uri(secret.as_bytes(), Escape::UriComponent, &mut text);
    let mut out = b"Basic ".to_vec();
    base64_encode(&text, Alphabet::Standard, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

async fn get(fetch: &Fetch, url: &str, token: Option<&str>) -> Result<Answer, String> {
    let mut request = Request::builder().uri(url).header(header::ACCEPT, "application/json");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    fetch.ask(request.body(Full::default()).map_err(|e| e.to_string())?).await
}

fn ok(url: &str, answer: Result<Answer, String>) -> Result<Answer, String> {
    let answer = answer.map_err(|e| format!("{url}: {e}"))?;
    if answer.status == 200 {
        return Ok(answer);
    }
    // `error` of RFC 6749 section 5.2; nothing else of an answer belongs into a log.
    let said: Option<Value> = serde_json::from_slice(&answer.body).ok();
    let error = said.as_ref().and_then(|v| v.get("error")).and_then(Value::as_str).unwrap_or_default();
    Err(format!("{url}: status {} {}", answer.status, shown(error)).trim_end().to_owned())
}

/// A foreign text, short enough for a log, and plain.
pub(super) fn shown(text: &str) -> String {
    wire::terminal::plain(&text.chars().take(MAX_WORDS).collect::<String>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_passwords_are_escaped() {
        let mut text = String::from("https://op/auth?x=1");
        parameter(&mut text, "a", "b c&d");
        assert_eq!(text, "https://op/auth?x=1&a=b%20c%26d");
        assert_eq!(basic("a:b", "c"), "Basic YSUzQWI6Yw==");
    }
}
