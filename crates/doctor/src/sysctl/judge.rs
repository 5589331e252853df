//! Assignments to judgements, for one kernel and one machine. Pure.

use super::read::Assignment;
use super::table::{self, Setting};
use crate::text::{bytes, number};
use serde::Serialize;
use std::collections::BTreeMap;

/// Where a line belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// It does something on this machine.
    Applies,
    /// It changes nothing: it is so already, or nothing here uses it.
    NoOp,
    /// This kernel does not have it.
    Removed,
    /// It does harm.
    Dangerous,
    /// Name or value are not what their author meant.
    Garbled,
}

impl Verdict {
    pub(crate) const ALL: [Verdict; 5] =
        [Verdict::Applies, Verdict::NoOp, Verdict::Removed, Verdict::Dangerous, Verdict::Garbled];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Applies => "applies",
            Verdict::NoOp => "no-op",
            Verdict::Removed => "removed",
            Verdict::Dangerous => "dangerous",
            Verdict::Garbled => "garbled",
        }
    }
}

/// What is judged for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    /// The kernel.
    pub(crate) kernel: (u32, u32),
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Values as they are now, where they are known.
    pub(crate) now: BTreeMap<String, String>,
    /// Names that were looked for and that this kernel does not have.
    pub(crate) absent: Vec<String>,
}

/// A line, judged.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judged {
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) value: String,
    /// As it was written, where that had to be repaired.
    pub(crate) written: Option<String>,
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
    /// What the corrected profile sets; nothing: it leaves it out.
    pub(crate) set: Option<String>,
}

const PAGE: u64 = 4096;
/// An orphan holds up to this much memory that cannot be swapped (the kernel's ip-sysctl.txt).
const ORPHAN: u64 = 64 << 10;

/// Judges all of them. Of a name that stands twice, the last counts, as with `sysctl -p`.
pub(crate) fn judge(all: &[Assignment], machine: &Machine) -> Vec<Judged> {
    let mut judged: Vec<Judged> = all.iter().enumerate().map(|(at, a)| one(a, all.get(at + 1), machine)).collect();
    for at in 0..all.len() {
        let later = all[at + 1..].iter().filter(|l| !l.is_comment).find(|l| same(&l.name, &all[at].name));
        let all_interfaces =
            all[..at].iter().find(|e| e.name == "net.ipv6.conf.all.disable_ipv6" && e.value == all[at].value);
        if let Some(earlier) = all_interfaces.filter(|_| {
            all[at].name.ends_with(".disable_ipv6")
                && !all[at].name.contains(".default.")
                && !all[at].name.contains(".all.")
        }) {
            (judged[at].verdict, judged[at].set) = (Verdict::NoOp, None);
            judged[at].reason = format!("line {} has done that for all interfaces", earlier.line);
        }
        let (Some(later), false) = (later, all[at].is_comment || all[at].name.is_empty()) else { continue };
        let again = &mut judged[at];
        again.set = None;
        if again.verdict == Verdict::Applies || again.verdict == Verdict::NoOp {
            again.verdict = Verdict::NoOp;
            let how = if later.value == all[at].value { "the same" } else { "the last one counts" };
            again.reason = format!("stands again in line {} ({how})", later.line);
        }
    }
    judged
}

/// Two names of one setting.
fn same(a: &str, b: &str) -> bool {
    let own = |name: &str| {
        if name == "net.nf_conntrack_max" { "net.netfilter.nf_conntrack_max".to_owned() } else { name.to_owned() }
    };
    own(a) == own(b)
}

fn one(a: &Assignment, next: Option<&Assignment>, machine: &Machine) -> Judged {
    let (verdict, reason, set) = verdict(a, next, machine);
    Judged {
        line: a.line,
        name: a.name.clone(),
        value: a.value.clone(),
        written: a.written.clone(),
        verdict,
        reason,
        set,
    }
}

type Said = (Verdict, String, Option<String>);

