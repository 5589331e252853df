//! Passive health: when failures set a peer aside and when it may be tried again (`max_fails`, `fail_timeout`).

/// A peer's `max_fails` and `fail_timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    /// Failures within `fail_timeout_s` that set the peer aside; 0 for never.
    pub max_fails: u32,
    /// Seconds for counting failures, and for how long the peer is then set aside.
    pub fail_timeout_s: u64,
}

impl Default for FailurePolicy {
    /// nginx's defaults: one failure, ten seconds.
    fn default() -> Self {
        FailurePolicy { max_fails: 1, fail_timeout_s: 10 }
    }
}

/// A peer's failures. Times are seconds of one clock; the server keeps the three numbers in atomics.
///
/// ```text
///   good --max_fails failures--> set aside --fail_timeout--> on trial (one request) --success--> good
///                                    ^                            |
///                                    +----------- failure --------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Failures counted.
    pub count: u32,
    /// The last failure.
    pub accessed_s: u64,
    /// The last failure, or the start of a later trial or counting period.
    pub checked_s: u64,
}

impl Failures {
    /// For [`Peers::failed`](crate::Peers::failed).
    pub fn set_aside(&self, policy: FailurePolicy, now_s: u64) -> bool {
        policy.max_fails > 0
            && self.count >= policy.max_fails
            && now_s.saturating_sub(self.checked_s) <= policy.fail_timeout_s
    }

    /// The peer was chosen. After `fail_timeout` this begins a trial: no other request is sent meanwhile.
    pub fn chosen(&mut self, policy: FailurePolicy, now_s: u64) {
        if now_s.saturating_sub(self.checked_s) > policy.fail_timeout_s {
            self.checked_s = now_s;
        }
    }

    /// A try failed. True if the peer is now set aside (worth a line: `upstream server temporarily disabled`).
    pub fn failed(&mut self, policy: FailurePolicy, now_s: u64) -> bool {
        self.count = self.count.saturating_add(1);
        self.accessed_s = now_s;
        self.checked_s = now_s;
        policy.max_fails > 0 && self.count >= policy.max_fails
    }

    /// A try succeeded. Failures are forgotten if it began in a later period than they were counted in.
    pub fn succeeded(&mut self) {
        if self.accessed_s < self.checked_s {
            self.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_after_fail_timeout() {
        let policy = FailurePolicy { max_fails: 2, fail_timeout_s: 10 };
        let mut peer = Failures::default();
        peer.chosen(policy, 100);
        assert!(!peer.failed(policy, 100));
        assert!(!peer.set_aside(policy, 100));
        assert!(peer.failed(policy, 101));
        assert!(peer.set_aside(policy, 101) && peer.set_aside(policy, 111));
        assert!(!peer.set_aside(policy, 112));
        peer.chosen(policy, 112);
        assert!(peer.set_aside(policy, 112), "one request is on trial, the others wait");
        peer.succeeded();
        assert_eq!(peer.count, 0);
    }

    #[test]
    fn success_in_the_same_period_forgets_nothing() {
        let policy = FailurePolicy { max_fails: 2, fail_timeout_s: 10 };
        let mut peer = Failures::default();
        peer.failed(policy, 100);
        peer.succeeded();
        assert!(peer.failed(policy, 105));
    }

    #[test]
    fn max_fails_zero_never_sets_aside() {
        let policy = FailurePolicy { max_fails: 0, fail_timeout_s: 10 };
        let mut peer = Failures::default();
        assert!(!peer.failed(policy, 1) && !peer.set_aside(policy, 1));
    }
}
