//! `ironweir why`: what is in the way now, in one sentence with its evidence, and how much more the server could carry.

use crate::command::{PAUSE, finish, print};
use crate::facts::{Facts, PATIENCE};
use crate::finding::{Finding, Weight};
use crate::headroom::{Headroom, headroom};
use crate::options::{Options, WHY};
use crate::serving::{Ask, Look, Serving};
use crate::text::{self, microseconds, number};
use crate::whose;
use crate::{command, rules};
use api_client::terminal::plain;
use api_client::{Client, Failure, Trust, URL};
use machine::cgroup::Groups;
use machine::counters::Moving;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub use machine::wake::{known as known_wake_costs, measure_soon as measure_wake_costs};

/// What is in the way.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// One sentence, or two.
    pub sentence: String,
    /// The finding it is of; none: nothing is in the way.
    pub finding: Option<Finding>,
    /// Others that may have a part in it.
    pub others: Vec<Finding>,
    /// What is left.
    pub headroom: Option<Headroom>,
    /// What a request waits for, microseconds on average, in the order of its life.
    pub parts_us: Vec<(String, f64)>,
    /// What the machine's interfaces carry.
    pub interfaces: Vec<Interface>,
}

/// An interface that is up, a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Bits received and sent.
    pub rx_bits: f64,
    /// See `rx_bits`.
    pub tx_bits: f64,
    /// Packets received and sent.
    pub rx_packets: f64,
    /// See `rx_packets`.
    pub tx_packets: f64,
    /// Packets that were dropped, either way.
    pub drops: f64,
    /// Packets that were wrong, either way.
    pub errors: f64,
    /// Bits a second that it can carry, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<u64>,
}

/// Interfaces that are told: a host of containers has thousands.
const MOST_INTERFACES: usize = 32;

/// Those that are up and are not the loopback, the busiest first.
fn interfaces(m: &machine::Facts) -> Vec<Interface> {
    let seconds = m.seconds.max(1e-3);
    let each = |now: &machine::links::Link| {
        let before = m.before.links.iter().find(|b| b.name == now.name)?;
        let c = now.counts.since(&before.counts);
        let rate = |n: u64| n as f64 / seconds;
        Some(Interface {
            name: now.name.clone(),
            rx_bits: rate(c.rx_bytes) * 8.0,
            tx_bits: rate(c.tx_bytes) * 8.0,
            rx_packets: rate(c.rx_packets),
            tx_packets: rate(c.tx_packets),
            drops: rate(c.rx_dropped + c.tx_dropped + c.rx_missed),
            errors: rate(c.rx_errors + c.tx_errors),
            speed: now.speed,
        })
    };
    let mut all: Vec<Interface> = m.now.links.iter().filter(|l| l.is_up && !l.is_loopback).filter_map(each).collect();
    all.sort_by(|a, b| (b.rx_bits + b.tx_bits).total_cmp(&(a.rx_bits + a.tx_bits)));
    all.truncate(MOST_INTERFACES);
    all
}

/// The order of a request's life.
const ORDER: [&str; 10] =
    ["accept", "tls", "head", "body", "own", "queue", "connect", "first_byte", "answer", "client"];

/// Findings that say nothing about now.
const NOT_NOW: [&str; 11] = [
    "configuration",
    "backlog-cut",
    "backlog-short",
    "no-keepalive",
    "no-pool",
    "deprecated",
    "ports-unreserved",
    "zone-full",
    "connections-used-up",
    "descriptors-used-up",
    "no-live-upstreams",
];

/// Judges facts.
pub fn judge(facts: &Facts) -> Answer {
    let is_past = |id: &str| NOT_NOW.contains(&id) || id.starts_with("kernel-") || id.starts_with("unit-");
    let now = |f: &Finding| f.weight != Weight::Note && !is_past(f.id);
    let all = rules::judge(facts);
    let mut findings: Vec<Finding> = all.iter().filter(|f| now(f)).cloned().collect();
    let is_short = all.iter().any(|f| f.id == "backlog-short");
    findings.sort_by_key(|f| {
        (if is_short && f.id.starts_with("accept-queue") { SHORT_BACKLOG } else { rank(f.id) }, f.weight)
    });
    let headroom = headroom(facts);
    let mut findings = findings.into_iter();
    let finding = findings.next();
    let nothing = if facts.serving.is_some() {
        "Nothing is in the way."
    } else {
        "The server does not say what it does, and nothing else is wrong with this machine."
    };
    let mut sentence = finding.as_ref().map_or_else(|| nothing.to_owned(), |f| f.what.clone());
    if let Some(s) = &facts.serving {
        let rate = if s.answers < 10.0 { format!("{:.1}", s.answers) } else { number(s.answers.round() as u64) };
        let _ = write!(sentence, " It answers {rate} requests/s");
        match headroom.as_ref().filter(|h| finding.is_none() && h.more >= 1.0) {
            Some(h) => {
                let more = number(round(h.more));
                let part = h.more / (h.rate + h.more) * 100.0;
                let _ = write!(
                    sentence,
                    " and could answer about {more} more ({part:.0} % of what it could in all); then {} end{}.",
                    h.then.name,
                    plural(&h.then.name)
                );
            }
            None => sentence.push('.'),
        }
    }
    let parts = facts.serving.iter().flat_map(|s| ORDER.map(|name| (name.to_owned(), s.part_us(name))));
    let interfaces = interfaces(&facts.machine);
    Answer { sentence, finding, others: findings.collect(), headroom, parts_us: parts.collect(), interfaces }
}

