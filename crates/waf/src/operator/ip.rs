//! `@ipMatch`: addresses and networks.

use std::net::IpAddr;

/// A set of networks.
#[derive(Clone, Debug, Default)]
pub(crate) struct IpSet(Vec<(u128, u128)>);

/// An address as a number; IPv4 is mapped into IPv6.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

impl IpSet {
    /// Adds `address` or `address/bits`. None: it is neither.
    pub(crate) fn add(&mut self, text: &str) -> Option<()> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(width);
        if bits > width {
            return None;
        }
        let free = width - bits;
        let mask = if free == 128 { 0 } else { u128::MAX << free };
        self.0.push((number(address) & mask, mask));
        Some(())
    }

    /// Whether a text is an address of the set.
    pub(crate) fn contains(&self, text: &[u8]) -> bool {
        let address = std::str::from_utf8(text).ok().and_then(|t| t.trim().parse().ok());
        address.is_some_and(|a| self.0.iter().any(|(net, mask)| number(a) & mask == *net))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses() {
        let mut set = IpSet::default();
        for text in ["10.0.0.0/8", "127.0.0.1", "::1", "2001:db8::/32"] {
            set.add(text).unwrap();
        }
        assert!(set.add("10.0.0.0/33").is_none() && set.add("x").is_none());
        for (text, inside) in [("10.9.8.7", true), ("127.0.0.1", true), ("127.0.0.2", false), ("2001:db8:1::", true)] {
            assert_eq!(set.contains(text.as_bytes()), inside, "{text}");
        }
        assert!(set.contains(b"::1") && !set.contains(b"::2") && !set.contains(b"nonsense"));
    }
}
