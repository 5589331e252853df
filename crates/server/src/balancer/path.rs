//! Which way the packets of each server go on this machine, and why: asked by `-t`, the start and a reload, with the master's
//! rights. What cannot be is named with its cure; what is done otherwise is said aloud.

use super::plan::{self, Service};
use crate::snapshot::Snapshot;
use balance::FailurePolicy;
use l4::machine;
use l4::plan::Mode;
use l4::runner::Setup;

/// The interface that nothing of others comes by.
const LOOPBACK: &str = "lo";

/// What was found.
#[derive(Debug, Default)]
pub struct Checked {
    /// What the kernel is to do; none if it has nothing to do.
    pub setup: Option<Setup>,
    /// Why the kernel does nothing although it was asked to.
    pub refusal: Option<String>,
    /// What cannot be.
    pub problems: Vec<String>,
    /// What is not as it was meant.
    pub warnings: Vec<String>,
    /// For each server, which way its packets go.
    pub paths: Vec<String>,
}

/// Looks at a configuration and at this machine.
pub fn check(snapshot: &Snapshot) -> Checked {
    let (services, problems) = plan::services(snapshot);
    let mut found = Checked { problems, ..Checked::default() };
    if services.is_empty() {
        return found;
    }
    let mut setup = plan::setup(snapshot, &services);
    for service in &services {
        let at = service.server.address;
        found.warnings.extend(service.reals().1.into_iter().map(|why| format!("listen {at}: server {why}")));
        found.warnings.extend(unheeded(service));
    }
    let named = setup.plan.interfaces.clone();
    if named.iter().any(|name| name == LOOPBACK) {
        found.problems.push(format!(
            "xdp_interfaces {LOOPBACK}: no client's packet comes by the loopback interface (see: ip route)"
        ));
    }
    let interfaces = machine::interfaces(&setup.plan);
    setup.plan.interfaces.clone_from(&interfaces);
    if interfaces.is_empty() {
        found.problems.push(
            "no route leads to clients or servers of \"xdp\", so no interface is known: name them with \"xdp_interfaces\" (see: ip route)"
                .to_owned(),
        );
        setup.plan.interfaces.push(LOOPBACK.to_owned());
    }
    found.problems.extend(setup.plan.problems());
    found.problems.extend(machine::problems(&setup.plan));
    found.problems.extend(machine::unfit_pins(&setup.pins));
    found.problems.extend(setup.reports.as_ref().and_then(machine::foreign_reports));
    let inside = services.iter().map(|s| s.server.address).filter(|a| a.ip().is_loopback());
    found.problems.extend(inside.map(|a| {
        format!("listen {a} ... xdp: packets to a loopback address come by no interface: name the address that clients connect to")
    }));
    found.warnings.extend(machine::shared_sources(&setup.plan));
    let foreign = machine::foreign(&setup.plan);
    found.problems.extend(foreign.into_iter().map(|a| {
        format!(
            "listen {a} ... xdp: {a} is no address of this machine, so nobody would send its packets here: ip addr add {a}/{} dev lo; or, if keepalived brings it, sysctl -w {}=1",
            if a.is_ipv6() { 128 } else { 32 },
            if a.is_ipv6() { "net.ipv6.ip_nonlocal_bind" } else { "net.ipv4.ip_nonlocal_bind" },
        )
    }));
    let (wrong, doubtful) = machine::routes(&setup.plan);
    found.problems.extend(wrong);
    found.warnings.extend(doubtful);
    setup.plan.interfaces = named;
    let refusal = match snapshot.process.master_process {
        true => machine::refusal().map(|why| format!("XDP cannot be had: {why}")),
        false => Some("\"master_process off\" has no process with the rights for XDP".to_owned()),
    };
    for service in &services {
        say(service, refusal.as_deref(), &interfaces, setup.plan.generic, &mut found);
    }
    match refusal {
        None => found.setup = Some(setup),
        why => found.refusal = why,
    }
    found
}

fn say(service: &Service, refusal: Option<&str>, interfaces: &[String], generic: bool, found: &mut Checked) {
    let server = &service.server;
    let name = format!("listen {} {}", server.address, server.protocol.name());
    let mode = server.mode.name();
    match refusal {
        None if is_without_servers(service) => {
            let text = format!(
                "{name}: the ordinary proxy of \"stream\" serves it, while no server of upstream \"{}\" can get packets from the kernel",
                service.group.name
            );
            found.warnings.push(text.clone());
            found.paths.push(text);
        }
        None => {
            let way = if generic { "generic XDP" } else { "XDP" };
            found
                .paths
                .push(format!("{name}: the kernel balances its packets ({way}, {mode}) on {}", interfaces.join(", ")));
        }
        Some(why) if server.mode == Mode::Nat => {
            let text = format!("{name}: the ordinary proxy of \"stream\" serves it, not the kernel: {why}");
            found.warnings.push(text.clone());
            found.paths.push(text);
        }
        Some(why) => found.problems.push(format!("{name}: \"xdp={mode}\" has no other way: {why}")),
    }
}

/// There are servers, and none is one that packets could be brought to.
fn is_without_servers(service: &Service) -> bool {
    let (reals, unfit) = service.reals();
    reals.is_empty() && !unfit.is_empty()
}

/// What peers are told that the kernel does not keep.
fn unheeded(service: &Service) -> Vec<String> {
    let tiers = service.group.tiers_now();
    let peers: Vec<_> = tiers.iter().flat_map(|t| &t.peers).collect();
    let at = service.server.address;
    let mut found = Vec::new();
    if peers.iter().any(|p| p.settings.max_conns > 0) {
        found.push(format!("listen {at}: \"max_conns\" is not kept by the kernel"));
    }
    if peers.iter().any(|p| p.settings.slow_start_ms > 0) {
        found.push(format!("listen {at}: \"slow_start\" is not kept by the kernel"));
    }
    if peers.iter().any(|p| p.settings.policy != FailurePolicy::default()) {
        let text = "\"max_fails\" and \"fail_timeout\" are not kept by the kernel, which sees no failures: \"health_check\" does";
        found.push(format!("listen {at}: {text}"));
    }
    found
}
