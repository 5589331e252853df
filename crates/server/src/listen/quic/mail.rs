//! Datagrams that came to the wrong thread go to the right one by its mailbox: where the kernel does not steer
//! (`quic_bpf off`), where a client's address has changed before it knew our ids, and while threads are exchanged.

use super::ids::Owner;
use quinn_proto::EcnCodepoint;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

/// Datagrams that wait in a mailbox at most; more are lost, as they would be in a full socket buffer.
const WAITING: usize = 1024;

/// A datagram and where it came from.
pub(super) struct Letter {
    /// Its bytes.
    pub(super) bytes: bytes::BytesMut,
    /// Who sent it.
    pub(super) from: SocketAddr,
    /// Where to.
    pub(super) to: Option<IpAddr>,
    /// What routers said on the way.
    pub(super) ecn: Option<EcnCodepoint>,
}

#[derive(Default)]
struct Inner {
    letters: Vec<Letter>,
    waker: Option<Waker>,
}

/// The mailbox of one endpoint.
#[derive(Default)]
pub(super) struct Mailbox(Mutex<Inner>);

/// All endpoints of the process, by their number.
static ALL: Mutex<Option<HashMap<u16, Arc<Mailbox>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it is locked")
}

/// Opens a mailbox; gives its number. None: there are as many as there can be.
pub(super) fn open() -> Option<(u16, Arc<Mailbox>)> {
    let mut all = lock(&ALL);
    let all = all.get_or_insert_default();
    let number = (1..=u16::MAX).find(|n| !all.contains_key(n))?;
    let mailbox = Arc::new(Mailbox::default());
    all.insert(number, mailbox.clone());
    Some((number, mailbox))
}

/// Nobody reads a mailbox any more.
pub(super) fn close(number: u16) {
    lock(&ALL).get_or_insert_default().remove(&number);
}

/// Puts a letter into the mailbox of its owner; gives it back where there is no such.
pub(super) fn send(owner: Owner, letter: Letter) -> Option<Letter> {
    let found = lock(&ALL).as_ref().and_then(|all| all.get(&owner.endpoint)).cloned();
    let Some(mailbox) = found else { return Some(letter) };
    let mut inner = lock(&mailbox.0);
    if inner.letters.len() < WAITING {
        inner.letters.push(letter);
    }
    if let Some(waker) = inner.waker.take() {
        waker.wake();
    }
    None
}

impl Mailbox {
    /// Takes what has come, and is woken by the next.
    pub(super) fn take(&self, waker: &Waker) -> Vec<Letter> {
        let mut inner = lock(&self.0);
        let letters = std::mem::take(&mut inner.letters);
        if !inner.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            inner.waker = Some(waker.clone());
        }
        letters
    }
}
