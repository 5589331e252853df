//! How a connection begins: accepted, taken from another thread, back from where it was parked. From: `listen`. What comes first on it, and which session it then is.

use crate::config::cidr::Plain;
use crate::connection::arrival::Arrival;
use crate::connection::handshake::{self, Accepted};
use crate::connection::http1::{self, Http1};
use crate::connection::incoming::Incoming;
use crate::connection::proxy_header::{self, Header};
use crate::connection::reuse::{self, Seat, has_room};
use crate::connection::socket::Socket;
use crate::connection::{Address, Client, http2, http3, mqtt, parked};
use crate::listen::datagram::Flow;
use crate::listen::quic;
use crate::log::error::Level;
use crate::modules;
use crate::request::phases;
use crate::worker::handover::Parcel;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Instant;

/// Connections of all threads are counted in one row.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// The number of the next connection.
pub fn next_number() -> u64 {
    NEXT_NUMBER.load(Relaxed)
}

/// Connections have numbers from this one on: those below are of the process before.
pub fn number_from(number: u64) {
    NEXT_NUMBER.fetch_max(number, Relaxed);
}

/// Begins to serve an accepted socket. `now`: before the next one is accepted, while what the kernel has just touched for this one
/// is in the caches. A request that came with it (`deferred`) is answered then (measured: perf/notes/2026-11-22-loop.md).
pub fn start(fd: OwnedFd, remote: Address, listener: usize, now: bool) {
    if modules::guard::state::is_banned(&remote) {
        return;
    }
    if parked::is_crowded() {
        reuse::park_oldest();
    }
    reuse::sweep_if_many();
    if !has_room() {
        return;
    }
    crate::status::spent::accepted(|| crate::master::last_packet_ms(fd.as_fd()));
    let socket = Socket::new(fd);
    let client = Client::new(NEXT_NUMBER.fetch_add(1, Relaxed), remote, listener, socket.handle());
    crate::worker::draw(&client);
    look_closely(&client);
    let (seat, incoming) = (Seat::take(&client), Incoming::new(socket));
    if crate::worker::is_of_stream(&client) {
        let incoming = Box::new(incoming);
        return launch(guarded(seat, move || crate::stream::serve(*incoming, client)), now);
    }
    let http = Http1::new(incoming);
    launch(guarded(seat, move || serve_http(http, client)), now);
}

fn launch(work: impl Future<Output = ()> + 'static, now: bool) {
    if now {
        runtime::spawn_now(work);
    } else {
        runtime::spawn(work);
    }
}

/// Goes on with an idle connection of another thread.
pub fn adopt(parcel: Parcel) {
    if !has_room() {
        return;
    }
    let (client, socket, wait) = parcel.open();
    look_closely(&client);
    let seat = Seat::take_over(&client);
    runtime::spawn(guarded(seat, move || http1::resume(Http1::new(Incoming::new(socket)), client, wait)));
}

/// Goes on with a request whose connection was parked: it has a task, and a seat, again.
pub fn go_on(back: phases::Back, client: Rc<Client>) {
    adopt_again(client.clone(), move || http1::go_on_with(back, client));
}

/// A connection that was parked has a task, which does this, and a seat again.
pub(super) fn adopt_again<F: Future<Output = ()> + 'static>(client: Rc<Client>, begin: impl FnOnce() -> F + 'static) {
    let seat = Seat::take_over(&client);
    runtime::spawn(guarded(seat, begin));
}

/// Begins a session of datagrams; false: there is no room for one.
pub fn start_flow(flow: Rc<Flow>, remote: Address, local: Address, listener: usize) -> bool {
    if !has_room() {
        return false;
    }
    let client = Client::new(NEXT_NUMBER.fetch_add(1, Relaxed), remote, listener, Weak::new());
    client.local.replace(Some(Box::new(local)));
    crate::worker::draw(&client);
    look_closely(&client);
    runtime::spawn(guarded(Seat::take(&client), move || crate::stream::udp::serve(flow, client)));
    true
}

/// The client of a new QUIC connection; none: there is no room for one.
pub fn new_quic(remote: Address, local: Address, listener: usize) -> Option<Rc<Client>> {
    if !has_room() {
        return None;
    }
    let client = Client::new(NEXT_NUMBER.fetch_add(1, Relaxed), remote, listener, Weak::new());
    let client = Rc::new(Client { quic: true, local: RefCell::new(Some(Box::new(local))), ..Rc::into_inner(client)? });
    crate::worker::draw(&client);
    look_closely(&client);
    Some(client)
}

