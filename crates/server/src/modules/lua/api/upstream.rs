//! `ngx.upstream`: the groups of peers of the configuration, as lua-upstream-nginx-module shows them. A peer that a program takes out of use
//! is out for all threads, since they share what is known of it.

use super::super::current::{machine, request};
use crate::snapshot::ThreadSnapshot;
use crate::upstream::availability::Role;
use crate::upstream::choose;
use crate::upstream::group::Group;
use crate::upstream::peer::Peer;
use ::lua::Fault;
use ::lua::machine::{add as add_function, bad_argument, bytes_of};
use mlua::{Lua, Table, Value};
use runtime::clock;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A value, or `nil` and why there is none.
type Found = Result<(Value, Option<&'static str>), Fault>;

const NO_GROUP: &str = "upstream not found";

/// See the module's head.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "upstream_names", |lua, ()| -> Result<_, Fault> {
        let snapshot = snapshot()?;
        lua.create_sequence_from(snapshot.groups.iter().map(|group| &*group.name)).map_err(broken)
    })?;
    add_function(lua, raw, "upstream_servers", |lua, name: Value| -> Found {
        let Some(group) = find(&*snapshot()?, &name, "get_servers")? else { return Ok((Value::Nil, Some(NO_GROUP))) };
        servers(lua, &group).map(|made| (Value::Table(made), None)).map_err(broken)
    })?;
    add_function(lua, raw, "upstream_peers", |lua, (name, backup): (Value, bool)| -> Found {
        let function = if backup { "get_backup_peers" } else { "get_primary_peers" };
        let Some(group) = find(&*snapshot()?, &name, function)? else { return Ok((Value::Nil, Some(NO_GROUP))) };
        let tiers = group.tiers_now();
        let made = lua.create_table().map_err(broken)?;
        for (index, peer) in tiers[usize::from(backup)].peers.iter().enumerate() {
            let shown = show(lua, &group, backup, index, peer).map_err(broken)?;
            made.raw_push(shown).map_err(broken)?;
        }
        Ok((Value::Table(made), None))
    })?;
    add_function(lua, raw, "upstream_down", |_, (name, backup, id, down): (Value, bool, f64, bool)| -> Found {
        let Some(group) = find(&*snapshot()?, &name, "set_peer_down")? else { return Ok((Value::Nil, Some(NO_GROUP))) };
        let tiers = group.tiers_now();
        let peers = &tiers[usize::from(backup)].peers;
        if backup && peers.is_empty() {
            return Ok((Value::Nil, Some("no backup peers")));
        }
        let peer = Some(id).filter(|id| *id >= 0.0).and_then(|id| peers.get(id as usize));
        let Some(peer) = peer else { return Ok((Value::Nil, Some("bad peer id"))) };
        peer.set_down(down);
        Ok((Value::Boolean(true), None))
    })?;
    add_function(lua, raw, "upstream_current", |lua, ()| {
        let name = request(|r| {
            let last = r.attempts.all.iter().rev().find(|attempt| !attempt.gap);
            let chosen = r.ctx.lua.as_ref().and_then(|context| context.group.clone());
            let known = chosen.or_else(|| last.and_then(|attempt| attempt.group.clone()));
            let peer = last.and_then(|attempt| attempt.peer.as_ref());
            Ok(known.or_else(|| peer.and_then(|peer| group_of(&r.snapshot, peer))))
        })?;
        name.map(|name| lua.create_string(&*name).map_err(broken)).transpose()
    })
}

fn broken(e: mlua::Error) -> Fault {
    Fault(e.to_string())
}

fn snapshot() -> Result<Rc<ThreadSnapshot>, Fault> {
    machine()?.snapshot.upgrade().ok_or_else(|| Fault("the configuration is gone".to_owned()))
}

