//! An authority and our account with it (RFC 8555 sections 6 and 7.1 to 7.3): directory, nonces, signed requests, problems.
//! What is asked of it stands in `order`.

use super::jws::{self, AccountKey};
use super::settings::{Issuer, Profile};
use crate::fetch::{Answer, Fetch};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, header};
use http_body_util::Full;
use runtime::clock;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How often a request is sent because its nonce was not taken.
const NONCE_TRIES: usize = 10;
/// The longest that an authority may ask us to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Of an authority's text in a log line, in characters.
const MAX_TEXT: usize = 512;
/// What errors of ACME are called (RFC 8555 section 6.7).
const ERROR: &str = "urn:ietf:params:acme:error:";

/// Why something could not be had.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// For the log.
    pub(super) text: String,
    /// The kind of problem without its prefix: `rateLimited`. Empty where the authority has not spoken.
    pub(super) kind: String,
    /// What the authority asks us to wait.
    pub(super) retry_after: Option<Duration>,
}

impl Failure {
    /// A failure before or beside the authority.
    pub(super) fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), ..Failure::default() }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::new(text)
    }
}

/// A problem as authorities tell it (RFC 7807, RFC 8555 section 6.7).
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Problem {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    subproblems: Vec<Problem>,
}

impl Problem {
    fn kind(&self) -> &str {
        self.kind.strip_prefix(ERROR).unwrap_or(&self.kind)
    }

    /// As a failure.
    pub(super) fn failure(&self, what: &str, retry_after: Option<Duration>) -> Failure {
        Failure { text: format!("{what}: {self}"), kind: self.kind().to_owned(), retry_after }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by somebody else: no line breaks, no terminal sequences, no end without an end.
        let plain = |text: &str| -> String { text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect() };
        write!(f, "{} ({})", plain(&self.detail), plain(self.kind()))?;
        for problem in self.subproblems.iter().take(1) {
            write!(f, ", {} ({})", plain(&problem.detail), plain(problem.kind()))?;
        }
        Ok(())
    }
}

/// The resources of an authority (RFC 8555 section 7.1.1).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Directory {
    new_nonce: String,
    new_account: String,
    new_order: String,
    renewal_info: Option<String>,
    #[serde(default)]
    meta: Meta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    terms_of_service: Option<String>,
    #[serde(default)]
    external_account_required: bool,
    #[serde(default)]
    profiles: BTreeMap<String, Value>,
}

/// An authority.
pub(super) struct Client {
    fetch: Fetch,
    key: AccountKey,
    directory: Directory,
    /// The account's URL.
    account: Option<String>,
    nonce: RefCell<Option<String>>,
}

/// What a signed request came to.
pub(super) struct Reply {
    /// The answer.
    pub(super) answer: Answer,
}

impl Reply {
    /// The body as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.answer.body)
            .map_err(|e| Failure::new(format!("the answer is not understood ({e})")))
    }

    /// `Location`: what was made.
    pub(super) fn location(&self) -> Option<String> {
        text_of(&self.answer.headers, header::LOCATION)
    }

    /// `Retry-After`, as authorities send it with what is not ready.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.answer.headers)
    }
}

impl Client {
    /// Asks for the directory.
    pub(super) async fn open(fetch: Fetch, uri: &str, key: AccountKey) -> Result<Client, Failure> {
        let answer = get(&fetch, uri).await?;
        let directory = serde_json::from_slice(&answer.body)
            .map_err(|e| Failure::new(format!("\"{uri}\" is not the directory of an ACME server ({e})")))?;
        Ok(Client { fetch, key, directory, account: None, nonce: RefCell::default() })
    }

    /// Finds or makes the account (RFC 8555 section 7.3). `known`: its URL, if it was made earlier. Gives its URL.
    pub(super) async fn log_in(&mut self, issuer: &Issuer, known: Option<String>) -> Result<String, Failure> {
        if let Some(url) = known {
            self.account = Some(url.clone());
            return Ok(url);
        }
        if let Some(terms) = &self.directory.meta.terms_of_service
            && !issuer.accept_terms
        {
            let text = format!("\"accept_terms_of_service\" is missing; the terms of service are at {terms}");
            return Err(Failure::new(text));
        }
        let url = &self.directory.new_account;
        let mut request = json!({});
        if issuer.accept_terms {
            request["termsOfServiceAgreed"] = json!(true);
        }
        if !issuer.contacts.is_empty() {
            request["contact"] = json!(issuer.contacts);
        }
        match &issuer.external_account {
            Some(external) => {
                let binding = jws::external_account(&external.id, &external.key, url, self.key.public())?;
                request["externalAccountBinding"] = binding;
            }
            None if self.directory.meta.external_account_required => {
                return Err(Failure::new("the server takes new accounts only with an \"external_account_key\""));
            }
            None => {}
        }
        let reply = self.post(url, &request).await?;
        let account = reply.location().ok_or_else(|| Failure::new("the answer does not name the account"))?;
        self.account = Some(account.clone());
        Ok(account)
    }

    /// Where orders are made.
    pub(super) fn new_order(&self) -> &str {
        &self.directory.new_order
    }

