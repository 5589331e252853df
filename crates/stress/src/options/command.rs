//! The commands that the table of options is for.

use super::{Options, ROWS, Row, Section, completion, help, man_page};

/// A command: which of the table's options it has, and what its pages say.
pub struct Command {
    /// Behind `ironweir`.
    pub name: &'static str,
    /// How it is called.
    pub usage: &'static str,
    /// What it does, in a sentence.
    pub what: &'static str,
    /// Its options, in the order of `--help`.
    pub sections: &'static [Section],
    /// Commands worth copying, and what each is for.
    pub examples: &'static [(&'static str, &'static str)],
    /// Its exit statuses.
    pub statuses: &'static str,
}

impl Command {
    /// Its options.
    pub fn rows(&self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| self.sections.contains(&row.section))
    }

    /// What help prints if asked for it: `--help`, `--version`, `--man`, `--completion`.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn about(&self, options: &Options, version: &str) -> Result<Option<String>, String> {
        Ok(if options.help {
            Some(help(self))
        } else if options.version {
            Some(format!("ironweir {} {version}\n", self.name))
        } else if options.man {
            Some(man_page(self, version))
        } else if let Some(shell) = &options.completion {
            Some(completion(shell).ok_or("--completion: bash, zsh or fish")?)
        } else {
            None
        })
    }
}

/// `ironweir stress`
pub const STRESS: Command = Command {
    name: "stress",
    usage: "ironweir stress [options] URL",
    what: "Puts load on a service and says what it carries, and whether that number can be trusted.",
    sections: &[
        Section::Load,
        Section::Requests,
        Section::Connections,
        Section::Tls,
        Section::Hold,
        Section::Search,
        Section::Agents,
        Section::Between,
        Section::Output,
        Section::About,
    ],
    examples: &[
        ("ironweir stress -t2 -c64 -d30s --latency http://localhost:8080/", "as fast as 64 connections go"),
        (
            "ironweir stress -R5000 -c200 -d1m http://localhost:8080/",
            "5,000 requests a second, whatever the target does",
        ),
        ("ironweir stress --stages 30s:1000-10000,1m:10000,5s:30000 -c500 URL", "a ramp, a plateau, a spike"),
        ("ironweir stress --http 2 --streams 32 -c16 https://localhost/", "HTTP/2"),
        ("ironweir stress --preset forwarding http://lb/", "short connections"),
        ("ironweir stress --find-max --slo 'p99<50ms,errors<0.1%' -c200 URL", "the highest rate that holds"),
        (
            "ironweir stress --hold 60000 --ramp 2000/s --source 127.0.1.0/26 ws://localhost:8080/chat",
            "held connections",
        ),
        ("ironweir stress --json new.json --fail-if 'p99>80ms' URL", "in a pipeline"),
        ("ironweir stress --compare old.json new.json", "what changed"),
        (
            "ironweir stress --etcd http://etcd:2379 --cluster lab --token-file F -c1000 URL",
            "on all agents of a cluster",
        ),
    ],
    statuses: "0 done, 1 could not run or its script failed, 3 --fail-if holds or --compare finds something worse, 4 nothing was answered or no \
               rate held, 5 INVALID (the numbers are not the target's) or --compare cannot tell, 6 PARTIAL.",
};

/// `ironweir agent`
pub const AGENT: Command = Command {
    name: "agent",
    usage: "ironweir agent --listen ADDRESS:PORT [options]",
    what: "Puts load where a controller (ironweir stress --agents, or --etcd) says, one run at a time.",
    sections: &[Section::Listening, Section::Between, Section::About],
    examples: &[
        ("ironweir agent --listen :7070 --token-file F", "for controllers that know the token"),
        ("ironweir agent --listen :7070 --tls-cert own.crt --tls-key own.key --tls-ca ca.crt", "mutual TLS"),
        ("ironweir agent --listen :7070 --token-file F --etcd http://etcd:2379 --cluster lab", "found by its cluster"),
    ],
    statuses: "0 ended by a signal, 1 could not run.",
};
