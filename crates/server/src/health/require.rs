//! `require` of `match` blocks: variables as they would be for a request that got this answer. Most are empty, since there is
//! no client: of use are `$upstream_*` and what `map` and the like make of them.

use super::cause::Cause;
use super::matching::shown;
use crate::connection::{Address, Client, Downstream};
use crate::request::Request;
use crate::snapshot::VariableId;
use crate::snapshot::{Snapshot, ThreadSnapshot};
use crate::upstream::Attempt;
use crate::upstream::peer::Peer;
use std::cell::RefCell;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use wire::http1::response::ResponseHead;

thread_local! {
    /// What variables are evaluated under, on the prober's thread.
    static SNAPSHOT: RefCell<Option<Rc<ThreadSnapshot>>> = const { RefCell::new(None) };
}

/// Variables are those of this configuration from now on; none if no check needs any.
pub fn evaluate_under(snapshot: Option<Arc<Snapshot>>) {
    SNAPSHOT.set(snapshot.map(|s| Rc::new(ThreadSnapshot::new(s))));
}

/// Whether all variables are there, and not `0`. `bytes` begin with the head.
///
/// # Errors
/// The first that does not.
pub fn judge(required: &[(Box<str>, VariableId)], peer: &Peer, bytes: &[u8], head: &ResponseHead) -> Result<(), Cause> {
    if required.is_empty() {
        return Ok(());
    }
    let Some(snapshot) = SNAPSHOT.with_borrow(Clone::clone) else { return Ok(()) };
    let nobody = Client::new(0, Address::Unix(Path::new("").into()), 0, Weak::new());
    let mut r = Request::new(snapshot, nobody, Downstream::None);
    r.attempts.head_base = r.arena.push(bytes).start;
    r.attempts.head_len = bytes.len() as u32;
    r.attempts.head.clone_from(head);
    // Named as the peer, but not counted as one of its requests.
    let group = Some(Arc::from(&*peer.name));
    r.attempts.all.push(Attempt { group, status: head.status, ..Attempt::default() });
    for (name, id) in required {
        let value = r.variable(*id).map(|text| r.get(text).to_vec()).unwrap_or_default();
        if matches!(value.as_slice(), b"" | b"0") {
            return Err(Cause::Variable(format!("${name} is \"{}\"", shown(&value)).into()));
        }
    }
    Ok(())
}
