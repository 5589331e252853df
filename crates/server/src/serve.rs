//! Starts the server (for now in one process).

use crate::config::read::{Which, read};
use crate::settings::ListenAddress;
use crate::worker::process::{Sockets, Workers};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs until told to stop.
pub fn run(which: Which, error_log: Option<PathBuf>, _signal: Option<&str>) -> ExitCode {
    crate::log::error::set_default_log(crate::log::error::ErrorLog::initial(error_log.as_deref()));
    let reading = read(&conf::Disk, &which, 1);
    for p in reading.problems.iter().filter(|p| p.level <= conf::Level::Warn) {
        let text = p.render_line(&reading.sources);
        eprintln!("nginx: [{}] {text}", p.level.name());
        let level = if p.level == conf::Level::Emerg { crate::log::error::Level::Emerg } else { crate::log::error::Level::Warn };
        crate::log::process_line(level, format_args!("{text}"));
    }
    let Some(mut snapshot) = reading.snapshot else { return ExitCode::FAILURE };
    for d in &snapshot.directories {
        let _ = std::fs::create_dir_all(d);
    }
    let files = crate::log::file::OpenFiles::default();
    let log = snapshot.open_logs(&files).expect("logs");
    crate::log::error::set_default_log(log);
    let snapshot = Arc::new(snapshot);
    let signals = crate::master::sys::Signals::open(&[1, 2, 3, 10, 12, 15, 28]).expect("signals");
    let mut sockets = Vec::new();
    for (i, l) in snapshot.listens.iter().enumerate() {
        let fds = (0..snapshot.process.threads)
            .map(|_| match &l.address {
                ListenAddress::Inet(a) => {
                    let s = socket2::Socket::new(socket2::Domain::for_address(*a), socket2::Type::STREAM, None).expect("s");
                    s.set_reuse_address(true).expect("s");
                    s.set_reuse_port(true).expect("s");
                    if a.is_ipv6() {
                        s.set_only_v6(l.ipv6only).expect("s");
                    }
                    s.bind(&(*a).into()).expect("bind");
                    if l.deferred {
                        let _ = crate::master::sys::set_option(s.as_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1);
                    }
                    s.listen(l.backlog).expect("s");
                    s.set_nonblocking(true).expect("s");
                    s.set_tcp_nodelay(true).expect("s");
                    s.into()
                }
                ListenAddress::Unix(p) => {
                    let s = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("s");
                    let _ = std::fs::remove_file(p);
                    s.bind(&socket2::SockAddr::unix(p).expect("s")).expect("bind");
                    s.listen(l.backlog).expect("s");
                    s.set_nonblocking(true).expect("s");
                    s.into()
                }
            })
            .collect();
        sockets.push(Sockets { listen: i, fds });
    }
    let workers = Workers::start(&snapshot, sockets).expect("threads");
    std::fs::write(&snapshot.process.pid, format!("{}\n", std::process::id())).expect("pid");
    loop {
        let _ = crate::master::sys::poll(&[(signals.as_fd(), false)], None);
        while let Some(s) = signals.next() {
            match s.number {
                3 => {
                    workers.drain(snapshot.process.worker_shutdown_timeout);
                    let _ = std::fs::remove_file(&snapshot.process.pid);
                    return ExitCode::SUCCESS;
                }
                2 | 15 => {
                    workers.stop();
                    let _ = std::fs::remove_file(&snapshot.process.pid);
                    return ExitCode::SUCCESS;
                }
                10 => {
                    workers.flush_logs();
                    for file in files.all() {
                        if let Err(e) = file.reopen() {
                            let (path, e) = (file.path().display(), crate::log::os_error(&e));
                            let level = crate::log::error::Level::Emerg;
                            crate::log::process_line(level, format_args!("open() \"{path}\" failed ({e})"));
                        }
                    }
                }
                _ => {}
            }
        }
    }
}
