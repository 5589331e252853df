//! Networks as directives name them: `10.0.0.0/8`, `2001:db8::/32`, a single address, `unix:`.

use crate::connection::address::Address;
use conf::Node;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cidr {
    /// IPv4: the first address and the length of the prefix.
    V4(u32, u8),
    /// IPv6: the same.
    V6(u128, u8),
    /// Clients of unix sockets.
    Unix,
}

/// An address as networks and tables see it: IPv6 addresses that stand for IPv4 ones are those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// IPv4.
    V4(u32),
    /// IPv6.
    V6(u128),
    /// A unix socket.
    Unix,
}

impl Plain {
    /// The address of a client.
    pub fn of(address: &Address) -> Plain {
        match address {
            Address::Inet(a) => Plain::of_ip(a.ip()),
            Address::Unix(_) => Plain::Unix,
        }
    }

    /// An IP address.
    pub fn of_ip(ip: IpAddr) -> Plain {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Plain::V4(ip.to_bits()),
            IpAddr::V6(ip) => Plain::V6(ip.to_bits()),
        }
    }
}

impl Cidr {
    /// Reads `address[/prefix]`. The flag says that bits behind the prefix were set; they are dropped.
    pub fn parse(text: &[u8]) -> Option<(Cidr, bool)> {
        let text = std::str::from_utf8(text).ok()?;
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(conf::value::number(length.as_bytes())?)),
            None => (text, None),
        };
        Some(match address.parse::<IpAddr>().ok()? {
            IpAddr::V4(ip) => {
                let length = u8::try_from(length.unwrap_or(32)).ok().filter(|n| *n <= 32)?;
                let bits = ip.to_bits();
                let net = bits & mask4(length);
                (Cidr::V4(net, length), net != bits)
            }
            IpAddr::V6(ip) => {
                let length = u8::try_from(length.unwrap_or(128)).ok().filter(|n| *n <= 128)?;
                let bits = ip.to_bits();
                let net = bits & mask6(length);
                (Cidr::V6(net, length), net != bits)
            }
        })
    }

    /// Reads the word of a directive and warns of meaningless bits.
    pub fn read(problems: &mut Vec<conf::Problem>, node: &Node, text: &[u8]) -> Option<Cidr> {
        let (cidr, dropped) = Cidr::parse(text)?;
        if dropped {
            let text = format!("low address bits of {} are meaningless", String::from_utf8_lossy(text));
            problems.push(node.warning(text));
        }
        Some(cidr)
    }

    /// The network of one address.
    pub fn single(ip: IpAddr) -> Cidr {
        match ip {
            IpAddr::V4(ip) => Cidr::V4(ip.to_bits(), 32),
            IpAddr::V6(ip) => Cidr::V6(ip.to_bits(), 128),
        }
    }

    /// Whether an address is in the network.
    pub fn contains(self, address: Plain) -> bool {
        match (self, address) {
            (Cidr::V4(net, n), Plain::V4(a)) => a & mask4(n) == net,
            (Cidr::V6(net, n), Plain::V6(a)) => a & mask6(n) == net,
            (Cidr::Unix, Plain::Unix) => true,
            _ => false,
        }
    }
}

/// The bits of an IPv4 prefix.
pub fn mask4(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - length as u32).unwrap_or(0)
}

/// The bits of an IPv6 prefix.
pub fn mask6(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - length as u32).unwrap_or(0)
}

/// An address with or without port, as proxies write it: `1.2.3.4:5`, `[::1]:5`, `::1`. No port is 0
/// (`ngx_parse_addr_port`).
pub fn parse_address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, 0));
    }
    let port = |t: &str| conf::value::number(t.as_bytes()).and_then(|n| u16::try_from(n).ok()).filter(|p| *p > 0);
    match text.strip_prefix('[') {
        Some(rest) => {
            let (ip, rest) = rest.split_once(']')?;
            let ip: Ipv6Addr = ip.parse().ok()?;
            let port = if rest.is_empty() { 0 } else { port(rest.strip_prefix(':')?)? };
            Some(SocketAddr::new(ip.into(), port))
        }
        None => {
            let (ip, rest) = text.split_once(':')?;
            Some(SocketAddr::new(ip.parse().ok()?, port(rest)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let net = |t: &str| Cidr::parse(t.as_bytes());
        assert_eq!(net("127.0.0.1"), Some((Cidr::V4(0x7f00_0001, 32), false)));
        assert_eq!(net("127.0.0.1/8"), Some((Cidr::V4(0x7f00_0000, 8), true)));
        assert_eq!(net("0.0.0.0/0"), Some((Cidr::V4(0, 0), false)));
        assert_eq!(net("::/0"), Some((Cidr::V6(0, 0), false)));
        assert_eq!(net("1.2.3.4/33"), None);
        assert_eq!(net("1.2.3.4/"), None);
        assert_eq!(net("name"), None);
        let (all, _) = net("0.0.0.0/0").expect("a network");
        assert!(all.contains(Plain::V4(5)) && !all.contains(Plain::V6(5)) && !all.contains(Plain::Unix));
        let (ten, _) = net("10.0.0.0/8").expect("a network");
        let mapped: IpAddr = "::ffff:10.1.2.3".parse().expect("an address");
        assert!(ten.contains(Plain::of_ip(mapped)));
    }

    #[test]
    fn addresses_of_proxies() {
        let address = |t: &str| parse_address(t.as_bytes()).map(|a| a.to_string());
        assert_eq!(address("1.2.3.4").as_deref(), Some("1.2.3.4:0"));
        assert_eq!(address("1.2.3.4:80").as_deref(), Some("1.2.3.4:80"));
        assert_eq!(address("[::1]:80").as_deref(), Some("[::1]:80"));
        assert_eq!(address("[::1]").as_deref(), Some("[::1]:0"));
        assert_eq!(address("::1").as_deref(), Some("[::1]:0"));
        for bad in ["", "1.2.3.4:0", "1.2.3.4:", "1.2.3.4:65536", "[1.2.3.4]", "[::1]80", "unknown", "a:1"] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }
}
