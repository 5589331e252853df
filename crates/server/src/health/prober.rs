//! Who checks peers: one task for each on the service thread, for all worker threads. When a configuration is taken the tasks of
//! the one before end and new ones take up its rhythm, so that reloads neither delay checks nor double them.

use super::check::Check;
use super::outlier;
use super::probe::probe;
use super::verdict::{note, pause};
use crate::service;
use crate::snapshot::Snapshot;
use crate::upstream::group::Tiers;
use crate::upstream::peer::Peer;
use crate::upstream::standing::Role;
use crate::worker::clock;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Checks begin at multiples of this: those that begin together share the wake-ups of the thread.
const TICK: Duration = Duration::from_millis(10);
/// First checks of a group are spread over its interval, and over this at most.
const SPREAD: Duration = Duration::from_secs(1);
/// How often a group whose peers may change is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// What is behind by more than this was never begun.
const NEVER: u64 = 0;

thread_local! {
    /// The tasks of the current configuration, on the service thread.
    static GUARDS: RefCell<Vec<Guard>> = const { RefCell::new(Vec::new()) };
}

/// A task that ends with this.
struct Guard(AbortHandle);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn start(task: impl Future<Output = ()> + 'static) -> Guard {
    Guard(tokio::task::spawn_local(task).abort_handle())
}

/// Checks what this configuration wants checked from now on, and nothing else.
pub fn configure(snapshot: &Snapshot) {
    let (mut checks, mut watched) = (Vec::new(), Vec::new());
    for plane in std::iter::once(snapshot).chain(snapshot.stream.as_deref()) {
        for group in &plane.groups {
            let of_group: Vec<&Check> =
                plane.main.health.checks.iter().filter(|c| Arc::ptr_eq(&c.group, group)).collect();
            let tiers = group.tiers_now();
            for peer in tiers.iter().flat_map(|t| &t.peers) {
                peer.state.standing.forget_checks(of_group.len());
                of_group.iter().for_each(|check| prepare(check, peer));
                if group.outliers.is_none() {
                    outlier::forget(group, peer);
                }
                peer.state.note_use(peer.settings.policy);
            }
            checks.extend(of_group.into_iter().cloned());
            watched.extend(group.outliers.map(|rules| (group.clone(), rules)));
        }
    }
    service::spawn(move || async move {
        let outliers = watched.into_iter().map(|(group, rules)| start(outlier::watch(group, rules)));
        let tasks = checks.into_iter().map(|check| start(watch_group(Arc::new(check)))).chain(outliers);
        GUARDS.set(tasks.collect());
    });
}

/// A `mandatory` check has to pass before the peer is used: anew after every reload, unless it is `persistent`.
fn prepare(check: &Check, peer: &Peer) {
    let stands = peer.state.standing.now();
    let passed = peer.state.health.notes().tracks[check.number].passed > 0;
    if check.rhythm.mandatory && !stands.fails(check.number) && !(check.rhythm.persistent && passed) {
        peer.state.standing.set_unproven(check.number, true);
    }
}

/// Starts a task for each peer of a group, and for those that come later.
async fn watch_group(check: Arc<Check>) {
    let mut watched: HashMap<u32, (Weak<Peer>, Guard)> = HashMap::new();
    let mut seen: Option<Arc<Tiers>> = None;
    loop {
        let tiers = check.group.tiers_now();
        if seen.as_ref().is_none_or(|t| !Arc::ptr_eq(t, &tiers)) {
            let peers: Vec<&Arc<Peer>> = tiers.iter().flat_map(|t| &t.peers).collect();
            watched.retain(|number, (peer, _)| {
                peer.upgrade()
                    .is_some_and(|p| peers.iter().any(|q| q.state.number == *number && q.settings == p.settings))
            });
            for (place, peer) in peers.iter().enumerate() {
                watched.entry(peer.state.number).or_insert_with(|| {
                    if seen.is_some() {
                        prepare(&check, peer);
                    }
                    let first = spread(&check, place, peers.len());
                    let task = watch_peer(check.clone(), (*peer).clone(), first);
                    (Arc::downgrade(peer), start(task))
                });
            }
            seen = Some(tiers);
        }
        if check.group.live.is_none() {
            return std::future::pending().await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// When the first check of a peer begins.
fn spread(check: &Check, place: usize, count: usize) -> Duration {
    // Who must not be used yet is asked at once.
    if check.rhythm.mandatory {
        return Duration::ZERO;
    }
    check.rhythm.interval.min(SPREAD) * place as u32 / count.max(1) as u32
}

async fn watch_peer(check: Arc<Check>, peer: Arc<Peer>, first: Duration) {
    let state = &peer.state;
    let mut kept = None;
    let mut due = Instant::now() + first;
    let before_ms = state.health.notes().tracks[check.number].began_ms;
    if before_ms != NEVER && !state.standing.now().lacks(check.number) {
        let wait = next_pause(&check, &peer);
        let passed = Duration::from_millis(clock::monotonic_ms().saturating_sub(before_ms));
        due = Instant::now() + wait.saturating_sub(passed);
    }
    loop {
        let planned = on_tick(due);
        tokio::time::sleep_until(planned + jitter(&check)).await;
        if peer.role() == Role::Down {
            due = planned + check.rhythm.interval;
            continue;
        }
        state.health.notes().tracks[check.number].began_ms = clock::monotonic_ms();
        let result = probe(&check, &peer, &mut kept).await;
        note(&check, &peer, result);
        // From plan to plan: a thread that is late once is not late for good.
        due = (planned + next_pause(&check, &peer)).max(Instant::now());
    }
}

fn next_pause(check: &Check, peer: &Peer) -> Duration {
    let track = peer.state.health.notes().tracks[check.number];
    pause(&check.rhythm, &track, peer.state.standing.now().fails(check.number))
}

/// The next tick of the process.
fn on_tick(at: Instant) -> Instant {
    thread_local!(static ORIGIN: Instant = Instant::now());
    let since = at.saturating_duration_since(ORIGIN.with(|o| *o));
    let behind = since.as_nanos() % TICK.as_nanos();
    if behind == 0 { at } else { at + Duration::from_nanos((TICK.as_nanos() - behind) as u64) }
}

fn jitter(check: &Check) -> Duration {
    match check.rhythm.jitter.as_millis() as u64 {
        0 => Duration::ZERO,
        most => Duration::from_millis(crate::upstream::choose::random() % (most + 1)),
    }
}
