//! Tends the certificates of one issuer: orders what is missing, renews in time, pauses after failures. One order at a time.

use super::client::{Client, Failure};
use super::jws::{AccountKey, base64url};
use super::order;
use super::renewal::{self, Window};
use super::settings::{Issuer, Key};
use super::state::{ACCOUNT_KEY, ACCOUNT_URL, State};
use super::store::Slot;
use crate::fetch::Fetch;
use crate::log::error::Level;
use crate::log::process_line;
use crate::tls::client::{unverified, verified};
use crate::tls::der::{Der, tag};
use crate::tls::names;
use crate::tls::x509::Certificate;
use runtime::clock;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How often an authority is asked when to renew, in seconds: if it does not say, at least, at most (RFC 9773 section 4.3).
const LOOK_S: (i64, i64, i64) = (6 * 3600, 60, 24 * 3600);
/// The longest sleep, in seconds: clocks are set.
const LONGEST_SLEEP_S: i64 = 3600;
/// The extension authorityKeyIdentifier.
const AUTHORITY_KEY: &[u8] = &[0x55, 0x1d, 35];

/// What is to be done next for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Order it, for the first time or again.
    Order,
    /// Ask when to renew it.
    Look,
}

struct Plan {
    slot: Arc<Slot>,
    name: String,
    step: Step,
    /// When, Unix seconds.
    due: i64,
    /// When it is to be renewed as far as is known, Unix seconds.
    renew: i64,
    /// In a row.
    failures: u32,
    /// When it was issued last, as far as this process knows, Unix seconds.
    issued: i64,
}

/// Tends the certificates of one issuer.
pub(super) struct Tender {
    issuer: Arc<Issuer>,
    state: State,
    plans: Vec<Plan>,
    again: Arc<Notify>,
    /// While there is something to do.
    client: Option<Client>,
    /// An account key that is not kept on disk.
    key: Option<String>,
}

impl Tender {
    pub(super) fn new(issuer: Arc<Issuer>, slots: Vec<Arc<Slot>>, again: Arc<Notify>) -> Tender {
        let now = clock::wall_seconds();
        let plan = |slot: Arc<Slot>| {
            let renew = slot.current().map(|c| Window::of_life(c.not_before, c.not_after).moment(random()));
            let step = if renew.is_some_and(|at| at > now) { Step::Look } else { Step::Order };
            Plan { name: slot.name(), slot, step, due: now, renew: renew.unwrap_or(now), failures: 0, issued: 0 }
        };
        let state = State(issuer.state_path.clone());
        Tender { plans: slots.into_iter().map(plan).collect(), issuer, state, again, client: None, key: None }
    }

    /// Works until it is dropped.
    pub(super) async fn run(&mut self) {
        loop {
            let Some(next) = (0..self.plans.len()).min_by_key(|i| self.plans[*i].due) else { return };
            let wait = self.plans[next].due - clock::wall_seconds();
            if wait > 0 {
                self.client = None;
                let sleep = tokio::time::sleep(Duration::from_secs(wait.min(LONGEST_SLEEP_S) as u64));
                tokio::select! {
                    () = sleep => {}
                    () = self.again.notified() => self.forgive(),
                }
                continue;
            }
            if let Err(failure) = self.log_in().await {
                self.put_off(failure);
                continue;
            }
            let done = match self.plans[next].step {
                Step::Order => self.order(next).await,
                Step::Look => self.look(next).await,
            };
            if let Err(failure) = done {
                self.failed(next, &failure);
            }
            self.note(next);
        }
    }

    /// What the status shows of a plan.
    fn note(&self, at: usize) {
        let plan = &self.plans[at];
        plan.slot.note(plan.failures, plan.due);
    }

    /// What failed is tried again now.
    fn forgive(&mut self) {
        let now = clock::wall_seconds();
        self.plans.iter_mut().filter(|p| p.failures > 0).for_each(|p| p.due = now);
    }

