//! `ironweir tune --prove`: whether a kernel setting does what is said of it, measured here. One setting at a time, before and after in
//! alternation, in a replica of this machine's network settings (`replica`) or on the machine itself with its traffic (`live`). What is
//! better is written to a file for sysctl.d; nothing stays changed.
//!
//! ```text
//! findings' cures, FILE, NAME=VALUE ─> candidates ─> measure A B B A ... ─> paired permutation test ─> better · nothing · worse ─> file
//! ```

mod live;
mod replica;

use crate::command::{PAUSE, WARNING, finish, print};
use crate::facts::Facts;
use crate::options::{Options, TUNE};
use crate::rules;
use crate::statistics::{MOST_PAIRS, median, paired};
use crate::sysctl::read;
use crate::text::number;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Pairs of measurements of each setting. Ten cannot be all better by chance more often than once in 1,024.
const PAIRS: f64 = 10.0;
/// Below seven pairs nothing can be told from chance with [`P`].
const FEWEST_PAIRS: usize = 7;
/// Chance explains a difference that counts with less than this, over all workloads together: each has its part of it.
const P: f64 = 0.01;
/// Settings of one run.
const MOST_SETTINGS: usize = 64;
/// Where the file goes, unless it is said.
const FILE: &str = "90-ironweir.conf";
/// By which a file is known to be ours.
const HEAD: &str = "# Written by ironweir tune";

/// A setting that is to be proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Its name with dots.
    pub name: String,
    /// The value that is said to be better.
    pub value: String,
    /// Who says so: a finding, a file, the command line.
    pub from: String,
}

/// A workload under both values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// What was measured, with its unit.
    pub workload: &'static str,
    /// The median under the value that is.
    pub before: f64,
    /// The median under the value that is proposed.
    pub after: f64,
    /// How probable so much betterment is by chance.
    pub p_better: f64,
    /// How probable so much worsening is by chance.
    pub p_worse: f64,
}

/// What is said of a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Something is better and nothing is worse.
    Better,
    /// No workload changes more than chance does.
    Nothing,
    /// Something is worse.
    Worse,
    /// It has this value already.
    Same,
    /// It could not be tried, and why.
    NotTried(String),
}

/// A setting that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proved {
    /// The setting.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// The value that is.
    pub was: String,
    /// What came of it.
    pub verdict: Verdict,
    /// What was measured.
    pub effects: Vec<Effect>,
}

/// Where settings are tried.
trait Place {
    /// What is measured, with its unit; more is better.
    fn workloads(&self) -> &'static [&'static str];
    /// A setting's value here.
    fn value(&self, name: &str) -> Option<String>;
    /// Sets it here. The error is a sentence.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;
    /// Measures each workload once.
    fn measure(&mut self) -> Result<Vec<f64>, String>;
}

/// Runs the command. `arguments` are those behind `tune`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    finish("tune", TUNE.parse(arguments).and_then(|o| run(&o, version)))
}

fn run(o: &Options, version: &str) -> Result<u8, String> {
    if let Some(text) = TUNE.about(o, version) {
        print(&text);
        return Ok(0);
    }
    if o.has("guard") {
        return live::guard();
    }
    if !o.has("prove") {
        return Err("nothing is changed without a proof: ironweir tune --prove [FILE | NAME=VALUE...]".to_owned());
    }
    let candidates = candidates(&o.words)?;
    if candidates.is_empty() {
        print("No finding of the doctor's proposes a setting, and none was named: there is nothing to prove.\n");
        return Ok(0);
    }
    let pairs = (o.number("pairs", PAIRS)? as usize).clamp(FEWEST_PAIRS, MOST_PAIRS);
    let said = |p: &Proved| {
        if !o.has("json") {
            print(&shown(p));
        }
    };
    let is_live = o.has("live");
    let proved = if is_live {
        live::with(o, &candidates, |place| prove_all(place, &candidates, pairs, &said))?
    } else {
        replica::with(|place| prove_all(place, &candidates, pairs, &said))?
    };
    if o.has("json") {
        print(&(serde_json::to_string_pretty(&proved).map_err(|e| e.to_string())? + "\n"));
    }
    let better: Vec<&Proved> = proved.iter().filter(|p| p.verdict == Verdict::Better).collect();
    if better.is_empty() {
        eprintln!("nothing is worth setting; no file is written");
        return Ok(WARNING);
    }
    let path = Path::new(o.value("write").unwrap_or(FILE));
    write(path, &file(&better, pairs, is_live))?;
    eprintln!("{0} has what is better; nothing is set: sysctl -p {0}, or put it into /etc/sysctl.d", path.display());
    Ok(0)
}

