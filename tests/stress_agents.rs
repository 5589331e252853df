//! `ironweir agent` and `ironweir stress --agents`: five agents on loopback.

use crate::harness::{Backend, Folder, Program, Site, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A running agent; killed when dropped.
struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start(token: &str) -> Agent {
        let mut command = Command::new(Program::Ironweir.path().unwrap());
        command.args(["agent", "--listen", "127.0.0.1:0", "--token-file", token]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ironweir agent listens on ").unwrap_or_else(|| panic!("{line}"));
        Agent { address: address.to_owned(), child }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agents(count: usize) -> (Folder, Vec<Agent>, String) {
    let folder = Folder::new();
    folder.write("token", "s3cret\n");
    let token = folder.path().join("token").display().to_string();
    let agents: Vec<Agent> = (0..count).map(|_| Agent::start(&token)).collect();
    let list = agents.iter().map(|a| a.address.clone()).collect::<Vec<_>>().join(",");
    (folder, agents, format!("--agents {list} --token-file {token}"))
}

fn stress(arguments: &str) -> Command {
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    command.arg("stress").args(arguments.split_ascii_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn five_agents_share_a_schedule_and_their_histograms_merge() {
    let backend = Backend::ok("x");
    let (_folder, agents, list) = agents(5);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let out = stress(&format!("{list} -t1 -c11 -R 500 -d2s -q --no-preflight --json - {url}")).output().unwrap();
    let json = text(&out);
    let number = |name: &str| -> f64 {
        let rest = json.split(&format!("\"{name}\": ")).nth(1).unwrap_or_else(|| panic!("{name}: {out:?}"));
        rest.split([',', '\n']).next().unwrap().parse().unwrap()
    };
    assert_eq!((number("requests"), number("total"), number("connects")), (1000.0, 0.0, 11.0), "{json}");
    assert_eq!((number("count"), backend.seen().len()), (1000.0, 1000));
    assert!(json.contains("5 agents began within ") && json.contains("\"partial\": null"), "{json}");
    drop(agents);
}

#[test]
fn the_wrong_token_is_refused_and_so_is_none_off_loopback() {
    let (folder, agents, list) = agents(1);
    folder.write("token", "guess\n");
    let out = stress(&format!("{list} -n1 --no-preflight http://127.0.0.1:1/")).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("the token is not this agent's"), "{out:?}");
    let mut command = Command::new(Program::Ironweir.path().unwrap());
    let out = command.args(["agent", "--listen", ":0"]).output().unwrap();
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("--token-file is needed"),
        "{out:?}"
    );
    drop(agents);
}

/// Agents are tonic servers: their calls, a stream in each direction, go through `grpc_pass`.
#[test]
fn agents_are_reached_through_grpc_pass() {
    let backend = Backend::ok("x");
    let (folder, agents, _) = agents(1);
    let server = Site::http(&format!(
        "upstream agents {{ server {}; }} server {{ listen 127.0.0.1:@PORT@; http2 on; location / {{ grpc_pass agents; }} }}",
        agents[0].address
    ))
    .start();
    let (port, token) = (server.port, folder.path().join("token").display().to_string());
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let line = format!("--agents 127.0.0.1:{port} --token-file {token} -t1 -c4 -R 200 -d2s -q --no-preflight {url}");
    let out = stress(&line).output().unwrap();
    assert!(text(&out).contains("Requests/sec"), "{out:?} {}", server.error_log());
    assert_eq!(backend.seen().len(), 400);
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

#[test]
fn a_lost_agent_makes_the_result_partial() {
    let backend = Backend::ok("x");
    let (_folder, mut agents, list) = agents(2);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let child = stress(&format!("{list} -t1 -c4 -R 200 -d5s -q --no-preflight {url}")).spawn().unwrap();
    // More than a second of it.
    assert!(wait(|| backend.seen().len() > 300));
    drop(agents.pop());
    let out = text(&child.wait_with_output().unwrap());
    assert!(out.contains("PARTIAL: agent ") && out.contains("was lost") && out.contains("Requests/sec"), "{out}");
}

#[test]
fn ctrl_c_stops_all_agents_and_a_vanished_controller_too() {
    let backend = Backend::ok("x");
    let (_folder, agents, list) = agents(2);
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let line = format!("{list} -t1 -c4 -R 200 -d60s -q --no-preflight {url}");
    let child = stress(&line).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > 50));
    let began = Instant::now();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let out = text(&child.wait_with_output().unwrap());
    assert!(out.contains("Requests/sec") && began.elapsed() < Duration::from_secs(3), "{:?}: {out}", began.elapsed());

    let before = backend.seen().len();
    let mut child = stress(&line).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > before + 50));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut last = (0, Instant::now());
    let is_quiet = wait(|| {
        let now = backend.seen().len();
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(500)
    });
    assert!(is_quiet, "the load stops without its controller");
    drop(agents);
}
