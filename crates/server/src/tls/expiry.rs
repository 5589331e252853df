//! Until when certificates are good: what the status shows of each, and what is warned of when a configuration is read.

use super::names;
use super::verify::host;
use super::x509::Certificate;
use crate::snapshot::Snapshot;
use std::sync::Arc;

/// What ends sooner is warned of, in seconds...
const SOON_S: i64 = 14 * DAY_S;
/// ... unless it never had so long: then when less than this part of its life is left.
const SOON_PART: i64 = 4;
const DAY_S: i64 = 86_400;

/// A certificate that is shown to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Where it comes from: the path of a file, `data:...`, or what was ordered.
    pub name: String,
    /// Hosts and addresses that it is for.
    pub hosts: Vec<String>,
    /// When it begins to be valid, Unix seconds.
    pub not_before: i64,
    /// When it ceases, Unix seconds.
    pub not_after: i64,
}

impl Held {
    /// Of a certificate.
    pub fn new(name: String, der: &[u8]) -> Option<Held> {
        let c = Certificate::parse(der).ok()?;
        let (not_before, not_after) = (c.not_before, c.not_after);
        Some(Held { name, hosts: host::names(&c), not_before, not_after })
    }

    /// What is to be warned of at a time.
    pub fn warning(&self, now_s: i64) -> Option<String> {
        let left = self.not_after - now_s;
        let name = &self.name;
        if left < 0 {
            return Some(format!("certificate \"{name}\" has expired: {}", names::time(self.not_after)));
        }
        let soon = SOON_S.min((self.not_after - self.not_before) / SOON_PART);
        (left < soon).then(|| format!("certificate \"{name}\" expires soon: {}", names::time(self.not_after)))
    }
}

/// A time in Unix seconds for people, as in warnings.
pub fn shown(seconds: i64) -> String {
    names::time(seconds)
}

/// All certificates that a configuration shows to clients, but those of which the names have variables.
pub fn certificates(snapshot: &Snapshot) -> Vec<Held> {
    let mut seen: Vec<*const super::server::Context> = Vec::new();
    let mut all = Vec::new();
    for context in snapshot.planes().flat_map(|p| &p.servers).filter_map(|s| s.tls.as_ref()) {
        if !seen.contains(&Arc::as_ptr(context)) {
            seen.push(Arc::as_ptr(context));
            all.extend(context.certificates.iter().cloned());
        }
    }
    for slot in snapshot.servers.iter().filter_map(|s| s.acme.as_ref()) {
        let issued = slot.current().and_then(|i| Held::new(slot.name(), &i.pair.cert[0]));
        all.extend(issued.filter(|held| !all.contains(held)).into_iter().collect::<Vec<_>>());
    }
    all
}

/// What becomes of a certificate that is ordered by itself.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// As in logs and files.
    pub name: String,
    /// There is one to show.
    pub issued: bool,
    /// Tries in a row that have failed.
    pub failures: i64,
    /// When the authority is asked again, Unix seconds; 0 before that is known.
    pub next_s: i64,
}

/// All of them, by name.
pub fn orders(snapshot: &Snapshot) -> Vec<Ordered> {
    let slots = snapshot.servers.iter().filter_map(|s| s.acme.as_ref());
    let mut all: Vec<Ordered> = slots
        .map(|slot| Ordered {
            name: slot.name(),
            issued: slot.current().is_some(),
            failures: slot.failures(),
            next_s: slot.next_s(),
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_soon_is_warned_of() {
        let warning = |days: i64, now: i64| {
            let held = Held { name: "x.crt".into(), hosts: Vec::new(), not_before: 0, not_after: days * DAY_S };
            held.warning(now * DAY_S)
        };
        assert_eq!(warning(90, 76), None);
        assert!(warning(90, 77).is_some_and(|w| w.starts_with("certificate \"x.crt\" expires soon: Apr  1 ")));
        assert!(warning(90, 91).is_some_and(|w| w.contains("has expired")));
        assert_eq!(warning(8, 5), None);
        assert!(warning(8, 7).is_some());
    }
}