    async fn log_in(&mut self) -> Result<(), Failure> {
        if self.client.is_some() {
            return Ok(());
        }
        let key = self.account_key().await?;
        // The system's certificates are many files.
        let issuer = self.issuer.clone();
        let tls = crate::service::blocking(move || tls(&issuer))
            .await
            .ok_or("the certificates could not be read".to_owned())?;
        let issuer = &self.issuer;
        let fetch = Fetch { resolver: issuer.resolver.clone(), tls: Some(tls?) };
        let mut client = Client::open(fetch, &issuer.uri, key).await?;
        // A URL is good for the key and the authority it came from.
        let whose = format!("{}\n{}\n", issuer.uri, client.thumbprint());
        let kept = self.state.read(ACCOUNT_URL)?;
        let known = kept.and_then(|text| text.strip_prefix(&*whose).map(|url| url.trim_end().to_owned()));
        let is_known = known.is_some();
        let url = client.log_in(issuer, known).await?;
        if !is_known {
            self.state.write(ACCOUNT_URL, format!("{whose}{url}\n")).await?;
            process_line(Level::Notice, format_args!("acme: issuer \"{}\": account {url}", issuer.name));
        }
        self.client = Some(client);
        Ok(())
    }

    /// The account's key: given, kept, or new.
    async fn account_key(&mut self) -> Result<AccountKey, String> {
        let usable = |pem: &[u8]| AccountKey::from_pem(pem).map_err(|e| format!("the account key cannot be used: {e}"));
        let kind = match &self.issuer.account_key {
            Key::Given(pem) => return usable(pem),
            Key::Made(kind) => *kind,
        };
        let kept = match &self.key {
            Some(key) => Some(key.clone()),
            None => self.state.read(ACCOUNT_KEY)?,
        };
        if let Some(pem) = kept {
            return usable(pem.as_bytes());
        }
        let pem = kind.generate().await?.serialize_pem();
        // Kept before it is used: an account with a lost key is of no use to anybody.
        self.state.write(ACCOUNT_KEY, pem.clone()).await?;
        let key = usable(pem.as_bytes())?;
        self.key = Some(pem);
        Ok(key)
    }

    async fn order(&mut self, at: usize) -> Result<(), Failure> {
        let client = self.client.as_ref().expect("logged in before each step");
        let plan = &self.plans[at];
        let replaces = plan.slot.current().and_then(|c| ari_name(&c.pair.cert[0]));
        let replaces = replaces.filter(|_| client.renewal_info().is_some());
        let issued = order::obtain(client, &self.issuer, &plan.slot.order, replaces.as_deref()).await?;
        let now = clock::wall_seconds();
        let end = names::time(issued.not_after);
        let renew = Window::of_life(issued.not_before, issued.not_after).moment(random());
        // What cannot be kept on disk is used all the same.
        if let Err(text) = self.state.keep(&plan.name, &issued).await {
            self.line(Level::Error, at, &text);
        }
        self.plans[at].slot.put(issued)?;
        let plan = &mut self.plans[at];
        plan.issued = now;
        plan.renew = renew.max(now + renewal::SHORTEST_S);
        plan.failures = 0;
        let can_look = self.client.as_ref().is_some_and(|c| c.renewal_info().is_some());
        (plan.step, plan.due) = if can_look { (Step::Look, now) } else { (Step::Order, plan.renew) };
        self.line(Level::Notice, at, &format!("issued, valid until {end}"));
        Ok(())
    }

    /// Asks when to renew (RFC 9773 section 4).
    async fn look(&mut self, at: usize) -> Result<(), Failure> {
        let client = self.client.as_ref().expect("logged in before each step");
        let name = self.plans[at].slot.current().and_then(|c| ari_name(&c.pair.cert[0]));
        let (Some(url), Some(name)) = (client.renewal_info(), name) else {
            let plan = &mut self.plans[at];
            (plan.step, plan.due) = (Step::Order, plan.renew);
            return Ok(());
        };
        let reply = client.get(&format!("{}/{name}", url.trim_end_matches('/'))).await?;
        let info: RenewalInfo = reply.json()?;
        let window = info.window().ok_or_else(|| Failure::new("the renewal window is not understood"))?;
        let after = reply.retry_after().map_or(LOOK_S.0, |d| d.as_secs() as i64).clamp(LOOK_S.1, LOOK_S.2);
        let (now, plan) = (clock::wall_seconds(), &mut self.plans[at]);
        let asked = window.moment(random());
        // The authority may want it earlier, but not at once again, and not after its own certificate has ended.
        let end = plan.slot.current().map_or(asked, |c| c.not_after);
        plan.renew = asked.min(end).max(plan.issued + renewal::SHORTEST_S);
        plan.failures = 0;
        (plan.step, plan.due) =
            if plan.renew <= now + after { (Step::Order, plan.renew) } else { (Step::Look, now + after) };
        Ok(())
    }

