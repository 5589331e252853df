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

    /// What another process found, unless something was found here meanwhile.
    pub fn take_over(&self, bits: u64) {
        let _ = self.0.compare_exchange(0, bits, Relaxed, Relaxed);
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

    /// Checks from this number on are no more.
    pub fn forget_checks(&self, from: usize) {
        let gone = FAILING & (FAILING << from);
        self.set(gone | gone << MAX_CHECKS, false);
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
