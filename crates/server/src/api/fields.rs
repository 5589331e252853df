//! Paths and queries of calls: segments, arguments, and `fields=`, which says what of an answer is wanted.

use super::error::Failure;
use serde_json::{Map, Value};

/// The parts of a path between slashes, decoded. A slash at the end says nothing.
pub fn segments(path: &str) -> Result<Vec<String>, Failure> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split('/').map(|part| decode(part).ok_or_else(Failure::path_not_found)).collect()
}

/// Undoes `%XX`. None: what comes out is no text.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let digit = |b: Option<u8>| char::from(b?).to_digit(16);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).ok()
}

/// An argument of a query, decoded.
pub fn argument(query: &str, name: &str) -> Option<String> {
    let pair = query.split('&').find_map(|pair| match pair.split_once('=') {
        Some((n, value)) if n == name => Some(value),
        None if pair == name => Some(""),
        _ => None,
    })?;
    decode(&pair.replace('+', " "))
}

/// What of an answer is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All of it.
    All,
    /// These fields.
    Fields(Vec<String>),
}

impl Wanted {
    /// From `fields=a,b`.
    pub fn of(query: &str) -> Wanted {
        match argument(query, "fields") {
            None => Wanted::All,
            Some(list) => Wanted::Fields(list.split(',').filter(|f| !f.is_empty()).map(str::to_owned).collect()),
        }
    }

    /// Whether a field is.
    pub fn has(&self, field: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Fields(fields) => fields.iter().any(|f| f == field),
        }
    }

    /// Keeps of an object what is wanted.
    pub fn of_object(&self, value: Value) -> Value {
        match (self, value) {
            (Wanted::Fields(fields), Value::Object(all)) => {
                let wanted = |name: &String| fields.iter().any(|f| f == name);
                Value::Object(all.into_iter().filter(|(name, _)| wanted(name)).collect::<Map<_, _>>())
            }
            (_, value) => value,
        }
    }

    /// The same for each of several objects by name; no fields at all: the names alone.
    pub fn of_map(&self, value: Value) -> Value {
        match (self, value) {
            (Wanted::Fields(fields), Value::Object(all)) if fields.is_empty() => {
                all.into_iter().map(|(n, _)| n).collect()
            }
            (Wanted::Fields(_), Value::Object(all)) => {
                Value::Object(all.into_iter().map(|(name, value)| (name, self.of_object(value))).collect())
            }
            (_, value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_are_taken_apart() {
        assert_eq!(segments("/9/http/"), Ok(vec!["9".into(), "http".into()]));
        assert_eq!(segments("/9/a%20b%2F%c3%a9"), Ok(vec!["9".into(), "a b/é".into()]));
        assert_eq!(segments("/"), Ok(vec![]));
        assert!(segments("/9/%f").is_err() && segments("/9/%ff").is_err() && segments("/%zz").is_err());
    }

    #[test]
    fn arguments_are_found() {
        assert_eq!(argument("a=1&key=x+y%26&b", "key").as_deref(), Some("x y&"));
        assert_eq!(argument("a=1&b", "b").as_deref(), Some(""));
        assert_eq!(argument("keys=1", "key"), None);
    }

    #[test]
    fn fields_are_chosen() {
        let all = json!({"z": {"a": 1, "b": 2}});
        assert_eq!(Wanted::of("fields=a,c").of_map(all.clone()), json!({"z": {"a": 1}}));
        assert_eq!(Wanted::of("fields=").of_map(all.clone()), json!(["z"]));
        assert_eq!(Wanted::of("").of_map(all.clone()), all);
        assert!(Wanted::of("").has("a") && Wanted::of("fields=b,a").has("a") && !Wanted::of("fields=b").has("a"));
        assert_eq!(Wanted::of("fields=b").of_object(json!({"a": 1, "b": 2})), json!({"b": 2}));
    }
}
