//! Where settings are tried on the machine itself, under its own traffic. A dead man's switch comes first: a process of its own that sets
//! everything back when it hears nothing for a while, when this command ends, and when it is killed.

use super::{Candidate, Place};
use crate::options::Options;
use api_client::{Client, Trust, URL};
use machine::facts;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long each measurement is, unless it is said.
const STEP: Duration = Duration::from_secs(5);
/// After a change the first so much of a step is not measured.
const SETTLE: f64 = 0.2;
/// How long the switch waits for a sign of life beyond a step, unless it is said.
const DEAD_MAN: Duration = Duration::from_secs(30);
/// Fewer requests in a step say nothing.
const FEWEST: u64 = 20;
/// The longest list of settings that the switch reads.
const MOST_BYTES: usize = 1 << 16;

/// Runs something with the machine, which has all its values back afterwards.
pub(super) fn with<T>(
    o: &Options,
    candidates: &[Candidate],
    run: impl FnOnce(&mut dyn Place) -> Result<T, String>,
) -> Result<T, String> {
    let client = Client::new(o.value("api").unwrap_or(URL), &Trust::System, None)?;
    let step = o.duration("step", STEP)?.max(Duration::from_millis(200));
    let patience = o.duration("dead-man", DEAD_MAN)?.max(step * 2);
    let now = candidates.iter().filter_map(|c| Some((c.name.clone(), facts::setting(&c.name)?))).collect::<Vec<_>>();
    let mut live = Live { guard: Guard::start(&now, patience)?, client, step };
    let result = run(&mut live);
    live.guard.end()?;
    result
}

struct Live {
    guard: Guard,
    client: Client,
    step: Duration,
}

impl Live {
    /// Requests that are done, and the microseconds of all of them together.
    fn counts(&self) -> Result<(u64, u64), String> {
        let time = self.client.ask("ironweir/time")?;
        let time = time.ok_or_else(|| format!("{} does not say what requests wait for", self.client.url()))?;
        let parts = time["parts_us"].as_object().into_iter().flatten().filter_map(|(_, us)| us.as_u64()).sum();
        Ok((time["requests"].as_u64().unwrap_or(0), parts))
    }
}

impl Place for Live {
    fn workloads(&self) -> &'static [&'static str] {
        // More is better: the time is negative where it is compared.
        &["a request's time, microseconds"]
    }

    fn value(&self, name: &str) -> Option<String> {
        facts::setting(name)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.guard.alive()?;
        facts::set(name, value).map_err(|e| format!("{name} = {value}: {e}"))
    }

    fn measure(&mut self) -> Result<Vec<f64>, String> {
        std::thread::sleep(self.step.mul_f64(SETTLE));
        let before = self.counts()?;
        std::thread::sleep(self.step.mul_f64(1.0 - SETTLE));
        let after = self.counts()?;
        self.guard.alive()?;
        let requests = after.0.saturating_sub(before.0);
        if requests < FEWEST {
            return Err(format!(
                "{requests} requests in {:?} are too few to see anything: there must be traffic",
                self.step
            ));
        }
        Ok(vec![-(after.1.saturating_sub(before.1) as f64) / requests as f64])
    }
}

/// The dead man's switch, from this side.
struct Guard(Child);

impl Guard {
    fn start(values: &[(String, String)], patience: Duration) -> Result<Guard, String> {
        use std::os::unix::process::CommandExt;
        let program = std::env::current_exe().map_err(|e| format!("the program's own path is not known ({e})"))?;
        let mut command = Command::new(program);
        command.args(["tune", "--guard"]).stdin(Stdio::piped()).stdout(Stdio::null());
        // A group of its own: Ctrl-C is for the one that is waited for.
        let child = command.process_group(0).spawn();
        let mut guard =
            Guard(child.map_err(|e| format!("the process that sets everything back does not start ({e})"))?);
        guard.tell(&json!({ "values": values, "patience_ms": patience.as_millis() as u64 }).to_string())?;
        Ok(guard)
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let gone =
            |e: std::io::Error| format!("the process that sets everything back is gone ({e}): nothing more is changed");
        let pipe = self.0.stdin.as_mut().ok_or("no pipe to the process that sets everything back")?;
        pipe.write_all(format!("{line}\n").as_bytes()).map_err(gone)
    }

    /// A sign of life.
    fn alive(&mut self) -> Result<(), String> {
        self.tell("alive")
    }

    /// Has it set everything back, and waits for that.
    fn end(mut self) -> Result<(), String> {
        drop(self.0.stdin.take());
        match self.0.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("not all settings could be set back ({other:?}): the lines above say which")),
        }
    }
}

/// The switch itself: waits for a silence or the end, and sets everything back.
pub(super) fn guard() -> Result<u8, String> {
    let stdin = std::io::stdin();
    let mut input = BufReader::with_capacity(MOST_BYTES, stdin.lock());
    let mut line = String::new();
    input.read_line(&mut line).map_err(|e| e.to_string())?;
    let order: Value = serde_json::from_str(&line).map_err(|e| format!("no settings to set back ({e})"))?;
    let values: Vec<(String, String)> =
        serde_json::from_value(order["values"].clone()).map_err(|e| format!("no settings to set back ({e})"))?;
    let patience = Duration::from_millis(order["patience_ms"].as_u64().unwrap_or(0));
    while is_heard(&input, patience) {
        line.clear();
        // Nothing to read is the end of whoever wrote.
        if input.read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
    }
    let mut failures = Vec::new();
    for (name, value) in &values {
        if facts::setting(name).as_ref() != Some(value)
            && let Err(e) = facts::set(name, value)
        {
            failures.push(format!("{name} should be {value} again: {e}"));
        }
    }
    if failures.is_empty() { Ok(0) } else { Err(failures.join("; ")) }
}

fn is_heard(input: &BufReader<std::io::StdinLock<'_>>, patience: Duration) -> bool {
    if !input.buffer().is_empty() {
        return true;
    }
    let stdin = std::io::stdin();
    let limit =
        rustix::time::Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    loop {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok_and(|n| n > 0),
        }
    }
}
