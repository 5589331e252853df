//! The state file of a `keyval_zone` as text: JSON, in which a value is a text, or one with the time until which it is good. Pure:
//! the file itself is `keyval_store`'s. Fuzzed as it stands here (`fuzz/fuzz_targets/keyval_state.rs`).

use serde_json::{Map, Value};

/// The records of a state file that are not over: key, value, and how long they stay.
pub fn parse(text: &[u8], now_ms: u64) -> Result<Vec<(String, String, Option<u64>)>, String> {
    let all: Map<String, Value> = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let mut records = Vec::with_capacity(all.len());
    for (key, value) in all {
        match &value {
            Value::String(text) => records.push((key, text.clone(), None)),
            Value::Object(o) => {
                match (o.get("value").and_then(Value::as_str), o.get("until").and_then(Value::as_u64)) {
                    (Some(text), Some(until)) if until > now_ms => {
                        records.push((key, text.to_owned(), Some(until - now_ms)));
                    }
                    (Some(_), Some(_)) => {}
                    _ => return Err(format!("the value of \"{key}\" is neither a text nor one with a time")),
                }
            }
            _ => return Err(format!("the value of \"{key}\" is neither a text nor one with a time")),
        }
    }
    Ok(records)
}

/// The text of a state file: key, value, and until when it is good (wall clock, ms) for each record.
pub fn render<'r>(records: impl Iterator<Item = (&'r str, &'r str, Option<u64>)>) -> String {
    let records = records.map(|(key, value, until_ms)| {
        let value = match until_ms {
            None => Value::from(value),
            Some(until) => serde_json::json!({"value": value, "until": until}),
        };
        (key.to_owned(), value)
    });
    Value::Object(records.collect()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_and_written() {
        let text = br#"{"a": "1", "b": {"value": "2", "until": 500}, "c": {"value": "3", "until": 50}}"#;
        let records = parse(text, 100).expect("it is good");
        assert_eq!(records, [("a".into(), "1".into(), None), ("b".into(), "2".into(), Some(400))]);
        assert!(parse(b"[]", 0).is_err() && parse(b"{\"a\": 1}", 0).is_err());
        let written = render(records.iter().map(|(k, v, keep)| (&**k, &**v, keep.map(|ms| ms + 100))));
        assert_eq!(parse(written.as_bytes(), 100), Ok(records));
    }
}
