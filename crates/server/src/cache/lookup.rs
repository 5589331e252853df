//! What the cache says to a request (nginx's `ngx_http_upstream_cache` and `ngx_http_file_cache_open`), and what a request
//! that asks the upstream does for the cache meanwhile.
//!
//! ```text
//!  look ─┬─> Serve: HIT; STALE or UPDATING, while somebody else asks the upstream
//!        ├─> Answer: the upstream failed lately
//!        └─> Ask: MISS, EXPIRED, BYPASS ─> the upstream's answer ─┬─> decide ─> Fill ─> keep
//!                   (with a lock: one asks, the others wait)      ├─> confirm: REVALIDATED
//!                                                                 └─> the old one after all: STALE
//! ```

use super::entry::{self, Entry, NoEntry};
use super::format::{Digest, Head, Times};
use super::index::{Ask, Known, Leave, Refused};
use super::judge::Judgement;
use super::purge::{self, Noted, Style};
use super::settings::{CacheSettings, Which};
use super::{Cache, CacheRef, Status, key};
use crate::cache::context::Change;
use crate::cache::context::{Caching, Hold};
use crate::config::complex::Complex;
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::phases::{self, Content, Verdict};
use crate::request::subrequest::{self, Mode};
use crate::request::{Method, Request, Text};
use crate::upstream::exchange::poll_client_gone;
use crate::upstream::settings::{UpstreamSettings, next};
use runtime::clock;
use runtime::timer::Timer;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;

/// What nginx keeps before the answer's head in a file, beside the key: the buffer for a head has to hold it too.
const NGINX_START: u64 = 343;
/// ... and so much of the head.
const HEAD_ROOM: u64 = 256;

/// What the first look gives.
pub enum Look {
    /// An answer at once.
    Now(Outcome),
    /// It takes longer: [`open`], perhaps waiting.
    Open(Box<Caching>),
    /// What the key names is to be taken out.
    Purge(Arc<Cache>, Text, Style),
}

/// What to do with a request.
#[derive(Debug)]
pub enum Outcome {
    /// Ask the upstream; `r.ctx.cache` says what for, if the cache has anything to do with it.
    Ask,
    /// Send this.
    Serve(Entry),
    /// Answer with this.
    End(Verdict),
}

/// Looks a request up. `own_key` makes the key where no directive gives one.
pub fn look(
    r: &mut Request,
    conf: &CacheSettings,
    upstream: &UpstreamSettings,
    module: &str,
    own_key: impl FnOnce(&mut Request) -> Text,
) -> Look {
    let purging = conf.purge.asked(r);
    if let Some(Err(status)) = purging {
        return Look::Now(Outcome::End(Verdict::Status(status)));
    }
    let changes = purging.is_none()
        && *conf.rfc9111
        && !conf.keeps(r.head.method)
        && !matches!(r.head.method, Method::Options | Method::Trace);
    if purging.is_none() && !conf.keeps(r.head.method) && !changes {
        return Look::Now(Outcome::Ask);
    }
    let cache = match which(r, conf) {
        Ok(Some(cache)) => cache,
        Ok(None) => return Look::Now(Outcome::Ask),
        Err(verdict) => return Look::Now(Outcome::End(verdict)),
    };
    let key = match &*conf.key {
        Some(key) => key.eval(r),
        None => own_key(r),
    };
    if r.has_fault() {
        return Look::Now(Outcome::End(Verdict::Status(500)));
    }
    if let Some(Ok(style)) = purging {
        return Look::Purge(cache.shared(), key, style);
    }
    let least = NGINX_START + r.get(key).len() as u64 + HEAD_ROOM;
    let room = *upstream.buffer_size;
    if least > room {
        let least = least.next_multiple_of(1024);
        log_error!(
            r,
            Error,
            "{module}_buffer_size {room} is not enough for cache key, it should be increased to at least {least}"
        );
        return Look::Now(Outcome::Ask);
    }
    let main = key::digest(r.get(key));
    if changes {
        r.ctx.cache_change = Some(Box::new(Change { cache, key, main }));
        return Look::Now(Outcome::Ask);
    }
    if !conf.bypass.is_empty() && Complex::any_is_true(r, &conf.bypass) {
        r.attempts.cache = Some(Status::Bypass);
        r.ctx.cache = Some(Box::new(Caching::new(cache, key, main, conf)));
        return Look::Now(Outcome::Ask);
    }
    if let Some(entry) = fresh(r, &cache, key, main) {
        r.attempts.cache = Some(Status::Hit);
        return Look::Now(Outcome::Serve(entry));
    }
    r.attempts.cache = Some(Status::Miss);
    Look::Open(Box::new(Caching::new(cache, key, main, conf)))
}

