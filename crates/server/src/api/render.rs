//! Numbers of `status` as the API's objects.

use crate::status::codes::Responses;
use crate::status::requests::Totals;
use crate::status::ssl::{self, Event};
use serde_json::{Map, Value, json};
use wire::date::Civil;

/// Milliseconds since 1970 as `2026-11-21T22:37:00.123Z`.
pub fn time(ms: u64) -> String {
    let t = Civil::from_unix((ms / 1000) as i64);
    format!("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", t.year, t.month, t.day, t.hour, t.minute, t.second, ms % 1000)
}

/// Answers by class and code.
pub fn responses(r: &Responses) -> Value {
    classes(&r.classes, &r.codes)
}

/// The same from their parts.
pub fn classes(classes: &[u64], codes: &[(u16, u64)]) -> Value {
    let mut all = Map::new();
    for (class, n) in classes.iter().enumerate() {
        all.insert(format!("{}xx", class + 1), json!(n));
    }
    let codes: Map<_, _> = codes.iter().map(|(code, n)| (code.to_string(), json!(n))).collect();
    all.insert("codes".to_owned(), codes.into());
    all.insert("total".to_owned(), json!(classes.iter().sum::<u64>()));
    all.into()
}

/// Requests to a server or in a location; only a server knows those under way.
pub fn requests(t: &Totals, with_processing: bool) -> Value {
    let mut all = json!({
        "requests": t.requests,
        "responses": responses(&t.responses),
        "discarded": t.discarded,
        "received": t.received,
        "sent": t.sent,
    });
    if with_processing {
        all["processing"] = json!(t.processing);
    }
    all
}

/// Handshakes. `other`: with whom.
pub fn handshakes(t: &ssl::Totals, other: Other) -> Value {
    let named = |(name, event): &(&str, Event)| ((*name).to_owned(), json!(t.count(*event)));
    let happens = |(_, event): &&(&str, Event)| other.meets(*event);
    let mut all: Map<_, _> = ssl::CAUSES.iter().filter(happens).map(named).collect();
    all.insert("handshakes".to_owned(), json!(t.count(Event::Handshake)));
    all.insert("handshakes_failed".to_owned(), json!(t.count(Event::Failed)));
    all.insert("session_reuses".to_owned(), json!(t.count(Event::Reuse)));
    all.insert("verify_failures".to_owned(), ssl::VERIFY_FAILURES.iter().filter(happens).map(named).collect());
    all.into()
}

/// With whom handshakes are.
#[derive(Clone, Copy, PartialEq)]
pub enum Other {
    /// Clients and peers.
    Anybody,
    /// Clients.
    Client,
    /// Peers.
    Peer,
}

impl Other {
    /// Whether handshakes with it can end so.
    fn meets(self, event: Event) -> bool {
        match event {
            Event::NoCert | Event::NoCipher => self != Other::Peer,
            Event::WrongName => self != Other::Client,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(time(1_793_918_220_007), "2026-11-05T22:37:00.007Z");
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
    }
}
