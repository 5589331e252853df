//! JSON as arguments: `{"a": [1, {"b": "c"}]}` is `json.a.array_0` = `1` and `json.a.array_1.b` = `c`, as libmodsecurity names
//! them.

use super::Problem;
use crate::limits::MAX_PATH_BYTES;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Gives each leaf with the path to it.
pub(crate) fn parse(
    text: &[u8],
    depth: usize,
    limit: usize,
    leaf: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), Problem> {
    let names = MAX_PATH_BYTES + text.len();
    let mut walk = Walk { path: b"json".to_vec(), depth, left: limit, names, is_over: false, leaf };
    let mut reader = serde_json::Deserializer::from_slice(text);
    let read = Node(&mut walk).deserialize(&mut reader).and_then(|()| reader.end());
    read.map_err(|e| Problem { message: e.to_string(), is_limit: walk.is_over })
}

struct Walk<'a> {
    path: Vec<u8>,
    depth: usize,
    left: usize,
    /// Bytes that the paths of all leaves together may still have: each has that of all around it.
    names: usize,
    /// One of these was not enough.
    is_over: bool,
    leaf: &'a mut dyn FnMut(&[u8], &[u8]),
}

impl Walk<'_> {
    fn give<E: Error>(&mut self, value: &[u8]) -> Result<(), E> {
        self.left = self.left.checked_sub(1).ok_or_else(|| self.over("too many values"))?;
        self.names =
            self.names.checked_sub(self.path.len()).ok_or_else(|| self.over("the names are too long together"))?;
        (self.leaf)(&self.path, value);
        Ok(())
    }

    fn deeper<E: Error>(&mut self) -> Result<(), E> {
        self.depth = self.depth.checked_sub(1).ok_or_else(|| self.over("nested too deep"))?;
        Ok(())
    }

    fn over<E: Error>(&mut self, what: &str) -> E {
        self.is_over = true;
        E::custom(what)
    }
}

struct Node<'w, 'a>(&'w mut Walk<'a>);

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.0.give(if value { b"true" } else { b"false" })
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.give(value.to_string().as_bytes())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.0.give(value.to_string().as_bytes())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.0.give(value.to_string().as_bytes())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.give(b"")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.0.give(value.as_bytes())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.deeper()?;
        let end = self.0.path.len();
        for index in 0_usize.. {
            self.0.path.extend_from_slice(format!(".array_{index}").as_bytes());
            let more = items.next_element_seed(Node(self.0))?.is_some();
            self.0.path.truncate(end);
            if !more {
                break;
            }
        }
        self.0.depth += 1;
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.0.deeper()?;
        let end = self.0.path.len();
        while let Some(name) = entries.next_key::<String>()? {
            self.0.path.push(b'.');
            self.0.path.extend_from_slice(name.as_bytes());
            entries.next_value_seed(Node(self.0))?;
            self.0.path.truncate(end);
        }
        self.0.depth += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, depth: usize, limit: usize) -> Result<Vec<(String, String)>, String> {
        let mut list = Vec::new();
        parse(text.as_bytes(), depth, limit, &mut |n, v| {
            list.push((String::from_utf8_lossy(n).into_owned(), String::from_utf8_lossy(v).into_owned()));
        })
        .map_err(|problem| problem.message)?;
        Ok(list)
    }

    #[test]
    fn names_are_bounded_together() {
        let body = |name: usize, leaves: usize| format!("{{\"{}\":[{}1]}}", "k".repeat(name), "1,".repeat(leaves));
        let count = |body: &str| {
            let mut bytes = 0;
            let read = parse(body.as_bytes(), 10, 10_000, &mut |name, _| bytes += name.len());
            (bytes, read)
        };
        let many = body(100_000, 900);
        let (bytes, read) = count(&many);
        assert!(bytes <= MAX_PATH_BYTES + many.len(), "{bytes}");
        let problem = read.unwrap_err();
        assert!(problem.is_limit && problem.message.contains("too long together"), "{problem:?}");
        assert!(!parse(b"{", 10, 10, &mut |_, _| {}).unwrap_err().is_limit);
        // What applications send: a thousand rows whose names are long.
        assert!(count(&body(500, 999)).1.is_ok());
    }

    #[test]
    fn leaves_have_paths() {
        let list = all(r#"{"a": [1, {"b": "c\u0041"}], "a": true, "d": null}"#, 10, 10).unwrap();
        let shown: Vec<String> = list.iter().map(|(n, v)| format!("{n}={v}")).collect();
        assert_eq!(shown, ["json.a.array_0=1", "json.a.array_1.b=cA", "json.a=true", "json.d="]);
        assert_eq!(all("\"x\"", 10, 10).unwrap(), [("json".to_owned(), "x".to_owned())]);
    }

    #[test]
    fn limits_and_errors_are_said() {
        assert!(all("[[[1]]]", 2, 10).unwrap_err().contains("too deep"));
        assert!(all("[1,2,3]", 2, 2).unwrap_err().contains("too many"));
        assert!(all("{\"a\": }", 2, 2).is_err() && all("{} x", 2, 2).is_err() && all("", 2, 2).is_err());
        assert!(all(&"[".repeat(100_000), 1_000_000, 2).is_err(), "the parser has a limit of its own");
    }
}
