//! Whether a peer takes requests, in one word that all threads read with one load: what health checks found, what outlier
//! ejection and the operator decided. Of the configuration's own `down` and `drain` it knows nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Checks that a group may have.
pub const MAX_CHECKS: usize = 16;

/// The peer failed these checks.
const FAILING: u64 = (1 << MAX_CHECKS) - 1;
/// These checks are `mandatory` and have not passed yet.
const UNPROVEN: u64 = FAILING << MAX_CHECKS;
/// Set aside as an outlier.
const EJECTED: u64 = 1 << 32;
/// Where what the operator said begins: 0 nothing, else a [`Role`] and one.
const ROLE_AT: u32 = 33;
const ROLE: u64 = 0b11 << ROLE_AT;
/// Where the checks begin that are `persistent`: a peer that has passed them is as good in the next process.
const PERSISTENT_AT: u32 = 35;
const PERSISTENT: u64 = FAILING << PERSISTENT_AT;

/// What is meant for a peer, by the configuration or the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Takes requests.
    #[default]
    Up,
    /// `drain`: takes the requests of its sessions, no others.
    Drain,
    /// `down`
    Down,
}

/// See the top of the file.
#[derive(Debug, Default)]
pub struct AtomicAvailability(AtomicU64);

/// An availability at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability(u64);

impl AtomicAvailability {
    /// As it is now.
    #[inline]
    pub fn now(&self) -> Availability {
        Availability(self.0.load(Relaxed))
    }

    /// All of it, for another process.
    pub fn bits(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// What another process found, unless something was found here meanwhile. Checks that are `mandatory` have to pass here as well, unless
    /// they have passed there and are `persistent` in both.
    pub fn take_over(&self, bits: u64) {
        let by_check = |word: u64, at: u32| word >> at & FAILING;
        let passed = by_check(bits, PERSISTENT_AT) & !by_check(bits, MAX_CHECKS as u32);
        let _ = self.0.fetch_update(Relaxed, Relaxed, |word| {
            if word & !(UNPROVEN | PERSISTENT) != 0 {
                return None;
            }
            let unproven = by_check(word, MAX_CHECKS as u32) & !(passed & by_check(word, PERSISTENT_AT));
            Some(bits & !(UNPROVEN | PERSISTENT) | word & PERSISTENT | unproven << MAX_CHECKS)
        });
    }

    fn set(&self, bits: u64, on: bool) {
        if on {
            self.0.fetch_or(bits, Relaxed);
        } else {
            self.0.fetch_and(!bits, Relaxed);
        }
    }

    /// The check of this number (within its group) found the peer sick, or well.
    pub fn set_failing(&self, check: usize, failing: bool) {
        self.set(1 << check, failing);
    }

    /// The check of this number has to pass before the peer is used, or has.
    pub fn set_unproven(&self, check: usize, unproven: bool) {
        self.set(1 << (MAX_CHECKS + check), unproven);
    }

    /// The check of this number is `persistent`, or is not.
    pub fn set_persistent(&self, check: usize, persistent: bool) {
        self.set(1 << (PERSISTENT_AT as usize + check), persistent);
    }

    /// Checks from this number on are no more.
    pub fn forget_checks(&self, from: usize) {
        let gone = FAILING & (FAILING << from);
        self.set(gone | gone << MAX_CHECKS | gone << PERSISTENT_AT, false);
    }

    /// The peer is set aside as an outlier, or taken back.
    pub fn set_ejected(&self, ejected: bool) {
        self.set(EJECTED, ejected);
    }

    /// What the operator says; `None`: what the configuration says holds again.
    pub fn set_role(&self, role: Option<Role>) {
        let bits = role.map_or(0, |r| (r as u64 + 1) << ROLE_AT);
        let _ = self.0.fetch_update(Relaxed, Relaxed, |word| Some(word & !ROLE | bits));
    }
}

impl Availability {
    /// The check of this number finds the peer sick.
    pub fn fails(self, check: usize) -> bool {
        self.0 & 1 << check != 0
    }

    /// The check of this number has to pass first.
    pub fn lacks(self, check: usize) -> bool {
        self.0 & 1 << (MAX_CHECKS + check) != 0
    }

    /// Another check than this finds the peer sick.
    pub fn fails_beside(self, check: usize) -> bool {
        self.0 & FAILING & !(1 << check) != 0
    }

    /// A check finds the peer sick.
    pub fn is_failing(self) -> bool {
        self.0 & FAILING != 0
    }

    /// A `mandatory` check has not passed yet.
    pub fn is_unproven(self) -> bool {
        self.0 & UNPROVEN != 0
    }

    /// Set aside as an outlier.
    pub fn is_ejected(self) -> bool {
        self.0 & EJECTED != 0
    }

    /// What the operator said, if anything.
    pub fn role(self) -> Option<Role> {
        [None, Some(Role::Up), Some(Role::Drain), Some(Role::Down)][(self.0 >> ROLE_AT & 0b11) as usize]
    }

    /// No check and no ejection stands against the peer.
    #[inline]
    pub fn is_well(self) -> bool {
        self.0 & (FAILING | UNPROVEN | EJECTED) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_found_holds_until_something_is_found_here() {
        let there = AtomicAvailability::default();
        there.set_failing(1, true);
        there.set_role(Some(Role::Drain));
        there.set_persistent(2, true);
        there.set_persistent(3, true);
        there.set_unproven(3, true);
        let here = AtomicAvailability::default();
        // 0 is new, 2 has passed there, 3 has not, 4 is not persistent.
        [0, 2, 3, 4].into_iter().for_each(|check| here.set_unproven(check, true));
        [0, 2, 3].into_iter().for_each(|check| here.set_persistent(check, true));
        here.take_over(there.bits());
        let now = here.now();
        assert_eq!([0, 2, 3, 4].map(|check| now.lacks(check)), [true, false, true, true]);
        assert!(now.fails(1) && now.role() == Some(Role::Drain));
        here.take_over(0);
        assert!(here.now().fails(1), "it is known already");
    }

    #[test]
    fn checks_ejection_and_roles_do_not_disturb_each_other() {
        let availability = AtomicAvailability::default();
        assert!(availability.now().is_well() && availability.now().role().is_none());
        availability.set_failing(0, true);
        availability.set_unproven(MAX_CHECKS - 1, true);
        availability.set_role(Some(Role::Drain));
        availability.set_ejected(true);
        availability.set_role(Some(Role::Down));
        assert_eq!(availability.now().role(), Some(Role::Down));
        availability.forget_checks(1);
        assert!(
            availability.now().is_failing() && !availability.now().is_unproven() && availability.now().is_ejected()
        );
        availability.forget_checks(0);
        availability.set_ejected(false);
        availability.set_role(None);
        assert_eq!(availability.now(), Availability(0));
    }
}