fn verdict(a: &Assignment, next: Option<&Assignment>, machine: &Machine) -> Said {
    use Verdict::{Applies, Garbled, NoOp, Removed};
    if a.name.is_empty() {
        let guess = match next.map(|n| n.name.as_str()) {
            Some("net.ipv4.tcp_wmem") => {
                " (by its place and its three numbers that of net.ipv4.tcp_rmem, which is not certain)"
            }
            _ => "",
        };
        return (Garbled, format!("a value whose name is lost{guess}"), None);
    }
    if a.name.chars().chain(a.value.chars()).any(char::is_control) {
        return (Garbled, "has characters that no setting has".to_owned(), None);
    }
    if a.is_comment {
        let value = if a.value.is_empty() { ", without a value" } else { "" };
        return (NoOp, format!("is a comment{value}"), None);
    }
    let Some(setting) = table::find(&a.name) else { return unknown(a, machine) };
    if let Some(removed) = setting.removed.filter(|r| machine.kernel >= *r) {
        let instead = setting.instead.map(|i| format!("; now {i}")).unwrap_or_default();
        return (
            Removed,
            format!("since Linux {}.{}{instead}: it was for {}", removed.0, removed.1, setting.does),
            None,
        );
    }
    if let Some(idle) = setting.idle.filter(|i| machine.kernel >= *i) {
        return (NoOp, format!("does nothing since Linux {}.{}: it was for {}", idle.0, idle.1, setting.does), None);
    }
    if a.value.is_empty() {
        return (Garbled, format!("has no value: it is for {}", setting.does), None);
    }
    let numbers = match form(setting, &a.value) {
        Ok(numbers) => numbers,
        Err(said) => return said,
    };
    if let Some(said) = special(&a.name, &numbers, machine) {
        return said;
    }
    if machine.absent.contains(&a.name) {
        return (
            NoOp,
            format!("this kernel does not have it (a module that is not loaded): it is for {}", setting.does),
            Some(a.value.clone()),
        );
    }
    if machine.now.get(&a.name).is_some_and(|now| words_of(now) == words_of(&a.value)) {
        return (NoOp, format!("is so already: {}", setting.does), Some(a.value.clone()));
    }
    (Applies, format!("{}{}", setting.does, sizes(setting, &numbers)), Some(a.value.clone()))
}

/// A setting of which nothing more than its name is known, if that.
fn unknown(a: &Assignment, machine: &Machine) -> Said {
    use Verdict::{Applies, Garbled, NoOp};
    let own = (!a.value.is_empty()).then(|| a.value.clone());
    if let Some(now) = machine.now.get(&a.name) {
        if own.is_none() {
            return (Garbled, "has no value".to_owned(), None);
        }
        if words_of(now) == words_of(&a.value) {
            return (NoOp, "is so already; nothing more is known of it here".to_owned(), own);
        }
        return (Applies, "this kernel has it; nothing more is known of it here".to_owned(), own);
    }
    if table::is_known(&a.name) {
        let does_not = machine.absent.contains(&a.name);
        return if own.is_none() {
            (Garbled, "has no value".to_owned(), None)
        } else if does_not {
            (
                NoOp,
                "other kernels have it, this one does not (its version, or a module that is not loaded)".to_owned(),
                own,
            )
        } else {
            (Applies, "kernels have it; nothing more is known of it here".to_owned(), own)
        };
    }
    let none = "no kernel has a setting of this name, as far as is known here";
    match &a.meant {
        Some(meant) => {
            let does = table::find(meant).map(|s| format!(", for {}", s.does)).unwrap_or_default();
            (
                Garbled,
                format!("{none}; the nearest one is {meant}{does}: is that what was meant? It is not set here"),
                None,
            )
        }
        None => (Garbled, none.to_owned(), None),
    }
}

