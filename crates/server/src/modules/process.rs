//! Directives of the main level and of `events`: processes, users, limits, the main error log (nginx's core and event
//! modules).

use super::ignored::{self, once};
use crate::config::cidr::Cidr;
use crate::config::setters::invalid;
use crate::config::{Build, Directive, Scope, process};
use crate::log::error::Level;
use crate::log::{memory, syslog};
use crate::process_settings::PoolSize;
use crate::process_settings::{CpuSet, EnvRule, ErrorLogSpec, ErrorLogTarget, SyslogServer, User};
use conf::{Node, Problem, Word, value};
use std::ffi::OsString;
use std::net::ToSocketAddrs;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// Threads at most; more than this is a mistake in the configuration.
const MAX_THREADS: u64 = 1024;

/// Threads that a pool may have.
const MAX_POOL_THREADS: usize = 1024;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    process("events", |s, n| {
        once(s, n)?;
        let mut level = s.build.level(conf::Contexts::EVENTS);
        s.fill(n, &mut level);
        Ok(())
    }),
    process("daemon", |s, n| flag(s, n, |p, v| p.daemon = v)),
    process("master_process", |s, n| flag(s, n, |p, v| p.master_process = v)),
    process("pid", |s, n| {
        once(s, n)?;
        s.build.process.pid = s.build.full_path(&n.args[0].text);
        Ok(())
    }),
    process("lock_file", ignored::any),
    process("user", user),
    process("worker_processes", worker_processes),
    process("worker_cpu_affinity", cpu_affinity),
    process("worker_priority", priority),
    process("worker_rlimit_nofile", |s, n| number(s, n, |p, v| p.rlimit_nofile = Some(v))),
    process("worker_rlimit_core", |s, n| {
        once(s, n)?;
        let size = value::offset(&n.args[0].text).ok_or_else(|| invalid(n))?;
        s.build.process.rlimit_core = Some(size);
        Ok(())
    }),
    process("worker_shutdown_timeout", |s, n| {
        once(s, n)?;
        let ms = value::milliseconds(&n.args[0].text).ok_or_else(|| invalid(n))?;
        s.build.process.worker_shutdown_timeout = Some(Duration::from_millis(ms));
        Ok(())
    }),
    process("working_directory", |s, n| {
        once(s, n)?;
        s.build.process.working_directory = Some(OsString::from_vec(n.args[0].text.clone()).into());
        Ok(())
    }),
    process("env", env),
    process("error_log", |s, n| {
        let spec = error_log_spec(s.build, n)?;
        s.build.error_logs.push(spec);
        Ok(())
    }),
    process("debug_points", ignored::debug_points),
    // Files are read anew on a reload whatever this says.
    process("ssl_object_cache_inheritable", ignored::any),
    process("timer_resolution", ignored::time),
    process("thread_pool", thread_pool),
    process("pcre_jit", ignored::any),
    process("ssl_engine", ignored::any),
    process("worker_connections", worker_connections),
    process("worker_parked_connections", |s, n| match n.args[0].text.eq_ignore_ascii_case(b"off") {
        true => {
            once(s, n)?;
            s.build.process.worker_parked_connections = Some(0);
            Ok(())
        }
        false => number(s, n, |p, count| p.worker_parked_connections = Some(count as usize)),
    }),
    process("quic_bpf", |s, n| flag(s, n, |p, v| p.quic_bpf = v)),
    process("use", ignored::event_method),
    process("accept_mutex", ignored::any),
    process("accept_mutex_delay", ignored::time),
    process("multi_accept", ignored::any),
    process("worker_aio_requests", ignored::number),
    process("debug_connection", debug_connection),
];

/// `thread_pool name threads=N [max_queue=N]`
fn thread_pool(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let mut size = PoolSize { name: node.args[0].as_str().into(), threads: 0, ..PoolSize::default_pool() };
    for word in &node.args[1..] {
        let (name, text) = word.text.split_at(word.text.iter().position(|b| *b == b'=').map_or(0, |at| at + 1));
        let number = conf::value::number(text).and_then(|n| usize::try_from(n).ok());
        match (name, number) {
            (b"threads=", Some(n @ 1..=MAX_POOL_THREADS)) => size.threads = n,
            (b"max_queue=", Some(n)) => size.max_queue = n,
            (b"threads=", _) => return Err(node.problem(format!("invalid threads value \"{}\"", word.as_str()))),
            (b"max_queue=", _) => return Err(node.problem(format!("invalid max_queue value \"{}\"", word.as_str()))),
            _ => return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str()))),
        }
    }
    if size.threads == 0 {
        return Err(node.problem(format!("\"thread_pool\" directive of \"{}\" has no \"threads\"", size.name)));
    }
    let pools = &mut scope.build.process.thread_pools;
    if pools.iter().any(|p| p.name == size.name) {
        return Err(node.problem(format!("duplicate thread pool \"{}\"", size.name)));
    }
    pools.push(size);
    Ok(())
}

/// An address, a network, a name, or `unix:`.
fn debug_connection(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let found = if node.args[0].text == b"unix:" {
        vec![Cidr::Unix]
    } else if let Some(network) = Cidr::read(&mut scope.build.problems, node, &node.args[0].text) {
        vec![network]
    } else {
        let name = node.args[0].as_str();
        let addresses = (&*name, 0).to_socket_addrs();
        let addresses =
            addresses.map_err(|_| node.problem(format!("host not found in debug_connection \"{name}\"")))?;
        addresses.map(|a| Cidr::single(a.ip())).collect()
    };
    scope.build.main.debug_connections.extend(found);
    Ok(())
}

