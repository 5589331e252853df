//! `limit_conn` (nginx's `ngx_http_limit_conn_module`): how many requests of a key may be worked on at a time. Each
//! takes a place in the zone and gives it back when it is done.

use super::limit_shared::{self, Shared};
use super::limits::{Declared, LOG_LEVELS, Zone, Zones, refusal, without_zone, zone_index};
use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Scope, both, http};
use crate::log::error::Level;
use crate::request::phases::Verdict;
use crate::request::{Request, Text};
use crate::snapshot::ThreadSnapshot;
use crate::status::limits::{self, Event};
use crate::zone::store::{Policy, Slot, Store};
use crate::zone::{self, Registry};
use crate::{log_error, merged_values};
use conf::{Node, Problem, value};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// The module's names in the table of zones: a zone of `http` is none of `stream`.
const OWNERS: [&str; 2] = ["limit_conn", "stream_limit_conn"];
/// Bytes of an entry in nginx beside its key.
const ENTRY: usize = 36;
/// Longer keys are not limited.
const MAX_KEY: usize = 255;
/// Places of a request that has come from another process.
const MAX_PLACES: usize = 1024;
/// The highest limit that nginx takes.
const MAX_CONNECTIONS: u64 = 65535;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    both("limit_conn_zone", limit_conn_zone),
    both("limit_conn", limit_conn),
    both("limit_conn_log_level", |s, n| {
        setters::one_of(&mut s.level.conf.limit_conn.limit_conn_log_level, n, LOG_LEVELS)
    }),
    http("limit_conn_status", |s, n| refusal(&mut s.level.conf.limit_conn.limit_conn_status, n)),
    both("limit_conn_dry_run", |s, n| setters::flag(&mut s.level.conf.limit_conn.limit_conn_dry_run, n)),
];

/// The variables of the module.
pub const VARIABLES: &[Builtin] = &[Builtin {
    name: "limit_conn_status",
    evaluate: |r| r.ctx.limit_conn.status.map(|s| Text::from(s.text())),
    volatile: true,
    assign: None,
}];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The limits, in the order of the text.
        limits: Arc<Vec<Limit>> = Arc::default(),
        /// How refusals are logged.
        limit_conn_log_level: Level = Level::Error,
        /// What refusals are answered with.
        limit_conn_status: u64 = 503,
        /// Only logged, not done.
        limit_conn_dry_run: bool = false,
    }
}

/// One `limit_conn`.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Index of the zone.
    zone: usize,
    connections: u32,
}

/// What is kept once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    zones: Zones<Counted>,
}

/// What a zone knows of keys.
#[derive(Debug)]
struct Counted {
    store: Arc<Store<u32>>,
    /// Other machines have it, too.
    shared: OnceLock<Arc<Shared>>,
}

impl Main {
    /// What each zone has said of requests, by name.
    pub fn counts(&self) -> impl Iterator<Item = (&[u8], &Arc<limits::Counts>)> {
        self.zones.declared().map(|(name, own)| (name, &own.store.counts))
    }

    /// The zones with their states.
    pub fn kept(&self) -> impl Iterator<Item = super::Kept> {
        self.zones.keyed().map(|(name, key, own)| super::Kept::new(name, key, &own.store))
    }

    /// Pages of each zone, in use and free.
    pub fn pages(&self) -> impl Iterator<Item = (&[u8], usize, usize)> {
        self.zones.declared().map(|(name, own)| (name, own.store.pages().0, own.store.pages().1))
    }
}

static STORES: Registry<u32> = Registry::new();

/// An entry lives as long as somebody has a place.
struct Pinned;

impl Policy<u32> for Pinned {
    fn is_pinned(&self, _: &u32) -> bool {
        true
    }

    fn is_idle(&self, _: &u32) -> bool {
        false
    }
}

/// `$limit_conn_status`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Passed,
    Rejected,
    RejectedDryRun,
}

