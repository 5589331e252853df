//! In the worker: tells the kernel's process of real servers when anything about them has changed: what checks found, what the
//! API was told, what names became. One thread for it, which is there once a configuration has such a server.

use super::plan::{self, Service};
use crate::log::error::Level;
use crate::log::process_line;
use crate::master::Reporter;
use crate::snapshot::Snapshot;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often is looked for news. A check's verdict is in the kernel's maps about twice as late at most.
const LOOK: Duration = Duration::from_millis(50);
/// Looking takes at most one part in so many of a CPU: thousands of servers are looked at less often.
const LOOK_SHARE: u32 = 20;

/// What is watched.
#[derive(Default)]
struct Watched {
    services: Vec<Arc<Service>>,
    reporter: Option<Reporter>,
    /// What was told last.
    told: Option<Vec<u8>>,
    complaints: Vec<String>,
    runs: bool,
}

static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);
static NEWS: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Option<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The services of the configuration that runs.
pub fn services() -> Vec<Arc<Service>> {
    lock().as_ref().map(|w| w.services.clone()).unwrap_or_default()
}

/// Watches the services of this configuration from now on.
pub fn configure(snapshot: &Snapshot, reporter: Reporter) {
    let services: Vec<_> = plan::services(snapshot).0.into_iter().map(Arc::new).collect();
    let mut guard = lock();
    if services.is_empty() && guard.is_none() {
        return;
    }
    let watched = guard.get_or_insert_default();
    watched.services = services;
    watched.reporter = Some(reporter);
    // Told anew in any case: the kernel's process may be another one.
    watched.told = None;
    let runs = std::mem::replace(&mut watched.runs, true);
    drop(guard);
    NEWS.notify_one();
    if !runs && let Err(e) = std::thread::Builder::new().name("l4".into()).spawn(watch) {
        let text = crate::log::os_error(&e);
        process_line(Level::Alert, format_args!("the kernel hears nothing of servers' states: no thread ({text})"));
    }
}

fn watch() {
    loop {
        let mut guard = lock();
        while guard.as_ref().is_none_or(|w| w.services.is_empty()) {
            guard = NEWS.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(watched) = guard.as_mut() else { continue };
        let services = watched.services.clone();
        drop(guard);
        let begun = Instant::now();
        let (news, complaints): (Vec<_>, Vec<_>) = services.iter().map(|s| s.news()).unzip();
        let complaints: Vec<String> = complaints.into_iter().flatten().collect();
        let Ok(bytes) = serde_json::to_vec(&news) else { continue };
        let mut guard = lock();
        if let Some(watched) = guard.as_mut() {
            // Another configuration may have come meanwhile: its services are looked at next time.
            let is_same = watched.services.len() == services.len()
                && watched.services.iter().zip(&services).all(|(a, b)| Arc::ptr_eq(a, b));
            let is_news = is_same && watched.told.as_deref() != Some(&bytes);
            let reporter = watched.reporter.clone().filter(|_| is_news);
            if is_same && watched.complaints != complaints {
                let new = complaints.iter().filter(|c| !watched.complaints.contains(c));
                new.for_each(|c| process_line(Level::Warn, format_args!("XDP: server {c}")));
                watched.complaints = complaints;
            }
            if is_news {
                watched.told = Some(bytes.clone());
            }
            drop(guard);
            if let Some(reporter) = reporter {
                reporter.reals(&bytes);
            }
        } else {
            drop(guard);
        }
        std::thread::sleep(LOOK.max(begun.elapsed() * LOOK_SHARE));
    }
}
