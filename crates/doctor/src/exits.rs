//! `ironweir doctor exits`: the ways in which dead workers are found: the error log's lines of signals, workers that are younger than their
//! siblings, the kernel's segfaults, what the journal says of units' processes, and where cores lie.

use crate::command;
use crate::configuration;
use crate::error_log::tail;
use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight, sort};
use crate::options::Options;
use crate::rules::journal;
use crate::symbols::{self, Function, Place};
use machine::processes::Process;
use std::collections::BTreeMap;
use std::time::Duration;

/// Of a log, its end is read.
const READ: u64 = 16 << 20;
/// Processes whose mappings are looked at for the file in which another one died.
const MOST_PROCESSES: usize = 32_768;
/// A worker that began so much later than its eldest sibling took the place of one that died, clock ticks (100 a second).
const LATER: u64 = 500;

/// Runs it: over these logs, or those of the servers that run and the usual one.
pub(crate) fn run(o: &Options, logs: &[&str]) -> Result<u8, String> {
    let mut facts = match o.value("facts") {
        Some(recorded) => Facts::load(recorded.as_ref())?,
        None => Facts::read(Duration::ZERO, None)?,
    };
    command::read_journal(o, &mut facts);
    // What was recorded elsewhere died in files that may be others here.
    let found_here = |object: &str, place| o.value("facts").is_none().then(|| resolve(object, place)).flatten();
    let mut found = segfaults(&facts.machine, &found_here);
    found.extend(journal::ends(&facts, |_| true));
    found.extend(journal::cores(&facts));
    let mut missing = Vec::new();
    let named: Vec<String> =
        if logs.is_empty() { usual(&facts) } else { logs.iter().map(|l| (*l).to_owned()).collect() };
    for log in &named {
        match tail(log, READ) {
            Ok(text) => found.extend(signals(log, &text)),
            Err(e) if logs.is_empty() => missing.push(format!("{log} ({e})")),
            Err(e) => return Err(format!("{log}: {e}")),
        }
    }
    if o.value("facts").is_none() {
        found.extend(replaced(&facts.machine.processes));
    }
    found.extend(cores(&facts.machine, !found.is_empty()));
    missing.extend(facts.machine.missing.iter().cloned());
    command::show(o, &sort(found), &missing)
}

fn usual(facts: &Facts) -> Vec<String> {
    let mut logs: Vec<String> =
        facts.configurations.iter().flat_map(configuration::Configuration::error_logs).collect();
    if logs.is_empty() {
        logs.push("/var/log/nginx/error.log".to_owned());
    }
    logs.sort();
    logs.dedup();
    logs
}

/// `2026/11/22 10:00:00 [alert] 7#7: worker process 8 exited on signal 11 (core dumped)`
fn signals(log: &str, text: &str) -> Vec<Finding> {
    let mut by_signal: BTreeMap<u32, (usize, &str)> = BTreeMap::new();
    for line in text.lines() {
        let Some((_, rest)) = line.split_once(" exited on signal ") else { continue };
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let Ok(signal) = digits.parse() else { continue };
        let entry = by_signal.entry(signal).or_default();
        *entry = (entry.0 + 1, line);
    }
    let each = |(signal, (count, last)): (u32, (usize, &str))| {
        let (name, why) = meaning(signal);
        let has_core = last.contains("(core dumped)");
        // Somebody ended it: that is not its own fault.
        let weight = if matches!(signal, 15 | 2 | 3) { Weight::Note } else { Weight::Warning };
        let finding =
            Finding::new("exit-by-signal", weight, format!("{count} workers died of signal {signal} ({name})."))
                .seen(format!("the last one: {last}"), log)
                .because(why);
        if has_core {
            finding.cure("gdb PROGRAM CORE, then bt: the core was written")
        } else if matches!(signal, 4 | 6 | 7 | 8 | 11) {
            finding.cure("cores: worker_rlimit_core 500m; working_directory /var/tmp; then see below where they lie")
        } else {
            finding
        }
    };
    by_signal.into_iter().map(each).collect()
}

