//! An agent's place in its cluster: a key with a lease that is renewed as long as the agent lives, and taken anew when etcd
//! had forgotten it.

use super::client::Etcd;
use super::{BEAT, Cluster, PATIENCE, PAUSE};
use crate::agent::security::Security;
use crate::options::Options;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long a dead agent is believed to live: some renewals may be lost.
const TTL: Duration = Duration::from_secs(5);

/// A task that keeps the agent registered.
pub(in crate::agent) struct Registration {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct Place {
    etcd: String,
    security: Security,
    cluster: Cluster,
    name: String,
}

impl Registration {
    /// Registers an agent that listens on `own`; nothing without `--etcd`.
    pub(in crate::agent) fn start(
        options: &Options,
        security: &Security,
        own: SocketAddr,
    ) -> Result<Option<Registration>, String> {
        let Some(etcd) = options.etcd.clone() else { return Ok(None) };
        let name = match &options.advertise {
            Some(name) => name.clone(),
            None => towards(&etcd, own)?.to_string(),
        };
        let place = Place { etcd, security: security.clone(), cluster: Cluster::new(options)?, name };
        let (stop, stopped) = oneshot::channel();
        Ok(Some(Registration { stop, task: tokio::spawn(keep(place, stopped)) }))
    }

    /// Takes the agent out of its cluster.
    pub(in crate::agent) async fn end(self) {
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(PATIENCE, self.task).await;
    }
}

/// The address that this machine has towards etcd, if the agent listens on all.
fn towards(etcd: &str, own: SocketAddr) -> Result<SocketAddr, String> {
    if !own.ip().is_unspecified() {
        return Ok(own);
    }
    let unknown = || "which of this machine's addresses? --advertise HOST:PORT".to_owned();
    let first = etcd.split(',').next().unwrap_or_default();
    let authority = first.split_once("://").map_or(first, |(_, rest)| rest).trim_end_matches('/');
    let target = authority.to_socket_addrs().ok().and_then(|mut a| a.next()).ok_or_else(unknown)?;
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).and_then(|s| s.connect(target).and_then(|()| s.local_addr()));
    socket.map(|address| SocketAddr::new(address.ip(), own.port())).map_err(|_| unknown())
}

async fn keep(place: Place, mut stopped: oneshot::Receiver<()>) {
    let mut last = String::new();
    loop {
        let mut lease = None;
        tokio::select! {
            error = stay(&place, &mut lease) => {
                // Once for each kind of trouble, not twice a second.
                if error != last {
                    let error = error.to_string();
                    let shown = wire::terminal::plain(&error);
                    eprintln!("ironweir agent: etcd {}: {shown}; it is tried again", place.etcd);
                    last = error;
                }
            }
            _ = &mut stopped => {
                if let Some((mut etcd, lease)) = lease {
                    let _ = Etcd::revoke(&mut etcd, lease).await;
                }
                return;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Registers, and renews until something fails: what.
async fn stay(place: &Place, held: &mut Option<(Etcd, i64)>) -> String {
    let renewed = async {
        let mut etcd = Etcd::connect(&place.etcd, &place.security).await?;
        let lease = etcd.grant(TTL).await?;
        *held = Some((etcd.clone(), lease));
        let pair = (place.cluster.agent(&place.name), place.name.clone().into_bytes());
        etcd.put(pair, lease).await?;
        let mut beats = etcd.beats(lease).await?;
        println!("ironweir agent is {} in cluster {}", place.name, place.cluster.name);
        loop {
            tokio::time::sleep(BEAT).await;
            beats.beat().await?;
        }
    };
    let outcome: Result<(), String> = renewed.await;
    outcome.err().unwrap_or_default()
}
