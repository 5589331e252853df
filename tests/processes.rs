//! Master, worker process, signals, reload.

use crate::harness::{Backend, Client, Port, Program, Reply, Server, Site, wait};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{Read, Write};
use std::process::Command;

/// Writes another configuration text over the running one: `from` becomes `to`.
fn change(server: &Server, from: &str, to: &str) {
    let text = server.read("nginx.conf");
    assert!(text.contains(from), "{text}");
    std::fs::write(server.dir().join("nginx.conf"), text.replace(from, to)).unwrap();
}

fn reload(server: &Server, from: &str, to: &str) {
    change(server, from, to);
    server.signal(Signal::HUP);
}

#[test]
fn a_reload_changes_answers_and_keeps_connections() {
    let server = Site::server("location / { return 200 \"before $connection\"; }").start();
    let mut kept: Vec<_> = (0..20).map(|_| server.connect()).collect();
    let first: Vec<String> = kept.iter_mut().map(|c| c.get("/").text()).collect();
    assert!(first.iter().all(|t| t.starts_with("before ")));
    reload(&server, "before", "after");
    assert!(wait(|| server.get("/").text().starts_with("after ")));
    for (client, before) in kept.iter_mut().zip(&first) {
        assert_eq!(client.get("/").text(), before.replace("before", "after"));
    }
}

