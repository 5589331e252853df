//! `stream {}`: one session for each client connection, from accept to its log line. A session is a `Request` without
//! HTTP: it has the same arena, variables, snapshot and upstream tries, so the modules that `http` and `stream` have in
//! common are the same code (docs/decisions/0006). From: `connection`. To: `pass`, `proxy`, `relay`.
//!
//! ```text
//! PROXY header ─> realip ─> set, limit_conn ─> access ─> TLS ─> preread ─> content: proxy_pass · return · pass ─> log
//! ```

pub mod facts;
pub mod mqtt;
pub mod pass;
pub mod pipe;
pub mod preread;
pub mod proxy;
pub mod relay;
mod secure;
pub mod udp;

use crate::connection::arrival::Arrival;
use crate::connection::incoming::Incoming;
use crate::connection::proxy_header::{self, Header};
use crate::connection::{Address, Client, Downstream, pool};
use crate::log::error::Level;
use crate::log_error;
use crate::modules::stream_core::Handler;
use crate::modules::{access, limit_conn, lua, realip, stream_core, zone_sync};
use crate::request::Request;
use crate::request::end;
use crate::request::phases::Verdict;
use crate::status::requests;
use crate::stream::facts::{Facts, facts, note};
use runtime::timer::Timer;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use wire::proxy_protocol::ProxyError;

/// How long a client may take to receive the text of `return` (as in nginx).
const RETURN_TIMEOUT: Duration = Duration::from_secs(5);

/// One session and its connection to the client.
pub struct StreamSession {
    /// Its facts.
    pub r: Box<Request>,
    /// The connection to the client, with what it sent and nobody has passed on yet.
    pub incoming: Incoming,
}

/// Serves an accepted connection.
pub async fn serve(incoming: Incoming, client: Rc<Client>) {
    let Some(r) = begin(client, false) else { return };
    let mut session = StreamSession { r, incoming };
    let mut passes = 0;
    let status = loop {
        match session.run().await {
            End::Status(status) => break status,
            End::Passed(client) => {
                passes += 1;
                match pass::receive(session.incoming, client, passes).await {
                    Some(next) => session = next,
                    None => return,
                }
            }
        }
    };
    // The socket is closed when the line is written.
    close(session.r, status);
}

/// How a session ends.
pub enum End {
    /// It is over; with `$status`.
    Status(u16),
    /// It goes on as another client's of another listener.
    Passed(Rc<Client>),
}

/// Makes the session; none if the listener is gone with a reload.
fn begin(client: Rc<Client>, datagrams: bool) -> Option<Box<Request>> {
    let whole = crate::worker::snapshot_for(&client);
    let listen = crate::worker::stream_listen_in(&whole, &client)?;
    let snapshot = whole.stream.clone()?;
    let site = snapshot.ports[listen - whole.ports.len()].site(&client);
    let (server, started_ms) = (site.default, client.started_ms);
    let mut r = pool::take_request(snapshot, client, Downstream::None);
    r.server = server;
    r.location = r.server().root;
    r.started_ms = started_ms;
    let facts = Facts { action: "initializing session", listen, datagrams, ..Facts::default() };
    r.ctx.stream = Some(Box::new(facts));
    requests::begin(&mut r);
    if r.error_log().enabled(Level::Info) {
        let udp = if datagrams { "udp " } else { "" };
        let (client, address) = (r.client.remote.borrow(), &whole.listens[listen].address);
        note(&r, Level::Info, format_args!("{udp}client {client} connected to {address}"));
    }
    Some(r)
}

impl StreamSession {
    /// All phases but the log. What only some sessions wait for is a box of its own: all the others would hold room for it as long as they
    /// live.
    async fn run(&mut self) -> End {
        let snapshot = self.r.snapshot.clone();
        let listen = facts(&mut self.r).listen;
        let port = &snapshot.ports[listen - snapshot.whole().ports.len()];
        if port.proxy_protocol
            && let Err(status) = Box::pin(self.read_proxy_header(listen)).await
        {
            return End::Status(status);
        }
        if let Err(status) = checks(&mut self.r) {
            return End::Status(status);
        }
        if let Some(name) = (*self.r.conf().js.access).clone()
            && let Err(status) = Box::pin(crate::modules::js::stream::phase(self, &name, false)).await
        {
            return End::Status(status);
        }
        if port.encrypted() && port.site(&self.r.client).ssl {
            // A handshake that fails takes the socket along, and the log line asks for its address.
            crate::worker::local_address(&self.r.client);
            if let Err(status) = Box::pin(secure::accept(self, listen)).await {
                return End::Status(status);
            }
        }
        if *self.r.conf().stream_core.ssl_preread
            && let Err(status) = preread::hello(self).await
        {
            return End::Status(status);
        }
        if let Some(name) = (*self.r.conf().js.preread).clone()
            && let Err(status) = Box::pin(crate::modules::js::stream::phase(self, &name, true)).await
        {
            return End::Status(status);
        }
        if *self.r.conf().stream_mqtt.mqtt_preread
            && let Err(status) = Box::pin(mqtt::preread(self)).await
        {
            return End::Status(status);
        }
        if *self.r.conf().stream_mqtt.mqtt
            && let Err(status) = Box::pin(mqtt::filter(self)).await
        {
            return End::Status(status);
        }
        if self.r.conf().lua.preread.is_some() {
            facts(&mut self.r).action = "prereading client data";
            if let Err(status) = Box::pin(lua::stream::preread(&mut self.r, &mut self.incoming)).await {
                return End::Status(status);
            }
        }
        if self.r.has_fault() {
            return End::Status(500);
        }
        let handler = content_handler(&mut self.r);
        let inet = matches!(*self.r.client.remote.borrow(), Address::Inet(_));
        if inet && *self.r.conf().stream_core.tcp_nodelay {
            self.incoming.set_nodelay();
        }
        match handler {
            Handler::None => End::Status(500),
            Handler::Return => End::Status(self.return_text().await),
            Handler::Pass => pass::hand_over(&mut self.r),
            Handler::Proxy => End::Status(proxy::handle(self).await),
            Handler::Lua => End::Status(Box::pin(lua::stream::handle(&mut self.r, &mut self.incoming)).await),
            Handler::ZoneSync => End::Status(Box::pin(zone_sync::receive::serve(self)).await),
        }
    }

