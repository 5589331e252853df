//! The urls of `proxy_pass`, taken apart.

/// A url in parts.
#[derive(Clone, Debug)]
pub(super) struct Url {
    /// `host:port`, the name of a group, `unix:/path`.
    pub(super) target: String,
    /// What `Host` and `$proxy_host` say.
    pub(super) host: String,
    pub(super) port: String,
    /// Path and arguments, perhaps nothing.
    pub(super) uri: Vec<u8>,
    pub(super) full: String,
    /// `https://`
    pub(super) secure: bool,
}

impl Url {
    /// The port of a host that has none.
    pub(super) fn default_port(&self) -> u16 {
        if self.secure { 443 } else { 80 }
    }
}

/// `http://host[:port][/uri]`, `http://unix:/path:[/uri]`, and the same with `https`.
pub(super) fn parse_url(text: &[u8]) -> Result<Url, String> {
    let full = String::from_utf8_lossy(text).into_owned();
    let after = |prefix: &str| {
        let start = text.get(..prefix.len()).filter(|p| p.eq_ignore_ascii_case(prefix.as_bytes()));
        start.map(|_| &text[prefix.len()..])
    };
    let secure = after("https://").is_some();
    let rest = after("http://").or(after("https://")).ok_or("invalid URL prefix")?;
    if rest.starts_with(b"unix:") {
        let path_end = memchr::memchr(b':', &rest[5..]).map_or(rest.len(), |i| i + 5);
        let target = String::from_utf8_lossy(&rest[..path_end]).into_owned();
        let uri = rest.get(path_end + 1..).unwrap_or_default().to_vec();
        return Ok(Url { target, host: "localhost".into(), port: String::new(), uri, full, secure });
    }
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    let target = String::from_utf8_lossy(&rest[..end]).into_owned();
    if target.is_empty() {
        return Err(format!("no host in upstream \"{}\"", String::from_utf8_lossy(rest)));
    }
    let mut uri = rest[end..].to_vec();
    if uri.first() == Some(&b'?') {
        uri.insert(0, b'/');
    }
    let port_at = if target.starts_with('[') { target.find("]:").map(|i| i + 1) } else { target.rfind(':') };
    let (host, port) = match port_at {
        Some(i) => {
            let port = &target[i + 1..];
            if port.parse::<u16>().ok().filter(|p| *p > 0).is_none() {
                return Err(format!("invalid port in upstream \"{}\"", String::from_utf8_lossy(rest)));
            }
            let usual = if secure { "443" } else { "80" };
            let host = if port == usual { target[..i].to_owned() } else { target.clone() };
            (host, port.to_owned())
        }
        None => (target.clone(), if secure { "443" } else { "80" }.to_owned()),
    };
    Ok(Url { target, host, port, uri, full, secure })
}
