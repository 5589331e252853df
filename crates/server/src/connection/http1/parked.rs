//! Connections between two requests that are parked, where a thread has so many that descriptors are few, or that go on in another process.
//! From: `http1`, where one is idle. To: `http1::resume`, when it brings something.

use super::{Http1, resume};
use crate::connection::Client;
use crate::connection::begin::adopt_again;
use crate::connection::incoming::Incoming;
use crate::connection::parked::{self, Kind, Next, Ready, Resident, Watch, Whose};
use crate::connection::reuse::has_room;
use crate::connection::socket::Socket;
use crate::snapshot::ThreadSnapshot;
use crate::worker::counters;
use crate::worker::departure::{self, Papers, Stay, Traveller};
use runtime::clock;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

/// What is left of a connection between two requests.
struct Idle {
    /// None: it goes on.
    whose: Option<Whose>,
    /// When it is closed, monotonic ms.
    until_ms: u64,
    /// `keepalive_min_timeout`
    stay_until_ms: u64,
    nodelay: bool,
    /// It has brought something.
    is_over: bool,
}

/// Parks an idle connection that may wait so long; gives it back if it cannot be.
pub(super) fn try_park(mut http: Box<Http1>, client: &Rc<Client>, wait: Duration) -> Result<(), Box<Http1>> {
    let incoming = &mut http.incoming;
    if !http.output.is_empty() {
        return Err(http);
    }
    let ready = match Ready::of(std::mem::replace(&mut incoming.socket, Socket::none())) {
        Ok(ready) => ready,
        Err(socket) => {
            incoming.socket = socket;
            return Err(http);
        }
    };
    let idle = Idle::of(&http, client, wait);
    parked::park(ready, Box::new(idle));
    Ok(())
}

/// Whether an idle connection is to go on in another process, and can: it is nothing but its descriptor and what is known of its client.
/// (One over TLS has keys.)
pub(super) fn is_to_depart(http: &Http1, client: &Client) -> bool {
    departure::is_open()
        && http.incoming.socket.tls().is_none()
        && client.tls.get().is_none()
        && client.proxy_protocol.get().is_none()
        && http.output.is_empty()
}

/// Has it go there; gives it back if its descriptor is somebody else's too.
pub(super) fn depart(mut http: Box<Http1>, client: &Rc<Client>, wait: Duration) -> Result<(), Box<Http1>> {
    let incoming = &mut http.incoming;
    let fd = match std::mem::replace(&mut incoming.socket, Socket::none()).try_into_fd() {
        Ok(fd) => fd,
        Err(socket) => {
            incoming.socket = socket;
            return Err(http);
        }
    };
    let mut idle = Box::new(Idle::of(&http, client, wait));
    match idle.travel(&[]) {
        Some(papers) => {
            let stay = Box::new(move |files: Vec<OwnedFd>, why: Stay| {
                if let Some(fd) = files.into_iter().next() {
                    idle.stay(fd, why);
                }
            });
            departure::send(Traveller { papers, files: vec![fd], stay });
        }
        None => idle.leave(Socket::new(fd)),
    }
    Ok(())
}

/// Goes on with a connection of another process. It comes back if it has no place here.
pub fn arrive(
    r: &mut heir::Reader<'_>,
    fd: OwnedFd,
    terms: &heir::Terms,
    snapshot: &Rc<ThreadSnapshot>,
) -> Result<(), OwnedFd> {
    let Some(idle) = Idle::read(r, terms) else { return Err(fd) };
    let listener = idle.whose.as_ref().map_or(usize::MAX, |whose| whose.listener());
    let is_here = crate::worker::place_of(snapshot, listener).is_some_and(|at| at < snapshot.ports.len());
    if !is_here || !has_room() {
        return Err(fd);
    }
    Box::new(idle).leave(Socket::new(fd));
    Ok(())
}

impl Idle {
    fn of(http: &Http1, client: &Client, wait: Duration) -> Idle {
        counters::waiting(1);
        Idle {
            whose: Some(Whose::of(client)),
            until_ms: clock::monotonic_ms() + wait.as_millis() as u64,
            stay_until_ms: http.stay_until_ms,
            nodelay: http.incoming.is_nodelay(),
            is_over: false,
        }
    }

    fn read(r: &mut heir::Reader<'_>, terms: &heir::Terms) -> Option<Idle> {
        let whose = Whose::read(r, terms)?;
        let (left_ms, stay_ms, nodelay) = (r.number()?, r.number()?, r.flag()?);
        if !r.is_done() {
            return None;
        }
        let until = |left_ms: u64| clock::monotonic_ms().saturating_add(left_ms);
        counters::waiting(1);
        Some(Idle {
            whose: Some(whose),
            until_ms: until(left_ms),
            stay_until_ms: if stay_ms == 0 { 0 } else { until(stay_ms) },
            nodelay,
            is_over: false,
        })
    }
}

impl Resident for Idle {
    fn kind(&self) -> Kind {
        Kind::Kept
    }

    fn bytes(&self) -> usize {
        size_of::<Idle>() + self.whose.as_ref().map_or(0, Whose::bytes)
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
        let now_ms = clock::monotonic_ms();
        // A thread that ends hands it to another, or closes it.
        if self.is_over || crate::worker::draining() && self.stay_until_ms <= now_ms {
            return Next::Leave;
        }
        if now_ms >= self.until_ms {
            return Next::Close;
        }
        Next::Rest(Some(match crate::worker::draining() {
            true => self.until_ms.min(self.stay_until_ms),
            false => self.until_ms,
        }))
    }

    fn travel(&mut self, _: &[u8]) -> Option<Papers> {
        let whose = self.whose.as_ref().filter(|whose| whose.may_go() && !self.is_over)?;
        let left = |ms: u64| ms.saturating_sub(clock::monotonic_ms());
        let mut w = heir::Writer::default();
        let names = crate::worker::snapshot();
        w.number(names.generation);
        whose.write(&mut w);
        w.number(left(self.until_ms).max(1));
        w.number(left(self.stay_until_ms));
        w.flag(self.nodelay);
        Some(Papers { kind: heir::Kind::Idle, bytes: w.done(), names })
    }

    fn stay(self: Box<Self>, fd: OwnedFd, why: Stay) {
        // Nobody is told anything by the end of a connection on which nothing is under way.
        if why == Stay::Unanswered {
            self.leave(Socket::new(fd));
        }
    }

    fn leave(mut self: Box<Self>, socket: Socket) {
        let Some(client) = self.whose.take().map(|whose| whose.client(&socket)) else { return };
        let mut http = Http1::new(Incoming::new(socket));
        http.incoming.note_nodelay(self.nodelay);
        http.stay_until_ms = self.stay_until_ms;
        let wait = Duration::from_millis(self.until_ms.saturating_sub(clock::monotonic_ms()).max(1));
        drop(self);
        adopt_again(client.clone(), move || resume(http, client, wait));
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        counters::waiting(-1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Idle>() <= 120, "{}", size_of::<Idle>());
    }
}
