//! What guards have done, and what load was shed.

use super::Page;
use crate::modules::guard::state::{self, BANS, EVENTS};
use crate::modules::{slow, sysguard};
use crate::snapshot::Snapshot;
use shield::breaker::State;

/// Adds them, where the configuration has any.
pub(super) fn add(page: &mut Page, snapshot: &Snapshot) {
    guards(page, snapshot);
    shed(page, snapshot);
}

fn guards(page: &mut Page, snapshot: &Snapshot) {
    let all: Vec<_> = snapshot.main.guard.guards().map(|g| (g.name.to_string(), g.state.clone())).collect();
    if all.is_empty() {
        return;
    }
    let each: Vec<_> = all
        .iter()
        .flat_map(|(name, state)| EVENTS.iter().zip(state.counts.sums()).map(move |(e, n)| (name, e, n)))
        .collect();
    let name = "ironweir_guard_requests_total";
    page.each((name, "counter", "Requests under guards, by what was done."), &each, |(guard, event, n)| {
        Some((vec![("guard", guard.to_string()), ("action", (**event).to_owned())], *n))
    });
    let limits: Vec<_> = all
        .iter()
        .flat_map(|(name, state)| state.above().into_iter().map(move |(limit, n)| (name, limit, n)))
        .collect();
    let name = "ironweir_guard_limit_exceeded_total";
    page.each((name, "counter", "Requests above a guard's limit."), &limits, |(guard, limit, n)| {
        Some((vec![("guard", guard.to_string()), ("limit", limit.clone())], *n))
    });
    let now = runtime::clock::monotonic_ms();
    page.each(("ironweir_guard_under_attack", "gauge", "Whether attack mode is on."), &all, |(guard, state)| {
        Some((vec![("guard", guard.clone())], u8::from(state.attack.is_on(now))))
    });
    page.one("ironweir_guard_bans", "gauge", "Banned addresses.", BANS.all(runtime::clock::wall_ms()).len());
    let closed = state::AT_ACCEPT.sums()[0];
    page.one("ironweir_guard_closed_at_accept_total", "counter", "Connections of banned addresses.", closed);
}

fn shed(page: &mut Page, snapshot: &Snapshot) {
    page.one("ironweir_slow_clients", "gauge", "Requests whose client is below its least rate.", slow::total());
    let sums: Vec<_> = sysguard::NAMES.iter().zip(sysguard::COUNTS.sums()).filter(|(_, n)| *n > 0).collect();
    page.each(("ironweir_shed_sysguard_total", "counter", "Requests shed by sysguard."), &sums, |(name, n)| {
        Some((vec![("reason", (**name).to_owned())], *n))
    });
    let groups: Vec<_> = snapshot.groups.iter().filter_map(|g| Some((g.name.to_string(), g.shed.clone()?))).collect();
    let label = |name: &String| vec![("upstream", name.clone())];
    page.each(
        ("ironweir_shed_limit", "gauge", "Requests that an upstream may have at a time."),
        &groups,
        |(name, s)| Some((label(name), s.concurrency()?.0)),
    );
    page.each(("ironweir_shed_under_way", "gauge", "Requests that it has."), &groups, |(name, s)| {
        Some((label(name), s.concurrency()?.1))
    });
    page.each(
        ("ironweir_shed_refused_total", "counter", "Requests refused for lack of room."),
        &groups,
        |(name, s)| Some((label(name), s.concurrency()?.2)),
    );
    page.each(("ironweir_shed_breaker_open", "gauge", "Whether the circuit breaker is open."), &groups, |(name, s)| {
        Some((label(name), u8::from(s.breaker()?.0 != State::Closed)))
    });
    page.each(
        ("ironweir_shed_broken_total", "counter", "Requests refused by an open breaker."),
        &groups,
        |(name, s)| Some((label(name), s.breaker()?.2)),
    );
}
