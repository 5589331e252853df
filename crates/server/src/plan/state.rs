//! What outlives a reload and what does not: zones, and groups with their peers. Both snapshots are of this process, so what would be
//! shared by a running server has one place in memory here.

use super::Change;
use crate::snapshot::Snapshot;
use crate::upstream::group;
use serde::Serialize;

/// A zone.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// Its name.
    pub name: String,
    /// The module whose it is.
    pub of: String,
    /// `kept`, `lost` (it begins empty), `added`, `removed`.
    pub change: Change,
    /// Why it is lost; empty otherwise.
    pub why: String,
}

/// A group of peers.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// `http` or `stream`.
    pub subsystem: &'static str,
    /// What becomes of it.
    pub change: Change,
    /// Servers that come.
    pub servers_added: Vec<String>,
    /// Servers that go.
    pub servers_removed: Vec<String>,
    /// Servers whose parameters change.
    pub servers_changed: Vec<String>,
    /// How peers are chosen, if that changes: before and after.
    pub method: Option<(String, String)>,
}

/// All zones of both configurations.
pub(super) fn zones(old: &Snapshot, new: &Snapshot) -> Vec<Zone> {
    let all = |snapshot: &Snapshot| {
        let planes = snapshot.planes().flat_map(|p| p.main.kept()).collect::<Vec<_>>();
        (snapshot.main.zones.all().map(|(name, of, size)| (name.to_vec(), of, size)).collect::<Vec<_>>(), planes)
    };
    let ((before, kept_before), (after, kept_after)) = (all(old), all(new));
    let mut zones = Vec::new();
    for (name, of, size) in &before {
        let shown = String::from_utf8_lossy(name).into_owned();
        let zone = |change, why| Zone { name: shown.clone(), of: (*of).to_owned(), change, why };
        let Some((_, new_of, new_size)) = after.iter().find(|(n, ..)| n == name) else {
            zones.push(zone(Change::Removed, String::new()));
            continue;
        };
        let place = |kept: &[crate::modules::Kept]| kept.iter().find(|k| *k.name == **name).cloned();
        let why = match (place(&kept_before), place(&kept_after)) {
            (Some(a), Some(b)) if a.place == b.place => None,
            (Some(a), Some(b)) if a.by != b.by => {
                let (a, b) = (String::from_utf8_lossy(&a.by).into_owned(), String::from_utf8_lossy(&b.by).into_owned());
                Some(format!("it was made of \"{a}\" and would be of \"{b}\""))
            }
            _ if of != new_of => Some(format!("it was of {of} and would be of {new_of}")),
            _ if size != new_size => Some(format!("its size was {size} bytes and would be {new_size}")),
            (Some(_), Some(_)) => Some("its parameters change".to_owned()),
            _ => None,
        };
        zones.push(match why {
            Some(why) => zone(Change::Lost, why),
            None => zone(Change::Kept, String::new()),
        });
    }
    let added = after.iter().filter(|(name, ..)| !before.iter().any(|(n, ..)| n == name));
    zones.extend(added.map(|(name, of, _)| Zone {
        name: String::from_utf8_lossy(name).into_owned(),
        of: (*of).to_owned(),
        change: Change::Added,
        why: String::new(),
    }));
    zones
}

/// A peer as it is compared: its name, and the rest of what its line says.
type Line = (String, String);

fn lines(group: &group::Group) -> Vec<Line> {
    let tiers = group.tiers_now();
    let tiers = tiers.iter().enumerate();
    let peer = |tier: usize, p: &crate::upstream::peer::Peer| (p.name.to_string(), format!("{tier} {:?}", p.settings));
    tiers.flat_map(|(tier, t)| t.peers.iter().map(move |p| peer(tier, p))).collect()
}

fn method(group: &group::Group) -> String {
    match &group.method {
        group::Method::RoundRobin => "round robin".to_owned(),
        group::Method::LeastConn => "least_conn".to_owned(),
        group::Method::IpHash => "ip_hash".to_owned(),
        group::Method::Hash { consistent: false, .. } => "hash".to_owned(),
        group::Method::Hash { consistent: true, .. } => "hash consistent".to_owned(),
        group::Method::LeastTime(_) => "least_time".to_owned(),
        group::Method::Random { .. } => "random".to_owned(),
        group::Method::Maglev => "maglev".to_owned(),
    }
}

/// The groups that change.
pub(super) fn groups(old: &Snapshot, new: &Snapshot) -> Vec<Group> {
    let none: &[std::sync::Arc<group::Group>] = &[];
    let of = |snapshot: &Snapshot| snapshot.stream.clone().map(|s| s.groups.clone());
    let (old_stream, new_stream) = (of(old), of(new));
    let mut all = subsystem("http", &old.groups, &new.groups);
    all.extend(subsystem("stream", old_stream.as_deref().unwrap_or(none), new_stream.as_deref().unwrap_or(none)));
    all
}

fn subsystem(
    subsystem: &'static str,
    old: &[std::sync::Arc<group::Group>],
    new: &[std::sync::Arc<group::Group>],
) -> Vec<Group> {
    let names = |lines: &[Line]| lines.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let group = |name: &str, change, old: &[Line], new: &[Line], method| {
        let comings = super::comings(&names(old), &names(new));
        let is_changed = |(name, settings): &&Line| new.iter().any(|(n, s)| n == name && s != settings);
        Group {
            name: name.to_owned(),
            subsystem,
            change,
            servers_added: comings.added,
            servers_removed: comings.removed,
            servers_changed: old.iter().filter(is_changed).map(|(name, _)| name.clone()).collect(),
            method,
        }
    };
    let mut all = Vec::new();
    for before in old {
        let was = lines(before);
        let Some(after) = new.iter().find(|g| g.name == before.name) else {
            all.push(group(&before.name, Change::Removed, &was, &[], None));
            continue;
        };
        let (is, methods) = (lines(after), (method(before), method(after)));
        let methods = Some(methods).filter(|(a, b)| a != b);
        if was != is || methods.is_some() {
            all.push(group(&before.name, Change::Changed, &was, &is, methods));
        }
    }
    let added = new.iter().filter(|g| !old.iter().any(|o| o.name == g.name));
    all.extend(added.map(|g| group(&g.name, Change::Added, &[], &lines(g), None)));
    all
}
