//! A request that asks an upstream, as the cache sees it: whether the answer may be kept, its file on the way, what
//! becomes of an old answer that is confirmed. From: `lookup`. The module calls `decide` when the answer's head is out and
//! `keep` when its body is whole; who drops it before has kept nothing.

use super::Status;
use super::entry::Entry;
use super::fill::Fill;
use super::format::{Digest, Head, MAX_ETAG, Times};
use super::judge::{Facts, Judgement, targeted};
use super::lookup::variant;
use super::settings::CacheSettings;
use crate::cache::context::Caching;
use crate::config::complex::Complex;
use crate::log_error;
use crate::request::headers::KnownHeader as K;
use crate::request::{Request, Text};
use crate::upstream::conf::UpstreamConf;
use crate::upstream::settings::{UpstreamSettings, next};
use runtime::clock;
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use wire::http1::response::ResponseHead;

impl Caching {
    /// Judges the head of an answer, which is the upstream's last.
    pub fn judge(&mut self, r: &Request, conf: &CacheSettings, ignored: u32) {
        self.judgement = judge(r, conf, ignored);
        self.cacheable &= self.judgement.allows();
    }

    /// Gives an answer with `status` in the place of the upstream's for as long as that holds (`502`, `504`, and what
    /// `*_intercept_errors` takes).
    pub fn note_error(&mut self, conf: &CacheSettings, status: u16) {
        let valid = self.until(conf, status);
        if let Some(hold) = self.hold.as_mut().filter(|_| self.cacheable && valid > 0) {
            hold.leave.error = Some((status, valid));
        }
    }

    /// Until when an answer with a status is fresh; 0: it is not to be kept.
    fn until(&self, conf: &CacheSettings, status: u16) -> i64 {
        if self.judgement.valid != 0 {
            return self.judgement.valid;
        }
        match conf.valid_for(status) {
            0 => 0,
            seconds => clock::wall_seconds().saturating_add(seconds),
        }
    }

    /// Whether what is too old may be sent for a failure of these kinds (bits of [`next`]).
    pub fn may_be_stale(&self, conf: &CacheSettings, kinds: u32) -> bool {
        let error = if kinds & next::NO_LIVE != 0 { next::ERROR } else { 0 };
        let entry = self.entry.as_ref().filter(|entry| !entry.head().times.must_revalidate);
        entry.is_some() && *conf.use_stale & (kinds | error) != 0
    }
}

/// What the head in `r.attempts` says.
pub fn judge(r: &Request, conf: &CacheSettings, ignored: u32) -> Judgement {
    let now = clock::wall_seconds();
    let text = |span| r.get(r.attempts.text(span));
    let lines = r.attempts.head.headers.iter().map(|h| (h.known, text(h.name), text(h.value)));
    if !*conf.rfc9111 {
        return Judgement::of(lines.map(|(known, _, value)| (known, value)), ignored, now);
    }
    let lines = targeted(lines);
    let mut judgement = Judgement::of(lines.clone(), ignored, now);
    let authorized = r.head.headers.find(K::Authorization).is_some();
    judgement.by_rfc9111(&Facts::of(lines), r.attempts.head.status, authorized, now);
    judgement
}

/// Whether what has been read of a head that came to nothing forbids to keep an answer.
pub fn forbids(head: &ResponseHead, bytes: &[u8], ignored: u32) -> bool {
    let lines = head.headers.iter().map(|h| (h.known, h.value.of(bytes)));
    !Judgement::of(lines, ignored, clock::wall_seconds()).allows()
}

/// How old an answer from the cache is (RFC 9111 section 4.2.3): as old as it was when it came, and as long as it is here since then, or
/// since it was confirmed.
pub fn age(r: &Request, entry: &Entry) -> i64 {
    let lines = r.attempts.head.headers.iter().map(|h| (h.known, r.get(r.attempts.text(h.value))));
    let came = entry.head().times.date;
    let then = if r.attempts.cache == Some(Status::Revalidated) { 0 } else { Facts::of(lines).age_at(came) };
    then.saturating_add((clock::wall_seconds() - came).max(0))
}

