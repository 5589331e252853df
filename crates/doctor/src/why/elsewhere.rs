//! A server on another machine: it is asked for its own answer (`/ironweir/why`), which is about its machine. What is seen of the machine on which
//! this runs says nothing of it.

use super::{Answer, CAUSES, LEAST_BETWEEN, ORDER};
use crate::finding::{Finding, Sure, Weight};
use crate::headroom::{Headroom, Resource};
use api_client::Client;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Findings, and lines of evidence of each, that are read.
const MOST: usize = 64;
/// How much longer than the interval is waited for an answer that is about it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Has the server look twice.
pub(super) fn ask(client: &Client, pause: Duration) -> Result<Value, String> {
    let once = || -> Result<Value, String> {
        let none =
            || format!("{} has no /ironweir/why: is it the API of an Ironweir, and of this version?", client.url());
        client.ask("ironweir/why")?.ok_or_else(none)
    };
    once()?;
    let pause = pause.max(LEAST_BETWEEN);
    let began = Instant::now();
    loop {
        std::thread::sleep(pause);
        // Another one may have asked in between: then there is the answer of before.
        let value = once()?;
        if value["sentence"].is_string() {
            return Ok(value);
        }
        if began.elapsed() > pause + PATIENCE {
            return Err(format!("{} says nothing of itself", client.url()));
        }
    }
}

/// What it said.
pub(super) fn answer(value: &Value) -> Result<Answer, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let sentence = value["sentence"].as_str().ok_or("the server says nothing of itself")?.to_owned();
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let headroom = value.get("headroom").filter(|h| h.is_object()).map(|h| Headroom {
        rate: number(&h["rate"]),
        more: number(&h["more"]),
        then: Resource {
            name: text(&h["then"]["name"]),
            used: number(&h["then"]["used"]),
            evidence: text(&h["then"]["evidence"]),
        },
    });
    let parts = ORDER.map(|name| (name.to_owned(), number(&value["parts_us"][name])));
    Ok(Answer {
        sentence,
        finding: value.get("finding").and_then(finding),
        others: list(&value["others"]).filter_map(finding).collect(),
        headroom,
        parts_us: parts.to_vec(),
        // They are in the JSON as they came; for people nothing is said of them.
        interfaces: Vec::new(),
    })
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter().take(MOST)
}

fn finding(value: &Value) -> Option<Finding> {
    let text = |name: &str| value[name].as_str().unwrap_or_default();
    // A later version may know of things that this one has no name for.
    let id = CAUSES.iter().flat_map(|ids| ids.iter()).find(|id| **id == text("id")).copied().unwrap_or("other");
    let weights = [Weight::Critical, Weight::Warning, Weight::Note];
    let weight = weights.into_iter().find(|w| w.name() == text("weight"))?;
    let sure = [Sure::Certain, Sure::Likely, Sure::Possible].into_iter().find(|s| s.name() == text("sure"));
    let mut found = Finding::new(id, weight, text("what")).because(text("why")).sure(sure.unwrap_or(Sure::Possible));
    for e in list(&value["evidence"]) {
        found = found.seen(e["what"].as_str().unwrap_or_default(), e["from"].as_str().unwrap_or_default());
    }
    Some(list(&value["cure"]).fold(found, |found, cure| found.cure(cure.as_str().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_server_says_is_shown_as_it_would_show_it() {
        let finding = json!({"id": "cpu-limit", "weight": "warning", "what": "Little.", "evidence": [{"what": "1 of 2", "from": "cpu.stat"}],
                             "why": "so", "cure": ["more"], "sure": "likely"});
        let value = json!({"seconds": 1.0, "sentence": "Little.", "finding": finding, "others": [{"id": "new", "weight": "critical"}, {}],
                           "headroom": {"rate": 9.0, "more": 3.5, "then": {"name": "all CPUs", "used": 0.5, "evidence": "50 %"}},
                           "parts_us": {"own": 5.0}});
        let answer = answer(&value).unwrap();
        let found = answer.finding.unwrap();
        assert_eq!((found.id, found.weight, found.cure[0].as_str()), ("cpu-limit", Weight::Warning, "more"));
        assert_eq!((answer.others.len(), answer.others[0].id, answer.headroom.unwrap().more), (1, "other", 3.5));
        assert_eq!(answer.parts_us.iter().find(|p| p.0 == "own").unwrap().1, 5.0);
        assert!(super::answer(&json!({"seconds": 0})).is_err());
    }
}
