//! A plan for people: only what changes, and what it costs.

use super::{Change, Detour, Plan, Where};
use std::fmt::Write;

/// So many detours are shown; JSON has all of them.
const SHOWN: usize = 20;

fn sign(change: Change) -> char {
    match change {
        Change::Added => '+',
        Change::Removed => '-',
        Change::Changed => '~',
        Change::Kept => ' ',
        Change::Lost => '!',
    }
}

impl Plan {
    /// Lines; each begins with `+` (comes), `-` (goes), `~` (changes) or `!` (loses what it knows).
    pub fn text(&self) -> String {
        let mut out = format!("A reload would replace configuration {}.\n", self.generation);
        if let Some(file) = &self.other_file {
            let _ = writeln!(out, "  ! the server itself reads {file} on a reload, not this file");
        }
        if !self.new_process.is_empty() {
            let why = self.new_process.join(", ");
            let _ = writeln!(
                out,
                "  ! a new worker process ({why}): zones, counts and health begin anew; the old one serves its connections to their end"
            );
        }
        if self.threads.0 != self.threads.1 {
            let _ = writeln!(out, "  ~ worker threads: {} -> {}", self.threads.0, self.threads.1);
        }
        let before = out.len();
        self.addresses(&mut out);
        for name in &self.servers.removed {
            let _ = writeln!(out, "  - server {name}");
        }
        for name in &self.servers.added {
            let _ = writeln!(out, "  + server {name}");
        }
        for z in self.zones.iter().filter(|z| z.change != Change::Kept) {
            let why = if z.why.is_empty() { String::new() } else { format!(" begins empty: {}", z.why) };
            let _ = writeln!(out, "  {} zone {} ({}){why}", sign(z.change), z.name, z.of);
        }
        self.groups(&mut out);
        for c in &self.certificates {
            let day = |s: Option<i64>| s.map(crate::tls::expiry::shown);
            let until = match (day(c.until.0), day(c.until.1)) {
                (Some(a), Some(b)) => format!("ends {a} -> {b}"),
                (a, b) => format!("ends {}", a.or(b).unwrap_or_default()),
            };
            let _ = writeln!(out, "  {} certificate {} ({}), {until}", sign(c.change), c.name, c.hosts.join(" "));
        }
        self.detours(&mut out);
        if out.len() == before && self.new_process.is_empty() {
            out.push_str("  nothing that can be seen from here changes\n");
        }
        if let Some(open) = self.connections {
            let gone: u64 =
                self.listeners.iter().filter(|l| l.change == Change::Removed).filter_map(|l| l.connections).sum();
            let _ = writeln!(
                out,
                "Open connections: {open}; none is closed by a reload{}.",
                match gone {
                    0 => String::new(),
                    n => format!(", {n} came to addresses that go and are served to their end"),
                }
            );
        }
        self.looked_at(&mut out);
        out
    }

    fn addresses(&self, out: &mut String) {
        for l in self.listeners.iter().filter(|l| l.change != Change::Kept) {
            let more = match (l.change, l.connections) {
                (Change::Removed, Some(n)) if n > 0 => format!(", {n} open connections"),
                (Change::Changed, _) => ", options of its socket".to_owned(),
                _ => String::new(),
            };
            let _ = writeln!(out, "  {} listen {} ({}){more}", sign(l.change), l.address, l.kind);
        }
    }

    fn groups(&self, out: &mut String) {
        for g in &self.upstreams {
            let _ = write!(out, "  {} upstream {} ({})", sign(g.change), g.name, g.subsystem);
            if let Some((a, b)) = &g.method {
                let _ = write!(out, ", {a} -> {b}");
            }
            out.push('\n');
            for (sign, servers) in [('+', &g.servers_added), ('-', &g.servers_removed), ('~', &g.servers_changed)] {
                // All servers of a group that comes or goes do the same.
                if g.change == Change::Changed {
                    servers.iter().for_each(|s| {
                        let _ = writeln!(out, "      {sign} server {s}");
                    });
                }
            }
        }
    }

    fn detours(&self, out: &mut String) {
        for Detour { count, example, was, becomes } in self.requests.detours.iter().take(SHOWN) {
            let _ = writeln!(out, "  ~ {count} requests like {example}");
            for (name, w) in [("was", was), ("becomes", becomes)] {
                let Where { server, location, handler } = w;
                let _ = writeln!(out, "      {name:<8} server {server}, location {location}: {handler}");
            }
        }
        let rest = self.requests.detours.len().saturating_sub(SHOWN);
        if rest > 0 {
            let _ = writeln!(out, "  ~ {rest} more kinds of requests go elsewhere (--json lists them)");
        }
    }

    fn looked_at(&self, out: &mut String) {
        let r = &self.requests;
        if r.read == 0 {
            out.push_str("No request of an access log could be compared: there is none that is readable, or its format has no request.\n");
            return;
        }
        let _ = writeln!(out, "{} of the last {} requests of the access logs would go elsewhere.", r.elsewhere, r.read);
        let unread = r.unread;
        if unread > 0 {
            let _ = writeln!(out, "  {unread} lines do not have their format's form.");
        }
        if r.without_host > 0 {
            let _ = writeln!(
                out,
                "  The format of {} of them has no $host: the server that stands for the address is assumed.",
                r.without_host
            );
        }
        if r.with_programs > 0 {
            let _ = writeln!(out, "  {} of them pass programs (rewrite_by_lua), which were not run.", r.with_programs);
        }
    }
}
