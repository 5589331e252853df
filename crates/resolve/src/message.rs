//! DNS messages on the wire (RFC 1035 section 4): builds queries, reads replies. Knows no socket, clock or cache.
//! Written by hand instead of on `hickory-proto`: nginx's rules on broken replies (what is refused, what only logged, with which
//! words) must hold, and names past 255 bytes and broken additional sections, which a strict library refuses, must pass as they do
//! in nginx. The tests use `hickory-proto` as the independent peer.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Record types that are asked for or understood.
pub(super) mod record_type {
    pub(in super::super) const A: u16 = 1;
    pub(in super::super) const CNAME: u16 = 5;
    pub(in super::super) const PTR: u16 = 12;
    pub(in super::super) const AAAA: u16 = 28;
    pub(in super::super) const SRV: u16 = 33;
    pub(in super::super) const DNAME: u16 = 39;
}

/// Longest name that is asked or read. RFC 1035 ends at 255; nginx sends more, and names of four full labels (257) are in use.
pub(super) const MAX_NAME: usize = 512;
/// Labels and pointers followed in one name before it counts as a loop; nginx's number.
const MAX_LABELS: usize = 128;
/// RFC 1035 section 2.3.4.
const MAX_LABEL: usize = 63;
/// SRV targets used of one reply; a TCP reply could name some 3,000, each of which costs two queries.
pub(super) const MAX_TARGETS: usize = 1024;

const HEADER: usize = 12;
const QUESTION_TAIL: usize = 4;
const RECORD_HEAD: usize = 10;
/// A record cannot be shorter than a compressed name and its head; bounds the announced count.
const SHORTEST_RECORD: usize = 2 + RECORD_HEAD;
const CLASS_IN: u16 = 1;

const SHORT: &str = "short DNS response";

/// How a reply arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// A query for one name, recursion desired; `None` if the name cannot be asked (empty, empty label, too long).
pub(super) fn build_query(ident: u16, name: &[u8], qtype: u16) -> Option<Box<[u8]>> {
    if name.is_empty() || name.len() > MAX_NAME {
        return None;
    }
    let mut query = Vec::with_capacity(HEADER + name.len() + 2 + QUESTION_TAIL);
    query.extend_from_slice(&ident.to_be_bytes());
    query.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split(|&byte| byte == b'.') {
        if label.is_empty() || label.len() > MAX_LABEL {
            return None;
        }
        query.push(label.len() as u8);
        query.extend_from_slice(label);
    }
    query.push(0);
    query.extend_from_slice(&qtype.to_be_bytes());
    query.extend_from_slice(&CLASS_IN.to_be_bytes());
    Some(query.into_boxed_slice())
}

/// The name that is asked for the name of an address: `4.3.2.1.in-addr.arpa`, nibbles under `ip6.arpa` (RFC 3596 section 2.5).
pub(super) fn arpa_name(ip: IpAddr) -> Vec<u8> {
    let mut name = String::new();
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            name = format!("{d}.{c}.{b}.{a}.in-addr.arpa");
        }
        IpAddr::V6(v6) => {
            for octet in v6.octets().iter().rev() {
                name += &format!("{:x}.{:x}.", octet & 0xf, octet >> 4);
            }
            name += "ip6.arpa";
        }
    }
    name.into_bytes()
}

/// Why a message is no reply to anything.
#[derive(Debug, PartialEq)]
pub(super) enum Rejected {
    /// What to log.
    Text(Cow<'static, str>),
    /// The server did not understand the query or answers with an unknown code; the question may be missing.
    Code { code: u16, ident: u16 },
}

impl From<&'static str> for Rejected {
    fn from(text: &'static str) -> Self {
        Rejected::Text(Cow::Borrowed(text))
    }
}

/// A reply whose head and question are sound; its records are not read yet.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    message: &'a [u8],
    pub(super) ident: u16,
    /// Response code, 0 and 2 to 5.
    pub(super) code: u16,
    pub(super) truncated: bool,
    /// The asked name in lower case, labels separated by dots.
    pub(super) question: Vec<u8>,
    pub(super) qtype: u16,
    answers_at: usize,
    /// Announced number of answer records.
    pub(super) answers: usize,
}

/// Addresses of one reply; without addresses, `alias` is the name to ask instead.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AddressRecords {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) alias: Option<Vec<u8>>,
    pub(super) ttl_s: u32,
}

/// One SRV record (RFC 2782); a weight of zero counts as one, as in nginx.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) name: Vec<u8>,
    pub(super) port: u16,
    pub(super) priority: u16,
    pub(super) weight: u16,
}

/// SRV records of one reply, by priority; without any, `alias` is the name to ask instead.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServiceRecords {
    pub(super) targets: Vec<Target>,
    pub(super) alias: Option<Vec<u8>>,
    pub(super) ttl_s: u32,
}

