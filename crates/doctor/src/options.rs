//! One table of all options of `doctor`, `why`, `canary`, `redline`, `nic` and `lab`: parsing, `--help` and the man page come from its rows.

use std::fmt::Write;
use std::time::Duration;

/// An option.
pub(crate) struct Row {
    pub(crate) long: &'static str,
    /// What its value is called; `None`: it takes none.
    pub(crate) value: Option<&'static str>,
    pub(crate) help: &'static str,
}

/// A command: how it is called, what it does, its options.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) usages: &'static [(&'static str, &'static str)],
    pub(crate) what: &'static str,
    pub(crate) options: &'static [Row],
    pub(crate) examples: &'static [(&'static str, &'static str)],
    pub(crate) statuses: &'static str,
}

const fn row(long: &'static str, value: Option<&'static str>, help: &'static str) -> Row {
    Row { long, value, help }
}

/// What was said.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) words: Vec<String>,
    values: Vec<(&'static str, String)>,
}

/// Seconds that may be asked for: a week is a canary's longest.
const LONGEST_S: f64 = 604_800.0;

impl Options {
    /// An option's value; an option without one has an empty one.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// A time as `500ms`, `2s`, `1m`.
    pub(crate) fn duration(&self, name: &str, default: Duration) -> Result<Duration, String> {
        let Some(text) = self.value(name) else { return Ok(default) };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(format!("--{name} {text}: not a time (500ms, 2s, 1m, 2h)")),
        };
        let number: f64 = digits.parse().map_err(|_| format!("--{name} {text}: not a time (500ms, 2s, 1m, 2h)"))?;
        let seconds = number * unit;
        if (0.0..=LONGEST_S).contains(&seconds) {
            Ok(Duration::from_secs_f64(seconds))
        } else {
            Err(format!("--{name} {text}: at most a week"))
        }
    }

    /// A number.
    pub(crate) fn number(&self, name: &str, default: f64) -> Result<f64, String> {
        let Some(text) = self.value(name) else { return Ok(default) };
        let number: f64 = text.replace(',', "").parse().map_err(|_| format!("--{name} {text}: not a number"))?;
        if number.is_finite() && number > 0.0 { Ok(number) } else { Err(format!("--{name} {text}: more than nothing")) }
    }
}

impl Command {
    /// Reads arguments; an error is a sentence for the user.
    pub(crate) fn parse(&self, arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut o = Options::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let argument = if argument == "-h" { "--help".to_owned() } else { argument };
            let Some(name) = argument.strip_prefix("--") else {
                if argument.starts_with('-') && argument.len() > 1 {
                    return Err(format!("unknown option {argument} (ironweir {} --help)", self.name));
                }
                o.words.push(argument);
                continue;
            };
            let (name, given) = name.split_once('=').map_or((name, None), |(n, v)| (n, Some(v.to_owned())));
            let row = self.options.iter().chain(ABOUT).find(|r| r.long == name);
            let row = row.ok_or_else(|| format!("unknown option --{name} (ironweir {} --help)", self.name))?;
            let value = match row.value {
                None if given.is_some() => return Err(format!("--{name} takes no value")),
                None => String::new(),
                Some(what) => given.or_else(|| arguments.next()).ok_or_else(|| format!("--{name} requires {what}"))?,
            };
            o.values.push((row.long, value));
        }
        Ok(o)
    }

    /// `--help`, `--man`.
    pub(crate) fn about(&self, o: &Options, version: &str) -> Option<String> {
        if o.has("help") {
            Some(self.help())
        } else if o.has("man") {
            Some(self.man(version))
        } else if o.has("version") {
            Some(format!("ironweir {} {version}\n", self.name))
        } else {
            None
        }
    }

    fn help(&self) -> String {
        let mut out = String::from("Usage:\n");
        for (usage, what) in self.usages {
            let _ = writeln!(out, "  {usage}\n      {what}");
        }
        let _ = writeln!(out, "\n{}\n\nOptions:", self.what);
        for r in self.options.iter().chain(ABOUT) {
            let name = format!("--{}{}", r.long, r.value.map(|v| format!(" {v}")).unwrap_or_default());
            let _ = writeln!(out, "  {name:<22} {}", r.help);
        }
        out.push_str("\nExamples:\n");
        for (line, what) in self.examples {
            let _ = writeln!(out, "  {line}\n      {what}");
        }
        let _ = writeln!(out, "\nExit status: {}", self.statuses);
        out
    }

    /// The man page, in troff.
    fn man(&self, version: &str) -> String {
        let escape = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        let title = format!("IRONWEIR\\-{}", self.name.to_uppercase());
        let mut out = format!(
            ".TH {title} 1 \"\" \"Ironweir {version}\"\n.SH NAME\nironweir\\-{} \\- {}\n.SH SYNOPSIS\n",
            self.name,
            escape(self.what)
        );
        for (usage, what) in self.usages {
            let _ = writeln!(out, ".TP\n.B {}\n{}", escape(usage), escape(what));
        }
        out.push_str(".SH OPTIONS\n");
        for r in self.options.iter().chain(ABOUT) {
            let value = r.value.map(|v| format!(" {v}")).unwrap_or_default();
            let _ = writeln!(out, ".TP\n.B \\-\\-{}{}\n{}", escape(r.long), escape(&value), escape(r.help));
        }
        out.push_str(".SH EXAMPLES\n");
        for (line, what) in self.examples {
            let _ = writeln!(out, ".TP\n.B {}\n{}", escape(line), escape(what));
        }
        let _ = writeln!(out, ".SH EXIT STATUS\n{}", escape(self.statuses));
        out
    }
}

