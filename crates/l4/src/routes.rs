//! The kernel's routes of the main table, as `/proc/net` shows them: by which interface an address is reached, and whether a
//! gateway stands between. Only asked while a plan is made or checked; packets ask the kernel itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `RTF_UP`, `RTF_GATEWAY`, `RTF_REJECT`, `RTF_LOCAL` of linux/route.h and linux/ipv6_route.h.
const UP: u32 = 0x1;
const GATEWAY: u32 = 0x2;
const REJECT: u32 = 0x200;
const LOCAL: u32 = 0x8000_0000;

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The interface.
    pub device: String,
    /// Packets go to another machine first.
    pub gateway: bool,
    network: IpAddr,
    prefix: u32,
    metric: u32,
}

/// The routes of this process' network namespace.
#[derive(Clone, Debug, Default)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// Reads them. None of what cannot be read.
    pub fn read() -> Routes {
        let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        Routes::parse(&text("/proc/net/route"), &text("/proc/net/ipv6_route"))
    }

    fn parse(v4: &str, v6: &str) -> Routes {
        Routes(v4.lines().skip(1).filter_map(route4).chain(v6.lines().filter_map(route6)).collect())
    }

    /// The route to an address: the longest prefix, then the least metric.
    pub fn to(&self, address: IpAddr) -> Option<&Route> {
        let fits = self.0.iter().filter(|r| covers(r.network, r.prefix, address));
        fits.max_by_key(|r| (r.prefix, u32::MAX - r.metric))
    }

    /// The route of everything else.
    pub fn default_of(&self, v6: bool) -> Option<&Route> {
        self.0.iter().filter(|r| r.prefix == 0 && r.network.is_ipv6() == v6).min_by_key(|r| r.metric)
    }
}

fn covers(network: IpAddr, prefix: u32, address: IpAddr) -> bool {
    let (network, address, bits) = match (network, address) {
        (IpAddr::V4(n), IpAddr::V4(a)) => (u128::from(u32::from(n)), u128::from(u32::from(a)), 32),
        (IpAddr::V6(n), IpAddr::V6(a)) => (u128::from(n), u128::from(a), 128),
        _ => return false,
    };
    let shift = bits - prefix.min(bits);
    shift >= 128 || network >> shift == address >> shift
}

/// `eth0 0000090A 00000000 0001 0 0 0 00FFFFFF 0 0 0`: addresses as the machine has them in memory.
fn route4(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [device, network, _, flags, _, _, metric, mask, ..] = words.as_slice() else { return None };
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let flags = hex(flags)?;
    (flags & UP != 0 && flags & REJECT == 0).then_some(())?;
    Some(Route {
        device: (*device).to_owned(),
        gateway: flags & GATEWAY != 0,
        network: Ipv4Addr::from(hex(network)?.to_ne_bytes()).into(),
        prefix: u32::from_be_bytes(hex(mask)?.to_ne_bytes()).leading_ones(),
        metric: metric.parse().ok()?,
    })
}

/// Network, prefix, source, its prefix, next hop, metric, references, uses, flags, interface.
fn route6(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [network, prefix, _, _, _, metric, _, _, flags, device] = words.as_slice() else { return None };
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let flags = hex(flags)?;
    (flags & UP != 0 && flags & (REJECT | LOCAL) == 0).then_some(())?;
    Some(Route {
        device: (*device).to_owned(),
        gateway: flags & GATEWAY != 0,
        network: Ipv6Addr::from(u128::from_str_radix(network, 16).ok()?).into(),
        prefix: hex(prefix)?,
        metric: hex(metric)?,
    })
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    const V4: &str = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
front\t00000000\tFE00090A\t0003\t0\t0\t0\t00000000\t0\t0\t0
front\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
back\t0001090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";
    const V6: &str = "\
fd000009000100000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     back
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000009000000000000000000000254 00000400 00000001 00000000 00000003    front
fd000009000900000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

    #[test]
    fn the_longest_prefix_is_the_route() {
        let routes = Routes::parse(V4, V6);
        let to = |text: &str| routes.to(text.parse().unwrap()).map(|r| (r.device.as_str(), r.gateway));
        assert_eq!(to("10.9.1.2"), Some(("back", false)));
        assert_eq!(to("10.9.0.7"), Some(("front", false)));
        assert_eq!(to("10.9.9.1"), Some(("front", true)));
        assert_eq!(to("fd00:9:1::2"), Some(("back", false)));
        assert_eq!(to("fd00:9:9::1"), Some(("front", true)));
        assert_eq!(routes.default_of(true).unwrap().device, "front");
        assert_eq!(Routes::parse("", "").to("::1".parse().unwrap()), None);
    }
}
