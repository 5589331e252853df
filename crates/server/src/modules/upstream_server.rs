//! `server` and `state` of an `upstream` block: a line's words become peers (the part of nginx's `ngx_http_upstream` that
//! reads servers; `state` as in nginx Plus).

use super::upstream_block::{Block, current};
use super::upstream_state;
use crate::config::setters::duplicate;
use crate::config::{Directive, Scope, Subsystem, upstream_of_both};
use crate::connection::Address;
use crate::upstream::availability::Role;
use crate::upstream::group::Method;
use crate::upstream::peer::PeerSettings;
use crate::upstream::servers::MAX_SERVERS;
use conf::{Node, Problem, value};
use std::net::IpAddr;

/// The longest `route` (nginx's `NGX_HTTP_UPSTREAM_SID_LEN`).
const LONGEST_ROUTE: usize = 32;

/// The directives.
pub const DIRECTIVES: &[Directive] = &[
    upstream_of_both("server", |s, n| {
        let subsystem = s.build.subsystem;
        let block = current(s);
        if block.state_file.is_some() {
            return Err(n.problem("\"server\" and \"state\" cannot stand in one upstream".to_owned()));
        }
        server(block, subsystem, n)
    }),
    upstream_of_both("state", state),
];

/// What the parameters of a `server` line say.
#[derive(Default)]
struct Parameters {
    peer: PeerSettings,
    backup: bool,
    resolve: bool,
    service: Option<String>,
}

impl Parameters {
    fn read(node: &Node, method: Option<&Method>) -> Result<Parameters, Problem> {
        let mut p = Parameters::default();
        // nginx knows the methods that stand before the line.
        let plain = matches!(method, Some(Method::IpHash | Method::Hash { .. } | Method::Random { .. }));
        for word in &node.args[1..] {
            let text = word.as_str();
            let bad = || node.problem(format!("invalid parameter \"{text}\""));
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            if plain && matches!(name, "backup" | "slow_start") {
                return Err(node.problem(format!("balancing method does not support parameter \"{text}\"")));
            }
            let peer = &mut p.peer;
            match (name, value) {
                ("weight", v) => peer.weight = v.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?,
                ("max_conns", v) => peer.max_conns = v.parse().map_err(|_| bad())?,
                ("max_fails", v) => peer.policy.max_fails = v.parse().map_err(|_| bad())?,
                ("fail_timeout", v) => peer.policy.fail_timeout_s = value::seconds(v.as_bytes()).ok_or_else(bad)?,
                ("slow_start", v) => peer.slow_start_ms = value::milliseconds(v.as_bytes()).ok_or_else(bad)?,
                ("backup", "") => p.backup = true,
                ("down", "") => peer.role = Role::Down,
                ("drain", "") => peer.role = Role::Drain,
                ("resolve", "") => p.resolve = true,
                ("service", "") => return Err(node.problem("service is empty".to_owned())),
                ("service", v) => p.service = Some(v.to_owned()),
                ("route", "") => return Err(node.problem("route is empty".to_owned())),
                ("route", v) if v.len() > LONGEST_ROUTE => {
                    return Err(node.problem(format!("route is longer than {LONGEST_ROUTE}")));
                }
                ("route", v) => peer.route = v.into(),
                _ => return Err(bad()),
            }
        }
        Ok(p)
    }
}

fn server(block: &mut Block, subsystem: Subsystem, node: &Node) -> Result<(), Problem> {
    let word = node.args[0].as_str().into_owned();
    let Parameters { peer, backup, resolve: follow, service } = Parameters::read(node, block.method.as_ref())?;
    if let Some(name) = named(&word, follow, service.as_deref()).map_err(|t| node.problem(t))? {
        block.servers.add_named(&word, name, service.as_deref(), peer, backup);
        return Ok(());
    }
    let addresses =
        resolve(&word, default_port(subsystem)).map_err(|e| node.problem(format!("{e} in upstream \"{word}\"")))?;
    for address in addresses {
        block.servers.add_fixed(&word, address, peer.clone(), backup);
    }
    Ok(())
}

/// Host and port of a name that is to be followed; nothing if the address is fixed.
pub fn named<'w>(word: &'w str, follow: bool, service: Option<&str>) -> Result<Option<(&'w str, u16)>, String> {
    let (host, port) = match word.rsplit_once(':') {
        Some((host, port)) if !word.starts_with("unix:") && !word.ends_with(']') => (host, Some(port)),
        _ => (word, None),
    };
    if service.is_some() {
        if !follow {
            return Err(format!("service upstream \"{word}\" requires \"resolve\" parameter"));
        }
        if port.is_some() {
            return Err(format!("service upstream \"{word}\" may not have port"));
        }
    }
    let fixed = word.starts_with("unix:") || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if fixed && service.is_some() {
        return Err(format!("service upstream \"{word}\" requires domain name"));
    }
    if fixed || !follow {
        return Ok(None);
    }
    if host.is_empty() {
        return Err(format!("no host in upstream \"{word}\""));
    }
    match port.map(str::parse::<u16>) {
        None => Ok(Some((host, 80))),
        Some(Ok(port)) if port > 0 => Ok(Some((host, port))),
        Some(_) => Err(format!("invalid port in upstream \"{word}\"")),
    }
}

/// Addresses of `host[:port]` or `unix:path`. Names are looked up while the configuration is read.
pub fn resolve(text: &str, default_port: u16) -> Result<Vec<Address>, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err("no path in the unix domain socket".into())
        } else {
            Ok(vec![Address::Unix(path.into())])
        };
    }
    let found = super::listen::resolve(text, default_port)?;
    if found.iter().any(|a| a.port() == 0) {
        return Err("no port".into());
    }
    Ok(found.into_iter().map(Address::Inet).collect())
}

/// The port where none is written; 0: there has to be one.
pub fn default_port(subsystem: Subsystem) -> u16 {
    if subsystem.is_stream() { 0 } else { 80 }
}

/// `state file`: the lines stand in a file, which is written when they are edited. Without the file there are none yet.
fn state(scope: &mut Scope<'_, '_>, node: &Node) -> Result<(), Problem> {
    let path = scope.build.conf_path(&node.args[0].text);
    let (subsystem, files) = (scope.build.subsystem, scope.build.files);
    scope.build.state_files.push(path.clone());
    let block = current(scope);
    if !block.servers.lines.is_empty() {
        return Err(node.problem("\"server\" and \"state\" cannot stand in one upstream".to_owned()));
    }
    if block.state_file.replace(path.clone()).is_some() {
        return Err(duplicate(node));
    }
    let text = match files.read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Problem::io(node.name.span, "open()", &path, &e)),
    };
    let bad = |what: &str| node.problem(format!("{what} in state file \"{}\"", path.display()));
    for line in upstream_state::lines_of(&text, MAX_SERVERS).map_err(|what| bad(&what))? {
        server(block, subsystem, &line).map_err(|p| bad(&p.message))?;
    }
    Ok(())
}
