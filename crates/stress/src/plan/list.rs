//! Requests from a file: `--url-file` and `--har`.

use super::request::Wanted;
use super::url::{Url, parse};
use crate::options::Files;
use serde_json::Value;
use std::path::Path;

/// Requests in one run: each is kept as bytes.
const MAX_REQUESTS: usize = 1_000_000;
/// Headers of a recording that belong to its own connection, or that the tool writes itself.
const NOT_REPLAYED: &[&str] =
    &["host", "connection", "content-length", "transfer-encoding", "keep-alive", "te", "upgrade"];

/// Reads `[METHOD] URL-or-path` lines. Blank lines and those with `#` first are skipped. `url` is the command line's.
///
/// # Errors
/// A sentence for the user.
pub fn url_file(files: &Files, path: &Path, url: Option<&Url>) -> Result<(Url, Vec<Wanted>), String> {
    let text = files.read_text(path)?;
    let mut target = url.cloned();
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |problem: &str| format!("{}:{}: {problem}", path.display(), number + 1);
        let (method, place) = match line.split_once([' ', '\t']) {
            Some((method, place)) => (Some(method.to_owned()), place.trim()),
            None => (None, line),
        };
        let path = if place.starts_with('/') {
            place.to_owned()
        } else {
            let own = parse(place).map_err(|e| wrong(&e))?;
            let target = target.get_or_insert_with(|| own.clone());
            if !same_origin(target, &own) {
                return Err(wrong(&format!("another host than {}; one run has one target", target.authority)));
            }
            own.path
        };
        if list.len() == MAX_REQUESTS {
            return Err(wrong(&format!("more than {MAX_REQUESTS} lines")));
        }
        list.push(Wanted { method, path, ..Wanted::default() });
    }
    let target = target.ok_or_else(|| format!("{}: paths alone need a URL on the command line", path.display()))?;
    if list.is_empty() { Err(format!("{}: no URL in it", path.display())) } else { Ok((target, list)) }
}

/// Reads a HAR file (HTTP Archive 1.2): the requests to `url`'s host, or to the first one's, and how many went elsewhere.
///
/// # Errors
/// A sentence for the user.
pub fn har(files: &Files, path: &Path, url: Option<&Url>) -> Result<(Url, Vec<Wanted>, usize), String> {
    let wrong = |problem: String| format!("{}: {problem}", path.display());
    let text = files.read(path)?;
    let har: Value = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    let entries = har["log"]["entries"].as_array().ok_or_else(|| wrong("no log.entries: not a HAR file".into()))?;
    let mut target = url.cloned();
    let (mut list, mut elsewhere) = (Vec::new(), 0);
    for request in entries.iter().map(|e| &e["request"]).take(MAX_REQUESTS) {
        let Some(own) = request["url"].as_str().and_then(|u| parse(u).ok()) else {
            elsewhere += 1;
            continue;
        };
        if same_origin(target.get_or_insert_with(|| own.clone()), &own) {
            list.push(recorded(request, own.path));
        } else {
            elsewhere += 1;
        }
    }
    match target {
        Some(target) if !list.is_empty() => Ok((target, list, elsewhere)),
        _ => Err(wrong("no request to the target in it".into())),
    }
}

fn recorded(request: &Value, path: String) -> Wanted {
    let headers = request["headers"].as_array().map_or(&[][..], Vec::as_slice);
    let headers = headers.iter().filter_map(|h| Some((h["name"].as_str()?, h["value"].as_str()?)));
    let replayed = |name: &str| {
        let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b':');
        plain && !NOT_REPLAYED.iter().any(|n| n.eq_ignore_ascii_case(name))
    };
    let headers = headers.filter(|(name, value)| replayed(name) && !value.contains(['\r', '\n']));
    Wanted {
        method: request["method"].as_str().filter(|m| m.bytes().all(|b| b.is_ascii_alphabetic())).map(str::to_owned),
        path,
        headers: headers.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
        body: request["postData"]["text"].as_str().map(|t| t.as_bytes().to_vec()),
    }
}

fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme == b.scheme && a.port == b.port && a.host.eq_ignore_ascii_case(&b.host)
}
