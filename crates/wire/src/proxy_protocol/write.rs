//! Writes PROXY protocol headers, for `proxy_protocol on` towards an upstream.

use super::{SIGNATURE, TLV_CRC32C, TLV_SSL, V2_FIXED};
use crate::encoding::crc32c;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Appends a version 1 header. `None`: the client has no IP address (a Unix socket), and the header says `UNKNOWN`.
pub fn write_v1(connection: Option<(SocketAddr, SocketAddr)>, out: &mut Vec<u8>) {
    let Some((client, local)) = connection else {
        out.extend_from_slice(b"PROXY UNKNOWN\r\n");
        return;
    };
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (client.ip(), local.ip());
    write!(out, "PROXY {family} {from} {to} {} {}\r\n", client.port(), local.port()).expect("a Vec takes every write");
}

/// What a version 2 header says of the client's TLS.
#[derive(Clone, Copy, Debug)]
pub struct SslInfo<'a> {
    /// 1 for TLS, 2 a certificate on this connection, 4 a certificate in this session, added up.
    pub client: u8,
    /// 0 if the certificate was verified, else the reason.
    pub verify: u32,
    /// Records such as version and cipher: type and value.
    pub records: &'a [(u8, &'a [u8])],
}

/// Appends a version 2 header for a stream, with a checksum. `None`: a local connection without addresses.
///
/// Two addresses of different families are written as IPv6, two mapped IPv4 addresses as IPv4, as in nginx. A record that
/// does not fit the protocol's 65535 bytes is left out.
pub fn write_v2(
    connection: Option<(SocketAddr, SocketAddr)>,
    records: &[(u8, &[u8])],
    ssl: Option<SslInfo<'_>>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.extend_from_slice(SIGNATURE);
    match connection {
        Some((client, local)) => write_addresses(client, local, out),
        None => out.extend_from_slice(&[0x20, 0x00, 0, 0]),
    }
    for &(kind, value) in records {
        write_record(kind, value, start, out);
    }
    if let Some(ssl) = ssl {
        let mut value = vec![ssl.client];
        value.extend_from_slice(&ssl.verify.to_be_bytes());
        for &(kind, record) in ssl.records {
            write_record(kind, record, 0, &mut value);
        }
        write_record(TLV_SSL, &value, start, out);
    }
    // The checksum covers the whole header, with zeros in its own place.
    out.extend_from_slice(&[TLV_CRC32C, 0, 4, 0, 0, 0, 0]);
    let len = (out.len() - start - V2_FIXED) as u16;
    out[start + 14..start + V2_FIXED].copy_from_slice(&len.to_be_bytes());
    let checksum = crc32c(&out[start..]).to_be_bytes();
    let place = out.len() - checksum.len();
    out[place..].copy_from_slice(&checksum);
}

fn write_addresses(client: SocketAddr, local: SocketAddr, out: &mut Vec<u8>) {
    const PROXY_COMMAND: u8 = 0x21;
    const TCP4: u8 = 0x11;
    const TCP6: u8 = 0x21;
    match (client.ip().to_canonical(), local.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&[PROXY_COMMAND, TCP4, 0, 0]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        _ => {
            out.extend_from_slice(&[PROXY_COMMAND, TCP6, 0, 0]);
            out.extend_from_slice(&mapped(client.ip()).octets());
            out.extend_from_slice(&mapped(local.ip()).octets());
        }
    }
    out.extend_from_slice(&client.port().to_be_bytes());
    out.extend_from_slice(&local.port().to_be_bytes());
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn write_record(kind: u8, value: &[u8], start: usize, out: &mut Vec<u8>) {
    /// Room for the checksum, which is always written.
    const CHECKSUM: usize = 7;
    let whole = out.len() - start + 3 + value.len() + CHECKSUM;
    if let (Ok(len), true) = (u16::try_from(value.len()), whole <= usize::from(u16::MAX)) {
        out.push(kind);
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(value);
    }
}
