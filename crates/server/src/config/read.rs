//! Reads a configuration whole: files, tree, levels, snapshot. What `-t`, the start and a reload have in common.

use super::{Build, Subsystem};
use crate::connection::parked;
use crate::log::error::Level;
use crate::modules;
use crate::process_settings::{ErrorLogSpec, ErrorLogTarget, ProcessSettings};
use crate::snapshot::Snapshot;
use conf::{Contexts, Files, Problem, Tree};
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};

/// The `-e` that is no file.
const STDERR: &str = "stderr";

/// Which configuration, as the command line says it.
#[derive(Clone, Debug)]
pub struct Which {
    /// `-c`, absolute.
    pub file: PathBuf,
    /// `-p`
    pub prefix: PathBuf,
    /// `-g`
    pub globals: Vec<u8>,
    /// `-e`: where errors go until the configuration is read, and after it if there is no `error_log`. Absolute, or `stderr`.
    pub error_log: Option<PathBuf>,
}

impl Which {
    /// `-e`, if it is a file.
    pub fn error_log_file(&self) -> Option<&Path> {
        self.error_log.as_deref().filter(|path| *path != STDERR)
    }

    fn default_error_log(&self) -> ErrorLogSpec {
        let target = match &self.error_log {
            Some(path) if path == STDERR => ErrorLogTarget::Stderr,
            Some(path) => ErrorLogTarget::File(path.clone()),
            None => ErrorLogTarget::File(self.prefix.join("logs/error.log")),
        };
        ErrorLogSpec { target, level: Level::Error }
    }
}

/// What was read.
pub struct Reading {
    /// The words and their texts, for `-T` and messages.
    pub tree: Tree,
    /// Errors and warnings.
    pub problems: Vec<Problem>,
    /// What has no effect here, for `-t`.
    pub notes: Vec<Problem>,
    /// The snapshot, unless there are errors.
    pub snapshot: Option<Snapshot>,
}

/// Reads it.
pub fn read(files: &dyn Files, which: &Which, generation: u64) -> Reading {
    let conf_prefix = which.file.parent().unwrap_or(Path::new("/")).to_owned();
    let (tree, problems) = conf::load_accepting(files, &which.file, &conf_prefix, &which.globals, &modules::accepts);
    let mut build = Build::new(Subsystem::Http, files, &which.prefix, &conf_prefix);
    build.process.pid = which.prefix.join("logs/nginx.pid");
    build.problems = problems;
    build.sources = tree.sources.iter().map(|s| s.path.clone()).collect();
    let mut main = build.level(Contexts::MAIN);
    build.block(&tree.nodes, &mut main);
    let unknown = std::mem::take(&mut build.pools).into_iter();
    let is_known = |name: &str| build.process.thread_pools.iter().any(|p| *p.name == *name);
    let unknown = unknown.filter(|(name, _)| !is_known(name)).map(|(_, problem)| problem);
    build.problems.extend(unknown);
    if build.error_logs.is_empty() {
        build.error_logs.push(which.default_error_log());
    }
    if build.process.user.is_none() && crate::master::is_root() {
        build.process.user = nobody();
    }
    let mut notes = std::mem::take(&mut build.notes);
    let late = std::mem::take(&mut build.late);
    let late_in_stream = build.stream.as_mut().map(|stream| std::mem::take(&mut stream.late)).unwrap_or_default();
    let mut problems = std::mem::take(&mut build.problems);
    problems.extend(modules::load_module::finish(&mut build, &problems));
    tree.sort(&mut problems);
    // nginx completes `http` at its end, before it reads on, and only if nothing was wrong up to there.
    let end_of_http = tree.nodes.iter().find(|n| n.name == "http").map(|n| tree.turn(&problems, n.close));
    let end_of_text = end_of_http.unwrap_or(problems.len());
    let end_of_http = end_of_text + late.len();
    problems.splice(end_of_text..end_of_text, late);
    problems.extend(late_in_stream);
    let mut snapshot = None;
    if !is_fatal(&problems[..end_of_http]) {
        let (built, found) = Snapshot::build(build, generation);
        problems.splice(end_of_http..end_of_http, found);
        snapshot = built;
        notes.extend(snapshot.iter_mut().flat_map(|s| std::mem::take(&mut s.main.modsecurity.notes)));
    }
    if !main.ignored.iter().any(|n| n == b"events") && !is_fatal(&problems) {
        problems.push(Problem::bare("no \"events\" section in configuration"));
    }
    let snapshot = snapshot.filter(|_| !is_fatal(&problems));
    problems.extend(snapshot.as_ref().and_then(|s| too_many_connections(&s.process)));
    problems.extend(snapshot.as_ref().and_then(few_can_be_held));
    Reading { tree, problems, notes, snapshot }
}

/// Where clients subscribe and nothing can be parked, descriptors are the limit.
fn few_can_be_held(snapshot: &Snapshot) -> Option<Problem> {
    let wants = snapshot.process.worker_parked_connections != Some(0);
    if !wants || !snapshot.locations.iter().any(|l| l.conf.nchan.has_subscribers()) {
        return None;
    }
    let why = rings::Rings::open(1).err()?;
    Some(Problem::warn(None, parked::held_without_rings(&why, snapshot.process.rlimit_nofile)))
}

/// nginx's `ngx_event_module_init`: what connections may be open is more than the process may have open. Here all threads share one limit.
fn too_many_connections(process: &ProcessSettings) -> Option<Problem> {
    let limit = process.rlimit_nofile.or_else(|| getrlimit(Resource::Nofile).current)?;
    let (connections, threads) = (process.worker_connections as u64, process.threads.max(1) as u64);
    if connections.saturating_mul(threads) <= limit {
        return None;
    }
    let all = if connections > limit { String::new() } else { format!(" in each of {threads} threads") };
    let text = format!("{connections} worker_connections{all} exceed open file resource limit: {limit}");
    Some(Problem::warn(None, text))
}

/// Whom workers run as when root starts the server and no `user` says otherwise (nginx's `NGX_USER`).
fn nobody() -> Option<crate::process_settings::User> {
    let uid = crate::master::user_id("nobody")?;
    let gid = crate::master::group_id("nogroup").or_else(|| crate::master::group_id("nobody"))?;
    Some(crate::process_settings::User { name: "nobody".to_owned(), uid, gid })
}

fn is_fatal(problems: &[Problem]) -> bool {
    problems.iter().any(|p| p.level.is_fatal())
}
