//! The command `ironweir stress`: from its arguments to its exit status.

use crate::agent::Fleet;
use crate::condition::{self, Condition};
use crate::find_max::{self, HighestRate, Step, Trial};
use crate::hold::{self, HoldPlan, HoldSecond, HoldWatch};
use crate::options::{self, Options, STRESS};
use crate::plan::{Address, Part, Plan};
use crate::preflight;
use crate::report::compare::Outcome;
use crate::report::json::{FoundSummary, Summary, csv};
use crate::report::live::{Live, Shown, Steps};
use crate::report::{compare, html, text};
use crate::run::{Record, run};
use crate::system::Interrupts;
use crate::target_api::TargetApi;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use wire::terminal::lines;

/// Could not run.
const FAILED: u8 = 1;
/// A condition of `--fail-if` holds.
const CONDITION: u8 = 3;
/// Ran, and nothing was answered, or no rate held.
const UNANSWERED: u8 = 4;
/// Ran, but its numbers are not the target's (INVALID), or two runs do not say which is better.
const INVALID: u8 = 5;
/// Ended before it was whole.
const PARTIAL: u8 = 6;
/// `--find-max`: how long each rate is tried.
const DEFAULT_STEP: Duration = Duration::from_secs(5);
/// What must hold if `--slo` says nothing.
const DEFAULT_SLO: &str = "p99<100ms,errors<0.1%";

/// Runs the command. `arguments` are those behind `stress`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    let arguments: Vec<String> = arguments.collect();
    let command = shown_command(&arguments);
    let run = |mut o: Options| {
        (o.command, o.tool_version) = (command, version.to_owned());
        dispatch(&o, version)
    };
    match options::parse(&STRESS, arguments.into_iter()).and_then(run) {
        Ok(code) => ExitCode::from(code),
        Err(text) => {
            eprintln!("ironweir stress: {}", lines(&text));
            ExitCode::from(FAILED)
        }
    }
}

/// Headers whose values are nobody's who reads a report.
const SECRET_HEADERS: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// The command as it could be typed again, but for secrets.
fn shown_command(arguments: &[String]) -> String {
    let quoted = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+?&".contains(c);
        let is_plain = !word.is_empty() && word.chars().all(plain) && !word.contains(['&', '?']);
        if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let mut words = vec!["ironweir stress".to_owned()];
    for argument in arguments {
        // A header stands behind its option, or is one word with it.
        let name_start = argument.rfind(['=', 'H']).map_or(0, |at| if argument.starts_with('-') { at + 1 } else { 0 });
        let header = argument[name_start..]
            .split_once(':')
            .filter(|(name, _)| SECRET_HEADERS.iter().any(|secret| name.trim().eq_ignore_ascii_case(secret)));
        words.push(match (header, without_password(argument)) {
            (Some((name, _)), _) => quoted(&format!("{}{name}: ...", &argument[..name_start])),
            (None, Some(url)) => quoted(&url),
            (None, None) => quoted(argument),
        });
    }
    words.join(" ")
}

/// A URL whose name and password are left out, if it has any.
fn without_password(argument: &str) -> Option<String> {
    let (scheme, rest) = argument.split_once("://")?;
    let host_end = rest.find('/').unwrap_or(rest.len());
    let at = rest[..host_end].rfind('@')?;
    Some(format!("{scheme}://...{}", &rest[at..]))
}

fn dispatch(o: &Options, version: &str) -> Result<u8, String> {
    if let Some(text) = STRESS.about(o, version)? {
        print!("{text}");
    } else if let Some(old) = &o.compare {
        let new = o.url.as_deref().ok_or("--compare old.json new.json")?;
        one_free_argument(o)?;
        let (table, outcome) = compare::files(old, Path::new(new))?;
        print!("{}", lines(&table));
        return Ok(match outcome {
            Outcome::Good => 0,
            Outcome::Worse => CONDITION,
            Outcome::Unknown => INVALID,
        });
    } else {
        return load(o);
    }
    Ok(0)
}

/// What stands behind the URL is a script's; without one it is a mistake.
fn one_free_argument(o: &Options) -> Result<(), String> {
    match o.script_arguments.first() {
        Some(second) if o.script.is_none() => {
            Err(format!("\"{second}\" is one too many: there is one URL (more of them: --urls FILE)"))
        }
        _ => Ok(()),
    }
}

/// Everything that puts load on a target.
fn load(o: &Options) -> Result<u8, String> {
    // Before any thread is started: they inherit it.
    one_free_argument(o)?;
    if o.slo.is_some() && !o.find_max {
        return Err("--slo is what --find-max looks for; a single run is judged by --fail-if".to_owned());
    }
    let interrupts = Interrupts::open().map_err(|e| format!("signals: {e}"))?;
    let mut fleet = Fleet::gather(o)?;
    match o.hold {
        Some(count) => hold(o, count, fleet.as_mut(), interrupts),
        None => measure(o, fleet.as_mut(), interrupts),
    }
}

