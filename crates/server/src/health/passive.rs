//! Why requests to a peer fail, in the words of checks: what is said of a peer that `max_fails` has set aside. Noted where a try
//! failed, which is no part of the usual way of a request.

use super::cause::Cause;
use super::link::of_connect;
use crate::upstream::Attempt;
use crate::upstream::connect::Failed;
use crate::upstream::peer::Peer;
use crate::upstream::settings::{UpstreamSettings, next};
use std::time::Duration;

/// A try failed for this reason.
pub fn note(peer: &Peer, cause: Cause) {
    peer.state.health.notes().passive = Some(cause);
}

/// No connection could be made.
pub fn not_connected(peer: &Peer, failed: &Failed) {
    note(peer, of_connect(&failed.error, &peer.address));
}

/// No connection was made in time.
pub fn no_answer(peer: &Peer, waited: Duration) {
    note(peer, Cause::NoAnswer { waited_ms: waited.as_millis() as u64 });
}

/// A try of a request failed. `kind`: a bit of [`next`]; `status`: of the answer's head, if there was one. What kept a connection
/// from being made was noted by whoever tried to.
pub fn failed(peer: &Peer, kind: u32, status: u16, attempt: &Attempt, conf: &UpstreamSettings) {
    let is_connected = attempt.connect_ms.is_some();
    match kind {
        next::TIMEOUT if !is_connected => no_answer(peer, *conf.connect_timeout),
        next::TIMEOUT => {
            let (took_ms, limit_ms) = (attempt.response_ms.unwrap_or(0), conf.read_timeout.as_millis() as u64);
            note(peer, Cause::Slow { took_ms, limit_ms });
        }
        next::INVALID_HEADER => note(peer, Cause::Protocol("a head that cannot be read".into())),
        next::ERROR if is_connected => note(peer, Cause::Closed),
        next::ERROR => {}
        _ => note(peer, Cause::Status { status, wanted: "one that proxy_next_upstream does not name".into() }),
    }
}
