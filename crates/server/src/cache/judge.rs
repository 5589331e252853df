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
            Some(at) if at >= now => self.valid = at,
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
        if value == b"*" {
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
    fn variants() {
        assert_eq!(judge(&[(K::Vary, "Accept"), (K::Vary, "X-A")]).vary, b"Accept, X-A");
        assert!(!judge(&[(K::Vary, "*")]).allows());
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
