//! `limit_req` (nginx's `ngx_http_limit_req_module`): how many requests a second a key may make. A bucket leaks at the
//! zone's rate; what is above is delayed, what is above `burst` refused. Amounts are in thousandths of a request.

use super::limit_shared::{self, Shared};
use super::limits::{Declared, LOG_LEVELS, Zone, Zones, refusal, without_zone, zone_index};
use crate::config::complex::Complex;
use crate::config::setters;
use crate::config::variables::Builtin;
use crate::config::{Build, Directive, Scope, http};
use crate::log::error::Level;
use crate::request::phases::{Handler, Verdict, Waiting};
use crate::request::{Request, Text};
use crate::status::limits::{self, Event};
use crate::zone::store::{Policy, Slot, Store};
use crate::zone::synced::{Contents, Notes};
use crate::zone::{self, Registry};
use crate::{log_error, merged_values};
use conf::{Node, Problem, value};
use runtime::clock::monotonic_ms;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wire::zone_sync;

/// The module's name in the table of zones.
const OWNER: &str = "limit_req";
/// Bytes of an entry in nginx beside its key.
const ENTRY: usize = 80;
/// Longer keys are not limited.
const MAX_KEY: usize = 65535;
/// An entry is not dropped for being idle before this.
const KEEP_MS: i64 = 60_000;
/// When an entry was accounted last, if never.
const NEVER: i64 = i64::MIN / 2;

/// What the module understands.
pub const DIRECTIVES: &[Directive] = &[
    http("limit_req_zone", limit_req_zone),
    http("limit_req", limit_req),
    http("limit_req_log_level", |s, n| setters::one_of(&mut s.level.conf.limit_req.limit_req_log_level, n, LOG_LEVELS)),
    http("limit_req_status", |s, n| refusal(&mut s.level.conf.limit_req.limit_req_status, n)),
    http("limit_req_dry_run", |s, n| setters::flag(&mut s.level.conf.limit_req.limit_req_dry_run, n)),
];

/// The variables of the module.
pub const VARIABLES: &[Builtin] = &[Builtin {
    name: "limit_req_status",
    evaluate: |r| r.ctx.limit_req.status.map(|s| Text::from(s.text())),
    volatile: true,
    assign: None,
}];

merged_values! {
    /// The module's values on one level.
    pub struct Conf {
        /// The limits, in the order of the text.
        limits: Arc<Vec<Limit>> = Arc::default(),
        /// How refusals are logged; delays one level below.
        limit_req_log_level: Level = Level::Error,
        /// What refusals are answered with.
        limit_req_status: u64 = 503,
        /// Only logged, not done.
        limit_req_dry_run: bool = false,
    }
}

/// One `limit_req`.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Index of the zone.
    zone: usize,
    burst: i64,
    /// Excess that is not delayed.
    delay: i64,
}

/// What is kept once for all of `http`.
#[derive(Debug, Default)]
pub struct Main {
    zones: Zones<Leaking>,
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

/// A zone's rate, and what it knows of keys.
#[derive(Debug)]
struct Leaking {
    bucket: Bucket,
    store: Arc<Store<State>>,
    /// Other machines have it, too, by a Redis.
    shared: OnceLock<Arc<Shared>>,
    /// Other nodes have it, too.
    cluster: OnceLock<Arc<InCluster>>,
}

/// A zone as the nodes of a cluster see it: each says how many requests of a key it has let in, and puts those of the others into its own bucket.
#[derive(Debug)]
struct InCluster {
    bucket: Bucket,
    store: Arc<Store<State>>,
    notes: Notes,
}

impl InCluster {
    fn join(name: &[u8], bucket: Bucket, store: Arc<Store<State>>) -> Arc<InCluster> {
        let own = Arc::new(InCluster { bucket, store, notes: Notes::default() });
        let contents: Arc<dyn Contents> = own.clone();
        own.notes.join(zone_sync::Kind::Requests, name, &contents);
        own
    }
}

impl Contents for InCluster {
    /// What has been let in leaks away: a new node begins with empty buckets.
    fn keys(&self) -> Vec<Box<[u8]>> {
        Vec::new()
    }

    fn value(&self, _: &[u8], times: u32) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        zone_sync::Requests(times).write(&mut value);
        Some(value)
    }

