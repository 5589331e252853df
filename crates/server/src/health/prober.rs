//! Who checks peers: one thread for all worker threads, with a task for each peer and check. When a configuration is taken the
//! tasks of the one before end and new ones take up its rhythm, so that reloads neither delay checks nor double them.
//!
//! The thread works in ticks (`runtime::set_tick`): what begins, goes on or ends within one shares a wake-up, which costs more than
//! a check (docs/decisions/0014).

use super::check::Check;
use super::link;
use super::outlier;
use super::probe::probe;
use super::require;
use super::verdict::{note, pause};
use crate::log::error::Level;
use crate::log::process_line;
use crate::snapshot::Snapshot;
use crate::upstream::availability::Role;
use crate::upstream::group::Tiers;
use crate::upstream::peer::Peer;
use runtime::TaskId;
use runtime::clock;
use runtime::timer::{self, Timer};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// There are so many ticks in the shortest time that a check may take: a check takes two or three of them.
const TICKS: u64 = 25;
/// The longest tick, ms.
const LONGEST_TICK_MS: u64 = 50;
/// Below, ms, ticks save nothing: the thread takes news as they come.
const SHORTEST_TICK_MS: u64 = 4;
/// First checks of a group are spread over its interval, and over this at most.
const SPREAD: Duration = Duration::from_secs(1);
/// How often a group whose peers may change is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// What is behind by more than this was never begun.
const NEVER: u64 = 0;

type Work = Box<dyn FnOnce() + Send>;

/// The way to the prober's thread, once there is one.
static THREAD: Mutex<Option<UnboundedSender<Work>>> = Mutex::new(None);

thread_local! {
    /// The tasks of the current configuration, on the prober's thread.
    static GUARDS: RefCell<Vec<Guard>> = const { RefCell::new(Vec::new()) };
}

/// A task that ends with this.
struct Guard {
    over: Rc<Cell<bool>>,
    task: TaskId,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.over.set(true);
        runtime::wake(self.task);
    }
}

fn start(task: impl Future<Output = ()> + 'static) -> Guard {
    let over = Rc::new(Cell::new(false));
    let ended = over.clone();
    let task = runtime::spawn(async move {
        let mut task = pin!(task);
        poll_fn(|cx| if ended.get() { Poll::Ready(()) } else { task.as_mut().poll(cx) }).await;
    });
    Guard { over, task }
}

/// Has the prober's thread do something; it is started if there is none.
fn tell(work: Work) {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(works) = &*thread {
        let sent = works.send(work);
        debug_assert!(sent.is_ok(), "the thread lives as long as the process");
        return;
    }
    let (works, mut receiver) = unbounded_channel::<Work>();
    let listen = async move {
        while let Some(work) = receiver.recv().await {
            work();
        }
    };
    let started = std::thread::Builder::new().name("prober".into()).spawn(move || {
        if let Err(e) = runtime::run(crate::worker::thread::HOOKS, listen) {
            complain(&e);
        }
    });
    match started {
        // Nobody else holds the receiver, which waits for it.
        Ok(_) => {
            let _ = works.send(work);
            *thread = Some(works);
        }
        Err(e) => complain(&e),
    }
}

fn complain(e: &std::io::Error) {
    process_line(Level::Alert, format_args!("peers are not checked: no thread for it ({})", crate::log::os_error(e)));
}

/// Checks what this configuration wants checked from now on, and nothing else.
pub fn configure(snapshot: &Arc<Snapshot>) {
    let (mut checks, mut watched) = (Vec::new(), Vec::new());
    for subsystem in std::iter::once(&**snapshot).chain(snapshot.stream.as_deref()) {
        for group in &subsystem.groups {
            let of_group: Vec<&Check> =
                subsystem.main.health.checks.iter().filter(|c| Arc::ptr_eq(&c.group, group)).collect();
            let tiers = group.tiers_now();
            for peer in tiers.iter().flat_map(|t| &t.peers) {
                peer.state.availability.forget_checks(of_group.len());
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
    let idle = checks.is_empty() && watched.is_empty();
    if idle && THREAD.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
        return;
    }
    let for_variables = checks.iter().any(Check::requires_variables).then(|| snapshot.clone());
    tell(Box::new(move || {
        runtime::set_tick(beat_ms(&checks));
        link::close_spare();
        require::evaluate_under(for_variables);
        let outliers = watched.into_iter().map(|(group, rules)| start(outlier::watch(group, rules)));
        let tasks = checks.into_iter().map(|check| start(watch_group(Arc::new(check)))).chain(outliers);
        GUARDS.set(tasks.collect());
    }));
}

/// How often the thread looks for news: seldom enough to share wake-ups, often enough that no check is late by it.
fn beat_ms(checks: &[Check]) -> u64 {
    let shortest = checks.iter().map(|c| c.rhythm.limit.min(c.rhythm.connect_limit)).min();
    let tick = shortest.map_or(0, |t| (t.as_millis() as u64 / TICKS).min(LONGEST_TICK_MS));
    if tick < SHORTEST_TICK_MS { 0 } else { tick }
}

/// A `mandatory` check has to pass before the peer is used: anew after every reload, unless it is `persistent`.
fn prepare(check: &Check, peer: &Peer) {
    let availability = peer.state.availability.now();
    peer.state.availability.set_persistent(check.number, check.rhythm.persistent);
    let passed = peer.state.health.notes().tracks[check.number].passed > 0;
    if check.rhythm.mandatory && !availability.fails(check.number) && !(check.rhythm.persistent && passed) {
        peer.state.availability.set_unproven(check.number, true);
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
        timer::sleep(LOOK).await;
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
    let (mut kept, timer) = (None, Timer::new());
    let mut due_ms = clock::monotonic_ms() + ms(first);
    let before_ms = state.health.notes().tracks[check.number].began_ms;
    if before_ms != NEVER && !state.availability.now().lacks(check.number) {
        due_ms = (before_ms + ms(next_pause(&check, &peer))).max(clock::monotonic_ms());
    }
    loop {
        let wait_ms = (due_ms + jitter_ms(&check)).saturating_sub(clock::monotonic_ms());
        timer.set(Duration::from_millis(wait_ms));
        poll_fn(|cx| timer.poll_expired(cx)).await;
        if peer.role() == Role::Down {
            due_ms += ms(check.rhythm.interval);
            continue;
        }
        state.health.notes().tracks[check.number].began_ms = clock::monotonic_ms();
        let result = probe(&check, &peer, &mut kept, &timer).await;
        note(&check, &peer, result);
        // From plan to plan: a thread that is late once is not late for good.
        due_ms = (due_ms + ms(next_pause(&check, &peer))).max(clock::monotonic_ms());
    }
}

fn next_pause(check: &Check, peer: &Peer) -> Duration {
    let track = peer.state.health.notes().tracks[check.number];
    pause(&check.rhythm, &track, peer.state.availability.now().fails(check.number))
}

fn jitter_ms(check: &Check) -> u64 {
    match ms(check.rhythm.jitter) {
        0 => 0,
        most => crate::upstream::choose::random() % (most + 1),
    }
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}