const ABOUT: &[Row] = &[
    row("man", None, "Prints the man page."),
    row("version", None, "Prints the version."),
    row("help", None, "Prints this."),
];

/// `ironweir doctor`
pub(crate) const DOCTOR: Command = Command {
    name: "doctor",
    usages: &[
        ("ironweir doctor [--json]", "looks at this machine and its servers"),
        ("ironweir doctor FILE.conf", "looks at a configuration too, which does not have to run"),
        (
            "ironweir doctor sysctl FILE",
            "sorts kernel settings into what applies, is a no-op, was removed, is dangerous or garbled",
        ),
        (
            "ironweir doctor backend HOST:PORT | URL",
            "the runbook for a sick backend: does it listen, does a firewall drop or reject, what does HTTP say, is it slow because of load",
        ),
        ("ironweir doctor ports [FILE.conf]", "who listens where, and who holds a port that a service needs"),
        ("ironweir doctor exits [ERROR_LOG...]", "workers that died: of what, in which function, and where cores lie"),
        (
            "ironweir doctor plan TIER=NODES[xRATE][/SHARE]...",
            "what a cluster carries, and the tier that binds, from what one node of each tier carries",
        ),
    ],
    what: "Says what is wrong with this machine and its servers, by which numbers, and what cures it. Changes nothing.",
    options: &[
        row("json", None, "Findings (and plans, and sorted settings) as JSON."),
        row("interval", Some("T"), "Between the two looks at what moves. Default: 1s."),
        row("record", Some("FILE"), "Writes what was seen; - is the standard output, and nothing else is printed."),
        row("facts", Some("FILE"), "Judges what --record wrote, instead of this machine."),
        row(
            "journal",
            Some("FOLDER"),
            "Journals of systemd to read instead of this machine's (a copy of another one's /var/log/journal).",
        ),
        row("api", Some("URL"), "An Ironweir to ask as well. Default: those that run here, by their configurations."),
        row("rate", Some("N"), "plan: requests a second that are wanted."),
        row(
            "write",
            Some("FILE"),
            "sysctl: where the corrected profile goes (default: NAME-corrected.conf here; - prints it).",
        ),
    ],
    examples: &[
        ("ironweir doctor", "what is wrong now"),
        ("ironweir doctor /etc/nginx/nginx.conf", "what will be wrong with this configuration on this machine"),
        (
            "ironweir doctor --record seen.json; ironweir doctor --facts seen.json",
            "on one machine, and judged on another",
        ),
        ("ironweir doctor sysctl blog.conf --write 90-own.conf", "a list from a blog, and what is left of it"),
        ("ironweir doctor backend 10.0.0.7:8080", "why does this one answer with 502"),
        ("ironweir doctor backend https://app.example/health", "the same over TLS, for one path"),
        ("ironweir doctor ports /etc/nginx/nginx.conf", "who has the port that this one cannot bind"),
        ("ironweir doctor exits", "what the error log, the kernel, the journal and the ages of workers say"),
        ("ironweir doctor exits --journal /mnt/var/log/journal", "the same of a machine that does not start any more"),
        (
            "ironweir doctor plan balancer=1 application=4x2500 database=20x140/0.5",
            "half of the requests ask the database",
        ),
    ],
    statuses: "0 nothing is wrong (notes do not count), 1 could not look, 3 a warning, 4 something critical.",
};