/// Decides whether the answer whose head is in `r.attempts` is kept, and begins its file if so. `status`: none for one
/// that is passed on as it comes.
pub fn decide(r: &mut Request, conf: &CacheSettings, upstream: &UpstreamSettings, status: Option<u16>) {
    let (Some(mut caching), Some(status)) = (r.ctx.cache.take(), status) else { return };
    if caching.cacheable && Complex::any_is_true(r, &conf.no_cache) {
        caching.cacheable = false;
    } else if r.attempts.cache == Some(Status::Bypass) && caching.cacheable {
        let _ = caching.enter(r, conf);
    }
    let valid = caching.until(conf, status);
    if !caching.cacheable || valid == 0 || caching.hold.is_none() {
        return;
    }
    caching.begin(r, conf, upstream, (status, valid));
    if caching.fill.is_some() {
        r.ctx.cache = Some(caching);
    }
}

impl Caching {
    fn begin(
        &mut self,
        r: &mut Request,
        conf: &CacheSettings,
        upstream: &UpstreamSettings,
        (status, valid): (u16, i64),
    ) {
        let variant = match &*self.judgement.vary {
            [] => Digest::default(),
            vary => variant(r, &self.main, vary),
        };
        if self.name != self.main && variant != self.name {
            // The answer says no longer what makes its variants: it is the key's own.
            self.name = self.main;
            if self.enter(r, conf).is_err() {
                return;
            }
        }
        let validators = matches!(status, 200 | 206);
        let last_modified = validators.then(|| last_modified(r)).flatten().unwrap_or(-1);
        let Judgement { updating, error, must_revalidate, .. } = self.judgement;
        let times = Times { valid, date: clock::wall_seconds(), last_modified, updating, error, must_revalidate };
        let head = Head {
            times,
            variant,
            etag: if validators { etag(r) } else { b"" },
            vary: &self.judgement.vary,
            key: r.get(self.key),
            answer: &answer(r),
            body: 0,
        };
        self.fill = Some((Fill::new(&self.cache, &upstream.temp_path, &self.name, &head), times, variant));
    }

    /// Whether the answer is being kept.
    pub fn is_filling(&self) -> bool {
        self.fill.as_ref().is_some_and(|(fill, ..)| fill.is_good())
    }

    /// Takes bytes of the answer's body.
    pub fn push(&mut self, r: &Request, bytes: &[u8]) {
        if let Some((fill, ..)) = &mut self.fill {
            fill.push(r, bytes);
        }
    }

    /// Takes bytes of the answer's body; gives the file and the place where they are now, for the client's part of them.
    pub fn push_through(&mut self, r: &Request, bytes: &[u8]) -> Option<(Rc<OwnedFd>, u64)> {
        self.fill.as_mut()?.0.push_through(r, bytes)
    }

    /// The answer is whole.
    pub fn keep(mut self: Box<Self>, r: &Request) {
        let Some((fill, times, variant)) = self.fill.take() else { return };
        let body = fill.body_len();
        let head = Head {
            times,
            variant,
            etag: if matches!(r.attempts.head.status, 200 | 206) { etag(r) } else { b"" },
            vary: &self.judgement.vary,
            key: r.get(self.key),
            answer: &answer(r),
            body,
        };
        let Some(blocks) = fill.finish(r, &self.cache.zone, &head) else { return };
        crate::status::caches::written(&self.cache.zone.counts, r.attempts.cache, body);
        if let Some(mut hold) = self.hold.take() {
            hold.done = true;
            self.cache.zone.index.finish(hold.slot, blocks);
        }
        if super::keeper::is_urgent(&self.cache) {
            super::keeper::wake();
        }
    }
}

