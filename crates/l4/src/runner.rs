//! A balancer that is run: the plan of a configuration, the real servers as they are at this moment, and the kernel's program
//! that follows both. The process around it brings news and asks for reports; it needs the rights that docs/l4.md names.

use crate::keeper::Keeper;
use crate::kernel::{self, Kernel, Place};
use crate::plan::{Plan, Protocol, RealServer, RealState, Reals, VirtualServer};
use crate::report::{Attachment, Counts, Report};
use crate::tables::Look;
use crate::{fill, machine};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

/// A virtual server's name.
type Key = (SocketAddr, Protocol);

/// What a configuration says of the balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Where the program and its maps are pinned. Counts when the runner starts.
    pub pins: PathBuf,
    /// Virtual servers, and their real servers as the configuration has them.
    pub plan: Plan,
    /// Where real servers report how full their accept queues are.
    #[serde(default)]
    pub reports: Option<Reports>,
    /// How many seconds flows of a virtual server that left the plan may go on; none: as long as they like.
    #[serde(default)]
    pub retire_s: Option<u64>,
}

/// See [`crate::load`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reports {
    /// An address and port of ours.
    pub address: SocketAddr,
    /// What reports are signed with.
    pub key: String,
}

/// Real servers that new flows avoid, and how much.
pub type Avoided = HashMap<SocketAddr, u8>;

/// See the top of the file.
pub struct Runner {
    setup: Setup,
    kernel: Kernel,
    keeper: Keeper,
    /// Real servers as they are now; what is not here is as the plan has it.
    now: HashMap<Key, Vec<RealServer>>,
    /// Interfaces with the program, and whether it is the driver's XDP.
    attached: BTreeMap<String, bool>,
    /// What real servers had counted at the last look, and what those counted that have left.
    counted: HashMap<(Key, u32), (SocketAddr, Counts)>,
    left: HashMap<Key, Counts>,
    warnings: Vec<String>,
    draining: bool,
    /// Real servers that new flows avoid.
    avoided: Avoided,
}

impl Runner {
    /// Loads the program, or takes over what is pinned, and balances by the plan.
    ///
    /// # Errors
    /// What the kernel, or the plan, refuses.
    pub fn start(setup: Setup) -> Result<Runner, String> {
        let mut kernel = Kernel::load(&setup.plan, Some(&setup.pins))?;
        let warnings = kernel.warning.take().into_iter().collect();
        let mut runner = Runner {
            setup,
            kernel,
            keeper: Keeper::new(),
            now: HashMap::new(),
            attached: BTreeMap::new(),
            counted: HashMap::new(),
            left: HashMap::new(),
            warnings,
            draining: false,
            avoided: Avoided::new(),
        };
        match runner.apply() {
            Ok(()) => Ok(runner),
            // On one interface and not on the other it would carry packets one way.
            Err(text) => {
                let _ = runner.clear();
                Err(text)
            }
        }
    }

    /// Another configuration. Where pins are, and how many flows the table has room for, stays as it was at the start.
    pub fn take_plan(&mut self, setup: Setup) -> Result<(), String> {
        if setup.pins != self.setup.pins || setup.plan.flow_room() != self.setup.plan.flow_room() {
            self.warnings.push("\"xdp_pins\" and \"xdp_flows\" count from the next start".to_owned());
        }
        self.setup = Setup { pins: self.setup.pins.clone(), ..setup };
        self.draining = false;
        let known: Vec<Key> = self.setup.plan.services.iter().map(|s| (s.address, s.protocol)).collect();
        self.now.retain(|key, _| known.contains(key));
        self.apply()
    }

    /// Real servers have changed.
    pub fn take_reals(&mut self, all: Vec<Reals>) -> Result<(), String> {
        for one in all {
            self.now.insert((one.address, one.protocol), one.reals);
        }
        self.apply()
    }

    /// New flows avoid these real servers from now on, while there are others that are to be avoided less. Flows stay.
    pub fn avoid(&mut self, avoided: &Avoided) -> Result<(), String> {
        if self.avoided == *avoided {
            return Ok(());
        }
        let before = self.full();
        self.avoided.clone_from(avoided);
        let now = self.full();
        before
            .symmetric_difference(&now)
            .try_for_each(|place| fill::mark(&mut self.kernel.maps, place, now.contains(place)))
    }

    /// Real servers that are to be avoided more than another of the same virtual server.
    fn full(&self) -> HashSet<Place> {
        let of = |s: &VirtualServer| {
            let reals = self.now.get(&(s.address, s.protocol)).unwrap_or(&s.reals);
            let least = self.least(reals);
            let full = reals.iter().filter(|r| self.level(r) > least);
            full.map(|r| (s.address, s.protocol.number(), r.address)).collect::<Vec<_>>()
        };
        self.setup.plan.services.iter().flat_map(of).collect()
    }

    fn level(&self, real: &RealServer) -> u8 {
        self.avoided.get(&real.address).copied().unwrap_or(0)
    }

    /// Where none is well, the least bad: a queue that is full takes one more, a server that has stopped takes nothing.
    fn least(&self, reals: &[RealServer]) -> u8 {
        let usable = reals.iter().filter(|r| r.state == RealState::Up && r.weight > 0);
        usable.map(|r| self.level(r)).min().unwrap_or(0)
    }