/// `ironweir why`
pub(crate) const WHY: Command = Command {
    name: "why",
    usages: &[("ironweir why [--api URL]", "what is in the way now, and how much more it could carry")],
    what: "Asks a running Ironweir and this machine twice, and says in one sentence what is in the way now, with evidence; how much more the server \
           could carry and what ends first; and what a request waits for.",
    options: &[
        row("api", Some("URL"), "Where a location with \"api\" is. Default: http://127.0.0.1:8080/api."),
        row("interval", Some("T"), "Between the two looks. Default: 1s."),
        row("json", None, "The same as JSON."),
    ],
    examples: &[
        ("ironweir why", "the server on this machine, with its API on port 8080"),
        ("ironweir why --api http://127.0.0.1:9000/api --interval 5s", "over five seconds"),
    ],
    statuses: "0 nothing is in the way, 1 could not look, 3 a warning, 4 something critical.",
};

/// `ironweir redline`
pub(crate) const REDLINE: Command = Command {
    name: "redline",
    usages: &[
        (
            "ironweir redline --upstream NAME [--server HOST:PORT]",
            "how much one server of an upstream carries, with live traffic",
        ),
        ("ironweir redline --upstream NAME --manual", "only watches, while you take servers away"),
    ],
    what: "Gives one server of an upstream more and more of the live traffic, by weights over the API (api write=on), until its answers fail or take \
           longer, or, where it runs on this machine, its accept queue fills or its CPU time ends, and closes in on the place where that begins. The weights are restored whatever happens, also when this command is killed. \
           Requests that fail there should have somewhere else to go: proxy_next_upstream error timeout http_502 http_503 http_504.",
    options: &[
        row("upstream", Some("NAME"), "The group; it needs a zone."),
        row("server", Some("HOST:PORT"), "The server. Default: the first one."),
        row("api", Some("URL"), "Where a location with \"api write=on\" is. Default: http://127.0.0.1:8080/api."),
        row("step", Some("T"), "How long each step is. Default: 5s."),
        row("failures", Some("PERCENT"), "Answers that may fail. Default: 0.1."),
        row("slower", Some("FACTOR"), "How many times longer than at first answers may take on average. Default: 2."),
        row("manual", None, "Changes nothing and only measures."),
        row("count", Some("N"), "With --manual: how many steps. Default: 12."),
        row("json", None, "The result as JSON."),
        row("guard", None, "For the command itself: waits for its end and restores the weights."),
    ],
    examples: &[
        ("ironweir redline --upstream app --server 10.0.0.7:8080", "until it bends"),
        ("ironweir redline --upstream app --step 30s --slower 1.5", "longer steps, a stricter limit"),
    ],
    statuses: "0 done, 1 could not look or change, 3 ended early: the server broke, and its weights are what they were.",
};

/// `ironweir canary`
pub(crate) const CANARY: Command = Command {
    name: "canary",
    usages: &[(
        "ironweir canary -c NEW.conf [--share 5%] [--for 60s]",
        "a reload that is tried out with a share of new connections first",
    )],
    what: "Has the running server serve a share of new connections with a new configuration. If more of its requests fail, are refused or take \
           longer than under the old one, which serves the others meanwhile, it is taken back; if nothing is worse when the time is over, the \
           server is reloaded with it. It is taken back too when this command ends before that, when too few requests came to judge by, and when \
           a reload is asked for. Addresses that only the new configuration listens on are opened when it is kept. Needs the right to signal the \
           master process.",
    options: &[
        row("conf", Some("FILE"), "The new configuration; -c is the same."),
        row(
            "prefix",
            Some("DIR"),
            "Where its relative paths begin, for finding the pid file; -p is the same. Default: /etc/nginx/.",
        ),
        row("share", Some("PERCENT"), "Of new connections over TCP to addresses of http. Default: 5%."),
        row("for", Some("T"), "How long before it is kept. Default: 60s."),
        row("min", Some("N"), "Requests under each configuration before anything is judged. Default: 20."),
    ],
    examples: &[
        (
            "ironweir canary -c /etc/nginx/nginx.conf",
            "the file was edited: what is in it now, first for 5 % of new connections",
        ),
        ("ironweir canary -c new.conf --share 1% --for 10m", "less at stake, for longer"),
    ],
    statuses: "0 the new configuration runs, 1 nothing was done, 3 it was taken back.",
};

