//! `proxy_pass` of `stream`: finds a peer, connects, and lets `relay` copy until the end. From: the phases. Each try
//! stands in `Request::attempts`, as those of `http` do.

use super::StreamSession;
use super::relay::{self, Relay};
use crate::config::complex::Complex;
use crate::connection::socket::Socket;
use crate::connection::{Address, action};
use crate::health::cause::Cause;
use crate::health::passive;
use crate::log::error::Level;
use crate::log_error;
use crate::modules::core::size_of;
use crate::modules::stream_proxy::{Conf, Pass, ProxyHeader};
use crate::request::Request;
use crate::stream::facts::{Totals, facts, note};
use crate::upstream::availability::Role;
use crate::upstream::choose::{self, SelectedPeer};
use crate::upstream::directives::parse_local;
use crate::upstream::failure::{Failure, Side};
use crate::upstream::group::Group;
use crate::upstream::peer::State;
use crate::upstream::settings::next;
use crate::upstream::tries::Tries;
use crate::upstream::{connect, names, secure};
use runtime::clock;
use runtime::timer::Timer;
use rustix::net::{SocketType, sockopt};
use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// What lines of the error log say after `while`.
const CONNECTING: &str = action::CONNECTING;

/// What the log says of a session that `proxy_session_drop` has ended.
pub const DROPPED: &str = "session dropped: its peer is removed, down or unhealthy";

/// A peer that takes the session.
pub struct Reached {
    /// The peer.
    pub chosen: SelectedPeer,
    /// The connection to it, made secure if that is wanted: then it has its PROXY header as well.
    pub socket: Socket,
    /// Whose peer it is.
    pub group: Arc<Group>,
    tries: Tries,
}

impl Reached {
    /// The peer turned out not to be there.
    pub fn failed(&mut self, r: &mut Request) {
        self.tries.failed(r, &self.group, &self.chosen);
    }
}

/// Finds a peer and connects. The error is the session's status.
pub async fn find(r: &mut Request, conf: &Conf) -> Result<Reached, u16> {
    facts(r).proxied = true;
    let local = local_address(r, conf);
    let group = group(r, conf).await?;
    find_peer(r, conf, group, local).await
}

/// Serves a session by a peer; gives its status.
pub async fn handle(session: &mut StreamSession) -> u16 {
    let snapshot = session.r.snapshot.clone();
    let conf = &snapshot.location(session.r.location).conf.stream_proxy;
    let began_ms = clock::wall_ms();
    // What there was to try is over: it takes no room while the session goes on.
    let (chosen, socket, group) = match Box::pin(find(&mut session.r, conf)).await {
        Ok(Reached { chosen, socket, group, .. }) => (chosen, socket, group),
        Err(status) => return status,
    };
    let started_ms = clock::monotonic_ms();
    let status = relay_with(session, conf, (&group, &chosen), socket, began_ms).await;
    let (received, sent) = facts(&mut session.r).upstream;
    let attempt = session.r.attempts.current();
    // The session with the peer began with its connection.
    let connecting_ms = attempt.connect_ms.unwrap_or_default();
    attempt.response_ms = Some(clock::monotonic_ms() - started_ms + connecting_ms);
    attempt.header_ms = attempt.header_ms.map(|ms| ms + connecting_ms);
    (attempt.received, attempt.sent) = (received, sent);
    choose::session_over(&chosen, attempt);
    status
}

/// `proxy_bind`
fn local_address(r: &mut Request, conf: &Conf) -> Option<SocketAddr> {
    let text = conf.upstream.bind.as_ref()?.address.eval(r);
    let text = r.get(text);
    if text.is_empty() {
        return None;
    }
    let local = parse_local(text);
    if local.is_none() {
        log_error!(r, Error, "invalid local address \"{}\"", String::from_utf8_lossy(text));
    }
    local
}

/// The peers there are to ask. The error is the session's status.
async fn group(r: &mut Request, conf: &Conf) -> Result<Arc<Group>, u16> {
    match &*conf.own.pass {
        Some(Pass::Group(id)) => Ok(r.snapshot.groups[id.0 as usize].clone()),
        Some(Pass::Variables(text)) => evaluated(r, text).await,
        Some(Pass::Written(..)) | None => Err(500),
    }
}

async fn evaluated(r: &mut Request, text: &Complex) -> Result<Arc<Group>, u16> {
    let text = text.eval(r);
    if r.has_fault() {
        return Err(500);
    }
    let name = String::from_utf8_lossy(r.get(text)).into_owned();
    if let Some(group) = r.snapshot.groups.iter().find(|g| g.name.eq_ignore_ascii_case(&name)) {
        return Ok(group.clone());
    }
    if name.is_empty() {
        log_error!(r, Error, "no host in upstream \"{name}\"");
        return Err(500);
    }
    if !has_port(&name) {
        log_error!(r, Error, "no port in upstream \"{name}\"");
        return Err(500);
    }
    let addresses = names::addresses(r, &name, 0).await.map_err(|_| 500u16)?;
    Ok(Arc::new(Group::for_one_request(&name, addresses)))
}

