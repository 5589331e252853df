//! Regression tests as go-ftw writes them: YAML to requests and what is expected of them.

use base64::Engine as _;
use yaml_rust2::{Yaml, YamlLoader};

/// One request and what is expected of it.
#[derive(Debug)]
pub(crate) struct Stage {
    /// `921110-3`
    pub(crate) name: String,
    /// The bytes on the wire.
    pub(crate) request: Vec<u8>,
    pub(crate) expect_ids: Vec<u64>,
    pub(crate) no_expect_ids: Vec<u64>,
    pub(crate) match_regex: Option<String>,
    pub(crate) no_match_regex: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) expect_error: bool,
}

/// All stages of a file.
pub(crate) fn stages(text: &str) -> Vec<Stage> {
    let documents = YamlLoader::load_from_str(text).expect("YAML");
    // A file may hold nothing but comments.
    let Some(document) = documents.first() else { return Vec::new() };
    let rule = document["rule_id"].as_i64().expect("a rule id");
    let mut all = Vec::new();
    for test in document["tests"].as_vec().expect("tests") {
        let id = test["test_id"].as_i64().expect("a test id");
        for stage in test["stages"].as_vec().expect("stages") {
            let (input, output) = (&stage["input"], &stage["output"]);
            let log = &output["log"];
            let ids = |y: &Yaml| y.as_vec().map(|v| v.iter().filter_map(Yaml::as_i64).map(|i| i as u64).collect());
            all.push(Stage {
                name: format!("{rule}-{id}"),
                request: request(input),
                expect_ids: ids(&log["expect_ids"]).unwrap_or_default(),
                no_expect_ids: ids(&log["no_expect_ids"]).unwrap_or_default(),
                match_regex: log["match_regex"].as_str().map(str::to_owned),
                no_match_regex: log["no_match_regex"].as_str().map(str::to_owned),
                status: output["status"].as_i64().map(|s| s as u16),
                expect_error: log["expect_error"].as_bool().or(output["expect_error"].as_bool()).unwrap_or(false),
            });
        }
    }
    all
}

/// A request as go-ftw would send it.
fn request(input: &Yaml) -> Vec<u8> {
    if let Some(encoded) = input["encoded_request"].as_str() {
        let plain: String = encoded.chars().filter(|c| !c.is_whitespace()).collect();
        return base64::engine::general_purpose::STANDARD.decode(plain).expect("base64");
    }
    let text = |y: &Yaml, default: &str| match y {
        Yaml::String(s) | Yaml::Real(s) => s.clone(),
        Yaml::Integer(n) => n.to_string(),
        _ => default.to_owned(),
    };
    let method = text(&input["method"], "GET");
    let mut headers: Vec<(String, String)> = Vec::new();
    match &input["headers"] {
        Yaml::Hash(map) => headers.extend(map.iter().map(|(k, v)| (text(k, ""), text(v, "")))),
        Yaml::Array(list) => headers.extend(list.iter().map(|h| (text(&h["name"], ""), text(&h["value"], "")))),
        _ => {}
    }
    let mut data = text(&input["data"], "").into_bytes();
    let complete = input["autocomplete_headers"].as_bool().unwrap_or(true);
    let has = |headers: &[(String, String)], name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    const FORM: &str = "application/x-www-form-urlencoded";
    if !data.is_empty() && complete {
        if !has(&headers, "content-type") {
            headers.push(("Content-Type".to_owned(), FORM.to_owned()));
        }
        if headers.iter().any(|(n, v)| n.eq_ignore_ascii_case("content-type") && v == FORM) {
            data = escaped_form(data);
        }
    }
    if headers.iter().any(|(n, v)| n.eq_ignore_ascii_case("content-type") && v.contains("multipart/form-data;")) {
        data = String::from_utf8_lossy(&data).replace('\n', "\r\n").into_bytes();
    }
    if complete {
        if !has(&headers, "connection") {
            headers.push(("Connection".to_owned(), "close".to_owned()));
        }
        let may_have_body = method.starts_with("POST")
            || method.contains("PUT")
            || method.contains("PATCH")
            || method.ends_with("DELETE");
        if !has(&headers, "content-length") && (!data.is_empty() || may_have_body) {
            headers.push(("Content-Length".to_owned(), data.len().to_string()));
        }
    }
    let uri = text(&input["uri"], "/");
    let version = text(&input["version"], "HTTP/1.1");
    let mut bytes = format!("{method} {uri} {version}\r\n").into_bytes();
    for (name, value) in &headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&data);
    bytes
}

/// A form whose text has nothing to unescape is escaped, name by name.
fn escaped_form(data: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    let mut has_escapes = false;
    while at < data.len() {
        match data[at] {
            b'+' => has_escapes = true,
            b'%' => {
                let digits = data.get(at + 1..at + 3).is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit));
                if !digits {
                    // It cannot be unescaped: it is sent as it is.
                    return data;
                }
                has_escapes = true;
            }
            _ => {}
        }
        at += 1;
    }
    if has_escapes {
        return data;
    }
    let escape = |text: &[u8], out: &mut Vec<u8>| {
        for byte in text {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(*byte),
                b' ' => out.push(b'+'),
                _ => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            }
        }
    };
    let mut out = Vec::new();
    for (index, pair) in data.split(|b| *b == b'&').enumerate() {
        if index > 0 {
            out.push(b'&');
        }
        match pair.iter().position(|b| *b == b'=') {
            Some(at) => {
                escape(&pair[..at], &mut out);
                out.push(b'=');
                escape(&pair[at + 1..], &mut out);
            }
            None => escape(pair, &mut out),
        }
    }
    out
}
