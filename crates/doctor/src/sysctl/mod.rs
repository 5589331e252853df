//! `ironweir doctor sysctl FILE`: what each line of a profile of kernel settings does on this machine, and the profile as it should be.
//!
//! Text -> assignments (`read`) -> judgements (`judge`, by `table`) -> text, JSON, a corrected profile.

pub(crate) mod judge;
pub(crate) mod read;
pub(crate) mod table;

use crate::command::{self, WARNING};
use crate::facts::Facts;
use crate::options::Options;
use api_client::terminal::plain;
use judge::{Judged, Machine, Verdict};
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The first line of a profile that was written here, by which one may be written over.
const HEAD: &str = "# Corrected by ironweir doctor sysctl";

/// Reads any text, judges it for a kernel and some memory, and gives the profile that it makes, whose settings are `name = value` lines. For fuzzing.
pub fn corrected(text: &str, release: &str, memory: u64) -> String {
    let kernel = table::version(release).unwrap_or((u32::MAX, 0));
    let machine = Machine { kernel, memory, ..Machine::default() };
    let judged = judge::judge(&read::read(text, &|_| false), &machine);
    let _ = report(&judged);
    profile("any", &judged, &machine)
}

/// Runs it.
pub(crate) fn run(o: &Options, file: &str) -> Result<u8, String> {
    let bytes = crate::files::read(file.as_ref(), read::MOST_BYTES).map_err(|e| format!("{file}: {e}"))?;
    if bytes.len() > read::MOST_BYTES {
        return Err(format!("{file}: more than {} bytes are no profile of settings", read::MOST_BYTES));
    }
    let text = String::from_utf8_lossy(&bytes);
    let (assignments, machine) = match o.value("facts") {
        Some(path) => {
            let machine = of_facts(&Facts::load(Path::new(path))?);
            (read::read(&text, &|name| machine.now.contains_key(name)), machine)
        }
        None => {
            let assignments = read::read(&text, &machine::facts::has_setting);
            let machine = this(&assignments);
            (assignments, machine)
        }
    };
    let judged = judge::judge(&assignments, &machine);
    let out =
        o.value("write").map_or_else(|| beside(file), |w| Some(PathBuf::from(w)).filter(|w| w.as_os_str() != "-"));
    let profile = profile(file, &judged, &machine);
    if o.has("json") {
        let all = json!({ "lines": judged, "profile": profile });
        command::print(&(serde_json::to_string_pretty(&all).map_err(|e| e.to_string())? + "\n"));
    } else {
        command::print(&report(&judged));
    }
    if let Some(out) = out {
        write(&out, &profile)?;
        eprintln!("{} is the profile as it should be", out.display());
    } else if !o.has("json") {
        command::print(&format!("\n{profile}"));
    }
    let is_bad = judged.iter().any(|j| !matches!(j.verdict, Verdict::Applies | Verdict::NoOp));
    Ok(if is_bad { WARNING } else { 0 })
}

/// `NAME-corrected.conf`, in the folder where one stands.
fn beside(file: &str) -> Option<PathBuf> {
    let stem = Path::new(file).file_stem()?.to_string_lossy().into_owned();
    Some(PathBuf::from(format!("{stem}-corrected.conf")))
}

/// Nothing is written over but what was written here.
fn write(path: &Path, profile: &str) -> Result<(), String> {
    let shown = path.display();
    if let Ok(old) = std::fs::read(path)
        && !old.starts_with(HEAD.as_bytes())
    {
        return Err(format!("{shown} is there and was not written by the doctor: --write FILE names another"));
    }
    std::fs::write(path, profile).map_err(|e| format!("{shown}: {e}"))
}

fn of_facts(facts: &Facts) -> Machine {
    let m = &facts.machine;
    let kernel = table::version(&m.kernel).unwrap_or((u32::MAX, 0));
    Machine { kernel, memory: m.memory.0, now: m.settings.clone(), absent: Vec::new() }
}

