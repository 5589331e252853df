//! Which node of a Redis Cluster has which keys (the specification of Redis Cluster, "Key distribution model"). Nothing here waits.

use super::given::Place;
use wire::resp::Value;

/// Keys are spread over so many slots.
const SLOTS: usize = 16_384;
/// Nodes of a cluster; more are not known to work ("up to 1000 nodes").
const MAX_NODES: usize = 1000;
/// No node has the slot.
const NOBODY: u16 = u16::MAX;

/// CRC-16/XMODEM of each byte.
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The slot of a key: of what stands between the first `{` and the next `}`, if something does.
pub(super) fn slot(key: &[u8]) -> usize {
    let tag = key.iter().position(|b| *b == b'{').and_then(|at| {
        let rest = &key[at + 1..];
        let end = rest.iter().position(|b| *b == b'}')?;
        (end > 0).then(|| &rest[..end])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, b| crc << 8 ^ CRC[usize::from((crc >> 8) as u8 ^ b)]);
    usize::from(crc) % SLOTS
}

/// Who has which slots.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// By slot the number of the node.
    owners: Vec<u16>,
    /// The masters.
    pub(super) nodes: Vec<Place>,
}

impl Slots {
    /// The answer to `CLUSTER SLOTS` of the node at `asked`. `None`: it is none.
    pub(super) fn read(value: &Value<'_>, asked: &Place) -> Option<Slots> {
        let mut slots = Slots { owners: vec![NOBODY; SLOTS], nodes: Vec::new() };
        for range in value.list()? {
            let [first, last, master, ..] = range.list()? else { return None };
            let number = |v: &Value<'_>| usize::try_from(v.number()?).ok();
            let (first, last) = (number(first)?, number(last)?);
            let [host, port, ..] = master.list()? else { return None };
            let place = place(host.text().unwrap_or_default(), u16::try_from(port.number()?).ok()?, asked)?;
            let node = match slots.nodes.iter().position(|known| *known == place) {
                Some(node) => node,
                None if slots.nodes.len() == MAX_NODES => return None,
                None => {
                    slots.nodes.push(place);
                    slots.nodes.len() - 1
                }
            };
            slots.owners.get_mut(first..=last).filter(|_| first <= last)?.fill(node as u16);
        }
        Some(slots)
    }

    /// Who has a key. `None`: nobody, while the cluster is made or fails.
    pub(super) fn owner(&self, key: &[u8]) -> Option<&Place> {
        self.nodes.get(usize::from(self.owners[slot(key)]))
    }
}

/// Where an error `ASK slot host:port` sends: `rest` is what comes after the first word.
pub(super) fn redirected(rest: &str, asked: &Place) -> Option<Place> {
    let (host, port) = rest.split(' ').nth(1)?.rsplit_once(':')?;
    place(host.as_bytes(), port.parse().ok()?, asked)
}

/// A node's address. It may not know its own host: then it is the one that was asked.
fn place(host: &[u8], port: u16, asked: &Place) -> Option<Place> {
    let host = match host {
        b"" | b"?" => match asked {
            Place::Host(host, _) => host.clone(),
            Place::Path(_) => return None,
        },
        host => std::str::from_utf8(host).ok()?.into(),
    };
    (port > 0).then_some(Place::Host(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_keys() {
        // Of the specification, and of `CLUSTER KEYSLOT`.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"ironweir:{foo}"), 12182);
        assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"), "an empty tag is none: the whole key counts");
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn answers_of_cluster_slots() {
        let asked = Place::Host("here".into(), 1);
        let node = |host: &'static [u8], port| Value::List(vec![Value::Text(host), Value::Number(port)]);
        let range =
            |first, last, node: Value<'static>| Value::List(vec![Value::Number(first), Value::Number(last), node]);
        let value = Value::List(vec![range(0, 100, node(b"a", 7)), range(101, 16_383, node(b"", 8))]);
        let slots = Slots::read(&value, &asked).unwrap();
        assert_eq!(slots.owner(b"foo"), Some(&Place::Host("here".into(), 8)));
        assert_eq!(slots.nodes.len(), 2);
        for bad in [
            Value::Number(1),
            Value::List(vec![range(0, 16_384, node(b"a", 7))]),
            Value::List(vec![range(5, 4, node(b"a", 7))]),
            Value::List(vec![range(-1, 4, node(b"a", 7))]),
            Value::List(vec![range(0, 4, node(b"a", 0))]),
            Value::List(vec![range(0, 4, node(b"a", 70_000))]),
            Value::List(vec![range(0, 4, node(b"\xff", 7))]),
        ] {
            assert_eq!(Slots::read(&bad, &asked), None);
        }
        assert_eq!(Slots::read(&Value::List(vec![]), &asked).unwrap().owner(b"x"), None);
        assert_eq!(redirected("3999 127.0.0.1:6381", &asked), Some(Place::Host("127.0.0.1".into(), 6381)));
        assert_eq!(redirected("3999 :6381", &asked), Some(Place::Host("here".into(), 6381)));
        for bad in ["", "3999", "3999 x", "3999 x:y"] {
            assert_eq!(redirected(bad, &asked), None);
        }
    }
}
