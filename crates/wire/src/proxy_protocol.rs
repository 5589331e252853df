//! The PROXY protocol: what a balancer in front says about its client, before the client's first byte.
//!
//! Reads and writes versions 1 and 2, with nginx's rules (`ngx_proxy_protocol_read`) but for one: a header may arrive
//! in pieces.

mod write;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use write::{SslInfo, write_v1, write_v2};

/// The longest header that is read, in bytes, as in nginx. More is refused: nobody sends that, and it is held per
/// connection before anything is known of the client.
pub const MAX_HEADER: usize = 4096;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a version 2 header before the addresses.
const V2_FIXED: usize = 16;

/// How far the header was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed; call again with a longer buffer that begins with the same bytes.
    Partial,
    /// The header is the first `len` bytes.
    Complete {
        /// Bytes of the header.
        len: usize,
        /// What it says; nothing if it is `UNKNOWN`, local, or of a kind that is passed over.
        header: Option<Header>,
    },
}

/// What a balancer says about its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client.
    pub source: Address,
    /// Where it connected to.
    pub destination: Address,
    /// The client's port.
    pub source_port: u16,
    /// The port it connected to.
    pub destination_port: u16,
    /// What else is said; empty in version 1.
    pub tlvs: Tlvs,
}

/// An address, printed as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address in its usual spelling.
    Ip(IpAddr),
    /// What version 1 said, if it is spelled in another way or, as nginx does not check, is none at all.
    Text(Box<str>),
}

impl Address {
    /// The address, if it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(ip) => Some(*ip),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Why a header is refused. The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// Not a PROXY protocol header: `broken header: "..."`, with [`quoted_part`] of the bytes.
    Broken,
    /// A version other than 2 after the signature of version 2: `unknown PROXY protocol version: N`.
    UnknownVersion(u8),
    /// Longer than [`MAX_HEADER`]: `header is too large`.
    TooLarge,
    /// Version 2 with less room than its addresses need. nginx closes and logs nothing.
    ShortAddresses,
}

/// What nginx quotes of a broken header: the bytes up to the first line end.
pub fn quoted_part(buf: &[u8]) -> &[u8] {
    &buf[..memchr::memchr2(b'\r', b'\n', buf).unwrap_or(buf.len())]
}

/// Reads a header from the start of `buf`.
///
/// # Errors
/// See [`ProxyError`]; an error is found as soon as no further bytes could mend it.
pub fn parse(buf: &[u8]) -> Result<Parsed, ProxyError> {
    if starts_alike(buf, SIGNATURE) {
        return if buf.len() < V2_FIXED { Ok(Parsed::Partial) } else { parse_v2(buf) };
    }
    if !starts_alike(buf, b"PROXY ") {
        return Err(ProxyError::Broken);
    }
    match memchr::memchr(b'\n', &buf[..buf.len().min(MAX_HEADER)]) {
        Some(end) => parse_v1(&buf[..=end]).ok_or(ProxyError::Broken),
        None if buf.len() >= MAX_HEADER || !may_be_v1(&buf[6.min(buf.len())..]) => Err(ProxyError::Broken),
        None => Ok(Parsed::Partial),
    }
}

/// Whether `buf` begins with `start`, as far as it goes.
fn starts_alike(buf: &[u8], start: &[u8]) -> bool {
    let common = buf.len().min(start.len());
    buf[..common] == start[..common]
}

/// Whether what follows `PROXY ` can become a line.
fn may_be_v1(rest: &[u8]) -> bool {
    [&b"UNKNOWN"[..], b"TCP4 ", b"TCP6 "].iter().any(|kind| starts_alike(rest, kind))
}

/// A version 1 line, its LF included.
fn parse_v1(line: &[u8]) -> Option<Parsed> {
    let text = line.strip_suffix(b"\r\n")?.strip_prefix(b"PROXY ")?;
    if text.starts_with(b"UNKNOWN") {
        return Some(Parsed::Complete { len: line.len(), header: None });
    }
    let fields = text.strip_prefix(b"TCP4 ").or_else(|| text.strip_prefix(b"TCP6 "))?;
    let mut fields = fields.split(|&byte| byte == b' ');
    let header = Header {
        source: address(fields.next()?)?,
        destination: address(fields.next()?)?,
        source_port: port(fields.next()?)?,
        destination_port: port(fields.next()?)?,
        tlvs: Tlvs::default(),
    };
    fields.next().is_none().then_some(Parsed::Complete { len: line.len(), header: Some(header) })
}

fn address(text: &[u8]) -> Option<Address> {
    if !text.iter().all(|&byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')) {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    Some(match text.parse::<IpAddr>() {
        Ok(ip) if ip.to_string() == text => Address::Ip(ip),
        _ => Address::Text(text.into()),
    })
}

fn port(digits: &[u8]) -> Option<u16> {
    crate::http1::values::parse_content_length(digits)?.try_into().ok()
}