/// What the cache has under a key is too old from now on: the entry itself and the variant that the request would get at once, the others
/// (`Vary`) as soon as their files are found (RFC 9111 section 4.4). Given back: the cache for which
/// [`purge::changed`] is to be called then.
pub fn invalidate(r: &mut Request, change: &Change) -> Option<Arc<Cache>> {
    let (mut name, mut begins) = (change.main, false);
    for _ in 0..2 {
        let Ok(entry) = open_file(r, &change.cache, change.key, &name) else { break };
        let head = entry.head();
        let times = Times { valid: 0, updating: 0, error: 0, ..head.times };
        if let Err(f) = entry.confirm(&change.cache.zone, &name, &Head { times, ..head }) {
            let text = crate::log::os_error(&f.errno.into());
            log_error!(r, Crit, "{} of a cache file failed ({text})", f.call);
        }
        let head = entry.head();
        if head.vary.is_empty() || name != change.main {
            break;
        }
        let noted = purge::note_changed(&change.cache, r.get(change.key));
        begins = noted == Noted::Begin;
        if noted == Noted::Full {
            log_error!(
                r,
                Warn,
                "the variants of \"{}\" stay in the cache: too many change at once",
                String::from_utf8_lossy(r.get(change.key))
            );
        }
        name = variant(r, &change.main, head.vary);
    }
    begins.then(|| change.cache.shared())
}

fn which(r: &mut Request, conf: &CacheSettings) -> Result<Option<CacheRef>, Verdict> {
    let snapshot = r.snapshot.clone();
    let number = match &*conf.cache {
        Which::Off => return Ok(None),
        Which::Zone(zone) => *zone.1.get().expect("zones are found when levels are merged"),
        Which::Named(name) => {
            let name = name.eval(r);
            let name = r.get(name);
            if matches!(name, b"" | b"off") {
                return Ok(None);
            }
            match snapshot.main.cache.caches.iter().position(|c| *c.zone.name == *name) {
                Some(n) => n,
                None => {
                    log_error!(r, Error, "cache \"{}\" not found", String::from_utf8_lossy(name));
                    return Err(Verdict::Status(500));
                }
            }
        }
    };
    r.attempts.cache_number = Some(number);
    Ok(Some(CacheRef::new(snapshot, number)))
}

/// The usual case, with one short look into the index: the entry is there and fresh. Nothing is held.
fn fresh(r: &mut Request, cache: &CacheRef, key: Text, main: Digest) -> Option<Entry> {
    let now = clock::wall_seconds();
    let expire = (clock::wall_ms() as i64).saturating_add(cache.inactive_ms);
    let mut name = main;
    for _ in 0..2 {
        if !cache.zone.index.touch(&name, expire) {
            return None;
        }
        let entry = open_file(r, cache, key, &name).ok()?;
        let head = entry.head();
        if head.vary.is_empty() || variant(r, &main, head.vary) == head.variant {
            return (head.times.valid >= now).then_some(entry);
        }
        name = variant(r, &main, head.vary);
    }
    None
}

fn open_file(r: &mut Request, cache: &CacheRef, key: Text, name: &Digest) -> Result<Entry, NoEntry> {
    let mut path = std::mem::take(&mut r.scratch);
    path.clear();
    cache.zone.write_path(name, &mut path);
    let entry = entry::open(&path, r.get(key));
    r.scratch = path;
    entry
}

/// The name of the variant that the request asks for.
pub(super) fn variant(r: &Request, main: &Digest, vary: &[u8]) -> Digest {
    key::variant(main, vary, |name| {
        let name = name.to_vec();
        let lines = r.head.headers.lines().iter();
        lines.filter(move |l| r.arena.span(l.name).eq_ignore_ascii_case(&name)).map(|l| r.arena.span(l.value))
    })
}

/// What was found under a name.
enum UnderName {
    Entry(Entry),
    /// Nothing of use.
    Nothing,
    /// Nothing that may be replaced, or nothing that is worth it.
    Leave,
    /// Another variant.
    Variant(Digest),
}

/// The general case (`ngx_http_file_cache_open`).
pub async fn open(
    r: &mut Request,
    conf: &CacheSettings,
    upstream: &UpstreamSettings,
    mut caching: Box<Caching>,
) -> Outcome {
    match find_or_wait(r, conf, upstream, &mut caching).await {
        Outcome::Serve(entry) if r.attempts.cache == Some(Status::Stale) => {
            caching.entry = Some(entry.clone());
            caching.update_behind(r);
            Outcome::Serve(entry)
        }
        Outcome::Ask => {
            if caching.cacheable && is_beyond(r, conf) {
                caching.cacheable = false;
            }
            r.ctx.cache = Some(caching);
            Outcome::Ask
        }
        other => other,
    }
}

