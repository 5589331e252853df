//! `balancer_by_lua*`: a program chooses the peer of each try (`ngx.balancer`). From: `upstream::choose`, which asks it before the group's
//! own method. To: the try, with what the program said beside the peer.

use super::current::{self, Phase};
use super::phases;
use crate::config::Scope;
use crate::config::setters::duplicate;
use crate::connection::Address;
use crate::modules::lua::chunk::Program;
use crate::request::Request;
use crate::upstream::choose::{self, ProgramChoice, SelectedPeer, Selection};
use crate::upstream::group::{Group, Keepalive};
use crate::upstream::job::Changes;
use crate::upstream::peer::{Peer, PeerSettings, name_of};
use ::lua::Fault;
use ::lua::machine::{add as add_function, bytes_of};
use balance::FailurePolicy;
use conf::{Node, Problem, value};
use mlua::{Lua, Table, Value};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Peers that a thread remembers, with their idle connections; beyond, it begins anew.
const MAX_PEERS: usize = 4096;
/// Connections that are kept for each group without `balancer_keepalive` (as in OpenResty).
const KEPT: usize = 32;
/// What messages say of a call outside of its phase.
const NOT_HERE: &str = "API disabled in the current context";

/// What a program says of one try.
#[derive(Default)]
pub struct Said {
    left: usize,
    limit: usize,
    asked: usize,
    failure: Option<(&'static str, u16)>,
    peer: Option<Address>,
    more: usize,
    kept: Option<(Duration, u64)>,
    timeouts: [Option<Duration>; 3],
    changes: Changes,
}

/// `balancer_by_lua*`
pub fn directive(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let chunk = super::chunk(scope, node, 0)?;
    let block = crate::modules::upstream_block::current(scope);
    if block.balancer.is_some() {
        return Err(duplicate(node));
    }
    choose::install(ask);
    block.balancer = Some(Program { chunk, kept: KEPT });
    if block.method.is_some() {
        scope.build.problems.push(node.warning("load balancing method redefined".to_owned()));
    }
    Ok(())
}

/// `balancer_keepalive`
pub fn keepalive(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let kept = value::number(&node.args[0].text).filter(|n| *n > 0);
    let kept = kept.ok_or_else(|| node.problem(format!("invalid value \"{}\"", node.args[0].as_str())))?;
    match &mut crate::modules::upstream_block::current(scope).balancer {
        Some(program) => {
            program.kept = kept as usize;
            Ok(())
        }
        None => Err(node.problem("\"balancer_keepalive\" stands behind \"balancer_by_lua*\"".to_owned())),
    }
}

/// Asks a group's program whom to ask.
pub fn ask(r: &mut Request, group: &Group, program: &Program, selection: &mut Selection) -> ProgramChoice {
    selection.said.asked += 1;
    // What the try before came to.
    let failure = r.attempts.all.last().filter(|_| selection.said.asked > 1).map(|before| match before.status {
        status @ (403 | 404) => ("next", status),
        status => ("failed", status),
    });
    let said = Said {
        left: selection.said.left,
        limit: selection.said.limit,
        asked: selection.said.asked,
        failure,
        ..Said::default()
    };
    let context = r.ctx.lua.get_or_insert_default();
    context.balancer = Some(Box::new(said));
    context.group = Some(group.name.clone());
    context.exit = None;
    let has_run = phases::call(r, &program.chunk, Phase::Balancer);
    let context = r.ctx.lua.get_or_insert_default();
    let (said, exit) = (context.balancer.take(), context.exit.take());
    let Some(said) = said.filter(|_| has_run) else { return ProgramChoice::Refused(500) };
    match exit {
        None | Some(0) => {}
        // NGX_BUSY, NGX_DECLINED
        Some(-3 | -5) => return ProgramChoice::Refused(502),
        Some(status @ 300..1000) => return ProgramChoice::Refused(status as u16),
        Some(_) => return ProgramChoice::Refused(500),
    }
    let Said { peer: address, more, kept, timeouts, changes, .. } = *said;
    for (timeout, own) in r.attempts.timeouts.iter_mut().zip(timeouts) {
        *timeout = own.or(*timeout);
    }
    selection.said.more += more;
    selection.said.changes = changes.is_any().then(|| Box::new(changes));
    let Some(address) = address else { return ProgramChoice::Usual };
    let kept = kept.map(|(timeout, requests)| Keepalive {
        connections: Some(program.kept),
        requests,
        timeout,
        ..Keepalive::default()
    });
    ProgramChoice::Peer(SelectedPeer::beside(peer(group, address, kept)))
}

type Known = HashMap<(u32, Address), Arc<Peer>>;

thread_local! {
    static PEERS: RefCell<Known> = RefCell::default();
}

/// The peer at an address: what is known of it, and its idle connections, are the thread's.
fn peer(group: &Group, address: Address, kept: Option<Keepalive>) -> Arc<Peer> {
    PEERS.with_borrow_mut(|peers| {
        let key = (group.number, address);
        let known = peers.get(&key);
        if let Some(known) = known.filter(|p| p.settings.keepalive == kept) {
            return known.clone();
        }
        let (name, state) = (name_of(&key.1), known.map(|p| p.state.clone()).unwrap_or_default());
        let mut peer = Peer::with_state(&name, key.1.clone(), state);
        // Who chooses them judges them.
        let policy = FailurePolicy { max_fails: 0, ..FailurePolicy::default() };
        peer.settings = PeerSettings { policy, keepalive: kept, ..PeerSettings::default() };
        let peer = Arc::new(peer);
        if peers.len() >= MAX_PEERS {
            peers.clear();
        }
        peers.insert(key, peer.clone());
        peer
    })
}

/// `nil` and why, or `true` and perhaps a warning.
type Tried = Result<(Value, Option<String>), Fault>;

fn with(work: impl FnOnce(&mut Said) -> Result<Option<String>, String>) -> Tried {
    if current::phase() != Phase::Balancer {
        return Ok((Value::Nil, Some(NOT_HERE.to_owned())));
    }
    current::request(|r| {
        let Some(said) = r.ctx.lua.as_mut().and_then(|c| c.balancer.as_mut()) else {
            return Ok((Value::Nil, Some(NOT_HERE.to_owned())));
        };
        Ok(match work(said) {
            Ok(warning) => (Value::Boolean(true), warning),
            Err(text) => (Value::Nil, Some(text)),
        })
    })
}

fn address(text: &[u8], port: f64) -> Result<Address, String> {
    let text = std::str::from_utf8(text).map_err(|_| "invalid address".to_owned())?;
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err("no path in the unix domain socket".to_owned())
        } else {
            Ok(Address::Unix(path.into()))
        };
    }
    if let Ok(whole) = text.parse::<SocketAddr>().map(Address::Inet) {
        return Ok(whole);
    }
    let ip: IpAddr = text.trim_matches(['[', ']']).parse().map_err(|_| "no host allowed".to_owned())?;
    match port as i64 {
        port @ 1..=65535 => Ok(Address::Inet(SocketAddr::new(ip, port as u16))),
        // As nginx takes an address without port.
        0 => Ok(Address::Inet(SocketAddr::new(ip, 80))),
        port => Err(format!("invalid port: {port}")),
    }
}

