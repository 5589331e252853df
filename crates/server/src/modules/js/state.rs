//! `state=` of `js_shared_dict_zone`: what a dictionary holds, as JSON in a file, in njs's own form. Read when a worker process begins; written
//! by the service thread within a second of a change, and when the process ends. No request waits for it.

use super::SharedDict;
use crate::log::error::Level;
use crate::log::{os_error, process_line};
use crate::snapshot::Snapshot;
use ::lua::dict::{Dict, Value as Kept, When};
use runtime::clock;
use serde_json::{Map, Value, json};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How often is looked for changes, as often as njs does.
const INTERVAL: Duration = Duration::from_secs(1);
/// Places of a dictionary that are copied under one lock.
const PIECE: usize = 1024;
/// The largest file that is read.
const MAX_FILE: u64 = 1 << 30;

/// The file of a dictionary.
#[derive(Debug)]
pub struct State {
    dict: Arc<Dict>,
    path: PathBuf,
    is_number: bool,
    /// Milliseconds that an entry stays which says no time itself; 0: no entry has one.
    timeout: u64,
    begun: AtomicBool,
    /// The file could not be read: it is left as it is.
    unread: AtomicBool,
    /// The count of changes that the file has.
    saved: AtomicU64,
    /// The last write came to nothing: that is said once.
    failed: AtomicBool,
    writing: Mutex<()>,
}

/// All that a process has.
static STATES: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

/// The state of a dictionary: the one there is, if it is the same, or a new one.
pub fn open(dict: &Arc<Dict>, path: PathBuf, is_number: bool, timeout: u64) -> Arc<State> {
    let mut all = STATES.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|s| s.strong_count() > 0);
    let is_same = |s: &Arc<State>| {
        Arc::ptr_eq(&s.dict, dict) && s.path == path && s.is_number == is_number && s.timeout == timeout
    };
    if let Some(same) = all.iter().filter_map(Weak::upgrade).find(is_same) {
        return same;
    }
    let made = Arc::new(State {
        dict: dict.clone(),
        path,
        is_number,
        timeout,
        begun: AtomicBool::new(false),
        unread: AtomicBool::new(false),
        saved: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        writing: Mutex::default(),
    });
    all.push(Arc::downgrade(&made));
    made
}

/// Reads the files of dictionaries that are new, and follows what becomes of them. In the worker process.
pub fn load(snapshot: &Snapshot) {
    let planes = std::iter::once(snapshot).chain(snapshot.stream.as_deref());
    let states = planes.flat_map(|s| &s.main.js.dicts).filter_map(|d: &SharedDict| d.state.as_ref());
    for state in states.filter(|s| !s.begun.swap(true, Relaxed)) {
        if let Err(text) = state.read() {
            state.unread.store(true, Relaxed);
            process_line(Level::Error, format_args!("{text}"));
        }
        let state = Arc::downgrade(state);
        crate::service::spawn(move || follow(state));
    }
}

/// Writes what the files do not have yet. The process is about to end.
pub fn flush() {
    let all: Vec<_> = STATES.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    all.iter().filter(|s| s.begun.load(Relaxed)).for_each(|s| s.save());
}

async fn follow(state: Weak<State>) {
    loop {
        let Some(held) = state.upgrade() else { return };
        tokio::time::sleep(INTERVAL).await;
        // No configuration has it any more: this is the last time.
        let is_last = Arc::strong_count(&held) == 1;
        if held.is_due() {
            crate::service::blocking(move || held.save()).await;
        }
        if is_last {
            return;
        }
    }
}

impl State {
    fn is_due(&self) -> bool {
        self.dict.changes() != self.saved.load(Relaxed) && !self.unread.load(Relaxed)
    }

    /// Reads the file, if there is one and the dictionary holds nothing yet.
    fn read(&self) -> Result<(), String> {
        let shown = self.path.display();
        let now = clock::wall_ms();
        if !self.dict.keys(1, now).is_empty() {
            return Ok(());
        }
        match std::fs::metadata(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(format!("open() \"{shown}\" failed ({})", os_error(&e))),
            // Of a pipe or a device nobody knows where it ends.
            Ok(m) if !m.is_file() => return Err(format!("state file \"{shown}\" is no regular file")),
            Ok(m) if m.len() > MAX_FILE => {
                return Err(format!("state file \"{shown}\" is larger than {MAX_FILE} bytes"));
            }
            Ok(_) => {}
        }
        let text = std::fs::read(&self.path).map_err(|e| format!("read() \"{shown}\" failed ({})", os_error(&e)))?;
        if text.is_empty() {
            return Ok(());
        }
        let name = &self.dict.name;
        let entries = parse(&text, self.is_number, self.timeout, now)
            .map_err(|why| format!("state file \"{shown}\" of js_shared_dict_zone \"{name}\": {why}"))?;
        let before = self.dict.changes();
        let whole = entries.len();
        for (key, value, stays) in entries {
            let done = self.dict.set(key.as_bytes(), value, (stays.unwrap_or(0), now), 0, When::Always, false);
            done.map_err(|_| format!("state file \"{shown}\" has more than the zone \"{name}\" takes"))?;
        }
        // As many changes as entries, unless somebody else has made some meanwhile; then the file is behind.
        self.saved.store(before + whole as u64, Relaxed);
        Ok(())
    }

