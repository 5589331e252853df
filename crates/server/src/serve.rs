//! Plugs the data subsystem into the master: how a configuration becomes a plan, and what a worker process does.

mod payload;
mod trial;

use crate::balancer::path::{self, Checked};
use crate::config::read::{Reading, Which, read};
use crate::log::error::{self, ErrorLog, Level};
use crate::log::process_line;
use crate::master::ask::{Reply, Request, ask};
use crate::master::{self, MasterLink, Options, Order, Plan, Service, Tried, Worker, WorkerStart};
use crate::process_settings::DirectorySpec;
use crate::snapshot::Snapshot;
use crate::upgrade::{self, HandOver, Succession};
use crate::worker::process::Workers;
use conf::{Disk, Files, Recorder};
use doctor::canary::{End, Wish};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trial::Trial;

pub use payload::unpack;

/// How long the master may take to show what it runs.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a new binary may take until it serves with all that the old one had, or until more of that is there.
const UPGRADE: Duration = Duration::from_secs(60);
/// How long `-s upgrade` waits for another upgrade to end, and how often it asks.
const BEFORE_IT: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
/// How long a shutdown waits for connections that are on their way to another process while none arrives there, and how often it looks.
const HANDING: Duration = Duration::from_secs(30);
/// The other process says that it is ready before this one is told to go, on another way.
const BEGINNING: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(5);
/// Between two looks at accept queues, if nothing else happens.
const QUEUES: Duration = Duration::from_secs(5);
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
pub fn try_out(which: &Which, snapshot: &Arc<Snapshot>) -> bool {
    log_from_here(which);
    let way = way(snapshot, true);
    let opens = master::try_out(&needs(snapshot, Arc::default(), way.as_ref().unwrap_or(&Checked::default()))).is_ok();
    let begins = opens
        && crate::modules::lua::try_out(snapshot, true)
            .map_err(|text| process_line(Level::Emerg, format_args!("{text}")))
            .is_ok();
    begins && way.is_some()
}

/// `-s upgrade`: the binary that is on the disk now takes over from the one that runs, connections included.
fn upgrade_running(pid_file: &Path) -> ExitCode {
    let give_up = Instant::now() + BEFORE_IT;
    let outcome = loop {
        let outcome = ask(pid_file, &Request::Upgrade).and_then(|mut asked| {
            loop {
                match asked.next(Some(UPGRADE)) {
                    Ok(Reply::Says(text)) => process_line(Level::Notice, format_args!("{text}")),
                    reply => return reply,
                }
            }
        });
        // The old master of the upgrade before may not be gone yet, which nobody sees.
        match outcome {
            Ok(Reply::NotYet(_)) if Instant::now() < give_up => std::thread::sleep(AGAIN),
            outcome => break outcome,
        }
    };
    match outcome {
        Ok(Reply::Kept(text)) => {
            process_line(Level::Notice, format_args!("{text}"));
            return ExitCode::SUCCESS;
        }
        Ok(Reply::Refused(why) | Reply::NotYet(why)) => process_line(Level::Emerg, format_args!("no upgrade: {why}")),
        Ok(_) => process_line(Level::Emerg, format_args!("no upgrade: the server says something else")),
        Err(why) => process_line(Level::Emerg, format_args!("no upgrade: {why}")),
    }
    ExitCode::FAILURE
}

fn send_signal(which: &Which, signal: &str) -> ExitCode {
    let reading = read(&Disk, which, 1);
    let Some(snapshot) = reading.snapshot else {
        complain(&reading.problems, &reading.tree.sources);
        return ExitCode::FAILURE;
    };
    if signal == "upgrade" {
        return upgrade_running(&snapshot.process.pid);
    }
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
fn needs(snapshot: &Snapshot, payload: Arc<[u8]>, way: &Checked) -> Plan {
    let bytes = |value: serde_json::Result<Vec<u8>>| value.ok().map(Arc::<[u8]>::from);
    let refusal = way.refusal.clone().map(|problem| l4::Report { problem: Some(problem), ..l4::Report::default() });
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
        ban_sets: snapshot.main.guard.ban_sets(),
        payload,
        balancer: way.setup.as_ref().and_then(|setup| bytes(serde_json::to_vec(setup))),
        balancer_report: refusal.and_then(|report| bytes(serde_json::to_vec(&report))),
    }
}