    /// The authority cannot be worked with at all: everything that is due waits.
    fn put_off(&mut self, failure: Failure) {
        let now = clock::wall_seconds();
        let due: Vec<usize> = (0..self.plans.len()).filter(|i| self.plans[*i].due <= now).collect();
        let Some(first) = due.first() else { return };
        let pause = self.pause(*first, failure.retry_after);
        for at in due {
            self.postpone(at, pause);
            self.note(at);
        }
        let (issuer, text, pause) = (&self.issuer.name, failure.text, pause.as_secs());
        process_line(Level::Error, format_args!("acme: issuer \"{issuer}\": {text}; next try in {pause} s"));
    }

    fn failed(&mut self, at: usize, failure: &Failure) {
        if failure.kind == "accountDoesNotExist" {
            self.state.remove(ACCOUNT_URL);
        }
        self.client = None;
        let pause = self.pause(at, failure.retry_after);
        self.postpone(at, pause);
        let in_use = match self.plans[at].slot.current() {
            Some(c) => format!("the one in use is valid until {}", names::time(c.not_after)),
            None => "there is none to use".to_owned(),
        };
        let text = format!("{}; next try in {} s; {in_use}", failure.text, pause.as_secs());
        self.line(Level::Error, at, &text);
    }

    fn pause(&self, at: usize, asked: Option<Duration>) -> Duration {
        renewal::pause(self.plans[at].failures + 1, asked, random())
    }

    fn postpone(&mut self, at: usize, pause: Duration) {
        let plan = &mut self.plans[at];
        plan.failures = plan.failures.saturating_add(1);
        plan.due = clock::wall_seconds() + pause.as_secs() as i64;
        // Without an answer to when, it is renewed when its life says so.
        if plan.step == Step::Look && plan.due >= plan.renew {
            (plan.step, plan.due) = (Step::Order, plan.renew);
        }
    }

    fn line(&self, level: Level, at: usize, text: &str) {
        let (issuer, name) = (&self.issuer.name, &self.plans[at].name);
        process_line(level, format_args!("acme: issuer \"{issuer}\": certificate \"{name}\": {text}"));
    }
}

/// RFC 9773 section 4.2.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RenewalInfo {
    suggested_window: Suggested,
}

#[derive(Deserialize)]
struct Suggested {
    start: String,
    end: String,
}

impl RenewalInfo {
    fn window(&self) -> Option<Window> {
        let time = |text: &str| wire::date::parse_rfc3339(text.as_bytes());
        let window = Window { start: time(&self.suggested_window.start)?, end: time(&self.suggested_window.end)? };
        (window.start <= window.end).then_some(window)
    }
}

/// What a certificate is called where it is asked when to renew it (RFC 9773 section 4.1).
fn ari_name(der: &[u8]) -> Option<String> {
    let certificate = Certificate::parse(der).ok()?;
    // AuthorityKeyIdentifier ::= SEQUENCE { keyIdentifier [0] ... }
    let mut identifier = Der::new(certificate.extension(AUTHORITY_KEY)?).sequence().ok()?;
    let key = identifier.optional(tag::CONTEXT_0).ok()??;
    Some(format!("{}.{}", base64url(key), base64url(certificate.serial)))
}

/// How the authority is spoken to.
fn tls(issuer: &Issuer) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    if !issuer.verify {
        let builder = builder.dangerous().with_custom_certificate_verifier(unverified(algorithms));
        return Ok(Arc::new(builder.with_no_client_auth()));
    }
    let trusted = match &issuer.trusted {
        Some(trusted) => trusted.clone(),
        None => rustls_native_certs::load_native_certs().certs,
    };
    if trusted.is_empty() {
        return Err("there is no certificate to trust the server by: see \"ssl_trusted_certificate\"".to_owned());
    }
    let builder = builder.dangerous().with_custom_certificate_verifier(verified(trusted, algorithms)?);
    Ok(Arc::new(builder.with_no_client_auth()))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // A number that is not random makes a moment that others choose as well: no harm.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_as_authorities_write_them() {
        let window = |start: &str, end: &str| {
            let text = serde_json::json!({"suggestedWindow": {"start": start, "end": end}}).to_string();
            serde_json::from_str::<RenewalInfo>(&text).expect("JSON").window()
        };
        let expected = Window { start: 1_795_207_269, end: 1_795_207_270 };
        assert_eq!(window("2026-11-20T20:41:09Z", "2026-11-20T21:41:10+01:00"), Some(expected));
        assert_eq!(window("2026-11-20T20:41:09Z", "2025-11-20T20:41:09Z"), None);
        assert_eq!(window("soon", "2025-11-20T20:41:09Z"), None);
    }
}