/// What only a worker finds out refuses the start as well: no master is left that nobody serves behind.
#[test]
fn a_start_without_a_worker_that_can_serve_fails() {
    for (daemon, said) in
        [("off", ""), ("on", "ironweir: [emerg] no worker process can serve, the error log says why\n")]
    {
        let site = Site::exactly(
            "daemon @DAEMON@; pid @DIR@/logs/nginx.pid; error_log @DIR@/logs/error.log; events { }
             http { init_by_lua_block { error(\"no way\") } server { listen 127.0.0.1:@PORT@; location / { content_by_lua_block { } } } }",
        );
        let (status, stderr, log) = site.set("DAEMON", daemon).fail();
        assert_eq!(status.code(), Some(1), "{log}");
        assert_eq!(stderr, said);
        assert!(log.contains("init_by_lua error: init_by_lua(nginx.conf") && log.contains("no way"), "{log}");
        assert!(log.contains("exited with fatal code 2 and cannot be respawned"), "{log}");
    }
}

#[test]
fn many_reloads_lose_nothing() {
    let server = Site::server("location / { return 200 \"0\"; }").start();
    let mut kept: Vec<_> = (0..10).map(|_| server.connect()).collect();
    for number in 1..=10 {
        reload(&server, &format!("\"{}\"", number - 1), &format!("\"{number}\""));
        let expected = number.to_string();
        let arrived = wait(|| {
            assert!(kept.iter_mut().all(|c| c.get("/").status == 200));
            server.get("/").text() == expected
        });
        assert!(arrived, "reload {number}:\n{}", server.error_log());
    }
    assert!(kept.iter_mut().all(|c| c.get("/").text() == "10"));
}

#[test]
fn a_broken_configuration_changes_nothing() {
    let server = Site::server("location / { return 200 good; }").start();
    reload(&server, "return 200 good", "retrun 200 bad");
    server.wait_for("logs/error.log", "unknown directive \"retrun\"");
    assert_eq!(server.get("/").text(), "good");
    reload(&server, "retrun 200 bad", "return 200 mended");
    assert!(wait(|| server.get("/").text() == "mended"));
}

#[test]
fn a_range_of_ports() {
    // An address of our own: its ports are free.
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = format!("127.{high}.{low}.9");
    let _server = Site::http(
        "server { listen 127.0.0.1:@PORT@; listen @ADDRESS@:8001-8003; location / { return 200 $server_port; } }",
    )
    .set("ADDRESS", &address)
    .start();
    for port in 8001..=8003 {
        let mut stream = std::net::TcpStream::connect((&*address, port)).expect("it listens");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.ends_with(&format!("\r\n\r\n{port}")), "{answer}");
    }
    assert!(std::net::TcpStream::connect((&*address, 8004)).is_err());
}

#[test]
fn listeners_come_and_go() {
    let server = Site::http(
        "server { listen 127.0.0.1:@PORT@; return 200 first; } server { listen unix:@DIR@/a.sock; return 200 a; }",
    )
    .start();
    let alive = |name: &str| std::os::unix::net::UnixStream::connect(server.dir().join(name)).is_ok();
    assert!(wait(|| alive("a.sock")));
    reload(&server, "a.sock", "b.sock");
    assert!(wait(|| alive("b.sock")));
    assert!(wait(|| !alive("a.sock")));
    assert_eq!(server.get("/").text(), "first");
}

#[test]
fn a_request_under_way_is_finished_before_quit() {
    let backend = Backend::start(|seen| {
        // The answer is not sent before the test has told the server to quit.
        let gate = seen.header("X-Gate").unwrap_or_default().to_owned();
        wait(|| std::path::Path::new(&gate).exists());
        Reply::ok("done")
    });
    let server =
        Site::server("location / { return 200 ok; } location /slow { proxy_pass http://127.0.0.1:@BACKEND@; }")
            .set("BACKEND", backend.port)
            .start();
    let gate = server.dir().join("gate");
    let mut slow = server.connect();
    slow.send(format!("GET /slow HTTP/1.1\r\nHost: a\r\nX-Gate: {}\r\n\r\n", gate.display()));
    assert!(wait(|| !backend.seen().is_empty()));
    let mut idle = server.connect();
    idle.get("/");
    server.signal(Signal::QUIT);
    assert!(idle.is_closed());
    std::fs::write(&gate, "").unwrap();
    let r = slow.response();
    assert_eq!((r.status, r.text().as_str()), (200, "done"));
    assert!(slow.is_closed());
}

#[test]
fn term_and_quit_end_with_success() {
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let server = Site::server("return 200 ok;").start();
        let pid = server.dir().join("logs/nginx.pid");
        server.get("/");
        assert!(wait(|| pid.exists()));
        assert!(server.stop(signal).success(), "{signal:?}");
        assert!(!pid.exists(), "{signal:?}");
    }
}

#[test]
fn signals_that_mean_nothing_end_nobody() {
    let server = Site::server("return 200 $pid;").start();
    let worker = server.get("/").text();
    for signal in [Signal::ALARM, Signal::IO] {
        server.signal(signal);
        kill_process(Pid::from_raw(worker.parse().unwrap()).unwrap(), signal).unwrap();
    }
    server.wait_for("logs/error.log", "(SIGIO) received from ");
    assert_eq!(server.get("/").text(), worker);
}

#[test]
fn signals_by_command_line() {
    let server = Site::server("location / { return 200 before; }").start();
    let tell = |word: &str| {
        let mut command = Command::new(Program::under_test().path().unwrap());
        command.arg("-p").arg(server.dir()).arg("-e").arg(server.dir().join("logs/error.log"));
        command.arg("-c").arg(server.dir().join("nginx.conf")).args(["-s", word]).output().unwrap()
    };
    change(&server, "before", "after");
    assert!(tell("reload").status.success());
    assert!(wait(|| server.get("/").text() == "after"));
    assert!(!tell("dance").status.success());
    assert!(tell("quit").status.success());
    assert!(wait(|| !server.dir().join("logs/nginx.pid").exists()));
}

#[test]
fn a_reload_by_command_line_has_served_or_says_why_not() {
    let server = Site::server("location / { return 200 ok; }").start();
    server.wait_for("logs/nginx.pid", "\n");
    let reload = || {
        let mut command = Command::new(Program::under_test().path().unwrap());
        command.arg("-p").arg(server.dir()).arg("-e").arg(server.dir().join("logs/error.log"));
        command.arg("-c").arg(server.dir().join("nginx.conf")).args(["-s", "reload"]).output().unwrap()
    };
    for round in 0..5 {
        let port = Port::reserve();
        change(&server, "server {", &format!("server {{ listen 127.0.0.1:{}; ", port.number));
        let told = reload();
        assert!(told.status.success(), "{round}: {told:?}");
        assert_eq!(Client::connect(port.number).get("/").text(), "ok");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    change(&server, "server {", &format!("server {{ listen {}; ", taken.local_addr().unwrap()));
    let told = reload();
    assert!(!told.status.success(), "{told:?}");
    assert!(String::from_utf8_lossy(&told.stderr).contains("the configuration of before runs on"), "{told:?}");
    assert!(server.error_log().contains("Address already in use"), "{}", server.error_log());
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn logs_are_opened_anew() {
    let server = Site::server("access_log @DIR@/logs/access.log; location / { return 200 ok; }").start();
    server.get("/one");
    server.wait_for("logs/access.log", "GET /one ");
    std::fs::rename(server.dir().join("logs/access.log"), server.dir().join("logs/old.log")).unwrap();
    server.get("/two");
    server.wait_for("logs/old.log", "GET /two ");
    server.signal(Signal::USR1);
    assert!(wait(|| server.dir().join("logs/access.log").exists()));
    assert!(wait(|| {
        server.get("/three");
        server.read("logs/access.log").contains("GET /three ")
    }));
}

/// The processes whose parent is `parent`.
pub fn children(parent: u32) -> Vec<i32> {
    let of = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let above: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (above == parent).then_some(pid)
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
}

#[test]
fn the_master_keeps_nothing_of_a_large_configuration() {
    let servers: String = (0..2000)
        .map(|n| format!("server {{ listen 127.0.0.1:@PORT@; server_name s{n}; location / {{ return 200 ok; }} location ~ \\.php$ {{ return 200 {n}; }} }}\n"))
        .collect();
    let server = Site::http(&servers).start();
    let (master, worker) = processes(&server);
    let own = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let (master, worker) = (own(master as i32), own(worker));
    assert!(master * 3 < worker, "{master} kB, {worker} kB");
}

#[test]
fn a_worker_that_dies_is_replaced() {
    let server = Site::server("location / { return 200 ok; }").start();
    // It listens before it writes its pid, and accepts only once there is a worker.
    assert_eq!(server.get("/").text(), "ok");
    server.wait_for("logs/nginx.pid", "\n");
    let master: u32 = server.read("logs/nginx.pid").trim().parse().unwrap();
    let first = children(master);
    assert_eq!(first.len(), 1, "{first:?}");
    let worker = Pid::from_raw(first[0]).unwrap();
    kill_process(worker, Signal::KILL).unwrap();
    assert!(wait(|| test_kill_process(worker).is_err()));
    server.wait_for("logs/error.log", &format!("worker process {} exited on signal 9", first[0]));
    assert!(wait(|| matches!(children(master).as_slice(), [one] if *one != first[0])));
    assert_eq!(server.get("/").text(), "ok");
}

/// The master and its worker, once both are there.
fn processes(server: &Server) -> (u32, i32) {
    assert_eq!(server.get("/").text(), "ok");
    server.wait_for("logs/nginx.pid", "\n");
    let master: u32 = server.read("logs/nginx.pid").trim().parse().unwrap();
    (master, children(master)[0])
}

/// What `ps` shows.
fn title(pid: impl std::fmt::Display) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}

#[test]
fn processes_have_titles() {
    let server =
        Site::whole("env SHOWN=1; events {} http { server { listen 127.0.0.1:@PORT@; return 200 ok; } }").start();
    let (master, worker) = processes(&server);
    let shown = title(master);
    assert!(shown.starts_with("ironweir: master process /") && shown.ends_with("/nginx.conf"), "{shown}");
    assert!(wait(|| title(worker) == "ironweir: worker process"), "{}", title(worker));
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\n");
    server.signal(Signal::QUIT);
    assert!(wait(|| title(worker) == "ironweir: worker process is shutting down"), "{}", title(worker));
}

#[test]
fn a_log_in_memory_can_be_read() {
    let server = Site::whole(
        "error_log memory:16k debug; events {} http { server { listen 127.0.0.1:@PORT@; location / { return 200 ok; } \
         location /missing { root /nowhere; } } }",
    )
    .start();
    let (_, worker) = processes(&server);
    for _ in 0..200 {
        assert_eq!(server.get("/missing").status, 404);
    }
    let name = |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).unwrap_or_default().display().to_string();
    let fds = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().flatten();
    let texts: Vec<String> = fds
        .filter(|fd| name(fd).contains("memfd:error_log"))
        .map(|fd| String::from_utf8_lossy(&std::fs::read(fd.path()).unwrap()).into_owned())
        .collect();
    assert!(texts.iter().all(|t| t.len() == 16 * 1024));
    let last = texts.iter().find(|t| t.contains("open() \"/nowhere/missing\" failed"));
    assert!(last.is_some_and(|t| t.matches('\n').count() > 50), "{texts:?}");
}

#[test]
fn version_and_help() {
    let run = |argument: &str| {
        let out = Command::new(Program::Ironweir.path().unwrap()).arg(argument).output().unwrap();
        assert!(out.status.success(), "{argument}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(run("-v").starts_with("nginx version: nginx/1.31.5 (Ironweir "));
    assert!(run("-V").contains("\nconfigure arguments: --prefix=/etc/nginx --sbin-path=/"));
    assert!(run("-h").contains("Options:"));
    let out = Command::new(Program::Ironweir.path().unwrap()).arg("-x").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("nginx: invalid option: \"x\""));
}

#[test]
fn the_configuration_can_be_shown() {
    let server = Site::server("location / { return 200 ok; }").start();
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    let out = command.arg("-T").arg("-p").arg(server.dir()).arg("-c").arg("nginx.conf").output().unwrap();
    let shown = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(shown.starts_with(&format!("# configuration file {}/nginx.conf:\n", server.dir().display())), "{shown}");
    assert!(shown.contains("return 200 ok;"));
}

#[test]
fn zones_outlive_a_reload_unless_their_key_changes() {
    let server = Site::http(
        "limit_req_zone $uri zone=one:1m rate=1r/m; \
         server { listen 127.0.0.1:@PORT@; location / { limit_req zone=one; } location = /n { return 200 0; } }",
    )
    .file("html/a", "a")
    .start();
    assert_eq!((server.get("/a").status, server.get("/a").status), (200, 503));
    reload(&server, "return 200 0", "return 200 1");
    assert!(wait(|| server.get("/n").text() == "1"));
    assert_eq!(server.get("/a").status, 503);
    change(&server, "$uri zone", "$uri$args zone");
    reload(&server, "return 200 1", "return 200 2");
    assert!(wait(|| server.get("/n").text() == "2"));
    assert_eq!(server.get("/a").status, 200);
}

/// Connections for which the accept queue has no room are counted by the kernel alone: the log says so, and what would have been enough.
#[test]
fn a_full_accept_queue_is_in_the_log() {
    let server = Site::whole(
        "worker_processes 1; events { } http { server { listen 127.0.0.1:@PORT@ backlog=4; location / { return 200; } } }",
    )
    .start();
    assert_eq!(server.get("/").status, 200);
    server.wait_for("logs/nginx.pid", "\n");
    let worker = Pid::from_raw(children(server.read("logs/nginx.pid").trim().parse().unwrap())[0]).unwrap();
    kill_process(worker, Signal::STOP).unwrap();
    // All of its threads: one that is at work takes what comes until its next look at its signals.
    let tasks = format!("/proc/{}/task", worker.as_raw_nonzero());
    let is_stopped = |task: &std::path::Path| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    assert!(wait(|| std::fs::read_dir(&tasks).unwrap().flatten().all(|task| is_stopped(&task.path()))));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.port));
    let clients: Vec<_> = (0..12)
        .map(|_| std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(200)))
        .collect();
    kill_process(worker, Signal::CONT).unwrap();
    assert!(clients.iter().any(Result::is_err), "all had room");
    server.wait_for("logs/error.log", &format!("the accept queue of {address} was full: "));
    let log = server.error_log();
    assert!(log.contains("It takes 4, the smaller of \"backlog\" of \"listen\" and net.core.somaxconn: "), "{log}");
}
