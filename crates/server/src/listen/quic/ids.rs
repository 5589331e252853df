//! Connection ids that say to whom a packet belongs: after migration it comes from an address that the kernel's choice of
//! a socket knows nothing of.
//!
//! ```text
//! | socket (2) | endpoint (2) | random (4) | seal (4) |
//! ```
//! *Socket* is the number of the listening socket among those of its address: the kernel's program looks at it
//! (`listen::steer`). *Endpoint* is who reads that socket: after a reload with fewer threads two may. The seal tells our
//! ids from a client's, so that a stateless reset is sent only for what was ours.

use super::keys::{Ring, SEAL};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an id.
pub const LEN: usize = SEALED + SEAL;
/// What the seal covers.
pub(super) const SEALED: usize = 8;

/// Whom an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The socket's number.
    pub(super) socket: u16,
    /// The endpoint's number.
    pub(super) endpoint: u16,
}

impl Owner {
    fn of(id: &[u8]) -> Owner {
        Owner { socket: u16::from_be_bytes([id[0], id[1]]), endpoint: u16::from_be_bytes([id[2], id[3]]) }
    }
}

/// Makes and knows ids of one endpoint.
#[derive(Clone)]
pub(super) struct Ids {
    /// Whose they are.
    pub(super) owner: Owner,
    /// What seals them.
    pub(super) keys: Arc<Ring>,
}

impl Ids {
    /// Whose packet it is, if it is somebody else's.
    pub(super) fn foreign(&self, packet: &[u8]) -> Option<Owner> {
        // RFC 9000 section 17: a long header has the id's length, a short one nothing.
        let id = match packet.first()? & 0x80 {
            0 => packet.get(1..1 + LEN)?,
            _ if usize::from(*packet.get(5)?) == LEN => packet.get(6..6 + LEN)?,
            _ => return None,
        };
        let owner = Owner::of(id);
        (owner != self.owner && self.keys.has_sealed(id)).then_some(owner)
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; LEN];
        id[..2].copy_from_slice(&self.owner.socket.to_be_bytes());
        id[2..4].copy_from_slice(&self.owner.endpoint.to_be_bytes());
        super::keys::draw(&mut id[4..SEALED]);
        let seal = self.keys.seal(&id);
        id[SEALED..].copy_from_slice(&seal);
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        (id.len() == LEN && self.keys.has_sealed(id)).then_some(()).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_owner_and_no_other_id_does() {
        let keys = Arc::new(Ring::new(b"secret"));
        let ids = |socket, endpoint| Ids { owner: Owner { socket, endpoint }, keys: keys.clone() };
        let id = ids(3, 7).generate_cid();
        assert!(ids(1, 1).validate(&id).is_ok());
        let short = [&[0x40][..], &id, &[0; 20]].concat();
        assert_eq!(ids(1, 1).foreign(&short), Some(Owner { socket: 3, endpoint: 7 }));
        assert_eq!(ids(3, 7).foreign(&short), None);
        let long = [&[0xe0, 0, 0, 0, 1, LEN as u8][..], &id, &[0; 20]].concat();
        assert_eq!(ids(1, 1).foreign(&long), Some(Owner { socket: 3, endpoint: 7 }));
        for cut in 0..1 + LEN {
            assert_eq!(ids(1, 1).foreign(&short[..cut]), None);
        }
        let mut other = short;
        other[1 + LEN - 1] ^= 1;
        assert_eq!(ids(1, 1).foreign(&other), None);
        let strangers = Arc::new(Ring::new(b"another"));
        assert!(Ids { owner: Owner { socket: 3, endpoint: 7 }, keys: strangers }.validate(&id).is_err());
        // A new host key: the ids that clients have are known until the next.
        keys.turn(b"second");
        assert!(ids(1, 1).validate(&id).is_ok());
        assert!(ids(1, 1).validate(&ids(1, 1).generate_cid()).is_ok());
        keys.turn(b"third");
        assert!(ids(1, 1).validate(&id).is_err());
    }
}