/// From the command line: files, and single settings; without any, what the findings of this machine propose.
fn candidates(words: &[String]) -> Result<Vec<Candidate>, String> {
    let mut all = Vec::new();
    for word in words {
        if let Some((name, value)) =
            word.split_once('=').filter(|(name, _)| !name.contains('/') || !Path::new(word).exists())
        {
            let (name, value) = (name.trim(), value.trim());
            if name.is_empty() || value.is_empty() {
                return Err(format!("{word}: NAME=VALUE needs both"));
            }
            all.push(Candidate { name: name.into(), value: value.into(), from: "the command line".into() });
            continue;
        }
        let bytes = crate::files::read(word.as_ref(), read::MOST_BYTES).map_err(|e| format!("{word}: {e}"))?;
        if bytes.len() > read::MOST_BYTES {
            return Err(format!("{word}: more than {} bytes are no profile of settings", read::MOST_BYTES));
        }
        let assignments = read::read(&String::from_utf8_lossy(&bytes), &machine::facts::has_setting);
        let named = assignments.into_iter().filter(|a| !a.is_comment && !a.name.is_empty() && !a.value.is_empty());
        all.extend(named.map(|a| Candidate { from: format!("{word}, line {}", a.line), name: a.name, value: a.value }));
    }
    if words.is_empty() {
        let facts = Facts::read(PAUSE, None)?;
        for finding in rules::judge(&facts) {
            all.extend(finding.cure.iter().flat_map(|cure| proposed(cure, finding.id)));
        }
    }
    if all.len() > MOST_SETTINGS {
        return Err(format!("{} settings are too many for one run (at most {MOST_SETTINGS})", all.len()));
    }
    Ok(all)
}

/// The settings in a finding's cure: `sysctl -w NAME=VALUE`, perhaps among other words.
fn proposed(cure: &str, id: &str) -> Vec<Candidate> {
    let each = cure.split("sysctl -w ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once('=')?;
        let value = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => rest.split([' ', ';', ',']).next()?,
        };
        Some(Candidate { name: name.to_owned(), value: value.to_owned(), from: format!("the finding {id}") })
    });
    each.collect()
}

/// One after the other; what is better stays for those that follow, in the place where it is tried.
fn prove_all(
    place: &mut dyn Place,
    all: &[Candidate],
    pairs: usize,
    said: &dyn Fn(&Proved),
) -> Result<Vec<Proved>, String> {
    let mut proved = Vec::new();
    for candidate in all {
        let one = prove(place, candidate, pairs)?;
        said(&one);
        proved.push(one);
    }
    Ok(proved)
}

fn prove(place: &mut dyn Place, candidate: &Candidate, pairs: usize) -> Result<Proved, String> {
    let Candidate { name, value, .. } = candidate;
    let proved = |was: String, verdict, effects| Proved { candidate: candidate.clone(), was, verdict, effects };
    let Some(was) = place.value(name) else {
        let why = "there is no such setting where it is tried: this kernel does not have it, or it belongs to the whole machine (--live)";
        return Ok(proved(String::new(), Verdict::NotTried(why.to_owned()), Vec::new()));
    };
    if normal(&was) == normal(value) {
        return Ok(proved(was, Verdict::Same, Vec::new()));
    }
    // The kernel's word for the value: what it takes may not be what was asked.
    if let Err(why) = place.set(name, value) {
        return Ok(proved(was, Verdict::NotTried(why), Vec::new()));
    }
    let mut seen = [Vec::new(), Vec::new()];
    for pair in 0..pairs {
        // A B, B A, A B ...: what drifts with time drifts for both.
        for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            place.set(name, [was.as_str(), value][side])?;
            seen[side].push(place.measure()?);
        }
    }
    let workloads = place.workloads();
    let of = |side: usize, workload: usize| seen[side].iter().map(|m| m[workload]).collect::<Vec<f64>>();
    let effects: Vec<Effect> = (0..workloads.len())
        .map(|w| {
            let (before, after) = (of(0, w), of(1, w));
            Effect {
                workload: workloads[w],
                before: median(&before),
                after: median(&after),
                p_better: paired(&after, &before),
                p_worse: paired(&before, &after),
            }
        })
        .collect();
    let verdict = judged(&effects);
    place.set(name, if verdict == Verdict::Better { value } else { &was })?;
    Ok(proved(was, verdict, effects))
}

fn judged(effects: &[Effect]) -> Verdict {
    let each = P / effects.len().max(1) as f64;
    if effects.iter().any(|e| e.p_worse < each) {
        Verdict::Worse
    } else if effects.iter().any(|e| e.p_better < each) {
        Verdict::Better
    } else {
        Verdict::Nothing
    }
}