    /// Writes the file when it is behind.
    fn save(&self) {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_due() {
            return;
        }
        let changes = self.dict.changes();
        match crate::temp::replace(&self.path, self.text(clock::wall_ms()).as_bytes()) {
            Ok(()) => {
                self.saved.store(changes, Relaxed);
                self.failed.store(false, Relaxed);
            }
            Err(e) if !self.failed.swap(true, Relaxed) => process_line(
                Level::Alert,
                format_args!(
                    "the state of js_shared_dict_zone \"{}\" could not be written to \"{}\" ({})",
                    self.dict.name,
                    self.path.display(),
                    os_error(&e)
                ),
            ),
            Err(_) => {}
        }
    }

    fn text(&self, now: u64) -> String {
        let mut all = Map::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let (held, behind) = self.dict.piece(from, PIECE, now);
            next = behind;
            for entry in held {
                let value = match entry.value {
                    Kept::Number(number) => Value::from(number),
                    Kept::Text(text) => String::from_utf8_lossy(&text).into(),
                    Kept::Flag(_) | Kept::List(_) => continue,
                };
                // JSON has no word for numbers that are none.
                if value.is_null() {
                    continue;
                }
                let entry_shown = match self.timeout {
                    0 => json!({ "value": value }),
                    _ => json!({ "value": value, "expire": entry.expires }),
                };
                all.insert(String::from_utf8_lossy(&entry.key).into_owned(), entry_shown);
            }
        }
        Value::Object(all).to_string()
    }
}

/// A key, its value, and how many milliseconds it stays.
type Entry = (String, Kept, Option<u64>);

/// The entries of a file that are not over. One without a time is as if it were new, where entries have times.
fn parse(text: &[u8], is_number: bool, timeout: u64, now: u64) -> Result<Vec<Entry>, String> {
    let all: Map<String, Value> = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let mut entries = Vec::with_capacity(all.len());
    for (key, entry) in all {
        let value = entry.get("value").ok_or_else(|| format!("\"{key}\" has no \"value\""))?;
        let value = match value {
            Value::Number(number) if is_number => number.as_f64().map(Kept::Number),
            Value::String(text) if !is_number => Some(Kept::Text(text.as_bytes().into())),
            _ => None,
        };
        let kind = if is_number { "number" } else { "string" };
        let value = value.ok_or_else(|| format!("the value of \"{key}\" is no {kind}"))?;
        let until = entry.get("expire").and_then(Value::as_f64).filter(|at| *at > 0.0).map(|at| at as u64);
        let stays = match (timeout, until) {
            (0, _) => None,
            (timeout, None) => Some(timeout),
            (_, Some(until)) if until > now => Some(until - now),
            _ => continue,
        };
        entries.push((key, value, stays));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_njs_is_read() {
        let text = br#"{"waka":{"value":"foo","expire":0}, "bar": { "value"  :"\u0061bc"}, "FOO \n": {"value": "BAZ", "unexpected": 1}}"#;
        let all = |entries: Vec<Entry>| entries.into_iter().map(|(k, _, stays)| (k, stays)).collect::<Vec<_>>();
        let found = parse(text, false, 0, 5).expect("it is good");
        assert!(found.iter().any(|(k, v, _)| k == "bar" && *v == Kept::Text(b"abc".as_slice().into())));
        assert_eq!(all(found), [("FOO \n".into(), None), ("bar".into(), None), ("waka".into(), None)]);
        let timed = br#"{"a":{"value":1,"expire":50},"b":{"value":2.5,"expire":500},"c":{"value":3}}"#;
        let found = parse(timed, true, 1000, 100).expect("it is good");
        assert_eq!(all(found), [("b".into(), Some(400)), ("c".into(), Some(1000))]);
        for bad in [&b"[]"[..], b"{\"a\":1}", b"{\"a\":{}}", b"{\"a\":{\"value\":1}}", b"{"] {
            assert!(parse(bad, false, 0, 0).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }
}