pub(crate) fn meaning(signal: u32) -> (&'static str, &'static str) {
    match signal {
        4 => ("SIGILL", "The CPU does not know an instruction: the program was built for another one."),
        6 => ("SIGABRT", "The program gave up by itself: its error log says why, a line before."),
        7 => ("SIGBUS", "A mapped file was cut, or a disk failed under it."),
        8 => ("SIGFPE", "A division by nothing."),
        9 => ("SIGKILL", "Somebody killed it: the kernel for want of memory (dmesg), a supervisor, or an operator."),
        11 => ("SIGSEGV", "A wrong address: a bug in the program or in a module."),
        15 | 2 | 3 => ("SIGTERM", "It was asked to end."),
        31 => ("SIGSYS", "A system call that its sandbox forbids."),
        _ => ("another", "It was ended from outside."),
    }
}

/// A line of the kernel's: `NAME[PID]: segfault at ADDRESS ip IP sp SP error N in OBJECT[BASE+SIZE]`, since Linux 6.2 `[OFFSET,BASE+SIZE]`.
struct Segfault {
    name: String,
    pid: u32,
    address: u64,
    stack: u64,
    object: Option<(String, Place)>,
}

impl Segfault {
    fn read(text: &str) -> Option<Segfault> {
        let (who, rest) = text.split_once(": segfault at ")?;
        let (name, pid) = who.trim_end_matches(']').rsplit_once('[')?;
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let after = |name: &str| hex(rest.split_once(name)?.1.split(' ').next()?);
        let ip = after(" ip ")?;
        let object = rest.split_once(" in ").and_then(|(_, object)| {
            let (name, place) = object.split_once('[')?;
            let place = place.split(']').next()?;
            let offset = match place.split_once(',') {
                Some((offset, _)) => Place::File(hex(offset)?),
                None => Place::Code(ip.checked_sub(hex(place.split('+').next()?)?)?),
            };
            Some((name.to_owned(), offset))
        });
        let address = hex(rest.split(' ').next()?)?;
        Some(Segfault { name: name.to_owned(), pid: pid.parse().ok()?, address, stack: after(" sp ")?, object })
    }

    /// What kind it is.
    fn kind(&self) -> &'static str {
        /// A stack that is used up is touched this near its pointer.
        const NEAR: u64 = 64 << 10;
        if self.address < 4096 {
            "it followed a pointer to nothing"
        } else if self.address.abs_diff(self.stack) < NEAR {
            "its stack was used up (an endless recursion, mostly)"
        } else {
            "it used an address that is not its own"
        }
    }
}

/// The file of a program or library that some process here has mapped, and its function at a place.
fn resolve(object: &str, place: Place) -> Option<(String, Function)> {
    if object.contains('/') || object.is_empty() {
        return None;
    }
    let processes =
        std::fs::read_dir("/proc").ok()?.flatten().filter(|e| e.file_name().as_encoded_bytes()[0].is_ascii_digit());
    let has = |maps: &str| -> Option<String> {
        let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
        maps.lines().filter_map(path).find(|p| p.rsplit('/').next() == Some(object))
    };
    let path =
        processes.take(MOST_PROCESSES).find_map(|p| has(&std::fs::read_to_string(p.path().join("maps")).ok()?))?;
    let function = symbols::function(path.as_ref(), place)?;
    Some((path, function))
}

/// Finds the function of a place in a program: the file that holds it, and the function.
type Resolve<'r> = dyn Fn(&str, Place) -> Option<(String, Function)> + 'r;

fn segfaults(m: &machine::Facts, resolve: &Resolve<'_>) -> Vec<Finding> {
    let each = |(text, ago, from): (&str, f64, &'static str)| {
        let s = Segfault::read(text)?;
        let finding = Finding::new(
            "segfault",
            Weight::Warning,
            format!("{} (process {}) died {ago:.0} s ago: {}.", s.name, s.pid, s.kind()),
        )
        .seen(text, from)
        .because("All of its connections died with it.");
        Some(match &s.object {
            Some((object, place)) => match resolve(object, *place) {
                Some((path, Function { name, offset, address })) => finding
                    .seen(format!("{name} + {offset:#x}"), format!("{path}, its symbols"))
                    .cure(format!("which line: addr2line -i -f -C -e {path} {address:#x} (with its debug symbols)")),
                None => {
                    let (Place::File(offset) | Place::Code(offset)) = place;
                    finding.cure(format!(
                        "which function: addr2line -f -C -e (the file of {object}, with its symbols) {offset:#x}"
                    ))
                }
            },
            None => finding.cure("where it was is not known: the kernel names no file; a core would show it"),
        })
    };
    journal::kernel_lines(m).into_iter().filter_map(each).collect()
}

