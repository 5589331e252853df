//! What a worker process becomes before it starts threads: its user, limits, directory, environment.
//! Runs in the child, after fork. Rights are dropped last of what needs them.

use super::sys;
use crate::log::error::Errno;
use crate::process_settings::{CpuSet, EnvRule, ProcessSettings, User};
use crate::server_log;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setpriority_process, setrlimit,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities};
use std::ffi::OsString;
use std::io;

/// The settings cannot be applied; logged. The worker must not run.
#[derive(Debug)]
pub(super) struct Fatal;

/// Applies everything that concerns the process as a whole.
pub(super) fn settle(settings: &ProcessSettings, started_with: &[(OsString, OsString)]) -> Result<(), Fatal> {
    sys::set_environment(&environment(settings, started_with));
    // Rust's runtime handles these to name a stack overflow, and so swallows one that is sent; a core says more.
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let _ = sys::default_action(signal);
    }
    if settings.priority != 0
        && let Err(e) = setpriority_process(None, settings.priority)
    {
        server_log!(Alert, "setpriority({}) failed {}", settings.priority, Errno(&e.into()));
    }
    limit("RLIMIT_NOFILE", Resource::Nofile, settings.rlimit_nofile);
    limit("RLIMIT_CORE", Resource::Core, settings.rlimit_core);
    let is_lifted = lift_locked_memory();
    if let Some(user) = settings.user.as_ref().filter(|_| sys::effective_uid() == 0) {
        become_user(user, rights_to_keep(settings.transparent, is_lifted)).map_err(|(step, e)| {
            server_log!(Emerg, "{step} failed {}", Errno(&e));
            Fatal
        })?;
    }
    // A process that changed its user leaves no core otherwise.
    if let Err(e) = set_dumpable_behavior(DumpableBehavior::Dumpable) {
        server_log!(Alert, "prctl(PR_SET_DUMPABLE) failed {}", Errno(&e.into()));
    }
    if let Some(directory) = &settings.working_directory
        && let Err(e) = std::env::set_current_dir(directory)
    {
        server_log!(Alert, "chdir(\"{}\") failed {}", directory.display(), Errno(&e));
        return Err(Fatal);
    }
    Ok(())
}

/// What a worker that is no longer root may do all the same: foreign addresses (`proxy_bind ... transparent`); memory that is locked, where the
/// limit of that could not be lifted and we have the right ourselves.
fn rights_to_keep(transparent: bool, is_memory_lifted: bool) -> CapabilitySet {
    let mut kept = CapabilitySet::empty();
    kept.set(CapabilitySet::NET_RAW, transparent);
    let may_lock = || capabilities(None).is_ok_and(|sets| sets.permitted.contains(CapabilitySet::IPC_LOCK));
    kept.set(CapabilitySet::IPC_LOCK, !is_memory_lifted && may_lock());
    kept
}

/// Gives up root's rights but those.
fn become_user(user: &User, kept: CapabilitySet) -> Result<(), (String, io::Error)> {
    if kept.is_empty() {
        return sys::become_user(&user.name, user.uid, user.gid);
    }
    set_keep_capabilities(true).map_err(|e| ("prctl(PR_SET_KEEPCAPS, 1)".to_owned(), e.into()))?;
    sys::become_user(&user.name, user.uid, user.gid)?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(|e| ("capset()".to_owned(), e.into()))
}

fn limit(name: &str, resource: Resource, value: Option<u64>) {
    let Some(value) = value else { return };
    if let Err(e) = setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }) {
        server_log!(Alert, "setrlimit({name}, {value}) failed {}", Errno(&e.into()));
    }
}

/// Queues of io_uring count as locked memory of the user, for whom 8 MB are usual: 55 rings of 20,000 parked connections. Root may lift
/// that for who is no longer root, unless a container forbids it. False: it is what the hard limit says.
fn lift_locked_memory() -> bool {
    let lifted = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, lifted).is_ok() {
        return true;
    }
    let maximum = getrlimit(Resource::Memlock).maximum;
    let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    false
}

/// What `env` keeps and sets. `TZ` is kept unless it is set.
pub(super) fn environment(
    settings: &ProcessSettings,
    started_with: &[(OsString, OsString)],
) -> Vec<(OsString, OsString)> {
    let mut rules = settings.env.clone();
    let names_tz = |rule: &EnvRule| matches!(rule, EnvRule::Keep(name) | EnvRule::Set(name, _) if name == "TZ");
    if !rules.iter().any(names_tz) {
        rules.push(EnvRule::Keep("TZ".into()));
    }
    rules
        .into_iter()
        .filter_map(|rule| match rule {
            EnvRule::Set(name, value) => Some((name, value)),
            EnvRule::Keep(name) => started_with.iter().find(|(n, _)| *n == name).cloned(),
        })
        .collect()
}

/// Binds the calling thread to its CPUs. A failure is logged and the thread runs where it is put.
pub fn pin_thread(cpus: &CpuSet) {
    let list = cpus.0.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    server_log!(Notice, "sched_setaffinity(): using cpu #{list}");
    if let Err(e) = sys::pin_thread(&cpus.0) {
        server_log!(Alert, "sched_setaffinity() failed {}", Errno(&e));
    }
}