    /// All real servers there are now, of all services.
    pub fn reals(&self) -> Vec<SocketAddr> {
        let of = |s: &VirtualServer| {
            let now = self.now.get(&(s.address, s.protocol)).unwrap_or(&s.reals);
            now.iter().map(|r| r.address).collect::<Vec<_>>()
        };
        self.setup.plan.services.iter().flat_map(of).collect()
    }

    /// The plan with the real servers as they are now.
    fn wanted(&self) -> Plan {
        let mut plan = self.setup.plan.clone();
        for service in &mut plan.services {
            if let Some(reals) = self.now.get(&(service.address, service.protocol)) {
                service.reals.clone_from(reals);
            }
            let least = self.least(&service.reals);
            service.reals.iter_mut().for_each(|r| r.full |= self.level(r) > least);
            if self.draining {
                let up = service.reals.iter_mut().filter(|r| r.state == RealState::Up);
                up.for_each(|r| r.state = RealState::Drain);
            }
        }
        plan.interfaces = machine::interfaces(&plan);
        plan
    }

    fn apply(&mut self) -> Result<(), String> {
        let plan = self.wanted();
        self.keeper.end_retired_after(self.setup.retire_s.map(Duration::from_secs));
        fill::apply(&mut self.kernel.maps, &plan)?;
        let before = self.attached.len();
        for name in &plan.interfaces {
            if self.attached.contains_key(name) {
                continue;
            }
            let native = self.kernel.attach(name, plan.generic, &self.setup.pins)?;
            if !native && !plan.generic {
                self.warnings.push(format!("{name}: its driver has no XDP: generic XDP serves it, which is slower"));
            }
            self.attached.insert(name.clone(), native);
        }
        self.all_alike()?;
        if self.attached.len() > before {
            // Until a moment ago the program there may have been another version's.
            fill::forget_recent(&mut self.kernel.maps)?;
        }
        // A route that is gone for a moment takes no interface away: only another configuration does.
        if !self.setup.plan.interfaces.is_empty() {
            let others: Vec<String> =
                self.attached.keys().filter(|name| !plan.interfaces.contains(name)).cloned().collect();
            for name in others {
                self.attached.remove(&name);
                kernel::detach(&name, &self.setup.pins)?;
            }
        }
        Ok(())
    }

    /// A driver's XDP sends to interfaces whose driver has it: where one has not, generic XDP serves all.
    fn all_alike(&mut self) -> Result<(), String> {
        if self.attached.values().all(|native| *native) {
            return Ok(());
        }
        for (name, native) in self.attached.iter_mut().filter(|(_, native)| **native) {
            *native = self.kernel.attach(name, true, &self.setup.pins)?;
            self.warnings.push(format!("{name}: generic XDP here as well: packets go from one interface to another"));
        }
        Ok(())
    }

    /// What has to be done now and then: see [`Keeper`]. Call it every [`crate::keeper::BEAT`].
    pub fn beat(&mut self) -> Result<(), String> {
        self.keeper.beat(&mut self.kernel)
    }

    /// Readable while the program has something to say, so that the next [`Runner::beat`] need not wait.
    pub fn ear(&self) -> BorrowedFd<'_> {
        self.kernel.resets.as_fd()
    }

    /// What is worth a line in a log since the last call.
    pub fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// What was counted, and how it is now.
    pub fn report(&mut self) -> Result<Report, String> {
        let look = Look::take(&self.kernel.maps)?;
        let mut report = Report::of(&look);
        report.flow_room = u64::from(self.kernel.maps.flow_room) / 2;
        report.interfaces =
            self.attached.iter().map(|(name, native)| Attachment { name: name.clone(), native: *native }).collect();
        self.keep_counts(&look, &mut report);
        Ok(report)
    }

    /// Adds what real servers counted that have left since, so that no sum goes back.
    fn keep_counts(&mut self, look: &Look, report: &mut Report) {
        let mut now = HashMap::new();
        for (service, shown) in look.services.iter().zip(&report.services) {
            let key = (shown.address, shown.protocol);
            for (real, of_real) in service.reals.iter().zip(&shown.reals) {
                now.insert((key, real.index), (of_real.address, of_real.counts));
            }
        }
        for ((key, index), (address, counts)) in self.counted.drain() {
            let is_same = |(a, c): &(SocketAddr, Counts)| *a == address && c.in_packets >= counts.in_packets;
            if !now.get(&(key, index)).is_some_and(is_same) {
                let sum = self.left.entry(key).or_default();
                *sum = sum.plus(&counts);
            }
        }
        self.counted = now;
        self.left.retain(|key, _| report.services.iter().any(|s| (s.address, s.protocol) == *key));
        for service in &mut report.services {
            if let Some(left) = self.left.get(&(service.address, service.protocol)) {
                service.counts = service.counts.plus(left);
            }
        }
    }

    /// No flow begins any more; those there are go on.
    pub fn drain(&mut self) -> Result<(), String> {
        self.draining = true;
        self.apply()
    }

    /// Flows there are, by the keeper's last sweep and what was seen since.
    pub fn flows(&self) -> Result<u64, String> {
        let look = Look::take(&self.kernel.maps)?;
        Ok(look.services.iter().flat_map(|s| &s.reals).map(|r| r.active).sum())
    }

    /// Takes the program off all interfaces and forgets flows and counters.
    pub fn clear(self) -> Result<(), String> {
        kernel::clear_of(&self.setup.pins, |name| self.attached.contains_key(name))
    }
}
