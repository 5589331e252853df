//! `status_zone`: names under which requests, sessions and handshakes are counted. What is counted outlives reloads, as long
//! as some configuration has the name.

use super::latency::Times;
use super::requests::Counts;
use super::ssl;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a zone counts. Names of one kind say nothing about another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requests to servers of `http`.
    Server,
    /// Requests that ended in locations.
    Location,
    /// Sessions of servers of `stream`.
    Stream,
}

/// A zone.
#[derive(Debug)]
pub struct Zone {
    /// Its name.
    pub name: Box<str>,
    /// What it counts.
    pub kind: Kind,
    /// Requests.
    pub counts: Counts,
    /// How long they took.
    pub times: Times,
    /// Handshakes.
    pub ssl: ssl::Counts,
}

/// The zones that some configuration has.
static ZONES: Mutex<Vec<Weak<Zone>>> = Mutex::new(Vec::new());

/// The zone of a name: the one there is, or a new one.
pub fn open(kind: Kind, name: &str) -> Arc<Zone> {
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    zones.retain(|z| z.strong_count() > 0);
    let known = zones.iter().filter_map(Weak::upgrade).find(|z| z.kind == kind && *z.name == *name);
    known.unwrap_or_else(|| {
        let zone = Arc::new(Zone {
            name: name.into(),
            kind,
            counts: Counts::default(),
            times: Times::default(),
            ssl: ssl::Counts::default(),
        });
        zones.push(Arc::downgrade(&zone));
        zone
    })
}

/// The zones of a kind, by name.
pub fn all(kind: Kind) -> Vec<Arc<Zone>> {
    let zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found: Vec<_> = zones.iter().filter_map(Weak::upgrade).filter(|z| z.kind == kind).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_found_again_while_somebody_has_it() {
        let first = open(Kind::Server, "zones test");
        assert!(Arc::ptr_eq(&first, &open(Kind::Server, "zones test")));
        assert!(!Arc::ptr_eq(&first, &open(Kind::Location, "zones test")));
        assert!(all(Kind::Server).iter().any(|z| &*z.name == "zones test"));
        drop(first);
        assert!(!all(Kind::Server).iter().any(|z| &*z.name == "zones test"));
    }
}