fn flag(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    apply: fn(&mut crate::process_settings::ProcessSettings, bool),
) -> Result<(), Problem> {
    once(scope, node)?;
    apply(&mut scope.build.process, node.args[0].text.eq_ignore_ascii_case(b"on"));
    Ok(())
}

fn number(
    scope: &mut Scope<'_, '_>,
    node: &Node,
    apply: fn(&mut crate::process_settings::ProcessSettings, u64),
) -> Result<(), Problem> {
    once(scope, node)?;
    let n = value::number(&node.args[0].text).ok_or_else(|| Problem::invalid_number(node))?;
    apply(&mut scope.build.process, n);
    Ok(())
}

fn worker_connections(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    once(scope, node)?;
    let word = node.first();
    let count =
        value::number(&word.text).ok_or_else(|| word.problem(format!("invalid number \"{}\"", word.as_str())))?;
    scope.build.process.worker_connections = count as usize;
    Ok(())
}

fn user(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    once(scope, node)?;
    let name = node.args[0].as_str().into_owned();
    let group = node.args.get(1).map_or_else(|| name.clone(), |w| w.as_str().into_owned());
    let uid = crate::master::user_id(&name).ok_or_else(|| node.problem(format!("getpwnam(\"{name}\") failed")))?;
    let gid = crate::master::group_id(&group).ok_or_else(|| node.problem(format!("getgrnam(\"{group}\") failed")))?;
    scope.build.process.user = Some(User { name, uid, gid });
    Ok(())
}

fn worker_processes(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    once(scope, node)?;
    let word = &node.args[0];
    scope.build.process.threads = if *word == "auto" {
        std::thread::available_parallelism().map_or(1, usize::from)
    } else {
        match value::number(&word.text) {
            Some(n @ 1..=MAX_THREADS) => n as usize,
            _ => return Err(Problem::invalid_value(node)),
        }
    };
    Ok(())
}

/// `auto [mask]`, or a mask of binary digits for each thread.
fn cpu_affinity(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    once(scope, node)?;
    let auto = node.args[0] == "auto";
    let masks = node.args[auto as usize..].iter();
    let sets: Vec<CpuSet> = masks.map(mask).collect::<Result<_, _>>()?;
    scope.build.process.cpu_affinity = if auto {
        let online = std::thread::available_parallelism().map_or(1, usize::from);
        let all = sets.into_iter().next().unwrap_or(CpuSet((0..online).collect()));
        all.0.into_iter().map(|c| CpuSet(vec![c])).collect()
    } else {
        sets
    };
    scope.build.process.cpu_affinity_auto = auto;
    Ok(())
}

fn mask(word: &Word) -> Result<CpuSet, Problem> {
    let digits: Vec<u8> = word.text.iter().copied().filter(|c| *c != b' ').collect();
    if let Some(bad) = digits.iter().rfind(|c| !matches!(c, b'0' | b'1')) {
        let bad = *bad as char;
        return Err(word.problem(format!("invalid character \"{bad}\" in \"worker_cpu_affinity\"")));
    }
    Ok(CpuSet(digits.iter().rev().enumerate().filter(|(_, c)| **c == b'1').map(|(i, _)| i).collect()))
}

fn priority(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    once(scope, node)?;
    let text = node.args[0].as_str();
    scope.build.process.priority = text.parse().map_err(|_| Problem::invalid_number(node))?;
    Ok(())
}

fn env(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let text = &node.args[0].text;
    let rule = match memchr::memchr(b'=', text) {
        Some(at) => EnvRule::Set(OsString::from_vec(text[..at].to_vec()), OsString::from_vec(text[at + 1..].to_vec())),
        None => EnvRule::Keep(OsString::from_vec(text.clone())),
    };
    scope.build.process.env.push(rule);
    Ok(())
}

/// `error_log target [level]`, on any level.
pub fn error_log_spec(build: &Build<'_>, node: &Node) -> Result<ErrorLogSpec, Problem> {
    let word = node.args[0].as_str();
    let target = if word == "stderr" {
        crate::log::error::keep_stderr();
        ErrorLogTarget::Stderr
    } else if let Some(parameters) = word.strip_prefix("syslog:") {
        let spec = syslog::parse(parameters, resolve_syslog).map_err(|t| node.problem(t))?;
        ErrorLogTarget::Syslog(spec)
    } else if let Some(size) = word.strip_prefix("memory:") {
        let size = value::size(size.as_bytes()).filter(|n| (memory::LEAST..=memory::MOST).contains(n));
        ErrorLogTarget::Memory(size.ok_or_else(|| node.problem(format!("invalid buffer size \"{}\"", &word[7..])))?)
    } else {
        ErrorLogTarget::File(build.full_path(&node.args[0].text))
    };
    let mut level = Level::Error;
    for (i, word) in node.args[1..].iter().enumerate() {
        let text = word.as_str();
        match Level::from_name(&text) {
            Some(l) if i == 0 => level = l,
            // Debug levels of nginx's subsystems count as debug.
            None if text.starts_with("debug_") => level = Level::Debug,
            Some(_) => return Err(node.problem(format!("duplicate log level \"{text}\""))),
            None => return Err(node.problem(format!("invalid log level \"{text}\""))),
        }
    }
    Ok(ErrorLogSpec { target, level })
}

/// The address of a syslog server: `unix:path`, or host and port (514).
pub fn resolve_syslog(text: &str) -> Result<SyslogServer, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(SyslogServer::Unix(path.into()));
    }
    match super::listen::resolve(text, 514) {
        Ok(addresses) => Ok(SyslogServer::Inet(addresses[0])),
        Err(e) => Err(format!("{e} in syslog server \"{text}\"")),
    }
}