impl<'a> Reply<'a> {
    /// Reads head and question. Source of the checks and of their order: nginx `ngx_resolver_process_response`.
    pub(super) fn parse(message: &'a [u8], transport: Transport) -> Result<Reply<'a>, Rejected> {
        if message.len() < HEADER {
            return Err(SHORT.into());
        }
        let ident = u16_at(message, 0);
        let flags = u16_at(message, 2);
        let truncated = flags & 0x0200 != 0;
        if flags & 0xf870 != 0x8000 || (truncated && transport == Transport::Tcp) {
            let transport = if transport == Transport::Tcp { "TCP" } else { "UDP" };
            return Err(Rejected::Text(format!("invalid {transport} DNS response {ident} fl:{flags:04X}").into()));
        }
        let code = flags & 0xf;
        if code == super::FORMAT_ERROR || code > super::REFUSED {
            return Err(Rejected::Code { code, ident });
        }
        if u16_at(message, 4) != 1 {
            return Err("invalid number of questions in DNS response".into());
        }
        let answers = usize::from(u16_at(message, 6));
        let tail = question_end(message)?;
        let answers_at = tail + QUESTION_TAIL;
        if answers_at + answers * SHORTEST_RECORD > message.len() {
            return Err(SHORT.into());
        }
        let (qtype, class) = (u16_at(message, tail), u16_at(message, tail + 2));
        if class != CLASS_IN {
            return Err(Rejected::Text(format!("unknown query class {class} in DNS response").into()));
        }
        let question = read_name(message, HEADER)?;
        Ok(Reply { message, ident, code, truncated, question, qtype, answers_at, answers })
    }

    /// Addresses and alias of a reply to an A or AAAA query. The error is what to log; `log` takes what is only remarkable.
    pub(super) fn addresses(&self, log: &dyn Fn(&str)) -> Result<AddressRecords, Cow<'static, str>> {
        let mut found = AddressRecords { ttl_s: u32::MAX, ..AddressRecords::default() };
        let mut alias_at = None;
        for record in self.records() {
            let record = record?;
            found.ttl_s = found.ttl_s.min(record.ttl_s);
            match record.kind {
                record_type::A | record_type::AAAA => found.addresses.push(self.address(&record)?),
                record_type::CNAME => alias_at = Some(record.data_at),
                record_type::DNAME => {}
                other => log(&format!("unexpected RR type {other} in DNS response")),
            }
        }
        if found.addresses.is_empty() {
            found.alias = alias_at.map(|at| read_name(self.message, at)).transpose()?;
        }
        Ok(found)
    }

    /// SRV records of a reply, sorted by priority. Errors and `log` as in `addresses`.
    pub(super) fn services(&self, log: &dyn Fn(&str)) -> Result<ServiceRecords, Cow<'static, str>> {
        let mut found = ServiceRecords { ttl_s: u32::MAX, ..ServiceRecords::default() };
        let mut alias_at = None;
        for record in self.records() {
            let record = record?;
            found.ttl_s = found.ttl_s.min(record.ttl_s);
            match record.kind {
                record_type::SRV if found.targets.len() < MAX_TARGETS => found.targets.push(self.target(&record)?),
                record_type::SRV | record_type::DNAME => {}
                record_type::CNAME => alias_at = Some(record.data_at),
                other => log(&format!("unexpected RR type {other} in DNS response")),
            }
        }
        if found.targets.is_empty() {
            found.alias = alias_at.map(|at| read_name(self.message, at)).transpose()?;
        }
        found.targets.sort_by_key(|target| target.priority);
        Ok(found)
    }

    /// The first name of a reply to a PTR query and its time to live in seconds; `None` if there is no PTR record.
    pub(super) fn pointer(&self, log: &dyn Fn(&str)) -> Result<Option<(Vec<u8>, u32)>, Cow<'static, str>> {
        for record in self.records() {
            let record = record?;
            match record.kind {
                record_type::PTR => return Ok(Some((read_name(self.message, record.data_at)?, record.ttl_s))),
                record_type::CNAME => {}
                other => log(&format!("unexpected RR type {other} in DNS response")),
            }
        }
        Ok(None)
    }

    fn records(&self) -> Records<'a> {
        Records { message: self.message, at: self.answers_at, left: self.answers }
    }

    fn address(&self, record: &Record) -> Result<IpAddr, &'static str> {
        let data = &self.message[record.data_at..];
        if record.kind == record_type::A {
            if self.qtype != record_type::A {
                return Err("unexpected A record in DNS response");
            }
            if record.length != 4 {
                return Err("invalid A record in DNS response");
            }
            let octets: [u8; 4] = *data.first_chunk().ok_or(SHORT)?;
            return Ok(IpAddr::V4(Ipv4Addr::from(octets)));
        }
        if self.qtype != record_type::AAAA {
            return Err("unexpected AAAA record in DNS response");
        }
        if record.length != 16 {
            return Err("invalid AAAA record in DNS response");
        }
        let octets: [u8; 16] = *data.first_chunk().ok_or(SHORT)?;
        Ok(IpAddr::V6(Ipv6Addr::from(octets)))
    }

    fn target(&self, record: &Record) -> Result<Target, &'static str> {
        let at = record.data_at;
        if at + 6 >= self.message.len() {
            return Err(SHORT);
        }
        Ok(Target {
            priority: u16_at(self.message, at),
            weight: u16_at(self.message, at + 2).max(1),
            port: u16_at(self.message, at + 4),
            name: read_name(self.message, at + 6)?,
        })
    }
}