fn plural(name: &str) -> &'static str {
    let is_many = ["all ", "the CPUs ", "the local ports ", "the descriptors ", "worker_connections"];
    if is_many.iter().any(|n| name.starts_with(n)) { "" } else { "s" }
}

/// Two digits are all that an estimate has.
fn round(n: f64) -> u64 {
    let unit = 10f64.powi((n.max(1.0).log10().floor() as i32 - 1).max(0));
    ((n / unit).round() * unit) as u64
}

/// A queue that overflows since it is short is a cause; another one overflows since somebody does not take from it.
const SHORT_BACKLOG: usize = 1;

/// What causes others comes before what follows from it: a stopped thread fills queues, a full queue makes clients slow.
const CAUSES: [&[&str]; 6] = [
    &["server-stopped", "thread-stuck", "memory", "tcp-memory", "file-max", "descriptors", "conntrack-full"],
    &["local-ports-used-up", "port-taken", "cpu-limit", "log-write", "disk", "interface-full"],
    &["one-cpu", "syn-queue-full"],
    &[
        "workers-starved",
        "handshakes",
        "workers-cpu",
        "peers-out",
        "upstream-queue",
        "upstream-slow",
        "upstream-connect",
        "held-here",
        "connections-limit",
    ],
    &[
        "accept-queue-full",
        "accept-queue-overflowed",
        "unix-queue-full",
        "loss",
        "interface-drops",
        "backlog-drops",
        "budget",
    ],
    &["errors", "cpu", "clients-take-slowly", "clients-send-slowly"],
];

fn rank(id: &str) -> usize {
    CAUSES.iter().position(|ids| ids.contains(&id)).unwrap_or(CAUSES.len())
}

/// Asked again and again from within a server, of itself: each answer is about the time since the one before.
#[derive(Default)]
pub struct Watch {
    last: Option<(Instant, Moving, Groups, Look)>,
    answer: Option<(Answer, f64)>,
}

/// Who asks more often than this gets the last answer again.
const LEAST_BETWEEN: Duration = Duration::from_secs(1);

impl Watch {
    /// The answer and how many seconds it is about; none for the first time.
    ///
    /// # Errors
    /// As [`Look::take`].
    pub fn ask(&mut self, ask: &Ask) -> Result<Option<(Answer, f64)>, String> {
        if self.last.as_ref().is_some_and(|(at, ..)| at.elapsed() < LEAST_BETWEEN) {
            return Ok(self.answer.clone());
        }
        let look = Look::take(ask)?;
        if let Some((began, moving, groups, before)) = self.last.take() {
            let serving = Serving::between(&before, &look);
            let mut machine = machine::Facts::since(moving, &groups, began);
            machine.wake = machine::wake::costs();
            let (seconds, pid) = (machine.seconds, serving.pid);
            let mut facts = Facts { machine, serving: Some(serving), ..Facts::default() };
            whose::add_process(&mut facts, pid, &groups);
            whose::only_the_servers(&mut facts);
            self.answer = Some((judge(&facts), seconds));
        }
        self.last = Some((Instant::now(), Moving::read(), Groups::of(std::process::id()), look));
        Ok(self.answer.clone())
    }
}

mod elsewhere;

/// Runs the command. `arguments` are those behind `why`.
pub fn main(arguments: impl Iterator<Item = String>, version: &str) -> ExitCode {
    finish("why", WHY.parse(arguments).and_then(|o| run(&o, version)))
}