fn has_port(target: &str) -> bool {
    let host_end = target.rfind(']').unwrap_or(0);
    target.starts_with("unix:") || target[host_end..].contains(':')
}

/// Asks peers until one takes the connection. The error is the session's status.
async fn find_peer(r: &mut Request, conf: &Conf, group: Arc<Group>, local: Option<SocketAddr>) -> Result<Reached, u16> {
    let mut tries = Tries::begin(&group, &conf.upstream).await;
    facts(r).action = CONNECTING;
    loop {
        let chosen = tries.choose(r, &group);
        if r.has_fault() {
            // The address, or the key that chose, has no value.
            return Err(500);
        }
        if let Some(status) = tries.refused() {
            return Err(status);
        }
        let Some(chosen) = chosen else {
            tries.no_live_upstreams(r, &group, 0);
            return Err(502);
        };
        let local = tries.changes().and_then(|c| c.local).or(local);
        tries.start(r, &chosen);
        let started = clock::monotonic_ms();
        match open(r, conf, &group, &chosen, local).await {
            Ok(socket) => {
                let connect_ms = clock::monotonic_ms() - started;
                r.attempts.current().connect_ms = Some(connect_ms);
                chosen.connected();
                choose::succeeded(&chosen, r.attempts.current());
                if let Some(sticky) = &group.sticky {
                    sticky.connected(r, &chosen.peer.session_id());
                }
                return Ok(Reached { chosen, socket, group, tries });
            }
            Err(failure) => {
                r.attempts.current().response_ms = Some(clock::monotonic_ms() - started);
                match failure.side {
                    Side::Peer => tries.failed(r, &group, &chosen),
                    Side::Local => {}
                    Side::Over(status) => return Err(status),
                }
            }
        }
        if tries.is_over() || !*conf.own.next_upstream {
            return Err(502);
        }
    }
}

async fn open(
    r: &mut Request,
    conf: &Conf,
    group: &Group,
    chosen: &SelectedPeer,
    local: Option<SocketAddr>,
) -> Result<Socket, Failure> {
    facts(r).action = CONNECTING;
    let kind = if facts(r).datagrams { SocketType::DGRAM } else { SocketType::STREAM };
    let connecting = connect::begin_as(kind, &chosen.peer.address, local, &conf.upstream)
        .map_err(|f| Failure::connecting(r, chosen, local, &f))?;
    let timer = Timer::new();
    timer.set(r.attempts.connect_timeout(&conf.upstream));
    let socket = match timer.guard(connect::finish(connecting)).await {
        Some(Ok(socket)) => socket,
        Some(Err(f)) => return Err(Failure::connecting(r, chosen, local, &f)),
        None => {
            passive::no_answer(&chosen.peer, r.attempts.connect_timeout(&conf.upstream));
            return Err(Failure::timed_out(r, false));
        }
    };
    if conf.context.is_some() && kind == SocketType::STREAM {
        return Box::pin(secure(r, conf, group, chosen, socket, &timer)).await;
    }
    Ok(socket)
}

/// `proxy_ssl`. The PROXY header goes before it, as plain bytes.
async fn secure(
    r: &mut Request,
    conf: &Conf,
    group: &Group,
    chosen: &SelectedPeer,
    mut socket: Socket,
    timer: &Timer,
) -> Result<Socket, Failure> {
    let Some(context) = &conf.context else { return Ok(socket) };
    let mut header = Vec::new();
    write_header(r, *conf.own.proxy_protocol, &mut header);
    if !matches!(timer.guard(socket.write_all(&header)).await, Some(Ok(()))) {
        log_error!(r, Error, "send() of the PROXY header failed");
        return Err(Failure::of(next::ERROR, false, false));
    }
    facts(r).action = action::SHAKING_UPSTREAM;
    let secure = match context.secure(r, group.name.as_bytes()) {
        Ok(secure) => secure,
        Err(text) => {
            log_error!(r, Error, "{text}");
            return Err(Failure::over(500));
        }
    };
    secure::shake(r, &conf.upstream, timer, socket, &secure, chosen).await.inspect_err(|_| {
        passive::note(&chosen.peer, Cause::Tls("see the error log".into()));
    })
}

