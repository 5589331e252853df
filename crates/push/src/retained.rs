//! The messages of a group that are retained (MQTT 5 section 3.3.1.3): the last one of each channel that was published so, for who
//! subscribes later. They stay when their channel goes.

use crate::message::Message;
use crate::store::Shared;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use wire::mqtt::topic;

/// By the ids of their channels.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    messages: BTreeMap<Arc<[u8]>, Arc<Message>>,
    /// Where they are billed; none before the first.
    shared: Option<Arc<Shared>>,
}

impl Retained {
    /// Keeps a message in place of the one before; an empty one: none.
    pub(crate) fn put(&mut self, id: &[u8], message: Arc<Message>, shared: &Arc<Shared>) {
        self.shared = Some(shared.clone());
        if message.data().is_empty() {
            return self.remove(id);
        }
        shared.changed(cost(id, &message) as isize);
        if let Some(before) = self.messages.insert(id.into(), message) {
            shared.changed(-(cost(id, &before) as isize));
        }
    }

    /// Lets go of a channel's.
    pub(crate) fn remove(&mut self, id: &[u8]) {
        if let (Some(message), Some(shared)) = (self.messages.remove(id), &self.shared) {
            shared.changed(-(cost(id, &message) as isize));
        }
    }

    pub(crate) fn of(&self, id: &[u8], now: i64) -> Option<Arc<Message>> {
        self.messages.get(id).filter(|m| !m.is_over(now)).cloned()
    }

    pub(crate) fn next(&self, filter: &[u8], after: Option<&[u8]>, now: i64) -> Option<(Arc<[u8]>, Arc<Message>)> {
        // Those that begin like the filter stand together. `a/#` names `a` too.
        let fixed = filter.iter().position(|b| matches!(b, b'+' | b'#')).unwrap_or(filter.len());
        let start = filter[..fixed].strip_suffix(b"/").unwrap_or(&filter[..fixed]);
        let from = after.map_or(Bound::Included(start), Bound::Excluded);
        let rest = self.messages.range::<[u8], _>((from, Bound::Unbounded));
        let mut like = rest.take_while(|(id, _)| id.starts_with(start));
        let (id, message) = like.find(|(id, message)| !message.is_over(now) && topic::matches(filter, id))?;
        Some((id.clone(), message.clone()))
    }

    pub(crate) fn sweep(&mut self, now: i64) {
        let Some(shared) = &self.shared else { return };
        self.messages.retain(|id, message| {
            let stays = !message.is_over(now);
            if !stays {
                shared.changed(-(cost(id, message) as isize));
            }
            stays
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

fn cost(id: &[u8], message: &Message) -> usize {
    message.bytes() + id.len() + 64
}
