//! Takes a URL apart, as far as a load tool needs it.

/// The longest URL; servers refuse far shorter ones.
const MAX_URL: usize = 64 * 1024;

/// What a URL's beginning says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `http`
    Http,
    /// `https`
    Https,
    /// `ws`
    Ws,
    /// `wss`
    Wss,
    /// `mqtt`
    Mqtt,
    /// `mqtts`
    Mqtts,
}

impl Scheme {
    /// Whether TLS is spoken.
    pub fn is_encrypted(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Wss | Scheme::Mqtts)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Ws => "ws",
            Scheme::Wss => "wss",
            Scheme::Mqtt => "mqtt",
            Scheme::Mqtts => "mqtts",
        }
    }

    fn port(self) -> u16 {
        match self {
            Scheme::Http | Scheme::Ws => 80,
            Scheme::Https | Scheme::Wss => 443,
            Scheme::Mqtt => 1883,
            Scheme::Mqtts => 8883,
        }
    }
}

/// A URL in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Its scheme.
    pub scheme: Scheme,
    /// The host, without brackets.
    pub host: String,
    /// The port, the scheme's own if none is written.
    pub port: u16,
    /// Host and port as a `Host` header has them.
    pub authority: String,
    /// Path and query, at least `/`.
    pub path: String,
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme.name(), self.authority, self.path)
    }
}

/// Takes one apart.
///
/// # Errors
/// A sentence for the user.
pub fn parse(text: &str) -> Result<Url, String> {
    if text.len() > MAX_URL || text.contains(|c: char| c <= ' ' || c == '\x7f') {
        return Err("a URL without blanks, please".to_owned());
    }
    let (scheme, rest) = match text.split_once("://") {
        Some(parts) => parts,
        None if is_address(text) => ("http", text),
        None => return Err("not a URL: http://host:port/path".to_owned()),
    };
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        "ws" => Scheme::Ws,
        "wss" => Scheme::Wss,
        "mqtt" => Scheme::Mqtt,
        "mqtts" => Scheme::Mqtts,
        other => return Err(format!("{other}:// is not known: http, https, ws, wss, mqtt, mqtts")),
    };
    let rest = rest.split('#').next().unwrap_or(rest);
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = authority.rsplit('@').next().unwrap_or(authority);
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, after) = v6.split_once(']').ok_or("a bracket is not closed")?;
            (host, after.strip_prefix(':'))
        }
        None => authority.split_once(':').map_or((authority, None), |(h, p)| (h, Some(p))),
    };
    if host.is_empty() {
        return Err("no host in the URL".to_owned());
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|&p| p > 0).ok_or_else(|| format!("\"{port}\" is not a port"))?,
        None => scheme.port(),
    };
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok(Url { scheme, host: host.to_owned(), port, authority: authority.to_owned(), path })
}

/// Whether a text without a scheme begins with an address, or with a host and its port: HTTP is meant.
fn is_address(text: &str) -> bool {
    let authority = text.split(['/', '?', '#']).next().unwrap_or_default();
    let has_port =
        authority.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    has_port || authority.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let u = parse("http://a.b:81/c?d#e").unwrap();
        assert_eq!((u.host.as_str(), u.port, u.authority.as_str(), u.path.as_str()), ("a.b", 81, "a.b:81", "/c?d"));
        let u = parse("127.0.0.1:80/x").unwrap();
        assert_eq!((u.to_string().as_str(), u.port), ("http://127.0.0.1:80/x", 80));
        let u = parse("https://[::1]?x").unwrap();
        assert_eq!((u.host.as_str(), u.port, u.authority.as_str(), u.path.as_str()), ("::1", 443, "[::1]", "/?x"));
        assert!(
            ["h", "ftp://h/", "http://", "http://h:0/", "http://h:99999/", "http://h/ x", "http://[::1/"]
                .iter()
                .all(|u| parse(u).is_err())
        );
    }
}
