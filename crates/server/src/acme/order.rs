//! One order, from what is wanted to a certificate (RFC 8555 section 7.4): order, authorizations with their challenges,
//! request for a certificate, chain.

use super::challenge::{self, Offer};
use super::client::{Client, Failure, Problem, Reply};
use super::dns_hook;
use super::jws::base64url;
use super::settings::{Challenge, Identifier, Issuer, Order};
use super::store::Issued;
use crate::tls::certificate;
use crate::tls::names;
use crate::tls::x509::Certificate;
use aws_lc_rs::digest::{SHA256, digest};
use http::header;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// An order that is not done by then is given up.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between the first two looks at what is not ready.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// Between two looks at most, unless the authority asks for more.
const LAST_LOOK: Duration = Duration::from_secs(10);
/// Authorizations of one order; there are as many as names.
const MAX_AUTHORIZATIONS: usize = 1000;
/// Chains that are looked at for `preferred_chain`.
const MAX_CHAINS: usize = 8;
/// The longest token, in bytes.
const MAX_TOKEN: usize = 512;

#[derive(Debug, Deserialize)]
struct OrderState {
    status: String,
    #[serde(default)]
    authorizations: Vec<String>,
    finalize: String,
    certificate: Option<String>,
    error: Option<Problem>,
}

#[derive(Debug, Deserialize)]
struct Authorization {
    status: String,
    #[serde(default)]
    wildcard: bool,
    identifier: Named,
    #[serde(default)]
    challenges: Vec<Offered>,
}

#[derive(Debug, Deserialize)]
struct Named {
    value: String,
}

#[derive(Debug, Deserialize)]
struct Offered {
    #[serde(rename = "type")]
    kind: String,
    url: String,
    #[serde(default)]
    token: String,
    error: Option<Problem>,
}

/// A proof that can be seen until this is dropped.
#[expect(dead_code, reason = "each is held for its end")]
enum Proof {
    Here(Offer),
    Record(dns_hook::Record),
}

/// Orders a certificate. `replaces`: the one it takes the place of, by its name in RFC 9773.
pub(super) async fn obtain(
    client: &Client,
    issuer: &Issuer,
    order: &Order,
    replaces: Option<&str>,
) -> Result<Issued, Failure> {
    let patience = Instant::now() + PATIENCE;
    let (url, state) = begin(client, issuer, order, replaces).await?;
    if state.authorizations.len() > MAX_AUTHORIZATIONS {
        return Err(Failure::new(format!("the order has {} authorizations", state.authorizations.len())));
    }
    // All are begun before any is waited for.
    let mut offers = Vec::new();
    for authorization in &state.authorizations {
        offers.extend(prove(client, issuer, order, authorization).await?);
    }
    for authorization in &state.authorizations {
        authorized(client, issuer, authorization, patience).await?;
    }
    drop(offers);
    let state = settled(client, &url, patience, "pending").await?;
    let key = order.key.generate().await?;
    if state.status == "ready" {
        let request = base64url(&request(issuer, order, &key)?);
        client.post(&state.finalize, &json!({"csr": request})).await?;
    }
    let state = settled(client, &url, patience, "processing").await?;
    let at = state.certificate.ok_or_else(|| Failure::new(format!("{url}: the order is {}", state.status)))?;
    let chain = chain(client, &at, issuer.preferred_chain.as_deref()).await?;
    Ok(Issued::new(chain, key.serialize_pem())?)
}

async fn begin(
    client: &Client,
    issuer: &Issuer,
    order: &Order,
    replaces: Option<&str>,
) -> Result<(String, OrderState), Failure> {
    let identifier = |i: &Identifier| json!({"type": i.kind(), "value": i.to_string()});
    let mut request = json!({"identifiers": order.identifiers.iter().map(identifier).collect::<Vec<Value>>()});
    if let Some(profile) = client.profile(issuer.profile.as_ref())? {
        request["profile"] = json!(profile);
    }
    if let Some(replaces) = replaces {
        request["replaces"] = json!(replaces);
    }
    let reply = match client.post(client.new_order(), &request).await {
        // It was replaced already, or is not known any more: then this is an order like any other.
        Err(e) if replaces.is_some() && matches!(&*e.kind, "alreadyReplaced" | "malformed" | "conflict") => {
            request.as_object_mut().map(|r| r.remove("replaces"));
            client.post(client.new_order(), &request).await?
        }
        result => result?,
    };
    let url = reply.location().ok_or_else(|| Failure::new("the answer does not name the order"))?;
    Ok((url, reply.json()?))
}

/// Offers the proof for one name and says that it is there. Nothing to do where control was shown before.
async fn prove(client: &Client, issuer: &Issuer, order: &Order, url: &str) -> Result<Option<Proof>, Failure> {
    let authorization: Authorization = client.read(url).await?.json()?;
    if authorization.status != "pending" {
        return Ok(None);
    }
    let name = &authorization.identifier.value;
    // A wildcard is proved by the name below it (RFC 8555 section 7.1.3).
    let wanted = if authorization.wildcard { format!("*.{name}") } else { name.clone() };
    let identifier = order.identifiers.iter().find(|i| i.to_string().eq_ignore_ascii_case(&wanted));
    let identifier =
        identifier.ok_or_else(|| Failure::new(format!("{url} is about \"{name}\", which was not asked for")))?;
    let wanted = issuer.challenge.name();
    let offered = authorization.challenges.iter().find(|c| c.kind == wanted);
    let offered =
        offered.ok_or_else(|| Failure::new(format!("the server has no {wanted} challenge for \"{name}\"")))?;
    let is_token = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if offered.token.is_empty() || offered.token.len() > MAX_TOKEN || !offered.token.bytes().all(is_token) {
        return Err(Failure::new(format!("{}: the token is none", offered.url)));
    }
    let proof = format!("{}.{}", offered.token, client.thumbprint());
    let offer = match issuer.challenge {
        Challenge::Http01 => Proof::Here(challenge::offer_text(&offered.token, &proof)),
        Challenge::Dns01 => {
            let hook = issuer.dns_hook.as_deref().ok_or_else(|| Failure::new("there is no \"dns_hook\""))?;
            Proof::Record(dns_hook::publish(hook, &name.to_ascii_lowercase(), &proof).await?)
        }
        Challenge::TlsAlpn01 => {
            let digest = digest(&SHA256, proof.as_bytes());
            let (asked, shown) = (identifier.server_name(), identifier.to_string());
            Proof::Here(challenge::offer_certificate(asked, shown, digest.as_ref())?)
        }
    };
    client.post(&offered.url, &json!({})).await?;
    Ok(Some(offer))
}

