//! `ironweir lab NAME`: a fault of the field, made in a network namespace of its own, found by the doctor's rules, cured. What happens here
//! touches no port, setting or counter of the machine's: all of it ends with the thread that it runs on.

mod backlog;
mod idle;
mod paws;
mod php;
mod ports;
mod server;
mod slow_log;
mod tcp_memory;
mod unix;
mod zone;

use crate::command::{finish, print};
use crate::configuration::Configuration;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::options::LAB;
use crate::rules;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A lab takes no longer than this for one of its steps.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a NAT remembers a silent connection unless something else is said: a test waits for it.
const NAT: Duration = Duration::from_secs(2);
/// The longest that may be asked for.
const MOST_NAT: Duration = Duration::from_secs(600);

/// A fault.
pub struct Lab {
    /// What it is called.
    pub name: &'static str,
    /// What goes wrong.
    pub what: &'static str,
    run: fn(&mut Bench) -> Outcome,
}

/// What a lab comes to; an error is a sentence.
type Outcome = Result<(), Stop>;

/// Why a lab ended early.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// What it needs is not here: rights, a program.
    LeftOut(String),
    /// It was not reproduced, not found, or not cured.
    Failed(String),
}

/// All of them.
pub const LABS: &[Lab] = &[
    Lab { name: "accept-queue", what: "a listener with a backlog of 16 that does not keep up", run: backlog::run },
    Lab { name: "local-ports", what: "100 local ports, and a client that closes its connections", run: ports::used_up },
    Lab { name: "port-thief", what: "a client that has taken the port of a service", run: ports::thief },
    Lab {
        name: "idle-reset",
        what: "a NAT that forgets connections after 2 s of silence (--patience 90s: after so long)",
        run: idle::run,
    },
    Lab {
        name: "one-nat",
        what: "two clients behind one NAT address, one of them with a clock that is behind",
        run: paws::run,
    },
    Lab {
        name: "tcp-memory",
        what: "net.ipv4.tcp_mem too small against too many orphans (judged from facts: it is no namespace's)",
        run: tcp_memory::run,
    },
    Lab {
        name: "zone-fragmentation",
        what: "a shared zone that is nearly empty and has no room (nginx, where it is installed, and Ironweir)",
        run: zone::run,
    },
    Lab { name: "slow-log", what: "an access log on a disk that takes its time", run: slow_log::run },
    Lab { name: "unix-or-tcp", what: "a unix socket against TCP to one php-fpm (needs php-fpm)", run: unix::run },
    Lab { name: "php-fpm", what: "php-fpm with a backlog of 8 and one child (needs php-fpm)", run: php::run },
];

/// Runs the command. `arguments` are those behind `lab`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    finish(
        "lab",
        LAB.parse(arguments).and_then(|o| {
            if let Some(text) = LAB.about(&o, version) {
                print(&text);
                return Ok(0);
            }
            let Some(name) = o.words.first() else {
                LABS.iter().for_each(|l| print(&format!("{:<14} {}\n", l.name, l.what)));
                return Ok(0);
            };
            let patience = o.duration("patience", NAT)?;
            if !(Duration::from_secs(1)..=MOST_NAT).contains(&patience) {
                return Err("--patience: from 1s to 10m".to_owned());
            }
            match run_with(name, patience, &|line| print(&format!("{line}\n"))) {
                Ok(()) => Ok(0),
                Err(Stop::LeftOut(text) | Stop::Failed(text)) => Err(text),
            }
        }),
    )
}

/// Runs a lab; `say` gets what happens, line by line.
///
/// # Errors
/// If it is left out, or does not come out as it should.
pub fn run(name: &str, say: &(dyn Fn(&str) + Sync)) -> Result<(), Stop> {
    run_with(name, NAT, say)
}

fn run_with(name: &str, patience: Duration, say: &(dyn Fn(&str) + Sync)) -> Result<(), Stop> {
    let lab = LABS
        .iter()
        .find(|l| l.name == name)
        .ok_or_else(|| Stop::Failed(format!("{name}: no such lab (ironweir lab lists them)")))?;
    say(&format!("{}: {}", lab.name, lab.what));
    let inside = || (lab.run)(&mut Bench { say, patience });
    machine::namespace::inside(inside)
        .unwrap_or_else(|| Err(Stop::LeftOut("a lab needs root, for a network namespace of its own".into())))
}

