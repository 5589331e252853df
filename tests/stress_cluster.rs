//! Agents and controllers that find each other in a real etcd.

use crate::harness::{Agent, Backend, Folder, Port, stress, text, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An etcd of one member; killed when dropped.
struct Etcd {
    child: Child,
    port: u16,
    _folder: Folder,
    _ports: [Port; 2],
}

impl Etcd {
    /// Nothing, said aloud, where it is not installed.
    fn start() -> Option<Etcd> {
        let (folder, ports) = (Folder::new(), [Port::reserve(), Port::reserve()]);
        let [client, peer] = [&ports[0], &ports[1]].map(|p| format!("http://127.0.0.1:{}", p.number));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder.path().join("data")).args(["--logger", "zap", "--unsafe-no-fsync"]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = spawned else {
            println!("etcd is not installed: left out");
            return None;
        };
        let etcd = Etcd { child, port: ports[0].number, _folder: folder, _ports: ports };
        assert!(wait(|| TcpStream::connect(("127.0.0.1", etcd.port)).is_ok()), "etcd starts");
        Some(etcd)
    }

    /// The options with which agents and controllers find it.
    fn options(&self, cluster: &str) -> String {
        format!("--etcd http://127.0.0.1:{} --cluster {cluster}", self.port)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn registered(options: &str) -> Agent {
    let mut agent = Agent::start(options);
    let line = agent.line("ironweir agent is ");
    assert!(line.starts_with(&agent.address), "{line}");
    agent
}

#[test]
fn five_agents_are_found_and_two_runs_never_overlap() {
    let Some(etcd) = Etcd::start() else { return };
    let options = etcd.options("five");
    let none = stress(&format!("{options} -n 1 --no-preflight http://127.0.0.1:1/")).output().unwrap();
    assert!(String::from_utf8_lossy(&none.stderr).contains("no agent is registered in cluster five"), "{none:?}");

    let mut agents: Vec<Agent> = (0..5).map(|_| registered(&options)).collect();
    let stranger = registered(&etcd.options("other"));
    let backend = Backend::ok("x");
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let line = format!("{options} -t1 -c10 -R 500 -d2s -q --no-preflight {url}");
    let first = stress(&line).spawn().unwrap();
    assert!(wait(|| !backend.seen().is_empty()));
    let second = stress(&line).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(1) && said.contains("cluster five has a run: process "), "{said}");
    let out = text(&first.wait_with_output().unwrap());
    assert!(out.contains("1000 requests in") && out.contains("5 agents began within"), "{out}");
    assert!(!out.contains("PARTIAL"), "{out}");

    // An agent that is told to end leaves at once, and the lock was given back.
    let mut leaver = agents.pop().unwrap();
    kill_process(Pid::from_child(&leaver.child), Signal::TERM).unwrap();
    leaver.child.wait().unwrap();
    let again = stress(&line).output().unwrap();
    assert!(text(&again).contains("4 agents began within"), "{again:?}");
    drop(stranger);
}

#[test]
fn an_agent_whose_lease_ends_is_lost() {
    let Some(etcd) = Etcd::start() else { return };
    let options = etcd.options("lease");
    let agents = [registered(&options), registered(&options)];
    let backend = Backend::ok("x");
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let began = Instant::now();
    let child = stress(&format!("{options} -t1 -c4 -R 200 -d8s -q --no-preflight {url}")).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > 300));
    // It hangs: its connections stay, but nobody renews its lease.
    kill_process(Pid::from_child(&agents[1].child), Signal::STOP).unwrap();
    let out = text(&child.wait_with_output().unwrap());
    let hangs = format!("PARTIAL: agent {} was lost (its lease in etcd has ended)", agents[1].address);
    assert!(out.contains(&hangs) && out.contains("Requests/sec"), "{out}");
    assert!(began.elapsed() < Duration::from_secs(14), "the controller does not wait for it: {:?}", began.elapsed());
}

/// The run ends before the lock can be somebody else's.
#[test]
fn a_run_that_loses_its_lock_ends() {
    let Some(mut etcd) = Etcd::start() else { return };
    let options = etcd.options("lock");
    let _agent = registered(&options);
    let backend = Backend::ok("x");
    let url = format!("http://127.0.0.1:{}/", backend.port);
    let child = stress(&format!("{options} -t1 -c2 -R 100 -d60s -q --no-preflight {url}")).spawn().unwrap();
    assert!(wait(|| backend.seen().len() > 20));
    etcd.child.kill().unwrap();
    let killed = Instant::now();
    let out = text(&child.wait_with_output().unwrap());
    assert!(out.contains("Requests/sec") && out.contains("the lock in etcd could not be kept"), "{out}");
    assert!(killed.elapsed() < Duration::from_secs(7), "{:?}", killed.elapsed());
}
