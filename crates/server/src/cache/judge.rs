//! What an upstream's answer says about keeping it: `Cache-Control`, `Expires`, `X-Accel-Expires`, `Set-Cookie`, `Vary`
//! (nginx's `ngx_http_upstream_process_*`). Headers count in the order in which they come. Knows no request.

use super::format::MAX_VARY;
use crate::upstream::settings::ignore;
use wire::http1::known::KnownHeader as K;

/// What the headers come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Until when it is fresh, seconds since 1970; 0: the headers do not say.
    pub valid: i64,
    /// For how long after that it may be used while it is updated, seconds.
    pub updating: u32,
    /// For how long after that it may be used while the upstream fails, seconds.
    pub error: u32,
    /// Something forbids to keep it, whatever else is said.
    pub forbidden: bool,
    /// `no-cache` and its like, or a date that has passed: unless `X-Accel-Expires` says otherwise.
    no_cache: bool,
    expired: bool,
    accel_expires: bool,
    /// It must not be sent when it is too old (with `*_cache_rfc9111`).
    pub must_revalidate: bool,
    /// The `Vary` lines as one.
    pub vary: Vec<u8>,
}

impl Judgement {
    /// Judges headers. `ignored`: bits of [`ignore`]; `now`: seconds since 1970.
    pub fn of<'h>(headers: impl Iterator<Item = (K, &'h [u8])>, ignored: u32, now: i64) -> Judgement {
        let mut j = Judgement::default();
        for (name, value) in headers {
            let bit = match name {
                K::SetCookie => ignore::SET_COOKIE,
                K::CacheControl => ignore::CACHE_CONTROL,
                K::Expires => ignore::EXPIRES_HEADER,
                K::XAccelExpires => ignore::EXPIRES,
                K::Vary => ignore::VARY,
                _ => continue,
            };
            // Even ignored it takes precedence.
            let ignored = ignored & bit != 0;
            match name {
                K::XAccelExpires if std::mem::replace(&mut j.accel_expires, true) => {}
                _ if ignored => {}
                K::SetCookie => j.forbidden = true,
                K::CacheControl => j.cache_control(value, now),
                K::Expires => j.expires(value, now),
                K::XAccelExpires => j.accel(value, now),
                _ => j.vary(value),
            }
        }
        j
    }

    /// Whether the headers let it be kept.
    pub fn allows(&self) -> bool {
        !self.forbidden && !self.no_cache && !self.expired
    }

    /// What RFC 9111 has beyond nginx, of the same headers: an answer has spent some of its time on the way, and one to a request with
    /// `Authorization` is kept only if it says that it may be, one with `must-understand` only if its status is known.
    pub fn by_rfc9111(&mut self, headers: &Facts, status: u16, authorized: bool, now: i64) {
        if self.accel_expires {
            return;
        }
        self.forbidden |= authorized && !headers.shareable;
        self.forbidden |= headers.must_understand && !is_understood(status);
        self.must_revalidate = headers.must_revalidate;
        if self.valid == 0 || !self.allows() {
            return;
        }
        // Section 4.2.3: how old it was when it came.
        let date = headers.date.unwrap_or(now);
        let age = headers.age_at(now);
        // Section 4.2.1. What `Expires` says is meant by the clock of `Date`.
        let lifetime = if headers.has_max_age { self.valid - now } else { self.valid.saturating_sub(date) };
        self.valid = now.saturating_add(lifetime).saturating_sub(age);
        self.expired |= self.valid <= now || headers.expires_elsewhere && !headers.has_max_age;
    }

    fn cache_control(&mut self, value: &[u8], now: i64) {
        if self.valid == 0 || !self.accel_expires {
            if ["no-cache", "no-store", "private"].iter().any(|w| after(value, w).is_some()) {
                self.no_cache = true;
                return;
            }
            if let Some(seconds) = after(value, "s-maxage=").or_else(|| after(value, "max-age=")) {
                match delta(seconds) {
                    None => {
                        self.forbidden = true;
                        return;
                    }
                    Some(0) => {
                        self.no_cache = true;
                        return;
                    }
                    Some(n) => {
                        self.valid = now.saturating_add(n);
                        self.expired = false;
                    }
                }
            }
        }
        for (word, both) in [("stale-while-revalidate=", true), ("stale-if-error=", false)] {
            let Some(seconds) = after(value, word) else { continue };
            let Some(n) = delta(seconds) else {
                self.forbidden = true;
                return;
            };
            self.error = u32::try_from(n).unwrap_or(u32::MAX);
            if both {
                self.updating = self.error;
            }
        }
    }

    fn expires(&mut self, value: &[u8], now: i64) {
        if self.valid != 0 {
            return;
        }
        match wire::date::parse_http(value) {
            // One of this very second is no time to live.
            Some(at) if at > now => self.valid = at,
            _ => self.expired = true,
        }
    }

    fn accel(&mut self, value: &[u8], now: i64) {
        let (at, from) = match value.strip_prefix(b"@") {
            Some(digits) => (digits, 0),
            None => (value, now),
        };
        let Some(n) = conf::value::number(at).and_then(|n| i64::try_from(n).ok()) else { return };
        if n == 0 && from != 0 {
            self.forbidden = true;
            return;
        }
        self.valid = from.saturating_add(n);
        (self.no_cache, self.expired) = (false, false);
    }

    fn vary(&mut self, value: &[u8]) {
        if value.split(|b| *b == b',').any(|name| name.trim_ascii() == b"*") {
            self.forbidden = true;
            return;
        }
        if !self.vary.is_empty() {
            self.vary.extend_from_slice(b", ");
        }
        self.vary.extend_from_slice(value);
        self.forbidden |= self.vary.len() > MAX_VARY;
    }
}

