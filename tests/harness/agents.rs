//! `ironweir agent` processes for tests.

use super::{Folder, Program};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running agent; killed when dropped.
pub struct Agent {
    pub child: Child,
    pub address: String,
    lines: BufReader<ChildStdout>,
}

impl Agent {
    /// Starts one on a port of its own.
    pub fn start(arguments: &str) -> Agent {
        Agent::spawn(Command::new(Program::Ironweir.path().expect("Ironweir is built")), arguments)
    }

    /// The same with real-time priority, where this user may give it: what is asserted of times is not about the neighbours then.
    pub fn start_promptly(arguments: &str) -> Agent {
        let chrt = ["-f", "10"];
        let is_allowed = Command::new("chrt").args(chrt).arg("true").output().is_ok_and(|out| out.status.success());
        if !is_allowed {
            return Agent::start(arguments);
        }
        let mut command = Command::new("chrt");
        command.args(chrt).arg(Program::Ironweir.path().expect("Ironweir is built"));
        Agent::spawn(command, arguments)
    }

    fn spawn(mut command: Command, arguments: &str) -> Agent {
        command.args(["agent", "--listen", "127.0.0.1:0"]).args(arguments.split_ascii_whitespace());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut agent = Agent { child, address: String::new(), lines };
        agent.address = agent.line("ironweir agent listens on ");
        agent
    }

    /// What stands behind `start` in the next line that it prints.
    pub fn line(&mut self, start: &str) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it prints");
        line.trim().strip_prefix(start).unwrap_or_else(|| panic!("{start:?}: {line:?}")).to_owned()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Some agents that ask for a token, and the options with which a controller finds them.
pub fn agents(count: usize) -> (Folder, Vec<Agent>, String) {
    agents_by(Agent::start, count)
}

/// The same, started by `start`.
pub fn agents_by(start: fn(&str) -> Agent, count: usize) -> (Folder, Vec<Agent>, String) {
    let folder = Folder::new();
    folder.write("token", "s3cret-s3cret-s3cret\n");
    let token = format!("--token-file {}", folder.path().join("token").display());
    let agents: Vec<Agent> = (0..count).map(|_| start(&token)).collect();
    let list = agents.iter().map(|a| a.address.clone()).collect::<Vec<_>>().join(",");
    (folder, agents, format!("--agents {list} {token}"))
}
