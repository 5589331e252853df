//! `ironweir l4`: tables as `ipvsadm` prints them, and, until nginx.conf has words for it, a balancer that is run from a plan.

use crate::keeper::{BEAT, Keeper};
use crate::kernel::{self, Kernel, Maps, PINS};
use crate::tables::{self, Look};
use crate::{Plan, fill};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "Usage: ironweir l4 [--pins FOLDER] [COMMAND]

The balancer of layer 4 in the kernel. docs/l4.md

  list           virtual and real servers, as ipvsadm -Ln (the default)
  --stats        what was counted since the beginning, sizes of packets too
  --rate         what is counted in a second
  --connections  the table of flows, as ipvsadm -Lnc
  check PLAN     says what is wrong with a plan
  run PLAN       balances by a plan (JSON), and by what it becomes while this runs
  clear          detaches the balancer and forgets all
  decap DEV      on a real server: takes off the headers of IPIP and GUE
  pass DEV       for the other end of a veth pair: a program that does nothing

What is pinned in FOLDER (default: /sys/fs/bpf/ironweir-l4) goes on when \"run\" ends.
";

/// A plan is looked at for changes this often.
const PLAN_PAUSE: Duration = Duration::from_millis(200);
/// Between the two looks of `--rate`.
const RATE_PAUSE: Duration = Duration::from_secs(1);

/// Runs the command; `arguments` are those behind `l4`.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let mut pins = PathBuf::from(PINS);
    let mut words = Vec::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            "--pins" => match arguments.next() {
                Some(folder) => pins = folder.into(),
                None => return complain("--pins needs a folder"),
            },
            _ => words.push(argument),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] | ["list"] => show(&pins, |maps| Ok(tables::list(maps, &Look::take(maps)?))),
        ["--stats"] => show(&pins, |maps| Ok(tables::stats(&Look::take(maps)?))),
        ["--rate"] => show(&pins, rate),
        ["--connections"] => show(&pins, tables::connections),
        ["check", plan] => read(Path::new(plan)).and_then(|plan| check(&plan)).map(|()| println!("the plan is good")),
        ["run", plan] => run(&pins, Path::new(plan)),
        ["clear"] => kernel::clear(&pins),
        ["decap", dev] => kernel::attach_other("ironweir_decap", dev, false, &pins),
        ["pass", dev] => kernel::attach_other("ironweir_pass", dev, false, &pins),
        _ => Err(format!("\"{}\" is no command\n\n{HELP}", words.join(" "))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => complain(&text),
    }
}

fn complain(text: &str) -> ExitCode {
    eprintln!("ironweir l4: {text}");
    ExitCode::FAILURE
}

fn show(pins: &Path, text: impl Fn(&Maps) -> Result<String, String>) -> Result<(), String> {
    print!("{}", text(&Maps::open(pins)?)?);
    Ok(())
}

fn rate(maps: &Maps) -> Result<String, String> {
    let (before, at) = (Look::take(maps)?, Instant::now());
    std::thread::sleep(RATE_PAUSE);
    Ok(tables::rate(&before, &Look::take(maps)?, at.elapsed()))
}

fn read(path: &Path) -> Result<Plan, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Plan::read(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// What the plan alone shows, then what this machine lacks for it.
fn check(plan: &Plan) -> Result<(), String> {
    let mut problems = plan.problems();
    problems.extend(crate::machine::problems(plan));
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\nironweir l4: ")) }
}

fn run(pins: &Path, path: &Path) -> Result<(), String> {
    let mut plan = read(path)?;
    check(&plan)?;
    let mut kernel = Kernel::load(&plan, Some(pins))?;
    if let Some(text) = kernel.warning.take() {
        eprintln!("ironweir l4: {text}");
    }
    fill::apply(&mut kernel.maps, &plan)?;
    attach(&mut kernel, &plan, pins)?;
    println!("balancing {} virtual servers on {}", plan.services.len(), plan.interfaces.join(", "));
    let mut keeper = Keeper::new();
    let (mut text, mut looked) = (std::fs::read_to_string(path).ok(), Instant::now());
    loop {
        keeper.beat(&mut kernel)?;
        if looked.elapsed() >= PLAN_PAUSE {
            looked = Instant::now();
            let now = std::fs::read_to_string(path).ok();
            if now != text {
                text = now;
                match read(path).and_then(|new| change(&mut kernel, &plan, new, pins)) {
                    Ok(new) => plan = new,
                    Err(text) => eprintln!("ironweir l4: the plan is not changed: {text}"),
                }
            }
        }
        std::thread::sleep(BEAT);
    }
}

fn change(kernel: &mut Kernel, old: &Plan, new: Plan, pins: &Path) -> Result<Plan, String> {
    check(&new)?;
    if new.flow_room() != old.flow_room() {
        eprintln!("ironweir l4: \"flows\" counts when the maps are made anew, after \"clear\"");
    }
    fill::apply(&mut kernel.maps, &new)?;
    if new.interfaces != old.interfaces {
        attach(kernel, &new, pins)?;
    }
    println!("the plan has changed: {} virtual servers", new.services.len());
    Ok(new)
}

fn attach(kernel: &mut Kernel, plan: &Plan, pins: &Path) -> Result<(), String> {
    for interface in &plan.interfaces {
        if !kernel.attach(interface, plan.generic, pins)? && !plan.generic {
            eprintln!("ironweir l4: {interface}: its driver has no XDP: generic XDP, which is slower");
        }
    }
    // Until a moment ago the program there may have been another version's.
    fill::forget_recent(&mut kernel.maps)
}