async fn authorized(client: &Client, issuer: &Issuer, url: &str, patience: Instant) -> Result<(), Failure> {
    let look = |reply: &Reply| -> Result<Option<()>, Failure> {
        let authorization: Authorization = reply.json()?;
        match &*authorization.status {
            "valid" => Ok(Some(())),
            "pending" => Ok(None),
            status => {
                let name = &authorization.identifier.value;
                let what = format!("{} for \"{name}\" failed", issuer.challenge.name());
                let problem = authorization.challenges.iter().find_map(|c| c.error.as_ref());
                Err(problem.map_or_else(
                    || Failure::new(format!("{what}: the authorization is {status}")),
                    |problem| problem.failure(&what, reply.retry_after()),
                ))
            }
        }
    };
    poll(client, url, patience, look).await
}

/// Waits until an order has left a status.
async fn settled(client: &Client, url: &str, patience: Instant, left: &str) -> Result<OrderState, Failure> {
    let look = |reply: &Reply| -> Result<Option<OrderState>, Failure> {
        let state: OrderState = reply.json()?;
        match (&*state.status, &state.error) {
            (status, _) if status == left => Ok(None),
            ("invalid", Some(problem)) => Err(problem.failure("the order failed", reply.retry_after())),
            ("invalid", None) => Err(Failure::new(format!("{url}: the order is invalid"))),
            _ => Ok(Some(state)),
        }
    };
    poll(client, url, patience, look).await
}

async fn poll<T>(
    client: &Client,
    url: &str,
    patience: Instant,
    look: impl Fn(&Reply) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let mut pause = FIRST_LOOK;
    loop {
        let reply = client.read(url).await?;
        if let Some(done) = look(&reply)? {
            return Ok(done);
        }
        let wait = reply.retry_after().unwrap_or_default().max(pause);
        if Instant::now() + wait > patience {
            return Err(Failure::new(format!("{url}: not ready after {} s", PATIENCE.as_secs())));
        }
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(LAST_LOOK);
    }
}

/// The request for a certificate (PKCS #10), DER.
fn request(issuer: &Issuer, order: &Order, key: &KeyPair) -> Result<Vec<u8>, String> {
    let failed = |e: rcgen::Error| format!("the certificate request could not be made ({e})");
    let names: Vec<String> = order.identifiers.iter().map(ToString::to_string).collect();
    let first = order.identifiers.iter().find(|i| i.kind() == "dns").or(order.identifiers.first());
    let common_name = first.filter(|_| issuer.common_name).map(ToString::to_string);
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    Ok(params.serialize_request(key).map_err(failed)?.der().to_vec())
}

/// The chain, PEM: of several the preferred one, if there is one of that name (RFC 8555 section 7.4.2).
async fn chain(client: &Client, url: &str, preferred: Option<&str>) -> Result<String, Failure> {
    let first = client.read(url).await?;
    let text = |reply: &Reply| String::from_utf8(reply.answer.body.to_vec()).map_err(|_| Failure::new("no PEM"));
    let default = text(&first)?;
    let Some(preferred) = preferred.filter(|p| !is_below(&default, p)) else { return Ok(default) };
    let links = first.answer.headers.get_all(header::LINK).iter().filter_map(|v| v.to_str().ok());
    for link in links.filter_map(alternate).take(MAX_CHAINS) {
        let other = text(&client.read(link).await?)?;
        if is_below(&other, preferred) {
            return Ok(other);
        }
    }
    Ok(default)
}

/// Whether the topmost certificate of a chain was issued by somebody of this name.
fn is_below(chain: &str, common_name: &str) -> bool {
    let Ok(chain) = certificate::chain(chain.as_bytes()) else { return false };
    let Some(Ok(last)) = chain.last().map(|c| Certificate::parse(c)) else { return false };
    names::common_names(last.issuer).iter().any(|n| n == common_name.as_bytes())
}

/// The address of `<https://...>;rel="alternate"` (RFC 8288).
fn alternate(link: &str) -> Option<&str> {
    let (url, parameters) = link.trim_start().strip_prefix('<')?.split_once('>')?;
    let is_it = |p: &str| matches!(p.trim(), "rel=\"alternate\"" | "rel=alternate");
    parameters.split(';').any(is_it).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_other_chains() {
        assert_eq!(alternate("<https://ca/c/1>;rel=\"alternate\""), Some("https://ca/c/1"));
        assert_eq!(alternate(" <https://ca/c/2> ; title=x; rel=alternate"), Some("https://ca/c/2"));
        for other in ["<https://ca/dir>;rel=\"index\"", "https://ca;rel=alternate", "<https://ca", ""] {
            assert_eq!(alternate(other), None, "{other}");
        }
    }
}