impl Status {
    fn text(self) -> &'static str {
        match self {
            Status::Passed => "PASSED",
            Status::Rejected => "REJECTED",
            Status::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// What is known for a client's request, its subrequests included.
#[derive(Debug, Default)]
pub struct Context {
    status: Option<Status>,
    /// One limit is usual and costs no allocation.
    first: Option<Place>,
    more: Vec<Place>,
}

impl Context {
    /// Gives the places back: the request is done.
    pub fn release(&mut self) {
        self.first = None;
        self.more.clear();
    }

    /// Whether it holds nothing, and nobody has asked.
    pub fn is_blank(&self) -> bool {
        self.status.is_none() && self.first.is_none() && self.more.is_empty()
    }

    /// For a subrequest that outlives its parent: it is counted already, and holds nothing.
    pub fn without_places(&self) -> Context {
        Context { status: self.status, ..Context::default() }
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.first.iter().chain(&self.more)
    }

    fn hold(&mut self, place: Place) {
        match self.first {
            None => self.first = Some(place),
            Some(_) => self.more.push(place),
        }
    }
}

impl Context {
    /// For another process: its places, by zones and keys.
    pub fn write(&self, w: &mut heir::Writer) {
        let places: Vec<_> = self.places().filter_map(|place| Some((place, place.zone()?))).collect();
        w.number(places.len() as u64);
        for (place, zone) in places {
            w.bytes(&place.snapshot.main.limit_conn.zones[place.zone].name);
            w.bytes(&zone.own.store.key_at(place.slot));
        }
    }

    /// Takes the places that a request had in another process: it is under way, whatever the limit.
    pub fn read(r: &mut heir::Reader<'_>, snapshot: &Rc<ThreadSnapshot>) -> Option<Context> {
        let mut context = Context::default();
        for (name, key) in r.list(MAX_PLACES, |r| Some((r.bytes()?, r.bytes()?)))? {
            let zones = &snapshot.main.limit_conn.zones;
            let Some((zone, own)) = zones.find(name) else { continue };
            if let Some((slot, ())) = own.store.enter(key, &Pinned, |taken, _| *taken += 1) {
                context.status = Some(Status::Passed);
                context.hold(Place { snapshot: snapshot.clone(), zone, slot });
            }
        }
        Some(context)
    }
}

/// A place in a zone, given back when dropped.
struct Place {
    snapshot: Rc<ThreadSnapshot>,
    zone: usize,
    slot: Slot,
}

impl Place {
    fn zone(&self) -> Option<&Declared<Counted>> {
        self.snapshot.main.limit_conn.zones[self.zone].declared.as_ref()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(zone) = self.zone() {
            zone.own.store.leave(self.slot, |taken| {
                *taken -= 1;
                *taken == 0
            });
        }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({}, {:?})", self.zone, self.slot)
    }
}

fn limit_conn_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let key = Complex::compile(scope.build, &node.args[0])?;
    let word = &node.args[1];
    let Some(text) = word.text.strip_prefix(b"zone=") else {
        return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str())));
    };
    let (name, size) = zone::name_and_size(node, word, text)?;
    if name.is_empty() {
        return Err(without_zone(node));
    }
    let owner = OWNERS[scope.build.subsystem.is_stream() as usize];
    let upstream = match node.args.get(2) {
        None => None,
        Some(word) => Some(word.text.strip_prefix(b"redis=").ok_or_else(|| Problem::invalid_parameter(word))?),
    };
    let index = zone_index(scope, node, (name, size), owner, zones)?;
    zones(scope.build).declare(index, node, key, |key| {
        let store = STORES.open(name, key, size, ENTRY);
        Counted { store, shared: OnceLock::new() }
    })?;
    let Some(upstream) = upstream else { return Ok(()) };
    let Some(store) = own(scope.build, index).map(|own| own.store.clone()) else { return Ok(()) };
    let taken = move |key: &[u8]| store.look(key, |taken| *taken).unwrap_or(0);
    let shared = limit_shared::of_places(scope, node, (name, upstream), taken);
    if let Some(own) = own(scope.build, index) {
        let _ = own.shared.set(shared);
    }
    Ok(())
}

fn own<'b>(build: &'b mut Build<'_>, index: usize) -> Option<&'b Counted> {
    Some(&zones(build)[index].declared.as_ref()?.own)
}