fn words_of(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// The numbers of a value, if they are as many as the setting has.
fn form(setting: &Setting, value: &str) -> Result<Vec<u64>, Said> {
    if setting.numbers == 0 {
        return Ok(Vec::new());
    }
    let words = words_of(value);
    let numbers: Vec<u64> = words.iter().filter_map(|w| w.parse().ok()).collect();
    if numbers.len() != words.len() {
        let reason = format!("\"{value}\" is no number: it is for {}", setting.does);
        return Err((Verdict::Garbled, reason, None));
    }
    if numbers.len() == setting.numbers {
        return Ok(numbers);
    }
    let joined = joined(setting, &words);
    let (has, wants) = (numbers.len(), setting.numbers);
    let reason = match &joined {
        Some(joined) => {
            format!("{has} numbers where {wants} belong: a blank is in the middle of one, {joined} was meant")
        }
        None => format!("{has} numbers where {wants} belong: it is for {}", setting.does),
    };
    Err((Verdict::Garbled, reason, joined))
}

/// One number too many: two of them are one that was cut, if only one way of putting them together makes sense.
fn joined(setting: &Setting, words: &[&str]) -> Option<String> {
    if words.len() != setting.numbers + 1 || setting.unit != "ports" {
        return None;
    }
    let ways = (0..setting.numbers).map(|at| {
        let mut all: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let second = all.remove(at + 1);
        all[at].push_str(&second);
        all
    });
    let makes_sense = |all: &Vec<String>| {
        let ports: Vec<u64> = all.iter().filter_map(|w| w.parse().ok()).collect();
        ports.is_sorted() && ports.iter().all(|p| *p <= 65_535) && ports.first().is_some_and(|p| *p >= 1_024)
    };
    let mut good = ways.filter(makes_sense);
    let only = good.next()?;
    good.next().is_none().then(|| only.join(" "))
}

/// What bytes and pages come to.
fn sizes(setting: &Setting, numbers: &[u64]) -> String {
    let of = |scale: u64| numbers.iter().map(|n| bytes(n.saturating_mul(scale))).collect::<Vec<_>>().join(", ");
    match setting.unit {
        "bytes" => format!(" ({})", of(1)),
        "pages" => format!(" (pages: {})", of(PAGE)),
        _ => String::new(),
    }
}

/// What is known of single settings and their values.
fn special(name: &str, n: &[u64], machine: &Machine) -> Option<Said> {
    use Verdict::{Applies, Dangerous, Garbled, NoOp};
    let first = n.first().copied().unwrap_or(0);
    let dangerous = |reason: String, set: Option<&str>| Some((Dangerous, reason, set.map(str::to_owned)));
    let own = Some(n.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
    let now = machine.now.get(name).and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    let part = name.rsplit('.').next().unwrap_or_default();
    match name {
        "vm.swappiness" if first == 0 => dangerous(
            "0 is \"never\" since Linux 3.5: processes are killed for want of memory while there is swap; 1 or 10 is what was meant".into(),
            Some("10"),
        ),
        "net.ipv4.tcp_syncookies" if first == 0 => {
            dangerous("without cookies a flood of SYNs shuts everybody out; they cost nothing while there is none".into(), Some("1"))
        }
        "net.ipv4.tcp_max_tw_buckets" if first < 10_000 => dangerous(
            format!("{first} places for TIME_WAIT: beyond them connections are ended without it, and late segments reach the next one on the same ports"),
            Some("262144"),
        ),
        "net.ipv4.tcp_keepalive_time" if first < 10 => {
            dangerous(format!("a probe after {first} s of silence: with 100,000 idle connections {} packets a second", number(100_000 / first.max(1))), Some("60"))
        }
        "net.ipv4.tcp_timestamps" if first == 0 => {
            dangerous("without timestamps tcp_tw_reuse does nothing, and round trips are measured badly".into(), Some("1"))
        }
        "net.ipv4.tcp_abort_on_overflow" if first == 1 => {
            dangerous("a full accept queue then resets clients who would have got in a second later".into(), Some("0"))
        }
        "net.ipv4.tcp_window_scaling" | "net.ipv4.tcp_sack" | "net.ipv4.tcp_moderate_rcvbuf" | "net.ipv4.tcp_dsack" => Some(if first == 1 {
            (NoOp, "is 1 unless somebody changed it".into(), own)
        } else {
            (Dangerous, "slows every connection that is not local".into(), Some("1".into()))
        }),
        "net.core.somaxconn" if machine.kernel >= (5, 4) && first < 4_096 => {
            dangerous(format!("lowers it: 4096 is the default since Linux 5.4, and {first} cuts every backlog"), Some("4096"))
        }
        "net.core.somaxconn" | "net.ipv4.tcp_max_syn_backlog" if first > 262_144 => dangerous(
            format!("{} connections that wait: those at the end have given up long before they are answered; a short queue tells them sooner", number(first)),
            Some("65535"),
        ),
        "net.core.netdev_max_backlog" if first > 250_000 => dangerous(
            format!("{} packets for each CPU, {} of them: seconds of delay instead of a drop", number(first), bytes(first.saturating_mul(2048))),
            Some("20000"),
        ),
        "net.core.rmem_default" | "net.core.wmem_default" if first > 16 << 20 => dangerous(
            format!("{} for every socket that is not TCP, more than {} allows (8388608, 8 MB, may be what was meant); TCP does not look at it", bytes(first), part.replace("default", "max")),
            Some("262144"),
        ),
        "net.core.optmem_max" if first > 1 << 20 => {
            dangerous(format!("{} of options for each socket, of kernel memory; nothing here needs more than the default", bytes(first)), None)
        }
        "net.ipv4.tcp_mem" | "net.ipv4.udp_mem" => memory(name, n, machine),
        "net.ipv4.tcp_rmem" | "net.ipv4.tcp_wmem" => Some(buffers(name, n, own)),
        "net.ipv4.tcp_max_orphans" if machine.memory > 0 && first.saturating_mul(ORPHAN) > machine.memory => dangerous(
            format!("{} orphans of up to 64 kB are {}, this machine has {}", number(first), bytes(first.saturating_mul(ORPHAN)), bytes(machine.memory)),
            Some(&(machine.memory / 4 / ORPHAN).to_string()),
        ),
        "net.ipv4.tcp_max_orphans" => Some((Applies, format!("connections that no process has any more ({} if each holds its 64 kB)", bytes(first.saturating_mul(ORPHAN))), own)),
        "net.ipv4.tcp_fin_timeout" if first < 5 => dangerous("clients that are slow to close are reset".into(), Some("15")),
        "fs.file-max" if now.or(default_files(machine)).is_some_and(|now| now >= first) => {
            let (is, now) = now.map_or(("the kernel's own choice here", default_files(machine)), |n| ("now", Some(n)));
            Some((NoOp, format!("would lower it: it is {} ({is})", number(now.unwrap_or(0))), None))
        }
        "fs.nr_open" if first > 2_147_483_584 => Some((Garbled, "is more than the kernel takes (2147483584)".into(), None)),
        "net.ipv4.ip_local_port_range" => Some(port_range(n, own)),
        "kernel.msgmni" | "kernel.shmmni" if first > 32_768 => {
            Some((Garbled, "is refused: the kernel takes at most 32768; System V's things, which no web server uses".into(), None))
        }
        _ if name.starts_with("kernel.") && ["sem", "shmall", "shmmax", "shmmni", "msgmax", "msgmnb", "msgmni"].contains(&part) => {
            Some((NoOp, format!("is for {}", table::find(name)?.does), None))
        }
        _ if name.starts_with("kernel.perf_") => Some((NoOp, format!("is for {}", table::find(name)?.does), None)),
        "net.ipv4.conf.lo.arp_announce" | "net.ipv4.conf.lo.arp_ignore" => Some((NoOp, "the loopback has no ARP".into(), None)),
        _ if part == "rp_filter" && first == 0 => Some((Applies, format!("{}: packets with forged senders come in; only where answers go another way (a balancer in direct mode)", scope(name)), own)),
        _ if part == "disable_ipv6" && first == 1 => Some((Applies, format!("{}: no IPv6, and a configuration with listen [::]:80 no longer starts", scope(name)), own)),
        _ if name.contains(".conf.default.") => Some((Applies, format!("only for interfaces that are made later: {}", table::find(name)?.does), own)),
        _ => None,
    }
}

/// What the kernel chooses for `fs.file-max`: a tenth of memory, if an open file takes a kilobyte (`files_maxfiles_init`).
fn default_files(machine: &Machine) -> Option<u64> {
    (machine.memory > 0).then_some(machine.memory / 1024 / 10)
}

/// For which interfaces a setting is.
fn scope(name: &str) -> &'static str {
    if name.contains(".default.") {
        "interfaces that are made later"
    } else if name.contains(".all.") {
        "all interfaces"
    } else {
        "one interface"
    }
}

fn memory(name: &str, n: &[u64], machine: &Machine) -> Option<Said> {
    let &[low, pressure, high] = n else { return None };
    let shown = format!(
        "{}, {}, {}",
        bytes(low.saturating_mul(PAGE)),
        bytes(pressure.saturating_mul(PAGE)),
        bytes(high.saturating_mul(PAGE))
    );
    if !n.is_sorted() {
        return Some((Verdict::Garbled, format!("the three numbers do not rise ({shown})"), None));
    }
    let what = if name.ends_with("udp_mem") { "UDP" } else { "TCP" };
    if machine.memory == 0 || high.saturating_mul(PAGE) <= machine.memory / 4 * 3 {
        return Some((
            Verdict::Applies,
            format!("memory of all {what} sockets, in pages of 4 kB, not in bytes: {shown}"),
            Some(join(n)),
        ));
    }
    let pages = machine.memory / PAGE;
    let better = [pages / 16, pages / 8, pages / 4];
    let reason = format!(
        "counts pages of 4 kB: {shown}, where this machine has {}: the kernel runs out before {what} does",
        bytes(machine.memory)
    );
    Some((Verdict::Dangerous, reason, Some(join(&better))))
}

fn join(n: &[u64]) -> String {
    n.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

fn buffers(name: &str, n: &[u64], own: Option<String>) -> Said {
    let &[least, start, most] = n else { return (Verdict::Garbled, "three numbers".into(), None) };
    let shown = format!("in bytes, for one connection: {}, {}, {}", bytes(least), bytes(start), bytes(most));
    if !n.is_sorted() {
        return (Verdict::Garbled, format!("the three numbers do not rise ({shown})"), None);
    }
    if most > 1 << 30 {
        return (Verdict::Garbled, format!("{shown}: a unit is wrong"), None);
    }
    let small = if start >= 16_384 {
        ""
    } else if name.ends_with("rmem") {
        "; beginning with so little saves memory of idle connections, and slows uploads (the default is 131072)"
    } else {
        "; beginning with so little saves memory of idle connections (the default is 16384)"
    };
    (Verdict::Applies, format!("{shown}{small}"), own)
}

fn port_range(n: &[u64], own: Option<String>) -> Said {
    let &[first, last] = n else { return (Verdict::Garbled, "two numbers".into(), None) };
    if first > last || last > 65_535 || first == 0 {
        return (Verdict::Garbled, format!("{first} to {last} are no ports"), None);
    }
    let low = if first < 10_000 {
        "; services that listen there need net.ipv4.ip_local_reserved_ports, or a client takes their port (ironweir doctor ports)"
    } else {
        ""
    };
    (
        Verdict::Applies,
        format!("{} local ports for connections to one address and port{low}", number(last + 1 - first)),
        own,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysctl::read::read;

    #[test]
    fn kernels_and_machines_decide() {
        let said = |text: &str, kernel, now: &[(&str, &str)]| {
            let now = now.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let machine = Machine { kernel, memory: 8 << 30, now, absent: Vec::new() };
            let j = judge(&read(text, &|_| false), &machine);
            (j[0].verdict, j[0].set.clone())
        };
        use Verdict::{Applies, Dangerous, Garbled, NoOp, Removed};
        assert_eq!(said("net.ipv4.tcp_tw_recycle = 1", (4, 11), &[]).0, Applies);
        assert_eq!(said("net.ipv4.tcp_tw_recycle = 1", (4, 12), &[]), (Removed, None));
        assert_eq!(said("net.core.somaxconn = 2048", (5, 3), &[]).0, Applies);
        assert_eq!(said("net.core.somaxconn = 2048", (5, 4), &[]), (Dangerous, Some("4096".into())));
        assert_eq!(said("net.core.somaxconn = 8192", (6, 1), &[("net.core.somaxconn", "8192")]).0, NoOp);
        assert_eq!(said("fs.file-max = 1000", (6, 1), &[("fs.file-max", "9000")]), (NoOp, None));
        assert_eq!(said("net.ipv4.tcp_mem = 1 2 8000000", (6, 1), &[]).0, Dangerous);
        assert_eq!(said("net.ipv4.tcp_mem = 1 2", (6, 1), &[]).0, Garbled);
        assert_eq!(
            said("net.ipv4.ip_local_port_range = 204 8 64500", (6, 1), &[]),
            (Garbled, Some("2048 64500".into()))
        );
        assert_eq!(said("net.ipv4.nothing = 1", (6, 1), &[]).0, Garbled);
        assert_eq!(said("net.ipv4.tcp_retries1 = 3", (6, 1), &[]), (Applies, Some("3".into())));
        assert_eq!(said("kerntl.shmall = 3", (6, 1), &[]), (Garbled, None));
        let most = u64::MAX;
        for name in
            ["net.ipv4.tcp_max_orphans", "net.core.netdev_max_backlog", "net.core.optmem_max", "net.core.rmem_default"]
        {
            assert_eq!(said(&format!("{name} = {most}"), (6, 1), &[]).0, Dangerous);
        }
        for name in ["net.ipv4.udp_mem", "net.ipv4.tcp_mem", "net.ipv4.tcp_rmem", "net.ipv4.ip_local_port_range"] {
            assert!(matches!(said(&format!("{name} = {most} {most} {most}"), (6, 1), &[]).0, Dangerous | Garbled));
        }
        assert_eq!(said("net.core.somaxconn = 5000\nnet.core.somaxconn = 6000", (6, 1), &[]), (NoOp, None));
    }
}