/// `--hold`
fn hold(o: &Options, count: usize, fleet: Option<&mut Fleet>, interrupts: Interrupts) -> Result<u8, String> {
    let plan = HoldPlan::new(o, count, Part::WHOLE)?;
    let mut out = Printer::new(o);
    plan.base.notes.iter().filter(|_| !o.quiet && fleet.is_none()).for_each(|note| out.print(&format!("{note}\n")));
    out.remark(&hold::report::head(&plan));
    let mut lines = HoldLines { count, is_quiet: o.quiet, interrupts };
    let record = match fleet {
        Some(fleet) => fleet.hold(&plan, o, &mut lines)?,
        None => hold::run(&plan, &mut lines, None)?,
    };
    out.print(&hold::report::summary(&record));
    if let Some(path) = &o.json {
        write_json(path, &hold::report::json(&plan, &record))?;
    }
    Ok(if record.held == 0 { UNANSWERED } else { 0 })
}

/// A line a second on the standard error.
struct HoldLines {
    count: usize,
    is_quiet: bool,
    interrupts: Interrupts,
}

impl HoldWatch for HoldLines {
    fn second(&mut self, second: &HoldSecond) {
        if !self.is_quiet {
            let _ = std::io::stderr().write_all(hold::report::line(self.count, second).as_bytes());
        }
    }

    fn goes_on(&mut self) -> bool {
        !self.interrupts.is_raised()
    }
}

/// A run, or a search by runs.
fn measure(o: &Options, mut fleet: Option<&mut Fleet>, interrupts: Interrupts) -> Result<u8, String> {
    let fail_if = o.fail_if.as_deref().map(condition::parse).transpose()?.unwrap_or_default();
    let slo = condition::parse(o.slo.as_deref().unwrap_or(DEFAULT_SLO))?;
    let plan = Plan::new(o)?;
    let mut out = Printer::new(o);
    plan.notes.iter().filter(|_| !o.quiet).for_each(|note| out.print(&format!("{note}\n")));
    let api = o.api.as_deref().map(TargetApi::new).transpose()?;
    let findings = match &fleet {
        _ if o.no_preflight => Vec::new(),
        // What the agents' machines lack, they say themselves.
        Some(_) => preflight::target(&plan, api.as_ref()),
        None => preflight::check(&plan, api.as_ref()),
    };
    findings.iter().filter(|_| !o.quiet).for_each(|f| out.print(&format!("note: {f}\n")));
    let machines = fleet.as_ref().map_or(1, |f| f.len());
    let step = o.step.unwrap_or(DEFAULT_STEP);
    let seen = if o.find_max { Trial { rate: None, length: step }.of(&plan) } else { plan.clone() };
    out.remark(&if o.find_max { format!("Looking for the highest rate @ {}\n", plan.url) } else { text::head(&plan) });
    // From here to its end the terminal is the page's.
    let steps = Steps::default();
    let mut live = Live::new(&seen, shown(o), Some(interrupts), machines, steps.clone());
    let mut go = |trial: Option<Trial>| match &mut fleet {
        Some(fleet) => fleet.run(&plan, o, trial, &mut live),
        None => run(trial.map(|t| t.of(&plan)).as_ref().unwrap_or(&plan), &mut live),
    };
    let (record, found, code) = if o.find_max {
        // Who cannot say it now is asked again with the next step.
        let turned_away = || api.as_ref().and_then(|api| api.turned_away(port_of(&plan)).ok());
        let trial = |trial| {
            let before = turned_away();
            let mut record = go(Some(trial)).and_then(whole)?;
            let both = before.zip(turned_away());
            record.evidence.turned_away = both.map_or(0, |(before, after)| after.since(&before));
            Ok(record)
        };
        let is_page = shown(o) == Shown::Page;
        let told = |step: &Step| {
            steps.borrow_mut().push(step_line(step));
            if !is_page {
                out.remark(&step_line(step));
            }
        };
        let found = find_max::find(plan.connections, &slo, step, trial, told);
        drop(live);
        if is_page {
            out.remark(&steps.borrow().concat());
        }
        let mut found = found?;
        out.print(&found_text(&found));
        let code = match (&found.ended, found.best) {
            (Some(_), _) => PARTIAL,
            (None, Some(_)) => 0,
            (None, None) => UNANSWERED,
        };
        (found.record.take(), Some(FoundSummary::new(&found)), code)
    } else {
        let record = go(None)?;
        drop(live);
        let code = match () {
            () if record.sample.answers == 0 => UNANSWERED,
            () if record.partial.is_some() => PARTIAL,
            () if !record.verdict.limit.is_valid() => INVALID,
            () => 0,
        };
        (Some(record), None, code)
    };
    let Some(record) = record else { return Ok(code) };
    if let Some(script) = &plan.script {
        script.flush();
    }
    out.print(&text::summary(&plan, &record, plan.latency));
    if let Some(script) = &plan.script {
        script.done(&record).map_err(|e| format!("script: {e}"))?;
    }
    let (command, version) = (o.command.clone(), o.tool_version.clone());
    write_files(o, &Summary { find_max: found, command, version, ..Summary::new(&plan, &record, &findings) })?;
    Ok(if fails(&fail_if, &record) { CONDITION } else { code })
}