/// Which way packets go, said in the log. None if what is asked for cannot be.
fn way(snapshot: &Snapshot, say_all: bool) -> Option<Checked> {
    let way = path::check(snapshot);
    let say = |level, texts: &[String]| texts.iter().for_each(|text| process_line(level, format_args!("{text}")));
    say(Level::Warn, &way.warnings);
    if say_all {
        say(Level::Notice, &way.paths);
    }
    say(Level::Emerg, &way.problems);
    way.problems.is_empty().then_some(way)
}

fn load(which: &Which, generation: u64) -> Result<Plan, Vec<String>> {
    let recorder = Recorder::new(Disk);
    let Reading { tree, problems, snapshot, .. } = read(&recorder, which, generation);
    complain(&problems, &tree.sources);
    let way = snapshot.as_ref().and_then(|snapshot| way(snapshot, false));
    let both = snapshot.zip(way);
    let plan = both.map(|(snapshot, way)| needs(&snapshot, payload::pack(which, &recorder.into_bundle()), &way));
    drop(tree);
    crate::memory::release();
    plan.ok_or_else(Vec::new)
}

impl Service for Server {
    fn load(&mut self) -> Result<Plan, Vec<String>> {
        self.generation += 1;
        load(&self.which, self.generation)
    }

    fn load_other(&mut self, file: &Path) -> Result<Plan, Vec<String>> {
        self.generation += 1;
        load(&Which { file: file.to_owned(), ..self.which.clone() }, self.generation)
    }

    fn worker(&self) -> Worker {
        Box::new(work)
    }

    fn balancer(&self) -> fn(master::balancer::BalancerLine) -> i32 {
        crate::balancer::helper::run
    }
}

/// A snapshot from what the master read, and its own log; all its logs are open, what it keeps on the disk is read, and its programs have
/// been tried.
fn prepared(
    payload: &[u8],
    generation: u64,
    files: &crate::log::file::OpenFiles,
    link: &MasterLink,
) -> Result<(Arc<Snapshot>, ErrorLog), String> {
    let (which, bundle) = payload::unpack(payload).ok_or("the configuration came in pieces")?;
    let reading = read(&bundle as &dyn Files, &which, generation);
    let first = || reading.problems.first().map_or_else(String::new, |p| p.render_line(&reading.tree.sources));
    let mut snapshot = reading.snapshot.ok_or_else(first)?;
    drop(reading.tree);
    crate::memory::release();
    let log = snapshot
        .open_logs(files)
        .map_err(|(path, e)| format!("open() \"{}\" failed ({})", path.display(), crate::log::os_error(&e)))?;
    snapshot.end = Some(link.reporter());
    crate::modules::guard::state::report_to(link.reporter());
    crate::acme::load(&snapshot);
    crate::modules::keyval::load(&snapshot);
    crate::modules::js::state::load(&snapshot);
    crate::modules::vts::dump::load(&snapshot);
    crate::upstream::live::follow(&snapshot.groups);
    if let Some(stream) = &snapshot.stream {
        crate::upstream::live::follow(&stream.groups);
    }
    let snapshot = Arc::new(snapshot);
    crate::modules::lua::try_out(&snapshot, false)?;
    Ok((snapshot, log))
}

/// The snapshot that is to serve all connections: what works beside requests works for it from now on.
fn snapshot(
    payload: &[u8],
    generation: u64,
    files: &crate::log::file::OpenFiles,
    link: &MasterLink,
) -> Result<Arc<Snapshot>, String> {
    let (snapshot, log) = prepared(payload, generation, files, link)?;
    error::set_default_log(log);
    if snapshot.main.api.used {
        crate::modules::api::keep_history();
    }
    snapshot.main.otel.exporter.iter().for_each(crate::otel::start);
    crate::health::prober::configure(&snapshot);
    crate::modules::zone_sync::configure(&snapshot);
    Ok(snapshot)
}

