//! The parameters of the `resolver` directive: `address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]`, and OpenResty's
//! `local=on|off|file`: the servers that the machine itself asks.
//! Read once at load; host names of servers are asked of the system then (blocking). Resolvers are made of it, one a worker thread.

use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

const DNS_PORT: u16 = 53;
/// 68 years; more would overflow the clock and says the same.
const MAX_VALID_S: u64 = i32::MAX as u64;
/// `local=on`
const LOCAL_FILE: &str = "/etc/resolv.conf";
/// Bytes of such a file that are read; real ones have a few hundred.
const MAX_LOCAL_FILE: u64 = 64 * 1024;

/// A checked `resolver` directive.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolverConfig {
    /// Name servers in order, at least one.
    pub servers: Vec<SocketAddr>,
    /// `valid=`: replaces the time to live of answers.
    pub valid: Option<Duration>,
    /// `ipv4=`: look up A records.
    pub ipv4: bool,
    /// `ipv6=`: look up AAAA records.
    pub ipv6: bool,
    /// `status_zone=`: where counters are shown.
    pub status_zone: Option<Vec<u8>>,
}

impl ResolverConfig {
    /// Reads the directive's arguments. The error is nginx's text without file and line. Blocks if a server is a host name.
    pub fn parse(args: &[&[u8]]) -> Result<ResolverConfig, String> {
        let mut config = ResolverConfig { servers: Vec::new(), valid: None, ipv4: true, ipv6: true, status_zone: None };
        for &arg in args {
            let invalid = || format!("invalid parameter: {}", arg.escape_ascii());
            if let Some(value) = arg.strip_prefix(b"valid=") {
                let seconds = parse_seconds(value).ok_or_else(invalid)?;
                // `valid=0` leaves the time to live in force, as in nginx.
                config.valid = (seconds > 0).then(|| Duration::from_secs(seconds.min(MAX_VALID_S)));
            } else if let Some(value) = arg.strip_prefix(b"ipv4=") {
                config.ipv4 = parse_flag(value).ok_or_else(invalid)?;
            } else if let Some(value) = arg.strip_prefix(b"ipv6=") {
                config.ipv6 = parse_flag(value).ok_or_else(invalid)?;
            } else if let Some(value) = arg.strip_prefix(b"local=") {
                match value {
                    b"" => return Err(invalid()),
                    b"on" => config.servers.extend(local_servers(LOCAL_FILE)?),
                    b"off" => {}
                    file => config.servers.extend(local_servers(&String::from_utf8_lossy(file))?),
                }
            } else if let Some(value) = arg.strip_prefix(b"status_zone=") {
                config.status_zone = (!value.is_empty()).then(|| Some(value.to_vec())).ok_or_else(invalid)?;
            } else {
                let servers =
                    parse_server(arg).map_err(|why| format!("{why} in resolver \"{}\"", arg.escape_ascii()))?;
                config.servers.extend(servers);
            }
        }
        if !config.ipv4 && !config.ipv6 {
            return Err("\"ipv4\" and \"ipv6\" cannot both be \"off\"".to_owned());
        }
        if config.servers.is_empty() {
            return Err("no name servers defined".to_owned());
        }
        Ok(config)
    }
}

/// The name servers of a file like `/etc/resolv.conf`. Lines that are no `nameserver` with an address, and addresses with a zone (`fe80::1%eth0`), are
/// passed over.
fn local_servers(path: &str) -> Result<Vec<SocketAddr>, String> {
    let mut text = Vec::new();
    let opened = std::fs::File::open(path);
    opened.and_then(|file| file.take(MAX_LOCAL_FILE).read_to_end(&mut text)).map_err(|e| {
        let why = e.to_string();
        let why = why.split(" (os error").next().unwrap_or_default();
        format!("open() \"{path}\" failed ({}: {why})", e.raw_os_error().unwrap_or_default())
    })?;
    let text = String::from_utf8_lossy(&text);
    let addresses = text.lines().filter_map(|line| line.trim_start().strip_prefix("nameserver"));
    let addresses =
        addresses.filter(|rest| rest.starts_with([' ', '\t'])).filter_map(|rest| rest.split_whitespace().next());
    Ok(addresses.filter_map(|a| a.parse().ok()).map(|ip: IpAddr| SocketAddr::new(ip, DNS_PORT)).collect())
}

fn parse_flag(value: &[u8]) -> Option<bool> {
    match value {
        b"on" => Some(true),
        b"off" => Some(false),
        _ => None,
    }
}

/// nginx's time in seconds: `90`, `1m30s`, `1h 30m`; units fall from years to seconds, each once at most.
fn parse_seconds(text: &[u8]) -> Option<u64> {
    const UNITS: [(u8, u64); 7] =
        [(b'y', 31_536_000), (b'M', 2_592_000), (b'w', 604_800), (b'd', 86_400), (b'h', 3_600), (b'm', 60), (b's', 1)];
    let (mut total, mut value, mut next_unit) = (0u64, None::<u64>, 0);
    let mut digits_seen = false;
    for &byte in text {
        match byte {
            b'0'..=b'9' => {
                digits_seen = true;
                value = Some(value.unwrap_or(0).checked_mul(10)?.checked_add(u64::from(byte - b'0'))?);
            }
            b' ' if value.is_none() => {}
            _ => {
                let unit = UNITS.iter().position(|&(letter, _)| letter == byte || (byte == b' ' && letter == b's'))?;
                if unit < next_unit {
                    return None;
                }
                next_unit = unit + 1;
                total = total.checked_add(value.take()?.checked_mul(UNITS[unit].1)?)?;
            }
        }
    }
    digits_seen.then_some(total.checked_add(value.unwrap_or(0))?)
}

