//! The command `ironweir stress`: from its arguments to its exit status.

use crate::agent::Fleet;
use crate::condition::{self, Condition};
use crate::find_max::{self, Found, Step, Trial};
use crate::hold::{self, HoldPlan, HoldSecond, HoldWatch};
use crate::options::{self, Options, STRESS};
use crate::plan::{Part, Plan};
use crate::preflight;
use crate::report::json::{FoundSummary, Summary, csv};
use crate::report::live::{Live, Shown};
use crate::report::{compare, html, text};
use crate::run::{Record, run};
use crate::system::Interrupts;
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
/// `--find-max`: how long each rate is tried.
const DEFAULT_STEP: Duration = Duration::from_secs(5);
/// What must hold if `--slo` says nothing.
const DEFAULT_SLO: &str = "p99<100ms,errors<0.1%";

/// Runs the command. `arguments` are those behind `stress`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    match options::parse(&STRESS, arguments).and_then(|o| dispatch(&o, version)) {
        Ok(code) => ExitCode::from(code),
        Err(text) => {
            eprintln!("ironweir stress: {}", lines(&text));
            ExitCode::from(FAILED)
        }
    }
}

fn dispatch(o: &Options, version: &str) -> Result<u8, String> {
    if let Some(text) = STRESS.about(o, version)? {
        print!("{text}");
    } else if let Some(old) = &o.compare {
        let new = o.url.as_deref().ok_or("--compare old.json new.json")?;
        print!("{}", compare::files(old, Path::new(new))?);
    } else {
        return load(o);
    }
    Ok(0)
}

/// Everything that puts load on a target.
fn load(o: &Options) -> Result<u8, String> {
    // Before any thread is started: they inherit it.
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
    let mut out = Printer { is_silent: is_stdout(o.json.as_deref()) };
    plan.base.notes.iter().filter(|_| !o.quiet && fleet.is_none()).for_each(|note| out.print(&format!("{note}\n")));
    out.print(&hold::report::head(&plan));
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
    let mut out = Printer { is_silent: is_stdout(o.json.as_deref()) };
    plan.notes.iter().filter(|_| !o.quiet).for_each(|note| out.print(&format!("{note}\n")));
    let findings = match &fleet {
        _ if o.no_preflight => Vec::new(),
        // What the agents' machines lack, they say themselves.
        Some(_) => preflight::target(&plan),
        None => preflight::check(&plan),
    };
    findings.iter().filter(|_| !o.quiet).for_each(|f| out.print(&format!("note: {f}\n")));
    let machines = fleet.as_ref().map_or(1, |f| f.len());
    let mut live = Live::new(&plan, shown(o), Some(interrupts), machines);
    let mut go = |trial: Option<Trial>| match &mut fleet {
        Some(fleet) => fleet.run(&plan, o, trial, &mut live),
        None => run(trial.map(|t| t.of(&plan)).as_ref().unwrap_or(&plan), &mut live),
    };
    let (record, found, code) = if o.find_max {
        out.print(&format!("Looking for the highest rate @ {}\n", plan.url));
        let step = o.step.unwrap_or(DEFAULT_STEP);
        let trial = |trial| go(Some(trial)).and_then(whole);
        let mut found = find_max::find(plan.connections, &slo, step, trial, |step| out.print(&step_line(step)))?;
        drop(live);
        out.print(&found_text(&found));
        let code = if found.best.is_some() { 0 } else { UNANSWERED };
        (found.record.take(), Some(FoundSummary::new(&found)), code)
    } else {
        out.print(&text::head(&plan));
        let record = go(None)?;
        drop(live);
        let code = if record.sample.answers == 0 { UNANSWERED } else { 0 };
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
    write_files(o, &Summary { find_max: found, ..Summary::new(&plan, &record, &findings) })?;
    Ok(if fails(&fail_if, &record) { CONDITION } else { code })
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
}

impl Printer {
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

fn found_text(found: &Found) -> String {
    let mut out = match (found.best, found.safe) {
        (Some(best), Some(safe)) => {
            let bound = if found.is_lower_bound { ">= " } else { "" };
            format!("Best: {bound}{best:.1}/s   Safe: {safe:.1}/s   Steps: {}\n", found.steps.len())
        }
        _ => format!("No rate holds; steps: {}\n", found.steps.len()),
    };
    if let Some(bound) = &found.bound {
        out.push_str(&format!("Bound by: {bound}\n"));
    }
    out
}
