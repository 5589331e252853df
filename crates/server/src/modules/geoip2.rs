//! `geoip2`: variables out of MaxMind's databases (leev's `ngx_http_geoip2_module`). A database is read when the configuration is,
//! and with `auto_reload` again when its file has changed, by a thread that may wait.

use super::geo;
use super::map::variable_name;
use super::realip::{self, Trusted};
use crate::config::cidr::Plain;
use crate::config::{Directive, Scope, both, http};
use crate::request::{Request, Text};
use crate::snapshot::VariableId;
use crate::text;
use conf::{Node, Problem, value};
use maxminddb::{PathElement, Reader};
use runtime::clock;
use serde_json::Value;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::UNIX_EPOCH;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    both("geoip2", geoip2),
    http("geoip2_proxy", |s, n| {
        let network = geo::network(&mut s.build.problems, n, &n.args[0].text)?;
        s.build.main.geoip2.networks.push(network);
        Ok(())
    }),
    http("geoip2_proxy_recursive", |s, n| {
        s.build.main.geoip2.recursive = n.args[0].text.eq_ignore_ascii_case(b"on");
        Ok(())
    }),
];

/// Larger databases are refused: they are kept in memory.
const MAX_DATABASE: u64 = 1024 * 1024 * 1024;
/// Words of a path into a record.
const MAX_PATH: usize = 16;

/// Whose addresses in `X-Forwarded-For` are believed.
pub type Main = Trusted;

type Records = Arc<Reader<Vec<u8>>>;

/// One block: a database.
struct Database {
    path: PathBuf,
    /// As it was when the configuration was read.
    records: Records,
    /// Read since. Looked at only where files may change: no request takes a lock for nothing.
    newer: RwLock<Option<Records>>,
    /// Seconds between two looks at the file.
    every: Option<u64>,
    /// When it was looked at, and when it had been changed; seconds since 1970.
    checked: AtomicU64,
    changed: AtomicU64,
}

/// A step into a record: the name of a field, or the place in a list.
enum Step {
    Name(String),
    Place(usize),
    PlaceFromEnd(usize),
}

/// What a variable is made of.
enum Field {
    Record {
        source: Option<VariableId>,
        steps: Vec<Step>,
        default: Option<Box<[u8]>>,
    },
    BuildEpoch,
    LastCheck,
    LastChange,
    /// Metadata that no database has.
    Nothing,
}

fn geoip2(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let path = scope.build.conf_path(&node.args[0].text);
    let bad = |e: String| node.problem(format!("geoip2 database \"{}\" cannot be used: {e}", path.display()));
    let bytes = scope.build.files.read(&path).map_err(|e| bad(crate::log::os_error(&e)))?;
    let records = read(bytes).map_err(bad)?;
    let mut every = None;
    for row in node.children().iter().filter(|row| row.name == "auto_reload") {
        let [word] = row.args.as_slice() else { return Err(Problem::invalid_arguments(row)) };
        let seconds = value::seconds(&word.text).filter(|n| *n > 0);
        every = Some(seconds.ok_or_else(|| row.problem(format!("invalid interval \"{}\"", word.as_str())))?);
    }
    let now = clock::wall_seconds().max(0) as u64;
    let database = Arc::new(Database {
        changed: AtomicU64::new(modified(&path).unwrap_or(0)),
        path,
        records: Arc::new(records),
        newer: RwLock::default(),
        every,
        checked: AtomicU64::new(now),
    });
    for row in node.children().iter().filter(|row| row.name != "auto_reload") {
        variable(scope, row, &database)?;
    }
    Ok(())
}

fn read(bytes: Vec<u8>) -> Result<Reader<Vec<u8>>, String> {
    if bytes.len() as u64 > MAX_DATABASE {
        return Err(format!("it has more than {MAX_DATABASE} bytes"));
    }
    Reader::from_source(bytes).map_err(|e| e.to_string())
}

/// When a file was changed, seconds since 1970.
fn modified(path: &Path) -> Option<u64> {
    let time = std::fs::metadata(path).ok()?.modified().ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs())
}

/// `$name [default=TEXT] [source=$variable] path ...;` or `$name metadata FIELD;`
fn variable(scope: &mut Scope<'_, '_>, row: &Node, database: &Arc<Database>) -> Result<(), Problem> {
    let name = variable_name(row, &row.name)?.to_vec();
    let field = match row.args.as_slice() {
        [word, field] if *word == "metadata" => match field.text.as_slice() {
            b"build_epoch" => Field::BuildEpoch,
            b"last_check" => Field::LastCheck,
            b"last_change" => Field::LastChange,
            _ => {
                let text = format!(
                    "unknown metadata \"{}\": \"${}\" will have no value",
                    field.as_str(),
                    String::from_utf8_lossy(&name)
                );
                scope.build.problems.push(row.warning(text));
                Field::Nothing
            }
        },
        words => record(scope, row, words)?,
    };
    let (database, trusts) = (database.clone(), scope.build.subsystem == crate::config::Subsystem::Http);
    let evaluate = Arc::new(move |r: &mut Request| look_up(r, &database, &field, trusts));
    scope.build.variables.define(&name, false, evaluate).map_err(|t| row.problem(t))?;
    Ok(())
}