/// A version 2 header of which at least the fixed part is there.
fn parse_v2(buf: &[u8]) -> Result<Parsed, ProxyError> {
    const PROXY_COMMAND: u8 = 1;
    const STREAM: u8 = 1;
    let version = buf[12] >> 4;
    if version != 2 {
        return Err(ProxyError::UnknownVersion(version));
    }
    let len = V2_FIXED + usize::from(u16::from_be_bytes([buf[14], buf[15]]));
    if len > MAX_HEADER {
        return Err(ProxyError::TooLarge);
    }
    let Some(body) = buf.get(V2_FIXED..len) else { return Ok(Parsed::Partial) };
    let [command, family, transport] = [buf[12] & 15, buf[13] >> 4, buf[13] & 15];
    if command != PROXY_COMMAND || transport != STREAM {
        return Ok(Parsed::Complete { len, header: None });
    }
    let header = match family {
        1 => Some(v2_addresses::<4>(body).ok_or(ProxyError::ShortAddresses)?),
        2 => Some(v2_addresses::<16>(body).ok_or(ProxyError::ShortAddresses)?),
        _ => None,
    };
    Ok(Parsed::Complete { len, header })
}

/// Two addresses of `N` bytes, two ports, TLVs.
fn v2_addresses<const N: usize>(body: &[u8]) -> Option<Header> {
    let (source, rest) = body.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let ([source_high, source_low, high, low], tlvs) = rest.split_first_chunk::<4>()?;
    Some(Header {
        source: Address::Ip(ip(source)?),
        destination: Address::Ip(ip(destination)?),
        source_port: u16::from_be_bytes([*source_high, *source_low]),
        destination_port: u16::from_be_bytes([*high, *low]),
        tlvs: Tlvs(tlvs.into()),
    })
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| Ipv4Addr::from(octets).into());
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|octets| Ipv6Addr::from(octets).into())).ok()
}

/// Type-length-value records of a version 2 header, not yet checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tlvs(pub Box<[u8]>);

/// The value of a TLV variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlvValue<'a> {
    /// The bytes of the record.
    Bytes(&'a [u8]),
    /// `ssl_verify`, printed as a decimal number.
    Number(u32),
}

/// Why a TLV variable has no value. All but [`TlvError::ShortSsl`] are logged as errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlvError {
    /// A record reaches behind the end: `broken PROXY protocol TLV`.
    Broken,
    /// The SSL record is too short for its fixed fields. nginx logs nothing.
    ShortSsl,
    /// `0x` without hexadecimal digits: `invalid PROXY protocol TLV "NAME"`.
    InvalidName,
    /// No such name: `unknown PROXY protocol TLV "NAME"`.
    UnknownName,
}

const TLV_ALPN: u8 = 0x01;
const TLV_AUTHORITY: u8 = 0x02;
const TLV_CRC32C: u8 = 0x03;
const TLV_UNIQUE_ID: u8 = 0x05;
const TLV_SSL: u8 = 0x20;
const TLV_NETNS: u8 = 0x30;

impl Tlvs {
    /// The value of `$proxy_protocol_tlv_NAME`: a name such as `alpn` or `ssl_cn`, or a type such as `0xea` or `ssl_0x21`.
    /// Nothing if the record is not there.
    ///
    /// # Errors
    /// See [`TlvError`].
    pub fn lookup(&self, name: &[u8]) -> Result<Option<TlvValue<'_>>, TlvError> {
        let Some(ssl_name) = name.strip_prefix(b"ssl_") else {
            let kind = type_of(name, |name| match name {
                b"alpn" => Some(TLV_ALPN),
                b"authority" => Some(TLV_AUTHORITY),
                b"unique_id" => Some(TLV_UNIQUE_ID),
                b"ssl" => Some(TLV_SSL),
                b"netns" => Some(TLV_NETNS),
                _ => None,
            })?;
            return Ok(find(&self.0, kind)?.map(TlvValue::Bytes));
        };
        let Some(ssl) = find(&self.0, TLV_SSL.into())? else { return Ok(None) };
        let ([_client, verify @ ..], records) = ssl.split_first_chunk::<5>().ok_or(TlvError::ShortSsl)?;
        if ssl_name == b"verify" {
            return Ok(Some(TlvValue::Number(u32::from_be_bytes(*verify))));
        }
        let kind = type_of(ssl_name, |name| match name {
            b"version" => Some(0x21),
            b"cn" => Some(0x22),
            b"cipher" => Some(0x23),
            b"sig_alg" => Some(0x24),
            b"key_alg" => Some(0x25),
            _ => None,
        })?;
        Ok(find(records, kind)?.map(TlvValue::Bytes))
    }
}

/// The type a name stands for. More than a byte is possible, and then found nowhere.
fn type_of(name: &[u8], known: impl Fn(&[u8]) -> Option<u8>) -> Result<u64, TlvError> {
    if let Some(digits) = name.strip_prefix(b"0x") {
        let digits = std::str::from_utf8(digits).map_err(|_| TlvError::InvalidName)?;
        if digits.starts_with('+') {
            return Err(TlvError::InvalidName);
        }
        return u64::from_str_radix(digits, 16).map_err(|_| TlvError::InvalidName);
    }
    known(name).map(u64::from).ok_or(TlvError::UnknownName)
}

fn find(records: &[u8], kind: u64) -> Result<Option<&[u8]>, TlvError> {
    let mut rest = records;
    while !rest.is_empty() {
        let ([found, high, low], tail) = rest.split_first_chunk::<3>().ok_or(TlvError::Broken)?;
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, tail) = tail.split_at_checked(len).ok_or(TlvError::Broken)?;
        if u64::from(*found) == kind {
            return Ok(Some(value));
        }
        rest = tail;
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