    fn take(&self, key: &[u8], value: &[u8]) {
        let Some(zone_sync::Requests(times)) = zone_sync::Requests::read(value) else { return };
        if times == 0 || key.len() > MAX_KEY {
            return;
        }
        let bucket = Bucket { now_ms: monotonic_ms() as i64, ..self.bucket };
        self.store.enter(key, &bucket, |state, is_new| bucket.pour(state, is_new, i64::from(times)));
    }

    fn count(&self) -> u64 {
        self.store.count() as u64
    }
}

static STORES: Registry<State> = Registry::new();

/// What a zone knows of a key.
#[derive(Debug)]
struct State {
    last_ms: i64,
    excess: i64,
    /// Requests that wait for the verdict of a later limit: while there are any, the entry stays.
    count: u32,
}

impl Default for State {
    fn default() -> Self {
        State { last_ms: NEVER, excess: 0, count: 0 }
    }
}

/// For another process: what all zones know.
pub fn leave(say: &mut dyn FnMut(Vec<u8>)) {
    STORES.leave(OWNER.as_bytes(), say, |state, w| {
        // Clocks are the machine's, which both processes read.
        w.signed(state.last_ms);
        w.signed(state.excess);
    });
}

/// What another process said of a zone.
pub fn settle_zone(zone: &[u8], rows: &[u8]) {
    let bucket = Bucket { rate: 0, now_ms: monotonic_ms() as i64 };
    STORES.settle(zone, rows, &bucket, |r| Some(State { last_ms: r.signed()?, excess: r.signed()?, count: 0 }));
}

/// The arithmetic of a zone at one moment.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Leaks so much in a second.
    rate: i64,
    now_ms: i64,
}

impl Bucket {
    /// What is in the bucket with one more request.
    fn excess(&self, state: &State) -> i64 {
        self.left(state).saturating_add(1000).max(0)
    }

    fn left(&self, state: &State) -> i64 {
        let elapsed = (self.now_ms - state.last_ms).max(0);
        state.excess.saturating_sub(self.rate.saturating_mul(elapsed) / 1000)
    }

    /// Puts a request in.
    fn account(&self, state: &mut State, excess: i64) {
        state.excess = excess;
        state.last_ms = state.last_ms.max(self.now_ms);
    }

    /// Puts requests in that another node has let in. The first one into an empty bucket leaves it empty.
    fn pour(&self, state: &mut State, is_new: bool, times: i64) {
        let more = times.saturating_mul(1000);
        let excess = if is_new { more - 1000 } else { self.left(state).saturating_add(more).max(0) };
        self.account(state, excess);
    }

    /// Of all machines together so much is in the bucket.
    fn catch_up(&self, state: &mut State, excess: i64) {
        if excess > self.left(state) {
            (state.excess, state.last_ms) = (excess, state.last_ms.max(self.now_ms));
        }
    }

    /// How long a request waits, ms.
    fn delay(&self, excess: i64, free: i64) -> u64 {
        ((excess - free).max(0) as u64).saturating_mul(1000) / self.rate as u64
    }
}

impl Policy<State> for Bucket {
    fn is_pinned(&self, state: &State) -> bool {
        state.count > 0
    }

    fn is_idle(&self, state: &State) -> bool {
        self.now_ms - state.last_ms >= KEEP_MS && self.left(state) <= 0
    }
}

/// `$limit_req_status`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Passed,
    Delayed,
    Rejected,
    DelayedDryRun,
    RejectedDryRun,
}

