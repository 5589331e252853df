//! In the worker: what the kernel's process said last, for the API, the metrics and the dashboard.

use super::plan::Service;
use super::watch;
use crate::connection::Address;
use l4::Report;
use l4::plan::Protocol;
use l4::report::{Counts, RealReport, ServiceReport};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Key = (SocketAddr, Protocol);

#[derive(Default)]
struct Heard {
    report: Option<Arc<Report>>,
    /// What had been counted when somebody set it to zero: of virtual servers, and of real ones of them.
    zero: HashMap<(Key, Option<SocketAddr>), Counts>,
}

static HEARD: Mutex<Option<Heard>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Heard>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A report has come; one that cannot be read says nothing.
pub fn take(bytes: &[u8]) {
    if let Ok(report) = serde_json::from_slice::<Report>(bytes) {
        lock().get_or_insert_default().report = Some(Arc::new(report));
    }
}

/// The last report.
pub fn report() -> Option<Arc<Report>> {
    lock().as_ref()?.report.clone()
}

/// What the kernel did for a zone or a peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Flows there are.
    pub active: u64,
    /// What was counted.
    pub counts: Counts,
}

impl Done {
    fn add(&mut self, active: u64, counts: &Counts) {
        self.active += active;
        self.counts = self.counts.plus(counts);
    }
}

fn key(service: &Service) -> Key {
    (service.server.address, service.server.protocol)
}

/// Visits the services that are wanted, with what is said of them.
fn each(wanted: impl Fn(&Service) -> bool, mut visit: impl FnMut(&mut Heard, &ServiceReport)) {
    let services = watch::services();
    let mut guard = lock();
    let Some(heard) = guard.as_mut() else { return };
    let Some(report) = heard.report.clone() else { return };
    for service in services.iter().filter(|s| wanted(s)) {
        let said = report.services.iter().find(|s| (s.address, s.protocol) == key(service));
        if let Some(said) = said {
            visit(heard, said);
        }
    }
}

fn since(heard: &Heard, key: (Key, Option<SocketAddr>), counts: &Counts) -> Counts {
    heard.zero.get(&key).map_or(*counts, |zero| counts.since(zero))
}

/// What was done for servers with a `status_zone`.
pub fn of_zone(name: &str) -> Done {
    let mut done = Done::default();
    let wanted = |s: &Service| s.zone.as_ref().is_some_and(|z| *z.name == *name);
    each(wanted, |heard, said| {
        done.add(said.active(), &since(heard, ((said.address, said.protocol), None), &said.counts));
    });
    done
}

/// Sets a zone's counts to zero.
pub fn reset_zone(name: &str) {
    let wanted = |s: &Service| s.zone.as_ref().is_some_and(|z| *z.name == *name);
    each(wanted, |heard, said| {
        heard.zero.insert(((said.address, said.protocol), None), said.counts);
    });
}

fn real<'s>(said: &'s ServiceReport, at: &SocketAddr) -> Option<&'s RealReport> {
    said.reals.iter().find(|r| r.address == *at)
}

/// What was done with a peer of a group. `group`: its number.
pub fn of_peer(group: u32, address: &Address) -> Done {
    let mut done = Done::default();
    let Address::Inet(at) = address else { return done };
    each(
        |s| s.group.number == group,
        |heard, said| {
            if let Some(real) = real(said, at) {
                let counts = since(heard, ((said.address, said.protocol), Some(*at)), &real.counts);
                done.add(real.active, &counts);
            }
        },
    );
    done
}

/// Sets the counts of a group's peers to zero.
pub fn reset_group(group: u32) {
    each(
        |s| s.group.number == group,
        |heard, said| {
            for real in &said.reals {
                heard.zero.insert(((said.address, said.protocol), Some(real.address)), real.counts);
            }
        },
    );
}
