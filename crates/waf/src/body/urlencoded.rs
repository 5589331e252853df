//! `application/x-www-form-urlencoded`, in bodies and in query strings.

use crate::transform::url_decode;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// A `%` without two digits.
    pub invalid: bool,
    /// There were more arguments than allowed; those behind were not looked at.
    pub too_many: bool,
}

/// Gives each name and value, decoded. An argument without `=` has an empty value.
pub(crate) fn parse(text: &[u8], separator: u8, limit: usize, mut argument: impl FnMut(&[u8], &[u8])) -> Found {
    let mut found = Found::default();
    let (mut name, mut value) = (Vec::new(), Vec::new());
    for (count, pair) in text.split(|b| *b == separator).filter(|p| !p.is_empty()).enumerate() {
        if count == limit {
            found.too_many = true;
            break;
        }
        let at = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        let raw_name = &pair[..at];
        let raw_value = &pair[(at + 1).min(pair.len())..];
        let mut decode = |raw, buffer| {
            let decoded = url_decode(raw, false, None, buffer);
            found.invalid |= decoded.invalid;
            decoded.changed
        };
        name.clear();
        value.clear();
        let name_changed = decode(raw_name, &mut name);
        let value_changed = decode(raw_value, &mut value);
        argument(if name_changed { &name } else { raw_name }, if value_changed { &value } else { raw_value });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, limit: usize) -> (Vec<(String, String)>, Found) {
        let mut list = Vec::new();
        let found = parse(text.as_bytes(), b'&', limit, |n, v| {
            list.push((String::from_utf8_lossy(n).into_owned(), String::from_utf8_lossy(v).into_owned()));
        });
        (list, found)
    }

    #[test]
    fn pairs_are_decoded() {
        let (list, found) = all("a=1&b+c=%41%zz&&d&=e", 10);
        let expected = [("a", "1"), ("b c", "A%zz"), ("d", ""), ("", "e")];
        assert_eq!(list, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
        assert_eq!(found, Found { invalid: true, too_many: false });
    }

    #[test]
    fn more_than_the_limit_is_said() {
        let (list, found) = all("a&b&c", 2);
        assert_eq!((list.len(), found.too_many), (2, true));
    }
}
