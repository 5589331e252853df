//! Connections between two requests that are parked, where a thread has so many that descriptors are few, or that go on in another process.
//! From: `http1`, where one is idle. To: `http1::resume`, when it brings something.

use super::{Http1, resume};
use crate::connection::Client;
use crate::connection::begin::adopt_again;
use crate::connection::incoming::Incoming;
use crate::connection::parked::idle::{self, Between, Idle};
use crate::connection::parked::{self, Kind, Ready, Whose};
use crate::connection::socket::Socket;
use crate::snapshot::ThreadSnapshot;
use crate::worker::departure;
use runtime::clock;
use std::rc::Rc;
use std::time::Duration;

/// What is left of the session.
struct Kept {
    /// `keepalive_min_timeout`
    stay_until_ms: u64,
    nodelay: bool,
}

/// Parks an idle connection that may wait so long; gives it back if it cannot be.
pub(super) fn try_park(mut http: Box<Http1>, client: &Rc<Client>, wait: Duration) -> Result<(), Box<Http1>> {
    let (is_silent, kept) = (http.output.is_empty(), Kept::of(&http));
    let Some(ready) = is_silent.then(|| parked::take(&mut http.incoming.socket, false)).flatten() else {
        return Err(http);
    };
    parked::park(ready, Idle::new(Whose::of(client), kept, wait));
    Ok(())
}

/// Whether an idle connection is to go on in another process, and can: it is nothing but its descriptor, what is known of its client, and
/// the keys of TLS 1.3.
pub(super) fn is_to_depart(http: &mut Http1) -> bool {
    departure::is_open() && http.output.is_empty() && http.incoming.socket.may_freeze()
}

/// Has it go there; gives it back if its descriptor is somebody else's too.
pub(super) fn depart(mut http: Box<Http1>, client: &Rc<Client>, wait: Duration) -> Result<(), Box<Http1>> {
    let kept = Kept::of(&http);
    let Some(ready) = parked::take(&mut http.incoming.socket, true) else { return Err(http) };
    parked::send_off(vec![(ready, Idle::new(Whose::of(client), kept, wait))], &[]);
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

impl Kept {
    /// Of a session that still has its socket.
    fn of(http: &Http1) -> Kept {
        Kept { stay_until_ms: http.stay_until_ms, nodelay: http.incoming.is_nodelay() }
    }
}

impl Between for Kept {
    const KINDS: (Kind, heir::Kind) = (Kind::Kept, heir::Kind::Idle);
    const SAYS_GOODBYE: bool = false;

    fn stay_until_ms(&self) -> u64 {
        self.stay_until_ms
    }

    fn write(&self, w: &mut heir::Writer) -> bool {
        w.number(self.stay_until_ms.saturating_sub(clock::monotonic_ms()));
        w.flag(self.nodelay);
        true
    }

    fn read(r: &mut heir::Reader<'_>) -> Option<Kept> {
        let (stay_ms, nodelay) = (r.number()?, r.flag()?);
        let stay_until_ms = if stay_ms == 0 { 0 } else { clock::monotonic_ms().saturating_add(stay_ms) };
        Some(Kept { stay_until_ms, nodelay })
    }

    fn resume(self, client: Rc<Client>, socket: Socket, wait: Duration) {
        let mut http = Http1::new(Incoming::new(socket));
        http.incoming.note_nodelay(self.nodelay);
        http.stay_until_ms = self.stay_until_ms;
        adopt_again(client.clone(), move || resume(http, client, wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Idle<Kept>>() <= 120, "{}", size_of::<Idle<Kept>>());
    }
}
