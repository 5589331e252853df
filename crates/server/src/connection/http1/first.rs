//! Waits for what a client says: first, or next of something that it has begun. A silent connection is this wait and nothing else:
//! neither a buffer nor a request nor a desk is its own. From: `connection`, `handshake`. To: `head`.

use super::{Http1, head};
use crate::connection::Client;
use crate::connection::pool;
use crate::worker::counters;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

/// How a wait for bytes ended.
pub enum Filled {
    /// As the read did; 0 is the end.
    Read(io::Result<usize>),
    /// The deadline has passed.
    Late,
    /// Another connection has this one's seat.
    Taken,
}

impl Http1 {
    /// Reads once, waiting until something comes or the session's deadline has passed. As long as nothing has come, the connection could
    /// make room for another; afterwards if its client is too slow (`connection::reuse`).
    pub async fn fill(&mut self, client: &Client) -> Filled {
        let filled = poll_fn(|cx| {
            if client.is_taken() {
                return Poll::Ready(Filled::Taken);
            }
            if let Poll::Ready(read) = self.poll_fill(cx) {
                return Poll::Ready(Filled::Read(read));
            }
            if self.unread().is_empty() {
                self.lend_input();
                client.rests();
            } else {
                self.slim();
                client.owes(0);
            }
            self.timer.poll_expired(cx).map(|()| Filled::Late)
        })
        .await;
        client.works();
        filled
    }

    /// Part of a head waits for the rest in a buffer of its own size.
    fn slim(&mut self) {
        if self.input.capacity() < pool::BUFFER || self.unread().len() > pool::BUFFER / 2 {
            return;
        }
        let few = self.unread().to_vec();
        pool::give_buffer(std::mem::replace(&mut self.input, few));
        self.at = 0;
    }

    /// Bytes wait in a buffer of their own size.
    pub(super) fn is_slim(&self) -> bool {
        !self.input.is_empty() && self.input.capacity() < pool::BUFFER
    }
}

/// Waits for the first bytes of a connection. None: it is over, and the log says why.
pub(super) async fn first_bytes(mut http: Box<Http1>, client: &Rc<Client>) -> Option<Box<Http1>> {
    if !http.unread().is_empty() {
        return Some(http);
    }
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(http.poll_fill(cx))).await {
        return begun(http, client, Filled::Read(read));
    }
    let timeout = {
        let shot = crate::worker::shot();
        let port = &shot.ports[crate::worker::port_of(&shot, client.listener)];
        *shot.server(port.site(client).default).conf.core.client_header_timeout
    };
    http.timer.set(timeout);
    http.head_armed = true;
    counters::waiting(1);
    let filled = http.fill(client).await;
    counters::waiting(-1);
    begun(http, client, filled)
}

fn begun(http: Box<Http1>, client: &Rc<Client>, filled: Filled) -> Option<Box<Http1>> {
    if matches!(filled, Filled::Read(Ok(n)) if n > 0) {
        return Some(http);
    }
    head::say_over(http, client, filled);
    None
}