fn record(scope: &mut Scope<'_, '_>, row: &Node, words: &[conf::Word]) -> Result<Field, Problem> {
    let (mut source, mut default, mut steps) = (None, None, Vec::new());
    for word in words {
        if let Some(text) = word.text.strip_prefix(b"default=") {
            default = Some(text.into());
        } else if let Some(text) = word.text.strip_prefix(b"source=") {
            let named = text.strip_prefix(b"$").filter(|n| !n.is_empty());
            let named = named.ok_or_else(|| row.problem("\"source\" must be a variable".to_owned()))?;
            source = Some(scope.build.variables.index(named));
        } else {
            steps.push(step(&word.as_str()));
        }
    }
    if steps.is_empty() || steps.len() > MAX_PATH {
        return Err(row.problem(format!("a path of 1 to {MAX_PATH} words is missing")));
    }
    Ok(Field::Record { source, steps, default })
}

fn step(word: &str) -> Step {
    match (word.parse::<usize>(), word.strip_prefix('-').map(str::parse::<usize>)) {
        (Ok(place), _) => Step::Place(place),
        (_, Some(Ok(place @ 1..))) => Step::PlaceFromEnd(place - 1),
        _ => Step::Name(word.to_owned()),
    }
}

fn look_up(r: &mut Request, database: &Arc<Database>, field: &Field, trusts: bool) -> Option<Text> {
    let newer = database.newer();
    let records = newer.as_ref().unwrap_or(&database.records);
    match field {
        Field::Nothing => None,
        Field::BuildEpoch => Some(text!(r, "{}", records.metadata().build_epoch)),
        Field::LastCheck => Some(text!(r, "{}", database.checked.load(Ordering::Relaxed))),
        Field::LastChange => Some(text!(r, "{}", database.changed.load(Ordering::Relaxed))),
        Field::Record { source, steps, default } => {
            let found = address(r, *source, trusts).and_then(|ip| find(records, ip, steps));
            match (found, default) {
                (Some(found), _) => Some(r.text(found.as_bytes())),
                (None, Some(default)) => Some(r.text(default)),
                (None, None) => None,
            }
        }
    }
}

fn find(records: &Reader<Vec<u8>>, ip: IpAddr, steps: &[Step]) -> Option<String> {
    let path: Vec<PathElement<'_>> = steps
        .iter()
        .map(|step| match step {
            Step::Name(name) => PathElement::Key(name),
            Step::Place(place) => PathElement::Index(*place),
            Step::PlaceFromEnd(place) => PathElement::IndexFromEnd(*place),
        })
        .collect();
    match records.lookup(ip).ok()?.decode_path::<Value>(&path).ok()?? {
        Value::String(text) => Some(text),
        Value::Bool(yes) => Some(if yes { "1" } else { "0" }.to_owned()),
        Value::Number(number) if number.is_f64() => Some(format!("{:.5}", number.as_f64()?)),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The client's address, that which proxies say they had it from, or what a variable says.
fn address(r: &mut Request, source: Option<VariableId>, trusts: bool) -> Option<IpAddr> {
    if let Some(id) = source {
        let text = r.variable(id)?;
        return std::str::from_utf8(r.get(text)).ok()?.trim().parse().ok();
    }
    let direct = r.client.remote.borrow().clone();
    let start = Plain::of(&direct);
    let snapshot = r.snapshot.clone();
    let trusted = &snapshot.main.geoip2;
    if trusts
        && !trusted.networks.is_empty()
        && let Some(found) = realip::forwarded(r, start, trusted)
    {
        return Some(found.ip());
    }
    match direct {
        crate::connection::Address::Inet(address) => Some(address.ip().to_canonical()),
        crate::connection::Address::Unix(_) => None,
    }
}

impl Database {
    /// What has been read since the configuration was. Has the file looked at, if it is time, by a thread that may wait.
    fn newer(self: &Arc<Self>) -> Option<Records> {
        let every = self.every?;
        let (now, last) = (clock::wall_seconds().max(0) as u64, self.checked.load(Ordering::Relaxed));
        let due = now >= last.saturating_add(every);
        if due && self.checked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let database = self.clone();
            crate::service::spawn(move || async move {
                crate::service::blocking(move || database.reload()).await;
            });
        }
        self.newer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn reload(&self) {
        let Some(changed) = modified(&self.path) else { return };
        if changed == self.changed.load(Ordering::Relaxed) {
            return;
        }
        // One that is being written is no database yet: it is looked at again next time.
        let Ok(bytes) = std::fs::read(&self.path) else { return };
        if let Ok(records) = read(bytes) {
            *self.newer.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(records));
            self.changed.store(changed, Ordering::Relaxed);
        }
    }
}
