//! Reads single values of options: times, rates, counts, stages, address ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Addresses that one `--source` may stand for: more than any machine has, few enough for a list.
const MAX_SOURCES: u32 = 65_536;

/// A part of a run at one rate, or rising or falling from one to another in a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// How long.
    pub duration: Duration,
    /// Requests a second at its start.
    pub from: f64,
    /// Requests a second at its end.
    pub to: f64,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    first: IpAddr,
    count: u32,
}

impl Cidr {
    /// All of them, in order.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        (0..self.count).map(move |i| match self.first {
            IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits().wrapping_add(i))),
            IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits().wrapping_add(u128::from(i)))),
        })
    }
}

/// `500ms`, `5s`, `1m`, `2h`, `10us`; without a unit, seconds.
///
/// # Errors
/// A sentence for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| "not a time, such as 500ms, 10s, 5m".to_owned())?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("\"{unit}\" is no unit of time: us, ms, s, m, h")),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "too long a time".to_owned())
}

/// A whole number, with wrk's `k`, `M`, `G` if need be.
///
/// # Errors
/// A sentence for the user.
pub fn count(text: &str) -> Result<u64, String> {
    let value = scaled(text)?;
    if value.fract() != 0.0 || value > 1e15 { Err("not a whole number".to_owned()) } else { Ok(value as u64) }
}

/// Events a second: `1000`, `2.5k`, `1000/s`.
///
/// # Errors
/// A sentence for the user.
pub fn rate(text: &str) -> Result<f64, String> {
    let value = scaled(text.strip_suffix("/s").unwrap_or(text))?;
    if value > 0.0 && value <= 1e9 { Ok(value) } else { Err("a rate is above 0 and at most 1000M".to_owned()) }
}

fn scaled(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        Some(b'G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = number.parse::<f64>().ok().filter(|_| plain);
    number.map(|n| n * factor).ok_or_else(|| "not a number".to_owned())
}

/// `10s:1000,1m:5000,30s:1000-5000`: the second is a step, the third a ramp.
///
/// # Errors
/// A sentence for the user.
pub fn stages(text: &str) -> Result<Vec<Stage>, String> {
    let stage = |part: &str| {
        let (time, rates) = part.split_once(':').ok_or_else(|| format!("\"{part}\" is not TIME:RATE"))?;
        let (from, to) = match rates.split_once('-') {
            Some((from, to)) => (rate_or_zero(from)?, rate_or_zero(to)?),
            None => (rate_or_zero(rates)?, rate_or_zero(rates)?),
        };
        Ok(Stage { duration: duration(time)?, from, to })
    };
    text.split(',').map(stage).collect()
}

/// A stage may be a pause.
fn rate_or_zero(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { rate(text) }
}

/// `127.0.1.0/26`, or one address.
///
/// # Errors
/// A sentence for the user.
pub fn cidr(text: &str) -> Result<Cidr, String> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let address: IpAddr = address.parse().map_err(|_| "not an address, such as 127.0.1.0/26".to_owned())?;
    let width: u32 = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(width), |b| b.parse().map_err(|_| "not a prefix length".to_owned()))?;
    let host = width.checked_sub(bits).ok_or_else(|| format!("a prefix length is at most {width}"))?;
    let count = 1_u32.checked_shl(host).filter(|&c| c <= MAX_SOURCES && host < 32);
    let count = count.ok_or_else(|| format!("more than {MAX_SOURCES} addresses"))?;
    let first = match address {
        IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & !(count - 1))),
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & !u128::from(count - 1))),
    };
    Ok(Cidr { first, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_counts_and_rates() {
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250us"), Ok(Duration::from_micros(250)));
        assert!(duration("5x").is_err() && duration("").is_err() && duration("-1s").is_err());
        assert_eq!((count("2k"), count("7")), (Ok(2000), Ok(7)));
        assert!(count("1.5").is_err() && count("inf").is_err() && count("k").is_err());
        assert_eq!((rate("2.5k/s"), rate("0").is_err()), (Ok(2500.0), true));
    }

    #[test]
    fn a_step_and_a_ramp() {
        let list = stages("10s:1000,1m:0-5k").unwrap();
        assert_eq!(list[0], Stage { duration: Duration::from_secs(10), from: 1000.0, to: 1000.0 });
        assert_eq!(list[1], Stage { duration: Duration::from_secs(60), from: 0.0, to: 5000.0 });
        assert!(stages("10s").is_err() && stages("10s:x").is_err());
    }

    #[test]
    fn ranges_of_addresses() {
        let list: Vec<IpAddr> = cidr("127.0.1.9/30").unwrap().addresses().collect();
        assert_eq!(list, [8, 9, 10, 11].map(|n| IpAddr::from([127, 0, 1, n])));
        assert_eq!(cidr("::1").unwrap().addresses().count(), 1);
        assert!(cidr("10.0.0.0/8").is_err() && cidr("10.0.0.0/33").is_err() && cidr("::/0").is_err());
    }
}
