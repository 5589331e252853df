//! A session with its client on its way to another process, or from one. From and to: `held`.

use super::{Live, MAX_ALLOWED, Peer, Scan};
use crate::modules::nchan::Conf;
use crate::modules::nchan::mqtt::rules::Rules;
use crate::modules::nchan::mqtt::session::Session;
use crate::modules::nchan::mqtt::session::travel::{read_keep, read_optional, write_keep};
use crate::modules::nchan::mqtt::table;
use crate::modules::nchan::redis::backend::Backend;
use heir::{Reader, Writer};
use push::Options;
use std::sync::Arc;
use wire::mqtt::Version;

/// Scans of one client: one for each of its filters.
const MAX_SCANS: usize = 1000;

impl Live {
    /// For another process. False: messages are gone that the client has not had.
    pub(in super::super) fn travel(&mut self, w: &mut Writer) -> bool {
        w.bytes(self.owner.key());
        self.peer.write(w);
        w.number(self.scans.len() as u64);
        for scan in self.scans.iter() {
            w.bytes(&scan.filter);
            w.flag(scan.qos > 0);
            w.optional(scan.number.map(i64::from));
            w.optional_bytes(scan.after.as_deref());
        }
        w.number(self.allowed.len() as u64);
        self.allowed.iter().for_each(|topic| w.bytes(topic));
        self.session.write(w)
    }

    /// What another process wrote, for a location of this one. None: it was something else, its client has come already on another
    /// connection, or the location is none for it.
    pub(in super::super) fn read(r: &mut Reader<'_>, conf: &Conf, backend: Option<&Arc<Backend>>) -> Option<Box<Live>> {
        if !conf.mqtt {
            return None;
        }
        let key = r.bytes()?;
        let peer = Peer::read(r, conf)?;
        let scans: Vec<Scan> = r.list(MAX_SCANS, |r| {
            let (filter, qos, number) = (r.bytes()?.into(), u8::from(r.flag()?), read_optional(r)?);
            Some(Scan { filter, qos, number, after: r.optional_bytes()?.map(Into::into) })
        })?;
        let allowed: Vec<Box<[u8]>> = r.list(MAX_ALLOWED, |r| r.bytes().map(Box::from))?;
        // The configuration may name another Redis by now, or none, or one for the first time.
        let session = Session::read(r, |group| backend.filter(|backend| backend.has(group)).cloned())?;
        if session.backend.is_none() && backend.is_some() {
            return None;
        }
        let owner = table::arrive(key.into())?;
        let (scans, allowed) = (scans.into(), allowed.into());
        let mut live = Box::new(Live { session, owner, peer: peer.shared(), scans, allowed, noted_ms: 0 });
        live.note();
        Some(live)
    }
}

impl Peer {
    fn write(&self, w: &mut Writer) {
        w.flag(self.version == Version::V5);
        let numbers = [self.window as u64, self.max_out as u64, self.max_in, self.keep_alive_ms];
        numbers.into_iter().for_each(|number| w.number(number));
        [&self.may_publish, &self.may_subscribe].into_iter().for_each(|rules| rules.write(w));
        write_keep(&self.keep, w);
        let Options { existing_only, max_subscribers, accounting, channel_timeout } = self.options;
        w.flag(existing_only);
        w.number(max_subscribers);
        w.flag(accounting);
        w.signed(channel_timeout);
        w.number(self.max_id_length as u64);
        w.number(self.max_expiry_s.into());
    }

    fn read(r: &mut Reader<'_>, conf: &Conf) -> Option<Peer> {
        let version = if r.flag()? { Version::V5 } else { Version::V3 };
        let mut size = || usize::try_from(r.number()?).ok();
        let (window, max_out) = (size()?, size()?);
        let (max_in, keep_alive_ms) = (r.number()?, r.number()?);
        let (may_publish, may_subscribe, keep) = (Rules::read(r)?, Rules::read(r)?, read_keep(r)?);
        let options = Options {
            existing_only: r.flag()?,
            max_subscribers: r.number()?,
            accounting: r.flag()?,
            channel_timeout: r.signed()?,
        };
        Some(Peer {
            version,
            window,
            max_out,
            max_in,
            keep_alive_ms,
            may_publish,
            may_subscribe,
            keep,
            options,
            max_id_length: usize::try_from(r.number()?).ok()?,
            max_expiry_s: u32::try_from(r.number()?).ok()?,
            asks: conf.asks_about_topics(),
            tells: conf.tells_of_packets(),
            own_rules: conf.has_own_rules(),
            own_group: conf.has_own_group(),
        })
    }
}