    /// Where it is told when to renew (RFC 9773), if anywhere.
    pub(super) fn renewal_info(&self) -> Option<&str> {
        self.directory.renewal_info.as_deref()
    }

    /// What stands behind the token in a key authorization.
    pub(super) fn thumbprint(&self) -> String {
        self.key.thumbprint()
    }

    /// The profile to ask for: the one wanted, if the authority has it.
    pub(super) fn profile<'i>(&self, wanted: Option<&'i Profile>) -> Result<Option<&'i str>, Failure> {
        let Some(profile) = wanted else { return Ok(None) };
        if self.directory.meta.profiles.contains_key(&profile.name) {
            return Ok(Some(&profile.name));
        }
        if profile.required {
            return Err(Failure::new(format!("the server has no profile \"{}\"", profile.name)));
        }
        Ok(None)
    }

    /// A signed request with JSON in it.
    pub(super) async fn post(&self, url: &str, payload: &Value) -> Result<Reply, Failure> {
        self.signed(url, payload.to_string().as_bytes()).await
    }

    /// A signed request for what is there (POST-as-GET, RFC 8555 section 6.3).
    pub(super) async fn read(&self, url: &str) -> Result<Reply, Failure> {
        self.signed(url, b"").await
    }

    /// Something that is told without a signature.
    pub(super) async fn get(&self, url: &str) -> Result<Reply, Failure> {
        Ok(Reply { answer: get(&self.fetch, url).await? })
    }

    async fn signed(&self, url: &str, payload: &[u8]) -> Result<Reply, Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            let nonce = self.nonce().await?;
            let body = self.key.sign(url, &nonce, self.account.as_deref(), payload)?;
            let request = request(Method::POST, url, body)?;
            let answer = self.fetch.ask(request).await.map_err(|e| Failure::new(format!("{url}: {e}")))?;
            *self.nonce.borrow_mut() = text_of(&answer.headers, REPLAY_NONCE);
            match checked(answer, url) {
                Err(failure) if failure.kind == "badNonce" && tries < NONCE_TRIES => {}
                result => return result.map(|answer| Reply { answer }),
            }
        }
    }

    async fn nonce(&self) -> Result<String, Failure> {
        if let Some(nonce) = self.nonce.take() {
            return Ok(nonce);
        }
        let url = &self.directory.new_nonce;
        let answer = self.fetch.ask(request(Method::HEAD, url, Vec::new())?).await;
        let answer = answer.map_err(|e| Failure::new(format!("{url}: {e}")))?;
        text_of(&answer.headers, REPLAY_NONCE).ok_or_else(|| Failure::new(format!("{url}: the answer has no nonce")))
    }
}

const REPLAY_NONCE: header::HeaderName = header::HeaderName::from_static("replay-nonce");

async fn get(fetch: &Fetch, url: &str) -> Result<Answer, Failure> {
    let answer = fetch.ask(request(Method::GET, url, Vec::new())?).await;
    checked(answer.map_err(|e| Failure::new(format!("{url}: {e}")))?, url)
}

fn request(method: Method, url: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>, Failure> {
    let agent = concat!("ironweir/", env!("CARGO_PKG_VERSION"));
    let mut request = Request::builder().method(&method).uri(url).header(header::USER_AGENT, agent);
    if method == Method::POST {
        request = request.header(header::CONTENT_TYPE, "application/jose+json");
    }
    request.body(Full::new(Bytes::from(body))).map_err(|e| Failure::new(format!("{url}: {e}")))
}

/// What is no success becomes a failure with the problem in it.
fn checked(answer: Answer, url: &str) -> Result<Answer, Failure> {
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    let after = retry_after(&answer.headers);
    match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) if !problem.kind.is_empty() => Err(problem.failure(url, after)),
        _ => {
            Err(Failure { text: format!("{url}: status {}", answer.status), retry_after: after, ..Failure::default() })
        }
    }
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Seconds, or a date (RFC 9110 section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text_of(headers, header::RETRY_AFTER)?;
    let seconds = text.trim().parse().ok().or_else(|| {
        let at = wire::date::parse_http(text.as_bytes())?;
        u64::try_from(at - clock::wall_seconds()).ok()
    })?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_told_in_one_line() {
        let text = br#"{"type":"urn:ietf:params:acme:error:malformed","detail":"no\nsuch\u001b[1mthing","subproblems":
                        [{"type":"urn:ietf:params:acme:error:dns","detail":"x"},{"type":"y"}]}"#;
        let problem: Problem = serde_json::from_slice(text).expect("JSON");
        let failure = problem.failure("https://ca/order", None);
        assert_eq!(failure.text, "https://ca/order: nosuch[1mthing (malformed), x (dns)");
        assert_eq!(failure.kind, "malformed");
    }

    #[test]
    fn how_long_to_wait() {
        let after = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, text.parse().expect("a value"));
            retry_after(&headers)
        };
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(after("99999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(after("soon"), None);
        let date = wire::date::format_http(clock::wall_seconds() + 100);
        let waited = after(std::str::from_utf8(&date).expect("ASCII")).expect("a date");
        assert!((95..=100).contains(&waited.as_secs()));
    }
}