/// Holds the entry, and looks at it; perhaps waits for another request that has its lock, and looks again.
async fn find_or_wait(
    r: &mut Request,
    conf: &CacheSettings,
    upstream: &UpstreamSettings,
    caching: &mut Caching,
) -> Outcome {
    let mut patience = Timer::new();
    let mut waited = false;
    let mut give_up = conf.lock_timeout.is_zero();
    loop {
        let Ok(known) = caching.enter(r, conf) else { return Outcome::Ask };
        if let Known::Error(status) = known {
            r.attempts.cache = Some(Status::Hit);
            return Outcome::End(Verdict::Status(status));
        }
        match caching.find(r, conf, known) {
            UnderName::Entry(entry) => return caching.take(r, conf, entry),
            UnderName::Variant(name) => {
                caching.hold = None;
                caching.name = name;
                continue;
            }
            UnderName::Leave => {
                caching.cacheable = false;
                return Outcome::Ask;
            }
            UnderName::Nothing if !*conf.lock || caching.lock(conf) => return Outcome::Ask,
            UnderName::Nothing => {}
        }
        if give_up {
            caching.cacheable = false;
            return Outcome::Ask;
        }
        if !std::mem::replace(&mut waited, true) {
            patience.set(*conf.lock_timeout);
        }
        match caching.wait(r, upstream, &mut patience).await {
            Waited::Done => {}
            Waited::TimedOut => {
                log_error!(r, Info, "cache lock timeout");
                give_up = true;
            }
            Waited::ClientGone => {
                log_error!(r, Info, "client prematurely closed connection");
                r.flow.aborted = true;
                return Outcome::End(Verdict::Status(499));
            }
        }
    }
}

/// `*_cache_max_range_offset`: a part so far into the answer is not worth fetching all of it.
fn is_beyond(r: &Request, conf: &CacheSettings) -> bool {
    let (Some(limit), Some(range)) = (*conf.max_range_offset, r.head.headers.find(K::Range)) else { return false };
    if limit == 0 {
        return true;
    }
    let range = r.get(range);
    let Some(ranges) = range.get(..6).filter(|p| p.eq_ignore_ascii_case(b"bytes=")).map(|_| &range[6..]) else {
        return false;
    };
    let ranges = ranges.trim_ascii_start();
    let digits = ranges.iter().take_while(|b| b.is_ascii_digit()).count();
    match ranges {
        [] => false,
        [b'-', ..] => true,
        _ => conf::value::number(&ranges[..digits]).is_some_and(|offset| offset >= limit),
    }
}

enum Waited {
    Done,
    TimedOut,
    ClientGone,
}

impl Caching {
    fn new(cache: CacheRef, key: Text, main: Digest, conf: &CacheSettings) -> Caching {
        Caching {
            cache,
            revalidate: *conf.revalidate,
            key,
            main,
            name: main,
            hold: None,
            cold: true,
            cacheable: true,
            entry: None,
            stale_error: false,
            confirming: Vec::new(),
            judgement: Judgement::default(),
            fill: None,
        }
    }

    /// Enters the index. On `Err` there is no room or no place; the answer is not kept.
    pub(super) fn enter(&mut self, r: &Request, conf: &CacheSettings) -> Result<Known, ()> {
        let now = clock::wall_ms() as i64;
        let min_uses = u32::try_from(*conf.min_uses).unwrap_or(u32::MAX);
        let ask = Ask { min_uses, now, expire: now.saturating_add(self.cache.inactive_ms) };
        self.hold = None;
        // Asked before the index: what the loader notes meanwhile is looked for on the disk.
        self.cold = self.cache.zone.cold.load(Acquire);
        match self.cache.zone.index.enter(&self.name, &ask) {
            Ok((slot, known)) => {
                let leave = Leave { forget: min_uses <= 1, ..Leave::default() };
                self.hold = Some(Hold { cache: self.cache.clone(), slot, leave, done: false });
                Ok(known)
            }
            Err(refused) => {
                if refused == Refused::Full {
                    let name = String::from_utf8_lossy(&self.cache.zone.name);
                    log_error!(r, Alert, "could not allocate node in cache keys zone \"{name}\"");
                }
                self.cacheable = false;
                Err(())
            }
        }
    }

    /// Looks at the file, if there may be one.
    fn find(&mut self, r: &mut Request, conf: &CacheSettings, known: Known) -> UnderName {
        let cold = self.cold;
        let (try_file, without) = match known {
            Known::Scarce | Known::Error(_) => return UnderName::Leave,
            Known::New if *conf.min_uses > 1 => (cold, UnderName::Leave),
            Known::New => (cold, UnderName::Nothing),
            Known::Wanted { exists } => (exists, UnderName::Nothing),
        };
        if !try_file {
            return without;
        }
        let entry = match open_file(r, &self.cache, self.key, &self.name) {
            Ok(entry) => entry,
            Err(NoEntry::Missing) => return without,
            Err(bad) => return self.complain(r, bad),
        };
        let head = entry.head();
        if !head.vary.is_empty() {
            let wanted = variant(r, &self.main, head.vary);
            if wanted != head.variant && self.name == self.main {
                return UnderName::Variant(wanted);
            }
            if wanted != head.variant {
                return self.complain(r, NoEntry::Bad("has incorrect vary hash"));
            }
        }
        if cold && let Some(hold) = &self.hold {
            self.cache.zone.index.found(hold.slot, self.cache.zone.blocks_of(entry.stat_blocks));
        }
        UnderName::Entry(entry)
    }

