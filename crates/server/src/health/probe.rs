//! One check of one peer: a connection, a question, a judgement. The protocols' own parts are in `http` and `grpc`.

use super::cause::Cause;
use super::check::{Ask, Check, Keep, Talk};
use super::link::{Link, of_connect};
use super::matching::MAX_BODY;
use super::{grpc, http};
use crate::connection::Address;
use crate::upstream::peer::Peer;
use std::cell::Cell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

/// How long a refusal of a datagram is waited for, where no answer is expected: a host that is there says so at once.
const UDP_REFUSAL: Duration = Duration::from_millis(500);
/// The largest datagram.
const DATAGRAM: usize = 65_536;

/// Checks a peer. `kept`: a connection of the check before; what can be used again is left in it.
///
/// # Errors
/// What is wrong with the peer.
pub async fn probe(check: &Check, peer: &Peer, kept: &mut Option<Link>) -> Result<(), Cause> {
    let address = match (&peer.address, check.port) {
        (Address::Inet(a), Some(port)) => Address::Inet(SocketAddr::new(a.ip(), port)),
        (a, _) => a.clone(),
    };
    let began = Instant::now();
    let limit = check.rhythm.limit;
    if let Ask::Udp(talk) = &check.ask {
        let done = timeout_at(began + limit, datagram(&address, talk)).await;
        return done.unwrap_or(Err(Cause::NoAnswer { waited_ms: limit.as_millis() as u64 }));
    }
    let connected = Cell::new(false);
    let link = kept.take().filter(|l| is_good(check, l));
    connected.set(link.is_some());
    let whole = converse(check, &address, link, &connected);
    match timeout_at(began + limit, whole).await {
        Ok(Ok(link)) => {
            *kept = link;
            Ok(())
        }
        Ok(Err(cause)) => Err(cause),
        Err(_) if connected.get() => {
            let (took_ms, limit_ms) = (began.elapsed().as_millis() as u64, limit.as_millis() as u64);
            Err(Cause::Slow { took_ms, limit_ms })
        }
        Err(_) => Err(Cause::NoAnswer { waited_ms: limit.as_millis() as u64 }),
    }
}

/// A connection of an earlier check may be used for another.
fn is_good(check: &Check, link: &Link) -> bool {
    let young = match check.rhythm.keepalive {
        None => false,
        Some(Keep::Time(time)) => link.since.elapsed() < time,
        Some(Keep::Requests(most)) => link.used < most,
    };
    young && link.is_quiet()
}

async fn converse(
    check: &Check,
    address: &Address,
    link: Option<Link>,
    connected: &Cell<bool>,
) -> Result<Option<Link>, Cause> {
    let mut link = match link {
        Some(link) => link,
        None => {
            let limit = check.rhythm.connect_limit;
            let made = timeout_at(Instant::now() + limit, Link::connect(address)).await;
            let mut link = made.unwrap_or_else(|_| Err(Cause::NoAnswer { waited_ms: limit.as_millis() as u64 }))?;
            connected.set(true);
            if let Some(secure) = &check.secure {
                link.shake(secure).await?;
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
        Ask::Http(ask) => http::ask(&mut link, ask).await?,
        Ask::Grpc(ask) => grpc::ask(&mut link, ask).await?,
        Ask::Udp(_) => false,
    };
    Ok((again && check.rhythm.keepalive.is_some()).then_some(link))
}

async fn conversation(link: &mut Link, talk: &Talk) -> Result<(), Cause> {
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
            return verdict;
        }
        if came.len() > MAX_BODY {
            return Err(expect.cause(&came));
        }
    }
}

async fn datagram(to: &Address, talk: &Talk) -> Result<(), Cause> {
    let Address::Inet(to_inet) = to else { return Err(Cause::Local("UDP needs an internet address".into())) };
    let any: SocketAddr = match to_inet {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let failed = |e: &std::io::Error| of_connect(e, to);
    let socket = UdpSocket::bind(any).await.map_err(|e| failed(&e))?;
    socket.connect(to_inet).await.map_err(|e| failed(&e))?;
    socket.send(&talk.send).await.map_err(|e| failed(&e))?;
    let mut buffer = vec![0; DATAGRAM];
    let Some(expect) = &talk.expect else {
        // Nothing but a refusal says that nobody is there.
        return match tokio::time::timeout(UDP_REFUSAL, socket.recv(&mut buffer)).await {
            Ok(Err(e)) => Err(failed(&e)),
            Ok(Ok(_)) | Err(_) => Ok(()),
        };
    };
    let len = socket.recv(&mut buffer).await.map_err(|e| failed(&e))?;
    let came = &buffer[..len];
    expect.judge(came).unwrap_or_else(|| Err(expect.cause(came)))
}