/// What answers say beside what nginx looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `Date`, seconds since 1970.
    pub date: Option<i64>,
    /// `Age`, seconds.
    pub age: Option<i64>,
    /// `max-age` or `s-maxage`
    has_max_age: bool,
    /// Whoever may ask may have it (RFC 9111 section 3.5).
    shareable: bool,
    /// It must not be sent when it is too old (section 5.2.2.2, and for shared caches 5.2.2.8 and 5.2.2.10).
    must_revalidate: bool,
    /// Who does not know its status must not keep it (section 5.2.2.3).
    must_understand: bool,
    /// `Expires` in another time than GMT: nobody knows when that is (section 5.3).
    expires_elsewhere: bool,
}

impl Facts {
    /// How old an answer was that came at that time (section 4.2.3).
    pub fn age_at(&self, came: i64) -> i64 {
        self.age.unwrap_or(0).max(self.date.map_or(0, |date| came.saturating_sub(date))).max(0)
    }

    /// Of an answer's headers.
    pub fn of<'h>(headers: impl Iterator<Item = (K, &'h [u8])>) -> Facts {
        let mut facts = Facts::default();
        for (name, value) in headers {
            match name {
                K::Expires => {
                    let zone = value.trim_ascii().rsplit(|b| *b == b' ').next().unwrap_or_default();
                    facts.expires_elsewhere |= value.contains(&b',') && !zone.eq_ignore_ascii_case(b"gmt");
                }
                K::Date => facts.date = wire::date::parse_http(value),
                // The first of several (section 5.1).
                K::Age => facts.age = facts.age.or_else(|| delta(value.split(|b| *b == b',').next().unwrap_or(value))),
                K::CacheControl => {
                    facts.has_max_age |= after(value, "max-age=").or_else(|| after(value, "s-maxage=")).is_some();
                    let words = ["public", "must-revalidate", "s-maxage="];
                    facts.shareable |= words.iter().any(|w| after(value, w).is_some());
                    let words = ["must-revalidate", "proxy-revalidate", "s-maxage="];
                    facts.must_revalidate |= words.iter().any(|w| after(value, w).is_some());
                    facts.must_understand |= after(value, "must-understand").is_some();
                }
                _ => {}
            }
        }
        facts
    }
}

/// Statuses whose meaning for a cache is known: those of RFC 9110, and what else IANA has.
fn is_understood(status: u16) -> bool {
    matches!(status, 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=417 | 421..=426 | 428 | 429 | 431 | 451 | 500..=508 | 510 | 511)
}