/// One answer record; its data is not checked against the message.
struct Record {
    kind: u16,
    ttl_s: u32,
    data_at: usize,
    length: usize,
}

struct Records<'a> {
    message: &'a [u8],
    at: usize,
    left: usize,
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Cow<'static, str>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let record = self.read();
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }
}

impl Records<'_> {
    fn read(&mut self) -> Result<Record, Cow<'static, str>> {
        let at = skip_name(self.message, self.at)?;
        if at + RECORD_HEAD >= self.message.len() {
            return Err(SHORT.into());
        }
        let class = u16_at(self.message, at + 2);
        if class != CLASS_IN {
            return Err(format!("unexpected RR class {class} in DNS response").into());
        }
        let ttl_s = u32::from(u16_at(self.message, at + 4)) << 16 | u32::from(u16_at(self.message, at + 6));
        let length = usize::from(u16_at(self.message, at + 8));
        let data_at = at + RECORD_HEAD;
        self.at = data_at + length;
        // RFC 2181 section 8: a time to live with the top bit set counts as zero.
        let ttl_s = if ttl_s > i32::MAX as u32 { 0 } else { ttl_s };
        Ok(Record { kind: u16_at(self.message, at), ttl_s, data_at, length })
    }
}

/// Where the question's type begins. The question comes first, so it has nothing to point back to.
fn question_end(message: &[u8]) -> Result<usize, &'static str> {
    let mut at = HEADER;
    loop {
        let length = *message.get(at).ok_or(SHORT)?;
        at += 1;
        match length {
            0 if at == HEADER + 1 => return Err("zero-length domain name in DNS response"),
            0 if at + QUESTION_TAIL > message.len() => return Err(SHORT),
            0 => return Ok(at),
            length if length & 0xc0 != 0 => return Err("unexpected compression pointer in DNS response"),
            length => at += usize::from(length),
        }
    }
}

/// Where the name at `start` ends; a pointer ends it.
fn skip_name(message: &[u8], start: usize) -> Result<usize, &'static str> {
    let mut at = start;
    loop {
        let length = *message.get(at).ok_or(SHORT)?;
        match length {
            0 if at == start => return Err("invalid name in DNS response"),
            0 => return Ok(at + 1),
            length if length & 0xc0 != 0 => return Ok(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

/// The name at `at` in lower case, with dots, following compression pointers (RFC 1035 section 4.1.4). The root is empty.
fn read_name(message: &[u8], mut at: usize) -> Result<Vec<u8>, &'static str> {
    const OUTSIDE: &str = "name is out of DNS response";
    let mut name = Vec::new();
    for _ in 0..MAX_LABELS {
        let length = *message.get(at).ok_or(OUTSIDE)?;
        at += 1;
        match length & 0xc0 {
            0 if length == 0 => return Ok(name),
            0 => {
                let label = message.get(at..at + usize::from(length)).ok_or(OUTSIDE)?;
                if !name.is_empty() {
                    name.push(b'.');
                }
                name.extend(label.iter().map(u8::to_ascii_lowercase));
                at += usize::from(length);
            }
            0xc0 => {
                let low = *message.get(at).ok_or(OUTSIDE)?;
                at = usize::from(length & 0x3f) << 8 | usize::from(low);
            }
            _ => return Err("invalid label type in DNS response"),
        }
    }
    Err("compression pointers loop in DNS response")
}

/// The caller has checked that both bytes are there.
fn u16_at(message: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([message[at], message[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four full labels, 257 bytes on the wire: past RFC 1035, but in use and answered by nginx.
    #[test]
    fn names_past_255_bytes_are_asked_and_read() {
        let name = [[b'A'; 63]; 4].join(&b'.');
        let mut message = build_query(7, &name, record_type::A).unwrap().into_vec();
        assert_eq!(message.len(), HEADER + 257 + QUESTION_TAIL);
        (message[2], message[7]) = (0x81, 1);
        message.extend_from_slice(&[0xc0, 0x0c, 0, 1, 0, 1, 0xff, 0, 0, 0, 0, 4, 10, 0, 0, 1]);
        let reply = Reply::parse(&message, Transport::Udp).unwrap();
        assert_eq!(reply.question, name.to_ascii_lowercase());
        let found = reply.addresses(&|_| {}).unwrap();
        assert_eq!((found.addresses.len(), found.ttl_s), (1, 0));
    }

    #[test]
    fn addresses_as_names() {
        assert_eq!(arpa_name(IpAddr::from([1, 2, 3, 4])), b"4.3.2.1.in-addr.arpa");
        let name = arpa_name("fe80::12".parse().unwrap());
        assert!(name.starts_with(b"2.1.0.0.") && name.ends_with(b".0.8.e.f.ip6.arpa"));
        assert_eq!(name.len(), 64 + "ip6.arpa".len());
    }
}
