//! `-t --plan`: what a reload would change in the server that runs. Both configurations are read in this process, the running one from the
//! texts that the master has of it, so that what decides a reload decides here: zones and peers that would be shared by the running server
//! are shared here, and requests of the access log are routed by the request's own functions.
//!
//! ```text
//! pid file ──ask──> texts ──read──> old Snapshot ─┐
//! nginx.conf ───────────────read──> new Snapshot ─┴─> state, certificates, listens ─> Plan ─> text, JSON
//! access log ─> requests ─> find_way under both ──────────────────────────────────────┘
//! ```

pub mod line;
mod requests;
mod state;
mod text;

use crate::config::read::{Which, read};
use crate::process_settings::SocketKind;
use crate::serve;
use crate::snapshot::Snapshot;
use crate::tls::expiry::{self, Held};
use conf::Disk;
use serde::Serialize;
use std::sync::Arc;

pub use requests::{Detour, Requests, Where};
pub use state::{Group, Zone};

/// What a reload would change.
#[derive(Debug, Serialize)]
pub struct Plan {
    /// The number of the configuration that runs.
    pub generation: u64,
    /// The file that the server reads on a reload, if that is not the one looked at.
    pub other_file: Option<String>,
    /// Why the worker process would be replaced by a new one, by directives; empty: it stays.
    pub new_process: Vec<String>,
    /// Worker threads before and after.
    pub threads: (usize, usize),
    /// Addresses.
    pub listeners: Vec<Listener>,
    /// Server blocks by their first names.
    pub servers: Comings,
    /// Zones with state.
    pub zones: Vec<Zone>,
    /// Groups of peers that change.
    pub upstreams: Vec<Group>,
    /// Certificates that change.
    pub certificates: Vec<Certificate>,
    /// Open connections to the addresses of the running configuration; none: the kernel was not to be asked.
    pub connections: Option<u64>,
    /// Requests of access logs.
    pub requests: Requests,
}

/// What comes and what goes, by names.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comings {
    /// Only in the new configuration.
    pub added: Vec<String>,
    /// Only in the old one.
    pub removed: Vec<String>,
}

/// What becomes of something that is in one of the configurations, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Only the new one has it.
    Added,
    /// Only the old one has it.
    Removed,
    /// Both have it, and it is not the same.
    Changed,
    /// It stays as it is.
    Kept,
    /// It stays, and begins empty.
    Lost,
}

/// An address.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Listener {
    /// As nginx shows it.
    pub address: String,
    /// `tcp`, `udp`, `unix`.
    pub kind: &'static str,
    /// What becomes of it; `changed`: options of its socket.
    pub change: Change,
    /// Open connections that came to it; they go on if it is removed.
    pub connections: Option<u64>,
}

/// A certificate.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// The file, or what was ordered.
    pub name: String,
    /// Hosts that it is for.
    pub hosts: Vec<String>,
    /// What becomes of it.
    pub change: Change,
    /// When it ends, Unix seconds: before and after.
    pub until: (Option<i64>, Option<i64>),
}

/// What a reload of the server with this pid file would change. `first`: what `which` says, read alone.
pub fn of(which: &Which, first: Arc<Snapshot>) -> Result<Plan, String> {
    let pid = first.process.pid.clone();
    // What a reload would share or refuse shows only if the running configuration is there first.
    drop(first);
    let (running, bundle, generation) = serve::running(&pid)?;
    let old = read(&bundle, &running, 1);
    let old = old.snapshot.ok_or("the configuration that runs cannot be read here")?;
    let reading = read(&Disk, which, 2);
    let why = || reading.problems.first().map_or_else(String::new, |p| p.render_line(&reading.tree.sources));
    let new = reading.snapshot.ok_or_else(|| format!("a reload would be refused: {}", why()))?;
    let file = |path: &std::path::Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let other_file = (file(&running.file) != file(&which.file)).then(|| running.file.display().to_string());
    let live = doctor::live::connections().ok();
    let listeners = listeners(&old, &new, live.as_ref());
    let of_old = listeners.iter().filter(|l| l.change != Change::Added).filter_map(|l| l.connections);
    Ok(Plan {
        generation,
        other_file,
        new_process: new_process(&old, &new),
        threads: (old.process.threads, new.process.threads),
        connections: live.is_some().then(|| of_old.sum()),
        listeners,
        servers: servers(&old, &new),
        zones: state::zones(&old, &new),
        upstreams: state::groups(&old, &new),
        certificates: certificates(&old, &new),
        requests: requests::compare(Arc::new(old), Arc::new(new)),
    })
}