/// The headers of an answer as a cache of a site's own is to see them: `CDN-Cache-Control` stands for `Cache-Control` and
/// `Expires`, which are for others then (RFC 9213).
pub fn targeted<'h>(
    lines: impl Iterator<Item = (K, &'h [u8], &'h [u8])> + Clone,
) -> impl Iterator<Item = (K, &'h [u8])> + Clone {
    let is_target = |name: &[u8]| name.eq_ignore_ascii_case(b"cdn-cache-control");
    let found = lines.clone().any(|(_, name, value)| is_target(name) && !value.trim_ascii().is_empty());
    lines.filter_map(move |(known, name, value)| match known {
        K::Other if found && is_target(name) => Some((K::CacheControl, value)),
        K::CacheControl | K::Expires if found => None,
        known => Some((known, value)),
    })
}

/// What follows a word, wherever it stands and in any case.
fn after<'v>(value: &'v [u8], word: &str) -> Option<&'v [u8]> {
    let at = value.windows(word.len()).position(|w| w.eq_ignore_ascii_case(word.as_bytes()))?;
    Some(&value[at + word.len()..])
}

/// Seconds, up to the next separator. None: it is no number. What is too large is as large as can be.
fn delta(text: &[u8]) -> Option<i64> {
    let mut n: i64 = 0;
    for b in text.iter().take_while(|b| !matches!(b, b',' | b';' | b' ')) {
        if !b.is_ascii_digit() {
            return None;
        }
        n = n.saturating_mul(10).saturating_add(i64::from(b - b'0'));
    }
    Some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn judge(headers: &[(K, &str)]) -> Judgement {
        Judgement::of(headers.iter().map(|(k, v)| (*k, v.as_bytes())), 0, NOW)
    }

    #[test]
    fn ages() {
        let valid = |headers: &[(K, &str)]| Some(judge(headers)).filter(Judgement::allows).map(|j| j.valid - NOW);
        assert_eq!(valid(&[(K::CacheControl, "public, max-age=60")]), Some(60));
        assert_eq!(valid(&[(K::CacheControl, "max-age=60, s-maxage=5")]), Some(5));
        assert_eq!(valid(&[(K::CacheControl, "Max-Age=60; x")]), Some(60));
        for forbidding in ["max-age=0", "no-cache", "no-store", "PRIVATE", "max-age=x", "max-age=60, private"] {
            assert_eq!(valid(&[(K::CacheControl, forbidding)]), None, "{forbidding}");
        }
        assert_eq!(valid(&[(K::Expires, "Thu, 01 Jan 1970 00:00:01 GMT")]), None);
        assert_eq!(valid(&[(K::Expires, "Fri, 31 Dec 2038 00:00:00 GMT")]), Some(2_177_366_400 - NOW));
        assert_eq!(valid(&[(K::Expires, "0"), (K::CacheControl, "max-age=5")]), Some(5));
        assert_eq!(valid(&[(K::CacheControl, "max-age=5"), (K::Expires, "0")]), Some(5));
        assert_eq!(valid(&[(K::XAccelExpires, "7"), (K::CacheControl, "no-cache")]), Some(7));
        assert_eq!(valid(&[(K::CacheControl, "no-cache"), (K::XAccelExpires, "7")]), Some(7));
        assert_eq!(valid(&[(K::XAccelExpires, "@1000009"), (K::CacheControl, "max-age=5")]), Some(9));
        assert_eq!(valid(&[(K::XAccelExpires, "0"), (K::CacheControl, "max-age=5")]), None);
        assert_eq!(valid(&[(K::SetCookie, "a=b"), (K::CacheControl, "max-age=5")]), None);
        assert!(judge(&[(K::CacheControl, "max-age=99999999999999999999")]).valid > i64::MAX / 2);
    }

    #[test]
    fn time_on_the_way_counts() {
        let valid = |headers: &[(K, &str)], authorized| {
            let lines = || headers.iter().map(|(k, v)| (*k, v.as_bytes()));
            let mut j = Judgement::of(lines(), 0, NOW);
            j.by_rfc9111(&Facts::of(lines()), 200, authorized, NOW);
            Some(j).filter(Judgement::allows).map(|j| j.valid - NOW)
        };
        let date = |at: i64| String::from_utf8_lossy(&wire::date::format_http(at)).into_owned();
        assert_eq!(valid(&[(K::CacheControl, "max-age=60"), (K::Age, "20")], false), Some(40));
        assert_eq!(valid(&[(K::CacheControl, "max-age=60"), (K::Age, "60")], false), None);
        assert_eq!(
            valid(&[(K::CacheControl, "max-age=60"), (K::Date, &date(NOW - 50)), (K::Age, "20")], false),
            Some(10)
        );
        let elsewhere = date(NOW + 60).replace("GMT", "AEST");
        assert_eq!(valid(&[(K::Expires, &elsewhere)], false), None);
        assert_eq!(valid(&[(K::Expires, &elsewhere), (K::CacheControl, "max-age=9")], false), Some(9));
        // An origin whose clock is an hour ahead.
        assert_eq!(valid(&[(K::Date, &date(NOW + 3600)), (K::Expires, &date(NOW + 3660))], false), Some(60));
        assert_eq!(valid(&[(K::CacheControl, "max-age=60")], true), None);
        assert_eq!(valid(&[(K::CacheControl, "public, max-age=60")], true), Some(60));
        assert_eq!(valid(&[(K::XAccelExpires, "60"), (K::Age, "20")], true), Some(60));
        let lines = [
            (K::CacheControl, &b"cache-control"[..], &b"no-store"[..]),
            (K::Other, b"CDN-Cache-Control", b"max-age=9"),
        ];
        assert_eq!(targeted(lines.into_iter()).collect::<Vec<_>>(), [(K::CacheControl, &b"max-age=9"[..])]);
    }

    #[test]
    fn stale_answers() {
        let j = judge(&[(K::CacheControl, "max-age=1, stale-while-revalidate=20, stale-if-error=30")]);
        assert_eq!((j.updating, j.error), (20, 30));
        let j = judge(&[(K::CacheControl, "max-age=1, stale-while-revalidate=20")]);
        assert_eq!((j.updating, j.error), (20, 20));
        assert!(!judge(&[(K::CacheControl, "max-age=1, stale-if-error=x")]).allows());
        let j = judge(&[(K::XAccelExpires, "5"), (K::CacheControl, "max-age=1, stale-if-error=30")]);
        assert_eq!((j.valid, j.error), (NOW + 5, 30));
    }

    #[test]
    fn answers_that_must_not_be_sent_when_they_are_too_old() {
        let must = |value: &str| {
            let lines = || [(K::CacheControl, value.as_bytes())].into_iter();
            let mut j = Judgement::of(lines(), 0, NOW);
            j.by_rfc9111(&Facts::of(lines()), 200, false, NOW);
            j.must_revalidate
        };
        assert!(must("max-age=1, must-revalidate") && must("Proxy-Revalidate, max-age=1") && must("s-maxage=1"));
        assert!(!must("max-age=1, stale-if-error=5"));
        assert!(
            !judge(&[(K::CacheControl, "max-age=1, must-revalidate")]).must_revalidate,
            "nginx does not look at it"
        );
    }

    #[test]
    fn what_is_to_be_understood() {
        let keeps = |value: &str, status| {
            let lines = || [(K::CacheControl, value.as_bytes())].into_iter();
            let mut j = Judgement::of(lines(), 0, NOW);
            j.by_rfc9111(&Facts::of(lines()), status, false, NOW);
            j.allows()
        };
        assert!(keeps("max-age=60, must-understand", 404) && keeps("max-age=60", 599));
        assert!(!keeps("max-age=60, must-understand", 599));
    }

    #[test]
    fn variants() {
        assert_eq!(judge(&[(K::Vary, "Accept"), (K::Vary, "X-A")]).vary, b"Accept, X-A");
        for any in ["*", "Accept, *", "* ,Accept"] {
            assert!(!judge(&[(K::Vary, any)]).allows(), "{any}");
        }
        assert!(!judge(&[(K::Vary, &"x".repeat(MAX_VARY + 1))]).allows());
    }

    #[test]
    fn ignored_headers() {
        let headers = [(K::SetCookie, &b"a"[..]), (K::CacheControl, b"no-cache"), (K::Expires, b"0"), (K::Vary, b"*")];
        let all = ignore::SET_COOKIE | ignore::CACHE_CONTROL | ignore::EXPIRES_HEADER | ignore::VARY;
        assert_eq!(Judgement::of(headers.into_iter(), all, NOW), Judgement::default());
        assert!(!Judgement::of(headers.into_iter(), all & !ignore::VARY, NOW).allows());
    }
}
