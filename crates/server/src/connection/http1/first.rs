//! Waits for what a client says: first, or next of something that it has begun. A silent connection is this wait and nothing else:
//! neither a buffer nor a request nor a request task is its own. From: `connection`, `handshake`. To: `head`.

use super::{Filled, Http1, head};
use crate::connection::Client;
use crate::connection::arrival::Arrival;
use crate::connection::slow::{TOO_SLOW, fill_silent};
use crate::log::error::Level;
use crate::worker::counters;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// Waits for the first bytes of a connection. None: it is over, and the log says why.
pub(super) async fn first_bytes(mut http: Box<Http1>, client: &Rc<Client>) -> Option<Box<Http1>> {
    if !http.unread().is_empty() {
        return Some(http);
    }
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(http.poll_fill(cx))).await {
        return begun(http, client, Filled::Read(read));
    }
    let (timeout, mut silence) = {
        let snapshot = crate::worker::snapshot_for(client);
        let arrival = Arrival::at_http(&snapshot, client);
        (*snapshot.server(arrival.server).conf.core.client_header_timeout, arrival.silence())
    };
    http.incoming.timer.set(timeout);
    http.head_armed = true;
    counters::waiting(1);
    let filled = fill_silent(&mut http.incoming, client, &mut silence).await;
    counters::waiting(-1);
    let Some(filled) = filled else {
        let snapshot = crate::worker::snapshot_for(client);
        Arrival::at_http(&snapshot, client).line("waiting for request", Level::Info, format_args!("{TOO_SLOW}"));
        return None;
    };
    begun(http, client, filled)
}

fn begun(http: Box<Http1>, client: &Rc<Client>, filled: Filled) -> Option<Box<Http1>> {
    if matches!(filled, Filled::Read(Ok(n)) if n > 0) {
        return Some(http);
    }
    head::say_over(http, client, filled);
    None
}
