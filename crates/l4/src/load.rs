//! What a real server says of its accept queues: a datagram every few milliseconds, to balancers. The bytes only; who signs and
//! sends them is the server's affair.

/// The first octets: what this is, and which version of it.
const MAGIC: [u8; 4] = *b"IWL1";
/// Ports that fit into a report: more listeners than that are told of one by one, so to say, by being left out.
pub const PORTS_MAX: usize = 64;
/// The longest report.
pub const BYTES_MAX: usize = 4 + 8 + 2 + 1 + 3 * PORTS_MAX;

/// A report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// When it was made, wall clock, ms since 1970: an old one that is sent again says nothing.
    pub at_ms: u64,
    /// When the next one may be expected, ms: who says nothing for several times as long has stopped.
    pub interval_ms: u16,
    /// Ports, and how full the fullest queue of each is, percent.
    pub ports: Vec<(u16, u8)>,
}

/// The bytes are no report of this version; in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable(pub &'static str);

impl Load {
    /// As it is sent, but for the signature.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ports = &self.ports[..self.ports.len().min(PORTS_MAX)];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.at_ms.to_be_bytes());
        bytes.extend(self.interval_ms.to_be_bytes());
        bytes.push(ports.len() as u8);
        for (port, percent) in ports {
            bytes.extend(port.to_be_bytes());
            bytes.push(*percent);
        }
        bytes
    }

    /// Reads what [`Load::to_bytes`] made; nothing may follow it.
    pub fn read(bytes: &[u8]) -> Result<Load, Unreadable> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(Unreadable("it does not begin with IWL1"))?;
        let (at, rest) = rest.split_first_chunk::<8>().ok_or(Unreadable("it ends within the time"))?;
        let (interval, rest) = rest.split_first_chunk::<2>().ok_or(Unreadable("it ends within the interval"))?;
        let (count, rest) = rest.split_first().ok_or(Unreadable("it ends before the number of ports"))?;
        if usize::from(*count) > PORTS_MAX {
            return Err(Unreadable("it has more ports than 64"));
        }
        if rest.len() != usize::from(*count) * 3 {
            return Err(Unreadable("its length is not that of its ports"));
        }
        let ports = rest.chunks_exact(3).map(|c| (u16::from_be_bytes([c[0], c[1]]), c[2].min(100))).collect();
        Ok(Load { at_ms: u64::from_be_bytes(*at), interval_ms: u16::from_be_bytes(*interval), ports })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let load = Load { at_ms: 1_763_000_000_123, interval_ms: 5, ports: vec![(80, 0), (443, 97)] };
        let bytes = load.to_bytes();
        assert_eq!(Load::read(&bytes), Ok(load));
        for end in 0..bytes.len() {
            assert!(Load::read(&bytes[..end]).is_err(), "{end}");
        }
        assert!(Load::read(&[&bytes[..], &[0]].concat()).is_err());
        let many = Load { ports: vec![(1, 1); 100], ..Load::default() };
        assert_eq!(many.to_bytes().len(), BYTES_MAX);
        assert_eq!(Load::read(&many.to_bytes()).map(|l| l.ports.len()), Ok(PORTS_MAX));
    }
}
