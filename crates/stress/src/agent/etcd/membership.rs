//! A controller's view of its cluster: the lock, so that two runs never overlap, and which agents are there. A thread of its own
//! renews the lease and hears of changes, whatever the controller does meanwhile.

use super::client::{Beats, Etcd};
use super::{BEAT, Cluster, PATIENCE, PAUSE};
use crate::agent::security::Security;
use crate::options::Options;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// How long the lock outlives a controller that dies.
const TTL: Duration = Duration::from_secs(6);
/// The run is ended so long before the lock could be somebody else's: agents need less than a second.
const MARGIN: Duration = Duration::from_secs(2);

/// What is known of the cluster.
#[derive(Default)]
struct Known {
    gone: BTreeSet<String>,
    lost_lock: Option<String>,
}

/// The lock of a cluster; given back when dropped.
pub(in crate::agent) struct Membership {
    known: Arc<Mutex<Known>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct EtcdSession {
    etcd: Etcd,
    lease: i64,
    beats: Beats,
    cluster: Cluster,
    /// Of the list that the run began with.
    revision: i64,
    agents: Vec<String>,
}

impl Membership {
    /// Takes the lock of the cluster and lists its agents.
    pub(in crate::agent) fn join(options: &Options, security: &Security) -> Result<(Vec<String>, Membership), String> {
        let urls = options.etcd.clone().unwrap_or_default();
        let (cluster, security) = (Cluster::new(options)?, security.clone());
        let known = Arc::new(Mutex::new(Known::default()));
        let (told, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let shared = known.clone();
        let thread = std::thread::Builder::new().name("etcd".to_owned()).spawn(move || {
            runtime.block_on(async {
                match EtcdSession::begin(&urls, &security, cluster).await {
                    Ok(session) => {
                        let _ = told.send(Ok(session.agents.clone()));
                        session.keep(&shared, stopped).await;
                    }
                    Err(text) => {
                        let _ = told.send(Err(format!("etcd {urls}: {text}")));
                    }
                }
            });
        });
        let thread = thread.map_err(|e| e.to_string())?;
        let agents = ready.recv().map_err(|_| "etcd: its thread has ended".to_owned())??;
        Ok((agents, Membership { known, stop: Some(stop), thread: Some(thread) }))
    }

    /// Whether an agent's lease has ended.
    pub(in crate::agent) fn is_gone(&self, agent: &str) -> bool {
        lock(&self.known).gone.contains(agent)
    }

    /// Why the lock may be somebody else's soon.
    pub(in crate::agent) fn lost_lock(&self) -> Option<String> {
        lock(&self.known).lost_lock.clone()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who has the lock, for whoever finds it taken.
fn own_name() -> Vec<u8> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("process {} on {} since {now} (Unix time)", std::process::id(), host.trim()).into_bytes()
}

impl EtcdSession {
    async fn begin(urls: &str, security: &Security, cluster: Cluster) -> Result<EtcdSession, String> {
        let mut etcd = Etcd::connect(urls, security).await?;
        let lease = etcd.grant(TTL).await?;
        let taken = etcd.create((cluster.lock(), own_name()), lease).await;
        let begun = match taken {
            Ok(None) => etcd.list(&cluster.agents()).await,
            Ok(Some(other)) => Err(format!("cluster {} has a run: {}", cluster.name, String::from_utf8_lossy(&other))),
            Err(text) => Err(text),
        };
        let agents = begun.and_then(|(pairs, revision)| {
            let names: Vec<String> = pairs.iter().filter_map(|(key, _)| cluster.agent_of(key)).collect();
            match names.is_empty() {
                true => Err(format!("no agent is registered in cluster {}", cluster.name)),
                false => Ok((names, revision)),
            }
        });
        match agents {
            Ok((agents, revision)) => {
                let beats = etcd.beats(lease).await?;
                Ok(EtcdSession { etcd, lease, beats, cluster, revision, agents })
            }
            Err(text) => {
                let _ = etcd.revoke(lease).await;
                Err(text)
            }
        }
    }

    /// Until it is stopped; then the lock is given back.
    async fn keep(self, known: &Mutex<Known>, stopped: oneshot::Receiver<()>) {
        let EtcdSession { mut etcd, lease, beats, cluster, revision, agents } = self;
        tokio::select! {
            () = renew(etcd.clone(), lease, beats, known) => {}
            () = listen(etcd.clone(), &cluster, &agents, revision, known) => {}
            _ = stopped => {}
        }
        let _ = tokio::time::timeout(PATIENCE, etcd.revoke(lease)).await;
    }
}

/// Renews the lease; ends when the lock can no longer be relied on.
async fn renew(mut etcd: Etcd, lease: i64, beats: Beats, known: &Mutex<Known>) {
    let (mut beats, mut renewed) = (Some(beats), Instant::now());
    loop {
        tokio::time::sleep(BEAT).await;
        let asked = Instant::now();
        let left = (TTL - MARGIN).saturating_sub(renewed.elapsed());
        let again = async {
            match &mut beats {
                Some(beats) => beats.beat().await,
                None => etcd.beats(lease).await.map(|new| beats = Some(new)),
            }
        };
        match tokio::time::timeout(left, again).await {
            Ok(Ok(())) => {
                renewed = asked;
                continue;
            }
            Ok(Err(_)) => beats = None,
            Err(_) => {}
        }
        if renewed.elapsed() >= TTL - MARGIN {
            lock(known).lost_lock = Some("the lock in etcd could not be kept".to_owned());
            return std::future::pending().await;
        }
    }
}

/// Hears which agents go, and which come back.
async fn listen(mut etcd: Etcd, cluster: &Cluster, agents: &[String], mut revision: i64, known: &Mutex<Known>) {
    loop {
        if let Ok(mut changes) = etcd.watch(&cluster.agents(), revision + 1).await {
            while let Ok(list) = changes.next().await {
                for (name, is_there) in list.iter().filter_map(|(key, there)| Some((cluster.agent_of(key)?, there))) {
                    let gone = &mut lock(known).gone;
                    if *is_there {
                        gone.remove(&name)
                    } else {
                        gone.insert(name)
                    };
                }
            }
        }
        // The watch broke: what happened meanwhile is in the list.
        tokio::time::sleep(PAUSE).await;
        if let Ok((pairs, now)) = etcd.list(&cluster.agents()).await {
            let there: BTreeSet<String> = pairs.iter().filter_map(|(key, _)| cluster.agent_of(key)).collect();
            lock(known).gone = agents.iter().filter(|agent| !there.contains(*agent)).cloned().collect();
            revision = now;
        }
    }
}
