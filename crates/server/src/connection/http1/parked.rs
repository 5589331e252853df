//! Connections between two requests that are parked, where a thread has so many that descriptors are few. From: `http1`, where one is idle.
//! To: `http1::resume`, when it brings something.

use super::{Http1, resume};
use crate::connection::incoming::Incoming;
use crate::connection::parked::{self, Kind, Next, Resident, Watch};
use crate::connection::socket::Socket;
use crate::connection::{Address, Client, adopt_again};
use crate::worker::counters;
use runtime::clock;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use wire::proxy_protocol::Header;

/// What is left of a connection between two requests.
struct Idle {
    number: u64,
    started_ms: u64,
    requests: u64,
    /// When it is closed, monotonic ms.
    until_ms: u64,
    /// `keepalive_min_timeout`
    stay_until_ms: u64,
    remote: Address,
    local: Option<Box<Address>>,
    proxy_protocol: Option<Rc<Header>>,
    listener: u32,
    debug: bool,
    nodelay: bool,
    /// It has brought something.
    is_over: bool,
}

/// Parks an idle connection that may wait so long; gives it back if it cannot be.
pub(super) fn try_park(mut http: Box<Http1>, client: &Rc<Client>, wait: Duration) -> Result<(), Box<Http1>> {
    let incoming = &mut http.incoming;
    if incoming.socket.tls().is_some() || client.tls.get().is_some() || !http.output.is_empty() || !parked::is_open() {
        return Err(http);
    }
    let fd = match std::mem::replace(&mut incoming.socket, Socket::none()).try_into_fd() {
        Ok(fd) => fd,
        Err(socket) => {
            incoming.socket = socket;
            return Err(http);
        }
    };
    let idle = Idle {
        number: client.number,
        started_ms: client.started_ms,
        requests: client.requests.get(),
        until_ms: clock::monotonic_ms() + wait.as_millis() as u64,
        stay_until_ms: http.stay_until_ms,
        remote: client.remote.borrow().clone(),
        local: client.local.borrow().clone().map(Box::new),
        proxy_protocol: client.proxy_protocol.get().cloned(),
        listener: client.listener as u32,
        debug: client.debug.get(),
        nodelay: incoming.is_nodelay(),
        is_over: false,
    };
    counters::waiting(1);
    parked::park(fd, Box::new(idle));
    Ok(())
}

impl Resident for Idle {
    fn kind(&self) -> Kind {
        Kind::Kept
    }

    fn bytes(&self) -> usize {
        size_of::<Idle>() + self.local.as_ref().map_or(0, |_| size_of::<Address>())
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

    fn leave(self: Box<Self>, fd: OwnedFd) {
        let socket = Socket::new(fd);
        let remote = self.remote.clone();
        let client = Client::new(self.number, remote, self.listener as usize, socket.handle());
        let local = RefCell::new(self.local.as_deref().cloned());
        let Some(client) = Rc::into_inner(client) else { return };
        let client = Rc::new(Client { started_ms: self.started_ms, local, ..client });
        client.requests.set(self.requests);
        client.debug.set(self.debug);
        if let Some(header) = &self.proxy_protocol {
            let _ = client.proxy_protocol.set(header.clone());
        }
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
        assert!(size_of::<Idle>() <= 112, "{}", size_of::<Idle>());
    }
}