/// This machine, as far as the file's settings are concerned.
fn this(assignments: &[read::Assignment]) -> Machine {
    let kernel = machine::facts::setting("kernel.osrelease").and_then(|r| table::version(&r)).unwrap_or((u32::MAX, 0));
    let mut machine = Machine { kernel, memory: machine::facts::memory().0, ..Machine::default() };
    for a in assignments {
        match machine::facts::setting(&a.name) {
            Some(value) => drop(machine.now.insert(a.name.clone(), value)),
            None => machine.absent.push(a.name.clone()),
        }
    }
    machine
}

fn report(judged: &[Judged]) -> String {
    let mut out = String::new();
    for j in judged {
        let name = if j.name.is_empty() { "(no name)" } else { &j.name };
        let _ = writeln!(out, "{:<10} line {}: {} = {}", j.verdict.name(), j.line, plain(name), plain(&j.value));
        let _ = writeln!(out, "           {}", plain(&j.reason));
        if let Some(written) = &j.written {
            let _ = writeln!(out, "           written \"{}\"", plain(written));
        }
        if let Some(set) = j.set.as_ref().filter(|s| **s != j.value) {
            let _ = writeln!(out, "           better: {} = {set}", j.name);
        }
    }
    let count = |v: Verdict| format!("{} {}", judged.iter().filter(|j| j.verdict == v).count(), v.name());
    let _ = writeln!(out, "\n{} settings: {}", judged.len(), Verdict::ALL.map(count).join(", "));
    out
}

/// What belongs into `/etc/sysctl.d`, with a reason above each line, and what was left out.
fn profile(file: &str, judged: &[Judged], machine: &Machine) -> String {
    let name = Path::new(file).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let kernel = if machine.kernel.0 == u32::MAX {
        "unknown".into()
    } else {
        format!("{}.{}", machine.kernel.0, machine.kernel.1)
    };
    let mut out =
        format!("{HEAD}, from {name}, for Linux {kernel} with {} of memory.\n", crate::text::bytes(machine.memory));
    for j in judged.iter().filter(|j| j.set.is_some()) {
        let set = j.set.as_deref().unwrap_or_default();
        let was = if set == j.value { String::new() } else { format!(" (was {})", j.value) };
        let _ = writeln!(out, "\n# {}{was}\n{} = {set}", j.reason, j.name);
    }
    let left_out = || judged.iter().filter(|j| j.set.is_none());
    out.push_str(if left_out().next().is_some() { "\n# Left out:\n" } else { "" });
    for j in left_out() {
        let name = if j.name.is_empty() { "(no name)" } else { &j.name };
        let _ = writeln!(out, "# {} = {}: {}: {}", plain(name), plain(&j.value), j.verdict.name(), plain(&j.reason));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::corrected;

    /// Pieces of lists as they are published, in any order: what is written of them is a profile, and stays as it is.
    #[test]
    fn a_corrected_profile_stays_as_it_is() {
        const PIECES: &[&str] = &[
            "net.core.somaxconn",
            "Net.",
            "ipv4.tcp_mem",
            "kernel.sem",
            "vm.swappiness",
            "NE T.ipv4.tcp_tw_reuse",
            "kernel.core_pattern",
            "=",
            " = ",
            "=",
            " = ",
            "0",
            "1",
            "4096 8192 16384",
            "204 8 64500",
            "33554432",
            "18446744073709551615",
            "\n",
            "\n",
            " ",
            "#",
            ";",
            "-",
            "/",
            ".",
            "|/bin/x %p",
        ];
        let settings = |profile: &str| -> Vec<String> {
            profile.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect()
        };
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..1_000 {
            let mut text = String::new();
            for _ in 0..24 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                text.push_str(PIECES[(seed >> 33) as usize % PIECES.len()]);
            }
            let first = settings(&corrected(&text, "6.1.0", 24 << 30));
            let again = settings(&corrected(&(first.join("\n") + "\n"), "6.1.0", 24 << 30));
            assert_eq!(first, again, "{text:?}");
        }
    }
}