impl Status {
    fn text(self) -> &'static str {
        match self {
            Status::Passed => "PASSED",
            Status::Delayed => "DELAYED",
            Status::Rejected => "REJECTED",
            Status::DelayedDryRun => "DELAYED_DRY_RUN",
            Status::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// What is known for a client's request, its subrequests included.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    status: Option<Status>,
    delay_ms: u64,
}

impl Context {
    /// Whether nobody has asked.
    pub fn is_blank(&self) -> bool {
        self.status.is_none() && self.delay_ms == 0
    }
}

fn limit_req_zone(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let key = Complex::compile(scope.build, &node.args[0])?;
    let (mut zone, mut rate, mut redis, mut sync) = (None, 1000, None, false);
    for word in &node.args[1..] {
        if let Some(text) = word.text.strip_prefix(b"zone=") {
            zone = Some(zone::name_and_size(node, word, text)?);
        } else if let Some(text) = word.text.strip_prefix(b"rate=") {
            rate = read_rate(text).ok_or_else(|| node.problem(format!("invalid rate \"{}\"", word.as_str())))?;
        } else if let Some(text) = word.text.strip_prefix(b"redis=") {
            redis = Some(text);
        } else if *word.text == *b"sync" {
            sync = true;
        } else {
            return Err(node.problem(format!("invalid parameter \"{}\"", word.as_str())));
        }
    }
    let Some((name, size)) = zone.filter(|(name, _)| !name.is_empty()) else { return Err(without_zone(node)) };
    let index = zone_index(scope, node, (name, size), OWNER, zones)?;
    let bucket = Bucket { rate, now_ms: 0 };
    zones(scope.build).declare(index, node, key, |key| {
        let store = STORES.open(name, key, size, ENTRY);
        Leaking { bucket, store, shared: OnceLock::new(), cluster: OnceLock::new() }
    })?;
    let Some(store) = own(scope.build, index).map(|own| own.store.clone()) else { return Ok(()) };
    if sync {
        if redis.is_some() {
            return Err(node.problem("a zone is shared by \"redis=\" or by \"sync\", not by both".to_owned()));
        }
        let cluster = InCluster::join(name, bucket, store.clone());
        if let Some(own) = own(scope.build, index) {
            let _ = own.cluster.set(cluster);
        }
    }
    let Some(upstream) = redis else { return Ok(()) };
    let shared = limit_shared::of_rate(scope, node, (name, upstream), rate, move |key, excess| {
        let bucket = Bucket { now_ms: monotonic_ms() as i64, ..bucket };
        store.look(key, |state| bucket.catch_up(state, excess));
    });
    if let Some(own) = own(scope.build, index) {
        let _ = own.shared.set(shared);
    }
    Ok(())
}

fn own<'b>(build: &'b mut Build<'_>, index: usize) -> Option<&'b Leaking> {
    Some(&zones(build)[index].declared.as_ref()?.own)
}

/// `10r/s`, `30r/m`, in thousandths of a request a second.
pub(super) fn read_rate(text: &[u8]) -> Option<i64> {
    let (digits, scale) = match text {
        [digits @ .., b'r', b'/', b's'] => (digits, 1),
        [digits @ .., b'r', b'/', b'm'] => (digits, 60),
        digits => (digits, 1),
    };
    positive(digits).map(|n| n.saturating_mul(1000) / scale)
}

fn positive(text: &[u8]) -> Option<i64> {
    value::number(text).map(|n| n as i64).filter(|n| *n > 0)
}

fn zones<'b>(build: &'b mut Build<'_>) -> &'b mut Zones<Leaking> {
    &mut build.main.limit_req.zones
}

fn limit_req(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let (mut zone, mut burst, mut delay) = (None, 0i64, 0i64);
    for word in &node.args {
        let invalid = |what: &str| node.problem(format!("invalid {what} \"{}\"", word.as_str()));
        if let Some(name) = word.text.strip_prefix(b"zone=") {
            zone = Some(name);
        } else if let Some(text) = word.text.strip_prefix(b"burst=") {
            burst = positive(text).ok_or_else(|| invalid("burst value"))?;
        } else if let Some(text) = word.text.strip_prefix(b"delay=") {
            delay = positive(text).ok_or_else(|| invalid("delay value"))?;
        } else if *word == "nodelay" {
            delay = i64::MAX;
        } else {
            return Err(invalid("parameter"));
        }
    }
    let name = zone.ok_or_else(|| without_zone(node))?;
    let zone = zone_index(scope, node, (name, 0), OWNER, zones)?;
    let limits = Arc::make_mut(scope.level.conf.limit_req.limits.entry());
    if limits.iter().any(|l| l.zone == zone) {
        return Err(setters::duplicate(node));
    }
    limits.push(Limit { zone, burst: burst.saturating_mul(1000), delay: delay.saturating_mul(1000) });
    Ok(())
}

/// What a limit says of a request.
enum Answer {
    /// Not limited: there is no key.
    Free,
    /// It fits; accounted, unless it is held by its slot until the last limit has agreed.
    Fits(Option<Slot>, i64),
    Exceeds(i64),
    NoRoom,
}

/// Decides; a delay is left to [`DELAY`].
pub fn handler(r: &mut Request) -> Verdict {
    if r.conf().limit_req.limits.is_empty() || r.ctx.limit_req.status.is_some() {
        return Verdict::Decline;
    }
    let snapshot = r.snapshot.clone();
    let conf = &snapshot.location(r.location).conf.limit_req;
    let zones = &snapshot.main.limit_req.zones;
    let now_ms = monotonic_ms() as i64;
    let mut held: Vec<(usize, Slot)> = Vec::new();
    let mut worst: Option<Delay> = None;
    let last = conf.limits.len() - 1;
    let mut last_fits = false;
    for (number, limit) in conf.limits.iter().enumerate() {
        let zone = &zones[limit.zone];
        let Some(declared) = &zone.declared else { continue };
        match ask(r, limit, declared, now_ms, number == last) {
            Answer::Free => {}
            Answer::Fits(Some(slot), _) => held.push((number, slot)),
            Answer::Fits(None, excess) => {
                worst = Some(Delay::of(limit, &declared.own, excess));
                last_fits = true;
            }
            refused => {
                release(conf, zones, &held);
                return refuse(r, conf, zone, refused);
            }
        }
    }
    for (number, slot) in held.iter().rev() {
        let limit = &conf.limits[*number];
        let Some(declared) = &zones[limit.zone].declared else { continue };
        let excess = settle(&declared.own, *slot, now_ms);
        let delay = Delay::of(limit, &declared.own, excess);
        if worst.as_ref().is_none_or(|w| delay.ms > w.ms) {
            worst = Some(delay);
        }
    }
    let delayed = worst.as_ref().filter(|d| d.ms > 0).map(|d| d.zone);
    for number in held.iter().map(|(number, _)| *number).chain(last_fits.then_some(last)) {
        let zone = conf.limits[number].zone;
        let event = if delayed == Some(zone) { Event::delayed(*conf.limit_req_dry_run) } else { Event::Passed };
        let Some(declared) = &zones[zone].declared else { continue };
        declared.own.store.counts.count(event as usize);
        if let Some(shared) = declared.own.shared.get()
            && let Some(key) = declared.key(r, MAX_KEY)
        {
            shared.note(r.get(key), 1);
        }
        if let Some(cluster) = declared.own.cluster.get()
            && let Some(key) = declared.key(r, MAX_KEY)
        {
            cluster.notes.note(r.get(key));
        }
    }
    match worst {
        None => {}
        Some(delay) if delay.ms == 0 => r.ctx.limit_req.status = Some(Status::Passed),
        Some(delay) => postpone(r, conf, &zones[delay.zone], &delay),
    }
    Verdict::Decline
}

fn ask(r: &mut Request, limit: &Limit, zone: &Declared<Leaking>, now_ms: i64, last: bool) -> Answer {
    let Some(key) = zone.key(r, MAX_KEY) else { return Answer::Free };
    let bucket = Bucket { now_ms, ..zone.own.bucket };
    let done = zone.own.store.enter(r.get(key), &bucket, |state, new| {
        // The first request of a key finds an empty bucket and leaves it empty.
        let excess = if new { 0 } else { bucket.excess(state) };
        if excess > limit.burst {
            return Err(excess);
        }
        if last {
            bucket.account(state, excess);
        } else {
            state.count += 1;
        }
        Ok(excess)
    });
    if let Some((_, Ok(excess) | Err(excess))) = done {
        log_error!(r, Debug, "limit_req: {}.{:03} of {}", excess / 1000, excess % 1000, limit.burst / 1000);
    }
    match done {
        None => Answer::NoRoom,
        Some((_, Err(excess))) => Answer::Exceeds(excess),
        Some((slot, Ok(excess))) => Answer::Fits((!last).then_some(slot), excess),
    }
}

/// Accounts a request that all limits have agreed to. Gives its excess, which others may have changed meanwhile.
fn settle(zone: &Leaking, slot: Slot, now_ms: i64) -> i64 {
    let bucket = Bucket { now_ms, ..zone.bucket };
    zone.store.at(slot, |state| {
        let excess = bucket.excess(state);
        bucket.account(state, excess);
        state.count -= 1;
        excess
    })
}

fn release(conf: &Conf, zones: &Zones<Leaking>, held: &[(usize, Slot)]) {
    for (number, slot) in held {
        if let Some(declared) = &zones[conf.limits[*number].zone].declared {
            declared.own.store.at(*slot, |state| state.count -= 1);
        }
    }
}

/// A wait that a limit asks for.
struct Delay {
    ms: u64,
    excess: i64,
    zone: usize,
}

impl Delay {
    fn of(limit: &Limit, zone: &Leaking, excess: i64) -> Delay {
        Delay { ms: zone.bucket.delay(excess, limit.delay), excess, zone: limit.zone }
    }
}

fn refuse(r: &mut Request, conf: &Conf, zone: &Zone<Leaking>, answer: Answer) -> Verdict {
    let dry_run = *conf.limit_req_dry_run;
    let name = String::from_utf8_lossy(&zone.name);
    match answer {
        Answer::Exceeds(excess) => {
            let level = *conf.limit_req_log_level;
            if r.logs(level) {
                let (dry, whole, part) = (dry_text(dry_run), excess / 1000, excess % 1000);
                r.write_log(
                    level,
                    format_args!("limiting requests{dry}, excess: {whole}.{part:03} by zone \"{name}\""),
                );
            }
        }
        _ => log_error!(r, Alert, "could not allocate node in limit_req zone \"{name}\""),
    }
    if let Some(declared) = &zone.declared {
        declared.own.store.counts.count(Event::rejected(dry_run) as usize);
    }
    if dry_run {
        r.ctx.limit_req.status = Some(Status::RejectedDryRun);
        return Verdict::Decline;
    }
    r.ctx.limit_req.status = Some(Status::Rejected);
    Verdict::Status(*conf.limit_req_status as u16)
}

fn postpone(r: &mut Request, conf: &Conf, zone: &Zone<Leaking>, delay: &Delay) {
    let dry_run = *conf.limit_req_dry_run;
    let level = match *conf.limit_req_log_level {
        Level::Error => Level::Warn,
        Level::Warn => Level::Notice,
        _ => Level::Info,
    };
    if r.logs(level) {
        let (dry, whole, part) = (dry_text(dry_run), delay.excess / 1000, delay.excess % 1000);
        let name = String::from_utf8_lossy(&zone.name);
        r.write_log(level, format_args!("delaying request{dry}, excess: {whole}.{part:03}, by zone \"{name}\""));
    }
    if dry_run {
        r.ctx.limit_req.status = Some(Status::DelayedDryRun);
        return;
    }
    r.ctx.limit_req = Context { status: Some(Status::Delayed), delay_ms: delay.ms };
}

fn dry_text(dry_run: bool) -> &'static str {
    if dry_run { ", dry run" } else { "" }
}

