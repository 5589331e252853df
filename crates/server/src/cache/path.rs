//! The parameters of `*_cache_path` (`ngx_http_file_cache_set_slot`).

use crate::zone::store::PAGE;
use conf::{Node, Problem, Word, value};

/// A name has room for so many levels, of one or two digits each.
const MAX_LEVELS: usize = 3;

/// NGINX Plus' pace of purges: files, rest and longest go in ms.
const PURGER: [u64; 3] = [10, 50, 50];

/// What the parameters say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Of the keys zone.
    pub name: Box<[u8]>,
    /// Of the keys zone, in bytes.
    pub size: u64,
    /// Digits of the levels.
    pub levels: Vec<u8>,
    /// Files are written where the module's other temporary files are.
    pub use_temp_path: bool,
    /// Seconds.
    pub inactive: i64,
    /// Bytes.
    pub max_size: u64,
    /// Bytes, 0 for none.
    pub min_free: u64,
    /// Files, rest and longest go in ms.
    pub loader: [u64; 3],
    /// Files, rest and longest go in ms.
    pub manager: [u64; 3],
    /// The same for purges of all that begin alike; none where nobody said how fast: they do not rest.
    pub purger: Option<[u64; 3]>,
}

/// Reads the parameters after the path.
pub fn parse(node: &Node) -> Result<PathSpec, Problem> {
    let pace = [100, 50, 200];
    let mut spec = PathSpec {
        name: Box::default(),
        size: 0,
        levels: Vec::new(),
        use_temp_path: true,
        inactive: 600,
        max_size: i64::MAX as u64,
        min_free: 0,
        loader: pace,
        manager: pace,
        purger: None,
    };
    for word in &node.args[1..] {
        parameter(&mut spec, node, word)?;
    }
    if spec.name.is_empty() || spec.size == 0 {
        return Err(node.problem(format!("\"{}\" must have \"keys_zone\" parameter", node.name.as_str())));
    }
    Ok(spec)
}

fn parameter(spec: &mut PathSpec, node: &Node, word: &Word) -> Result<(), Problem> {
    let shown = word.as_str();
    let unknown = || node.problem(format!("invalid parameter \"{shown}\""));
    let equals = memchr::memchr(b'=', &word.text).ok_or_else(unknown)?;
    let (name, text) = (&word.text[..equals], &word.text[equals + 1..]);
    let known = String::from_utf8_lossy(name);
    let value = |v: Option<u64>| v.ok_or_else(|| node.problem(format!("invalid {known} value \"{shown}\"")));
    match name {
        b"levels" => {
            spec.levels = levels(text).ok_or_else(|| node.problem(format!("invalid \"levels\" \"{shown}\"")))?;
        }
        b"use_temp_path" => {
            let on = match text {
                b"on" => true,
                b"off" => false,
                _ => {
                    let text = format!("invalid use_temp_path value \"{shown}\", it must be \"on\" or \"off\"");
                    return Err(node.problem(text));
                }
            };
            spec.use_temp_path = on;
        }
        b"keys_zone" => keys_zone(spec, node, &shown, text)?,
        b"inactive" => spec.inactive = i64::try_from(value(value::seconds(text))?).unwrap_or(i64::MAX),
        b"max_size" => spec.max_size = value(value::offset(text))?,
        b"min_free" => spec.min_free = value(value::offset(text))?,
        b"loader_files" => spec.loader[0] = value(value::number(text))?,
        b"loader_sleep" => spec.loader[1] = value(value::milliseconds(text))?,
        b"loader_threshold" => spec.loader[2] = value(value::milliseconds(text))?,
        b"manager_files" => spec.manager[0] = value(value::number(text))?,
        b"manager_sleep" => spec.manager[1] = value(value::milliseconds(text))?,
        b"manager_threshold" => spec.manager[2] = value(value::milliseconds(text))?,
        // What is purged is removed from the disk at once; `off` would leave that to the manager.
        b"purger" if matches!(text, b"on" | b"off") => {}
        b"purger_files" => spec.purger.get_or_insert(PURGER)[0] = value(value::number(text))?,
        b"purger_sleep" => spec.purger.get_or_insert(PURGER)[1] = value(value::milliseconds(text))?,
        b"purger_threshold" => spec.purger.get_or_insert(PURGER)[2] = value(value::milliseconds(text))?,
        _ => return Err(unknown()),
    }
    Ok(())
}

fn keys_zone(spec: &mut PathSpec, node: &Node, shown: &str, text: &[u8]) -> Result<(), Problem> {
    let invalid = || node.problem(format!("invalid keys zone size \"{shown}\""));
    let colon = memchr::memchr(b':', text).ok_or_else(invalid)?;
    spec.size = value::size(&text[colon + 1..]).ok_or_else(invalid)?;
    spec.name = text[..colon].into();
    if spec.size < 2 * PAGE as u64 {
        return Err(node.problem(format!("keys zone \"{shown}\" is too small")));
    }
    Ok(())
}

/// `1:2:2`
fn levels(text: &[u8]) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = text.split(|b| *b == b':').collect();
    if parts.len() > MAX_LEVELS {
        return None;
    }
    parts.into_iter().map(|p| matches!(p, b"1" | b"2").then(|| p[0] - b'0')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_one_or_two_digits() {
        assert_eq!(levels(b"1:2:2"), Some(vec![1, 2, 2]));
        assert_eq!(levels(b"2"), Some(vec![2]));
        for bad in ["", "3", "0", "1:", "1:2:2:1", "11", ":1", "1;2"] {
            assert_eq!(levels(bad.as_bytes()), None, "{bad}");
        }
    }
}