fn normal(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// For people.
fn shown(p: &Proved) -> String {
    let Candidate { name, value, from } = &p.candidate;
    let mut out = format!("{name} = {value} ({from})\n");
    let verdict = match &p.verdict {
        Verdict::Better => format!("better than {}", p.was),
        Verdict::Nothing => format!("does nothing that can be told from chance: {} stays", p.was),
        Verdict::Worse => format!("worse than {}, which stays", p.was),
        Verdict::Same => "is so already".to_owned(),
        Verdict::NotTried(why) => format!("not tried: {why}"),
    };
    let _ = writeln!(out, "  {verdict}");
    for e in &p.effects {
        let (a, b) = (number(e.before.abs().round() as u64), number(e.after.abs().round() as u64));
        let p = e.p_better.min(e.p_worse);
        let _ = writeln!(out, "    {:<34} {a:>12} -> {b:>12}   p = {p:.4}", e.workload);
    }
    out
}

/// The profile.
fn file(better: &[&Proved], pairs: usize, is_live: bool) -> String {
    let place =
        if is_live { "on this machine under its traffic" } else { "in a replica of this machine's network settings" };
    let mut out = format!(
        "{HEAD}: what was better {place},\n# {pairs} pairs of measurements in alternation, exact paired permutation test, p < {P} over all workloads.\n"
    );
    for p in better {
        let Candidate { name, value, from } = &p.candidate;
        let _ = writeln!(out, "\n# {from}; was {}", p.was);
        for e in p.effects.iter().filter(|e| e.p_better < P) {
            let (a, b) = (e.before.abs().round(), e.after.abs().round());
            let _ = writeln!(out, "# {}: {a} -> {b} (p = {:.4})", e.workload, e.p_better);
        }
        let _ = writeln!(out, "{name} = {value}");
    }
    out
}

/// Nothing is written over but what was written here.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let shown = path.display();
    if std::fs::read(path).is_ok_and(|old| !old.starts_with(HEAD.as_bytes())) {
        return Err(format!("{shown} is there and was not written by ironweir tune: --write FILE names another"));
    }
    std::fs::write(path, text).map_err(|e| format!("{shown}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A machine on which one setting matters, one harms, and noise is everywhere.
    struct Pretended {
        values: BTreeMap<String, String>,
        turn: u64,
    }

    impl Place for Pretended {
        fn workloads(&self) -> &'static [&'static str] {
            &["one, per second", "two, per second"]
        }

        fn value(&self, name: &str) -> Option<String> {
            self.values.get(name).cloned()
        }

        fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
            if value == "refused" {
                return Err("the kernel refuses it".into());
            }
            self.values.insert(name.into(), value.into());
            Ok(())
        }

        fn measure(&mut self) -> Result<Vec<f64>, String> {
            self.turn += 1;
            let noise = |salt: u64| ((self.turn * 7_919 + salt) * 2_654_435_761 % 1_000) as f64 / 20.0;
            let is = |name: &str| self.values[name] == "1";
            let one = 1_000.0 + noise(1) + if is("helps") { 100.0 } else { 0.0 };
            let two = 1_000.0 + noise(2) - if is("harms") { 100.0 } else { 0.0 };
            Ok(vec![one, two])
        }
    }

    #[test]
    fn what_helps_is_told_from_folklore_and_harm() {
        let values = ["helps", "harms", "folklore"].map(|n| (n.to_owned(), "0".to_owned()));
        let mut place = Pretended { values: values.into(), turn: 0 };
        let candidate =
            |name: &str, value: &str| Candidate { name: name.into(), value: value.into(), from: "x".into() };
        let all = [
            candidate("helps", "1"),
            candidate("harms", "1"),
            candidate("folklore", "1"),
            candidate("folklore", "0"),
            candidate("folklore", "refused"),
            candidate("none", "1"),
        ];
        let proved = prove_all(&mut place, &all, 10, &|_| ()).unwrap();
        let verdicts: Vec<&Verdict> = proved.iter().map(|p| &p.verdict).collect();
        assert_eq!(verdicts[..4], [&Verdict::Better, &Verdict::Worse, &Verdict::Nothing, &Verdict::Same]);
        assert!(matches!(verdicts[4], Verdict::NotTried(why) if why.contains("refuses")));
        assert!(matches!(verdicts[5], Verdict::NotTried(why) if why.contains("no such setting")));
        assert_eq!(
            (place.values["helps"].as_str(), place.values["harms"].as_str(), place.values["folklore"].as_str()),
            ("1", "0", "0")
        );
        let text = file(&[&proved[0]], 10, false);
        assert!(text.starts_with(HEAD) && text.contains("\nhelps = 1\n") && text.contains("p = 0.0010"), "{text}");
        assert!(shown(&proved[2]).contains("does nothing that can be told from chance: 0 stays"));
    }

    #[test]
    fn cures_propose_settings() {
        let of = |cure: &str| proposed(cure, "x").into_iter().map(|c| (c.name, c.value)).collect::<Vec<_>>();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(of("sysctl -w net.core.somaxconn=4096"), [pair("net.core.somaxconn", "4096")]);
        assert_eq!(of("sysctl -w a.b=15; sysctl -w c.d=2; in nginx: x on;"), [pair("a.b", "15"), pair("c.d", "2")]);
        assert_eq!(of("sysctl -w a.b=\"1024 65535\", with more"), [pair("a.b", "1024 65535")]);
        assert!(of("listen ... backlog=4096;").is_empty());
    }
}