/// The caches' own threads work for this configuration from now on.
fn keep_caches(snapshot: &Snapshot) {
    if let Err(e) = crate::cache::keeper::configure(&snapshot.main.cache.caches) {
        let text = crate::log::os_error(&e);
        process_line(Level::Alert, format_args!("cache threads could not be started ({text})"));
    }
}

/// All connections have one configuration again.
fn end_trial(trial: &mut Option<Trial>, workers: &Workers) {
    if trial.take().is_some() {
        workers.end_trial();
        crate::status::trial::end();
    }
}

/// The configuration that the server with this pid file runs: what it was read from, its texts, its number.
pub fn running(pid_file: &Path) -> Result<(Which, conf::Bundle, u64), String> {
    let mut asked = ask(pid_file, &Request::Show)?;
    let generation = match asked.next(Some(PATIENCE))? {
        Reply::Shown(generation) => generation,
        Reply::Refused(why) => return Err(why),
        other => return Err(format!("the server says something else: {other:?}")),
    };
    let (which, bundle) = unpack(&asked.payload()?).ok_or("the server's configuration came in pieces")?;
    Ok((which, bundle, generation))
}

/// Asks the running master to try a configuration out, and says how it goes. `snapshot`: what its file says now, which names the pid file.
pub fn canary(wish: &Wish, snapshot: &Snapshot, say: &mut dyn FnMut(&str)) -> Result<End, String> {
    let pid = &snapshot.process.pid;
    let own = running(pid)?.0.file;
    let request = Request::Canary {
        file: wish.file.clone(),
        share: wish.share,
        minimum: wish.minimum,
        seconds: wish.time.as_secs_f64(),
    };
    let mut asked = ask(pid, &request)?;
    loop {
        match asked.next(None)? {
            Reply::Says(text) => say(&text),
            Reply::Kept(text) if own == wish.file => return Ok(End::Kept(text)),
            Reply::Kept(text) => {
                let (own, new) = (own.display(), wish.file.display());
                return Ok(End::Kept(format!(
                    "{text}; the server's own file is still {own}: put {new} there before the next reload"
                )));
            }
            Reply::TakenBack(why) => return Ok(End::TakenBack(why)),
            Reply::Refused(why) | Reply::NotYet(why) => return Err(why),
            Reply::Shown(_) => {}
        }
    }
}

/// Waits until connections that are on their way to another process are there, though not for ever. False: this one is to end now.
fn wait_for(handing: &HandOver, link: &mut MasterLink) -> bool {
    let (soon, mut end, mut gone) = (Instant::now() + BEGINNING, Instant::now() + HANDING, handing.gone());
    while Instant::now() < if handing.has_begun() { end } else { soon } && !handing.is_over() {
        if std::mem::replace(&mut gone, handing.gone()) != gone {
            end = Instant::now() + HANDING;
        }
        if matches!(link.wait(Some(LOOK)), Some(Order::Terminate)) {
            return false;
        }
    }
    true
}