fn milliseconds(value: Option<f64>) -> Option<Duration> {
    value.filter(|ms| *ms >= 1.0).map(|ms| Duration::from_millis(ms as u64))
}

/// See the module's head. `prelude.lua` has looked at the kinds of the arguments.
pub fn add(lua: &Lua, raw: &Table) -> mlua::Result<()> {
    add_function(lua, raw, "balancer_peer", |_, (host, port, name): (Value, f64, Value)| {
        let host = bytes_of(&host, 1, "set_current_peer")?;
        let name = match &name {
            Value::Nil => None,
            name => Some(bytes_of(name, 3, "set_current_peer")?.into_boxed_slice()),
        };
        with(|said| {
            said.peer = Some(address(&host, port)?);
            said.changes.name = name.filter(|n| !n.is_empty());
            Ok(None)
        })
    })?;
    add_function(lua, raw, "balancer_more_tries", |_, count: f64| {
        let count = count.max(0.0) as usize;
        with(|said| {
            // The try that has begun counts on both sides.
            let total = said.asked + said.left.saturating_sub(1);
            if said.limit > 0 && total + count > said.limit {
                said.more = said.limit.saturating_sub(total);
                return Ok(Some("reduced tries due to limit".to_owned()));
            }
            said.more = count;
            Ok(None)
        })
    })?;
    add_function(lua, raw, "balancer_failure", |_, ()| -> Result<_, Fault> {
        let mut failure = None;
        let (ok, text) = with(|said| {
            failure = said.failure;
            Ok(None)
        })?;
        if ok.is_nil() {
            return Ok((None, None, text));
        }
        Ok((failure.map(|f| f.0), failure.map(|f| f.1), None))
    })?;
    type Times = (Option<f64>, Option<f64>, Option<f64>);
    add_function(lua, raw, "balancer_timeouts", |_, (connect, send, read): Times| {
        with(|said| {
            said.timeouts = [milliseconds(connect), milliseconds(send), milliseconds(read)];
            Ok(None)
        })
    })?;
    add_function(lua, raw, "balancer_keep", |_, (timeout, requests): (f64, f64)| {
        with(|said| {
            if said.peer.is_none() {
                return Err("no current peer set".to_owned());
            }
            // 0: no limit, of both.
            let timeout = if timeout < 1.0 {
                Duration::from_secs(u64::from(u32::MAX))
            } else {
                Duration::from_millis(timeout as u64)
            };
            said.kept = Some((timeout, if requests < 1.0 { u64::MAX } else { requests as u64 }));
            Ok(None)
        })
    })?;
    add_function(lua, raw, "balancer_recreate", |_, ()| {
        with(|said| {
            said.changes.recreate = true;
            Ok(None)
        })
    })?;
    add_function(lua, raw, "balancer_tls", |_, on: bool| {
        with(|said| {
            said.changes.tls = Some(on);
            Ok(None)
        })
    })?;
    add_function(lua, raw, "balancer_bind", |_, from: Value| {
        let from = bytes_of(&from, 1, "bind_to_local_addr")?;
        with(|said| {
            let local = crate::upstream::directives::parse_local(&from);
            let text = || format!("invalid local address \"{}\"", String::from_utf8_lossy(&from));
            said.changes.local = Some(local.ok_or_else(text)?);
            Ok(None)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn peers_are_addresses() {
        let of = |text: &str, port: f64| address(text.as_bytes(), port).map(|a| a.to_string());
        assert_eq!(of("127.0.0.1", 81.0), Ok("127.0.0.1:81".to_owned()));
        assert_eq!(of("127.0.0.1", 0.0), Ok("127.0.0.1:80".to_owned()));
        assert_eq!(of("[::1]", 81.0), Ok("[::1]:81".to_owned()));
        assert_eq!(of("127.0.0.1:82", 81.0), Ok("127.0.0.1:82".to_owned()));
        assert_eq!(of("unix:/a/b", 0.0), Ok("unix:/a/b".to_owned()));
        assert_eq!(of("example.org", 80.0), Err("no host allowed".to_owned()));
        assert_eq!(of("127.0.0.1", 65536.0), Err("invalid port: 65536".to_owned()));
    }
}