/// `ironweir tune`
pub(crate) const TUNE: Command = Command {
    name: "tune",
    usages: &[
        ("ironweir tune --prove", "measures what the doctor's findings propose"),
        ("ironweir tune --prove FILE | NAME=VALUE...", "measures a profile from somewhere, or single settings"),
    ],
    what: "Says of kernel settings whether they are better than what is, by measuring both in alternation, one setting at a time: in a replica of \
           this machine's network settings (a namespace; nobody notices), or with --live on the machine under its traffic. What is better with \
           p < 0.01 (exact paired permutation test; each workload has its part of that) goes to a file for sysctl.d. Nothing stays changed: with \
           --live a process of its own sets everything back when this one ends, is killed, or is silent.",
    options: &[
        row("prove", None, "Measures. Without it nothing is done."),
        row("pairs", Some("N"), "Pairs of measurements for each setting, 7 to 16. Default: 10."),
        row("live", None, "On this machine, under its own traffic; needs root, and a server with an API."),
        row("api", Some("URL"), "With --live: where a location with \"api\" is. Default: http://127.0.0.1:8080/api."),
        row("step", Some("T"), "With --live: how long each measurement is. Default: 5s."),
        row(
            "dead-man",
            Some("T"),
            "With --live: after so long without a sign of life everything is set back. Default: 30s.",
        ),
        row("write", Some("FILE"), "Where what is better goes. Default: 90-ironweir.conf here."),
        row("json", None, "The result as JSON."),
        row("guard", None, "For the command itself: waits for its end and sets everything back."),
    ],
    examples: &[
        ("ironweir tune --prove blog.conf", "what of a list from a blog does anything"),
        ("ironweir tune --prove net.core.somaxconn=4096", "one setting"),
    ],
    statuses: "0 something is better, or there was nothing to prove; 1 could not measure; 3 nothing is better.",
};

/// `ironweir nic`
pub(crate) const NIC: Command = Command {
    name: "nic",
    usages: &[("ironweir nic [INTERFACE...]", "rates of interfaces")],
    what: "Shows rates, packets a second, drops and packet sizes of interfaces, line by line.",
    options: &[
        row("interval", Some("T"), "Between two looks. Default: 1s."),
        row("count", Some("N"), "Ends after so many lines for each interface. Default: goes on."),
        row("unit", Some("U"), "bits (Mbit/s, the default) or bytes (MB/s)."),
        row("json", None, "One JSON object a line."),
    ],
    examples: &[
        ("ironweir nic --count 1", "all interfaces, over one second"),
        ("ironweir nic eth0 --interval 10s --unit bytes", "one of them"),
    ],
    statuses: "0 done, 1 could not look.",
};

/// `ironweir lab`
pub(crate) const LAB: Command = Command {
    name: "lab",
    usages: &[("ironweir lab", "lists them"), ("ironweir lab NAME", "makes the fault, finds it, cures it")],
    what: "Makes a fault of the field in a network namespace of its own, lets the doctor find it, and cures it. Needs root; touches nothing else.",
    options: &[row(
        "patience",
        Some("T"),
        "idle-reset: the silence after which its NAT forgets a connection, from 1s to 10m. Default: 2s.",
    )],
    examples: &[
        ("ironweir lab accept-queue", "a listener with a backlog of 16"),
        ("ironweir lab idle-reset --patience 90s", "the field's NAT; this takes eight minutes"),
    ],
    statuses: "0 reproduced, found and cured, 1 not.",
};
