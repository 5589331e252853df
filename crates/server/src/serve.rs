//! Plugs the data subsystem into the master: how a configuration becomes a plan, and what a worker process does.

use crate::config::read::{Reading, Which, read};
use crate::log::error::{self, ErrorLog, Level};
use crate::log::process_line;
use crate::master::{self, Link, Options, Order, Plan, Service, Worker, WorkerStart};
use crate::process_settings::DirectorySpec;
use crate::snapshot::Snapshot;
use crate::worker::process::Workers;
use conf::{Bundle, Disk, Files, Recorder};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Permission bits of directories for temporary files.
const DIRECTORY_MODE: u32 = 0o700;

/// The server for one configuration file.
struct Server {
    which: Which,
    generation: u64,
}

/// Runs the server, or sends a signal to the one that runs.
pub fn run(which: Which, signal: Option<&str>, arguments: Vec<OsString>) -> ExitCode {
    log_from_here(&which);
    if let Some(signal) = signal {
        return send_signal(&which, signal);
    }
    let version = format!("nginx/{} (Ironweir {})", crate::NGINX_VERSION, env!("CARGO_PKG_VERSION"));
    let mut server = Server { which, generation: 0 };
    master::run(&mut server, Options { arguments, version })
}

fn log_from_here(which: &Which) {
    error::set_default_log(ErrorLog::initial(which.error_log_file()));
    error::mirror_to_stderr(true);
}

/// The second half of `-t`, after the syntax: whether a start would find all it opens. What fails is logged, and written to standard
/// error.
pub fn try_out(which: &Which, snapshot: &Snapshot) -> bool {
    log_from_here(which);
    master::try_out(&plan(snapshot, Arc::default())).is_ok()
}

fn send_signal(which: &Which, signal: &str) -> ExitCode {
    let reading = read(&Disk, which, 1);
    let Some(snapshot) = reading.snapshot else {
        complain(&reading.problems, &reading.tree.sources);
        return ExitCode::FAILURE;
    };
    if master::signal_master(signal, &snapshot.process.pid) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn complain(problems: &[conf::Problem], sources: &[conf::Source]) {
    for p in problems {
        let level = match p.level {
            conf::Severity::Emerg => Level::Emerg,
            conf::Severity::Crit => Level::Crit,
            conf::Severity::Warn => Level::Warn,
            conf::Severity::Notice => continue,
        };
        process_line(level, format_args!("{}", p.render_line(sources)));
    }
}

/// What a configuration asks of the master.
fn plan(snapshot: &Snapshot, payload: Arc<[u8]>) -> Plan {
    let directories =
        snapshot.directories.iter().map(|path| DirectorySpec { path: path.clone(), mode: DIRECTORY_MODE });
    let in_stream = snapshot.stream.iter().flat_map(|stream| &stream.state_files);
    Plan {
        directories: directories.collect(),
        state_files: snapshot.state_files.iter().chain(in_stream).cloned().collect(),
        log_files: snapshot.log_paths(),
        error_logs: snapshot.error_logs.clone(),
        listens: snapshot.listens.clone(),
        process: snapshot.process.clone(),
        payload,
    }
}

impl Service for Server {
    fn load(&mut self) -> Result<Plan, Vec<String>> {
        self.generation += 1;
        let recorder = Recorder::new(Disk);
        let Reading { tree, problems, snapshot, .. } = read(&recorder, &self.which, self.generation);
        complain(&problems, &tree.sources);
        let plan = snapshot.map(|snapshot| plan(&snapshot, recorder.into_bundle().to_bytes().into()));
        drop(tree);
        crate::memory::release();
        plan.ok_or_else(Vec::new)
    }

    fn worker(&self) -> Worker {
        let which = self.which.clone();
        Box::new(move |start| work(&which, start))
    }
}

/// A snapshot from what the master read; its logs are open.
fn snapshot(
    which: &Which,
    payload: &[u8],
    generation: u64,
    files: &crate::log::file::OpenFiles,
    link: &Link,
) -> Result<Arc<Snapshot>, String> {
    let bundle = Bundle::from_bytes(payload).map_err(|conf::source::BadBundle| "the configuration came in pieces")?;
    let reading = read(&bundle as &dyn Files, which, generation);
    let first = || reading.problems.first().map_or_else(String::new, |p| p.render_line(&reading.tree.sources));
    let mut snapshot = reading.snapshot.ok_or_else(first)?;
    drop(reading.tree);
    crate::memory::release();
    let log = snapshot
        .open_logs(files)
        .map_err(|(path, e)| format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e)))?;
    error::set_default_log(log);
    snapshot.end = Some(link.reporter());
    crate::acme::load(&snapshot);
    crate::modules::keyval::load(&snapshot);
    if snapshot.main.api.used {
        crate::modules::api::keep_history();
    }
    snapshot.main.otel.exporter.iter().for_each(crate::otel::start);
    crate::upstream::live::follow(&snapshot.groups);
    if let Some(stream) = &snapshot.stream {
        crate::upstream::live::follow(&stream.groups);
    }
    let snapshot = Arc::new(snapshot);
    crate::health::prober::configure(&snapshot);
    Ok(snapshot)
}

/// The caches' own threads work for this configuration from now on.
fn keep_caches(snapshot: &Snapshot) {
    if let Err(e) = crate::cache::keeper::configure(&snapshot.main.cache.caches) {
        let text = crate::log::os_error(&e);
        process_line(Level::Alert, format_args!("cache threads could not be started ({text})"));
    }
}

/// The worker process's control thread.
fn work(which: &Which, start: WorkerStart) -> i32 {
    let WorkerStart { generation, payload, listeners, files, mut link, .. } = start;
    let first = match snapshot(which, &payload, generation, &files, &link) {
        Ok(s) => s,
        Err(text) => {
            process_line(Level::Emerg, format_args!("{text}"));
            return master::FATAL;
        }
    };
    let mut timeout = first.process.worker_shutdown_timeout;
    let mut workers = match Workers::start(&first, &listeners) {
        Ok(w) => w,
        Err(e) => {
            process_line(Level::Alert, format_args!("threads could not be started ({})", crate::log::os_error(&e)));
            return master::FATAL;
        }
    };
    keep_caches(&first);
    crate::acme::follow(&first);
    crate::tls::ocsp::stapling::follow(&first);
    drop((first, listeners));
    link.applied(generation);
    loop {
        match link.wait(None) {
            None | Some(Order::MasterGone) => {}
            Some(Order::Reload(reload)) => match snapshot(which, &reload.payload, reload.generation, &files, &link) {
                Ok(next) => {
                    timeout = next.process.worker_shutdown_timeout;
                    match workers.configure(&next, &reload.listeners) {
                        Ok(()) => {
                            keep_caches(&next);
                            crate::acme::follow(&next);
                            crate::tls::ocsp::stapling::follow(&next);
                            link.applied(reload.generation);
                        }
                        Err(e) => link.failed(reload.generation, &crate::log::os_error(&e)),
                    }
                }
                Err(text) => link.failed(reload.generation, &text),
            },
            Some(Order::Reopen(reopen)) => {
                workers.write_logs();
                reopen.apply();
            }
            Some(Order::Quit) => {
                crate::acme::stop();
                master::set_title("worker process is shutting down");
                workers.drain(timeout, |time: Duration| matches!(link.wait(Some(time)), Some(Order::Terminate)));
                crate::otel::flush();
                return 0;
            }
            Some(Order::Terminate) => {
                workers.stop();
                return 0;
            }
        }
    }
}
