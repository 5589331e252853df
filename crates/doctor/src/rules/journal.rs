//! What the journal says of units: how their processes ended, cores that were taken, errors.

use crate::facts::Facts;
use crate::finding::{Finding, Sure, Weight};
use crate::text::number;
use machine::journal::{Entry, Kind};
use std::collections::BTreeMap;

/// What happened within this time is a warning, before that a note: seconds.
const RECENT_S: u64 = 3_600;
/// Units of servers by how their names begin: one that has died listens nowhere, by which it would be known.
const SERVERS: &[&str] = &[
    "ironweir",
    "nginx",
    "openresty",
    "angie",
    "haproxy",
    "apache2",
    "httpd",
    "caddy",
    "lighttpd",
    "php",
    "varnish",
    "envoy",
    "traefik",
    "squid",
    "uwsgi",
    "gunicorn",
];
const FROM: &str = "the journal";

/// Of servers' units, what has died and what they complain of.
pub(super) fn units(facts: &Facts) -> Vec<Finding> {
    let serves = |e: &Entry| {
        SERVERS.iter().any(|name| e.unit.starts_with(name))
            || facts.machine.processes.iter().any(|p| p.unit.as_deref() == Some(&e.unit))
    };
    let mut found = ends(facts, serves);
    found.extend(errors(facts, serves));
    found
}

/// How processes of units ended: one finding for each unit and kind of end.
pub(crate) fn ends(facts: &Facts, is_wanted: impl Fn(&Entry) -> bool) -> Vec<Finding> {
    let mut by_end: BTreeMap<(&str, End), (u64, &Entry)> = BTreeMap::new();
    for e in facts.machine.journal.iter().filter(|e| is_wanted(e)) {
        let Some(end) = End::of(e) else { continue };
        let (count, last) = by_end.entry((&e.unit, end)).or_insert((0, e));
        (*count, *last) = (*count + e.count, e);
    }
    let each = |((unit, end), (count, last)): ((&str, End), (u64, &Entry))| {
        let ago = facts.machine.ago_s(last);
        let unit = if unit.is_empty() { "a process of no unit" } else { unit };
        let times = if count == 1 { String::new() } else { format!(" {} times", number(count)) };
        let (id, what, why) = match &end {
            End::Memory => (
                "unit-out-of-memory",
                format!("The kernel killed a process of {unit} for want of memory{times}."),
                "All of its connections died with it.",
            ),
            End::Signal(signal) => {
                let (name, why) = crate::exits::meaning(*signal);
                ("unit-died", format!("A process of {unit} died of signal {signal} ({name}){times}."), why)
            }
            End::Status(status) => (
                "unit-failed",
                format!("A process of {unit} ended with status {status}{times}."),
                "It gave up by itself: its lines just before say why.",
            ),
        };
        let weight = if ago <= RECENT_S { Weight::Warning } else { Weight::Note };
        let finding = Finding::new(id, weight, what)
            .seen(format!("\"{}\" {} s ago", last.text, number(ago)), FROM)
            .because(why)
            .sure(Sure::Certain);
        match end {
            End::Memory => finding.cure("MemoryMax= in the unit, smaller processes, more memory"),
            End::Signal(_) => {
                finding.cure(format!("journalctl -u {unit} -e; coredumpctl list (where systemd takes cores)"))
            }
            End::Status(_) => finding.cure(format!("journalctl -u {unit} -e")),
        }
    };
    by_end.into_iter().map(each).collect()
}

/// Cores that systemd has taken.
pub(crate) fn cores(facts: &Facts) -> Vec<Finding> {
    let each = |e: &Entry| {
        let (_, signal) = e.exit.as_ref()?;
        let (name, why) = crate::exits::meaning(signal.parse().unwrap_or(0));
        let what = format!(
            "{} died of signal {signal} ({name}) {} s ago, and left a core.",
            e.who,
            number(facts.machine.ago_s(e))
        );
        let finding = Finding::new("core", Weight::Warning, what).seen(e.text.clone(), FROM).because(why);
        Some(match &e.core {
            Some(path) => {
                finding.seen(path.clone(), "COREDUMP_FILENAME").cure("coredumpctl debug: the last one, in gdb; then bt")
            }
            None => finding
                .cure("the core itself was not kept: Storage= and ExternalSizeMax= in /etc/systemd/coredump.conf"),
        })
    };
    facts.machine.journal.iter().filter(|e| e.kind == Kind::Core).filter_map(each).collect()
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Memory,
    Signal(u32),
    Status(String),
}

impl End {
    fn of(e: &Entry) -> Option<End> {
        match (e.kind, &e.exit) {
            (Kind::OutOfMemory, _) => Some(End::Memory),
            (Kind::Exit, Some((code, status))) if code == "exited" => Some(End::Status(status.clone())),
            (Kind::Exit, Some((_, status))) => Some(End::Signal(status.parse().ok()?)),
            _ => None,
        }
    }
}