/// `host`, `host:port`, `1.2.3.4`, `[::1]:53`. The error is the reason alone.
fn parse_server(text: &[u8]) -> Result<Vec<SocketAddr>, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "invalid host")?;
    if let Some(rest) = text.strip_prefix('[') {
        let (host, tail) = rest.split_once(']').ok_or("invalid host")?;
        let port = match tail {
            "" => DNS_PORT,
            tail => parse_port(tail.strip_prefix(':').ok_or("invalid host")?)?,
        };
        if host.is_empty() {
            return Err("no host");
        }
        let ip: Ipv6Addr = host.parse().map_err(|_| "invalid IPv6 address")?;
        return Ok(vec![SocketAddr::new(IpAddr::V6(ip), port)]);
    }
    if text.contains(['/', '?']) || text.starts_with("unix:") {
        return Err("invalid host");
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, parse_port(port)?),
        None => (text, DNS_PORT),
    };
    if host.is_empty() {
        return Err("no host");
    }
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|_| "host not found")?.collect();
    if found.is_empty() { Err("host not found") } else { Ok(found) }
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    match text.parse::<u16>() {
        Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err("invalid port"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<ResolverConfig, String> {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        ResolverConfig::parse(&args)
    }

    #[test]
    fn reads_servers_and_parameters() {
        let config =
            parse(&["127.0.0.1", "127.0.0.2:5353", "[::1]", "[::2]:54", "valid=1m30s", "ipv6=off", "status_zone=z"])
                .unwrap();
        let servers: Vec<String> = config.servers.iter().map(SocketAddr::to_string).collect();
        assert_eq!(servers, ["127.0.0.1:53", "127.0.0.2:5353", "[::1]:53", "[::2]:54"]);
        assert_eq!(config.valid, Some(Duration::from_secs(90)));
        assert!(config.ipv4 && !config.ipv6);
        assert_eq!(config.status_zone.as_deref(), Some(&b"z"[..]));
    }

    #[test]
    fn servers_of_the_machine_are_read_from_its_file() {
        let path = std::env::temp_dir().join(format!("ironweir-resolv-{}", std::process::id()));
        let text = "# nameserver 9.9.9.9\nnameserver 127.0.0.11\n search a.test\n\tnameserver\t::1 # two\nnameservers 1.1.1.1\nnameserver fe80::1%eth0\n\
                    nameserver\noptions ndots:0\n";
        std::fs::write(&path, text).unwrap();
        let local = format!("local={}", path.display());
        let config = parse(&["127.0.0.1:54", &local, "ipv6=off"]).unwrap();
        let servers: Vec<String> = config.servers.iter().map(SocketAddr::to_string).collect();
        assert_eq!(servers, ["127.0.0.1:54", "127.0.0.11:53", "[::1]:53"]);
        std::fs::write(&path, "options ndots:0\n").unwrap();
        assert_eq!(parse(&[&local]).unwrap_err(), "no name servers defined");
        std::fs::remove_file(&path).unwrap();
        let missing = format!("open() \"{}\" failed (2: No such file or directory)", path.display());
        assert_eq!(parse(&[&local]).unwrap_err(), missing);
        assert_eq!(parse(&["local=off"]).unwrap_err(), "no name servers defined");
        assert_eq!(parse(&["127.0.0.1", "local=off"]).unwrap().servers.len(), 1);
        assert_eq!(parse(&["local="]).unwrap_err(), "invalid parameter: local=");
    }

    #[test]
    fn resolves_server_names_at_load() {
        assert!(
            parse(&["localhost:5300"])
                .unwrap()
                .servers
                .iter()
                .all(|server| server.port() == 5300 && server.ip().is_loopback())
        );
        assert_eq!(
            parse(&["no-such-host.invalid"]).unwrap_err(),
            "host not found in resolver \"no-such-host.invalid\""
        );
    }

    #[test]
    fn errors_have_nginx_words() {
        for (args, text) in [
            (&["valid=10s"][..], "no name servers defined"),
            (&["127.0.0.1", "valid=x"], "invalid parameter: valid=x"),
            (&["127.0.0.1", "valid="], "invalid parameter: valid="),
            (&["127.0.0.1", "valid=1s1m"], "invalid parameter: valid=1s1m"),
            (&["127.0.0.1", "ipv6=no"], "invalid parameter: ipv6=no"),
            (&["127.0.0.1", "ipv4=off", "ipv6=off"], "\"ipv4\" and \"ipv6\" cannot both be \"off\""),
            (&["127.0.0.1:0"], "invalid port in resolver \"127.0.0.1:0\""),
            (&["127.0.0.1:99999"], "invalid port in resolver \"127.0.0.1:99999\""),
            (&[":53"], "no host in resolver \":53\""),
            (&["[::1"], "invalid host in resolver \"[::1\""),
            (&["[x]"], "invalid IPv6 address in resolver \"[x]\""),
            (&["127.0.0.1/x"], "invalid host in resolver \"127.0.0.1/x\""),
        ] {
            assert_eq!(parse(args).unwrap_err(), text);
        }
    }

    #[test]
    fn valid_times() {
        for (text, seconds) in [("5", 5), ("1h30m", 5400), ("1y", 31_536_000), ("1m 5", 65), ("0", 0)] {
            assert_eq!(parse_seconds(text.as_bytes()), Some(seconds), "{text}");
        }
        for text in ["", "ms", "1ms", "99999999999999999999", "1m1m", "-1"] {
            assert_eq!(parse_seconds(text.as_bytes()), None, "{text}");
        }
    }
}