fn port_of(plan: &Plan) -> Option<u16> {
    match &plan.address {
        Address::Tcp(address) => Some(address.port()),
        Address::Unix(_) => None,
    }
}

/// A step of a search has to be whole: by half of one no rate is judged.
fn whole(record: Record) -> Result<Record, String> {
    match (&record.partial, record.was_ended) {
        (Some(partial), _) => Err(partial.clone()),
        (None, true) => Err("ended by the user".to_owned()),
        (None, false) => Ok(record),
    }
}

/// The standard output belongs to `--json -` alone. What targets and agents say is shown, and steers no terminal.
struct Printer {
    is_silent: bool,
    is_quiet: bool,
}

impl Printer {
    fn new(o: &Options) -> Printer {
        Printer { is_silent: is_stdout(o.json.as_deref()), is_quiet: o.quiet }
    }

    /// Prints what is no part of the result.
    fn remark(&mut self, text: &str) {
        if !self.is_quiet {
            self.print(text);
        }
    }

    fn print(&mut self, text: &str) {
        if !self.is_silent {
            // A closed pipe ends nothing: the files are still to be written.
            let _ = std::io::stdout().write_all(lines(text).as_bytes());
        }
    }
}

fn is_stdout(path: Option<&Path>) -> bool {
    path.is_some_and(|p| p.as_os_str() == "-")
}

fn shown(o: &Options) -> Shown {
    if o.quiet {
        Shown::Nothing
    } else if !o.plain && !is_stdout(o.json.as_deref()) && std::io::stdout().is_terminal() {
        Shown::Page
    } else {
        Shown::Lines
    }
}

fn write_files(o: &Options, summary: &Summary) -> Result<(), String> {
    if let Some(path) = &o.json {
        write_json(path, summary)?;
    }
    if let Some(path) = &o.csv {
        write(path, &csv(summary))?;
    }
    if let Some(path) = &o.html {
        write(path, &html::page(summary))?;
    }
    Ok(())
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), String> {
    let mut text = serde_json::to_string_pretty(value).map_err(|e| e.to_string())?;
    text.push('\n');
    write(path, &text)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    if is_stdout(Some(path)) {
        return std::io::stdout().write_all(text.as_bytes()).map_err(|e| e.to_string());
    }
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn fails(conditions: &[Condition], record: &Record) -> bool {
    let mut any = false;
    for condition in conditions.iter().filter(|c| c.holds(record)) {
        eprintln!("ironweir stress: --fail-if {}", condition.explain(record));
        any = true;
    }
    any
}

fn step_line(step: &Step) -> String {
    let word = if step.held { "holds" } else { "fails" };
    format!("  {:>12.1}/s  {word}  {}\n", step.rate, step.why)
}

fn found_text(found: &HighestRate) -> String {
    let mut out = match (found.best, found.safe) {
        (Some(best), Some(safe)) => {
            let bound = if found.is_lower_bound { ">= " } else { "" };
            format!("Best: {bound}{best:.1}/s   Safe: {safe:.1}/s   Steps: {}\n", found.steps.len())
        }
        _ if found.ended.is_some() => format!("No rate has held yet; steps: {}\n", found.steps.len()),
        _ => format!("No rate holds; steps: {}\n", found.steps.len()),
    };
    if let Some(why) = &found.ended {
        out.push_str(&format!("PARTIAL: {why}: higher rates were not tried\n"));
    }
    if let Some(bound) = &found.bound {
        out.push_str(&format!("Bound by: {bound}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_without_secrets() {
        let shown = |words: &[&str]| shown_command(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert_eq!(shown(&["-c2", "-H", "X-A: b", "http://h/"]), "ironweir stress -c2 -H 'X-A: b' http://h/");
        assert_eq!(shown(&["-H", "Authorization: Bearer x"]), "ironweir stress -H 'Authorization: ...'");
        assert_eq!(shown(&["-Hcookie: x"]), "ironweir stress '-Hcookie: ...'");
        assert_eq!(shown(&["--header=Cookie: x"]), "ironweir stress '--header=Cookie: ...'");
        assert_eq!(shown(&["http://me:pw@h/x?a=b"]), "ironweir stress 'http://...@h/x?a=b'");
        assert_eq!(shown(&["it's"]), "ironweir stress 'it'\\''s'");
    }
}