/// What units complain of: notes, since what weighs is found by what it does.
fn errors(facts: &Facts, is_wanted: impl Fn(&Entry) -> bool) -> Vec<Finding> {
    let mut by_unit: BTreeMap<&str, (u64, &Entry)> = BTreeMap::new();
    for e in facts.machine.journal.iter().filter(|e| e.kind == Kind::Error && is_wanted(e)) {
        let (count, last) = by_unit.entry(&e.unit).or_insert((0, e));
        (*count, *last) = (*count + e.count, e);
    }
    let each = |(unit, (count, last)): (&str, (u64, &Entry))| {
        let what = format!("{} lines about errors of {unit} are in the journal.", number(count));
        let ago = number(facts.machine.ago_s(last));
        Finding::new("unit-errors", Weight::Note, what)
            .seen(format!("the last one: \"{}\" {ago} s ago", last.text), FROM)
            .because("Priority 3 and less: something failed.")
            .cure(format!("journalctl -u {unit} -p err -e"))
            .sure(Sure::Certain)
    };
    by_unit.into_iter().map(each).collect()
}

/// The kernel's lines: those that it still has, and those that only the journal has, oldest first: text, how long ago (seconds), where from.
pub(crate) fn kernel_lines(m: &machine::Facts) -> Vec<(&str, f64, &'static str)> {
    let own = m.kernel_log.iter().map(|l| (l.text.as_str(), (m.up_s - l.at_s).max(0.0), "/dev/kmsg"));
    let is_new = |e: &&Entry| e.kind == Kind::Kernel && !m.kernel_log.iter().any(|l| l.text == e.text);
    let more = m.journal.iter().filter(is_new).map(|e| (e.text.as_str(), m.ago_s(e) as f64, FROM));
    let mut all: Vec<_> = own.chain(more).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: Kind, unit: &str, exit: Option<(&str, &str)>, ago: u64) -> Entry {
        let exit = exit.map(|(code, status)| (code.to_owned(), status.to_owned()));
        Entry {
            at_us: (10_000 - ago) * 1_000_000,
            kind,
            unit: unit.into(),
            text: "it said so".into(),
            exit,
            count: 1,
            ..Entry::default()
        }
    }

    fn with(entries: Vec<Entry>) -> Facts {
        let mut facts = Facts::default();
        (facts.machine.at, facts.machine.up_s) = (10_000, 5_000.0);
        facts.machine.journal = entries;
        facts
    }

    #[test]
    fn ends_of_units_are_counted_and_those_of_others_are_left_to_exits() {
        let facts = with(vec![
            entry(Kind::Exit, "nginx.service", Some(("dumped", "11")), 9_000),
            entry(Kind::Exit, "nginx.service", Some(("killed", "11")), 50),
            entry(Kind::OutOfMemory, "app.service", None, 20),
            entry(Kind::Exit, "backup.service", Some(("exited", "3")), 5_000),
            entry(Kind::Error, "nginx.service", None, 30),
        ]);
        let told = |found: &[Finding]| found.iter().map(|f| (f.id, f.weight, f.what.clone())).collect::<Vec<_>>();
        let all = told(&ends(&facts, |_| true));
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(
            all[2].2.contains("nginx.service died of signal 11 (SIGSEGV) 2 times") && all[2].1 == Weight::Warning,
            "{all:?}"
        );
        assert!(
            all[0].0 == "unit-out-of-memory"
                && all[1] == ("unit-failed", Weight::Note, "A process of backup.service ended with status 3.".into())
        );
        let servers: Vec<_> = units(&facts).iter().map(|f| (f.id, f.weight)).collect();
        assert_eq!(servers, [("unit-died", Weight::Warning), ("unit-errors", Weight::Note)], "a backup is no server");
        let answer = crate::why::judge(&facts);
        assert!(answer.finding.is_none() && answer.others.is_empty(), "none of that is in the way now: {answer:?}");
    }

    #[test]
    fn the_kernels_lines_of_both_are_each_told_once() {
        let line = |text: &str, at_s| machine::kernel_log::Line { at_s, text: text.into() };
        let old =
            Entry { text: "x[1]: segfault at 0 of the boot before".into(), ..entry(Kind::Kernel, "", None, 8_000) };
        let both = Entry { text: "x[2]: segfault at 0".into(), ..entry(Kind::Kernel, "", None, 10) };
        let mut facts = with(vec![old, both]);
        facts.machine.kernel_log = vec![line("x[2]: segfault at 0", 4_990.0)];
        let lines = kernel_lines(&facts.machine);
        assert_eq!(
            lines,
            [
                ("x[1]: segfault at 0 of the boot before", 8_000.0, "the journal"),
                ("x[2]: segfault at 0", 10.0, "/dev/kmsg")
            ]
        );
    }
}