/// The worker process's control thread.
fn work(start: WorkerStart) -> i32 {
    let WorkerStart { generation, payload, listeners, files, predecessor, memory, mut link, .. } = start;
    let first = match snapshot(&payload, generation, &files, &link) {
        Ok(s) => s,
        Err(text) => {
            process_line(Level::Emerg, format_args!("{text}"));
            return master::FATAL;
        }
    };
    let mut timeout = first.process.worker_shutdown_timeout;
    crate::worker::begin_at_rest(predecessor.is_some());
    crate::modules::nchan::succession::set_memory(first.main.nchan.memory());
    if let Some(memory) = memory {
        crate::modules::nchan::journal::begin(memory.own, memory.before.as_deref());
    }
    // What is told of accept queues begins here.
    crate::status::listeners::overflowed();
    let mut workers = match Workers::start(&first, &listeners, upgrade::move_over) {
        Ok(w) => w,
        Err(e) => {
            process_line(Level::Alert, format_args!("threads could not be started ({})", crate::log::os_error(&e)));
            return master::FATAL;
        }
    };
    if let (true, Some(thread)) = (crate::modules::nchan::journal::has_restored(), workers.threads().first()) {
        let _ = thread.send(crate::worker::order::Order::Do(Box::new(crate::modules::nchan::go_on_after_crash)));
    }
    keep_caches(&first);
    crate::acme::follow(&first);
    crate::tls::ocsp::stapling::follow(&first);
    // Said before the master hears that this one serves, and tells the other to go.
    let succession = predecessor.map(|line| upgrade::succeed(line, workers.threads()));
    link.applied(generation);
    crate::balancer::watch::configure(&first, link.reporter());
    crate::balancer::load::configure(&first);
    drop((first, listeners));
    let mut handing: Option<HandOver> = None;
    let mut trial: Option<Trial> = None;
    loop {
        let look = trial.as_ref().and_then(Trial::next_look).filter(|look| *look < QUEUES);
        match link.wait(Some(look.unwrap_or(QUEUES))) {
            None if look.is_none() => {
                for text in crate::status::listeners::overflowed() {
                    process_line(Level::Warn, format_args!("{text}"));
                }
            }
            None => {
                let over = trial.as_mut().and_then(|t| t.look(&link).map(|why| (t.generation(), why)));
                if let Some((generation, why)) = over {
                    end_trial(&mut trial, &workers);
                    link.tried(generation, Tried::Over, &why);
                }
            }
            Some(Order::Balanced(report)) => crate::balancer::heard::take(&report),
            Some(Order::MasterGone | Order::EndTrial) => end_trial(&mut trial, &workers),
            Some(Order::Try(order)) => match prepared(&order.payload, order.generation, &files, &link) {
                Ok((next, _)) => {
                    trial = Some(Trial::begin(&order));
                    workers.try_out(&next, order.terms.share);
                }
                Err(text) => link.tried(order.generation, Tried::Over, &text),
            },
            Some(Order::Reload(reload)) => match snapshot(&reload.payload, reload.generation, &files, &link) {
                Ok(next) => {
                    timeout = next.process.worker_shutdown_timeout;
                    let configured = workers.configure(&next, &reload.listeners);
                    end_trial(&mut trial, &workers);
                    match configured {
                        Ok(()) => {
                            keep_caches(&next);
                            crate::acme::follow(&next);
                            crate::tls::ocsp::stapling::follow(&next);
                            link.applied(reload.generation);
                            crate::balancer::watch::configure(&next, link.reporter());
                            crate::balancer::load::configure(&next);
                        }
                        Err(e) => link.failed(reload.generation, &crate::log::os_error(&e)),
                    }
                }
                Err(text) => {
                    end_trial(&mut trial, &workers);
                    link.failed(reload.generation, &text);
                }
            },
            Some(Order::Reopen(reopen)) => {
                workers.write_logs();
                reopen.apply();
            }
            Some(Order::HandOver(line)) => handing = Some(upgrade::hand_over(line, workers.threads(), link.reporter())),
            Some(Order::Quit) => {
                succession.iter().for_each(Succession::end);
                if let Some(handing) = &handing
                    && !wait_for(handing, &mut link)
                {
                    workers.stop();
                    crate::modules::js::state::flush();
                    crate::modules::vts::dump::flush();
                    return 0;
                }
                crate::acme::stop();
                master::set_title("worker process is shutting down");
                workers.drain(timeout, |time: Duration| matches!(link.wait(Some(time)), Some(Order::Terminate)));
                crate::otel::flush();
                crate::modules::js::state::flush();
                crate::modules::vts::dump::flush();
                return 0;
            }
            Some(Order::Terminate) => {
                workers.stop();
                crate::modules::js::state::flush();
                crate::modules::vts::dump::flush();
                return 0;
            }
        }
    }
}
