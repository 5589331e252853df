//! `vhost_traffic_status_dump`: what was counted, as JSON in a file of our own form. Read when a worker process begins; written by the
//! service thread every so often if something was counted since, and when the process ends. No request waits for it.

use super::count::{self, Totals};
use crate::log::error::Level;
use crate::log::{os_error, process_line};
use crate::snapshot::Snapshot;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The largest file that is read.
const MAX_FILE: u64 = 256 * 1024 * 1024;
/// What the file says it is.
const FORM: &str = "ironweir vhost_traffic_status 1";
/// How often is written where the configuration does not say.
pub(super) const PERIOD: Duration = Duration::from_secs(60);

/// Where, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The file.
    pub path: PathBuf,
    /// Between two times.
    pub period: Duration,
}

/// What the process does now: the file is that of the newest configuration.
#[derive(Debug)]
struct Active {
    dump: Dump,
    /// The bounds of the histograms that are counted.
    bounds: Vec<u64>,
    /// What the file has.
    written: String,
    /// The last write came to nothing: that is said once.
    failed: bool,
}

static ACTIVE: Mutex<Option<Active>> = Mutex::new(None);

fn active() -> std::sync::MutexGuard<'static, Option<Active>> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the file if this process counts for the first time, and follows what is counted. In the worker process.
pub fn load(snapshot: &Snapshot) {
    let main = &snapshot.main.vts;
    let Some(dump) = main.dump.clone() else {
        *active() = None;
        return;
    };
    let bounds = main.bounds.as_deref().unwrap_or_default().to_vec();
    let mut now = active();
    if let Some(known) = now.as_mut() {
        (known.dump, known.bounds) = (dump, bounds);
        return;
    }
    if count::len() == 0
        && let Err(text) = read(&dump.path, &bounds, main.most())
    {
        process_line(Level::Error, format_args!("vhost_traffic_status_dump \"{}\": {text}", dump.path.display()));
    }
    *now = Some(Active { dump, bounds, written: String::new(), failed: false });
    crate::service::spawn(follow);
}

/// Writes what the file does not have yet. The process is about to end.
pub fn flush() {
    if let Some(active) = active().as_mut() {
        active.save();
    }
}

async fn follow() {
    loop {
        let Some(period) = active().as_ref().map(|a| a.dump.period) else { return };
        tokio::time::sleep(period).await;
        crate::service::blocking(flush).await;
    }
}

impl Active {
    fn save(&mut self) {
        let text = text(&self.bounds);
        if text == self.written {
            return;
        }
        match crate::temp::replace(&self.dump.path, text.as_bytes()) {
            Ok(()) => (self.written, self.failed) = (text, false),
            Err(e) if !std::mem::replace(&mut self.failed, true) => process_line(
                Level::Alert,
                format_args!(
                    "vhost_traffic_status_dump \"{}\" could not be written ({})",
                    self.dump.path.display(),
                    os_error(&e)
                ),
            ),
            Err(_) => {}
        }
    }
}

/// Everything that was counted.
fn text(bounds: &[u64]) -> String {
    let groups = count::all().into_iter();
    let names = groups.flat_map(|(group, counted)| {
        let group: Arc<str> = group.into();
        counted.into_iter().map(move |(name, t)| {
            json!({
                "group": &*group, "name": &*name, "requests": t.requests, "in": t.received, "out": t.sent, "ms": t.ms,
                "classes": t.classes, "cache": t.statuses, "buckets": &t.buckets[..bounds.len()],
            })
        })
    });
    json!({ "form": FORM, "bounds": bounds, "names": names.collect::<Vec<_>>() }).to_string()
}

fn read(path: &Path, bounds: &[u64], most: usize) -> Result<(), String> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(os_error(&e)),
        Ok(m) if !m.is_file() => return Err("it is no regular file".to_owned()),
        Ok(m) if m.len() > MAX_FILE => return Err(format!("it is larger than {MAX_FILE} bytes")),
        Ok(_) => {}
    }
    let text = std::fs::read(path).map_err(|e| os_error(&e))?;
    for (group, name, totals) in parse(&text, bounds)? {
        count::restore(&group, &name, &totals, most);
    }
    Ok(())
}

/// What a file has: group, name, and what was counted. Histograms of other bounds are left out.
fn parse(text: &[u8], bounds: &[u64]) -> Result<Vec<(String, String, Totals)>, String> {
    let whole: Value =
        serde_json::from_slice(text).map_err(|e| format!("what was counted is not read from it: {e}"))?;
    if whole["form"] != FORM {
        return Err("what was counted is not read from it: it is not of this server's form".to_owned());
    }
    let same_bounds = whole["bounds"] == json!(bounds);
    let names = whole["names"].as_array().ok_or("it has no names")?;
    names
        .iter()
        .map(|node| {
            let text = |field: &str| {
                node[field].as_str().map(str::to_owned).ok_or_else(|| format!("a \"{field}\" is missing"))
            };
            let number = |field: &str| node[field].as_u64().ok_or_else(|| format!("a \"{field}\" is no number"));
            let mut totals = Totals {
                requests: number("requests")?,
                received: number("in")?,
                sent: number("out")?,
                ms: number("ms")?,
                ..Totals::default()
            };
            numbers(&node["classes"], &mut totals.classes);
            numbers(&node["cache"], &mut totals.statuses);
            if same_bounds {
                numbers(&node["buckets"], &mut totals.buckets);
            }
            Ok((text("group")?, text("name")?, totals))
        })
        .collect()
}

/// As many numbers as there are on both sides.
fn numbers(list: &Value, into: &mut [u64]) {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    into.iter_mut().zip(list).for_each(|(n, said)| *n = said.as_u64().unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_state_is_refused_with_a_reason() {
        let said = |text: &str| parse(text.as_bytes(), &[]).expect_err(text);
        assert!(said("\x01\x02").contains("not read from it"));
        assert!(said("{}").contains("not of this server's form"));
        let with = |names: &str| format!("{{\"form\":\"{FORM}\",\"bounds\":[],\"names\":{names}}}");
        assert_eq!(said(&with("1")), "it has no names");
        assert_eq!(said(&with("[{}]")), "a \"requests\" is no number");
        let node = "[{\"group\":\"g\",\"name\":\"n\",\"requests\":3,\"in\":1,\"out\":2,\"ms\":4,\"classes\":[0,3],\"buckets\":[9]}]";
        let read = parse(with(node).as_bytes(), &[]).expect("it is good");
        let [(group, name, totals)] = &read[..] else { panic!("{read:?}") };
        assert_eq!((group.as_str(), name.as_str(), totals.requests, totals.classes[1]), ("g", "n", 3, 3));
        assert_eq!(parse(with(node).as_bytes(), &[5]).expect("it is good")[0].2.buckets[0], 0);
    }
}
