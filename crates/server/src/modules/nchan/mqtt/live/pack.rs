//! A session and its client in few bytes, as long as nothing is under way between them. From and to: `small`.

use super::{Live, MAX_ALLOWED, Peer};
use crate::modules::nchan::mqtt::rules::Rules;
use crate::modules::nchan::mqtt::session::Session;
use crate::modules::nchan::mqtt::table::{self, Owner};
use crate::modules::nchan::redis::backend::Backend;
use heir::{Reader, Writer};
use std::rc::Rc;
use std::sync::Arc;

/// What is not written down, since others have the same.
#[derive(Clone)]
pub(in super::super) struct Shared {
    /// Without rules, where those are the client's own: they are written down.
    pub(in super::super) peer: Rc<Peer>,
    /// None: it is written down.
    pub(in super::super) group: Option<Rc<[u8]>>,
    pub(in super::super) backend: Option<Arc<Backend>>,
}

impl Shared {
    /// What there is of a client.
    pub(in super::super) fn of(live: &Live) -> Shared {
        let peer = if live.peer.own_rules { live.peer.without_rules() } else { live.peer.clone() };
        let group = (!peer.own_group).then(|| live.session.group[..].into());
        Shared { peer, group, backend: live.session.backend.clone() }
    }
}

impl Live {
    /// Whether it can be packed. Its owner is asked when it is.
    pub(in super::super) fn is_at_rest(&self) -> bool {
        self.scans.is_empty() && self.session.is_at_rest()
    }

    /// Writes it down, whose owner rests.
    pub(in super::super) fn pack(self, w: &mut Writer) {
        let Live { mut session, owner, peer, allowed, noted_ms, .. } = self;
        session.pack(w);
        if peer.own_rules {
            [&peer.may_publish, &peer.may_subscribe].into_iter().for_each(|rules| rules.write(w));
        }
        if peer.own_group {
            w.bytes(&session.group);
        }
        w.number(noted_ms);
        w.number(allowed.len() as u64);
        allowed.iter().for_each(|topic| w.bytes(topic));
        let (user, client) = table::parts(owner.key()).unwrap_or_default();
        w.bytes(user);
        w.bytes(client);
    }

    /// What was packed by this thread for the client that is parked at this place. None: it was something else.
    pub(in super::super) fn unpack(r: &mut Reader<'_>, place: u32, shared: Shared) -> Option<Box<Live>> {
        let Shared { mut peer, group, backend } = shared;
        let mut session = Session::unpack(r, place, backend)?;
        if peer.own_rules {
            let (may_publish, may_subscribe) = (Rules::read(r)?, Rules::read(r)?);
            peer = Rc::new(Peer { may_publish, may_subscribe, ..(*peer).clone() });
        }
        session.group = match group {
            Some(group) => group[..].into(),
            None => r.bytes()?.into(),
        };
        let noted_ms = r.number()?;
        let allowed: Vec<Box<[u8]>> = r.list(MAX_ALLOWED, |r| r.bytes().map(Box::from))?;
        let key = table::key(&session.group, r.bytes()?, r.bytes()?);
        let (scans, allowed) = (Default::default(), allowed.into());
        Some(Box::new(Live { session, owner: Owner::wake(key, place), peer, scans, allowed, noted_ms }))
    }
}