/// Waits as long as [`handler`] has said.
pub const DELAY: Handler = Handler::Later(|r| r.ctx.limit_req.delay_ms > 0, |r| Box::pin(wait(r)) as Waiting<'_>);

async fn wait(r: &mut Request) -> Verdict {
    let delay = Duration::from_millis(std::mem::take(&mut r.ctx.limit_req.delay_ms));
    crate::request::flow::delay(r, delay).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_thousandths() {
        assert_eq!(read_rate(b"10r/s"), Some(10_000));
        assert_eq!(read_rate(b"1r/m"), Some(16));
        assert_eq!(read_rate(b"2"), Some(2000));
        assert_eq!(read_rate(b"0r/s"), None);
        assert_eq!(read_rate(b"r/s"), None);
        assert_eq!(read_rate(b"1r/h"), None);
    }

    #[test]
    fn a_bucket_leaks() {
        let bucket = Bucket { rate: 2000, now_ms: 1_000 };
        let mut state = State::default();
        assert_eq!(bucket.excess(&state), 0, "a bucket that nothing was put in is empty");
        bucket.account(&mut state, 0);
        assert_eq!(bucket.excess(&state), 1000);
        bucket.account(&mut state, 1000);
        let later = Bucket { now_ms: 1_250, ..bucket };
        assert_eq!(later.excess(&state), 1500);
        assert_eq!(later.delay(1500, 0), 750);
        assert_eq!(later.delay(1500, 1000), 250);
        assert_eq!(later.delay(1500, i64::MAX), 0);
        let mut caught_up = State { excess: 1000, last_ms: 1_000, count: 0 };
        later.catch_up(&mut caught_up, 400);
        assert_eq!((caught_up.excess, caught_up.last_ms), (1000, 1_000), "what is known here stays");
        later.catch_up(&mut caught_up, 3000);
        assert_eq!((caught_up.excess, caught_up.last_ms), (3000, 1_250));
        let earlier = Bucket { now_ms: 0, ..bucket };
        assert_eq!(earlier.excess(&state), 2000, "another thread's clock may be ahead");
        assert!(!later.is_idle(&state));
        assert!(Bucket { now_ms: 62_000, ..bucket }.is_idle(&state));
    }
}
