//! Where settings are tried on the machine itself, under its own traffic. A dead man's switch comes first: a process of its own that sets
//! everything back when it hears nothing for a while, when this command ends, and when it is killed.

use super::{Candidate, Place};
use crate::guard::{self, Guard};
use crate::options::Options;
use api_client::{Client, Trust, URL};
use machine::facts;
use serde_json::json;
use std::time::Duration;

/// How long each measurement is, unless it is said.
const STEP: Duration = Duration::from_secs(5);
/// After a change the first so much of a step is not measured.
const SETTLE: f64 = 0.2;
/// How long the switch waits for a sign of life beyond a step, unless it is said.
const DEAD_MAN: Duration = Duration::from_secs(30);
/// Fewer requests in a step say nothing.
const FEWEST: u64 = 20;

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
    let mut live = Live { guard: Guard::start(&["tune", "--guard"], json!(&now), patience)?, client, step };
    let result = run(&mut live);
    let Err(gone) = live.guard.end() else { return result };
    // The switch itself was killed.
    let failures = set_back(&now);
    let mut said = Vec::from_iter(result.err());
    said.push(gone);
    said.push(if failures.is_empty() {
        "everything was set back by this command".to_owned()
    } else {
        failures.join("; ")
    });
    Err(said.join("; "))
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
        self.guard.alive(&json!("alive"))?;
        facts::set(name, value).map_err(|e| format!("{name} = {value}: {e}"))
    }

    fn measure(&mut self) -> Result<Vec<f64>, String> {
        std::thread::sleep(self.step.mul_f64(SETTLE));
        let before = self.counts()?;
        std::thread::sleep(self.step.mul_f64(1.0 - SETTLE));
        let after = self.counts()?;
        self.guard.alive(&json!("alive"))?;
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

/// The switch itself: waits for a silence or the end, and sets everything back.
pub(super) fn guard() -> Result<u8, String> {
    let order = guard::wait_for_the_end()?.order;
    let values: Vec<(String, String)> =
        serde_json::from_value(order).map_err(|e| format!("no settings to set back ({e})"))?;
    guard::outcome(set_back(&values))
}

/// What could not be set back.
fn set_back(values: &[(String, String)]) -> Vec<String> {
    let one = |(name, value): &(String, String)| {
        if facts::setting(name).as_ref() == Some(value) {
            return None;
        }
        facts::set(name, value).err().map(|e| format!("{name} should be {value} again: {e}"))
    };
    values.iter().filter_map(one).collect()
}