/// Copies both ways until the end; gives the session's status.
async fn relay_with(
    session: &mut StreamSession,
    conf: &Conf,
    (group, chosen): (&Group, &SelectedPeer),
    mut peer: Socket,
    began_ms: u64,
) -> u16 {
    let StreamSession { r, incoming } = session;
    if r.error_log().enabled(Level::Info)
        && let Some(name) = r.attempts.all.last().and_then(|a| a.peer.as_ref()).map(|p| p.name.clone())
    {
        let local = crate::listen::address::local_address(peer.as_fd());
        note(r, Level::Info, format_args!("proxy {local} connected to {name}"));
    }
    if !*r.conf().stream_core.tcp_nodelay {
        let _ = sockopt::set_tcp_nodelay(peer.as_fd(), false);
    }
    let mut first = Vec::new();
    write_header(r, *conf.own.proxy_protocol, &mut first);
    // Before a handshake it has gone out already.
    let gone = if peer.tls().is_some() { std::mem::take(&mut first).len() as u64 } else { 0 };
    let header = first.len() as u64;
    first.extend_from_slice(&incoming.take_unread());
    facts(r).action = "proxying connection";
    if let Some(name) = (*r.conf().js.filter).clone() {
        let passed = first.split_off(header as usize);
        let sides = (&mut incoming.socket, &mut peer);
        let done = crate::modules::js::stream::filter(r, &name, sides, (first, passed), *conf.own.timeout).await;
        facts(r).received = done.received;
        facts(r).sent = done.sent;
        facts(r).upstream = (done.upstream.0, done.upstream.1 + gone);
        r.attempts.current().header_ms = done.first_byte_ms;
        return say_end(r, done.end);
    }
    let mut relay = Relay {
        timeout: *conf.own.timeout,
        half_close: *conf.own.half_close,
        up: relay::Direction::new(*conf.own.buffer_size, size_of(r, &conf.own.upload_rate), began_ms, first),
        down: relay::Direction::new(*conf.own.buffer_size, size_of(r, &conf.own.download_rate), began_ms, Vec::new()),
        started_ms: clock::monotonic_ms(),
    };
    let version = Cell::new(None);
    let is_dropped = || is_gone(group, chosen, &version);
    let is_dropped: Option<&dyn Fn() -> bool> = if *conf.own.session_drop { Some(&is_dropped) } else { None };
    let end = relay.run(&mut incoming.socket, &mut peer, || chosen.byte_came(), is_dropped).await;
    facts(r).received = (relay.up.received - header).saturating_sub_signed(facts(r).changed);
    facts(r).sent = relay.down.sent;
    facts(r).upstream = (relay.down.received, relay.up.sent + gone);
    r.attempts.current().header_ms = relay.first_byte_ms();
    if let Some(e) = relay.up.failed() {
        log_error!(r, Info, "{}", crate::log::read_error("recv()", &e));
    }
    if let Some(e) = relay.down.failed() {
        log_error!(r, Error, "{}", crate::log::read_error("recv()", &e));
    }
    say_end(r, end)
}

/// Notes why a session is over; its status.
fn say_end(r: &mut Request, end: relay::End) -> u16 {
    match end {
        relay::End::TimedOut => log_error!(r, Info, "connection timed out (110: Connection timed out)"),
        relay::End::Closed(who) => {
            let facts = r.ctx.stream.as_deref().map(Totals);
            if let Some(totals) = facts {
                note(r, Level::Info, format_args!("{who} disconnected{totals}"));
            }
        }
        relay::End::Dropped => log_error!(r, Info, "{DROPPED}"),
        relay::End::Broken(e) => log_error!(r, Info, "send() failed ({})", crate::log::os_error(&e)),
    }
    200
}

/// `proxy_session_drop`: whether the peer is no longer one of the group, or no longer serves. `version`: the list of peers in which it was
/// found last.
pub fn is_gone(group: &Group, chosen: &SelectedPeer, version: &Cell<Option<u32>>) -> bool {
    if matches!(chosen.peer.state(), State::Down | State::Unhealthy) {
        return true;
    }
    let Some(live) = &group.live else { return false };
    let now = live.version();
    if version.replace(Some(now)) == Some(now) {
        return false;
    }
    // A line that was edited has other words for the same state.
    let tiers = live.tiers();
    !tiers
        .iter()
        .flat_map(|t| &t.peers)
        .any(|p| Arc::ptr_eq(&p.state, &chosen.peer.state) && p.settings.role != Role::Down)
}

/// `proxy_protocol`
pub fn write_header(r: &Request, kind: ProxyHeader, out: &mut Vec<u8>) {
    if kind == ProxyHeader::Off {
        return;
    }
    let local = crate::worker::local_address(&r.client);
    let addresses = match (&*r.client.remote.borrow(), &local) {
        (Address::Inet(client), Address::Inet(local)) => Some((*client, *local)),
        _ => None,
    };
    match kind {
        ProxyHeader::V2 => wire::proxy_protocol::write_v2(addresses, &[], None, out),
        _ => wire::proxy_protocol::write_v1(addresses, out),
    }
}
