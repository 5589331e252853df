//! Certificates that are ordered and renewed by themselves (ACME, RFC 8555): the flow of it.
//!
//! ```text
//! configuration (modules::acme) ─> load: what is kept on disk ─> follow: one task for each issuer, on the service thread
//!                                                                  └> tend: log in ─> order ─> slot, disk ─> wait ─> renew
//! handshake (tls::dynamic) <─ slot         request, handshake <─ challenge: proofs on offer
//! ```
//! All of it happens in the worker process, with the worker's rights (docs/decisions/0010). Whatever an authority does, the
//! server goes on with the certificates it has.

pub mod challenge;
mod client;
mod dns_hook;
mod jws;
pub mod key;
mod order;
mod renewal;
pub mod settings;
mod state;
pub mod store;
mod tend;

use crate::log::error::Level;
use crate::log::process_line;
use crate::snapshot::Snapshot;
use settings::Issuer;
use state::State;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::Slot;
use tend::Tender;
use tokio::sync::{Notify, oneshot};

/// A task that tends the certificates of an issuer. It ends when this is dropped.
struct Running {
    /// What it was started with.
    key: [u8; 32],
    /// The configuration was read again.
    again: Arc<Notify>,
    _stop: oneshot::Sender<()>,
}

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a file holds a key that an account can have.
pub fn check_account_key(pem: &[u8]) -> Result<(), String> {
    jws::AccountKey::from_pem(pem).map(|_| ())
}

/// What a configuration wants of each issuer.
fn wanted(snapshot: &Snapshot) -> Vec<(Arc<Issuer>, Vec<Arc<Slot>>)> {
    let of = |issuer: &Arc<Issuer>| {
        let mut slots: Vec<Arc<Slot>> = Vec::new();
        for slot in snapshot.servers.iter().filter_map(|s| s.acme.as_ref()) {
            if slot.order.issuer == issuer.name && !slots.iter().any(|s| Arc::ptr_eq(s, slot)) {
                slots.push(slot.clone());
            }
        }
        (issuer.clone(), slots)
    };
    snapshot.main.acme.issuers().iter().map(of).filter(|(_, slots)| !slots.is_empty()).collect()
}

/// Fills slots with what is kept on disk, before any client comes. Blocks: for the control thread.
pub fn load(snapshot: &Snapshot) {
    store::limit(snapshot.main.acme.zone_size());
    for (issuer, slots) in wanted(snapshot) {
        let state = State(issuer.state_path.clone());
        for slot in slots.iter().filter(|s| s.current().is_none()) {
            let kept = state.certificate(&slot.name());
            let put = kept.and_then(|kept| kept.map_or(Ok(()), |issued| slot.put(issued)));
            if let Err(text) = put {
                let (issuer, name) = (&issuer.name, slot.name());
                let text =
                    format_args!("acme: issuer \"{issuer}\": certificate \"{name}\" is not taken from disk: {text}");
                process_line(Level::Error, text);
            }
        }
    }
}

/// Tends the certificates of this configuration from now on. What is tended already goes on undisturbed, but failures are
/// tried again: somebody may have just removed their cause.
pub fn follow(snapshot: &Snapshot) {
    let mut before = std::mem::take(&mut *running());
    let mut now = Vec::new();
    for (issuer, slots) in wanted(snapshot) {
        let orders: Vec<_> = slots.iter().map(|s| &s.order).collect();
        let key = crate::tls::settings::key("acme", &(&issuer, orders));
        if let Some(at) = before.iter().position(|r| r.key == key) {
            before[at].again.notify_one();
            now.push(before.swap_remove(at));
            continue;
        }
        let (stop, stopped) = oneshot::channel();
        let again = Arc::new(Notify::new());
        now.push(Running { key, again: again.clone(), _stop: stop });
        crate::service::spawn(move || async move {
            let mut tender = Tender::new(issuer, slots, again);
            tokio::select! {
                _ = stopped => {}
                () = tender.run() => {}
            }
        });
    }
    *running() = now;
}

/// Ends all tasks: this process serves no new clients.
pub fn stop() {
    running().clear();
}
