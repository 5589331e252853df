//! The command `ironweir stress`: from its arguments to its exit status.

use crate::options::{self, Options};
use crate::plan::Plan;
use crate::report::text;
use crate::run::{Watch, run};
use std::process::ExitCode;

/// Could not run.
const FAILED: u8 = 1;
/// Ran, and nothing was answered.
const UNANSWERED: u8 = 4;

/// Runs the command. `arguments` are those behind `stress`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    match options::parse(arguments).and_then(|o| dispatch(&o, version)) {
        Ok(code) => ExitCode::from(code),
        Err(text) => {
            eprintln!("ironweir stress: {text}");
            ExitCode::from(FAILED)
        }
    }
}

fn dispatch(o: &Options, version: &str) -> Result<u8, String> {
    if o.help {
        print!("{}", options::help());
    } else if o.version {
        println!("ironweir stress {version}");
    } else if o.man {
        print!("{}", options::man_page(version));
    } else if let Some(shell) = &o.completion {
        print!("{}", options::completion(shell).ok_or("--completion: bash, zsh or fish")?);
    } else {
        return once(o);
    }
    Ok(0)
}

fn once(o: &Options) -> Result<u8, String> {
    let plan = Plan::new(o)?;
    print!("{}", text::head(&plan));
    let record = run(&plan, &mut Quiet)?;
    print!("{}", text::summary(&plan, &record, o.latency));
    Ok(if record.sample.answers == 0 { UNANSWERED } else { 0 })
}

struct Quiet;
impl Watch for Quiet {}