    /// A file that is no entry is replaced by the next answer.
    fn complain(&self, r: &Request, why: NoEntry) -> UnderName {
        let mut path = Vec::new();
        self.cache.zone.write_path(&self.name, &mut path);
        let path = String::from_utf8_lossy(&path);
        match why {
            NoEntry::Bad(text) => log_error!(r, Crit, "cache file \"{path}\" {text}"),
            NoEntry::OtherVersion => log_error!(r, Info, "cache file \"{path}\" version mismatch"),
            NoEntry::Missing => {}
            NoEntry::Failed(f) => {
                let text = crate::log::os_error(&f.errno.into());
                log_error!(r, Crit, "{} \"{path}\" failed ({text})", f.call);
                return UnderName::Leave;
            }
        }
        UnderName::Nothing
    }

    /// What to do with an entry that is there.
    fn take(&mut self, r: &mut Request, conf: &CacheSettings, entry: Entry) -> Outcome {
        let times = entry.head().times;
        let now = clock::wall_seconds();
        if times.valid >= now {
            r.attempts.cache = Some(Status::Hit);
            return Outcome::Serve(entry);
        }
        let may_be_stale = !times.must_revalidate;
        self.stale_error = may_be_stale && times.valid.saturating_add(times.error.into()) >= now;
        let within = times.valid.saturating_add(times.updating.into()) >= now;
        let may_serve = may_be_stale && (*conf.use_stale & next::UPDATING != 0 || within);
        let mine = self.hold.as_mut().is_some_and(|hold| {
            hold.leave.updating = self.cache.zone.index.begin_update(hold.slot);
            hold.leave.updating.is_some()
        });
        if may_serve && (!mine || *conf.background_update) {
            r.attempts.cache = Some(if mine { Status::Stale } else { Status::Updating });
            return Outcome::Serve(entry);
        }
        r.attempts.cache = Some(Status::Expired);
        self.entry = Some(entry);
        Outcome::Ask
    }

    /// Takes the lock; false: somebody else has it.
    fn lock(&mut self, conf: &CacheSettings) -> bool {
        let Some(hold) = &mut self.hold else { return true };
        let age = conf.lock_age.as_millis() as u64;
        hold.leave.updating = self.cache.zone.index.try_lock(hold.slot, clock::monotonic_ms(), age);
        hold.leave.updating.is_some()
    }

    /// Waits for whoever has the lock.
    async fn wait(&self, r: &mut Request, upstream: &UpstreamSettings, patience: &mut Timer) -> Waited {
        let Some(hold) = &self.hold else { return Waited::Done };
        let watch = !*upstream.ignore_client_abort;
        let late = Timer::new();
        poll_fn(|cx| {
            let now = clock::monotonic_ms();
            let Some(until) = self.cache.zone.index.wait(hold.slot, now, cx.waker()) else {
                return Poll::Ready(Waited::Done);
            };
            late.set(Duration::from_millis(until.saturating_sub(now)));
            if late.poll_expired(cx).is_ready() {
                return Poll::Ready(Waited::Done);
            }
            if patience.poll_expired(cx).is_ready() {
                return Poll::Ready(Waited::TimedOut);
            }
            if watch && poll_client_gone(r, cx).is_ready() {
                return Poll::Ready(Waited::ClientGone);
            }
            Poll::Pending
        })
        .await
    }

    /// `*_cache_background_update`: the same request once more, for the cache alone.
    fn update_behind(self: Box<Self>, r: &mut Request) {
        let mut child = subrequest::duplicate(r, r.downstream.child(Mode::Discard));
        child.copy_shared(r);
        child.attempts.cache = Some(Status::Expired);
        child.ctx.cache = Some(self);
        let (done, update) = oneshot::channel();
        r.ctx.cache_update = Some(update);
        runtime::spawn(async move {
            let verdict = match child.flow.content_handler {
                Some(Content::Later(handler)) => handler(&mut child).await,
                Some(Content::Begins(handler)) => handler(&mut child).verdict().await,
                Some(Content::Proxy) => crate::modules::proxy::run(&mut child).await,
                Some(Content::Now(_)) | None => Verdict::Answered,
            };
            phases::conclude(&mut child, verdict).await;
            crate::request::end(&mut child);
            let _ = done.send(());
        });
    }
}
