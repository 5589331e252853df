//! The command line of `ironweir stress`: one table, from which parsing, `--help`, the man page and completions come.
//! From: arguments. To: `plan`, which decides what they mean together.

mod command;
mod completion;
mod files;
mod page;
mod table;
pub mod value;

pub use command::{AGENT, Command, STRESS};
pub use completion::completion;
pub use files::Files;
pub use page::{help, man_page};
pub use table::{ROWS, Row, Section};

use std::path::PathBuf;
use std::time::Duration;
use value::{Cidr, Stage};

/// What was typed. A field is named as its option.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The target; `None` with `--har`, or where the command needs none.
    pub url: Option<String>,
    /// The whole command, for reports, without what is secret; and the tool's version.
    pub command: String,
    /// See `command`.
    pub tool_version: String,
    /// `-t`
    pub threads: Option<usize>,
    /// `-c`
    pub connections: Option<usize>,
    /// `-d`
    pub duration: Option<Duration>,
    /// `-R`, requests a second.
    pub rate: Option<f64>,
    /// `--api`
    pub api: Option<String>,
    /// `--stages`
    pub stages: Vec<Stage>,
    /// `-n`
    pub requests: Option<u64>,
    /// `-s`
    pub script: Option<PathBuf>,
    /// What stood behind the URL, for the script.
    pub script_arguments: Vec<String>,
    /// `-H`, name and value.
    pub headers: Vec<(String, String)>,
    /// `-m`
    pub method: Option<String>,
    /// `-b`
    pub body: Option<Vec<u8>>,
    /// `-B`
    pub body_file: Option<PathBuf>,
    /// `--url-file`
    pub url_file: Option<PathBuf>,
    /// `--har`
    pub har: Option<PathBuf>,
    /// `--http`
    pub http: Option<String>,
    /// `--streams`
    pub streams: Option<usize>,
    /// `--latency`
    pub latency: bool,
    /// `--timeout`
    pub timeout: Option<Duration>,
    /// `--close`
    pub close: Option<Closing>,
    /// `--no-keepalive`
    pub no_keepalive: bool,
    /// `--unix`
    pub unix: Option<PathBuf>,
    /// `--proxy-protocol`
    pub proxy_protocol: Option<u8>,
    /// `--source`
    pub sources: Vec<Cidr>,
    /// `--backend-header`
    pub backend_header: Option<String>,
    /// `--sni`
    pub sni: Option<String>,
    /// `--cacert`
    pub cacert: Option<PathBuf>,
    /// `--insecure`
    pub insecure: bool,
    /// `--cert`
    pub cert: Option<PathBuf>,
    /// `--key`
    pub key: Option<PathBuf>,
    /// `--no-resumption`
    pub no_resumption: bool,
    /// `--preset`
    pub preset: Option<String>,
    /// `--hold`
    pub hold: Option<usize>,
    /// `--hold-protocol`
    pub hold_protocol: Option<String>,
    /// `--ramp`, connections a second.
    pub ramp: Option<f64>,
    /// `--heartbeat`
    pub heartbeat: Option<Duration>,
    /// `--topic`
    pub topic: Option<String>,
    /// `--qos`
    pub qos: u8,
    /// `--mqtt`
    pub mqtt: Option<String>,
    /// `--find-max`
    pub find_max: bool,
    /// `--slo`
    pub slo: Option<String>,
    /// `--step`
    pub step: Option<Duration>,
    /// `--agents`
    pub agents: Option<String>,
    /// `--listen`
    pub listen: Option<String>,
    /// `--advertise`
    pub advertise: Option<String>,
    /// `--token-file`
    pub token_file: Option<PathBuf>,
    /// `--tls-cert`
    pub tls_cert: Option<PathBuf>,
    /// `--tls-key`
    pub tls_key: Option<PathBuf>,
    /// `--tls-ca`
    pub tls_ca: Option<PathBuf>,
    /// `--etcd`
    pub etcd: Option<String>,
    /// `--cluster`
    pub cluster: Option<String>,
    /// Everything as it came, for agents.
    pub arguments: Vec<String>,
    /// Where scripts, bodies and lists are read.
    pub files: Files,
    /// `--json`
    pub json: Option<PathBuf>,
    /// `--csv`
    pub csv: Option<PathBuf>,
    /// `--html`
    pub html: Option<PathBuf>,
    /// `--quiet`
    pub quiet: bool,
    /// `--plain`
    pub plain: bool,
    /// `--no-preflight`
    pub no_preflight: bool,
    /// `--compare`: the older file; the newer stands where the URL would.
    pub compare: Option<PathBuf>,
    /// `--fail-if`
    pub fail_if: Option<String>,
    /// `--help`
    pub help: bool,
    /// `--version`
    pub version: bool,
    /// `--man`
    pub man: bool,
    /// `--completion`
    pub completion: Option<String>,
}

