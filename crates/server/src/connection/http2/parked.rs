//! HTTP/2 connections without streams that are parked: what the protocol knows of them stays as it is. From: `driver`, where one is idle. To:
//! `driver::resume`, when it brings something.

use super::Session;
use super::driver::{Driver, resume};
use crate::connection::begin::adopt_again;
use crate::connection::parked::{self, Kind, Next, Ready, Resident, Watch, Whose};
use crate::connection::socket::Socket;
use crate::worker::counters;
use runtime::clock;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What is left of a connection without streams.
struct Idle {
    /// None: it goes on.
    inside: Option<(Whose, Rc<Session>)>,
    /// When it is closed, monotonic ms.
    until_ms: u64,
    /// It has brought something.
    is_over: bool,
}

/// Parks an idle connection; gives it back if it cannot be.
pub(super) fn try_park(mut driver: Driver) -> Result<(), Driver> {
    if !driver.is_at_rest() {
        return Err(driver);
    }
    let ready = match Ready::of(driver.take_socket()) {
        Ok(ready) => ready,
        Err(socket) => {
            driver.put_socket(socket);
            return Err(driver);
        }
    };
    let (whose, session, wait) = driver.parts();
    let until_ms = clock::monotonic_ms() + wait.as_millis() as u64;
    drop(driver);
    counters::waiting(1);
    parked::park(ready, Box::new(Idle { inside: Some((whose, session)), until_ms, is_over: false }));
    Ok(())
}

impl Resident for Idle {
    fn kind(&self) -> Kind {
        Kind::Http2
    }

    fn bytes(&self) -> usize {
        let inside = self.inside.as_ref().map_or(0, |(whose, session)| whose.bytes() + session.bytes());
        size_of::<Idle>() + inside
    }

    fn watch(&self) -> Watch {
        Watch::Stir
    }

    fn settled(&mut self, _: u32) {}

    fn hear(&mut self, _: &[u8]) {}

    fn gone(&mut self, _: Option<io::Error>) {
        self.is_over = true;
    }

    fn stalled(&mut self) {}

    fn refused(&mut self) {}

    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn wrote(&mut self, _: usize) {}

    fn next(&mut self) -> Next {
        // The client is told that it is over, in frames.
        if self.is_over || crate::worker::draining() || clock::monotonic_ms() >= self.until_ms {
            return Next::Leave;
        }
        Next::Rest(Some(self.until_ms))
    }

    fn leave(mut self: Box<Self>, socket: Socket) {
        let Some((whose, session)) = self.inside.take() else { return };
        let client = whose.client(&socket);
        let wait = Duration::from_millis(self.until_ms.saturating_sub(clock::monotonic_ms()).max(1));
        drop(self);
        adopt_again(client.clone(), move || resume(session, client, socket, wait));
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        counters::waiting(-1);
    }
}