fn run(o: &Options, version: &str) -> Result<u8, String> {
    if let Some(text) = WHY.about(o, version) {
        print(&text);
        return Ok(0);
    }
    if let Some(word) = o.words.first() {
        return Err(format!("{word}: is it --api {word} that is meant?"));
    }
    let url = o.value("api").unwrap_or(URL);
    let (value, page, finding) = match read(url, o.duration("interval", PAUSE)?)? {
        Seen::Here(facts) => {
            let answer = judge(&facts);
            let value = serde_json::to_value(&answer).map_err(|e| e.to_string())?;
            (value, shown(&answer, &facts.machine.missing), answer.finding)
        }
        Seen::Elsewhere(said) => {
            let answer = elsewhere::answer(&said)?;
            // The same as of a server here, with what only its own machine knows.
            let mut value = serde_json::to_value(&answer).map_err(|e| e.to_string())?;
            value["elsewhere"] = Value::Bool(true);
            value["seconds"] = said["seconds"].clone();
            value["interfaces"] = said["interfaces"].clone();
            let missing = ["the machine on which the server runs, but by what it says of it itself".to_owned()];
            (value, shown(&answer, &missing), answer.finding)
        }
    };
    if o.has("json") {
        print(&(serde_json::to_string_pretty(&value).map_err(|e| e.to_string())? + "\n"));
    } else {
        print(&page);
    }
    Ok(command::status(finding.as_slice()))
}

/// Who is asked of what.
enum Seen {
    /// The server runs here.
    Here(Box<Facts>),
    /// It runs elsewhere, and has answered for itself and its machine (`/ironweir/why`).
    Elsewhere(Value),
}

/// This machine, the server that an API belongs to, and its configuration where that can be found; of a server on another machine, what it says.
fn read(url: &str, pause: Duration) -> Result<Seen, String> {
    let pause = pause.max(Duration::from_millis(100));
    let client = Client::new(url, &Trust::System, None)?.with_patience(PATIENCE);
    let addresses = client.addresses();
    if !addresses.iter().any(|a| machine::own::is_local(a.ip())) {
        return elsewhere::ask(&client, pause).map(Seen::Elsewhere);
    }
    let before = Look::over(&client);
    let mut facts = Facts::read(pause, None)?;
    match before.and_then(|before| Ok(Serving::between(&before, &Look::over(&client)?))) {
        Ok(serving) if !whose::is_here(&facts, &addresses, serving.pid) => {
            return elsewhere::ask(&client, pause).map(Seen::Elsewhere);
        }
        Ok(serving) => {
            facts.serving = Some(serving);
            facts.machine.wake = machine::wake::costs();
        }
        // A server that has a fault may not be able to say so; the machine tells of it all the same.
        Err(Failure::Silent(text)) => {
            facts.machine.missing.insert(0, format!("what the server says of itself: {text}"))
        }
        Err(Failure::Other(text)) => return Err(text),
    }
    whose::only_the_servers(&mut facts);
    Ok(Seen::Here(Box::new(facts)))
}