fn zones<'b>(build: &'b mut Build<'_>) -> &'b mut Zones<Counted> {
    &mut build.main.limit_conn.zones
}

fn limit_conn(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let owner = OWNERS[scope.build.subsystem.is_stream() as usize];
    let zone = zone_index(scope, node, (&node.args[0].text, 0), owner, zones)?;
    if scope.level.conf.limit_conn.limits.iter().any(|l| l.zone == zone) {
        return Err(setters::duplicate(node));
    }
    let word = &node.args[1];
    let connections = match value::number(&word.text) {
        None | Some(0) => {
            return Err(node.problem(format!("invalid number of connections \"{}\"", word.as_str())));
        }
        Some(n) if n > MAX_CONNECTIONS => {
            return Err(node.problem("connection limit must be less 65536".to_owned()));
        }
        Some(n) => n as u32,
    };
    Arc::make_mut(scope.level.conf.limit_conn.limits.entry()).push(Limit { zone, connections });
    Ok(())
}

/// What a limit says of a request.
enum Answer {
    /// Not limited: there is no key.
    Free,
    Fits(Slot),
    Exceeds,
    NoRoom,
}

/// The preaccess handler.
pub fn handler(r: &mut Request) -> Verdict {
    if r.conf().limit_conn.limits.is_empty() || r.ctx.limit_conn.status.is_some() {
        return Verdict::Decline;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.limit_conn;
    for limit in conf.limits.iter() {
        let zone = &snapshot.main.limit_conn.zones[limit.zone];
        let Some(declared) = &zone.declared else { continue };
        match ask(r, limit, declared) {
            Answer::Free => {}
            Answer::Fits(slot) => {
                r.ctx.limit_conn.status = Some(Status::Passed);
                r.ctx.limit_conn.hold(Place { snapshot: snapshot.clone(), zone: limit.zone, slot });
            }
            refused => return refuse(r, conf, zone, refused),
        }
    }
    for place in r.ctx.limit_conn.places() {
        place.zone().inspect(|zone| zone.own.store.counts.count(Event::Passed as usize));
    }
    Verdict::Decline
}

fn ask(r: &mut Request, limit: &Limit, zone: &Declared<Counted>) -> Answer {
    let Some(key) = zone.key(r, MAX_KEY) else { return Answer::Free };
    let mut left = limit.connections;
    if let Some(shared) = zone.own.shared.get() {
        // Who is refused wants to know of the others, too.
        shared.note(r.get(key), 0);
        left = left.saturating_sub(shared.others(r.get(key)));
        if left == 0 {
            // Where nobody here has a place there is to be no entry: nobody would give it back.
            return Answer::Exceeds;
        }
    }
    let done = zone.own.store.enter(r.get(key), &Pinned, |taken, _| {
        let fits = *taken < left;
        *taken += fits as u32;
        fits
    });
    match done {
        None => Answer::NoRoom,
        Some((_, false)) => Answer::Exceeds,
        Some((slot, true)) => Answer::Fits(slot),
    }
}

fn refuse(r: &mut Request, conf: &Conf, zone: &Zone<Counted>, answer: Answer) -> Verdict {
    let dry_run = *conf.limit_conn_dry_run;
    let name = String::from_utf8_lossy(&zone.name);
    match answer {
        Answer::Exceeds => {
            let level = *conf.limit_conn_log_level;
            if r.logs(level) {
                let dry = if dry_run { ", dry run," } else { "" };
                r.write_log(level, format_args!("limiting connections{dry} by zone \"{name}\""));
            }
        }
        _ => log_error!(r, Crit, "could not allocate node in limit_conn_zone \"{name}\""),
    }
    if let Some(declared) = &zone.declared {
        declared.own.store.counts.count(Event::rejected(dry_run) as usize);
    }
    r.ctx.limit_conn.release();
    if dry_run {
        r.ctx.limit_conn.status = Some(Status::RejectedDryRun);
        return Verdict::Decline;
    }
    r.ctx.limit_conn.status = Some(Status::Rejected);
    Verdict::Status(*conf.limit_conn_status as u16)
}
