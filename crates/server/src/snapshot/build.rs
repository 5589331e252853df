//! What makes a snapshot of a configuration that was read, and tells modules when a thread begins to serve under it and when it stops.
//! The snapshot itself does not know who that is.

use super::{Snapshot, ThreadSnapshot};
use crate::config::Build;
use crate::modules::order::THREAD_HOOKS;
use crate::modules::{http_block, upstream_block};
use conf::Problem;
use std::rc::Rc;
use std::sync::Arc;

impl Snapshot {
    /// Makes a snapshot of what was read, unless there are errors; and says what is wrong with it as a whole.
    /// Opens no file: the logs do nothing until [`Snapshot::open_logs`].
    pub fn build(mut build: Build<'_>, generation: u64) -> (Option<Snapshot>, Vec<Problem>) {
        let undeclared: Vec<_> = build.main.zones.undeclared().collect();
        build.problems.extend(undeclared);
        crate::modules::order::install();
        let stream = build.stream.take().map(|mut stream| {
            stream.process = build.process.clone();
            stream.error_logs.clone_from(&build.error_logs);
            // Names of zones are the whole configuration's.
            stream.main.zones.clone_from(&build.main.zones);
            Snapshot::subsystem(*stream, generation)
        });
        let (whole, mut problems) = Snapshot::subsystem(build, generation);
        let Some((stream, more)) = stream else { return (whole, problems) };
        problems.extend(more);
        let (Some(mut whole), Some(mut stream)) = (whole, stream) else { return (None, problems) };
        for listen in stream.listens.drain(..) {
            if whole.listens.iter().any(|l| l.address == listen.address && l.kind == listen.kind) {
                problems.push(Problem::bare(format!("duplicate listen {} in \"http\" and \"stream\"", listen.address)));
            }
            whole.listens.push(listen);
        }
        whole.stream = Some(Arc::new(stream));
        (Some(whole), problems)
    }

    /// The snapshot of one subsystem.
    fn subsystem(mut build: Build<'_>, generation: u64) -> (Option<Snapshot>, Vec<Problem>) {
        upstream_block::finish(&mut build);
        crate::modules::otel::finish(&mut build);
        crate::modules::guard::finish(&mut build);
        crate::modules::limit_shared::finish(&mut build);
        let tables = http_block::finish(&mut build);
        let variables = match build.variables.finish(!tables.servers.is_empty()) {
            Ok(v) => v,
            Err(unknown) => {
                build.problems.extend(unknown.into_iter().map(Problem::bare));
                Vec::new()
            }
        };
        if build.problems.iter().any(|p| p.level.is_fatal()) {
            return (None, build.problems);
        }
        let snapshot = Snapshot {
            generation,
            loaded_ms: runtime::clock::wall_ms(),
            end: None,
            process: build.process,
            main: build.main,
            prefix: build.prefix,
            directories: build.directories,
            state_files: build.state_files,
            error_logs: build.error_logs,
            servers: tables.servers,
            locations: tables.locations,
            uses_request_body: variables.iter().any(|v| &*v.name == "request_body"),
            variables,
            groups: build.groups,
            listens: tables.listens,
            ports: tables.ports,
            stream: None,
        };
        (Some(snapshot), build.problems)
    }
}

impl ThreadSnapshot {
    /// A thread begins to serve under it.
    pub fn begin(self: &Rc<ThreadSnapshot>) {
        for snapshot in std::iter::once(self).chain(&self.stream) {
            THREAD_HOOKS.iter().for_each(|hook| (hook.begin)(snapshot));
        }
    }

    /// A thread serves nothing new under it.
    pub fn leave(&self) {
        for snapshot in std::iter::once(self).chain(self.stream.as_deref()) {
            THREAD_HOOKS.iter().for_each(|hook| (hook.leave)(snapshot));
        }
    }
}