/// Begins to serve a QUIC connection.
pub fn start_quic(link: Rc<quic::QuicLink>, connection: quinn_proto::Connection, client: Rc<Client>) {
    runtime::spawn(guarded(Seat::take(&client), move || http3::serve(link, connection, client)));
}

/// `debug_connection`
fn look_closely(client: &Client) {
    let snapshot = crate::worker::snapshot();
    let debugged = &snapshot.main.debug_connections;
    if !debugged.is_empty() {
        let address = Plain::of(&client.remote.borrow());
        client.debug.set(debugged.iter().any(|network| network.contains(address)));
    }
}

/// A panic costs this connection and nothing else. What begins the work is given, not its future, for which there would be two places in
/// the task otherwise.
#[allow(clippy::manual_async_fn)] // See `http1::serve`.
fn guarded<F: Future<Output = ()>>(seat: Seat, begin: impl FnOnce() -> F) -> impl Future<Output = ()> {
    async move {
        let mut work = std::pin::pin!(begin());
        let result =
            poll_fn(|cx| match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.as_mut().poll(cx))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
                Err(panic) => Poll::Ready(Err(panic)),
            })
            .await;
        if let Err(panic) = result {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            let number = seat.number();
            crate::log::process_line(Level::Alert, format_args!("*{number} a connection was given up: {text}"));
        }
    }
}

/// Serves a connection of `http`.
#[allow(clippy::manual_async_fn)] // See `http1::serve`.
pub fn serve_http(mut http: Box<Http1>, client: Rc<Client>) -> impl Future<Output = ()> {
    async move {
        let encrypted = match comes_first(&client) {
            (false, false) => false,
            (proxied, encrypted) => {
                if !Box::pin(open(&mut http.incoming, &client, proxied, encrypted)).await {
                    return;
                }
                encrypted
            }
        };
        if encrypted && http2::is_agreed(&client) {
            return Box::pin(http2::serve(http, client)).await;
        }
        if speaks_mqtt(&client) {
            return Box::pin(mqtt::serve(http, &client)).await;
        }
        if let Some(http) = http1::serve(http, &client).await {
            Box::pin(http2::serve(http, client)).await;
        }
    }
}

/// Reads the PROXY header, and makes the connection secure, as far as the address wants that. False: it is over. Whoever speaks plain HTTP
/// where TLS is spoken gets an answer that says so.
async fn open(incoming: &mut Incoming, client: &Rc<Client>, proxied: bool, encrypted: bool) -> bool {
    let snapshot = crate::worker::snapshot_for(client);
    if proxied && proxy_header::read(incoming, Arrival::at_http(&snapshot, client)).await != Header::Read {
        return false;
    }
    if !encrypted {
        return true;
    }
    // The header may have taken a while: the configuration that holds now is asked.
    let snapshot = crate::worker::snapshot_for(client);
    let began = Instant::now();
    let is_over = handshake::accept(incoming, Arrival::at_http(&snapshot, client), None).await == Accepted::Over;
    if is_over {
        crate::status::trial::failed_handshake(snapshot.generation);
    } else {
        crate::status::spent::shaken(began);
    }
    !is_over
}

/// Whether a PROXY header, and whether TLS comes before the first request.
fn comes_first(client: &Client) -> (bool, bool) {
    let snapshot = crate::worker::snapshot_for(client);
    let port = &snapshot.ports[crate::worker::port_of(&snapshot, client.listener)];
    (port.proxy_protocol, port.encrypted() && port.site(client).ssl)
}

/// `listen ... mqtt`
fn speaks_mqtt(client: &Client) -> bool {
    let snapshot = crate::worker::snapshot_for(client);
    snapshot.ports[crate::worker::port_of(&snapshot, client.listener)].site(client).mqtt
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// What an idle connection is made of; the whole is measured by perf/hold.py.
    #[test]
    fn idle_connections_are_small() {
        let (tx, rx) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
        let socket = Socket::new(tx.into());
        let client = Client::new(1, Address::Unix(PathBuf::new()), 0, socket.handle());
        let http = Http1::new(Incoming::new(socket));
        let task = std::mem::size_of_val(&guarded(Seat::take(&client), move || serve_http(http, client)));
        drop(rx);
        let (session, client) = (size_of::<Http1>(), size_of::<Client>());
        println!("task {task}, session {session}, client {client}");
        assert!(task <= 224 && session <= 160 && client <= 176);
    }
}