/// What labs are made with.
struct Bench<'a> {
    say: &'a (dyn Fn(&str) + Sync),
    /// Of the NAT of `idle-reset`.
    patience: Duration,
}

impl Bench<'_> {
    fn say(&self, text: &str) {
        (self.say)(text);
    }

    /// Sets a kernel setting of this namespace.
    fn set(&self, name: &str, value: &str) -> Outcome {
        self.say(&format!("  sysctl -w {name}=\"{value}\""));
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        std::fs::write(&path, value).map_err(|e| Stop::LeftOut(format!("{path}: {e}")))
    }

    /// What the doctor finds here now, under a name.
    fn look(&self, id: &str, configurations: &[Configuration]) -> Result<Option<Finding>, Stop> {
        let takers = Facts::takers(configurations);
        let machine = machine::Facts::read(Duration::from_millis(20));
        let told = Facts::told(configurations);
        let facts = Facts { machine, configurations: configurations.to_vec(), takers, told, ..Facts::default() };
        Ok(rules::judge(&facts).into_iter().find(|f| f.id == id))
    }

    /// The doctor finds it.
    fn found(&self, id: &str, configurations: &[Configuration]) -> Result<Finding, Stop> {
        let finding =
            self.look(id, configurations)?.ok_or_else(|| Stop::Failed(format!("the doctor does not find {id}")))?;
        self.say(&format!("  doctor: {}: {}", finding.weight.name(), finding.what));
        finding.evidence.iter().for_each(|e| self.say(&format!("    seen: {} ({})", e.what, e.from)));
        finding.cure.iter().for_each(|c| self.say(&format!("    cure: {c}")));
        Ok(finding)
    }

    /// The doctor no longer finds it.
    fn gone(&self, id: &str, configurations: &[Configuration]) -> Outcome {
        self.wait(&format!("{id} is still found"), || !matches!(self.look(id, configurations), Ok(Some(_))))?;
        self.say(&format!("  doctor: {id} is gone"));
        Ok(())
    }

    /// Waits for a condition.
    fn wait(&self, otherwise: &str, condition: impl FnMut() -> bool) -> Outcome {
        self.wait_beyond(Duration::ZERO, otherwise, condition)
    }

    /// The same of what comes no sooner than after a time.
    fn wait_beyond(&self, time: Duration, otherwise: &str, mut condition: impl FnMut() -> bool) -> Outcome {
        let (began, most) = (Instant::now(), PATIENCE + time);
        while !condition() {
            if began.elapsed() > most {
                return Err(Stop::Failed(format!("{otherwise} after {} s", most.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// What the system refused.
fn failed(what: &str) -> impl Fn(std::io::Error) -> Stop + '_ {
    move |e| Stop::Failed(format!("{what}: {e}"))
}

/// A program, if it is installed.
fn program(names: &[&str]) -> Option<String> {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/usr/local/sbin"];
    names.iter().flat_map(|n| folders.map(|f| format!("{f}/{n}"))).find(|p| Path::new(p).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each lab is its own assertion: it fails if its fault is not made, not found, or not cured.
    fn comes_out(name: &str) {
        match run(name, &|line| println!("{line}")) {
            // That a kernel does not have the fault would pass without anybody noticing.
            Err(Stop::LeftOut(text)) if !text.contains("this kernel") => println!("{name}: {text}: left out"),
            other => assert_eq!(other, Ok(())),
        }
    }

    #[test]
    fn accept_queue() {
        comes_out("accept-queue");
    }

    #[test]
    fn local_ports() {
        comes_out("local-ports");
    }

    #[test]
    fn port_thief() {
        comes_out("port-thief");
    }

    #[test]
    fn idle_reset() {
        comes_out("idle-reset");
    }

    #[test]
    fn tcp_memory() {
        comes_out("tcp-memory");
    }

    #[test]
    fn one_nat() {
        comes_out("one-nat");
    }

    #[test]
    fn unix_or_tcp() {
        comes_out("unix-or-tcp");
    }

    #[test]
    fn php_fpm() {
        comes_out("php-fpm");
    }
}
