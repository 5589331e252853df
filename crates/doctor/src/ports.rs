//! `ironweir doctor ports`: who listens where, and who holds a port that a service needs.

use crate::command::{self, PAUSE};
use crate::facts::Facts;
use crate::finding::Finding;
use crate::options::Options;
use crate::rules;
use api_client::terminal::plain;
use std::fmt::Write;
use std::path::Path;

/// Findings that are about ports.
const ABOUT: &[&str] = &["port-taken", "ports-unreserved", "local-ports-used-up"];

/// Runs it.
pub(crate) fn run(o: &Options, file: Option<&Path>) -> Result<u8, String> {
    let facts = match o.value("facts") {
        Some(recorded) => Facts::load(Path::new(recorded))?,
        None => Facts::read(o.duration("interval", PAUSE / 10)?, file)?,
    };
    let findings: Vec<Finding> = rules::judge(&facts).into_iter().filter(|f| ABOUT.contains(&f.id)).collect();
    if !o.has("json") {
        command::print(&table(&facts));
    }
    command::show(o, &findings, &facts.machine.missing)
}

/// Who listens where.
fn table(facts: &Facts) -> String {
    let m = &facts.machine;
    let mut out = String::new();
    let mut row = |kind: &str, address: &str, queue: String, inode: u64| {
        let mut holders: Vec<String> = m
            .processes
            .iter()
            .filter(|p| p.listens.contains(&inode))
            .map(|p| format!("{} {}", plain(&p.name), p.pid))
            .collect();
        let more = holders.len().saturating_sub(3);
        holders.truncate(3);
        if more > 0 {
            holders.push(format!("and {more} more"));
        }
        let address = plain(address);
        let _ = writeln!(out, "{kind:<5} {address:<32} {queue:>12}  {}", holders.join(", "));
    };
    row("", "address", "queue".to_owned(), 0);
    for l in &m.sockets.listeners {
        let kind = if l.port == 0 { "unix" } else { "tcp" };
        row(kind, &l.address, format!("{}/{}", l.queue, l.backlog), l.inode);
    }
    for b in &m.sockets.udp {
        row("udp", &b.address, String::new(), b.inode);
    }
    for name in ["net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"] {
        let _ = writeln!(out, "{name} = {}", m.settings.get(name).map(String::as_str).unwrap_or_default());
    }
    out.push('\n');
    out
}