/// Masters that start and end workers as load comes and goes: there a younger one means nothing.
const DYNAMIC: &[&str] = &["php-fpm", "apache2", "httpd", "uwsgi", "gunicorn"];

/// Workers of one master that are much younger than their eldest sibling: a reload replaces all of them, a death one. A master holds the socket
/// that its workers take connections from; whoever else started two programs (a shell, a supervisor) does not.
fn replaced(processes: &[Process]) -> Vec<Finding> {
    let began = |pid: u32| -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
    };
    let with_times: Vec<(&Process, u64)> = processes.iter().filter_map(|p| Some((p, began(p.pid)?))).collect();
    younger(&with_times)
}

fn younger(processes: &[(&Process, u64)]) -> Vec<Finding> {
    let each = |(p, began): &(&Process, u64)| {
        let shares = |other: &Process| p.listens.iter().any(|inode| other.listens.contains(inode));
        if DYNAMIC.iter().any(|name| p.name.starts_with(name))
            || !processes.iter().any(|(m, _)| m.pid == p.parent && shares(m))
        {
            return None;
        }
        let siblings = processes.iter().filter(|(s, _)| s.parent == p.parent && s.name == p.name && shares(s));
        let eldest = siblings.min_by_key(|(_, b)| *b)?;
        // Children of init are no siblings.
        if p.parent <= 1 || began.saturating_sub(eldest.1) < LATER {
            return None;
        }
        let seconds = (began - eldest.1) / 100;
        let what = format!("{} (process {}) is {seconds} s younger than its siblings.", p.name, p.pid);
        Some(
            Finding::new("worker-replaced", Weight::Note, what)
                .seen(
                    format!("process {} began {seconds} s after process {}", p.pid, eldest.0.pid),
                    "/proc/PID/stat, starttime",
                )
                .because("A reload replaces all workers at once. One that is younger took the place of one that died.")
                .cure("the error log at that time")
                .sure(Sure::Likely),
        )
    };
    processes.iter().filter_map(each).collect()
}

