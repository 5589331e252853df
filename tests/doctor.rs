//! `ironweir doctor`, `nic` and `lab` as people call them. Rules and labs have their own tests in `crates/doctor`.

use crate::harness::{Backend, Folder, Program, Reply, Site, blunt, shared, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Runs `ironweir` with these words in a folder.
fn run_in(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    command.args(words).current_dir(folder).stdin(Stdio::null()).output().expect("it starts")
}

fn run(words: &[&str]) -> Output {
    run_in(Path::new("/"), words)
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// Names of findings.
fn ids(output: &Output) -> Vec<String> {
    let all = json(output);
    all["findings"].as_array().unwrap().iter().map(|f| f["id"].as_str().unwrap().to_owned()).collect()
}

/// A finding by its name.
fn finding(output: &Output, id: &str) -> Value {
    let all = json(output);
    let found = all["findings"].as_array().unwrap().iter().find(|f| f["id"] == id).cloned();
    found.unwrap_or_else(|| panic!("no {id} in {all:#}"))
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/doctor").join(name)
}

/// The field's profiles, for Linux 6.1 with 24 GB: what each line does, and the profile as it should be. Each line of the expected files was
/// read by a person. `CONFTEST=write` writes them anew.
#[test]
fn the_fields_kernel_settings() {
    let machine = data("machine.json");
    for name in ["million-qps", "million-held", "two-million-held"] {
        let Some(text) = shared(&format!("data/field-sysctl/{name}.conf")) else { return };
        let folder = Folder::new();
        folder.write(&format!("{name}.conf"), text);
        let words = ["doctor", "sysctl", &format!("{name}.conf"), "--facts", machine.to_str().unwrap()];
        let output = run_in(folder.path(), &words);
        let profile = std::fs::read_to_string(folder.path().join(format!("{name}-corrected.conf"))).unwrap();
        let said = format!("{}\n{profile}", out(&output));
        let expected = data(&format!("{name}.txt"));
        if std::env::var("CONFTEST").is_ok_and(|v| v == "write") {
            std::fs::write(&expected, &said).unwrap();
        }
        assert_eq!(said, std::fs::read_to_string(&expected).unwrap(), "{name}");
        // What is written is what should have been written: nothing in it is dangerous, removed or garbled.
        let words = [
            "doctor",
            "sysctl",
            &format!("{name}-corrected.conf"),
            "--facts",
            machine.to_str().unwrap(),
            "--json",
            "--write",
            "-",
        ];
        let again = run_in(folder.path(), &words);
        assert_eq!(again.status.code(), Some(0), "{}", out(&again));
        assert!(!json(&again)["lines"].as_array().unwrap().is_empty());
    }
}

/// Real settings that are a letter or two from one of which more is known: each is set as it was written.
#[test]
fn real_settings_keep_their_names() {
    let folder = Folder::new();
    let text = "net.ipv6.conf.all.forwarding = 1\nnet.ipv6.conf.all.accept_redirects = 0\nnet.ipv4.conf.all.arp_filter = 1\n\
                net.ipv4.tcp_retries1 = 4\nnet.ipv6.neigh.default.gc_thresh3 = 8192\nnet.ipv4.tcp_retrles2 = 8\n";
    folder.write("six.conf", text);
    let output = run_in(folder.path(), &["doctor", "sysctl", "six.conf", "--write", "own.conf"]);
    assert_eq!(output.status.code(), Some(3), "{}", out(&output));
    let profile = std::fs::read_to_string(folder.path().join("own.conf")).unwrap();
    for line in text.lines().take(5) {
        assert!(profile.contains(&format!("\n{line}\n")), "{line}\n{profile}");
    }
    assert!(
        !profile.contains("\nnet.ipv4.tcp_retries2") && !profile.contains("\nnet.ipv4.conf.all.forwarding"),
        "{profile}"
    );
    assert!(out(&output).contains("the nearest one is net.ipv4.tcp_retries2"), "{}", out(&output));
}

/// Files that are none: nobody is waited for.
#[test]
fn pipes_that_nobody_writes_to() {
    let folder = Folder::new();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    folder.write("nginx.conf", "error_log pipe;\nevents {}\nhttp { include pipe; server { listen 8080; } }\n");
    let words: [&[&str]; 3] =
        [&["doctor", "exits", "pipe"], &["doctor", "sysctl", "pipe", "--write", "-"], &["doctor", "nginx.conf"]];
    for words in words {
        let output = run_in(folder.path(), words);
        assert!(output.status.code().is_some(), "{words:?}: {output:?}");
    }
}

/// A reader that has seen enough ends it.
#[test]
fn rates_end_with_their_reader() {
    let mut command = Command::new(Program::Ironweir.path().expect("Ironweir is built"));
    let mut child =
        command.args(["nic", "lo", "--interval", "20ms"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(wait(|| child.try_wait().unwrap().is_some()), "it goes on");
}

/// What an Ironweir says of itself is a part of it: a peer that is out shows without anybody asking that server.
#[test]
fn servers_that_run_are_asked() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Site::http(
        "upstream app { zone app 64k; server 127.0.0.1:@DEAD@ max_fails=1 fail_timeout=60s; server 127.0.0.1:@DEAD@ max_fails=1 fail_timeout=60s; }
         server { listen 127.0.0.1:@PORT@; location /api { api; } location / { proxy_pass http://app; } }",
    )
    .set("DEAD", dead)
    .start();
    (0..4).for_each(|_| drop(server.get("/")));
    let url = format!("http://127.0.0.1:{}/api", server.port);
    let output = run(&["doctor", "--json", "--interval", "100ms", "--api", &url]);
    assert!(ids(&output).contains(&"peers-out".to_owned()), "{}", out(&output));
}

#[test]
fn a_profile_is_never_written_over_what_somebody_else_wrote() {
    let folder = Folder::new();
    folder.write("a.conf", "net.ipv4.tcp_syncookies = 0\n");
    folder.write("a-corrected.conf", "mine\n");
    let output = run_in(folder.path(), &["doctor", "sysctl", "a.conf"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(folder.path().join("a-corrected.conf")).unwrap(), "mine\n");
    let again = |status| {
        let output = run_in(folder.path(), &["doctor", "sysctl", "a.conf", "--write", "b.conf"]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(
            std::fs::read_to_string(folder.path().join("b.conf")).unwrap().contains("\nnet.ipv4.tcp_syncookies = 1\n")
        );
    };
    again(3);
    again(3);
}

/// What was recorded on one machine is judged on another, the same.
#[test]
fn recorded_facts_are_judged_again() {
    let folder = Folder::new();
    let first = run_in(folder.path(), &["doctor", "--json", "--interval", "50ms", "--record", "seen.json"]);
    assert!(matches!(first.status.code(), Some(0 | 3 | 4)), "{first:?}");
    let again = run_in(folder.path(), &["doctor", "--json", "--facts", "seen.json"]);
    assert_eq!((first.stdout, first.status.code()), (again.stdout, again.status.code()));
    let healthy = run(&["doctor", "--facts", data("machine.json").to_str().unwrap()]);
    assert_eq!((out(&healthy).as_str(), healthy.status.code()), ("Nothing is wrong.\n", Some(0)));
    folder.write("none.json", "{}");
    let none = run_in(folder.path(), &["doctor", "--facts", "none.json"]);
    assert!(
        none.status.code() == Some(1) && String::from_utf8_lossy(&none.stderr).contains("no recorded facts"),
        "{none:?}"
    );
}

#[test]
fn a_configuration_that_does_not_run_yet() {
    let folder = Folder::new();
    folder.write(
        "nginx.conf",
        "worker_rlimit_nofile 512;\nevents { worker_connections 4096; }\nhttp {\nupstream app { server 127.0.0.1:9; keepalive 16; }\n\
         server { listen 127.0.0.1:1 backlog=16;\nlisten 127.0.0.1:2 backlog=2000000 ssl http2;\nssl_certificate none; ssl_certificate_key none;\n\
         location / { proxy_http_version 1.0; proxy_pass http://app; }\nlocation /a { proxy_pass http://127.0.0.1:9; } } }\n",
    );
    let output = run_in(folder.path(), &["doctor", "--json", "--interval", "10ms", "nginx.conf"]);
    let seen = |id: &str| finding(&output, id)["evidence"].to_string();
    assert!(seen("backlog-short").contains("nginx.conf:5"));
    assert!(seen("backlog-cut").contains("nginx.conf:6") && seen("backlog-cut").contains("net.core.somaxconn"));
    assert!(
        seen("connections-over-descriptors").contains("nginx.conf:2")
            && seen("connections-over-descriptors").contains("nginx.conf:1")
    );
    assert!(seen("no-keepalive").contains("nginx.conf:8") && seen("no-pool").contains("nginx.conf:9"));
    assert!(seen("deprecated").contains("listen 127.0.0.1:2 backlog=2000000 ssl http2"));
    let missing = run(&["doctor", "/nonexistent.conf"]);
    assert_eq!(missing.status.code(), Some(1));
}

/// A real server whose worker is stopped, with a backlog of 16 and 40 clients: both are found, with the process and the port.
#[test]
fn a_stopped_worker_and_its_full_queue() {
    let site = "worker_processes 1;\nevents {}\nhttp { server { listen 127.0.0.1:@PORT@ backlog=16; return 200 ok; } }";
    let server = Site::whole(site).start();
    server.wait_for("logs/nginx.pid", "\n");
    // An answer: the worker process is there.
    assert_eq!(server.get("/").text(), "ok");
    let master = server.read("logs/nginx.pid").trim().to_owned();
    let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
    let worker: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    let pid = Pid::from_raw(worker).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], server.port));
    let client = |_| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&address.into());
        socket
    };
    let clients: Vec<_> = (0..40).map(client).collect();
    let mut output = run(&["doctor", "--json", "--interval", "10ms"]);
    let is_full = |output: &Output| out(output).contains("17 connections wait, 16 may");
    wait(|| {
        is_full(&output) || {
            output = run(&["doctor", "--json", "--interval", "10ms"]);
            is_full(&output)
        }
    });
    let backend = run(&["doctor", "backend", &address.to_string(), "--json"]);
    kill_process(pid, Signal::CONT).unwrap();
    drop(clients);
    assert_eq!(output.status.code(), Some(4));
    let all = json(&output)["findings"].to_string();
    assert!(
        all.contains(&format!("The accept queue of {address}")) && all.contains("17 connections wait, 16 may"),
        "{all}"
    );
    assert!(all.contains(&format!("kill -CONT {worker}")), "{all}");
    let silent = finding(&backend, "silent");
    assert!(silent["why"].as_str().unwrap().contains("accept queue is full"), "{silent:#}");
    assert!(wait(|| server.get("/").text() == "ok"));
    let output = run(&["doctor", "--json", "--interval", "10ms"]);
    let all = json(&output)["findings"].to_string();
    assert!(
        !all.contains(&format!("The accept queue of {address}")) && !all.contains(&format!("kill -CONT {worker}")),
        "{all}"
    );
}

#[test]
fn backends_that_are_well_and_not() {
    let look = |address: &str| run(&["doctor", "backend", address, "--json"]);
    let well = Backend::ok("hello");
    let output = run(&["doctor", "backend", &format!("127.0.0.1:{}", well.port)]);
    assert_eq!(output.status.code(), Some(0), "{}", out(&output));
    assert!(out(&output).contains("answers 200") && out(&output).ends_with("Nothing is wrong.\n"), "{}", out(&output));
    // A port that nobody has: reserved and let go.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = finding(&look(&free.to_string()), "refused");
    assert!(refused["evidence"].to_string().contains("nobody listens"), "{refused:#}");
    // It listens on another address of this machine.
    let kept = TcpListener::bind("127.0.0.2:0").unwrap();
    let other = kept.local_addr().unwrap();
    let elsewhere = finding(&look(&format!("127.0.0.1:{}", other.port())), "refused");
    assert!(elsewhere["cure"].to_string().contains("it listens on 127.0.0.2:"), "{elsewhere:#}");
    let sick = Backend::start(|_| Reply::Close("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".into()));
    assert_eq!(finding(&look(&format!("127.0.0.1:{}", sick.port)), "status")["weight"], "critical");
    assert_eq!(ids(&look(&format!("127.0.0.1:{}", blunt(b"+PONG\r\n")))), ["not-http"]);
    assert_eq!(ids(&look(&format!("127.0.0.1:{}", blunt(&[0x15, 3, 3, 0, 2, 2, 40])))), ["tls"]);
    let slow = Backend::start(|_| {
        std::thread::sleep(Duration::from_millis(600));
        Reply::ok("late")
    });
    let slow = finding(&look(&format!("127.0.0.1:{}", slow.port)), "slow");
    assert!(
        slow["evidence"].to_string().contains("sock_diag") || slow["evidence"].to_string().contains("/proc/PID/stat"),
        "{slow:#}"
    );
    assert_eq!(ids(&look("nowhere.invalid:80")), ["no-address"]);
    // A URL is as good; over TLS, something that does not speak it is told from something that does not answer.
    let output = run(&["doctor", "backend", &format!("http://127.0.0.1:{}/some/path", well.port)]);
    assert!(out(&output).contains("answers 200"), "{}", out(&output));
    let hints = blunt(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(finding(&look(&format!("127.0.0.1:{hints}")), "status")["weight"], "critical");
    assert_eq!(ids(&look(&format!("https://127.0.0.1:{}/", blunt(b"+PONG\r\n")))), ["no-answer"]);
}

#[test]
fn workers_that_died() {
    let folder = Folder::new();
    folder.write(
        "error.log",
        "2026/11/22 10:00:00 [alert] 7#7: worker process 8 exited on signal 11 (core dumped)\n\
         2026/11/22 10:00:01 [alert] 7#7: worker process 9 exited on signal 11\n",
    );
    let facts = data("segfault.json");
    let output = run_in(folder.path(), &["doctor", "exits", "error.log", "--json", "--facts", facts.to_str().unwrap()]);
    assert_eq!(ids(&output), ["segfault", "exit-by-signal", "cores"]);
    assert!(
        finding(&output, "exit-by-signal")["what"]
            .as_str()
            .unwrap()
            .starts_with("2 workers died of signal 11 (SIGSEGV)")
    );
    let segfault = finding(&output, "segfault");
    assert!(
        segfault["cure"].to_string().contains("0x1234")
            && segfault["what"].as_str().unwrap().contains("pointer to nothing"),
        "{segfault:#}"
    );
    assert!(finding(&output, "cores")["what"].as_str().unwrap().contains("/var/cores/%e.%p"));
}

/// A journal that journald has written (tests/doctor/make_journals.sh).
fn journal(name: &str) -> Vec<u8> {
    zstd::decode_all(&std::fs::read(data(name)).unwrap()[..]).unwrap()
}

#[test]
fn what_the_journal_says_of_units_that_died() {
    for name in ["compact.journal.zst", "regular.journal.zst"] {
        let folder = Folder::new();
        folder.make("journals/machine");
        std::fs::write(folder.path().join("journals/machine/system.journal"), journal(name)).unwrap();
        let facts = data("segfault.json");
        let facts = facts.to_str().unwrap();
        folder.write("error.log", "");
        let words = ["doctor", "exits", "error.log", "--json", "--facts", facts, "--journal", "journals"];
        let output = run_in(folder.path(), &words);
        let all = ids(&output);
        for (id, times) in
            [("segfault", 2), ("unit-died", 1), ("unit-failed", 1), ("unit-out-of-memory", 1), ("core", 1)]
        {
            assert_eq!(all.iter().filter(|i| *i == id).count(), times, "{name}: {id} in {all:?}");
        }
        let died = finding(&output, "unit-died")["what"].to_string();
        assert!(died.contains("nginx.service died of signal 11 (SIGSEGV) 3 times"), "{name}: {died}");
        assert!(finding(&output, "unit-failed")["what"].to_string().contains("backup.service ended with status 3"));
        let core = finding(&output, "core").to_string();
        assert!(core.contains("/usr/sbin/nginx died of signal 11") && core.contains("core.nginx.33.811.zst"), "{core}");
        assert!(out(&output).contains("nginx[811]: segfault at 10"), "the kernel's line of another boot");
        // Of a server's unit also `doctor` tells, of a backup's and of others' it does not.
        let output = run_in(folder.path(), &["doctor", "--json", "--facts", facts, "--journal", "journals"]);
        let all = ids(&output);
        assert!(all.contains(&"unit-died".to_owned()) && !all.contains(&"unit-failed".to_owned()), "{all:?}");
        let errors = finding(&output, "unit-errors").to_string();
        assert!(
            errors.contains("lines about errors of nginx.service") && errors.contains("Address already in use"),
            "{errors}"
        );
        assert!(!out(&output).contains("nobody's business"), "{}", out(&output));
        let recorded = folder.path().join("seen.json");
        run_in(folder.path(), &["doctor", "--facts", facts, "--journal", "journals", "--record", "seen.json"]);
        let again = run(&[
            "doctor",
            "exits",
            data("none.log").to_str().unwrap(),
            "--json",
            "--facts",
            recorded.to_str().unwrap(),
        ]);
        assert_eq!(again.status.code(), Some(1), "a log that was named has to be there");
        let again = run(&["doctor", "--json", "--facts", recorded.to_str().unwrap()]);
        assert!(ids(&again).contains(&"unit-died".to_owned()), "facts have what the journal told");
    }
}

/// Journals are written while they are read, and a disk that is full leaves them half.
#[test]
fn a_journal_that_is_cut_or_wrong_tells_less_and_ends() {
    for name in ["compact.journal.zst", "regular.journal.zst"] {
        let whole = journal(name);
        let told = |bytes: &[u8]| machine::journal::of_file(&bytes, bytes.len() as u64, 0).len();
        let (all, end) = (told(&whole), whole.iter().rposition(|b| *b != 0).unwrap());
        assert!(all > 20, "{name}: {all}");
        assert_eq!(machine::journal::of_file(&&whole[..], whole.len() as u64, u64::MAX).len(), 0, "nothing is so new");
        for part in 0..40 {
            assert!(told(&whole[..end * part / 40]) <= all, "{name}: {part} of 40");
        }
        // Eight bytes that lead elsewhere, one place after the other.
        for (place, value) in (0..272).step_by(8).flat_map(|at| [0, 8, u64::MAX, end as u64 & !7].map(|v| (at, v))) {
            let mut wrong = whole[..end].to_vec();
            wrong[place..place + 8].copy_from_slice(&value.to_le_bytes());
            let _ = told(&wrong);
        }
        for step in 0..400 {
            let mut wrong = whole[..end].to_vec();
            let place = ((step * 7919 * 8) % (end - 8)) & !7;
            wrong[place..place + 8].copy_from_slice(&(step as u64 * 8).to_le_bytes());
            let _ = told(&wrong);
        }
    }
}

#[test]
fn interfaces_plans_and_pages() {
    let output = run(&["nic", "lo", "--count", "1", "--interval", "100ms", "--json"]);
    let lo = json(&output);
    assert!(lo["interface"] == "lo" && lo["seconds"].as_f64().unwrap() >= 0.1 && lo["added"]["rx_errors"] == 0, "{lo}");
    let output = run(&["nic", "--count", "1", "--interval", "50ms", "--unit", "bytes"]);
    assert!(
        out(&output).lines().next().unwrap().contains("rx MB/s") && out(&output).contains("\nlo "),
        "{}",
        out(&output)
    );
    assert_eq!(run(&["nic", "none9", "--count", "1"]).status.code(), Some(1));
    let output = run(&["doctor", "plan", "balancer=1", "application=4", "database=20", "--json"]);
    assert_eq!((json(&output)["ceiling"].as_f64(), json(&output)["binds"].as_str()), (Some(2_800.0), Some("database")));
    let output = run(&["doctor", "plan", "balancer=1", "application=4", "database=20", "--rate", "10,000"]);
    assert!(
        output.status.code() == Some(3) && out(&output).contains("72 nodes of database (52 more)"),
        "{}",
        out(&output)
    );
    let help = out(&run(&["doctor", "--help"]));
    assert!(
        ["sysctl", "backend", "ports", "exits", "plan"].iter().all(|l| help.contains(&format!("ironweir doctor {l}"))),
        "{help}"
    );
    for name in ["doctor", "canary", "tune", "nic", "lab"] {
        let (help, man) = (out(&run(&[name, "--help"])), out(&run(&[name, "--man"])));
        assert!(
            help.contains("Examples:") && help.contains("Exit status:") && man.starts_with(".TH IRONWEIR\\-"),
            "{name}"
        );
        let wrong = run(&[name, "--wrong"]);
        assert!(
            wrong.status.code() == Some(1) && String::from_utf8_lossy(&wrong.stderr).contains("--wrong"),
            "{wrong:?}"
        );
    }
    let labs = out(&run(&["lab"]));
    assert!(
        [
            "accept-queue",
            "local-ports",
            "port-thief",
            "idle-reset",
            "slow-log",
            "tcp-memory",
            "zone-fragmentation",
            "unix-or-tcp",
            "php-fpm"
        ]
        .iter()
        .all(|l| labs.contains(l)),
        "{labs}"
    );
}

#[test]
fn who_listens_where() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let folder = Folder::new();
    folder.write("nginx.conf", format!("events {{}}\nhttp {{ server {{ listen {port}; }} }}\n"));
    let output = run_in(folder.path(), &["doctor", "ports", "nginx.conf", "--json"]);
    let taken = finding(&output, "port-taken");
    assert!(taken["what"].as_str().unwrap().contains(&format!("process {}", std::process::id())), "{taken:#}");
    let table = out(&run_in(folder.path(), &["doctor", "ports", "nginx.conf"]));
    assert!(table.contains(&format!("127.0.0.1:{port} ")) && table.contains("ip_local_port_range = "), "{table}");
}

#[test]
fn a_slow_log_is_found_and_cured_in_its_lab() {
    let output = run(&["lab", "slow-log"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("needs root") || said.contains("a short pipe") {
        return println!("{said}: left out");
    }
    assert_eq!(output.status.code(), Some(0), "{}{said}", out(&output));
    assert!(out(&output).contains("found: A write to an access log takes"), "{}", out(&output));
}

#[test]
fn a_zone_in_pieces_is_found_in_its_lab_and_ours_has_none() {
    let output = run(&["lab", "zone-fragmentation"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("needs root") {
        return println!("{said}: left out");
    }
    assert_eq!(output.status.code(), Some(0), "{}{said}", out(&output));
    assert!(
        out(&output).contains("ironweir: ") && out(&output).contains("one of 200 bytes has room"),
        "{}",
        out(&output)
    );
}

/// Error logs of a configuration are facts.
#[test]
fn what_an_error_log_says() {
    let folder = Folder::new();
    folder.write("nginx.conf", "error_log e.log; events {} http {}\n");
    // As old as a log that is written to: what a folder of a test has is older.
    let log = "2026/11/22 10:00:00 [crit] 7#7: *1 ngx_slab_alloc() failed: no memory in limit_conn_zone \"a\"\n\
               2026/11/22 10:00:09 [notice] 7#7: signal 1 (SIGHUP) received\n";
    std::fs::write(folder.path().join("e.log"), log).unwrap();
    let output = run_in(folder.path(), &["doctor", "--json", "--interval", "10ms", "nginx.conf"]);
    let zone = finding(&output, "zone-full");
    assert!(zone["weight"] == "warning" && zone["evidence"].to_string().contains("1 lines in all"), "{zone:#}");
}
