//! The master with real processes: start, reload, a killed worker, log files, binary upgrade, one process.
//! Runs the program of `examples/processes.rs`, which a plain `cargo test` builds (`--test processes` alone does not).
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest any condition may take here.
const LIMIT: Duration = Duration::from_secs(20);

fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn program() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples/processes")
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn signal(pid: i32, number: i32) {
    let status = Command::new("kill").arg(format!("-{number}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success());
}

/// A running server with a directory of its own; both are gone at the end.
struct Server {
    dir: PathBuf,
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(lines: &str) -> Server {
        Server::launch(lines).ready()
    }

    fn launch(lines: &str) -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("ironweir-processes-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let address = free();
        write_conf(&dir, address, lines);
        let child = Command::new(program())
            .arg(dir.join("conf"))
            .arg(dir.join("error.log"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Server { dir, child, address }
    }

    fn ready(self) -> Server {
        until("the pid file", || self.dir.join("pid").exists().then_some(()));
        self
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn pid_file(&self) -> i32 {
        until("a pid", || std::fs::read_to_string(self.dir.join("pid")).ok()?.trim().parse().ok())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("error.log")).unwrap_or_default()
    }

    fn logged(&self, text: &str) {
        until(text, || self.log().contains(text).then_some(()));
    }

    fn reload(&self, lines: &str) {
        write_conf(&self.dir, self.address, lines);
        signal(self.pid_file(), libc::SIGHUP);
    }

    fn ask(&self) -> (i32, u64, String) {
        Client::new(self.address).ask().expect("an answer")
    }

    fn ended(&mut self) -> ExitStatus {
        until("the end", || self.child.try_wait().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(text) = std::fs::read_to_string(self.dir.join("pid")) {
            let _ = Command::new("kill").arg(text.trim()).stderr(Stdio::null()).status();
        }
        let _ = Command::new("kill").arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn write_conf(dir: &Path, address: SocketAddr, lines: &str) {
    let d = dir.display();
    let daemon = if lines.contains("daemon") { "" } else { "daemon off\n" };
    let lines = lines.replace("directory ", &format!("directory {d}/"));
    let text = format!("{daemon}pid {d}/pid\nerror_log {d}/error.log\nlisten {address}\n{lines}\n");
    std::fs::write(dir.join("conf"), text).unwrap();
}

/// A kept connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client(BufReader::new(stream))
    }

    fn ask(&mut self) -> Option<(i32, u64, String)> {
        self.0.get_mut().write_all(b"?\n").ok()?;
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        let mut words = line.trim_end().splitn(3, ' ');
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.to_owned()))
    }
}

#[test]
fn it_starts_serves_and_stops() {
    let mut server = Server::start("answer one");
    assert_eq!(server.pid_file(), server.pid());
    let (worker, generation, answer) = server.ask();
    assert_ne!(worker, server.pid());
    assert_eq!((generation, answer.as_str()), (1, "one"));
    signal(server.pid(), libc::SIGTERM);
    assert!(server.ended().success());
    let log = server.log();
    for text in
        ["[notice]", "nginx/1.31.5", "getrlimit(RLIMIT_NOFILE): ", "start worker processes", "(SIGTERM) received from "]
    {
        assert!(log.contains(text), "{text} in {log}");
    }
    assert!(log.contains(&format!("start worker process {worker}\n")), "{log}");
    assert!(log.contains(&format!("worker process {worker} exited with code 0\n")), "{log}");
    assert!(log.ends_with(": exit\n") && !log.contains("[alert]"), "{log}");
    assert!(!server.dir.join("pid").exists());
}

#[test]
fn a_graceful_end_waits_for_open_connections() {
    let mut server = Server::start("answer one");
    let mut client = Client::new(server.address);
    client.ask().unwrap();
    signal(server.pid(), libc::SIGQUIT);
    server.logged("gracefully shutting down");
    assert!(client.ask().is_some());
    assert!(server.child.try_wait().unwrap().is_none());
    drop(client);
    assert!(server.ended().success());
}

#[test]
fn a_reload_keeps_the_process_and_its_connections() {
    let server = Server::start("answer one\nthreads 2");
    let mut kept = Client::new(server.address);
    let (worker, _, _) = kept.ask().unwrap();
    server.reload("answer two\nthreads 4");
    server.logged("configuration 1 of worker process");
    assert_eq!(kept.ask().unwrap(), (worker, 2, "two".to_owned()));
    assert_eq!(server.ask(), (worker, 2, "two".to_owned()));
    assert!(server.log().contains("(SIGHUP) received from "));
    assert!(server.log().contains("reconfiguring\n"));
}

#[test]
fn a_broken_configuration_changes_nothing() {
    let server = Server::start("answer one");
    server.reload("nonsense");
    server.logged("[emerg]");
    assert!(server.log().contains("unknown directive \"nonsense\""));
    assert_eq!(server.ask().2, "one");
    server.reload("answer refuse");
    server.logged("told to refuse");
    assert_eq!(server.ask().2, "one");
    server.reload("answer three");
    until("the third", || (server.ask().2 == "three").then_some(()));
}

#[test]
fn listeners_come_and_go() {
    let server = Server::start("answer one");
    let (other, socket) = (free(), server.dir.join("s"));
    server.reload(&format!("answer two\nlisten {other}\nlisten unix:{}", socket.display()));
    until("the new listener", || TcpStream::connect(other).ok());
    until("the unix socket", || socket.exists().then_some(()));
    assert_eq!(Client::new(other).ask().unwrap().2, "two");
    server.reload("answer three");
    until("its end", || TcpStream::connect(other).err());
    assert!(!socket.exists());
    assert_eq!(server.ask().2, "three");
}

#[test]
fn twenty_reloads_refuse_nobody() {
    let server = Server::start("answer 0\nthreads 2");
    let mut kept: Vec<Client> = (0..20).map(|_| Client::new(server.address)).collect();
    let address = server.address;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let load = std::thread::spawn(move || {
        let mut asked = 0;
        while !stopped.load(Ordering::SeqCst) {
            Client::new(address).ask().expect("an answer during a reload");
            asked += 1;
        }
        asked
    });
    for i in 1..=20 {
        server.reload(&format!("answer {i}\nthreads {}", 1 + i % 3));
        std::thread::sleep(Duration::from_millis(20));
    }
    until("the last configuration", || (server.ask().2 == "20").then_some(()));
    stop.store(true, Ordering::SeqCst);
    assert!(load.join().unwrap() > 20);
    let worker = server.ask().0;
    assert!(kept.iter_mut().all(|client| client.ask().unwrap().0 == worker));
}

#[test]
fn settings_of_the_process_bring_a_new_one() {
    let server = Server::start("answer one");
    let mut kept = Client::new(server.address);
    let (old, _, _) = kept.ask().unwrap();
    server.reload("answer two\npriority 5");
    let new = until("a new worker", || Some(server.ask()).filter(|(pid, _, _)| *pid != old));
    assert_eq!(new.2, "two");
    assert_eq!(kept.ask().unwrap().0, old);
    drop(kept);
    server.logged(&format!("worker process {old} exited with code 0"));
}

#[test]
fn a_killed_worker_is_replaced() {
    let server = Server::start("answer one");
    let (old, _, _) = server.ask();
    signal(old, libc::SIGKILL);
    let new = until("a new worker", || Some(server.ask().0).filter(|pid| *pid != old));
    server.logged(&format!("worker process {old} exited on signal 9\n"));
    server.logged(&format!("start worker process {new}\n"));
}

/// Needs root, and a kernel that writes core files into the process's directory.
#[test]
fn a_worker_runs_as_its_user_in_its_directory() {
    let server =
        Server::start("answer one\nuser nobody\nrlimit_core 100000000\ndirectory cores\nworking_directory cores");
    let (worker, _, _) = server.ask();
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    let master = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let uid = |status: &str| status.lines().find_map(|line| line.strip_prefix("Uid:\t")).unwrap().to_owned();
    if !uid(&master).starts_with("0\t") {
        return;
    }
    let cores = server.dir.join("cores");
    assert!(!uid(&status).starts_with("0\t"), "{status}");
    assert_eq!(std::fs::read_link(format!("/proc/{worker}/cwd")).unwrap(), cores);
    signal(worker, libc::SIGSEGV);
    server.logged(&format!("worker process {worker} exited on signal 11"));
    if std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap().starts_with("core") {
        server.logged("exited on signal 11 (core dumped)");
        assert!(std::fs::read_dir(cores).unwrap().count() == 1);
    }
}

#[test]
fn a_start_whose_worker_is_fatal_fails() {
    let mut server = Server::launch("answer fatal");
    assert_eq!(server.ended().code(), Some(1));
    let log = server.log();
    assert!(log.contains("exited with fatal code 2 and cannot be respawned"), "{log}");
    assert_eq!(log.matches("start worker process ").count(), 1, "{log}");
}

#[test]
fn a_fatal_worker_is_not_replaced() {
    let server = Server::start("answer one");
    server.ask();
    server.reload("answer fatal\npriority 5");
    server.logged("exited with fatal code 2 and cannot be respawned");
    let log = server.log();
    assert_eq!(log.matches("start worker process ").count(), 2, "{log}");
}

#[test]
fn logs_are_reopened_in_both_processes() {
    let server = Server::start("answer one");
    let (worker, _, _) = server.ask();
    let moved = server.dir.join("error.log.1");
    std::fs::rename(server.dir.join("error.log"), &moved).unwrap();
    signal(server.pid(), libc::SIGUSR1);
    until("a new file", || server.dir.join("error.log").exists().then_some(()));
    until("the worker's line", || {
        let both = std::fs::read_to_string(&moved).unwrap() + &server.log();
        both.contains(&format!("{worker}#{worker}: reopening logs")).then_some(())
    });
    signal(worker, libc::SIGHUP);
    server.logged(&format!("{worker}#{worker}: signal 1 (SIGHUP) received from "));
    assert!(!std::fs::read_to_string(&moved).unwrap().contains("(SIGHUP)"));
}

#[test]
fn an_address_in_use_ends_the_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = Server::launch(&format!("answer one\nlisten {}", taken.local_addr().unwrap()));
    assert_eq!(server.ended().code(), Some(1));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut server.child.stderr.take().unwrap(), &mut text).unwrap();
    let address = taken.local_addr().unwrap();
    let line = format!("nginx: [emerg] bind() to {address} failed (98: Address already in use): process ");
    assert_eq!(text.matches(&line).count(), 1, "{text}");
    assert!(text.contains(&format!("process {} (", std::process::id())), "{text}");
    assert!(text.ends_with("nginx: [emerg] still could not bind()\n"), "{text}");
    assert!(server.log().contains("[emerg]") && !server.dir.join("pid").exists());
}

#[test]
fn a_new_binary_takes_the_sockets_and_the_old_one_goes() {
    let mut server = Server::start("answer one\nthreads 2");
    let mut kept = Client::new(server.address);
    let (worker, _, _) = kept.ask().unwrap();
    let old = server.pid();
    signal(old, libc::SIGUSR2);
    until("the old pid file", || server.dir.join("pid.oldbin").exists().then_some(()));
    let new = until("a new pid", || Some(server.pid_file()).filter(|pid| *pid != old));
    server.logged("using inherited sockets from");
    signal(old, libc::SIGUSR2);
    server.logged("the changing binary signal is ignored");
    signal(old, libc::SIGQUIT);
    assert_eq!(kept.ask().unwrap().0, worker);
    until("the new worker", || Some(server.ask().0).filter(|pid| *pid != worker));
    drop(kept);
    assert!(server.ended().success());
    assert!(!server.dir.join("pid.oldbin").exists());
    assert_eq!(server.pid_file(), new);
    server.ask();
    assert!(!server.log().contains("[alert]"), "{}", server.log());
}

#[test]
fn a_new_binary_that_fails_leaves_all_as_it_was() {
    let server = Server::start("answer one");
    let conf = server.dir.join("conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, "nonsense").unwrap();
    signal(server.pid(), libc::SIGUSR2);
    server.logged("new binary process");
    until("the pid file", || server.log().contains("exited with code 1").then_some(()));
    assert_eq!(server.pid_file(), server.pid());
    std::fs::write(&conf, text).unwrap();
    assert_eq!(server.ask().2, "one");
}

#[test]
fn a_daemon_leaves_when_it_is_ready() {
    let mut server = Server::launch("daemon on\nanswer one");
    assert!(server.ended().success());
    assert!(server.dir.join("pid").exists());
    let pid = server.pid_file();
    assert_ne!(pid, server.pid());
    assert_eq!(server.ask().2, "one");
    signal(pid, libc::SIGWINCH);
    server.logged("gracefully shutting down");
    signal(pid, libc::SIGHUP);
    until("a worker again", || TcpStream::connect(server.address).ok().and_then(|_| Client::new(server.address).ask()));
    signal(pid, libc::SIGTERM);
    until("its end", || (!server.dir.join("pid").exists()).then_some(()));
}

#[test]
fn one_process_does_it_all() {
    let mut server = Server::start("master_process off\nanswer one");
    assert_eq!(server.ask(), (server.pid(), 1, "one".to_owned()));
    server.reload("master_process off\nanswer two");
    until("the second", || (server.ask().2 == "two").then_some(()));
    signal(server.pid(), libc::SIGQUIT);
    assert!(server.ended().success());
    assert!(server.log().ends_with(": exit\n"));
}
