//! The command `ironweir doctor`: from its arguments to its exit status.

use crate::configuration::{self, Configuration};
use crate::facts::Facts;
use crate::finding::{Finding, Weight};
use crate::options::{DOCTOR, Options};
use crate::{backend, exits, plan, ports, rules, sysctl, text};
use api_client::terminal::lines;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Could not look.
pub(crate) const FAILED: u8 = 1;
/// The heaviest finding is a warning.
pub(crate) const WARNING: u8 = 3;
/// The heaviest finding is critical.
const CRITICAL: u8 = 4;
/// Between the two looks at what moves.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Runs the command. `arguments` are those behind `doctor`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    finish("doctor", DOCTOR.parse(arguments).and_then(|o| dispatch(&o, version)))
}

/// What a command came to, as its exit status; what failed is said.
pub(crate) fn finish(name: &str, result: Result<u8, String>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(text) => {
            eprintln!("ironweir {name}: {}", lines(&text));
            ExitCode::from(FAILED)
        }
    }
}

/// Prints. A closed pipe ends nothing.
pub(crate) fn print(text: &str) {
    let _ = is_printed(text);
}

/// Prints; false: nobody reads it any more.
pub(crate) fn is_printed(text: &str) -> bool {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

fn dispatch(o: &Options, version: &str) -> Result<u8, String> {
    if let Some(text) = DOCTOR.about(o, version) {
        print(&text);
        return Ok(0);
    }
    match o.words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => look(o, None),
        ["sysctl", file] => sysctl::run(o, file),
        ["sysctl", ..] => Err("sysctl FILE".to_owned()),
        ["backend", address] => backend::run(o, address),
        ["backend", ..] => Err("backend HOST:PORT".to_owned()),
        ["ports"] => ports::run(o, None),
        ["ports", file] => ports::run(o, Some(Path::new(file))),
        ["exits", ref logs @ ..] => exits::run(o, logs),
        ["plan", ref tiers @ ..] => plan::run(o, tiers),
        [file] => look(o, Some(Path::new(file))),
        [word, ..] => Err(format!("{word}: no such thing to look at (ironweir doctor --help)")),
    }
}

/// All rules, over this machine or what was recorded of one.
fn look(o: &Options, file: Option<&Path>) -> Result<u8, String> {
    let mut facts = match o.value("facts") {
        Some(recorded) => {
            let mut facts = Facts::load(Path::new(recorded))?;
            facts.configurations.extend(file.map(Configuration::load).transpose()?);
            facts
        }
        None => {
            let apis = o.value("api").map_or_else(configuration::apis_of_running, |url| vec![url.to_owned()]);
            Facts::read_with(o.duration("interval", PAUSE)?, file, &apis)?
        }
    };
    read_journal(o, &mut facts);
    if let Some(path) = o.value("record") {
        let mut text = serde_json::to_string_pretty(&facts).map_err(|e| e.to_string())?;
        text.push('\n');
        if path == "-" {
            print(&text);
            return Ok(0);
        }
        std::fs::write(path, text).map_err(|e| format!("{path}: {e}"))?;
    }
    let findings = rules::judge(&facts);
    show(o, &findings, &facts.machine.missing)
}

/// The journals in a folder that was named, instead of the machine's: they may be another one's.
pub(crate) fn read_journal(o: &Options, facts: &mut Facts) {
    if let Some(folder) = o.value("journal") {
        facts.machine.read_journal(&[Path::new(folder)], 0);
    }
}

/// Prints findings, and says by the exit status how heavy they are.
pub(crate) fn show(o: &Options, findings: &[Finding], missing: &[String]) -> Result<u8, String> {
    if o.has("json") {
        let all = json!({ "findings": findings, "not_seen": missing });
        print(&(serde_json::to_string_pretty(&all).map_err(|e| e.to_string())? + "\n"));
    } else {
        print(&text::report(findings, missing));
    }
    Ok(status(findings))
}

pub(crate) fn status(findings: &[Finding]) -> u8 {
    match findings.iter().map(|f| f.weight).min() {
        Some(Weight::Critical) => CRITICAL,
        Some(Weight::Warning) => WARNING,
        Some(Weight::Note) | None => 0,
    }
}