impl Plan {
    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// The settings that a running process cannot take over.
fn new_process(old: &Snapshot, new: &Snapshot) -> Vec<String> {
    let (old, new) = (&old.process, &new.process);
    if new.master_process && !new.needs_new_process(old) {
        return Vec::new();
    }
    let all = [
        ("user", new.user != old.user),
        ("worker_rlimit_nofile", new.rlimit_nofile != old.rlimit_nofile),
        ("worker_rlimit_core", new.rlimit_core != old.rlimit_core),
        ("working_directory", new.working_directory != old.working_directory),
        ("worker_priority", new.priority != old.priority),
        ("env", new.env != old.env),
        ("transparent", new.transparent && !old.transparent),
        ("master_process", new.master_process != old.master_process),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
}

fn listeners(old: &Snapshot, new: &Snapshot, live: Option<&doctor::live::Connections>) -> Vec<Listener> {
    let shown = |l: &crate::process_settings::ListenSpec, change| {
        let is_unix = matches!(l.address, crate::process_settings::ListenAddress::Unix(_));
        let kind = match l.kind {
            _ if is_unix => "unix",
            SocketKind::Stream => "tcp",
            SocketKind::Datagram => "udp",
        };
        let inet = match &l.address {
            crate::process_settings::ListenAddress::Inet(address) if l.kind == SocketKind::Stream => Some(*address),
            _ => None,
        };
        let connections = inet.and_then(|address| live.map(|live| live.to(address)));
        Listener { address: l.address.to_string(), kind, change, connections }
    };
    let mut all = Vec::new();
    for l in &old.listens {
        let change = match new.listens.iter().find(|n| n.is_same_socket(l)) {
            None => Change::Removed,
            Some(n) if n != l => Change::Changed,
            Some(_) => Change::Kept,
        };
        all.push(shown(l, change));
    }
    let added = new.listens.iter().filter(|n| !old.listens.iter().any(|l| l.is_same_socket(n)));
    all.extend(added.map(|n| shown(n, Change::Added)));
    all
}

/// Server blocks with a name, by it: which of several of one name is meant, nobody can say.
fn servers(old: &Snapshot, new: &Snapshot) -> Comings {
    let names = |snapshot: &Snapshot| {
        let mut names: Vec<String> = snapshot
            .servers
            .iter()
            .map(|s| String::from_utf8_lossy(&s.name).into_owned())
            .filter(|n| !n.is_empty())
            .collect();
        names.sort();
        names.dedup();
        names
    };
    comings(&names(old), &names(new))
}

fn comings(old: &[String], new: &[String]) -> Comings {
    let without = |a: &[String], b: &[String]| a.iter().filter(|n| !b.contains(n)).cloned().collect();
    Comings { added: without(new, old), removed: without(old, new) }
}

fn certificates(old: &Snapshot, new: &Snapshot) -> Vec<Certificate> {
    let (old, new) = (expiry::certificates(old), expiry::certificates(new));
    let named = |all: &[Held], name: &str| all.iter().find(|h| h.name == name).cloned();
    let mut changed = Vec::new();
    for before in &old {
        match named(&new, &before.name) {
            Some(after) if after == *before => {}
            Some(after) => {
                changed.push(certificate(&after, Change::Changed, (Some(before.not_after), Some(after.not_after))))
            }
            None => changed.push(certificate(before, Change::Removed, (Some(before.not_after), None))),
        }
    }
    for after in new.iter().filter(|h| named(&old, &h.name).is_none()) {
        changed.push(certificate(after, Change::Added, (None, Some(after.not_after))));
    }
    changed
}

fn certificate(held: &Held, change: Change, until: (Option<i64>, Option<i64>)) -> Certificate {
    Certificate { name: held.name.clone(), hosts: held.hosts.clone(), change, until }
}
