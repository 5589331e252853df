//! HTTP/2 connections without streams that are parked, or go on in another process: what the protocol knows of them is kept as bytes. From: `driver`, where one is idle. To:
//! `driver::resume`, when it brings something.

use super::Http2Session;
use super::driver::{Driver, resume};
use crate::connection::Client;
use crate::connection::begin::adopt_again;
use crate::connection::parked::idle::{self, Between, Idle};
use crate::connection::parked::{self, Kind, Ready};
use crate::connection::socket::Socket;
use crate::snapshot::ThreadSnapshot;
use std::rc::Rc;
use std::time::Duration;

/// Parks an idle connection, or has it go on in another process; gives it back if it cannot be.
pub(super) fn try_park(mut driver: Driver) -> Result<(), Driver> {
    let departs = driver.is_to_depart();
    let saved = if driver.is_at_rest() { driver.save() } else { None };
    let taken = saved.and_then(|saved| Some((saved, parked::take(driver.socket_mut(), departs)?)));
    let Some((saved, ready)) = taken else {
        driver.stays();
        return Err(driver);
    };
    let (whose, stays, wait) = driver.parts();
    drop(driver);
    let idle = Idle::new(whose, Kept { saved: saved.into(), stays }, wait);
    match departs {
        true => parked::send_off(vec![(ready, idle)], &[]),
        false => parked::park(ready, idle),
    }
    Ok(())
}

/// Goes on with a connection of another process. None: it has no place here.
pub fn arrive(
    r: &mut heir::Reader<'_>,
    ready: Ready,
    terms: &heir::Terms,
    snapshot: &Rc<ThreadSnapshot>,
) -> Option<()> {
    idle::arrive::<Kept>(r, ready, terms, snapshot)
}

/// What is left of the session. What the client has said of the urgency of streams that it has not opened is not.
struct Kept {
    saved: Box<[u8]>,
    /// Another process has no place for it.
    stays: bool,
}

impl Between for Kept {
    const KINDS: (Kind, heir::Kind) = (Kind::Http2, heir::Kind::Http2);
    const SAYS_GOODBYE: bool = true;

    fn bytes(&self) -> usize {
        self.saved.len()
    }

    fn write(&self, w: &mut heir::Writer) -> bool {
        w.bytes(&self.saved);
        !self.stays
    }

    fn read(r: &mut heir::Reader<'_>) -> Option<Kept> {
        let saved = r.bytes()?;
        Http2Session::restore(saved)?;
        Some(Kept { saved: saved.into(), stays: false })
    }

    fn refused(&mut self) {
        self.stays = true;
    }

    fn resume(self, client: Rc<Client>, socket: Socket, wait: Duration) {
        // What was saved here, or read, is whole.
        let Some(session) = Http2Session::restore(&self.saved) else { return };
        session.stays.set(self.stays);
        adopt_again(client.clone(), move || resume(Rc::new(session), client, socket, wait));
    }
}