/// For people.
fn shown(answer: &Answer, missing: &[String]) -> String {
    let mut out = format!("{}\n", plain(&answer.sentence));
    out.push_str(&bar(&answer.parts_us));
    if let Some(h) = &answer.headroom {
        let _ = writeln!(out, "\n{}: {} in use.", plain(&capital(&h.then.name)), plain(&h.then.evidence));
    }
    let findings: Vec<Finding> = answer.finding.iter().chain(&answer.others).cloned().collect();
    if !findings.is_empty() {
        out.push('\n');
        out.push_str(&text::report(&findings, missing));
    }
    out
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

/// Columns of the longest bar.
const BAR: f64 = 40.0;

/// The time of a request, part by part.
fn bar(parts: &[(String, f64)]) -> String {
    let whole: f64 = parts.iter().map(|p| p.1).sum();
    if whole <= 0.0 {
        return String::new();
    }
    let mut out = format!("\nA request takes {}:\n", microseconds(whole));
    for (name, us) in parts.iter().filter(|p| p.1 > 0.0) {
        let length = (us / whole * BAR).round() as usize;
        let _ = writeln!(
            out,
            "  {:<11}{:>9} {:>4.0} %  {}",
            meaning(name),
            microseconds(*us),
            us / whole * 100.0,
            "#".repeat(length)
        );
    }
    out
}

/// A part's name for people.
fn meaning(name: &str) -> &str {
    match name {
        "first_byte" => "first byte",
        "tls" => "TLS",
        "own" => "server",
        "answer" => "upstream",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::Thread;

    /// A server that answers 1,000 requests a second, of 3 ms each.
    fn healthy() -> Facts {
        let mut facts = Facts::default();
        facts.machine.cpus = 4;
        facts.serving = Some(Serving {
            answers: 1_000.0,
            seconds: 1.0,
            timed: 1_000,
            threads: vec![Thread { running: 0.2, requests: 500.0, connections: 5, ..Thread::default() }; 2],
            parts_us: [("own".to_owned(), 1_000.0), ("first_byte".to_owned(), 2_000.0)].into(),
            ..Serving::default()
        });
        facts
    }

    /// What is in the way after a change.
    fn after(change: impl FnOnce(&mut Serving)) -> Option<&'static str> {
        let mut facts = healthy();
        change(facts.serving.as_mut().unwrap());
        judge(&facts).finding.map(|f| f.id)
    }

    #[test]
    fn nothing_is_in_the_way() {
        let answer = judge(&healthy());
        assert_eq!(
            answer.sentence,
            "Nothing is in the way. It answers 1,000 requests/s and could answer about 4,000 more (80 % of what it could in all); then the CPU time of worker threads ends."
        );
        let page = shown(&answer, &[]);
        assert!(page.contains("A request takes 3.0 ms:\n  server        1.0 ms   33 %  #############\n"), "{page}");
    }

    #[test]
    fn interfaces_are_rates_and_say_no_speed_that_they_do_not_have() {
        use machine::links::{Link, LinkCounts};
        let link = |name: &str, rx_bytes, speed| Link {
            name: name.into(),
            is_up: true,
            is_loopback: name == "lo",
            speed,
            counts: LinkCounts { rx_bytes, ..LinkCounts::default() },
            ..Link::default()
        };
        let mut m = machine::Facts { seconds: 2.0, ..machine::Facts::default() };
        m.before.links = vec![link("lo", 0, None), link("v0", 0, None), link("eth0", 0, Some(9))];
        m.now.links =
            vec![link("lo", 9_000, None), link("v0", 1_000, None), link("eth0", 2_000, Some(9)), link("new", 5, None)];
        let all = interfaces(&m);
        assert_eq!(
            all.iter().map(|i| (i.name.as_str(), i.rx_bits)).collect::<Vec<_>>(),
            [("eth0", 8_000.0), ("v0", 4_000.0)]
        );
        let json = serde_json::to_value(&all).unwrap();
        assert!(json[0]["speed"] == 9 && json[1].get("speed").is_none(), "{json}");
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(after(|s| s.threads.iter_mut().for_each(|t| t.running = 0.96)), Some("workers-cpu"));
        assert_eq!(after(|s| s.threads[0].running = 0.96), Some("workers-cpu"));
        let starved = |s: &mut Serving| s.threads.iter_mut().for_each(|t| (t.running, t.waiting) = (0.1, 0.9));
        assert_eq!(after(starved), Some("workers-starved"));
        let stuck = |s: &mut Serving| (s.threads[1].running, s.threads[1].requests) = (0.0, 0.0);
        assert_eq!(after(stuck), Some("thread-stuck"));
        let storm = |s: &mut Serving| {
            s.threads.iter_mut().for_each(|t| t.running = 0.97);
            (s.handshakes, s.answers) = (400.0, 410.0);
        };
        assert_eq!(after(storm), Some("handshakes"));
        let part = |name: &'static str, us: f64| move |s: &mut Serving| _ = s.parts_us.insert(name.to_owned(), us);
        assert_eq!(after(part("first_byte", 300_000.0)), Some("upstream-slow"));
        assert_eq!(after(part("connect", 1_000_000.0)), Some("upstream-connect"));
        assert_eq!(after(part("client", 900_000.0)), Some("clients-take-slowly"));
        assert_eq!(after(part("own", 500_000.0)), Some("held-here"));
        assert_eq!(after(part("first_byte", 50_000.0)), None, "an application of 50 ms is no fault");
        assert_eq!(after(|s| (s.log_write_us, s.log_held) = (20_000.0, 0.6)), Some("log-write"));
        assert_eq!(
            after(|s| (s.log_write_us, s.log_held) = (20_000.0, 0.02)),
            None,
            "one write that had to wait is no fault"
        );
        assert_eq!(after(|s| s.errors = 200.0), Some("errors"));
        assert_eq!(after(|s| s.connections = (512, 512)), Some("connections-limit"));
        let queue = |s: &mut Serving| _ = s.queues.insert("app".into(), (9, 3));
        assert_eq!(after(queue), Some("upstream-queue"));
        let out = |s: &mut Serving| {
            let peer =
                |state: &str| crate::serving::Peer { group: "app".into(), state: state.into(), ..Default::default() };
            s.peers = vec![peer("up"), peer("unhealthy"), peer("down")];
        };
        assert_eq!(after(out), Some("peers-out"));
    }

    #[test]
    fn a_cause_stands_before_what_follows_from_it() {
        let both = |s: &mut Serving| {
            (s.threads[1].running, s.threads[1].requests) = (0.0, 0.0);
            s.errors = 900.0;
            s.parts_us.insert("client".into(), 900_000.0);
        };
        assert_eq!(after(both), Some("thread-stuck"));
        assert_eq!((round(38_412.0), round(7.0), round(0.2)), (38_000, 7, 0));
    }
}
