//! What zones know, on its way to another process: rates of keys, learnt sessions, records, what guards and rules know of clients, and what is known of peers. Places of
//! `limit_conn` go with the connections that hold them.

use crate::modules::nchan::succession;
use crate::modules::{guard, keyval_store, limit_req, modsecurity, sticky};
use crate::upstream::peer;
use zeroize::Zeroizing;

/// The kind of zones of `limit_req`.
const LIMIT_REQ: &[u8] = b"limit_req";

/// What is said first, and in no frame that is left anywhere: the key of guards' cookies.
pub(super) fn secret() -> Zeroizing<Vec<u8>> {
    guard::succession::leave_key()
}

/// Whether a frame is such a one, to be overwritten once it is settled.
pub(super) fn is_secret(kind: &[u8], name: &[u8]) -> bool {
    kind == guard::succession::ZONE && name == guard::succession::KEY
}

/// Says all of the rest.
pub(super) fn leave(mut say: impl FnMut(Vec<u8>)) {
    limit_req::leave(&mut say);
    sticky::leave(&mut say);
    keyval_store::leave(&mut say);
    peer::leave(&mut say);
    guard::succession::leave(&mut say);
    modsecurity::succession::leave(&mut say);
}

/// Takes what another process said of a zone. One of a kind that is not known is left out.
pub(super) fn settle(kind: &[u8], name: &[u8], rows: &[u8]) {
    match kind {
        LIMIT_REQ => limit_req::settle_zone(name, rows),
        sticky::ZONE => sticky::settle(name, rows),
        keyval_store::ZONE => keyval_store::settle(name, rows),
        peer::ZONE => peer::settle(rows),
        modsecurity::succession::ZONE => modsecurity::succession::settle(rows),
        guard::succession::ZONE => guard::succession::settle(name, rows),
        succession::RETAINED => succession::settle_retained(name, rows),
        succession::FILTERS => succession::settle_filters(name, rows),
        succession::ALL => succession::expect_no_more(),
        _ => {}
    }
}
