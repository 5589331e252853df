//! Crawlers that a guard leaves alone: who says that it is one, and whose address has a name of its operator's domain that stands for this address again (a PTR
//! look-up, then one for the name). The names are asked for on the service thread; a request never waits for them, and is judged as any other until they are
//! known. What a request says of itself only makes that its address is asked about. From and to: `judge`, which finds whom to ask. The table of addresses: `shield::vouched`.

use conf::{Node, Problem};
use resolve::{NOT_FOUND, ResolveError, Resolver};
use runtime::clock;
use shield::vouched::{Known, Vouched};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// `crawler` rows of a guard at most: each is looked for in the `User-Agent` of a request.
const MAX_ROWS: usize = 64;
/// So much of a `User-Agent` is looked at, bytes: a request can bring thousands.
const MAX_AGENT: usize = 512;
/// An address that was verified is left alone for so long, ms. It is asked about again before that ends.
const VERIFIED_MS: u64 = 12 * 3_600_000;
/// One that is somebody else's is not asked about again for so long, ms.
const STRANGER_MS: u64 = 600_000;
/// The same where name servers did not answer.
const FAILED_MS: u64 = 30_000;
/// How long name servers may take, whatever `resolver_timeout` says: so many are asked about at a time only.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names of addresses that were verified. For all guards: a name is compared with what the guard says.
static KNOWN: LazyLock<Vouched<Arc<[u8]>>> = LazyLock::new(Vouched::default);

/// One `crawler` row.
#[derive(Debug)]
pub(super) struct Crawler {
    /// What its `User-Agent` has in it, in small letters.
    agent: Box<[u8]>,
    /// Domains that its addresses have names of, in small letters, without a dot at either end.
    domains: Domains,
}

type Domains = Arc<[Box<[u8]>]>;

/// Whether a name is of one of the domains.
fn owns(domains: &[Box<[u8]>], name: &[u8]) -> bool {
    domains.iter().any(|domain| name.strip_suffix(&**domain).is_some_and(|rest| matches!(rest, [] | [.., b'.'])))
}

impl Crawler {
    fn is_named(&self, agent: &[u8]) -> bool {
        agent.windows(self.agent.len()).any(|part| part.eq_ignore_ascii_case(&self.agent))
    }

    fn owns(&self, name: &[u8]) -> bool {
        owns(&self.domains, name)
    }
}

/// `crawler AGENT DOMAIN ...`
pub(super) fn read(row: &Node, before: usize) -> Result<Crawler, Problem> {
    let [agent, domains @ ..] = row.args.as_slice() else { return Err(Problem::invalid_arguments(row)) };
    if domains.is_empty() {
        return Err(Problem::invalid_arguments(row));
    }
    if before >= MAX_ROWS {
        return Err(row.problem(format!("more than {MAX_ROWS} crawlers")));
    }
    if agent.text.is_empty() {
        return Err(Problem::invalid_parameter(agent));
    }
    let read = |word: &conf::Word| {
        let text = word.text.to_ascii_lowercase();
        let text = text.strip_prefix(b".").unwrap_or(&text);
        let is_label = |label: &[u8]| {
            !label.is_empty() && label.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        };
        // All names of a top-level domain are nobody's in particular.
        let is_domain = text.contains(&b'.') && text.split(|b| *b == b'.').all(is_label);
        is_domain.then(|| Box::from(text)).ok_or_else(|| Problem::invalid_parameter(word))
    };
    let domains = domains.iter().map(read).collect::<Result<_, _>>()?;
    Ok(Crawler { agent: agent.text.to_ascii_lowercase().into(), domains })
}

/// Whether who calls itself so at an address is one of these crawlers, as far as is known by now; and what is to be asked about it.
pub(super) fn look(crawlers: &[Crawler], agent: &[u8], ip: IpAddr) -> (bool, Option<Question>) {
    let agent = &agent[..agent.len().min(MAX_AGENT)];
    let Some(crawler) = crawlers.iter().find(|crawler| crawler.is_named(agent)) else { return (false, None) };
    let ip = ip.to_canonical();
    let (known, asks) = KNOWN.look(ip, clock::wall_ms());
    let is_verified = matches!(known, Known::Vouched(name) if crawler.owns(&name));
    (is_verified, asks.then(|| Question { domains: crawler.domains.clone(), ip }))
}

/// Whose an address is. It is to be answered, or given up.
pub(super) struct Question {
    domains: Domains,
    /// The address.
    pub(super) ip: IpAddr,
}

impl Question {
    /// Nobody can be asked.
    pub(super) fn give_up(self) {
        KNOWN.settle(self.ip, None, STRANGER_MS, clock::wall_ms());
    }

    /// Asks, and notes what is said. The name, if that is a crawler's. On the service thread; `timeout` is `resolver_timeout`.
    pub(super) async fn answer(self, resolver: Resolver, timeout: Duration) -> Option<Arc<[u8]>> {
        let patience = if timeout.is_zero() { PATIENCE } else { timeout.min(PATIENCE) };
        let found = self.name(&resolver, patience).await;
        let (ip, now_ms) = (self.ip, clock::wall_ms());
        match found {
            Ok(Some(name)) => {
                KNOWN.settle(ip, Some(name.clone()), VERIFIED_MS, now_ms);
                return Some(name);
            }
            Ok(None) => KNOWN.settle(ip, None, STRANGER_MS, now_ms),
            Err(e) if e.code == NOT_FOUND => KNOWN.settle(ip, None, STRANGER_MS, now_ms),
            // Who was verified stays so until its time is over.
            Err(_) => match KNOWN.look(ip, now_ms).0 {
                Known::Vouched(_) => KNOWN.give_up(ip),
                Known::Stranger | Known::Unknown => KNOWN.settle(ip, None, FAILED_MS, now_ms),
            },
        }
        None
    }

    /// The address's name, if it is of the crawler's domains and stands for that address.
    async fn name(&self, resolver: &Resolver, patience: Duration) -> Result<Option<Arc<[u8]>>, ResolveError> {
        let host = resolver.resolve_addr(self.ip, patience).await?;
        if !owns(&self.domains, &host.name) {
            return Ok(None);
        }
        let addresses = resolver.resolve(&host.name, patience).await?;
        let is_its = addresses.iter().any(|address| address.to_canonical() == self.ip);
        Ok(is_its.then(|| Arc::from(&*host.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_whole_labels() {
        let domain: Box<[u8]> = Box::from(&b"google.com"[..]);
        let crawler = Crawler { agent: Box::from(&b"bot"[..]), domains: Arc::from([domain]) };
        for name in ["google.com", "crawl.google.com"] {
            assert!(crawler.owns(name.as_bytes()), "{name}");
        }
        for name in ["evilgoogle.com", "google.com.evil.example", "google.co", ""] {
            assert!(!crawler.owns(name.as_bytes()), "{name}");
        }
        assert!(crawler.is_named(b"Mozilla/5.0 (compatible; GoogleBot/2.1)") && !crawler.is_named(b"bo"));
    }
}
