//! Waits for what a client says: first, or next of something that it has begun. A silent connection is this wait and nothing else:
//! neither a buffer nor a request nor a request task is its own. From: `connection`, `handshake`. To: `head`.

use super::{Filled, Http1, head};
use crate::connection::Client;
use crate::connection::arrival::Arrival;
use crate::connection::slow::{TOO_SLOW, Watch, fill_silent};
use crate::log::error::Level;
use crate::worker::counters;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

/// Waits for the first bytes of a connection. None: it is over, and the log says why.
#[allow(clippy::manual_async_fn)] // See `http1::serve`.
pub(super) fn first_bytes(mut http: Box<Http1>, client: &Rc<Client>) -> impl Future<Output = Option<Box<Http1>>> {
    async move {
        if !http.unread().is_empty() {
            return Some(http);
        }
        if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(http.poll_fill(cx))).await {
            return begun(http, client, Filled::Read(read));
        }
        let mut silence = begin_silence(&mut http, client);
        match fill_silent(&mut http.incoming, client, &mut silence).await {
            Some(filled) => {
                counters::waiting(-1);
                begun(http, client, filled)
            }
            None => {
                counters::waiting(-1);
                let snapshot = crate::worker::snapshot_for(client);
                let arrival = Arrival::at_http(&snapshot, client);
                arrival.line("waiting for request", Level::Info, format_args!("{TOO_SLOW}"));
                None
            }
        }
    }
}

/// The client's time runs from now on.
fn begin_silence(http: &mut Http1, client: &Rc<Client>) -> Option<Box<Watch>> {
    let snapshot = crate::worker::snapshot_for(client);
    let arrival = Arrival::at_http(&snapshot, client);
    http.incoming.timer.set(*snapshot.server(arrival.server).conf.core.client_header_timeout);
    http.head_armed = true;
    counters::waiting(1);
    arrival.silence()
}

fn begun(http: Box<Http1>, client: &Rc<Client>, filled: Filled) -> Option<Box<Http1>> {
    if matches!(filled, Filled::Read(Ok(n)) if n > 0) {
        return Some(http);
    }
    head::say_over(http, client, filled);
    None
}