/// The upstream says that what is too old has not changed: it is fresh again for as long as the 304 says, or else the
/// entry's own head (`judgement`, of the head that is in `r.attempts` now), or `*_cache_valid`.
pub fn confirm(r: &Request, mut caching: Box<Caching>, conf: &UpstreamConf) {
    let Some(entry) = caching.entry.take() else { return };
    let (ignored, conf, temp) = (*conf.ignore_headers, &conf.cache, &conf.temp_path);
    let first = &caching.judgement;
    let second = judge(r, conf, ignored);
    let says = if first.valid != 0 { first } else { &second };
    let now = clock::wall_seconds();
    let valid = match (says.valid, conf.valid_for(r.attempts.head.status)) {
        (0, 0) => return,
        (0, seconds) => now.saturating_add(seconds),
        (valid, _) => valid,
    };
    let old = entry.head();
    let Judgement { updating, error, must_revalidate, .. } = *says;
    let times = Times { valid, date: now, updating, error, must_revalidate, ..old.times };
    let answer = super::update::merged(old.answer, old.etag, &caching.confirming);
    let head = Head { times, answer: &answer, ..old };
    if answer.len() != old.answer.len() || *answer != *old.answer {
        caching.rewrite(r, temp, &entry, &head);
        return;
    }
    if let Err(f) = entry.confirm(&caching.cache.zone, &caching.name, &head) {
        let text = crate::log::os_error(&f.errno.into());
        log_error!(r, Crit, "{} of a cache file failed ({text})", f.call);
    }
}

fn header(r: &Request, known: K) -> Option<&[u8]> {
    Some(r.get(r.attempts.header(known)?))
}

fn last_modified(r: &Request) -> Option<i64> {
    wire::date::parse_http(header(r, K::LastModified)?)
}

fn etag(r: &Request) -> &[u8] {
    header(r, K::Etag).filter(|e| e.len() <= MAX_ETAG).unwrap_or_default()
}

/// The head in `r.attempts`, as it came.
pub fn raw_head(r: &Request) -> &[u8] {
    let start = r.attempts.head_base;
    r.arena.span(crate::request::arena::Span { start, end: start + r.attempts.head_len })
}

/// The answer's head as it came, but for what its `Connection` names: that was for us alone (RFC 9111 section 3.1).
fn answer(r: &Request) -> Cow<'_, [u8]> {
    let head = raw_head(r);
    let connections = r.attempts.head.headers.iter().filter(|h| h.known == K::Connection);
    let words = connections.flat_map(|h| r.get(r.attempts.text(h.value)).split(|b| *b == b',')).map(<[u8]>::trim_ascii);
    let named: Vec<&[u8]> = words.filter(|w| !w.is_empty() && !is_usual(w)).collect();
    if named.is_empty() {
        return Cow::Borrowed(head);
    }
    let is_named = |line: &[u8]| {
        let name = &line[..memchr::memchr(b':', line).unwrap_or(0)];
        named.iter().any(|word| word.eq_ignore_ascii_case(name.trim_ascii()))
    };
    Cow::Owned(head.split_inclusive(|b| *b == b'\n').filter(|line| !is_named(line)).flatten().copied().collect())
}

/// Words of `Connection` that are no headers, or one that is dropped anyway.
fn is_usual(word: &[u8]) -> bool {
    [&b"close"[..], b"keep-alive", b"upgrade"].iter().any(|usual| word.eq_ignore_ascii_case(usual))
}

/// `$upstream_cache_last_modified`
pub fn known_last_modified(r: &mut Request) -> Option<Text> {
    let time = expired(r)?.head().times.last_modified;
    let date = (time != -1).then(|| wire::date::format_http(time))?;
    Some(r.text(&date))
}

/// `$upstream_cache_etag`
pub fn known_etag(r: &mut Request) -> Option<Text> {
    let etag = expired(r)?.head().etag.to_vec();
    (!etag.is_empty()).then(|| r.text(&etag))
}

fn expired(r: &Request) -> Option<&Entry> {
    if r.attempts.cache != Some(Status::Expired) {
        return None;
    }
    r.ctx.cache.as_ref().filter(|c| c.revalidate)?.entry.as_ref()
}
