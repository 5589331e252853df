//! The tries that a request, or a session of `stream`, has at the peers of a group: who is next, who is to blame, whether there may be
//! another (`proxy_next_upstream_tries`, `proxy_next_upstream_timeout`). From: `retry`, `stream::proxy`. To: `choose`.

use super::Attempt;
use super::choose::{self, SelectedPeer, Selection};
use super::group::Group;
use super::job::Changes;
use super::settings::UpstreamSettings;
use crate::log_error;
use crate::request::Request;
use runtime::clock;
use std::sync::Arc;

/// See the top of the file. The order of calls: `begin`; then for each try `choose`, `start`, and, where it failed, `failed` and
/// `is_over`.
pub struct Tries {
    /// Who has been asked.
    pub selection: Selection,
    /// How many peers there were to ask at the beginning.
    peers: usize,
    left: usize,
    /// `*_next_upstream_tries`; 0 is none.
    limit: usize,
    began_ms: u64,
    /// `*_next_upstream_timeout`, ms; 0 is none.
    limit_ms: u64,
}

impl Tries {
    /// Waits for the first addresses of a group whose names are followed.
    pub async fn begin(group: &Group, conf: &UpstreamSettings) -> Tries {
        let began_ms = clock::monotonic_ms();
        if let Some(live) = &group.live {
            live.first_answer().await;
        }
        let (selection, peers) = Selection::begin(group);
        let limit = *conf.next_upstream_tries as usize;
        let left = if limit == 0 { peers } else { peers.min(limit) };
        Tries { selection, peers, left, limit, began_ms, limit_ms: conf.next_upstream_timeout.as_millis() as u64 }
    }

    /// The next peer; none when there is no usable one left.
    pub fn choose(&mut self, r: &mut Request, group: &Arc<Group>) -> Option<SelectedPeer> {
        (self.selection.said.left, self.selection.said.limit) = (self.left, self.limit);
        let chosen = choose::choose(r, group, &mut self.selection);
        self.left += std::mem::take(&mut self.selection.said.more);
        chosen
    }

    /// The status with which a program that chooses peers has refused the request.
    pub fn refused(&mut self) -> Option<u16> {
        self.selection.said.refused.take()
    }

    /// What a program that chooses peers wants to be sent otherwise than before.
    pub fn changes(&mut self) -> Option<Box<Changes>> {
        self.selection.said.changes.take()
    }

    /// A try at this peer begins: it stands in the request's attempts.
    pub fn start(&self, r: &mut Request, chosen: &SelectedPeer) {
        r.attempts.all.push(Attempt { peer: Some(chosen.peer.clone()), ..Attempt::default() });
    }

    /// There was nobody to ask. `status`: what stands for the attempt.
    pub fn no_live_upstreams(&self, r: &mut Request, group: &Group, status: u16) {
        let group = Some(group.name.clone());
        r.attempts.all.push(Attempt { group, status, response_ms: Some(0), ..Attempt::default() });
        log_error!(r, Error, "no live upstreams");
    }

    /// The current try has failed by the peer's fault.
    pub fn failed(&mut self, r: &mut Request, group: &Group, chosen: &SelectedPeer) {
        if choose::failed(group, &mut self.selection, chosen, r.attempts.current()) && self.peers > 1 {
            log_error!(r, Warn, "upstream server temporarily disabled");
        }
    }

    /// Whether there is time and a peer for one more try after the current one.
    pub fn may_go_on(&self) -> bool {
        self.left > 1 && !(self.limit_ms > 0 && clock::monotonic_ms() - self.began_ms >= self.limit_ms)
    }

    /// The current try is over: counts it, and says whether it was the last.
    pub fn is_over(&mut self) -> bool {
        let more = self.may_go_on();
        self.left = self.left.saturating_sub(1);
        !more
    }
}