/// A group by its name; one that is just an address also without its port.
fn find(snapshot: &ThreadSnapshot, name: &Value, function: &str) -> Result<Option<Arc<Group>>, Fault> {
    if !matches!(name, Value::String(_) | Value::Integer(_) | Value::Number(_)) {
        let got = if name.is_nil() { "no value" } else { name.type_name() };
        return Err(bad_argument(1, function, &format!("string expected, got {got}")));
    }
    let name = bytes_of(name, 1, function)?;
    let host_of = |group: &Group| group.name.rfind(':').map(|colon| group.name[..colon].to_owned());
    let is_host = |group: &Group| !group.is_block && host_of(group).is_some_and(|host| host.as_bytes() == name);
    let mut groups = snapshot.groups.iter();
    let exact = groups.clone().find(|group| group.name.as_bytes() == name);
    Ok(exact.or_else(|| groups.find(|group| is_host(group))).cloned())
}

/// The group that a peer is in: its state is in no other.
fn group_of(snapshot: &ThreadSnapshot, peer: &Peer) -> Option<Arc<str>> {
    let is_in = |group: &&Arc<Group>| {
        let tiers = group.tiers_now();
        tiers.iter().flat_map(|tier| &tier.peers).any(|known| Arc::ptr_eq(&known.state, &peer.state))
    };
    snapshot.groups.iter().find(is_in).map(|group| group.name.clone())
}

/// The `server` lines: a name that stands for several addresses is one of them.
fn servers(lua: &Lua, group: &Group) -> mlua::Result<Table> {
    let made = lua.create_table()?;
    if !group.is_block {
        // Nobody has written any.
        return Ok(made);
    }
    let tiers = group.tiers_now();
    let mut all: Vec<(bool, &Arc<Peer>)> = Vec::new();
    for (rank, tier) in tiers.iter().enumerate() {
        all.extend(tier.peers.iter().map(|peer| (rank == 1, peer)));
    }
    // As they were written: those that stand in for others may be between them.
    all.sort_by_key(|(_, peer)| peer.id);
    let together = |a: &(bool, &Arc<Peer>), b: &(bool, &Arc<Peer>)| {
        a.0 == b.0 && a.1.server == b.1.server && a.1.settings == b.1.settings && a.1.name != b.1.name
    };
    for line in all.chunk_by(together) {
        let (backup, first) = line[0];
        let shown = lua.create_table()?;
        shown.raw_set("name", &*first.server)?;
        match line {
            [_] => shown.raw_set("addr", &*first.name)?,
            _ => shown.raw_set("addr", lua.create_sequence_from(line.iter().map(|(_, peer)| &*peer.name))?)?,
        }
        add_settings(&shown, first)?;
        if backup {
            shown.raw_set("backup", true)?;
        }
        if first.settings.role == Role::Down {
            shown.raw_set("down", true)?;
        }
        made.raw_push(shown)?;
    }
    Ok(made)
}

fn add_settings(table: &Table, peer: &Peer) -> mlua::Result<()> {
    table.raw_set("weight", peer.settings.weight)?;
    table.raw_set("max_fails", peer.settings.policy.max_fails)?;
    table.raw_set("fail_timeout", peer.settings.policy.fail_timeout_s)
}

fn show(lua: &Lua, group: &Group, backup: bool, index: usize, peer: &Peer) -> mlua::Result<Table> {
    let shown = lua.create_table()?;
    let (current, effective) = choose::weights_of(group, backup, index).unwrap_or((0, peer.settings.weight));
    let failures = peer.state.failures();
    shown.raw_set("id", index)?;
    shown.raw_set("name", &*peer.name)?;
    add_settings(&shown, peer)?;
    shown.raw_set("current_weight", current)?;
    shown.raw_set("effective_weight", effective)?;
    shown.raw_set("conns", peer.state.conns.load(Relaxed))?;
    shown.raw_set("fails", failures.count)?;
    // Ours are seconds since the machine has started.
    let (now_s, wall_s) = (clock::monotonic_ms() / 1000, clock::wall_ms() / 1000);
    for (name, at_s) in [("accessed", failures.accessed_s), ("checked", failures.checked_s)] {
        if at_s > 0 {
            shown.raw_set(name, wall_s.saturating_sub(now_s.saturating_sub(at_s)))?;
        }
    }
    if peer.role() == Role::Down {
        shown.raw_set("down", true)?;
    }
    Ok(shown)
}