/// Where cores lie, or why there are none.
fn cores(m: &machine::Facts, anybody_died: bool) -> Option<Finding> {
    let pattern = m.settings.get("kernel.core_pattern").filter(|_| anybody_died)?;
    let place = match pattern.strip_prefix('|') {
        Some(program) if program.contains("systemd-coredump") => "coredumpctl list (systemd takes them)".to_owned(),
        Some(program) => format!("{} takes them", program.split(' ').next().unwrap_or_default()),
        None if pattern.starts_with('/') => pattern.clone(),
        None => format!("{pattern} in the folder in which the process ran (working_directory, or /proc/PID/cwd)"),
    };
    let silent = m.processes.iter().find(|p| p.core_limit == Some(0));
    let finding = Finding::new("cores", Weight::Note, format!("Cores lie here: {place}."))
        .seen(pattern.clone(), "kernel.core_pattern")
        .because("A core shows in which function a process died, and with which data.");
    Some(match silent {
        Some(p) if !pattern.starts_with('|') => finding
            .seen(
                format!("{} (process {}) writes none: its limit is 0", p.name, p.pid),
                format!("/proc/{}/limits", p.pid),
            )
            .cure("worker_rlimit_core 500m; working_directory /var/tmp; or LimitCORE=infinity in the unit"),
        _ => finding,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let old = Segfault::read(
            "nginx[4711]: segfault at 10 ip 000055d0c0001234 sp 00007ffd00000000 error 4 in nginx[55d0c0000000+1c8000]",
        )
        .unwrap();
        assert_eq!(
            (old.name.as_str(), old.pid, old.object.clone(), old.kind()),
            ("nginx", 4711, Some(("nginx".into(), Place::Code(0x1234))), "it followed a pointer to nothing")
        );
        let new = "worker 0[16779]: segfault at 7f6bde445f68 ip 0000557aa1cd72cb sp 00007f6bde445f70 error 6 in ironweir[144f2cb,557aa1168000+13e5000] likely on CPU 1 (core 1, socket 0)";
        let new = Segfault::read(new).unwrap();
        assert_eq!(
            (new.name.as_str(), new.object.clone()),
            ("worker 0", Some(("ironweir".into(), Place::File(0x0144_f2cb))))
        );
        assert!(new.kind().contains("stack"));
        assert!(["", "x[1]: segfault at", "x[y]: segfault at 1 ip 2 sp 3"].iter().all(|t| Segfault::read(t).is_none()));
    }

    #[test]
    fn the_function_is_named_where_symbols_are_there() {
        let text = "nginx[1]: segfault at 10 ip 000055d0c0001234 sp 00007ffd00000000 error 4 in nginx[1234,55d0c0000000+1c8000]";
        let line = machine::kernel_log::Line { at_s: 1.0, text: text.into() };
        let m = machine::Facts { kernel_log: vec![line], ..machine::Facts::default() };
        let known = |object: &str, place| {
            let function = Function { name: "ngx_http_handler".into(), offset: 4, address: 0x2234 };
            Some((format!("/usr/sbin/{object}"), function)).filter(|_| place == Place::File(0x1234))
        };
        let found = &segfaults(&m, &known)[0];
        assert!(
            found
                .evidence
                .iter()
                .any(|e| e.what == "ngx_http_handler + 0x4" && e.from == "/usr/sbin/nginx, its symbols"),
            "{found:?}"
        );
        assert!(found.cure[0].contains("-e /usr/sbin/nginx 0x2234"), "{found:?}");
        assert!(segfaults(&m, &|_, _| None)[0].cure[0].contains("0x1234"));
        assert_eq!(resolve("../nginx", Place::File(0)), None);
    }

    #[test]
    fn lines_of_the_error_log() {
        let text = "2026/11/22 10:00:00 [alert] 7#7: worker process 8 exited on signal 11 (core dumped)\n\
                    2026/11/22 10:00:01 [alert] 7#7: worker process 9 exited on signal 11\n\
                    2026/11/22 10:00:02 [notice] 7#7: worker process 10 exited with code 0\n\
                    2026/11/22 10:00:03 [alert] 7#7: worker process 11 exited on signal 9\n";
        let found = signals("error.log", text);
        let what: Vec<&str> = found.iter().map(|f| f.what.as_str()).collect();
        assert_eq!(what, ["1 workers died of signal 9 (SIGKILL).", "2 workers died of signal 11 (SIGSEGV)."]);
    }

    #[test]
    fn a_worker_that_is_younger() {
        let named = |name: &str, pid, parent, inode| Process {
            pid,
            parent,
            name: name.into(),
            listens: vec![inode],
            ..Process::default()
        };
        let p = |pid, parent| named("nginx", pid, parent, 7);
        let (master, a, b, c, alone) = (p(10, 1), p(11, 10), p(12, 10), p(40, 10), p(50, 1));
        assert_eq!(younger(&[(&master, 90), (&a, 100), (&b, 101), (&c, 100_000), (&alone, 900_000)]).len(), 1);
        assert_eq!(younger(&[(&master, 90), (&a, 100), (&b, 101)]), []);
        let (one, other) = (named("python3", 60, 55, 8), named("python3", 61, 55, 9));
        assert_eq!(younger(&[(&one, 100), (&other, 100_000)]), [], "two programs of one shell");
        let pool = |pid, parent| named("php-fpm8.2", pid, parent, 9);
        let (manager, first, later) = (pool(70, 1), pool(71, 70), pool(72, 70));
        assert_eq!(younger(&[(&manager, 90), (&first, 100), (&later, 100_000)]), [], "a pool that grows");
    }
}
