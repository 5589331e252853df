//! Connection ids that say to whom a packet belongs: after migration it comes from an address that the kernel's choice of
//! a socket knows nothing of.
//!
//! ```text
//! | first (1) | server (2) | socket (2) | endpoint (2) | random (5) | seal (4) |
//! ```
//! *First* and *server* are for balancers before us (draft-ietf-quic-load-balancers section 5.1, plaintext): the bits of the configuration,
//! here 0, with the length of the rest, then the machine's number (`quic_server_id`). Without a number the bits are 7, which says
//! that there is none (section 3.1), and octets without a meaning stand in its place.
//! *Socket* is the number of the listening socket among those of its address: the kernel's program looks at it
//! (`listen::steer`). *Endpoint* is who reads that socket: after a reload with fewer threads two may. The seal tells our
//! ids from a client's, so that a stateless reset is sent only for what was ours.

use super::keys::{Ring, SEAL};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of an id.
pub const LEN: usize = SEALED + SEAL;
/// What the seal covers.
pub(super) const SEALED: usize = 12;
/// Where the socket's number stands.
pub const SOCKET: usize = 3;
/// The rest's length is in the first octet's last five bits.
const REST: u8 = (LEN - 1) as u8;
/// The first octet's bits where no machine is named.
const UNROUTABLE: u8 = 7 << 5;

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
        let number = |at| u16::from_be_bytes([id[at], id[at + 1]]);
        Owner { socket: number(SOCKET), endpoint: number(SOCKET + 2) }
    }
}

/// Makes and knows ids of one endpoint.
#[derive(Clone)]
pub(super) struct Ids {
    /// Whose they are.
    pub(super) owner: Owner,
    /// What seals them.
    pub(super) keys: Arc<Ring>,
    /// This machine's number among those behind a balancer.
    pub(super) server: Arc<ServerId>,
}

/// A number that may change with the configuration; all makers of an endpoint's ids share it.
pub(super) struct ServerId(AtomicU32);

impl ServerId {
    const NONE: u32 = u32::MAX;

    pub(super) fn new(number: Option<u16>) -> ServerId {
        ServerId(AtomicU32::new(number.map_or(ServerId::NONE, u32::from)))
    }

    /// New ids have this one.
    pub(super) fn set(&self, number: Option<u16>) {
        self.0.store(number.map_or(ServerId::NONE, u32::from), Ordering::Relaxed);
    }

    fn number(&self) -> Option<u16> {
        u16::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
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
        super::keys::draw(&mut id[1..SEALED]);
        id[0] = REST | UNROUTABLE;
        if let Some(number) = self.server.number() {
            id[0] = REST;
            id[1..SOCKET].copy_from_slice(&number.to_be_bytes());
        }
        id[SOCKET..][..2].copy_from_slice(&self.owner.socket.to_be_bytes());
        id[SOCKET + 2..][..2].copy_from_slice(&self.owner.endpoint.to_be_bytes());
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
        let none = Arc::new(ServerId::new(None));
        let ids =
            |socket, endpoint| Ids { owner: Owner { socket, endpoint }, keys: keys.clone(), server: none.clone() };
        let id = ids(3, 7).generate_cid();
        assert_eq!(id[0], 0xef, "no machine is named");
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
        assert!(Ids { keys: strangers, ..ids(3, 7) }.validate(&id).is_err());
        // A new host key: the ids that clients have are known until the next.
        keys.turn(b"second");
        assert!(ids(1, 1).validate(&id).is_ok());
        assert!(ids(1, 1).validate(&ids(1, 1).generate_cid()).is_ok());
        keys.turn(b"third");
        assert!(ids(1, 1).validate(&id).is_err());
    }

    #[test]
    fn an_id_names_the_machine_for_balancers() {
        let (owner, keys) = (Owner { socket: 3, endpoint: 7 }, Arc::new(Ring::new(b"secret")));
        let mut ids = Ids { owner, keys, server: Arc::new(ServerId::new(Some(0x1234))) };
        let id = ids.clone().generate_cid();
        assert_eq!((id.len(), &id[..3]), (16, &[15, 0x12, 0x34][..]));
        assert!(ids.validate(&id).is_ok());
        ids.server.set(Some(5));
        assert_eq!(&ids.generate_cid()[..3], [15, 0, 5]);
    }
}
