//! One check of one peer: a connection, a question, a judgement. The protocols' own parts are in `http` and `grpc`.

use super::cause::Cause;
use super::check::{Ask, Check, Keep, Talk};
use super::link::{Opening, ProbeLink, dial, half_open, of_connect};
use super::matching::MAX_BODY;
use super::{fastcgi, grpc, http};
use crate::connection::Address;
use crate::upstream::peer::Peer;
use runtime::clock;
use runtime::timer::Timer;
use rustix::net::SocketType;
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a refusal of a datagram is waited for, where no answer is expected: a host that is there says so at once.
const UDP_REFUSAL: Duration = Duration::from_millis(500);
/// The largest datagram.
const DATAGRAM: usize = 65_536;

/// Checks a peer. `kept`: a connection of the check before; what can be used again is left in it. `timer` is free for it.
///
/// # Errors
/// What is wrong with the peer.
pub async fn probe(check: &Check, peer: &Peer, kept: &mut Option<ProbeLink>, timer: &Timer) -> Result<(), Cause> {
    let address = match (&peer.address, check.port) {
        (Address::Inet(a), Some(port)) => Address::Inet(SocketAddr::new(a.ip(), port)),
        (a, _) => a.clone(),
    };
    let limit = check.rhythm.limit;
    let (began_ms, limit_ms) = (clock::monotonic_ms(), limit.as_millis() as u64);
    timer.set(limit);
    let no_answer = Err(Cause::NoAnswer { waited_ms: limit_ms });
    match &check.ask {
        Ask::Udp(talk) => return timer.guard(datagram(&address, talk, limit)).await.unwrap_or(no_answer),
        Ask::HalfOpen => return timer.guard(half_open(&address)).await.unwrap_or(no_answer),
        Ask::Tcp(_) | Ask::Http(_) | Ask::FastCgi(_) | Ask::Grpc(_) => {}
    }
    let link = kept.take().and_then(|l| good(check, l));
    let connected = Cell::new(link.is_some());
    match timer.guard(converse(check, &address, peer, link, &connected)).await {
        Some(Ok(link)) => {
            *kept = link;
            Ok(())
        }
        Some(Err(cause)) => Err(cause),
        None if connected.get() => Err(Cause::Slow { took_ms: clock::monotonic_ms() - began_ms, limit_ms }),
        None => no_answer,
    }
}

/// A connection of an earlier check may be used for another.
fn good(check: &Check, mut link: ProbeLink) -> Option<ProbeLink> {
    let young = match check.rhythm.keepalive {
        None => false,
        Some(Keep::Time(time)) => u128::from(clock::monotonic_ms() - link.since_ms) < time.as_millis(),
        Some(Keep::Requests(most)) => link.used < most,
    };
    (young && link.is_quiet()).then_some(link)
}

fn opening(check: &Check) -> Opening<'_> {
    match &check.ask {
        _ if check.secure.is_some() => Opening::Ours,
        Ask::Http(ask) | Ask::FastCgi(ask) => Opening::Bytes(&ask.request),
        Ask::Tcp(talk) if !talk.send.is_empty() => Opening::Bytes(&talk.send),
        Ask::Tcp(talk) if talk.expect.is_some() => Opening::Theirs,
        _ => Opening::Ours,
    }
}

async fn converse(
    check: &Check,
    address: &Address,
    peer: &Peer,
    link: Option<ProbeLink>,
    connected: &Cell<bool>,
) -> Result<Option<ProbeLink>, Cause> {
    let mut link = match link {
        Some(link) => link,
        None => {
            let limit = check.rhythm.connect_limit;
            let timer = Timer::new();
            timer.set(limit);
            let made = timer.guard(ProbeLink::connect(address, opening(check))).await;
            let mut link = made.unwrap_or_else(|| Err(Cause::NoAnswer { waited_ms: limit.as_millis() as u64 }))?;
            connected.set(true);
            if let Some(secure) = &check.secure {
                link.shake(secure, peer.state.number).await?;
            }
            link
        }
    };
    link.used += 1;
    let again = match &check.ask {
        Ask::Tcp(talk) => {
            conversation(&mut link, talk).await?;
            false
        }
        Ask::Http(ask) => http::ask(&mut link, ask, peer).await?,
        Ask::FastCgi(ask) => {
            fastcgi::ask(&mut link, ask).await?;
            false
        }
        Ask::Grpc(ask) => grpc::ask(&mut link, ask).await?,
        Ask::Udp(_) | Ask::HalfOpen => false,
    };
    if again && check.rhythm.keepalive.is_some() {
        return Ok(Some(link));
    }
    if let Ask::Http(_) = check.ask {
        link.abort();
    }
    Ok(None)
}

async fn conversation(link: &mut ProbeLink, talk: &Talk) -> Result<(), Cause> {
    if !talk.send.is_empty() {
        link.send(&talk.send).await?;
    }
    let Some(expect) = &talk.expect else { return Ok(()) };
    let mut came = Vec::new();
    loop {
        if link.receive(&mut came).await? == 0 {
            return Err(if came.is_empty() { Cause::Closed } else { expect.cause(&came) });
        }
        if let Some(verdict) = expect.judge(&came) {
            if verdict.is_ok() && !talk.bye.is_empty() {
                link.send(talk.bye).await?;
            }
            return verdict;
        }
        if came.len() > MAX_BODY {
            return Err(expect.cause(&came));
        }
    }
}

async fn datagram(to: &Address, talk: &Talk, limit: Duration) -> Result<(), Cause> {
    let failed = |e: std::io::Error| of_connect(&e, to);
    let Address::Inet(_) = to else { return Err(Cause::Local("UDP needs an internet address".into())) };
    let mut socket = dial(SocketType::DGRAM, to).await.map_err(failed)?;
    socket.write_all(&talk.send).await.map_err(failed)?;
    let mut came = Vec::with_capacity(DATAGRAM);
    let Some(expect) = &talk.expect else {
        // Nothing but a refusal says that nobody is there.
        let timer = Timer::new();
        timer.set(UDP_REFUSAL.min(limit / 2));
        return match timer.guard(socket.read(&mut came)).await {
            Some(Err(e)) => Err(failed(e)),
            Some(Ok(_)) | None => Ok(()),
        };
    };
    socket.read(&mut came).await.map_err(failed)?;
    expect.judge(&came).unwrap_or_else(|| Err(expect.cause(&came)))
}
