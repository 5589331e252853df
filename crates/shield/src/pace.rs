//! Whether a client that is waited for is too slow: bytes over the time that was spent waiting, judged once a second.

/// The least rate that is borne.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinRate {
    /// Bytes a second; 0: any.
    pub bytes_per_s: u64,
    /// How long it may be less, ms.
    pub grace_ms: u64,
}

/// How often it is looked at, ms of waiting.
const LOOK_MS: u64 = 1000;

/// How a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// Well enough.
    Fine,
    /// Below the rate, not yet for the whole grace.
    Slow,
    /// Below the rate for too long.
    TooSlow,
}

/// What is known of one transfer.
///
/// ```text
///  pauses ──wait()──> waiting ──judge(): every second──> Fine: a new window · Slow · TooSlow
///         <──pause()──
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Waited in this window, ms, up to `since_ms`.
    waited_ms: u64,
    /// Since when the client is waited for; 0: it is not.
    since_ms: u64,
    /// Bytes when the window began.
    from: u64,
    /// Waited when it was last looked at, ms.
    looked_ms: u64,
    begun: bool,
}

impl MinRate {
    /// Whether there is one.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.bytes_per_s > 0
    }

    fn look_ms(&self) -> u64 {
        LOOK_MS.min(self.grace_ms).max(1)
    }
}

impl Pace {
    /// A transfer all of whose bytes count, those too that came before anybody waited.
    pub fn of_all() -> Pace {
        Pace { begun: true, ..Pace::default() }
    }

    /// The client is waited for from now on. `bytes`: what has passed so far.
    pub fn wait(&mut self, bytes: impl FnOnce() -> u64, now_ms: u64) {
        if !self.begun {
            (self.begun, self.from) = (true, bytes());
        }
        if self.since_ms == 0 {
            self.since_ms = now_ms.max(1);
        }
    }

    /// It is not waited for any more, for now.
    pub fn pause(&mut self, now_ms: u64) {
        self.waited_ms = self.waited(now_ms);
        self.since_ms = 0;
    }

    fn waited(&self, now_ms: u64) -> u64 {
        let current = if self.since_ms == 0 { 0 } else { now_ms.saturating_sub(self.since_ms) };
        self.waited_ms + current
    }

    /// How long until it is to be judged, ms.
    pub fn left_ms(&self, rule: MinRate, now_ms: u64) -> u64 {
        (self.looked_ms + rule.look_ms()).saturating_sub(self.waited(now_ms))
    }

    /// Judges, when that time has come. `bytes`: what has passed by now.
    pub fn judge(&mut self, rule: MinRate, bytes: u64, now_ms: u64) -> Judged {
        let waited = self.waited(now_ms);
        self.looked_ms = waited;
        if bytes.saturating_sub(self.from).saturating_mul(1000) >= rule.bytes_per_s.saturating_mul(waited) {
            *self = Pace { begun: true, from: bytes, since_ms: now_ms.max(1), ..Pace::default() };
            return Judged::Fine;
        }
        if waited >= rule.grace_ms { Judged::TooSlow } else { Judged::Slow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: MinRate = MinRate { bytes_per_s: 100, grace_ms: 5000 };

    #[test]
    fn a_trickle_is_too_slow_after_its_grace_whenever_its_bytes_come() {
        let (mut pace, mut bytes, mut now) = (Pace::default(), 0, 1000);
        let mut said = Vec::new();
        for _ in 0..100 {
            pace.wait(|| bytes, now);
            now += 300;
            bytes += 10;
            if pace.left_ms(RULE, now) == 0 {
                said.push(pace.judge(RULE, bytes, now));
            }
            pace.pause(now);
            // What the server does meanwhile is not the client's time.
            now += 10_000;
            if said.last() == Some(&Judged::TooSlow) {
                break;
            }
        }
        assert_eq!(said.len(), 5, "{said:?}");
        assert_eq!(said[..4], [Judged::Slow; 4]);
    }

    #[test]
    fn who_keeps_the_rate_goes_on_and_a_stall_begins_anew() {
        let mut pace = Pace::default();
        pace.wait(|| 7, 1);
        assert_eq!(pace.left_ms(RULE, 1), 1000);
        assert_eq!(pace.judge(RULE, 1007, 1001), Judged::Fine);
        assert_eq!(pace.left_ms(RULE, 1001), 1000);
        for second in 1..5 {
            assert_eq!(pace.judge(RULE, 1008, 1001 + second * 1000), Judged::Slow);
        }
        assert_eq!(pace.judge(RULE, 1008, 6001), Judged::TooSlow);
        let mut early = Pace::of_all();
        early.wait(|| 3000, 1);
        assert_eq!(early.judge(RULE, 3000, 5001), Judged::Fine, "what came at once counts");
        let short = MinRate { bytes_per_s: 1, grace_ms: 0 };
        assert_eq!(Pace::default().left_ms(short, 9), 1, "no grace is no busy loop");
    }
}