    /// Reads the PROXY header. The error is the session's status.
    async fn read_proxy_header(&mut self, listen: usize) -> Result<(), u16> {
        facts(&mut self.r).action = "reading PROXY protocol";
        let (snapshot, client) = (self.r.snapshot.clone(), self.r.client.clone());
        let arrival = Arrival::at_stream(&snapshot, &client, listen);
        match proxy_header::read(&mut self.incoming, arrival).await {
            Header::Read => Ok(()),
            Header::Broken => Err(400),
            Header::Nothing => {
                proxy_header::complain(arrival, ProxyError::Broken, &[]);
                Err(400)
            }
            Header::Gone => Err(200),
        }
    }

    /// `return`
    async fn return_text(&mut self) -> u16 {
        let r = &mut self.r;
        facts(r).action = "returning text";
        let snapshot = r.snapshot.clone();
        let text = snapshot.location(r.location).conf.stream_core.text.eval(r);
        if r.has_fault() {
            return 500;
        }
        let timer = Timer::new();
        timer.set(RETURN_TIMEOUT);
        let mut at = 0;
        while at < r.get(text).len() {
            let (socket, rest) = (&mut self.incoming.socket, &r.get(text)[at..]);
            let sent = poll_fn(|cx| match socket.poll_write_with(cx, |s| s.try_write(rest, false)) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => timer.poll_expired(cx).map(|()| None),
            })
            .await;
            match sent {
                Some(Ok(n)) => {
                    at += n;
                    facts(r).sent += n as u64;
                }
                Some(Err(_)) => return 500,
                None => {
                    log_error!(r, Info, "connection timed out (110: Connection timed out)");
                    return 200;
                }
            }
        }
        200
    }
}

/// The phases before the content. The error is the session's status.
fn checks(r: &mut Request) -> Result<(), u16> {
    facts(r).action = "initializing session";
    realip::stream_handler(r);
    stream_core::assign(r);
    for handler in [limit_conn::handler, access::handler] {
        let verdict = handler(r);
        if r.has_fault() {
            return Err(500);
        }
        if let Verdict::Status(status) = verdict {
            return Err(status);
        }
    }
    Ok(())
}

/// Goes on with the server of a name, if there is one (`ngx_stream_ssl_servername`, `ngx_stream_ssl_preread_servername`).
fn choose_server(r: &mut Request, name: &[u8]) {
    if name.is_empty() {
        return;
    }
    let snapshot = r.snapshot.clone();
    let listen = facts(r).listen;
    let site = snapshot.ports[listen - snapshot.whole().ports.len()].site(&r.client);
    let name = r.text(name);
    // A pattern that gives up is a fault: the session ends.
    if let Ok(Some(server)) = site.find(r, name) {
        r.server = server;
        r.location = snapshot.server(server).root;
    }
}

/// Who answers.
fn content_handler(r: &mut Request) -> Handler {
    facts(r).action = "";
    let handler = *r.conf().stream_core.handler;
    log_error!(r, Debug, "content handler: {handler:?}");
    handler
}

/// The log phase.
fn close(mut r: Box<Request>, status: u16) {
    facts(&mut r).status = status;
    end(&mut r);
    // A configuration that nobody else uses must not live on in the pool.
    if crate::worker::snapshot().generation == r.snapshot.generation {
        pool::give_request(r);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a session is made of beside its sockets and its task.
    #[test]
    fn sessions_are_small() {
        println!("request {}, facts {}, relay {}", size_of::<Request>(), size_of::<Facts>(), size_of::<relay::Relay>());
        let client = Client::new(1, Address::Unix(Default::default()), 0, std::rc::Weak::new());
        let task = size_of_val(&serve(Incoming::new(crate::connection::socket::Socket::none()), client));
        println!("task {task}");
        assert!(task <= 1100);
        assert!(size_of::<Request>() <= 2048 && size_of::<Facts>() <= 256 && size_of::<relay::Relay>() <= 384);
    }
}
