//! JSON as arguments: `{"a": [1, {"b": "c"}]}` is `json.a.array_0` = `1` and `json.a.array_1.b` = `c`, as libmodsecurity names
//! them.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Gives each leaf with the path to it. Err: what is wrong with the text, or what it has too much of.
pub(crate) fn parse(text: &[u8], depth: usize, limit: usize, leaf: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), String> {
    let mut walk = Walk { path: b"json".to_vec(), depth, left: limit, leaf };
    let mut reader = serde_json::Deserializer::from_slice(text);
    Node(&mut walk).deserialize(&mut reader).map_err(|e| e.to_string())?;
    reader.end().map_err(|e| e.to_string())
}

struct Walk<'a> {
    path: Vec<u8>,
    depth: usize,
    left: usize,
    leaf: &'a mut dyn FnMut(&[u8], &[u8]),
}

impl Walk<'_> {
    fn give<E: Error>(&mut self, value: &[u8]) -> Result<(), E> {
        self.left = self.left.checked_sub(1).ok_or_else(|| E::custom("too many values"))?;
        (self.leaf)(&self.path, value);
        Ok(())
    }

    fn deeper<E: Error>(&mut self) -> Result<(), E> {
        self.depth = self.depth.checked_sub(1).ok_or_else(|| E::custom("nested too deep"))?;
        Ok(())
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
        })?;
        Ok(list)
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