impl Options {
    /// The files that agents get from their controller.
    pub fn sendable(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.script, &self.body_file, &self.url_file, &self.har].into_iter().flatten()
    }
}

/// Who ends a connection that carries one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The target, asked by `Connection: close`; it keeps the TIME_WAIT.
    Server,
    /// This side, after the answer; TIME_WAIT is here and takes a port for a minute.
    Client,
    /// This side, by a reset: no TIME_WAIT anywhere.
    Reset,
}

/// Reads the arguments behind a command's name.
///
/// # Errors
/// A sentence for the user.
pub fn parse(command: &Command, arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let all: Vec<String> = arguments.collect();
    let mut options = Options { arguments: all.clone(), ..Options::default() };
    let mut rest = all.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        if argument == "--" {
            rest.by_ref().for_each(|a| take_free(&mut options, a));
        } else if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
            let row = command.rows().find(|r| r.long == name).ok_or_else(|| unknown(command, argument))?;
            apply(row, value, &mut rest, &mut options)?;
        } else if let Some(letters) = argument.strip_prefix('-').filter(|l| !l.is_empty()) {
            short(command, letters, argument, &mut rest, &mut options)?;
        } else {
            take_free(&mut options, argument);
        }
    }
    Ok(options)
}

fn short<'a>(
    command: &Command,
    letters: &'a str,
    whole: &str,
    rest: &mut impl Iterator<Item = &'a str>,
    options: &mut Options,
) -> Result<(), String> {
    let mut letters = letters.chars();
    while let Some(letter) = letters.next() {
        let row = command.rows().find(|r| r.short == Some(letter)).ok_or_else(|| unknown(command, whole))?;
        if row.value.is_some() {
            let attached = letters.as_str();
            return apply(row, (!attached.is_empty()).then_some(attached), rest, options);
        }
        apply(row, None, rest, options)?;
    }
    Ok(())
}

fn apply<'a>(
    row: &Row,
    value: Option<&'a str>,
    rest: &mut impl Iterator<Item = &'a str>,
    options: &mut Options,
) -> Result<(), String> {
    let value = match (row.value, value) {
        (None, Some(_)) => return Err(format!("--{} takes no value", row.long)),
        (None, None) => "",
        (Some(_), Some(value)) => value,
        (Some(name), None) => rest.next().ok_or_else(|| format!("--{} needs a value: {name}", row.long))?,
    };
    (row.set)(options, value).map_err(|problem| format!("--{} {value}: {problem}", row.long))
}

fn take_free(options: &mut Options, argument: &str) {
    if options.url.is_none() {
        options.url = Some(argument.to_owned());
    } else {
        options.script_arguments.push(argument.to_owned());
    }
}

fn unknown(command: &Command, argument: &str) -> String {
    format!("unknown option {argument}; all of them: ironweir {} --help", command.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        parse(&STRESS, line.split(' ').map(str::to_owned))
    }

    #[test]
    fn wrks_command_line() {
        let o = read("-t2 -c 64 -d5s --latency --timeout 3s -HX-A:b -R1k http://h/ -- a b").unwrap();
        assert_eq!((o.threads, o.connections, o.latency), (Some(2), Some(64), true));
        assert_eq!((o.duration, o.timeout), (Some(Duration::from_secs(5)), Some(Duration::from_secs(3))));
        assert_eq!(o.headers, [("X-A".to_owned(), "b".to_owned())]);
        assert_eq!((o.rate, o.url.as_deref()), (Some(1000.0), Some("http://h/")));
        assert_eq!(o.script_arguments, ["a", "b"]);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(read("--bogus").unwrap_err(), "unknown option --bogus; all of them: ironweir stress --help");
        assert_eq!(read("-c").unwrap_err(), "--connections needs a value: N");
        assert_eq!(read("--latency=1").unwrap_err(), "--latency takes no value");
        assert!(read("-c x").unwrap_err().starts_with("--connections x: "));
    }

    #[test]
    fn names_are_unique() {
        for (i, row) in ROWS.iter().enumerate() {
            assert!(!ROWS[..i].iter().any(|r| r.long == row.long), "{}", row.long);
            assert!(row.short.is_none() || !ROWS[..i].iter().any(|r| r.short == row.short), "{}", row.long);
        }
    }
}
